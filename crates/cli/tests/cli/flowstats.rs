//! `keiro flowstats`: flows for a collector, totals for Prometheus. Needs root, and says so where it
//! is left out.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Ipv6Addr, TcpListener, TcpStream, UdpSocket},
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use keiro_lab::{Host, Lab, Topology};

use crate::harness::{is_root, run};

const TOPOLOGY: &str = r#"
[host.a]
[host.b]
[link.wire]
a = { host = "a", addresses = ["2001:db8::a/64"] }
b = { host = "b", addresses = ["2001:db8::b/64"] }
"#;

const PACKETS: u64 = 25;
const PAYLOAD: usize = 100;

/// Octets and packets that records have reported for a flow by its addresses and ports.
fn shown(messages: &[Vec<u8>], source: u16, destination: u16) -> (u64, u64) {
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
fn what_would_count_wrongly_is_refused() {
    for (arguments, said) in [
        (&["lo", "lo"][..], "`lo` is named twice"),
        (
            &["lo", "--interval", "9ms"][..],
            "--interval: less than 10ms",
        ),
    ] {
        let ran = run([&["flowstats"][..], arguments].concat()).expect_code(64);
        ran.says(&[said]);
    }
}

#[test]
fn a_collector_receives_what_every_flow_has_sent() {
    if !is_root("a_collector_receives_what_every_flow_has_sent") {
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
    // Traffic before it counts is not reported: it may not count until its first report.
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
    let source = sender.local_addr().unwrap().port();
    collector.set_nonblocking(true).unwrap();
    let mut messages = Vec::new();
    let mut buffer = [0; 2048];
    loop {
        match collector.recv(&mut buffer) {
            Ok(length) => messages.push(buffer[..length].to_vec()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                // On a busy machine the last of them may still be under way.
                if shown(&messages, source, to.port()).1 >= PACKETS {
                    break;
                }
                assert!(Instant::now() < end, "{} messages", messages.len());
                thread::sleep(Duration::from_millis(5));
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(messages.iter().all(|message| message[..2] == [0, 10]));
    // UDP, IPv6 and Ethernet.
    let each = (PAYLOAD + 8 + 40 + 14) as u64;
    assert_eq!(
        shown(&messages, source, to.port()),
        (PACKETS * each, PACKETS)
    );
    lab.down().unwrap();
}

const SCRAPED: &str = "[::1]:9479";

/// What the metrics server of a host says to a request; `None`: no listener.
fn ask(host: &Host, request: &[u8]) -> Option<String> {
    let said = host.run(|| {
        let mut stream = TcpStream::connect(SCRAPED).ok()?;
        let limit = Some(Duration::from_secs(30));
        stream.set_read_timeout(limit).unwrap();
        // One that is refused early may be cut short.
        let _ = stream.write_all(request);
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        Some(String::from_utf8_lossy(&said).into_owned())
    });
    said.unwrap()
}

/// The value of a line of metrics.
fn value(page: &str, name: &str) -> Option<u64> {
    let line = page.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().parse().ok()
}

/// The command has nothing but its arguments: no environment, no configuration, no daemon.
#[test]
fn prometheus_reads_totals_by_egress_peer_from_the_command_alone() {
    if !is_root("prometheus_reads_totals_by_egress_peer_from_the_command_alone") {
        return;
    }
    let topology = Topology::parse(TOPOLOGY, "flowstats").unwrap();
    let name = format!("scrape{}", std::process::id());
    let lab = Lab::builder(&topology).name(name).up().unwrap();
    let host = lab.host("a").unwrap();
    let nowhere = tempfile::tempdir().unwrap();
    let begin = |arguments: &[&str]| {
        let mut command = host.command(env!("CARGO_BIN_EXE_keiro"));
        command
            .args(["flowstats", "wire", "--json"])
            .args(arguments);
        command.env_clear().current_dir(nowhere.path());
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        host.spawn(command).unwrap()
    };
    let process = begin(&["--metrics-listen", SCRAPED]);
    let get = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
    let end = Instant::now() + Duration::from_secs(60);
    while ask(host, get).is_none() {
        assert!(Instant::now() < end, "it never listens");
        thread::sleep(Duration::from_millis(10));
    }
    let bad: [(&[u8], &str); 4] = [
        (b"\0\xff\r\n\r\n", "HTTP/1.1 400 "),
        (b"PUT /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 405 "),
        (b"GET /../etc/passwd HTTP/1.1\r\n\r\n", "HTTP/1.1 404 "),
        (&[b'x'; (8 << 10) + 1], "HTTP/1.1 431 "),
    ];
    for (request, answer) in bad {
        let said = ask(host, request).expect("it listens");
        assert!(said.starts_with(answer), "{said}");
    }
    let packets = r#"keiro_flowstats_packets_total{interface="wire",peer="best path",sid=""}"#;
    let count = || value(&ask(host, get).expect("it listens"), packets);
    // Whatever the link itself sends is counted, too: more than what was sent.
    let address = "[2001:db8::a]:0";
    let sender = host.run(|| UdpSocket::bind(address).unwrap()).unwrap();
    let before = count().unwrap_or_default();
    for _ in 0..PACKETS {
        sender.send_to(&[0; PAYLOAD], "[2001:db8::b]:9").unwrap();
    }
    while count().unwrap_or_default() < before + PACKETS {
        assert!(Instant::now() < end, "never counted: {:?}", ask(host, get));
        thread::sleep(Duration::from_millis(10));
    }
    process.signal(keiro_linux::process::SIGTERM).unwrap();
    let ended = process.wait(Duration::from_secs(30)).unwrap();
    assert!(ended.expect("it ends").success());

    let taken = host.run(|| TcpListener::bind(SCRAPED).unwrap()).unwrap();
    for (arguments, reason) in [
        (
            &["--metrics-listen", SCRAPED][..],
            "cannot listen on [::1]:9479",
        ),
        (
            &["--metrics-listen", "[::]:9480"],
            "is not a loopback address",
        ),
        (&["--metrics-listen", "9480"], "invalid"),
        (&["--metrics-public"], "--metrics-listen"),
    ] {
        let process = begin(arguments);
        let mut said = String::new();
        let mut errors = process.take_stderr().unwrap();
        errors.read_to_string(&mut said).unwrap();
        assert!(said.contains(reason), "{arguments:?}: {said}");
        let ended = process.wait(Duration::from_secs(30)).unwrap();
        assert!(!ended.expect("it ends").success(), "{arguments:?}");
    }
    drop(taken);
    lab.down().unwrap();
}
