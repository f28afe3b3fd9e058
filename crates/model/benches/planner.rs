//! The planners at 10 paths and 100 applications, and the forecasts they can be driven by.
//!
//! Run with `cargo bench -p keiro-model`. Before the times it prints what the plans are worth: how
//! much better the exact plan is than the greedy one, and how far from the best it can be at most.
//! All instances are drawn with seeds, so the plans are the same on every machine.

use std::time::Duration;

use divan::Bencher;
use keiro_model::{
    Bandwidth, ByteCount,
    delay::{AppSpec, Equation3, PathSpec},
    paper,
    plan::{self, Budget, Optimality, Problem},
    queueing::{Gateway, Resolution, Scheduler, WireFormat},
};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

const PATHS: usize = 10;
const APPS: usize = 100;
const SEEDS: u64 = 5;

/// How much is asked of the paths.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// A quarter of the bandwidth; demands of 5 to 40 times what an idle fast path takes.
    Easy,
    /// Half of the bandwidth, the same demands.
    Usual,
    /// Three quarters of the bandwidth; demands of 4 to 20 times what an idle fast path takes.
    Tight,
    /// As tight, and every twelfth demand is one that no path meets.
    Infeasible,
    /// A fifth more than all paths carry.
    Overloaded,
}

const KINDS: [Kind; 5] = [
    Kind::Easy,
    Kind::Usual,
    Kind::Tight,
    Kind::Infeasible,
    Kind::Overloaded,
];

struct Instance {
    paths: Vec<PathSpec>,
    apps: Vec<AppSpec>,
}

impl Instance {
    /// Paths of 50 to 500 Mbit/s and 1 to 60 ms; messages of 1 kB to 1 MB and rates over a range
    /// of 30, evenly on a logarithmic scale.
    fn new(kind: Kind, seed: u64) -> Self {
        let mut rng = ChaCha12Rng::seed_from_u64(seed);
        let mut uniform = |low: f64, high: f64| {
            let unit = (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
            low + (high - low) * unit
        };
        let paths: Vec<PathSpec> = (0..PATHS)
            .map(|_| PathSpec {
                bandwidth: Bandwidth::from_mbit_per_second(uniform(50.0, 500.0) as u64),
                delay: Duration::from_millis(uniform(1.0, 60.0) as u64),
            })
            .collect();
        let load = match kind {
            Kind::Easy => 0.25,
            Kind::Usual => 0.5,
            Kind::Tight | Kind::Infeasible => 0.75,
            Kind::Overloaded => 1.2,
        };
        let drawn: Vec<(f64, f64)> = (0..APPS)
            .map(|_| {
                let length = 10_f64.powf(uniform(3.0, 6.0));
                (length, 10_f64.powf(uniform(0.0, 1.5)))
            })
            .collect();
        let rates = paths.iter().map(|path| path.bandwidth);
        let capacity: f64 = rates.map(|rate| rate.as_bits_per_second() as f64).sum();
        let drawn_rate: f64 = drawn.iter().map(|(_, rate)| rate).sum();
        let apps = drawn.iter().enumerate().map(|(index, &(length, rate))| {
            let rate = rate / drawn_rate * capacity * load;
            let fast = length * 8.0 / 500e6 + 0.005;
            let slack = match kind {
                Kind::Easy | Kind::Usual => uniform(5.0, 40.0),
                Kind::Infeasible if index % 12 == 0 => 0.1,
                Kind::Tight | Kind::Infeasible | Kind::Overloaded => uniform(4.0, 20.0),
            };
            AppSpec {
                length: ByteCount::new(length as u64),
                interval: Duration::from_secs_f64(length * 8.0 / rate),
                demand: Some(Duration::from_secs_f64(fast * slack)),
            }
        });
        Self {
            apps: apps.collect(),
            paths,
        }
    }

    fn problem<'a>(&'a self, model: &'a Equation3) -> Problem<'a, Equation3> {
        Problem::new(&self.paths, &self.apps, model).expect("an instance has paths")
    }
}

fn main() {
    // A test run only wants to know that this builds.
    if std::env::args().any(|argument| argument == "--bench") {
        worth();
    }
    divan::main();
}

fn worth() {
    let model = Equation3::default();
    for kind in KINDS {
        for seed in 0..SEEDS {
            let instance = Instance::new(kind, seed);
            let problem = instance.problem(&model);
            let greedy = plan::greedy(&problem).score;
            let exact = plan::exact(&problem, Budget::default());
            let score = exact.plan.score;
            let proof = match (exact.optimality, exact.gap()) {
                (Optimality::Proven, _) | (_, None) => "best".to_owned(),
                (_, Some(gap)) => {
                    format!("{:?} within {:.1} %", gap.objective, gap.relative * 100.0)
                }
            };
            println!(
                "{kind:?} {seed}: unmet {} -> {}, late {:.0?} -> {:.0?}, delays {:.3?} -> {:.3?}; {proof}",
                greedy.unmet,
                score.unmet,
                greedy.lateness,
                score.lateness,
                greedy.delay,
                score.delay,
            );
        }
    }
}

#[divan::bench(args = KINDS)]
fn greedy(bencher: Bencher<'_, '_>, kind: Kind) {
    let instance = Instance::new(kind, 1);
    let model = Equation3::default();
    let problem = instance.problem(&model);
    bencher.bench(|| plan::greedy(&problem));
}

#[divan::bench(args = KINDS)]
fn exact(bencher: Bencher<'_, '_>, kind: Kind) {
    let instance = Instance::new(kind, 1);
    let model = Equation3::default();
    let problem = instance.problem(&model);
    bencher.bench(|| plan::exact(&problem, Budget::default()));
}

/// The paper's five applications on one path.
#[divan::bench(args = [Resolution::COARSE.steps(), Resolution::FINE.steps()])]
fn forecast_by_deadline(bencher: Bencher<'_, '_>, steps: usize) {
    let wire = WireFormat::new(ByteCount::new(1200), ByteCount::new(80));
    let gateway = Gateway {
        resolution: Resolution::new(steps),
        ..Gateway::new(Scheduler::Deadline, wire.expect("a packet has room"))
    };
    bencher.bench(|| gateway.forecast(&paper::PATHS[1], &paper::APPS, &[0, 1, 2, 3, 4]));
}
