//! Answers to `show_message_client`.

use std::collections::BTreeMap;

use keiro_stats::MessageClientStats;
use serde::{Deserialize, Serialize};

use super::{Stats, Timestamp};

/// Clients of the message socket on other hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MessageClients {
    /// In the order of their names.
    pub clients: Vec<MessageClientSnapshot>,
    /// Connections that were refused or closed early, by reason.
    pub closed_connections: BTreeMap<String, u64>,
}

/// One client on another host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MessageClientSnapshot {
    pub name: String,
    /// Address and port of its last connection; absent: there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Applications that it may send to.
    pub send: Vec<String>,
    /// Applications that it may receive from.
    pub receive: Vec<String>,
    /// Its counters and gauges.
    #[serde(flatten)]
    pub stats: Stats<MessageClientStats>,
    /// Why one of its connections was refused or closed, the last time; absent: none was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// When that was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error_at: Option<Timestamp>,
}
