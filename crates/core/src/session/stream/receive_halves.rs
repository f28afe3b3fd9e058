//! The receiving halves of all streams of one peer, and what they share: windows, gaps, and which
//! credit is to be sent.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use keiro_units::Instant;

use super::inbound::{InStream, StreamViolation};
use crate::id::{AppId, PathId, StreamId};

/// Bytes that all streams from one peer may be granted beyond their initial windows.
pub(super) const EXTRA_WINDOWS_MAX: u64 = 64 << 20;
/// Gaps that all streams from one peer may have beyond those that every one may. Ours: some 10 MB.
const EXTRA_GAPS_MAX: u64 = 1 << 18;

/// The receiving halves of all streams.
#[derive(Debug, Default)]
pub(super) struct ReceiveHalves {
    pub(super) open: BTreeMap<StreamId, Inbound>,
    /// How many of them the peer has opened.
    opened_by_peer: usize,
    /// Streams whose credit is to be sent.
    pub(super) credit_wanted: BTreeSet<StreamId>,
    pub(super) extra_windows: u64,
    extra_gaps: u64,
}

#[derive(Debug)]
pub(super) struct Inbound {
    /// `None`: the frame that opens it has not come yet.
    app: Option<AppId>,
    /// The path over which bytes came last, by our number.
    arrived_on: Option<PathId>,
    pub(super) half: InStream,
}

/// Bytes of a stream that were taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReceivedBytes {
    /// `None`: the frame that opens the stream has not come yet.
    pub(super) app: Option<AppId>,
    /// How many were not there before.
    pub(super) new: u64,
}

/// Credit of a stream that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamCredit {
    pub(super) stream: StreamId,
    /// Bytes that the peer was granted in all.
    pub(super) granted: u64,
}

impl ReceiveHalves {
    pub(super) fn insert(&mut self, now: Instant, id: StreamId, app: Option<AppId>) {
        self.opened_by_peer += usize::from(!id.is_ours());
        let inbound = Inbound {
            app,
            arrived_on: None,
            half: InStream::new(now),
        };
        self.open.insert(id, inbound);
    }

    pub(super) fn contains(&self, id: StreamId) -> bool {
        self.open.contains_key(&id)
    }

    pub(super) fn get(&self, id: StreamId) -> Option<&InStream> {
        self.open.get(&id).map(|inbound| &inbound.half)
    }

    /// The application of a stream; `None`: there is no such stream, or the frame that opens it has
    /// not come yet.
    pub(super) fn app_of(&self, id: StreamId) -> Option<AppId> {
        self.open.get(&id)?.app
    }

    /// The frame that opens a stream has come.
    pub(super) fn set_app(&mut self, id: StreamId, app: AppId) {
        if let Some(inbound) = self.open.get_mut(&id) {
            inbound.app = Some(app);
        }
    }

    /// The path over which bytes of a stream came last.
    pub(super) fn arrived_on(&self, id: StreamId) -> Option<PathId> {
        self.open.get(&id)?.arrived_on
    }

    /// Bytes of a stream came over a path.
    pub(super) fn set_arrived_on(&mut self, id: StreamId, path: Option<PathId>) {
        if let Some(inbound) = self.open.get_mut(&id) {
            inbound.arrived_on = path.or(inbound.arrived_on);
        }
    }

    pub(super) fn ids(&self) -> Vec<StreamId> {
        self.open.keys().copied().collect()
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Streams that the peer has opened.
    pub(super) fn opened_by_peer(&self) -> usize {
        self.opened_by_peer
    }

    /// Streams that we have opened.
    pub(super) fn opened_by_us(&self) -> usize {
        self.open.len() - self.opened_by_peer
    }

    /// Bytes that were received and not taken by the driver.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.open.values().map(|inbound| inbound.half.len()).sum()
    }

    /// The driver has bytes to read of a stream.
    pub(super) fn has_readable(&self, id: StreamId) -> bool {
        let half = self.get(id);
        half.is_some_and(|half| !half.readable().0.is_empty())
    }

    /// The driver is to be notified that a stream can be read; its application.
    pub(super) fn take_readable(&mut self, now: Instant, id: StreamId) -> Option<AppId> {
        let inbound = self.open.get_mut(&id)?;
        let app = inbound.app?;
        inbound.half.take_signal(now).then_some(app)
    }

    /// A stream whose credit is to be sent.
    pub(super) fn poll_credit(&mut self) -> Option<StreamCredit> {
        let stream = self.credit_wanted.pop_first()?;
        let granted = self
            .granted(stream)
            .expect("credit is sent of open streams");
        Some(StreamCredit { stream, granted })
    }

    pub(super) fn granted(&self, id: StreamId) -> Option<u64> {
        self.get(id).map(InStream::granted)
    }

    /// The credit of a stream that was sent is lost.
    pub(super) fn on_credit_lost(&mut self, id: StreamId) {
        if self.open.contains_key(&id) {
            self.credit_wanted.insert(id);
        }
    }

    /// No credit of a stream is sent any more, because it ends.
    pub(super) fn stop_credit(&mut self, id: StreamId) {
        self.credit_wanted.remove(&id);
    }

    pub(super) fn has_credit_wanted(&self) -> bool {
        !self.credit_wanted.is_empty()
    }

    /// Forgets what has arrived of a stream, and what still arrives counts from the beginning.
    pub(super) fn discard(&mut self, now: Instant, id: StreamId) {
        self.change(id, |inbound| inbound.half = InStream::new(now));
    }

    /// The driver has taken `count` bytes of a stream that ends with what is there.
    pub(super) fn consume_last(&mut self, now: Instant, id: StreamId, count: usize) {
        self.change(id, |inbound| inbound.half.consume(now, count));
    }

    /// Takes bytes of a stream. `None`: there is no such stream.
    pub(super) fn on_data(
        &mut self,
        id: StreamId,
        offset: u64,
        bytes: &[u8],
        fin: bool,
    ) -> Option<Result<ReceivedBytes, StreamViolation>> {
        let spare_gaps = EXTRA_GAPS_MAX.saturating_sub(self.extra_gaps);
        self.change(id, |inbound| {
            let before = inbound.half.len();
            inbound.half.on_data(offset, bytes, fin, spare_gaps)?;
            Ok(ReceivedBytes {
                app: inbound.app,
                new: inbound.half.len() - before,
            })
        })
    }

    /// The driver has taken `count` bytes, and the end if they are the last.
    pub(super) fn consume(&mut self, now: Instant, id: StreamId, count: usize, rtt: Duration) {
        let spare = EXTRA_WINDOWS_MAX.saturating_sub(self.extra_windows);
        let grants = self.change(id, |inbound| {
            let half = &mut inbound.half;
            half.consume(now, count);
            if half.is_at_end() {
                half.take_end();
            }
            let grants = half.has_credit_to_grant();
            if grants {
                half.grant(now, rtt, spare);
            }
            grants
        });
        if grants == Some(true) {
            self.credit_wanted.insert(id);
        }
    }

    /// The peer has given back so much credit of a stream in all.
    pub(super) fn on_return(
        &mut self,
        now: Instant,
        id: StreamId,
        returned: u64,
    ) -> Result<(), StreamViolation> {
        let grants = self.change(id, |inbound| {
            let half = &mut inbound.half;
            half.on_return(returned)?;
            // The peer may have used up what it kept, and all of it may have been consumed, when that
            // was not yet half of the window.
            let grants = half.has_credit_to_grant();
            if grants {
                half.grant(now, Duration::ZERO, 0);
            }
            Ok(grants)
        });
        if grants.transpose()? == Some(true) {
            self.credit_wanted.insert(id);
        }
        Ok(())
    }

    /// Changes the receiving half of a stream, if there is one; what its window and its gaps grow or
    /// shrink by is accounted for.
    fn change<T>(&mut self, id: StreamId, change: impl FnOnce(&mut Inbound) -> T) -> Option<T> {
        let inbound = self.open.get_mut(&id)?;
        let (window, gaps) = (inbound.half.extra_window(), inbound.half.extra_gaps());
        let result = change(inbound);
        self.extra_windows = self.extra_windows - window + inbound.half.extra_window();
        self.extra_gaps = self.extra_gaps - gaps + inbound.half.extra_gaps();
        Some(result)
    }

    /// Forgets a stream; `false`: there was none.
    pub(super) fn remove(&mut self, id: StreamId) -> bool {
        let Some(inbound) = self.open.remove(&id) else {
            return false;
        };
        self.opened_by_peer -= usize::from(!id.is_ours());
        self.extra_windows -= inbound.half.extra_window();
        self.extra_gaps -= inbound.half.extra_gaps();
        self.credit_wanted.remove(&id);
        true
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(super) fn check_invariants(&self) {
        let halves = || self.open.values().map(|inbound| &inbound.half);
        let windows = halves().map(InStream::extra_window);
        assert_eq!(self.extra_windows, windows.sum::<u64>(), "extra windows");
        let gaps = halves().map(InStream::extra_gaps);
        assert_eq!(self.extra_gaps, gaps.sum::<u64>(), "extra gaps");
        let theirs = self.open.keys().filter(|id| !id.is_ours());
        assert_eq!(self.opened_by_peer, theirs.count(), "streams of the peer");
        let mut wanted = self.credit_wanted.iter();
        assert!(
            wanted.all(|id| self.open.contains_key(id)),
            "credit is sent of open streams"
        );
    }
}

#[cfg(test)]
mod tests;
