//! Paths that die and return, once or repeatedly. With the plan loop of the gateway on side A, an application
//! moves at most once for each death and each return, and the reported state of a path that returned is its
//! present state, not that of the outage.

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
/// Time until the path first goes down.
const BEFORE: Duration = Duration::from_secs(8);

/// A near path of 10 Mbit/s, with `cross` of it used by cross traffic, and a far one of 20 Mbit/s. One
/// application, whose latency target only the near path meets.
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

/// Reported state of a path.
type ReportedPath = Vec<(Instant, PathSnapshot)>;

/// Cuts the near path at the first time of each pair and restores it at the second, all after [`BEFORE`].
/// Returns the report, the times, and side A's reports on the path.
fn run(
    scenario: &Scenario,
    outages: &[(Duration, Duration)],
    end: Duration,
    seed: u64,
) -> (Report, Vec<Instant>, ReportedPath) {
    let mut pair = GatewayPair::new(scenario, seed);
    pair.set_up().unwrap_or_else(|failure| panic!("{failure}"));
    let app = App {
        bytes: BYTES,
        interval: INTERVAL,
        latency_target: Some(LATENCY_TARGET),
        loss: None,
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
    let mut reported = ReportedPath::new();
    while pair.now() < from + end {
        if let Some((_, change)) = next.next_if(|(at, _)| pair.now() >= *at) {
            let (path, direction, change) = (NEAR, PathDirection::Both, *change);
            pair.apply(&ScenarioEvent::Path {
                path,
                direction,
                change,
            });
        }
        pair.run_for(SAMPLE_INTERVAL);
        plan_loop.turn(&mut pair, PlanMode::Revise);
        let path = pair.gateway(Side::A).session().unwrap().paths[NEAR].clone();
        reported.push((pair.now(), path));
    }
    pair.finish().unwrap_or_else(|failure| panic!("{failure}"));
    let events = changes.iter().map(|(at, _)| *at).collect();
    (pair.report(), events, reported)
}

/// Number of moves of the application between `from` and `until`.
fn moves(report: &Report, from: Instant, until: Instant) -> usize {
    let moved = |(at, event): &&(Instant, Event)| {
        matches!(event, Event::AppMoved { .. }) && *at >= from && *at < until
    };
    report.sides[0].events.iter().filter(moved).count()
}

#[test]
fn an_outage_and_a_return_move_once_each_and_targets_are_met_soon_after_either() {
    for seed in 0..4 {
        let outage = (Duration::ZERO, 4 * SECOND);
        let end = BEFORE + 16 * SECOND;
        let (report, events, reported) = run(&scenario(0, end), &[outage], end, seed);
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
        for (at, path) in reported
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
fn cross_traffic_is_remembered_over_an_outage() {
    for seed in 0..2 {
        let outage = (Duration::ZERO, 4 * SECOND);
        let end = BEFORE + 14 * SECOND;
        let (report, events, reported) = run(&scenario(6, end), &[outage], end, seed);
        let back = events[1];
        for (at, path) in reported
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
fn a_flapping_path_is_not_used_again_after_its_second_outage() {
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
        // The path dies, returns and dies again. Applications do not return for a second; one that needs the
        // path may move twice.
        assert_eq!(counts, [1, 1, 1, 0, 0, 0, 0, 0, 0, 1], "seed {seed}");
        let back = events[9];
        let (soon, late) = (back + 19 * SAMPLE_INTERVAL, back + 25 * SAMPLE_INTERVAL);
        assert_eq!(moves(&report, back, soon), 0, "seed {seed}");
        assert_eq!(moves(&report, soon, late), 1, "seed {seed}");
    }
}

/// However long a path stays up between its outages, it moves applications a few times and is then held down,
/// also where the latency target is met on no other path.
#[test]
fn a_path_that_flaps_moves_an_application_a_bounded_number_of_times() {
    for up in [2, 3, 4, 6] {
        let cycles = 40 / (up + 2);
        let outages: Vec<_> = (0..cycles)
            .map(|n| n * (up + 2))
            .map(|at| (at * SECOND, (at + 2) * SECOND))
            .collect();
        let end = BEFORE + 48 * SECOND;
        let (report, events, _) = run(&scenario(0, end), &outages, end, u64::from(up));
        report.assert_complete();
        let moves = moves(&report, events[0], events[0] + 40 * SECOND);
        println!("down 2 s, up {up} s, {cycles} times: {moves} moves");
        // Away and back at the first outages, away at the one that is too many.
        assert!(moves <= 7, "up {up} s: {moves} moves in {cycles} outages");
    }
}

/// A single outage delays the return as little as before there was damping: half a second.
#[test]
fn the_first_recovery_is_not_delayed() {
    for seed in 0..4 {
        let outage = (Duration::ZERO, 4 * SECOND);
        let end = BEFORE + 8 * SECOND;
        let (report, events, _) = run(&scenario(0, end), &[outage], end, seed);
        let back = events[1];
        let returned = report.sides[0].events.iter().find(|(at, event)| {
            matches!(event, Event::AppMoved { to: Some(to), .. } if to.0 == 0) && *at > back
        });
        let after = returned.map(|(at, _)| *at - back);
        println!("seed {seed}: back after {after:?}");
        assert!(
            after.is_some_and(|after| after <= 13 * SAMPLE_INTERVAL),
            "seed {seed}: {after:?}"
        );
    }
}

/// The paths, of three, that an application has used, in order.
fn paths_used(report: &Report, from: Instant) -> Vec<Option<u8>> {
    let place = |(at, event): &(Instant, Event)| match event {
        Event::AppMoved { to, .. } if *at >= from => Some(to.map(|path| path.0)),
        _ => None,
    };
    report.sides[0].events.iter().filter_map(place).collect()
}

/// Three paths with round trips of 200, 40 and 10 ms. Only the middle one has both the delay and the
/// bandwidth for the application. `happenings` begin at [`BEFORE`].
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
        loss: None,
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
        let direction = PathDirection::Both;
        (
            at,
            ScenarioEvent::Path {
                path,
                direction,
                change,
            },
        )
    })
}

#[test]
fn applications_return_to_their_paths_after_an_outage_of_all_paths() {
    for away in [100 * MS, 300 * MS, 700 * MS, 3 * SECOND, 8 * SECOND] {
        for seed in 0..3 {
            let mut happenings = all(Duration::ZERO, Change::Down).to_vec();
            happenings.extend(all(away, Change::Up));
            let (report, began) = run_of_three(None, seed, &happenings);
            report.assert_complete();
            let paths_used = paths_used(&report, began);
            println!("all paths down for {away:?}, seed {seed}: {paths_used:?}");
            assert!(
                paths_used.last().is_none_or(|place| *place == Some(1)),
                "{away:?}, seed {seed}: {paths_used:?}"
            );
            // A short outage is no reason to move. In a longer one the paths are found dead one after the
            // other, and the preferred path is used at once when they return.
            assert!(
                away > 100 * MS || paths_used.is_empty(),
                "{away:?}, seed {seed}: {paths_used:?}"
            );
            let back = paths_used.iter().position(Option::is_none);
            let after = back.map_or(0, |nowhere| paths_used.len() - 1 - nowhere);
            assert!(after <= 1, "{away:?}, seed {seed}: {paths_used:?}");
        }
    }
}

#[test]
fn applications_return_to_their_paths_after_a_restart_of_the_peer() {
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
                let paths_used = paths_used(&report, began);
                let case = format!("away {away:?}, orderly {orderly}, {lifetime:?}, seed {seed}");
                println!("{case}: {paths_used:?}");
                assert_eq!(paths_used.last(), Some(&Some(1)), "{case}: {paths_used:?}");
                let nowhere = paths_used.iter().position(Option::is_none).unwrap();
                assert_eq!(paths_used.len(), nowhere + 2, "{case}: {paths_used:?}");
            }
        }
    }
}
