//! What paths cost in the plan of a site.
//!
//! The leader chooses as a gateway does alone: an application takes the cheapest of its paths, and a costlier one if its
//! target needs it ([`cheapest_paths`]). Those that do not need it any more go back ([`reduce_cost`]), by eq. 3.

use std::collections::BTreeMap;

use keiro_model::path_terms::{CostPerGb, PathRole, Price};
use keiro_planner::{
    delay::{AppSpec, Delay, Equation3, OverloadPolicy, PathSpec, Tolerance},
    plan::{
        Budget, Prices, competing_rates,
        incumbent::{Allowed, InputError, PathId, Settings},
        reduce_cost,
    },
    steer::{CostRule, PathChoice, PlanMode, SteeredApp, SteeringPlan, cheapest_paths, plan_moves},
};
use keiro_store::PathInputs;

/// An application with everything that it may take, and what it pays there.
pub(super) struct PricedApp {
    pub(super) app: SteeredApp,
    /// Of the paths to its peer that it may take.
    pub(super) prices: BTreeMap<PathId, Price>,
}

/// Work of [`reduce_cost`], in applications whose delays are computed. Ours: some ten milliseconds.
const WORK: u64 = 400_000;
const EQUATION: Equation3 = Equation3 {
    saturation: OverloadPolicy::Refused,
};

pub(super) fn price_of(path: &PathInputs) -> Price {
    Price {
        role: match path.is_backup {
            true => PathRole::Backup,
            false => PathRole::Primary,
        },
        cost: CostPerGb::from_micros(path.cost_micros_per_gigabyte),
    }
}

impl PricedApp {
    /// On `app.allowed` there are all the paths that it may take.
    pub(super) fn new(mut app: SteeredApp, prices: BTreeMap<PathId, Price>) -> Self {
        let choice = PathChoice {
            allowed: prices.keys().copied().collect(),
            fallback: app.fallback,
        };
        let cost_rule = CostRule {
            has_target: app.spec.latency_target.is_some(),
            at: app.path,
        };
        let price = |path| prices.get(&path).copied().unwrap_or_default();
        let PathChoice { allowed, fallback } = cheapest_paths(choice, cost_rule, price);
        app.allowed = Allowed::Only(allowed);
        app.fallback = fallback;
        Self { app, prices }
    }

    /// The same where it may take a costlier path to make room for others.
    fn regardless_of_price(&self) -> SteeredApp {
        let mut app = self.app.clone();
        if let Allowed::Only(paths) = &mut app.allowed {
            paths.append(&mut app.fallback);
        }
        app
    }
}

/// The path of each of `apps`, whose identifiers are their positions, as those of paths are.
///
/// # Errors
/// As [`plan_moves`].
pub(super) fn plan(
    settings: Settings,
    paths: &[(PathId, PathSpec)],
    apps: &[PricedApp],
    plan_mode: PlanMode,
) -> Result<Vec<Option<PathId>>, InputError> {
    let moves =
        |apps: &[SteeredApp]| plan_moves(settings, paths, apps, plan_mode, Budget::default());
    let bound: Vec<SteeredApp> = apps.iter().map(|priced| priced.app.clone()).collect();
    let mut found = moves(&bound)?;
    let may_pay = apps.iter().any(|priced| !priced.app.fallback.is_empty());
    if may_pay && !found.unmet.is_empty() {
        let free: Vec<SteeredApp> = apps.iter().map(PricedApp::regardless_of_price).collect();
        let regardless = moves(&free)?;
        if regardless.unmet.len() < found.unmet.len() {
            found = regardless;
        }
    }
    Ok(cheaper(settings.tolerance, paths, apps, &found))
}

/// `found`, with applications on cheaper paths where no further target is missed.
fn cheaper(
    tolerance: Tolerance,
    paths: &[(PathId, PathSpec)],
    apps: &[PricedApp],
    found: &SteeringPlan,
) -> Vec<Option<PathId>> {
    let places = found.assignment();
    let planned: Vec<Option<PathId>> = apps
        .iter()
        .map(|priced| places.get(&priced.app.id).copied())
        .collect();
    let pays_more = |(priced, path): (&PricedApp, &Option<PathId>)| {
        let price = path.and_then(|path| priced.prices.get(&path));
        priced.prices.values().min() < price
    };
    let start: Option<Vec<usize>> = planned
        .iter()
        .map(|path| path.map(|path| path.0 as usize))
        .collect();
    let Some(start) = start.filter(|_| apps.iter().zip(&planned).any(pays_more)) else {
        return planned;
    };
    let of_paths = |priced: &PricedApp| -> (Vec<Price>, Vec<bool>) {
        let all = paths.iter().map(|(path, _)| priced.prices.get(path));
        all.map(|price| (price.copied().unwrap_or_default(), price.is_some()))
            .unzip()
    };
    let (prices, may): (Vec<Vec<Price>>, Vec<Vec<bool>>) = apps.iter().map(of_paths).unzip();
    let specs: Vec<AppSpec> = apps.iter().map(|priced| priced.app.spec).collect();
    let has_target: Vec<bool> = specs
        .iter()
        .map(|app| app.latency_target.is_some())
        .collect();
    let at: Vec<Option<usize>> = apps
        .iter()
        .map(|priced| priced.app.path.map(|path| path.0 as usize))
        .collect();
    let prices = Prices {
        prices: &prices,
        may: &may,
        has_target: &has_target,
        at: &at,
    };
    let kept = reduce_cost(&start, prices, WORK, |path, members| {
        target_ratios(tolerance, &paths[path].1, &specs, members)
    });
    let id = |path: usize| paths.get(path).map(|(id, _)| *id);
    kept.into_iter().map(id).collect()
}

/// Delays in parts of targets, as [`reduce_cost`] takes them.
fn target_ratios(
    tolerance: Tolerance,
    path: &PathSpec,
    specs: &[AppSpec],
    members: &[usize],
) -> Vec<f64> {
    let ratio = |(app, others): (&usize, _)| {
        let spec = &specs[*app];
        let Delay::Finite(delay) = EQUATION.predict(path, spec, others).delay else {
            return f64::INFINITY;
        };
        spec.latency_target.map_or(0.0, |target| {
            let limit = tolerance.loosen(target).as_secs_f64();
            delay.as_secs_f64() / limit.max(f64::MIN_POSITIVE)
        })
    };
    let others = competing_rates(specs, members);
    members.iter().zip(others).map(ratio).collect()
}
