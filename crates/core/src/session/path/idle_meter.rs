//! What an idle path costs, by what has passed on it while it carried no data.

use std::time::Duration;

use keiro_model::probing::MONTH;
use keiro_units::Instant;

/// Counts in spans of this length. Ours: trains of an idle path are minutes apart.
const SPAN: Duration = Duration::from_secs(600);
/// A path that has been idle for less says nothing.
const LEAST: Duration = Duration::from_secs(60);

/// Bytes in both directions over the last span without data.
#[derive(Debug, Default)]
pub(super) struct IdleMeter {
    since: Instant,
    bytes: u64,
    last: Option<u64>,
}

impl IdleMeter {
    /// Data passes; `bytes` have passed in all.
    pub(super) fn on_data(&mut self, now: Instant, bytes: u64) {
        (self.since, self.bytes) = (now, bytes);
    }

    /// `bytes` have passed in all.
    pub(super) fn on_traffic(&mut self, now: Instant, bytes: u64) {
        if now.saturating_duration_since(self.since) >= SPAN {
            self.last = self.per_month(now, bytes);
            (self.since, self.bytes) = (now, bytes);
        }
    }

    /// Bytes a month, of the last whole span, or of the present one where there is none.
    pub(super) fn bytes_per_month(&self, now: Instant, bytes: u64) -> Option<u64> {
        self.last.or_else(|| self.per_month(now, bytes))
    }

    fn per_month(&self, now: Instant, bytes: u64) -> Option<u64> {
        let span = now.saturating_duration_since(self.since);
        let passed = u128::from(bytes.saturating_sub(self.bytes));
        let month = passed * MONTH.as_millis() / span.as_millis().max(1);
        (span >= LEAST).then(|| u64::try_from(month).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_traffic_is_extrapolated_to_a_month() {
        let at = |seconds: u64| Instant::ZERO + Duration::from_secs(seconds);
        let mut meter = IdleMeter::default();
        meter.on_data(at(5), 1000);
        assert_eq!(meter.bytes_per_month(at(10), 2000), None);
        assert_eq!(meter.bytes_per_month(at(65), 1060), Some(30 * 86_400));
        meter.on_traffic(at(605), 1600);
        assert_eq!(meter.bytes_per_month(at(606), 1601), Some(30 * 86_400));
        meter.on_data(at(700), 1_000_000);
        assert_eq!(meter.bytes_per_month(at(701), 1_000_000), Some(30 * 86_400));
    }
}
