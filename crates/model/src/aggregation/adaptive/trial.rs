//! More copies or fewer on trial: whether loss grows with N.

use std::time::Duration;

use keiro_units::Instant;

use super::{Adaptive, copies_of, scaled};
use crate::aggregation::{
    Cause, DeliveryCounts, Held, Observation, Parameters, line_loss::LossSample,
};

/// Whether loss grows with N.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Trial {
    None,
    /// N was raised from `from`, where `loss_at_most` was lost at most.
    Raised {
        since: Instant,
        from: u8,
        loss_at_most: f64,
        seen: DeliveryCounts,
    },
    /// There are fewer for a while, because of the loss with more.
    Fewer {
        since: Instant,
        before: u8,
        loss: f64,
        seen: DeliveryCounts,
    },
}

/// Losses that show a loss to a quarter: one by the root of 20.
const LOSSES_SHOW: f64 = 20.0;
/// Losses that show a loss to a sixth: one by the root of 40.
const LOSSES_SHOW_WELL: f64 = 40.0;
/// A trial ends after this. Ours: at 200 copies per second a loss of 2 % shows.
const TRIAL_MAX: Duration = Duration::from_secs(5);
/// More than what may have been before, by this, is worse. Ours: what [`LOSSES_SHOW`] losses are off by.
const WORSE: f64 = 1.25;
/// As much less as this is less by the copies that are missing. Ours: by chance once in fifty times.
const BETTER: f64 = 1.5;
/// Multiple of the loss target from which fewer copies are tried: the copies themselves may cause the loss.
/// Ours: what the trial costs is little of that.
const FEWER_COPIES_LOSS: f64 = 5.0;
/// Time from the first such trial to the next; it doubles with each. Ours: less than half of the longest trial.
pub(super) const FEWER_COPIES_AFTER_MIN: Duration = Duration::from_secs(2);
/// The longest of these times. Ours: trials take a twelfth of the time then.
const FEWER_COPIES_AFTER_MAX: Duration = Duration::from_secs(60);

impl Adaptive {
    /// What comes of more copies.
    pub(super) fn judge_trial(
        &mut self,
        now: Instant,
        seen: &Observation,
    ) -> Option<(Parameters, Cause)> {
        let wanted = self.held.wanted;
        let with = |copies| Parameters { copies, ..wanted };
        match self.trial {
            Trial::Raised {
                from,
                loss_at_most,
                seen,
                ..
            } if shown(seen, loss_at_most) >= LOSSES_SHOW => {
                let loss = seen.loss();
                self.trial = Trial::None;
                if loss <= loss_at_most * WORSE {
                    return None;
                }
                self.trial = Trial::Fewer {
                    since: now,
                    before: wanted.copies,
                    loss,
                    seen: DeliveryCounts::default(),
                };
                let cause = Cause::CopyLossGrew {
                    before: loss_at_most,
                    after: loss,
                };
                Some((with(from), cause))
            }
            Trial::Fewer {
                before,
                loss,
                seen: less,
                ..
            } if shown(less, loss) >= LOSSES_SHOW_WELL => {
                self.trial = Trial::None;
                if less.loss() * BETTER > loss {
                    let bearable = self.try_receiver(now, before);
                    return bearable.then(|| (with(before), self.line_loss(now, before)));
                }
                self.on_too_many_copies(now, before, less, seen)
            }
            // Where too little is sent to show anything, it does no harm either.
            Trial::Raised { since, .. } if now - since >= TRIAL_MAX => {
                self.trial = Trial::None;
                None
            }
            Trial::Fewer { since, before, .. } if now - since >= TRIAL_MAX => {
                self.trial = Trial::None;
                let bearable = self.try_receiver(now, before);
                bearable.then(|| (with(before), self.line_loss(now, before)))
            }
            _ => None,
        }
    }

    /// Where copies leave more loss than wanted, they may be what causes it.
    pub(super) fn try_fewer_copies(&mut self, now: Instant) -> Option<(Parameters, Cause)> {
        let Held {
            limits,
            wanted,
            current,
        } = &self.held;
        let target = limits.thresholds().loss_target;
        let loss = self.line.copies();
        let residual = self.line.losses(now).residual(current.copies);
        let copies = limits.copies_below(current.copies)?;
        // So few that none need be lost are no reason to send less of what is thin.
        let is_shown = self.line.shows_lost_aggregates();
        if residual <= FEWER_COPIES_LOSS * target.get() || !is_shown || now < self.fewer_copies_at {
            return None;
        }
        self.fewer_copies_at = now + self.fewer_copies_after;
        self.fewer_copies_after = self
            .fewer_copies_after
            .saturating_mul(2)
            .min(FEWER_COPIES_AFTER_MAX);
        self.trial = Trial::Fewer {
            since: now,
            before: current.copies,
            loss,
            seen: DeliveryCounts::default(),
        };
        let cause = Cause::Doubt { residual, target };
        Some((Parameters { copies, ..*wanted }, cause))
    }

    /// The loss fell with N: what was taken for the line's was congestion, and may be still. The
    /// first time, fewer copies yet are tried.
    fn on_too_many_copies(
        &mut self,
        now: Instant,
        before: u8,
        less: DeliveryCounts,
        seen: &Observation,
    ) -> Option<(Parameters, Cause)> {
        let Held {
            limits,
            wanted,
            current,
        } = &self.held;
        let first = !self.network.has_failed();
        let loss = less.loss();
        self.fewer_copies_after = FEWER_COPIES_AFTER_MIN;
        self.line.reset();
        let target = self.loss_goal().target;
        self.line
            .add(now, &LossSample::of(less), current.copies, target);
        self.network
            .on_overload(now, copies_of(seen.offered, before));
        let copies = limits.copies_below(current.copies).filter(|_| first)?;
        self.trial = Trial::Fewer {
            since: now,
            before: current.copies,
            loss,
            seen: DeliveryCounts::default(),
        };
        let cause = Cause::Congestion {
            loss,
            line: 0.0,
            queueing: seen.queueing,
            arrived: scaled(seen.sent, 1.0 - loss),
        };
        Some((Parameters { copies, ..*wanted }, cause))
    }
}

/// How many losses say how much is lost; where fewer were lost, as many as `loss` would have been.
fn shown(seen: DeliveryCounts, loss: f64) -> f64 {
    (seen.lost as f64).max(seen.sent as f64 * loss)
}
