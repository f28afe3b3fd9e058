//! The gateways' path estimates follow the paths, from their own traffic and from probes that stay within
//! their share.

use std::time::Duration;

use keiro_core::PathSnapshot;
use keiro_link::Loss;
use keiro_sim::{
    Arrivals, Change, Cross, GatewayPair, Length, PathDirection, PathSpec, Processing, Scenario,
    ScenarioEvent, Side,
};
use keiro_units::{Bandwidth, Instant, Probability};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const SHARE: f64 = 0.005;
/// Long enough for every test here.
const TRAFFIC_TIME: Duration = Duration::from_secs(100);

fn mbit(mbit: u64) -> Bandwidth {
    Bandwidth::from_mbit_per_second(mbit)
}

/// A path whose rate the gateways have, with interfaces ten times as fast. Cross traffic uses `cross` percent
/// from a to b, and a sends `own` percent, in messages of `bytes`.
#[derive(Clone, Copy, Debug)]
struct Line {
    rate: Bandwidth,
    cross: u64,
    own: u64,
    bytes: usize,
}

impl Line {
    fn scenario(self) -> Scenario {
        let bits = self.rate.as_bits_per_second();
        let noise = Duration::from_micros(20);
        let mut path = PathSpec::new(self.rate, 20 * MS).with(|link| link.jitter = noise);
        path.cross = Some(Cross {
            rate: Bandwidth::from_bits_per_second(bits * self.cross / 100),
            feed: Bandwidth::from_bits_per_second(bits * 10),
        });
        let mut scenario = Scenario::new(vec![path]);
        for gateway in [&mut scenario.a, &mut scenario.b] {
            gateway.probe_share = Probability::new(SHARE).unwrap();
            gateway.processing = Processing {
                timer_late_max: Duration::from_micros(100),
                ..Processing::default()
            };
        }
        if self.own > 0 {
            let app = scenario.add_message_app(Some(100 * MS), &[0]);
            let per_second = bits as f64 * self.own as f64 / 100.0 / (self.bytes as f64 * 8.0);
            let made = Arrivals::Exponential {
                mean: Duration::from_secs_f64(1.0 / per_second),
                duration: TRAFFIC_TIME,
            };
            scenario.add_traffic(app, made, Length::Fixed(self.bytes));
        }
        scenario
    }

    fn begun(self, seed: u64) -> GatewayPair {
        let mut pair = GatewayPair::new(&self.scenario(), seed);
        pair.set_up().unwrap_or_else(|failure| panic!("{failure}"));
        pair.begin();
        pair
    }
}

fn path(pair: &GatewayPair) -> PathSnapshot {
    pair.gateway(Side::A).session().unwrap().paths[0].clone()
}

fn change(pair: &mut GatewayPair, change: Change) {
    pair.apply(&ScenarioEvent::Path {
        path: 0,
        direction: PathDirection::Both,
        change,
    });
}

/// Time until a snapshot satisfies a condition; checked every 10 ms.
#[track_caller]
fn time_until(
    pair: &mut GatewayPair,
    limit: Duration,
    says: impl Fn(&PathSnapshot) -> bool,
) -> Duration {
    let start = pair.now();
    while pair.now() - start < limit {
        pair.run_for(10 * MS);
        if says(&path(pair)) {
            return pair.now() - start;
        }
    }
    panic!("not in {limit:?}: {:#?}", path(pair));
}

fn near(found: Option<f64>, wanted: f64) -> bool {
    found.is_some_and(|found| (found / wanted - 1.0).abs() <= 0.05)
}

fn carries(snapshot: &PathSnapshot, wanted: f64) -> bool {
    let found = snapshot.capacity.map(|found| found.capacity.rate);
    near(
        found.map(|rate| rate.as_bits_per_second() as f64 / 1e6),
        wanted,
    )
}

#[test]
fn capacity_is_within_5_percent_under_cross_traffic_and_probes_stay_within_their_share() {
    for rate in [10, 50, 100] {
        for cross in [0, 30, 60] {
            for own in [0, 20] {
                let line = Line {
                    rate: mbit(rate),
                    cross,
                    own,
                    bytes: 30_000,
                };
                let mut pair = line.begun(rate + cross);
                let mut worst = 0.0_f64;
                for tenth in 0..300 {
                    pair.run_for(100 * MS);
                    assert_within_share(&pair, line.rate);
                    let found = path(&pair).capacity.filter(|_| tenth >= 100);
                    let found = found.map_or(line.rate, |found| found.capacity.rate);
                    worst = worst.max((found.ratio_of(line.rate).unwrap() - 1.0).abs());
                }
                assert!(path(&pair).capacity.is_some(), "{line:?}");
                let share = probe_share(&pair, line.rate);
                println!("{line:?}: {worst:.4} off at worst, probes took {share:.5}");
                assert!(worst <= 0.05, "{line:?}: {worst}");
            }
        }
    }
}

/// Probes in advance of the share: the maximum credit, eight trains of 2 ms.
#[track_caller]
fn assert_within_share(pair: &GatewayPair, rate: Bandwidth) {
    let since = pair.now() - Instant::ZERO;
    let paid = rate.bytes_in_floor(since).get() as f64 * SHARE;
    let saved = rate.bytes_in_floor(2 * MS).get().max(3000) * 8;
    let sent = path(pair).stats.probe_bytes;
    assert!(
        sent as f64 <= paid + saved as f64,
        "{sent} bytes of probes in {since:?}"
    );
}

#[test]
fn probes_stay_within_their_share_when_the_path_keeps_changing() {
    for (rate, own) in [(1, 0), (1, 30), (10, 0), (100, 0), (10, 30), (100, 30)] {
        let line = Line {
            rate: mbit(rate),
            cross: 20,
            own,
            bytes: 15_000,
        };
        let mut pair = line.begun(rate + own);
        for step in 0..30 {
            let part = [1, 2, 3][step % 3];
            let bits = line.rate.as_bits_per_second() / part;
            let slower = Bandwidth::from_bits_per_second(bits);
            change(&mut pair, Change::Rate(Some(slower)));
            pair.run_for(2 * SECOND);
            assert_within_share(&pair, line.rate);
        }
        let share = probe_share(&pair, line.rate);
        println!("{line:?}: probes took {share:.5}");
        assert!(share <= SHARE * 1.02, "{line:?}: {share}");
    }
}

/// Probes since the beginning, as a share of the rate.
fn probe_share(pair: &GatewayPair, rate: Bandwidth) -> f64 {
    let bits = path(pair).stats.probe_bytes as f64 * 8.0;
    bits / (pair.now() - Instant::ZERO).as_secs_f64() / rate.as_bits_per_second() as f64
}

#[test]
fn a_halved_bandwidth_and_its_return_are_detected_within_a_second() {
    for (rate, own, bytes) in [
        (100, 70, 60_000),
        (100, 30, 60_000),
        (100, 10, 15_000),
        (10, 70, 15_000),
        (10, 30, 15_000),
        (10, 10, 15_000),
        (100, 0, 0),
        (10, 0, 0),
    ] {
        for (cross, seed) in [(0, 1), (0, 2), (20, 3)] {
            let line = Line {
                rate: mbit(rate),
                cross,
                own,
                bytes,
            };
            let mut pair = line.begun(seed);
            time_until(&mut pair, 20 * SECOND, |now| carries(now, rate as f64));
            // An idle path accumulates credit.
            let pause = if own > 0 { 10 } else { 40 } * SECOND;
            pair.run_for(pause);
            let half = Bandwidth::from_bits_per_second(rate * 500_000);
            change(&mut pair, Change::Rate(Some(half)));
            let fell = time_until(&mut pair, 10 * SECOND, |now| {
                carries(now, rate as f64 / 2.0)
            });
            pair.run_for(if own > 0 { 2 * SECOND } else { pause });
            change(&mut pair, Change::Rate(Some(mbit(rate))));
            let rose = time_until(&mut pair, 10 * SECOND, |now| carries(now, rate as f64));
            println!("{line:?}, seed {seed}: fell in {fell:?}, rose in {rose:?}");
            let limit = if own > 0 { SECOND } else { 3 * SECOND };
            assert!(fell <= limit, "{line:?}, seed {seed}: {fell:?}");
            assert!(rose <= 3 * SECOND, "{line:?}, seed {seed}: {rose:?}");
        }
    }
}

#[test]
fn a_longer_delay_and_its_end_are_detected_within_a_second() {
    for (rate, cross, own) in [
        (100, 0, 30),
        (100, 60, 20),
        (10, 0, 30),
        (10, 60, 20),
        (10, 0, 0),
        (10, 60, 0),
        (100, 0, 0),
    ] {
        let line = Line {
            rate: mbit(rate),
            cross,
            own,
            bytes: 15_000,
        };
        let mut pair = line.begun(rate + cross);
        pair.run_for(15 * SECOND);
        let before = path(&pair).stats.base_rtt.unwrap();
        assert!(
            before >= 39 * MS && before <= 42 * MS,
            "{line:?}: {before:?}"
        );
        change(&mut pair, Change::Delay(60 * MS));
        let rose = time_until(&mut pair, 5 * SECOND, |now| {
            now.stats.base_rtt.unwrap() >= before + 75 * MS
        });
        pair.run_for(5 * SECOND);
        let during = path(&pair).stats.base_rtt.unwrap();
        assert!(during <= before + 85 * MS, "{line:?}: {during:?}");
        change(&mut pair, Change::Delay(20 * MS));
        let fell = time_until(&mut pair, 5 * SECOND, |now| {
            now.stats.base_rtt.unwrap() <= before + 5 * MS
        });
        println!("{line:?}: from {before:?}, rose in {rose:?}, fell in {fell:?}");
        let limit = if own > 0 { SECOND } else { 1500 * MS };
        assert!(rose <= limit, "{line:?}: {rose:?}");
        assert!(fell <= SECOND, "{line:?}: {fell:?}");
    }
}

#[test]
fn loss_and_its_end_are_detected_within_a_second_under_load() {
    for (rate, own) in [(100, 30), (100, 5), (10, 70), (10, 10), (10, 0)] {
        let line = Line {
            rate: mbit(rate),
            cross: 0,
            own,
            bytes: 15_000,
        };
        let mut pair = line.begun(rate + own);
        pair.run_for(5 * SECOND);
        assert_eq!(path(&pair).stats.loss, Some(Probability::ZERO), "{line:?}");
        let ratio = Probability::new(0.05).unwrap();
        change(&mut pair, Change::Loss(Loss::Bernoulli(ratio)));
        let loss = |now: &PathSnapshot| now.stats.loss.map_or(0.0, Probability::get);
        let rose = time_until(&mut pair, 20 * SECOND, |now| loss(now) >= 0.025);
        pair.run_for(5 * SECOND);
        change(&mut pair, Change::Loss(Loss::None));
        let fell = time_until(&mut pair, 20 * SECOND, |now| loss(now) <= 0.005);
        println!("{line:?}: rose in {rose:?}, fell in {fell:?}");
        let limit = if own > 0 { 1 } else { 5 } * SECOND;
        assert!(rose <= limit, "{line:?}: {rose:?}");
        assert!(fell <= 2 * limit, "{line:?}: {fell:?}");
    }
}

#[test]
fn estimates_of_a_steady_path_stay() {
    for (rate, cross, own) in [(10, 70, 0), (10, 60, 20), (100, 60, 20), (50, 30, 30)] {
        let line = Line {
            rate: mbit(rate),
            cross,
            own,
            bytes: 15_000,
        };
        let mut pair = line.begun(rate + cross + own);
        pair.run_for(10 * SECOND);
        let (mut capacity_off, mut base_max) = (0.0_f64, Duration::ZERO);
        for _ in 0..800 {
            pair.run_for(100 * MS);
            let found = path(&pair).capacity.unwrap().capacity.rate;
            capacity_off = capacity_off.max((found.ratio_of(line.rate).unwrap() - 1.0).abs());
            base_max = base_max.max(path(&pair).stats.base_rtt.unwrap());
        }
        println!("{line:?}: capacity {capacity_off:.4} off, base up to {base_max:?}");
        assert!(capacity_off <= 0.05, "{line:?}: {capacity_off}");
        assert!(base_max <= 43 * MS, "{line:?}: {base_max:?}");
    }
}

#[test]
fn available_bandwidth_is_what_is_left() {
    for rate in [10, 50, 100] {
        for cross in [0, 30, 60] {
            for (own, bytes) in [(0, 0), (20, 30_000), (20, 3000), (35, 60_000)] {
                let line = Line {
                    rate: mbit(rate),
                    cross,
                    own,
                    bytes,
                };
                let mut pair = line.begun(rate + cross + own);
                pair.run_for(20 * SECOND);
                let (mut sum, mut squares) = (0.0, 0.0);
                let (mut worst, looks) = (0.0_f64, 40);
                for _ in 0..looks {
                    pair.run_for(500 * MS);
                    let now = path(&pair);
                    let of_rate = |part: Bandwidth| part.ratio_of(line.rate).unwrap();
                    let known = |part: Option<Bandwidth>| {
                        of_rate(part.unwrap_or_else(|| panic!("{line:?}: {now:#?}")))
                    };
                    let off = known(now.stats.cross_traffic) - cross as f64 / 100.0;
                    sum += off;
                    squares += off * off;
                    worst = worst.max(off.abs());
                    let left = 1.0 - of_rate(now.stats.sent_rate) - known(now.stats.cross_traffic);
                    assert!(
                        (known(now.stats.available) - left.max(0.0)).abs() < 0.05,
                        "{now:#?}"
                    );
                }
                let (mean, rms) = (sum / f64::from(looks), (squares / f64::from(looks)).sqrt());
                println!(
                    "{line:?}: off by {mean:+.3} on the mean, {rms:.3} rms, {worst:.3} at worst"
                );
                // Own bursts measure it within a few percent of the capacity, pings alone less precisely.
                let rms_max = if own > 0 { 0.04 } else { 0.1 };
                assert!(rms <= rms_max, "{line:?}: {rms}");
            }
        }
    }
}
