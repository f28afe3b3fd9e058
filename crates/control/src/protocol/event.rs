//! Events of `monitor`: one event, one line, with the reason in numbers.

use std::fmt;

use super::Timestamp;
use serde::{Deserialize, Serialize};

use crate::config::{Class, ConfigDiff};

/// One of two gateways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// This gateway.
    Us,
    /// The peer.
    Peer,
}

/// Something that happened: `{"time": "...", "event": "path_down", "path": "path1", ...}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Event {
    pub time: Timestamp,
    #[serde(flatten)]
    pub kind: EventKind,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// The gateway serves.
    Started { version: String },
    /// The gateway takes nothing new and stops when what it has is delivered.
    Draining {
        /// Messages that still wait.
        waiting_messages: u64,
    },
    /// A session with a peer began.
    PeerUp {
        peer: String,
        /// The path of the handshake.
        path: String,
    },
    /// A session with a peer ended.
    PeerDown { peer: String, reason: DownReason },
    /// A handshake failed because the other gateway speaks other versions of the wire protocol. At
    /// most once a minute and peer. It is not authenticated.
    VersionMismatch {
        /// The peer's name; absent: the sender is at the address of no peer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peer: Option<String>,
        /// The other gateway's address.
        remote: String,
        /// What the other gateway speaks.
        peer_versions: VersionRange,
        /// What this gateway speaks.
        our_versions: VersionRange,
    },
    /// A peer's handshakes are refused, because its clock has gone back since earlier ones. At most once a minute and
    /// peer. A host on the path that replays an old handshake causes it, too.
    ClockBehind {
        peer: String,
        /// The sender's address.
        remote: String,
        /// How far the time of its handshake is behind this gateway's clock.
        behind_seconds: f64,
    },
    /// Two gateways that run use the private key of a peer. At most once a minute and peer.
    DuplicateKey {
        peer: String,
        /// The address of the one that is served: the older.
        served: String,
        /// The address of the other one.
        other: String,
    },
    /// A handshake failed because of a key. At most once a minute for each peer and fault, and once a minute for
    /// all senders that are at no peer's address. It is not authenticated.
    WrongKey {
        /// The peer's name; absent: the sender is at the address of no peer, or of several.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peer: Option<String>,
        /// The sender's address.
        remote: String,
        /// It is the address of a peer, or of several.
        #[serde(default)]
        at_peer_address: bool,
        /// What is wrong.
        fault: KeyFault,
        /// The sender's public key; absent: it is not known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        public_key: Option<String>,
    },
    /// A peer does not answer handshakes: after some seconds, and then at doubling counts.
    HandshakeUnanswered {
        peer: String,
        /// The addresses to which they are sent.
        remotes: Vec<String>,
        /// How many in a row had no answer.
        sent_initiations: u64,
        /// Since when the peer has not been up.
        unanswered_seconds: f64,
    },
    /// Nothing that is sent on a path is answered. Once each time.
    PathUnanswered {
        #[serde(flatten)]
        on: PathRef,
        /// The peer's address; absent: not known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        remote: Option<String>,
        /// Packets that were sent since the path was last up.
        sent_packets: u64,
        /// Authentic packets of the peer that have come since and answer none of them.
        received_packets: u64,
        /// Since when nothing has been answered.
        unanswered_seconds: f64,
        /// The peer's packets arrive here, and ours do not reach it.
        one_way: bool,
    },
    /// The peer serves another gateway that uses this gateway's private key. At most once a minute and
    /// peer.
    KeyRefused { peer: String },
    /// An application whose data one gateway sends is not configured at the other, or with another
    /// class. At most once a minute and application.
    AppMismatch {
        peer: String,
        /// Its name; absent: no application of this name is configured here.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        app: Option<String>,
        /// The class of what was sent.
        class: Class,
        /// Who does not take it.
        seen_by: Side,
        /// The peer of the application of this name here; absent: there is none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        configured_peer: Option<String>,
        /// Its class here; absent: there is none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        configured_class: Option<Class>,
    },
    /// A path carries traffic.
    PathUp {
        #[serde(flatten)]
        on: PathRef,
        remote: String,
        /// Round-trip time of the challenge that was answered.
        rtt_seconds: f64,
    },
    /// A path carries nothing any more.
    PathDown {
        #[serde(flatten)]
        on: PathRef,
        reason: DownReason,
        /// How long nothing was heard although something was due.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        silent_seconds: Option<f64>,
        /// How long that is tolerated.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit_seconds: Option<f64>,
    },
    /// A peer's address changed, and a challenge was answered there.
    RemoteChanged {
        #[serde(flatten)]
        on: PathRef,
        from: String,
        to: String,
    },
    /// A path leaves from another local address, or from none.
    LocalChanged {
        path: String,
        /// The address before; absent: it had none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<String>,
        /// The address now; absent: it has none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<String>,
        /// What is missing at this machine, and what to try; absent: nothing is known to be.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        problem: Option<String>,
    },
    /// The largest IP packet that passes changed.
    MtuChanged {
        #[serde(flatten)]
        on: PathRef,
        from_bytes: u64,
        to_bytes: u64,
    },
    /// A session's keys changed.
    KeyChanged {
        peer: String,
        /// How often so far.
        key_changes: u64,
    },
    /// The controller of a path's aggregates changed their size, interval or number of copies.
    AggregationChanged {
        /// The path, from here to the peer.
        #[serde(flatten)]
        on: PathRef,
        /// What was in force.
        before: AggregationParameters,
        after: AggregationParameters,
        /// Why, in numbers.
        why: String,
    },
    /// Nothing is gathered by the clock for now, since the path carries no combination of size,
    /// interval and copies: what is thin passes as it is.
    AggregationPaused {
        /// The path, from here to the peer.
        #[serde(flatten)]
        on: PathRef,
        /// What it carries.
        bandwidth_bits_per_second: u64,
        /// What the smallest combination needs.
        needed_bits_per_second: u64,
        /// Why, in numbers.
        why: String,
    },
    /// The path carries a combination again, and thin traffic is gathered.
    AggregationResumed {
        /// The path, from here to the peer.
        #[serde(flatten)]
        on: PathRef,
        /// What it carries.
        bandwidth_bits_per_second: u64,
        /// With what it begins.
        after: AggregationParameters,
    },
    /// An application moved to another path.
    AppMoved {
        app: String,
        /// The path before; absent: none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<String>,
        /// The path now; absent: none, messages wait.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<String>,
        reason: MoveReason,
        /// Mean delay on the path before by [path-selection eq. 3], which knows no headers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from_predicted_seconds: Option<f64>,
        /// The same on the path now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to_predicted_seconds: Option<f64>,
        /// Target delay.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        latency_target_seconds: Option<f64>,
    },
    /// An application misses its latency target.
    TargetMissed {
        app: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        path: Option<String>,
        /// Target delay.
        latency_target_seconds: f64,
        /// What says so; a measured one counts before a predicted one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        judged_by: Option<JudgedBy>,
        /// Predicted mean delay; absent: the forecast has no number.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        predicted_seconds: Option<f64>,
        /// Predicted delay, 99 of 100 messages.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        predicted_p99_seconds: Option<f64>,
        /// Mean delay by [path-selection eq. 3]; absent: more arrives than the path carries.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        paper_delay_seconds: Option<f64>,
        /// Measured delay, 99 of 100 messages.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        p99_seconds: Option<f64>,
    },
    /// An application has met its latency target again for a while.
    TargetMet {
        app: String,
        /// Target delay.
        latency_target_seconds: f64,
        /// What says so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        judged_by: Option<JudgedBy>,
    },
    /// A message was given up at the end of its lifetime.
    MessageExpired {
        app: String,
        /// How old it was.
        age_seconds: f64,
        length_bytes: u64,
        /// Messages of this application given up so far.
        expired_messages: u64,
    },
    /// A new configuration is in force.
    Reloaded { changes: Box<ConfigDiff> },
    /// A new configuration was refused; the old one stays.
    ConfigRejected {
        /// How many problems it has.
        problems: u64,
        /// The first of them.
        first: String,
    },
    /// A tenant's device was taken away, to another namespace perhaps, or does not work any more; it is made
    /// again.
    DeviceLost {
        tenant: String,
        device: String,
        reason: String,
    },
    /// A peer sends packets of a tenant that is not configured here; they are dropped. Sent once, and
    /// again after a minute without.
    TenantUnknown {
        peer: String,
        /// The tenant's number on the wire.
        id: u64,
    },
    /// A peer drops packets of a tenant, since it does not have one of that number. Sent once likewise.
    TenantRefused {
        tenant: String,
        /// Its number on the wire.
        id: u64,
        peer: String,
    },
    /// `fairness.unit` is more than twice, or less than half, of what a weight of 1 can get on a path. At most once
    /// in ten minutes for each peer.
    UnitContradicted {
        tenant: String,
        peer: String,
        path: String,
        /// What is written, bit/s.
        configured_bits_per_second: u64,
        /// What was found, bit/s.
        found_bits_per_second: u64,
    },
    /// Packets of a tenant were dropped, since an address of theirs is in none of the prefixes where it should
    /// be. At most once a minute for each tenant, peer and kind of address.
    PrefixMismatch {
        tenant: String,
        /// The peer that sent them, or that reports that it drops them; absent: they came from the tenant's
        /// device.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peer: Option<String>,
        /// Who sent them.
        from: Side,
        /// Which address it is.
        field: AddressField,
        /// The address of the latest of them.
        address: String,
        /// How many since the last event.
        dropped_packets: u64,
    },
    /// A prefix of the network is not routed into the tunnel, since this machine needs addresses of it.
    PrefixWithheld {
        tenant: String,
        prefix: String,
        /// Behind which gateway it is, as in "site `kobe`" or "the hub".
        owner: String,
        /// What of this machine has the addresses.
        reason: String,
    },
    /// A prefix that was not routed is routed: the conflict has ended.
    PrefixRouted {
        tenant: String,
        prefix: String,
        /// As in [`EventKind::PrefixWithheld`].
        owner: String,
    },
    /// A tenant's device is there again.
    DeviceRestored {
        tenant: String,
        device: String,
        /// For how long it was not.
        lost_seconds: f64,
    },
    /// A tenant's device is there and does not serve it: it was set down or renamed. Keiro
    /// does not undo that.
    DeviceDown {
        tenant: String,
        /// The device's name in the configuration.
        device: String,
        /// What has become of it.
        reason: String,
    },
    /// A tenant's device serves it again.
    DeviceUp {
        tenant: String,
        device: String,
        /// For how long it did not.
        down_seconds: f64,
    },
    /// The plan store does not answer; the last plan stays in force.
    StoreLost { reason: String },
    /// The plan store answers again.
    StoreConnected {
        /// For how long it did not.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lost_seconds: Option<f64>,
    },
    /// Four fifths of an uplink's budget of the month are used up.
    BudgetWarning {
        path: String,
        /// Bytes of IP packets in both directions.
        used_bytes: u64,
        budget_bytes: u64,
        /// The day on which the next month begins, UTC.
        ends: String,
    },
    /// The budget is used up: the uplink carries only keepalives, and essential applications that have no other path.
    BudgetSpent {
        path: String,
        used_bytes: u64,
        budget_bytes: u64,
        /// The day on which the next month begins, UTC.
        ends: String,
    },
    /// A month has begun, after one of these.
    BudgetRenewed { path: String, budget_bytes: u64 },
    /// Something in the plan store cannot be used.
    StoreNotice {
        /// What, and what became of it.
        text: String,
    },
    /// A gateway has joined the network of this hub, or has asked again for the answer to that.
    SiteJoined {
        site: String,
        /// The name of its invitation; absent: it has joined before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        invitation: Option<String>,
        /// Its address, as it is seen here; absent: not known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        remote: Option<String>,
        /// Its public key.
        public_key: String,
        /// The networks behind it.
        prefixes: Vec<String>,
    },
    /// A peer has another name, and its session goes on.
    PeerRenamed {
        peer: String,
        /// Its name before.
        before: String,
    },
    /// A gateway with an invitation was not taken into the network of this hub.
    JoinRefused {
        /// `invitation@` and the name of the invitation.
        peer: String,
        /// Its address, as it is seen here; absent: not known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        remote: Option<String>,
        /// Why, for programs: `expired`, `used`, `revoked`, `name_taken`, `prefix`, `key_taken`, `unavailable` or
        /// `malformed`.
        reason: String,
        /// Why, for people.
        text: String,
    },
    /// This client was too slow: events are missing here.
    EventsLost { count: u64 },
    /// An event of a newer gateway.
    #[serde(other)]
    Unknown,
}

/// One of the two addresses of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AddressField {
    Source,
    Destination,
    /// One of a newer gateway.
    #[serde(other)]
    Unknown,
}

/// What is wrong with the key of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum KeyFault {
    /// It was made for the public key of another gateway than this one.
    NotOurs,
    /// It was made with a key that no peer has.
    NotOfPeer,
    /// The peer's answer was made with another preshared key.
    Preshared,
    /// A fault of a newer gateway.
    #[serde(other)]
    Unknown,
}

/// Versions of the wire protocol, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct VersionRange {
    /// The oldest of them.
    pub oldest: u8,
    /// The newest of them.
    pub newest: u8,
}

/// `2`, or `2 to 4`.
impl fmt::Display for VersionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { oldest, newest } = self;
        match oldest == newest {
            true => write!(f, "{newest}"),
            false => write!(f, "{oldest} to {newest}"),
        }
    }
}

/// A path to a peer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PathRef {
    pub path: String,
    pub peer: String,
}

/// Why a path or a peer went down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum DownReason {
    /// Nothing was heard for too long.
    Silent,
    /// The system cannot send on it: address or route is gone.
    LocalError,
    /// The peer says so.
    PeerClosed,
    /// The configuration does not have it any more.
    Removed,
    /// No challenge was answered.
    NotValidated,
    /// Short packets are answered and long ones are not.
    TooSmall,
    /// The keys are too old and no handshake succeeded.
    KeysExpired,
    /// This gateway stops.
    Stopping,
    /// A reason of a newer gateway.
    #[serde(other)]
    Unknown,
}

/// Why an application moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum MoveReason {
    /// It had no path yet.
    First,
    /// Its path went down.
    PathDown,
    /// A path came back.
    PathUp,
    /// The plan is better so.
    Plan,
    /// The configuration pins it.
    Pin,
    /// An `assign` request.
    Operator,
    /// A reason of a newer gateway.
    #[serde(other)]
    Unknown,
}

/// Size, interval and copies of aggregates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AggregationParameters {
    /// S: most IP bytes in an interval, one copy counted.
    pub size_bytes: u64,
    /// I.
    pub interval_seconds: f64,
    /// N: how often each is sent.
    pub copies: u64,
}

/// What says whether a latency target is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum JudgedBy {
    /// Measured delays: their mean in a plan, elsewhere their 99th percentile.
    Measurement,
    /// The same by the model of the scheduler in use.
    Forecast,
    /// The mean by [path-selection eq. 3], for want of a forecast.
    Equation3,
    /// Something of a newer gateway.
    #[serde(other)]
    Unknown,
}

impl EventKind {
    /// The names of all events of this version.
    pub const NAMES: [&'static str; 47] = [
        "started",
        "draining",
        "peer_up",
        "peer_down",
        "version_mismatch",
        "clock_behind",
        "duplicate_key",
        "app_mismatch",
        "key_refused",
        "wrong_key",
        "handshake_unanswered",
        "path_unanswered",
        "path_up",
        "path_down",
        "remote_changed",
        "local_changed",
        "mtu_changed",
        "key_changed",
        "aggregation_changed",
        "aggregation_paused",
        "aggregation_resumed",
        "app_moved",
        "target_missed",
        "target_met",
        "message_expired",
        "reloaded",
        "config_rejected",
        "tenant_unknown",
        "unit_contradicted",
        "tenant_refused",
        "prefix_mismatch",
        "prefix_withheld",
        "prefix_routed",
        "device_lost",
        "device_restored",
        "device_down",
        "device_up",
        "store_lost",
        "store_connected",
        "store_notice",
        "budget_warning",
        "budget_spent",
        "budget_renewed",
        "peer_renamed",
        "site_joined",
        "join_refused",
        "events_lost",
    ];

    /// The event's name as in its `event` field.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Started { .. } => "started",
            Self::Draining { .. } => "draining",
            Self::PeerUp { .. } => "peer_up",
            Self::PeerDown { .. } => "peer_down",
            Self::VersionMismatch { .. } => "version_mismatch",
            Self::ClockBehind { .. } => "clock_behind",
            Self::DuplicateKey { .. } => "duplicate_key",
            Self::AppMismatch { .. } => "app_mismatch",
            Self::KeyRefused { .. } => "key_refused",
            Self::WrongKey { .. } => "wrong_key",
            Self::HandshakeUnanswered { .. } => "handshake_unanswered",
            Self::PathUnanswered { .. } => "path_unanswered",
            Self::PathUp { .. } => "path_up",
            Self::PathDown { .. } => "path_down",
            Self::RemoteChanged { .. } => "remote_changed",
            Self::LocalChanged { .. } => "local_changed",
            Self::MtuChanged { .. } => "mtu_changed",
            Self::KeyChanged { .. } => "key_changed",
            Self::AggregationChanged { .. } => "aggregation_changed",
            Self::AggregationPaused { .. } => "aggregation_paused",
            Self::AggregationResumed { .. } => "aggregation_resumed",
            Self::AppMoved { .. } => "app_moved",
            Self::TargetMissed { .. } => "target_missed",
            Self::TargetMet { .. } => "target_met",
            Self::MessageExpired { .. } => "message_expired",
            Self::Reloaded { .. } => "reloaded",
            Self::ConfigRejected { .. } => "config_rejected",
            Self::TenantUnknown { .. } => "tenant_unknown",
            Self::TenantRefused { .. } => "tenant_refused",
            Self::UnitContradicted { .. } => "unit_contradicted",
            Self::PrefixMismatch { .. } => "prefix_mismatch",
            Self::PrefixWithheld { .. } => "prefix_withheld",
            Self::PrefixRouted { .. } => "prefix_routed",
            Self::DeviceLost { .. } => "device_lost",
            Self::DeviceRestored { .. } => "device_restored",
            Self::DeviceDown { .. } => "device_down",
            Self::DeviceUp { .. } => "device_up",
            Self::StoreLost { .. } => "store_lost",
            Self::StoreConnected { .. } => "store_connected",
            Self::StoreNotice { .. } => "store_notice",
            Self::BudgetWarning { .. } => "budget_warning",
            Self::BudgetSpent { .. } => "budget_spent",
            Self::BudgetRenewed { .. } => "budget_renewed",
            Self::SiteJoined { .. } => "site_joined",
            Self::PeerRenamed { .. } => "peer_renamed",
            Self::JoinRefused { .. } => "join_refused",
            Self::EventsLost { .. } => "events_lost",
            Self::Unknown => "unknown",
        }
    }
}
