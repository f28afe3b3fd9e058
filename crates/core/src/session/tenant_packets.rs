//! IP packets of tenants: accepted, written into datagrams, delivered, and reported to the tenants'
//! controllers.

use std::collections::BTreeMap;

use keiro_units::Instant;

use super::{
    Session,
    path::{AckSignals, Path},
    receive::PacketContext,
    recovery::{Owner, PacketKind, ResolvedPacket, SentFrames},
    send_queues::{Coalescing, SendQueues},
    tenant::{DeliveryReport, GrantKind, Items, SchedulerGrant},
    transmit::Packet,
};
use crate::{
    config::DeliveryClass,
    endpoint::TransmitBuf,
    event::Event,
    id::{AppId, PathId, TenantId},
    tenant::{IpPacket, PacketError, TenantConfig, TenantError, TenantSnapshot},
    wire::{DATA_HEADER_LEN, Frame, TAG_LEN},
};

/// What is sent next.
#[derive(Clone, Copy, Debug)]
pub(super) enum NextSend {
    /// Messages, streams and datagrams of tenant 0, and frames of the protocol itself.
    TenantZero,
    /// Messages, streams and datagrams of a tenant.
    Items(SchedulerGrant),
    /// An IP packet: its length and ECN.
    IpPacket(SchedulerGrant, (usize, u8)),
}

impl NextSend {
    pub(super) fn tenant(self) -> TenantId {
        match self {
            Self::TenantZero => TenantId::ZERO,
            Self::Items(turn) | Self::IpPacket(turn, _) => turn.tenant,
        }
    }

    /// The ECN bits of what it carries.
    pub(super) fn ecn(self) -> u8 {
        match self {
            Self::TenantZero | Self::Items(_) => 0,
            Self::IpPacket(_, (_, ecn)) => ecn,
        }
    }
}

impl Session {
    pub(crate) fn set_tenant(
        &mut self,
        now: Instant,
        config: TenantConfig,
    ) -> Result<(), TenantError> {
        self.tenants.set(now, config)?;
        self.unknown_locally.forget(config.id);
        self.assign_tenant_apps(config.id);
        Ok(())
    }

    pub(crate) fn remove_tenant(&mut self, id: TenantId) {
        self.tenants.remove(id);
        self.unknown_at_peer.forget(id);
        self.assign_tenant_apps(id);
    }

    /// The peer drops packets of a tenant of ours, since it does not know it.
    pub(super) fn on_unknown_tenant(&mut self, now: Instant, tenant: TenantId, packets: u64) {
        if !self.tenants.knows(tenant) {
            return;
        }
        let (more, is_news) = self.unknown_at_peer.on_report(now, tenant, packets);
        self.tenants.count_drop(tenant, |drops| {
            drops.unknown_at_peer = drops.unknown_at_peer.saturating_add(more);
        });
        if is_news {
            let peer = self.id;
            self.events.push_back(Event::TenantRefused { peer, tenant });
        }
    }

    /// Whose the items of a tenant's applications are.
    fn assign_tenant_apps(&mut self, id: TenantId) {
        let apps = self.apps.iter().filter(|(_, app)| app.config.tenant == id);
        let apps: Vec<AppId> = apps.map(|(app, _)| *app).collect();
        for app in apps {
            self.assign_tenant(app);
        }
    }

    /// An application's items are its tenant's, or tenant 0's where that is not configured.
    pub(super) fn assign_tenant(&mut self, app: AppId) {
        let wanted = self.apps.get(&app).map(|app| app.config.tenant);
        let tenant = wanted.filter(|tenant| self.tenants.knows(*tenant));
        self.queues
            .set_tenant(app, tenant.unwrap_or(TenantId::ZERO));
    }

    pub(crate) fn tenant_snapshots(
        &self,
        now: Instant,
        after: Option<TenantId>,
        max: usize,
    ) -> Vec<TenantSnapshot> {
        self.tenants.snapshots(now, after, max)
    }

    pub(crate) fn send_packet(
        &mut self,
        now: Instant,
        tenant: TenantId,
        app: AppId,
        packet: IpPacket,
    ) -> Result<(), PacketError> {
        if tenant == TenantId::ZERO || !self.tenants.knows(tenant) {
            return Err(PacketError::UnknownTenant);
        }
        let entry = self
            .apps
            .get_mut(&app)
            .filter(|entry| entry.takes(DeliveryClass::Datagram))
            .ok_or(PacketError::UnknownApplication)?;
        let path = entry.active.and_then(|path| self.paths.get(path));
        let Some(path) = path else {
            self.tenants.count_drop(tenant, |drops| drops.no_path += 1);
            return Err(PacketError::NoPath);
        };
        let (len, room) = (packet.data.len(), room_for_packet(path, tenant));
        if len > room {
            self.tenants.count_drop(tenant, |drops| drops.too_long += 1);
            return Err(PacketError::TooLong { len, room });
        }
        entry.sent += 1;
        entry.sent_bytes += len as u64;
        entry.workload.on_made(now, len);
        let path = (path.id(), path.mtu());
        self.tenants.push(now, (tenant, app), path, packet);
        Ok(())
    }

    /// Longest IP packet of a tenant that the path of an application has room for.
    pub(crate) fn packet_room(&self, tenant: TenantId, app: AppId) -> Option<usize> {
        let path = self.active_path(app)?;
        Some(room_for_packet(self.paths.get(path)?, tenant))
    }

    /// Whose turn it is on a path, of those that have something to send now.
    pub(super) fn next_send(&mut self, now: Instant, id: PathId) -> Option<NextSend> {
        let path = self.paths.get(id)?;
        let overhead = u64::from(path.ip_overhead()) + (DATA_HEADER_LEN + TAG_LEN) as u64;
        let zero = self.zero_waits_until(path).is_some_and(|at| at <= now);
        let ready = |coalescing| self.queues.has_ready(id, TenantId::ZERO, coalescing);
        if !zero && (ready(Coalescing::No) || ready(Coalescing::Yes)) {
            self.tenants.on_zero_limited(id);
        }
        let may_gather = path.aggregator().may_send(now);
        // A frame's head is counted at its longest: the window is never exceeded.
        let whole = path.mtu();
        let head = Frame::packet_head_len(u32::MAX, usize::from(whole));
        let lengths = (overhead + head as u64, u64::from(whole));
        for (path, tenant) in self.queues.take_woken() {
            if let Some(path) = self.paths.get(path) {
                let path = (path.id(), path.mtu());
                self.tenants.on_items(now, path, tenant);
            }
        }
        if may_gather {
            self.tenants.on_may_gather(id);
        }
        let queues = &mut self.queues;
        let items = |tenant| items_of(queues, (id, tenant), may_gather);
        let turn = self.tenants.next(now, id, lengths, items);
        match turn {
            Some(turn) if !zero || !self.tenants.zero_is_before(id, turn) => match turn.load {
                GrantKind::IpPacket { len, ecn } => Some(NextSend::IpPacket(turn, (len, ecn))),
                GrantKind::Items => Some(NextSend::Items(turn)),
            },
            _ => zero.then_some(NextSend::TenantZero),
        }
    }

    /// Writes one datagram with IP packets of the tenant whose turn it is, at most `limit` bytes of
    /// UDP payload; `None`: not even the first fits.
    pub(super) fn write_packets(
        &mut self,
        now: Instant,
        id: PathId,
        (turn, (first, ecn)): (SchedulerGrant, (usize, u8)),
        limit: usize,
        buf: &mut TransmitBuf,
    ) -> Option<Packet> {
        let path = self.paths.get(id)?;
        let ip_overhead = u64::from(path.ip_overhead());
        let whole = path.udp_payload_max();
        let start = self.begin_packet(id, buf)?;
        // What the window has room for bounds all that the datagram holds.
        let windowed = usize::try_from(turn.room.saturating_sub(ip_overhead)).unwrap_or(whole);
        let end = start + limit.min(windowed) - TAG_LEN;
        let tenant = turn.tenant.0;
        let need = |len: usize| Frame::packet_head_len(tenant, len) + len;
        if buf.bytes.len() + need(first) > end {
            buf.bytes.truncate(start);
            if DATA_HEADER_LEN + TAG_LEN + need(first) > whole {
                // The path has less room than when it was accepted.
                self.tenants.take(id, turn.tenant);
                self.tenants
                    .count_drop(turn.tenant, |drops| drops.too_long += 1);
            }
            return None;
        }
        let mut frames = SentFrames::default();
        let acks_end = end - need(first);
        self.write_acks(now, id, true, acks_end, &mut buf.bytes, &mut frames);
        self.unknown_locally.write(now, acks_end, &mut buf.bytes);
        let mut next = Some(first);
        while next.is_some_and(|len| buf.bytes.len() + need(len) <= end) {
            let Some(leaving) = self.tenants.take(id, turn.tenant) else {
                break;
            };
            Frame::Packet {
                tenant,
                marked: leaving.marked,
                data: &leaving.data,
            }
            .encode(&mut buf.bytes);
            buf.spare.push(leaving.data);
            next = self.tenants.next_of(now, id, turn, ecn);
        }
        let len = buf.bytes.len() - start + TAG_LEN;
        self.tenants
            .on_sent(now, id, turn, len as u64 + ip_overhead);
        Some(Packet {
            len,
            kind: PacketKind::AckEliciting,
            frames,
            copies: None,
            owner: Owner {
                tenant: turn.tenant,
                ecn,
            },
        })
    }

    pub(super) fn deliver_packet(
        &mut self,
        context: PacketContext,
        tenant: TenantId,
        marked: bool,
        data: &[u8],
    ) {
        if !self.tenants.on_received(tenant, data.len()) {
            self.drops.unknown_tenant += 1;
            if self.unknown_locally.on_packet(context.now, tenant) {
                let peer = self.id;
                self.events.push_back(Event::TenantUnknown { peer, tenant });
            }
            return;
        }
        if self.receiver.is_delivery_full() {
            self.tenants.count_drop(tenant, |drops| drops.arrived += 1);
            return;
        }
        let ecn = if marked { 3 } else { context.ecn };
        self.receiver.deliver_packet(tenant, ecn, data);
    }

    /// Reports to the tenants' controllers what became of their packets: (acknowledged, lost).
    pub(super) fn report_to_tenants(
        &mut self,
        now: Instant,
        id: PathId,
        (acked, lost): (&[ResolvedPacket], &[ResolvedPacket]),
        signals: Option<AckSignals>,
    ) {
        if self.tenants.is_empty() {
            return;
        }
        let Some(path) = self.paths.get(id) else {
            return;
        };
        let mtu = path.mtu();
        // The peer counts marks of all packets together, those that left with one among them.
        let left_marked = acked.iter().filter(|packet| packet.owner.ecn == 3);
        let marks = signals.map_or(0, |signals| signals.ce_marks);
        let mut marks = marks.saturating_sub(left_marked.count() as u64);
        let mut reports: BTreeMap<TenantId, DeliveryReport> = BTreeMap::new();
        for packet in acked {
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
        for packet in lost {
            let report = reports.entry(packet.owner.tenant).or_default();
            // An MTU probe that is lost is no sign of congestion (RFC 8899 §3).
            report.lost += u64::from(!packet.is_mtu_probe);
            report.no_longer_in_flight += u64::from(packet.ip_bytes);
        }
        if let Some((tenant, round_trip)) = signals.and_then(|signals| signals.sampled) {
            reports.entry(tenant).or_default().round_trip = Some(round_trip);
        }
        for (tenant, report) in reports {
            self.tenants
                .on_delivery_report(now, (id, tenant), &report, mtu);
        }
    }

    /// What waits for a path that is gone takes the ones that its applications take now.
    pub(super) fn move_packets(&mut self, now: Instant, id: PathId) {
        let (apps, paths) = (&self.apps, &self.paths);
        self.tenants.move_all(now, id, |app| {
            let path = paths.get(apps.get(&app)?.active?)?;
            Some((path.id(), path.mtu()))
        });
    }
}

/// What a tenant has of messages, streams and datagrams that may leave over a path.
fn items_of(queues: &mut SendQueues, of: (PathId, TenantId), may_gather: bool) -> Items {
    let (path, tenant) = of;
    match queues.first(path, tenant, may_gather) {
        Some(_) => Items::Ready,
        None if queues.has_ready(path, tenant, Coalescing::Yes) => Items::Gathering,
        None => Items::None,
    }
}

/// Longest IP packet that fits into a datagram of the path with nothing beside it.
fn room_for_packet(path: &Path, tenant: TenantId) -> usize {
    let clear = Path::clear_text_max(path.udp_payload_max());
    clear.saturating_sub(Frame::packet_head_len(tenant.0, clear))
}
