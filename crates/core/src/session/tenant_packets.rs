//! IP packets of tenants: accepted, written into datagrams, delivered, and reported to the tenants'
//! controllers.

use std::collections::BTreeMap;

use keiro_units::Instant;

use super::{
    Session,
    path::{AckSignals, Path},
    receive::PacketContext,
    recovery::{Owner, PacketKind, ResolvedPacket, SentFrames},
    tenant::{DeliveryReport, FirstPacket, SchedulerGrant},
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

impl Session {
    pub(crate) fn set_tenant(
        &mut self,
        now: Instant,
        config: TenantConfig,
    ) -> Result<(), TenantError> {
        self.scheduler.set_tenant(now, config)?;
        self.unknown_locally.forget(config.id);
        self.assign_tenant_apps(config.id);
        Ok(())
    }

    pub(crate) fn remove_tenant(&mut self, id: TenantId) {
        self.scheduler.tenants_mut().remove(id);
        self.unknown_at_peer.forget(id);
        self.assign_tenant_apps(id);
    }

    /// The peer drops packets of a tenant of ours, since it does not know it.
    pub(super) fn on_unknown_tenant(&mut self, now: Instant, tenant: TenantId, packets: u64) {
        if !self.scheduler.tenants().knows(tenant) {
            return;
        }
        let (more, is_news) = self.unknown_at_peer.on_report(now, tenant, packets);
        self.scheduler.tenants_mut().count_drop(tenant, |drops| {
            drops.unknown_at_peer = drops.unknown_at_peer.saturating_add(more);
        });
        if is_news {
            let peer = self.id;
            self.events.push_back(Event::TenantRefused { peer, tenant });
        }
    }

    /// Assigns the applications of a tenant, which has been added or removed.
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
        self.scheduler.assign_tenant(app, wanted);
    }

    pub(crate) fn tenant_snapshots(
        &self,
        now: Instant,
        after: Option<TenantId>,
        max: usize,
    ) -> Vec<TenantSnapshot> {
        self.scheduler.tenants().snapshots(now, after, max)
    }

    pub(crate) fn send_packet(
        &mut self,
        now: Instant,
        tenant: TenantId,
        app: AppId,
        packet: IpPacket,
    ) -> Result<(), PacketError> {
        if tenant == TenantId::ZERO || !self.scheduler.tenants().knows(tenant) {
            return Err(PacketError::UnknownTenant);
        }
        let entry = self
            .apps
            .get_mut(&app)
            .filter(|entry| entry.takes(DeliveryClass::Datagram))
            .ok_or(PacketError::UnknownApplication)?;
        let path = entry.active.and_then(|path| self.paths.get(path));
        let Some(path) = path else {
            self.scheduler
                .tenants_mut()
                .count_drop(tenant, |drops| drops.no_path += 1);
            return Err(PacketError::NoPath);
        };
        let (len, room) = (packet.data.len(), room_for_packet(path, tenant));
        if len > room {
            self.scheduler
                .tenants_mut()
                .count_drop(tenant, |drops| drops.too_long += 1);
            return Err(PacketError::TooLong { len, room });
        }
        entry.stats.sent_messages += 1;
        entry.stats.sent_bytes += len as u64;
        entry.workload.on_made(now, len);
        let path = (path.id(), path.mtu());
        self.scheduler
            .tenants_mut()
            .push(now, (tenant, app), path, packet);
        Ok(())
    }

    /// Longest IP packet of a tenant that the path of an application has room for.
    pub(crate) fn packet_room(&self, tenant: TenantId, app: AppId) -> Option<usize> {
        let path = self.active_path(app)?;
        Some(room_for_packet(self.paths.get(path)?, tenant))
    }

    /// What leaves next on a path, of what may leave now.
    pub(super) fn poll_scheduler(&mut self, now: Instant, id: PathId) -> Option<SchedulerGrant> {
        let path = self.sending_path(self.paths.get(id)?);
        self.scheduler.poll_next(now, path)
    }

    /// Writes one datagram with IP packets of the tenant whose turn it is, at most `limit` bytes of
    /// UDP payload; `None`: not even the first fits.
    pub(super) fn write_packets(
        &mut self,
        now: Instant,
        id: PathId,
        grant: SchedulerGrant,
        first: FirstPacket,
        limit: usize,
        buf: &mut TransmitBuf,
    ) -> Option<Packet> {
        let path = self.paths.get(id)?;
        let ip_overhead = u64::from(path.ip_overhead());
        let whole = path.udp_payload_max();
        let start = self.begin_packet(id, buf)?;
        // The window bounds the whole datagram.
        let windowed = usize::try_from(grant.room.saturating_sub(ip_overhead)).unwrap_or(whole);
        let end = start + limit.min(windowed) - TAG_LEN;
        let tenant = grant.tenant.0;
        let need = |len: usize| Frame::packet_head_len(tenant, len) + len;
        if buf.bytes.len() + need(first.len) > end {
            buf.bytes.truncate(start);
            if DATA_HEADER_LEN + TAG_LEN + need(first.len) > whole {
                // The path has less room than when it was accepted.
                self.scheduler.tenants_mut().take(id, grant.tenant);
                self.scheduler
                    .tenants_mut()
                    .count_drop(grant.tenant, |drops| drops.too_long += 1);
            }
            return None;
        }
        let mut frames = SentFrames::default();
        let acks_end = end - need(first.len);
        self.write_acks(now, id, true, acks_end, &mut buf.bytes, &mut frames);
        self.unknown_locally.write(now, acks_end, &mut buf.bytes);
        let mut next = Some(first.len);
        while next.is_some_and(|len| buf.bytes.len() + need(len) <= end) {
            let Some(leaving) = self.scheduler.tenants_mut().take(id, grant.tenant) else {
                break;
            };
            Frame::Packet {
                tenant,
                marked: leaving.marked,
                data: &leaving.data,
            }
            .encode(&mut buf.bytes);
            buf.spare.push(leaving.data);
            next = self.scheduler.tenants_mut().next_of(now, id, grant);
        }
        let len = buf.bytes.len() - start + TAG_LEN;
        self.scheduler
            .on_sent(now, id, grant, len as u64 + ip_overhead);
        Some(Packet {
            len,
            kind: PacketKind::AckEliciting,
            frames,
            copies: None,
            owner: Owner {
                tenant: grant.tenant,
                ecn: first.ecn,
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
        if !self.scheduler.tenants_mut().on_received(tenant, data.len()) {
            self.drops.unknown_tenant += 1;
            if self.unknown_locally.on_packet(context.now, tenant) {
                let peer = self.id;
                self.events.push_back(Event::TenantUnknown { peer, tenant });
            }
            return;
        }
        if self.receiver.is_delivery_full() {
            self.scheduler
                .tenants_mut()
                .count_drop(tenant, |drops| drops.arrived += 1);
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
        if !self.scheduler.tenants().is_shared() {
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
            self.scheduler
                .tenants_mut()
                .on_delivery_report(now, (id, tenant), &report, mtu);
        }
    }

    /// IP packets that wait for a path that is gone move to the paths of their applications.
    pub(super) fn move_packets(&mut self, now: Instant, id: PathId) {
        let (apps, paths) = (&self.apps, &self.paths);
        self.scheduler.tenants_mut().move_all(now, id, |app| {
            let path = paths.get(apps.get(&app)?.active?)?;
            Some((path.id(), path.mtu()))
        });
    }
}

/// Longest IP packet that fits into a datagram of the path with nothing beside it.
fn room_for_packet(path: &Path, tenant: TenantId) -> usize {
    let clear = Path::clear_text_max(path.udp_payload_max());
    clear.saturating_sub(Frame::packet_head_len(tenant.0, clear))
}
