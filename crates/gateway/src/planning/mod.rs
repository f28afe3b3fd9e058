//! Which application on which path: builds the planner's question from configuration and measured
//! facts, asks it, and turns the answer into preferences.
//!
//! All applications of this gateway are planned together, since they share its paths; each may only
//! take paths that lead to its peer and are up. Pins and operators' assignments are kept and count
//! as load. The planner's objective is [path-selection eq. 3] in `keiro_planner::plan`, on what is on the
//! wire. Beside it stands the queueing forecast for the scheduler in use ([`outlook`]), which knows
//! deadlines; where that leaves a latency target unmet the plan is mended by it ([`review`]).

mod expected;
mod facts;
mod gains;
mod moves_at;
pub(crate) mod outlook;
mod question;
mod review;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod what_if;

pub(crate) use expected::Expected;
pub(crate) use facts::{
    Facts, MeasuredDelay, Origin, Seen, Workload, is_other_workload, workload_of,
};
pub(crate) use moves_at::MovesAt;
pub(crate) use question::{Candidate, Manner, Planned, PlannedPath, Question};
