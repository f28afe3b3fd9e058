//! Decides how often something that is not authenticated is reported.

use std::{collections::BTreeMap, time::Duration};

use keiro_units::Instant;

use crate::id::PeerId;

/// It is reported at most this often of one sender. Ours: often enough for a log that is being watched,
/// rare enough that forged initiations do not fill it.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// Where something that is not authenticated has come from. Each has reports that the others cannot use up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Sender {
    /// An address of no peer: anyone.
    Stranger,
    /// The address of several peers.
    Shared,
    /// The address of this peer alone.
    Peer(PeerId),
}

impl Sender {
    /// The peer that it may be.
    pub(super) fn peer(self) -> Option<PeerId> {
        match self {
            Self::Stranger | Self::Shared => None,
            Self::Peer(peer) => Some(peer),
        }
    }

    pub(super) fn is_at_peer_address(self) -> bool {
        self != Self::Stranger
    }
}

/// When it was last reported of each sender. There are at most two entries more than there are peers.
#[derive(Default)]
pub(super) struct PeerReports {
    reported_at: BTreeMap<Sender, Instant>,
}

impl PeerReports {
    /// Whether to report it now; if so, it counts as reported.
    pub(super) fn admit(&mut self, now: Instant, sender: Sender) -> bool {
        let reported_at = self.reported_at.get(&sender);
        let due =
            reported_at.is_none_or(|at| now.saturating_duration_since(*at) >= REPORT_INTERVAL);
        if due {
            self.reported_at.insert(sender, now);
        }
        due
    }

    /// The next one of this peer is reported at once: keys were agreed meanwhile, or the peer was
    /// removed.
    pub(super) fn forget(&mut self, peer: PeerId) {
        self.reported_at.remove(&Sender::Peer(peer));
    }
}
