//! The queueing forecasts against an event simulation of a paced path, packet by packet.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use keiro_planner::{
    delay::{AppSpec, Margin, PathSpec},
    paper,
    queueing::{Forecast, Gateway, Outcome, Scheduler, Statistic, WireFormat},
};
use keiro_units::{Bandwidth, ByteCount};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

/// Headers that a gateway's packets may carry.
fn wire() -> WireFormat {
    WireFormat::new(ByteCount::new(1200), ByteCount::new(80)).unwrap()
}

/// What one application got, in seconds.
struct Simulated {
    delays: Vec<f64>,
}

impl Simulated {
    fn mean(&self) -> f64 {
        self.delays.iter().sum::<f64>() / self.delays.len() as f64
    }

    fn quantile(&self, probability: f64) -> f64 {
        self.delays[(self.delays.len() as f64 * probability) as usize]
    }

    fn get(&self, statistic: Statistic) -> f64 {
        match statistic {
            Statistic::Mean => self.mean(),
            Statistic::P50 => self.quantile(0.50),
            Statistic::P95 => self.quantile(0.95),
            Statistic::P99 => self.quantile(0.99),
        }
    }
}

/// A message that waits, ordered by urgency.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    /// Nanoseconds; what is least goes first.
    key: u64,
    arrival: u64,
    app: usize,
    /// Nanoseconds of sending that are left; the last packet may be short.
    left: u64,
}

/// Sends `duration` of messages, one packet at a time, the most urgent first.
fn simulate(
    scheduler: Scheduler,
    path: &PathSpec,
    apps: &[AppSpec],
    duration: Duration,
    seed: u64,
) -> Vec<Simulated> {
    let nanos = |time: Duration| time.as_nanos() as u64;
    let mut rng = ChaCha12Rng::seed_from_u64(seed);
    let mut gap = |app: &AppSpec| {
        let uniform = ((rng.next_u64() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        (-uniform.ln() * app.interval.as_secs_f64() * 1e9) as u64
    };
    let packet = nanos(path.bandwidth.transmission_time_ceil(wire().full_packet()));
    let whole = |app: &AppSpec| {
        let bytes = wire().wire_length(app.length);
        nanos(path.bandwidth.transmission_time_ceil(bytes))
    };
    let mut arrivals: BinaryHeap<Reverse<(u64, usize)>> = apps
        .iter()
        .enumerate()
        .map(|(index, app)| Reverse((gap(app), index)))
        .collect();
    let mut waiting: BinaryHeap<Reverse<Waiting>> = BinaryHeap::new();
    let mut delays = vec![Vec::new(); apps.len()];
    let mut now = 0;
    while now < nanos(duration) {
        let next_arrival = arrivals.peek().unwrap().0.0;
        if next_arrival <= now {
            let Reverse((arrival, index)) = arrivals.pop().unwrap();
            let app = &apps[index];
            arrivals.push(Reverse((arrival + gap(app), index)));
            waiting.push(Reverse(Waiting {
                key: match (scheduler, app.latency_target) {
                    (Scheduler::Fifo, _) => arrival,
                    (Scheduler::Deadline, Some(latency_target)) => arrival + nanos(latency_target),
                    (Scheduler::Deadline, None) => u64::MAX,
                },
                arrival,
                app: index,
                left: whole(app),
            }));
            continue;
        }
        let Some(Reverse(mut head)) = waiting.pop() else {
            now = next_arrival;
            continue;
        };
        // Whole packets until the next arrival, which may be more urgent.
        let sent = (next_arrival - now).div_ceil(packet) * packet;
        if sent < head.left {
            now += sent;
            head.left -= sent;
            waiting.push(Reverse(head));
        } else {
            now += head.left;
            let delay = now - head.arrival + nanos(path.delay);
            delays[head.app].push(delay as f64 / 1e9);
        }
    }
    delays
        .into_iter()
        .map(|mut delays| {
            delays.sort_by(f64::total_cmp);
            Simulated { delays }
        })
        .collect()
}

fn forecast(scheduler: Scheduler, path: &PathSpec, apps: &[AppSpec]) -> Vec<Forecast> {
    let members: Vec<usize> = (0..apps.len()).collect();
    Gateway::new(scheduler, wire()).forecast(path, apps, &members)
}

/// The largest relative differences between forecast and simulation over all applications.
#[derive(Debug, Default)]
struct Errors {
    mean: f64,
    p99: f64,
}

fn compare(
    name: &str,
    scheduler: Scheduler,
    path: &PathSpec,
    apps: &[AppSpec],
    seconds: u64,
    seed: u64,
) -> Errors {
    let simulated = simulate(scheduler, path, apps, Duration::from_secs(seconds), seed);
    let forecasts = forecast(scheduler, path, apps);
    let mut errors = Errors::default();
    for (index, (forecast, simulated)) in forecasts.iter().zip(&simulated).enumerate() {
        print!("{name} {scheduler:?} seed {seed} application {index}:");
        for statistic in [
            Statistic::Mean,
            Statistic::P50,
            Statistic::P95,
            Statistic::P99,
        ] {
            let predicted = forecast.delay(statistic).finite().unwrap().as_secs_f64();
            let measured = simulated.get(statistic);
            let error = predicted / measured - 1.0;
            print!(
                " {statistic:?} {:.3} {:.3} ms {:+.1}%",
                predicted * 1e3,
                measured * 1e3,
                error * 100.0
            );
            match statistic {
                Statistic::Mean => errors.mean = errors.mean.max(error.abs()),
                Statistic::P99 => errors.p99 = errors.p99.max(error.abs()),
                Statistic::P50 | Statistic::P95 => {}
            }
        }
        println!();
    }
    errors
}

fn subset(indices: &[usize]) -> Vec<AppSpec> {
    indices.iter().map(|&index| paper::APPS[index]).collect()
}

fn app(length: u64, interval_micros: u64, latency_target_millis: Option<u64>) -> AppSpec {
    AppSpec {
        length: ByteCount::new(length),
        interval: Duration::from_micros(interval_micros),
        latency_target: latency_target_millis.map(Duration::from_millis),
    }
}

fn path() -> PathSpec {
    PathSpec {
        bandwidth: Bandwidth::from_mbit_per_second(100),
        delay: Duration::from_millis(1),
    }
}

#[test]
fn the_papers_applications_are_predicted_within_two_per_cent() {
    for scheduler in [Scheduler::Fifo, Scheduler::Deadline] {
        for members in [
            &[0, 1, 2, 3, 4][..],
            &[2, 3, 4],
            &[2, 4],
            &[0, 1, 3],
            &[0, 1],
        ] {
            let name = format!("{members:?}");
            let errors = compare(
                &name,
                scheduler,
                &paper::PATHS[1],
                &subset(members),
                30_000,
                1,
            );
            assert!(
                errors.mean < 0.02 && errors.p99 < 0.03,
                "{name} {scheduler:?}: {errors:?}"
            );
        }
    }
}

#[test]
fn nearly_equal_targets_are_predicted() {
    let apps = [
        app(100_000, 25_000, Some(20)),
        app(10_000, 10_000, Some(22)),
        app(100_000, 40_000, Some(18)),
        app(2_000, 5_000, Some(20)),
    ];
    let errors = compare("near", Scheduler::Deadline, &path(), &apps, 5_000, 2);
    assert!(errors.mean < 0.02 && errors.p99 < 0.03, "{errors:?}");
}

#[test]
fn applications_without_a_target_are_predicted_after_the_others() {
    let apps = [
        app(100_000, 20_000, Some(10)),
        app(400_000, 140_000, None),
        app(2_000, 5_000, Some(30)),
        app(10_000, 50_000, None),
    ];
    let errors = compare("patient", Scheduler::Deadline, &path(), &apps, 20_000, 3);
    assert!(errors.mean < 0.03 && errors.p99 < 0.06, "{errors:?}");
}

#[test]
fn a_heavy_load_is_predicted() {
    let apps = [
        app(100_000, 20_000, Some(10)),
        app(200, 20_000, None),
        app(2_000, 4_000, Some(11)),
        app(10_000, 2_000, Some(5)),
    ];
    for scheduler in [Scheduler::Fifo, Scheduler::Deadline] {
        let errors = compare("heavy", scheduler, &path(), &apps, 4_000, 4);
        assert!(
            errors.mean < 0.05 && errors.p99 < 0.10,
            "{scheduler:?}: {errors:?}"
        );
    }
}

#[test]
fn mean_wait_of_fifo_matches_pollaczek_khinchine() {
    // One application alone, M/D/1: λS²/2(1 − ρ) with S = 8.672 ms and ρ = 0.08672 at 100 ms.
    let wire = WireFormat::new(ByteCount::new(1200), ByteCount::new(100)).unwrap();
    let forecast = Gateway::new(Scheduler::Fifo, wire).forecast(&path(), &paper::APPS, &[2]);
    assert_eq!(forecast[0].terms.wire_length, ByteCount::new(108_400));
    assert_eq!(forecast[0].terms.transmission, Duration::from_micros(8_672));
    let waiting = forecast[0].mean_waiting().unwrap().as_secs_f64();
    let expected = 10.0 * 0.008_672_f64.powi(2) / (2.0 * (1.0 - 0.08672));
    assert!((waiting - expected).abs() < 2e-9, "{waiting} {expected}");
}

#[test]
fn equal_targets_make_the_deadline_scheduler_fifo() {
    let apps = [
        app(100_000, 20_000, Some(50)),
        app(2_000, 5_000, Some(50)),
        app(10_000, 5_000, Some(50)),
    ];
    let pairs = forecast(Scheduler::Fifo, &path(), &apps)
        .into_iter()
        .zip(forecast(Scheduler::Deadline, &path(), &apps));
    for (fifo, deadline) in pairs {
        for statistic in [Statistic::Mean, Statistic::P50, Statistic::P99] {
            let fifo = fifo.delay(statistic).finite().unwrap().as_secs_f64();
            let deadline = deadline.delay(statistic).finite().unwrap().as_secs_f64();
            assert!(
                (deadline / fifo - 1.0).abs() < 0.005,
                "{statistic:?} {fifo} {deadline}"
            );
        }
    }
}

#[test]
fn overloaded_path_has_no_finite_delay() {
    let apps = [app(100_000, 5_000, Some(50)), app(10_000, 100_000, None)];
    for scheduler in [Scheduler::Fifo, Scheduler::Deadline] {
        for forecast in forecast(scheduler, &path(), &apps) {
            assert_eq!(forecast.outcome, Outcome::Overloaded);
            assert!(forecast.terms.load > 1.0);
            assert_eq!(forecast.margin(Statistic::Mean), Margin::Overloaded);
            assert_eq!(forecast.mean_waiting(), None);
        }
    }
}

#[test]
fn only_those_without_a_target_starve_where_the_others_fit() {
    let apps = [app(100_000, 20_000, Some(50)), app(100_000, 10_000, None)];
    let forecasts = forecast(Scheduler::Deadline, &path(), &apps);
    assert!(forecasts[0].delay(Statistic::P99).finite().is_some());
    assert_eq!(forecasts[1].outcome, Outcome::Overloaded);
}

#[test]
fn extreme_paths_and_applications_are_overloaded_not_a_panic() {
    let still = PathSpec {
        bandwidth: Bandwidth::ZERO,
        delay: Duration::MAX,
    };
    for scheduler in [Scheduler::Fifo, Scheduler::Deadline] {
        for latency_target in [None, Some(0), Some(10)] {
            let endless = app(1, 0, latency_target);
            let huge = AppSpec {
                length: ByteCount::MAX,
                ..app(1, 1, latency_target)
            };
            for (path, apps) in [
                (still, [app(1, 1, latency_target); 2]),
                (path(), [endless; 2]),
                (path(), [huge; 2]),
            ] {
                for forecast in forecast(scheduler, &path, &apps) {
                    assert_eq!(forecast.outcome, Outcome::Overloaded, "{path:?} {apps:?}");
                }
            }
        }
    }
}

#[test]
fn what_cannot_be_overtaken_delays_what_is_urgent() {
    let apps = [app(400_000, 80_000, None), app(2_000, 20_000, Some(10))];
    let mut gateway = Gateway::new(Scheduler::Deadline, wire());
    let fine = gateway.forecast(&path(), &apps, &[0, 1]);
    gateway.committed = ByteCount::new(64_000);
    let coarse = gateway.forecast(&path(), &apps, &[0, 1]);
    let mean = |forecasts: &[Forecast]| forecasts[1].delay(Statistic::Mean).finite().unwrap();
    let extra = (mean(&coarse) - mean(&fine)).as_secs_f64();
    // The big ones send 43 % of the time; then half of 5.12 ms is left, less half a packet.
    assert!(
        (extra - 0.43 * (0.00512 - 0.0001) / 2.0).abs() < 5e-5,
        "{extra}"
    );
}

#[test]
fn a_message_takes_at_least_one_packet() {
    assert_eq!(WireFormat::new(ByteCount::ZERO, ByteCount::ZERO), None);
    let wire = wire();
    for (length, packets) in [(0, 1), (1, 1), (1200, 1), (1201, 2), (100_000, 84)] {
        assert_eq!(wire.packets(ByteCount::new(length)), packets);
        let bytes = wire.wire_length(ByteCount::new(length)).get();
        assert_eq!(bytes, length + 80 * packets);
    }
    assert_eq!(wire.wire_length(ByteCount::MAX), ByteCount::MAX);
}

#[test]
fn packets_carry_acknowledgements_of_what_arrived_between_them() {
    let bandwidth = Bandwidth::from_mbit_per_second(10);
    let overhead = |per_second: f64| {
        let wire = wire().acknowledging(per_second, ByteCount::new(20), bandwidth);
        assert_eq!(wire.payload_per_packet(), ByteCount::new(1200));
        wire.overhead_per_packet().get()
    };
    // A full packet takes 1.024 ms: 1 - 1/e of 20 bytes where one arrives in that time on average.
    assert_eq!(overhead(1.0 / 0.001_024), 80 + 13);
    assert_eq!([0.0, -1.0, 10.0].map(overhead), [80; 3]);
    assert_eq!([1e6, f64::INFINITY].map(overhead), [100; 2]);
}
