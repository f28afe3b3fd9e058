//! When a path's limit and terms are announced to the peer beside data.
//!
//! Pings and challenges carry them too, but a path that always carries data sends neither, and the frames ask for no
//! acknowledgement. So they are repeated.

use std::time::Duration;

use keiro_units::Instant;

/// After a change they are sent this often, for [`REPEATED_FOR`]. Ours: thirty copies of 12 bytes; that all of them are
/// lost is less probable than an outage.
const REPEATED_EVERY: Duration = Duration::from_millis(100);
const REPEATED_FOR: Duration = Duration::from_secs(3);
/// How often they are sent otherwise.
const REFRESHED_EVERY: Duration = Duration::from_secs(10);

/// Times at which the limit and the terms of a path are announced.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnnouncementTimer {
    next_at: Instant,
    sent_at: Instant,
    repeated_until: Instant,
    /// A change has not been sent at all.
    is_unsent: bool,
}

impl AnnouncementTimer {
    /// Due beside the first data.
    pub(super) fn new() -> Self {
        let start = Instant::from_nanos(0);
        Self {
            next_at: start,
            sent_at: start,
            repeated_until: start,
            is_unsent: false,
        }
    }

    pub(super) fn on_change(&mut self, now: Instant) {
        *self = Self {
            next_at: now,
            sent_at: self.sent_at,
            repeated_until: now + REPEATED_FOR,
            is_unsent: true,
        };
    }

    /// The peer challenges the path. It may have added it just before, and know nothing of it.
    pub(super) fn on_challenged(&mut self, now: Instant) {
        let soon = now.max(self.sent_at + REPEATED_EVERY);
        self.next_at = self.next_at.min(soon);
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next_at <= now
    }

    pub(super) fn is_unsent(&self) -> bool {
        self.is_unsent
    }

    pub(super) fn on_sent(&mut self, now: Instant) {
        self.is_unsent = false;
        self.sent_at = now;
        self.next_at = match now < self.repeated_until {
            true => now + REPEATED_EVERY,
            false => now + REFRESHED_EVERY,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announcements_are_repeated_soon_and_then_rarely() {
        let start = Instant::from_nanos(0);
        let mut announcement_timer = AnnouncementTimer::new();
        announcement_timer.on_change(start);
        let mut sent = Vec::new();
        for millis in 0..30_000 {
            let now = start + Duration::from_millis(millis);
            if announcement_timer.is_due(now) {
                assert_eq!(announcement_timer.is_unsent(), millis == 0);
                announcement_timer.on_sent(now);
                sent.push(millis);
            }
        }
        assert_eq!(sent.iter().filter(|at| **at < 3_000).count(), 30);
        assert_eq!(sent[30..], [3_000, 13_000, 23_000]);
    }

    #[test]
    fn a_peer_that_challenges_the_path_is_soon_sent_them_and_not_often() {
        let mut announcement_timer = AnnouncementTimer::new();
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        announcement_timer.on_sent(at(1_000));
        assert!(!announcement_timer.is_due(at(5_000)));
        announcement_timer.on_challenged(at(5_000));
        assert!(announcement_timer.is_due(at(5_000)));
        announcement_timer.on_sent(at(5_000));
        announcement_timer.on_challenged(at(5_001));
        assert!(!announcement_timer.is_due(at(5_099)));
        assert!(announcement_timer.is_due(at(5_100)));
    }
}
