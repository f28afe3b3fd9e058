//! The plan for all applications now, and if a path fails.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    delay::{AppSpec, PathSpec},
    plan::{
        Budget,
        incumbent::{Allowed, AppId, Incumbent, Move, PathId, Refused, Settings},
    },
};

#[derive(Clone, Debug, PartialEq)]
pub struct SteeredApp {
    /// Its name for the planner.
    pub id: AppId,
    /// What it sends and latency targets.
    pub spec: AppSpec,
    /// The paths that it may take.
    pub allowed: Allowed,
    /// Those that it may take besides if its latency target is met on none of these.
    pub fallback: BTreeSet<PathId>,
    /// Where it is; `None`: nowhere yet.
    pub path: Option<PathId>,
}

/// How much a plan may move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanMode {
    /// What needs to, by few moves. Where that leaves a latency target unmet that a plan from scratch
    /// meets, that one is taken.
    Revise,
    /// Whatever is better elsewhere.
    FromScratch,
}

#[derive(Clone, Debug)]
pub struct SteeringPlan {
    /// All applications, placed.
    pub incumbent: Incumbent,
    /// The moves to there, by application; who was nowhere included.
    pub moves: Vec<Move>,
    /// Whose demand is not met, or whose path is overloaded, ascending.
    pub unmet: Vec<AppId>,
}

/// An incumbent with every application where it is.
///
/// # Errors
/// More paths or applications than the planner takes, or a path of 2^48 bit/s or more.
pub fn placed_incumbent(
    settings: Settings,
    paths: &[(PathId, PathSpec)],
    steered_apps: &[SteeredApp],
) -> Result<Incumbent, Refused> {
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
            // Where it may no longer be, it is nowhere.
            match incumbent.place(steered_app.id, at) {
                Ok(()) | Err(Refused::UnknownPath) => {}
                Err(refused) => return Err(refused),
            }
        }
    }
    Ok(incumbent)
}

/// Answers for `steered_apps` on `paths`, within `budget`.
///
/// # Errors
/// As [`placed_incumbent()`].
pub fn plan_moves(
    settings: Settings,
    paths: &[(PathId, PathSpec)],
    steered_apps: &[SteeredApp],
    plan_mode: PlanMode,
    budget: Budget,
) -> Result<SteeringPlan, Refused> {
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
    pub fn places(&self) -> BTreeMap<AppId, PathId> {
        self.incumbent
            .assignment()
            .filter_map(|(app, path)| Some((app, path?)))
            .collect()
    }

    /// The moves if `path` failed: of its members, and of applications that make room for them. Known
    /// beforehand, a death costs one move each, and the members can make theirs at once. Who
    /// could be nowhere is left out.
    pub fn without(&self, path: PathId, budget: Budget) -> BTreeMap<AppId, PathId> {
        let mut incumbent = self.incumbent.clone();
        incumbent.remove_path(path);
        let moves = revise_or_replan(incumbent, PlanMode::Revise, budget).moves;
        moves.iter().map(|change| (change.app, change.to)).collect()
    }
}
