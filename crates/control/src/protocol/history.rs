//! What was measured over time, and whether it is kept.

use serde::{Deserialize, Serialize};

use super::Timestamp;

/// Of what a history is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum HistoryKind {
    /// A path. Answer: [`super::Response::PathHistory`].
    Path,
    /// An application. Answer: [`super::Response::AppHistory`].
    App,
}

/// Whether what is measured is kept over a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HistorySnapshot {
    pub state: HistoryState,
    /// Why it is not, or what else there is to know of it; absent if there is nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// State of the history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum HistoryState {
    /// It is being opened.
    Opening,
    Ok,
    /// It cannot be read or written.
    Failed,
    /// The configuration does not want one.
    Off,
    /// A state of a newer gateway, or an older gateway, which has none.
    #[default]
    #[serde(other)]
    Unknown,
}

/// What a path was measured to be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PathHistory {
    pub name: String,
    /// What a row is of: a minute or an hour.
    pub row_seconds: u64,
    /// By peer in the order of the file, then by time. There is none where the path was down.
    pub rows: Vec<PathHistoryRow>,
}

/// What an application sent, and what it got.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AppHistory {
    pub name: String,
    pub peer: String,
    /// What a row is of: a minute or an hour.
    pub row_seconds: u64,
    /// By time. There is none where the application sent nothing.
    pub rows: Vec<AppHistoryRow>,
}

/// A path to a peer in one minute or hour.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PathHistoryRow {
    /// When the minute or hour began.
    pub at: Timestamp,
    pub peer: String,
    /// What it carried, bit/s of IP packets; the mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_bits_per_second: Option<f64>,
    /// What was left of that; the mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_bits_per_second: Option<f64>,
    /// One way, without queues: half the round trip; the least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_delay_seconds: Option<f64>,
    /// Interarrival jitter (RFC 3550); the mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter_seconds: Option<f64>,
    /// Packets lost of those sent; the mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_ratio: Option<f64>,
}

/// An application in one minute or hour.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AppHistoryRow {
    /// When the minute or hour began.
    pub at: Timestamp,
    /// Messages or datagrams that it sent.
    pub count: u64,
    /// Mean length over the newest minutes; absent until enough were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length_mean_bytes: Option<f64>,
    /// Standard deviation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length_spread_bytes: Option<f64>,
    /// Mean interval over the newest minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_mean_seconds: Option<f64>,
    /// Standard deviation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_spread_seconds: Option<f64>,
    /// Mean delay of the last five to ten minutes, as in `delay` of an application.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_mean_seconds: Option<f64>,
    /// Median.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_p50_seconds: Option<f64>,
    /// 95th percentile; of an hour the greatest of its minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_p95_seconds: Option<f64>,
    /// 99th percentile; of an hour the greatest of its minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_p99_seconds: Option<f64>,
}
