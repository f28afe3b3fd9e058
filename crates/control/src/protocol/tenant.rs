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
    /// It leads other sites to the Internet; absent: it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<ExitSnapshot>,
    /// Its packets to the Internet leave by another gateway; absent: by this machine's own routes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub internet: Option<InternetSnapshot>,
    /// Its TCP connections are carried as streams.
    #[serde(default)]
    pub splits_tcp: bool,
    /// Why they are carried as IP packets although they are to be split; absent: they are split, or not to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split_problem: Option<String>,
    /// Of those that were to be split, what was carried as IP packets, by reason; empty: they are not to be split.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub not_split_connections: BTreeMap<String, u64>,
    /// Of those that entered, what is of its link alone and goes nowhere, by kind: packets to groups
    /// (`multicast`) and from or to `link_local` addresses. Linux sends some by itself.
    #[serde(default)]
    pub not_forwarded_packets: BTreeMap<String, u64>,
    /// Dropped before the queues or after the peer's hands, by cause.
    pub dropped_packets: BTreeMap<String, u64>,
    /// By peer.
    pub peers: Vec<TenantPeerSnapshot>,
    /// What was sorted into built-in classes, or by names of rules; absent: nothing is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classes: Option<ClassesSnapshot>,
}

/// What was sorted into built-in classes and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ClassesSnapshot {
    /// By class and kind of evidence.
    pub sorted: Vec<SortedSnapshot>,
    /// TLS handshakes in several packets that were not read, because too many others were incomplete.
    #[serde(default)]
    pub unread_handshakes: u64,
    /// Flows with packets in the last minute that have carried most, at most 16; none unless the request names the
    /// tenant.
    pub flows: Vec<FlowSnapshot>,
}

/// What was sorted alike, in both directions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SortedSnapshot {
    /// Absent: no class, so that the application of the peer has carried it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// `none`, `common_port`, `dscp`, `dns`, `media`, `protocol`, `port`, `sni` or `volume`.
    pub by: String,
    pub flows: u64,
    pub carried_packets: u64,
    /// Of IP packets.
    pub carried_bytes: u64,
}

/// A flow in both directions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FlowSnapshot {
    /// Of its first packet.
    pub source: String,
    pub destination: String,
    /// The number of the protocol above IP.
    pub protocol: u8,
    /// Absent: the protocol has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_port: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination_port: Option<u16>,
    /// Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Why, in words.
    pub why: String,
    pub carried_packets: u64,
    pub carried_bytes: u64,
}

/// An exit to the Internet for other sites.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ExitSnapshot {
    /// The machine has a default route of IPv4.
    pub ipv4: bool,
    /// And of IPv6.
    pub ipv6: bool,
    /// Why it does not lead there; absent: it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Ports that lead to hosts of sites; absent: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub port_forwards: Vec<PortForwardSnapshot>,
}

/// A port of an exit that leads to a host of a site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PortForwardSnapshot {
    pub name: String,
    /// `tcp` or `udp`.
    pub protocol: String,
    /// Of the exit.
    pub port: u16,
    /// The host and its port.
    pub to: String,
}

/// Packets to the Internet that leave by another gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct InternetSnapshot {
    /// The peer that is to lead there.
    pub via: String,
    pub state: InternetState,
    /// The peer that does now; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<String>,
    /// Why no peer does; absent: one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Sources, as the hosts have them.
    pub from: Vec<String>,
    /// Destinations.
    pub to: Vec<String>,
}

/// What becomes of packets that are to leave by an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum InternetState {
    /// They leave by it.
    Exit,
    /// It is not reached, and they are dropped.
    Blocked,
    /// It is not reached, and they leave by this machine's own default route.
    Local,
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
