//! When the planner runs and with which inputs, what its plan changes, and whether latency targets
//! are met.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant as Stopwatch, SystemTime},
};

use keiro_control::{
    config::{self, AppIndex, PathIndex, PathTerms, PathUse, PeerIndex},
    protocol::EventKind,
};
use keiro_core::{AppId, AppSnapshot, Instant, PathSnapshot};
use keiro_model::workload::Workload as CoreWorkload;
use keiro_planner::{
    queueing::{Spread, Statistic},
    steer::{PathHoldDown, PathSample},
};
use keiro_planning::{
    MeasuredDelay, MeasuredWorkload, Plan, PlanMode, PlannerConfig, PlannerInput, PlanningProblem,
    Workload, is_other_workload,
};
use keiro_units::ByteCount;
use sd_notify::NotifyState;

use crate::{
    budgets::Clocks,
    data::command::{Command, DataThreadGone, Snapshot},
    gateway::{Gateway, PlanningState, notify},
    path_ids::PeerPath,
    planned_delay_terms::{forget_outdated, of_plan},
    replan_backoff::ReplanReason,
    running_config::{Preference, Preferences, app_id},
    send_history::Sent,
    status::MoveNumbers,
    steering::Window,
    target_monitor::{self, Transition},
    workload::{INTERVAL_MIN, MEASURED_MIN, body_bytes, has_stopped},
};

/// The paths to a peer, the cheapest first.
struct PathOrder {
    open: Vec<PathIndex>,
    /// Those whose budget is used up.
    spent: Vec<PathIndex>,
}

impl Gateway {
    /// The planner's inputs as of a snapshot.
    pub(crate) fn planner_input(&self, snapshot: &Snapshot) -> PlannerInput {
        let mut input = PlannerInput {
            unused: true,
            ..PlannerInput::default()
        };
        for (number, peer) in self.config.peers.iter().enumerate() {
            let id = self.running_config.peer_id(peer.name.as_str());
            let Some(session) = id.and_then(|id| snapshot.sessions.get(&id)) else {
                continue;
            };
            let path_ids = self.running_config.path_ids();
            for path in &session.paths {
                let Some(index) = path_ids.index(path.id) else {
                    continue;
                };
                let to_peer = PeerPath::new(session.peer, path.id);
                if self.planning.steering.is_flapping(to_peer, path) {
                    input.flapping.insert((index, PeerIndex(number)));
                }
                let hold_down = self
                    .planning
                    .steering
                    .hold_down(to_peer, path, session.settling);
                let Some(hold_down) = hold_down else { continue };
                let key = (index, PeerIndex(number));
                let announced = self.planning.steering.peer_terms(to_peer);
                let announced = announced.unwrap_or(path.peer_terms);
                let terms = self.terms_beside_configuration(index, announced);
                if terms != PathTerms::FREE {
                    input.terms.insert(key, terms);
                }
                let capacity = self.planning.steering.capacity(to_peer);
                input
                    .shared
                    .capacities
                    .extend(capacity.map(|rate| (key, rate)));
                // A path that just came up has the sample of its first answer, with the configured
                // delay if any.
                let first = || {
                    let sample = path.observation().sample?;
                    let delay = self.config[index].delay.unwrap_or(sample.delay);
                    Some(PathSample { delay, ..sample })
                };
                self.note_excess_losses(&mut input, key, to_peer);
                let level = self.planning.steering.level(to_peer).or_else(first);
                input.up.insert(key, level);
                if hold_down != PathHoldDown::Released {
                    input.hold_downs.insert(key, hold_down);
                }
            }
            for app in &session.apps {
                let name = self.running_config.app_name(session.peer, app.id);
                let index = name.and_then(|name| self.config.app_named(name));
                let Some(index) = index else { continue };
                input.unused &= app.stats.sent_messages == 0;
                let config = &self.config[index];
                let last = || {
                    let last = self.planning.steering.preferred_path(app.id);
                    let last = last.and_then(|path| path_ids.index(path))?;
                    let is_spent = input
                        .terms(self.config[last].terms(), last, config.peer)
                        .is_spent;
                    Some(last).filter(|_| !is_spent || config.is_essential())
                };
                let path = app.path.and_then(|path| path_ids.index(path));
                if let Some(path) = path.or_else(last) {
                    input.now.insert(index, path);
                }
                if path.is_none() {
                    input.waiting.insert(index);
                }
                if let Some(seen) = self.measured_workload(index, app, snapshot.at) {
                    input.workloads.insert(index, seen);
                }
                let is_sending = |seen: CoreWorkload| !has_stopped(&seen, snapshot.at);
                if app.workload.is_some_and(is_sending) {
                    input.sending.insert(index);
                }
                let seen = self.planning.steering.traffic_window(config.class, app);
                input.traffic_windows.extend(seen.map(|seen| (index, seen)));
            }
        }
        for (number, app) in self.config.apps.iter().enumerate() {
            if let Some(path) = self.operator_path(app) {
                input.operator.insert(AppIndex(number), path);
            }
        }
        for (name, uses) in self.site.others(Stopwatch::now()) {
            if let Some(path) = self.config.path_named(name) {
                input.shared.uses.insert(path, Arc::clone(uses));
            }
        }
        input.measured = self.measured(&input.now, snapshot);
        input.overdue = self.planning.steering.overdue(&self.config, snapshot.at);
        input.site = self.by_index(self.site.assignments());
        if self.site.knows_prices() {
            input.priced_by_site = input.site.keys().copied().collect();
        }
        input
    }

    /// On which terms both ends use a path to a peer.
    pub(crate) fn path_terms(&self, path: PathIndex, live: &PathSnapshot) -> PathTerms {
        let more = self.terms_beside_configuration(path, live.peer_terms);
        self.config[path].terms().with(more)
    }

    fn terms_beside_configuration(&self, path: PathIndex, announced: PathTerms) -> PathTerms {
        let own = PathTerms {
            is_spent: self.running_config.is_spent(&self.config[path]),
            ..PathTerms::FREE
        };
        own.with(announced)
    }

    /// Lets the paths follow what is left of the budgets. To be called again and again.
    pub(crate) fn note_budgets(&mut self) -> Result<(), DataThreadGone> {
        let now = Clocks {
            wall: SystemTime::now(),
            monotonic: Stopwatch::now(),
        };
        let events = self.budgets.turn(&self.config, now);
        let spent = self.budgets.spent(&self.config);
        let locals = spent
            .into_iter()
            .map(|uplink| self.config[uplink].local.clone());
        let is_new = self
            .running_config
            .set_spent(locals.collect(), &self.data)?;
        self.planning.needs_replan |= is_new;
        events.into_iter().for_each(|event| self.publish(event));
        self.budgets.save_if_due(&self.config);
        Ok(())
    }

    /// Notes which applications to a peer lose more than they tolerate on a path.
    fn note_excess_losses(
        &self,
        input: &mut PlannerInput,
        (path, peer): (PathIndex, PeerIndex),
        to_peer: PeerPath,
    ) {
        for (number, app) in self.config.apps.iter().enumerate() {
            let index = AppIndex(number);
            if app.peer != peer {
                continue;
            }
            let need = self.planning.config.loss_needs.get(index);
            let excess = need.and_then(|need| self.planning.steering.excess_loss(to_peer, need));
            input
                .excess_losses
                .extend(excess.map(|excess| ((index, path), excess)));
        }
    }

    /// Measured traffic of an application: the planned one while the difference is noise; that of
    /// before the restart while too little is measured. `None`: too little was ever measured.
    fn measured_workload(
        &self,
        index: AppIndex,
        app: &AppSnapshot,
        now: Instant,
    ) -> Option<MeasuredWorkload> {
        let config = &self.config[index];
        let Some(seen) = app.workload.filter(|seen| seen.count >= MEASURED_MIN) else {
            let peer = self.config[config.peer].name.as_str();
            let remembered = self
                .planning
                .steering
                .past_workload(config.name.as_str(), peer);
            return remembered.map(MeasuredWorkload::BeforeRestart);
        };
        if has_stopped(&seen, now) {
            return Some(MeasuredWorkload::Stopped);
        }
        let measured = Workload {
            length: ByteCount::new(body_bytes(config.class, &seen).max(1.0) as u64),
            interval: seen.interval.max(INTERVAL_MIN),
            length_spread: Spread::new(seen.length_variation.powi(2)).unwrap_or_default(),
            interval_spread: Spread::new(seen.interval_variation.powi(2)).unwrap_or_default(),
        };
        match self.planning.steering.planned_workload(app.id) {
            Some(planned) if !is_other_workload(planned, measured) => {
                Some(MeasuredWorkload::Sending(planned))
            }
            _ => Some(MeasuredWorkload::Sending(measured)),
        }
    }

    /// The path to which an operator assigned an application.
    fn operator_path(&self, app: &config::App) -> Option<PathIndex> {
        let path = self.planning.operator_paths.get(&app_id(app))?;
        self.running_config.path_ids().index(*path)
    }

    /// Measured delays of applications with enough messages since the plan, on their planned paths.
    fn measured(
        &self,
        paths: &BTreeMap<AppIndex, PathIndex>,
        snapshot: &Snapshot,
    ) -> BTreeMap<AppIndex, MeasuredDelay> {
        let measured = |(index, path): (&AppIndex, &PathIndex)| {
            let app = &self.config[*index];
            let planned = self
                .planning
                .steering
                .planned_delay_terms()
                .get(&app_id(app))?;
            // Those of IP packets and streams are of other things than forecasts.
            let figures = snapshot.apps.get(&app_id(app));
            let delay = figures
                .filter(|_| app.class == config::Class::Message)?
                .delay
                .recent?;
            let is_planned = self.running_config.path_ids().id(*path) == Some(planned.path);
            let counts = is_planned && delay.count >= MEASURED_MIN;
            let time = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or_default();
            let delay = MeasuredDelay {
                mean: time(delay.mean_seconds),
                p99: time(delay.p99_seconds),
            };
            counts.then_some((*index, delay))
        };
        paths.iter().filter_map(measured).collect()
    }

    /// The present assignment, described as a plan.
    pub(crate) fn present_plan(&self, input: &PlannerInput) -> Plan {
        let problem = PlanningProblem::new(&self.planning.config, input);
        problem.present_plan(self.planning.steering.forecast_state())
    }

    /// Samples every path. Plans again if a path differs from what was planned with, or may be
    /// moved to now.
    pub(crate) fn sample(&mut self) -> Result<(), DataThreadGone> {
        let mut changed = false;
        let all = self.data.paths()?;
        let carried = all.iter().flat_map(|(peer, paths)| {
            let bytes = |path: &PathSnapshot| path.stats.sent_bytes + path.stats.received_bytes;
            let of_path = move |path: &PathSnapshot| (PeerPath::new(*peer, path.id), bytes(path));
            paths.iter().map(of_path)
        });
        let path_ids = self.running_config.path_ids();
        self.budgets.on_carried(&self.config, path_ids, carried);
        let now = Stopwatch::now();
        self.note_budgets()?;
        for (peer, paths) in all {
            let name = self.running_config.peer_name(peer);
            if name.is_none() {
                continue;
            }
            for path in &paths {
                if let Some(index) = self.running_config.path_ids().index(path.id) {
                    let to_peer = PeerPath::new(peer, path.id);
                    let configured_delay = self.config[index].delay;
                    let steering = &mut self.planning.steering;
                    steering.on_peer_terms(now, to_peer, path.peer_terms);
                    let tolerances = self.planning.config.loss_needs.tolerances();
                    changed |=
                        self.planning
                            .steering
                            .on_path(to_peer, configured_delay, tolerances, path);
                }
            }
        }
        self.planning.needs_replan |= changed;
        self.check_leader();
        Ok(())
    }

    /// Revises the plan with few moves, or plans from scratch while no application has sent
    /// anything, and applies the result. Sends nothing where nothing changes.
    pub(crate) fn replan(&mut self) -> Result<(), DataThreadGone> {
        self.replan_as(None)
    }

    /// As [`replan`](Self::replan), in this mode if one is given.
    pub(crate) fn replan_as(&mut self, plan_mode: Option<PlanMode>) -> Result<(), DataThreadGone> {
        self.planning.needs_replan = false;
        let snapshot = self.data.snapshot()?;
        let now = self.planner_input(&snapshot);
        let before = std::mem::replace(&mut self.planning.input, now);
        for (app, seen) in &self.planning.input.workloads {
            if let MeasuredWorkload::Sending(workload) | MeasuredWorkload::BeforeRestart(workload) =
                seen
            {
                let id = app_id(&self.config[*app]);
                self.planning.steering.on_planned_with(id, *workload);
            }
        }
        let mut asked = self.planning.input.clone();
        self.planning
            .steering
            .apply_failover(&self.config, &before, &mut asked);
        let path_ids = self.running_config.path_ids();
        self.planning.steering.note_paths(
            &self.config,
            path_ids,
            &self.planning.input,
            snapshot.at,
        );
        if !self.planning.input.unused || plan_mode.is_some() {
            self.site.forget_before_start();
        }
        // Applications that have not sent yet may go anywhere, unless they had a path before the
        // restart or a site decides.
        let resumes = self.site.resumes();
        let is_new = self.planning.input.unused && !resumes && !self.site.has_say();
        if is_new {
            asked
                .hold_downs
                .retain(|_, hold_down| *hold_down == PathHoldDown::Validating);
        }
        let plan_mode = plan_mode.unwrap_or(match is_new {
            true => PlanMode::FromScratch,
            false => PlanMode::Revise,
        });
        let path_ids = self.running_config.path_ids();
        forget_outdated(
            &self.planning.config,
            path_ids,
            &mut asked,
            self.planning.steering.planned_delay_terms(),
        );
        self.planning.plan = self.plan_in_site(&asked, plan_mode);
        self.note_own_paths();
        asked.site.clone_from(&self.planning.input.site);
        self.planning
            .steering
            .compute_backups(&self.planning.config, &asked, &self.planning.plan);
        self.forget_delays_of_changed()?;
        let unmet = self.planning.plan.unmet();
        let changes = self.planning.plan.changes(&self.planning.input.now);
        match (unmet, changes) {
            (1.., _) => self.counts.plans_infeasible += 1,
            (0, 1..) => self.counts.plans_changed += 1,
            (0, 0) => self.counts.plans_unchanged += 1,
        }
        tracing::debug!(unmet, changes, took = ?self.planning.plan.took, "planned");
        let preferences = self.preferences();
        self.running_config
            .apply_apps(&self.config, &preferences, &self.data)?;
        self.publish_to_site();
        Ok(())
    }

    /// Applications and paths by position; unknown names are left out.
    fn by_index<'a>(
        &self,
        names: impl Iterator<Item = (&'a String, &'a String)>,
    ) -> BTreeMap<AppIndex, PathIndex> {
        let index = |(app, path): (&String, &String)| {
            Some((self.config.app_named(app)?, self.config.path_named(path)?))
        };
        names.filter_map(index).collect()
    }

    /// Forgets measured delays of applications for which the plan changes path or load.
    fn forget_delays_of_changed(&mut self) -> Result<(), DataThreadGone> {
        let terms = of_plan(
            &self.config,
            self.running_config.path_ids(),
            &self.planning.plan,
        );
        let apps = self.planning.steering.set_planned_delay_terms(terms);
        match apps.is_empty() {
            true => Ok(()),
            false => self.data.send(Command::ForgetDelays { apps }),
        }
    }

    /// The paths of every application, best first: pinned, planned (or the last one if none is up), that for when it
    /// fails, the rest, the cheapest first. Those whose budget is used up come last, for essential applications only.
    pub(crate) fn preferences(&self) -> Preferences {
        let peers = (0..self.config.peers.len()).map(PeerIndex);
        let orders: Vec<PathOrder> = peers.map(|peer| self.path_order(peer)).collect();
        let preferred = |(number, app): (usize, &config::App)| {
            let operator = self.operator_path(app);
            let planned = self
                .planning
                .plan
                .apps
                .get(number)
                .and_then(|planned| planned.path);
            let mut paths: Vec<PathIndex> = Vec::new();
            let PathOrder { open, spent } = &orders[app.peer.0];
            let is_open = |path: &PathIndex| !spent.contains(path);
            let last_resort = spent.iter().filter(|_| app.is_essential());
            let all = open.iter().chain(last_resort).copied();
            let is_damped = |path: &PathIndex| {
                let input = &self.planning.input;
                input.is_damped(*path, AppIndex(number), app.peer)
            };
            // Not first, or the data path would move back as soon as it answers.
            let pin = operator.or(app.path);
            let pin = pin.filter(|path| !is_damped(path) && is_open(path));
            let steering = &self.planning.steering;
            let backup = planned.and_then(|path| steering.backup_path(AppIndex(number), path));
            let last = self.planning.steering.preferred_path(app_id(app));
            let last = last.and_then(|path| self.running_config.path_ids().index(path));
            let planned = planned.or(last.filter(is_open));
            for path in pin.into_iter().chain(planned).chain(backup).chain(all) {
                if !paths.contains(&path) {
                    paths.push(path);
                }
            }
            let PlanningState {
                plan,
                input,
                config,
                ..
            } = &self.planning;
            let keeps_to_first = plan.pays_for_target(config, input, AppIndex(number));
            let preference = Preference {
                paths,
                is_spread: app.paths == PathUse::Spread && !keeps_to_first,
            };
            (AppIndex(number), preference)
        };
        self.config.apps.iter().enumerate().map(preferred).collect()
    }

    fn path_order(&self, peer: PeerIndex) -> PathOrder {
        let all = (0..self.config.paths.len()).map(PathIndex);
        let is_spent = |path: &PathIndex| {
            let terms = self
                .planning
                .input
                .terms(self.config[*path].terms(), *path, peer);
            terms.is_spent || self.running_config.is_spent(&self.config[*path])
        };
        let (spent, mut open): (Vec<PathIndex>, Vec<PathIndex>) = all.partition(is_spent);
        let price = |path: &PathIndex| {
            let terms = self
                .planning
                .input
                .terms(self.config[*path].terms(), *path, peer);
            terms.price()
        };
        // Stable: what costs the same stays in the order of the configuration.
        open.sort_by_cached_key(price);
        PathOrder { open, spent }
    }

    /// Regular checks: measured delays against latency targets, workloads against the planned ones.
    pub(crate) fn check(&mut self) -> Result<(), DataThreadGone> {
        let snapshot = self.data.snapshot()?;
        if snapshot.reports_lost > self.data_thread.reports_lost {
            let count = snapshot.reports_lost - self.data_thread.reports_lost;
            self.data_thread.reports_lost = snapshot.reports_lost;
            tracing::warn!(count, "events were lost: too many at once");
            self.publish(EventKind::EventsLost { count });
        }
        let now = self.planner_input(&snapshot);
        self.note_applications(&snapshot);
        self.diagnose_paths(&snapshot);
        self.note_host_names(&snapshot);
        self.host_names.ask();
        self.record_history(&snapshot);
        match self.planning.input.are_outdated(&now) {
            // The next check compares the new plan.
            true => self.replan()?,
            false => {
                let path_ids = self.running_config.path_ids();
                self.planning
                    .steering
                    .note_paths(&self.config, path_ids, &now, snapshot.at);
                let present = self.present_plan(&now);
                self.learn(&snapshot, &present)?;
                self.check_targets(snapshot.at, &now, &present);
                if self.is_to_be_improved(&present) {
                    self.replan()?;
                }
            }
        }
        if let Some(metrics) = &mut self.events.metrics_server {
            metrics.sweep();
        }
        notify(&[NotifyState::Status(&self.status_line())]);
        Ok(())
    }

    /// Whether to look for a better plan because targets turn out unmet: at growing intervals,
    /// sooner after a change.
    fn is_to_be_improved(&mut self, present: &Plan) -> bool {
        let reason = ReplanReason::of(&self.planning.plan, present);
        self.planning.backoff.is_due(Stopwatch::now(), reason)
    }

    /// Samples what applications have sent.
    fn note_applications(&mut self, snapshot: &Snapshot) {
        let now = Stopwatch::now();
        for session in snapshot.sessions.values() {
            for app in &session.apps {
                if self.running_config.app_name(session.peer, app.id).is_some() {
                    self.planning.steering.on_sent(now, app);
                }
            }
        }
    }

    /// Compares the forecasts of `present` with measurements.
    fn learn(&mut self, snapshot: &Snapshot, present: &Plan) -> Result<(), DataThreadGone> {
        if !self
            .planning
            .steering
            .on_present_plan(Stopwatch::now(), present)
        {
            return Ok(());
        }
        let apps = self.config.apps.iter().enumerate();
        let indices: BTreeMap<AppId, AppIndex> = apps
            .map(|(number, app)| (app_id(app), AppIndex(number)))
            .collect();
        let taken = self.data.take_delay_windows()?;
        let delays = taken
            .iter()
            .filter_map(|(app, delay)| Some((*indices.get(app)?, *delay)));
        let apps = snapshot.sessions.values().flat_map(|session| {
            let own =
                |app: &&AppSnapshot| self.running_config.app_name(session.peer, app.id).is_some();
            let sent = |app: &AppSnapshot| Some((*indices.get(&app.id)?, Sent::of(app)));
            session.apps.iter().filter(own).filter_map(sent)
        });
        let window = Window {
            ended: snapshot.at,
            delays: delays.collect(),
            sent: apps.collect(),
        };
        self.planning.steering.learn(present, &window);
        Ok(())
    }

    /// Publishes which latency targets are newly missed or met again.
    fn check_targets(&mut self, at: Instant, input: &PlannerInput, present: &Plan) {
        let tolerance = self.config.gateway.tolerance.get();
        let mut events = Vec::new();
        for (number, app) in self.config.apps.iter().enumerate() {
            let is_measured =
                app.class != config::Class::Stream && !self.has_only_packets(AppIndex(number));
            let latency_target = &mut self.status.app_mut(app.name.as_str()).latency_target;
            let (Some(target), Some(now)) = (app.latency_target, present.apps.get(number)) else {
                *latency_target = target_monitor::TargetState::default();
                continue;
            };
            let measured = input.measured.get(&AppIndex(number));
            let limit = target.as_secs_f64() * (1.0 + tolerance);
            let path = now.path.map(|path| self.config[path].name.as_str());
            let ratios = target_monitor::TargetRatios::of(now, measured, limit);
            let ratios = match is_measured {
                true => ratios,
                false => ratios.of_unmeasured(now.propagation_seconds() / limit),
            };
            latency_target.update(at, path, &ratios);
            let (Some(verdict), Some(transition)) =
                (latency_target.verdict(), latency_target.transition(at))
            else {
                continue;
            };
            let app = app.name.to_string();
            let latency_target_seconds = target.as_secs_f64();
            let judged_by = Some(verdict.by);
            events.push(match transition {
                Transition::Missed => EventKind::TargetMissed {
                    app,
                    path: path.map(str::to_owned),
                    latency_target_seconds,
                    judged_by,
                    predicted_seconds: now.forecast_seconds(Statistic::Mean),
                    predicted_p99_seconds: now.forecast_seconds(Statistic::P99),
                    paper_delay_seconds: now.equation_seconds(),
                    p99_seconds: measured.map(|measured| measured.p99.as_secs_f64()),
                },
                Transition::MetAgain => EventKind::TargetMet {
                    app,
                    latency_target_seconds,
                    judged_by,
                },
            });
        }
        events.into_iter().for_each(|event| self.publish(event));
    }
}

pub(crate) fn move_numbers(
    config: &PlannerConfig,
    plan: &Plan,
    input: &PlannerInput,
    app: &str,
    from: Option<PathIndex>,
    to: Option<PathIndex>,
) -> MoveNumbers {
    let Some(index) = config.app_named(app) else {
        return MoveNumbers::default();
    };
    let predictions = PlanningProblem::new(config, input).predictions(index);
    // A path without a measured or configured delay has no prediction.
    let is_known = |path: PathIndex| {
        let mut samples = input.up.iter().filter(|((up, _), _)| *up == path);
        config[path].delay.is_some() || samples.any(|(_, sample)| sample.is_some())
    };
    let predicted = |path: Option<PathIndex>| {
        let path = path.filter(|path| is_known(*path))?;
        let (_, prediction) = predictions.iter().find(|(other, _)| *other == path)?;
        prediction.delay.finite().map(|delay| delay.as_secs_f64())
    };
    MoveNumbers {
        by: plan.apps.get(index.0).map(|planned| planned.by),
        from_predicted: predicted(from),
        to_predicted: predicted(to),
        latency_target: config[index]
            .latency_target
            .map(|latency_target| latency_target.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use keiro_planning::{
        forecast::ForecastState,
        testing::{both_up, paper},
    };
    use keiro_units::Bandwidth;

    use super::*;

    #[test]
    fn nothing_is_predicted_of_a_path_whose_delay_is_not_known_yet() {
        let mut config = PlannerConfig::of(&paper("", ""));
        config.paths[0].delay = None;
        let mut input = both_up();
        let to = |input: &PlannerInput, path| {
            let plan = PlanningProblem::new(&config, input)
                .answer(PlanMode::FromScratch, &ForecastState::default());
            move_numbers(&config, &plan, input, "A3", None, Some(path)).to_predicted
        };
        assert_eq!(to(&input, PathIndex(0)), None);
        // It is configured of the other.
        assert!(to(&input, PathIndex(1)).is_some());
        let sample = PathSample {
            bandwidth: Bandwidth::from_mbit_per_second(100),
            delay: Duration::from_millis(100),
            loss: keiro_units::Probability::ZERO,
        };
        input.up.insert((PathIndex(0), PeerIndex(0)), Some(sample));
        assert!(to(&input, PathIndex(0)).is_some_and(|seconds| seconds > 0.1));
    }
}
