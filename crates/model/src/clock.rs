//! The other host's clock seen from ours, from exchanges of stamps (RFC 5905 §8, §10).
//!
//! What arrives at the other host does so by its clock, and that stamp must be moved to ours: the end
//! of a transfer, or of a message. The alternative, the acknowledgement's arrival minus half a round
//! trip, makes the same assumption (both ways take equally long when idle) and adds to every single one
//! what the acknowledgement met on its way back; here only the quickest of many exchanges counts.
//! Where the two ways of that differ by d, every time is wrong by d/2, one way up and the other
//! way down: it cannot be measured without synchronised clocks.
//!
//! Pure: whose stamps they are is the caller's to say. All are nanoseconds of any epoch.

use std::{collections::VecDeque, time::Duration};

/// One question and answer; the first and last stamp are ours, those between the other host's.
/// All in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    pub asked_at: u64,
    /// When the other host had the question.
    pub received_at: u64,
    pub replied_at: u64,
    /// When we had the answer.
    pub heard_at: u64,
}

/// The difference of two monotonic clocks.
#[derive(Clone, Debug, Default)]
pub struct ClockOffset {
    /// The quickest of each span, oldest first.
    best: VecDeque<Best>,
}

#[derive(Clone, Copy, Debug)]
struct Best {
    /// When its span began, on our clock.
    since: u64,
    exchange: Exchange,
}

/// Of each such span one exchange is kept: nanoseconds, ours.
const SPAN: u64 = 5_000_000_000;
/// Spans kept. Ours: a minute of a longer way does not count against one before it.
const SPANS_MAX: usize = 12;

/// How far two clocks drift apart at most: PHI of RFC 5905 §7.1, 15 ppm for each of the two.
const DRIFT: f64 = 30e-6;

impl Exchange {
    /// The time on the way, there and back together; `None` if the stamps contradict each other.
    pub fn round_trip(&self) -> Option<Duration> {
        let total = self.heard_at.checked_sub(self.asked_at)?;
        let held = self.replied_at.checked_sub(self.received_at)?;
        total.checked_sub(held).map(Duration::from_nanos)
    }

    /// The other clock's lead over ours in nanoseconds, both ways taken as equal (RFC 5905 §8).
    fn lead(&self) -> i128 {
        let there = i128::from(self.received_at) - i128::from(self.asked_at);
        let back = i128::from(self.replied_at) - i128::from(self.heard_at);
        (there + back) / 2
    }
}

impl ClockOffset {
    /// Takes an exchange into account, unless its stamps contradict each other; what is old is
    /// forgotten.
    pub fn on_exchange(&mut self, exchange: Exchange) {
        let Some(round_trip) = exchange.round_trip() else {
            return;
        };
        match self.best.back_mut() {
            Some(last) if exchange.heard_at.saturating_sub(last.since) < SPAN => {
                if Some(round_trip) < last.exchange.round_trip() {
                    last.exchange = exchange;
                }
            }
            _ => {
                if self.best.len() >= SPANS_MAX {
                    self.best.pop_front();
                }
                self.best.push_back(Best {
                    since: exchange.heard_at,
                    exchange,
                });
            }
        }
    }

    /// The shortest round trip of the exchanges kept; `None` before the first.
    pub fn round_trip_min(&self) -> Option<Duration> {
        let round_trips = self.best.iter().map(|best| best.exchange.round_trip());
        round_trips.flatten().min()
    }

    /// A stamp of the other clock on ours; `None` before the first exchange.
    pub fn to_ours(&self, theirs: u64) -> Option<u64> {
        let lead = self.lead(|exchange| theirs.abs_diff(exchange.received_at))?;
        u64::try_from((i128::from(theirs) - lead).max(0)).ok()
    }

    /// A stamp of our clock on the other; `None` before the first exchange.
    pub fn to_theirs(&self, ours: u64) -> Option<u64> {
        let lead = self.lead(|exchange| ours.abs_diff(exchange.heard_at))?;
        u64::try_from((i128::from(ours) + lead).max(0)).ok()
    }

    /// The other clock's lead by the best exchange, which is so old.
    fn lead(&self, age: impl Fn(&Exchange) -> u64) -> Option<i128> {
        // What an old exchange may be wrong by because of drift counts against it.
        let cost = |exchange: &Exchange| {
            let round_trip = exchange.round_trip().unwrap_or(Duration::MAX);
            round_trip.as_nanos() as f64 / 2.0 + DRIFT * age(exchange) as f64
        };
        let exchanges = self.best.iter().map(|best| &best.exchange);
        let best = exchanges.min_by(|a, b| cost(a).total_cmp(&cost(b)))?;
        Some(best.lead())
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
    fn asymmetric_delay_shifts_the_offset_by_half() {
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
    fn contradictory_timestamps_are_ignored() {
        let mut offset = ClockOffset::default();
        let good = exchange(100 * MS, 5 * MS, 5 * MS);
        for odd in [
            Exchange {
                replied_at: good.received_at + 100 * MS,
                ..good
            },
            Exchange {
                asked_at: good.heard_at + 1,
                ..good
            },
            Exchange {
                replied_at: good.received_at - 1,
                ..good
            },
        ] {
            assert_eq!(odd.round_trip(), None);
            offset.on_exchange(odd);
        }
        assert_eq!(
            (offset.round_trip_min(), offset.to_theirs(MS)),
            (None, None)
        );
        // Whatever it claims, nothing breaks.
        offset.on_exchange(Exchange {
            received_at: u64::MAX,
            replied_at: u64::MAX,
            ..good
        });
        assert_eq!(offset.to_ours(0), Some(0));
        assert_eq!(offset.to_theirs(u64::MAX), None);
    }

    #[test]
    fn lengthened_path_is_ignored_for_a_minute() {
        let second = 1000 * MS;
        let mut offset = ClockOffset::default();
        offset.on_exchange(exchange(0, 5 * MS, 5 * MS));
        for at in 1..40 {
            offset.on_exchange(exchange(at * second, 5 * MS, 105 * MS));
        }
        assert_eq!(offset.to_theirs(40 * second), Some(40 * second + LEAD));
        for at in 40..140 {
            offset.on_exchange(exchange(at * second, 5 * MS, 105 * MS));
        }
        let then = 140 * second + LEAD - 50 * MS;
        assert_eq!(offset.to_theirs(140 * second), Some(then));
        assert!(offset.best.len() <= SPANS_MAX);
    }
}
