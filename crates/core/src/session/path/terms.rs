//! The terms on which each end of a path uses it.

use keiro_model::path_terms::PathTerms;

use crate::wire::Frame;

/// The terms that this gateway and its peer set for one path.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalAndPeerTerms {
    own: PathTerms,
    peer: PathTerms,
    /// Those of this end are or were not those that a peer takes for granted.
    is_announced: bool,
}

impl LocalAndPeerTerms {
    pub(super) fn new(own: PathTerms) -> Self {
        Self {
            own,
            peer: PathTerms::FREE,
            is_announced: own != PathTerms::FREE,
        }
    }

    pub(super) fn joined(&self) -> PathTerms {
        self.own.with(self.peer)
    }

    pub(super) fn peer(&self) -> PathTerms {
        self.peer
    }

    /// `true`: they have changed.
    pub(super) fn set_own(&mut self, terms: PathTerms) -> bool {
        let is_new = self.own != terms;
        self.own = terms;
        self.is_announced |= is_new;
        is_new
    }

    /// `true`: they have changed.
    pub(super) fn set_peer(&mut self, terms: PathTerms) -> bool {
        let is_new = self.peer != terms;
        self.peer = terms;
        is_new
    }

    /// The peer may know of others that are out of date.
    pub(super) fn announce_always(&mut self) {
        self.is_announced = true;
    }

    /// For the peer: once it had to know of any, it has to know of every change.
    pub(super) fn announced(&self) -> Option<Frame<'static>> {
        self.is_announced.then_some(Frame::PathTerms(self.own))
    }
}
