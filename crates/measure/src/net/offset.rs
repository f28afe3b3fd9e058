//! The other host's clock seen from ours, from exchanges of stamps.
//!
//! A transfer to the server ends there: its end is a stamp of the server's clock, which must be
//! moved to ours. The alternative, the acknowledgement's arrival minus half a round trip, makes
//! the same assumption (both ways take equally long when idle) and adds to every single transfer
//! what the acknowledgement met on its way back; here only the quickest of many exchanges counts.
//! Where the two ways differ by d, every transfer time is wrong by d/2, one way up and the other
//! way down: without synchronised clocks nothing can tell.

use std::{collections::VecDeque, time::Duration};

/// One question and answer; the first and last stamp are ours, those between the other host's.
/// All in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// When we asked.
    pub asked_at: u64,
    /// When the other host had the question.
    pub received_at: u64,
    /// When it answered.
    pub replied_at: u64,
    /// When we had the answer.
    pub heard_at: u64,
}

/// The difference of two monotonic clocks.
#[derive(Clone, Debug, Default)]
pub struct ClockOffset {
    recent: VecDeque<Exchange>,
}

/// Exchanges kept; ours.
const EXCHANGES_MAX: usize = 64;

/// How far two clocks drift apart at most: PHI of RFC 5905 §7.1, 15 ppm for each of the two.
const DRIFT: f64 = 30e-6;

impl Exchange {
    /// The time on the way, there and back together; zero if the stamps contradict each other.
    pub fn round_trip(&self) -> Duration {
        let total = self.heard_at.saturating_sub(self.asked_at);
        let held = self.replied_at.saturating_sub(self.received_at);
        Duration::from_nanos(total.saturating_sub(held))
    }

    /// The other clock's lead over ours in nanoseconds, both ways taken as equal (RFC 5905 §8).
    fn lead(&self) -> i128 {
        let there = i128::from(self.received_at) - i128::from(self.asked_at);
        let back = i128::from(self.replied_at) - i128::from(self.heard_at);
        (there + back) / 2
    }
}

impl ClockOffset {
    /// Takes an exchange into account; the oldest is forgotten when there are too many.
    pub fn on_exchange(&mut self, exchange: Exchange) {
        if self.recent.len() >= EXCHANGES_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(exchange);
    }

    /// The shortest round trip of the exchanges kept; `None` before the first.
    pub fn round_trip_min(&self) -> Option<Duration> {
        self.recent.iter().map(Exchange::round_trip).min()
    }

    /// A stamp of the other clock on ours, in nanoseconds; `None` before the first exchange.
    pub fn to_ours(&self, theirs: u64) -> Option<u64> {
        // What an old exchange may be wrong by because of drift counts against it.
        let cost = |exchange: &Exchange| {
            let age = theirs.abs_diff(exchange.received_at);
            exchange.round_trip().as_nanos() as f64 / 2.0 + DRIFT * age as f64
        };
        let best = self
            .recent
            .iter()
            .min_by(|a, b| cost(a).total_cmp(&cost(b)))?;
        u64::try_from((i128::from(theirs) - best.lead()).max(0)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    /// The other clock's lead.
    const LEAD: u64 = 5_000 * MS;

    fn exchange(at: u64, there: u64, back: u64) -> Exchange {
        Exchange {
            asked_at: at,
            received_at: at + there + LEAD,
            replied_at: at + there + LEAD + MS,
            heard_at: at + there + MS + back,
        }
    }

    #[test]
    fn the_quickest_exchange_counts_so_noise_on_the_way_back_does_not() {
        let mut offset = ClockOffset::default();
        assert_eq!(offset.to_ours(LEAD), None);
        for (number, noise) in [7, 0, 3, 20].into_iter().enumerate() {
            offset.on_exchange(exchange(number as u64 * 100 * MS, 5 * MS, (5 + noise) * MS));
        }
        assert_eq!(offset.round_trip_min(), Some(Duration::from_millis(10)));
        assert_eq!(offset.to_ours(LEAD + 500 * MS), Some(500 * MS));
    }

    #[test]
    fn ways_of_unequal_length_move_it_by_half_their_difference() {
        let mut offset = ClockOffset::default();
        offset.on_exchange(exchange(0, 5 * MS, 15 * MS));
        assert_eq!(offset.to_ours(LEAD + 100 * MS), Some(105 * MS));
    }

    #[test]
    fn an_old_exchange_gives_way_to_one_that_is_little_worse() {
        let mut offset = ClockOffset::default();
        offset.on_exchange(exchange(0, 5 * MS, 5 * MS));
        // 30 ppm apart for 100 s: 3 ms, more than half of the 1 ms that its round trip is longer.
        let later = 100_000 * MS;
        let drifted = 3 * MS;
        let mut late = exchange(later, 5 * MS, 6 * MS);
        late.received_at += drifted;
        late.replied_at += drifted;
        offset.on_exchange(late);
        let ours = offset.to_ours(LEAD + later + drifted).unwrap();
        assert!(ours.abs_diff(later) <= MS, "{ours}");
    }

    #[test]
    fn contradicting_stamps_give_no_negative_times() {
        let odd = Exchange {
            asked_at: 10,
            received_at: 5,
            replied_at: 100,
            heard_at: 20,
        };
        assert_eq!(odd.round_trip(), Duration::ZERO);
        let mut offset = ClockOffset::default();
        offset.on_exchange(exchange(0, 1, 1));
        assert_eq!(offset.to_ours(0), Some(0));
    }
}
