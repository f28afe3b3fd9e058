//! Compares the controllers of aggregation on simple plants; prints the tables of `docs/aggregation.md`.
//!
//! `cargo run -p keiro-model --example aggregation_controllers`; with `-- --steps` also every change of the
//! first seed and its cause, on stderr.

use std::{collections::BTreeMap, time::Duration};

use keiro_model::aggregation::{
    ControllerKind, DeliveryCounts, Limits, Parameters, period,
    plant::{Conditions, Outcome, Plant},
};
use keiro_units::{Bandwidth, Instant};

/// Trouble begins, ends, and the end.
const PHASES: [u64; 3] = [20, 50, 90];
const RTT: Duration = Duration::from_millis(1);
const SEEDS: [u64; 5] = [1, 2, 3, 4, 5];

struct Case {
    name: &'static str,
    calm: Conditions,
    trouble: Conditions,
}

/// Sums over one phase.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    seconds: f64,
    aggregates: DeliveryCounts,
    copies: DeliveryCounts,
    overflows: f64,
    given_up: f64,
    wait: f64,
    queueing: f64,
    sent: f64,
    changes: u32,
}

fn main() {
    let steps = std::env::args().any(|argument| argument == "--steps");
    for case in cases() {
        println!("\n{}\n", case.name);
        println!(
            "| controller | phase | lost % | given up % | copies lost % | overflows/s | wait ms | queue ms \
             | sent Mbit/s | changes | at the end |"
        );
        println!("|---|---|---|---|---|---|---|---|---|---|---|");
        for kind in ControllerKind::BUILT_IN {
            let mut phases = [Sums::default(); 3];
            let mut ends: [BTreeMap<String, u32>; 3] = Default::default();
            for seed in SEEDS {
                run(&case, kind, seed, steps, &mut phases, &mut ends);
            }
            for (phase, name) in ["before", "trouble", "after"].into_iter().enumerate() {
                print(kind, name, &phases[phase], &ends[phase]);
            }
        }
    }
}

fn print(kind: ControllerKind, phase: &str, sums: &Sums, ends: &BTreeMap<String, u32>) {
    let end = ends.iter().max_by_key(|(_, count)| **count);
    println!(
        "| {kind} | {phase} | {:.3} | {:.1} | {:.2} | {:.1} | {:.2} | {:.2} | {:.1} | {:.1} | {} |",
        sums.aggregates.loss() * 100.0,
        sums.given_up / sums.seconds * 100.0,
        sums.copies.loss() * 100.0,
        sums.overflows / sums.seconds,
        sums.wait / sums.seconds * 1e3,
        sums.queueing / sums.seconds * 1e3,
        sums.sent / sums.seconds / 1e6,
        f64::from(sums.changes) / SEEDS.len() as f64,
        end.map_or("", |(end, _)| end)
    );
}

fn run(
    case: &Case,
    kind: ControllerKind,
    seed: u64,
    steps: bool,
    phases: &mut [Sums; 3],
    ends: &mut [BTreeMap<String, u32>; 3],
) {
    let mut controller = kind
        .controller(Limits::default(), case.calm.bandwidth)
        .expect("every case has room for the smallest combination");
    let mut plant = Plant::new(case.calm, seed);
    let mut now = Instant::ZERO;
    for phase in 0..3 {
        let until = Instant::ZERO + Duration::from_secs(PHASES[phase]);
        plant.conditions = if phase == 1 { case.trouble } else { case.calm };
        while now < until {
            let parameters = controller.parameters();
            let length = period(parameters.interval(), RTT);
            let outcome = plant.pass(&parameters, length);
            now += length;
            let sums = &mut phases[phase];
            sums.add(length, &outcome);
            match controller.on_period(now, &outcome.seen) {
                Ok(decision) if decision.is_change() => {
                    sums.changes += 1;
                    if steps && seed == SEEDS[0] {
                        eprintln!("{} {kind} {now}: {decision}", case.name);
                    }
                }
                Ok(_) => {}
                Err(refused) => eprintln!("{} {kind} {now}: {refused}", case.name),
            }
        }
        *ends[phase]
            .entry(shape(&controller.parameters()))
            .or_default() += 1;
    }
}

fn shape(parameters: &Parameters) -> String {
    format!(
        "{} B, {:?}, {}",
        parameters.size().get(),
        parameters.interval(),
        parameters.copies()
    )
}

impl Sums {
    fn add(&mut self, length: Duration, outcome: &Outcome) {
        let seconds = length.as_secs_f64();
        self.seconds += seconds;
        self.aggregates.add(outcome.seen.aggregates);
        self.copies.add(outcome.seen.copies);
        self.overflows += outcome.seen.overflows_per_second() * seconds;
        self.given_up += outcome.given_up * seconds;
        self.wait += outcome.wait.as_secs_f64() * seconds;
        self.queueing += outcome.queueing.as_secs_f64() * seconds;
        self.sent += outcome.seen.sent.as_bits_per_second() as f64 * seconds;
    }
}

fn cases() -> Vec<Case> {
    let calm = Conditions::default();
    let case = |name, trouble| Case {
        name,
        calm,
        trouble,
    };
    let narrow = Bandwidth::from_mbit_per_second(5);
    vec![
        case("Nothing happens.", calm),
        case(
            "The receiver has room for 1200 packets per second.",
            Conditions {
                receiver_per_second: Some(1200.0),
                ..calm
            },
        ),
        case(
            "The receiver has room for 700 packets per second.",
            Conditions {
                receiver_per_second: Some(700.0),
                ..calm
            },
        ),
        case(
            "Others overflow the receiver: it drops 2 % of what comes, and 2000 packets of theirs \
             per second.",
            Conditions {
                receiver_loss: 0.02,
                others_overflows_per_second: 2000.0,
                ..calm
            },
        ),
        case(
            "The line loses 1 %.",
            Conditions {
                line_loss: 0.01,
                ..calm
            },
        ),
        case(
            "The line loses 5 %.",
            Conditions {
                line_loss: 0.05,
                ..calm
            },
        ),
        case(
            "The line loses 10 %.",
            Conditions {
                line_loss: 0.10,
                ..calm
            },
        ),
        case(
            "The line loses 5 % of copies, and 80 % of those behind a lost one.",
            Conditions {
                line_loss: 0.05,
                line_loss_together: 0.8,
                ..calm
            },
        ),
        case(
            "Others leave 8 Mbit/s; the buffer holds 20 ms.",
            Conditions {
                available: Bandwidth::from_mbit_per_second(8),
                ..calm
            },
        ),
        case(
            "Others leave 8 Mbit/s; copies are lost independently, and no queue is seen.",
            Conditions {
                available: Bandwidth::from_mbit_per_second(8),
                congestion_together: false,
                queue_is_seen: false,
                ..calm
            },
        ),
        case(
            "Others leave 5 Mbit/s, less than is offered.",
            Conditions {
                available: narrow,
                ..calm
            },
        ),
        case(
            "The line loses 5 %, and others leave 14 Mbit/s.",
            Conditions {
                line_loss: 0.05,
                available: Bandwidth::from_mbit_per_second(14),
                ..calm
            },
        ),
        case(
            "The line loses 5 %, and others leave 14 Mbit/s; no queue is seen.",
            Conditions {
                line_loss: 0.05,
                available: Bandwidth::from_mbit_per_second(14),
                congestion_together: false,
                queue_is_seen: false,
                ..calm
            },
        ),
        case(
            "The bandwidth falls to 8 Mbit/s, and is known.",
            Conditions {
                available: Bandwidth::from_mbit_per_second(8),
                bandwidth: Bandwidth::from_mbit_per_second(8),
                ..calm
            },
        ),
    ]
}
