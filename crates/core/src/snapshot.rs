//! What is active, in numbers, for `status`, `show`, metrics and tests.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use keiro_model::{
    aggregation::{
        Cause, ControllerKind, Decision, DeliveryCounts, Parameters, TooNarrow, spacing::Estimate,
    },
    bottleneck::Found,
    workload::Workload,
};
use keiro_planner::steer::{PathObservation, PathSample};
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
    /// Handshake messages accepted.
    pub handshakes: u64,
}

/// One peer.
#[derive(Clone, Debug)]
pub struct SessionSnapshot {
    /// Which.
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
    /// Their bytes.
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
    /// In use.
    Up,
    /// Went silent; probed until it answers.
    Down,
}

/// The aggregates of one path, from us to the peer.
#[derive(Clone, Debug)]
pub struct AggregationSnapshot {
    /// When aggregates leave.
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

/// Aggregates of the peer that arrived here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceivedAggregates {
    /// Aggregates of which something came, each counted once.
    pub aggregates: u64,
    /// Their packets: copies, and parity.
    pub copies: u64,
    /// Of the aggregates, those that parity gave back.
    pub recovered: u64,
}

/// One path to one peer.
#[derive(Clone, Debug)]
pub struct PathSnapshot {
    /// Which.
    pub id: PathId,
    /// Its state.
    pub state: PathState,
    /// How often it has died: went silent while it was up.
    pub deaths: u64,
    /// Where it leads, if known.
    pub remote: Option<SocketAddr>,
    /// The rate it is paced at, IP bytes.
    pub rate: Bandwidth,
    /// What the path carries, measured; `None`: not known.
    pub capacity: Option<Found>,
    /// Largest IP packet that is sent.
    pub mtu: u16,
    /// How thin traffic is gathered; `None`: it is not.
    pub aggregation: Option<AggregationSnapshot>,
    /// Smoothed round trip (RFC 9002 §5.3); `None` before the first sample.
    pub srtt: Option<Duration>,
    /// Its variation.
    pub rtt_var: Duration,
    /// Smallest round trip seen.
    pub rtt_min: Option<Duration>,
    /// Smallest round trip of late, without our own packets' time at the bottleneck (the
    /// packet's and that of those before it in its burst):
    /// follows the path's delay up (0.6 s for what no queue explains, else 10 s) and down
    /// (at once). A queue that never empties counts as delay. `None` before the first sample.
    pub base_rtt: Option<Duration>,
    /// Interarrival jitter (RFC 3550 §6.4.1) on the way to the peer, of the packets whose arrival it
    /// reports, each without its own transmission time; `None` before the second.
    pub jitter: Option<Duration>,
    /// Packets lost of those sent in the last second, or in as long as has 50 of them, a minute at
    /// most; those that were only late do not count. `None`: none was sent since the path came up.
    pub loss: Option<Probability>,
    /// How many packets `loss` is of.
    pub loss_packets: u64,
    /// All of these were lost within some tenths of a second.
    pub loss_is_burst: bool,
    /// What we sent in the last second, IP bytes.
    pub sent_rate: Bandwidth,
    /// What others send over the bottleneck on the way to the peer, of the last 5 s in our own bursts
    /// or else of 10 s of lone packets (see `keiro_model::capacity::cross`). `None`: not known, or
    /// not known any more.
    pub cross_rate: Option<Bandwidth>,
    /// What is left of the capacity: `capacity` less `sent_rate` less `cross_rate`, not below zero.
    /// What we may use is this and `sent_rate`. `None`: capacity or cross traffic is not known.
    pub available: Option<Bandwidth>,
    /// Latest one-way delay to the peer above the smallest seen.
    pub delay_variation: Option<Duration>,
    /// Its smoothed value.
    pub delay_variation_smoothed: Option<Duration>,
    /// Packets sent.
    pub packets_sent: u64,
    /// IP bytes sent.
    pub bytes_sent: u64,
    /// Packets that the peer acknowledged.
    pub packets_acked: u64,
    /// Packets declared lost.
    pub packets_lost: u64,
    /// Packets declared lost that were acknowledged later.
    pub packets_spurious: u64,
    /// IP bytes sent for measurement alone: padding, the marks in packets of trains, and pings
    /// beyond keep-alives.
    pub probe_bytes_sent: u64,
    /// Bytes of messages sent more than once.
    pub bytes_retransmitted: u64,
    /// Authenticated packets received.
    pub packets_received: u64,
    /// IP bytes received.
    pub bytes_received: u64,
    /// Aggregates received of the peer, each once, and copies of them; over the peer's path that
    /// ends at this one's socket.
    pub aggregates_received: ReceivedAggregates,
    /// Packets received with a congestion mark.
    pub ecn_ce_received: u64,
    /// IP bytes sent and neither acknowledged nor lost.
    pub bytes_in_flight: u64,
    /// Bytes of messages and datagrams that wait for this path.
    pub bytes_queued: u64,
}

/// One application of one peer.
#[derive(Clone, Debug)]
pub struct AppSnapshot {
    /// Which.
    pub id: AppId,
    /// The path that its traffic takes now; `None` if none is up.
    pub path: Option<PathId>,
    /// Messages or datagrams accepted for sending.
    pub sent: u64,
    /// Their bytes.
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
    /// Their bytes.
    pub received_bytes: u64,
    /// What is sent, measured; `None` before the second message or datagram.
    pub workload: Option<Workload>,
}

/// Datagrams ignored, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DropCounters {
    /// Shorter than its kind's header, or cut off.
    pub truncated: u64,
    /// A first byte that names no packet kind.
    pub unknown_kind: u64,
    /// No session has this receiver index.
    pub unknown_index: u64,
    /// Not sealed with the key that it claims, or altered on the way.
    pub unauthentic: u64,
    /// Received before, or older than the replay window.
    pub replayed: u64,
    /// Authentic, but its frames cannot be parsed.
    pub malformed: u64,
    /// A handshake of a key that is no peer here.
    pub foreign_key: u64,
    /// A handshake whose first MAC is wrong.
    pub bad_mac: u64,
    /// A handshake that is not newer than the last one.
    pub stale_handshake: u64,
    /// A handshake of another protocol version, or the answer to one of ours by a gateway that does
    /// not speak our version.
    pub version: u64,
    /// A handshake that came too often from its address.
    pub rate_limited: u64,
    /// Part of a message or stream beyond what was granted; or a reset that was not
    /// sent, because the peer opens streams faster than it reads.
    pub over_credit: u64,
    /// An IP packet of a tenant that is not configured here.
    pub unknown_tenant: u64,
}

impl DropCounters {
    /// Every counter with its name, in a fixed order.
    pub fn by_reason(&self) -> [(&'static str, u64); 13] {
        [
            ("truncated", self.truncated),
            ("unknown_kind", self.unknown_kind),
            ("unknown_index", self.unknown_index),
            ("unauthentic", self.unauthentic),
            ("replayed", self.replayed),
            ("malformed", self.malformed),
            ("foreign_key", self.foreign_key),
            ("bad_mac", self.bad_mac),
            ("stale_handshake", self.stale_handshake),
            ("version", self.version),
            ("rate_limited", self.rate_limited),
            ("over_credit", self.over_credit),
            ("unknown_tenant", self.unknown_tenant),
        ]
    }
}

impl ReceivedAggregates {
    /// Adds those of another path of the peer that ends at the same socket.
    pub(crate) fn add(&mut self, other: Self) {
        self.aggregates += other.aggregates;
        self.copies += other.copies;
        self.recovered += other.recovered;
    }
}

impl PathSnapshot {
    /// What to plan with: what others leave of its capacity, as far as the path's own rate goes;
    /// half of its recent shortest round trip; its recent loss, unless it was one short burst.
    /// `None`: it is not up, or nothing was measured yet.
    pub fn sample(&self) -> Option<PathSample> {
        let round_trip = self.base_rtt.or(self.rtt_min)?;
        let capacity = self.capacity.map(|found| found.capacity.rate);
        let others = self.cross_rate.unwrap_or(Bandwidth::ZERO);
        let usable = capacity.map_or(self.rate, |capacity| capacity.saturating_sub(others));
        (self.state == PathState::Up).then(|| PathSample {
            bandwidth: usable.min(self.rate),
            delay: round_trip / 2,
            loss: match self.loss_is_burst {
                true => Probability::ZERO,
                false => self.loss.unwrap_or(Probability::ZERO),
            },
        })
    }

    /// What the plan loop sees of it now.
    pub fn observation(&self) -> PathObservation {
        PathObservation {
            deaths: self.deaths,
            sample: self.sample(),
            is_measured: self.capacity.is_some(),
        }
    }
}
