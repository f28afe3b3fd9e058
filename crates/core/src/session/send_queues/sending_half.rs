//! The sending half of a stream: bytes are kept until they are acknowledged.

use std::{collections::VecDeque, net::SocketAddr, time::Duration};

use keiro_units::Instant;

use super::ready::{QueueKey, ScheduleKey};
use crate::{
    id::AppId,
    ranges::RangeSet,
    session::stream_buffer::{StreamRange, WINDOW_INITIAL, release},
};

/// Bytes accepted and not sent yet at most: 1 ms of 1 Gbit/s, so that the listener's own queue holds
/// the rest and its client feels it.
const UNSENT_MAX: u64 = 128 << 10;

/// A frame that has to arrive once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameState {
    /// There is nothing to send.
    None,
    Pending,
    Sent,
    Acked,
}

/// Bytes that were written at some time.
#[derive(Clone, Copy, Debug)]
struct MeasuredWrite {
    /// Behind the last of them.
    end: u64,
    since: Instant,
}

/// A part of a stream that may be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamPart {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// The stream ends with it.
    pub(crate) fin: bool,
    pub(crate) is_retransmit: bool,
}

impl StreamPart {
    pub(crate) fn range(self) -> StreamRange {
        StreamRange {
            start: self.start,
            end: self.end,
            fin: self.fin,
        }
    }
}

/// Which kind of turn a stream waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TurnClass {
    /// It has something to retransmit, which has waited already.
    Retransmit,
    /// It has no more than is left of its turn.
    Interactive,
    /// It has more than is left of its turn.
    Bulk,
}

/// Where a stream waits for its turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuedStream {
    pub(crate) queue_key: QueueKey,
    pub(crate) schedule_key: ScheduleKey,
    pub(crate) turn_class: TurnClass,
    /// Its share of the bytes that wait.
    pub(crate) bytes: u64,
}

/// The sending half of a stream.
#[derive(Debug)]
pub(crate) struct OutStream {
    pub(crate) app: AppId,
    pub(crate) latency_target: Option<Duration>,
    /// The frame that opens the stream at the peer.
    open: FrameState,
    /// The frame that opens it has left at least once, or is not needed.
    open_left: bool,
    /// The target that the peer connects it to; `None`: its forward.
    pub(crate) target: Option<SocketAddr>,
    fin: FrameState,
    /// Offset of the first byte of `data`: all before is acknowledged.
    base: u64,
    data: VecDeque<u8>,
    /// Sent for the first time up to here.
    next_unsent: u64,
    /// To be sent again.
    retransmits: RangeSet,
    acked: RangeSet,
    /// Credit that the peer has granted in all: it takes bytes up to here, less what was returned.
    credit: u64,
    /// Credit that was given back in all.
    returned: u64,
    /// The write whose delay is measured.
    measured: Option<MeasuredWrite>,
    /// Bytes written at the last check for unused credit.
    written_at_check: Option<u64>,
    /// The driver was refused bytes and is to get a signal when there is room.
    blocked: bool,
    /// `None`: there is nothing to send.
    pub(crate) queued: Option<QueuedStream>,
    /// Its present turn is over when no stream waits at a place with a smaller number.
    pub(crate) turn_mark: u64,
    /// Sent for the first time in its present turn, or in the one that it waits for.
    pub(crate) turn_bytes: u64,
}

impl OutStream {
    /// `opens`: a frame has to open it at the peer, with the target to connect it to.
    pub(crate) fn new(
        app: AppId,
        latency_target: Option<Duration>,
        opens: Option<Option<SocketAddr>>,
    ) -> Self {
        Self {
            app,
            latency_target,
            open: opens.map_or(FrameState::None, |_| FrameState::Pending),
            open_left: opens.is_none(),
            target: opens.flatten(),
            fin: FrameState::None,
            base: 0,
            data: VecDeque::new(),
            next_unsent: 0,
            retransmits: RangeSet::default(),
            acked: RangeSet::default(),
            credit: WINDOW_INITIAL,
            returned: 0,
            measured: None,
            written_at_check: None,
            blocked: false,
            queued: None,
            turn_mark: 0,
            turn_bytes: 0,
        }
    }

    /// Bytes that are kept until they are acknowledged.
    pub(crate) fn len(&self) -> u64 {
        self.data.len() as u64
    }

    /// Takes as much of `bytes` as there is room for; how much. `spare`: what all streams of the
    /// peer together may still keep.
    pub(crate) fn write(&mut self, bytes: &[u8], spare: u64) -> usize {
        let room = self.room(spare).min(bytes.len() as u64) as usize;
        self.data.extend(&bytes[..room]);
        self.blocked = room < bytes.len();
        room
    }

    /// Bytes were written. Their delay is measured, unless that of others still is.
    pub(crate) fn on_written(&mut self, now: Instant) {
        let end = self.written();
        self.measured
            .get_or_insert(MeasuredWrite { end, since: now });
    }

    /// Since when the bytes were under way that were measured; `None`: they still are, or were taken before.
    pub(crate) fn take_measured(&mut self) -> Option<Instant> {
        let base = self.base;
        let write = self.measured.take_if(|write| write.end <= base)?;
        Some(write.since)
    }

    /// Bytes that [`write`](Self::write) would take; zero counts as a refusal.
    pub(crate) fn offer(&mut self, spare: u64) -> usize {
        let room = self.room(spare);
        self.blocked |= room == 0;
        room as usize
    }

    /// Nothing follows; `false` if that was said before.
    pub(crate) fn finish(&mut self) -> bool {
        let first = self.fin == FrameState::None;
        if first {
            self.fin = FrameState::Pending;
        }
        first
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.fin != FrameState::None
    }

    /// The peer has all.
    pub(crate) fn is_done(&self) -> bool {
        self.fin == FrameState::Acked && self.is_delivered()
    }

    /// The peer knows of it, and has all bytes that were written.
    pub(crate) fn is_delivered(&self) -> bool {
        let opened = matches!(self.open, FrameState::None | FrameState::Acked);
        self.data.is_empty() && opened
    }

    /// Whether a driver that was refused may write again; `true` only once.
    pub(crate) fn take_writable(&mut self, spare: u64) -> bool {
        let writable = self.blocked && self.room(spare) > 0 && self.unsent() <= UNSENT_MAX / 2;
        if writable {
            self.blocked = false;
        }
        writable
    }

    /// More is written than it takes, so that what waits has no known end; nothing of it was lost.
    pub(crate) fn is_endless(&self) -> bool {
        self.blocked && !self.has_retransmits()
    }

    /// Only the bound of all streams together holds it up.
    pub(crate) fn waits_for_memory(&self) -> bool {
        self.blocked && self.room(u64::MAX) > 0
    }

    /// The frame that opens it has left, or the peer has opened it.
    pub(crate) fn open_has_left(&self) -> bool {
        self.open_left
    }

    pub(crate) fn opens(&self) -> bool {
        self.open == FrameState::Pending
    }

    pub(crate) fn has_retransmits(&self) -> bool {
        !self.retransmits.is_empty()
    }

    /// There is something to send.
    pub(crate) fn is_ready(&self) -> bool {
        self.opens() || self.next_part(1).is_some()
    }

    /// Bytes that may be sent now.
    pub(crate) fn sendable(&self) -> u64 {
        let retransmits: u64 = self.retransmits.iter().map(|(low, high)| high - low).sum();
        retransmits
            + self
                .written()
                .min(self.limit())
                .saturating_sub(self.next_unsent)
    }

    /// The next part, at most `max` bytes long (at least 1).
    pub(crate) fn next_part(&self, max: u64) -> Option<StreamPart> {
        let retransmits = self.retransmits.first();
        let (start, end) = match retransmits {
            Some((start, end)) => (start, end.min(start.saturating_add(max))),
            None => {
                let end = self.written().min(self.limit());
                (
                    self.next_unsent,
                    end.min(self.next_unsent.saturating_add(max)),
                )
            }
        };
        let fin = self.fin == FrameState::Pending && end == self.written();
        (start < end || fin).then_some(StreamPart {
            start,
            end: end.max(start),
            fin,
            is_retransmit: retransmits.is_some(),
        })
    }

    /// The bytes of a part, in two pieces.
    pub(crate) fn bytes(&self, part: StreamPart) -> (&[u8], &[u8]) {
        let (from, to) = (
            (part.start - self.base) as usize,
            (part.end - self.base) as usize,
        );
        let (first, second) = self.data.as_slices();
        let border = first.len();
        (
            &first[from.min(border)..to.min(border)],
            &second[from.max(border) - border..to.max(border) - border],
        )
    }

    pub(crate) fn on_open_sent(&mut self) {
        self.open = FrameState::Sent;
        self.open_left = true;
    }

    pub(crate) fn on_part_sent(&mut self, part: StreamPart) {
        if part.is_retransmit {
            self.retransmits.remove(part.start, part.end);
        } else {
            self.next_unsent = part.end;
        }
        if part.fin {
            self.fin = FrameState::Sent;
        }
    }

    pub(crate) fn on_open_lost(&mut self) {
        if self.open == FrameState::Sent {
            self.open = FrameState::Pending;
        }
    }

    pub(crate) fn on_lost(&mut self, range: StreamRange) {
        let StreamRange { start, end, fin } = range;
        let mut missing = RangeSet::default();
        missing.insert(start.max(self.base), end);
        for (low, high) in self.acked.iter() {
            missing.remove(low, high);
        }
        for (low, high) in missing.iter() {
            self.retransmits.insert(low, high);
        }
        if fin && self.fin == FrameState::Sent {
            self.fin = FrameState::Pending;
        }
    }

    pub(crate) fn on_open_acked(&mut self) {
        self.open = FrameState::Acked;
    }

    /// Bytes arrived; how many need not be kept any longer.
    pub(crate) fn on_acked(&mut self, range: StreamRange) -> u64 {
        let StreamRange { start, end, fin } = range;
        if fin {
            self.fin = FrameState::Acked;
        }
        self.acked.insert(start.max(self.base), end);
        self.retransmits.remove(start, end);
        let Some((low, high)) = self.acked.first().filter(|range| range.0 <= self.base) else {
            return 0;
        };
        let freed = high - self.base;
        self.acked.remove(low, high);
        self.data.drain(..freed as usize);
        self.base = high;
        release(&mut self.data);
        freed
    }

    /// The peer has granted `granted` bytes in all; a smaller number is old news.
    pub(crate) fn on_credit(&mut self, granted: u64) {
        self.credit = self.credit.max(granted);
    }

    /// It may send more than a new stream, and may want to.
    pub(crate) fn has_spare_credit(&self) -> bool {
        !self.is_finished() && self.unused() > WINDOW_INITIAL
    }

    /// The next check for unused credit is the first.
    pub(crate) fn restart_check(&mut self) {
        self.written_at_check = None;
    }

    /// Gives back credit beyond what was used since the last check and what a new stream has, if
    /// nothing is on its way; whether there was any.
    pub(crate) fn give_back(&mut self) -> bool {
        let written = self.written();
        let Some(before) = self.written_at_check.replace(written) else {
            return false;
        };
        if !self.data.is_empty() {
            return false;
        }
        let keep = WINDOW_INITIAL.max(written - before);
        let excess = self.unused().saturating_sub(keep);
        self.returned += excess;
        excess > 0
    }

    /// Credit returned in all.
    pub(crate) fn returned(&self) -> u64 {
        self.returned
    }

    /// Bytes may be sent up to here. What is written never reaches beyond it.
    fn limit(&self) -> u64 {
        self.credit - self.returned
    }

    fn unused(&self) -> u64 {
        self.limit().saturating_sub(self.written())
    }

    /// Taken from the driver since the beginning.
    pub(crate) fn written(&self) -> u64 {
        self.base + self.data.len() as u64
    }

    fn unsent(&self) -> u64 {
        self.written() - self.next_unsent
    }

    /// Bytes that it would take of `spare`.
    pub(crate) fn room(&self, spare: u64) -> u64 {
        let own = WINDOW_INITIAL.saturating_sub(self.len());
        let by_credit = self.limit().saturating_sub(self.written());
        let by_queue = UNSENT_MAX.saturating_sub(self.unsent());
        by_credit.min(by_queue).min(own.max(spare))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream() -> OutStream {
        OutStream::new(AppId(1), None, None)
    }

    fn range(start: u64, end: u64, fin: bool) -> StreamRange {
        StreamRange { start, end, fin }
    }

    fn send(stream: &mut OutStream, max: u64) -> StreamPart {
        let part = stream.next_part(max).expect("something to send");
        stream.on_part_sent(part);
        part
    }

    #[test]
    fn takes_no_more_than_the_peer_grants_and_signals_when_there_is_room() {
        let mut stream = stream();
        let bytes = vec![7; 20_000];
        assert_eq!(stream.write(&bytes, u64::MAX), WINDOW_INITIAL as usize);
        assert_eq!(stream.write(&bytes, u64::MAX), 0);
        assert!(!stream.take_writable(u64::MAX));
        stream.on_credit(WINDOW_INITIAL + 100);
        assert!(stream.take_writable(u64::MAX));
        assert!(!stream.take_writable(u64::MAX), "signalled once");
        assert_eq!(stream.write(&bytes, u64::MAX), 100);
    }

    #[test]
    fn without_spare_memory_it_keeps_its_own_share() {
        let mut stream = stream();
        stream.on_credit(1 << 20);
        assert_eq!(stream.write(&[0; 40_000], 0), WINDOW_INITIAL as usize);
        assert!(stream.waits_for_memory());
        assert!(stream.take_writable(1));
    }

    #[test]
    fn lost_bytes_are_retransmitted_first_unless_acknowledged_late() {
        let mut stream = stream();
        let bytes: Vec<u8> = (0..100).collect();
        stream.write(&bytes, u64::MAX);
        let parts: Vec<StreamPart> = (0..4).map(|_| send(&mut stream, 20)).collect();
        stream.on_lost(range(20, 60, false));
        stream.on_acked(range(40, 60, false));
        let again = send(&mut stream, 100);
        assert_eq!(
            (again.start, again.end, again.is_retransmit),
            (20, 40, true)
        );
        assert_eq!(stream.bytes(again).0, &bytes[20..40]);
        assert_eq!(send(&mut stream, 100).start, parts[3].end);
        assert_eq!(stream.on_acked(range(0, 20, false)), 20);
        assert_eq!(stream.on_acked(range(20, 40, false)), 40);
        assert_eq!(stream.on_acked(range(60, 100, false)), 40);
        assert_eq!(stream.len(), 0);
    }

    #[test]
    fn fin_follows_the_last_byte_and_is_resent_until_acknowledged() {
        let mut stream = stream();
        stream.write(b"abc", u64::MAX);
        assert!(stream.finish());
        assert!(!stream.finish());
        assert!(!send(&mut stream, 2).fin);
        let last = send(&mut stream, 2);
        assert!(last.fin && !stream.is_ready());
        stream.on_lost(range(last.start, last.end, true));
        let again = send(&mut stream, 10);
        assert!(again.fin && again.is_retransmit);
        stream.on_acked(range(0, 3, false));
        stream.on_lost(range(again.start, again.end, true));
        let alone = send(&mut stream, 10);
        assert_eq!((alone.start, alone.end, alone.fin), (3, 3, true));
        stream.on_acked(range(3, 3, true));
        assert!(stream.is_done());
    }

    #[test]
    fn one_unacknowledged_byte_does_not_pin_a_window_of_memory() {
        let mut stream = stream();
        stream.on_credit(1 << 20);
        let len = stream.write(&[3; 128 << 10], u64::MAX) as u64;
        let part = send(&mut stream, len);
        assert_eq!(
            stream.on_acked(range(part.start, part.end - 1, false)),
            len - 1
        );
        assert!(stream.data.capacity() < 5000, "{}", stream.data.capacity());
        stream.on_lost(range(len - 1, len, false));
        let again = send(&mut stream, len);
        assert_eq!(stream.bytes(again).0, [3]);
    }
}
