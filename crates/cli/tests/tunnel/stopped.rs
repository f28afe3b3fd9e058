//! What becomes of tenants' packets while no gateway carries them.
//!
//! ```text
//! client --- lan: a ===== wan: b
//! ```
//!
//! a's default routes lead to b, so that whatever leaves outside the tunnel is seen there, addressed to the
//! tenant's network.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use keiro_linux::{
    packet::{PacketOptions, PacketSocket},
    process::{SIGKILL, SIGTERM},
};

use crate::{
    gateways::{Gateways, echo, echo_request, icmp_socket, tenant},
    harness::{eventually, finish, run, shown},
};

const TOPOLOGY: &str = r#"
[host.a]
sysctl = { "net.ipv4.ip_forward" = 1, "net.ipv6.conf.all.forwarding" = 1 }
routes = [{ to = "default", via = "192.0.2.2" }, { to = "::/0", via = "fd00:9::2" }]

[host.b]

[host.client]
routes = [{ to = "default", via = "10.1.0.254" }, { to = "::/0", via = "fd00:1::fe" }]

[link.wan]
a = { host = "a", addresses = ["192.0.2.1/24", "fd00:9::1/64"] }
b = { host = "b", addresses = ["192.0.2.2/24", "fd00:9::2/64"] }

[link.lan]
a = { host = "client", addresses = ["10.1.0.5/24", "fd00:1::5/64"] }
b = { host = "a", addresses = ["10.1.0.254/24", "fd00:1::fe/64"] }
"#;

/// In the networks behind b.
const TO: [&str; 2] = ["10.2.0.1", "fd00:2::1"];

/// Where a tenant has its routes.
#[derive(Clone, Copy, Debug)]
enum Table {
    Main,
    Own,
}

fn blue(own: usize, table: Table, more: &str) -> String {
    let interface = match (own, table) {
        (0, Table::Own) => "table = 101\ninterfaces = [\"lan\"]\n",
        _ => "",
    };
    tenant(own, "blue", 1, &format!("{interface}{more}"))
}

/// Both gateways, and packets of the client that pass through the tunnel.
fn start(table: Table, more: &str) -> Gateways {
    let gateways = Gateways::start_in(TOPOLOGY, "400Mbit", |own| blue(own, table, more));
    if matches!(table, Table::Own) {
        gateways.ip(0, "route add 10.1.0.0/24 dev lan table 101");
        gateways.ip(0, "-6 route add fd00:1::/64 dev lan table 101");
        // As where the tenant's other packets leave beside the tunnel.
        gateways.ip(0, "route add default via 192.0.2.2 table 101");
        gateways.ip(0, "-6 route add default via fd00:9::2 table 101");
    }
    passes(&gateways);
    gateways
}

fn passes(gateways: &Gateways) {
    for to in TO {
        let to: IpAddr = to.parse().expect("an address");
        let client = gateways.lab.host("client").expect("a host");
        let answered = client.run(move || echo(to, 56, None)).expect("entered");
        assert_eq!(answered, Some(56), "{to}");
    }
}

/// The client's packets lead nowhere, by the routes of a.
fn assert_blocked(gateways: &Gateways) {
    for (to, from) in TO.into_iter().zip(["10.1.0.5", "fd00:1::5"]) {
        let host = gateways.lab.host("a").expect("a host");
        let mut command = host.command("ip");
        command.args(["route", "get", to, "from", from, "iif", "lan"]);
        let ran = finish(&mut command, b"");
        let error = "RTNETLINK answers: No route to host";
        assert!(
            ran.stderr.contains(error) || ran.stdout.contains("unreachable"),
            "{ran:#?}"
        );
    }
}

/// A UDP socket of the client.
fn connected(gateways: &Gateways, to: &str) -> UdpSocket {
    let to = SocketAddr::new(to.parse().expect("an address"), 9);
    let any: IpAddr = match to.is_ipv4() {
        true => [0; 4].into(),
        false => [0; 16].into(),
    };
    let client = gateways.lab.host("client").expect("a host");
    let socket = client.run(|| UdpSocket::bind((any, 0)).expect("bound"));
    let socket = socket.expect("entered");
    socket.connect(to).expect("connected");
    let wait = Some(Duration::from_millis(20));
    socket.set_read_timeout(wait).expect("set");
    socket
}

/// Packets that left outside the tunnel while `what` ran, by version, and how many of each the client sent.
fn clear_while(
    gateways: &mut Gateways,
    what: impl FnOnce(&mut Gateways, &AtomicU64),
) -> ([u64; 2], u64) {
    let options = PacketOptions {
        ring_frames: 8192,
        outgoing: false,
    };
    let b = gateways.lab.host("b").expect("a host");
    let wan = b.run(|| PacketSocket::open("wan", options).expect("opened"));
    let mut wan = wan.expect("entered");
    let udp = TO.map(|to| connected(gateways, to));
    let client = gateways.lab.host("client").expect("a host");
    let icmp = client.run(|| [true, false].map(icmp_socket));
    let icmp = icmp.expect("entered");
    let requests = [true, false].map(|v4| echo_request(v4, 56));
    let stop = AtomicBool::new(false);
    let sent = AtomicU64::new(0);
    thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let mut clear = [0; 2];
            while !stop.load(Ordering::Acquire) {
                for version in 0..2 {
                    let to = udp[version].peer_addr().expect("connected");
                    // Errors are about packets that were sent before.
                    let _ = udp[version].send(b"secret");
                    let to = SocketAddr::new(to.ip(), 0).into();
                    let _ = icmp[version].send_to(&requests[version], &to);
                }
                sent.fetch_add(2, Ordering::AcqRel);
                thread::sleep(Duration::from_millis(1));
                count_clear(&mut wan, &mut clear);
            }
            count_clear(&mut wan, &mut clear);
            assert_eq!(wan.take_ring_drops().expect("open"), 0);
            clear
        });
        let finished =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| what(gateways, &sent)));
        stop.store(true, Ordering::Release);
        let counted = sending.join().expect("it counts");
        match finished {
            Ok(()) => (counted, sent.load(Ordering::Acquire)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Waits until the client has sent some more of each.
fn await_more(sent: &AtomicU64) {
    let before = sent.load(Ordering::Acquire);
    eventually("the client sends", || {
        (sent.load(Ordering::Acquire) >= before + 20).then_some(())
    });
}

/// Adds the packets to [`TO`] that have arrived since the last call.
fn count_clear(wan: &mut PacketSocket, clear: &mut [u64; 2]) {
    let destinations = TO.map(|to| to.parse::<IpAddr>().expect("an address"));
    while let Some(frame) = wan.next_frame() {
        let bytes = frame.bytes();
        let to = match bytes.get(12..14) {
            Some([0x08, 0x00]) => bytes
                .get(30..34)
                .and_then(|b| <[u8; 4]>::try_from(b).ok())
                .map(IpAddr::from),
            Some([0x86, 0xdd]) => bytes
                .get(38..54)
                .and_then(|b| <[u8; 16]>::try_from(b).ok())
                .map(IpAddr::from),
            _ => None,
        };
        if let Some(version) = destinations.iter().position(|known| Some(*known) == to) {
            clear[version] += 1;
        }
    }
}

/// All of Keiro's rules and routes beside gateway a, in order.
fn entries(gateways: &Gateways) -> Vec<String> {
    let mut all = Vec::new();
    for list in [
        "rule show",
        "-6 rule show",
        "-4 route show table all",
        "-6 route show table all",
    ] {
        let shown = gateways.ip(0, list);
        all.extend(
            shown
                .lines()
                .filter(|line| line.contains("proto 75"))
                .map(str::to_owned),
        );
    }
    all.sort();
    all
}

fn without_tenants(gateways: &Gateways) -> String {
    let file = gateways.sites[0].path("gateway.toml");
    let text = std::fs::read_to_string(file).expect("a file");
    text.split("[tenant")
        .next()
        .expect("a beginning")
        .to_owned()
}

#[test]
fn packets_stay_blocked_while_the_gateway_stops_restarts_and_is_killed() {
    for table in [Table::Main, Table::Own] {
        let mut gateways = start(table, "");
        let running = entries(&gateways);
        let (clear, sent) = clear_while(&mut gateways, |gateways, sent| {
            for signal in [SIGTERM, SIGKILL, SIGTERM] {
                gateways.stop(0, signal);
                assert_blocked(gateways);
                await_more(sent);
                gateways.restart(0);
                passes(gateways);
                // Taken over: neither missing nor twice.
                assert_eq!(entries(gateways), running, "{table:?}");
            }
            // Not by a device that goes while the gateway runs, either.
            let mut monitor = gateways.monitor(0);
            gateways.ip(0, "link delete t-blue");
            monitor.next(|kind| (kind.name() == "device_restored").then_some(()));
            passes(gateways);
        });
        eprintln!("{table:?}: {clear:?} of {sent} sent in each version left in clear");
        assert_eq!(clear, [0; 2], "{table:?}, of {sent}");
        assert!(sent > 0);
    }
}

#[test]
fn a_failed_start_leaves_packets_as_they_were() {
    let mut gateways = start(Table::Own, "");
    let file = shown(&gateways.sites[0].path("gateway.toml"));
    let (clear, sent) = clear_while(&mut gateways, |gateways, sent| {
        gateways.stop(0, SIGTERM);
        let before = entries(gateways);
        // In the way of one of its routes.
        gateways.ip(0, "route add 10.2.0.0/24 dev lan metric 0 table 101");
        let failed = gateways.spawn_beside(0, &file);
        let log = gateways.sites[0].path("beside.log");
        eventually("it ends", || {
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            log.contains("would replace").then_some(())
        });
        drop(failed);
        gateways.ip(0, "route delete 10.2.0.0/24 dev lan table 101");
        assert_blocked(gateways);
        await_more(sent);
        assert_eq!(entries(gateways), before);
    });
    assert_eq!(clear, [0; 2], "of {sent}");
    // One that was never there leaves nothing.
    gateways.cleanup(0);
    gateways.ip(0, "route add 10.2.0.0/24 dev lan metric 0 table 101");
    let _failed = gateways.spawn_beside(0, &file);
    let log = gateways.sites[0].path("beside.log");
    eventually("it ends", || {
        let log = std::fs::read_to_string(&log).unwrap_or_default();
        log.contains("would replace").then_some(())
    });
    eventually("nothing stays", || {
        entries(&gateways).is_empty().then_some(())
    });
}

#[test]
fn a_tenant_that_is_configured_no_more_is_not_blocked() {
    for table in [Table::Main, Table::Own] {
        let mut gateways = start(table, "");
        let with = std::fs::read_to_string(gateways.sites[0].path("gateway.toml")).expect("a file");
        let without = without_tenants(&gateways);
        gateways.sites[0].write("gateway.toml", &without);
        let socket = shown(&gateways.sites[0].path("control.sock"));
        run(["reload", "--socket", &socket]).expect_code(0);
        assert_eq!(entries(&gateways), [""; 0], "{table:?}");
        gateways.sites[0].write("gateway.toml", &with);
        run(["reload", "--socket", &socket]).expect_code(0);
        passes(&gateways);
        // The same while it does not run.
        gateways.stop(0, SIGTERM);
        assert_blocked(&gateways);
        gateways.sites[0].write("gateway.toml", &without);
        gateways.restart(0);
        assert_eq!(entries(&gateways), [""; 0], "{table:?}");
    }
}

#[test]
fn packets_pass_in_clear_while_the_gateway_is_stopped_where_the_tenant_wants_it() {
    for table in [Table::Main, Table::Own] {
        let mut gateways = start(table, "when_stopped = \"bypass\"\n");
        let (clear, sent) = clear_while(&mut gateways, |gateways, _| {
            gateways.stop(0, SIGTERM);
            assert_eq!(entries(gateways), [""; 0], "{table:?}");
            let b = gateways.lab.host("b").expect("a host");
            for to in TO {
                let at = SocketAddr::new(to.parse().expect("an address"), 9);
                let receiver = b
                    .run(|| UdpSocket::bind(at).expect("bound"))
                    .expect("entered");
                receiver
                    .set_read_timeout(Some(Duration::from_millis(100)))
                    .expect("set");
                eventually("it arrives in clear", || receiver.recv(&mut [0; 64]).ok());
            }
        });
        assert!(
            clear.iter().all(|count| *count > 0),
            "{table:?}: {clear:?} of {sent}"
        );
        gateways.restart(0);
        passes(&gateways);
    }
}

#[test]
fn what_blocks_packets_is_removed_for_good_by_a_command() {
    let mut gateways = start(Table::Own, "");
    let running = entries(&gateways);
    // Not that of a gateway that runs.
    assert_eq!(gateways.cleanup(0), "");
    assert_eq!(entries(&gateways), running);
    gateways.stop(0, SIGTERM);
    assert_blocked(&gateways);
    let left = entries(&gateways);
    let removed = gateways.cleanup(0);
    assert_eq!(removed.lines().count(), left.len(), "{removed}{left:#?}");
    for part in [
        "removed rule priority 7600 iif lan lookup 101",
        "removed route unreachable 10.2.0.0/24 table 101",
    ] {
        assert!(removed.contains(part), "no `{part}` in {removed}");
    }
    assert_eq!(entries(&gateways), [""; 0]);
    assert_eq!(gateways.cleanup(0), "");
}

/// As after the start of the machine: nothing of a gateway is there.
#[test]
fn packets_are_blocked_from_the_start_of_the_machine_to_that_of_the_gateway() {
    for table in [Table::Main, Table::Own] {
        let mut gateways = start(table, "");
        let running = entries(&gateways);
        assert_eq!(gateways.block(0), "", "{table:?}: all is in place");
        assert_eq!(entries(&gateways), running, "{table:?}");
        gateways.stop(0, SIGTERM);
        let stopped = entries(&gateways);
        gateways.cleanup(0);
        assert_eq!(entries(&gateways), [""; 0], "{table:?}");
        let added = gateways.block(0);
        assert_eq!(added.lines().count(), stopped.len(), "{table:?}: {added}");
        let (clear, sent) = clear_while(&mut gateways, |gateways, sent| {
            assert_eq!(entries(gateways), stopped, "{table:?}");
            assert_blocked(gateways);
            await_more(sent);
            gateways.restart(0);
            passes(gateways);
            assert_eq!(entries(gateways), running, "{table:?}");
        });
        eprintln!("{table:?}: {clear:?} of {sent} sent in each version left in clear");
        assert_eq!(clear, [0; 2], "{table:?}, of {sent}");
    }
    let mut gateways = start(Table::Own, "when_stopped = \"bypass\"\n");
    gateways.stop(0, SIGTERM);
    assert_eq!(gateways.block(0), "");
    assert_eq!(entries(&gateways), [""; 0]);
}
