//! The IP packets of one tenant that wait for one path: a queue per flow, served in turns, with CoDel
//! on each (RFC 8290).
//!
//! Flows that begin go first, so that short ones do not wait behind long ones. This module only says that a packet
//! is to be marked; the caller marks it.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use keiro_units::Instant;

use super::{
    FirstPacket,
    codel::{Codel, CodelDecision},
};
use crate::{id::AppId, wire::PacketOrder};

/// Queues that flows are spread over by their hash (RFC 8290 §5.2.4).
pub(super) const FLOWS: u32 = 1024;
/// Bytes that a flow may send in its turn (RFC 8290 §5.2.3).
const QUANTUM: i64 = 1514;
/// Packets that one overflow takes from the longest flow at most: looking for it costs more than
/// dropping (RFC 8290 §4.1).
const BATCH: usize = 64;
/// Memory of a packet beside its bytes. It is counted so that tiny packets cannot fill the memory.
pub(super) const PACKET_OVERHEAD: u64 = 96;

/// The place of a packet in a flow that uses several paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueuedOrder {
    pub(crate) order: PacketOrder,
    /// How much longer another path of the flow takes: that long a packet waits here before it arrives later than it
    /// would there, so CoDel does not count it.
    pub(crate) allowed_wait: Duration,
}

/// What a packet that comes waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlowBacklog {
    /// Memory of what waits of its own flow.
    pub(crate) own: u64,
    /// Queues of flows that take turns with it.
    pub(crate) others: u64,
}

/// An IP packet that waits.
#[derive(Debug)]
pub(super) struct QueuedPacket {
    pub(super) app: AppId,
    pub(super) flow_hash: u32,
    pub(super) ecn: u8,
    pub(super) at: Instant,
    pub(super) order: Option<QueuedOrder>,
    pub(super) data: Vec<u8>,
}

impl QueuedPacket {
    /// Memory that it takes.
    pub(super) fn cost(&self) -> u64 {
        self.data.capacity() as u64 + PACKET_OVERHEAD
    }

    pub(super) fn as_first(&self) -> FirstPacket {
        FirstPacket {
            len: self.data.len(),
            ecn: self.ecn,
            is_ordered: self.order.is_some(),
        }
    }

    /// How long it has waited as CoDel counts it.
    fn sojourn(&self, now: Instant) -> Duration {
        let waited = now.saturating_duration_since(self.at);
        let allowed = self.order.map_or(Duration::ZERO, |of| of.allowed_wait);
        waited.saturating_sub(allowed)
    }

    /// It may be marked instead of dropped: its ECN bits say so.
    fn is_ect(&self) -> bool {
        self.ecn & 3 != 0
    }
}

/// A packet whose turn it is.
#[derive(Debug)]
pub(super) struct DequeuedPacket {
    pub(super) packet: QueuedPacket,
    /// It waited long and is to get a CE mark.
    pub(super) marked: bool,
}

#[derive(Debug)]
struct Flow {
    packets: VecDeque<QueuedPacket>,
    bytes: u64,
    deficit: i64,
    codel: Codel,
}

/// The flows of one tenant on one path that have something, or had a moment ago.
#[derive(Debug, Default)]
pub(super) struct Flows {
    flows: BTreeMap<u32, Flow>,
    fresh: VecDeque<u32>,
    old: VecDeque<u32>,
    /// Memory of everything that waits.
    cost: u64,
    /// Packets that CoDel dropped since they were last asked for, and their memory.
    pub(super) delayed: u64,
}

impl Flows {
    pub(super) fn cost(&self) -> u64 {
        self.cost
    }

    pub(super) fn len(&self) -> usize {
        self.flows.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.cost == 0
    }

    /// What a packet of the queue `bucket` that comes next waits for here.
    pub(super) fn backlog(&self, bucket: u32) -> FlowBacklog {
        let own = self.flows.get(&bucket).map(|flow| flow.bytes);
        FlowBacklog {
            own: own.unwrap_or(0),
            others: (self.flows.len() - usize::from(own.is_some())) as u64,
        }
    }

    pub(super) fn push(&mut self, packet: QueuedPacket) {
        let bucket = packet.flow_hash % FLOWS;
        self.cost += packet.cost();
        let flow = self.flows.entry(bucket).or_insert_with(|| {
            self.fresh.push_back(bucket);
            Flow {
                packets: VecDeque::new(),
                bytes: 0,
                deficit: QUANTUM,
                codel: Codel::default(),
            }
        });
        flow.bytes += packet.cost();
        flow.packets.push_back(packet);
    }

    /// Drops from the head of the longest flow, half of it at most; how many.
    pub(super) fn drop_longest(&mut self) -> u64 {
        let longest = self.flows.values_mut().max_by_key(|flow| flow.bytes);
        let Some(flow) = longest else { return 0 };
        let count = flow.packets.len().div_ceil(2).min(BATCH);
        for packet in flow.packets.drain(..count) {
            flow.bytes -= packet.cost();
            self.cost -= packet.cost();
        }
        count as u64
    }

    /// The packet whose turn it is.
    pub(super) fn pop(&mut self, now: Instant) -> Option<DequeuedPacket> {
        loop {
            let is_fresh = !self.fresh.is_empty();
            let list = if is_fresh {
                &mut self.fresh
            } else {
                &mut self.old
            };
            let bucket = *list.front()?;
            let flow = self.flows.get_mut(&bucket).expect("a listed flow exists");
            if flow.deficit <= 0 {
                flow.deficit += QUANTUM;
                list.pop_front();
                self.old.push_back(bucket);
                continue;
            }
            if let Some(taken) = flow.pop(now, &mut self.cost, &mut self.delayed) {
                flow.deficit -= taken.packet.data.len() as i64;
                return Some(taken);
            }
            list.pop_front();
            // A flow that begins again at once must wait for its turn like the others (RFC 8290 §4.2).
            if is_fresh && !self.old.is_empty() {
                self.old.push_back(bucket);
            } else {
                self.flows.remove(&bucket);
            }
        }
    }

    pub(super) fn check_invariants(&self) {
        let mut cost = 0;
        for flow in self.flows.values() {
            let bytes: u64 = flow.packets.iter().map(QueuedPacket::cost).sum();
            assert_eq!(flow.bytes, bytes, "bytes of a flow");
            cost += bytes;
        }
        assert_eq!(self.cost, cost, "memory of flows");
        let listed = self.fresh.len() + self.old.len();
        assert_eq!(self.flows.len(), listed, "every flow takes turns");
    }

    /// Takes what waits of an application in one queue, the oldest first.
    pub(super) fn take_flow(&mut self, bucket: u32, app: AppId) -> Vec<QueuedPacket> {
        let Some(flow) = self.flows.get_mut(&bucket) else {
            return Vec::new();
        };
        let packets = std::mem::take(&mut flow.packets).into_iter();
        let (taken, left): (Vec<_>, Vec<_>) = packets.partition(|packet| packet.app == app);
        let bytes: u64 = taken.iter().map(QueuedPacket::cost).sum();
        flow.packets = left.into();
        flow.bytes -= bytes;
        self.cost -= bytes;
        // An empty queue goes at its next turn.
        taken
    }

    /// Everything that waits, in no particular order.
    pub(super) fn take_all(&mut self) -> Vec<QueuedPacket> {
        self.cost = 0;
        self.fresh.clear();
        self.old.clear();
        let flows = std::mem::take(&mut self.flows).into_values();
        flows.flat_map(|flow| flow.packets).collect()
    }
}

impl Flow {
    fn pop(&mut self, now: Instant, cost: &mut u64, delayed: &mut u64) -> Option<DequeuedPacket> {
        loop {
            let Some(packet) = self.packets.pop_front() else {
                self.codel.on_empty();
                return None;
            };
            self.bytes -= packet.cost();
            *cost -= packet.cost();
            let sojourn = packet.sojourn(now);
            match self.codel.on_dequeue(now, sojourn, self.packets.is_empty()) {
                CodelDecision::Pass => {
                    return Some(DequeuedPacket {
                        packet,
                        marked: false,
                    });
                }
                CodelDecision::Signal if packet.is_ect() => {
                    return Some(DequeuedPacket {
                        packet,
                        marked: true,
                    });
                }
                CodelDecision::Signal => *delayed += 1,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn packet(flow: u32, len: usize, ms: u64) -> QueuedPacket {
        QueuedPacket {
            app: AppId(1),
            flow_hash: flow,
            ecn: 0,
            at: at(ms),
            order: None,
            data: vec![0; len],
        }
    }

    #[test]
    fn flows_share_by_bytes() {
        let mut flows = Flows::default();
        for _ in 0..100 {
            flows.push(packet(1, 1500, 0));
            flows.push(packet(2, 500, 0));
            flows.push(packet(2, 500, 0));
            flows.push(packet(2, 500, 0));
        }
        let mut bytes = [0; 3];
        for _ in 0..100 {
            let taken = flows.pop(at(1)).expect("much waits");
            bytes[taken.packet.flow_hash as usize] += taken.packet.data.len();
        }
        assert!(bytes[1].abs_diff(bytes[2]) <= 3000, "{bytes:?}");
    }

    #[test]
    fn new_flows_go_first() {
        let mut flows = Flows::default();
        for _ in 0..50 {
            flows.push(packet(1, 1500, 0));
        }
        for _ in 0..4 {
            flows.pop(at(1));
        }
        flows.push(packet(2, 100, 1));
        let taken = flows.pop(at(1)).expect("much waits");
        assert_eq!(taken.packet.flow_hash, 2);
    }

    #[test]
    fn codel_drops_from_or_marks_a_standing_queue() {
        for ecn in [0, 2] {
            let mut flows = Flows::default();
            let mut marked = 0;
            for ms in 0..2000 {
                for _ in 0..2 {
                    let packet = QueuedPacket {
                        ecn,
                        ..packet(1, 1000, ms)
                    };
                    flows.push(packet);
                }
                let taken = flows.pop(at(ms)).expect("much waits");
                marked += u64::from(taken.marked);
            }
            let signals = if ecn == 0 { flows.delayed } else { marked };
            assert!(signals > 20, "{signals}");
            assert_eq!(flows.delayed > 0, ecn == 0);
        }
    }

    #[test]
    fn codel_spares_short_and_single_packet_queues() {
        let mut flows = Flows::default();
        for ms in 0..1000 {
            flows.push(packet(1, 1000, ms));
            // One packet that waits long is not a queue.
            let taken = flows.pop(at(ms) + Duration::from_millis(50));
            assert!(taken.is_some_and(|taken| !taken.marked));
        }
        assert_eq!((flows.delayed, flows.cost()), (0, 0));
    }

    #[test]
    fn overflow_drops_from_the_longest_flow() {
        let mut flows = Flows::default();
        for _ in 0..10 {
            flows.push(packet(1, 1000, 0));
        }
        flows.push(packet(2, 1000, 0));
        let before = flows.cost();
        assert_eq!(flows.drop_longest(), 5);
        assert_eq!(before - flows.cost(), 5 * (1000 + PACKET_OVERHEAD));
        let rest: Vec<u32> = flows.take_all().iter().map(|p| p.flow_hash).collect();
        assert_eq!(rest.iter().filter(|flow| **flow == 2).count(), 1);
    }
}
