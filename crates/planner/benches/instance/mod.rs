//! Problems of 10 paths and 100 applications, drawn with seeds.

use std::time::Duration;

use keiro_planner::{
    delay::{AppSpec, Equation3, PathSpec},
    plan::Problem,
};
use keiro_units::{Bandwidth, ByteCount};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

const PATHS: usize = 10;
const APPS: usize = 100;

/// How much is asked of the paths.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// A quarter of the bandwidth; latency targets of 5 to 40 times what an idle fast path takes.
    Easy,
    /// Half of the bandwidth, the same latency targets.
    Usual,
    /// Three quarters of the bandwidth; latency targets of 4 to 20 times what an idle fast path takes.
    Tight,
    /// As tight, and every twelfth latency target is one that no path meets.
    Infeasible,
    /// A fifth more than all paths carry.
    Overloaded,
}

pub(crate) const KINDS: [Kind; 5] = [
    Kind::Easy,
    Kind::Usual,
    Kind::Tight,
    Kind::Infeasible,
    Kind::Overloaded,
];

pub(crate) struct Instance {
    pub(crate) paths: Vec<PathSpec>,
    pub(crate) apps: Vec<AppSpec>,
}

impl Instance {
    /// Paths of 50 to 500 Mbit/s and 1 to 60 ms; messages of 1 kB to 1 MB and rates over a range
    /// of 30, evenly on a logarithmic scale.
    pub(crate) fn new(kind: Kind, seed: u64) -> Self {
        Self::sized(PATHS, APPS, kind, seed)
    }

    pub(crate) fn sized(paths: usize, apps: usize, kind: Kind, seed: u64) -> Self {
        let mut rng = ChaCha12Rng::seed_from_u64(seed);
        let mut uniform = |low: f64, high: f64| {
            let unit = (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
            low + (high - low) * unit
        };
        let paths: Vec<PathSpec> = (0..paths)
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
        let drawn: Vec<(f64, f64)> = (0..apps)
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
                latency_target: Some(Duration::from_secs_f64(fast * slack)),
            }
        });
        Self {
            apps: apps.collect(),
            paths,
        }
    }

    pub(crate) fn problem<'a>(&'a self, model: &'a Equation3) -> Problem<'a, Equation3> {
        Problem::new(&self.paths, &self.apps, model).expect("an instance has paths")
    }
}
