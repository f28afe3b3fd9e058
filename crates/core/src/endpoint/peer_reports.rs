//! Decides how often something that is not authenticated is reported.

use std::{collections::BTreeMap, time::Duration};

use keiro_units::Instant;

use crate::id::PeerId;

/// It is reported at most this often of one peer. Ours: often enough for a log that is being watched,
/// rare enough that forged initiations do not fill it.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// When it was last reported of each peer. The key `None` is shared by all senders that
/// are at no peer's address, so there is at most one entry more than there are peers.
#[derive(Default)]
pub(super) struct PeerReports {
    reported_at: BTreeMap<Option<PeerId>, Instant>,
}

impl PeerReports {
    /// Whether it would be reported now.
    pub(super) fn is_due(&self, now: Instant, peer: Option<PeerId>) -> bool {
        let reported_at = self.reported_at.get(&peer);
        reported_at.is_none_or(|at| now.saturating_duration_since(*at) >= REPORT_INTERVAL)
    }

    /// Whether to report it now; if so, it counts as reported.
    pub(super) fn admit(&mut self, now: Instant, peer: Option<PeerId>) -> bool {
        let due = self.is_due(now, peer);
        if due {
            self.reported_at.insert(peer, now);
        }
        due
    }

    /// The next one of this peer is reported at once: keys were agreed meanwhile, or the peer was
    /// removed.
    pub(super) fn forget(&mut self, peer: PeerId) {
        self.reported_at.remove(&Some(peer));
    }
}
