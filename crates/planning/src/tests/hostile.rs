//! Whatever another process sends to be planned with is refused or planned, without a panic.

use keiro_control::protocol::{
    ExcessLossInput, LineUseInput, LossNeedInput, MessagesInput, PathLevelInput, PathTermsInput,
    PlannerInputSnapshot, TrafficWindowInput, WindowHalfInput, WorkloadInput,
};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

use super::*;

const SEED: u64 = 7;
const CASES: usize = 400;

/// Numbers at which sums, products and conversions end.
const NUMBERS: [f64; 22] = [
    0.0,
    -0.0,
    5e-324,
    1e-300,
    1e-10,
    1e-9,
    1e-3,
    0.02,
    0.5,
    1.0 - f64::EPSILON,
    1.0,
    2.0,
    51.0,
    2e4,
    86_400.0,
    1e9,
    1e11,
    1e22,
    1e150,
    f64::MAX,
    f64::INFINITY,
    f64::NAN,
];
const INTEGERS: [u64; 9] = [
    0,
    1,
    2,
    1500,
    1_000_000,
    1 << 32,
    (1 << 48) - 1,
    1 << 48,
    u64::MAX,
];

struct Hostile(ChaCha12Rng);

impl Hostile {
    fn below(&mut self, end: usize) -> usize {
        self.0.next_u32() as usize % end
    }

    fn number(&mut self) -> f64 {
        let number = NUMBERS[self.below(NUMBERS.len())];
        match self.below(8) {
            0 => -number,
            1 => number * self.below(1000) as f64 / 1000.0,
            _ => number,
        }
    }

    fn ratio(&mut self) -> f64 {
        NUMBERS[self.below(12)]
    }

    fn integer(&mut self) -> u64 {
        INTEGERS[self.below(INTEGERS.len())]
    }

    fn messages(&mut self) -> MessagesInput {
        MessagesInput {
            length_bytes: self.integer(),
            interval_seconds: self.number(),
            length_variance_ratio: self.number(),
            interval_variance_ratio: self.number(),
        }
    }

    fn window(&mut self) -> TrafficWindowInput {
        let mut half = || WindowHalfInput {
            messages: self.integer(),
            length_bytes: self.number(),
            length_variance_ratio: self.number(),
        };
        TrafficWindowInput {
            halves: [half(), half()],
            interval_variance_ratio: self.number(),
            together_ratio: self.ratio(),
        }
    }

    /// Changes one thing.
    fn change(&mut self, input: &mut PlannerInputSnapshot) {
        let path = self.below(input.paths.len());
        let up = self.below(input.paths_up.len());
        let app = self.below(input.apps.len());
        match self.below(24) {
            0 => input.tolerance_ratio = self.ratio(),
            1 => input.paths[path].rate_bits_per_second = Some(self.integer()),
            2 => input.paths[path].delay_seconds = Some(self.number()),
            3 => input.paths[path].cost_per_gb = self.number(),
            4 => input.paths[path].residual = Some([(); 7].map(|()| self.number())),
            5 | 16.. => {
                // Only some of the sums are of this kind, so that they are planned with more often.
                let mut sums = [0.0; 7];
                sums[[1, 5][self.below(2)]] = self.number();
                sums[[0, 6][self.below(2)]] = self.number();
                for path in &mut input.paths {
                    path.residual = Some(sums);
                }
            }
            6 => {
                input.paths_up[up].level = Some(PathLevelInput {
                    rate_bits_per_second: self.integer(),
                    delay_seconds: self.number(),
                    loss_ratio: self.ratio(),
                });
            }
            7 => {
                input.paths_up[up].terms = Some(PathTermsInput {
                    role: input.paths[path].role,
                    cost_per_gb: self.number(),
                    budget_spent: self.below(2) == 0,
                });
            }
            8 => input.paths_up[up].capacity_bits_per_second = Some(self.integer()),
            9 => input.apps[app].latency_target_seconds = Some(self.number()),
            10 => input.apps[app].length_bytes = Some(self.integer()),
            11 => input.apps[app].interval_seconds = Some(self.number()),
            12 => input.apps[app].workload = Some(WorkloadInput::Sending(self.messages())),
            13 => input.apps[app].window = Some(self.window()),
            14 => {
                input.apps[app].loss_need = Some(LossNeedInput {
                    tolerance_ratio: self.ratio(),
                    of_aggregates: self.below(2) == 0,
                });
                input.apps[app].excess_losses = vec![ExcessLossInput {
                    path,
                    loss_ratio: self.ratio(),
                    tolerance_ratio: self.ratio(),
                }];
            }
            _ => input.line_uses.push(LineUseInput {
                path,
                gateway: "nara".into(),
                apps: self.integer(),
                load_bits_per_second: self.integer(),
                rate_bits_per_second: self.integer(),
                offered: [(); 7].map(|()| self.number().abs()),
            }),
        }
    }
}

#[test]
fn whatever_is_received_is_refused_or_planned() {
    let (config, input) = hub::hub(2, 2);
    let good = planner_input_snapshot(&config, &input, &ForecastState::default(), false);
    let texts = [
        "add 2 voice.site0",
        "set wan1 rate=1Mbit delay=90ms loss=2%",
        "lose wan0",
    ];
    let changes = texts.map(|text| WhatIf::parse(text).unwrap());
    let mut hostile = Hostile(ChaCha12Rng::seed_from_u64(SEED));
    let mut planned = 0;
    for _ in 0..CASES {
        let mut snapshot = good.clone();
        for _ in 0..=hostile.below(3) {
            hostile.change(&mut snapshot);
        }
        let Ok(received) = ReceivedInput::try_from(&snapshot) else {
            continue;
        };
        planned += 1;
        let situation = Situation {
            config: &received.config,
            input: &received.input,
            forecast_state: &received.forecast_state,
            plan_mode: PlanMode::Revise,
            now: &paths_in_use(&received.config, &received.input),
        };
        let which = hostile.below(changes.len());
        // A refusal is an answer, too.
        let _ = situation.plan_after(&changes[which..=which]);
    }
    assert!(planned > CASES / 4, "only {planned} were planned with");
}
