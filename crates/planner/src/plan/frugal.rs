//! Keiro's own planner: no application on a quicker path than it needs.

use super::{Budget, DelayModel, Plan, Problem, exact, greedy};

/// The paper's algorithm [path-selection fig. 4] where it meets every latency target, else the exact
/// planner's answer.
///
/// The least summed delay crowds everything onto the quickest path as long as the model says that
/// it fits. Every application on the slowest path that meets its latency target keeps the quick ones free
/// for those that need them: nothing is late, and there is room for what comes next or is burstier
/// than its mean.
pub fn frugal<M: DelayModel>(problem: &Problem<'_, M>, budget: Budget) -> Plan {
    let plan = greedy(problem);
    if plan.is_feasible() {
        plan
    } else {
        exact(problem, budget).plan
    }
}
