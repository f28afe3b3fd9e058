//! The receiving half of a stream: bytes are put in order within a window.

use std::{collections::VecDeque, time::Duration};

use keiro_units::Instant;

use crate::{
    ranges::RangeSet,
    session::{
        receive_memory::{RANGE_BYTES, SpareMemory},
        stream_buffer::{WINDOW_INITIAL, release},
    },
};

/// Gaps allowed whatever the window and whatever other streams have. Ours: for as many streams as a peer may
/// have open they take 15 MB.
const GAPS_MIN: u64 = WINDOW_INITIAL / BYTES_PER_GAP;
/// As long as other streams have few: an initial window of single bytes, of which every second is lost.
const SHORT_GAPS_MAX: u64 = WINDOW_INITIAL / 2;
/// A reader that has taken all there is grants as soon as this part of a window is free: nearly the whole
/// window is in use where memory does not let it grow. Ours.
const GRANTED_PART: u64 = 8;
/// A window that has grown is as wide at least: of a narrower one its sender might have no more left than a new
/// stream has, and would give nothing back.
const WINDOW_GROWN_MIN: u64 = 2 * WINDOW_INITIAL;
/// A window up to this grows fourfold at a time, and twofold from there on: a stream of 100 Mbit/s
/// over 100 ms is at its rate in half a second.
const QUICK_GROWTH_MAX: u64 = 256 << 10;
/// A reader keeps up who takes what there is within a round trip, and always within this: a turn of
/// a busy driver.
const READER_PATIENCE: Duration = Duration::from_millis(5);
/// Bytes of the window for each gap beyond that: every third packet may be missing.
const BYTES_PER_GAP: u64 = 512;

/// The peer breaks the rules of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamViolation {
    /// It sends more than was granted.
    OverCredit,
    /// It ends the stream at two places, or sends beyond the end.
    End,
    /// More gaps than losses can make.
    Gaps,
    /// All that the peer may make us keep is taken, by this stream and others.
    Memory,
}

/// The receiving half of a stream.
#[derive(Debug)]
pub(crate) struct InStream {
    /// Taken by the driver up to here.
    consumed: u64,
    /// From `consumed` on; what has not come yet is zero.
    data: VecDeque<u8>,
    have: RangeSet,
    end: Option<u64>,
    /// The peer may send up to here.
    granted: u64,
    /// Credit that the peer has given back in all.
    returned: u64,
    /// Bytes to be granted beyond `consumed`.
    window: u64,
    /// From where the next half of the window is counted, and since when.
    half_from: u64,
    half_since: Instant,
    /// The window is narrower than its share and would be wider if there were memory.
    is_short: bool,
    /// Since when the driver knows that there is something to read.
    signalled_at: Option<Instant>,
    /// How long the bytes that were taken last had waited; `None`: some are left.
    waited: Option<Duration>,
    end_taken: bool,
}

/// What a stream may take of the memory for wide windows when others want some.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowShare {
    /// An even part of it.
    pub(crate) bytes: u64,
    /// A stream has less and would have more.
    pub(crate) is_wanted: bool,
}

impl InStream {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            consumed: 0,
            data: VecDeque::new(),
            have: RangeSet::default(),
            end: None,
            granted: WINDOW_INITIAL,
            returned: 0,
            window: WINDOW_INITIAL,
            half_from: 0,
            half_since: now,
            is_short: false,
            signalled_at: None,
            waited: None,
            end_taken: false,
        }
    }

    /// Takes bytes at `offset`; with `fin` the stream ends behind them. `spare_gaps`: how many more gaps all
    /// streams of the peer may have.
    pub(crate) fn on_data(
        &mut self,
        offset: u64,
        bytes: &[u8],
        fin: bool,
        spare_gaps: u64,
    ) -> Result<(), StreamViolation> {
        let end = offset.saturating_add(bytes.len() as u64);
        if end > self.granted {
            return Err(StreamViolation::OverCredit);
        }
        let highest = self.consumed + self.data.len() as u64;
        let beyond_end = self
            .end
            .is_some_and(|known| end > known || fin && end != known);
        if beyond_end || fin && end < highest {
            return Err(StreamViolation::End);
        }
        if fin {
            self.end = Some(end);
        }
        let start = offset.max(self.consumed);
        if start >= end {
            return Ok(());
        }
        if self.have.insert(start, end) > 0 {
            self.store(start, &bytes[(start - offset) as usize..]);
        }
        let least = match spare_gaps {
            0 => GAPS_MIN,
            _ => SHORT_GAPS_MAX,
        };
        if self.have.len() as u64 > least.max(self.reach() / BYTES_PER_GAP) {
            return Err(StreamViolation::Gaps);
        }
        Ok(())
    }

    /// Bytes in order that the driver has not taken, in two pieces.
    pub(crate) fn readable(&self) -> (&[u8], &[u8]) {
        let len = self.readable_len();
        let (first, second) = self.data.as_slices();
        let in_first = len.min(first.len());
        (&first[..in_first], &second[..len - in_first])
    }

    /// The driver has all bytes that there ever will be.
    pub(crate) fn is_at_end(&self) -> bool {
        self.end == Some(self.consumed)
    }

    /// The `len` bytes from `consumed` on are the last.
    pub(crate) fn ends_after(&self, len: usize) -> bool {
        self.end == Some(self.consumed + len as u64)
    }

    /// There is something that the driver does not know: bytes, or the end.
    fn has_news(&self) -> bool {
        self.readable_len() > 0 || self.is_at_end() && !self.end_taken
    }

    /// Notes that the driver gets a signal; `false`: there is nothing new, or it has got one before.
    pub(crate) fn take_signal(&mut self, now: Instant) -> bool {
        let fresh = self.signalled_at.is_none() && self.has_news();
        if fresh {
            self.signalled_at = Some(now);
        }
        fresh
    }

    /// The driver has seen the end.
    pub(crate) fn take_end(&mut self) {
        self.end_taken = true;
    }

    pub(crate) fn is_done(&self) -> bool {
        self.end_taken
    }

    /// The driver has taken the first `count` bytes.
    pub(crate) fn consume(&mut self, now: Instant, count: usize) {
        let count = count.min(self.readable_len());
        self.data.drain(..count);
        self.consumed += count as u64;
        self.have.remove(0, self.consumed);
        release(&mut self.data);
        self.waited = None;
        if self.readable_len() == 0 {
            let signalled_at = self.signalled_at.take();
            self.waited = signalled_at.map(|at| now.saturating_duration_since(at));
        }
    }

    /// Enough of the window is free again for a credit frame.
    pub(crate) fn has_credit_to_grant(&self) -> bool {
        let free = (self.consumed + self.window).saturating_sub(self.granted);
        let half = self.window / 2;
        let least = match self.readable_len() {
            0 => half.min((self.window / GRANTED_PART).max(WINDOW_INITIAL)),
            _ => half,
        };
        self.end.is_none() && free >= least
    }

    /// How far the peer may send from now on.
    ///
    /// The window grows if it is what limits the peer: half of it went in less than two round trips,
    /// or nearly all of it came before a gap was repaired, and the reader keeps up. It grows into `spare`, what
    /// the peer may still make us keep; the last of it is for streams with little, so that a few whose readers
    /// have stopped leave room for the others. A window that is wider than its share narrows when others want
    /// theirs. By how much it grew.
    pub(crate) fn grant(
        &mut self,
        now: Instant,
        rtt: Duration,
        spare: SpareMemory,
        share: WindowShare,
    ) -> u64 {
        let is_half = self.consumed - self.half_from >= self.window / 2;
        let quick = is_half && now.saturating_duration_since(self.half_since) < rtt * 2;
        if is_half {
            self.half_from = self.consumed;
            self.half_since = now;
        }
        let unused = self.granted - self.consumed - self.len();
        let keeps_up = self
            .waited
            .is_some_and(|waited| waited <= rtt.max(READER_PATIENCE));
        let limits = quick || keeps_up && unused < self.window / 4;
        let grown = match limits {
            true => self.grow(spare, share),
            false => 0,
        };
        self.is_short &= limits;
        if share.is_wanted && !self.is_short {
            self.narrow_to(share.bytes);
        }
        self.renew();
        grown
    }

    /// Grants what is free of the window as it is.
    pub(crate) fn renew(&mut self) {
        self.granted = self.granted.max(self.consumed + self.window);
    }

    /// Widens the window as far as there is memory; by how much.
    fn grow(&mut self, spare: SpareMemory, share: WindowShare) -> u64 {
        let factor = match self.window <= QUICK_GROWTH_MAX {
            true => 4,
            false => 2,
        };
        let max = spare.stream_window_max().max(self.window);
        let more = (self.window * (factor - 1)).min(max - self.window);
        let small = QUICK_GROWTH_MAX.saturating_sub(self.window);
        let small = small.min(spare.for_small_windows());
        let wide = spare.for_wide_windows();
        let within_share = share.bytes.saturating_sub(self.window).min(wide);
        let beyond_share = match share.is_wanted {
            true => 0,
            // The next stream that comes finds some.
            false => (wide - within_share) / 2,
        };
        let grown = more.min((within_share + beyond_share).max(small));
        let grown = match self.window + grown < WINDOW_GROWN_MIN {
            true => 0,
            false => grown,
        };
        self.window += grown;
        self.is_short = grown < more && self.window < share.bytes;
        grown
    }

    /// Narrows the window to `bytes`, as far as what is free of it allows now.
    fn narrow_to(&mut self, bytes: u64) {
        let free = (self.consumed + self.window).saturating_sub(self.granted);
        self.window -= self.window.saturating_sub(bytes).min(free);
    }

    /// The peer has given back `returned` bytes of credit in all; a smaller number is old news. It may not use
    /// them any more, so the window narrows to what it has kept.
    pub(crate) fn on_return(&mut self, returned: u64) -> Result<(), StreamViolation> {
        let more = returned.saturating_sub(self.returned);
        if more == 0 {
            return Ok(());
        }
        let highest = self.consumed + self.len();
        if more > self.granted - highest {
            return Err(StreamViolation::OverCredit);
        }
        self.returned += more;
        self.granted -= more;
        let kept = self.granted - highest;
        self.window = match kept < WINDOW_GROWN_MIN {
            true => self.window.min(WINDOW_INITIAL),
            false => self.window.min(kept),
        };
        self.is_short = false;
        Ok(())
    }

    /// What the peer was granted beyond what the driver has taken.
    pub(crate) fn outstanding(&self) -> u64 {
        self.granted - self.consumed
    }

    /// What the peer was granted in all: how far it may send, and what it has given back.
    pub(crate) fn granted(&self) -> u64 {
        self.granted + self.returned
    }

    /// What may have to be kept beyond an initial window: nothing comes behind the end.
    pub(crate) fn extra_window(&self) -> u64 {
        let all = match self.end {
            Some(end) => end - self.consumed,
            None => self.reach(),
        };
        all.saturating_sub(WINDOW_INITIAL)
    }

    /// What it may make us keep: a window that has grown, used or not, or what it holds of its first one.
    pub(crate) fn memory(&self) -> u64 {
        let held = self.data.capacity() as u64;
        let window = match self.extra_window() {
            0 => 0,
            extra => WINDOW_INITIAL + extra,
        };
        let gaps = (self.have.len() as u64).saturating_sub(1);
        held.max(window) + gaps * RANGE_BYTES
    }

    /// Its window is wide: it grew into memory that wide windows share.
    pub(crate) fn is_wide(&self) -> bool {
        self.window > QUICK_GROWTH_MAX
    }

    /// Its window is narrower than its share of that memory, and would be wider.
    pub(crate) fn is_short(&self) -> bool {
        self.is_short
    }

    /// Gaps beyond those that every stream may have.
    pub(crate) fn extra_gaps(&self) -> u64 {
        (self.have.len() as u64).saturating_sub(GAPS_MIN)
    }

    /// What may come beyond what the driver has taken, at most.
    fn reach(&self) -> u64 {
        self.window.max(self.outstanding())
    }

    /// Bytes that are kept for the driver, gaps included.
    pub(crate) fn len(&self) -> u64 {
        self.data.len() as u64
    }

    fn readable_len(&self) -> usize {
        match self.have.first() {
            Some((start, end)) if start == self.consumed => (end - start) as usize,
            _ => 0,
        }
    }

    fn store(&mut self, start: u64, bytes: &[u8]) {
        let at = (start - self.consumed) as usize;
        let known = self.data.len().saturating_sub(at).min(bytes.len());
        for (kept, byte) in self.data.range_mut(at.min(self.data.len())..).zip(bytes) {
            *kept = *byte;
        }
        self.reserve(at + bytes.len());
        if at > self.data.len() {
            self.data.resize(at, 0);
        }
        self.data.extend(&bytes[known..]);
    }

    /// Makes room for `len` bytes. It doubles, and never has more than may come.
    fn reserve(&mut self, len: usize) {
        let has = self.data.capacity();
        if len > has {
            let more = usize::try_from(self.reach()).unwrap_or(usize::MAX);
            let wanted = len.max(more.min(has * 2));
            self.data.reserve_exact(wanted - self.data.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RTT: Duration = Duration::from_millis(100);

    /// The grant of a stream that need not share. `spare`: bytes that are left of the default budget.
    fn grant(stream: &mut InStream, now: Instant, spare: u64) -> u64 {
        let share = WindowShare {
            bytes: u64::MAX,
            is_wanted: false,
        };
        stream.grant(now, RTT, SpareMemory::of_default(spare), share)
    }

    fn read(stream: &mut InStream, max: usize) -> Vec<u8> {
        let (first, second) = stream.readable();
        let bytes: Vec<u8> = first.iter().chain(second).copied().take(max).collect();
        stream.consume(Instant::ZERO, bytes.len());
        bytes
    }

    proptest! {
        #[test]
        fn bytes_are_delivered_once_in_any_order_and_overlap(
            parts in proptest::collection::vec((0usize..300, 1usize..80, 0usize..100), 0..80),
        ) {
            let all: Vec<u8> = (0..400).map(|i| (i * 7 % 251) as u8).collect();
            let mut stream = InStream::new(Instant::ZERO);
            let mut out = Vec::new();
            for (start, len, take) in parts {
                stream.on_data(start as u64, &all[start..start + len], false, 0).unwrap();
                out.extend(read(&mut stream, take));
            }
            stream.on_data(0, &all, true, 0).unwrap();
            out.extend(read(&mut stream, 1000));
            prop_assert_eq!(out, all);
            prop_assert!(stream.is_at_end() && stream.has_news());
        }
    }

    #[test]
    fn stream_protocol_violations_are_refused() {
        let mut stream = InStream::new(Instant::ZERO);
        let over = stream.on_data(WINDOW_INITIAL - 1, b"ab", false, 0);
        assert_eq!(over, Err(StreamViolation::OverCredit));
        assert_eq!(
            stream.on_data(u64::MAX, b"ab", false, 0),
            Err(StreamViolation::OverCredit)
        );
        stream.on_data(5, b"abc", true, 0).unwrap();
        for (offset, fin) in [(6, false), (5, true), (6, true)] {
            let bytes = if offset == 5 {
                &b"ab"[..]
            } else {
                &b"abcd"[..]
            };
            let late = stream.on_data(offset, bytes, fin, 0);
            assert_eq!(late, Err(StreamViolation::End), "{offset} {fin}");
        }
        let mut gaps = InStream::new(Instant::ZERO);
        let refused = (0..2000).find_map(|i| gaps.on_data(i * 2, b"x", false, 0).err());
        assert_eq!(refused, Some(StreamViolation::Gaps));
        let mut few = InStream::new(Instant::ZERO);
        let kept = (0..2000).take_while(|i| few.on_data(i * 2, b"x", false, 0).is_ok());
        assert_eq!(kept.count(), 32);
        // Single bytes over a line that loses every second, where no other stream has gaps.
        let mut short = InStream::new(Instant::ZERO);
        let refused =
            (0..WINDOW_INITIAL / 2).find_map(|i| short.on_data(i * 2, b"x", false, 1).err());
        assert_eq!(refused, None);
    }

    #[test]
    fn a_quick_reader_gets_a_wider_window_and_a_slow_one_does_not() {
        let rtt = RTT;
        let mut stream = InStream::new(Instant::ZERO);
        let mut now = Instant::ZERO;
        let mut turn = |stream: &mut InStream, wait: Duration| {
            now += wait;
            let (granted, half) = (stream.granted(), stream.window / 2);
            let from = stream.consumed;
            stream
                .on_data(from, &vec![0; half as usize], false, 0)
                .unwrap();
            assert!(!stream.has_credit_to_grant());
            stream.consume(now, half as usize);
            assert!(stream.has_credit_to_grant());
            grant(stream, now, u64::MAX);
            stream.granted() - granted
        };
        assert_eq!(turn(&mut stream, rtt * 3), WINDOW_INITIAL / 2);
        assert_eq!(turn(&mut stream, rtt), WINDOW_INITIAL / 2 * 7);
        assert_eq!(stream.extra_window(), WINDOW_INITIAL * 3);
        assert_eq!(grant(&mut stream, now, 0), 0, "no memory is left");
    }

    #[test]
    fn readers_that_stop_leave_windows_to_those_that_read() {
        const POOL: u64 = 64 << 20;
        let rtt = RTT;
        let mut used = 0;
        // As wide as it gets, whose reader then stops.
        let mut widest = || {
            let mut stream = InStream::new(Instant::ZERO);
            let mut now = Instant::ZERO;
            for _ in 0..40 {
                now += rtt;
                let (from, half) = (stream.consumed, stream.window / 2);
                stream
                    .on_data(from, &vec![0; half as usize], false, 0)
                    .unwrap();
                stream.consume(now, half as usize);
                used += grant(&mut stream, now, POOL - used);
            }
            stream.window
        };
        assert_eq!(widest(), 16 << 20);
        let last = (1..25).map(|_| widest()).last().unwrap();
        assert!(
            last >= QUICK_GROWTH_MAX,
            "{last} bytes are left to the last of them"
        );
        assert!(used <= POOL);
    }

    /// A window whose first byte comes last: how much it grows if the driver takes all or half of
    /// it `wait` after that.
    fn growth_behind_a_gap(wait: Duration, halves: bool) -> u64 {
        let rtt = RTT;
        let mut stream = InStream::new(Instant::ZERO);
        let all = vec![0; WINDOW_INITIAL as usize];
        stream.on_data(1, &all[1..], false, 0).unwrap();
        let repaired = Instant::ZERO + rtt * 3;
        assert!(!stream.take_signal(repaired));
        stream.on_data(0, &all[..1], false, 0).unwrap();
        assert!(stream.take_signal(repaired) && !stream.take_signal(repaired));
        let now = repaired + wait;
        stream.consume(now, all.len() / if halves { 2 } else { 1 });
        assert!(stream.has_credit_to_grant());
        grant(&mut stream, now, u64::MAX)
    }

    #[test]
    fn a_gap_that_holds_up_all_of_a_window_widens_it_unless_the_reader_is_slow() {
        let ms = Duration::from_millis(1);
        assert_eq!(growth_behind_a_gap(ms, false), WINDOW_INITIAL * 3);
        assert_eq!(growth_behind_a_gap(200 * ms, false), 0);
        assert_eq!(growth_behind_a_gap(ms, true), 0);
    }

    #[test]
    fn a_reader_that_takes_all_in_pieces_widens_a_window_behind_a_gap() {
        const PIECE: usize = 64 << 10;
        let rtt = RTT;
        let mut stream = InStream::new(Instant::ZERO);
        let mut now = Instant::ZERO;
        while stream.window < 1 << 20 {
            now += rtt;
            let (from, half) = (stream.consumed, stream.window / 2);
            let bytes = vec![0; half as usize];
            stream.on_data(from, &bytes, false, 0).unwrap();
            stream.consume(now, bytes.len());
            grant(&mut stream, now, u64::MAX);
        }
        let (from, all) = (stream.consumed, vec![0; stream.outstanding() as usize]);
        stream.on_data(from + 1, &all[1..], false, 0).unwrap();
        now += rtt * 3;
        stream.on_data(from, &all[..1], false, 0).unwrap();
        assert!(stream.take_signal(now));
        let mut grown = 0;
        for piece in all.chunks(PIECE) {
            now += Duration::from_micros(100);
            stream.consume(now, piece.len());
            if stream.has_credit_to_grant() {
                grown += grant(&mut stream, now, u64::MAX);
            }
        }
        assert_eq!(grown, all.len() as u64);
    }

    #[test]
    fn one_unread_byte_does_not_pin_a_window_of_memory() {
        let mut stream = InStream::new(Instant::ZERO);
        let all = [0; WINDOW_INITIAL as usize];
        stream.on_data(0, &all, false, 0).unwrap();
        stream.consume(Instant::ZERO, all.len() - 1);
        assert!(stream.data.capacity() < 5000, "{}", stream.data.capacity());
        assert_eq!(stream.readable().0, [0]);
    }
}
