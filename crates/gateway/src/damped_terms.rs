//! The terms of a path that its peer announces, as plans take them.
//!
//! Every change of terms leads to a new plan. A peer that changes them all the time, by a fault or on purpose, is
//! followed at growing intervals only.

use std::time::{Duration, Instant};

use keiro_control::config::PathTerms;

/// What is planned with, and how often that has changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DampedTerms {
    planned: PathTerms,
    planned_at: Instant,
    announced: PathTerms,
    announced_at: Instant,
    /// Changes of `planned` since the peer last kept to its terms for [`FORGOTTEN_AFTER`].
    changes: u32,
}

/// So many changes are followed at once. Ours: three restarts of the peer, of which each is a path without terms that
/// gets them a moment later.
const CHANGES_AT_ONCE: u32 = 6;
/// The next ones are at least so far apart, and the interval doubles up to the longest one. As other plans that wait.
const INTERVAL_MIN: Duration = Duration::from_secs(10);
const INTERVAL_MAX: Duration = Duration::from_secs(320);
/// Terms that stay for so long end the intervals.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(300);

impl DampedTerms {
    pub(crate) fn new(now: Instant, terms: PathTerms) -> Self {
        Self {
            planned: terms,
            planned_at: now,
            announced: terms,
            announced_at: now,
            changes: 0,
        }
    }

    /// Those to plan with.
    pub(crate) fn planned(&self) -> PathTerms {
        self.planned
    }

    /// Takes what the peer has announced last. A budget that is used up counts at once: it is replaced after an
    /// interval, so that this is rare as well.
    pub(crate) fn on_terms(&mut self, now: Instant, terms: PathTerms) {
        if now.saturating_duration_since(self.announced_at) >= FORGOTTEN_AFTER {
            self.changes = 0;
        }
        if terms != self.announced {
            (self.announced, self.announced_at) = (terms, now);
        }
        let is_due = now.saturating_duration_since(self.planned_at) >= self.interval();
        let becomes_spent = terms.is_spent && !self.planned.is_spent;
        if terms != self.planned && (is_due || becomes_spent) {
            (self.planned, self.planned_at) = (terms, now);
            self.changes = self.changes.saturating_add(1);
        }
    }

    fn interval(&self) -> Duration {
        let Some(doublings) = self.changes.checked_sub(CHANGES_AT_ONCE) else {
            return Duration::ZERO;
        };
        let factor = 2_u32.saturating_pow(doublings);
        INTERVAL_MIN.saturating_mul(factor).min(INTERVAL_MAX)
    }
}

#[cfg(test)]
mod tests {
    use keiro_control::config::CostPerGb;

    use super::*;

    fn at_cost(micros: u64) -> PathTerms {
        PathTerms {
            cost: CostPerGb::from_micros(micros),
            ..PathTerms::FREE
        }
    }

    #[test]
    fn terms_that_change_all_the_time_are_followed_rarely() {
        let start = Instant::now();
        let mut terms = DampedTerms::new(start, PathTerms::FREE);
        let mut changed_at = Vec::new();
        for tenths in 1..20_000 {
            let before = terms.planned();
            let now = start + Duration::from_millis(100 * tenths);
            terms.on_terms(now, at_cost(tenths));
            if terms.planned() != before {
                changed_at.push(tenths);
            }
        }
        assert_eq!(changed_at[..6], [1, 2, 3, 4, 5, 6]);
        let apart: Vec<u64> = changed_at[5..].windows(2).map(|at| at[1] - at[0]).collect();
        assert_eq!(
            apart,
            [100, 200, 400, 800, 1600, 3200, 3200, 3200, 3200, 3200]
        );
        // What comes to rest is followed, and after a while at once.
        let rests = start + Duration::from_secs(3_000);
        terms.on_terms(rests, at_cost(7));
        assert_eq!(terms.planned(), at_cost(7));
        let later = rests + FORGOTTEN_AFTER;
        terms.on_terms(later, at_cost(8));
        assert_eq!(terms.planned(), at_cost(8));
    }

    #[test]
    fn a_budget_that_is_used_up_counts_at_once_and_one_that_comes_and_goes_rarely() {
        let start = Instant::now();
        let spent = PathTerms {
            is_spent: true,
            ..PathTerms::FREE
        };
        let mut terms = DampedTerms::new(start, PathTerms::FREE);
        let (mut changes, mut is_late) = (0, false);
        for tenths in 1..20_000 {
            let announced = match tenths % 2 {
                0 => PathTerms::FREE,
                _ => spent,
            };
            let before = terms.planned();
            terms.on_terms(start + Duration::from_millis(100 * tenths), announced);
            changes += u32::from(terms.planned() != before);
            is_late |= announced.is_spent && !terms.planned().is_spent;
        }
        assert!(!is_late);
        assert!(changes < 30, "{changes}");
    }
}
