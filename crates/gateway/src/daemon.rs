//! The control thread: starts the data thread, serves control socket and metrics, plans, reloads,
//! and stops in order.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::Receiver,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant as Stopwatch, SystemTime},
};

use anyhow::{Context, bail};
use keiro_control::{
    config::{self, AppIndex, Config, ConfigDiff, PathIndex, PeerIndex},
    key,
    protocol::{ErrorCode, ErrorResponse, Event, EventKind},
};
use keiro_core::{Endpoint, EndpointConfig, PathState, PrivateKey, SchedulerKind};
use keiro_linux::{
    clock,
    epoll::{Epoll, Interest, ReadyList, Waker},
    privilege::{self, Capability},
    realtime,
    signal::{Signal, Signals},
    unix,
};
use sd_notify::NotifyState;

use crate::{
    Options,
    active::{self, Active, Preferences},
    control_server::ControlServer,
    data::{
        self, DataOptions, DataThread,
        command::{Command, DataHandle, DataThreadGone, Report, Reporter, Snapshot},
        messages::Listener,
    },
    metrics_server::MetricsServer,
    planning::{Facts, Planned, Question},
    state::{MoveNumbers, States, event_now},
};

/// A gateway that has been started and waits to be served.
pub struct Gateway {
    pub(crate) config: Config,
    pub(crate) config_path: PathBuf,
    pub(crate) config_loaded: SystemTime,
    pub(crate) config_rejected: Option<String>,
    pub(crate) public_key: key::PublicKey,
    pub(crate) started: SystemTime,
    pub(crate) uptime: Stopwatch,
    pub(crate) active: Active,
    pub(crate) states: States,
    pub(crate) plan: Planned,
    pub(crate) counts: Counts,
    /// Applications that an operator has put on a path, by name.
    pub(crate) operator: BTreeMap<String, String>,
    pub(crate) loss: BTreeMap<(String, String), LossWindow>,
    pub(crate) draining: bool,
    pub(crate) data: DataHandle,
    reports: Receiver<Report>,
    reports_lost: u64,
    thread: Option<JoinHandle<()>>,
    epoll: Arc<Epoll>,
    report_wake: Arc<Waker>,
    trigger: Arc<Trigger>,
    server: Option<ControlServer>,
    metrics: Option<MetricsServer>,
    /// Events of the time when the server was busy.
    unpublished: Vec<Event>,
    control_clients: usize,
    pub(crate) facts: Facts,
    _socket_files: SocketFiles,
    replan: bool,
    drained: bool,
}

/// Stops or reloads a served gateway from another thread.
#[derive(Clone)]
pub struct Handle(Arc<Trigger>);

struct Trigger {
    wake: Waker,
    stop: AtomicBool,
    reload: AtomicBool,
}

/// What the control thread counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) reloads_accepted: u64,
    pub(crate) reloads_rejected: u64,
    pub(crate) plans_unchanged: u64,
    pub(crate) plans_changed: u64,
    pub(crate) plans_infeasible: u64,
}

/// A path's counters of a while ago, for its recent loss.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LossWindow {
    pub(crate) old: (u64, u64),
    new: (u64, u64),
}

/// What a reload brought.
#[derive(Debug)]
pub(crate) struct Reloaded {
    pub(crate) changes: Box<ConfigDiff>,
    pub(crate) needs_restart: Vec<String>,
}

/// What becomes of the process's privileges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Privileges {
    /// Nothing.
    Kept,
    /// Threads keep only what they use.
    Reduced,
}

/// What a descriptor in the control thread's epoll set is: the kind in the top byte.
mod token {
    pub(super) const SIGNALS: u64 = 1;
    pub(super) const REPORTS: u64 = 2;
    pub(super) const TRIGGER: u64 = 3;
    pub(super) const CONTROL: u64 = 4;
    pub(super) const METRICS: u64 = 5;
    pub(super) const CONTROL_CLIENT: u64 = 6 << 56;
    pub(super) const METRICS_CLIENT: u64 = 7 << 56;
    pub(super) const KIND: u64 = 0xff << 56;
}

/// Messages may be under way for this long after SIGTERM.
const DRAIN_TIME: Duration = Duration::from_secs(5);
/// How often demands are compared with measured delays, and the status line is renewed.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Messages after which a measured 99th percentile says something.
const MEASURED_MIN: u64 = 100;
/// Reports taken per turn.
const REPORTS_PER_TURN: usize = 1024;
/// Default of [`Options::spin`]: covers the median wake-up.
const SPIN_DEFAULT: Duration = Duration::from_micros(30);

impl Gateway {
    /// Reads the configuration and starts everything that it asks for.
    ///
    /// Privileges are kept; [`crate::run`] gives them up.
    ///
    /// # Errors
    /// What keeps the gateway from starting: what is wrong, where, and what to try. Nothing is left
    /// behind then.
    pub fn start(config_path: &Path, options: &Options) -> anyhow::Result<Self> {
        Self::start_with(config_path, options, Privileges::Kept)
    }

    pub(crate) fn start_with(
        config_path: &Path,
        options: &Options,
        privileges: Privileges,
    ) -> anyhow::Result<Self> {
        let config = Config::load(config_path)?;
        let private_key = key::load_private_key(&config.gateway.private_key_file)?;
        let private_key = PrivateKey::from_bytes(*private_key.as_bytes());
        let public_key = key::PublicKey::from_bytes(*private_key.public_key().as_bytes());
        if let Some(peer) = config
            .peers
            .iter()
            .find(|peer| peer.public_key == public_key)
        {
            bail!(
                "{}: peer `{}` has this gateway's own public key; write the peer's",
                config.file(),
                peer.name
            );
        }
        let active = Active::default();
        let prepared = active::prepare(&config, &active)?;

        let epoll = Arc::new(Epoll::new().context("epoll")?);
        let mut socket_files = SocketFiles::default();
        let sockets = LocalSockets::open(&config, &epoll, &mut socket_files)?;

        let mut seed = [0; 32];
        getrandom::fill(&mut seed).context("the system gives no random numbers")?;
        let mut first_flow = [0; 4];
        getrandom::fill(&mut first_flow).context("the system gives no random numbers")?;
        let mut endpoint_config = EndpointConfig::new(private_key);
        endpoint_config.scheduler = scheduler(&config);
        endpoint_config.unix_time_at_zero = clock::unix_time().saturating_sub(clock::monotonic());
        let endpoint = Endpoint::new(data::now(), endpoint_config, seed);

        let wake = Arc::new(Waker::new().context("eventfd")?);
        let report_wake = Arc::new(Waker::new().context("eventfd")?);
        let (handle, commands) = DataHandle::new(Arc::clone(&wake));
        let (reporter, reports) = Reporter::new(Arc::clone(&report_wake));
        let data_options = DataOptions {
            spin: options.spin.unwrap_or(SPIN_DEFAULT),
            first_flow: u32::from_be_bytes(first_flow),
        };
        let realtime_priority = options.realtime_priority;
        // Made in the thread: the message socket's queues are not shared between threads.
        let thread = thread::Builder::new()
            .name("data".into())
            .spawn(move || {
                prepare_thread(realtime_priority, privileges);
                match DataThread::new(endpoint, commands, wake, reporter, &data_options) {
                    Ok(thread) => thread.run(),
                    Err(error) => tracing::error!(%error, "the data thread cannot start"),
                }
            })
            .context("cannot start a thread")?;

        let trigger = Arc::new(Trigger {
            wake: Waker::new().context("eventfd")?,
            stop: AtomicBool::new(false),
            reload: AtomicBool::new(false),
        });
        epoll.add(&*report_wake, token::REPORTS, Interest::Read)?;
        epoll.add(&trigger.wake, token::TRIGGER, Interest::Read)?;
        let plan = Question::new(&config, &Facts::default()).answer(&config);
        let mut gateway = Self {
            config_path: config_path.to_owned(),
            config_loaded: SystemTime::now(),
            config_rejected: None,
            public_key,
            started: SystemTime::now(),
            uptime: Stopwatch::now(),
            active,
            states: States::default(),
            plan,
            counts: Counts::default(),
            operator: BTreeMap::new(),
            loss: BTreeMap::new(),
            draining: false,
            data: handle,
            reports,
            reports_lost: 0,
            thread: Some(thread),
            epoll,
            report_wake,
            trigger,
            server: Some(sockets.control),
            metrics: sockets.metrics,
            unpublished: Vec::new(),
            control_clients: 0,
            facts: Facts::default(),
            _socket_files: socket_files,
            replan: false,
            drained: false,
            config,
        };
        gateway.follow_configuration();
        let preferences = gateway.preferences();
        gateway
            .active
            .apply(&gateway.config, prepared, &preferences, &gateway.data)?;
        for listener in sockets.messages {
            gateway.data.send(Command::AddListener(listener))?;
        }
        gateway.publish(EventKind::Started {
            version: env!("CARGO_PKG_VERSION").to_owned(),
        });
        Ok(gateway)
    }

    /// Stops or reloads this gateway from another thread.
    pub fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.trigger))
    }

    /// Serves until stopped, then drains.
    ///
    /// `signals` as of [`Signals::block`]; `None`: only the [`Handle`] stops it.
    ///
    /// # Errors
    /// The data thread ended by itself, or the system fails.
    pub fn serve(mut self, mut signals: Option<Signals>) -> anyhow::Result<()> {
        if let Some(signals) = &signals {
            self.epoll.add(signals, token::SIGNALS, Interest::Read)?;
        }
        notify(&[NotifyState::Ready, NotifyState::Status(&self.status_line())]);
        let mut ready = ReadyList::new(64);
        let mut next_check = Stopwatch::now() + CHECK_INTERVAL;
        let mut drain_until: Option<Stopwatch> = None;
        while !(self.drained || drain_until.is_some_and(|until| Stopwatch::now() >= until)) {
            let until = drain_until.map_or(next_check, |until| until.min(next_check));
            let left = until.saturating_duration_since(Stopwatch::now());
            self.epoll.wait(&mut ready, Some(left)).context("epoll")?;
            let mut stop = false;
            for event in ready.iter() {
                stop |= self.dispatch(event.token, event.readable, &mut signals)?;
            }
            if self.replan {
                self.replan()?;
            }
            if Stopwatch::now() >= next_check {
                next_check = Stopwatch::now() + CHECK_INTERVAL;
                self.check()?;
            }
            if stop && drain_until.is_none() {
                drain_until = Some(Stopwatch::now() + DRAIN_TIME);
                self.drain()?;
            }
        }
        if !self.drained {
            tracing::warn!("stopping with messages that were not acknowledged in {DRAIN_TIME:?}");
        }
        Ok(())
    }

    /// Handles one ready descriptor; whether the gateway is to stop.
    fn dispatch(
        &mut self,
        token: u64,
        readable: bool,
        signals: &mut Option<Signals>,
    ) -> anyhow::Result<bool> {
        match token {
            token::REPORTS => {
                self.report_wake.reset();
                self.take_reports()?;
            }
            token::TRIGGER => {
                self.trigger.wake.reset();
                if self.trigger.reload.swap(false, Ordering::AcqRel) {
                    self.reload_and_tell();
                }
                return Ok(self.trigger.stop.load(Ordering::Acquire));
            }
            token::SIGNALS => {
                while let Some(signal) = signals.as_mut().map(Signals::take).transpose()?.flatten()
                {
                    match signal {
                        Signal::Reload => self.reload_and_tell(),
                        Signal::Stop => return Ok(true),
                    }
                }
            }
            token::CONTROL => {
                if let Some(server) = &mut self.server {
                    server.accept(&self.epoll, |number| token::CONTROL_CLIENT | number);
                }
            }
            token::METRICS => {
                if let Some(metrics) = &mut self.metrics {
                    metrics.accept(&self.epoll, |number| token::METRICS_CLIENT | number);
                }
            }
            client => self.serve_client(client, readable),
        }
        Ok(false)
    }

    fn serve_client(&mut self, client: u64, readable: bool) {
        let number = client & !token::KIND;
        // Out of its place while it serves: answering needs the rest.
        match client & token::KIND {
            token::CONTROL_CLIENT => {
                if let Some(mut server) = self.server.take() {
                    self.control_clients = server.clients();
                    let epoll = Arc::clone(&self.epoll);
                    server.serve(&epoll, number, readable, |request| self.answer(request));
                    self.server = Some(server);
                    for event in std::mem::take(&mut self.unpublished) {
                        self.tell(event);
                    }
                }
            }
            token::METRICS_CLIENT => {
                if let Some(mut metrics) = self.metrics.take() {
                    let epoll = Arc::clone(&self.epoll);
                    metrics.serve(&epoll, number, readable, || self.metrics_page());
                    self.metrics = Some(metrics);
                }
            }
            _ => {}
        }
    }

    fn take_reports(&mut self) -> anyhow::Result<()> {
        for _ in 0..REPORTS_PER_TURN {
            let Ok(report) = self.reports.try_recv() else {
                return Ok(());
            };
            match report {
                Report::Core { at, event } => self.on_core_event(at, &event),
                Report::Expired {
                    app,
                    age,
                    length_bytes,
                } => {
                    let kind = self.states.on_expired(&app, age, length_bytes);
                    self.publish(kind);
                }
                Report::SendFailed { socket, error } => {
                    let path = self.path_of_socket(socket);
                    tracing::warn!(
                        path,
                        error,
                        "cannot send; is the uplink's address or route gone?"
                    );
                }
                Report::OffloadRefused { socket } => {
                    let path = self.path_of_socket(socket);
                    tracing::info!(
                        path,
                        "the device refuses segmentation offload; going on without"
                    );
                }
                Report::Drained => self.drained = true,
                Report::Failed(error) => bail!("the data thread failed: {error}"),
            }
        }
        // There may be more.
        self.report_wake.wake();
        Ok(())
    }

    fn on_core_event(&mut self, at: keiro_core::Instant, event: &keiro_core::Event) {
        let (config, plan, facts) = (&self.config, &self.plan, &self.facts);
        let numbers = |app: &str, from: Option<&str>, to: Option<&str>| {
            move_numbers(config, plan, facts, app, from, to)
        };
        let effect = self.states.on_event(&self.active, at, event, numbers);
        self.replan |= effect.replan;
        if let Some(kind) = effect.told {
            self.publish(kind);
        }
    }

    /// Logs an event and tells everybody who monitors.
    pub(crate) fn publish(&mut self, kind: EventKind) {
        log(&kind);
        self.tell(event_now(kind));
    }

    fn tell(&mut self, event: Event) {
        match &mut self.server {
            Some(server) => server.publish(&self.epoll, &event),
            None => self.unpublished.push(event),
        }
    }

    /// Clients of the control socket.
    pub(crate) fn control_clients(&self) -> usize {
        self.server
            .as_ref()
            .map_or(self.control_clients, ControlServer::clients)
    }

    fn path_of_socket(&self, socket: keiro_core::SocketId) -> String {
        let local = self.active.socket_address(socket);
        let path = self
            .config
            .paths
            .iter()
            .find(|path| Some(path.local) == local);
        path.map(|path| path.name.to_string()).unwrap_or_default()
    }

    // Planning.

    /// What the planner has to know, as of a snapshot.
    pub(crate) fn facts_of(&self, snapshot: &Snapshot) -> Facts {
        let mut facts = Facts::default();
        for (number, peer) in self.config.peers.iter().enumerate() {
            let id = self.active.peer_id(peer.name.as_str());
            let Some(session) = id.and_then(|id| snapshot.sessions.get(&id)) else {
                continue;
            };
            let index_of = |path| {
                let name = self.active.path_name(session.peer, path)?;
                self.config.path_named(name)
            };
            for path in session
                .paths
                .iter()
                .filter(|path| path.state == PathState::Up)
            {
                if let Some(index) = index_of(path.id) {
                    let delay = path.rtt_min.map(|round_trip| round_trip / 2);
                    facts.up.insert((index, PeerIndex(number)), delay);
                }
            }
            for app in &session.apps {
                let name = self.active.app_name(session.peer, app.id);
                let index = name.and_then(|name| self.config.app_named(name));
                if let (Some(index), Some(path)) = (index, app.path.and_then(index_of)) {
                    facts.now.insert(index, path);
                }
            }
        }
        let operator = self.operator.iter().filter_map(|(app, path)| {
            Some((self.config.app_named(app)?, self.config.path_named(path)?))
        });
        facts.operator = operator.collect();
        facts
    }

    /// Plans anew and has the result taken over; sends nothing where nothing changes.
    pub(crate) fn replan(&mut self) -> Result<(), DataThreadGone> {
        self.replan = false;
        let snapshot = self.data.snapshot()?;
        self.facts = self.facts_of(&snapshot);
        self.plan = Question::new(&self.config, &self.facts).answer(&self.config);
        let unmet = self.plan.unmet();
        let changes = self.plan.changes(&self.facts.now);
        match (unmet, changes) {
            (1.., _) => self.counts.plans_infeasible += 1,
            (0, 1..) => self.counts.plans_changed += 1,
            (0, 0) => self.counts.plans_unchanged += 1,
        }
        tracing::debug!(unmet, changes, took = ?self.plan.took, "planned");
        let preferences = self.preferences();
        self.active
            .apply_apps(&self.config, &preferences, &self.data)?;
        self.compare_demands(&snapshot);
        Ok(())
    }

    /// The paths of every application, best first: what it is pinned to, what is planned, the rest.
    pub(crate) fn preferences(&self) -> Preferences {
        let preferred = |(number, app): (usize, &config::App)| {
            let operator = self.operator.get(app.name.as_str());
            let operator = operator.and_then(|path| self.config.path_named(path));
            let planned = self.plan.apps.get(number).and_then(|planned| planned.path);
            let mut paths: Vec<PathIndex> = Vec::new();
            let all = (0..self.config.paths.len()).map(PathIndex);
            let pin = operator.or(app.path);
            for path in pin.into_iter().chain(planned).chain(all) {
                if !paths.contains(&path) {
                    paths.push(path);
                }
            }
            (AppIndex(number), paths)
        };
        self.config.apps.iter().enumerate().map(preferred).collect()
    }

    /// Regular comparisons: measured delays with demands, losses of a while ago with those of now.
    fn check(&mut self) -> Result<(), DataThreadGone> {
        let snapshot = self.data.snapshot()?;
        for session in snapshot.sessions.values() {
            for path in &session.paths {
                let peer = self.active.peer_name(session.peer);
                let name = self.active.path_name(session.peer, path.id);
                if let (Some(peer), Some(name)) = (peer, name) {
                    let window = self
                        .loss
                        .entry((name.to_owned(), peer.to_owned()))
                        .or_default();
                    window.old = window.new;
                    window.new = (path.packets_acked, path.packets_lost);
                }
            }
        }
        if snapshot.reports_lost > self.reports_lost {
            let count = snapshot.reports_lost - self.reports_lost;
            self.reports_lost = snapshot.reports_lost;
            tracing::warn!(count, "events were lost: too many at once");
            self.publish(EventKind::EventsLost { count });
        }
        self.compare_demands(&snapshot);
        if let Some(metrics) = &mut self.metrics {
            metrics.sweep();
        }
        notify(&[NotifyState::Status(&self.status_line())]);
        Ok(())
    }

    /// Tells which demands are met no longer, or again.
    fn compare_demands(&mut self, snapshot: &Snapshot) {
        let mut events = Vec::new();
        for (number, app) in self.config.apps.iter().enumerate() {
            let (Some(demand), Some(planned)) = (app.demand, self.plan.apps.get(number)) else {
                continue;
            };
            let name = app.name.as_str();
            let measured = snapshot
                .apps
                .get(name)
                .and_then(|figures| figures.delay.recent);
            let measured = measured.filter(|delay| delay.count >= MEASURED_MIN);
            let limit = demand.as_secs_f64() * (1.0 + self.config.gateway.tolerance.get());
            let met = measured
                .map(|delay| delay.p99_seconds <= limit)
                .or(planned.met);
            let standing = self.states.app_mut(name);
            let before = std::mem::replace(&mut standing.demand_met, met);
            let demand_seconds = demand.as_secs_f64();
            match (before, met) {
                (Some(true) | None, Some(false)) => events.push(EventKind::DemandMissed {
                    app: name.to_owned(),
                    path: planned.path.map(|path| self.config[path].name.to_string()),
                    demand_seconds,
                    predicted_seconds: predicted_seconds(planned),
                    p99_seconds: measured.map(|delay| delay.p99_seconds),
                }),
                (Some(false), Some(true)) => events.push(EventKind::DemandMet {
                    app: name.to_owned(),
                    demand_seconds,
                }),
                _ => {}
            }
        }
        events.into_iter().for_each(|event| self.publish(event));
    }

    // Reload and stop.

    fn reload_and_tell(&mut self) {
        // Told, logged and counted inside; a signal has nobody to answer.
        let _ = self.reload();
    }

    /// Reads the configuration file again. A bad one changes nothing.
    ///
    /// # Errors
    /// Why the new configuration is not in force.
    pub(crate) fn reload(&mut self) -> Result<Reloaded, ErrorResponse> {
        match NotifyState::monotonic_usec_now() {
            Ok(time) => notify(&[NotifyState::Reloading, time]),
            Err(error) => tracing::debug!(%error, "reload: no time for the service manager"),
        }
        let result = self.try_reload();
        match &result {
            Ok(reloaded) => {
                self.counts.reloads_accepted += 1;
                self.config_rejected = None;
                let changes = reloaded.changes.clone();
                for line in &reloaded.needs_restart {
                    tracing::warn!("reload: {line}");
                }
                self.publish(EventKind::Reloaded { changes });
            }
            Err((error, problems, first)) => {
                self.counts.reloads_rejected += 1;
                self.config_rejected = Some(format!("{error:#}"));
                tracing::error!("reload refused, everything stays as it was: {error:#}");
                self.publish(EventKind::ConfigRejected {
                    problems: *problems,
                    first: first.clone(),
                });
            }
        }
        notify(&[NotifyState::Ready, NotifyState::Status(&self.status_line())]);
        result.map_err(|(error, _, _)| {
            let hint =
                "correct the file and reload again; `keiro config check` checks it beforehand";
            ErrorResponse::new(ErrorCode::ConfigRejected, format!("{error:#}"), hint)
        })
    }

    fn try_reload(&mut self) -> Result<Reloaded, (anyhow::Error, u64, String)> {
        let one = |error: anyhow::Error| {
            let first = format!("{error:#}");
            (error, 1, first)
        };
        if self.draining {
            return Err(one(anyhow::anyhow!("the gateway is stopping")));
        }
        let config = Config::load(&self.config_path).map_err(|error| {
            let problems = error.problems();
            let first = problems
                .first()
                .map(ToString::to_string)
                .unwrap_or_default();
            let count = problems.len() as u64;
            (error.into(), count, first)
        })?;
        let own_key = |config: &Config| {
            config
                .peers
                .iter()
                .any(|peer| peer.public_key == self.public_key)
        };
        if own_key(&config) {
            return Err(one(anyhow::anyhow!(
                "a peer has this gateway's own public key"
            )));
        }
        let prepared = active::prepare(&config, &self.active).map_err(one)?;
        let changes = Box::new(self.config.diff(&config));
        let needs_restart = self.needs_restart(&config, &changes);
        self.config = config;
        self.config_loaded = SystemTime::now();
        let scheduler = Command::SetScheduler(scheduler(&self.config));
        self.data
            .send(scheduler)
            .map_err(|error| one(error.into()))?;
        self.plan = Question::new(&self.config, &Facts::default()).answer(&self.config);
        // Until the plan: what every application has now comes first.
        let preferences = self.preferences_of_now(&changes);
        let removed = self
            .active
            .apply(&self.config, prepared, &preferences, &self.data);
        for peer in removed.map_err(|error| one(error.into()))? {
            self.states.forget_peer(&peer);
            let reason = keiro_control::protocol::DownReason::Removed;
            self.publish(EventKind::PeerDown { peer, reason });
        }
        self.follow_configuration();
        self.replan().map_err(|error| one(error.into()))?;
        Ok(Reloaded {
            changes,
            needs_restart,
        })
    }

    fn preferences_of_now(&self, changes: &ConfigDiff) -> Preferences {
        let mut preferences = self.preferences();
        let names: BTreeMap<AppIndex, PathIndex> = self
            .facts_now_by_name()
            .into_iter()
            .filter(|(app, _)| !changes.apps.changed.contains(app))
            .filter_map(|(app, path)| {
                Some((self.config.app_named(&app)?, self.config.path_named(&path)?))
            })
            .collect();
        for (app, path) in names {
            if let Some(paths) = preferences.get_mut(&app) {
                paths.retain(|other| *other != path);
                paths.insert(0, path);
            }
        }
        preferences
    }

    fn facts_now_by_name(&self) -> Vec<(String, String)> {
        let Ok(snapshot) = self.data.snapshot() else {
            return Vec::new();
        };
        let sessions = snapshot.sessions.values();
        let apps = sessions.flat_map(|session| session.apps.iter().map(move |app| (session, app)));
        apps.filter_map(|(session, app)| {
            let name = self.active.app_name(session.peer, app.id)?;
            let path = self.active.path_name(session.peer, app.path?)?;
            Some((name.to_owned(), path.to_owned()))
        })
        .collect()
    }

    /// What of `config` is not in force after a reload.
    fn needs_restart(&self, config: &Config, changes: &ConfigDiff) -> Vec<String> {
        let live = ["name", "planner", "tolerance", "scheduler"];
        let keys = changes
            .gateway
            .iter()
            .filter(|key| !live.contains(&key.as_str()));
        let mut lines: Vec<String> = keys
            .map(|key| format!("{key}: the new value takes effect after a restart"))
            .collect();
        let same_key =
            key::load_private_key(&config.gateway.private_key_file).is_ok_and(|private| {
                let private = PrivateKey::from_bytes(*private.as_bytes());
                private.public_key().as_bytes() == self.public_key.as_bytes()
            });
        if !same_key && !changes.gateway.iter().any(|key| key == "private_key_file") {
            lines.push(
                "the private key file holds another key; it takes effect after a restart".into(),
            );
        }
        for peer in &config.peers {
            let before = self
                .config
                .peer_named(peer.name.as_str())
                .map(|index| &self.config[index]);
            if before.is_some_and(|before| {
                before.reassembly_max != peer.reassembly_max && before.public_key == peer.public_key
            }) {
                lines.push(format!(
                    "peer {}: reassembly_max takes effect after a restart",
                    peer.name
                ));
            }
        }
        lines
    }

    fn follow_configuration(&mut self) {
        let peers: Vec<String> = self
            .config
            .peers
            .iter()
            .map(|p| p.name.to_string())
            .collect();
        let paths: Vec<String> = self
            .config
            .paths
            .iter()
            .map(|p| p.name.to_string())
            .collect();
        let apps: Vec<String> = self
            .config
            .apps
            .iter()
            .map(|a| a.name.to_string())
            .collect();
        self.states.follow(data::now(), &peers, &paths, &apps);
        self.loss
            .retain(|(path, peer), _| paths.contains(path) && peers.contains(peer));
        self.operator
            .retain(|app, path| apps.contains(app) && paths.contains(path));
    }

    fn drain(&mut self) -> Result<(), DataThreadGone> {
        self.draining = true;
        notify(&[
            NotifyState::Stopping,
            NotifyState::Status("delivering what is under way"),
        ]);
        let snapshot = self.data.snapshot()?;
        let waiting = snapshot
            .sessions
            .values()
            .map(|s| s.messages_queued as u64)
            .sum();
        self.publish(EventKind::Draining {
            messages_waiting: waiting,
        });
        self.data.send(Command::Drain)
    }

    fn status_line(&self) -> String {
        let met = |app: &&config::App| {
            let standing = self.states.app(app.name.as_str());
            standing.and_then(|standing| standing.demand_met) == Some(true)
        };
        let demanding = self.config.apps.iter().filter(|app| app.demand.is_some());
        format!(
            "{} of {} paths up, {} of {} demands met",
            self.facts.up.len(),
            self.config.paths.len() * self.config.peers.len(),
            demanding.clone().filter(met).count(),
            demanding.count(),
        )
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // Fails only when the thread has ended already.
        let _ = self.data.send(Command::Close);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Handle {
    /// Stops the gateway as SIGTERM does.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::Release);
        self.0.wake.wake();
    }

    /// Reads the configuration again as SIGHUP does.
    pub fn reload(&self) {
        self.0.reload.store(true, Ordering::Release);
        self.0.wake.wake();
    }
}

/// Listeners for local programs.
struct LocalSockets {
    control: ControlServer,
    metrics: Option<MetricsServer>,
    messages: Vec<Listener>,
}

/// Socket files that are removed when the gateway stops or does not come to start.
#[derive(Default)]
struct SocketFiles(Vec<PathBuf>);

impl LocalSockets {
    fn open(config: &Config, epoll: &Epoll, files: &mut SocketFiles) -> anyhow::Result<Self> {
        let gateway = &config.gateway;
        let group = gateway.socket_group.as_deref();
        let mut listen = |path: &Path| -> anyhow::Result<_> {
            let listener = unix::listen(path, group)?;
            files.0.push(path.to_owned());
            Ok(listener)
        };
        let control = listen(&gateway.control_socket)
            .with_context(|| format!("{}: control_socket", config.file()))?;
        let mut messages = Vec::new();
        if let Some(path) = &gateway.message_socket {
            let listener =
                listen(path).with_context(|| format!("{}: message_socket", config.file()))?;
            let path = path.clone();
            messages.push(Listener::Unix { listener, path });
        }
        if let Some(address) = gateway.message_tcp {
            let listener = std::net::TcpListener::bind(address).with_context(|| {
                format!(
                    "{}: message_tcp: cannot listen on {address}; is the port in use? (`ss -tlnp`)",
                    config.file()
                )
            })?;
            listener.set_nonblocking(true)?;
            messages.push(Listener::Tcp(listener));
        }
        let metrics = gateway.metrics.map(|address| -> anyhow::Result<_> {
            let listener = MetricsServer::bind(address).context(config.file().to_owned())?;
            Ok(MetricsServer::new(epoll, listener, token::METRICS)?)
        });
        let path = gateway.control_socket.clone();
        Ok(Self {
            control: ControlServer::new(epoll, control, path, token::CONTROL)?,
            metrics: metrics.transpose()?,
            messages,
        })
    }
}

impl Drop for SocketFiles {
    fn drop(&mut self) {
        for file in &self.0 {
            if let Err(error) = std::fs::remove_file(file)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(file = %file.display(), %error, "cannot remove the socket");
            }
        }
    }
}

/// What the data thread does before it begins.
fn prepare_thread(realtime_priority: Option<u8>, privileges: Privileges) {
    if let Err(error) = realtime::set_timer_slack(Duration::from_nanos(1)) {
        tracing::warn!(%error, "cannot set the timer slack; pacing is less precise");
    }
    if let Some(priority) = realtime_priority {
        let scheduled = match realtime::FifoPriority::new(priority) {
            Some(priority) => realtime::schedule_fifo(priority),
            None => Err(io::Error::other("a priority is 1 to 99")),
        };
        if let Err(error) = scheduled {
            tracing::warn!(
                %error,
                "no real-time priority for the data thread; it needs CAP_SYS_NICE or LimitRTPRIO="
            );
        }
    }
    if privileges == Privileges::Reduced
        && let Err(error) = privilege::reduce_thread(&[])
    {
        tracing::warn!(%error, "the data thread keeps its privileges");
    }
}

/// Leaves the control thread what a reload may need: large receive buffers and low ports.
pub(crate) fn reduce_privileges() -> anyhow::Result<()> {
    let keep = [Capability::NetAdmin, Capability::NetBindService];
    let left = privilege::reduce_thread(&keep).context("cannot give up privileges")?;
    privilege::refuse_new_privileges().context("cannot give up privileges")?;
    tracing::debug!(?left, "privileges reduced");
    Ok(())
}

fn scheduler(config: &Config) -> SchedulerKind {
    match config.gateway.scheduler {
        config::Scheduler::Deadline => SchedulerKind::Deadline,
        config::Scheduler::Fifo => SchedulerKind::Fifo,
    }
}

/// The delay by the model that knows headers and scheduler, or by eq. 3 where that has none.
pub(crate) fn predicted_seconds(planned: &crate::planning::PlannedPath) -> Option<f64> {
    let delay = planned
        .forecast
        .or(planned.prediction.map(|prediction| prediction.delay))?;
    delay.finite().map(|delay| delay.as_secs_f64())
}

fn move_numbers(
    config: &Config,
    plan: &Planned,
    facts: &Facts,
    app: &str,
    from: Option<&str>,
    to: Option<&str>,
) -> MoveNumbers {
    let Some(index) = config.app_named(app) else {
        return MoveNumbers::default();
    };
    let predictions = Question::new(config, facts).predictions(&facts.now, index);
    let predicted = |path: Option<&str>| {
        let path = config.path_named(path?)?;
        let (_, prediction) = predictions.iter().find(|(other, _)| *other == path)?;
        prediction.delay.finite().map(|delay| delay.as_secs_f64())
    };
    MoveNumbers {
        by: plan.apps.get(index.0).map(|planned| planned.by),
        from_predicted: predicted(from),
        to_predicted: predicted(to),
        demand: config[index].demand.map(|demand| demand.as_secs_f64()),
    }
}

fn notify(states: &[NotifyState<'_>]) {
    // Without a service manager this does nothing.
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "service manager");
    }
}

/// One line per event, the numbers in it.
fn log(kind: &EventKind) {
    let event = kind.name();
    let details = serde_json::to_string(kind).unwrap_or_default();
    let bad = matches!(
        kind,
        EventKind::PeerDown { .. }
            | EventKind::PathDown { .. }
            | EventKind::DemandMissed { .. }
            | EventKind::MessageExpired { .. }
            | EventKind::ConfigRejected { .. }
            | EventKind::EventsLost { .. }
    );
    match (bad, kind) {
        (true, _) => tracing::warn!(event, "{details}"),
        (false, EventKind::KeyChanged { .. } | EventKind::MtuChanged { .. }) => {
            tracing::debug!(event, "{details}");
        }
        (false, _) => tracing::info!(event, "{details}"),
    }
}
