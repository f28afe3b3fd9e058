//! Turns on a path: which tenant may send next, the packets that it takes, and what it is charged.

use keiro_units::Instant;

use super::{
    BacklogState, GrantKind, Leaving, LeavingPart, PathIdMtu, PathSendState, SchedulerGrant,
    TakenPacket, Tenants,
    path_tenants::virtual_time_of,
    tenant_path::{Readiness, SfqCharge},
};
use crate::id::{PathId, TenantId};

impl Tenants {
    /// Items of a tenant have come for a path; what it has of them.
    pub(crate) fn on_backlog(
        &mut self,
        now: Instant,
        path: PathIdMtu,
        id: TenantId,
        state: BacklogState,
    ) {
        let Some(tenant) = self
            .tenants
            .get(&id)
            .filter(|_| state != BacklogState::None)
        else {
            return;
        };
        let path_tenants = self.paths.get_or_default(path.path);
        path_tenants.tenant_path(now, id, &tenant.config, path.mtu);
        path_tenants.on_backlog(id, state);
        path_tenants.wake(id);
    }

    /// Items of a tenant have left; what it has left of them.
    pub(crate) fn on_items_sent(&mut self, path: PathId, id: TenantId, state: BacklogState) {
        if let Some(path_tenants) = self.paths.get_mut(path) {
            path_tenants.on_backlog(id, state);
        }
    }

    /// What was granted could not leave: items wait until the path may send an aggregate.
    pub(crate) fn on_refused(&mut self, path: PathId, grant: SchedulerGrant) {
        if let Some(path_tenants) = self.paths.get_mut(path) {
            if grant.kind == GrantKind::Items {
                path_tenants.on_backlog(grant.tenant, BacklogState::Coalescing);
            }
            path_tenants.leave_if_idle(grant.tenant);
        }
    }

    /// The path may send an aggregate: tenants that have waited for that are ready again.
    pub(crate) fn on_may_coalesce(&mut self, path: PathId) {
        let Some(path_tenants) = self.paths.get_mut(path) else {
            return;
        };
        for id in std::mem::take(&mut path_tenants.coalescing) {
            if let Some(tenant_path) = path_tenants.tenant_paths.get_mut(id) {
                tenant_path.set_has_backlog(true);
                path_tenants.wake(id);
            }
        }
    }

    /// Items of a tenant wait until the path may send an aggregate.
    pub(crate) fn awaits_coalescing(&self, path: PathId) -> bool {
        let path_tenants = self.paths.get(path);
        path_tenants.is_some_and(|path_tenants| !path_tenants.coalescing.is_empty())
    }

    /// Whose turn it is on a path, of those that may send now. `items`: what a tenant has of them.
    pub(crate) fn poll_next(
        &mut self,
        now: Instant,
        path: PathSendState,
        mut items: impl FnMut(TenantId) -> BacklogState,
    ) -> Option<SchedulerGrant> {
        if path.control_waits {
            self.on_control(now, path.id, path.mtu);
        }
        let path_tenants = self.paths.get_mut(path.id)?;
        path_tenants.make_timed_ready(now);
        // Every turn either ends the search or takes one tenant from the ready.
        while let Some((start_tag, id)) = path_tenants.ready.first() {
            let tenant_path = path_tenants
                .tenant_paths
                .get_mut(id)
                .expect("a tenant that is ready exists");
            let before = tenant_path.cost();
            let packet = tenant_path.first_packet(now);
            let (after, delayed) = (tenant_path.cost(), tenant_path.take_delayed());
            if let Some(tenant) = self.tenants.get_mut(&id) {
                tenant.drops.delayed += delayed;
                for sum in [&mut tenant.cost, &mut self.cost, &mut path_tenants.cost] {
                    *sum = *sum + after - before;
                }
            }
            let is_items_turn = tenant_path.is_items_turn(packet.is_some());
            let has = match is_items_turn {
                true => items(id),
                false => BacklogState::None,
            };
            if is_items_turn && has != BacklogState::Ready {
                tenant_path.set_has_backlog(false);
            }
            if has == BacklogState::Coalescing {
                path_tenants.coalescing.insert(id);
            }
            let kind = match has {
                BacklogState::Ready => Some(GrantKind::Items),
                BacklogState::None | BacklogState::Coalescing => packet.map(GrantKind::IpPackets),
            };
            let needed = match kind {
                Some(GrantKind::IpPackets(first)) => path.needed(first),
                _ => u64::from(path.mtu),
            };
            let mut grant = SchedulerGrant {
                tenant: id,
                kind: GrantKind::Control,
                room: tenant_path.room(),
                start_tag,
            };
            let held_back = match kind {
                None => Some(Readiness::Blocked),
                Some(_) => tenant_path.held_back(now, needed),
            };
            if let (Some(kind), None) = (kind, held_back) {
                grant.kind = kind;
                return Some(grant);
            }
            if id == TenantId::ZERO && path.control_waits {
                return Some(grant);
            }
            path_tenants.leave_ready(id, held_back.unwrap_or(Readiness::Blocked));
        }
        None
    }

    /// See [`SendScheduler::poll_same`](super::scheduler::SendScheduler::poll_same).
    pub(crate) fn poll_same(
        &mut self,
        now: Instant,
        path: PathSendState,
        grant: SchedulerGrant,
    ) -> Option<SchedulerGrant> {
        let path_tenants = self.paths.get_mut(path.id)?;
        let (start_tag, id) = path_tenants.ready.first()?;
        let tenant_path = path_tenants.tenant_paths.get_mut(id)?;
        if id != grant.tenant || tenant_path.has_backlog() {
            return None;
        }
        // It was taken out of its flow when the packet before was written.
        let first = tenant_path.staged_packet()?;
        let held_back = tenant_path.held_back(now, path.needed(first));
        held_back.is_none().then(|| SchedulerGrant {
            tenant: id,
            kind: GrantKind::IpPackets(first),
            room: tenant_path.room(),
            start_tag,
        })
    }

    /// Frames of the protocol itself are to leave: tenant 0 has a turn whatever its window says.
    fn on_control(&mut self, now: Instant, path: PathId, mtu: u16) {
        if let Some(zero) = self.tenants.get(&TenantId::ZERO) {
            let path_tenants = self.paths.get_or_default(path);
            path_tenants.tenant_path(now, TenantId::ZERO, &zero.config, mtu);
            path_tenants.make_ready_now(TenantId::ZERO);
        }
    }

    /// Length of the next part, of at most `room` bytes, of the packet that [`poll_next`](Self::poll_next) has
    /// announced; `None`: the packet is too long to leave in parts.
    pub(crate) fn next_part_len(
        &mut self,
        path: PathId,
        id: TenantId,
        room: usize,
    ) -> Option<usize> {
        let path_tenants = self.paths.get_mut(path)?;
        let tenant_path = path_tenants.tenant_paths.get_mut(id)?;
        let (len, is_new) = tenant_path.next_part_len(self.split, room)?;
        self.split += u64::from(is_new);
        Some(len)
    }

    /// The part leaves whose length [`next_part_len`](Self::next_part_len) has said. With the last one the packet is
    /// to be taken.
    pub(crate) fn poll_part(&mut self, path: PathId, id: TenantId) -> Option<LeavingPart<'_>> {
        let path_tenants = self.paths.get_mut(path)?;
        path_tenants.tenant_paths.get_mut(id)?.poll_part()
    }

    /// Takes the packet whose turn it is, and looks at the next one.
    pub(crate) fn take(
        &mut self,
        now: Instant,
        path: PathId,
        grant: SchedulerGrant,
    ) -> Option<TakenPacket> {
        let path_tenants = self.paths.get_mut(path)?;
        let tenant_path = path_tenants.tenant_paths.get_mut(grant.tenant)?;
        let tenant = self.tenants.get_mut(&grant.tenant)?;
        let before = tenant_path.cost();
        let taken = tenant_path.take()?;
        let next = tenant_path.first_packet(now);
        tenant.marked += u64::from(taken.marked);
        tenant.drops.delayed += tenant_path.take_delayed();
        let freed = before - tenant_path.cost();
        for sum in [&mut tenant.cost, &mut self.cost, &mut path_tenants.cost] {
            *sum -= freed;
        }
        Some(TakenPacket {
            packet: Leaving {
                app: taken.packet.app,
                since: taken.packet.at,
                marked: taken.marked,
                order: taken.packet.order.map(|of| of.order),
                data: taken.packet.data,
            },
            next: next.filter(|next| next.ecn == grant.ecn()),
        })
    }

    /// Drops the packet whose turn it is.
    pub(crate) fn drop_too_long(&mut self, path: PathId, id: TenantId) {
        let path_tenants = self.paths.get_mut(path);
        let taken = path_tenants.and_then(|path_tenants| {
            let cost = path_tenants.tenant_paths.get_mut(id)?.take()?.packet.cost();
            path_tenants.cost -= cost;
            Some(cost)
        });
        if let (Some(cost), Some(tenant)) = (taken, self.tenants.get_mut(&id)) {
            tenant.cost -= cost;
            tenant.drops.too_long += 1;
            self.cost -= cost;
        }
    }

    /// A packet that was granted has left. `bytes`: its IP bytes.
    pub(crate) fn on_sent(
        &mut self,
        now: Instant,
        path: PathId,
        grant: SchedulerGrant,
        bytes: u64,
    ) {
        let Some(tenant) = self.tenants.get(&grant.tenant) else {
            return;
        };
        let Some(path_tenants) = self.paths.get_mut(path) else {
            return;
        };
        path_tenants.virtual_time = path_tenants.virtual_time.max(grant.start_tag);
        if let Some(tenant_path) = path_tenants.tenant_paths.get_mut(grant.tenant) {
            let service = SfqCharge {
                bytes,
                start_tag: grant.start_tag,
                virtual_time: virtual_time_of(bytes, tenant.config.weight),
            };
            tenant_path.on_sent(now, service);
            tenant_path.on_turn(!matches!(grant.kind, GrantKind::IpPackets(_)));
        }
        path_tenants.on_turn_over(grant);
    }

    /// A packet of a tenant has left that was not granted: a copy, a probe, or parity. It is charged to
    /// the window and never held back by it.
    pub(crate) fn on_ungranted_sent(
        &mut self,
        now: Instant,
        path: PathIdMtu,
        id: TenantId,
        bytes: u64,
    ) {
        let Some(tenant) = self.tenants.get(&id) else {
            return;
        };
        let path_tenants = self.paths.get_or_default(path.path);
        let service = SfqCharge {
            bytes,
            start_tag: path_tenants.virtual_time,
            virtual_time: virtual_time_of(bytes, tenant.config.weight),
        };
        let tenant_path = path_tenants.tenant_path(now, id, &tenant.config, path.mtu);
        tenant_path.on_sent(now, service);
    }

    /// The window and the rate of a tenant let `bytes` leave now without a grant.
    pub(crate) fn may_send_ungranted(
        &self,
        now: Instant,
        path: PathId,
        id: TenantId,
        bytes: u64,
    ) -> bool {
        let path_tenants = self.paths.get(path);
        let tenant_path = path_tenants.and_then(|paths| paths.tenant_paths.get(id));
        tenant_path.is_none_or(|path| path.room() >= bytes && path.next_at() <= now)
    }

    /// When a tenant's turn may come on `path`, its pacer aside; in the past: at once. `None`:
    /// nothing waits, or only what an acknowledgement or the path's coalescing will let go.
    pub(crate) fn next_at(&self, path: PathId) -> Option<Instant> {
        let path_tenants = self.paths.get(path)?;
        if path_tenants.ready.is_empty() {
            return path_tenants.timed.first().map(|(at, _)| *at);
        }
        Some(Instant::ZERO)
    }
}
