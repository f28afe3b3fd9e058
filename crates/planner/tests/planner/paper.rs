//! The paper's worked numbers, `[path-selection §5]`.

use std::time::Duration;

use keiro_planner::{
    delay::{self, Equation3, Margin, OverloadPolicy, Tolerance},
    paper,
    plan::{self, Budget, Problem},
};

fn tenths_of_millis(delays: impl IntoIterator<Item = Duration>) -> Vec<u64> {
    delays
        .into_iter()
        .map(|delay| (delay.as_secs_f64() * 1e4).round() as u64)
        .collect()
}

fn predicted(assignment: &[usize]) -> Vec<u64> {
    let model = Equation3::default();
    let problem = Problem::new(&paper::PATHS, &paper::APPS, &model).unwrap();
    let predictions = problem.evaluate(assignment).predictions;
    tenths_of_millis(predictions.iter().map(|p| p.delay.finite().unwrap()))
}

#[test]
fn equation_3_gives_what_table_4_rounds() {
    assert_eq!(predicted(&paper::ASSIGNMENT), [1877, 1135, 101, 1015, 29]);
}

#[test]
fn equation_3_gives_table_5() {
    assert_eq!(predicted(&paper::CONVENTIONAL), [991, 179, 179, 39, 39]);
    // Printed in whole milliseconds, A1 as 100.
    for (printed, computed) in paper::TABLE_5.iter().zip([991_i64, 179, 179, 39, 39]) {
        let printed = printed.as_millis() as i64;
        assert!((computed - printed * 10).abs() < 10, "{printed} {computed}");
    }
}

#[test]
fn equation_1_is_the_floor_on_an_idle_path() {
    let alone = [2, 4].map(|app| delay::alone(&paper::PATHS[1], &paper::APPS[app]));
    assert_eq!(
        tenths_of_millis(alone.iter().map(|p| p.delay.finite().unwrap())),
        [100, 28]
    );
}

#[test]
fn every_answer_carries_its_terms() {
    let model = Equation3::default();
    let problem = Problem::new(&paper::PATHS, &paper::APPS, &model).unwrap();
    let plan = problem.evaluate(&paper::ASSIGNMENT);
    let terms = plan.predictions[3].terms;
    assert_eq!(terms.propagation, Duration::from_millis(100));
    assert_eq!(terms.length.get(), 10_000);
    assert_eq!(terms.bandwidth.to_string(), "100Mbit/s");
    assert_eq!(terms.others.to_string(), "48Mbit/s");
    assert_eq!(terms.own.to_string(), "800kbit/s");
    assert!((terms.load().unwrap() - 0.488).abs() < 1e-12);
    let Margin::Late(late) = plan.predictions[3].margin() else {
        panic!("A4 misses its latency target: {:?}", plan.predictions[3]);
    };
    assert_eq!(late, Duration::from_nanos(1_538_462));
}

#[test]
fn strict_targets_put_a4_on_path_2_and_all_hold() {
    let model = Equation3::default();
    let problem = Problem::new(&paper::PATHS, &paper::APPS, &model).unwrap();
    for plan in [
        plan::greedy(&problem),
        plan::exact(&problem, Budget::default()).plan,
    ] {
        assert_eq!(plan.assignment[3], 1);
        assert!(plan.is_feasible(), "{plan:?}");
    }
    assert_eq!(plan::greedy(&problem).assignment, [0, 0, 1, 1, 1]);
}

#[test]
fn two_per_cent_of_tolerance_give_the_papers_assignment() {
    for saturation in [OverloadPolicy::AsPrinted, OverloadPolicy::Refused] {
        let model = Equation3 { saturation };
        let problem = Problem::new(&paper::PATHS, &paper::APPS, &model)
            .unwrap()
            .with_tolerance(Tolerance::from_ratio(0.02).unwrap());
        let plan = plan::greedy(&problem);
        assert_eq!(plan.assignment, paper::ASSIGNMENT);
        assert!(plan.is_feasible());
    }
}

#[test]
fn the_papers_assignment_misses_one_target_strictly() {
    let model = Equation3::default();
    let problem = Problem::new(&paper::PATHS, &paper::APPS, &model).unwrap();
    assert_eq!(problem.evaluate(&paper::ASSIGNMENT).unmet, [3]);
}

#[test]
fn the_exact_plan_is_proven_and_never_worse() {
    let model = Equation3::default();
    let problem = Problem::new(&paper::PATHS, &paper::APPS, &model).unwrap();
    let exact = plan::exact(&problem, Budget::default());
    assert!(exact.is_optimal);
    assert!(exact.plan.score <= plan::greedy(&problem).score);
    assert_eq!(exact.plan.assignment, [1; 5]);
}

#[test]
fn the_frugal_plan_keeps_path_2_free_where_the_exact_one_crowds_it() {
    let model = Equation3::default();
    let problem = Problem::new(&paper::PATHS, &paper::APPS, &model).unwrap();
    let frugal = plan::frugal(&problem, Budget::default());
    assert!(frugal.is_feasible());
    assert_eq!(frugal.assignment, plan::greedy(&problem).assignment);
    assert_eq!(frugal.assignment, [0, 0, 1, 1, 1]);
    let exact = plan::exact(&problem, Budget::default()).plan;
    assert_eq!(exact.assignment, [1; 5]);
}

#[test]
fn the_frugal_plan_is_the_exact_one_where_a_target_is_unmet() {
    let model = Equation3::default();
    let mut apps = paper::APPS;
    apps[2].latency_target = Some(Duration::from_millis(5));
    let problem = Problem::new(&paper::PATHS, &apps, &model).unwrap();
    let frugal = plan::frugal(&problem, Budget::default());
    assert_eq!(frugal, plan::exact(&problem, Budget::default()).plan);
}
