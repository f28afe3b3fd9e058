//! Units in their queues: order, turns, bounds.

use super::*;
use proptest::prelude::*;

const APP: AppId = AppId(1);
const PATH: PathId = PathId(0);

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

fn outgoing(scheduler: SchedulerKind) -> Outgoing {
    let mut outgoing = Outgoing::new(scheduler, 1 << 30);
    outgoing.on_credit(1 << 40, |_| None);
    outgoing
}

fn push(out: &mut Outgoing, made_ms: u64, demand_ms: Option<u64>, len: usize) -> u64 {
    let demand = demand_ms.map(Duration::from_millis);
    out.push_message(APP, vec![0; len], at(made_ms), (demand, None), Some(PATH))
}

/// Sends everything in parts of `max`; local ids in the order of their parts.
fn drain(out: &mut Outgoing, max: usize) -> Vec<u64> {
    let mut order = Vec::new();
    while let Some((Unit::Message(id), _)) = out.first(PATH, TenantId::ZERO, true) {
        let part = out.next_part(id, max).expect("a ready message has a part");
        out.begin(id);
        out.on_part_sent(PATH, id, part);
        order.push(id);
    }
    order
}

proptest! {
    #[test]
    fn earliest_deadline_leaves_first(units in proptest::collection::vec(
        (0u64..100, proptest::option::of(1u64..500), 1usize..50), 1..40)) {
        let mut out = outgoing(SchedulerKind::Deadline);
        let mut expected: Vec<(u64, u64)> = Vec::new();
        for (made, demand, len) in units {
            let id = push(&mut out, made, demand, len);
            expected.push((demand.map_or(u64::MAX, |demand| made + demand), id));
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
    let mut out = outgoing(SchedulerKind::Fifo);
    push(&mut out, 5, Some(500), 10);
    push(&mut out, 0, Some(1), 10);
    assert_eq!(drain(&mut out, 100), [0, 1]);
}

#[test]
fn lost_parts_are_sent_again_unless_acknowledged() {
    let mut out = outgoing(SchedulerKind::Deadline);
    let id = push(&mut out, 0, None, 100);
    drain(&mut out, 50);
    out.on_acked(id, 0, 50);
    out.on_lost(id, 0, 60, Some(PATH));
    assert_eq!(
        out.next_part(id, 100),
        Some(Part {
            start: 50,
            end: 60,
            repair: true
        })
    );
    assert_eq!(out.waiting_bytes(PATH), 10);
    out.on_acked(id, 50, 60);
    assert_eq!(out.first(PATH, TenantId::ZERO, true), None);
    assert_eq!(out.waiting_bytes(PATH), 0);
}

#[test]
fn message_without_credit_waits_and_lets_others_pass() {
    let mut out = Outgoing::new(SchedulerKind::Deadline, 1 << 30);
    out.on_credit(CREDIT_PER_MESSAGE + 10, |_| None);
    let large = push(&mut out, 0, Some(1), 11);
    let small = push(&mut out, 0, Some(2), 10);
    assert_eq!(drain(&mut out, 100), [small]);
    out.on_credit(1000, |_| Some(PATH));
    assert_eq!(drain(&mut out, 100), [large]);
}

#[test]
fn moved_application_waits_elsewhere() {
    let mut out = outgoing(SchedulerKind::Deadline);
    push(&mut out, 0, None, 10);
    out.move_app(APP, Some(PATH), Some(PathId(1)));
    assert_eq!(out.first(PATH, TenantId::ZERO, true), None);
    assert_eq!(
        out.first(PathId(1), TenantId::ZERO, true),
        Some((Unit::Message(0), Lane::Plain))
    );
    assert_eq!(
        (out.waiting_bytes(PATH), out.waiting_bytes(PathId(1))),
        (0, 10)
    );
}

#[test]
fn full_datagram_queue_drops_the_oldest() {
    let mut out = outgoing(SchedulerKind::Deadline);
    let data = vec![0; 60_000];
    let dropped = (0..40)
        .map(|_| {
            out.push_datagram(at(0), (APP, FlowId(0), false, &data), None, Some(PATH))
                .len()
        })
        .sum::<usize>();
    assert_eq!(dropped, 40 - DATAGRAM_BYTES_MAX / 60_000);
    let first = out.first(PATH, TenantId::ZERO, true);
    assert_eq!(first, Some((Unit::Datagram(dropped as u64), Lane::Plain)));
}

#[test]
fn an_opening_that_only_seemed_lost_holds_nobody_up() {
    let mut out = outgoing(SchedulerKind::Deadline);
    let [early, late] = [0, 1].map(|number| {
        let id = StreamId::of_ours(0, number);
        let stream = OutStream::new(APP, None, Some(None));
        out.insert_stream(at(number), id, stream, Some(PATH));
        id
    });
    let stream = out.streams.get_mut(&early).expect("it is open");
    stream.on_open_sent();
    out.on_stream_opened(at(2), PATH, early);
    out.on_stream_open_lost(at(3), early, Some(PATH));
    let first = out.first(PATH, TenantId::ZERO, true).map(|(unit, _)| unit);
    assert_eq!(first, Some(Unit::Stream(early)), "what was lost goes first");
    out.on_stream_open_acked(early);
    let first = out.first(PATH, TenantId::ZERO, true).map(|(unit, _)| unit);
    assert_eq!(first, Some(Unit::Stream(late)));
}
