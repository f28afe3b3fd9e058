//! Gateways that gave up the privileges that they were started with.

use std::{fs, os::unix::fs::MetadataExt};

use keiro_control::protocol::EventKind;
use keiro_linux::process::SIGTERM;

use crate::{
    gateways::{Gateways, TOPOLOGY, tenant},
    harness::{eventually, run, shown},
    threads::{ADMIN, BIND, NOBODY, assert_reduced, threads},
};

fn blue_and_red(own: usize) -> String {
    tenant(own, "blue", 1, "table = 101\n") + &tenant(own, "red", 2, "table = 102\n")
}

/// Applications with a listener at a port below 1024, as the gateway's own user may not open it.
fn low_port(own: usize) -> String {
    let listener = match own {
        0 => "[[listener]]\napp = \"low\"\nudp = \"127.0.0.1:99\"\n",
        _ => "[[forward]]\napp = \"low\"\nudp = \"127.0.0.1:9\"\nallow_local = true\n",
    };
    let peer = ["b", "a"][own];
    format!("[[app]]\nname = \"low\"\nclass = \"datagram\"\npeer = \"{peer}\"\n{listener}")
}

#[test]
fn every_thread_gives_up_user_and_capabilities_and_all_goes_on_working() {
    let blue = |own: usize, text: String| text + &tenant(own, "blue", 1, "table = 101\n");
    let mut gateways = Gateways::start_as("nobody", TOPOLOGY, "400Mbit", blue);
    for own in [0, 1] {
        assert_reduced(gateways.pid(own), NOBODY, ADMIN | BIND, ADMIN | BIND);
    }
    let names: Vec<String> = threads(gateways.pid(0)).into_keys().collect();
    for name in ["main", "data", "store", "history", "drops"] {
        let found = names.iter().any(|found| found.starts_with(name));
        assert!(found, "no {name} in {names:?}");
    }
    gateways.ping(0, "10.2.0.1", Some("t-blue"));
    // Another device with addresses, routes and rules, and a low port.
    for own in [0, 1] {
        let file = gateways.sites[own].path("gateway.toml");
        let before = fs::read_to_string(&file).expect("a file");
        let (base, _) = before.split_once("[tenant.blue]").expect("a tenant");
        fs::write(
            &file,
            format!("{base}{}{}", low_port(own), blue_and_red(own)),
        )
        .expect("written");
        let socket = shown(&gateways.sites[own].path("control.sock"));
        let ran = run(["reload", "--socket", &socket]).expect_code(0);
        assert!(!ran.stderr.contains("tries again"), "{ran:#?}");
    }
    for device in ["t-blue", "t-red"] {
        gateways.ping(0, "fd00:2::1", Some(device));
    }
    let mut monitor = gateways.monitor(0);
    gateways.ip(0, "link delete t-red");
    monitor.next(|kind| matches!(kind, EventKind::DeviceRestored { .. }).then_some(()));
    gateways.ping(0, "fd00:2::1", Some("t-red"));
    for own in [0, 1] {
        assert_reduced(gateways.pid(own), NOBODY, ADMIN | BIND, ADMIN | BIND);
    }
    let state = gateways.sites[0].path("state");
    for kept in ["history.db", "plan"] {
        let owner = eventually("it is kept", || fs::metadata(state.join(kept)).ok());
        assert_eq!(owner.uid(), NOBODY, "{kept}");
    }
    let status = gateways.ask(0, &["status"]).expect("an answer");
    assert_eq!(status["history"]["state"], "ok", "{status:#}");
    gateways.stop(0, SIGTERM);
    for socket in ["control.sock", "message.sock"] {
        assert!(!gateways.sites[0].path(socket).exists(), "{socket} stays");
    }
    gateways.restart(0);
    gateways.ping(0, "fd00:2::1", Some("t-red"));
    for own in [0, 1] {
        let log = fs::read_to_string(gateways.sites[own].path("log")).expect("a log");
        for trouble in ["cannot", "denied", "not permitted"] {
            assert!(!log.contains(trouble), "{log}");
        }
    }
}

/// What a machine without the user does, and `--user root`.
#[test]
fn a_gateway_that_stays_root_keeps_as_few_capabilities() {
    let text = |own: usize, text: String| text + &tenant(own, "blue", 1, "table = 101\n");
    let gateways = Gateways::start_as("root", TOPOLOGY, "400Mbit", text);
    assert_reduced(gateways.pid(0), 0, ADMIN | BIND, ADMIN | BIND);
}
