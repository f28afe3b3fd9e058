//! Whether a path that is not up is answered: what was sent on it and what has come of the peer. A firewall
//! that passes one direction only shows in these numbers.

use keiro_units::Instant;

use crate::snapshot::Unanswered;

/// Packets in both directions since the path was last up.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReachabilityCounters {
    /// When the first of them was sent; `None`: none was.
    since: Option<Instant>,
    sent: u64,
    received: u64,
    /// When the last authentic packet came.
    heard_at: Option<Instant>,
}

impl ReachabilityCounters {
    /// A challenge or a packet of a handshake leaves.
    pub(super) fn on_sent(&mut self, now: Instant) {
        self.since.get_or_insert(now);
        self.sent += 1;
    }

    /// An authentic packet of the peer has come that answers nothing.
    pub(super) fn on_received(&mut self, now: Instant) {
        self.received += 1;
        self.heard_at = Some(now);
    }

    /// The path has answered, or is another one now.
    pub(super) fn restart(&mut self) {
        *self = Self::default();
    }

    /// `None`: nothing was sent yet.
    pub(super) fn unanswered(&self) -> Option<Unanswered> {
        Some(Unanswered {
            since: self.since?,
            sent_packets: self.sent,
            received_packets: self.received,
            heard_at: self.heard_at,
        })
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(super) fn check_invariants(&self) {
        assert_eq!(
            self.since.is_some(),
            self.sent > 0,
            "the first packet was sent at some time"
        );
        assert_eq!(
            self.heard_at.is_some(),
            self.received > 0,
            "the last packet came at some time"
        );
    }
}
