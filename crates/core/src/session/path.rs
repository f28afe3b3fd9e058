//! One path to one peer: its state, what is measured of it, what is in flight on it, and at what
//! rate it may be sent on.

mod abandon;
mod announcement_timer;
mod figures;
mod idle_meter;
mod loss_probing;
mod non_path_losses;
mod probing;
mod rate_control;
mod reachability;
mod sending;
mod terms;
#[cfg(test)]
mod tests;
mod timers;

pub(crate) use self::{probing::TrainContent, timers::PathTimeout};

use std::{net::SocketAddr, time::Duration};

use keiro_model::fairness::controller::RoundTrip;
use keiro_stats::PathStats;
use keiro_units::{Bandwidth, ByteCount, Instant, Probability};
use rand_chacha::ChaCha20Rng;

use self::{
    announcement_timer::AnnouncementTimer, idle_meter::IdleMeter, loss_probing::LossProbing,
    non_path_losses::NonPathLosses, rate_control::RateControl, reachability::ReachabilityCounters,
    terms::LocalAndPeerTerms,
};
use super::{
    aggregation::{
        self, Aggregator, PathCapacity,
        copies::{CopyContent, CopyQueue, PendingCopy},
    },
    mtu::{MTU_BASE, MtuDiscovery},
    path_estimates::{ArrivalSample, PathEstimates, RttSample},
    recovery::{AckedOrLostPacket, LossRecovery},
    rtt::{self, RttEstimator},
    tenant::PathIdMtu,
    train::Trains,
    validation::{
        CHALLENGE_BEYOND_RTT, PathChallenge, SizedChallenge, Validated, Validation, validation_time,
    },
};
use crate::{
    config::{AggregationConfig, PathConfig, TimingConfig},
    datagram::{DatagramMeta, IPV4_OVERHEAD, ip_overhead},
    id::{PathId, SocketId, TenantId},
    pacer::Pacer,
    snapshot::PathState,
    wire::{AckFrame, DATA_HEADER_LEN, Feedback, TAG_LEN, TrainReport},
};

/// Longest time that a full packet is taken to need on a slow line.
const SERIALIZATION_MAX: Duration = Duration::from_secs(10);
/// Packets that a probe timeout may send although the window of outstanding packets is full.
const PTO_PACKETS: u32 = 2;

/// Numbers that were used on a path: under the same keys none may be used twice.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UsedNumbers {
    packets: u64,
    aggregates: u64,
}

/// A path as we number it.
#[derive(Debug)]
pub(crate) struct Path {
    id: PathId,
    socket: SocketId,
    validation: Validation,
    reachability: ReachabilityCounters,
    estimates: PathEstimates,
    rate: RateControl,
    pacer: Pacer,
    recovery: LossRecovery,
    non_path_losses: NonPathLosses,
    mtu: MtuDiscovery,
    trains: Trains,
    aggregator: Aggregator,
    copies: CopyQueue,
    loss_probing: LossProbing,
    /// A PING is to be sent if nothing else asks for an acknowledgement.
    ping_wanted: bool,
    /// Packets that a probe timeout may still send.
    probe_credit: u32,
    last_eliciting_at: Instant,
    /// When data was last sent or has last arrived.
    last_data_at: Instant,
    idle_meter: IdleMeter,
    /// The monthly limit configured here for keepalives and probes of both ends; `None`: no limit.
    own_limit: Option<ByteCount>,
    /// The same limit as the peer announced it.
    peer_limit: Option<ByteCount>,
    /// There is or was a limit of this end.
    announces_limit: bool,
    local_and_peer_terms: LocalAndPeerTerms,
    announcement_timer: AnnouncementTimer,
    /// CE marks that the peer has acknowledged.
    ecn_ce_acked: u64,
    /// Of its counters, those that no component counts.
    counters: PathStats,
}

/// Packets in flight and waiting copies of a path that is not used any more.
#[derive(Debug)]
pub(crate) struct DroppedInFlight {
    pub(crate) lost: Vec<AckedOrLostPacket>,
    pub(crate) copies: Vec<PendingCopy>,
}

/// An acknowledgement as it arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceivedAck<'a> {
    pub(crate) now: Instant,
    pub(crate) received_at: Instant,
    pub(crate) frame: AckFrame<'a>,
    /// It came back over the path whose packets it acknowledges. Another path may be far shorter.
    pub(crate) is_same_path: bool,
    pub(crate) ack_delay_max: Duration,
}

/// What an acknowledgement says to the tenants' controllers beside what has arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckSignals {
    /// A round trip, and the tenant whose packet it is of.
    pub(crate) sampled: Option<(TenantId, RoundTrip)>,
    /// Packets that arrived with a CE mark since the last acknowledgement.
    pub(crate) ce_marks: u64,
}

/// What an acknowledgement means for the rest of the session.
#[derive(Debug)]
pub(crate) struct AckResult {
    pub(crate) acked: Vec<AckedOrLostPacket>,
    pub(crate) lost: Vec<AckedOrLostPacket>,
    pub(crate) signals: AckSignals,
    /// The path's MTU, if it has changed.
    pub(crate) mtu: Option<u16>,
    /// When the largest newly acknowledged packet left, if that can be compared with the peer's clock.
    pub(crate) clock_sample: Option<Instant>,
}

impl Path {
    /// `first`: the numbers below were used by a path of the same id before.
    pub(crate) fn new(
        config: &PathConfig,
        aggregation: &AggregationConfig,
        first: UsedNumbers,
    ) -> Self {
        let rate = RateControl::new(config.rate, config.mtu_max);
        let begins_at = rate.pacing_rate(None);
        let mut mtu = MtuDiscovery::new(config.mtu_max);
        mtu.set_limited(config.probe_limit.is_some() || config.terms.is_spent);
        Self {
            id: config.id,
            socket: config.socket,
            validation: Validation::new(config.remote),
            reachability: ReachabilityCounters::default(),
            estimates: PathEstimates::new(begins_at),
            rate,
            pacer: Pacer::new(begins_at),
            recovery: LossRecovery::starting_at(first.packets),
            non_path_losses: NonPathLosses::default(),
            mtu,
            trains: Trains::default(),
            aggregator: Aggregator::new(aggregation, begins_at, first.aggregates),
            copies: CopyQueue::default(),
            loss_probing: LossProbing::default(),
            ping_wanted: false,
            probe_credit: 0,
            last_eliciting_at: Instant::ZERO,
            last_data_at: Instant::ZERO,
            idle_meter: IdleMeter::default(),
            own_limit: config.probe_limit,
            peer_limit: None,
            announces_limit: config.probe_limit.is_some(),
            local_and_peer_terms: LocalAndPeerTerms::new(config.terms),
            announcement_timer: AnnouncementTimer::new(),
            ecn_ce_acked: 0,
            counters: PathStats::default(),
        }
    }

    pub(crate) fn id(&self) -> PathId {
        self.id
    }

    pub(crate) fn socket(&self) -> SocketId {
        self.socket
    }

    pub(crate) fn state(&self) -> PathState {
        self.validation.state()
    }

    pub(crate) fn is_up(&self) -> bool {
        self.validation.is_up()
    }

    pub(crate) fn remote(&self) -> Option<SocketAddr> {
        self.validation.remote()
    }

    pub(crate) fn rtt(&self) -> &RttEstimator {
        self.estimates.rtt()
    }

    /// The path as the tenants' queues see it.
    pub(crate) fn id_and_mtu(&self) -> PathIdMtu {
        PathIdMtu {
            path: self.id,
            mtu: self.mtu(),
        }
    }

    /// Largest IP packet that may be sent, bytes.
    pub(crate) fn mtu(&self) -> u16 {
        self.mtu.current()
    }

    pub(crate) fn aggregator(&self) -> &Aggregator {
        &self.aggregator
    }

    pub(crate) fn aggregator_mut(&mut self) -> &mut Aggregator {
        &mut self.aggregator
    }

    pub(crate) fn copies(&self) -> &CopyQueue {
        &self.copies
    }

    pub(crate) fn copies_mut(&mut self) -> &mut CopyQueue {
        &mut self.copies
    }

    pub(crate) fn pacer(&self) -> &Pacer {
        &self.pacer
    }

    pub(crate) fn pacer_mut(&mut self) -> &mut Pacer {
        &mut self.pacer
    }

    pub(crate) fn next_packet_number(&self) -> u64 {
        self.recovery.next_number()
    }

    pub(crate) fn used_numbers(&self) -> UsedNumbers {
        UsedNumbers {
            packets: self.recovery.next_number(),
            aggregates: self.aggregator.next_number(),
        }
    }

    /// Outcomes of the peer's messages are in flight on it.
    pub(crate) fn has_outcomes_in_flight(&self) -> bool {
        self.recovery.has_outstanding_outcomes()
    }

    /// See [`LossRecovery::unresolved_bytes_of`].
    pub(crate) fn unresolved_bytes_of(&self, tenant: TenantId) -> u64 {
        self.recovery.unresolved_bytes_of(tenant)
    }

    /// A packet that asks for an acknowledgement may leave as far as loss recovery is concerned.
    pub(crate) fn may_send_ack_eliciting(&self) -> bool {
        let has_room = || self.rate.has_room(self.recovery.bytes_in_flight());
        self.probe_credit > 0 || !self.recovery.is_full() && has_room()
    }

    /// No more packets are remembered; probes excepted, nothing more may be sent.
    pub(crate) fn is_sent_table_full(&self) -> bool {
        self.recovery.is_full()
    }

    pub(crate) fn is_ping_wanted(&self) -> bool {
        self.ping_wanted
    }

    /// Asks for an acknowledgement, with a PING if nothing else is to be sent.
    pub(crate) fn request_ping(&mut self) {
        self.ping_wanted = true;
    }

    /// Bytes of IP and UDP headers in front of our packets.
    pub(crate) fn ip_overhead(&self) -> u16 {
        self.remote().map_or(IPV4_OVERHEAD, ip_overhead)
    }

    /// Longest UDP payload of a packet.
    pub(crate) fn udp_payload_max(&self) -> usize {
        usize::from(self.mtu.current() - self.ip_overhead())
    }

    /// Clear text of a packet of `payload` bytes.
    pub(crate) const fn clear_text_max(payload: usize) -> usize {
        payload - DATA_HEADER_LEN - TAG_LEN
    }

    /// Applies a changed configuration. A new remote address is used at once and validated; `true` if there is one.
    pub(crate) fn reconfigure(
        &mut self,
        now: Instant,
        config: &PathConfig,
        probe_share: Probability,
    ) -> bool {
        self.rate.reconfigure(now, config.rate, self.mtu.current());
        self.update_pacing_rate();
        self.mtu.set_max(config.mtu_max);
        self.set_own_limit(now, config.probe_limit, probe_share);
        self.set_own_terms(now, config.terms, probe_share);
        let leads_elsewhere = self.validation.set_remote(config.remote);
        if leads_elsewhere {
            self.restart_validation(now);
            self.reset_estimates(now);
            self.reachability.restart();
        }
        leads_elsewhere
    }

    pub(crate) fn reconfigure_aggregation(
        &mut self,
        config: &AggregationConfig,
    ) -> Option<aggregation::Change> {
        self.aggregator.reconfigure(config, self.carries())
    }

    /// No trains are sent any more, so nothing would correct the capacity that was found.
    pub(crate) fn on_trains_disabled(&mut self) {
        self.trains.forget();
        self.update_pacing_rate();
    }

    /// The peer or the route to it is new: it has to answer before it is used.
    pub(crate) fn restart_validation(&mut self, now: Instant) {
        if self.is_up() {
            self.estimates.on_outage(now, self.capacity());
        }
        self.validation.restart(now);
        self.mtu.reset();
        self.aggregator.forget();
    }

    pub(crate) fn revalidate(&mut self, now: Instant) {
        self.validation.revalidate(now);
    }

    /// The socket has a local address again, or another one. What was in flight is lost: answers to it
    /// go to the address of before.
    pub(crate) fn on_bound(&mut self, now: Instant) -> DroppedInFlight {
        self.reachability.restart();
        self.restart_validation(now);
        self.validation.on_bound(now);
        self.drop_in_flight()
    }

    /// The socket has no local address any more.
    pub(crate) fn on_unbound(&mut self, now: Instant) {
        if self.is_up() {
            self.estimates.on_outage(now, self.capacity());
            self.counters.outages += 1;
        }
        // What is not answered now says nothing about the line.
        self.reachability.restart();
        self.validation.on_unbound();
    }

    /// Nothing can be sent: the socket has no local address.
    pub(crate) fn is_unbound(&self) -> bool {
        self.validation.is_unbound()
    }

    /// There is no key to send with: it has to answer again once there is.
    pub(crate) fn on_keys_expired(&mut self, now: Instant) {
        self.estimates.on_outage(now, self.capacity());
        self.validation.on_silent(now);
    }

    pub(crate) fn on_peer_closed(&mut self) {
        self.validation.on_peer_closed();
    }

    /// The peer has restarted: packet numbers begin again from `first_number`, and nothing in flight is
    /// waited for.
    pub(crate) fn on_peer_restarted(
        &mut self,
        now: Instant,
        first_number: u64,
        probe_share: Probability,
    ) {
        self.recovery.restart(first_number);
        self.non_path_losses.on_peer_restarted();
        self.copies.clear();
        self.ecn_ce_acked = 0;
        self.forget_peer_limit(now, probe_share);
        self.restart_validation(now);
    }

    /// Everything in flight is lost, and no copy leaves any more.
    pub(crate) fn drop_in_flight(&mut self) -> DroppedInFlight {
        DroppedInFlight {
            lost: self.recovery.declare_all_lost(),
            copies: self.copies.take_all(),
        }
    }

    /// The path has gone down: as [`drop_in_flight`](Self::drop_in_flight), and no parity follows.
    pub(crate) fn on_down(&mut self) -> DroppedInFlight {
        self.probe_credit = 0;
        self.aggregator.drop_group();
        self.drop_in_flight()
    }

    /// What was polled at `polled_at` may have left as late as `until`.
    pub(crate) fn on_late_departure(&mut self, polled_at: Instant, until: Instant) {
        self.recovery.on_late_departure(polled_at, until);
    }

    /// A packet of the peer arrived at its socket. `is_newest`: no later packet has arrived before.
    pub(crate) fn on_received(
        &mut self,
        now: Instant,
        meta: DatagramMeta,
        is_newest: bool,
        ip_bytes: u64,
    ) {
        self.on_authentic(now, ip_bytes);
        self.counters.received_ce_packets += u64::from(meta.ecn == 3);
        // A late packet from an old address must not redirect the path (RFC 9000 §9.3).
        if is_newest {
            self.validation.on_packet_from(now, meta.remote);
        }
    }

    /// A handshake packet of the peer arrived at its socket. `len`: bytes of UDP payload.
    pub(crate) fn on_handshake_received(&mut self, now: Instant, remote: SocketAddr, len: usize) {
        self.on_authentic(now, len as u64 + u64::from(ip_overhead(remote)));
    }

    fn on_authentic(&mut self, now: Instant, ip_bytes: u64) {
        self.counters.received_packets += 1;
        self.counters.received_bytes += ip_bytes;
        if !self.is_up() {
            self.reachability.on_received(now);
        }
    }

    pub(crate) fn on_challenged(&mut self, now: Instant, token: u64, remote: SocketAddr) {
        self.announcement_timer.on_challenged(now);
        self.validation.on_challenged(token, remote);
    }

    pub(crate) fn poll_response(&mut self) -> Option<PathChallenge> {
        self.validation.poll_response()
    }

    /// The challenge that is due.
    pub(crate) fn poll_challenge(
        &mut self,
        now: Instant,
        random: &mut ChaCha20Rng,
        timing: &TimingConfig,
    ) -> Option<SizedChallenge> {
        let rtt = self.challenge_rtt();
        let probe_down = self.probe_down(timing);
        let challenge = self
            .validation
            .poll_challenge(now, rtt, random, probe_down)?;
        if !self.is_up() {
            self.reachability.on_sent(now);
        }
        Some(challenge)
    }

    /// See [`Validation::check_unreachable`].
    pub(crate) fn check_unreachable(&mut self, now: Instant) -> Option<bool> {
        let rtt = self.challenge_rtt();
        let sizes_again = self.sizes_again();
        self.validation.check_unreachable(now, rtt, sizes_again)
    }

    /// Short packets are answered and none of the least size that is of use.
    pub(crate) fn is_too_small(&self) -> bool {
        self.validation.is_too_small()
    }

    /// The round trip of a challenge of the base size. On a slow line it takes longer than what is measured with
    /// short packets; on others the time between challenges has room for that.
    fn challenge_rtt(&self) -> Duration {
        let base = ByteCount::new(u64::from(MTU_BASE));
        let takes = self.pacer.rate().transmission_time_ceil(base);
        let takes = takes.min(SERIALIZATION_MAX);
        self.rtt().smoothed_or_initial() + takes.saturating_sub(CHALLENGE_BEYOND_RTT)
    }

    /// Takes the response to a challenge; `None` if it answers none of ours.
    pub(crate) fn on_response(
        &mut self,
        now: Instant,
        token: u64,
        received_at: Instant,
    ) -> Option<Validated> {
        let validated = self.validation.on_response(now, token, received_at)?;
        self.reachability.restart();
        if validated.moved_from.is_some() || validated.came_up {
            self.restart_estimates(now);
            // As much is measured as of a path in use.
            self.last_data_at = now;
        }
        if validated.moved_from.is_some() {
            self.reset_estimates(now);
            self.mtu.on_moved();
            self.recovery.on_moved(now);
        }
        if let Some(size) = validated.size.filter(|_| validated.came_up) {
            self.mtu.on_validated(size);
        }
        self.rate.on_validated(validated.rtt);
        self.estimates.on_validated(now, validated.rtt);
        self.last_eliciting_at = now;
        Some(validated)
    }

    /// How long an application that prefers it waits for it while paths come up.
    pub(crate) fn validation_time(&self) -> Duration {
        validation_time(self.rtt().smoothed_or_initial())
    }

    /// It is back: see the table in [`path_estimates`](super::path_estimates).
    fn restart_estimates(&mut self, now: Instant) {
        self.estimates.on_return(now, self.totals());
        self.trains.on_return();
        self.mtu.reset();
        self.aggregator.forget();
        self.rate.on_return(now);
        self.update_pacing_rate();
    }

    /// It leads to another address: what is kept over an outage does not hold either.
    fn reset_estimates(&mut self, now: Instant) {
        self.trains.forget();
        self.estimates.on_moved();
        self.rate.on_moved(now, self.mtu.current());
        self.update_pacing_rate();
    }

    /// Takes an acknowledgement of its packets. `None`: it acknowledges packets that were never sent.
    pub(crate) fn on_ack(&mut self, ack: ReceivedAck<'_>) -> Option<AckResult> {
        let ReceivedAck { now, frame, .. } = ack;
        let outcome = self.recovery.on_ack(frame.largest, frame.ranges.iter())?;
        let mut sampled = None;
        let mut clock_sample = None;
        if let Some(largest) = outcome.largest {
            let rtt = ack.received_at.saturating_duration_since(largest.sent_at);
            let delay = Duration::from_micros(frame.delay_us);
            let sample = RttSample {
                rtt,
                ack_delay: delay.min(ack.ack_delay_max * 4),
                is_same_path: ack.is_same_path,
            };
            let received_us = frame.received_at_us;
            self.estimates.on_rtt_sample(sample);
            self.estimates
                .on_one_way_delay(now, largest.sent_at, received_us);
            if ack.is_same_path {
                clock_sample = Some(largest.sent_at);
            }
            let round_trip = rtt::without_ack_delay(rtt, delay).filter(|_| ack.is_same_path);
            if let Some(round_trip) = round_trip {
                let arrival = ArrivalSample {
                    largest,
                    round_trip,
                    received_us,
                    capacity: self.capacity(),
                };
                if let Some(wait) = self.estimates.on_arrival(now, arrival) {
                    self.aggregator.on_wait(wait);
                }
                let is_long = largest.ip_bytes >= self.mtu.current() / 4 * 3;
                let round_trip = self.estimates.on_round_trip(round_trip, is_long);
                sampled = Some((largest.owner.tenant, round_trip));
            }
        }
        let ce_marks = frame.ecn_ce.saturating_sub(self.ecn_ce_acked);
        self.ecn_ce_acked = self.ecn_ce_acked.max(frame.ecn_ce);
        self.counters.acked_ce_packets += ce_marks;
        let mut mtu = None;
        for packet in &outcome.acked {
            mtu = self.mtu.on_acked(packet.number, packet.ip_bytes).or(mtu);
        }
        let lost = self.detect_lost(now);
        self.update_totals(now);
        let in_flight = self.recovery.bytes_in_flight();
        self.rate.on_ack(ack, &outcome, &lost, in_flight);
        self.update_pacing_rate();
        Some(AckResult {
            acked: outcome.acked,
            lost,
            signals: AckSignals { sampled, ce_marks },
            mtu,
            clock_sample,
        })
    }

    /// Those that are longer than the MTU left before it fell: their loss is no congestion, as that of packets is not
    /// which strangers have displaced.
    fn detect_lost(&mut self, now: Instant) -> Vec<AckedOrLostPacket> {
        let mut lost = self.recovery.detect_lost(now, self.estimates.rtt());
        for packet in &mut lost {
            packet.is_beyond_mtu |= packet.ip_bytes > self.mtu.current();
        }
        self.non_path_losses.mark(now, &mut lost);
        lost
    }

    /// Packets were declared lost; the MTU, if that shows a smaller one (RFC 8899 §4.3).
    pub(crate) fn on_packets_lost(
        &mut self,
        now: Instant,
        lost: &[AckedOrLostPacket],
    ) -> Option<u16> {
        let mut mtu = None;
        for packet in lost {
            mtu = self
                .mtu
                .on_lost(now, packet.number, packet.ip_bytes)
                .or(mtu);
        }
        mtu
    }

    /// An MTU probe was lost or PTO-retransmitted.
    pub(crate) fn on_mtu_probe_lost(&mut self, now: Instant, number: u64) {
        self.mtu.on_probe_lost(now, number);
    }

    /// The peer reports the arrivals of a train.
    pub(crate) fn on_train_report(
        &mut self,
        now: Instant,
        report: TrainReport<'_>,
    ) -> Option<aggregation::Change> {
        let (_, lost_before) = self.trains.padding();
        self.trains.on_report(now, report);
        let (_, lost) = self.trains.padding();
        self.non_path_losses.mark_padding(now, lost - lost_before);
        let found = self.trains.found();
        if let Some(found) = found {
            self.rate.on_trains(now, found);
        }
        self.update_pacing_rate();
        let found = found?;
        self.aggregator.on_trains(now, found, self.carries())
    }

    /// The peer reports how many packets strangers at its socket have displaced, in all.
    pub(crate) fn on_stranger_drops(&mut self, now: Instant, displaced: u64) {
        let acked = self.recovery.counters().acked_packets;
        self.non_path_losses.on_report(now, displaced, acked);
    }

    /// The peer reports which aggregates arrived. `waiting_bytes`: waits to be coalesced.
    pub(crate) fn on_feedback(
        &mut self,
        now: Instant,
        feedback: Feedback,
        waiting_bytes: u64,
    ) -> Option<aggregation::Change> {
        let path = PathCapacity {
            rate: self.carries(),
            rtt: self.rtt().smoothed_or_initial(),
        };
        self.aggregator
            .on_feedback(now, feedback, path, waiting_bytes)
    }

    /// The parity packets that are to leave now.
    pub(crate) fn poll_parity(&mut self, now: Instant) -> Option<Vec<CopyContent>> {
        let ip_overhead = u64::from(self.ip_overhead());
        self.aggregator.poll_parity(now, self.id, ip_overhead)
    }

    fn update_totals(&mut self, now: Instant) {
        let totals = self.totals();
        self.loss_probing.on_totals(now, totals.lost);
        self.estimates.on_totals(now, totals);
    }

    fn capacity(&self) -> Option<Bandwidth> {
        self.trains.found().map(|found| found.capacity.rate)
    }

    /// What its narrowest link carries, by trains; `None`: it is not known. What the rate's controller has found is
    /// what others leave, and a configured rate is no more than a bound.
    pub(crate) fn line_capacity(&self) -> Option<Bandwidth> {
        let found = self.capacity()?;
        let bound = self.rate.configured();
        Some(bound.map_or(found, |bound| found.min(bound)))
    }

    /// What it carries, as far as is known.
    fn carries(&self) -> Bandwidth {
        self.rate.rate(self.trains.found())
    }

    fn update_pacing_rate(&mut self) {
        self.rate.on_mtu(self.mtu.current());
        self.pacer
            .set_rate(self.rate.pacing_rate(self.trains.found()));
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
        self.validation.check_invariants();
        self.reachability.check_invariants();
        self.estimates.check_invariants();
        self.recovery.check_invariants();
        self.mtu.check_invariants();
        self.copies.check_invariants();
        self.aggregator.check_invariants();
        self.trains.check_invariants();
        let (traffic, outcomes) = (&self.counters, self.recovery.counters());
        let resolved = outcomes.acked_packets.max(outcomes.lost_packets);
        assert!(
            resolved <= traffic.sent_packets,
            "only sent packets are acknowledged or lost"
        );
        assert!(
            self.recovery.bytes_in_flight() <= traffic.sent_bytes,
            "bytes in flight were sent"
        );
        assert!(
            traffic.retransmitted_bytes <= traffic.sent_bytes,
            "retransmitted bytes were sent"
        );
        let (_, padding_lost) = self.trains.padding();
        self.non_path_losses
            .check_invariants(outcomes.lost_packets + padding_lost);
        self.rate.check_invariants();
        assert!(
            self.rate
                .configured()
                .is_none_or(|configured| self.pacer.rate() <= configured),
            "a path is never paced above its configured rate"
        );
        assert!(self.probe_credit <= PTO_PACKETS, "probe credit");
    }
}
