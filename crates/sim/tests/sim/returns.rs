//! Paths that die and come back, once and again and again: with the plan loop of the gateway on side
//! A, an application moves at most once for each death and each return, and what is reported of a path
//! that is back is what it is like, not what the outage was like.

use std::time::Duration;

use keiro_core::{Event, PathSnapshot, PathState};
use keiro_planner::steer::PlanMode;
use keiro_sim::{
    Arrivals, Change, Cross, GatewayPair, Length, PathDirection, PathSpec, Processing, Report,
    Scenario, ScenarioEvent, Side,
};
use keiro_units::{Bandwidth, Instant, Probability};

use crate::plan_loop::{App, Loop, SAMPLE_INTERVAL};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const NEAR: usize = 0;
const FAR: usize = 1;
const BYTES: u64 = 5_000;
const INTERVAL: Duration = Duration::from_millis(50);
const LATENCY_TARGET: Duration = Duration::from_millis(30);
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
    let app = scenario.add_message_app(Some(LATENCY_TARGET), &[NEAR, FAR]);
    let made = Arrivals::Every {
        interval: INTERVAL,
        count: (end.as_millis() / INTERVAL.as_millis()) as u32,
    };
    scenario.add_traffic(app, made, Length::Fixed(BYTES as usize));
    scenario
}

/// What was reported of a path.
type Told = Vec<(Instant, PathSnapshot)>;

/// Cuts the near path at the first of each pair and mends it at the second, all after [`BEFORE`];
/// the report, when those were, and what side A reported of the path.
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
        latency_target: Some(LATENCY_TARGET),
    };
    let mut plan_loop = Loop::new(&[app]);
    plan_loop.turn(&mut pair, PlanMode::FromScratch);
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
            let (path, way, change) = (NEAR, PathDirection::Both, *change);
            pair.apply(&ScenarioEvent::Path { path, way, change });
        }
        pair.run_for(SAMPLE_INTERVAL);
        plan_loop.turn(&mut pair, PlanMode::Revise);
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
fn a_death_and_a_return_move_once_each_and_targets_are_met_soon_after_either() {
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
            assert!(
                affected || delay <= LATENCY_TARGET,
                "seed {seed}: {delay:?}"
            );
        }
        for (at, path) in told
            .iter()
            .filter(|(at, path)| *at > back && path.state == PathState::Up)
        {
            let after = *at - back;
            let loss = path.stats.loss.map_or(0.0, Probability::get);
            assert!(
                loss < 0.01,
                "seed {seed}, {after:?} after its return: {path:#?}"
            );
            let mbit = |rate: Bandwidth| rate.as_bits_per_second() as f64 / 1e6;
            let capacity = path.capacity.map(|found| mbit(found.capacity.rate));
            let known = capacity.is_some_and(|capacity| (capacity - 10.0).abs() < 0.5);
            assert!(known, "seed {seed}, {after:?} after its return: {path:#?}");
            let others = path.stats.cross_traffic.map_or(0.0, mbit);
            assert!(
                others < 1.0,
                "seed {seed}, {after:?} after its return: {path:#?}"
            );
            let base = path.stats.base_rtt.unwrap();
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
            let others = path
                .stats
                .cross_traffic
                .map_or(0, Bandwidth::as_bits_per_second);
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
        // It dies, is back and dies again. No application goes back for a second; for who needs it, two are
        // enough.
        assert_eq!(counts, [1, 1, 1, 0, 0, 0, 0, 0, 0, 1], "seed {seed}");
        let back = events[9];
        let (soon, late) = (back + 19 * SAMPLE_INTERVAL, back + 25 * SAMPLE_INTERVAL);
        assert_eq!(moves(&report, back, soon), 0, "seed {seed}");
        assert_eq!(moves(&report, soon, late), 1, "seed {seed}");
    }
}

/// The paths of three that an application has been on, in order.
fn places(report: &Report, from: Instant) -> Vec<Option<u8>> {
    let place = |(at, event): &(Instant, Event)| match event {
        Event::AppMoved { to, .. } if *at >= from => Some(to.map(|path| path.0)),
        _ => None,
    };
    report.sides[0].events.iter().filter_map(place).collect()
}

/// Three paths with round trips of 200, 40 and 10 ms; the middle one is the only one that is near
/// and wide enough for the application. `happenings` begin at [`BEFORE`].
fn run_of_three(
    lifetime: Option<Duration>,
    seed: u64,
    happenings: &[(Duration, ScenarioEvent)],
) -> (Report, Instant) {
    let end = BEFORE + 20 * SECOND;
    let path = |kbit: u64, delay: u32| {
        PathSpec::new(Bandwidth::from_bits_per_second(kbit * 1000), delay * MS)
            .with(|link| link.jitter = Duration::from_micros(20))
    };
    let mut scenario = Scenario::new(vec![path(40_000, 100), path(40_000, 20), path(5_000, 5)]);
    for gateway in [&mut scenario.a, &mut scenario.b] {
        gateway.probe_share = Probability::new(0.005).unwrap();
    }
    let app = scenario.add_message_app(Some(LATENCY_TARGET), &[0, 1, 2]);
    scenario.apps[app].lifetime = lifetime;
    let made = Arrivals::Every {
        interval: INTERVAL,
        count: (end.as_millis() / INTERVAL.as_millis()) as u32,
    };
    scenario.add_traffic(app, made, Length::Fixed(4 * BYTES as usize));
    let mut pair = GatewayPair::new(&scenario, seed);
    pair.set_up().unwrap_or_else(|failure| panic!("{failure}"));
    let mut plan_loop = Loop::new(&[App {
        bytes: 4 * BYTES,
        interval: INTERVAL,
        latency_target: Some(LATENCY_TARGET),
    }]);
    plan_loop.turn(&mut pair, PlanMode::FromScratch);
    pair.begin();
    let from = pair.now();
    let mut next = happenings.iter().peekable();
    while pair.now() < from + end {
        while let Some((_, what)) = next.next_if(|(at, _)| pair.now() >= from + BEFORE + *at) {
            pair.apply(what);
        }
        pair.run_for(SAMPLE_INTERVAL);
        plan_loop.turn(&mut pair, PlanMode::Revise);
    }
    pair.finish().unwrap_or_else(|failure| panic!("{failure}"));
    (pair.report(), from + BEFORE)
}

/// All paths at once.
fn all(at: Duration, change: Change) -> [(Duration, ScenarioEvent); 3] {
    [0, 1, 2].map(|path| {
        let way = PathDirection::Both;
        (at, ScenarioEvent::Path { path, way, change })
    })
}

#[test]
fn when_all_paths_have_been_dead_everybody_is_back_where_they_were() {
    for away in [100 * MS, 300 * MS, 700 * MS, 3 * SECOND, 8 * SECOND] {
        for seed in 0..3 {
            let mut happenings = all(Duration::ZERO, Change::Down).to_vec();
            happenings.extend(all(away, Change::Up));
            let (report, began) = run_of_three(None, seed, &happenings);
            report.assert_complete();
            let places = places(&report, began);
            println!("all paths down for {away:?}, seed {seed}: {places:?}");
            assert!(
                places.last().is_none_or(|place| *place == Some(1)),
                "{away:?}, seed {seed}: {places:?}"
            );
            // A moment is no reason to leave; else they are found dead one after the other, and home
            // is taken at once when they are back.
            assert!(
                away > 100 * MS || places.is_empty(),
                "{away:?}, seed {seed}: {places:?}"
            );
            let back = places.iter().position(Option::is_none);
            let after = back.map_or(0, |nowhere| places.len() - 1 - nowhere);
            assert!(after <= 1, "{away:?}, seed {seed}: {places:?}");
        }
    }
}

#[test]
fn when_the_peer_has_restarted_everybody_is_back_where_they_were() {
    for away in [Duration::ZERO, 100 * MS, SECOND, 8 * SECOND] {
        for (orderly, lifetime) in [(true, None), (false, None), (false, Some(10 * SECOND))] {
            for seed in 0..3 {
                let side = Side::B;
                let restart = ScenarioEvent::Restart {
                    side,
                    orderly,
                    away,
                };
                let (report, began) = run_of_three(lifetime, seed, &[(Duration::ZERO, restart)]);
                let places = places(&report, began);
                let case = format!("away {away:?}, orderly {orderly}, {lifetime:?}, seed {seed}");
                println!("{case}: {places:?}");
                assert_eq!(places.last(), Some(&Some(1)), "{case}: {places:?}");
                let nowhere = places.iter().position(Option::is_none).unwrap();
                assert_eq!(places.len(), nowhere + 2, "{case}: {places:?}");
            }
        }
    }
}
