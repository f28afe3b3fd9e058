//! The gateway's plan loop on side A: the same parts in the same order.

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
    steer::{FollowedPath, Homes, Manner, Refuges, Resident, Standing, arrange, choices, spares},
};
use keiro_sim::{GatewayPair, Happening, Side};
use keiro_units::ByteCount;

/// How often the loop looks.
pub(crate) const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// What an application sends and latency targets.
pub(crate) struct App {
    pub(crate) bytes: u64,
    pub(crate) interval: Duration,
    pub(crate) latency_target: Option<Duration>,
}

/// See the module.
pub(crate) struct Loop {
    paths: BTreeMap<PathId, FollowedPath>,
    /// As of the last plan.
    up: BTreeMap<PathId, Standing>,
    residents: Vec<Resident>,
    homes: Homes<AppId, PathId>,
    refuges: Refuges<AppId, PathId>,
    pub(crate) plans: usize,
}

/// The session's own number of the application that a scenario has added as its `number`-th, from
/// 0: what the session says of it has to be found among the residents.
fn id_of(number: usize) -> AppId {
    AppId(keiro_core::AppId::of_name(&format!("A{}", number + 1)).0)
}

/// There is only one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Peer;

impl Loop {
    pub(crate) fn new(apps: &[App]) -> Self {
        let resident = |(number, app): (usize, &App)| Resident {
            id: id_of(number),
            spec: delay::AppSpec {
                length: ByteCount::new(app.bytes),
                interval: app.interval,
                latency_target: app.latency_target,
            },
            allowed: Allowed::All,
            spare: BTreeSet::new(),
            at: None,
        };
        Self {
            paths: BTreeMap::new(),
            up: BTreeMap::new(),
            residents: apps.iter().enumerate().map(resident).collect(),
            homes: Homes::default(),
            refuges: Refuges::default(),
            plans: 0,
        }
    }

    /// Looks at the paths, and plans if one is another one now.
    pub(crate) fn turn(&mut self, pair: &mut GatewayPair, manner: Manner) {
        let mut paths: Vec<PathSnapshot> = Vec::new();
        pair.act(Side::A, |endpoint, peer| paths = endpoint.paths(peer));
        let session = pair.gateway(Side::A).session();
        let settling = session.as_ref().is_some_and(|session| session.settling);
        let places = session.into_iter().flat_map(|session| session.apps);
        let places = places.filter_map(|app| Some((app.id, app.path?)));
        let places: BTreeMap<AppId, PathId> = places
            .map(|(app, path)| (AppId(app.0), PathId(path.0.into())))
            .collect();
        let mut news = false;
        let mut up = BTreeMap::new();
        for (id, path) in (0..).map(PathId).zip(&paths) {
            let followed = self.paths.entry(id).or_default();
            news |= followed.on_look(path.look(), None);
            let standing = match path.state {
                PathState::Up => followed.standing(path.deaths),
                PathState::Validating if settling => Standing::Awaited,
                PathState::Validating | PathState::Down => continue,
            };
            if followed.level().is_some() {
                up.insert(id, standing);
            }
        }
        let known = |app: &AppId| self.residents.iter().any(|resident| resident.id == *app);
        assert!(places.keys().all(known), "an application that nobody plans");
        for (app, place) in &places {
            let is_up = |home: &PathId| up.contains_key(home);
            self.homes.on_seen(pair.now(), *app, *place, is_up);
        }
        if news || up != self.up {
            self.plan(pair, up, places, manner);
        }
    }

    fn plan(
        &mut self,
        pair: &mut GatewayPair,
        up: BTreeMap<PathId, Standing>,
        mut now: BTreeMap<AppId, PathId>,
        manner: Manner,
    ) {
        self.plans += 1;
        let ends = |up: &BTreeMap<PathId, Standing>| -> BTreeSet<(PathId, Peer)> {
            up.keys().map(|path| (*path, Peer)).collect()
        };
        for resident in &self.residents {
            if let Some(home) = self.homes.of(&resident.id) {
                now.entry(resident.id).or_insert(*home);
            }
        }
        let (before, after) = (ends(&self.up), ends(&up));
        self.refuges.expect(&before, &after, |_| Peer, &mut now);
        self.up = up;
        for resident in &mut self.residents {
            resident.at = now.get(&resident.id).copied();
            let standings = self.up.iter().map(|(path, standing)| (*path, *standing));
            resident.allowed = Allowed::Only(choices(standings.clone(), resident.at));
            resident.spare = spares(standings);
        }
        let paths: BTreeSet<PathId> = self.up.keys().copied().collect();
        let spec = |path: &PathId| Some((*path, self.paths[path].level()?.spec(70)));
        let specs: Vec<(PathId, PathSpec)> = paths.iter().filter_map(spec).collect();
        let budget = Budget::default();
        let settings = Settings::default();
        let arrangement = arrange(settings, &specs, &self.residents, manner, budget).unwrap();
        let places = arrangement.places();
        let without = |path| arrangement.without(path, budget);
        self.refuges = Refuges::find(places.clone(), &paths, without);
        for (app, resident) in self.residents.iter().enumerate() {
            let planned = places.get(&resident.id).copied();
            let refuge = planned.and_then(|at| self.refuges.refuge(resident.id, at));
            let first = planned.or(self.homes.of(&resident.id).copied());
            let mut order: Vec<PathId> = Vec::new();
            let all = (0..).map(PathId).take(self.paths.len());
            for path in first.into_iter().chain(refuge).chain(all) {
                if !order.contains(&path) {
                    order.push(path);
                }
            }
            let side = Side::A;
            let paths = order.into_iter().map(|path| path.0 as usize).collect();
            pair.apply(&Happening::Assign { side, app, paths });
        }
    }
}
