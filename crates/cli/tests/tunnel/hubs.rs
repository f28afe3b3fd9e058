//! Two hubs: branches reach each other through the second while the first is away.
//!
//! ```text
//!                       server
//!                         |
//!                        hub
//!                         |
//!  desk --- tokyo ======= isp ======= kobe --- shelf
//!                         |
//!                       osaka, the second hub
//!                         |
//!                       store
//! ```

use std::{
    net::{SocketAddr, UdpSocket},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    harness::{Ran, Site, eventually, shown},
    join::{World, ask, make_local, read},
};

const TOPOLOGY: &str = r#"
[host.isp]
sysctl = { "net.ipv4.ip_forward" = 1 }
[host.hub]
routes = [{ to = "default", via = "203.0.113.1" }]
sysctl = { "net.ipv4.ip_forward" = 1 }
[host.osaka]
routes = [{ to = "default", via = "203.0.113.33" }]
[host.tokyo]
routes = [{ to = "default", via = "198.51.100.1" }]
[host.kobe]
routes = [{ to = "default", via = "192.0.2.1" }]
[host.server]
routes = [{ to = "default", via = "10.0.0.1" }]
[host.store]
routes = [{ to = "default", via = "10.5.0.1" }]
[host.desk]
routes = [{ to = "default", via = "10.1.0.1" }]
[host.shelf]
routes = [{ to = "default", via = "10.2.0.1" }]
[link.core]
a = { host = "isp", addresses = ["203.0.113.1/28"] }
b = { host = "hub", addresses = ["203.0.113.2/28"] }
each_way = { rate = "50Mbit", delay = "10ms", buffer = "128KiB" }
[link.core2]
a = { host = "isp", addresses = ["203.0.113.33/28"] }
b = { host = "osaka", addresses = ["203.0.113.34/28"] }
each_way = { rate = "50Mbit", delay = "10ms", buffer = "128KiB" }
[link.out0]
a = { host = "isp", addresses = ["198.51.100.1/28"] }
b = { host = "tokyo", addresses = ["198.51.100.2/28"] }
[link.out1]
a = { host = "isp", addresses = ["192.0.2.1/28"] }
b = { host = "kobe", addresses = ["192.0.2.2/28"] }
[link.lanh]
a = { host = "hub", addresses = ["10.0.0.1/24"] }
b = { host = "server", addresses = ["10.0.0.10/24"] }
[link.lano]
a = { host = "osaka", addresses = ["10.5.0.1/24"] }
b = { host = "store", addresses = ["10.5.0.10/24"] }
[link.lan0]
a = { host = "tokyo", addresses = ["10.1.0.1/24"] }
b = { host = "desk", addresses = ["10.1.0.10/24"] }
[link.lan1]
a = { host = "kobe", addresses = ["10.2.0.1/24"] }
b = { host = "shelf", addresses = ["10.2.0.10/24"] }
"#;

/// Where hosts are asked for an echo.
const SHELF: SocketAddr = SocketAddr::new(
    std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 2, 0, 10)),
    7,
);
/// When its gateway was started: behind that of the hub.
const OSAKA_STARTED: usize = 1;
const PROBE_EVERY: Duration = Duration::from_millis(20);
/// Longest outage that a hub's death may bring.
const OUTAGE_MAX: Duration = Duration::from_secs(1);

/// A network of two hubs and two branches, all joined with the commands.
pub(crate) struct Network {
    // First, so that the gateways end before their files go.
    pub(crate) world: World,
    pub(crate) osaka: Site,
    pub(crate) branches: [Site; 2],
}

impl Network {
    pub(crate) fn start() -> Self {
        let mut world = World::new(TOPOLOGY);
        world.start_hub();
        world.keep_packets_with_hubs();
        let second = ["osaka", "--second-hub", "203.0.113.34:7600"];
        let osaka = joined(&mut world, &second);
        let branches = ["tokyo", "kobe"].map(|name| joined(&mut world, &[name]));
        let network = Self {
            world,
            osaka,
            branches,
        };
        eventually("both hubs have both branches, and know it", || {
            let is_whole = |sites: &Value| {
                let sites = sites["sites"].as_array()?;
                let is_up =
                    |site: &&Value| site["state"] == "up" && site["state_at_other_hub"] == "up";
                let up = sites.iter().filter(is_up);
                (up.count() == 2).then_some(())
            };
            is_whole(&network.sites_at("hub"))?;
            is_whole(&network.sites_at("osaka"))
        });
        network
    }

    pub(crate) fn config_of(&self, host: &str) -> String {
        match host {
            "hub" => shown(&self.world.hub.path("gateway.toml")),
            "osaka" => shown(&self.osaka.path("keiro/gateway.toml")),
            "tokyo" => shown(&self.branches[0].path("keiro/gateway.toml")),
            _ => shown(&self.branches[1].path("keiro/gateway.toml")),
        }
    }

    pub(crate) fn sites_at(&self, host: &str) -> Value {
        let config = self.config_of(host);
        let args = ["sites", "--json", "--config", &config];
        self.world.keiro(host, &args).expect_code(0).json()
    }

    /// A counter of the network's tenant.
    fn counter(&self, site: &Site, name: &str) -> u64 {
        eventually("the gateway answers", || {
            let tenants = ask(site, &["show", "tenant", "office"])?;
            tenants[0][name].as_u64()
        })
    }

    /// Waits until this gateway's tenant has passed on more packets.
    fn await_transit(&self, site: &Site, what: &str) {
        let before = self.counter(site, "transit_packets");
        eventually(what, || {
            (self.counter(site, "transit_packets") > before + 20).then_some(())
        });
    }
}

/// Asks shelf for an echo every 20 ms from desk while `disturb` runs; the times between answers.
pub(crate) fn gaps_during(world: &World, disturb: impl FnOnce()) -> Gaps {
    let bound = |host: &str, at: SocketAddr| {
        let host = world.lab.host(host).expect("a host");
        // A program that another test has just forked may hold the socket of before until it runs its own.
        let socket = eventually("the socket is bound", || {
            let bound = host.run(move || UdpSocket::bind(at));
            bound.expect("in the host").ok()
        });
        let wait = Some(Duration::from_millis(100));
        socket.set_read_timeout(wait).expect("set");
        socket
    };
    let desk = bound("desk", SocketAddr::from(([10, 1, 0, 10], 0)));
    let shelf = bound("shelf", SHELF);
    let (phase, answered) = (Phase::default(), AtomicU64::new(0));
    let is_over = || phase.over.load(Ordering::Relaxed);
    let is_closed = || phase.closed.load(Ordering::Relaxed);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 16];
            while !is_closed() {
                if let Ok((length, from)) = shelf.recv_from(&mut buffer) {
                    let _ = shelf.send_to(&buffer[..length], from);
                }
            }
        });
        let sending = scope.spawn(|| {
            let mut sent = 0_u64;
            while !is_over() {
                let _ = desk.send_to(&sent.to_be_bytes(), SHELF);
                sent += 1;
                thread::sleep(PROBE_EVERY);
            }
            sent
        });
        let receiving = scope.spawn(|| {
            let (mut answers, mut buffer) = (Vec::new(), [0; 16]);
            while !is_closed() {
                if desk.recv(&mut buffer).is_ok() {
                    answers.push(Instant::now());
                    answered.store(answers.len() as u64, Ordering::Relaxed);
                }
            }
            answers
        });
        // Also where `disturb` fails, or the threads would go on.
        let ends = Ends(&phase);
        disturb();
        phase.over.store(true, Ordering::Relaxed);
        let sent = sending.join().expect("it ends");
        // What is on the way is not lost.
        let deadline = Instant::now() + ON_THE_WAY;
        while answered.load(Ordering::Relaxed) < sent && Instant::now() < deadline {
            thread::sleep(PROBE_EVERY);
        }
        drop(ends);
        let answers = receiving.join().expect("it ends");
        let gaps = answers.windows(2).map(|pair| pair[1] - pair[0]);
        Gaps {
            longest: gaps.max().unwrap_or(Duration::MAX),
            lost: sent.saturating_sub(answers.len() as u64),
            sent,
        }
    })
}

/// How long an answer may be on its way.
const ON_THE_WAY: Duration = Duration::from_secs(2);

/// Whether probes are sent, and whether they are answered.
#[derive(Default)]
struct Phase {
    over: AtomicBool,
    closed: AtomicBool,
}

/// Ends both.
struct Ends<'a>(&'a Phase);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
        self.0.closed.store(true, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(crate) struct Gaps {
    pub(crate) longest: Duration,
    pub(crate) lost: u64,
    sent: u64,
}

impl Gaps {
    pub(crate) fn print(&self, when: &str) {
        let Self {
            longest,
            lost,
            sent,
        } = self;
        eprintln!("{when}: {longest:?} without an answer, {lost} of {sent} lost");
    }
}

/// Prints all parts on standard output.
#[track_caller]
fn prints(ran: Ran, parts: &[&str]) {
    let stdout = ran.expect_code(0).stdout;
    eprintln!("{stdout}");
    for part in parts {
        assert!(stdout.contains(part), "no `{part}` in:\n{stdout}");
    }
}

/// Invites a gateway, which joins and runs on the host of its name.
pub(crate) fn joined(world: &mut World, invite: &[&str]) -> Site {
    let host = invite[0];
    let token = world.invite(invite);
    let site = Site::without_key();
    world.join(host, &site, &token, &[]).expect_code(0);
    make_local(&site);
    world.spawn(host, &site.path("keiro/gateway.toml"));
    world.forward(host, "keiro1");
    site
}

#[test]
fn transit_moves_to_the_other_hub_within_a_second_of_a_failure() {
    let mut network = Network::start();
    let Network { world, osaka, .. } = &network;
    world.ping("desk", "10.2.0.10");
    // Networks behind both hubs, from a branch and from the other hub's.
    for (from, to) in [
        ("desk", "10.0.0.10"),
        ("desk", "10.5.0.10"),
        ("store", "10.0.0.10"),
        ("server", "10.5.0.10"),
    ] {
        world.ping(from, to);
    }
    let [tokyo, _] = &network.branches;
    assert_eq!(network.counter(tokyo, "backup_packets"), 0);
    assert_eq!(network.counter(osaka, "transit_packets"), 0);
    let died = gaps_during(world, || {
        network.await_transit(&world.hub, "the first hub passes them on");
        world.sh("hub", "ip link set core down");
        network.await_transit(osaka, "the second hub passes them on");
    });
    died.print("the first hub dies");
    assert!(died.longest < OUTAGE_MAX, "{died:?}");
    assert!(network.counter(tokyo, "backup_packets") > 0);
    // The second says that the first is away. It starts again with its copy.
    let sites = network.sites_at("osaka");
    eventually("the second hub misses the first", || {
        (network.sites_at("osaka")["other_hub"]["state"] == "down").then_some(())
    });
    assert!(sites["other_hub"]["copied"].is_string(), "{sites:#}");
    let file = network.osaka.path("keiro/gateway.toml");
    network.world.restart(OSAKA_STARTED, "osaka", &file);
    network.world.forward("osaka", "keiro1");
    let Network { world, .. } = &network;
    world.ping("desk", "10.2.0.10");
    world.ping("desk", "10.5.0.10");
    let back = gaps_during(world, || {
        world.sh(
            "hub",
            "ip link set core up && ip route add default via 203.0.113.1",
        );
        network.await_transit(&world.hub, "the first hub passes them on again");
    });
    back.print("the first hub comes back");
    assert!(back.longest < OUTAGE_MAX, "{back:?}");
    world.ping("desk", "10.0.0.10");
}

#[test]
fn the_second_hub_has_a_copy_and_the_first_alone_changes_the_registry() {
    let network = Network::start();
    let Network { world, osaka, .. } = &network;
    let config = network.config_of("osaka");
    for args in [["invite", "nara"], ["revoke", "tokyo"]] {
        let args: Vec<&str> = args.into_iter().chain(["--config", &config]).collect();
        let refused = world.keiro("osaka", &args).expect_code(1);
        let _ = refused.says(&["the second hub", "`hub`"]);
    }
    let text = world.keiro("osaka", &["sites", "--config", &config]);
    prints(
        text,
        &["at hub", "first hub hub: up", "only hub changes it"],
    );
    let text = world.at_hub(&["sites"]);
    prints(text, &["at osaka", "second hub osaka: up"]);
    let another = world.at_hub(&["invite", "nara", "--second-hub", "192.0.2.9:7600"]);
    let _ = another
        .expect_code(1)
        .says(&["`osaka`", "keiro revoke osaka"]);
    assert!(read(osaka, "keiro/gateway.toml").contains("first_hub = \"hub\""));

    // A change reaches the second hub and the branches through either.
    world.at_hub(&["revoke", "kobe"]).expect_code(0);
    eventually("the second hub has no kobe any more", || {
        let sites = network.sites_at("osaka");
        (sites["sites"].as_array()?.len() == 1).then_some(())
    });
    eventually("neither has tokyo a route to it", || {
        let routes = world.sh("tokyo", "ip route show dev keiro1");
        (!routes.contains("10.2.0.0/24")).then_some(())
    });

    world.at_hub(&["revoke", "osaka"]).expect_code(0);
    eventually("the branch has one hub again", || {
        let peers = ask(&network.branches[0], &["show", "peer"])?;
        (peers.as_array()?.len() == 1).then_some(())
    });
    world.ping("desk", "10.0.0.10");
}
