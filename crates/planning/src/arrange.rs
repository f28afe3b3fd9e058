//! The interface to the planner: an assignment from scratch, or a revision of the one in force.

use std::collections::BTreeSet;

use keiro_control::config::Planner;
use keiro_planner::{
    delay::{AppSpec, Delay, PathSpec},
    plan::{
        self, Budget, DelayModel, Problem,
        incumbent::{Aim, Allowed, AppId, Hysteresis, PathId, Settings},
    },
    steer::{PlanMode, SteeredApp, plan_moves},
};

use crate::peer_problem::{EQUATION, PeerProblem};

/// Where applications are, and which paths they may take.
pub(crate) struct Placement {
    /// `None`: on no path.
    pub(crate) at: Vec<Option<usize>>,
    /// Row per application, column per path.
    pub(crate) allowed: Vec<Vec<bool>>,
}

impl PeerProblem {
    /// The planner's revision of `placement`; `specs` describe the applications.
    pub(crate) fn arranged(
        &self,
        placement: &Placement,
        plan_mode: PlanMode,
        specs: &[AppSpec],
    ) -> Vec<usize> {
        let paths = self.named_paths();
        let steered_apps = self.steered_apps(placement, specs);
        let budget = Budget::default();
        let at = |number: usize| placement.at[number].unwrap_or(0);
        match plan_moves(self.settings(), &paths, &steered_apps, plan_mode, budget) {
            Ok(arrangement) => {
                let places = arrangement.assignment();
                let place = |number: usize| match places.get(&app_id(number)) {
                    Some(path) => path.0 as usize,
                    None => at(number),
                };
                (0..self.apps.len()).map(place).collect()
            }
            Err(refused) => {
                // The configuration's own bounds are narrower, so this does not happen.
                tracing::error!(?refused, "cannot plan; applications stay where they are");
                (0..self.apps.len()).map(at).collect()
            }
        }
    }

    pub(crate) fn named_paths(&self) -> Vec<(PathId, PathSpec)> {
        let specs = self.wire.paths.iter().enumerate();
        specs
            .map(|(number, spec)| (path_id(number), *spec))
            .collect()
    }

    pub(crate) fn settings(&self) -> Settings {
        Settings {
            tolerance: self.tolerance,
            aim: match self.planner {
                Planner::Frugal => Aim::Frugal,
                Planner::Exact | Planner::Off => Aim::LeastDelay,
            },
            hysteresis: Hysteresis::default(),
        }
    }

    pub(crate) fn steered_apps(&self, placement: &Placement, specs: &[AppSpec]) -> Vec<SteeredApp> {
        let of = |may: &[bool]| -> BTreeSet<PathId> {
            let may = may.iter().enumerate();
            may.filter(|(_, may)| **may)
                .map(|(path, _)| path_id(path))
                .collect()
        };
        let resident = |number: usize| {
            let only = of(&placement.allowed[number]);
            SteeredApp {
                id: app_id(number),
                spec: specs[number],
                allowed: match only.len() == self.paths.len() {
                    true => Allowed::All,
                    false => Allowed::Only(only),
                },
                fallback: of(&self.spare[number]),
                path: placement.at[number].map(path_id),
            }
        };
        (0..self.apps.len()).map(resident).collect()
    }

    /// An assignment from scratch, and whether it is proven optimal.
    pub(crate) fn solve(&self) -> (Vec<usize>, bool) {
        let free = self
            .allowed
            .iter()
            .all(|allowed| allowed.iter().all(|may| *may));
        match free {
            true => self.solve_by(&EQUATION),
            false => self.solve_by(&Restricted { problem: self }),
        }
    }

    fn solve_by(&self, model: &impl DelayModel) -> (Vec<usize>, bool) {
        let Ok(problem) = Problem::new(&self.wire.paths, &self.wire.apps, model) else {
            // Without paths there are no applications.
            return (Vec::new(), true);
        };
        // In the same order as revisions, or the first revision would move applications.
        let order = self.settings().aim.order();
        let problem = problem.with_tolerance(self.tolerance).with_order(order);
        match self.planner {
            Planner::Frugal => (plan::frugal(&problem, Budget::default()).assignment, false),
            Planner::Exact | Planner::Off => {
                let exact = plan::exact(&problem, Budget::default());
                (exact.plan.assignment, exact.is_optimal)
            }
        }
    }
}

impl Placement {
    /// Applications `at` paths, free to take the paths that the problem allows.
    pub(crate) fn new(problem: &PeerProblem, at: &[Option<usize>]) -> Self {
        Self {
            at: at.to_vec(),
            allowed: problem.allowed.clone(),
        }
    }
}

/// Equation 3, with an infinite delay on paths that an application may not take.
struct Restricted<'a> {
    problem: &'a PeerProblem,
}

impl DelayModel for Restricted<'_> {
    fn delays(
        &self,
        path: &PathSpec,
        apps: &[AppSpec],
        members: &[usize],
        delays: &mut Vec<Delay>,
    ) {
        EQUATION.delays(path, apps, members, delays);
        // The planner passes a reference into the problem's own list, which distinguishes equal
        // paths.
        let specs = &self.problem.wire.paths;
        let same = specs.iter().position(|spec| std::ptr::eq(spec, path));
        let Some(number) = same.or_else(|| specs.iter().position(|spec| spec == path)) else {
            return;
        };
        for (app, delay) in members.iter().zip(delays.iter_mut()) {
            if !self.problem.allowed[*app][number] {
                *delay = Delay::Overloaded;
            }
        }
    }
}

pub(crate) fn app_id(number: usize) -> AppId {
    AppId(u32::try_from(number).unwrap_or(u32::MAX))
}

pub(crate) fn path_id(number: usize) -> PathId {
    PathId(u32::try_from(number).unwrap_or(u32::MAX))
}
