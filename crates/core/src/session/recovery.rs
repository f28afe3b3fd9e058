//! Packets sent on one path and not yet answered for: what is acknowledged, what is lost.
//!
//! Loss detection follows RFC 9002 §6 (packet and time threshold, probes for the tail); there is
//! no congestion window here: the pacer owns the rate. What a probe repeats counts as lost on the
//! path until it is heard of, but not yet towards its tenant.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use keiro_units::Instant;

use super::{estimates::SelfQueueing, rtt::RttEstimator};
use crate::{
    event::ResetReason,
    id::{AppId, StreamId, TenantId},
};

/// RFC 9002 §6.1.1 kPacketThreshold: the least reordering that is not taken for loss.
const REORDERING_MIN: u64 = 3;
/// Bound of the threshold as it learns from packets that were declared lost and arrived.
const REORDERING_MAX: u64 = 256;
/// Packets remembered at most: 10 Gbit/s of full packets for 150 ms. Then sending waits.
const PACKETS_MAX: usize = 1 << 17;
/// Time between the probes of one silence at most: several fit into the 80 ms that a path is granted.
const PROBE_SPACING: Duration = Duration::from_millis(15);

/// A part of a packet that matters when the packet is lost or acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SentFrame {
    /// Bytes `start..end` of our message `message` (local number).
    Message {
        message: u64,
        start: u32,
        end: u32,
    },
    MessageDone {
        id: u64,
        status: crate::wire::MessageStatus,
        whole_at: u32,
    },
    MessageDrop {
        id: u64,
        total: u32,
    },
    Credit,
    /// Bytes `start..end` of a stream, and with `fin` its end.
    Stream {
        stream: StreamId,
        start: u64,
        end: u64,
        fin: bool,
    },
    StreamOpen(StreamId),
    /// The newest credit of a stream, whichever it was.
    StreamCredit(StreamId),
    /// What we have given back of a stream's credit, the newest sum.
    StreamReturn(StreamId),
    StreamReset {
        stream: StreamId,
        reason: ResetReason,
    },
    /// A datagram of this application: not repaired, only counted.
    Datagram {
        app: AppId,
    },
    /// An acknowledgement of the peer's path `path` up to packet `largest`: never repeated, the next
    /// one tells more.
    Ack {
        path: u8,
        largest: u64,
    },
}

/// The frames of one packet; most have one, or an acknowledgement beside it.
#[derive(Clone, Debug, Default)]
pub(crate) enum SentFrames {
    #[default]
    None,
    One(SentFrame),
    Two([SentFrame; 2]),
    Many(Vec<SentFrame>),
}

impl SentFrames {
    pub(crate) fn push(&mut self, frame: SentFrame) {
        match self {
            Self::None => *self = Self::One(frame),
            Self::One(first) => *self = Self::Two([*first, frame]),
            Self::Two([first, second]) => *self = Self::Many(vec![*first, *second, frame]),
            Self::Many(frames) => frames.push(frame),
        }
    }

    pub(crate) fn as_slice(&self) -> &[SentFrame] {
        match self {
            Self::None => &[],
            Self::One(frame) => std::slice::from_ref(frame),
            Self::Two(frames) => frames,
            Self::Many(frames) => frames,
        }
    }

    /// One of them says what became of a message.
    fn carries_outcome(&self) -> bool {
        let tells = |frame: &SentFrame| matches!(frame, SentFrame::MessageDone { .. });
        self.as_slice().iter().any(tells)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Outstanding,
    Lost,
    /// Acknowledged, or never asked for it.
    Resolved,
}

/// Whose packet it is: its window counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) tenant: TenantId,
    /// The two ECN bits of its outer header.
    pub(crate) ecn: u8,
}

#[derive(Debug)]
struct SentPacket {
    at: Instant,
    /// It left at that time, and not at some time before.
    rtt_eligible: bool,
    ip_bytes: u16,
    eliciting: bool,
    state: State,
    frames: SentFrames,
    place: SelfQueueing,
    owner: Owner,
}

/// A packet that was acknowledged or lost.
#[derive(Debug)]
pub(crate) struct ResolvedPacket {
    pub(crate) number: u64,
    pub(crate) ip_bytes: u16,
    pub(crate) frames: SentFrames,
    pub(crate) owner: Owner,
    /// Acknowledged after it was declared lost.
    pub(crate) was_lost: bool,
    /// Declared lost after a probe had repeated it: it is repaired already.
    pub(crate) was_pto_retransmitted: bool,
}

/// The packet whose arrival an acknowledgement tells.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LargestAcked {
    pub(crate) sent_at: Instant,
    pub(crate) ip_bytes: u16,
    pub(crate) place: SelfQueueing,
    pub(crate) owner: Owner,
}

/// What an acknowledgement brought.
#[derive(Debug, Default)]
pub(crate) struct AckOutcome {
    pub(crate) acked: Vec<ResolvedPacket>,
    /// The largest newly acknowledged packet; `None` if the largest is old news, or nobody knows when it left.
    pub(crate) largest: Option<LargestAcked>,
}

/// The packets of one path, by number.
#[derive(Debug, Default)]
pub(crate) struct SentPackets {
    /// Number of the first packet in `packets`.
    base: u64,
    packets: VecDeque<SentPacket>,
    largest_acked: Option<u64>,
    /// No packet below is outstanding.
    oldest: u64,
    /// Packets in state `Lost`: all that an acknowledgement may still change below `oldest`.
    lost: BTreeSet<u64>,
    /// Those of them that a probe repeated, while nothing says that they did not arrive.
    pto_retransmitted: BTreeSet<u64>,
    reordering: u64,
    outstanding: usize,
    /// Outstanding packets that tell what became of the peer's messages.
    outcomes_in_flight: usize,
    pub(crate) bytes_in_flight: u64,
    last_eliciting_at: Option<Instant>,
    /// Since when nothing that was sent has been answered.
    unanswered_since: Option<Instant>,
    probes: u32,
    last_probe_at: Option<Instant>,
    pub(crate) acked_total: u64,
    pub(crate) lost_total: u64,
    pub(crate) spurious_total: u64,
    /// Packets below were sent before the path last died: whether they arrived after all says nothing
    /// of what it is like since.
    first_pn_after_outage: u64,
    /// Of those that arrived after all, the ones from before a death.
    pub(crate) spurious_after_outage: u64,
}

impl SentPackets {
    /// Begins with packet number `base`.
    pub(crate) fn starting_at(base: u64) -> Self {
        Self {
            base,
            oldest: base,
            ..Self::default()
        }
    }

    /// Number of the next packet.
    pub(crate) fn next_number(&self) -> u64 {
        self.base + self.packets.len() as u64
    }

    /// No more may be sent until something is answered.
    pub(crate) fn is_full(&self) -> bool {
        self.packets.len() >= PACKETS_MAX
    }

    pub(crate) fn has_outstanding(&self) -> bool {
        self.outstanding > 0
    }

    /// The peer may not know yet what became of its messages.
    pub(crate) fn has_outstanding_outcomes(&self) -> bool {
        self.outcomes_in_flight > 0
    }

    /// Records the packet `next_number()`.
    pub(crate) fn on_sent(
        &mut self,
        now: Instant,
        ip_bytes: u16,
        eliciting: bool,
        frames: SentFrames,
        (place, owner): (SelfQueueing, Owner),
    ) {
        // Challenges on a path that never answers would stay for ever.
        while self
            .packets
            .front()
            .is_some_and(|packet| packet.state == State::Resolved)
        {
            self.packets.pop_front();
            self.base += 1;
        }
        let state = if eliciting {
            State::Outstanding
        } else {
            State::Resolved
        };
        self.outcomes_in_flight += usize::from(eliciting && frames.carries_outcome());
        self.packets.push_back(SentPacket {
            at: now,
            rtt_eligible: true,
            ip_bytes,
            eliciting,
            state,
            frames,
            place,
            owner,
        });
        if eliciting {
            self.outstanding += 1;
            self.bytes_in_flight += u64::from(ip_bytes);
            self.last_eliciting_at = Some(now);
            self.unanswered_since.get_or_insert(now);
        }
    }

    /// What is recorded as sent at `stamped` may have left as late as `until`: silence counts from then,
    /// and how long its answer took is not known.
    pub(crate) fn on_late_departure(&mut self, stamped: Instant, until: Instant) {
        let late = self.packets.iter_mut().rev();
        for packet in late.take_while(|packet| packet.at >= stamped) {
            packet.at = until;
            packet.rtt_eligible = false;
        }
        for time in [&mut self.last_eliciting_at, &mut self.unanswered_since] {
            *time = time.map(|at| if at >= stamped { until } else { at });
        }
    }

    /// Takes acknowledged ranges (inclusive, from the largest down). `None`: the peer acknowledges
    /// what was never sent.
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
            // Each acknowledgement repeats what earlier ones said: below `oldest` only what was taken
            // for lost can be news.
            let below: Vec<u64> = self.lost.range(low.min(high)..=high).copied().collect();
            for number in below {
                self.ack_one(number, &mut outcome);
            }
            for number in low.max(self.oldest).max(self.base)..=high {
                self.ack_one(number, &mut outcome);
            }
        }
        self.advance_oldest();
        if self.largest_acked.is_none_or(|known| largest > known) {
            self.largest_acked = Some(largest);
            outcome.largest = self
                .packet(largest)
                .filter(|packet| packet.eliciting && packet.rtt_eligible)
                .map(|packet| LargestAcked {
                    sent_at: packet.at,
                    ip_bytes: packet.ip_bytes,
                    place: packet.place,
                    owner: packet.owner,
                });
        }
        if !outcome.acked.is_empty() {
            self.probes = 0;
            self.unanswered_since = self.first_eliciting_after(self.largest_acked);
        }
        Some(outcome)
    }

    /// Declares lost what the acknowledgements so far imply, also of what was repeated by a probe.
    pub(crate) fn detect_lost(&mut self, now: Instant, rtt: &RttEstimator) -> Vec<ResolvedPacket> {
        let Some(largest) = self.largest_acked else {
            return Vec::new();
        };
        let loss_delay = rtt.loss_delay();
        let threshold = self.reordering.max(REORDERING_MIN);
        let mut lost = Vec::new();
        let end = largest
            .saturating_sub(self.base)
            .min(self.packets.len() as u64);
        for index in self.oldest.max(self.base) - self.base..end {
            let number = self.base + index;
            let packet = &self.packets[index as usize];
            if number + threshold > largest && packet.at + loss_delay > now {
                // Later ones are younger and nearer.
                break;
            }
            if packet.state == State::Outstanding {
                lost.push(self.lose(number));
            }
        }
        self.advance_oldest();
        lost.extend(self.confirm_losses(|number, packet| {
            number < largest && (number + threshold <= largest || packet.at + loss_delay <= now)
        }));
        self.forget_resolved(now, rtt);
        lost
    }

    /// When `detect_lost` should be called again by time alone.
    pub(crate) fn loss_deadline(&self, rtt: &RttEstimator) -> Option<Instant> {
        let largest = self.largest_acked?;
        let end = (largest.saturating_sub(self.base) as usize).min(self.packets.len());
        let start = (self.oldest.saturating_sub(self.base) as usize).min(end);
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

    /// When the tail should be probed. The first probe follows RFC 9002; later ones come as quickly, and not
    /// ever later, because silence has to be told from loss before the path is given up.
    pub(crate) fn probe_deadline(
        &self,
        rtt: &RttEstimator,
        ack_delay_max: Duration,
    ) -> Option<Instant> {
        if self.unanswered_since.is_none() && self.outstanding == 0 {
            return None;
        }
        let last = self.last_eliciting_at?;
        let timeout = rtt.probe_timeout(ack_delay_max);
        Some(match self.last_probe_at.filter(|_| self.probes > 0) {
            None => last + timeout,
            Some(probe) => probe + timeout.min(PROBE_SPACING),
        })
    }

    /// A probe is due: gives out the oldest packets, so that their content is what probes. That
    /// nothing was heard says nothing about them (RFC 9002 §6.2): whether they are lost is told
    /// by [`detect_lost`](Self::detect_lost) once something is acknowledged.
    pub(crate) fn on_probe(&mut self, now: Instant) -> Vec<ResolvedPacket> {
        self.probes += 1;
        self.last_probe_at = Some(now);
        let oldest: Vec<u64> = (self.oldest.max(self.base)..self.next_number())
            .filter(|number| {
                self.packets[(number - self.base) as usize].state == State::Outstanding
            })
            .take(2)
            .collect();
        self.pto_retransmitted.extend(&oldest);
        let repeated = oldest.into_iter().map(|number| self.lose(number)).collect();
        self.advance_oldest();
        repeated
    }

    /// Since when nothing that was sent has been answered.
    pub(crate) fn unanswered_since(&self) -> Option<Instant> {
        self.unanswered_since
    }

    /// The peer has restarted: numbers begin again from zero. What is counted stays.
    pub(crate) fn restart(&mut self) {
        *self = Self {
            acked_total: self.acked_total,
            lost_total: self.lost_total,
            spurious_total: self.spurious_total,
            spurious_after_outage: self.spurious_after_outage,
            ..Self::default()
        };
    }

    /// The path is dead: everything outstanding is lost.
    pub(crate) fn lose_all(&mut self) -> Vec<ResolvedPacket> {
        let outstanding: Vec<u64> = (self.oldest.max(self.base)..self.next_number())
            .filter(|number| {
                self.packets[(number - self.base) as usize].state == State::Outstanding
            })
            .collect();
        let mut lost = self.confirm_losses(|_, _| true);
        lost.extend(outstanding.into_iter().map(|number| self.lose(number)));
        self.advance_oldest();
        self.unanswered_since = None;
        self.probes = 0;
        self.first_pn_after_outage = self.next_number();
        lost
    }

    fn ack_one(&mut self, number: u64, outcome: &mut AckOutcome) {
        let largest_acked = self.largest_acked;
        let Some(packet) = number
            .checked_sub(self.base)
            .and_then(|index| self.packets.get_mut(usize::try_from(index).ok()?))
        else {
            return;
        };
        match packet.state {
            State::Resolved => return,
            State::Outstanding => {
                self.outstanding -= 1;
                self.outcomes_in_flight -= usize::from(packet.frames.carries_outcome());
                self.bytes_in_flight -= u64::from(packet.ip_bytes);
            }
            State::Lost => {
                self.lost.remove(&number);
                self.spurious_total += 1;
                if number < self.first_pn_after_outage {
                    self.spurious_after_outage += 1;
                    return self.settle(number, true, outcome);
                }
                let late_by = largest_acked.map_or(0, |largest| largest.saturating_sub(number));
                self.reordering = self.reordering.max(late_by + 1).min(REORDERING_MAX);
            }
        }
        // Of one that was only pto_retransmitted nobody was told.
        let was_lost = packet.state == State::Lost && !self.pto_retransmitted.remove(&number);
        self.settle(number, was_lost, outcome);
    }

    fn settle(&mut self, number: u64, was_lost: bool, outcome: &mut AckOutcome) {
        let packet = &mut self.packets[(number - self.base) as usize];
        packet.state = State::Resolved;
        self.acked_total += 1;
        outcome.acked.push(ResolvedPacket {
            number,
            ip_bytes: packet.ip_bytes,
            frames: std::mem::take(&mut packet.frames),
            owner: packet.owner,
            was_lost,
            was_pto_retransmitted: false,
        });
    }

    /// The content stays with the packet: it may still turn out to have arrived.
    fn lose(&mut self, number: u64) -> ResolvedPacket {
        let packet = &mut self.packets[(number - self.base) as usize];
        debug_assert_eq!(
            packet.state,
            State::Outstanding,
            "only outstanding packets get lost"
        );
        packet.state = State::Lost;
        self.lost.insert(number);
        self.outstanding -= 1;
        self.outcomes_in_flight -= usize::from(packet.frames.carries_outcome());
        self.bytes_in_flight -= u64::from(packet.ip_bytes);
        self.lost_total += 1;
        ResolvedPacket {
            number,
            ip_bytes: packet.ip_bytes,
            frames: packet.frames.clone(),
            owner: packet.owner,
            was_lost: false,
            was_pto_retransmitted: false,
        }
    }

    /// Of what probes have repeated, that which is lost.
    fn confirm_losses(
        &mut self,
        is_lost: impl Fn(u64, &SentPacket) -> bool,
    ) -> Vec<ResolvedPacket> {
        let mut lost = Vec::new();
        for &number in &self.pto_retransmitted {
            let packet = self.packet(number);
            if let Some(packet) = packet.filter(|packet| is_lost(number, packet)) {
                lost.push(ResolvedPacket {
                    number,
                    ip_bytes: packet.ip_bytes,
                    frames: SentFrames::None,
                    owner: packet.owner,
                    was_lost: false,
                    was_pto_retransmitted: true,
                });
            }
        }
        for packet in &lost {
            self.pto_retransmitted.remove(&packet.number);
        }
        lost
    }

    /// Drops packets at the front that nothing is expected of any more.
    fn forget_resolved(&mut self, now: Instant, rtt: &RttEstimator) {
        let keep_for = rtt.loss_delay() * 3;
        while let Some(front) = self.packets.front() {
            let forget = match front.state {
                State::Outstanding => false,
                State::Lost if self.pto_retransmitted.contains(&self.base) => false,
                State::Lost => front.at + keep_for <= now,
                State::Resolved => true,
            };
            if !forget {
                return;
            }
            self.lost.remove(&self.base);
            self.packets.pop_front();
            self.base += 1;
        }
    }

    /// Packets never become outstanding again: this looks at each once.
    fn advance_oldest(&mut self) {
        self.oldest = self.oldest.max(self.base);
        while self
            .packet(self.oldest)
            .is_some_and(|packet| packet.state != State::Outstanding)
        {
            self.oldest += 1;
        }
    }

    fn packet(&self, number: u64) -> Option<&SentPacket> {
        self.packets
            .get(usize::try_from(number.checked_sub(self.base)?).ok()?)
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
            .find(|packet| packet.eliciting)
            .map(|packet| packet.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn rtt_of(ms: u32) -> RttEstimator {
        let mut rtt = RttEstimator::default();
        rtt.on_sample(MS * ms, Duration::ZERO);
        rtt
    }

    fn sent(count: u64) -> SentPackets {
        let mut packets = SentPackets::default();
        for ms in 0..count {
            let frames = SentFrames::One(SentFrame::Credit);
            packets.on_sent(at(ms), 1500, true, frames, Default::default());
        }
        packets
    }

    fn ack(packets: &mut SentPackets, low: u64, high: u64) -> AckOutcome {
        packets
            .on_ack(high, [(low, high)].into_iter())
            .expect("sent before")
    }

    #[test]
    fn three_packets_later_is_lost_and_may_turn_out_spurious() {
        let mut packets = sent(5);
        assert_eq!(ack(&mut packets, 1, 2).acked.len(), 2);
        assert!(packets.detect_lost(at(5), &rtt_of(10)).is_empty());
        ack(&mut packets, 3, 3);
        let lost = packets.detect_lost(at(5), &rtt_of(10));
        assert_eq!(lost.iter().map(|l| l.number).collect::<Vec<_>>(), [0]);
        let outcome = ack(&mut packets, 0, 0);
        assert_eq!((outcome.acked.len(), packets.spurious_total), (1, 1));
        assert_eq!(packets.bytes_in_flight, 1500);
    }

    #[test]
    fn time_alone_finds_a_loss_before_an_acknowledged_packet() {
        let mut packets = sent(2);
        ack(&mut packets, 1, 1);
        let rtt = rtt_of(80);
        let deadline = packets.loss_deadline(&rtt).unwrap();
        assert_eq!(deadline, at(90));
        assert_eq!(packets.detect_lost(deadline, &rtt).len(), 1);
        assert_eq!(packets.loss_deadline(&rtt), None);
    }

    #[test]
    fn silence_counts_from_the_first_packet_after_the_last_answer() {
        let mut packets = sent(5);
        assert_eq!(packets.unanswered_since(), Some(at(0)));
        ack(&mut packets, 0, 1);
        assert_eq!(packets.unanswered_since(), Some(at(2)));
        ack(&mut packets, 2, 4);
        assert_eq!(packets.unanswered_since(), None);
    }

    #[test]
    fn what_left_late_is_not_silent_since_it_was_stamped_and_times_nothing() {
        let mut packets = sent(3);
        packets.on_late_departure(at(2), at(200));
        assert_eq!(packets.unanswered_since(), Some(at(0)));
        assert!(ack(&mut packets, 0, 1).largest.is_some());
        assert_eq!(packets.unanswered_since(), Some(at(200)));
        assert!(packets.detect_lost(at(201), &rtt_of(10)).is_empty());
        // It had left before all the same.
        let late = ack(&mut packets, 2, 2);
        assert!((late.acked.len(), late.largest.is_none()) == (1, true));
        assert_eq!(packets.unanswered_since(), None);
    }

    #[test]
    fn acknowledging_the_unsent_is_refused() {
        assert!(sent(3).on_ack(3, [(0, 3)].into_iter()).is_none());
    }

    #[test]
    fn probes_repeat_the_oldest_and_come_quickly() {
        let mut packets = sent(3);
        let rtt = rtt_of(100);
        let first = packets.probe_deadline(&rtt, MS).unwrap();
        assert_eq!(first, at(2) + 100 * MS + 35 * MS + MS);
        let lost = packets.on_probe(first);
        assert_eq!(lost.iter().map(|l| l.number).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(
            packets.probe_deadline(&rtt, MS),
            Some(first + PROBE_SPACING)
        );
        // Not slower than the first.
        let near = rtt_of(1);
        let mut packets = sent(3);
        let first = packets.probe_deadline(&near, MS).unwrap();
        packets.on_probe(first);
        let timeout = near.probe_timeout(MS);
        assert!(timeout < PROBE_SPACING);
        assert_eq!(packets.probe_deadline(&near, MS), Some(first + timeout));
    }

    #[test]
    fn what_a_probe_repeats_is_lost_only_once_later_packets_are_heard_of() {
        let rtt = rtt_of(10);
        let mut packets = sent(4);
        packets.on_probe(at(20));
        // The first was late, the second is not heard of.
        let outcome = ack(&mut packets, 0, 0);
        assert!(!outcome.acked[0].was_lost);
        assert!(packets.detect_lost(at(20), &rtt).is_empty());
        ack(&mut packets, 2, 2);
        let deadline = packets.loss_deadline(&rtt).expect("the second is in doubt");
        let lost = packets.detect_lost(deadline, &rtt);
        let told: Vec<_> = lost
            .iter()
            .map(|l| (l.number, l.was_pto_retransmitted))
            .collect();
        assert_eq!(told, [(1, true)]);
        assert_eq!(packets.loss_deadline(&rtt), None);
        // It is told once, also where it arrives after all.
        assert!(packets.lose_all().iter().all(|lost| lost.number != 1));
        assert!(ack(&mut packets, 1, 1).acked[0].was_lost);
    }

    #[test]
    fn what_a_probe_repeats_is_lost_with_its_path() {
        let mut packets = sent(3);
        packets.on_probe(at(20));
        let lost = packets.lose_all();
        let told: Vec<_> = lost
            .iter()
            .map(|l| (l.number, l.was_pto_retransmitted))
            .collect();
        assert_eq!(told, [(0, true), (1, true), (2, false)]);
        assert!(packets.lose_all().is_empty());
    }

    proptest! {
        /// What is counted and remembered to save time is what a look at every packet gives.
        #[test]
        fn shortcuts_agree_with_a_look_at_every_packet(
            steps in proptest::collection::vec((0u8..10, 0u64..40, 0u64..20), 1..200),
        ) {
            let mut packets = SentPackets::starting_at(5);
            let rtt = rtt_of(20);
            for (now, (what, from, len)) in (0..).zip(steps) {
                match what {
                    0..5 => {
                        let id = from;
                        let status = crate::wire::MessageStatus::Delivered;
                        let frame = SentFrame::MessageDone {
                            id,
                            status,
                            whole_at: 0,
                        };
                        let frame = if len > 10 { frame } else { SentFrame::Credit };
                        let frames = SentFrames::One(frame);
                        packets.on_sent(at(now), 100, len > 1, frames, Default::default());
                    }
                    5..8 => {
                        let high = (packets.base + from).min(packets.next_number().saturating_sub(1));
                        packets.on_ack(high, [(high.saturating_sub(len), high)].into_iter());
                        packets.detect_lost(at(now), &rtt);
                        let largest = packets.largest_acked.unwrap_or(0);
                        for number in packets.base..largest {
                            let packet = packets.packet(number).unwrap();
                            let due = number + packets.reordering.max(REORDERING_MIN) <= largest
                                || packet.at + rtt.loss_delay() <= at(now);
                            prop_assert!(!due || packet.state != State::Outstanding);
                        }
                    }
                    8 => drop(packets.on_probe(at(now))),
                    _ => drop(packets.lose_all()),
                }
                let all = || (packets.base..).zip(&packets.packets);
                let count = |wanted| all().filter(|(_, packet)| packet.state == wanted).count();
                prop_assert_eq!(packets.outstanding, count(State::Outstanding));
                prop_assert_eq!(packets.lost.len(), count(State::Lost));
                let outstanding = || all().filter(|(_, packet)| packet.state == State::Outstanding);
                let outcomes_in_flight = outstanding().filter(|(_, packet)| packet.frames.carries_outcome());
                prop_assert_eq!(packets.outcomes_in_flight, outcomes_in_flight.count());
                prop_assert!(outstanding().all(|(number, _)| number >= packets.oldest));
                let end = packets.largest_acked.unwrap_or(0);
                let undecided = all().filter(|(number, packet)| match packet.state {
                    State::Outstanding => *number < end,
                    State::Lost => *number < end && packets.pto_retransmitted.contains(number),
                    State::Resolved => false,
                });
                let deadlines = undecided.map(|(_, packet)| packet.at + rtt.loss_delay());
                let deadline = deadlines.min();
                prop_assert!(packets.pto_retransmitted.is_subset(&packets.lost));
                prop_assert_eq!(packets.loss_deadline(&rtt), deadline);
            }
        }
    }
}
