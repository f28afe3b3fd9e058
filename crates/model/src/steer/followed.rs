//! A path that comes up, goes down and comes back: what it is planned with meanwhile.

use std::time::Duration;

use super::path::{PathLevels, PathSample};

/// Follows a path to one end while it is up, and remembers while it is down what it was like.
#[derive(Clone, Debug, Default)]
pub struct FollowedPath {
    levels: PathLevels,
    /// Samples since it came up.
    samples: u32,
    /// What it was like before it went down.
    before: Option<PathSample>,
    /// The configured delay, with the shortest that was measured at first.
    reference: Option<Reference>,
}

/// What is configured of a path's delay goes for what was measured when it first came up: paths
/// need not be as long in both directions.
#[derive(Clone, Copy, Debug)]
struct Reference {
    configured: Duration,
    /// The shortest of the first [`REFERENCE_SAMPLES`].
    measured: Duration,
    samples: u32,
}

/// Samples of a path that has come back until they count: the first may be of packets that had
/// waited for it. Until then it counts as what it was.
const SETTLED: u32 = 5;
/// Samples of a path's first second that tell what its configured delay goes for.
const REFERENCE_SAMPLES: u32 = 10;

impl FollowedPath {
    /// A sample of the path, which is up, has come, as ten or so do in a second; `configured` is
    /// the one-way delay that somebody says it has, if anybody does. Whether it is another path
    /// now than that which was planned with.
    pub fn on_sample(&mut self, sample: PathSample, configured: Option<Duration>) -> bool {
        let sample = PathSample {
            delay: self.delay(configured, sample.delay),
            ..sample
        };
        let news = self.levels.on_sample(&sample);
        self.samples = self.samples.saturating_add(1);
        news && self.is_settled() || self.samples == SETTLED
    }

    /// The path is down, now or still. It may be another one when it comes back; how it lies in
    /// the world stays.
    pub fn on_down(&mut self) {
        self.before = self.level();
        self.levels = PathLevels::default();
        self.samples = 0;
    }

    /// What it is planned with; `None`: nothing was measured yet.
    pub fn level(&self) -> Option<PathSample> {
        match (self.levels.get(), self.before) {
            (Some(level), None) => Some(level),
            (Some(level), Some(_)) if self.is_settled() => Some(level),
            // Whoever went back to it is not sent away by packets that had waited for it.
            (_, before) => before,
        }
    }

    /// Whether what was measured since it came up is to be believed: always, if there is nothing
    /// else.
    fn is_settled(&self) -> bool {
        self.before.is_none() || self.samples >= SETTLED
    }

    /// The delay to plan with where this much was measured.
    fn delay(&mut self, configured: Option<Duration>, measured: Duration) -> Duration {
        let Some(configured) = configured else {
            self.reference = None;
            return measured;
        };
        let fresh = Reference {
            configured,
            measured,
            samples: 0,
        };
        let same = self
            .reference
            .filter(|known| known.configured == configured);
        let mut reference = same.unwrap_or(fresh);
        let settled = reference.samples >= REFERENCE_SAMPLES;
        if !settled {
            reference.samples += 1;
            reference.measured = reference.measured.min(measured);
        }
        self.reference = Some(reference);
        match settled {
            true => (configured + measured).saturating_sub(reference.measured),
            false => configured,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bandwidth, Probability};

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_configured_delay_follows_what_changes_and_outlives_a_slow_first_answer() {
        let mut followed = FollowedPath::default();
        let configured = Some(20 * MS);
        // The handshake waited for somebody.
        assert_eq!(followed.delay(configured, 200 * MS), 20 * MS);
        for _ in 0..REFERENCE_SAMPLES {
            assert_eq!(followed.delay(configured, 15 * MS), 20 * MS);
        }
        assert_eq!(followed.delay(configured, 15 * MS), 20 * MS);
        assert_eq!(followed.delay(configured, 95 * MS), 100 * MS);
        assert_eq!(followed.delay(configured, 15 * MS), 20 * MS);
        // Another configuration is another reference; none, none.
        assert_eq!(followed.delay(Some(30 * MS), 95 * MS), 30 * MS);
        assert_eq!(followed.delay(None, 95 * MS), 95 * MS);
    }

    #[test]
    fn a_path_that_comes_back_is_trusted_when_it_is_settled() {
        let sample = |delay: u32| PathSample {
            bandwidth: Bandwidth::from_mbit_per_second(100),
            delay: delay * MS,
            loss: Probability::ZERO,
        };
        for was in [5, 200] {
            let mut followed = FollowedPath::default();
            followed.on_sample(sample(was), None);
            followed.on_down();
            followed.on_down();
            assert_eq!(followed.level().unwrap().delay, was * MS);
            for _ in 1..SETTLED {
                assert!(!followed.on_sample(sample(85), None));
                assert_eq!(followed.level().unwrap().delay, was * MS);
            }
            assert!(followed.on_sample(sample(85), None));
            assert_eq!(followed.level().unwrap().delay, 85 * MS);
        }
    }
}
