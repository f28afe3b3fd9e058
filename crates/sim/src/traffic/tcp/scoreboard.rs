//! Segments of a sender: in flight, acknowledged and lost (RFC 6675 §4).

use std::{collections::VecDeque, time::Duration};

use keiro_units::Instant;

use crate::traffic::packet::SACK_BLOCKS_MAX;

/// Later segments that must have arrived before one counts as lost (RFC 6675 §2: DupThresh).
const LATER_SEGMENTS: usize = 3;

/// The segments from the first unacknowledged byte to the last byte sent.
#[derive(Clone, Debug)]
pub(super) struct Scoreboard {
    segments: VecDeque<Segment>,
    unacknowledged: u64,
    next: u64,
    /// Bytes of segments that arrived out of order.
    sacked: u64,
    /// Bytes of lost segments that were not retransmitted yet.
    missing: u64,
    /// No segment before this offset is missing.
    missing_from: u64,
    /// Losses of segments before this offset have been decided.
    decided: u64,
    /// Starts of the latest segments that arrived out of order, the latest first.
    latest: [u64; LATER_SEGMENTS],
    /// The ranges of the last acknowledgement, so that only new ones are handled.
    seen: [(u64, u64); SACK_BLOCKS_MAX],
    /// Retransmissions in the order of sending; some may have arrived.
    resent: VecDeque<(u64, Instant)>,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    start: u64,
    len: u16,
    state: State,
    /// It was sent more than once.
    resent: bool,
    /// When it was last sent.
    sent_at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Flying,
    /// Lost and not retransmitted yet.
    Missing,
    /// Lost and retransmitted.
    FlyingAgain,
    /// Arrived out of order.
    Sacked,
}

/// Effect of an acknowledgement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// Bytes newly known to have arrived.
    pub(super) delivered: u64,
    /// Bytes newly acknowledged cumulatively.
    pub(super) advanced: u64,
    /// Sending time of the earliest segment that arrived now and was sent only once (Karn).
    pub(super) measured: Option<Instant>,
    /// Sending time of the latest segment that arrived now.
    pub(super) latest_sent: Option<Instant>,
}

impl Scoreboard {
    pub(super) const fn new() -> Self {
        Self {
            segments: VecDeque::new(),
            unacknowledged: 0,
            next: 0,
            sacked: 0,
            missing: 0,
            missing_from: 0,
            decided: 0,
            latest: [0; LATER_SEGMENTS],
            seen: [(0, 0); SACK_BLOCKS_MAX],
            resent: VecDeque::new(),
        }
    }

    /// The first byte that is not acknowledged.
    pub(super) const fn unacknowledged(&self) -> u64 {
        self.unacknowledged
    }

    /// The first byte that was never sent.
    pub(super) const fn next(&self) -> u64 {
        self.next
    }

    /// Bytes in flight, as far as is known (RFC 6675: pipe).
    pub(super) const fn in_flight(&self) -> u64 {
        self.next - self.unacknowledged - self.sacked - self.missing
    }

    /// Bytes that are lost and not retransmitted yet.
    pub(super) const fn missing(&self) -> u64 {
        self.missing
    }

    pub(super) fn send(&mut self, now: Instant, len: u16) {
        self.segments.push_back(Segment {
            start: self.next,
            len,
            state: State::Flying,
            resent: false,
            sent_at: now,
        });
        self.next += u64::from(len);
    }

    /// The first missing segment: its offset and length.
    pub(super) fn first_missing(&mut self) -> Option<(u64, u16)> {
        let index = self.index_of_missing()?;
        let segment = &self.segments[index];
        self.missing_from = segment.start;
        Some((segment.start, segment.len))
    }

    /// The first missing segment is retransmitted.
    pub(super) fn resend(&mut self, now: Instant) {
        let Some(index) = self.index_of_missing() else {
            return;
        };
        let segment = &mut self.segments[index];
        segment.state = State::FlyingAgain;
        segment.resent = true;
        segment.sent_at = now;
        self.missing -= u64::from(segment.len);
        self.missing_from = segment.start + u64::from(segment.len);
        self.resent.push_back((segment.start, now));
    }

    /// Handles an acknowledgement of everything before `upto`, and of ranges beyond. Ignores what was never
    /// sent.
    pub(super) fn acknowledge(
        &mut self,
        now: Instant,
        upto: u64,
        ranges: &[(u64, u64)],
        shortest_round_trip: Duration,
    ) -> Progress {
        let mut progress = Progress::default();
        if upto > self.unacknowledged && upto <= self.next {
            self.advance(now, upto, shortest_round_trip, &mut progress);
        }
        let mut seen = [(0, 0); SACK_BLOCKS_MAX];
        for (slot, &(from, to)) in seen.iter_mut().zip(ranges) {
            if from >= to || to > self.next || from < self.unacknowledged {
                continue;
            }
            *slot = (from, to);
            let known = self
                .seen
                .iter()
                .filter(|seen| seen.0 >= from && seen.1 <= to);
            let known = known.max_by_key(|seen| seen.1 - seen.0);
            let (begin, end) = known.copied().unwrap_or((to, to));
            self.take(now, from, begin, shortest_round_trip, &mut progress);
            self.take(now, end, to, shortest_round_trip, &mut progress);
        }
        self.seen = seen;
        progress
    }

    /// Marks segments as lost because three later ones arrived.
    pub(super) fn find_lost(&mut self) {
        let lost_before = self.latest[LATER_SEGMENTS - 1];
        let from = self.decided.max(self.unacknowledged);
        if lost_before <= from {
            return;
        }
        for index in self.index_at(from)..self.segments.len() {
            let segment = &mut self.segments[index];
            if segment.start >= lost_before {
                break;
            }
            if segment.state == State::Flying {
                segment.state = State::Missing;
                self.missing += u64::from(segment.len);
                self.missing_from = self.missing_from.min(segment.start);
            }
        }
        self.decided = lost_before;
    }

    /// Marks retransmissions as lost because a segment sent `tolerance` after them arrived; `latest` is its
    /// sending time (RFC 8985 §6.2).
    pub(super) fn find_lost_again(&mut self, latest: Instant, tolerance: Duration) {
        while let Some(&(start, sent_at)) = self.resent.front() {
            if let Some(index) = self.position(start) {
                let segment = &mut self.segments[index];
                if segment.state == State::FlyingAgain && segment.sent_at == sent_at {
                    if sent_at + tolerance >= latest {
                        return;
                    }
                    segment.state = State::Missing;
                    self.missing += u64::from(segment.len);
                    self.missing_from = self.missing_from.min(start);
                }
            }
            self.resent.pop_front();
        }
    }

    /// The timer expired: everything that has not arrived is lost.
    pub(super) fn lose_all(&mut self) {
        for segment in &mut self.segments {
            if segment.state != State::Sacked {
                segment.state = State::Missing;
            }
        }
        self.missing = self.next - self.unacknowledged - self.sacked;
        self.missing_from = self.unacknowledged;
        self.resent.clear();
    }

    fn advance(
        &mut self,
        now: Instant,
        upto: u64,
        shortest_round_trip: Duration,
        progress: &mut Progress,
    ) {
        progress.advanced = upto - self.unacknowledged;
        while let Some(segment) = self.segments.front_mut() {
            let end = segment.start + u64::from(segment.len);
            if segment.start >= upto {
                break;
            }
            let acknowledged = end.min(upto) - segment.start;
            match segment.state {
                State::Sacked => self.sacked -= acknowledged,
                State::Missing => self.missing -= acknowledged,
                State::Flying | State::FlyingAgain => {}
            }
            if segment.state != State::Sacked {
                progress.arrived(now, segment, acknowledged, shortest_round_trip);
            }
            if end > upto {
                // Only a middlebox acknowledges part of a segment.
                segment.start = upto;
                segment.len = (end - upto) as u16;
                break;
            }
            self.segments.pop_front();
        }
        self.unacknowledged = upto;
    }

    /// Marks segments in a range as arrived out of order.
    fn take(
        &mut self,
        now: Instant,
        from: u64,
        to: u64,
        shortest_round_trip: Duration,
        progress: &mut Progress,
    ) {
        if from >= to {
            return;
        }
        for index in self.index_at(from)..self.segments.len() {
            let segment = &mut self.segments[index];
            if segment.start + u64::from(segment.len) > to {
                break;
            }
            if segment.state == State::Sacked {
                continue;
            }
            let len = u64::from(segment.len);
            if segment.state == State::Missing {
                self.missing -= len;
            }
            progress.arrived(now, segment, len, shortest_round_trip);
            segment.state = State::Sacked;
            self.sacked += len;
            let start = segment.start;
            if let Some(place) = self.latest.iter().position(|&latest| start > latest) {
                self.latest[place..].rotate_right(1);
                self.latest[place] = start;
            }
        }
    }

    /// The first segment that begins at or after an offset.
    fn index_at(&self, offset: u64) -> usize {
        self.segments
            .partition_point(|segment| segment.start < offset)
    }

    /// The segment that begins at an offset.
    fn position(&self, start: u64) -> Option<usize> {
        let index = self.index_at(start);
        (self.segments.get(index)?.start == start).then_some(index)
    }

    fn index_of_missing(&self) -> Option<usize> {
        if self.missing == 0 {
            return None;
        }
        let from = self.index_at(self.missing_from);
        let mut rest = self.segments.iter().skip(from);
        Some(from + rest.position(|segment| segment.state == State::Missing)?)
    }
}

impl Progress {
    fn arrived(&mut self, now: Instant, segment: &Segment, len: u64, shortest: Duration) {
        self.delivered += len;
        if !segment.resent {
            let earliest = self
                .measured
                .map_or(segment.sent_at, |at| at.min(segment.sent_at));
            self.measured = Some(earliest);
        } else if now - segment.sent_at < shortest {
            // The first of its copies arrived, not the last (RFC 8985 §6.2 step 2).
            return;
        }
        self.latest_sent = self.latest_sent.max(Some(segment.sent_at));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MSS: u16 = 100;
    const NOW: Instant = Instant::from_nanos(1_000);

    fn sent(segments: u64) -> Scoreboard {
        let mut board = Scoreboard::new();
        for _ in 0..segments {
            board.send(NOW, MSS);
        }
        board
    }

    fn ack(board: &mut Scoreboard, upto: u64, ranges: &[(u64, u64)]) -> Progress {
        let progress = board.acknowledge(NOW, upto, ranges, Duration::ZERO);
        board.find_lost();
        progress
    }

    #[test]
    fn a_segment_is_lost_when_three_later_ones_arrived() {
        let mut board = sent(10);
        assert_eq!(ack(&mut board, 0, &[(100, 300)]).delivered, 200);
        assert_eq!(board.first_missing(), None);
        ack(&mut board, 0, &[(500, 600), (100, 300)]);
        assert_eq!(board.first_missing(), Some((0, MSS)));
        assert_eq!(board.in_flight(), 1000 - 300 - 100);
        board.resend(NOW);
        assert_eq!(board.first_missing(), None);
        // Two more later ones: now three have arrived after 300 and 400.
        ack(&mut board, 0, &[(500, 800), (100, 300)]);
        assert_eq!(board.first_missing(), Some((300, MSS)));
    }

    #[test]
    fn a_retransmission_is_lost_when_something_later_arrived() {
        let mut board = sent(6);
        ack(&mut board, 0, &[(100, 500)]);
        board.resend(NOW);
        let later = NOW + Duration::from_micros(10);
        board.send(later, MSS);
        let progress = board.acknowledge(later, 0, &[(100, 700)], Duration::ZERO);
        assert_eq!(progress.latest_sent, Some(later));
        board.find_lost_again(later, Duration::from_micros(10));
        assert_eq!(board.first_missing(), None);
        board.find_lost_again(later, Duration::from_micros(9));
        assert_eq!(board.first_missing(), Some((0, MSS)));
    }

    #[test]
    fn nonsense_is_ignored() {
        let mut board = sent(3);
        for (upto, range) in [(301, (0, 0)), (0, (200, 100)), (0, (200, 400)), (0, (0, 0))] {
            assert_eq!(ack(&mut board, upto, &[range]), Progress::default());
        }
        assert_eq!(board.in_flight(), 300);
    }

    proptest! {
        /// Compared with a list that is searched from the beginning every time.
        #[test]
        fn counts_agree_with_a_simple_list(
            steps in prop::collection::vec((0..5_u8, 0..40_u64, 1..8_u64), 1..120)
        ) {
            let mut board = Scoreboard::new();
            // Per segment: arrived, missing.
            let mut list: Vec<(bool, bool)> = Vec::new();
            let mut first = 0_usize;
            for (kind, at, len) in steps {
                match kind {
                    0 => {
                        board.send(NOW, MSS);
                        list.push((false, false));
                    }
                    1 => {
                        let upto = (first as u64 + at % 4).min(list.len() as u64);
                        ack(&mut board, upto * 100, &[]);
                        first = first.max(upto as usize);
                    }
                    2 => {
                        let range = (at * 100, (at + len) * 100);
                        if at >= first as u64 && at + len <= list.len() as u64 {
                            for segment in &mut list[at as usize..(at + len) as usize] {
                                *segment = (true, false);
                            }
                        }
                        ack(&mut board, 0, &[range]);
                    }
                    3 => {
                        let missing = (first..list.len()).find(|&i| list[i].1);
                        prop_assert_eq!(
                            board.first_missing().map(|(start, _)| start / 100),
                            missing.map(|i| i as u64)
                        );
                        board.resend(NOW);
                        if let Some(i) = missing {
                            list[i].1 = false;
                        }
                    }
                    _ if at == 0 => {
                        board.lose_all();
                        for segment in &mut list[first..] {
                            segment.1 = !segment.0;
                        }
                    }
                    _ => {}
                }
                let arrived = list[first..].iter().filter(|s| s.0).count() as u64;
                prop_assert_eq!(board.sacked, arrived * 100);
                let listed = list[first..].iter().filter(|s| s.1).count() as u64;
                prop_assert!(board.missing >= listed * 100);
                // Those newly lost by the rule of three later segments.
                let states = board.segments.iter();
                for (index, segment) in states.enumerate() {
                    let later = list[first + index + 1..].iter().filter(|s| s.0).count();
                    let listed = &mut list[first + index];
                    if segment.state == State::Missing && !listed.1 {
                        prop_assert!(later >= 3 && !segment.resent && !listed.0);
                        listed.1 = true;
                    }
                    if segment.state == State::Flying {
                        prop_assert!(later < 3, "segment {} of {}", first + index, list.len());
                    }
                }
                prop_assert_eq!(board.missing, list[first..].iter().filter(|s| s.1).count() as u64 * 100);
                prop_assert_eq!(board.in_flight() + board.sacked + board.missing,
                    (list.len() - first) as u64 * 100);
            }
        }
    }
}
