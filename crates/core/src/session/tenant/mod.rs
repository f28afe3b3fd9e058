//! Tenants towards one peer: their queues and windows on every path, and whose turn it is.
//!
//! Between tenants a path is shared by start-time fair queueing (Goyal, Vin, Cheng 1996): whoever
//! was served least per weight comes next, by wire bytes. A tenant whose window is full or whose
//! rate says to wait is passed over. Inside a tenant its flows of IP packets take turns (`flows`),
//! and all of these with its units, which `outgoing` has in order. What is written into packets is
//! `packets`' and `transmit`'s concern; what a window is, that of `keiro_model::fairness`.

mod codel;
mod flows;
mod lane;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use keiro_model::fairness::controller::Weight;
use keiro_units::Instant;

pub(crate) use self::lane::Fate;
use self::{
    flows::Queued,
    lane::{Lane, Place},
};
use crate::{
    id::{AppId, PathId, TenantId},
    tenant::{IpPacket, PacketDrops, TenantConfig, TenantError, TenantSnapshot},
};

/// Virtual time of a byte of a tenant of weight 1.
const TAG_PER_BYTE: u64 = 1000 * 1000;

#[derive(Debug)]
struct Tenant {
    config: TenantConfig,
    /// Memory of what waits on all paths.
    cost: u64,
    accepted: u64,
    accepted_bytes: u64,
    received: u64,
    received_bytes: u64,
    marked: u64,
    drops: PacketDrops,
}

/// The tenants on one path.
#[derive(Debug, Default)]
struct Lanes {
    lanes: BTreeMap<TenantId, Box<Lane>>,
    ready: BTreeSet<(u64, TenantId)>,
    timed: BTreeSet<(Instant, TenantId)>,
    /// Tag of the one that was served last.
    virtual_time: u64,
    /// Up to which tenant 0 was served with what is no IP packet.
    zero_served: u64,
    /// Who has nothing but units that wait until the path may gather again.
    gathering: BTreeSet<TenantId>,
    /// On the way, of tenants that were removed meanwhile.
    removed: BTreeMap<TenantId, u64>,
    /// Memory of what waits.
    cost: u64,
}

/// All tenants towards one peer.
#[derive(Debug)]
pub(crate) struct Tenants {
    tenants: BTreeMap<TenantId, Tenant>,
    paths: BTreeMap<PathId, Lanes>,
    tenants_max: usize,
    cost_max: u64,
    cost: u64,
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) tenant: TenantId,
    pub(crate) load: Load,
    /// Wire bytes that the window has room for.
    pub(crate) room: u64,
    tag: u64,
}

/// With what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// An IP packet.
    Packet {
        /// Its bytes.
        len: usize,
        ecn: u8,
    },
    /// Messages, streams or datagrams.
    Units,
}

/// What a tenant has of messages, streams and datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Units {
    /// Nothing that may leave.
    None,
    /// What has to wait until the path may gather.
    Gathering,
    /// Something that may leave now.
    Ready,
}

/// An IP packet that leaves.
#[derive(Debug)]
pub(crate) struct Leaving {
    pub(crate) marked: bool,
    pub(crate) data: Vec<u8>,
}

impl Tenants {
    pub(crate) fn new(tenants_max: usize, cost_max: u64) -> Self {
        Self {
            tenants: BTreeMap::new(),
            paths: BTreeMap::new(),
            tenants_max,
            cost_max,
            cost: 0,
        }
    }

    /// Adds or changes a tenant; what waits and its windows stay, unless the controller is another.
    pub(crate) fn set(&mut self, now: Instant, config: TenantConfig) -> Result<(), TenantError> {
        let full = self.tenants.len() >= self.tenants_max;
        let Some(tenant) = self.tenants.get_mut(&config.id) else {
            if full {
                let max = self.tenants_max;
                return Err(TenantError::TooMany { max });
            }
            self.tenants.insert(config.id, Tenant::new(config));
            return Ok(());
        };
        let before = std::mem::replace(&mut tenant.config, config);
        for lanes in self.paths.values_mut() {
            let Some(lane) = lanes.lanes.get_mut(&config.id) else {
                continue;
            };
            if before.controller == config.controller {
                lane.set_weight(config.weight);
            } else {
                lane.set_controller(now, &config.controller, config.weight, 1500);
            }
            lanes.wake(config.id);
        }
        Ok(())
    }

    /// Forgets a tenant and what waits of it.
    pub(crate) fn remove(&mut self, id: TenantId) {
        let Some(tenant) = self.tenants.remove(&id) else {
            return;
        };
        self.cost -= tenant.cost;
        for lanes in self.paths.values_mut() {
            lanes.remove(id);
        }
    }

    pub(crate) fn knows(&self, id: TenantId) -> bool {
        self.tenants.contains_key(&id)
    }

    /// Nothing waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.cost == 0
    }

    /// None is configured, and nothing of a former one is on the way: nothing has to be counted.
    pub(crate) fn is_empty(&self) -> bool {
        self.tenants.is_empty() && self.paths.values().all(|lanes| lanes.removed.is_empty())
    }

    /// Counts a packet that was refused.
    pub(crate) fn count_drop(&mut self, id: TenantId, count: impl FnOnce(&mut PacketDrops)) {
        if let Some(tenant) = self.tenants.get_mut(&id) {
            count(&mut tenant.drops);
        }
    }

    /// Counts a packet that the peer sent; `false`: the tenant is unknown.
    pub(crate) fn on_received(&mut self, id: TenantId, bytes: usize) -> bool {
        let Some(tenant) = self.tenants.get_mut(&id) else {
            return false;
        };
        tenant.received += 1;
        tenant.received_bytes += bytes as u64;
        true
    }

    /// Has a packet wait for `path`; the tenant exists. `mtu`: largest wire packet of the path.
    pub(crate) fn push(
        &mut self,
        now: Instant,
        (id, app): (TenantId, AppId),
        (path, mtu): (PathId, u16),
        packet: IpPacket,
    ) {
        if let Some(tenant) = self.tenants.get_mut(&id) {
            tenant.accepted += 1;
            tenant.accepted_bytes += packet.data.len() as u64;
        }
        let queued = Queued {
            app,
            flow_hash: packet.flow_hash,
            ecn: packet.ecn & 3,
            at: now,
            data: packet.data,
        };
        self.enqueue(now, id, (path, mtu), queued);
    }

    fn enqueue(&mut self, now: Instant, id: TenantId, (path, mtu): (PathId, u16), queued: Queued) {
        let Some(tenant) = self.tenants.get_mut(&id) else {
            return;
        };
        let lanes = self.paths.entry(path).or_default();
        let lane = lanes.lane(now, id, &tenant.config, mtu);
        let before = lane.cost();
        lane.flows.push(queued);
        // The newcomer makes room in its own queue: it takes nobody else's memory.
        let own_max = tenant.config.queue_bytes_max.get();
        while tenant.cost + lane.cost() > own_max + before && !lane.flows.is_empty() {
            tenant.drops.queue_full += lane.flows.drop_longest();
        }
        while self.cost + lane.cost() > self.cost_max + before && !lane.flows.is_empty() {
            tenant.drops.memory += lane.flows.drop_longest();
        }
        let after = lane.cost();
        for sum in [&mut tenant.cost, &mut self.cost, &mut lanes.cost] {
            *sum = *sum + after - before;
        }
        lanes.wake(id);
    }

    /// Units of a tenant may have come to `path`.
    pub(crate) fn on_units(&mut self, now: Instant, (path, mtu): (PathId, u16), id: TenantId) {
        if let Some(tenant) = self.tenants.get(&id) {
            let lanes = self.paths.entry(path).or_default();
            lanes.gathering.remove(&id);
            lanes.lane(now, id, &tenant.config, mtu).has_units = true;
            lanes.wake(id);
        }
    }

    /// A tenant's units could not leave: they wait until the path may gather.
    pub(crate) fn on_units_refused(&mut self, path: PathId, turn: Turn) {
        let lanes = self.paths.get_mut(&path);
        let Some(lanes) = lanes else { return };
        if let Some(lane) = lanes.lanes.get_mut(&turn.tenant) {
            lane.has_units = false;
            lanes.gathering.insert(turn.tenant);
        }
    }

    /// The path may gather: whoever has waited for that is asked again.
    pub(crate) fn on_may_gather(&mut self, path: PathId) {
        let Some(lanes) = self.paths.get_mut(&path) else {
            return;
        };
        for id in std::mem::take(&mut lanes.gathering) {
            if let Some(lane) = lanes.lanes.get_mut(&id) {
                lane.has_units = true;
                lanes.wake(id);
            }
        }
    }

    /// Somebody's units wait until the path may gather.
    pub(crate) fn gathers(&self, path: PathId) -> bool {
        let lanes = self.paths.get(&path);
        lanes.is_some_and(|lanes| !lanes.gathering.is_empty())
    }

    /// Whose turn it is on `path`, of those that may send now. `overhead`: wire bytes that an IP
    /// packet takes beside its own; `whole`: those of a packet of units; `units`: what a tenant has of
    /// them.
    pub(crate) fn next(
        &mut self,
        now: Instant,
        path: PathId,
        (overhead, whole): (u64, u64),
        mut units: impl FnMut(TenantId) -> Units,
    ) -> Option<Turn> {
        let lanes = self.paths.get_mut(&path)?;
        while let Some(&(at, id)) = lanes.timed.first().filter(|(at, _)| *at <= now) {
            lanes.timed.remove(&(at, id));
            lanes.make_ready(id);
        }
        // Every turn either ends the search or takes one from the ready.
        while let Some(&(tag, id)) = lanes.ready.first() {
            let lane = lanes.lanes.get_mut(&id).expect("who is ready exists");
            let before = lane.cost();
            let head = lane
                .head(now)
                .map(|taken| (taken.packet.data.len(), taken.packet.ecn));
            let (after, delayed) = (lane.cost(), std::mem::take(&mut lane.flows.delayed));
            if let Some(tenant) = self.tenants.get_mut(&id) {
                tenant.drops.delayed += delayed;
                for sum in [&mut tenant.cost, &mut self.cost, &mut lanes.cost] {
                    *sum = *sum + after - before;
                }
            }
            let packet = head.map(|(len, ecn)| Load::Packet { len, ecn });
            let is_units_turn = lane.has_units && (packet.is_none() || !lane.units_were_last);
            let has = match is_units_turn {
                true => units(id),
                false => Units::None,
            };
            if is_units_turn && has != Units::Ready {
                lane.has_units = false;
            }
            if has == Units::Gathering {
                lanes.gathering.insert(id);
            }
            let load = match has {
                Units::Ready => Some(Load::Units),
                Units::None | Units::Gathering => packet,
            };
            let Some(load) = load else {
                lanes.ready.remove(&(tag, id));
                lane.place = Place::Off;
                continue;
            };
            let needed = match load {
                Load::Packet { len, .. } => len as u64 + overhead,
                Load::Units => whole,
            };
            let room = lane.room();
            if room < needed {
                lane.on_limited();
                lane.place = Place::Off;
                lanes.ready.remove(&(tag, id));
                continue;
            }
            if lane.waits_for_rate(now) {
                lane.on_limited();
                lane.place = Place::Timed(lane.next_at());
                lanes.timed.insert((lane.next_at(), id));
                lanes.ready.remove(&(tag, id));
                continue;
            }
            return Some(Turn {
                tenant: id,
                load,
                room,
                tag,
            });
        }
        None
    }

    /// The next packet of the same tenant, if it may share the datagram that is being written, which
    /// has this ECN.
    pub(crate) fn next_of(
        &mut self,
        now: Instant,
        path: PathId,
        turn: Turn,
        outer: u8,
    ) -> Option<usize> {
        let lanes = self.paths.get_mut(&path)?;
        let lane = lanes.lanes.get_mut(&turn.tenant)?;
        let before = lane.cost();
        let head = lane
            .head(now)
            .map(|taken| (taken.packet.data.len(), taken.packet.ecn));
        let (after, delayed) = (lane.cost(), std::mem::take(&mut lane.flows.delayed));
        let tenant = self.tenants.get_mut(&turn.tenant)?;
        tenant.drops.delayed += delayed;
        for sum in [&mut tenant.cost, &mut self.cost, &mut lanes.cost] {
            *sum = *sum + after - before;
        }
        head.filter(|(_, ecn)| *ecn == outer).map(|(len, _)| len)
    }

    /// Takes the packet that [`next`](Self::next) or [`next_of`](Self::next_of) told of.
    pub(crate) fn take(&mut self, path: PathId, id: TenantId) -> Option<Leaving> {
        let lanes = self.paths.get_mut(&path)?;
        let taken = lanes.lanes.get_mut(&id)?.take()?;
        let tenant = self.tenants.get_mut(&id)?;
        tenant.marked += u64::from(taken.marked);
        let cost = taken.packet.cost();
        for sum in [&mut tenant.cost, &mut self.cost, &mut lanes.cost] {
            *sum -= cost;
        }
        Some(Leaving {
            marked: taken.marked,
            data: taken.packet.data,
        })
    }

    /// A wire packet of `bytes` with what was taken has left.
    pub(crate) fn on_sent(&mut self, now: Instant, path: PathId, turn: Turn, bytes: u64) {
        let Some(tenant) = self.tenants.get(&turn.tenant) else {
            return;
        };
        let Some(lanes) = self.paths.get_mut(&path) else {
            return;
        };
        lanes.virtual_time = lanes.virtual_time.max(turn.tag);
        if let Some(lane) = lanes.lanes.get_mut(&turn.tenant) {
            lane.on_sent(now, bytes);
            lane.units_were_last = turn.load == Load::Units;
            lane.served = lane.served.max(turn.tag) + tag_of(bytes, tenant.config.weight);
        }
        // Its new place is taken before the old one is left: a set that is never empty keeps its memory.
        if lanes.make_ready(turn.tenant) != Some(turn.tag) {
            lanes.ready.remove(&(turn.tag, turn.tenant));
        }
    }

    /// Wire bytes of a tenant have left over `path` that were nobody's turn: copies.
    pub(crate) fn on_copy_sent(
        &mut self,
        now: Instant,
        (path, mtu): (PathId, u16),
        id: TenantId,
        bytes: u64,
    ) {
        let Some(tenant) = self.tenants.get(&id) else {
            return;
        };
        let lanes = self.paths.entry(path).or_default();
        let start = lanes.virtual_time;
        let lane = lanes.lane(now, id, &tenant.config, mtu);
        lane.on_sent(now, bytes);
        lane.served = lane.served.max(start) + tag_of(bytes, tenant.config.weight);
    }

    /// Up to which tenant 0 was served, to be compared with a turn.
    pub(crate) fn zero_is_before(&self, path: PathId, turn: Turn) -> bool {
        let lanes = self.paths.get(&path);
        lanes.is_none_or(|lanes| lanes.zero_served.max(lanes.virtual_time) <= turn.tag)
    }

    /// Wire bytes of tenant 0 have left: messages, streams and datagrams.
    pub(crate) fn on_zero_sent(&mut self, now: Instant, (path, mtu): (PathId, u16), bytes: u64) {
        if self.tenants.is_empty() {
            return;
        }
        let weight = self.zero_weight();
        let lanes = self.paths.entry(path).or_default();
        if let Some(zero) = self.tenants.get(&TenantId::ZERO) {
            let lane = lanes.lane(now, TenantId::ZERO, &zero.config, mtu);
            lane.on_sent(now, bytes);
        }
        let start = lanes.zero_served.max(lanes.virtual_time);
        lanes.virtual_time = start;
        lanes.zero_served = start + tag_of(bytes, weight);
    }

    /// When tenant 0 may send what is no IP packet, the pacer aside; `None`: its window is full.
    pub(crate) fn zero_free_at(&self, path: PathId, packet: u64) -> Option<Instant> {
        let lanes = self.paths.get(&path);
        let Some(lane) = lanes.and_then(|lanes| lanes.lanes.get(&TenantId::ZERO)) else {
            return Some(Instant::ZERO);
        };
        (lane.room() >= packet).then(|| lane.next_at())
    }

    /// Tenant 0 had more to send than it may.
    pub(crate) fn on_zero_limited(&mut self, path: PathId) {
        let lanes = self.paths.get_mut(&path);
        if let Some(lane) = lanes.and_then(|lanes| lanes.lanes.get_mut(&TenantId::ZERO)) {
            lane.on_limited();
        }
    }

    fn zero_weight(&self) -> Weight {
        let zero = self.tenants.get(&TenantId::ZERO);
        zero.map_or(Weight::ONE, |tenant| tenant.config.weight)
    }

    /// Packets of a tenant were acknowledged or lost. `min`: smallest round trip of the path;
    /// `mtu`: its largest packet.
    pub(crate) fn on_fate(
        &mut self,
        now: Instant,
        (path, id): (PathId, TenantId),
        fate: &Fate,
        mtu: u16,
    ) {
        let Some(lanes) = self.paths.get_mut(&path) else {
            return;
        };
        match lanes.lanes.get_mut(&id) {
            Some(lane) => {
                lane.on_fate(now, fate, u64::from(mtu));
                lanes.wake(id);
            }
            None => lanes.forget_removed(id, fate.landed_bytes),
        }
    }

    /// When a tenant's turn may come on `path`, its pacer aside; in the past: at once. `None`:
    /// nothing waits, or only what an acknowledgement or the path's gathering will let go.
    pub(crate) fn next_at(&self, path: PathId) -> Option<Instant> {
        let lanes = self.paths.get(&path)?;
        if lanes.ready.is_empty() {
            return lanes.timed.first().map(|(at, _)| *at);
        }
        Some(Instant::ZERO)
    }

    /// Memory of what waits for `path`.
    pub(crate) fn waiting_bytes(&self, path: PathId) -> u64 {
        self.paths.get(&path).map_or(0, |lanes| lanes.cost)
    }

    /// `path` leads elsewhere: its controllers begin anew. `forgotten`: what was sent over it is not
    /// waited for either.
    pub(crate) fn restart(&mut self, now: Instant, path: PathId, mtu: u16, forgotten: bool) {
        let Some(lanes) = self.paths.get_mut(&path) else {
            return;
        };
        if forgotten {
            lanes.removed.clear();
        }
        let ids: Vec<TenantId> = lanes.lanes.keys().copied().collect();
        for id in ids {
            let config = self.tenants.get(&id).map(|tenant| tenant.config);
            if let (Some(lane), Some(config)) = (lanes.lanes.get_mut(&id), config) {
                if forgotten {
                    lane.in_flight = 0;
                }
                lane.set_controller(now, &config.controller, config.weight, u64::from(mtu));
            }
            lanes.wake(id);
        }
    }

    /// `path` is gone: what waits for it goes to where its application goes, or is dropped.
    pub(crate) fn move_all(
        &mut self,
        now: Instant,
        path: PathId,
        to: impl Fn(AppId) -> Option<(PathId, u16)>,
    ) {
        let Some(mut lanes) = self.paths.remove(&path) else {
            return;
        };
        self.cost -= lanes.cost;
        let mut moving = Vec::new();
        for (id, lane) in &mut lanes.lanes {
            let cost = lane.cost();
            if let Some(tenant) = self.tenants.get_mut(id) {
                tenant.cost -= cost;
            }
            moving.extend(lane.take_all().into_iter().map(|queued| (*id, queued)));
        }
        for (id, queued) in moving {
            match to(queued.app).filter(|(to, _)| *to != path) {
                Some(to) => self.enqueue(now, id, to, queued),
                None => self.count_drop(id, |drops| drops.no_path += 1),
            }
        }
    }

    /// Tenants above `after`, in order, at most `max` of them.
    pub(crate) fn snapshots(
        &self,
        now: Instant,
        after: Option<TenantId>,
        max: usize,
    ) -> Vec<TenantSnapshot> {
        use std::ops::Bound;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let tenants = self.tenants.range((from, Bound::Unbounded)).take(max);
        tenants
            .map(|(id, tenant)| self.snapshot(now, *id, tenant))
            .collect()
    }

    fn snapshot(&self, now: Instant, id: TenantId, tenant: &Tenant) -> TenantSnapshot {
        let paths = self.paths.iter();
        let lanes =
            paths.filter_map(|(path, lanes)| Some(lanes.lanes.get(&id)?.snapshot(now, *path)));
        TenantSnapshot {
            id,
            weight: tenant.config.weight,
            controller: tenant.config.controller.name(),
            queued_bytes: tenant.cost,
            accepted: tenant.accepted,
            accepted_bytes: tenant.accepted_bytes,
            received: tenant.received,
            received_bytes: tenant.received_bytes,
            drops: tenant.drops,
            marked: tenant.marked,
            paths: lanes.collect(),
        }
    }
}

impl Tenant {
    fn new(config: TenantConfig) -> Self {
        Self {
            config,
            cost: 0,
            accepted: 0,
            accepted_bytes: 0,
            received: 0,
            received_bytes: 0,
            marked: 0,
            drops: PacketDrops::default(),
        }
    }
}

impl Lanes {
    /// A tenant's lane. `mtu`: largest packet of the path.
    fn lane(&mut self, now: Instant, id: TenantId, config: &TenantConfig, mtu: u16) -> &mut Lane {
        self.lanes.entry(id).or_insert_with(|| {
            let in_flight = self.removed.remove(&id).unwrap_or(0);
            let controller = (&config.controller, config.weight);
            Box::new(Lane::new(now, controller, u64::from(mtu), in_flight))
        })
    }

    /// Something has changed for a lane: it may have something to send.
    fn wake(&mut self, id: TenantId) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        match lane.place {
            Place::Off if !lane.is_idle() => drop(self.make_ready(id)),
            // A faster rate has not to wait for what the slower one said.
            Place::Timed(at) if lane.next_at() < at => {
                self.timed.remove(&(at, id));
                self.make_ready(id);
            }
            _ => {}
        }
    }

    /// Gives a lane its place among the ready; its tag.
    fn make_ready(&mut self, id: TenantId) -> Option<u64> {
        let lane = self.lanes.get_mut(&id)?;
        // Who was away has not saved up anything.
        let tag = lane.served.max(self.virtual_time);
        lane.place = Place::Ready(tag);
        self.ready.insert((tag, id));
        Some(tag)
    }

    fn remove(&mut self, id: TenantId) {
        let Some(lane) = self.lanes.remove(&id) else {
            return;
        };
        self.cost -= lane.cost();
        self.gathering.remove(&id);
        match lane.place {
            Place::Off => {}
            Place::Ready(tag) => drop(self.ready.remove(&(tag, id))),
            Place::Timed(at) => drop(self.timed.remove(&(at, id))),
        }
        if lane.in_flight > 0 {
            self.removed.insert(id, lane.in_flight);
        }
    }

    fn forget_removed(&mut self, id: TenantId, bytes: u64) {
        if let Some(left) = self.removed.get_mut(&id) {
            *left = left.saturating_sub(bytes);
            if *left == 0 {
                self.removed.remove(&id);
            }
        }
    }
}

fn tag_of(bytes: u64, weight: Weight) -> u64 {
    bytes.saturating_mul(TAG_PER_BYTE) / u64::from(weight.thousandths())
}
