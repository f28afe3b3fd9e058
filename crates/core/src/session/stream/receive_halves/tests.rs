//! Credit of several streams that is granted, given back and granted again, over a line that
//! reorders, repeats and loses everything.

use proptest::prelude::*;

use super::*;
use crate::session::{
    receive_memory::SpareMemory,
    send_queues::{CreditReturns, OutStream},
    stream_buffer::{StreamRange, WINDOW_INITIAL},
};

const SECOND: Duration = Duration::from_secs(1);
const RTT: Duration = Duration::from_millis(100);
/// What the streams of a test share beyond their initial windows: too little for all.
const POOL: u64 = 512 << 10;
const STREAMS: u64 = 3;
/// What windows do not grow into by default.
const FOR_FIRST_BYTES: u64 = 2 << 20;
/// Bytes written at the end on every stream.
const LAST: u64 = 400 << 10;

#[derive(Clone, Copy, Debug)]
enum Item {
    Data(StreamId, u64, u64),
    Ack(StreamId, u64, u64),
    Credit(StreamId, u64),
    Return(StreamId, u64),
}

fn range(start: u64, end: u64) -> StreamRange {
    let fin = false;
    StreamRange { start, end, fin }
}

/// Both sides of some streams in one direction, and what is on the way between them.
struct Line {
    now: Instant,
    out: BTreeMap<StreamId, OutStream>,
    returns: CreditReturns,
    streams: ReceiveHalves,
    wire: Vec<Item>,
    read: BTreeMap<StreamId, u64>,
}

impl Line {
    fn new() -> Self {
        let app = AppId(1);
        let ids = (0..STREAMS).map(|number| StreamId::of_ours(0, number));
        let mut line = Self {
            now: Instant::ZERO,
            out: ids
                .map(|id| (id, OutStream::new(app, None, None)))
                .collect(),
            returns: CreditReturns::default(),
            streams: ReceiveHalves::default(),
            wire: Vec::new(),
            read: BTreeMap::new(),
        };
        for id in line.out.keys() {
            line.streams.insert(line.now, *id, Some(app));
        }
        line
    }

    /// What may still be kept: others of the peer have the rest.
    fn spare(&self) -> SpareMemory {
        SpareMemory::of_default(FOR_FIRST_BYTES + POOL - self.streams.memory())
    }

    /// What windows have grown by.
    fn extra(&self) -> u64 {
        let halves = self.streams.open.values().map(|inbound| &inbound.half);
        halves.map(InStream::extra_window).sum()
    }

    /// Bytes of a stream arrive.
    fn take(
        &mut self,
        id: StreamId,
        offset: u64,
        data: &[u8],
        fin: bool,
    ) -> Option<Result<ReceivedBytes, StreamViolation>> {
        let arrived = ArrivedBytes {
            offset,
            data,
            fin,
            path: None,
        };
        let spare = self.spare();
        self.streams.on_data(id, arrived, spare)
    }

    fn id(place: usize) -> StreamId {
        StreamId::of_ours(0, place as u64 % STREAMS)
    }

    fn written(&self, id: StreamId) -> u64 {
        self.out[&id].written()
    }

    fn write(&mut self, id: StreamId, count: u64) {
        let out = self.out.get_mut(&id).unwrap();
        out.write(&vec![7; count as usize], u64::MAX);
    }

    /// Sends all that may be sent.
    fn send(&mut self) {
        for (id, out) in &mut self.out {
            while let Some(part) = out.next_part(9000) {
                out.on_part_sent(part);
                self.wire.push(Item::Data(*id, part.start, part.end));
            }
        }
        while let Some(id) = self.streams.credit_wanted.pop_first() {
            let granted = self.streams.granted(id).unwrap();
            self.wire.push(Item::Credit(id, granted));
        }
        while let Some(id) = self.returns.take_next() {
            self.wire.push(Item::Return(id, self.out[&id].returned()));
        }
    }

    /// `again`: the item stays in flight, and its arrival is not reported.
    fn deliver(&mut self, item: Item, again: bool) {
        match item {
            Item::Data(id, start, end) => {
                let bytes = vec![7; (end - start) as usize];
                let taken = self.take(id, start, &bytes, false);
                assert!(matches!(taken, Some(Ok(_))), "{item:?}: {taken:?}");
                if !again {
                    self.wire.push(Item::Ack(id, start, end));
                }
            }
            Item::Ack(id, start, end) if !again => {
                self.out.get_mut(&id).unwrap().on_acked(range(start, end));
            }
            Item::Ack(..) => {}
            Item::Credit(id, granted) => {
                let out = self.out.get_mut(&id).unwrap();
                out.on_credit(granted);
                self.returns.on_credit(self.now, id, out);
            }
            Item::Return(id, returned) => {
                let outcome = self.streams.on_return(id, returned);
                assert_eq!(outcome, Ok(()), "{item:?}");
            }
        }
    }

    fn lose(&mut self, item: Item) {
        match item {
            Item::Data(id, start, end) | Item::Ack(id, start, end) => {
                self.out.get_mut(&id).unwrap().on_lost(range(start, end));
            }
            Item::Credit(id, _) => {
                self.streams.credit_wanted.insert(id);
            }
            Item::Return(id, _) => self.returns.on_lost(id),
        }
    }

    fn consume(&mut self, id: StreamId, count: usize) {
        let half = &self.streams.open[&id].half;
        let there = half.readable().0.len() + half.readable().1.len();
        *self.read.entry(id).or_default() += there.min(count) as u64;
        let at = Consumption {
            now: self.now,
            rtt: RTT,
        };
        let spare = self.spare();
        self.streams.consume(at, id, count, spare);
    }

    fn look(&mut self, after: Duration) {
        self.now += after;
        self.returns.return_unused(self.now, &mut self.out);
    }

    /// What all streams may be sent is bounded, and accounted for.
    fn check(&self) {
        self.streams.check_invariants();
        assert!(self.extra() <= POOL, "{}", self.extra());
        for inbound in self.streams.open.values() {
            let half = &inbound.half;
            assert!(half.outstanding() <= WINDOW_INITIAL + half.extra_window());
            assert!(half.len() <= half.outstanding());
        }
    }

    /// All that is on the way comes, and all that comes is read.
    fn settle(&mut self) {
        self.send();
        while !self.wire.is_empty() {
            for item in std::mem::take(&mut self.wire) {
                self.deliver(item, false);
                self.check();
            }
        }
        for place in 0..STREAMS as usize {
            self.consume(Self::id(place), usize::MAX);
            self.check();
        }
    }

    fn act(&mut self, (what, place, many): (u8, usize, u32)) {
        let id = Self::id(place);
        match what {
            0..=1 => self.write(id, u64::from(many >> 14)),
            2..=3 => self.send(),
            4..=12 if !self.wire.is_empty() => {
                let place = place % self.wire.len();
                match what {
                    4 => self.deliver(self.wire[place], true),
                    5 => {
                        let item = self.wire.swap_remove(place);
                        self.lose(item);
                    }
                    _ => {
                        let item = self.wire.swap_remove(place);
                        self.deliver(item, false);
                    }
                }
            }
            13..=16 => self.consume(id, (many >> 13) as usize),
            17..=18 => self.look(SECOND),
            19 => self.settle(),
            _ => self.look(SECOND / 50),
        }
        self.check();
    }
}

proptest! {
    #[test]
    fn lost_credit_and_returns_neither_stall_streams_nor_grow_memory(
        acts in proptest::collection::vec((0u8..22, any::<usize>(), any::<u32>()), 0..600),
        looks in any::<bool>(),
    ) {
        let mut line = Line::new();
        for act in acts {
            line.act(act);
        }
        let ids: Vec<StreamId> = line.out.keys().copied().collect();
        let goals: Vec<u64> = ids.iter().map(|id| line.written(*id) + LAST).collect();
        for _ in 0..200 {
            if ids.iter().map(|id| line.read.get(id)).eq(goals.iter().map(Some)) {
                break;
            }
            for (id, goal) in ids.iter().zip(&goals) {
                line.write(*id, goal - line.written(*id));
            }
            line.settle();
            // Even if it looks into every pause.
            line.look(if looks { SECOND } else { Duration::ZERO });
        }
        let read: Vec<u64> = ids.iter().map(|id| line.read[id]).collect();
        prop_assert_eq!(read, goals);
        for _ in 0..5 {
            line.look(SECOND);
            line.settle();
        }
        prop_assert_eq!(line.extra(), 0);
    }
}

/// A stream whose window has grown, and which has read all.
fn grown() -> (Line, StreamId) {
    let (mut line, id) = (Line::new(), Line::id(0));
    for _ in 0..20 {
        line.write(id, 64 << 10);
        line.settle();
    }
    line.settle();
    assert!(line.streams.open[&id].half.extra_window() >= 128 << 10);
    (line, id)
}

#[test]
fn idle_stream_returns_its_grown_window() {
    let (mut line, id) = grown();
    line.look(SECOND / 2);
    line.look(SECOND / 2);
    line.settle();
    assert!(
        line.streams.open[&id].half.extra_window() > 0,
        "not at once"
    );
    line.look(SECOND);
    line.settle();
    assert_eq!(line.streams.open[&id].half.extra_window(), 0);
    assert_eq!(line.extra(), 0);
    assert_eq!(line.returns.due(), None, "nothing is left to look at");
    // It begins as a new one.
    let before = line.written(id);
    line.write(id, 1 << 20);
    assert_eq!(line.written(id) - before, WINDOW_INITIAL);
}

#[test]
fn what_is_used_within_a_second_is_kept() {
    let (mut line, id) = grown();
    line.look(SECOND);
    for _ in 0..5 {
        line.write(id, 100 << 10);
        line.settle();
        line.look(SECOND);
        line.settle();
        let extra = line.streams.open[&id].half.extra_window();
        assert!(extra >= (100 << 10) - WINDOW_INITIAL, "{extra}");
    }
}

#[test]
fn credit_that_was_used_up_before_the_return_came_is_granted_when_it_comes() {
    let (mut line, id) = grown();
    line.look(SECOND);
    line.look(SECOND);
    line.write(id, 1 << 20);
    line.send();
    // The return comes last.
    let is_return = |item: &Item| matches!(item, Item::Return(..));
    line.wire.sort_by_key(is_return);
    assert!(line.wire.last().is_some_and(is_return), "{:?}", line.wire);
    let returned = line.wire.pop().unwrap();
    line.settle();
    let before = line.written(id);
    line.write(id, 1 << 20);
    assert_eq!(line.written(id), before, "it has used up its credit");
    line.deliver(returned, false);
    line.settle();
    line.write(id, 1 << 20);
    assert!(line.written(id) > before);
}

#[test]
fn peer_cannot_return_what_was_not_granted_or_has_been_used() {
    let (mut line, id) = grown();
    let granted = line.streams.granted(id).unwrap();
    for returned in [u64::MAX, granted, granted - line.written(id) + 1] {
        let outcome = line.streams.on_return(id, returned);
        assert_eq!(outcome, Err(StreamViolation::OverCredit), "{returned}");
        line.check();
    }
    let all = granted - line.written(id);
    assert_eq!(line.streams.on_return(id, all), Ok(()));
    line.check();
    // Old news.
    let after = line.streams.granted(id);
    assert_eq!(line.streams.on_return(id, all - 1), Ok(()));
    assert_eq!(line.streams.granted(id), after);
}

#[test]
fn a_window_shrinks_to_what_is_missing_before_a_known_end() {
    let (mut line, id) = grown();
    let (from, end) = (line.written(id), line.written(id) + 100_000);
    let last = [7; 1000];
    let taken = line.take(id, end - 1000, &last, true);
    assert!(matches!(taken, Some(Ok(_))));
    line.check_extra(id, 100_000 - WINDOW_INITIAL);
    let rest = vec![7; (end - 1000 - from) as usize];
    let taken = line.take(id, from, &rest, false);
    assert!(matches!(taken, Some(Ok(_))));
    line.consume(id, usize::MAX);
    line.check_extra(id, 0);
}

impl Line {
    fn check_extra(&self, id: StreamId, expected: u64) {
        assert_eq!(self.streams.open[&id].half.extra_window(), expected);
        assert_eq!(self.extra(), expected);
    }
}

#[test]
fn stream_without_memory_is_reset_alone() {
    let mut line = Line::new();
    let arrived = |offset| ArrivedBytes {
        offset,
        data: b"a",
        fin: false,
        path: None,
    };
    let few = line
        .streams
        .on_data(Line::id(0), arrived(9), SpareMemory::of_default(100));
    assert!(matches!(few, Some(Ok(_))));
    let many = line
        .streams
        .on_data(Line::id(1), arrived(999), SpareMemory::of_default(100));
    assert_eq!(many, Some(Err(StreamViolation::Memory)));
    line.streams.remove(Line::id(1));
    line.streams.check_invariants();
    // What is left of a window that has grown was promised.
    let (mut line, id) = grown();
    let next = arrived(line.written(id));
    let promised = line.streams.on_data(id, next, SpareMemory::of_default(0));
    assert!(matches!(promised, Some(Ok(_))));
}
