//! Paths die and return: it is detected in time, and messages use another path.

use std::time::Duration;

use keiro_core::{AppId, Event, MoveReason, PathId};
use keiro_sim::{
    Arrivals, Change, GatewayPair, Length, PathDirection, PathSpec, Report, Scenario,
    ScenarioEvent, SetUp, Side,
};
use keiro_units::Bandwidth;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn path(delay: Duration) -> PathSpec {
    PathSpec::new(Bandwidth::from_mbit_per_second(20), delay)
}

fn change(path: usize, direction: PathDirection, change: Change) -> ScenarioEvent {
    ScenarioEvent::Path {
        path,
        direction,
        change,
    }
}

/// One application that prefers path 0, for four seconds; path 1 has twice the delay.
fn scenario(delay: Duration) -> Scenario {
    let mut scenario = Scenario::new(vec![path(delay), path(2 * delay)]);
    let app = scenario.add_message_app(Some(100 * MS), &[0, 1]);
    let made = Arrivals::Exponential {
        mean: 10 * MS,
        duration: 4 * SECOND,
    };
    scenario.add_traffic(app, made, Length::Uniform(100, 10_000));
    scenario
}

fn noticed(report: &Report, side: Side, died: Duration) -> Option<Duration> {
    let down = |event: &Event| {
        matches!(
            event,
            Event::PathDown {
                path: PathId(0),
                ..
            }
        )
    };
    let at = report.sides[side.index()].first(down)?;
    Some(at - (report.measured_from + died))
}

#[test]
fn outage_is_noticed_within_three_round_trips_and_100_ms() {
    for delay in [MS, 10 * MS, 50 * MS, 150 * MS] {
        for seed in 0..3 {
            for direction in [PathDirection::Both, PathDirection::Forward] {
                let mut scenario = scenario(delay);
                // "Under traffic": time counts from the first packet that is not acknowledged.
                scenario.traffic[0].made = Arrivals::Every {
                    interval: 5 * MS,
                    count: 800,
                };
                scenario.add_event(2 * SECOND, change(0, direction, Change::Down));
                let report = GatewayPair::new(&scenario, seed).run();
                report.assert_complete();
                let noticed = noticed(&report, Side::A, 2 * SECOND).expect("it was noticed");
                let limit = 3 * (2 * delay) + 100 * MS;
                assert!(
                    noticed <= limit,
                    "{direction:?}, {delay:?}: after {noticed:?}, limit {limit:?}\n{report}"
                );
            }
        }
    }
}

#[test]
fn messages_go_on_over_the_other_path() {
    for seed in 0..3 {
        let delay = 10 * MS;
        let mut scenario = scenario(delay);
        scenario.add_event(SECOND, change(0, PathDirection::Both, Change::Down));
        let report = GatewayPair::new(&scenario, seed).run();
        report.assert_complete();
        let moved = Event::AppMoved {
            peer: keiro_core::PeerId(0),
            app: AppId::of_name("A1"),
            from: Some(PathId(0)),
            to: Some(PathId(1)),
            reason: MoveReason::PathDown,
        };
        let same_move = |event: &Event| match (event, &moved) {
            (
                Event::AppMoved {
                    app,
                    from,
                    to,
                    reason,
                    ..
                },
                Event::AppMoved {
                    app: a,
                    from: f,
                    to: t,
                    reason: r,
                    ..
                },
            ) => (app, from, to, reason) == (a, f, t, r),
            _ => false,
        };
        assert!(report.sides[0].first(same_move).is_some(), "{report}");
        // Messages that were in flight wait for the detection and the queue of that time, no longer.
        let notice = 3 * (2 * delay) + 100 * MS;
        for message in &report.messages {
            let took = message.delay().unwrap();
            assert!(took <= notice + 150 * MS, "{message:?}: {took:?}\n{report}");
        }
    }
}

#[test]
fn returned_path_is_used_again() {
    for seed in 0..3 {
        let mut scenario = scenario(10 * MS);
        scenario.add_event(SECOND, change(0, PathDirection::Both, Change::Down));
        scenario.add_event(2 * SECOND, change(0, PathDirection::Both, Change::Up));
        let report = GatewayPair::new(&scenario, seed).run();
        report.assert_complete();
        let back = |event: &Event| {
            let to_first = Some(PathId(0));
            matches!(event, Event::AppMoved { to, reason: MoveReason::PathUp, .. } if *to == to_first)
        };
        let at = report.sides[0].first(back);
        let at = at.unwrap_or_else(|| panic!("never moved back\n{report}"));
        let limit = report.measured_from + 2 * SECOND + SECOND;
        assert!(at <= limit, "back at {at}, limit {limit}\n{report}");
    }
}

#[test]
fn all_paths_may_die_and_return() {
    for seed in 0..3 {
        let mut scenario = scenario(10 * MS);
        for path in [0, 1] {
            scenario.add_event(SECOND, change(path, PathDirection::Both, Change::Down));
            scenario.add_event(6 * SECOND, change(path, PathDirection::Both, Change::Up));
        }
        GatewayPair::new(&scenario, seed).run().assert_complete();
    }
}

#[test]
fn flapping_path_harms_nothing() {
    let mut scenario = scenario(10 * MS);
    for i in 0..30 {
        let what = if i % 2 == 0 { Change::Down } else { Change::Up };
        scenario.add_event(i * 100 * MS, change(0, PathDirection::Both, what));
    }
    GatewayPair::new(&scenario, 1).run().assert_complete();
}

#[test]
fn a_path_that_works_in_one_direction_only_is_not_used() {
    for (seed, direction) in [(1, PathDirection::Forward), (2, PathDirection::Backward)] {
        let mut scenario = scenario(10 * MS);
        scenario.add_event(SECOND, change(0, direction, Change::Down));
        let report = GatewayPair::new(&scenario, seed).run();
        report.assert_complete();
        assert!(noticed(&report, Side::A, SECOND).is_some(), "{report}");
    }
}

#[test]
fn failed_first_path_does_not_block_the_start() {
    for seed in 0..3 {
        let mut scenario = scenario(10 * MS);
        scenario.paths[0] = scenario.paths[0].with(|link| link.down = true);
        scenario.set_up = SetUp::Skip;
        let report = GatewayPair::new(&scenario, seed).run();
        report.assert_complete();
        let first = report.messages[0].delivered_at.unwrap();
        assert!(
            first.as_nanos() <= 1_000_000_000,
            "first message arrived at {first}\n{report}"
        );
    }
}

#[test]
fn idle_outage_is_noticed_by_probes() {
    let mut scenario = Scenario::new(vec![path(10 * MS), path(20 * MS)]);
    let app = scenario.add_message_app(None, &[0, 1]);
    scenario.add_event(SECOND, change(0, PathDirection::Both, Change::Down));
    let once = Arrivals::Every {
        interval: Duration::ZERO,
        count: 1,
    };
    scenario.add_traffic(app, once, Length::Fixed(1000));
    scenario.traffic[0].start = 5 * SECOND;
    let report = GatewayPair::new(&scenario, 1).run();
    report.assert_complete();
    for side in Side::BOTH {
        let noticed = noticed(&report, side, SECOND).expect("it was noticed");
        assert!(noticed <= 2 * SECOND, "{noticed:?}\n{report}");
    }
    // By then the message has its path.
    assert!(report.messages[0].delay().unwrap() <= 25 * MS, "{report}");
}

#[test]
fn long_delay_is_no_outage() {
    // A geostationary satellite, and a delay that doubles while in use.
    let mut scenario = scenario(280 * MS);
    scenario.add_event(
        SECOND,
        change(0, PathDirection::Both, Change::Delay(290 * MS)),
    );
    let report = GatewayPair::new(&scenario, 1).run();
    report.assert_complete();
    let downs = report.sides[0].count(|event| matches!(event, Event::PathDown { .. }));
    assert_eq!(downs, 0, "{report}");
}
