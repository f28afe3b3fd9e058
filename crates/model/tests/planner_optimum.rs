//! Plans of 30 applications on 4 paths against bounds that a method independent of this crate has
//! proven: `benches/planner-optimum`. Its program draws the same instances.

use std::{fmt::Write, time::Duration};

use keiro_model::{
    Bandwidth, ByteCount,
    delay::{AppSpec, Equation3, PathSpec},
    plan::{
        self, Budget, Incumbent, Problem, Score,
        incumbent::{Allowed, AppId, PathId, Settings},
    },
};

const INSTANCES: u64 = 200;
const PATHS: usize = 4;
const APPS: usize = 30;
/// As many as docs/planner.md says.
const FEWEST_PROVEN: Pair = [199, 199];
const NEAR_PROVEN: Pair = [181, 181];
const BOUNDS: &str = include_str!("../../../benches/planner-optimum/bounds.csv");

/// Of [`plan::exact`] and of [`Incumbent::plan_anew`].
type Pair = [u64; 2];

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }
}

fn instance(seed: u64) -> (Vec<PathSpec>, Vec<AppSpec>) {
    let mut draw = Draw(seed);
    let paths: Vec<PathSpec> = (0..PATHS)
        .map(|_| PathSpec {
            bandwidth: Bandwidth::from_mbit_per_second(draw.between(50, 500)),
            delay: Duration::from_millis(draw.between(1, 60)),
        })
        .collect();
    let load_percent = u128::from([30_u32, 50, 70, 85][seed as usize % 4]);
    let drawn: Vec<(u64, u64, u64)> = (0..APPS)
        .map(|_| {
            let length = draw.between(1, 9) * 10_u64.pow(draw.between(3, 5) as u32);
            (length, draw.between(1, 30), draw.between(30, 250))
        })
        .collect();
    let weights: u64 = drawn.iter().map(|(_, weight, _)| weight).sum();
    let rates = paths.iter().map(|path| path.bandwidth);
    let capacity: u64 = rates.map(Bandwidth::as_bits_per_second).sum();
    let apps = drawn.iter().map(|&(length, weight, demand)| {
        let whole = u128::from(capacity) * load_percent * u128::from(weight);
        let rate = (whole / (100 * u128::from(weights))) as u64;
        AppSpec {
            length: ByteCount::new(length),
            interval: Duration::from_nanos(length * 8_000_000_000 / rate),
            demand: Some(Duration::from_millis(demand)),
        }
    });
    (paths, apps.collect())
}

/// The scores of both planners, and the path of every application by the latter, a digit each.
fn planned(seed: u64) -> ([Score; 2], String) {
    let (paths, apps) = instance(seed);
    let mut incumbent = Incumbent::new(Settings::default());
    for (id, &spec) in (0..).zip(&paths) {
        incumbent.set_path(PathId(id), spec).unwrap();
    }
    for (id, &spec) in (0..).zip(&apps) {
        incumbent.set_app(AppId(id), spec, Allowed::All).unwrap();
    }
    let revision = incumbent.plan_anew(Budget::default());
    let model = Equation3::default();
    let problem = Problem::new(&paths, &apps, &model).unwrap();
    let exact = plan::exact(&problem, Budget::default());
    assert!(revision.after <= exact.plan.score, "seed {seed}");
    let paths = incumbent.assignment().filter_map(|(_, path)| path);
    let digits = paths.map(|PathId(path)| path.to_string());
    ([exact.plan.score, revision.after], digits.collect())
}

/// The fewest unmet, and the summed delay within 1 % of the least with which the best plan can come.
/// Where that does not hold it is open whether the plan or the bound is at fault.
#[test]
fn full_plans_hold_against_proven_bounds() {
    let mut plans = String::from("instance,unmet,overloaded,lateness_nanos,delay_nanos,paths\n");
    let mut bounds = BOUNDS.lines().skip(1);
    let (mut compared, mut fewest, mut near): (u64, Pair, Pair) = (0, [0; 2], [0; 2]);
    let (mut feasible, mut feasible_near): (u64, Pair) = (0, [0; 2]);
    for seed in 0..INSTANCES {
        let (scores, paths) = planned(seed);
        writeln!(plans, "{seed},{},{paths}", fields(&scores[1])).unwrap();
        let Some(bound) = bounds.next() else { continue };
        let bound: Vec<u64> = bound
            .split(',')
            .map(|field| field.parse().unwrap())
            .collect();
        assert_eq!(bound[0], seed, "a line per instance, in order");
        compared += 1;
        feasible += u64::from(scores[0].unmet == 0);
        for (planner, score) in scores.iter().enumerate() {
            assert!(score.unmet as u64 >= bound[1], "instance {seed}: unmet");
            let is_fewest = score.unmet as u64 == bound[1];
            let above = score.delay.as_nanos() as f64 / bound[2] as f64 - 1.0;
            let is_near = is_fewest && above <= 0.01;
            assert!(above >= 0.0 || score.unmet > 0, "instance {seed}: {above}");
            fewest[planner] += u64::from(is_fewest);
            near[planner] += u64::from(is_near);
            feasible_near[planner] += u64::from(is_near && score.unmet == 0);
            if !is_near {
                let counts = (score.unmet, bound[1]);
                println!(
                    "{seed}: unmet, least: {counts:?}; delay {:.2} % above",
                    above * 100.0
                );
            }
        }
    }
    println!(
        "{compared} compared, exact and plan_anew: fewest unmet {fewest:?}, delay within 1 % too \
         {near:?}; of {feasible} without unmet, {feasible_near:?}"
    );
    if let Some(file) = std::env::var_os("KEIRO_PLANS_CSV") {
        std::fs::write(file, plans).unwrap();
    }
    assert_eq!(compared, INSTANCES);
    for planner in 0..2 {
        assert!(fewest[planner] >= FEWEST_PROVEN[planner]);
        assert!(near[planner] >= NEAR_PROVEN[planner]);
    }
}

fn fields(score: &Score) -> String {
    let (late, delay) = (score.lateness.as_nanos(), score.delay.as_nanos());
    format!("{},{},{late},{delay}", score.unmet, score.overloaded)
}
