//! An on-path attacker replays, truncates, forges and reflects: counted by reason, otherwise ignored.

use std::time::Duration;

use keiro_core::Event;
use keiro_link::Loss;
use keiro_sim::{
    Arrivals, Attack, GatewayPair, Length, PathSpec, Report, Scenario, ScenarioEvent, SetUp, Side,
    Traffic,
};
use keiro_units::{Bandwidth, Probability};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn scenario(attack: Attack) -> Scenario {
    let mut path = PathSpec::new(Bandwidth::from_mbit_per_second(20), 10 * MS);
    // The path has room for the injected packets: overload by the attacker is not tested here.
    path = path.with(|link| link.rate = None);
    path.attack = Some(attack);
    let mut scenario = Scenario::new(vec![path; 2]);
    let messages = scenario.add_message_app(Some(100 * MS), &[0, 1]);
    let datagrams = scenario.add_datagram_app(None, &[1]);
    for from in Side::BOTH {
        for app in [messages, datagrams] {
            scenario.traffic.push(Traffic {
                from,
                app,
                made: Arrivals::Exponential {
                    mean: 5 * MS,
                    duration: 2 * SECOND,
                },
                length: Length::Uniform(8, 3000),
                start: Duration::ZERO,
            });
        }
    }
    scenario
}

fn run(attack: Attack, seed: u64) -> Report {
    // The handshake is under attack too.
    let mut scenario = scenario(attack);
    scenario.set_up = SetUp::Skip;
    let report = GatewayPair::new(&scenario, seed).run();
    report.assert_complete();
    let lost = report.datagrams.iter().find(|d| d.delivered_at.is_none());
    // A datagram made before a path was up could have been dropped from the queue; there are none here.
    assert!(lost.is_none(), "{lost:?}\n{report}");
    report
}

fn often() -> Probability {
    Probability::new(0.3).unwrap()
}

#[test]
fn garbage_is_ignored_and_counted() {
    let attack = Attack {
        garbage: often(),
        ..Attack::default()
    };
    let report = run(attack, 1);
    let drops = report.drops(Side::B);
    assert!(drops["unknown_kind"] > 0, "{report}");
    let ignored: u64 = drops.values().sum();
    assert!(ignored >= 100, "{ignored}\n{report}");
}

#[test]
fn truncated_datagrams_are_ignored_and_counted() {
    let attack = Attack {
        truncated: often(),
        ..Attack::default()
    };
    let report = run(attack, 2);
    let drops = report.drops(Side::B);
    assert!(drops["truncated"] > 0, "{report}");
    assert!(drops["unauthentic"] > 0, "{report}");
}

#[test]
fn altered_datagrams_are_ignored_and_counted() {
    let attack = Attack {
        altered: often(),
        ..Attack::default()
    };
    let report = run(attack, 3);
    assert!(report.drops(Side::B)["unauthentic"] > 100, "{report}");
}

#[test]
fn replayed_datagrams_are_ignored_and_counted() {
    let attack = Attack {
        replayed: often(),
        ..Attack::default()
    };
    let report = run(attack, 4);
    assert!(report.drops(Side::B)["replayed"] > 100, "{report}");
}

#[test]
fn reflected_datagrams_are_ignored_and_counted() {
    let attack = Attack {
        reflected: often(),
        ..Attack::default()
    };
    let report = run(attack, 5);
    let ignored: u64 = report.drops(Side::A).values().sum();
    assert!(ignored > 100, "{report}");
}

#[test]
fn foreign_gateways_are_ignored_and_counted() {
    let attack = Attack {
        foreign: often(),
        ..Attack::default()
    };
    let report = run(attack, 6);
    let drops = report.drops(Side::B);
    assert!(
        drops["foreign_key"] + drops["rate_limited"] + drops["bad_mac"] > 100,
        "{report}"
    );
    assert!(drops["foreign_key"] > 0, "{report}");
}

#[test]
fn stolen_datagrams_do_not_lead_astray() {
    let attack = Attack {
        stolen: often(),
        ..Attack::default()
    };
    let report = run(attack, 7);
    for side in &report.sides {
        let moved = side.count(|event| matches!(event, Event::PathMoved { .. }));
        assert_eq!(moved, 0, "{report}");
    }
}

#[test]
fn all_attacks_at_once_are_survived() {
    let p = Probability::new(0.15).unwrap();
    let attack = Attack {
        garbage: p,
        truncated: p,
        altered: p,
        replayed: p,
        reflected: p,
        stolen: p,
        foreign: p,
    };
    for seed in 0..4 {
        run(attack, seed);
    }
}

#[test]
fn a_replay_from_an_earlier_incarnation_is_ignored() {
    let attack = Attack {
        replayed: Probability::ONE,
        ..Attack::default()
    };
    for seed in 0..2 {
        let mut scenario = scenario(attack);
        for (at, side) in [(500 * MS, Side::B), (SECOND, Side::A)] {
            let restart = ScenarioEvent::Restart {
                side,
                orderly: false,
                away: 50 * MS,
            };
            scenario.add_event(at, restart);
        }
        GatewayPair::new(&scenario, seed).run().assert_complete();
    }
}

#[test]
fn a_delayed_answer_from_an_earlier_incarnation_is_ignored() {
    // Handshakes of both sides cross and some answers are lost, so that requests stay open. After a restart
    // the attacker replays the old answers.
    let attack = Attack {
        replayed: often(),
        ..Attack::default()
    };
    for seed in 0..30 {
        let mut scenario = scenario(attack);
        for path in &mut scenario.paths {
            path.link.backward.loss = Loss::Bernoulli(Probability::new(0.4).unwrap());
        }
        scenario.set_up = SetUp::Skip;
        let restart = ScenarioEvent::Restart {
            side: Side::B,
            orderly: true,
            away: 20 * MS,
        };
        scenario.add_event(500 * MS, restart);
        GatewayPair::new(&scenario, seed).run().assert_complete();
    }
}
