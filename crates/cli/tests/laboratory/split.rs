//! TCP connections of a tenant that the gateways split: hosts behind both, on which nothing is configured.
//!
//! ```text
//!  client ── tokyo ══ 40 Mbit/s, 10 ms ══ osaka ── server
//!                  ══ 20 Mbit/s, 30 ms ══
//! ```

mod faults;
mod sharing;

use std::{
    fmt::Write as _,
    io::{self, Read, Write},
    net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use keiro_linux::tcp;
use serde_json::Value;
use socket2::{Domain, Socket, Type};

use crate::{
    harness::{LIMIT, eventually, finish},
    links::HOSTS,
    pair::{Gateway, Pair},
};

const TOPOLOGY: &str = r#"
[host.client]
routes = [{ to = "default", via = "10.1.0.1" }, { to = "fd00:2::/64", via = "fd00:1::1" }]
[host.tokyo]
sysctl = { "net.ipv4.ip_forward" = 1, "net.ipv6.conf.all.forwarding" = 1 }
[host.osaka]
sysctl = { "net.ipv4.ip_forward" = 1, "net.ipv6.conf.all.forwarding" = 1 }
[host.server]
routes = [{ to = "default", via = "10.2.0.1" }, { to = "fd00:1::/64", via = "fd00:2::1" }]
[link.lan-a]
a = { host = "client", addresses = ["10.1.0.5/24", "fd00:1::5/64"] }
b = { host = "tokyo", addresses = ["10.1.0.1/24", "fd00:1::1/64"] }
[link.lan-b]
a = { host = "osaka", addresses = ["10.2.0.1/24", "fd00:2::1/64"] }
b = { host = "server", addresses = ["10.2.0.5/24", "fd00:2::5/64"] }
[link.wide]
a = { host = "tokyo", addresses = ["192.0.2.1/28"] }
b = { host = "osaka", addresses = ["192.0.2.2/28"] }
each_way = { rate = "40Mbit", delay = "10ms", buffer = "256KiB" }
[link.thin]
a = { host = "tokyo", addresses = ["198.51.100.1/28"] }
b = { host = "osaka", addresses = ["198.51.100.2/28"] }
each_way = { rate = "20Mbit", delay = "30ms", buffer = "256KiB" }
"#;

const PATHS: [(&str, u32, [&str; 2]); 2] = [
    ("wide", 40, ["192.0.2.1:7600", "192.0.2.2:7600"]),
    ("thin", 20, ["198.51.100.1:7600", "198.51.100.2:7600"]),
];
const CLIENT: [&str; 2] = ["10.1.0.5", "fd00:1::5"];
const SERVER: [&str; 2] = ["10.2.0.5:80", "[fd00:2::5]:80"];
const SPLIT: &str = "tcp = \"split\"\n";

/// Of both; headers and acknowledgements of the tunnel take a twentieth.
const RATE_OF_LINKS: f64 = 60e6;

fn start(keys: [&str; 2]) -> Pair {
    start_in(TOPOLOGY, keys, ["", ""])
}

/// With further hosts or settings, and `more` at the end of both configurations.
fn start_in(topology: &str, keys: [&str; 2], more: [&str; 2]) -> Pair {
    let pair = Pair::start_in(
        topology,
        |_| {},
        |own, beginning, peer_key| beginning + &configuration(own, peer_key, keys[own]) + more[own],
    );
    for gateway in [&pair.tokyo, &pair.osaka] {
        eventually("all paths are up", || {
            (gateway.status()?["paths_up"] == 2).then_some(())
        });
        let wants = gateway.configuration().contains(SPLIT);
        eventually("connections are split", || {
            (tenant(gateway)["splits_tcp"] == wants).then_some(())
        });
    }
    pair
}

fn configuration(own: usize, peer_key: &str, keys: &str) -> String {
    let (here, there, peer) = (own + 1, 2 - own, HOSTS[1 - own]);
    let mut text = String::new();
    let mut endpoints = Vec::new();
    for (name, rate, at) in PATHS {
        let _ = writeln!(
            text,
            "[[path]]\nname = \"{name}\"\nlocal = \"{}\"\nrate = \"{rate}Mbit\"",
            at[own]
        );
        endpoints.push(format!("{name} = \"{}\"", at[1 - own]));
    }
    let _ = write!(
        text,
        "[[peer]]\nname = \"{peer}\"\npublic_key = \"{peer_key}\"\nendpoints = {{ {} }}\n\
         [[app]]\nname = \"ip\"\nclass = \"datagram\"\npeer = \"{peer}\"\n\
         [tenant.blue]\nid = 1\ndevice = \"t-blue\"\naddresses = [\"10.{here}.9.1/32\"]\n\
         prefixes = [\"10.{here}.0.0/16\", \"fd00:{here}::/64\"]\n{keys}\
         [tenant.blue.peer.{peer}]\nprefixes = [\"10.{there}.0.0/16\", \"fd00:{there}::/64\"]\napp = \"ip\"\n",
        endpoints.join(", ")
    );
    text
}

fn tenant(gateway: &Gateway) -> Value {
    gateway.json(&["show", "tenant", "blue"])[0].clone()
}

fn listen(pair: &Pair, at: &str) -> TcpListener {
    let host = pair.lab.host("server").expect("a host");
    let at: SocketAddr = at.parse().expect("an address");
    let listener = host.run(|| {
        let socket = Socket::new(Domain::for_address(at), Type::STREAM, None)?;
        socket.bind(&at.into())?;
        // The kernel resets connections that come while its queue is full.
        socket.listen(1024)?;
        Ok::<_, io::Error>(TcpListener::from(socket))
    });
    listener.expect("entered").expect("it listens")
}

fn connect(pair: &Pair, to: &str) -> io::Result<TcpStream> {
    connect_from(pair, "client", None, to)
}

/// From a host's address and port, if they are given.
fn connect_from(pair: &Pair, host: &str, from: Option<&str>, to: &str) -> io::Result<TcpStream> {
    let host = pair.lab.host(host).expect("a host");
    let to: SocketAddr = to.parse().expect("an address");
    let connected = host.run(|| {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        if let Some(from) = from {
            socket.set_reuse_address(true)?;
            let from: SocketAddr = from.parse().expect("an address");
            socket.bind(&from.into())?;
        }
        socket.connect_timeout(&to.into(), Duration::from_secs(20))?;
        Ok::<_, io::Error>(TcpStream::from(socket))
    });
    let stream = connected.expect("entered")?;
    stream.set_read_timeout(Some(LIMIT))?;
    Ok(stream)
}

/// Bytes come over in both directions.
fn exchange(client: &mut TcpStream, served: &mut TcpStream) {
    pass(client, served, b"question");
    pass(served, client, b"response");
}

fn pass(from: &mut TcpStream, to: &mut TcpStream, bytes: &[u8; 8]) {
    from.write_all(bytes).expect("written");
    let mut came = [0; 8];
    to.read_exact(&mut came).expect("read");
    assert_eq!(&came, bytes);
}

fn accept(listener: &TcpListener) -> TcpStream {
    let (stream, _) = listener.accept().expect("accepted");
    stream.set_read_timeout(Some(LIMIT)).expect("set");
    stream
}

fn split_connections(gateway: &Gateway) -> u64 {
    tenant(gateway)["split_connections"]
        .as_u64()
        .expect("a count")
}

/// What arrives of one connection over `length`, after it has grown, bit/s.
fn rate(pair: &Pair, length: Duration) -> f64 {
    const GROWTH: Duration = Duration::from_secs(4);
    let listener = listen(pair, SERVER[0]);
    let mut client = connect(pair, SERVER[0]).expect("connected");
    let mut served = accept(&listener);
    let end = Instant::now() + GROWTH + length;
    thread::scope(|scope| {
        scope.spawn(move || {
            while Instant::now() < end {
                client.write_all(&[7; 64 << 10]).expect("it is taken");
            }
            tcp::reset(client);
        });
        let mut buffer = vec![0; 64 << 10];
        let (mut begun, mut bytes) = (None, 0);
        while Instant::now() < end {
            let count = served.read(&mut buffer).unwrap_or(0);
            if count == 0 {
                break;
            }
            if Instant::now() + length >= end {
                begun.get_or_insert_with(Instant::now);
                bytes += count;
            }
        }
        bytes as f64 * 8.0 / begun.expect("it has grown").elapsed().as_secs_f64()
    })
}

#[test]
fn one_connection_of_unaware_hosts_gets_the_sum_of_both_links() {
    const LENGTH: Duration = Duration::from_secs(8);
    let packets = rate(&start(["", ""]), LENGTH);
    // A machine that pauses looks like a queue to the tenant's windows.
    let once = || rate(&start([SPLIT, SPLIT]), LENGTH);
    let split = crate::in_time(once, |split| split / RATE_OF_LINKS > 0.85);
    println!(
        "one connection over 40 and 20 Mbit/s: {:.1} Mbit/s as packets, {:.1} Mbit/s split",
        packets / 1e6,
        split.unwrap_or_default() / 1e6
    );
    assert!(split.is_none_or(|split| split / RATE_OF_LINKS > 0.85));
}

#[test]
fn addresses_ends_and_resets_are_those_of_client_and_server() {
    let pair = start([SPLIT, SPLIT]);
    for (version, to) in SERVER.iter().enumerate() {
        let listener = listen(&pair, to);
        let mut client = connect(&pair, to).expect("connected");
        let mut served = accept(&listener);
        let seen = served.peer_addr().expect("connected");
        assert_eq!(seen, client.local_addr().expect("connected"));
        assert_eq!(seen.ip(), CLIENT[version].parse::<IpAddr>().expect("one"));
        served.write_all(b"hello").expect("written");
        let mut first = [0; 5];
        client
            .read_exact(&mut first)
            .expect("the server speaks first");
        client.write_all(b"question").expect("written");
        client.shutdown(Shutdown::Write).expect("shut down");
        let mut question = Vec::new();
        served.read_to_end(&mut question).expect("read");
        served.write_all(b"answer").expect("written");
        drop(served);
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).expect("read");
        assert_eq!(
            (&question[..], &answer[..]),
            (&b"question"[..], &b"answer"[..])
        );
        // Either may reset.
        for is_servers in [false, true] {
            let client = connect(&pair, to).expect("connected");
            let served = accept(&listener);
            let (resets, mut sees) = match is_servers {
                true => (served, client),
                false => (client, served),
            };
            tcp::reset(resets);
            let seen = sees.read(&mut [0]).map_err(|error| error.kind());
            assert_eq!(seen, Err(io::ErrorKind::ConnectionReset));
        }
    }
    for gateway in [&pair.tokyo, &pair.osaka] {
        assert_eq!(split_connections(gateway), 6);
        eventually("none is left", || {
            (tenant(gateway)["open_split_connections"] == 0).then_some(())
        });
    }
}

#[test]
fn what_does_not_answer_is_refused_or_unreachable_as_without() {
    let pair = start([SPLIT, SPLIT]);
    let kind = |to: &str| {
        let begun = Instant::now();
        let error = connect(&pair, to).expect_err("nothing is there");
        println!("{to}: {error} after {:?}", begun.elapsed());
        error.kind()
    };
    for closed in ["10.2.0.5:81", "[fd00:2::5]:81"] {
        assert_eq!(kind(closed), io::ErrorKind::ConnectionRefused);
    }
    // No host has the address, which osaka's kernel finds out.
    assert_eq!(kind("10.2.0.77:80"), io::ErrorKind::HostUnreachable);
    let reasons = tenant(&pair.tokyo)["not_split_connections"].clone();
    assert_eq!(reasons["no_server"], 3, "{reasons}");
    // Osaka itself has this one, to which packets lead.
    let osaka = pair.lab.host("osaka").expect("a host");
    let own = osaka
        .run(|| TcpListener::bind("10.2.9.1:80"))
        .expect("entered");
    let own = own.expect("it listens");
    let client = connect(&pair, "10.2.9.1:80").expect("connected");
    assert_eq!(accept(&own).peer_addr().ok(), client.local_addr().ok());
    let reasons = tenant(&pair.tokyo)["not_split_connections"].clone();
    let counted = ["no_server", "destination"].map(|reason| reasons[reason].as_u64());
    assert_eq!(counted, [Some(3), Some(1)], "{reasons}");
    assert_eq!(split_connections(&pair.tokyo), 0);
}

/// So many connections at once, each of which gets its own bytes back.
fn echo_at_once(pair: &Pair, connections: usize) {
    let listener = listen(pair, SERVER[0]);
    let client = pair.lab.host("client").expect("a host");
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::scope(|scope| {
                for _ in 0..connections {
                    let mut served = accept(&listener);
                    scope.spawn(move || {
                        let mut bytes = Vec::new();
                        served.read_to_end(&mut bytes).expect("read");
                        served.write_all(&bytes).expect("written");
                    });
                }
            });
        });
        for number in 0..connections {
            let client = &client;
            scope.spawn(move || {
                let to: SocketAddr = SERVER[0].parse().expect("an address");
                let stream = client.run(|| TcpStream::connect(to)).expect("entered");
                let mut stream = stream.expect("connected");
                let bytes = vec![number as u8; 20_000 + number];
                stream.write_all(&bytes).expect("written");
                stream.shutdown(Shutdown::Write).expect("shut down");
                let mut came = Vec::new();
                stream.read_to_end(&mut came).expect("read");
                assert!(came == bytes, "connection {number}");
            });
        }
    });
}

#[test]
fn two_hundred_connections_at_once_are_split_and_each_has_its_own_bytes() {
    const CONNECTIONS: usize = 200;
    let pair = start([SPLIT, SPLIT]);
    echo_at_once(&pair, CONNECTIONS);
    let split = split_connections(&pair.tokyo);
    println!("{split} of {CONNECTIONS} connections were split");
    assert!(split >= CONNECTIONS as u64 / 2, "{split}");
}

#[test]
fn connections_stay_packets_where_the_peer_does_not_split_them() {
    let pair = start([SPLIT, ""]);
    let listener = listen(&pair, SERVER[0]);
    for _ in 0..2 {
        let mut client = connect(&pair, SERVER[0]).expect("connected");
        exchange(&mut client, &mut accept(&listener));
    }
    let seen = tenant(&pair.tokyo);
    assert_eq!(seen["not_split_connections"]["peer"], 2, "{seen:#}");
    assert_eq!(seen["split_connections"], 0, "{seen:#}");
}

#[test]
fn kill_and_strict_reverse_path_filter_leave_connections_that_are_packets() {
    let mut pair = start([SPLIT, SPLIT]);
    let listener = listen(&pair, SERVER[0]);
    let mut client = connect(&pair, SERVER[0]).expect("connected");
    let _served = accept(&listener);
    pair.tokyo.process.signal(9).expect("it runs");
    let seen = client.read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(seen, Err(io::ErrorKind::ConnectionReset));
    eventually("it ends", || {
        pair.tokyo.process.wait(Duration::ZERO).expect("a child")
    });
    // With the rules that it has left, and without splitting any more.
    let text = pair.tokyo.configuration().replace(SPLIT, "");
    pair.tokyo.site.write("gateway.toml", &text);
    pair.tokyo.restart(&pair.lab);
    eventually("it is up", || {
        (pair.tokyo.status()?["paths_up"] == 2).then_some(())
    });
    let _client = connect(&pair, SERVER[0]).expect("connected");
    assert_eq!(split_connections(&pair.tokyo), 0);
    let tokyo = pair.lab.host("tokyo").expect("a host");
    for (command, none) in [("nft list tables", "keiro-split"), ("ip rule", "4b544350")] {
        let mut words = command.split(' ');
        let mut shell = tokyo.command(words.next().expect("a program"));
        shell.args(words);
        let left = finish(&mut shell, b"").expect_code(0).stdout.to_lowercase();
        assert!(!left.contains(none), "{command}: {left}");
    }
    // Again, where the kernel would drop what comes back from the device.
    let mut sysctl = tokyo.command("sysctl");
    sysctl.args(["-w", "net.ipv4.conf.all.rp_filter=1"]);
    finish(&mut sysctl, b"").expect_code(0);
    let split = text.replace("[tenant.blue.peer", &format!("{SPLIT}[tenant.blue.peer"));
    pair.tokyo.site.write("gateway.toml", &split);
    pair.tokyo.ask(&["reload"]).expect_code(0);
    let problem = tenant(&pair.tokyo)["split_problem"].clone();
    assert!(problem.to_string().contains("rp_filter"), "{problem}");
}
