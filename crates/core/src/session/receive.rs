//! Receiving: packets are opened and checked for replay, and their frames carried to the components.

use std::{net::SocketAddr, time::Duration};

use keiro_units::Instant;

use super::{
    Session,
    aggregation::receiver::{Copy, Novelty},
    clock::{self, AckExchange},
    ip_overhead,
    path::{Path, ReceivedAck},
    path_manager::PathValidated,
    reassembly::{FragmentPart, MessagePart, PartError, Whole},
    received::AckPolicy,
    receiver::ReceivedDatagram,
    recovery::{ResolvedPacket, SentFrame},
    train::TrainPacket,
};
use crate::{
    config::DeliveryClass,
    endpoint::DatagramMeta,
    event::{Event, MessageOutcome, MoveReason, RefusalReason, ResetReason},
    id::{FlowId, PathId, StreamId, TenantId},
    trace::TraceKind,
    wire::{AckFrame, DataHeader, Feedback, Frame, FrameError, MessageStatus, Reader},
};

/// The packet whose frames are being read.
#[derive(Clone, Copy)]
pub(super) struct PacketContext {
    pub(super) now: Instant,
    pub(super) received_at: Instant,
    /// The two ECN bits of its IP header.
    pub(super) ecn: u8,
    remote: SocketAddr,
    /// Our path at whose socket it arrived.
    path: Option<PathId>,
    /// The path that it came over, as the peer numbers it.
    pub(super) number: u8,
    pub(super) ip_bytes: u16,
}

impl Session {
    /// Takes a data packet that names an index of ours. Bad ones are counted by reason.
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
        let is_same_peer = self.remote_incarnation == Some(epoch.incarnation);
        let number = match is_same_peer {
            true => self
                .receiver
                .packet_number(header.path, header.packet_number),
            false => Some(u64::from(header.packet_number)),
        };
        let Some(number) = number else {
            self.drops.replayed += 1;
            return;
        };
        let Some(clear) = epoch.keys.open(header.path, number, packet) else {
            self.drops.unauthentic += 1;
            return;
        };
        if !epoch.confirmed {
            epoch.confirmed = true;
            let (incarnation, credit) = (epoch.incarnation, epoch.credit);
            self.on_epoch_confirmed(now, incarnation, credit);
        }
        let is_newest = self.receiver.on_packet(header.path, number, meta);
        let path = self.paths.of_socket_mut(meta.socket);
        let path = path.map(|path| {
            path.on_received(now, meta, is_newest, ip_bytes);
            path.id()
        });
        if let Some(path) = path {
            self.tracer.record(now, path, || TraceKind::PacketReceived {
                number,
                ip_bytes,
                is_ce: meta.ecn & 3 == 3,
            });
        }
        let context = PacketContext {
            now,
            received_at: meta.received_at,
            ecn: meta.ecn & 3,
            remote: meta.remote,
            path,
            number: header.path,
            ip_bytes: u16::try_from(ip_bytes).unwrap_or(u16::MAX),
        };
        match self.handle_frames(context, clear) {
            Ok(true) => {
                let path = context.path.and_then(|path| self.paths.get(path));
                let policy = AckPolicy {
                    delay_max: self.timing.ack_delay_max,
                    spacing: path.map_or(Duration::ZERO, |path| path.pacer().ack_spacing()),
                };
                self.receiver
                    .on_ack_eliciting(now, header.path, number, policy);
            }
            Ok(false) => {}
            Err(_) => self.drops.malformed += 1,
        }
    }

    /// `true` if the packet asks for an acknowledgement.
    fn handle_frames(&mut self, context: PacketContext, clear: &[u8]) -> Result<bool, FrameError> {
        let mut reader = Reader::new(clear);
        let mut eliciting = false;
        // The aggregate of a group that this packet is, until its content begins.
        let mut protected = None;
        // The packet belongs to a group: it is an aggregate, or parity.
        let mut grouped = false;
        // Too old to know whether it is a copy. It will be acknowledged, so frames that may be read twice
        // are read; a datagram must not be delivered twice.
        let mut too_old = false;
        loop {
            let rest = reader.rest();
            let frame = Frame::decode(&mut reader)?;
            let is_outside_content = matches!(
                frame,
                Some(Frame::Ack(_) | Frame::TrainReport(_) | Frame::Feedback(_))
            );
            if !is_outside_content && let Some((path, number, place)) = protected.take() {
                let aggregates = self.receiver.aggregates_mut(path);
                let recovered = aggregates.keep(number, place, rest);
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
                let aggregates = self.receiver.aggregates_mut(path);
                match aggregates.on_protected(context.now, copy, place) {
                    // Parity has recovered it already.
                    Novelty::Known => return Ok(true),
                    Novelty::New => protected = Some((path, number, place)),
                    Novelty::TooOld => too_old = true,
                }
                eliciting = true;
                continue;
            }
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
                let aggregates = self.receiver.aggregates_mut(path);
                match aggregates.on_copy(context.now, copy) {
                    // Its content was read from another copy.
                    Novelty::Known => return Ok(true),
                    Novelty::New => {}
                    Novelty::TooOld => too_old = true,
                }
                eliciting = true;
                continue;
            }
            // Recovering a group may be expensive: one parity frame per packet.
            if matches!(frame, Frame::Parity(_)) && std::mem::replace(&mut grouped, true) {
                return Err(FrameError::Range);
            }
            eliciting |= frame.ack_eliciting();
            if !(too_old && matches!(frame, Frame::Datagram { .. } | Frame::Fragment { .. })) {
                self.handle_frame(context, frame);
            }
        }
        Ok(eliciting)
    }

    pub(super) fn handle_frame(&mut self, context: PacketContext, frame: Frame<'_>) {
        match frame {
            // `handle_frames` takes care of aggregates.
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
                let path = context.path.and_then(|path| self.paths.get_mut(path));
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
                let flow = FlowId(flow);
                self.deliver_datagram(ReceivedDatagram {
                    app,
                    flow,
                    reply,
                    data,
                });
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
                if let Some(whole) = self.receiver.on_fragment(part) {
                    self.deliver_datagram(ReceivedDatagram {
                        app: whole.app,
                        flow: whole.flow,
                        reply: whole.reply,
                        data: &whole.body,
                    });
                }
            }
            Frame::Message {
                id,
                app,
                total,
                offset,
                data,
            } => {
                let part = MessagePart {
                    id,
                    app,
                    total,
                    offset,
                    data,
                };
                self.handle_part(context.received_at, part);
            }
            Frame::MessageDone {
                id,
                status,
                whole_at,
            } => self.handle_done(context, id, status, whole_at),
            Frame::MessageDrop { id, total } => {
                if !self.receiver.on_message_drop(id, total) {
                    self.drops.over_credit += 1;
                }
            }
            Frame::Credit(granted) => {
                let apps = &self.apps;
                let path_of_app = |app| apps.get(&app).and_then(|entry| entry.active);
                self.scheduler.queues_mut().on_credit(granted, path_of_app);
            }
            Frame::Train { id, index, count } => {
                if let Some(trains) = self.receiver.trains_mut(context.number) {
                    let packet = TrainPacket {
                        train: id,
                        index,
                        count,
                        received_at: context.received_at,
                    };
                    trains.on_packet(context.now, packet);
                }
            }
            Frame::TrainReport(report) => {
                let id = PathId(report.path);
                let path = self.paths.get_mut(id);
                let change = path.and_then(|path| path.on_train_report(context.now, report));
                self.report_aggregation_change(id, change);
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
            // A late packet of a peer that has closed the session and forgotten all streams.
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
        let waiting = self.scheduler.queues().coalescing_bytes(id);
        let path = self.paths.get_mut(id);
        let change = path.and_then(|path| path.on_feedback(now, feedback, waiting));
        self.report_aggregation_change(id, change);
    }

    fn handle_ack(&mut self, context: PacketContext, frame: AckFrame<'_>) {
        let id = PathId(frame.path);
        let now = context.now;
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        let ack = ReceivedAck {
            now,
            received_at: context.received_at,
            frame,
            is_same_path: context.path.is_none_or(|path| path == id),
            ack_delay_max: self.timing.ack_delay_max,
        };
        let Some(result) = path.on_ack(ack) else {
            self.drops.malformed += 1;
            return;
        };
        for packet in &result.acked {
            self.tracer.record(now, id, || TraceKind::PacketAcked {
                number: packet.number,
                was_lost: packet.was_lost,
            });
        }
        self.tracer
            .record(now, id, || TraceKind::Recovery(path.recovery_metrics()));
        if let Some(sent_at) = result.clock_sample {
            self.receiver.clock_mut().on_ack(AckExchange {
                sent_at,
                received_us: frame.received_at_us,
                held_us: frame.delay_us,
                acked_at: context.received_at,
            });
        }
        if let Some(mtu) = result.mtu {
            self.on_mtu_changed(id, mtu);
        }
        for packet in &result.acked {
            self.on_packet_acked(now, packet);
        }
        let signals = Some(result.signals);
        self.report_to_tenants(now, id, (&result.acked, &result.lost), signals);
        self.on_packets_lost(now, id, result.lost);
    }

    fn on_packet_acked(&mut self, now: Instant, packet: &ResolvedPacket) {
        for frame in packet.frames.as_slice() {
            match *frame {
                SentFrame::Message {
                    message,
                    start,
                    end,
                } => self.scheduler.queues_mut().on_acked(message, start, end),
                SentFrame::Stream {
                    stream,
                    start,
                    end,
                    fin,
                } => self.on_stream_acked(now, stream, (start, end, fin)),
                SentFrame::StreamOpen(stream) => self.on_stream_open_acked(now, stream),
                SentFrame::Ack { path, largest } => {
                    self.receiver.on_ack_of_ack(path, largest);
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

    fn handle_response(&mut self, context: PacketContext, token: u64) {
        let now = context.now;
        let validated = self.paths.on_response(now, token, context.received_at);
        let Some(PathValidated { path, validated }) = validated else {
            return;
        };
        let peer = self.id;
        if let Some(from) = validated.moved_from {
            self.events.push_back(Event::PathMoved {
                peer,
                path,
                from,
                to: validated.remote,
            });
        }
        if validated.came_up || validated.moved_from.is_some() {
            let mtu = self.paths.get(path).map_or(0, Path::mtu);
            self.scheduler.tenants_mut().restart(now, path, mtu, false);
        }
        if validated.came_up {
            self.begin_startup_wait(now);
            self.events.push_back(Event::PathUp {
                peer,
                path,
                remote: validated.remote,
                rtt: validated.rtt,
            });
            self.on_path_state_changed(now, MoveReason::PathUp);
        }
    }

    fn handle_part(&mut self, at: Instant, part: MessagePart<'_>) {
        let id = part.id;
        match self.receiver.on_message_part(at, part) {
            Ok(None) => {}
            Ok(Some(whole)) => self.on_whole(whole),
            Err(PartError::OverCredit) => self.drops.over_credit += 1,
            Err(PartError::Abandoned) => {
                self.drops.malformed += 1;
                let status = MessageStatus::Refused(RefusalReason::Other);
                self.control.push_back(SentFrame::MessageDone {
                    id,
                    status,
                    whole_at: clock::stamp(at),
                });
            }
        }
    }

    fn on_whole(&mut self, whole: Whole) {
        let known = self
            .apps
            .get_mut(&whole.app)
            .filter(|entry| entry.takes(DeliveryClass::Message));
        match known {
            Some(entry) => {
                entry.stats.received_messages += 1;
                entry.stats.received_bytes += whole.body.len() as u64;
                self.receiver.deliver_message(whole);
            }
            None => self.finish_message(
                crate::id::MessageId(whole.number),
                Some(RefusalReason::UnknownApplication),
            ),
        }
    }

    fn deliver_datagram(&mut self, datagram: ReceivedDatagram<'_>) {
        let known = self
            .apps
            .get_mut(&datagram.app)
            .filter(|entry| entry.takes(DeliveryClass::Datagram));
        let Some(entry) = known else { return };
        if self.receiver.is_delivery_full() {
            entry.stats.refused_messages += 1;
            return;
        }
        entry.stats.received_messages += 1;
        entry.stats.received_bytes += datagram.data.len() as u64;
        self.receiver.deliver_datagram(datagram);
    }

    fn handle_done(
        &mut self,
        context: PacketContext,
        wire_id: u64,
        status: MessageStatus,
        whole_at: u32,
    ) {
        let Some((id, message)) = self.scheduler.queues_mut().finish(wire_id) else {
            return;
        };
        let outcome = match status {
            MessageStatus::Delivered => MessageOutcome::Delivered,
            MessageStatus::Refused(reason) => MessageOutcome::Refused(reason),
        };
        let now = context.now;
        let path = context.path.and_then(|path| self.paths.get(path));
        // Before the first acknowledgement the peer's clock is not known: assume half a round trip.
        let half_rtt = || path?.rtt().min().map(|rtt| rtt / 2);
        let ago = self.receiver.clock().since(now, whole_at).or_else(half_rtt);
        let after = now.saturating_duration_since(message.made);
        // Never before it was made, whatever the clocks say.
        let arrived_after = ago.map(|ago| after.saturating_sub(ago));
        self.push_done(now, id, &message, (outcome, arrived_after));
    }

    /// The peer closes the session. What waits to be sent stays until it comes back.
    fn handle_close(&mut self, now: Instant) {
        self.paths.iter_mut().for_each(Path::on_peer_closed);
        self.closed = true;
        self.unreachable_since = self.unreachable_since.or(Some(now));
        // The peer has forgotten its streams, whether it stops or has removed us.
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
