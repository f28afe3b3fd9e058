//! Who goes where now, and where to if a path dies.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    delay::{AppSpec, PathSpec},
    plan::{
        Budget,
        incumbent::{Allowed, AppId, Incumbent, Move, PathId, Refused, Settings},
    },
};

/// One application.
#[derive(Clone, Debug, PartialEq)]
pub struct Resident {
    /// Its name for the planner.
    pub id: AppId,
    /// What it sends and latency targets.
    pub spec: AppSpec,
    /// The paths that it may take.
    pub allowed: Allowed,
    /// Those that it may take besides if its latency target is met on none of these.
    pub spare: BTreeSet<PathId>,
    /// Where it is; `None`: nowhere yet.
    pub at: Option<PathId>,
}

/// How much may be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// What needs to, by few moves. Where that leaves a latency target unmet that a plan from scratch
    /// meets, that one is taken.
    Revise,
    /// Whatever is better elsewhere.
    Anew,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Arrangement {
    /// Everybody, in place.
    pub incumbent: Incumbent,
    /// The moves to there, by application; who was nowhere included.
    pub moves: Vec<Move>,
    /// Whose demand is not met, or whose path is overloaded, ascending.
    pub unmet: Vec<AppId>,
}

/// Everybody where they are.
///
/// # Errors
/// More paths or applications than the planner takes, or a path of 2^48 bit/s or more.
pub fn seat(
    settings: Settings,
    paths: &[(PathId, PathSpec)],
    residents: &[Resident],
) -> Result<Incumbent, Refused> {
    let mut incumbent = Incumbent::new(settings);
    for (id, spec) in paths {
        incumbent.set_path(*id, *spec)?;
    }
    for resident in residents {
        incumbent.set_app(resident.id, resident.spec, resident.allowed.clone())?;
        if let Some(at) = resident.at {
            // Where it may no longer be, it is nowhere.
            match incumbent.place(resident.id, at) {
                Ok(()) | Err(Refused::UnknownPath) => {}
                Err(refused) => return Err(refused),
            }
        }
    }
    Ok(incumbent)
}

/// Answers for `residents` on `paths`, within `budget`.
///
/// # Errors
/// As [`seat()`].
pub fn arrange(
    settings: Settings,
    paths: &[(PathId, PathSpec)],
    residents: &[Resident],
    manner: Manner,
    budget: Budget,
) -> Result<Arrangement, Refused> {
    let answer = settle(seat(settings, paths, residents)?, manner, budget);
    let Some(residents) = helped(residents, &answer.unmet) else {
        return Ok(answer);
    };
    let with_spares = settle(seat(settings, paths, &residents)?, manner, budget);
    Ok(match with_spares.unmet.len() < answer.unmet.len() {
        true => with_spares,
        false => answer,
    })
}

/// The residents with spare paths for those that are `unmet`, ascending; `None`: they have none.
fn helped(residents: &[Resident], unmet: &[AppId]) -> Option<Vec<Resident>> {
    let in_need = |app: &Resident| !app.spare.is_empty() && unmet.binary_search(&app.id).is_ok();
    residents.iter().any(in_need).then(|| {
        let mut residents = residents.to_vec();
        for app in residents.iter_mut().filter(|app| in_need(app)) {
            if let Allowed::Only(paths) = &mut app.allowed {
                paths.extend(&app.spare);
            }
        }
        residents
    })
}

fn settle(mut incumbent: Incumbent, manner: Manner, budget: Budget) -> Arrangement {
    let mut revised = incumbent.clone();
    let revision = match manner {
        Manner::Revise => revised.revise(),
        Manner::Anew => revised.plan_anew(budget),
    };
    let revised = Arrangement {
        incumbent: revised,
        moves: revision.moves,
        unmet: revision.unmet,
    };
    if manner == Manner::Anew || revised.unmet.is_empty() {
        return revised;
    }
    let anew = incumbent.plan_anew(budget);
    match anew.unmet.len() < revised.unmet.len() {
        true => Arrangement {
            incumbent,
            moves: anew.moves,
            unmet: anew.unmet,
        },
        false => revised,
    }
}

impl Arrangement {
    /// Where everybody is, who may be anywhere.
    pub fn places(&self) -> BTreeMap<AppId, PathId> {
        self.incumbent
            .assignment()
            .filter_map(|(app, path)| Some((app, path?)))
            .collect()
    }

    /// Who would go where if `path` died: its members, and whoever makes room for them. Known
    /// beforehand, a death costs one move each, and the members can make theirs at once. Who
    /// could be nowhere is left out.
    pub fn without(&self, path: PathId, budget: Budget) -> BTreeMap<AppId, PathId> {
        let mut incumbent = self.incumbent.clone();
        incumbent.remove_path(path);
        let moves = settle(incumbent, Manner::Revise, budget).moves;
        moves.iter().map(|change| (change.app, change.to)).collect()
    }
}
