//! Which application on which path: builds the planner's problem from configuration and measured
//! input, asks it, and turns the answer into preferences.
//!
//! All applications of this gateway are planned together, since they share its paths; each may only
//! take paths that lead to its peer and are up. Pins and operators' assignments are kept and count
//! as load. The planner's objective is [path-selection eq. 3] in `keiro_planner::plan`, on what is on the
//! wire. Beside it stands the queueing forecast for the scheduler in use ([`forecast`]), which knows
//! deadlines; where that leaves a latency target unmet the plan is repaired by it ([`review`]).

mod arrange;
mod expected_delay;
pub(crate) mod forecast;
mod forecasts;
mod improve;
mod input;
mod move_trigger;
mod plan;
mod problem;
mod refine;
mod solve;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod what_if;

pub(crate) use expected_delay::ExpectedDelay;
pub(crate) use input::{
    MeasuredDelay, MeasuredWorkload, PlannerInput, Workload, WorkloadSource, is_other_workload,
    workload_of,
};
pub(crate) use keiro_planner::steer::PlanMode;
pub(crate) use move_trigger::MoveTrigger;
pub(crate) use plan::{AppAssignment, Plan};
pub(crate) use problem::PlanningProblem;
pub(crate) use solve::Candidate;
