//! What a round trip of packets shows.

use keiro_units::Instant;

use super::arrivals::Mark;

/// A round trip of packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    pub(super) began: Instant,
    /// What had arrived with the first packet that left since.
    pub(super) first: Option<Mark>,
    /// Shortest and longest queue, s, and those of the first packet and the last.
    pub(super) queue: f64,
    pub(super) longest: f64,
    pub(super) oldest: f64,
    pub(super) newest: f64,
    /// The controller held something back.
    pub(super) is_blocked: bool,
}

impl Round {
    pub(super) const fn beginning(now: Instant) -> Self {
        Self {
            began: now,
            first: None,
            queue: f64::INFINITY,
            longest: 0.0,
            oldest: 0.0,
            newest: 0.0,
            is_blocked: false,
        }
    }
}

impl Round {
    /// A packet has arrived that queued for `queue`, s.
    pub(super) fn on_queue(&mut self, queue: f64) {
        if self.queue.is_infinite() {
            self.oldest = queue;
        }
        self.newest = queue;
        self.queue = self.queue.min(queue);
        self.longest = self.longest.max(queue);
    }
}
