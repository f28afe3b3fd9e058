//! What the controllers make of a bottleneck, on the bench.
//!
//! `cargo run --release -p keiro-model --example fair_shares` prints all settings.

use std::time::Duration;

use keiro_model::fairness::{
    aimd::{Aimd, Provider},
    controller::{ControllerConfig, Weight},
    shares::{Flow, max_min},
};
use keiro_units::{Bandwidth, Probability};
use proptest::prelude::*;
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

use crate::fairness_bench::{
    Bench, Link, Outcome, Tenant, latecomers, link, one_bottleneck, three_bottlenecks,
};

fn keiro(kbit: u64) -> ControllerConfig {
    ControllerConfig::Keiro {
        unit: Some(Bandwidth::from_bits_per_second(kbit * 1000)),
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
        reports: false,
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

/// A bench without a configured unit: ingresses know the capacity to 3 %, and what the path takes without a queue.
fn found(bench: Bench, reports: bool) -> Bench {
    let mut bench = Bench {
        controller: ControllerConfig::Keiro { unit: None },
        reports,
        ..bench
    };
    for (index, tenant) in bench.tenants.iter_mut().enumerate() {
        tenant.capacity = [1.03, 0.97][index % 2];
        tenant.knows_way = true;
    }
    bench
}

/// Least F from 5 s after the last of four has begun, and the part of the line that one gets from 5 s after the others
/// have ended.
fn settled(outcome: &Outcome, mbit: f64) -> (f64, f64) {
    // Seconds are counted from 10.
    let least = outcome.fairness()[10..15]
        .iter()
        .copied()
        .fold(1.0, f64::min);
    let alone: f64 = outcome.rates[30..].iter().map(|rates| rates[3]).sum();
    (least, alone / 5.0 / mbit)
}

#[test]
fn latecomers_have_their_shares_in_five_seconds_without_a_configured_unit() {
    // At 1 Mbit/s the queue is about a packet, and empty now and then.
    for (mbit, least, alone) in [(1.0, 0.98, 0.88), (10.0, 0.98, 0.93), (50.0, 0.98, 0.93)] {
        let outcome = found(latecomers(mbit), true).run();
        let reached = settled(&outcome, mbit);
        println!("{mbit} Mbit/s: {reached:.3?}, {}", outcome.line());
        assert!(
            reached.0 >= least && reached.1 >= alone,
            "{mbit}: {reached:?}"
        );
    }
}

/// `cargo test -p keiro-model --test model -- --ignored latecomers --nocapture`: a minute.
#[test]
#[ignore = "takes a minute; the slower lines of the same test are not ignored"]
fn latecomers_have_their_shares_on_fast_lines_too() {
    for mbit in [1000.0, 10_000.0] {
        let outcome = found(latecomers(mbit), true).run();
        let reached = settled(&outcome, mbit);
        println!("{mbit} Mbit/s: {reached:.3?}, {}", outcome.line());
        assert!(
            reached.0 >= 0.98 && reached.1 >= 0.93,
            "{mbit}: {reached:?}"
        );
    }
}

#[test]
fn ingresses_that_share_no_egress_share_by_the_capacity() {
    for mbit in [10.0, 50.0] {
        let outcome = found(latecomers(mbit), false).run();
        let reached = settled(&outcome, mbit);
        assert!(
            reached.0 >= 0.98 && reached.1 >= 0.93,
            "{mbit}: {reached:?}"
        );
    }
}

#[test]
fn a_reported_unit_suits_the_settings_of_the_paper() {
    let one = found(one_bottleneck(keiro(4000), 1), true).run();
    let line = one.line();
    assert!(one.mean_fairness() >= 0.99 && one.used[0] >= 0.97, "{line}");
    assert!(one.queue_ms[0] <= 6.0, "{line}");
    for b3 in [10.0, 20.0, 30.0] {
        let three = found(three_bottlenecks(keiro(4000), b3, 1), true).run();
        let line = three.line();
        assert!(three.mean_fairness() >= 0.97, "{b3} Mbit/s: {line}");
        assert!(three.used.iter().all(|used| *used >= 0.92), "{b3}: {line}");
    }
}

#[test]
fn the_papers_controller_shares_too_but_less_evenly() {
    let outcome = one_bottleneck(ControllerConfig::I2vfc(Provider::default()), 1).run();
    let line = outcome.line();
    assert!(outcome.mean_fairness() >= 0.85, "{line}");
    assert!(outcome.used[0] >= 0.97, "{line}");
}

/// The paper's controller with the parameters of fig. 7 and this reference round trip. `mbit`: what a
/// weight of 1 gets; `None`: b from the round trip alone.
fn i2vfc(round_trip_ms: f64, mbit: Option<f64>) -> ControllerConfig {
    ControllerConfig::I2vfc(Provider {
        aimd: Aimd::new(0.5, 0.01).expect("within bounds"),
        round_trip: Duration::from_secs_f64(round_trip_ms / 1e3),
        unit: mbit.map(|mbit| Bandwidth::from_bits_per_second((mbit * 1e6) as u64)),
        ..Provider::default()
    })
}

/// Mean F of the last hundred seconds.
fn at_the_end(outcome: &Outcome) -> f64 {
    let fairness = outcome.fairness();
    let last = &fairness[fairness.len() - 100..];
    last.iter().sum::<f64>() / last.len() as f64
}

#[test]
fn i2vfc_shares_three_bottlenecks_in_the_long_run_because_it_measures_loss() {
    for b3 in [10.0, 20.0, 30.0] {
        let waits = 200.0 * 6.0 * (1.0 / 20.0 + 1.0 / 10.0 + 1.0 / b3);
        let [by_loss, by_round_trip] = [Some(3.5), None].map(|mbit| {
            let mut bench = three_bottlenecks(i2vfc(waits, mbit), b3, 1);
            bench.seconds = 400;
            at_the_end(&bench.run())
        });
        println!("{b3} Mbit/s: {by_loss:.3}, by the round trip alone {by_round_trip:.3}");
        assert!(by_loss >= 0.95, "{b3} Mbit/s: {by_loss}");
        assert!(by_loss >= by_round_trip + 0.02, "{b3}: {by_round_trip}");
    }
}

/// Tenants with random round trips that cross one to three of three links, so that their losses differ.
/// Weights are max-min fair.
fn random_mix(seed: u64) -> Bench {
    let mut random = ChaCha12Rng::seed_from_u64(seed);
    let mut below = |bound: u64| (random.next_u64() % bound) as usize;
    let links: Vec<Link> = (0..3)
        .map(|_| link(10.0 + below(3) as f64 * 5.0, 100.0, 0.3))
        .collect();
    // One over all, one over each link, and two over any.
    let mut routes = vec![vec![0, 1, 2], vec![0], vec![1], vec![2]];
    for _ in 0..2 {
        let first = below(3);
        routes.push((first..=first + below(3 - first as u64)).collect());
    }
    let flows: Vec<Flow> = routes
        .iter()
        .map(|route| Flow {
            weight: Weight::ONE,
            route: route.clone(),
        })
        .collect();
    let left = |link: &Link| Bandwidth::from_bits_per_second((link.mbit * 0.7e6) as u64);
    let capacities: Vec<Bandwidth> = links.iter().map(left).collect();
    let rates = max_min(&capacities, &flows).expect("all are bounded");
    let share = rates[0];
    let tenants = routes
        .into_iter()
        .zip(&rates)
        .map(|(route, rate)| Tenant {
            route,
            ..Tenant::new(
                rate / share,
                20.0 + below(130) as f64,
                below(1000) as f64 / 1e3,
            )
        })
        .collect();
    Bench {
        links,
        tenants,
        controller: i2vfc(200.0, Some(share / 1e6)),
        seconds: 200,
        seed,
        reports: false,
    }
}

#[test]
fn i2vfc_shares_whatever_the_mix_of_losses_and_round_trips() {
    // By the round trip alone it is 0.90 to 0.99.
    for seed in 0..6 {
        let found = at_the_end(&random_mix(seed).run());
        assert!(found >= 0.965, "seed {seed}: {found}");
    }
}

/// Packets per second of a window that loses every 1/p-th packet.
fn simulated_rate(aimd: Aimd, window: f64, loss: f64, round_trip: f64) -> f64 {
    let every = (1.0 / loss).round() as u64;
    let [warm_up, counted] = [100, 100].map(|losses| losses * every);
    let (mut window, mut seconds) = (window, 0.0);
    for packet in 1..=warm_up + counted {
        seconds += if packet > warm_up {
            round_trip / window
        } else {
            0.0
        };
        if packet % every == 0 {
            window *= 1.0 - aimd.decrease();
        } else {
            window += aimd.increase() / window;
        }
    }
    counted as f64 / seconds
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_window_carries_the_rate_that_b_was_set_for(
        increase in 0.01..2.0_f64,
        log_loss in -4.0..-1.3_f64,
        window in 4.0..300.0_f64,
        ms in 1..800_u64,
    ) {
        let loss = 1.0 / (10f64.powf(-log_loss)).round();
        let round_trip = Duration::from_millis(ms);
        let r = round_trip.as_secs_f64();
        let wanted = window / r;
        let p = Probability::new(loss).unwrap();
        let aimd = Aimd::for_rate(increase, wanted, p, round_trip).unwrap();
        let met = simulated_rate(aimd, window, loss, r);
        prop_assert!((met / wanted - 1.0).abs() < 0.06, "{aimd:?}: {met} of {wanted}");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = || one_bottleneck(keiro(4000), 7).run().rates;
    assert_eq!(run(), run());
}
