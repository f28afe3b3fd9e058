//! Answers to `show_tenant`.

use std::collections::BTreeMap;

use keiro_stats::{TenantPathStats, TenantPeerStats, TenantStats};
use serde::{Deserialize, Serialize};

use super::Stats;

/// A tenant as this gateway sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TenantSnapshot {
    pub name: String,
    /// Its number on the wire.
    pub id: u64,
    /// Its counters and gauges.
    #[serde(flatten)]
    pub stats: Stats<TenantStats>,
    /// What decides its windows: `keiro`, `i2vfc` or `open`.
    pub controller: String,
    /// Its TUN device.
    pub device: String,
    /// Whether the device is there.
    pub device_present: bool,
    /// What has become of it.
    #[serde(default)]
    pub device_state: DeviceState,
    /// Why it is not `up`; absent: it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_problem: Option<String>,
    /// The routing table of its routes; absent: the main one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<u64>,
    /// Networks behind this gateway.
    pub prefixes: Vec<String>,
    /// Of those, the ones whose hosts have other addresses themselves; absent: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub map: Vec<MappedNetwork>,
    /// Of those that entered, what is of its link alone and goes nowhere, by kind: packets to groups
    /// (`multicast`) and from or to `link_local` addresses. Linux sends some by itself.
    #[serde(default)]
    pub not_forwarded_packets: BTreeMap<String, u64>,
    /// Dropped before the queues or after the peer's hands, by cause.
    pub dropped_packets: BTreeMap<String, u64>,
    /// By peer.
    pub peers: Vec<TenantPeerSnapshot>,
}

/// A network that others reach by other addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MappedNetwork {
    /// As its hosts have it.
    pub local: String,
    /// As others reach it.
    pub network: String,
}

/// What has become of a tenant's device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum DeviceState {
    /// It serves the tenant.
    Up,
    /// It was set down.
    Down,
    /// It has another name; rules by its name do not find it.
    Renamed,
    /// It was taken away, and was not made again yet.
    Missing,
    /// A state of a newer gateway.
    #[default]
    #[serde(other)]
    Unknown,
}

/// A tenant towards one peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TenantPeerSnapshot {
    pub peer: String,
    /// Takes what no rule matches.
    pub app: String,
    /// Networks behind it.
    pub prefixes: Vec<String>,
    /// Networks that it leads to as well, while no peer with them in `prefixes` is up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backup_prefixes: Vec<String>,
    /// Its counters and gauges.
    #[serde(flatten)]
    pub stats: Stats<TenantPeerStats>,
    /// Dropped in the queues, by cause.
    pub dropped_packets: BTreeMap<String, u64>,
    /// Paths where something was sent.
    pub paths: Vec<TenantPathSnapshot>,
}

/// A tenant on one path to one peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TenantPathSnapshot {
    pub path: String,
    /// Its counters and gauges.
    #[serde(flatten)]
    pub stats: Stats<TenantPathStats>,
}
