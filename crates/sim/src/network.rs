//! Nodes joined by links, and the event loop of virtual time.

use keiro_link::{Arrival, Counters, Link, LinkConfig};
use keiro_units::Instant;

use crate::{
    in_transit::InTransit,
    node::{Goal, Interface, Node, Outbox},
    packet::{Slab, Slot},
    pcap::Capture,
    queue::{EventQueue, Source},
    seed,
    trace::TraceHash,
};

/// Events at one instant after which the run counts as a livelock. Ours: far above the events of any topology
/// here.
pub const EVENTS_PER_INSTANT_MAX: u64 = 1 << 20;

/// Hosts, links and packets in flight. The same seed and calls give the same run.
#[derive(Debug)]
pub struct Network<N> {
    seed: u64,
    now: Instant,
    queue: EventQueue,
    /// Indexed by [`Source`].
    sources: Vec<What>,
    slab: Slab,
    nodes: Vec<N>,
    sites: Vec<Site>,
    wires: Vec<Wire>,
    /// Output buffer of the node that is being driven.
    outbox: Vec<(usize, Slot)>,
    trace: TraceHash,
    counts: Counts,
    events_at_now: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeId(usize);

/// Identifies a link, which has two directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkId(usize);

/// Direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// From the end that was named first to the other.
    Forward,
    /// From the end that was named second to the first.
    Backward,
}

/// Parameters of [`Network::connect`] for a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpec {
    /// From the first end to the second.
    pub forward: LinkConfig,
    /// From the second end to the first.
    pub backward: LinkConfig,
    /// Longer IP packets are dropped silently, as with filtered ICMP; in bytes.
    pub mtu: u16,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Stop {
    /// The goal was reached.
    Goal,
    /// The time limit was reached; events remain.
    Time,
    /// There are no further events.
    Idle,
    /// Livelock: [`EVENTS_PER_INSTANT_MAX`] events happened at one instant.
    Livelock,
}

/// Counters of the whole network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Events: timers of nodes, and packets that left a link.
    pub events: u64,
    /// Packets that nodes sent.
    pub sent: u64,
    /// Packets that nodes received, duplicates included.
    pub delivered: u64,
    /// Packets longer than their link's MTU.
    pub too_long: u64,
    /// Packets whose destination is not the address of the host at the end of the link.
    pub misaddressed: u64,
    /// Packets sent on an interface without a link.
    pub unconnected: u64,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Node(usize),
    Wire(usize),
}

/// What the network knows about a node.
#[derive(Debug)]
struct Site {
    timer: Source,
    interfaces: Vec<Interface>,
    /// By interface: the outgoing wire.
    wires: Vec<Option<usize>>,
    captures: Vec<Option<Capture>>,
}

/// One direction of a link with its packets.
#[derive(Debug)]
struct Wire {
    link: Link,
    source: Source,
    mtu: u16,
    to: (usize, usize),
    held: InTransit<Slot>,
}

impl<N: Node> Network<N> {
    /// An empty network at time zero. `seed` determines the links' randomness.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            now: Instant::ZERO,
            queue: EventQueue::new(),
            sources: Vec::new(),
            slab: Slab::default(),
            nodes: Vec::new(),
            sites: Vec::new(),
            wires: Vec::new(),
            outbox: Vec::new(),
            trace: TraceHash::new(),
            counts: Counts::default(),
            events_at_now: 0,
        }
    }

    /// Adds a node without interfaces.
    pub fn add_node(&mut self, node: N) -> NodeId {
        let id = self.nodes.len();
        let timer = self.add_source(What::Node(id));
        self.nodes.push(node);
        self.sites.push(Site {
            timer,
            interfaces: Vec::new(),
            wires: Vec::new(),
            captures: Vec::new(),
        });
        self.rearm_node(id);
        NodeId(id)
    }

    /// Adds an interface to a node and returns its index.
    pub fn add_interface(&mut self, node: NodeId, interface: Interface) -> usize {
        let site = &mut self.sites[node.0];
        site.interfaces.push(interface);
        site.wires.push(None);
        site.captures.push(None);
        site.interfaces.len() - 1
    }

    /// Connects two interfaces, each given by node and index.
    ///
    /// # Panics
    ///
    /// If one of them is connected already or does not exist.
    pub fn connect(&mut self, a: (NodeId, usize), b: (NodeId, usize), spec: LinkSpec) -> LinkId {
        let id = LinkId(self.wires.len() / 2);
        for (from, to, config) in [(a, b, spec.forward), (b, a, spec.backward)] {
            let index = self.wires.len();
            let source = self.add_source(What::Wire(index));
            let from = &mut self.sites[from.0.0].wires[from.1];
            assert!(from.is_none(), "an interface has one link");
            *from = Some(index);
            self.wires.push(Wire {
                link: Link::new(config, seed::derive(self.seed, "wire", index as u64)),
                source,
                mtu: spec.mtu,
                to: (to.0.0, to.1),
                held: InTransit::new(),
            });
        }
        id
    }

    /// The present virtual time.
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// The nodes, by id.
    pub fn nodes(&self) -> &[N] {
        &self.nodes
    }

    pub fn node(&self, node: NodeId) -> &N {
        &self.nodes[node.0]
    }

    /// Applies a closure to a node now, then sends its output and updates its timer.
    pub fn drive<R>(
        &mut self,
        node: NodeId,
        act: impl FnOnce(&mut N, Instant, &mut Outbox<'_>) -> R,
    ) -> R {
        self.drive_index(node.0, act)
    }

    /// The configuration of one direction of a link.
    pub fn link_config(&self, link: LinkId, direction: Direction) -> LinkConfig {
        *self.wires[wire_index(link, direction)].link.config()
    }

    /// Changes one direction of a link now, see [`Link::apply`].
    pub fn set_link(&mut self, link: LinkId, direction: Direction, config: LinkConfig) {
        let index = wire_index(link, direction);
        let wire = &mut self.wires[index];
        for ticket in wire.link.apply(self.now, config) {
            if let Some(slot) = wire.held.take(ticket) {
                self.slab.remove(slot);
            }
        }
        self.trace.instant(self.now);
        self.trace.word(!(index as u64));
        self.rearm_wire(index);
    }

    /// One direction of a link drops longer IP packets from now on.
    pub fn set_mtu(&mut self, link: LinkId, direction: Direction, mtu: u16) {
        self.wires[wire_index(link, direction)].mtu = mtu;
    }

    /// Counters of one direction of a link.
    pub fn link_counters(&self, link: LinkId, direction: Direction) -> &Counters {
        self.wires[wire_index(link, direction)].link.counters()
    }

    /// Changes the address of an interface, as a provider or a NAT does. Packets in flight to the old one
    /// will not be received.
    pub fn set_interface(&mut self, node: NodeId, interface: usize, to: Interface) {
        self.sites[node.0].interfaces[interface] = to;
    }

    /// What an interface is.
    pub fn interface(&self, node: NodeId, interface: usize) -> Interface {
        self.sites[node.0].interfaces[interface]
    }

    /// Captures packets of an interface in both directions from now on; restarts a running capture.
    pub fn capture(&mut self, node: NodeId, interface: usize) {
        self.sites[node.0].captures[interface] = Some(Capture::new());
    }

    /// The capture at an interface so far; `None` if there is none.
    pub fn captured(&self, node: NodeId, interface: usize) -> Option<&Capture> {
        self.sites[node.0].captures[interface].as_ref()
    }

    /// A hash of all packets entering and leaving links, in order and with time.
    pub const fn trace_hash(&self) -> u64 {
        self.trace.value()
    }

    /// Counters of the whole network.
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    pub fn packets_under_way(&self) -> usize {
        self.slab.in_use()
    }

    /// Runs until the goal is reached, or `until` (events at that instant included).
    ///
    /// Afterwards the time is that of the last event, or `until` if the goal was not reached.
    pub fn run(&mut self, until: Instant, goal: &mut impl Goal<N>) -> Stop {
        if goal.is_reached(self.now, &self.nodes) {
            return Stop::Goal;
        }
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
                What::Node(index) => self.wake(index),
                What::Wire(index) => self.deliver(index),
            }
            if goal.is_reached(self.now, &self.nodes) {
                return Stop::Goal;
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

    fn add_source(&mut self, what: What) -> Source {
        self.sources.push(what);
        self.queue.add_source()
    }

    fn wake(&mut self, index: usize) {
        self.drive_index(index, |node, now, out| {
            if node.poll_timeout().is_some_and(|at| at <= now) {
                node.handle_timeout(now, out);
            }
        });
    }

    /// Handles one packet that leaves a wire.
    fn deliver(&mut self, index: usize) {
        let wire = &mut self.wires[index];
        let Some(departure) = wire.link.poll_departure(self.now) else {
            return self.rearm_wire(index);
        };
        let (to, interface) = wire.to;
        let slot = wire
            .held
            .take(departure.ticket)
            .expect("every packet that a link holds has its bytes");
        self.rearm_wire(index);
        self.trace.instant(departure.at);
        self.trace.word(index as u64);
        self.trace.word(departure.ticket.index());
        if let Some(corruption) = departure.corruption {
            corruption.apply(&mut self.slab.packet_mut(slot).payload);
            self.trace.bytes(&self.slab.packet(slot).payload);
        }
        if departure.duplicated {
            let copy = self.slab.duplicate(slot);
            self.hand_over(to, interface, copy);
        }
        self.hand_over(to, interface, slot);
    }

    fn hand_over(&mut self, to: usize, interface: usize, slot: Slot) {
        let site = &mut self.sites[to];
        let packet = self.slab.packet(slot);
        let accepted = match site.interfaces[interface] {
            Interface::Transparent => true,
            Interface::Host(address) => address == packet.destination,
        };
        if !accepted {
            self.counts.misaddressed += 1;
            self.slab.remove(slot);
            return;
        }
        self.counts.delivered += 1;
        if let Some(capture) = &mut site.captures[interface] {
            capture.record(self.now, packet);
        }
        let mut packet = self.slab.lend(slot);
        self.drive_index(to, |node, now, out| {
            node.handle_packet(now, interface, &mut packet, out);
        });
        self.slab.give_back(slot, packet);
    }

    fn drive_index<R>(
        &mut self,
        index: usize,
        act: impl FnOnce(&mut N, Instant, &mut Outbox<'_>) -> R,
    ) -> R {
        let mut sent = std::mem::take(&mut self.outbox);
        let mut out = Outbox {
            slab: &mut self.slab,
            interfaces: &self.sites[index].interfaces,
            sent: &mut sent,
        };
        let result = act(&mut self.nodes[index], self.now, &mut out);
        for (interface, slot) in sent.drain(..) {
            self.send(index, interface, slot);
        }
        self.outbox = sent;
        self.rearm_node(index);
        result
    }

    /// Handles a packet from a node.
    fn send(&mut self, node: usize, interface: usize, slot: Slot) {
        self.counts.sent += 1;
        let packet = self.slab.packet(slot);
        let site = &mut self.sites[node];
        if let Some(capture) = &mut site.captures[interface] {
            capture.record(self.now, packet);
        }
        let Some(index) = site.wires[interface] else {
            self.counts.unconnected += 1;
            return self.slab.remove(slot);
        };
        let len = packet.ip_len();
        self.trace.instant(self.now);
        self.trace.word(index as u64);
        self.trace.bytes(&packet.payload);
        let wire = &mut self.wires[index];
        if len.get() > u64::from(wire.mtu) {
            self.counts.too_long += 1;
            return self.slab.remove(slot);
        }
        match wire.link.arrive(self.now, len) {
            Arrival::Accepted(ticket) => wire.held.put(ticket, slot),
            Arrival::Dropped(_) => self.slab.remove(slot),
        }
        self.rearm_wire(index);
    }

    fn rearm_node(&mut self, index: usize) {
        let at = self.nodes[index].poll_timeout().map(|at| at.max(self.now));
        self.queue.set(self.sites[index].timer, at);
    }

    fn rearm_wire(&mut self, index: usize) {
        let wire = &self.wires[index];
        let at = wire.link.poll_timeout().map(|at| at.max(self.now));
        self.queue.set(wire.source, at);
    }
}

impl LinkSpec {
    /// The same in both directions, with Ethernet's MTU of 1500 bytes.
    pub const fn symmetric(config: LinkConfig) -> Self {
        Self {
            forward: config,
            backward: config,
            mtu: 1500,
        }
    }
}

const fn wire_index(link: LinkId, direction: Direction) -> usize {
    2 * link.0 + matches!(direction, Direction::Backward) as usize
}

impl Direction {
    pub const BOTH: [Self; 2] = [Self::Forward, Self::Backward];
}
