//! The peer's clock seen from ours, from packets and their acknowledgements.
//!
//! An acknowledgement says when its packet arrived and how long it was held, by the peer's clock; when
//! the packet left and when the acknowledgement came is known by ours.

use std::time::Duration;

use keiro_model::clock::{ClockOffset, Exchange};
use keiro_units::Instant;

/// What is known of the peer's clock.
#[derive(Debug, Default)]
pub(crate) struct PeerClock {
    offset: ClockOffset,
}

/// By how much a stamp may be ahead of what is thought to be the peer's clock, microseconds.
const STAMP_ERROR_MAX: i32 = 1_000_000;

impl PeerClock {
    /// A packet that left at `sent_at` was acknowledged at `heard_at`; `received_us` and `held_us` are
    /// what the acknowledgement says.
    pub(crate) fn on_ack(
        &mut self,
        (sent_at, heard_at): (Instant, Instant),
        (received_us, held_us): (u64, u64),
    ) {
        self.offset.on_exchange(Exchange {
            asked_at: sent_at.as_nanos(),
            received_at: received_us.saturating_mul(1000),
            replied_at: received_us.saturating_add(held_us).saturating_mul(1000),
            heard_at: heard_at.as_nanos(),
        });
    }

    /// How long ago at `now` it was what the peer's clock showed, of which `stamp` is [`stamp`];
    /// `None`: the clock is not known yet, or it were more than half an hour.
    pub(crate) fn since(&self, now: Instant, stamp: u32) -> Option<Duration> {
        let theirs = self.offset.to_theirs(now.as_nanos())? / 1000;
        // Both count on modulo 2^32; a little ahead of us is now.
        let ago = (theirs as u32).wrapping_sub(stamp) as i32;
        match ago {
            0.. => Some(Duration::from_micros(ago as u64)),
            _ if ago > -STAMP_ERROR_MAX => Some(Duration::ZERO),
            _ => None,
        }
    }
}

/// A moment of our clock as it is told: microseconds modulo 2^32.
pub(crate) fn stamp(at: Instant) -> u32 {
    (at.as_nanos() / 1000) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn stamps_are_taken_for_what_they_were_across_their_end() {
        for lead_us in [0u64, 4_200_000, 10_000_000_000_000] {
            let mut clock = PeerClock::default();
            let start = Instant::ZERO + Duration::from_secs(4290);
            assert_eq!(clock.since(start, 0), None);
            let received = (start + MS * 5).as_nanos() / 1000 + lead_us;
            clock.on_ack((start, start + MS * 10), (received, 0));
            let now = start + Duration::from_secs(10);
            let told = |at: Instant| (at.as_nanos() / 1000 + lead_us) as u32;
            for ago in [Duration::ZERO, MS * 30, MS * 9000] {
                assert_eq!(clock.since(now, told(now - ago)), Some(ago));
            }
            assert_eq!(clock.since(now, told(now + MS)), Some(Duration::ZERO));
            assert_eq!(clock.since(now, told(now).wrapping_add(1 << 30)), None);
        }
    }
}
