//! The receiving halves of all streams of one peer, and what they share: windows, gaps, and which
//! credit is to be sent.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use keiro_units::Instant;

use super::{
    ArrivedBytes,
    inbound::{InStream, StreamViolation, WindowShare},
};
use crate::{
    id::{AppId, PathId, StreamId},
    session::receive_memory::SpareMemory,
};

/// What a stream of the peer takes beside its bytes, here and at the driver, about: both halves, and the
/// connection that it becomes.
const STREAM_OVERHEAD: u64 = 1 << 10;
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
    /// What the peer's streams take beside their bytes.
    overhead: u64,
    totals: MemoryTotals,
}

/// What receiving halves have in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct MemoryTotals {
    /// What they may make us keep.
    memory: u64,
    extra_gaps: u64,
    /// Those that share the memory for wide windows: they have one, or want one.
    sharing: u64,
    /// What these may make us keep.
    shared: u64,
    /// Those that have less than their share and would have more.
    short: u64,
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

/// When the driver takes bytes of a stream, and how long credit for more takes to bring them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Consumption {
    pub(super) now: Instant,
    pub(super) rtt: Duration,
}

/// Credit of a stream that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamCredit {
    pub(super) stream: StreamId,
    /// Bytes that the peer was granted in all.
    pub(super) granted: u64,
}

impl MemoryTotals {
    fn of(half: &InStream) -> Self {
        let is_sharing = half.is_wide() || half.is_short();
        Self {
            memory: half.memory(),
            extra_gaps: half.extra_gaps(),
            sharing: u64::from(is_sharing),
            shared: if is_sharing { half.memory() } else { 0 },
            short: u64::from(half.is_short()),
        }
    }

    fn add(&mut self, other: Self) {
        self.memory += other.memory;
        self.extra_gaps += other.extra_gaps;
        self.sharing += other.sharing;
        self.shared += other.shared;
        self.short += other.short;
    }

    fn subtract(&mut self, other: Self) {
        self.memory -= other.memory;
        self.extra_gaps -= other.extra_gaps;
        self.sharing -= other.sharing;
        self.shared -= other.shared;
        self.short -= other.short;
    }
}

impl ReceiveHalves {
    pub(super) fn insert(&mut self, now: Instant, id: StreamId, app: Option<AppId>) {
        self.opened_by_peer += usize::from(!id.is_ours());
        self.overhead += overhead(id);
        let inbound = Inbound {
            app,
            arrived_on: None,
            half: InStream::new(now),
        };
        self.totals.add(MemoryTotals::of(&inbound.half));
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

    /// There is room for another stream of the peer, which may make us keep `spare` more.
    pub(super) fn has_room(&self, spare: SpareMemory) -> bool {
        spare.bytes() >= STREAM_OVERHEAD
    }

    /// What all streams may make us keep.
    pub(super) fn memory(&self) -> u64 {
        self.overhead + self.totals.memory
    }

    /// A stream has less than its share of the memory for wide windows, and would have more.
    pub(super) fn are_short(&self) -> bool {
        self.totals.short > 0
    }

    /// What one stream may take of the memory for wide windows.
    fn share_of(&self, half: &InStream, spare: SpareMemory) -> WindowShare {
        let mut with_it = self.totals;
        with_it.subtract(MemoryTotals::of(half));
        let all = spare.for_wide_windows() + with_it.shared + half.memory();
        WindowShare {
            bytes: all / (with_it.sharing + 1),
            is_wanted: with_it.short > 0,
        }
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

    /// Takes bytes of a stream. `None`: there is no such stream. `spare`: what the peer may still make us
    /// keep.
    pub(super) fn on_data(
        &mut self,
        id: StreamId,
        arrived: ArrivedBytes<'_>,
        spare: SpareMemory,
    ) -> Option<Result<ReceivedBytes, StreamViolation>> {
        let ArrivedBytes {
            offset, data, fin, ..
        } = arrived;
        let spare_gaps = EXTRA_GAPS_MAX.saturating_sub(self.totals.extra_gaps);
        self.change(id, |inbound| {
            let half = &mut inbound.half;
            let (before, kept) = (half.len(), half.memory());
            half.on_data(offset, data, fin, spare_gaps)?;
            if half.memory() > kept + spare.bytes() {
                return Err(StreamViolation::Memory);
            }
            Ok(ReceivedBytes {
                app: inbound.app,
                new: half.len() - before,
            })
        })
    }

    /// The driver has taken `count` bytes, and the end if they are the last. `spare`: what the peer may still
    /// make us keep.
    pub(super) fn consume(
        &mut self,
        at: Consumption,
        id: StreamId,
        count: usize,
        spare: SpareMemory,
    ) {
        let Consumption { now, rtt } = at;
        let share = self.get(id).map(|half| self.share_of(half, spare));
        let Some(share) = share else { return };
        let grants = self.change(id, |inbound| {
            let half = &mut inbound.half;
            half.consume(now, count);
            if half.is_at_end() {
                half.take_end();
            }
            let before = half.granted();
            if half.has_credit_to_grant() {
                half.grant(now, rtt, spare, share);
            }
            half.granted() > before
        });
        if grants == Some(true) {
            self.credit_wanted.insert(id);
        }
    }

    /// The peer has given back credit of a stream. `returned`: bytes in all.
    pub(super) fn on_return(&mut self, id: StreamId, returned: u64) -> Result<(), StreamViolation> {
        let grants = self.change(id, |inbound| {
            let half = &mut inbound.half;
            half.on_return(returned)?;
            // The peer may have used its remaining credit, and the application may have consumed all of it,
            // while that was less than half of the window. Then nothing else would cause a grant.
            let grants = half.has_credit_to_grant();
            if grants {
                half.renew();
            }
            Ok(grants)
        });
        if grants.transpose()? == Some(true) {
            self.credit_wanted.insert(id);
        }
        Ok(())
    }

    /// Changes the receiving half of a stream, if there is one; what all have in total is kept up to date.
    fn change<T>(&mut self, id: StreamId, change: impl FnOnce(&mut Inbound) -> T) -> Option<T> {
        let inbound = self.open.get_mut(&id)?;
        let before = MemoryTotals::of(&inbound.half);
        let result = change(inbound);
        self.totals.subtract(before);
        self.totals.add(MemoryTotals::of(&inbound.half));
        Some(result)
    }

    /// Forgets a stream; `false`: there was none.
    pub(super) fn remove(&mut self, id: StreamId) -> bool {
        let Some(inbound) = self.open.remove(&id) else {
            return false;
        };
        self.opened_by_peer -= usize::from(!id.is_ours());
        self.overhead -= overhead(id);
        self.totals.subtract(MemoryTotals::of(&inbound.half));
        self.credit_wanted.remove(&id);
        true
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(super) fn check_invariants(&self) {
        let overheads = self.open.keys().map(|id| overhead(*id));
        assert_eq!(self.overhead, overheads.sum::<u64>(), "overhead of streams");
        let mut totals = MemoryTotals::default();
        for inbound in self.open.values() {
            totals.add(MemoryTotals::of(&inbound.half));
        }
        assert_eq!(self.totals, totals, "totals of streams");
        let theirs = self.open.keys().filter(|id| !id.is_ours());
        assert_eq!(self.opened_by_peer, theirs.count(), "streams of the peer");
        let mut wanted = self.credit_wanted.iter();
        assert!(
            wanted.all(|id| self.open.contains_key(id)),
            "credit is sent of open streams"
        );
    }
}

/// What a stream takes beside its bytes; those that we open are not the peer's doing.
fn overhead(id: StreamId) -> u64 {
    match id.is_ours() {
        true => 0,
        false => STREAM_OVERHEAD,
    }
}

#[cfg(test)]
mod tests;
