//! Which delays were measured under the conditions of the plan in force.
//!
//! A delay that was measured before a path or its load changed says nothing about the present one.

use std::collections::{BTreeMap, BTreeSet};

use keiro_control::config::{self, AppIndex, Config, PathIndex};
use keiro_core::AppId;
use keiro_planner::delay::Terms;

use crate::active::app_id;
use crate::planning::{AppAssignment, Plan, PlannerInput, PlanningProblem};

/// Path and delay terms of each application in a plan. Paths by name, since another configuration
/// has other positions.
pub(crate) type PlannedTerms = BTreeMap<AppId, (String, Option<Terms>)>;

pub(crate) fn of_plan(config: &Config, plan: &Plan) -> PlannedTerms {
    let given = |(app, planned): (&config::App, &AppAssignment)| {
        let path = config[planned.path?].name.to_string();
        let terms = planned.prediction.map(|prediction| prediction.terms);
        Some((app_id(app), (path, terms)))
    };
    config
        .apps
        .iter()
        .zip(&plan.apps)
        .filter_map(given)
        .collect()
}

/// Forgets delays that were measured under other terms than the present ones. `given`: the terms of
/// the plan in force.
pub(crate) fn forget_outdated(config: &Config, input: &mut PlannerInput, given: &PlannedTerms) {
    let now = current_planned_terms(config, &PlanningProblem::new(config, input));
    let changed: BTreeSet<AppId> = changed(given.clone(), &now).into_iter().collect();
    input
        .measured
        .retain(|app, _| !changed.contains(&app_id(&config[*app])));
}

/// Applications whose terms have changed. Terms that became known have not changed.
pub(crate) fn changed(before: PlannedTerms, now: &PlannedTerms) -> Vec<AppId> {
    let same = |(path, terms): &(String, Option<Terms>), (path_now, now): &(_, Option<Terms>)| {
        path == path_now && (terms.is_none() || terms == now)
    };
    before
        .into_iter()
        .filter(|(app, given)| !now.get(app).is_some_and(|now| same(given, now)))
        .map(|(app, _)| app)
        .collect()
}

/// The terms of the present assignment.
fn current_planned_terms(config: &Config, problem: &PlanningProblem) -> PlannedTerms {
    let named = |(app, (path, terms)): (AppIndex, (PathIndex, Terms))| {
        let given = (config[path].name.to_string(), Some(terms));
        (app_id(&config[app]), given)
    };
    problem.current_terms().into_iter().map(named).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use keiro_control::config::PeerIndex;
    use keiro_planner::steer::{PathSample, PlanMode};
    use keiro_units::{Bandwidth, ByteCount};

    use super::*;
    use crate::planning::{
        MeasuredDelay,
        forecast::ForecastState,
        tests::{paper, placed},
    };

    #[test]
    fn delays_are_forgotten_of_whom_a_plan_gives_something_else() {
        let on = |path: &str, others: u64| {
            let terms = Terms {
                propagation: Duration::from_millis(2),
                length: ByteCount::new(1000),
                bandwidth: Bandwidth::from_mbit_per_second(100),
                own: Bandwidth::ZERO,
                others: Bandwidth::from_bits_per_second(others),
            };
            (path.to_owned(), Some(terms))
        };
        let before: PlannedTerms = [
            ("stays", on("p", 0)),
            ("moves", on("p", 0)),
            ("loaded", on("q", 0)),
        ]
        .map(|(app, given)| (AppId::of_name(app), given))
        .into();
        // Also a new one, which had nothing before, and one that has nothing now.
        let now: PlannedTerms = [
            ("new", on("p", 0)),
            ("stays", on("p", 0)),
            ("loaded", on("q", 9)),
        ]
        .map(|(app, given)| (AppId::of_name(app), given))
        .into();
        let found: BTreeSet<AppId> = changed(before, &now).into_iter().collect();
        assert_eq!(found, ["loaded", "moves"].map(AppId::of_name).into());
    }

    /// A5 has a latency target of 20 ms and has had 3 ms for long, on a path that takes 30 ms more since just now.
    #[test]
    fn what_was_measured_before_a_path_changed_keeps_nobody_there() {
        let mut config = paper("scheduler = \"fifo\"", "");
        for other in &mut config.apps[..4] {
            other.latency_target = None;
            other.length = Some(ByteCount::new(100));
        }
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
            PlanningProblem::new(&config, &with_delay(2)).standing(&config, &forecast_state);
        let given = of_plan(&config, &plan_in_force);
        let place_of_a5 = |delay_ms: u64, forgets: bool| {
            let mut input = with_delay(delay_ms);
            if forgets {
                forget_outdated(&config, &mut input, &given);
            }
            let problem = PlanningProblem::new(&config, &input);
            let plan = problem.answer(&config, PlanMode::Revise, &forecast_state);
            plan.apps[4].path
        };
        let (stays, goes) = (Some(PathIndex(1)), Some(PathIndex(0)));
        assert_eq!(place_of_a5(2, true), stays);
        assert_eq!(place_of_a5(32, true), goes);
        // Taken for good it would hold A5 there.
        assert_eq!(place_of_a5(32, false), stays);
    }
}
