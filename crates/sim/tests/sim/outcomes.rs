//! Outcomes of messages are true and nothing is delivered twice while both gateways are killed again and again.

use std::{collections::BTreeMap, time::Duration};

use keiro_core::{MessageOutcome, UnknownCause};
use keiro_link::Loss;
use keiro_sim::{
    Arrivals, GatewayPair, Length, PathSpec, Receiver, Report, Scenario, ScenarioEvent, Side,
    Traffic,
};
use keiro_units::{Bandwidth, Probability};

const MS: Duration = Duration::from_millis(1);
/// Time from a message's arrival at a gateway until it takes it over: kills meet messages of every state.
const HANDOVER: Duration = Duration::from_millis(3);
const KILL_INTERVAL: Duration = Duration::from_millis(600);

/// `kills` of either gateway in turn, without notice and at instants that sweep all phases of the traffic, under
/// `count` messages of each direction.
fn scenario(kills: u32, count: u32, loss: f64) -> Scenario {
    let path = PathSpec::new(Bandwidth::from_mbit_per_second(100), 5 * MS);
    let path = path.with(|link| link.loss = Loss::Bernoulli(Probability::new(loss).unwrap()));
    let mut scenario = Scenario::new(vec![path; 2]);
    let app = scenario.add_message_app(Some(100 * MS), &[0, 1]);
    scenario.a.receiver = Receiver::TakesAfter(HANDOVER);
    scenario.b.receiver = Receiver::TakesAfter(HANDOVER);
    for from in Side::BOTH {
        scenario.traffic.push(Traffic {
            from,
            app,
            made: Arrivals::Every {
                interval: KILL_INTERVAL * kills / count,
                count,
            },
            // Long enough that no two are equal; some take several packets.
            length: Length::Uniform(16, 4000),
            start: Duration::ZERO,
        });
    }
    for (kill, side) in (0..kills).zip(Side::BOTH.into_iter().cycle()) {
        let swept = Duration::from_micros(u64::from(kill) * 1_370 % 60_000);
        let restart = ScenarioEvent::Restart {
            side,
            orderly: false,
            away: kill % 4 * 10 * MS,
        };
        scenario.add_event(kill * KILL_INTERVAL + 100 * MS + swept, restart);
    }
    scenario
}

/// How many messages ended how; those of a sender that was killed have no outcome.
fn tally(report: &Report) -> BTreeMap<&'static str, usize> {
    let mut tally = BTreeMap::new();
    for message in &report.messages {
        let outcome = match message.outcome {
            Some(MessageOutcome::Delivered) => "delivered",
            Some(MessageOutcome::Unknown(UnknownCause::PeerRestarted)) => {
                match message.delivered_at {
                    Some(_) => "unknown, delivered",
                    None => "unknown, lost",
                }
            }
            None if message.forgotten => "forgotten",
            _ => panic!("{message:?}"),
        };
        *tally.entry(outcome).or_default() += 1;
    }
    tally
}

/// The report itself checks each message: see `assert_safe` in docs/simulator.md.
fn assert_true_outcomes(loss: f64) {
    const SEEDS: u64 = 5;
    let mut total = BTreeMap::new();
    for seed in 0..SEEDS {
        let scenario = scenario(20, 6_000, loss);
        let report = GatewayPair::new(&scenario, seed).run();
        report.assert_complete();
        for (outcome, count) in tally(&report) {
            *total.entry(outcome).or_default() += count;
        }
    }
    println!("loss {loss}: {total:?}");
    assert_eq!(total.values().sum::<usize>(), 60_000);
    assert!(total["delivered"] > 45_000, "{total:?}");
    // Kills have met messages of every state: otherwise this proves nothing.
    for outcome in ["unknown, delivered", "unknown, lost", "forgotten"] {
        assert!(total[outcome] > 20, "{total:?}");
    }
}

#[test]
fn outcomes_are_true_and_nothing_arrives_twice_over_100_kills_under_60_000_messages() {
    assert_true_outcomes(0.0);
}

#[test]
fn outcomes_are_true_and_nothing_arrives_twice_over_100_kills_under_loss() {
    assert_true_outcomes(0.05);
}
