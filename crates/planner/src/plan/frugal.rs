//! Keiro's own planner by eq. 3: no application with a target on a quicker path than it needs, and
//! all others where they are quick.

use std::cmp::Reverse;

use super::{Budget, DelayModel, Order, Plan, Problem, exact::best_found, greedy, members_of};

/// The paper's algorithm [path-selection fig. 4] where it meets every latency target, else the best plan that is
/// found. Applications without a latency target then go where the summed delay is least
/// and all targets stay met.
///
/// The least summed delay crowds everything onto the quickest path as long as the model says that
/// it fits. Every application with a target on the slowest path that meets it keeps the quick ones
/// free for those that need them: nothing is late, and there is room for what comes next or is
/// burstier than its mean. Without a target, an application would be on the slowest path however
/// idle the others are, so it is placed by its delay.
pub fn frugal<M: DelayModel>(problem: &Problem<'_, M>, budget: Budget) -> Plan {
    let plan = greedy(problem);
    match plan.is_feasible() {
        true => with_lower_delays(problem, plan),
        false => best_found(problem, budget),
    }
}

/// `plan`, with applications without a target where that is better, the heaviest first.
fn with_lower_delays<M: DelayModel>(problem: &Problem<'_, M>, plan: Plan) -> Plan {
    let mut patient: Vec<usize> = (0..problem.apps.len())
        .filter(|&app| problem.apps[app].latency_target.is_none())
        .collect();
    if patient.is_empty() {
        return plan;
    }
    patient.sort_by_key(|&app| (Reverse(problem.apps[app].rate()), app));
    let mut assignment = plan.assignment;
    for app in patient {
        let from = assignment[app];
        let members = members_of(&assignment, from);
        let others: Vec<usize> = members.iter().copied().filter(|&o| o != app).collect();
        let here = problem.score_of_path(from, &members);
        let left = problem.score_of_path(from, &others);
        let best = (0..problem.paths.len()).filter(|&to| to != from).map(|to| {
            let mut members = members_of(&assignment, to);
            let before = problem.score_of_path(to, &members);
            members.insert(members.partition_point(|&other| other < app), app);
            let after = left.saturating_add(problem.score_of_path(to, &members));
            (to, here.saturating_add(before), after)
        });
        let better = best.filter(|(_, before, after)| {
            after.compare(before, Order::DelayFirst).is_lt() && after.unmet <= before.unmet
        });
        // The paths differ, so what is compared is what each move gains.
        let gain =
            |before: &super::Score, after: &super::Score| before.delay.saturating_sub(after.delay);
        let most = better.max_by_key(|(to, before, after)| (gain(before, after), Reverse(*to)));
        if let Some((to, _, _)) = most {
            assignment[app] = to;
        }
    }
    problem.evaluate(&assignment)
}
