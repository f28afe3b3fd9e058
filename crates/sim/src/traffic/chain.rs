//! Tenants of many flows over one bottleneck or several in a row, `[fairness figs. 1, 6]`.
//!
//! ```text
//!  senders of group 1 ──delay 1──┐                       ┌── receivers of group 1
//!  senders of group 2 ──delay 2──┤                       ├── receivers of group 2
//!                             router ══ bottleneck ══ router ══ bottleneck ══ router …
//!  background ───────────────────┘                       └── background
//! ```
//!
//! A group is a tenant: one host with all its senders, one with all its receivers. A device may be placed
//! between each host and its router ([`Chain::build_with`]). [`run`](super::run) has the results.

use std::{ops::Range, time::Duration};

use keiro_core::TenantConfig;
use keiro_link::{Buffer, LinkConfig};
use keiro_units::{Bandwidth, Instant, Probability};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

use super::{
    Activity, Device, Edge, EdgeSpec, HasHost, Host, Mesh, MeshNode, Remote, Spacing, Station,
    TcpConfig, TcpSpec, UdpSpec,
    run::{ChainRun, Placed, Ports},
};
use crate::{Direction, LinkSpec, seed};

/// IP bytes of background packets, `[fairness §3.1]`.
const BACKGROUND_LENGTH: u16 = 1500;
/// IP bytes of groups' UDP packets: they fit into gateways' tunnels over Ethernet.
const UDP_LENGTH: u16 = 1400;
/// Maximum of IP bytes that gateways try: Ethernet's.
const EDGE_MTU: u16 = 1500;

/// The topology, its traffic, and its random parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Chain {
    /// Links between routers, in a chain.
    pub bottlenecks: Vec<Bottleneck>,
    /// Rate of all other links; `None` is unlimited.
    pub access: Option<Bandwidth>,
    /// Each packet's delay from its sender to the first router is increased by up to this, without
    /// reordering. Without this jitter, equal round trips can exclude some flows from the buffer permanently
    /// (Floyd, Jacobson 1991).
    pub host_jitter: Duration,
    pub groups: Vec<Group>,
    /// Flows begin at random instants before this.
    pub starts: Duration,
}

/// A link between two routers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bottleneck {
    /// Its rate in IP bytes, in each direction.
    pub rate: Bandwidth,
    /// Maximum of packets in its queue, in addition to the one in transmission, in each direction.
    pub buffer_packets: u32,
    /// Its one-way propagation delay.
    pub delay: Duration,
    /// Marks ECN-capable packets if this many are queued; `None` marks none.
    pub mark_above: Option<u32>,
    /// Poisson traffic of 1500-byte packets that crosses it, as a fraction of its rate.
    pub background: Probability,
}

/// A tenant with its flows.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Indices of the bottlenecks that its packets cross.
    pub crosses: Range<usize>,
    /// One-way propagation delay between its senders, or the gateway behind them, and the first bottleneck.
    pub delay: Duration,
    pub weight: f64,
    /// Number of endless TCP flows.
    pub flows: u32,
    pub tcp: TcpConfig,
    /// Rate of an unresponsive UDP flow, packets of 1400 bytes at equal intervals; zero for none.
    pub udp: Bandwidth,
    /// When its flows have data to send, in addition to [`Chain::starts`]; `None` for always.
    pub activity: Option<Activity>,
}

/// Location of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DevicePosition {
    /// Between the senders of a group and its first bottleneck.
    Ingress(usize),
    /// Between its last bottleneck and the receivers of a group.
    Egress(usize),
}

impl Chain {
    /// One bottleneck of 50 Mbit/s, 50 packets, 25 ms one way, without background: the setting of the
    /// references.
    pub fn reference(flows: u32, tcp: TcpConfig) -> Self {
        let delay = Duration::from_millis(25);
        Self {
            bottlenecks: vec![Bottleneck::new(50, 50, delay, Probability::ZERO)],
            access: Some(Bandwidth::from_mbit_per_second(1000)),
            host_jitter: Duration::from_micros(100),
            groups: vec![Group::new(Duration::ZERO, flows, tcp)],
            starts: Duration::from_secs(1),
        }
    }

    /// Five tenants of 30 flows, weights 1, 2, 2, 3, 4, 30 % background, `[fairness tables 1, 2]`.
    /// The bottleneck has no delay of its own, the other links have no rate limit.
    pub fn one_bottleneck(tcp: TcpConfig) -> Self {
        let groups = [(50, 1.0), (25, 2.0), (75, 2.0), (50, 3.0), (25, 4.0)];
        let groups = groups.map(|(delay_ms, weight)| Group {
            weight,
            ..Group::new(Duration::from_millis(delay_ms), 30, tcp)
        });
        Self {
            bottlenecks: vec![Bottleneck::new(50, 50, Duration::ZERO, background())],
            access: None,
            groups: groups.to_vec(),
            ..Self::reference(0, tcp)
        }
    }

    /// Links of 20, 10 and `third` Mbit/s, a tenant of 30 flows over all of them and one over each, 30 %
    /// background, `[fairness tables 3, 4]`. The weights are max-min fair: tenant 2 gets what tenants 1 and 3
    /// leave on the first link, tenant 4 on the third.
    pub fn three_bottlenecks(third: u64, tcp: TcpConfig) -> Self {
        let link = |mbit| Bottleneck::new(mbit, 200, Duration::ZERO, background());
        let weight_of_last = (third as f64 - 5.0) / 5.0;
        let groups = [
            (0..3, 1.0),
            (0..1, 3.0),
            (1..2, 1.0),
            (2..3, weight_of_last),
        ];
        let groups = groups.map(|(crosses, weight)| Group {
            crosses,
            weight,
            ..Group::new(Duration::ZERO, 30, tcp)
        });
        Self {
            bottlenecks: vec![link(20), link(10), link(third)],
            access: None,
            groups: groups.to_vec(),
            ..Self::reference(0, tcp)
        }
    }

    /// Hosts and routers only.
    pub fn build(&self, seed: u64) -> ChainRun<Host> {
        self.build_with(seed, |host| host, |_| None)
    }

    /// Like [`build`](Self::build), with a device wherever `between` returns one. [`Placed`] has their nodes,
    /// so that they can be given each other's addresses. `wrap` makes a device of a host.
    ///
    /// # Panics
    ///
    /// If a group crosses a bottleneck that does not exist.
    pub fn build_with<D: Device + HasHost>(
        &self,
        seed: u64,
        wrap: impl FnMut(Host) -> D,
        between: impl FnMut(DevicePosition) -> Option<D>,
    ) -> ChainRun<D> {
        self.place(seed, wrap, between, false)
    }

    /// `common_egress`: all groups arrive at the egress of the first one.
    fn place<D: Device + HasHost>(
        &self,
        seed: u64,
        mut wrap: impl FnMut(Host) -> D,
        mut between: impl FnMut(DevicePosition) -> Option<D>,
        common_egress: bool,
    ) -> ChainRun<D> {
        let mut common = None;
        let mut mesh = Mesh::new(seed::derive(seed, "mesh", 0));
        let mut routers = vec![mesh.add_router()];
        let mut bottlenecks = Vec::with_capacity(self.bottlenecks.len());
        for bottleneck in &self.bottlenecks {
            let (from, to) = (routers[routers.len() - 1], mesh.add_router());
            let link = mesh.connect(from, to, LinkSpec::symmetric(bottleneck.link()));
            mesh.set_marking(link, Direction::Forward, bottleneck.mark_above);
            routers.push(to);
            bottlenecks.push(link);
        }
        let mut groups = Vec::with_capacity(self.groups.len());
        for (index, group) in self.groups.iter().enumerate() {
            let mut attach = |router: MeshNode, place, delay, jitter| {
                let host = mesh.add_host(wrap(Host::new()));
                let mut access = LinkConfig {
                    delay,
                    ..self.access_link()
                };
                let is_common = common_egress && matches!(place, DevicePosition::Egress(_));
                let known = common.filter(|_| is_common);
                // The link between the hosts and their gateway is short.
                let added = between(place).filter(|_| known.is_none()).map(|device| {
                    let node = mesh.add_gateway(device);
                    let uplink = std::mem::replace(&mut access, self.access_link());
                    mesh.connect(node, router, LinkSpec::symmetric(uplink));
                    if is_common {
                        common = Some(node);
                    }
                    node
                });
                let device = added.or(known);
                let spec = LinkSpec {
                    forward: LinkConfig { jitter, ..access },
                    ..LinkSpec::symmetric(access)
                };
                mesh.connect(host, device.unwrap_or(router), spec);
                (host, device)
            };
            let [near, far] = [group.crosses.start, group.crosses.end].map(|end| routers[end]);
            let (senders, ingress) = attach(
                near,
                DevicePosition::Ingress(index),
                group.delay,
                self.host_jitter,
            );
            let (receivers, egress) = attach(
                far,
                DevicePosition::Egress(index),
                Duration::ZERO,
                Duration::ZERO,
            );
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
        let ends = routers.windows(2).zip(&self.bottlenecks);
        for (index, (ends, bottleneck)) in ends.enumerate() {
            let chance = seed::derive(seed, "background", index as u64);
            self.add_background(&mut mesh, [ends[0], ends[1]], bottleneck, chance, &mut wrap);
        }
        ChainRun {
            mesh,
            bottlenecks,
            groups,
        }
    }

    /// Like [`build`](Self::build), with a gateway before and behind every group. The group is a tenant of
    /// its own, `tenants` in order, with gateways that carry no other group. Tenants send in both directions
    /// with the same controller and weight. The gateways' access lines have `rate`.
    ///
    /// # Panics
    ///
    /// If there is not a tenant for every group.
    pub fn build_with_edges(
        &self,
        seed: u64,
        rate: Bandwidth,
        tenants: &[TenantConfig],
    ) -> ChainRun<Station<Edge>> {
        self.place_edges(seed, Some(rate), tenants, false)
    }

    /// Like [`build_with_edges`](Self::build_with_edges), with one gateway at which all groups arrive; all have to
    /// cross the last bottleneck. They measure the line by trains, as the daemon does. `rate`: `None`: gateways find the rates of their paths.
    ///
    /// # Panics
    ///
    /// If there is not a tenant for every group.
    pub fn build_with_common_egress(
        &self,
        seed: u64,
        rate: Option<Bandwidth>,
        tenants: &[TenantConfig],
    ) -> ChainRun<Station<Edge>> {
        self.place_edges(seed, rate, tenants, true)
    }

    fn place_edges(
        &self,
        seed: u64,
        rate: Option<Bandwidth>,
        tenants: &[TenantConfig],
        common_egress: bool,
    ) -> ChainRun<Station<Edge>> {
        assert!(
            tenants.len() == self.groups.len(),
            "every group has a tenant"
        );
        let spec = |place| EdgeSpec {
            seed,
            number: edge_number(place),
            rate,
            probe_share: match common_egress {
                true => probe_share(),
                false => Probability::ZERO,
            },
            mtu: EDGE_MTU,
        };
        let edge = |place| Station::Gateway(Box::new(Edge::new(Instant::ZERO, spec(place))));
        let between = |place| Some(edge(place));
        let mut run = self.place(seed, Station::Host, between, common_egress);
        for (index, tenant) in tenants.iter().enumerate() {
            let placed = run.groups[index].clone();
            let (near, far) = (
                DevicePosition::Ingress(index),
                DevicePosition::Egress(if common_egress { 0 } else { index }),
            );
            let ends = [
                (placed.ingress, placed.egress, far, placed.receivers),
                (placed.egress, placed.ingress, near, placed.senders),
            ];
            for (end, other, place, hosts) in ends {
                let (end, other) = end.zip(other).expect("gateways were put there");
                let remote = Remote {
                    number: edge_number(place),
                    address: run.mesh.address(other),
                    tenant: *tenant,
                    hosts: vec![run.mesh.address(hosts)],
                };
                run.mesh.drive(end, |station, now, out| {
                    let edge = station.gateway_mut().expect("a gateway was put there");
                    let added = edge.add_remote(now, &remote, out);
                    added.expect("one tenant is within every limit");
                });
            }
        }
        run
    }

    fn access_link(&self) -> LinkConfig {
        LinkConfig {
            rate: self.access,
            ..LinkConfig::default()
        }
    }

    /// Adds a group's flows to its two hosts.
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
                length: UDP_LENGTH,
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
        bottleneck: &Bottleneck,
        chance: u64,
        wrap: &mut impl FnMut(Host) -> D,
    ) {
        let rate = bottleneck.rate.share_floor(bottleneck.background);
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
            spacing: Spacing::Poisson(chance),
            activity: Activity::from(Instant::ZERO),
        };
        mesh.with_host(source, |host| host.add_udp_source(spec));
    }
}

impl ChainRun<Station<Edge>> {
    /// Reconfigures a group's tenant now, at both of its gateways.
    ///
    /// # Panics
    ///
    /// If the group has no gateways.
    pub fn set_tenant(&mut self, group: usize, tenant: TenantConfig) {
        let Placed {
            ingress, egress, ..
        } = self.groups[group];
        for end in [ingress, egress].into_iter().flatten() {
            self.mesh.drive(end, |station, now, out| {
                let edge = station.gateway_mut().expect("a gateway was put there");
                let set = edge.set_tenant(now, tenant, out);
                set.expect("it is there already");
            });
        }
    }
}

impl Bottleneck {
    /// A link of some Mbit/s without marking.
    pub const fn new(
        mbit: u64,
        buffer_packets: u32,
        delay: Duration,
        background: Probability,
    ) -> Self {
        Self {
            rate: Bandwidth::from_mbit_per_second(mbit),
            buffer_packets,
            delay,
            mark_above: None,
            background,
        }
    }

    fn link(&self) -> LinkConfig {
        LinkConfig {
            rate: Some(self.rate),
            delay: self.delay,
            buffer: Buffer::Packets(self.buffer_packets),
            ..LinkConfig::default()
        }
    }
}

impl Group {
    /// Endless TCP flows of weight 1 over the first bottleneck.
    pub const fn new(delay: Duration, flows: u32, tcp: TcpConfig) -> Self {
        Self {
            crosses: 0..1,
            delay,
            weight: 1.0,
            flows,
            tcp,
            udp: Bandwidth::ZERO,
            activity: None,
        }
    }
}

const fn edge_number(place: DevicePosition) -> u64 {
    match place {
        DevicePosition::Ingress(index) => 2 * index as u64,
        DevicePosition::Egress(index) => 2 * index as u64 + 1,
    }
}

/// The daemon's default.
fn probe_share() -> Probability {
    Probability::new(0.005).expect("within 0..=1")
}

/// `[fairness §3.1]`.
fn background() -> Probability {
    Probability::new(0.3).expect("within 0..=1")
}

/// In [0, 1), with the 53 bits that an f64 holds exactly.
fn unit(word: u64) -> f64 {
    (word >> 11) as f64 / (1_u64 << 53) as f64
}
