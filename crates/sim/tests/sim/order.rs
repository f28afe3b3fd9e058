//! The order in which waiting messages are served: by deadline, or first in first out.

use std::time::Duration;

use keiro_core::SchedulerKind;
use keiro_sim::{Arrivals, GatewayPair, Length, PathSpec, Report, Scenario};
use keiro_units::{Bandwidth, Instant};
use proptest::prelude::*;

const MS: Duration = Duration::from_millis(1);

fn once() -> Arrivals {
    Arrivals::Every {
        interval: Duration::ZERO,
        count: 1,
    }
}

/// One message each, with these latency targets, lengths and times, over 10 Mbit/s.
fn run(scheduler: SchedulerKind, messages: &[(Option<Duration>, usize, Duration)]) -> Report {
    let path = PathSpec::new(Bandwidth::from_mbit_per_second(10), 5 * MS);
    let mut scenario = Scenario::new(vec![path]);
    scenario.a.scheduler = scheduler;
    for (latency_target, length, start) in messages {
        let app = scenario.add_message_app(*latency_target, &[0]);
        scenario.add_traffic(app, once(), Length::Fixed(*length));
        scenario.traffic[app].start = *start;
    }
    let report = GatewayPair::new(&scenario, 1).run();
    report.assert_complete();
    report
}

/// Applications in the order in which their messages were delivered.
fn order(report: &Report) -> Vec<usize> {
    let mut messages: Vec<_> = report.messages.iter().collect();
    messages.sort_by_key(|message| message.delivered_at);
    messages.iter().map(|message| message.app).collect()
}

#[test]
fn earliest_deadline_overtakes_a_large_message() {
    let report = run(
        SchedulerKind::Deadline,
        &[
            (None, 1_000_000, Duration::ZERO),
            (Some(20 * MS), 1000, 100 * MS),
        ],
    );
    let urgent = report.messages_of(1).next().unwrap().delay().unwrap();
    // 5 ms of path, 1 ms of its own, and at most a burst that has already begun.
    assert!(urgent <= 9 * MS, "{urgent:?}\n{report}");
}

#[test]
fn fifo_serves_in_order_of_acceptance() {
    let report = run(
        SchedulerKind::Fifo,
        &[
            (None, 1_000_000, Duration::ZERO),
            (Some(20 * MS), 1000, 100 * MS),
            (Some(MS), 5000, 100 * MS),
        ],
    );
    assert_eq!(order(&report), [0, 1, 2], "{report}");
    let urgent = report.messages_of(1).next().unwrap().delay().unwrap();
    assert!(urgent >= 600 * MS, "{urgent:?}\n{report}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// All wait behind a first message. From then on the earliest deadline wins, and messages without latency
    /// target come last, in order.
    #[test]
    fn earliest_deadline_wins(
        messages in prop::collection::vec(
            (prop::option::of(200..2000_u64), 3000..30_000_usize, 1..20_u64), 2..12),
    ) {
        let mut all = vec![(Some(MS), 60_000, Duration::ZERO)];
        all.extend(messages.iter().map(|(latency_target, length, start)| {
            (latency_target.map(Duration::from_millis), *length, Duration::from_millis(*start))
        }));
        let report = run(SchedulerKind::Deadline, &all);
        let key = |app: usize| {
            let (latency_target, _, start) = all[app];
            let deadline = latency_target.map(|latency_target| Instant::ZERO + start + latency_target);
            (deadline.is_none(), deadline, start, app)
        };
        let order = order(&report);
        for pair in order.windows(2) {
            // With equal deadlines, the first message goes first.
            prop_assert!(key(pair[0]) <= key(pair[1]), "{:?}\n{}", order, report);
        }
    }

    /// The same messages first in first out, as in the paper.
    #[test]
    fn fifo_never_reorders(
        messages in prop::collection::vec(
            (prop::option::of(1..2000_u64), 1..30_000_usize, 0..50_u64), 2..12),
    ) {
        let mut all: Vec<_> = messages.iter().map(|(latency_target, length, start)| {
            (latency_target.map(Duration::from_millis), *length, Duration::from_millis(*start))
        }).collect();
        all.sort_by_key(|(_, _, start)| *start);
        let report = run(SchedulerKind::Fifo, &all);
        let ids: Vec<_> = report.messages.iter().map(|message| message.id).collect();
        let mut delivered: Vec<_> = report.messages.iter().collect();
        delivered.sort_by_key(|message| (message.delivered_at, message.id));
        let delivered: Vec<_> = delivered.iter().map(|message| message.id).collect();
        prop_assert_eq!(ids, delivered, "{}", report);
    }
}
