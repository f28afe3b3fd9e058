//! The data thread's end of the network channel: documents of peers for the control thread, and the control
//! thread's for peers.
//!
//! Every peer may send them while the channel is open. A document is finished towards its sender when the
//! control thread has taken it, so that what waits here stays within the peer's credit and the bounds below.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use keiro_control::network_channel::{DOCUMENT_BYTES_MAX, NETWORK_APP};
use keiro_core::{
    AppConfig, AppId, DeliveryClass, Endpoint, Event, Instant, MessageId, MessageOutcome, PeerId,
    RefusalReason, TenantId,
};

use super::{
    messages::MessageResult,
    report::{Report, Reporter},
};

/// Documents of one peer that wait for the control thread; further ones are refused. Ours: none is sent before
/// the one before it has been taken, but by a peer that has restarted.
const WAITING_PER_PEER_MAX: usize = 4;
/// Bytes of documents of all peers that wait for the control thread; further ones are refused.
const WAITING_BYTES_MAX: usize = 16 << 20;
/// Target delay, so that users' traffic does not hold documents back for long. Ours.
const LATENCY_TARGET: Duration = Duration::from_secs(1);
/// What a document was about is no longer so after this time. Ours.
const LIFETIME: Duration = Duration::from_secs(30);

/// The data thread's end of the channel.
#[derive(Debug, Default)]
pub(crate) struct NetworkChannel {
    is_open: bool,
    /// Documents with the control thread.
    waiting: BTreeMap<PeerId, Waiting>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Waiting {
    documents: usize,
    bytes: usize,
}

impl NetworkChannel {
    /// Whether it is the application of the channel.
    pub(crate) fn is_its(app: AppId) -> bool {
        app == AppId::of_name(NETWORK_APP)
    }

    /// Opens or closes it towards all `peers`.
    pub(crate) fn set_open(
        &mut self,
        is_open: bool,
        peers: &BTreeSet<PeerId>,
        endpoint: &mut Endpoint,
    ) {
        if is_open == self.is_open {
            return;
        }
        self.is_open = is_open;
        for peer in peers {
            match is_open {
                true => endpoint.set_app(*peer, app_config()),
                false => endpoint.remove_app(*peer, AppId::of_name(NETWORK_APP)),
            }
        }
    }

    /// The application for a peer that is about to be added; `None`: the channel is closed.
    pub(crate) fn app(&self) -> Option<AppConfig> {
        self.is_open.then(app_config)
    }

    /// Takes a document from a peer. `None`: it waits for the control thread, which calls
    /// [`on_taken`](Self::on_taken).
    pub(crate) fn on_message(
        &mut self,
        peer: PeerId,
        id: MessageId,
        bytes: Vec<u8>,
        reporter: &mut Reporter,
    ) -> Option<MessageResult> {
        let refused = |reason| {
            let refused = Some(reason);
            Some(MessageResult { peer, id, refused })
        };
        if !self.is_open {
            return refused(RefusalReason::UnknownApplication);
        }
        if bytes.len() > DOCUMENT_BYTES_MAX {
            return refused(RefusalReason::Other);
        }
        let all: usize = self.waiting.values().map(|of| of.bytes).sum();
        let of_peer = self.waiting.get(&peer).copied().unwrap_or_default();
        let length = bytes.len();
        if of_peer.documents >= WAITING_PER_PEER_MAX || all + length > WAITING_BYTES_MAX {
            return refused(RefusalReason::ReceiverFull);
        }
        if !reporter.report(Report::NetworkDocument { peer, id, bytes }) {
            return refused(RefusalReason::ReceiverFull);
        }
        let of_peer = self.waiting.entry(peer).or_default();
        of_peer.documents += 1;
        of_peer.bytes += length;
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
        None
    }

    /// The control thread has taken a document of so many bytes.
    pub(crate) fn on_taken(&mut self, peer: PeerId, bytes: usize) {
        if let Some(of_peer) = self.waiting.get_mut(&peer) {
            of_peer.documents = of_peer.documents.saturating_sub(1);
            of_peer.bytes = of_peer.bytes.saturating_sub(bytes);
            if of_peer.documents == 0 {
                self.waiting.remove(&peer);
            }
        }
    }

    /// Gives the core a document for a peer. One that cannot be sent is reported as not delivered.
    pub(crate) fn send(
        now: Instant,
        peer: PeerId,
        bytes: Vec<u8>,
        endpoint: &mut Endpoint,
        reporter: &mut Reporter,
    ) {
        let app = AppId::of_name(NETWORK_APP);
        if let Err((error, _)) = endpoint.send_message(now, now, peer, app, bytes) {
            tracing::debug!(%error, "network channel: not sent");
            reporter.report(Report::NetworkDocumentDone {
                peer,
                is_delivered: false,
            });
        }
    }

    /// A message of ours has ended; whether it was a document.
    pub(crate) fn on_message_done(event: &Event, reporter: &mut Reporter) -> bool {
        let Event::MessageDone {
            peer, app, outcome, ..
        } = *event
        else {
            return false;
        };
        let is_its = Self::is_its(app);
        if is_its {
            let is_delivered = outcome == MessageOutcome::Delivered;
            reporter.report(Report::NetworkDocumentDone { peer, is_delivered });
        }
        is_its
    }

    /// The peer was removed.
    pub(crate) fn forget_peer(&mut self, peer: PeerId) {
        self.waiting.remove(&peer);
    }

    pub(crate) fn check_invariants(&self) {
        let all: usize = self.waiting.values().map(|of| of.bytes).sum();
        assert!(all <= WAITING_BYTES_MAX, "bytes of documents that wait");
        let is_bounded = |of: &Waiting| (1..=WAITING_PER_PEER_MAX).contains(&of.documents);
        assert!(self.waiting.values().all(is_bounded), "documents that wait");
    }
}

fn app_config() -> AppConfig {
    AppConfig {
        id: AppId::of_name(NETWORK_APP),
        class: DeliveryClass::Message,
        latency_target: Some(LATENCY_TARGET),
        lifetime: Some(LIFETIME),
        paths: Vec::new(),
        tenant: TenantId::ZERO,
        is_spread: false,
    }
}

#[cfg(test)]
mod tests;
