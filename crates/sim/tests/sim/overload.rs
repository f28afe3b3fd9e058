//! A receiver that is too slow, or whose device others fill, drops datagrams, and the sender's controller
//! hears of it; others' traffic on a path begins and ends; a line that is long and loses is answered.

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

/// 2 Mbit/s in datagrams of 200 bytes, by the clock and without a controller: two packets every
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

fn told(pair: &GatewayPair) -> AggregationSnapshot {
    let session = pair.gateway(Side::A).session().unwrap();
    session.paths[0].aggregation.clone().unwrap()
}

#[test]
fn a_slow_receiver_drops_and_tells_what_its_socket_had_no_room_for() {
    let mut pair = begun(1);
    assert_eq!(told(&pair).socket_overflows, 0);
    pair.apply(&ScenarioEvent::Receive {
        side: Side::B,
        each: MS,
        inbox_max: 32,
    });
    pair.run_for(SECOND);
    let seen = told(&pair);
    let dropped = pair.gateway(Side::B).log().overflowed;
    assert!((700..=1300).contains(&dropped), "{dropped}");
    // All but those of the last feedback's time.
    assert!(seen.socket_overflows + 100 >= dropped, "{seen:?}");
    assert_eq!(seen.system_overflows, 0);
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
fn others_bursts_cost_packets_and_are_told_as_the_systems() {
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
    let seen = told(&pair);
    assert!(seen.system_overflows >= 18 * 400, "{seen:?}");
    assert_eq!(seen.socket_overflows, 0);
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
            way: PathDirection::Forward,
            change: Change::Loss(Loss::Bernoulli(Probability::new(0.05).unwrap())),
        });
        pair.run_for(3 * SECOND);
        let begun = told(&pair).aggregates;
        let mut least = u8::MAX;
        for _ in 0..20 {
            pair.run_for(SECOND);
            least = least.min(told(&pair).parameters.copies());
        }
        let ended = told(&pair).aggregates;
        let (sent, lost) = (ended.sent - begun.sent, ended.lost - begun.lost);
        let told = format!("{delay:?}, seed {seed}: N {least}, {lost} of {sent} lost");
        assert_eq!(least, 3, "{told}");
        assert!(lost * 1000 <= sent, "{told}");
        pair.report().assert_safe();
    }
}

#[test]
fn a_slow_receiver_gets_fewer_packets_and_all_that_is_offered() {
    for (mode, seed) in [(AggregationMode::Fixed, 21), (AggregationMode::Eager, 22)] {
        let mut pair = under_the_controller(mode, MS / 2, seed, 40);
        pair.run_for(2 * SECOND);
        // Room for 800 packets a second: an I of 2 ms, of which each has two packets or one.
        pair.apply(&ScenarioEvent::Receive {
            side: Side::B,
            each: Duration::from_micros(1250),
            inbox_max: 64,
        });
        pair.run_for(5 * SECOND);
        let dropped = |pair: &GatewayPair| pair.gateway(Side::B).log().overflowed;
        let before = dropped(&pair);
        pair.run_for(20 * SECOND);
        // Now and then a shorter I is tried again.
        let told_of = told(&pair);
        let new = dropped(&pair) - before;
        assert!(new < 20 * 800 / 50, "{mode:?}: {new} dropped, {told_of:?}");
        assert_eq!(told_of.parameters.copies(), 1, "{mode:?}: {told_of:?}");
        pair.apply(&ScenarioEvent::Receive {
            side: Side::B,
            each: Duration::ZERO,
            inbox_max: 4096,
        });
        pair.run_for(5 * SECOND);
        let report = pair.report();
        report.assert_safe();
        let made = 32 * 3125;
        let came = pair.gateway(Side::B).log().arrivals.len() as u64;
        assert!(came * 100 >= made * 98, "{mode:?}: {came} of {made} came");
    }
}

#[test]
fn others_begin_and_end_on_a_path() {
    let mut pair = begun(3);
    let lost = |pair: &GatewayPair| told(pair).copies.lost;
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
    // What waited in the path's buffer is through and reported by then.
    pair.run_for(SECOND);
    let after = lost(&pair);
    pair.run_for(SECOND / 2);
    assert_eq!(lost(&pair), after);
    pair.report().assert_safe();
}
