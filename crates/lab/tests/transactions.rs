//! Transactions of many clients with a server, and load on a host's receive path.

mod support;

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use keiro_lab::{
    Host, Lab,
    traffic::{
        TrafficError,
        load::{Load, ReceiveCounters, ReceiveQueue, RunningLoad, Sink},
        transactions::{Carried, Clients, Server, Stalled, Transactions, carry},
    },
};
use keiro_testing::wait_until;
use keiro_units::ByteCount;
use support::{topology, unique_name, up};

const ONE_MILLISECOND: &str = r#"
[host.client1]
[host.client2]
routes = [{ to = "default", via = "198.51.100.2" }]
[host.server]
sysctl = { "net.ipv4.ip_forward" = 1 }
[link.wan]
a = { host = "client1", addresses = ["192.0.2.1/24"] }
b = { host = "server", addresses = ["192.0.2.2/24"] }
each_way = { delay = "500us" }
[link.wan2]
a = { host = "client2", addresses = ["198.51.100.1/24"] }
b = { host = "server", addresses = ["198.51.100.2/24"] }
each_way = { delay = "500us" }
"#;

const SERVER: &str = "192.0.2.2:0";

fn plan() -> Transactions {
    Transactions {
        per_second: 200,
        round_trips: 6,
        message: ByteCount::new(64),
        seed: 11,
        duration: Duration::from_secs(2),
        drain: Duration::from_secs(20),
        cpu: None,
    }
}

fn hosts(lab: &Lab) -> [&Host; 2] {
    ["client1", "client2"].map(|name| lab.host(name).unwrap())
}

fn server(lab: &Lab) -> Server {
    let host = lab.host("server").unwrap();
    let at: SocketAddr = SERVER.parse().unwrap();
    Server::start(host, at, plan().message, Some("cubic"), None).unwrap()
}

fn run(lab: &Lab, plan: &Transactions, each: usize) -> Carried {
    let server = server(lab);
    let clients = Clients::connect(&hosts(lab), each, server.address(), Some("cubic")).unwrap();
    let ended = AtomicUsize::new(0);
    let carried = carry(
        plan,
        clients,
        &mut || {},
        &|_| {
            ended.fetch_add(1, Ordering::Relaxed);
        },
        &AtomicBool::new(false),
    )
    .unwrap_or_else(|error| panic!("seed {}: {error}", plan.seed));
    let all = carried.records.iter().filter(|r| r.ended_ns.is_some());
    assert_eq!(all.count(), ended.into_inner());
    server.stop().unwrap();
    carried
}

fn milliseconds(carried: &Carried) -> Vec<f64> {
    let all = carried.records.iter();
    all.map(|record| record.duration().unwrap().as_secs_f64() * 1e3)
        .collect()
}

#[test]
fn transactions_take_their_round_trips_and_keep_their_rate() {
    let lab = up(&topology(ONE_MILLISECOND), &unique_name());
    let carried = run(&lab, &plan(), 8);
    assert_eq!(carried.records.len(), 400);
    let durations = milliseconds(&carried);
    let least = durations.iter().copied().fold(f64::MAX, f64::min);
    assert!((6.0..20.0).contains(&least), "{least} ms");
    let used: std::collections::BTreeSet<_> = carried.records.iter().map(|r| r.client).collect();
    assert_eq!(used.len(), 16, "every client has its share");
    assert!(carried.lateness_p99 <= carried.lateness_max);
}

#[test]
fn losses_cost_time_and_no_transaction() {
    let lab = up(&topology(ONE_MILLISECOND), &unique_name());
    for link in ["wan", "wan2"] {
        let loss = keiro_units::Probability::new(0.03).unwrap();
        let lossy = |config: &mut keiro_link::LinkConfig| {
            config.loss = keiro_link::Loss::Bernoulli(loss);
        };
        lab.link(link).unwrap().change(lossy).unwrap();
    }
    let durations = milliseconds(&run(&lab, &plan(), 16));
    assert_eq!(durations.len(), 400);
    // TCP's minimum timeout is 200 ms.
    assert!(durations.iter().any(|ms| *ms > 100.0));
}

#[test]
fn time_counts_from_when_a_transaction_should_have_begun() {
    let lab = up(&topology(ONE_MILLISECOND), &unique_name());
    // Two clients can run at most 2000 / 12 = 166 transactions of 12 ms per second.
    let plan = Transactions {
        round_trips: 12,
        per_second: 250,
        duration: Duration::from_secs(1),
        ..plan()
    };
    let carried = run(&lab, &plan, 1);
    let durations = milliseconds(&carried);
    assert!(carried.waited > 100, "{} waited", carried.waited);
    let longest = durations.iter().copied().fold(0.0, f64::max);
    assert!(longest > 300.0, "{longest} ms at the end of the queue");
}

#[test]
fn unfinished_transactions_are_reported() {
    let lab = up(&topology(ONE_MILLISECOND), &unique_name());
    let server = server(&lab);
    let clients = Clients::connect(&hosts(&lab), 2, server.address(), None).unwrap();
    let plan = Transactions {
        duration: Duration::from_millis(500),
        drain: Duration::from_millis(100),
        ..plan()
    };
    let cut = |name| lab.link(name).unwrap().cut().map(drop).unwrap();
    let carried = carry(
        &plan,
        clients,
        &mut || ["wan", "wan2"].into_iter().for_each(cut),
        &|_| {},
        &AtomicBool::new(false),
    )
    .unwrap();
    let started = carried.records.iter().filter(|r| r.started_ns.is_some());
    assert_eq!(started.count(), 4, "one for each client");
    assert!(carried.records.iter().all(|r| r.duration().is_none()));
}

#[test]
fn a_connection_that_breaks_is_an_error_with_its_client() {
    let lab = up(&topology(ONE_MILLISECOND), &unique_name());
    let server = Mutex::new(Some(server(&lab)));
    let address = server.lock().unwrap().as_ref().unwrap().address();
    let clients = Clients::connect(&hosts(&lab), 2, address, None).unwrap();
    let error = carry(
        &plan(),
        clients,
        &mut || {},
        &|_| drop(server.lock().unwrap().take()),
        &AtomicBool::new(false),
    )
    .unwrap_err();
    assert!(matches!(error, TrafficError::Client { .. }), "{error}");
}

#[test]
fn a_client_without_valid_messages_is_closed_and_others_go_on() {
    let lab = up(&topology(ONE_MILLISECOND), &unique_name());
    let server = server(&lab);
    let client = lab.host("client1").unwrap();
    let address = server.address();
    let connect = || client.run(|| TcpStream::connect(address)).unwrap().unwrap();
    let mut stranger = connect();
    stranger.write_all(&[b'x'; 64]).unwrap();
    stranger
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    // An end, or a reset for unread data.
    assert!(matches!(stranger.read(&mut [0; 64]), Ok(0) | Err(_)));
    // A client that never sends a complete message stays connected and does not disturb others.
    let mut slow = connect();
    slow.write_all(b"KTX1").unwrap();
    let clients = Clients::connect(&hosts(&lab), 4, address, None).unwrap();
    let plan = Transactions {
        duration: Duration::from_millis(300),
        ..plan()
    };
    let carried = carry(&plan, clients, &mut || {}, &|_| {}, &AtomicBool::new(false)).unwrap();
    assert!(carried.records.iter().all(|r| r.duration().is_some()));
}

#[test]
fn load_overflows_the_receive_queue_and_counters_show_it() {
    const TOPOLOGY: &str = r#"
[host.load]
[host.gateway]
[link.up]
a = { host = "load", addresses = ["192.0.2.1/24"] }
b = { host = "gateway", addresses = ["192.0.2.2/24"] }
"#;
    let lab = up(&topology(TOPOLOGY), &unique_name());
    let (from, to) = (lab.host("load").unwrap(), lab.host("gateway").unwrap());
    let queue = ReceiveQueue::make(to, from, "up", 0).unwrap();
    assert!(!queue.threads.is_empty());
    let target: SocketAddr = "192.0.2.2:9000".parse().unwrap();
    let _sink = Sink::start(to, target).unwrap();
    let drops = || ReceiveCounters::read(from).unwrap().devices["up"].send_drops;
    let before = drops();
    let load = Load {
        target,
        burst: 1000,
        every: Duration::from_millis(20),
        datagram_bytes: 64,
        cpu: queue.cpu,
    };
    let running = RunningLoad::start(from, load).unwrap();
    wait_until("the queue overflows", || drops() > before + 100);
    assert!(running.stop().unwrap() >= 1000);
    // This machine's other CPU counters are not checked, because other processes use them too.
    let after = ReceiveCounters::read(to).unwrap();
    assert!(after.devices["up"].received_packets > 0);
}

#[test]
fn a_client_that_never_reads_is_stopped_and_no_other() {
    let lab = up(&topology(ONE_MILLISECOND), &unique_name());
    let server = server(&lab);
    let [host, _] = hosts(&lab);
    let stalled = Stalled::start(host, server.address(), plan().message).unwrap();
    let written = stalled.wait_until_stuck(Duration::from_secs(20)).unwrap();
    assert!(written > 0 && written < 100 << 20, "{written} bytes");
    let mut clients = Clients::connect(&hosts(&lab), 40, server.address(), None).unwrap();
    clients.append(Clients::connect(&[host], 1, server.address(), None).unwrap());
    assert_eq!(clients.count(), 81);
    assert_eq!(clients.use_once(plan().message).unwrap(), 0);
    // The server accepts messages of one length only.
    assert!(clients.use_once(ByteCount::new(8)).is_err());
    assert!(stalled.stop().unwrap(), "its connection broke");
    server.stop().unwrap();
    assert_eq!(clients.use_once(plan().message).unwrap(), 81);
}
