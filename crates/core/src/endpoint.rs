//! All peers of one gateway: finds the session of a datagram, answers handshakes, hands out work.

mod handshake_load;
mod handshake_queue;
mod handshake_seeds;
mod handshakes;
mod joined;
mod networks;
mod overflow_attribution;
mod peer_addresses;
mod peer_reports;
mod replies;
mod reply_rate_limit;
mod reply_requests;
mod response_cache;
mod streams;
mod transmit;
mod turns;
mod unit_reports;
mod wrong_key;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    ops::RangeInclusive,
};

use keiro_stats::HandshakeStats;
use keiro_units::{Bandwidth, Instant, Probability};
use rand_chacha::ChaCha20Rng;
use rand_core::{RngCore, SeedableRng};

use self::{
    handshake_load::HandshakeLoad,
    handshake_queue::HandshakeQueue,
    handshake_seeds::HandshakeSeeds,
    joined::JoinedDatagrams,
    overflow_attribution::OverflowAttribution,
    peer_addresses::PeerAddresses,
    peer_reports::PeerReports,
    replies::{Replies, UnpacedPacket},
    response_cache::ResponseCache,
    turns::Turns,
    unit_reports::UnitReports,
    wrong_key::WrongKeys,
};
use crate::{
    config::{AggregationConfig, AppConfig, EndpointConfig, PathConfig, PeerConfig, SchedulerKind},
    datagram::{DatagramMeta, NewDatagram},
    event::{DelaySample, Delivery, Event, RefusalReason, SendError},
    handshake::{CookieSecrets, MacKeys, PublicKey},
    id::{AppId, MessageId, PathId, PeerId, SocketId, TenantId},
    session::{Arrived, ReceiveOverflows, Session},
    snapshot::{DropCounters, EndpointSnapshot, PathSnapshot, SessionSnapshot},
    tenant::{IpPacket, PacketError, PrefixMismatch, TenantConfig, TenantError, TenantSnapshot},
    timeouts::Timeouts,
    trace::TraceBatch,
    uplink::Uplinks,
    wire::{
        DataHeader, Features, KIND_COOKIE, KIND_DATA, KIND_INITIATION, KIND_RESPONSE,
        KIND_VERSION_REPLY,
    },
};

/// Buffers that are kept for IP packets to come: half a megabyte of them at most. Smaller ones the
/// allocator has at hand, larger ones would be too much to keep.
const SPARE_MAX: usize = 256;
const SPARE_BYTES: RangeInclusive<usize> = 1024..=2048;

/// One gateway's end of the overlay.
pub struct Endpoint {
    config: EndpointConfig,
    mac_keys: MacKeys,
    cookies: CookieSecrets,
    random: ChaCha20Rng,
    seeds: HandshakeSeeds,
    last_timestamp: u64,
    load: HandshakeLoad,
    waiting: HandshakeQueue,
    response_cache: ResponseCache,
    peer_addresses: PeerAddresses,
    overflows: OverflowAttribution,
    mismatch_reports: PeerReports,
    wrong_keys: WrongKeys,
    peers: BTreeMap<PeerId, Session>,
    by_key: BTreeMap<PublicKey, PeerId>,
    by_index: BTreeMap<u32, PeerId>,
    next_peer: u32,
    /// Handshake packets to peers.
    outbox: VecDeque<UnpacedPacket>,
    /// Answers to strangers.
    replies: Replies,
    spare: Vec<Vec<u8>>,
    /// Events of peers that were removed, and of handshakes that belong to no session.
    events: VecDeque<Event>,
    drops: DropCounters,
    stats: HandshakeStats,
    last_polled: Option<PeerId>,
    uplinks: Uplinks,
    /// Sockets that have no local address now.
    unbound: BTreeSet<SocketId>,
    turns: Turns,
    units: UnitReports,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("peers", &self.peers.len())
            .finish_non_exhaustive()
    }
}

impl Endpoint {
    /// An endpoint without peers. `seed` must be unpredictable: all keys are drawn from it.
    pub fn new(now: Instant, config: EndpointConfig, seed: [u8; 32]) -> Self {
        let mut random = ChaCha20Rng::from_seed(seed);
        let last_timestamp = handshakes::nanos(config.handshake_time_floor);
        Self {
            mac_keys: MacKeys::new(&config.private_key.public_key()),
            cookies: CookieSecrets::new(now, &mut random),
            config,
            random,
            seeds: HandshakeSeeds::default(),
            last_timestamp,
            load: HandshakeLoad::default(),
            waiting: HandshakeQueue::default(),
            response_cache: ResponseCache::default(),
            peer_addresses: PeerAddresses::default(),
            overflows: OverflowAttribution::default(),
            mismatch_reports: PeerReports::default(),
            wrong_keys: WrongKeys::default(),
            peers: BTreeMap::new(),
            by_key: BTreeMap::new(),
            by_index: BTreeMap::new(),
            next_peer: 0,
            outbox: VecDeque::new(),
            replies: Replies::default(),
            spare: Vec::new(),
            events: VecDeque::new(),
            drops: DropCounters::default(),
            stats: HandshakeStats::default(),
            last_polled: None,
            uplinks: Uplinks::default(),
            unbound: BTreeSet::new(),
            turns: Turns::default(),
            units: UnitReports::default(),
        }
    }

    /// Mixes unpredictable bytes into the ephemeral keys of handshakes to come, so that a thief of the
    /// endpoint's memory cannot compute the earlier ones from its random numbers. Without it they are
    /// drawn from `seed` alone, and simulations repeat.
    pub fn mix_entropy(&mut self, entropy: &[u8; 32]) {
        self.seeds.mix(entropy);
    }

    /// Adds a peer and starts to talk to it. The id is never reused. A peer with the same key is
    /// removed first.
    pub fn add_peer(&mut self, now: Instant, config: PeerConfig) -> PeerId {
        if let Some(same) = self.by_key.get(&config.public_key) {
            self.remove_peer(now, *same);
        }
        let id = PeerId(self.next_peer);
        self.next_peer += 1;
        self.by_key.insert(config.public_key, id);
        let incarnation = self.random.next_u64();
        let mut session = Session::new(now, id, incarnation, config, &self.config);
        for socket in &self.unbound {
            session.on_socket_unbound(now, *socket);
        }
        self.peers.insert(id, session);
        self.peer_addresses.on_changed();
        id
    }

    /// Removes a peer and its keys at once and sends it a close. Its messages end: those that have left as
    /// unknown, the others as refused. Its streams end without a signal.
    pub fn remove_peer(&mut self, now: Instant, peer: PeerId) {
        let Some(mut session) = self.peers.remove(&peer) else {
            return;
        };
        let packets = session.close_packets(now).into_iter();
        self.outbox.extend(packets.map(UnpacedPacket::from));
        session.abandon(now);
        self.events.append(&mut session.events);
        self.by_key.remove(&session.public_key);
        self.peer_addresses.on_changed();
        self.mismatch_reports.forget(peer);
        self.wrong_keys.forget(peer);
        self.response_cache.forget(peer);
        self.turns.forget(peer);
        self.units.forget(peer);
        self.by_index.retain(|_, id| *id != peer);
    }

    /// Changes the paths of a peer: new ones are validated, unnamed ones end, others continue.
    pub fn set_paths(&mut self, now: Instant, peer: PeerId, paths: &[PathConfig]) {
        if let Some(session) = self.peers.get_mut(&peer) {
            session.set_paths(now, paths);
            for socket in &self.unbound {
                session.on_socket_unbound(now, *socket);
            }
            self.peer_addresses.on_changed();
        }
    }

    /// The socket sends from a local address again, or from another one than before. Paths that use it
    /// are challenged at once and used when they have answered, one round trip later; what was in flight
    /// on them is sent again. A socket has an address until the driver says otherwise.
    pub fn on_socket_bound(&mut self, now: Instant, socket: SocketId) {
        self.unbound.remove(&socket);
        for session in self.peers.values_mut() {
            session.on_socket_bound(now, socket);
        }
        self.peer_addresses.on_changed();
    }

    /// There is a route for what leaves by the socket that there was not before. Paths that use it and are
    /// not up are challenged at once.
    pub fn on_route_added(&mut self, now: Instant, socket: SocketId) {
        for session in self.peers.values_mut() {
            session.on_route_added(now, socket);
        }
    }

    /// The socket has no local address until [`on_socket_bound`](Self::on_socket_bound) is called. Paths
    /// that use it are down at once, and keep what is known of them.
    pub fn on_socket_unbound(&mut self, now: Instant, socket: SocketId) {
        self.unbound.insert(socket);
        for session in self.peers.values_mut() {
            session.on_socket_unbound(now, socket);
        }
        self.peer_addresses.on_changed();
    }

    /// The socket is not used by any path any more.
    pub fn forget_socket(&mut self, socket: SocketId) {
        self.unbound.remove(&socket);
        self.uplinks.set_rate(socket, None);
    }

    /// Bounds what leaves a socket to all peers together, in IP bytes; `None`: no longer. Each path
    /// keeps its own rate within that.
    pub fn set_uplink(&mut self, socket: SocketId, rate: Option<Bandwidth>) {
        self.uplinks.set_rate(socket, rate);
    }

    /// Adds or changes an application of a peer, its preferred paths included.
    pub fn set_app(&mut self, peer: PeerId, app: AppConfig) {
        if let Some(session) = self.peers.get_mut(&peer) {
            session.set_app(app);
        }
    }

    /// Forgets an application. What waits is still sent; what arrives is refused.
    pub fn remove_app(&mut self, peer: PeerId, app: AppId) {
        if let Some(session) = self.peers.get_mut(&peer) {
            session.remove_app(app);
        }
    }

    /// Orders what is accepted from now on; what waits already keeps its place.
    pub fn set_scheduler(&mut self, scheduler: SchedulerKind) {
        self.config.scheduler = scheduler;
        for session in self.peers.values_mut() {
            session.set_scheduler(scheduler);
        }
    }

    /// How much of each path's rate trains may take from now on; zero: none are sent.
    pub fn set_probe_share(&mut self, share: Probability) {
        self.config.probe_share = share;
        for session in self.peers.values_mut() {
            session.set_probe_share(share);
        }
    }

    /// How thin traffic is gathered from now on.
    pub fn set_aggregation(&mut self, config: AggregationConfig) {
        for session in self.peers.values_mut() {
            session.set_aggregation(&config);
        }
        self.config.aggregation = config;
    }

    /// What the kernel dropped in receiving because a buffer was full, in all: of this socket's own,
    /// and of the system's beside it. Feedback carries both to the peers, for the controller of their aggregates,
    /// less what strangers caused: no peer can change that. How many of a peer's packets strangers have displaced is
    /// reported to it beside, for its other controllers.
    pub fn set_overflows(&mut self, socket: SocketId, own: u64, system: u64) {
        let counters = ReceiveOverflows {
            socket: own,
            system,
        };
        let drops = self.overflows.on_counters(socket, counters);
        for session in self.peers.values_mut() {
            session.on_socket_drops(socket, drops);
        }
    }

    /// Begins a turn: each peer has packets handled up to a bound of work, further ones wait until the next. Those
    /// that have waited are handled first. To be called before each batch of datagrams; a driver that never
    /// does has everything handled at once.
    pub fn begin_turn(&mut self, now: Instant) {
        self.turns.begin(now);
        while let Some((peer, meta, mut packet)) = self.turns.poll() {
            let now = now.max(meta.received_at);
            let cost = self.handle_waited(now, meta, peer, &mut packet);
            self.turns.on_waited(cost);
        }
    }

    /// Takes a datagram that arrived; it is decrypted in place. Bad ones are counted, never an
    /// error.
    pub fn handle_datagram(&mut self, now: Instant, meta: DatagramMeta, data: &mut [u8]) {
        match data.is_empty() {
            true => self.handle_other(now, meta, data),
            false => self.handle_datagrams(now, meta, data, data.len()),
        }
    }

    /// Takes datagrams that arrived together, as the kernel joins them: each is `stride` bytes of `data`, only the
    /// last may be shorter. The same as [`handle_datagram`](Self::handle_datagram) of one after the other, for less:
    /// the peer is looked for once as long as they are of one.
    pub fn handle_datagrams(
        &mut self,
        now: Instant,
        meta: DatagramMeta,
        data: &mut [u8],
        stride: usize,
    ) {
        let mut datagrams = JoinedDatagrams::new(data, stride);
        while let Some(datagram) = datagrams.next() {
            match DataHeader::decode(datagram) {
                Some(header) if datagram[0] == KIND_DATA => {
                    self.handle_data(now, meta, (header, datagram), &mut datagrams);
                }
                _ => self.handle_other(now, meta, datagram),
            }
        }
    }

    /// Takes a datagram that is no data packet.
    fn handle_other(&mut self, now: Instant, meta: DatagramMeta, data: &mut [u8]) {
        let is_of_peer = match data.first() {
            None | Some(&KIND_DATA) => {
                self.drops.truncated += 1;
                false
            }
            Some(&KIND_INITIATION) => self.handle_initiation(now, meta, data),
            Some(&KIND_RESPONSE) => {
                let has_index = self.has_index(data.get(8..12));
                self.handle_response(now, meta, data);
                has_index
            }
            Some(&KIND_COOKIE) => {
                let has_index = self.has_index(data.get(4..8));
                self.handle_cookie_reply(now, data);
                has_index
            }
            Some(&KIND_VERSION_REPLY) => {
                let has_index = self.has_index(data.get(4..8));
                self.handle_version_reply(now, meta, data);
                has_index
            }
            Some(_) => {
                self.drops.unknown_kind += 1;
                false
            }
        };
        self.overflows.on_datagram(meta.socket, is_of_peer);
    }

    fn has_index(&self, index: Option<&[u8]>) -> bool {
        let index = index.and_then(|index| index.try_into().ok());
        index.is_some_and(|index| self.by_index.contains_key(&u32::from_be_bytes(index)))
    }

    /// Accepts a message of 1 byte to 16 MiB (and 8 bytes) made at `made` (not later than `now`).
    ///
    /// Its deadline and lifetime run from `made`. On an error the body is handed back.
    pub fn send_message(
        &mut self,
        now: Instant,
        made: Instant,
        peer: PeerId,
        app: AppId,
        body: Vec<u8>,
    ) -> Result<MessageId, (SendError, Vec<u8>)> {
        match self.peers.get_mut(&peer) {
            Some(session) => session.send_message(made.min(now), app, body),
            None => Err((SendError::UnknownPeer, body)),
        }
    }

    /// Accepts a datagram. Where the queue is full the oldest is dropped and counted, as is one whose
    /// lifetime ends before it has left.
    pub fn send_datagram(
        &mut self,
        now: Instant,
        peer: PeerId,
        datagram: NewDatagram<'_>,
    ) -> Result<(), SendError> {
        let session = self.peers.get_mut(&peer).ok_or(SendError::UnknownPeer)?;
        session.send_datagram(now, datagram)
    }

    /// Adds or changes a tenant towards a peer, at any time: its weight is in force at once, and
    /// another controller begins anew. Tenant 0 is who sends messages, streams and datagrams.
    pub fn set_tenant(
        &mut self,
        now: Instant,
        peer: PeerId,
        config: TenantConfig,
    ) -> Result<(), TenantError> {
        let session = self.peers.get_mut(&peer).ok_or(TenantError::UnknownPeer)?;
        session.set_tenant(now, config)
    }

    /// Forgets a tenant and its packets that wait. What arrives of it from now on is dropped.
    pub fn remove_tenant(&mut self, peer: PeerId, tenant: TenantId) {
        if let Some(session) = self.peers.get_mut(&peer) {
            session.remove_tenant(tenant);
        }
    }

    /// Reports to a peer that packets of it were dropped because of an address. Call it rarely: it is sent with
    /// the next packet, and not sent again if that is lost.
    pub fn report_prefix_mismatch(&mut self, peer: PeerId, mismatch: PrefixMismatch) {
        if let Some(session) = self.peers.get_mut(&peer) {
            session.report_prefix_mismatch(mismatch);
        }
    }

    /// Tenants towards a peer in numbers: those above `after`, in order, at most `max` of them.
    pub fn tenants(
        &self,
        now: Instant,
        peer: PeerId,
        after: Option<TenantId>,
        max: usize,
    ) -> Vec<TenantSnapshot> {
        self.peers
            .get(&peer)
            .map(|session| session.tenant_snapshots(now, after, max))
            .unwrap_or_default()
    }

    /// Accepts an IP packet of a tenant; it takes the path of `app`, whose class is `datagram`.
    ///
    /// It waits in the tenant's own queue, and is dropped and counted there if that is full or it
    /// waits too long. One that is longer than [`packet_max`](Self::packet_max) is refused.
    pub fn send_packet(
        &mut self,
        now: Instant,
        peer: PeerId,
        tenant: TenantId,
        app: AppId,
        packet: IpPacket,
    ) -> Result<(), PacketError> {
        let session = self.peers.get_mut(&peer).ok_or(PacketError::UnknownPeer)?;
        session.send_packet(now, tenant, app, packet)
    }

    /// A buffer of `len` bytes, whatever is in them, for a packet to be sent: that of one that has
    /// left, if there is any.
    pub fn spare_buffer(&mut self, len: usize) -> Vec<u8> {
        if !SPARE_BYTES.contains(&len) {
            return vec![0; len];
        }
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.reserve_exact(len.saturating_sub(buffer.len()));
        buffer.resize(len, 0);
        buffer
    }

    /// Longest IP packet of a tenant for which one datagram on the path of `app` has room now, bytes; `None`: no
    /// path is up. It changes with [`Event::MtuChanged`] and with the path.
    pub fn packet_room(&self, peer: PeerId, tenant: TenantId, app: AppId) -> Option<usize> {
        self.peers.get(&peer)?.packet_room(tenant, app)
    }

    /// Longest IP packet of a tenant that is accepted for the path of `app` now, bytes: [`packet_room`](Self::packet_room),
    /// or [`SPLIT_PACKET_MAX`](crate::wire::SPLIT_PACKET_MAX) where that is less and the peer puts parts together.
    pub fn packet_max(&self, peer: PeerId, tenant: TenantId, app: AppId) -> Option<usize> {
        self.peers.get(&peer)?.packet_max(tenant, app)
    }

    /// Says what became of a delivered message; frees its share of the reassembly memory and
    /// acknowledges (`None`) or refuses it. Unknown ids are ignored.
    pub fn finish_message(&mut self, peer: PeerId, id: MessageId, refused: Option<RefusalReason>) {
        if let Some(session) = self.peers.get_mut(&peer) {
            session.finish_message(id, refused);
        }
    }

    /// A path to the peer is up, with keys.
    pub fn is_up(&self, peer: PeerId) -> bool {
        self.peers.get(&peer).is_some_and(Session::is_up)
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.answer_waiting(now);
        if self.turns.due().is_some_and(|due| due <= now) {
            self.begin_turn(now);
        }
        let due: Vec<PeerId> = self
            .peers
            .iter()
            .filter(|(_, session)| {
                let at = session.poll_timeout(&self.uplinks).earliest();
                at.is_some_and(|at| at <= now)
            })
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            if let Some(session) = self.peers.get_mut(&id) {
                session.tracer.on_time(now);
                session.handle_timeout(now);
                for index in session.retired.drain(..) {
                    self.by_index.remove(&index);
                }
                if session.handshake_at().is_some_and(|at| at <= now) {
                    self.begin_handshake(now, id);
                }
            }
        }
    }

    /// The next datagram or message from a peer.
    pub fn poll_delivery(&mut self) -> Option<Delivery<'_>> {
        let id = *self
            .peers
            .iter_mut()
            .find(|(_, session)| session.has_deliveries())?
            .0;
        let (arrived, arena) = self.peers.get_mut(&id)?.poll_delivery()?;
        Some(match arrived {
            Arrived::Message { app, number, body } => Delivery::Message {
                peer: id,
                app,
                id: MessageId(number),
                body,
            },
            Arrived::Datagram {
                app,
                flow,
                reply,
                start,
                end,
            } => Delivery::Datagram {
                peer: id,
                app,
                flow,
                reply,
                data: &arena[start..end],
            },
            Arrived::Packet {
                tenant,
                ecn,
                start,
                end,
            } => Delivery::Packet {
                peer: id,
                tenant,
                ecn,
                data: &arena[start..end],
            },
            Arrived::Stream {
                app,
                stream,
                signal,
            } => Delivery::Stream {
                peer: id,
                app,
                stream,
                signal,
            },
        })
    }

    /// The next event, in the order in which they happened per peer; `None`: there is none.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events
            .pop_front()
            .or_else(|| self.peers.values_mut().find_map(Session::poll_event))
    }

    /// The next delay of an IP packet or of stream bytes that was measured; `None`: there is none. Those that
    /// are not asked for are dropped beyond some.
    pub fn poll_delay_sample(&mut self) -> Option<DelaySample> {
        let mut sessions = self.peers.iter_mut();
        sessions.find_map(|(peer, session)| {
            let (app, delay) = session.delay_samples.poll()?;
            let peer = *peer;
            Some(DelaySample { peer, app, delay })
        })
    }

    /// What happened on a peer's paths since this was called last, packet by packet; the first call
    /// begins the recording and returns nothing. `None`: there is no such peer.
    ///
    /// At most [`TRACE_EVENTS_MAX`](crate::TRACE_EVENTS_MAX) events wait; further ones are counted and
    /// lost. Changes of a path's state are in the trace once `poll_event` has returned them.
    pub fn take_trace(&mut self, peer: PeerId) -> Option<TraceBatch> {
        Some(self.peers.get_mut(&peer)?.tracer.take())
    }

    /// Ends the recording for [`Self::take_trace`].
    pub fn stop_trace(&mut self, peer: PeerId) {
        if let Some(session) = self.peers.get_mut(&peer) {
            session.tracer.stop();
        }
    }

    /// When to call `handle_timeout` and `poll_transmit` again if nothing arrives before.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.poll_timeouts().earliest()
    }

    /// The same, with what should be punctual separate from what need not be.
    pub fn poll_timeouts(&self) -> Timeouts {
        if !self.outbox.is_empty() || !self.replies.is_empty() {
            return Timeouts {
                departure: Some(Instant::ZERO),
                rest: None,
            };
        }
        let rest = self.turns.due().into_iter().chain(self.waiting.due()).min();
        self.peers
            .values()
            .map(|session| session.poll_timeout(&self.uplinks))
            .fold(Timeouts::of_rest(rest), Timeouts::min)
    }

    /// Closes the session with every peer and ends its messages, as `remove_peer` does; drain
    /// `poll_transmit` and `poll_event` once more after it.
    pub fn close(&mut self, now: Instant) {
        let ids: Vec<PeerId> = self.peers.keys().copied().collect();
        for id in ids {
            self.remove_peer(now, id);
        }
    }

    /// Counters of the endpoint as a whole.
    pub fn snapshot(&self) -> EndpointSnapshot {
        EndpointSnapshot {
            drops: self.drops,
            stats: HandshakeStats {
                waiting_initiations: self.waiting.len() as u64,
                ..self.stats
            },
        }
    }

    /// One peer in numbers; `None` if there is no such peer.
    pub fn session(&self, peer: PeerId) -> Option<SessionSnapshot> {
        self.peers.get(&peer).map(Session::snapshot)
    }

    /// The paths to one peer in numbers; empty if there is no such peer.
    pub fn paths(&self, peer: PeerId) -> Vec<PathSnapshot> {
        self.peers
            .get(&peer)
            .map(Session::path_snapshots)
            .unwrap_or_default()
    }

    /// Whether an optional part of the protocol is in force with a peer; not before a session is there.
    pub fn has_feature(&self, peer: PeerId, feature: Features) -> bool {
        self.peers
            .get(&peer)
            .is_some_and(|session| session.has_feature(feature))
    }

    /// The path that an application's traffic takes now; `None` if none is up.
    pub fn active_path(&self, peer: PeerId, app: AppId) -> Option<PathId> {
        self.peers.get(&peer)?.active_path(app)
    }

    /// `true` if nothing waits to be sent or acknowledged: a drained endpoint may stop.
    pub fn is_drained(&self) -> bool {
        let is_empty = self.outbox.is_empty() && self.replies.is_empty();
        is_empty && self.peers.values().all(Session::is_drained)
    }

    /// Checks what must hold between calls, for tests and simulations. It visits all state of all peers:
    /// where there are many events, call it after some of them.
    ///
    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub fn check_invariants(&self) {
        assert!(
            self.outbox.len() <= handshakes::OUTBOX_MAX,
            "handshake packets that wait"
        );
        self.load.check_invariants();
        self.waiting.check_invariants();
        self.response_cache.check_invariants();
        self.replies.check_invariants();
        self.turns.check_invariants();
        assert!(self.spare.len() <= SPARE_MAX, "spare buffers");
        assert_eq!(self.by_key.len(), self.peers.len(), "every peer has a key");
        assert!(
            self.by_index.values().all(|id| self.peers.contains_key(id)),
            "indices are those of peers"
        );
        for session in self.peers.values() {
            session.check_invariants();
        }
    }

    /// Handles a packet, and those behind it as long as they have the same index.
    fn handle_data(
        &mut self,
        now: Instant,
        meta: DatagramMeta,
        first: (DataHeader, &mut [u8]),
        others: &mut JoinedDatagrams<'_>,
    ) {
        let (mut header, mut datagram) = first;
        let index = header.receiver;
        let Some(id) = self.by_index.get(&index).copied() else {
            self.drops.unknown_index += 1;
            return self.overflows.on_datagram(meta.socket, false);
        };
        let Some(session) = self.peers.get_mut(&id) else {
            return self.overflows.on_datagram(meta.socket, false);
        };
        session.tracer.on_time(now);
        loop {
            let is_of_peer = match self.turns.admits(id) {
                true => {
                    let is_authentic = session.handle_data(now, meta, header, datagram);
                    self.turns.on_cost(id, session.take_cost());
                    is_authentic
                }
                false => {
                    session.drops.over_budget += self.turns.push(id, meta, datagram.to_vec());
                    true
                }
            };
            self.overflows.on_datagram(meta.socket, is_of_peer);
            // Where the keys of the index are gone, the next is of no peer.
            if !session.retired.is_empty() || session.has_refusal() {
                break;
            }
            match others.next_to(index) {
                Some(next) => (header, datagram) = next,
                None => break,
            }
        }
        self.on_packets_handled(now, id);
    }

    /// Handles a packet that has waited for its peer's turn; what it cost.
    fn handle_waited(
        &mut self,
        now: Instant,
        meta: DatagramMeta,
        id: PeerId,
        data: &mut [u8],
    ) -> u64 {
        let header = DataHeader::decode(data);
        let Some((header, session)) = header.zip(self.peers.get_mut(&id)) else {
            return 0;
        };
        session.tracer.on_time(now);
        session.handle_data(now, meta, header, data);
        let cost = session.take_cost();
        self.turns.on_cost(id, cost);
        self.on_packets_handled(now, id);
        cost
    }

    /// Does what follows from packets of a peer for the others.
    fn on_packets_handled(&mut self, now: Instant, id: PeerId) {
        let Some(session) = self.peers.get_mut(&id) else {
            return;
        };
        for index in session.retired.drain(..) {
            self.by_index.remove(&index);
        }
        let refusal = session.poll_refusal();
        if session.has_limited_tenants() {
            self.units.on_limited(now, id, &mut self.peers);
        }
        if let Some(packet) = refusal {
            self.send_beside_pacer(now, id, packet.into());
        }
    }
}
