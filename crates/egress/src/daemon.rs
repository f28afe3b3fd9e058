//! The thread that turns speaker, sockets and forwarding.
//!
//! One turn: wait; hand what has come to the speaker; carry out what it wants; put what has changed
//! into forwarding; and only then tell neighbours. A route that is withdrawn is thus closed here
//! before anybody hears of it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs::File,
    io::{self, BufWriter, Write},
    net::{Ipv6Addr, SocketAddr},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, SyncSender},
    },
};

use anyhow::{Context, anyhow};
use ipnet::IpNet;
use keiro_bgp::{
    address::{Destination, Family},
    record,
    rib::NeighbourId,
    speaker::{self, Changes, Event, Input, Speaker},
};
use keiro_linux::{
    clock,
    epoll::{Epoll, Interest, ReadyList, Waker},
    signal::{Signal, Signals},
};
use keiro_units::Instant;
use sd_notify::NotifyState;

use crate::{
    config::{ConfigError, Neighbour, SpeakerConfig},
    connections::{Connections, Token},
    control::{Answer, ControlSocket, Question, Reply},
    forwarding::{Forwarding, ForwardingError, NextHop, PeerIndex},
    reload::Reloading,
    status::{
        Compared, Explanation, Happening, NeighbourStatus, PathStatus, PeerExplanation, PeerStatus,
        Reloaded, Status, What, covering, word,
    },
};

/// What is made of routes and sessions.
pub trait Role {
    /// What its file says.
    type Config: Send + 'static;

    /// Reads a file.
    ///
    /// # Errors
    /// What is wrong with it.
    fn load(path: &Path) -> Result<Self::Config, ConfigError>;

    /// What both roles have.
    fn speaker_of(config: &Self::Config) -> &SpeakerConfig;

    /// The neighbours of a configuration.
    fn neighbours_of(config: &Self::Config) -> Vec<Neighbour>;

    /// Puts back, in another configuration, what cannot change while the daemon runs; a line for
    /// each such value.
    ///
    /// # Errors
    /// Why nothing of that configuration can be in force.
    fn keep(&self, config: &mut Self::Config) -> Result<Vec<String>, String>;

    /// Whether a neighbour of the same address is another one in that configuration, so that all
    /// that its session has brought has to go.
    fn is_other(&self, id: NeighbourId, config: &Self::Config) -> bool;

    /// What of it is another beside neighbours.
    fn differs(&self, _: &Self::Config) -> Reloaded {
        Reloaded::default()
    }

    /// Another configuration is in force, whose neighbours have these numbers. Sessions with those
    /// that are gone, or are others, have ended.
    fn adopt(
        &mut self,
        config: Self::Config,
        ids: &[NeighbourId],
        speaker: &Speaker,
        forwarding: &mut dyn Forwarding,
    ) -> (Vec<Input>, Vec<ForwardingError>);

    /// Its neighbours, in the order of their numbers.
    fn neighbours(&self) -> Vec<Neighbour>;

    /// Whether the neighbour's own routes matter, not only best ones.
    fn tracks_routes(&self, id: NeighbourId) -> bool;

    /// Which neighbour announces an egress peer's routes itself; `None`: none does.
    fn neighbour_of(&self, _: PeerIndex) -> Option<NeighbourId> {
        None
    }

    /// What is handed in first.
    fn begin(&mut self) -> Vec<Input>;

    /// Something has happened; what the speaker is to do about it.
    fn on_event(
        &mut self,
        event: &Event,
        speaker: &Speaker,
        forwarding: &mut dyn Forwarding,
    ) -> Vec<Input>;

    /// Routes have changed; what the speaker is to do about it, and what forwarding refused.
    fn on_changes(
        &mut self,
        speaker: &Speaker,
        changes: &Changes,
        forwarding: &mut dyn Forwarding,
    ) -> (Vec<Input>, Vec<ForwardingError>);

    /// `asbr` or `egress`.
    fn name(&self) -> &'static str;

    /// Its egress peers as they are.
    fn peers(&self, speaker: &Speaker) -> Vec<PeerStatus>;

    /// Their indices, in the same order.
    fn indices(&self) -> Vec<PeerIndex>;

    /// What its egress peers have to do with a prefix, in the same order. `names`: of neighbours.
    fn explain(&self, speaker: &Speaker, asked: IpNet, names: &[&str]) -> Vec<PeerExplanation>;

    /// The daemon ends.
    fn end(&mut self, forwarding: &mut dyn Forwarding);
}

/// A daemon that has been started.
pub struct Daemon<R: Role> {
    pub(crate) role: R,
    pub(crate) config: SpeakerConfig,
    /// By their numbers; `None`: of one that is gone.
    pub(crate) neighbours: Vec<Option<Neighbour>>,
    pub(crate) speaker: Speaker,
    pub(crate) connections: Connections,
    pub(crate) forwarding: Box<dyn Forwarding>,
    epoll: Epoll,
    trigger: Arc<Trigger>,
    pub(crate) record: Option<BufWriter<File>>,
    pub(crate) inputs: VecDeque<Input>,
    pub(crate) reloading: Reloading<R::Config>,
    control: Option<ControlSocket>,
    monitors: Vec<SyncSender<Happening>>,
    /// Egress peers by their names, as monitors were told last.
    told: BTreeMap<String, Told>,
    refused: u64,
}

/// An egress peer's routes, and its segment.
type Told = (usize, Option<Ipv6Addr>);

/// Stops a daemon from another thread, or wakes it.
#[derive(Clone)]
pub struct Handle(Arc<Trigger>);

struct Trigger {
    waker: Waker,
    stop: AtomicBool,
    reload: AtomicBool,
}

impl Handle {
    /// Makes one turn, as if something had come.
    pub fn wake(&self) {
        self.0.waker.wake();
    }

    /// Has the configuration read again.
    pub fn reload(&self) {
        self.0.reload.store(true, Ordering::Release);
        self.0.waker.wake();
    }

    /// Ends sessions and then the daemon.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::Release);
        self.0.waker.wake();
    }
}

impl<R: Role> Daemon<R> {
    /// Listens and makes neighbours known; sessions begin with [`serve`](Self::serve).
    ///
    /// # Errors
    /// A socket cannot be opened; what is wrong, and what to try.
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
            if own.import.rules.is_empty() {
                let name = &neighbour.name;
                tracing::warn!(peer = name, "nothing is taken from it: it has no `import`");
            }
            speaker.add_neighbour(own);
        }
        if let Some(vrps) = &config.vrps {
            speaker.set_vrps(Arc::clone(vrps));
        }
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
        let daemon = Self {
            role,
            config: config.clone(),
            neighbours: neighbours.into_iter().map(Some).collect(),
            reloading: Reloading::default(),
            control,
            monitors: Vec::new(),
            told: BTreeMap::new(),
            refused: 0,
            speaker,
            connections,
            forwarding,
            epoll,
            trigger,
            record: None,
            inputs: VecDeque::new(),
        };
        daemon.watch_forwarding()?;
        Ok(daemon)
    }

    /// Writes every input of the speaker to a file, see [`record`].
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn record_to(&mut self, path: &Path) -> anyhow::Result<()> {
        let file = File::create(path).with_context(|| format!("cannot make {}", path.display()))?;
        self.record = Some(BufWriter::new(file));
        Ok(())
    }

    /// Where its configuration is read from again (SIGHUP, or asked at the control socket).
    pub fn reload_from(&mut self, path: &Path) {
        self.reloading.path = Some(path.to_owned());
    }

    /// Stops this daemon from another thread.
    pub fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.trigger))
    }

    /// Where it listens.
    pub fn local_addresses(&self) -> Vec<SocketAddr> {
        self.connections.local_addresses()
    }

    /// Serves until stopped. `signals` as of [`Signals::block`]; `None`: only the [`Handle`] stops
    /// it.
    ///
    /// # Errors
    /// The system fails.
    pub fn serve(mut self, mut signals: Option<Signals>) -> anyhow::Result<()> {
        if let Some(signals) = &signals {
            self.epoll.add(signals, SIGNALS, Interest::Read)?;
        }
        self.inputs.extend(self.role.begin());
        let count = self.neighbours.len() as u16;
        self.inputs
            .extend((0..count).map(|number| Input::Start(NeighbourId(number))));
        self.turn();
        // Nobody listens where it was not started by systemd.
        let _ = sd_notify::notify(&[NotifyState::Ready]);
        let mut ready = ReadyList::new(64);
        loop {
            let due = [self.speaker.poll_timeout(), self.forwarding.poll_timeout()];
            let timeout = due.into_iter().flatten().min().map(|due| due - now());
            self.epoll.wait(&mut ready, timeout).context("epoll")?;
            let mut stop = false;
            let mut tend = false;
            let mut reload = false;
            for event in ready.iter() {
                match event.token {
                    TRIGGER => {
                        self.trigger.waker.reset();
                        stop |= self.trigger.stop.load(Ordering::Acquire);
                        reload |= self.trigger.reload.swap(false, Ordering::AcqRel);
                    }
                    SIGNALS => {
                        while let Some(Ok(Some(signal))) = signals.as_mut().map(Signals::take) {
                            stop |= signal == Signal::Stop;
                            reload |= signal == Signal::Reload;
                        }
                    }
                    FORWARDING => tend = true,
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
                            // An accepted connection waits for its answer.
                            self.take_inputs();
                        }
                    }
                }
            }
            if stop {
                break;
            }
            self.turn();
            if reload {
                self.reload(Vec::new());
            }
            self.finish_reload();
            self.answer();
            // Behind what neighbours have said: that does not wait.
            let due = self.forwarding.poll_timeout();
            if tend || due.is_some_and(|due| due <= now()) {
                let errors = self.forwarding.tend(now());
                self.refuse(&errors);
                self.tell_decisions();
                self.look_at_next_hops();
                if !self.inputs.is_empty() {
                    self.turn();
                }
            }
        }
        self.end();
        Ok(())
    }

    /// Forwarding may have other descriptors than before.
    pub(crate) fn watch_forwarding(&self) -> io::Result<()> {
        for watched in self.forwarding.watched() {
            match self.epoll.add(&watched, FORWARDING, Interest::Read) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                result => result?,
            }
        }
        Ok(())
    }

    /// Hands in what waits, and does what follows from it.
    pub(crate) fn turn(&mut self) {
        if self.speaker.poll_timeout().is_some_and(|due| due <= now()) {
            self.inputs.push_back(Input::Timeout);
        }
        loop {
            self.take_inputs();
            self.look_at_events();
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
            // A disk that is full is told when it is written to.
            let _ = record.flush();
        }
    }

    fn take_inputs(&mut self) {
        loop {
            // Another configuration leaves some without any input.
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
            let tell = &mut |input| inputs.push_back(input);
            self.connections
                .carry_out(&self.epoll, &mut self.speaker, action, tell);
        }
    }

    /// Events first: a segment is closed before the routes of its table are taken out one by one.
    fn look_at_events(&mut self) {
        while let Some(event) = self.speaker.poll_event() {
            self.log(&event);
            let what = self.what(&event);
            self.tell(&what);
            let forwarding = &mut *self.forwarding;
            let inputs = self.role.on_event(&event, &self.speaker, forwarding);
            self.inputs.extend(inputs);
        }
        let changes = self.speaker.take_changes();
        let forwarding = &mut *self.forwarding;
        let (inputs, errors) = self.role.on_changes(&self.speaker, &changes, forwarding);
        self.inputs.extend(inputs);
        self.refuse(&errors);
        self.forget_next_hops(&changes);
        self.look_at_next_hops();
        self.tell_peers();
    }

    /// Next hops that led nowhere and that no route has any more.
    fn forget_next_hops(&mut self, changes: &Changes) {
        for &(id, address) in &changes.unused {
            if self.role.tracks_routes(id) {
                let mut peers = self.role.indices().into_iter();
                if let Some(peer) = peers.find(|peer| self.role.neighbour_of(*peer) == Some(id)) {
                    self.forwarding.forget_next_hop(Some(peer), address);
                }
                continue;
            }
            // For all of these it was asked once.
            let mut others = (0..self.neighbours.len() as u16).map(NeighbourId);
            let has = |id| !self.role.tracks_routes(id) && self.speaker.has_next_hop((id, address));
            if !others.any(has) {
                self.forwarding.forget_next_hop(None, address);
            }
        }
    }

    /// Routes by next hops to which nothing leads are not to be chosen.
    fn look_at_next_hops(&mut self) {
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
        self.refuse(&errors);
        if again > 0 {
            tracing::info!(next_hops = again, "routes are considered again");
        }
        let lost = (!lost.is_empty()).then_some(Input::Unreachable(lost));
        let found = (!found.is_empty()).then_some(Input::Reachable(found));
        self.inputs.extend(lost.into_iter().chain(found));
    }

    /// Whoever reads too slowly hears no more.
    pub(crate) fn tell(&mut self, what: &What) {
        if self.monitors.is_empty() {
            return;
        }
        let happening = Happening {
            unix_ms: clock::unix_time().as_millis() as u64,
            what: what.clone(),
        };
        self.monitors
            .retain(|monitor| monitor.try_send(happening.clone()).is_ok());
    }

    /// What has become of egress peers since it was told last.
    fn tell_peers(&mut self) {
        if self.monitors.is_empty() {
            return;
        }
        let now = self.to_tell();
        let before = std::mem::replace(&mut self.told, now.clone());
        let names: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
        for name in names {
            // One that is not there any more, or was not, has nothing.
            let of = |all: &BTreeMap<String, Told>| all.get(name).copied().unwrap_or_default();
            let (had, has) = (of(&before), of(&now));
            if had != has {
                self.tell(&What::Peer {
                    peer: name.clone(),
                    routes_before: had.0,
                    routes: has.0,
                    sid: has.1,
                });
            }
        }
    }

    fn to_tell(&self) -> BTreeMap<String, Told> {
        let peers = self.role.peers(&self.speaker).into_iter();
        peers
            .map(|peer| (peer.name, (peer.routes, peer.sid)))
            .collect()
    }

    /// What was decided about client prefixes.
    fn tell_decisions(&mut self) {
        while let Some(compared) = self.forwarding.poll_decision() {
            let Compared {
                prefix,
                standing,
                confident,
                evidence,
            } = &compared;
            tracing::info!(%prefix, ?standing, confident, ?evidence, "client prefix");
            self.tell(&What::Compared(compared));
        }
    }

    pub(crate) fn refuse(&mut self, errors: &[ForwardingError]) {
        self.refused += errors.len() as u64;
        for error in errors.iter().take(ERRORS_LOGGED) {
            tracing::error!(%error, "not forwarded as wanted");
        }
        if errors.len() > ERRORS_LOGGED {
            let more = errors.len() - ERRORS_LOGGED;
            tracing::error!("and {more} more not forwarded as wanted");
        }
        for error in errors.iter().take(ERRORS_LOGGED) {
            let reason = error.to_string();
            self.tell(&What::Refused { reason });
        }
    }

    /// Questions that wait.
    fn answer(&mut self) {
        while let Some(asked) = self.control.as_ref().and_then(ControlSocket::take) {
            let answer = match asked.question {
                Question::Status => Answer::Status(Box::new(self.status())),
                Question::Explain(prefix) => Answer::Explanation(Box::new(self.explain(prefix))),
                Question::Monitor => {
                    self.monitor(&asked.reply);
                    continue;
                }
                Question::Reload => {
                    self.reload(vec![asked.reply]);
                    continue;
                }
            };
            let reply = Reply::Answer(answer, self.forwarding.view());
            // Who has gone needs none.
            let _ = asked.reply.send(reply);
        }
    }

    fn monitor(&mut self, reply: &mpsc::Sender<Reply>) {
        let (tell, all) = mpsc::sync_channel(HAPPENINGS_MAX);
        if reply.send(Reply::Happenings(all)).is_ok() {
            if self.monitors.is_empty() {
                self.told = self.to_tell();
            }
            self.monitors.push(tell);
        }
    }

    fn explain(&self, asked: IpNet) -> Explanation {
        let names = self.neighbours.iter().map(|one| one.as_ref());
        let names: Vec<&str> = names
            .map(|one| one.map_or("", |one| one.name.as_str()))
            .collect();
        let rib = self.speaker.rib();
        let known = |prefix: &IpNet| !rib.paths(&Destination::unicast(*prefix)).is_empty();
        let prefix = covering(asked).find(known);
        let paths = prefix.map_or(&[][..], |prefix| rib.paths(&Destination::unicast(prefix)));
        let told = paths.iter().map(|path| {
            let of = prefix.unwrap_or(asked);
            PathStatus::of(&self.speaker, &names, of, &paths[0], path)
        });
        Explanation {
            asked,
            prefix,
            paths: told.collect(),
            kernel: None,
            peers: self.role.explain(&self.speaker, asked, &names),
            compared: self.forwarding.compared(asked),
        }
    }

    fn status(&self) -> Status {
        let now = now();
        let neighbours = self.neighbours.iter().enumerate();
        let neighbours = neighbours.filter_map(|(place, config)| {
            let config = config.as_ref()?;
            let status = self.speaker.status(NeighbourId(place as u16));
            let routes = status.routes.iter();
            Some(NeighbourStatus {
                name: config.name.clone(),
                address: config.address,
                asn: config.asn,
                state: word(status.state).to_owned(),
                up_seconds: status.up_since.map(|since| (now - since).as_secs()),
                routes: routes.map(|(family, n)| (family.to_string(), *n)).collect(),
                told: status.advertised,
                times_up: status.times_up,
                complaints: status.malformed_updates,
                last_error: status.last_error,
            })
        });
        let mut peers = self.role.peers(&self.speaker);
        for (at, peer) in self.role.indices().into_iter().zip(&mut peers) {
            peer.subflows = self.forwarding.subflows(at);
        }
        Status {
            role: self.role.name().to_owned(),
            asn: self.config.asn,
            router_id: self.config.router_id,
            destinations: self.speaker.rib().len(),
            vrps: self.config.vrps.as_ref().map(|vrps| vrps.len()),
            strangers: self.connections.strangers,
            refused: self.refused,
            config_rejected: self.reloading.rejected.clone(),
            neighbours: neighbours.collect(),
            peers,
            comparison: self.forwarding.comparison(),
            kernel: None,
        }
    }

    fn log(&self, event: &Event) {
        let name = |id: &NeighbourId| self.name(*id);
        match event {
            Event::Up(id) => tracing::info!(peer = name(id), "session up"),
            Event::Down(id, down) => {
                let kept = if down.graceful {
                    ", routes stay for now"
                } else {
                    ""
                };
                tracing::warn!(peer = name(id), "session down: {}{kept}", down.reason);
            }
            Event::EndOfRib(id, family) => {
                let routes = self.routes(*id, *family);
                tracing::info!(peer = name(id), %family, routes, "all announced");
            }
            Event::MalformedUpdate(id, text) => {
                tracing::warn!(
                    peer = name(id),
                    "bad UPDATE, its routes are withdrawn: {text}"
                );
            }
            Event::MaxPrefixExceeded(id, family) => {
                tracing::error!(peer = name(id), %family, "more routes than `routes_max`");
            }
        }
    }

    fn what(&self, event: &Event) -> What {
        let name = |id: &NeighbourId| self.name(*id).to_owned();
        match event {
            Event::Up(id) => What::SessionUp {
                neighbour: name(id),
            },
            Event::Down(id, down) => What::SessionDown {
                neighbour: name(id),
                reason: down.reason.to_string(),
                routes_kept: down.graceful,
            },
            Event::EndOfRib(id, family) => What::AllAnnounced {
                neighbour: name(id),
                family: family.to_string(),
                routes: self.routes(*id, *family),
            },
            Event::MalformedUpdate(id, text) => What::Complaint {
                neighbour: name(id),
                reason: text.to_string(),
            },
            Event::MaxPrefixExceeded(id, family) => What::Complaint {
                neighbour: name(id),
                reason: format!("more routes of {family} than `routes_max`"),
            },
        }
    }

    fn name(&self, id: NeighbourId) -> &str {
        let neighbour = self.neighbours[usize::from(id.0)].as_ref();
        neighbour.map_or("", |neighbour| neighbour.name.as_str())
    }

    /// Routes of a neighbour's.
    fn routes(&self, id: NeighbourId, family: Family) -> usize {
        let status = self.speaker.status(id);
        status.routes.get(&family).copied().unwrap_or_default()
    }

    /// Segments go first, then sessions, so that nobody is told of what still forwards; and only then what may take
    /// long.
    fn end(&mut self) {
        self.role.end(&mut *self.forwarding);
        let errors = self.forwarding.end();
        self.refuse(&errors);
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
/// Happenings that wait for one who monitors. Ours.
const HAPPENINGS_MAX: usize = 1024;
/// Errors of one turn that are told one by one. Ours.
const ERRORS_LOGGED: usize = 10;
