//! Paths of flows: which path a packet of a spread application takes.
//!
//! TCP takes packets that overtake each other for losses. A flow of TCP that carries much takes all paths nevertheless,
//! with a place for each packet that lets the peer restore their order ([`FlowOrder`]). Packets of other flows take
//! one path each. Such a flow begins on the path that delivers its first packet first, and goes to a faster one when
//! nothing of it is overtaken. One that carries much moves to the path on which it has more, if all flows that carry
//! much share their path's rate evenly.

use std::{collections::BTreeMap, time::Duration};

use keiro_units::Instant;

use super::{
    flow_order::{FlowChoice, FlowOrder, PathGroup},
    tenant::{FlowKey, QueuedOrder},
};
use crate::{id::PathId, wire::PacketOrder};

/// How often flows are counted, and a flow may move. Ours: several round trips of most paths.
const PERIOD: Duration = Duration::from_secs(1);
/// A flow carries much that sends so many bytes in a period. Ours: a voice call or a screen sends less.
const BULK_BYTES: u64 = 64 << 10;
/// What a flow has on another path is more by this part at least.
const GAIN_MIN: f64 = 1.25;
/// A flow that carries little goes to a path whose delay is shorter by this, and by a quarter. Ours.
const DELAY_GAIN_MIN: Duration = Duration::from_millis(5);
/// Flows whose packets have places, at most; further ones take one path each. Ours: half of those of which a peer
/// keeps the order.
const ORDERED_FLOWS_MAX: usize = 512;

/// A packet of a flow that is to leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowPacket {
    pub(crate) key: FlowKey,
    pub(crate) bytes: usize,
    /// Its flow may use several paths: its transport needs order, which the peer restores.
    pub(crate) may_have_place: bool,
}

/// Where a packet of a flow leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowRoute {
    pub(crate) path: PathId,
    /// What waits of the flow moves from this path with it.
    pub(crate) moved_from: Option<PathId>,
    /// Its place in a flow that uses several paths.
    pub(crate) order: Option<QueuedOrder>,
}

#[derive(Debug)]
struct FlowPath {
    path: PathId,
    /// Bytes of this period.
    bytes: u64,
    is_bulk: bool,
    last_at: Instant,
    moves_from: Instant,
    order: Option<Box<FlowOrder>>,
}

/// The paths of all flows of spread applications to one peer.
#[derive(Debug, Default)]
pub(crate) struct FlowPaths {
    /// Bounded by the queues of flows: 1024 for each tenant and application that has sent in the last period.
    flows: BTreeMap<FlowKey, FlowPath>,
    period_ends: Option<Instant>,
    /// Flows whose packets have places.
    ordered: usize,
    /// The next of these gets this number.
    next_order: u32,
}

impl FlowPaths {
    /// Where the next packet of a flow leaves; `None`: there is no choice.
    pub(crate) fn on_packet(
        &mut self,
        now: Instant,
        packet: FlowPacket,
        choices: &[FlowChoice],
    ) -> Option<FlowRoute> {
        self.count(now);
        let fastest = choices.iter().min_by_key(|choice| choice.arrival)?.path;
        let flow = self.flows.entry(packet.key).or_insert(FlowPath {
            path: fastest,
            bytes: 0,
            is_bulk: false,
            last_at: now,
            moves_from: now,
            order: None,
        });
        flow.bytes += packet.bytes as u64;
        flow.is_bulk |= flow.bytes >= BULK_BYTES;
        let last_at = std::mem::replace(&mut flow.last_at, now);
        if packet.may_have_place
            && let Some(route) = self.on_ordered(now, packet.key, choices)
        {
            return Some(route);
        }
        let flow = self.flows.get(&packet.key)?;
        let (path, is_bulk) = (flow.path, flow.is_bulk);
        let may_move = is_bulk && flow.moves_from <= now;
        let to = match (choices.iter().all(|of| of.path != path), is_bulk) {
            (true, _) => Some(fastest),
            (false, true) if may_move => self.better(path, choices),
            (false, true) => None,
            (false, false) => faster(now, last_at, path, choices),
        };
        if let Some(known) = self.flows.get_mut(&packet.key) {
            if may_move {
                known.moves_from = now + PERIOD;
            }
            known.path = to.unwrap_or(path);
        }
        Some(FlowRoute {
            path: to.unwrap_or(path),
            moved_from: to.map(|_| path),
            order: None,
        })
    }

    /// Where the next packet of a flow leaves that uses several paths, or begins to; `None`: it does not.
    fn on_ordered(
        &mut self,
        now: Instant,
        key: FlowKey,
        choices: &[FlowChoice],
    ) -> Option<FlowRoute> {
        let has_room = self.ordered < ORDERED_FLOWS_MAX;
        let flow = self.flows.get_mut(&key)?;
        if flow.order.is_none() && !(flow.is_bulk && has_room) {
            return None;
        }
        let order = flow.order.as_deref();
        let group = PathGroup::best(choices, |path| order.is_some_and(|of| of.uses(path)));
        if flow.order.is_none() {
            if !group.has_several() {
                return None;
            }
            flow.order = Some(Box::new(FlowOrder::new(now, self.next_order)));
            self.next_order = (self.next_order + 1) % PacketOrder::FLOW_END;
            self.ordered += 1;
        }
        let (path, placed) = flow.order.as_mut()?.on_packet(now, flow.path, &group)?;
        if flow.order.as_ref().is_some_and(|of| of.is_used_up()) {
            flow.order = None;
            self.ordered -= 1;
        }
        flow.path = path;
        Some(FlowRoute {
            path,
            moved_from: None,
            order: Some(placed),
        })
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
        let ordered = self.flows.values().filter(|flow| flow.order.is_some());
        assert_eq!(self.ordered, ordered.count(), "flows with places");
        let latest = self.period_ends.map(|ends| ends + PERIOD);
        assert!(
            self.flows.is_empty() || latest.is_some(),
            "flows are counted in a period"
        );
        for (key, flow) in &self.flows {
            assert!(
                flow.is_bulk || flow.bytes < BULK_BYTES,
                "{key:?}: a flow that has sent much carries much"
            );
            assert!(
                latest.is_none_or(|latest| flow.moves_from <= latest),
                "{key:?}: a flow may move once in a period"
            );
        }
    }

    /// The path on which a flow of `path` that carries much would have more than it has; `None`: there is none.
    fn better(&self, path: PathId, choices: &[FlowChoice]) -> Option<PathId> {
        let own = choices.iter().find(|choice| choice.path == path)?;
        let share = |choice: &FlowChoice, flows: usize| {
            choice.rate.as_bits_per_second() as f64 / flows.max(1) as f64
        };
        let has = share(own, self.bulk_flows(path));
        let others = choices.iter().filter(|choice| choice.path != path);
        let shares =
            others.map(|other| (share(other, self.bulk_flows(other.path) + 1), other.path));
        let (most, other) = shares.max_by(|one, two| one.0.total_cmp(&two.0))?;
        (most > has * GAIN_MIN).then_some(other)
    }

    fn bulk_flows(&self, path: PathId) -> usize {
        let flows = self.flows.values();
        flows
            .filter(|flow| flow.is_bulk && flow.path == path)
            .count()
    }

    /// Begins a period: flows that have sent nothing in the last one are forgotten.
    fn count(&mut self, now: Instant) {
        if *self.period_ends.get_or_insert(now + PERIOD) > now {
            return;
        }
        self.period_ends = Some(now + PERIOD);
        self.flows.retain(|_, flow| {
            flow.is_bulk = flow.bytes >= BULK_BYTES;
            std::mem::take(&mut flow.bytes) > 0
        });
        let ordered = self.flows.values().filter(|flow| flow.order.is_some());
        self.ordered = ordered.count();
    }
}

/// The path to which a flow goes that carries little: it is faster, and what was sent last is not overtaken. `None`:
/// it stays.
fn faster(now: Instant, last_at: Instant, path: PathId, choices: &[FlowChoice]) -> Option<PathId> {
    let own = choices.iter().find(|choice| choice.path == path)?;
    let fastest = choices.iter().min_by_key(|choice| choice.arrival)?;
    let gain = own.arrival.saturating_sub(fastest.arrival);
    let is_worth_it = gain >= DELAY_GAIN_MIN.max(own.arrival / 4);
    let rested = now.saturating_duration_since(last_at);
    (is_worth_it && rested > gain).then_some(fastest.path)
}

#[cfg(test)]
mod tests {
    use keiro_units::Bandwidth;

    use super::*;
    use crate::id::{AppId, TenantId};

    const MS: Duration = Duration::from_millis(1);

    fn choice(path: u8, arrival_ms: u32, mbit: u64) -> FlowChoice {
        FlowChoice {
            path: PathId(path),
            delay: MS * arrival_ms,
            arrival: MS * arrival_ms,
            variation: Duration::ZERO,
            rate: Bandwidth::from_mbit_per_second(mbit),
        }
    }

    fn packet(hash: u32, bytes: usize) -> FlowPacket {
        FlowPacket {
            key: FlowKey::new(TenantId(1), AppId(1), hash),
            bytes,
            may_have_place: false,
        }
    }

    /// Paths of flows that send a full packet every millisecond for `ms` ms.
    fn run(flows: &mut FlowPaths, count: u32, choices: &[FlowChoice], ms: u32) -> Vec<PathId> {
        let mut paths = vec![PathId(0); count as usize];
        for step in 0..ms {
            let now = Instant::ZERO + MS * step;
            for flow in 0..count {
                let route = flows.on_packet(now, packet(flow, 1400), choices).unwrap();
                paths[flow as usize] = route.path;
            }
        }
        paths
    }

    #[test]
    fn flows_that_carry_much_share_paths_by_their_rates() {
        let mut flows = FlowPaths::default();
        let choices = [choice(0, 20, 50), choice(1, 40, 12)];
        let paths = run(&mut flows, 16, &choices, 3000);
        let slow = paths.iter().filter(|path| **path == PathId(1)).count();
        assert!((2..=4).contains(&slow), "{slow} of 16");
    }

    #[test]
    fn one_flow_takes_the_path_with_the_highest_rate_and_stays() {
        let mut flows = FlowPaths::default();
        let choices = [choice(0, 20, 10), choice(1, 40, 100)];
        assert_eq!(run(&mut flows, 1, &choices, 3000), [PathId(1)]);
        // A little more is no reason to move.
        let choices = [choice(0, 20, 110), choice(1, 40, 100)];
        assert_eq!(run(&mut flows, 1, &choices, 3000), [PathId(1)]);
    }

    #[test]
    fn a_thin_flow_stays_on_the_fastest_path_and_leaves_one_that_is_gone() {
        let mut flows = FlowPaths::default();
        let both = [choice(0, 20, 10), choice(1, 40, 100)];
        for step in 0..500 {
            let now = Instant::ZERO + MS * 20 * step;
            let route = flows.on_packet(now, packet(0, 200), &both).unwrap();
            assert_eq!(route.path, PathId(0));
        }
        let now = Instant::ZERO + 10_001 * MS;
        let route = flows.on_packet(now, packet(0, 200), &both[1..]).unwrap();
        assert_eq!((route.path, route.moved_from), (PathId(1), Some(PathId(0))));
        assert_eq!(flows.on_packet(now, packet(0, 200), &[]), None);
    }
}
