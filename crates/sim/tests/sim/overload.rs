//! A receiver that is too slow, or whose device is full of cross traffic, drops datagrams, and the sender's
//! controller reacts to it. Cross traffic on a path begins and ends. A long line with loss is handled.

use std::time::Duration;

use keiro_core::{AggregationConfig, AggregationMode, AggregationSnapshot};
use keiro_link::Loss;
use keiro_model::aggregation::ControllerKind;
use keiro_sim::{
    Arrivals, Bursts, Change, Cross, GatewayPair, Length, PathDirection, PathSpec, Scenario,
    ScenarioEvent, Side,
};
use keiro_units::{Bandwidth, Probability};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// 2 Mbit/s in datagrams of 200 bytes, with fixed intervals and without controller: two packets per
/// millisecond.
fn begun(seed: u64) -> GatewayPair {
    let mut path = PathSpec::new(Bandwidth::from_mbit_per_second(50), MS / 2);
    path.cross = Some(Cross {
        rate: Bandwidth::ZERO,
        feed: Bandwidth::from_mbit_per_second(1000),
    });
    let mut scenario = Scenario::new(vec![path]);
    for gateway in [&mut scenario.a, &mut scenario.b] {
        gateway.aggregation = AggregationConfig {
            mode: AggregationMode::Fixed,
            controller: ControllerKind::None,
            ..AggregationConfig::default()
        };
    }
    let app = scenario.add_datagram_app(None, &[0]);
    let made = Arrivals::Every {
        interval: Duration::from_micros(800),
        count: 5000,
    };
    scenario.add_traffic(app, made, Length::Fixed(200));
    let mut pair = GatewayPair::new(&scenario, seed);
    pair.set_up().unwrap_or_else(|failure| panic!("{failure}"));
    pair.begin();
    pair.run_for(SECOND);
    pair
}

fn reported(pair: &GatewayPair) -> AggregationSnapshot {
    let session = pair.gateway(Side::A).session().unwrap();
    session.paths[0].aggregation.clone().unwrap()
}

#[test]
fn a_slow_receiver_reports_the_drops_of_its_socket() {
    let mut pair = begun(1);
    assert_eq!(reported(&pair).stats.peer_socket_dropped_packets, 0);
    pair.apply(&ScenarioEvent::Receive {
        side: Side::B,
        each: MS,
        inbox_max: 32,
    });
    pair.run_for(SECOND);
    let seen = reported(&pair);
    let dropped = pair.gateway(Side::B).log().overflowed;
    assert!((700..=1300).contains(&dropped), "{dropped}");
    // All except those since the last feedback.
    assert!(
        seen.stats.peer_socket_dropped_packets + 100 >= dropped,
        "{seen:?}"
    );
    assert_eq!(seen.stats.peer_system_dropped_packets, 0);
    pair.apply(&ScenarioEvent::Receive {
        side: Side::B,
        each: Duration::ZERO,
        inbox_max: 4096,
    });
    pair.run_for(SECOND / 10);
    let before = pair.gateway(Side::B).log().overflowed;
    pair.run_for(SECOND);
    assert_eq!(pair.gateway(Side::B).log().overflowed, before);
    pair.report().assert_safe();
}

#[test]
fn bursts_of_cross_traffic_are_reported_as_system_drops() {
    let mut pair = begun(2);
    let bursts = Bursts {
        datagrams: 600,
        gap: Duration::from_micros(5),
        every: 50 * MS,
        ring: 200,
    };
    pair.apply(&ScenarioEvent::Bursts {
        side: Side::B,
        bursts: Some(bursts),
    });
    pair.run_for(SECOND);
    let dropped = pair.gateway(Side::B).log().ring_overflowed;
    // 2 ms of 50.
    assert!((20..=160).contains(&dropped), "{dropped}");
    let seen = reported(&pair);
    assert!(
        seen.stats.peer_system_dropped_packets >= 18 * 400,
        "{seen:?}"
    );
    assert_eq!(seen.stats.peer_socket_dropped_packets, 0);
    pair.apply(&ScenarioEvent::Bursts {
        side: Side::B,
        bursts: None,
    });
    pair.run_for(SECOND);
    assert_eq!(pair.gateway(Side::B).log().ring_overflowed, dropped);
    pair.report().assert_safe();
}

/// 5 Mbit/s in datagrams of 200 bytes under Keiro's controller over 50 Mbit/s.
fn under_the_controller(
    mode: AggregationMode,
    delay: Duration,
    seed: u64,
    seconds: u32,
) -> GatewayPair {
    let mut scenario = Scenario::new(vec![PathSpec::new(
        Bandwidth::from_mbit_per_second(50),
        delay,
    )]);
    for gateway in [&mut scenario.a, &mut scenario.b] {
        gateway.aggregation = AggregationConfig {
            mode,
            controller: ControllerKind::Adaptive,
            ..AggregationConfig::default()
        };
    }
    let app = scenario.add_datagram_app(None, &[0]);
    let made = Arrivals::Every {
        interval: Duration::from_micros(320),
        count: seconds * 3125,
    };
    scenario.add_traffic(app, made, Length::Fixed(200));
    let mut pair = GatewayPair::new(&scenario, seed);
    pair.set_up().unwrap_or_else(|failure| panic!("{failure}"));
    pair.begin();
    pair
}

#[test]
fn a_bad_line_keeps_its_copies_at_every_round_trip() {
    for (delay, seed) in [(MS / 2, 11), (25 * MS, 12), (50 * MS, 13), (100 * MS, 14)] {
        let mut pair = under_the_controller(AggregationMode::Fixed, delay, seed, 30);
        pair.run_for(2 * SECOND);
        pair.apply(&ScenarioEvent::Path {
            path: 0,
            direction: PathDirection::Forward,
            change: Change::Loss(Loss::Bernoulli(Probability::new(0.05).unwrap())),
        });
        pair.run_for(3 * SECOND);
        let begun = reported(&pair).stats;
        let mut least = u8::MAX;
        for _ in 0..20 {
            pair.run_for(SECOND);
            least = least.min(reported(&pair).parameters.copies());
        }
        let ended = reported(&pair).stats;
        let (sent, lost) = (
            ended.sent_aggregates - begun.sent_aggregates,
            ended.lost_aggregates - begun.lost_aggregates,
        );
        let reported = format!("{delay:?}, seed {seed}: N {least}, {lost} of {sent} lost");
        assert_eq!(least, 3, "{reported}");
        assert!(lost * 1000 <= sent, "{reported}");
        pair.report().assert_safe();
    }
}

#[test]
fn a_slow_receiver_gets_fewer_packets_and_all_that_is_offered() {
    for (mode, seed) in [(AggregationMode::Fixed, 21), (AggregationMode::Eager, 22)] {
        let mut pair = under_the_controller(mode, MS / 2, seed, 40);
        pair.run_for(2 * SECOND);
        // Capacity for 800 packets per second: an I of 2 ms with one or two packets each.
        pair.apply(&ScenarioEvent::Receive {
            side: Side::B,
            each: Duration::from_micros(1250),
            inbox_max: 64,
        });
        pair.run_for(5 * SECOND);
        let dropped = |pair: &GatewayPair| pair.gateway(Side::B).log().overflowed;
        let before = dropped(&pair);
        pair.run_for(20 * SECOND);
        // A shorter I is tried again from time to time.
        let reported = reported(&pair);
        let new = dropped(&pair) - before;
        assert!(new < 20 * 800 / 50, "{mode:?}: {new} dropped, {reported:?}");
        assert_eq!(reported.parameters.copies(), 1, "{mode:?}: {reported:?}");
        pair.apply(&ScenarioEvent::Receive {
            side: Side::B,
            each: Duration::ZERO,
            inbox_max: 4096,
        });
        pair.run_for(5 * SECOND);
        let report = pair.report();
        report.assert_safe();
        let made = 32 * 3125;
        let arrived = pair.gateway(Side::B).log().arrivals.len() as u64;
        assert!(
            arrived * 100 >= made * 98,
            "{mode:?}: {arrived} of {made} came"
        );
    }
}

#[test]
fn cross_traffic_begins_and_ends_on_a_path() {
    let mut pair = begun(3);
    let lost = |pair: &GatewayPair| reported(pair).stats.lost_copies;
    assert_eq!(lost(&pair), 0);
    pair.apply(&ScenarioEvent::Cross {
        path: 0,
        rate: Bandwidth::from_mbit_per_second(60),
    });
    pair.run_for(SECOND);
    let during = lost(&pair);
    assert!(during > 100, "{during} copies lost beside too much traffic");
    pair.apply(&ScenarioEvent::Cross {
        path: 0,
        rate: Bandwidth::ZERO,
    });
    // Packets that were queued in the path's buffer have arrived and are reported by then.
    pair.run_for(SECOND);
    let after = lost(&pair);
    pair.run_for(SECOND / 2);
    assert_eq!(lost(&pair), after);
    pair.report().assert_safe();
}
