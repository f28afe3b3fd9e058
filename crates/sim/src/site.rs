//! A site with several gateways that share its lines: pairs of gateways whose paths of one number are one
//! line. The gateways of the site know nothing of each other; what they send at the same time waits in the
//! line's buffer.

use std::{collections::BTreeMap, net::SocketAddr};

use keiro_link::LinkConfig;
use keiro_units::Instant;

use crate::{
    gateway::{Gateway, address},
    network::{LinkSpec, Network, NodeId, Stop},
    node::{Interface, Never, Node, Outbox},
    packet::Packet,
    pair::{self, PORT},
    report::Report,
    scenario::{Scenario, SetUp, Side},
    seed,
};

/// Pairs are numbered in one byte of their addresses.
const PAIRS_MAX: usize = 100;

/// Gateways of a site, each with a peer.
#[derive(Debug)]
pub struct GatewaySite {
    scenarios: Vec<Scenario>,
    seed: u64,
    network: Network<SiteNode>,
    pairs: Vec<[NodeId; 2]>,
    measured_from: Instant,
}

#[derive(Debug)]
enum SiteNode {
    Gateway(Box<Gateway>),
    LineEnd(LineEnd),
}

/// One end of a line: passes on what gateways send, and hands what arrives to the gateway that it is for.
#[derive(Debug, Default)]
struct LineEnd {
    /// Interface by address; interface 0 is the line.
    gateways: BTreeMap<SocketAddr, usize>,
}

impl GatewaySite {
    /// The site at time zero, with one pair for each scenario; side A is the site's. Lines are as the first
    /// scenario has them. The same scenarios and seed give the same run.
    ///
    /// # Panics
    ///
    /// If there are no scenarios or more than a hundred, or they have not the same number of paths.
    pub fn new(scenarios: &[Scenario], seed: u64) -> Self {
        assert!((1..=PAIRS_MAX).contains(&scenarios.len()), "1 to 100 pairs");
        let lines = scenarios[0].paths.clone();
        let mut network = Network::new(seed::derive(seed, "network", 0));
        let mut pairs = Vec::new();
        for (number, scenario) in scenarios.iter().enumerate() {
            assert_eq!(
                scenario.paths.len(),
                lines.len(),
                "paths are the site's lines"
            );
            pairs.push(Side::BOTH.map(|side| {
                let remote = |path| host_address(scenario, number, side.other(), path);
                let gateway = pair::gateway(scenario, pair_seed(seed, number), side, remote);
                network.add_node(SiteNode::Gateway(Box::new(gateway)))
            }));
        }
        let mut site = Self {
            scenarios: scenarios.to_vec(),
            seed,
            network,
            pairs,
            measured_from: Instant::ZERO,
        };
        for (path, line) in lines.iter().enumerate() {
            site.lay_line(path, line.link);
        }
        site
    }

    /// Runs set-up and the measured phase until all traffic has come to an end, and returns a report of each
    /// pair.
    ///
    /// # Panics
    ///
    /// With the seed if the run stalls.
    pub fn run(mut self) -> Vec<Report> {
        self.set_up();
        self.begin();
        let last = self.last_planned();
        let _ = self.network.run(last, &mut Never);
        let limit = last + self.scenarios[0].patience;
        let mut finished = |_: Instant, nodes: &[SiteNode]| {
            nodes.iter().all(|node| match node {
                SiteNode::Gateway(gateway) => gateway.is_finished(),
                SiteNode::LineEnd(_) => true,
            })
        };
        let stop = self.network.run(limit, &mut finished);
        assert_eq!(stop, Stop::Goal, "seed {}: not everything ended", self.seed);
        (0..self.pairs.len())
            .map(|pair| self.report(pair))
            .collect()
    }

    fn set_up(&mut self) {
        let wanted: Vec<usize> = self
            .scenarios
            .iter()
            .map(|scenario| match scenario.set_up {
                SetUp::PathsUp(paths) => paths,
                SetUp::Skip => 0,
            })
            .collect();
        // The first two nodes are the first pair, and so on.
        let mut up = |_: Instant, nodes: &[SiteNode]| {
            nodes
                .iter()
                .enumerate()
                .all(|(node, gateway)| match gateway {
                    SiteNode::Gateway(gateway) => gateway.paths_up() >= wanted[node / 2],
                    SiteNode::LineEnd(_) => true,
                })
        };
        let limit = self.network.now() + self.scenarios[0].patience;
        let stop = self.network.run(limit, &mut up);
        assert_eq!(stop, Stop::Goal, "seed {}: paths are not up", self.seed);
    }

    /// Schedules the traffic of all pairs.
    fn begin(&mut self) {
        let from = self.network.now();
        self.measured_from = from;
        for (number, scenario) in self.scenarios.iter().enumerate() {
            let seed = pair_seed(self.seed, number);
            for (index, traffic) in scenario.traffic.iter().enumerate() {
                let planned = pair::plan(traffic, seed, index, from);
                let gateway = self.pairs[number][traffic.from.index()];
                self.network.drive(gateway, |node, _, _| {
                    if let SiteNode::Gateway(gateway) = node {
                        gateway.schedule_all(planned);
                    }
                });
            }
        }
    }

    fn last_planned(&self) -> Instant {
        let traffic = self.scenarios.iter().flat_map(|scenario| &scenario.traffic);
        let ends =
            traffic.map(|traffic| self.measured_from + traffic.start + traffic.made.duration());
        ends.fold(self.network.now(), Instant::max)
    }

    fn report(&self, number: usize) -> Report {
        let gateways = self.pairs[number].map(|id| match self.network.node(id) {
            SiteNode::Gateway(gateway) => &**gateway,
            SiteNode::LineEnd(_) => panic!("pairs are gateways"),
        });
        let seed = pair_seed(self.seed, number);
        let mut report = Report::new(&self.scenarios[number], seed, gateways);
        report.measured_from = self.measured_from;
        report.ended = self.network.now();
        report.counts = self.network.counts();
        report.trace_hash = self.network.trace_hash();
        report
    }

    /// Joins all gateways by the line of path number `path`.
    fn lay_line(&mut self, path: usize, spec: LinkSpec) {
        let patch = LinkSpec {
            mtu: u16::MAX,
            ..LinkSpec::symmetric(LinkConfig::default())
        };
        let ends = Side::BOTH.map(|side| {
            let gateways = (0..self.pairs.len()).map(|number| {
                let scenario = &self.scenarios[number];
                (host_address(scenario, number, side, path), number + 1)
            });
            let end = LineEnd {
                gateways: gateways.collect(),
            };
            let addresses: Vec<(SocketAddr, usize)> =
                end.gateways.iter().map(|(at, to)| (*at, *to)).collect();
            let node = self.network.add_node(SiteNode::LineEnd(end));
            for _ in 0..=self.pairs.len() {
                self.network.add_interface(node, Interface::Transparent);
            }
            for (address, interface) in addresses {
                let gateway = self.pairs[interface - 1][side.index()];
                let own = self
                    .network
                    .add_interface(gateway, Interface::Host(address));
                self.network
                    .connect((gateway, own), (node, interface), patch);
            }
            (node, 0)
        });
        self.network.connect(ends[0], ends[1], spec);
    }
}

impl Node for SiteNode {
    fn handle_packet(
        &mut self,
        now: Instant,
        interface: usize,
        packet: &mut Packet,
        out: &mut Outbox<'_>,
    ) {
        match self {
            Self::Gateway(gateway) => gateway.handle_packet(now, interface, packet, out),
            Self::LineEnd(end) => match (interface, end.gateways.get(&packet.destination)) {
                (0, Some(gateway)) => out.forward(*gateway, packet),
                (0, None) => {}
                _ => out.forward(0, packet),
            },
        }
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut Outbox<'_>) {
        if let Self::Gateway(gateway) = self {
            gateway.handle_timeout(now, out);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Self::Gateway(gateway) => gateway.poll_timeout(),
            Self::LineEnd(_) => None,
        }
    }
}

/// Pairs have different keys and traffic.
fn pair_seed(seed: u64, number: usize) -> u64 {
    seed::derive(seed, "pair", number as u64)
}

fn host_address(scenario: &Scenario, pair: usize, side: Side, path: usize) -> SocketAddr {
    let host = 1 + 2 * pair + side.index();
    address(scenario.ipv6, path, host as u8, PORT)
}
