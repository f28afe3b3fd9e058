//! Both daemons with the kernel, in network namespaces, with packets as the judges. Without root the
//! tests are left out, and say so.
//!
//! ```text
//!                                  ┌── pa ── transit A ── ca ──┐
//!  server (keiro egress) ── border (keiro asbr)              client (fd00:c0::/30)
//!                                  └── pb ── transit B ── cb ──┘
//! ```

mod alone;
mod comparison;
mod network;
mod paths;
mod reload;
#[path = "../support/mod.rs"]
mod support;
mod vrf;

use std::{
    net::UdpSocket,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use keiro_egress::kernel;
use network::{BORDER, CLIENTS, Network, Noted, OWN, Transit, client, wait_until};

fn is_root(test: &str) -> bool {
    let root = std::fs::read_to_string("/proc/self/status").is_ok_and(|status| {
        let mut lines = status.lines();
        let line = lines.find_map(|line| line.strip_prefix("Uid:"));
        line.is_some_and(|line| line.split_whitespace().nth(1) == Some("0"))
    });
    if !root {
        eprintln!("{test}: not root, so network namespaces are left out");
    }
    root
}

fn has_route(network: &Network, host: &str, table: u32, prefix: &str) -> bool {
    let shown = network.ip(host, &format!("route show table {table} {prefix}"));
    shown.contains(prefix)
}

/// What of a routing protocol number is left in a host.
fn left(network: &Network, host: &str, protocol: u8) -> String {
    let all = [
        format!("route show table all proto {protocol}"),
        format!("nexthop show proto {protocol}"),
        "addr show to fd00:e::/64".to_owned(),
    ];
    let rules = network.ip(host, "rule show");
    let proto = format!("proto {protocol}");
    let rules = rules.lines().filter(|line| line.contains(&proto));
    let rest: String = all.iter().map(|what| network.ip(host, what)).collect();
    rest + &rules.collect::<String>()
}

#[test]
fn packets_leave_by_the_peer_of_their_source_address_and_only_where_it_announces() {
    if !is_root("packets") {
        return;
    }
    let network = Network::new();
    let (border, server) = (network.border(), network.server());
    let a = network.transit(0, &CLIENTS);
    let b = network.transit(1, &CLIENTS[1..]);
    wait_until("all routes in the server's tables", || {
        (0..4).all(|n| has_route(&network, "server", 7600, CLIENTS[n]))
            && (1..4).all(|n| has_route(&network, "server", 7601, CLIENTS[n]))
    });
    for (number, own) in OWN.into_iter().enumerate() {
        assert_eq!(network.send(own, 1).unwrap(), number, "from {own}");
    }
    let error = network.send(OWN[1], 0).unwrap_err();
    assert!(is_unreachable(&error), "B does not announce it: {error:?}");
    // What is chosen by nobody takes the best path.
    network.send("fd00:1::2", 1).unwrap();

    a.announce(CLIENTS[1], false);
    wait_until("the sender is told", || {
        network.send(OWN[0], 1).is_err_and(|e| is_unreachable(&e))
    });
    assert_eq!(network.send(OWN[1], 1).unwrap(), 1);
    a.announce(CLIENTS[1], true);
    wait_until("the way is back", || network.send(OWN[0], 1).is_ok());

    // A session that is lost takes segment, table and routes.
    drop(b);
    wait_until("no segment of B", || {
        !network
            .ip("border", "route show")
            .contains("fd00:51d:0:b::")
    });
    wait_until("the sender is told", || {
        network.send(OWN[1], 1).is_err_and(|e| is_unreachable(&e))
    });
    assert_eq!(network.ip("border", "route show table 7800"), "");
    assert_eq!(network.send(OWN[0], 1).unwrap(), 0);
    let b = network.transit(1, &CLIENTS);
    wait_until("B is back", || network.send(OWN[1], 0).is_ok());

    // The border router leaves nothing; the server what is wanted again, until it is told to.
    drop(border);
    assert_eq!(left(&network, "border", 77), "");
    wait_until("no routes without a border router", || {
        network.send(OWN[0], 1).is_err()
    });
    drop((server, a, b));
    let furniture = left(&network, "server", 76);
    for what in ["unreachable default", "lookup 7600", "fd00:e::a"] {
        assert!(furniture.contains(what), "{what}: {furniture}");
    }
    let report = network.host("server").run(kernel::cleanup_endpoint);
    assert!(report.unwrap().unwrap().is_clean());
    assert_eq!(left(&network, "server", 76), "");
    network.lab.down().unwrap();
}

#[test]
fn a_segment_to_the_peer_itself_needs_no_table() {
    if !is_root("segments to peers") {
        return;
    }
    let network = Network::new();
    let direct = "function = 0xa\nbehaviour = \"end.dx6\"";
    let border = network.border_of(&BORDER.replacen("function = 0xa", direct, 1));
    let server = network.server();
    let (a, b) = (network.transit(0, &CLIENTS), network.transit(1, &CLIENTS));
    wait_until("all routes in the server's tables", || {
        (0..4).all(|n| has_route(&network, "server", 7600, CLIENTS[n]))
            && (0..4).all(|n| has_route(&network, "server", 7601, CLIENTS[n]))
    });
    for (number, own) in OWN.into_iter().enumerate() {
        assert_eq!(network.send(own, 1).unwrap(), number, "from {own}");
    }
    let segments = network.ip("border", "route show");
    assert!(
        segments.contains("action End.DX6 nh6 fd00:a::2"),
        "{segments}"
    );
    assert_eq!(network.ip("border", "route show table 7700"), "");
    a.announce(CLIENTS[1], false);
    wait_until("the sender is told", || {
        network.send(OWN[0], 1).is_err_and(|e| is_unreachable(&e))
    });
    assert_eq!(network.send(OWN[0], 2).unwrap(), 0);
    drop(a);
    wait_until("no segment of A", || {
        !network.ip("border", "route show").contains("End.DX6")
    });
    drop(border);
    assert_eq!(left(&network, "border", 77), "");
    drop((server, b));
    network.lab.down().unwrap();
}

#[test]
fn a_server_that_starts_again_takes_over_what_is_there_and_drops_what_is_gone() {
    if !is_root("start again") {
        return;
    }
    let network = Network::new();
    let (_border, server) = (network.border(), network.server());
    let a = network.transit(0, &CLIENTS);
    let _b = network.transit(1, &CLIENTS);
    let both = |n| [7600, 7601].map(|table| has_route(&network, "server", table, CLIENTS[n]));
    wait_until("all routes", || (0..4).all(|n| both(n) == [true; 2]));
    drop(server);
    assert_eq!(both(1), [true; 2], "connections go on");
    assert_eq!(network.send(OWN[0], 1).unwrap(), 0);
    a.announce(CLIENTS[2], false);
    let border_has = || has_route(&network, "border", 7700, CLIENTS[2]);
    wait_until("withdrawn at the border", || !border_has());
    assert_eq!(both(2), [true; 2], "nobody is there to hear it");
    let mut monitor = network.host("server").command("ip");
    monitor
        .args(["-6", "monitor", "route"])
        .stdout(std::process::Stdio::piped());
    let monitor = network.host("server").spawn(monitor).unwrap();
    let server = network.server();
    wait_until("what nobody announces goes", || both(2) == [false, true]);
    assert_eq!(
        (both(0), both(1), both(3)),
        ([true; 2], [true; 2], [true; 2])
    );
    assert_eq!(network.send(OWN[0], 1).unwrap(), 0);
    let mut heard = String::new();
    let out = monitor.take_stdout();
    monitor.end(Duration::from_secs(1)).unwrap();
    std::io::Read::read_to_string(&mut out.unwrap(), &mut heard).unwrap();
    let of_kept = heard.lines().filter(|line| line.contains("fd00:c1::"));
    assert_eq!(
        of_kept.count(),
        0,
        "routes that stay are not touched: {heard}"
    );

    // What somebody else takes away is put back.
    network.ip("server", "nexthop flush proto 76");
    wait_until("routes are back", || both(1) == [true; 2]);
    drop(server);
    network.lab.down().unwrap();
}

#[test]
fn no_packet_goes_to_a_peer_that_does_not_announce_its_destination() {
    if !is_root("thousand events") {
        return;
    }
    let network = Network::new();
    let (border, server) = (network.border(), network.server());
    let transits = [0, 1].map(|n| network.transit(n, &CLIENTS));
    wait_until("all routes", || {
        let of = |table| (0..4).all(|n| has_route(&network, "server", table, CLIENTS[n]));
        of(7600) && of(7601)
    });
    let receiver = network.host("client").run(|| UdpSocket::bind("[::]:0"));
    let receiver = receiver.unwrap().unwrap();
    let port = receiver.local_addr().unwrap().port();
    receiver
        .set_read_timeout(Some(Duration::from_millis(20)))
        .unwrap();
    let stop = AtomicBool::new(false);
    let sockets = OWN.map(|own| network.host("server").run(|| UdpSocket::bind((own, 0))));
    let sockets = sockets.map(|socket| socket.unwrap().unwrap());
    let stopped = || stop.load(Ordering::Acquire);
    let (arrivals, ordered) = thread::scope(|scope| {
        scope.spawn(|| send_until(&stopped, &sockets, port));
        let receiving = scope.spawn(|| receive_until(&stopped, &receiver));
        let ordered = change_at_random(&transits);
        stop.store(true, Ordering::Release);
        (receiving.join().unwrap(), ordered)
    });
    let (at_border, at_server) = (border.log(), server.log());
    let late = lateness(&arrivals, &at_border);
    println!(
        "{} packets during {EVENTS} events; the latest came {late:?} after a withdrawal came to \
         the border router",
        arrivals.len()
    );
    for there in [false, true] {
        let what = if there { "announced" } else { "withdrawn" };
        for (from, since) in [("the transit", &ordered), ("the border router", &at_border)] {
            let mut took = delays(since, &at_server, there);
            took.sort();
            let of = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
            println!(
                "{what}, from {from} to the server's kernel: {} times, median {:?}, 99 % {:?}, \
                 most {:?}",
                took.len(),
                of(0.5),
                of(0.99),
                of(1.0)
            );
        }
    }
    assert!(arrivals.len() > 1000, "{}", arrivals.len());
    assert!(late <= Duration::from_millis(20), "{late:?}");
    drop((border, server, transits));
    network.lab.down().unwrap();
}

const EVENTS: usize = 1000;

/// A packet that came: when, of which peer's address, to which client prefix.
struct Arrival {
    at: Instant,
    peer: usize,
    to: usize,
}

fn send_until(stopped: &impl Fn() -> bool, sockets: &[UdpSocket; 2], port: u16) {
    while !stopped() {
        for to in 0..CLIENTS.len() {
            for (peer, socket) in sockets.iter().enumerate() {
                // Refused where there is no route.
                let _ = socket.send_to(&[peer as u8, to as u8], (client(to), port));
            }
        }
        thread::sleep(Duration::from_micros(500));
    }
}

fn receive_until(stopped: &impl Fn() -> bool, receiver: &UdpSocket) -> Vec<Arrival> {
    let mut arrivals = Vec::new();
    let mut packet = [0; 2];
    while !stopped() {
        if receiver.recv(&mut packet).is_ok() {
            arrivals.push(Arrival {
                at: Instant::now(),
                peer: packet[0].into(),
                to: packet[1].into(),
            });
        }
    }
    arrivals
}

/// Each event announces what is not, or withdraws what is.
fn change_at_random(transits: &[Transit; 2]) -> Vec<Noted> {
    let mut seed = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    println!("seed {seed}");
    let mut roll = |below: u64| {
        // Knuth's linear congruential generator (MMIX).
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((seed >> 33) % below) as usize
    };
    let mut announced = [[true; CLIENTS.len()]; 2];
    let mut ordered = Vec::new();
    for _ in 0..EVENTS {
        // The last prefix stays, so that no table is ever emptied as a whole.
        let (peer, net) = (roll(2), roll(CLIENTS.len() as u64 - 1));
        let now = &mut announced[peer][net];
        *now = !*now;
        let at = Instant::now();
        ordered.push(Noted {
            peer,
            destination: CLIENTS[net].parse().unwrap(),
            there: *now,
            begun: at,
            done: at,
        });
        transits[peer].announce(CLIENTS[net], *now);
        thread::sleep(Duration::from_micros(500 + 100 * roll(100) as u64));
    }
    ordered
}

/// How long after the border router heard of a withdrawal the last packet came nevertheless.
fn lateness(arrivals: &[Arrival], at_border: &[Noted]) -> Duration {
    let mut most = Duration::ZERO;
    for arrival in arrivals {
        let of_route = at_border.iter().rev().find(|noted| {
            noted.peer == arrival.peer
                && noted.destination == CLIENTS[arrival.to].parse().unwrap()
                && noted.begun <= arrival.at
        });
        let noted = of_route.expect("a packet where nothing was ever announced");
        if !noted.there {
            most = most.max(arrival.at - noted.begun);
        }
    }
    most
}

/// From when a change begins somewhere until the server's kernel has it.
fn delays(since: &[Noted], at_server: &[Noted], there: bool) -> Vec<Duration> {
    let changes = since.iter().filter(|noted| noted.there == there);
    let took = changes.filter_map(|noted| {
        let same = |other: &&Noted| {
            other.peer == noted.peer
                && other.destination == noted.destination
                && other.done >= noted.begun
        };
        let next = at_server.iter().find(same)?;
        // Changes that came and went at once are not told.
        (next.there == there).then(|| next.done - noted.begun)
    });
    took.collect()
}

fn is_unreachable(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{HostUnreachable, NetworkUnreachable};
    [HostUnreachable, NetworkUnreachable].contains(&error.kind())
}
