//! Eight gateways of a site whose paths are shared lines: delays forecast and measured.

use std::time::Duration;

use keiro_core::SchedulerKind;
use keiro_planner::{
    delay::{AppSpec, PathSpec},
    queueing::{
        Gateway, Offered, OtherGateway, Outcome, Scheduler, SharedLine, Traffic, WireFormat,
    },
};
use keiro_sim::{Arrivals, GatewaySite, Length, PathSpec as Line, Report, Scenario, seed};
use keiro_units::{Bandwidth, ByteCount};

const GATEWAYS: u64 = 8;
const LINES: [(u64, u64); 2] = [(20, 5), (40, 12)];
/// Of each line's rate, headers included.
const LOADS: [f64; 2] = [0.75, 0.6];
const LENGTHS: [usize; 4] = [1_000, 3_000, 8_000, 20_000];
const TARGETS: [Option<u64>; 3] = [Some(20), Some(100), None];
const DURATION: Duration = Duration::from_secs(45);

/// An application of a gateway on one line.
#[derive(Clone, Copy, Debug)]
struct App {
    gateway: usize,
    line: usize,
    traffic: Traffic,
}

fn wire() -> WireFormat {
    WireFormat::new(ByteCount::new(1428), ByteCount::new(72)).unwrap()
}

fn rate(line: usize) -> Bandwidth {
    Bandwidth::from_mbit_per_second(LINES[line].0)
}

/// Drawn applications, one to three of each gateway; those on a line have equal loads.
fn drawn(seed: u64) -> Vec<App> {
    let mut number = 0;
    let mut below = |count: usize| {
        number += 1;
        (seed::derive(seed, "shared lines", number) % count as u64) as usize
    };
    let mut drawn = Vec::new();
    for gateway in 0..GATEWAYS as usize {
        for _ in 0..=below(3) {
            let (line, length, target) = (below(2), LENGTHS[below(4)], TARGETS[below(3)]);
            drawn.push((gateway, line, length, target));
        }
    }
    let app = |(gateway, line, length, target): (usize, usize, usize, Option<u64>)| {
        let together = drawn.iter().filter(|other| other.1 == line).count() as f64;
        let each = LOADS[line] / together * rate(line).as_bits_per_second() as f64;
        let bits = wire().wire_length(ByteCount::new(length as u64)).get() as f64 * 8.0;
        let spec = AppSpec {
            length: ByteCount::new(length as u64),
            interval: Duration::from_secs_f64(bits / each),
            latency_target: target.map(Duration::from_millis),
        };
        App {
            gateway,
            line,
            traffic: Traffic::paper(spec),
        }
    };
    drawn.iter().copied().map(app).collect()
}

fn run(apps: &[App], scheduler: SchedulerKind, seed: u64, duration: Duration) -> Vec<Report> {
    let lines = LINES.map(|(mbit, ms)| {
        let line = Line::new(
            Bandwidth::from_mbit_per_second(mbit),
            Duration::from_millis(ms),
        );
        line.with(|link| link.buffer = keiro_link::Buffer::Unlimited)
    });
    let scenario = |gateway: usize| {
        let mut scenario = Scenario::new(lines.to_vec());
        scenario.a.scheduler = scheduler;
        for app in apps.iter().filter(|app| app.gateway == gateway) {
            let spec = app.traffic.app;
            let index = scenario.add_message_app(spec.latency_target, &[app.line]);
            let made = Arrivals::Exponential {
                mean: spec.interval,
                duration,
            };
            scenario.add_traffic(index, made, Length::Fixed(spec.length.get() as usize));
        }
        scenario
    };
    let scenarios: Vec<Scenario> = (0..GATEWAYS as usize).map(scenario).collect();
    GatewaySite::new(&scenarios, seed).run()
}

/// The forecast mean of each application, in ms, by what all gateways send.
fn forecasts(apps: &[App], scheduler: Scheduler) -> Vec<f64> {
    let on = |app: &App, line: usize, gateway: usize| app.line == line && app.gateway == gateway;
    let of = |app: &App| {
        let traffic = |gateway: usize| -> Vec<Traffic> {
            let there = apps.iter().filter(|other| on(other, app.line, gateway));
            there.map(|other| other.traffic).collect()
        };
        let own = traffic(app.gateway);
        let others = (0..GATEWAYS as usize).filter(|other| *other != app.gateway);
        let line = SharedLine {
            rate: rate(app.line),
            own_rate: rate(app.line),
            others: others
                .map(|other| OtherGateway {
                    rate: rate(app.line),
                    offered: Offered::of(&traffic(other), &wire()),
                })
                .collect(),
        };
        let gateway = Gateway {
            ahead: Duration::from_millis(1),
            ..Gateway::new(scheduler, wire())
        };
        let path = PathSpec {
            bandwidth: rate(app.line),
            delay: Duration::from_millis(LINES[app.line].1),
        };
        let members: Vec<usize> = (0..own.len()).collect();
        let alone = gateway.forecast_traffic(&path, &own, &members);
        let position = own.iter().position(|traffic| *traffic == app.traffic);
        let alone = alone[position.expect("it is one of them")];
        match line.joint(&Offered::of(&own, &wire())).of(alone).outcome {
            Outcome::Stable(delay) => delay.mean.as_secs_f64() * 1e3,
            Outcome::Overloaded => panic!("{app:?}"),
        }
    };
    apps.iter().map(of).collect()
}

/// The measured mean of each application, in ms.
fn measured(apps: &[App], reports: &[Report]) -> Vec<f64> {
    let of = |(number, app): (usize, &App)| {
        let before = apps[..number].iter();
        let index = before.filter(|other| other.gateway == app.gateway).count();
        let report = &reports[app.gateway];
        let records = report.messages.iter().filter(|record| record.app == index);
        let delays: Vec<f64> = records
            .map(|record| record.delay().expect("all arrive").as_secs_f64() * 1e3)
            .collect();
        delays.iter().sum::<f64>() / delays.len() as f64
    };
    apps.iter().enumerate().map(of).collect()
}

#[test]
fn means_of_eight_gateways_on_shared_lines_are_forecast_within_a_tenth() {
    let mut worst = 0.0_f64;
    for (seed, kind, scheduler) in [
        (1, SchedulerKind::Fifo, Scheduler::Fifo),
        (2, SchedulerKind::Deadline, Scheduler::Deadline),
    ] {
        let apps = drawn(seed);
        let reports = run(&apps, kind, seed, DURATION);
        reports.iter().for_each(Report::assert_complete);
        let measured = measured(&apps, &reports);
        for ((app, forecast), measured) in
            apps.iter().zip(forecasts(&apps, scheduler)).zip(measured)
        {
            let spec = app.traffic.app;
            let off = forecast / measured - 1.0;
            let line = format!(
                "{kind:?}, gateway {}, line {}, {} every {:?}, target {:?}: forecast {forecast:.2}, \
                 measured {measured:.2} ms, {:+.1} %",
                app.gateway,
                app.line,
                spec.length,
                spec.interval,
                spec.latency_target,
                off * 1e2
            );
            println!("{line}");
            assert!(off.abs() < 0.1, "{line}");
            worst = worst.max(off.abs());
        }
    }
    println!("worst: {:.1} %", worst * 1e2);
}

#[test]
fn the_same_site_and_seed_give_the_same_run() {
    let apps: Vec<App> = drawn(3).into_iter().take(3).collect();
    let second = Duration::from_secs(1);
    let hash = |seed| run(&apps, SchedulerKind::Deadline, seed, second)[0].trace_hash;
    assert_eq!(hash(5), hash(5));
    assert_ne!(hash(5), hash(6));
}
