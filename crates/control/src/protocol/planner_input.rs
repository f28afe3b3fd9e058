//! What a gateway plans with: enough for another process to plan as it would.

use serde::{Deserialize, Serialize};

use super::PathRole;
use crate::config::{Class, Planner, Scheduler};

/// Version of [`PlannerInputSnapshot`]. A reader refuses others: a plan from half of the inputs would be another plan.
pub const PLANNER_INPUT_VERSION: u32 = 1;

/// The planner's configuration and measurements. Numbers of peers, paths and applications are positions in the lists
/// here, from zero.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PlannerInputSnapshot {
    /// [`PLANNER_INPUT_VERSION`] of the gateway.
    pub version: u32,
    /// The gateway has a site, whose plan is not part of this.
    pub alone: bool,
    pub planner: Planner,
    pub scheduler: Scheduler,
    /// How far a delay may exceed the latency target and still meet it, relative to the target.
    pub tolerance_ratio: f64,
    /// Names.
    pub peers: Vec<String>,
    pub paths: Vec<PlannedPathInput>,
    /// Paths to peers that are up.
    pub paths_up: Vec<PathUpInput>,
    pub apps: Vec<PlannedAppInput>,
    /// What other gateways of the site send over the paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub line_uses: Vec<LineUseInput>,
}

/// A path as it is configured, and what forecasts have learnt of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PlannedPathInput {
    pub name: String,
    /// Absent: what it carries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bits_per_second: Option<u64>,
    /// One way; absent: measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_seconds: Option<f64>,
    pub role: PathRole,
    /// Money per 10^9 bytes.
    #[serde(default)]
    pub cost_per_gb: f64,
    /// The path over whose uplink this one is a further one; absent: it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink: Option<usize>,
    /// Sums of the regression that corrects forecasts; absent: nothing is learnt yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub residual: Option<[f64; 7]>,
}

/// A path to a peer that is up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PathUpInput {
    pub path: usize,
    pub peer: usize,
    /// Absent: nothing is measured yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<PathLevelInput>,
    #[serde(default, skip_serializing_if = "HoldDownInput::is_released")]
    pub hold_down: HoldDownInput,
    /// Applications that are not on it wait elsewhere until it has stayed up.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub flaps: bool,
    /// The terms beside the configured ones: those of the other end, and the budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terms: Option<PathTermsInput>,
    /// What it carries at most; absent: not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_bits_per_second: Option<u64>,
}

/// What a path is planned with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PathLevelInput {
    pub rate_bits_per_second: u64,
    pub delay_seconds: f64,
    pub loss_ratio: f64,
}

/// Whether a path that was down may be used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum HoldDownInput {
    /// By all applications.
    #[default]
    Released,
    /// By those whose target is met on no released path.
    Probation,
    /// Not yet.
    Held,
    /// It was used before a restart and is being validated.
    Validating,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PathTermsInput {
    pub role: PathRole,
    pub cost_per_gb: f64,
    /// The budget of the month is used up.
    pub budget_spent: bool,
}

/// An application: its configuration, where it is, and what it sends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PlannedAppInput {
    pub name: String,
    pub class: Class,
    pub peer: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_target_seconds: Option<f64>,
    /// As configured; absent: measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length_bytes: Option<u64>,
    /// As configured; absent: measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_seconds: Option<f64>,
    /// Whether it may take a path whose budget is used up; absent: by its target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub essential: Option<bool>,
    /// The path that the configuration gives it; absent: the planner chooses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<usize>,
    /// The path that an operator has put it on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assigned: Option<usize>,
    /// The path that it is on, or was on last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_now: Option<usize>,
    /// It is on no path.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waits: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sends: bool,
    /// It returns to a cheaper path as soon as one meets its target.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overdue: bool,
    /// Absent: its losses are repaired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_need: Option<LossNeedInput>,
    /// What it sends; absent: too little is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<WorkloadInput>,
    /// What forecasts rest on; absent: the configuration, or nothing yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<TrafficWindowInput>,
    /// The paths that lose more of it than it tolerates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub excess_losses: Vec<ExcessLossInput>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LossNeedInput {
    pub tolerance_ratio: f64,
    /// Aggregates are lost and not packets, because they are sent twice.
    pub of_aggregates: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ExcessLossInput {
    pub path: usize,
    pub loss_ratio: f64,
    pub tolerance_ratio: f64,
}

/// Measured traffic.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum WorkloadInput {
    Sending(MessagesInput),
    /// It sent this before a restart, and too little since.
    BeforeRestart(MessagesInput),
    Stopped,
}

/// Messages; how much they vary as variance by the square of the mean.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MessagesInput {
    pub length_bytes: u64,
    pub interval_seconds: f64,
    pub length_variance_ratio: f64,
    pub interval_variance_ratio: f64,
}

/// A longer observation, in two halves.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TrafficWindowInput {
    pub halves: [WindowHalfInput; 2],
    pub interval_variance_ratio: f64,
    /// Messages that come with the one before.
    pub together_ratio: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WindowHalfInput {
    pub messages: u64,
    pub length_bytes: f64,
    pub length_variance_ratio: f64,
}

/// What another gateway of the site sends over a path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LineUseInput {
    pub path: usize,
    pub gateway: String,
    pub apps: u64,
    /// Without headers.
    pub load_bits_per_second: u64,
    /// What it sends at most.
    pub rate_bits_per_second: u64,
    /// Sums over its applications, with headers.
    pub offered: [f64; 7],
}

impl HoldDownInput {
    fn is_released(&self) -> bool {
        *self == Self::Released
    }
}
