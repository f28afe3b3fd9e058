//! Hypothetical plans, made in this process from what a gateway plans with.
//!
//! The gateway is asked for that once for all viewers. A thread plans, one question after another, and rests after each
//! ([`super::ask`]), so that viewers take neither the gateway's time nor much of this machine's.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};

use keiro_control::protocol::{PlanSnapshot, PlannedApp, Response, WhatIf};
use keiro_planning::{PlanMode, ReceivedInput, Situation, paths_in_use};

use super::{Fault, Shared, ask::Answer, unexpected};

/// What to suppose, and the gateway's answer to start from.
#[derive(Debug)]
pub(super) struct Supposition {
    pub(super) input: Arc<Response>,
    pub(super) changes: Vec<WhatIf>,
}

/// What a page shows of the plan without changes and of that with them, both by forecasts.
#[derive(Debug)]
pub(crate) struct Plans {
    /// Applications that miss their target, are overloaded or have no path.
    pub(crate) unmet_now: u64,
    /// The plan with changes, without its applications, and with at most [`ROWS_MAX`] names of those newly unmet.
    pub(crate) then: PlanSnapshot,
    /// Applications of the plan with changes.
    pub(crate) apps: usize,
    pub(crate) newly_unmet: usize,
    /// Applications that change their path.
    pub(crate) moves: usize,
    /// At most [`ROWS_MAX`]; those that change are first.
    pub(crate) rows: Vec<Row>,
}

/// An application now, where there is one, and after the changes.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) now: Option<PlannedApp>,
    pub(crate) then: PlannedApp,
}

/// Rows of the comparison. Ours.
pub(crate) const ROWS_MAX: usize = 200;

/// The input of the last question: viewers ask many of one.
struct Known {
    response: Arc<Response>,
    received: ReceivedInput,
    now: PlanSnapshot,
}

/// Answers suppositions.
pub(super) fn planner() -> impl FnMut(&Shared, &Supposition) -> Answer<Plans> + Send + 'static {
    let mut known: Option<Known> = None;
    move |_, supposition| {
        let same = |known: &Known| Arc::ptr_eq(&known.response, &supposition.input);
        let known = match known.take().filter(same) {
            Some(same) => known.insert(same),
            None => known.insert(Known::of(&supposition.input)?),
        };
        let then = plan(&known.received, &supposition.changes)?;
        Ok(Arc::new(Plans::of(&known.now, then)))
    }
}

impl Plans {
    fn of(now: &PlanSnapshot, mut then: PlanSnapshot) -> Self {
        let mut apps = std::mem::take(&mut then.apps);
        let count = apps.len();
        let newly_unmet: BTreeSet<&str> = then.newly_unmet.iter().map(String::as_str).collect();
        let moves = apps
            .iter()
            .filter(|app| app.path_now.is_some() && app.path != app.path_now)
            .count();
        apps.sort_by_key(|app| match () {
            () if newly_unmet.contains(app.name.as_str()) => 0,
            () if app.target_met == Some(false) || app.overloaded || app.path.is_none() => 1,
            () if app.path != app.path_now => 2,
            () => 3,
        });
        apps.truncate(ROWS_MAX);
        let before: BTreeMap<&str, &PlannedApp> = now
            .apps
            .iter()
            .map(|app| (app.name.as_str(), app))
            .collect();
        let rows = apps.into_iter().map(|app| Row {
            now: before.get(app.name.as_str()).copied().cloned(),
            then: app,
        });
        let rows = rows.collect();
        let newly_unmet = newly_unmet.len();
        then.newly_unmet.truncate(ROWS_MAX);
        then.newly_unmet.shrink_to_fit();
        Self {
            unmet_now: now.unmet,
            then,
            apps: count,
            newly_unmet,
            moves,
            rows,
        }
    }
}

impl Known {
    fn of(response: &Arc<Response>) -> Result<Self, Fault> {
        let Response::PlannerInput(snapshot) = &**response else {
            return Err(unexpected(response));
        };
        let received = ReceivedInput::try_from(&**snapshot).map_err(|invalid| {
            let hint = "install `keiro-web` and the gateway from one version";
            Fault::new(invalid.to_string(), hint)
        })?;
        Ok(Self {
            response: Arc::clone(response),
            now: plan(&received, &[])?,
            received,
        })
    }
}

fn plan(received: &ReceivedInput, changes: &[WhatIf]) -> Result<PlanSnapshot, Fault> {
    let begun = Instant::now();
    let situation = Situation {
        config: &received.config,
        input: &received.input,
        forecast_state: &received.forecast_state,
        plan_mode: PlanMode::Revise,
        now: &paths_in_use(&received.config, &received.input),
    };
    let plan = situation.plan_after(changes);
    let plan = plan.map_err(|refused| {
        Fault::new(refused.message, refused.hint.as_deref().unwrap_or_default())
    })?;
    Ok(PlanSnapshot {
        planning_seconds: begun.elapsed().as_secs_f64(),
        alone: received.alone,
        ..plan
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan_of(count: usize, path: &str) -> PlanSnapshot {
        let apps: Vec<_> = (0..count)
            .map(|number| {
                serde_json::json!({
                    "name": format!("A{number}"), "peer": "osaka", "assigned_by": "planner",
                    "path": if number == 4000 { path } else { "wan0" }, "path_now": "wan0", "overloaded": number == 4500,
                })
            })
            .collect();
        let newly_unmet: Vec<_> = (1000..1500).map(|number| format!("A{number}")).collect();
        let plan = serde_json::json!({
            "planner": "frugal", "tolerance_ratio": 0.0, "feasible": true, "optimal": false, "model": "valid",
            "applied": false, "changes": 0, "unmet": 7, "newly_unmet": newly_unmet, "lateness_seconds": 0.0,
            "planning_seconds": 0.0, "apps": apps,
        });
        serde_json::from_value(plan).unwrap()
    }

    #[test]
    fn of_two_plans_a_bounded_part_is_kept_what_changes_first() {
        let mut then = plan_of(5000, "wan1");
        let now = plan_of(4999, "wan0");
        let plans = Plans::of(&now, then.clone());
        let counts = (plans.apps, plans.newly_unmet, plans.moves, plans.unmet_now);
        assert_eq!(counts, (5000, 500, 1, 7));
        assert_eq!(plans.rows.len(), ROWS_MAX);
        assert!(plans.then.apps.is_empty() && plans.then.newly_unmet.len() <= ROWS_MAX);
        assert_eq!(plans.rows[0].then.name, "A1000");

        then.newly_unmet.clear();
        then.apps[4999].path = None;
        let plans = Plans::of(&now, then);
        let first = plans.rows[..4].iter().map(|row| row.then.name.as_str());
        assert_eq!(first.collect::<Vec<_>>(), ["A4500", "A4999", "A4000", "A0"]);
        assert!(plans.rows[1].now.is_none(), "it is only supposed");
        assert_eq!(plans.rows[3].now.as_ref(), Some(&now.apps[0]));
    }
}
