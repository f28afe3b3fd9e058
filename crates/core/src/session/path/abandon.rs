//! Paths that have never answered, while another one of their socket works.

use std::time::Duration;

use keiro_units::Instant;

use super::Path;

/// Time after which a path that has never answered is abandoned while another one of its socket works: its
/// address cannot be reached from here. Ours: a gateway starts in less.
const HOPELESS_AFTER: Duration = Duration::from_secs(30);

impl Path {
    /// Abandons a path that has not answered within [`HOPELESS_AFTER`]: it is rarely challenged. `true` if it was
    /// not abandoned before. To be called while another path of its socket is up.
    pub(crate) fn abandon_if_unanswered(&mut self, now: Instant) -> bool {
        // Where packets of the peer come that answer nothing, something is wrong on the way.
        let was_never_answered = self.reachability.unanswered().is_some_and(|it| {
            let asked_for = now.saturating_duration_since(it.since);
            asked_for >= HOPELESS_AFTER && it.received_packets == 0
        });
        was_never_answered && self.validation.abandon()
    }

    /// Challenges it at once, if it was abandoned.
    pub(crate) fn resume(&mut self, now: Instant) {
        if self.validation.resume(now) {
            self.reachability.restart();
        }
    }

    /// It has never answered while another path of the same socket works, and is rarely challenged.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.validation.is_abandoned()
    }
}
