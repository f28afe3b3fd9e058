//! The send scheduler: what leaves next on a path, of messages, streams, datagrams and IP packets of
//! all tenants.
//!
//! It joins two components. [`SendQueues`] has the items of every tenant in order of their deadlines;
//! [`Tenants`] has their IP packets, their windows, and the order of their turns. No other component asks
//! one about the other, and no other changes them: what the session does with items is in [`items`] and
//! [`streams`], what it does with tenants and their packets in [`tenants`]. Tenant 0 takes its turns like any other;
//! frames of the protocol itself are sent in its turns, and are the only thing that its window does not hold back.

mod items;
mod streams;
mod tenants;

use keiro_units::Instant;

use super::{
    path::AckSignals,
    recovery::AckedOrLostPacket,
    send_queues::{Coalescing, SendQueues},
    tenant::{
        BacklogState, DeliveryReport, GrantKind, PathIdMtu, PathSendState, SchedulerGrant, Tenants,
    },
};
use crate::{
    config::SchedulerKind,
    id::{AppId, PathId, TenantId},
};

/// What waits to be sent to one peer, and whose turn it is.
#[derive(Debug)]
pub(crate) struct SendScheduler {
    queues: SendQueues,
    tenants: Tenants,
    /// Empty between calls.
    reports: DeliveryReports,
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
pub(crate) struct AckedOrLostPackets<'a> {
    pub(crate) acked: &'a [AckedOrLostPacket],
    pub(crate) lost: &'a [AckedOrLostPacket],
    /// Of the acknowledgement that said so; `None`: a timer did.
    pub(crate) signals: Option<AckSignals>,
}

impl AckedOrLostPackets<'_> {
    /// Adds up what became of them, by tenant. The peer counts CE marks of all packets together, those that left
    /// with one among them.
    fn add_to(&self, reports: &mut DeliveryReports) {
        let left_marked = self.acked.iter().filter(|packet| packet.owner.ecn == 3);
        let marks = self.signals.map_or(0, |signals| signals.ce_marks);
        let mut marks = marks.saturating_sub(left_marked.count() as u64);
        for packet in self.acked {
            let report = reports.of(packet.owner.tenant);
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
            let report = reports.of(packet.owner.tenant);
            report.lost.add(packet);
            report.no_longer_in_flight += u64::from(packet.ip_bytes);
        }
        if let Some((tenant, round_trip)) = self.signals.and_then(|signals| signals.sampled) {
            reports.of(tenant).round_trip = Some(round_trip);
        }
    }
}

/// Reports of one acknowledgement, in order of their tenants. The memory is kept for the next.
#[derive(Debug, Default)]
struct DeliveryReports(Vec<(TenantId, DeliveryReport)>);

impl DeliveryReports {
    fn of(&mut self, tenant: TenantId) -> &mut DeliveryReport {
        let Self(reports) = self;
        let place = reports.binary_search_by_key(&tenant, |(of, _)| *of);
        let place = place.unwrap_or_else(|place| {
            reports.insert(place, (tenant, DeliveryReport::default()));
            place
        });
        &mut reports[place].1
    }
}

impl SendScheduler {
    pub(crate) fn new(kind: SchedulerKind, limits: SendLimits) -> Self {
        Self {
            queues: SendQueues::new(kind, limits.message_bytes_max),
            tenants: Tenants::new(limits.tenants_max, limits.packet_bytes_max),
            reports: DeliveryReports::default(),
        }
    }

    /// What waits of messages, datagrams and streams.
    pub(crate) fn queues(&self) -> &SendQueues {
        &self.queues
    }

    /// The tenants, with their IP packets that wait.
    pub(crate) fn tenants(&self) -> &Tenants {
        &self.tenants
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

    /// Tenants of which items have come for a path get their turns.
    pub(crate) fn admit_newly_backlogged(&mut self, now: Instant, path: PathSendState) {
        while let Some(tenant) = self.queues.take_newly_backlogged(path.id) {
            let state = self.backlog_state(path.id, tenant);
            self.tenants
                .on_backlog(now, path.id_and_mtu(), tenant, state);
        }
    }

    /// What leaves next on a path; `None`: nothing may leave now. The grant is followed by
    /// [`on_sent`](Self::on_sent) or [`on_refused`](Self::on_refused).
    pub(crate) fn poll_next(
        &mut self,
        now: Instant,
        path: PathSendState,
    ) -> Option<SchedulerGrant> {
        let may_coalesce = path.coalescing_at <= now;
        self.admit_newly_backlogged(now, path);
        if may_coalesce {
            self.tenants.on_may_coalesce(path.id);
        }
        let Self {
            queues, tenants, ..
        } = self;
        tenants.poll_next(now, path, |tenant| {
            match queues.first(path.id, tenant, may_coalesce) {
                Some(_) => BacklogState::Ready,
                None if queues.has_ready(path.id, tenant, Coalescing::Yes) => {
                    BacklogState::Coalescing
                }
                None => BacklogState::None,
            }
        })
    }

    /// After a packet of IP packets: the next turn, if it is again the same tenant's and only IP packets may leave in
    /// it. `None`: [`poll_next`](Self::poll_next) decides.
    pub(crate) fn poll_same(
        &mut self,
        now: Instant,
        path: PathSendState,
        grant: SchedulerGrant,
    ) -> Option<SchedulerGrant> {
        if path.control_waits || self.queues.has_newly_backlogged(path.id) {
            return None;
        }
        self.tenants.poll_same(now, path, grant)
    }

    /// When something may leave over a path, pacing aside; in the past: at once.
    pub(crate) fn waits_until(&self, path: PathSendState) -> Option<Instant> {
        let is_woken = self.queues.has_newly_backlogged(path.id) || path.control_waits;
        let at_once = is_woken.then_some(Instant::ZERO);
        let coalescing = self.tenants.awaits_coalescing(path.id);
        let coalescing = coalescing.then_some(path.coalescing_at);
        let turn = self.tenants.next_at(path.id);
        [at_once, coalescing, turn].into_iter().flatten().min()
    }

    /// What a tenant has of items for a path.
    fn backlog_state(&self, path: PathId, tenant: TenantId) -> BacklogState {
        let queues = &self.queues;
        if queues.has_ready(path, tenant, Coalescing::No) {
            BacklogState::Ready
        } else if queues.has_ready(path, tenant, Coalescing::Yes) {
            BacklogState::Coalescing
        } else {
            BacklogState::None
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
        if grant.kind == GrantKind::Items {
            let state = self.backlog_state(path, grant.tenant);
            self.tenants.on_items_sent(path, grant.tenant, state);
            self.queues.forget_newly_backlogged(path, grant.tenant);
        }
        self.tenants.on_sent(now, path, grant, bytes);
    }

    /// What was granted could not be written: items wait until the path may send an aggregate.
    pub(crate) fn on_refused(&mut self, path: PathId, grant: SchedulerGrant) {
        self.tenants.on_refused(path, grant);
    }

    /// A packet of a tenant has left that was not granted. `ip_bytes`: its size.
    pub(crate) fn on_ungranted_sent(
        &mut self,
        now: Instant,
        path: PathIdMtu,
        tenant: TenantId,
        ip_bytes: u64,
    ) {
        self.tenants.on_ungranted_sent(now, path, tenant, ip_bytes);
    }

    /// Reports to the tenants' controllers what became of their packets.
    pub(crate) fn on_packets_resolved(
        &mut self,
        now: Instant,
        path: PathIdMtu,
        resolved: AckedOrLostPackets<'_>,
    ) {
        let Self {
            tenants, reports, ..
        } = self;
        resolved.add_to(reports);
        for (tenant, report) in reports.0.drain(..) {
            tenants.on_delivery_report(now, path, tenant, &report);
        }
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
        self.queues.check_invariants();
        self.tenants.check_invariants();
        assert!(self.reports.0.is_empty(), "reports reach their tenants");
    }
}

#[cfg(test)]
mod tests;
