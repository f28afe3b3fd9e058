//! What the controllers make of a bottleneck, on the bench.
//!
//! `cargo run --release -p keiro-model --example fair_shares` prints all settings.

use keiro_model::fairness::{aimd::Provider, controller::ControllerConfig};
use keiro_units::Bandwidth;

use crate::fairness_bench::{Bench, Tenant, link, one_bottleneck, three_bottlenecks};

fn keiro(kbit: u64) -> ControllerConfig {
    ControllerConfig::Keiro {
        unit: Bandwidth::from_bits_per_second(kbit * 1000),
    }
}

/// Few flows over the lab's bottleneck, of weight 1 if nothing else is said.
fn lab(
    controller: ControllerConfig,
    background: f64,
    tenants: Vec<Tenant>,
    seconds: usize,
) -> Bench {
    Bench {
        links: vec![link(50.0, 50.0, background)],
        tenants,
        controller,
        seconds,
        seed: 1,
    }
}

#[test]
fn five_weights_and_round_trips_share_one_bottleneck() {
    for seed in [1, 2] {
        let outcome = one_bottleneck(keiro(3900), seed).run();
        let line = outcome.line();
        assert!(outcome.mean_fairness() >= 0.98, "seed {seed}: {line}");
        assert!(outcome.used[0] >= 0.97, "seed {seed}: {line}");
        // Half of what 50 packets take.
        assert!(outcome.queue_ms[0] <= 6.0, "seed {seed}: {line}");
    }
}

#[test]
fn a_unit_that_is_wrong_by_four_costs_queue_or_use_but_not_shares() {
    for (kbit, used) in [(1000, 0.9), (16_000, 0.99)] {
        let outcome = one_bottleneck(keiro(kbit), 1).run();
        let line = outcome.line();
        assert!(outcome.mean_fairness() >= 0.98, "{kbit} kbit/s: {line}");
        assert!(outcome.used[0] >= used, "{kbit} kbit/s: {line}");
    }
}

#[test]
fn three_bottlenecks_are_shared_by_max_min() {
    for b3 in [10.0, 20.0, 30.0] {
        let outcome = three_bottlenecks(keiro(5000), b3, 1).run();
        let line = outcome.line();
        assert!(outcome.mean_fairness() >= 0.97, "{b3} Mbit/s: {line}");
        assert!(
            outcome.used.iter().all(|used| *used >= 0.96),
            "{b3}: {line}"
        );
    }
}

#[test]
fn round_trips_do_not_matter() {
    let tenants = vec![Tenant::new(1.0, 5.0, 0.0), Tenant::new(1.0, 150.0, 0.0)];
    let outcome = lab(keiro(22_000), 0.3, tenants, 40).run();
    assert!(outcome.mean_fairness() >= 0.98, "{}", outcome.line());
    assert!(outcome.used[0] >= 0.97, "{}", outcome.line());
}

#[test]
fn late_starter_has_its_share_within_five_seconds() {
    let starts = [0.0, 5.0, 10.0, 15.0];
    let tenants = starts.map(|start| Tenant::new(1.0, 4.0, start)).to_vec();
    let outcome = lab(keiro(12_500), 0.0, tenants, 40).run();
    // Seconds are counted from 10.
    let settled = &outcome.fairness()[10..];
    let worst = settled.iter().copied().fold(1.0, f64::min);
    assert!(worst >= 0.98, "{worst}: {}", outcome.line());
    assert!(outcome.used[0] >= 0.97, "{}", outcome.line());
}

#[test]
fn an_idle_share_is_used_and_given_back() {
    let mut idle = Tenant::new(1.0, 40.0, 0.0);
    idle.active = vec![(0.0, 15.0), (25.0, 1e9)];
    let outcome = lab(
        keiro(25_000),
        0.0,
        vec![Tenant::new(1.0, 40.0, 0.0), idle],
        50,
    )
    .run();
    let alone = outcome.rates[20][0];
    assert!(alone >= 45.0, "{alone} of 50 Mbit/s");
    let settled = &outcome.fairness()[20..];
    let worst = settled.iter().copied().fold(1.0, f64::min);
    assert!(worst >= 0.98, "{worst}: {}", outcome.line());
    // Alone with twice its unit, a tenant is to keep a queue that does not run empty.
    assert!(outcome.used[0] >= 0.975, "{}", outcome.line());
}

#[test]
fn a_changed_weight_is_followed() {
    let mut changing = Tenant::new(1.0, 40.0, 0.0);
    changing.changes = vec![(20.0, 3.0)];
    let bench = lab(
        keiro(15_000),
        0.3,
        vec![Tenant::new(1.0, 40.0, 0.0), changing],
        50,
    );
    let outcome = bench.run();
    let settled = &outcome.fairness()[15..];
    let mean = settled.iter().sum::<f64>() / settled.len() as f64;
    assert!(mean >= 0.98, "{mean}: {}", outcome.line());
}

#[test]
fn the_papers_controller_shares_too_but_less_evenly() {
    let outcome = one_bottleneck(ControllerConfig::I2vfc(Provider::default()), 1).run();
    let line = outcome.line();
    assert!(outcome.mean_fairness() >= 0.85, "{line}");
    assert!(outcome.used[0] >= 0.97, "{line}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = || one_bottleneck(keiro(4000), 7).run().rates;
    assert_eq!(run(), run());
}
