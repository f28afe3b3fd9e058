//! One peer: its keys, its paths, its applications, and what is in flight in both directions.
//!
//! A [`Session`] is a coordinator. Its components own their state and are driven by `on_*` and
//! `poll_*` calls: [`path_manager`] (paths: validation, [`recovery`], MTU, RTT and other estimates,
//! pacing, the sending side of [`aggregation`]), [`receiver`] (replay windows, acknowledgements,
//! reassembly, delivery), [`scheduler`] (what waits, and which of it leaves next), [`stream`],
//! [`applications`] with [`path_selection`], [`control_frames`] and [`unknown_tenants`]. The session
//! only joins them: `driver` takes what the driver sends, `receive` carries received frames to the
//! components and `retransmit` lost ones, `transmit` puts packets together from what they have to
//! send, `timers` asks them what is due, `snapshot` what they have counted.
//!
//! A session lives as long as its peer is configured: keys change, paths come and go and the peer
//! may restart, but what waits to be sent stays.

mod aggregation;
mod api;
mod app_mismatch;
mod applications;
mod clock;
mod common_unit;
mod control_frames;
mod cost;
mod delay_samples;
mod displaced_packets;
mod duplicate_keys;
mod estimates;
mod flow_order;
mod flow_paths;
mod fragments;
mod handle_packets;
mod incarnations;
mod keys;
mod mtu;
mod packet_parts;
mod path;
mod path_changes;
mod path_estimates;
mod path_manager;
mod path_selection;
mod prefix_mismatches;
mod reassembly;
mod receive_memory;
mod received_packets;
mod receiver;
mod recovery;
mod resequencer;
mod retransmit;
mod rtt;
mod scheduler;
mod send_queues;
mod sent_frames;
mod snapshot;
mod spreading;
mod stream;
mod stream_buffer;
mod tenant;
mod timers;
mod train;
mod transmit;
mod unknown_tenants;
mod validation;

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    time::Duration,
};

use keiro_model::aggregation::{AGGREGATE_HEAD, PARITY_HEAD};
use keiro_stats::TenantPeerStats;
use keiro_units::{Bandwidth, Instant, Probability};

pub(crate) use self::{
    aggregation::receiver::ReceiveOverflows,
    displaced_packets::{SocketDrops, UnauthenticatedDrops},
    duplicate_keys::HandshakeDecision,
    keys::Epoch,
    receiver::Arrived,
};
use self::{
    applications::{Applications, MessageResult},
    control_frames::ControlFrames,
    delay_samples::DelaySamples,
    duplicate_keys::Refusals,
    flow_paths::FlowPaths,
    incarnations::Incarnations,
    keys::KeyRing,
    path_manager::PathManager,
    path_selection::PathSelection,
    prefix_mismatches::PrefixMismatches,
    receive_memory::{MemoryUse, ReceiveMemory, SpareMemory},
    receiver::Receiver,
    scheduler::{SendLimits, SendScheduler},
    send_queues::{CONTENT_HEAD_MAX, OutMessage},
    stream::{StreamContext, StreamEvent, Streams},
    unknown_tenants::UnknownTenants,
};
use crate::{
    config::{
        AggregationConfig, AppConfig, EndpointConfig, PathConfig, PeerConfig, SchedulerKind,
        TimingConfig,
    },
    datagram::{DatagramMeta, IPV6_OVERHEAD},
    event::{Event, MessageOutcome, MoveReason, PathDownReason, RefusalReason, UnknownCause},
    handshake::{CookieJar, Initiation, MacKeys, PresharedKey, PublicKey},
    id::{AppId, MessageId, PathId, PeerId, SocketId, TenantId},
    snapshot::DropCounters,
    tenant::{PrefixMismatch, TenantConfig, TenantError, TenantSnapshot},
    trace::Tracer,
    wire::{DATA_HEADER_LEN, TAG_LEN, VARINT_MAX},
};

/// A handshake that we began and that is not answered yet.
pub(crate) struct PendingHandshake {
    pub(crate) initiation: Initiation,
    pub(crate) local_index: u32,
    pub(crate) offer: HandshakeOffer,
}

/// What we named in a handshake.
#[derive(Clone, Copy)]
pub(crate) struct HandshakeOffer {
    /// Our incarnation.
    pub(crate) incarnation: u64,
    /// Credit for messages, which is the peer's first one if it is a new incarnation.
    pub(crate) credit: u64,
}

/// When and how we last tried to agree on keys.
pub(crate) struct HandshakeState {
    pub(crate) pending: Option<PendingHandshake>,
    /// When the next attempt is due; `None`: keys are fresh.
    pub(crate) next_at: Option<Instant>,
    pub(crate) attempts: u32,
    pub(crate) cookie: CookieJar,
    /// MACs of packets to this peer.
    pub(crate) mac_keys: MacKeys,
}

/// What the driver has configured for all peers.
struct SessionSettings {
    timing: TimingConfig,
    /// Share of each path's rate that trains may take.
    probe_share: Probability,
    aggregation: AggregationConfig,
}

/// Whether the peer can be reached.
struct Reachability {
    /// As it was last reported to the driver.
    was_up: bool,
    /// Since when no path has been up; `None`: one is.
    unreachable_since: Option<Instant>,
    /// The peer has closed the session: nothing is sent until it is back.
    is_closed: bool,
}

/// An epoch that both sides are known to have.
#[derive(Clone, Copy)]
pub(crate) struct ConfirmedEpoch {
    /// The peer's incarnation.
    pub(crate) incarnation: u64,
    /// What we named in its handshake.
    pub(crate) ours: HandshakeOffer,
    /// What the peer grants from its beginning, if it is a new incarnation.
    pub(crate) credit: u64,
}

/// How a message of ours has ended.
#[derive(Clone, Copy)]
struct MessageEnd {
    outcome: MessageOutcome,
    /// From when it was made until the peer had it whole; `None`: not known.
    arrived_after: Option<Duration>,
}

impl MessageEnd {
    /// The peer has not reported it.
    fn here(outcome: MessageOutcome) -> Self {
        Self {
            outcome,
            arrived_after: None,
        }
    }
}

/// The state that is shared with one peer.
pub(crate) struct Session {
    pub(crate) id: PeerId,
    pub(crate) incarnations: Incarnations,
    pub(crate) public_key: PublicKey,
    pub(crate) preshared_key: PresharedKey,
    pub(crate) answers_only: bool,
    pub(crate) handshake: HandshakeState,
    pub(crate) keys: KeyRing,
    settings: SessionSettings,
    refusals: Refusals,
    paths: PathManager,
    memory: ReceiveMemory,
    receiver: Receiver,
    apps: Applications,
    path_selection: PathSelection,
    flow_paths: FlowPaths,
    scheduler: SendScheduler,
    streams: Streams,
    control: ControlFrames,
    pub(crate) delay_samples: DelaySamples,
    pub(crate) events: VecDeque<Event>,
    pub(crate) tracer: Tracer,
    pub(crate) drops: DropCounters,
    unknown_tenants: UnknownTenants,
    /// Of what was received since it was last asked for.
    received_cost: u64,
    prefix_mismatches: PrefixMismatches,
    /// See `common_unit`.
    unit_to_report: Option<Bandwidth>,
    /// Paths that the peer has at a socket, where it has more than we have, as last reported.
    wanted_paths: BTreeMap<SocketId, usize>,
    /// Indices of ours whose keys are gone, for the endpoint to forget.
    pub(crate) retired: Vec<u32>,
    /// The last batch was paced, and so took a turn among paths and among peers.
    pub(crate) took_turn: bool,
    reachability: Reachability,
}

/// Bytes of an aggregate with one datagram or stream beside its data and the headers of IP and UDP:
/// header and tag of the packet, the frame of the aggregate, the frame of the data.
const AGGREGATE_OVERHEAD: usize = DATA_HEADER_LEN + TAG_LEN + 12 + CONTENT_HEAD_MAX;
/// Bytes that are left free for the parity of the aggregate.
const PARITY_OVERHEAD: usize = aggregation::PARITY_RESERVE + 1;
// `config` refuses aggregates too small to carry data or to open a stream by these constants.
const _: () = assert!(
    AGGREGATE_HEAD.get() as usize + CONTENT_HEAD_MAX
        == IPV6_OVERHEAD as usize + AGGREGATE_OVERHEAD + crate::wire::Frame::STREAM_OPEN_LEN_MAX
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
        let memory = ReceiveMemory::new(peer.reassembly_bytes_max.get().min(VARINT_MAX / 2));
        let mut session = Self {
            id,
            incarnations: Incarnations::new(incarnation),
            public_key: peer.public_key,
            preshared_key: peer.preshared_key,
            answers_only: peer.answers_only,
            handshake: HandshakeState {
                pending: None,
                next_at: Some(now),
                attempts: 0,
                cookie: CookieJar::default(),
                mac_keys: MacKeys::new(&peer.public_key),
            },
            keys: KeyRing::default(),
            settings: SessionSettings {
                timing: endpoint.timing,
                probe_share: endpoint.probe_share,
                aggregation: endpoint.aggregation.clone(),
            },
            refusals: Refusals::default(),
            paths: PathManager::default(),
            memory,
            receiver: Receiver::new(memory.messages_initial()),
            apps: Applications::default(),
            path_selection: PathSelection::default(),
            flow_paths: FlowPaths::default(),
            scheduler: SendScheduler::new(
                endpoint.scheduler,
                SendLimits {
                    message_bytes_max: peer.send_queue_bytes_max.get(),
                    tenants_max: endpoint.tenants_max,
                    packet_bytes_max: endpoint.tenant_bytes_max.get(),
                },
            ),
            streams: Streams::default(),
            control: ControlFrames::default(),
            delay_samples: DelaySamples::default(),
            events: VecDeque::new(),
            tracer: Tracer::default(),
            drops: DropCounters::default(),
            unknown_tenants: UnknownTenants::default(),
            received_cost: 0,
            prefix_mismatches: PrefixMismatches::default(),
            unit_to_report: None,
            wanted_paths: BTreeMap::new(),
            retired: Vec::new(),
            took_turn: false,
            reachability: Reachability {
                was_up: false,
                unreachable_since: Some(now),
                is_closed: false,
            },
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
            let (aggregation, share) = (&self.settings.aggregation, self.settings.probe_share);
            let dropped = self.paths.configure(now, config, aggregation, share);
            if let Some(dropped) = dropped {
                self.on_in_flight_dropped(now, config.id, dropped);
            }
        }
        self.wanted_paths.clear();
        self.choose_paths(MoveReason::Assigned);
        self.check_up(now);
    }

    /// The socket has a local address again, or another one: its paths have to answer from there.
    pub(crate) fn on_socket_bound(&mut self, now: Instant, socket: SocketId) {
        for id in self.paths.ids_of_socket(socket) {
            let Some(path) = self.paths.get_mut(id) else {
                continue;
            };
            let dropped = path.on_bound(now);
            self.on_path_state_changed(now, MoveReason::PathDown);
            self.move_packets(now, id);
            self.on_in_flight_dropped(now, id, dropped);
            self.request_handshake_from_new_address(now);
        }
    }

    /// What leaves by the socket takes another route: its paths may answer now.
    pub(crate) fn on_route_added(&mut self, now: Instant, socket: SocketId) {
        for id in self.paths.ids_of_socket(socket) {
            let path = self.paths.get_mut(id);
            if let Some(path) = path.filter(|path| !path.is_up() && !path.is_unbound()) {
                path.restart_validation(now);
                self.request_handshake_from_new_address(now);
            }
        }
    }

    /// The socket has no local address any more.
    pub(crate) fn on_socket_unbound(&mut self, now: Instant, socket: SocketId) {
        for id in self.paths.ids_of_socket(socket) {
            let path = self.paths.get_mut(id);
            if let Some(path) = path.filter(|path| !path.is_unbound()) {
                path.on_unbound(now);
                self.take_path_down(now, id, PathDownReason::NoLocalAddress);
            }
        }
    }

    pub(crate) fn set_app(&mut self, config: AppConfig) {
        let (id, is_spread) = (config.id, config.is_spread);
        self.apps.configure(config);
        self.assign_tenant(id);
        let path = self.apps.active_path(id);
        self.scheduler.set_spread(id, is_spread, path);
        self.choose_path(id, MoveReason::Assigned);
    }

    pub(crate) fn remove_app(&mut self, id: AppId) {
        self.apps.on_removed(id);
        self.forget_if_done(id);
    }

    /// Forgets a removed application of which nothing is left.
    fn forget_if_done(&mut self, id: AppId) {
        if self.apps.is_removed(id) && !self.scheduler.queues().has_app(id) {
            self.apps.forget(id);
            self.assign_tenant(id);
            self.scheduler.set_spread(id, false, None);
        }
    }

    pub(crate) fn set_tenant(
        &mut self,
        now: Instant,
        config: TenantConfig,
    ) -> Result<(), TenantError> {
        self.scheduler.set_tenant(now, config)?;
        self.unknown_tenants.on_configured(config.id);
        self.assign_tenant_apps(config.id);
        Ok(())
    }

    pub(crate) fn remove_tenant(&mut self, id: TenantId) {
        self.scheduler.remove_tenant(id);
        self.receiver.forget_tenant(id);
        self.unknown_tenants.on_removed(id);
        self.prefix_mismatches.on_removed(id);
        self.assign_tenant_apps(id);
    }

    /// Packets of the peer were dropped here because of an address.
    pub(crate) fn report_prefix_mismatch(&mut self, mismatch: PrefixMismatch) {
        if self.scheduler.tenants().knows(mismatch.tenant) {
            self.prefix_mismatches.push(mismatch);
        }
    }

    /// Assigns the applications of a tenant, which has been added or removed.
    fn assign_tenant_apps(&mut self, id: TenantId) {
        for app in self.apps.of_tenant(id) {
            self.assign_tenant(app);
        }
    }

    /// An application's items are its tenant's, or tenant 0's where that is not configured.
    fn assign_tenant(&mut self, app: AppId) {
        self.scheduler.assign_tenant(app, self.apps.tenant_of(app));
    }

    pub(crate) fn tenant_snapshots(
        &self,
        now: Instant,
        after: Option<TenantId>,
        max: usize,
    ) -> Vec<TenantSnapshot> {
        let mut tenants = self.scheduler.tenants().snapshots(now, after, max);
        for tenant in &mut tenants {
            let counts = self.receiver.order_counts(tenant.id);
            tenant.stats = TenantPeerStats {
                held_packets: counts.held_packets,
                hold_time: counts.hold_time,
                longest_hold: counts.longest_hold,
                lost_gaps: counts.lost_gaps,
                expired_gaps: counts.expired_gaps,
                displaced_gaps: counts.displaced_gaps,
                late_packets: counts.late_packets,
                ..tenant.stats
            };
        }
        tenants
    }

    pub(crate) fn set_scheduler(&mut self, scheduler: SchedulerKind) {
        self.scheduler.set_kind(scheduler);
    }

    pub(crate) fn set_probe_share(&mut self, share: Probability) {
        self.settings.probe_share = share;
        self.paths.on_trains_enabled(share);
    }

    pub(crate) fn set_aggregation(&mut self, config: &AggregationConfig) {
        self.settings.aggregation = config.clone();
        let mut changes = Vec::new();
        for path in self.paths.iter_mut() {
            changes.push((path.id(), path.reconfigure_aggregation(config)));
        }
        for (path, change) in changes {
            self.report_aggregation_change(path, change);
        }
    }

    /// The drop counters of a socket were read.
    pub(crate) fn on_socket_drops(&mut self, socket: SocketId, drops: SocketDrops) {
        self.receiver.on_socket_drops(socket, drops);
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
        self.scheduler.set_coalescing_max(path.id(), limit as u64);
    }

    /// A packet of `len` bytes left `socket` to `remote` without asking a pacer.
    pub(crate) fn on_unpaced_sent(
        &mut self,
        now: Instant,
        socket: SocketId,
        remote: SocketAddr,
        len: usize,
    ) {
        if let Some(path) = self.paths.between_mut(socket, remote) {
            path.on_unpaced_sent(now, len);
        }
    }

    /// A handshake packet of the peer arrived, whose sender is proven.
    pub(crate) fn on_handshake_received(&mut self, now: Instant, meta: DatagramMeta, len: usize) {
        if let Some(path) = self.paths.between_mut(meta.socket, meta.remote) {
            path.on_handshake_received(now, meta.remote, len);
        }
    }

    /// The streams and the components that operations on them use.
    fn streams(&mut self) -> (&mut Streams, StreamContext<'_>) {
        let spare_memory = self.spare_memory();
        let cx = StreamContext {
            spare_memory,
            scheduler: &mut self.scheduler,
            apps: &mut self.apps,
            paths: &self.paths,
        };
        (&mut self.streams, cx)
    }

    /// What the peer may still make us keep.
    fn spare_memory(&self) -> SpareMemory {
        let used = self.memory_use();
        self.memory.spare(used, self.streams.are_short())
    }

    /// What the peer may make us keep of what it sends.
    fn memory_use(&self) -> MemoryUse {
        MemoryUse {
            messages: self.receiver.memory_of_messages(),
            streams: self.streams.memory(),
            others: self.receiver.memory_beside() + self.streams.memory_beside(),
        }
    }

    /// Does what follows from operations on streams.
    fn on_stream_events(&mut self) {
        while let Some(event) = self.streams.poll_event() {
            match event {
                StreamEvent::Signal {
                    app,
                    stream,
                    signal,
                } => self.receiver.signal_stream(app, stream, signal),
                StreamEvent::RemovedAppIdle(app) => self.forget_if_done(app),
            }
        }
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
        for (id, message) in self.scheduler.take_all_messages() {
            let outcome = match message.has_left_whole() {
                true => MessageOutcome::Unknown(UnknownCause::PeerRemoved),
                false => MessageOutcome::Refused(RefusalReason::NotSent),
            };
            self.on_message_ended(now, id, &message, MessageEnd::here(outcome));
        }
    }

    /// Ends the messages that the peer may have delivered and does not know any more. They are not sent
    /// again: each would be delivered twice if it was delivered before.
    fn end_unknown_messages(&mut self, now: Instant) {
        for (id, message) in self.scheduler.take_fully_sent_messages() {
            let outcome = MessageOutcome::Unknown(UnknownCause::PeerRestarted);
            self.on_message_ended(now, id, &message, MessageEnd::here(outcome));
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.keys.current().is_some() && self.paths.any_up()
    }

    /// Sockets and addresses at which an initiation may reach the peer.
    pub(crate) fn remotes(&self) -> Vec<(SocketId, SocketAddr)> {
        self.paths.remotes()
    }

    /// Keys of a new epoch may be used: the peer has them or has just used them.
    pub(crate) fn on_epoch_confirmed(&mut self, now: Instant, confirmed: ConfirmedEpoch) {
        let ConfirmedEpoch {
            incarnation,
            ours,
            credit,
        } = confirmed;
        self.handshake.attempts = 0;
        self.handshake.next_at = None;
        // A response that arrives now, or is replayed after the peer has restarted, is void.
        let pending = self.handshake.pending.take();
        self.retired
            .extend(pending.map(|pending| pending.local_index));
        let HandshakeOffer {
            incarnation: ours,
            credit: granted,
        } = ours;
        if self.incarnations.is_served(incarnation, ours) {
            self.events.push_back(Event::KeyChanged { peer: self.id });
            self.confirm_new_keys(now);
            return;
        }
        // Packet numbers begin again: no key of before may seal another packet.
        self.retired
            .extend(self.keys.retain_incarnations(incarnation, ours));
        let first_number = self.incarnations.on_served(incarnation, ours);
        self.reachability.is_closed = false;
        self.receiver.on_peer_restarted(now, granted);
        self.deliver_held_packets();
        self.unknown_tenants = UnknownTenants::default();
        self.control.on_peer_restarted();
        let (streams, mut cx) = self.streams();
        streams.on_peer_restarted(&mut cx);
        self.on_stream_events();
        let share = self.settings.probe_share;
        self.paths.on_peer_restarted(now, first_number, share);
        for path in self.paths.iter() {
            self.scheduler
                .restart_controllers(now, path.id_and_mtu(), true);
        }
        self.choose_paths(MoveReason::PathDown);
        self.end_unknown_messages(now);
        let apps = &self.apps;
        self.scheduler
            .on_peer_restarted(credit, |app| apps.active_path(app));
        self.check_up(now);
    }

    /// Sends with the new keys, so that the peer may use them too.
    fn confirm_new_keys(&mut self, now: Instant) {
        if std::mem::replace(&mut self.reachability.is_closed, false) {
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
        let reachability = &mut self.reachability;
        reachability.unreachable_since = match up {
            true => None,
            false => reachability.unreachable_since.or(Some(now)),
        };
        if up != reachability.was_up {
            reachability.was_up = up;
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

    /// A message of ours has ended.
    fn on_message_ended(&mut self, now: Instant, id: u64, message: &OutMessage, end: MessageEnd) {
        let MessageEnd {
            outcome,
            arrived_after,
        } = end;
        let after = now.saturating_duration_since(message.made);
        let result = MessageResult {
            outcome,
            after,
            arrived_after,
        };
        self.apps.on_message_done(message.app, result);
        let path = self.apps.active_path(message.app);
        self.scheduler.on_message_ended(message.app, path);
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

    /// Checks what must hold between calls, in every component. Costs a visit of all state.
    ///
    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
        self.keys.check_invariants();
        self.incarnations.check_invariants();
        self.paths.check_invariants();
        self.receiver.check_invariants();
        self.memory.check_invariants(self.memory_use());
        self.scheduler.check_invariants();
        self.streams.check_invariants(self.scheduler.queues());
        self.apps.check_invariants(&self.paths);
        self.prefix_mismatches.check_invariants();
        self.delay_samples.check_invariants();
        self.refusals.check_invariants();
        self.flow_paths.check_invariants();
        for (id, tenant, bytes) in self.scheduler.tenants().in_flight() {
            let path = self.paths.get(id);
            let in_flight = path.map_or(0, |path| path.unresolved_bytes_of(tenant));
            assert!(
                bytes <= in_flight,
                "{tenant:?} on {id:?}: the window counts {bytes} bytes, and {in_flight} are in flight"
            );
        }
        assert!(
            self.reachability.unreachable_since.is_none() || !self.paths.any_up() || !self.is_up(),
            "a session that is up is reachable"
        );
    }
}
