//! A transparent listener behind a real firewall rule: what `docs/streams.md` says to write, in
//! namespaces. Needs root, iproute2, nftables and a kernel with `nft_tproxy`, and fails without.
//!
//! ```text
//! client ------ gateway a ====== gateway b ------ server, with two addresses
//!   its default   nft tproxy,      its forward
//!   route is a    no forwarding    has networks
//! ```
//!
//! Neither gateway forwards packets, so that what arrives has gone through the listener.

mod harness;

use std::{
    fmt::Write as _,
    fs::File,
    io::{self, Read, Write},
    net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream},
    process::{self, Command, Stdio},
    sync::OnceLock,
    thread,
    time::Duration,
};

use harness::{LIMIT, Site, eventually, finish, run, shown};
use keiro_lab::{Interrupts, Lab, Process, Topology};
use keiro_linux::process::SIGTERM;
use serde_json::Value;

/// The program that [`harness`] runs.
const PROGRAM: &str = env!("CARGO_BIN_EXE_keiro");

const TOPOLOGY: &str = r#"
[host.client]
routes = [{ to = "default", via = "10.1.0.1" }, { to = "2001:db8:9::/48", via = "2001:db8:1::1" }]

[host.a]

[host.b]

[host.server]

[link.lan-a]
a = { host = "client", addresses = ["10.1.0.2/24", "2001:db8:1::2/64"] }
b = { host = "a", addresses = ["10.1.0.1/24", "2001:db8:1::1/64"] }

[link.wan]
a = { host = "a", addresses = ["192.0.2.1/24"] }
b = { host = "b", addresses = ["192.0.2.2/24"] }

[link.lan-b]
a = { host = "b", addresses = ["10.9.0.1/24", "2001:db8:9::1/64"] }
b = { host = "server", addresses = ["10.9.0.10/24", "10.9.0.11/24", "2001:db8:9::10/64"] }
"#;

/// The server's address, which only the rule leads to.
const SERVERS: [&str; 3] = ["10.9.0.10:443", "10.9.0.11:443", "[2001:db8:9::10]:443"];

/// As in `docs/streams.md`, and the same for IPv6.
const RULES: &[&str] = &[
    "ip rule add fwmark 1 lookup 100",
    "ip route add local 0.0.0.0/0 dev lo table 100",
    "ip -6 rule add fwmark 1 lookup 100",
    "ip -6 route add local ::/0 dev lo table 100",
    "nft add table inet keiro",
    "nft add chain inet keiro divert { type filter hook prerouting priority mangle; }",
    "nft add rule inet keiro divert ip daddr 10.9.0.0/16 tcp dport 443 \
     tproxy ip to 127.0.0.1:5080 meta mark set 1",
    "nft add rule inet keiro divert ip6 daddr 2001:db8:9::/48 tcp dport 443 \
     tproxy ip6 to [::1]:5080 meta mark set 1",
];

const LISTENERS: &str = "[[listener]]\napp = \"web\"\ntproxy = \"127.0.0.1:5080\"\n\
                       [[listener]]\napp = \"web\"\ntproxy = \"[::1]:5080\"\n";

const FORWARD: &str = "[[forward]]\napp = \"web\"\n\
                      tcp_networks = [\"10.9.0.0/24:443\", \"[2001:db8:9::/64]:443\"]\n";

/// Two gateways, ended when dropped.
struct Gateways {
    // First, so that the gateways end before their files go.
    lab: Lab,
    sites: [Site; 2],
    processes: [Process; 2],
}

#[test]
fn connections_that_a_rule_diverts_reach_the_server_that_their_client_wanted() {
    let gateways = Gateways::start();
    let server = gateways.lab.host("server").expect("a host");
    for address in SERVERS {
        let wanted: SocketAddr = address.parse().expect("an address");
        let listener = server.run(|| TcpListener::bind(wanted)).expect("entered");
        let listener = listener.expect("the server listens");
        let mut client = gateways.connect(wanted).expect("the listener takes it");
        assert_eq!(client.peer_addr().expect("connected"), wanted);
        let mut served = accept(&listener);
        // From gateway b, to the very address that the client named.
        assert_eq!(served.local_addr().expect("connected"), wanted);
        let from = served.peer_addr().expect("connected").ip();
        let of_b: [IpAddr; 2] = [
            "10.9.0.1".parse().expect("an address"),
            "2001:db8:9::1".parse().expect("an address"),
        ];
        assert!(of_b.contains(&from), "{from}");
        exchange(&mut client, &mut served);
    }
    let listeners = &gateways.app(0)["tcp_listeners"];
    let accepted = |listener: &Value| listener["accepted_connections"].as_u64();
    let counted: Option<u64> = listeners
        .as_array()
        .expect("a list")
        .iter()
        .map(accepted)
        .sum();
    assert_eq!(counted, Some(3), "{listeners}");
}

#[test]
fn connections_outside_of_the_forwards_networks_are_reset_and_counted() {
    let gateways = Gateways::start();
    // The rule takes it, and gateway b may not lead there.
    let wanted = "10.9.1.10:443".parse().expect("an address");
    let connected = gateways.connect(wanted);
    // As fast as that, it may come before `connect` has returned.
    let seen = connected.and_then(|mut client| client.read(&mut [0]));
    let seen = seen.map_err(|error| error.kind());
    assert_eq!(seen, Err(io::ErrorKind::ConnectionReset));
    eventually("it is counted", || {
        let forward = gateways.app(1)["tcp_forward"].clone();
        (forward["forbidden_connections"] == 1).then_some(())
    });
    // The rule leaves it alone, and no router forwards it.
    let other = gateways.connect("10.9.0.10:444".parse().expect("an address"));
    assert!(other.is_err(), "{other:?}");
}

#[test]
fn addresses_that_the_forwards_machine_gets_later_are_not_reached() {
    let gateways = Gateways::start();
    let host = gateways.lab.host("b").expect("a host");
    let later = ["10.9.0.77/24", "10.9.0.78/32", "2001:db8:9::77/128"];
    for (count, prefix) in (1..).zip(later) {
        let mut add = host.command("ip");
        add.args(["address", "add", prefix, "dev", "lo", "nodad"]);
        finish(&mut add, b"").expect_code(0);
        let (address, _) = prefix.split_once('/').expect("a prefix");
        let ip: IpAddr = address.parse().expect("an address");
        let wanted = SocketAddr::new(ip, 443);
        let listener = host.run(|| TcpListener::bind(wanted)).expect("entered");
        let listener = listener.expect("it listens");
        let connected = gateways.connect(wanted);
        let seen = connected.and_then(|mut client| client.read(&mut [0]));
        let seen = seen.map_err(|error| error.kind());
        assert_eq!(seen, Err(io::ErrorKind::ConnectionReset), "{wanted}");
        eventually("it is counted", || {
            let forward = gateways.app(1)["tcp_forward"].clone();
            (forward["forbidden_connections"] == count).then_some(())
        });
        listener.set_nonblocking(true).expect("set");
        let accepted = listener.accept().map_err(|error| error.kind());
        assert!(
            matches!(accepted, Err(io::ErrorKind::WouldBlock)),
            "{wanted}"
        );
    }
}

#[test]
fn servers_to_which_nothing_leads_reset_their_client_and_count_as_failed() {
    let gateways = Gateways::start();
    let host = gateways.lab.host("b").expect("a host");
    for prefix in ["10.9.0.64/26", "2001:db8:9:0:1::/80"] {
        let mut add = host.command("ip");
        add.args(["route", "add", "unreachable", prefix]);
        finish(&mut add, b"").expect_code(0);
    }
    // No host has the first address, which the kernel reports after three requests; to the others no route leads.
    let gone = ["10.9.0.50:443", "10.9.0.77:443", "[2001:db8:9:0:1::1]:443"];
    for (count, address) in (1..).zip(gone) {
        let wanted: SocketAddr = address.parse().expect("an address");
        let connected = gateways.connect(wanted);
        let seen = connected.and_then(|mut client| client.read(&mut [0]));
        let seen = seen.map_err(|error| error.kind());
        assert_eq!(seen, Err(io::ErrorKind::ConnectionReset), "{wanted}");
        eventually("it is counted", || {
            let forward = gateways.app(1)["tcp_forward"].clone();
            let counted = ["failed_connections", "forbidden_connections"].map(|key| &forward[key]);
            (counted == [count, 0]).then_some(())
        });
    }
    let listeners = gateways.app(0)["tcp_listeners"].clone();
    let failed = |listener: &Value| listener["failed_connections"].as_u64();
    let failed: Option<u64> = listeners
        .as_array()
        .expect("a list")
        .iter()
        .map(failed)
        .sum();
    assert_eq!(failed, Some(3), "{listeners}");
}

/// Bytes in both directions at once, then one end and the other's answer to it.
fn exchange(client: &mut TcpStream, served: &mut TcpStream) {
    for stream in [&*client, &*served] {
        stream.set_read_timeout(Some(LIMIT)).expect("set");
        stream.set_write_timeout(Some(LIMIT)).expect("set");
    }
    let [up, down] = [3_u8, 5].map(|step| {
        let byte = |index: u32| (index >> 8) as u8 ^ (index as u8).wrapping_mul(step);
        (0..300_000).map(byte).collect::<Vec<u8>>()
    });
    thread::scope(|scope| {
        for (stream, bytes) in [(&*client, &up), (&*served, &down)] {
            let mut stream = stream.try_clone().expect("cloned");
            scope.spawn(move || stream.write_all(bytes).expect("written"));
        }
        let mut got = vec![0; up.len()];
        served.read_exact(&mut got).expect("read");
        assert!(got == up, "the server got something else");
        client.read_exact(&mut got).expect("read");
        assert!(got == down, "the client got something else");
    });
    client.shutdown(Shutdown::Write).expect("shut down");
    assert_eq!(served.read(&mut [0]).expect("an end"), 0);
    served.write_all(b"bye").expect("written");
    served.shutdown(Shutdown::Write).expect("shut down");
    let mut last = Vec::new();
    client.read_to_end(&mut last).expect("read");
    assert_eq!(last, b"bye");
}

impl Gateways {
    fn start() -> Self {
        let lab = lab();
        let sites = [Site::new(), Site::new()];
        let keys = [sites[0].public_key(), sites[1].public_key()];
        let start = |own: usize| {
            let site = &sites[own];
            let text = configuration(site, own, &keys[1 - own]);
            let file = site.write("gateway.toml", &text);
            let host = lab.host(["a", "b"][own]).expect("a host");
            let log = File::create(site.path("log")).expect("a log");
            let mut command = host.command(env!("CARGO_BIN_EXE_keiro"));
            command
                .args(["gateway", "--user", "root", "--config", &shown(&file)])
                .env_remove("NOTIFY_SOCKET")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log);
            host.spawn(command).expect("it starts")
        };
        let processes = [start(1), start(0)];
        let host = lab.host("a").expect("a host");
        for rule in RULES {
            divert(host.command("sh"), rule);
        }
        let gateways = Self {
            lab,
            sites,
            processes,
        };
        for own in [0, 1] {
            eventually("the path is up", || {
                let status = gateways.ask(own, &["status"])?;
                (status["paths_up"] == 1).then_some(())
            });
        }
        gateways
    }

    /// A connection of the client to what it takes for the server.
    fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        let client = self.lab.host("client").expect("a host");
        let connect = || TcpStream::connect_timeout(&to, Duration::from_secs(2));
        let stream = client.run(connect).expect("entered")?;
        stream.set_read_timeout(Some(LIMIT))?;
        Ok(stream)
    }

    fn app(&self, own: usize) -> Value {
        let apps = self.ask(own, &["show", "app", "web"]);
        apps.expect("an answer")[0].clone()
    }

    /// `None` while the gateway does not answer.
    fn ask(&self, own: usize, args: &[&str]) -> Option<Value> {
        let socket = shown(&self.sites[own].path("control.sock"));
        let args = args.iter().copied();
        let ran = run(args.chain(["--socket", &socket, "--json"]));
        serde_json::from_str(&ran.stdout).ok()
    }
}

impl Drop for Gateways {
    fn drop(&mut self) {
        for (site, process) in self.sites.iter().zip(self.processes.iter().rev()) {
            if thread::panicking() {
                let log = std::fs::read_to_string(site.path("log")).unwrap_or_default();
                eprintln!("a gateway's log:\n{log}");
            }
            let _ = process.signal(SIGTERM);
        }
    }
}

fn lab() -> Lab {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let topology = Topology::parse(TOPOLOGY, "test").expect("a topology");
    Lab::builder(&topology)
        .name(format!("t{}-{number}", process::id()))
        .grace(Duration::from_millis(300))
        .interrupts(interrupts())
        .up()
        .unwrap_or_else(|error| {
            panic!("transparent listeners' tests need root and iproute2: {error}")
        })
}

/// Removes the laboratories on Ctrl-C too.
fn interrupts() -> &'static Interrupts {
    static INTERRUPTS: OnceLock<Interrupts> = OnceLock::new();
    INTERRUPTS.get_or_init(|| Interrupts::install(Duration::ZERO).expect("signal handlers"))
}

/// Carries out one of [`RULES`] in gateway a's host.
#[track_caller]
fn divert(mut shell: Command, rule: &str) {
    let quoted = rule.replace('{', "'{").replace('}', "}'");
    shell.args(["-c", &quoted]);
    let ran = finish(&mut shell, b"");
    assert_eq!(
        ran.code,
        Some(0),
        "`{rule}`: {}; these tests need nftables (`make setup`) and a kernel with NFT_TPROXY",
        ran.stderr
    );
}

fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).expect("set");
    let stream = eventually("the forward connects", || match listener.accept() {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        accepted => Some(accepted.expect("accepted").0),
    });
    stream.set_nonblocking(false).expect("set");
    stream
}

/// The configuration of gateway a (`own` 0) or b.
fn configuration(site: &Site, own: usize, peer_key: &str) -> String {
    let names = ["a", "b"];
    let at = ["192.0.2.1:7600", "192.0.2.2:7600"];
    let mut text = site.gateway(names[own]);
    let _ = write!(
        text,
        "[[path]]\nname = \"wan\"\nlocal = \"{}\"\nrate = \"100Mbit\"\nmtu_max = \"1500B\"\n\
         [[peer]]\nname = \"{peer}\"\npublic_key = \"{peer_key}\"\nendpoints = {{ wan = \"{}\" }}\n\
         [[app]]\nname = \"web\"\nclass = \"stream\"\npeer = \"{peer}\"\n{}",
        at[own],
        at[1 - own],
        [LISTENERS, FORWARD][own],
        peer = names[1 - own],
    );
    text
}
