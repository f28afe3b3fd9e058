//! Responses that were sent lately, for further copies of the initiations that they cached.
//!
//! An initiation leaves over every path at once. The first copy that comes is read and answered where it came
//! from. If that path carries packets in one direction only, the handshake would have to wait for its next
//! attempt; so a copy that comes from another source within a short time gets the same response there. No key agreement
//! is repeated for it. A response is shorter than its initiation and leaves once to each source, so copies
//! of a recorded initiation from forged addresses cause no more bytes than they have.

use std::{collections::VecDeque, net::SocketAddr, time::Duration};

use keiro_units::Instant;

use crate::{
    id::{PeerId, SocketId},
    wire::{INITIATION_LEN, RESPONSE_LEN},
};

/// Copies that come later are replays. Ours: far more than the delays of one gateway's paths differ.
const COPIES_WITHIN: Duration = Duration::from_secs(1);
/// Sources whose copies of one initiation are answered. Ours: more paths than a gateway has.
const SOURCES_MAX: usize = 16;
/// Initiations whose copies are answered; at the bound those of the oldest are not. Ours.
const RECENT_MAX: usize = 64;

/// The responses of the last second.
#[derive(Default)]
pub(super) struct ResponseCache {
    recent: VecDeque<CachedResponse>,
}

/// An initiation of a peer that was answered.
struct CachedResponse {
    peer: PeerId,
    initiation: [u8; INITIATION_LEN],
    response: Vec<u8>,
    answered_at: Instant,
    /// Where copies came from that were answered, the first included.
    sources: Vec<(SocketId, SocketAddr)>,
}

impl ResponseCache {
    /// The first copy of an initiation that a peer has made was answered where it came from.
    pub(super) fn on_answered(
        &mut self,
        now: Instant,
        peer: PeerId,
        source: (SocketId, SocketAddr),
        initiation: &[u8],
        response: &[u8],
    ) {
        self.forget_old(now);
        let Ok(initiation) = initiation.try_into() else {
            return;
        };
        if self.recent.len() >= RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(CachedResponse {
            peer,
            initiation,
            response: response.to_vec(),
            answered_at: now,
            sources: vec![source],
        });
    }

    /// The response for a further copy of an initiation that has come from another source, and whose initiation it is;
    /// `None`: it is no copy, or one that is not answered any more.
    pub(super) fn take_for_copy(
        &mut self,
        now: Instant,
        source: (SocketId, SocketAddr),
        packet: &[u8],
    ) -> Option<(PeerId, Vec<u8>)> {
        self.forget_old(now);
        let mut recent = self.recent.iter_mut();
        let cached = recent.find(|cached| cached.initiation == packet)?;
        if cached.sources.len() >= SOURCES_MAX || cached.sources.contains(&source) {
            return None;
        }
        cached.sources.push(source);
        Some((cached.peer, cached.response.clone()))
    }

    /// A peer was removed.
    pub(super) fn forget(&mut self, peer: PeerId) {
        self.recent.retain(|cached| cached.peer != peer);
    }

    fn forget_old(&mut self, now: Instant) {
        let is_old = |cached: &CachedResponse| {
            now.saturating_duration_since(cached.answered_at) >= COPIES_WITHIN
        };
        while self.recent.front().is_some_and(is_old) {
            self.recent.pop_front();
        }
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(super) fn check_invariants(&self) {
        assert!(self.recent.len() <= RECENT_MAX, "responses that are kept");
        for cached in &self.recent {
            assert_eq!(
                cached.response.len(),
                RESPONSE_LEN,
                "a response is shorter than its initiation"
            );
            assert!(
                cached.sources.len() <= SOURCES_MAX,
                "sources of one response"
            );
        }
    }
}
