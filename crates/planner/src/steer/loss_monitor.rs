//! Whether a path loses more than applications tolerate, and which paths are left to them.
//!
//! Loss that is repaired costs time, and [`path_spec()`](super::path_spec) counts it as delay. Loss that is not
//! repaired is a requirement of its own: a path that loses more than an application tolerates does not serve it,
//! however short its delay is.

use std::collections::BTreeSet;

use keiro_model::loss_test::{LossTest, Outcomes};
use keiro_units::Probability;

/// The unit in which an application's losses are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossUnit {
    /// Packets, as the path loses them.
    Packets,
    /// Aggregates, after their copies and parity.
    Aggregates,
}

/// Tests one path's losses against the tolerance of every application.
#[derive(Clone, Debug, Default)]
pub struct LossMonitor {
    tests: Vec<Tests>,
    packets: Counter,
    aggregates: Counter,
    /// Intervals since an aggregate was last reported.
    without_aggregates: u32,
}

#[derive(Clone, Debug)]
struct Tests {
    tolerance: Probability,
    packets: LossTest,
    aggregates: LossTest,
}

/// The totals of the interval before.
#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    seen: Option<Outcomes>,
}

/// After so many intervals without aggregates, their loss is computed from that of packets. Ours: two seconds.
const AGGREGATES_INTERVALS: u32 = 20;
/// Paths whose excess losses differ by less than this factor count as equal: the estimate from twenty losses is off by
/// as much.
const EXCESS_ALIKE: f64 = 2.0;

impl LossMonitor {
    /// Sets the tolerances. The tests of those that stay go on.
    pub fn follow_tolerances(&mut self, tolerances: &[Probability]) {
        let same = |(tests, tolerance): (&Tests, &Probability)| tests.tolerance == *tolerance;
        let is_same =
            self.tests.len() == tolerances.len() && self.tests.iter().zip(tolerances).all(same);
        if is_same {
            return;
        }
        let mut before = std::mem::take(&mut self.tests);
        for tolerance in tolerances {
            let known = before
                .iter()
                .position(|tests| tests.tolerance == *tolerance);
            let tests = match known {
                Some(position) => Some(before.swap_remove(position)),
                None => LossTest::new(*tolerance).map(|test| Tests {
                    tolerance: *tolerance,
                    packets: test.clone(),
                    aggregates: test,
                }),
            };
            self.tests.extend(tests);
        }
    }

    /// Takes the totals of packets and aggregates, every [`LOOK`](keiro_model::loss_test::LOOK). Returns whether
    /// [`excess`](Self::excess) has changed for any tolerance.
    pub fn on_totals(&mut self, packets: Outcomes, aggregates: Outcomes) -> bool {
        let packets = self.packets.since_last(packets);
        let aggregates = self.aggregates.since_last(aggregates);
        self.without_aggregates = match aggregates.packets() {
            0 => self.without_aggregates.saturating_add(1),
            _ => 0,
        };
        let are_reported = self.are_aggregates_reported();
        let mut changed = false;
        for tests in &mut self.tests {
            changed |= tests.packets.on_look(packets);
            changed |= tests.aggregates.on_look(aggregates);
            if !are_reported && tests.packets.excess().is_none() {
                // Without aggregates nothing else would end their excess.
                changed |= tests.aggregates.excess().is_some();
                tests.aggregates.restart();
            }
        }
        changed
    }

    /// The path is down: losses until it is up again do not count.
    pub fn on_outage(&mut self) {
        self.packets = Counter::default();
        self.aggregates = Counter::default();
    }

    /// The loss, where it exceeds `tolerance`. `None` also for a tolerance that is not among those set.
    pub fn excess(&self, tolerance: Probability, of: LossUnit) -> Option<Probability> {
        let tests = self
            .tests
            .iter()
            .find(|tests| tests.tolerance == tolerance)?;
        let packets = tests.packets.excess();
        let aggregates = tests.aggregates.excess();
        match of {
            LossUnit::Packets => packets,
            LossUnit::Aggregates if self.are_aggregates_reported() => aggregates,
            LossUnit::Aggregates => aggregates.or_else(|| {
                let both = Probability::new(packets?.get().powi(2))?;
                (both > tolerance).then_some(both)
            }),
        }
    }

    fn are_aggregates_reported(&self) -> bool {
        self.without_aggregates < AGGREGATES_INTERVALS && self.aggregates.seen.is_some()
    }
}

impl Counter {
    /// What has been added since the last interval. Losses that turned out to be spurious are subtracted from later
    /// ones.
    fn since_last(&mut self, totals: Outcomes) -> Outcomes {
        let before = self.seen.unwrap_or(totals);
        self.seen = Some(Outcomes {
            arrived: totals.arrived,
            lost: totals.lost.max(before.lost),
        });
        totals.since(&before)
    }
}

/// The paths that an application may take, and the fallback where its latency target is met on none of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathChoice<P> {
    pub allowed: BTreeSet<P>,
    pub fallback: BTreeSet<P>,
}

/// Restricts `choice` to the paths whose loss an application tolerates. `excess`: a path's loss as a multiple of the
/// tolerance, if above one. `lateness`: its delay without any queue as a multiple of the latency target.
///
/// Paths that lose too much become fallback paths, for an application whose target is met on no other path; those
/// whose excess is above the others' lateness are left out. If all paths lose too much, those that lose least are
/// allowed.
pub fn tolerable_paths<P: Copy + Ord>(
    choice: PathChoice<P>,
    excess: impl Fn(P) -> Option<f64>,
    lateness: impl Fn(P) -> f64,
) -> PathChoice<P> {
    let is_tolerable = |path: &P| excess(*path).is_none();
    if choice.allowed.iter().all(is_tolerable) {
        return choice;
    }
    let mut tolerable: BTreeSet<P> = choice
        .allowed
        .iter()
        .copied()
        .filter(is_tolerable)
        .collect();
    if tolerable.is_empty() {
        // Probation is better than excess loss.
        tolerable = choice
            .fallback
            .iter()
            .copied()
            .filter(is_tolerable)
            .collect();
    }
    if tolerable.is_empty() {
        let of = |path: &P| excess(*path).unwrap_or(0.0);
        let least = choice.allowed.iter().map(of).fold(f64::INFINITY, f64::min);
        let (allowed, more) = choice
            .allowed
            .iter()
            .partition(|path| of(path) <= least * EXCESS_ALIKE);
        return PathChoice {
            allowed,
            fallback: choice.fallback.union(&more).copied().collect(),
        };
    }
    let least_late = tolerable
        .iter()
        .map(|path| lateness(*path))
        .fold(f64::INFINITY, f64::min);
    let serves_better =
        |path: &P| least_late <= 1.0 || excess(*path).is_none_or(|excess| excess < least_late);
    let others = choice.allowed.union(&choice.fallback).copied();
    PathChoice {
        fallback: others
            .filter(|path| !tolerable.contains(path) && serves_better(path))
            .collect(),
        allowed: tolerable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probability(value: f64) -> Probability {
        Probability::new(value).unwrap()
    }

    const LOOKS: u64 = 30;

    /// Totals that grow by so many a look, of which a part is lost.
    #[derive(Clone, Copy, Default)]
    struct Totals(Outcomes);

    impl Totals {
        fn grow(&mut self, lost: u64, arrived: u64) -> Outcomes {
            self.0.lost += lost;
            self.0.arrived += arrived;
            self.0
        }
    }

    fn monitor(tolerances: &[f64]) -> LossMonitor {
        let tolerances: Vec<Probability> = tolerances.iter().copied().map(probability).collect();
        let mut monitor = LossMonitor::default();
        monitor.follow_tolerances(&tolerances);
        monitor
    }

    #[test]
    fn each_tolerance_has_its_own_answer_and_keeps_it_in_a_new_configuration() {
        let mut monitor = monitor(&[0.01, 0.2]);
        let mut packets = Totals::default();
        let changed =
            (0..LOOKS).filter(|_| monitor.on_totals(packets.grow(5, 45), Outcomes::default()));
        assert_eq!(changed.count(), 1);
        let found = monitor
            .excess(probability(0.01), LossUnit::Packets)
            .unwrap();
        assert!((0.05..0.15).contains(&found.get()), "{found}");
        assert_eq!(monitor.excess(probability(0.2), LossUnit::Packets), None);
        assert_eq!(monitor.excess(probability(0.05), LossUnit::Packets), None);
        monitor.follow_tolerances(&[probability(0.05), probability(0.01)]);
        assert_eq!(
            monitor.excess(probability(0.01), LossUnit::Packets),
            Some(found)
        );
    }

    #[test]
    fn what_redundancy_saves_is_not_lost_for_aggregates() {
        let mut monitor = monitor(&[0.01]);
        let (mut packets, mut aggregates) = (Totals::default(), Totals::default());
        for _ in 0..LOOKS {
            monitor.on_totals(packets.grow(10, 40), aggregates.grow(0, 25));
        }
        let of =
            |monitor: &LossMonitor, of| monitor.excess(probability(0.01), of).map(Probability::get);
        assert!(of(&monitor, LossUnit::Packets).is_some());
        assert_eq!(of(&monitor, LossUnit::Aggregates), None);
        // Elsewhere nothing is known of aggregates: two copies would leave 4 %.
        for _ in 0..LOOKS {
            monitor.on_totals(packets.grow(10, 40), aggregates.0);
        }
        let both = of(&monitor, LossUnit::Aggregates).unwrap();
        assert!((0.02..0.08).contains(&both), "{both}");
    }

    #[test]
    fn what_aggregates_lost_is_forgotten_with_the_loss_of_packets() {
        let mut monitor = monitor(&[0.01]);
        let (mut packets, mut aggregates) = (Totals::default(), Totals::default());
        for _ in 0..LOOKS {
            monitor.on_totals(packets.grow(3, 47), aggregates.grow(2, 23));
        }
        let of = |monitor: &LossMonitor| monitor.excess(probability(0.01), LossUnit::Aggregates);
        assert!(of(&monitor).is_some());
        for _ in 0..LOOKS {
            monitor.on_totals(packets.grow(3, 47), aggregates.0);
        }
        assert!(of(&monitor).is_some(), "copies are lost together");
        for _ in 0..100 {
            monitor.on_totals(packets.grow(0, 50), aggregates.0);
        }
        assert_eq!(of(&monitor), None);
    }

    #[test]
    fn spurious_losses_are_no_evidence() {
        let mut monitor = monitor(&[0.01]);
        for look in 0..1000 {
            // Every packet is declared lost first, and found to have arrived by the next look but one.
            let packets = Outcomes {
                arrived: look * 10,
                lost: if look % 2 == 0 { 0 } else { 10 },
            };
            monitor.on_totals(packets, Outcomes::default());
        }
        assert_eq!(monitor.excess(probability(0.01), LossUnit::Packets), None);
    }

    #[test]
    fn what_is_lost_while_the_path_is_down_is_no_evidence() {
        let mut monitor = monitor(&[0.01]);
        for outage in 0..100 {
            monitor.on_outage();
            monitor.on_totals(
                Outcomes {
                    arrived: 0,
                    lost: outage * 100,
                },
                Outcomes::default(),
            );
        }
        assert_eq!(monitor.excess(probability(0.01), LossUnit::Packets), None);
    }

    fn choice(allowed: &[u8], fallback: &[u8]) -> PathChoice<u8> {
        PathChoice {
            allowed: allowed.iter().copied().collect(),
            fallback: fallback.iter().copied().collect(),
        }
    }

    /// Excess by path: path 1 loses nothing, path 2 twice the tolerance, path 3 three times, path 9 nine times.
    fn excess(path: u8) -> Option<f64> {
        (path > 1).then_some(f64::from(path))
    }

    #[test]
    fn a_path_that_loses_too_much_is_for_those_who_are_met_nowhere_else() {
        let in_time = |_| 0.5;
        let all = tolerable_paths(choice(&[1], &[2]), excess, in_time);
        assert_eq!(all, choice(&[1], &[2]), "nothing to decide");
        let all = tolerable_paths(choice(&[1, 2, 9], &[]), excess, in_time);
        assert_eq!(all, choice(&[1], &[2, 9]));
        // One on probation is better than one that loses.
        let all = tolerable_paths(choice(&[2], &[1]), excess, in_time);
        assert_eq!(all, choice(&[1], &[2]));
        // Three times too late is worse than twice the loss, and better than nine times.
        let all = tolerable_paths(choice(&[1, 2, 9], &[]), excess, |_| 3.0);
        assert_eq!(all, choice(&[1], &[2]));
    }

    #[test]
    fn where_all_paths_lose_too_much_the_least_lossy_are_left() {
        let all = tolerable_paths(choice(&[2, 3, 9], &[]), excess, |_| 0.5);
        assert_eq!(all, choice(&[2, 3], &[9]));
    }
}
