//! Units in their queues: order, turns, bounds.

use super::{
    datagrams::{DATAGRAM_BYTES_MAX, DATAGRAMS_MAX},
    *,
};
use crate::{id::FlowId, wire::CREDIT_PER_MESSAGE};
use proptest::prelude::*;

const APP: AppId = AppId(1);
const PATH: PathId = PathId(0);

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

fn queues(scheduler: SchedulerKind) -> SendQueues {
    let mut queues = SendQueues::new(scheduler, 1 << 30);
    queues.on_credit(1 << 40, |_| None);
    queues
}

fn datagram(data: &[u8]) -> NewDatagram<'_> {
    NewDatagram::new(APP, FlowId(0), at(0), data)
}

fn push(out: &mut SendQueues, made_ms: u64, latency_target_ms: Option<u64>, len: usize) -> u64 {
    let latency_target = latency_target_ms.map(Duration::from_millis);
    let message = NewMessage {
        app: APP,
        body: vec![0; len],
        made: at(made_ms),
        latency_target,
        lifetime: None,
    };
    out.push_message(message, Some(PATH))
}

/// Sends everything in parts of `max`; local ids in the order of their parts.
fn drain(out: &mut SendQueues, max: usize) -> Vec<u64> {
    let mut order = Vec::new();
    while let Some((SendItem::Message(id), _)) = out.first(PATH, TenantId::ZERO, true) {
        let part = out
            .messages
            .next_part(id, max)
            .expect("a ready message has a part");
        out.messages.begin(id);
        out.on_part_sent(PATH, id, part);
        out.check_invariants();
        order.push(id);
    }
    order
}

proptest! {
    #[test]
    fn earliest_deadline_leaves_first(items in proptest::collection::vec(
        (0u64..100, proptest::option::of(1u64..500), 1usize..50), 1..40)) {
        let mut out = queues(SchedulerKind::Deadline);
        let mut expected: Vec<(u64, u64)> = Vec::new();
        for (made, latency_target, len) in items {
            let id = push(&mut out, made, latency_target, len);
            expected.push((latency_target.map_or(u64::MAX, |latency_target| made + latency_target), id));
        }
        expected.sort_unstable();
        let expected: Vec<u64> = expected.into_iter().map(|(_, id)| id).collect();
        let mut order = drain(&mut out, 10);
        order.dedup();
        prop_assert_eq!(order, expected);
        prop_assert_eq!(out.waiting_bytes(PATH), 0);
    }
}

#[test]
fn fifo_ignores_deadlines() {
    let mut out = queues(SchedulerKind::Fifo);
    push(&mut out, 5, Some(500), 10);
    push(&mut out, 0, Some(1), 10);
    assert_eq!(drain(&mut out, 100), [0, 1]);
}

#[test]
fn lost_parts_are_sent_again_unless_acknowledged() {
    let mut out = queues(SchedulerKind::Deadline);
    let id = push(&mut out, 0, None, 100);
    drain(&mut out, 50);
    out.on_acked(id, 0, 50);
    out.on_lost(id, 0, 60, Some(PATH));
    assert_eq!(
        out.messages.next_part(id, 100),
        Some(MessageRange {
            start: 50,
            end: 60,
            is_retransmit: true
        })
    );
    assert_eq!(out.waiting_bytes(PATH), 10);
    out.on_acked(id, 50, 60);
    assert_eq!(out.first(PATH, TenantId::ZERO, true), None);
    assert_eq!(out.waiting_bytes(PATH), 0);
}

#[test]
fn message_without_credit_waits_and_lets_others_pass() {
    let mut out = SendQueues::new(SchedulerKind::Deadline, 1 << 30);
    out.on_credit(CREDIT_PER_MESSAGE + 10, |_| None);
    let large = push(&mut out, 0, Some(1), 11);
    let small = push(&mut out, 0, Some(2), 10);
    assert_eq!(drain(&mut out, 100), [small]);
    out.on_credit(1000, |_| Some(PATH));
    assert_eq!(drain(&mut out, 100), [large]);
}

fn push_of(out: &mut SendQueues, app: u32, len: usize) -> u64 {
    let message = NewMessage {
        app: AppId(app),
        body: vec![0; len],
        made: at(0),
        latency_target: None,
        lifetime: None,
    };
    out.push_message(message, Some(PATH))
}

/// The peer finishes a message that was sent whole.
fn finish(out: &mut SendQueues, id: u64) {
    let message = out.messages.get(id).expect("it has not ended");
    let wire_id = message.wire_id.expect("it has begun");
    let (_, message) = out.finish(wire_id).expect("it has not ended");
    out.on_message_ended(message.app, Some(PATH));
    out.check_invariants();
}

#[test]
fn applications_that_never_end_their_messages_leave_credit_to_the_others() {
    const CHARGE: u64 = CREDIT_PER_MESSAGE + 744;
    for stalled in 1..5 {
        let mut out = SendQueues::new(SchedulerKind::Deadline, 1 << 30);
        out.on_credit(1024 * CHARGE, |_| None);
        for app in 1..=stalled {
            for _ in 0..3 * (1024 >> (2 * app)) + 10 {
                push_of(&mut out, app, 744);
            }
        }
        drain(&mut out, 1000);
        // Each takes three quarters of what the others have left.
        let begun = (1..=stalled).map(|app| out.messages.begun_by(AppId(app)) / CHARGE);
        let begun: Vec<u64> = begun.collect();
        let expected: Vec<u64> = (1..=stalled).map(|app| 3 * (1024 >> (2 * app))).collect();
        assert_eq!(begun, expected);
        let other = push_of(&mut out, 99, 744);
        assert_eq!(drain(&mut out, 1000), [other]);
        finish(&mut out, other);
    }
}

#[test]
fn message_waits_for_its_share_and_is_not_passed_by_smaller_ones() {
    let mut out = SendQueues::new(SchedulerKind::Deadline, 1 << 30);
    out.on_credit(40_000, |_| None);
    let first: Vec<u64> = (0..30).map(|_| push(&mut out, 0, Some(1), 744)).collect();
    assert_eq!(drain(&mut out, 1000), first);
    let large = push(&mut out, 0, Some(2), 9_000);
    assert_eq!(drain(&mut out, 10_000), []);
    let small = push(&mut out, 0, Some(3), 1);
    first[..9].iter().for_each(|id| finish(&mut out, *id));
    assert_eq!(drain(&mut out, 10_000), []);
    finish(&mut out, first[9]);
    assert_eq!(drain(&mut out, 10_000), [large]);
    finish(&mut out, large);
    assert_eq!(drain(&mut out, 10_000), []);
    first[10..].iter().for_each(|id| finish(&mut out, *id));
    assert_eq!(drain(&mut out, 10_000), [small]);
}

proptest! {
    #[test]
    fn every_message_is_sent_while_the_peer_ends_messages_and_grants_credit(
        lens in proptest::collection::vec((1u32..4, 1usize..9_000), 1..120),
        window in 10_000u64..40_000,
    ) {
        let mut out = SendQueues::new(SchedulerKind::Deadline, 1 << 30);
        let (mut granted, mut returned) = (window, 0);
        out.on_credit(granted, |_| Some(PATH));
        for (app, len) in &lens {
            push_of(&mut out, *app, *len);
        }
        let mut begun = std::collections::VecDeque::new();
        let mut sent = 0;
        while sent < lens.len() {
            begun.extend(drain(&mut out, 10_000));
            let id = begun.pop_front();
            prop_assert!(id.is_some(), "{} of {}", sent, lens.len());
            let id = id.unwrap();
            returned += lens[id as usize].1 as u64 + CREDIT_PER_MESSAGE;
            finish(&mut out, id);
            sent += 1;
            // As a receiver does it.
            let freed = returned + window - granted;
            if freed >= window / 4 || begun.is_empty() {
                granted = returned + window;
                out.on_credit(granted, |_| Some(PATH));
            }
        }
    }
}

#[test]
fn moved_application_queues_on_its_new_path() {
    let mut out = queues(SchedulerKind::Deadline);
    push(&mut out, 0, None, 10);
    out.move_app(APP, Some(PATH), Some(PathId(1)));
    assert_eq!(out.first(PATH, TenantId::ZERO, true), None);
    assert_eq!(
        out.first(PathId(1), TenantId::ZERO, true),
        Some((SendItem::Message(0), Coalescing::No))
    );
    assert_eq!(
        (out.waiting_bytes(PATH), out.waiting_bytes(PathId(1))),
        (0, 10)
    );
}

#[test]
fn full_datagram_queue_drops_the_oldest() {
    let mut out = queues(SchedulerKind::Deadline);
    let data = vec![0; 60_000];
    let dropped = (0..40)
        .map(|_| {
            out.push_datagram(datagram(&data), DatagramNeeds::default(), Some(PATH))
                .len()
        })
        .sum::<usize>();
    assert_eq!(dropped, 40 - DATAGRAM_BYTES_MAX / 60_000);
    let first = out.first(PATH, TenantId::ZERO, true);
    assert_eq!(
        first,
        Some((SendItem::Datagram(dropped as u64), Coalescing::No))
    );
}

#[test]
fn empty_datagrams_are_bounded_too() {
    for len in [0, 1] {
        let mut out = queues(SchedulerKind::Deadline);
        let data = vec![0; len];
        let dropped: usize = (0..DATAGRAMS_MAX + 1000)
            .map(|_| {
                out.push_datagram(datagram(&data), DatagramNeeds::default(), None)
                    .len()
            })
            .sum();
        assert_eq!(
            (dropped, out.datagrams.iter().count()),
            (1000, DATAGRAMS_MAX)
        );
        let waiting = &out
            .ready
            .get((QueuePath::None, TenantId::ZERO))
            .unwrap()
            .plain;
        assert_eq!(waiting.len(), DATAGRAMS_MAX);
    }
}

#[test]
fn spuriously_lost_open_blocks_no_other_stream() {
    let mut out = queues(SchedulerKind::Deadline);
    let [early, late] = [0, 1].map(|number| {
        let id = StreamId::of_ours(0, number);
        let stream = OutStream::new(APP, None, Some(None));
        out.insert_stream(at(number), id, stream, Some(PATH));
        id
    });
    let stream = out.streams.by_id.get_mut(&early).expect("it is open");
    stream.on_open_sent();
    out.on_stream_opened(at(2), PATH, early);
    out.on_stream_open_lost(at(3), early, Some(PATH));
    let first = out.first(PATH, TenantId::ZERO, true).map(|(item, _)| item);
    assert_eq!(
        first,
        Some(SendItem::Stream(early)),
        "what was lost goes first"
    );
    out.on_stream_open_acked(early);
    let first = out.first(PATH, TenantId::ZERO, true).map(|(item, _)| item);
    assert_eq!(first, Some(SendItem::Stream(late)));
}

/// Bytes that a driver has ready for a stream: more than it ever takes.
static PLENTY: [u8; 128 << 10] = [7; 128 << 10];
/// What all streams may keep beyond their initial windows.
const SHARED: u64 = 64 << 20;

/// Opens streams whose peer takes whatever they have.
fn open_streams(out: &mut SendQueues, count: u64) -> Vec<StreamId> {
    let opened = (0..count).map(|number| {
        let id = StreamId::of_ours(0, number);
        out.insert_stream(at(0), id, OutStream::new(APP, None, None), Some(PATH));
        out.on_stream_credit(at(0), id, 1 << 40, Some(PATH));
        id
    });
    opened.collect()
}

fn write_plenty(out: &mut SendQueues, id: StreamId) -> usize {
    out.write_stream(at(0), id, &PLENTY, Some(PATH))
        .expect("it is open")
}

/// The next `max` bytes of a stream leave and arrive.
fn bring_over(out: &mut SendQueues, id: StreamId, max: u64) {
    let part = out.streams.by_id[&id]
        .next_part(max)
        .expect("it has something");
    out.on_stream_part_sent(at(0), PATH, id, part);
    out.on_stream_acked(id, part.range());
}

#[test]
fn thousands_of_streams_keep_no_more_than_their_bound_whatever_they_write() {
    const STREAMS: u64 = 3000;
    let mut out = queues(SchedulerKind::Deadline);
    let ids = open_streams(&mut out, STREAMS);
    let bound = SHARED + STREAMS * (16 << 10);
    let (mut random, mut most, mut least) = (1u64, 0, u64::MAX);
    for round in 0..8 {
        for id in &ids {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            if !out.streams.by_id.contains_key(id) {
                continue;
            }
            match random >> 60 {
                0 if round > 2 => {
                    out.remove_stream(*id);
                }
                1..8 if round > 0 => {
                    let max = random >> 40 & 0xffff;
                    if out.streams.by_id[id].next_part(max + 1).is_some() {
                        bring_over(&mut out, *id, max + 1);
                    }
                    least = least.min(out.streams.bytes);
                }
                _ => {
                    write_plenty(&mut out, *id);
                }
            }
            assert!(out.streams.bytes <= bound, "{} bytes", out.streams.bytes);
            most = most.max(out.streams.bytes);
        }
        let kept: u64 = out.streams.by_id.values().map(OutStream::len).sum();
        assert_eq!(out.streams.bytes, kept);
        out.check_invariants();
    }
    // The first have all that is shared, and so none of their own.
    assert_eq!(most, SHARED + (STREAMS - 512) * (16 << 10));
    assert!(least < SHARED, "{least} bytes");
    for id in ids {
        out.remove_stream(id);
    }
    assert_eq!(out.streams.bytes, 0);
}

#[test]
fn memory_that_is_free_again_wakes_as_many_as_it_is_enough_for_and_each_in_turn() {
    let mut out = queues(SchedulerKind::Deadline);
    let ids = open_streams(&mut out, 812);
    let (full, waiting) = ids.split_at(512);
    for id in full {
        assert_eq!(write_plenty(&mut out, *id), 128 << 10);
    }
    for id in waiting {
        assert_eq!(write_plenty(&mut out, *id), 16 << 10, "its own share");
    }
    assert_eq!(out.take_waiting_for_memory(), [], "there is none");
    let mut rounds = Vec::new();
    'all: for id in full {
        while out.streams.by_id[id].len() > 0 {
            bring_over(&mut out, *id, 1200);
            let woken = out.take_waiting_for_memory();
            assert!(woken.len() <= 1, "{} for one packet", woken.len());
            for id in woken {
                assert_eq!(out.take_writable(id), Some(APP));
                assert!(write_plenty(&mut out, id) <= 1200);
                rounds.push(id);
            }
            if rounds.len() == 2 * waiting.len() {
                break 'all;
            }
        }
    }
    assert_eq!(rounds, [waiting, waiting].concat());
    // One has as much as may wait to be sent, and the next what is left.
    let freed = full.last().expect("there are some");
    out.remove_stream(*freed);
    assert_eq!(out.take_waiting_for_memory(), waiting[..2]);
}

#[test]
fn a_stream_that_was_passed_over_for_having_enough_to_send_waits_on() {
    let mut out = queues(SchedulerKind::Deadline);
    let ids = open_streams(&mut out, 513);
    let (full, last) = (&ids[..511], ids[512]);
    // More than half of what may wait to be sent does when memory runs out.
    let write_some = |out: &mut SendQueues, id, len| {
        let taken = out.write_stream(at(0), id, &PLENTY[..len], Some(PATH));
        assert_eq!(taken, Some(len));
    };
    write_some(&mut out, last, 100 << 10);
    for id in full {
        write_plenty(&mut out, *id);
    }
    write_some(&mut out, ids[511], 28 << 10);
    assert_eq!(write_plenty(&mut out, last), 0);
    out.remove_stream(full[0]);
    assert_eq!(out.take_waiting_for_memory(), [last]);
    assert_eq!(out.take_writable(last), None);
    assert_eq!(out.take_waiting_for_memory(), [last], "it still waits");
    bring_over(&mut out, last, 50 << 10);
    assert_eq!(out.take_writable(last), Some(APP));
    assert_eq!(out.take_waiting_for_memory(), []);
}

#[test]
fn a_path_that_had_to_wait_for_the_others_is_asked_again_when_they_carry_less() {
    let other = PathId(1);
    let mut out = queues(SchedulerKind::Deadline);
    out.set_spread(APP, true, Some(PATH));
    out.set_spread_over([(PATH, 0), (other, 50_000)].into());
    let id = push(&mut out, 0, None, 40_000);
    assert_eq!(out.take_newly_backlogged(other), Some(TenantId::ZERO));
    assert_eq!(out.first(other, TenantId::ZERO, false), None);
    assert!(out.first(PATH, TenantId::ZERO, false).is_some());
    // As often as nothing changes it is not asked.
    out.set_spread_over([(PATH, 0), (other, 50_000)].into());
    assert!(!out.has_newly_backlogged(other));
    out.set_spread_over([(other, 0)].into());
    assert!(out.has_newly_backlogged(other));
    let first = out.first(other, TenantId::ZERO, false);
    assert_eq!(first, Some((SendItem::Message(id), Coalescing::No)));
    out.check_invariants();
}
