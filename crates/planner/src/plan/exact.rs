//! The best assignment of few applications, and a good one of many.

use super::{
    DelayModel, Plan, Problem,
    closed_form::{self, Effort, Loads},
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

/// An assignment, and whether it is known to be the best.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExactPlan {
    /// The best assignment found.
    pub plan: Plan,
    /// Everything was searched: no assignment has a lesser score in the problem's order, and of those
    /// with the same score none comes before this one.
    pub is_optimal: bool,
    /// The work done, in units of [`Budget`].
    pub work: u64,
}

/// Finds the assignment with the least [`Score`](super::Score) in the problem's [`Order`]; of several, the one with the lowest path index
/// for the first application in which they differ.
///
/// With eq. 3, up to some 24 applications are usually searched through. For more, a good answer is found
/// (`docs/planner.md` has how good). Where not everything is searched through, a microsecond of summed lateness
/// counts as none beside the delay.
///
/// Any other model is searched through or not at all: [`greedy()`]'s answer is poor if the budget ends first.
///
/// Stops when `budget` is used up. It is never worse than [`greedy()`]. Deterministic.
pub fn exact<M: DelayModel>(problem: &Problem<'_, M>, budget: Budget) -> ExactPlan {
    let (plan, outcome) = searched(problem, budget, Effort::Whole);
    ExactPlan {
        plan,
        is_optimal: outcome.complete,
        work: outcome.work,
    }
}

/// As the plan of [`exact()`], with less work where there are many applications.
pub(super) fn best_found<M: DelayModel>(problem: &Problem<'_, M>, budget: Budget) -> Plan {
    searched(problem, budget, Effort::Spared).0
}

fn searched<M: DelayModel>(
    problem: &Problem<'_, M>,
    budget: Budget,
    effort: Effort,
) -> (Plan, SearchOutcome) {
    let start = greedy(problem);
    let outcome = match Loads::new(problem) {
        Some(loads) => closed_form::run(&loads, &start, budget.0, effort),
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
