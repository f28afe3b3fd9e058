//! A sequential test whether a path loses more than a tolerance.
//!
//! Source: E. S. Page, "Continuous inspection schemes", Biometrika 41 (1954): the cumulative sum of the
//! log-likelihood ratio of each packet's outcome, never below zero, raises an alarm at a threshold. Its
//! increments are limited on both sides, as P. J. Huber's robust version of the probability ratio test does
//! (Annals of Mathematical Statistics 36, 1965), since packets are lost in bursts: one burst is little
//! evidence, however many packets it takes.
//!
//! The outcomes since the last look are one *cell*; a look comes every [`LOOK`]. Each sum holds the tolerance
//! against one alternative: twice, five times and twenty times as much. Small excesses take many packets,
//! large ones few. Each alternative has two sums: one over the cells themselves, which limits a cell to 3.5, and
//! one over cells of twenty looks, which limits these to 5, for losses that come in short bursts and go on.
//!
//! Error rates:
//!
//! - *False alarm.* A path that loses the tolerance exactly, packet by packet: the mean number of cells until
//!   one sum raises an alarm is at least e^h (G. Lorden, Annals of Mathematical Statistics 42, 1971), since the
//!   mean of e^increment is at most one. With h = [`ALARM`] that is ten days of looks, at any packet rate. A path
//!   that loses less takes longer.
//! - *Burst.* Losses within 0.4 s raise no alarm, whatever their number.
//! - *Missed return.* While the tolerance counts as exceeded, a sum of twice the tolerance against half of it
//!   decides that this has ended. A path that still loses twice the tolerance is taken for one that does not
//!   once in e^[`END`] cells, and more rarely by e^[`END_STEP`] for each end that did not last for
//!   five minutes. An end takes two seconds, and longer after one that did not last.
//!
//! Delay: h divided by the Kullback-Leibler divergence of what is lost from the tolerance, in packets: for a
//! tolerance of 1 %, 390 packets where 5 % is lost, 40 where it is 20 %, and 0.5 s at least.

use std::time::Duration;

use keiro_units::Probability;

/// What became of packets, in all so far or since a look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// Packets that arrived.
    pub arrived: u64,
    /// Packets that were lost.
    pub lost: u64,
}

/// Follows one path for one tolerance.
#[derive(Clone, Debug)]
pub struct LossTest {
    tolerance: f64,
    /// Evidence that more is lost than the tolerance.
    alarms: Vec<Alarm>,
    /// What is lost, while that is more than the tolerance.
    excess: Option<Excess>,
    /// Looks since the last end, and how many ends did not last.
    ended: Option<Ended>,
}

/// How often the outcomes are looked at.
pub const LOOK: Duration = Duration::from_millis(100);
/// Threshold of an alarm: e^16 looks are ten days.
pub const ALARM: f64 = 16.0;
/// Threshold of the end. Ours: 400 packets of which none is lost, for a tolerance of 1 %.
pub const END: f64 = 6.0;
/// What the threshold of the end grows by for each end that did not last.
pub const END_STEP: f64 = 3.0;
/// Most that the threshold of the end grows to. Ours: 1,200 packets, for a tolerance of 1 %.
const END_MAX: f64 = 18.0;
/// The sum of the end takes no more than this of a look.
const END_LIMIT: f64 = 2.0;
/// Looks that an end takes at least: 2, 8, 32 and 60 s, as a path that fails again and again is held down.
const HOLD_DOWN_LOOKS: u32 = 20;
const HOLD_DOWN_FACTOR: u32 = 4;
const HOLD_DOWN_LOOKS_MAX: u32 = 600;
/// Looks without loss after which an end has lasted. Ours: five minutes.
const LASTED: u32 = 3000;
/// What is lost under the alternatives, in tolerances.
const ALTERNATIVES: [f64; 3] = [2.0, 5.0, 20.0];
/// Looks of a cell, and the limit of its increment.
const SCALES: [(u32, f64); 2] = [(1, 3.5), (20, 5.0)];
/// Tolerances from this on are not tested. Ours: a path that loses more does not stay up.
const TOLERANCE_MAX: f64 = 0.5;
/// No hypothesis loses more than this.
const LOSS_MAX: f64 = 0.9;
/// Looks within which the estimate forgets, unless they had few packets. Ours: ten seconds.
const MEMORY: f64 = 100.0;
/// Packets that the estimate remembers in any case. Ours: eight losses at twice a tolerance of 1 %.
const PACKETS_MIN: f64 = 400.0;
/// An estimate that differs by this factor from the reported one is news, if [`NEWS_LOSSES`] show it.
const NEWS_FACTOR: f64 = 1.5;
const NEWS_LOSSES: f64 = 8.0;

/// The log-likelihood ratio of outcomes under two hypotheses.
#[derive(Clone, Copy, Debug)]
struct Ratio {
    of_lost: f64,
    of_arrived: f64,
}

/// One sum.
#[derive(Clone, Copy, Debug)]
struct Alarm {
    ratio: Ratio,
    looks: u32,
    limit: f64,
    /// The cell that is not full yet, and its looks.
    cell: Outcomes,
    seen: u32,
    sum: f64,
    /// Outcomes since the sum was zero.
    since: Outcomes,
}

#[derive(Clone, Copy, Debug)]
struct Excess {
    packets: f64,
    lost: f64,
    /// The estimate that was reported.
    reported: f64,
    end_sum: f64,
    /// Looks since that was zero.
    end_looks: u32,
}

#[derive(Clone, Copy, Debug)]
struct Ended {
    looks: u32,
    failed: u32,
}

impl Outcomes {
    /// What has been added since `before`; nothing where the totals began anew.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            arrived: self.arrived.saturating_sub(before.arrived),
            lost: self.lost.saturating_sub(before.lost),
        }
    }

    /// All of them.
    pub fn packets(&self) -> u64 {
        self.arrived.saturating_add(self.lost)
    }

    fn add(&mut self, more: Self) {
        self.arrived = self.arrived.saturating_add(more.arrived);
        self.lost = self.lost.saturating_add(more.lost);
    }
}

impl LossTest {
    /// A test for a tolerance; `None` for none, which no path meets for certain, and for half or more, which no
    /// path that is up exceeds for long.
    pub fn new(tolerance: Probability) -> Option<Self> {
        let tolerance = tolerance.get();
        if tolerance <= 0.0 || tolerance >= TOLERANCE_MAX {
            return None;
        }
        let mut alarms = Vec::new();
        for factor in ALTERNATIVES {
            for (looks, limit) in SCALES {
                alarms.push(Alarm {
                    ratio: Ratio::new(tolerance, (tolerance * factor).min(LOSS_MAX)),
                    looks,
                    limit,
                    cell: Outcomes::default(),
                    seen: 0,
                    sum: 0.0,
                    since: Outcomes::default(),
                });
            }
        }
        Some(Self {
            tolerance,
            alarms,
            excess: None,
            ended: None,
        })
    }

    /// Takes the outcomes since the last look. Whether there is news: the tolerance is exceeded now, is not any
    /// more, or by another amount.
    pub fn on_look(&mut self, outcomes: Outcomes) -> bool {
        if let Some(ended) = &mut self.ended {
            ended.looks = ended.looks.saturating_add(1);
        }
        match self.excess {
            None => self.look_for_excess(outcomes),
            Some(_) => self.look_for_end(outcomes),
        }
    }

    /// What is lost, while that is more than the tolerance.
    pub fn excess(&self) -> Option<Probability> {
        let excess = self.excess?;
        Probability::new(excess.reported.clamp(0.0, 1.0))
    }

    /// Forgets all outcomes, but not how many ends did not last.
    pub fn restart(&mut self) {
        self.excess = None;
        self.restart_alarms();
    }

    fn look_for_excess(&mut self, outcomes: Outcomes) -> bool {
        let mut found: Option<Outcomes> = None;
        for alarm in &mut self.alarms {
            if alarm.on_look(outcomes) {
                found = Some(alarm.since);
            }
        }
        let Some(since) = found else {
            return false;
        };
        self.restart_alarms();
        if self.ended.is_some_and(|ended| ended.looks > LASTED) {
            self.ended = None;
        }
        let (packets, lost) = (since.packets() as f64, since.lost as f64);
        self.excess = Some(Excess {
            packets,
            lost,
            reported: lost / packets.max(1.0),
            end_sum: 0.0,
            end_looks: 0,
        });
        true
    }

    fn look_for_end(&mut self, outcomes: Outcomes) -> bool {
        let failed = self.ended.map_or(0, |ended| ended.failed);
        let threshold = (END + END_STEP * f64::from(failed)).min(END_MAX);
        let looks_min = HOLD_DOWN_FACTOR
            .saturating_pow(failed)
            .saturating_mul(HOLD_DOWN_LOOKS)
            .min(HOLD_DOWN_LOOKS_MAX);
        let ratio = Ratio::new((2.0 * self.tolerance).min(LOSS_MAX), self.tolerance / 2.0);
        let Some(excess) = &mut self.excess else {
            return false;
        };
        excess.end_sum += ratio.of(outcomes).min(END_LIMIT);
        excess.end_looks += 1;
        if excess.end_sum <= 0.0 {
            excess.end_sum = 0.0;
            excess.end_looks = 0;
        }
        excess.end_sum = excess.end_sum.min(threshold);
        if excess.end_sum >= threshold && excess.end_looks >= looks_min {
            self.excess = None;
            self.ended = Some(Ended {
                looks: 0,
                failed: failed.saturating_add(1),
            });
            self.restart_alarms();
            return true;
        }
        excess.on_look(outcomes, self.tolerance)
    }

    fn restart_alarms(&mut self) {
        for alarm in &mut self.alarms {
            alarm.cell = Outcomes::default();
            alarm.seen = 0;
            alarm.sum = 0.0;
            alarm.since = Outcomes::default();
        }
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub fn check_invariants(&self) {
        for alarm in &self.alarms {
            assert!(alarm.sum >= 0.0 && alarm.sum < ALARM, "sum of an alarm");
            assert!(alarm.seen < alarm.looks, "looks of a cell");
        }
        if let Some(excess) = self.excess {
            assert!(excess.lost <= excess.packets, "losses of the estimate");
            assert!((0.0..=END_MAX).contains(&excess.end_sum), "sum of the end");
        }
    }
}

impl Ratio {
    /// Of `alternative` against `null`, both the part that is lost.
    fn new(null: f64, alternative: f64) -> Self {
        Self {
            of_lost: (alternative / null).ln(),
            of_arrived: ((1.0 - alternative) / (1.0 - null)).ln(),
        }
    }

    fn of(&self, outcomes: Outcomes) -> f64 {
        outcomes.lost as f64 * self.of_lost + outcomes.arrived as f64 * self.of_arrived
    }
}

impl Alarm {
    /// Whether there is enough evidence.
    fn on_look(&mut self, outcomes: Outcomes) -> bool {
        self.cell.add(outcomes);
        self.seen += 1;
        if self.seen < self.looks {
            return false;
        }
        let cell = std::mem::take(&mut self.cell);
        self.seen = 0;
        self.since.add(cell);
        let increment = self.ratio.of(cell).clamp(-self.limit, self.limit);
        self.sum += increment;
        if self.sum <= 0.0 {
            self.sum = 0.0;
            self.since = Outcomes::default();
        }
        self.sum >= ALARM
    }
}

impl Excess {
    /// Follows what is lost. Whether it is another part than the reported one.
    fn on_look(&mut self, outcomes: Outcomes, tolerance: f64) -> bool {
        let kept = match self.packets > PACKETS_MIN {
            true => 1.0 - 1.0 / MEMORY,
            false => 1.0,
        };
        self.packets = self.packets * kept + outcomes.packets() as f64;
        self.lost = self.lost * kept + outcomes.lost as f64;
        let estimate = self.lost / self.packets.max(1.0);
        let differs =
            estimate > self.reported * NEWS_FACTOR || estimate < self.reported / NEWS_FACTOR;
        if !differs || self.lost < NEWS_LOSSES || estimate <= tolerance {
            return false;
        }
        self.reported = estimate;
        true
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha12Rng;
    use rand_core::{RngCore, SeedableRng};

    use super::*;

    const ONE_PERCENT: f64 = 0.01;
    const PER_SECOND: u32 = 10;

    fn test() -> LossTest {
        LossTest::new(Probability::new(ONE_PERCENT).unwrap()).unwrap()
    }

    /// Packets that are lost independently, each with probability `loss`.
    struct Line {
        random: ChaCha12Rng,
        loss: f64,
        packets_per_second: u64,
        fraction: u64,
    }

    impl Line {
        fn new(seed: u64, loss: f64, packets_per_second: u64) -> Self {
            Self {
                random: ChaCha12Rng::seed_from_u64(seed),
                loss,
                packets_per_second,
                fraction: 0,
            }
        }

        fn next(&mut self) -> Outcomes {
            self.fraction += self.packets_per_second;
            let packets = self.fraction / u64::from(PER_SECOND);
            self.fraction %= u64::from(PER_SECOND);
            let mut outcomes = Outcomes::default();
            for _ in 0..packets {
                let uniform = (self.random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
                match uniform < self.loss {
                    true => outcomes.lost += 1,
                    false => outcomes.arrived += 1,
                }
            }
            outcomes
        }

        /// Looks until there is news; `None`: none in `looks_max`.
        fn looks_until_news(&mut self, test: &mut LossTest, looks_max: u32) -> Option<u32> {
            (1..=looks_max).find(|_| {
                let news = test.on_look(self.next());
                test.check_invariants();
                news
            })
        }
    }

    /// The bound of the false alarms rests on this.
    #[test]
    fn mean_of_e_to_the_increment_is_at_most_one_at_the_tolerance() {
        for alarm in test().alarms {
            for packets in (1..200).chain([300, 500, 1000, 2000]) {
                let mut mean = 0.0;
                // Of exactly `lost` losses.
                let mut probability = (1.0 - ONE_PERCENT).powi(packets);
                for lost in 0..=packets {
                    let outcomes = Outcomes {
                        arrived: u64::try_from(packets - lost).unwrap(),
                        lost: u64::try_from(lost).unwrap(),
                    };
                    let increment = alarm.ratio.of(outcomes).clamp(-alarm.limit, alarm.limit);
                    mean += probability * increment.exp();
                    let odds = ONE_PERCENT / (1.0 - ONE_PERCENT);
                    probability *= odds * f64::from(packets - lost) / f64::from(lost + 1);
                }
                assert!(mean < 1.0 + 1e-9, "{alarm:?}, {packets} packets: {mean}");
            }
        }
    }

    #[test]
    fn excess_is_found_as_soon_as_its_divergence_allows() {
        // Packets per second, loss, seconds.
        for (rate, loss, limit) in [
            (200, 0.05, 4.5),
            (500, 0.05, 1.8),
            (5000, 0.05, 1.0),
            (50, 0.2, 1.8),
            (5000, 0.5, 1.0),
            (500, 0.02, 40.0),
        ] {
            let mut all = 0;
            for seed in 0..200 {
                let looks = Line::new(seed, loss, rate).looks_until_news(&mut test(), 1000);
                let looks = looks.expect("it is found");
                all += u32::from(f64::from(looks) <= limit * 10.0);
            }
            println!("{rate} packets/s, {loss}: {all} of 200 within {limit} s");
            assert!(all >= 190, "{rate} packets/s, {loss}: {all} of 200");
        }
    }

    #[test]
    fn tolerance_itself_and_less_raise_no_alarm_for_hours() {
        for rate in [10, 50, 500, 5000] {
            for loss in [0.001, 0.005, ONE_PERCENT] {
                let mut line = Line::new(rate, loss, rate);
                let hours = if rate > 500 { 1 } else { 4 };
                let news = line.looks_until_news(&mut test(), hours * 36_000);
                assert_eq!(news, None, "{rate} packets/s, {loss}");
            }
        }
    }

    #[test]
    fn a_burst_is_little_evidence_and_bursts_that_go_on_are_much() {
        for rate in [1, 5, 50, 500_u64] {
            let clean = Outcomes {
                arrived: rate,
                lost: 0,
            };
            let burst = Outcomes {
                arrived: 0,
                lost: rate,
            };
            for looks in [1, 3, 4] {
                let mut test = test();
                let each_minute = (0..10 * 600).map(|look| match look % 600 < looks {
                    true => burst,
                    false => clean,
                });
                let alarms = each_minute
                    .filter(|outcomes| test.on_look(*outcomes))
                    .count();
                assert_eq!(alarms, 0, "{rate} packets in {looks} looks");
            }
            let mut test = test();
            let each_second = (0..600).map(|look| if look % 10 < 2 { burst } else { clean });
            let found = { each_second }.position(|outcomes| test.on_look(outcomes));
            assert!(found.is_some_and(|look| look < 120), "{rate}: {found:?}");
        }
    }

    #[test]
    fn the_end_is_found_and_takes_longer_where_it_did_not_last() {
        let mut test = test();
        let mut took = Vec::new();
        for round in 0..4 {
            let found = Line::new(round, 0.1, 500).looks_until_news(&mut test, 100);
            assert!(found.is_some());
            let excess = test.excess().unwrap().get();
            assert!((0.05..0.2).contains(&excess), "{excess}");
            let ended = (1..1000).find(|_| {
                let clean = Outcomes {
                    arrived: 50,
                    lost: 0,
                };
                test.on_look(clean) && test.excess().is_none()
            });
            took.push(ended.unwrap());
        }
        assert_eq!(took, [20, 80, 320, 600]);
        for _ in 0..=LASTED {
            test.on_look(Outcomes::default());
        }
        Line::new(9, 0.1, 500).looks_until_news(&mut test, 100);
        let clean = Outcomes {
            arrived: 50,
            lost: 0,
        };
        let ended = (1..1000).find(|_| test.on_look(clean) && test.excess().is_none());
        assert_eq!(ended, Some(20), "five minutes later");
    }

    #[test]
    fn a_path_that_still_loses_twice_the_tolerance_is_not_returned_to() {
        for rate in [20, 50, 500] {
            let mut test = test();
            let mut line = Line::new(3, 0.2, 500);
            line.looks_until_news(&mut test, 100).unwrap();
            let mut line = Line::new(4, 0.02, rate);
            for _ in 0..36_000 {
                test.on_look(line.next());
            }
            let excess = test.excess().map(Probability::get);
            assert!(
                excess.is_some_and(|loss| (0.01..0.05).contains(&loss)),
                "{rate}: {excess:?}"
            );
        }
    }

    #[test]
    fn wrong_and_huge_counts_do_no_harm() {
        let huge = Outcomes {
            arrived: u64::MAX,
            lost: u64::MAX,
        };
        let mut test = test();
        for _ in 0..100 {
            test.on_look(huge);
            test.check_invariants();
        }
        assert_eq!(huge.packets(), u64::MAX);
        assert_eq!(Outcomes::default().since(&huge), Outcomes::default());
        assert!(LossTest::new(Probability::ZERO).is_none());
        assert!(LossTest::new(Probability::ONE).is_none());
    }
}
