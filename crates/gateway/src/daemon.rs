//! The control thread's loop: serves the control socket and metrics, runs regular checks, and stops
//! in order.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant as Stopwatch},
};

use anyhow::{Context, bail};
use keiro_control::protocol::EventKind;
use keiro_core::PathId;
use keiro_linux::{
    epoll::{Epoll, Interest, ReadyList},
    signal::{Signal, Signals},
};
use sd_notify::NotifyState;

use crate::{
    control_server::ControlServer,
    data::{
        command::{Command, DataThreadGone},
        report::Report,
    },
    epoll_token as token,
    event_log::Line,
    gateway::{Gateway, PlanningState, notify},
    replan::move_numbers,
    status::AppMove,
    steering::SAMPLE_INTERVAL,
};

/// How long messages may take to be delivered after SIGTERM.
const DRAIN_TIME: Duration = Duration::from_secs(5);
/// How often latency targets are compared with measured delays and workloads with planned ones, and
/// the status line is renewed. With many applications less often, since all their figures are read.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
const CHECK_INTERVAL_PER_APP: Duration = Duration::from_micros(500);
/// Reports taken per turn.
const REPORTS_PER_TURN: usize = 1024;

impl Gateway {
    /// Serves until stopped, then drains.
    ///
    /// `signals` as of [`Signals::block`]; `None`: only the [`crate::Handle`] stops it.
    ///
    /// # Errors
    /// The data thread ended by itself, or the system fails.
    pub fn serve(mut self, mut signals: Option<Signals>) -> anyhow::Result<()> {
        if let Some(signals) = &signals {
            self.events
                .epoll
                .add(signals, token::SIGNALS, Interest::Read)?;
        }
        notify(&[NotifyState::Ready, NotifyState::Status(&self.status_line())]);
        let mut ready = ReadyList::new(64);
        let mut next_check = Stopwatch::now() + self.check_interval();
        let mut next_sample = Stopwatch::now() + SAMPLE_INTERVAL;
        let mut drain_until: Option<Stopwatch> = None;
        let mut asked_again = false;
        while !(self.drained || drain_until.is_some_and(|until| Stopwatch::now() >= until)) {
            let next = next_check.min(next_sample);
            let next = self.network_due().map_or(next, |due| due.min(next));
            let readers = self.events.control_server.as_ref();
            let readers = readers.and_then(ControlServer::readers_due);
            let next = readers.map_or(next, |due| due.min(next));
            let until = drain_until.map_or(next, |until| until.min(next));
            let left = until.saturating_duration_since(Stopwatch::now());
            self.events
                .epoll
                .wait(&mut ready, Some(left))
                .context("epoll")?;
            let mut stop = false;
            for event in ready.iter() {
                stop |= self.dispatch(event.token, event.readable, &mut signals)?;
            }
            self.with_control_server(|server, epoll, gateway| {
                server.serve_readers(epoll, |request| gateway.answer(request));
            });
            self.track_network()?;
            if Stopwatch::now() >= next_sample {
                next_sample = Stopwatch::now() + SAMPLE_INTERVAL;
                self.sample()?;
            }
            if self.planning.needs_replan {
                self.replan()?;
                // Report what the plan means for latency targets soon.
                next_check = next_check.min(Stopwatch::now() + SAMPLE_INTERVAL);
            }
            if Stopwatch::now() >= next_check {
                next_check = Stopwatch::now() + self.check_interval();
                self.check()?;
                self.follow_registry();
                self.retry_pushes()?;
                self.update_direct_sessions()?;
                self.end_idle_traces()?;
                self.retry_uplinks();
                let unreached = self.unreached_exits();
                self.tenants.repair(&self.config, unreached, &self.data)?;
                self.publish_device_events();
                self.log_repeats();
                self.rearm();
            }
            match (stop, drain_until) {
                (false, _) => {}
                (true, None) => {
                    drain_until = Some(Stopwatch::now() + DRAIN_TIME);
                    self.drain()?;
                }
                // A second signal: stop at once.
                (true, Some(_)) => {
                    asked_again = true;
                    drain_until = Some(Stopwatch::now());
                }
            }
        }
        // Record the unfinished minute.
        if let Ok(snapshot) = self.data.snapshot() {
            self.record_minute(&snapshot);
            self.note_host_names(&snapshot);
        }
        self.site.leave();
        let repeats = self.events.log.finish(Stopwatch::now());
        repeats.iter().for_each(Line::write);
        match (self.drained, asked_again) {
            (true, _) => {}
            (false, true) => tracing::warn!("asked twice to stop: not everything was delivered"),
            (false, false) => {
                tracing::warn!("stopping: not everything was delivered in {DRAIN_TIME:?}");
            }
        }
        // Notifies the peers and closes sockets and devices.
        drop(self);
        tracing::info!("stopped");
        Ok(())
    }

    /// Logs what has repeated for a minute.
    fn log_repeats(&mut self) {
        let lines = self.events.log.on_timeout(Stopwatch::now());
        lines.iter().for_each(Line::write);
    }

    fn check_interval(&self) -> Duration {
        let apps = u32::try_from(self.config.apps.len()).unwrap_or(u32::MAX);
        CHECK_INTERVAL.max(CHECK_INTERVAL_PER_APP * apps)
    }

    /// Handles one ready descriptor. Returns whether the gateway is to stop.
    fn dispatch(
        &mut self,
        token: u64,
        readable: bool,
        signals: &mut Option<Signals>,
    ) -> anyhow::Result<bool> {
        match token {
            token::REPORTS => {
                self.data_thread.wake.reset();
                self.take_reports()?;
            }
            token::STORE => {
                self.events.store_wake.reset();
                self.on_store()?;
            }
            token::NETWORK => self.on_network_event(),
            token::RESOLVER => self.on_host_names(),
            token::TRIGGER => {
                self.events.trigger.wake.reset();
                self.on_history();
                if self.events.trigger.reload.swap(false, Ordering::AcqRel) {
                    self.reload_on_signal();
                }
                // Clear the flag: the history wakes the thread by the same descriptor.
                return Ok(self.events.trigger.stop.swap(false, Ordering::AcqRel));
            }
            token::SIGNALS => {
                while let Some(signal) = signals.as_mut().map(Signals::take).transpose()?.flatten()
                {
                    match signal {
                        Signal::Reload => self.reload_on_signal(),
                        Signal::Stop => return Ok(true),
                    }
                }
            }
            token::CONTROL | token::CONTROL_READONLY => {
                if let Some(server) = &mut self.events.control_server {
                    server.accept(&self.events.epoll, |number| token::CONTROL_CLIENT | number);
                }
            }
            token::METRICS => {
                if let Some(metrics) = &mut self.events.metrics_server {
                    metrics.accept(&self.events.epoll, |number| token::METRICS_CLIENT | number);
                }
            }
            client => {
                self.serve_client(client, readable);
                // The client may have closed, which frees its descriptor.
                self.rearm();
            }
        }
        Ok(false)
    }

    fn serve_client(&mut self, client: u64, readable: bool) {
        let number = client & !token::KIND;
        match client & token::KIND {
            token::CONTROL_CLIENT => self.with_control_server(|server, epoll, gateway| {
                server.serve(epoll, number, readable, |request| gateway.answer(request));
            }),
            token::METRICS_CLIENT => {
                if let Some(mut metrics) = self.events.metrics_server.take() {
                    let epoll = Arc::clone(&self.events.epoll);
                    metrics.serve(&epoll, number, readable, || self.metrics_page());
                    self.events.metrics_server = Some(metrics);
                }
            }
            _ => {}
        }
    }

    /// Lets the control server serve. It is taken out meanwhile, because answering needs the rest of the gateway.
    fn with_control_server(&mut self, serve: impl FnOnce(&mut ControlServer, &Epoll, &mut Self)) {
        let Some(mut server) = self.events.control_server.take() else {
            return;
        };
        self.events.control_clients = server.clients();
        let epoll = Arc::clone(&self.events.epoll);
        serve(&mut server, &epoll, self);
        self.events.control_server = Some(server);
        for event in std::mem::take(&mut self.events.deferred) {
            self.send_to_monitors(event);
        }
    }

    /// Lets listeners that paused for lack of descriptors accept again.
    fn rearm(&mut self) {
        if let Some(server) = &mut self.events.control_server {
            server.rearm(&self.events.epoll);
        }
        if let Some(metrics) = &mut self.events.metrics_server {
            metrics.rearm(&self.events.epoll);
        }
    }

    fn take_reports(&mut self) -> anyhow::Result<()> {
        let mut is_device_lost = false;
        for number in 0..REPORTS_PER_TURN {
            let Ok(report) = self.data_thread.reports.try_recv() else {
                break;
            };
            if number + 1 == REPORTS_PER_TURN {
                // There may be more.
                self.data_thread.wake.wake();
            }
            match report {
                Report::Core { at, event } => self.on_core_event(at, &event),
                Report::Expired {
                    app,
                    age,
                    length_bytes,
                } => {
                    if let Some(name) = self.running_config.configured_name(app) {
                        let kind = self.status.on_expired(name, age, length_bytes);
                        self.publish(kind);
                    }
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
                Report::PrefixMismatch { tenant, mismatch } => {
                    if let Some(kind) = self.prefix_event(tenant, mismatch) {
                        self.publish(kind);
                    }
                }
                Report::Destination {
                    tenant,
                    destination,
                } => self.on_destination(tenant, destination)?,
                Report::NetworkDocument { peer, id, bytes } => {
                    self.on_network_document(peer, id, &bytes)?;
                }
                Report::NetworkDocumentDone { peer, is_delivered } => {
                    self.on_network_document_done(peer, is_delivered);
                }
                Report::Drained => self.drained = true,
                Report::Failed(error) => bail!("the data thread failed: {error}"),
            }
        }
        if is_device_lost {
            self.publish_device_events();
        }
        self.push_registry()?;
        Ok(())
    }

    fn on_core_event(&mut self, at: keiro_core::Instant, event: &keiro_core::Event) {
        if let Some(kind) = self.tenant_event(event) {
            return self.publish(kind);
        }
        if let keiro_core::Event::PathsWanted {
            peer,
            socket,
            paths,
        } = event
        {
            return self.on_paths_wanted(*peer, *socket, *paths);
        }
        if let keiro_core::Event::AppMismatch { peer, app, .. } = event
            && let Some(tenant) = self.split_of(*app)
        {
            // It is no application of a configuration.
            let peer = self.running_config.peer_name(*peer).unwrap_or_default();
            return tracing::warn!(
                peer,
                tenant = tenant.name.as_str(),
                "one of both gateways does not split TCP connections of the tenant, which stay IP packets; \
                 write tcp = \"split\" at both"
            );
        }
        self.sites.on_event(event);
        if let keiro_core::Event::PeerDown {
            peer,
            closed_by_peer: true,
        } = event
            && let Some(name) = self.running_config.peer_name(*peer)
        {
            self.sites.direct.on_closed(Stopwatch::now(), name);
        }
        let PlanningState {
            config,
            plan,
            input,
            ..
        } = &self.planning;
        let path_ids = self.running_config.path_ids();
        let numbers = |moved: &AppMove<'_>| {
            let index = |path: Option<PathId>| path.and_then(|path| path_ids.index(path));
            let (from, to) = (index(moved.from), index(moved.to));
            move_numbers(config, plan, input, moved.app, from, to)
        };
        let effect = self
            .status
            .on_event(&self.running_config, at, event, numbers);
        self.planning.needs_replan |= effect.replan;
        // What becomes of an invitation is reported for itself.
        if let Some(kind) = effect.event.filter(|kind| !self.is_of_invitation(kind)) {
            self.publish(kind);
        }
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
            .map(|s| s.stats.waiting_messages)
            .sum();
        self.publish(EventKind::Draining {
            waiting_messages: waiting,
        });
        self.data.send(Command::Drain)
    }
}
