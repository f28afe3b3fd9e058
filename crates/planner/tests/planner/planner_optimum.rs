//! Plans of 30 applications on 4 paths against bounds that a method independent of this crate has
//! proven: `benches/planner-optimum`. Its program draws the same instances.

use std::{fmt::Write, time::Duration};

use keiro_planner::{
    delay::{AppSpec, Equation3, PathSpec},
    plan::{
        self, Budget, Incumbent, Order, Problem, Score,
        incumbent::{Allowed, AppId, PathId, Settings},
    },
};
use keiro_units::{Bandwidth, ByteCount};

const INSTANCES: u64 = 200;
const PATHS: usize = 4;
const APPS: usize = 30;
const BOUNDS: &str = include_str!("../../../../benches/planner-optimum/bounds.csv");

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
    let apps = drawn.iter().map(|&(length, weight, latency_target)| {
        let whole = u128::from(capacity) * load_percent * u128::from(weight);
        let rate = (whole / (100 * u128::from(weights))) as u64;
        AppSpec {
            length: ByteCount::new(length),
            interval: Duration::from_nanos(length * 8_000_000_000 / rate),
            latency_target: Some(Duration::from_millis(latency_target)),
        }
    });
    (paths, apps.collect())
}

/// Of the instances: how many plans leave as few unmet as the best, how many of these are within 1 %
/// of the least delay too, and how many of these meet all targets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    fewest: u64,
    near: u64,
    near_and_met: u64,
}

/// Holds plans against the bounds: the fewest unmet, and the summed delay within 1 % of the least with
/// which the best plan can come, delay first. Where that does not hold it is open whether the plan or
/// the bound is at fault.
fn compared(name: &str, mut planned: impl FnMut(u64) -> Score) -> Tally {
    let mut tally = Tally::default();
    let (mut seed, mut met) = (0, 0);
    for line in BOUNDS.lines().skip(1) {
        let bound: Vec<u64> = line
            .split(',')
            .map(|field| field.parse().unwrap())
            .collect();
        assert_eq!(bound[0], seed, "a line per instance, in order");
        let score = planned(seed);
        let least = bound[1];
        assert!(score.unmet as u64 >= least, "instance {seed}: unmet");
        let is_fewest = score.unmet as u64 == least;
        let above = score.delay.as_nanos() as f64 / bound[2] as f64 - 1.0;
        let is_near = is_fewest && above <= 0.01;
        assert!(above >= 0.0 || !is_fewest, "instance {seed}: {above}");
        met += u64::from(least == 0);
        tally.fewest += u64::from(is_fewest);
        tally.near += u64::from(is_near);
        tally.near_and_met += u64::from(is_near && least == 0);
        if !is_near {
            println!(
                "{name}, {seed}: {} unmet, least {least}; delay {:.2} % above",
                score.unmet,
                above * 100.0
            );
        }
        seed += 1;
    }
    assert_eq!(seed, INSTANCES);
    println!("{name}: {tally:?} of {INSTANCES}, of which {met} can be met");
    tally
}

fn exact(seed: u64, order: Order, budget: Budget) -> Score {
    let (paths, apps) = instance(seed);
    let model = Equation3::default();
    let problem = Problem::new(&paths, &apps, &model).unwrap();
    plan::exact(&problem.with_order(order), budget).plan.score
}

// As many as docs/planner.md says.

#[test]
fn a_plan_from_scratch_is_as_good_as_the_best_within_one_per_cent() {
    let mut plans = String::from("instance,unmet,overloaded,delay_nanos,paths\n");
    let tally = compared("Incumbent::plan_from_scratch", |seed| {
        let (paths, apps) = instance(seed);
        let mut incumbent = Incumbent::new(Settings::default());
        for (id, &spec) in (0..).zip(&paths) {
            incumbent.set_path(PathId(id), spec).unwrap();
        }
        for (id, &spec) in (0..).zip(&apps) {
            incumbent.set_app(AppId(id), spec, Allowed::All).unwrap();
        }
        let score = incumbent.plan_from_scratch(Budget::THOROUGH).after;
        let paths = incumbent.assignment().filter_map(|(_, path)| path);
        let digits: String = paths.map(|PathId(path)| path.to_string()).collect();
        writeln!(plans, "{seed},{},{digits}", fields(&score)).unwrap();
        score
    });
    if let Some(file) = std::env::var_os("KEIRO_PLANS_CSV") {
        std::fs::write(file, plans).unwrap();
    }
    assert_eq!((tally.fewest, tally.near), (INSTANCES, INSTANCES));
}

#[test]
fn an_exact_plan_with_the_delay_first_is_as_good() {
    let exact = |seed| exact(seed, Order::DelayFirst, Budget::THOROUGH);
    let tally = compared("exact, delay first", exact);
    assert_eq!((tally.fewest, tally.near), (INSTANCES, INSTANCES));
}

/// Where some latency target must stay unmet, this order's best may have more delay than the bound.
#[test]
fn an_exact_plan_with_lateness_first_leaves_as_few_unmet() {
    let exact = |seed| exact(seed, Order::LatenessFirst, Budget::default());
    let tally = compared("exact, lateness first", exact);
    assert_eq!(tally.fewest, INSTANCES);
    assert!(tally.near_and_met >= 153);
}

fn fields(score: &Score) -> String {
    let delay = score.delay.as_nanos();
    format!("{},{},{delay}", score.unmet, score.overloaded)
}
