//! What the control socket and the metrics page show.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{Read, Write},
    net::TcpStream,
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        net::UnixStream,
        process::CommandExt,
    },
    process::Command,
    thread,
    time::{Duration, Instant},
};

use crate::site::{LIMIT, Pair, Site, app, next, next_event, wait_for};
use keiro_control::{
    metrics,
    protocol::{
        AssignedBy, ErrorCode, EventKind, JudgedBy, ModelState, MoveReason, PathState, PeerState,
        PlanSnapshot, Request, Response, WhatIf, client::ClientError,
    },
};
use keiro_planning::{PlanMode, ReceivedInput, Situation, paths_in_use};
use keiro_stats::{AppStats, HandshakeStats, PathSocketStats, PathStats, PeerStats, Stat, StatSet};

fn with_target(name: &str, latency_target: &str) -> String {
    app(name, "message", "b")
        + &format!(
            "latency_target = \"{latency_target}\"\nlength = \"10kB\"\ninterval = \"100ms\"\n"
        )
}

fn pair() -> Pair {
    let a = with_target("M", "50ms") + &with_target("N", "1s") + &app("D", "datagram", "b");
    let b = app("M", "message", "a") + &app("N", "message", "a") + &app("D", "datagram", "a");
    Pair::new(&a, &b)
}

#[test]
fn status_and_show_name_what_is_active() {
    let pair = pair();
    let status = pair.a.status();
    assert_eq!(
        (status.name.as_str(), status.paths_up, status.peers_up),
        ("a", 2, 1)
    );
    assert_eq!((status.apps, status.apps_with_target), (3, 2));
    assert!(status.handshakes.accepted_messages >= 1, "{status:?}");
    assert_eq!(status.public_key, pair.a.public_key.to_string());
    wait_for("the plan", || pair.a.status().apps_target_met == 2);
    assert_eq!(pair.a.status().model, ModelState::Unverified);

    let Response::Paths { paths } = pair.a.ask(&Request::ShowPath { name: None }) else {
        panic!()
    };
    assert_eq!(paths.len(), 2);
    for path in &paths {
        assert_eq!(
            (
                path.state,
                path.stats
                    .configured_rate
                    .map_or(0, |rate| rate.as_bits_per_second())
            ),
            (PathState::Up, 200_000_000)
        );
        assert!(path.stats.srtt.is_some() && path.delay_seconds.is_some());
        assert!(!path.delay_configured);
    }
    let one = Request::ShowPath {
        name: Some("p2".into()),
    };
    let Response::Paths { paths } = pair.a.ask(&one) else {
        panic!()
    };
    assert_eq!(
        paths
            .iter()
            .map(|path| path.name.as_str())
            .collect::<Vec<_>>(),
        ["p2"]
    );

    let Response::Peers { peers } = pair.b.ask(&Request::ShowPeer { name: None }) else {
        panic!()
    };
    assert_eq!(
        (peers[0].name.as_str(), peers[0].state),
        ("a", PeerState::Up)
    );
    assert!(peers[0].stats.handshake_age.is_some());

    let shown = pair.a.app("M");
    assert!(shown.path.is_some());
    assert_eq!(shown.assigned_by, AssignedBy::Planner);
    assert!(
        shown
            .stats
            .predicted_delay
            .is_some_and(|delay| delay < Duration::from_millis(50))
    );
    assert_eq!(shown.stats.target_met, Some(true));
}

#[test]
fn unknown_names_are_refused_with_a_hint() {
    let pair = pair();
    for request in [
        Request::ShowApp {
            name: Some("X".into()),
        },
        Request::ShowPath {
            name: Some("X".into()),
        },
        Request::ShowPeer {
            name: Some("X".into()),
        },
        Request::Explain { app: "X".into() },
        Request::Assign {
            app: "M".into(),
            path: Some("X".into()),
        },
    ] {
        let answer = pair.a.client().request(&request);
        let Err(ClientError::Refused(error)) = answer else {
            panic!("{answer:?}")
        };
        assert_eq!(error.code, ErrorCode::NotFound);
        assert!(error.hint.is_some_and(|hint| hint.contains("keiro show")));
    }
}

#[test]
fn an_assignment_moves_an_application_and_explain_says_so() {
    let pair = pair();
    wait_for("the plan", || {
        pair.a.app("M").assigned_by == AssignedBy::Planner
    });
    let before = pair.a.app("M").path.unwrap();
    let other = if before == "p1" { "p2" } else { "p1" };
    let mut monitor = pair.a.client();
    assert_eq!(
        monitor.request(&Request::Monitor {}).unwrap(),
        Response::Monitoring {}
    );
    let assign = |path: Option<&str>| Request::Assign {
        app: "M".into(),
        path: path.map(str::to_owned),
    };
    assert_eq!(pair.a.ask(&assign(Some(other))), Response::Done {});
    // The planner may move others meanwhile.
    let is_of_m = |kind: &EventKind| matches!(kind, EventKind::AppMoved { app, .. } if app == "M");
    let moved = next_event(&mut monitor, |kind| is_of_m(&kind).then_some(kind));
    let EventKind::AppMoved {
        app,
        from,
        to,
        reason,
        from_predicted_seconds,
        to_predicted_seconds,
        latency_target_seconds,
    } = moved
    else {
        panic!()
    };
    assert_eq!((app.as_str(), reason), ("M", MoveReason::Operator));
    assert_eq!(
        (from.as_deref(), to.as_deref()),
        (Some(before.as_str()), Some(other))
    );
    assert!(from_predicted_seconds.is_some() && to_predicted_seconds.is_some());
    assert_eq!(latency_target_seconds, Some(0.05));
    wait_for("the move", || {
        pair.a.app("M").path.as_deref() == Some(other)
    });
    assert_eq!(pair.a.app("M").assigned_by, AssignedBy::Operator);

    let explain = Request::Explain { app: "M".into() };
    let Response::Explanation(explained) = pair.a.ask(&explain) else {
        panic!()
    };
    assert_eq!(explained.path.as_deref(), Some(other));
    assert_eq!(explained.candidates.len(), 2);
    assert!(
        explained
            .candidates
            .iter()
            .all(|candidate| candidate.terms.is_some())
    );
    assert_eq!(
        explained
            .candidates
            .iter()
            .filter(|candidate| candidate.chosen)
            .count(),
        1
    );
    for part in [
        other,
        "operator",
        "T + L/(W - Q)",
        "50 ms",
        "to spare",
        before.as_str(),
    ] {
        assert!(
            explained.text.contains(part),
            "{part} in {}",
            explained.text
        );
    }
    assert!(explained.last_move.is_some());

    assert_eq!(pair.a.ask(&assign(None)), Response::Done {});
    wait_for("the planner's choice", || {
        pair.a.app("M").assigned_by == AssignedBy::Planner
    });
    // Messages go on meanwhile.
    let mut receiver = pair.b.receiver("M");
    let mut sender = pair.a.sender("M");
    sender.send(1, b"x");
    assert_eq!(next(&mut receiver).body, b"x");
}

#[test]
fn an_application_whose_paths_are_all_down_is_on_none() {
    let mut pair = pair();
    wait_for("the plan", || pair.a.status().apps_target_met == 2);
    let on = pair.a.app("M").path.unwrap();
    pair.b.stop();
    pair.a.wait_up(0);
    let shown = pair.a.app("M");
    assert_eq!(
        (shown.path, shown.assigned_by),
        (None, AssignedBy::Unassigned)
    );
    assert_eq!(shown.last_path.as_ref(), Some(&on));
    assert_eq!(shown.stats.target_met, Some(false));
    let explain = Request::Explain { app: "M".into() };
    let Response::Explanation(explained) = pair.a.ask(&explain) else {
        panic!()
    };
    let said = format!("M has no path: no path to b is up; its last path was {on}.");
    assert!(explained.text.starts_with(&said), "{}", explained.text);
    assert!(!explained.candidates.iter().any(|path| path.chosen));
    assert_eq!((explained.path, explained.aggregation), (None, None));
    pair.b.start();
    wait_for("a path", || pair.a.app("M").path.is_some());
    assert_eq!(pair.a.app("M").last_path, None);
}

#[test]
fn plan_and_apply_agree_with_what_is_active() {
    let pair = pair();
    wait_for("the plan", || pair.a.status().apps_target_met == 2);
    let Response::Plan(plan) = pair.a.ask(&Request::Plan {
        anew: false,
        what_if: Vec::new(),
    }) else {
        panic!()
    };
    assert!(plan.feasible && !plan.applied);
    assert_eq!((plan.changes, plan.unmet, plan.apps.len()), (0, 0, 3));
    for planned in &plan.apps {
        assert_eq!(planned.path, planned.path_now, "{}", planned.name);
    }
    let Response::Plan(plan) = pair.a.ask(&Request::Apply { anew: false }) else {
        panic!()
    };
    assert!(plan.applied);
    assert_eq!(plan.changes, 0);
}

#[test]
fn another_process_plans_for_a_supposition_as_the_gateway_does() {
    let pair = pair();
    wait_for("the plan", || pair.a.status().apps_target_met == 2);
    let path = pair.a.app("M").path.expect("a path is up");
    let what_if = vec![WhatIf::LosePath { path }];
    let essence = |plan: &PlanSnapshot| {
        let apps = plan.apps.iter();
        let apps = apps.map(|app| (app.path.clone(), app.path_now.clone(), app.target_met));
        (
            apps.collect::<Vec<_>>(),
            plan.newly_unmet.clone(),
            plan.unmet,
        )
    };
    // What is measured may change between the two answers.
    wait_for("equal plans", || {
        let Response::Plan(here) = pair.a.ask(&Request::Plan {
            anew: false,
            what_if: what_if.clone(),
        }) else {
            panic!()
        };
        let Response::PlannerInput(input) = pair.a.ask(&Request::PlannerInput {}) else {
            panic!()
        };
        let received = ReceivedInput::try_from(&*input).unwrap();
        let situation = Situation {
            config: &received.config,
            input: &received.input,
            forecast_state: &received.forecast_state,
            plan_mode: PlanMode::Revise,
            now: &paths_in_use(&received.config, &received.input),
        };
        let there = situation.plan_after(&what_if).unwrap();
        essence(&here) == essence(&there)
    });
}

#[test]
fn without_a_planner_a_plan_is_not_available() {
    let mut site = Site::new("a");
    site.write(&site.gateway("a", "planner = \"off\""));
    site.start();
    let answer = site.client().request(&Request::Plan {
        anew: false,
        what_if: Vec::new(),
    });
    let Err(ClientError::Refused(error)) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(error.code, ErrorCode::Unavailable);
}

#[test]
fn the_metrics_page_has_every_metric() {
    let mut pair = pair();
    let address = crate::site::at(pair.a.address, 7200);
    let text = fs::read_to_string(pair.a.file("gateway.toml")).unwrap();
    pair.a.stop();
    let text = text.replace(
        "name = \"a\"",
        &format!("name = \"a\"\nmetrics = \"{address}\""),
    );
    // One path has a budget of the month, the other one no configured rate, and so the figures of one that is found.
    let text = text.replacen("\nrate = ", "\nmonthly_budget = \"10GB\"\nrate = ", 1);
    let (before, last) = text.rsplit_once("\nrate = ").expect("a path's rate");
    let (_, after) = last.split_once('\n').expect("a line");
    pair.a.write(&format!("{before}\n{after}"));
    pair.a.start();
    pair.a.wait_up(2);
    let mut receiver = pair.b.receiver("M");
    let mut sender = pair.a.sender("M");
    sender.send(1, b"counted");
    next(&mut receiver);
    sender.ack();
    // Some numbers are known only after a while.
    let mut page = String::new();
    let missing = |page: &str| {
        let line = |m: &metrics::Metric| format!("# HELP {} {}", m.registered_name(), m.help);
        metrics::ALL
            .iter()
            // Nothing small is sent; another test has what that shows.
            .filter(|metric| metric.name != metrics::PATH_AGGREGATION_DECISIONS.name)
            // There is no tenant; the test of tunnels has one and its metrics.
            .filter(|metric| !metric.name.starts_with("keiro_tenant_"))
            .map(line)
            .chain(stat_lines())
            .find(|line| !page.contains(line))
    };
    wait_for("every metric", || {
        page = scrape(&address);
        missing(&page).is_none()
    });
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
    assert!(page.ends_with("# EOF\n"), "{page}");
    assert!(
        page.contains("keiro_app_delay_seconds_count{app=\"M\"} 1\n"),
        "{page}"
    );
    assert!(
        !page.contains("keiro_handshake_accepted_messages_total 0\n"),
        "{page}"
    );
    assert!(
        page.contains("keiro_path_up{path=\"p1\",peer=\"b\"} 1"),
        "{page}"
    );
    assert!(
        page.contains("keiro_app_delivered_messages_total{app=\"M\"} 1"),
        "{page}"
    );
}

/// Lines of the figures of paths and sockets on a page of metrics.
fn stat_lines() -> Vec<String> {
    let line = |stat: &Stat| format!("# HELP {} {}", stat.registered_metric(), stat.help);
    let path = PathStats::STATS.iter();
    let socket = PathSocketStats::STATS.iter();
    path
        // Nothing bounds the loopback interface, so the capacity is not found; a laboratory's test has it.
        .filter(|stat| {
            !matches!(
                stat.name,
                "cross_traffic_bits_per_second" | "available_bits_per_second"
            )
        })
        .chain(socket)
        .chain(HandshakeStats::STATS)
        .chain(PeerStats::STATS)
        // No application has a latency target here.
        .chain(AppStats::STATS.iter().filter(|stat| !stat.optional))
        .map(line)
        .collect()
}

/// A client that traces the packets to gateway b.
#[derive(Default)]
struct TraceClient {
    from: Option<u64>,
    names: BTreeSet<String>,
    /// By path, the numbers of packets sent.
    sent: BTreeMap<String, Vec<u64>>,
}

impl TraceClient {
    /// Fetches what is new; the response's header.
    fn fetch(&mut self, pair: &Pair) -> serde_json::Value {
        let request = Request::Qlog {
            peer: "b".to_owned(),
            from: self.from,
        };
        let (header, events) = match pair.a.ask(&request) {
            Response::Qlog {
                header,
                events,
                dropped_events: 0,
                next,
            } => {
                self.from = Some(next);
                (header, events)
            }
            other => panic!("{other:?}"),
        };
        for event in events {
            let path = event["path"].as_str().unwrap();
            assert!(["p1", "p2"].contains(&path), "{event}");
            let name = event["name"].as_str().unwrap();
            self.names.insert(name.to_owned());
            if name == "transport:packet_sent" {
                let number = event["data"]["header"]["packet_number"].as_u64().unwrap();
                self.sent.entry(path.to_owned()).or_default().push(number);
            }
        }
        header
    }

    fn has_everything(&self) -> bool {
        [
            "transport:packet_sent",
            "transport:packet_received",
            "transport:packets_acked",
            "recovery:metrics_updated",
        ]
        .iter()
        .all(|name| self.names.contains(*name))
    }
}

#[test]
fn packets_are_traced_for_every_client_that_asks() {
    let pair = pair();
    let mut clients = [TraceClient::default(), TraceClient::default()];
    // The first request begins the recording.
    for client in &mut clients {
        let header = client.fetch(&pair);
        assert_eq!(header["qlog_format"], "JSON-SEQ");
        assert_eq!(header["title"], "a to b");
        assert!(client.names.is_empty());
    }
    wait_for("packets", || {
        for client in &mut clients {
            client.fetch(&pair);
        }
        let sent = clients.iter().map(|client| &client.sent);
        clients.iter().all(TraceClient::has_everything)
            && sent.flat_map(BTreeMap::values).all(|sent| sent.len() > 3)
    });
    for client in &clients {
        for numbers in client.sent.values() {
            let is_next = |pair: &[u64]| pair[1] == pair[0] + 1;
            assert!(numbers.windows(2).all(is_next), "{numbers:?}");
        }
    }
    let answer = pair.a.client().request(&Request::Qlog {
        peer: "nowhere".to_owned(),
        from: None,
    });
    let Err(ClientError::Refused(error)) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(error.code, ErrorCode::NotFound);
}

pub(crate) fn scrape(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}

/// Gives the child process of the test below the socket to connect to.
const STRANGER: &str = "KEIRO_TEST_STRANGER_CONNECTS_TO";
/// User and group 65534 on Linux.
const NOBODY: u32 = 65_534;

#[test]
fn client_outside_the_group_is_refused_despite_the_mode() {
    if let Some(directory) = std::env::var_os(STRANGER) {
        let directory = std::path::PathBuf::from(directory);
        for socket in ["control.sock", "control-readonly.sock"] {
            let mut control = UnixStream::connect(directory.join(socket)).unwrap();
            let mut answer = String::new();
            control.read_to_string(&mut answer).unwrap();
            assert!(answer.contains("forbidden"), "{socket}: {answer}");
        }
        let name = keiro_control::config::Name::new("M").unwrap();
        let role = keiro_control::message_socket::Role::Send;
        let message = directory.join("message.sock");
        let refused =
            keiro_control::message_socket::client::Connection::unix(&message, role, &name);
        assert!(
            refused
                .unwrap_err()
                .to_string()
                .contains("members of the socket's group")
        );
        return;
    }
    let mut site = Site::new("a");
    site.write(&site.gateway("a", ""));
    site.start();
    if fs::metadata(site.file("control.sock")).unwrap().uid() != 0 {
        eprintln!("not run: becoming another user needs root");
        return;
    }
    fs::set_permissions(site.directory.path(), fs::Permissions::from_mode(0o711)).unwrap();
    for name in ["control.sock", "control-readonly.sock", "message.sock"] {
        fs::set_permissions(site.file(name), fs::Permissions::from_mode(0o666)).unwrap();
    }
    // The build directory may be closed to others.
    let program = site.file("stranger");
    keiro_testing::copy_program(std::env::current_exe().unwrap(), &program);
    let output = Command::new(&program)
        .args([
            "--exact",
            "control::client_outside_the_group_is_refused_despite_the_mode",
        ])
        .env(STRANGER, site.directory.path())
        .current_dir("/")
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

#[test]
fn application_without_a_declared_load_is_planned_by_measurement() {
    let silent = |peer: &str| app("S", "message", peer) + "latency_target = \"50ms\"\n";
    let pair = Pair::new(&silent("b"), &silent("a"));
    let explanation = || {
        let request = Request::Explain { app: "S".into() };
        let Response::Explanation(explanation) = pair.a.ask(&request) else {
            panic!()
        };
        explanation.text
    };
    let shown = pair.a.app("S");
    assert_eq!(shown.length_bytes, Some(1000.0));
    assert!(
        explanation().contains("a rough estimate"),
        "{}",
        explanation()
    );
    // What is a guess is no prediction.
    assert_eq!(
        (shown.stats.predicted_delay, shown.margin_seconds),
        (None, None)
    );
    let why = shown.no_forecast.unwrap_or_default();
    assert!(why.starts_with("too little data: 0 of 100"), "{why}");
    let Response::Plan(plan) = pair.a.ask(&Request::Plan {
        anew: false,
        what_if: Vec::new(),
    }) else {
        panic!()
    };
    let planned = &plan.apps[0];
    let terms = planned.terms.unwrap();
    assert_eq!(
        (terms.predicted_delay_seconds, planned.margin_seconds),
        (None, None)
    );
    assert!(terms.paper_delay_seconds.is_some());
    assert_eq!(
        (planned.judged_by, planned.target_met_at_p99),
        (Some(JudgedBy::Equation3), None)
    );
    assert_eq!(plan.delay_sum_seconds, None);
    assert!(
        explanation().contains("Latency target of 50 ms: met by equation 3 alone"),
        "{}",
        explanation()
    );
    let mut receiver = pair.b.receiver("S");
    let mut sender = pair.a.sender("S");
    let body = vec![7; 3000];
    for number in 0..150 {
        sender.send(number, &body);
        next(&mut receiver);
        sender.ack();
    }
    wait_for("the measured workload", || {
        pair.a.app("S").length_bytes == Some(3000.0)
    });
    let shown = pair.a.app("S");
    let seen = shown.workload.unwrap();
    // 149 intervals, less those that a busy machine makes look like pauses.
    assert!((100..=149).contains(&seen.count), "{seen:?}");
    assert_eq!(seen.length_bytes, 3000.0);
    assert!(seen.length_variation_ratio < 1e-6, "{seen:?}");
    let text = explanation();
    assert!(
        text.contains("3 kB every") && text.contains(", measured where not configured."),
        "{text}"
    );
}

#[test]
fn show_plan_and_explain_print_the_same_forecast_of_now() {
    let silent = |peer: &str| app("S", "message", peer) + "latency_target = \"50ms\"\n";
    let pair = Pair::new(&silent("b"), &silent("a"));
    let mut receiver = pair.b.receiver("S");
    let mut sender = pair.a.sender("S");
    // Long enough that the forecast gets a number after the plan that the measured workload makes.
    let mut number = 0;
    let limit = Instant::now() + 3 * LIMIT;
    while pair.a.app("S").stats.predicted_delay.is_none() {
        let shown = pair.a.app("S");
        assert!(Instant::now() < limit, "no forecast: {shown:?}");
        sender.send(number, &[7; 3000]);
        next(&mut receiver);
        sender.ack();
        number += 1;
        // The pace of the application, not a wait for anything.
        thread::sleep(Duration::from_millis(80));
    }
    wait_for("the same answer twice in a row", || {
        let before = pair.a.app("S");
        let request = Request::Plan {
            anew: false,
            what_if: Vec::new(),
        };
        let Response::Plan(plan) = pair.a.ask(&request) else {
            panic!()
        };
        let request = Request::Explain { app: "S".into() };
        let Response::Explanation(explained) = pair.a.ask(&request) else {
            panic!()
        };
        let after = pair.a.app("S");
        let reported = (before.stats.predicted_delay, before.predicted);
        if reported != (after.stats.predicted_delay, after.predicted)
            || before.no_forecast != after.no_forecast
            || plan.changes > 0
        {
            return false;
        }
        let chosen = explained.candidates.iter().find(|path| path.chosen);
        for terms in [plan.apps[0].terms, chosen.and_then(|path| path.terms)] {
            let terms = terms.expect("a path");
            let predicted = reported.0.map(|delay| delay.as_secs_f64());
            assert_eq!(
                (terms.predicted_delay_seconds, terms.predicted),
                (predicted, reported.1)
            );
        }
        assert_eq!(before.no_forecast, plan.apps[0].no_forecast);
        true
    });
}
