//! Two gateways in namespaces, and what tests do with them.
//!
//! ```text
//! a, its devices ====== b, its devices
//! ```
//!
//! Programs run beside each gateway and use its TUN devices, as a small site's only machine would.

use std::{
    fmt::Write as _,
    fs::File,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    path::Path,
    process::{self, Stdio},
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use keiro_control::protocol::{EventKind, Request, client::Client};
use keiro_lab::{Interrupts, Lab, Process, Topology};
use keiro_linux::process::SIGTERM;
use serde_json::Value;
use socket2::{Domain, Protocol, Socket, Type};

use crate::harness::{LIMIT, Site, eventually, finish, run, shown};

pub(crate) const TOPOLOGY: &str = r#"
[host.a]

[host.b]

[link.wan]
a = { host = "a", addresses = ["192.0.2.1/24"] }
b = { host = "b", addresses = ["192.0.2.2/24"] }
"#;

pub(crate) const MIB: usize = 1 << 20;

/// Two gateways, ended when dropped.
pub(crate) struct Gateways {
    // First, so that the gateways end before their files go.
    pub(crate) lab: Lab,
    pub(crate) sites: [Site; 2],
    processes: [Process; 2],
    /// That they run as.
    user: &'static str,
}

/// A tenant whose gateway `n` has 10.N.0.0/24 and fd00:N::/64, with N of 1 and 2, and whose device has
/// as many queues as its number.
pub(crate) fn tenant(own: usize, name: &str, id: u32, more: &str) -> String {
    let (here, there) = (own + 1, 2 - own);
    let peer = NAMES[1 - own];
    format!(
        "[tenant.{name}]\nid = {id}\ndevice = \"t-{name}\"\ndevice_queues = {id}\n\
         addresses = [\"10.{here}.0.1/32\", \"fd00:{here}::1/128\"]\n\
         prefixes = [\"10.{here}.0.0/24\", \"fd00:{here}::/64\"]\n{more}\
         [tenant.{name}.peer.{peer}]\n\
         prefixes = [\"10.{there}.0.0/24\", \"fd00:{there}::/64\"]\napp = \"ip\"\n"
    )
}

/// Of a gateway whose path is narrower than its device.
pub(crate) const NARROW: &str = "mtu_max = \"1380B\"";

const NAMES: [&str; 2] = ["a", "b"];
const METRICS: &str = "127.0.0.1:9477";

impl Gateways {
    /// What gateway `own` has used so far, user and system.
    pub(crate) fn cpu_seconds(&self, own: usize) -> f64 {
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

    /// Of gateway `own`'s process, by which its namespace can be named.
    pub(crate) fn pid(&self, own: usize) -> i32 {
        self.processes[own].id()
    }

    pub(crate) fn tenant(&self, own: usize, name: &str) -> Value {
        eventually("the gateway answers", || {
            let tenants = self.ask(own, &["show", "tenant", name])?;
            Some(tenants[0].clone())
        })
    }

    pub(crate) fn stop(&mut self, own: usize, signal: i32) {
        self.processes[own].signal(signal).expect("it runs");
        // Its UDP port is free with its end, and not before.
        let ended = self.processes[own].wait(LIMIT).expect("it is a child");
        assert!(ended.is_some(), "it does not end");
        eventually("its devices go", || {
            (!self.ip(own, "link show").contains("t-")).then_some(())
        });
    }

    pub(crate) fn restart(&mut self, own: usize) {
        let file = shown(&self.sites[own].path("gateway.toml"));
        self.processes[own] = spawn(&self.lab, &self.sites[own], own, &file, self.user);
        self.await_paths();
    }

    /// What `keiro gateway --cleanup` prints beside gateway `own`.
    pub(crate) fn cleanup(&self, own: usize) -> String {
        let host = self.lab.host(NAMES[own]).expect("a host");
        let mut command = host.command(crate::PROGRAM);
        command.args(["gateway", "--cleanup"]);
        finish(&mut command, b"").expect_code(0).stdout
    }

    /// What `keiro gateway --block` prints beside gateway `own`.
    pub(crate) fn block(&self, own: usize) -> String {
        let host = self.lab.host(NAMES[own]).expect("a host");
        let mut command = host.command(crate::PROGRAM);
        let file = shown(&self.sites[own].path("gateway.toml"));
        command.args(["gateway", "--block", "--config", &file]);
        finish(&mut command, b"").expect_code(0).stdout
    }

    /// One more gateway on the host of gateway `own`, which logs to `beside.log`.
    pub(crate) fn spawn_beside(&self, own: usize, file: &str) -> Process {
        let log = File::create(self.sites[own].path("beside.log")).expect("a log");
        spawn_with(&self.lab, own, file, log, self.user)
    }

    pub(crate) fn start(tenants: impl Fn(usize) -> String) -> Self {
        Self::start_at("400Mbit", tenants)
    }

    pub(crate) fn start_at(rate: &str, tenants: impl Fn(usize) -> String) -> Self {
        Self::start_in(TOPOLOGY, rate, tenants)
    }

    /// In a topology that has the hosts a and b and the link between them.
    pub(crate) fn start_in(topology: &str, rate: &str, tenants: impl Fn(usize) -> String) -> Self {
        Self::start_with(topology, rate, |own, text| text + &tenants(own))
    }

    /// With what `change` makes of a gateway's configuration, which has no tenants.
    pub(crate) fn start_with(
        topology: &str,
        rate: &str,
        change: impl Fn(usize, String) -> String,
    ) -> Self {
        Self::start_as("root", topology, rate, change)
    }

    /// The same, run as `user`, who has all files but the private keys.
    pub(crate) fn start_as(
        user: &'static str,
        topology: &str,
        rate: &str,
        change: impl Fn(usize, String) -> String,
    ) -> Self {
        let lab = lab(topology);
        let sites = [Site::new(), Site::new()];
        let keys = [sites[0].public_key(), sites[1].public_key()];
        let start = |own: usize| {
            let site = &sites[own];
            let text = change(own, configuration(site, own, rate, &keys[1 - own]));
            let file = site.write("gateway.toml", &text);
            if user != "root" {
                site.give_to(user);
            }
            spawn(&lab, site, own, &shown(&file), user)
        };
        let processes = [start(0), start(1)];
        let gateways = Self {
            lab,
            sites,
            processes,
            user,
        };
        gateways.await_paths();
        gateways
    }

    pub(crate) fn await_paths(&self) {
        for own in [0, 1] {
            let file = self.sites[own].path("gateway.toml");
            let text = std::fs::read_to_string(file).expect("a file");
            let is_narrow = text.contains(NARROW);
            let mtu = if is_narrow { 1380 } else { 1500 };
            eventually("the path is up and as wide as it is", || {
                let paths = self.ask(own, &["show", "path"])?;
                let path = &paths[0];
                (path["state"] == "up" && path["mtu_bytes"] == mtu).then_some(())
            });
        }
    }

    /// An echo request of gateway `own` to `to`, and its answer.
    pub(crate) fn ping(&self, own: usize, to: &str, device: Option<&str>) {
        let to: IpAddr = to.parse().expect("an address");
        let host = self.lab.host(NAMES[own]).expect("a host");
        let device = device.map(str::to_owned);
        let answered = host.run(move || echo(to, 56, device.as_deref()));
        assert_eq!(answered.expect("entered"), Some(56), "{to}");
    }

    /// A connection from gateway `own` to `to` at the other, and its other end.
    pub(crate) fn connect(
        &self,
        own: usize,
        to: &str,
        device: Option<&str>,
    ) -> (TcpStream, TcpStream) {
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
        let (accepted, _) = listener.accept().expect("accepted");
        (stream.expect("entered"), accepted)
    }

    /// Sends `bytes` from gateway `own` to `to` at the other over TCP and compares every one.
    pub(crate) fn transfer(&self, own: usize, to: &str, device: Option<&str>, bytes: usize) {
        let (mut stream, mut accepted) = self.connect(own, to, device);
        let start = Instant::now();
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

    /// Receives the events of gateway `own` from now on.
    pub(crate) fn monitor(&self, own: usize) -> Monitor {
        monitor_at(&self.sites[own].path("control.sock"))
    }

    /// `None` while the gateway does not answer.
    pub(crate) fn ask(&self, own: usize, args: &[&str]) -> Option<Value> {
        let socket = shown(&self.sites[own].path("control.sock"));
        let args = args.iter().copied();
        let ran = run(args.chain(["--socket", &socket, "--json"]));
        serde_json::from_str(&ran.stdout).ok()
    }

    /// The page that Prometheus reads.
    pub(crate) fn metrics(&self, own: usize) -> String {
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
    pub(crate) fn ip(&self, own: usize, args: &str) -> String {
        self.ip_of(NAMES[own], args)
    }

    /// What `ip` prints in a host.
    pub(crate) fn ip_of(&self, host: &str, args: &str) -> String {
        let host = self.lab.host(host).expect("a host");
        let mut command = host.command("ip");
        command.args(args.split_whitespace());
        finish(&mut command, b"").expect_code(0).stdout
    }
}

/// Receives the events of the gateway with this control socket from now on.
pub(crate) fn monitor_at(socket: &Path) -> Monitor {
    let stream = UnixStream::connect(socket).expect("connected");
    stream.set_read_timeout(Some(LIMIT)).expect("set");
    let mut client = Client::new(stream);
    client.request(&Request::Monitor {}).expect("heard");
    Monitor(client)
}

/// What `keiro monitor` would print.
pub(crate) struct Monitor(Client<UnixStream>);

impl Monitor {
    /// The next event that is `wanted`.
    pub(crate) fn next<T>(&mut self, wanted: impl Fn(EventKind) -> Option<T>) -> T {
        loop {
            let event = self.0.next_event().expect("an event");
            if let Some(found) = wanted(event.kind) {
                return found;
            }
        }
    }
}

const CHUNK: usize = 64 * 1024;

/// Bytes that identify their position: repeated blocks would hide a segment in the wrong place.
fn fill(offset: usize, buffer: &mut [u8]) {
    for (index, word) in buffer.chunks_mut(8).enumerate() {
        let number = (offset / 8 + index) as u64;
        let bytes = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_ne_bytes();
        word.copy_from_slice(&bytes[..word.len()]);
    }
}

const ECHO_ID: u16 = 0x6b65;

/// An ICMP or ICMPv6 echo request with `bytes` of payload. The kernel adds the checksum of ICMPv6.
pub(crate) fn echo_request(v4: bool, bytes: usize) -> Vec<u8> {
    let request = if v4 { 8 } else { 128 };
    let id = ECHO_ID.to_be_bytes();
    let mut packet = vec![request, 0, 0, 0, id[0], id[1], 0, 1];
    packet.resize(8 + bytes, 0x5a);
    if v4 {
        let words = packet.chunks(2);
        let sum: u32 = words
            .map(|word| u32::from(word[0]) << 8 | word.get(1).map_or(0, |low| u32::from(*low)))
            .sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        packet[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    packet
}

/// A raw socket that receives ICMP or ICMPv6.
pub(crate) fn icmp_socket(v4: bool) -> Socket {
    let (domain, protocol) = match v4 {
        true => (Domain::IPV4, Protocol::ICMPV4),
        false => (Domain::IPV6, Protocol::ICMPV6),
    };
    Socket::new(domain, Type::RAW, Some(protocol)).expect("a raw socket")
}

/// Pings until there is an answer, and gives the length of its payload; `None`: there is none.
pub(crate) fn echo(to: IpAddr, bytes: usize, device: Option<&str>) -> Option<usize> {
    let reply = if to.is_ipv4() { 0 } else { 129 };
    let mut socket = icmp_socket(to.is_ipv4());
    if let Some(device) = device {
        socket.bind_device(Some(device.as_bytes())).expect("bound");
    }
    let wait = Duration::from_millis(300);
    socket.set_read_timeout(Some(wait)).expect("set");
    let packet = echo_request(to.is_ipv4(), bytes);
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
            if message.first() == Some(&reply) && message.get(4..6) == Some(&ECHO_ID.to_be_bytes())
            {
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

fn spawn(lab: &Lab, site: &Site, own: usize, file: &str, user: &str) -> Process {
    let log = File::create(site.path("log")).expect("a log");
    spawn_with(lab, own, file, log, user)
}

/// Any user may open `/dev/net/tun`, as udev has it, whatever the machine does.
fn spawn_with(lab: &Lab, own: usize, file: &str, log: File, user: &str) -> Process {
    const SCRIPT: &str =
        "mount -t tmpfs tmpfs /dev/net && mknod -m 666 /dev/net/tun c 10 200 && exec \"$@\"";
    let host = lab.host(NAMES[own]).expect("a host");
    let mut command = host.command("unshare");
    command
        .args(["-m", "sh", "-c", SCRIPT, "sh", crate::PROGRAM])
        .args(["gateway", "--user", user, "--config", file])
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    host.spawn(command).expect("it starts")
}

pub(crate) fn lab(topology: &str) -> Lab {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let topology = Topology::parse(topology, "test").expect("a topology");
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
