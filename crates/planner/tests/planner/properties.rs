//! What must hold for all inputs.

use std::time::Duration;

use keiro_planner::{
    delay::{self, AppSpec, Delay, Equation3, OverloadPolicy, PathSpec, Tolerance},
    plan::{self, Problem},
    queueing::{Gateway, Outcome, Resolution, Scheduler, WireFormat},
};
use keiro_units::{Bandwidth, ByteCount};
use proptest::prelude::*;

fn bandwidths() -> impl Strategy<Value = Bandwidth> {
    prop_oneof![
        1_000_u64..10_000_000_000,
        any::<u64>(),
        Just(0),
        Just(u64::MAX)
    ]
    .prop_map(Bandwidth::from_bits_per_second)
}

fn byte_counts() -> impl Strategy<Value = ByteCount> {
    prop_oneof![0_u64..20_000_000, any::<u64>()].prop_map(ByteCount::new)
}

fn durations() -> impl Strategy<Value = Duration> {
    prop_oneof![0_u64..10_000_000_000, any::<u64>()].prop_map(Duration::from_nanos)
}

prop_compose! {
    fn paths()(bandwidth in bandwidths(), delay in durations()) -> PathSpec {
        PathSpec { bandwidth, delay }
    }
}

prop_compose! {
    fn apps()(
        length in byte_counts(),
        interval in durations(),
        latency_target in proptest::option::of(durations()),
    ) -> AppSpec {
        AppSpec { length, interval, latency_target }
    }
}

prop_compose! {
    /// On 10 to 1000 Mbit/s anything from idle to overloaded.
    fn everyday_apps()(
        length in 1_u64..1_000_000,
        interval_millis in 20_u64..1_000,
        latency_target_millis in proptest::option::of(1_u64..1_000),
    ) -> AppSpec {
        AppSpec {
            length: ByteCount::new(length),
            interval: Duration::from_millis(interval_millis),
            latency_target: latency_target_millis.map(Duration::from_millis),
        }
    }
}

prop_compose! {
    fn everyday_paths()(mbit in 10_u64..1_000, millis in 0_u64..100) -> PathSpec {
        PathSpec {
            bandwidth: Bandwidth::from_mbit_per_second(mbit),
            delay: Duration::from_millis(millis),
        }
    }
}

fn saturations() -> impl Strategy<Value = OverloadPolicy> {
    prop_oneof![
        Just(OverloadPolicy::AsPrinted),
        Just(OverloadPolicy::Refused)
    ]
}

/// Reads back what a quantity displays.
fn exact_value(shown: &str) -> u128 {
    let unit = shown.find(|c: char| c.is_alphabetic()).unwrap();
    let (number, unit) = shown.split_at(unit);
    let digits = match unit.chars().next().unwrap() {
        'G' => 9,
        'M' => 6,
        'k' => 3,
        _ => 0,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    assert!(fraction.len() <= digits, "{shown}");
    format!("{whole}{fraction:0<digits$}").parse().unwrap()
}

proptest! {
    // Failures are printed whole; integration tests have no file to keep them in.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn display_round_trips(bits in any::<u64>(), bytes in any::<u64>()) {
        let rate = Bandwidth::from_bits_per_second(bits).to_string();
        prop_assert_eq!(exact_value(&rate), u128::from(bits));
        prop_assert_eq!(exact_value(&ByteCount::new(bytes).to_string()), u128::from(bytes));
    }

    #[test]
    fn roundings_enclose_the_quotient(rate in bandwidths(), bytes in byte_counts()) {
        let floor = rate.transmission_time_floor(bytes);
        let nearest = rate.transmission_time_nearest(bytes);
        let ceil = rate.transmission_time_ceil(bytes);
        prop_assert!(floor <= nearest && nearest <= ceil);
        prop_assert!(ceil.saturating_sub(floor) <= Duration::from_nanos(1));
    }

    #[test]
    fn what_is_sent_in_its_transmission_time_is_all(
        rate in 1_u64..100_000_000_000,
        bytes in 0_u64..1_000_000_000,
    ) {
        let (rate, bytes) = (Bandwidth::from_bits_per_second(rate), ByteCount::new(bytes));
        prop_assert!(rate.bytes_in_floor(rate.transmission_time_ceil(bytes)) >= bytes);
        prop_assert!(rate.bytes_in_floor(rate.transmission_time_floor(bytes)) <= bytes);
    }

    #[test]
    fn a_rate_over_an_interval_brings_the_bytes(
        bytes in 0_u64..1_000_000_000,
        millis in 1_u64..1_000_000,
    ) {
        let (bytes, interval) = (ByteCount::new(bytes), Duration::from_millis(millis));
        prop_assert!(bytes.rate_over_ceil(interval).bytes_in_floor(interval) >= bytes);
        prop_assert!(bytes.rate_over_floor(interval).bytes_in_floor(interval) <= bytes);
    }

    #[test]
    fn equation_3_without_others_is_equation_1(path in paths(), app in apps()) {
        let shared = delay::shared(&path, &app, Bandwidth::ZERO);
        prop_assert_eq!(shared, delay::alone(&path, &app));
    }

    #[test]
    fn added_load_never_shortens_a_delay(
        path in paths(),
        app in apps(),
        saturation in saturations(),
        few in bandwidths(),
        more in bandwidths(),
    ) {
        let equation = Equation3 { saturation };
        let with = |others| equation.predict(&path, &app, others).delay;
        prop_assert!(with(few) <= with(few.saturating_add(more)));
        prop_assert!(with(few) >= Delay::Finite(path.delay));
    }

    #[test]
    fn the_largest_bearable_load_is_just_that(
        path in everyday_paths(),
        app in everyday_apps(),
        saturation in saturations(),
        limit in 0_u64..2_000_000_000,
    ) {
        let equation = Equation3 { saturation };
        let limit = Duration::from_nanos(limit);
        let one = Bandwidth::from_bits_per_second(1);
        let is_met = |others| {
            equation.predict(&path, &app, others).delay <= Delay::Finite(limit)
        };
        match equation.others_max(&path, &app, limit) {
            Some(most) => {
                prop_assert!(is_met(most));
                prop_assert!(!is_met(most.saturating_add(one)));
            }
            None => prop_assert!(!is_met(Bandwidth::ZERO)),
        }
    }

    #[test]
    fn tolerance_only_loosens(latency_target in durations(), ppm in any::<u32>(), more in any::<u32>()) {
        let tolerance = Tolerance::from_ppm(ppm);
        let looser = Tolerance::from_ppm(ppm.saturating_add(more));
        prop_assert!(latency_target <= tolerance.loosen(latency_target));
        prop_assert!(tolerance.loosen(latency_target) <= looser.loosen(latency_target));
        prop_assert_eq!(Tolerance::STRICT.loosen(latency_target), latency_target);
    }

    #[test]
    fn extreme_values_do_not_panic(
        paths in proptest::collection::vec(paths(), 1..4),
        apps in proptest::collection::vec(apps(), 0..5),
        saturation in saturations(),
    ) {
        let model = Equation3 { saturation };
        let problem = Problem::new(&paths, &apps, &model).unwrap();
        let greedy = plan::greedy(&problem);
        let exact = plan::exact(&problem, plan::Budget::new(2_000));
        prop_assert!(exact.plan.score <= greedy.score);
        let members: Vec<usize> = (0..apps.len()).collect();
        let wire = WireFormat::new(ByteCount::new(1200), ByteCount::new(80)).unwrap();
        for scheduler in [Scheduler::Fifo, Scheduler::Deadline] {
            let gateway = Gateway {
                resolution: Resolution::new(64),
                ..Gateway::new(scheduler, wire)
            };
            prop_assert_eq!(gateway.forecast(&paths[0], &apps, &members).len(), apps.len());
        }
    }

    #[test]
    fn an_alternative_is_what_moving_there_gives(
        paths in proptest::collection::vec(everyday_paths(), 1..4),
        apps in proptest::collection::vec(everyday_apps(), 1..8),
        app in any::<prop::sample::Index>(),
    ) {
        let model = Equation3::default();
        let problem = Problem::new(&paths, &apps, &model).unwrap();
        let plan = plan::greedy(&problem);
        let app = app.index(apps.len());
        for alternative in plan::alternatives(&problem, &plan.assignment, app) {
            let mut moved = plan.assignment.clone();
            moved[app] = alternative.path;
            let there = problem.evaluate(&moved);
            prop_assert_eq!(alternative.score, there.score);
            prop_assert_eq!(alternative.prediction, there.predictions[app]);
            prop_assert_eq!(alternative.current, alternative.path == plan.assignment[app]);
        }
    }

    #[test]
    fn a_distribution_is_in_order_and_above_its_floor(
        path in everyday_paths(),
        apps in proptest::collection::vec(everyday_apps(), 1..6),
        deadline in any::<bool>(),
    ) {
        let wire = WireFormat::new(ByteCount::new(1200), ByteCount::new(80)).unwrap();
        let scheduler = if deadline { Scheduler::Deadline } else { Scheduler::Fifo };
        let gateway = Gateway {
            resolution: Resolution::COARSE,
            ..Gateway::new(scheduler, wire)
        };
        let members: Vec<usize> = (0..apps.len()).collect();
        for forecast in gateway.forecast(&path, &apps, &members) {
            let Outcome::Stable(delay) = forecast.outcome else {
                prop_assert!(forecast.terms.load >= 0.999_999);
                continue;
            };
            let floor = forecast.terms.propagation + forecast.terms.transmission;
            prop_assert!(floor <= delay.p50);
            prop_assert!(delay.p50 <= delay.p95);
            prop_assert!(delay.p95 <= delay.p99);
            prop_assert!(floor <= delay.mean);
        }
    }

    #[test]
    fn of_equal_messages_the_more_urgent_is_not_later(
        path in everyday_paths(),
        others in proptest::collection::vec(everyday_apps(), 0..4),
        app in everyday_apps(),
        sooner in 1_u64..500,
        later in 1_u64..500,
    ) {
        let wire = WireFormat::new(ByteCount::new(1200), ByteCount::new(80)).unwrap();
        let gateway = Gateway {
            resolution: Resolution::new(512),
            ..Gateway::new(Scheduler::Deadline, wire)
        };
        let mut apps = others;
        for millis in [sooner, sooner + later] {
            apps.push(AppSpec { latency_target: Some(Duration::from_millis(millis)), ..app });
        }
        let members: Vec<usize> = (0..apps.len()).collect();
        let forecasts = gateway.forecast(&path, &apps, &members);
        let [sooner, later] = [forecasts.len() - 2, forecasts.len() - 1].map(|index| {
            forecasts[index].mean_waiting().map_or(f64::INFINITY, |wait| wait.as_secs_f64())
        });
        // What the lattice is good for.
        prop_assert!(sooner <= later * 1.02 + 1e-5, "{} {}", sooner, later);
    }
}
