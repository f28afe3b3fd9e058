//! Paths of flows: the IP packets of a spread application leave by all paths, and those of one flow by one.
//!
//! TCP takes packets that overtake each other for losses, so a flow stays on its path as long as it gets its share
//! there. A flow begins on the path that delivers its first packet first. One that carries much is worth
//! moving: to the path on which it has more, if all flows that carry much share their path's rate evenly.

use std::{collections::BTreeMap, time::Duration};

use keiro_units::{Bandwidth, Instant};

use super::tenant::FlowKey;
use crate::id::PathId;

/// How often flows are counted, and a flow may move. Ours: several round trips of most paths.
const PERIOD: Duration = Duration::from_secs(1);
/// A flow carries much that sends so many bytes in a period. Ours: a voice call or a screen sends less.
const BULK_BYTES: u64 = 64 << 10;
/// What a flow has on another path is more by this part at least.
const GAIN_MIN: f64 = 1.25;

/// A path by which flows may leave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FlowChoice {
    pub(crate) path: PathId,
    /// From now until a packet that waits behind all others has arrived.
    pub(crate) arrival: Duration,
    pub(crate) rate: Bandwidth,
}

/// Where a packet of a flow leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowRoute {
    pub(crate) path: PathId,
    /// What waits of the flow moves from this path with it.
    pub(crate) moved_from: Option<PathId>,
}

#[derive(Clone, Copy, Debug)]
struct FlowPath {
    path: PathId,
    /// Bytes of this period.
    bytes: u64,
    is_bulk: bool,
    moves_from: Instant,
}

/// The paths of all flows of spread applications to one peer.
#[derive(Debug, Default)]
pub(crate) struct FlowPaths {
    /// Bounded by the queues of flows: 1024 for each tenant and application that has sent in the last period.
    flows: BTreeMap<FlowKey, FlowPath>,
    period_ends: Option<Instant>,
}

impl FlowPaths {
    /// The path for the next packet of a flow, of `bytes` bytes; `None`: there is no choice.
    pub(crate) fn on_packet(
        &mut self,
        now: Instant,
        key: FlowKey,
        bytes: usize,
        choices: &[FlowChoice],
    ) -> Option<FlowRoute> {
        self.count(now);
        let fastest = choices.iter().min_by_key(|choice| choice.arrival)?.path;
        let flow = self.flows.entry(key).or_insert(FlowPath {
            path: fastest,
            bytes: 0,
            is_bulk: false,
            moves_from: now,
        });
        flow.bytes += bytes as u64;
        flow.is_bulk |= flow.bytes >= BULK_BYTES;
        let flow = *flow;
        let is_gone = choices.iter().all(|choice| choice.path != flow.path);
        let to = match (is_gone, flow.is_bulk && flow.moves_from <= now) {
            (true, _) => Some(fastest),
            (false, true) => self.better(flow.path, choices),
            (false, false) => None,
        };
        if let Some(known) = self.flows.get_mut(&key) {
            if flow.is_bulk && flow.moves_from <= now {
                known.moves_from = now + PERIOD;
            }
            known.path = to.unwrap_or(flow.path);
        }
        Some(FlowRoute {
            path: to.unwrap_or(flow.path),
            moved_from: to.map(|_| flow.path),
        })
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{AppId, TenantId};

    const MS: Duration = Duration::from_millis(1);

    fn choice(path: u8, arrival_ms: u32, mbit: u64) -> FlowChoice {
        FlowChoice {
            path: PathId(path),
            arrival: MS * arrival_ms,
            rate: Bandwidth::from_mbit_per_second(mbit),
        }
    }

    fn key(hash: u32) -> FlowKey {
        FlowKey::new(TenantId(1), AppId(1), hash)
    }

    /// Paths of flows that send a full packet every millisecond for `ms` ms.
    fn run(flows: &mut FlowPaths, count: u32, choices: &[FlowChoice], ms: u32) -> Vec<PathId> {
        let mut paths = vec![PathId(0); count as usize];
        for step in 0..ms {
            let now = Instant::ZERO + MS * step;
            for flow in 0..count {
                let route = flows.on_packet(now, key(flow), 1400, choices).unwrap();
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
            let route = flows.on_packet(now, key(0), 200, &both).unwrap();
            assert_eq!(route.path, PathId(0));
        }
        let now = Instant::ZERO + 10_001 * MS;
        let route = flows.on_packet(now, key(0), 200, &both[1..]).unwrap();
        assert_eq!((route.path, route.moved_from), (PathId(1), Some(PathId(0))));
        assert_eq!(flows.on_packet(now, key(0), 200, &[]), None);
    }
}
