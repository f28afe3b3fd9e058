//! A gateway stops and starts again, with or without notice: its peer connects to it again.

use std::time::Duration;

use keiro_core::{Event, MessageOutcome, UnknownCause};
use keiro_link::Loss;
use keiro_sim::{
    Arrivals, GatewayPair, Length, PathSpec, Report, Scenario, ScenarioEvent, Side, Traffic,
};
use keiro_units::{Bandwidth, Probability};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// Until then a peer that is gone is noticed: three round trips and 100 ms, and the handshake.
const NOTICED_MAX: Duration = Duration::from_millis(500);

/// Traffic in both directions for four seconds over two paths.
fn scenario() -> Scenario {
    let path = PathSpec::new(Bandwidth::from_mbit_per_second(20), 10 * MS);
    let mut scenario = Scenario::new(vec![path; 2]);
    let app = scenario.add_message_app(Some(100 * MS), &[0, 1]);
    for from in Side::BOTH {
        scenario.traffic.push(Traffic {
            from,
            app,
            made: Arrivals::Exponential {
                mean: 10 * MS,
                duration: 4 * SECOND,
            },
            length: Length::Uniform(1, 30_000),
            start: Duration::ZERO,
        });
    }
    scenario
}

fn restart(side: Side, orderly: bool, away: Duration) -> ScenarioEvent {
    ScenarioEvent::Restart {
        side,
        orderly,
        away,
    }
}

/// Messages of the side that stayed must arrive, but for those that were on their way at the restart. Unfinished
/// ones of the other side are lost.
fn assert_recovered(report: &Report, restarted: Side, restarted_at: Duration) {
    report.assert_complete();
    for message in &report.messages {
        let on_its_way = message.made < report.measured_from + restarted_at + NOTICED_MAX;
        match message.outcome {
            None => assert!(
                message.forgotten && message.from == restarted,
                "{message:?}\n{report}"
            ),
            Some(MessageOutcome::Unknown(cause)) => assert!(
                cause == UnknownCause::PeerRestarted && message.from != restarted && on_its_way,
                "{message:?}\n{report}"
            ),
            outcome => assert_eq!(
                outcome,
                Some(MessageOutcome::Delivered),
                "{message:?}\n{report}"
            ),
        }
    }
}

#[test]
fn peer_that_restarts_is_found_again() {
    for seed in 0..2 {
        for side in Side::BOTH {
            for orderly in [false, true] {
                for away in [Duration::ZERO, 50 * MS, SECOND] {
                    let mut scenario = scenario();
                    scenario.add_event(SECOND, restart(side, orderly, away));
                    let report = GatewayPair::new(&scenario, seed).run();
                    assert_recovered(&report, side, SECOND);
                    let ups = report.sides[side.other().index()]
                        .count(|event| matches!(event, Event::PeerUp { .. }));
                    assert!(ups >= 2, "{side:?} {orderly} {away:?}\n{report}");
                }
            }
        }
    }
}

#[test]
fn peer_that_cannot_call_is_called_again() {
    // B has no addresses: after its restart only A can initiate.
    for (seed, orderly) in [(1, false), (2, true), (3, false)] {
        let mut scenario = scenario();
        scenario.b.knows_peer = false;
        scenario.add_event(SECOND, restart(Side::B, orderly, 300 * MS));
        let report = GatewayPair::new(&scenario, seed).run();
        assert_recovered(&report, Side::B, SECOND);
    }
}

#[test]
fn restarts_of_both_are_survived() {
    for seed in 0..3 {
        let mut scenario = scenario();
        for (i, side) in (1..8).zip(Side::BOTH.into_iter().cycle()) {
            scenario.add_event(i * 500 * MS, restart(side, i % 3 == 0, i * 20 * MS));
        }
        GatewayPair::new(&scenario, seed).run().assert_complete();
    }
}

#[test]
fn restart_under_loss_is_survived() {
    for seed in 0..3 {
        let mut scenario = scenario();
        for path in &mut scenario.paths {
            *path = path.with(|link| {
                link.loss = Loss::Bernoulli(Probability::new(0.2).unwrap());
            });
        }
        scenario.add_event(SECOND, restart(Side::A, false, 100 * MS));
        scenario.add_event(2 * SECOND, restart(Side::B, false, 100 * MS));
        GatewayPair::new(&scenario, seed).run().assert_complete();
    }
}

#[test]
fn peer_that_loses_its_keys_before_a_path_came_up_is_called_again() {
    // B cannot initiate, and loses the keys that A still relies on.
    for lost_at in (5..120).step_by(5) {
        let mut scenario = scenario();
        for path in &mut scenario.paths {
            *path = path.with(|link| link.delay = 30 * MS);
        }
        scenario.b.knows_peer = false;
        scenario.set_up = keiro_sim::SetUp::Skip;
        let restart = restart(Side::B, false, Duration::ZERO);
        scenario.add_event(lost_at * MS, restart);
        let report = GatewayPair::new(&scenario, 1).run();
        assert_recovered(&report, Side::B, lost_at * MS);
    }
}
