//! The state of a path over its outages: hold-down, and the figures that it is planned with.

use std::{collections::VecDeque, time::Duration};

use keiro_model::observation::{PathObservation, PathSample};

use keiro_units::Probability;

use super::{
    hold_down::PathHoldDown,
    loss_monitor::{LossMonitor, LossUnit},
    path_estimate_tracker::PathEstimateTracker,
};

/// Follows a path to one peer while it is up, and keeps its last figures while it is down.
///
/// A path that comes up is held down at first: its first packets show little, and a path that has just failed may
/// fail again. Until it is released, the planner puts no application on it whose target is met elsewhere
/// ([`eligible_paths`](super::eligible_paths)). A return then moves every application once, by settled figures.
#[derive(Clone, Debug, Default)]
pub struct TrackedPath {
    levels: PathEstimateTracker,
    losses: LossMonitor,
    /// Samples since it came up.
    samples: u32,
    is_released: bool,
    /// The levels before it went down.
    before: Option<PathSample>,
    /// The configured delay, with the shortest that was measured at first.
    reference: Option<Reference>,
    /// Observations so far.
    observations: u64,
    outages: u64,
    /// Those of the last five minutes, oldest first.
    recent_outages: VecDeque<Outage>,
}

#[derive(Clone, Copy, Debug)]
struct Outage {
    /// The observation that found it.
    at: u64,
    /// Applications on fallback paths may have been on it.
    was_in_use: bool,
}

/// The configured delay stands for the one that was measured when the path first came up. Half of a round trip may
/// differ from it, since the two directions need not be equally long.
#[derive(Clone, Copy, Debug)]
struct Reference {
    configured: Duration,
    /// The shortest of the first [`REFERENCE_SAMPLES`].
    measured: Duration,
    samples: u32,
}

/// Samples until the figures of a path that has come up count: the first may be of packets that had waited for it.
/// Until then it is planned with the figures from before the outage.
const SETTLED_SAMPLES: u32 = 5;
/// Samples after which a path is released although its capacity was not measured: packet trains are off, or none
/// gives an estimate. Ours: two seconds, twice what the first six trains take.
const UNMEASURED_SAMPLES: u32 = 20;
/// Each further recent outage multiplies the hold-down by this factor, as the exponential hold-down of flap damping
/// (RFC 2439). Ours: 0.5, 2, 8, 32 and 60 s. A path that is down and up for a second each is left for good after its
/// second outage, and one that failed once is back within the second.
const HOLD_DOWN_FACTOR: u32 = 4;
/// The longest hold-down: a minute, where damping of BFD sessions and interfaces commonly ends.
const HOLD_DOWN_SAMPLES_MAX: u32 = 600;
/// The shortest hold-down for applications whose latency target is met nowhere else. Ours: two seconds, so that a path
/// that is up for less at a time moves no application.
const PROBATION_SAMPLES: u32 = 20;
/// The longest one. Ours: a quarter of the longest hold-down, since their target is missed meanwhile.
const PROBATION_SAMPLES_MAX: u32 = 150;
/// After so many recent outages while they could be on the path, they wait longer.
const PROBATION_OUTAGES: usize = 2;
/// Looks of five minutes: older outages count no longer. Ours: a path that fails once a minute is damped,
/// and one that has been up for five minutes begins anew.
const OUTAGES_OBSERVATIONS: u64 = 3000;
/// Outages remembered; fewer give the longest hold-down.
const OUTAGES_MAX: usize = 8;
/// Samples of a path's first second, whose shortest delay stands for the configured one.
const REFERENCE_SAMPLES: u32 = 10;

impl TrackedPath {
    /// Takes an observation of the path. `configured`: its configured one-way delay, if any. Returns whether a new
    /// plan may be needed: the figures differ from those that were planned with, or the hold-down has ended.
    pub fn on_observation(
        &mut self,
        observation: PathObservation,
        configured: Option<Duration>,
    ) -> bool {
        self.observations += 1;
        let old = |outage: &Outage| outage.at + OUTAGES_OBSERVATIONS <= self.observations;
        while self.recent_outages.front().is_some_and(old) {
            self.recent_outages.pop_front();
        }
        if observation.outages > self.outages {
            let unseen = (observation.outages - self.outages).min(OUTAGES_MAX as u64);
            let was_in_use = self.is_usable_as_fallback();
            for number in 0..unseen {
                self.recent_outages.push_back(Outage {
                    at: self.observations,
                    was_in_use: was_in_use && number == 0,
                });
            }
            let surplus = self.recent_outages.len().saturating_sub(OUTAGES_MAX);
            self.recent_outages.drain(..surplus);
            self.reset_samples();
        }
        self.outages = observation.outages;
        match observation.sample {
            Some(sample) => {
                let other = self
                    .losses
                    .on_totals(observation.packets, observation.aggregates);
                self.on_sample(sample, observation.is_measured, configured) || other
            }
            None => {
                self.reset_samples();
                false
            }
        }
    }

    /// Sets the loss tolerances that losses are tested against.
    pub fn follow_tolerances(&mut self, tolerances: &[Probability]) {
        self.losses.follow_tolerances(tolerances);
    }

    /// The path's loss where it exceeds `tolerance`, which is one of [`follow_tolerances`](Self::follow_tolerances).
    pub fn excess_loss(&self, tolerance: Probability, of: LossUnit) -> Option<Probability> {
        self.losses.excess(tolerance, of)
    }

    fn on_sample(
        &mut self,
        sample: PathSample,
        is_measured: bool,
        configured: Option<Duration>,
    ) -> bool {
        let sample = PathSample {
            delay: self.delay(configured, sample.delay),
            ..sample
        };
        let changed = self.levels.on_sample(&sample);
        self.samples = self.samples.saturating_add(1);
        let released = self.samples >= self.released_after()
            && (is_measured || self.samples >= UNMEASURED_SAMPLES);
        let gained = released && !std::mem::replace(&mut self.is_released, true);
        let replaces = self.before.is_some() && self.samples == SETTLED_SAMPLES;
        let lasted = !self.is_released && self.samples == self.probation_after();
        changed && self.is_settled() || replaces || gained || lasted
    }

    /// It went down, or came up again, perhaps as another path. Its delay reference and its losses are kept.
    fn reset_samples(&mut self) {
        self.before = self.level();
        self.losses.on_outage();
        self.levels = PathEstimateTracker::default();
        self.samples = 0;
        self.is_released = false;
    }

    /// The hold-down, in samples.
    fn released_after(&self) -> u32 {
        let further = self.recent_outages.len().saturating_sub(1) as u32;
        let factor = HOLD_DOWN_FACTOR.saturating_pow(further);
        SETTLED_SAMPLES
            .saturating_mul(factor)
            .min(HOLD_DOWN_SAMPLES_MAX)
    }

    /// The hold-down for applications on fallback paths, in samples: longer if it failed while they could be on it.
    fn probation_after(&self) -> u32 {
        let in_use = self
            .recent_outages
            .iter()
            .filter(|outage| outage.was_in_use)
            .count();
        let further = in_use.saturating_sub(PROBATION_OUTAGES) as u32;
        PROBATION_SAMPLES
            .saturating_mul(HOLD_DOWN_FACTOR.saturating_pow(further))
            .min(PROBATION_SAMPLES_MAX)
    }

    /// It has stayed up for long enough to be a fallback path.
    fn is_usable_as_fallback(&self) -> bool {
        self.is_released || self.samples >= self.probation_after()
    }

    /// Whether the path, which has had `outages`, flaps: it went down more than once in the last minutes, and has not
    /// stayed up since for long enough to be a fallback path.
    pub fn is_flapping(&self, outages: u64) -> bool {
        let unseen = outages.saturating_sub(self.outages);
        let recent = self.recent_outages.len() as u64 + unseen;
        recent > 1 && !(unseen == 0 && self.is_usable_as_fallback())
    }

    /// The hold-down state of the path, which is up and has had `outages`.
    pub fn hold_down(&self, outages: u64) -> PathHoldDown {
        match self.outages == outages {
            true if self.is_released => PathHoldDown::Released,
            true if self.samples >= self.probation_after() => PathHoldDown::Probation,
            _ => PathHoldDown::Held,
        }
    }

    /// Observations until it is released; zero if it is.
    pub fn observations_until_released(&self) -> u32 {
        match self.is_released {
            true => 0,
            false => self.released_after().saturating_sub(self.samples).max(1),
        }
    }

    /// The figures that it is planned with; `None`: nothing was measured yet.
    pub fn level(&self) -> Option<PathSample> {
        match (self.levels.get(), self.before) {
            (Some(level), None) => Some(level),
            (Some(level), Some(_)) if self.is_settled() => Some(level),
            // Delays of packets that had waited for the path would move its applications away again.
            (_, before) => before,
        }
    }

    /// Whether the figures since it came up count; they do where there are no earlier ones.
    fn is_settled(&self) -> bool {
        self.before.is_none() || self.samples >= SETTLED_SAMPLES
    }

    /// The delay to plan with for this measured one.
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
    use keiro_model::loss_test::Outcomes;
    use keiro_units::Bandwidth;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_configured_delay_follows_what_changes_and_outlives_a_slow_first_answer() {
        let mut followed = TrackedPath::default();
        let configured = Some(20 * MS);
        // The handshake was slow.
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

    fn sample(delay: u32) -> PathSample {
        PathSample {
            bandwidth: Bandwidth::from_mbit_per_second(100),
            delay: delay * MS,
            loss: Probability::ZERO,
        }
    }

    fn observation(outages: u64, delay: Option<u32>) -> PathObservation {
        PathObservation {
            outages,
            sample: delay.map(sample),
            is_measured: true,
            packets: Outcomes::default(),
            aggregates: Outcomes::default(),
        }
    }

    #[test]
    fn a_path_that_comes_back_is_what_it_was_until_it_is_settled() {
        for was in [5, 200] {
            let mut followed = TrackedPath::default();
            for _ in 0..SETTLED_SAMPLES {
                followed.on_observation(observation(0, Some(was)), None);
            }
            followed.on_observation(observation(1, None), None);
            followed.on_observation(observation(1, None), None);
            assert_eq!(followed.level().unwrap().delay, was * MS);
            for _ in 1..SETTLED_SAMPLES {
                assert!(!followed.on_observation(observation(1, Some(85)), None));
                assert_eq!(followed.level().unwrap().delay, was * MS);
                assert!(followed.hold_down(1) != PathHoldDown::Released);
            }
            assert!(followed.on_observation(observation(1, Some(85)), None));
            assert_eq!(followed.level().unwrap().delay, 85 * MS);
            assert!(followed.hold_down(1) == PathHoldDown::Released);
        }
    }

    #[test]
    fn a_path_that_comes_back_unmeasured_is_planned_with_once_it_is_settled() {
        let unmeasured = |outages, delay| PathObservation {
            is_measured: false,
            ..observation(outages, Some(delay))
        };
        let mut followed = TrackedPath::default();
        for _ in 0..UNMEASURED_SAMPLES {
            followed.on_observation(unmeasured(0, 5), None);
        }
        followed.on_observation(observation(1, None), None);
        for sample in 1..=SETTLED_SAMPLES {
            let replan = followed.on_observation(unmeasured(1, 85), None);
            assert_eq!(replan, sample == SETTLED_SAMPLES, "sample {sample}");
        }
        assert!(followed.hold_down(1) != PathHoldDown::Released);
    }

    #[test]
    fn an_outage_between_two_observations_is_not_missed() {
        let mut followed = TrackedPath::default();
        for _ in 0..SETTLED_SAMPLES {
            followed.on_observation(observation(0, Some(5)), None);
        }
        assert!(followed.hold_down(0) == PathHoldDown::Released);
        // The outage is known before the next observation shows it.
        assert!(followed.hold_down(1) != PathHoldDown::Released);
        followed.on_observation(observation(1, Some(85)), None);
        assert!(followed.hold_down(1) != PathHoldDown::Released);
        assert_eq!(followed.level().unwrap().delay, 5 * MS);
    }

    #[test]
    fn each_outage_within_five_minutes_makes_the_hold_down_longer() {
        let mut followed = TrackedPath::default();
        let mut took = Vec::new();
        for outages in 1..=7 {
            followed.on_observation(observation(outages, None), None);
            let reported = followed.observations_until_released();
            let until_released = (1..1000).find(|_| {
                followed.on_observation(observation(outages, Some(5)), None);
                followed.hold_down(outages) == PathHoldDown::Released
            });
            took.push(until_released.unwrap());
            assert_eq!(Some(reported), until_released);
        }
        assert_eq!(took, [5, 20, 80, 320, 600, 600, 600]);
        for _ in 0..OUTAGES_OBSERVATIONS {
            followed.on_observation(observation(7, Some(5)), None);
        }
        followed.on_observation(observation(8, None), None);
        for _ in 0..SETTLED_SAMPLES {
            assert!(followed.hold_down(8) != PathHoldDown::Released);
            followed.on_observation(observation(8, Some(5)), None);
        }
        assert!(followed.hold_down(8) == PathHoldDown::Released);
    }

    #[test]
    fn a_path_flaps_from_its_second_outage_until_it_has_stayed_up() {
        let mut followed = TrackedPath::default();
        let mut lasted = Vec::new();
        for outages in 1..=6 {
            assert_eq!(followed.is_flapping(outages), outages > 1, "not seen yet");
            followed.on_observation(observation(outages, None), None);
            assert_eq!(followed.is_flapping(outages), outages > 1);
            let until = (0..1000).find(|_| {
                let is_flapping = followed.is_flapping(outages);
                followed.on_observation(observation(outages, Some(5)), None);
                !is_flapping
            });
            lasted.push(until.unwrap());
        }
        // In use from the second on: it fails the applications on it each time.
        assert_eq!(lasted, [0, 20, 20, 20, 80, 150]);
        for _ in 0..OUTAGES_OBSERVATIONS {
            followed.on_observation(observation(6, None), None);
        }
        assert!(!followed.is_flapping(6), "it was quiet for five minutes");
        assert!(!followed.is_flapping(7));
    }

    #[test]
    fn a_flapping_path_is_on_probation_after_two_seconds() {
        let mut followed = TrackedPath::default();
        for outages in 1..=4 {
            followed.on_observation(observation(outages, None), None);
        }
        let hold_downs = (1..=HOLD_DOWN_SAMPLES_MAX).map(|sample| {
            let changed = followed.on_observation(observation(4, Some(5)), None);
            assert!(
                changed || sample != PROBATION_SAMPLES,
                "a plan is called for"
            );
            followed.hold_down(4)
        });
        let mut hold_downs: Vec<PathHoldDown> = hold_downs.collect();
        assert_eq!(followed.observations_until_released(), 0);
        hold_downs.dedup();
        let expected = [
            PathHoldDown::Held,
            PathHoldDown::Probation,
            PathHoldDown::Released,
        ];
        assert_eq!(hold_downs, expected);
        // A further outage, which the next observation will show.
        assert_eq!(followed.hold_down(5), PathHoldDown::Held);
    }

    #[test]
    fn a_path_whose_rate_is_not_measured_is_released_later() {
        let mut followed = TrackedPath::default();
        let unmeasured = PathObservation {
            is_measured: false,
            ..observation(0, Some(5))
        };
        for _ in 0..UNMEASURED_SAMPLES {
            assert!(followed.hold_down(0) != PathHoldDown::Released);
            followed.on_observation(unmeasured, None);
        }
        assert!(followed.hold_down(0) == PathHoldDown::Released);
    }
}
