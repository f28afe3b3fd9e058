//! Streams under faults: every byte once and in order, every end and every reset on both sides.

use std::time::Duration;

use keiro_link::{LinkConfig, Loss, Reorder};
use keiro_model::{Bandwidth, Probability};
use keiro_sim::{
    Change, Dialogues, GatewayPair, Happening, Length, Made, PathSpec, Reading, Report, Scenario,
    Side, StreamEnd, Traffic, Way,
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn probability(p: f64) -> Probability {
    Probability::new(p).unwrap()
}

/// Two paths and everything that streams do, in both directions, with messages and datagrams.
fn scenario() -> Scenario {
    let path = |delay| PathSpec::new(Bandwidth::from_mbit_per_second(20), delay);
    let mut scenario = Scenario::new(vec![path(10 * MS), path(30 * MS)]);
    let thin = scenario.add_stream_app(Some(50 * MS), &[0, 1]);
    let bulk = scenario.add_stream_app(None, &[0, 1]);
    let messages = scenario.add_message_app(Some(100 * MS), &[0, 1]);
    let datagrams = scenario.add_datagram_app(Some(50 * MS), &[0, 1]);
    let often = |mean| Made::Exponential {
        mean,
        duration: 3 * SECOND,
    };
    for from in Side::BOTH {
        scenario.dialogues.extend([
            Dialogues {
                from,
                clients: 4,
                ..Dialogues::new(thin, often(40 * MS), 3, 60, 200)
            },
            Dialogues {
                from,
                clients: 3,
                keeps_stream: true,
                end: StreamEnd::AfterRequest,
                ..Dialogues::new(thin, often(50 * MS), 2, 1, 3000)
            },
            Dialogues {
                from,
                clients: 2,
                end: StreamEnd::AfterRequest,
                ..Dialogues::new(bulk, often(400 * MS), 1, 40_000, 90_000)
            },
            Dialogues {
                from,
                clients: 2,
                end: StreamEnd::ClientResets(70 * MS),
                ..Dialogues::new(bulk, often(400 * MS), 50, 1000, 100)
            },
            Dialogues {
                from,
                clients: 2,
                end: StreamEnd::ServerResets(60 * MS),
                ..Dialogues::new(bulk, often(400 * MS), 50, 100, 1000)
            },
            Dialogues {
                from,
                server_reads: Reading::After(SECOND),
                client_reads: Reading::Slowly(50_000),
                ..Dialogues::once(bulk, 1, 60_000, 60_000)
            },
        ]);
        for (app, length) in [(messages, 5000), (datagrams, 500)] {
            scenario.traffic.push(Traffic {
                from,
                app,
                made: often(50 * MS),
                length: Length::Uniform(8, length),
                start: Duration::ZERO,
            });
        }
    }
    scenario
}

fn with_link(mut scenario: Scenario, change: impl Fn(&mut LinkConfig)) -> Scenario {
    for path in &mut scenario.paths {
        *path = path.with(&change);
    }
    scenario
}

/// Without restarts nothing fails but what is reset on purpose.
fn assert_all_done(report: &Report) {
    report.assert_complete();
    let undone = report
        .dialogues
        .iter()
        .find(|dialogue| dialogue.completes && dialogue.done.is_none());
    assert!(undone.is_none(), "{undone:?}\n{report}");
}

#[test]
fn all_kinds_of_dialogues_complete_over_faultless_paths() {
    for seed in 0..3 {
        let report = GatewayPair::new(&scenario(), seed).run();
        assert!(report.streams.len() > 100, "{report}");
        assert_all_done(&report);
    }
}
