//! Handshakes that fail because of a key, reported so that both ends can name the cause.
//!
//! Their senders are not proven, so a report changes nothing, is rare, and never accuses a peer that is up.

use std::{net::SocketAddr, time::Duration};

use keiro_units::Instant;

use super::{Endpoint, peer_reports::PeerReports};
use crate::{
    event::{Event, KeyFault},
    id::PeerId,
};

/// How often the peer of an address is looked for, which takes a look at all of them. Ours.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// When such handshakes were reported.
#[derive(Default)]
pub(super) struct WrongKeys {
    reports: PeerReports,
    next_look: Instant,
}

/// Which peer a sender may be.
enum Suspect {
    /// The only peer at its address, or none; it is not up.
    Peer(Option<PeerId>),
    /// A peer that is up is at its address.
    IsUp,
}

impl WrongKeys {
    /// Keys were agreed with this peer, or it was removed.
    pub(super) fn forget(&mut self, peer: PeerId) {
        self.reports.forget(peer);
    }

    /// Whether the peer of an address may be looked for now.
    fn admit_look(&mut self, now: Instant) -> bool {
        let due = now >= self.next_look;
        if due {
            self.next_look = now + LOOK_INTERVAL;
        }
        due
    }
}

impl Endpoint {
    /// A handshake has come from an address and cannot be answered for this reason.
    pub(super) fn on_wrong_key(&mut self, now: Instant, remote: SocketAddr, fault: KeyFault) {
        if self.peers.is_empty() {
            return;
        }
        if !self.is_peer_address(now, remote.ip()) {
            return self.report_wrong_key(now, None, remote, fault);
        }
        if self.wrong_keys.admit_look(now)
            && let Suspect::Peer(peer) = self.suspect(remote)
        {
            self.report_wrong_key(now, peer, remote, fault);
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
            self.report_wrong_key(now, Some(peer), remote, KeyFault::Preshared);
        }
    }

    fn report_wrong_key(
        &mut self,
        now: Instant,
        peer: Option<PeerId>,
        remote: SocketAddr,
        fault: KeyFault,
    ) {
        if self.wrong_keys.reports.admit(now, peer) {
            self.events.push_back(Event::WrongKey {
                peer,
                remote,
                fault,
            });
        }
    }

    /// The peer at an address, preferably with the same port: a NAT may have changed it.
    fn suspect(&self, remote: SocketAddr) -> Suspect {
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
            return Suspect::IsUp;
        }
        let mut found = match exact.is_empty() {
            true => same_ip,
            false => exact,
        };
        // Others may be behind the same NAT.
        found.retain(|(_, is_up)| !*is_up);
        if found.is_empty() {
            return Suspect::IsUp;
        }
        found.dedup();
        match found[..] {
            [(only, _)] => Suspect::Peer(Some(only)),
            _ => Suspect::Peer(None),
        }
    }
}
