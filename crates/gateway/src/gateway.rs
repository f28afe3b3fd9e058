//! The control thread's state, and what every part of it needs: publishing events and the status
//! line.
//!
//! What changes this state lives in the modules above: [`crate::daemon`] (the loop),
//! [`crate::replan`], [`crate::reload`], [`crate::requests`] and so on.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, mpsc::Receiver},
    thread::JoinHandle,
    time::{Instant as Stopwatch, SystemTime},
};

use keiro_control::{
    config::{self, Config, Found, Withheld},
    key,
    protocol::{Event, EventKind},
};
use keiro_core::{AppId, PathId};
use keiro_linux::{
    epoll::{Epoll, Waker},
    metrics_server::MetricsServer,
};
use keiro_model::aggregation::ControllerKind;
use keiro_planning::{Plan, PlannerConfig, PlannerInput};
use sd_notify::NotifyState;

use crate::{
    budgets::Budgets,
    control_server::ControlServer,
    data::{
        command::{Command, DataHandle},
        report::Report,
    },
    document_counts::DocumentCounts,
    endpoints::HostNames,
    event_log::EventLog,
    handshake_time::HandshakeTime,
    history::HistoryRecorder,
    message_tls::MessageTlsServer,
    packet_trace::PacketTraces,
    recent_events::RecentEvents,
    replan_backoff::Backoff,
    restart_only_settings::RestartOnlySettings,
    running_config::RunningConfig,
    site_plan::SitePlanClient,
    sites::Sites,
    socket_files::SocketFiles,
    status::{StatusTable, event_now},
    steering::Steering,
    tenants::TenantDevices,
    trigger::{Handle, Trigger},
    uplinks::{NetworkWatch, UplinkRoutes},
};

/// A gateway that has been started and waits to be served.
pub struct Gateway {
    /// With what was found.
    pub(crate) config: Config,
    /// As in the file, with the sites of the network.
    pub(crate) written: Config,
    pub(crate) sites: Sites,
    /// What the machine, the network and the peers have shown, and what of it the configuration follows.
    pub(crate) found: Found,
    pub(crate) followed: Found,
    pub(crate) config_file: ConfigFile,
    pub(crate) process: Process,
    pub(crate) running_config: RunningConfig,
    pub(crate) tenants: TenantDevices,
    pub(crate) status: StatusTable,
    pub(crate) planning: PlanningState,
    pub(crate) counts: Counts,
    pub(crate) packet_traces: PacketTraces,
    pub(crate) history: HistoryRecorder,
    pub(crate) budgets: Budgets,
    pub(crate) site: SitePlanClient,
    pub(crate) host_names: HostNames,
    /// `None`: the kernel reports no changes, and nothing is looked at.
    pub(crate) network: Option<NetworkWatch>,
    pub(crate) uplink_routes: UplinkRoutes,
    pub(crate) data: DataHandle,
    pub(crate) data_thread: DataThreadLink,
    /// `None`: the configuration had no `[message_tls]` at the start.
    pub(crate) message_tls: Option<MessageTlsServer>,
    pub(crate) events: EventLoop,
    /// Prefixes that are not routed, as was reported last.
    pub(crate) withheld: Vec<Withheld>,
    pub(crate) draining: bool,
    pub(crate) drained: bool,
}

/// The file of the configuration.
pub(crate) struct ConfigFile {
    pub(crate) path: PathBuf,
    /// As in [`Options`](crate::Options).
    pub(crate) controller: Option<ControllerKind>,
    /// When the configuration in use was read.
    pub(crate) loaded: SystemTime,
    /// Why the last reload was refused; `None`: it was not.
    pub(crate) rejected: Option<String>,
    /// What runs where it may differ from the configuration.
    pub(crate) running: RestartOnlySettings,
}

/// What stays the same until the process ends.
pub(crate) struct Process {
    pub(crate) version: &'static str,
    pub(crate) public_key: key::PublicKey,
    pub(crate) started: SystemTime,
    pub(crate) uptime: Stopwatch,
}

/// The plan in force, what it was made from, and when the next one is due.
pub(crate) struct PlanningState {
    /// What plans need of [`Gateway::config`], which it follows.
    pub(crate) config: PlannerConfig,
    pub(crate) plan: Plan,
    pub(crate) input: PlannerInput,
    pub(crate) steering: Steering,
    /// Paths to which an operator assigned applications.
    pub(crate) operator_paths: BTreeMap<AppId, PathId>,
    pub(crate) backoff: Backoff,
    pub(crate) needs_replan: bool,
}

/// The control thread's end of the data thread's reports.
pub(crate) struct DataThreadLink {
    pub(crate) reports: Receiver<Report>,
    pub(crate) reports_lost: u64,
    pub(crate) wake: Arc<Waker>,
    pub(crate) join: Option<JoinHandle<()>>,
    /// Its thread ends with this.
    pub(crate) _handshake_time: HandshakeTime,
}

/// What the control thread waits for, and its clients.
pub(crate) struct EventLoop {
    pub(crate) epoll: Arc<Epoll>,
    pub(crate) trigger: Arc<Trigger>,
    pub(crate) store_wake: Arc<Waker>,
    pub(crate) control_server: Option<ControlServer>,
    pub(crate) metrics_server: Option<MetricsServer>,
    /// Events that were published while the control server was answering a request.
    pub(crate) deferred: Vec<Event>,
    /// Clients of the control server while it is answering.
    pub(crate) control_clients: usize,
    pub(crate) log: EventLog,
    pub(crate) recent: RecentEvents,
    pub(crate) _socket_files: SocketFiles,
}

/// What the control thread counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) reloads_accepted: u64,
    pub(crate) reloads_rejected: u64,
    pub(crate) plans_unchanged: u64,
    pub(crate) plans_changed: u64,
    pub(crate) plans_infeasible: u64,
    pub(crate) documents: DocumentCounts,
}

impl Gateway {
    /// Stops or reloads this gateway from another thread.
    pub fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.events.trigger))
    }

    /// Logs an event, or counts it if it repeats, and sends it to the clients that monitor.
    pub(crate) fn publish(&mut self, kind: EventKind) {
        if let Some(line) = self.events.log.on_event(Stopwatch::now(), &kind) {
            line.write();
        }
        let event = event_now(kind);
        self.events.recent.on_event(Stopwatch::now(), &event);
        self.send_to_monitors(event);
    }

    pub(crate) fn send_to_monitors(&mut self, event: Event) {
        match &mut self.events.control_server {
            Some(server) => server.publish(&self.events.epoll, &event),
            None => self.events.deferred.push(event),
        }
    }

    /// Publishes what happened to tenants' devices since the last call.
    pub(crate) fn publish_device_events(&mut self) {
        for kind in self.tenants.events(&self.config) {
            self.publish(kind);
        }
    }

    /// Clients of the control socket.
    pub(crate) fn control_clients(&self) -> usize {
        self.events
            .control_server
            .as_ref()
            .map_or(self.events.control_clients, ControlServer::clients)
    }

    pub(crate) fn path_of_socket(&self, socket: keiro_core::SocketId) -> String {
        let path = self.running_config.local_of(socket).and_then(|local| {
            let mut paths = self.config.paths.iter();
            paths.find(|path| path.local == *local)
        });
        path.map(|path| path.name.to_string()).unwrap_or_default()
    }

    pub(crate) fn status_line(&self) -> String {
        let met = |app: &&config::App| {
            let status = self.status.app(app.name.as_str());
            let verdict = status.and_then(|status| status.latency_target.verdict());
            verdict.is_some_and(|verdict| verdict.met)
        };
        let peers = self.config.peers.iter();
        let is_expected = |peer: &&config::Peer| match peer.origin {
            config::PeerOrigin::Written
            | config::PeerOrigin::Site
            | config::PeerOrigin::SecondHub => true,
            // Translators may not let another branch in.
            config::PeerOrigin::Direct => self.is_peer_up(&peer.name),
            // Who is invited may never come.
            config::PeerOrigin::Invitation => false,
        };
        let expected = peers.filter(is_expected);
        let paths: usize = expected
            .map(|peer| self.running_config.paths_to(peer.name.as_str()))
            .sum();
        let with_target = self
            .config
            .apps
            .iter()
            .filter(|app| app.latency_target.is_some());
        format!(
            "{} of {} paths up, {} of {} latency targets met",
            self.planning.input.paths_up(),
            paths,
            with_target.clone().filter(met).count(),
            with_target.count(),
        )
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.tenants.leave(&self.config);
        // Fails only when the thread has ended already.
        let _ = self.data.send(Command::Close);
        if let Some(thread) = self.data_thread.join.take() {
            let _ = thread.join();
        }
    }
}

pub(crate) fn notify(states: &[NotifyState<'_>]) {
    // Without a service manager this does nothing.
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "service manager");
    }
}
