//! The best assignment, or how far from it an answer can be at most.

use std::time::Duration;

use super::{
    DelayModel, Order, Plan, Problem, Score,
    closed_form::{self, Bounding, Loads},
    generic_search::{self, SearchOutcome},
    greedy,
};

/// How much work [`exact()`] may do, as a count and never a time, so that the same question always
/// gets the same answer.
///
/// A unit is about one predicted delay of eq. 3, some ten nanoseconds. Other models say with
/// [`DelayModel::work`] what they take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Budget(u64);

/// An assignment and what is known about its distance from the best.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExactPlan {
    /// The best assignment found.
    pub plan: Plan,
    /// What was proven about it.
    pub optimality: Optimality,
    /// The order in which it is best.
    pub order: Order,
    /// The work done, in units of [`Budget`].
    pub work: u64,
}

/// What [`exact()`] proved about its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Optimality {
    /// No assignment has a lesser score, and of those with the same score none comes before it.
    Proven,
    /// The budget ran out. No assignment has a score less than `bound`, compared in the order
    /// asked for: the first difference decides.
    Within { bound: Score },
}

/// A part of the objective, in the order of importance if lateness comes before the delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Objective {
    /// [`Score::unmet`].
    Unmet,
    /// [`Score::overloaded`].
    Overloaded,
    /// [`Score::lateness`].
    Lateness,
    /// [`Score::delay`].
    Delay,
}

/// The distance between a score and the bound on the best one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gap {
    /// The first part of the objective in which the two differ. The parts before it are proven
    /// best; about those after it nothing is known.
    pub objective: Objective,
    /// How much more the score has there, relative to the bound; infinite if the bound is zero.
    pub relative: f64,
}

/// Finds the assignment with the least [`Score`] in the problem's [`Order`]; of several, the one with the lowest path index
/// for the first application in which they differ.
///
/// With eq. 3, up to some 24 applications are usually searched through and the answer proven. For
/// more, a good answer is found and the best bounded by prices. How close the two come depends on
/// what is asked. With 10 paths, 100 applications and the default budget (`cargo bench -p
/// keiro-model`, 25 drawn instances): within 1 % of the least summed delay up to half of all
/// bandwidth; within 1 to 3 % at three quarters with narrow latency targets. Where latency targets cannot all be
/// met, the fewest unmet is found and proven if they fail for themselves, but their lateness is
/// only bounded within 0.5 to 19 %; where the paths are overloaded, the number of unmet is bounded
/// within one or two. 30 applications on 4 paths against proven optima: `docs/planner.md`.
///
/// Where not everything is searched through, a microsecond of summed lateness counts as none
/// beside the delay.
///
/// Any other model is searched through or not at all: [`greedy()`]'s answer and the bound of
/// every application alone on a path are poor if the budget ends first.
///
/// Stops when `budget` is used up and then says, in [`ExactPlan::optimality`], how far from the
/// best its answer can be. It is never worse than [`greedy()`]. Deterministic.
pub fn exact<M: DelayModel>(problem: &Problem<'_, M>, budget: Budget) -> ExactPlan {
    let (plan, outcome) = searched(problem, budget, Bounding::UpToBudget);
    let optimality = if outcome.complete {
        Optimality::Proven
    } else {
        Optimality::Within {
            bound: outcome.bound,
        }
    };
    ExactPlan {
        plan,
        optimality,
        order: problem.order,
        work: outcome.work,
    }
}

/// As the plan of [`exact()`], with less than half of its work: how far it is from the best is not looked for.
pub(super) fn best_found<M: DelayModel>(problem: &Problem<'_, M>, budget: Budget) -> Plan {
    searched(problem, budget, Bounding::None).0
}

fn searched<M: DelayModel>(
    problem: &Problem<'_, M>,
    budget: Budget,
    bounding: Bounding,
) -> (Plan, SearchOutcome) {
    let start = greedy(problem);
    let outcome = match Loads::new(problem) {
        Some(loads) => closed_form::run(&loads, &start, budget.0, bounding),
        None => generic_search::run(problem, &start, budget.0),
    };
    let found = problem.evaluate(&outcome.assignment);
    // The search takes lateness to the microsecond; that is not to cost the promise.
    match start.score.compare(&found.score, problem.order).is_lt() {
        true => (start, outcome),
        false => (found, outcome),
    }
}

impl Budget {
    /// With eq. 3, some 65 ms: for [`Incumbent::plan_from_scratch`](super::Incumbent::plan_from_scratch), where a
    /// little less delay is worth waiting for.
    pub const THOROUGH: Self = Self(4_000_000);

    pub const fn new(units: u64) -> Self {
        Self(units)
    }

    /// The units of work.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl Default for Budget {
    /// With eq. 3, 14 to 18 ms on one core of 2023.
    fn default() -> Self {
        Self(1_100_000)
    }
}

impl ExactPlan {
    /// The distance between the answer and the bound on the best; `None` if the score is proven
    /// best.
    pub fn gap(&self) -> Option<Gap> {
        let Optimality::Within { bound } = self.optimality else {
            return None;
        };
        let found = &self.plan.score;
        let seconds = |time: Duration| time.as_secs_f64();
        let mut parts = [
            (Objective::Unmet, found.unmet as f64, bound.unmet as f64),
            (
                Objective::Overloaded,
                found.overloaded as f64,
                bound.overloaded as f64,
            ),
            (
                Objective::Lateness,
                seconds(found.lateness),
                seconds(bound.lateness),
            ),
            (Objective::Delay, seconds(found.delay), seconds(bound.delay)),
        ];
        if self.order == Order::DelayFirst {
            parts.swap(2, 3);
        }
        let mut parts = parts.into_iter();
        let (objective, found, bound) = parts.find(|(_, found, bound)| found != bound)?;
        Some(Gap {
            objective,
            relative: (found - bound) / bound,
        })
    }

    /// Whether the answer is proven to be within `ratio` (0.01 for 1 %) of the best: every part
    /// of the objective before the first unproven one is best, and that one is within `ratio`.
    pub fn is_within(&self, ratio: f64) -> bool {
        self.gap().is_none_or(|gap| gap.relative <= ratio)
    }
}
