//! Forecasts of traffic that varies, against messages drawn from the same laws.

use std::time::Duration;

use keiro_planner::{
    delay::{AppSpec, PathSpec},
    queueing::{
        DelayDistribution, Forecast, Gateway, Outcome, Sampling, Scheduler, Spread, Statistic,
        TracedMessage, Traffic, WireFormat,
    },
};
use keiro_units::{Bandwidth, ByteCount, Instant};

fn gateway(scheduler: Scheduler) -> Gateway {
    let wire = WireFormat::new(ByteCount::new(1428), ByteCount::new(72));
    Gateway::new(scheduler, wire.expect("a packet has room"))
}

fn path() -> PathSpec {
    PathSpec {
        bandwidth: Bandwidth::from_mbit_per_second(50),
        delay: Duration::from_millis(5),
    }
}

fn app(length: u64, interval_micros: u64, latency_target_millis: Option<u64>) -> AppSpec {
    AppSpec {
        length: ByteCount::new(length),
        interval: Duration::from_micros(interval_micros),
        latency_target: latency_target_millis.map(Duration::from_millis),
    }
}

/// A load of 0.7: 25, 25 and 20 % of 50 Mbit/s.
fn apps() -> Vec<AppSpec> {
    vec![
        app(2_000, 1_370, Some(12)),
        app(20_000, 13_440, Some(40)),
        app(100_000, 84_000, Some(200)),
    ]
}

fn varied(length: f64, interval: f64) -> Vec<Traffic> {
    let spread = |ratio| Spread::new(ratio).expect("a ratio is not negative");
    let vary = |app| Traffic {
        app,
        length_spread: spread(length),
        interval_spread: spread(interval),
    };
    apps().into_iter().map(vary).collect()
}

fn stable(forecast: &Forecast) -> DelayDistribution {
    match forecast.outcome {
        Outcome::Stable(delay) => delay,
        Outcome::Overloaded => panic!("{forecast:?} is stable"),
    }
}

fn off(told: &DelayDistribution, drawn: &DelayDistribution, statistic: Statistic) -> f64 {
    told.get(statistic).as_secs_f64() / drawn.get(statistic).as_secs_f64() - 1.0
}

/// The greatest relative errors of mean and 99th percentile.
fn errors(scheduler: Scheduler, traffic: &[Traffic]) -> (f64, f64) {
    let members: Vec<usize> = (0..traffic.len()).collect();
    let gateway = gateway(scheduler);
    let sampling = Sampling {
        messages_max: 2_000_000,
        seed: 7,
    };
    let told = gateway.forecast_traffic(&path(), traffic, &members);
    let drawn = gateway.forecast_drawn(&path(), traffic, &members, sampling);
    let mut worst = (0.0_f64, 0.0_f64);
    for (told, drawn) in told.iter().zip(&drawn) {
        let (told, drawn) = (stable(told), stable(drawn));
        worst.0 = worst.0.max(off(&told, &drawn, Statistic::Mean).abs());
        worst.1 = worst.1.max(off(&told, &drawn, Statistic::P99).abs());
    }
    worst
}

#[test]
fn lattice_and_drawn_messages_agree_on_the_papers_traffic() {
    for scheduler in [Scheduler::Fifo, Scheduler::Deadline] {
        let (mean, p99) = errors(scheduler, &varied(0.0, 1.0));
        assert!(mean < 0.04 && p99 < 0.06, "{scheduler:?}: {mean} {p99}");
    }
}

#[test]
fn lengths_that_vary_are_forecast() {
    for length in [0.1, 0.25, 0.5] {
        for scheduler in [Scheduler::Fifo, Scheduler::Deadline] {
            let (mean, p99) = errors(scheduler, &varied(length, 1.0));
            assert!(
                mean < 0.07 && p99 < 0.12,
                "{scheduler:?}, spread {length}: {mean} {p99}"
            );
        }
    }
}

#[test]
fn regular_and_bursty_intervals_are_forecast_roughly() {
    for interval in [0.25, 0.5, 2.0] {
        for scheduler in [Scheduler::Fifo, Scheduler::Deadline] {
            let (mean, p99) = errors(scheduler, &varied(0.0, interval));
            assert!(
                mean < 0.30 && p99 < 0.40,
                "{scheduler:?}, spread {interval}: {mean} {p99}"
            );
        }
    }
}

#[test]
fn the_same_question_has_the_same_answer() {
    let traffic = varied(0.5, 2.0);
    let gateway = gateway(Scheduler::Deadline);
    let sampling = Sampling {
        messages_max: 10_000,
        seed: 3,
    };
    let drawn = || gateway.forecast_drawn(&path(), &traffic, &[0, 1, 2], sampling);
    assert_eq!(drawn(), drawn());
}

#[test]
fn drawn_and_computed_agree_about_overload() {
    let mut traffic = varied(0.0, 1.0);
    traffic.push(Traffic::paper(app(400_000, 80_000, None)));
    for scheduler in [Scheduler::Fifo, Scheduler::Deadline] {
        let gateway = gateway(scheduler);
        let told = gateway.forecast_traffic(&path(), &traffic, &[0, 1, 2, 3]);
        let sampling = Sampling::default();
        let drawn = gateway.forecast_drawn(&path(), &traffic, &[0, 1, 2, 3], sampling);
        for (told, drawn) in told.iter().zip(&drawn) {
            let overloaded = |forecast: &Forecast| forecast.outcome == Outcome::Overloaded;
            assert_eq!(overloaded(told), overloaded(drawn), "{scheduler:?}");
        }
        assert_eq!(told[3].outcome, Outcome::Overloaded);
    }
}

#[test]
fn what_was_handed_to_the_path_is_not_overtaken() {
    let mut traffic = varied(0.0, 1.0);
    traffic[0].app.interval = Duration::from_millis(20);
    let urgent = |ahead| {
        let gateway = Gateway {
            ahead,
            ..gateway(Scheduler::Deadline)
        };
        let sampling = Sampling::default();
        let told = gateway.forecast_traffic(&path(), &traffic, &[0, 1, 2]);
        let drawn = gateway.forecast_drawn(&path(), &traffic, &[0, 1, 2], sampling);
        (stable(&told[0]).mean, stable(&drawn[0]).mean)
    };
    let (told, drawn) = urgent(Duration::ZERO);
    let (told_behind, drawn_behind) = urgent(Duration::from_millis(2));
    // Half of the time something less urgent is under way.
    assert!(told_behind > told + Duration::from_micros(500));
    assert!(drawn_behind > drawn + Duration::from_micros(500));
    let off = told_behind.as_secs_f64() / drawn_behind.as_secs_f64() - 1.0;
    assert!(off.abs() < 0.05, "{told_behind:?} {drawn_behind:?}");
}

#[test]
fn a_trace_is_replayed_message_by_message() {
    let message = |micros: u64, app, length| TracedMessage {
        made: Instant::ZERO + Duration::from_micros(micros),
        app,
        length: ByteCount::new(length),
    };
    // 100 kB take 16.8 ms with their headers; 1,428 bytes take 0.24 ms.
    let trace = [message(0, 1, 100_000), message(1000, 0, 1428)];
    let latency_targets = [
        Some(Duration::from_millis(10)),
        Some(Duration::from_secs(1)),
    ];
    let fifo = gateway(Scheduler::Fifo).replay(&path(), &latency_targets, &trace);
    let deadline = gateway(Scheduler::Deadline).replay(&path(), &latency_targets, &trace);
    let ms = |delay: Option<Duration>| delay.map(|d| d.as_secs_f64() * 1e3).unwrap_or(f64::NAN);
    assert!((ms(fifo[0]) - 21.8).abs() < 0.1, "{fifo:?}");
    assert!((ms(fifo[1]) - 21.1).abs() < 0.1, "{fifo:?}");
    assert!((5.24..5.49).contains(&ms(deadline[1])), "{deadline:?}");
    assert!((ms(deadline[0]) - 22.04).abs() < 0.1, "{deadline:?}");
    let nowhere = PathSpec {
        bandwidth: Bandwidth::ZERO,
        ..path()
    };
    let never = gateway(Scheduler::Fifo).replay(&nowhere, &latency_targets, &trace);
    assert_eq!(never, [None, None]);
}
