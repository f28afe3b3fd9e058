//! The daemons between routers of FRR: an egress peer, a route reflector and a client of it, each
//! in a network namespace. Needs root, iproute2 and FRR, and fails without.
//!
//! ```text
//! transit (FRR, AS 65001) ── border (keiro asbr) ── reflector (FRR) ── server (keiro egress)
//! ```

mod asbr;
mod bfd;
mod communities;
mod drain;
mod ipv4;
mod reflectors;
#[path = "../support/mod.rs"]
mod support;

use std::{
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use keiro_bgp::{record, speaker::Speaker};
use keiro_egress::{
    asbr::Asbr,
    config::{AsbrConfig, EndpointConfig, SpeakerConfig},
    daemon::{Daemon, Role},
    endpoint::Endpoint,
    forwarding::{Contents, Memory, PeerIndex, Table, Via},
};
use keiro_lab::{Host, Lab, Topology, frr::Router};

use support::Serving;

const LIMIT: Duration = Duration::from_secs(60);

const TOPOLOGY: &str = r#"
[host.transit]
[host.border]
[host.rr]
[host.server]

[link.peering]
a = { host = "transit", addresses = ["2001:db8:f::1/64"] }
b = { host = "border", addresses = ["2001:db8:f::2/64"] }

[link.up]
a = { host = "border", addresses = ["2001:db8:a1::9/64"] }
b = { host = "rr", addresses = ["2001:db8:a1::30/64"] }

[link.down]
a = { host = "rr", addresses = ["2001:db8:a2::30/64"] }
b = { host = "server", addresses = ["2001:db8:a2::20/64"] }
"#;

/// The configuration of a router that announces prefixes to one neighbour of AS 65000; `more`: lines
/// about that one.
fn announcer((asn, id): (u32, u8), neighbour: &str, more: &str, prefixes: &[&str]) -> String {
    let networks = prefixes
        .iter()
        .map(|prefix| format!("  network {prefix}\n"));
    let networks: String = networks.collect();
    format!(
        "router bgp {asn}
 bgp router-id 10.0.0.{id}
 no bgp default ipv4-unicast
 no bgp ebgp-requires-policy
 no bgp network import-check
 neighbor {neighbour} remote-as 65000
 neighbor {neighbour} timers connect 1
{more} address-family ipv6 unicast
  neighbor {neighbour} activate
{networks} exit-address-family
"
    )
}

const BORDER: &str = r#"
[asbr]
asn = 65000
router_id = "10.0.0.9"
locator = "2001:db8:a:1::/64"
announce = ["2001:db8:a::/48"]

[[reflector]]
name = "rr"
address = "2001:db8:a1::30"

[[peer]]
name = "transit"
address = "2001:db8:f::1"
asn = 65001
function = 0x100
import = "all"
export = "own"
"#;

const SERVER: &str = r#"
[egress]
asn = 65000
router_id = "10.0.0.20"

[[reflector]]
name = "rr"
address = "2001:db8:a2::30"

[[peer]]
name = "transit"
rt = "65000:256"
address = "2001:db8:a:e::a"
"#;

struct Running {
    memory: Memory,
    _serving: Serving,
}

impl Running {
    fn start<R: Role + Send + 'static>(
        host: &Host,
        role: R,
        config: SpeakerConfig,
        recording: PathBuf,
    ) -> Self {
        let memory = Memory::default();
        let forwarding = Box::new(memory.clone());
        let serving = Serving::start(host, move || {
            let mut daemon = Daemon::start(role, &config, forwarding).unwrap();
            daemon.record_to(&recording).unwrap();
            daemon
        });
        Self {
            memory,
            _serving: serving,
        }
    }

    fn wait(&self, what: &str, holds: impl Fn(&Contents) -> bool) -> Duration {
        let start = Instant::now();
        while !holds(&self.memory.contents()) {
            let contents = self.memory.contents();
            assert!(start.elapsed() < LIMIT, "never: {what}: {contents:?}");
            thread::sleep(Duration::from_millis(1));
        }
        start.elapsed()
    }
}

fn segment(contents: &Contents, prefix: &str) -> Option<String> {
    let key = (Table::Peer(PeerIndex(0)), prefix.parse().unwrap());
    match contents.routes.get(&key)? {
        Via::Segment(sid) => Some(sid.to_string()),
        other => Some(other.to_string()),
    }
}

#[test]
fn a_transits_routes_come_by_a_reflector_to_the_server_with_their_segment() {
    let topology = Topology::parse(TOPOLOGY, "frr").unwrap();
    let name = format!("frr{}", std::process::id());
    let lab = Lab::builder(&topology).name(name).up().unwrap();
    let files = tempfile::tempdir().unwrap();
    let host = |name: &str| lab.host(name).unwrap();
    let clients = ["2001:db8:a1::9", "2001:db8:a2::20"].map(|at| at.parse().unwrap());
    let own = [10, 0, 0, 30].into();
    let reflector = Router::reflector(host("rr"), 65000, own, &clients).unwrap();
    let near = " neighbor 2001:db8:f::2 ttl-security hops 1\n";
    let announced = ["2001:db8:c1::/48", "2001:db8:c2::/48"];
    let of_transit = announcer((65001, 1), "2001:db8:f::2", near, &announced);
    let transit = Router::start(host("transit"), &of_transit).unwrap();
    let [mut at_reflector, mut at_transit] =
        [&reflector, &transit].map(|router| router.operator().unwrap());
    let config = AsbrConfig::parse(BORDER, "border").unwrap();
    let speaker = config.speaker.clone();
    let of_border = files.path().join("border");
    let border = Running::start(host("border"), Asbr::new(config), speaker, of_border);
    let config = EndpointConfig::parse(SERVER, "server").unwrap();
    let neighbour = config.reflectors[0].speaker_config();
    let speaker = config.speaker.clone();
    let of_server = files.path().join("server");
    let role = Endpoint::new(config);
    let server = Running::start(host("server"), role, speaker, of_server.clone());

    let sid = Some("2001:db8:a:1:100::");
    server.wait("both routes, by the border router's segment", |contents| {
        ["2001:db8:c1::/48", "2001:db8:c2::/48"]
            .iter()
            .all(|prefix| segment(contents, prefix).as_deref() == sid)
    });
    server.wait("best paths, and the locator", |contents| {
        ["2001:db8:c1::/48", "2001:db8:a:1::/64"].iter().all(|prefix| {
            let via = contents.routes.get(&(Table::Main, prefix.parse().unwrap()));
            matches!(via, Some(Via::Router { address, .. }) if address.to_string() == "2001:db8:a1::9")
        })
    });
    server.wait("the end of all routes", |contents| contents.settled);
    let ours = "show bgp ipv6 unicast 2001:db8:a::/48";
    let start = Instant::now();
    loop {
        let heard = at_transit.command(ours).unwrap();
        if heard.contains("65000") && heard.contains("2001:db8:f::2") {
            break;
        }
        assert!(start.elapsed() < LIMIT, "{heard}");
        thread::sleep(Duration::from_millis(5));
    }
    let reflected = at_reflector.command("show bgp ipv6 vpn").unwrap();
    assert!(reflected.contains("2001:db8:c1::/48"), "{reflected}");
    // Routes that the reflector sends back are rejected.
    let own = border.memory.contents();
    assert!(
        own.routes
            .keys()
            .all(|key| key.1 != "2001:db8:a:1::/64".parse().unwrap())
    );

    let mut change = |command: &str| at_transit.command(command).unwrap();
    for command in [
        "configure terminal",
        "router bgp 65001",
        "address-family ipv6 unicast",
    ] {
        change(command);
    }
    change("no network 2001:db8:c1::/48");
    border.wait("withdrawn at the border", |c| {
        segment(c, "2001:db8:c1::/48").is_none()
    });
    let later = server.wait("withdrawn at the server", |contents| {
        segment(contents, "2001:db8:c1::/48").is_none()
    });
    println!("withdrawn at the server {later:?} after the border router");
    change("network 2001:db8:c1::/48");
    server.wait("announced again", |contents| {
        segment(contents, "2001:db8:c1::/48").as_deref() == sid
    });

    // Without its session nothing leads to the peer, which comes back with everything.
    change("exit-address-family");
    change("neighbor 2001:db8:f::2 shutdown");
    border.wait("no segment without a session", |contents| {
        contents.segments.is_empty()
    });
    server.wait("no routes without a session", |contents| {
        segment(contents, "2001:db8:c2::/48").is_none()
    });
    change("no neighbor 2001:db8:f::2 shutdown");
    server.wait("all again", |contents| {
        segment(contents, "2001:db8:c2::/48").as_deref() == sid
    });
    drop(server);
    check_replay(&of_server, neighbour);
    drop(border);
    lab.down().unwrap();
}

/// What the server heard makes the same table again.
fn check_replay(recording: &Path, neighbour: keiro_bgp::speaker::NeighbourConfig) {
    let text = std::fs::read_to_string(recording).unwrap();
    if let Some(keep) = std::env::var_os("KEIRO_KEEP_RECORDING") {
        std::fs::write(keep, &text).unwrap();
    }
    let mut speaker = Speaker::new(keiro_bgp::speaker::SpeakerConfig {
        asn: 65000,
        router_id: [10, 0, 0, 20].into(),
    });
    speaker.add_neighbour(neighbour);
    let mut most = 0;
    for line in text.lines() {
        let (now, input) = record::read(line).unwrap();
        speaker.handle(now, input);
        while speaker.poll_action().is_some() {}
        most = most.max(speaker.rib().len());
    }
    // Two routes of the transit, each as best path and with a segment; our prefix; the locator.
    assert_eq!(most, 6);
    assert!(speaker.rib().is_empty(), "it was stopped at the end");
}
