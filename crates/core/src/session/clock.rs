//! The offset of the peer's clock from ours, estimated from packets and their acknowledgements.
//!
//! An acknowledgement carries when its packet arrived and how long it was held back, by the peer's
//! clock. When the packet left and when the acknowledgement arrived is known by ours.

use std::time::Duration;

use keiro_model::clock::{ClockOffset, Exchange};
use keiro_units::Instant;

/// An estimate of the peer's clock.
#[derive(Debug, Default)]
pub(crate) struct PeerClock {
    offset: ClockOffset,
}

/// By how much a stamp may be ahead of the estimate of the peer's clock, microseconds.
const STAMP_ERROR_MAX: i32 = 1_000_000;

/// A packet and its acknowledgement, as four times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckExchange {
    pub(crate) sent_at: Instant,
    /// By the peer's clock.
    pub(crate) received_us: u64,
    /// For how long the peer held the acknowledgement back.
    pub(crate) held_us: u64,
    pub(crate) acked_at: Instant,
}

impl PeerClock {
    /// A packet of ours was acknowledged.
    pub(crate) fn on_ack(&mut self, ack: AckExchange) {
        self.offset.on_exchange(Exchange {
            asked_at: ack.sent_at.as_nanos(),
            received_at: ack.received_us.saturating_mul(1000),
            replied_at: ack
                .received_us
                .saturating_add(ack.held_us)
                .saturating_mul(1000),
            heard_at: ack.acked_at.as_nanos(),
        });
    }

    /// How long before `now` the peer's clock showed a time of which `stamp` is the [`stamp`]; `None`:
    /// the clock is not known yet, or it would be more than half an hour.
    pub(crate) fn since(&self, now: Instant, stamp: u32) -> Option<Duration> {
        let theirs = self.offset.to_theirs(now.as_nanos())? / 1000;
        // Both wrap at 2^32; a little ahead of us counts as now.
        let ago = (theirs as u32).wrapping_sub(stamp) as i32;
        match ago {
            0.. => Some(Duration::from_micros(ago as u64)),
            _ if ago > -STAMP_ERROR_MAX => Some(Duration::ZERO),
            _ => None,
        }
    }
}

/// A time of our clock as it is sent: microseconds modulo 2^32.
pub(crate) fn stamp(at: Instant) -> u32 {
    (at.as_nanos() / 1000) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn timestamps_are_unwrapped() {
        for lead_us in [0u64, 4_200_000, 10_000_000_000_000] {
            let mut clock = PeerClock::default();
            let start = Instant::ZERO + Duration::from_secs(4290);
            assert_eq!(clock.since(start, 0), None);
            let received = (start + MS * 5).as_nanos() / 1000 + lead_us;
            clock.on_ack(AckExchange {
                sent_at: start,
                received_us: received,
                held_us: 0,
                acked_at: start + MS * 10,
            });
            let now = start + Duration::from_secs(10);
            let stamp_at = |at: Instant| (at.as_nanos() / 1000 + lead_us) as u32;
            for ago in [Duration::ZERO, MS * 30, MS * 9000] {
                assert_eq!(clock.since(now, stamp_at(now - ago)), Some(ago));
            }
            assert_eq!(clock.since(now, stamp_at(now + MS)), Some(Duration::ZERO));
            assert_eq!(clock.since(now, stamp_at(now).wrapping_add(1 << 30)), None);
        }
    }
}
