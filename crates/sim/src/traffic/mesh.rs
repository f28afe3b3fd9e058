//! Hosts, gateways and routers joined by links, and the event loop of virtual time.

use std::net::Ipv4Addr;

use keiro_link::{Arrival, DropReason, Link, LinkConfig};
use keiro_units::{ByteCount, Instant};

use super::{
    Host,
    classes::{Classes, Scheduler, Waiting},
    device::{Device, DeviceOutput, OutputPort},
    packet::{Body, Buffers, Ecn, Packets, Slot},
    port::{PortReport, Tally},
    routes::{self, NO_ROUTE},
    station::HasHost,
};
use crate::{
    Counts, Direction, EVENTS_PER_INSTANT_MAX, LinkSpec, Stop,
    in_transit::InTransit,
    queue::{EventQueue, Source},
    seed,
    trace::TraceHash,
};

/// Maximum of nodes of a mesh. Ours: routing tables grow with its square.
pub const NODES_MAX: usize = 1 << 12;

/// Nodes and links, and packets in flight. The same seed and calls give the same run.
///
/// Every node has an address, 10.x.y.z by its number. Routers and gateways forward packets along the path
/// with the fewest links (among several, by the link added first); hosts never forward.
#[derive(Debug)]
pub struct Mesh<D> {
    seed: u64,
    now: Instant,
    queue: EventQueue,
    /// Indexed by [`Source`].
    sources: Vec<What>,
    nodes: Vec<Node<D>>,
    ports: Vec<Port>,
    packets: Packets,
    buffers: Buffers,
    /// Output buffer of the device that is being driven.
    outgoing: Vec<(OutputPort, Slot)>,
    /// Whether nodes or links were added since routes were computed.
    routes_outdated: bool,
    trace: TraceHash,
    counts: Counts,
    events_at_now: u64,
}

/// Identifies a node of a [`Mesh`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MeshNode(usize);

/// Identifies a link of a [`Mesh`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MeshLink(usize);

#[derive(Clone, Copy, Debug)]
enum What {
    Device(usize),
    Port(usize),
    Classes(usize),
}

#[derive(Debug)]
struct Node<D> {
    kind: Kind<D>,
    /// Outgoing ports, by their index here.
    ports: Vec<usize>,
    /// By destination: the index here of the port towards it.
    routes: Vec<u16>,
}

#[derive(Debug)]
enum Kind<D> {
    Router,
    Host { device: D, timer: Source },
    Gateway { device: D, timer: Source },
}

/// The sending end of one direction of a link, and its packets.
#[derive(Debug)]
struct Port {
    link: Link,
    source: Source,
    mtu: u16,
    /// Marks ECN-capable packets if this many are queued.
    mark_above: Option<u32>,
    /// Its classes, and the timer of their next departure.
    classes: Option<(Scheduler, Source)>,
    to: usize,
    to_port: usize,
    held: InTransit<(Instant, Slot)>,
    tally: Tally,
}

impl<D: Device> Mesh<D> {
    /// An empty mesh at time zero. `seed` determines the links' randomness.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            now: Instant::ZERO,
            queue: EventQueue::new(),
            sources: Vec::new(),
            nodes: Vec::new(),
            ports: Vec::new(),
            packets: Packets::default(),
            buffers: Buffers::default(),
            outgoing: Vec::new(),
            routes_outdated: false,
            trace: TraceHash::new(),
            counts: Counts::default(),
            events_at_now: 0,
        }
    }

    pub fn add_router(&mut self) -> MeshNode {
        self.add_node(Kind::Router)
    }

    /// Adds a device that receives packets addressed to it.
    pub fn add_host(&mut self, device: D) -> MeshNode {
        let timer = self.add_source(What::Device(self.nodes.len()));
        self.add_node(Kind::Host { device, timer })
    }

    /// Adds a device that receives all packets that pass it.
    pub fn add_gateway(&mut self, device: D) -> MeshNode {
        let timer = self.add_source(What::Device(self.nodes.len()));
        self.add_node(Kind::Gateway { device, timer })
    }

    pub fn connect(&mut self, a: MeshNode, b: MeshNode, spec: LinkSpec) -> MeshLink {
        let id = MeshLink(self.ports.len() / 2);
        for (from, to, config) in [(a, b, spec.forward), (b, a, spec.backward)] {
            let index = self.ports.len();
            let source = self.add_source(What::Port(index));
            // The index that the opposite direction has, or is about to get, at the other end.
            let to_port = self.nodes[to.0].ports.len() - usize::from(index % 2 == 1);
            self.nodes[from.0].ports.push(index);
            self.ports.push(Port {
                link: Link::new(config, seed::derive(self.seed, "port", index as u64)),
                source,
                mtu: spec.mtu,
                mark_above: None,
                classes: None,
                to: to.0,
                to_port,
                held: InTransit::new(),
                tally: Tally::new(),
            });
        }
        self.routes_outdated = true;
        id
    }

    /// Marks ECN-capable packets if `packets` or more are queued; `None` marks none.
    pub fn set_marking(&mut self, link: MeshLink, direction: Direction, packets: Option<u32>) {
        self.ports[port_index(link, direction)].mark_above = packets;
    }

    /// Shares one direction of a link between classes from now on. Packets then wait outside of the link:
    /// they are neither marked nor counted by the link's own buffer.
    ///
    /// # Panics
    ///
    /// If there is no class, or a weight is not above zero.
    pub fn set_classes(&mut self, link: MeshLink, direction: Direction, classes: Classes) {
        let index = port_index(link, direction);
        let timer = self.add_source(What::Classes(index));
        self.ports[index].classes = Some((Scheduler::new(classes), timer));
    }

    /// Changes the weights of a link's classes from now on; does nothing if there are none.
    ///
    /// # Panics
    ///
    /// If there are not as many weights as classes, or one is not above zero.
    pub fn set_class_weights(&mut self, link: MeshLink, direction: Direction, weights: &[f64]) {
        if let Some((classes, _)) = &mut self.ports[port_index(link, direction)].classes {
            classes.set_weights(weights);
        }
    }

    pub const fn address(&self, node: MeshNode) -> Ipv4Addr {
        Ipv4Addr::from_bits(FIRST_ADDRESS + node.0 as u32)
    }

    /// The present virtual time.
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// A host or gateway; `None` for a router.
    pub fn device(&self, node: MeshNode) -> Option<&D> {
        self.nodes[node.0].kind.device()
    }

    /// All hosts and gateways.
    pub fn devices(&self) -> impl Iterator<Item = (MeshNode, &D)> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter_map(|(index, node)| Some((MeshNode(index), node.kind.device()?)))
    }

    /// Applies a closure to a host or gateway now, then sends its output and updates its timer.
    ///
    /// # Panics
    ///
    /// If the node is a router.
    pub fn drive<R>(
        &mut self,
        node: MeshNode,
        act: impl FnOnce(&mut D, Instant, &mut DeviceOutput<'_>) -> R,
    ) -> R {
        self.renew_routes();
        self.drive_index(node.0, act)
            .expect("a router cannot be driven")
    }

    /// Adds or changes a host's applications now.
    ///
    /// # Panics
    ///
    /// If the node is not a host.
    pub fn with_host<R>(&mut self, node: MeshNode, act: impl FnOnce(&mut Host) -> R) -> R
    where
        D: HasHost,
    {
        let device = self.nodes[node.0].kind.device_mut();
        let host = device.and_then(HasHost::host_mut);
        let result = act(host.expect("the node is a host"));
        self.rearm_device(node.0);
        result
    }

    /// Changes one direction of a link now, see [`Link::apply`].
    pub fn set_link(&mut self, link: MeshLink, direction: Direction, config: LinkConfig) {
        let index = port_index(link, direction);
        let port = &mut self.ports[index];
        for ticket in port.link.apply(self.now, config) {
            if let Some((_, slot)) = port.held.take(ticket) {
                self.buffers.free(self.packets.remove(slot));
            }
        }
        self.trace.instant(self.now);
        self.trace.word(!(index as u64));
        self.rearm_port(index);
    }

    /// Measurements of one direction of a link since [`measure_anew`](Self::measure_anew), or from the start.
    pub fn port_report(&self, link: MeshLink, direction: Direction) -> PortReport {
        let port = &self.ports[port_index(link, direction)];
        port.tally.report(self.now, port.link.config().rate)
    }

    /// Resets the ports' measurements: the warm-up is over.
    pub fn measure_anew(&mut self) {
        for port in &mut self.ports {
            port.tally.begin(self.now);
        }
    }

    /// A hash of all packets entering and leaving links, in order and with time.
    pub const fn trace_hash(&self) -> u64 {
        self.trace.value()
    }

    /// Counters of the whole mesh. Packets without a route count as [`unconnected`](Counts::unconnected).
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// Number of packets with real bytes in flight.
    pub const fn buffers_in_use(&self) -> usize {
        self.buffers.in_use()
    }

    /// Runs until `until`, events at that instant included.
    pub fn run_until(&mut self, until: Instant) -> Stop {
        self.renew_routes();
        while let Some((at, source)) = self.queue.pop_until(until) {
            if at > self.now {
                self.now = at;
                self.events_at_now = 0;
            }
            self.counts.events += 1;
            self.events_at_now += 1;
            if self.events_at_now > EVENTS_PER_INSTANT_MAX {
                return Stop::Livelock;
            }
            match self.sources[source.index()] {
                What::Device(index) => self.wake(index),
                What::Port(index) => self.deliver(index),
                What::Classes(index) => self.serve_classes(index),
            }
        }
        let stop = if self.queue.is_empty() {
            Stop::Idle
        } else {
            Stop::Time
        };
        if until < Instant::MAX {
            self.now = self.now.max(until);
            self.events_at_now = 0;
        }
        stop
    }

    fn add_node(&mut self, kind: Kind<D>) -> MeshNode {
        assert!(self.nodes.len() < NODES_MAX, "at most {NODES_MAX} nodes");
        self.nodes.push(Node {
            kind,
            ports: Vec::new(),
            routes: Vec::new(),
        });
        self.routes_outdated = true;
        let index = self.nodes.len() - 1;
        self.rearm_device(index);
        MeshNode(index)
    }

    fn add_source(&mut self, what: What) -> Source {
        self.sources.push(what);
        self.queue.add_source()
    }

    fn renew_routes(&mut self) {
        if !std::mem::take(&mut self.routes_outdated) {
            return;
        }
        let neighbours: Vec<Vec<usize>> = self
            .nodes
            .iter()
            .map(|node| node.ports.iter().map(|&port| self.ports[port].to).collect())
            .collect();
        let transits: Vec<bool> = self
            .nodes
            .iter()
            .map(|node| !matches!(node.kind, Kind::Host { .. }))
            .collect();
        let tables = routes::shortest(&neighbours, &transits);
        for (node, table) in self.nodes.iter_mut().zip(tables) {
            node.routes = table;
        }
    }

    fn wake(&mut self, index: usize) {
        self.drive_index(index, |device, now, out| {
            if device.poll_timeout().is_some_and(|at| at <= now) {
                device.handle_timeout(now, out);
            }
        });
    }

    /// Handles one packet that leaves a link.
    fn deliver(&mut self, index: usize) {
        let port = &mut self.ports[index];
        let Some(departure) = port.link.poll_departure(self.now) else {
            return self.rearm_port(index);
        };
        let (to, to_port) = (port.to, port.to_port);
        let (entered, slot) = port
            .held
            .take(departure.ticket)
            .expect("every packet that a link holds is kept");
        let packet = self.packets.get(slot);
        port.tally
            .departed(entered, departure.at, packet.ip_len(), port.link.config());
        self.trace.instant(departure.at);
        self.trace.word(index as u64);
        self.trace.word(departure.ticket.index());
        if let Some(corruption) = departure.corruption {
            if let Body::Bytes(_, id) = packet.body {
                corruption.apply(self.buffers.bytes_mut(id));
            } else {
                // Its checksum is wrong.
                self.packets.remove(slot);
                return self.rearm_port(index);
            }
        }
        self.rearm_port(index);
        if departure.duplicated {
            let mut copy = *self.packets.get(slot);
            if let Body::Bytes(header, id) = copy.body {
                copy.body = Body::Bytes(header, self.buffers.duplicate(id));
            }
            let copy = self.packets.insert(copy);
            self.hand_over(to, to_port, copy);
        }
        self.hand_over(to, to_port, slot);
    }

    fn hand_over(&mut self, to: usize, port: usize, slot: Slot) {
        match self.nodes[to].kind {
            Kind::Router => return self.send(to, OutputPort::Routed, slot),
            Kind::Host { .. } if node_of(self.packets.get(slot).destination) != Some(to) => {
                self.counts.misaddressed += 1;
            }
            Kind::Host { .. } | Kind::Gateway { .. } => {
                self.counts.delivered += 1;
                let packet = *self.packets.get(slot);
                self.drive_index(to, |device, now, out| {
                    device.handle_packet(now, port, &packet, out);
                });
            }
        }
        self.discard(slot);
    }

    /// A packet has been consumed or dropped.
    fn discard(&mut self, slot: Slot) {
        self.buffers.free(self.packets.remove(slot));
    }

    /// `None` if the node is a router.
    fn drive_index<R>(
        &mut self,
        index: usize,
        act: impl FnOnce(&mut D, Instant, &mut DeviceOutput<'_>) -> R,
    ) -> Option<R> {
        let mut sent = std::mem::take(&mut self.outgoing);
        let mut out = DeviceOutput {
            address: self.address(MeshNode(index)),
            buffers: &mut self.buffers,
            packets: &mut self.packets,
            sent: &mut sent,
        };
        let device = self.nodes[index].kind.device_mut()?;
        let result = act(device, self.now, &mut out);
        for (output, slot) in sent.drain(..) {
            self.counts.sent += 1;
            self.send(index, output, slot);
        }
        self.outgoing = sent;
        self.rearm_device(index);
        Some(result)
    }

    /// Handles a packet from a node.
    fn send(&mut self, node: usize, output: OutputPort, slot: Slot) {
        let packet = self.packets.get_mut(slot);
        let node = &self.nodes[node];
        let number = match output {
            OutputPort::Port(number) => Some(number),
            OutputPort::Routed => node_of(packet.destination)
                .and_then(|destination| node.routes.get(destination))
                .filter(|&&number| number != NO_ROUTE)
                .map(|&number| usize::from(number)),
        };
        let Some(&index) = number.and_then(|number| node.ports.get(number)) else {
            self.counts.unconnected += 1;
            return self.discard(slot);
        };
        let port = &mut self.ports[index];
        if packet.length() > port.mtu {
            self.counts.too_long += 1;
            return self.discard(slot);
        }
        if packet.ecn == Ecn::Capable
            && let Some(mark_above) = port.mark_above
            && port.link.queue(self.now).packets >= u64::from(mark_above)
        {
            packet.ecn = Ecn::Congestion;
            port.tally.marked();
        }
        self.trace.instant(self.now);
        self.trace.word(index as u64);
        for word in packet.digest() {
            self.trace.word(word);
        }
        if let Some((classes, _)) = &mut port.classes {
            let waiting = Waiting {
                entered: self.now,
                slot,
                bytes: packet.ip_len().get(),
            };
            let dropped = classes.push(packet.source, waiting);
            let reason = dropped.map(|_| DropReason::Buffer);
            port.tally.arrived(self.now, reason);
            if let Some(slot) = dropped {
                self.discard(slot);
            }
            return self.serve_classes(index);
        }
        let was_idle = port.link.held_packets() == 0;
        match port.link.arrive(self.now, packet.ip_len()) {
            Arrival::Accepted(ticket) => {
                port.tally.arrived(self.now, None);
                port.held.put(ticket, (self.now, slot));
            }
            Arrival::Dropped(reason) => {
                port.tally.arrived(self.now, Some(reason));
                self.buffers.free(self.packets.remove(slot));
            }
        }
        // A link with packets keeps its next departure, unless this one overtakes.
        let config = port.link.config();
        if was_idle || config.jitter_overtakes || config.reorder.probability.get() > 0.0 {
            self.rearm_port(index);
        }
    }

    /// The link is free, or may be: the class whose turn it is sends.
    fn serve_classes(&mut self, index: usize) {
        let port = &mut self.ports[index];
        let Some((classes, timer)) = &mut port.classes else {
            return;
        };
        while classes.busy_until <= self.now
            && let Some(next) = classes.pop()
        {
            let config = port.link.config();
            let len = ByteCount::new(next.bytes);
            let own = config
                .rate
                .map(|rate| rate.transmission_time_ceil(config.counted(len)));
            classes.busy_until = self.now + own.unwrap_or_default();
            match port.link.arrive(self.now, len) {
                Arrival::Accepted(ticket) => port.held.put(ticket, (next.entered, next.slot)),
                Arrival::Dropped(_) => {
                    port.tally.lost();
                    self.buffers.free(self.packets.remove(next.slot));
                }
            }
        }
        let next = (!classes.is_empty()).then_some(classes.busy_until);
        self.queue.set(*timer, next);
        self.rearm_port(index);
    }

    fn rearm_device(&mut self, index: usize) {
        let (Kind::Host { device, timer } | Kind::Gateway { device, timer }) =
            &self.nodes[index].kind
        else {
            return;
        };
        let at = device.poll_timeout().map(|at| at.max(self.now));
        self.queue.set(*timer, at);
    }

    fn rearm_port(&mut self, index: usize) {
        let port = &self.ports[index];
        let at = port.link.poll_timeout().map(|at| at.max(self.now));
        self.queue.set(port.source, at);
    }
}

/// The address of node 0.
const FIRST_ADDRESS: u32 = 10 << 24;

/// The node with this address; it may not exist.
const fn node_of(address: Ipv4Addr) -> Option<usize> {
    match address.to_bits().checked_sub(FIRST_ADDRESS) {
        Some(index) => Some(index as usize),
        None => None,
    }
}

const fn port_index(link: MeshLink, direction: Direction) -> usize {
    2 * link.0 + matches!(direction, Direction::Backward) as usize
}

impl<D> Kind<D> {
    const fn device(&self) -> Option<&D> {
        match self {
            Self::Router => None,
            Self::Host { device, .. } | Self::Gateway { device, .. } => Some(device),
        }
    }

    const fn device_mut(&mut self) -> Option<&mut D> {
        match self {
            Self::Router => None,
            Self::Host { device, .. } | Self::Gateway { device, .. } => Some(device),
        }
    }
}
