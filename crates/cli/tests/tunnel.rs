//! IP packets through two gateways, in namespaces. Needs root and iproute2, and fails without.
//!
//! ```text
//! a, its devices ====== b, its devices
//! ```
//!
//! Programs run beside each gateway and use its TUN devices, as a small site's only machine would.

mod harness;

use std::{
    fmt::Write as _,
    fs::File,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    process::{self, Stdio},
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use harness::{LIMIT, Site, eventually, finish, run, shown};
use keiro_control::metrics;
use keiro_lab::{Interrupts, Lab, Process, Topology};
use keiro_linux::process::{SIGKILL, SIGTERM};
use serde_json::Value;
use socket2::{Domain, Protocol, Socket, Type};

const TOPOLOGY: &str = r#"
[host.a]

[host.b]

[link.wan]
a = { host = "a", addresses = ["192.0.2.1/24"] }
b = { host = "b", addresses = ["192.0.2.2/24"] }
"#;

const MIB: usize = 1 << 20;

/// Two gateways, ended when dropped.
struct Gateways {
    // First, so that the gateways end before their files go.
    lab: Lab,
    sites: [Site; 2],
    processes: [Process; 2],
}

/// A tenant whose gateway `n` has 10.N.0.0/24 and fd00:N::/64, with N of 1 and 2.
fn tenant(own: usize, name: &str, id: u32, more: &str) -> String {
    let (here, there) = (own + 1, 2 - own);
    let peer = NAMES[1 - own];
    format!(
        "[tenant.{name}]\nid = {id}\ndevice = \"t-{name}\"\n\
         addresses = [\"10.{here}.0.1/32\", \"fd00:{here}::1/128\"]\n\
         prefixes = [\"10.{here}.0.0/24\", \"fd00:{here}::/64\"]\n{more}\
         [tenant.{name}.peer.{peer}]\n\
         prefixes = [\"10.{there}.0.0/24\", \"fd00:{there}::/64\"]\napp = \"ip\"\n"
    )
}

const NAMES: [&str; 2] = ["a", "b"];
const METRICS: &str = "127.0.0.1:9477";

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
        .filter(|metric| metric.name.starts_with("keiro_tenant_"));
    for metric in of_tenants {
        let line = format!("\n{}{{tenant=\"blue\"", metric.name);
        assert!(page.contains(&line), "no {} in {page}", metric.name);
    }
}

#[test]
fn two_tenants_may_have_the_same_addresses() {
    let tenants = |own| {
        tenant(own, "blue", 1, "table = 101\n")
            + &tenant(own, "red", 2, "table = 102\nlaw = \"i2vfc\"\n")
    };
    let mut gateways = Gateways::start(tenants);
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
        assert!(
            tenant["peers"][0]["paths"][0]["window_bytes"].as_u64() > Some(0),
            "{tenant:#}"
        );
    }
    let explained = gateways.ask(0, &["explain", "ip"]).expect("an answer");
    let text = explained["text"].as_str().expect("a text");
    for part in [
        "It carries packets of tenant blue: weight 1, 50 % of all weights, ",
        "It carries packets of tenant red: weight 1, 50 % of all weights, ",
        " of its window of ",
    ] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
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
    assert_eq!(rules(&gateways), 0);
    assert!(!gateways.ip(0, "link show").contains("t-blue"));
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
    assert_eq!(gateways.tenant(1, "blue")["left_packets"], 0);
}

#[test]
fn what_is_too_big_is_told_to_its_sender() {
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
        eventually("a datagram arrives in pieces that fit", || {
            // An error tells of the smaller MTU.
            let _ = sender.send_to(&[0x5a; 4000], at);
            let mut buffer = [0; 5000];
            let length = receiver.recv(&mut buffer).ok()?;
            assert!(buffer[..length] == [0x5a; 4000]);
            Some(())
        });
        let route = gateways.ip(0, &format!("route get {to}"));
        assert!(route.contains(" mtu 14"), "{route}");
    }
    let tenant = gateways.tenant(0, "blue");
    assert_eq!(tenant["dropped_packets"]["too_big"], 2, "{tenant:#}");
    assert_eq!(tenant["answer_packets"], 2, "{tenant:#}");
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

    gateways.ip(0, "link delete t-blue");
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
    for part in ["tenant blue", "t-blue", "networks here", "window"] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
}

/// Tells what a transfer costs over plain veth, at a rate that nothing reaches and without windows;
/// nothing is asserted but that every byte arrives.
#[test]
fn a_transfer_at_full_speed_arrives_intact_and_tells_its_cost() {
    let text = |own| tenant(own, "blue", 1, "law = \"open\"\nqueue = \"8MiB\"\n");
    let gateways = Gateways::start_at("10Gbit", text);
    let before = [0, 1].map(|own| gateways.cpu_seconds(own));
    gateways.transfer(0, "10.2.0.1", None, 256 * MIB);
    let cpu = [0, 1].map(|own| gateways.cpu_seconds(own) - before[own]);
    let [sending, receiving] = cpu.map(|seconds| seconds * 4.0);
    eprintln!("CPU {sending:.2} s/GiB sending, {receiving:.2} s/GiB receiving");
}

impl Gateways {
    /// What gateway `own` has used so far, user and system.
    fn cpu_seconds(&self, own: usize) -> f64 {
        let file = format!("/proc/{}/stat", self.processes[own].id());
        let text = std::fs::read_to_string(file).expect("it runs");
        // After the name in parentheses, which may hold spaces; in ticks of 10 ms (proc(5)).
        let (_, rest) = text.rsplit_once(')').expect("a name");
        let ticks = rest.split_whitespace().skip(11).take(2);
        ticks
            .map(|n| n.parse::<f64>().expect("a number"))
            .sum::<f64>()
            / 100.0
    }

    fn tenant(&self, own: usize, name: &str) -> Value {
        eventually("the gateway answers", || {
            let tenants = self.ask(own, &["show", "tenant", name])?;
            Some(tenants[0].clone())
        })
    }

    fn stop(&mut self, own: usize, signal: i32) {
        self.processes[own].signal(signal).expect("it runs");
        eventually("it ends", || {
            self.ask(own, &["status"]).is_none().then_some(())
        });
        eventually("its devices go", || {
            (!self.ip(own, "link show").contains("t-")).then_some(())
        });
    }

    fn restart(&mut self, own: usize) {
        let file = shown(&self.sites[own].path("gateway.toml"));
        self.processes[own] = spawn(&self.lab, &self.sites[own], own, &file);
        self.await_paths();
    }

    fn start(tenants: impl Fn(usize) -> String) -> Self {
        Self::start_at("400Mbit", tenants)
    }

    fn start_at(rate: &str, tenants: impl Fn(usize) -> String) -> Self {
        let lab = lab();
        let sites = [Site::new(), Site::new()];
        let keys = [sites[0].public_key(), sites[1].public_key()];
        let start = |own: usize| {
            let site = &sites[own];
            let text = configuration(site, own, rate, &keys[1 - own]) + &tenants(own);
            let file = site.write("gateway.toml", &text);
            spawn(&lab, site, own, &shown(&file))
        };
        let processes = [start(0), start(1)];
        let gateways = Self {
            lab,
            sites,
            processes,
        };
        gateways.await_paths();
        gateways
    }

    fn await_paths(&self) {
        for own in [0, 1] {
            eventually("the path is up and as wide as it is", || {
                let paths = self.ask(own, &["show", "path"])?;
                let path = &paths[0];
                (path["state"] == "up" && path["mtu_bytes"] == 1500).then_some(())
            });
        }
    }

    /// An echo request of gateway `own` to `to`, and its answer.
    fn ping(&self, own: usize, to: &str, device: Option<&str>) {
        let to: IpAddr = to.parse().expect("an address");
        let host = self.lab.host(NAMES[own]).expect("a host");
        let device = device.map(str::to_owned);
        let answered = host.run(move || echo(to, 56, device.as_deref()));
        assert_eq!(answered.expect("entered"), Some(56), "{to}");
    }

    /// Sends `bytes` from gateway `own` to `to` at the other over TCP and compares every one.
    fn transfer(&self, own: usize, to: &str, device: Option<&str>, bytes: usize) {
        let [sender, receiver] =
            [own, 1 - own].map(|own| self.lab.host(NAMES[own]).expect("a host"));
        let to = SocketAddr::new(to.parse().expect("an address"), 0);
        let bound = device.map(str::to_owned);
        let listener = receiver.run(|| {
            let socket = Socket::new(Domain::for_address(to), Type::STREAM, None).expect("made");
            if let Some(device) = &bound {
                socket.bind_device(Some(device.as_bytes())).expect("bound");
            }
            socket.bind(&to.into()).expect("bound");
            socket.listen(8).expect("listening");
            TcpListener::from(socket)
        });
        let listener = listener.expect("entered");
        let to = listener.local_addr().expect("bound");
        let stream = sender.run(|| {
            let socket = Socket::new(Domain::for_address(to), Type::STREAM, None).expect("made");
            if let Some(device) = &bound {
                socket.bind_device(Some(device.as_bytes())).expect("bound");
            }
            socket
                .connect_timeout(&to.into(), LIMIT)
                .expect("connected");
            TcpStream::from(socket)
        });
        let mut stream = stream.expect("entered");
        let start = Instant::now();
        let (mut accepted, _) = listener.accept().expect("accepted");
        accepted.set_read_timeout(Some(LIMIT)).expect("set");
        stream.set_write_timeout(Some(LIMIT)).expect("set");
        thread::scope(|scope| {
            scope.spawn(move || {
                let mut chunk = vec![0; CHUNK];
                for offset in (0..bytes).step_by(CHUNK) {
                    fill(offset, &mut chunk);
                    stream.write_all(&chunk).expect("sent");
                }
            });
            let (mut chunk, mut expected) = (vec![0; CHUNK], vec![0; CHUNK]);
            for offset in (0..bytes).step_by(CHUNK) {
                accepted.read_exact(&mut chunk).expect("received");
                fill(offset, &mut expected);
                assert!(chunk == expected, "bytes from {offset} on differ");
            }
            assert_eq!(accepted.read(&mut chunk).expect("an end"), 0);
            let seconds = start.elapsed().as_secs_f64();
            eprintln!("{to}: {:.1} MiB/s", bytes as f64 / MIB as f64 / seconds);
        });
    }

    /// `None` while the gateway does not answer.
    fn ask(&self, own: usize, args: &[&str]) -> Option<Value> {
        let socket = shown(&self.sites[own].path("control.sock"));
        let args = args.iter().copied();
        let ran = run(args.chain(["--socket", &socket, "--json"]));
        serde_json::from_str(&ran.stdout).ok()
    }

    /// The page that Prometheus reads.
    fn metrics(&self, own: usize) -> String {
        let host = self.lab.host(NAMES[own]).expect("a host");
        let stream = host.run(|| TcpStream::connect(METRICS)).expect("entered");
        let mut stream = stream.expect("connected");
        stream.set_read_timeout(Some(LIMIT)).expect("set");
        let request =
            format!("GET /metrics HTTP/1.1\r\nHost: {METRICS}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("asked");
        let mut page = String::new();
        stream.read_to_string(&mut page).expect("a page");
        page
    }

    /// What `ip` prints beside gateway `own`.
    fn ip(&self, own: usize, args: &str) -> String {
        let host = self.lab.host(NAMES[own]).expect("a host");
        let mut command = host.command("ip");
        command.args(args.split_whitespace());
        finish(&mut command, b"").expect_code(0).stdout
    }
}

const CHUNK: usize = 64 * 1024;

/// Bytes that tell where they belong: repeated blocks would hide a segment in the wrong place.
fn fill(offset: usize, buffer: &mut [u8]) {
    for (index, word) in buffer.chunks_mut(8).enumerate() {
        let number = (offset / 8 + index) as u64;
        let bytes = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_ne_bytes();
        word.copy_from_slice(&bytes[..word.len()]);
    }
}

/// Pings until there is an answer, and gives the length of its payload; `None`: there is none.
fn echo(to: IpAddr, bytes: usize, device: Option<&str>) -> Option<usize> {
    const ID: u16 = 0x6b65;
    let (domain, protocol, request, reply) = match to {
        IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4, 8, 0),
        IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6, 128, 129),
    };
    let mut socket = Socket::new(domain, Type::RAW, Some(protocol)).expect("a raw socket");
    if let Some(device) = device {
        socket.bind_device(Some(device.as_bytes())).expect("bound");
    }
    let wait = Duration::from_millis(300);
    socket.set_read_timeout(Some(wait)).expect("set");
    let mut packet = vec![request, 0, 0, 0, (ID >> 8) as u8, ID as u8, 0, 1];
    packet.resize(8 + bytes, 0x5a);
    if to.is_ipv4() {
        let words = packet.chunks(2);
        let sum: u32 = words
            .map(|word| u32::from(word[0]) << 8 | word.get(1).map_or(0, |low| u32::from(*low)))
            .sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        packet[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    let end = Instant::now() + LIMIT;
    let mut buffer = vec![0; 65_536];
    while Instant::now() < end {
        let _ = socket.send_to(&packet, &SocketAddr::new(to, 0).into());
        let until = Instant::now() + wait;
        while Instant::now() < until {
            let Ok(length) = socket.read(&mut buffer) else {
                break;
            };
            // IPv4's raw sockets give the IP header too.
            let start = if to.is_ipv4() { 20 } else { 0 };
            let message = &buffer[start.min(length)..length];
            if message.first() == Some(&reply) && message.get(4..6) == Some(&ID.to_be_bytes()) {
                return Some(message.len() - 8);
            }
        }
    }
    None
}

impl Drop for Gateways {
    fn drop(&mut self) {
        for (site, process) in self.sites.iter().zip(&self.processes) {
            if thread::panicking() {
                let log = std::fs::read_to_string(site.path("log")).unwrap_or_default();
                eprintln!("a gateway's log:\n{log}");
            }
            let _ = process.signal(SIGTERM);
        }
    }
}

fn spawn(lab: &Lab, site: &Site, own: usize, file: &str) -> Process {
    let host = lab.host(NAMES[own]).expect("a host");
    let log = File::create(site.path("log")).expect("a log");
    let mut command = host.command(env!("CARGO_BIN_EXE_keiro"));
    command
        .args(["gateway", "--config", file])
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    host.spawn(command).expect("it starts")
}

fn lab() -> Lab {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let topology = Topology::parse(TOPOLOGY, "test").expect("a topology");
    Lab::builder(&topology)
        .name(format!("n{}-{number}", process::id()))
        .grace(Duration::from_millis(300))
        .interrupts(interrupts())
        .up()
        .unwrap_or_else(|error| panic!("tunnels' tests need root and iproute2: {error}"))
}

/// Removes the laboratories on Ctrl-C too.
fn interrupts() -> &'static Interrupts {
    static INTERRUPTS: OnceLock<Interrupts> = OnceLock::new();
    INTERRUPTS.get_or_init(|| Interrupts::install(Duration::ZERO).expect("signal handlers"))
}

/// The configuration of gateway a (`own` 0) or b, without tenants.
fn configuration(site: &Site, own: usize, rate: &str, peer_key: &str) -> String {
    let at = ["192.0.2.1:7600", "192.0.2.2:7600"];
    let mut text = site.gateway(NAMES[own]);
    let _ = write!(
        text,
        "metrics = \"{METRICS}\"\n[[path]]\nname = \"wan\"\nlocal = \"{}\"\nrate = \"{rate}\"\nmtu_max = \"1500B\"\n\
         [[peer]]\nname = \"{peer}\"\npublic_key = \"{peer_key}\"\nendpoints = {{ wan = \"{}\" }}\n\
         [[app]]\nname = \"ip\"\nclass = \"datagram\"\npeer = \"{peer}\"\n\
         [fairness]\nunit = \"100Mbit\"\n",
        at[own],
        at[1 - own],
        peer = NAMES[1 - own],
    );
    text
}
