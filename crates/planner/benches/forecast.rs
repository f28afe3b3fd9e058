//! What forecasts cost: both schedulers, by number of applications on the path, at a load of 0.9.
//!
//! Run with `cargo bench -p keiro-model --bench forecast`. The time is that of the whole path;
//! divided by the number of applications it is what one application's forecast costs.

use std::time::Duration;

use divan::Bencher;
use keiro_planner::{
    delay::{AppSpec, PathSpec},
    queueing::{Gateway, Resolution, Sampling, Scheduler, Spread, Traffic, WireFormat},
};
use keiro_units::{Bandwidth, ByteCount};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

const APPS: [usize; 3] = [1, 4, 12];
const LOAD: f64 = 0.9;
const MBIT: f64 = 1e6;

fn main() {
    divan::main();
}

/// Messages of 1 kB to 1 MB, evenly on a logarithmic scale, shares of the load that differ by ten.
fn apps(count: usize) -> Vec<AppSpec> {
    let mut random = ChaCha12Rng::seed_from_u64(1);
    let mut unit = || (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
    let weights: Vec<f64> = (0..count).map(|_| 10_f64.powf(unit())).collect();
    let whole: f64 = weights.iter().sum();
    let app = |weight: &f64| {
        let length = 1000.0 * 1000_f64.powf(unit());
        let rate = 100.0 * MBIT * LOAD * weight / whole;
        let idle = length * 8.0 / (100.0 * MBIT) + 0.01;
        AppSpec {
            length: ByteCount::new(length as u64),
            interval: Duration::from_secs_f64(length * 1.05 * 8.0 / rate),
            latency_target: Some(Duration::from_secs_f64(idle * 2.0 * 10_f64.powf(unit()))),
        }
    };
    weights.iter().map(app).collect()
}

fn path() -> PathSpec {
    PathSpec {
        bandwidth: Bandwidth::from_mbit_per_second(100),
        delay: Duration::from_millis(10),
    }
}

fn gateway(scheduler: Scheduler, resolution: Resolution) -> Gateway {
    let wire = WireFormat::new(ByteCount::new(1428), ByteCount::new(72));
    Gateway {
        resolution,
        ..Gateway::new(scheduler, wire.expect("a packet has room"))
    }
}

fn lattice(bencher: Bencher<'_, '_>, scheduler: Scheduler, resolution: Resolution, count: usize) {
    let (apps, path) = (apps(count), path());
    let members: Vec<usize> = (0..count).collect();
    let gateway = gateway(scheduler, resolution);
    bencher.bench(|| gateway.forecast(&path, &apps, &members));
}

#[divan::bench(args = APPS)]
fn fifo(bencher: Bencher<'_, '_>, count: usize) {
    lattice(bencher, Scheduler::Fifo, Resolution::FINE, count);
}

#[divan::bench(args = APPS)]
fn fifo_coarse(bencher: Bencher<'_, '_>, count: usize) {
    lattice(bencher, Scheduler::Fifo, Resolution::COARSE, count);
}

#[divan::bench(args = APPS)]
fn deadline(bencher: Bencher<'_, '_>, count: usize) {
    lattice(bencher, Scheduler::Deadline, Resolution::FINE, count);
}

#[divan::bench(args = APPS)]
fn deadline_coarse(bencher: Bencher<'_, '_>, count: usize) {
    lattice(bencher, Scheduler::Deadline, Resolution::COARSE, count);
}

/// What a check by drawn messages costs.
#[divan::bench(args = APPS)]
fn deadline_drawn(bencher: Bencher<'_, '_>, count: usize) {
    let path = path();
    let traffic: Vec<Traffic> = apps(count).into_iter().map(Traffic::paper).collect();
    let members: Vec<usize> = (0..count).collect();
    let gateway = gateway(Scheduler::Deadline, Resolution::FINE);
    let sampling = Sampling::default();
    bencher.bench(|| gateway.forecast_drawn(&path, &traffic, &members, sampling));
}

/// What lengths that vary cost more.
#[divan::bench(args = APPS)]
fn deadline_varied(bencher: Bencher<'_, '_>, count: usize) {
    let path = path();
    let vary = |app| Traffic {
        length_spread: Spread::EXPONENTIAL,
        ..Traffic::paper(app)
    };
    let traffic: Vec<Traffic> = apps(count).into_iter().map(vary).collect();
    let members: Vec<usize> = (0..count).collect();
    let gateway = gateway(Scheduler::Deadline, Resolution::FINE);
    bencher.bench(|| gateway.forecast_traffic(&path, &traffic, &members));
}
