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

use super::sending_half::OutStream;
use crate::id::StreamId;

/// Time between two checks of what streams use. Credit that is left over at the next one is given back:
/// longer than pauses inside an exchange, shorter than any stream should wait for memory. Ours; TCP
/// forgets its window after one retransmission timeout (RFC 5681 §4.1).
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Which streams may have credit to return, and which returns are to be sent.
#[derive(Debug, Default)]
pub(crate) struct CreditReturns {
    /// Streams with more credit than a new one.
    with_spare_credit: BTreeSet<StreamId>,
    check_at: Option<Instant>,
    /// Streams whose return is to be sent.
    to_send: BTreeSet<StreamId>,
}

impl CreditReturns {
    /// A stream was granted credit.
    pub(crate) fn on_credit(&mut self, now: Instant, id: StreamId, stream: &mut OutStream) {
        if stream.has_spare_credit() && self.with_spare_credit.insert(id) {
            stream.restart_check();
            self.check_at.get_or_insert(now + CHECK_INTERVAL);
        }
    }

    /// When [`return_unused`](Self::return_unused) has something to do.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.check_at
    }

    /// Gives back what streams have not used since the last check, if it is time.
    pub(crate) fn return_unused(
        &mut self,
        now: Instant,
        streams: &mut BTreeMap<StreamId, OutStream>,
    ) {
        if self.check_at.is_none_or(|at| at > now) {
            return;
        }
        let to_send = &mut self.to_send;
        self.with_spare_credit.retain(|id| {
            let Some(stream) = streams.get_mut(id).filter(|s| s.has_spare_credit()) else {
                return false;
            };
            if stream.give_back() {
                to_send.insert(*id);
            }
            stream.has_spare_credit()
        });
        self.check_at = (!self.with_spare_credit.is_empty()).then(|| now + CHECK_INTERVAL);
    }

    /// A return is to be sent.
    pub(crate) fn has_pending(&self) -> bool {
        !self.to_send.is_empty()
    }

    /// The return of a stream that was sent is lost.
    pub(crate) fn on_lost(&mut self, id: StreamId) {
        self.to_send.insert(id);
    }

    /// The next stream whose return is to be sent.
    pub(crate) fn take_next(&mut self) -> Option<StreamId> {
        self.to_send.pop_first()
    }

    /// The stream has ended.
    pub(crate) fn remove(&mut self, id: StreamId) {
        self.with_spare_credit.remove(&id);
        self.to_send.remove(&id);
    }
}
