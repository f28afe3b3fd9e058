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
///
/// Streams are Poisson streams of whole steps of work, and a steady flow: what is left of their
/// load when the second moments of their work are right. The steady flow takes its part of the
/// sending, so that one step less is left after [`time`](Self::time).
#[derive(Clone, Debug)]
pub(super) struct StepWork {
    /// The probability that nothing arrives.
    pub(super) none: f64,
    /// Work and probability, by rising work; all work is positive.
    pub(super) atoms: Vec<(usize, f64)>,
    /// The time in which one step of other work is sent, in steps; at least one.
    pub(super) time: f64,
}

/// What is less likely than this, per step, is left out and its mean given to the rest.
const NEGLIGIBLE: f64 = 1e-6;

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
pub(super) struct RenewalStream {
    /// With the mean length.
    pub(super) stream: Stream,
    pub(super) length_spread: f64,
    pub(super) interval_spread: f64,
}

/// By what waiting is multiplied where intervals are not exponential; see [`StreamSums::factor`].
pub(super) fn arrival_factor(streams: &[RenewalStream]) -> f64 {
    let mut sums = StreamSums::default();
    for stream in streams {
        sums.add(stream);
    }
    sums.factor()
}

/// Sums over streams that give their mean workload. Those of two sets of streams are added.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct StreamSums {
    /// Σ λs.
    pub(super) load: f64,
    /// Σ λs².
    whole: f64,
    /// Σ (λs²)².
    squares: f64,
    /// Σ λs²(1 + cₛ²), as of exponential intervals.
    poisson: f64,
    /// Σ λs²(cₐ² + cₛ²).
    varied: f64,
    /// Σ λs³(1 + cₛ²)(1 + 2cₛ²): the third moments if lengths have gamma distributions.
    cubes: f64,
}

impl StreamSums {
    pub(super) fn add(&mut self, stream: &RenewalStream) {
        let Stream { rate, service } = stream.stream;
        let weight = rate * service.powi(2);
        self.load += rate * service;
        self.whole += weight;
        self.squares += weight * weight;
        self.poisson += weight * (1.0 + stream.length_spread);
        self.varied += weight * (stream.interval_spread + stream.length_spread);
        let spread = stream.length_spread;
        self.cubes += weight * service * (1.0 + spread) * (1.0 + 2.0 * spread);
    }

    /// In the order of the fields.
    pub(super) fn sums(&self) -> [f64; 6] {
        [
            self.load,
            self.whole,
            self.squares,
            self.poisson,
            self.varied,
            self.cubes,
        ]
    }

    pub(super) fn from_sums(sums: [f64; 6]) -> Self {
        let [load, whole, squares, poisson, varied, cubes] = sums;
        Self {
            load,
            whole,
            squares,
            poisson,
            varied,
            cubes,
        }
    }

    /// Of both sets of streams.
    pub(super) fn and(&self, other: &Self) -> Self {
        Self {
            load: self.load + other.load,
            whole: self.whole + other.whole,
            squares: self.squares + other.squares,
            poisson: self.poisson + other.poisson,
            varied: self.varied + other.varied,
            cubes: self.cubes + other.cubes,
        }
    }

    /// With every service `part` as long.
    pub(super) fn scaled(&self, part: f64) -> Self {
        let square = part * part;
        Self {
            load: self.load * part,
            whole: self.whole * square,
            squares: self.squares * square * square,
            poisson: self.poisson * square,
            varied: self.varied * square,
            cubes: self.cubes * square * part,
        }
    }

    /// By what waiting is multiplied where intervals are not exponential; exact for exponential
    /// ones.
    ///
    /// For one stream Allen and Cunneen's (cₐ² + cₛ²) / (1 + cₛ²). For several the same of their
    /// work's variances together, Σ λs²(cₐ² + cₛ²) / Σ λs²(1 + cₛ²), which is Kingman's limit for
    /// heavy traffic; at lower loads many streams look like a Poisson one, and how fast is Whitt's
    /// weight (The Queueing Network Analyzer, 1983, eq. 33).
    pub(super) fn factor(&self) -> f64 {
        if self.poisson <= 0.0 || self.load >= 1.0 {
            return 1.0;
        }
        let alike = self.whole * self.whole / self.squares;
        let weight = 1.0 / (1.0 + 4.0 * (1.0 - self.load).powi(2) * (alike - 1.0));
        1.0 + weight * (self.varied / self.poisson - 1.0)
    }

    /// The mean workload in seconds, as [`mean_workload`], with the factor for intervals; infinite
    /// at a load of one.
    pub(super) fn mean_workload(&self) -> f64 {
        match self.load < 1.0 {
            true => self.poisson / (2.0 * (1.0 - self.load)) * self.factor(),
            false => f64::INFINITY,
        }
    }

    /// The variance of the workload, in s²: that of the M/G/1 queue, E\[V\]² + λE\[S³\] / 3(1 − ρ)
    /// (Takács), with all of it longer by the factor for intervals. Meaningful for a load below one.
    pub(super) fn workload_variance(&self) -> f64 {
        let factor = self.factor();
        let third = self.cubes / (3.0 * (1.0 - self.load));
        self.mean_workload().powi(2) + third * factor * factor
    }
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
    /// The work of `streams` in `part` of a step of `step` seconds; at most `work_max` steps of
    /// work.
    pub(super) fn of(streams: &[Stream], step: f64, part: f64, work_max: usize) -> Self {
        let mut arrivals = Arrivals::new(step, work_max);
        for stream in streams {
            arrivals.add(stream);
        }
        arrivals.work(part)
    }

    /// In steps of sending.
    pub(super) fn mean(&self) -> f64 {
        self.atoms.iter().map(|&(size, p)| size as f64 * p).sum()
    }

    /// The part of the path's time that the steady flow takes.
    pub(super) fn steady(&self) -> f64 {
        1.0 - 1.0 / self.time
    }
}

/// What some streams bring, on a lattice.
pub(super) struct Arrivals {
    /// In s.
    step: f64,
    work_max: usize,
    /// Arrivals per step of time, by their work in steps.
    rates: BTreeMap<usize, f64>,
    /// The load of the steady flow.
    steady: f64,
}

impl Arrivals {
    pub(super) fn new(step: f64, work_max: usize) -> Self {
        Self {
            step,
            work_max,
            rates: BTreeMap::new(),
            steady: 0.0,
        }
    }

    pub(super) fn add(&mut self, stream: &Stream) {
        let size = stream.service / self.step;
        let rate = stream.rate * self.step;
        if size <= 0.0 || rate <= 0.0 {
            return;
        }
        // Between two points, so that the mean is right, and fewer, so that the second moment is.
        let (below, above_part) = (size.floor(), size.fract());
        let square = below * below * (1.0 - above_part) + (below + 1.0).powi(2) * above_part;
        let kept = size * size / square;
        for (size, part) in [(below, 1.0 - above_part), (below + 1.0, above_part)] {
            if size > 0.0 && part > 0.0 {
                let size = (size as usize).min(self.work_max);
                *self.rates.entry(size).or_insert(0.0) += rate * kept * part;
            }
        }
        self.steady += rate * size * (1.0 - kept);
    }

    /// The work in `part` of the time in which one step of other work is sent.
    pub(super) fn work(&self, part: f64) -> StepWork {
        let time = 1.0 / (1.0 - self.steady);
        let rates = self.rates.iter();
        let expected: Vec<(usize, f64)> = rates.map(|(&s, r)| (s, r * time * part)).collect();
        let mass = compound_poisson(&expected, self.work_max);
        let some = mass.into_iter().enumerate().skip(1);
        let mut atoms: Vec<(usize, f64)> = some.filter(|&(_, p)| p >= NEGLIGIBLE).collect();
        let mean: f64 = expected.iter().map(|&(s, count)| s as f64 * count).sum();
        let kept: f64 = atoms.iter().map(|&(size, p)| size as f64 * p).sum();
        let scale = if kept > 0.0 { mean / kept } else { 0.0 };
        for (_, p) in &mut atoms {
            *p *= scale;
        }
        let some: f64 = atoms.iter().map(|&(_, p)| p).sum();
        StepWork {
            none: 1.0 - some,
            atoms,
            time,
        }
    }
}

/// The probabilities of work 0, 1, 2 … where so many arrivals of each work are expected: Panjer's
/// recursion. What is beyond `work_max` is at it.
fn compound_poisson(expected: &[(usize, f64)], work_max: usize) -> Vec<f64> {
    let all: f64 = expected.iter().map(|&(_, count)| count).sum();
    let mut mass = vec![(-all).exp()];
    let mut rest = 1.0 - mass[0];
    while rest > NEGLIGIBLE / 16.0 && mass.len() < work_max {
        let work = mass.len();
        let of = expected.iter().take_while(|&&(size, _)| size <= work);
        let weighted: f64 = of
            .map(|&(size, count)| size as f64 * count * mass[work - size])
            .sum();
        let p = weighted / work as f64;
        mass.push(p);
        rest -= p;
    }
    if rest > 0.0 && work_max > 0 && mass.len() == work_max {
        mass.push(rest);
    }
    mass
}
