//! What an application sends, as configured or measured: means and spreads, and distributions to draw from.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

use crate::delay::AppSpec;

/// How much a quantity varies: its squared coefficient of variation, variance / mean².
///
/// 0 for what is always the same, 1 for the exponential distribution. At most [`Spread::MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Spread(f64);

/// An application with what is known of how its messages vary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// Mean length, mean interval and latency target.
    pub app: AppSpec,
    /// How much lengths vary.
    pub length_spread: Spread,
    /// How much intervals vary.
    pub interval_spread: Spread,
}

impl Spread {
    /// Always the same.
    pub const NONE: Self = Self(0.0);
    /// As the exponential distribution.
    pub const EXPONENTIAL: Self = Self(1.0);
    /// What is above is taken as this. Ours: two moments say next to nothing about such a law.
    pub const MAX: Self = Self(100.0);

    /// `ratio` is variance / mean². `None` if it is negative or not a number.
    pub fn new(ratio: f64) -> Option<Self> {
        (ratio >= 0.0).then(|| Self(ratio.min(Self::MAX.0)))
    }

    /// Of these values. `None` for fewer than two, or a mean that is not above zero.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let (mut count, mut mean, mut squares) = (0.0, 0.0, 0.0);
        for value in values {
            count += 1.0;
            let before = value - mean;
            mean += before / count;
            squares += before * (value - mean);
        }
        (count >= 2.0 && mean > 0.0)
            .then(|| Self::new(squares / (count - 1.0) / (mean * mean)))
            .flatten()
    }

    /// Variance / mean².
    pub const fn ratio(self) -> f64 {
        self.0
    }
}

impl Traffic {
    /// Messages of one length at exponential intervals, as the paper's.
    pub const fn paper(app: AppSpec) -> Self {
        Self {
            app,
            length_spread: Spread::NONE,
            interval_spread: Spread::EXPONENTIAL,
        }
    }
}

/// A distribution with a given mean and spread.
///
/// The usual fits to two moments (Tijms, *Stochastic Models*, 1994, appendix B): a mixture of two
/// Erlang distributions below the exponential's spread, of two exponential ones with balanced
/// means above.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Distribution {
    Fixed {
        value: f64,
    },
    /// Erlang of `stages` stages, with probability `fewer` of one stage less.
    Erlang {
        stages: u32,
        fewer: f64,
        stage_mean: f64,
    },
    /// Exponential with the first mean, with this probability, or else the second.
    Two {
        first: f64,
        means: [f64; 2],
    },
}

impl Distribution {
    pub(super) fn new(mean: f64, spread: Spread) -> Self {
        // More stages than this would be drawn for nothing.
        const STAGES_MAX: f64 = 64.0;
        let c2 = spread.0;
        if c2 < 1.0 / STAGES_MAX {
            Self::Fixed { value: mean }
        } else if c2 <= 1.0 {
            let stages = (1.0 / c2).ceil().max(1.0);
            let root = (stages * (1.0 + c2) - stages * stages * c2).max(0.0).sqrt();
            let fewer = ((stages * c2 - root) / (1.0 + c2)).clamp(0.0, 1.0);
            Self::Erlang {
                stages: stages as u32,
                fewer,
                stage_mean: mean / (stages - fewer),
            }
        } else {
            let first = 0.5 * (1.0 + ((c2 - 1.0) / (c2 + 1.0)).sqrt());
            Self::Two {
                first,
                means: [mean / (2.0 * first), mean / (2.0 * (1.0 - first))],
            }
        }
    }

    pub(super) fn draw(&self, random: &mut ChaCha12Rng) -> f64 {
        match *self {
            Self::Fixed { value } => value,
            Self::Erlang {
                stages,
                fewer,
                stage_mean,
            } => {
                let less = u32::from(fewer > 0.0 && uniform(random) <= fewer);
                let product: f64 = (less..stages).map(|_| uniform(random)).product();
                -product.ln() * stage_mean
            }
            Self::Two { first, means } => {
                let mean = means[usize::from(uniform(random) > first)];
                -uniform(random).ln() * mean
            }
        }
    }
}

/// `count` values, rising and each as likely, that have this mean and vary so much.
pub(super) fn values(mean: f64, spread: Spread, count: usize) -> Vec<f64> {
    if matches!(Distribution::new(mean, spread), Distribution::Fixed { .. }) {
        return vec![mean; count];
    }
    let shape = shape(spread, count);
    let own_spread = Spread::of(shape.iter().copied()).map_or(0.0, Spread::ratio);
    if own_spread <= 0.0 {
        return vec![mean; count];
    }
    let stretch = (spread.0 / own_spread).sqrt();
    shape
        .iter()
        .map(|value| (mean * (1.0 + (value - 1.0) * stretch)).max(0.0))
        .collect()
}

/// `count` rising values with the mean one, of the law whose spread is nearest to `spread` in steps
/// of [`SPREAD_STEPS`]. Each is computed once in a thread.
fn shape(spread: Spread, count: usize) -> Rc<[f64]> {
    /// So many to a factor of e: the law's form hardly changes between two.
    const SPREAD_STEPS: f64 = 50.0;
    type Shapes = BTreeMap<(i64, usize), Rc<[f64]>>;
    thread_local! {
        static SHAPES: RefCell<Shapes> = const { RefCell::new(BTreeMap::new()) };
    }
    let step = (spread.0.ln() * SPREAD_STEPS).round();
    let near = Spread((step / SPREAD_STEPS).exp());
    let compute = || drawn(&Distribution::new(1.0, near), count).into();
    SHAPES.with_borrow_mut(|shapes| {
        let shape = shapes.entry((step as i64, count)).or_insert_with(compute);
        Rc::clone(shape)
    })
}

/// Drawn and sorted rather than inverted: the laws have no closed inverse.
fn drawn(law: &Distribution, count: usize) -> Vec<f64> {
    const DRAWN_PER_VALUE: usize = 64;
    let mut random = ChaCha12Rng::seed_from_u64(0);
    let mut drawn: Vec<f64> = (0..count * DRAWN_PER_VALUE)
        .map(|_| law.draw(&mut random))
        .collect();
    drawn.sort_by(f64::total_cmp);
    let means: Vec<f64> = drawn
        .chunks(DRAWN_PER_VALUE)
        .map(|chunk| chunk.iter().sum::<f64>() / chunk.len() as f64)
        .collect();
    // What chance took away from the mean is given back.
    let mean = means.iter().sum::<f64>() / count as f64;
    means.iter().map(|value| value / mean).collect()
}

/// Uniform in (0, 1]: never zero, whose logarithm is infinite.
pub(super) fn uniform(random: &mut ChaCha12Rng) -> f64 {
    ((random.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_have_the_requested_mean_and_spread() {
        for (seed, ratio) in (0..).zip([0.0, 0.1, 0.25, 0.4, 0.5, 0.8, 1.0, 1.5, 4.0]) {
            let law = Distribution::new(3.0, Spread::new(ratio).unwrap());
            let mut random = ChaCha12Rng::seed_from_u64(seed);
            let drawn: Vec<f64> = (0..400_000).map(|_| law.draw(&mut random)).collect();
            let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
            let spread = Spread::of(drawn).unwrap().ratio();
            assert!((mean - 3.0).abs() < 0.03, "spread {ratio}: mean {mean}");
            assert!(
                (spread - ratio).abs() < 0.01 + 0.03 * ratio,
                "{spread}, not {ratio}"
            );
        }
    }

    #[test]
    fn a_spread_is_never_negative_and_bounded() {
        assert_eq!(Spread::new(-0.1), None);
        assert_eq!(Spread::new(f64::NAN), None);
        assert_eq!(Spread::new(1e9), Some(Spread::MAX));
        assert_eq!(Spread::of([5.0]), None);
        assert_eq!(Spread::of([5.0, 5.0]), Some(Spread::NONE));
        assert_eq!(Spread::of([0.0, 0.0]), None);
    }
}
