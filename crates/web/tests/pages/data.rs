//! What pages show is what the gateway says.

use keiro_testing::wait_until;
use serde_json::json;

use crate::{fake::FakeGateway, served::Served};

/// Every page of a gateway.
const PLACES: [&str; 13] = [
    "",
    "apps",
    "apps/A1",
    "apps/A1?span=day",
    "paths",
    "paths/wan0",
    "what-if",
    "what-if?lose=wan0",
    "tenants",
    "egress",
    "network",
    "events",
    "config",
];

fn assert_shows(page: &str, place: &str, texts: &[&str]) {
    for text in texts {
        assert!(page.contains(text), "{place} lacks `{text}`: {page}");
    }
}

/// Waits until a page has `texts`, after a change at the gateway.
fn await_shown(served: &Served, place: &str, texts: &[&str]) {
    let mut page = String::new();
    let mut lacks = || {
        page = served.page(place);
        texts.iter().find(|text| !page.contains(**text)).copied()
    };
    let what = format!("{place} has {texts:?}");
    wait_until(&what, || lacks().is_none());
}

#[test]
fn pages_show_the_numbers_of_the_gateway() {
    let served = Served::start();
    let shows = |place: &str, texts: &[&str]| assert_shows(&served.page(place), place, texts);
    // Of two targets one is met; the missed one is first.
    shows(
        "",
        &[
            "1 of 2",
            "2 of 2",
            "20.4 Mbit/s of 99.8 Mbit/s",
            "one way 10.7 ms",
            "loss 0.1 %",
            "25.7 ms",
        ],
    );
    let overview = served.page("");
    let (missed, met) = (
        overview.find(">A2<").unwrap(),
        overview.find(">A1<").unwrap(),
    );
    assert!(missed < met, "missed targets are not first");
    shows(
        "apps",
        &[
            "20.0 ms", "12.3 ms", "17.1 ms", "12.2 ms", "18.1 ms", "7.7 ms", "missed",
        ],
    );
    shows(
        "apps/A1",
        &[
            "A1 is on wan0, because it has the smallest delay: 12.3 ms, 7.7 ms below its target.",
            "10.9 ms",
            "a delay of <bdi>wan0</bdi> of 18.8 ms (now 10.7 ms) moves it to <bdi>wan1</bdi>",
            "1234",
        ],
    );
    shows("paths", &["99.8 Mbit/s", "8 Mbit/s", "0.9 ms", "1500 B"]);
    shows(
        "paths/wan0",
        &[
            "99.1 Mbit/s",
            "0.48 % of what was sent",
            "21.5 ms",
            "198.51.100.1:7600",
        ],
    );
    shows(
        "tenants",
        &[
            "blue",
            "50 %",
            "24 Mbit/s",
            "spoofed</bdi> 3",
            "delayed</bdi> 4",
            "90 kB",
        ],
    );
    shows(
        "network",
        &["osaka", "1 min 01 s ago", "2 of 2 paths are up"],
    );
    shows(
        "config",
        &["/etc/keiro/gateway.toml", "100 Mbit/s", "frugal"],
    );
    shows("about", &["0.1.0"]);
}

#[test]
fn a_spread_application_shows_the_share_of_each_path_and_is_on_all() {
    let served = Served::start();
    served.gateway().change("show_app", |answer| {
        answer["apps"][0]["spread"] =
            json!([{"path": "wan0", "sent_bytes": 290}, {"path": "wan1", "sent_bytes": 710}]);
    });
    let shares = "spread: <a href=\"/tokyo/paths/wan1\"><bdi>wan1</bdi></a> 71 %, \
                  <a href=\"/tokyo/paths/wan0\"><bdi>wan0</bdi></a> 29 %";
    for place in ["", "apps", "apps/A1", "paths/wan0", "paths/wan1"] {
        await_shown(&served, place, &[shares]);
    }
}

#[test]
fn paths_that_wait_for_their_peer_are_no_fault() {
    let served = Served::start();
    served.gateway().change("show_path", |answer| {
        let mut path = crate::fake::path("wan2", "validating");
        path["remote"] = json!(null);
        path["path_terms"] = json!({"role": "backup", "cost_per_gb": 4.0, "budget_spent": false});
        answer["paths"].as_array_mut().unwrap().push(path);
    });
    served
        .gateway()
        .change("status", |status| status["paths"] = json!(3));
    await_shown(
        &served,
        "",
        &[
            "<span class=\"good\">2 of 3</span>, 1 wait for their peer",
            "Wait for the peer: <a href=\"/tokyo/paths/wan2\">",
        ],
    );
    await_shown(
        &served,
        "paths",
        &["waits for the peer", "backup, 4.00 per GB"],
    );
    await_shown(
        &served,
        "paths/wan2",
        &["No packet has come by this path from <bdi>osaka</bdi>"],
    );
}

#[test]
fn what_is_supposed_is_planned_here_and_compared_with_the_present() {
    let served = Served::start();
    let page = served.page("what-if?lose=wan0");
    assert_shows(
        &page,
        "what-if",
        &[
            "Missed only then: ",
            "<code><bdi>lose wan0</bdi></code>",
            "1 application would move",
            "1 of 2 applications would miss",
        ],
    );
    // The gateway is asked once for what it plans with, and never to plan, whatever viewers suppose.
    for other in [
        "lose=wan0",
        "lose=wan1",
        "add=A1&count=10",
        "set=wan1&delay=1ms",
    ] {
        assert_shows(
            &served.page(&format!("what-if?{other}")),
            other,
            &["If it were so"],
        );
    }
    assert_eq!(served.gateway().asked("planner_input"), 1);
    assert_eq!(served.gateway().asked("plan"), 0);
    let page = served.page("what-if?set=wan0&rate=fast");
    assert_shows(&page, "what-if", &["role=\"alert\"", "fast"]);
    // Without a supposition there are some to click.
    assert_shows(
        &served.page("what-if"),
        "what-if",
        &["what-if?lose=wan1\"", "what-if?add=A2&amp;count=10\""],
    );
}

#[test]
fn a_planner_input_that_cannot_be_planned_with_is_reported() {
    let served = Served::start();
    served
        .gateway()
        .change("planner_input", |input| input["version"] = json!(2));
    assert_shows(
        &served.page("what-if?lose=wan0"),
        "what-if",
        &["version 2", "from one version"],
    );
}

#[test]
fn the_egress_page_shows_what_its_daemon_answers_or_that_it_does_not() {
    let served = Served::start();
    assert_shows(
        &served.page("egress"),
        "egress",
        &["does not answer", "systemctl status keiro-asbr"],
    );
    let listener =
        std::os::unix::net::UnixListener::bind(served.directory.path().join("egress.sock"))
            .unwrap();
    let daemon = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(&stream), &mut request).unwrap();
        assert_eq!(request, "\"status\"\n");
        let answer = json!({"status": {"role": "asbr", "asn": 65000, "router_id": "192.0.2.1",
            "neighbours": [{"name": "rr<b>", "address": "192.0.2.9", "asn": 65010, "state": "open_sent", "last_error": "hold timer",
                            "routes": {"vpnv6": 12, "ipv4": 30}}],
            "peers": [{"name": "transit-a", "sid": "fd00:51d::a", "routes": 42, "kernel": {"routes": 42, "entered": true}}]}});
        std::io::Write::write_all(&mut stream, answer.to_string().as_bytes()).unwrap();
    });
    let page = keiro_testing::eventually("the daemon's answer", || {
        let page = served.page("egress");
        page.contains("transit-a").then_some(page)
    });
    daemon.join().unwrap();
    assert_shows(
        &page,
        "egress",
        &[
            "rr&lt;b&gt;",
            "open sent",
            "65010",
            "42",
            "hold timer",
            "fd00:51d::a",
        ],
    );
}

#[test]
fn a_link_of_another_site_does_not_make_the_gateway_plan() {
    let served = Served::start();
    let from_elsewhere = |place: &str, mode: &str| {
        served.send(&format!(
            "GET /tokyo/{place} HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: {mode}\r\n\
             Connection: close\r\n\r\n"
        ))
    };
    assert_eq!(from_elsewhere("what-if?lose=wan0", "navigate").status, 200);
    // Images, scripts and followed pages of another site would use up what viewers share.
    for mode in ["no-cors", "cors"] {
        assert_eq!(from_elsewhere("live/", mode).status, 403);
        assert_eq!(from_elsewhere("apps", mode).status, 403);
    }
    assert_eq!(served.gateway().asked("plan"), 0);
}

#[test]
fn hostile_names_are_text_on_every_page() {
    let served = Served::start();
    let hostile = "<script>alert(1)</script>\u{202e}\u{7}\" onload=x '";
    let rename = |list: &'static str, fields: &'static [&'static str]| {
        move |answer: &mut serde_json::Value| {
            for entry in answer[list].as_array_mut().unwrap() {
                for field in fields {
                    entry[*field] = json!(hostile);
                }
            }
        }
    };
    let gateway = served.gateway();
    gateway.change(
        "show_path",
        rename("paths", &["name", "peer", "why", "local", "problem"]),
    );
    gateway.change(
        "show_app",
        rename("apps", &["name", "peer", "path", "no_forecast"]),
    );
    gateway.change("show_peer", rename("peers", &["name", "why"]));
    gateway.change(
        "show_tenant",
        rename(
            "tenants",
            &["name", "device", "controller", "device_problem"],
        ),
    );
    gateway.change("status", |status| {
        for field in ["name", "version", "config_file", "config_rejected"] {
            status[field] = json!(hostile);
        }
        status["problems"] = json!([hostile]);
    });
    gateway.change("explain", |answer| answer["text"] = json!(hostile));
    wait_until("events are followed", || gateway.monitors() > 0);
    gateway.publish(
        &json!({"time": "2026-01-31T12:00:00.000000Z", "event": "store_notice", "text": hostile}),
    );
    let name = percent_encoding::utf8_percent_encode(hostile, percent_encoding::NON_ALPHANUMERIC);
    let named = [
        format!("apps/{name}"),
        format!("paths/{name}"),
        format!("apps?search={name}"),
        format!("what-if?lose={name}"),
    ];
    let places = PLACES.iter().map(|place| (*place).to_owned()).chain(named);
    for place in places {
        let page = served.page(&place);
        assert!(!page.contains("<script>alert"), "{place}: {page}");
        assert!(
            !page.contains('\u{202e}'),
            "{place} keeps a mark of direction"
        );
        assert!(
            !page.contains("\" onload=x"),
            "{place} leaves an attribute: {page}"
        );
        // The content security policy would refuse them.
        assert!(
            !page.contains(" style=") && !page.contains("<style"),
            "{place} has a style inline"
        );
    }
}

#[test]
fn a_page_says_when_its_gateway_stops_and_when_it_is_back() {
    let mut served = Served::start();
    assert!(served.page("").contains("running"));
    served.gateway = None;
    let says_gone = |served: &Served| {
        let page = served.page("");
        page.contains("no gateway is running at")
            && page.contains("What is shown is")
            && page.contains("99.8 Mbit/s")
    };
    wait_until("the page says that the gateway is gone", || {
        says_gone(&served)
    });
    served.gateway = Some(FakeGateway::start(&served.socket()));
    wait_until("the page shows the gateway again", || {
        !served.page("").contains("no gateway is running")
    });
    wait_until("events are followed again", || {
        served
            .page("events")
            .contains("events are missing from here")
    });
}

#[test]
fn answers_of_another_version_are_reported_with_the_next_step() {
    let served = Served::start();
    served
        .gateway()
        .change("version", |version| version["protocol_version"] = json!(2));
    wait_until("the page names both versions", || {
        served
            .page("")
            .contains("speaks version 2 of the control protocol, these pages version 1")
    });
    served.gateway().answer(
        "show_app",
        json!({"response": "apps", "apps": [{"name": 7}]}),
    );
    wait_until("the page says that the answer cannot be read", || {
        served.page("").contains("answer cannot be read")
    });
    assert!(served.page("").contains("from one version"));
}

#[test]
fn a_gateway_without_anything_has_complete_pages() {
    let served = Served::start();
    let gateway = served.gateway();
    gateway.answer("show_app", json!({"response": "apps", "apps": []}));
    gateway.answer("show_path", json!({"response": "paths", "paths": []}));
    gateway.answer("show_peer", json!({"response": "peers", "peers": []}));
    gateway.answer("show_tenant", json!({"response": "tenants", "tenants": []}));
    wait_until("the overview is empty", || {
        served.page("").contains("No applications are configured")
    });
    assert!(served.page("tenants").contains("No tenants are configured"));
    assert!(
        served
            .page("apps/none")
            .contains("has no application of this name")
    );
}

#[test]
fn events_are_filtered_by_text_and_time() {
    let served = Served::start();
    wait_until("events are followed", || served.gateway().monitors() > 0);
    for (minute, path) in [(0, "wan0"), (30, "wan1")] {
        served.gateway().publish(
            &json!({"time": format!("2026-01-31T12:{minute:02}:00.000000Z"), "event": "path_down",
            "path": path, "peer": "osaka", "reason": "silent"}),
        );
    }
    wait_until("both are listed", || {
        served.page("events").contains("2 events")
    });
    let early = served.page("events?to=2026-01-31T12:10:00Z");
    assert_shows(
        &early,
        "events",
        &[
            "1 event.",
            "path wan0 to osaka is down: no packet was received",
        ],
    );
    assert!(!early.contains("path wan1 to osaka"), "{early}");
    assert_shows(&served.page("events?search=WAN1"), "events", &["1 event."]);
    assert_shows(
        &served.page("events?from=yesterday"),
        "events",
        &["is no time"],
    );
}
