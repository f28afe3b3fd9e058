//! A gateway's own address on a path changes or goes, and the gateway knows, as of an interface.

use std::time::Duration;

use keiro_core::{Event, PathDownReason, PathId};
use keiro_sim::{
    Arrivals, Dialogues, GatewayPair, Length, PathSpec, Report, Scenario, ScenarioEvent, Side,
    Traffic,
};
use keiro_units::Bandwidth;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Messages both ways over the first path for `duration`.
fn scenario(paths: usize, delay: Duration, duration: Duration) -> Scenario {
    let path = PathSpec::new(Bandwidth::from_mbit_per_second(20), delay);
    let mut scenario = Scenario::new(vec![path; paths]);
    // Only A's address changes, so B need not know it.
    scenario.b.knows_peer = false;
    let order: Vec<usize> = (0..paths).collect();
    let app = scenario.add_message_app(Some(100 * MS), &order);
    for from in Side::BOTH {
        scenario.traffic.push(Traffic {
            from,
            app,
            made: Arrivals::Exponential {
                mean: 10 * MS,
                duration,
            },
            length: Length::Uniform(1, 5000),
            start: Duration::ZERO,
        });
    }
    scenario
}

fn rebind(path: usize) -> ScenarioEvent {
    ScenarioEvent::Rebind {
        side: Side::A,
        path,
    }
}

fn unbind(path: usize) -> ScenarioEvent {
    ScenarioEvent::Unbind {
        side: Side::A,
        path,
    }
}

/// When A's first path came up after `at`, as time since then.
fn up_after(report: &Report, at: Duration) -> Option<Duration> {
    let at = report.measured_from + at;
    let events = report.sides[0].events.iter();
    let up = |event: &Event| {
        matches!(
            event,
            Event::PathUp {
                path: PathId(0),
                ..
            }
        )
    };
    let mut ups = events.filter(|(when, event)| *when >= at && up(event));
    ups.next().map(|(when, _)| *when - at)
}

#[test]
fn path_is_used_from_its_new_address_after_one_round_trip() {
    for delay in [MS, 25 * MS, 150 * MS] {
        for seed in 0..3 {
            let mut scenario = scenario(1, delay, 4 * SECOND);
            scenario.add_event(2 * SECOND, rebind(0));
            let report = GatewayPair::new(&scenario, seed).run();
            report.assert_complete();
            let took = up_after(&report, 2 * SECOND);
            let took = took.unwrap_or_else(|| panic!("never\n{report}"));
            // Some milliseconds for what waits in the queues of the link.
            assert!(took <= 2 * delay + 50 * MS, "{delay:?}: {took:?}\n{report}");
            for message in &report.messages {
                let delay_max = 6 * delay + 300 * MS;
                assert!(
                    message.delay().unwrap() <= delay_max,
                    "{message:?}\n{report}"
                );
            }
        }
    }
}

#[test]
fn path_without_an_address_is_left_at_once_and_found_again() {
    for seed in 0..3 {
        let mut scenario = scenario(2, 15 * MS, 6 * SECOND);
        scenario.add_event(2 * SECOND, unbind(0));
        scenario.add_event(4 * SECOND, rebind(0));
        let report = GatewayPair::new(&scenario, seed).run();
        report.assert_complete();
        let lost = report.measured_from + 2 * SECOND;
        let gone = |event: &Event| {
            let reason = PathDownReason::NoLocalAddress;
            matches!(event, Event::PathDown { path: PathId(0), reason: why, .. } if *why == reason)
        };
        assert_eq!(report.sides[0].first(gone), Some(lost), "{report}");
        let took = up_after(&report, 4 * SECOND).expect("it comes back");
        assert!(took <= 50 * MS, "{took:?}\n{report}");
    }
}

#[test]
fn gateway_that_starts_without_an_address_begins_when_it_has_one() {
    for paths in [1, 2] {
        let mut scenario = scenario(paths, 15 * MS, SECOND);
        scenario.set_up = keiro_sim::SetUp::Skip;
        scenario.add_event(Duration::ZERO, unbind(0));
        scenario.add_event(7 * SECOND, rebind(0));
        let report = GatewayPair::new(&scenario, 1).run();
        report.assert_complete();
        let took = up_after(&report, 7 * SECOND).expect("it comes up");
        assert!(took <= 200 * MS, "{took:?}\n{report}");
    }
}

/// Messages and streams over two paths whose addresses change by turns, every 20 ms.
#[test]
fn a_thousand_new_addresses_lose_nothing() {
    let duration = 21 * SECOND;
    let mut scenario = scenario(2, 5 * MS, duration);
    let app = scenario.add_stream_app(None, &[1, 0]);
    let made = Arrivals::Every {
        interval: 500 * MS,
        count: 40,
    };
    scenario
        .dialogues
        .push(Dialogues::new(app, made, 20, 1000, 20_000));
    for i in 0..1000 {
        let what = match i % 10 {
            8 => unbind(0),
            9 => rebind(0),
            i => rebind(i % 2),
        };
        scenario.add_event(i as u32 * 20 * MS, what);
    }
    let report = GatewayPair::new(&scenario, 1).run();
    report.assert_complete();
}
