//! A message with a lifetime is delivered or expires at its end, and the sender gets that outcome.

use std::time::Duration;

use keiro_core::MessageOutcome;
use keiro_link::Loss;
use keiro_sim::{
    Arrivals, Change, GatewayPair, Length, PathDirection, PathSpec, Scenario, ScenarioEvent,
};
use keiro_units::{Bandwidth, Probability};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const LIFETIME: Duration = Duration::from_millis(200);

fn scenario() -> Scenario {
    let path = PathSpec::new(Bandwidth::from_mbit_per_second(10), 10 * MS);
    let mut scenario = Scenario::new(vec![path]);
    let app = scenario.add_message_app(Some(50 * MS), &[0]);
    scenario.apps[app].lifetime = Some(LIFETIME);
    let made = Arrivals::Exponential {
        mean: 10 * MS,
        duration: 3 * SECOND,
    };
    scenario.add_traffic(app, made, Length::Uniform(1, 8000));
    scenario
}

#[test]
fn messages_expire_while_the_path_is_down_and_only_then() {
    for seed in 0..3 {
        let mut scenario = scenario();
        for (at, change) in [(SECOND, Change::Down), (2 * SECOND, Change::Up)] {
            let what = ScenarioEvent::Path {
                path: 0,
                direction: PathDirection::Both,
                change,
            };
            scenario.add_event(at, what);
        }
        let report = GatewayPair::new(&scenario, seed).run();
        report.assert_complete();
        let from = report.measured_from;
        let mut expired = 0;
        for message in &report.messages {
            let made = message.made - from;
            match message.outcome {
                Some(MessageOutcome::Expired) => {
                    expired += 1;
                    let after = message.done.unwrap() - message.made;
                    assert!(
                        (LIFETIME..=LIFETIME + 5 * MS).contains(&after),
                        "given up after {after:?}\n{report}"
                    );
                    assert!(
                        made >= SECOND - 100 * MS && made <= 3 * SECOND,
                        "{message:?}\n{report}"
                    );
                }
                Some(MessageOutcome::Delivered) => {
                    assert!(
                        message.delay().unwrap() <= LIFETIME + 10 * MS,
                        "{message:?}"
                    );
                }
                outcome => panic!("{outcome:?}\n{report}"),
            }
        }
        assert!(expired >= 40, "{expired}\n{report}");
        let session = report.sides[0].session.as_ref().unwrap();
        assert_eq!(session.apps[0].stats.expired_messages, expired, "{report}");
    }
}

#[test]
fn expiry_under_loss_leaves_no_half_message_behind() {
    for seed in 0..3 {
        let mut scenario = scenario();
        scenario.paths[0] = scenario.paths[0].with(|link| {
            link.loss = Loss::Bernoulli(Probability::new(0.3).unwrap());
        });
        scenario.apps[0].lifetime = Some(60 * MS);
        let report = GatewayPair::new(&scenario, seed).run();
        report.assert_complete();
        let expired = report
            .messages
            .iter()
            .filter(|m| m.outcome == Some(MessageOutcome::Expired));
        assert!(expired.count() > 0, "{report}");
        let session = report.sides[1].session.as_ref().unwrap();
        assert_eq!(session.stats.reassembly_bytes, 0, "{report}");
    }
}

#[test]
fn messages_expire_before_anything_is_agreed() {
    let mut scenario = scenario();
    scenario.set_up = keiro_sim::SetUp::Skip;
    scenario.b.start = keiro_sim::Start::Never;
    let report = GatewayPair::new(&scenario, 1).run_for_measured(4 * SECOND);
    report.assert_safe();
    let expired = Some(MessageOutcome::Expired);
    assert!(
        report.messages.iter().all(|m| m.outcome == expired),
        "{report}"
    );
}
