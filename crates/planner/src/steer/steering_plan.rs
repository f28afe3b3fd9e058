//! The plan for all applications now, and if a path fails.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    delay::{AppSpec, PathSpec},
    plan::{
        Budget,
        incumbent::{Allowed, AppId, Incumbent, InputError, Move, PathId, Settings},
    },
};

#[derive(Clone, Debug, PartialEq)]
pub struct SteeredApp {
    /// Its identifier in the planner.
    pub id: AppId,
    /// Its traffic and latency target.
    pub spec: AppSpec,
    /// The paths that it may take.
    pub allowed: Allowed,
    /// Paths that it may take besides if its latency target is met on none of `allowed`.
    pub fallback: BTreeSet<PathId>,
    /// Its present path; `None`: it has none yet.
    pub path: Option<PathId>,
}

/// How much a plan may move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanMode {
    /// As few applications as meet the latency targets. If that leaves a target unmet that a plan from scratch meets,
    /// the plan from scratch is used.
    Revise,
    /// Every application whose delay is less elsewhere.
    FromScratch,
}

#[derive(Clone, Debug)]
pub struct SteeringPlan {
    /// All applications, placed.
    pub incumbent: Incumbent,
    /// The moves, by application; one that had no path is included.
    pub moves: Vec<Move>,
    /// Applications whose latency target is unmet or whose path is overloaded, ascending.
    pub unmet: Vec<AppId>,
}

/// An incumbent with every application on its present path.
///
/// # Errors
/// More paths or applications than the planner takes, or a path of 2^48 bit/s or more.
pub fn placed_incumbent(
    settings: Settings,
    paths: &[(PathId, PathSpec)],
    steered_apps: &[SteeredApp],
) -> Result<Incumbent, InputError> {
    let mut incumbent = Incumbent::new(settings);
    for (id, spec) in paths {
        incumbent.set_path(*id, *spec)?;
    }
    for steered_app in steered_apps {
        incumbent.set_app(
            steered_app.id,
            steered_app.spec,
            steered_app.allowed.clone(),
        )?;
        if let Some(at) = steered_app.path {
            // An application whose path is gone has none.
            match incumbent.place(steered_app.id, at) {
                Ok(()) | Err(InputError::UnknownPath) => {}
                Err(refused) => return Err(refused),
            }
        }
    }
    Ok(incumbent)
}

/// Plans `steered_apps` on `paths` within `budget`.
///
/// # Errors
/// As [`placed_incumbent()`].
pub fn plan_moves(
    settings: Settings,
    paths: &[(PathId, PathSpec)],
    steered_apps: &[SteeredApp],
    plan_mode: PlanMode,
    budget: Budget,
) -> Result<SteeringPlan, InputError> {
    let answer = revise_or_replan(
        placed_incumbent(settings, paths, steered_apps)?,
        plan_mode,
        budget,
    );
    let Some(steered_apps) = with_fallbacks(steered_apps, &answer.unmet) else {
        return Ok(answer);
    };
    let with_spares = revise_or_replan(
        placed_incumbent(settings, paths, &steered_apps)?,
        plan_mode,
        budget,
    );
    Ok(match with_spares.unmet.len() < answer.unmet.len() {
        true => with_spares,
        false => answer,
    })
}

/// The applications, with the fallback paths added for those that are `unmet` (ascending). `None`: no
/// unmet application has any.
fn with_fallbacks(steered_apps: &[SteeredApp], unmet: &[AppId]) -> Option<Vec<SteeredApp>> {
    let in_need =
        |app: &SteeredApp| !app.fallback.is_empty() && unmet.binary_search(&app.id).is_ok();
    steered_apps.iter().any(in_need).then(|| {
        let mut steered_apps = steered_apps.to_vec();
        for app in steered_apps.iter_mut().filter(|app| in_need(app)) {
            if let Allowed::Only(paths) = &mut app.allowed {
                paths.extend(&app.fallback);
            }
        }
        steered_apps
    })
}

fn revise_or_replan(mut incumbent: Incumbent, plan_mode: PlanMode, budget: Budget) -> SteeringPlan {
    let mut revised = incumbent.clone();
    let revision = match plan_mode {
        PlanMode::Revise => revised.revise(),
        PlanMode::FromScratch => revised.plan_from_scratch(budget),
    };
    let revised = SteeringPlan {
        incumbent: revised,
        moves: revision.moves,
        unmet: revision.unmet,
    };
    if plan_mode == PlanMode::FromScratch || revised.unmet.is_empty() {
        return revised;
    }
    let anew = incumbent.plan_from_scratch(budget);
    match anew.unmet.len() < revised.unmet.len() {
        true => SteeringPlan {
            incumbent,
            moves: anew.moves,
            unmet: anew.unmet,
        },
        false => revised,
    }
}

impl SteeringPlan {
    /// The path of every application that has one.
    pub fn assignment(&self) -> BTreeMap<AppId, PathId> {
        self.incumbent
            .assignment()
            .filter_map(|(app, path)| Some((app, path?)))
            .collect()
    }

    /// The moves if `path` failed: of its applications, and of those that make room for them. Computed beforehand, so
    /// that a failure costs each application one move. Those for which no path would be left are not included.
    pub fn moves_without(&self, path: PathId, budget: Budget) -> BTreeMap<AppId, PathId> {
        let mut incumbent = self.incumbent.clone();
        incumbent.remove_path(path);
        let moves = revise_or_replan(incumbent, PlanMode::Revise, budget).moves;
        moves.iter().map(|change| (change.app, change.to)).collect()
    }
}
