//! Estimates of a path for planning, which change only if the measured values have changed for certain.

use std::time::Duration;

use keiro_model::observation::PathSample;
use keiro_units::{Bandwidth, Probability};

use super::change_detector::{ChangeDetector, MinChange, MinChanges};
use crate::{delay::PathSpec, queueing::LossRecoveryDelay};

/// Tracks the estimates of one path with which plans are made.
#[derive(Clone, Debug)]
pub struct PathEstimateTracker {
    bandwidth: ChangeDetector,
    delay: ChangeDetector,
    loss: ChangeDetector,
}

/// Ours: below these no plan comes out another one, or soon a wrong one again.
const BANDWIDTH: MinChanges = MinChanges {
    prompt: MinChange {
        ratio: 0.1,
        least: 0.0,
    },
    patient: MinChange {
        ratio: 0.04,
        least: 0.0,
    },
};
/// In seconds.
const DELAY: MinChanges = MinChanges {
    prompt: MinChange {
        ratio: 0.1,
        least: 1e-3,
    },
    patient: MinChange {
        ratio: 0.04,
        least: 0.4e-3,
    },
};
/// Bursts of 1 % come and go on many lines: a path that loses less is planned with as if it lost
/// nothing.
const LOSS: MinChanges = MinChanges {
    prompt: MinChange {
        ratio: 0.3,
        least: 0.02,
    },
    patient: MinChange {
        ratio: 0.3,
        least: 0.012,
    },
};

/// A lost packet is missed after so much of a round trip (RFC 9002 §6.1.2: 9/8).
const LOSS_DELAY: f64 = 9.0 / 8.0;
/// A path that loses more is planned with as if it lost this much.
const LOSS_MAX: f64 = 0.9;

impl Default for PathEstimateTracker {
    fn default() -> Self {
        Self {
            bandwidth: ChangeDetector::new(BANDWIDTH),
            delay: ChangeDetector::new(DELAY),
            loss: ChangeDetector::new(LOSS),
        }
    }
}

impl PathEstimateTracker {
    /// A sample has come, as ten or so do in a second. Whether it is another path now than that
    /// which was planned with.
    pub fn on_sample(&mut self, sample: &PathSample) -> bool {
        let rate = sample.bandwidth.as_bits_per_second() as f64;
        let bandwidth = self.bandwidth.on_sample(rate);
        let delay = self.delay.on_sample(sample.delay.as_secs_f64());
        let loss = self.loss.on_sample(sample.loss.get());
        bandwidth.is_some() || delay.is_some() || loss.is_some()
    }

    /// The levels; `None` before the first sample.
    pub fn get(&self) -> Option<PathSample> {
        let rate = self.bandwidth.get()?.round() as u64;
        Some(PathSample {
            bandwidth: Bandwidth::from_bits_per_second(rate),
            delay: Duration::from_secs_f64(self.delay.get()?.max(0.0)),
            loss: Probability::new(self.loss.get()?.clamp(0.0, 1.0)).unwrap_or(Probability::ZERO),
        })
    }
}

/// What a queue before the path is asked about, and how the losses on it are repaired: the path
/// carries less by the part that is lost, and what is missing leaves again 9/8 round trips
/// later, which is when that is known.
pub fn path_queue(sample: &PathSample) -> (PathSpec, LossRecoveryDelay) {
    let loss = sample.loss.get().min(LOSS_MAX);
    let rate = sample.bandwidth.as_bits_per_second() as f64 * (1.0 - loss);
    let path = PathSpec {
        bandwidth: match loss > 0.0 {
            true => Bandwidth::from_bits_per_second(rate as u64),
            false => sample.bandwidth,
        },
        delay: sample.delay,
    };
    let round = sample.delay.as_secs_f64() * 2.0 * LOSS_DELAY;
    let repair = LossRecoveryDelay {
        loss: Probability::new(loss).unwrap_or(Probability::ZERO),
        round: Duration::try_from_secs_f64(round).unwrap_or(Duration::MAX),
    };
    (path, repair)
}

/// The path as the planner gets it, for messages of up to `packets` packets.
///
/// Loss is counted as what it costs a message that is sent again until it has arrived: the
/// path carries less by the part that is lost, and each time one of the packets is missing
/// the message waits 9/8 round trips longer, which is when that is known and the packet sent
/// again. Ours; an estimate of the mean, on the safe side for shorter messages.
pub fn path_spec(sample: &PathSample, packets: u64) -> PathSpec {
    let (path, LossRecoveryDelay { loss, round }) = path_queue(sample);
    let arrives = 1.0 - loss.get();
    let missing = 1.0 - arrives.powf(packets.max(1) as f64);
    // What is sent again is lost as often.
    let recovery = round.as_secs_f64() * missing / arrives;
    let recovery = Duration::try_from_secs_f64(recovery).unwrap_or(Duration::MAX);
    PathSpec {
        delay: path.delay.saturating_add(recovery),
        ..path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(mbit: u64, delay_ms: u64, loss: f64) -> PathSample {
        PathSample {
            bandwidth: Bandwidth::from_bits_per_second(mbit * 1_000_000),
            delay: Duration::from_millis(delay_ms),
            loss: Probability::new(loss).unwrap(),
        }
    }

    #[test]
    fn halved_bandwidth_longer_delay_and_loss_change_levels() {
        for other in [
            sample(50, 2, 0.0),
            sample(100, 82, 0.0),
            sample(100, 2, 0.05),
        ] {
            let mut levels = PathEstimateTracker::default();
            assert!(levels.on_sample(&sample(100, 2, 0.0)));
            for _ in 0..300 {
                assert!(!levels.on_sample(&sample(100, 2, 0.0)));
            }
            assert!((0..4).any(|_| levels.on_sample(&other)), "{other:?}");
        }
    }

    #[test]
    fn without_loss_a_path_is_planned_with_as_it_is() {
        let spec = path_spec(&sample(100, 20, 0.0), 70);
        assert_eq!(spec.bandwidth.as_bits_per_second(), 100_000_000);
        assert_eq!(spec.delay, Duration::from_millis(20));
    }

    #[test]
    fn extreme_path_values_do_not_overflow() {
        let worst = PathSample {
            bandwidth: Bandwidth::MAX,
            delay: Duration::MAX,
            loss: Probability::ONE,
        };
        assert_eq!(path_spec(&worst, u64::MAX).delay, Duration::MAX);
    }

    #[test]
    fn loss_costs_bandwidth_and_a_recovery() {
        let one = path_spec(&sample(100, 20, 0.05), 1);
        assert_eq!(one.bandwidth.as_bits_per_second(), 95_000_000);
        // 20 + 45 · 0.05/0.95.
        let millis = one.delay.as_secs_f64() * 1e3;
        assert!((millis - 22.368).abs() < 0.01, "{millis}");
        let many = path_spec(&sample(100, 20, 0.05), 70);
        let millis = many.delay.as_secs_f64() * 1e3;
        assert!((millis - 66.06).abs() < 0.1, "{millis}");
    }
}
