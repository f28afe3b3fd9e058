//! Handshakes that fail because of a key, reported so that both ends can name the cause.
//!
//! Their senders are not proven, so a report changes nothing, is rare, and never accuses a peer that is up.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use keiro_units::Instant;

use super::{
    Endpoint,
    peer_reports::{PeerReports, Sender},
};
use crate::{
    event::{Event, KeyFault},
    id::PeerId,
};

/// The peer of an address is looked for once in this time for each kind of fault. Ours.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Addresses that are looked for in that time: each takes a look at all peers. Ours.
const LOOKS_MAX: usize = 10;

/// When such handshakes were reported.
#[derive(Default)]
pub(super) struct WrongKeys {
    /// Anyone can send what these are about: random bytes will do.
    unproven: PeerReports,
    /// The sender knows our public key.
    with_our_key: PeerReports,
    /// The sender has seen our initiation.
    preshared: PeerReports,
    looked_at: BTreeMap<(IpAddr, Proof), Instant>,
}

/// What the sender of a handshake with a wrong key has shown to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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

    /// Whether the peer of an address may be looked for now.
    fn admit_look(&mut self, now: Instant, address: IpAddr, proof: Proof) -> bool {
        let is_recent = |at: &mut Instant| now.saturating_duration_since(*at) < LOOK_INTERVAL;
        self.looked_at.retain(|_, at| is_recent(at));
        let key = (address, proof);
        let is_due = self.looked_at.len() < LOOKS_MAX && !self.looked_at.contains_key(&key);
        if is_due {
            self.looked_at.insert(key, now);
        }
        is_due
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

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(super) fn check_invariants(&self) {
        assert!(self.looked_at.len() <= LOOKS_MAX, "looks for peers");
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
        let proof = Proof::of(&fault);
        if self.wrong_keys.admit_look(now, remote.ip(), proof)
            && let Some(sender) = self.suspect(remote)
        {
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

    /// Which peer has sent from an address that is a peer's, preferably one with the same port: a NAT may have
    /// changed it. `None`: a peer that is up is at this address.
    fn suspect(&self, remote: SocketAddr) -> Option<Sender> {
        let (mut exact, mut same_ip) = (Vec::new(), Vec::new());
        for (id, session) in &self.peers {
            for (_, address) in session.remotes() {
                if address == remote {
                    exact.push((*id, session.is_up()));
                } else if address.ip() == remote.ip() {
                    same_ip.push((*id, session.is_up()));
                }
            }
        }
        if exact.iter().any(|(_, is_up)| *is_up) {
            return None;
        }
        let mut found = match exact.is_empty() {
            true => same_ip,
            false => exact,
        };
        // Others may be behind the same NAT.
        found.retain(|(_, is_up)| !*is_up);
        if found.is_empty() {
            return None;
        }
        found.dedup();
        Some(match found[..] {
            [(only, _)] => Sender::Peer(only),
            _ => Sender::Shared,
        })
    }
}
