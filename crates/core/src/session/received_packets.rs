//! Packets received on one path of the peer: replay window and acknowledgements.

use std::time::Duration;

use keiro_units::Instant;

use crate::{
    ranges::RangeSet,
    wire::{AckFrame, expand_packet_number},
};

/// Packet numbers below the largest that are still distinguished; older ones are refused.
const REPLAY_WINDOW: u64 = 8192;
const WORDS: usize = (REPLAY_WINDOW / 64) as usize;
/// Ranges kept for acknowledgements; the lowest is forgotten first.
const RANGES_MAX: usize = 64;
/// Packets after which an acknowledgement is not held back any longer.
const ACK_EVERY: u32 = 16;

/// Which of the newest packet numbers were received.
#[derive(Debug)]
pub(crate) struct ReplayWindow {
    bits: Box<[u64; WORDS]>,
    largest: Option<u64>,
}

impl Default for ReplayWindow {
    fn default() -> Self {
        Self {
            bits: Box::new([0; WORDS]),
            largest: None,
        }
    }
}

impl ReplayWindow {
    /// It was received before, or is too old to know.
    pub(crate) fn is_replay(&self, number: u64) -> bool {
        match self.largest {
            Some(largest) if number <= largest => {
                self.is_too_old(number) || self.bits[word(number)] & bit(number) != 0
            }
            _ => false,
        }
    }

    /// It is so old that whether it was received before is not known any more.
    pub(crate) fn is_too_old(&self, number: u64) -> bool {
        let behind = self
            .largest
            .map_or(0, |largest| largest.saturating_sub(number));
        behind >= REPLAY_WINDOW
    }

    /// It is larger than all that were received.
    pub(crate) fn is_newest(&self, number: u64) -> bool {
        self.largest.is_none_or(|largest| number > largest)
    }

    /// Records a number that is not a replay.
    pub(crate) fn note(&mut self, number: u64) {
        debug_assert!(!self.is_replay(number), "replays are refused before");
        if self.is_newest(number) {
            self.clear_up_to(number);
            self.largest = Some(number);
        }
        self.bits[word(number)] |= bit(number);
    }

    /// The largest number received.
    pub(crate) const fn largest(&self) -> Option<u64> {
        self.largest
    }

    fn clear_up_to(&mut self, number: u64) {
        let Some(largest) = self.largest else { return };
        if number - largest >= REPLAY_WINDOW {
            self.bits.fill(0);
            return;
        }
        for passed in largest + 1..=number {
            self.bits[word(passed)] &= !bit(passed);
        }
    }
}

/// Receive state of one packet-number space.
#[derive(Debug)]
pub(crate) struct Received {
    window: ReplayWindow,
    largest_at: Instant,
    /// What is to be acknowledged: everything that no acknowledgement covers of which the peer has
    /// confirmed the receipt.
    ranges: RangeSet,
    /// The lowest packet that arrived late, and what was the largest then. Acknowledgements up to that
    /// did not have it.
    reordered: Option<(u64, u64)>,
    /// Ack-eliciting packets since the last acknowledgement.
    unacknowledged: u32,
    ack_due: Option<Instant>,
    last_ack_at: Option<Instant>,
    ecn_ce: u64,
}

/// When acknowledgements are sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckPolicy {
    /// Longest time that an acknowledgement is held back.
    pub(crate) delay_max: Duration,
    /// Shortest time between two acknowledgements.
    pub(crate) spacing: Duration,
}

impl Default for Received {
    fn default() -> Self {
        Self {
            window: ReplayWindow::default(),
            largest_at: Instant::ZERO,
            ranges: RangeSet::default(),
            reordered: None,
            unacknowledged: 0,
            ack_due: None,
            last_ack_at: None,
            ecn_ce: 0,
        }
    }
}

impl Received {
    /// The full packet number behind its low half.
    pub(crate) fn expand(&self, low: u32) -> u64 {
        expand_packet_number(self.window.largest.map_or(0, |largest| largest + 1), low)
    }

    /// It was received before, or is too old to know.
    pub(crate) fn is_replay(&self, number: u64) -> bool {
        self.window.is_replay(number)
    }

    /// It is the newest packet of its path so far.
    pub(crate) fn is_newest(&self, number: u64) -> bool {
        self.window.is_newest(number)
    }

    /// Records an authentic packet that is not a replay. `is_ce`: it has a congestion mark.
    pub(crate) fn on_packet(&mut self, number: u64, received_at: Instant, is_ce: bool) {
        match self.window.largest.filter(|largest| number < *largest) {
            None => self.largest_at = received_at,
            Some(largest) => {
                let lowest = self
                    .reordered
                    .map_or(number, |(lowest, _)| lowest.min(number));
                self.reordered = Some((lowest, largest));
            }
        }
        self.window.note(number);
        self.ranges.insert(number, number + 1);
        if self.ranges.len() > RANGES_MAX {
            self.ranges.drop_lowest();
        }
        self.ecn_ce += u64::from(is_ce);
    }

    /// The packet that was just recorded asks for an acknowledgement.
    pub(crate) fn on_eliciting(&mut self, now: Instant, number: u64, policy: AckPolicy) {
        self.unacknowledged += 1;
        // A gap just below or a late packet is acknowledged at once: the sender may have to retransmit.
        let in_order = self.ranges.iter_down().next().is_some_and(|(low, high)| {
            number + 1 == high && (low < number || self.ranges.len() == 1)
        });
        let due = if self.unacknowledged >= ACK_EVERY || !in_order {
            now
        } else {
            now + policy.delay_max
        };
        let due = self
            .last_ack_at
            .map_or(due, |last| due.max(last + policy.spacing));
        self.ack_due = Some(self.ack_due.map_or(due, |earlier| earlier.min(due)));
    }

    pub(crate) fn ack_due(&self) -> Option<Instant> {
        self.ack_due
    }

    /// Something is to be acknowledged, even if the acknowledgement may still be held back.
    pub(crate) fn has_unacknowledged(&self) -> bool {
        self.unacknowledged > 0
    }

    /// Appends an acknowledgement for the peer's path `path`, as far as there is room up to `end`; its largest packet,
    /// unless older packets have found no room: they are still to be acknowledged. `None`: that, or there is nothing
    /// to write.
    pub(crate) fn write_ack(
        &mut self,
        now: Instant,
        path: u8,
        end: usize,
        buf: &mut Vec<u8>,
    ) -> Option<u64> {
        let largest = self.window.largest?;
        let head = AckFrame::head(
            path,
            largest,
            self.largest_at.as_nanos() / 1000,
            micros(now.saturating_duration_since(self.largest_at)),
            self.ecn_ce,
        );
        let all = self.ranges.len();
        let mut count = all;
        let start = buf.len();
        loop {
            let ranges = self.ranges.iter_down().take(count);
            AckFrame::encode(buf, &head, ranges.map(|(low, high)| (low, high - 1)));
            if buf.len() <= end {
                break;
            }
            buf.truncate(start);
            // Of a packet of the least size half of them take less than half.
            count /= 2;
            if count == 0 {
                return None;
            }
        }
        self.unacknowledged = 0;
        self.ack_due = None;
        self.last_ack_at = Some(now);
        (count == all).then_some(largest)
    }

    /// The peer has an acknowledgement that covers everything up to `largest`, so that need not be
    /// acknowledged again (RFC 9000 §13.2.4). Otherwise acknowledgements would carry the gaps of all
    /// losses so far.
    pub(crate) fn on_ack_of_ack(&mut self, largest: u64) {
        self.reordered = self.reordered.filter(|(_, then)| largest <= *then);
        let unacknowledged = self.reordered.map_or(u64::MAX, |(lowest, _)| lowest);
        // The newest stays: it shows whether the next packet leaves a gap.
        let newest = self.window.largest.unwrap_or(0);
        let end = largest.saturating_add(1).min(unacknowledged).min(newest);
        self.ranges.remove(0, end);
    }

    /// Bytes that `write_ack` appends at most.
    #[cfg(test)]
    fn ack_len_max(&self) -> usize {
        AckFrame::len_max(self.ranges.len())
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
        assert!(self.ranges.len() <= RANGES_MAX, "ranges are bounded");
        let ranges: Vec<(u64, u64)> = self.ranges.iter().collect();
        assert!(
            ranges.iter().all(|(low, high)| low < high)
                && ranges.windows(2).all(|pair| pair[0].1 < pair[1].0),
            "ranges are sorted and do not touch"
        );
        let end = self.window.largest.map_or(0, |largest| largest + 1);
        assert!(
            ranges.last().is_none_or(|(_, high)| *high <= end),
            "only received packets are acknowledged"
        );
        assert!(
            self.ack_due.is_none() || self.unacknowledged > 0,
            "an acknowledgement that is due acknowledges something"
        );
    }
}

const fn word(number: u64) -> usize {
    (number % REPLAY_WINDOW / 64) as usize
}

const fn bit(number: u64) -> u64 {
    1 << (number % 64)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const POLICY: AckPolicy = AckPolicy {
        delay_max: Duration::from_millis(1),
        spacing: Duration::ZERO,
    };

    proptest! {
        #[test]
        fn only_seen_or_too_old_packet_numbers_are_replays(numbers in proptest::collection::vec(0u64..20_000, 0..300)) {
            let mut received = Received::default();
            let mut seen = BTreeSet::new();
            for number in numbers {
                let replay = received.is_replay(number);
                let largest = seen.last().copied().unwrap_or(0);
                let is_too_old = largest >= number + REPLAY_WINDOW;
                prop_assert_eq!(replay, seen.contains(&number) || is_too_old);
                if !replay {
                    received.on_packet(number, Instant::ZERO, false);
                    seen.insert(number);
                }
                prop_assert!(received.ranges.len() <= RANGES_MAX);
            }
        }

        /// Packets come in any order, acknowledgements get lost, and the acknowledgements of those come
        /// late.
        #[test]
        fn packet_stays_acknowledged_until_the_peer_confirms_that(
            steps in proptest::collection::vec((0u8..3, 0u64..40), 0..90),
        ) {
            let mut received = Received::default();
            let mut come = BTreeSet::new();
            // Of every acknowledgement the largest number and all numbers.
            let mut acks: Vec<(u64, BTreeSet<u64>)> = Vec::new();
            let mut known: BTreeSet<u64> = BTreeSet::new();
            for (what, value) in steps {
                match what {
                    0 => {
                        let number = received.window.largest().unwrap_or(0) + value;
                        let number = number.saturating_sub(20);
                        if !received.is_replay(number) {
                            received.on_packet(number, Instant::ZERO, false);
                            come.insert(number);
                        }
                    }
                    1 => {
                        if let Some(largest) = received.write_ack(Instant::ZERO, 0, usize::MAX, &mut Vec::new()) {
                            let acked = received.ranges.iter().flat_map(|(low, high)| low..high);
                            acks.push((largest, acked.collect()));
                        }
                    }
                    _ => {
                        let place = value as usize % acks.len().max(1);
                        if let Some((largest, acked)) = acks.get(place) {
                            known.extend(acked);
                            received.on_ack_of_ack(*largest);
                        }
                    }
                }
                received.check_invariants();
                let kept = |number: &&u64| received.ranges.covers(**number, **number + 1);
                let forgotten = come.iter().find(|number| !kept(number) && !known.contains(*number));
                prop_assert_eq!(forgotten, None);
            }
        }
    }

    #[test]
    fn old_gaps_are_not_acknowledged_again() {
        let mut received = Received::default();
        for number in (0..1000).filter(|number| number % 10 > 0) {
            received.on_packet(number, Instant::ZERO, false);
            if number % 20 == 5 {
                let largest = received.write_ack(Instant::ZERO, 0, usize::MAX, &mut Vec::new());
                received.on_ack_of_ack(largest.expect("something was received"));
            }
        }
        assert!(received.ranges.len() <= 3, "{:?}", received.ranges);
        // A gap behind what is known is one still.
        received.on_ack_of_ack(999);
        assert_eq!(received.ranges.len(), 1);
        received.on_packet(1001, Instant::ZERO, false);
        received.on_eliciting(Instant::ZERO, 1001, POLICY);
        assert_eq!(received.ack_due(), Some(Instant::ZERO));
    }

    #[test]
    fn gap_is_acknowledged_at_once_and_packets_in_order_later() {
        let mut received = Received::default();
        let delay = POLICY.delay_max;
        let now = Instant::from_nanos(5);
        for (number, due) in [(0, now + delay), (1, now + delay), (3, now)] {
            received.on_packet(number, now, false);
            received.on_eliciting(now, number, POLICY);
            assert_eq!(received.ack_due(), Some(due), "packet {number}");
        }
        received.write_ack(now, 0, usize::MAX, &mut Vec::new());
        assert_eq!(received.ack_due(), None);
    }

    /// Records an ack-eliciting packet; when an acknowledgement is due after it.
    fn take(
        received: &mut Received,
        now: Instant,
        number: u64,
        policy: AckPolicy,
    ) -> Option<Instant> {
        received.on_packet(number, now, false);
        received.on_eliciting(now, number, policy);
        received.check_invariants();
        received.ack_due()
    }

    fn acknowledge(received: &mut Received, now: Instant) -> Vec<u8> {
        let mut written = Vec::new();
        received
            .write_ack(now, 3, usize::MAX, &mut written)
            .expect("something was received");
        received.check_invariants();
        written
    }

    #[test]
    fn every_sixteenth_packet_is_acknowledged_at_once() {
        let mut received = Received::default();
        let now = Instant::from_nanos(5_000_000);
        for round in 0..2 {
            for number in 0..15 {
                let due = take(&mut received, now, round * 16 + number, POLICY);
                assert_eq!(due, Some(now + POLICY.delay_max), "packet {number}");
                assert!(received.has_unacknowledged());
            }
            let due = take(&mut received, now, round * 16 + 15, POLICY);
            assert_eq!(due, Some(now));
            acknowledge(&mut received, now);
            assert!(!received.has_unacknowledged());
        }
    }

    #[test]
    fn late_and_early_packets_are_acknowledged_at_once() {
        let now = Instant::from_nanos(5_000_000);
        let later = now + POLICY.delay_max;
        // (packet, is it acknowledged at once), each after an acknowledgement.
        let packets = [
            (7, false),
            (8, false),
            (10, true),
            (11, false),
            (9, true),
            (12, false),
            (14, true),
        ];
        let mut received = Received::default();
        for (number, at_once) in packets {
            let due = take(&mut received, now, number, POLICY);
            let expected = if at_once { now } else { later };
            assert_eq!(due, Some(expected), "packet {number}");
            acknowledge(&mut received, now);
        }
    }

    #[test]
    fn acknowledgements_keep_their_spacing_and_the_earliest_time_stays() {
        let policy = AckPolicy {
            delay_max: Duration::from_millis(1),
            spacing: Duration::from_millis(4),
        };
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let mut received = Received::default();
        assert_eq!(take(&mut received, at(10), 0, policy), Some(at(11)));
        assert_eq!(take(&mut received, at(10), 1, policy), Some(at(11)));
        acknowledge(&mut received, at(11));
        assert_eq!(
            take(&mut received, at(12), 5, policy),
            Some(at(15)),
            "a gap"
        );
        assert_eq!(take(&mut received, at(14), 6, policy), Some(at(15)));
        acknowledge(&mut received, at(15));
        assert_eq!(take(&mut received, at(30), 7, policy), Some(at(31)));
    }

    #[test]
    fn acknowledgement_reports_what_was_received_when_and_with_which_marks() {
        let us = |us: u64| Instant::from_nanos(us * 1000);
        let mut received = Received::default();
        assert_eq!(
            received.write_ack(us(1), 3, usize::MAX, &mut Vec::new()),
            None
        );
        for (number, at, is_ce) in [(4, 1000, true), (9, 2000, false), (8, 3000, true)] {
            received.on_packet(number, us(at), is_ce);
        }
        let written = acknowledge(&mut received, us(3500));
        assert!(written.len() <= received.ack_len_max());
        let mut reader = crate::wire::Reader::new(&written);
        let frame = crate::wire::Frame::decode(&mut reader);
        let Ok(Some(crate::wire::Frame::Ack(ack))) = frame else {
            panic!("{frame:?}");
        };
        assert_eq!((ack.path, ack.largest, ack.ecn_ce), (3, 9, 2));
        // The largest arrived at 2 ms.
        assert_eq!((ack.received_at_us, ack.delay_us), (2000, 1500));
        assert_eq!(ack.ranges.iter().collect::<Vec<_>>(), [(8, 9), (4, 4)]);
    }

    #[test]
    fn longest_acknowledgement_is_as_long_as_foreseen() {
        let mut received = Received::default();
        let first = 1 << 40;
        let mut number = first;
        for gap in 0..70 {
            number += (1 << 31) + gap;
            received.on_packet(number, Instant::from_nanos(1 << 62), true);
        }
        assert_eq!(received.ranges.len(), 64, "the lowest are forgotten");
        assert_eq!(
            received.ranges.iter_down().next(),
            Some((number, number + 1))
        );
        let len = acknowledge(&mut received, Instant::from_nanos(1 << 63)).len();
        assert!(len <= received.ack_len_max(), "{len}");
    }

    #[test]
    fn late_packet_stays_acknowledged_until_an_acknowledgement_that_has_it_arrived() {
        let mut received = Received::default();
        for number in [0, 1, 3, 4] {
            received.on_packet(number, Instant::ZERO, false);
        }
        // The acknowledgement up to 4 was sent before 2 arrived.
        received.on_packet(2, Instant::ZERO, false);
        received.on_ack_of_ack(4);
        assert_eq!(received.ranges.iter().collect::<Vec<_>>(), [(2, 5)]);
        received.on_packet(5, Instant::ZERO, false);
        received.on_ack_of_ack(5);
        // The newest stays.
        assert_eq!(received.ranges.iter().collect::<Vec<_>>(), [(5, 6)]);
    }

    #[test]
    fn window_of_8192_numbers_slides_and_a_jump_clears_it() {
        let mut window = ReplayWindow::default();
        assert!(!window.is_replay(5) && !window.is_too_old(5) && window.is_newest(0));
        window.note(5);
        assert!(window.is_replay(5) && !window.is_replay(4) && !window.is_newest(5));
        assert_eq!(window.largest(), Some(5));
        window.note(5 + 8191);
        assert!(window.is_replay(5), "still known");
        assert!(!window.is_too_old(5) && window.is_too_old(4));
        assert!(
            !window.is_replay(6) && window.is_replay(4),
            "unknown is refused"
        );
        window.note(5 + 8192);
        assert!(window.is_too_old(5));
        // A jump of a whole window leaves nothing of what was.
        let far = 5 + 8192 + 8192;
        window.note(far);
        for number in far - 8191..far {
            assert!(!window.is_replay(number), "{number}");
        }
        // Numbers that are passed over are not received.
        window.note(far + 100);
        assert!(!window.is_replay(far + 50) && window.is_replay(far));
    }

    #[test]
    fn truncated_packet_number_expands_to_the_nearest_expected() {
        let mut received = Received::default();
        assert_eq!(received.expand(7), 7);
        let number = (1 << 32) + 3;
        received.on_packet(number, Instant::ZERO, false);
        assert!(received.is_newest(number + 1) && !received.is_newest(number));
        assert_eq!(received.expand(4), number + 1);
        assert_eq!(received.expand(u32::MAX), u64::from(u32::MAX));
        // Half of all numbers from the next expected one it is the later of the two.
        let mut received = Received::default();
        received.on_packet(1 << 40, Instant::ZERO, false);
        assert_eq!(received.expand((1 << 31) + 1), (1 << 40) + (1 << 31) + 1);
        assert_eq!(received.expand((1 << 31) + 2), (1 << 40) - (1 << 31) + 2);
    }

    #[test]
    fn acknowledgement_with_many_gaps_is_cut_to_its_room_and_what_is_left_out_stays() {
        let mut received = Received::default();
        for number in (0..60_000).step_by(1000) {
            take(&mut received, Instant::ZERO, number, POLICY);
        }
        let mut whole = Vec::new();
        received.write_ack(Instant::ZERO, 0, usize::MAX, &mut whole);
        for room in 0..whole.len() {
            take(&mut received, Instant::ZERO, 60_000 + room as u64, POLICY);
            let mut cut = Vec::new();
            assert_eq!(
                received.write_ack(Instant::ZERO, 0, room, &mut cut),
                None,
                "{room}"
            );
            assert!(cut.len() <= room);
            assert!(room < 60 || !cut.is_empty(), "{room}");
        }
    }
}
