//! Plans which application takes which path.
//!
//! Applications to one peer are planned together, since they share the paths to it; those to different peers share
//! uplinks. Each may only take paths that lead to its peer and are up. Pinned and assigned applications stay and count as
//! load.
//!
//! - [`problem`]: what is to be planned, peer by peer, and what peers share ([`uplinks`]).
//! - [`peer_problem`]: what is to be planned of one peer, from the configuration and measurements ([`input`]), and
//!   what other gateways send over the same lines ([`line_use`]).
//! - [`arrange`]: the planner's answer by [path-selection eq. 3] on wire sizes.
//! - [`forecast`], [`forecasts`]: the queueing model's delays for the scheduler in use.
//! - [`refine`], [`search`], [`improve`]: corrects the planner's answer where the forecast finds a
//!   target unmet.
//! - [`cost_reduction`]: takes applications back from paths that cost more than they need.
//! - [`solve`]: puts these together into a [`plan`].
//! - [`snapshot`]: a plan in the types of the control protocol.
//! - [`exchange`]: what is planned with in the types of the control protocol, for other processes.
//! - [`what_if`]: the same for changes that have not happened.
//!
//! Pure functions: no I/O, no clock, no threads. What is planned with comes from the gateway, or from its control socket.
#![forbid(unsafe_code)]

mod arrange;
mod config;
mod cost_reduction;
mod exchange;
mod expected_delay;
pub mod forecast;
mod forecasts;
mod improve;
mod input;
mod line_use;
mod loss_need;
mod move_trigger;
mod peer_problem;
mod plan;
mod problem;
mod refine;
mod search;
mod snapshot;
mod solve;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod uplinks;
mod what_if;

pub use config::{PlannedPath, PlannerConfig};
pub use exchange::{InvalidInput, ReceivedInput, planner_input_snapshot};
pub use expected_delay::{ExpectedDelay, FORECAST_ERROR};
pub use input::{
    ExcessLoss, MeasuredDelay, MeasuredWorkload, PlannerInput, Workload, WorkloadSource,
    is_other_workload, traffic_of, workload_of,
};
pub use keiro_planner::steer::PlanMode;
pub use line_use::{LineUse, SharedLines, rate_of_messages, steady_capacity};
pub use loss_need::{LossNeed, LossNeeds, apps_of_packets};
pub use move_trigger::MoveTrigger;
pub use plan::{AppAssignment, Plan};
pub use problem::PlanningProblem;
pub use snapshot::{delay_terms, excess_loss, paths_in_use, plan_snapshot};
pub use solve::Candidate;
pub use what_if::Situation;
