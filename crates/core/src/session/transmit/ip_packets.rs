//! Writes datagrams with IP packets of tenants.

use keiro_units::Instant;

use super::Packet;
use crate::{
    datagram::TransmitBuf,
    id::{PathId, TenantId},
    session::{
        Session,
        path::Path,
        recovery::{ChargedTenant, PacketKind},
        send_queues::FrameBuf,
        sent_frames::{SentFrame, SentFrames},
        tenant::{FirstPacket, GrantKind, Leaving, SchedulerGrant},
    },
    wire::{Frame, TAG_LEN, VARINT_MAX},
};

/// What a datagram of IP packets begins with.
#[derive(Clone, Copy)]
struct FirstFrame {
    /// Its bytes at most.
    len: usize,
    /// The packet does not fit into one datagram: its next part.
    is_part: bool,
}

/// The frame of a packet that leaves whole.
fn packet_frame(tenant: TenantId, leaving: &Leaving) -> Frame<'_> {
    let (tenant, marked, data) = (tenant.0, leaving.marked, &leaving.data);
    match leaving.order {
        Some(order) => Frame::OrderedPacket {
            tenant,
            order,
            marked,
            data,
        },
        None => Frame::Packet {
            tenant,
            marked,
            data,
        },
    }
}

impl Session {
    /// Writes one datagram with IP packets of the tenant whose turn it is, at most `limit` bytes of
    /// UDP payload; `None`: not even the first fits.
    pub(super) fn write_ip_packet_batch(
        &mut self,
        now: Instant,
        id: PathId,
        grant: SchedulerGrant,
        limit: usize,
        buf: &mut TransmitBuf,
    ) -> Option<Packet> {
        let GrantKind::IpPackets(first) = grant.kind else {
            return None;
        };
        let path = self.paths.get(id)?;
        let ip_overhead = u64::from(path.ip_overhead());
        let whole = path.udp_payload_max();
        let start = self.begin_packet(id, buf)?;
        // The window bounds the whole datagram.
        let windowed = usize::try_from(grant.room.saturating_sub(ip_overhead)).unwrap_or(whole);
        let end = start + limit.min(windowed) - TAG_LEN;
        let Some(first_frame) = self.first_frame(id, grant, first, Path::clear_text_max(whole))
        else {
            buf.bytes.truncate(start);
            self.drop_too_long(id, grant.tenant);
            return None;
        };
        if buf.bytes.len() + first_frame.len > end {
            buf.bytes.truncate(start);
            return None;
        }
        let mut frames = SentFrames::default();
        let acks_end = end - first_frame.len;
        self.write_stranger_drops(id, acks_end, &mut buf.bytes);
        let mut acks = FrameBuf {
            out: &mut buf.bytes,
            end: acks_end,
            frames: &mut frames,
        };
        self.write_acks(now, id, true, &mut acks);
        self.write_reports(now, id, grant.tenant, acks_end, &mut buf.bytes);
        let mut next = match first_frame.is_part {
            true => self.write_part(now, id, grant, buf, &mut frames),
            false => Some(first),
        };
        let mut is_first = !first_frame.is_part;
        let are_counted = self.scheduler.queues().has_spread_apps();
        let mut counted = Vec::new();
        let fits = |first: FirstPacket, used| used + first.frame_len(grant.tenant) <= end;
        while next.is_some_and(|first| fits(first, buf.bytes.len())) {
            let Some(taken) = self.scheduler.take_packet(now, id, grant) else {
                break;
            };
            let leaving = taken.packet;
            if std::mem::take(&mut is_first) {
                frames.push(SentFrame::Packets {
                    app: leaving.app,
                    since: leaving.since,
                });
            }
            packet_frame(grant.tenant, &leaving).encode(&mut buf.bytes);
            if are_counted {
                counted.push((leaving.app, leaving.data.len() as u64));
            }
            buf.spare.push(leaving.data);
            next = taken.next;
        }
        for (app, bytes) in counted {
            self.scheduler.on_app_bytes_sent(app, id, bytes);
        }
        let len = buf.bytes.len() - start + TAG_LEN;
        self.scheduler
            .on_sent(now, id, grant, len as u64 + ip_overhead);
        let share = self.settings.probe_share;
        self.paths.get_mut(id)?.on_data(now, share);
        Some(Packet {
            len,
            kind: PacketKind::AckEliciting,
            frames,
            copies: None,
            owner: ChargedTenant {
                tenant: grant.tenant,
                ecn: first.ecn,
            },
        })
    }

    /// Writes what is to be reported to the peer about tenants, as far as it fits before `end`.
    fn write_reports(
        &mut self,
        now: Instant,
        id: PathId,
        tenant: TenantId,
        end: usize,
        out: &mut Vec<u8>,
    ) {
        self.unknown_tenants.write(now, end, out);
        self.prefix_mismatches.write(end, out);
        self.write_unit_report(end, out);
        self.write_limited(now, id, tenant, end, out);
    }

    /// Drops the packet whose turn it is: the path has less room than when it was accepted.
    fn drop_too_long(&mut self, id: PathId, tenant: TenantId) {
        self.scheduler.drop_too_long(id, tenant);
    }

    /// What a datagram begins with that has room for `clear` bytes; `None`: the packet is too long.
    fn first_frame(
        &mut self,
        id: PathId,
        grant: SchedulerGrant,
        first: FirstPacket,
        clear: usize,
    ) -> Option<FirstFrame> {
        let len = first.frame_len(grant.tenant);
        if len <= clear {
            return Some(FirstFrame {
                len,
                is_part: false,
            });
        }
        // One that comes in parts has no place in its flow.
        let plain = FirstPacket {
            is_ordered: false,
            ..first
        };
        if !self.splits_packets() || plain.frame_len(grant.tenant) <= clear {
            return None;
        }
        let head = Frame::packet_part_head_len(grant.tenant.0, VARINT_MAX);
        let room = clear.saturating_sub(head);
        let part = self.scheduler.next_part_len(id, grant.tenant, room)?;
        Some(FirstFrame {
            len: head + part,
            is_part: true,
        })
    }

    /// Writes the next part of the first packet; the packet behind it, if it was the last part.
    fn write_part(
        &mut self,
        now: Instant,
        id: PathId,
        grant: SchedulerGrant,
        buf: &mut TransmitBuf,
        frames: &mut SentFrames,
    ) -> Option<FirstPacket> {
        let part = self.scheduler.poll_part(id, grant.tenant)?;
        Frame::PacketPart {
            tenant: grant.tenant.0,
            number: part.number,
            count: part.count,
            index: part.index,
            marked: part.marked,
            data: part.data,
        }
        .encode(&mut buf.bytes);
        if !part.is_last() {
            return None;
        }
        let taken = self.scheduler.take_packet(now, id, grant)?;
        let (leaving, next) = (taken.packet, taken.next);
        let (app, bytes) = (leaving.app, leaving.data.len() as u64);
        frames.push(SentFrame::Packets {
            app,
            since: leaving.since,
        });
        buf.spare.push(leaving.data);
        self.scheduler.on_app_bytes_sent(app, id, bytes);
        next
    }
}
