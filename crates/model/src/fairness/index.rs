//! One number for how close shares are to what was wanted.

/// The weighted fairness index F = (Σ xᵢ/rᵢ)² / (N Σ (xᵢ/rᵢ)²) of throughputs xᵢ and weights rᵢ,
/// `[fairness eq. 1]`.
///
/// In 1/N..=1: 1 if throughputs are as the weights, 1/N if one takes everything. The unit of the
/// throughputs does not matter, and neither does a factor common to all weights.
///
/// `None` if there is nothing to compare: no throughputs, not as many weights, only zeros, a
/// weight that is not positive, or a throughput below zero or not finite.
pub fn weighted_index(throughputs: &[f64], weights: &[f64]) -> Option<f64> {
    if throughputs.len() != weights.len() {
        return None;
    }
    let (mut sum, mut squares) = (0.0, 0.0);
    // Scaled to the largest, so that squares neither vanish nor overflow.
    let mut normalised = Vec::with_capacity(throughputs.len());
    for (&throughput, &weight) in throughputs.iter().zip(weights) {
        let share = throughput / weight;
        let valid = throughput >= 0.0 && weight > 0.0 && weight.is_finite() && share.is_finite();
        if !valid {
            return None;
        }
        normalised.push(share);
    }
    let largest = normalised.iter().copied().fold(0.0, f64::max);
    if largest == 0.0 {
        return None;
    }
    for share in &normalised {
        let share = share / largest;
        sum += share;
        squares += share * share;
    }
    Some(sum * sum / (normalised.len() as f64 * squares))
}

/// Jain's index: [`weighted_index`] with equal weights (Jain, Chiu, Hawe 1984).
pub fn jain(throughputs: &[f64]) -> Option<f64> {
    weighted_index(throughputs, &vec![1.0; throughputs.len()])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn close(a: Option<f64>, b: f64) -> bool {
        a.is_some_and(|a| (a - b).abs() < 1e-12)
    }

    #[test]
    fn shares_as_the_weights_are_one_and_a_monopoly_is_one_nth() {
        assert!(close(
            weighted_index(&[3.0, 6.0, 6.0, 9.0, 12.0], &[1.0, 2.0, 2.0, 3.0, 4.0]),
            1.0
        ));
        assert!(close(jain(&[0.0, 7.0, 0.0, 0.0]), 0.25));
        assert!(close(jain(&[1.0, 3.0]), 16.0 / 20.0));
        assert!(close(weighted_index(&[1.0, 1.0], &[1.0, 3.0]), 0.8));
    }

    #[test]
    fn what_cannot_be_compared_is_none() {
        assert_eq!(jain(&[]), None);
        assert_eq!(jain(&[0.0, 0.0]), None);
        assert_eq!(jain(&[1.0, f64::NAN]), None);
        assert_eq!(jain(&[1.0, -1.0]), None);
        assert_eq!(weighted_index(&[1.0], &[1.0, 2.0]), None);
        for weight in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(weighted_index(&[1.0, 1.0], &[1.0, weight]), None);
        }
    }

    #[test]
    fn tiny_and_huge_throughputs_are_compared_too() {
        assert!(close(jain(&[1e-200, 3e-200]), 0.8));
        assert!(close(jain(&[1e300, 3e300]), 0.8));
    }

    proptest! {
        #[test]
        fn lies_between_one_nth_and_one_whatever_the_units(
            shares in prop::collection::vec((0.0..1e9_f64, 0.001..1e3_f64), 1..50),
            factor in 1e-6..1e6_f64,
        ) {
            let (throughputs, weights): (Vec<_>, Vec<_>) = shares.into_iter().unzip();
            prop_assume!(throughputs.iter().any(|x| *x > 0.0));
            let index = weighted_index(&throughputs, &weights).unwrap();
            let least = 1.0 / throughputs.len() as f64;
            prop_assert!(index >= least - 1e-9 && index <= 1.0 + 1e-9);
            let scaled: Vec<_> = throughputs.iter().map(|x| x * factor).collect();
            let other = weighted_index(&scaled, &weights).unwrap();
            prop_assert!((index - other).abs() < 1e-9);
        }
    }
}
