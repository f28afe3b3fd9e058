//! The gateway's plan loop on side A: the same components in the same order.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use keiro_core::{PathSnapshot, PathState};
use keiro_planner::{
    delay::{self, PathSpec},
    plan::{
        Budget,
        incumbent::{Allowed, AppId, PathId, Settings},
    },
    steer::{
        BackupPaths, LossUnit, PathChoice, PathHoldDown, PlanMode, PreferredPaths, SteeredApp,
        TrackedPath, eligible_paths, path_spec, plan_moves, probation_paths, tolerable_paths,
    },
};
use keiro_sim::{GatewayPair, ScenarioEvent, Side};
use keiro_units::{ByteCount, Probability};

/// Period of the loop.
pub(crate) const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// Traffic and latency target of an application.
pub(crate) struct App {
    pub(crate) bytes: u64,
    pub(crate) interval: Duration,
    pub(crate) latency_target: Option<Duration>,
    /// The part that may be lost, and of what; `None`: losses are repaired.
    pub(crate) loss: Option<(Probability, LossUnit)>,
}

pub(crate) struct Loop {
    paths: BTreeMap<PathId, TrackedPath>,
    /// As of the last plan.
    up: BTreeMap<PathId, PathHoldDown>,
    steered_apps: Vec<SteeredApp>,
    /// One for each of them.
    losses: Vec<Option<(Probability, LossUnit)>>,
    preferred_paths: PreferredPaths<AppId, PathId>,
    backup_paths: BackupPaths<AppId, PathId>,
    pub(crate) plans: usize,
}

/// The session's index of the application that a scenario has added as its `number`-th, from 0, by which the
/// loop finds it in `steered_apps`.
fn id_of(number: usize) -> AppId {
    AppId(keiro_core::AppId::of_name(&format!("A{}", number + 1)).0)
}

/// There is only one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Peer;

impl Loop {
    pub(crate) fn new(apps: &[App]) -> Self {
        let steered_app = |(number, app): (usize, &App)| SteeredApp {
            id: id_of(number),
            spec: delay::AppSpec {
                length: ByteCount::new(app.bytes),
                interval: app.interval,
                latency_target: app.latency_target,
            },
            allowed: Allowed::All,
            fallback: BTreeSet::new(),
            path: None,
        };
        Self {
            paths: BTreeMap::new(),
            up: BTreeMap::new(),
            steered_apps: apps.iter().enumerate().map(steered_app).collect(),
            losses: apps.iter().map(|app| app.loss).collect(),
            preferred_paths: PreferredPaths::default(),
            backup_paths: BackupPaths::default(),
            plans: 0,
        }
    }

    /// Examines the paths, and plans if one has changed.
    pub(crate) fn turn(&mut self, pair: &mut GatewayPair, plan_mode: PlanMode) {
        let mut paths: Vec<PathSnapshot> = Vec::new();
        pair.act(Side::A, |endpoint, peer| paths = endpoint.paths(peer));
        let session = pair.gateway(Side::A).session();
        let settling = session.as_ref().is_some_and(|session| session.settling);
        let places = session.into_iter().flat_map(|session| session.apps);
        let places = places.filter_map(|app| Some((app.id, app.path?)));
        let places: BTreeMap<AppId, PathId> = places
            .map(|(app, path)| (AppId(app.0), PathId(path.0.into())))
            .collect();
        let mut tolerances: Vec<Probability> = self
            .losses
            .iter()
            .flatten()
            .map(|(tolerance, _)| *tolerance)
            .collect();
        tolerances.dedup();
        let mut news = false;
        let mut up = BTreeMap::new();
        for (id, path) in (0..).map(PathId).zip(&paths) {
            let followed = self.paths.entry(id).or_default();
            followed.follow_tolerances(&tolerances);
            news |= followed.on_observation(path.observation(), None);
            let standing = match path.state {
                PathState::Up => followed.hold_down(path.stats.outages),
                PathState::Validating if settling => PathHoldDown::Validating,
                PathState::Validating | PathState::Down => continue,
            };
            if followed.level().is_some() {
                up.insert(id, standing);
            }
        }
        let known = |app: &AppId| {
            self.steered_apps
                .iter()
                .any(|steered_app| steered_app.id == *app)
        };
        assert!(places.keys().all(known), "an application without a plan");
        for (app, place) in &places {
            let is_up = |home: &PathId| up.contains_key(home);
            self.preferred_paths
                .on_assigned(pair.now(), *app, *place, is_up);
        }
        if news || up != self.up {
            self.plan(pair, up, places, plan_mode);
        }
    }

    fn plan(
        &mut self,
        pair: &mut GatewayPair,
        up: BTreeMap<PathId, PathHoldDown>,
        mut now: BTreeMap<AppId, PathId>,
        plan_mode: PlanMode,
    ) {
        self.plans += 1;
        let ends = |up: &BTreeMap<PathId, PathHoldDown>| -> BTreeSet<(PathId, Peer)> {
            up.keys().map(|path| (*path, Peer)).collect()
        };
        for steered_app in &self.steered_apps {
            if let Some(home) = self.preferred_paths.of(&steered_app.id) {
                now.entry(steered_app.id).or_insert(*home);
            }
        }
        let (before, after) = (ends(&self.up), ends(&up));
        self.backup_paths
            .apply_failover(&before, &after, |_| Peer, &mut now);
        self.up = up;
        for (steered_app, loss) in self.steered_apps.iter_mut().zip(&self.losses) {
            steered_app.path = now.get(&steered_app.id).copied();
            let standings = self.up.iter().map(|(path, standing)| (*path, *standing));
            let choice = PathChoice {
                allowed: eligible_paths(standings.clone(), steered_app.path),
                fallback: probation_paths(standings),
            };
            let excess = |path: PathId| {
                let (tolerance, of) = (*loss)?;
                let loss = self.paths[&path].excess_loss(tolerance, of)?;
                Some(loss.get() / tolerance.get())
            };
            let target = steered_app.spec.latency_target;
            let lateness = |path: PathId| {
                let level = self.paths[&path].level();
                level.zip(target).map_or(0.0, |(level, target)| {
                    level.delay.as_secs_f64() / target.as_secs_f64()
                })
            };
            let PathChoice { allowed, fallback } = tolerable_paths(choice, excess, lateness);
            (steered_app.allowed, steered_app.fallback) = (Allowed::Only(allowed), fallback);
        }
        let paths: BTreeSet<PathId> = self.up.keys().copied().collect();
        let spec = |path: &PathId| Some((*path, path_spec(&self.paths[path].level()?, 70)));
        let specs: Vec<(PathId, PathSpec)> = paths.iter().filter_map(spec).collect();
        let budget = Budget::default();
        let settings = Settings::default();
        let arrangement =
            plan_moves(settings, &specs, &self.steered_apps, plan_mode, budget).unwrap();
        let places = arrangement.assignment();
        let without = |path| arrangement.moves_without(path, budget);
        self.backup_paths = BackupPaths::find(places.clone(), &paths, without);
        for (app, steered_app) in self.steered_apps.iter().enumerate() {
            let planned = places.get(&steered_app.id).copied();
            let backup = planned.and_then(|at| self.backup_paths.backup(steered_app.id, at));
            let first = planned.or(self.preferred_paths.of(&steered_app.id).copied());
            let mut order: Vec<PathId> = Vec::new();
            let all = (0..).map(PathId).take(self.paths.len());
            for path in first.into_iter().chain(backup).chain(all) {
                if !order.contains(&path) {
                    order.push(path);
                }
            }
            let side = Side::A;
            let paths = order.into_iter().map(|path| path.0 as usize).collect();
            pair.apply(&ScenarioEvent::Assign { side, app, paths });
        }
    }
}
