//! A path is filled to its rate, and never beyond. Every run of every test checks the upper bound (2 ms of
//! the rate ahead, and three packets); these runs approach it.

use std::time::Duration;

use keiro_sim::{Arrivals, GatewayPair, Length, PathSpec, Processing, Scenario, Side};
use keiro_units::{Bandwidth, ByteCount};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Far more than the path carries in three seconds.
fn backlogged(rate: Bandwidth, delay: Duration, class_is_message: bool) -> Scenario {
    let mut scenario = Scenario::new(vec![PathSpec::new(rate, delay)]);
    if class_is_message {
        let app = scenario.add_message_app(None, &[0]);
        let length = 50_000;
        let count = rate.bytes_in_floor(4 * SECOND).get() / length + 4;
        let made = Arrivals::Every {
            interval: Duration::ZERO,
            count: count as u32,
        };
        scenario.add_traffic(app, made, Length::Fixed(length as usize));
    } else {
        let app = scenario.add_datagram_app(None, &[0]);
        let interval = rate.transmission_time_floor(ByteCount::new(900));
        let count = (3.5 * SECOND.as_secs_f64() / interval.as_secs_f64()) as u32;
        scenario.add_traffic(
            app,
            Arrivals::Every { interval, count },
            Length::Fixed(1000),
        );
    }
    scenario
}

/// Bytes sent to the path in two seconds, as a share of its rate.
fn share_of_rate(scenario: &Scenario, seed: u64) -> f64 {
    let mut pair = GatewayPair::new(scenario, seed);
    pair.set_up().unwrap_or_else(|failure| panic!("{failure}"));
    pair.begin();
    pair.run_for(500 * MS);
    let before = pair.report().links[0][0].arrived_bytes;
    pair.run_for(2 * SECOND);
    let report = pair.report();
    report.assert_safe();
    let sent = ByteCount::new(report.links[0][0].arrived_bytes - before);
    let rate = sent.rate_over_floor(2 * SECOND);
    rate.ratio_of(scenario.paths[0].rate).unwrap()
}

#[test]
fn backlogged_path_reaches_98_percent_of_its_rate_and_stays_within() {
    for (mbit, delay, messages) in [
        (1, 20 * MS, true),
        (10, 5 * MS, true),
        (100, 2 * MS, true),
        (100, 100 * MS, true),
        (10, 5 * MS, false),
    ] {
        let scenario = backlogged(Bandwidth::from_mbit_per_second(mbit), delay, messages);
        let share = share_of_rate(&scenario, 1);
        // In an interval it may be ahead by the permitted burst.
        assert!(
            (0.98..=1.002).contains(&share),
            "{mbit} Mbit/s, {delay:?}, messages {messages}: {share}"
        );
    }
}

#[test]
fn late_timers_and_batches_cost_no_rate() {
    for segments_max in [1, 16, 64] {
        let rate = Bandwidth::from_mbit_per_second(50);
        let mut scenario = backlogged(rate, 10 * MS, true);
        for gateway in [&mut scenario.a, &mut scenario.b] {
            gateway.segments_max = segments_max;
            gateway.processing = Processing {
                timer_late_max: Duration::from_micros(300),
                ..Processing::default()
            };
        }
        let share = share_of_rate(&scenario, 2);
        assert!(
            (0.98..=1.002).contains(&share),
            "batches of {segments_max}: {share}"
        );
    }
}

#[test]
fn no_queue_grows_in_the_path_that_is_filled() {
    let rate = Bandwidth::from_mbit_per_second(20);
    let mut pair = GatewayPair::new(&backlogged(rate, 10 * MS, true), 3);
    pair.set_up().unwrap_or_else(|failure| panic!("{failure}"));
    pair.begin();
    pair.run_for(3 * SECOND);
    let report = pair.report();
    report.assert_safe();
    let queue = report.links[0][0].queue_max;
    let burst = rate.bytes_in_floor(2 * MS).get();
    assert!(queue.bytes <= burst + 1500, "{queue:?}\n{report}");
    assert_eq!(report.links[0][0].drops.buffer, 0);
}

#[test]
fn both_directions_fill_at_once() {
    let rate = Bandwidth::from_mbit_per_second(20);
    let mut scenario = backlogged(rate, 10 * MS, true);
    let mut back = scenario.traffic[0].clone();
    back.from = Side::B;
    scenario.traffic.push(back);
    let mut pair = GatewayPair::new(&scenario, 4);
    pair.set_up().unwrap_or_else(|failure| panic!("{failure}"));
    pair.begin();
    pair.run_for(500 * MS);
    let before = pair.report();
    pair.run_for(2 * SECOND);
    let after = pair.report();
    after.assert_safe();
    for direction in [0, 1] {
        let sent =
            after.links[0][direction].arrived_bytes - before.links[0][direction].arrived_bytes;
        let achieved = ByteCount::new(sent).rate_over_floor(2 * SECOND);
        let share = achieved.ratio_of(rate).unwrap();
        assert!(
            (0.98..=1.002).contains(&share),
            "direction {direction}: {share}"
        );
    }
}
