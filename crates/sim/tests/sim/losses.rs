//! The effect of losses on messages' delays: forecast and measured.

use std::time::Duration;

use keiro_link::Loss;
use keiro_planner::{
    delay::{self, AppSpec},
    queueing::{Gateway, Outcome, Scheduler, Statistic, WireFormat},
    steer::{PathSample, path_queue},
};
use keiro_sim::{Arrivals, GatewayPair, Length, PathSpec, Scenario};
use keiro_units::{Bandwidth, ByteCount, Probability};

const MS: Duration = Duration::from_millis(1);
const DURATION: Duration = Duration::from_secs(240);
const RATE: Bandwidth = Bandwidth::from_mbit_per_second(50);
const DELAY: Duration = Duration::from_millis(8);
/// Messages of one packet, and of fourteen.
const APPS: [(u32, u64); 2] = [(1_000, 20), (20_000, 100)];

/// Mean, median, 95th and 99th percentile of every application's delays in ms.
fn measured(loss: Probability) -> Vec<[f64; 4]> {
    let path = PathSpec::new(RATE, DELAY).with(|link| link.loss = Loss::Bernoulli(loss));
    let mut scenario = Scenario::new(vec![path]);
    for (bytes, interval) in APPS {
        let app = scenario.add_message_app(Some(100 * MS), &[0]);
        let made = Arrivals::Exponential {
            mean: Duration::from_millis(interval),
            duration: DURATION,
        };
        scenario.add_traffic(app, made, Length::Fixed(bytes as usize));
    }
    let report = GatewayPair::new(&scenario, 4).run();
    report.assert_complete();
    let of = |app: usize| {
        let records = report.messages.iter().filter(|record| record.app == app);
        let delays = records.map(|record| record.delay().unwrap().as_secs_f64() * 1e3);
        let mut delays: Vec<f64> = delays.collect();
        delays.sort_by(f64::total_cmp);
        let at = |part: f64| delays[(delays.len() as f64 * part) as usize];
        let mean = delays.iter().sum::<f64>() / delays.len() as f64;
        [mean, at(0.5), at(0.95), at(0.99)]
    };
    (0..APPS.len()).map(of).collect()
}

fn forecast(loss: Probability) -> Vec<[f64; 4]> {
    let wire = WireFormat::new(ByteCount::new(1428), ByteCount::new(72)).unwrap();
    let gateway = Gateway {
        ahead: MS,
        ..Gateway::new(Scheduler::Deadline, wire)
    };
    let sample = PathSample {
        bandwidth: RATE,
        delay: DELAY,
        loss,
    };
    let (path, repair): (delay::PathSpec, _) = path_queue(&sample);
    let specs = APPS.map(|(bytes, interval)| AppSpec {
        length: ByteCount::new(bytes.into()),
        interval: Duration::from_millis(interval),
        latency_target: Some(100 * MS),
    });
    let forecasts = gateway.forecast(&path, &specs, &[0, 1]);
    let forecast = |(forecast, spec): (_, &AppSpec)| {
        let Outcome::Stable(delay) = repair.of(forecast, wire.packets(spec.length)).outcome else {
            panic!("overloaded")
        };
        [
            Statistic::Mean,
            Statistic::P50,
            Statistic::P95,
            Statistic::P99,
        ]
        .map(|statistic| delay.get(statistic).as_secs_f64() * 1e3)
    };
    forecasts.into_iter().zip(&specs).map(forecast).collect()
}

#[test]
fn means_over_lossy_paths_are_near_what_messages_take() {
    for loss in [0.0, 0.01, 0.05] {
        let loss = Probability::new(loss).unwrap();
        for ((measured, forecast), app) in measured(loss).into_iter().zip(forecast(loss)).zip(APPS)
        {
            let line = format!(
                "loss {loss:?}, {} bytes: measured {measured:.2?}, forecast {forecast:.2?} ms",
                app.0
            );
            println!("{line}");
            assert!((forecast[0] / measured[0] - 1.0).abs() < 0.1, "{line}");
        }
    }
}
