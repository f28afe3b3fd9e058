//! Spreading: by which paths items of spread applications leave, and when.
//!
//! A packet that leaves now by path `i` arrives after `a = w + d + n / R`: what the pacer still waits, the one-way delay, and
//! the time that the packet takes. By then the other paths deliver `R (a - w - d)` bytes each, of those that are faster.
//! As long as no more waits, it is better off waiting for them; what is beyond that takes path `i`. The last bytes of
//! all paths then arrive at the same time (water-filling). For a sender that has no end in sight, every path is in use.

use std::{collections::BTreeMap, time::Duration};

use keiro_units::{Bandwidth, ByteCount, Instant};

use super::{
    flow_order::FlowChoice,
    path::Path,
    path_manager::PathManager,
    tenant::{FlowKey, Tenants},
};
use crate::id::PathId;

/// What a flow sends in its turn: a packet.
const TURN_BYTES: u64 = 1514;

/// What a path does with the next packet.
#[derive(Clone, Copy, Debug)]
struct SpreadPath {
    id: PathId,
    /// From now until a packet that leaves as soon as the pacer lets it begins to arrive.
    delay: Duration,
    rate: Bandwidth,
    /// Its longest packet.
    packet: ByteCount,
}

impl SpreadPath {
    fn new(now: Instant, path: &Path) -> Self {
        let wait = path.pacer().next().saturating_duration_since(now);
        Self {
            id: path.id(),
            delay: wait + path.rtt().smoothed_or_initial() / 2,
            rate: path.pacer().rate(),
            packet: ByteCount::new(path.mtu().into()),
        }
    }

    /// From now until its next packet has arrived.
    fn arrival(&self) -> Duration {
        self.delay + self.rate.transmission_time_ceil(self.packet)
    }

    /// Bytes that it has delivered after `time`.
    fn delivered(&self, time: Duration) -> u64 {
        let time = time.saturating_sub(self.delay);
        self.rate.bytes_in_floor(time).get()
    }
}

/// The cheapest of those that are up, without those whose probes are limited as long as there are others: more rate is no
/// reason to pay more, or to go beyond a budget.
fn usable(paths: &PathManager) -> impl Iterator<Item = &Path> {
    let order = |path: &Path| {
        let terms = path.terms();
        (terms.is_spent, terms.price(), path.is_limited())
    };
    let up = || paths.iter().filter(|path| path.is_up());
    let least = up().map(order).min();
    up().filter(move |path| Some(order(path)) == least)
}

/// The paths by which packets of a flow may leave, and what its next packet waits for on each.
///
/// Flows take turns, so that one waits for as much of every other as waits of its own, and never for more than
/// waits.
pub(super) fn flow_choices(
    now: Instant,
    paths: &PathManager,
    tenants: &Tenants,
    key: FlowKey,
) -> Vec<FlowChoice> {
    let choice = |path: &Path| {
        let path_now = SpreadPath::new(now, path);
        let allowed = tenants.allowed_rate(path.id(), key.tenant());
        let rate = path_now.rate.min(allowed.unwrap_or(path_now.rate));
        let all = tenants.waiting_bytes(path.id());
        let backlog = tenants.flow_backlog(path.id(), key);
        let of_others = (backlog.own + TURN_BYTES).saturating_mul(backlog.others);
        let waiting = ByteCount::new(backlog.own.saturating_add(of_others).min(all));
        let delay = path_now.arrival();
        FlowChoice {
            path: path.id(),
            delay,
            arrival: delay + rate.transmission_time_ceil(waiting),
            variation: path.rtt().variation(),
            rate,
        }
    };
    usable(paths).map(choice).collect()
}

/// The paths by which items of spread applications leave. To each, the bytes that the other paths deliver before its
/// next packet arrives; zero to the one whose next packet arrives first.
pub(super) fn carried_by_others(now: Instant, paths: &PathManager) -> BTreeMap<PathId, u64> {
    let usable: Vec<SpreadPath> = usable(paths)
        .map(|path| SpreadPath::new(now, path))
        .collect();
    let first = usable.iter().min_by_key(|path| path.arrival());
    let first = first.map(|path| path.id);
    let carried_by_others = |path: &SpreadPath| {
        let arrival = path.arrival();
        let others = usable.iter().filter(|other| other.id != path.id);
        let delivered = others.map(|other| other.delivered(arrival));
        delivered.fold(0, u64::saturating_add)
    };
    let carried = |path: &SpreadPath| match Some(path.id) == first {
        true => 0,
        false => carried_by_others(path),
    };
    usable.iter().map(|path| (path.id, carried(path))).collect()
}
