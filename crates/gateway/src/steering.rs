//! What the control thread keeps from plan to plan: the levels of every path, where applications go
//! if a path fails, what applications sent over some minutes, and how far forecasts were off.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant as Stopwatch},
};

use keiro_control::config::{
    self, AppIndex, Class, Config, PATH_RATE_MAX, PathIndex, PathTerms, PeerIndex,
};
use keiro_core::{AppId, AppSnapshot, Instant, PathId, PathSnapshot, PathState};
use keiro_model::path_terms::Price;
use keiro_planner::{
    queueing::{
        DelayDistribution, DelayWindow, Forecast, NoForecast, Residual, Spread, TrafficWindow,
        WindowHalf,
    },
    steer::{BackupPaths, PathHoldDown, PathSample, PlanMode, PreferredPaths, TrackedPath},
};
use keiro_planning::{
    ExcessLoss, LossNeed, Plan, PlannerConfig, PlannerInput, PlanningProblem, Workload,
    forecast::ForecastState, steady_capacity,
};
use keiro_units::{Bandwidth, Probability};

use crate::{
    damped_terms::DampedTerms,
    data::measure::DelayQuantiles,
    past_workloads::PastWorkloads,
    path_ids::{PathIds, PeerPath},
    planned_delay_terms::{PlannedDelayTerms, changed},
    running_config::{Renamed, app_id},
    send_history::{SendHistory, Sent},
    workload::body_bytes,
};

/// The state between plans; see the module.
#[derive(Default)]
pub(crate) struct Steering {
    paths: BTreeMap<PeerPath, TrackedPath>,
    /// What the paths carry at most, where that was measured or configured.
    capacities: BTreeMap<PeerPath, Bandwidth>,
    /// What the peers announce of them.
    peer_terms: BTreeMap<PeerPath, DampedTerms>,
    /// The last path of each application, here or before the restart. An application without a path
    /// counts as on it.
    preferred_paths: PreferredPaths<AppId, PathId>,
    /// Since when applications have been on paths that cost more than others that are up.
    costlier_since: BTreeMap<AppId, Instant>,
    /// Measured workloads that were planned with, by application.
    workloads: BTreeMap<AppId, Workload>,
    /// What applications sent before the restart.
    past_workloads: PastWorkloads,
    /// By application.
    sent: BTreeMap<AppId, SendHistory>,
    /// Where applications go if a path fails, as of the last plan.
    backup_paths: BackupPaths<AppIndex, PathIndex>,
    forecast_state: ForecastState,
    /// The path and delay terms of each application in the last plan.
    planned_delay_terms: PlannedDelayTerms,
    /// The window of measurements that is learnt from next.
    window: Option<WindowStart>,
    learnt_at: Option<Stopwatch>,
    /// Propagation delay and rate of the paths whose forecasts were corrected.
    learnt_of: BTreeMap<PathIndex, (Duration, Bandwidth)>,
}

/// What was measured during a window, by application.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    pub(crate) ended: Instant,
    /// Delays of messages created since the window began.
    pub(crate) delays: BTreeMap<AppIndex, DelayQuantiles>,
    /// Totals sent when the window ended.
    pub(crate) sent: BTreeMap<AppIndex, Sent>,
}

/// The state when a window began.
#[derive(Debug)]
struct WindowStart {
    at: Instant,
    forecasts: BTreeMap<PathIndex, BTreeMap<AppIndex, Forecast>>,
    sent: BTreeMap<AppIndex, Sent>,
}

/// How often paths are compared with what was planned with.
pub(crate) const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
/// After so long on a path that costs more, an application needs no room to spare to return. Ours: it comes and goes
/// no more often than that, and costs little more than it must.
const RETURNS_AFTER: Duration = Duration::from_secs(300);
/// How often forecasts are compared with what was measured.
const LEARN_INTERVAL: Duration = Duration::from_secs(30);
/// Traffic that differs from the forecast by more than so many standard deviations, and by more
/// than this ratio, has changed: the same test as [`TrafficWindow::check`].
const SIGNIFICANT: f64 = 4.0;
const LOAD_DIFFERENCE: f64 = 0.2;

impl Steering {
    /// Takes a sample of a path to a peer, whose losses applications with these tolerances do not repair. Returns whether a new plan may be needed.
    pub(crate) fn on_path(
        &mut self,
        path: PeerPath,
        configured_delay: Option<Duration>,
        tolerances: &[Probability],
        live: &PathSnapshot,
    ) -> bool {
        let measured = live.capacity.map(|found| found.capacity.rate);
        let known = self.capacities.get(&path).copied();
        let found = live.rate.map(|found| found.usable(measured));
        let configured = live.stats.configured_rate;
        let bound = configured.unwrap_or(PATH_RATE_MAX);
        let capacity = steady_capacity(known, found.or(measured), bound);
        self.capacities.insert(path, capacity);
        let tracked = self.paths.entry(path).or_default();
        tracked.follow_tolerances(tolerances);
        tracked.on_observation(live.observation(), configured_delay)
    }

    /// Takes the terms of a path that its peer announces.
    pub(crate) fn on_peer_terms(&mut self, now: Stopwatch, path: PeerPath, terms: PathTerms) {
        let known = self.peer_terms.entry(path);
        let known = known.or_insert_with(|| DampedTerms::new(now, terms));
        known.on_terms(now, terms);
    }

    /// The terms of the peer to plan with; `None`: the path was not observed yet.
    pub(crate) fn peer_terms(&self, path: PeerPath) -> Option<PathTerms> {
        self.peer_terms.get(&path).map(DampedTerms::planned)
    }

    /// The hold-down state of a path to a peer; `None`: it is neither up nor expected to be soon.
    /// `settling`: the peer's first paths are coming up.
    pub(crate) fn hold_down(
        &self,
        path: PeerPath,
        live: &PathSnapshot,
        settling: bool,
    ) -> Option<PathHoldDown> {
        let tracked = self.paths.get(&path);
        match live.state {
            PathState::Up => Some(tracked.map_or(PathHoldDown::Held, |tracked| {
                tracked.hold_down(live.stats.outages)
            })),
            PathState::Validating if settling => Some(PathHoldDown::Validating),
            PathState::Validating | PathState::Down => None,
        }
    }

    /// Whether a path to a peer, up or down, went silent more than once lately and has not proven itself
    /// since; see [`TrackedPath::is_flapping`].
    pub(crate) fn is_flapping(&self, path: PeerPath, live: &PathSnapshot) -> bool {
        let tracked = self.paths.get(&path);
        tracked.is_some_and(|tracked| tracked.is_flapping(live.stats.outages))
    }

    /// How long a path must stay up before applications may move to it; `None`: they may now.
    pub(crate) fn hold_down_left(&self, path: PeerPath, live: &PathSnapshot) -> Option<Duration> {
        let tracked = self.paths.get(&path)?;
        let is_held = live.state == PathState::Up
            && tracked.hold_down(live.stats.outages) != PathHoldDown::Released;
        is_held.then(|| SAMPLE_INTERVAL * tracked.observations_until_released())
    }

    /// The path levels that are planned with; `None`: nothing was measured yet.
    pub(crate) fn level(&self, path: PeerPath) -> Option<PathSample> {
        self.paths.get(&path)?.level()
    }

    /// What a path loses, where that is more than `tolerance`.
    pub(crate) fn excess_loss(
        &self,
        path: PeerPath,
        LossNeed { tolerance, of }: LossNeed,
    ) -> Option<ExcessLoss> {
        let loss = self.paths.get(&path)?.excess_loss(tolerance, of)?;
        Some(ExcessLoss { loss, tolerance })
    }

    /// What a path carries at most, other traffic included; `None`: it was not observed yet.
    pub(crate) fn capacity(&self, path: PeerPath) -> Option<Bandwidth> {
        self.capacities.get(&path).copied()
    }

    /// The path that an application was on last, here or before the restart.
    pub(crate) fn preferred_path(&self, app: AppId) -> Option<PathId> {
        self.preferred_paths.of(&app).copied()
    }

    /// Notes the path of an application in a stored plan, unless it has been on one since.
    pub(crate) fn remember_path(&mut self, app: AppId, path: PathId) {
        self.preferred_paths.remember(app, path);
    }

    /// Applications that return from a path that costs more as soon as they can; see [`RETURNS_AFTER`].
    pub(crate) fn overdue(&self, config: &Config, now: Instant) -> BTreeSet<AppIndex> {
        let is_overdue = |app: &config::App| {
            let since = self.costlier_since.get(&app_id(app));
            since.is_some_and(|since| now.saturating_duration_since(*since) >= RETURNS_AFTER)
        };
        let apps = config.apps.iter().enumerate();
        apps.filter(|(_, app)| is_overdue(app))
            .map(|(number, _)| AppIndex(number))
            .collect()
    }

    /// The path that an application takes if its planned `path` goes down.
    pub(crate) fn backup_path(&self, app: AppIndex, path: PathIndex) -> Option<PathIndex> {
        self.backup_paths.backup(app, path)
    }

    /// The measured workload that an application was last planned with.
    pub(crate) fn planned_workload(&self, app: AppId) -> Option<Workload> {
        self.workloads.get(&app).copied()
    }

    /// Notes the workload that an application is planned with.
    pub(crate) fn on_planned_with(&mut self, app: AppId, workload: Workload) {
        self.workloads.insert(app, workload);
    }

    /// What an application sent to `peer` before the restart; `None`: not known, or too long ago.
    pub(crate) fn past_workload(&self, app: &str, peer: &str) -> Option<Workload> {
        self.past_workloads.workload(app, peer)
    }

    pub(crate) fn set_past_workloads(&mut self, past_workloads: PastWorkloads) {
        self.past_workloads = past_workloads;
    }

    /// What forecasts have learnt and computed so far.
    pub(crate) fn forecast_state(&self) -> &ForecastState {
        &self.forecast_state
    }

    /// The path and the delay terms that the plan in force gives each application.
    pub(crate) fn planned_delay_terms(&self) -> &PlannedDelayTerms {
        &self.planned_delay_terms
    }

    /// Takes the terms of a new plan over. Returns the applications whose terms have changed.
    pub(crate) fn set_planned_delay_terms(&mut self, terms: PlannedDelayTerms) -> Vec<AppId> {
        let before = std::mem::replace(&mut self.planned_delay_terms, terms);
        changed(&before, &self.planned_delay_terms)
    }

    /// What is known by name follows peers and applications that have another one.
    pub(crate) fn rename(&mut self, renamed: &Renamed) {
        self.past_workloads.rename(renamed);
    }

    /// Follows a new configuration, whose applications have these numbers and names: forgets what it does not have, and everything that is keyed by
    /// positions in the old one.
    pub(crate) fn apply_config(
        &mut self,
        paths: &[PeerPath],
        (ids, apps): (&BTreeSet<AppId>, &[String]),
        path_ids: &PathIds,
    ) {
        self.paths.retain(|path, _| paths.contains(path));
        self.capacities.retain(|path, _| paths.contains(path));
        self.peer_terms.retain(|path, _| paths.contains(path));
        self.workloads.retain(|app, _| ids.contains(app));
        self.past_workloads.retain_apps(apps);
        self.preferred_paths
            .retain(|app, path| ids.contains(app) && path_ids.index(*path).is_some());
        self.sent.retain(|app, _| ids.contains(app));
        self.costlier_since.retain(|app, _| ids.contains(app));
        self.planned_delay_terms.retain(|app, _| ids.contains(app));
        self.backup_paths = BackupPaths::default();
        self.forecast_state = ForecastState::default();
        self.window = None;
        self.learnt_of.clear();
    }

    /// Notes the present path of every application.
    pub(crate) fn note_paths(
        &mut self,
        config: &Config,
        path_ids: &PathIds,
        input: &PlannerInput,
        now: Instant,
    ) {
        let mut least: BTreeMap<PeerIndex, Price> = BTreeMap::new();
        for (path, peer) in input.up.keys() {
            let price = input.terms(config[*path].terms(), *path, *peer).price();
            let least = least.entry(*peer).or_insert(price);
            *least = price.min(*least);
        }
        let costs_more = |(app, path): &(&AppIndex, &PathIndex)| {
            let peer = config[**app].peer;
            let price = input.terms(config[**path].terms(), **path, peer).price();
            least.get(&peer).is_some_and(|least| *least < price)
        };
        let costly = input.now.iter().filter(costs_more);
        let costly: BTreeSet<AppId> = costly.map(|(app, _)| app_id(&config[*app])).collect();
        self.costlier_since.retain(|app, _| costly.contains(app));
        for app in costly {
            self.costlier_since.entry(app).or_insert(now);
        }
        for (app, path) in &input.now {
            let app = &config[*app];
            let is_up = |preferred: &PathId| {
                let preferred = path_ids.index(*preferred);
                preferred.is_some_and(|path| input.up.contains_key(&(path, app.peer)))
            };
            if let Some(path) = path_ids.id(*path) {
                self.preferred_paths
                    .on_assigned(now, app_id(app), path, is_up);
            }
        }
    }

    /// Adds a sample of what an application has sent so far.
    pub(crate) fn on_sent(&mut self, now: Stopwatch, app: &AppSnapshot) {
        let history = self.sent.entry(app.id).or_default();
        history.record(now, Sent::of(app));
    }

    /// What was seen of an application in the recent window, which is as long as enough messages
    /// take. `None`: the window is too short to be split in halves.
    pub(crate) fn traffic_window(&self, class: Class, app: &AppSnapshot) -> Option<TrafficWindow> {
        let halves = self.sent.get(&app.id)?.halves()?;
        let seen = app.workload?;
        let length_spread = Spread::new(seen.length_variation.powi(2)).unwrap_or_default();
        let tag = seen.length_bytes - body_bytes(class, &seen);
        let of = |Sent { messages, bytes }| WindowHalf {
            messages,
            length_mean: bytes as f64 / messages.max(1) as f64 - tag,
            length_spread,
        };
        Some(TrafficWindow {
            halves: halves.map(of),
            interval_spread: Spread::new(seen.interval_variation.powi(2)).unwrap_or_default(),
            together: seen.together,
        })
    }

    /// Corrects the present paths in `now` if one path failed since the last plan, to one peer or
    /// to all: see [`BackupPaths::apply_failover`].
    pub(crate) fn apply_failover(
        &self,
        config: &Config,
        before: &PlannerInput,
        now: &mut PlannerInput,
    ) {
        let up = |input: &PlannerInput| input.up.keys().copied().collect::<BTreeSet<_>>();
        let end = |app: AppIndex| config[app].peer;
        self.backup_paths
            .apply_failover(&up(before), &up(now), end, &mut now.now);
    }

    /// Plans for the failure of each path, starting from `planned`.
    pub(crate) fn compute_backups(
        &mut self,
        config: &PlannerConfig,
        input: &PlannerInput,
        planned: &Plan,
    ) {
        let places = planned.paths();
        let paths = input.up.keys().map(|(path, _)| *path).collect();
        let forecast_state = &self.forecast_state;
        let without = |path: PathIndex| {
            let mut without = input.without(path);
            without.now = places.clone();
            without.now.retain(|_, at| *at != path);
            PlanningProblem::new(config, &without)
                .coarse_assignment(PlanMode::Revise, forecast_state)
        };
        self.backup_paths = BackupPaths::find(places.clone(), &paths, without);
    }

    /// Takes the forecasts for the present assignment over before anything is learnt from them.
    /// Corrections of a path whose properties have changed get less weight. Returns whether a
    /// window of measurements ends now, for [`learn`](Self::learn).
    pub(crate) fn on_present_plan(&mut self, now: Stopwatch, present: &Plan) -> bool {
        for (path, members) in by_path(present) {
            let Some(terms) = members.values().next().map(|forecast| forecast.terms) else {
                continue;
            };
            let spec = (terms.propagation, terms.bandwidth);
            let before = self.learnt_of.insert(path, spec);
            if before.is_some_and(|before| before != spec) {
                let residual = self.forecast_state.residuals.get_mut(&path);
                residual.into_iter().for_each(Residual::on_path_changed);
            }
        }
        let due = |at: Stopwatch| now.saturating_duration_since(at) >= LEARN_INTERVAL;
        let is_due = self.learnt_at.is_none_or(due);
        if is_due {
            self.learnt_at = Some(now);
        }
        is_due
    }

    /// Learns from a window of measurements how far forecasts were off. Only paths count whose
    /// forecasts were the same at its beginning as now (no application joined or left, and the path
    /// did not change) and that carried the traffic that was forecast. A start, where messages had
    /// queued and some applications did not send yet, is not learnt from.
    pub(crate) fn learn(&mut self, present: &Plan, window: &Window) {
        let forecasts = by_path(present);
        let begun = self.window.replace(WindowStart {
            at: window.ended,
            forecasts: forecasts.clone(),
            sent: window.sent.clone(),
        });
        let Some(begun) = begun else {
            return;
        };
        let time = window.ended.saturating_duration_since(begun.at);
        for (path, members) in &forecasts {
            let sent = |app: &AppIndex| {
                let (now, then) = (window.sent.get(app)?, begun.sent.get(app)?);
                Some(now.since(then))
            };
            let same = begun.forecasts.get(path) == Some(members);
            if !same || !is_as_forecast(members, sent, time) {
                continue;
            }
            for (app, forecast) in members {
                let shown = present.apps[app.0].forecast;
                let holds = shown.is_some_and(|shown| {
                    matches!(shown.delay, Ok(_) | Err(NoForecast::ModelOff { .. }))
                });
                let Some(delay) = window.delays.get(app).filter(|_| holds) else {
                    continue;
                };
                let seconds = Duration::from_secs_f64;
                let residual = self.forecast_state.residuals.entry(*path).or_default();
                residual.observe(
                    forecast,
                    &DelayWindow {
                        delay: DelayDistribution {
                            mean: seconds(delay.mean_seconds),
                            p50: seconds(delay.p50_seconds),
                            p95: seconds(delay.p95_seconds),
                            p99: seconds(delay.p99_seconds),
                        },
                        messages: delay.count,
                    },
                );
            }
        }
    }
}

/// Forecasts by path and application.
fn by_path(present: &Plan) -> BTreeMap<PathIndex, BTreeMap<AppIndex, Forecast>> {
    let mut by_path: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
    for (number, app) in present.apps.iter().enumerate() {
        if let (Some(path), Some(forecast)) = (app.path, &app.forecast) {
            let members = by_path.entry(path).or_default();
            members.insert(AppIndex(number), forecast.forecast);
        }
    }
    by_path
}

/// Whether a path's applications sent as much in `time` as is forecast, up to chance and
/// [`LOAD_DIFFERENCE`].
fn is_as_forecast(
    members: &BTreeMap<AppIndex, Forecast>,
    sent: impl Fn(&AppIndex) -> Option<Sent>,
    time: Duration,
) -> bool {
    let (mut expected, mut actual, mut variance) = (0.0, 0.0, 0.0);
    for (app, Forecast { terms, .. }) in members {
        let rate = terms.bandwidth.as_bits_per_second() as f64 / 8.0;
        let bytes = terms.own_load * rate * time.as_secs_f64();
        let (length, wire) = (terms.length.get() as f64, terms.wire_length.get() as f64);
        let Some(sent) = sent(app) else {
            return false;
        };
        expected += bytes;
        actual += sent.bytes as f64 + sent.messages as f64 * (wire - length);
        // As for a Poisson process whose lengths vary as much as its intervals; regular senders are
        // counted to within one message.
        variance += 2.0 * bytes * wire + wire * wire;
    }
    let difference = f64::abs(actual - expected);
    difference <= (SIGNIFICANT * f64::sqrt(variance)).max(LOAD_DIFFERENCE * expected)
}

#[cfg(test)]
mod tests {
    use keiro_control::config::PeerIndex;

    use super::*;

    /// Two paths, both to the peers `b` and `c`, with an application for each.
    fn two_peers() -> Config {
        let mut text = r#"
[gateway]
name = "a"
[[path]]
name = "slow"
local = "192.0.2.1:4500"
rate = "100Mbit"
delay = "20ms"
[[path]]
name = "quick"
local = "198.51.100.1:4500"
rate = "100Mbit"
delay = "2ms"
"#
        .to_owned();
        for (number, peer) in [(1, "b"), (2, "c")] {
            let key = keiro_control::PublicKey::from_bytes([number; 32]);
            text.push_str(&format!(
                "[[peer]]\nname = \"{peer}\"\npublic_key = \"{key}\"\n\
                 endpoints = {{ slow = \"192.0.2.1{number}:4500\", \
                 quick = \"198.51.100.1{number}:4500\" }}\n\
                 [[app]]\nname = \"to-{peer}\"\nclass = \"message\"\npeer = \"{peer}\"\n\
                 length = \"10kB\"\ninterval = \"100ms\"\nlatency_target = \"10ms\"\n"
            ));
        }
        Config::parse(&text, "test.toml").unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn a_path_that_fails_to_one_peer_moves_the_applications_of_that_peer_only() {
        let config = two_peers();
        let (slow, quick) = (PathIndex(0), PathIndex(1));
        let (to_b, to_c) = (AppIndex(0), AppIndex(1));
        let planned = PlannerConfig::of(&config);
        let plan = |input: &PlannerInput| {
            let problem = PlanningProblem::new(&planned, input);
            problem.answer(PlanMode::Revise, &ForecastState::default())
        };
        let pairs = [slow, quick].map(|path| [0, 1].map(|peer| (path, PeerIndex(peer))));
        let all = PlannerInput {
            up: pairs
                .into_iter()
                .flatten()
                .map(|pair| (pair, None))
                .collect(),
            ..PlannerInput::default()
        };
        let before = plan(&all);
        assert_eq!(before.paths(), [(to_b, quick), (to_c, quick)].into());
        let mut steering = Steering::default();
        steering.compute_backups(&planned, &all, &before);

        let mut one = all.clone();
        one.now = before.paths();
        one.up.remove(&(quick, PeerIndex(0)));
        steering.apply_failover(&config, &all, &mut one);
        assert_eq!(one.now, [(to_b, slow), (to_c, quick)].into());
        let after = plan(&one);
        assert_eq!(after.paths(), one.now);

        // And a little later to the other.
        steering.compute_backups(&planned, &one, &after);
        let mut none = one.clone();
        none.up.remove(&(quick, PeerIndex(1)));
        steering.apply_failover(&config, &one, &mut none);
        assert_eq!(none.now, [(to_b, slow), (to_c, slow)].into());
    }

    /// Both applications are where they are planned to be, and what is said of them.
    fn present_plan(config: &Config, change: impl FnOnce(&mut PlannerInput)) -> Plan {
        let (quick, slow) = (PathIndex(1), PathIndex(0));
        let pairs = [(slow, 0), (slow, 1), (quick, 0), (quick, 1)];
        let mut input = PlannerInput {
            up: pairs
                .map(|(path, peer)| ((path, PeerIndex(peer)), None))
                .into(),
            now: [(AppIndex(0), quick), (AppIndex(1), quick)].into(),
            ..PlannerInput::default()
        };
        change(&mut input);
        let config = PlannerConfig::of(config);
        PlanningProblem::new(&config, &input).present_plan(&ForecastState::default())
    }

    /// The window of 30 s that ends after `windows`; both have sent so many messages of 10 kB in
    /// all, and took `millis`.
    fn window(windows: u64, messages: [u64; 2], millis: f64) -> Window {
        let seconds = millis * 1e-3;
        let delay = DelayQuantiles {
            count: 300,
            mean_seconds: seconds,
            p50_seconds: seconds,
            p95_seconds: seconds,
            p99_seconds: seconds,
            ..DelayQuantiles::default()
        };
        let apps = [AppIndex(0), AppIndex(1)];
        let sent = |(app, messages)| {
            let bytes = messages * 10_000;
            (app, Sent { messages, bytes })
        };
        Window {
            ended: Instant::ZERO + LEARN_INTERVAL * u32::try_from(windows).unwrap(),
            delays: apps.map(|app| (app, delay)).into(),
            sent: apps.into_iter().zip(messages).map(sent).collect(),
        }
    }

    #[test]
    fn first_window_after_a_start_is_not_learnt_from() {
        let config = two_peers();
        let plan = present_plan(&config, |_| ());
        let mut steering = Steering::default();
        // 300 messages are forecast of each in 30 s. At first one of them did not send.
        for (windows, messages, millis, learns) in [
            (0, [0, 0], 500.0, false),
            (1, [300, 20], 200.0, false),
            (2, [600, 320], 5.0, true),
        ] {
            steering.learn(&plan, &window(windows, messages, millis));
            let learnt = steering.forecast_state.residuals.get(&PathIndex(1));
            assert_eq!(learnt.is_some(), learns, "{windows}");
        }
        let learnt = steering.forecast_state.residuals[&PathIndex(1)];
        let shown = plan.apps[0].forecast.unwrap();
        let corrected = learnt.correct(&shown.forecast).unwrap().delay.mean;
        // Towards the 5 ms of the last window, not towards the start's.
        let before = shown.delay.unwrap().mean;
        assert!(corrected > before && corrected < Duration::from_millis(5));
    }

    #[test]
    fn window_across_a_path_change_is_not_learnt_from() {
        let config = two_peers();
        let plan = present_plan(&config, |_| ());
        let mut steering = Steering::default();
        let teaches = |steering: &mut Steering, windows, plan: &Plan| {
            let before = steering
                .forecast_state
                .residuals
                .get(&PathIndex(1))
                .copied();
            let messages = [windows * 300; 2];
            steering.learn(plan, &window(windows, messages, 5.0));
            before
                != steering
                    .forecast_state
                    .residuals
                    .get(&PathIndex(1))
                    .copied()
        };
        assert!(!teaches(&mut steering, 0, &plan));
        assert!(teaches(&mut steering, 1, &plan));
        // The path gets slower, then an application leaves it.
        let narrow = present_plan(&config, |input| {
            let sample = PathSample {
                bandwidth: Bandwidth::from_mbit_per_second(60),
                delay: Duration::from_millis(2),
                loss: Probability::ZERO,
            };
            for peer in [0, 1] {
                input
                    .up
                    .insert((PathIndex(1), PeerIndex(peer)), Some(sample));
            }
        });
        assert!(!teaches(&mut steering, 2, &narrow));
        assert!(teaches(&mut steering, 3, &narrow));
        let alone = present_plan(&config, |input| {
            input.now.insert(AppIndex(1), PathIndex(0));
        });
        assert!(!teaches(&mut steering, 4, &alone));
        assert!(!teaches(&mut steering, 5, &narrow));
        assert!(teaches(&mut steering, 6, &narrow));
    }

    #[test]
    fn corrections_lose_weight_when_the_path_changes() {
        let config = two_peers();
        let plan = present_plan(&config, |_| ());
        let mut steering = Steering::default();
        let now = Stopwatch::now();
        assert!(steering.on_present_plan(now, &plan));
        for windows in 0..10 {
            let messages = [windows * 300; 2];
            steering.learn(&plan, &window(windows, messages, 5.0));
        }
        assert!(!steering.on_present_plan(now, &plan));
        let windows =
            |steering: &Steering| steering.forecast_state.residuals[&PathIndex(1)].windows();
        assert!(windows(&steering) > 10.0);
        let far = present_plan(&config, |input| {
            let sample = PathSample {
                bandwidth: Bandwidth::from_mbit_per_second(100),
                delay: Duration::from_millis(4),
                loss: Probability::ZERO,
            };
            for peer in [0, 1] {
                input
                    .up
                    .insert((PathIndex(1), PeerIndex(peer)), Some(sample));
            }
        });
        assert!(!steering.on_present_plan(now, &far));
        assert!(windows(&steering) < 1.0);
        assert!(steering.on_present_plan(now + LEARN_INTERVAL, &far));
    }
}
