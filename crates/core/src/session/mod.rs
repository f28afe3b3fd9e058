//! One peer: its keys, its paths, its applications, and what is in flight in both directions.
//!
//! A [`Session`] is a coordinator. Its components own their state and are driven by `on_*` and
//! `poll_*` calls: [`path_manager`] (paths: validation, [`recovery`], MTU, RTT and other estimates,
//! pacing, the sending side of [`aggregation`]), [`receiver`] (replay windows, acknowledgements,
//! reassembly, delivery), [`scheduler`] (what waits, and which of it leaves next), and [`stream`]. `receive` carries received frames to them, `transmit` puts packets together from what
//! they have to send, `timers` asks them what is due.
//!
//! A session lives as long as its peer is configured: keys change, paths come and go and the peer
//! may restart, but what waits to be sent stays.

mod aggregation;
mod clock;
mod control_frames;
mod copies;
mod estimates;
mod keys;
mod mtu;
mod pacer;
mod parity;
mod path;
mod path_estimates;
mod path_manager;
mod path_selection;
mod reassembly;
mod receive;
mod received;
mod receiver;
mod recovery;
mod retransmit;
mod rtt;
mod scheduler;
mod send_queues;
mod snapshot;
mod stream;
mod tenant;
mod tenant_packets;
mod timers;
mod train;
mod transmit;
mod unknown_tenants;
mod validation;

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use keiro_model::{
    aggregation::{AGGREGATE_HEAD, PARITY_HEAD},
    workload::WorkloadMeter,
};
use keiro_stats::AppStats;
use keiro_units::{Instant, Probability};

pub(crate) use self::{
    aggregation::receiver::ReceiveOverflows, keys::Epoch, pacer::Pacer, path::ip_overhead,
    receiver::Arrived,
};
use self::{
    keys::KeyRing,
    path::{Abandoned, Path},
    path_manager::PathManager,
    path_selection::StartupWait,
    receiver::Receiver,
    recovery::SentFrame,
    scheduler::{SendLimits, SendScheduler},
    send_queues::CONTENT_HEAD_MAX,
    stream::Streams,
    unknown_tenants::{UnknownAtPeer, UnknownLocally},
};
use crate::{
    config::{
        AggregationConfig, AppConfig, DeliveryClass, EndpointConfig, PathConfig, PeerConfig,
        SchedulerKind, TimingConfig,
    },
    event::{Event, MessageOutcome, MoveReason, PathDownReason, RefusalReason, SendError},
    handshake::{CookieJar, Initiation, MacKeys, PublicKey},
    id::{AppId, FlowId, MessageId, PathId, PeerId, SocketId},
    snapshot::DropCounters,
    trace::Tracer,
    wire::{
        CREDIT_PER_MESSAGE, DATA_HEADER_LEN, DATAGRAM_LEN_MAX, MESSAGE_LEN_MAX, MessageStatus,
        TAG_LEN, VARINT_MAX,
    },
};

/// A handshake that we began and that is not answered yet.
pub(crate) struct Pending {
    pub(crate) initiation: Initiation,
    pub(crate) local_index: u32,
}

/// When and how we last tried to agree on keys.
pub(crate) struct HandshakeState {
    pub(crate) pending: Option<Pending>,
    /// When the next attempt is due; `None`: keys are fresh.
    pub(crate) next_at: Option<Instant>,
    pub(crate) attempts: u32,
    pub(crate) cookie: CookieJar,
    /// MACs of packets to this peer.
    pub(crate) mac_keys: MacKeys,
    /// Timestamp of the newest initiation of the peer: older ones are replays.
    pub(crate) newest_timestamp: u64,
}

struct App {
    config: AppConfig,
    /// No longer configured; kept until what it has sent has ended.
    removed: bool,
    active: Option<PathId>,
    /// Its counters; gauges stay at their defaults.
    stats: AppStats,
    workload: WorkloadMeter,
}

impl App {
    /// It is configured and of this class.
    fn takes(&self, class: DeliveryClass) -> bool {
        !self.removed && self.config.class == class
    }
}

/// One peer.
pub(crate) struct Session {
    pub(crate) id: PeerId,
    /// Another one shows the peer that we have restarted or forgotten it.
    pub(crate) incarnation: u64,
    pub(crate) public_key: PublicKey,
    pub(crate) preshared_key: [u8; 32],
    pub(crate) handshake: HandshakeState,
    pub(crate) keys: KeyRing,
    timing: TimingConfig,
    /// Share of each path's rate that trains may take.
    probe_share: Probability,
    remote_incarnation: Option<u64>,
    paths: PathManager,
    aggregation: AggregationConfig,
    receiver: Receiver,
    apps: BTreeMap<AppId, App>,
    scheduler: SendScheduler,
    streams: Streams,
    /// Frames that are retransmitted until they arrive, waiting for any path.
    control: VecDeque<SentFrame>,
    pub(crate) events: VecDeque<Event>,
    pub(crate) tracer: Tracer,
    pub(crate) drops: DropCounters,
    unknown_locally: UnknownLocally,
    unknown_at_peer: UnknownAtPeer,
    /// Indices of ours whose keys are gone, for the endpoint to forget.
    pub(crate) retired: Vec<u32>,
    /// The last batch was paced, and so took a turn among paths and among peers.
    pub(crate) took_turn: bool,
    was_up: bool,
    /// Since when no path has been up; `None`: one is.
    unreachable_since: Option<Instant>,
    /// The first path has come up and others may follow. `None`: it is known which ones are up.
    startup_wait: Option<StartupWait>,
    /// The peer has closed the session: nothing is sent until it is back.
    closed: bool,
}

/// Bytes of an aggregate with one datagram or stream beside its data and the headers of IP and UDP:
/// header and tag of the packet, the frame of the aggregate, the frame of the data.
const AGGREGATE_OVERHEAD: usize = DATA_HEADER_LEN + TAG_LEN + 12 + CONTENT_HEAD_MAX;
/// Bytes that are left free for the parity of the aggregate.
const PARITY_OVERHEAD: usize = parity::RESERVE + 1;
// `config` refuses aggregates too small to carry data or to open a stream by these constants.
const _: () = assert!(
    AGGREGATE_HEAD.get() as usize + CONTENT_HEAD_MAX
        == path::IPV6_OVERHEAD as usize
            + AGGREGATE_OVERHEAD
            + crate::wire::Frame::STREAM_OPEN_LEN_MAX
);
const _: () = assert!(PARITY_HEAD.get() as usize == PARITY_OVERHEAD);

impl Session {
    pub(crate) fn new(
        now: Instant,
        id: PeerId,
        incarnation: u64,
        peer: PeerConfig,
        endpoint: &EndpointConfig,
    ) -> Self {
        // A peer may always send the longest message: otherwise it would wait for ever.
        let window = peer
            .reassembly_bytes_max
            .get()
            .max(MESSAGE_LEN_MAX as u64 + CREDIT_PER_MESSAGE)
            .min(VARINT_MAX / 2);
        let mut session = Self {
            id,
            incarnation,
            public_key: peer.public_key,
            preshared_key: peer.preshared_key,
            handshake: HandshakeState {
                pending: None,
                next_at: Some(now),
                attempts: 0,
                cookie: CookieJar::default(),
                mac_keys: MacKeys::new(&peer.public_key),
                newest_timestamp: 0,
            },
            keys: KeyRing::default(),
            timing: endpoint.timing,
            probe_share: endpoint.probe_share,
            remote_incarnation: None,
            paths: PathManager::default(),
            receiver: Receiver::new(window),
            apps: BTreeMap::new(),
            scheduler: SendScheduler::new(
                endpoint.scheduler,
                SendLimits {
                    message_bytes_max: peer.send_queue_bytes_max.get(),
                    tenants_max: endpoint.tenants_max,
                    packet_bytes_max: endpoint.tenant_bytes_max.get(),
                },
            ),
            streams: Streams::default(),
            control: VecDeque::new(),
            aggregation: endpoint.aggregation.clone(),
            events: VecDeque::new(),
            tracer: Tracer::default(),
            drops: DropCounters::default(),
            unknown_locally: UnknownLocally::default(),
            unknown_at_peer: UnknownAtPeer::default(),
            retired: Vec::new(),
            took_turn: false,
            was_up: false,
            unreachable_since: Some(now),
            startup_wait: None,
            closed: false,
        };
        session.set_paths(now, &peer.paths);
        for app in peer.apps {
            session.set_app(app);
        }
        session
    }

    pub(crate) fn set_paths(&mut self, now: Instant, configs: &[PathConfig]) {
        for id in self.paths.not_in(configs) {
            self.remove_path(now, id);
        }
        for config in configs {
            let abandoned = self.paths.configure(now, config, &self.aggregation);
            if let Some(abandoned) = abandoned {
                self.on_abandoned(now, config.id, abandoned);
            }
        }
        self.choose_paths(MoveReason::Assigned);
        self.check_up(now);
    }

    pub(crate) fn set_app(&mut self, config: AppConfig) {
        let id = config.id;
        match self.apps.get_mut(&id) {
            Some(app) => {
                app.config = config;
                app.removed = false;
            }
            None => {
                let app = App {
                    config,
                    removed: false,
                    active: None,
                    stats: AppStats::default(),
                    workload: WorkloadMeter::default(),
                };
                self.apps.insert(id, app);
            }
        }
        self.assign_tenant(id);
        self.choose_path(id, MoveReason::Assigned);
    }

    pub(crate) fn remove_app(&mut self, id: AppId) {
        if let Some(app) = self.apps.get_mut(&id) {
            app.removed = true;
        }
        self.forget_if_done(id);
    }

    /// Forgets a removed application of which nothing is left.
    fn forget_if_done(&mut self, id: AppId) {
        let removed = self.apps.get(&id).is_some_and(|app| app.removed);
        if removed && !self.scheduler.queues().has_app(id) {
            self.apps.remove(&id);
            self.assign_tenant(id);
        }
    }

    pub(crate) fn set_scheduler(&mut self, scheduler: SchedulerKind) {
        self.scheduler.queues_mut().set_scheduler(scheduler);
    }

    pub(crate) fn set_probe_share(&mut self, share: Probability) {
        self.probe_share = share;
        self.paths.on_trains_enabled(share);
    }

    pub(crate) fn set_aggregation(&mut self, config: &AggregationConfig) {
        self.aggregation = config.clone();
        let mut changes = Vec::new();
        for path in self.paths.iter_mut() {
            changes.push((path.id(), path.reconfigure_aggregation(config)));
        }
        for (path, change) in changes {
            self.report_aggregation_change(path, change);
        }
    }

    pub(crate) fn set_overflows(&mut self, socket: SocketId, overflows: ReceiveOverflows) {
        self.receiver.set_overflows(socket, overflows);
    }

    /// What was polled at `polled_at` may have left as late as `until`.
    pub(crate) fn on_late_departure(&mut self, polled_at: Instant, until: Instant) {
        for path in self.paths.iter_mut() {
            path.on_late_departure(polled_at, until);
        }
    }

    /// Reports what has changed in the aggregation of a path.
    fn report_aggregation_change(&mut self, path: PathId, change: Option<aggregation::Change>) {
        let Some(change) = change else { return };
        let peer = self.id;
        self.events.push_back(match change {
            aggregation::Change::Decided(decision) => Event::AggregationChanged {
                peer,
                path,
                decision,
            },
            aggregation::Change::Paused(too_narrow) => Event::AggregationPaused {
                peer,
                path,
                too_narrow,
            },
            aggregation::Change::Resumed {
                bandwidth,
                parameters,
            } => Event::AggregationResumed {
                peer,
                path,
                bandwidth,
                parameters,
            },
        });
    }

    /// Items are coalesced if they fit into an aggregate of the path, whose size changes.
    fn update_coalescing_limit(&mut self, path: PathId) {
        let Some(path) = self.paths.get(path) else {
            return;
        };
        let aggregator = path.aggregator();
        let limit = aggregator.size_max().map_or(0, |size| {
            let parity = match aggregator.protects() {
                true => PARITY_OVERHEAD,
                false => 0,
            };
            (size as usize)
                .min(usize::from(path.mtu()))
                .saturating_sub(usize::from(path.ip_overhead()) + AGGREGATE_OVERHEAD + parity)
        });
        self.scheduler
            .queues_mut()
            .set_coalescing_max(path.id(), limit as u64);
    }

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
        let Some(entry) = self
            .apps
            .get_mut(&app)
            .filter(|entry| entry.takes(DeliveryClass::Message))
        else {
            return Err((SendError::UnknownApplication, body));
        };
        if !self.scheduler.queues().has_room(body.len()) {
            return Err((SendError::QueueFull, body));
        }
        entry.stats.sent_messages += 1;
        entry.stats.sent_bytes += body.len() as u64;
        entry.workload.on_made(made, body.len());
        let limits = (entry.config.latency_target, entry.config.lifetime);
        let id = self
            .scheduler
            .queues_mut()
            .push_message(app, body, made, limits, entry.active);
        Ok(MessageId(id))
    }

    pub(crate) fn send_datagram(
        &mut self,
        now: Instant,
        app: AppId,
        flow: FlowId,
        reply: bool,
        data: &[u8],
    ) -> Result<(), SendError> {
        if data.len() > DATAGRAM_LEN_MAX {
            return Err(SendError::Length {
                len: data.len(),
                min: 0,
                max: DATAGRAM_LEN_MAX,
            });
        }
        let entry = self
            .apps
            .get_mut(&app)
            .filter(|entry| entry.takes(DeliveryClass::Datagram))
            .ok_or(SendError::UnknownApplication)?;
        entry.stats.sent_messages += 1;
        entry.stats.sent_bytes += data.len() as u64;
        entry.workload.on_made(now, data.len());
        let latency_target = entry.config.latency_target;
        let path = entry.active;
        let datagram = (app, flow, reply, data);
        let idle = self.is_coalescing_idle(path);
        for app in self
            .scheduler
            .queues_mut()
            .push_datagram(now, datagram, latency_target, path)
        {
            if let Some(entry) = self.apps.get_mut(&app) {
                entry.stats.refused_messages += 1;
            }
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

    /// A packet of `len` bytes left over the path of `socket` without asking its pacer.
    pub(crate) fn on_unpaced_sent(&mut self, now: Instant, socket: SocketId, len: usize) {
        if let Some(path) = self.paths.of_socket_mut(socket) {
            path.on_unpaced_sent(now, len);
        }
    }

    pub(crate) fn finish_message(&mut self, id: MessageId, refused: Option<RefusalReason>) {
        let Some((id, whole_at)) = self.receiver.on_message_finished(id.0) else {
            return;
        };
        let status = refused.map_or(MessageStatus::Delivered, MessageStatus::Refused);
        self.control.push_back(SentFrame::MessageDone {
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
        self.apps.get(&app)?.active
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.scheduler.is_idle()
            && self.control.is_empty()
            && !self.streams.has_resets()
            && !self
                .paths
                .iter()
                .any(|path| path.is_up() && path.has_outcomes_in_flight())
    }

    /// First credit for the peer, which the handshake carries.
    pub(crate) fn credit_for_handshake(&self) -> u64 {
        // A peer that knows this incarnation already goes on counting from before.
        self.receiver.initial_credit()
    }

    /// Ends every message: the peer is removed.
    pub(crate) fn abandon(&mut self, now: Instant) {
        for (id, message) in self.scheduler.queues_mut().take_all() {
            self.push_done(now, id, &message, (MessageOutcome::PeerRemoved, None));
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.keys.current().is_some() && self.paths.any_up()
    }

    /// Sockets and addresses at which an initiation may reach the peer.
    pub(crate) fn remotes(&self) -> Vec<(SocketId, std::net::SocketAddr)> {
        self.paths.remotes()
    }

    fn remove_path(&mut self, now: Instant, id: PathId) {
        let Some(abandoned) = self.paths.remove(id) else {
            return;
        };
        self.paths.on_copies_dropped(&abandoned.copies);
        self.events.push_back(Event::PathDown {
            peer: self.id,
            path: id,
            reason: PathDownReason::Removed,
        });
        self.choose_paths(MoveReason::PathDown);
        self.move_packets(now, id);
        self.on_lost(now, id, abandoned.lost);
        self.check_up(now);
    }

    /// What waited or was in flight on a path is lost.
    fn on_abandoned(&mut self, now: Instant, path: PathId, abandoned: Abandoned) {
        self.paths.on_copies_dropped(&abandoned.copies);
        self.on_lost(now, path, abandoned.lost);
    }

    /// Keys of a new epoch may be used: the peer has them or has just used them.
    pub(crate) fn on_epoch_confirmed(&mut self, now: Instant, incarnation: u64, credit: u64) {
        self.handshake.attempts = 0;
        self.handshake.next_at = None;
        // A response that arrives now, or is replayed after the peer has restarted, is void.
        let pending = self.handshake.pending.take();
        self.retired
            .extend(pending.map(|pending| pending.local_index));
        if self.remote_incarnation == Some(incarnation) {
            self.events.push_back(Event::KeyChanged { peer: self.id });
            self.confirm_new_keys(now);
            return;
        }
        // Packet numbers begin again: no key of before may seal another packet.
        self.retired
            .extend(self.keys.retain_incarnation(incarnation));
        self.remote_incarnation = Some(incarnation);
        self.closed = false;
        self.receiver.on_peer_restarted();
        self.unknown_locally = UnknownLocally::default();
        self.unknown_at_peer = UnknownAtPeer::default();
        self.control.clear();
        self.restart_streams();
        self.paths.on_peer_restarted(now);
        let tenants = self.scheduler.tenants_mut();
        for path in self.paths.iter() {
            tenants.restart(now, path.id(), path.mtu(), true);
        }
        self.choose_paths(MoveReason::PathDown);
        let apps = &self.apps;
        self.scheduler
            .queues_mut()
            .restart(credit, |app| apps.get(&app).and_then(|entry| entry.active));
        self.check_up(now);
    }

    /// Sends with the new keys, so that the peer may use them too.
    fn confirm_new_keys(&mut self, now: Instant) {
        if std::mem::replace(&mut self.closed, false) {
            for path in self.paths.iter_mut() {
                path.restart_validation(now);
            }
        }
        if let Some(path) = self.paths.iter_mut().find(|path| path.is_up()) {
            path.request_ping();
        }
    }

    /// Reports to the driver when the session as a whole comes up or goes down.
    fn check_up(&mut self, now: Instant) {
        let up = self.is_up();
        self.unreachable_since = match up {
            true => None,
            false => self.unreachable_since.or(Some(now)),
        };
        if up != self.was_up {
            self.was_up = up;
            self.events.push_back(if up {
                Event::PeerUp { peer: self.id }
            } else {
                Event::PeerDown {
                    peer: self.id,
                    closed_by_peer: false,
                }
            });
        }
    }

    fn push_done(
        &mut self,
        now: Instant,
        id: u64,
        message: &send_queues::OutMessage,
        (outcome, arrived_after): (MessageOutcome, Option<Duration>),
    ) {
        let after = now.saturating_duration_since(message.made);
        if let Some(app) = self.apps.get_mut(&message.app) {
            match outcome {
                MessageOutcome::Delivered => {
                    app.stats.delivered_messages += 1;
                    let late = app.config.latency_target.is_some_and(|latency_target| {
                        arrived_after.unwrap_or(after) > latency_target
                    });
                    app.stats.late_messages += u64::from(late);
                }
                MessageOutcome::Expired => app.stats.expired_messages += 1,
                MessageOutcome::Refused(_) => app.stats.refused_messages += 1,
                MessageOutcome::PeerRemoved => {}
            }
        }
        self.events.push_back(Event::MessageDone {
            peer: self.id,
            app: message.app,
            id: MessageId(id),
            len: message.body.len(),
            outcome,
            after,
            arrived_after,
        });
        self.forget_if_done(message.app);
    }

    fn take_path_down(&mut self, now: Instant, id: PathId, reason: PathDownReason) {
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        let abandoned = path.on_down();
        self.paths.on_copies_dropped(&abandoned.copies);
        self.events.push_back(Event::PathDown {
            peer: self.id,
            path: id,
            reason,
        });
        self.on_path_state_changed(now, MoveReason::PathDown);
        self.move_packets(now, id);
        self.on_lost(now, id, abandoned.lost);
    }

    /// Checks what must hold between calls, in every component. Costs a visit of all state.
    ///
    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
        self.paths.check_invariants();
        self.receiver.check_invariants();
        self.scheduler.check_invariants();
        self.streams.check_invariants();
        for (id, app) in &self.apps {
            assert_eq!(*id, app.config.id, "applications are kept by their id");
            let active = app.active.map(|path| self.paths.get(path));
            assert!(
                active.is_none_or(|path| path.is_some_and(Path::is_up)),
                "an application is on a path that is up"
            );
        }
        for (id, tenant, bytes) in self.scheduler.tenants().in_flight() {
            // Where paths are not shared, windows are not kept.
            let path = self.paths.get(id);
            let in_flight = path.map_or(0, |path| path.unresolved_bytes_of(tenant));
            assert!(
                bytes <= in_flight || !self.scheduler.tenants().is_shared(),
                "{tenant:?} on {id:?}: the window counts {bytes} bytes, and {in_flight} are in flight"
            );
        }
        assert!(
            self.unreachable_since.is_none() || !self.paths.any_up() || !self.is_up(),
            "a session that is up is reachable"
        );
    }
}
