//! Tenants towards one peer: their queues and windows on every path, and whose turn it is.
//!
//! Between tenants a path is shared by start-time fair queueing (Goyal, Vin, Cheng 1996): whoever
//! was served least per weight comes next, by wire bytes. A tenant whose window is full or whose
//! rate says to wait is passed over. Inside a tenant its flows of IP packets take turns (`flows`),
//! and all of these with its items, which `queues` has in order. What is written into packets is
//! `packets`' and `transmit`'s concern; what a window is, that of `keiro_model::fairness`.

mod codel;
mod flows;
mod tenant_path;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use keiro_model::fairness::controller::Weight;
use keiro_units::Instant;

pub(crate) use self::tenant_path::DeliveryReport;
use self::{
    flows::Queued,
    tenant_path::{Readiness, TenantPath},
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
struct PathTenants {
    tenant_paths: BTreeMap<TenantId, Box<TenantPath>>,
    ready: BTreeSet<(u64, TenantId)>,
    timed: BTreeSet<(Instant, TenantId)>,
    /// Tag of the one that was served last.
    virtual_time: u64,
    /// Up to which tenant 0 was served with what is no IP packet.
    zero_served: u64,
    /// Who has nothing but items that wait until the path may gather again.
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
    paths: BTreeMap<PathId, PathTenants>,
    tenants_max: usize,
    cost_max: u64,
    cost: u64,
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SchedulerGrant {
    pub(crate) tenant: TenantId,
    pub(crate) load: GrantKind,
    /// Wire bytes that the window has room for.
    pub(crate) room: u64,
    tag: u64,
}

/// With what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrantKind {
    /// An IP packet.
    IpPacket {
        /// Its bytes.
        len: usize,
        ecn: u8,
    },
    /// Messages, streams or datagrams.
    Items,
}

/// What a tenant has of messages, streams and datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Items {
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
        for path_tenants in self.paths.values_mut() {
            let Some(tenant_path) = path_tenants.tenant_paths.get_mut(&config.id) else {
                continue;
            };
            if before.controller == config.controller {
                tenant_path.set_weight(config.weight);
            } else {
                tenant_path.set_controller(now, &config.controller, config.weight, 1500);
            }
            path_tenants.wake(config.id);
        }
        Ok(())
    }

    /// Forgets a tenant and what waits of it.
    pub(crate) fn remove(&mut self, id: TenantId) {
        let Some(tenant) = self.tenants.remove(&id) else {
            return;
        };
        self.cost -= tenant.cost;
        for path_tenants in self.paths.values_mut() {
            path_tenants.remove(id);
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
        self.tenants.is_empty()
            && self
                .paths
                .values()
                .all(|path_tenants| path_tenants.removed.is_empty())
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
        let path_tenants = self.paths.entry(path).or_default();
        let tenant_path = path_tenants.tenant_path(now, id, &tenant.config, mtu);
        let before = tenant_path.cost();
        tenant_path.flows.push(queued);
        // The newcomer makes room in its own queue: it takes nobody else's memory.
        let own_max = tenant.config.queue_bytes_max.get();
        while tenant.cost + tenant_path.cost() > own_max + before && !tenant_path.flows.is_empty() {
            tenant.drops.queue_full += tenant_path.flows.drop_longest();
        }
        while self.cost + tenant_path.cost() > self.cost_max + before
            && !tenant_path.flows.is_empty()
        {
            tenant.drops.memory += tenant_path.flows.drop_longest();
        }
        let after = tenant_path.cost();
        for sum in [&mut tenant.cost, &mut self.cost, &mut path_tenants.cost] {
            *sum = *sum + after - before;
        }
        path_tenants.wake(id);
    }

    /// Items of a tenant may have come to `path`.
    pub(crate) fn on_items(&mut self, now: Instant, (path, mtu): (PathId, u16), id: TenantId) {
        if let Some(tenant) = self.tenants.get(&id) {
            let path_tenants = self.paths.entry(path).or_default();
            path_tenants.gathering.remove(&id);
            path_tenants
                .tenant_path(now, id, &tenant.config, mtu)
                .has_items = true;
            path_tenants.wake(id);
        }
    }

    /// A tenant's items could not leave: they wait until the path may gather.
    pub(crate) fn on_items_refused(&mut self, path: PathId, turn: SchedulerGrant) {
        let path_tenants = self.paths.get_mut(&path);
        let Some(path_tenants) = path_tenants else {
            return;
        };
        if let Some(tenant_path) = path_tenants.tenant_paths.get_mut(&turn.tenant) {
            tenant_path.has_items = false;
            path_tenants.gathering.insert(turn.tenant);
        }
    }

    /// The path may gather: whoever has waited for that is asked again.
    pub(crate) fn on_may_gather(&mut self, path: PathId) {
        let Some(path_tenants) = self.paths.get_mut(&path) else {
            return;
        };
        for id in std::mem::take(&mut path_tenants.gathering) {
            if let Some(tenant_path) = path_tenants.tenant_paths.get_mut(&id) {
                tenant_path.has_items = true;
                path_tenants.wake(id);
            }
        }
    }

    /// Somebody's items wait until the path may gather.
    pub(crate) fn gathers(&self, path: PathId) -> bool {
        let path_tenants = self.paths.get(&path);
        path_tenants.is_some_and(|path_tenants| !path_tenants.gathering.is_empty())
    }

    /// Whose turn it is on `path`, of those that may send now. `overhead`: wire bytes that an IP
    /// packet takes beside its own; `whole`: those of a packet of items; `items`: what a tenant has of
    /// them.
    pub(crate) fn next(
        &mut self,
        now: Instant,
        path: PathId,
        (overhead, whole): (u64, u64),
        mut items: impl FnMut(TenantId) -> Items,
    ) -> Option<SchedulerGrant> {
        let path_tenants = self.paths.get_mut(&path)?;
        while let Some(&(at, id)) = path_tenants.timed.first().filter(|(at, _)| *at <= now) {
            path_tenants.timed.remove(&(at, id));
            path_tenants.make_ready(id);
        }
        // Every turn either ends the search or takes one from the ready.
        while let Some(&(tag, id)) = path_tenants.ready.first() {
            let tenant_path = path_tenants
                .tenant_paths
                .get_mut(&id)
                .expect("who is ready exists");
            let before = tenant_path.cost();
            let head = tenant_path
                .head(now)
                .map(|taken| (taken.packet.data.len(), taken.packet.ecn));
            let (after, delayed) = (
                tenant_path.cost(),
                std::mem::take(&mut tenant_path.flows.delayed),
            );
            if let Some(tenant) = self.tenants.get_mut(&id) {
                tenant.drops.delayed += delayed;
                for sum in [&mut tenant.cost, &mut self.cost, &mut path_tenants.cost] {
                    *sum = *sum + after - before;
                }
            }
            let packet = head.map(|(len, ecn)| GrantKind::IpPacket { len, ecn });
            let is_items_turn =
                tenant_path.has_items && (packet.is_none() || !tenant_path.items_were_last);
            let has = match is_items_turn {
                true => items(id),
                false => Items::None,
            };
            if is_items_turn && has != Items::Ready {
                tenant_path.has_items = false;
            }
            if has == Items::Gathering {
                path_tenants.gathering.insert(id);
            }
            let load = match has {
                Items::Ready => Some(GrantKind::Items),
                Items::None | Items::Gathering => packet,
            };
            let Some(load) = load else {
                path_tenants.ready.remove(&(tag, id));
                tenant_path.place = Readiness::Off;
                continue;
            };
            let needed = match load {
                GrantKind::IpPacket { len, .. } => len as u64 + overhead,
                GrantKind::Items => whole,
            };
            let room = tenant_path.room();
            if room < needed {
                tenant_path.on_limited();
                tenant_path.place = Readiness::Off;
                path_tenants.ready.remove(&(tag, id));
                continue;
            }
            if tenant_path.waits_for_rate(now) {
                tenant_path.on_limited();
                tenant_path.place = Readiness::Timed(tenant_path.next_at());
                path_tenants.timed.insert((tenant_path.next_at(), id));
                path_tenants.ready.remove(&(tag, id));
                continue;
            }
            return Some(SchedulerGrant {
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
        turn: SchedulerGrant,
        outer: u8,
    ) -> Option<usize> {
        let path_tenants = self.paths.get_mut(&path)?;
        let tenant_path = path_tenants.tenant_paths.get_mut(&turn.tenant)?;
        let before = tenant_path.cost();
        let head = tenant_path
            .head(now)
            .map(|taken| (taken.packet.data.len(), taken.packet.ecn));
        let (after, delayed) = (
            tenant_path.cost(),
            std::mem::take(&mut tenant_path.flows.delayed),
        );
        let tenant = self.tenants.get_mut(&turn.tenant)?;
        tenant.drops.delayed += delayed;
        for sum in [&mut tenant.cost, &mut self.cost, &mut path_tenants.cost] {
            *sum = *sum + after - before;
        }
        head.filter(|(_, ecn)| *ecn == outer).map(|(len, _)| len)
    }

    /// Takes the packet that [`next`](Self::next) or [`next_of`](Self::next_of) told of.
    pub(crate) fn take(&mut self, path: PathId, id: TenantId) -> Option<Leaving> {
        let path_tenants = self.paths.get_mut(&path)?;
        let taken = path_tenants.tenant_paths.get_mut(&id)?.take()?;
        let tenant = self.tenants.get_mut(&id)?;
        tenant.marked += u64::from(taken.marked);
        let cost = taken.packet.cost();
        for sum in [&mut tenant.cost, &mut self.cost, &mut path_tenants.cost] {
            *sum -= cost;
        }
        Some(Leaving {
            marked: taken.marked,
            data: taken.packet.data,
        })
    }

    /// A wire packet of `bytes` with what was taken has left.
    pub(crate) fn on_sent(&mut self, now: Instant, path: PathId, turn: SchedulerGrant, bytes: u64) {
        let Some(tenant) = self.tenants.get(&turn.tenant) else {
            return;
        };
        let Some(path_tenants) = self.paths.get_mut(&path) else {
            return;
        };
        path_tenants.virtual_time = path_tenants.virtual_time.max(turn.tag);
        if let Some(tenant_path) = path_tenants.tenant_paths.get_mut(&turn.tenant) {
            tenant_path.on_sent(now, bytes);
            tenant_path.items_were_last = turn.load == GrantKind::Items;
            tenant_path.served =
                tenant_path.served.max(turn.tag) + tag_of(bytes, tenant.config.weight);
        }
        // Its new place is taken before the old one is left: a set that is never empty keeps its memory.
        if path_tenants.make_ready(turn.tenant) != Some(turn.tag) {
            path_tenants.ready.remove(&(turn.tag, turn.tenant));
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
        let path_tenants = self.paths.entry(path).or_default();
        let start = path_tenants.virtual_time;
        let tenant_path = path_tenants.tenant_path(now, id, &tenant.config, mtu);
        tenant_path.on_sent(now, bytes);
        tenant_path.served = tenant_path.served.max(start) + tag_of(bytes, tenant.config.weight);
    }

    /// Up to which tenant 0 was served, to be compared with a turn.
    pub(crate) fn zero_is_before(&self, path: PathId, turn: SchedulerGrant) -> bool {
        let path_tenants = self.paths.get(&path);
        path_tenants.is_none_or(|path_tenants| {
            path_tenants.zero_served.max(path_tenants.virtual_time) <= turn.tag
        })
    }

    /// Wire bytes of tenant 0 have left: messages, streams and datagrams.
    pub(crate) fn on_zero_sent(&mut self, now: Instant, (path, mtu): (PathId, u16), bytes: u64) {
        if self.tenants.is_empty() {
            return;
        }
        let weight = self.zero_weight();
        let path_tenants = self.paths.entry(path).or_default();
        if let Some(zero) = self.tenants.get(&TenantId::ZERO) {
            let tenant_path = path_tenants.tenant_path(now, TenantId::ZERO, &zero.config, mtu);
            tenant_path.on_sent(now, bytes);
        }
        let start = path_tenants.zero_served.max(path_tenants.virtual_time);
        path_tenants.virtual_time = start;
        path_tenants.zero_served = start + tag_of(bytes, weight);
    }

    /// When tenant 0 may send what is no IP packet, the pacer aside; `None`: its window is full.
    pub(crate) fn zero_free_at(&self, path: PathId, packet: u64) -> Option<Instant> {
        let path_tenants = self.paths.get(&path);
        let Some(tenant_path) =
            path_tenants.and_then(|path_tenants| path_tenants.tenant_paths.get(&TenantId::ZERO))
        else {
            return Some(Instant::ZERO);
        };
        (tenant_path.room() >= packet).then(|| tenant_path.next_at())
    }

    /// Tenant 0 had more to send than it may.
    pub(crate) fn on_zero_limited(&mut self, path: PathId) {
        let path_tenants = self.paths.get_mut(&path);
        if let Some(tenant_path) =
            path_tenants.and_then(|path_tenants| path_tenants.tenant_paths.get_mut(&TenantId::ZERO))
        {
            tenant_path.on_limited();
        }
    }

    fn zero_weight(&self) -> Weight {
        let zero = self.tenants.get(&TenantId::ZERO);
        zero.map_or(Weight::ONE, |tenant| tenant.config.weight)
    }

    /// Packets of a tenant were acknowledged or lost. `min`: smallest round trip of the path;
    /// `mtu`: its largest packet.
    pub(crate) fn on_delivery_report(
        &mut self,
        now: Instant,
        (path, id): (PathId, TenantId),
        fate: &DeliveryReport,
        mtu: u16,
    ) {
        let Some(path_tenants) = self.paths.get_mut(&path) else {
            return;
        };
        match path_tenants.tenant_paths.get_mut(&id) {
            Some(tenant_path) => {
                tenant_path.on_delivery_report(now, fate, u64::from(mtu));
                path_tenants.wake(id);
            }
            None => path_tenants.forget_removed(id, fate.no_longer_in_flight),
        }
    }

    /// When a tenant's turn may come on `path`, its pacer aside; in the past: at once. `None`:
    /// nothing waits, or only what an acknowledgement or the path's gathering will let go.
    pub(crate) fn next_at(&self, path: PathId) -> Option<Instant> {
        let path_tenants = self.paths.get(&path)?;
        if path_tenants.ready.is_empty() {
            return path_tenants.timed.first().map(|(at, _)| *at);
        }
        Some(Instant::ZERO)
    }

    /// Memory of what waits for `path`.
    pub(crate) fn waiting_bytes(&self, path: PathId) -> u64 {
        self.paths
            .get(&path)
            .map_or(0, |path_tenants| path_tenants.cost)
    }

    /// `path` leads elsewhere: its controllers begin anew. `forgotten`: what was sent over it is not
    /// waited for either.
    pub(crate) fn restart(&mut self, now: Instant, path: PathId, mtu: u16, forgotten: bool) {
        let Some(path_tenants) = self.paths.get_mut(&path) else {
            return;
        };
        if forgotten {
            path_tenants.removed.clear();
        }
        let ids: Vec<TenantId> = path_tenants.tenant_paths.keys().copied().collect();
        for id in ids {
            let config = self.tenants.get(&id).map(|tenant| tenant.config);
            if let (Some(tenant_path), Some(config)) =
                (path_tenants.tenant_paths.get_mut(&id), config)
            {
                if forgotten {
                    tenant_path.in_flight = 0;
                }
                tenant_path.set_controller(now, &config.controller, config.weight, u64::from(mtu));
            }
            path_tenants.wake(id);
        }
    }

    /// `path` is gone: what waits for it goes to where its application goes, or is dropped.
    pub(crate) fn move_all(
        &mut self,
        now: Instant,
        path: PathId,
        to: impl Fn(AppId) -> Option<(PathId, u16)>,
    ) {
        let Some(mut path_tenants) = self.paths.remove(&path) else {
            return;
        };
        self.cost -= path_tenants.cost;
        let mut moving = Vec::new();
        for (id, tenant_path) in &mut path_tenants.tenant_paths {
            let cost = tenant_path.cost();
            if let Some(tenant) = self.tenants.get_mut(id) {
                tenant.cost -= cost;
            }
            moving.extend(
                tenant_path
                    .take_all()
                    .into_iter()
                    .map(|queued| (*id, queued)),
            );
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

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
        let mut costs: BTreeMap<TenantId, u64> = BTreeMap::new();
        for path_tenants in self.paths.values() {
            path_tenants.check_invariants();
            for (id, tenant_path) in &path_tenants.tenant_paths {
                *costs.entry(*id).or_default() += tenant_path.cost();
            }
        }
        assert_eq!(self.cost, costs.values().sum::<u64>(), "memory of all");
        assert!(self.cost <= self.cost_max, "memory of all is bounded");
        for (id, tenant) in &self.tenants {
            let cost = costs.remove(id).unwrap_or(0);
            assert_eq!(tenant.cost, cost, "memory of a tenant");
        }
        assert!(
            costs.values().all(|cost| *cost == 0),
            "nothing waits of tenants that were removed"
        );
        assert!(self.tenants.len() <= self.tenants_max, "tenants");
    }

    fn snapshot(&self, now: Instant, id: TenantId, tenant: &Tenant) -> TenantSnapshot {
        let paths = self.paths.iter();
        let path_tenants = paths.filter_map(|(path, path_tenants)| {
            Some(path_tenants.tenant_paths.get(&id)?.snapshot(now, *path))
        });
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
            paths: path_tenants.collect(),
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

impl PathTenants {
    /// A tenant's tenant_path. `mtu`: largest packet of the path.
    fn tenant_path(
        &mut self,
        now: Instant,
        id: TenantId,
        config: &TenantConfig,
        mtu: u16,
    ) -> &mut TenantPath {
        self.tenant_paths.entry(id).or_insert_with(|| {
            let in_flight = self.removed.remove(&id).unwrap_or(0);
            let controller = (&config.controller, config.weight);
            Box::new(TenantPath::new(now, controller, u64::from(mtu), in_flight))
        })
    }

    /// Something has changed for a tenant_path: it may have something to send.
    fn wake(&mut self, id: TenantId) {
        let Some(tenant_path) = self.tenant_paths.get_mut(&id) else {
            return;
        };
        match tenant_path.place {
            Readiness::Off if !tenant_path.is_idle() => drop(self.make_ready(id)),
            // A faster rate has not to wait for what the slower one said.
            Readiness::Timed(at) if tenant_path.next_at() < at => {
                self.timed.remove(&(at, id));
                self.make_ready(id);
            }
            _ => {}
        }
    }

    /// Gives a tenant_path its place among the ready; its tag.
    fn make_ready(&mut self, id: TenantId) -> Option<u64> {
        let tenant_path = self.tenant_paths.get_mut(&id)?;
        // Who was away has not saved up anything.
        let tag = tenant_path.served.max(self.virtual_time);
        tenant_path.place = Readiness::Ready(tag);
        self.ready.insert((tag, id));
        Some(tag)
    }

    fn check_invariants(&self) {
        let costs = self.tenant_paths.values().map(|path| path.cost());
        assert_eq!(self.cost, costs.sum::<u64>(), "memory of a path");
        let mut ready = 0;
        let mut timed = 0;
        for (id, tenant_path) in &self.tenant_paths {
            match tenant_path.place {
                Readiness::Off => {}
                Readiness::Ready(tag) => {
                    assert!(self.ready.contains(&(tag, *id)), "who is ready is listed");
                    ready += 1;
                }
                Readiness::Timed(at) => {
                    assert!(self.timed.contains(&(at, *id)), "who is timed is listed");
                    timed += 1;
                }
            }
            tenant_path.flows.check_invariants();
        }
        assert_eq!(self.ready.len(), ready, "only who is ready is listed");
        assert_eq!(self.timed.len(), timed, "only who is timed is listed");
    }

    fn remove(&mut self, id: TenantId) {
        let Some(tenant_path) = self.tenant_paths.remove(&id) else {
            return;
        };
        self.cost -= tenant_path.cost();
        self.gathering.remove(&id);
        match tenant_path.place {
            Readiness::Off => {}
            Readiness::Ready(tag) => drop(self.ready.remove(&(tag, id))),
            Readiness::Timed(at) => drop(self.timed.remove(&(at, id))),
        }
        if tenant_path.in_flight > 0 {
            self.removed.insert(id, tenant_path.in_flight);
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
