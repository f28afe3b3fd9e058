//! Answers to `plan` and `explain`: where applications go, what is expected there, and why.

use serde::{Deserialize, Serialize};

use super::*;

/// What the planner found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PlanSnapshot {
    pub planner: Planner,
    pub tolerance_ratio: f64,
    /// No application is unmet.
    pub feasible: bool,
    /// The result is the best there is by [path-selection eq. 3] with headers, proven.
    pub optimal: bool,
    /// Whether the predictions can be relied on.
    pub model: ModelState,
    /// The plan is in force now.
    pub applied: bool,
    /// Applications that change their path by it.
    pub changes: u64,
    /// Applications that would miss their latency target on average, be overloaded or have no path.
    pub unmet: u64,
    /// Applications that were not unmet by a plan without what is supposed, and are with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub newly_unmet: Vec<String>,
    /// Supposed changes that change nothing, with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without_effect: Vec<String>,
    /// It is this gateway's alone, although a site's plan decides: that would be made when it
    /// happens.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub alone: bool,
    /// What the plan of the gateway's site has to do with it; absent: the gateway takes no part in
    /// one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<PlanInSite>,
    /// By how much latency targets, loosened by the tolerance, are missed on average, summed up; overloaded
    /// applications are not in it.
    pub lateness_seconds: f64,
    /// Predicted mean delays, summed up; absent: an application has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_sum_seconds: Option<f64>,
    /// How long planning took.
    pub planning_seconds: f64,
    /// In the order of the file.
    pub apps: Vec<PlannedApp>,
}

/// How the plan of the site and this gateway's own plan combine. While the store answers, the site's plan is
/// followed. While the store is lost, it is followed unless it leaves a latency target unmet that the
/// gateway's own plan meets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PlanInSite {
    /// Whether its store answers.
    pub store: StoreState,
    /// The store's number of the site's plan; absent: none is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_revision: Option<u64>,
    /// Who made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_made_by: Option<String>,
    /// Applications that the gateway has placed itself, until the site has planned with that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub own: Vec<String>,
}

/// An application in a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PlannedApp {
    pub name: String,
    /// The gateway at the other side.
    pub peer: String,
    /// Its path by this plan; absent: no path is up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Its path now; before the plan, if that was applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_now: Option<String>,
    /// Who chose `path`.
    pub assigned_by: AssignedBy,
    /// The numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terms: Option<DelayTerms>,
    /// Target delay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_target_seconds: Option<f64>,
    /// The latency target minus the predicted mean delay; absent: no latency target, or no prediction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margin_seconds: Option<f64>,
    /// The mean delay is at most the latency target, loosened by the tolerance; absent: no latency target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_met: Option<bool>,
    /// The origin of that mean; absent: no path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judged_by: Option<JudgedBy>,
    /// The mean of the delays measured since the last change, where that judges: where enough were
    /// and the plan changes nothing on the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_mean_seconds: Option<f64>,
    /// The 99th percentile, measured where that judges and else predicted, is at most the latency target,
    /// loosened by the tolerance, as `status` judges; absent: no latency target, or no prediction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_met_at_p99: Option<bool>,
    /// More arrives than its path carries before it, so that its delay grows without end.
    #[serde(default)]
    pub overloaded: bool,
    /// The path loses more than the application tolerates, and so does not meet its needs; absent: it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excess_loss: Option<ExcessLossSnapshot>,
    /// On which terms its path is used; absent: it is a primary path that costs nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_terms: Option<PathTermsSnapshot>,
    /// Why the model gives no numbers, if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_forecast: Option<String>,
}

/// A predicted delay and what it is made of: T + L / (W − Q) [path-selection eq. 3].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DelayTerms {
    /// T: one-way delay of the path, and what its losses cost a message on average.
    pub propagation_seconds: f64,
    /// L: mean message length.
    pub length_bytes: f64,
    /// W: the path's rate, less what is lost.
    pub rate_bits_per_second: f64,
    /// Q: what the other applications on the path send [path-selection eq. 2], those of other gateways
    /// of the site included.
    pub other_load_bits_per_second: f64,
    /// Which part of it other gateways of the site send.
    #[serde(default)]
    pub site_load_bits_per_second: f64,
    /// The mean delay by eq. 3; absent: all that is sent on the path reaches W.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paper_delay_seconds: Option<f64>,
    /// The mean delay by the model of the scheduler in use, which knows headers and pacing too, and
    /// is corrected by what was measured; absent: it gives no number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_delay_seconds: Option<f64>,
    /// Its percentiles.
    #[serde(flatten)]
    pub predicted: PredictedPercentiles,
}

/// What other gateways of the site send over a path: paths of one name are one line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SharedLineSnapshot {
    /// Those that send over it, by name.
    pub gateways: Vec<LineUseSnapshot>,
    /// How long the plan store has not answered: what is known of other gateways is that old; absent: it
    /// answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<f64>,
}

/// What one gateway sends over a line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LineUseSnapshot {
    pub gateway: String,
    /// How many of its applications are on the line.
    pub apps: u64,
    /// The mean rate of their messages, without headers.
    pub load_bits_per_second: f64,
}

/// Why an application is where it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Explanation {
    pub app: String,
    /// The whole story in a few sentences.
    pub text: String,
    /// The path in use now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    pub assigned_by: AssignedBy,
    /// Target delay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_target_seconds: Option<f64>,
    /// Whether the predictions can be relied on.
    pub model: ModelState,
    /// Every path to its peer, in the order of the file.
    pub candidates: Vec<Candidate>,
    /// For each quantity, the smallest change of it alone that would move the application; quantities
    /// that cannot move it are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub would_move: Vec<MoveThreshold>,
    /// How its small packets are aggregated on the path in use; absent: they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aggregation: Option<AggregationSnapshot>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<DelaySummary>,
    /// When and why it moved last; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_move: Option<Event>,
}

/// A change at which an application would move.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum MoveThreshold {
    /// Of a path's propagation delay.
    PathDelay {
        path: String,
        /// What it is.
        now_seconds: f64,
        /// From here on.
        at_seconds: f64,
        to: String,
    },
    /// Of what a path carries.
    PathRate {
        path: String,
        /// What it is.
        now_bits_per_second: u64,
        /// From here on.
        at_bits_per_second: u64,
        to: String,
    },
    /// Of the application's latency target.
    LatencyTarget {
        /// What it is; without one, the predicted delay.
        now_seconds: f64,
        /// From here on.
        at_seconds: f64,
        to: String,
    },
    /// A change of a newer gateway.
    #[serde(other)]
    Unknown,
}

/// What has left by one path of an application that is spread over several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SpreadPathSnapshot {
    pub path: String,
    pub sent_bytes: u64,
}

/// What a path loses of an application's traffic without repair, where that is more than it tolerates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ExcessLossSnapshot {
    /// The part that is lost.
    pub loss_ratio: f64,
    /// The part that the application tolerates.
    pub tolerance_ratio: f64,
}

/// A path that an application could take.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Candidate {
    pub path: String,
    pub state: PathState,
    /// It is the one in use.
    pub chosen: bool,
    /// The numbers, with everything else where it is now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terms: Option<DelayTerms>,
    /// The latency target minus the predicted mean delay; absent: no latency target, or no prediction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margin_seconds: Option<f64>,
    /// The mean delay would be at most the latency target, loosened by the tolerance; absent: no latency target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_met: Option<bool>,
    /// The origin of that mean; absent: the path is not up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judged_by: Option<JudgedBy>,
    /// The path loses more than the application tolerates; absent: it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excess_loss: Option<ExcessLossSnapshot>,
    /// On which terms it is used; absent: it is a primary path that costs nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_terms: Option<PathTermsSnapshot>,
    /// Why the model gives no numbers there, if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_forecast: Option<String>,
    /// Other gateways of the site on it, whose traffic the numbers include; absent: there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_line: Option<SharedLineSnapshot>,
    /// Why it is or is not the one, with the numbers.
    pub verdict: String,
}
