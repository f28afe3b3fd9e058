//! Lower bounds of any plan, by a program that shares no code with crates/planner.
//!
//! For each of 200 random instances of 30 applications and 4 paths: branch and price, see [`search`].
//! `plans.csv` is the planner's result and sets what is to be proven; no bound depends on its correctness.

mod instance;
mod master;
mod polish;
mod pricing;
mod search;

use std::{env, fs, process::ExitCode, time::Instant};

use instance::{APPS, INSTANCES, Instance, PATHS, Score};
use master::Caps;
use pricing::Weights;
use search::{Answer, Question, Search};

/// A bound this close to the best plan is good enough.
const NEAR: f64 = 0.0005;
/// The same after [`NODES`] nodes.
const NEAR_ENOUGH: f64 = 0.002;
const NODES: usize = 300;
/// Maximum of nodes per question.
const NODES_MAX: usize = 800;

const NOTHING: Weights = Weights {
    unmet: 0.0,
    overloaded: 0.0,
    delay: 0.0,
};

fn main() -> ExitCode {
    let Some(file) = env::args().nth(1) else {
        eprintln!("usage: planner-optimum PLANS.csv [FIRST [LAST]] > bounds.csv");
        return ExitCode::FAILURE;
    };
    let text = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) => {
            eprintln!("{file}: {error}");
            return ExitCode::FAILURE;
        }
    };
    let number = |at: usize, or: u64| {
        env::args()
            .nth(at)
            .and_then(|text| text.parse().ok())
            .unwrap_or(or)
    };
    let (first, last) = (number(2, 0), number(3, INSTANCES - 1));
    println!("instance,unmet,overloaded,delay_nanos,delay_bound_nanos");
    for line in text.lines().skip(1) {
        let Some((seed, plan)) = plan_of(line) else {
            eprintln!("{file}: not a plan: {line}");
            return ExitCode::FAILURE;
        };
        if (first..=last).contains(&seed) {
            prove(seed, &plan);
        }
    }
    ExitCode::SUCCESS
}

/// A line's instance, and the path of every application, a digit each, in its last field.
fn plan_of(line: &str) -> Option<(u64, Vec<usize>)> {
    let (seed, _) = line.split_once(',')?;
    let (_, paths) = line.rsplit_once(',')?;
    let digit = |digit: char| Some(digit.to_digit(10)? as usize).filter(|&path| path < PATHS);
    let plan: Vec<usize> = paths.chars().map(digit).collect::<Option<_>>()?;
    Some((seed.parse().ok()?, plan)).filter(|(_, plan)| plan.len() == APPS)
}

fn prove(seed: u64, plan: &[usize]) {
    let begin = Instant::now();
    let instance = Instance::new(seed);
    let mut best = (instance.score(plan), plan.to_vec());
    let planned = best.0;
    let mut divided = 0;
    let mut ask = |question: Question, best: &mut (Score, Vec<usize>)| -> Answer {
        let answer = Search::new(&instance, question, &best.1).run();
        divided += answer.nodes;
        if answer.best.0 < best.0 {
            *best = answer.best.clone();
        }
        answer
    };
    let unmet = fewest(
        &mut best,
        |score| score.unmet,
        |score, caps, weights| {
            weights.unmet = 1.0;
            let _ = (score, caps);
        },
        &mut ask,
    );
    let overloaded = fewest(
        &mut best,
        |score| score.overloaded,
        |score, caps, weights| {
            caps.unmet = Some(score.unmet as f64);
            weights.overloaded = 1.0;
        },
        &mut ask,
    );
    // A better plan found meanwhile changes the target.
    let mut bound;
    loop {
        let found = best.0;
        let question = Question {
            weights: Weights {
                delay: 1.0,
                ..NOTHING
            },
            caps: Caps {
                unmet: Some(found.unmet as f64),
                overloaded: Some(found.overloaded as f64),
            },
            found: found.delay as f64 / 1e6,
            near: 1.0 - NEAR,
            near_enough: 1.0 - NEAR_ENOUGH,
            penalty: found.delay as f64 / 1e6,
            nodes: NODES,
            nodes_max: NODES_MAX,
        };
        let answer = ask(question, &mut best);
        bound = (answer.bound * 1e6 * (1.0 - 1e-9)).floor();
        if (best.0.unmet, best.0.overloaded) == (found.unmet, found.overloaded) {
            break;
        }
    }
    let found = best.0;
    println!("{seed},{unmet},{overloaded},{},{bound}", found.delay);
    eprintln!(
        "{seed}: plan {planned:?}{} unmet {unmet} overloaded {overloaded} bound {:+.3} % of the \
         best, plan {:+.3} %, {divided} nodes, {:.1} s",
        if found < planned {
            let digits: String = best.1.iter().map(usize::to_string).collect();
            format!(" best {found:?} {digits}")
        } else {
            String::new()
        },
        (found.delay as f64 / bound - 1.0) * 100.0,
        (planned.delay as f64 / bound - 1.0) * 100.0,
        begin.elapsed().as_secs_f64()
    );
}

/// Proves the minimum of one part of the score, going down from the best plan.
fn fewest(
    best: &mut (Score, Vec<usize>),
    number: impl Fn(&Score) -> u64,
    pose: impl Fn(&Score, &mut Caps, &mut Weights),
    ask: &mut impl FnMut(Question, &mut (Score, Vec<usize>)) -> Answer,
) -> u64 {
    loop {
        let found = number(&best.0);
        if found == 0 {
            return 0;
        }
        let (mut caps, mut weights) = (Caps::default(), NOTHING);
        pose(&best.0, &mut caps, &mut weights);
        let question = Question {
            weights,
            caps,
            found: found as f64,
            near: 1.0 - (1.0 - 1e-4) / found as f64,
            near_enough: 1.0 - (1.0 - 1e-4) / found as f64,
            penalty: 2.0,
            nodes: NODES,
            nodes_max: NODES_MAX,
        };
        let answer = ask(question, best);
        if number(&best.0) == found {
            return (answer.bound - 1e-6).ceil().max(0.0) as u64;
        }
    }
}
