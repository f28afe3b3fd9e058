//! What is active, in numbers, for `status`, `show`, metrics and tests.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use keiro_model::{
    aggregation::{Cause, ControllerKind, Decision, Parameters, TooNarrow, spacing::Estimate},
    bottleneck::ConfirmedCapacity,
    loss_test::Outcomes,
    observation::{PathObservation, PathSample},
    path_rate::{RATE_ASSUMED, State},
    path_terms::PathTerms,
    workload::Workload,
};
pub use keiro_stats::DropCounters;
use keiro_stats::{AggregationStats, AppStats, HandshakeStats, PathStats, PeerStats};
use keiro_units::{Bandwidth, ByteCount, Instant, Probability};

use crate::{
    config::{AggregationMode, CopySpread, Redundancy},
    id::{AppId, PathId, PeerId},
    wire::Features,
};

/// The endpoint as a whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EndpointSnapshot {
    /// Datagrams that were ignored before a session was found for them.
    pub drops: DropCounters,
    /// Its counters of handshakes.
    pub stats: HandshakeStats,
}

/// One peer in numbers.
#[allow(missing_docs, reason = "some fields say it with their names")]
#[derive(Clone, Debug)]
pub struct SessionSnapshot {
    pub peer: PeerId,
    /// Keys are agreed and a path is up.
    pub up: bool,
    /// Its first path came up recently, and others are still waited for.
    pub settling: bool,
    /// When the present key was agreed; `None` before the first.
    pub key_since: Option<Instant>,
    /// The optional parts of the protocol that both sides understand; `None` before the first key.
    pub features: Option<Features>,
    /// Two gateways that were last seen to use this peer's key; `None`: there was only one.
    pub duplicate_key: Option<DuplicateKey>,
    /// Datagrams with this peer's index that were ignored.
    pub drops: DropCounters,
    /// Its counters and gauges, except `handshake_age` and `handshakes_started`.
    pub stats: PeerStats,
    /// Its paths, by id.
    pub paths: Vec<PathSnapshot>,
    /// Its applications, by id.
    pub apps: Vec<AppSnapshot>,
}

/// Two gateways that use one private key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DuplicateKey {
    /// The address of the one that is served.
    pub served: SocketAddr,
    /// The address of the other one.
    pub other: SocketAddr,
    /// When the other one was last refused, or replaced.
    pub seen_at: Instant,
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
    /// Its counters and gauges.
    pub stats: AggregationStats,
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
    /// What is sent besides each aggregate.
    pub redundancy: Redundancy,
    /// Bandwidth measured from the spacing of copies, or from trains.
    pub bandwidth: Option<Estimate>,
}

/// What was sent on a path that is not up, and what has come, since it was last up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unanswered {
    /// When the first of it was sent.
    pub since: Instant,
    /// Challenges and handshakes that were sent and that nothing has answered.
    pub sent_packets: u64,
    /// Authentic packets of the peer that came and answered none of them.
    pub received_packets: u64,
    /// When the last of these came; `None`: none has.
    pub heard_at: Option<Instant>,
}

/// What a path without a configured rate is sent at, and why.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateSnapshot {
    /// What limits the rate.
    pub state: State,
    /// What it carries, as far as is known.
    pub rate: Bandwidth,
    /// It carries `rate` at least: no queue and no loss has shown more yet.
    pub is_least: bool,
    /// IP bytes that may be in flight.
    pub window: ByteCount,
    /// How long the newest packets queued on the way.
    pub queue: Duration,
    /// How long they may.
    pub target_queue: Duration,
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
    /// It has never answered while another path of the same socket works: it is rarely challenged, and
    /// nothing is wrong.
    pub is_abandoned: bool,
    /// Its counters and gauges.
    pub stats: PathStats,
    /// It is not used, because it answers short packets and none of the least size, 576 bytes.
    pub is_too_small: bool,
    /// What both ends together may send a month to keep it alive and to measure it, by the less of their limits;
    /// `None`: no limit.
    pub probe_limit: Option<ByteCount>,
    /// On which terms the peer uses it.
    pub peer_terms: PathTerms,
    /// What nothing has answered; `None`: it is up, or nothing was sent yet.
    pub unanswered: Option<Unanswered>,
    /// Bottleneck rate by packet trains; `None`: not known.
    pub capacity: Option<ConfirmedCapacity>,
    /// How small packets are aggregated; `None`: they are not.
    pub aggregation: Option<AggregationSnapshot>,
    /// Packets that arrived and that were lost so far, but for those of outages.
    pub outcomes: Outcomes,
    /// At what rate it is sent on, and why; `None`: at the configured one.
    pub rate: Option<RateSnapshot>,
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
    /// Bytes that have left by each path, where the application is spread.
    pub spread_bytes: Vec<(PathId, u64)>,
    /// Its counters; the gauges are the driver's, except `waiting_messages`.
    pub stats: AppStats,
    /// What is sent, measured; `None` before the second message or datagram.
    pub workload: Option<Workload>,
}

impl RateSnapshot {
    /// What to plan with: `by_trains`, what trains measured less what others send, as long as nothing was
    /// sent that shows otherwise. Where neither shows anything, [`RATE_ASSUMED`].
    pub fn usable(&self, by_trains: Option<Bandwidth>) -> Bandwidth {
        let is_shown = !matches!(
            self.state,
            State::Startup | State::Growing | State::LimitedByApplication
        );
        let assumed = self.is_least.then_some(RATE_ASSUMED);
        match by_trains.or(assumed) {
            Some(presumed) if !is_shown => presumed.max(self.rate),
            _ => self.rate,
        }
    }

    /// What [`Self::usable`] says without trains is assumed, and nothing has shown it.
    pub fn is_assumed(&self) -> bool {
        self.is_least && self.rate < RATE_ASSUMED
    }
}

impl PathSnapshot {
    /// What to plan with: the part of its capacity that other traffic leaves, at most the configured
    /// rate, or what it was found to carry; half of its recent shortest round trip; its recent loss, unless that was one short burst.
    /// `None`: it is not up, or nothing was measured yet.
    pub fn sample(&self) -> Option<PathSample> {
        let stats = &self.stats;
        let round_trip = stats.base_rtt.or(stats.min_rtt)?;
        let capacity = self.capacity.map(|found| found.capacity.rate);
        let others = stats.cross_traffic.unwrap_or(Bandwidth::ZERO);
        let usable = capacity.map(|capacity| capacity.saturating_sub(others));
        let bandwidth = match self.rate {
            Some(found) => found.usable(usable),
            None => usable.into_iter().chain(stats.configured_rate).min()?,
        };
        (self.state == PathState::Up).then(|| PathSample {
            bandwidth,
            delay: round_trip / 2,
            loss: match self.loss_is_burst {
                true => Probability::ZERO,
                false => stats.loss.unwrap_or(Probability::ZERO),
            },
        })
    }

    /// [`Self::sample`] has an assumed bandwidth: nothing has shown what the path carries.
    pub fn rate_is_assumed(&self) -> bool {
        self.capacity.is_none() && self.rate.is_some_and(|rate| rate.is_assumed())
    }

    /// What the plan loop sees of it now.
    pub fn observation(&self) -> PathObservation {
        PathObservation {
            outages: self.stats.outages,
            sample: self.sample(),
            is_measured: self.capacity.is_some(),
            packets: self.outcomes,
            aggregates: self
                .aggregation
                .as_ref()
                .map_or_else(Outcomes::default, |of| {
                    let AggregationStats {
                        sent_aggregates: sent,
                        lost_aggregates: lost,
                        ..
                    } = of.stats;
                    Outcomes {
                        arrived: sent.saturating_sub(lost),
                        lost,
                    }
                }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(state: State, mbit: u64, is_least: bool) -> RateSnapshot {
        RateSnapshot {
            state,
            rate: Bandwidth::from_mbit_per_second(mbit),
            is_least,
            window: ByteCount::new(3000),
            queue: Duration::ZERO,
            target_queue: Duration::from_millis(14),
        }
    }

    #[test]
    fn a_path_is_planned_with_more_than_it_has_carried_until_it_shows_less() {
        let mbit = Bandwidth::from_mbit_per_second;
        let unused = found(State::LimitedByApplication, 1, true);
        assert_eq!(unused.usable(None), RATE_ASSUMED);
        assert!(unused.is_assumed());
        assert_eq!(unused.usable(Some(mbit(6))), mbit(6));
        let fast = found(State::Startup, 300, true);
        assert_eq!((fast.usable(None), fast.is_assumed()), (mbit(300), false));
        // A queue has shown that it carries no more.
        let idle = found(State::LimitedByApplication, 2, false);
        assert_eq!((idle.usable(None), idle.is_assumed()), (mbit(2), false));
        let steady = found(State::Steady, 2, false);
        assert_eq!(steady.usable(Some(mbit(50))), mbit(2));
    }
}
