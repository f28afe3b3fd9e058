//! Paths that die and come back, once and again and again: with the plan loop of the gateway on side
//! A, an application moves at most once for each death and each return, and what is told of a path
//! that is back is what it is like, not what the outage was like.

#[path = "support/plan_loop.rs"]
mod plan_loop;

use std::time::Duration;

use keiro_core::{Event, PathSnapshot, PathState};
use keiro_model::{Bandwidth, Instant, Probability, steer::Manner};
use keiro_sim::{
    Change, Cross, GatewayPair, Happening, Length, Made, PathSpec, Processing, Report, Scenario,
    Side, Way,
};

use plan_loop::{App, Loop, SAMPLE_INTERVAL};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const NEAR: usize = 0;
const FAR: usize = 1;
const BYTES: u64 = 5_000;
const INTERVAL: Duration = Duration::from_millis(50);
const DEMAND: Duration = Duration::from_millis(30);
/// Until the path first goes down.
const BEFORE: Duration = Duration::from_secs(8);

/// A near path of 10 Mbit/s, on which others send `cross` of them, and a far one of 20 Mbit/s; one
/// application, for which only the near one is near enough.
fn scenario(cross: u64, end: Duration) -> Scenario {
    let path = |mbit: u64, delay: u32| {
        PathSpec::new(Bandwidth::from_mbit_per_second(mbit), delay * MS)
            .with(|link| link.jitter = Duration::from_micros(20))
    };
    let mut near = path(10, 3);
    near.cross = (cross > 0).then_some(Cross {
        rate: Bandwidth::from_mbit_per_second(cross),
        feed: Bandwidth::from_mbit_per_second(100),
    });
    let mut scenario = Scenario::new(vec![near, path(20, 40)]);
    for gateway in [&mut scenario.a, &mut scenario.b] {
        gateway.probe_share = Probability::new(0.005).unwrap();
        gateway.processing = Processing {
            timer_late_max: Duration::from_micros(100),
            ..Processing::default()
        };
    }
    let app = scenario.add_message_app(Some(DEMAND), &[NEAR, FAR]);
    let made = Made::Every {
        interval: INTERVAL,
        count: (end.as_millis() / INTERVAL.as_millis()) as u32,
    };
    scenario.add_traffic(app, made, Length::Fixed(BYTES as usize));
    scenario
}

/// What was told of a path.
type Told = Vec<(Instant, PathSnapshot)>;

/// Cuts the near path at the first of each pair and mends it at the second, all after [`BEFORE`];
/// the report, when those were, and what side A told of the path.
fn run(
    scenario: &Scenario,
    outages: &[(Duration, Duration)],
    end: Duration,
    seed: u64,
) -> (Report, Vec<Instant>, Told) {
    let mut pair = GatewayPair::new(scenario, seed);
    pair.set_up().unwrap_or_else(|failure| panic!("{failure}"));
    let app = App {
        bytes: BYTES,
        interval: INTERVAL,
        demand: Some(DEMAND),
    };
    let mut plan_loop = Loop::new(&[app]);
    plan_loop.turn(&mut pair, Manner::Anew);
    pair.begin();
    let from = pair.now();
    let changes: Vec<(Instant, Change)> = outages
        .iter()
        .flat_map(|(down, up)| [(*down, Change::Down), (*up, Change::Up)])
        .map(|(at, change)| (from + BEFORE + at, change))
        .collect();
    let mut next = changes.iter().peekable();
    let mut told = Told::new();
    while pair.now() < from + end {
        if let Some((_, change)) = next.next_if(|(at, _)| pair.now() >= *at) {
            let (path, way, change) = (NEAR, Way::Both, *change);
            pair.apply(&Happening::Path { path, way, change });
        }
        pair.run_for(SAMPLE_INTERVAL);
        plan_loop.turn(&mut pair, Manner::Revise);
        let path = pair.gateway(Side::A).session().unwrap().paths[NEAR].clone();
        told.push((pair.now(), path));
    }
    pair.finish().unwrap_or_else(|failure| panic!("{failure}"));
    let events = changes.iter().map(|(at, _)| *at).collect();
    (pair.report(), events, told)
}

/// How often the application moved from `from` until `until`.
fn moves(report: &Report, from: Instant, until: Instant) -> usize {
    let moved = |(at, event): &&(Instant, Event)| {
        matches!(event, Event::AppMoved { .. }) && *at >= from && *at < until
    };
    report.sides[0].events.iter().filter(moved).count()
}

#[test]
fn a_death_and_a_return_move_once_each_and_demands_are_met_soon_after_either() {
    for seed in 0..4 {
        let outage = (Duration::ZERO, 4 * SECOND);
        let end = BEFORE + 16 * SECOND;
        let (report, events, told) = run(&scenario(0, end), &[outage], end, seed);
        report.assert_complete();
        let [death, back] = events[..] else {
            unreachable!("two events")
        };
        let last = back + 12 * SECOND;
        assert_eq!(moves(&report, death, back), 1, "seed {seed}: at its death");
        assert_eq!(moves(&report, back, last), 1, "seed {seed}: at its return");
        for message in report.messages_of(0) {
            let affected = message.made + 300 * MS >= death && message.made < back + 2 * SECOND;
            let delay = message.delay().unwrap();
            assert!(affected || delay <= DEMAND, "seed {seed}: {delay:?}");
        }
        for (at, path) in told
            .iter()
            .filter(|(at, path)| *at > back && path.state == PathState::Up)
        {
            let after = *at - back;
            let loss = path.loss.map_or(0.0, Probability::get);
            assert!(
                loss < 0.01,
                "seed {seed}, {after:?} after its return: {path:#?}"
            );
            let mbit = |rate: Bandwidth| rate.as_bits_per_second() as f64 / 1e6;
            let capacity = path.capacity.map(|found| mbit(found.capacity.rate));
            let known = capacity.is_some_and(|capacity| (capacity - 10.0).abs() < 0.5);
            assert!(known, "seed {seed}, {after:?} after its return: {path:#?}");
            let others = path.cross_rate.map_or(0.0, mbit);
            assert!(
                others < 1.0,
                "seed {seed}, {after:?} after its return: {path:#?}"
            );
            let base = path.base_rtt.unwrap();
            assert!(
                base < 8 * MS,
                "seed {seed}, {after:?} after its return: {path:#?}"
            );
        }
    }
}

#[test]
fn what_others_send_is_not_forgotten_over_an_outage() {
    for seed in 0..2 {
        let outage = (Duration::ZERO, 4 * SECOND);
        let end = BEFORE + 14 * SECOND;
        let (report, events, told) = run(&scenario(6, end), &[outage], end, seed);
        let back = events[1];
        for (at, path) in told
            .iter()
            .filter(|(at, path)| *at > back && path.state == PathState::Up)
        {
            let others = path.cross_rate.map_or(0, Bandwidth::as_bits_per_second);
            let after = *at - back;
            assert!(
                (3_500_000..8_500_000).contains(&others),
                "seed {seed}, {after:?} after its return: {others}"
            );
        }
        assert!(
            moves(&report, events[0], back) <= 1,
            "seed {seed}: at its death"
        );
        assert!(
            moves(&report, back, back + 10 * SECOND) <= 1,
            "seed {seed}: at its return"
        );
    }
}

#[test]
fn a_path_that_flaps_is_left_for_good_after_its_second_death() {
    for seed in 0..4 {
        let outages: Vec<_> = (0..5)
            .map(|n| (2 * n * SECOND, (2 * n + 1) * SECOND))
            .collect();
        let end = BEFORE + 50 * SECOND;
        let (report, events, _) = run(&scenario(0, end), &outages, end, seed);
        report.assert_complete();
        let begins = events.iter().copied();
        let ends = events
            .iter()
            .skip(1)
            .copied()
            .chain([events[9] + 40 * SECOND]);
        let counts: Vec<usize> = begins
            .zip(ends)
            .map(|(from, to)| moves(&report, from, to))
            .collect();
        println!("down 1 s, up 1 s, five times, seed {seed}: {counts:?} moves");
        // It dies, is back and dies again; the last return is believed after half a minute.
        assert_eq!(counts, [1, 1, 1, 0, 0, 0, 0, 0, 0, 1], "seed {seed}");
        let back = events[9];
        assert_eq!(moves(&report, back, back + 29 * SECOND), 0, "seed {seed}");
    }
}
