//! Sending: on which path, with which frames, and how many packets at once.

mod ip_packets;
mod packet;

use std::net::SocketAddr;

use keiro_units::Instant;
use rand_chacha::ChaCha20Rng;

use super::{
    Session,
    aggregation::copies::{CopyBatch, CopyContent, PendingCopy},
    mtu::MTU_LEAST,
    path::{Path, TrainContent},
    recovery::{ChargedTenant, PacketKind},
    send_queues::{FrameBuf, ItemSelection},
    sent_frames::SentFrames,
    spreading,
    tenant::{GrantKind, SchedulerGrant},
    validation::SizedChallenge,
};
use crate::{
    datagram::{Transmit, TransmitBuf},
    event::{Event, MoveReason, PathDownReason},
    id::{PathId, SocketId, TenantId},
    trace::TraceKind,
    uplink::Uplinks,
    wire::{DATA_HEADER_LEN, DataHeader, Frame, TAG_LEN},
};

/// Longest batch: the kernel takes one as a single UDP datagram and cuts it up.
const BATCH_LEN_MAX: usize = 65_000;

/// A batch that is being written: packets of one size, of which only the last may be shorter.
struct Batch {
    /// The pacers let data go.
    paced: bool,
    /// Bytes that the pacer still lets go.
    budget: u64,
    /// Longest UDP payload of a packet.
    payload_max: usize,
    /// Length of the first packet.
    segment: usize,
    segments: usize,
    /// All datagrams of a batch have one outer header.
    ecn: u8,
}

impl Batch {
    /// Another packet fits into `buf`.
    fn has_room(&self, buf: &TransmitBuf) -> bool {
        let fits = self.segments == 0 || buf.bytes.len() + self.payload_max <= BATCH_LEN_MAX;
        fits && self.segments < buf.segments_max
    }

    /// Longest UDP payload of the next packet.
    fn limit(&self) -> usize {
        match self.segments {
            0 => self.payload_max,
            _ => self.segment,
        }
    }

    /// A packet of `len` bytes was written; `false`: it is the last.
    fn add(&mut self, len: usize, ip_overhead: u16) -> bool {
        self.segments += 1;
        let ip_bytes = len as u64 + u64::from(ip_overhead);
        self.budget = self.budget.saturating_sub(ip_bytes);
        self.paced = self.paced && self.budget > 0;
        if self.segments == 1 {
            self.segment = len;
        }
        len >= self.segment
    }
}

/// What the next packet of a batch carries.
#[derive(Clone, Copy)]
enum NextPacket {
    Copy,
    IpPackets(SchedulerGrant),
    /// Messages, streams, datagrams and frames of the protocol; without a grant acknowledgements only.
    Frames(Option<SchedulerGrant>),
}

/// A packet that was written and sealed.
#[derive(Clone, Copy)]
struct WrittenPacket {
    /// Bytes of UDP payload.
    len: usize,
    is_eliciting: bool,
}

/// A packet that is written and not sealed.
struct Packet {
    /// Bytes of UDP payload, the tag included.
    len: usize,
    kind: PacketKind,
    frames: SentFrames,
    /// It is the first copy of an aggregate.
    copies: Option<Copies>,
    owner: ChargedTenant,
}

/// The copies of an aggregate.
#[derive(Clone, Copy)]
struct Copies {
    /// How many there are, the first one included.
    count: u8,
    /// Position in the packet of the index of the copy.
    index_at: usize,
}

/// What loss recovery has to know of a packet that is sealed.
struct Unsealed {
    kind: PacketKind,
    frames: SentFrames,
    owner: ChargedTenant,
}

impl Unsealed {
    /// A packet of tenant 0 with nothing to retransmit.
    fn alone(kind: PacketKind) -> Self {
        Self {
            kind,
            frames: SentFrames::None,
            owner: ChargedTenant::default(),
        }
    }
}

impl From<Packet> for Unsealed {
    fn from(packet: Packet) -> Self {
        Self {
            kind: packet.kind,
            frames: packet.frames,
            owner: packet.owner,
        }
    }
}

impl Session {
    /// The next batch of datagrams of this session.
    pub(crate) fn poll_transmit(
        &mut self,
        now: Instant,
        buf: &mut TransmitBuf,
        uplinks: &mut Uplinks,
        random: &mut ChaCha20Rng,
    ) -> Option<Transmit> {
        if self.reachability.is_closed || !self.keys.may_seal(now, &self.settings.timing) {
            return None;
        }
        // The process may have been stopped since the last timeout.
        self.expire_datagrams(now);
        if self.scheduler.queues().has_spread() {
            let carried_by_others = spreading::carried_by_others(now, &self.paths);
            self.scheduler.set_spread_over(carried_by_others);
        }
        self.took_turn = false;
        for id in self.paths.polling_order() {
            if let Some(transmit) = self.poll_path(now, id, buf, uplinks, random) {
                if self.took_turn {
                    self.paths.on_polled(id);
                }
                return Some(transmit);
            }
        }
        None
    }

    /// CLOSE packets, one for every path whose address is known.
    pub(crate) fn close_packets(&mut self, now: Instant) -> Vec<(SocketId, SocketAddr, Vec<u8>)> {
        if !self.keys.may_seal(now, &self.settings.timing) {
            return Vec::new();
        }
        let paths = self.paths.iter();
        let remotes: Vec<(PathId, SocketAddr)> = paths
            .filter_map(|path| Some((path.id(), path.remote()?)))
            .collect();
        let mut packets = Vec::new();
        for (id, remote) in remotes {
            let mut buf = TransmitBuf::new(1);
            let transmit = self.single(now, id, remote, &mut buf, Frame::Close);
            if let Some(transmit) = transmit {
                packets.push((transmit.socket, remote, buf.bytes));
            }
        }
        packets
    }

    fn poll_path(
        &mut self,
        now: Instant,
        id: PathId,
        buf: &mut TransmitBuf,
        uplinks: &mut Uplinks,
        random: &mut ChaCha20Rng,
    ) -> Option<Transmit> {
        buf.bytes.clear();
        if let Some(transmit) = self.poll_response(now, id, buf) {
            return Some(transmit);
        }
        if let Some(transmit) = self.poll_challenge(now, id, buf, random) {
            return Some(transmit);
        }
        self.update_coalescing_limit(id);
        let path = self.paths.get(id)?;
        let remote = path.remote()?;
        let paced =
            path.is_up() && path.pacer().may_send(now) && uplinks.may_send(path.socket(), now);
        if paced && let Some(transmit) = self.poll_mtu_probe(now, id, remote, buf) {
            return Some(transmit);
        }
        if paced && let Some(transmit) = self.poll_train(now, id, remote, buf, random) {
            return Some(transmit);
        }
        self.poll_batch(now, id, buf, paced, uplinks)
    }

    fn poll_response(
        &mut self,
        now: Instant,
        id: PathId,
        buf: &mut TransmitBuf,
    ) -> Option<Transmit> {
        let response = self.paths.get_mut(id)?.poll_response()?;
        let frame = Frame::PathResponse(response.token);
        self.single(now, id, response.remote, buf, frame)
    }

    fn poll_challenge(
        &mut self,
        now: Instant,
        id: PathId,
        buf: &mut TransmitBuf,
        random: &mut ChaCha20Rng,
    ) -> Option<Transmit> {
        let has_sibling_up = self.paths.sibling_up(id).is_some();
        let path = self.paths.get_mut(id)?;
        let challenge = path.poll_challenge(now, random, &self.settings.timing)?;
        if has_sibling_up && path.abandon_if_unanswered(now) {
            let peer = self.id;
            self.events
                .push_back(Event::PathAbandoned { peer, path: id });
        }
        if let Some(is_news) = path.check_unreachable(now) {
            let reason = match path.is_too_small() {
                true => PathDownReason::TooSmall { bytes: MTU_LEAST },
                false => PathDownReason::ChallengeUnanswered,
            };
            if is_news {
                self.events.push_back(Event::PathDown {
                    peer: self.id,
                    path: id,
                    reason,
                });
            }
            self.on_path_state_changed(now, MoveReason::PathDown);
            self.request_handshake_if_unreachable(now);
        }
        self.request_handshake_if_keys_old(now);
        let SizedChallenge { challenge, size } = challenge;
        let frame = Frame::PathChallenge(challenge.token);
        let path = self.paths.get(id)?;
        let clear_len = size.map_or(0, |size| {
            Path::clear_text_max(usize::from(size - path.ip_overhead()))
        });
        let start = self.begin_packet(id, buf)?;
        frame.encode(&mut buf.bytes);
        for frame in self.paths.get(id)?.announcements() {
            frame.encode(&mut buf.bytes);
        }
        // Padding frames are zero bytes.
        let end = (start + DATA_HEADER_LEN + clear_len).max(buf.bytes.len());
        buf.bytes.resize(end, 0);
        let packet = Unsealed::alone(PacketKind::NonEliciting);
        self.seal(now, id, buf, start, packet);
        Some(self.transmit(id, challenge.remote, buf, now))
    }

    fn poll_mtu_probe(
        &mut self,
        now: Instant,
        id: PathId,
        remote: SocketAddr,
        buf: &mut TransmitBuf,
    ) -> Option<Transmit> {
        let path = self.paths.get_mut(id)?;
        let size = path.poll_mtu_probe(now)?;
        let clear_len = Path::clear_text_max(usize::from(size - path.ip_overhead()));
        let start = self.begin_packet(id, buf)?;
        Frame::Ping.encode(&mut buf.bytes);
        buf.bytes.resize(start + DATA_HEADER_LEN + clear_len, 0);
        self.seal(now, id, buf, start, Unsealed::alone(PacketKind::MtuProbe));
        self.on_ungranted_sent(now, id, TenantId::ZERO, u64::from(size));
        Some(self.transmit(id, remote, buf, now))
    }

    /// A train that is due: packets of one size, back to back, with what waits or padding.
    fn poll_train(
        &mut self,
        now: Instant,
        id: PathId,
        remote: SocketAddr,
        buf: &mut TransmitBuf,
        random: &mut ChaCha20Rng,
    ) -> Option<Transmit> {
        // Trains carry data of tenant 0 only: a turn of another tenant may be shorter than a train.
        let waiting = self.scheduler.queues().waiting_bytes_of(id, TenantId::ZERO);
        let path = self.paths.get_mut(id)?;
        let plan = path.poll_train(now, self.settings.probe_share, waiting, BATCH_LEN_MAX)?;
        let payload_max = path.udp_payload_max();
        let packet_bytes = usize::from(path.mtu());
        let mut content = TrainContent::default();
        for index in 0..plan.packets {
            let start = self.begin_packet(id, buf)?;
            let end = start + payload_max - TAG_LEN;
            Frame::Train {
                id: plan.id,
                index: index as u8,
                count: plan.packets as u8,
            }
            .encode(&mut buf.bytes);
            let head_end = buf.bytes.len();
            let mut frames = SentFrames::default();
            // While the window of tenant 0 is full, trains carry padding.
            let tenants = self.scheduler.tenants();
            if tenants.may_send_ungranted(now, id, TenantId::ZERO, payload_max as u64) {
                let selection = ItemSelection {
                    path: id,
                    tenant: TenantId::ZERO,
                    coalescing: None,
                    clear_text_max: Path::clear_text_max(payload_max),
                };
                let mut items = FrameBuf {
                    out: &mut buf.bytes,
                    end,
                    frames: &mut frames,
                };
                self.write_items(now, selection, &mut items);
            }
            let eliciting = buf.bytes.len() > head_end;
            content.packets_with_data += u32::from(eliciting);
            content.probe_bytes += if eliciting {
                end - buf.bytes.len() + (head_end - start - DATA_HEADER_LEN)
            } else {
                packet_bytes
            };
            // Padding frames are zero bytes.
            buf.bytes.resize(end, 0);
            let packet = Unsealed {
                frames,
                ..Unsealed::alone(PacketKind::of(eliciting))
            };
            self.seal(now, id, buf, start, packet);
            if eliciting {
                self.on_ungranted_sent(now, id, TenantId::ZERO, packet_bytes as u64);
            }
        }
        self.took_turn = true;
        let path = self.paths.get_mut(id)?;
        path.on_train_sent(now, plan, content, self.settings.probe_share, random);
        if content.packets_with_data > 0 {
            path.on_data(now, self.settings.probe_share);
        }
        let mut transmit = self.transmit(id, remote, buf, plan.due);
        transmit.segment_size = payload_max;
        Some(transmit)
    }

    /// As many packets of one size as leave at once. `paced`: the pacers let data go.
    fn poll_batch(
        &mut self,
        now: Instant,
        id: PathId,
        buf: &mut TransmitBuf,
        paced: bool,
        uplinks: &mut Uplinks,
    ) -> Option<Transmit> {
        let path = self.paths.get(id)?;
        let remote = path.remote()?;
        // While others have the uplink nothing is due.
        let uplink_free = uplinks.next(path.socket());
        let due = path.pacer().due(now).max(uplink_free).min(now);
        let mut batch = Batch {
            paced,
            budget: path.pacer().batch_bytes(),
            payload_max: path.udp_payload_max(),
            segment: 0,
            segments: 0,
            ecn: 0,
        };
        while batch.has_room(buf) {
            let spread = self.settings.aggregation.spread;
            self.paths.queue_parity(now, id, spread, uplinks);
            let Some(next) = self.poll_next(now, id, &mut batch) else {
                break;
            };
            let goes_on = match next {
                NextPacket::IpPackets(grant) => self.write_turn(now, id, grant, &mut batch, buf),
                NextPacket::Copy => {
                    let written = self.write_copy(now, id, buf);
                    written.is_some_and(|written| self.on_batched(id, written, &mut batch))
                }
                NextPacket::Frames(grant) => {
                    let written = self.write_frames(now, id, grant, &batch, buf, uplinks);
                    written.is_some_and(|written| self.on_batched(id, written, &mut batch))
                }
            };
            if !goes_on {
                break;
            }
        }
        let path = self.paths.get(id)?;
        self.scheduler
            .admit_newly_backlogged(now, self.sending_path(path));
        let wants = self.wants_to_send(path, now);
        let path = self.paths.get_mut(id)?;
        match wants {
            true => path.on_blocked(now),
            false => path.on_idle(now),
        }
        let mut transmit = self.transmit(id, remote, buf, due);
        transmit.segment_size = batch.segment.min(transmit.len);
        transmit.ecn = batch.ecn;
        (batch.segments > 0).then_some(transmit)
    }

    /// What the next packet of a batch carries; `None`: it is not for this batch.
    fn poll_next(&mut self, now: Instant, id: PathId, batch: &mut Batch) -> Option<NextPacket> {
        let is_first = batch.segments == 0;
        let is_copy = self.next_copy(now, id).is_some();
        let path = self.paths.get(id)?;
        let with_data = batch.paced && path.may_send_ack_eliciting();
        let grant = match is_copy {
            false if with_data => self.poll_scheduler(now, id),
            _ => None,
        };
        let ecn = grant.map_or(0, |grant| grant.ecn());
        if !is_first && batch.ecn != ecn {
            return None;
        }
        batch.ecn = ecn;
        if is_copy {
            // The network may drop a batch as a whole, so a copy is never in one with its aggregate.
            return is_first.then_some(NextPacket::Copy);
        }
        if let Some(grant) = grant
            && matches!(grant.kind, GrantKind::IpPackets(_))
        {
            return Some(NextPacket::IpPackets(grant));
        }
        let is_last = !is_first && batch.segment < batch.payload_max;
        (!is_last).then_some(NextPacket::Frames(grant))
    }

    /// A packet of a batch was written; `false`: it is the last.
    fn on_batched(&mut self, id: PathId, written: WrittenPacket, batch: &mut Batch) -> bool {
        let Some(path) = self.paths.get_mut(id) else {
            return false;
        };
        if written.is_eliciting {
            path.on_ack_eliciting_batched();
            self.took_turn = true;
        }
        batch.add(written.len, path.ip_overhead())
    }

    /// Writes and seals packets of IP packets as long as nothing else may leave: one decision of the scheduler serves
    /// them all. `false`: the batch is complete.
    fn write_turn(
        &mut self,
        now: Instant,
        id: PathId,
        grant: SchedulerGrant,
        batch: &mut Batch,
        buf: &mut TransmitBuf,
    ) -> bool {
        let Some(sending) = self.paths.get(id).map(|path| self.sending_path(path)) else {
            return false;
        };
        let mut grant = grant;
        loop {
            let start = buf.bytes.len();
            let Some(packet) = self.write_ip_packet_batch(now, id, grant, batch.limit(), buf)
            else {
                return false;
            };
            let written = WrittenPacket {
                len: packet.len,
                is_eliciting: true,
            };
            self.seal(now, id, buf, start, packet.into());
            if !self.on_batched(id, written, batch) {
                return false;
            }
            let may_send = self.paths.get(id).is_some_and(Path::may_send_ack_eliciting);
            if !(batch.has_room(buf) && batch.paced && may_send) {
                return true;
            }
            let same = self.scheduler.poll_same(now, sending, grant);
            match same.filter(|next| next.ecn() == batch.ecn) {
                Some(next) => grant = next,
                None => return true,
            }
        }
    }

    /// Writes and seals a packet of items and frames of the protocol; `None`: there is nothing to send.
    fn write_frames(
        &mut self,
        now: Instant,
        id: PathId,
        grant: Option<SchedulerGrant>,
        batch: &Batch,
        buf: &mut TransmitBuf,
        uplinks: &mut Uplinks,
    ) -> Option<WrittenPacket> {
        let start = buf.bytes.len();
        let packet = self.write_item_packet(now, id, batch.payload_max, grant, buf);
        if let (None, Some(grant)) = (&packet, grant) {
            self.scheduler.on_refused(id, grant);
        }
        let packet = packet?;
        if let Some(grant) = grant {
            self.on_granted_written(now, id, grant, &packet);
        }
        if packet.copies.is_some() {
            self.copy_aggregate(now, id, &buf.bytes[start..], &packet, uplinks);
        }
        let written = WrittenPacket {
            len: packet.len,
            is_eliciting: packet.kind.is_ack_eliciting(),
        };
        self.seal(now, id, buf, start, packet.into());
        Some(written)
    }

    /// What leaves next on a path, of what may leave now.
    fn poll_scheduler(&mut self, now: Instant, id: PathId) -> Option<SchedulerGrant> {
        let path = self.sending_path(self.paths.get(id)?);
        self.scheduler.poll_next(now, path)
    }

    /// A packet was written as the scheduler has granted. One without data is not charged,
    /// because it will not be acknowledged.
    fn on_granted_written(
        &mut self,
        now: Instant,
        id: PathId,
        grant: SchedulerGrant,
        packet: &Packet,
    ) {
        if !packet.kind.is_ack_eliciting() {
            self.scheduler.on_refused(id, grant);
            return;
        }
        let overhead = self.paths.get(id).map_or(0, Path::ip_overhead);
        let ip_bytes = packet.len as u64 + u64::from(overhead);
        self.scheduler.on_sent(now, id, grant, ip_bytes);
    }

    /// Queues the copies of the aggregate in `packet`, whose bytes are not sealed yet.
    fn copy_aggregate(
        &mut self,
        now: Instant,
        id: PathId,
        bytes: &[u8],
        packet: &Packet,
        uplinks: &mut Uplinks,
    ) {
        let Some(Copies { count, index_at }) = packet.copies else {
            return;
        };
        let mut copies = Vec::new();
        for index in 1..count {
            let mut clear = bytes[DATA_HEADER_LEN..].to_vec();
            clear[index_at - DATA_HEADER_LEN] = index;
            copies.push(CopyContent {
                clear,
                frames: packet.frames.clone(),
                owner: packet.owner,
            });
        }
        let batch = CopyBatch {
            of: id,
            first_gap: 1,
            copies,
        };
        let spread = self.settings.aggregation.spread;
        self.paths.push_copies(now, spread, batch, uplinks);
    }

    /// The copy that is due on a path.
    fn next_copy(&self, now: Instant, id: PathId) -> Option<&PendingCopy> {
        let path = self.paths.get(id).filter(|path| path.is_up())?;
        path.copies().next(now)
    }

    /// Writes and seals the copy that is due.
    fn write_copy(
        &mut self,
        now: Instant,
        id: PathId,
        buf: &mut TransmitBuf,
    ) -> Option<WrittenPacket> {
        let start = self.begin_packet(id, buf)?;
        let path = self.paths.get_mut(id)?;
        let overhead = u64::from(path.ip_overhead());
        let CopyContent {
            clear,
            frames,
            owner,
        } = path.copies_mut().pop()?.into_content();
        buf.bytes.extend_from_slice(&clear);
        let packet = Unsealed {
            kind: PacketKind::AckEliciting,
            frames,
            owner,
        };
        self.seal(now, id, buf, start, packet);
        let len = buf.bytes.len() - start;
        self.on_ungranted_sent(now, id, owner.tenant, len as u64 + overhead);
        Some(WrittenPacket {
            len,
            is_eliciting: true,
        })
    }

    /// A packet with one frame that is not retransmitted, which does not ask the pacer.
    fn single(
        &mut self,
        now: Instant,
        id: PathId,
        remote: SocketAddr,
        buf: &mut TransmitBuf,
        frame: Frame<'_>,
    ) -> Option<Transmit> {
        let start = self.begin_packet(id, buf)?;
        frame.encode(&mut buf.bytes);
        let packet = Unsealed::alone(PacketKind::NonEliciting);
        self.seal(now, id, buf, start, packet);
        Some(self.transmit(id, remote, buf, now))
    }

    /// Appends the header of the path's next packet; where the packet starts.
    fn begin_packet(&self, id: PathId, buf: &mut TransmitBuf) -> Option<usize> {
        let start = buf.bytes.len();
        // The last packets of a batch may find the key used up.
        let epoch = self.keys.current().filter(|epoch| !epoch.is_used_up())?;
        let header = DataHeader {
            path: id.0,
            receiver: epoch.remote_index,
            // The low half is what is on the wire.
            packet_number: self.paths.get(id)?.next_packet_number() as u32,
        };
        buf.bytes.extend_from_slice(&header.encode());
        Some(start)
    }

    /// Seals the packet that begins at `start` and accounts for it.
    fn seal(
        &mut self,
        now: Instant,
        id: PathId,
        buf: &mut TransmitBuf,
        start: usize,
        packet: Unsealed,
    ) {
        let path = self
            .paths
            .get_mut(id)
            .expect("a path that is sent on exists");
        let epoch = self
            .keys
            .current_mut()
            .expect("keys were there when the packet was begun");
        let number = path.next_packet_number();
        epoch.keys.seal(id, number, &mut buf.bytes, start);
        epoch.used.on_sealed(buf.bytes.len() - start);
        let ip_bytes = (buf.bytes.len() - start) as u64 + u64::from(path.ip_overhead());
        let Unsealed {
            kind,
            frames,
            owner,
        } = packet;
        path.on_packet_sent(now, ip_bytes, kind, frames, owner);
        self.tracer.record(now, id, || TraceKind::PacketSent {
            number,
            ip_bytes,
            ack_eliciting: kind.is_ack_eliciting(),
        });
    }

    /// A packet of a tenant has left that the scheduler has not granted.
    fn on_ungranted_sent(&mut self, now: Instant, id: PathId, tenant: TenantId, ip_bytes: u64) {
        if let Some(path) = self.paths.get(id) {
            let path = path.id_and_mtu();
            self.scheduler
                .on_ungranted_sent(now, path, tenant, ip_bytes);
        }
    }

    fn transmit(
        &self,
        id: PathId,
        remote: SocketAddr,
        buf: &TransmitBuf,
        due: Instant,
    ) -> Transmit {
        let path = self.paths.get(id).expect("a path that is sent on exists");
        let len = buf.bytes.len();
        Transmit {
            socket: path.socket(),
            remote,
            len,
            segment_size: len,
            ecn: 0,
            due,
        }
    }
}
