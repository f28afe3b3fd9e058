//! How copies of one aggregate are lost: all in one moment, or each by itself.
//!
//! Ours. A share m of aggregates leaves in moments that lose every copy (a burst on the line, a ring that is full); of the
//! others each copy is lost by itself with probability q. So m + (1 − m)q of the copies are lost, N copies leave
//! m + (1 − m)q^N, and a third copy helps against q alone. Where losses are independent m is zero.

/// What copies are lost to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Mixture {
    /// m.
    moments: f64,
    /// q.
    alone: f64,
}

/// Halvings of what is looked for: to a part in 10⁹ of the loss.
const HALVINGS: u32 = 30;

impl Mixture {
    /// Nothing is lost together, `loss` of the copies.
    pub(super) fn independent(loss: f64) -> Self {
        Self {
            moments: 0.0,
            alone: loss,
        }
    }

    /// `loss` of the copies is lost, and of aggregates of as many as `copies` the share `all_lost`. What is less than
    /// chance explains counts as chance.
    pub(super) fn measured(loss: f64, all_lost: f64, copies: u8) -> Self {
        if copies < 2 || loss >= 1.0 {
            return Self::independent(loss);
        }
        // What is lost of aggregates grows with m.
        let (mut low, mut high) = (0.0, loss);
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(low, high);
            match Self::with_moments(middle, loss).residual(copies) < all_lost {
                true => low = middle,
                false => high = middle,
            }
        }
        // Of no moments the search comes near to none only.
        match Self::independent(loss).residual(copies) >= all_lost {
            true => Self::independent(loss),
            false => Self::with_moments(f64::midpoint(low, high), loss),
        }
    }

    /// `moments` is at most `loss`, and that less than 1.
    fn with_moments(moments: f64, loss: f64) -> Self {
        let alone = ((loss - moments) / (1.0 - moments)).clamp(0.0, 1.0);
        Self { moments, alone }
    }

    /// The share of aggregates lost with `copies`.
    pub(super) fn residual(&self, copies: u8) -> f64 {
        self.moments + (1.0 - self.moments) * self.alone.powi(i32::from(copies))
    }

    /// The same if `loss` of the first copies may be lost, more than was seen; what is lost together, and behind a lost
    /// copy, is as it seems: at the worst no copy would help.
    pub(super) fn residual_at_worst(&self, loss: f64, copies: u8) -> f64 {
        if self.moments >= 1.0 {
            return 1.0;
        }
        let first = ((loss - self.moments) / (1.0 - self.moments)).clamp(self.alone, 1.0);
        let further = self.alone.powi(i32::from(copies) - 1);
        self.moments + (1.0 - self.moments) * first * further
    }

    /// Of second copies behind a lost first one, the share lost.
    pub(super) fn together(&self) -> f64 {
        let loss = self.residual(1);
        if loss <= 0.0 {
            return 0.0;
        }
        (self.residual(2) / loss).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_copies_are_lost_to_is_found_by_what_any_number_of_them_leaves() {
        for copies in 2..=10 {
            for loss in [1e-6, 0.01, 0.3, 0.99] {
                for moments in [0.0, 0.1, 0.5, 0.9, 1.0].map(|part| part * loss) {
                    let mixture = Mixture::with_moments(moments, loss);
                    let found = Mixture::measured(loss, mixture.residual(copies), copies);
                    let off = (found.together() - mixture.together()).abs();
                    assert!(off < 1e-6, "{copies} {mixture:?}: {found:?}");
                    assert!((found.residual(1) - loss).abs() < 1e-9 * loss.max(1e-3));
                }
            }
        }
    }

    #[test]
    fn limits_are_finite() {
        for copies in [1, 2, 3, 255] {
            for loss in [0.0, f64::MIN_POSITIVE, 0.5, 1.0] {
                for all_lost in [0.0, loss, 1.0, 7.0] {
                    let found = Mixture::measured(loss, all_lost, copies);
                    let shares = [
                        found.residual(1),
                        found.residual(copies),
                        found.residual_at_worst(loss, copies),
                        found.residual_at_worst(1.0, copies),
                        found.together(),
                    ];
                    let are_shares = shares.iter().all(|share| (0.0..=1.0).contains(share));
                    assert!(are_shares, "{copies} {loss} {all_lost}: {shares:?}");
                }
            }
        }
    }

    #[test]
    fn more_loss_and_fewer_copies_never_leave_less() {
        for moments in [0.0, 0.001, 0.01, 0.02] {
            let mixture = Mixture::with_moments(moments, 0.02);
            let mut least = 0.0;
            for worst in [0.02, 0.03, 0.1, 0.5, 1.0] {
                let left = [1, 2, 3].map(|copies| mixture.residual_at_worst(worst, copies));
                assert!(left.is_sorted_by(|fewer, more| fewer >= more), "{left:?}");
                assert!(left[2] >= least, "{mixture:?} at {worst}: {left:?}");
                least = left[2];
            }
            let seen = [1, 2, 3].map(|copies| mixture.residual_at_worst(0.02, copies));
            let expected = [1, 2, 3].map(|copies| mixture.residual(copies));
            let off = seen.iter().zip(expected).map(|(a, b)| (a - b).abs());
            assert!(off.fold(0.0, f64::max) < 1e-12, "{seen:?} {expected:?}");
        }
        // Independent losses: as many as the first copies lose, and of those what was seen.
        let independent = Mixture::independent(0.1);
        assert!((independent.residual(3) - 1e-3).abs() < 1e-12);
        assert!((independent.residual_at_worst(1.0, 3) - 1e-2).abs() < 1e-12);
    }
}
