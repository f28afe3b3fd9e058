//! Tenants on their way through the scheduler: their configuration, their IP packets, and the rates that they reach.

use keiro_units::{Bandwidth, Instant};

use super::SendScheduler;
use crate::{
    id::{AppId, PathId, TenantId},
    session::tenant::{
        FlowKey, LeavingPart, NewIpPacket, PathIdMtu, SchedulerGrant, TakenPacket, UnitMismatch,
    },
    tenant::{PacketDrops, TenantConfig, TenantError},
};

impl SendScheduler {
    /// Adds or changes a tenant.
    pub(crate) fn set_tenant(
        &mut self,
        now: Instant,
        config: TenantConfig,
    ) -> Result<(), TenantError> {
        self.tenants.set(now, config)
    }

    /// Forgets a tenant and its packets that wait. Tenant 0 stays, without a window.
    pub(crate) fn remove_tenant(&mut self, id: TenantId) {
        self.tenants.remove(id);
    }

    /// Queues a packet for a path; its tenant exists.
    pub(crate) fn push_packet(&mut self, now: Instant, path: PathIdMtu, packet: NewIpPacket) {
        self.tenants.push(now, path, packet);
    }

    /// Counts a packet that was refused.
    pub(crate) fn count_drop(&mut self, tenant: TenantId, count: impl FnOnce(&mut PacketDrops)) {
        self.tenants.count_drop(tenant, count);
    }

    /// Counts a packet that the peer sent; `false`: the tenant is unknown.
    pub(crate) fn on_packet_received(&mut self, tenant: TenantId, bytes: usize) -> bool {
        self.tenants.on_received(tenant, bytes)
    }

    /// What waits of a flow for `from` waits for `to` from now on.
    pub(crate) fn move_flow(&mut self, now: Instant, key: FlowKey, from: PathId, to: PathIdMtu) {
        self.tenants.move_flow(now, key, from, to);
    }

    /// `path` is gone: IP packets that wait for it move to the paths of their applications, or are dropped. Items
    /// that stay there get their turns when it is back.
    pub(crate) fn move_packets(
        &mut self,
        now: Instant,
        path: PathId,
        to: impl Fn(AppId) -> Option<PathIdMtu>,
    ) {
        self.tenants.move_all(now, path, to);
        self.queues.mark_path_newly_backlogged(path);
    }

    /// See [`Tenants::next_part_len`](crate::session::tenant::Tenants::next_part_len).
    pub(crate) fn next_part_len(
        &mut self,
        path: PathId,
        tenant: TenantId,
        room: usize,
    ) -> Option<usize> {
        self.tenants.next_part_len(path, tenant, room)
    }

    /// The part leaves whose length [`next_part_len`](Self::next_part_len) has said.
    pub(crate) fn poll_part(&mut self, path: PathId, tenant: TenantId) -> Option<LeavingPart<'_>> {
        self.tenants.poll_part(path, tenant)
    }

    /// Takes the IP packet that was announced, and looks at the next.
    pub(crate) fn take_packet(
        &mut self,
        now: Instant,
        path: PathId,
        grant: SchedulerGrant,
    ) -> Option<TakenPacket> {
        self.tenants.take(now, path, grant)
    }

    /// Drops the IP packet that was announced: the path has less room than when it was accepted.
    pub(crate) fn drop_too_long(&mut self, path: PathId, tenant: TenantId) {
        self.tenants.drop_too_long(path, tenant);
    }

    /// The controllers of a path begin anew. `forgotten`: nothing in flight on it is waited for.
    pub(crate) fn restart_controllers(&mut self, now: Instant, path: PathIdMtu, forgotten: bool) {
        self.tenants.restart(now, path.path, path.mtu, forgotten);
    }

    /// What the narrowest link of a path carries.
    pub(crate) fn on_capacity(&mut self, path: PathId, capacity: Option<Bandwidth>) {
        self.tenants.on_capacity(path, capacity);
    }

    /// A configured unit that contradicts what is found, for the driver.
    pub(crate) fn take_unit_mismatch(&mut self) -> Option<UnitMismatch> {
        self.tenants.take_unit_mismatch()
    }

    /// The peer says that a tenant of it is limited.
    pub(crate) fn on_tenant_limited(&mut self, now: Instant, tenant: TenantId) {
        self.tenants.on_limited(now, tenant);
    }

    /// See [`Tenants::largest_limited_rate`](crate::session::tenant::Tenants::largest_limited_rate).
    pub(crate) fn largest_limited_rate(&mut self, now: Instant) -> Option<f64> {
        self.tenants.largest_limited_rate(now)
    }

    /// The peer reports a unit.
    pub(crate) fn on_unit_report(&mut self, now: Instant, unit: Bandwidth) {
        self.tenants.on_unit_report(now, unit);
    }

    /// See [`Tenants::poll_limited`](crate::session::tenant::Tenants::poll_limited).
    pub(crate) fn poll_limited(&mut self, now: Instant, path: PathId, max: usize) -> Vec<TenantId> {
        self.tenants.poll_limited(now, path, max)
    }

    /// More of a tenant waits than is let go, and the peer is to be informed.
    pub(crate) fn take_limited(&mut self, now: Instant, path: PathId, tenant: TenantId) -> bool {
        self.tenants.take_limited(now, path, tenant)
    }
}
