//! Writes packets of frames: acknowledgements, control frames, and items, in aggregates or alone.

use keiro_units::Instant;

use super::{Copies, Packet};
use crate::{
    config::DeliveryClass,
    datagram::TransmitBuf,
    id::{PathId, TenantId},
    session::{
        Session, SessionSettings,
        aggregation::PARITY_RESERVE,
        path::Path,
        reassembly::CreditTime,
        recovery::{ChargedTenant, PacketKind},
        send_queues::{Coalescing, FrameBuf, ItemSelection, SendQueues},
        sent_frames::{SentFrame, SentFrames},
        tenant::{GrantKind, SchedulerGrant},
    },
    wire::{DATA_HEADER_LEN, Frame, TAG_LEN},
};

/// An aggregate that is being written.
#[derive(Clone, Copy)]
struct Aggregate {
    class: DeliveryClass,
    count: u8,
    /// It belongs to a group that parity protects.
    protected: bool,
    /// Position in the buffer of the index of the copy.
    index_at: usize,
    /// Where it has to end.
    end: usize,
    /// Where frames have to end that are not its content, so that its first item fits behind them.
    passengers_end: usize,
}

/// A packet that is being written.
#[derive(Clone, Copy)]
struct OpenPacket {
    /// Where it begins in the buffer.
    start: usize,
    /// Where its clear text has to end.
    end: usize,
    /// Its longest UDP payload.
    payload_max: usize,
    aggregate: Option<Aggregate>,
}

impl OpenPacket {
    /// Where frames have to end that are not the content of an aggregate.
    fn passengers_end(&self) -> usize {
        let aggregate = self.aggregate;
        aggregate.map_or(self.end, |aggregate| aggregate.passengers_end)
    }

    /// Where items have to end.
    fn items_end(&self) -> usize {
        self.aggregate.map_or(self.end, |aggregate| aggregate.end)
    }

    fn is_protected(&self) -> bool {
        self.aggregate.is_some_and(|aggregate| aggregate.protected)
    }
}

impl Session {
    /// Writes one packet of at most `payload_max` bytes, unsealed; `None` if there is nothing to
    /// send. Without a grant it carries acknowledgements only.
    pub(super) fn write_item_packet(
        &mut self,
        now: Instant,
        id: PathId,
        payload_max: usize,
        grant: Option<SchedulerGrant>,
        buf: &mut TransmitBuf,
    ) -> Option<Packet> {
        let tenant = grant.map_or(TenantId::ZERO, |grant| grant.tenant);
        let start = self.begin_packet(id, buf)?;
        let clear_start = buf.bytes.len();
        let end = start + payload_max - TAG_LEN;
        let aggregate = match grant {
            Some(grant) if grant.kind == GrantKind::Items => {
                self.begin_aggregate(now, id, tenant, end, &mut buf.bytes)
            }
            _ => None,
        };
        let packet = OpenPacket {
            start,
            end,
            payload_max,
            aggregate,
        };
        let head_end = buf.bytes.len();
        let mut frames = self.write_passengers(now, id, packet, grant.is_some(), &mut buf.bytes);
        let acks_end = buf.bytes.len();
        if let Some(grant) = grant {
            let mut granted = FrameBuf {
                out: &mut buf.bytes,
                end: packet.items_end(),
                frames: &mut frames,
            };
            self.write_granted(now, id, packet, grant, &mut granted);
            if buf.bytes.len() > acks_end {
                let share = self.settings.probe_share;
                self.paths.get_mut(id)?.on_data(now, share);
            } else if tenant == TenantId::ZERO {
                self.write_ping(now, id, packet, &mut buf.bytes);
            }
        }
        let eliciting = buf.bytes.len() > acks_end;
        if eliciting {
            self.paths.get_mut(id)?.on_eliciting_written();
        }
        if buf.bytes.len() == head_end && (aggregate.is_some() || head_end == clear_start) {
            buf.bytes.truncate(start);
            if aggregate.is_some() {
                self.paths.get_mut(id)?.aggregator_mut().on_drained(now);
            }
            return None;
        }
        let len = buf.bytes.len() - start + TAG_LEN;
        if let Some(aggregate) = aggregate {
            let content = &buf.bytes[acks_end..];
            self.end_aggregate(now, id, len, aggregate, content);
        }
        Some(Packet {
            len,
            kind: PacketKind::of(eliciting || aggregate.is_some()),
            frames,
            copies: aggregate.map(|aggregate| Copies {
                count: aggregate.count,
                index_at: aggregate.index_at - start,
            }),
            owner: ChargedTenant { tenant, ecn: 0 },
        })
    }

    /// Writes what travels with data without being data: acknowledgements and reports.
    fn write_passengers(
        &mut self,
        now: Instant,
        id: PathId,
        packet: OpenPacket,
        data_waits: bool,
        out: &mut Vec<u8>,
    ) -> SentFrames {
        let mut acks = SentFrames::default();
        // In front of the acknowledgements that show the losses. Parity protects what follows the head and these.
        if !packet.is_protected() {
            self.write_stranger_drops(id, packet.passengers_end(), out);
        }
        let mut buf = FrameBuf {
            out: &mut *out,
            end: packet.passengers_end(),
            frames: &mut acks,
        };
        self.write_acks(now, id, data_waits, &mut buf);
        // Any other frame behind the head of an aggregate would be its content.
        if packet.aggregate.is_none() {
            self.unknown_tenants.write(now, packet.end, out);
            self.prefix_mismatches.write(packet.end, out);
            self.write_unit_report(packet.end, out);
            self.write_all_limited(now, id, packet.end, out);
            if data_waits {
                self.write_announcements(now, id, packet, out);
            }
        }
        // An aggregate that parity has recovered is acknowledged when it arrives but not read, and parity
        // does not recover its acknowledgements: they must not count as arrived.
        match packet.is_protected() {
            true => SentFrames::default(),
            false => acks,
        }
    }

    /// Appends what the peer has to know of the path, where that is due beside data.
    fn write_announcements(
        &mut self,
        now: Instant,
        id: PathId,
        packet: OpenPacket,
        out: &mut Vec<u8>,
    ) {
        let path = self.paths.get_mut(id);
        let Some(path) = path.filter(|path| path.is_announcement_due(now)) else {
            return;
        };
        let len = path.announcements().count() * Path::ANNOUNCEMENT_LEN_MAX;
        if out.len() + len <= packet.passengers_end() {
            for frame in path.announcements() {
                frame.encode(out);
            }
            path.on_announced(now);
        }
    }

    /// Writes what was granted: control frames with tenant 0, and items.
    fn write_granted(
        &mut self,
        now: Instant,
        id: PathId,
        packet: OpenPacket,
        grant: SchedulerGrant,
        buf: &mut FrameBuf<'_>,
    ) {
        // Control frames are small and should arrive soon.
        let has_control = grant.tenant == TenantId::ZERO && self.control_waits();
        if has_control && self.paths.fastest() == Some(id) {
            let end = packet.passengers_end();
            self.write_control(now, end, buf.out, buf.frames);
        }
        if grant.kind == GrantKind::Items {
            let selection = ItemSelection {
                path: id,
                tenant: grant.tenant,
                coalescing: packet.aggregate.map(|aggregate| aggregate.class),
                clear_text_max: Path::clear_text_max(packet.payload_max),
            };
            self.write_items(now, selection, buf);
        }
    }

    /// Writes a PING if one is wanted: nothing in the packet asks for an acknowledgement.
    fn write_ping(&mut self, now: Instant, id: PathId, packet: OpenPacket, out: &mut Vec<u8>) {
        let path = self.paths.get_mut(id).filter(|path| path.is_ping_wanted());
        if let Some(path) = path
            && out.len() < packet.items_end()
        {
            Frame::Ping.encode(out);
            for frame in path.announcements() {
                if out.len() + Path::ANNOUNCEMENT_LEN_MAX <= packet.items_end() {
                    frame.encode(out);
                }
            }
            path.on_announced(now);
            let packet_bytes = (out.len() - packet.start + TAG_LEN) as u64;
            let ip_bytes = packet_bytes + u64::from(path.ip_overhead());
            let SessionSettings {
                timing,
                probe_share,
                ..
            } = &self.settings;
            path.on_ping_written(now, ip_bytes, timing, *probe_share);
        }
    }

    /// Appends how many packets strangers have displaced, where that is news.
    pub(super) fn write_stranger_drops(&mut self, id: PathId, end: usize, out: &mut Vec<u8>) {
        for path in self.receiver.stranger_drops_due() {
            if self.path_for_acks(path) == Some(id) {
                self.receiver.write_stranger_drops(path, end, out);
            }
        }
    }

    /// Appends acknowledgements that are due, or that may as well travel with data, and reports that
    /// are due.
    pub(super) fn write_acks(
        &mut self,
        now: Instant,
        id: PathId,
        data_waits: bool,
        buf: &mut FrameBuf<'_>,
    ) {
        if !self.receiver.has_reports(now, data_waits) {
            return;
        }
        for path in self.receiver.acks_wanted(now, data_waits) {
            if self.path_for_acks(path) == Some(id)
                && let Some(largest) = self.receiver.write_ack(now, path, buf.end, buf.out)
            {
                buf.frames.push(SentFrame::Ack { path, largest });
            }
        }
        for path in self.receiver.train_reports_due(now) {
            if self.path_for_acks(path) == Some(id) {
                self.receiver
                    .write_train_report(now, path, buf.end, buf.out);
            }
        }
        for path in self.receiver.feedback_due(now) {
            if self.path_for_acks(path) == Some(id) {
                self.receiver.write_feedback(now, path, buf.end, buf.out);
            }
        }
    }

    /// Appends credit, resets and outcomes of messages.
    fn write_control(
        &mut self,
        now: Instant,
        end: usize,
        out: &mut Vec<u8>,
        frames: &mut SentFrames,
    ) {
        if self.control.may_grant_credit() {
            let spare = self.spare_memory();
            let rtt = self.paths.rtt_max();
            self.receiver
                .write_credit(CreditTime { now, rtt }, spare, end, out, frames);
        }
        self.streams
            .write_control(&mut self.scheduler, end, out, frames);
        self.control.write(end, out, frames);
    }

    /// Begins an aggregate if thin traffic is the tenant's first and may leave.
    fn begin_aggregate(
        &mut self,
        now: Instant,
        id: PathId,
        tenant: TenantId,
        end: usize,
        out: &mut Vec<u8>,
    ) -> Option<Aggregate> {
        if !self.scheduler.queues().has_coalescing(id) {
            return None;
        }
        let path = self.paths.get(id)?;
        let aggregator = path.aggregator();
        let thin = aggregator.may_send(now);
        let (item, coalescing) = self.scheduler.first_item(id, tenant, thin)?;
        if coalescing == Coalescing::No {
            return None;
        }
        let overhead = u64::from(path.ip_overhead()) + (DATA_HEADER_LEN + TAG_LEN) as u64;
        let room = aggregator.room(now).saturating_sub(overhead) as usize;
        let number = aggregator.next_number();
        let begin = out.len();
        let group = aggregator.place_in_group();
        let (count, end) = match group {
            None => (aggregator.copies(), end),
            Some(_) => (1, end - PARITY_RESERVE.min(end)),
        };
        match group {
            None => Frame::Aggregate {
                path: id.0,
                number,
                index: 0,
                count,
            },
            Some(place) => Frame::Protected {
                path: id.0,
                number,
                place,
            },
        }
        .encode(out);
        let end = end.min(begin + room);
        Some(Aggregate {
            class: SendQueues::class_of(item),
            count,
            protected: group.is_some(),
            index_at: out.len() - 1,
            end,
            passengers_end: end.saturating_sub(self.scheduler.queues().coalesced_len_max(item)),
        })
    }

    /// Writes items into a packet.
    pub(super) fn write_items(
        &mut self,
        now: Instant,
        selection: ItemSelection,
        buf: &mut FrameBuf<'_>,
    ) {
        let written = self.scheduler.write_items(now, selection, buf);
        if let Some(path) = self.paths.get_mut(selection.path) {
            path.on_retransmitted(written.retransmitted_bytes);
        }
        for writable in written.writable {
            self.streams.on_writable(writable);
        }
        self.on_stream_events();
    }

    /// Accounts for an aggregate of `len` bytes of UDP payload.
    fn end_aggregate(
        &mut self,
        now: Instant,
        id: PathId,
        len: usize,
        aggregate: Aggregate,
        content: &[u8],
    ) {
        let more = self.scheduler.queues().has_coalescing(id);
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        let ip_bytes = len as u64 + u64::from(path.ip_overhead());
        let aggregator = path.aggregator_mut();
        let sent = aggregator.on_sent(now, ip_bytes, aggregate.count);
        if aggregate.protected {
            aggregator.protect(now, sent, content);
        }
        if !more {
            aggregator.on_drained(now);
        }
    }
}
