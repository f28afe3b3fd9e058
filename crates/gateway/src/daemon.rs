//! The control thread: starts the data thread, serves control socket and metrics, plans, reloads,
//! and stops in order.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::Receiver,
    },
    thread::JoinHandle,
    time::{Duration, Instant as Stopwatch, SystemTime},
};

use anyhow::{Context, bail};
use keiro_control::{
    config::{self, Config},
    key,
    protocol::{Event, EventKind},
};
use keiro_linux::{
    epoll::{Epoll, Interest, ReadyList, Waker},
    metrics_server::MetricsServer,
    signal::{Signal, Signals},
};
use sd_notify::NotifyState;

use crate::{
    active::Active,
    control_server::ControlServer,
    data::command::{Command, DataHandle, DataThreadGone, Report},
    event_text::sentence,
    history::HistoryRecorder,
    planning::{Plan, PlannerInput},
    replan::{Backoff, move_numbers},
    site::Site,
    start::SocketFiles,
    status::{StatusTable, event_now},
    steering::Steering,
    tenants::Tenants,
};

/// A gateway that has been started and waits to be served.
pub struct Gateway {
    pub(crate) config: Config,
    /// What it says that it is.
    pub(crate) version: &'static str,
    pub(crate) config_path: PathBuf,
    pub(crate) config_loaded: SystemTime,
    pub(crate) config_rejected: Option<String>,
    pub(crate) public_key: key::PublicKey,
    pub(crate) started: SystemTime,
    pub(crate) uptime: Stopwatch,
    pub(crate) active: Active,
    pub(crate) tenants: Tenants,
    pub(crate) status: StatusTable,
    pub(crate) plan: Plan,
    pub(crate) counts: Counts,
    /// Applications that an operator has put on a path, by name.
    pub(crate) operator: BTreeMap<String, String>,
    pub(crate) steering: Steering,
    pub(crate) history: HistoryRecorder,
    pub(crate) site: Site,
    pub(crate) store_wake: Arc<Waker>,
    pub(crate) draining: bool,
    pub(crate) data: DataHandle,
    pub(crate) reports: Receiver<Report>,
    pub(crate) reports_lost: u64,
    /// With demands that turn out to be unmet.
    pub(crate) patience: Backoff,
    pub(crate) thread: Option<JoinHandle<()>>,
    pub(crate) epoll: Arc<Epoll>,
    pub(crate) report_wake: Arc<Waker>,
    pub(crate) trigger: Arc<Trigger>,
    pub(crate) server: Option<ControlServer>,
    pub(crate) metrics: Option<MetricsServer>,
    /// Events of the time when the server was busy.
    pub(crate) unpublished: Vec<Event>,
    pub(crate) control_clients: usize,
    pub(crate) input: PlannerInput,
    pub(crate) _socket_files: SocketFiles,
    pub(crate) replan: bool,
    pub(crate) drained: bool,
}

/// Stops or reloads a served gateway from another thread.
#[derive(Clone)]
pub struct Handle(Arc<Trigger>);

pub(crate) struct Trigger {
    pub(crate) wake: Waker,
    pub(crate) stop: AtomicBool,
    pub(crate) reload: AtomicBool,
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

/// What a descriptor in the control thread's epoll set is: the kind in the top byte.
pub(crate) mod token {
    pub(crate) const SIGNALS: u64 = 1;
    pub(crate) const REPORTS: u64 = 2;
    pub(crate) const TRIGGER: u64 = 3;
    pub(crate) const CONTROL: u64 = 4;
    pub(crate) const METRICS: u64 = 5;
    pub(crate) const STORE: u64 = 8;
    pub(crate) const CONTROL_CLIENT: u64 = 6 << 56;
    pub(crate) const METRICS_CLIENT: u64 = 7 << 56;
    pub(crate) const KIND: u64 = 0xff << 56;
}

/// Messages may be under way for this long after SIGTERM.
const DRAIN_TIME: Duration = Duration::from_secs(5);
/// How often demands are compared with measured delays, workloads with those planned with, and the
/// status line is renewed; with many applications less often, since all their numbers are asked for.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
const CHECK_INTERVAL_PER_APP: Duration = Duration::from_micros(500);
/// How often paths are compared with those planned with.
pub(crate) const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
/// Reports taken per turn.
const REPORTS_PER_TURN: usize = 1024;

impl Gateway {
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
        let mut next_check = Stopwatch::now() + self.check_interval();
        let mut next_sample = Stopwatch::now() + SAMPLE_INTERVAL;
        let mut drain_until: Option<Stopwatch> = None;
        let mut asked_again = false;
        while !(self.drained || drain_until.is_some_and(|until| Stopwatch::now() >= until)) {
            let next = next_check.min(next_sample);
            let until = drain_until.map_or(next, |until| until.min(next));
            let left = until.saturating_duration_since(Stopwatch::now());
            self.epoll.wait(&mut ready, Some(left)).context("epoll")?;
            let mut stop = false;
            for event in ready.iter() {
                stop |= self.dispatch(event.token, event.readable, &mut signals)?;
            }
            if Stopwatch::now() >= next_sample {
                next_sample = Stopwatch::now() + SAMPLE_INTERVAL;
                self.sample()?;
            }
            if self.replan {
                self.replan()?;
                // What comes of it for the latency targets is not told a second late.
                next_check = next_check.min(Stopwatch::now() + SAMPLE_INTERVAL);
            }
            if Stopwatch::now() >= next_check {
                next_check = Stopwatch::now() + self.check_interval();
                self.check()?;
                self.tenants.repair(&self.config, &self.data)?;
                self.tell_of_devices();
                self.rearm();
            }
            match (stop, drain_until) {
                (false, _) => {}
                (true, None) => {
                    drain_until = Some(Stopwatch::now() + DRAIN_TIME);
                    self.drain()?;
                }
                // Asked again: at once.
                (true, Some(_)) => {
                    asked_again = true;
                    drain_until = Some(Stopwatch::now());
                }
            }
        }
        // The last minute is not over.
        if let Ok(snapshot) = self.data.snapshot() {
            self.record_minute(&snapshot);
        }
        self.site.leave();
        match (self.drained, asked_again) {
            (true, _) => {}
            (false, true) => tracing::warn!("asked twice to stop: not everything was delivered"),
            (false, false) => {
                tracing::warn!("stopping: not everything was delivered in {DRAIN_TIME:?}");
            }
        }
        Ok(())
    }

    fn check_interval(&self) -> Duration {
        let apps = u32::try_from(self.config.apps.len()).unwrap_or(u32::MAX);
        CHECK_INTERVAL.max(CHECK_INTERVAL_PER_APP * apps)
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
            token::STORE => {
                self.store_wake.reset();
                self.on_store()?;
            }
            token::TRIGGER => {
                self.trigger.wake.reset();
                self.take_history_news();
                if self.trigger.reload.swap(false, Ordering::AcqRel) {
                    self.reload_and_tell();
                }
                // Once: the history wakes by the same way.
                return Ok(self.trigger.stop.swap(false, Ordering::AcqRel));
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
            client => {
                self.serve_client(client, readable);
                // It may have left, and its descriptor is free.
                self.rearm();
            }
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

    /// Lets listeners that rest accept again.
    fn rearm(&mut self) {
        if let Some(server) = &mut self.server {
            server.rearm(&self.epoll);
        }
        if let Some(metrics) = &mut self.metrics {
            metrics.rearm(&self.epoll);
        }
    }

    fn take_reports(&mut self) -> anyhow::Result<()> {
        let mut is_device_lost = false;
        for number in 0..REPORTS_PER_TURN {
            let Ok(report) = self.reports.try_recv() else {
                break;
            };
            if number + 1 == REPORTS_PER_TURN {
                // There may be more.
                self.report_wake.wake();
            }
            match report {
                Report::Core { at, event } => self.on_core_event(at, &event),
                Report::Expired {
                    app,
                    age,
                    length_bytes,
                } => {
                    let kind = self.status.on_expired(&app, age, length_bytes);
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
                Report::DeviceLost { number, error } => {
                    self.tenants.on_lost(number, error);
                    is_device_lost = true;
                }
                Report::Drained => self.drained = true,
                Report::Failed(error) => bail!("the data thread failed: {error}"),
            }
        }
        if is_device_lost {
            self.tell_of_devices();
        }
        Ok(())
    }

    fn on_core_event(&mut self, at: keiro_core::Instant, event: &keiro_core::Event) {
        if let Some(kind) = self.told_of_tenant(event) {
            return self.publish(kind);
        }
        let (config, plan, input) = (&self.config, &self.plan, &self.input);
        let numbers = |app: &str, from: Option<&str>, to: Option<&str>| {
            move_numbers(config, plan, input, app, from, to)
        };
        let effect = self.status.on_event(&self.active, at, event, numbers);
        self.replan |= effect.replan;
        if let Some(kind) = effect.event {
            self.publish(kind);
        }
    }

    /// Tells what has become of tenants' devices since it was told last.
    pub(crate) fn tell_of_devices(&mut self) {
        for kind in self.tenants.events(&self.config) {
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

    pub(crate) fn status_line(&self) -> String {
        let met = |app: &&config::App| {
            let standing = self.status.app(app.name.as_str());
            let verdict = standing.and_then(|standing| standing.latency_target.verdict());
            verdict.is_some_and(|verdict| verdict.met)
        };
        let demanding = self
            .config
            .apps
            .iter()
            .filter(|app| app.latency_target.is_some());
        format!(
            "{} of {} paths up, {} of {} demands met",
            self.input.paths_up(),
            self.config.paths.len() * self.config.peers.len(),
            demanding.clone().filter(met).count(),
            demanding.count(),
        )
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.tenants.remove_all();
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

pub(crate) fn notify(states: &[NotifyState<'_>]) {
    // Without a service manager this does nothing.
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "service manager");
    }
}

/// One line per event.
fn log(kind: &EventKind) {
    let event = kind.name();
    let text = sentence(kind);
    let bad = matches!(
        kind,
        EventKind::PeerDown { .. }
            | EventKind::PathDown { .. }
            | EventKind::TargetMissed { .. }
            | EventKind::MessageExpired { .. }
            | EventKind::ConfigRejected { .. }
            | EventKind::DeviceLost { .. }
            | EventKind::DeviceDown { .. }
            | EventKind::TenantUnknown { .. }
            | EventKind::TenantRefused { .. }
            | EventKind::StoreLost { .. }
            | EventKind::StoreNotice { .. }
            | EventKind::EventsLost { .. }
    );
    match (bad, kind) {
        (true, _) => tracing::warn!(event, "{text}"),
        (false, EventKind::KeyChanged { .. } | EventKind::MtuChanged { .. }) => {
            tracing::debug!(event, "{text}");
        }
        (false, _) => tracing::info!(event, "{text}"),
    }
}
