//! What is active, in numbers, for `status`, `show`, metrics and tests.

use std::{collections::BTreeMap, net::SocketAddr};

use keiro_model::{
    aggregation::{
        Cause, ControllerKind, Decision, DeliveryCounts, Parameters, TooNarrow, spacing::Estimate,
    },
    bottleneck::Found,
    workload::Workload,
};
use keiro_planner::steer::{PathObservation, PathSample};
use keiro_stats::PathStats;
use keiro_units::{Bandwidth, Instant, Probability};

use crate::{
    config::{AggregationMode, CopySpread, Redundancy},
    id::{AppId, PathId, PeerId},
    wire::Features,
};

/// The endpoint as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointSnapshot {
    /// Datagrams that were ignored before a session was found for them.
    pub drops: DropCounters,
    /// Handshakes answered with a cookie because of load.
    pub cookies_sent: u64,
    /// Handshakes of another protocol version that were answered with the versions spoken here.
    pub version_replies_sent: u64,
    /// Handshake messages that were authentic and accepted.
    pub handshakes: u64,
}

/// One peer in numbers.
#[allow(missing_docs, reason = "some fields say it with their names")]
#[derive(Clone, Debug)]
pub struct SessionSnapshot {
    pub peer: PeerId,
    /// Keys are agreed and a path is up.
    pub up: bool,
    /// Its first path has come up of late, and others are still waited for.
    pub settling: bool,
    /// When the present key was agreed; `None` before the first.
    pub key_since: Option<Instant>,
    /// Keys agreed so far.
    pub key_changes: u64,
    /// The optional parts of the protocol that both sides understand; `None` before the first key.
    pub features: Option<Features>,
    /// Datagrams with this peer's index that were ignored.
    pub drops: DropCounters,
    /// Streams open, opened by either side.
    pub streams: usize,
    /// Bytes of streams that wait or are not acknowledged.
    pub streams_queued_bytes: u64,
    /// Bytes of streams that were received and not taken by the driver.
    pub streams_kept_bytes: u64,
    /// Messages waiting or unacknowledged.
    pub messages_queued: usize,
    /// Bytes of these messages.
    pub messages_queued_bytes: u64,
    /// Bytes of messages from the peer that are incomplete or not yet finished.
    pub reassembly_bytes: u64,
    /// Its paths, by id.
    pub paths: Vec<PathSnapshot>,
    /// Its applications, by id.
    pub apps: Vec<AppSnapshot>,
}

/// State of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathState {
    /// Not yet answered a challenge, or its address is not known.
    Validating,
    /// Validated, and used for data.
    Up,
    /// Went silent; probed until it answers.
    Down,
}

/// The aggregates of one path, from us to the peer.
#[derive(Clone, Debug)]
pub struct AggregationSnapshot {
    /// The rule by which aggregates leave.
    pub mode: AggregationMode,
    /// What adapts S, I and N.
    pub controller: ControllerKind,
    /// Where and when the copies of one leave.
    pub spread: CopySpread,
    /// S, I and N in force.
    pub parameters: Parameters,
    /// Nothing is gathered by the clock: the path carries no combination.
    pub too_narrow: Option<TooNarrow>,
    /// Why the parameters are what they are; `None`: nothing was decided yet.
    pub cause: Option<Cause>,
    /// What the controller decided, by the name of the cause; those that changed nothing are among them.
    pub decisions: BTreeMap<&'static str, u64>,
    /// The last decision that changed something; `None`: there was none.
    pub last_change: Option<(Instant, Decision)>,
    /// Sent and lost after redundancy, from the peer's feedback.
    pub aggregates: DeliveryCounts,
    /// Sent and lost one by one, parity packets among them.
    pub copies: DeliveryCounts,
    /// Copies, and parity packets, that were not sent: the path that they were to take was gone, had
    /// no room for so much, or for packets so long.
    pub copies_left_out: u64,
    /// What is sent besides each aggregate.
    pub redundancy: Redundancy,
    /// Packets that the peer's socket dropped because it was full.
    pub socket_overflows: u64,
    /// Packets that the peer's system dropped in receiving.
    pub system_overflows: u64,
    /// Bandwidth measured from the spacing of copies, or from trains.
    pub bandwidth: Option<Estimate>,
}

/// One path to one peer.
#[allow(missing_docs, reason = "some fields say it with their names")]
#[derive(Clone, Debug)]
pub struct PathSnapshot {
    pub id: PathId,
    /// Whether it may carry traffic.
    pub state: PathState,
    /// Where packets are sent; `None`: not known yet.
    pub remote: Option<SocketAddr>,
    /// Its counters and gauges.
    pub stats: PathStats,
    /// Bottleneck rate by packet trains; `None`: not known.
    pub capacity: Option<Found>,
    /// How small packets are aggregated; `None`: they are not.
    pub aggregation: Option<AggregationSnapshot>,
    /// How many packets `stats.loss` is of.
    pub loss_packets: u64,
    /// All of the lost ones were lost within some tenths of a second.
    pub loss_is_burst: bool,
}

/// One application of one peer.
#[allow(missing_docs, reason = "some fields say it with their names")]
#[derive(Clone, Debug)]
pub struct AppSnapshot {
    pub id: AppId,
    /// The path that its traffic takes now; `None` if none is up.
    pub path: Option<PathId>,
    /// Messages or datagrams accepted for sending.
    pub sent: u64,
    /// Bytes accepted for sending, those of streams included.
    pub sent_bytes: u64,
    /// Messages that the peer took over.
    pub delivered: u64,
    /// Of these, later than the latency target (made to acknowledged).
    pub late: u64,
    /// Messages given up at the end of their lifetime.
    pub expired: u64,
    /// Messages that the peer refused.
    pub refused: u64,
    /// Datagrams dropped here because the queue was full.
    pub dropped: u64,
    /// Messages or datagrams received.
    pub received: u64,
    /// Bytes received, those of streams included.
    pub received_bytes: u64,
    /// What is sent, measured; `None` before the second message or datagram.
    pub workload: Option<Workload>,
}

keiro_stats::reasons! {
    /// Datagrams ignored, by reason.
    pub struct DropCounters {
        /// Shorter than its kind's header, or cut off.
        truncated,
        /// A first byte that names no packet kind.
        unknown_kind,
        /// No session has this receiver index.
        unknown_index,
        /// Not sealed with the key that it claims, or altered on the way.
        unauthentic,
        /// Received before, or older than the replay window.
        replayed,
        /// Authentic, but its frames cannot be parsed.
        malformed,
        /// A handshake of a key that is no peer here.
        foreign_key,
        /// A handshake whose first MAC is wrong.
        bad_mac,
        /// A handshake that is not newer than the last one.
        stale_handshake,
        /// A handshake of another protocol version, or the answer to one of ours by a gateway that
        /// does not speak our version.
        version,
        /// A handshake that came too often from its address.
        rate_limited,
        /// Part of a message or stream beyond what was granted; or a reset that was not sent,
        /// because the peer opens streams faster than it reads.
        over_credit,
        /// An IP packet of a tenant that is not configured here.
        unknown_tenant,
    }
}

impl PathSnapshot {
    /// What to plan with: the part of its capacity that other traffic leaves, at most the configured
    /// rate; half of its recent shortest round trip; its recent loss, unless that was one short burst.
    /// `None`: it is not up, or nothing was measured yet.
    pub fn sample(&self) -> Option<PathSample> {
        let stats = &self.stats;
        let round_trip = stats.base_rtt.or(stats.min_rtt)?;
        let capacity = self.capacity.map(|found| found.capacity.rate);
        let others = stats.cross_traffic.unwrap_or(Bandwidth::ZERO);
        let rate = stats.configured_rate;
        let usable = capacity.map_or(rate, |capacity| capacity.saturating_sub(others));
        (self.state == PathState::Up).then(|| PathSample {
            bandwidth: usable.min(rate),
            delay: round_trip / 2,
            loss: match self.loss_is_burst {
                true => Probability::ZERO,
                false => stats.loss.unwrap_or(Probability::ZERO),
            },
        })
    }

    /// What the plan loop sees of it now.
    pub fn observation(&self) -> PathObservation {
        PathObservation {
            deaths: self.stats.outages,
            sample: self.sample(),
            is_measured: self.capacity.is_some(),
        }
    }
}
