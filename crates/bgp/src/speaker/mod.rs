//! Neighbours, what they announce, and what they are told.
//!
//! One turn of a driver: hand in an [`Input`], carry out what [`Speaker::poll_action`] gives, look at
//! [`Speaker::poll_event`] and [`Speaker::take_changes`], send what [`Speaker::transmit`] writes, and
//! wait for input or until [`Speaker::poll_timeout`]. Inputs are plain values: those of one run,
//! handed in again with their times, make the same tables ([`crate::record`]).
//!
//! Here are the connections of a neighbour (RFC 4271 §6.8) and how often they are tried; `import`
//! has what arrives, `export` what is told, `other` what becomes of both with another configuration.

mod aside;
mod export;
mod import;
mod other;

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
    rib::{Changed, Facts, NeighbourId, Path, Rib, Source, Step},
    rpki::Vrps,
    session::{Down, Output, Session, SessionConfig, State, Terms},
    srv6::{Label, Service},
};

pub use crate::rib::NextHop;

/// What the speaker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpeakerConfig {
    /// Its AS.
    pub asn: u32,
    /// Its BGP identifier.
    pub router_id: Ipv4Addr,
}

/// What a neighbour is and what passes between it and us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeighbourConfig {
    /// Where it is.
    pub address: IpAddr,
    /// Its AS.
    pub asn: u32,
    /// Of what routes are exchanged.
    pub families: Vec<Family>,
    /// What is taken from it.
    pub import: Policy,
    /// What it is told, our VPN routes aside.
    pub export: Policy,
    /// Only wait for it to connect.
    pub passive: bool,
    /// Seconds: 0 (never) or from 3.
    pub hold_time: u16,
    /// Take several paths per destination (RFC 7911).
    pub add_path: bool,
    /// Seconds for which it is asked to keep our routes while we restart, and its routes are kept
    /// while it does (RFC 4724); `None`: neither.
    pub graceful_restart: Option<u16>,
    /// We have just restarted, and what we forwarded is still forwarded.
    pub restarted: bool,
    /// More routes of one family, those that are not taken among them, end the session (RFC 4486);
    /// `None`: any number.
    pub routes_max: Option<usize>,
    /// The next hop that it is told; `None`: our end of the connection.
    pub next_hop: Option<IpAddr>,
    /// Of this AS: it is told our address instead of where routes come from.
    pub next_hop_self: bool,
    /// Its own routes are told one by one, not only where they are best.
    pub watched: bool,
}

/// How VPN routes are made of a neighbour's IPv6 routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VpnExport {
    /// Whose routes.
    pub from: NeighbourId,
    /// For whom.
    pub targets: Vec<RouteTarget>,
    /// Where packets are sent to.
    pub service: Service,
    /// The label: bits of the SID, or implicit null.
    pub label: Label,
}

/// Which side made a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// We did.
    Outgoing,
    /// The neighbour did.
    Incoming,
}

/// A connection: whose, and which of the two that there may be.
pub type Link = (NeighbourId, Direction);

/// What happens to a speaker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Sessions with the neighbour are wanted.
    Start(NeighbourId),
    /// They are not.
    Stop(NeighbourId),
    /// It has connected to us; [`Action::Accept`] or [`Action::Refuse`] follows.
    Offered(NeighbourId),
    /// A connection is there; our end of it.
    Connected(Link, IpAddr),
    /// A connection could not be made or is gone, other than by [`Action::Close`].
    Disconnected(Link),
    /// Octets from the neighbour.
    Received(Link, Vec<u8>),
    /// What [`Speaker::poll_timeout`] said is due.
    Timeout,
    /// A route of our own.
    Originate(IpNet),
    /// No longer.
    Retract(IpNet),
    /// Make VPN routes; those of the same distinguisher are replaced.
    Export(RouteDistinguisher, VpnExport),
    /// No longer.
    Unexport(RouteDistinguisher),
    /// Ask the neighbour for its routes of a family once more.
    Refresh(NeighbourId, Family),
    /// Packets cannot be sent to these next hops of neighbours: their IPv4 and IPv6 routes are kept,
    /// and not considered (RFC 4271 §9.1.2.1). Of a VPN route the segment counts, not the next hop.
    /// It is remembered as long as any of them has it; then [`Changes::unused`] tells.
    Unreachable(Vec<NextHop>),
    /// They can be again; it is so of all that nothing was said of.
    Reachable(Vec<NextHop>),
}

/// What the driver is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Connect to the neighbour.
    Connect(NeighbourId),
    /// Take the connection that it offers, as [`Direction::Incoming`].
    Accept(NeighbourId),
    /// Close the connection that it offers.
    Refuse(NeighbourId),
    /// Send what [`Speaker::transmit`] has left for this connection, as far as it goes at once, and
    /// close it.
    Close(Link),
}

/// What the driver may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Routes are exchanged with a neighbour.
    Up(NeighbourId),
    /// And no longer.
    Down(NeighbourId, Down),
    /// The neighbour has announced all routes of a family.
    EndOfRib(NeighbourId, Family),
    /// An UPDATE was bad, and its routes count as withdrawn (RFC 7606).
    Complaint(NeighbourId, String),
    /// It announced more routes than it may, and the session was ended.
    TooManyRoutes(NeighbourId, Family),
}

/// Destinations whose routes have changed since the last time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Those whose best path is another one or gone.
    pub best: BTreeSet<Destination>,
    /// Those whose path of a watched neighbour is another one or gone.
    pub of_neighbours: BTreeSet<(NeighbourId, Destination)>,
    /// Next hops that were [`Input::Unreachable`] and that no route has any more, or had when it was
    /// said: all is as if it had not been said.
    pub unused: BTreeSet<NextHop>,
}

/// What a neighbour looks like from here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// How far the session is; of two connections, the farther one.
    pub state: State,
    /// Since when it is up; `None`: it is not.
    pub up_since: Option<Instant>,
    /// What was agreed upon when it was last up.
    pub terms: Terms,
    /// Routes taken from it, by family.
    pub routes: BTreeMap<Family, usize>,
    /// Destinations that it has been told.
    pub told: usize,
    /// Why it was last down; `None`: it never was.
    pub last_error: Option<String>,
    /// Bad UPDATEs that cost routes.
    pub complaints: u64,
    /// How often the session came up.
    pub times_up: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Speaker {
    config: SpeakerConfig,
    neighbours: Vec<Neighbour>,
    rib: Rib,
    interner: Interner,
    exports: BTreeMap<RouteDistinguisher, VpnExport>,
    vrps: Arc<Vrps>,
    actions: VecDeque<Action>,
    events: VecDeque<Event>,
    changes: Changes,
}

#[derive(Debug)]
struct Neighbour {
    config: NeighbourConfig,
    external: bool,
    wanted: bool,
    links: [Session; 2],
    /// Our end of each connection.
    local: [Option<IpAddr>; 2],
    /// The connection over which routes are exchanged.
    up: Option<Direction>,
    up_since: Option<Instant>,
    terms: Terms,
    /// When a connection is tried again.
    retry_at: Option<Instant>,
    /// Failures since it was last up for a while.
    failures: u32,
    /// Before this no session is wanted.
    held_until: Option<Instant>,
    /// When stale routes go.
    stale_until: Option<Instant>,
    outgoing: export::Told,
    aside: aside::Aside,
    last_error: Option<String>,
    complaints: u64,
    times_up: u64,
}

impl Speaker {
    /// One without neighbours and routes.
    pub fn new(config: SpeakerConfig) -> Self {
        Self {
            config,
            neighbours: Vec::new(),
            rib: Rib::default(),
            interner: Interner::default(),
            exports: BTreeMap::new(),
            vrps: Arc::default(),
            actions: VecDeque::new(),
            events: VecDeque::new(),
            changes: Changes::default(),
        }
    }

    /// Adds a neighbour; nothing happens before [`Input::Start`].
    ///
    /// # Panics
    /// With more than 65,535 neighbours.
    pub fn add_neighbour(&mut self, config: NeighbourConfig) -> NeighbourId {
        let number = u16::try_from(self.neighbours.len()).expect("neighbours fit 16 bits");
        self.neighbours.push(Neighbour::new(&self.config, config));
        NeighbourId(number)
    }

    /// Takes in what has happened.
    pub fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Start(id) => {
                self.at(id).wanted = true;
                self.at(id).retry_at = Some(now);
                self.handle_timeout(now);
            }
            Input::Stop(id) => self.stop(now, id),
            Input::Offered(id) => self.offered(now, id),
            Input::Connected(link, local) => {
                self.at(link.0).local[link.1 as usize] = Some(local);
                self.drive(now, link, |session, out| match session.state() {
                    State::Connecting => session.connected(now, out),
                    // It was given up meanwhile.
                    _ => out.push(Output::Close),
                });
            }
            Input::Disconnected(link) => {
                self.drive(now, link, |session, out| session.disconnected(now, out));
            }
            Input::Received(link, octets) => {
                self.drive(now, link, |session, out| session.receive(now, &octets, out));
            }
            Input::Timeout => self.handle_timeout(now),
            Input::Originate(prefix) => self.originate(prefix),
            Input::Retract(prefix) => self.retract(prefix),
            Input::Export(rd, export) => self.export(rd, export),
            Input::Unexport(rd) => self.unexport(rd),
            Input::Refresh(id, family) => {
                if let Some(direction) = self.at(id).up {
                    self.at(id).links[direction as usize].ask_refresh(family);
                }
            }
            Input::Unreachable(list) => self.resolve(&list, false),
            Input::Reachable(list) => self.resolve(&list, true),
        }
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// What has happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The destinations whose routes have changed; look them up in [`rib`](Self::rib).
    pub fn take_changes(&mut self) -> Changes {
        let mut changes = std::mem::take(&mut self.changes);
        changes.unused = self.rib.take_unused_next_hops();
        changes
    }

    /// When [`Input::Timeout`] is due; `None`: not before other input.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let of = |neighbour: &Neighbour| {
            let links = neighbour.links.iter().filter_map(Session::poll_timeout);
            let own = [neighbour.retry_at, neighbour.stale_until];
            links.chain(own.into_iter().flatten()).min()
        };
        self.neighbours.iter().filter_map(of).min()
    }

    /// All routes.
    pub fn rib(&self) -> &Rib {
        &self.rib
    }

    /// The best path of one neighbour to a destination.
    pub fn route_of(&self, id: NeighbourId, destination: &Destination) -> Option<&Path> {
        let facts = facts(&self.neighbours);
        self.rib.best_of(destination, Source::Neighbour(id), &facts)
    }

    /// The better of several paths to one destination; `None`: there are none.
    pub fn best_among<'a>(&self, paths: &[&'a Path]) -> Option<&'a Path> {
        self.rib.choose(paths, &facts(&self.neighbours))
    }

    /// Whether a route, be it considered or not, has this next hop.
    pub fn has_next_hop(&self, next_hop: NextHop) -> bool {
        self.rib.has_next_hop(next_hop)
    }

    /// The first step of the choice at which the best path is better than another one.
    pub fn decided_by(&self, best: &Path, other: &Path) -> Step {
        Step::between(best, other, &facts(&self.neighbours))
    }

    /// How a neighbour is.
    ///
    /// # Panics
    /// There is no such neighbour.
    pub fn status(&self, id: NeighbourId) -> Status {
        let neighbour = &self.neighbours[usize::from(id.0)];
        let farthest = neighbour.links.iter().map(Session::state);
        let count = |family: &Family| self.rib.count(Source::Neighbour(id), *family);
        let families = neighbour.config.families.iter();
        Status {
            state: farthest
                .max_by_key(|state| *state as u8)
                .unwrap_or(State::Idle),
            up_since: neighbour.up_since,
            terms: neighbour.terms.clone(),
            routes: families.map(|family| (*family, count(family))).collect(),
            told: neighbour.outgoing.len(),
            last_error: neighbour.last_error.clone(),
            complaints: neighbour.complaints,
            times_up: neighbour.times_up,
        }
    }

    /// Whether a neighbour's session is up.
    ///
    /// # Panics
    /// There is no such neighbour.
    pub fn is_up(&self, id: NeighbourId) -> bool {
        self.neighbours[usize::from(id.0)].up.is_some()
    }

    fn at(&mut self, id: NeighbourId) -> &mut Neighbour {
        &mut self.neighbours[usize::from(id.0)]
    }

    fn stop(&mut self, now: Instant, id: NeighbourId) {
        let neighbour = self.at(id);
        neighbour.wanted = false;
        neighbour.retry_at = None;
        for direction in [Direction::Outgoing, Direction::Incoming] {
            self.drive(now, (id, direction), |session, out| session.stop(now, out));
        }
        self.drop_stale(id);
    }

    /// A connection that the neighbour has made: is it taken?
    fn offered(&mut self, now: Instant, id: NeighbourId) {
        let neighbour = self.at(id);
        let held = neighbour.held_until.is_some_and(|until| until > now);
        let verdict = match neighbour.up {
            _ if !neighbour.wanted || held => Action::Refuse(id),
            // Which of them stays is decided when it says who it is.
            Some(Direction::Outgoing) if neighbour.is_new(now) || neighbour.restarts() => {
                Action::Accept(id)
            }
            // One that has restarted comes back before the old connection has died (RFC 4724 §4.2).
            Some(Direction::Incoming) if neighbour.restarts() && !neighbour.is_new(now) => {
                self.lose(now, (id, Direction::Incoming));
                Action::Accept(id)
            }
            Some(_) => Action::Refuse(id),
            None => Action::Accept(id),
        };
        if verdict == Action::Accept(id) {
            let incoming = &self.at(id).links[Direction::Incoming as usize];
            if incoming.state() != State::Idle {
                self.lose(now, (id, Direction::Incoming));
            }
        }
        self.actions.push_back(verdict);
        if verdict == Action::Accept(id) {
            // It waits for no connection of its own: that one is there.
            let link = &mut self.at(id).links[Direction::Incoming as usize];
            link.start(now, &mut Vec::new());
        }
    }

    /// Gives up a connection as if it had broken.
    fn lose(&mut self, now: Instant, link: Link) {
        self.actions.push_back(Action::Close(link));
        self.drive(now, link, |session, out| {
            session.disconnected(now, out);
            // One that has not sent its OPEN goes on waiting otherwise.
            if session.state() != State::Idle {
                session.stop(now, out);
            }
        });
    }

    fn handle_timeout(&mut self, now: Instant) {
        for number in 0..self.neighbours.len() {
            let id = NeighbourId(number as u16);
            let neighbour = self.at(id);
            if neighbour.stale_until.is_some_and(|until| until <= now) {
                self.drop_stale(id);
            }
            let neighbour = self.at(id);
            if neighbour.retry_at.is_some_and(|at| at <= now) {
                neighbour.retry_at = None;
                if !neighbour.config.passive {
                    let link = (id, Direction::Outgoing);
                    self.drive(now, link, |session, out| session.start(now, out));
                }
            }
            for direction in [Direction::Outgoing, Direction::Incoming] {
                let session = &self.at(id).links[direction as usize];
                if session.poll_timeout().is_some_and(|due| due <= now) {
                    self.drive(now, (id, direction), |session, out| {
                        session.handle_timeout(now, out);
                    });
                }
            }
        }
    }

    /// Does something with a session and acts upon what it says.
    fn drive(
        &mut self,
        now: Instant,
        link: Link,
        what: impl FnOnce(&mut Session, &mut Vec<Output>),
    ) {
        let mut out = Vec::new();
        what(&mut self.at(link.0).links[link.1 as usize], &mut out);
        self.act(now, link, out);
        self.settle(now, link.0);
    }

    fn act(&mut self, now: Instant, link: Link, out: Vec<Output>) {
        let (id, direction) = link;
        for output in out {
            match output {
                // The neighbour has made this connection; it cannot be made again from here.
                Output::Connect if direction == Direction::Incoming => {}
                Output::Connect => self.actions.push_back(Action::Connect(id)),
                Output::Close => self.actions.push_back(Action::Close(link)),
                Output::Opened(router_id) => {
                    if !self.survives_collision(now, link, router_id) {
                        return;
                    }
                }
                Output::Up => {
                    // What came after it in the same octets may have ended it already.
                    let session = &self.at(id).links[direction as usize];
                    if session.state() == State::Established {
                        self.on_up(now, link);
                    }
                }
                Output::Down(down) => self.on_down(now, link, down),
                Output::Update(update) => {
                    if !self.take_update(now, link, update) {
                        return;
                    }
                }
                Output::Refresh(family) => self.tell_all(id, family, true),
                Output::RefreshBegins(family) => {
                    self.at(id).aside.forget_family(family);
                    self.rib.make_stale(Source::Neighbour(id), &[family]);
                    let until = now + STALE_TIME;
                    let stale = &mut self.at(id).stale_until;
                    *stale = Some(stale.map_or(until, |old| old.max(until)));
                }
                Output::RefreshEnds(family) => self.sweep_stale(id, &[family]),
            }
        }
    }

    /// Of two connections one is closed; whether `link` stays.
    ///
    /// One on which the neighbour has not said who it is counts too, since both are the same
    /// neighbour's: otherwise each side might establish the one that the other closes.
    fn survives_collision(&mut self, now: Instant, link: Link, router_id: Ipv4Addr) -> bool {
        let (id, direction) = link;
        let preferred = self.preferred(id, router_id);
        let neighbour = self.at(id);
        let kept = match neighbour.links[direction.other() as usize].state() {
            // RFC 4271 §6.8 keeps it; but both may have come about at the same time, or the
            // neighbour has restarted (RFC 4724 §4.2).
            State::Established if neighbour.is_new(now) => preferred,
            State::Established if neighbour.restarts() => {
                self.lose(now, (id, direction.other()));
                return true;
            }
            State::Established => direction.other(),
            State::OpenSent | State::OpenConfirm => preferred,
            State::Idle | State::Connecting => return true,
        };
        self.drive(now, (id, kept.other()), |session, out| {
            session.cease(COLLISION, "another connection was kept", out);
        });
        kept == direction
    }

    /// The connection made by the side with the greater identifier (RFC 4271 §6.8, RFC 6286 §2.3).
    fn preferred(&self, id: NeighbourId, router_id: Ipv4Addr) -> Direction {
        let own = (self.config.router_id, self.config.asn);
        let asn = self.neighbours[usize::from(id.0)].config.asn;
        match own > (router_id, asn) {
            true => Direction::Outgoing,
            false => Direction::Incoming,
        }
    }

    fn on_up(&mut self, now: Instant, link: Link) {
        let (id, direction) = link;
        let neighbour = self.at(id);
        let session = &neighbour.links[direction as usize];
        neighbour.terms = session.terms().clone();
        neighbour.up = Some(direction);
        neighbour.up_since = Some(now);
        neighbour.retry_at = None;
        neighbour.times_up += 1;
        let other = neighbour.links[direction.other() as usize].state();
        let router_id = neighbour.terms.router_id;
        let preferred = router_id.map(|router_id| self.preferred(id, router_id));
        // One that the neighbour may prefer is left until it has said who it is.
        let may_stay = matches!(other, State::OpenSent | State::OpenConfirm)
            && preferred == Some(direction.other());
        if other != State::Idle && !may_stay {
            self.drive(now, (id, direction.other()), |session, out| {
                session.cease(COLLISION, "another connection was kept", out);
            });
        }
        self.events.push_back(Event::Up(id));
        self.after_restart(now, id);
        let neighbour = self.at(id);
        neighbour.outgoing = export::Told::default();
        for family in neighbour.terms.families.clone() {
            self.tell_all(id, family, false);
            self.at(id).outgoing.owe_end_of_rib(family);
        }
    }

    fn on_down(&mut self, now: Instant, link: Link, down: Down) {
        let (id, direction) = link;
        let neighbour = self.at(id);
        if neighbour.up != Some(direction) {
            return;
        }
        let lasted = neighbour
            .up_since
            .is_some_and(|since| now - since >= UP_FOR_A_WHILE);
        if lasted {
            neighbour.failures = 0;
        }
        neighbour.up = None;
        neighbour.up_since = None;
        neighbour.outgoing = export::Told::default();
        self.retain_or_drop(now, id, &down);
        self.events.push_back(Event::Down(id, down));
    }

    /// Plans the next attempt where there is no connection at all.
    fn settle(&mut self, now: Instant, id: NeighbourId) {
        let neighbour = self.at(id);
        for session in &neighbour.links {
            if let Some(error) = session.last_error()
                && neighbour.last_error.as_deref() != Some(error)
            {
                neighbour.last_error = Some(error.to_owned());
            }
        }
        let idle = neighbour
            .links
            .iter()
            .all(|session| session.state() == State::Idle);
        if !idle || !neighbour.wanted || neighbour.retry_at.is_some() || neighbour.config.passive {
            return;
        }
        let delay = RETRY_MIN * 2u32.saturating_pow(neighbour.failures.min(RETRY_DOUBLINGS));
        neighbour.failures = neighbour.failures.saturating_add(1);
        let held = neighbour.held_until.unwrap_or(Instant::ZERO);
        neighbour.retry_at = Some((now + delay).max(held));
    }

    /// Remembers what a change of the table means for others.
    fn note(&mut self, source: Source, destination: Destination, changed: Changed) {
        if changed.best {
            self.changes.best.insert(destination);
            if !matches!(destination, Destination::Vpn6(..)) {
                for neighbour in &mut self.neighbours {
                    neighbour.tell(destination);
                }
            }
        }
        let Source::Neighbour(id) = source else {
            return;
        };
        if !changed.path {
            return;
        }
        if self.neighbours[usize::from(id.0)].config.watched {
            self.changes.of_neighbours.insert((id, destination));
        }
        if let Destination::V6(prefix) = destination {
            for (rd, export) in &self.exports {
                if export.from == id {
                    for neighbour in &mut self.neighbours {
                        neighbour.tell(Destination::Vpn6(*rd, prefix));
                    }
                }
            }
        }
    }

    fn originate(&mut self, prefix: IpNet) {
        let destination = Destination::unicast(prefix);
        // The next hop is put in for each neighbour.
        let attributes = Attributes::local(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let path = Path {
            source: Source::Local,
            path_id: 0,
            label: Label::default(),
            stale: false,
            reachable: true,
            attributes: self.interner.intern(attributes),
        };
        let changed = self.rib.insert(destination, path, &facts(&self.neighbours));
        self.note(Source::Local, destination, changed);
    }

    fn retract(&mut self, prefix: IpNet) {
        let destination = Destination::unicast(prefix);
        let changed = self
            .rib
            .remove(destination, Source::Local, 0, &facts(&self.neighbours));
        self.note(Source::Local, destination, changed);
    }
}

impl Direction {
    const fn other(self) -> Self {
        match self {
            Self::Outgoing => Self::Incoming,
            Self::Incoming => Self::Outgoing,
        }
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
        };
        Self {
            external: config.asn != own.asn,
            config,
            wanted: false,
            links: [Session::new(session.clone()), Session::new(session)],
            local: [None; 2],
            up: None,
            up_since: None,
            terms: Terms::default(),
            retry_at: None,
            failures: 0,
            held_until: None,
            stale_until: None,
            outgoing: export::Told::default(),
            aside: aside::Aside::default(),
            last_error: None,
            complaints: 0,
            times_up: 0,
        }
    }

    fn facts(&self) -> Facts {
        Facts {
            external: self.external,
            router_id: self.terms.router_id.unwrap_or(Ipv4Addr::UNSPECIFIED),
            address: self.config.address,
        }
    }

    /// Whether it came up a moment ago.
    fn is_new(&self, now: Instant) -> bool {
        self.up_since
            .is_some_and(|since| now - since < COLLISION_TIME)
    }

    /// Whether its routes stay while it restarts.
    fn restarts(&self) -> bool {
        self.terms.restart_time.is_some()
    }

    /// Our end of the connection over which routes are exchanged.
    fn local(&self) -> Option<IpAddr> {
        self.local[self.up? as usize]
    }

    /// Marks a destination as to be told, if the neighbour listens to its family.
    fn tell(&mut self, destination: Destination) {
        if self.up.is_some() && self.terms.families.contains(&destination.family()) {
            self.outgoing.owe(destination);
        }
    }
}

/// What the choice between paths needs to know.
fn facts(neighbours: &[Neighbour]) -> impl Fn(Source) -> Facts {
    |source| match source {
        Source::Neighbour(id) => neighbours[usize::from(id.0)].facts(),
        Source::Local => Facts {
            external: false,
            router_id: Ipv4Addr::UNSPECIFIED,
            address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        },
    }
}

/// Cease subcode: connection collision resolution (RFC 4486).
const COLLISION: u8 = 7;
/// Connections that come up within this time are two of one attempt. Ours.
const COLLISION_TIME: Duration = Duration::from_secs(5);
/// Cease subcode: maximum number of prefixes reached.
const TOO_MANY: u8 = 1;
/// The first attempt after a failure; then twice as long up to [`RETRY_DOUBLINGS`] times: 64 s.
/// Ours.
const RETRY_MIN: Duration = Duration::from_millis(250);
const RETRY_DOUBLINGS: u32 = 8;
/// A session that lasted this long was no failure. Ours.
const UP_FOR_A_WHILE: Duration = Duration::from_secs(30);
/// How long a neighbour may take to announce its routes after it is back (RFC 4724 §4.2 asks for
/// such a limit; 360 s is what other speakers have).
const STALE_TIME: Duration = Duration::from_secs(360);
/// How long no session is wanted after one with too many routes. Ours.
const TOO_MANY_HOLD: Duration = Duration::from_secs(60);
