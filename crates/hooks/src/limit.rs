//! How often a hook is served: a token bucket.

use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);

/// A minute's events at once after a quiet minute, and that many a minute in the long run.
#[derive(Clone, Debug)]
pub struct Limit {
    /// From one event to the next in the long run.
    interval: Duration,
    /// When a full bucket would have been empty: the more it is in the past, the more may pass.
    empty_at: Instant,
}

impl Limit {
    /// A full one.
    ///
    /// # Panics
    /// If nothing may pass.
    pub fn new(now: Instant, per_minute: u32) -> Self {
        assert!(per_minute > 0, "something may pass");
        Self {
            interval: MINUTE / per_minute,
            empty_at: now.checked_sub(MINUTE).unwrap_or(now),
        }
    }

    /// Whether one more may pass, which is counted then.
    pub fn take(&mut self, now: Instant) -> bool {
        let oldest = now.checked_sub(MINUTE).unwrap_or(self.empty_at);
        let next = self.empty_at.max(oldest) + self.interval;
        let passes = next <= now;
        if passes {
            self.empty_at = next;
        }
        passes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minutes_events_pass_at_once_and_then_at_the_rate() {
        let now = Instant::now() + MINUTE;
        let mut limit = Limit::new(now, 6);
        let at_once = (0..100).filter(|_| limit.take(now)).count();
        assert_eq!(at_once, 6);
        let seconds = |seconds| now + Duration::from_secs(seconds);
        assert!(!limit.take(seconds(9)) && limit.take(seconds(10)) && !limit.take(seconds(10)));
        let later = seconds(3600);
        assert_eq!((0..100).filter(|_| limit.take(later)).count(), 6);
    }
}
