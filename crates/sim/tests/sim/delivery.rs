//! Traffic over loss-free paths arrives: every length, in both directions, on every kind of machine.

use std::time::Duration;

use keiro_core::{Cipher, MessageOutcome};
use keiro_sim::{
    Arrivals, GatewayPair, Length, PathSpec, Processing, Report, Scenario, Side, Traffic,
};
use keiro_units::Bandwidth;

const MS: Duration = Duration::from_millis(1);

fn path(mbit: u64, delay: Duration) -> PathSpec {
    PathSpec::new(Bandwidth::from_mbit_per_second(mbit), delay)
}

/// Messages and datagrams in both directions over two paths.
fn both_ways() -> Scenario {
    let mut scenario = Scenario::new(vec![path(50, 5 * MS), path(20, 30 * MS)]);
    let thin = scenario.add_message_app(Some(50 * MS), &[0, 1]);
    let bulk = scenario.add_message_app(None, &[1, 0]);
    let datagrams = scenario.add_datagram_app(Some(20 * MS), &[0]);
    for from in Side::BOTH {
        for (app, mean, length) in [
            (thin, 10 * MS, Length::Uniform(1, 3000)),
            (bulk, 100 * MS, Length::Uniform(10_000, 200_000)),
            (datagrams, 5 * MS, Length::Uniform(8, 1200)),
        ] {
            let duration = Duration::from_secs(1);
            scenario.traffic.push(Traffic {
                from,
                app,
                made: Arrivals::Exponential { mean, duration },
                length,
                start: Duration::ZERO,
            });
        }
    }
    scenario
}

fn assert_all_arrived(report: &Report) {
    report.assert_complete();
    for message in &report.messages {
        assert_eq!(
            message.outcome,
            Some(MessageOutcome::Delivered),
            "{message:?}\n{report}"
        );
        assert_eq!(message.deliveries, 1, "{message:?}\n{report}");
    }
    let lost = report.datagrams.iter().find(|d| d.delivered_at.is_none());
    assert!(lost.is_none(), "{lost:?}\n{report}");
}

#[test]
fn messages_and_datagrams_arrive_both_ways() {
    for seed in 0..3 {
        let report = GatewayPair::new(&both_ways(), seed).run();
        assert!(report.messages.len() > 150, "{report}");
        assert_all_arrived(&report);
    }
}

#[test]
fn messages_of_every_length_arrive_whole() {
    let mut scenario = Scenario::new(vec![path(1000, MS)]);
    let app = scenario.add_message_app(None, &[0]);
    let around_a_packet = 1300..1500;
    let lengths = [
        1,
        2,
        15,
        16,
        17,
        63,
        64,
        65,
        16_383,
        16_384,
        16_385,
        1 << 20,
        16 << 20,
    ];
    for length in lengths.into_iter().chain(around_a_packet) {
        let once = Arrivals::Every {
            interval: Duration::ZERO,
            count: 1,
        };
        scenario.add_traffic(app, once, Length::Fixed(length));
    }
    assert_all_arrived(&GatewayPair::new(&scenario, 1).run());
}

#[test]
fn datagrams_of_every_length_arrive_whole() {
    let mut scenario = Scenario::new(vec![path(1000, MS)]);
    let app = scenario.add_datagram_app(None, &[0]);
    let lengths = [8, 9, 100, 4000, 9000, 20_000, 65_000, 65_507];
    for length in lengths.into_iter().chain(1300..1500) {
        let once = Arrivals::Every {
            interval: Duration::ZERO,
            count: 1,
        };
        scenario.add_traffic(app, once, Length::Fixed(length));
        // One after the other: the queue for datagrams is not tested here.
        scenario.traffic.last_mut().unwrap().start = MS * scenario.traffic.len() as u32;
    }
    assert_all_arrived(&GatewayPair::new(&scenario, 1).run());
}

#[test]
fn short_and_empty_datagrams_arrive() {
    let mut scenario = Scenario::new(vec![path(10, MS)]);
    let app = scenario.add_datagram_app(None, &[0]);
    for length in 0..8 {
        let made = Arrivals::Every {
            interval: MS,
            count: 5,
        };
        scenario.add_traffic(app, made, Length::Fixed(length));
    }
    let report = GatewayPair::new(&scenario, 1).run();
    report.assert_safe();
    assert_eq!(report.sides[1].datagrams_delivered, 40, "{report}");
}

#[test]
fn ciphers_addresses_batches_and_slow_machines_make_no_difference() {
    for (case, ipv6, ciphers, segments_max) in [
        (0, true, [Cipher::Aes256Gcm; 2], 1),
        (1, false, [Cipher::ChaCha20Poly1305; 2], 64),
        (2, false, [Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305], 8),
        (3, true, [Cipher::ChaCha20Poly1305, Cipher::Aes256Gcm], 3),
    ] {
        let mut scenario = both_ways();
        scenario.ipv6 = ipv6;
        for (gateway, cipher) in [&mut scenario.a, &mut scenario.b].into_iter().zip(ciphers) {
            gateway.cipher = cipher;
            gateway.segments_max = segments_max;
            if case % 2 == 1 {
                gateway.processing = Processing {
                    receive: Duration::from_micros(5),
                    transmit: Duration::from_micros(3),
                    timer_late_max: Duration::from_micros(200),
                };
            }
        }
        assert_all_arrived(&GatewayPair::new(&scenario, case).run());
    }
}

#[test]
fn message_over_an_idle_path_takes_little_more_than_the_floor() {
    // [path-selection §5]: 100 kB take 8 ms at 100 Mbit/s, and 2 ms to propagate.
    let mut scenario = Scenario::new(vec![path(100, 2 * MS)]);
    let app = scenario.add_message_app(Some(20 * MS), &[0]);
    let made = Arrivals::Every {
        interval: 50 * MS,
        count: 20,
    };
    scenario.add_traffic(app, made, Length::Fixed(100_000));
    let report = GatewayPair::new(&scenario, 1).run();
    assert_all_arrived(&report);
    for message in &report.messages {
        let delay = message.delay().unwrap();
        assert!(delay >= 10 * MS, "{message:?}");
        assert!(
            delay <= Duration::from_micros(10_600),
            "{delay:?}\n{report}"
        );
    }
}
