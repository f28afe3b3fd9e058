//! The control protocol: JSON values, one per line, over a Unix socket.
//!
//! Requests and responses with their line framing; `docs/control-api.md` documents them for
//! users and `docs/control-api.schema.json` is generated from these types. Sockets are the
//! gateway's, printing the command's. Servers refuse unknown fields, so that a request that asks
//! for more than they know is not half obeyed; clients ignore them, so that servers may add some.

pub mod client;
mod event;
mod history;
mod lines;
mod message_client;
mod network;
mod planner_input;
mod snapshot;
mod tenant;
#[cfg(test)]
mod tests;
mod timestamp;
mod what_if;

pub use keiro_stats_export::Stats;
use serde::{Deserialize, Serialize};

pub use self::{
    event::{
        AddressField, AggregationParameters, DownReason, Event, EventKind, JudgedBy, KeyFault,
        MoveReason, PathRef, Side, VersionRange,
    },
    history::{
        AppHistory, AppHistoryRow, HistoryKind, HistorySnapshot, HistoryState, PathHistory,
        PathHistoryRow,
    },
    lines::{LineDecoder, LineError, encode_line},
    message_client::{MessageClientSnapshot, MessageClients},
    network::{NetworkSiteSnapshot, NetworkSnapshot, SiteRoute},
    planner_input::{
        ExcessLossInput, HoldDownInput, LineUseInput, LossNeedInput, MessagesInput,
        PLANNER_INPUT_VERSION, PathLevelInput, PathTermsInput, PathUpInput, PlannedAppInput,
        PlannedPathInput, PlannerInputSnapshot, TrafficWindowInput, WindowHalfInput, WorkloadInput,
    },
    snapshot::{
        AggregationChange, AggregationSnapshot, AppSnapshot, AssignedBy, BudgetSnapshot, Candidate,
        DelaySummary, DelayTerms, ExcessLossSnapshot, Explanation, FecSnapshot, ForwardSnapshot,
        LineUseSnapshot, ListenerSnapshot, ModelState, MoveThreshold, PathFault, PathRole,
        PathSnapshot, PathState, PathTermsSnapshot, PeerSnapshot, PeerState, PlanInSite,
        PlanSnapshot, PlannedApp, PredictedPercentiles, RecentEvent, SharedLineSnapshot,
        SpreadPathSnapshot, StatusSnapshot, StoreSnapshot, StoreState, TcpForwardSnapshot,
        TcpListenerSnapshot, VersionSnapshot, WorkloadSnapshot,
    },
    tenant::{
        ClassesSnapshot, DeviceState, ExitSnapshot, FlowSnapshot, InternetSnapshot, InternetState,
        MappedNetwork, PortForwardSnapshot, SortedSnapshot, TenantPathSnapshot, TenantPeerSnapshot,
        TenantSnapshot,
    },
    timestamp::Timestamp,
    what_if::{InvalidValue, SupposedTwice, WHAT_IF_APPS_MAX, WHAT_IF_MAX, WhatIf, WhatIfError},
};
use crate::config::ConfigDiff;

/// Version of this protocol. Raised when a field or request changes its meaning or goes away.
pub const PROTOCOL_VERSION: u32 = 1;

/// Longest request line in bytes, newline included; the server closes the connection at more.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;

/// Longest response or event line in bytes, newline included. Ours: snapshots of as many entries
/// as a configuration can have.
pub const RESPONSE_BYTES_MAX: usize = 32 << 20;

/// A recording for [`Request::Qlog`] ends when it was not asked for during this time.
pub const QLOG_IDLE_SECONDS: u64 = 5;

/// What a client asks, one JSON object: `{"request": "show_path", "name": "path1"}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Version of gateway and protocol. Answer: [`Response::Version`].
    Version {},
    /// The gateway in a few lines. Answer: [`Response::Status`].
    Status {},
    /// Paths. Answer: [`Response::Paths`].
    ShowPath {
        /// Only the path of this name; absent: all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// Applications. Answer: [`Response::Apps`].
    ShowApp {
        /// Only the application of this name; absent: all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// Peers. Answer: [`Response::Peers`].
    ShowPeer {
        /// Only the peer of this name; absent: all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// Tenants. Answer: [`Response::Tenants`].
    ShowTenant {
        /// Only the tenant of this name; absent: all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// The other sites of a branch's network. Answer: [`Response::Network`].
    ShowNetwork {},
    /// Clients of the message socket on other hosts. Answer: [`Response::MessageClients`].
    ShowMessageClient {
        /// Only the client of this name; absent: all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// What was measured over time. Answer: [`Response::PathHistory`] or [`Response::AppHistory`].
    History {
        /// Of a path or an application.
        kind: HistoryKind,
        name: String,
        /// How far back from now: in minutes up to 24 hours, in hours beyond.
        past_seconds: u64,
    },
    /// Events as they happen. Answer: [`Response::Monitoring`], then one [`Event`] per line until
    /// the client closes; further requests on this connection are refused.
    Monitor {},
    /// What happened on a peer's paths, packet by packet. The first request begins the recording,
    /// which ends [`QLOG_IDLE_SECONDS`] after the last one. Answer: [`Response::Qlog`].
    Qlog {
        peer: String,
        /// `next` of the client's last response; absent: its trace begins now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<u64>,
    },
    /// What the planner would do now, without doing it. Answer: [`Response::Plan`].
    Plan {
        /// From scratch, whatever is in force and however many moves it takes; else only what is
        /// worth moving for.
        #[serde(default, skip_serializing_if = "is_false")]
        anew: bool,
        /// Suppose these changes.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        what_if: Vec<WhatIf>,
    },
    /// What the planner plans with, for plans in another process. Answer: [`Response::PlannerInput`].
    PlannerInput {},
    /// Plan and take the result over at once. Answer: [`Response::Plan`] as applied.
    Apply {
        /// As in [`Request::Plan`].
        #[serde(default, skip_serializing_if = "is_false")]
        anew: bool,
    },
    /// Why an application is where it is. Answer: [`Response::Explanation`].
    Explain { app: String },
    /// Read the configuration file again. Answer: [`Response::Reloaded`], or an error of code
    /// [`ErrorCode::ConfigRejected`] and everything stays as it was.
    Reload {},
    /// Read the registry of this hub again, and nothing else: edits of the configuration file wait for
    /// [`Request::Reload`]. Answer: [`Response::Done`], or an error of code [`ErrorCode::ConfigRejected`] and the sites
    /// stay as they were.
    FollowRegistry {},
    /// Put an application on a path until it is taken back or the gateway restarts.
    /// Answer: [`Response::Done`].
    Assign {
        app: String,
        /// The path's name; absent: the planner chooses again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        path: Option<String>,
    },
}

impl Request {
    /// Whether the answer is all that it brings about: the gateway goes on as before.
    pub fn only_reads(&self) -> bool {
        match self {
            Self::Version {}
            | Self::Status {}
            | Self::ShowPath { .. }
            | Self::ShowApp { .. }
            | Self::ShowPeer { .. }
            | Self::ShowTenant { .. }
            | Self::ShowNetwork {}
            | Self::ShowMessageClient { .. }
            | Self::History { .. }
            | Self::Monitor {}
            | Self::Plan { .. }
            | Self::PlannerInput {}
            | Self::Explain { .. } => true,
            // A recording takes time of the thread that carries packets.
            Self::Qlog { .. }
            | Self::Apply { .. }
            | Self::Reload {}
            | Self::FollowRegistry {}
            | Self::Assign { .. } => false,
        }
    }
}

/// What the gateway answers, one JSON object: `{"response": "paths", "paths": [...]}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "response", rename_all = "snake_case")]
pub enum Response {
    /// To [`Request::Version`].
    Version(VersionSnapshot),
    /// To [`Request::Status`].
    Status(Box<StatusSnapshot>),
    /// To [`Request::ShowPath`].
    Paths {
        /// One for every path and peer that is reached over it, in the order of the file.
        paths: Vec<PathSnapshot>,
    },
    /// To [`Request::ShowApp`].
    Apps {
        /// In the order of the file.
        apps: Vec<AppSnapshot>,
    },
    /// To [`Request::ShowPeer`].
    Peers {
        /// In the order of the file.
        peers: Vec<PeerSnapshot>,
    },
    /// To [`Request::ShowTenant`].
    Tenants {
        /// By name.
        tenants: Vec<TenantSnapshot>,
    },
    /// To [`Request::ShowNetwork`].
    Network(NetworkSnapshot),
    /// To [`Request::ShowMessageClient`].
    MessageClients(MessageClients),
    /// To [`Request::History`] of a path.
    PathHistory(PathHistory),
    /// To [`Request::History`] of an application.
    AppHistory(AppHistory),
    /// To [`Request::Monitor`]: events follow.
    Monitoring {},
    /// To [`Request::Qlog`].
    Qlog {
        /// The trace's first record (draft-ietf-quic-qlog-main-schema, `JSON-SEQ`).
        header: serde_json::Value,
        /// One qlog event each, in order.
        events: Vec<serde_json::Value>,
        /// Events since `from` that were dropped because too many were waiting.
        dropped_events: u64,
        /// Number of the next event, for `from` of the client's next request.
        next: u64,
    },
    /// To [`Request::Plan`] and [`Request::Apply`].
    Plan(PlanSnapshot),
    /// To [`Request::PlannerInput`].
    PlannerInput(Box<PlannerInputSnapshot>),
    /// To [`Request::Explain`].
    Explanation(Box<Explanation>),
    /// To [`Request::Reload`].
    Reloaded {
        changes: Box<ConfigDiff>,
        /// What the configuration has and only a restart brings, one line each: of this reload or an
        /// earlier one.
        needs_restart: Vec<String>,
        /// What tenants were to have and do not have yet, one line each, with what becomes of it: what
        /// the kernel did not take, and devices that are missing or down.
        #[serde(default)]
        problems: Vec<String>,
        /// Keys with an old name, one line each, with the new name.
        #[serde(default)]
        warnings: Vec<String>,
    },
    /// To requests that answer nothing else.
    Done {},
    /// The request was not fulfilled, and nothing changed.
    Error(ErrorResponse),
}

/// Why a request was not fulfilled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[error("{message}{}", hint.as_ref().map(|h| format!("; {h}")).unwrap_or_default())]
pub struct ErrorResponse {
    /// For programs.
    pub code: ErrorCode,
    /// What is wrong, for people.
    pub message: String,
    /// What to try, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The line is not a request: no JSON, an unknown request or field, or too long.
    BadRequest,
    /// There is no path, application, peer or tenant of that name.
    NotFound,
    /// The user of the other end may not ask this.
    Forbidden,
    /// What is asked cannot be done now, for example a plan while the planner is off.
    Unavailable,
    /// The configuration file was refused; the old one stays.
    ConfigRejected,
    /// The gateway serves as many clients as it can.
    Busy,
    /// A fault of the gateway.
    Internal,
    /// A code of a newer gateway.
    #[serde(other)]
    Unknown,
}

// Serde hands a reference over.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(flag: &bool) -> bool {
    !flag
}

impl ErrorResponse {
    /// An error with a hint; an empty hint is none.
    pub fn new(code: ErrorCode, message: impl Into<String>, hint: &str) -> Self {
        let hint = Some(hint).filter(|h| !h.is_empty()).map(str::to_owned);
        Self {
            code,
            message: message.into(),
            hint,
        }
    }
}

impl Request {
    /// Reads one line without its newline.
    ///
    /// # Errors
    /// What to answer: [`ErrorCode::BadRequest`] with what is wrong.
    pub fn parse(line: &[u8]) -> Result<Self, ErrorResponse> {
        serde_json::from_slice(line).map_err(|e| {
            let message = format!("not a request: {e}");
            let hint = "one JSON object per line, as in {\"request\": \"status\"}";
            ErrorResponse::new(ErrorCode::BadRequest, message, hint)
        })
    }
}
