//! When a step back to more load may be tried.
//!
//! A step is to a level of load, in any unit. It waits until it has been calm for a while; where the
//! same load has failed before, longer and longer.

use std::time::Duration;

use crate::Instant;

/// Waits for calm.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// Before a step to a level that failed.
    wait: Duration,
    calm_since: Option<Instant>,
    tried: Option<(Instant, f64)>,
    failed: Option<f64>,
}

/// Before a step back.
const WAIT_MIN: Duration = Duration::from_millis(500);
/// What failed is tried this often: one period in two hundred or so.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Loads that differ by less are the same.
const SAME_LOAD: f64 = 0.95;
/// A step back went well if nothing happened for so long.
const JUDGED_AFTER: Duration = Duration::from_secs(1);

impl Default for Patience {
    fn default() -> Self {
        Self {
            wait: WAIT_MIN,
            calm_since: None,
            tried: None,
            failed: None,
        }
    }
}

impl Patience {
    /// A period has passed; `trouble` is the load that was too much in it.
    pub(super) fn on_period(&mut self, now: Instant, trouble: Option<f64>) {
        self.calm_since.get_or_insert(now);
        if let Some(load) = trouble {
            self.on_trouble(now, load);
        } else if let Some((at, load)) = self.tried
            && now - at >= JUDGED_AFTER
        {
            self.tried = None;
            if self.failed.is_some_and(|failed| load >= failed) {
                self.failed = None;
                self.wait = WAIT_MIN;
            }
        }
    }

    /// `load` was too much.
    pub(super) fn on_trouble(&mut self, now: Instant, load: f64) {
        self.calm_since = Some(now);
        if self.is_untried(load) {
            self.wait = WAIT_MIN;
        } else if self.tried.is_some() {
            self.wait = self.wait.saturating_mul(2).min(WAIT_MAX);
        }
        self.tried = None;
        self.failed = Some(load);
    }

    /// Whether no such load has failed.
    pub(super) fn is_untried(&self, load: f64) -> bool {
        self.failed.is_none_or(|failed| load < failed * SAME_LOAD)
    }

    /// Whether no such load has failed, or long enough ago.
    pub(super) fn may_try(&self, now: Instant, load: f64) -> bool {
        let calm = self
            .calm_since
            .map(|since| now.saturating_duration_since(since));
        self.is_untried(load) || calm.is_some_and(|calm| calm >= self.wait)
    }

    /// For how long it has been calm, if that is long enough for a step to `load`, which is taken
    /// then.
    pub(super) fn try_step(&mut self, now: Instant, load: f64) -> Option<Duration> {
        let calm = now.saturating_duration_since(self.calm_since?);
        if self.tried.is_some() || calm < WAIT_MIN || !self.may_try(now, load) {
            return None;
        }
        self.on_try(now, load);
        Some(calm)
    }

    /// A step to `load` is taken.
    pub(super) fn on_try(&mut self, now: Instant, load: f64) {
        self.tried = Some((now, load));
    }

    /// Whether something has failed that did not go well since.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn what_fails_again_waits_twice_as_long() {
        let mut patience = Patience::default();
        patience.on_period(at(0), Some(10.0));
        let mut tries = Vec::new();
        for ms in (0..60_000).step_by(50) {
            patience.on_period(
                at(ms),
                tries.last().is_some_and(|t| t + 50 == ms).then_some(10.0),
            );
            if patience.try_step(at(ms), 10.0).is_some() {
                tries.push(ms);
            }
        }
        let waits: Vec<u64> = tries.windows(2).map(|two| two[1] - two[0]).collect();
        assert_eq!(waits[..6], [1050, 2050, 4050, 8050, 10_050, 10_050]);
    }

    #[test]
    fn what_goes_well_is_followed_by_the_next_step_and_forgets_the_failure() {
        let mut patience = Patience::default();
        patience.on_period(at(0), Some(10.0));
        assert_eq!(patience.try_step(at(499), 5.0), None);
        assert!(patience.try_step(at(500), 5.0).is_some());
        // One step at a time.
        assert_eq!(patience.try_step(at(1000), 6.0), None);
        patience.on_period(at(1500), None);
        assert!(patience.try_step(at(1500), 10.0).is_some());
        assert!(!patience.is_untried(10.0));
        patience.on_period(at(2500), None);
        assert!(patience.is_untried(10.0));
    }
}
