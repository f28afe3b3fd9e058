//! Streams as a driver sees them.

use keiro_core::{
    AggregationConfig, AggregationMode, DeliveryClass, ResetReason, SendError, StreamId,
    StreamSignal,
};

use super::{aggregates::fixed_copies, *};

impl Pair {
    /// Reads what every stream has, as a driver does after its signals.
    pub(super) fn read_streams(&mut self, side: usize) {
        let (end, peer) = (&mut self.ends[side], self.peers[side]);
        let streams: BTreeSet<StreamId> = self.sides[side].signals.iter().map(|s| s.0).collect();
        for stream in streams.difference(&self.sides[side].stalled.clone()) {
            let Some((first, second, ended)) = end.stream_data(peer, *stream) else {
                continue;
            };
            let bytes = [first, second].concat();
            if bytes.is_empty() && !ended {
                continue;
            }
            end.consume_stream(self.now, peer, *stream, bytes.len());
            let read = self.sides[side].read.entry(*stream).or_default();
            read.0.extend(bytes);
            read.1 |= ended;
        }
    }

    fn open(&mut self, side: usize) -> StreamId {
        let (end, peer) = (&mut self.ends[side], self.peers[side]);
        end.open_stream(self.now, peer, AppId::of_name(APP), None)
            .expect("there is room")
    }

    fn write(&mut self, side: usize, stream: StreamId, bytes: &[u8]) -> usize {
        self.ends[side]
            .write_stream(self.now, self.peers[side], stream, bytes)
            .expect("the stream is open")
    }

    fn finish(&mut self, side: usize, stream: StreamId) {
        self.ends[side].finish_stream(self.now, self.peers[side], stream);
    }

    /// Writes all of `bytes`, whenever there is room.
    pub(super) fn write_all(&mut self, side: usize, stream: StreamId, bytes: &[u8]) {
        let mut written = 0;
        while written < bytes.len() {
            written += self.write(side, stream, &bytes[written..]);
            let seen = self.sides[side].signals.len();
            let writable = move |pair: &Pair| {
                let new = &pair.sides[side].signals[seen..];
                new.contains(&(stream, StreamSignal::Writable))
            };
            if written < bytes.len() {
                assert!(
                    self.run(Duration::from_secs(5), writable),
                    "room comes after {written}"
                );
            }
        }
    }

    /// The peer's name for our first stream.
    fn accepted(&self, side: usize) -> StreamId {
        let opened = |(stream, signal): &(StreamId, StreamSignal)| {
            matches!(signal, StreamSignal::Opened { .. }).then_some(*stream)
        };
        self.sides[side]
            .signals
            .iter()
            .find_map(opened)
            .expect("a stream was opened")
    }

    fn opened(&mut self) -> (StreamId, StreamId) {
        self.up();
        let ours = self.open(0);
        let known = |pair: &Pair| !pair.sides[1].signals.is_empty();
        assert!(self.run(Duration::from_secs(1), known));
        (ours, self.accepted(1))
    }

    fn streams(&self, side: usize) -> usize {
        let session = self.ends[side].session(self.peers[side]).unwrap();
        session.stats.open_streams as usize
    }

    fn was_reset(&self, side: usize, stream: StreamId) -> Option<ResetReason> {
        self.sides[side]
            .signals
            .iter()
            .find_map(|signal| match *signal {
                (of, StreamSignal::Reset(reason)) if of == stream => Some(reason),
                _ => None,
            })
    }
}

const SECOND: Duration = Duration::from_secs(1);

/// As many as may be.
const STREAMS_MAX: usize = 16_384;

/// As many streams of side 0 as may be, of which the other side does not know yet; the first of them.
fn with_all_streams() -> (Pair, StreamId) {
    let rate = Bandwidth::from_mbit_per_second(100);
    let mut pair = Pair::with_config(DeliveryClass::Stream, rate, |_| {});
    pair.up();
    let first = pair.open(0);
    for _ in 1..STREAMS_MAX {
        pair.open(0);
    }
    (pair, first)
}

fn all_known(pair: &Pair) -> bool {
    pair.streams(1) == STREAMS_MAX
}

#[test]
fn stream_limit_blocks_opens_until_one_has_ended() {
    let (mut pair, first) = with_all_streams();
    let (app, now, peer) = (AppId::of_name(APP), pair.now, pair.peers[0]);
    let refused = pair.ends[0].open_stream(now, peer, app, None);
    assert_eq!(refused, Err(SendError::QueueFull));
    assert!(pair.run(60 * SECOND, all_known));
    pair.ends[0].reset_stream(peer, first, ResetReason::Application);
    let one_less = |pair: &Pair| pair.streams(0) == STREAMS_MAX - 1;
    assert!(pair.run(60 * SECOND, one_less));
    pair.open(0);
    assert!(pair.run(60 * SECOND, all_known));
}

#[test]
fn stream_opened_before_another_is_known_to_end_exceeds_the_limit() {
    let (mut pair, first) = with_all_streams();
    assert!(pair.run(60 * SECOND, all_known));
    let peer = pair.peers[0];
    pair.loses = |_| true;
    pair.ends[0].reset_stream(peer, first, ResetReason::Application);
    assert!(!pair.run(Duration::from_micros(500), |_| false));
    pair.loses = |_| false;
    let late = pair.open(0);
    let is_refused = |pair: &Pair| pair.was_reset(0, late) == Some(ResetReason::TooMany);
    assert!(pair.run(SECOND, is_refused));
    let gone = |pair: &Pair| pair.streams(1) == STREAMS_MAX - 1;
    assert!(pair.run(SECOND, gone));
    pair.open(0);
    assert!(pair.run(SECOND, all_known));
}

#[test]
fn what_small_exchanges_send_does_not_grow_with_what_was_lost_long_ago() {
    let rate = Bandwidth::from_mbit_per_second(100);
    let mut pair = Pair::with_config(DeliveryClass::Stream, rate, |endpoint| {
        endpoint.probe_share = Probability::ZERO;
    });
    let (ours, theirs) = pair.opened();
    pair.loses = |sent| sent % 50 == 0;
    let exchange = |pair: &mut Pair, count: usize| {
        for _ in 0..count {
            let come = pair.sides[0].read.get(&ours).map_or(0, |read| read.0.len());
            let gone = pair.sides[1]
                .read
                .get(&theirs)
                .map_or(0, |read| read.0.len());
            pair.write(0, ours, &[7; 64]);
            let asked = |pair: &Pair| pair.sides[1].read[&theirs].0.len() == gone + 64;
            assert!(
                pair.run(SECOND, |pair| pair.sides[1].read.contains_key(&theirs)
                    && asked(pair))
            );
            pair.write(1, theirs, &[8; 64]);
            let answered = |pair: &Pair| {
                let read = pair.sides[0].read.get(&ours);
                read.is_some_and(|read| read.0.len() == come + 64)
            };
            assert!(pair.run(SECOND, answered));
        }
    };
    let sent = |pair: &Pair| {
        let path = &pair.ends[0].session(pair.peers[0]).unwrap().paths[1];
        (path.stats.sent_packets, path.stats.sent_bytes)
    };
    exchange(&mut pair, 2000);
    let before = sent(&pair);
    exchange(&mut pair, 200);
    let after = sent(&pair);
    let mean = (after.1 - before.1) / (after.0 - before.0);
    // 64 bytes, some 55 of headers and tag, and an acknowledgement of one or two ranges.
    assert!(mean < 150, "{mean} bytes in a packet");
}

#[test]
fn a_stream_opens_before_its_first_byte_and_carries_both_ways() {
    let mut pair = Pair::new(DeliveryClass::Stream);
    let (ours, theirs) = pair.opened();
    assert!(ours.is_ours() && !theirs.is_ours());
    pair.write(1, theirs, b"hello, I speak first");
    let heard = |pair: &Pair| pair.sides[0].read.contains_key(&ours);
    assert!(pair.run(SECOND, heard));
    assert_eq!(pair.sides[0].read[&ours].0, b"hello, I speak first");
    let long = body(3 << 20);
    pair.write_all(0, ours, &long);
    pair.finish(0, ours);
    let ended = |pair: &Pair| pair.sides[1].read.get(&theirs).is_some_and(|read| read.1);
    assert!(pair.run(SECOND, ended));
    assert!(pair.sides[1].read[&theirs].0 == long);
}

#[test]
fn half_closed_stream_goes_on_and_leaves_no_state() {
    let mut pair = Pair::new(DeliveryClass::Stream);
    let (ours, theirs) = pair.opened();
    pair.write(0, ours, b"question");
    pair.finish(0, ours);
    let asked = |pair: &Pair| pair.sides[1].read.get(&theirs).is_some_and(|read| read.1);
    assert!(pair.run(SECOND, asked));
    pair.run(SECOND, |_| false);
    pair.write(1, theirs, b"answer");
    pair.finish(1, theirs);
    let gone = |pair: &Pair| pair.streams(0) == 0 && pair.streams(1) == 0;
    assert!(pair.run(SECOND, gone));
    assert_eq!(pair.sides[0].read[&ours], (b"answer".to_vec(), true));
    assert!(pair.was_reset(0, ours).is_none() && pair.was_reset(1, theirs).is_none());
}

#[test]
fn a_reset_ends_both_directions_at_once_with_its_reason() {
    let mut pair = Pair::new(DeliveryClass::Stream);
    let (ours, theirs) = pair.opened();
    pair.write(0, ours, b"lost on the way, maybe");
    let peer = pair.peers[1];
    pair.ends[1].reset_stream(peer, theirs, ResetReason::Refused);
    let was_reset = |pair: &Pair| pair.was_reset(0, ours).is_some();
    assert!(pair.run(SECOND, was_reset));
    assert_eq!(pair.was_reset(0, ours), Some(ResetReason::Refused));
    assert_eq!((pair.streams(0), pair.streams(1)), (0, 0));
    let (end, peer) = (&mut pair.ends[0], pair.peers[0]);
    assert_eq!(end.write_stream(pair.now, peer, ours, b"x"), None);
}

impl Pair {
    fn reset_behind(&mut self, side: usize, stream: StreamId) {
        let peer = self.peers[side];
        self.ends[side].reset_stream_behind(self.now, peer, stream, ResetReason::Application);
    }

    /// Bytes of streams that wait to be sent or acknowledged, and that wait to be read.
    fn stream_bytes(&self, side: usize) -> (u64, u64) {
        let session = self.ends[side].session(self.peers[side]).unwrap();
        (
            session.stats.queued_stream_bytes,
            session.stats.unread_stream_bytes,
        )
    }
}

#[test]
fn bytes_written_before_a_reset_arrive_before_it() {
    let losses: [fn(u64) -> bool; 3] = [|_| false, |_| true, |sent| sent % 3 == 0];
    for (index, loses) in losses.into_iter().enumerate() {
        let mut pair = Pair::new(DeliveryClass::Stream);
        let (ours, theirs) = pair.opened();
        let all = body(5000);
        pair.loses = loses;
        pair.write(1, theirs, &all);
        // Exactly these packets get lost, or every third of all.
        pair.run(Duration::ZERO, |_| false);
        pair.reset_behind(1, theirs);
        let (end, peer) = (&mut pair.ends[1], pair.peers[1]);
        assert_eq!(end.write_stream(pair.now, peer, theirs, b"x"), None);
        assert_eq!(end.stream_data(peer, theirs), None);
        pair.run(Duration::ZERO, |_| false);
        if index == 1 {
            pair.loses = |_| false;
        }
        let was_reset = |pair: &Pair| pair.was_reset(0, ours).is_some();
        assert!(pair.run(2 * SECOND, was_reset), "losses {index}");
        assert!(pair.sides[0].read[&ours].0 == all, "losses {index}");
        assert_eq!(pair.was_reset(0, ours), Some(ResetReason::Application));
        let gone = |pair: &Pair| pair.streams(0) + pair.streams(1) == 0;
        assert!(pair.run(SECOND, gone));
        assert_eq!(
            pair.was_reset(1, theirs),
            None,
            "the side that resets gets no signal"
        );
    }
}

#[test]
fn data_of_the_peer_after_our_reset_is_discarded() {
    let mut pair = Pair::new(DeliveryClass::Stream);
    let (ours, theirs) = pair.opened();
    let all = body(16 << 10);
    pair.write(0, ours, &all);
    pair.write(1, theirs, &all);
    pair.reset_behind(1, theirs);
    let was_reset = |pair: &Pair| pair.was_reset(0, ours).is_some();
    assert!(pair.run(SECOND, was_reset));
    assert!(pair.sides[0].read[&ours].0 == all);
    assert!(!pair.sides[1].read.contains_key(&theirs));
    assert_eq!(pair.stream_bytes(1), (0, 0));
}

#[test]
fn a_reset_waits_for_a_reader_that_has_stopped_but_not_for_long() {
    let mut pair = Pair::new(DeliveryClass::Stream);
    let (ours, theirs) = pair.opened();
    pair.sides[0].stalled.insert(ours);
    pair.write(1, theirs, &body(5000));
    pair.reset_behind(1, theirs);
    let was_reset = |pair: &Pair| pair.was_reset(0, ours).is_some();
    assert!(!pair.run(SECOND, was_reset));
    // The peer has done with it, and nothing more is written.
    assert_eq!((pair.streams(1), pair.stream_bytes(0)), (0, (0, 5000)));
    let (end, peer) = (&mut pair.ends[0], pair.peers[0]);
    assert_eq!(end.stream_room(peer, ours), Some(0));
    // One that reads on gets all.
    end.consume_stream(pair.now, peer, ours, 1000);
    assert!(!pair.run(3 * SECOND / 2, was_reset));
    assert!(pair.run(SECOND, was_reset));
    assert_eq!((pair.streams(0), pair.stream_bytes(0)), (0, (0, 0)));
}

#[test]
fn a_reset_waits_for_a_peer_that_says_nothing_but_not_for_long() {
    let mut pair = Pair::new(DeliveryClass::Stream);
    let (ours, theirs) = pair.opened();
    pair.down = [true; 2];
    pair.write(1, theirs, &body(5000));
    pair.reset_behind(1, theirs);
    pair.run(SECOND, |_| false);
    assert_eq!((pair.streams(1), pair.stream_bytes(1).0), (1, 5000));
    let gone = |pair: &Pair| pair.streams(1) == 0;
    assert!(pair.run(2 * SECOND, gone));
    assert_eq!(pair.stream_bytes(1), (0, 0));
    // The reset itself is sent whenever there is a path again.
    pair.down = [false; 2];
    let was_reset = |pair: &Pair| pair.was_reset(0, ours).is_some();
    assert!(pair.run(20 * SECOND, was_reset));
}

#[test]
fn slow_reader_blocks_only_its_own_writer() {
    let mut pair = Pair::new(DeliveryClass::Stream);
    let (stalled, theirs) = pair.opened();
    pair.sides[1].stalled.insert(theirs);
    let long = body(1 << 20);
    let taken = pair.write(0, stalled, &long);
    assert_eq!(taken, 16 << 10, "the initial window");
    pair.run(SECOND, |_| false);
    assert_eq!(pair.write(0, stalled, &long), 0);
    let kept = |pair: &Pair, side: usize| {
        let session = pair.ends[side].session(pair.peers[side]).unwrap();
        (
            session.stats.queued_stream_bytes,
            session.stats.unread_stream_bytes,
        )
    };
    assert_eq!(kept(&pair, 0), (0, 0));
    assert_eq!(kept(&pair, 1), (0, 16 << 10));
    let quick = pair.open(0);
    pair.write_all(0, quick, &long);
    let arrived = |pair: &Pair| pair.sides[1].read.values().any(|read| read.0 == long);
    assert!(pair.run(SECOND, arrived));
    // It begins to read again.
    pair.sides[1].stalled.clear();
    let writable = |pair: &Pair| {
        pair.sides[0]
            .signals
            .contains(&(stalled, StreamSignal::Writable))
    };
    pair.read_streams(1);
    assert!(pair.run(SECOND, writable));
}

#[test]
fn a_window_follows_rate_and_round_trip() {
    let rate = Bandwidth::from_mbit_per_second(100);
    let mut pair = Pair::with_rate(DeliveryClass::Stream, rate);
    pair.delays = [Duration::from_millis(50); 2];
    let (ours, theirs) = pair.opened();
    let long = body(60 << 20);
    let begun = pair.now;
    pair.write_all(0, ours, &long);
    let all = |pair: &Pair| pair.sides[1].read[&theirs].0.len() == long.len();
    assert!(pair.run(SECOND, all));
    let took = pair.now - begun;
    let floor = rate.transmission_time_ceil(ByteCount::new(60 << 20));
    assert!(took < floor * 12 / 10, "{took:?} against {floor:?}");
}

#[test]
fn streams_that_idle_leave_their_windows_to_one_that_transfers() {
    let rate = Bandwidth::from_mbit_per_second(200);
    let mut pair = Pair::with_rate(DeliveryClass::Stream, rate);
    pair.delays = [Duration::from_millis(20); 2];
    pair.up();
    let transfer = |pair: &mut Pair, bytes: &[u8]| {
        let begun = pair.now;
        let stream = pair.open(0);
        pair.write_all(0, stream, bytes);
        let all = |pair: &Pair| {
            let mut read = pair.sides[1].read.values();
            read.any(|read| read.0.len() == bytes.len())
        };
        assert!(pair.run(5 * SECOND, all));
        let took = pair.now - begun;
        for side in &mut pair.sides {
            side.signals.clear();
            side.read.clear();
        }
        took
    };
    // Each has grown to 4 MiB, and is left open.
    let some = body(3 << 20);
    for _ in 0..40 {
        transfer(&mut pair, &some);
    }
    assert_eq!(pair.streams(1), 40);
    pair.run(3 * SECOND, |_| false);
    let long = body(16 << 20);
    let took = transfer(&mut pair, &long);
    let floor = rate.transmission_time_ceil(ByteCount::new(16 << 20));
    assert!(took < floor * 2, "{took:?} against {floor:?}");
}

#[test]
fn streams_that_pause_go_on_whatever_the_line_does_to_what_they_give_back() {
    let mut pair = Pair::new(DeliveryClass::Stream);
    let (ours, theirs) = pair.opened();
    pair.loses = |sent| sent % 7 == 3;
    pair.doubles = |sent| sent % 5 == 1;
    pair.late = |sent| Duration::from_millis(sent * 13 % 41);
    let some = body(300_000);
    // From pauses in which nothing is given back to those in which all is.
    for pause in (0..40).map(|i| Duration::from_millis(i * 70)) {
        for (side, stream, other) in [(0, ours, theirs), (1, theirs, ours)] {
            pair.write_all(side, stream, &some);
            let all = |pair: &Pair| {
                let read = pair.sides[1 - side].read.get(&other);
                read.is_some_and(|read| read.0.len() == some.len())
            };
            assert!(pair.run(5 * SECOND, all), "after a pause of {pause:?}");
            assert!(pair.sides[1 - side].read[&other].0 == some);
            for side in &mut pair.sides {
                side.signals.clear();
                side.read.clear();
            }
            pair.run(pause, |_| false);
        }
    }
}

#[test]
fn streams_take_turns_and_a_short_one_goes_first() {
    let rate = Bandwidth::from_mbit_per_second(10);
    let mut pair = Pair::with_rate(DeliveryClass::Stream, rate);
    pair.up();
    let long = body(16 << 10);
    let transfers: Vec<StreamId> = (0..50).map(|_| pair.open(0)).collect();
    for transfer in &transfers {
        pair.write(0, *transfer, &long);
    }
    pair.run(Duration::from_millis(200), |_| false);
    let read: Vec<usize> = pair.sides[1]
        .read
        .values()
        .map(|read| read.0.len())
        .collect();
    assert_eq!(read.len(), 50);
    let (least, most) = (read.iter().min().unwrap(), read.iter().max().unwrap());
    assert!(most - least < 3000, "{least} to {most} bytes");
    let key = pair.open(0);
    pair.write(0, key, b"x");
    let begun = pair.now;
    let heard = |pair: &Pair| pair.sides[1].read.values().any(|read| read.0 == b"x");
    assert!(pair.run(SECOND, heard));
    let took = pair.now - begun;
    assert!(
        took < Duration::from_millis(6),
        "{took:?}, 2 ms of them delay"
    );
}

#[test]
fn an_unknown_application_or_class_resets_the_stream() {
    let mut pair = Pair::new(DeliveryClass::Stream);
    pair.up();
    let peer = pair.peers[1];
    pair.ends[1].remove_app(peer, AppId::of_name(APP));
    let ours = pair.open(0);
    let was_reset = |pair: &Pair| pair.was_reset(0, ours).is_some();
    assert!(pair.run(SECOND, was_reset));
    assert_eq!(
        pair.was_reset(0, ours),
        Some(ResetReason::UnknownApplication)
    );
    let mut pair = Pair::new(DeliveryClass::Message);
    pair.up();
    let peer = pair.peers[0];
    let refused = pair.ends[0].open_stream(pair.now, peer, AppId::of_name(APP), None);
    assert_eq!(refused, Err(SendError::UnknownApplication));
}

#[test]
fn a_removed_peer_resets_its_streams() {
    let mut pair = Pair::new(DeliveryClass::Stream);
    let (ours, _) = pair.opened();
    let peer = pair.peers[0];
    let streams = pair.streams(0);
    assert_eq!(streams, 1);
    pair.ends[0].remove_peer(pair.now, peer);
    let (end, now) = (&mut pair.ends[0], pair.now);
    assert_eq!(end.write_stream(now, peer, ours, b"x"), None);
}

#[test]
fn a_restarted_peer_opens_streams_under_new_names_and_takes_many_of_ours() {
    let mut pair = Pair::new(DeliveryClass::Stream);
    let (ours, theirs) = pair.opened();
    // More than may be ahead of what a new incarnation has seen.
    for _ in 0..70 {
        let some: Vec<StreamId> = (0..1000).map(|_| pair.open(0)).collect();
        for stream in some {
            let (end, peer) = (&mut pair.ends[0], pair.peers[0]);
            end.reset_stream(peer, stream, ResetReason::Application);
        }
        pair.run(Duration::from_millis(100), |_| false);
        pair.sides[1].signals.clear();
    }
    let first = pair.open(1);
    pair.run(SECOND, |_| false);
    pair.restart(DeliveryClass::Stream);
    let was_reset = |pair: &Pair| pair.was_reset(0, ours) == Some(ResetReason::Gateway);
    assert!(pair.run(10 * SECOND, was_reset));
    let up = |pair: &Pair| pair.ends[1].is_up(pair.peers[1]);
    assert!(pair.run(10 * SECOND, up));
    let before: Vec<StreamId> = pair.sides[0].signals.iter().map(|s| s.0).collect();
    pair.sides[1].signals.clear();
    let second = pair.open(1);
    assert_eq!(first.number(), second.number());
    let opened = |(stream, signal): &(StreamId, StreamSignal)| {
        matches!(signal, StreamSignal::Opened { .. }) && !before.contains(stream)
    };
    assert!(pair.run(SECOND, |pair| pair.sides[0].signals.iter().any(opened)));
    let again = pair.open(0);
    assert!(again != ours && again.number() == 0);
    pair.write(0, again, b"once more");
    let heard = |pair: &Pair| {
        pair.sides[1]
            .read
            .values()
            .any(|read| read.0 == b"once more")
    };
    assert!(pair.run(SECOND, heard), "after {theirs:?}");
}

#[test]
fn close_of_a_peer_resets_its_streams_at_once() {
    let mut pair = Pair::new(DeliveryClass::Stream);
    let (ours, _) = pair.opened();
    let peer = pair.peers[1];
    pair.ends[1].remove_peer(pair.now, peer);
    let was_reset = |pair: &Pair| pair.was_reset(0, ours) == Some(ResetReason::Gateway);
    assert!(pair.run(Duration::from_millis(50), was_reset));
    assert_eq!(pair.streams(0), 0);
}

#[test]
fn streams_of_a_peer_without_a_path_for_a_minute_end_as_unreachable_on_both_sides() {
    let mut pair = Pair::new(DeliveryClass::Stream);
    let (ours, theirs) = pair.opened();
    pair.down = [true; 2];
    pair.write(0, ours, b"never heard");
    pair.run(59 * SECOND, |_| false);
    assert_eq!((pair.streams(0), pair.streams(1)), (1, 1));
    let ended = |pair: &Pair| pair.streams(0) + pair.streams(1) == 0;
    assert!(pair.run(3 * SECOND, ended), "no stream is left to hang");
    for (side, stream) in [(0, ours), (1, theirs)] {
        let seen = pair.was_reset(side, stream);
        assert_eq!(seen, Some(ResetReason::Unreachable), "side {side}");
    }
    // The peer gets a reset for a stream that it has ended itself, and ignores it.
    pair.down = [false; 2];
    let up = |pair: &Pair| (0..2).all(|side| pair.ends[side].is_up(pair.peers[side]));
    assert!(pair.run(10 * SECOND, up));
    let again = pair.open(0);
    pair.write(0, again, b"heard");
    let heard = |pair: &Pair| pair.sides[1].read.values().any(|read| read.0 == b"heard");
    assert!(pair.run(SECOND, heard));
}

#[test]
fn streams_outlast_two_outages_of_less_than_a_minute_each() {
    let mut pair = Pair::new(DeliveryClass::Stream);
    let (ours, theirs) = pair.opened();
    for byte in 0..2 {
        pair.down = [true; 2];
        pair.write(0, ours, &[byte]);
        pair.run(50 * SECOND, |_| false);
        pair.down = [false; 2];
        let heard = |pair: &Pair| {
            let read = pair.sides[1].read.get(&theirs);
            read.is_some_and(|read| read.0.len() == usize::from(byte) + 1)
        };
        assert!(pair.run(9 * SECOND, heard), "byte {byte}");
    }
    assert_eq!(pair.was_reset(0, ours), None);
}

#[test]
fn a_stream_that_has_not_left_is_not_overtaken_by_all_numbers_there_are() {
    let mut pair = Pair::new(DeliveryClass::Stream);
    pair.up();
    let first = pair.open(0);
    let peer = pair.peers[0];
    for _ in 1..1 << 16 {
        let other = pair.open(0);
        pair.ends[0].reset_stream(peer, other, ResetReason::Application);
    }
    let now = pair.now;
    let more = pair.ends[0].open_stream(now, peer, AppId::of_name(APP), None);
    assert_eq!(more, Err(SendError::QueueFull));
    pair.write(0, first, b"first");
    pair.run(2 * SECOND, |_| false);
    let last = pair.open(0);
    pair.write(0, last, b"last");
    pair.run(SECOND, |_| false);
    let read: Vec<&[u8]> = pair.sides[1]
        .read
        .values()
        .map(|read| &read.0[..])
        .collect();
    assert_eq!(read, [&b"first"[..], b"last"]);
}

#[test]
fn reset_arrives_however_many_streams_came_and_went_before_it() {
    let mut pair = Pair::new(DeliveryClass::Stream);
    let (ours, theirs) = pair.opened();
    pair.down = [true; 2];
    let peer = pair.peers[0];
    for _ in 0..3 * STREAMS_MAX {
        let other = pair.open(0);
        pair.ends[0].reset_stream(peer, other, ResetReason::Application);
    }
    pair.ends[0].reset_stream(peer, ours, ResetReason::Application);
    pair.down = [false; 2];
    let was_reset = |pair: &Pair| pair.was_reset(1, theirs) == Some(ResetReason::Application);
    assert!(pair.run(10 * SECOND, was_reset));
}

#[test]
fn last_packet_is_retransmitted_by_a_probe() {
    let rate = Bandwidth::from_mbit_per_second(100);
    let mut pair = Pair::with_config(DeliveryClass::Stream, rate, |endpoint| {
        endpoint.probe_share = Probability::ZERO;
        // Nothing else asks the peer for a word.
        endpoint.timing.keepalive = Duration::from_secs(1);
    });
    pair.delays = [Duration::from_millis(5); 2];
    let (ours, theirs) = pair.opened();
    let mut all = body(20_000);
    pair.write_all(0, ours, &all);
    for round in 0..40u8 {
        pair.run(Duration::from_micros(100_137), |_| false);
        assert_eq!(pair.sides[1].read[&theirs].0, all);
        let last = [round; 100];
        all.extend(last);
        pair.loses = |_| true;
        let (sent, lost) = pair.counts[0];
        pair.write(0, ours, &last);
        if round == 39 {
            pair.finish(0, ours);
        }
        pair.run(Duration::ZERO, |_| false);
        assert_eq!(pair.counts[0], (sent + 1, lost + 1), "this packet alone");
        pair.loses = |_| false;
        let begun = pair.now;
        let whole = |pair: &Pair| pair.sides[1].read[&theirs].0.len() == all.len();
        assert!(pair.run(SECOND, whole));
        let took = pair.now - begun;
        // A round trip of 10 ms, in which no answer came, and 5 ms on the way.
        let range = Duration::from_millis(15)..Duration::from_millis(30);
        assert!(range.contains(&took), "{took:?} in round {round}");
    }
    assert!(pair.run(SECOND, |pair| pair.sides[1].read[&theirs].1));
    assert!(pair.sides[1].read[&theirs].0 == all);
}

#[test]
fn single_bytes_leave_an_idle_path_at_once() {
    let eager = AggregationConfig {
        mode: AggregationMode::Eager,
        ..AggregationConfig::default()
    };
    for (config, most_us) in [
        (eager, 2050),
        (fixed_copies(AggregationMode::Eager, 1), 2050),
        (fixed_copies(AggregationMode::Eager, 2), 2050),
        (fixed_copies(AggregationMode::Fixed, 2), 3100),
    ] {
        let rate = Bandwidth::from_mbit_per_second(100);
        let mut pair = Pair::with_config(DeliveryClass::Stream, rate, |endpoint| {
            endpoint.aggregation = config.clone();
        });
        let (ours, theirs) = pair.opened();
        // MTU probes and challenges are over.
        pair.run(SECOND, |_| false);
        let gathered = pair.aggregation().stats.sent_aggregates;
        let mut longest = Duration::ZERO;
        for number in 0..100 {
            pair.run(Duration::from_micros(5000 + 137 * number), |_| false);
            let begun = pair.now;
            pair.write(0, ours, b"x");
            let there = |pair: &Pair| {
                let read = pair.sides[1].read.get(&theirs);
                read.is_some_and(|read| read.0.len() as u64 == number + 1)
            };
            assert!(pair.run(SECOND, there));
            longest = longest.max(pair.now - begun);
        }
        let mode = config.mode;
        let range = Duration::from_micros(2000)..Duration::from_micros(most_us);
        assert!(range.contains(&longest), "{mode:?}: {longest:?}");
        assert!(mode == AggregationMode::Eager || longest > Duration::from_micros(2500));
        assert!(pair.aggregation().stats.sent_aggregates > gathered + 90);
    }
}

#[test]
fn delays_of_writes_to_a_stream_are_those_until_all_of_them_has_arrived() {
    let lossless: fn(u64) -> bool = |_| false;
    // With losses, repair is part of them.
    for (loses, least) in [(lossless, 95), (|sent| sent % 20 == 7, 60)] {
        let mut pair = Pair::new(DeliveryClass::Stream);
        pair.delays = [Duration::from_millis(10); 2];
        pair.line = Some(Bandwidth::from_mbit_per_second(20));
        let (ours, theirs) = pair.opened();
        pair.loses = loses;
        let some = body(30_000);
        let (mut had, mut measured, mut samples) = (0.0, 0.0, 0);
        for round in 1..=100 {
            let begun = pair.now;
            pair.write_all(0, ours, &some);
            let all = |pair: &Pair| {
                let read = pair.sides[1].read.get(&theirs);
                read.is_some_and(|read| read.0.len() == round * some.len())
            };
            assert!(pair.run(5 * SECOND, all));
            let took = (pair.now - begun).as_secs_f64();
            pair.run(Duration::from_millis(50), |_| false);
            while let Some(sample) = pair.ends[0].poll_delay_sample() {
                measured += sample.delay.as_secs_f64();
                had += took;
                samples += 1;
            }
        }
        assert!(samples >= least, "{samples}");
        assert!(
            (measured / had - 1.0).abs() < 0.1,
            "{measured} s of {had} s in {samples}"
        );
    }
}
