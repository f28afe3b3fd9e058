//! Round trip and retransmission timeout (RFC 6298).

use std::time::Duration;

use super::{RtoFloor, TcpConfig};

/// The clock's granularity G of RFC 6298 §2.
const GRANULARITY: Duration = Duration::from_millis(1);

/// Estimator of the round trip.
#[derive(Clone, Debug, Default)]
pub(super) struct Rtt {
    smoothed: Option<Duration>,
    variation: Duration,
    min: Option<Duration>,
    /// Timeouts since the last measurement.
    backoff: u32,
}

impl Rtt {
    /// Adds a measurement (RFC 6298 §2.2, 2.3); ends the backoff (§5.7).
    pub(super) fn sample(&mut self, rtt: Duration) {
        self.backoff = 0;
        self.min = Some(self.min.map_or(rtt, |min| min.min(rtt)));
        match self.smoothed {
            None => {
                self.smoothed = Some(rtt);
                self.variation = rtt / 2;
            }
            Some(smoothed) => {
                let deviation = smoothed.abs_diff(rtt);
                self.variation = (self.variation * 3 + deviation) / 4;
                self.smoothed = Some((smoothed * 7 + rtt) / 8);
            }
        }
    }

    /// The timer expired (RFC 6298 §5.5).
    pub(super) const fn back_off(&mut self) {
        self.backoff = self.backoff.saturating_add(1);
    }

    /// Whether it expired since the last measurement.
    pub(super) const fn is_backed_off(&self) -> bool {
        self.backoff > 0
    }

    pub(super) fn timeout(&self, config: &TcpConfig) -> Duration {
        let base = match (self.smoothed, config.rto_floor) {
            (None, _) => config.rto_initial,
            (Some(smoothed), RtoFloor::Timeout(floor)) => {
                (smoothed + GRANULARITY.max(self.variation * 4)).max(floor)
            }
            (Some(smoothed), RtoFloor::BeyondRoundTrip(floor)) => {
                smoothed + floor.max(self.variation * 4)
            }
        };
        // 2^32 times a nanosecond exceeds every sensible maximum.
        base.saturating_mul(1 << self.backoff.min(31))
            .min(config.rto_max)
    }

    /// The smoothed round trip; `None` before the first measurement.
    pub(super) const fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    /// The minimum round trip.
    pub(super) const fn min(&self) -> Option<Duration> {
        self.min
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn timeout_is_the_round_trip_and_four_deviations_above_the_floor() {
        let mut config = TcpConfig::RFC;
        let mut rtt = Rtt::default();
        assert_eq!(rtt.timeout(&config), Duration::from_secs(1));
        rtt.sample(100 * MS);
        assert_eq!(rtt.timeout(&config), Duration::from_secs(1));
        config.rto_floor = RtoFloor::Timeout(50 * MS);
        assert_eq!(rtt.timeout(&config), 300 * MS);
        // R' = 180: RTTVAR = (3 × 50 + 80) / 4 = 57.5, SRTT = (7 × 100 + 180) / 8 = 110.
        rtt.sample(180 * MS);
        assert_eq!(rtt.timeout(&config), 110 * MS + 230 * MS);
        config.rto_floor = RtoFloor::BeyondRoundTrip(400 * MS);
        assert_eq!(rtt.timeout(&config), 510 * MS);
    }

    #[test]
    fn timeout_doubles_up_to_its_maximum_until_a_measurement() {
        let config = TcpConfig::RFC;
        let mut rtt = Rtt::default();
        rtt.sample(10 * MS);
        for expected in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert_eq!(rtt.timeout(&config), Duration::from_secs(expected));
            rtt.back_off();
        }
        rtt.sample(10 * MS);
        assert_eq!(rtt.timeout(&config), Duration::from_secs(1));
    }
}
