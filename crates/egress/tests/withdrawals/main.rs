//! How soon a withdrawal is in force: a binary with one test, so that nothing runs beside what it measures.

#[path = "../kernel/network.rs"]
mod network;
#[path = "../support/mod.rs"]
mod support;

use std::{
    net::UdpSocket,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use keiro_lab::host_noise::{NoiseAllowance, retry_until_undisturbed};
use network::{CLIENTS, Network, Noted, OWN, Transit, client, has_root};

#[test]
fn no_packet_goes_to_a_peer_that_does_not_announce_its_destination() {
    let test = "no_packet_goes_to_a_peer_that_does_not_announce_its_destination";
    if !has_root(test) {
        return;
    }
    let is_in_time = |late: &Duration| *late <= LATE_MAX;
    let allowance = NoiseAllowance {
        processor: PAUSE_MAX,
        disk: None,
    };
    match retry_until_undisturbed(allowance, PATIENCE, lateness_of_packets, is_in_time) {
        Ok(late) => assert!(is_in_time(&late), "{late:?}"),
        Err(disturbed) => disturbed.skip_test(test),
    }
}

/// What the figures ask for, with what the kernel takes.
const LATE_MAX: Duration = Duration::from_millis(20);
/// Where others are kept waiting for as long, a packet that came later than that is the machine's doing.
const PAUSE_MAX: Duration = Duration::from_millis(10);
/// Enough for several times a thousand events.
const PATIENCE: Duration = Duration::from_secs(40);

/// How late after a withdrawal a packet came, the most during a thousand events.
fn lateness_of_packets() -> Duration {
    let network = Network::up();
    let (border, server) = (network.border(), network.server());
    let transits = [0, 1].map(|n| network.transit(n, &CLIENTS));
    network.await_routes([&CLIENTS; 2]);
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
    drop((border, server, transits));
    network.lab.down().unwrap();
    late
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
        // Changes that cancel out within a batch are not reported.
        (next.there == there).then(|| next.done - noted.begun)
    });
    took.collect()
}
