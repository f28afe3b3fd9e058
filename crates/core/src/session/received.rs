//! What was received of one path of the peer: replay window and acknowledgements.

use std::time::Duration;

use keiro_units::Instant;

use crate::{
    ranges::RangeSet,
    wire::{AckFrame, expand_packet_number},
};

/// Packet numbers below the largest that are still told apart; older ones are refused.
const REPLAY_WINDOW: u64 = 8192;
const WORDS: usize = (REPLAY_WINDOW / 64) as usize;
/// Ranges kept for acknowledgements; the lowest is forgotten first.
const RANGES_MAX: usize = 64;
/// Packets after which an acknowledgement is not held back any longer.
const ACK_EVERY: u32 = 16;

/// Which of the newest numbers were seen.
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
    /// It was seen before or is too old to tell.
    pub(crate) fn is_replay(&self, number: u64) -> bool {
        match self.largest {
            Some(largest) if number <= largest => {
                self.is_too_old(number) || self.bits[word(number)] & bit(number) != 0
            }
            _ => false,
        }
    }

    /// Whether it was seen before cannot be told any more.
    pub(crate) fn is_too_old(&self, number: u64) -> bool {
        let behind = self
            .largest
            .map_or(0, |largest| largest.saturating_sub(number));
        behind >= REPLAY_WINDOW
    }

    /// It is larger than all so far.
    pub(crate) fn is_newest(&self, number: u64) -> bool {
        self.largest.is_none_or(|largest| number > largest)
    }

    /// Records a number that is no replay.
    pub(crate) fn note(&mut self, number: u64) {
        if self.is_newest(number) {
            self.clear_up_to(number);
            self.largest = Some(number);
        }
        self.bits[word(number)] |= bit(number);
    }

    /// The largest one seen.
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
    /// What is to be acknowledged: all that the peer is not known to have been told of.
    ranges: RangeSet,
    /// A packet below the largest came late: the lowest such, and what was the largest then. What was
    /// told up to that did not have it.
    reordered: Option<(u64, u64)>,
    /// Packets that ask for an acknowledgement since the last one.
    unacknowledged: u32,
    ack_due: Option<Instant>,
    last_ack_at: Option<Instant>,
    pub(crate) ecn_ce: u64,
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
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
            packets: 0,
            bytes: 0,
        }
    }
}

impl Received {
    /// The full packet number behind its low half.
    pub(crate) fn expand(&self, low: u32) -> u64 {
        expand_packet_number(self.window.largest.map_or(0, |largest| largest + 1), low)
    }

    /// It was seen before or is too old to tell.
    pub(crate) fn is_replay(&self, number: u64) -> bool {
        self.window.is_replay(number)
    }

    /// It is the newest packet of its path so far.
    pub(crate) fn is_newest(&self, number: u64) -> bool {
        self.window.is_newest(number)
    }

    /// Records an authentic packet that is no replay.
    pub(crate) fn on_packet(&mut self, number: u64, received_at: Instant) {
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
        self.packets += 1;
    }

    /// The packet just recorded asks for an acknowledgement.
    /// It is told after `ack_delay_max` at the latest, but not within `spacing` of the last time.
    pub(crate) fn on_eliciting(
        &mut self,
        now: Instant,
        number: u64,
        ack_delay_max: Duration,
        spacing: Duration,
    ) {
        self.unacknowledged += 1;
        // A gap just below or a late packet: tell at once, the sender may have to repair.
        let in_order = self.ranges.iter_down().next().is_some_and(|(low, high)| {
            number + 1 == high && (low < number || self.ranges.len() == 1)
        });
        let due = if self.unacknowledged >= ACK_EVERY || !in_order {
            now
        } else {
            now + ack_delay_max
        };
        let due = self.last_ack_at.map_or(due, |last| due.max(last + spacing));
        self.ack_due = Some(self.ack_due.map_or(due, |earlier| earlier.min(due)));
    }

    pub(crate) fn ack_due(&self) -> Option<Instant> {
        self.ack_due
    }

    /// Something asks for an acknowledgement, even if it may still be held back.
    pub(crate) fn has_unacknowledged(&self) -> bool {
        self.unacknowledged > 0
    }

    /// Appends an acknowledgement for the peer's path `path`; up to which packet it tells. `None` if
    /// nothing was received.
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

    /// The peer has an acknowledgement that told it of everything up to `largest`: that need not be
    /// told again (RFC 9000 §13.2.4). Else every packet that carries an acknowledgement would name
    /// the losses of long ago.
    pub(crate) fn on_ack_of_ack(&mut self, largest: u64) {
        self.reordered = self.reordered.filter(|(_, then)| largest <= *then);
        let untold = self.reordered.map_or(u64::MAX, |(lowest, _)| lowest);
        // The newest stays: what follows it, or leaves a gap, is told by it.
        let newest = self.window.largest.unwrap_or(0);
        let end = largest.saturating_add(1).min(untold).min(newest);
        self.ranges.remove(0, end);
    }

    /// Bytes that `write_ack` appends at most.
    pub(crate) fn ack_len_max(&self) -> usize {
        AckFrame::len_max(self.ranges.len())
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
                    received.on_packet(number, Instant::ZERO);
                    seen.insert(number);
                }
                prop_assert!(received.ranges.len() <= RANGES_MAX);
            }
        }

        /// Packets come in any order, acknowledgements get lost, and what is said of them comes late:
        /// only what the peer has read of is forgotten.
        #[test]
        fn nothing_is_forgotten_before_the_peer_knows_it(
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
                            received.on_packet(number, Instant::ZERO);
                            come.insert(number);
                        }
                    }
                    1 => {
                        if let Some(largest) = received.write_ack(Instant::ZERO, 0, &mut Vec::new()) {
                            let told = received.ranges.iter().flat_map(|(low, high)| low..high);
                            acks.push((largest, told.collect()));
                        }
                    }
                    _ => {
                        let place = value as usize % acks.len().max(1);
                        if let Some((largest, told)) = acks.get(place) {
                            known.extend(told);
                            received.on_ack_of_ack(*largest);
                        }
                    }
                }
                let kept = |number: &&u64| received.ranges.covers(**number, **number + 1);
                let forgotten = come.iter().find(|number| !kept(number) && !known.contains(*number));
                prop_assert_eq!(forgotten, None);
            }
        }
    }

    #[test]
    fn losses_of_long_ago_are_not_told_again() {
        let mut received = Received::default();
        for number in (0..1000).filter(|number| number % 10 > 0) {
            received.on_packet(number, Instant::ZERO);
            if number % 20 == 5 {
                let told = received.write_ack(Instant::ZERO, 0, &mut Vec::new());
                received.on_ack_of_ack(told.expect("something was received"));
            }
        }
        assert!(received.ranges.len() <= 3, "{:?}", received.ranges);
        // A gap behind what is known is one still.
        received.on_ack_of_ack(999);
        assert_eq!(received.ranges.len(), 1);
        received.on_packet(1001, Instant::ZERO);
        received.on_eliciting(
            Instant::ZERO,
            1001,
            Duration::from_millis(1),
            Duration::ZERO,
        );
        assert_eq!(received.ack_due(), Some(Instant::ZERO));
    }

    #[test]
    fn a_gap_is_told_at_once_and_order_after_a_while() {
        let mut received = Received::default();
        let delay = Duration::from_millis(1);
        let now = Instant::from_nanos(5);
        for (number, due) in [(0, now + delay), (1, now + delay), (3, now)] {
            received.on_packet(number, now);
            received.on_eliciting(now, number, delay, Duration::ZERO);
            assert_eq!(received.ack_due(), Some(due), "packet {number}");
        }
        received.write_ack(now, 0, &mut Vec::new());
        assert_eq!(received.ack_due(), None);
    }
}
