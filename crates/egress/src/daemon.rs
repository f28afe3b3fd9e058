//! The event loop of speaker, sockets and forwarding.
//!
//! One turn waits for events, passes them to the speaker, carries out its actions, updates
//! forwarding, and only then sends to neighbours. A withdrawn route is thus removed here before a
//! neighbour learns of it.

mod drain;
mod events;
mod health;
mod reload;
mod report;
mod session_bfd;
mod session_links;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs::File,
    io::{self, BufWriter, Write},
    net::{IpAddr, Ipv6Addr, SocketAddr},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::SyncSender,
    },
};

use anyhow::{Context, anyhow};
use ipnet::IpNet;
use keiro_bgp::{
    address::{Destination, Family, RouteDistinguisher},
    record,
    rib::{self, NeighbourId},
    speaker::{self, Changes, Event, Input, Speaker},
};
use keiro_linux::{
    clock,
    epoll::{Epoll, Interest, ReadyList, Waker},
    link_watch::LinkWatch,
    signal::{Signal, Signals},
};
use keiro_units::Instant;
use sd_notify::NotifyState;

pub(crate) use self::reload::{keep_speaker, keep_tables, keep_value, needs};
use self::{health::Health, reload::Reloading};
pub use crate::handle::Handle;
use crate::{
    alarms::Alarm,
    backlog::Backlog,
    bfd::Bfd,
    census::Group,
    config::{ConfigError, Neighbour, SpeakerConfig},
    connections::{Connections, Token},
    control::ControlSocket,
    forwarding::{Forwarding, ForwardingError, NextHop, PeerIndex},
    handle::Trigger,
    links::Links,
    looking_glass::{Usage, best_usage},
    stats::EgressStats,
    status::{PeerExplanation, PeerStatus, Reloaded, TimedEvent},
};

/// What the event loop has to do after its descriptors were read.
#[derive(Clone, Copy, Debug, Default)]
struct Wakeup {
    stop: bool,
    reload: bool,
    /// A descriptor of forwarding is ready.
    forwarding: bool,
    links: bool,
    bfd: bool,
}

/// What distinguishes a border router from a server.
pub trait Role {
    type Config: Send + 'static;

    /// Reads the configuration file.
    ///
    /// # Errors
    /// The file is invalid.
    fn load(path: &Path) -> Result<Self::Config, ConfigError>;

    /// The part that both roles have.
    fn speaker_of(config: &Self::Config) -> &SpeakerConfig;

    fn neighbours_of(config: &Self::Config) -> Vec<Neighbour>;

    /// Restores, in a new configuration, the values that cannot change at run time; returns a line
    /// for each.
    ///
    /// # Errors
    /// Why the new configuration cannot be used at all.
    fn keep(&self, config: &mut Self::Config) -> Result<Vec<String>, String>;

    /// Whether a neighbour with the same address counts as another one in the new configuration, so
    /// that its session and routes must go.
    fn is_other(&self, id: NeighbourId, config: &Self::Config) -> bool;

    /// What changed apart from neighbours.
    fn differs(&self, _: &Self::Config) -> Reloaded {
        Reloaded::default()
    }

    /// Uses a new configuration, whose neighbours have these numbers. Sessions with removed or
    /// replaced neighbours have ended already.
    fn adopt(
        &mut self,
        config: Self::Config,
        ids: &[NeighbourId],
        speaker: &Speaker,
        forwarding: &mut dyn Forwarding,
    ) -> (Vec<Input>, Vec<ForwardingError>);

    /// The neighbours in the order of their numbers.
    fn neighbours(&self) -> Vec<Neighbour>;

    /// Whether every route of the neighbour matters, not only best paths.
    fn tracks_routes(&self, id: NeighbourId) -> bool;

    /// The route distinguishers that no other router may use.
    fn own_distinguishers(&self) -> BTreeSet<RouteDistinguisher> {
        BTreeSet::new()
    }

    /// The configured interface towards a neighbour; `None`: it follows from addresses.
    fn interface_of(&self, _: NeighbourId) -> Option<&str> {
        None
    }

    /// The neighbour that is this egress peer; `None`: routes come from a reflector.
    fn neighbour_of(&self, _: PeerIndex) -> Option<NeighbourId> {
        None
    }

    /// The first inputs of the speaker.
    fn begin(&mut self) -> Vec<Input>;

    /// Handles an event of the speaker; returns inputs for it.
    fn on_event(
        &mut self,
        event: &Event,
        speaker: &Speaker,
        forwarding: &mut dyn Forwarding,
    ) -> Vec<Input>;

    /// Handles route changes; returns inputs for the speaker, and forwarding errors.
    fn on_changes(
        &mut self,
        speaker: &Speaker,
        changes: &Changes,
        forwarding: &mut dyn Forwarding,
    ) -> (Vec<Input>, Vec<ForwardingError>);

    /// All changes so far have been handled by [`on_changes`](Self::on_changes).
    fn on_applied(&mut self, _: &mut dyn Forwarding) -> Vec<ForwardingError> {
        Vec::new()
    }

    /// [`Forwarding::tend`] has returned; returns inputs for the speaker.
    fn on_tended(&mut self, _: &mut dyn Forwarding) -> Vec<Input> {
        Vec::new()
    }

    /// Does what [`poll_timeout`](Self::poll_timeout) asked for. `groups`: the VPN routes received, as
    /// lately counted.
    fn tend(
        &mut self,
        _: Instant,
        _: &Speaker,
        _groups: &BTreeMap<Group, usize>,
        _: &mut dyn Forwarding,
    ) -> Vec<ForwardingError> {
        Vec::new()
    }

    /// What is wrong now. `groups`: the VPN routes received, as lately counted.
    fn alarms(
        &self,
        _: Instant,
        _: &Speaker,
        _groups: &BTreeMap<Group, usize>,
        _: &mut dyn Forwarding,
    ) -> Vec<Alarm> {
        Vec::new()
    }

    /// When an End-of-RIB is overdue or [`tend`](Self::tend) is due; `None`: neither is.
    fn poll_timeout(&self, _: &Speaker) -> Option<Instant> {
        None
    }

    /// Returns the End-of-RIBs that are not waited for any longer.
    fn handle_timeout(&mut self, _now: Instant, _: &Speaker) -> Vec<(NeighbourId, Family)> {
        Vec::new()
    }

    /// `asbr` or `egress`.
    fn name(&self) -> &'static str;

    fn peers(&self, speaker: &Speaker) -> Vec<PeerStatus>;

    /// The indices of the egress peers, in the order of [`peers`](Self::peers).
    fn indices(&self) -> Vec<PeerIndex>;

    /// What each egress peer has for a prefix, in the order of [`peers`](Self::peers). `names`: of
    /// the neighbours.
    fn explain(&self, speaker: &Speaker, asked: IpNet, names: &[&str]) -> Vec<PeerExplanation>;

    /// The tables that use a received path, or why none does.
    fn usage(&self, speaker: &Speaker, destination: &Destination, path: &rib::Path) -> Usage {
        best_usage(speaker, destination, path)
    }

    /// Called when the daemon ends.
    fn end(&mut self, forwarding: &mut dyn Forwarding);
}

pub struct Daemon<R: Role> {
    pub(crate) role: R,
    pub(crate) config: SpeakerConfig,
    /// By number; `None`: the neighbour was removed.
    pub(crate) neighbours: Vec<Option<Neighbour>>,
    pub(crate) speaker: Speaker,
    pub(crate) connections: Connections,
    pub(crate) forwarding: Box<dyn Forwarding>,
    pub(crate) links: Links,
    /// `None`: the end of a link is noticed when the hold time is over.
    link_watch: Option<LinkWatch>,
    pub(crate) bfd: Bfd,
    /// Addresses of egress peers that are drained by a command.
    drained: BTreeSet<IpAddr>,
    /// When BFD sessions that could not be configured are tried again.
    bfd_retry_at: Option<Instant>,
    epoll: Epoll,
    trigger: Arc<Trigger>,
    pub(crate) record: Option<BufWriter<File>>,
    pub(crate) inputs: VecDeque<Input>,
    pub(crate) reloading: Reloading<R::Config>,
    control: Option<ControlSocket>,
    monitors: Vec<SyncSender<TimedEvent>>,
    /// The state of egress peers as last sent to monitors.
    reported_peers: BTreeMap<String, PeerState>,
    backlog: Backlog,
    health: Health,
    stats: EgressStats,
}

type PeerState = (usize, Option<Ipv6Addr>);

impl<R: Role> Daemon<R> {
    /// Opens the listeners and adds the neighbours; sessions begin with [`serve`](Self::serve).
    ///
    /// # Errors
    /// A socket cannot be opened; the text says what to try.
    pub fn start(
        role: R,
        config: &SpeakerConfig,
        forwarding: Box<dyn Forwarding>,
    ) -> anyhow::Result<Self> {
        let neighbours = role.neighbours();
        let mut speaker = Speaker::new(speaker::SpeakerConfig {
            asn: config.asn,
            router_id: config.router_id,
        });
        for (place, neighbour) in neighbours.iter().enumerate() {
            let mut own = neighbour.speaker_config();
            own.track_routes = role.tracks_routes(NeighbourId(place as u16));
            events::warn_of_defaults(neighbour);
            speaker.add_neighbour(own);
        }
        if let Some(vrps) = &config.vrps {
            speaker.set_vrps(Arc::clone(vrps));
        }
        speaker.hold_best_paths();
        speaker.watch_distinguishers(role.own_distinguishers());
        let epoll = Epoll::new().context("epoll")?;
        let connections = Connections::open(&epoll, &config.listen, &neighbours)
            .map_err(|reason| anyhow!(reason))?;
        let trigger = Arc::new(Trigger {
            waker: Waker::new().context("eventfd")?,
            stop: AtomicBool::new(false),
            reload: AtomicBool::new(false),
        });
        epoll.add(&trigger.waker, TRIGGER, Interest::Read)?;
        let control = config.control_socket.as_deref();
        let control = control.map(|path| ControlSocket::open(path, Handle(Arc::clone(&trigger))));
        let control = control.transpose().context("control socket")?;
        if let Some(control) = &control {
            epoll.add(control, CONTROL, Interest::Read)?;
        }
        let bfd = Bfd::new().context("eventfd")?;
        epoll.add(bfd.waker(), BFD, Interest::Read)?;
        let mut daemon = Self {
            role,
            config: config.clone(),
            neighbours: neighbours.into_iter().map(Some).collect(),
            reloading: Reloading::default(),
            control,
            monitors: Vec::new(),
            reported_peers: BTreeMap::new(),
            backlog: Backlog::default(),
            health: Health::new(),
            stats: EgressStats::default(),
            speaker,
            connections,
            forwarding,
            links: Links::default(),
            link_watch: session_links::watch(&epoll),
            bfd,
            bfd_retry_at: None,
            drained: BTreeSet::new(),
            epoll,
            trigger,
            record: None,
            inputs: VecDeque::new(),
        };
        daemon.watch_forwarding()?;
        daemon.configure_bfd().map_err(|reason| anyhow!(reason))?;
        Ok(daemon)
    }

    /// Records every input of the speaker in a file, see [`record`].
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn record_to(&mut self, path: &Path) -> anyhow::Result<()> {
        let file = File::create(path).with_context(|| format!("cannot make {}", path.display()))?;
        self.record = Some(BufWriter::new(file));
        Ok(())
    }

    /// Sets the file that SIGHUP and `reload` read.
    pub fn reload_from(&mut self, path: &Path) {
        self.reloading.path = Some(path.to_owned());
    }

    /// Returns a handle for other threads.
    pub fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.trigger))
    }

    /// The addresses of the listeners.
    pub fn local_addresses(&self) -> Vec<SocketAddr> {
        self.connections.local_addresses()
    }

    /// Runs until stopped. `signals` as from [`Signals::block`]; `None`: only the [`Handle`] stops
    /// it.
    ///
    /// # Errors
    /// A system call of the event loop failed.
    pub fn serve(mut self, mut signals: Option<Signals>) -> anyhow::Result<()> {
        if let Some(signals) = &signals {
            self.epoll.add(signals, SIGNALS, Interest::Read)?;
        }
        self.inputs.extend(self.role.begin());
        let count = self.neighbours.len() as u16;
        self.inputs
            .extend((0..count).map(|number| Input::Start(NeighbourId(number))));
        self.turn();
        // Has no effect unless systemd started the daemon.
        let _ = sd_notify::notify(&[NotifyState::Ready]);
        let mut ready = ReadyList::new(64);
        loop {
            let timeout = self.poll_timeout().map(|due| due - now());
            self.epoll.wait(&mut ready, timeout).context("epoll")?;
            let wakeup = self.on_ready(&ready, signals.as_mut());
            if wakeup.stop {
                break;
            }
            // Nexthop objects may be reported gone before the link is reported down.
            if wakeup.links || wakeup.forwarding {
                self.follow_links();
            }
            if wakeup.bfd {
                self.follow_bfd();
            }
            self.turn();
            if wakeup.reload {
                self.reload(Vec::new());
            }
            self.finish_reload();
            self.answer();
            // After the neighbours' input, which is urgent.
            let due = self.forwarding.poll_timeout();
            if wakeup.forwarding || due.is_some_and(|due| due <= now()) {
                self.tend_forwarding();
            }
            self.retry_bfd();
            self.tend_health();
        }
        self.end();
        Ok(())
    }

    /// Takes what the ready descriptors have for the speaker; the rest is left to the caller.
    fn on_ready(&mut self, ready: &ReadyList, mut signals: Option<&mut Signals>) -> Wakeup {
        let mut wakeup = Wakeup::default();
        for event in ready.iter() {
            match event.token {
                TRIGGER => {
                    self.trigger.waker.reset();
                    wakeup.stop |= self.trigger.stop.load(Ordering::Acquire);
                    wakeup.reload |= self.trigger.reload.swap(false, Ordering::AcqRel);
                }
                SIGNALS => {
                    while let Some(Ok(Some(signal))) = signals.as_mut().map(|s| s.take()) {
                        wakeup.stop |= signal == Signal::Stop;
                        wakeup.reload |= signal == Signal::Reload;
                    }
                }
                FORWARDING => wakeup.forwarding = true,
                LINKS => wakeup.links = true,
                BFD => wakeup.bfd = true,
                CONTROL => {
                    if let Some(socket) = &self.control {
                        socket.accept();
                    }
                }
                number => {
                    if let Some(token) = Token::of(number) {
                        let inputs = &mut self.inputs;
                        self.connections.on_ready(
                            token,
                            event.readable,
                            event.writable,
                            &mut |input| inputs.push_back(input),
                        );
                        // The speaker must answer before the next connection is accepted.
                        self.take_inputs();
                    }
                }
            }
        }
        wakeup
    }

    /// Lets forwarding do what is due, and reports and announces what follows.
    fn tend_forwarding(&mut self) {
        let errors = self.forwarding.tend(now());
        self.report_errors(&errors);
        let inputs = self.role.on_tended(&mut *self.forwarding);
        self.inputs.extend(inputs);
        self.report_decisions();
        self.handle_next_hops();
        if !self.inputs.is_empty() {
            self.turn();
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if !self.backlog.is_empty() {
            return Some(Instant::ZERO);
        }
        let due = [
            Some(self.health.poll_timeout()),
            self.speaker.poll_timeout(),
            self.forwarding.poll_timeout(),
            self.bfd_retry_at,
            self.role.poll_timeout(&self.speaker),
        ];
        due.into_iter().flatten().min()
    }

    /// Adds descriptors that forwarding has opened since.
    pub(crate) fn watch_forwarding(&self) -> io::Result<()> {
        for watched in self.forwarding.watched() {
            match self.epoll.add(&watched, FORWARDING, Interest::Read) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                result => result?,
            }
        }
        Ok(())
    }

    /// Passes all pending inputs to the speaker and carries out what follows.
    pub(crate) fn turn(&mut self) {
        if self.speaker.poll_timeout().is_some_and(|due| due <= now()) {
            self.inputs.push_back(Input::Timeout);
        }
        for (id, family) in self.role.handle_timeout(now(), &self.speaker) {
            self.report_overdue(id, family);
        }
        loop {
            self.take_inputs();
            self.handle_events();
            if !self.inputs.is_empty() {
                continue;
            }
            let inputs = &mut self.inputs;
            self.connections
                .transmit(&self.epoll, &mut self.speaker, &mut |input| {
                    inputs.push_back(input);
                });
            if self.inputs.is_empty() {
                break;
            }
        }
        if let Some(record) = &mut self.record {
            // A full disk is reported by the next write.
            let _ = record.flush();
        }
    }

    fn take_inputs(&mut self) {
        loop {
            // A new configuration causes actions without an input.
            self.carry_out();
            let Some(input) = self.inputs.pop_front() else {
                return;
            };
            let now = now();
            if let Some(record) = &mut self.record
                && let Err(error) = writeln!(record, "{}", record::write(now, &input))
            {
                tracing::warn!(%error, "recording ends: it cannot be written");
                self.record = None;
            }
            self.speaker.handle(now, input);
        }
    }

    fn carry_out(&mut self) {
        while let Some(action) = self.speaker.poll_action() {
            let inputs = &mut self.inputs;
            let on_input = &mut |input| inputs.push_back(input);
            self.connections
                .carry_out(&self.epoll, &mut self.speaker, action, on_input);
        }
    }

    /// Events come first: a segment is removed before the routes of its table are.
    fn handle_events(&mut self) {
        while let Some(event) = self.speaker.poll_event() {
            self.log(&event);
            if let Event::Up(id) = event {
                self.note_link(id);
            }
            let what = self.daemon_event(&event);
            self.notify_monitors(&what);
            let forwarding = &mut *self.forwarding;
            let inputs = self.role.on_event(&event, &self.speaker, forwarding);
            self.inputs.extend(inputs);
        }
        let mut changes = self.speaker.take_changes();
        let is_vpn = Destination::is_vpn;
        if changes.best.iter().any(is_vpn) {
            self.health.census.on_changed();
        }
        let unicast = changes
            .best
            .extract_if(.., |destination| !is_vpn(destination));
        self.backlog.extend(unicast);
        let slice = self.backlog.take();
        changes.best.extend(&slice);
        let forwarding = &mut *self.forwarding;
        let (inputs, mut errors) = self.role.on_changes(&self.speaker, &changes, forwarding);
        self.inputs.extend(inputs);
        self.speaker.on_applied(&slice);
        if self.backlog.is_empty() {
            errors.extend(self.role.on_applied(&mut *self.forwarding));
        }
        self.report_errors(&errors);
        self.forget_next_hops(&changes);
        self.handle_next_hops();
        self.report_peers();
    }

    /// Forgets unreachable next hops that no route uses any more.
    fn forget_next_hops(&mut self, changes: &Changes) {
        for &(id, address) in &changes.unused {
            if self.role.tracks_routes(id) {
                let mut peers = self.role.indices().into_iter();
                if let Some(peer) = peers.find(|peer| self.role.neighbour_of(*peer) == Some(id)) {
                    self.forwarding.forget_next_hop(Some(peer), address);
                }
                continue;
            }
            // Neighbours that are not tracked share one entry per address.
            let mut others = (0..self.neighbours.len() as u16).map(NeighbourId);
            let has = |id| !self.role.tracks_routes(id) && self.speaker.has_next_hop((id, address));
            if !others.any(has) {
                self.forwarding.forget_next_hop(None, address);
            }
        }
    }

    /// Informs the speaker of next hops that became unreachable or reachable.
    fn handle_next_hops(&mut self) {
        let (mut lost, mut found) = (Vec::new(), Vec::new());
        let (mut errors, mut again) = (Vec::new(), 0);
        while let Some(NextHop {
            peer,
            address,
            lost: reason,
        }) = self.forwarding.poll_next_hop()
        {
            let neighbours: Vec<NeighbourId> = match peer {
                Some(peer) => self.role.neighbour_of(peer).into_iter().collect(),
                None => (0..self.neighbours.len() as u16)
                    .map(NeighbourId)
                    .filter(|id| !self.role.tracks_routes(*id))
                    .collect(),
            };
            let all = neighbours.into_iter().map(|id| (id, address));
            match reason {
                Some(reason) => {
                    lost.extend(all);
                    let what = format!("routes by {address} are not considered");
                    errors.push(ForwardingError { what, reason });
                }
                None => {
                    found.extend(all);
                    again += 1;
                }
            }
        }
        self.report_errors(&errors);
        if again > 0 {
            tracing::info!(next_hops = again, "routes are considered again");
        }
        let lost = (!lost.is_empty()).then_some(Input::Unreachable(lost));
        let found = (!found.is_empty()).then_some(Input::Reachable(found));
        self.inputs.extend(lost.into_iter().chain(found));
    }

    fn name(&self, id: NeighbourId) -> &str {
        let neighbour = self.neighbours[usize::from(id.0)].as_ref();
        neighbour.map_or("", |neighbour| neighbour.name.as_str())
    }

    fn routes(&self, id: NeighbourId, family: Family) -> usize {
        let status = self.speaker.status(id);
        status.routes.get(&family).copied().unwrap_or_default()
    }

    /// Segments go first, then sessions, so that no neighbour is informed while packets are still
    /// forwarded; slow work comes last.
    fn end(&mut self) {
        self.role.end(&mut *self.forwarding);
        let errors = self.forwarding.end();
        self.report_errors(&errors);
        for (place, neighbour) in self.neighbours.iter().enumerate() {
            if neighbour.is_some() {
                self.inputs
                    .push_back(Input::Stop(NeighbourId(place as u16)));
            }
        }
        self.take_inputs();
        self.forwarding.finish();
    }
}

pub(crate) fn now() -> Instant {
    Instant::from_nanos(clock::monotonic_nanos())
}

const TRIGGER: u64 = 1;
const SIGNALS: u64 = 2;
const CONTROL: u64 = 3;
const FORWARDING: u64 = 4;
const LINKS: u64 = 5;
const BFD: u64 = 6;
