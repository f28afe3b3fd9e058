//! Links that replay a recorded line.

use std::time::Duration;

use keiro_link::{
    Arrival, Buffer, DropReason, Link, LinkConfig, OPPORTUNITY_BYTES, Trace, TraceError,
};
use keiro_units::{Bandwidth, ByteCount, Instant};

const MS: Duration = Duration::from_millis(1);

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

fn bytes(bytes: u64) -> ByteCount {
    ByteCount::new(bytes)
}

/// A link that replays a recording from time zero.
fn replaying(trace: &Trace, delay: Duration, buffer: Buffer) -> Link {
    let config = LinkConfig {
        delay,
        buffer,
        ..LinkConfig::default()
    };
    let mut link = Link::new(config, 1);
    link.replay(at(0), Some(trace.clone()));
    link
}

/// When packets that arrive at the beginning leave, ms.
fn departures(link: &mut Link, until: u64) -> Vec<u64> {
    let mut times = Vec::new();
    while let Some(due) = link.poll_timeout().filter(|due| *due <= at(until)) {
        if let Some(departure) = link.poll_departure(due) {
            times.push(departure.at.as_nanos() / 1_000_000);
        }
    }
    times
}

#[test]
fn packets_leave_when_the_recorded_line_let_them_and_the_trace_begins_again() {
    let trace = Trace::from_mahimahi("1\n1\n5\n\n10\n").unwrap();
    assert_eq!(trace.period(), 10 * MS);
    let mut link = replaying(&trace, 3 * MS, Buffer::Unlimited);
    for _ in 0..6 {
        assert!(matches!(
            link.arrive(at(0), bytes(1500)),
            Arrival::Accepted(_)
        ));
    }
    assert_eq!(departures(&mut link, 100), [4, 4, 8, 13, 14, 14]);
    assert_eq!(link.poll_timeout(), None);
}

#[test]
fn an_opportunity_carries_several_short_packets_or_a_part_of_a_long_one() {
    let trace = Trace::from_mahimahi("10\n20\n30\n").unwrap();
    let mut link = replaying(&trace, Duration::ZERO, Buffer::Unlimited);
    for len in [500, 500, 1000, 2000] {
        let _ = link.arrive(at(0), bytes(len));
    }
    // The packet in service does not count.
    assert_eq!(link.queue(at(0)).bytes, 3500);
    assert_eq!(departures(&mut link, 100), [10, 10, 20, 30]);
}

#[test]
fn unused_opportunities_are_lost_capacity() {
    let trace = Trace::from_mahimahi("1\n2\n3\n100\n").unwrap();
    let mut link = replaying(&trace, Duration::ZERO, Buffer::Unlimited);
    let _ = link.arrive(at(50), bytes(1500));
    let _ = link.arrive(at(50), bytes(1500));
    assert_eq!(departures(&mut link, 1000), [100, 101]);
    // Years later it still knows where in the trace it is.
    let later = at(100_000_000_000);
    let _ = link.arrive(later, bytes(1500));
    assert_eq!(link.poll_timeout(), Some(later + MS));
}

#[test]
fn a_full_buffer_drops_what_arrives() {
    let trace = Trace::from_mahimahi("10\n").unwrap();
    for buffer in [Buffer::Packets(2), Buffer::Bytes(bytes(3000))] {
        let mut link = replaying(&trace, Duration::ZERO, buffer);
        let arrivals: Vec<Arrival> = (0..4).map(|_| link.arrive(at(0), bytes(1500))).collect();
        let dropped = arrivals
            .iter()
            .filter(|arrival| matches!(arrival, Arrival::Dropped(DropReason::Buffer)));
        assert_eq!(dropped.count(), 1, "{buffer:?}");
        assert!(matches!(arrivals[3], Arrival::Dropped(_)));
    }
}

#[test]
fn rates_by_the_second_are_kept_on_the_mean_and_zero_is_an_outage() {
    let rates = [7_300_000, 0, 100_000, 12_000_000].map(Bandwidth::from_bits_per_second);
    let trace = Trace::from_rates(&rates).unwrap();
    let mut sum = 0;
    for (second, rate) in (0..).zip(rates) {
        let carried = trace.bytes_between(at(second * 1000), at(second * 1000 + 1000));
        sum += rate.as_bits_per_second() / 8;
        let wanted = rate.as_bits_per_second() / 8;
        assert!(
            carried.get().abs_diff(wanted) <= OPPORTUNITY_BYTES,
            "{second}: {carried:?} of {wanted}"
        );
    }
    let all = trace.bytes_between(at(0), at(4000)).get();
    assert!(all.abs_diff(sum) <= OPPORTUNITY_BYTES, "{all} of {sum}");
    assert_eq!(
        trace.mean(),
        bytes(all).rate_over_floor(Duration::from_secs(4))
    );
}

#[test]
fn what_a_packet_waited_is_what_others_before_it_took() {
    let trace = Trace::from_mahimahi("1\n5\n9\n20\n").unwrap();
    let mut link = replaying(&trace, 3 * MS, Buffer::Unlimited);
    for arrival in [0, 0, 6, 9] {
        let _ = link.arrive(at(arrival), bytes(1500));
    }
    let mut waited = Vec::new();
    while let Some(departure) = link.poll_departure(at(1000)) {
        waited.push(departure.waited.as_millis());
    }
    // Those of 6 and 9 ms leave when they would have left alone.
    assert_eq!(waited, [0, 4, 0, 0]);
    let mut link = Link::new(
        LinkConfig {
            rate: Some(Bandwidth::from_mbit_per_second(12)),
            ..LinkConfig::default()
        },
        1,
    );
    let _ = link.arrive(at(0), bytes(1500));
    let _ = link.arrive(at(0), bytes(1500));
    let waits: Vec<_> = std::iter::from_fn(|| link.poll_departure(at(9)))
        .map(|departure| departure.waited)
        .collect();
    assert_eq!(waits, [Duration::ZERO, MS]);
}

#[test]
fn a_recording_that_begins_serves_what_waits_and_keeps_delay_jitter_and_cuts() {
    let trace = Trace::from_mahimahi("10\n20\n").unwrap();
    let stuck = LinkConfig {
        rate: Some(Bandwidth::ZERO),
        ..LinkConfig::default()
    };
    let mut link = Link::new(stuck, 1);
    for _ in 0..3 {
        let _ = link.arrive(at(0), bytes(1500));
    }
    assert_eq!(link.poll_timeout(), None);
    link.replay(at(100), Some(trace));
    assert_eq!(link.poll_timeout(), Some(at(110)));
    let delayed = LinkConfig {
        delay: 2 * MS,
        ..stuck
    };
    assert!(link.apply(at(100), delayed).is_empty());
    assert_eq!(departures(&mut link, 125), [112, 122]);
    let down = LinkConfig {
        down: true,
        ..delayed
    };
    assert_eq!(link.apply(at(125), down).len(), 1);
    assert!(link.apply(at(126), delayed).is_empty());
    let _ = link.arrive(at(126), bytes(1500));
    assert_eq!(departures(&mut link, 200), [132]);
    link.replay(at(200), None);
    let _ = link.arrive(at(200), bytes(1500));
    assert_eq!(link.poll_timeout(), None, "the rate is zero again");
}

#[test]
fn invalid_traces_are_refused_with_the_line() {
    for (text, error) in [
        ("", TraceError::Empty),
        ("0\n0\n", TraceError::Empty),
        ("1\nx\n", TraceError::BadLine(2)),
        ("5\n4\n", TraceError::BadLine(2)),
        ("1\n-1\n", TraceError::BadLine(2)),
        ("18446744073709551615\n", TraceError::BadLine(1)),
    ] {
        assert_eq!(Trace::from_mahimahi(text), Err(error), "{text:?}");
    }
    assert_eq!(Trace::from_rates(&[]), Err(TraceError::Empty));
    assert_eq!(
        Trace::from_rates(&[Bandwidth::ZERO; 3]),
        Err(TraceError::Empty)
    );
    let message = TraceError::BadLine(2).to_string();
    assert!(
        message.starts_with("line 2: expected a whole number"),
        "{message}"
    );
}
