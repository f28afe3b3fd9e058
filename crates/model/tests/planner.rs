//! The planners against brute force, and what a budget that runs out leaves.

use std::time::Duration;

use keiro_model::{
    Bandwidth, ByteCount,
    delay::{AppSpec, Delay, Equation3, PathSpec, Saturation, Tolerance},
    plan::{
        self, Budget, DelayModel, ExactPlan, NoPaths, Objective, Optimality, Plan, Problem, Score,
    },
    queueing::{Gateway, Resolution, Scheduler, WireFormat},
};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

struct Random(ChaCha12Rng);

impl Random {
    fn new(seed: u64) -> Self {
        Self(ChaCha12Rng::seed_from_u64(seed))
    }

    /// From `low` to `high`, both included.
    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.0.next_u64() % (high - low + 1)
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.between(0, choices.len() as u64 - 1) as usize]
    }
}

/// Small values and few of them, so that ties, unmet demands and overload are common.
fn small_instance(random: &mut Random) -> (Vec<PathSpec>, Vec<AppSpec>) {
    let path_count = random.between(1, 3);
    let app_count = random.between(0, if path_count == 3 { 6 } else { 7 });
    let paths = (0..path_count).map(|_| PathSpec {
        bandwidth: Bandwidth::from_mbit_per_second(random.pick(&[10, 10, 20, 50, 100])),
        delay: Duration::from_millis(random.pick(&[1, 2, 2, 10, 50])),
    });
    let paths = paths.collect();
    let apps = (0..app_count).map(|_| AppSpec {
        length: ByteCount::new(random.pick(&[0, 1, 1_000, 10_000, 10_000, 100_000, 1_000_000])),
        interval: Duration::from_millis(random.pick(&[5, 20, 50, 100, 100, 400])),
        demand: random
            .pick(&[
                Some(1),
                Some(5),
                Some(20),
                Some(20),
                Some(100),
                Some(1_000),
                None,
            ])
            .map(Duration::from_millis),
    });
    (paths, apps.collect())
}

/// The best of all assignments, the first of the best in lexicographic order.
fn brute_force<M: DelayModel>(problem: &Problem<'_, M>) -> Plan {
    let (paths, apps) = (problem.paths().len(), problem.apps().len());
    let mut assignment = vec![0; apps];
    let mut best = problem.evaluate(&assignment);
    loop {
        // Counting up, the last application fastest, is lexicographic order.
        let Some(place) = (0..apps).rfind(|&app| assignment[app] + 1 < paths) else {
            return best;
        };
        assignment[place] += 1;
        assignment[place + 1..].fill(0);
        let plan = problem.evaluate(&assignment);
        if plan.score < best.score {
            best = plan;
        }
    }
}

/// Equation 3 as a model that the planners know nothing about.
struct Opaque(Equation3);

impl DelayModel for Opaque {
    fn delays(
        &self,
        path: &PathSpec,
        apps: &[AppSpec],
        members: &[usize],
        delays: &mut Vec<Delay>,
    ) {
        self.0.delays(path, apps, members, delays);
    }
}

#[test]
fn exact_equals_brute_force_on_a_thousand_small_instances() {
    let (mut unmet, mut overloaded, mut differs) = (0, 0, 0);
    for seed in 0..1_000 {
        let mut random = Random::new(seed);
        let (paths, apps) = small_instance(&mut random);
        let model = Equation3 {
            saturation: random.pick(&[Saturation::Refused, Saturation::AsPrinted]),
        };
        let tolerance = Tolerance::from_ppm(random.pick(&[0, 0, 20_000, 500_000]));
        let problem = Problem::new(&paths, &apps, &model)
            .unwrap()
            .with_tolerance(tolerance);
        let best = brute_force(&problem);
        let exact = plan::exact(&problem, Budget::new(u64::MAX));
        assert_eq!(exact.optimality, Optimality::Proven, "seed {seed}");
        assert_eq!(exact.plan, best, "seed {seed}: {paths:?} {apps:?}");

        let opaque = Opaque(model);
        let unknown = Problem::new(&paths, &apps, &opaque)
            .unwrap()
            .with_tolerance(tolerance);
        let general = plan::exact(&unknown, Budget::new(u64::MAX));
        assert_eq!(general.optimality, Optimality::Proven, "seed {seed}");
        assert_eq!(general.plan, best, "seed {seed}: {paths:?} {apps:?}");

        let greedy = plan::greedy(&problem);
        assert_eq!(greedy, plan::greedy(&unknown), "seed {seed}");
        assert!(greedy.score >= best.score, "seed {seed}");
        unmet += usize::from(best.score.unmet > 0);
        overloaded += usize::from(best.score.overloaded > 0);
        differs += usize::from(greedy.score > best.score);
    }
    println!("{unmet} with unmet demands, {overloaded} overloaded, greedy worse in {differs}");
    assert!(unmet > 100 && overloaded > 20 && differs > 100);
}
