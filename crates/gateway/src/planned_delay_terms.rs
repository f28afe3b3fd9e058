//! Which delays were measured under the conditions of the plan in force.
//!
//! A delay that was measured before a path or its load changed says nothing about the present one.

use std::collections::{BTreeMap, BTreeSet};

use keiro_control::config::Config;
use keiro_core::{AppId, PathId};
use keiro_planner::delay::DelayTerms;
use keiro_planning::{Plan, PlannerConfig, PlannerInput, PlanningProblem};

use crate::{path_ids::PathIds, running_config::app_id};

/// Path and delay terms of each application in a plan.
pub(crate) type PlannedDelayTerms = BTreeMap<AppId, AppDelayTerms>;

/// Path and delay terms of an application. Without a prediction there are no terms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AppDelayTerms {
    pub(crate) path: PathId,
    pub(crate) terms: Option<DelayTerms>,
}

pub(crate) fn of_plan(config: &Config, path_ids: &PathIds, plan: &Plan) -> PlannedDelayTerms {
    let apps = config.apps.iter().zip(&plan.apps);
    let terms = apps.filter_map(|(app, planned)| {
        let terms = AppDelayTerms {
            path: path_ids.id(planned.path?)?,
            terms: planned.prediction.map(|prediction| prediction.terms),
        };
        Some((app_id(app), terms))
    });
    terms.collect()
}

/// Forgets delays that were measured under other terms than the present ones. `given`: the terms of
/// the plan in force.
pub(crate) fn forget_outdated(
    config: &PlannerConfig,
    path_ids: &PathIds,
    input: &mut PlannerInput,
    given: &PlannedDelayTerms,
) {
    let problem = PlanningProblem::new(config, input);
    let now = current_planned_terms(config, path_ids, &problem);
    let changed: BTreeSet<AppId> = changed(given, &now).into_iter().collect();
    input
        .measured
        .retain(|app, _| !changed.contains(&app_id(&config[*app])));
}

/// Applications whose terms have changed. Terms that became known have not changed.
pub(crate) fn changed(before: &PlannedDelayTerms, now: &PlannedDelayTerms) -> Vec<AppId> {
    let is_same = |before: &AppDelayTerms, now: &AppDelayTerms| {
        before.path == now.path && (before.terms.is_none() || before.terms == now.terms)
    };
    before
        .iter()
        .filter(|(app, before)| !now.get(app).is_some_and(|now| is_same(before, now)))
        .map(|(app, _)| *app)
        .collect()
}

/// The terms of the present assignment.
fn current_planned_terms(
    config: &PlannerConfig,
    path_ids: &PathIds,
    problem: &PlanningProblem,
) -> PlannedDelayTerms {
    let terms = problem.current_delay_terms().into_iter();
    let terms = terms.filter_map(|(app, (path, terms))| {
        let terms = AppDelayTerms {
            path: path_ids.id(path)?,
            terms: Some(terms),
        };
        Some((app_id(&config[app]), terms))
    });
    terms.collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use keiro_control::config::{AppIndex, PathIndex, PeerIndex};
    use keiro_planner::steer::{PathSample, PlanMode};
    use keiro_planning::{
        MeasuredDelay,
        forecast::ForecastState,
        testing::{paper, placed},
    };
    use keiro_units::{Bandwidth, ByteCount};

    use super::*;

    #[test]
    fn apps_with_another_path_or_load_have_changed() {
        let on = |path: u8, others: u64| {
            let terms = DelayTerms {
                propagation: Duration::from_millis(2),
                length: ByteCount::new(1000),
                bandwidth: Bandwidth::from_mbit_per_second(100),
                own: Bandwidth::ZERO,
                others: Bandwidth::from_bits_per_second(others),
            };
            AppDelayTerms {
                path: PathId(path),
                terms: Some(terms),
            }
        };
        let before: PlannedDelayTerms = [
            ("stays", on(0, 0)),
            ("moves", on(0, 0)),
            ("loaded", on(1, 0)),
        ]
        .map(|(app, given)| (AppId::of_name(app), given))
        .into();
        // Also a new one, which had nothing before, and one that has nothing now.
        let now: PlannedDelayTerms = [("new", on(0, 0)), ("stays", on(0, 0)), ("loaded", on(1, 9))]
            .map(|(app, given)| (AppId::of_name(app), given))
            .into();
        let found: BTreeSet<AppId> = changed(&before, &now).into_iter().collect();
        assert_eq!(found, ["loaded", "moves"].map(AppId::of_name).into());
    }

    /// A5 has a latency target of 20 ms and has had 3 ms for long, on a path that takes 30 ms more since just now.
    #[test]
    fn delays_measured_before_a_path_changed_keep_no_app_there() {
        let mut config = paper("scheduler = \"fifo\"", "");
        for other in &mut config.apps[..4] {
            other.latency_target = None;
            other.length = Some(ByteCount::new(100));
        }
        let planned = PlannerConfig::of(&config);
        let forecast_state = ForecastState::default();
        let with_delay = |delay_ms: u64| {
            let mut input = placed([0, 0, 0, 0, 1]);
            let sample = |delay| PathSample {
                bandwidth: Bandwidth::from_mbit_per_second(100),
                delay: Duration::from_millis(delay),
                loss: keiro_units::Probability::ZERO,
            };
            for (path, delay) in [(0, 4), (1, delay_ms)] {
                let key = (PathIndex(path), PeerIndex(0));
                input.up.insert(key, Some(sample(delay)));
            }
            let measured = MeasuredDelay {
                mean: Duration::from_millis(3),
                p99: Duration::from_millis(4),
            };
            input.measured = [(AppIndex(4), measured)].into();
            input
        };
        let plan_in_force =
            PlanningProblem::new(&planned, &with_delay(2)).present_plan(&forecast_state);
        let mut path_ids = PathIds::default();
        path_ids.apply_config(&config);
        let given = of_plan(&config, &path_ids, &plan_in_force);
        let path_of_a5 = |delay_ms: u64, forgets: bool| {
            let mut input = with_delay(delay_ms);
            if forgets {
                forget_outdated(&planned, &path_ids, &mut input, &given);
            }
            let problem = PlanningProblem::new(&planned, &input);
            let plan = problem.answer(PlanMode::Revise, &forecast_state);
            plan.apps[4].path
        };
        let (stays, goes) = (Some(PathIndex(1)), Some(PathIndex(0)));
        assert_eq!(path_of_a5(2, true), stays);
        assert_eq!(path_of_a5(32, true), goes);
        // If it still counted, A5 would stay.
        assert_eq!(path_of_a5(32, false), stays);
    }
}
