//! The planners at 10 paths and 100 applications.
//!
//! Run with `cargo bench -p keiro-model`. Before the times it prints what each plan is worth:
//! how far the greedy and the exact one may be from the best.

use std::time::Duration;

use divan::Bencher;
use keiro_model::{
    Bandwidth, ByteCount,
    delay::{AppSpec, Equation3, PathSpec},
    plan::{self, Budget, Problem},
};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

const PATHS: usize = 10;
const APPS: usize = 100;

/// How much is asked of the paths.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// A quarter of the bandwidth, demands that most paths meet.
    Easy,
    /// Three quarters of the bandwidth, demands that few paths meet.
    Tight,
    /// As tight, and some demands that no path meets.
    Infeasible,
    /// A fifth more than all paths carry.
    Overloaded,
}

const KINDS: [Kind; 4] = [Kind::Easy, Kind::Tight, Kind::Infeasible, Kind::Overloaded];

struct Instance {
    paths: Vec<PathSpec>,
    apps: Vec<AppSpec>,
}

impl Instance {
    fn new(kind: Kind, seed: u64) -> Self {
        let mut rng = ChaCha12Rng::seed_from_u64(seed);
        let mut uniform = |low: f64, high: f64| {
            let unit = (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
            low + (high - low) * unit
        };
        let paths: Vec<PathSpec> = (0..PATHS)
            .map(|_| PathSpec {
                bandwidth: Bandwidth::from_mbit_per_second(uniform(50.0, 500.0) as u64),
                delay: Duration::from_micros(uniform(1.0, 60.0).powf(1.0) as u64 * 1000),
            })
            .collect();
        let load = match kind {
            Kind::Easy => 0.25,
            Kind::Tight | Kind::Infeasible => 0.75,
            Kind::Overloaded => 1.2,
        };
        // Lengths from 1 kB to 1 MB, evenly on a logarithmic scale, and rates likewise.
        let drawn: Vec<(f64, f64)> = (0..APPS)
            .map(|_| {
                (
                    10_f64.powf(uniform(3.0, 6.0)),
                    10_f64.powf(uniform(0.0, 1.5)),
                )
            })
            .collect();
        let capacity: f64 = paths
            .iter()
            .map(|path| path.bandwidth.as_bits_per_second() as f64)
            .sum();
        let drawn_rate: f64 = drawn.iter().map(|(_, rate)| rate).sum();
        let apps = drawn
            .iter()
            .enumerate()
            .map(|(index, &(length, rate))| {
                let rate = rate / drawn_rate * capacity * load;
                let alone = length * 8.0 / 500e6 + 0.005;
                let slack = match kind {
                    Kind::Easy => uniform(5.0, 40.0),
                    Kind::Tight | Kind::Overloaded => uniform(4.0, 20.0),
                    Kind::Infeasible if index % 12 == 0 => 0.1,
                    Kind::Infeasible => uniform(4.0, 20.0),
                };
                AppSpec {
                    length: ByteCount::new(length as u64),
                    interval: Duration::from_secs_f64(length * 8.0 / rate),
                    demand: Some(Duration::from_secs_f64(alone * slack)),
                }
            })
            .collect();
        Self { paths, apps }
    }
}

fn main() {
    for kind in KINDS {
        for seed in 0..5 {
            let instance = Instance::new(kind, seed);
            let model = Equation3::default();
            let problem = Problem::new(&instance.paths, &instance.apps, &model).unwrap();
            let greedy = plan::greedy(&problem);
            let start = std::time::Instant::now();
            let exact = plan::exact(
                &problem,
                Budget::new(std::env::var("BUDGET").map_or(1_000_000, |b| b.parse().unwrap())),
            );
            let took = start.elapsed();
            println!("{kind:?} {seed}: greedy {:?}", greedy.score);
            println!(
                "    exact {:?}\n    {:?} gap {:?} work {} {took:?}",
                exact.plan.score,
                exact.optimality,
                exact.gap(),
                exact.work
            );
        }
    }
    if std::env::var("BUDGET").is_err() {
        divan::main();
    }
}

#[divan::bench(args = KINDS)]
fn greedy(bencher: Bencher<'_, '_>, kind: Kind) {
    let instance = Instance::new(kind, 1);
    let model = Equation3::default();
    let problem = Problem::new(&instance.paths, &instance.apps, &model).unwrap();
    bencher.bench(|| plan::greedy(&problem));
}

#[divan::bench(args = KINDS)]
fn exact(bencher: Bencher<'_, '_>, kind: Kind) {
    let instance = Instance::new(kind, 1);
    let model = Equation3::default();
    let problem = Problem::new(&instance.paths, &instance.apps, &model).unwrap();
    bencher.bench(|| plan::exact(&problem, Budget::default()));
}
