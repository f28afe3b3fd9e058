//! Limits how often a lasting condition is logged.

use std::time::Duration;

use keiro_core::Instant;

/// When the condition was last logged.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle(Option<Instant>);

/// Interval between log entries. Ours.
const EVERY: Duration = Duration::from_secs(10);

impl LogThrottle {
    /// Whether to log now; notes that it is logged.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let due = self
            .0
            .is_none_or(|last| now.saturating_duration_since(last) >= EVERY);
        if due {
            self.0 = Some(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_due_at_once_and_then_every_ten_seconds() {
        let mut throttle = LogThrottle::default();
        let logged = (0..25).filter(|at| throttle.is_due(Instant::ZERO + Duration::from_secs(*at)));
        assert_eq!(logged.collect::<Vec<_>>(), [0, 10, 20]);
    }
}
