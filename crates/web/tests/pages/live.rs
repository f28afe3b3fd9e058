//! Pages that are followed.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use keiro_testing::{eventually, wait_until};
use serde_json::{Value, json};

use crate::served::Served;

/// A viewer of a live page.
struct Viewer(BufReader<TcpStream>);

impl Viewer {
    fn open(served: &Served, place: &str) -> Self {
        let mut stream = served.connect();
        write!(
            stream,
            "GET /tokyo/live/{place} HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        .unwrap();
        Self(BufReader::new(stream))
    }

    fn status(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line
    }

    /// The next part: its identifier and its HTML.
    fn part(&mut self) -> (String, String) {
        eventually("a part of the page", || {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            let part: Value = serde_json::from_str(line.trim().strip_prefix("data: ")?).unwrap();
            let text = |field: &str| part[field].as_str().unwrap().to_owned();
            Some((text("id"), text("html")))
        })
    }
}

#[test]
fn what_changes_is_sent_and_what_does_not_is_not() {
    let served = Served::start();
    let mut viewer = Viewer::open(&served, "");
    assert!(viewer.status().contains("200"));
    let whole: BTreeSet<String> = (0..6).map(|_| viewer.part().0).collect();
    let parts = ["apps", "attention", "diagram", "events", "state", "summary"];
    assert_eq!(whole, parts.map(str::to_owned).into());
    served.gateway().change("show_path", |answer| {
        answer["paths"][0]["sent_rate_bits_per_second"] = json!(55_500_000);
    });
    let mut sent = BTreeSet::new();
    let html = eventually("the changed diagram", || {
        let (id, html) = viewer.part();
        sent.insert(id.clone());
        (id == "diagram").then_some(html)
    });
    assert!(html.contains("55.5 Mbit/s of 99.8 Mbit/s"), "{html}");
    assert!(
        !sent.contains("apps") && !sent.contains("summary"),
        "{sent:?}"
    );
}

#[test]
fn the_gateway_is_asked_once_for_all_viewers() {
    let served = Served::start();
    let begun = Instant::now();
    let mut viewers: Vec<Viewer> = (0..50).map(|_| Viewer::open(&served, "")).collect();
    for viewer in &mut viewers {
        assert!(viewer.status().contains("200"));
        viewer.part();
    }
    wait_until("some polls", || served.gateway().asked("status") >= 4);
    let polls = served.gateway().asked("status");
    // One a second, one at the start, and one under way.
    let most = begun.elapsed().as_secs() + 3;
    assert!(polls <= most, "{polls} polls in {:?}", begun.elapsed());
    assert_eq!(served.gateway().asked("show_tenant"), 0);
}

#[test]
fn viewers_beyond_the_limit_are_refused_with_the_reason() {
    let served = Served::start();
    let mut viewers: Vec<Viewer> = (0..64).map(|_| Viewer::open(&served, "events")).collect();
    for viewer in &mut viewers {
        assert!(viewer.status().contains("200"));
    }
    let reply = served.get("/tokyo/live/");
    assert_eq!(reply.status, 503, "{reply:?}");
    assert!(reply.body.contains("64 pages are followed"), "{reply:?}");
    assert!(served.page("").contains("64 of 64 live pages in use"));
    drop(viewers);
    wait_until("room for another", || {
        let mut viewer = Viewer::open(&served, "");
        viewer.status().contains("200")
    });
}

#[test]
fn a_client_that_sends_nothing_does_not_hold_up_others() {
    let served = Served::start();
    let silent: Vec<TcpStream> = (0..300).map(|_| served.connect()).collect();
    // Those beyond the limit of connections are refused at once.
    let refused = eventually("a refusal", || {
        silent.iter().find_map(|stream| {
            stream
                .set_read_timeout(Some(Duration::from_millis(1)))
                .unwrap();
            let mut line = String::new();
            BufReader::new(stream).read_line(&mut line).ok()?;
            Some(line)
        })
    });
    assert!(refused.contains("503"), "{refused}");
    drop(silent);
    wait_until("the page is served again", || served.send_or_none());
}
