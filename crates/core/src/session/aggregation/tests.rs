use super::*;

const RATE: Bandwidth = Bandwidth::from_mbit_per_second(100);
const RTT: Duration = Duration::from_millis(1);

fn aggregator() -> Aggregator {
    let config = AggregationConfig {
        mode: AggregationMode::Eager,
        ..AggregationConfig::default()
    };
    Aggregator::new(&config, RATE, 0)
}

fn capacity(rate: Bandwidth) -> PathCapacity {
    PathCapacity { rate, rtt: RTT }
}

fn report(highest: u64, came: u64, overflows: u64) -> Feedback {
    Feedback {
        path: 0,
        highest,
        aggregates: came,
        copies: came,
        socket_overflows: overflows,
        system_overflows: 0,
        spacing: None,
    }
}

fn at(millis: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(millis)
}

fn send(aggregator: &mut Aggregator, now: Instant, count: u64) {
    for _ in 0..count {
        aggregator.on_sent(now, 100, 1);
    }
}

#[test]
fn overtaken_reports_are_not_counted_twice() {
    let mut aggregator = aggregator();
    send(&mut aggregator, at(0), 100);
    for (millis, highest, came, overflows) in
        [(1, 9, 9, 0), (2, 49, 40, 3), (3, 29, 25, 1), (4, 69, 60, 3)]
    {
        let report = report(highest, came, overflows);
        aggregator.on_feedback(at(millis), report, capacity(RATE), 0);
    }
    let AggregateTotals {
        aggregates,
        socket_overflows,
        ..
    } = aggregator.outcomes.totals();
    assert_eq!(aggregates, DeliveryCounts { sent: 60, lost: 9 });
    assert_eq!(socket_overflows, 3);
}

#[test]
fn totals_continue_when_the_peer_restarts_its_counters() {
    let mut aggregator = aggregator();
    send(&mut aggregator, at(0), 100);
    for (millis, highest, came, overflows) in
        [(1, 9, 9, 7), (2, 19, 18, 8), (3, 29, 28, 0), (4, 39, 38, 2)]
    {
        let report = report(highest, came, overflows);
        aggregator.on_feedback(at(millis), report, capacity(RATE), 0);
    }
    // With another socket; what came with its first word is not known.
    assert_eq!(aggregator.outcomes.totals().socket_overflows, 3);
    assert_eq!(
        aggregator.outcomes.totals().aggregates,
        DeliveryCounts { sent: 20, lost: 1 }
    );
}

#[test]
fn where_nothing_fits_the_bandwidth_the_least_leaves_until_more_fits_again() {
    let mut aggregator = aggregator();
    let mut next = 0;
    let mut period = |aggregator: &mut Aggregator, millis, rate| {
        send(aggregator, at(millis), 100);
        next += 100;
        aggregator.on_feedback(
            at(millis + 60),
            report(next - 1, next, 0),
            capacity(rate),
            0,
        )
    };
    let narrow = Bandwidth::from_bits_per_second(900_000);
    assert!(period(&mut aggregator, 0, RATE).is_none());
    let change = period(&mut aggregator, 100, narrow);
    let Some(Change::Decided(decision)) = change else {
        panic!("{change:?}")
    };
    assert_eq!(decision.parameters, aggregator.limits.smallest());
    assert!(matches!(decision.cause, Cause::Bandwidth { .. }));
    assert_eq!(aggregator.copies(), 1);
    assert!(period(&mut aggregator, 200, narrow).is_none(), "once");
    let change = period(&mut aggregator, 500, RATE);
    assert!(matches!(change, Some(Change::Decided(_))), "{change:?}");
    assert!(aggregator.parameters.rate() > decision.parameters.rate());
}

#[test]
fn what_left_with_another_n_is_not_judged_and_drops_meanwhile_are_reported() {
    let mut aggregator = aggregator();
    assert_eq!(aggregator.copies(), 2);
    let send = |aggregator: &mut Aggregator, now, count| {
        for _ in 0..count {
            let copies = aggregator.copies();
            aggregator.on_sent(now, 100, copies);
        }
    };
    let feedback = |highest, copies, overflows| Feedback {
        copies,
        ..report(highest, highest + 1, overflows)
    };
    // 8000 copies without a loss: one is enough, for what leaves from number 4000 on.
    send(&mut aggregator, at(0), 1);
    aggregator.on_feedback(at(0), feedback(0, 2, 0), capacity(RATE), 0);
    send(&mut aggregator, at(10), 3999);
    let change = aggregator.on_feedback(at(100), feedback(3999, 8000, 0), capacity(RATE), 0);
    assert!(matches!(change, Some(Change::Decided(_))), "{change:?}");
    assert_eq!(
        (aggregator.copies(), aggregator.settles_at),
        (1, Some(4000))
    );
    send(&mut aggregator, at(110), 100);
    // On the way there were more with two copies, as far as the peer knows.
    let since = aggregator.period.since;
    aggregator.on_feedback(at(150), feedback(3999, 8000, 3), capacity(RATE), 0);
    assert_eq!(aggregator.period.since, since);
    aggregator.on_feedback(at(170), feedback(4009, 8010, 5), capacity(RATE), 0);
    assert_eq!(
        (aggregator.period.since, aggregator.settles_at),
        (at(170), None)
    );
    let seen = aggregator.observe(at(300), Duration::from_millis(130), RATE, 0);
    assert_eq!(
        (seen.socket_overflows, seen.socket_overflows_before),
        (0, 5)
    );
}

#[test]
fn a_relieved_peer_gets_s_in_every_interval_and_the_first_at_once() {
    let mut aggregator = aggregator();
    let interval = aggregator.interval();
    let size = aggregator.parameters.size().get();
    aggregator.departures.relieved_from = Some(interval / 2);
    let mut now = at(1);
    for _ in 0..3 {
        assert!(aggregator.may_send(now));
        aggregator.on_sent(now, size / 2, 1);
        assert!(aggregator.may_send(now), "half of S is left");
        assert_eq!(aggregator.room(now), size - size / 2);
        aggregator.on_sent(now, size, 1);
        assert!(!aggregator.may_send(now));
        now += interval;
    }
    // However long it takes until S has left, the next begins an I after the first.
    aggregator.on_sent(now, size / 2, 1);
    aggregator.on_sent(now + interval / 2, size, 1);
    assert!(!aggregator.may_send(now + interval / 2));
    now += interval;
    assert!(aggregator.may_send(now));
    // Where nothing is left, the I is over; and what left long ago takes no room.
    aggregator.on_sent(now, 100, 1);
    aggregator.on_drained(now);
    assert!(!aggregator.may_send(now) && aggregator.may_send(now + interval));
    now += interval;
    aggregator.on_sent(now, 100, 1);
    assert_eq!(aggregator.room(now + interval), size);
}

#[test]
fn aggregation_totals_survive_a_reload() {
    let mut aggregator = aggregator();
    send(&mut aggregator, at(0), 100);
    aggregator.on_feedback(at(1), report(9, 9, 0), capacity(RATE), 0);
    aggregator.on_feedback(at(2), report(49, 40, 3), capacity(RATE), 0);
    let before = aggregator.outcomes.totals().aggregates;
    aggregator.reconfigure(&AggregationConfig::default(), RATE);
    assert_eq!(aggregator.outcomes.totals().aggregates, before);
}

#[test]
fn a_period_begins_with_traffic() {
    let mut aggregator = aggregator();
    let hour = 3_600_000;
    send(&mut aggregator, at(hour), 10);
    assert_eq!(aggregator.period.since, at(hour));
    aggregator.on_feedback(at(hour + 10), report(9, 9, 0), capacity(RATE), 0);
    assert_eq!(aggregator.period.since, at(hour + 10));
    // Within the same second it goes on, after a silence it begins anew.
    send(&mut aggregator, at(hour + 20), 10);
    assert_eq!(aggregator.period.since, at(hour + 10));
    send(&mut aggregator, at(2 * hour), 10);
    assert_eq!(aggregator.period.since, at(2 * hour));
}

#[test]
fn waiting_bytes_count_as_offered_once() {
    let mut aggregator = aggregator();
    send(&mut aggregator, at(0), 1);
    aggregator.on_feedback(at(0), report(0, 1, 0), capacity(RATE), 5_000);
    send(&mut aggregator, at(50), 10);
    let second = Duration::from_secs(1);
    let offered = |aggregator: &mut Aggregator, waiting| {
        let seen = aggregator.observe(at(1000), second, RATE, waiting);
        seen.offered.as_bits_per_second() / 8
    };
    assert_eq!(offered(&mut aggregator, 5_000), 1000);
    assert_eq!(offered(&mut aggregator, 7_000), 3000);
    assert_eq!(offered(&mut aggregator, 0), 0);
}
