//! Tenants towards one peer: their IP packets and windows on every path, and whose turn it is.
//!
//! Between tenants a path is shared by start-time fair queueing (Goyal, Vin, Cheng 1996): the tenant
//! that was served least per weight comes next, by IP bytes. A tenant whose window is full or whose
//! rate says to wait is passed over. Inside a tenant its flows of IP packets take turns (`flows`), and
//! all of these with its items, which are in `send_queues`. Windows are computed by
//! `keiro_model::fairness`.
//!
//! Tenant 0 is always there; unless it is configured it has weight 1 and no window.

mod codel;
mod flows;
mod limited;
mod parts;
mod path_tenants;
mod start_tags;
mod tenant_path;
#[cfg(test)]
mod tests;
mod turns;

use std::collections::{BTreeMap, BTreeSet};

use keiro_model::fairness::{common_unit::ArrivingRate, controller::ControllerConfig};
use keiro_stats::TenantPeerStats;
use keiro_units::{Bandwidth, ByteCount, Instant};

use self::{flows::QueuedPacket, limited::UnitMismatches, path_tenants::PathTenants};
pub(crate) use self::{
    flows::{FlowBacklog, QueuedOrder},
    limited::UnitMismatch,
    parts::LeavingPart,
    tenant_path::DeliveryReport,
};
use crate::{
    id::{AppId, PathId, TenantId},
    table::Table,
    tenant::{IpPacket, PacketDrops, TenantConfig, TenantError, TenantSnapshot},
    wire::{Frame, PacketOrder},
};

#[derive(Debug)]
struct Tenant {
    config: TenantConfig,
    /// False of tenant 0 where the driver has not configured it.
    is_configured: bool,
    /// Memory of what waits on all paths.
    cost: u64,
    accepted: u64,
    accepted_bytes: u64,
    received: u64,
    received_bytes: u64,
    marked: u64,
    drops: PacketDrops,
    /// What arrives of it.
    arriving: ArrivingRate,
}

/// All tenants towards one peer.
#[derive(Debug)]
pub(crate) struct Tenants {
    /// Tenant 0 is always among them.
    tenants: BTreeMap<TenantId, Tenant>,
    paths: Table<PathId, PathTenants>,
    tenants_max: usize,
    cost_max: u64,
    cost: u64,
    /// Packets that were split: the number of the next.
    split: u64,
    /// Tenants of the peer of which it says that they are limited. Bounded by the tenants that are configured.
    limited: BTreeSet<TenantId>,
    /// The unit that the peer has reported, and when.
    reported_unit: Option<(Bandwidth, Instant)>,
    unit_mismatches: UnitMismatches,
}

/// A turn: who may send one packet on a path, and with what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SchedulerGrant {
    pub(crate) tenant: TenantId,
    pub(crate) kind: GrantKind,
    /// IP bytes that the window has room for.
    pub(crate) room: u64,
    start_tag: u64,
}

/// What a tenant may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrantKind {
    /// IP packets, of which this is the first.
    IpPackets(FirstPacket),
    /// With messages, streams or datagrams.
    Items,
    /// With frames of the protocol itself and nothing else: the window of tenant 0 is full.
    Control,
}

/// The IP packet whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FirstPacket {
    /// Bytes of the IP packet.
    pub(crate) len: usize,
    pub(crate) ecn: u8,
    /// It has a place in its flow, which takes room in the datagram.
    pub(crate) is_ordered: bool,
}

impl FirstPacket {
    /// Bytes that it takes in a datagram at most.
    pub(crate) fn frame_len(&self, tenant: TenantId) -> usize {
        let head = match self.is_ordered {
            true => Frame::ordered_packet_head_len(tenant.0, self.len),
            false => Frame::packet_head_len(tenant.0, self.len),
        };
        head + self.len
    }
}

/// A path that may send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathSendState {
    pub(crate) id: PathId,
    /// Its largest IP packet: what a packet of items may have.
    pub(crate) mtu: u16,
    /// Bytes that an IP packet of a tenant takes beside its own, at most.
    pub(crate) packet_overhead: u64,
    /// When an aggregate may leave.
    pub(crate) coalescing_at: Instant,
    /// Frames of the protocol itself are to leave over it.
    pub(crate) control_waits: bool,
}

impl PathSendState {
    /// Bytes of a datagram that begins with an IP packet. What is longer than a datagram leaves in parts.
    fn needed(&self, first: FirstPacket) -> u64 {
        let order = match first.is_ordered {
            true => PacketOrder::LEN_MAX as u64,
            false => 0,
        };
        (first.len as u64 + order + self.packet_overhead).min(self.mtu.into())
    }

    pub(crate) fn id_and_mtu(&self) -> PathIdMtu {
        PathIdMtu {
            path: self.id,
            mtu: self.mtu,
        }
    }
}

/// A path, and its largest IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PathIdMtu {
    pub(crate) path: PathId,
    pub(crate) mtu: u16,
}

/// An IP packet of a tenant that is to be sent.
#[derive(Debug)]
pub(crate) struct NewIpPacket {
    pub(crate) tenant: TenantId,
    /// It takes this application's path.
    pub(crate) app: AppId,
    /// Its place in its flow, if that uses several paths.
    pub(crate) order: Option<QueuedOrder>,
    pub(crate) packet: IpPacket,
}

/// Backlog of a tenant's messages, streams and datagrams on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BacklogState {
    /// Nothing that may leave.
    None,
    /// Only items that wait until the path may send an aggregate.
    Coalescing,
    /// Something that may leave now.
    Ready,
}

impl SchedulerGrant {
    /// The ECN bits of the packet.
    pub(crate) fn ecn(&self) -> u8 {
        match self.kind {
            GrantKind::IpPackets(first) => first.ecn,
            GrantKind::Items | GrantKind::Control => 0,
        }
    }
}

/// A flow of an application's IP packets, or several that share a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FlowKey {
    tenant: TenantId,
    app: AppId,
    bucket: u32,
}

impl FlowKey {
    pub(crate) fn new(tenant: TenantId, app: AppId, flow_hash: u32) -> Self {
        let bucket = flow_hash % flows::FLOWS;
        Self {
            tenant,
            app,
            bucket,
        }
    }

    pub(crate) fn tenant(self) -> TenantId {
        self.tenant
    }
}

/// An IP packet that leaves.
#[derive(Debug)]
pub(crate) struct Leaving {
    pub(crate) app: AppId,
    /// When it came.
    pub(crate) since: Instant,
    pub(crate) marked: bool,
    pub(crate) order: Option<PacketOrder>,
    pub(crate) data: Vec<u8>,
}

/// An IP packet that was taken.
#[derive(Debug)]
pub(crate) struct TakenPacket {
    pub(crate) packet: Leaving,
    /// The next one of the same tenant, if it may share the datagram that is being written: it must have the same ECN
    /// bits.
    pub(crate) next: Option<FirstPacket>,
}

impl Tenants {
    pub(crate) fn new(tenants_max: usize, cost_max: u64) -> Self {
        Self {
            tenants: BTreeMap::from([(TenantId::ZERO, Tenant::unconfigured_zero())]),
            paths: Table::default(),
            tenants_max,
            cost_max,
            cost: 0,
            split: 0,
            limited: BTreeSet::new(),
            reported_unit: None,
            unit_mismatches: UnitMismatches::default(),
        }
    }

    /// Adds or changes a tenant. Its packets and windows stay, unless it gets another controller.
    pub(crate) fn set(&mut self, now: Instant, config: TenantConfig) -> Result<(), TenantError> {
        if !self.knows(config.id) && self.configured() >= self.tenants_max {
            let max = self.tenants_max;
            return Err(TenantError::TooMany { max });
        }
        let Some(tenant) = self.tenants.get_mut(&config.id) else {
            self.tenants.insert(config.id, Tenant::new(config));
            return Ok(());
        };
        tenant.is_configured = true;
        let before = std::mem::replace(&mut tenant.config, config);
        for path_tenants in self.paths.values_mut() {
            let Some(tenant_path) = path_tenants.tenant_paths.get_mut(config.id) else {
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

    /// Forgets a tenant and its packets that wait. Tenant 0 stays, without a window.
    pub(crate) fn remove(&mut self, id: TenantId) {
        if id == TenantId::ZERO {
            self.tenants.insert(id, Tenant::unconfigured_zero());
            for path_tenants in self.paths.values_mut() {
                if let Some(zero) = path_tenants.tenant_paths.get_mut(id) {
                    zero.remove_controller();
                }
                path_tenants.wake(id);
            }
            return;
        }
        let Some(tenant) = self.tenants.remove(&id) else {
            return;
        };
        self.cost -= tenant.cost;
        self.limited.remove(&id);
        for path_tenants in self.paths.values_mut() {
            path_tenants.remove(id);
        }
    }

    /// The driver has configured the tenant.
    pub(crate) fn knows(&self, id: TenantId) -> bool {
        self.tenants
            .get(&id)
            .is_some_and(|tenant| tenant.is_configured)
    }

    fn configured(&self) -> usize {
        let zero = usize::from(!self.knows(TenantId::ZERO));
        self.tenants.len() - zero
    }

    /// No IP packet waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.cost == 0
    }

    /// Counts a packet that was refused.
    pub(crate) fn count_drop(&mut self, id: TenantId, count: impl FnOnce(&mut PacketDrops)) {
        if let Some(tenant) = self.tenants.get_mut(&id) {
            count(&mut tenant.drops);
        }
    }

    /// Counts a packet that the peer sent; `false`: the tenant is unknown.
    pub(crate) fn on_received(&mut self, id: TenantId, bytes: usize) -> bool {
        let known = self.tenants.get_mut(&id);
        let Some(tenant) = known.filter(|tenant| tenant.is_configured) else {
            return false;
        };
        tenant.received += 1;
        tenant.received_bytes += bytes as u64;
        tenant.arriving.on_packet(ByteCount::new(bytes as u64));
        true
    }

    /// Queues a packet for a path; its tenant exists.
    pub(crate) fn push(&mut self, now: Instant, path: PathIdMtu, new: NewIpPacket) {
        let NewIpPacket {
            tenant: id,
            app,
            order,
            packet,
        } = new;
        if let Some(tenant) = self.tenants.get_mut(&id) {
            tenant.accepted += 1;
            tenant.accepted_bytes += packet.data.len() as u64;
        }
        let queued = QueuedPacket {
            app,
            flow_hash: packet.flow_hash,
            ecn: packet.ecn & 3,
            at: now,
            order,
            data: packet.data,
        };
        self.enqueue(now, path, id, queued);
    }

    fn enqueue(&mut self, now: Instant, path: PathIdMtu, id: TenantId, queued: QueuedPacket) {
        let Some(tenant) = self.tenants.get_mut(&id) else {
            return;
        };
        let path_tenants = self.paths.get_or_default(path.path);
        let tenant_path = path_tenants.tenant_path(now, id, &tenant.config, path.mtu);
        let before = tenant_path.cost();
        tenant_path.flows.push(queued);
        // The new packet makes room in its own queue, at no expense of other tenants.
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

    /// Packets of a tenant were acknowledged or lost.
    pub(crate) fn on_delivery_report(
        &mut self,
        now: Instant,
        path: PathIdMtu,
        id: TenantId,
        report: &DeliveryReport,
    ) {
        let reported_unit = self.reported_unit(now);
        let Some(path_tenants) = self.paths.get_mut(path.path) else {
            return;
        };
        path_tenants.line.reported_unit = reported_unit;
        let line = path_tenants.line;
        match path_tenants.tenant_paths.get_mut(id) {
            Some(tenant_path) => {
                tenant_path.on_line(line);
                tenant_path.on_delivery_report(now, report, u64::from(path.mtu));
                let found = tenant_path.mismatched_unit(now);
                path_tenants.wake(id);
                self.on_contradiction(now, path.path, id, found);
            }
            None => path_tenants.forget_removed(id, report.no_longer_in_flight),
        }
    }

    /// Memory of what waits for `path`.
    pub(crate) fn waiting_bytes(&self, path: PathId) -> u64 {
        self.paths
            .get(path)
            .map_or(0, |path_tenants| path_tenants.cost)
    }

    /// What a packet of a flow that comes next waits for on `path`.
    pub(crate) fn flow_backlog(&self, path: PathId, key: FlowKey) -> FlowBacklog {
        let path_tenants = self.paths.get(path);
        let tenant_path = path_tenants.and_then(|paths| paths.tenant_paths.get(key.tenant));
        tenant_path.map_or_else(FlowBacklog::default, |of| of.flows.backlog(key.bucket))
    }

    /// The rate at which a tenant's window and rate let it send on `path`; `None`: neither holds it back.
    pub(crate) fn allowed_rate(&self, path: PathId, id: TenantId) -> Option<Bandwidth> {
        let path_tenants = self.paths.get(path);
        path_tenants?.tenant_paths.get(id)?.allowed_rate()
    }

    /// `path` leads to another address: its controllers are restarted. `forgotten`: nothing in flight on
    /// it is waited for.
    pub(crate) fn restart(&mut self, now: Instant, path: PathId, mtu: u16, forgotten: bool) {
        let Some(path_tenants) = self.paths.get_mut(path) else {
            return;
        };
        if forgotten {
            path_tenants.removed.clear();
        }
        let ids: Vec<TenantId> = path_tenants.tenant_paths.keys().collect();
        for id in ids {
            let config = self.tenants.get(&id).map(|tenant| tenant.config);
            if let (Some(tenant_path), Some(config)) =
                (path_tenants.tenant_paths.get_mut(id), config)
            {
                if forgotten {
                    tenant_path.on_in_flight_forgotten();
                }
                tenant_path.set_controller(now, &config.controller, config.weight, u64::from(mtu));
            }
            path_tenants.wake(id);
        }
    }

    /// `path` is gone: packets that wait for it move to the paths of their applications, or are dropped.
    pub(crate) fn move_all(
        &mut self,
        now: Instant,
        path: PathId,
        to: impl Fn(AppId) -> Option<PathIdMtu>,
    ) {
        let Some(mut path_tenants) = self.paths.remove(path) else {
            return;
        };
        self.cost -= path_tenants.cost;
        let mut moving = Vec::new();
        for (id, tenant_path) in path_tenants.tenant_paths.iter_mut() {
            let cost = tenant_path.cost();
            if let Some(tenant) = self.tenants.get_mut(&id) {
                tenant.cost -= cost;
            }
            moving.extend(
                tenant_path
                    .take_all()
                    .into_iter()
                    .map(|queued| (id, queued)),
            );
        }
        for (id, queued) in moving {
            match to(queued.app).filter(|to| to.path != path) {
                Some(to) => self.enqueue(now, to, id, queued),
                None => self.count_drop(id, |drops| drops.no_path += 1),
            }
        }
    }

    /// What waits of a flow for `from` waits for `to` from now on. What has begun to leave stays.
    pub(crate) fn move_flow(&mut self, now: Instant, key: FlowKey, from: PathId, to: PathIdMtu) {
        let Some(path_tenants) = self.paths.get_mut(from) else {
            return;
        };
        let Some(tenant_path) = path_tenants.tenant_paths.get_mut(key.tenant) else {
            return;
        };
        let before = tenant_path.cost();
        let moving = tenant_path.flows.take_flow(key.bucket, key.app);
        let taken = before - tenant_path.cost();
        path_tenants.cost -= taken;
        self.cost -= taken;
        if let Some(tenant) = self.tenants.get_mut(&key.tenant) {
            tenant.cost -= taken;
        }
        for queued in moving {
            self.enqueue(now, to, key.tenant, queued);
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
        let tenants = self.tenants.range((from, Bound::Unbounded));
        tenants
            .filter(|(_, tenant)| tenant.is_configured)
            .take(max)
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
            for (id, tenant_path) in path_tenants.tenant_paths.iter() {
                *costs.entry(id).or_default() += tenant_path.cost();
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
        assert!(self.configured() <= self.tenants_max, "tenants");
    }

    /// Bytes that count as in flight, by path and tenant.
    pub(crate) fn in_flight(&self) -> impl Iterator<Item = (PathId, TenantId, u64)> {
        self.paths.iter().flat_map(|(path, path_tenants)| {
            let tenant_paths = path_tenants.tenant_paths.iter();
            tenant_paths.map(move |(id, tenant_path)| (path, id, tenant_path.in_flight()))
        })
    }

    fn snapshot(&self, now: Instant, id: TenantId, tenant: &Tenant) -> TenantSnapshot {
        let paths = self.paths.iter();
        let path_tenants = paths.filter_map(|(path, path_tenants)| {
            let tenant_path = path_tenants.tenant_paths.get(id)?;
            Some(tenant_path.snapshot(now, path, tenant.configured_unit()))
        });
        TenantSnapshot {
            id,
            weight: tenant.config.weight,
            controller: tenant.config.controller.name(),
            stats: TenantPeerStats {
                accepted_packets: tenant.accepted,
                accepted_bytes: tenant.accepted_bytes,
                received_packets: tenant.received,
                received_bytes: tenant.received_bytes,
                marked_packets: tenant.marked,
                queued_bytes: tenant.cost,
                ..TenantPeerStats::default()
            },
            drops: tenant.drops,
            paths: path_tenants.collect(),
        }
    }
}

impl Tenant {
    fn unconfigured_zero() -> Self {
        let config = TenantConfig {
            controller: ControllerConfig::Open,
            ..TenantConfig::new(TenantId::ZERO)
        };
        Self {
            is_configured: false,
            ..Self::new(config)
        }
    }

    fn new(config: TenantConfig) -> Self {
        Self {
            config,
            is_configured: true,
            cost: 0,
            accepted: 0,
            accepted_bytes: 0,
            received: 0,
            received_bytes: 0,
            marked: 0,
            drops: PacketDrops::default(),
            arriving: ArrivingRate::default(),
        }
    }
}
