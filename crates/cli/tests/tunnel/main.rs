//! IP packets through two gateways, in namespaces. Needs root and iproute2, and fails without.

mod classes;
mod devices;
mod direct;
mod edges;
mod exit;
mod firewall;
mod forwarding;
mod gateways;
#[path = "../harness/mod.rs"]
mod harness;
mod hubs;
mod join;
mod mapping;
mod network_life;
mod privileges;
mod routes;
mod show;
mod sites;
mod small_underlay;
mod stopped;
#[path = "../threads/mod.rs"]
mod threads;

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    thread,
    time::Duration,
};

use gateways::{Gateways, MIB, tenant};
use harness::{eventually, run, shown};
use keiro_control::{metrics, protocol::EventKind};
use keiro_linux::process::{SIGKILL, SIGTERM};
use keiro_stats::{StatSet, TenantPathStats, TenantPeerStats, TenantStats};
use serde_json::Value;

/// The program that [`harness`] runs.
const PROGRAM: &str = env!("CARGO_BIN_EXE_keiro");

#[test]
fn ping_and_tcp_pass_in_both_versions() {
    let gateways = Gateways::start(|own| tenant(own, "blue", 1, ""));
    for version in ["10.2.0.1", "fd00:2::1"] {
        gateways.ping(0, version, None);
    }
    for to in ["10.2.0.1", "fd00:2::1"] {
        gateways.transfer(0, to, None, 64 * MIB);
    }
    let page = gateways.metrics(0);
    let of_tenants = metrics::ALL
        .iter()
        .map(|metric| metric.name)
        .filter(|metric| metric.starts_with("keiro_tenant_"))
        // Of tenants with tcp = "split".
        .filter(|metric| *metric != metrics::TENANT_NOT_SPLIT_CONNECTIONS.name);
    let stats = TenantStats::STATS.iter().chain(TenantPeerStats::STATS);
    let stats = stats.chain(TenantPathStats::STATS).map(|stat| stat.metric);
    // Neither reported, with one peer, nor measured yet.
    let stats = stats.filter(|metric| !metric.contains("found_unit"));
    for metric in of_tenants.chain(stats) {
        let line = format!("\n{metric}{{tenant=\"blue\"");
        assert!(page.contains(&line), "no {metric} in {page}");
    }
}

#[test]
fn two_tenants_may_have_the_same_addresses() {
    let tenants = |own| {
        tenant(own, "blue", 1, "table = 101\n")
            + &tenant(own, "red", 2, "table = 102\ncontroller = \"i2vfc\"\n")
    };
    let mut gateways = Gateways::start(tenants);
    let has_queues = |device: &str| {
        let shown = gateways.ip(0, &format!("-d link show {device}"));
        shown.contains("multi_queue")
    };
    assert_eq!([has_queues("t-blue"), has_queues("t-red")], [false, true]);
    // Linux answers an IPv4 echo request to its own address by the first table that has it.
    for (device, to) in [
        ("t-blue", "10.2.0.1"),
        ("t-blue", "fd00:2::1"),
        ("t-red", "fd00:2::1"),
    ] {
        gateways.ping(0, to, Some(device));
    }
    thread::scope(|scope| {
        for device in ["t-blue", "t-red"] {
            let gateways = &gateways;
            scope.spawn(move || gateways.transfer(0, "10.2.0.1", Some(device), 8 * MIB));
        }
    });
    for name in ["blue", "red"] {
        let tenant = gateways.tenant(0, name);
        let sent = &tenant["peers"][0]["accepted_bytes"];
        assert!(sent.as_u64() > Some(8 * MIB as u64), "{tenant:#}");
    }
    let (explained, text) = eventually("each has its window", || {
        // On a path that was silent for as long as the machine pauses they have one when they send again.
        for name in ["blue", "red"] {
            gateways.ping(0, "fd00:2::1", Some(&format!("t-{name}")));
            let tenant = gateways.tenant(0, name);
            tenant["peers"][0]["paths"][0]["window_bytes"]
                .as_u64()
                .filter(|bytes| *bytes > 0)?;
        }
        let explained = gateways.ask(0, &["explain", "ip"])?;
        let text = explained["text"].as_str()?.to_owned();
        (text.matches(" of its window of ").count() == 2).then_some((explained, text))
    });
    for part in [
        "It carries traffic of tenant blue: weight 1, 50 % of all weights, ",
        "It carries traffic of tenant red: weight 1, 50 % of all weights, ",
        "IP packets are neither aggregated nor sent in copies",
    ] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
    assert!(!text.contains("aggregates"), "{text}");
    assert!(explained["aggregation"].is_null(), "{explained:#}");
    // A killed one leaves rules behind, which the next one takes over and removes.
    let rules = |gateways: &Gateways| {
        let all = gateways.ip(0, "rule show") + &gateways.ip(0, "-6 rule show");
        all.lines()
            .filter(|rule| rule.contains("lookup 10"))
            .count()
    };
    assert_eq!(rules(&gateways), 12);
    gateways.stop(0, SIGKILL);
    assert_eq!(rules(&gateways), 12);
    gateways.restart(0);
    gateways.ping(0, "fd00:2::1", Some("t-red"));
    assert_eq!(rules(&gateways), 12);
    gateways.stop(0, SIGTERM);
    assert_eq!(rules(&gateways), 12);
    assert!(!gateways.ip(0, "link show").contains("t-blue"));
    gateways.cleanup(0);
    assert_eq!(rules(&gateways), 0);
    for table in ["route show table all", "-6 route show table all"] {
        let left = gateways.ip(0, table);
        assert!(!left.contains("proto 75"), "{left}");
    }
}

#[test]
fn spoofed_sources_are_dropped_where_they_enter_and_where_they_would_leave() {
    // b does not know of a's second network.
    let more_here = |own| {
        let text = tenant(own, "blue", 1, "");
        match own {
            0 => text.replacen("[\"10.1.0.0/24\"", "[\"10.1.0.0/24\", \"10.8.8.0/24\"", 1),
            _ => text,
        }
    };
    let gateways = Gateways::start(more_here);
    gateways.ip(0, "address add 10.8.8.8/32 dev lo");
    gateways.ip(0, "address add 10.9.9.9/32 dev lo");
    let drops = |own, cause: &str| {
        let tenant = gateways.tenant(own, "blue");
        tenant["dropped_packets"][cause]
            .as_u64()
            .expect("a counter")
    };
    let send = |from: &str, count: usize| {
        let host = gateways.lab.host("a").expect("a host");
        let sent = host.run(|| {
            let socket = UdpSocket::bind((from, 0)).expect("bound");
            for _ in 0..count {
                socket.send_to(b"spoofed", "10.2.0.1:9").expect("sent");
            }
        });
        sent.expect("entered");
    };
    send("10.9.9.9", 3);
    eventually("it is counted at a", || {
        (drops(0, "spoofed") == 3).then_some(())
    });
    send("10.8.8.8", 5);
    eventually("it is counted at b", || {
        (drops(1, "peer_spoofed") == 5).then_some(())
    });
    assert_eq!(drops(0, "spoofed"), 3);
    assert_eq!(gateways.tenant(1, "blue")["egress_packets"], 0);
}

#[test]
fn what_is_too_big_is_reported_to_its_sender() {
    let gateways = Gateways::start(|own| tenant(own, "blue", 1, "mtu = \"9000B\"\n"));
    for to in ["10.2.0.1", "fd00:2::1"] {
        // By the handshake, without any message.
        gateways.transfer(0, to, None, 4 * MIB);
        assert_eq!(
            gateways.tenant(0, "blue")["dropped_packets"]["too_big"]
                .as_u64()
                .map(|n| n > 0),
            Some(to != "10.2.0.1")
        );
        let receiver = gateways.lab.host("b").expect("a host");
        let at = SocketAddr::new(to.parse().expect("an address"), 0);
        let receiver = receiver
            .run(|| UdpSocket::bind(at).expect("bound"))
            .expect("entered");
        let at = receiver.local_addr().expect("bound");
        receiver
            .set_read_timeout(Some(Duration::from_millis(100)))
            .expect("set");
        let sender = gateways.lab.host("a").expect("a host");
        let any: IpAddr = if at.is_ipv4() {
            [0; 4].into()
        } else {
            [0; 16].into()
        };
        let sender = sender
            .run(|| UdpSocket::bind((any, 0)).expect("bound"))
            .expect("entered");
        sender.send_to(&[0x5a; 4000], at).expect("sent");
        eventually("the sender is notified", || {
            let route = gateways.ip(0, &format!("route get {to}"));
            route.contains(" mtu 14").then_some(())
        });
        eventually("a datagram arrives in pieces that fit", || {
            let _ = sender.send_to(&[0x5a; 4000], at);
            let mut buffer = [0; 5000];
            let length = receiver.recv(&mut buffer).ok()?;
            assert!(buffer[..length] == [0x5a; 4000]);
            Some(())
        });
    }
    let tenant = gateways.tenant(0, "blue");
    assert_eq!(tenant["dropped_packets"]["too_big"], 2, "{tenant:#}");
    assert_eq!(tenant["icmp_error_packets"], 2, "{tenant:#}");
}

#[test]
fn tenants_change_by_reload_and_a_device_taken_away_comes_back() {
    let gateways = Gateways::start(|own| tenant(own, "blue", 1, "weight = 1\n"));
    gateways.ping(0, "10.2.0.1", None);
    assert_eq!(gateways.tenant(0, "blue")["weight"], 1.0);
    let file = gateways.sites[0].path("gateway.toml");
    let before = std::fs::read_to_string(&file).expect("a file");
    let reload = |text: &str, code: i32| {
        std::fs::write(&file, text).expect("written");
        let socket = shown(&gateways.sites[0].path("control.sock"));
        run(["reload", "--socket", &socket]).expect_code(code)
    };
    reload(&before.replacen("weight = 1", "weight = 5", 1), 0);
    assert_eq!(gateways.tenant(0, "blue")["weight"], 5.0);
    gateways.ping(0, "10.2.0.1", None);

    let mut monitor = gateways.monitor(0);
    gateways.ip(0, "link delete t-blue");
    let lost = monitor.next(|kind| match kind {
        EventKind::DeviceLost { tenant, device, .. } => Some((tenant, device)),
        _ => None,
    });
    let restored = monitor.next(|kind| match kind {
        EventKind::DeviceRestored { tenant, device, .. } => Some((tenant, device)),
        _ => None,
    });
    assert_eq!(lost, ("blue".to_owned(), "t-blue".to_owned()));
    assert_eq!(lost, restored);
    eventually("the device is there again", || {
        (gateways.tenant(0, "blue")["device_present"] == true).then_some(())
    });
    gateways.ping(0, "10.2.0.1", None);

    let without = before.split("[tenant").next().expect("a beginning");
    reload(without, 0);
    let empty = gateways.ask(0, &["show", "tenant"]).expect("an answer");
    assert_eq!(empty, Value::Array(Vec::new()));
    eventually("the device is gone", || {
        (!gateways.ip(0, "link show").contains("t-blue")).then_some(())
    });
    assert!(!gateways.ip(0, "route show").contains("10.2.0.0/24"));
    reload(&before, 0);
    gateways.ping(0, "fd00:2::1", None);
    let names = ["show", "tenant", "blue", "--socket"];
    let socket = shown(&gateways.sites[0].path("control.sock"));
    let text = run(names.into_iter().chain([socket.as_str()]))
        .expect_code(0)
        .stdout;
    for part in ["tenant blue", "t-blue", "local networks", "window"] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
}

/// Prints what a transfer costs over plain veth, at a rate that nothing reaches and without windows;
/// nothing is asserted but that every byte arrives.
#[test]
fn a_transfer_at_full_speed_arrives_intact_and_shows_its_cost() {
    let text = |own| tenant(own, "blue", 1, "controller = \"open\"\nqueue = \"8MiB\"\n");
    let gateways = Gateways::start_at("10Gbit", text);
    let before = [0, 1].map(|own| gateways.cpu_seconds(own));
    gateways.transfer(0, "10.2.0.1", None, 256 * MIB);
    let cpu = [0, 1].map(|own| gateways.cpu_seconds(own) - before[own]);
    let [sending, receiving] = cpu.map(|seconds| seconds * 4.0);
    eprintln!("CPU {sending:.2} s/GiB sending, {receiving:.2} s/GiB receiving");
}
