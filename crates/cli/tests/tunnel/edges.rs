//! What users meet at the edges: limits, other gateways' mistakes, packets of unknown tenants, weights that
//! change under way.

use std::{
    io::{self, Read, Write},
    net::{Ipv6Addr, SocketAddr, TcpStream, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use keiro_control::protocol::EventKind;
use keiro_linux::{
    process::SIGKILL,
    udp::{BatchSocket, DatagramBatch, Purpose},
};
use serde_json::Value;
use socket2::{Domain, Protocol, Socket, Type};

use crate::{
    gateways::{Gateways, tenant},
    harness::{LIMIT, Ran, eventually, run, shown},
};

fn reload(gateways: &Gateways, text: &str) -> Ran {
    gateways.sites[0].write("gateway.toml", text);
    let socket = shown(&gateways.sites[0].path("control.sock"));
    run(["reload", "--socket", &socket])
}

fn configuration(gateways: &Gateways) -> String {
    let file = gateways.sites[0].path("gateway.toml");
    std::fs::read_to_string(file).expect("a file")
}

/// A socket beside gateway a whose packets leave by `device`.
fn by_device(gateways: &Gateways, device: &str, v6: bool) -> UdpSocket {
    let domain = if v6 { Domain::IPV6 } else { Domain::IPV4 };
    let host = gateways.lab.host("a").expect("a host");
    let socket = host.run(|| Socket::new(domain, Type::DGRAM, None).expect("made"));
    let socket = socket.expect("entered");
    socket.bind_device(Some(device.as_bytes())).expect("bound");
    socket.into()
}

#[test]
fn ten_times_as_many_tenants_as_the_limit_are_refused_and_the_gateway_goes_on() {
    let gateways = Gateways::start(|own| tenant(own, "blue", 1, ""));
    let before = configuration(&gateways);
    let more = |id: u32| {
        format!(
            "[tenant.t{id}]\nid = {id}\ntable = {}\nprefixes = [\"10.1.0.0/24\"]\n\
             [tenant.t{id}.peer.b]\nprefixes = [\"10.2.0.0/24\"]\napp = \"ip\"\n",
            1000 + id
        )
    };
    let many: String = (2..=50).map(more).collect();
    let limited = before.replacen("[fairness]\n", "[fairness]\ntenants_max = 5\n", 1);
    let ran = reload(&gateways, &format!("{limited}{many}"));
    assert_ne!(ran.code, Some(0), "{ran:#?}");
    let answered = [
        "50 tenants, more than the limit of 5",
        "write a higher tenants_max in [fairness]",
    ];
    ran.says(&answered);
    let file = shown(&gateways.sites[0].path("gateway.toml"));
    let checked = run(["config", "check", &file]);
    assert_ne!(checked.code, Some(0), "{checked:#?}");
    checked.says(&answered);
    let status = gateways.ask(0, &["status"]).expect("an answer");
    let rejected = status["config_rejected"].as_str().expect("why");
    assert!(rejected.contains(answered[0]), "{rejected}");
    assert_eq!(
        (&status["tenants"], &status["tenants_with_device"]),
        (&Value::from(1), &Value::from(1))
    );
    assert!(!gateways.ip(0, "link show").contains("keiro2"));
    gateways.ping(0, "10.2.0.1", None);
    // As many as the limit are not too many.
    let few: String = (2..=5).map(more).collect();
    reload(&gateways, &format!("{limited}{few}")).expect_code(0);
    let status = gateways.ask(0, &["status"]).expect("an answer");
    assert_eq!(status["tenants_with_device"], 5);
    let socket = shown(&gateways.sites[0].path("control.sock"));
    let text = run(["status", "--socket", &socket]).expect_code(0).stdout;
    assert!(text.contains("5 of 5 have their device"), "{text}");
}

#[test]
fn a_tenant_that_the_peer_does_not_have_is_reported_at_both_ends() {
    let gateways = Gateways::start(|own| {
        let red = match own {
            0 => tenant(own, "red", 2, "table = 102\n"),
            _ => String::new(),
        };
        tenant(own, "blue", 1, "table = 101\n") + &red
    });
    let mut monitors = [gateways.monitor(0), gateways.monitor(1)];
    let socket = by_device(&gateways, "t-red", false);
    socket.send_to(b"lost", "10.2.0.1:9").expect("sent");
    let unknown = monitors[1].next(|kind| match kind {
        EventKind::TenantUnknown { peer, id } => Some((peer, id)),
        _ => None,
    });
    assert_eq!(unknown, ("a".to_owned(), 2));
    let refused = monitors[0].next(|kind| match kind {
        EventKind::TenantRefused { tenant, id, peer } => Some((tenant, id, peer)),
        _ => None,
    });
    assert_eq!(refused, ("red".to_owned(), 2, "b".to_owned()));
    let red = gateways.tenant(0, "red");
    let drops = &red["peers"][0]["dropped_packets"];
    assert_eq!(drops["unknown_at_peer"], 1, "{red:#}");
    let peers = gateways.ask(1, &["show", "peer"]).expect("an answer");
    let drops = &peers[0]["dropped_packets"];
    assert_eq!(drops["unknown_tenant"], 1, "{peers:#}");
    let log = std::fs::read_to_string(gateways.sites[0].path("log")).expect("a log");
    let reported = "peer b drops the packets of tenant red: it has no tenant with id 2";
    assert!(log.contains(reported), "{log}");
}

#[test]
fn what_is_of_a_device_alone_is_no_drop() {
    let gateways = Gateways::start(|own| tenant(own, "blue", 1, ""));
    let socket = by_device(&gateways, "t-blue", false);
    let count = |kind: &str| {
        let tenant = gateways.tenant(0, "blue");
        assert_eq!(tenant["dropped_packets"]["not_routable"], 0, "{tenant:#}");
        tenant["not_forwarded_packets"][kind].as_u64()
    };
    // Linux may have sent groups something already.
    let before = count("multicast").expect("a counter");
    for to in ["224.0.0.251:9", "224.0.0.251:9", "169.254.7.7:9"] {
        socket.send_to(b"nowhere", to).expect("sent");
    }
    eventually("both are counted", || {
        let found = (count("multicast")?, count("link_local")?);
        (found.0 >= before + 2 && found.1 == 1).then_some(())
    });
    let control = shown(&gateways.sites[0].path("control.sock"));
    let text = run(["show", "tenant", "blue", "--socket", &control]);
    let text = text.expect_code(0).stdout;
    assert!(text.contains("1 link local, "), "{text}");
    // Groups beyond the link are not forwarded either, which a user may expect.
    socket.send_to(b"nowhere", "239.1.2.3:9").expect("sent");
    eventually("it is a drop", || {
        let tenant = gateways.tenant(0, "blue");
        (tenant["dropped_packets"]["not_routable"] == 1).then_some(())
    });
}

/// One buffer of the kernel's, which it cut into packets only at the gateway.
#[test]
fn a_large_buffer_that_does_not_fit_counts_its_packets() {
    let gateways = Gateways::start(|own| tenant(own, "blue", 1, "mtu = \"9000B\"\n"));
    let host = gateways.lab.host("a").expect("a host");
    let from: SocketAddr = "[fd00:1::1]:0".parse().expect("an address");
    let sent = host.run(|| {
        let mut socket = BatchSocket::bind(from, Purpose::Path).expect("bound");
        socket.send(&DatagramBatch {
            remote: "[fd00:2::1]:9".parse().expect("an address"),
            source: None,
            ecn: 0,
            data: &[0x5a; 10 * 2000],
            segment_size: 2000,
        })
    });
    sent.expect("entered");
    eventually("all ten are counted, and one answer is sent", || {
        let tenant = gateways.tenant(0, "blue");
        let count = tenant["dropped_packets"]["too_big"].as_u64()?;
        assert!(count <= 10, "{tenant:#}");
        (count == 10).then_some(())
    });
}

#[test]
fn a_sender_of_one_hop_in_ipv6_gets_an_error_from_where_it_ended() {
    let gateways = Gateways::start(|own| tenant(own, "blue", 1, ""));
    let host = gateways.lab.host("a").expect("a host");
    let icmp = host.run(|| Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::ICMPV6)));
    let icmp = icmp.expect("entered").expect("raw");
    let wait = Some(Duration::from_millis(200));
    icmp.set_read_timeout(wait).expect("set");
    let sender = host.run(|| UdpSocket::bind("[fd00:1::1]:0").expect("bound"));
    let sender = sender.expect("entered");
    let port = sender.local_addr().expect("bound").port();
    let sender = Socket::from(sender);
    sender.set_unicast_hops_v6(1).expect("set");
    let to = SocketAddr::from(("fd00:2::1".parse::<Ipv6Addr>().expect("one"), 9));
    eventually("the sender is notified", || {
        let _ = sender.send_to(b"far", &to.into());
        let mut message = [0; 256];
        let length = (&icmp).read(&mut message).ok()?;
        let message = &message[..length];
        // Type 3 code 0 with the packet's own headers in it, those of UDP last (RFC 4443 §3.3).
        let is_ours = message.get(8 + 40..8 + 42) == Some(&port.to_be_bytes()[..]);
        (message.starts_with(&[3, 0]) && is_ours).then_some(())
    });
    let tenant = gateways.tenant(0, "blue");
    assert!(
        tenant["dropped_packets"]["hop_limit"].as_u64() > Some(0),
        "{tenant:#}"
    );
}

#[test]
fn packets_are_the_applications_that_rules_name() {
    let rules = [
        ("by-prefix", "destination = \"10.2.0.64/26\""),
        ("by-dscp", "dscp = 46"),
        (
            "by-port",
            "protocol = \"udp\"\ndestination_ports = \"5004-5010\"",
        ),
        ("by-protocol", "protocol = \"icmp\""),
    ];
    let tenants = |own: usize| {
        let peer = ["b", "a"][own];
        let mut text = tenant(own, "blue", 1, "");
        for (app, rule) in rules {
            text += &format!("[[tenant.blue.rule]]\napp = \"{app}\"\n{rule}\n");
            text +=
                &format!("[[app]]\nname = \"{app}\"\nclass = \"datagram\"\npeer = \"{peer}\"\n");
        }
        text
    };
    let gateways = Gateways::start(tenants);
    let plain = by_device(&gateways, "t-blue", false);
    let expedited = Socket::from(by_device(&gateways, "t-blue", false));
    expedited.set_tos_v4(46 << 2).expect("set");
    let expedited: UdpSocket = expedited.into();
    // How many are sent, so that the numbers identify them. The first rule that matches decides.
    let sent: [(&str, &UdpSocket, &str, u64); 5] = [
        ("by-prefix", &expedited, "10.2.0.70:5004", 2),
        ("by-dscp", &expedited, "10.2.0.1:5004", 3),
        ("by-port", &plain, "10.2.0.1:5010", 4),
        ("ip", &plain, "10.2.0.1:5011", 5),
        ("ip", &plain, "10.2.0.1:9", 6),
    ];
    for (_, socket, to, count) in sent {
        for _ in 0..count {
            socket.send_to(b"classified", to).expect("sent");
        }
    }
    let count = |app: &str| {
        let shown = gateways.ask(0, &["show", "app", app]).expect("an answer");
        shown[0]["sent_messages"].as_u64().expect("a number")
    };
    for (app, expected) in [("by-prefix", 2), ("by-dscp", 3), ("by-port", 4), ("ip", 11)] {
        eventually("they are counted", || {
            (count(app) >= expected).then_some(())
        });
        assert_eq!(count(app), expected, "{app}");
    }
    assert_eq!(count("by-protocol"), 0);
    gateways.ping(0, "10.2.0.1", None);
    assert!(count("by-protocol") > 0);
}

/// Bytes of tenants on the wire while `bytes` of both leave: (blue, red).
fn shares(gateways: &Gateways, bytes: u64) -> (f64, f64) {
    let sent = || {
        ["blue", "red"].map(|name| {
            let tenant = gateways.tenant(0, name);
            let sent = &tenant["peers"][0]["paths"][0]["sent_bytes"];
            sent.as_u64().unwrap_or(0)
        })
    };
    let mut before = sent();
    eventually("as much has left", || {
        let now = sent();
        // A path that was silent for as long as the machine pauses is counted anew.
        if now[0] < before[0] || now[1] < before[1] {
            before = now;
        }
        let [blue, red] = [0, 1].map(|index| now[index] - before[index]);
        (blue + red >= bytes).then_some((blue as f64, red as f64))
    })
}

/// What changed weights take to be seen, the second in which they are seen among it.
const WITHIN: Duration = Duration::from_secs(5);

#[test]
fn weights_that_change_by_reload_change_the_shares_of_what_flows_within_seconds() {
    let tenants = |own| {
        tenant(own, "blue", 1, "table = 101\nweight = 1\n")
            + &tenant(own, "red", 2, "table = 102\n")
    };
    let gateways = Gateways::start_at("20Mbit", tenants);
    let devices = ["t-blue", "t-red", "t-blue", "t-red"];
    let flows = devices.map(|device| gateways.connect(0, "10.2.0.1", Some(device)));
    let over = AtomicBool::new(false);
    let keep_sending = |mut from: TcpStream| {
        let chunk = [0x5a; 4096];
        while !over.load(Ordering::Relaxed) {
            if from.write_all(&chunk).is_err() {
                break;
            }
        }
    };
    thread::scope(|scope| {
        for (from, mut to) in flows {
            from.set_write_timeout(Some(LIMIT)).expect("set");
            to.set_read_timeout(Some(LIMIT)).expect("set");
            scope.spawn(move || keep_sending(from));
            scope.spawn(move || {
                let mut buffer = [0; 65_536];
                while to.read(&mut buffer).is_ok_and(|length| length > 0) {}
            });
        }
        // Also where an assertion fails, or the threads would not end.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let ratio = |bytes| {
                let (blue, red) = shares(&gateways, bytes);
                blue / red
            };
            // A second of the line's.
            const SECOND: u64 = 20_000_000 / 8;
            eventually("shares are even", || {
                (0.8..1.25).contains(&ratio(SECOND)).then_some(())
            });
            let before = configuration(&gateways);
            let heavy = before.replacen("weight = 1\n", "weight = 3\n", 1);
            reload(&gateways, &heavy).expect_code(0);
            // A reload takes its time, and a share is seen over a second.
            let since = Instant::now();
            let found = eventually("shares are three to one", || {
                let ratio = ratio(SECOND);
                (2.4..3.75).contains(&ratio).then_some(ratio)
            });
            let after = since.elapsed();
            eprintln!("{found:.2} to 1 after {after:.1?}, a second of which it took to see");
            assert!(after < WITHIN, "{found:.2} to 1 only after {after:.1?}");
            // It stays so.
            eventually("it stays so for three seconds", || {
                (2.4..3.75).contains(&ratio(3 * SECOND)).then_some(())
            });
        }));
        over.store(true, Ordering::Relaxed);
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
}

#[test]
fn connections_to_a_peer_that_is_down_fail_at_once() {
    let mut gateways = Gateways::start(|own| tenant(own, "blue", 1, ""));
    gateways.await_paths();
    gateways.ping(0, "10.2.0.1", None);
    gateways.stop(1, SIGKILL);
    let host = gateways.lab.host("a").expect("a host");
    for to in ["10.2.0.1", "fd00:2::1"] {
        let to = SocketAddr::new(to.parse().expect("an address"), 9);
        // Until the gateway has noticed that the peer is gone, what is sent is lost.
        let wait = Duration::from_millis(200);
        eventually(&format!("{to} is unreachable"), || {
            let connected = host.run(|| TcpStream::connect_timeout(&to, wait));
            let error = connected.expect("entered").expect_err("no one is there");
            (error.kind() == io::ErrorKind::HostUnreachable).then_some(())
        });
    }
    let drops = &gateways.tenant(0, "blue")["dropped_packets"];
    assert!(drops["no_path"].as_u64() >= Some(2), "{drops}");
}
