//! The session's interface for the endpoint: messages, datagrams, IP packets, streams.

use std::net::SocketAddr;

use keiro_units::Instant;

use super::{
    Arrived, Session,
    applications::App,
    clock,
    flow_paths::{FlowPacket, FlowRoute},
    path::Path,
    send_queues::{DatagramNeeds, NewMessage},
    sent_frames::MessageControl,
    spreading,
    stream::ReadableBytes,
    tenant::{FlowKey, NewIpPacket},
};
use crate::{
    config::DeliveryClass,
    datagram::NewDatagram,
    event::{RefusalReason, ResetReason, SendError},
    id::{AppId, MessageId, PathId, StreamId, TenantId},
    tenant::{IpPacket, PacketError},
    wire::{
        DATAGRAM_LEN_MAX, Features, Frame, MESSAGE_LEN_MAX, MessageStatus, PacketOrder,
        SPLIT_PACKET_MAX,
    },
};

impl Session {
    pub(crate) fn send_message(
        &mut self,
        made: Instant,
        app: AppId,
        body: Vec<u8>,
    ) -> Result<MessageId, (SendError, Vec<u8>)> {
        if body.is_empty() || body.len() > MESSAGE_LEN_MAX {
            let error = SendError::Length {
                len: body.len(),
                min: 1,
                max: MESSAGE_LEN_MAX,
            };
            return Err((error, body));
        }
        let Some(entry) = self.apps.accepting(app, DeliveryClass::Message) else {
            return Err((SendError::UnknownApplication, body));
        };
        if !self.scheduler.queues().has_room(body.len()) {
            return Err((SendError::QueueFull, body));
        }
        entry.on_accepted(made, body.len());
        let message = NewMessage {
            app,
            body,
            made,
            latency_target: entry.latency_target(),
            lifetime: entry.lifetime(),
        };
        let path = entry.active();
        let id = self.scheduler.push_message(message, path);
        Ok(MessageId(id))
    }

    pub(crate) fn send_datagram(
        &mut self,
        now: Instant,
        datagram: NewDatagram<'_>,
    ) -> Result<(), SendError> {
        let len = datagram.data.len();
        if len > DATAGRAM_LEN_MAX {
            return Err(SendError::Length {
                len,
                min: 0,
                max: DATAGRAM_LEN_MAX,
            });
        }
        let entry = self
            .apps
            .accepting(datagram.app, DeliveryClass::Datagram)
            .ok_or(SendError::UnknownApplication)?;
        let datagram = NewDatagram {
            made: datagram.made.min(now),
            ..datagram
        };
        entry.on_accepted(datagram.made, len);
        let needs = DatagramNeeds {
            latency_target: entry.latency_target(),
            lifetime: entry.lifetime(),
        };
        let path = entry.active();
        let idle = self.is_coalescing_idle(path);
        for app in self.scheduler.push_datagram(datagram, needs, path) {
            self.apps.on_datagram_dropped(app);
        }
        self.on_coalescing_began(now, path, idle);
        Ok(())
    }

    /// Nothing waits to be coalesced on a path.
    fn is_coalescing_idle(&self, path: Option<PathId>) -> bool {
        path.is_some_and(|path| !self.scheduler.queues().has_coalescing(path))
    }

    /// Something may wait to be coalesced on a path on which nothing did if it was `idle`.
    fn on_coalescing_began(&mut self, now: Instant, path: Option<PathId>, idle: bool) {
        if idle
            && !self.is_coalescing_idle(path)
            && let Some(path) = path.and_then(|path| self.paths.get_mut(path))
        {
            path.aggregator_mut().on_first(now);
        }
    }

    pub(crate) fn finish_message(&mut self, id: MessageId, refused: Option<RefusalReason>) {
        let Some((id, whole_at)) = self.receiver.on_message_finished(id.0) else {
            return;
        };
        let status = refused.map_or(MessageStatus::Delivered, MessageStatus::Refused);
        self.control.push(MessageControl::Done {
            id,
            status,
            whole_at: clock::stamp(whole_at),
        });
    }

    pub(crate) fn poll_delivery(&mut self) -> Option<(Arrived, &[u8])> {
        self.receiver.poll_delivery()
    }

    pub(crate) fn has_deliveries(&self) -> bool {
        self.receiver.has_deliveries()
    }

    pub(crate) fn active_path(&self, app: AppId) -> Option<PathId> {
        self.apps.active_path(app)
    }

    pub(crate) fn send_packet(
        &mut self,
        now: Instant,
        tenant: TenantId,
        app: AppId,
        packet: IpPacket,
    ) -> Result<(), PacketError> {
        let splits = self.splits_packets();
        if tenant == TenantId::ZERO || !self.scheduler.tenants().knows(tenant) {
            return Err(PacketError::UnknownTenant);
        }
        let entry = self
            .apps
            .accepting(app, DeliveryClass::Datagram)
            .ok_or(PacketError::UnknownApplication)?;
        let (active, is_spread) = (entry.active(), entry.is_spread());
        // The flow may take any path.
        let least_room = is_spread.then(|| self.packet_room(tenant, app)).flatten();
        // One that no path serves waits, also where a path is left whose budget is used up.
        let route = match is_spread && active.is_some() {
            true => self.route_of_flow(now, tenant, app, &packet, least_room),
            false => None,
        };
        let path = route.map(|route| route.path).or(active);
        let scheduler = &mut self.scheduler;
        let Some(path) = path.and_then(|path| self.paths.get(path)) else {
            scheduler.count_drop(tenant, |drops| drops.no_path += 1);
            return Err(PacketError::NoPath);
        };
        let room = room_for_packet(path, tenant);
        let (len, room) = (packet.data.len(), least_room.unwrap_or(room).min(room));
        if len > room && !(splits && len <= SPLIT_PACKET_MAX) {
            scheduler.count_drop(tenant, |drops| drops.too_long += 1);
            return Err(PacketError::TooLong { len, room });
        }
        if let Some(entry) = self.apps.accepting(app, DeliveryClass::Datagram) {
            entry.on_accepted(now, len);
        }
        let packet = NewIpPacket {
            tenant,
            app,
            order: route.and_then(|route| route.order),
            packet,
        };
        scheduler.push_packet(now, path.id_and_mtu(), packet);
        Ok(())
    }

    /// Where the next packet of a flow of a spread application leaves; `None`: there is no choice.
    fn route_of_flow(
        &mut self,
        now: Instant,
        tenant: TenantId,
        app: AppId,
        packet: &IpPacket,
        room: Option<usize>,
    ) -> Option<FlowRoute> {
        let key = FlowKey::new(tenant, app, packet.flow_hash);
        let len = packet.data.len();
        let fits = room.is_some_and(|room| len <= room);
        let packet = FlowPacket {
            key,
            bytes: len,
            may_have_place: packet.needs_order && fits && self.orders_packets(),
        };
        let choices = spreading::flow_choices(now, &self.paths, self.scheduler.tenants(), key);
        let route = self.flow_paths.on_packet(now, packet, &choices)?;
        if let Some(from) = route.moved_from
            && let Some(to) = self.paths.get(route.path)
        {
            self.scheduler.move_flow(now, key, from, to.id_and_mtu());
        }
        Some(route)
    }

    /// Longest IP packet of a tenant that the path of an application has room for.
    pub(crate) fn packet_room(&self, tenant: TenantId, app: AppId) -> Option<usize> {
        let active = self.paths.get(self.active_path(app)?)?;
        let is_spread = self.apps.get(app).is_some_and(App::is_spread);
        let others = self.paths.iter().filter(|path| is_spread && path.is_up());
        // A flow may take any of them, with a place for each packet.
        let rooms = others
            .chain([active])
            .map(|path| room_for_packet(path, tenant));
        let order = match is_spread && self.orders_packets() {
            true => PacketOrder::LEN_MAX,
            false => 0,
        };
        rooms.min().map(|room| room.saturating_sub(order))
    }

    /// Longest IP packet of a tenant that is carried, whole or in parts.
    pub(crate) fn packet_max(&self, tenant: TenantId, app: AppId) -> Option<usize> {
        let room = self.packet_room(tenant, app)?;
        Some(match self.splits_packets() {
            true => room.max(SPLIT_PACKET_MAX),
            false => room,
        })
    }

    /// The peer puts IP packets together that come in parts.
    pub(super) fn splits_packets(&self) -> bool {
        self.has_feature(Features::SPLIT_PACKETS)
    }

    pub(crate) fn has_feature(&self, feature: Features) -> bool {
        let epoch = self.keys.current();
        epoch.is_some_and(|epoch| epoch.features.contains(feature))
    }

    /// The peer delivers packets in order that come over several paths.
    fn orders_packets(&self) -> bool {
        let epoch = self.keys.current();
        epoch.is_some_and(|epoch| epoch.features.contains(Features::ORDERED_PACKETS))
    }

    /// See [`Streams::open`](super::stream::Streams::open).
    pub(crate) fn open_stream(
        &mut self,
        now: Instant,
        app: AppId,
        target: Option<SocketAddr>,
    ) -> Result<StreamId, SendError> {
        let path = self.active_path(app);
        let idle = self.is_coalescing_idle(path);
        let (streams, mut cx) = self.streams();
        let opened = streams.open(now, &mut cx, app, target);
        self.on_coalescing_began(now, path, idle);
        opened
    }

    /// See [`Streams::write`](super::stream::Streams::write).
    pub(crate) fn write_stream(
        &mut self,
        now: Instant,
        id: StreamId,
        bytes: &[u8],
    ) -> Option<usize> {
        let path = self.path_of_stream(id);
        let idle = self.is_coalescing_idle(path);
        let (streams, mut cx) = self.streams();
        let taken = streams.write(now, &mut cx, id, bytes);
        self.on_coalescing_began(now, path, idle);
        taken
    }

    /// See [`Streams::room`](super::stream::Streams::room).
    pub(crate) fn stream_room(&mut self, id: StreamId) -> Option<usize> {
        self.streams.room(&mut self.scheduler, id)
    }

    /// Nothing more will be written.
    pub(crate) fn finish_stream(&mut self, now: Instant, id: StreamId) {
        let path = self.path_of_stream(id);
        let idle = self.is_coalescing_idle(path);
        let (streams, mut cx) = self.streams();
        streams.finish(now, &mut cx, id);
        self.on_coalescing_began(now, path, idle);
    }

    /// Ends both directions at once; a reset is sent if the peer may know the stream.
    pub(crate) fn reset_stream(&mut self, id: StreamId, reason: ResetReason) {
        let (streams, mut cx) = self.streams();
        streams.reset(&mut cx, id, reason);
        self.on_stream_events();
    }

    /// See [`Streams::reset_behind`](super::stream::Streams::reset_behind).
    pub(crate) fn reset_stream_behind(&mut self, now: Instant, id: StreamId, reason: ResetReason) {
        let (streams, mut cx) = self.streams();
        streams.reset_behind(now, &mut cx, id, reason);
        self.on_stream_events();
    }

    /// See [`Streams::readable`](super::stream::Streams::readable).
    pub(crate) fn stream_data(&self, id: StreamId) -> Option<ReadableBytes<'_>> {
        self.streams.readable(id)
    }

    /// See [`Streams::consume`](super::stream::Streams::consume).
    pub(crate) fn consume_stream(&mut self, now: Instant, id: StreamId, count: usize) {
        let (streams, mut cx) = self.streams();
        streams.consume(now, &mut cx, id, count);
        self.on_stream_events();
    }

    /// The path that a stream's application takes.
    pub(super) fn path_of_stream(&self, id: StreamId) -> Option<PathId> {
        self.active_path(self.scheduler.queues().stream(id)?.app)
    }
}

/// Longest IP packet that fits into a datagram of the path with nothing beside it.
fn room_for_packet(path: &Path, tenant: TenantId) -> usize {
    let clear = Path::clear_text_max(path.udp_payload_max());
    clear.saturating_sub(Frame::packet_head_len(tenant.0, clear))
}
