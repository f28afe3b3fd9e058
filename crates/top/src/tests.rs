//! Pictures and keys, without a terminal.

use std::time::{Duration, SystemTime};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use keiro_control::protocol::{Event, EventKind, PathRef, Timestamp};
use ratatui_core::{buffer::Buffer, layout::Rect, style::Color};
use serde_json::{Value, json};

use crate::{
    data::{Data, EVENTS_MAX, Rates, Snapshot, Update},
    detail::wrapped,
    draw::{Scene, draw},
    rows,
    view::{Effect, Tab, View},
};

/// 2026-01-31 12:00:00 UTC.
fn noon() -> SystemTime {
    let noon: Timestamp = "2026-01-31T12:00:00Z".parse().unwrap();
    noon.0
}

fn after(seconds: u64) -> SystemTime {
    noon() + Duration::from_secs(seconds)
}

fn app(name: &str, target_met: Option<bool>, margin: f64, more: &Value) -> Value {
    let mut app = json!({
        "name": name, "class": "message", "peer": "osaka", "path": "wan0", "assigned_by": "planner",
        "latency_target_seconds": 0.05, "margin_seconds": margin, "sent_bytes": 1000,
    });
    let fields = app.as_object_mut().unwrap();
    if let Some(met) = target_met {
        fields.insert("target_met".to_owned(), met.into());
    }
    fields.extend(more.as_object().unwrap().clone());
    app
}

fn path(name: &str, state: &str) -> Value {
    json!({
        "name": name, "peer": "osaka", "state": state, "why": "answers", "state_seconds": 61.0,
        "local": "192.0.2.1:7600", "delay_configured": false, "srtt_seconds": 0.0123,
        "loss_ratio": 0.0125, "mtu_bytes": 1420, "sent_bytes": 5000, "received_bytes": 70,
    })
}

fn tenant(name: &str) -> Value {
    json!({
        "name": name, "id": 1, "controller": "keiro", "device": "blue0", "device_present": true,
        "device_state": "up", "prefixes": ["10.1.0.0/16"], "weight": 2.0, "share_ratio": 0.5,
        "dropped_packets": {"no_route": 7}, "peers": [],
    })
}

fn snapshot_at(taken: SystemTime, apps: &[Value], paths: &[Value]) -> Snapshot {
    let status = json!({
        "name": "tokyo", "version": "0.1.0", "public_key": "k", "started": "2026-01-31T11:00:00Z",
        "uptime_seconds": 3600.0, "config_file": "f", "config_loaded": "2026-01-31T11:00:00Z",
        "draining": false, "scheduler": "deadline", "planner": "exact", "tolerance_ratio": 0.0,
        "model": "valid", "paths_up": 1, "paths": 2, "peers_up": 1, "peers": 1, "apps": 3,
        "apps_with_target": 2, "apps_target_met": 1, "message_senders": 0, "message_receivers": 0,
        "problems": ["path wan1 is down: silent"],
    });
    let of = |values: &[Value]| Value::Array(values.to_vec());
    Snapshot {
        taken,
        status: serde_json::from_value(status).unwrap(),
        paths: serde_json::from_value(of(paths)).unwrap(),
        apps: serde_json::from_value(of(apps)).unwrap(),
        tenants: serde_json::from_value(of(&[tenant("blue")])).unwrap(),
        rates: Rates::default(),
    }
}

fn snapshot(apps: &[Value], paths: &[Value]) -> Snapshot {
    snapshot_at(noon(), apps, paths)
}

fn site() -> Snapshot {
    let delay = json!({"delay": {
        "count": 500, "mean_seconds": 0.021, "min_seconds": 0.01, "p50_seconds": 0.02,
        "p90_seconds": 0.025, "p95_seconds": 0.03, "p99_seconds": 0.0621,
        "p999_seconds": 0.07, "max_seconds": 0.08,
    }, "judged_by": "measurement"});
    let apps = [
        app(
            "backup",
            None,
            0.0,
            &json!({"latency_target_seconds": null}),
        ),
        app("orders", Some(true), 0.012, &json!({})),
        app("voice", Some(false), -0.0121, &delay),
    ];
    snapshot(&apps, &[path("wan0", "up"), path("wan1", "down")])
}

fn event(seconds: u64, kind: EventKind) -> Update {
    let time = Timestamp(after(seconds));
    Update::Event(Box::new(Event { time, kind }))
}

fn path_up() -> EventKind {
    EventKind::PathUp {
        on: PathRef {
            path: "wan0".to_owned(),
            peer: "osaka".to_owned(),
        },
        remote: "192.0.2.2:7600".to_owned(),
        rtt_seconds: 0.01,
    }
}

fn data(updates: Vec<Update>) -> Data {
    let mut data = Data::new();
    for update in updates {
        data.apply(noon(), update);
    }
    data
}

fn live() -> Data {
    data(vec![
        Update::Snapshot(Box::new(site())),
        event(5, path_up()),
    ])
}

fn picture(data: &Data, view: &View, size: (u16, u16), colour: bool) -> Buffer {
    let mut buffer = Buffer::empty(Rect::new(0, 0, size.0, size.1));
    let scene = Scene {
        data,
        view,
        held_events: 3,
        colour,
        now: after(75),
    };
    draw(&mut buffer, &scene);
    buffer
}

/// The lines of a picture, without the spaces at their ends.
fn lines(data: &Data, view: &View, size: (u16, u16)) -> Vec<String> {
    let buffer = picture(data, view, size, false);
    let line = |y| {
        let cells = (0..size.0).map(|x| buffer.cell((x, y)).unwrap().symbol());
        cells.collect::<String>().trim_end().to_owned()
    };
    (0..size.1).map(line).collect()
}

fn type_keys(view: &mut View, data: &Data, keys: &[KeyCode]) {
    for key in keys {
        let table = rows::shown(data, view);
        view.on_key(KeyEvent::new(*key, KeyModifiers::NONE), &table);
    }
}

fn chars(text: &str) -> Vec<KeyCode> {
    text.chars().map(KeyCode::Char).collect()
}

#[test]
fn a_spread_application_shows_the_share_of_each_path() {
    let spread = json!({"spread": [
        {"path": "wan0", "sent_bytes": 29}, {"path": "wan1", "sent_bytes": 71}, {"path": "wan2", "sent_bytes": 0},
    ]});
    let apps = [app("backup", None, 0.0, &spread)];
    let site = snapshot(&apps, &[path("wan0", "up"), path("wan1", "up")]);
    let data = data(vec![Update::Snapshot(Box::new(site))]);
    let shown = lines(&data, &View::default(), (100, 24));
    assert!(
        shown
            .iter()
            .any(|line| line.contains("wan1 71 %, wan0 29 %")),
        "{shown:#?}"
    );
}

#[test]
fn eighty_columns_show_missed_targets_first_and_what_is_wrong() {
    let shown = lines(&live(), &View::default(), (80, 24));
    let expected = [
        "tokyo  0.1.0, up 1 h 00 min  1/2 paths  1/1 peers  1/2 targets met  12:00:00 UTC",
        "path wan1 is down: silent",
        " 1 Applications  2 Paths  3 Tenants  4 Events",
        "application   met  path   target     p99  predicted    margin  sent  received",
        "voice         NO   wan0    50 ms   62.1 ms",
    ];
    assert_eq!(shown[..3], expected[..3], "{shown:#?}");
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words(&shown[4]).starts_with("voice NO wan0 50 ms 62.1 ms"),
        "{shown:#?}"
    );
    assert!(
        shown[5].starts_with("orders") && shown[6].starts_with("backup"),
        "{shown:#?}"
    );
    assert!(shown[23].starts_with("q quit"), "{shown:#?}");
}

#[test]
fn every_tab_is_drawn_at_every_size_with_and_without_a_snapshot() {
    for data in [live(), data(vec![Update::Lost("no gateway".to_owned())])] {
        for keys in ["1", "2", "3", "4", "?", "/x", " ", "sr"] {
            for detail in [false, true] {
                let mut view = View::default();
                type_keys(&mut view, &data, &chars(keys));
                view.has_detail = detail;
                for size in [
                    (0, 0),
                    (1, 1),
                    (20, 6),
                    (21, 7),
                    (79, 23),
                    (80, 24),
                    (300, 100),
                ] {
                    picture(&data, &view, size, true);
                }
            }
        }
    }
}

#[test]
fn without_colour_there_is_none_and_the_words_say_it_all() {
    let data = live();
    let plain = picture(&data, &View::default(), (80, 24), false);
    let is_plain =
        |cell: &ratatui_core::buffer::Cell| cell.fg == Color::Reset && cell.bg == Color::Reset;
    assert!(plain.content().iter().all(is_plain));
    let coloured = picture(&data, &View::default(), (80, 24), true);
    assert!(!coloured.content().iter().all(is_plain));
    let text = |buffer: &Buffer| {
        buffer
            .content()
            .iter()
            .map(|cell| cell.symbol().to_owned())
            .collect::<String>()
    };
    assert_eq!(text(&plain), text(&coloured));
}

#[test]
fn hostile_names_neither_drive_the_terminal_nor_reorder_the_line() {
    let name = "a\u{1b}[2J\u{202e}<script>\u{2066}\u{9b}\u{0}";
    let apps = [app(name, Some(false), -1.0, &json!({"peer": name}))];
    let mut snapshot = snapshot(&apps, &[path(name, "down")]);
    snapshot.status.name = name.to_owned();
    snapshot.status.problems = vec![name.to_owned()];
    let mut updates = vec![Update::Snapshot(Box::new(snapshot))];
    updates.push(Update::Explanation(name.to_owned(), Err(name.to_owned())));
    let mut data = data(updates);
    data.apply(noon(), Update::Lost(name.to_owned()));
    for tab in Tab::ALL {
        for has_detail in [false, true] {
            for filter in ["", "\u{202e}"] {
                let mut view = View::default();
                (view.tab, view.has_detail) = (tab, has_detail);
                view.filter = filter.to_owned();
                let buffer = picture(&data, &view, (200, 40), true);
                let is_harmless = |symbol: &str| {
                    let bad = |c: char| c.is_control() || ('\u{202a}'..='\u{2069}').contains(&c);
                    !symbol.contains(bad)
                };
                assert!(
                    buffer
                        .content()
                        .iter()
                        .all(|cell| is_harmless(cell.symbol())),
                    "{tab:?}"
                );
            }
        }
    }
}

#[test]
fn a_gateway_that_is_away_is_reported_beside_what_it_said_last() {
    let mut data = live();
    data.apply(after(15), Update::Lost("no gateway is running".to_owned()));
    data.apply(after(20), Update::Lost("no gateway is running".to_owned()));
    let shown = lines(&data, &View::default(), (120, 24));
    let expected =
        "NO ANSWER for 1 min 00 s: no gateway is running; below is what it said last; trying again";
    assert_eq!(shown[1], expected);
    assert!(shown[4].starts_with("voice"));
    data.apply(after(30), Update::Snapshot(Box::new(site())));
    let shown = lines(&data, &View::default(), (120, 24));
    assert_eq!(shown[1], "path wan1 is down: silent");
}

#[test]
fn rates_are_those_since_the_snapshot_before() {
    let before = snapshot(
        &[app("a", None, 0.0, &json!({"sent_bytes": 1000}))],
        &[path("wan0", "up")],
    );
    let again = json!({"sent_bytes": 126_000, "received_bytes": 250});
    let now = snapshot_at(
        after(2),
        &[app("a", None, 0.0, &again)],
        &[path("wan0", "up")],
    );
    let rates = now.clone().since(Some(&before)).rates;
    assert_eq!(
        (rates.apps["a"].sent, rates.apps["a"].received),
        (500_000.0, 1000.0)
    );
    let restarted = snapshot_at(
        after(4),
        &[app("a", None, 0.0, &json!({"sent_bytes": 0}))],
        &[],
    );
    assert!(restarted.since(Some(&now)).rates.apps.is_empty());
    assert!(before.since(None).rates.apps.is_empty());
}

#[test]
fn a_filter_is_typed_kept_and_taken_back() {
    let data = live();
    let mut view = View::default();
    type_keys(&mut view, &data, &chars("/VOIq"));
    assert!(view.is_filtering && view.filter == "VOIq");
    type_keys(&mut view, &data, &[KeyCode::Backspace, KeyCode::Enter]);
    let table = rows::shown(&data, &view);
    assert_eq!((table.rows.len(), table.rows[0].key.as_str()), (1, "voice"));
    type_keys(&mut view, &data, &[KeyCode::Esc]);
    assert_eq!(rows::shown(&data, &view).rows.len(), 3);
    let long = "x".repeat(1000);
    type_keys(&mut view, &data, &chars(&format!("/{long}")));
    assert_eq!(view.filter.len(), 64);
}

#[test]
fn rows_are_sorted_by_each_column_and_the_selection_stays_with_its_row() {
    let data = live();
    let mut view = View::default();
    type_keys(&mut view, &data, &[KeyCode::End]);
    let key = |view: &View| {
        let table = rows::shown(&data, view);
        table.rows[view.selected(&table).unwrap()].key.clone()
    };
    assert_eq!(key(&view), "backup");
    type_keys(&mut view, &data, &chars("s"));
    let first = |view: &View| rows::shown(&data, view).rows[0].key.clone();
    assert_eq!(
        (first(&view), key(&view)),
        ("backup".to_owned(), "backup".to_owned())
    );
    type_keys(&mut view, &data, &chars("r"));
    assert_eq!(
        (first(&view), key(&view)),
        ("voice".to_owned(), "backup".to_owned())
    );
    // By p99, which only one has: the others come last in both directions.
    type_keys(&mut view, &data, &chars("ssssr"));
    assert_eq!(first(&view), "voice");
    let columns = rows::shown(&data, &view).columns.len();
    type_keys(&mut view, &data, &chars(&"s".repeat(columns - 4)));
    assert_eq!(view.order().column, None);
}

#[test]
fn the_selected_application_is_explained_and_only_while_that_is_shown() {
    let mut data = live();
    let mut view = View::default();
    let explains = |view: &View, data: &Data| view.explains(&rows::shown(data, view));
    assert_eq!(explains(&view, &data), None);
    type_keys(&mut view, &data, &[KeyCode::Down, KeyCode::Enter]);
    assert_eq!(explains(&view, &data).as_deref(), Some("orders"));
    let explanation = json!({
        "app": "orders", "assigned_by": "planner", "model": "valid",
        "text": "orders is on wan0 because it is the faster one.",
        "candidates": [{"path": "wan1", "state": "down", "chosen": false, "verdict": "not up"}],
    });
    let explanation = serde_json::from_value(explanation).unwrap();
    data.apply(
        noon(),
        Update::Explanation("orders".to_owned(), Ok(Box::new(explanation))),
    );
    let shown = lines(&data, &view, (80, 24)).join("\n");
    for part in [
        "why orders is where it is",
        "because it is the faster one.",
        "wan1 (down): not up",
    ] {
        assert!(shown.contains(part), "{part}:\n{shown}");
    }
    type_keys(&mut view, &data, &chars("2"));
    assert_eq!(explains(&view, &data), None);
    let shown = lines(&data, &view, (80, 24)).join("\n");
    assert!(
        shown.contains("path wan1 to osaka") && shown.contains("mtu 1420 B"),
        "{shown}"
    );
}

#[test]
fn q_and_control_c_end_it_and_control_c_does_while_a_filter_is_typed() {
    let table = rows::shown(&live(), &View::default());
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    let q = KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE);
    let mut view = View::default();
    assert_eq!(view.on_key(q, &table), Effect::Quit);
    view.is_filtering = true;
    assert_eq!(view.on_key(q, &table), Effect::Nothing);
    assert_eq!(view.on_key(control_c, &table), Effect::Quit);
}

#[test]
fn events_are_bounded_and_the_newest_is_first() {
    let mut data = live();
    for second in 0..EVENTS_MAX as u64 + 500 {
        data.apply(noon(), event(second, path_up()));
    }
    assert_eq!(data.events.len(), EVENTS_MAX);
    assert_eq!(data.events[0].time, after(EVENTS_MAX as u64 + 499));
    let mut view = View::default();
    type_keys(&mut view, &data, &chars("4 "));
    let shown = lines(&data, &view, (80, 24));
    assert!(shown[2].ends_with("PAUSED, 3 new events"), "{shown:#?}");
    assert!(shown[4].contains("wan0 to osaka is up"), "{shown:#?}");
}

#[test]
fn text_is_broken_between_words_and_within_long_ones() {
    assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
    assert_eq!(wrapped("  over wan0", 7), ["  over", "  wan0"]);
    assert_eq!(wrapped("abcdefgh ij", 3), ["abc", "def", "gh", "ij"]);
    assert_eq!(wrapped("", 5), [""]);
}
