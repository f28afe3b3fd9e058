//! The paper's algorithm, `[path-selection §3.4, fig. 4]`.

use std::cmp::Reverse;

use super::{DelayModel, Plan, Problem, closed_form::Loads};
use crate::delay::Delay;

/// Assigns by the paper's algorithm: paths in order of falling delay; each application, in the
/// order given, takes the first path on which neither it nor anything placed there before misses
/// its latency target.
///
/// The comparison of fig. 4 (and eq. 4) is printed with its sign reversed; the text makes the
/// meaning clear. Paths of equal delay are tried in order of their index.
///
/// The paper does not say what happens to an application that fits nowhere. Here it goes to the
/// path where it makes the fewest others miss a latency target that was met; among these where it is least
/// late itself (an overloaded path is last), and among these to the first one tried. It is
/// reported in [`Plan::unmet`]. An application that is already unmet blocks no other.
///
/// Eq. 3 takes O(n·m) while everything fits, since what a path still takes is one number; any
/// other [`DelayModel`] is asked at most once per path and application.
pub fn greedy<M: DelayModel>(problem: &Problem<'_, M>) -> Plan {
    let assignment = match Loads::new(problem) {
        Some(loads) => place(problem, &mut ByLoad::new(&loads)),
        None => place(problem, &mut ByModel::new(problem)),
    };
    problem.evaluate(&assignment)
}

/// What a placement would do, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PlacementCost {
    /// Others on the path whose latency target was met and would not be.
    newly_unmet: usize,
    /// The application's own lateness: `None` if its latency target is met.
    own: Option<Lateness>,
}

/// How late beyond its latency target an application would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lateness {
    Nanos(u128),
    Overloaded,
}

impl PlacementCost {
    const NONE: Self = Self {
        newly_unmet: 0,
        own: None,
    };
}

/// Placed applications, path by path.
trait Placements {
    /// What `app` on `path` would do.
    fn placement_cost(&mut self, path: usize, app: usize) -> PlacementCost;
    fn put(&mut self, path: usize, app: usize);
}

fn place<M: DelayModel>(problem: &Problem<'_, M>, placements: &mut impl Placements) -> Vec<usize> {
    let mut order: Vec<usize> = (0..problem.paths.len()).collect();
    order.sort_by_key(|&path| Reverse(problem.paths[path].delay));
    let mut assignment = Vec::with_capacity(problem.apps.len());
    for app in 0..problem.apps.len() {
        let mut least: Option<(PlacementCost, usize)> = None;
        for &path in &order {
            let placement_cost = placements.placement_cost(path, app);
            if least.is_none_or(|(best, _)| placement_cost < best) {
                least = Some((placement_cost, path));
            }
            if placement_cost == PlacementCost::NONE {
                break;
            }
        }
        let (_, path) = least.expect("a problem with applications has paths");
        placements.put(path, app);
        assignment.push(path);
    }
    assignment
}

/// Eq. 3: an application's latency target is met as long as its path's whole load stays below a limit of
/// its own.
struct ByLoad<'a> {
    loads: &'a Loads,
    /// Each path's load in bit/s.
    load: Vec<u64>,
    /// Each path's members that are met, by rising limit.
    met: Vec<Vec<u64>>,
}

impl<'a> ByLoad<'a> {
    fn new(loads: &'a Loads) -> Self {
        Self {
            loads,
            load: vec![0; loads.paths()],
            met: vec![Vec::new(); loads.paths()],
        }
    }
}

impl Placements for ByLoad<'_> {
    fn placement_cost(&mut self, path: usize, app: usize) -> PlacementCost {
        let load = self.load[path] + self.loads.rate(app);
        let newly_unmet = self.met[path].partition_point(|&limit| limit < load);
        let own = match self.loads.limit(path, app) {
            Some(limit) if load <= limit => None,
            _ => Some(match self.loads.lateness(path, app, load) {
                Some(nanos) => Lateness::Nanos(nanos),
                None => Lateness::Overloaded,
            }),
        };
        PlacementCost { newly_unmet, own }
    }

    fn put(&mut self, path: usize, app: usize) {
        self.load[path] += self.loads.rate(app);
        let load = self.load[path];
        let met = &mut self.met[path];
        met.drain(..met.partition_point(|&limit| limit < load));
        if let Some(limit) = self.loads.limit(path, app).filter(|&limit| load <= limit) {
            met.insert(met.partition_point(|&other| other < limit), limit);
        }
    }
}

/// Any model: ask it.
struct ByModel<'a, 'p, M> {
    problem: &'a Problem<'p, M>,
    members: Vec<Vec<usize>>,
    /// Whether each placed application is met.
    met: Vec<bool>,
}

impl<'a, 'p, M: DelayModel> ByModel<'a, 'p, M> {
    fn new(problem: &'a Problem<'p, M>) -> Self {
        Self {
            problem,
            members: vec![Vec::new(); problem.paths.len()],
            met: vec![false; problem.apps.len()],
        }
    }

    fn delays_with(&mut self, path: usize, app: usize) -> Vec<Delay> {
        // Applications come in ascending order, so the last one stays the last.
        self.members[path].push(app);
        let delays = self.problem.delays(path, &self.members[path]);
        self.members[path].pop();
        delays
    }

    fn is_met(&self, app: usize, delay: Delay) -> bool {
        delay.meets(
            self.problem.apps[app].latency_target,
            self.problem.tolerance,
        )
    }
}

impl<M: DelayModel> Placements for ByModel<'_, '_, M> {
    fn placement_cost(&mut self, path: usize, app: usize) -> PlacementCost {
        let delays = self.delays_with(path, app);
        let newly_unmet = self.members[path]
            .iter()
            .zip(&delays)
            .filter(|&(&other, &delay)| self.met[other] && !self.is_met(other, delay))
            .count();
        let own = *delays.last().expect("the application itself is a member");
        let score = self.problem.score_of(app, own);
        let own = match (score.unmet, score.overloaded) {
            (0, _) => None,
            (_, 0) => Some(Lateness::Nanos(score.lateness.as_nanos())),
            _ => Some(Lateness::Overloaded),
        };
        PlacementCost { newly_unmet, own }
    }

    fn put(&mut self, path: usize, app: usize) {
        let delays = self.delays_with(path, app);
        self.members[path].push(app);
        for (&member, &delay) in self.members[path].iter().zip(&delays) {
            self.met[member] = delay.meets(
                self.problem.apps[member].latency_target,
                self.problem.tolerance,
            );
        }
    }
}
