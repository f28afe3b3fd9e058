//! FRR as the border router: it exports its egress peers' routes as VPN routes with segments, and
//! `keiro egress` makes tables of them in the kernel.
//!
//! ```text
//! transit (FRR, AS 65001) ── peers (VRF a)  ┐
//!                                            border (FRR) ┬───────── server
//!   other (FRR, AS 65002) ── others (VRF b) ┘             └─── rr ───┘ (none, FRR, gobgpd)
//! ```
//!
//! A VRF is a namespace here, because not every kernel has VRF devices. zebra then puts a peer's
//! routes where they belong and no segments; the one that packets are sent by is put there by hand.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    net::{Ipv6Addr, UdpSocket},
    time::Duration,
};

use keiro_egress::{config::EndpointConfig, daemon::Daemon, endpoint::Endpoint, kernel::Kernel};
use keiro_lab::{
    Host, Lab, Topology,
    frr::{Operator, Router, Vrf},
    gobgp,
};

use super::{
    announcer,
    support::{Serving, ip},
};

const TOPOLOGY: &str = r#"
[host.transit]
[host.other]
[host.peers]
routes = [{ to = "2001:db8:a:e::/64", via = "2001:db8:b::9" }]
sysctl = { "net.ipv6.conf.all.forwarding" = 1 }
[host.others]
[host.border]
sysctl = { "net.ipv6.conf.all.forwarding" = 1 }
[host.rr]
routes = [{ to = "2001:db8:a:1::/64", via = "2001:db8:a2::9" }]
sysctl = { "net.ipv6.conf.all.forwarding" = 1 }
[host.server]
routes = [{ to = "2001:db8:a2::/64", via = "2001:db8:a3::30" }]

[link.pa]
a = { host = "transit", addresses = ["2001:db8:f::1/64"] }
b = { host = "peers", addresses = ["2001:db8:f::2/64"] }

[link.pb]
a = { host = "other", addresses = ["2001:db8:f:1::1/64"] }
b = { host = "others", addresses = ["2001:db8:f:1::2/64"] }

[link.inner]
a = { host = "border", addresses = ["2001:db8:b::9/64"] }
b = { host = "peers", addresses = ["2001:db8:b::1/64"] }

[link.near]
a = { host = "border", addresses = ["2001:db8:a1::9/64"] }
b = { host = "server", addresses = ["2001:db8:a1::20/64"] }

[link.up]
a = { host = "border", addresses = ["2001:db8:a2::9/64"] }
b = { host = "rr", addresses = ["2001:db8:a2::30/64"] }

[link.down]
a = { host = "rr", addresses = ["2001:db8:a3::30/64"] }
b = { host = "server", addresses = ["2001:db8:a3::20/64"] }
"#;

const BORDER_ZEBRA: &str = "
segment-routing
 srv6
  locators
   locator border
    prefix 2001:db8:a:1::/64 func-bits 16
";

const BORDER: &str = "
router bgp 65000
 bgp router-id 10.0.0.9
 no bgp default ipv4-unicast
 no bgp network import-check
 neighbor UPWARDS peer-group
 neighbor UPWARDS remote-as 65000
 neighbor UPWARDS timers connect 1
 neighbor NEIGHBOUR peer-group UPWARDS
 segment-routing srv6
  locator border
 exit
 address-family ipv6 unicast
  neighbor UPWARDS activate
  network 2001:db8:a:1::/64
 exit-address-family
 address-family ipv6 vpn
  neighbor UPWARDS activate
 exit-address-family
router bgp 65000 vrf a
 bgp router-id 10.0.0.9
 no bgp default ipv4-unicast
 no bgp ebgp-requires-policy
 neighbor 2001:db8:f::1 remote-as 65001
 neighbor 2001:db8:f::1 timers connect 1
 address-family ipv6 unicast
  neighbor 2001:db8:f::1 activate
  sid vpn export auto
  rd vpn export 65000:256
  rt vpn export 65000:256
  export vpn
 exit-address-family
router bgp 65000 vrf b
 bgp router-id 10.0.0.9
 no bgp default ipv4-unicast
 no bgp ebgp-requires-policy
 neighbor 2001:db8:f:1::1 remote-as 65002
 neighbor 2001:db8:f:1::1 timers connect 1
 address-family ipv6 unicast
  neighbor 2001:db8:f:1::1 activate
  sid vpn export auto
  rd vpn export 65000:512
  rt vpn export 65000:512
  export vpn
 exit-address-family
";

const SERVER: &str = r#"
[egress]
asn = 65000
router_id = "10.0.0.20"
interface = "near"

[[reflector]]
name = "upwards"
address = "NEIGHBOUR"

[[peer]]
name = "a"
rt = "65000:256"
address = "2001:db8:a:e::a"
table = 7600

[[peer]]
name = "b"
rt = "65000:512"
address = "2001:db8:a:e::b"
table = 7601
"#;

/// The server's daemon, with the kernel.
fn serve(host: &Host, config: &str) -> Serving {
    let config = EndpointConfig::parse(config, "server").unwrap();
    Serving::start(host, move || {
        let kernel = Box::new(Kernel::endpoint(&config).unwrap());
        let speaker = config.speaker.clone();
        Daemon::start(Endpoint::new(config), &speaker, kernel).unwrap()
    })
}

/// The segment of a VRF as FRR says it; `None`: it has none yet.
fn segment_of(border: &mut Operator, vrf: &str) -> Option<Ipv6Addr> {
    let said = border.command("show bgp segment-routing srv6").unwrap();
    let mut lines = said.lines().map(str::trim);
    lines.find(|line| *line == format!("- name: {vrf}"))?;
    let line = lines.find(|line| line.contains("[AFI_IP6].tovpn_sid"))?;
    line.split_once(": ")?.1.parse().ok()
}

/// An egress peer's table at the server: prefixes, and by which segment.
type Routes = BTreeMap<String, String>;

fn routes(server: &Host, table: u32) -> Routes {
    let shown = ip(server, &format!("route show table {table}"));
    let lines = shown
        .lines()
        .filter(|line| !line.starts_with("unreachable"));
    let route = |line: &str| {
        let prefix = line.split_whitespace().next().unwrap_or_default();
        let segment = line
            .split_once("segs 1 [ ")
            .and_then(|(_, rest)| rest.split_once(" ]"));
        let segment = segment.map_or_else(|| line.to_owned(), |(segment, _)| segment.to_owned());
        (prefix.to_owned(), segment)
    };
    // A segment's own route is for probes.
    let is_probe = |(prefix, segment): &(String, String)| prefix == segment;
    lines.map(route).filter(|route| !is_probe(route)).collect()
}

use keiro_testing::wait_for_value as wait_until;

/// A packet from the server's EPE address arrives at the transit, by the segment that FRR chose.
fn check_packets(lab: &Lab, segment: Ipv6Addr) {
    let host = |name: &str| lab.host(name).unwrap();
    let by_hand = format!(
        "route add {segment}/128 encap seg6local action End.DX6 nh6 2001:db8:b::1 dev inner"
    );
    ip(host("border"), &by_hand);
    ip(
        host("border"),
        "route add 2001:db8:a:e::/64 via 2001:db8:a1::20",
    );
    ip(host("transit"), "addr add 2001:db8:c1::1/128 dev lo nodad");
    let of = |name: &str, address: &'static str| {
        let bound = host(name).run(|| UdpSocket::bind((address, 0)));
        bound.unwrap().unwrap()
    };
    let receiver = of("transit", "2001:db8:c1::1");
    receiver
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    let port = receiver.local_addr().unwrap().port();
    let sender = of("server", "2001:db8:a:e::a");
    let arrives = || {
        // What is refused is refused by the server's own table.
        sender
            .send_to(b"content", ("2001:db8:c1::1", port))
            .unwrap();
        receiver
            .recv_from(&mut [0; 16])
            .ok()
            .map(|(_, from)| from.ip())
    };
    let from = wait_until("a packet at the transit", arrives, Option::is_some);
    assert_eq!(from.unwrap().to_string(), "2001:db8:a:e::a");
}

/// What is between border router and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Between {
    Nothing,
    Frr,
    Gobgp,
}

/// A reflector, ended when dropped.
enum Reflecting {
    Nothing,
    Frr { _router: Router },
    Gobgp { _reflector: gobgp::Reflector },
}

impl Between {
    /// The session neighbours of the border router and of the server.
    fn neighbours(self) -> [&'static str; 2] {
        match self {
            Self::Nothing => ["2001:db8:a1::20", "2001:db8:a1::9"],
            Self::Frr | Self::Gobgp => ["2001:db8:a2::30", "2001:db8:a3::30"],
        }
    }

    fn start(self, host: &Host) -> Reflecting {
        let clients = ["2001:db8:a2::9", "2001:db8:a3::20"].map(|at| at.parse().unwrap());
        let own = [10, 0, 0, 30].into();
        match self {
            Self::Nothing => Reflecting::Nothing,
            Self::Frr => Reflecting::Frr {
                _router: Router::reflector(host, 65000, own, &clients).unwrap(),
            },
            Self::Gobgp => Reflecting::Gobgp {
                _reflector: gobgp::Reflector::start(host, 65000, own, &clients).unwrap(),
            },
        }
    }
}

fn interoperates(between: Between) {
    let [neighbour_of_border, neighbour_of_server] = between.neighbours();
    let topology = Topology::parse(TOPOLOGY, "asbr").unwrap();
    let name = format!("fra{}-{}", std::process::id(), between as u8);
    let lab = Lab::builder(&topology).name(name).up().unwrap();
    let host = |name: &str| lab.host(name).unwrap();
    let _reflecting = between.start(host("rr"));
    let [a, b] = [
        ["2001:db8:c1::/48", "2001:db8:c2::/48"],
        ["2001:db8:c1::/48", "2001:db8:c3::/48"],
    ];
    let of_transit = announcer((65001, 1), "2001:db8:f::2", "", &a);
    let of_other = announcer((65002, 2), "2001:db8:f:1::2", "", &b);
    let transit = Router::start(host("transit"), &of_transit).unwrap();
    let _other = Router::start(host("other"), &of_other).unwrap();
    let config = BORDER.replace("NEIGHBOUR", neighbour_of_border);
    let vrfs = [("a", "peers"), ("b", "others")].map(|(name, of)| Vrf {
        name,
        host: host(of),
    });
    let border = Router::start_with_vrfs(host("border"), BORDER_ZEBRA, &config, &vrfs).unwrap();
    let config = SERVER.replace("NEIGHBOUR", neighbour_of_server);
    let server = serve(host("server"), &config);

    let mut at_border = border.operator().unwrap();
    let segments = ["a", "b"].map(|vrf| {
        let found = wait_until(
            "a segment",
            || segment_of(&mut at_border, vrf),
            Option::is_some,
        );
        found.unwrap()
    });
    assert_ne!(segments[0], segments[1]);
    let wanted = |peer: usize, prefixes: &[&str]| -> Routes {
        let segment = segments[peer].to_string();
        let routes = prefixes
            .iter()
            .map(|prefix| ((*prefix).to_owned(), segment.clone()));
        routes.collect()
    };
    let wait = |what: &str, peer: usize, prefixes: &[&str]| {
        let wanted = wanted(peer, prefixes);
        let table = TABLES[peer];
        wait_until(
            what,
            || routes(host("server"), table),
            |found| *found == wanted,
        );
    };
    wait("all of a's by its segment", 0, &a);
    wait("all of b's by its segment", 1, &b);
    check_packets(&lab, segments[0]);

    let mut at_transit = transit.operator().unwrap();
    let mut change = |command: &str| at_transit.command(command).unwrap();
    for command in [
        "configure terminal",
        "router bgp 65001",
        "address-family ipv6 unicast",
    ] {
        change(command);
    }
    change("no network 2001:db8:c1::/48");
    wait("withdrawn", 0, &a[1..]);
    assert_eq!(
        routes(host("server"), TABLES[1]),
        wanted(1, &b),
        "b has it still"
    );
    change("network 2001:db8:c1::/48");
    wait("announced again", 0, &a);
    // What leads nowhere any more: a peer that has nothing, and then the whole border router.
    change("no network 2001:db8:c1::/48");
    change("no network 2001:db8:c2::/48");
    wait("all of a's withdrawn", 0, &[]);
    drop(border);
    wait("without a border router", 1, &[]);
    drop(server);
    lab.down().unwrap();
}

#[test]
fn frr_border_router_announces_to_the_server_directly() {
    interoperates(Between::Nothing);
}

#[test]
fn frr_border_router_announces_by_an_frr_reflector() {
    interoperates(Between::Frr);
}

#[test]
fn frr_border_router_announces_by_gobgpd() {
    interoperates(Between::Gobgp);
}

/// The server's, by egress peer.
const TABLES: [u32; 2] = [7600, 7601];
