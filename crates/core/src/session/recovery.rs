//! Loss recovery of one path: which of the sent packets are acknowledged and which are lost.
//!
//! Loss detection follows RFC 9002 §6 (packet and time threshold, probe timeout). There is no
//! congestion window here: the pacer owns the rate. PTO-retransmitted packets count as lost in the
//! path's statistics until they are acknowledged; the tenant's controller hears of
//! it only when loss detection confirms the loss. An MTU probe that is lost says something about its size and nothing
//! about the path (RFC 8899 §3), so it is never counted as lost or spurious.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use keiro_stats::PathStats;
use keiro_units::Instant;

use super::{estimates::SelfQueueing, rtt::RttEstimator, sent_frames::SentFrames};
use crate::id::TenantId;

/// RFC 9002 §6.1.1 kPacketThreshold: packets this far below the largest acknowledged one are lost.
const PACKET_THRESHOLD_MIN: u64 = 3;
/// Bound of the packet threshold, which grows with every loss that turns out to be spurious.
const PACKET_THRESHOLD_MAX: u64 = 256;
/// Packets remembered at most: 10 Gbit/s of full packets for 150 ms. At the bound sending waits.
const PACKETS_MAX: usize = 1 << 17;
/// Longest time between two probe timeouts in a row: several fit into the silence after which a path is given
/// up, 80 ms at least.
const PROBE_SPACING: Duration = Duration::from_millis(15);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In flight: neither acknowledged nor declared lost.
    Outstanding,
    /// Declared lost by loss detection, or with its path.
    Lost,
    /// Its content was retransmitted by a probe timeout, which does not mean that it is lost
    /// (RFC 9002 §6.2).
    PtoRetransmitted,
    /// Acknowledged, or not ack-eliciting.
    Resolved,
}

/// What a packet is in the eyes of loss recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PacketKind {
    /// Asks for an acknowledgement.
    AckEliciting,
    /// The same, and longer than the path MTU: its loss is not a loss of the path.
    MtuProbe,
    /// Is neither acknowledged for its own sake nor retransmitted.
    NonEliciting,
}

impl PacketKind {
    pub(crate) fn of(ack_eliciting: bool) -> Self {
        match ack_eliciting {
            true => Self::AckEliciting,
            false => Self::NonEliciting,
        }
    }

    pub(crate) fn is_ack_eliciting(self) -> bool {
        self != Self::NonEliciting
    }
}

/// The tenant whose window the packet counts in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChargedTenant {
    pub(crate) tenant: TenantId,
    /// The two ECN bits of its outer header.
    pub(crate) ecn: u8,
}

/// A packet as it is handed to loss recovery.
#[derive(Debug)]
pub(crate) struct NewPacket {
    pub(crate) kind: PacketKind,
    pub(crate) ip_bytes: u16,
    pub(crate) frames: SentFrames,
    pub(crate) self_queueing: SelfQueueing,
    pub(crate) owner: ChargedTenant,
}

#[derive(Debug)]
struct SentPacket {
    at: Instant,
    /// `at` is exact. It is not after a late departure: then it is the latest possible send time.
    rtt_eligible: bool,
    ip_bytes: u16,
    kind: PacketKind,
    state: State,
    frames: SentFrames,
    self_queueing: SelfQueueing,
    owner: ChargedTenant,
}

/// A packet that was acknowledged or declared lost.
#[derive(Debug)]
pub(crate) struct AckedOrLostPacket {
    pub(crate) number: u64,
    pub(crate) ip_bytes: u16,
    pub(crate) frames: SentFrames,
    pub(crate) owner: ChargedTenant,
    /// Acknowledged after it was declared lost.
    pub(crate) was_lost: bool,
    /// Acknowledged after its content was sent again.
    pub(crate) was_retransmitted: bool,
    /// Declared lost after a probe timeout had retransmitted it: its content needs nothing more.
    pub(crate) was_pto_retransmitted: bool,
    pub(crate) is_mtu_probe: bool,
    /// Lost, and longer than what its path is known to carry.
    pub(crate) is_beyond_mtu: bool,
    /// Lost, and the peer says that strangers have displaced as many packets.
    pub(crate) is_non_path_loss: bool,
}

/// What controllers hear of losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lost {
    /// Packets whose loss is a sign of congestion.
    pub(crate) by_congestion: u64,
    /// Packets that strangers have displaced: the line has carried them, as it has those that arrived.
    pub(crate) non_path_losses: u64,
    pub(crate) excused_bytes: u64,
}

impl AckedOrLostPacket {
    /// What is lost because of its size is no sign of congestion (RFC 8899 §3).
    pub(crate) fn is_of_its_size(&self) -> bool {
        self.is_mtu_probe || self.is_beyond_mtu
    }
}

impl Lost {
    pub(crate) fn of(packets: &[AckedOrLostPacket]) -> Self {
        let mut lost = Self::default();
        packets.iter().for_each(|packet| lost.add(packet));
        lost
    }

    pub(crate) fn add(&mut self, packet: &AckedOrLostPacket) {
        if packet.is_non_path_loss {
            self.non_path_losses += 1;
            self.excused_bytes += u64::from(packet.ip_bytes);
        } else if !packet.is_of_its_size() {
            self.by_congestion += 1;
        }
    }
}

/// The largest newly acknowledged packet: the one that an RTT sample is taken from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LargestAcked {
    pub(crate) sent_at: Instant,
    pub(crate) ip_bytes: u16,
    pub(crate) self_queueing: SelfQueueing,
    pub(crate) owner: ChargedTenant,
}

/// What an acknowledgement brought.
#[derive(Debug, Default)]
pub(crate) struct AckOutcome {
    pub(crate) acked: Vec<AckedOrLostPacket>,
    /// `None` if the largest was acknowledged before or its send time is not known.
    pub(crate) largest: Option<LargestAcked>,
}

/// Loss recovery of one path.
#[derive(Debug, Default)]
pub(crate) struct LossRecovery {
    /// Number of the first packet in `packets`.
    base: u64,
    packets: VecDeque<SentPacket>,
    largest_acked: Option<u64>,
    /// No packet with a lower number is outstanding.
    first_outstanding: u64,
    /// Packets in the states `Lost` and `PtoRetransmitted`, which a late acknowledgement resolves. Below
    /// `first_outstanding` it can change nothing else.
    late_ackable: BTreeSet<u64>,
    /// Of those, the ones in state `PtoRetransmitted`.
    pto_retransmitted: BTreeSet<u64>,
    packet_threshold: u64,
    outstanding: usize,
    /// Outstanding packets that report outcomes of the peer's messages.
    outcomes_in_flight: usize,
    bytes_in_flight: u64,
    last_eliciting_at: Option<Instant>,
    /// When the first packet left that nothing has been acknowledged since.
    unanswered_since: Option<Instant>,
    /// Probe timeouts since the last acknowledgement.
    pto_count: u32,
    last_pto_at: Option<Instant>,
    /// Packets below left before the path last went down.
    first_number_after_outage: u64,
    /// Of the path's counters, those of packets by what became of them. MTU probes are acknowledged only.
    counters: PathStats,
    /// Of the spurious losses, those sent before the path last went down: that they arrived says nothing about the
    /// path since.
    spurious_after_outage: u64,
}

impl LossRecovery {
    /// Begins with packet number `base`.
    pub(crate) fn starting_at(base: u64) -> Self {
        Self {
            base,
            first_outstanding: base,
            ..Self::default()
        }
    }

    /// Of the path's counters, those that are counted here.
    pub(crate) fn counters(&self) -> &PathStats {
        &self.counters
    }

    /// Losses that turned out to be spurious after the path had gone down.
    pub(crate) fn spurious_after_outage(&self) -> u64 {
        self.spurious_after_outage
    }

    /// IP bytes of outstanding packets.
    pub(crate) fn bytes_in_flight(&self) -> u64 {
        self.bytes_in_flight
    }

    /// IP bytes of a tenant's packets that are neither acknowledged nor confirmed to be lost. Costs a
    /// visit of every packet.
    pub(crate) fn unresolved_bytes_of(&self, tenant: TenantId) -> u64 {
        let unresolved = |packet: &&SentPacket| {
            packet.owner.tenant == tenant
                && matches!(packet.state, State::Outstanding | State::PtoRetransmitted)
        };
        let packets = self.packets.iter().filter(unresolved);
        packets.map(|packet| u64::from(packet.ip_bytes)).sum()
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.base + self.packets.len() as u64
    }

    /// No more may be sent before something is acknowledged, other than probes.
    pub(crate) fn is_full(&self) -> bool {
        self.packets.len() >= PACKETS_MAX
    }

    pub(crate) fn has_outstanding(&self) -> bool {
        self.outstanding > 0
    }

    /// Outcomes of the peer's messages are in flight.
    pub(crate) fn has_outstanding_outcomes(&self) -> bool {
        self.outcomes_in_flight > 0
    }

    /// Records the packet `next_number()`.
    pub(crate) fn on_sent(&mut self, now: Instant, packet: NewPacket) {
        // On a path that never answers, challenges would stay for ever.
        while self
            .packets
            .front()
            .is_some_and(|packet| packet.state == State::Resolved)
        {
            self.packets.pop_front();
            self.base += 1;
        }
        let eliciting = packet.kind.is_ack_eliciting();
        if eliciting {
            self.outstanding += 1;
            self.outcomes_in_flight += usize::from(packet.frames.carries_outcome());
            self.bytes_in_flight += u64::from(packet.ip_bytes);
            self.last_eliciting_at = Some(now);
            self.unanswered_since.get_or_insert(now);
        }
        self.packets.push_back(SentPacket {
            at: now,
            rtt_eligible: true,
            ip_bytes: packet.ip_bytes,
            kind: packet.kind,
            state: match eliciting {
                true => State::Outstanding,
                false => State::Resolved,
            },
            frames: packet.frames,
            self_queueing: packet.self_queueing,
            owner: packet.owner,
        });
    }

    /// Packets recorded as sent at or after `polled_at` may have left as late as `until`, because the
    /// sender was descheduled. Silence counts from the latest possible send time, and these packets
    /// give no RTT sample.
    pub(crate) fn on_late_departure(&mut self, polled_at: Instant, until: Instant) {
        let late = self.packets.iter_mut().rev();
        for packet in late.take_while(|packet| packet.at >= polled_at) {
            packet.at = until;
            packet.rtt_eligible = false;
        }
        for time in [&mut self.last_eliciting_at, &mut self.unanswered_since] {
            *time = time.map(|at| if at >= polled_at { until } else { at });
        }
    }

    /// Takes acknowledged ranges (inclusive, from the largest down). `None`: the peer acknowledges
    /// packets that were never sent.
    pub(crate) fn on_ack(
        &mut self,
        largest: u64,
        ranges: impl Iterator<Item = (u64, u64)>,
    ) -> Option<AckOutcome> {
        if largest >= self.next_number() {
            return None;
        }
        let mut outcome = AckOutcome::default();
        for (low, high) in ranges {
            if high < self.base {
                break;
            }
            // Acknowledgements repeat what earlier ones said: below `first_outstanding` only packets that were
            // declared lost can be newly acknowledged.
            let late: Vec<u64> = self
                .late_ackable
                .range(low.min(high)..=high)
                .copied()
                .collect();
            for number in late {
                self.ack_one(number, &mut outcome);
            }
            for number in low.max(self.first_outstanding).max(self.base)..=high {
                self.ack_one(number, &mut outcome);
            }
        }
        self.advance_first_outstanding();
        if self.largest_acked.is_none_or(|known| largest > known) {
            self.largest_acked = Some(largest);
            outcome.largest = self
                .packet(largest)
                .filter(|packet| packet.kind.is_ack_eliciting() && packet.rtt_eligible)
                .map(|packet| LargestAcked {
                    sent_at: packet.at,
                    ip_bytes: packet.ip_bytes,
                    self_queueing: packet.self_queueing,
                    owner: packet.owner,
                });
        }
        if !outcome.acked.is_empty() {
            self.pto_count = 0;
            self.unanswered_since = self.first_eliciting_after(self.largest_acked);
        }
        Some(outcome)
    }

    /// Declares lost what the acknowledgements so far imply, PTO-retransmitted packets included.
    pub(crate) fn detect_lost(
        &mut self,
        now: Instant,
        rtt: &RttEstimator,
    ) -> Vec<AckedOrLostPacket> {
        let Some(largest) = self.largest_acked else {
            self.forget_resolved(now, rtt);
            return Vec::new();
        };
        let loss_delay = rtt.loss_delay();
        let threshold = self.packet_threshold.max(PACKET_THRESHOLD_MIN);
        let mut lost = Vec::new();
        let end = largest
            .saturating_sub(self.base)
            .min(self.packets.len() as u64);
        for index in self.first_outstanding.max(self.base) - self.base..end {
            let number = self.base + index;
            let packet = &self.packets[index as usize];
            if number + threshold > largest && packet.at + loss_delay > now {
                // Later packets are younger and nearer to the largest.
                break;
            }
            if packet.state == State::Outstanding {
                lost.push(self.mark_not_in_flight(number, State::Lost));
            }
        }
        self.advance_first_outstanding();
        lost.extend(self.confirm_losses(|number, packet| {
            number < largest && (number + threshold <= largest || packet.at + loss_delay <= now)
        }));
        self.forget_resolved(now, rtt);
        lost
    }

    /// When the time threshold declares the next packet lost.
    pub(crate) fn loss_deadline(&self, rtt: &RttEstimator) -> Option<Instant> {
        let largest = self.largest_acked?;
        let end = (largest.saturating_sub(self.base) as usize).min(self.packets.len());
        let start = (self.first_outstanding.saturating_sub(self.base) as usize).min(end);
        let mut undecided = self.packets.range(start..end);
        let outstanding = undecided.find(|packet| packet.state == State::Outstanding);
        let pto_retransmitted = self
            .pto_retransmitted
            .first()
            .filter(|number| **number < largest);
        let pto_retransmitted = pto_retransmitted.and_then(|number| self.packet(*number));
        let deadlines = outstanding.into_iter().chain(pto_retransmitted);
        deadlines.map(|packet| packet.at + rtt.loss_delay()).min()
    }

    /// The probe timeout. The first follows RFC 9002 §6.2; later ones do not back off, because silence
    /// has to be distinguished from loss before the path is given up.
    pub(crate) fn pto_deadline(
        &self,
        rtt: &RttEstimator,
        ack_delay_max: Duration,
    ) -> Option<Instant> {
        if self.unanswered_since.is_none() && self.outstanding == 0 {
            return None;
        }
        let last = self.last_eliciting_at?;
        let timeout = rtt.probe_timeout(ack_delay_max);
        Some(match self.last_pto_at.filter(|_| self.pto_count > 0) {
            None => last + timeout,
            Some(probe) => probe + timeout.min(PROBE_SPACING),
        })
    }

    /// The probe timeout has expired: returns the two oldest packets, whose content is retransmitted
    /// as probes. That does not mean that they are lost (RFC 9002 §6.2): [`detect_lost`](Self::detect_lost)
    /// decides that once something is acknowledged.
    pub(crate) fn on_pto(&mut self, now: Instant) -> Vec<AckedOrLostPacket> {
        self.pto_count += 1;
        self.last_pto_at = Some(now);
        let oldest: Vec<u64> = self.outstanding_numbers().take(2).collect();
        let retransmitted = oldest
            .into_iter()
            .map(|number| self.mark_not_in_flight(number, State::PtoRetransmitted))
            .collect();
        self.advance_first_outstanding();
        retransmitted
    }

    /// The path has answered at another address. What is in flight went to the one before, so that its silence
    /// says nothing.
    pub(crate) fn on_moved(&mut self, now: Instant) {
        self.unanswered_since = self.unanswered_since.map(|since| since.max(now));
    }

    /// When the oldest ack-eliciting packet left that nothing has been acknowledged since; `None`:
    /// no answer is owed.
    pub(crate) fn unanswered_since(&self) -> Option<Instant> {
        self.unanswered_since
    }

    /// The peer has restarted: packet numbers begin again from `base`. The statistics go on.
    pub(crate) fn restart(&mut self, base: u64) {
        *self = Self {
            counters: self.counters,
            spurious_after_outage: self.spurious_after_outage,
            ..Self::starting_at(base)
        };
    }

    /// The path is down: everything outstanding is lost.
    pub(crate) fn declare_all_lost(&mut self) -> Vec<AckedOrLostPacket> {
        let outstanding: Vec<u64> = self.outstanding_numbers().collect();
        let mut lost = self.confirm_losses(|_, _| true);
        let all = outstanding.into_iter();
        lost.extend(all.map(|number| self.mark_not_in_flight(number, State::Lost)));
        self.advance_first_outstanding();
        self.unanswered_since = None;
        self.pto_count = 0;
        self.first_number_after_outage = self.next_number();
        lost
    }

    fn outstanding_numbers(&self) -> impl Iterator<Item = u64> {
        let first = self.first_outstanding.max(self.base);
        let packets = self.packets.range((first - self.base) as usize..);
        (first..)
            .zip(packets)
            .filter(|(_, packet)| packet.state == State::Outstanding)
            .map(|(number, _)| number)
    }

    fn ack_one(&mut self, number: u64, outcome: &mut AckOutcome) {
        let Some(index) = self.index_of(number) else {
            return;
        };
        let packet = &mut self.packets[index];
        let before = std::mem::replace(&mut packet.state, State::Resolved);
        let is_mtu_probe = packet.kind == PacketKind::MtuProbe;
        match before {
            State::Resolved => return,
            State::Outstanding => {
                self.outstanding -= 1;
                self.outcomes_in_flight -= usize::from(packet.frames.carries_outcome());
                self.bytes_in_flight -= u64::from(packet.ip_bytes);
                self.counters.acked_packets += 1;
            }
            State::Lost | State::PtoRetransmitted => {
                self.late_ackable.remove(&number);
                self.pto_retransmitted.remove(&number);
                self.on_spurious(number, is_mtu_probe);
            }
        }
        let packet = &mut self.packets[index];
        outcome.acked.push(AckedOrLostPacket {
            number,
            ip_bytes: packet.ip_bytes,
            frames: std::mem::take(&mut packet.frames),
            owner: packet.owner,
            // The controller has not heard of a loss that was not confirmed.
            was_lost: before == State::Lost,
            was_retransmitted: before != State::Outstanding,
            was_pto_retransmitted: false,
            is_mtu_probe,
            is_beyond_mtu: false,
            is_non_path_loss: false,
        });
    }

    /// A packet that was taken for lost has arrived.
    fn on_spurious(&mut self, number: u64, is_mtu_probe: bool) {
        let is_after_outage = number < self.first_number_after_outage;
        if !is_mtu_probe {
            self.counters.acked_packets += 1;
            self.counters.spurious_lost_packets += 1;
            self.spurious_after_outage += u64::from(is_after_outage);
        }
        if !is_after_outage {
            let largest = self.largest_acked;
            let late_by = largest.map_or(0, |largest| largest.saturating_sub(number));
            let threshold = self.packet_threshold.max(late_by + 1);
            self.packet_threshold = threshold.min(PACKET_THRESHOLD_MAX);
        }
    }

    /// An outstanding packet goes to `state`, lost or PTO-retransmitted, and is not in flight any more. Its
    /// content stays with it, because it may still turn out to have arrived.
    fn mark_not_in_flight(&mut self, number: u64, state: State) -> AckedOrLostPacket {
        let packet = &mut self.packets[(number - self.base) as usize];
        debug_assert_eq!(
            packet.state,
            State::Outstanding,
            "only outstanding packets leave the flight"
        );
        packet.state = state;
        let is_mtu_probe = packet.kind == PacketKind::MtuProbe;
        self.late_ackable.insert(number);
        if state == State::PtoRetransmitted {
            self.pto_retransmitted.insert(number);
        }
        self.outstanding -= 1;
        self.outcomes_in_flight -= usize::from(packet.frames.carries_outcome());
        self.bytes_in_flight -= u64::from(packet.ip_bytes);
        self.counters.lost_packets += u64::from(!is_mtu_probe);
        AckedOrLostPacket {
            number,
            ip_bytes: packet.ip_bytes,
            frames: match state {
                State::Lost => packet.frames.take_lost(),
                _ => packet.frames.clone(),
            },
            owner: packet.owner,
            was_lost: false,
            was_retransmitted: false,
            was_pto_retransmitted: false,
            is_mtu_probe,
            is_beyond_mtu: false,
            is_non_path_loss: false,
        }
    }

    /// Declares lost those PTO-retransmitted packets for which `is_lost` holds.
    fn confirm_losses(
        &mut self,
        is_lost: impl Fn(u64, &SentPacket) -> bool,
    ) -> Vec<AckedOrLostPacket> {
        let mut lost = Vec::new();
        for &number in &self.pto_retransmitted {
            let packet = &mut self.packets[(number - self.base) as usize];
            if is_lost(number, packet) {
                packet.state = State::Lost;
                packet.frames.forget_lost();
                lost.push(AckedOrLostPacket {
                    number,
                    ip_bytes: packet.ip_bytes,
                    frames: SentFrames::None,
                    owner: packet.owner,
                    was_lost: false,
                    was_retransmitted: false,
                    was_pto_retransmitted: true,
                    is_mtu_probe: packet.kind == PacketKind::MtuProbe,
                    is_beyond_mtu: false,
                    is_non_path_loss: false,
                });
            }
        }
        for packet in &lost {
            self.pto_retransmitted.remove(&packet.number);
        }
        lost
    }

    /// Forgets packets at the front that no acknowledgement is expected of any more.
    fn forget_resolved(&mut self, now: Instant, rtt: &RttEstimator) {
        let keep_for = rtt.loss_delay() * 3;
        while let Some(front) = self.packets.front() {
            let forget = match front.state {
                State::Outstanding | State::PtoRetransmitted => false,
                State::Lost => front.at + keep_for <= now,
                State::Resolved => true,
            };
            if !forget {
                return;
            }
            self.late_ackable.remove(&self.base);
            self.packets.pop_front();
            self.base += 1;
        }
    }

    /// Packets never become outstanding again, so this visits each once.
    fn advance_first_outstanding(&mut self) {
        self.first_outstanding = self.first_outstanding.max(self.base);
        while self
            .packet(self.first_outstanding)
            .is_some_and(|packet| packet.state != State::Outstanding)
        {
            self.first_outstanding += 1;
        }
    }

    fn index_of(&self, number: u64) -> Option<usize> {
        let index = usize::try_from(number.checked_sub(self.base)?).ok()?;
        (index < self.packets.len()).then_some(index)
    }

    fn packet(&self, number: u64) -> Option<&SentPacket> {
        self.packets.get(self.index_of(number)?)
    }

    fn first_eliciting_after(&self, largest: Option<u64>) -> Option<Instant> {
        let start = largest
            .map_or(self.base, |largest| largest + 1)
            .max(self.base);
        let index = usize::try_from(start - self.base)
            .ok()?
            .min(self.packets.len());
        self.packets
            .range(index..)
            .find(|packet| packet.kind.is_ack_eliciting())
            .map(|packet| packet.at)
    }

    /// Counters and sets agree with the packets. Costs a visit of every packet.
    ///
    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
        let numbered = || (self.base..).zip(&self.packets);
        let in_state = |state| {
            numbered()
                .filter(move |(_, packet)| packet.state == state)
                .map(|(number, _)| number)
        };
        let outstanding = || {
            let packets = self.packets.iter();
            packets.filter(|packet| packet.state == State::Outstanding)
        };
        assert_eq!(
            self.outstanding,
            outstanding().count(),
            "outstanding packets"
        );
        let bytes = outstanding().map(|packet| u64::from(packet.ip_bytes));
        assert_eq!(self.bytes_in_flight, bytes.sum::<u64>(), "bytes in flight");
        let outcomes = outstanding().filter(|packet| packet.frames.carries_outcome());
        assert_eq!(self.outcomes_in_flight, outcomes.count(), "outcomes");
        assert!(
            in_state(State::Outstanding).all(|number| number >= self.first_outstanding),
            "no packet below `first_outstanding` is outstanding"
        );
        assert!(
            in_state(State::PtoRetransmitted).eq(self.pto_retransmitted.iter().copied()),
            "PTO-retransmitted packets"
        );
        let mut late_ackable: Vec<u64> = in_state(State::Lost).collect();
        late_ackable.extend(&self.pto_retransmitted);
        late_ackable.sort_unstable();
        assert!(
            self.late_ackable.iter().eq(&late_ackable),
            "packets taken for lost"
        );
        let (counters, late) = (&self.counters, self.spurious_after_outage);
        let spurious = counters.spurious_lost_packets;
        let of = counters.lost_packets.min(counters.acked_packets);
        assert!(
            late <= spurious && spurious <= of,
            "spurious losses are losses and were acknowledged"
        );
        assert!(self.packet_threshold <= PACKET_THRESHOLD_MAX, "threshold");
        let largest = self.largest_acked;
        assert!(
            largest.is_none_or(|largest| largest < self.next_number()),
            "only sent packets are acknowledged"
        );
        assert!(
            self.outstanding == 0 || self.last_eliciting_at.is_some(),
            "an outstanding packet was sent at some time"
        );
    }
}

#[cfg(test)]
mod tests;
