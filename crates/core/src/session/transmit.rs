//! Sending: on which path, with which frames, and how many packets at once.

use std::net::SocketAddr;

use keiro_units::Instant;
use rand_chacha::ChaCha20Rng;

use super::{
    Session,
    copies::{CopyBatch, CopyContent, PendingCopy},
    parity::RESERVE,
    path::{Path, TrainContent},
    recovery::{Owner, PacketKind, SentFrames},
    send_queues::{Coalescing, FrameBuf, ItemSelection, SendQueues},
    tenant::{GrantKind, SchedulerGrant},
};
use crate::{
    config::DeliveryClass,
    endpoint::{Transmit, TransmitBuf},
    event::{Event, MoveReason, PathDownReason},
    id::{PathId, SocketId, TenantId},
    trace::TraceKind,
    uplink::Uplinks,
    wire::{DATA_HEADER_LEN, DataHeader, Frame, TAG_LEN},
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

/// Longest batch: the kernel takes one as a single UDP datagram and cuts it up.
const BATCH_LEN_MAX: usize = 65_000;

/// A packet that is written and not sealed.
pub(super) struct Packet {
    /// Bytes of UDP payload, the tag included.
    pub(super) len: usize,
    pub(super) kind: PacketKind,
    pub(super) frames: SentFrames,
    /// It is the first copy of an aggregate.
    pub(super) copies: Option<Copies>,
    pub(super) owner: Owner,
}

/// The copies of an aggregate.
#[derive(Clone, Copy)]
pub(super) struct Copies {
    /// How many there are, the first one included.
    count: u8,
    /// Position in the packet of the index of the copy.
    index_at: usize,
}

/// What loss recovery has to know of a packet that is sealed.
pub(super) struct Unsealed {
    kind: PacketKind,
    frames: SentFrames,
    owner: Owner,
}

impl Unsealed {
    /// A packet of tenant 0 with nothing to retransmit.
    fn alone(kind: PacketKind) -> Self {
        Self {
            kind,
            frames: SentFrames::None,
            owner: Owner::default(),
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
        if self.closed || self.keys.current().is_none() {
            return None;
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
        self.poll_batch(now, id, remote, buf, paced, uplinks)
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
        let path = self.paths.get_mut(id)?;
        let challenge = path.poll_challenge(now, random, &self.timing)?;
        if let Some(is_news) = path.check_unreachable() {
            if is_news {
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
        let frame = Frame::PathChallenge(challenge.token);
        self.single(now, id, challenge.remote, buf, frame)
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
        let plan = path.poll_train(now, self.probe_share, waiting, BATCH_LEN_MAX)?;
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
                self.write_items(now, selection, end, &mut buf.bytes, &mut frames);
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
        path.on_train_sent(now, plan, content, self.probe_share, random);
        let mut transmit = self.transmit(id, remote, buf, plan.due);
        transmit.segment_size = payload_max;
        Some(transmit)
    }

    /// As many packets of one size as leave at once. `paced`: the pacers let data go.
    fn poll_batch(
        &mut self,
        now: Instant,
        id: PathId,
        remote: SocketAddr,
        buf: &mut TransmitBuf,
        mut paced: bool,
        uplinks: &mut Uplinks,
    ) -> Option<Transmit> {
        let path = self.paths.get(id)?;
        // While others have the uplink nothing is due.
        let uplink_free = uplinks.next(path.socket());
        let due = path.pacer().due(now).max(uplink_free).min(now);
        let mut budget = path.pacer().batch_bytes();
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
            let path = self.paths.get(id)?;
            let with_data = paced && path.may_send_eliciting();
            let grant = match copy_len {
                None if with_data => self.poll_scheduler(now, id),
                _ => None,
            };
            let grant_ecn = grant.map_or(0, |grant| grant.ecn());
            if segments > 0 && ecn != grant_ecn {
                break;
            }
            ecn = grant_ecn;
            let (len, eliciting) = match (copy_len, grant) {
                // The network may drop a batch as a whole, so a copy is never in one with its
                // aggregate.
                (Some(_), _) if segments > 0 => break,
                (Some(len), _) => {
                    self.write_copy(now, id, buf)?;
                    (len, true)
                }
                (
                    None,
                    Some(
                        grant @ SchedulerGrant {
                            kind: GrantKind::IpPackets(first),
                            ..
                        },
                    ),
                ) => {
                    let limit = if segments > 0 { segment } else { payload_max };
                    let Some(packet) = self.write_packets(now, id, grant, first, limit, buf) else {
                        break;
                    };
                    self.seal_written(now, id, buf, start, packet)
                }
                (None, _) if segments > 0 && segment < payload_max => break,
                (None, grant) => {
                    let Some(packet) = self.write_packet(now, id, payload_max, grant, buf) else {
                        if let Some(grant) = grant {
                            self.scheduler.on_refused(id, grant);
                        }
                        break;
                    };
                    if let Some(grant) = grant {
                        self.on_granted_written(now, id, grant, &packet);
                    }
                    if packet.copies.is_some() {
                        self.copy_aggregate(now, id, &buf.bytes[start..], &packet, uplinks);
                    }
                    self.seal_written(now, id, buf, start, packet)
                }
            };
            let path = self.paths.get_mut(id)?;
            if eliciting {
                path.on_eliciting_batched();
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
        let path = self.paths.get(id)?;
        let wants = self.wants_to_send(path, now);
        let pacer = self.paths.get_mut(id)?.pacer_mut();
        match wants {
            true => pacer.on_blocked(),
            false => pacer.on_idle(),
        }
        let mut transmit = self.transmit(id, remote, buf, due);
        transmit.segment_size = segment.min(transmit.len);
        transmit.ecn = ecn;
        (segments > 0).then_some(transmit)
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

    /// Seals a packet of a batch: its length, and whether it asks for an acknowledgement.
    fn seal_written(
        &mut self,
        now: Instant,
        id: PathId,
        buf: &mut TransmitBuf,
        start: usize,
        packet: Packet,
    ) -> (usize, bool) {
        let written = (packet.len, packet.kind.is_ack_eliciting());
        self.seal(now, id, buf, start, packet.into());
        written
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
        let spread = self.aggregation.spread;
        self.paths.push_copies(now, spread, batch, uplinks);
    }

    /// The copy that is due on a path.
    fn next_copy(&self, now: Instant, id: PathId) -> Option<&PendingCopy> {
        let path = self.paths.get(id).filter(|path| path.is_up())?;
        path.copies().next(now)
    }

    /// Writes and seals the copy that is due.
    fn write_copy(&mut self, now: Instant, id: PathId, buf: &mut TransmitBuf) -> Option<()> {
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
        let bytes = (buf.bytes.len() - start) as u64 + overhead;
        self.on_ungranted_sent(now, id, owner.tenant, bytes);
        Some(())
    }

    /// Writes one packet of at most `payload_max` bytes, unsealed; `None` if there is nothing to
    /// send. Without a grant it carries acknowledgements only.
    fn write_packet(
        &mut self,
        now: Instant,
        id: PathId,
        payload_max: usize,
        grant: Option<SchedulerGrant>,
        buf: &mut TransmitBuf,
    ) -> Option<Packet> {
        let tenant = grant.map_or(TenantId::ZERO, |grant| grant.tenant);
        let is_zero = tenant == TenantId::ZERO;
        let start = self.begin_packet(id, buf)?;
        let clear_start = buf.bytes.len();
        let end = start + payload_max - TAG_LEN;
        let mut frames = SentFrames::default();
        let data_waits = grant.is_some();
        let open = grant.is_some_and(|grant| grant.kind == GrantKind::Items);
        let aggregate = if open {
            self.begin_aggregate(now, (id, tenant), end, &mut buf.bytes)
        } else {
            None
        };
        let head_end = buf.bytes.len();
        let mut acks = SentFrames::default();
        let passengers_end = aggregate.map_or(end, |aggregate| aggregate.passengers_end);
        self.write_acks(
            now,
            id,
            data_waits,
            passengers_end,
            &mut buf.bytes,
            &mut acks,
        );
        // An aggregate that parity has recovered is acknowledged when it arrives but not read, and parity
        // does not recover its acknowledgements: they must not count as arrived.
        if !aggregate.is_some_and(|aggregate| aggregate.protected) {
            frames = acks;
        }
        // Any other frame behind the head of an aggregate would be its content.
        if aggregate.is_none() {
            self.unknown_locally.write(now, end, &mut buf.bytes);
        }
        let acks_end = buf.bytes.len();
        if data_waits {
            if is_zero && self.control_path() == Some(id) {
                self.write_control(passengers_end, &mut buf.bytes, &mut frames);
            }
            let end = aggregate.map_or(end, |aggregate| aggregate.end);
            if open {
                let selection = ItemSelection {
                    path: id,
                    tenant,
                    coalescing: aggregate.map(|aggregate| aggregate.class),
                    clear_text_max: Path::clear_text_max(payload_max),
                };
                self.write_items(now, selection, end, &mut buf.bytes, &mut frames);
            }
            let path = self.paths.get_mut(id)?;
            if is_zero
                && path.is_ping_wanted()
                && buf.bytes.len() == acks_end
                && buf.bytes.len() < end
            {
                Frame::Ping.encode(&mut buf.bytes);
                let packet_bytes = (buf.bytes.len() - start + TAG_LEN) as u64;
                let ip_bytes = packet_bytes + u64::from(path.ip_overhead());
                path.on_ping_written(now, ip_bytes, self.probe_share);
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
        let copies = match aggregate {
            Some(aggregate) => {
                let content = &buf.bytes[acks_end..];
                self.end_aggregate(now, id, len, aggregate, content)
            }
            None => None,
        };
        Some(Packet {
            len,
            kind: PacketKind::of(eliciting || copies.is_some()),
            frames,
            copies: copies.map(|(count, index_at)| Copies {
                count,
                index_at: index_at - start,
            }),
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
        let path = self.paths.get(id)?;
        let aggregator = path.aggregator();
        let thin = aggregator.may_send(now);
        let (item, coalescing) = self.scheduler.queues_mut().first(id, tenant, thin)?;
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
            index_at: out.len() - 1,
            end,
            passengers_end: end.saturating_sub(self.scheduler.queues().coalesced_len_max(item)),
        })
    }

    /// Writes items into a packet.
    fn write_items(
        &mut self,
        now: Instant,
        selection: ItemSelection,
        end: usize,
        out: &mut Vec<u8>,
        frames: &mut SentFrames,
    ) {
        let mut buf = FrameBuf { out, end, frames };
        let written = self
            .scheduler
            .queues_mut()
            .write_items(now, selection, &mut buf);
        if let Some(path) = self.paths.get_mut(selection.path) {
            path.on_retransmitted(written.retransmitted_bytes);
        }
        for writable in written.writable {
            self.signal_writable_stream(writable);
        }
    }

    /// Accounts for an aggregate of `len` bytes of UDP payload: how many copies leave, and where
    /// their places stand.
    fn end_aggregate(
        &mut self,
        now: Instant,
        id: PathId,
        len: usize,
        aggregate: Aggregate,
        content: &[u8],
    ) -> Option<(u8, usize)> {
        let more = self.scheduler.queues().has_coalescing(id);
        let path = self.paths.get_mut(id)?;
        let ip_bytes = len as u64 + u64::from(path.ip_overhead());
        let aggregator = path.aggregator_mut();
        let number = aggregator.on_sent(now, ip_bytes, aggregate.count);
        if aggregate.protected {
            aggregator.protect(now, (number, ip_bytes), content);
        }
        if !more {
            aggregator.on_drained(now);
        }
        Some((aggregate.count, aggregate.index_at))
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
    pub(super) fn begin_packet(&self, id: PathId, buf: &mut TransmitBuf) -> Option<usize> {
        let start = buf.bytes.len();
        let header = DataHeader {
            path: id.0,
            receiver: self.keys.current()?.remote_index,
            // The low half is what is on the wire.
            packet_number: self.paths.get(id)?.next_packet_number() as u32,
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
        epoch.packets_sealed += 1;
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
        let mtu = self.paths.get(id).map_or(0, Path::mtu);
        if self.scheduler.tenants().is_shared() {
            let tenants = self.scheduler.tenants_mut();
            tenants.on_ungranted_sent(now, id, mtu, tenant, ip_bytes);
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
