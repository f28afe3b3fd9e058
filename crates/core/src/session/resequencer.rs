//! Resequencing: IP packets of a flow that come over several paths are delivered in order.
//!
//! A packet that comes before an earlier one is held. It is delivered when that one is there, when that one cannot come
//! any more, or after the time that the sender has set, whichever is first. An earlier packet cannot come any more when
//! every path of the flow has brought a later one, since a path keeps its packets in order. A packet that comes after
//! all is delivered at once. The sender's side is `flow_order`.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use keiro_units::Instant;

use crate::{id::TenantId, wire::PacketOrder};

/// Flows of one peer of which the order is kept; then the one that began first is forgotten. Ours: twice what a
/// sender has.
const FLOWS_MAX: usize = 1024;
/// Memory of packets that are held; then the packet goes that would be held no longer than the others, with what waits
/// before it. Ours: 50 ms of 600 Mbit/s.
const HELD_BYTES_MAX: u64 = 4 << 20;
/// Memory of a packet that is held beside its bytes: its entries in two maps.
const PACKET_OVERHEAD: u64 = 192;
/// Memory of a flow: its entry, and what it knows of eight paths.
const FLOW_OVERHEAD: u64 = 512;
/// Paths of a flow of which the last packet is known; packets of others are waited for in vain. Ours.
const PATHS_MAX: usize = 8;
/// No packet is held longer, whatever the sender says. Ours: above what this gateway sets itself.
const HOLD_MAX: Duration = Duration::from_millis(500);

/// A flow, in the order in which flows begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FlowId {
    flow: u32,
    tenant: TenantId,
}

/// What has happened to the packets of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OrderCounts {
    pub(crate) held_packets: u64,
    pub(crate) hold_time: Duration,
    pub(crate) longest_hold: Duration,
    pub(crate) lost_gaps: u64,
    pub(crate) expired_gaps: u64,
    pub(crate) displaced_gaps: u64,
    pub(crate) late_packets: u64,
}

/// A packet as it arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OrderedPacket<'a> {
    pub(crate) tenant: TenantId,
    pub(crate) order: PacketOrder,
    /// The path that it came over, as the peer numbers it.
    pub(crate) path: u8,
    /// The two ECN bits of its IP header.
    pub(crate) ecn: u8,
    pub(crate) data: &'a [u8],
}

/// A packet that was held.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HeldPacket {
    pub(crate) tenant: TenantId,
    pub(crate) ecn: u8,
    pub(crate) data: Vec<u8>,
}

/// What becomes of a packet that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It is delivered at once.
    Deliver,
    /// It was held, or is delivered with others that were: [`Resequencer::poll`] returns it.
    Held,
}

#[derive(Debug)]
struct Held {
    since: Instant,
    due: Instant,
    ecn: u8,
    data: Vec<u8>,
}

impl Held {
    fn memory(&self) -> u64 {
        self.data.len() as u64 + PACKET_OVERHEAD
    }
}

/// Why a packet that is missing is waited for no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GivenUp {
    Lost,
    Expired,
    Displaced,
}

#[derive(Debug, Default)]
struct Flow {
    /// All packets below were delivered or given up.
    next: u32,
    /// The last packet of each path.
    passed: Vec<(u8, u32)>,
    /// The paths of the flow, and the packet that said so.
    paths: (u32, u32),
    held: BTreeMap<u32, Held>,
}

/// The order of all flows of one peer.
#[derive(Debug, Default)]
pub(crate) struct Resequencer {
    flows: BTreeMap<FlowId, Flow>,
    /// When packets that are held are delivered at the latest.
    due: BTreeSet<(Instant, FlowId, u32)>,
    held_bytes: u64,
    released: VecDeque<HeldPacket>,
    /// Of tenants that are configured, and so bounded by their number.
    counts: BTreeMap<TenantId, OrderCounts>,
}

impl Resequencer {
    /// A packet arrived, whose tenant is configured.
    pub(crate) fn on_packet(&mut self, now: Instant, packet: OrderedPacket<'_>) -> Arrival {
        let id = FlowId {
            flow: packet.order.flow,
            tenant: packet.tenant,
        };
        let number = packet.order.number;
        if !self.flows.contains_key(&id) {
            self.make_room_for_flow(now);
        }
        let flow = self.flows.entry(id).or_default();
        flow.on_passed(packet.path, number);
        if number >= flow.paths.1 {
            flow.paths = (packet.order.paths, number);
        }
        if number < flow.next {
            self.counts.entry(id.tenant).or_default().late_packets += 1;
            return Arrival::Deliver;
        }
        if number == flow.next && flow.held.is_empty() {
            flow.next += 1;
            return Arrival::Deliver;
        }
        if flow.held.contains_key(&number) {
            // A peer that repeats a number is broken. It concerns this flow alone.
            return Arrival::Deliver;
        }
        let hold = Duration::from_millis(packet.order.hold_ms.into()).min(HOLD_MAX);
        let held = Held {
            since: now,
            due: now + hold,
            ecn: packet.ecn,
            data: packet.data.to_vec(),
        };
        self.held_bytes += held.memory();
        self.due.insert((held.due, id, number));
        flow.held.insert(number, held);
        self.release_known(now, id);
        self.keep_bound(now);
        Arrival::Held
    }

    /// The next packet that is held no longer.
    pub(crate) fn poll(&mut self) -> Option<HeldPacket> {
        self.released.pop_front()
    }

    /// Releases packets that have been held as long as the sender has set.
    pub(crate) fn on_timeout(&mut self, now: Instant) {
        while let Some(&(due, id, number)) = self.due.first().filter(|(due, ..)| *due <= now) {
            debug_assert!(due <= now, "only what is due is released");
            self.release_up_to(now, id, number, GivenUp::Expired);
        }
    }

    /// When the next packet is held no longer.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due.first().map(|(due, ..)| *due)
    }

    /// Forgets all flows: the peer has restarted. What was held is released.
    pub(crate) fn on_peer_restarted(&mut self, now: Instant) {
        while !self.flows.is_empty() {
            self.forget_oldest(now);
        }
    }

    pub(crate) fn memory(&self) -> u64 {
        self.held_bytes + self.flows.len() as u64 * FLOW_OVERHEAD
    }

    /// What has happened to packets of a tenant.
    pub(crate) fn counts(&self, tenant: TenantId) -> OrderCounts {
        self.counts.get(&tenant).copied().unwrap_or_default()
    }

    /// A tenant is no longer configured: what is held of it is dropped.
    pub(crate) fn forget_tenant(&mut self, tenant: TenantId) {
        self.counts.remove(&tenant);
        let Self {
            flows,
            due,
            held_bytes,
            ..
        } = self;
        flows.retain(|id, flow| {
            let is_kept = id.tenant != tenant;
            for (number, held) in flow.held.iter().filter(|_| !is_kept) {
                due.remove(&(held.due, *id, *number));
                *held_bytes -= held.memory();
            }
            is_kept
        });
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
        assert!(self.flows.len() <= FLOWS_MAX, "flows in order are bounded");
        assert!(
            self.held_bytes <= HELD_BYTES_MAX,
            "memory of packets that are held is bounded"
        );
        let mut bytes = 0;
        let mut count = 0;
        for (id, flow) in &self.flows {
            assert!(flow.passed.len() <= PATHS_MAX, "paths of a flow");
            for (number, held) in &flow.held {
                assert!(*number > flow.next, "what is next is not held");
                assert!(
                    self.due.contains(&(held.due, *id, *number)),
                    "what is held is released in time"
                );
                assert!(held.due <= held.since + HOLD_MAX, "holds are bounded");
                bytes += held.memory();
                count += 1;
            }
        }
        assert_eq!(self.held_bytes, bytes, "memory of packets that are held");
        assert_eq!(self.due.len(), count, "only what is held is released");
    }

    /// Releases what need not be held: what is next, and what waits for packets that cannot come any more.
    fn release_known(&mut self, now: Instant, id: FlowId) {
        let Some(flow) = self.flows.get(&id) else {
            return;
        };
        let passed = flow.passed_by_all();
        let first = flow.held.keys().next().copied();
        let reaches = passed.filter(|passed| first.is_some_and(|first| first <= *passed));
        match reaches {
            Some(passed) => self.release_up_to(now, id, passed, GivenUp::Lost),
            None => self.release_next(now, id),
        }
    }

    /// Releases packets up to `number`, and those that follow. Those that are missing are given up.
    fn release_up_to(&mut self, now: Instant, id: FlowId, number: u32, why: GivenUp) {
        while let Some(flow) = self.flows.get_mut(&id)
            && let Some(first) = flow.held.first_entry()
            && *first.key() <= number
        {
            let (first, held) = first.remove_entry();
            let missing = u64::from(first - flow.next);
            flow.next = first + 1;
            self.on_given_up(id.tenant, missing, why);
            self.release(now, id, first, held);
        }
        self.release_next(now, id);
    }

    fn release_next(&mut self, now: Instant, id: FlowId) {
        while let Some(flow) = self.flows.get_mut(&id)
            && let Some(first) = flow.held.first_entry()
            && *first.key() == flow.next
        {
            let (first, held) = first.remove_entry();
            flow.next = first + 1;
            self.release(now, id, first, held);
        }
    }

    fn release(&mut self, now: Instant, id: FlowId, number: u32, held: Held) {
        self.due.remove(&(held.due, id, number));
        self.held_bytes -= held.memory();
        let waited = now.saturating_duration_since(held.since);
        if !waited.is_zero() {
            let counts = self.counts.entry(id.tenant).or_default();
            counts.held_packets += 1;
            counts.hold_time += waited;
            counts.longest_hold = counts.longest_hold.max(waited);
        }
        self.released.push_back(HeldPacket {
            tenant: id.tenant,
            ecn: held.ecn,
            data: held.data,
        });
    }

    fn on_given_up(&mut self, tenant: TenantId, missing: u64, why: GivenUp) {
        if missing == 0 {
            return;
        }
        let counts = self.counts.entry(tenant).or_default();
        match why {
            GivenUp::Lost => counts.lost_gaps += 1,
            GivenUp::Expired => counts.expired_gaps += 1,
            GivenUp::Displaced => counts.displaced_gaps += 1,
        }
    }

    fn keep_bound(&mut self, now: Instant) {
        while self.held_bytes > HELD_BYTES_MAX
            && let Some(&(_, id, number)) = self.due.first()
        {
            self.release_up_to(now, id, number, GivenUp::Displaced);
        }
    }

    fn make_room_for_flow(&mut self, now: Instant) {
        while self.flows.len() >= FLOWS_MAX {
            self.forget_oldest(now);
        }
    }

    /// Forgets the flow that began first, and releases what is held of it.
    fn forget_oldest(&mut self, now: Instant) {
        let Some((&id, _)) = self.flows.first_key_value() else {
            return;
        };
        self.release_up_to(now, id, u32::MAX, GivenUp::Displaced);
        self.flows.remove(&id);
    }
}

impl Flow {
    /// A packet has come over `path`.
    fn on_passed(&mut self, path: u8, number: u32) {
        if let Some((_, last)) = self.passed.iter_mut().find(|(of, _)| *of == path) {
            *last = number.max(*last);
        } else if self.passed.len() < PATHS_MAX {
            self.passed.push((path, number));
        }
    }

    /// Every path of the flow has brought this packet or a later one; `None`: one of them has brought none.
    fn passed_by_all(&self) -> Option<u32> {
        let paths = (0..PacketOrder::PATHS_END).filter(|path| self.paths.0 >> path & 1 == 1);
        let passed = paths.map(|path| {
            let of_path = self.passed.iter().find(|(of, _)| *of == path);
            of_path.map(|(_, number)| *number)
        });
        passed.collect::<Option<Vec<u32>>>()?.into_iter().min()
    }
}

#[cfg(test)]
mod tests;
