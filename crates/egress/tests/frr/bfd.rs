//! BFD with FRR's bfdd, over IPv6 and IPv4.
//!
//! ```text
//! transit (FRR: bgpd, bfdd, AS 65001) ══ border (keiro asbr) ── server (keiro egress)
//! ```

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use keiro_egress::{
    asbr::Asbr,
    config::{AsbrConfig, EndpointConfig},
    control::{self, Answer, Request},
    endpoint::Endpoint,
    status::{NeighbourStatus, Status},
};
use keiro_lab::{
    Host, Lab, Topology,
    frr::Router,
    host_noise::{NoiseAllowance, retry_until_undisturbed},
};
use keiro_linux::process::{SIGCONT, SIGSTOP};
use keiro_testing::{wait_for_value, wait_until};

use super::{Running, segment};

const TOPOLOGY: &str = r#"
[host.transit]
[host.border]
[host.server]

[link.peering]
a = { host = "transit", addresses = ["2001:db8:f::1/64", "192.0.2.1/24"] }
b = { host = "border", addresses = ["2001:db8:f::2/64", "192.0.2.2/24"] }

[link.up]
a = { host = "border", addresses = ["2001:db8:a1::9/64"] }
b = { host = "server", addresses = ["2001:db8:a1::20/64"] }
"#;

const TRANSIT: &str = "router bgp 65001
 bgp router-id 10.0.0.1
 no bgp default ipv4-unicast
 no bgp ebgp-requires-policy
 no bgp network import-check
 neighbor 2001:db8:f::2 remote-as 65000
 neighbor 2001:db8:f::2 timers connect 1
 neighbor 2001:db8:f::2 bfd profile fast
 neighbor 192.0.2.2 remote-as 65000
 neighbor 192.0.2.2 timers connect 1
 neighbor 192.0.2.2 ttl-security hops 1
 address-family ipv4 unicast
  neighbor 192.0.2.2 activate
  network 198.51.100.0/24
 exit-address-family
 address-family ipv6 unicast
  neighbor 2001:db8:f::2 activate
  network 2001:db8:c1::/48
 exit-address-family
";

/// FRR 8.4.4 makes a session over several hops for a neighbour with `ttl-security`, so that one has its
/// session here, and bgpd does not know of it.
const TRANSIT_BFD: &str = "bfd
 profile fast
  receive-interval 50
  transmit-interval 50
  detect-multiplier 3
 !
 peer 192.0.2.2 local-address 192.0.2.1
  profile fast
 !
!
";

const BORDER: &str = r#"
[asbr]
asn = 65000
router_id = "10.0.0.9"
locator = "2001:db8:a:1::/64"
control_socket = "SOCKET"

[[reflector]]
name = "server"
address = "2001:db8:a1::20"

[[peer]]
name = "six"
address = "2001:db8:f::1"
asn = 65001
function = 0x100
import = "all"
ttl_security = false
bfd = true

[[peer]]
name = "four"
address = "192.0.2.1"
asn = 65001
function = 0x200
ipv4 = true
import = "all"
bfd = { interval = "50ms", multiplier = 3 }
"#;

const SERVER: &str = r#"
[egress]
asn = 65000
router_id = "10.0.0.20"

[[reflector]]
name = "border"
address = "2001:db8:a1::9"

[[peer]]
name = "six"
rt = "65000:256"
address = "2001:db8:a:e::a"
"#;

const BOTH: [&str; 2] = ["six", "four"];
const PREFIX: &str = "2001:db8:c1::/48";
/// One of each peer, and one for the IPv4 packets of `four`.
const SEGMENTS: usize = 3;
/// Three intervals, and what kernel and daemon take (the target of the figures).
const NOTICED_MAX: Duration = Duration::from_millis(160);
/// Where others are kept waiting for as long, the machine is what was late.
const PAUSE_MAX: Duration = Duration::from_millis(3);
const PATIENCE: Duration = Duration::from_secs(90);

struct Network {
    lab: Lab,
    router: Router,
    border: Running,
    server: Running,
    socket: PathBuf,
}

impl Network {
    fn up(files: &Path, bgpd: &str) -> Self {
        let topology = Topology::parse(TOPOLOGY, "bfd").unwrap();
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("bfd{}-{number}", std::process::id());
        let lab = Lab::builder(&topology).name(name).up().unwrap();
        let host = |name: &str| lab.host(name).unwrap();
        let router = Router::start_with_bfd(host("transit"), bgpd, TRANSIT_BFD).unwrap();
        let socket = files.join("asbr.sock");
        let text = BORDER.replace("SOCKET", socket.to_str().unwrap());
        let config = AsbrConfig::parse(&text, "border").unwrap();
        let speaker = config.speaker.clone();
        let role = Asbr::new(config);
        let border = Running::start(host("border"), role, speaker, files.join("border"));
        let config = EndpointConfig::parse(SERVER, "server").unwrap();
        let speaker = config.speaker.clone();
        let role = Endpoint::new(config);
        let server = Running::start(host("server"), role, speaker, files.join("server"));
        Self {
            router,
            border,
            server,
            socket,
            lab,
        }
    }

    fn host(&self, name: &str) -> &Host {
        self.lab.host(name).unwrap()
    }

    fn status(&self) -> Status {
        match control::ask(&self.socket, Request::Status).unwrap() {
            Answer::Status(status) => *status,
            other => panic!("{other:?}"),
        }
    }

    fn neighbour(&self, name: &str) -> NeighbourStatus {
        let all = self.status().neighbours.into_iter();
        all.into_iter().find(|one| one.name == name).unwrap()
    }

    /// Both sessions of BGP and BFD are up with the intervals of the configuration, and all routes there.
    fn await_all(&self) {
        for name in BOTH {
            wait_for_value(
                &format!("everything with {name}"),
                || self.neighbour(name),
                |one| {
                    let Some(bfd) = &one.bfd else {
                        return false;
                    };
                    let intervals = (bfd.send_interval_us, bfd.detection_time_us);
                    one.state == "established"
                        && (bfd.state.as_str(), bfd.remote_state.as_str()) == ("up", "up")
                        && intervals == (Some(50_000), Some(150_000))
                },
            );
        }
        wait_for_value(
            "segments and routes",
            || {
                let contents = self.border.memory.contents();
                let mut routes = contents.routes.keys();
                let has_ipv4 = routes.any(|(_, prefix)| prefix.to_string() == "198.51.100.0/24");
                let at_server = segment(&self.server.memory.contents(), PREFIX);
                (contents.segments, has_ipv4, at_server)
            },
            |(segments, has_ipv4, at_server)| {
                segments.len() == SEGMENTS && *has_ipv4 && at_server.is_some()
            },
        );
    }

    /// How long it takes from now until both segments are closed and the server's route is withdrawn.
    fn time_until_closed(&self, since: Instant) -> [Duration; 2] {
        self.border
            .wait("both segments are closed", |it| it.segments.is_empty());
        let closed = since.elapsed();
        self.server.wait("withdrawn at the server", |it| {
            segment(it, PREFIX).is_none()
        });
        [closed, since.elapsed()]
    }
}

/// Measures what `fail` and `mend` do until the machine did not disturb it.
fn measured(network: &Network, what: &str, fail: impl Fn(), mend: impl Fn()) {
    let once = || {
        let since = Instant::now();
        fail();
        let took = network.time_until_closed(since);
        for name in BOTH {
            let one = network.neighbour(name);
            assert_eq!(one.last_error.as_deref(), Some("BFD is down"), "{name}");
            let bfd = one.bfd.unwrap();
            assert_eq!(bfd.state, "down");
            assert_eq!(bfd.diagnostic, "detection_time_expired", "{name}");
        }
        let contents = network.border.memory.contents();
        let left = contents.routes.keys().map(|(_, prefix)| prefix.to_string());
        let left: Vec<String> = left.collect();
        assert_eq!(left, Vec::<String>::new(), "routes of the transit");
        mend();
        network.await_all();
        println!(
            "{what}: segments closed after {:?}, withdrawn at the server after {:?}",
            took[0], took[1]
        );
        took[1]
    };
    let is_in_time = |took: &Duration| *took <= NOTICED_MAX;
    let allowance = NoiseAllowance {
        processor: PAUSE_MAX,
        disk: None,
    };
    match retry_until_undisturbed(allowance, PATIENCE, once, is_in_time) {
        Ok(took) => assert!(is_in_time(&took), "{what}: {took:?}"),
        Err(disturbed) => disturbed.skip_test(what),
    }
}

#[test]
fn a_transit_that_stops_or_is_cut_off_loses_its_segment_within_three_intervals() {
    let files = tempfile::tempdir().unwrap();
    let network = Network::up(files.path(), TRANSIT);
    network.await_all();
    let daemons = ["bfdd", "bgpd"];
    measured(
        &network,
        "stopped",
        || network.router.signal(&daemons, SIGSTOP).unwrap(),
        || network.router.signal(&daemons, SIGCONT).unwrap(),
    );
    let nft = |rules: &str| {
        let mut command = network.host("transit").command("nft");
        let output = command.arg(rules).output().expect("nft runs");
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{rules}: {message}");
    };
    measured(
        &network,
        "cut off, with carrier",
        || {
            nft(
                "table inet cut { chain input { type filter hook input priority 0; policy drop; }; \
                 chain output { type filter hook output priority 0; policy drop; }; }",
            );
        },
        || nft("delete table inet cut"),
    );
    check_admin_down(&network);

    // The border router ends without a failure.
    let mut at_transit = network.router.operator_of("bfdd").unwrap();
    let Network {
        lab,
        router,
        border,
        server,
        ..
    } = network;
    drop(border);
    wait_until("both are informed", || {
        let peers = at_transit.command("show bfd peers").unwrap();
        thread::yield_now();
        peers
            .matches("Remote diagnostics: administratively down")
            .count()
            == 2
    });
    drop((router, server));
    lab.down().unwrap();
}

#[test]
fn a_table_that_keeps_the_event_loop_busy_delays_no_packet() {
    let files = tempfile::tempdir().unwrap();
    let networks = (0..ROUTES).map(|number| {
        let (high, low) = (number >> 8, number & 0xff);
        format!("  network 2001:db9:{high:x}{low:02x}::/48\n")
    });
    // BGP begins only when BFD is up.
    let bgpd = TRANSIT
        .replace(
            " neighbor 192.0.2.2 ttl-security",
            " neighbor 192.0.2.2 shutdown\n neighbor 192.0.2.2 ttl-security",
        )
        .replace(
            "  network 2001:db8:c1::/48\n",
            &format!(
                "  neighbor 192.0.2.2 activate\n{}",
                networks.collect::<String>()
            ),
        )
        .replace("  neighbor 2001:db8:f::2 activate\n", "");
    let network = Network::up(files.path(), &bgpd);
    let state = |name: &str| network.neighbour(name);
    wait_until("BFD is up", || state("four").stats.bfd_up == Some(true));
    let mut at_transit = network.router.operator().unwrap();
    for command in ["configure terminal", "router bgp 65001"] {
        at_transit.command(command).unwrap();
    }
    at_transit
        .command("no neighbor 192.0.2.2 shutdown")
        .unwrap();
    let mut longest = Duration::ZERO;
    wait_until("all routes", || {
        let asked = Instant::now();
        let routes = state("four").routes.values().sum::<usize>();
        longest = longest.max(asked.elapsed());
        routes > ROUTES
    });
    let one = state("four");
    println!("{ROUTES} routes: the event loop answered after {longest:?} at most");
    assert!(
        longest > Duration::from_millis(150),
        "too few routes to show it"
    );
    assert_eq!((one.stats.bfd_failures, one.stats.times_up), (Some(0), 1));
    assert_eq!(
        one.bfd.unwrap().remote_diagnostic,
        "none",
        "nor has FRR missed packets"
    );
    let Network {
        lab,
        router,
        border,
        server,
        ..
    } = network;
    drop((border, router, server));
    lab.down().unwrap();
}

/// In an unoptimised build these take longer than a detection time.
const ROUTES: usize = 20_000;

/// FRR disables its sessions and enables them again: BGP goes on.
fn check_admin_down(network: &Network) {
    let mut at_transit = network.router.operator_of("bfdd").unwrap();
    let times = |name: &str| {
        let stats = network.neighbour(name).stats;
        (stats.times_up, stats.bfd_failures)
    };
    let before = BOTH.map(times);
    for command in ["configure terminal", "bfd", "profile fast", "shutdown"] {
        at_transit.command(command).unwrap();
    }
    for name in BOTH {
        wait_until("it is disabled there", || {
            let bfd = network.neighbour(name).bfd.unwrap();
            bfd.state == "down" && bfd.remote_state == "admin_down"
        });
        let one = network.neighbour(name);
        assert_eq!(one.state, "established", "{name}");
        assert_eq!(one.stats.bfd_up, Some(false), "{name}");
    }
    assert_eq!(network.border.memory.contents().segments.len(), SEGMENTS);
    at_transit.command("no shutdown").unwrap();
    network.await_all();
    assert_eq!(BOTH.map(times), before, "no failure, and no new session");
}
