//! The protocol's JSON against its documentation, its schema and other versions.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    thread,
};

use keiro_stats::*;
use keiro_stats_export::documentation::{check_tables, code_list, reasons_table, stats_table};
use serde_json::{Value, json};

use super::{client::*, *};

/// The documentation's JSON examples, one object per line in ```json blocks.
fn documented() -> Vec<Value> {
    let document = include_str!("../../../../docs/control-api.md");
    let mut values = Vec::new();
    for block in document.split("```json\n").skip(1) {
        let block = block.split("```").next().unwrap_or_default();
        for value in serde_json::Deserializer::from_str(block).into_iter::<Value>() {
            values.push(value.unwrap_or_else(|e| panic!("{e} in {block}")));
        }
    }
    values
}

#[test]
fn the_documentations_examples_are_of_this_protocol() {
    let mut names = Vec::new();
    for example in documented() {
        let (name, read) = if let Some(name) = example.get("request") {
            let request = Request::parse(example.to_string().as_bytes());
            (
                name.clone(),
                serde_json::to_value(request.unwrap_or_else(|e| panic!("{e}: {example}"))),
            )
        } else if let Some(name) = example.get("response") {
            let response: Result<Response, _> = serde_json::from_value(example.clone());
            (
                name.clone(),
                serde_json::to_value(response.unwrap_or_else(|e| panic!("{e}: {example}"))),
            )
        } else {
            let event: Result<Event, _> = serde_json::from_value(example.clone());
            let event = event.unwrap_or_else(|e| panic!("{e}: {example}"));
            (json!(event.kind.name()), serde_json::to_value(event))
        };
        assert_only_figures_are_added(&read.unwrap(), &example);
        names.push(name.as_str().unwrap_or_default().to_owned());
    }
    // Every request, response and event occurs.
    let schema = schema();
    for kind in ["Request", "Response", "EventKind"] {
        let tag = if kind == "EventKind" {
            "event".to_owned()
        } else {
            kind.to_lowercase()
        };
        let mut expected = Vec::new();
        constants(&schema["$defs"][kind], &tag, &mut expected);
        assert!(expected.len() > 5, "{kind}: {expected:?}");
        if kind == "EventKind" {
            let known = expected.iter().filter(|name| *name != "unknown");
            let known: std::collections::BTreeSet<&str> = known.map(String::as_str).collect();
            assert_eq!(known, EventKind::NAMES.into());
        }
        for name in expected.iter().filter(|n| *n != "unknown") {
            assert!(
                names.contains(name),
                "docs/control-api.md has no example of {kind} {name}"
            );
        }
    }
}

/// An example has nothing that the types do not know, and lacks nothing that they would add, except
/// figures: these are declared in `keiro_stats` and listed in the tables, and are 0 when read.
fn assert_only_figures_are_added(read: &Value, example: &Value) {
    match (read, example) {
        (Value::Object(read), Value::Object(example)) => {
            for name in example.keys() {
                assert!(read.contains_key(name), "no type has `{name}`: {example:?}");
            }
            for (name, read) in read {
                match example.get(name) {
                    Some(example) => assert_only_figures_are_added(read, example),
                    None => assert!(
                        *read == json!(0) || *read == json!(0.0) || *read == json!(false),
                        "the example lacks `{name}`: {example:?}"
                    ),
                }
            }
        }
        (Value::Array(read), Value::Array(example)) => {
            assert_eq!(read.len(), example.len());
            for (read, example) in read.iter().zip(example) {
                assert_only_figures_are_added(read, example);
            }
        }
        _ => assert_eq!(read, example),
    }
}

/// The constants of the property `tag` anywhere below `schema`.
fn constants(schema: &Value, tag: &str, found: &mut Vec<String>) {
    if let Some(name) = schema["properties"][tag]["const"].as_str() {
        found.push(name.to_owned());
    }
    match schema {
        Value::Object(map) => map.values().for_each(|v| constants(v, tag, found)),
        Value::Array(list) => list.iter().for_each(|v| constants(v, tag, found)),
        _ => {}
    }
}

fn schema() -> Value {
    let mut generator = schemars::SchemaGenerator::default();
    let one_of = [
        generator.subschema_for::<Request>(),
        generator.subschema_for::<Response>(),
        generator.subschema_for::<Event>(),
        generator.subschema_for::<EventKind>(),
    ];
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Keiro control protocol, version 1",
        "description": "One line is one request (client), response or event (gateway). Readers \
                        of responses and events ignore fields that they do not know.",
        "anyOf": &one_of[..3],
        "$defs": generator.take_definitions(true),
    })
}

#[test]
fn the_published_schema_is_that_of_the_types() {
    let generated = format!("{:#}\n", schema());
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/control-api.schema.json"
    );
    if std::env::var_os("KEIRO_UPDATE").is_some() {
        std::fs::write(file, &generated).unwrap();
    }
    let published = std::fs::read_to_string(file).unwrap_or_default();
    assert!(
        generated == published,
        "docs/control-api.schema.json is not the schema of the types; if the change is meant, \
         write it with KEIRO_UPDATE=1 cargo test -p keiro-control schema"
    );
}

#[test]
fn the_documentations_tables_are_the_declared_figures() {
    let mut others = String::from("| metric | kind | labels | |\n|---|---|---|---|\n");
    for metric in crate::metrics::ALL {
        let kind = format!("{:?}", metric.kind).to_lowercase();
        others.push_str(&format!(
            "| `{}` | {kind} | {} | {} |\n",
            metric.name,
            code_list(metric.labels),
            metric.help
        ));
    }
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/control-api.md");
    check_tables(
        file,
        &[
            ("stats: HandshakeStats", stats_table::<HandshakeStats>()),
            ("stats: PathStats", stats_table::<PathStats>()),
            ("stats: CapacityStats", stats_table::<CapacityStats>()),
            ("stats: PathSocketStats", stats_table::<PathSocketStats>()),
            ("stats: AggregationStats", stats_table::<AggregationStats>()),
            ("stats: PeerStats", stats_table::<PeerStats>()),
            ("stats: AppStats", stats_table::<AppStats>()),
            ("stats: UdpListenerStats", stats_table::<UdpListenerStats>()),
            ("stats: UdpForwardStats", stats_table::<UdpForwardStats>()),
            ("stats: TcpListenerStats", stats_table::<TcpListenerStats>()),
            ("stats: TcpForwardStats", stats_table::<TcpForwardStats>()),
            ("stats: TenantStats", stats_table::<TenantStats>()),
            (
                "stats: MessageClientStats",
                stats_table::<MessageClientStats>(),
            ),
            ("stats: TenantPeerStats", stats_table::<TenantPeerStats>()),
            ("stats: TenantPathStats", stats_table::<TenantPathStats>()),
            (
                "reasons: DropCounters",
                reasons_table(&DropCounters::REASONS),
            ),
            ("reasons: DeviceDrops", reasons_table(&DeviceDrops::REASONS)),
            ("reasons: LinkPackets", reasons_table(&LinkPackets::REASONS)),
            ("reasons: PacketDrops", reasons_table(&PacketDrops::REASONS)),
            ("metrics", others),
        ],
    );
}

#[test]
fn numbers_say_their_unit() {
    // Counts of things, ports and the like have no unit.
    let counts = [
        "oldest",
        "newest",
        "copies",
        "count",
        "outages",
        "paths",
        "paths_up",
        "peers",
        "peers_up",
        "apps",
        "apps_with_target",
        "apps_target_met",
        "apps_target_measured",
        "apps_target_by_equation3",
        "tenants",
        "tenants_with_device",
        "message_senders",
        "message_receivers",
        "senders",
        "receivers",
        "handshakes_started",
        "handshakes_completed",
        "key_changes",
        "changes",
        "unmet",
        "problems",
        "protocol_version",
        "from",
        "next",
        "dropped_packets",
        "plan_revision",
        "column",
        "id",
        "weight",
        "table",
        "port",
        "source_port",
        "destination_port",
        "protocol",
        "flows",
        "version",
        "messages",
        // Positions in lists.
        "path",
        "peer",
        "uplink",
        "pinned",
        "assigned",
        "path_now",
        "unread_handshakes",
    ];
    let units = [
        "_seconds",
        "_bytes",
        "_bits_per_second",
        "_ratio",
        "_per_gb",
        "_packets",
        "_connections",
        "_batches",
        "_messages",
        "_events",
        "_aggregates",
        "_copies",
        "_cookies",
        "_initiations",
        "_version_replies",
        "_streams",
        "_gaps",
    ];
    let mut stack = vec![schema()];
    let mut numbers = 0;
    while let Some(value) = stack.pop() {
        if let Some(properties) = value["properties"].as_object() {
            for (name, property) in properties {
                let kind = property["type"].to_string();
                if kind.contains("number") || kind.contains("integer") {
                    numbers += 1;
                    let has_unit = units.iter().any(|u| name.ends_with(u));
                    assert!(
                        has_unit || counts.contains(&name.as_str()),
                        "{name} has no unit"
                    );
                }
            }
        }
        match value {
            Value::Object(map) => stack.extend(map.into_iter().map(|(_, v)| v)),
            Value::Array(list) => stack.extend(list),
            _ => {}
        }
    }
    assert!(numbers > 50, "{numbers}");
}

#[test]
fn requests_with_unknown_fields_or_names_are_refused() {
    for line in [
        "",
        "status",
        "[]",
        "{}",
        "{\"request\": \"stop\"}",
        "{\"request\": \"apply\", \"dry_run\": true}",
        "{\"request\": \"explain\"}",
        "{\"request\": \"explain\", \"app\": 1}",
        "{\"request\": \"show_path\", \"nmae\": \"path1\"}",
        "{\"request\": \"status\"} {}",
    ] {
        let error = Request::parse(line.as_bytes()).expect_err(line);
        assert_eq!(error.code, ErrorCode::BadRequest);
        assert!(error.to_string().starts_with("not a request: "), "{error}");
        assert!(
            error
                .to_string()
                .ends_with("as in {\"request\": \"status\"}"),
            "{error}"
        );
    }
    assert_eq!(
        Request::parse(b"{\"request\":\"status\"}"),
        Ok(Request::Status {})
    );
    let deep = "[".repeat(100_000);
    assert!(Request::parse(deep.as_bytes()).is_err());
}

#[test]
fn clients_ignore_what_newer_gateways_add() {
    let event: Event = serde_json::from_value(json!({
        "time": "2026-01-31T12:00:00.000000Z", "event": "key_changed", "peer": "osaka",
        "key_changes": 3, "colour": "green"
    }))
    .unwrap();
    assert_eq!(
        event.kind,
        EventKind::KeyChanged {
            peer: "osaka".to_owned(),
            key_changes: 3
        }
    );
    let event: Event = serde_json::from_value(json!({
        "time": "2026-01-31T12:00:00Z", "event": "tenant_added", "tenant": 3
    }))
    .unwrap();
    assert_eq!(event.kind, EventKind::Unknown);
    let event: Event = serde_json::from_value(json!({
        "time": "2026-01-31T12:00:00Z", "event": "path_down", "path": "p", "peer": "o",
        "reason": "sunspots", "new": []
    }))
    .unwrap();
    let EventKind::PathDown { on, reason, .. } = event.kind else {
        panic!("{event:?}");
    };
    assert_eq!((on.path.as_str(), reason), ("p", DownReason::Unknown));
    let response: Response = serde_json::from_value(json!({
        "response": "version", "version": "9.0.0", "protocol_version": 1, "more": true
    }))
    .unwrap();
    assert!(matches!(response, Response::Version(v) if v.version == "9.0.0"));
}

#[test]
fn times_are_rfc_3339_in_utc() {
    let time: Timestamp = "2026-01-31T12:34:56.789012Z".parse().unwrap();
    assert_eq!(time.to_string(), "2026-01-31T12:34:56.789012Z");
    let epoch = std::time::SystemTime::UNIX_EPOCH;
    let before = Timestamp(epoch - std::time::Duration::from_secs(1));
    assert_eq!(before.to_string(), "1970-01-01T00:00:00.000000Z");
    let far = Timestamp(epoch + std::time::Duration::from_secs(1 << 40));
    assert_eq!(far.to_string(), "9999-12-31T23:59:59.000000Z");
}

#[test]
fn a_client_gets_answers_refusals_and_events() {
    let (near, mut far) = UnixStream::pair().unwrap();
    let gateway = thread::spawn(move || {
        let mut lines = LineDecoder::new(REQUEST_BYTES_MAX);
        let mut requests = Vec::new();
        let mut chunk = [0; 64];
        while requests.len() < 3 {
            let n = far.read(&mut chunk).unwrap();
            lines.push(&chunk[..n]);
            while let Some(line) = lines.next_line().unwrap() {
                let request = Request::parse(line).unwrap();
                let answer = match &request {
                    Request::Reload {} => Response::Reloaded {
                        changes: Box::default(),
                        needs_restart: vec![],
                        problems: vec![],
                        warnings: vec![],
                    },
                    Request::Explain { app } => {
                        let message = format!("there is no application `{app}`");
                        let hint = "`keiro show app` lists them";
                        Response::Error(ErrorResponse::new(ErrorCode::NotFound, message, hint))
                    }
                    _ => Response::Monitoring {},
                };
                requests.push(request);
                far.write_all(&encode_line(&answer)).unwrap();
            }
        }
        for key_changes in 0..2 {
            let kind = EventKind::KeyChanged {
                peer: "osaka".to_owned(),
                key_changes,
            };
            let time = Timestamp(std::time::SystemTime::UNIX_EPOCH);
            far.write_all(&encode_line(&Event { time, kind })).unwrap();
        }
    });
    let mut client = Client::new(near);
    assert!(matches!(
        client.request(&Request::Reload {}),
        Ok(Response::Reloaded { .. })
    ));
    let error = client
        .request(&Request::Explain {
            app: "A9".to_owned(),
        })
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "there is no application `A9`; `keiro show app` lists them"
    );
    assert_eq!(
        client.request(&Request::Monitor {}).unwrap(),
        Response::Monitoring {}
    );
    assert_eq!(client.next_event().unwrap().kind.name(), "key_changed");
    client.next_event().unwrap();
    assert!(matches!(client.next_event(), Err(ClientError::Closed)));
    gateway.join().unwrap();
}
