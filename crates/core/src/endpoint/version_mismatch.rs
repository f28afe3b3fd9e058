//! Decides how often a version mismatch is reported.

use std::{collections::BTreeMap, time::Duration};

use keiro_units::Instant;

use crate::id::PeerId;

/// A mismatch with one peer is reported at most this often. Ours: often enough for a log that is
/// being watched, rare enough that forged initiations do not fill it.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// When a mismatch with each peer was last reported. The key `None` is shared by all senders that
/// are at no peer's address, so there is at most one entry more than there are peers.
#[derive(Default)]
pub(super) struct MismatchReports {
    reported_at: BTreeMap<Option<PeerId>, Instant>,
}

impl MismatchReports {
    /// Whether to report a mismatch now; if so, it counts as reported.
    pub(super) fn admit(&mut self, now: Instant, peer: Option<PeerId>) -> bool {
        let reported_at = self.reported_at.get(&peer);
        let due =
            reported_at.is_none_or(|at| now.saturating_duration_since(*at) >= REPORT_INTERVAL);
        if due {
            self.reported_at.insert(peer, now);
        }
        due
    }

    /// The next mismatch with this peer is reported at once: keys were agreed meanwhile, or the
    /// peer was removed.
    pub(super) fn forget(&mut self, peer: PeerId) {
        self.reported_at.remove(&Some(peer));
    }
}
