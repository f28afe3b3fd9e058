//! Credit that is not used is given back.
//!
//! All streams of a peer share the memory beyond their initial windows, and what was granted may be
//! used at any time: only its sender can say that it will not. A stream that grew and then idles
//! gives back all that a new one would not have, so that connections that are kept open leave the
//! memory to those that transfer.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use keiro_units::Instant;

use super::outbound::OutStream;
use crate::id::StreamId;

/// Between two looks at what streams use. Credit that is left over after so long is given back:
/// longer than pauses inside an exchange, shorter than any stream should wait for memory. Ours; TCP
/// forgets its window after one retransmission timeout (RFC 5681 §4.1).
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Which streams may have credit to return, and which returns are to be sent.
#[derive(Debug, Default)]
pub(crate) struct CreditReturns {
    /// Streams with more credit than a new one.
    rich: BTreeSet<StreamId>,
    look_at: Option<Instant>,
    /// Streams whose return is to be sent.
    untold: BTreeSet<StreamId>,
}

impl CreditReturns {
    /// A stream was granted credit.
    pub(crate) fn on_credit(&mut self, now: Instant, id: StreamId, stream: &mut OutStream) {
        if stream.has_spare_credit() && self.rich.insert(id) {
            stream.look_afresh();
            self.look_at.get_or_insert(now + LOOK_EVERY);
        }
    }

    /// When [`look`](Self::look) has something to do.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.look_at
    }

    /// Gives back what streams have not used since the last look, if it is time.
    pub(crate) fn look(&mut self, now: Instant, streams: &mut BTreeMap<StreamId, OutStream>) {
        if self.look_at.is_none_or(|at| at > now) {
            return;
        }
        let untold = &mut self.untold;
        self.rich.retain(|id| {
            let Some(stream) = streams.get_mut(id).filter(|s| s.has_spare_credit()) else {
                return false;
            };
            if stream.give_back() {
                untold.insert(*id);
            }
            stream.has_spare_credit()
        });
        self.look_at = (!self.rich.is_empty()).then(|| now + LOOK_EVERY);
    }

    /// A return is to be sent.
    pub(crate) fn waits(&self) -> bool {
        !self.untold.is_empty()
    }

    /// The return of a stream that was sent is lost.
    pub(crate) fn want(&mut self, id: StreamId) {
        self.untold.insert(id);
    }

    /// The next stream whose return is to be sent.
    pub(crate) fn take_next(&mut self) -> Option<StreamId> {
        self.untold.pop_first()
    }

    /// The stream has ended.
    pub(crate) fn remove(&mut self, id: StreamId) {
        self.rich.remove(&id);
        self.untold.remove(&id);
    }
}
