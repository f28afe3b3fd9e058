//! The bandwidth from the spacing of copies, over the emulated link: others' packets, losses and
//! late stamps.

use std::{collections::BTreeMap, time::Duration};

use keiro_link::{Arrival, Buffer, Link, LinkConfig, Loss, Ticket};
use keiro_model::{
    aggregation::spacing::{Source, SpacingEstimator},
    bottleneck::CapacityTracker,
    capacity::{Stamp, Train},
};
use keiro_units::{Bandwidth, ByteCount, Instant, Probability};
use rand_chacha::{
    ChaCha12Rng,
    rand_core::{RngCore, SeedableRng},
};

/// A path and what is sent over it.
#[derive(Clone, Copy, Debug)]
struct Setup {
    mbit: u64,
    interval: Duration,
    copies: u32,
    /// IP bytes of a copy, at most one datagram.
    size: u32,
    /// Others' share of the bottleneck.
    cross: f64,
    loss: f64,
    stamps: Stamps,
    seed: u64,
}

#[derive(Clone, Copy, Debug)]
enum Stamps {
    /// Late by up to this, but in order.
    Late(Duration),
    /// An interface reports what has come every so often, and the kernel stamps it then, one
    /// packet after another.
    Coalesced(Duration),
}

/// Longer than a full buffer.
const GIVEN_UP: Duration = Duration::from_millis(300);
/// The kernel's way from one packet to the next.
const STAMP_STEP: Duration = Duration::from_micros(2);

struct Bench {
    setup: Setup,
    rng: ChaCha12Rng,
    link: Link,
    /// Aggregate and place of what is under way.
    ours: BTreeMap<Ticket, (u64, u32)>,
    trains: BTreeMap<u64, Train>,
    next_cross: f64,
    last_stamp: u64,
    now: Instant,
}

fn unit(rng: &mut ChaCha12Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

impl Bench {
    fn new(setup: Setup) -> Self {
        let loss = Probability::new(setup.loss).unwrap();
        let config = LinkConfig {
            rate: Some(Bandwidth::from_mbit_per_second(setup.mbit)),
            delay: Duration::from_micros(500),
            loss: Loss::Bernoulli(loss),
            buffer: Buffer::Packets(200),
            ..LinkConfig::default()
        };
        Self {
            setup,
            rng: ChaCha12Rng::seed_from_u64(setup.seed),
            link: Link::new(config, setup.seed),
            ours: BTreeMap::new(),
            trains: BTreeMap::new(),
            next_cross: 0.0,
            last_stamp: 0,
            now: Instant::ZERO,
        }
    }

    /// Runs for so many aggregates and gives what came of each to the estimator.
    fn run(&mut self, aggregates: u64, estimator: &mut SpacingEstimator) {
        let first = self.trains.len() as u64;
        for number in first..first + aggregates {
            self.now = Instant::ZERO + self.setup.interval * number as u32;
            self.cross_until(self.now);
            // Interfaces are ten times as fast as the bottleneck.
            let step = f64::from(self.setup.size) * 800.0 / self.setup.mbit as f64;
            for place in 0..self.setup.copies {
                let at = self.now + Duration::from_nanos((step * f64::from(place)) as u64);
                let size = ByteCount::new(u64::from(self.setup.size));
                self.cross_until(at);
                if let Arrival::Accepted(ticket) = self.link.arrive(at, size) {
                    self.ours.insert(ticket, (number, place));
                }
            }
            self.trains.insert(
                number,
                Train {
                    send_span: None,
                    sent_packets: self.setup.copies,
                    received: Vec::new(),
                },
            );
            self.receive();
            // What was sent a while ago has come or never will.
            let behind = (GIVEN_UP.as_nanos() / self.setup.interval.as_nanos()) as u64;
            if let Some(old) = number.checked_sub(behind) {
                let train = std::mem::take(self.trains.get_mut(&old).unwrap());
                estimator.on_copies(self.now, train);
            }
        }
    }

    fn cross_until(&mut self, until: Instant) {
        if self.setup.cross == 0.0 {
            return;
        }
        // Mostly full packets, as most bytes are.
        let mean_bytes = 0.5 * 1500.0 + 0.5 * 300.0;
        let mean_gap = mean_bytes * 8e3 / (self.setup.mbit as f64 * self.setup.cross);
        while (self.next_cross as u64) < until.as_nanos() {
            let at = Instant::from_nanos(self.next_cross as u64);
            let bytes = if unit(&mut self.rng) < 0.5 { 1500 } else { 300 };
            let _ = self.link.arrive(at, ByteCount::new(bytes));
            self.next_cross += -mean_gap * (1.0 - unit(&mut self.rng)).ln();
        }
    }

    fn receive(&mut self) {
        while let Some(departure) = self.link.poll_departure(self.now) {
            let Some((number, place)) = self.ours.remove(&departure.ticket) else {
                continue;
            };
            let at = departure.at.as_nanos();
            let stamp = match self.setup.stamps {
                Stamps::Late(late) => at + (unit(&mut self.rng) * late.as_nanos() as f64) as u64,
                Stamps::Coalesced(every) => at.next_multiple_of(every.as_nanos() as u64),
            };
            let step = match self.setup.stamps {
                Stamps::Late(_) => 0,
                Stamps::Coalesced(_) => STAMP_STEP.as_nanos() as u64,
            };
            let stamp = stamp.max(self.last_stamp + step);
            self.last_stamp = stamp;
            self.trains.get_mut(&number).unwrap().received.push(Stamp {
                index: place,
                at_nanos: stamp,
                bytes: self.setup.size,
            });
        }
    }
}

impl Setup {
    /// Two copies of 1400 bytes, a third of the path, no other traffic, one in a hundred lost.
    fn of(mbit: u64) -> Self {
        Self {
            mbit,
            interval: Duration::ZERO,
            copies: 2,
            size: 1400,
            cross: 0.0,
            loss: 0.01,
            stamps: Stamps::Late(Duration::from_micros(20)),
            seed: 1,
        }
        .with_a_third_of_the_path()
    }

    fn with_a_third_of_the_path(mut self) -> Self {
        let bits = u64::from(self.copies * self.size) * 8;
        self.interval = Duration::from_nanos(bits * 1000 * 3 / self.mbit);
        self
    }
}

/// The estimate as a multiple of the bandwidth, at the end of each of some seconds.
fn found(setup: Setup, seconds: u32) -> Vec<Option<f64>> {
    let mut bench = Bench::new(setup);
    let mut estimator = SpacingEstimator::default();
    let per_second = (Duration::from_secs(1).as_nanos() / setup.interval.as_nanos()) as u64;
    let estimate = |_| {
        bench.run(per_second, &mut estimator);
        let estimate = estimator.estimate(bench.now)?;
        (estimate.source == Source::Copies).then(|| {
            let mbit = estimate.bandwidth().as_bits_per_second() as f64 / 1e6;
            mbit / setup.mbit as f64
        })
    };
    (0..seconds).map(estimate).collect()
}

/// How far off the worst is, in parts of the bandwidth; printed for `docs/aggregation.md`.
#[track_caller]
fn worst(setup: Setup) -> f64 {
    let found = found(setup, 10);
    let off = |found: &Option<f64>| match found {
        Some(ratio) => (ratio - 1.0).abs(),
        None => panic!("no estimate: {setup:?}"),
    };
    found.iter().map(off).fold(0.0, f64::max)
}

#[test]
fn the_bandwidth_is_within_5_percent_whatever_others_send() {
    for mbit in [10, 20, 50, 100] {
        for copies in [2, 3] {
            for cross in [0.0, 0.3, 0.6] {
                let worst = [1, 2, 3]
                    .map(|seed| {
                        let setup = Setup {
                            copies,
                            cross,
                            seed,
                            ..Setup::of(mbit)
                        };
                        worst(setup.with_a_third_of_the_path())
                    })
                    .into_iter()
                    .fold(0.0, f64::max);
                println!("{mbit} Mbit/s, N = {copies}, others {cross}: off by {worst:.4} at worst");
                assert!(worst <= 0.05, "{mbit} {copies} {cross}: {worst}");
            }
        }
    }
}

#[test]
fn copies_that_are_too_short_for_the_stamps_say_nothing_rather_than_something_wrong() {
    for (mbit, size) in [(100, 600), (100, 300), (1000, 1400), (50, 300)] {
        for stamps in [
            Stamps::Late(Duration::from_micros(20)),
            Stamps::Coalesced(Duration::from_micros(50)),
        ] {
            let setup = Setup {
                size,
                stamps,
                ..Setup::of(mbit)
            };
            let found = found(setup.with_a_third_of_the_path(), 3);
            assert_eq!(found, [None; 3], "{mbit} {size} {stamps:?}");
        }
    }
}

#[test]
fn stamps_for_several_packets_at_once_cost_as_much_as_they_are_apart() {
    for mbit in [10, 20, 50, 100] {
        let setup = Setup {
            stamps: Stamps::Coalesced(Duration::from_micros(50)),
            ..Setup::of(mbit)
        };
        let worst = worst(setup);
        let span = 1400.0 * 8.0 / mbit as f64;
        println!("{mbit} Mbit/s, stamps every 50 µs: off by {worst:.4} at worst");
        assert!(worst <= 50.0 / span, "{mbit}: {worst}");
    }
}

#[test]
fn a_change_is_seen_within_a_second() {
    let setup = Setup {
        cross: 0.3,
        ..Setup::of(50)
    };
    let mut bench = Bench::new(setup);
    let mut estimator = SpacingEstimator::default();
    let per_tenth = (Duration::from_millis(100).as_nanos() / setup.interval.as_nanos()) as u64;
    for (mbit, tenths) in [(50, 20), (25, 10), (50, 10)] {
        let config = LinkConfig {
            rate: Some(Bandwidth::from_mbit_per_second(mbit)),
            ..*bench.link.config()
        };
        let cut = bench.link.apply(bench.now, config);
        assert!(cut.is_empty());
        bench.run(per_tenth * tenths, &mut estimator);
        let estimate = estimator.estimate(bench.now).unwrap();
        let found = estimate.bandwidth().as_bits_per_second() as f64 / 1e6;
        assert!((found / mbit as f64 - 1.0).abs() < 0.05, "{mbit}: {found}");
    }
}

#[test]
fn with_one_copy_trains_measure_or_age_and_it_is_reported() {
    let setup = Setup {
        mbit: 20,
        interval: Duration::from_millis(1),
        copies: 2,
        size: 1200,
        cross: 0.0,
        loss: 0.01,
        stamps: Stamps::Late(Duration::from_micros(5)),
        seed: 3,
    };
    let mut bench = Bench::new(setup);
    let mut estimator = SpacingEstimator::default();
    assert_eq!(estimator.estimate(Instant::ZERO), None);
    bench.run(1000, &mut estimator);
    let source = |estimator: &SpacingEstimator, now| estimator.estimate(now).map(|e| e.source);
    assert_eq!(source(&estimator, bench.now), Some(Source::Copies));
    bench.setup.copies = 1;
    bench.run(5000, &mut estimator);
    let aged = source(&estimator, bench.now);
    assert!(
        matches!(aged, Some(Source::Aged(age)) if (4600..5000).contains(&age.as_millis())),
        "{aged:?}"
    );
    let later = bench.now + Duration::from_secs(60);
    assert_eq!(source(&estimator, later), None);

    // Trains of sixteen, as the path sends them from time to time.
    let mut path = CapacityTracker::default();
    for number in 0..10_u64 {
        let received = (0..16).map(|index| Stamp {
            index,
            at_nanos: number * 100_000_000 + u64::from(index) * 480_000,
            bytes: 1200,
        });
        let train = Train {
            send_span: None,
            sent_packets: 16,
            received: received.collect(),
        };
        path.on_train(bench.now, train);
    }
    estimator.on_trains(path.found().unwrap());
    let estimate = estimator.estimate(bench.now).unwrap();
    assert_eq!(estimate.source, Source::Trains);
    assert_eq!(estimate.bandwidth(), Bandwidth::from_mbit_per_second(20));
    assert_eq!(estimate.source.to_string(), "trains");
    estimator.forget();
    assert_eq!(estimator.estimate(bench.now), None);
}
