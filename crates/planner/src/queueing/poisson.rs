//! What arrives: Poisson streams of work, as rates and as the work that one lattice step brings.

use std::collections::BTreeMap;

/// Messages of one size: `rate` per second, each `service` seconds of sending.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stream {
    pub(super) rate: f64,
    pub(super) service: f64,
}

/// The work that arrives in one lattice step, in steps of sending: its distribution, without the
/// unlikeliest values.
#[derive(Clone, Debug)]
pub(super) struct StepWork {
    /// The probability that nothing arrives.
    pub(super) none: f64,
    /// Work and probability, by rising work; all work is positive.
    pub(super) atoms: Vec<(usize, f64)>,
}

/// What is less likely than this, per step, is left out and its mean given to the rest.
const NEGLIGIBLE: f64 = 1e-8;

/// Streams whose messages are shorter than this part of a step are taken as streams of fewer
/// messages of this length. What they add to the wait is then off by less than a step, and the
/// probability of an empty step stays above e^-4.
const SHORTEST_STEPS: f64 = 0.25;

/// The mean load of all streams.
pub(super) fn load(streams: &[Stream]) -> f64 {
    streams.iter().map(|s| s.rate * s.service).sum()
}

/// The mean workload of the M/G/1 queue, in seconds, which is also its mean wait:
/// λE\[S²\] / 2(1 − ρ), Pollaczek–Khinchine. Meaningful for a load below one.
pub(super) fn mean_workload(streams: &[Stream]) -> f64 {
    let second_moment: f64 = streams.iter().map(|s| s.rate * s.service * s.service).sum();
    second_moment / (2.0 * (1.0 - load(streams)))
}

/// A stream whose lengths and intervals vary, by squared coefficients of variation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Varied {
    /// With the mean length.
    pub(super) stream: Stream,
    pub(super) length_spread: f64,
    pub(super) interval_spread: f64,
}

/// By what waiting is multiplied where intervals are not exponential; exact for exponential ones.
///
/// For one stream Allen and Cunneen's (cₐ² + cₛ²) / (1 + cₛ²). For several the same of their
/// work's variances together, Σ λs²(cₐ² + cₛ²) / Σ λs²(1 + cₛ²), which is Kingman's limit for
/// heavy traffic; at lower loads many streams look like a Poisson one, and how fast is Whitt's
/// weight (The Queueing Network Analyzer, 1983, eq. 33).
pub(super) fn arrival_factor(streams: &[Varied]) -> f64 {
    let load: f64 = streams
        .iter()
        .map(|v| v.stream.rate * v.stream.service)
        .sum();
    let weights = streams
        .iter()
        .map(|v| v.stream.rate * v.stream.service.powi(2));
    let all = weights.clone().zip(streams);
    let poisson: f64 = all.clone().map(|(w, v)| w * (1.0 + v.length_spread)).sum();
    if poisson <= 0.0 || load >= 1.0 {
        return 1.0;
    }
    let varied: f64 = all
        .map(|(w, v)| w * (v.interval_spread + v.length_spread))
        .sum();
    let whole: f64 = weights.clone().sum();
    let alike = whole * whole / weights.map(|w| w * w).sum::<f64>();
    let weight = 1.0 / (1.0 + 4.0 * (1.0 - load).powi(2) * (alike - 1.0));
    1.0 + weight * (varied / poisson - 1.0)
}

/// The rate η at which the workload's tail falls, P(V > x) ≈ c·e^(−ηx), per second: the positive
/// root of Σ λ(e^(ηS) − 1) = η (Cramér–Lundberg). `None` without work or at a load of one.
pub(super) fn tail_rate(streams: &[Stream]) -> Option<f64> {
    let longest = streams.iter().map(|s| s.service).fold(0.0, f64::max);
    if longest <= 0.0 || load(streams) >= 1.0 {
        return None;
    }
    let excess = |eta: f64| -> f64 {
        let grown: f64 = streams
            .iter()
            .map(|s| s.rate * (eta * s.service).exp_m1())
            .sum();
        grown - eta
    };
    // Convex, zero at zero and falling there: the root lies between the last negative and the
    // first positive value.
    let mut high = 1.0 / longest;
    while excess(high) <= 0.0 {
        high *= 2.0;
    }
    let mut low = high / 2.0;
    while excess(low) > 0.0 {
        high = low;
        low /= 2.0;
        if low * longest < 1e-12 {
            return None;
        }
    }
    for _ in 0..60 {
        let middle = low.midpoint(high);
        if excess(middle) > 0.0 {
            high = middle;
        } else {
            low = middle;
        }
    }
    Some(low)
}

impl StepWork {
    /// The work of `streams` in a time of `steps` steps of `step` seconds; at most `work_max`
    /// steps of work.
    pub(super) fn new(streams: &[Stream], step: f64, steps: f64, work_max: usize) -> Self {
        let mut work = BTreeMap::from([(0, 1.0)]);
        for stream in streams {
            work = convolve(&work, &arrivals(stream, step, steps), work_max);
        }
        work.remove(&0);
        let mean: f64 = load(streams) * steps;
        let kept: f64 = work.iter().map(|(&size, p)| size as f64 * p).sum();
        let scale = if kept > 0.0 { mean / kept } else { 0.0 };
        let atoms: Vec<(usize, f64)> = work
            .into_iter()
            .map(|(size, p)| (size, p * scale))
            .collect();
        let some: f64 = atoms.iter().map(|&(_, p)| p).sum();
        Self {
            none: 1.0 - some,
            atoms,
        }
    }

    /// In steps of sending.
    pub(super) fn mean(&self) -> f64 {
        self.atoms.iter().map(|&(size, p)| size as f64 * p).sum()
    }
}

/// The work of one stream: 0, 1, 2 … messages, each sum spread over the two nearest lattice
/// points so that its mean is right.
fn arrivals(stream: &Stream, step: f64, steps: f64) -> BTreeMap<usize, f64> {
    let mut size = stream.service / step;
    let mut expected = stream.rate * step * steps;
    if size <= 0.0 || expected <= 0.0 {
        return BTreeMap::from([(0, 1.0)]);
    }
    if size < SHORTEST_STEPS {
        expected *= size / SHORTEST_STEPS;
        size = SHORTEST_STEPS;
    }
    let mut work = BTreeMap::new();
    let mut probability = (-expected).exp();
    let mut count = 0.0;
    loop {
        let sum = count * size;
        let below = sum.floor();
        let above_part = sum - below;
        *work.entry(below as usize).or_insert(0.0) += probability * (1.0 - above_part);
        if above_part > 0.0 {
            *work.entry(below as usize + 1).or_insert(0.0) += probability * above_part;
        }
        count += 1.0;
        probability *= expected / count;
        if count > expected && probability < NEGLIGIBLE {
            return work;
        }
    }
}

fn convolve(
    left: &BTreeMap<usize, f64>,
    right: &BTreeMap<usize, f64>,
    work_max: usize,
) -> BTreeMap<usize, f64> {
    let mut product = BTreeMap::new();
    for (&a, p) in left {
        for (&b, q) in right {
            if p * q >= NEGLIGIBLE || (a == 0 && b == 0) {
                *product.entry((a + b).min(work_max)).or_insert(0.0) += p * q;
            }
        }
    }
    product
}
