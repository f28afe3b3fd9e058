//! When a step back to more load may be tried.
//!
//! A step is to a level of load, in any unit. It waits until it has been calm for a while; where the
//! same load has failed before, longer and longer.

use std::time::Duration;

use keiro_units::Instant;

/// Waits for calm.
#[derive(Clone, Debug, Default)]
pub(super) struct ProbeBackoff {
    calm_since: Option<Instant>,
    /// The last step since the last overload.
    tried: Option<(Instant, f64)>,
    /// The levels that were too much, each once.
    failed: Vec<Failed>,
}

/// A level of load that was too much.
#[derive(Clone, Copy, Debug)]
struct Failed {
    load: f64,
    /// EarlierPairs it is tried again.
    wait: Duration,
}

/// EarlierPairs a step back.
const WAIT_MIN: Duration = Duration::from_millis(500);
/// What failed is tried this often: one period in two hundred or so.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Loads that differ by less are the same.
const SAME_LOAD: f64 = 0.95;
/// From one step to the next.
const STEP_AFTER: Duration = Duration::from_secs(1);
/// Time without an event after which a step back went well. Ours: a buffer of some dozens of packets that get a
/// hundredth more than their receiver takes fills within it.
const JUDGED_AFTER: Duration = Duration::from_secs(5);
/// Levels that are remembered, the lowest. Ours: there are five values of I.
const FAILED_MAX: usize = 8;

impl ProbeBackoff {
    /// A period has passed; `overload` is the load that was too much in it.
    pub(super) fn on_period(&mut self, now: Instant, overload: Option<f64>) {
        self.calm_since.get_or_insert(now);
        if let Some(load) = overload {
            self.on_overload(now, load);
        } else if let Some((at, load)) = self.tried
            && now - at >= JUDGED_AFTER
        {
            self.tried = None;
            // What is more than this has not been shown to go well.
            self.failed.retain(|failed| failed.load > load);
        }
    }

    /// `load` is wanted: where a step was taken back for another reason, nothing was shown of it.
    pub(super) fn on_load(&mut self, load: f64) {
        self.tried = self.tried.filter(|(_, tried)| load >= tried * SAME_LOAD);
    }

    /// `load` was too much.
    pub(super) fn on_overload(&mut self, now: Instant, load: f64) {
        self.calm_since = Some(now);
        let tried = self.tried.take();
        let same = |failed: &&mut Failed| {
            let (less, more) = (failed.load.min(load), failed.load.max(load));
            less >= more * SAME_LOAD
        };
        if let Some(failed) = self.failed.iter_mut().find(same) {
            failed.load = failed.load.min(load);
            if tried.is_some() {
                failed.wait = failed.wait.saturating_mul(2).min(WAIT_MAX);
            }
            return;
        }
        let wait = WAIT_MIN;
        let at = self.failed.partition_point(|failed| failed.load < load);
        self.failed.insert(at, Failed { load, wait });
        self.failed.truncate(FAILED_MAX);
    }

    /// Whether no such load has failed.
    pub(super) fn is_untried(&self, load: f64) -> bool {
        self.failed_below(load).next().is_none()
    }

    /// Whether no such load has failed, or long enough ago.
    pub(super) fn may_step_to(&self, now: Instant, load: f64) -> bool {
        let Some(wait) = self.failed_below(load).map(|failed| failed.wait).max() else {
            return true;
        };
        let calm = self.calm_since.map(|at| now.saturating_duration_since(at));
        calm.is_some_and(|calm| calm >= wait)
    }

    /// For how long it has been calm, if that is long enough for a step to `load`, which is taken
    /// then.
    pub(super) fn take_step(&mut self, now: Instant, load: f64) -> Option<Duration> {
        let calm = now.saturating_duration_since(self.calm_since?);
        let stepped = self.tried.is_some_and(|(at, _)| now - at < STEP_AFTER);
        if stepped || calm < WAIT_MIN || !self.may_step_to(now, load) {
            return None;
        }
        self.on_step(now, load);
        Some(calm)
    }

    /// A step to `load` is taken.
    pub(super) fn on_step(&mut self, now: Instant, load: f64) {
        self.tried = Some((now, load));
    }

    /// Whether something has failed that did not go well since.
    pub(super) fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    /// The levels that failed and are no more than `load`.
    fn failed_below(&self, load: f64) -> impl Iterator<Item = &Failed> {
        let is_below = move |failed: &&Failed| load >= failed.load * SAME_LOAD;
        self.failed.iter().filter(is_below)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn repeated_failure_doubles_the_backoff() {
        let mut backoff = ProbeBackoff::default();
        backoff.on_period(at(0), Some(10.0));
        let mut tries = Vec::new();
        for ms in (0..60_000).step_by(50) {
            backoff.on_period(
                at(ms),
                tries.last().is_some_and(|t| t + 50 == ms).then_some(10.0),
            );
            if backoff.take_step(at(ms), 10.0).is_some() {
                tries.push(ms);
            }
        }
        let waits: Vec<u64> = tries.windows(2).map(|two| two[1] - two[0]).collect();
        assert_eq!(waits[..6], [1050, 2050, 4050, 8050, 10_050, 10_050]);
    }

    #[test]
    fn success_resets_the_backoff_and_takes_the_next_step() {
        let mut backoff = ProbeBackoff::default();
        backoff.on_period(at(0), Some(10.0));
        assert_eq!(backoff.take_step(at(499), 5.0), None);
        assert!(backoff.take_step(at(500), 5.0).is_some());
        // One step at a time.
        assert_eq!(backoff.take_step(at(1499), 6.0), None);
        assert!(backoff.take_step(at(1500), 10.0).is_some());
        backoff.on_period(at(6499), None);
        assert!(!backoff.is_untried(10.0));
        backoff.on_period(at(6500), None);
        assert!(backoff.is_untried(10.0));
    }

    #[test]
    fn reverted_step_is_no_success() {
        let mut backoff = ProbeBackoff::default();
        backoff.on_overload(at(0), 20.0);
        assert!(backoff.take_step(at(500), 20.0).is_some());
        backoff.on_load(10.0);
        backoff.on_period(at(6000), None);
        assert!(!backoff.is_untried(20.0));
    }

    #[test]
    fn a_level_that_fails_or_goes_well_says_nothing_of_higher_ones() {
        let mut backoff = ProbeBackoff::default();
        backoff.on_overload(at(0), 20.0);
        backoff.on_overload(at(50), 13.0);
        assert!(backoff.is_untried(12.0));
        // 13 fails once more, and waits for longer; so does what is above it.
        assert!(backoff.take_step(at(550), 13.0).is_some());
        backoff.on_overload(at(600), 13.0);
        assert!(!backoff.may_step_to(at(1599), 20.0));
        assert!(backoff.take_step(at(1600), 13.0).is_some());
        backoff.on_period(at(6600), None);
        assert!(backoff.is_untried(13.0));
        assert!(!backoff.is_untried(20.0));
    }
}
