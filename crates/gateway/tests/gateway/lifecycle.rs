//! Start, reload and stop: what is refused, what goes on, what is left behind.

use std::{fs, os::unix::fs::PermissionsExt, thread};

use crate::site::{Pair, Site, app, body, exists, next, next_event, wait_for};
use keiro_control::{
    message_socket::{Outcome, RefusedReason, UnknownReason},
    protocol::{EventKind, PeerState, Request, Response, client::ClientError},
};

fn pair() -> Pair {
    Pair::new(&app("M", "message", "b"), &app("M", "message", "a"))
}

fn refusal(site: &Site) -> String {
    match site.try_start() {
        Ok(_) => panic!("it started"),
        Err(error) => format!("{error:#}"),
    }
}

fn alone(name: &str, more: &str) -> Site {
    let site = Site::new(name);
    site.write(&format!("{}{more}", site.gateway(name, "")));
    site
}

#[test]
fn a_start_that_fails_says_why_and_leaves_nothing_behind() {
    let site = alone("a", "");
    let good = fs::read_to_string(site.file("gateway.toml")).unwrap();

    site.write("what = is this");
    assert!(
        refusal(&site).contains("gateway.toml:1"),
        "{}",
        refusal(&site)
    );
    site.write(&good.replace("name = \"p1\"\nlocal", "name = \"p1\"\nlocale = 1\nlocal"));
    assert!(refusal(&site).contains("`local`"), "{}", refusal(&site));
    site.write(&good.replace("private.key", "no-such.key"));
    assert!(
        refusal(&site).contains("keiro genkey"),
        "{}",
        refusal(&site)
    );
    site.write(&good.replace(
        "name = \"a\"",
        "name = \"a\"\nsocket_group = \"keiro-no-such-group\"",
    ));
    assert!(refusal(&site).contains("groupadd"), "{}", refusal(&site));

    site.write(&good);
    let key = site.file("private.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(refusal(&site).contains("chmod 600"), "{}", refusal(&site));
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();

    let taken = std::net::UdpSocket::bind((site.address, 7002)).unwrap();
    let text = refusal(&site);
    assert!(
        text.contains("p2") && text.contains("in use") && text.contains("ss -ulpn"),
        "{text}"
    );
    drop(taken);
    assert!(!exists(&site.file("control.sock")) && !exists(&site.file("message.sock")));
    drop(site.try_start().unwrap());
    assert!(!exists(&site.file("control.sock")) && !exists(&site.file("message.sock")));
}

#[test]
fn paths_whose_address_or_interface_is_missing_are_waited_for() {
    let mut site = alone("a", "");
    let good = fs::read_to_string(site.file("gateway.toml")).unwrap();
    let own = format!("{}:7001", site.address);
    site.write(&good.replace(&own, "203.0.113.7:7001"));
    site.start();
    let problems = site.status().path_problems;
    let expected = "path p1: no interface has the address 203.0.113.7; ";
    assert!(
        problems.len() == 1 && problems[0].starts_with(expected),
        "{problems:?}"
    );
    // A reload may bring another one, and mend the first.
    let interface = "interface = \"keiro-none\"";
    let other = good.replace(&format!("local = \"{}:7002\"", site.address), interface);
    site.write(&other);
    site.reload();
    let problems = site.status().path_problems;
    let expected = "path p2: interface keiro-none does not exist; ";
    assert!(
        problems.len() == 1 && problems[0].starts_with(expected),
        "{problems:?}"
    );
    site.write(&good);
    site.reload();
    assert_eq!(site.status().path_problems, [""; 0]);
}

/// `[aggregation]` tables that cannot be meant on a path of 1 Mbit/s, and what is said of them.
const BAD_AGGREGATION: &[(&str, &str)] = &[
    (
        "mode = \"fixed\"",
        "even S 512B, I 4ms, N 1 needs 1.024Mbit, and the path gives 1Mbit",
    ),
    ("loss_low = \"2%\"", "loss_low, 2%, is not below"),
    (
        "overflow_high = 1",
        "overflow_low, 4 per second, is not below",
    ),
    ("intervals = []", "intervals: no interval I is given"),
    ("copies_values = []", "copies_values: no number of copies N"),
    ("interval = \"0s\"", "interval: an interval I of zero"),
    (
        "size_min = \"20B\"",
        "size_min: a size S of 20B leaves no room",
    ),
];

#[test]
fn aggregation_that_cannot_be_is_refused_at_the_start_and_on_reload() {
    let mut site = Site::new("a");
    let plain = site.gateway("a", "").replace("200Mbit", "1Mbit");
    for (table, why) in BAD_AGGREGATION {
        site.write(&format!("{plain}[aggregation]\n{table}\n"));
        let reported = refusal(&site);
        assert!(reported.contains(why), "{table}: {reported}");
    }
    site.write(&format!("{plain}[aggregation]\ninterval = \"2ms\"\n"));
    site.start();
    for (table, why) in BAD_AGGREGATION {
        site.write(&format!("{plain}[aggregation]\n{table}\n"));
        let answer = site.client().request(&Request::Reload {});
        let Err(ClientError::Refused(error)) = answer else {
            panic!("{table}: {answer:?}")
        };
        assert!(error.message.contains(why), "{table}: {}", error.message);
        assert!(site.status().config_rejected.is_some());
    }
}

#[test]
fn a_peer_with_the_own_key_is_refused() {
    let site = alone("a", "");
    let peer = Site::peer("b", &site, false);
    site.write(&format!("{}{peer}", site.gateway("a", "")));
    assert!(
        refusal(&site).contains("own public key"),
        "{}",
        refusal(&site)
    );
}

#[test]
fn a_second_daemon_does_not_take_the_sockets_of_a_living_one() {
    let mut first = alone("a", "");
    first.start();
    let second = alone("b", "");
    let config = second.gateway("b", "");
    let theirs = |name: &str| second.file(name).display().to_string();
    let ours = |name: &str| first.file(name).display().to_string();
    second.write(&config.replace(&theirs("control.sock"), &ours("control.sock")));
    let text = refusal(&second);
    assert!(
        text.contains("running process") && text.contains("control_socket"),
        "{text}"
    );
    assert_eq!(first.status().name, "a");
    // What a killed one left is replaced.
    drop(std::os::unix::net::UnixListener::bind(second.file("control.sock")).unwrap());
    second.write(&config);
    drop(second.try_start().unwrap());
}

#[test]
fn the_sockets_are_for_owner_and_group_only() {
    let mut site = alone("a", "");
    site.start();
    for name in ["control.sock", "message.sock"] {
        let mode = fs::metadata(site.file(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o660, "{name}");
    }
}

#[test]
fn a_bad_reload_changes_nothing_and_is_reported() {
    let pair = pair();
    let mut monitor = pair.a.client();
    assert_eq!(
        monitor.request(&Request::Monitor {}).unwrap(),
        Response::Monitoring {}
    );
    let good = fs::read_to_string(pair.a.file("gateway.toml")).unwrap();
    let mut receiver = pair.b.receiver("M");
    let mut sender = pair.a.sender("M");
    let taken = std::net::UdpSocket::bind((pair.a.address, 7003)).unwrap();
    let bad = [
        "nonsense".to_owned(),
        good.replace("200Mbit", "200Mbits"),
        good.replace(
            &format!("{}:7002", pair.a.address),
            &taken.local_addr().unwrap().to_string(),
        ),
        good.replace("peer = \"b\"", "peer = \"c\""),
    ];
    for (number, text) in bad.iter().enumerate() {
        pair.a.write(text);
        let answer = pair.a.client().request(&Request::Reload {});
        let Err(ClientError::Refused(error)) = answer else {
            panic!("{answer:?}")
        };
        assert!(!error.message.is_empty());
        let rejected = next_event(&mut monitor, |kind| match kind {
            EventKind::ConfigRejected { problems, first } => Some((problems, first)),
            _ => None,
        });
        assert!(rejected.0 >= 1 && !rejected.1.is_empty());
        assert!(pair.a.status().config_rejected.is_some());
        sender.send(number as u64, b"still here");
        assert_eq!(next(&mut receiver).body, b"still here");
        assert_eq!(sender.ack().outcome, Outcome::Delivered);
    }
    pair.a.write(&good);
    pair.a.handle().reload();
    wait_for("the good configuration", || {
        pair.a.status().config_rejected.is_none()
    });
    next_event(&mut monitor, |kind| {
        matches!(kind, EventKind::Reloaded { .. }).then_some(())
    });
}

#[test]
fn reloads_lose_no_message() {
    const COUNT: u64 = 400;
    let pair = pair();
    let plain = fs::read_to_string(pair.a.file("gateway.toml")).unwrap();
    let changed = plain.replace("200Mbit", "150Mbit")
        + &app("N", "message", "b")
        + "latency_target = \"50ms\"\nlength = \"1kB\"\ninterval = \"10ms\"\n";
    let mut receiver = pair.b.receiver("M");
    let crate::site::Sender {
        mut writer,
        mut acks,
    } = pair.a.sender("M");
    let sending = thread::spawn(move || {
        for id in 0..COUNT {
            writer.send(id, &body(id, 20_000)).unwrap();
        }
        writer
    });
    let acking = thread::spawn(move || {
        for _ in 0..COUNT {
            assert_eq!(
                acks.next_ack().unwrap().unwrap().outcome,
                Outcome::Delivered
            );
        }
    });
    let mut reloads = 0;
    for received in 0..COUNT {
        if received % 40 == 20 {
            pair.a
                .write(if reloads % 2 == 0 { &changed } else { &plain });
            assert!(matches!(pair.a.reload(), Response::Reloaded { .. }));
            reloads += 1;
        }
        let message = next(&mut receiver);
        assert!(message.body == body(message.id, 20_000));
    }
    acking.join().unwrap();
    drop(sending.join().unwrap());
    assert_eq!(pair.a.app("M").stats.delivered_messages, COUNT);
}

#[test]
fn another_mtu_is_in_force_with_a_reload() {
    let pair = pair();
    let mtus = || match pair.a.ask(&Request::ShowPath { name: None }) {
        Response::Paths { paths } => paths
            .iter()
            .map(|path| path.stats.mtu_bytes)
            .collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    wait_for("the configured MTU", || mtus() == [1500, 1500]);
    let plain = fs::read_to_string(pair.a.file("gateway.toml")).unwrap();
    for (configured, mtu) in [("1400B", 1400), ("4000B", 4000)] {
        pair.a.write(&plain.replace("1500B", configured));
        match pair.a.reload() {
            Response::Reloaded { needs_restart, .. } => assert!(needs_restart.is_empty()),
            other => panic!("{other:?}"),
        }
        wait_for("the new MTU", || mtus() == [mtu, mtu]);
    }
}

#[test]
fn a_path_can_go_and_come_back_while_messages_flow() {
    let pair = pair();
    let both = fs::read_to_string(pair.a.file("gateway.toml")).unwrap();
    let start = both.find("[[path]]\nname = \"p2\"").unwrap();
    let end = both.find("[[peer]]").unwrap();
    let one = format!("{}{}", &both[..start], &both[end..])
        .replace(&format!(", p2 = \"{}:7002\"", pair.b.address), "");
    let mut receiver = pair.b.receiver("M");
    let mut sender = pair.a.sender("M");
    for round in 0..4u64 {
        pair.a.write(if round % 2 == 0 { &one } else { &both });
        let answer = pair.a.reload();
        assert!(matches!(answer, Response::Reloaded { .. }), "{answer:?}");
        for number in 0..20 {
            sender.send(round * 20 + number, &body(number, 5000));
        }
        for _ in 0..20 {
            next(&mut receiver);
            assert_eq!(sender.ack().outcome, Outcome::Delivered);
        }
        pair.a.wait_up(1 + round % 2);
    }
}

#[test]
fn a_removed_peer_loses_its_session_at_once() {
    let pair = pair();
    let mut sender = pair.b.sender("M");
    let with = fs::read_to_string(pair.a.file("gateway.toml")).unwrap();
    pair.a.write(&pair.a.gateway("a", ""));
    let Response::Reloaded { changes, .. } = pair.a.reload() else {
        panic!()
    };
    assert_eq!(changes.peers.removed, ["b"]);
    assert_eq!(pair.a.status().peers, 0);
    let down = || match pair.b.ask(&Request::ShowPeer {
        name: Some("a".into()),
    }) {
        Response::Peers { peers } => peers[0].state != PeerState::Up,
        other => panic!("{other:?}"),
    };
    wait_for("the other side to be notified", down);
    // What is sent meanwhile waits, and arrives when the peer is back.
    sender.send(1, b"patience");
    pair.a.write(&with);
    assert!(matches!(pair.a.reload(), Response::Reloaded { .. }));
    let mut receiver = pair.a.receiver("M");
    assert_eq!(next(&mut receiver).body, b"patience");
    assert_eq!(sender.ack().outcome, Outcome::Delivered);
}

#[test]
fn messages_to_a_removed_peer_end_as_such() {
    let pair = pair();
    let mut sender = pair.a.sender("M");
    // No receiver: it stays unacknowledged for some seconds.
    sender.send(1, b"too late");
    wait_for("the message to cross", || {
        pair.b.app("M").stats.received_messages == 1
    });
    pair.a.write(&pair.a.gateway("a", ""));
    assert!(matches!(pair.a.reload(), Response::Reloaded { .. }));
    // All of it had left, so the peer may give it to a receiver yet.
    assert_eq!(
        sender.ack().outcome,
        Outcome::Unknown(UnknownReason::PeerGone)
    );
    sender.send(2, b"and later");
    assert_eq!(
        sender.ack().outcome,
        Outcome::Refused(RefusedReason::AppRemoved)
    );
}

#[test]
fn stopping_delivers_what_was_taken_over_and_removes_the_sockets() {
    let mut pair = pair();
    let mut receiver = pair.b.receiver("M");
    let mut sender = pair.a.sender("M");
    for id in 0..50 {
        sender.send(id, &body(id, 50_000));
    }
    // Taken over is what the gateway has read.
    wait_for("the messages to be taken over", || {
        pair.a.app("M").stats.sent_messages == 50
    });
    let receiving = thread::spawn(move || {
        for _ in 0..50 {
            next(&mut receiver);
        }
    });
    pair.a.stop();
    receiving.join().unwrap();
    for _ in 0..50 {
        assert_eq!(sender.ack().outcome, Outcome::Delivered);
    }
    assert!(!exists(&pair.a.file("control.sock")) && !exists(&pair.a.file("message.sock")));
    wait_for("the peer to know", || pair.b.status().peers_up == 0);
    // And it comes back.
    pair.a.start();
    pair.a.wait_up(2);
    pair.b.wait_up(2);
}
