//! What losses add to a delay: a message waits until its last missing packet has been sent again.
//!
//! Packets are lost independently of each other, each with the same probability, those that are
//! sent again too. A round of repair takes [`LossRecoveryDelay::round`]; all packets that are missing are
//! repaired in one round, so that a message of n packets needs at least k rounds with the
//! probability 1 − (1 − pᵏ)ⁿ. What waits in the queue meanwhile is not delayed by it, and the rounds
//! are independent of the wait.

use std::time::Duration;

use super::{DelayDistribution, Forecast, Outcome, Statistic};
use keiro_units::Probability;

/// How a path's losses are repaired.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossRecoveryDelay {
    /// The part of its packets that is lost.
    pub loss: Probability,
    /// From a lost packet's departure until the one that replaces it leaves.
    pub round: Duration,
}

/// A path that loses more is taken for one that loses this much.
const LOSS_MAX: f64 = 0.9;
/// More rounds are not counted: at a loss of 0.9 a message of a thousand packets needs more than
/// that once in ten.
const ROUNDS_MAX: u32 = 90;
/// What is less likely is left out.
const NEVER: f64 = 1e-6;

impl LossRecoveryDelay {
    /// A path that loses nothing.
    pub const NONE: Self = Self {
        loss: Probability::ZERO,
        round: Duration::ZERO,
    };

    /// The probabilities of at least 1, 2, … rounds for a message of `packets`.
    fn at_least(&self, packets: u64) -> Vec<f64> {
        let loss = self.loss.get().min(LOSS_MAX);
        let packets = packets.max(1) as f64;
        // 1 − (1 − pᵏ)ⁿ, without cancellation.
        let rounds = |k: u32| -(packets * (-loss.powi(k as i32)).ln_1p()).exp_m1();
        (1..=ROUNDS_MAX)
            .map(rounds)
            .take_while(|probability| *probability > NEVER)
            .collect()
    }

    /// The delay of messages of `packets` packets that is `forecast` without losses, with them.
    #[must_use]
    pub fn of(&self, forecast: Forecast, packets: u64) -> Forecast {
        let Outcome::Stable(delay) = forecast.outcome else {
            return forecast;
        };
        let at_least = self.at_least(packets);
        if at_least.is_empty() || self.round.is_zero() {
            return forecast;
        }
        let terms = &forecast.terms;
        let floor = terms.propagation.saturating_add(terms.transmission);
        let tail = Tail::of(&delay, floor);
        let round = self.round.as_secs_f64();
        let mean_rounds: f64 = at_least.iter().sum();
        let percentile = |statistic: Statistic, beyond: f64| {
            let least = delay.get(statistic).as_secs_f64();
            let later = |x: f64| {
                let mut above = 0.0;
                let mut reached = 1.0;
                for rounds in 0..=at_least.len() {
                    let more = at_least.get(rounds).copied().unwrap_or(0.0);
                    above += (reached - more) * tail.beyond(x - rounds as f64 * round);
                    reached = more;
                }
                above
            };
            let (mut low, mut high) = (least, least + at_least.len() as f64 * round);
            for _ in 0..HALVINGS {
                let middle = low.midpoint(high);
                match later(middle) > beyond {
                    true => low = middle,
                    false => high = middle,
                }
            }
            seconds(high)
        };
        let outcome = Outcome::Stable(DelayDistribution {
            mean: seconds(delay.mean.as_secs_f64() + mean_rounds * round),
            p50: percentile(Statistic::P50, 0.5),
            p95: percentile(Statistic::P95, 0.05),
            p99: percentile(Statistic::P99, 0.01),
        });
        Forecast {
            outcome,
            ..forecast
        }
    }
}

/// Of 90 rounds of a second, to a microsecond.
const HALVINGS: usize = 27;

/// How likely a longer delay is: exponential between what is known, and as between the last two
/// beyond.
pub(super) struct Tail([(f64, f64); 4]);

impl Tail {
    pub(super) fn of(delay: &DelayDistribution, floor: Duration) -> Self {
        let at = |statistic| delay.get(statistic).as_secs_f64();
        Self([
            (floor.as_secs_f64().min(at(Statistic::P50)), 1.0),
            (at(Statistic::P50), 0.5),
            (at(Statistic::P95), 0.05),
            (at(Statistic::P99), 0.01),
        ])
    }

    pub(super) fn beyond(&self, x: f64) -> f64 {
        let points = &self.0;
        if x < points[0].0 {
            return 1.0;
        }
        let between = points.windows(2).find(|pair| x < pair[1].0);
        let (from, to) = match between {
            Some(pair) => (pair[0], pair[1]),
            None => (points[2], points[3]),
        };
        if to.0 <= from.0 {
            return 0.0;
        }
        let part = (x - from.0) / (to.0 - from.0);
        from.1 * (to.1 / from.1).powf(part)
    }
}

fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha20Rng;
    use rand_core::{RngCore, SeedableRng};

    use super::*;
    use crate::queueing::ForecastTerms;
    use keiro_units::{Bandwidth, ByteCount};

    const MS: f64 = 1e-3;

    fn forecast(floor: f64, [mean, p50, p95, p99]: [f64; 4]) -> Forecast {
        Forecast {
            terms: ForecastTerms {
                propagation: seconds(floor),
                bandwidth: Bandwidth::from_mbit_per_second(50),
                length: ByteCount::new(1000),
                wire_length: ByteCount::new(1072),
                transmission: Duration::ZERO,
                own_load: 0.1,
                load: 0.5,
            },
            latency_target: None,
            outcome: Outcome::Stable(DelayDistribution {
                mean: seconds(mean),
                p50: seconds(p50),
                p95: seconds(p95),
                p99: seconds(p99),
            }),
        }
    }

    fn uniform(random: &mut ChaCha20Rng) -> f64 {
        (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Waits are exponential with a mean of 3 ms beyond 8 ms, a round takes 18 ms.
    #[test]
    fn drawn_messages_take_as_long() {
        const DRAWN: usize = 200_000;
        let (floor, wait, round) = (8.0 * MS, 3.0 * MS, 18.0 * MS);
        let law = |beyond: f64| floor - wait * beyond.ln();
        let without = forecast(floor, [floor + wait, law(0.5), law(0.05), law(0.01)]);
        let mut random = ChaCha20Rng::seed_from_u64(5);
        for (loss, packets) in [(0.01, 1), (0.05, 1), (0.05, 70), (0.3, 10), (0.9, 3)] {
            let repair = LossRecoveryDelay {
                loss: Probability::new(loss).unwrap(),
                round: seconds(round),
            };
            let Outcome::Stable(predicted) = repair.of(without, packets).outcome else {
                panic!("{loss}, {packets}")
            };
            let mut drawn: Vec<f64> = (0..DRAWN)
                .map(|_| {
                    let mut missing = packets;
                    let mut rounds = 0;
                    loop {
                        missing =
                            (0..missing).filter(|_| uniform(&mut random) < loss).count() as u64;
                        if missing == 0 {
                            break;
                        }
                        rounds += 1;
                    }
                    law(1.0 - uniform(&mut random)) + f64::from(rounds) * round
                })
                .collect();
            drawn.sort_by(f64::total_cmp);
            let mean = drawn.iter().sum::<f64>() / DRAWN as f64;
            for (what, predicted, drawn) in [
                ("mean", predicted.mean, mean),
                ("p50", predicted.p50, drawn[DRAWN / 2]),
                ("p95", predicted.p95, drawn[DRAWN * 95 / 100]),
                ("p99", predicted.p99, drawn[DRAWN * 99 / 100]),
            ] {
                let error = predicted.as_secs_f64() / drawn - 1.0;
                assert!(
                    error.abs() < 0.03,
                    "loss {loss}, {packets} packets, {what}: {predicted:?}, drawn {drawn}"
                );
            }
        }
    }

    #[test]
    fn without_losses_or_delays_nothing_changes() {
        let without = forecast(8.0 * MS, [9.0 * MS, 8.5 * MS, 12.0 * MS, 15.0 * MS]);
        assert_eq!(LossRecoveryDelay::NONE.of(without, 70), without);
        let constant = forecast(8.0 * MS, [8.0 * MS; 4]);
        assert_eq!(LossRecoveryDelay::NONE.of(constant, 1), constant);
    }

    #[test]
    fn a_constant_delay_is_a_round_longer_where_losses_are_that_frequent() {
        let constant = forecast(8.0 * MS, [8.0 * MS; 4]);
        let repair = LossRecoveryDelay {
            loss: Probability::new(0.02).unwrap(),
            round: seconds(18.0 * MS),
        };
        let Outcome::Stable(predicted) = repair.of(constant, 1).outcome else {
            panic!()
        };
        let near = |predicted: Duration, ms: f64| (predicted.as_secs_f64() - ms * MS).abs() < 1e-5;
        assert!(
            near(predicted.p50, 8.0) && near(predicted.p95, 8.0),
            "{predicted:?}"
        );
        assert!(near(predicted.p99, 26.0), "{predicted:?}");
    }
}
