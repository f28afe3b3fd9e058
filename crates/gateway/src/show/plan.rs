//! Plans in the control protocol's types.

use std::collections::{BTreeMap, BTreeSet};

use keiro_control::{
    config::{AppIndex, Config, PathIndex, PeerIndex},
    protocol::{ModelState, PathTermsSnapshot, PlanSnapshot, PlannedApp},
};

use crate::{
    explain::{delay_terms, excess_loss},
    planning::{AppAssignment, ExpectedDelay, Plan, PlannerInput, SharedLines, rate_of_messages},
};

/// A plan that is not in force, beside the paths that are, `now`; no measurement has confirmed it.
pub(crate) fn plan_snapshot(
    config: &Config,
    planned: &Plan,
    now: &BTreeMap<AppIndex, PathIndex>,
    shared: &SharedLines,
) -> PlanSnapshot {
    // An application without a path misses its latency target.
    let stranded = planned.apps.iter().filter(|app| app.path.is_none()).count();
    let unmet = (planned.unmet() + stranded) as u64;
    let app = |(number, planned): (usize, &AppAssignment)| {
        let app = &config.apps[number];
        let name = |path: PathIndex| config[path].name.to_string();
        let expected = planned.expected.as_ref();
        PlannedApp {
            name: app.name.to_string(),
            peer: config[app.peer].name.to_string(),
            path: planned.path.map(name),
            path_now: now.get(&AppIndex(number)).copied().map(name),
            assigned_by: planned.by,
            terms: planned
                .prediction
                .as_ref()
                .zip(expected)
                .map(|(p, expected)| {
                    let uses = planned.path.map_or(&[][..], |path| shared.of(path));
                    let site_load = rate_of_messages(uses);
                    delay_terms(p, planned.forecast.as_ref(), expected, site_load)
                }),
            latency_target_seconds: app
                .latency_target
                .map(|latency_target| latency_target.as_secs_f64()),
            margin_seconds: expected.and_then(ExpectedDelay::margin_seconds),
            target_met: match planned.path {
                Some(_) => planned.met,
                None => app.latency_target.map(|_| false),
            },
            judged_by: expected.map(|expected| expected.judged_by),
            target_met_at_p99: expected.and_then(|expected| expected.met_at_p99),
            measured_mean_seconds: expected
                .and_then(|expected| expected.measured)
                .map(|mean| mean.as_secs_f64()),
            overloaded: expected.is_some_and(|expected| expected.overloaded),
            excess_loss: planned.excess_loss.map(excess_loss),
            path_terms: PathTermsSnapshot::of(planned.terms),
            no_forecast: planned.forecast.and_then(|forecast| forecast.why_not()),
        }
    };
    PlanSnapshot {
        alone: false,
        site: None,
        planner: config.gateway.planner,
        tolerance_ratio: config.gateway.tolerance.get(),
        feasible: unmet == 0,
        optimal: planned.optimal,
        model: ModelState::Unverified,
        applied: false,
        changes: planned.changes(now) as u64,
        unmet,
        newly_unmet: Vec::new(),
        without_effect: Vec::new(),
        lateness_seconds: planned.lateness.as_secs_f64(),
        delay_sum_seconds: planned
            .delay_sum
            .filter(|_| stranded == 0)
            .map(|sum| sum.as_secs_f64()),
        planning_seconds: planned.took.as_secs_f64(),
        apps: planned.apps.iter().enumerate().map(app).collect(),
    }
}

/// The paths of applications that are on one. Of the others, the planner's input has the last one.
pub(crate) fn paths_in_use(config: &Config, input: &PlannerInput) -> BTreeMap<AppIndex, PathIndex> {
    let reached: BTreeSet<PeerIndex> = input.up.keys().map(|(_, peer)| *peer).collect();
    let is_in_use =
        |app: &AppIndex| reached.contains(&config[*app].peer) && !input.waiting.contains(app);
    let now = input.now.iter();
    let in_use = now.filter(|(app, _)| is_in_use(app));
    in_use.map(|(app, path)| (*app, *path)).collect()
}
