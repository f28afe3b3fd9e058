//! State turned into packets: which path, which frames, how many at once.

use std::net::SocketAddr;

use keiro_units::Instant;
use rand_chacha::ChaCha20Rng;
use rand_core::RngCore;

use super::{
    CONTENT_HEAD_MAX, Session,
    copies::{Copied, PendingCopy},
    parity::RESERVE,
    path::Path,
    recovery::{Owner, SentFrames},
    send_queues::{Coalescing, SendItem, SendQueues},
    tenant_packets::NextSend,
    train::{PACKETS_MIN, SentTrain, Trains},
};
use crate::{
    config::DeliveryClass,
    endpoint::{Transmit, TransmitBuf},
    event::{Event, MoveReason, PathDownReason},
    id::{PathId, SocketId, TenantId},
    snapshot::PathState,
    uplink::Uplinks,
    wire::{DATA_HEADER_LEN, DataHeader, Frame, TAG_LEN},
};

/// An aggregate that is being written.
#[derive(Clone, Copy)]
struct Aggregate {
    class: DeliveryClass,
    count: u8,
    /// It is of a group, and parity protects it.
    protected: bool,
    /// Where the copy's place stands in the buffer.
    place: usize,
    /// Where it has to end.
    end: usize,
    /// Where what may as well travel with it has to end: what it is made for fits behind.
    passengers_end: usize,
}

/// Longest batch: the kernel takes one as a single UDP datagram and cuts it up.
const BATCH_LEN_MAX: usize = 65_000;

/// What one packet carries besides its header.
pub(super) struct Packet {
    pub(super) len: usize,
    pub(super) eliciting: bool,
    pub(super) frames: SentFrames,
    /// It is the first of so many copies of an aggregate; where its place among them stands, from
    /// the beginning of the packet.
    pub(super) copies: Option<(u8, usize)>,
    /// Whose it is.
    pub(super) owner: Owner,
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
        if self.closed || self.keys.current().is_none() {
            return None;
        }
        self.took_turn = false;
        // Paths take turns, beginning after the one that was served last.
        let after = self.last_polled;
        let turn = self.paths.keys().copied().filter(|id| Some(*id) > after);
        let rest = self.paths.keys().copied().filter(|id| Some(*id) <= after);
        let order: Vec<PathId> = turn.chain(rest).collect();
        for id in order {
            if let Some(transmit) = self.poll_path(now, id, buf, uplinks, random) {
                if self.took_turn {
                    self.last_polled = Some(id);
                }
                return Some(transmit);
            }
        }
        None
    }

    /// Farewell packets, one for every path whose address is known.
    pub(crate) fn close_packets(&mut self, now: Instant) -> Vec<(SocketId, SocketAddr, Vec<u8>)> {
        let remotes: Vec<(PathId, SocketAddr)> = self
            .paths
            .values()
            .filter_map(|path| Some((path.id, path.remote?)))
            .collect();
        let mut packets = Vec::new();
        for (id, remote) in remotes {
            let mut buf = TransmitBuf::new(1);
            let close = |clear: &mut Vec<u8>| Frame::Close.encode(clear);
            if let Some(transmit) = self.single(now, id, remote, &mut buf, close) {
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
        let path = self.paths.get(&id)?;
        let remote = path.remote?;
        let paced = path.is_up() && path.pacer.may_send(now) && uplinks.may_send(path.socket, now);
        if paced && let Some(transmit) = self.poll_mtu_probe(now, id, remote, buf) {
            return Some(transmit);
        }
        if paced && let Some(transmit) = self.poll_train(now, id, remote, buf, random) {
            return Some(transmit);
        }
        self.poll_batch(now, id, remote, buf, (paced, uplinks))
    }

    fn poll_response(
        &mut self,
        now: Instant,
        id: PathId,
        buf: &mut TransmitBuf,
    ) -> Option<Transmit> {
        let (token, remote) = self.paths.get_mut(&id)?.responses.pop_front()?;
        self.single(now, id, remote, buf, |clear| {
            Frame::PathResponse(token).encode(clear);
        })
    }

    fn poll_challenge(
        &mut self,
        now: Instant,
        id: PathId,
        buf: &mut TransmitBuf,
        random: &mut ChaCha20Rng,
    ) -> Option<Transmit> {
        let timing = self.timing;
        let path = self.paths.get_mut(&id)?;
        let (token, remote) = path.next_challenge(now, random, &timing)?;
        if path.state == PathState::Validating && path.challenges_exhausted() {
            if path.on_unreachable() {
                self.events.push_back(Event::PathDown {
                    peer: self.id,
                    path: id,
                    reason: PathDownReason::ChallengeUnanswered,
                });
            }
            self.on_path_state_changed(now, MoveReason::PathDown);
            self.request_handshake_if_unreachable(now);
        }
        self.request_handshake_if_keys_old(now);
        self.single(now, id, remote, buf, |clear| {
            Frame::PathChallenge(token).encode(clear);
        })
    }

    fn poll_mtu_probe(
        &mut self,
        now: Instant,
        id: PathId,
        remote: SocketAddr,
        buf: &mut TransmitBuf,
    ) -> Option<Transmit> {
        let path = self.paths.get_mut(&id)?;
        let size = path.mtu.wanted(now)?;
        let number = path.sent.next_number();
        path.mtu.on_probe_sent(now, number, size);
        let clear_len = Path::clear_text_max(usize::from(size - path.ip_overhead()));
        let start = self.begin_packet(id, buf)?;
        Frame::Ping.encode(&mut buf.bytes);
        buf.bytes.resize(start + DATA_HEADER_LEN + clear_len, 0);
        self.seal(
            now,
            id,
            buf,
            start,
            (true, Owner::default()),
            SentFrames::None,
        );
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
        let share = self.probe_share;
        let path = self.paths.get(&id)?;
        let is_due = path.trains.due(share).is_some_and(|due| due <= now);
        let path = self.paths.get_mut(&id)?;
        path.pacer.release();
        if !is_due && !path.trains.may_carry(now, share) || path.sent.is_full() {
            return None;
        }
        let payload_max = path.udp_payload_max();
        let packet_bytes = payload_max + usize::from(path.ip_overhead());
        let (rate, due) = (path.pacer.rate(), path.pacer.due(now));
        let train = path.trains.next_id();
        // A driver that cannot send them as one batch sends them one after the other at once.
        let is_thin = path.aggregator.is_used(now);
        let wanted = Trains::packets(rate, packet_bytes as u64, is_thin)
            .min((BATCH_LEN_MAX / payload_max).max(PACKETS_MIN));
        let least = (wanted / 2).max(PACKETS_MIN);
        // The last one may begin in time and end late, as that of any batch.
        let mut allowed = path.pacer.burst_bytes(now) as usize / packet_bytes + 1;
        if path.pacer.is_rested(now) {
            // On a slow path a pair takes longer than any burst.
            allowed = allowed.max(least);
        }
        let mut packets = wanted.min(allowed);
        // Other tenants' turns are not trains'.
        let waiting = self.queues.waiting_bytes_of(id, TenantId::ZERO);
        let full = waiting as usize / payload_max;
        if full >= least {
            packets = packets.min(full);
        } else if !is_due {
            return None;
        }
        if packets < least {
            if is_due {
                self.paths.get_mut(&id)?.pacer.hold();
            }
            return None;
        }
        let (mut with_data, mut probe_bytes) = (0, 0);
        for index in 0..packets {
            let start = self.begin_packet(id, buf)?;
            let end = start + payload_max - TAG_LEN;
            let (index, count) = (index as u8, packets as u8);
            Frame::Train {
                id: train,
                index,
                count,
            }
            .encode(&mut buf.bytes);
            let head_end = buf.bytes.len();
            let mut frames = SentFrames::default();
            // What has to ask its window is left to batches while that is full.
            let free = self.tenants.zero_free_at(id, payload_max as u64);
            if free.is_some_and(|at| at <= now) {
                let zero = (id, TenantId::ZERO);
                self.write_items(now, zero, None, end, &mut buf.bytes, &mut frames);
            }
            let eliciting = buf.bytes.len() > head_end;
            with_data += u32::from(eliciting);
            probe_bytes += if eliciting {
                end - buf.bytes.len() + (head_end - start - DATA_HEADER_LEN)
            } else {
                packet_bytes
            };
            // Padding is zero bytes.
            buf.bytes.resize(end, 0);
            self.seal(now, id, buf, start, (eliciting, Owner::default()), frames);
        }
        self.took_turn = true;
        let path = self.paths.get_mut(&id)?;
        let sent = SentTrain {
            packets: packets as u32,
            packet_bytes: packet_bytes as u32,
            probe_bytes: probe_bytes as u64,
            with_data,
            is_thin,
        };
        path.trains
            .on_sent(now, sent, (rate, share), random.next_u32());
        let mut transmit = self.transmit(id, remote, buf, due);
        transmit.segment_size = payload_max;
        Some(transmit)
    }

    /// As many packets of one size as leave at once: with data if `paced`, the pacers let it go.
    fn poll_batch(
        &mut self,
        now: Instant,
        id: PathId,
        remote: SocketAddr,
        buf: &mut TransmitBuf,
        (mut paced, uplinks): (bool, &mut Uplinks),
    ) -> Option<Transmit> {
        let path = &self.paths[&id];
        // While others have the uplink nothing is due.
        let uplink_free = uplinks.next(path.socket);
        let due = path.pacer.due(now).max(uplink_free).min(now);
        let mut budget = path.pacer.batch_bytes();
        let payload_max = path.udp_payload_max();
        // All datagrams of a batch but the last have the length of the first.
        let mut segment = 0;
        let mut segments = 0;
        // All datagrams of a batch have one outer header.
        let mut ecn = 0;
        while segments < buf.segments_max {
            let start = buf.bytes.len();
            if segments > 0 && start + payload_max > BATCH_LEN_MAX {
                break;
            }
            self.close_group(now, id, uplinks);
            let copy_len = self.next_copy(now, id).map(PendingCopy::packet_bytes);
            let path = self.paths.get(&id)?;
            let with_data = paced && (path.probe_credit > 0 || !path.sent.is_full());
            let sender = match copy_len {
                None if with_data => self.next_send(now, id),
                _ => None,
            };
            let sender_ecn = sender.map_or(0, NextSend::ecn);
            if segments > 0 && ecn != sender_ecn {
                break;
            }
            ecn = sender_ecn;
            let (len, eliciting) = match (copy_len, sender) {
                // What is dropped before a batch is cut into packets is dropped whole: no copy is in one with
                // what it repeats.
                (Some(_), _) if segments > 0 => break,
                (Some(len), _) => {
                    self.write_copy(now, id, buf)?;
                    (len, true)
                }
                (None, Some(NextSend::IpPacket(turn, first))) => {
                    let limit = if segments > 0 { segment } else { payload_max };
                    let turn = (turn, first);
                    let Some(packet) = self.write_packets(now, id, turn, limit, buf) else {
                        break;
                    };
                    let told = (packet.eliciting, packet.owner);
                    self.seal(now, id, buf, start, told, packet.frames);
                    (packet.len, packet.eliciting)
                }
                (None, _) if segments > 0 && segment < payload_max => break,
                (None, sender) => {
                    let Some(packet) = self.write_packet(now, id, payload_max, sender, buf) else {
                        if let Some(NextSend::Items(turn)) = sender {
                            self.tenants.on_items_refused(id, turn);
                        }
                        break;
                    };
                    if let Some(NextSend::Items(turn)) = sender {
                        let overhead = u64::from(self.paths.get(&id)?.ip_overhead());
                        let bytes = packet.len as u64 + overhead;
                        self.tenants.on_sent(now, id, turn, bytes);
                    }
                    if packet.copies.is_some() {
                        self.copy_aggregate(now, id, &buf.bytes[start..], &packet, uplinks);
                    }
                    let told = (packet.eliciting, packet.owner);
                    self.seal(now, id, buf, start, told, packet.frames);
                    (packet.len, packet.eliciting)
                }
            };
            let path = self.paths.get_mut(&id)?;
            if eliciting {
                path.probe_credit = path.probe_credit.saturating_sub(1);
                self.took_turn = true;
            }
            segments += 1;
            budget = budget.saturating_sub(len as u64 + u64::from(path.ip_overhead()));
            paced = paced && budget > 0;
            if segments == 1 {
                segment = len;
            } else if len < segment {
                break;
            }
        }
        let wants = self
            .paths
            .get(&id)
            .is_some_and(|path| self.wants_to_send(path, now));
        let path = self.paths.get_mut(&id)?;
        if wants {
            path.pacer.on_blocked();
        } else {
            path.pacer.on_idle();
        }
        let mut transmit = self.transmit(id, remote, buf, due);
        transmit.segment_size = segment.min(transmit.len);
        transmit.ecn = ecn;
        (segments > 0).then_some(transmit)
    }

    /// Has the aggregate in `packet`, whose bytes are not sealed yet, leave as often again as it is to.
    fn copy_aggregate(
        &mut self,
        now: Instant,
        id: PathId,
        bytes: &[u8],
        packet: &Packet,
        uplinks: &mut Uplinks,
    ) {
        let Some((count, place)) = packet.copies else {
            return;
        };
        let copy = |index| {
            let mut clear = bytes[DATA_HEADER_LEN..].to_vec();
            clear[place - DATA_HEADER_LEN] = index;
            Copied {
                clear,
                frames: packet.frames.clone(),
                owner: packet.owner,
            }
        };
        self.push_copies(now, id, 1, (1..count).map(copy), uplinks);
    }

    /// Writes one packet of at most `payload_max` bytes, unsealed; `None` if there is nothing to
    /// send. Without a sender it carries acknowledgements only.
    fn write_packet(
        &mut self,
        now: Instant,
        id: PathId,
        payload_max: usize,
        sender: Option<NextSend>,
        buf: &mut TransmitBuf,
    ) -> Option<Packet> {
        let tenant = sender.map_or(TenantId::ZERO, NextSend::tenant);
        let is_zero = tenant == TenantId::ZERO;
        let start = self.begin_packet(id, buf)?;
        let clear_start = buf.bytes.len();
        let end = start + payload_max - TAG_LEN;
        let mut frames = SentFrames::default();
        let data_waits = sender.is_some();
        // Beyond its window tenant 0 says only what the protocol needs; others have no turn.
        let free = self.tenants.zero_free_at(id, payload_max as u64);
        let open = data_waits && (!is_zero || free.is_some_and(|at| at <= now));
        let aggregate = if open {
            self.begin_aggregate(now, (id, tenant), end, &mut buf.bytes)
        } else {
            None
        };
        let head_end = buf.bytes.len();
        let mut told = SentFrames::default();
        let passengers_end = aggregate.map_or(end, |aggregate| aggregate.passengers_end);
        self.write_acks(
            now,
            id,
            data_waits,
            passengers_end,
            &mut buf.bytes,
            &mut told,
        );
        // Of an aggregate that parity has given back nothing is read when it comes, though it is
        // acknowledged; and parity does not give acknowledgements back.
        if !aggregate.is_some_and(|aggregate| aggregate.protected) {
            frames = told;
        }
        // What follows an aggregate's head and is none of these is its content.
        if aggregate.is_none() {
            self.unknown_locally.write(now, end, &mut buf.bytes);
        }
        let acks_end = buf.bytes.len();
        if data_waits {
            if is_zero && self.control_path() == Some(id) {
                self.write_control(passengers_end, &mut buf.bytes, &mut frames);
            }
            let end = aggregate.map_or(end, |aggregate| aggregate.end);
            let class = aggregate.map(|aggregate| aggregate.class);
            if open {
                self.write_items(now, (id, tenant), class, end, &mut buf.bytes, &mut frames);
            }
            let path = self.paths.get_mut(&id)?;
            if is_zero && path.ping_wanted && buf.bytes.len() == acks_end && buf.bytes.len() < end {
                Frame::Ping.encode(&mut buf.bytes);
                let packet_bytes = (buf.bytes.len() - start + TAG_LEN) as u64;
                let ip_bytes = packet_bytes + u64::from(path.ip_overhead());
                path.on_ping_sent(now, ip_bytes, self.probe_share);
            }
        }
        let eliciting = buf.bytes.len() > acks_end;
        if eliciting {
            self.paths.get_mut(&id)?.ping_wanted = false;
        }
        if buf.bytes.len() == head_end && (aggregate.is_some() || head_end == clear_start) {
            buf.bytes.truncate(start);
            if aggregate.is_some() {
                self.paths.get_mut(&id)?.aggregator.on_drained(now);
            }
            return None;
        }
        let len = buf.bytes.len() - start + TAG_LEN;
        let copies = match aggregate {
            Some(aggregate) => {
                let content = &buf.bytes[acks_end..];
                self.end_aggregate(now, id, len, aggregate, content)
            }
            None => None,
        };
        Some(Packet {
            len,
            eliciting: eliciting || copies.is_some(),
            frames,
            copies: copies.map(|(count, place)| (count, place - start)),
            owner: Owner { tenant, ecn: 0 },
        })
    }

    /// Begins an aggregate if thin traffic is the tenant's first and may leave.
    fn begin_aggregate(
        &mut self,
        now: Instant,
        (id, tenant): (PathId, TenantId),
        end: usize,
        out: &mut Vec<u8>,
    ) -> Option<Aggregate> {
        let path = self.paths.get(&id)?;
        let thin = path.aggregator.may_send(now);
        let (item, coalescing) = self.queues.first(id, tenant, thin)?;
        if coalescing == Coalescing::No {
            return None;
        }
        let overhead = u64::from(path.ip_overhead()) + (DATA_HEADER_LEN + TAG_LEN) as u64;
        let room = path.aggregator.room(now).saturating_sub(overhead) as usize;
        let number = path.aggregator.next_number();
        let begin = out.len();
        let group = path.aggregator.place_in_group();
        let (count, end) = match group {
            None => (path.aggregator.copies(), end),
            Some(_) => (1, end - RESERVE.min(end)),
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
            place: out.len() - 1,
            end,
            passengers_end: end.saturating_sub(self.longest(item)),
        })
    }

    /// What the rest of a thin item takes of an aggregate at most, in bytes.
    fn longest(&self, item: SendItem) -> usize {
        let opens = match item {
            SendItem::Stream(id) => self.queues.streams.get(&id).is_some_and(|s| s.opens()),
            SendItem::Message(_) | SendItem::Datagram(_) => false,
        };
        let open = if opens { Frame::STREAM_OPEN_LEN_MAX } else { 0 };
        let left = usize::try_from(self.queues.left(item)).unwrap_or(usize::MAX);
        left.saturating_add(CONTENT_HEAD_MAX + open)
    }

    /// DeliveryAccounting for an aggregate of `len` bytes of UDP payload: how many copies leave, and where
    /// their places stand.
    fn end_aggregate(
        &mut self,
        now: Instant,
        id: PathId,
        len: usize,
        aggregate: Aggregate,
        content: &[u8],
    ) -> Option<(u8, usize)> {
        let more = self.queues.gathers(id);
        let path = self.paths.get_mut(&id)?;
        let ip_bytes = len as u64 + u64::from(path.ip_overhead());
        let number = path.aggregator.on_sent(now, ip_bytes, aggregate.count);
        if aggregate.protected {
            path.aggregator.protect(now, (number, ip_bytes), content);
        }
        if !more {
            path.aggregator.on_drained(now);
        }
        Some((aggregate.count, aggregate.place))
    }

    /// A packet of one frame that is not repeated, outside of the pacer's order.
    fn single(
        &mut self,
        now: Instant,
        id: PathId,
        remote: SocketAddr,
        buf: &mut TransmitBuf,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Option<Transmit> {
        let start = self.begin_packet(id, buf)?;
        write(&mut buf.bytes);
        self.seal(
            now,
            id,
            buf,
            start,
            (false, Owner::default()),
            SentFrames::None,
        );
        Some(self.transmit(id, remote, buf, now))
    }

    /// Appends the header of the path's next packet; where the packet starts.
    pub(super) fn begin_packet(&self, id: PathId, buf: &mut TransmitBuf) -> Option<usize> {
        let start = buf.bytes.len();
        let header = DataHeader {
            path: id.0,
            receiver: self.keys.current()?.remote_index,
            // The low half is what is on the wire.
            packet_number: self.paths.get(&id)?.sent.next_number() as u32,
        };
        buf.bytes.extend_from_slice(&header.encode());
        Some(start)
    }

    /// Seals the packet that begins at `start` and accounts for it.
    pub(super) fn seal(
        &mut self,
        now: Instant,
        id: PathId,
        buf: &mut TransmitBuf,
        start: usize,
        (eliciting, owner): (bool, Owner),
        frames: SentFrames,
    ) {
        let path = self
            .paths
            .get_mut(&id)
            .expect("a path that is sent on exists");
        let epoch = self
            .keys
            .current_mut()
            .expect("keys were there when the packet was begun");
        epoch
            .keys
            .seal(id, path.sent.next_number(), &mut buf.bytes, start);
        epoch.packets_sealed += 1;
        let ip_bytes = (buf.bytes.len() - start) as u64 + u64::from(path.ip_overhead());
        let recorded = u16::try_from(ip_bytes).unwrap_or(u16::MAX);
        let place = path.self_queueing(now, ip_bytes);
        path.sent
            .on_sent(now, recorded, eliciting, frames, (place, owner));
        path.pacer.on_sent(now, ip_bytes);
        path.packets_sent += 1;
        path.bytes_sent += ip_bytes;
        if eliciting {
            path.last_sent_at = now;
        }
        if eliciting && owner.tenant == TenantId::ZERO {
            let mtu = path.mtu.current();
            self.tenants.on_zero_sent(now, (id, mtu), ip_bytes);
        }
    }

    fn transmit(
        &self,
        id: PathId,
        remote: SocketAddr,
        buf: &TransmitBuf,
        due: Instant,
    ) -> Transmit {
        let path = &self.paths[&id];
        let len = buf.bytes.len();
        Transmit {
            socket: path.socket,
            remote,
            len,
            segment_size: len,
            ecn: 0,
            due,
        }
    }
}
