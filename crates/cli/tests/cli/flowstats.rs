//! `keiro flowstats`: flows for a collector. Needs root, and says so where it is left out.

use std::{
    io::ErrorKind,
    net::{Ipv6Addr, UdpSocket},
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use keiro_lab::{Lab, Topology};

use crate::harness::is_root;

const TOPOLOGY: &str = r#"
[host.a]
[host.b]
[link.wire]
a = { host = "a", addresses = ["2001:db8::a/64"] }
b = { host = "b", addresses = ["2001:db8::b/64"] }
"#;

const PACKETS: u64 = 25;
const PAYLOAD: usize = 100;

/// Octets and packets that records have told of a flow by its addresses and ports.
fn told(messages: &[Vec<u8>], source: u16, destination: u16) -> (u64, u64) {
    let [a, b]: [Ipv6Addr; 2] = ["2001:db8::a", "2001:db8::b"].map(|at| at.parse().unwrap());
    let mut flow = [a.octets(), b.octets()].concat();
    flow.extend([source.to_be_bytes(), destination.to_be_bytes()].concat());
    let mut sum = (0, 0);
    for message in messages {
        let places = (0..message.len()).filter(|at| message[*at..].starts_with(&flow));
        for at in places {
            // Protocol, interface, and octets of IP come between.
            let long = |place: usize| {
                let octets = &message[at + flow.len() + place..][..8];
                u64::from_be_bytes(octets.try_into().unwrap())
            };
            sum = (sum.0 + long(5 + 8), sum.1 + long(5 + 16));
        }
    }
    sum
}

#[test]
fn a_collector_is_told_what_every_flow_has_sent() {
    if !is_root("a_collector_is_told_what_every_flow_has_sent") {
        return;
    }
    let topology = Topology::parse(TOPOLOGY, "flowstats").unwrap();
    let name = format!("ipfix{}", std::process::id());
    let lab = Lab::builder(&topology).name(name).up().unwrap();
    let socket = |host: &str, address: &'static str| {
        let bound = lab.host(host).unwrap().run(|| UdpSocket::bind(address));
        bound.unwrap().unwrap()
    };
    let collector = socket("b", "[2001:db8::b]:4739");
    let sink = socket("b", "[2001:db8::b]:0");
    let sender = socket("a", "[2001:db8::a]:0");
    let host = lab.host("a").unwrap();
    let mut command = host.command(env!("CARGO_BIN_EXE_keiro"));
    command.args([
        "flowstats",
        "wire",
        "--json",
        "--ipfix",
        "[2001:db8::b]:4739",
    ]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let process = host.spawn(command).unwrap();
    let to = sink.local_addr().unwrap();
    // What comes before it counts is not told: until it has told something it may not count yet.
    let mut out = std::io::BufReader::new(process.take_stdout().unwrap());
    let end = Instant::now() + Duration::from_secs(60);
    let first = thread::scope(|scope| {
        let line = scope.spawn(|| {
            let mut line = String::new();
            std::io::BufRead::read_line(&mut out, &mut line).unwrap();
            line
        });
        let probe = socket("a", "[2001:db8::a]:0");
        while !line.is_finished() {
            probe.send_to(b"probe", to).unwrap();
            assert!(Instant::now() < end, "it never counts");
            thread::sleep(Duration::from_millis(10));
        }
        line.join().unwrap()
    });
    assert!(first.starts_with('{'), "{first}");
    for _ in 0..PACKETS {
        sender.send_to(&[0; PAYLOAD], to).unwrap();
    }
    process.signal(keiro_linux::process::SIGTERM).unwrap();
    std::io::copy(&mut out, &mut std::io::sink()).unwrap();
    process
        .wait(Duration::from_secs(30))
        .unwrap()
        .expect("it ends");
    collector.set_nonblocking(true).unwrap();
    let mut messages = Vec::new();
    let mut buffer = [0; 2048];
    loop {
        match collector.recv(&mut buffer) {
            Ok(length) => messages.push(buffer[..length].to_vec()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(!messages.is_empty() && messages.iter().all(|message| message[..2] == [0, 10]));
    let source = sender.local_addr().unwrap().port();
    // UDP, IPv6 and Ethernet.
    let each = (PAYLOAD + 8 + 40 + 14) as u64;
    assert_eq!(
        told(&messages, source, to.port()),
        (PACKETS * each, PACKETS)
    );
    lab.down().unwrap();
}
