//! Plans which application takes which path.
//!
//! All applications of this gateway are planned together, since they share its paths. Each may only
//! take paths that lead to its peer and are up. Pinned and assigned applications stay and count as
//! load.
//!
//! - [`problem`]: what is to be planned, from the configuration and measurements ([`input`]), and
//!   what other gateways send over the same lines ([`line_use`]).
//! - [`arrange`]: the planner's answer by [path-selection eq. 3] on wire sizes.
//! - [`forecast`], [`forecasts`]: the queueing model's delays for the scheduler in use.
//! - [`refine`], [`search`], [`improve`]: corrects the planner's answer where the forecast finds a
//!   target unmet.
//! - [`economy`]: takes applications back from paths that cost more than they need.
//! - [`solve`]: puts these together into a [`plan`].
//!

mod arrange;
mod economy;
mod expected_delay;
pub(crate) mod forecast;
mod forecasts;
mod improve;
mod input;
mod line_use;
mod move_trigger;
mod plan;
mod problem;
mod refine;
mod search;
mod solve;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod what_if;

pub(crate) use expected_delay::ExpectedDelay;
pub(crate) use input::{
    ExcessLoss, MeasuredDelay, MeasuredWorkload, PlannerInput, Workload, WorkloadSource,
    is_other_workload, traffic_of, workload_of,
};
pub(crate) use keiro_planner::steer::PlanMode;
pub(crate) use line_use::{LineUse, SharedLines, rate_of_messages, steady_capacity};
pub(crate) use move_trigger::MoveTrigger;
pub(crate) use plan::{AppAssignment, Plan};
pub(crate) use problem::PlanningProblem;
pub(crate) use solve::Candidate;
