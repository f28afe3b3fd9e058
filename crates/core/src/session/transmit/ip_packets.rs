//! Writes datagrams with IP packets of tenants.

use keiro_units::Instant;

use super::Packet;
use crate::{
    datagram::TransmitBuf,
    id::PathId,
    session::{
        Session,
        recovery::{Owner, PacketKind},
        sent_frames::{SentFrame, SentFrames},
        tenant::{FirstPacket, SchedulerGrant},
    },
    wire::{DATA_HEADER_LEN, Frame, TAG_LEN},
};

/// Bytes that an IP packet of `len` bytes takes in a datagram.
fn frame_len(grant: SchedulerGrant, len: usize) -> usize {
    Frame::packet_head_len(grant.tenant.0, len) + len
}

impl Session {
    /// Writes one datagram with IP packets of the tenant whose turn it is, at most `limit` bytes of
    /// UDP payload; `None`: not even the first fits.
    pub(super) fn write_ip_packets(
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
        let first_len = frame_len(grant, first.len);
        if buf.bytes.len() + first_len > end {
            buf.bytes.truncate(start);
            if DATA_HEADER_LEN + TAG_LEN + first_len > whole {
                // The path has less room than when it was accepted.
                let tenants = self.scheduler.tenants_mut();
                tenants.take(id, grant.tenant);
                tenants.count_drop(grant.tenant, |drops| drops.too_long += 1);
            }
            return None;
        }
        let mut frames = SentFrames::default();
        let acks_end = end - first_len;
        self.write_acks(now, id, true, acks_end, &mut buf.bytes, &mut frames);
        self.unknown_tenants.write(now, acks_end, &mut buf.bytes);
        self.prefix_mismatches.write(acks_end, &mut buf.bytes);
        let tenants = self.scheduler.tenants_mut();
        let mut next = Some(first.len);
        let mut is_first = true;
        while next.is_some_and(|len| buf.bytes.len() + frame_len(grant, len) <= end) {
            let Some(leaving) = tenants.take(id, grant.tenant) else {
                break;
            };
            if std::mem::take(&mut is_first) {
                frames.push(SentFrame::Packets {
                    app: leaving.app,
                    since: leaving.since,
                });
            }
            Frame::Packet {
                tenant: grant.tenant.0,
                marked: leaving.marked,
                data: &leaving.data,
            }
            .encode(&mut buf.bytes);
            buf.spare.push(leaving.data);
            next = tenants.next_of(now, id, grant);
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
}
