//! Random impairments of packets in flight: a fixed number of random words per arrival.

use std::time::Duration;

use keiro_units::Probability;
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

use crate::config::{GilbertElliott, LinkConfig, Loss};

/// Draws the impairments of packets, one after the other.
#[derive(Clone, Debug)]
pub(crate) struct Dice {
    rng: ChaCha12Rng,
    /// State of the Gilbert–Elliott chain. It starts good and is kept while another loss model is configured.
    in_bad_state: bool,
    /// Draws that did not affect anything; the generator skips them when one matters again.
    skipped: u64,
}

/// Impairments of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fate {
    pub(crate) lost: bool,
    pub(crate) duplicated: bool,
    pub(crate) corruption: Option<Corruption>,
    /// In addition to the propagation delay.
    pub(crate) jitter: Duration,
    /// In addition to delay and jitter; others may overtake.
    pub(crate) held: Option<Duration>,
}

/// The bit of a packet that is flipped, drawn when the packet arrives, independently of its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corruption(u64);

impl Corruption {
    /// Flips one bit of `bytes`; does nothing if it is empty.
    pub fn apply(self, bytes: &mut [u8]) {
        let bits = (bytes.len() as u64).saturating_mul(8);
        if let Some(bit) = self.0.checked_rem(bits) {
            bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
    }
}

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            rng: ChaCha12Rng::seed_from_u64(seed),
            in_bad_state: false,
            skipped: 0,
        }
    }

    /// Always draws seven words in this order, so that changing one impairment does not affect the draws of
    /// others. If nothing depends on them, they are only counted.
    pub(crate) fn throw(&mut self, config: &LinkConfig) -> Fate {
        if !is_random(config) {
            self.skipped += 1;
            return Fate::UNHARMED;
        }
        if self.skipped > 0 {
            let passed = u128::from(std::mem::take(&mut self.skipped)) * WORDS_PER_THROW;
            self.rng.set_word_pos(self.rng.get_word_pos() + passed);
        }
        let [step, loss, duplicate, corrupt, bit, reorder, jitter] =
            std::array::from_fn(|_| self.rng.next_u64());
        let lost = match config.loss {
            Loss::None => false,
            Loss::Bernoulli(p) => happens(loss, p),
            Loss::GilbertElliott(chain) => happens(loss, self.step(step, &chain)),
        };
        Fate {
            lost,
            duplicated: happens(duplicate, config.duplicate),
            corruption: happens(corrupt, config.corrupt).then_some(Corruption(bit)),
            jitter: config.jitter.mul_f64(unit(jitter)),
            held: happens(reorder, config.reorder.probability)
                .then_some(config.reorder.extra_delay),
        }
    }

    /// Advances the chain and returns the loss probability of its new state.
    fn step(&mut self, word: u64, chain: &GilbertElliott) -> Probability {
        self.in_bad_state = if self.in_bad_state {
            !happens(word, chain.bad_to_good)
        } else {
            happens(word, chain.good_to_bad)
        };
        if self.in_bad_state {
            chain.loss_bad
        } else {
            chain.loss_good
        }
    }
}

impl Fate {
    const UNHARMED: Self = Self {
        lost: false,
        duplicated: false,
        corruption: None,
        jitter: Duration::ZERO,
        held: None,
    };
}

/// Number of 32-bit words in a draw.
const WORDS_PER_THROW: u128 = 14;

/// Whether anything is random.
fn is_random(config: &LinkConfig) -> bool {
    let never = |p: Probability| p.get() == 0.0;
    config.loss != Loss::None
        || !config.jitter.is_zero()
        || !(never(config.duplicate) && never(config.corrupt) && never(config.reorder.probability))
}

fn happens(word: u64, p: Probability) -> bool {
    unit(word) < p.get()
}

/// In [0, 1), with the 53 bits that an f64 holds exactly.
fn unit(word: u64) -> f64 {
    (word >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARRIVALS: u32 = 200_000;

    fn probability(value: f64) -> Probability {
        Probability::new(value).unwrap()
    }

    fn fates(seed: u64, config: &LinkConfig) -> Vec<Fate> {
        let mut dice = Dice::new(seed);
        (0..ARRIVALS).map(|_| dice.throw(config)).collect()
    }

    fn share(fates: &[Fate], holds: impl Fn(&Fate) -> bool) -> f64 {
        fates.iter().filter(|fate| holds(fate)).count() as f64 / fates.len() as f64
    }

    #[test]
    fn bernoulli_loses_its_share() {
        let config = LinkConfig {
            loss: Loss::Bernoulli(probability(0.05)),
            ..Default::default()
        };
        let lost = share(&fates(1, &config), |fate| fate.lost);
        assert!((lost - 0.05).abs() < 0.003, "lost {lost}");
    }

    #[test]
    fn gilbert_elliott_loses_its_share_in_bursts_of_its_length() {
        let chain = GilbertElliott::from_mean_loss_and_burst(probability(0.05), 8.0).unwrap();
        let config = LinkConfig {
            loss: Loss::GilbertElliott(chain),
            ..Default::default()
        };
        let fates = fates(2, &config);
        let lost = share(&fates, |fate| fate.lost);
        let bursts = fates
            .windows(2)
            .filter(|pair| !pair[0].lost && pair[1].lost)
            .count();
        let burst = lost * f64::from(ARRIVALS) / bursts as f64;
        assert!((lost - 0.05).abs() < 0.005, "lost {lost}");
        assert!((burst - 8.0).abs() < 0.8, "bursts of {burst}");
    }

    #[test]
    fn probabilities_zero_and_one_are_exact() {
        let config = LinkConfig {
            loss: Loss::Bernoulli(Probability::ONE),
            duplicate: Probability::ONE,
            ..Default::default()
        };
        let fates = fates(3, &config);
        assert!(
            fates
                .iter()
                .all(|f| f.lost && f.duplicated && f.corruption.is_none() && f.held.is_none())
        );
    }

    #[test]
    fn one_impairment_leaves_the_draws_of_the_others_alone() {
        let lossy = LinkConfig {
            loss: Loss::Bernoulli(probability(0.1)),
            ..Default::default()
        };
        let worse = LinkConfig {
            loss: Loss::Bernoulli(probability(0.1)),
            jitter: Duration::from_millis(3),
            corrupt: probability(0.5),
            ..Default::default()
        };
        let lost = |config: &LinkConfig| -> Vec<bool> {
            fates(4, config).iter().map(|fate| fate.lost).collect()
        };
        assert_eq!(lost(&lossy), lost(&worse));
    }

    #[test]
    fn packets_without_impairment_draw_as_many_words_as_others() {
        let clean = LinkConfig::default();
        let worse = LinkConfig {
            loss: Loss::Bernoulli(probability(0.3)),
            jitter: Duration::from_millis(3),
            corrupt: probability(0.5),
            ..Default::default()
        };
        for clean_packets in [1, 2, 3, 10, 100] {
            let (mut all, mut some) = (Dice::new(5), Dice::new(5));
            for round in 0..5 {
                for _ in 0..clean_packets {
                    all.throw(&worse);
                    assert_eq!(some.throw(&clean), Fate::UNHARMED);
                }
                for _ in 0..=round {
                    assert_eq!(
                        all.throw(&worse),
                        some.throw(&worse),
                        "{clean_packets} clean"
                    );
                }
            }
        }
    }

    #[test]
    fn corruption_flips_exactly_one_bit() {
        for word in [0, 7, 8, 95, 96, u64::MAX] {
            let mut bytes = [0u8; 12];
            Corruption(word).apply(&mut bytes);
            assert_eq!(bytes.iter().map(|b| b.count_ones()).sum::<u32>(), 1);
        }
        Corruption(5).apply(&mut []);
    }
}
