//! Measurements are kept over a restart, planned with, and shown.

use std::{fs, time::Duration};

use keiro_control::{
    message_socket::client::{Connection, MessageReader},
    protocol::{
        AppHistory, ErrorCode, HistoryKind, HistoryState, PathHistory, Request, Response,
        client::ClientError,
    },
};

use crate::site::{Pair, Sender, Site, app, exists, next, wait_for};

const HOUR: u64 = 3600;

fn silent(peer: &str) -> String {
    app("S", "message", peer) + "latency_target = \"50ms\"\n"
}

/// Two gateways that record every second, as soon as they look; `S` says nothing of its workload.
fn pair() -> Pair {
    let (mut a, mut b) = (Site::new("a"), Site::new("b"));
    a.write(&Pair::config_a(&a, &b, &silent("b")));
    b.write(&Pair::config_b(&a, &b, &silent("a")));
    a.options.history_interval = Duration::ZERO;
    b.start();
    a.start();
    a.wait_up(2);
    b.wait_up(2);
    Pair { a, b }
}

impl Pair {
    /// Has `S` send `count` messages from `a` to `b`, one after the other.
    fn send(&self, count: u64, length: usize) {
        self.exchange().send(count, length);
    }

    fn exchange(&self) -> Exchange {
        Exchange {
            receiver: self.b.receiver("S"),
            sender: self.a.sender("S"),
        }
    }
}

/// Both ends of `S`.
struct Exchange {
    receiver: MessageReader<Connection>,
    sender: Sender,
}

impl Exchange {
    fn send(&mut self, count: u64, length: usize) {
        let body = vec![7; length];
        for number in 0..count {
            self.sender.send(number, &body);
            next(&mut self.receiver);
            self.sender.ack();
        }
    }
}

impl Site {
    /// Asked again where a busy disk does not answer in time, which it may take.
    fn history(&self, kind: HistoryKind, name: &str, past_seconds: u64) -> Response {
        let request = Request::History {
            kind,
            name: name.into(),
            past_seconds,
        };
        let mut answer = None;
        wait_for("an answer", || match self.client().request(&request) {
            Err(ClientError::Refused(error)) if error.message.contains("answer in time") => false,
            other => {
                answer = Some(other.unwrap_or_else(|error| panic!("{error}")));
                true
            }
        });
        answer.expect("it came")
    }

    fn path_history(&self, name: &str, past_seconds: u64) -> PathHistory {
        match self.history(HistoryKind::Path, name, past_seconds) {
            Response::PathHistory(history) => history,
            other => panic!("{other:?}"),
        }
    }

    fn app_history(&self, name: &str, past_seconds: u64) -> AppHistory {
        match self.history(HistoryKind::App, name, past_seconds) {
            Response::AppHistory(history) => history,
            other => panic!("{other:?}"),
        }
    }

    fn explanation(&self, app: &str) -> String {
        match self.ask(&Request::Explain { app: app.into() }) {
            Response::Explanation(explanation) => explanation.text,
            other => panic!("{other:?}"),
        }
    }

    fn length_is(&self, app: &str, length_bytes: f64) -> bool {
        self.app(app).length_bytes == Some(length_bytes)
    }
}

#[test]
fn a_workload_is_planned_with_after_a_restart_until_it_is_measured_anew() {
    let mut pair = pair();
    pair.send(150, 3000);
    wait_for("the measured workload", || pair.a.length_is("S", 3000.0));
    let interval = pair.a.app("S").workload.unwrap().interval_seconds;
    pair.a.stop();
    pair.a.start();
    wait_for("what was measured before the restart", || {
        pair.a.length_is("S", 3000.0)
    });
    let shown = pair.a.app("S");
    assert_eq!((shown.stats.sent_messages, shown.workload), (0, None));
    let remembered = shown.interval_seconds.unwrap();
    assert!(
        (remembered / interval - 1.0).abs() < 1e-3,
        "{remembered} {interval}"
    );
    let text = pair.a.explanation("S");
    assert!(
        text.contains("3 kB every") && text.contains("as measured before the restart"),
        "{text}"
    );
    assert!(!text.contains("a rough estimate"), "{text}");

    pair.a.wait_up(2);
    pair.send(300, 9000);
    wait_for("the new workload", || {
        let length = pair.a.app("S").length_bytes;
        length.is_some_and(|length| length > 8000.0)
    });
    let text = pair.a.explanation("S");
    assert!(text.contains("measured where not configured"), "{text}");
}

#[test]
fn what_was_measured_is_shown_minute_by_minute() {
    let pair = pair();
    let mut exchange = pair.exchange();
    exchange.send(150, 3000);
    // The test may run from one minute into the next.
    wait_for("the application's rows", || {
        let rows = pair.a.app_history("S", HOUR).rows;
        rows.iter().map(|row| row.count).sum::<u64>() == 150
    });
    let history = pair.a.app_history("S", HOUR);
    assert_eq!((history.name.as_str(), history.peer.as_str()), ("S", "b"));
    assert_eq!(history.row_seconds, 60);
    let last = history.rows.last().unwrap();
    assert_eq!(last.length_mean_bytes, Some(3000.0));
    assert!(last.interval_mean_seconds.is_some());
    // Delays are forgotten when a plan changes what an application gets.
    let mut last = last.clone();
    wait_for("the application's delays", || {
        exchange.send(10, 3000);
        last = pair.a.app_history("S", HOUR).rows.pop().unwrap();
        last.delay_mean_seconds.is_some()
    });
    let delays = [
        last.delay_p50_seconds,
        last.delay_p95_seconds,
        last.delay_p99_seconds,
    ];
    assert!(delays.is_sorted() && delays[0].is_some(), "{delays:?}");

    let history = pair.a.path_history("p1", HOUR);
    assert_eq!((history.name.as_str(), history.row_seconds), ("p1", 60));
    let last = history.rows.last().unwrap();
    assert_eq!(last.peer, "b");
    assert!(last.base_delay_seconds.is_some_and(|delay| delay < 0.05));
    assert_eq!(pair.a.status().history.state, HistoryState::Ok);

    // The present hour as far as it has come; the test may run from one into the next.
    let hours = pair.a.path_history("p1", 48 * HOUR);
    assert_eq!(hours.row_seconds, 3600);
    assert!((1..=2).contains(&hours.rows.len()), "{hours:?}");
    for (kind, name) in [(HistoryKind::Path, "X"), (HistoryKind::App, "p1")] {
        let request = Request::History {
            kind,
            name: name.into(),
            past_seconds: HOUR,
        };
        let answer = pair.a.client().request(&request);
        let Err(ClientError::Refused(error)) = answer else {
            panic!("{answer:?}")
        };
        assert_eq!(error.code, ErrorCode::NotFound);
    }
}

#[test]
fn a_history_that_cannot_be_read_is_kept_aside_and_said_so() {
    let mut site = Site::new("a");
    site.write(&site.gateway("a", ""));
    fs::write(site.file("history.db"), "garbage ".repeat(1000)).unwrap();
    site.start();
    wait_for("the history", || {
        site.status().history.state == HistoryState::Ok
    });
    let why = site.status().history.why.unwrap();
    assert!(why.contains("history.db.corrupt-"), "{why}");
    let kept = why
        .split_whitespace()
        .find(|word| word.contains(".corrupt-"))
        .unwrap();
    let kept = std::path::Path::new(kept.trim_end_matches(','));
    assert!(exists(kept), "{why}");
    site.stop();
    site.start();
    wait_for("the fresh history", || {
        site.status().history.state == HistoryState::Ok
    });
    assert_eq!(site.status().history.why, None);
}

#[test]
fn a_gateway_without_a_place_for_its_history_goes_on() {
    let mut pair = pair();
    let text = fs::read_to_string(pair.a.file("gateway.toml")).unwrap();
    let directory = pair.a.directory.path().display().to_string();
    pair.a.stop();
    // A file where the directory should be.
    pair.a.write(&text.replace(
        &format!("state_directory = \"{directory}\""),
        &format!("state_directory = \"{directory}/private.key\""),
    ));
    pair.a.start();
    wait_for("the failure", || {
        pair.a.status().history.state == HistoryState::Failed
    });
    let why = pair.a.status().history.why.unwrap();
    assert!(why.contains("private.key"), "{why}");
    pair.a.wait_up(2);
    pair.send(3, 1000);
    let request = Request::History {
        kind: HistoryKind::Path,
        name: "p1".into(),
        past_seconds: HOUR,
    };
    let answer = pair.a.client().request(&request);
    let Err(ClientError::Refused(error)) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(error.code, ErrorCode::Unavailable);
}

#[test]
fn a_history_that_is_not_wanted_is_not_written() {
    let mut site = Site::new("a");
    let text = site.gateway("a", "");
    site.options.history_interval = Duration::ZERO;
    site.write(&format!("{text}\n[history]\nenabled = false\n"));
    site.start();
    assert_eq!(site.status().history.state, HistoryState::Off);
    let request = Request::History {
        kind: HistoryKind::Path,
        name: "p1".into(),
        past_seconds: HOUR,
    };
    let answer = site.client().request(&request);
    let Err(ClientError::Refused(error)) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(error.code, ErrorCode::Unavailable);
    assert!(
        error.message.contains("enabled = false"),
        "{}",
        error.message
    );
    site.stop();
    assert!(!exists(&site.file("history.db")));
}
