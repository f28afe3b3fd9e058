//! Plans in the control protocol's types.

use std::collections::{BTreeMap, BTreeSet};

use keiro_control::{
    config::{AppIndex, PathIndex, PeerIndex},
    protocol::{
        DelayTerms, ExcessLossSnapshot, ModelState, PathTermsSnapshot, PlanSnapshot, PlannedApp,
    },
};
use keiro_planner::delay::Prediction;
use keiro_units::Bandwidth;

use crate::{
    config::PlannerConfig,
    expected_delay::ExpectedDelay,
    forecast::DelayForecast,
    input::{ExcessLoss, PlannerInput},
    line_use::{SharedLines, rate_of_messages},
    plan::{AppAssignment, Plan},
};

/// A plan that is not in force, beside the paths that are, `now`; no measurement has confirmed it.
pub fn plan_snapshot(
    config: &PlannerConfig,
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
            peer: config[app.peer].to_string(),
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
        planner: config.planner,
        tolerance_ratio: config.tolerance.get(),
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
pub fn paths_in_use(config: &PlannerConfig, input: &PlannerInput) -> BTreeMap<AppIndex, PathIndex> {
    let reached: BTreeSet<PeerIndex> = input.up.keys().map(|(_, peer)| *peer).collect();
    let is_in_use =
        |app: &AppIndex| reached.contains(&config[*app].peer) && !input.waiting.contains(app);
    let now = input.now.iter();
    let in_use = now.filter(|(app, _)| is_in_use(app));
    in_use.map(|(app, path)| (*app, *path)).collect()
}

/// The terms of a prediction, for the protocol. `site_load`: what other gateways of the site send of
/// Q.
pub fn delay_terms(
    prediction: &Prediction,
    forecast: Option<&DelayForecast>,
    expected: &ExpectedDelay,
    site_load: Bandwidth,
) -> DelayTerms {
    let terms = &prediction.terms;
    DelayTerms {
        propagation_seconds: terms.propagation.as_secs_f64(),
        length_bytes: terms.length.get() as f64,
        rate_bits_per_second: terms.bandwidth.as_bits_per_second() as f64,
        other_load_bits_per_second: terms.others.as_bits_per_second() as f64,
        site_load_bits_per_second: site_load.as_bits_per_second() as f64,
        paper_delay_seconds: prediction.delay.finite().map(|delay| delay.as_secs_f64()),
        predicted_delay_seconds: expected.predicted_seconds(),
        predicted: forecast.map(DelayForecast::percentiles).unwrap_or_default(),
    }
}

/// What a path loses of an application, for the protocol.
pub fn excess_loss(ExcessLoss { loss, tolerance }: ExcessLoss) -> ExcessLossSnapshot {
    ExcessLossSnapshot {
        loss_ratio: loss.get(),
        tolerance_ratio: tolerance.get(),
    }
}
