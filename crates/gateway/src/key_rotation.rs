//! How far new static keys have come: this gateway's own, and those of a hub's sites.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant as Stopwatch},
};

use keiro_control::key::PublicKey;
use keiro_core::PeerId;

/// Between two announcements of a key to one hub. Ours.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(2);
/// Least time between two changes of the registry by one site's announcements; others are ignored. Ours: each is sent
/// to all sites.
const CHANGE_EVERY: Duration = Duration::from_secs(30);

/// How far a new static key has come.
#[derive(Debug, Default)]
pub(crate) struct KeyRotation {
    /// What this gateway's key is to be followed by.
    next: Option<PublicKey>,
    /// What it has followed, and is still answered to.
    previous: Option<PublicKey>,
    /// Hubs that accept `next`.
    accepted_by: BTreeSet<PeerId>,
    announced_at: BTreeMap<PeerId, Stopwatch>,
    /// The key of this gateway that each peer has used last.
    ours: BTreeMap<PeerId, PublicKey>,
    /// The key that each peer has used last.
    theirs: BTreeMap<PeerId, PublicKey>,
    /// At the hub, when a site's announcement has changed the registry last.
    changed_at: BTreeMap<PeerId, Stopwatch>,
}

impl KeyRotation {
    /// The keys of this gateway that peers may use, the one to use first.
    pub(crate) fn keys(&self, used: PublicKey) -> Vec<PublicKey> {
        let all = self.next.into_iter().chain([used]).chain(self.previous);
        all.take(2).collect()
    }

    /// What the key of this gateway is to be followed by; `None`: nothing.
    pub(crate) fn next(&self) -> Option<PublicKey> {
        self.next
    }

    /// What it has followed, and is still answered to; `None`: nothing.
    pub(crate) fn previous(&self) -> Option<PublicKey> {
        self.previous
    }

    /// The files have these keys beside the one in use.
    pub(crate) fn follow(&mut self, next: Option<PublicKey>, previous: Option<PublicKey>) {
        if next != self.next {
            self.accepted_by.clear();
            self.announced_at.clear();
        }
        (self.next, self.previous) = (next, previous);
    }

    /// Whether to announce the next key to a hub now, which is taken as done.
    pub(crate) fn take_announcement(&mut self, now: Stopwatch, hub: PeerId) -> bool {
        let is_recent = |at: &Stopwatch| now.saturating_duration_since(*at) < ANNOUNCE_EVERY;
        if self.is_accepted_by(hub) || self.announced_at.get(&hub).is_some_and(is_recent) {
            return false;
        }
        self.announced_at.insert(hub, now);
        true
    }

    /// A hub accepts a key of this gateway.
    pub(crate) fn on_accepted(&mut self, hub: PeerId, key: PublicKey) {
        if self.next == Some(key) {
            self.accepted_by.insert(hub);
        }
    }

    /// Whether a hub accepts the next key.
    pub(crate) fn is_accepted_by(&self, hub: PeerId) -> bool {
        self.accepted_by.contains(&hub)
    }

    /// Handshakes with a peer have been made with these keys.
    pub(crate) fn on_used(&mut self, peer: PeerId, ours: PublicKey, theirs: PublicKey) {
        self.ours.insert(peer, ours);
        self.theirs.insert(peer, theirs);
    }

    /// The key of this gateway that a peer has used last; `None`: there was no handshake.
    pub(crate) fn ours_used_by(&self, peer: PeerId) -> Option<PublicKey> {
        self.ours.get(&peer).copied()
    }

    /// The key that a peer has used last; `None`: there was no handshake.
    pub(crate) fn used_by(&self, peer: PeerId) -> Option<PublicKey> {
        self.theirs.get(&peer).copied()
    }

    /// At the hub: whether a site's announcement may change the registry now.
    pub(crate) fn may_change(&self, now: Stopwatch, site: PeerId) -> bool {
        let is_recent = |at: &Stopwatch| now.saturating_duration_since(*at) < CHANGE_EVERY;
        !self.changed_at.get(&site).is_some_and(is_recent)
    }

    /// At the hub: a site's announcement has changed the registry, or would make it wrong.
    pub(crate) fn on_changed(&mut self, now: Stopwatch, site: PeerId) {
        self.changed_at.insert(site, now);
    }

    /// Forgets peers that are none any more.
    pub(crate) fn retain(&mut self, is_there: impl Fn(PeerId) -> bool) {
        self.accepted_by.retain(|peer| is_there(*peer));
        self.announced_at.retain(|peer, _| is_there(*peer));
        self.ours.retain(|peer, _| is_there(*peer));
        self.theirs.retain(|peer, _| is_there(*peer));
        self.changed_at.retain(|peer, _| is_there(*peer));
    }
}
