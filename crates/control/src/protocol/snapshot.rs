//! Answers to `status`, `show`, `plan` and `explain`: what is active, in base units.
//!
//! Every field has its unit in its name: `_seconds`, `_bytes`, `_bits_per_second`, `_ratio`
//! (0 to 1). Counters start at zero with the gateway. `None` (absent in JSON) means not known or
//! not applicable, never zero.

mod plan;

use std::collections::BTreeMap;

use keiro_stats::{
    AggregationStats, AppStats, CapacityStats, HandshakeStats, PathSocketStats, PathStats,
    PeerStats, TcpForwardStats, TcpListenerStats, UdpForwardStats, UdpListenerStats,
};
use serde::{Deserialize, Serialize};

pub use self::plan::{
    Candidate, DelayTerms, ExcessLossSnapshot, Explanation, LineUseSnapshot, MoveThreshold,
    PlanInSite, PlanSnapshot, PlannedApp, SharedLineSnapshot, SpreadPathSnapshot,
};
use super::{AggregationParameters, Event, HistorySnapshot, JudgedBy, Stats, Timestamp};
use crate::config::{self, Class, PathTerms, Planner, Scheduler};

/// Version of the gateway and of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct VersionSnapshot {
    /// The gateway's version, as in its package.
    pub version: String,
    /// [`super::PROTOCOL_VERSION`] of the gateway.
    pub protocol_version: u32,
}

/// The gateway in a few lines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StatusSnapshot {
    pub name: String,
    pub version: String,
    /// Its public key in base64.
    pub public_key: String,
    pub started: Timestamp,
    /// How long it runs.
    pub uptime_seconds: f64,
    pub config_file: String,
    /// When the configuration that is active was read.
    pub config_loaded: Timestamp,
    /// Peers and paths that are not up, and why, one line each, at most some; absent: all are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// Prefixes of the network that are not routed, since this machine needs addresses of them, one line each;
    /// absent: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub withheld_prefixes: Vec<String>,
    /// Why the last reload was refused; absent if it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_rejected: Option<String>,
    /// What the configuration has and only a restart brings, one line each; absent: nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs_restart: Vec<String>,
    /// It is about to stop and takes nothing new.
    pub draining: bool,
    pub scheduler: Scheduler,
    pub planner: Planner,
    pub tolerance_ratio: f64,
    /// Whether the predictions can be relied on.
    pub model: ModelState,
    /// Why they cannot; absent if they can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_why: Option<String>,
    /// Paths that this machine cannot use now, what it lacks and what to try, one line each; absent: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub path_problems: Vec<String>,
    /// Pairs of path and peer that carry traffic.
    pub paths_up: u64,
    /// Pairs of path and peer.
    pub paths: u64,
    /// Peers with a session.
    pub peers_up: u64,
    pub peers: u64,
    pub apps: u64,
    /// Applications with a latency target.
    pub apps_with_target: u64,
    /// Of those, how many meet it.
    pub apps_target_met: u64,
    /// Of those with a target, how many are judged by measurement; the others by the mean that the
    /// planner uses, or not yet.
    #[serde(default)]
    pub apps_target_measured: u64,
    /// Of those with a target, how many are judged by equation 3, for want of measured delays and of
    /// a forecast.
    #[serde(default)]
    pub apps_target_by_equation3: u64,
    #[serde(default)]
    pub tenants: u64,
    /// Of those, how many have their device, and up; the others carry no IP packets.
    #[serde(default)]
    pub tenants_with_device: u64,
    /// The plan store; absent while the gateway stops.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreSnapshot>,
    /// Senders attached to the message socket.
    pub message_senders: u64,
    /// Receivers attached to the message socket.
    pub message_receivers: u64,
    /// Counters of handshakes with all peers.
    #[serde(default)]
    pub handshakes: Stats<HandshakeStats>,
    /// Whether what is measured is kept over a restart.
    #[serde(default)]
    pub history: HistorySnapshot,
    /// Events of the last ten minutes that say why something does not work, the latest of each kind and subject;
    /// absent: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recent_events: Vec<RecentEvent>,
}

/// Events of one kind about one subject.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RecentEvent {
    /// The latest of them.
    pub event: Event,
    /// How many there were since there was none for ten minutes.
    pub count: u64,
    /// How long ago the latest was.
    pub age_seconds: f64,
}

/// Whether predictions can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ModelState {
    /// Measured delays agree with the predicted ones.
    Valid,
    /// They do not: a latency target that is predicted to be met may be missed.
    NotValid,
    /// Not enough was measured to say.
    Unverified,
    /// The planner is off.
    Off,
    /// A state of a newer gateway.
    #[serde(other)]
    Unknown,
}

/// A path to a peer. One path to two peers is two of these.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PathSnapshot {
    pub name: String,
    pub peer: String,
    /// Whether it carries traffic.
    pub state: PathState,
    /// It has never answered, and another address of the peer does on this uplink: it is tried rarely, and does
    /// not count as down.
    #[serde(default)]
    pub abandoned: bool,
    /// Why it is in this state, in a few words.
    pub why: String,
    /// What its packets say about the cause why it is not up, or carries no packets of 1280 bytes; absent: nothing is
    /// wrong, or it is too soon to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diagnosis: Option<String>,
    /// What `diagnosis` is about; absent like it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<PathFault>,
    /// An application whose path is good is not moved here until this path has stayed up for so
    /// long; absent: it may be, or the path is not up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trusted_in_seconds: Option<f64>,
    /// How long it has been in this state.
    pub state_seconds: f64,
    /// Local UDP address; that of an interface that has none now is given as `wwan0:7600`.
    pub local: String,
    /// The interface whose addresses the path follows; absent: its address is fixed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// What keeps this machine from using it, and what to try; absent: nothing is known to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The peer's UDP address; absent while it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<String>,
    /// Its counters and gauges.
    #[serde(flatten)]
    pub stats: Stats<PathStats>,
    /// Its UDP socket; absent: the socket is not open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<Stats<PathSocketStats>>,
    /// What the path to the peer carries, measured; absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Stats<CapacityStats>>,
    /// How small packets are aggregated on it; absent: they are not, with `mode = "off"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aggregation: Option<AggregationSnapshot>,
    /// What limits the rate of a path without a configured one, as `startup` or `limited by
    /// application`; absent: a rate is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_state: Option<String>,
    /// Nothing has shown yet what the path carries, and plans assume a rate.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rate_assumed: bool,
    /// The one-way propagation delay that the planner uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_seconds: Option<f64>,
    /// A delay is configured: `delay_seconds` is that and what has been measured to have changed
    /// since the path came up. Otherwise it is measured.
    pub delay_configured: bool,
    /// The delay that is configured; absent: none is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configured_delay_seconds: Option<f64>,
    /// Other gateways of the site on it; absent: there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_line: Option<SharedLineSnapshot>,
    /// On which terms both gateways use it; absent: it is a primary path that costs nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_terms: Option<PathTermsSnapshot>,
    /// What its uplink may carry this month, to all peers together; absent: any amount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetSnapshot>,
}

/// On which terms a path to a peer is used. Those of both ends count: one that is a backup at either end is a backup,
/// and its costs are added.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PathTermsSnapshot {
    pub role: PathRole,
    /// Money per 10^9 bytes.
    pub cost_per_gb: f64,
    /// The budget of the month is used up, here or at the peer: only keepalives remain, and essential applications that
    /// have no other path.
    pub budget_spent: bool,
}

/// Whether a path is for all traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum PathRole {
    Primary,
    /// It carries an application only while no primary path meets its needs.
    Backup,
    /// A role of a newer gateway.
    #[serde(other)]
    Unknown,
}

/// What an uplink may carry in a month, and what it has carried: bytes of IP packets in both directions, of all its
/// paths.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct BudgetSnapshot {
    /// The path of the uplink; others over it share the budget.
    pub uplink: String,
    pub budget_bytes: u64,
    pub used_bytes: u64,
    pub left_bytes: u64,
    /// The day on which the month began, UTC: `2026-11-01`.
    pub began: String,
    /// The day on which the next one begins.
    pub ends: String,
}

impl PathTermsSnapshot {
    /// `None`: a primary path that costs nothing.
    pub fn of(terms: PathTerms) -> Option<Self> {
        (terms != PathTerms::FREE).then(|| Self {
            role: match terms.role {
                config::PathRole::Primary => PathRole::Primary,
                config::PathRole::Backup => PathRole::Backup,
            },
            cost_per_gb: terms.cost.get(),
            budget_spent: terms.is_spent,
        })
    }
}

/// How small packets are aggregated on a path, from here to the peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AggregationSnapshot {
    /// `eager` or `fixed`.
    pub mode: String,
    /// What adapts size, interval and copies, as `[aggregation]` has it: `adaptive`, `table2`,
    /// `none`, or that of an experiment; empty: an older gateway does not report it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub controller: String,
    /// Where and when the copies of one leave: `back-to-back`, `paths` or with a time between them,
    /// as `500us`; empty: an older gateway does not report it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub spread: String,
    /// Its counters and gauges.
    #[serde(flatten)]
    pub stats: Stats<AggregationStats>,
    /// Parity of groups of aggregates takes the place of copies; absent: it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fec: Option<FecSnapshot>,
    /// Why, in numbers, or that no controller changes it; absent: nothing was decided yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The last decision that changed something; absent: there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_change: Option<AggregationChange>,
    /// How often the controller decided, by cause; most decisions change nothing.
    #[serde(default)]
    pub decisions: BTreeMap<String, u64>,
    /// What that is from: `copies`, `trains` or how old it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth_source: Option<String>,
}

/// Parity of groups of aggregates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FecSnapshot {
    /// How many make a group.
    pub group_aggregates: u64,
    /// Parity packets of a group with the present number of copies.
    pub parity_packets: u64,
}

/// A change of the size, interval or copies of aggregates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AggregationChange {
    /// How long ago it was.
    pub age_seconds: f64,
    /// In force before.
    pub before: AggregationParameters,
    /// In force since.
    pub after: AggregationParameters,
    /// Why, in numbers.
    pub why: String,
}

/// State of a path to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum PathState {
    /// The peer answered over it, and still does.
    Up,
    /// Not used.
    Down,
    /// A challenge is on its way.
    Validating,
    /// A state of a newer gateway.
    #[serde(other)]
    Unknown,
}

/// What the packets on a path show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum PathFault {
    /// Nothing comes.
    Silent,
    /// The peer's packets come, and ours are not answered.
    OneWay,
    /// Short packets are answered and none of 576 bytes, so that it is not used.
    TooSmall,
    /// It is used, and packets of 1280 bytes do not pass.
    SmallMtu,
    /// A fault that a newer gateway reports.
    #[serde(other)]
    Unknown,
}

/// State of the plan store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StoreSnapshot {
    /// What and where it is.
    pub description: String,
    /// Whether it answers.
    pub state: StoreState,
    /// Since when it is in this state.
    pub since: Timestamp,
    /// Why it is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why this gateway takes no part in the site's plan and plans alone; absent: it takes part, or
    /// there is no site.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alone: Option<String>,
    /// The gateways that share it and are live, by name, this one included.
    pub gateways: Vec<String>,
    /// The one that plans for all; absent: none is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// The store's number of the plan that is followed; absent: there is none, or it has not been
    /// stored yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_revision: Option<u64>,
    /// Who made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_made_by: Option<String>,
    /// When, by that gateway's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_made: Option<Timestamp>,
}

/// Whether the plan store answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum StoreState {
    /// It has not been asked yet.
    Starting,
    Connected,
    /// It does not; the last plan stays in force.
    Lost,
    /// A state of a newer gateway.
    #[serde(other)]
    Unknown,
}

/// Another gateway.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PeerSnapshot {
    pub name: String,
    /// Its public key in base64.
    pub public_key: String,
    /// Whether there is a session.
    pub state: PeerState,
    /// Why it is in this state, in a few words.
    pub why: String,
    /// How long it has been in this state.
    pub state_seconds: f64,
    /// Its counters and gauges.
    #[serde(flatten)]
    pub stats: Stats<PeerStats>,
    /// Optional parts of the wire protocol that both gateways understand, by name; empty before the
    /// first handshake and with a peer of 0.1.0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<String>,
    /// Of a site, at a hub: whether it is up at the other hub too. Absent where there is no other one, or it has not
    /// said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_at_other_hub: Option<bool>,
    /// At a branch: it is another site, and the session passes no hub.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub direct: bool,
    /// Packets from its addresses that were dropped, by reason.
    pub dropped_packets: BTreeMap<String, u64>,
}

/// State of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum PeerState {
    /// There is a session and at least one path.
    Up,
    /// A handshake is under way.
    Handshaking,
    /// There is no session.
    Down,
    /// A state of a newer gateway.
    #[serde(other)]
    Unknown,
}

/// An application as this gateway sees it.
///
/// Delays are from taking a message over until the peer gateway had it whole, as that one says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AppSnapshot {
    pub name: String,
    pub class: Class,
    /// The gateway at the other side.
    pub peer: String,
    /// The path in use now; absent: none, messages wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// While it is on none, the one that it was on last; absent: it is on one, or has not been on any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_path: Option<String>,
    /// Why it is on no path: `no path to osaka is up`; absent: it is on one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_path: Option<String>,
    /// What it sends leaves by several paths: how much by which, since the start. Absent: it takes one path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<Vec<SpreadPathSnapshot>>,
    pub assigned_by: AssignedBy,
    /// All of its traffic is IP packets of tenants. They do not name their application: what arrives
    /// is counted by the rules here, and measured delays decide nothing.
    #[serde(default)]
    pub only_packets: bool,
    /// Its counters and gauges.
    #[serde(flatten)]
    pub stats: Stats<AppStats>,
    /// Messages older than this are given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetime_seconds: Option<f64>,
    /// The part of its packets that may be lost where nothing repairs it; absent: loss counts as the time of
    /// the repair.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_tolerance_ratio: Option<f64>,
    /// Its path loses more; absent: it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excess_loss: Option<ExcessLossSnapshot>,
    /// What it sends, measured; absent: too little yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<WorkloadSnapshot>,
    /// Mean length that predictions use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length_bytes: Option<f64>,
    /// Mean interval that predictions use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_seconds: Option<f64>,
    /// Its percentiles.
    #[serde(flatten)]
    pub predicted: PredictedPercentiles,
    /// Why the model gives no numbers, if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_forecast: Option<String>,
    /// Other gateways of the site on its path, whose traffic the forecast includes; absent: there is
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_line: Option<SharedLineSnapshot>,
    /// The latency target minus the predicted delay: negative if it is missed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margin_seconds: Option<f64>,
    /// What `target_met` rests on; absent like it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judged_by: Option<JudgedBy>,
    /// Measured delays; absent: none yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<DelaySummary>,
    /// Its UDP listeners.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub listeners: Vec<ListenerSnapshot>,
    /// Its UDP forward.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward: Option<ForwardSnapshot>,
    /// Its TCP listeners.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tcp_listeners: Vec<TcpListenerSnapshot>,
    /// Its TCP forward.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_forward: Option<TcpForwardSnapshot>,
}

/// Percentiles of a predicted delay, by the queueing model; absent: it does not hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PredictedPercentiles {
    /// Half are predicted to be faster; absent: the model does not hold.
    #[serde(
        default,
        rename = "predicted_p50_seconds",
        skip_serializing_if = "Option::is_none"
    )]
    pub p50_seconds: Option<f64>,
    /// 95 of 100 are predicted to be faster.
    #[serde(
        default,
        rename = "predicted_p95_seconds",
        skip_serializing_if = "Option::is_none"
    )]
    pub p95_seconds: Option<f64>,
    /// 99 of 100 are predicted to be faster.
    #[serde(
        default,
        rename = "predicted_p99_seconds",
        skip_serializing_if = "Option::is_none"
    )]
    pub p99_seconds: Option<f64>,
}

/// What an application sends, measured over its last minutes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WorkloadSnapshot {
    /// Messages or datagrams seen.
    pub count: u64,
    /// Mean length.
    pub length_bytes: f64,
    /// Standard deviation of the length over its mean.
    pub length_variation_ratio: f64,
    /// Mean time between two of them, absences left out.
    pub interval_seconds: f64,
    /// Standard deviation of that time over its mean; 1 for a Poisson process.
    pub interval_variation_ratio: f64,
    /// Since the newest.
    pub idle_seconds: f64,
}

/// Who chose an application's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AssignedBy {
    /// The planner.
    Planner,
    /// `path` in the configuration.
    Pin,
    /// An `assign` request.
    Operator,
    /// The path that was chosen is down and this one is up.
    Fallback,
    /// No path was chosen.
    Unassigned,
    /// A way of a newer gateway.
    #[serde(other)]
    Unknown,
}

/// Delays of messages since the gateway started.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DelaySummary {
    /// Messages counted; those given up are not among them.
    pub count: u64,
    /// Mean.
    pub mean_seconds: f64,
    /// Smallest.
    pub min_seconds: f64,
    /// Half are faster.
    pub p50_seconds: f64,
    /// Nine of ten are faster.
    pub p90_seconds: f64,
    /// 95 of 100 are faster.
    #[serde(default)]
    pub p95_seconds: f64,
    /// 99 of 100 are faster.
    pub p99_seconds: f64,
    /// 999 of 1000 are faster.
    pub p999_seconds: f64,
    /// Largest.
    pub max_seconds: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ListenerSnapshot {
    pub udp: String,
    /// Its counters and gauges.
    #[serde(flatten)]
    pub stats: Stats<UdpListenerStats>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ForwardSnapshot {
    /// Its destination.
    pub udp: String,
    /// Its counters and gauges.
    #[serde(flatten)]
    pub stats: Stats<UdpForwardStats>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TcpListenerSnapshot {
    pub tcp: String,
    /// It accepts connections to other addresses, which a firewall rule redirects to it.
    pub transparent: bool,
    /// Its counters and gauges.
    #[serde(flatten)]
    pub stats: Stats<TcpListenerStats>,
}

/// A TCP forward.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TcpForwardSnapshot {
    /// Its server, or the networks that it may connect to.
    pub tcp: String,
    /// Its counters and gauges.
    #[serde(flatten)]
    pub stats: Stats<TcpForwardStats>,
}
