use std::time::Duration;

use keiro_planner::{
    delay::{AppSpec, Equation3, OverloadPolicy, PathSpec},
    plan::{self, Budget, Order, Problem},
};
use keiro_units::{Bandwidth, ByteCount};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

use super::*;

struct Draw(ChaCha12Rng);

impl Draw {
    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.0.next_u64() % (high - low + 1)
    }

    fn paths(&mut self, count: usize) -> Vec<PathSpec> {
        let path = |_| PathSpec {
            bandwidth: Bandwidth::from_mbit_per_second(self.between(50, 500)),
            delay: Duration::from_millis(self.between(1, 60)),
        };
        (0..count).map(path).collect()
    }

    /// Applications of up to `rate_mbit` each, some without a target.
    fn apps(&mut self, count: usize, rate_mbit: u64) -> Vec<AppSpec> {
        let app = |_| {
            let length = self.between(1_000, 300_000);
            let nanos = length * 8_000 / self.between(1, rate_mbit);
            AppSpec {
                length: ByteCount::new(length),
                interval: Duration::from_nanos(nanos),
                latency_target: (self.between(0, 4) > 0)
                    .then(|| Duration::from_millis(self.between(5, 200))),
            }
        };
        (0..count).map(app).collect()
    }
}

#[test]
fn a_bound_is_never_above_the_best_score() {
    let (mut tight, mut unmet, mut overloaded) = (0, 0, 0);
    for seed in 0..300 {
        let mut draw = Draw(ChaCha12Rng::seed_from_u64(seed));
        let (paths, rate_mbit) = (draw.paths(3), [20, 100, 300][seed as usize % 3]);
        let apps = draw.apps(7, rate_mbit);
        let model = Equation3 {
            saturation: [OverloadPolicy::Refused, OverloadPolicy::AsPrinted][seed as usize % 2],
        };
        for order in [Order::LatenessFirst, Order::DelayFirst] {
            let problem = Problem::new(&paths, &apps, &model)
                .unwrap()
                .with_order(order);
            let best = plan::exact(&problem, Budget::new(u64::MAX));
            assert!(best.is_optimal);
            let score = best.plan.score;
            unmet += usize::from(score.unmet > 0);
            overloaded += usize::from(score.overloaded > 0);
            // A bound holds whatever plan it begins with.
            for plan in [best.plan, plan::greedy(&problem)] {
                for work in [0, 1_000, 20_000] {
                    let bound = bound(&problem, model, &plan, work);
                    let is_valid = bound.compare(&score, order).is_le();
                    assert!(
                        is_valid,
                        "seed {seed}, {order:?}: {bound:?} above {score:?}"
                    );
                    tight +=
                        usize::from(gap(&score, &bound, order).is_some_and(|g| g.relative < 0.05));
                }
            }
        }
    }
    assert!(
        tight > 300 && unmet > 100 && overloaded > 20,
        "{tight} {unmet} {overloaded}"
    );
}

#[test]
fn large_plans_are_proven_to_be_within_one_per_cent() {
    for seed in 0..5 {
        let mut draw = Draw(ChaCha12Rng::seed_from_u64(seed));
        let paths = draw.paths(10);
        // A quarter of the bandwidth.
        let apps: Vec<AppSpec> = (0..100)
            .map(|_| AppSpec {
                length: ByteCount::new(draw.between(1_000, 300_000)),
                interval: Duration::from_millis(draw.between(100, 250)),
                latency_target: Some(Duration::from_millis(draw.between(60, 400))),
            })
            .collect();
        let model = Equation3::default();
        let problem = Problem::new(&paths, &apps, &model).unwrap();
        let plan = plan::exact(&problem, Budget::default()).plan;
        let bound = bound(&problem, model, &plan, WORK);
        let gap = gap(&plan.score, &bound, Order::LatenessFirst).unwrap();
        assert_eq!(gap.objective, Objective::Delay, "seed {seed}: {gap:?}");
        assert!(gap.relative < 0.01, "seed {seed}: {gap:?}");
    }
}

#[test]
fn the_gap_is_where_score_and_bound_first_differ() {
    let score = |unmet, lateness, delay| Score {
        unmet,
        overloaded: 0,
        lateness: Duration::from_millis(lateness),
        delay: Duration::from_millis(delay),
    };
    let found = |bound, order| {
        gap(&score(2, 30, 500), &bound, order)
            .map(|gap| (gap.objective, (gap.relative * 100.0).round()))
    };
    let first = Order::LatenessFirst;
    assert_eq!(
        found(score(1, 20, 400), first),
        Some((Objective::Unmet, 100.0))
    );
    assert_eq!(
        found(score(2, 20, 400), first),
        Some((Objective::Lateness, 50.0))
    );
    assert_eq!(
        found(score(2, 20, 400), Order::DelayFirst),
        Some((Objective::Delay, 25.0))
    );
    assert_eq!(found(score(2, 30, 500), first), None);
}
