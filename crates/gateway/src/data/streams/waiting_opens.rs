//! Streams that peers have opened and whose connections are still to be begun. Beginning one makes the
//! kernel search a port, which takes it up to a quarter of a millisecond. So peers take turns, and a
//! turn of the data thread begins a few.

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    ops::Bound::{Excluded, Unbounded},
};

use keiro_core::{AppId, PeerId, StreamId};

/// Streams of one peer that wait at most: as many as it may have open.
const WAITING_MAX: usize = 16_384;

/// A stream that a peer has opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WaitingOpen {
    pub(super) peer: PeerId,
    pub(super) stream: StreamId,
    pub(super) app: AppId,
    pub(super) target: Option<SocketAddr>,
}

/// What waits, by peer.
#[derive(Debug)]
pub(super) struct WaitingOpens<T> {
    by_peer: BTreeMap<PeerId, VecDeque<T>>,
    last: Option<PeerId>,
}

impl<T> Default for WaitingOpens<T> {
    fn default() -> Self {
        Self {
            by_peer: BTreeMap::new(),
            last: None,
        }
    }
}

impl<T> WaitingOpens<T> {
    /// Whether there was room.
    pub(super) fn push(&mut self, peer: PeerId, open: T) -> bool {
        let waiting = self.by_peer.entry(peer).or_default();
        let has_room = waiting.len() < WAITING_MAX;
        if has_room {
            waiting.push_back(open);
        }
        has_room
    }

    /// The oldest one of the peer whose turn it is.
    pub(super) fn poll(&mut self) -> Option<T> {
        let later = self.last.and_then(|last| {
            let mut later = self.by_peer.range((Excluded(last), Unbounded));
            later.next()
        });
        let peer = *later.or_else(|| self.by_peer.first_key_value())?.0;
        let waiting = self.by_peer.get_mut(&peer)?;
        let open = waiting.pop_front();
        if waiting.is_empty() {
            self.by_peer.remove(&peer);
        }
        self.last = Some(peer);
        open
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_peer.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_take_turns_and_each_has_its_own_room() {
        let mut opens = WaitingOpens::default();
        for stream in 0..WAITING_MAX as u64 {
            assert!(opens.push(PeerId(1), (1, stream)));
        }
        assert!(!opens.push(PeerId(1), (1, 99_999)));
        assert!(opens.push(PeerId(2), (2, 0)));
        assert!(opens.push(PeerId(2), (2, 1)));
        let polled: Vec<(u32, u64)> = (0..5).filter_map(|_| opens.poll()).collect();
        let expected = [(1, 0), (2, 0), (1, 1), (2, 1), (1, 2)];
        assert_eq!(polled, expected);
        while opens.poll().is_some() {}
        assert!(opens.is_empty());
    }
}
