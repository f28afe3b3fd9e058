//! The plan of a whole site by eq. 3, from the inputs of all gateways.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use keiro_model::path_terms::Price;
use keiro_planner::{
    delay::{AppSpec, PathSpec},
    plan::incumbent::{Allowed, AppId, PathId, Settings},
    steer::{PathSample, PlanMode, SteeredApp, path_spec},
};
use keiro_planning::forecast::{packets_of, wire_length};
use keiro_store::{AppInputs, Inputs, PathInputs, SitePlan};
use keiro_units::{Bandwidth, ByteCount, Probability};

use super::prices::{self, PricedApp, price_of};

/// Gateway to application to path.
pub(super) type Assignments = BTreeMap<String, BTreeMap<String, String>>;

/// The plan by eq. 3 for the applications of all gateways together. Paths of one name at several gateways are one shared
/// line. Published values may be anything; invalid ones are left out.
pub(super) fn plan_by_equation(
    inputs: &[&Inputs],
    before: Option<&SitePlan>,
    settings: Settings,
) -> Assignments {
    let specs = paths_of(inputs);
    let names = PathNames(specs.keys().copied().collect());
    let paths: Vec<(PathId, PathSpec)> = specs
        .iter()
        .filter_map(|(name, spec)| Some((names.id(name)?, *spec)))
        .collect();
    let mut owners = Vec::new();
    let mut priced_apps: Vec<PricedApp> = Vec::new();
    for gateway in inputs {
        for app in &gateway.apps {
            let id = AppId(u32::try_from(priced_apps.len()).unwrap_or(u32::MAX));
            if let Some(priced) = priced_app(id, gateway, app, before, &names) {
                priced_apps.push(priced);
                owners.push((&gateway.gateway, &app.name));
            }
        }
    }
    // Applications that have a path are not moved for small gains.
    let is_placed = |priced: &PricedApp| priced.app.path.is_some();
    let plan_mode = match before.is_some() || priced_apps.iter().any(is_placed) {
        true => PlanMode::Revise,
        false => PlanMode::FromScratch,
    };
    let planned = prices::plan(settings, &paths, &priced_apps, plan_mode);
    let mut assignments = Assignments::new();
    match planned {
        Ok(places) => {
            for ((gateway, app), path) in owners.iter().zip(places) {
                let Some(path) = path.and_then(|path| names.name(path)) else {
                    continue;
                };
                let of_gateway = assignments.entry((*gateway).clone()).or_default();
                of_gateway.insert((*app).clone(), path.to_owned());
            }
        }
        Err(refused) => {
            tracing::error!(
                ?refused,
                "the site is too large to plan for; the plan stays"
            );
            let plan = before.map(|plan| plan.assignments.clone());
            assignments = plan.unwrap_or_default();
        }
    }
    assignments
}

/// Names of the site's paths in order; a path's position is its identifier in the plan.
struct PathNames<'a>(Vec<&'a str>);

impl PathNames<'_> {
    fn id(&self, name: &str) -> Option<PathId> {
        let number = self.0.binary_search(&name).ok()?;
        Some(PathId(u32::try_from(number).ok()?))
    }

    fn name(&self, id: PathId) -> Option<&str> {
        self.0.get(id.0 as usize).copied()
    }
}

/// An application with its present [`place`]. `None`: no path leads to its peer, or its workload is
/// not known.
fn priced_app(
    id: AppId,
    gateway: &Inputs,
    app: &AppInputs,
    before: Option<&SitePlan>,
    names: &PathNames<'_>,
) -> Option<PricedApp> {
    let leads_there = |path: &&PathInputs| {
        let is_allowed = app.paths.is_empty() || app.paths.contains(&path.name);
        path.peer == app.peer && is_allowed
    };
    let allowed = gateway.paths.iter().filter(leads_there);
    let prices: BTreeMap<PathId, Price> = allowed
        .filter_map(|path| Some((names.id(&path.name)?, price_of(path))))
        .collect();
    let spec = spec_of(app).filter(|_| !prices.is_empty())?;
    let app = SteeredApp {
        id,
        spec: AppSpec {
            length: wire_length(spec.length),
            ..spec
        },
        allowed: Allowed::Only(prices.keys().copied().collect()),
        fallback: BTreeSet::new(),
        path: place(gateway, app, before, |name| names.id(name).is_some())
            .and_then(|name| names.id(name)),
    };
    Some(PricedApp::new(app, prices))
}

/// Where an application is: as its gateway reports it, unless `plan` was made from the same report,
/// or there is no such path.
pub(super) fn place<'a>(
    gateway: &'a Inputs,
    app: &'a AppInputs,
    plan: Option<&'a SitePlan>,
    is_path: impl Fn(&str) -> bool,
) -> Option<&'a str> {
    let is_same_report =
        |plan: &&SitePlan| plan.made_from.get(&gateway.gateway) == Some(&gateway.sequence);
    let moved = plan.filter(is_same_report).is_none();
    let reported = app.path_now.as_deref();
    let reported = reported.filter(|name| moved && is_path(name));
    let planned = |plan: &'a SitePlan| {
        let assigned = plan.assignments.get(&gateway.gateway)?.get(&app.name)?;
        Some(assigned.as_str())
    };
    reported.or_else(|| plan.and_then(planned))
}

/// The properties of each line: the least bandwidth and the longest delay that a gateway reports.
fn paths_of<'a>(inputs: &[&'a Inputs]) -> BTreeMap<&'a str, PathSpec> {
    let apps = inputs.iter().flat_map(|inputs| &inputs.apps);
    let with_target = apps.filter(|app| app.latency_target_seconds.is_some());
    let lengths = with_target.filter_map(|app| Some(packets_of(spec_of(app)?.length)));
    let packets = lengths.max().unwrap_or(1);
    let mut specs: BTreeMap<&str, PathSpec> = BTreeMap::new();
    for path in inputs.iter().flat_map(|inputs| &inputs.paths) {
        // What the site's own traffic takes is planned anew.
        let Some(line) = line_of(path) else {
            continue;
        };
        let spec = path_spec(&line, packets);
        let known = specs.entry(&path.name).or_insert(spec);
        known.bandwidth = known.bandwidth.min(spec.bandwidth);
        known.delay = known.delay.max(spec.delay);
    }
    specs
}

/// A path with all that the line carries. `None`: its values make no sense.
pub(super) fn line_of(path: &PathInputs) -> Option<PathSample> {
    let delay = Duration::try_from_secs_f64(path.delay_seconds).ok();
    let usable = path.bandwidth_bits_per_second;
    let rate = path.line_bits_per_second.unwrap_or(usable).max(usable);
    Some(PathSample {
        bandwidth: (1.0..RATE_END)
            .contains(&rate)
            .then(|| Bandwidth::from_bits_per_second(rate as u64))?,
        delay: delay.filter(|delay| *delay <= DELAY_MAX)?,
        loss: Probability::new(path.loss_ratio).unwrap_or(Probability::ZERO),
    })
}

/// Longer ones make no sense, as in the configuration.
const DELAY_MAX: Duration = Duration::from_secs(24 * 3600);
/// The planner takes less than 2^48 bit/s.
const RATE_END: f64 = (1_u64 << 48) as f64;

pub(super) fn spec_of(app: &AppInputs) -> Option<AppSpec> {
    let interval = Duration::try_from_secs_f64(app.interval_seconds).ok()?;
    let latency_target = app.latency_target_seconds.map(Duration::try_from_secs_f64);
    let length = app.length_bytes;
    let sane = (0.0..1e18).contains(&length) && !interval.is_zero();
    sane.then_some(AppSpec {
        length: ByteCount::new(length as u64),
        interval,
        latency_target: latency_target.transpose().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str, mbit: f64, delay_seconds: f64) -> PathInputs {
        PathInputs {
            name: name.into(),
            peer: "b".into(),
            bandwidth_bits_per_second: mbit * 1e6,
            delay_seconds,
            ..PathInputs::default()
        }
    }

    fn app(name: &str, latency_target_seconds: Option<f64>) -> AppInputs {
        AppInputs {
            name: name.into(),
            peer: "b".into(),
            length_bytes: 100_000.0,
            interval_seconds: 0.02,
            latency_target_seconds,
            ..AppInputs::default()
        }
    }

    fn gateway(name: &str, paths: Vec<PathInputs>, apps: Vec<AppInputs>) -> Inputs {
        Inputs {
            gateway: name.into(),
            paths,
            apps,
            ..Inputs::default()
        }
    }

    #[test]
    fn gateways_share_the_lines_of_one_name() {
        // 40 Mbit/s each: two on one line of 100 Mbit/s, the third on the other.
        let paths = || vec![path("fast", 100.0, 0.001), path("slow", 100.0, 0.03)];
        let first = gateway("g1", paths(), vec![app("x", Some(0.05)), app("y", None)]);
        let second = gateway("g2", paths(), vec![app("x", Some(0.02))]);
        let plan = plan_by_equation(&[&first, &second], None, Settings::default());
        assert_eq!(plan["g2"]["x"], "fast");
        let all = [&plan["g1"]["x"], &plan["g1"]["y"], &plan["g2"]["x"]];
        let fast = all.iter().filter(|path| path.as_str() == "fast").count();
        assert!(fast < 3, "{plan:?}");
        // Planned again, nothing moves.
        let before = SitePlan {
            assignments: plan.clone(),
            ..SitePlan::default()
        };
        let again = plan_by_equation(&[&first, &second], Some(&before), Settings::default());
        assert_eq!(again, plan);
    }

    #[test]
    fn what_paths_cost_counts_as_it_does_at_a_gateway_alone() {
        let backup = PathInputs {
            is_backup: true,
            ..path("backup", 100.0, 0.001)
        };
        let dear = PathInputs {
            cost_micros_per_gigabyte: 1_000_000,
            ..path("dear", 100.0, 0.005)
        };
        let paths = vec![backup, dear, path("line", 100.0, 0.03)];
        let urgent = |ms: f64| Some(ms * 1e-3);
        let apps = vec![
            app("patient", None),
            app("slow", urgent(200.0)),
            app("quick", urgent(20.0)),
            app("urgent", urgent(12.0)),
        ];
        let of = |paths: Vec<PathInputs>, before: Option<&SitePlan>| {
            let first = gateway("g1", paths, apps.clone());
            plan_by_equation(&[&first], before, Settings::default())["g1"].clone()
        };
        let plan = of(paths.clone(), None);
        assert_eq!([&plan["patient"], &plan["slow"]], ["line"; 2]);
        assert!(
            plan["quick"] != "line" && plan["urgent"] != "line",
            "{plan:?}"
        );
        // Planned again, nothing moves.
        let before = SitePlan {
            assignments: [("g1".to_owned(), plan.clone())].into(),
            ..SitePlan::default()
        };
        assert_eq!(of(paths.clone(), Some(&before)), plan);
        // The line becomes as quick: none pays any more.
        let mut near = paths;
        near[2].delay_seconds = 0.001;
        near[2].bandwidth_bits_per_second = 1e9;
        let plan = of(near, Some(&before));
        assert!(plan.values().all(|path| path == "line"), "{plan:?}");
    }

    #[test]
    fn what_makes_no_sense_is_left_out() {
        let mut bad = app("bad", Some(f64::NAN));
        bad.interval_seconds = -1.0;
        let mut huge = app("huge", None);
        huge.length_bytes = f64::INFINITY;
        let paths = vec![
            path("nan", f64::NAN, 0.001),
            path("none", 0.0, 0.001),
            path("endless", 1.0, f64::INFINITY),
            path("huge", 1.0, 1.8e19),
            path("good", 100.0, 0.001),
        ];
        let mut elsewhere = app("elsewhere", None);
        elsewhere.peer = "unknown".into();
        let apps = vec![bad, huge, elsewhere, app("x", None)];
        let plan = plan_by_equation(&[&gateway("g", paths, apps)], None, Settings::default());
        let wanted = BTreeMap::from([("x".to_owned(), "good".to_owned())]);
        assert_eq!(plan, BTreeMap::from([("g".to_owned(), wanted)]));
        assert_eq!(
            plan_by_equation(&[], None, Settings::default()),
            BTreeMap::new()
        );
    }
}
