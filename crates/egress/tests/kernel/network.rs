//! Namespaces of a provider with two egress peers, and daemons in them that write down when they
//! changed what. Packets are the judges.
//!
//! ```text
//!                                  ┌── pa ── transit A ── ca ──┐
//!  server (keiro egress) ── border (keiro asbr)              client (fd00:c0::/30)
//!                                  └── pb ── transit B ── cb ──┘
//! ```
#![allow(dead_code, reason = "every binary uses its own part")]

use std::{
    collections::BTreeMap,
    fs, io,
    net::{IpAddr, Ipv6Addr, UdpSocket},
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use ipnet::IpNet;
use keiro_bgp::{
    rib::NeighbourId,
    speaker::{Changes, Event, Input, Speaker},
};
use keiro_egress::{
    asbr::Asbr,
    config::{AsbrConfig, ConfigError, EndpointConfig, Neighbour, SpeakerConfig},
    control::{Answer, Request, ask},
    daemon::{Daemon, Role},
    endpoint::Endpoint,
    forwarding::{
        Configured, Forwarding, ForwardingError, Memory, NextHop, PeerIndex, RouteChange, Table,
        Via,
    },
    kernel::{Kernel, KernelView},
    status::{
        Compared, ComparisonStatus, Explanation, KernelRoute, KernelStatus, PeerExplanation,
        PeerInKernel, PeerStatus, PrefixStatus, Status, Steered, SteeredPrefix, SteeringStatus,
    },
};
use keiro_lab::{Host, Lab, Topology};

use crate::support::{self, Serving};

/// Nothing here takes longer unless it is broken.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// EPE addresses, by egress peer.
pub(crate) const OWN: [&str; 2] = ["fd00:e::a", "fd00:e::b"];
pub(crate) const CLIENTS: [&str; 4] = [
    "fd00:c0::/32",
    "fd00:c1::/32",
    "fd00:c2::/32",
    "fd00:c3::/32",
];

/// What a test needs of an address family.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Family {
    /// Prefixes of clients, whose first address is a client's.
    pub(crate) clients: [&'static str; 4],
    /// EPE addresses, by egress peer, and their network.
    pub(crate) own: [&'static str; 2],
    pub(crate) own_network: &'static str,
    /// The server's ordinary address.
    pub(crate) server: &'static str,
    /// The client's router at transit A.
    pub(crate) router: &'static str,
}

pub(crate) const IPV6: Family = Family {
    clients: CLIENTS,
    own: OWN,
    own_network: "fd00:e::/64",
    server: "fd00:1::2",
    router: "fd00:ca::1",
};
pub(crate) const IPV4: Family = Family {
    clients: [
        "198.18.0.0/24",
        "198.18.1.0/24",
        "198.18.2.0/24",
        "198.18.3.0/24",
    ],
    own: ["192.0.2.10", "192.0.2.11"],
    own_network: "192.0.2.0/24",
    server: "10.1.0.2",
    router: "10.4.0.1",
};

impl Family {
    pub(crate) fn client(&self, number: usize) -> IpAddr {
        let prefix: IpNet = self.clients[number].parse().unwrap();
        prefix
            .hosts()
            .nth(usize::from(prefix.addr().is_ipv6()))
            .unwrap()
    }

    pub(crate) fn is_ipv4(&self) -> bool {
        self.client(0).is_ipv4()
    }
}

/// A configuration of the border router or server in which IPv4 takes segments, too.
pub(crate) fn with_ipv4(config: &str) -> String {
    let config = config
        .replace("announce = [", "announce = [\"192.0.2.0/24\", ")
        .replace("address = \"fd00:1::", "ipv4 = true\naddress = \"fd00:1::")
        .replace("asn = 6500", "ipv4 = true\nasn = 6500")
        .replacen("ipv4 = true\nasn = 65000", "asn = 65000", 1);
    let own = [("fd00:e::a", IPV4.own[0]), ("fd00:e::b", IPV4.own[1])];
    own.into_iter().fold(config, |config, (ipv6, ipv4)| {
        let key = format!("address = \"{ipv6}\"");
        config.replace(&key, &format!("{key}\nipv4_address = \"{ipv4}\""))
    })
}

/// How many SYNs are sent again before the next one asks for plain TCP, two by default; Linux 6.16 or newer.
const MPTCP_SYNS: &str = "/proc/sys/net/mptcp/syn_retrans_before_tcp_fallback";

const TOPOLOGY: &str = r#"
[host.server]
[host.border]
routes = [{ to = "fd00:e::/64", via = "fd00:1::2" }, { to = "192.0.2.0/24", via = "10.1.0.2" }]
sysctl = { "net.ipv6.conf.all.forwarding" = 1, "net.ipv4.ip_forward" = 1 }
[host.ta]
routes = [
  { to = "fd00:c0::/30", via = "fd00:ca::2" }, { to = "::/0", via = "fd00:a::1" },
  { to = "198.18.0.0/16", via = "10.4.0.2" }, { to = "0.0.0.0/0", via = "10.2.0.1" },
]
sysctl = { "net.ipv6.conf.all.forwarding" = 1, "net.ipv4.ip_forward" = 1 }
[host.tb]
routes = [
  { to = "fd00:c0::/30", via = "fd00:cb::2" }, { to = "::/0", via = "fd00:b::1" },
  { to = "198.18.0.0/16", via = "10.5.0.2" }, { to = "0.0.0.0/0", via = "10.3.0.1" },
]
sysctl = { "net.ipv6.conf.all.forwarding" = 1, "net.ipv4.ip_forward" = 1 }
[host.client]
routes = [{ to = "::/0", via = "fd00:ca::1" }, { to = "0.0.0.0/0", via = "10.4.0.1" }]

[link.up]
a = { host = "border", addresses = ["fd00:1::1/64", "10.1.0.1/24"] }
b = { host = "server", addresses = ["fd00:1::2/64", "10.1.0.2/24"] }
[link.pa]
a = { host = "border", addresses = ["fd00:a::1/64", "10.2.0.1/24"] }
b = { host = "ta", addresses = ["fd00:a::2/64", "10.2.0.2/24"] }
[link.pb]
a = { host = "border", addresses = ["fd00:b::1/64", "10.3.0.1/24"] }
b = { host = "tb", addresses = ["fd00:b::2/64", "10.3.0.2/24"] }
[link.ca]
a = { host = "ta", addresses = ["fd00:ca::1/64", "10.4.0.1/24"] }
b = { host = "client", addresses = ["fd00:ca::2/64", "10.4.0.2/24"] }
[link.cb]
a = { host = "tb", addresses = ["fd00:cb::1/64", "10.5.0.1/24"] }
b = { host = "client", addresses = ["fd00:cb::2/64", "10.5.0.2/24"] }
"#;

pub(crate) const BORDER: &str = r#"
[asbr]
asn = 65000
router_id = "10.0.0.9"
locator = "fd00:51d::/48"
announce = ["fd00:e::/64"]
[[reflector]]
name = "server"
address = "fd00:1::2"
[[peer]]
name = "transit-a"
address = "fd00:a::2"
asn = 65001
function = 0xa
import = "all"
export = "own"
interface = "pa"
[[peer]]
name = "transit-b"
address = "fd00:b::2"
asn = 65002
function = 0xb
import = "all"
export = "own"
table = 7800
"#;

pub(crate) const SERVER: &str = r#"
[egress]
asn = 65000
router_id = "10.0.0.20"
[[reflector]]
name = "border"
address = "fd00:1::1"
[[peer]]
name = "transit-a"
rt = "65000:10"
address = "fd00:e::a"
[[peer]]
name = "transit-b"
rt = "65000:11"
address = "fd00:e::b"
"#;

/// The server's, which looks after its connections and holds none out.
pub(crate) fn precise() -> String {
    let config = SERVER.replacen("[egress]", "[egress]\nmptcp = \"precise\"", 1);
    config + "[comparison]\nheld_out = \"0%\"\n"
}

pub(crate) struct Network {
    pub(crate) lab: Lab,
}

impl Network {
    /// For a test; `None`: it needs root, and says so.
    pub(crate) fn new(test: &str) -> Option<Self> {
        has_root(test).then(Self::up)
    }

    /// The same with emulated links between transits and client.
    pub(crate) fn emulated(test: &str) -> Option<Self> {
        let links = ["[link.ca]\n", "[link.cb]\n"];
        let topology = links
            .into_iter()
            .fold(TOPOLOGY.to_owned(), |topology, link| {
                topology.replacen(link, &format!("{link}emulated = true\n"), 1)
            });
        has_root(test).then(|| Self::up_as(&topology))
    }

    /// Where there is root.
    pub(crate) fn up() -> Self {
        Self::up_as(TOPOLOGY)
    }

    fn up_as(topology: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let topology = Topology::parse(topology, "kernel").unwrap();
        let name = format!("epe{}-{number}", std::process::id());
        let network = Self {
            lab: Lab::builder(&topology).name(name).up().unwrap(),
        };
        // On a busy machine answers are late, and a connection must not become plain TCP for that.
        let ask_longer = || match Path::new(MPTCP_SYNS).exists() {
            true => fs::write(MPTCP_SYNS, "255"),
            false => Ok(()),
        };
        network.host("client").run(ask_longer).unwrap().unwrap();
        for number in 0..CLIENTS.len() {
            let address = client(number);
            network.ip("client", &format!("addr add {address}/128 dev lo nodad"));
            let address = IPV4.client(number);
            network.ip4("client", &format!("addr add {address}/32 dev lo"));
        }
        network
    }

    pub(crate) fn host(&self, name: &str) -> &Host {
        self.lab.host(name).unwrap()
    }

    /// Runs `ip -6` in a host, and gives what it printed.
    pub(crate) fn ip(&self, host: &str, arguments: &str) -> String {
        support::ip(self.host(host), arguments)
    }

    /// The same for `ip -4`.
    pub(crate) fn ip4(&self, host: &str, arguments: &str) -> String {
        support::ip_of(self.host(host), "-4", arguments)
    }

    /// Runs nft in a host, and gives what it printed.
    pub(crate) fn nft(&self, host: &str, arguments: &str) -> String {
        let mut command = self.host(host).command("nft");
        command.args(arguments.split_whitespace());
        let output = command.output().expect("nft runs");
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "nft {arguments}: {message}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Limits what both transits send to the client, so that a flow needs both.
    pub(crate) fn narrow(&self) {
        self.narrow_to(["30mbit"; 2]);
    }

    /// The same, each to its own rate.
    pub(crate) fn narrow_to(&self, rates: [&str; 2]) {
        for (number, rate) in rates.into_iter().enumerate() {
            self.limit(number, &format!("rate {rate} burst 15k latency 30ms"));
        }
    }

    /// Has one transit send to the client through a token bucket (tc-tbf(8)).
    pub(crate) fn limit(&self, number: usize, bucket: &str) {
        let (host, device) = [("ta", "ca"), ("tb", "cb")][number];
        let mut command = self.host(host).command("tc");
        command.args(["qdisc", "replace", "dev", device, "root", "tbf"]);
        command.args(bucket.split_whitespace());
        let output = command.output().expect("tc runs");
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{message}");
    }

    pub(crate) fn border(&self) -> Running {
        self.border_of(BORDER)
    }

    pub(crate) fn border_of(&self, config: &str) -> Running {
        let config = AsbrConfig::parse(config, "asbr.toml").unwrap();
        let speaker = config.speaker.clone();
        Running::start(self.host("border"), speaker, move || {
            let kernel = Kernel::asbr(&config).unwrap();
            (Asbr::new(config), Box::new(kernel))
        })
    }

    /// Whether a host's table has a route to just that prefix.
    pub(crate) fn has_route(&self, host: &str, table: u32, prefix: &str) -> bool {
        let arguments = format!("route show table {table} {prefix}");
        let shown = match prefix.contains(':') {
            true => self.ip(host, &arguments),
            false => self.ip4(host, &arguments),
        };
        shown.contains(prefix)
    }

    /// Waits until the server's tables have routes to these, by egress peer.
    pub(crate) fn await_routes(&self, by_peer: [&[&str]; 2]) {
        wait_until("routes in the server's tables", || {
            let mut tables = [7600, 7601].into_iter().zip(by_peer);
            tables.all(|(table, prefixes)| {
                let mut prefixes = prefixes.iter();
                prefixes.all(|prefix| self.has_route("server", table, prefix))
            })
        });
    }

    /// What of a routing protocol number is left in a host.
    pub(crate) fn left(&self, host: &str, protocol: u8) -> String {
        let all = [
            format!("route show table all proto {protocol}"),
            format!("nexthop show proto {protocol}"),
            "addr show to fd00:e::/64".to_owned(),
        ];
        let rules = self.ip(host, "rule show") + &self.ip4(host, "rule show");
        let proto = format!("proto {protocol}");
        let rules = rules.lines().filter(|line| line.contains(&proto));
        let rest: String = all.iter().map(|what| self.ip(host, what)).collect();
        let ipv4 = [&all[0], "addr show to 192.0.2.0/24"];
        let rest = rest + &ipv4.map(|what| self.ip4(host, what)).concat();
        rest + &rules.collect::<String>()
    }

    pub(crate) fn server(&self) -> Running {
        self.server_of(SERVER)
    }

    pub(crate) fn server_of(&self, config: &str) -> Running {
        let config = EndpointConfig::parse(config, "egress.toml").unwrap();
        let speaker = config.speaker.clone();
        Running::start(self.host("server"), speaker, move || {
            let kernel = Kernel::endpoint(&config).unwrap();
            (Endpoint::new(config), Box::new(kernel))
        })
    }

    /// Transit A (0) or B (1), which announces these prefixes.
    pub(crate) fn transit(&self, number: usize, announced: &[&str]) -> Transit {
        self.transit_with(number, announced, "")
    }

    /// The same, with more said of its session.
    pub(crate) fn transit_with(&self, number: usize, announced: &[&str], keys: &str) -> Transit {
        let letter = ["a", "b"][number];
        let asn = 65001 + number;
        let export = match keys.contains("export") {
            true => "",
            false => "export = \"all\"\n",
        };
        let is_ipv4 = |prefix: &&str| !prefix.contains(':');
        let ipv4 = match announced.iter().any(is_ipv4) {
            true => "ipv4 = true\n",
            false => "",
        };
        let text = format!(
            "[asbr]\nasn = {asn}\nrouter_id = \"10.0.0.{}\"\nlocator = \"fd00:999::/48\"\n\
             [[peer]]\nname = \"border\"\naddress = \"fd00:{letter}::1\"\nasn = 65000\n\
             import = \"all\"\n{export}{ipv4}{keys}",
            number + 1,
        );
        let config = AsbrConfig::parse(&text, "transit.toml").unwrap();
        let speaker = config.speaker.clone();
        let orders = Orders::default();
        let role = TransitRole {
            neighbours: config
                .peers
                .into_iter()
                .map(|peer| peer.neighbour)
                .collect(),
            announced: announced.iter().map(|net| net.parse().unwrap()).collect(),
            orders: Arc::clone(&orders),
        };
        let host = self.host(&format!("t{letter}"));
        let running = Running::start(host, speaker, move || (role, Box::new(Memory::default())));
        Transit { running, orders }
    }

    /// Sends a packet from an address of the server's to a client, until one has arrived or the
    /// sender gets an unreachable error. By which transit it came.
    pub(crate) fn send(&self, from: &str, to: usize) -> io::Result<usize> {
        self.send_by(&IPV6, from, to)
    }

    /// The same for a client of either family.
    pub(crate) fn send_by(&self, family: &Family, from: &str, to: usize) -> io::Result<usize> {
        let receiver = self
            .host("client")
            .run(|| UdpSocket::bind("[::]:0"))
            .unwrap()?;
        let client = family.client(to);
        receiver.set_read_timeout(Some(Duration::from_millis(200)))?;
        let port = receiver.local_addr()?.port();
        let sender = self
            .host("server")
            .run(|| UdpSocket::bind((from, 0)))
            .unwrap()?;
        // IPv4 reports an error from the network to connected sockets only.
        sender.connect((client, port))?;
        let end = Instant::now() + PATIENCE;
        loop {
            let before = self.forwarded(family);
            sender.send(b"content")?;
            if receiver.recv(&mut [0; 10]).is_ok() {
                let after = self.forwarded(family);
                let by: Vec<usize> = (0..2).filter(|&n| after[n] > before[n]).collect();
                // An earlier one may have waited for its neighbour until now, and left by the other transit.
                if let [by] = by[..] {
                    return Ok(by);
                }
            }
            assert!(Instant::now() < end, "packets of {from} go nowhere");
        }
    }

    /// Packets that each transit has forwarded.
    fn forwarded(&self, family: &Family) -> [u64; 2] {
        ["ta", "tb"].map(|host| match family.is_ipv4() {
            false => self.counted(host, "Ip6OutForwDatagrams"),
            true => {
                let read = || fs::read_to_string("/proc/thread-self/net/snmp");
                let text = self.host(host).run(read).unwrap().unwrap();
                let mut lines = text.lines().filter_map(|line| line.strip_prefix("Ip: "));
                let (names, counts) = (lines.next().unwrap(), lines.next().unwrap());
                let mut all = names.split(' ').zip(counts.split(' '));
                let (_, count) = all.find(|(name, _)| *name == "ForwDatagrams").unwrap();
                count.parse().unwrap()
            }
        })
    }

    /// Octets that each transit has sent to the client.
    pub(crate) fn sent_to_client(&self) -> [u64; 2] {
        [("ta", "ca"), ("tb", "cb")].map(|(host, device)| {
            let read = || fs::read_to_string("/proc/thread-self/net/dev");
            let text = self.host(host).run(read).unwrap().unwrap();
            let mut lines = text.lines().filter_map(|line| line.split_once(':'));
            let line = lines.find(|(name, _)| name.trim() == device);
            let (_, counters) = line.expect("it is there");
            // Eight of what was received come first.
            let sent = counters.split_whitespace().nth(8);
            sent.unwrap().parse().unwrap()
        })
    }

    /// A counter of a host's (`/proc/net/snmp6`).
    pub(crate) fn counted(&self, host: &str, counter: &str) -> u64 {
        let read = || fs::read_to_string("/proc/thread-self/net/snmp6");
        let text = self.host(host).run(read).unwrap().unwrap();
        let mut lines = text.lines();
        let line = lines.find_map(|line| line.strip_prefix(counter));
        line.unwrap().trim().parse().unwrap()
    }
}

pub(crate) fn client(number: usize) -> Ipv6Addr {
    format!("fd00:c{number}::1").parse().unwrap()
}

pub(crate) use keiro_testing::wait_until;

pub(crate) use keiro_testing::has_root;

/// Whether a sender got an unreachable error.
pub(crate) fn is_unreachable(error: &io::Error) -> bool {
    use io::ErrorKind::{HostUnreachable, NetworkUnreachable};
    [HostUnreachable, NetworkUnreachable].contains(&error.kind())
}

/// Where a daemon can be asked, in a directory of its own.
pub(crate) struct ControlSocket {
    pub(crate) directory: tempfile::TempDir,
}

impl ControlSocket {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self { directory }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("s")
    }

    /// A configuration whose daemon answers there.
    pub(crate) fn named_in(&self, config: &str) -> String {
        let (head, rest) = config.split_once("]\n").expect("its first section");
        let key = format!("control_socket = {:?}", self.path());
        format!("{head}]\n{key}\n{rest}")
    }

    pub(crate) fn status(&self) -> Status {
        match ask(&self.path(), Request::Status).unwrap() {
            Answer::Status(status) => *status,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn explain(&self, asked: &str) -> Explanation {
        match ask(&self.path(), Request::Explain(asked.parse().unwrap())).unwrap() {
            Answer::Explanation(reported) => *reported,
            other => panic!("{other:?}"),
        }
    }
}

/// A daemon, and what it does to the kernel.
pub(crate) struct Running {
    serving: Serving,
    log: Log,
    hops: Hops,
    /// Where it reads its configuration again.
    file: tempfile::NamedTempFile,
}

/// What was said of next hops.
#[derive(Clone, Debug, Default)]
pub(crate) struct Said {
    /// To the daemon.
    pub(crate) reported: Vec<NextHop>,
    /// By the daemon: that they need not be asked for any more.
    pub(crate) forgotten: Vec<(Option<PeerIndex>, IpAddr)>,
}

type Hops = Arc<Mutex<Said>>;

/// What was changed, begun and done when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Noted {
    pub(crate) peer: usize,
    pub(crate) destination: IpNet,
    pub(crate) there: bool,
    pub(crate) begun: Instant,
    pub(crate) done: Instant,
}

type Log = Arc<Mutex<Vec<Noted>>>;

impl Running {
    fn start<R: Role>(
        host: &Host,
        config: SpeakerConfig,
        make: impl FnOnce() -> (R, Box<dyn Forwarding>) + Send + 'static,
    ) -> Self {
        let log = Log::default();
        let hops = Hops::default();
        let (notes, said) = (Arc::clone(&log), Arc::clone(&hops));
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_owned();
        let serving = Serving::start(host, move || {
            let (role, inner) = make();
            let forwarding = Box::new(Noting {
                inner,
                log: notes,
                hops: said,
            });
            let mut daemon = Daemon::start(role, &config, forwarding).unwrap();
            daemon.reload_from(&path);
            daemon
        });
        Self {
            serving,
            log,
            hops,
            file,
        }
    }

    /// Gives it another configuration.
    pub(crate) fn reload(&self, config: &str) {
        fs::write(self.file.path(), config).unwrap();
        self.serving.handle.reload();
    }

    /// What has been said of next hops.
    pub(crate) fn hops(&self) -> Said {
        let said = self.hops.lock().unwrap_or_else(PoisonError::into_inner);
        said.clone()
    }

    /// Routes of egress peers' tables in the order of their changes.
    pub(crate) fn log(&self) -> Vec<Noted> {
        self.log
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

type Orders = Arc<Mutex<Vec<Input>>>;

pub(crate) struct Transit {
    running: Running,
    orders: Orders,
}

impl Transit {
    /// Announces a prefix from now on, or no longer.
    pub(crate) fn announce(&self, prefix: &str, announced: bool) {
        let prefix = prefix.parse().unwrap();
        let order = match announced {
            true => Input::Originate(prefix),
            false => Input::Retract(prefix),
        };
        self.orders.lock().unwrap().push(order);
        self.running.serving.handle.wake();
    }
}

struct TransitRole {
    neighbours: Vec<Neighbour>,
    announced: Vec<IpNet>,
    orders: Orders,
}

impl Role for TransitRole {
    type Config = AsbrConfig;

    fn load(path: &Path) -> Result<AsbrConfig, ConfigError> {
        AsbrConfig::load(path)
    }

    fn speaker_of(config: &AsbrConfig) -> &SpeakerConfig {
        &config.speaker
    }

    fn neighbours_of(_: &AsbrConfig) -> Vec<Neighbour> {
        Vec::new()
    }

    fn keep(&self, _: &mut AsbrConfig) -> Result<Vec<String>, String> {
        Err("a transit has one configuration".to_owned())
    }

    fn is_other(&self, _: NeighbourId, _: &AsbrConfig) -> bool {
        false
    }

    fn adopt(
        &mut self,
        _: AsbrConfig,
        _: &[NeighbourId],
        _: &Speaker,
        _: &mut dyn Forwarding,
    ) -> (Vec<Input>, Vec<ForwardingError>) {
        (Vec::new(), Vec::new())
    }

    fn neighbours(&self) -> Vec<Neighbour> {
        self.neighbours.clone()
    }

    fn tracks_routes(&self, _: NeighbourId) -> bool {
        false
    }

    fn begin(&mut self) -> Vec<Input> {
        let announced = std::mem::take(&mut self.announced);
        announced.into_iter().map(Input::Originate).collect()
    }

    fn on_event(&mut self, _: &Event, _: &Speaker, _: &mut dyn Forwarding) -> Vec<Input> {
        Vec::new()
    }

    fn on_changes(
        &mut self,
        _: &Speaker,
        _: &Changes,
        _: &mut dyn Forwarding,
    ) -> (Vec<Input>, Vec<ForwardingError>) {
        (std::mem::take(&mut self.orders.lock().unwrap()), Vec::new())
    }

    fn name(&self) -> &'static str {
        "transit"
    }

    fn peers(&self, _: &Speaker) -> Vec<PeerStatus> {
        Vec::new()
    }

    fn explain(&self, _: &Speaker, _: IpNet, _: &[&str]) -> Vec<PeerExplanation> {
        Vec::new()
    }

    fn indices(&self) -> Vec<PeerIndex> {
        Vec::new()
    }

    fn end(&mut self, _: &mut dyn Forwarding) {}
}

/// Forwarding that records its calls.
struct Noting {
    inner: Box<dyn Forwarding>,
    log: Log,
    hops: Hops,
}

impl Forwarding for Noting {
    fn add_segment(&mut self, peer: PeerIndex, sid: Ipv6Addr) -> Result<(), ForwardingError> {
        self.inner.add_segment(peer, sid)
    }

    fn remove_segment(&mut self, peer: PeerIndex, sid: Ipv6Addr) -> Result<(), ForwardingError> {
        self.inner.remove_segment(peer, sid)
    }

    fn change(&mut self, changes: &[RouteChange]) -> Vec<ForwardingError> {
        let begun = Instant::now();
        let errors = self.inner.change(changes);
        assert!(errors.is_empty(), "{errors:?}");
        let done = Instant::now();
        let of_peers = changes.iter().filter_map(|change| match change.table {
            Table::Main => None,
            // Routes for probes lead to segments.
            Table::Peer(_) if change.destination.prefix_len() == 128 => None,
            Table::Peer(peer) => Some(Noted {
                peer: peer.0,
                destination: change.destination,
                there: matches!(change.via, Some(Via::Segment(_) | Via::Router { .. })),
                begun,
                done,
            }),
        });
        self.log.lock().unwrap().extend(of_peers);
        errors
    }

    fn clear(&mut self, table: Table) -> Result<(), ForwardingError> {
        self.inner.clear(table)
    }

    fn poll_next_hop(&mut self) -> Option<NextHop> {
        let reported = self.inner.poll_next_hop();
        self.hops.lock().unwrap().reported.extend(reported.clone());
        reported
    }

    fn forget_next_hop(&mut self, peer: Option<PeerIndex>, address: IpAddr) {
        self.hops.lock().unwrap().forgotten.push((peer, address));
        self.inner.forget_next_hop(peer, address);
    }

    fn set_draining(&mut self, peer: PeerIndex, routes: &[(IpNet, bool)]) {
        self.inner.set_draining(peer, routes);
    }

    fn follow(&mut self) -> Vec<ForwardingError> {
        self.inner.follow()
    }

    fn settled(&mut self) -> Vec<ForwardingError> {
        self.inner.settled()
    }

    fn follow_configuration(&mut self, configured: &Configured<'_>) -> Vec<ForwardingError> {
        let errors = self.inner.follow_configuration(configured);
        assert!(errors.is_empty(), "{errors:?}");
        errors
    }

    fn end(&mut self) -> Vec<ForwardingError> {
        let errors = self.inner.end();
        assert!(errors.is_empty(), "{errors:?}");
        errors
    }

    fn finish(&mut self) {
        self.inner.finish();
    }

    fn view(&self) -> Option<KernelView> {
        self.inner.view()
    }

    fn in_step(&self) -> bool {
        self.inner.in_step()
    }

    fn earlier_routes(&self) -> usize {
        self.inner.earlier_routes()
    }

    fn forwards(&self, ipv4: bool) -> Option<bool> {
        self.inner.forwards(ipv4)
    }

    fn leads_to(&mut self, address: IpAddr) -> bool {
        self.inner.leads_to(address)
    }

    fn probe(&mut self, segments: &BTreeMap<Ipv6Addr, PeerIndex>) -> Vec<(Ipv6Addr, bool)> {
        self.inner.probe(segments)
    }

    fn installed(&self) -> Option<(KernelStatus, Vec<Option<PeerInKernel>>)> {
        self.inner.installed()
    }

    fn installed_routes(&self, asked: IpNet) -> Option<(KernelRoute, Vec<Option<KernelRoute>>)> {
        self.inner.installed_routes(asked)
    }

    fn watched(&self) -> Vec<BorrowedFd<'_>> {
        self.inner.watched()
    }

    fn subflows(&self, peer: PeerIndex) -> Option<usize> {
        self.inner.subflows(peer)
    }

    fn comparison(&self) -> Option<ComparisonStatus> {
        self.inner.comparison()
    }

    fn compared(&self, asked: IpNet) -> Vec<PrefixStatus> {
        self.inner.compared(asked)
    }

    fn poll_decision(&mut self) -> Option<Compared> {
        self.inner.poll_decision()
    }

    fn steering(&self) -> Option<SteeringStatus> {
        self.inner.steering()
    }

    fn steered(&self, asked: IpNet) -> Vec<SteeredPrefix> {
        self.inner.steered(asked)
    }

    fn poll_steered(&mut self) -> Option<Steered> {
        self.inner.poll_steered()
    }

    fn poll_timeout(&self) -> Option<keiro_units::Instant> {
        self.inner.poll_timeout()
    }

    fn tend(&mut self, now: keiro_units::Instant) -> Vec<ForwardingError> {
        let errors = self.inner.tend(now);
        assert!(errors.is_empty(), "{errors:?}");
        errors
    }
}
