//! Trains measure the capacity of a path, whatever rate the gateways are configured with, idle or loaded, and
//! again when it changes. Trains stay within their share of the rate.

use std::time::Duration;

use keiro_model::capacity::Capacity;
use keiro_sim::{
    Arrivals, Change, GatewayPair, Length, PathDirection, PathSpec, Processing, Scenario,
    ScenarioEvent, Side,
};
use keiro_units::{Bandwidth, Probability};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const SHARE: f64 = 0.005;

/// A path with `link` as its rate, for which the gateways are configured with the rate `configured`.
fn scenario(link: Bandwidth, configured: Bandwidth) -> Scenario {
    let mut path = PathSpec::new(link, 20 * MS);
    path.rate = configured;
    let mut scenario = Scenario::new(vec![path]);
    for gateway in [&mut scenario.a, &mut scenario.b] {
        gateway.probe_share = Probability::new(SHARE).unwrap();
        gateway.processing = Processing {
            timer_late_max: Duration::from_micros(100),
            ..Processing::default()
        };
    }
    scenario
}

fn begun(scenario: &Scenario, seed: u64) -> GatewayPair {
    let mut pair = GatewayPair::new(scenario, seed);
    pair.set_up().unwrap_or_else(|failure| panic!("{failure}"));
    pair.begin();
    pair
}

fn capacity(pair: &GatewayPair) -> Option<Capacity> {
    pair.gateway(Side::A).session()?.paths[0]
        .capacity
        .map(|found| found.capacity)
}

/// Runs until the estimate is within 5 % of `link`; returns the time that it took.
fn time_until_found(pair: &mut GatewayPair, link: Bandwidth) -> Duration {
    let start = pair.now();
    for _ in 0..600 {
        pair.run_for(100 * MS);
        let near = |found: Capacity| (found.rate.ratio_of(link).unwrap() - 1.0).abs() <= 0.05;
        if capacity(pair).is_some_and(near) {
            return pair.now() - start;
        }
    }
    panic!("{link} not found in a minute: {:?}", capacity(pair));
}

#[test]
fn an_idle_path_is_measured_and_what_that_takes_is_bounded() {
    for mbit in [10, 50, 100] {
        let link = Bandwidth::from_mbit_per_second(mbit);
        let mut pair = begun(&scenario(link, link), mbit);
        let took = time_until_found(&mut pair, link);
        assert!(took <= 10 * SECOND, "{link}: {took:?}");
        let before = pair.report().links[0][0].arrived_bytes;
        pair.run_for(20 * SECOND);
        let sent = (pair.report().links[0][0].arrived_bytes - before) as f64 * 8.0 / 20.0;
        let share = sent / link.as_bits_per_second() as f64;
        // Keep-alives, acknowledgements and reports are added.
        assert!(share <= SHARE * 1.1 + 0.0005, "{link}: {share}");
        let found = capacity(&pair).unwrap();
        assert!(
            (found.rate.ratio_of(link).unwrap() - 1.0).abs() <= 0.02,
            "{found:?}"
        );
    }
}

#[test]
fn a_path_that_was_described_wrongly_is_measured_rightly() {
    for (link, configured) in [(20, 40), (40, 20), (95, 100)] {
        let [link, configured] = [link, configured].map(Bandwidth::from_mbit_per_second);
        let mut pair = begun(&scenario(link, configured), 7);
        let took = time_until_found(&mut pair, link);
        assert!(took <= 20 * SECOND, "{link}: {took:?}");
    }
}

#[test]
fn traffic_does_not_disturb_the_estimate_and_carries_the_trains() {
    let link = Bandwidth::from_mbit_per_second(50);
    let mut scenario = scenario(link, link);
    let app = scenario.add_message_app(Some(100 * MS), &[0]);
    let made = Arrivals::Exponential {
        mean: 16 * MS,
        duration: 20 * SECOND,
    };
    // 60 % of the path.
    scenario.add_traffic(app, made, Length::Fixed(60_000));
    let mut pair = begun(&scenario, 3);
    let took = time_until_found(&mut pair, link);
    assert!(took <= 5 * SECOND, "{took:?}");
    pair.run_for(10 * SECOND);
    let found = capacity(&pair).unwrap();
    assert!(
        (found.rate.ratio_of(link).unwrap() - 1.0).abs() <= 0.05,
        "{found:?}"
    );
    pair.finish().unwrap_or_else(|failure| panic!("{failure}"));
    let report = pair.report();
    report.assert_safe();
}

#[test]
fn a_change_is_found_within_seconds() {
    let link = Bandwidth::from_mbit_per_second(100);
    let mut pair = begun(&scenario(link, link), 4);
    time_until_found(&mut pair, link);
    for mbit in [50, 100, 30] {
        let link = Bandwidth::from_mbit_per_second(mbit);
        pair.apply(&ScenarioEvent::Path {
            path: 0,
            direction: PathDirection::Both,
            change: Change::Rate(Some(link)),
        });
        let took = time_until_found(&mut pair, link);
        assert!(took <= 4 * SECOND, "{link}: {took:?}");
    }
}

#[test]
fn without_a_share_no_probes_are_sent_and_the_capacity_is_unknown() {
    let link = Bandwidth::from_mbit_per_second(10);
    let mut scenario = scenario(link, link);
    scenario.a.probe_share = Probability::ZERO;
    let mut pair = begun(&scenario, 5);
    pair.run_for(5 * SECOND);
    assert_eq!(capacity(&pair), None);
    assert!(
        pair.gateway(Side::B).session().unwrap().paths[0]
            .capacity
            .is_some()
    );
}
