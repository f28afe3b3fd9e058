//! What is active, in the control protocol's types: one snapshot of the data thread beside what the
//! control thread knows.

mod explanation;
mod figures;
mod model;
mod path_in_use;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant as Stopwatch, SystemTime, UNIX_EPOCH},
};

use keiro_control::{
    config::{App, AppIndex, Class, PathIndex, PathOrigin, Peer, PeerOrigin},
    protocol::{
        AggregationChange, AggregationSnapshot, AppSnapshot, AssignedBy, DelaySummary,
        ErrorResponse, FecSnapshot, ForwardSnapshot, JudgedBy, ListenerSnapshot, PROTOCOL_VERSION,
        PathSnapshot, PathState, PathTermsSnapshot, PeerSnapshot, PeerState, PlanSnapshot,
        Response, SharedLineSnapshot, SpreadPathSnapshot, Stats, StatusSnapshot,
        TcpForwardSnapshot, TcpListenerSnapshot, Timestamp, VersionSnapshot, WorkloadSnapshot,
    },
    units::Text,
};
use keiro_core::{self as core, DropCounters, SessionSnapshot};
use keiro_linux::tcp::Mode;
use keiro_model::aggregation::{Cause, ControllerKind, Decision};
use keiro_planning::{
    AppAssignment, Plan, PlannerInput, excess_loss, paths_in_use, plan_snapshot, workload_of,
};
use keiro_stats::{AppStats, CapacityStats, PathSocketStats, PeerStats};

use self::figures::{
    aggregation, forward, listeners, path_state, summary, tcp_forward, tcp_listeners,
    with_local_figures,
};
use crate::{
    data::{
        command::Snapshot,
        figures::{AppFigures, TcpListenerFigures},
        measure::DelayQuantiles,
    },
    diagnosis::{path_diagnosis, path_fault, problems},
    error_response::internal,
    explain::{NO_CONTROLLER, shared_line},
    gateway::Gateway,
    metrics::{self, Page},
    path_ids::PeerPath,
    running_config::app_id,
    status::{aggregation_parameters, duplicate_key},
    workload::body_bytes,
};

/// The gateway at one moment.
pub(crate) struct View<'a> {
    gateway: &'a Gateway,
    snapshot: &'a Snapshot,
    pub(crate) input: PlannerInput,
    /// Everybody where they are, by these input.
    present: Plan,
}

impl Gateway {
    /// Looks at everything and hands it to `look`.
    pub(crate) fn with_view(
        &self,
        look: impl FnOnce(&View<'_>) -> Result<Response, ErrorResponse>,
    ) -> Result<Response, ErrorResponse> {
        let snapshot = self.data.snapshot().map_err(internal)?;
        look(&View::of(self, &snapshot))
    }

    pub(crate) fn version(&self) -> VersionSnapshot {
        VersionSnapshot {
            version: self.process.version.to_owned(),
            protocol_version: PROTOCOL_VERSION,
        }
    }

    /// The page for Prometheus; empty if the data thread does not answer.
    pub(crate) fn metrics_page(&self) -> String {
        let Ok(snapshot) = self.data.snapshot() else {
            return String::new();
        };
        View::of(self, &snapshot).metrics()
    }
}

impl<'a> View<'a> {
    fn of(gateway: &'a Gateway, snapshot: &'a Snapshot) -> Self {
        let input = gateway.planner_input(snapshot);
        Self {
            gateway,
            snapshot,
            present: gateway.present_plan(&input),
            input,
        }
    }

    pub(crate) fn status(&self) -> StatusSnapshot {
        let gateway = self.gateway;
        let config = &gateway.config;
        let (mut paths, mut peers, apps) = (self.paths(), self.peers(), self.apps());
        // Translators may not let another branch in, which is no fault.
        peers.retain(|peer| !peer.direct || peer.state == PeerState::Up);
        paths.retain(|path| peers.iter().any(|peer| peer.name == path.peer));
        let (model, model_why) = self.model(&apps);
        let count = |count: usize| count as u64;
        StatusSnapshot {
            name: config.gateway.name.to_string(),
            version: gateway.process.version.to_owned(),
            public_key: gateway.process.public_key.to_string(),
            started: Timestamp(gateway.process.started),
            uptime_seconds: gateway.process.uptime.elapsed().as_secs_f64(),
            config_file: gateway.config_file.path.display().to_string(),
            config_loaded: Timestamp(gateway.config_file.loaded),
            problems: self.problems(&peers, &paths),
            withheld_prefixes: gateway.withheld_lines(),
            config_rejected: gateway.rejected(),
            needs_restart: gateway.config_file.running.pending().to_vec(),
            draining: gateway.draining,
            scheduler: config.gateway.scheduler,
            planner: config.gateway.planner,
            tolerance_ratio: config.gateway.tolerance.get(),
            model,
            model_why,
            path_problems: self.path_problems(),
            paths_up: count(
                paths
                    .iter()
                    .filter(|path| path.state == PathState::Up)
                    .count(),
            ),
            paths: count(paths.iter().filter(|path| !path.abandoned).count()),
            peers_up: count(
                peers
                    .iter()
                    .filter(|peer| peer.state == PeerState::Up)
                    .count(),
            ),
            peers: count(peers.len()),
            apps: count(apps.len()),
            apps_with_target: count(
                apps.iter()
                    .filter(|a| a.stats.latency_target.is_some())
                    .count(),
            ),
            apps_target_met: count(
                apps.iter()
                    .filter(|a| a.stats.target_met == Some(true))
                    .count(),
            ),
            apps_target_measured: judged_by(&apps, JudgedBy::Measurement),
            apps_target_by_equation3: judged_by(&apps, JudgedBy::Equation3),
            tenants: count(config.tenants.len()),
            tenants_with_device: count(gateway.tenants.tenants_with_device(config)),
            store: gateway.site.snapshot(),
            message_senders: self.snapshot.message_senders,
            message_receivers: self.snapshot.message_receivers,
            handshakes: Stats(self.snapshot.endpoint.stats),
            history: gateway.history.snapshot(),
            recent_events: gateway.events.recent.snapshot(Stopwatch::now()),
        }
    }

    /// One for every path and peer.
    pub(crate) fn paths(&self) -> Vec<PathSnapshot> {
        let paths = (0..self.gateway.config.paths.len()).map(PathIndex);
        paths
            .flat_map(|path| {
                self.shown_peers()
                    .filter_map(move |peer| self.path(path, peer))
            })
            .collect()
    }

    /// Those that are expected to be up.
    fn shown_peers(&self) -> impl Iterator<Item = &'a Peer> {
        let peers = self.gateway.config.peers.iter();
        peers.filter(|peer| peer.origin != PeerOrigin::Invitation)
    }

    pub(crate) fn peers(&self) -> Vec<PeerSnapshot> {
        self.shown_peers()
            .filter_map(|peer| self.peer(peer))
            .collect()
    }

    pub(crate) fn apps(&self) -> Vec<AppSnapshot> {
        let apps = self.gateway.config.apps.iter().enumerate();
        apps.map(|(number, app)| self.app(AppIndex(number), app))
            .collect()
    }

    /// A plan beside the paths that are, or were `before` it was applied.
    pub(crate) fn plan(&self, planned: &Plan, before: Option<&PlannerInput>) -> PlanSnapshot {
        let config = &self.gateway.planning.config;
        let now = paths_in_use(config, before.unwrap_or(&self.input));
        PlanSnapshot {
            model: self.model(&self.apps()).0,
            applied: before.is_some(),
            ..plan_snapshot(config, planned, &now, &self.input.shared)
        }
    }

    /// Other gateways of the site on a path.
    fn shared_line(&self, path: PathIndex) -> Option<SharedLineSnapshot> {
        shared_line(self.input.shared.of(path), self.store_lost())
    }

    fn store_lost(&self) -> Option<Duration> {
        self.gateway.site.others_age(Stopwatch::now())
    }

    fn session(&self, peer: &str) -> Option<&SessionSnapshot> {
        self.snapshot
            .sessions
            .get(&self.gateway.running_config.peer_id(peer)?)
    }

    fn path(&self, index: PathIndex, peer: &Peer) -> Option<PathSnapshot> {
        let path = &self.gateway.config[index];
        let (name, peer_name) = (path.name.as_str(), peer.name.as_str());
        let session = self.session(peer_name)?;
        let id = self.gateway.running_config.path_ids().id(index)?;
        let live = session.paths.iter().find(|live| live.id == id)?;
        let to_peer = PeerPath::new(session.peer, id);
        let status = self.gateway.status.path(to_peer);
        let since = status.map(|status| status.since);
        let measured = live
            .stats
            .base_rtt
            .or(live.stats.min_rtt)
            .map(|round_trip| round_trip / 2);
        let level = self.gateway.planning.steering.level(to_peer);
        let seconds = |duration: Duration| duration.as_secs_f64();
        Some(PathSnapshot {
            name: name.to_owned(),
            peer: peer_name.to_owned(),
            state: path_state(live.state),
            abandoned: live.is_abandoned,
            why: status.map(|status| status.why.clone()).unwrap_or_default(),
            diagnosis: path_diagnosis(self.snapshot.at, live, session.key_since.is_some())
                .filter(|_| !live.is_abandoned),
            trouble: path_fault(self.snapshot.at, live).filter(|_| !live.is_abandoned),
            trusted_in_seconds: self
                .gateway
                .planning
                .steering
                .hold_down_left(to_peer, live)
                .map(seconds),
            state_seconds: since.map_or(0.0, |since| self.age(since)),
            local: self
                .gateway
                .local_address(path)
                .unwrap_or_else(|| path.local.to_string()),
            interface: path.local.interface().map(str::to_owned),
            problem: self
                .gateway
                .running_config
                .uplinks()
                .problem(&path.local)
                .map(|problem| problem.to_string()),
            remote: live.remote.map(|remote| remote.to_string()),
            stats: Stats(live.stats),
            socket: self.socket(path).copied().map(Stats),
            aggregation: live
                .aggregation
                .as_ref()
                .map(|live| aggregation(live, self.snapshot.at)),
            capacity: live.capacity.map(|measured| {
                Stats(CapacityStats {
                    rate: measured.capacity.rate,
                    low: measured.capacity.low,
                    high: measured.capacity.high,
                    age: self.snapshot.at.saturating_duration_since(measured.at),
                })
            }),
            rate_state: live.rate.map(|rate| rate.state.to_string()),
            rate_assumed: live.rate_is_assumed(),
            delay_seconds: level
                .map(|level| level.delay)
                .or(path.delay)
                .or(measured)
                .map(seconds),
            delay_configured: path.delay.is_some(),
            configured_delay_seconds: path.delay.map(seconds),
            shared_line: self.shared_line(index),
            path_terms: PathTermsSnapshot::of(self.gateway.path_terms(index, live)),
            budget: self
                .gateway
                .budgets
                .snapshot(&self.gateway.config, index, SystemTime::now()),
        })
    }

    /// Names without addresses, then peers and paths that are not up.
    fn problems(&self, peers: &[PeerSnapshot], paths: &[PathSnapshot]) -> Vec<String> {
        let mut lines = self.gateway.host_names.problems();
        lines.extend(problems(peers, paths));
        lines
    }

    /// What this machine lacks for each path that it cannot use.
    fn path_problems(&self) -> Vec<String> {
        let uplinks = self.gateway.running_config.uplinks();
        let paths = self.gateway.config.paths.iter();
        let uplink_paths = paths.filter(|path| !matches!(path.origin, PathOrigin::Further(_)));
        uplink_paths
            .filter_map(|path| {
                let problem = uplinks.problem(&path.local)?;
                Some(format!("path {}: {problem}", path.name))
            })
            .collect()
    }

    /// The socket of a path; `None`: it is not open.
    fn socket(&self, path: &keiro_control::config::Path) -> Option<&PathSocketStats> {
        let id = self.gateway.running_config.socket_of(&path.local)?;
        self.snapshot.sockets.get(&id)
    }

    fn peer(&self, peer: &Peer) -> Option<PeerSnapshot> {
        let name = peer.name.as_str();
        let session = self.session(name)?;
        let status = self.gateway.status.peer(name)?;
        let state = match (session.up, session.key_since) {
            (true, _) => PeerState::Up,
            (false, None) => PeerState::Handshaking,
            (false, Some(_)) => PeerState::Down,
        };
        let why = match (session.up, status.up) {
            (true, false) => "a path to it is up again".to_owned(),
            _ => status.why.clone(),
        };
        let why = match duplicate_key(self.snapshot.at, session.duplicate_key) {
            Some(duplicate) => format!("{why}; {duplicate}"),
            None => why,
        };
        let dropped = session
            .drops
            .by_reason()
            .into_iter()
            .filter(|(_, count)| *count > 0);
        Some(PeerSnapshot {
            name: name.to_owned(),
            public_key: peer.public_key.to_string(),
            state,
            why,
            state_seconds: self.age(status.since),
            stats: Stats(PeerStats {
                handshake_age: session.key_since.map(|since| self.duration_since(since)),
                handshakes_started: status.handshakes_started,
                reassembly_max_bytes: self.gateway.config_file.running.reassembly_max(peer).get(),
                ..session.stats
            }),
            features: session
                .features
                .unwrap_or_default()
                .names()
                .map(str::to_owned)
                .collect(),
            up_at_other_hub: self.gateway.sites.is_up_at_other_hub(peer),
            direct: peer.origin == PeerOrigin::Direct,
            dropped_packets: dropped
                .map(|(reason, count)| (reason.to_owned(), count))
                .collect(),
        })
    }

    fn app(&self, index: AppIndex, app: &App) -> AppSnapshot {
        let gateway = self.gateway;
        let config = &gateway.config;
        let name = app.name.as_str();
        let figures = self
            .snapshot
            .apps
            .get(&app_id(app))
            .cloned()
            .unwrap_or_default();
        let session = self.session(config[app.peer].name.as_str());
        let id = app_id(app);
        let live = session.and_then(|s| s.apps.iter().find(|live| live.id == id));
        let (place, path) = (self.last_place(index), self.path_in_use(index));
        let planned = gateway.planning.plan.apps.get(index.0);
        let present = self.present.apps.get(index.0).filter(|_| path.is_some());
        let expected = present.and_then(|app| app.expected);
        let forecast = present.and_then(|app| app.forecast);
        let verdict = gateway.status.app(name);
        let verdict = verdict.and_then(|status| status.latency_target.verdict());
        let verdict = verdict.filter(|_| path.is_some());
        let target_met = match path {
            Some(_) => verdict.map(|verdict| verdict.met),
            // Nothing gets anywhere.
            None => app.latency_target.map(|_| false),
        };
        let waiting_path = place.and_then(|path| self.path(path, &config[app.peer]));
        let counted = live.map(|live| live.stats).unwrap_or_default();
        let stats = AppStats {
            latency_target: app.latency_target,
            target_met,
            predicted_delay: expected
                .and_then(|expected| expected.predicted_seconds())
                .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
            queued_bytes: waiting_path.map_or(0, |path| path.stats.queued_bytes),
            ..with_local_figures(counted, &figures)
        };
        let last_path = match path {
            Some(_) => None,
            None => self.last_path(name, place),
        };
        let needs = gateway.planning.config.loss_needs.get(index);
        let excess = path.and_then(|path| self.input.excess_loss(index, path));
        let (used, _) = workload_of(app, self.input.workloads.get(&index).copied());
        AppSnapshot {
            name: name.to_owned(),
            class: app.class,
            peer: config[app.peer].name.to_string(),
            path: path.map(|path| config[path].name.to_string()),
            last_path: last_path.map(|path| config[path].name.to_string()),
            no_path: path.is_none().then(|| self.why_no_path(index)),
            spread: gateway
                .running_config
                .is_spread(app_id(app))
                .then(|| self.spread(live)),
            assigned_by: self.assigned_by(path, planned),
            only_packets: gateway.has_only_packets(index),
            stats: Stats(stats),
            lifetime_seconds: app.lifetime.map(|lifetime| lifetime.as_secs_f64()),
            loss_tolerance_ratio: needs.map(|need| need.tolerance.get()),
            excess_loss: excess.map(excess_loss),
            workload: live.and_then(|live| self.workload_seen(app.class, live)),
            length_bytes: Some(used.length.get() as f64),
            interval_seconds: Some(used.interval.as_secs_f64()),
            predicted: forecast
                .map(|forecast| forecast.percentiles())
                .unwrap_or_default(),
            no_forecast: forecast.and_then(|forecast| forecast.why_not()),
            shared_line: path.and_then(|path| self.shared_line(path)),
            margin_seconds: expected.and_then(|expected| expected.margin_seconds()),
            judged_by: verdict.map(|verdict| verdict.by),
            delay: figures.delay.recent.as_ref().map(summary),
            listeners: listeners(&figures),
            forward: forward(&figures),
            tcp_listeners: tcp_listeners(&figures),
            tcp_forward: tcp_forward(&figures),
        }
    }

    /// What has left by each path of an application that is spread.
    fn spread(&self, live: Option<&core::AppSnapshot>) -> Vec<SpreadPathSnapshot> {
        let ids = self.gateway.running_config.path_ids();
        let sent = live.into_iter().flat_map(|live| &live.spread_bytes);
        sent.filter_map(|(id, bytes)| {
            Some(SpreadPathSnapshot {
                path: self.gateway.config[ids.index(*id)?].name.to_string(),
                sent_bytes: *bytes,
            })
        })
        .collect()
    }

    fn workload_seen(&self, class: Class, live: &core::AppSnapshot) -> Option<WorkloadSnapshot> {
        let seen = live.workload?;
        let idle = self.snapshot.at.saturating_duration_since(seen.last_made);
        Some(WorkloadSnapshot {
            count: seen.count,
            length_bytes: body_bytes(class, &seen),
            length_variation_ratio: seen.length_variation,
            interval_seconds: seen.interval.as_secs_f64(),
            interval_variation_ratio: seen.interval_variation,
            idle_seconds: idle.as_secs_f64(),
        })
    }

    fn assigned_by(&self, path: Option<PathIndex>, planned: Option<&AppAssignment>) -> AssignedBy {
        match (path, planned) {
            (None, _) | (_, None) => AssignedBy::Unassigned,
            (Some(path), Some(planned)) if planned.path == Some(path) => planned.by,
            _ => AssignedBy::Fallback,
        }
    }

    fn duration_since(&self, since: core::Instant) -> Duration {
        self.snapshot.at.saturating_duration_since(since)
    }

    fn age(&self, since: core::Instant) -> f64 {
        self.duration_since(since).as_secs_f64()
    }

    fn metrics(&self) -> String {
        let gateway = self.gateway;
        let (paths, peers, apps) = (self.paths(), self.peers(), self.apps());
        let tenants = gateway.tenants(None).unwrap_or_default();
        let mut dropped: BTreeMap<&'static str, u64> = BTreeMap::new();
        let mut add = |drops: &DropCounters| {
            for (reason, count) in drops.by_reason() {
                *dropped.entry(reason).or_default() += count;
            }
        };
        add(&self.snapshot.endpoint.drops);
        self.snapshot
            .sessions
            .values()
            .for_each(|session| add(&session.drops));
        let dropped: Vec<_> = dropped.into_iter().collect();
        let delay_of = |app: &App| {
            let figures = self.snapshot.apps.get(&app_id(app))?;
            Some((app.name.to_string(), figures.delay.buckets))
        };
        let delays: Vec<_> = gateway.config.apps.iter().filter_map(delay_of).collect();
        let mut switches = Vec::new();
        for app in &apps {
            let status = gateway.status.app(&app.name);
            for (reason, count) in status.iter().flat_map(|status| &status.switches) {
                switches.push((app.name.clone(), *reason, *count));
            }
        }
        let counts = &gateway.counts;
        let loaded = gateway
            .config_file
            .loaded
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let message_tls = gateway.message_tls_figures();
        metrics::render(&Page {
            version: gateway.process.version,
            uptime_seconds: gateway.process.uptime.elapsed().as_secs_f64(),
            config_loaded_seconds: loaded.as_secs_f64(),
            reloads_accepted: counts.reloads_accepted,
            reloads_rejected: counts.reloads_rejected,
            documents: counts.documents,
            model: self.model(&apps).0,
            paths: &paths,
            peers: &peers,
            apps: &apps,
            tenants: &tenants,
            message_tls: &message_tls,
            handshakes: &self.snapshot.endpoint.stats,
            delays: &delays,
            switches: &switches,
            dropped: &dropped,
            plans: &[
                ("unchanged", counts.plans_unchanged),
                ("changed", counts.plans_changed),
                ("infeasible", counts.plans_infeasible),
            ],
            planning_seconds: gateway.planning.plan.took.as_secs_f64(),
            history: gateway.history.counts(),
            lateness: self.snapshot.lateness,
            message_senders: self.snapshot.message_senders,
            message_receivers: self.snapshot.message_receivers,
            control_clients: gateway.control_clients() as u64,
        })
    }
}

/// Applications whose latency target is judged by `source`.
fn judged_by(apps: &[AppSnapshot], source: JudgedBy) -> u64 {
    let judged = apps.iter().filter(|app| app.judged_by == Some(source));
    judged.count() as u64
}
