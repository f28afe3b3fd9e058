//! Points gathered by size, and how much times vary: what the segmentation works on.
//!
//! At most [`BINS_MAX`] bins stand for any number of points: one per size, or of neighbouring sizes
//! where there are more. A bin has a robust middle of its times and says how sure that is.

use std::ops::Range;

use super::{
    Sample,
    statistics::{deviation, location, median, quantile},
};

/// The most bins; bounds the search, which looks at every pair of bins.
pub(super) const BINS_MAX: usize = 100;

/// Points of one size, or of neighbouring sizes.
#[derive(Clone, Debug)]
pub(super) struct Bin {
    /// The mean size in bytes.
    pub(super) x: f64,
    /// The middle of the times at that size, in seconds.
    pub(super) y: f64,
    /// The standard error of `y`, in seconds.
    pub(super) error: f64,
    /// Which of the sorted points it holds.
    pub(super) points: Range<usize>,
}

/// How much single times vary: a standard deviation of √(`steady`² + (`share`·T)²).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Noise {
    /// What does not grow with the time, in seconds.
    steady: f64,
    share: f64,
}

/// Points by size.
#[derive(Clone, Debug)]
pub(super) struct Binned {
    /// By rising size; at least two.
    pub(super) bins: Vec<Bin>,
    /// How much single times vary.
    pub(super) noise: Noise,
    /// Whether the variation is known from repetitions of sizes, not only from how times follow
    /// each other.
    pub(super) repeated: bool,
}

impl Noise {
    /// The standard deviation of a single time around `seconds`.
    pub(super) fn deviation(self, seconds: f64) -> f64 {
        // No clock and no transfer is steadier than a millionth.
        let floor = seconds * 1e-6;
        self.steady.hypot(self.share * seconds).max(floor)
    }
}

impl Binned {
    /// Gathers `samples`, which are sorted by size.
    pub(super) fn of(samples: &[Sample]) -> Self {
        let ranges = ranges(samples);
        let mut bins: Vec<Bin> = ranges.into_iter().map(|r| coarse(samples, r)).collect();
        let tilts = tilts(&bins);
        let mut level: Vec<Vec<f64>> = Vec::with_capacity(bins.len());
        for (bin, tilt) in bins.iter_mut().zip(tilts) {
            let points = &samples[bin.points.clone()];
            let mut times: Vec<f64> = points
                .iter()
                .map(|p| p.seconds() - tilt * (p.size() - bin.x))
                .collect();
            bin.y = location(&mut times);
            level.push(times);
        }
        let within = within(&bins, &level);
        // Two sizes have no neighbour between them: only repetitions show the noise, however few.
        let repeated =
            bins.len() == 2 || within.len() >= REPEATED_MIN && samples.len() >= bins.len() * 3 / 2;
        let noise = match repeated {
            true => noise(&within),
            false => noise(&between(&bins)),
        };
        for (bin, times) in bins.iter_mut().zip(&level) {
            let deviation = spread(bin.y, times, noise);
            bin.y = without_outliers(times, bin.y, deviation);
            bin.error = error(bin.y, times.len(), deviation);
        }
        Self {
            bins,
            noise,
            repeated,
        }
    }

    /// Takes how much times vary from the deviations from `fitted`, one per bin, of which
    /// `parameters` are taken by the lines: what is found between neighbours counts jumps too.
    pub(super) fn learn(&mut self, fitted: &[f64], parameters: usize) {
        let count = self.bins.len() as f64;
        let free = (count - parameters as f64).max(1.0);
        let deviations = self.bins.iter().zip(fitted).map(|(bin, fitted)| Deviation {
            size: (bin.y - fitted).abs() * (count / free).sqrt(),
            // A middle varies less than its single times.
            parts: [
                (*fitted, (bin.points.len() as f64).recip().sqrt()),
                (*fitted, 0.0),
                (*fitted, 0.0),
            ],
        });
        self.noise = noise(&deviations.collect::<Vec<_>>());
        for bin in &mut self.bins {
            let deviation = self.noise.deviation(bin.y);
            bin.error = error(bin.y, bin.points.len(), deviation);
        }
    }
}

/// Repetitions that say how much times vary.
const REPEATED_MIN: usize = 4;

/// One range of points per bin.
fn ranges(samples: &[Sample]) -> Vec<Range<usize>> {
    let same = |a: &Sample, b: &Sample| a.bytes() == b.bytes();
    let sizes = samples.chunk_by(same).count();
    let sizes_per_bin = sizes.div_ceil(BINS_MAX);
    let mut ranges = Vec::with_capacity(sizes.min(BINS_MAX));
    let (mut start, mut end, mut held) = (0, 0, 0);
    for size in samples.chunk_by(same) {
        end += size.len();
        held += 1;
        if held == sizes_per_bin {
            ranges.push(start..end);
            (start, held) = (end, 0);
        }
    }
    if held > 0 {
        ranges.push(start..end);
    }
    ranges
}

fn coarse(samples: &[Sample], range: Range<usize>) -> Bin {
    let points = &samples[range.clone()];
    let mut times: Vec<f64> = points.iter().map(Sample::seconds).collect();
    Bin {
        x: points.iter().map(Sample::size).sum::<f64>() / points.len() as f64,
        y: median(&mut times).unwrap_or(0.0),
        error: 0.0,
        points: range,
    }
}

/// How times rise inside each bin: the flatter of the slopes to its neighbours, so that a jump at
/// its edge does not count.
fn tilts(bins: &[Bin]) -> Vec<f64> {
    let slope = |a: &Bin, b: &Bin| ((b.y - a.y) / (b.x - a.x)).max(0.0);
    let slopes: Vec<f64> = bins.windows(2).map(|w| slope(&w[0], &w[1])).collect();
    (0..bins.len())
        .map(|i| {
            let left = i.checked_sub(1).and_then(|i| slopes.get(i));
            let right = slopes.get(i);
            match (left, right) {
                (Some(left), Some(right)) => left.min(*right),
                (one, other) => one.or(other).copied().unwrap_or(0.0),
            }
        })
        .collect()
}

/// A deviation, and the times and shares of them that it is made of.
struct Deviation {
    size: f64,
    parts: [(f64, f64); 3],
}

/// Deviations of points from the middle of their bin.
fn within(bins: &[Bin], level: &[Vec<f64>]) -> Vec<Deviation> {
    let mut deviations = Vec::new();
    for (bin, times) in bins.iter().zip(level).filter(|(_, t)| t.len() > 1) {
        let count = times.len() as f64;
        let share = ((count - 1.0) / count).sqrt();
        deviations.extend(times.iter().map(|time| Deviation {
            size: (time - bin.y).abs(),
            parts: [(bin.y, share), (bin.y, 0.0), (bin.y, 0.0)],
        }));
    }
    deviations
}

/// Deviations of bins from the line through their two neighbours.
fn between(bins: &[Bin]) -> Vec<Deviation> {
    bins.windows(3)
        .map(|w| {
            let share = (w[1].x - w[0].x) / (w[2].x - w[0].x);
            let expected = w[0].y * (1.0 - share) + w[2].y * share;
            Deviation {
                size: (w[1].y - expected).abs(),
                parts: [(w[1].y, 1.0), (w[0].y, 1.0 - share), (w[2].y, share)],
            }
        })
        .collect()
}

/// The noise that the deviations show. For every ratio of steady and growing noise, the factor that
/// makes 68 % of them less than one standard deviation; of these, the mean variance by likelihood
/// (as Laplace's distribution has it, far ones drawn in), since few deviations cannot show which.
fn noise(deviations: &[Deviation]) -> Noise {
    const WITHIN_ONE: f64 = 0.682_689;
    let mut found: Vec<(f64, f64, f64)> = Vec::new();
    for steady in steady_candidates(deviations) {
        let mut logarithms = 0.0;
        let mut scaled: Vec<f64> = Vec::with_capacity(deviations.len());
        for deviation in deviations {
            let variance =
                |(time, share): (f64, f64)| share * share * (time * time + steady * steady);
            let unit = deviation.parts.map(variance).iter().sum::<f64>().sqrt();
            logarithms += unit.ln();
            scaled.push(deviation.size / unit);
        }
        let Some(factor) = quantile(&mut scaled, WITHIN_ONE) else {
            continue;
        };
        let drawn_in = scaled.iter().map(|s| s.min(4.0 * factor)).sum::<f64>();
        let count = deviations.len() as f64;
        let cost = count * (drawn_in / count).max(f64::MIN_POSITIVE).ln() + logarithms;
        found.push((cost, factor, steady));
    }
    let least = found.iter().map(|f| f.0).fold(f64::INFINITY, f64::min);
    let (mut weights, mut steady_variance, mut share_variance) = (0.0, 0.0, 0.0);
    for (cost, factor, steady) in found {
        let weight = (least - cost).exp();
        weights += weight;
        steady_variance += weight * (factor * steady).powi(2);
        share_variance += weight * factor.powi(2);
    }
    Noise {
        steady: (steady_variance / weights).sqrt(),
        share: (share_variance / weights).sqrt(),
    }
}

/// None, and from a tenth of the least time to ten times the largest. None alone where there are
/// too few deviations to say how they grow.
fn steady_candidates(deviations: &[Deviation]) -> Vec<f64> {
    const FEW: usize = 8;
    const CANDIDATES: i32 = 16;
    let mut candidates = vec![0.0];
    let times = deviations.iter().map(|d| d.parts[0].0);
    let least = times.clone().fold(f64::INFINITY, f64::min) / 10.0;
    let largest = times.fold(0.0, f64::max) * 10.0;
    if deviations.len() >= FEW {
        let step = (largest / least).powf(1.0 / f64::from(CANDIDATES - 1));
        candidates.extend((0..CANDIDATES).map(|i| least * step.powi(i)));
    }
    candidates
}

/// The standard deviation of a bin's times: its own, drawn towards what all bins say the more, the
/// fewer points it has.
fn spread(middle: f64, times: &[f64], noise: Noise) -> f64 {
    // Points more, as if each had the deviation that all bins say.
    const BORROWED: f64 = 20.0;
    let common = noise.deviation(middle).powi(2);
    let others = times.len() as f64 - 1.0;
    let own = deviation(times, middle).powi(2);
    ((others * own + BORROWED * common) / (others + BORROWED)).sqrt()
}

/// Tukey's location, which begins at `middle` and in the end does not count what is further than
/// some deviations from it: a transfer that met a loss says nothing about those that did not.
fn without_outliers(times: &[f64], middle: f64, deviation: f64) -> f64 {
    const REACH: f64 = 5.0;
    const STEPS: usize = 6;
    let mut at = middle;
    for _ in 0..STEPS {
        let (mut weights, mut sum) = (0.0, 0.0);
        for time in times {
            let far = (time - at) / (REACH * deviation);
            let weight = (1.0 - far * far).max(0.0).powi(2);
            weights += weight;
            sum += weight * time;
        }
        if weights <= 0.0 {
            break;
        }
        at = sum / weights;
    }
    at
}

/// The standard error of a middle of `count` times.
fn error(middle: f64, count: usize, deviation: f64) -> f64 {
    // Tukey's location is that much less sure than the mean where nothing is an outlier.
    const COST_OF_ROBUSTNESS: f64 = 1.05;
    let variance = COST_OF_ROBUSTNESS * deviation * deviation / count as f64;
    variance.sqrt().max(middle * 1e-6)
}
