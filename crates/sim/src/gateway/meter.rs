//! Measures by how much a sender exceeds its rate.

use keiro_units::{Bandwidth, ByteCount, Instant};

/// A bucket that drains at the rate: its highest level is the largest excess over
/// rate × time in any interval.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meter {
    rate: Bandwidth,
    /// Bits times 10^9 in the bucket at `at`.
    level: u128,
    at: Instant,
    max: ByteCount,
}

const SCALE: u128 = 8 * 1_000_000_000;

impl Meter {
    pub(crate) const fn new(rate: Bandwidth) -> Self {
        Self {
            rate,
            level: 0,
            at: Instant::ZERO,
            max: ByteCount::ZERO,
        }
    }

    pub(crate) fn on_sent(&mut self, now: Instant, len: ByteCount) {
        let elapsed = (now - self.at).as_nanos();
        let drained = elapsed * u128::from(self.rate.as_bits_per_second());
        self.level = self.level.saturating_sub(drained) + u128::from(len.get()) * SCALE;
        self.at = now;
        self.max = self.max.max(ByteCount::new((self.level / SCALE) as u64));
    }

    pub(crate) const fn max(&self) -> ByteCount {
        self.max
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn level_is_what_was_sent_beyond_the_rate() {
        // 8 Mbit/s: 1000 bytes a millisecond.
        let mut meter = Meter::new(Bandwidth::from_mbit_per_second(8));
        let packet = ByteCount::new(1000);
        for i in 0..100 {
            meter.on_sent(Instant::ZERO + Duration::from_millis(i), packet);
        }
        assert_eq!(meter.max(), packet);
        let later = Instant::ZERO + Duration::from_millis(200);
        for _ in 0..3 {
            meter.on_sent(later, packet);
        }
        assert_eq!(meter.max(), ByteCount::new(3000));
    }
}
