//! The control thread's end of the network channel: which documents a peer may send, and what becomes of them.

use keiro_control::{
    config::PeerOrigin,
    network_channel::{Document, ENROL_BYTES_MAX},
    protocol::EventKind,
};
use keiro_core::{MessageId, PeerId, RefusalReason};

use crate::{
    data::command::{Command, DataThreadGone},
    gateway::Gateway,
};

impl Gateway {
    /// A document has come.
    pub(crate) fn on_network_document(
        &mut self,
        peer: PeerId,
        id: MessageId,
        bytes: &[u8],
    ) -> Result<(), DataThreadGone> {
        self.counts.documents.received += 1;
        let refused = self.take_document(peer, bytes)?;
        self.counts.documents.refused += u64::from(refused.is_some());
        self.data.send(Command::FinishNetworkDocument {
            peer,
            id,
            length_bytes: bytes.len(),
            refused,
        })
    }

    /// A document that was sent to a peer has ended.
    pub(crate) fn on_network_document_done(&mut self, peer: PeerId, is_delivered: bool) {
        self.sites.on_sent(peer, is_delivered);
        if !is_delivered {
            self.counts.documents.undelivered += 1;
            let peer = self.running_config.peer_name(peer).unwrap_or_default();
            tracing::debug!(peer, "network channel: a document was not delivered");
        }
    }

    /// Sends a document to a peer. It is given up if the peer does not have it within some seconds.
    pub(crate) fn send_network_document(
        &self,
        peer: &str,
        document: &Document,
    ) -> Result<(), DataThreadGone> {
        let bytes = match document.to_bytes() {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::error!(peer, "network channel: cannot send: {error}");
                return Ok(());
            }
        };
        match self.running_config.peer_id(peer) {
            Some(peer) => self.data.send(Command::SendNetworkDocument { peer, bytes }),
            None => Ok(()),
        }
    }

    /// Whether it is about the session of a gateway that joins.
    pub(crate) fn is_of_invitation(&self, kind: &EventKind) -> bool {
        let name = match kind {
            EventKind::PeerUp { peer, .. }
            | EventKind::PeerDown { peer, .. }
            | EventKind::KeyChanged { peer, .. } => peer,
            EventKind::PathUp { on, .. }
            | EventKind::PathDown { on, .. }
            | EventKind::RemoteChanged { on, .. }
            | EventKind::MtuChanged { on, .. } => &on.peer,
            _ => return false,
        };
        let mut peers = self.config.peers.iter();
        let peer = peers.find(|peer| peer.name.as_str() == name);
        peer.is_some_and(|peer| peer.origin == PeerOrigin::Invitation)
    }

    /// Acts on a document. Why it is refused; `None`: it is not.
    fn take_document(
        &mut self,
        id: PeerId,
        bytes: &[u8],
    ) -> Result<Option<RefusalReason>, DataThreadGone> {
        let Some(index) = self.running_config.peer_name(id).and_then(|name| {
            let mut peers = self.config.peers.iter();
            peers.position(|peer| peer.name.as_str() == name)
        }) else {
            return Ok(Some(RefusalReason::UnknownApplication));
        };
        let peer = &self.config.peers[index];
        let is_provisional = peer.origin == PeerOrigin::Invitation;
        if peer.origin == PeerOrigin::Direct {
            // Another branch has nothing to say about the network.
            return Ok(Some(RefusalReason::Other));
        }
        let (name, key) = (peer.name.to_string(), peer.public_key);
        if is_provisional && bytes.len() > ENROL_BYTES_MAX {
            return Ok(Some(RefusalReason::Other));
        }
        let document = match Document::parse(bytes) {
            Ok(document) => document,
            Err(error) => {
                tracing::debug!(peer = name, "network channel: {error}");
                if is_provisional {
                    self.refuse_malformed(&name, id)?;
                }
                return Ok(Some(RefusalReason::Other));
            }
        };
        match document {
            Document::Enrol(request) if is_provisional => {
                self.enrol(id, &name, &key, &request)?;
                Ok(None)
            }
            Document::Registry(registry) => Ok(match self.hub_of_this(index) {
                Some(is_first) => self.on_public_registry(&registry, is_first),
                None => Some(RefusalReason::Other),
            }),
            Document::RegistryCopy(replica) if self.is_first_hub(index) => {
                Ok(self.on_registry_copy(*replica))
            }
            Document::SitesUp(up) => Ok(self.on_sites_up(&name, up)),
            Document::DirectWanted(wanted) if !is_provisional => self.introduce(&name, &wanted),
            Document::Direct(direct) => Ok(match self.hub_of_this(index) {
                Some(_) => self.on_introduced(*direct),
                None => Some(RefusalReason::Other),
            }),
            Document::Unknown => {
                self.counts.documents.unknown += 1;
                Ok(None)
            }
            // A gateway that joins may do nothing else, the answers are for `keiro join`, and the registry is the hub's.
            Document::Enrol(_)
            | Document::Enrolled(_)
            | Document::EnrolRefused(_)
            | Document::DirectWanted(_)
            | Document::RegistryCopy(_) => Ok(Some(RefusalReason::Other)),
        }
    }
}
