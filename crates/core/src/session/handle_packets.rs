//! Receiving: packets are opened and checked for replay, and their frames carried to the components.

mod ack;
mod content;

use std::{net::SocketAddr, time::Duration};

use keiro_units::{Bandwidth, Instant};

use super::{
    MessageEnd, Session,
    app_mismatch::AppMismatch,
    clock, cost,
    fragments::DatagramFragment,
    mtu::MTU_BASE,
    packet_parts::{PacketPart, WrongPart},
    path::Path,
    path_manager::{Arrival, ArrivedResponse, PathValidated},
    reassembly::{MessagePart, PartError, ReassembledMessage},
    received_packets::AckPolicy,
    receiver::{ReceivedDatagram, ReceivedPacket},
    resequencer::{self, OrderedPacket},
    sent_frames::MessageControl,
    stream::ArrivedBytes,
    tenant::PathIdMtu,
    train::TrainPacket,
};
use crate::{
    config::DeliveryClass,
    datagram::{DatagramMeta, ip_overhead},
    event::{Event, MessageOutcome, MoveReason, RefusalReason, ResetReason},
    id::{FlowId, PathId, SocketId, StreamId, TenantId},
    tenant::PrefixMismatch,
    trace::TraceKind,
    wire::{DataHeader, Feedback, Frame, MessageStatus},
};

/// The packet whose frames are being read.
#[derive(Clone, Copy)]
struct PacketContext {
    now: Instant,
    received_at: Instant,
    /// The two ECN bits of its IP header.
    ecn: u8,
    socket: SocketId,
    remote: SocketAddr,
    /// Our path that it came over; `None`: there is none for the peer's.
    path: Option<PathId>,
    /// The path that it came over, as the peer numbers it.
    number: u8,
    ip_bytes: u16,
}

/// An authentic packet.
#[derive(Clone, Copy)]
struct OpenedPacket<'a> {
    number: u64,
    clear: &'a [u8],
    /// A packet under its keys was accepted before.
    is_confirmed: bool,
}

impl Session {
    /// The cost of what was received since the last call.
    pub(crate) fn take_cost(&mut self) -> u64 {
        std::mem::take(&mut self.received_cost)
    }

    /// Takes a data packet that names an index of ours; whether it is authentic. Bad ones are counted by reason.
    pub(crate) fn handle_data(
        &mut self,
        now: Instant,
        meta: DatagramMeta,
        header: DataHeader,
        packet: &mut [u8],
    ) -> bool {
        let ip_bytes = packet.len() as u64 + u64::from(ip_overhead(meta.remote));
        let Some(opened) = self.open_packet(now, header, packet) else {
            return false;
        };
        // Only what is authentic is at the peer's cost: others may know its index.
        self.received_cost += match self.receiver.remote_path_count() > cost::FEW_PATHS {
            true => cost::PACKET_OF_MANY_PATHS,
            false => cost::PACKET,
        };
        if !opened.is_confirmed && !self.confirm_epoch(now, meta, header) {
            self.drops.duplicate_key += 1;
            return true;
        }
        if !self.receiver.takes_path(header.path) {
            self.drops.malformed += 1;
            return true;
        }
        let number = opened.number;
        let is_newest = self.receiver.on_packet(header.path, number, meta);
        let path = self.path_of_packet(meta, header.path);
        if let Some(path) = path.and_then(|id| self.paths.get_mut(id)) {
            path.on_received(now, meta, is_newest, ip_bytes);
        }
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
            socket: meta.socket,
            remote: meta.remote,
            path,
            number: header.path,
            ip_bytes: u16::try_from(ip_bytes).unwrap_or(u16::MAX),
        };
        self.handle_clear_text(context, opened);
        self.report_app_mismatch(now);
        true
    }

    /// Opens a packet with the keys that its header names; `None`: it is refused, and counted by reason.
    fn open_packet<'a>(
        &mut self,
        now: Instant,
        header: DataHeader,
        packet: &'a mut [u8],
    ) -> Option<OpenedPacket<'a>> {
        let timing = &self.settings.timing;
        let epoch = self.keys.by_index(header.receiver);
        let Some(epoch) = epoch.filter(|epoch| epoch.is_usable(now, timing)) else {
            self.drops.unknown_index += 1;
            return None;
        };
        // A restarted peer counts its packets from zero again.
        let number = match self
            .incarnations
            .is_served(epoch.incarnation, epoch.ours.incarnation)
        {
            true => self
                .receiver
                .expand_and_check_replay(header.path, header.packet_number),
            false => Some(u64::from(header.packet_number)),
        };
        let Some(number) = number else {
            self.drops.replayed += 1;
            return None;
        };
        let Some(clear) = epoch.keys.open(header.path, number, packet) else {
            epoch.used.on_forged();
            self.drops.unauthentic += 1;
            return None;
        };
        Some(OpenedPacket {
            number,
            clear,
            is_confirmed: epoch.confirmed,
        })
    }

    /// Hands the frames of a packet to the components, and has it acknowledged if one of them asks for that.
    fn handle_clear_text(&mut self, context: PacketContext, opened: OpenedPacket<'_>) {
        match self.handle_frames(context, opened.clear) {
            Ok(true) => {
                let path = context.path.and_then(|path| self.paths.get(path));
                let policy = AckPolicy {
                    delay_max: self.settings.timing.ack_delay_max,
                    spacing: path.map_or(Duration::ZERO, |path| path.pacer().ack_spacing()),
                };
                self.receiver
                    .on_ack_eliciting(context.now, context.number, opened.number, policy);
            }
            Ok(false) => {}
            Err(_) => self.drops.malformed += 1,
        }
    }

    /// Our path that a packet of the peer's path `number` came over. Where there is none for that path, the driver
    /// is asked for one.
    fn path_of_packet(&mut self, meta: DatagramMeta, number: u8) -> Option<PathId> {
        match self.paths.on_packet(meta.socket, meta.remote, number) {
            Arrival::Path(id) => Some(id),
            Arrival::NoPath => None,
            Arrival::Beyond(paths) => {
                if self.wanted_paths.insert(meta.socket, paths + 1) != Some(paths + 1) {
                    self.events.push_back(Event::PathsWanted {
                        peer: self.id,
                        socket: meta.socket,
                        paths: paths + 1,
                    });
                }
                None
            }
        }
    }

    fn report_app_mismatch(&mut self, now: Instant) {
        let peer = self.id;
        let event = self.apps.take_mismatch(now).map(|mismatch| {
            let AppMismatch {
                app,
                class,
                seen_by,
            } = mismatch;
            Event::AppMismatch {
                peer,
                app,
                class,
                seen_by,
            }
        });
        self.events.extend(event);
    }

    /// Carries a frame to the component that it is for.
    fn handle_frame(&mut self, context: PacketContext, frame: Frame<'_>) {
        self.received_cost += cost::of_frame(&frame);
        if frame.is_data()
            && let Some(path) = context.path.and_then(|path| self.paths.get_mut(path))
        {
            path.on_data(context.now, self.settings.probe_share);
        }
        match frame {
            // `handle_frames` takes care of aggregates.
            Frame::Padding
            | Frame::Ping
            | Frame::Unknown(_)
            | Frame::Aggregate { .. }
            | Frame::Protected { .. } => {}
            Frame::Ack(ack) => self.handle_ack(context, ack),
            Frame::PathChallenge(token) => {
                let path = context.path.and_then(|path| self.paths.get_mut(path));
                if let Some(path) = path {
                    path.on_challenged(context.now, token, context.remote);
                }
            }
            Frame::PathResponse(token) => self.handle_response(context, token),
            Frame::Parity(parity) => self.handle_parity(context, parity),
            Frame::Feedback(feedback) => self.on_feedback(context.now, feedback),
            Frame::StrangerDrops { path, packets } => {
                if let Some(path) = self.paths.get_mut(PathId(path)) {
                    path.on_stranger_drops(context.now, packets);
                }
            }
            Frame::ProbeLimit(limit) => {
                let share = self.settings.probe_share;
                let path = context.path.and_then(|path| self.paths.get_mut(path));
                if let Some(path) = path {
                    path.on_peer_limit(context.now, limit, share);
                }
            }
            Frame::PathTerms(terms) => {
                let share = self.settings.probe_share;
                let path = context.path.and_then(|path| self.paths.get_mut(path));
                if let Some(path) = path {
                    path.on_peer_terms(context.now, terms, share);
                }
            }
            Frame::Train { .. } | Frame::TrainReport(_) => self.handle_train_frame(context, frame),
            Frame::Packet { .. }
            | Frame::OrderedPacket { .. }
            | Frame::PacketPart { .. }
            | Frame::UnknownTenant { .. }
            | Frame::TenantLimited(_)
            | Frame::TenantUnit(_)
            | Frame::PrefixMismatch(_) => self.handle_tenant_frame(context, frame),
            Frame::Datagram { .. } | Frame::Fragment { .. } => {
                self.handle_datagram_frame(context, frame);
            }
            Frame::Message { .. }
            | Frame::MessageDone { .. }
            | Frame::MessageDrop { .. }
            | Frame::Credit(_) => self.handle_message_frame(context, frame),
            Frame::Close => self.handle_close(context.now),
            Frame::Refusal(cause) => self.handle_refusal(context.now, cause),
            Frame::StreamOpen { id, .. }
            | Frame::Stream { id, .. }
            | Frame::StreamCredit { id, .. }
            | Frame::StreamReturn { id, .. }
            | Frame::StreamReset { id, .. } => match self.streams.of_wire(id) {
                Some(stream) => self.handle_stream_frame(context, stream, frame),
                None => self.drops.malformed += 1,
            },
        }
    }

    fn handle_train_frame(&mut self, context: PacketContext, frame: Frame<'_>) {
        match frame {
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
            _ => {}
        }
    }

    fn handle_tenant_frame(&mut self, context: PacketContext, frame: Frame<'_>) {
        match frame {
            Frame::Packet {
                tenant,
                marked,
                data,
            } => {
                let tenant = TenantId(tenant);
                let ecn = if marked { 3 } else { context.ecn };
                self.deliver_packet(context.now, ReceivedPacket { tenant, ecn, data });
            }
            Frame::OrderedPacket {
                tenant,
                order,
                marked,
                data,
            } => {
                let packet = OrderedPacket {
                    tenant: TenantId(tenant),
                    order,
                    path: context.number,
                    ecn: if marked { 3 } else { context.ecn },
                    data,
                };
                self.handle_ordered_packet(context.now, packet);
            }
            Frame::PacketPart {
                tenant,
                number,
                count,
                index,
                marked,
                data,
            } => {
                let part = PacketPart {
                    tenant: TenantId(tenant),
                    number,
                    count,
                    index,
                    ecn: if marked { 3 } else { context.ecn },
                    data,
                };
                self.handle_packet_part(context.now, part);
            }
            Frame::UnknownTenant { tenant, packets } => {
                self.on_unknown_tenant(context.now, TenantId(tenant), packets);
            }
            Frame::PrefixMismatch(mismatch) => self.on_prefix_mismatch(context.now, mismatch),
            Frame::TenantLimited(tenant) => {
                self.on_tenant_limited(context.now, TenantId(tenant));
            }
            Frame::TenantUnit(unit) => {
                self.on_unit_report(context.now, Bandwidth::from_bits_per_second(unit));
            }
            _ => {}
        }
    }

    fn handle_datagram_frame(&mut self, context: PacketContext, frame: Frame<'_>) {
        // What the kernel held while this process was stopped is no younger for it.
        let age = context.now.saturating_duration_since(context.received_at);
        match frame {
            Frame::Datagram {
                app,
                flow,
                reply,
                data,
            } => {
                let flow = FlowId(flow);
                let datagram = ReceivedDatagram {
                    app,
                    flow,
                    reply,
                    data,
                };
                self.deliver_datagram(datagram, age);
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
                if !self.receiver.has_fragments_of(id) {
                    self.received_cost += cost::of_buffer(total);
                }
                let part = DatagramFragment {
                    id,
                    total,
                    offset,
                    app,
                    flow,
                    reply,
                    data,
                };
                if let Some(whole) = self.receiver.on_fragment(part) {
                    let datagram = ReceivedDatagram {
                        app: whole.app,
                        flow: whole.flow,
                        reply: whole.reply,
                        data: &whole.body,
                    };
                    self.deliver_datagram(datagram, age);
                }
            }
            _ => {}
        }
    }

    fn handle_message_frame(&mut self, context: PacketContext, frame: Frame<'_>) {
        match frame {
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
                let is_granted = self.receiver.on_message_drop(id, total);
                self.drops.over_credit += u64::from(!is_granted);
            }
            Frame::Credit(granted) => {
                let apps = &self.apps;
                self.scheduler
                    .on_message_credit(granted, |app| apps.active_path(app));
            }
            _ => {}
        }
    }

    fn handle_stream_frame(&mut self, context: PacketContext, stream: StreamId, frame: Frame<'_>) {
        if self.reachability.is_closed {
            // A late packet of a peer that has closed the session and forgotten all streams.
            return;
        }
        let now = context.now;
        let (streams, mut cx) = self.streams();
        match frame {
            Frame::StreamOpen { app, target, .. } => {
                streams.on_open(now, &mut cx, stream, app, target);
            }
            Frame::Stream {
                offset, fin, data, ..
            } => {
                let arrived = ArrivedBytes {
                    offset,
                    data,
                    fin,
                    path: context.path,
                };
                streams.on_data(now, &mut cx, stream, arrived);
            }
            Frame::StreamCredit { granted, .. } => {
                streams.on_credit(now, &mut cx, stream, granted);
            }
            Frame::StreamReturn { returned, .. } => {
                streams.on_return(&mut cx, stream, returned);
            }
            Frame::StreamReset { reason, .. } => streams.on_reset(now, &mut cx, stream, reason),
            _ => {}
        }
        let begun = self.streams.take_begun_by_peer();
        self.received_cost += begun * cost::NEW_STREAM;
        self.on_stream_events();
    }

    fn on_feedback(&mut self, now: Instant, feedback: Feedback) {
        let id = PathId(feedback.path);
        let waiting = self.scheduler.queues().coalescing_bytes(id);
        let path = self.paths.get_mut(id);
        let change = path.and_then(|path| path.on_feedback(now, feedback, waiting));
        self.report_aggregation_change(id, change);
    }

    fn handle_response(&mut self, context: PacketContext, token: u64) {
        let now = context.now;
        let validated = self.paths.on_response(
            now,
            token,
            ArrivedResponse {
                received_at: context.received_at,
                socket: context.socket,
                number: context.number,
            },
        );
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
            self.scheduler
                .restart_controllers(now, PathIdMtu { path, mtu }, false);
            if validated.came_up && mtu < MTU_BASE {
                self.on_mtu_changed(path, mtu);
            }
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
                self.refuse_message(at, id, RefusalReason::Other);
            }
            Err(PartError::Full) => self.refuse_message(at, id, RefusalReason::ReceiverFull),
        }
    }

    /// A message of the peer that is not whole has ended, and never will be.
    fn refuse_message(&mut self, at: Instant, id: u64, reason: RefusalReason) {
        self.control.push(MessageControl::Done {
            id,
            status: MessageStatus::Refused(reason),
            whole_at: clock::stamp(at),
        });
    }

    fn on_whole(&mut self, whole: ReassembledMessage) {
        match self.apps.arriving(whole.app, DeliveryClass::Message) {
            Some(app) => {
                app.on_received(whole.body.len());
                self.receiver.deliver_message(whole);
            }
            None => self.finish_message(
                crate::id::MessageId(whole.number),
                Some(RefusalReason::UnknownApplication),
            ),
        }
    }

    fn deliver_datagram(&mut self, datagram: ReceivedDatagram<'_>, age: Duration) {
        let app = self.apps.arriving(datagram.app, DeliveryClass::Datagram);
        let Some(app) = app else { return };
        let is_too_old = app.lifetime().is_some_and(|lifetime| age > lifetime);
        if is_too_old || self.receiver.is_delivery_full() {
            app.on_dropped();
            return;
        }
        app.on_received(datagram.data.len());
        self.receiver.deliver_datagram(datagram);
    }

    /// An IP packet of a tenant arrived.
    fn deliver_packet(&mut self, now: Instant, packet: ReceivedPacket<'_>) {
        let tenant = packet.tenant;
        if !self.scheduler.on_packet_received(tenant, packet.data.len()) {
            return self.on_packet_of_unknown_tenant(now, tenant);
        }
        self.deliver_received(packet);
    }

    /// An IP packet arrived of a flow that comes over several paths. Those that wait for it are delivered behind it.
    fn handle_ordered_packet(&mut self, now: Instant, packet: OrderedPacket<'_>) {
        let OrderedPacket {
            tenant, ecn, data, ..
        } = packet;
        if !self.scheduler.on_packet_received(tenant, data.len()) {
            return self.on_packet_of_unknown_tenant(now, tenant);
        }
        if self.receiver.on_ordered_packet(now, packet) == resequencer::Arrival::Deliver {
            self.deliver_received(ReceivedPacket { tenant, ecn, data });
        }
        self.deliver_held_packets();
    }

    /// Delivers packets that are held no longer.
    pub(super) fn deliver_held_packets(&mut self) {
        while let Some(held) = self.receiver.poll_held_packet() {
            self.deliver_received(ReceivedPacket {
                tenant: held.tenant,
                ecn: held.ecn,
                data: &held.data,
            });
        }
    }

    /// A packet of a known tenant is to be delivered.
    fn deliver_received(&mut self, packet: ReceivedPacket<'_>) {
        if self.receiver.is_delivery_full() {
            self.scheduler
                .count_drop(packet.tenant, |drops| drops.arrived += 1);
            return;
        }
        self.receiver.deliver_packet(packet);
    }

    /// A part of an IP packet of a tenant arrived. A packet of an unknown one counts once.
    fn handle_packet_part(&mut self, now: Instant, part: PacketPart<'_>) {
        if !self.scheduler.tenants().knows(part.tenant) {
            if part.index == 0 {
                self.on_packet_of_unknown_tenant(now, part.tenant);
            }
            return;
        }
        match self.receiver.on_packet_part(now, part) {
            Ok(None) => {}
            Ok(Some(whole)) => {
                let packet = ReceivedPacket {
                    tenant: whole.tenant,
                    ecn: whole.ecn,
                    data: &whole.data,
                };
                self.deliver_packet(now, packet);
            }
            Err(WrongPart) => self.drops.malformed += 1,
        }
    }

    fn on_packet_of_unknown_tenant(&mut self, now: Instant, tenant: TenantId) {
        self.drops.unknown_tenant += 1;
        if self.unknown_tenants.on_packet(now, tenant) {
            let peer = self.id;
            self.events.push_back(Event::TenantUnknown { peer, tenant });
        }
    }

    /// The peer drops packets of a tenant of ours, since it does not know it.
    fn on_unknown_tenant(&mut self, now: Instant, tenant: TenantId, packets: u64) {
        if !self.scheduler.tenants().knows(tenant) {
            return;
        }
        let report = self.unknown_tenants.on_report(now, tenant, packets);
        self.scheduler.count_drop(tenant, |drops| {
            drops.unknown_at_peer = drops.unknown_at_peer.saturating_add(report.dropped);
        });
        if report.is_news {
            let peer = self.id;
            self.events.push_back(Event::TenantRefused { peer, tenant });
        }
    }

    /// The peer drops packets of a tenant of ours, since it does not expect one of their addresses.
    fn on_prefix_mismatch(&mut self, now: Instant, mismatch: PrefixMismatch) {
        if self.scheduler.tenants().knows(mismatch.tenant)
            && self.prefix_mismatches.on_report(now, &mismatch)
        {
            let peer = self.id;
            self.events
                .push_back(Event::PacketsRefused { peer, mismatch });
        }
    }

    fn handle_done(
        &mut self,
        context: PacketContext,
        wire_id: u64,
        status: MessageStatus,
        whole_at: u32,
    ) {
        let Some((id, message)) = self.scheduler.finish_message(wire_id) else {
            return;
        };
        let outcome = match status {
            MessageStatus::Delivered => MessageOutcome::Delivered,
            MessageStatus::Refused(reason) => MessageOutcome::Refused(reason),
        };
        if outcome == MessageOutcome::Refused(RefusalReason::UnknownApplication) {
            self.apps
                .on_unknown_to_peer(message.app, DeliveryClass::Message);
        }
        let now = context.now;
        let path = context.path.and_then(|path| self.paths.get(path));
        // Before the first acknowledgement the peer's clock is not known: assume half a round trip.
        let half_rtt = path.and_then(|path| path.rtt().min()).map(|rtt| rtt / 2);
        let ago = self.receiver.clock().since(now, whole_at).or(half_rtt);
        let after = now.saturating_duration_since(message.made);
        // Never before it was made, whatever the clocks say.
        let arrived_after = ago.map(|ago| after.saturating_sub(ago));
        let end = MessageEnd {
            outcome,
            arrived_after,
        };
        self.on_message_ended(now, id, &message, end);
    }

    /// The peer closes the session. What waits to be sent stays until it comes back.
    fn handle_close(&mut self, now: Instant) {
        self.paths.iter_mut().for_each(Path::on_peer_closed);
        self.reachability.is_closed = true;
        self.reachability.unreachable_since = self.reachability.unreachable_since.or(Some(now));
        // The peer has forgotten its streams, whether it stops or has removed us.
        let (streams, mut cx) = self.streams();
        streams.on_peer_forgot(&mut cx, ResetReason::Gateway);
        self.on_stream_events();
        // One that serves another gateway with our key has not taken our messages, and may yet.
        if !self.refusals.take_refused() {
            self.end_unknown_messages(now);
        }
        self.handshake.next_at = Some(now + self.settings.timing.handshake_retry_max);
        self.choose_paths(MoveReason::PathDown);
        if std::mem::replace(&mut self.reachability.was_up, false) {
            self.events.push_back(Event::PeerDown {
                peer: self.id,
                closed_by_peer: true,
            });
        }
    }
}
