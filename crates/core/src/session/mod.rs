//! One peer: its keys, its paths, its applications, and what is on the way in both directions.
//!
//! `receive` turns packets into state, `transmit` turns state into packets, `timers` knows what is
//! due. A session lives as long as its peer is configured: keys change, paths come and go and the
//! peer may restart, but what waits to be sent stays.

mod aggregation;
mod clock;
mod control_frames;
mod copies;
mod estimates;
mod keys;
mod mtu;
mod pacer;
mod packetize;
mod parity;
mod path;
mod path_selection;
mod reassembly;
mod receive;
mod received;
mod recovery;
mod retransmit;
mod rtt;
mod send_queues;
mod snapshot;
mod stream;
mod tenant;
mod tenant_packets;
mod timers;
mod train;
mod transmit;
mod unknown_tenants;

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use keiro_model::{
    aggregation::{AGGREGATE_HEAD, PARITY_HEAD},
    workload::WorkloadMeter,
};
use keiro_units::{Instant, Probability};

use self::{
    aggregation::receiver::AggregateReceiver,
    clock::PeerClock,
    keys::KeyRing,
    path::{Path, UsedNumbers},
    path_selection::StartupWait,
    reassembly::Reassembly,
    received::Received,
    recovery::SentFrame,
    send_queues::SendQueues,
    stream::Streams,
    tenant::Tenants,
    train::TrainReceiver,
    unknown_tenants::{UnknownAtPeer, UnknownLocally},
};
pub(crate) use self::{keys::Epoch, pacer::Pacer, path::ip_overhead};
use crate::{
    config::{
        AggregationConfig, AppConfig, DeliveryClass, EndpointConfig, PathConfig, PeerConfig,
        SchedulerKind, TimingConfig,
    },
    event::{
        Event, MessageOutcome, MoveReason, PathDownReason, RefusalReason, SendError, StreamSignal,
    },
    handshake::{CookieJar, Initiation, MacKeys, PublicKey},
    id::{AppId, FlowId, MessageId, PathId, PeerId, SocketId, StreamId, TenantId},
    snapshot::DropCounters,
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

/// What arrived for the driver. Datagrams lie in `arena`.
pub(crate) enum Arrived {
    Message {
        app: AppId,
        /// Ours, for `finish_message`.
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

struct App {
    config: AppConfig,
    /// No longer configured; kept until what it has sent has ended.
    removed: bool,
    active: Option<PathId>,
    sent: u64,
    sent_bytes: u64,
    workload: WorkloadMeter,
    delivered: u64,
    late: u64,
    expired: u64,
    refused: u64,
    dropped: u64,
    received: u64,
    received_bytes: u64,
}

impl App {
    /// It is configured, in this class.
    fn takes(&self, class: DeliveryClass) -> bool {
        !self.removed && self.config.class == class
    }
}

/// Receive state of one path of the peer, and where its packets arrive here.
#[derive(Default)]
struct RemotePath {
    received: Received,
    trains: TrainReceiver,
    aggregates: AggregateReceiver,
    socket: Option<SocketId>,
}

/// One peer.
pub(crate) struct Session {
    pub(crate) id: PeerId,
    /// Tells the peer when what it knows of us is void: we have restarted, or forgot it meanwhile.
    pub(crate) incarnation: u64,
    pub(crate) public_key: PublicKey,
    pub(crate) preshared_key: [u8; 32],
    pub(crate) handshake: HandshakeState,
    pub(crate) keys: KeyRing,
    timing: TimingConfig,
    /// Of each path's rate, for trains.
    probe_share: Probability,
    remote_incarnation: Option<u64>,
    paths: BTreeMap<PathId, Path>,
    aggregation: AggregationConfig,
    /// What every socket dropped in receiving because it was full, and the system beside it.
    overflows: BTreeMap<SocketId, (u64, u64)>,
    /// Of paths that were removed.
    used_numbers: BTreeMap<PathId, UsedNumbers>,
    remote_paths: BTreeMap<u8, RemotePath>,
    clock: PeerClock,
    apps: BTreeMap<AppId, App>,
    queues: SendQueues,
    tenants: Tenants,
    reassembly: Reassembly,
    streams: Streams,
    /// Frames that must arrive, waiting for any path.
    control: VecDeque<SentFrame>,
    /// The credit is to be told; only the newest matters.
    credit_wanted: bool,
    arrived: VecDeque<Arrived>,
    arena: Vec<u8>,
    pub(crate) events: VecDeque<Event>,
    pub(crate) drops: DropCounters,
    unknown_locally: UnknownLocally,
    unknown_at_peer: UnknownAtPeer,
    /// Indices of ours whose keys are gone; the endpoint forgets them.
    pub(crate) retired: Vec<u32>,
    /// The path that was asked last: paths take turns.
    last_polled: Option<PathId>,
    /// The last batch was one that had to ask, and so a turn among paths and among peers.
    pub(crate) took_turn: bool,
    was_up: bool,
    /// Since when no path is up; `None`: one is.
    unreachable_since: Option<Instant>,
    /// The first path has come up, and others may follow. `None`: it is known which did.
    settling: Option<StartupWait>,
    /// The peer said that it stops: nothing is sent until it is back.
    closed: bool,
}

/// What an aggregate of one datagram or stream carries beside its data and the headers of IP and
/// UDP: header and tag of the packet, the aggregate's frame, the data's own.
const AGGREGATE_OVERHEAD: usize = DATA_HEADER_LEN + TAG_LEN + 12 + CONTENT_HEAD_MAX;
/// The head of what an aggregate carries.
const CONTENT_HEAD_MAX: usize = 20;
/// What room is left beside it for the parity.
const PARITY_OVERHEAD: usize = parity::RESERVE + 1;
// A configuration that leaves no room for data, or to open a stream, is refused by these.
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
        // A peer may always send the longest message, or it would wait for ever.
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
            paths: BTreeMap::new(),
            remote_paths: BTreeMap::new(),
            clock: PeerClock::default(),
            apps: BTreeMap::new(),
            queues: SendQueues::new(endpoint.scheduler, peer.send_queue_bytes_max.get()),
            tenants: Tenants::new(endpoint.tenants_max, endpoint.tenant_bytes_max.get()),
            reassembly: Reassembly::new(window),
            streams: Streams::default(),
            control: VecDeque::new(),
            credit_wanted: false,
            aggregation: endpoint.aggregation.clone(),
            overflows: BTreeMap::new(),
            used_numbers: BTreeMap::new(),
            arrived: VecDeque::new(),
            arena: Vec::new(),
            events: VecDeque::new(),
            drops: DropCounters::default(),
            unknown_locally: UnknownLocally::default(),
            unknown_at_peer: UnknownAtPeer::default(),
            retired: Vec::new(),
            last_polled: None,
            took_turn: false,
            was_up: false,
            unreachable_since: Some(now),
            settling: None,
            closed: false,
        };
        session.set_paths(now, &peer.paths);
        for app in peer.apps {
            session.set_app(app);
        }
        session
    }

    pub(crate) fn set_paths(&mut self, now: Instant, configs: &[PathConfig]) {
        let removed: Vec<PathId> = self
            .paths
            .values()
            .filter(|path| {
                !configs
                    .iter()
                    .any(|config| config.id == path.id && config.socket == path.socket)
            })
            .map(|path| path.id)
            .collect();
        for id in removed {
            self.remove_path(now, id);
        }
        for config in configs {
            match self.paths.get_mut(&config.id) {
                Some(path) => {
                    path.reconfigure(now, config);
                    if !path.is_up() {
                        let lost = path.sent.lose_all();
                        let copies = std::mem::take(&mut path.copies);
                        self.drop_copies(copies);
                        self.on_lost(now, config.id, lost);
                    }
                }
                None => {
                    let first = self.used_numbers.remove(&config.id).unwrap_or_default();
                    let path = Path::new(config, &self.aggregation, first);
                    self.paths.insert(config.id, path);
                }
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
                    sent: 0,
                    sent_bytes: 0,
                    workload: WorkloadMeter::default(),
                    delivered: 0,
                    late: 0,
                    expired: 0,
                    refused: 0,
                    dropped: 0,
                    received: 0,
                    received_bytes: 0,
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
        if removed && !self.queues.has_app(id) {
            self.apps.remove(&id);
            self.assign_tenant(id);
        }
    }

    pub(crate) fn set_scheduler(&mut self, scheduler: SchedulerKind) {
        self.queues.set_scheduler(scheduler);
    }

    pub(crate) fn set_probe_share(&mut self, share: Probability) {
        self.probe_share = share;
        if share == Probability::ZERO {
            // Nothing would tell any more that it is otherwise.
            for path in self.paths.values_mut() {
                path.trains.forget();
                path.update_pacing_rate();
            }
        }
    }

    /// Gathers otherwise from now on.
    pub(crate) fn set_aggregation(&mut self, config: &AggregationConfig) {
        self.aggregation = config.clone();
        let reconfigured = |(id, path): (&PathId, &mut Path)| {
            let change = path.aggregator.reconfigure(config, path.pacer.rate());
            (*id, change)
        };
        let changes: Vec<_> = self.paths.iter_mut().map(reconfigured).collect();
        for (path, change) in changes {
            self.report_aggregation_change(path, change);
        }
    }

    /// What a socket dropped in receiving, and the system beside it, in all.
    pub(crate) fn set_overflows(&mut self, socket: SocketId, overflows: (u64, u64)) {
        self.overflows.insert(socket, overflows);
    }

    /// What was given out at `polled_at` may have left as late as `until`.
    pub(crate) fn on_late_departure(&mut self, polled_at: Instant, until: Instant) {
        for path in self.paths.values_mut() {
            path.sent.on_late_departure(polled_at, until);
        }
    }

    /// Tells of what changed in the gathering of a path.
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

    /// What is thin depends on how much an aggregate of the path holds now.
    fn update_coalescing_limit(&mut self, path: PathId) {
        let Some(path) = self.paths.get(&path) else {
            return;
        };
        let thin = path.aggregator.size_max().map_or(0, |size| {
            let head = usize::from(path.ip_overhead()) + AGGREGATE_OVERHEAD;
            let head = match path.aggregator.protects() {
                true => head + PARITY_OVERHEAD,
                false => head,
            };
            (size as usize)
                .min(usize::from(path.mtu.current()))
                .saturating_sub(head)
        });
        self.queues.set_coalescing_max(path.id, thin as u64);
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
        if !self.queues.has_room(body.len()) {
            return Err((SendError::QueueFull, body));
        }
        entry.sent += 1;
        entry.sent_bytes += body.len() as u64;
        entry.workload.on_made(made, body.len());
        let limits = (entry.config.latency_target, entry.config.lifetime);
        let id = self
            .queues
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
        entry.sent += 1;
        entry.sent_bytes += data.len() as u64;
        entry.workload.on_made(now, data.len());
        let latency_target = entry.config.latency_target;
        let path = entry.active;
        let datagram = (app, flow, reply, data);
        let idle = self.is_coalescing_idle(path);
        for app in self
            .queues
            .push_datagram(now, datagram, latency_target, path)
        {
            if let Some(entry) = self.apps.get_mut(&app) {
                entry.dropped += 1;
            }
        }
        self.on_coalescing_began(now, path, idle);
        Ok(())
    }

    /// Nothing thin waits for a path.
    fn is_coalescing_idle(&self, path: Option<PathId>) -> bool {
        path.is_some_and(|path| !self.queues.gathers(path))
    }

    /// Something may have come to a path for which nothing thin waited if it was `idle`.
    fn on_coalescing_began(&mut self, now: Instant, path: Option<PathId>, idle: bool) {
        if idle
            && !self.is_coalescing_idle(path)
            && let Some(path) = path.and_then(|path| self.paths.get_mut(&path))
        {
            path.aggregator.on_first(now);
        }
    }

    /// A packet of `len` bytes left over the path of `socket` without asking its pacer.
    pub(crate) fn debit(&mut self, now: Instant, socket: SocketId, len: usize) {
        if let Some(path) = self.paths.values_mut().find(|path| path.socket == socket) {
            let ip_bytes = len as u64 + u64::from(path.ip_overhead());
            path.pacer.on_sent(now, ip_bytes);
        }
    }

    pub(crate) fn finish_message(&mut self, id: MessageId, refused: Option<RefusalReason>) {
        let Some((id, whole_at)) = self.reassembly.on_finished(id.0) else {
            return;
        };
        let status = refused.map_or(MessageStatus::Delivered, MessageStatus::Refused);
        self.control.push_back(SentFrame::MessageDone {
            id,
            status,
            whole_at: clock::stamp(whole_at),
        });
        self.credit_wanted |= self.reassembly.has_credit_to_grant();
    }

    pub(crate) fn pop_arrived(&mut self) -> Option<(Arrived, &[u8])> {
        if self.arrived.is_empty() {
            self.arena.clear();
            return None;
        }
        self.arrived
            .pop_front()
            .map(|arrived| (arrived, self.arena.as_slice()))
    }

    pub(crate) fn has_arrived(&self) -> bool {
        !self.arrived.is_empty()
    }

    pub(crate) fn active_path(&self, app: AppId) -> Option<PathId> {
        self.apps.get(&app)?.active
    }

    pub(crate) fn is_drained(&self) -> bool {
        let told = |path: &Path| !path.is_up() || !path.sent.has_outstanding_outcomes();
        self.queues.is_empty()
            && self.queues.stream_bytes == 0
            && self.tenants.is_idle()
            && self.control.is_empty()
            && self.streams.resets.is_empty()
            && self.paths.values().all(told)
    }

    /// First credit for the peer, told in the handshake.
    pub(crate) fn credit_for_handshake(&self) -> u64 {
        // A peer that knows this incarnation already goes on counting from before.
        self.reassembly.initial_credit()
    }

    /// Ends every message: the peer is removed.
    pub(crate) fn abandon(&mut self, now: Instant) {
        for (id, message) in self.queues.take_all() {
            self.push_done(now, id, &message, (MessageOutcome::PeerRemoved, None));
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.keys.current().is_some() && self.paths.values().any(Path::is_up)
    }

    /// Sockets and addresses at which an initiation may reach the peer.
    pub(crate) fn remotes(&self) -> Vec<(SocketId, std::net::SocketAddr)> {
        let remotes = self
            .paths
            .values()
            .filter_map(|path| Some((path.socket, path.remote?)));
        remotes.collect()
    }

    fn remove_path(&mut self, now: Instant, id: PathId) {
        let Some(mut path) = self.paths.remove(&id) else {
            return;
        };
        let lost = path.sent.lose_all();
        self.drop_copies(std::mem::take(&mut path.copies));
        let used = UsedNumbers {
            packets: path.sent.next_number(),
            aggregates: path.aggregator.next_number(),
        };
        self.used_numbers.insert(id, used);
        self.events.push_back(Event::PathDown {
            peer: self.id,
            path: id,
            reason: PathDownReason::Removed,
        });
        self.choose_paths(MoveReason::PathDown);
        self.move_packets(now, id);
        self.on_lost(now, id, lost);
        self.check_up(now);
    }

    /// Keys of a new epoch may be used: the peer has them or has just used them.
    pub(crate) fn on_epoch_confirmed(&mut self, now: Instant, incarnation: u64, credit: u64) {
        self.handshake.attempts = 0;
        self.handshake.next_at = None;
        // An answer that comes now, or is kept back until the peer has restarted, is void.
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
        self.remote_paths.clear();
        self.clock = PeerClock::default();
        self.unknown_locally = UnknownLocally::default();
        self.unknown_at_peer = UnknownAtPeer::default();
        self.control.clear();
        self.credit_wanted = false;
        self.used_numbers.clear();
        self.reassembly.restart();
        self.restart_streams();
        for path in self.paths.values_mut() {
            path.sent.restart();
            path.copies.clear();
            path.ecn_ce_acked = 0;
            path.restart_validation(now);
            self.tenants.restart(now, path.id, path.mtu.current(), true);
        }
        self.choose_paths(MoveReason::PathDown);
        let apps = &self.apps;
        self.queues
            .restart(credit, |app| apps.get(&app).and_then(|entry| entry.active));
        self.check_up(now);
    }

    /// Lets the peer see the new key in use, so that it may use it too.
    fn confirm_new_keys(&mut self, now: Instant) {
        if std::mem::replace(&mut self.closed, false) {
            for path in self.paths.values_mut() {
                path.restart_validation(now);
            }
        }
        if let Some(path) = self.paths.values_mut().find(|path| path.is_up()) {
            path.ping_wanted = true;
        }
    }

    /// Tells the driver when the session as a whole comes up or goes down.
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
                    app.delivered += 1;
                    let late = app.config.latency_target.is_some_and(|latency_target| {
                        arrived_after.unwrap_or(after) > latency_target
                    });
                    app.late += u64::from(late);
                }
                MessageOutcome::Expired => app.expired += 1,
                MessageOutcome::Refused(_) => app.refused += 1,
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
        let Some(path) = self.paths.get_mut(&id) else {
            return;
        };
        let lost = path.sent.lose_all();
        path.probe_credit = 0;
        path.aggregator.drop_group();
        let copies = std::mem::take(&mut path.copies);
        self.drop_copies(copies);
        self.events.push_back(Event::PathDown {
            peer: self.id,
            path: id,
            reason,
        });
        self.on_path_state_changed(now, MoveReason::PathDown);
        self.move_packets(now, id);
        self.on_lost(now, id, lost);
    }
}
