//! Tenants of many flows over one bottleneck, `[fairness fig. 1]`.
//!
//! ```text
//!  senders of group 1 ──delay 1──┐                               ┌── receivers of group 1
//!  senders of group 2 ──delay 2──┤ router ══ bottleneck ══ router├── receivers of group 2
//!  background ───────────────────┘                               └── background
//! ```
//!
//! A group is a tenant: a host with all its senders, one with all its receivers. A device may be
//! put between each host and its router ([`Dumbbell::build_with`]).

use std::time::Duration;

use keiro_link::{Buffer, LinkConfig};
use keiro_model::{Bandwidth, ByteCount, Instant, Probability, fairness};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

use super::{
    Activity, Device, HasHost, Host, Mesh, MeshLink, MeshNode, PortReport, Spacing, TcpConfig,
    TcpSpec, UdpSpec, tcp::SenderCounts,
};
use crate::{Direction, LinkSpec, seed};

/// IP bytes of background packets, `[fairness §3.1]`.
const BACKGROUND_LENGTH: u16 = 1500;

/// The topology, its traffic, and what is left to chance.
#[derive(Clone, Debug, PartialEq)]
pub struct Dumbbell {
    /// Rate of the bottleneck, IP bytes, each way.
    pub rate: Bandwidth,
    /// Packets that wait before the bottleneck at most, beside the one in service, each way.
    pub buffer_packets: u32,
    /// Propagation delay of the bottleneck, one way.
    pub delay: Duration,
    /// Rate of all other links; `None`: without limit.
    pub access: Option<Bandwidth>,
    /// Each packet's delay from its sender to the first router grows by up to this, without
    /// overtaking: hosts are not clocks, and without it equal round trips keep some flows from
    /// the buffer for good (Floyd, Jacobson 1991).
    pub host_jitter: Duration,
    /// Marks ECN-capable packets that find this many waiting at the bottleneck; `None`: none.
    pub mark_above: Option<u32>,
    /// The tenants.
    pub groups: Vec<Group>,
    /// Poisson packets of 1500 bytes, as a part of the bottleneck's rate.
    pub background: Probability,
    /// Flows begin at random instants before this.
    pub starts: Duration,
}

/// A tenant with its flows.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Propagation delay between its senders and the bottleneck, one way.
    pub delay: Duration,
    /// What it is to get, as a multiple of what others get.
    pub weight: f64,
    /// TCP flows without end.
    pub flows: u32,
    /// How they behave.
    pub tcp: TcpConfig,
    /// An unresponsive UDP flow of this rate, packets of 1500 bytes at equal intervals; zero: none.
    pub udp: Bandwidth,
    /// When its flows have something to send, beside [`Dumbbell::starts`]; `None`: all the time.
    pub activity: Option<Activity>,
}

/// A dumbbell under way.
#[derive(Debug)]
pub struct DumbbellRun<D> {
    /// Nodes and links.
    pub mesh: Mesh<D>,
    /// The bottleneck; data goes forward.
    pub bottleneck: MeshLink,
    /// Where the groups are, in order.
    pub groups: Vec<Placed>,
}

/// Where a group is.
#[derive(Clone, Debug)]
pub struct Placed {
    /// The host of its senders.
    pub senders: MeshNode,
    /// The host of its receivers.
    pub receivers: MeshNode,
    /// What was put between its senders and the bottleneck.
    pub ingress: Option<MeshNode>,
    /// What was put between the bottleneck and its receivers.
    pub egress: Option<MeshNode>,
    /// Ports of its TCP flows, at the sender and at the receiver.
    pub flows: Vec<Ports>,
    /// Ports of its UDP flow.
    pub udp: Option<Ports>,
    weight: f64,
}

/// Ports of a flow, at its sender and at its receiver.
pub type Ports = (u16, u16);

/// What a group got over a stretch of time.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupReport {
    /// Payload bytes that each TCP receiver's application got, in order.
    pub flow_bytes: Vec<u64>,
    /// Payload bytes of its UDP flow that arrived.
    pub udp_bytes: u64,
}

/// Where a device may be put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Between the senders of a group and the bottleneck.
    Ingress(usize),
    /// Between the bottleneck and the receivers of a group.
    Egress(usize),
}

impl Dumbbell {
    /// 50 Mbit/s, 50 packets, 25 ms one way, without background: the setting of the references.
    pub fn reference(flows: u32, tcp: TcpConfig) -> Self {
        Self {
            rate: Bandwidth::from_mbit_per_second(50),
            buffer_packets: 50,
            delay: Duration::from_millis(25),
            access: Some(Bandwidth::from_mbit_per_second(1000)),
            host_jitter: Duration::from_micros(100),
            mark_above: None,
            groups: vec![Group::new(Duration::ZERO, flows, tcp)],
            background: Probability::ZERO,
            starts: Duration::from_secs(1),
        }
    }

    /// Five tenants of 30 flows, weights 1, 2, 2, 3, 4, 30 % background: `[fairness tables 1, 2]`.
    /// The bottleneck has no delay of its own, the other links have no limit of rate.
    pub fn paper(tcp: TcpConfig) -> Self {
        let groups = [(50, 1.0), (25, 2.0), (75, 2.0), (50, 3.0), (25, 4.0)];
        let groups = groups.map(|(delay_ms, weight)| Group {
            weight,
            ..Group::new(Duration::from_millis(delay_ms), 30, tcp)
        });
        Self {
            delay: Duration::ZERO,
            access: None,
            groups: groups.to_vec(),
            background: Probability::new(0.3).expect("within 0..=1"),
            ..Self::reference(0, tcp)
        }
    }

    /// Hosts and routers, nothing else.
    pub fn build(&self, seed: u64) -> DumbbellRun<Host> {
        self.build_with(seed, |host| host, |_| None)
    }

    /// As [`build`](Self::build), with a device wherever `between` gives one; [`Placed`] says
    /// which nodes they became, so that they can be told each other's addresses. `wrap` makes a
    /// host one of the mesh's devices.
    pub fn build_with<D: Device + HasHost>(
        &self,
        seed: u64,
        mut wrap: impl FnMut(Host) -> D,
        mut between: impl FnMut(Place) -> Option<D>,
    ) -> DumbbellRun<D> {
        let mut mesh = Mesh::new(seed::derive(seed, "mesh", 0));
        let [near, far] = [mesh.add_router(), mesh.add_router()];
        let bottleneck = LinkConfig {
            rate: Some(self.rate),
            delay: self.delay,
            buffer: Buffer::Packets(self.buffer_packets),
            ..LinkConfig::default()
        };
        let bottleneck = mesh.connect(near, far, LinkSpec::symmetric(bottleneck));
        mesh.set_marking(bottleneck, Direction::Forward, self.mark_above);
        let mut groups = Vec::with_capacity(self.groups.len());
        for (index, group) in self.groups.iter().enumerate() {
            let mut attach = |router, place, delay, jitter| {
                let host = mesh.add_host(wrap(Host::new()));
                let device = between(place).map(|device| {
                    let node = mesh.add_gateway(device);
                    mesh.connect(node, router, LinkSpec::symmetric(self.access_link()));
                    node
                });
                let access = LinkConfig {
                    delay,
                    ..self.access_link()
                };
                let spec = LinkSpec {
                    forward: LinkConfig { jitter, ..access },
                    ..LinkSpec::symmetric(access)
                };
                mesh.connect(host, device.unwrap_or(router), spec);
                (host, device)
            };
            let (senders, ingress) =
                attach(near, Place::Ingress(index), group.delay, self.host_jitter);
            let (receivers, egress) =
                attach(far, Place::Egress(index), Duration::ZERO, Duration::ZERO);
            let chance = seed::derive(seed, "group", index as u64);
            let (flows, udp) = self.populate(&mut mesh, group, [senders, receivers], chance);
            groups.push(Placed {
                senders,
                receivers,
                ingress,
                egress,
                flows,
                udp,
                weight: group.weight,
            });
        }
        let mut run = DumbbellRun {
            mesh,
            bottleneck,
            groups,
        };
        self.add_background(&mut run.mesh, [near, far], seed, &mut wrap);
        run
    }

    fn access_link(&self) -> LinkConfig {
        LinkConfig {
            rate: self.access,
            ..LinkConfig::default()
        }
    }

    /// Puts a group's flows on its two hosts.
    fn populate<D: Device + HasHost>(
        &self,
        mesh: &mut Mesh<D>,
        group: &Group,
        [senders, receivers]: [MeshNode; 2],
        chance: u64,
    ) -> (Vec<Ports>, Option<Ports>) {
        let mut random = ChaCha12Rng::seed_from_u64(chance);
        let to = mesh.address(receivers);
        let mut flows = Vec::with_capacity(group.flows as usize);
        for _ in 0..group.flows {
            let receiver = mesh.with_host(receivers, |host| host.add_tcp_receiver(group.tcp));
            let begin = Instant::ZERO + self.starts.mul_f64(unit(random.next_u64()));
            let activity = match &group.activity {
                None => Activity::from(begin),
                Some(activity) => activity.delayed(begin - Instant::ZERO),
            };
            let spec = TcpSpec {
                to: (to, receiver),
                config: group.tcp,
                length: None,
                activity,
                first_sequence: random.next_u32(),
            };
            let sender = mesh.with_host(senders, |host| host.add_tcp_sender(spec));
            flows.push((sender, receiver));
        }
        let udp = (!group.udp.is_zero()).then(|| {
            let sink = mesh.with_host(receivers, Host::add_udp_sink);
            let activity = group.activity.clone();
            let spec = UdpSpec {
                to: (to, sink),
                rate: group.udp,
                length: BACKGROUND_LENGTH,
                spacing: Spacing::Constant(Duration::ZERO),
                activity: activity.unwrap_or_else(|| Activity::from(Instant::ZERO)),
            };
            (
                mesh.with_host(senders, |host| host.add_udp_source(spec)),
                sink,
            )
        });
        (flows, udp)
    }

    fn add_background<D: Device + HasHost>(
        &self,
        mesh: &mut Mesh<D>,
        routers: [MeshNode; 2],
        seed: u64,
        wrap: &mut impl FnMut(Host) -> D,
    ) {
        let rate = self.rate.share_floor(self.background);
        if rate.is_zero() {
            return;
        }
        let [source, sink] = routers.map(|router| {
            let host = mesh.add_host(wrap(Host::new()));
            mesh.connect(host, router, LinkSpec::symmetric(self.access_link()));
            host
        });
        let port = mesh.with_host(sink, Host::add_udp_sink);
        let spec = UdpSpec {
            to: (mesh.address(sink), port),
            rate,
            length: BACKGROUND_LENGTH,
            spacing: Spacing::Poisson(seed::derive(seed, "background", 0)),
            activity: Activity::from(Instant::ZERO),
        };
        mesh.with_host(source, |host| host.add_udp_source(spec));
    }
}

impl Group {
    /// TCP flows of weight 1 that send all the time.
    pub const fn new(delay: Duration, flows: u32, tcp: TcpConfig) -> Self {
        Self {
            delay,
            weight: 1.0,
            flows,
            tcp,
            udp: Bandwidth::ZERO,
            activity: None,
        }
    }
}

impl<D: Device + HasHost> DumbbellRun<D> {
    /// Runs for a warm-up, forgets what ports did in it, and runs until `end`.
    ///
    /// # Panics
    ///
    /// If time stands still or a flow is stuck.
    pub fn run(&mut self, warm_up: Instant, end: Instant) {
        for (index, until) in [warm_up, end].into_iter().enumerate() {
            let stop = self.mesh.run_until(until);
            assert!(stop != crate::Stop::Livelock, "time stands still");
            let stuck = self.stuck();
            assert!(stuck.is_empty(), "flows {stuck:?} never send again");
            if index == 0 {
                self.mesh.measure_anew();
            }
        }
    }

    /// TCP flows, as group and number, that will never send again although they have something to
    /// send: always a bug.
    pub fn stuck(&self) -> Vec<(usize, usize)> {
        let now = self.mesh.now();
        let flows = self.flows();
        flows
            .filter(|&(group, _, ports)| {
                let host = self.host(self.groups[group].senders);
                host.tcp_sender(ports.0)
                    .is_some_and(|tcp| tcp.is_stuck(now))
            })
            .map(|(group, index, _)| (group, index))
            .collect()
    }

    /// What the bottleneck did towards the receivers since the warm-up.
    pub fn port(&self) -> PortReport {
        self.mesh.port_report(self.bottleneck, Direction::Forward)
    }

    /// What a group got in the seconds that begin in `from..to`.
    pub fn group(&self, group: usize, from: Instant, to: Instant) -> GroupReport {
        let placed = &self.groups[group];
        let host = self.host(placed.receivers);
        let bytes = |port: u16| host.received(port).map_or(0, |bins| bins.sum(from, to));
        GroupReport {
            flow_bytes: placed.flows.iter().map(|ports| bytes(ports.1)).collect(),
            udp_bytes: placed.udp.map_or(0, |ports| bytes(ports.1)),
        }
    }

    /// Payload of all groups in the seconds that begin in `from..to`.
    pub fn goodput(&self, from: Instant, to: Instant) -> Bandwidth {
        let groups = 0..self.groups.len();
        let bytes = groups
            .map(|group| self.group(group, from, to).bytes())
            .sum();
        ByteCount::new(bytes).rate_over_floor(to - from)
    }

    /// Jain's index over all TCP flows, in the seconds that begin in `from..to`; `None` if none got
    /// anything.
    pub fn jain_of_flows(&self, from: Instant, to: Instant) -> Option<f64> {
        let groups = 0..self.groups.len();
        let bytes = groups.flat_map(|group| self.group(group, from, to).flow_bytes);
        let shares: Vec<f64> = bytes.map(|bytes| bytes as f64).collect();
        fairness::jain(&shares)
    }

    /// F between groups in every second of `from..to`, `[fairness eq. 1]`; `None`: nobody got
    /// anything in that second.
    pub fn weighted_index_by_second(&self, from: Instant, to: Instant) -> Vec<Option<f64>> {
        let second = Duration::from_secs(1);
        let weights: Vec<f64> = self.groups.iter().map(|group| group.weight).collect();
        let mut indices = Vec::new();
        let mut at = from;
        while at < to {
            let groups = 0..self.groups.len();
            let bytes = groups.map(|group| self.group(group, at, at + second).bytes() as f64);
            let shares: Vec<f64> = bytes.collect();
            indices.push(fairness::weighted_index(&shares, &weights));
            at += second;
        }
        indices
    }

    /// What all TCP senders did, from the beginning; the longest silence is the longest of any.
    pub fn sender_counts(&self) -> SenderCounts {
        let mut sum = SenderCounts::default();
        for (group, _, ports) in self.flows() {
            let host = self.host(self.groups[group].senders);
            if let Some(tcp) = host.tcp_sender(ports.0) {
                sum.add(tcp.counts());
            }
        }
        sum
    }

    fn flows(&self) -> impl Iterator<Item = (usize, usize, Ports)> + '_ {
        self.groups.iter().enumerate().flat_map(|(group, placed)| {
            let flows = placed.flows.iter().enumerate();
            flows.map(move |(index, &ports)| (group, index, ports))
        })
    }

    fn host(&self, node: MeshNode) -> &Host {
        let device = self.mesh.device(node).and_then(HasHost::host);
        device.expect("groups stand on hosts")
    }
}

impl GroupReport {
    /// All payload bytes.
    pub fn bytes(&self) -> u64 {
        self.flow_bytes.iter().sum::<u64>() + self.udp_bytes
    }
}

/// In 0..1, with the 53 bits that an f64 holds exactly.
fn unit(word: u64) -> f64 {
    (word >> 11) as f64 / (1_u64 << 53) as f64
}
