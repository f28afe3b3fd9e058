//! A hub and its branches: hosts behind two branches reach each other through the hub.
//!
//! ```text
//!  lan-tokyo --- tokyo ===== hub ===== kobe --- lan-kobe
//!                             ||
//!                            nara --- lan-nara
//! ```

use std::{
    fs::{self, File},
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    process::Stdio,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use keiro_control::{network::PublicRegistry, protocol::EventKind};
use keiro_lab::{Host, Lab, Process};
use keiro_linux::process::SIGTERM;
use serde_json::{Value, json};

use crate::{
    gateways::{MIB, echo, echo_request, icmp_socket, lab, monitor_at},
    harness::{LIMIT, Site, eventually, finish, run, shown},
};

const TOPOLOGY: &str = r#"
[host.hub]

[host.tokyo]
sysctl = { "net.ipv4.ip_forward" = 1 }

[host.kobe]
sysctl = { "net.ipv4.ip_forward" = 1 }

[host.nara]
sysctl = { "net.ipv4.ip_forward" = 1 }

[host.lan-tokyo]
routes = [{ to = "default", via = "10.1.0.254" }]

[host.lan-kobe]
routes = [{ to = "default", via = "10.2.0.254" }]

[host.lan-nara]
routes = [{ to = "default", via = "10.3.0.254" }]

[link.wan1]
a = { host = "tokyo", addresses = ["192.0.2.2/24"] }
b = { host = "hub", addresses = ["192.0.2.1/24"] }

[link.wan2]
a = { host = "kobe", addresses = ["198.51.100.2/24"] }
b = { host = "hub", addresses = ["198.51.100.1/24"] }

[link.wan3]
a = { host = "nara", addresses = ["203.0.113.2/24"] }
b = { host = "hub", addresses = ["203.0.113.1/24"] }

[link.lan1]
a = { host = "lan-tokyo", addresses = ["10.1.0.5/24"] }
b = { host = "tokyo", addresses = ["10.1.0.254/24"] }

[link.lan2]
a = { host = "lan-kobe", addresses = ["10.2.0.5/24"] }
b = { host = "kobe", addresses = ["10.2.0.254/24"] }

[link.lan3]
a = { host = "lan-nara", addresses = ["10.3.0.5/24"] }
b = { host = "nara", addresses = ["10.3.0.254/24"] }
"#;

const BRANCHES: [&str; 3] = ["tokyo", "kobe", "nara"];
const WANS: [&str; 3] = ["192.0.2", "198.51.100", "203.0.113"];
/// The branches' preshared keys, as base64 of 32 bytes.
const SECRETS: [&str; 3] = [
    "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=",
    "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=",
    "AwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwM=",
];
const KOBE: Ipv4Addr = Ipv4Addr::new(10, 2, 0, 5);
/// Of the path from the hub to kobe.
const NARROW_BYTES: u64 = 1320;

/// A hub and three branches, ended when dropped.
struct Network {
    // First, so that the gateways end before their files go.
    lab: Lab,
    hub: Site,
    branches: [Site; 3],
    processes: Vec<Process>,
}

impl Network {
    /// Nothing runs.
    fn new() -> Self {
        Self {
            lab: lab(TOPOLOGY),
            hub: Site::new(),
            branches: [Site::new(), Site::new(), Site::new()],
            processes: Vec::new(),
        }
    }

    /// All gateways run; the registry has the first `count` branches.
    fn start(count: usize) -> Self {
        let mut network = Self::new();
        network.write_registry(count);
        let registry = network.hub.path("network.toml");
        let mut text = network.hub.gateway("hub");
        for (number, wan) in WANS.iter().enumerate() {
            let mtu = if number == 1 { NARROW_BYTES } else { 1500 };
            text += &format!(
                "[[path]]\nname = \"to-{}\"\nlocal = \"{wan}.1:7600\"\nrate = \"400Mbit\"\nmtu_max = \"{mtu}B\"\n",
                BRANCHES[number]
            );
        }
        text += &format!(
            "[network]\nregistry = \"{}\"\nendpoint = \"192.0.2.1:7600\"\n[fairness]\nunit = \"100Mbit\"\n\
             [tenant.office]\nid = 7\ndevice = \"t-office\"\naddresses = [\"10.0.0.1/32\"]\n\
             prefixes = [\"10.0.0.0/24\"]\n",
            shown(&registry)
        );
        network.hub.write("gateway.toml", &text);
        network.spawn("hub");
        for number in 0..BRANCHES.len() {
            network.start_branch(number);
        }
        network
    }

    fn start_branch(&mut self, number: usize) {
        let (site, name, wan) = (&self.branches[number], BRANCHES[number], WANS[number]);
        let secret = site.write("hub.psk", SECRETS[number]);
        site.set_mode("hub.psk", 0o600);
        let lan = number + 1;
        let text = format!(
            "{}[network]\nhub = \"hub\"\n[fairness]\nunit = \"100Mbit\"\n\
             [[path]]\nname = \"wan\"\nlocal = \"{wan}.2:7600\"\nrate = \"400Mbit\"\n\
             [[peer]]\nname = \"hub\"\npublic_key = \"{}\"\npreshared_key_file = \"{}\"\nendpoint = \"{wan}.1:7600\"\n\
             [tenant.net]\nid = 7\ndevice = \"t-net\"\naddresses = [\"10.{lan}.0.1/32\"]\n\
             prefixes = [\"10.{lan}.0.0/24\"]\n",
            site.gateway(name),
            self.hub.public_key(),
            shown(&secret),
        );
        site.write("gateway.toml", &text);
        self.spawn(name);
    }

    /// What a branch has heard of the network in an earlier run: all branches.
    fn keep_known(&self, number: usize) {
        let sites = BRANCHES.iter().enumerate().map(|(number, name)| {
            json!({ "name": name, "prefixes": [format!("10.{}.0.0/24", number + 1)] })
        });
        let known = json!({
            "incarnation": 1, "revision": 1, "site": BRANCHES[number], "tenant_id": 7,
            "hub_prefixes": ["10.0.0.0/24"], "sites": sites.collect::<Vec<_>>(),
            "apps": [{ "name": "ip", "class": "datagram" }],
        });
        let known = PublicRegistry::parse(known.to_string().as_bytes()).expect("good");
        let state = self.branches[number].path("state");
        fs::create_dir_all(&state).expect("made");
        let hub = self.hub.public_key().parse().expect("a key");
        known.keep(&state, hub).expect("kept");
    }

    /// With the first `count` branches; replaced in one step.
    fn write_registry(&self, count: usize) {
        let lines: String = (0..count)
            .map(|number| {
                format!(
                    "{} = {{ public_key = \"{}\", preshared_key = \"{}\", prefixes = [\"10.{}.0.0/24\"] }}\n",
                    BRANCHES[number],
                    self.branches[number].public_key(),
                    SECRETS[number],
                    number + 1
                )
            })
            .collect();
        let text = format!(
            "[network]\ntenant = \"office\"\ndirect = false\n[app.ip]\nclass = \"datagram\"\n[site]\n{lines}"
        );
        self.replace_registry(&text);
    }

    fn replace_registry(&self, text: &str) {
        let beside = self.hub.write("network.new", text);
        self.hub.set_mode("network.new", 0o600);
        fs::rename(beside, self.hub.path("network.toml")).expect("replaced");
    }

    fn site(&self, name: &str) -> &Site {
        let number = BRANCHES.iter().position(|branch| *branch == name);
        number.map_or(&self.hub, |number| &self.branches[number])
    }

    fn spawn(&mut self, name: &str) {
        let site = self.site(name);
        let log = File::create(site.path("log")).expect("a log");
        let host = self.host(name);
        let mut command = host.command(crate::PROGRAM);
        command
            .args(["gateway", "--user", "root", "--config"])
            .arg(site.path("gateway.toml"))
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let process = host.spawn(command).expect("it starts");
        self.processes.push(process);
    }

    fn host(&self, name: &str) -> &Host {
        self.lab.host(name).expect("a host")
    }

    /// `None` while the gateway does not answer.
    fn ask(&self, name: &str, args: &[&str]) -> Option<Value> {
        let socket = shown(&self.site(name).path("control.sock"));
        let args = args.iter().copied();
        let ran = run(args.chain(["--socket", &socket, "--json"]));
        serde_json::from_str(&ran.stdout).ok()
    }

    /// A counter of the hub's tenant.
    fn counter(&self, name: &str) -> u64 {
        eventually("the hub answers", || {
            let tenants = self.ask("hub", &["show", "tenant", "office"])?;
            tenants[0]
                .pointer(name)
                .unwrap_or_else(|| panic!("no {name} in {:#}", tenants[0]))
                .as_u64()
        })
    }

    /// The names of the hub's peers that are up.
    fn up_at_hub(&self) -> Option<Vec<String>> {
        let peers = self.ask("hub", &["show", "peer"])?;
        let up = peers
            .as_array()?
            .iter()
            .filter(|peer| peer["state"] == "up");
        let mut names: Vec<String> = up
            .map(|peer| peer["name"].as_str().unwrap_or_default().to_owned())
            .collect();
        names.sort();
        Some(names)
    }

    fn await_peers(&self, names: &[&str]) {
        eventually("the hub has these branches", || {
            (self.up_at_hub()? == names).then_some(())
        });
    }

    /// Waits until a branch has routes into the tunnel to these networks and no others.
    fn await_routes(&self, branch: &str, there: &[&str]) {
        eventually("the branch has routes to all other sites", || {
            let mut command = self.host(branch).command("ip");
            command.args(["route", "show", "dev", "t-net"]);
            let shown = finish(&mut command, b"").stdout;
            let mut routes: Vec<&str> = shown
                .lines()
                .filter_map(|line| line.split(' ').next())
                .collect();
            routes.sort_unstable();
            (routes == there).then_some(())
        });
    }

    /// An echo request between hosts behind branches, and its answer.
    fn ping(&self, from: &str, to: Ipv4Addr, bytes: usize) {
        let answered = self.host(from).run(move || echo(to.into(), bytes, None));
        assert_eq!(answered.expect("entered"), Some(bytes), "{from} to {to}");
    }

    /// Sends bytes over TCP from a host behind tokyo to one behind kobe, and compares every one.
    fn transfer(&self, bytes: usize) {
        let listener = self
            .host("lan-kobe")
            .run(|| TcpListener::bind((KOBE, 0)).expect("bound"));
        let listener = listener.expect("entered");
        let to = listener.local_addr().expect("bound");
        let stream = self
            .host("lan-tokyo")
            .run(move || TcpStream::connect_timeout(&to, LIMIT).expect("connected"));
        let mut stream = stream.expect("entered");
        let (mut accepted, _) = listener.accept().expect("accepted");
        accepted.set_read_timeout(Some(LIMIT)).expect("set");
        stream.set_write_timeout(Some(LIMIT)).expect("set");
        let pattern = |offset: usize| (0..MIB).map(move |at| ((offset + at) % 251) as u8);
        thread::scope(|scope| {
            scope.spawn(move || {
                for offset in (0..bytes).step_by(MIB) {
                    let chunk: Vec<u8> = pattern(offset).collect();
                    stream.write_all(&chunk).expect("sent");
                }
            });
            let mut chunk = vec![0; MIB];
            for offset in (0..bytes).step_by(MIB) {
                accepted.read_exact(&mut chunk).expect("received");
                assert!(
                    chunk.iter().copied().eq(pattern(offset)),
                    "bytes from {offset} on differ"
                );
            }
            assert_eq!(accepted.read(&mut chunk).expect("an end"), 0);
        });
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if thread::panicking() {
            for name in ["hub"].iter().chain(&BRANCHES) {
                let log = fs::read_to_string(self.site(name).path("log")).unwrap_or_default();
                eprintln!("the log of {name}:\n{log}");
            }
        }
        for process in &self.processes {
            let _ = process.signal(SIGTERM);
        }
    }
}

#[test]
fn hosts_of_two_branches_reach_each_other_through_the_hub() {
    let network = Network::start(2);
    network.await_peers(&["kobe", "tokyo"]);
    network.ping("lan-tokyo", KOBE, 56);
    network.ping("lan-kobe", Ipv4Addr::new(10, 1, 0, 5), 56);
    network.transfer(8 * MIB);
    // The hub's kernel has not seen any of it: it would not forward.
    assert_eq!(network.counter("/egress_packets"), 0);
    let passed = network.counter("/transit_packets");
    assert!(passed > 8 * MIB as u64 / 1400, "{passed}");
    assert!(network.counter("/transit_bytes") > 8 * MIB as u64);
    // The sender learns what the way behind the hub has room for, and sends in parts.
    network.ping("lan-tokyo", KOBE, 1360);
    assert!(network.counter("/dropped_packets/too_big") > 0);
    let mut command = network.host("lan-tokyo").command("ip");
    command.args(["route", "get", "10.2.0.5"]);
    let route = finish(&mut command, b"").expect_code(0).stdout;
    let mtu = route
        .split("mtu ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next());
    let mtu: u64 = mtu
        .and_then(|mtu| mtu.parse().ok())
        .unwrap_or_else(|| panic!("{route}"));
    assert!((1200..NARROW_BYTES).contains(&mtu), "{route}");
    // Two routers and the tunnel are three hops; the hub is the third.
    let exceeded = network.host("lan-tokyo").run(|| {
        let mut socket = icmp_socket(true);
        socket.set_ttl_v4(3).expect("set");
        socket.set_read_timeout(Some(LIMIT)).expect("set");
        let to = SocketAddr::from((KOBE, 0));
        socket
            .send_to(&echo_request(true, 8), &to.into())
            .expect("sent");
        let mut buffer = [0; 1500];
        let length = socket.read(&mut buffer).expect("an answer");
        buffer[20..length].first().copied()
    });
    assert_eq!(exceeded.expect("entered"), Some(11), "time exceeded");
    assert_eq!(network.counter("/dropped_packets/hop_limit"), 1);
}

#[test]
fn a_branch_that_comes_or_goes_disturbs_no_other() {
    let network = Network::start(2);
    network.await_peers(&["kobe", "tokyo"]);
    network.ping("lan-tokyo", KOBE, 56);
    let bound = |name: &str, at: SocketAddr| {
        let socket = network
            .host(name)
            .run(move || UdpSocket::bind(at).expect("bound"));
        socket.expect("entered")
    };
    let receiver = bound("lan-kobe", (KOBE, 5004).into());
    let sender = bound("lan-tokyo", (Ipv4Addr::new(10, 1, 0, 5), 0).into());
    receiver
        .set_read_timeout(Some(Duration::from_secs(2)))
        .expect("set");
    let over = AtomicBool::new(false);
    let (sent, received) = thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let mut sent = 0_u64;
            while !over.load(Ordering::Relaxed) {
                sender
                    .send_to(&sent.to_be_bytes(), (KOBE, 5004))
                    .expect("sent");
                sent += 1;
                thread::sleep(Duration::from_millis(2));
            }
            sent
        });
        let receiving = scope.spawn(|| {
            let (mut received, mut buffer) = (0_u64, [0; 8]);
            // Until nothing comes for two seconds.
            while receiver.recv(&mut buffer).is_ok() {
                received += 1;
            }
            received
        });
        network.write_registry(3);
        network.await_peers(&["kobe", "nara", "tokyo"]);
        network.await_routes("tokyo", &["10.0.0.0/24", "10.2.0.0/24", "10.3.0.0/24"]);
        network.ping("lan-nara", KOBE, 56);
        // One that is wrong changes nothing, and is reported.
        let good = fs::read_to_string(network.hub.path("network.toml")).expect("read");
        network.replace_registry(&good.replace("10.3.0.0/24", "10.2.0.0/24"));
        eventually("the hub says what is wrong", || {
            let status = network.ask("hub", &["status"])?;
            let rejected = status["config_rejected"].as_str()?.to_owned();
            rejected
                .contains("overlaps 10.2.0.0/24 of site")
                .then_some(())
        });
        network.ping("lan-nara", KOBE, 56);
        network.write_registry(2);
        network.await_peers(&["kobe", "tokyo"]);
        network.await_routes("tokyo", &["10.0.0.0/24", "10.2.0.0/24"]);
        eventually("the hub is content", || {
            let status = network.ask("hub", &["status"])?;
            status["config_rejected"].is_null().then_some(())
        });
        over.store(true, Ordering::Relaxed);
        let sent = sending.join().expect("it ends");
        (sent, receiving.join().expect("it ends"))
    });
    eprintln!("{received} of {sent} packets arrived");
    assert_eq!(received, sent);
}

#[test]
fn a_branch_does_not_route_what_its_uplink_needs_until_that_has_ended() {
    let network = Network::start(2);
    network.await_peers(&["kobe", "tokyo"]);
    let text = fs::read_to_string(network.hub.path("network.toml")).expect("read");
    let more = "\"10.2.0.0/24\", \"172.20.1.0/24\"";
    network.replace_registry(&text.replace("\"10.2.0.0/24\"", more));
    let (theirs, all) = (
        "172.20.1.0/24",
        ["10.0.0.0/24", "10.2.0.0/24", "172.20.1.0/24"],
    );
    network.await_routes("tokyo", &all);
    let mut monitor = monitor_at(&network.branches[0].path("control.sock"));
    let address = |change: &str| {
        let mut command = network.host("tokyo").command("ip");
        command.args(["address", change, "172.20.1.7/24", "dev", "wan1"]);
        finish(&mut command, b"").expect_code(0);
    };
    address("add");
    let (owner, reason) = monitor.next(|kind| match kind {
        EventKind::PrefixWithheld {
            prefix,
            owner,
            reason,
            ..
        } if prefix == theirs => Some((owner, reason)),
        _ => None,
    });
    assert_eq!(owner, "site `kobe`");
    assert!(
        reason.contains("uplink wan1 is connected to 172.20.1.0/24"),
        "{reason}"
    );
    network.await_routes("tokyo", &all[..2]);
    let status = network.ask("tokyo", &["status"]).expect("it answers");
    let line = status["withheld_prefixes"][0].as_str().expect("a line");
    assert!(
        line.contains("172.20.1.0/24 of site `kobe` is not routed"),
        "{line}"
    );
    let file = shown(&network.branches[0].path("gateway.toml"));
    let mut doctor = network.host("tokyo").command(crate::PROGRAM);
    doctor.args(["doctor", "--json", "--config", &file]);
    let found = finish(&mut doctor, b"").json();
    let causes = found["findings"].as_array().expect("findings");
    let causes: Vec<&str> = causes
        .iter()
        .filter_map(|of| of["cause"].as_str())
        .collect();
    assert_eq!(causes, ["prefix_withheld"], "{found:#}");
    // The rest of the network goes on.
    network.ping("lan-tokyo", KOBE, 56);
    address("del");
    monitor.next(|kind| match kind {
        EventKind::PrefixRouted { prefix, .. } if prefix == theirs => Some(()),
        _ => None,
    });
    network.await_routes("tokyo", &all);
}

#[test]
fn a_branch_starts_with_what_it_knew_while_the_hub_is_away() {
    let mut network = Network::new();
    network.keep_known(0);
    network.start_branch(0);
    network.await_routes("tokyo", &["10.0.0.0/24", "10.2.0.0/24", "10.3.0.0/24"]);
    let apps = eventually("it answers", || network.ask("tokyo", &["show", "app"]));
    assert_eq!(apps[0]["name"], "ip@tokyo");
}
