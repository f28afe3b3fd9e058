//! Prints what plans of 100 applications on 10 paths are worth: how much better `exact` is than `greedy`, and how
//! far from the best it can be at most.

// The instances of the planner's benchmarks.
#[path = "../../../crates/planner/benches/instance/mod.rs"]
mod instance;

use keiro_planner::{
    delay::Equation3,
    plan::{self, Budget, Order},
};
use planner_bound::{WORK, bound, gap};

use instance::{Instance, KINDS};

const SEEDS: u64 = 5;

fn main() {
    let model = Equation3::default();
    for order in [Order::LatenessFirst, Order::DelayFirst] {
        for kind in KINDS {
            for seed in 0..SEEDS {
                let instance = Instance::new(kind, seed);
                let problem = instance.problem(&model).with_order(order);
                let greedy = plan::greedy(&problem).score;
                let plan = plan::exact(&problem, Budget::default()).plan;
                let bound = bound(&problem, model, &plan, WORK);
                let score = plan.score;
                let proof = match gap(&score, &bound, order) {
                    None => "best".to_owned(),
                    Some(gap) => {
                        format!("{:?} within {:.1} %", gap.objective, gap.relative * 100.0)
                    }
                };
                println!(
                    "{order:?} {kind:?} {seed}: unmet {} -> {}, late {:.0?} -> {:.0?}, delays {:.3?} -> {:.3?}; {proof}",
                    greedy.unmet,
                    score.unmet,
                    greedy.lateness,
                    score.lateness,
                    greedy.delay,
                    score.delay,
                );
            }
        }
    }
}
