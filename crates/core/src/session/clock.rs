//! The peer's clock seen from ours, from packets and their acknowledgements.
//!
//! An acknowledgement says when its packet arrived and how long it was held, by the peer's clock; when
//! the packet left and when the acknowledgement came is known by ours. The quickest of these exchanges
//! counts (RFC 5905 §8, §10): what a packet meets on its way makes the others longer, and wrong by
//! half of that at most. Where both ways of the quickest path differ by d, every stamp is wrong by d/2:
//! without synchronised clocks nothing can tell.

use std::{collections::VecDeque, time::Duration};

use keiro_model::Instant;

/// A packet and its acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exchange {
    /// When the packet left, by our clock.
    pub(crate) sent_at: Instant,
    /// When it arrived and for how long its acknowledgement was held, by the peer's, microseconds.
    pub(crate) received_us: u64,
    pub(crate) held_us: u64,
    /// When the acknowledgement arrived, by ours.
    pub(crate) heard_at: Instant,
}

/// What is known of the peer's clock.
#[derive(Debug, Default)]
pub(crate) struct PeerClock {
    /// The quickest exchange of each span, oldest first.
    best: VecDeque<Seen>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    at: Instant,
    round_trip_us: u64,
    /// The peer's clock less ours.
    lead_us: i128,
}

/// Of each such span one exchange is kept.
const SPAN: Duration = Duration::from_secs(5);
/// Spans kept. Ours: a minute of a longer way does not count against one before it.
const SPANS_MAX: usize = 12;
/// How far two clocks drift apart at most, parts of a million: RFC 5905 §7.1's PHI for each.
const DRIFT_PPM: u64 = 30;

impl PeerClock {
    /// Takes an exchange into account.
    pub(crate) fn on_exchange(&mut self, exchange: &Exchange) {
        let Exchange {
            sent_at,
            received_us,
            held_us,
            heard_at,
        } = *exchange;
        let (asked, heard) = (micros(sent_at), micros(heard_at));
        let Some(round_trip_us) = heard
            .checked_sub(asked)
            .and_then(|all| all.checked_sub(held_us))
        else {
            // The stamps contradict each other.
            return;
        };
        let there = i128::from(received_us) - i128::from(asked);
        let back = i128::from(received_us) + i128::from(held_us) - i128::from(heard);
        let seen = Seen {
            at: heard_at,
            round_trip_us,
            lead_us: (there + back) / 2,
        };
        match self.best.back_mut() {
            Some(last) if heard_at.saturating_duration_since(last.at) < SPAN => {
                if round_trip_us < last.round_trip_us {
                    let at = last.at;
                    *last = Seen { at, ..seen };
                }
            }
            _ => {
                if self.best.len() >= SPANS_MAX {
                    self.best.pop_front();
                }
                self.best.push_back(seen);
            }
        }
    }

    /// How long ago at `now` it was what the peer's clock showed, of which `stamp` is
    /// [`stamp`]; `None`: the clock is not known yet, or it were more than half an hour.
    pub(crate) fn since(&self, now: Instant, stamp: u32) -> Option<Duration> {
        let cost = |seen: &Seen| {
            let age = now.saturating_duration_since(seen.at);
            seen.round_trip_us / 2 + age.as_secs() * DRIFT_PPM
        };
        let best = self.best.iter().min_by_key(|seen| cost(seen))?;
        let theirs = i128::from(micros(now)) + best.lead_us;
        // Both count on modulo 2^32; a little ahead of us is now.
        let ago = (theirs as u32).wrapping_sub(stamp) as i32;
        match ago {
            0.. => Some(Duration::from_micros(ago as u64)),
            _ if ago > -(STAMP_ERROR_MAX_US) => Some(Duration::ZERO),
            _ => None,
        }
    }
}

/// By how much a stamp may be ahead of what is thought to be the peer's clock.
const STAMP_ERROR_MAX_US: i32 = 1_000_000;

/// A moment of our clock as it is told: microseconds modulo 2^32.
pub(crate) fn stamp(at: Instant) -> u32 {
    micros(at) as u32
}

fn micros(at: Instant) -> u64 {
    at.as_nanos() / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// The peer's clock is `lead_ms` ahead; `there_ms` and `back_ms` on the way.
    fn exchange(at: Instant, lead_ms: u64, there_ms: u32, back_ms: u32) -> Exchange {
        Exchange {
            sent_at: at,
            received_us: micros(at + MS * there_ms) + lead_ms * 1000,
            held_us: 250,
            heard_at: at + MS * (there_ms + back_ms) + Duration::from_micros(250),
        }
    }

    fn told(at: Instant, lead_ms: u64) -> u32 {
        (micros(at) + lead_ms * 1000) as u32
    }

    #[test]
    fn the_quickest_exchange_of_late_counts_whatever_became_of_its_path() {
        let start = Instant::ZERO + Duration::from_secs(1000);
        for lead_ms in [0, 4_200, 10_000_000_000] {
            let mut clock = PeerClock::default();
            let now = start + Duration::from_secs(40);
            assert_eq!(clock.since(now, 0), None);
            clock.on_exchange(&exchange(start, lead_ms, 5, 5));
            // A way back that became longer, told of again and again.
            for second in 1..40 {
                let at = start + Duration::from_secs(second);
                clock.on_exchange(&exchange(at, lead_ms, 5, 105));
            }
            let made = now - MS * 30;
            assert_eq!(clock.since(now, told(made, lead_ms)), Some(MS * 30));
            // In a while that is all there is.
            for second in 40..140 {
                let at = start + Duration::from_secs(second);
                clock.on_exchange(&exchange(at, lead_ms, 5, 105));
            }
            let now = start + Duration::from_secs(140);
            assert_eq!(
                clock.since(now, told(now - MS * 130, lead_ms)),
                Some(MS * 80)
            );
            assert!(clock.best.len() <= SPANS_MAX);
        }
    }

    #[test]
    fn stamps_that_cannot_be_are_not_believed() {
        let start = Instant::ZERO + Duration::from_secs(1000);
        let mut clock = PeerClock::default();
        let held_too_long = Exchange {
            held_us: 1 << 40,
            ..exchange(start, 0, 5, 5)
        };
        clock.on_exchange(&held_too_long);
        clock.on_exchange(&Exchange {
            received_us: u64::MAX,
            held_us: u64::MAX,
            ..exchange(start, 0, 5, 5)
        });
        assert!(clock.best.is_empty());
        clock.on_exchange(&exchange(start, 0, 5, 5));
        let now = start + MS * 20;
        assert_eq!(clock.since(now, stamp(now + MS)), Some(Duration::ZERO));
        assert_eq!(clock.since(now, stamp(now).wrapping_add(1 << 30)), None);
        clock.on_exchange(&Exchange {
            received_us: u64::MAX,
            ..exchange(start + Duration::from_secs(9), 0, 1, 1)
        });
        // Whatever it claims, nothing breaks.
        let _ = clock.since(now + Duration::from_secs(10), 7);
    }
}
