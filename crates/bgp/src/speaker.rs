//! The speaker: its neighbours, their connections, and the RIB.
//!
//! One turn of a driver: pass an [`Input`] to [`Speaker::handle`], carry out the actions of
//! [`Speaker::poll_action`], read [`Speaker::poll_event`] and [`Speaker::take_changes`], send what
//! [`Speaker::transmit`] writes, and wait for input or until [`Speaker::poll_timeout`]. Inputs are
//! plain values: replaying the inputs of a run with their times gives the same tables
//! ([`crate::record`]).
//!
//! This module handles sessions and retries, `driver` has what it exchanges with its driver, `collision` connection collisions (RFC 4271 §6.8),
//! `import` received routes, `export` advertised routes, `link` links that go down, and `reconfigure`
//! configuration changes while sessions are up.

mod adj_rib_in;
mod collision;
mod driver;
mod export;
mod import;
mod link;
mod reconfigure;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;
use keiro_units::Instant;

use crate::{
    address::{Destination, Family, RouteDistinguisher, RouteTarget},
    attributes::{Attributes, Interner},
    policy::Policy,
    rib::{DecisionStep, NeighbourId, Path, PeerAttributes, Rib, RouteChange, Source},
    rpki::Vrps,
    session::{Down, Negotiated, Output, Session, SessionConfig, State},
    srv6::{Label, Service},
};

pub use self::driver::{
    Action, Changes, ConnectionId, Direction, Event, Input, NeighbourConfig, NotAdvertised,
    SpeakerConfig, Status, VpnExport,
};
pub use crate::rib::NextHop;

/// The speaker; see the [module](self).
#[derive(Debug)]
pub struct Speaker {
    config: SpeakerConfig,
    neighbours: Vec<Neighbour>,
    rib: Rib,
    interner: Interner,
    exports: BTreeMap<RouteDistinguisher, VpnExport>,
    vrps: Arc<Vrps>,
    /// Distinguishers whose VPN routes are kept whatever the import policy is.
    watched: BTreeSet<RouteDistinguisher>,
    /// Changed best paths wait for the forwarding plane.
    holds_best_paths: bool,
    actions: VecDeque<Action>,
    events: VecDeque<Event>,
    changes: Changes,
}

#[derive(Debug)]
struct Neighbour {
    config: NeighbourConfig,
    external: bool,
    enabled: bool,
    sessions: [Session; 2],
    /// The local address of each connection.
    local: [Option<IpAddr>; 2],
    /// The connection of the established session.
    up: Option<Direction>,
    up_since: Option<Instant>,
    negotiated: Negotiated,
    /// When to try to connect again.
    retry_at: Option<Instant>,
    /// Failed attempts since the session was last stable.
    failures: u32,
    /// No session before this time.
    idle_hold_until: Option<Instant>,
    /// The link to the neighbour is down.
    link_down: bool,
    /// When stale routes are removed.
    stale_until: Option<Instant>,
    /// Families whose End-of-RIB has arrived in this session.
    announced: BTreeSet<Family>,
    /// Families of which the neighbour is announcing all routes again (RFC 7313).
    refreshing: BTreeSet<Family>,
    /// Families with nearly `routes_max` routes, which was reported in this session.
    near_max: BTreeSet<Family>,
    adj_rib_out: export::AdjRibOut,
    adj_rib_in: adj_rib_in::AdjRibIn,
    last_error: Option<String>,
    malformed_updates: u64,
    discarded_attributes: u64,
    updates: u64,
    times_up: u64,
    times_down: u64,
    last_down: Option<Instant>,
}

impl Speaker {
    /// Makes a speaker without neighbours and routes.
    pub fn new(config: SpeakerConfig) -> Self {
        Self {
            config,
            neighbours: Vec::new(),
            rib: Rib::default(),
            interner: Interner::default(),
            exports: BTreeMap::new(),
            vrps: Arc::default(),
            watched: BTreeSet::new(),
            holds_best_paths: false,
            actions: VecDeque::new(),
            events: VecDeque::new(),
            changes: Changes::default(),
        }
    }

    pub fn asn(&self) -> u32 {
        self.config.asn
    }

    /// Adds a neighbour; it is idle until [`Input::Start`].
    ///
    /// # Panics
    /// With more than 65,535 neighbours.
    pub fn add_neighbour(&mut self, config: NeighbourConfig) -> NeighbourId {
        let number = u16::try_from(self.neighbours.len()).expect("neighbours fit 16 bits");
        self.neighbours.push(Neighbour::new(&self.config, config));
        NeighbourId(number)
    }

    pub fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Start(id) => {
                self.neighbour_mut(id).enabled = true;
                self.neighbour_mut(id).retry_at = Some(now);
                self.handle_timeout(now);
            }
            Input::Stop(id) => self.stop(now, id),
            Input::IncomingConnection(id) => self.on_incoming_connection(now, id),
            Input::Connected(connection, local) => {
                self.neighbour_mut(connection.neighbour).local[connection.direction as usize] =
                    Some(local);
                self.with_session(now, connection, |session, out| match session.state() {
                    State::Connecting => session.connected(now, out),
                    // The speaker has given up this attempt in the meantime.
                    _ => out.push(Output::Close),
                });
            }
            Input::Disconnected(connection) => {
                self.with_session(now, connection, |session, out| {
                    session.disconnected(now, out);
                });
            }
            Input::Received(connection, octets) => {
                self.with_session(now, connection, |session, out| {
                    session.receive(now, &octets, out);
                });
            }
            Input::LinkDown(id) => self.on_link_down(now, id),
            Input::LinkUp(id) => self.on_link_up(now, id),
            Input::BfdDown(id) => self.on_bfd_down(now, id),
            Input::BfdUp(id) => self.on_bfd_up(now, id),
            Input::Timeout => self.handle_timeout(now),
            Input::Originate(prefix) => self.originate(prefix),
            Input::Retract(prefix) => self.retract(prefix),
            Input::Export(rd, export) => self.export(rd, export),
            Input::Unexport(rd) => self.unexport(rd),
            Input::Refresh(id, family) => {
                if let Some(direction) = self.neighbour_mut(id).up {
                    self.neighbour_mut(id).sessions[direction as usize]
                        .request_route_refresh(family);
                }
            }
            Input::Unreachable(list) => self.set_reachable(&list, false),
            Input::Reachable(list) => self.set_reachable(&list, true),
        }
    }

    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Takes the destinations whose routes have changed; [`rib`](Self::rib) has their paths.
    pub fn take_changes(&mut self) -> Changes {
        let mut changes = std::mem::take(&mut self.changes);
        changes.unused = self.rib.take_unused_next_hops();
        changes
    }

    /// When [`Input::Timeout`] is due; `None`: there is nothing to wait for but other input.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let of = |neighbour: &Neighbour| {
            let sessions = neighbour.sessions.iter().filter_map(Session::poll_timeout);
            let own = [neighbour.retry_at, neighbour.stale_until];
            sessions.chain(own.into_iter().flatten()).min()
        };
        self.neighbours.iter().filter_map(of).min()
    }

    pub fn rib(&self) -> &Rib {
        &self.rib
    }

    /// The best path of one neighbour to a destination.
    pub fn route_of(&self, id: NeighbourId, destination: &Destination) -> Option<&Path> {
        let peers = peer_attributes(&self.neighbours);
        self.rib
            .best_from(destination, Source::Neighbour(id), &peers)
    }

    /// The best of several paths to one destination; `None`: none is usable.
    pub fn best_among<'a>(&self, paths: &[&'a Path]) -> Option<&'a Path> {
        self.rib
            .select_best(paths, &peer_attributes(&self.neighbours))
    }

    /// Whether a route has this next hop, even if the decision process ignores the route.
    pub fn has_next_hop(&self, next_hop: NextHop) -> bool {
        self.rib.has_next_hop(next_hop)
    }

    /// The first step of the decision process at which `best` is better than `other`.
    pub fn deciding_step(&self, best: &Path, other: &Path) -> DecisionStep {
        DecisionStep::between(best, other, &peer_attributes(&self.neighbours))
    }

    /// The state of a neighbour.
    ///
    /// # Panics
    /// There is no such neighbour.
    pub fn status(&self, id: NeighbourId) -> Status {
        let neighbour = &self.neighbours[usize::from(id.0)];
        let farthest = neighbour.sessions.iter().map(Session::state);
        let count = |family: &Family| self.rib.count(Source::Neighbour(id), *family);
        let families = neighbour.config.families.iter();
        Status {
            state: farthest
                .max_by_key(|state| *state as u8)
                .unwrap_or(State::Idle),
            up_since: neighbour.up_since,
            negotiated: neighbour.negotiated.clone(),
            routes: families.map(|family| (*family, count(family))).collect(),
            stale: self.stale_routes(id),
            stale_until: neighbour.stale_until,
            advertised: neighbour.adj_rib_out.len(),
            not_advertised: neighbour.adj_rib_out.not_advertised_len(),
            last_error: neighbour.last_error.clone(),
            malformed_updates: neighbour.malformed_updates,
            discarded_attributes: neighbour.discarded_attributes,
            updates: neighbour.updates,
            times_up: neighbour.times_up,
            times_down: neighbour.times_down,
            last_down: neighbour.last_down,
        }
    }

    fn stale_routes(&self, id: NeighbourId) -> usize {
        let families = self.neighbours[usize::from(id.0)].config.families.iter();
        let source = Source::Neighbour(id);
        let counts = families.map(|family| self.rib.stale_count(source, *family));
        counts.sum()
    }

    /// The router that brought a path into this AS: its ORIGINATOR_ID, or else the neighbour's
    /// identifier; `None`: this speaker.
    pub fn originator(&self, path: &Path) -> Option<Ipv4Addr> {
        let Source::Neighbour(id) = path.source else {
            return None;
        };
        let neighbour = &self.neighbours[usize::from(id.0)];
        path.attributes
            .originator
            .or(neighbour.negotiated.router_id)
    }

    /// Why a destination that the neighbour should get is not advertised to it; `None`: it is, or
    /// should not be.
    ///
    /// # Panics
    /// There is no such neighbour.
    pub fn not_advertised(&self, id: NeighbourId, destination: &Destination) -> Option<&str> {
        let adj_rib_out = &self.neighbours[usize::from(id.0)].adj_rib_out;
        adj_rib_out.not_advertised(destination)
    }

    /// The VPN routes that are made of a prefix.
    pub fn exports_of(&self, prefix: IpNet) -> impl Iterator<Item = Destination> + '_ {
        self.exports.iter().filter_map(move |(rd, export)| {
            let destination = Destination::vpn(*rd, prefix);
            export
                .service_for(destination.family())
                .map(|_| destination)
        })
    }

    /// The local address of the neighbour's session; `None`: it is down.
    ///
    /// # Panics
    /// There is no such neighbour.
    pub fn local_address(&self, id: NeighbourId) -> Option<IpAddr> {
        self.neighbours[usize::from(id.0)].local()
    }

    /// Since when the neighbour's session is up; `None`: it is down.
    ///
    /// # Panics
    /// There is no such neighbour.
    pub fn up_since(&self, id: NeighbourId) -> Option<Instant> {
        self.neighbours[usize::from(id.0)].up_since
    }

    /// Whether a neighbour's session is up.
    ///
    /// # Panics
    /// There is no such neighbour.
    pub fn is_up(&self, id: NeighbourId) -> bool {
        self.neighbours[usize::from(id.0)].up.is_some()
    }

    fn neighbour_mut(&mut self, id: NeighbourId) -> &mut Neighbour {
        &mut self.neighbours[usize::from(id.0)]
    }

    fn stop(&mut self, now: Instant, id: NeighbourId) {
        let neighbour = self.neighbour_mut(id);
        neighbour.enabled = false;
        neighbour.link_down = false;
        neighbour.retry_at = None;
        for direction in [Direction::Outgoing, Direction::Incoming] {
            self.with_session(now, ConnectionId::new(id, direction), |session, out| {
                session.stop(now, out);
            });
        }
        self.drop_stale(id);
    }

    /// Closes a connection and handles it as lost.
    fn drop_connection(&mut self, now: Instant, connection: ConnectionId) {
        self.actions.push_back(Action::Close(connection));
        self.with_session(now, connection, |session, out| {
            session.disconnected(now, out);
            // Without an OPEN sent, the state machine would go on waiting for a connection.
            if session.state() != State::Idle {
                session.stop(now, out);
            }
        });
    }

    fn handle_timeout(&mut self, now: Instant) {
        for number in 0..self.neighbours.len() {
            let id = NeighbourId(number as u16);
            let neighbour = self.neighbour_mut(id);
            if neighbour.stale_until.is_some_and(|until| until <= now) {
                self.drop_stale(id);
            }
            let neighbour = self.neighbour_mut(id);
            if neighbour.retry_at.is_some_and(|at| at <= now) {
                neighbour.retry_at = None;
                if !neighbour.config.passive && !neighbour.link_down {
                    let connection = ConnectionId::new(id, Direction::Outgoing);
                    self.with_session(now, connection, |session, out| session.start(now, out));
                }
            }
            for direction in [Direction::Outgoing, Direction::Incoming] {
                let session = &self.neighbour_mut(id).sessions[direction as usize];
                if session.poll_timeout().is_some_and(|due| due <= now) {
                    self.with_session(now, ConnectionId::new(id, direction), |session, out| {
                        session.handle_timeout(now, out);
                    });
                }
            }
        }
    }

    /// Runs `step` on a session and handles its outputs.
    fn with_session(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        what: impl FnOnce(&mut Session, &mut Vec<Output>),
    ) {
        let mut out = Vec::new();
        what(
            &mut self.neighbour_mut(connection.neighbour).sessions[connection.direction as usize],
            &mut out,
        );
        self.handle_outputs(now, connection, out);
        self.schedule_retry(now, connection.neighbour);
    }

    fn handle_outputs(&mut self, now: Instant, connection: ConnectionId, out: Vec<Output>) {
        let ConnectionId {
            neighbour: id,
            direction,
        } = connection;
        for output in out {
            match output {
                // Only the neighbour can open this connection again.
                Output::Connect if direction == Direction::Incoming => {}
                Output::Connect => self.actions.push_back(Action::Connect(id)),
                Output::Close => self.actions.push_back(Action::Close(connection)),
                Output::Opened(router_id) => {
                    if !self.resolve_collision(now, connection, router_id) {
                        return;
                    }
                }
                Output::Up => {
                    // A later message in the same octets may have ended the session already.
                    let session = &self.neighbour_mut(id).sessions[direction as usize];
                    if session.state() == State::Established {
                        self.on_up(now, connection);
                    }
                }
                Output::Down(down) => self.on_down(now, connection, down),
                Output::Update(update) => {
                    if !self.handle_update(now, connection, update) {
                        return;
                    }
                }
                Output::Refresh(family) => self.enqueue_all(id, family, true),
                Output::RefreshBegins(family) => self.on_refresh_begins(now, id, family),
                Output::RefreshEnds(family) => self.on_refresh_ends(id, family),
            }
        }
    }

    fn on_up(&mut self, now: Instant, connection: ConnectionId) {
        let ConnectionId {
            neighbour: id,
            direction,
        } = connection;
        let neighbour = self.neighbour_mut(id);
        let session = &neighbour.sessions[direction as usize];
        neighbour.negotiated = session.negotiated().clone();
        neighbour.up = Some(direction);
        neighbour.up_since = Some(now);
        neighbour.retry_at = None;
        neighbour.times_up += 1;
        neighbour.announced = BTreeSet::new();
        neighbour.refreshing = BTreeSet::new();
        let other = neighbour.sessions[direction.other() as usize].state();
        let router_id = neighbour.negotiated.router_id;
        let preferred = router_id.map(|router_id| self.preferred(id, router_id));
        // A connection that the neighbour may prefer is kept until its OPEN arrives.
        let may_stay = matches!(other, State::OpenSent | State::OpenConfirm)
            && preferred == Some(direction.other());
        if other != State::Idle && !may_stay {
            self.cease_collision(now, ConnectionId::new(id, direction.other()));
        }
        self.events.push_back(Event::Up(id));
        self.on_restarted(now, id);
        let neighbour = self.neighbour_mut(id);
        neighbour.adj_rib_out = export::AdjRibOut::default();
        for family in neighbour.negotiated.families.clone() {
            self.enqueue_all(id, family, false);
            self.neighbour_mut(id)
                .adj_rib_out
                .enqueue_end_of_rib(family);
        }
    }

    fn on_down(&mut self, now: Instant, connection: ConnectionId, down: Down) {
        let ConnectionId {
            neighbour: id,
            direction,
        } = connection;
        let neighbour = self.neighbour_mut(id);
        if neighbour.up != Some(direction) {
            return;
        }
        let lasted = neighbour
            .up_since
            .is_some_and(|since| now - since >= STABLE_TIME);
        if lasted {
            neighbour.failures = 0;
        }
        neighbour.up = None;
        neighbour.up_since = None;
        neighbour.times_down += 1;
        neighbour.last_down = Some(now);
        neighbour.adj_rib_out = export::AdjRibOut::default();
        self.retain_or_drop(now, id, &down);
        self.events.push_back(Event::Down(id, down));
    }

    /// Schedules the next attempt if there is no connection at all.
    fn schedule_retry(&mut self, now: Instant, id: NeighbourId) {
        let neighbour = self.neighbour_mut(id);
        let errors = neighbour.sessions.iter_mut();
        if let Some(error) = errors.filter_map(Session::take_error).last() {
            neighbour.last_error = Some(error);
        }
        let idle = neighbour
            .sessions
            .iter()
            .all(|session| session.state() == State::Idle);
        let waits = neighbour.config.passive || neighbour.link_down || neighbour.retry_at.is_some();
        if !idle || !neighbour.enabled || waits {
            return;
        }
        let delay = RETRY_MIN * 2u32.saturating_pow(neighbour.failures.min(RETRY_DOUBLINGS));
        neighbour.failures = neighbour.failures.saturating_add(1);
        let held = neighbour.idle_hold_until.unwrap_or(Instant::ZERO);
        neighbour.retry_at = Some((now + delay).max(held));
    }

    /// Queues the consequences of a RIB change for the neighbours and the driver.
    fn on_route_changed(&mut self, source: Source, destination: Destination, changed: RouteChange) {
        if changed.best {
            self.changes.best.insert(destination);
            if !destination.is_vpn() {
                let holds = self.holds_best_paths;
                for neighbour in &mut self.neighbours {
                    match holds {
                        true => neighbour.adj_rib_out.hold(&destination),
                        false => neighbour.enqueue(destination),
                    }
                }
            }
        }
        let Source::Neighbour(id) = source else {
            return;
        };
        if !changed.path {
            return;
        }
        if self.neighbours[usize::from(id.0)].config.track_routes {
            self.changes.by_neighbour.insert((id, destination));
        }
        if destination.is_vpn() {
            return;
        }
        for (rd, export) in &self.exports {
            let vpn = Destination::vpn(*rd, destination.prefix());
            if export.from == id && export.service_for(vpn.family()).is_some() {
                for neighbour in &mut self.neighbours {
                    neighbour.enqueue(vpn);
                }
            }
        }
    }

    fn originate(&mut self, prefix: IpNet) {
        let destination = Destination::unicast(prefix);
        // Export sets the next hop for each neighbour.
        let attributes = Attributes::local(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let path = Path {
            source: Source::Local,
            path_id: 0,
            label: Label::default(),
            stale: false,
            reachable: true,
            attributes: self.interner.intern(attributes),
        };
        let changed = self
            .rib
            .insert(destination, path, &peer_attributes(&self.neighbours));
        self.on_route_changed(Source::Local, destination, changed);
    }

    fn retract(&mut self, prefix: IpNet) {
        let destination = Destination::unicast(prefix);
        let changed = self.rib.remove(
            destination,
            Source::Local,
            0,
            &peer_attributes(&self.neighbours),
        );
        self.on_route_changed(Source::Local, destination, changed);
    }
}

impl Neighbour {
    fn new(own: &SpeakerConfig, config: NeighbourConfig) -> Self {
        let session = SessionConfig {
            local_asn: own.asn,
            remote_asn: config.asn,
            router_id: own.router_id,
            hold_time: config.hold_time,
            families: config.families.clone(),
            add_path: config.add_path,
            graceful_restart: config.graceful_restart,
            restarted: config.restarted,
            extended_messages: config.extended_messages,
        };
        Self {
            external: config.asn != own.asn,
            config,
            enabled: false,
            sessions: [Session::new(session.clone()), Session::new(session)],
            local: [None; 2],
            up: None,
            up_since: None,
            negotiated: Negotiated::default(),
            retry_at: None,
            failures: 0,
            idle_hold_until: None,
            link_down: false,
            stale_until: None,
            near_max: BTreeSet::new(),
            announced: BTreeSet::new(),
            refreshing: BTreeSet::new(),
            adj_rib_out: export::AdjRibOut::default(),
            adj_rib_in: adj_rib_in::AdjRibIn::default(),
            last_error: None,
            malformed_updates: 0,
            discarded_attributes: 0,
            updates: 0,
            times_up: 0,
            times_down: 0,
            last_down: None,
        }
    }

    fn peer_attributes(&self) -> PeerAttributes {
        PeerAttributes {
            external: self.external,
            router_id: self.negotiated.router_id.unwrap_or(Ipv4Addr::UNSPECIFIED),
            address: self.config.address,
        }
    }

    /// Whether the session came up so recently that a second connection may belong to the same attempt.
    fn has_just_come_up(&self, now: Instant) -> bool {
        self.up_since
            .is_some_and(|since| now - since < COLLISION_TIME)
    }

    /// Whether routes are kept while the neighbour restarts.
    fn supports_graceful_restart(&self) -> bool {
        self.negotiated.restart_time.is_some()
    }

    /// The local address of the connection with the established session.
    fn local(&self) -> Option<IpAddr> {
        self.local[self.up? as usize]
    }

    /// Queues a destination, if the session has its family.
    fn enqueue(&mut self, destination: Destination) {
        if self.up.is_some() && self.negotiated.families.contains(&destination.family()) {
            self.adj_rib_out.enqueue(destination);
        }
    }
}

/// What the decision process needs to know of each source.
fn peer_attributes(neighbours: &[Neighbour]) -> impl Fn(Source) -> PeerAttributes {
    |source| match source {
        Source::Neighbour(id) => neighbours[usize::from(id.0)].peer_attributes(),
        Source::Local => PeerAttributes {
            external: false,
            router_id: Ipv4Addr::UNSPECIFIED,
            address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        },
    }
}

/// Connections that come up within this time belong to one attempt. Ours.
const COLLISION_TIME: Duration = Duration::from_secs(5);
/// Cease subcode: maximum number of prefixes reached (RFC 4486).
const CEASE_MAX_PREFIXES: u8 = 1;
/// The delay after the first failure; doubles up to [`RETRY_DOUBLINGS`] times, to 64 s. Ours.
const RETRY_MIN: Duration = Duration::from_millis(250);
const RETRY_DOUBLINGS: u32 = 8;
/// A session that lasted this long resets the retry delay. Ours.
const STABLE_TIME: Duration = Duration::from_secs(30);
/// How long a neighbour may take to announce its routes after a restart (RFC 4724 §4.2 asks for a
/// limit; 360 s is common in other implementations).
const STALE_TIME: Duration = Duration::from_secs(360);
/// How long sessions are refused after `routes_max` was exceeded. Ours.
const IDLE_HOLD_TIME: Duration = Duration::from_secs(60);
