//! Tenants as `show tenant` tells them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A tenant as this gateway sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TenantSnapshot {
    /// Its name.
    pub name: String,
    /// Its number on the wire.
    pub id: u64,
    /// Its share in proportion to other tenants.
    pub weight: f64,
    /// Its weight among those of all tenants of this gateway.
    pub share_ratio: f64,
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
    /// Longest IP packet of the device.
    pub mtu_bytes: u64,
    /// The routing table of its routes; absent: the main one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<u64>,
    /// Networks behind this gateway.
    pub prefixes: Vec<String>,
    /// Packets that the kernel gave.
    pub entered_packets: u64,
    /// Their bytes.
    pub entered_bytes: u64,
    /// Packets that the kernel took; large ones count once.
    pub left_packets: u64,
    /// Their bytes.
    pub left_bytes: u64,
    /// Of those that entered, what is of its link alone and goes nowhere, by kind: packets to groups
    /// (`multicast`) and from or to `link_local` addresses. Linux sends some by itself.
    #[serde(default)]
    pub not_forwarded_packets: BTreeMap<String, u64>,
    /// Dropped before the queues or after the peer's hands, by cause.
    pub dropped_packets: BTreeMap<String, u64>,
    /// ICMP messages to senders: too big, hop limit, no route.
    pub answer_packets: u64,
    /// Those not sent, because there were too many.
    pub withheld_answer_packets: u64,
    /// By peer.
    pub peers: Vec<TenantPeerSnapshot>,
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
    /// The peer's name.
    pub peer: String,
    /// Takes what no rule matches.
    pub app: String,
    /// Networks behind it.
    pub prefixes: Vec<String>,
    /// IP packets taken over to be sent.
    pub accepted_packets: u64,
    /// Their bytes.
    pub accepted_bytes: u64,
    /// IP packets of the peer.
    pub received_packets: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Bytes that wait.
    pub queued_bytes: u64,
    /// Marked instead of dropped because they waited long.
    pub marked_packets: u64,
    /// Dropped in the queues, by cause.
    pub dropped_packets: BTreeMap<String, u64>,
    /// Paths where something was sent.
    pub paths: Vec<TenantPathSnapshot>,
}

/// A tenant on one path to one peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TenantPathSnapshot {
    /// The path's name.
    pub path: String,
    /// Wire bytes that may be on the way; absent: no controller bounds them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_bytes: Option<u64>,
    /// The same in packets of the size that the tenant sends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_packets: Option<u64>,
    /// What its controller lets leave; absent: the window alone decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bits_per_second: Option<u64>,
    /// Wire bytes sent and neither acknowledged nor lost.
    pub in_flight_bytes: u64,
    /// Wire packets sent.
    pub sent_packets: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Of them, lost.
    pub lost_packets: u64,
    /// Lost, of those whose fate is known; absent: of none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_ratio: Option<f64>,
    /// Arrived with a congestion mark.
    pub marked_packets: u64,
    /// Smoothed round trip of its packets; absent before the first sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip_seconds: Option<f64>,
    /// Acknowledged in the last second.
    pub acked_bits_per_second: u64,
    /// Bytes of IP packets that wait.
    pub queued_bytes: u64,
}
