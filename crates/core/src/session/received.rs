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

    /// Appends an acknowledgement for the peer's path `path`; its largest packet. `None` if nothing
    /// was received.
    pub(crate) fn write_ack(&mut self, now: Instant, path: u8, buf: &mut Vec<u8>) -> Option<u64> {
        let largest = self.window.largest?;
        let head = AckFrame::head(
            path,
            largest,
            self.largest_at.as_nanos() / 1000,
            micros(now.saturating_duration_since(self.largest_at)),
            self.ecn_ce,
        );
        let ranges = self.ranges.iter_down().map(|(low, high)| (low, high - 1));
        AckFrame::encode(buf, &head, ranges);
        self.unacknowledged = 0;
        self.ack_due = None;
        self.last_ack_at = Some(now);
        Some(largest)
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
    pub(crate) fn ack_len_max(&self) -> usize {
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
        fn exactly_what_was_seen_or_is_too_old_is_a_replay(numbers in proptest::collection::vec(0u64..20_000, 0..300)) {
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
                        if let Some(largest) = received.write_ack(Instant::ZERO, 0, &mut Vec::new()) {
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
                let largest = received.write_ack(Instant::ZERO, 0, &mut Vec::new());
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
        received.write_ack(now, 0, &mut Vec::new());
        assert_eq!(received.ack_due(), None);
    }
}
