//! Handshakes that fail because of a key, reported so that both ends can name the cause.
//!
//! Their senders are not proven, so a report changes nothing, is rare, and never accuses a peer that is up.

use std::net::SocketAddr;

use keiro_units::Instant;

use super::{
    Endpoint,
    peer_reports::{PeerReports, Sender},
};
use crate::{
    event::{Event, KeyFault},
    id::PeerId,
};

/// When such handshakes were reported.
#[derive(Default)]
pub(super) struct WrongKeys {
    /// Anyone can send what these are about: random bytes will do.
    unproven: PeerReports,
    /// The sender knows our public key.
    with_our_key: PeerReports,
    /// The sender has seen our initiation.
    preshared: PeerReports,
}

/// What the sender of a handshake with a wrong key has shown to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proof {
    Nothing,
    OurPublicKey,
    OurInitiation,
}

impl Proof {
    fn of(fault: &KeyFault) -> Self {
        match fault {
            KeyFault::NotOurs => Self::Nothing,
            KeyFault::NotOfPeer(_) => Self::OurPublicKey,
            KeyFault::Preshared => Self::OurInitiation,
        }
    }
}

impl WrongKeys {
    /// Keys were agreed with this peer, or it was removed.
    pub(super) fn forget(&mut self, peer: PeerId) {
        self.unproven.forget(peer);
        self.with_our_key.forget(peer);
        self.preshared.forget(peer);
    }

    /// Whether to report a fault now. At the addresses of peers each proof has reports that the others cannot
    /// use up, so that forged packets hide no mistake; strangers share theirs.
    fn admit(&mut self, now: Instant, sender: Sender, proof: Proof) -> bool {
        let reports = match proof {
            _ if !sender.is_at_peer_address() => &mut self.unproven,
            Proof::Nothing => &mut self.unproven,
            Proof::OurPublicKey => &mut self.with_our_key,
            Proof::OurInitiation => &mut self.preshared,
        };
        reports.admit(now, sender)
    }
}

impl Endpoint {
    /// A handshake has come from an address and cannot be answered for this reason.
    pub(super) fn on_wrong_key(&mut self, now: Instant, remote: SocketAddr, fault: KeyFault) {
        if self.peers.is_empty() {
            return;
        }
        if !self.is_peer_address(now, remote.ip()) {
            return self.report_wrong_key(now, Sender::Stranger, remote, fault);
        }
        if let Some(sender) = self.suspect(remote) {
            self.report_wrong_key(now, sender, remote, fault);
        }
    }

    /// The answer of a peer to our initiation is not authentic under the preshared key.
    pub(super) fn on_preshared_key_differs(
        &mut self,
        now: Instant,
        peer: PeerId,
        remote: SocketAddr,
    ) {
        let Some(session) = self.peers.get(&peer) else {
            return;
        };
        // An answer from elsewhere may be forged by one who saw our index.
        let mut remotes = session.remotes().into_iter();
        let is_of_peer = remotes.any(|(_, address)| address == remote);
        if is_of_peer && !session.is_up() {
            let sender = Sender::Peer(peer);
            self.report_wrong_key(now, sender, remote, KeyFault::Preshared);
        }
    }

    fn report_wrong_key(
        &mut self,
        now: Instant,
        sender: Sender,
        remote: SocketAddr,
        fault: KeyFault,
    ) {
        if self.wrong_keys.admit(now, sender, Proof::of(&fault)) {
            self.events.push_back(Event::WrongKey {
                peer: sender.peer(),
                remote,
                at_peer_address: sender.is_at_peer_address(),
                fault,
            });
        }
    }
}
