//! One flow of IP packets over several paths: TCP gets their sum, and sees its packets in order.

use std::time::Duration;

use keiro_core::{TenantConfig, TenantId};
use keiro_link::{Buffer, LinkConfig, Loss};
use keiro_model::fairness::controller::ControllerConfig;
use keiro_sim::{
    LinkSpec, Stop,
    traffic::{
        Activity, Edge, EdgeSpec, HasHost, Host, Mesh, MeshNode, Remote, Station, TcpConfig,
        TcpSpec, tcp::ReceiverCounts,
    },
};
use keiro_units::{Bandwidth, ByteCount, Instant, Probability};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const TENANT: TenantId = TenantId(1);

/// A line between the two gateways.
#[derive(Clone, Copy, Debug)]
struct Line {
    mbit: u64,
    delay_ms: u32,
    loss: f64,
}

const fn line(mbit: u64, delay_ms: u32) -> Line {
    Line {
        mbit,
        delay_ms,
        loss: 0.0,
    }
}

impl Line {
    fn link(self) -> LinkSpec {
        let rate = Bandwidth::from_mbit_per_second(self.mbit);
        let config = LinkConfig {
            rate: Some(rate),
            delay: self.delay_ms * MS,
            buffer: Buffer::Bytes(rate.bytes_in_floor(SECOND).max(ByteCount::new(1 << 16))),
            loss: match Probability::new(self.loss) {
                Some(loss) if self.loss > 0.0 => Loss::Bernoulli(loss),
                _ => Loss::None,
            },
            ..LinkConfig::default()
        };
        LinkSpec::symmetric(config)
    }
}

/// Hosts behind two gateways with lines between them.
struct Sites {
    mesh: Mesh<Station<Edge>>,
    hosts: [MeshNode; 2],
    gateways: [MeshNode; 2],
}

impl Sites {
    fn new(lines: &[Line], controller: ControllerConfig, seed: u64) -> Self {
        let mut mesh = Mesh::new(seed);
        let host = |mesh: &mut Mesh<Station<Edge>>| mesh.add_host(Station::Host(Host::new()));
        let hosts = [host(&mut mesh), host(&mut mesh)];
        let gateways = [0, 1].map(|number| {
            let spec = EdgeSpec {
                seed,
                number,
                rate: None,
                probe_share: Probability::new(0.01).expect("a share"),
                mtu: 1500,
            };
            mesh.add_gateway(Station::Gateway(Box::new(Edge::new(Instant::ZERO, spec))))
        });
        let access = LinkConfig::default();
        for (host, gateway) in hosts.iter().zip(&gateways) {
            let _ = mesh.connect(*host, *gateway, LinkSpec::symmetric(access));
        }
        for line in lines {
            let _ = mesh.connect(gateways[0], gateways[1], line.link());
        }
        // The first link of a gateway is its host's.
        let links: Vec<usize> = (1..=lines.len()).collect();
        for own in [0, 1] {
            let remote = Remote {
                number: 1 - own as u64,
                address: mesh.address(gateways[1 - own]),
                tenant: TenantConfig {
                    controller,
                    ..TenantConfig::new(TENANT)
                },
                hosts: vec![mesh.address(hosts[1 - own])],
            };
            mesh.drive(gateways[own], |station, now, out| {
                let edge = station.gateway_mut().expect("a gateway");
                edge.add_spread_remote(now, &remote, &links, out)
                    .expect("one tenant");
            });
        }
        Self {
            mesh,
            hosts,
            gateways,
        }
    }

    /// A TCP connection from the first host to the second; its port there.
    fn add_flow(&mut self, config: TcpConfig, begins: Duration) -> u16 {
        let port = self
            .mesh
            .with_host(self.hosts[1], |host| host.add_tcp_receiver(config));
        let spec = TcpSpec {
            to: (self.mesh.address(self.hosts[1]), port),
            config,
            length: None,
            activity: Activity::from(Instant::ZERO + begins),
            first_sequence: 1,
        };
        self.mesh
            .with_host(self.hosts[0], |host| host.add_tcp_sender(spec));
        port
    }

    fn run(&mut self, until: Duration) {
        assert_ne!(self.mesh.run_until(Instant::ZERO + until), Stop::Livelock);
    }

    fn host(&self, index: usize) -> &Host {
        let station = self.mesh.device(self.hosts[index]);
        station.and_then(HasHost::host).expect("a host")
    }

    fn edge(&self, index: usize) -> &Edge {
        let station = self.mesh.device(self.gateways[index]);
        station.and_then(Station::gateway).expect("a gateway")
    }

    /// Mbit/s that arrived from 10 s to 40 s.
    fn goodput(&self, port: u16) -> f64 {
        let (from, to) = (Instant::ZERO + 10 * SECOND, Instant::ZERO + 40 * SECOND);
        let received = self.host(1).received(port).expect("it receives");
        received.sum(from, to) as f64 * 8.0 / 30e6
    }

    fn received(&self, port: u16) -> ReceiverCounts {
        let receiver = self.host(1).tcp_receiver(port);
        *receiver.expect("it receives").counts()
    }
}

/// What one connection gets over lines.
fn alone(lines: &[Line], controller: ControllerConfig, seed: u64) -> (f64, Sites, u16) {
    let mut sites = Sites::new(lines, controller, seed);
    let port = sites.add_flow(TcpConfig::LINUX, 2 * SECOND);
    sites.run(40 * SECOND);
    (sites.goodput(port), sites, port)
}

#[test]
fn one_connection_gets_the_sum_of_unequal_paths_in_order() {
    let lines = [line(40, 10), line(20, 30)];
    let single = lines.map(|of| alone(&[of], ControllerConfig::Open, 1).0);
    let (both, sites, port) = alone(&lines, ControllerConfig::Open, 1);
    let sum: f64 = single.iter().sum();
    println!("{single:?} alone, {both} together");
    assert!(both > 0.85 * sum, "{both} of {sum} Mbit/s");
    let stats = sites.edge(1).tenants(sites.mesh.now())[0].stats;
    let segments = sites.received(port).segments;
    assert!(stats.held_packets > segments / 100, "{stats:?}");
    assert!(stats.late_packets < segments / 1000, "{stats:?}");
    assert!(stats.longest_hold <= 250 * MS, "{stats:?}");
}

/// The two never share a connection: TCP would take the longer delay for its round trip.
#[test]
fn a_path_that_is_far_behind_costs_a_connection_nothing() {
    let lines = [line(40, 10), line(20, 150)];
    let (best, ..) = alone(&lines[..1], ControllerConfig::Open, 1);
    let (both, sites, _) = alone(&lines, ControllerConfig::Open, 1);
    assert!(both > 0.98 * best, "{both} of {best} Mbit/s");
    let stats = sites.edge(1).tenants(sites.mesh.now())[0].stats;
    assert_eq!(stats.held_packets, 0, "{stats:?}");
}

fn print(lines: &[Line], controller: ControllerConfig) {
    let single: Vec<f64> = lines
        .iter()
        .map(|of| alone(&[*of], controller, 1).0)
        .collect();
    let (both, sites, port) = alone(lines, controller, 1);
    let sum: f64 = single.iter().sum();
    let best = single.iter().copied().fold(0.0, f64::max);
    let stats = sites.edge(1).tenants(sites.mesh.now())[0].stats;
    println!(
        "{lines:?}\n  alone {single:.1?} both {both:.1} of sum {:.3} of best {:.3}",
        both / sum,
        both / best,
    );
    let segments = sites.received(port).segments;
    println!("  of {segments} segments: {stats:?}");
}

#[test]
#[ignore = "a table"]
fn pairs_of_lines() {
    for lines in PAIRS {
        print(&lines, ControllerConfig::Open);
    }
}

const PAIRS: [[Line; 2]; 7] = [
    [line(40, 10), line(20, 30)],
    [line(50, 20), line(50, 20)],
    [line(50, 20), line(50, 40)],
    [line(50, 20), line(50, 70)],
    [line(50, 20), line(12, 20)],
    [line(100, 20), line(10, 20)],
    [line(10, 20), line(100, 40)],
];
