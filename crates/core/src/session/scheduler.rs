//! The send scheduler: what leaves next on a path, of messages, streams, datagrams and IP packets of
//! all tenants.
//!
//! It joins two components. [`SendQueues`] has the items of every tenant in order of their deadlines;
//! [`Tenants`] has their IP packets, their windows, and the order of their turns. No other component asks
//! one about the other. Tenant 0 takes its turns like any other; frames of the protocol itself are
//! sent in its turns, and are the only thing that its window does not hold back.

use std::collections::BTreeMap;

use keiro_units::Instant;

use super::{
    path::AckSignals,
    recovery::ResolvedPacket,
    send_queues::{Coalescing, SendQueues},
    tenant::{DeliveryReport, ItemsState, PathMtu, SchedulerGrant, SendingPath, Tenants},
};
use crate::{
    config::SchedulerKind,
    id::{AppId, PathId, TenantId},
    tenant::{TenantConfig, TenantError},
};

/// What waits to be sent to one peer, and whose turn it is.
#[derive(Debug)]
pub(crate) struct SendScheduler {
    queues: SendQueues,
    tenants: Tenants,
}

/// Bounds of what waits to be sent to one peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendLimits {
    pub(crate) message_bytes_max: u64,
    pub(crate) tenants_max: usize,
    /// Bytes of IP packets.
    pub(crate) packet_bytes_max: u64,
}

/// Packets on one path of which it is known what became of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResolvedPackets<'a> {
    pub(crate) acked: &'a [ResolvedPacket],
    pub(crate) lost: &'a [ResolvedPacket],
    /// Of the acknowledgement that said so; `None`: a timer did.
    pub(crate) signals: Option<AckSignals>,
}

impl ResolvedPackets<'_> {
    /// The same for every tenant. The peer counts CE marks of all packets together, those that left
    /// with one among them.
    fn reports(&self) -> BTreeMap<TenantId, DeliveryReport> {
        let left_marked = self.acked.iter().filter(|packet| packet.owner.ecn == 3);
        let marks = self.signals.map_or(0, |signals| signals.ce_marks);
        let mut marks = marks.saturating_sub(left_marked.count() as u64);
        let mut reports: BTreeMap<TenantId, DeliveryReport> = BTreeMap::new();
        for packet in self.acked {
            let report = reports.entry(packet.owner.tenant).or_default();
            let bytes = u64::from(packet.ip_bytes);
            report.acked += 1;
            report.acked_bytes += bytes;
            if !packet.was_lost {
                report.no_longer_in_flight += bytes;
            }
            if matches!(packet.owner.ecn, 1 | 2) && marks > 0 {
                marks -= 1;
                report.marked += 1;
            }
        }
        for packet in self.lost {
            let report = reports.entry(packet.owner.tenant).or_default();
            report.lost.add(packet);
            report.no_longer_in_flight += u64::from(packet.ip_bytes);
        }
        if let Some((tenant, round_trip)) = self.signals.and_then(|signals| signals.sampled) {
            reports.entry(tenant).or_default().round_trip = Some(round_trip);
        }
        reports
    }
}

impl SendScheduler {
    pub(crate) fn new(kind: SchedulerKind, limits: SendLimits) -> Self {
        Self {
            queues: SendQueues::new(kind, limits.message_bytes_max),
            tenants: Tenants::new(limits.tenants_max, limits.packet_bytes_max),
        }
    }

    pub(crate) fn queues(&self) -> &SendQueues {
        &self.queues
    }

    pub(crate) fn queues_mut(&mut self) -> &mut SendQueues {
        &mut self.queues
    }

    pub(crate) fn tenants(&self) -> &Tenants {
        &self.tenants
    }

    pub(crate) fn tenants_mut(&mut self) -> &mut Tenants {
        &mut self.tenants
    }

    pub(crate) fn set_tenant(
        &mut self,
        now: Instant,
        config: TenantConfig,
    ) -> Result<(), TenantError> {
        if !self.tenants.is_shared() {
            self.tenants.on_sharing_begins();
            self.queues.wake_all(TenantId::ZERO);
        }
        self.tenants.set(now, config)
    }

    /// Has the items of an application wait for their tenant, or for tenant 0 if that is not
    /// configured.
    pub(crate) fn assign_tenant(&mut self, app: AppId, wanted: Option<TenantId>) {
        let tenant = wanted.filter(|tenant| self.tenants.knows(*tenant));
        self.queues
            .set_tenant(app, tenant.unwrap_or(TenantId::ZERO));
    }

    /// Bytes that wait for `path`.
    pub(crate) fn waiting_bytes(&self, path: PathId) -> u64 {
        self.queues.waiting_bytes(path) + self.tenants.waiting_bytes(path)
    }

    /// Nothing waits or is unacknowledged.
    pub(crate) fn is_idle(&self) -> bool {
        self.queues.is_empty() && self.tenants.is_idle()
    }

    /// What leaves next on a path; `None`: nothing may leave now. The grant is followed by
    /// [`on_sent`](Self::on_sent) or [`on_refused`](Self::on_refused).
    pub(crate) fn poll_next(&mut self, now: Instant, path: SendingPath) -> Option<SchedulerGrant> {
        let may_coalesce = path.coalescing_at <= now;
        if !self.tenants.is_shared() {
            let waits_until = self.alone_waits_until(path)?;
            return (waits_until <= now).then_some(SchedulerGrant::ALONE);
        }
        for tenant in self.queues.take_woken(path.id) {
            self.tenants.on_items(now, path.id, path.mtu, tenant);
        }
        if may_coalesce {
            self.tenants.on_may_coalesce(path.id);
        }
        let Self { queues, tenants } = self;
        tenants.poll_next(now, path, |tenant| {
            match queues.first(path.id, tenant, may_coalesce) {
                Some(_) => ItemsState::Ready,
                None if queues.has_ready(path.id, tenant, Coalescing::Yes) => {
                    ItemsState::Coalescing
                }
                None => ItemsState::None,
            }
        })
    }

    /// When something may leave over a path, pacing aside; in the past: at once.
    pub(crate) fn waits_until(&self, path: SendingPath) -> Option<Instant> {
        if !self.tenants.is_shared() {
            return self.alone_waits_until(path);
        }
        let is_woken = self.queues.has_woken(path.id) || path.control_waits;
        let at_once = is_woken.then_some(Instant::ZERO);
        let coalescing = self.tenants.awaits_coalescing(path.id);
        let coalescing = coalescing.then_some(path.coalescing_at);
        let turn = self.tenants.next_at(path.id);
        [at_once, coalescing, turn].into_iter().flatten().min()
    }

    /// The same where tenant 0 is the only one, so that there are neither turns nor windows.
    fn alone_waits_until(&self, path: SendingPath) -> Option<Instant> {
        let (queues, zero) = (&self.queues, TenantId::ZERO);
        if path.control_waits || queues.has_ready(path.id, zero, Coalescing::No) {
            return Some(Instant::ZERO);
        }
        let coalesces = queues.has_ready(path.id, zero, Coalescing::Yes);
        coalesces.then_some(path.coalescing_at)
    }

    /// A packet that was granted has left. `bytes`: its IP bytes.
    pub(crate) fn on_sent(
        &mut self,
        now: Instant,
        path: PathId,
        grant: SchedulerGrant,
        bytes: u64,
    ) {
        if self.tenants.is_shared() {
            self.tenants.on_sent(now, path, grant, bytes);
        }
    }

    /// What was granted could not be written: it waits until the path may send an aggregate.
    pub(crate) fn on_refused(&mut self, path: PathId, grant: SchedulerGrant) {
        if self.tenants.is_shared() {
            self.tenants.on_items_refused(path, grant);
        }
    }

    /// A packet of a tenant has left that was not granted. `ip_bytes`: its size.
    pub(crate) fn on_ungranted_sent(
        &mut self,
        now: Instant,
        path: PathMtu,
        tenant: TenantId,
        ip_bytes: u64,
    ) {
        if self.tenants.is_shared() {
            self.tenants.on_ungranted_sent(now, path, tenant, ip_bytes);
        }
    }

    /// Reports to the tenants' controllers what became of their packets.
    pub(crate) fn on_packets_resolved(
        &mut self,
        now: Instant,
        path: PathMtu,
        resolved: ResolvedPackets<'_>,
    ) {
        if !self.tenants.is_shared() {
            return;
        }
        for (tenant, report) in resolved.reports() {
            self.tenants.on_delivery_report(now, path, tenant, &report);
        }
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
        self.queues.check_invariants();
        self.tenants.check_invariants();
    }
}

#[cfg(test)]
mod tests;
