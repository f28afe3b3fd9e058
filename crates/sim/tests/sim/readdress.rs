//! A gateway's address changes, as behind a NAT: the peer follows it after a challenge.

use std::time::Duration;

use keiro_core::Event;
use keiro_sim::{
    Arrivals, Change, GatewayPair, Length, PathDirection, PathSpec, Scenario, ScenarioEvent, Side,
    Traffic,
};
use keiro_units::Bandwidth;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn scenario(paths: usize, b_knows_a: bool) -> Scenario {
    let path = PathSpec::new(Bandwidth::from_mbit_per_second(20), 15 * MS);
    let mut scenario = Scenario::new(vec![path; paths]);
    scenario.b.knows_peer = b_knows_a;
    let app = scenario.add_message_app(Some(100 * MS), &[0]);
    for from in Side::BOTH {
        scenario.traffic.push(Traffic {
            from,
            app,
            made: Arrivals::Exponential {
                mean: 10 * MS,
                duration: 3 * SECOND,
            },
            length: Length::Uniform(1, 5000),
            start: Duration::ZERO,
        });
    }
    scenario
}

fn moved(event: &Event) -> bool {
    matches!(event, Event::PathMoved { .. })
}

#[test]
fn peer_that_moves_is_followed() {
    for (seed, b_knows_a) in [(1, true), (2, false), (3, true), (4, false)] {
        let mut scenario = scenario(1, b_knows_a);
        let readdress = ScenarioEvent::Readdress {
            side: Side::A,
            path: 0,
        };
        scenario.add_event(SECOND, readdress);
        let report = GatewayPair::new(&scenario, seed).run();
        report.assert_complete();
        let at = report.sides[1].first(moved);
        let at = at.unwrap_or_else(|| panic!("never followed\n{report}"));
        let took = at - (report.measured_from + SECOND);
        // Half a round trip until it is detected, one for the challenge, and some traffic to detect it by.
        assert!(took <= 200 * MS, "{took:?}\n{report}");
    }
}

#[test]
fn peer_that_moves_again_and_again_is_followed() {
    for seed in 0..3 {
        let mut scenario = scenario(2, true);
        for i in 1..10 {
            let readdress = ScenarioEvent::Readdress {
                side: Side::A,
                path: (i % 2) as usize,
            };
            scenario.add_event(i * 250 * MS, readdress);
        }
        GatewayPair::new(&scenario, seed).run().assert_complete();
    }
}

#[test]
fn peer_that_moved_while_its_path_was_down_is_found() {
    for seed in 0..3 {
        let mut scenario = scenario(1, seed % 2 == 0);
        let change = |change| ScenarioEvent::Path {
            path: 0,
            direction: PathDirection::Both,
            change,
        };
        scenario.add_event(SECOND, change(Change::Down));
        let readdress = ScenarioEvent::Readdress {
            side: Side::A,
            path: 0,
        };
        scenario.add_event(2 * SECOND, readdress);
        scenario.add_event(3 * SECOND, change(Change::Up));
        GatewayPair::new(&scenario, seed).run().assert_complete();
    }
}

#[test]
fn idle_peer_that_moves_is_followed() {
    let mut scenario = scenario(1, false);
    scenario.traffic.clear();
    let readdress = ScenarioEvent::Readdress {
        side: Side::A,
        path: 0,
    };
    scenario.add_event(SECOND, readdress);
    // Only B sends, and only after A's keepalive interval.
    scenario.traffic.push(Traffic {
        from: Side::B,
        app: 0,
        made: Arrivals::Every {
            interval: MS,
            count: 10,
        },
        length: Length::Fixed(100),
        start: 4 * SECOND,
    });
    let report = GatewayPair::new(&scenario, 1).run();
    report.assert_complete();
    for message in &report.messages {
        assert!(message.delay().unwrap() <= 20 * MS, "{message:?}\n{report}");
    }
}
