//! A path that comes up, goes down and comes back: what it is planned with meanwhile.

use std::{collections::VecDeque, time::Duration};

use keiro_model::observation::{PathObservation, PathSample};

use keiro_units::Probability;

use super::{
    hold_down::PathHoldDown,
    loss_watch::{LossOf, LossWatch},
    path_levels::PathLevels,
};

/// Follows a path to one end while it is up, and remembers while it is down what it was like.
///
/// A path that comes up is held down at first: its first packets show little, and a path that
/// died just now may die again. Until it is released, applications that are met elsewhere are not sent there
/// ([`eligible_paths`](super::eligible_paths)), so that a return moves every application once, with figures that hold.
#[derive(Clone, Debug, Default)]
pub struct TrackedPath {
    levels: PathLevels,
    losses: LossWatch,
    /// Samples since it came up.
    samples: u32,
    is_released: bool,
    /// What it was like before it went down.
    before: Option<PathSample>,
    /// The configured delay, with the shortest that was measured at first.
    reference: Option<Reference>,
    /// Observations so far.
    observations: u64,
    deaths: u64,
    /// The deaths of the last five minutes, oldest first.
    died: VecDeque<Death>,
}

#[derive(Clone, Copy, Debug)]
struct Death {
    /// The observation that found it.
    at: u64,
    /// Applications in need could have been on the path.
    was_in_use: bool,
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

/// Samples of a path that has come up until they count: the first may be of packets that had
/// waited for it. Until then it counts as what it was.
const SETTLED_SAMPLES: u32 = 5;
/// Samples after which it is trusted although what it carries was not measured: no trains are
/// paid for, or none gives an estimate. Ours: two seconds, twice what the first six trains take.
const UNMEASURED_SAMPLES: u32 = 20;
/// Each further death that is remembered makes the time that it has to stay up longer by this factor: the
/// exponential hold-down of flap damping (RFC 2439). Ours: 0.5, 2, 8, 32 and 60 s, so that a path
/// that is down and up for a second each is left for good after its second death, and one that died once is
/// back within the second.
const HOLD_DOWN_FACTOR: u32 = 4;
/// A minute, as damping of BFD sessions and interfaces commonly ends.
const HOLD_DOWN_SAMPLES_MAX: u32 = 600;
/// Samples after which those may go there whose latency target is met nowhere else, at least. Ours: two seconds,
/// so that a path that is up for less at a time moves no application.
const PROBATION_SAMPLES: u32 = 20;
/// At most. Ours: a quarter of the longest hold-down, since their target is missed meanwhile.
const PROBATION_SAMPLES_MAX: u32 = 150;
/// A path that died so often while they could be on it makes them wait longer the next time.
const PROBATION_DEATHS: usize = 2;
/// Looks of five minutes: older deaths count no longer. Ours: a path that fails once a minute is damped,
/// and one that has been up for five minutes begins anew.
const DEATHS_OBSERVATIONS: u64 = 3000;
/// Deaths remembered; with fewer the longest time is reached.
const DEATHS_MAX: usize = 8;
/// Samples of a path's first second, whose shortest delay stands for the configured one.
const REFERENCE_SAMPLES: u32 = 10;

impl TrackedPath {
    /// The path was observed; `configured` is its configured one-way delay,
    /// if there is one. Whether another plan may be called for: it is another path now than that
    /// which was planned with, or trusted now.
    pub fn on_observation(
        &mut self,
        observation: PathObservation,
        configured: Option<Duration>,
    ) -> bool {
        self.observations += 1;
        let old = |death: &Death| death.at + DEATHS_OBSERVATIONS <= self.observations;
        while self.died.front().is_some_and(old) {
            self.died.pop_front();
        }
        if observation.deaths > self.deaths {
            let unseen = (observation.deaths - self.deaths).min(DEATHS_MAX as u64);
            let was_in_use = self.is_usable_in_need();
            for number in 0..unseen {
                self.died.push_back(Death {
                    at: self.observations,
                    was_in_use: was_in_use && number == 0,
                });
            }
            let surplus = self.died.len().saturating_sub(DEATHS_MAX);
            self.died.drain(..surplus);
            self.end_life();
        }
        self.deaths = observation.deaths;
        match observation.sample {
            Some(sample) => {
                let other = self
                    .losses
                    .on_look(observation.packets, observation.aggregates);
                self.on_sample(sample, observation.is_measured, configured) || other
            }
            None => {
                self.end_life();
                false
            }
        }
    }

    /// Watches for losses beyond these tolerances from now on.
    pub fn follow_tolerances(&mut self, tolerances: &[Probability]) {
        self.losses.follow_tolerances(tolerances);
    }

    /// What the path loses, where that is more than `tolerance`, which is followed.
    pub fn excess_loss(&self, tolerance: Probability, of: LossOf) -> Option<Probability> {
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
        let news = self.levels.on_sample(&sample);
        self.samples = self.samples.saturating_add(1);
        let trusted = self.samples >= self.released_after()
            && (is_measured || self.samples >= UNMEASURED_SAMPLES);
        let gained = trusted && !std::mem::replace(&mut self.is_released, true);
        let replaces = self.before.is_some() && self.samples == SETTLED_SAMPLES;
        let lasted = !self.is_released && self.samples == self.probation_after();
        news && self.is_settled() || replaces || gained || lasted
    }

    /// It is down, or up anew. It may be another one then; how it lies in the world stays, and what it loses.
    fn end_life(&mut self) {
        self.before = self.level();
        self.losses.on_outage();
        self.levels = PathLevels::default();
        self.samples = 0;
        self.is_released = false;
    }

    /// Samples after which it is trusted.
    fn released_after(&self) -> u32 {
        let further = self.died.len().saturating_sub(1) as u32;
        let factor = HOLD_DOWN_FACTOR.saturating_pow(further);
        SETTLED_SAMPLES
            .saturating_mul(factor)
            .min(HOLD_DOWN_SAMPLES_MAX)
    }

    /// Samples after which applications in need may use it: more where it failed them before.
    fn probation_after(&self) -> u32 {
        let in_use = self.died.iter().filter(|death| death.was_in_use).count();
        let further = in_use.saturating_sub(PROBATION_DEATHS) as u32;
        PROBATION_SAMPLES
            .saturating_mul(HOLD_DOWN_FACTOR.saturating_pow(further))
            .min(PROBATION_SAMPLES_MAX)
    }

    /// It has stayed up for long enough for applications in need.
    fn is_usable_in_need(&self) -> bool {
        self.is_released || self.samples >= self.probation_after()
    }

    /// Whether the path, which has died `deaths` times, flaps: it died more than once lately, and has not
    /// stayed up since for long enough even for applications in need.
    pub fn is_flapping(&self, deaths: u64) -> bool {
        let unseen = deaths.saturating_sub(self.deaths);
        let died = self.died.len() as u64 + unseen;
        died > 1 && !(unseen == 0 && self.is_usable_in_need())
    }

    /// Whether the path, which is up after `deaths` deaths, may be used, and by which applications.
    pub fn hold_down(&self, deaths: u64) -> PathHoldDown {
        match self.deaths == deaths {
            true if self.is_released => PathHoldDown::Released,
            true if self.samples >= self.probation_after() => PathHoldDown::Probation,
            _ => PathHoldDown::Held,
        }
    }

    /// How many more observations it has to stay up for until it is trusted; zero if it is.
    pub fn observations_until_released(&self) -> u32 {
        match self.is_released {
            true => 0,
            false => self.released_after().saturating_sub(self.samples).max(1),
        }
    }

    /// What it is planned with; `None`: nothing was measured yet.
    pub fn level(&self) -> Option<PathSample> {
        match (self.levels.get(), self.before) {
            (Some(level), None) => Some(level),
            (Some(level), Some(_)) if self.is_settled() => Some(level),
            // Packets that had waited for the path must not send its members away again.
            (_, before) => before,
        }
    }

    /// Whether what was measured since it came up is to be believed: always, if there is nothing
    /// else.
    fn is_settled(&self) -> bool {
        self.before.is_none() || self.samples >= SETTLED_SAMPLES
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

    fn observation(deaths: u64, delay: Option<u32>) -> PathObservation {
        PathObservation {
            deaths,
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
        let unmeasured = |deaths, delay| PathObservation {
            is_measured: false,
            ..observation(deaths, Some(delay))
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
    fn a_death_between_two_looks_is_not_missed() {
        let mut followed = TrackedPath::default();
        for _ in 0..SETTLED_SAMPLES {
            followed.on_observation(observation(0, Some(5)), None);
        }
        assert!(followed.hold_down(0) == PathHoldDown::Released);
        // Known to have died before the next observation shows it.
        assert!(followed.hold_down(1) != PathHoldDown::Released);
        followed.on_observation(observation(1, Some(85)), None);
        assert!(followed.hold_down(1) != PathHoldDown::Released);
        assert_eq!(followed.level().unwrap().delay, 5 * MS);
    }

    #[test]
    fn each_death_within_five_minutes_makes_the_hold_down_longer() {
        let mut followed = TrackedPath::default();
        let mut took = Vec::new();
        for deaths in 1..=7 {
            followed.on_observation(observation(deaths, None), None);
            let reported = followed.observations_until_released();
            let until_trusted = (1..1000).find(|_| {
                followed.on_observation(observation(deaths, Some(5)), None);
                followed.hold_down(deaths) == PathHoldDown::Released
            });
            took.push(until_trusted.unwrap());
            assert_eq!(Some(reported), until_trusted);
        }
        assert_eq!(took, [5, 20, 80, 320, 600, 600, 600]);
        for _ in 0..DEATHS_OBSERVATIONS {
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
    fn a_path_flaps_from_its_second_death_until_it_has_stayed_up() {
        let mut followed = TrackedPath::default();
        let mut lasted = Vec::new();
        for deaths in 1..=6 {
            assert_eq!(followed.is_flapping(deaths), deaths > 1, "not seen yet");
            followed.on_observation(observation(deaths, None), None);
            assert_eq!(followed.is_flapping(deaths), deaths > 1);
            let until = (0..1000).find(|_| {
                let is_flapping = followed.is_flapping(deaths);
                followed.on_observation(observation(deaths, Some(5)), None);
                !is_flapping
            });
            lasted.push(until.unwrap());
        }
        // In use from the second on: it fails those in need each time.
        assert_eq!(lasted, [0, 20, 20, 20, 80, 150]);
        for _ in 0..DEATHS_OBSERVATIONS {
            followed.on_observation(observation(6, None), None);
        }
        assert!(!followed.is_flapping(6), "it was quiet for five minutes");
        assert!(!followed.is_flapping(7));
    }

    #[test]
    fn a_path_that_died_often_is_for_those_in_need_after_two_seconds() {
        let mut followed = TrackedPath::default();
        for deaths in 1..=4 {
            followed.on_observation(observation(deaths, None), None);
        }
        let standings = (1..=HOLD_DOWN_SAMPLES_MAX).map(|sample| {
            let news = followed.on_observation(observation(4, Some(5)), None);
            assert!(news || sample != PROBATION_SAMPLES, "a plan is called for");
            followed.hold_down(4)
        });
        let mut standings: Vec<PathHoldDown> = standings.collect();
        assert_eq!(followed.observations_until_released(), 0);
        standings.dedup();
        let expected = [
            PathHoldDown::Held,
            PathHoldDown::Probation,
            PathHoldDown::Released,
        ];
        assert_eq!(standings, expected);
        // It has died since, which the next observation will show.
        assert_eq!(followed.hold_down(5), PathHoldDown::Held);
    }

    #[test]
    fn a_path_whose_rate_is_not_measured_is_trusted_later() {
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
