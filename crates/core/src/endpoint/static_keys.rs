//! The static keys of both sides, while one key follows another: handshakes are answered with either, and begun with the
//! one in use. Sessions go on.

use std::time::Duration;

use keiro_units::Instant;

use super::Endpoint;
use crate::{
    handshake::{MacKeys, PrivateKey, PublicKey},
    id::PeerId,
};

/// Between the handshakes with two peers after the key in use has changed. Ours: a thousand of them take two seconds.
const HANDSHAKE_EVERY: Duration = Duration::from_millis(2);

/// The static keys of this endpoint.
pub(super) struct OwnKeys {
    used: OwnKey,
    other: Option<OwnKey>,
}

/// A static key of this endpoint.
pub(super) struct OwnKey {
    pub(super) private: PrivateKey,
    pub(super) public: PublicKey,
    /// MACs of packets to this endpoint.
    pub(super) macs: MacKeys,
}

impl OwnKey {
    fn new(private: PrivateKey) -> Self {
        let public = private.public_key();
        Self {
            macs: MacKeys::new(&public),
            private,
            public,
        }
    }
}

impl OwnKeys {
    pub(super) fn new(private: PrivateKey) -> Self {
        Self {
            used: OwnKey::new(private),
            other: None,
        }
    }

    /// The one that handshakes are begun with.
    pub(super) fn used(&self) -> &OwnKey {
        &self.used
    }

    /// The one that a handshake packet was made for; `None`: it is for none of these.
    pub(super) fn addressed_by(&self, packet: &[u8]) -> Option<&OwnKey> {
        let mut all = std::iter::once(&self.used).chain(&self.other);
        all.find(|key| key.macs.is_made_with(packet))
    }
}

impl Endpoint {
    /// Changes the static keys of this endpoint: handshakes are begun with `used`, and those to either are answered.
    /// Sessions go on; where another key is used than before, handshakes with all peers begin soon.
    pub fn set_private_keys(&mut self, now: Instant, used: PrivateKey, other: Option<PrivateKey>) {
        let used = OwnKey::new(used);
        let is_new = used.public != self.own_keys.used.public;
        self.own_keys = OwnKeys {
            used,
            other: other.map(OwnKey::new),
        };
        if !is_new {
            return;
        }
        let mut at = now;
        for session in self.peers.values_mut().filter(|of| !of.answers_only) {
            session.handshake.attempts = 0;
            session.handshake.next_at = Some(at);
            at += HANDSHAKE_EVERY;
        }
    }

    /// Changes the static keys of a peer: handshakes with it are begun with `used`, and either may begin one. The
    /// session goes on; where another key is used than before, a handshake begins at once. Another peer that has one of
    /// the keys is removed first.
    pub fn set_peer_keys(
        &mut self,
        now: Instant,
        peer: PeerId,
        used: PublicKey,
        other: Option<PublicKey>,
    ) {
        if !self.peers.contains_key(&peer) {
            return;
        }
        self.by_key.retain(|_, id| *id != peer);
        for key in std::iter::once(used).chain(other) {
            if let Some(same) = self.by_key.get(&key) {
                self.remove_peer(now, *same);
            }
            self.by_key.insert(key, peer);
        }
        let Some(session) = self.peers.get_mut(&peer) else {
            return;
        };
        session.other_public_key = other;
        if session.public_key == used {
            return;
        }
        session.public_key = used;
        let handshake = &mut session.handshake;
        handshake.mac_keys = MacKeys::new(&used);
        handshake.cookie = Default::default();
        handshake.attempts = 0;
        handshake.next_at = Some(now);
        // What answers it is made with the key of before.
        if let Some(old) = handshake.pending.take() {
            self.by_index.remove(&old.local_index);
        }
    }
}
