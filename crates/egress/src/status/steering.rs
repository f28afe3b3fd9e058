//! What a server reports of its steering.

use ipnet::IpNet;
use keiro_stats_export::Stats;
use serde::{Deserialize, Serialize};

use crate::stats::SteeringStats;

/// Whether decisions take effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SteeringMode {
    /// Explores and reports what it would do.
    Observe,
    Steer,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SteeringMetric {
    RoundTrip,
    Retransmissions,
    Goodput,
}

/// Totals of steering.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SteeringStatus {
    pub mode: SteeringMode,
    #[serde(flatten)]
    pub stats: Stats<SteeringStats>,
    /// Some prefixes: those that are steered or would be, then those with most connections.
    pub shown: Vec<SteeredPrefix>,
}

/// The status of a client prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SteeredPrefix {
    pub prefix: IpNet,
    /// Connections that have ended since it is known.
    pub connections: u64,
    /// The egress peer of new connections; `None`: the best path.
    pub peer: Option<String>,
    /// For how long they have used it.
    pub since_seconds: u64,
    pub stage: SteeringStage,
    /// The peer that is tested, or waits for its move.
    pub candidate: Option<String>,
    /// The peer that is better and not used, with `mode = "observe"`.
    pub better: Option<String>,
    /// Peers that are not explored, because no connection by them has ended.
    pub silent: Vec<String>,
    /// Recent connections.
    pub measured: Vec<EgressMeasurement>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SteeringStage {
    /// Too few connections, or no peer announces the prefix.
    Unassigned,
    /// A small share of its connections uses other peers.
    Exploring,
    /// A larger share uses a peer that seems better.
    Testing,
    /// A peer is better; the limit of moves per minute delays the move.
    Waiting,
}

/// Recent connections of a prefix by one egress.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressMeasurement {
    /// `None`: the best path.
    pub peer: Option<String>,
    pub connections: u64,
    /// Geometric mean of the lowest round trips of connections; `None`: none was measured.
    pub rtt_micros: Option<u64>,
    /// Mean share of retransmitted segments, in ten-thousandths.
    pub retransmitted_permyriad: Option<u64>,
    /// Geometric mean of the goodput.
    pub bits_per_second: Option<u64>,
}

/// A decision about a client prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Steered {
    pub prefix: IpNet,
    /// The egress peer so far; `None`: the best path.
    pub from: Option<String>,
    pub to: Option<String>,
    /// New connections use it; otherwise `mode` is `"observe"`.
    pub in_force: bool,
    pub reason: SteeringReason,
    /// The gain on which the decision is based; `None`: on none.
    pub gain: Option<SteeringGain>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SteeringReason {
    /// The peer is better than the egress so far.
    Better,
    /// The peer is not better than the best path any more.
    NotBetter,
    /// The peer has not been shown to be better for `keep_for`.
    NoEvidence,
    /// The peer does not announce the prefix any more.
    Withdrawn,
    /// Connections by the best path end, and none by the peer.
    Silent,
    /// The prefix was dropped because of `prefixes_max`.
    Forgotten,
    /// Steering ended, or began anew with other peers.
    Ended,
}

/// How much better one egress is than another, in thousandths: of its round trip or goodput, or of
/// all segments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SteeringGain {
    pub metric: SteeringMetric,
    pub permille: i64,
    /// Bounds at the configured confidence.
    pub low_permille: i64,
    pub high_permille: i64,
    pub connections: u64,
    /// Connections of the other egress.
    pub compared_with: u64,
}
