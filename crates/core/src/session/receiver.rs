//! The receiving side of one peer's packets: replay windows, acknowledgements and reports of each
//! path of the peer, reassembly of messages, and what waits for the driver.
//!
//! Frames are read by `receive`; this holds what they change.

use std::collections::VecDeque;

use keiro_units::Instant;

use super::{
    aggregation::receiver::{AggregateReceiver, Copy, ReceiveOverflows},
    clock::PeerClock,
    displaced_packets::{DisplacedPackets, SocketDrops},
    fragments::{DatagramFragment, Fragments, ReassembledDatagram},
    packet_parts::{PacketPart, PacketParts, ReassembledPacket, WrongPart},
    reassembly::{CreditTime, MessagePart, PartError, ReassembledMessage, Reassembly},
    receive_memory::SpareMemory,
    received_packets::{AckPolicy, Received},
    resequencer::{Arrival, HeldPacket, OrderCounts, OrderedPacket, Resequencer},
    sent_frames::{SentFrame, SentFrames},
    train::TrainReceiver,
};
use crate::{
    datagram::DatagramMeta,
    event::StreamSignal,
    id::{AppId, FlowId, SocketId, StreamId, TenantId},
    table::Table,
    wire::{Feedback, Frame, ParityFrame, TrainReport},
};

/// Datagrams and packets that wait for the driver at most; it drains them every turn. At the bound
/// further ones are dropped and counted.
const ARRIVED_MAX: usize = 65_536;

/// Path numbers of a peer of which something is kept, at most. What is kept of one is not forgotten while its
/// keys are in use, because its packets could be replayed. A gateway has no more paths.
const REMOTE_PATHS_MAX: usize = 64;

const CREDIT_LEN_MAX: usize = 17;

/// What is kept of a peer to recover aggregates by parity; then the oldest group of the path that has most is
/// forgotten. Ours: 20 ms of four paths of 100 Mbit/s.
const PARITY_BYTES_MAX: usize = 1 << 20;
/// Memory for what arrived that is kept from turn to turn; more is given back. Ours: eight of the longest
/// datagrams that the kernel joins.
const ARENA_KEPT: usize = 512 << 10;
/// The same of what is to be delivered from there.
const ARRIVED_KEPT: usize = 4096;

/// What arrived for the driver. Datagrams lie in an arena.
pub(crate) enum Arrived {
    Message {
        app: AppId,
        /// Our number of it, for `finish_message`.
        number: u64,
        body: Vec<u8>,
    },
    Datagram {
        app: AppId,
        flow: FlowId,
        reply: bool,
        start: usize,
        end: usize,
    },
    Packet {
        tenant: TenantId,
        ecn: u8,
        start: usize,
        end: usize,
    },
    Stream {
        app: AppId,
        stream: StreamId,
        signal: StreamSignal,
    },
}

/// A datagram of an application as it arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceivedDatagram<'a> {
    pub(crate) app: AppId,
    pub(crate) flow: FlowId,
    pub(crate) reply: bool,
    pub(crate) data: &'a [u8],
}

/// An IP packet of a tenant as it arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceivedPacket<'a> {
    pub(crate) tenant: TenantId,
    /// The two ECN bits of its IP header.
    pub(crate) ecn: u8,
    pub(crate) data: &'a [u8],
}

/// What waits for the driver.
#[derive(Default)]
struct Deliveries {
    arrived: VecDeque<Arrived>,
    arena: Vec<u8>,
}

/// The aggregate of a group that a packet is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProtectedAggregate {
    /// The peer's path that numbers it.
    pub(crate) path: u8,
    pub(crate) number: u64,
    pub(crate) place: u8,
}

/// Receive state of one path of the peer, and the socket at which its packets arrive here.
#[derive(Default)]
struct RemotePath {
    received: Received,
    trains: TrainReceiver,
    aggregates: AggregateReceiver,
    displaced: DisplacedPackets,
    socket: Option<SocketId>,
}

/// The receiving side of one peer.
pub(crate) struct Receiver {
    /// By the path's number at the peer.
    remote_paths: Table<u8, RemotePath>,
    overflows: Table<SocketId, ReceiveOverflows>,
    clock: PeerClock,
    reassembly: Reassembly,
    fragments: Fragments,
    packet_parts: PacketParts,
    resequencer: Resequencer,
    /// Credit is to be sent to the peer; only the newest matters.
    credit_wanted: bool,
    deliveries: Deliveries,
    /// Kept of all paths to recover aggregates by parity.
    parity_bytes: usize,
    /// Products of bytes since the last [`Self::take_recovery_cost`].
    products: u64,
}

impl Receiver {
    /// `window`: charges of the peer's messages that may be open at once.
    pub(crate) fn new(window: u64) -> Self {
        Self {
            remote_paths: Table::default(),
            overflows: Table::default(),
            clock: PeerClock::default(),
            reassembly: Reassembly::new(window),
            fragments: Fragments::default(),
            packet_parts: PacketParts::default(),
            resequencer: Resequencer::default(),
            credit_wanted: false,
            deliveries: Deliveries::default(),
            parity_bytes: 0,
            products: 0,
        }
    }

    /// The peer has restarted: everything it sent before is void, except what waits for the driver.
    ///
    /// `granted`: its first credit for messages.
    pub(crate) fn on_peer_restarted(&mut self, now: Instant, granted: u64) {
        self.remote_paths.clear();
        self.parity_bytes = 0;
        self.clock = PeerClock::default();
        self.reassembly.restart(granted);
        self.fragments = Fragments::default();
        self.packet_parts = PacketParts::default();
        self.resequencer.on_peer_restarted(now);
        // Handshakes that cross may have offered the peer another credit than this one.
        self.credit_wanted = true;
    }

    pub(crate) fn on_socket_drops(&mut self, socket: SocketId, drops: SocketDrops) {
        self.overflows.insert(socket, drops.of_peers);
        for remote in self.remote_paths.values_mut() {
            if remote.socket == Some(socket) {
                remote.displaced.on_drops(drops.strangers);
            }
        }
    }

    pub(crate) fn clock(&self) -> &PeerClock {
        &self.clock
    }

    pub(crate) fn clock_mut(&mut self) -> &mut PeerClock {
        &mut self.clock
    }

    /// The full number of a packet on the peer's path `path`; `None`: it was received before, or it
    /// is too old to know.
    pub(crate) fn expand_and_check_replay(&self, path: u8, low: u32) -> Option<u64> {
        let Some(remote) = self.remote_paths.get(path) else {
            return Some(u64::from(low));
        };
        let number = remote.received.expand(low);
        (!remote.received.is_replay(number)).then_some(number)
    }

    /// Packets of the peer's path `path` are taken: it is known, or there is room for another.
    pub(crate) fn takes_path(&self, path: u8) -> bool {
        self.remote_paths.contains(path) || self.remote_paths.len() < REMOTE_PATHS_MAX
    }

    /// An authentic packet arrived; whether it is the newest of its path.
    pub(crate) fn on_packet(&mut self, path: u8, number: u64, meta: DatagramMeta) -> bool {
        let remote = self.remote_paths.get_or_default(path);
        let is_newest = remote.received.is_newest(number);
        remote.socket = Some(meta.socket);
        remote.displaced.on_packet();
        remote
            .received
            .on_packet(number, meta.received_at, meta.ecn == 3);
        is_newest
    }

    /// The packet that was just recorded asks for an acknowledgement.
    pub(crate) fn on_ack_eliciting(
        &mut self,
        now: Instant,
        path: u8,
        number: u64,
        policy: AckPolicy,
    ) {
        if let Some(remote) = self.remote_paths.get_mut(path) {
            remote.received.on_eliciting(now, number, policy);
        }
    }

    /// The peer has an acknowledgement of its path `path` that covers everything up to `largest`.
    pub(crate) fn on_ack_of_ack(&mut self, path: u8, largest: u64) {
        if let Some(remote) = self.remote_paths.get_mut(path) {
            remote.received.on_ack_of_ack(largest);
        }
    }

    /// Aggregates of the peer's path `path`; `None`: no packet of it has come, so that it cannot be up.
    pub(crate) fn aggregates_mut(&mut self, path: u8) -> Option<&mut AggregateReceiver> {
        let remote = self.remote_paths.get_mut(path)?;
        Some(&mut remote.aggregates)
    }

    /// Keeps the content of an aggregate of a group; the contents of others that this recovers.
    pub(crate) fn keep_aggregate(
        &mut self,
        aggregate: ProtectedAggregate,
        content: &[u8],
    ) -> Vec<Vec<u8>> {
        let ProtectedAggregate {
            path,
            number,
            place,
        } = aggregate;
        self.change_groups(path, |kept| kept.keep(number, place, content))
            .unwrap_or_default()
    }

    /// Parity of a group arrived; the contents that it recovers. `None`: no packet of its path has come.
    pub(crate) fn on_parity(
        &mut self,
        now: Instant,
        frame: &ParityFrame<'_>,
        copy: Copy,
    ) -> Option<Vec<Vec<u8>>> {
        self.change_groups(frame.path, |kept| kept.on_parity(now, frame, copy))
    }

    /// Products of bytes that recovery took since the last call.
    pub(crate) fn take_recovery_cost(&mut self) -> u64 {
        std::mem::take(&mut self.products)
    }

    /// Changes what is kept of groups of a path, and keeps to the bound of all paths.
    fn change_groups<T>(
        &mut self,
        path: u8,
        change: impl FnOnce(&mut AggregateReceiver) -> T,
    ) -> Option<T> {
        let kept = &mut self.remote_paths.get_mut(path)?.aggregates;
        let before = kept.memory();
        let result = change(kept);
        self.products += kept.take_recovery_cost();
        self.parity_bytes = self.parity_bytes - before + kept.memory();
        while self.parity_bytes > PARITY_BYTES_MAX {
            let aggregates = self
                .remote_paths
                .values_mut()
                .map(|path| &mut path.aggregates);
            let Some(most) = aggregates.max_by_key(|kept| kept.memory()) else {
                break;
            };
            let before = most.memory();
            most.forget_oldest_group();
            self.parity_bytes -= before - most.memory();
        }
        Some(result)
    }

    /// Aggregates of all paths of the peer whose packets arrive at `socket`.
    pub(crate) fn aggregates_at(
        &self,
        socket: SocketId,
    ) -> impl Iterator<Item = &AggregateReceiver> {
        let at_socket = move |remote: &&RemotePath| remote.socket == Some(socket);
        let remotes = self.remote_paths.values().filter(at_socket);
        remotes.map(|remote| &remote.aggregates)
    }

    /// Trains on the peer's path `path`.
    pub(crate) fn trains_mut(&mut self, path: u8) -> Option<&mut TrainReceiver> {
        Some(&mut self.remote_paths.get_mut(path)?.trains)
    }

    /// The socket at which packets of the peer's path `path` arrive.
    pub(crate) fn socket_of(&self, path: u8) -> Option<SocketId> {
        self.remote_paths.get(path)?.socket
    }

    /// Numbers of the peer's paths from which packets have arrived.
    pub(crate) fn remote_paths(&self) -> impl Iterator<Item = u8> {
        self.remote_paths.keys()
    }

    pub(crate) fn remote_path_count(&self) -> usize {
        self.remote_paths.len()
    }

    /// When something about the peer's path `path` is to be sent.
    pub(crate) fn due_of(&self, path: u8) -> Option<Instant> {
        let remote = self.remote_paths.get(path)?;
        let due = [
            remote.received.ack_due(),
            remote.trains.report_due(),
            remote.aggregates.feedback_due(),
        ];
        due.into_iter().flatten().min()
    }

    /// Something of what [`acks_wanted`](Self::acks_wanted), [`train_reports_due`](Self::train_reports_due) or
    /// [`feedback_due`](Self::feedback_due) return is to be written.
    pub(crate) fn has_reports(&self, now: Instant, data_waits: bool) -> bool {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        self.remote_paths.values().any(|remote| {
            (data_waits && remote.received.has_unacknowledged())
                || is_due(remote.received.ack_due())
                || is_due(remote.trains.report_due())
                || is_due(remote.aggregates.feedback_due())
        })
    }

    /// Paths of the peer whose acknowledgement is due, or may as well travel with data.
    pub(crate) fn acks_wanted(&self, now: Instant, data_waits: bool) -> Vec<u8> {
        let is_wanted = |remote: &RemotePath| {
            remote.received.ack_due().is_some_and(|due| due <= now)
                || (data_waits && remote.received.has_unacknowledged())
        };
        self.wanted(is_wanted)
    }

    /// Paths of the peer of which a train is to be reported.
    pub(crate) fn train_reports_due(&self, now: Instant) -> Vec<u8> {
        self.wanted(|remote| remote.trains.report_due().is_some_and(|at| at <= now))
    }

    /// Paths of the peer of whose aggregates feedback is due.
    pub(crate) fn feedback_due(&self, now: Instant) -> Vec<u8> {
        self.wanted(|remote| remote.aggregates.feedback_due().is_some_and(|at| at <= now))
    }

    /// Paths of the peer of which strangers have displaced packets that were not reported.
    pub(crate) fn stranger_drops_due(&self) -> Vec<u8> {
        self.wanted(|remote| remote.displaced.is_news())
    }

    fn wanted(&self, is_wanted: impl Fn(&RemotePath) -> bool) -> Vec<u8> {
        let wanted = self.remote_paths.iter();
        wanted
            .filter(|(_, remote)| is_wanted(remote))
            .map(|(path, _)| path)
            .collect()
    }

    /// Appends an acknowledgement of the peer's path `path` if there is room up to `end`; its
    /// largest packet.
    pub(crate) fn write_ack(
        &mut self,
        now: Instant,
        path: u8,
        end: usize,
        out: &mut Vec<u8>,
    ) -> Option<u64> {
        let received = &mut self.remote_paths.get_mut(path)?.received;
        received.write_ack(now, path, end, out)
    }

    /// Appends the report of a train if one is due and there is room up to `end`.
    pub(crate) fn write_train_report(
        &mut self,
        now: Instant,
        path: u8,
        end: usize,
        out: &mut Vec<u8>,
    ) {
        if out.len() + TrainReport::LEN_MAX <= end
            && let Some(remote) = self.remote_paths.get_mut(path)
        {
            remote.trains.write_report(now, path, out);
        }
    }

    /// Appends feedback on aggregates if there is room up to `end`.
    pub(crate) fn write_feedback(&mut self, now: Instant, path: u8, end: usize, out: &mut Vec<u8>) {
        if out.len() + Feedback::LEN_MAX > end {
            return;
        }
        let Some(remote) = self.remote_paths.get_mut(path) else {
            return;
        };
        let overflows = remote
            .socket
            .and_then(|socket| self.overflows.get(socket))
            .copied()
            .unwrap_or_default();
        let feedback = remote.aggregates.take_feedback(now, path, overflows);
        if let Some(feedback) = feedback {
            Frame::Feedback(feedback).encode(out);
        }
    }

    /// Appends how many packets strangers have displaced if there is room up to `end`.
    pub(crate) fn write_stranger_drops(&mut self, path: u8, end: usize, out: &mut Vec<u8>) {
        if out.len() + Frame::STRANGER_DROPS_LEN_MAX <= end
            && let Some(remote) = self.remote_paths.get_mut(path)
        {
            let packets = remote.displaced.take_report();
            Frame::StrangerDrops { path, packets }.encode(out);
        }
    }

    /// Takes a part of a message that arrived at `at`; the message if it is whole now.
    pub(crate) fn on_message_part(
        &mut self,
        at: Instant,
        part: MessagePart<'_>,
    ) -> Result<Option<ReassembledMessage>, PartError> {
        let result = self.reassembly.on_part(at, part);
        if matches!(result, Err(PartError::Abandoned | PartError::Full)) {
            self.update_credit();
        }
        result
    }

    /// Fragments of a datagram have arrived, and others are awaited.
    pub(crate) fn has_fragments_of(&self, id: u64) -> bool {
        self.fragments.contains(id)
    }

    /// See [`Resequencer::on_packet`].
    pub(crate) fn on_ordered_packet(&mut self, now: Instant, packet: OrderedPacket<'_>) -> Arrival {
        self.resequencer.on_packet(now, packet)
    }

    /// The next packet that is held no longer.
    pub(crate) fn poll_held_packet(&mut self) -> Option<HeldPacket> {
        self.resequencer.poll()
    }

    /// When the next packet is held no longer.
    pub(crate) fn held_packets_due(&self) -> Option<Instant> {
        self.resequencer.due()
    }

    /// What has happened to packets of a tenant that came over several paths.
    pub(crate) fn order_counts(&self, tenant: TenantId) -> OrderCounts {
        self.resequencer.counts(tenant)
    }

    /// A tenant is no longer configured.
    pub(crate) fn forget_tenant(&mut self, tenant: TenantId) {
        self.resequencer.forget_tenant(tenant);
    }

    /// See [`PacketParts::on_part`].
    pub(crate) fn on_packet_part(
        &mut self,
        now: Instant,
        part: PacketPart<'_>,
    ) -> Result<Option<ReassembledPacket>, WrongPart> {
        self.packet_parts.on_part(now, part)
    }

    /// When packets are given up of which parts are awaited.
    pub(crate) fn packet_parts_due(&self) -> Option<Instant> {
        self.packet_parts.due()
    }

    /// Takes a fragment of a datagram; the datagram if it is whole now.
    pub(crate) fn on_fragment(
        &mut self,
        part: DatagramFragment<'_>,
    ) -> Option<ReassembledDatagram> {
        self.fragments.on_fragment(part)
    }

    /// The peer gave a message up; `false` if it says that of more than it was granted.
    pub(crate) fn on_message_drop(&mut self, id: u64, total: usize) -> bool {
        let is_granted = self.reassembly.on_drop(id, total);
        self.update_credit();
        is_granted
    }

    /// The driver is done with a message: the peer's number of it, and when it was whole.
    pub(crate) fn on_message_finished(&mut self, number: u64) -> Option<(u64, Instant)> {
        let finished = self.reassembly.on_finished(number);
        self.update_credit();
        finished
    }

    /// The first credit, which the handshake carries.
    pub(crate) fn initial_credit(&self) -> u64 {
        self.reassembly.initial_credit()
    }

    /// What messages may make us keep.
    pub(crate) fn memory_of_messages(&self) -> u64 {
        self.reassembly.memory_of_messages()
    }

    /// What is kept beside messages: parity, fragments, parts of packets and numbers.
    pub(crate) fn memory_beside(&self) -> u64 {
        self.parity_bytes as u64
            + self.reassembly.memory_beside()
            + self.fragments.memory()
            + self.packet_parts.memory()
            + self.resequencer.memory()
    }

    /// Charges of messages that are kept, here or by the driver.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.reassembly.kept_bytes()
    }

    pub(crate) fn is_credit_wanted(&self) -> bool {
        self.credit_wanted
    }

    /// When credit will be wanted that is not yet.
    pub(crate) fn credit_due(&self) -> Option<Instant> {
        match self.credit_wanted {
            true => None,
            false => self.reassembly.credit_due(),
        }
    }

    /// Credit that is due is wanted from now on, packets in parts that are overdue are given up, and those that were
    /// held long enough are to be delivered.
    pub(crate) fn on_timeout(&mut self, now: Instant) {
        self.packet_parts.on_timeout(now);
        self.resequencer.on_timeout(now);
        self.credit_wanted |= self.credit_due().is_some_and(|due| due <= now);
    }

    /// Appends credit for messages if it is wanted and there is room up to `end`. `spare`: what the peer may
    /// still make us keep.
    pub(crate) fn write_credit(
        &mut self,
        at: CreditTime,
        spare: SpareMemory,
        end: usize,
        out: &mut Vec<u8>,
        frames: &mut SentFrames,
    ) {
        let has_room = out.len() + CREDIT_LEN_MAX <= end;
        if has_room && std::mem::take(&mut self.credit_wanted) {
            self.reassembly.credit_to_grant(at, spare);
            Frame::Credit(self.reassembly.granted()).encode(out);
            frames.push(SentFrame::Credit);
        }
    }

    /// The credit that was sent is lost.
    pub(crate) fn on_credit_lost(&mut self) {
        self.credit_wanted = true;
    }

    fn update_credit(&mut self) {
        self.credit_wanted |= self.reassembly.has_credit_to_grant();
    }

    /// More datagrams and packets would exceed the bound of what waits for the driver.
    pub(crate) fn is_delivery_full(&self) -> bool {
        self.deliveries.arrived.len() >= ARRIVED_MAX
    }

    pub(crate) fn deliver_message(&mut self, whole: ReassembledMessage) {
        let ReassembledMessage { app, number, body } = whole;
        let message = Arrived::Message { app, number, body };
        self.deliveries.arrived.push_back(message);
    }

    pub(crate) fn deliver_datagram(&mut self, datagram: ReceivedDatagram<'_>) {
        let (start, end) = self.deliveries.store(datagram.data);
        self.deliveries.arrived.push_back(Arrived::Datagram {
            app: datagram.app,
            flow: datagram.flow,
            reply: datagram.reply,
            start,
            end,
        });
    }

    pub(crate) fn deliver_packet(&mut self, packet: ReceivedPacket<'_>) {
        let (start, end) = self.deliveries.store(packet.data);
        self.deliveries.arrived.push_back(Arrived::Packet {
            tenant: packet.tenant,
            ecn: packet.ecn,
            start,
            end,
        });
    }

    pub(crate) fn signal_stream(&mut self, app: AppId, stream: StreamId, signal: StreamSignal) {
        let signal = Arrived::Stream {
            app,
            stream,
            signal,
        };
        self.deliveries.arrived.push_back(signal);
    }

    /// What the driver gets next, and the arena that it refers to.
    pub(crate) fn poll_delivery(&mut self) -> Option<(Arrived, &[u8])> {
        let Deliveries { arrived, arena } = &mut self.deliveries;
        if arrived.is_empty() {
            arena.clear();
            if arena.capacity() > ARENA_KEPT {
                arena.shrink_to(ARENA_KEPT);
            }
            if arrived.capacity() > ARRIVED_KEPT {
                arrived.shrink_to(ARRIVED_KEPT);
            }
        }
        arrived
            .pop_front()
            .map(|arrived| (arrived, arena.as_slice()))
    }

    pub(crate) fn has_deliveries(&self) -> bool {
        !self.deliveries.arrived.is_empty()
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
        assert!(
            self.remote_paths.len() <= REMOTE_PATHS_MAX,
            "path numbers of the peer"
        );
        for remote in self.remote_paths.values() {
            remote.received.check_invariants();
            remote.aggregates.check_invariants();
            remote.displaced.check_invariants();
        }
        self.reassembly.check_invariants();
        self.fragments.check_invariants();
        self.packet_parts.check_invariants();
        self.resequencer.check_invariants();
        let parity = self
            .remote_paths
            .values()
            .map(|path| path.aggregates.memory());
        assert_eq!(self.parity_bytes, parity.sum::<usize>(), "bytes of parity");
        assert!(self.parity_bytes <= PARITY_BYTES_MAX, "parity is bounded");
        for arrived in &self.deliveries.arrived {
            if let Arrived::Datagram { start, end, .. } | Arrived::Packet { start, end, .. } =
                arrived
            {
                assert!(
                    start <= end && *end <= self.deliveries.arena.len(),
                    "deliveries lie in the arena"
                );
            }
        }
    }
}

impl Deliveries {
    /// Where in the arena `data` lies.
    fn store(&mut self, data: &[u8]) -> (usize, usize) {
        if self.arrived.is_empty() {
            self.arena.clear();
        }
        let start = self.arena.len();
        self.arena.extend_from_slice(data);
        (start, self.arena.len())
    }
}
