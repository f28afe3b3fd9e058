//! UDP in at one gateway, out at the other, and back.

use std::net::UdpSocket;

use crate::site::{LIMIT, Pair, Site, app, at, next, next_event, wait_for};
use keiro_control::protocol::{EventKind, Request, Response};

/// `a` has a listener of `D` at its port 7100; `b` lets `D` out to `destination`.
fn pair(class: &str, destination: &UdpSocket) -> Pair {
    let (mut a, mut b) = (Site::new("a"), Site::new("b"));
    let listener = format!(
        "[[listener]]\napp = \"D\"\nudp = \"{}\"\n",
        at(a.address, 7100)
    );
    let to = destination.local_addr().unwrap();
    let forward = format!("[[forward]]\napp = \"D\"\nudp = \"{to}\"\nallow_local = true\n");
    a.write(&Pair::config_a(&a, &b, &(app("D", class, "b") + &listener)));
    b.write(&Pair::config_b(&a, &b, &(app("D", class, "a") + &forward)));
    b.start();
    a.start();
    a.wait_up(2);
    b.wait_up(2);
    Pair { a, b }
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket
}

#[test]
fn every_client_gets_the_answers_to_its_own_datagrams() {
    let server = socket();
    let pair = pair("datagram", &server);
    let listener = at(pair.a.address, 7100);
    let clients: Vec<UdpSocket> = (0..5).map(|_| socket()).collect();
    let mut buffer = [0; 65_536];
    for round in 0..3u8 {
        for (number, client) in clients.iter().enumerate() {
            client.send_to(&[number as u8, round], &listener).unwrap();
            let (length, from) = server.recv_from(&mut buffer).unwrap();
            assert_eq!(buffer[..length], [number as u8, round]);
            server.send_to(&[number as u8, round, 99], from).unwrap();
        }
        for (number, client) in clients.iter().enumerate() {
            let (length, from) = client.recv_from(&mut buffer).unwrap();
            assert_eq!(buffer[..length], [number as u8, round, 99]);
            assert_eq!(from.to_string(), listener);
        }
    }
    let shown = pair.a.app("D");
    assert_eq!(shown.listeners[0].stats.received_packets, 15);
    assert_eq!(shown.listeners[0].stats.refused_packets, 0);
    assert_eq!(pair.b.app("D").forward.unwrap().stats.sent_packets, 15);
}

#[test]
fn a_datagram_longer_than_the_mtu_arrives_whole() {
    let server = socket();
    let pair = pair("datagram", &server);
    let client = socket();
    let mut buffer = vec![0; 65_536];
    for length in [1400, 1472, 1473, 9000, 60_000] {
        let sent = crate::site::body(length as u64, length);
        client.send_to(&sent, at(pair.a.address, 7100)).unwrap();
        let (got, from) = server.recv_from(&mut buffer).unwrap();
        assert!(buffer[..got] == sent, "{length} bytes");
        server.send_to(&sent, from).unwrap();
        let got = client.recv(&mut buffer).unwrap();
        assert!(buffer[..got] == sent, "{length} bytes back");
    }
}

#[test]
fn an_empty_datagram_arrives_as_one() {
    let server = socket();
    let pair = pair("datagram", &server);
    let client = socket();
    let mut buffer = [0; 16];
    client.send_to(&[], at(pair.a.address, 7100)).unwrap();
    let (length, from) = server.recv_from(&mut buffer).unwrap();
    assert_eq!(length, 0);
    server.send_to(&[], from).unwrap();
    assert_eq!(client.recv(&mut buffer).unwrap(), 0);
    let listener = &pair.a.app("D").listeners[0];
    assert_eq!(
        (
            listener.stats.received_packets,
            listener.stats.refused_packets
        ),
        (1, 0)
    );
}

#[test]
fn an_empty_datagram_makes_no_message_and_is_counted() {
    let server = socket();
    let pair = pair("message", &server);
    socket().send_to(&[], at(pair.a.address, 7100)).unwrap();
    wait_for("the refusal", || {
        let listener = &pair.a.app("D").listeners[0];
        (
            listener.stats.received_packets,
            listener.stats.refused_packets,
        ) == (1, 1)
    });
}

#[test]
fn class_message_makes_every_datagram_a_message() {
    let server = socket();
    let pair = pair("message", &server);
    let client = socket();
    let mut buffer = vec![0; 65_536];
    for number in 0..20u8 {
        client
            .send_to(&[number; 3000], at(pair.a.address, 7100))
            .unwrap();
    }
    let mut seen = [0; 20];
    for _ in 0..20 {
        let (length, _) = server.recv_from(&mut buffer).unwrap();
        assert_eq!(length, 3000);
        seen[usize::from(buffer[0])] += 1;
    }
    assert_eq!(seen, [1; 20]);
    wait_for("the acknowledgements", || {
        pair.a.app("D").stats.delivered_messages == 20
    });
}

#[test]
fn listeners_and_forwards_come_and_go_with_a_reload() {
    let server = socket();
    let pair = pair("datagram", &server);
    let client = socket();
    let mut buffer = [0; 64];
    client.send_to(b"one", at(pair.a.address, 7100)).unwrap();
    assert_eq!(server.recv(&mut buffer).unwrap(), 3);

    // Another listener for another application, another destination.
    let other = socket();
    let more = app("D", "datagram", "b")
        + &app("E", "datagram", "b")
        + &format!(
            "[[listener]]\napp = \"E\"\nudp = \"{}\"\n",
            at(pair.a.address, 7101)
        );
    pair.a.write(&Pair::config_a(&pair.a, &pair.b, &more));
    let more = app("D", "datagram", "a")
        + &app("E", "datagram", "a")
        + &format!(
            "[[forward]]\napp = \"E\"\nudp = \"{}\"\nallow_local = true\n",
            other.local_addr().unwrap()
        );
    pair.b.write(&Pair::config_b(&pair.a, &pair.b, &more));
    for site in [&pair.a, &pair.b] {
        let Response::Reloaded { changes, .. } = site.reload() else {
            panic!()
        };
        assert_eq!(changes.apps.added, ["E"]);
    }
    client.send_to(b"four", at(pair.a.address, 7101)).unwrap();
    assert_eq!(other.recv(&mut buffer).unwrap(), 4);
    // The port of the listener that is gone is free again, when no process that another test has just forked has
    // its socket any more.
    wait_for("the port", || {
        UdpSocket::bind(at(pair.a.address, 7100)).is_ok()
    });
    assert!(pair.b.app("D").forward.is_none());
}

#[test]
fn an_listener_can_be_given_to_another_application() {
    let server = socket();
    let pair = pair("datagram", &server);
    let apps = app("D", "datagram", "b") + &app("E", "datagram", "b");
    let listener = format!(
        "[[listener]]\napp = \"E\"\nudp = \"{}\"\n",
        at(pair.a.address, 7100)
    );
    pair.a
        .write(&Pair::config_a(&pair.a, &pair.b, &(apps + &listener)));
    let Response::Reloaded { .. } = pair.a.reload() else {
        panic!()
    };
    let client = socket();
    client.send_to(b"for E", at(pair.a.address, 7100)).unwrap();
    wait_for("the datagram", || {
        pair.a.app("E").listeners[0].stats.received_packets == 1
    });
    assert!(pair.a.app("D").listeners.is_empty());
}

#[test]
fn an_application_with_an_forward_has_no_receivers() {
    use keiro_control::{
        config::Name,
        message_socket::{
            RefusalReason, Role,
            client::{ClientError, Connection},
        },
    };
    let server = socket();
    let pair = pair("message", &server);
    let name = Name::new("D").unwrap();
    let refused = Connection::unix(&pair.b.file("message.sock"), Role::Receive, &name);
    let Err(ClientError::Refused { reason, .. }) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(reason, RefusalReason::NotAvailable);
    // What comes back from `b` as a message finds a receiver at `a`, where there is no forward.
    let mut receiver = pair.a.receiver("D");
    let mut sender = pair.b.sender("D");
    sender.send(1, b"back");
    assert_eq!(next(&mut receiver).body, b"back");
    assert!(matches!(
        pair.a.ask(&Request::Version {}),
        Response::Version(_)
    ));
}

#[test]
fn how_thin_datagrams_are_gathered_is_explained_and_counted() {
    let server = socket();
    let pair = pair("datagram", &server);
    let client = socket();
    let mut buffer = [0; 100];
    let explain = Request::Explain { app: "D".into() };
    let mut text = String::new();
    // As many as the controller decides about, and its decision is shown.
    wait_for("a decision", || {
        for _ in 0..100 {
            client.send_to(b"thin", at(pair.a.address, 7100)).unwrap();
            server.recv_from(&mut buffer).unwrap();
        }
        let Response::Explanation(explained) = pair.a.ask(&explain) else {
            panic!()
        };
        text = explained.text;
        explained
            .aggregation
            .is_some_and(|a| a.decisions.values().sum::<u64>() > 0)
    });
    let path = pair.a.app("D").path.unwrap();
    assert!(
        text.contains("sent there in aggregates, mode eager: at most "),
        "{text}"
    );
    let decided = " Last decision of controller adaptive: ";
    assert!(text.contains(decided), "{text}");
    let show = Request::ShowPath { name: Some(path) };
    let Response::Paths { paths } = pair.a.ask(&show) else {
        panic!()
    };
    let sent = paths[0].aggregation.as_ref().unwrap();
    assert!(sent.stats.sent_aggregates > 0 && sent.stats.sent_copies >= sent.stats.sent_aggregates);
    let in_force = [&sent.mode, &sent.controller, &sent.spread];
    assert_eq!(in_force, ["eager", "adaptive", "back-to-back"]);
    let Response::Paths { paths } = pair.b.ask(&show) else {
        panic!()
    };
    assert!(paths[0].stats.received_aggregates >= sent.stats.sent_aggregates);
    assert!(paths[0].stats.received_copies >= paths[0].stats.received_aggregates);
}

#[test]
fn reload_replaces_copies_by_parity() {
    let server = socket();
    let pair = pair("datagram", &server);
    let file = pair.a.file("gateway.toml");
    let text = std::fs::read_to_string(file).unwrap();
    let fec = "[aggregation]\ncontroller = \"none\"\nspread = \"500us\"\nredundancy = \"fec\"\nfec_group = 8\n";
    pair.a.write(&format!("{text}{fec}"));
    assert!(matches!(pair.a.reload(), Response::Reloaded { .. }));
    let client = socket();
    let mut buffer = [0; 100];
    let path = pair.a.app("D").path.unwrap();
    let show = Request::ShowPath { name: Some(path) };
    wait_for("what became of them", || {
        for _ in 0..100 {
            client.send_to(b"thin", at(pair.a.address, 7100)).unwrap();
            server.recv_from(&mut buffer).unwrap();
        }
        let Response::Paths { paths } = pair.a.ask(&show) else {
            panic!()
        };
        let sent = paths[0].aggregation.clone().unwrap();
        let fec = sent.fec.unwrap();
        assert_eq!((fec.group_aggregates, fec.parity_packets), (8, 2));
        assert_eq!([sent.controller, sent.spread], ["none", "500us"]);
        sent.stats.sent_aggregates >= 200 && sent.stats.sent_copies > sent.stats.sent_aggregates
    });
    let Response::Explanation(explained) = pair.a.ask(&Request::Explain { app: "D".into() }) else {
        panic!()
    };
    for said in [
        "500us between parity packets.",
        "Parity packets replace copies: 2 for each 8 aggregates.",
        "No controller changes these values.",
    ] {
        assert!(explained.text.contains(said), "{}", explained.text);
    }
}

#[test]
fn a_message_of_a_listener_that_is_given_up_is_reported_with_its_length() {
    let (mut a, b) = (Site::new("a"), Site::new("b"));
    let section = app("D", "message", "b") + "lifetime = \"200ms\"\n";
    let listener = format!(
        "[[listener]]\napp = \"D\"\nudp = \"{}\"\n",
        at(a.address, 7100)
    );
    // No server is there.
    a.write(&Pair::config_a(&a, &b, &(section + &listener)));
    a.start();
    let mut monitor = a.client();
    assert_eq!(
        monitor.request(&Request::Monitor {}).unwrap(),
        Response::Monitoring {}
    );
    socket().send_to(&[9; 700], at(a.address, 7100)).unwrap();
    let length = next_event(&mut monitor, |kind| match kind {
        EventKind::MessageExpired { length_bytes, .. } => Some(length_bytes),
        _ => None,
    });
    assert_eq!(length, 700);
}
