//! Properties of aggregation controllers under whatever is observed.

use std::time::Duration;

use keiro_model::aggregation::{
    BURST_MAX, ControllerKind, DeliveryCounts, Limits, Observation, Parameters, Settings, fits,
    within,
};
use keiro_units::{Bandwidth, ByteCount, Instant, Probability};
use proptest::prelude::*;

const WIDE: Bandwidth = Bandwidth::from_mbit_per_second(100);

fn any_settings() -> impl Strategy<Value = Settings> {
    let intervals = prop::collection::btree_set(50u64..=20_000, 1..6);
    let copies = prop::collection::btree_set(1u8..=6, 1..5);
    let sizes = prop::collection::vec(119u64..=20_000, 3);
    (intervals, copies, sizes, any::<u16>()).prop_map(|(intervals, copies, mut sizes, pick)| {
        sizes.sort_unstable();
        let intervals: Vec<Duration> = intervals.into_iter().map(Duration::from_micros).collect();
        let copies: Vec<u8> = copies.into_iter().collect();
        let pick = usize::from(pick);
        Settings {
            interval_initial: intervals[pick % intervals.len()],
            intervals,
            copies_initial: copies[pick % copies.len()],
            copies,
            size_min: ByteCount::new(sizes[0]),
            size_initial: ByteCount::new(sizes[1]),
            size_max: ByteCount::new(sizes[2]),
            ..Settings::default()
        }
    })
}

prop_compose! {
    fn any_observation()(
        overflows in prop_oneof![Just(0u64), 0u64..10, 0u64..100_000],
        sent in prop_oneof![Just(0u64), 1u64..2000, Just(100_000u64)],
        lost in 0.0f64..=1.0,
        copies_lost in 0.0f64..=1.0,
        bandwidth in 0u64..200_000_000,
        used in 0.0f64..2.0,
        offered in 0.0f64..2.0,
        queueing in prop::option::of(0u64..50_000),
        spread in prop::option::of(0.5f64..5.0),
        period_ms in 0u64..400,
    ) -> Observation {
        let rate = |part: f64| Bandwidth::from_bits_per_second((bandwidth as f64 * part) as u64);
        Observation {
            period: Duration::from_millis(period_ms),
            socket_overflows: overflows / 2,
            socket_overflows_before: overflows / 4,
            system_overflows: overflows - overflows / 2,
            aggregates: DeliveryCounts { sent, lost: (sent as f64 * lost) as u64 },
            copies: DeliveryCounts { sent: 2 * sent, lost: (2.0 * sent as f64 * copies_lost) as u64 },
            bandwidth: Bandwidth::from_bits_per_second(bandwidth),
            sent: rate(used),
            offered: rate(offered),
            queueing: queueing.map(Duration::from_micros),
            spread,
        }
    }
}

fn any_kind() -> impl Strategy<Value = ControllerKind> {
    prop::sample::select(ControllerKind::BUILT_IN.to_vec())
}

fn check(limits: &Limits, found: &Parameters, bandwidth: Bandwidth) {
    assert!(limits.contain(found), "{found}");
    assert!(found.rate() <= bandwidth, "{found} on {bandwidth}");
    let least = found.copies() == limits.copies_min() && found.size() == limits.size_min();
    assert!(least || found.burst() <= bandwidth.bytes_in_floor(BURST_MAX));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn parameters_stay_among_their_values_and_within_the_bandwidth(
        settings in any_settings(),
        kind in any_kind(),
        seen in prop::collection::vec(any_observation(), 1..120),
    ) {
        let limits = Limits::try_from(settings).unwrap();
        let first = Bandwidth::from_mbit_per_second(10_000_000);
        let mut controller = kind.controller(limits.clone(), first).unwrap();
        let mut now = Instant::ZERO;
        for seen in seen {
            now += seen.period;
            let before = controller.parameters();
            match controller.on_period(now, &seen) {
                Ok(decision) => {
                    check(&limits, &decision.parameters, seen.bandwidth);
                    prop_assert_eq!(decision.parameters, controller.parameters());
                    prop_assert_eq!(decision.before, before);
                    prop_assert!(!decision.to_string().is_empty());
                }
                Err(refused) => {
                    prop_assert!(seen.bandwidth < limits.bandwidth_min());
                    prop_assert_eq!(refused.smallest, limits.smallest());
                    prop_assert_eq!(controller.parameters(), before);
                }
            }
        }
    }

    #[test]
    fn under_constant_conditions_every_controller_comes_to_rest(
        kind in any_kind(),
        mut seen in any_observation(),
    ) {
        let limits = Limits::default();
        seen.bandwidth = seen.bandwidth.max(limits.bandwidth_min());
        seen.period = Duration::from_millis(50);
        let mut controller = kind.controller(limits, WIDE).unwrap();
        let mut now = Instant::ZERO;
        let mut changes_after = |periods: u32| {
            let mut changes = 0;
            for _ in 0..periods {
                now += seen.period;
                let decision = controller.on_period(now, &seen).unwrap();
                changes += u32::from(decision.is_change());
            }
            changes
        };
        // Two minutes to settle in, and two more: a step that failed is tried again every ten
        // seconds at most, and nothing else moves.
        let (first, second) = (changes_after(2400), changes_after(2400));
        prop_assert!(first <= 120, "{} changes", first);
        prop_assert!(second <= 16, "{} changes still", second);
    }

    #[test]
    fn the_bound_gives_the_nearest_combination_and_leaves_what_fits(
        settings in any_settings(),
        size in 0u64..30_000,
        interval in any::<prop::sample::Index>(),
        copies in any::<prop::sample::Index>(),
        bandwidth in 0u64..400_000_000,
    ) {
        let limits = Limits::try_from(settings).unwrap();
        let size = ByteCount::new(size).clamp(limits.size_min(), limits.size_max());
        let wanted = Parameters::new(
            size,
            *interval.get(limits.intervals()),
            *copies.get(limits.copies()),
        )
        .unwrap();
        let bandwidth = Bandwidth::from_bits_per_second(bandwidth);
        match within(wanted, &limits, bandwidth) {
            Ok(found) => {
                check(&limits, &found, bandwidth);
                prop_assert!(found.size() <= wanted.size());
                prop_assert!(found.interval() >= wanted.interval());
                prop_assert!(found.copies() <= wanted.copies());
                prop_assert_eq!(within(found, &limits, bandwidth), Ok(found));
                prop_assert_eq!(fits(&wanted, &limits, bandwidth), found == wanted);
            }
            Err(refused) => {
                prop_assert!(refused.needed() > bandwidth);
                prop_assert!(!fits(&limits.smallest(), &limits, bandwidth));
            }
        }
    }
}

#[test]
fn losses_of_one_and_the_largest_thresholds_are_accepted() {
    let mut settings = Settings::default();
    let largest = Probability::new(0.5 - f64::EPSILON).unwrap();
    settings.thresholds.loss_high = largest;
    settings.thresholds.loss_target = largest;
    let limits = Limits::try_from(settings).unwrap();
    for kind in ControllerKind::BUILT_IN {
        let mut controller = kind.controller(limits.clone(), WIDE).unwrap();
        let all_lost = Observation {
            period: Duration::from_millis(50),
            aggregates: DeliveryCounts { sent: 50, lost: 60 },
            copies: DeliveryCounts {
                sent: 100,
                lost: u64::MAX,
            },
            socket_overflows: u64::MAX,
            system_overflows: u64::MAX,
            bandwidth: WIDE,
            ..Observation::default()
        };
        for period in 0..100 {
            let now = Instant::ZERO + Duration::from_millis(50) * period;
            controller.on_period(now, &all_lost).unwrap();
        }
    }
}
