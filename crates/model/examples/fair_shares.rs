//! Controllers side by side on the bench: fairness, use and queue of every setting.
//!
//! `cargo run --release -p keiro-model --example fair_shares [keiro|found|capacity|reported|i2vfc|i2vfc-bursts
//! [unit, % of nominal [setting]]]`; a setting, by a part of its name, is printed second by second.
//!
//! `found` has no unit: the capacity is known to 3 %, and a common gateway reports. `capacity` and `reported` have one
//! of the two.

#[path = "../tests/model/fairness_bench/mod.rs"]
mod bench;

use std::time::Duration;

use bench::{Bench, Tenant, latecomers, link, one_bottleneck, three_bottlenecks};
use keiro_model::fairness::{aimd::Provider, controller::ControllerConfig};
use keiro_units::Bandwidth;

fn settings(controller: ControllerConfig) -> Vec<(&'static str, Bench)> {
    let one = |links, tenants: Vec<Tenant>, seconds| Bench {
        links,
        tenants,
        controller,
        seconds,
        seed: 1,
        reports: false,
    };
    let lab = link(50.0, 50.0, 0.0);
    let staggered = |round_trip: f64| {
        (0..4)
            .map(|i| Tenant::new(1.0, round_trip, 5.0 * f64::from(i)))
            .collect::<Vec<_>>()
    };
    let mut idle = Tenant::new(1.0, 40.0, 0.0);
    idle.active = vec![(0.0, 15.0), (25.0, 1e9)];
    let mut changing = Tenant::new(1.0, 40.0, 0.0);
    changing.changes = vec![(20.0, 4.0)];
    let mut settings = vec![
        ("five tenants, background", one_bottleneck(controller, 1)),
        (
            "five tenants, background, seed 2",
            one_bottleneck(controller, 2),
        ),
        (
            "three bottlenecks, 10",
            three_bottlenecks(controller, 10.0, 1),
        ),
        (
            "three bottlenecks, 20",
            three_bottlenecks(controller, 20.0, 1),
        ),
        (
            "three bottlenecks, 30",
            three_bottlenecks(controller, 30.0, 1),
        ),
        (
            "lab, starts 5 s apart, 4 ms",
            one(vec![lab.clone()], staggered(4.0), 40),
        ),
        (
            "lab, starts 5 s apart, 50 ms",
            one(vec![lab.clone()], staggered(50.0), 40),
        ),
        (
            "5 ms against 150 ms",
            one(
                vec![link(50.0, 50.0, 0.3)],
                vec![Tenant::new(1.0, 5.0, 0.0), Tenant::new(1.0, 150.0, 0.0)],
                50,
            ),
        ),
        (
            "5 ms against 150 ms, no background",
            one(
                vec![lab.clone()],
                vec![Tenant::new(1.0, 5.0, 0.0), Tenant::new(1.0, 150.0, 0.0)],
                50,
            ),
        ),
        (
            "idles and returns",
            one(
                vec![lab.clone()],
                vec![Tenant::new(1.0, 40.0, 0.0), idle],
                50,
            ),
        ),
        (
            "weight changes",
            one(
                vec![link(50.0, 50.0, 0.3)],
                vec![Tenant::new(2.0, 40.0, 0.0), changing],
                50,
            ),
        ),
        (
            "one alone, 20 ms",
            one(vec![lab], vec![Tenant::new(1.0, 20.0, 0.0)], 30),
        ),
        (
            "forty of 50 Mbit/s",
            one(
                vec![link(50.0, 50.0, 0.3)],
                (0..40)
                    .map(|i| Tenant::new(1.0 + f64::from(i % 3), 20.0 + f64::from(i), 0.0))
                    .collect(),
                50,
            ),
        ),
        (
            "two of 1 Gbit/s, 500 packets",
            one(
                vec![link(1000.0, 500.0, 0.1)],
                vec![Tenant::new(1.0, 20.0, 0.0), Tenant::new(3.0, 40.0, 0.0)],
                20,
            ),
        ),
    ];
    let rates = [
        (1.0, "latecomers, 1 Mbit/s"),
        (10.0, "latecomers, 10 Mbit/s"),
        (50.0, "latecomers, 50 Mbit/s"),
        (1000.0, "latecomers, 1000 Mbit/s"),
    ];
    settings.extend(rates.map(|(mbit, name)| {
        (
            name,
            Bench {
                controller,
                ..latecomers(mbit)
            },
        )
    }));
    settings
}

/// `controller` of this setting: `percent` of what a weight of 1 gets.
fn controller_of(name: &str, percent: f64, bench: &Bench) -> ControllerConfig {
    let weights: f64 = bench.tenants.iter().map(|tenant| tenant.weight).sum();
    let share = match &bench.links[..] {
        [link] => link.mbit * (1.0 - link.background) / weights,
        _ => 3.5,
    };
    let unit = |mbit: f64| Bandwidth::from_bits_per_second((mbit * percent * 1e4) as u64);
    if name.starts_with("i2vfc") {
        // The round trip in the middle, and half of the buffer.
        let mut round_trips: Vec<f64> = bench.tenants.iter().map(|t| t.round_trip_ms).collect();
        round_trips.sort_by(f64::total_cmp);
        let buffer = bench
            .links
            .iter()
            .map(|link| link.buffer_packets * 12.0 / link.mbit);
        let middle = round_trips[round_trips.len() / 2] + buffer.sum::<f64>() / 2.0;
        return ControllerConfig::I2vfc(Provider {
            round_trip: Duration::from_secs_f64(middle / 1e3),
            unit: Some(unit(share)),
            spaced: name != "i2vfc-bursts",
            ..Provider::default()
        });
    }
    if name != "keiro" {
        return ControllerConfig::Keiro { unit: None };
    }
    ControllerConfig::Keiro {
        // Slow lines want half as much again.
        unit: Some(unit(if bench.links.len() > 1 { 5.0 } else { share })),
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let controller = arguments.next().unwrap_or_else(|| "keiro".into());
    let percent = arguments.next().and_then(|percent| percent.parse().ok());
    let only = arguments.next();
    for (name, mut bench) in settings(ControllerConfig::Open) {
        if only
            .as_ref()
            .is_some_and(|only| !name.contains(only.as_str()))
        {
            continue;
        }
        bench.reports = ["found", "reported"].contains(&controller.as_str());
        for (index, tenant) in bench.tenants.iter_mut().enumerate() {
            let known = ["found", "capacity"].contains(&controller.as_str());
            tenant.capacity = if known { [1.03, 0.97][index % 2] } else { 0.0 };
        }
        bench.controller = controller_of(&controller, percent.unwrap_or(100.0), &bench);
        let outcome = bench.run();
        println!("{name:38} {}", outcome.line());
        if name.starts_with("latecomers") {
            let settled = &outcome.fairness()[10..15];
            let alone: f64 = outcome.rates[30..].iter().map(|rates| rates[3]).sum();
            println!(
                "{:38} F after 5 s {settled:.3?}, alone {:.3} Mbit/s",
                "",
                alone / 5.0
            );
        }
        if only.is_some() {
            for (second, rates) in outcome.rates.iter().enumerate() {
                let rates: Vec<String> = rates.iter().map(|rate| format!("{rate:6.2}")).collect();
                println!("  {second:3} {}", rates.join(" "));
            }
        }
    }
}
