//! Packets of the peer: opened, checked for replay, and their frames carried out.

use std::{net::SocketAddr, time::Duration};

use keiro_units::Instant;

use super::{
    Arrived, RemotePath, Session,
    aggregation::receiver::{Copy, Novelty},
    clock, ip_overhead,
    reassembly::{FragmentPart, PartError},
    recovery::{ResolvedPacket, SentFrame},
    rtt,
    tenant_packets::AckSignals,
};
use crate::{
    config::DeliveryClass,
    endpoint::DatagramMeta,
    event::{Event, MessageOutcome, MoveReason, RefusalReason, ResetReason},
    id::{AppId, FlowId, PathId, StreamId, TenantId},
    snapshot::PathState,
    wire::{AckFrame, DataHeader, Feedback, Frame, FrameError, MessageStatus, Reader},
};

/// Datagrams and messages that wait for the driver at most; it drains them every turn.
pub(super) const ARRIVED_MAX: usize = 65_536;

/// The packet whose frames are being read.
#[derive(Clone, Copy)]
pub(super) struct Context {
    pub(super) now: Instant,
    pub(super) received_at: Instant,
    /// The two ECN bits of its IP header.
    pub(super) ecn: u8,
    remote: SocketAddr,
    /// Our path at whose socket it arrived.
    path: Option<PathId>,
    /// The path that it took, as the peer numbers it.
    pub(super) number: u8,
    pub(super) ip_bytes: u16,
}

impl Session {
    /// Takes a data packet that names an index of ours. Bad ones are counted.
    pub(crate) fn handle_data(
        &mut self,
        now: Instant,
        meta: DatagramMeta,
        header: DataHeader,
        packet: &mut [u8],
    ) {
        let ip_bytes = packet.len() as u64 + u64::from(ip_overhead(meta.remote));
        let Some(epoch) = self.keys.by_index(header.receiver) else {
            self.drops.unknown_index += 1;
            return;
        };
        // A restarted peer counts its packets from zero again.
        let same_peer = self.remote_incarnation == Some(epoch.incarnation);
        let known = self.remote_paths.get(&header.path).filter(|_| same_peer);
        let number = known.map_or(u64::from(header.packet_number), |remote| {
            remote.received.expand(header.packet_number)
        });
        if known.is_some_and(|remote| remote.received.is_replay(number)) {
            self.drops.replayed += 1;
            return;
        }
        let Some(clear) = epoch.keys.open(header.path, number, packet) else {
            self.drops.unauthentic += 1;
            return;
        };
        if !epoch.confirmed {
            epoch.confirmed = true;
            let (incarnation, credit) = (epoch.incarnation, epoch.credit);
            self.on_epoch_confirmed(now, incarnation, credit);
        }
        let remote_path = self.remote_paths.entry(header.path).or_default();
        let newest = remote_path.received.is_newest(number);
        remote_path.socket = Some(meta.socket);
        remote_path.received.on_packet(number, meta.received_at);
        remote_path.received.bytes += ip_bytes;
        remote_path.received.ecn_ce += u64::from(meta.ecn == 3);

        let context = Context {
            now,
            received_at: meta.received_at,
            ecn: meta.ecn & 3,
            remote: meta.remote,
            path: self.count_received(now, meta, newest, ip_bytes),
            number: header.path,
            ip_bytes: u16::try_from(ip_bytes).unwrap_or(u16::MAX),
        };
        match self.handle_frames(context, clear) {
            Ok(true) => {
                let path = context.path.and_then(|path| self.paths.get(&path));
                let spacing = path.map_or(Duration::ZERO, |path| path.pacer.ack_spacing());
                if let Some(RemotePath { received, .. }) = self.remote_paths.get_mut(&header.path) {
                    received.on_eliciting(now, number, self.timing.ack_delay_max, spacing);
                }
            }
            Ok(false) => {}
            Err(_) => self.drops.malformed += 1,
        }
    }

    /// Counts the packet on our path of that socket and follows the peer if it has moved.
    fn count_received(
        &mut self,
        now: Instant,
        meta: DatagramMeta,
        newest: bool,
        ip_bytes: u64,
    ) -> Option<PathId> {
        let path = self
            .paths
            .values_mut()
            .find(|path| path.socket == meta.socket)?;
        path.packets_received += 1;
        path.bytes_received += ip_bytes;
        path.ecn_ce_received += u64::from(meta.ecn == 3);
        // A late packet of an old address must not turn the path back.
        if newest {
            path.on_packet_from(now, meta.remote);
        }
        Some(path.id)
    }

    /// `true` if the packet asks for an acknowledgement.
    fn handle_frames(&mut self, context: Context, clear: &[u8]) -> Result<bool, FrameError> {
        let mut reader = Reader::new(clear);
        let mut eliciting = false;
        // The aggregate of a group that this is, until what it carries begins.
        let mut protected = None;
        // It is of a group: an aggregate, or parity.
        let mut grouped = false;
        // It is acknowledged, so what may be read twice is; a datagram comes once or not at all.
        let mut too_old = false;
        loop {
            let rest = reader.rest();
            let frame = Frame::decode(&mut reader)?;
            let told = matches!(
                frame,
                Some(Frame::Ack(_) | Frame::TrainReport(_) | Frame::Feedback(_))
            );
            if !told && let Some((path, number, place)) = protected.take() {
                let remote: &mut RemotePath = self.remote_paths.entry(path).or_default();
                let recovered = remote.aggregates.keep(number, place, rest);
                self.handle_recovered(context, &recovered);
            }
            let Some(frame) = frame else { break };
            if let Frame::Protected {
                path,
                number,
                place,
            } = frame
            {
                if std::mem::replace(&mut grouped, true) {
                    return Err(FrameError::Range);
                }
                let copy = Copy {
                    number,
                    index: 0,
                    count: 1,
                    ip_bytes: context.ip_bytes,
                    received_at: context.received_at,
                    same_path: path == context.number,
                };
                let remote = self.remote_paths.entry(path).or_default();
                match remote.aggregates.on_protected(context.now, copy, place) {
                    // Parity has given it back already.
                    Novelty::Known => return Ok(true),
                    Novelty::New => protected = Some((path, number, place)),
                    Novelty::TooOld => too_old = true,
                }
                eliciting = true;
                continue;
            }
            // Challenges are repeated by themselves; acknowledging them would say nothing.
            if let Frame::Aggregate {
                path,
                number,
                index,
                count,
            } = frame
            {
                let copy = Copy {
                    number,
                    index,
                    count,
                    ip_bytes: context.ip_bytes,
                    received_at: context.received_at,
                    same_path: path == context.number,
                };
                let remote = self.remote_paths.entry(path).or_default();
                match remote.aggregates.on_copy(context.now, copy) {
                    // What follows came with another copy.
                    Novelty::Known => return Ok(true),
                    Novelty::New => {}
                    Novelty::TooOld => too_old = true,
                }
                eliciting = true;
                continue;
            }
            // What parity gives back may cost much: a packet pays for one.
            if matches!(frame, Frame::Parity(_)) && std::mem::replace(&mut grouped, true) {
                return Err(FrameError::Range);
            }
            eliciting |= !matches!(
                frame,
                Frame::Padding
                    | Frame::Ack(_)
                    | Frame::PathChallenge(_)
                    | Frame::PathResponse(_)
                    | Frame::Train { .. }
                    | Frame::TrainReport(_)
                    | Frame::Feedback(_)
                    | Frame::UnknownTenant { .. }
                    | Frame::Close
            );
            if !(too_old && matches!(frame, Frame::Datagram { .. } | Frame::Fragment { .. })) {
                self.handle_frame(context, frame);
            }
        }
        Ok(eliciting)
    }

    pub(super) fn handle_frame(&mut self, context: Context, frame: Frame<'_>) {
        match frame {
            // Aggregates are seen to where frames are read.
            Frame::Padding
            | Frame::Ping
            | Frame::Unknown(_)
            | Frame::Aggregate { .. }
            | Frame::Protected { .. } => {}
            Frame::Packet {
                tenant,
                marked,
                data,
            } => self.deliver_packet(context, TenantId(tenant), marked, data),
            Frame::Parity(parity) => self.handle_parity(context, parity),
            Frame::Feedback(feedback) => self.on_feedback(context.now, feedback),
            Frame::UnknownTenant { tenant, packets } => {
                self.on_unknown_tenant(context.now, TenantId(tenant), packets);
            }
            Frame::Ack(ack) => self.handle_ack(context, ack),
            Frame::PathChallenge(token) => {
                let path = context.path.and_then(|path| self.paths.get_mut(&path));
                if let Some(path) = path {
                    path.on_challenged(token, context.remote);
                }
            }
            Frame::PathResponse(token) => self.handle_response(context, token),
            Frame::Datagram {
                app,
                flow,
                reply,
                data,
            } => {
                self.deliver_datagram(app, FlowId(flow), reply, data);
            }
            Frame::Fragment {
                id,
                total,
                offset,
                app,
                flow,
                reply,
                data,
            } => {
                let flow = FlowId(flow);
                let part = FragmentPart {
                    id,
                    total,
                    offset,
                    app,
                    flow,
                    reply,
                    data,
                };
                if let Some((app, flow, reply, whole)) = self.reassembly.on_fragment(part) {
                    self.deliver_datagram(app, flow, reply, &whole);
                }
            }
            Frame::Message {
                id,
                app,
                total,
                offset,
                data,
            } => {
                self.handle_part(context.received_at, id, (app, total), (offset, data));
            }
            Frame::MessageDone {
                id,
                status,
                whole_at,
            } => self.handle_done(context, id, status, whole_at),
            Frame::MessageDrop { id, total } => {
                if !self.reassembly.on_drop(id, total) {
                    self.drops.over_credit += 1;
                }
                self.credit_wanted |= self.reassembly.has_credit_to_grant();
            }
            Frame::Credit(granted) => {
                let apps = &self.apps;
                let path_of_app = |app| apps.get(&app).and_then(|entry| entry.active);
                self.queues.on_credit(granted, path_of_app);
            }
            Frame::Train { id, index, count } => {
                if let Some(remote) = self.remote_paths.get_mut(&context.number) {
                    let place = (id, index, count);
                    remote
                        .trains
                        .on_packet(context.now, context.received_at, place);
                }
            }
            Frame::TrainReport(report) => {
                if let Some(path) = self.paths.get_mut(&PathId(report.path)) {
                    path.trains.on_report(context.now, report);
                    path.update_pacing_rate();
                    let found = path.trains.found();
                    let change = found.and_then(|found| {
                        let rate = path.pacer.rate();
                        path.aggregator.on_trains(context.now, found, rate)
                    });
                    self.report_aggregation_change(PathId(report.path), change);
                }
            }
            Frame::Close => self.handle_close(context.now),
            Frame::StreamOpen { id, .. }
            | Frame::Stream { id, .. }
            | Frame::StreamCredit { id, .. }
            | Frame::StreamReturn { id, .. }
            | Frame::StreamReset { id, .. } => match self.stream_of_wire(id) {
                Some(stream) => self.handle_stream_frame(context.now, stream, frame),
                None => self.drops.malformed += 1,
            },
        }
    }

    fn handle_stream_frame(&mut self, now: Instant, stream: StreamId, frame: Frame<'_>) {
        if self.closed {
            // Late packets of a peer that has said that it forgets all streams.
            return;
        }
        match frame {
            Frame::StreamOpen { app, target, .. } => self.on_stream_open(now, stream, app, target),
            Frame::Stream {
                offset, fin, data, ..
            } => self.on_stream_data(now, stream, offset, data, fin),
            Frame::StreamCredit { granted, .. } => self.on_stream_credit(now, stream, granted),
            Frame::StreamReturn { returned, .. } => self.on_stream_return(now, stream, returned),
            Frame::StreamReset { reason, .. } => self.on_stream_reset(now, stream, reason),
            _ => {}
        }
    }

    fn on_feedback(&mut self, now: Instant, feedback: Feedback) {
        let id = PathId(feedback.path);
        let waiting = self.queues.coalescing_bytes(id);
        let Some(path) = self.paths.get_mut(&id) else {
            return;
        };
        let circumstances = (path.pacer.rate(), path.rtt.smoothed_or_initial());
        let change = path
            .aggregator
            .on_feedback(now, feedback, circumstances, waiting);
        self.report_aggregation_change(id, change);
    }

    fn handle_ack(&mut self, context: Context, ack: AckFrame<'_>) {
        let id = PathId(ack.path);
        let Some(path) = self.paths.get_mut(&id) else {
            return;
        };
        let Some(outcome) = path.sent.on_ack(ack.largest, ack.ranges.iter()) else {
            self.drops.malformed += 1;
            return;
        };
        let mut sampled = None;
        if let Some(largest) = outcome.largest {
            let sample = context
                .received_at
                .saturating_duration_since(largest.sent_at);
            let delay = Duration::from_micros(ack.delay_us);
            path.rtt
                .on_sample(sample, delay.min(self.timing.ack_delay_max * 4));
            path.delay
                .on_sample(context.now, largest.sent_at, ack.received_at_us);
            // Where the peer takes the path for dead the answer comes back over another one, which
            // may be far shorter.
            let same_way = context.path.is_none_or(|path| path == id);
            if same_way {
                let ours = (largest.sent_at, context.received_at);
                self.clock.on_ack(ours, (ack.received_at_us, ack.delay_us));
            }
            let round_trip = rtt::without_ack_delay(sample, delay).filter(|_| same_way);
            if let Some(round_trip) = round_trip {
                path.on_arrival_reported(context.now, largest, round_trip, ack.received_at_us);
                let told = path.on_round_trip(round_trip, largest.ip_bytes);
                sampled = Some((largest.owner.tenant, told));
            }
        }
        let news = AckSignals {
            sampled,
            marks: ack.ecn_ce.saturating_sub(path.ecn_ce_acked),
        };
        path.ecn_ce_acked = path.ecn_ce_acked.max(ack.ecn_ce);
        let mut mtu = None;
        for packet in &outcome.acked {
            mtu = path.mtu.on_acked(packet.number, packet.ip_bytes).or(mtu);
        }
        let lost = path.sent.detect_lost(context.now, &path.rtt);
        path.count(context.now);
        if let Some(mtu) = mtu {
            self.on_mtu_changed(id, mtu);
        }
        for packet in &outcome.acked {
            self.on_packet_acked(context.now, packet);
        }
        self.report_to_tenants(context.now, id, (&outcome.acked, &lost), Some(news));
        self.on_packets_lost(context.now, id, lost);
    }

    fn on_packet_acked(&mut self, now: Instant, packet: &ResolvedPacket) {
        for frame in packet.frames.as_slice() {
            match *frame {
                SentFrame::Message {
                    message,
                    start,
                    end,
                } => self.queues.on_acked(message, start, end),
                SentFrame::Stream {
                    stream,
                    start,
                    end,
                    fin,
                } => self.on_stream_acked(now, stream, (start, end, fin)),
                SentFrame::StreamOpen(stream) => self.on_stream_open_acked(now, stream),
                SentFrame::Ack { path, largest } => {
                    if let Some(remote) = self.remote_paths.get_mut(&path) {
                        remote.received.on_ack_of_ack(largest);
                    }
                }
                SentFrame::MessageDone { .. }
                | SentFrame::MessageDrop { .. }
                | SentFrame::Credit
                | SentFrame::StreamCredit(_)
                | SentFrame::StreamReturn(_)
                | SentFrame::StreamReset { .. }
                | SentFrame::Datagram { .. } => {}
            }
        }
    }

    fn handle_response(&mut self, context: Context, token: u64) {
        let mut validated = None;
        for path in self.paths.values_mut() {
            if let Some(found) = path.on_response(context.now, token, context.received_at) {
                validated = Some((path.id, found));
                break;
            }
        }
        let Some((path, found)) = validated else {
            return;
        };
        let peer = self.id;
        if let Some(from) = found.moved_from {
            self.events.push_back(Event::PathMoved {
                peer,
                path,
                from,
                to: found.remote,
            });
        }
        if found.came_up || found.moved_from.is_some() {
            let mtu = self.paths.get(&path).map_or(0, |path| path.mtu.current());
            self.tenants.restart(context.now, path, mtu, false);
        }
        if found.came_up {
            let (remote, rtt) = (found.remote, found.rtt);
            self.begin_startup_wait(context.now);
            self.events.push_back(Event::PathUp {
                peer,
                path,
                remote,
                rtt,
            });
            self.on_path_state_changed(context.now, MoveReason::PathUp);
        }
    }

    fn handle_part(
        &mut self,
        at: Instant,
        id: u64,
        (app, total): (AppId, usize),
        (offset, data): (usize, &[u8]),
    ) {
        match self.reassembly.on_part(at, id, app, total, offset, data) {
            Ok(None) => {}
            Ok(Some(whole)) => self.on_whole(whole.number, whole.app, whole.body),
            Err(PartError::OverCredit) => self.drops.over_credit += 1,
            Err(PartError::Abandoned) => {
                self.drops.malformed += 1;
                let status = MessageStatus::Refused(RefusalReason::Other);
                self.control.push_back(SentFrame::MessageDone {
                    id,
                    status,
                    whole_at: clock::stamp(at),
                });
                self.credit_wanted |= self.reassembly.has_credit_to_grant();
            }
        }
    }

    fn on_whole(&mut self, number: u64, app: AppId, body: Vec<u8>) {
        let known = self
            .apps
            .get_mut(&app)
            .filter(|entry| entry.takes(DeliveryClass::Message));
        match known {
            Some(entry) => {
                entry.received += 1;
                entry.received_bytes += body.len() as u64;
                self.arrived
                    .push_back(Arrived::Message { app, number, body });
            }
            None => self.finish_message(
                crate::id::MessageId(number),
                Some(RefusalReason::UnknownApplication),
            ),
        }
    }

    fn deliver_datagram(&mut self, app: AppId, flow: FlowId, reply: bool, data: &[u8]) {
        let known = self
            .apps
            .get_mut(&app)
            .filter(|entry| entry.takes(DeliveryClass::Datagram));
        let Some(entry) = known else { return };
        if self.arrived.len() >= ARRIVED_MAX {
            entry.dropped += 1;
            return;
        }
        entry.received += 1;
        entry.received_bytes += data.len() as u64;
        if self.arrived.is_empty() {
            self.arena.clear();
        }
        let start = self.arena.len();
        self.arena.extend_from_slice(data);
        let end = self.arena.len();
        self.arrived.push_back(Arrived::Datagram {
            app,
            flow,
            reply,
            start,
            end,
        });
    }

    fn handle_done(
        &mut self,
        context: Context,
        wire_id: u64,
        status: MessageStatus,
        whole_at: u32,
    ) {
        let Some((id, message)) = self.queues.finish(wire_id) else {
            return;
        };
        let outcome = match status {
            MessageStatus::Delivered => MessageOutcome::Delivered,
            MessageStatus::Refused(reason) => MessageOutcome::Refused(reason),
        };
        let now = context.now;
        let path = context.path.and_then(|path| self.paths.get(&path));
        // Until the first acknowledgement the outcome's own way is all that is known.
        let half_way = || path?.rtt.min().map(|round_trip| round_trip / 2);
        let ago = self.clock.since(now, whole_at).or_else(half_way);
        let after = now.saturating_duration_since(message.made);
        // Not before it was made, whatever the clocks say.
        let arrived_after = ago.map(|ago| after.saturating_sub(ago));
        self.push_done(now, id, &message, (outcome, arrived_after));
    }

    /// The peer stops: its keys are of no use any more. What waits stays until it comes back.
    fn handle_close(&mut self, now: Instant) {
        for path in self.paths.values_mut() {
            if path.state == PathState::Up {
                path.state = PathState::Down;
            }
            path.challenge_at = None;
        }
        self.closed = true;
        self.unreachable_since = self.unreachable_since.or(Some(now));
        // Whether it stops or removes us, it forgets them.
        self.reset_streams(ResetReason::Gateway);
        self.handshake.next_at = Some(now + self.timing.handshake_retry_max);
        self.choose_paths(MoveReason::PathDown);
        if std::mem::replace(&mut self.was_up, false) {
            self.events.push_back(Event::PeerDown {
                peer: self.id,
                closed_by_peer: true,
            });
        }
    }
}
