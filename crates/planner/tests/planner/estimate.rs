//! Estimates in closed form against the forecast.

use std::time::Duration;

use keiro_planner::{
    delay::{AppSpec, PathSpec},
    queueing::{Gateway, PathEstimate, Resolution, Scheduler, Statistic, Traffic, WireFormat},
};
use keiro_units::{Bandwidth, ByteCount};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

const SEED: u64 = 31;

/// Estimate over forecast, less one, of the applications on 150 drawn paths, ascending.
fn errors(scheduler: Scheduler) -> Vec<f64> {
    let mut errors = Vec::new();
    for number in 0..150 {
        let (path, traffic) = drawn(number);
        let gateway = Gateway {
            ahead: Duration::from_millis(1),
            resolution: Resolution::COARSE,
            ..Gateway::new(scheduler, wire())
        };
        let members: Vec<usize> = (0..traffic.len()).collect();
        let estimate = PathEstimate::new(&gateway, &path);
        let flows: Vec<_> = traffic.iter().map(|sent| estimate.flow(sent)).collect();
        let mut delays = Vec::new();
        estimate.delays(&flows, &mut delays);
        let forecasts = gateway.forecast_traffic(&path, &traffic, &members);
        for (forecast, delay) in forecasts.iter().zip(&delays) {
            let mean = forecast.delay(Statistic::Mean).finite();
            errors.push(delay / mean.expect("a load below one").as_secs_f64() - 1.0);
        }
    }
    errors.sort_by(f64::total_cmp);
    errors
}

fn wire() -> WireFormat {
    WireFormat::new(ByteCount::new(1428), ByteCount::new(72)).expect("a packet has room")
}

/// A path and 2 to 15 applications, a fifth of them without a target, with a load of 0.2 to 0.9.
fn drawn(number: u64) -> (PathSpec, Vec<Traffic>) {
    let mut random = ChaCha12Rng::seed_from_u64(SEED);
    random.set_stream(number);
    let mut unit = || (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
    let path = PathSpec {
        bandwidth: Bandwidth::from_bits_per_second((10e6 * 20_f64.powf(unit())) as u64),
        delay: Duration::from_secs_f64(1e-3 * 30_f64.powf(unit())),
    };
    let rate = path.bandwidth.as_bits_per_second() as f64;
    let count = 2 + (unit() * 14.0) as usize;
    let load = 0.2 + 0.7 * unit();
    let weights: Vec<f64> = (0..count).map(|_| 10_f64.powf(unit())).collect();
    let whole: f64 = weights.iter().sum();
    let traffic = weights.iter().map(|weight| {
        let length = ByteCount::new((1000.0 * 1000_f64.powf(unit())) as u64);
        let bits = wire().wire_length(length).get() as f64 * 8.0;
        let idle = path.delay.as_secs_f64() + bits / rate;
        let interval = bits * whole / (load * rate * weight);
        let target = Duration::from_secs_f64(idle * 1.2 * 8_f64.powf(unit()));
        Traffic::paper(AppSpec {
            length,
            interval: Duration::from_secs_f64(interval),
            latency_target: (unit() < 0.8).then_some(target),
        })
    });
    (path, traffic.collect())
}

#[test]
fn estimates_are_exact_in_order_of_arrival_and_near_the_forecast_by_deadline() {
    for (scheduler, error_max) in [(Scheduler::Fifo, 1e-6), (Scheduler::Deadline, 0.25)] {
        let errors = errors(scheduler);
        let at = |part: f64| errors[((errors.len() - 1) as f64 * part) as usize];
        let of_98_in_100 = [at(0.01), at(0.99)];
        println!(
            "{scheduler:?}, seed {SEED}: {of_98_in_100:?}, median {}",
            at(0.5)
        );
        let is_near = of_98_in_100.iter().all(|error| error.abs() <= error_max);
        assert!(is_near, "{scheduler:?}, seed {SEED}: {of_98_in_100:?}");
    }
}
