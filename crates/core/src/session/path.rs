//! One path to one peer: is it usable, how long does it take, how fast may it be sent on.

use std::{collections::VecDeque, net::SocketAddr, time::Duration};

use keiro_model::{
    capacity::cross::{Arrival, CrossMeter},
    fairness::controller::RoundTrip,
};
use keiro_units::{Bandwidth, ByteCount, Instant, Probability};
use rand_chacha::ChaCha20Rng;
use rand_core::RngCore;

use super::{
    aggregation::Aggregator,
    copies::PendingCopy,
    estimates::{Base, Jitter, OwnQueue, Recent, SelfQueueing, Totals},
    mtu::MtuDiscovery,
    pacer::Pacer,
    recovery::{LargestAcked, SentPackets},
    rtt::{DelayVariation, RttEstimator},
    train::Trains,
};
use crate::{
    config::{AggregationConfig, PathConfig, TimingConfig},
    event::PathDownReason,
    id::{PathId, SocketId},
    snapshot::{PathSnapshot, PathState, ReceivedAggregates},
    wire::{DATA_HEADER_LEN, TAG_LEN},
};

/// A path is given up after this much silence beyond two round trips.
///
/// The last packet before the path died was answered a round trip later at most, so that death is
/// noticed within 3 RTT + 100 ms even if packets are an RTT and 20 ms apart.
const SILENCE_BEYOND_RTT: Duration = Duration::from_millis(80);
/// A line on which a full packet takes longer is not waited for.
const SERIALIZATION_MAX: Duration = Duration::from_secs(10);
/// Challenges that go unanswered before a path is called unreachable.
const CHALLENGES_BEFORE_DOWN: u32 = 3;
/// And so long at least is a path asked before it is called unreachable (ours): a near peer that has
/// just started, or whose processor is taken, answers in its own time.
const CHALLENGE_TIME_MIN: Duration = Duration::from_millis(300);
/// The first challenges are a round trip and so much apart.
const CHALLENGE_BEYOND_RTT: Duration = Duration::from_millis(20);
/// The longest that whoever prefers a path waits for its answer after another path's: two challenges to
/// a path of which nothing is known, an assumed round trip (RFC 9002 §6.2.2) and 20 ms apart. A third
/// would let the first message be later than a second if the path is dead.
pub(crate) const VALIDATION_TIME: Duration = Duration::from_millis(2 * (333 + 20));
/// Challenges remembered: 8 of them 0.5 s apart cover a round trip of 4 s.
const CHALLENGES_KEPT: usize = 8;
/// Answers to challenges that wait at most; more are not owed to anybody.
const RESPONSES_MAX: usize = 4;

/// Numbers that were used on a path: under the same keys none may be used twice.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UsedNumbers {
    pub(crate) packets: u64,
    pub(crate) aggregates: u64,
}

/// A path as we number it.
#[derive(Debug)]
pub(crate) struct Path {
    pub(crate) id: PathId,
    pub(crate) socket: SocketId,
    /// Where the configuration says that the peer is.
    configured_remote: Option<SocketAddr>,
    /// Where packets are sent to.
    pub(crate) remote: Option<SocketAddr>,
    pub(crate) state: PathState,
    /// It was told that it is down, and it has not been up or somewhere else since.
    down_reported: bool,
    /// Challenges that may still be answered, oldest first: a path may be slower than the
    /// interval at which they are repeated.
    challenges: VecDeque<Challenge>,
    /// Where the peer was seen, if not at `remote`.
    target: Option<SocketAddr>,
    /// Challenges in a row without an answer.
    attempts: u32,
    /// When the next challenge is due; `None`: none is needed.
    pub(crate) challenge_at: Option<Instant>,
    pub(crate) responses: VecDeque<(u64, SocketAddr)>,
    pub(crate) rtt: RttEstimator,
    pub(crate) delay: DelayVariation,
    /// Of round trips, without our own packets' time at the bottleneck.
    base: Base,
    /// Of the way there, by two clocks.
    base_transit: Base,
    own_queue: OwnQueue,
    /// The capacity with which its packets' time there is capacity_assumed, and since when.
    capacity_assumed: (Bandwidth, Instant),
    cross: CrossMeter,
    /// When something was last counted.
    seen_at: Instant,
    jitter: Jitter,
    recent: Recent,
    /// How often it died.
    deaths: u64,
    /// What the configuration allows.
    rate: Bandwidth,
    pub(crate) pacer: Pacer,
    pub(crate) sent: SentPackets,
    pub(crate) mtu: MtuDiscovery,
    pub(crate) trains: Trains,
    pub(crate) aggregator: Aggregator,
    /// Copies that are still to leave, in order.
    pub(super) copies: VecDeque<PendingCopy>,
    /// Something to ask for an acknowledgement with, if nothing else is there.
    pub(crate) ping_wanted: bool,
    /// Packets that may leave although the window of outstanding ones is full: probes.
    pub(crate) probe_credit: u32,
    pub(crate) last_sent_at: Instant,
    pub(crate) packets_sent: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_retransmitted: u64,
    pub(crate) packets_received: u64,
    pub(crate) bytes_received: u64,
    pub(crate) ecn_ce_received: u64,
    /// Smallest round trip of packets of almost full length: short ones take less time on a slow
    /// line, which would look like a queue of the long ones.
    pub(crate) round_trip_min_of_long: Option<Duration>,
    /// Packets of ours that arrived with a congestion mark, as the peer has told.
    pub(crate) ecn_ce_acked: u64,
}

/// Headers of IPv4 and UDP.
const IPV4_OVERHEAD: u16 = 28;
/// Headers of IPv6 and UDP.
pub(crate) const IPV6_OVERHEAD: u16 = 48;

/// Bytes of IP and UDP headers in front of a packet to `remote`.
pub(crate) fn ip_overhead(remote: SocketAddr) -> u16 {
    match remote {
        SocketAddr::V6(remote) if remote.ip().to_ipv4_mapped().is_none() => IPV6_OVERHEAD,
        _ => IPV4_OVERHEAD,
    }
}

fn bits(rate: Bandwidth) -> u64 {
    rate.as_bits_per_second()
}

#[derive(Clone, Copy, Debug)]
struct Challenge {
    token: u64,
    remote: SocketAddr,
    sent_at: Instant,
}

/// An answered challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validated {
    pub(crate) rtt: Duration,
    pub(crate) remote: SocketAddr,
    pub(crate) moved_from: Option<Option<SocketAddr>>,
    pub(crate) came_up: bool,
}

impl Path {
    /// `first`: the numbers below were used by a path of the same id before.
    pub(crate) fn new(
        config: &PathConfig,
        aggregation: &AggregationConfig,
        first: UsedNumbers,
    ) -> Self {
        Self {
            id: config.id,
            socket: config.socket,
            configured_remote: config.remote,
            remote: config.remote,
            state: PathState::Validating,
            down_reported: false,
            challenges: VecDeque::new(),
            target: None,
            attempts: 0,
            challenge_at: Some(Instant::ZERO),
            responses: VecDeque::new(),
            rtt: RttEstimator::default(),
            delay: DelayVariation::default(),
            base: Base::default(),
            base_transit: Base::default(),
            own_queue: OwnQueue::default(),
            capacity_assumed: (config.rate, Instant::ZERO),
            cross: CrossMeter::default(),
            seen_at: Instant::ZERO,
            jitter: Jitter::default(),
            recent: Recent::default(),
            deaths: 0,
            rate: config.rate,
            pacer: Pacer::new(config.rate),
            sent: SentPackets::starting_at(first.packets),
            aggregator: Aggregator::new(aggregation, config.rate, first.aggregates),
            copies: VecDeque::new(),
            mtu: MtuDiscovery::new(config.mtu_max),
            trains: Trains::default(),
            ping_wanted: false,
            probe_credit: 0,
            last_sent_at: Instant::ZERO,
            packets_sent: 0,
            bytes_sent: 0,
            bytes_retransmitted: 0,
            packets_received: 0,
            bytes_received: 0,
            ecn_ce_received: 0,
            round_trip_min_of_long: None,
            ecn_ce_acked: 0,
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.state == PathState::Up
    }

    /// Bytes of IP and UDP headers in front of our packets.
    pub(crate) fn ip_overhead(&self) -> u16 {
        self.remote.map_or(IPV4_OVERHEAD, ip_overhead)
    }

    /// Longest UDP payload of a packet.
    pub(crate) fn udp_payload_max(&self) -> usize {
        usize::from(self.mtu.current() - self.ip_overhead())
    }

    /// Applies a changed configuration. A new remote address is used at once and validated.
    pub(crate) fn reconfigure(&mut self, now: Instant, config: &PathConfig) {
        self.rate = config.rate;
        self.update_pacing_rate();
        self.mtu.set_max(config.mtu_max);
        if config.remote != self.configured_remote && config.remote.is_some() {
            self.configured_remote = config.remote;
            self.remote = config.remote;
            self.restart_validation(now);
            self.reset_estimates();
        }
    }

    /// The peer or the way to it is new: it has to answer before it is used.
    pub(crate) fn restart_validation(&mut self, now: Instant) {
        if self.is_up() {
            self.freeze_estimates(now);
        }
        self.state = PathState::Validating;
        self.down_reported = false;
        self.forget_challenges();
        self.challenge_at = Some(now);
        self.mtu.reset();
        self.aggregator.forget();
    }

    /// It has died: nothing is heard any more.
    pub(crate) fn on_silent(&mut self, now: Instant) {
        self.freeze_estimates(now);
        self.deaths += 1;
        self.state = PathState::Down;
        self.down_reported = true;
        self.forget_challenges();
        self.challenge_at = Some(now);
    }

    /// The peer is back on another path: asks it at once whether it is back too, in case it is down.
    pub(crate) fn revalidate(&mut self, now: Instant) {
        if self.state == PathState::Down {
            self.state = PathState::Validating;
            self.attempts = 0;
            self.challenge_at = Some(now);
        }
    }

    /// As many challenges as are asked before a path is called unreachable went unanswered; whether
    /// that is news.
    pub(crate) fn on_unreachable(&mut self) -> bool {
        self.state = PathState::Down;
        !std::mem::replace(&mut self.down_reported, true)
    }

    // The life of an estimate. What was measured until a path went away tells what it was like, what
    // happens meanwhile tells nothing, and a path that is back is the same line more often than not:
    //
    // | | when it goes | when it is back |
    // |---|---|---|
    // | capacity, and with it the pace | stays | stays until new trains agree on another |
    // | what others send | stays | stays until enough is seen of them, for 15 s at most |
    // | loss | stays | begins anew: the outage's packets do not count, nor that they come after all |
    // | base round trip and transit, jitter, delay variation | stay | begin anew |
    // | smoothed round trip | stays (challenges are timed by it) | begins anew |
    // | own packets at the bottleneck | stay | none |
    // | MTU, spacing of aggregates | stay | begin anew |
    //
    // Where it leads elsewhere (`reset_estimates`), all of them begin anew.

    /// It goes away: see above.
    fn freeze_estimates(&mut self, now: Instant) {
        let own = self.recent.sent_rate();
        self.cross.on_death(now, self.capacity(), own);
    }

    /// It is back: see above.
    fn restart_estimates(&mut self, now: Instant) {
        self.recent.on_return(now, self.totals());
        self.cross.on_return(now);
        self.trains.on_return();
        self.rtt.reset();
        self.delay = DelayVariation::default();
        self.round_trip_min_of_long = None;
        self.base = Base::default();
        self.base_transit = Base::default();
        self.jitter = Jitter::default();
        self.own_queue.on_return(now);
        self.mtu.reset();
        self.aggregator.forget();
        self.update_pacing_rate();
    }

    /// It leads elsewhere: what is kept over an outage does not hold either.
    fn reset_estimates(&mut self) {
        self.trains.forget();
        self.cross = CrossMeter::default();
        self.update_pacing_rate();
    }

    /// A packet of the peer came from `remote`; challenges it there if that is news.
    pub(crate) fn on_packet_from(&mut self, now: Instant, remote: SocketAddr) {
        let known = self.remote == Some(remote) && self.is_up();
        if known || self.target == Some(remote) {
            return;
        }
        self.target = Some(remote);
        self.attempts = 0;
        self.challenge_at = Some(now);
    }

    /// Owes the peer an answer to its challenge.
    pub(crate) fn on_challenged(&mut self, token: u64, remote: SocketAddr) {
        if self.responses.len() >= RESPONSES_MAX {
            self.responses.pop_front();
        }
        self.responses.push_back((token, remote));
    }

    /// A challenge that is due: its token and where to.
    pub(crate) fn next_challenge(
        &mut self,
        now: Instant,
        random: &mut ChaCha20Rng,
        timing: &TimingConfig,
    ) -> Option<(u64, SocketAddr)> {
        self.challenge_at.filter(|at| *at <= now)?;
        // An address at which the peer was seen is asked a few times, then the one that was known.
        if self.attempts >= CHALLENGES_BEFORE_DOWN && self.remote.is_some() {
            self.target = None;
            if self.is_up() {
                self.challenge_at = None;
                return None;
            }
        }
        let Some(remote) = self.target.or(self.remote) else {
            self.challenge_at = None;
            return None;
        };
        self.attempts += 1;
        let token = random.next_u64();
        if self.challenges.len() >= CHALLENGES_KEPT {
            self.challenges.pop_front();
        }
        self.challenges.push_back(Challenge {
            token,
            remote,
            sent_at: now,
        });
        // Quickly at first: a lost challenge must not delay the start.
        let wait = if self.attempts <= self.challenges_before_down() {
            self.challenge_interval()
        } else {
            timing.probe_down
        };
        self.challenge_at = Some(now + wait.min(timing.probe_down));
        Some((token, remote))
    }

    /// Between the first challenges.
    fn challenge_interval(&self) -> Duration {
        self.rtt.smoothed_or_initial() + CHALLENGE_BEYOND_RTT
    }

    /// How long whoever prefers it waits for its answer after another path's: two challenges, so that
    /// one may get lost.
    pub(crate) fn validation_time(&self) -> Duration {
        (2 * self.challenge_interval()).min(VALIDATION_TIME)
    }

    /// As many challenges in a row as are asked before a path is called unreachable.
    pub(crate) fn challenges_exhausted(&self) -> bool {
        self.attempts > self.challenges_before_down()
    }

    fn challenges_before_down(&self) -> u32 {
        let interval = self.challenge_interval().as_micros();
        let in_time = CHALLENGE_TIME_MIN.as_micros().div_ceil(interval.max(1));
        CHALLENGES_BEFORE_DOWN.max(u32::try_from(in_time).unwrap_or(u32::MAX))
    }

    /// Takes the answer to a challenge; `None` if it answers none of ours.
    pub(crate) fn on_response(
        &mut self,
        now: Instant,
        token: u64,
        received_at: Instant,
    ) -> Option<Validated> {
        let challenge = *self
            .challenges
            .iter()
            .find(|challenge| challenge.token == token)?;
        self.forget_challenges();
        let rtt = received_at.saturating_duration_since(challenge.sent_at);
        let came_up = !self.is_up();
        let moved = self.remote != Some(challenge.remote);
        let moved_from = moved.then_some(self.remote);
        if moved || came_up {
            self.restart_estimates(now);
        }
        if moved {
            self.reset_estimates();
        }
        self.rtt.on_sample(rtt, Duration::ZERO);
        let rtt_us = i64::try_from(rtt.as_micros()).unwrap_or(i64::MAX);
        self.base.on_sample(now, rtt_us);
        self.remote = Some(challenge.remote);
        self.state = PathState::Up;
        self.down_reported = false;
        self.last_sent_at = now;
        Some(Validated {
            rtt,
            remote: challenge.remote,
            moved_from,
            came_up,
        })
    }

    fn forget_challenges(&mut self) {
        self.challenges.clear();
        self.target = None;
        self.attempts = 0;
        self.challenge_at = None;
    }

    /// How long silence is borne.
    fn silence_limit(&self) -> Duration {
        self.rtt.smoothed_or_initial() * 2 + SILENCE_BEYOND_RTT + self.serialization() * 2
    }

    /// What a full packet takes to leave: nothing to speak of, except on a slow line, where the
    /// round trip was measured with short packets.
    pub(crate) fn serialization(&self) -> Duration {
        let full = ByteCount::new(u64::from(self.mtu.max()));
        let time = self.pacer.rate().transmission_time_ceil(full);
        time.min(SERIALIZATION_MAX)
    }

    /// When the path is given up if nothing is heard.
    pub(crate) fn silence_deadline(&self) -> Option<Instant> {
        if !self.is_up() {
            return None;
        }
        Some(self.sent.unanswered_since()? + self.silence_limit())
    }

    /// Gives the path up if it has been silent for too long.
    pub(crate) fn check_silence(&mut self, now: Instant) -> Option<PathDownReason> {
        let deadline = self
            .silence_deadline()
            .filter(|deadline| *deadline <= now)?;
        let limit = self.silence_limit();
        self.on_silent(now);
        Some(PathDownReason::Silent {
            silent: now.saturating_duration_since(deadline) + limit,
            limit,
        })
    }

    /// A packet of ours leaves.
    pub(crate) fn self_queueing(&mut self, now: Instant, ip_bytes: u64) -> SelfQueueing {
        let rate = self.capacity().unwrap_or(self.pacer.rate());
        if bits(rate) > bits(self.capacity_assumed.0) / 10 * 11 {
            // Packets were taken to be longer at the bottleneck than they are, and the way shorter.
            self.base = Base::default();
            self.base_transit = Base::default();
            self.capacity_assumed.1 = now;
        }
        self.capacity_assumed.0 = rate;
        self.own_queue.on_sent(now, ip_bytes, rate)
    }

    /// The peer has told when a packet arrived: `round_trip` is without what it held the
    /// acknowledgement back.
    pub(crate) fn on_arrival_reported(
        &mut self,
        now: Instant,
        largest: LargestAcked,
        round_trip: Duration,
        received_us: u64,
    ) {
        let LargestAcked { sent_at, place, .. } = largest;
        if sent_at < self.capacity_assumed.1 {
            return;
        }
        let Some(others_us) = place.without_self_queueing(round_trip) else {
            return;
        };
        let own_us = i64::from(place.own_us);
        let trip_wait = self.base.on_sample(now, others_us);
        let sent_us = i64::try_from(sent_at.as_nanos() / 1000).unwrap_or(i64::MAX);
        let arrived_us = i64::try_from(received_us).unwrap_or(i64::MAX);
        let transit_us = arrived_us.saturating_sub(sent_us).saturating_sub(own_us);
        self.jitter.on_sample(transit_us);
        let wait = self.base_transit.on_sample(now, transit_us);
        self.aggregator.on_wait(wait.min(trip_wait));
        if let Some(capacity) = self.capacity() {
            let arrival = Arrival {
                sent_at,
                received_us,
                bits_sent: place.bits_sent,
                burst: place.burst,
                // What the way back adds is not in the one, and clocks that drift not in the other.
                wait: place.is_first.then_some(wait.min(trip_wait)),
            };
            self.cross.on_arrival(now, arrival, capacity);
        }
    }

    /// A packet of `ip_bytes` was answered after `sample`, what the peer held it aside.
    pub(crate) fn on_round_trip(&mut self, sample: Duration, ip_bytes: u16) -> RoundTrip {
        let is_long = ip_bytes >= self.mtu.current() / 4 * 3;
        if is_long {
            let known = self.round_trip_min_of_long.unwrap_or(sample);
            self.round_trip_min_of_long = Some(known.min(sample));
        }
        RoundTrip {
            sample,
            is_long,
            min: self.round_trip_min_of_long,
        }
    }

    /// Counts losses and bytes up to now.
    pub(crate) fn count(&mut self, now: Instant) {
        self.recent.on_totals(now, self.totals());
        self.seen_at = now;
    }

    fn totals(&self) -> Totals {
        let (padding_arrived, padding_lost) = self.trains.padding();
        let spurious_after_outage = self.sent.spurious_after_outage;
        Totals {
            acked: self.sent.acked_total - spurious_after_outage + padding_arrived,
            lost: self.sent.lost_total + padding_lost,
            spurious: self.sent.spurious_total - spurious_after_outage,
            bytes_sent: self.bytes_sent,
        }
    }

    fn capacity(&self) -> Option<Bandwidth> {
        self.trains.found().map(|found| found.capacity.rate)
    }

    /// What trains tell may have changed. A path that carries less than its rate is paced at what it
    /// carries: what waits then waits here, in the order of urgency, and not in the network. A
    /// twentieth is within what chance does to the estimate.
    pub(crate) fn update_pacing_rate(&mut self) {
        let found = self.trains.found().map(|found| found.capacity.low);
        let noticed = Bandwidth::from_bits_per_second(bits(self.rate) / 20 * 19);
        let narrower = found.filter(|found| *found < noticed);
        self.pacer.set_rate(narrower.unwrap_or(self.rate));
    }

    /// When a sign of life is due on an idle path.
    /// More often than needed for that if `probe_share` of the rate pays for it: the answers tell
    /// what the path is like.
    pub(crate) fn keepalive_at(
        &self,
        timing: &TimingConfig,
        probe_share: Probability,
    ) -> Option<Instant> {
        let idle = self.is_up() && !self.sent.has_outstanding() && !self.ping_wanted;
        let interval = match self.ping_interval(probe_share) {
            // Paths do not march in step.
            Some(interval) => interval * (75 + (self.sent.next_number() * 37 % 51) as u32) / 100,
            None => timing.keepalive,
        };
        idle.then_some(self.last_sent_at + interval.min(timing.keepalive))
    }

    fn ping_interval(&self, probe_share: Probability) -> Option<Duration> {
        self.trains.ping_interval(self.pacer.rate(), probe_share)
    }

    /// A packet has left that is there for its answer alone.
    pub(crate) fn on_ping_sent(&mut self, now: Instant, ip_bytes: u64, probe_share: Probability) {
        if self.ping_interval(probe_share).is_some() {
            let rate = self.pacer.rate();
            self.trains.on_ping(now, ip_bytes, (rate, probe_share));
        }
    }

    /// The longest MTU probe or full packet: header, clear text and tag fit into `payload` bytes.
    pub(crate) const fn clear_text_max(payload: usize) -> usize {
        payload - DATA_HEADER_LEN - TAG_LEN
    }

    /// UDP payload of a packet with so much clear text.
    pub(crate) const fn packet_bytes(clear_text: usize) -> usize {
        clear_text + DATA_HEADER_LEN + TAG_LEN
    }

    pub(crate) fn snapshot(&self, bytes_queued: u64) -> PathSnapshot {
        let loss = self.recent.loss();
        let sent_rate = self.recent.sent_rate();
        let capacity = self.capacity();
        let cross_rate =
            capacity.and_then(|capacity| self.cross.rate(self.seen_at, capacity, sent_rate));
        let available = capacity
            .zip(cross_rate)
            .map(|(capacity, cross)| capacity.saturating_sub(sent_rate).saturating_sub(cross));
        PathSnapshot {
            id: self.id,
            state: self.state,
            deaths: self.deaths,
            remote: self.remote,
            rate: self.rate,
            capacity: self.trains.found(),
            aggregation: self.aggregator.snapshot(self.seen_at),
            mtu: self.mtu.current(),
            srtt: self.rtt.smoothed(),
            rtt_var: self.rtt.variation(),
            rtt_min: self.rtt.min(),
            base_rtt: self
                .base
                .us()
                .map(|us| Duration::from_micros(us.max(0) as u64)),
            jitter: self.jitter.get(),
            loss: loss.map(|loss| loss.ratio),
            loss_packets: loss.map_or(0, |loss| loss.packets),
            loss_is_burst: loss.is_some_and(|loss| loss.is_burst),
            sent_rate,
            cross_rate,
            available,
            probe_bytes_sent: self.trains.probe_bytes(),
            delay_variation: self.delay.latest(),
            delay_variation_smoothed: self.delay.smoothed(),
            packets_sent: self.packets_sent,
            bytes_sent: self.bytes_sent,
            packets_acked: self.sent.acked_total,
            packets_lost: self.sent.lost_total,
            packets_spurious: self.sent.spurious_total,
            bytes_retransmitted: self.bytes_retransmitted,
            packets_received: self.packets_received,
            bytes_received: self.bytes_received,
            aggregates_received: ReceivedAggregates::default(),
            ecn_ce_received: self.ecn_ce_received,
            bytes_in_flight: self.sent.bytes_in_flight,
            bytes_queued,
        }
    }
}
