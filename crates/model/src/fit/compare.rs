//! Which of two networks is faster for which sizes: `[latency-bandwidth eq. 2]` with lines that
//! break, and how sure that is.
//!
//! Equation 2 compares two lines: the one with the smaller overhead wins below
//! n = (oh₁ − oh₂)/(8/B₂ − 8/B₁). With pieces there can be several such sizes, and a break at which
//! the time jumps can be one. How sure a crossover is comes from drawing both networks again and
//! again as they may be, given their fits (a parametric bootstrap): lines from their errors, breaks
//! from their likelihood.

use std::{fmt, ops::RangeInclusive};

use rand_chacha::ChaCha12Rng;
use rand_core::SeedableRng;

use super::{
    Break, Fit, Interval, Piece, count, crossing,
    line::Line,
    statistics::{Z_95, normal, uniform},
};
use keiro_units::ByteCount;

/// One of the two that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Network {
    A,
    B,
}

/// Two networks over a range of sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The sizes that are compared.
    pub range: RangeInclusive<ByteCount>,
    /// Where the faster one changes, by rising size.
    pub crossovers: Vec<Crossover>,
    /// What lies between: one more than there are crossovers.
    pub stretches: Vec<Stretch>,
}

/// A size at which another network becomes the faster one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crossover {
    pub bytes: ByteCount,
    /// Its 95 % interval, over the draws in which it occurs; `None` if it occurs in too few.
    pub interval: Option<Interval<ByteCount>>,
    /// The faster one above it.
    pub faster_above: Network,
    /// Whether a break makes it, at which a time jumps past the other; else lines cross.
    pub at_break: bool,
    /// The share of draws in which it occurs at all.
    pub probability: f64,
}

/// Sizes for which one network is the faster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stretch {
    pub from: ByteCount,
    pub to: ByteCount,
    /// The faster one; `None` if both are exactly as fast.
    pub faster: Option<Network>,
    /// The probability that it is, at the (geometric) middle.
    pub probability: f64,
    /// The time that it saves at the middle, as a share of the slower one's.
    pub saving: f64,
    /// The widest run of sizes for which the probability is at least 95 %; `None` if there is none.
    pub sure: Option<Interval<ByteCount>>,
}

/// Two series that cannot be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompareError {
    /// No size lies within the measured range of both.
    NothingInCommon {
        /// The least and the largest size of the first.
        a: (ByteCount, ByteCount),
        /// Those of the second.
        b: (ByteCount, ByteCount),
    },
    /// The range that was asked for has no sizes.
    EmptyRange,
}

/// Enough for probabilities to a per cent.
const DRAWS: usize = 2000;

/// Sizes of a stretch that are looked at for where the faster one is sure.
const SIZES: usize = 33;

/// From this probability on, the faster one is sure.
const SURE: f64 = 0.95;

/// In fewer draws an interval would say nothing.
const OCCURRENCE_MIN: f64 = 0.5;

impl Network {
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

impl Comparison {
    /// Compares `a` and `b` over `range`, without one over the sizes that were measured in both.
    /// `seed` decides the draws.
    ///
    /// # Errors
    /// There is nothing to compare.
    pub fn of(
        a: &Fit,
        b: &Fit,
        range: Option<RangeInclusive<ByteCount>>,
        seed: u64,
    ) -> Result<Self, CompareError> {
        let range = match range {
            Some(range) if range.is_empty() => return Err(CompareError::EmptyRange),
            Some(range) => range,
            None => common(a, b)?,
        };
        let low = range.start().get().max(1) as f64;
        let high = range.end().get().max(1) as f64;
        let both = Both {
            a: Curve::of(a),
            b: Curve::of(b),
        };
        let found = both.changes(low, high);
        let mut crossovers: Vec<CrossoverDraws> = found
            .iter()
            .map(|&change| CrossoverDraws::new(change))
            .collect();
        let mut random = ChaCha12Rng::seed_from_u64(seed);
        let draw = |_| Both {
            a: Curve::draw(a, &mut random),
            b: Curve::draw(b, &mut random),
        };
        let draws: Vec<Both> = (0..DRAWS).map(draw).collect();
        for drawn in &draws {
            let changes = drawn.changes(low, high);
            crossovers.iter_mut().for_each(|seen| seen.look(&changes));
        }
        let mut edges = vec![low];
        edges.extend(found.iter().map(|change| change.bytes));
        edges.push(high);
        let stretch = |ends: &[f64]| Agreement::over(ends[0], ends[1], &both, &draws).stretch();
        Ok(Self {
            range,
            crossovers: crossovers.into_iter().map(CrossoverDraws::finish).collect(),
            stretches: edges.windows(2).map(stretch).collect(),
        })
    }
}

fn common(a: &Fit, b: &Fit) -> Result<RangeInclusive<ByteCount>, CompareError> {
    let (a, b) = (a.range(), b.range());
    let low = *a.start().max(b.start());
    let high = *a.end().min(b.end());
    match low <= high {
        true => Ok(low..=high),
        false => Err(CompareError::NothingInCommon {
            a: a.into_inner(),
            b: b.into_inner(),
        }),
    }
}

/// One network as it is, or as it may be.
struct Curve {
    lines: Vec<Line>,
    /// Rising; one fewer than lines.
    breaks: Vec<f64>,
}

impl Curve {
    fn of(fit: &Fit) -> Self {
        Self {
            lines: fit.pieces.iter().map(|p| p.line).collect(),
            breaks: fit.breaks.iter().map(|b| b.bytes.get() as f64).collect(),
        }
    }

    fn draw(fit: &Fit, random: &mut ChaCha12Rng) -> Self {
        let lines: Vec<Line> = fit.pieces.iter().map(|p| p.draw(random)).collect();
        let mut breaks = Vec::with_capacity(fit.breaks.len());
        let mut last = 0.0_f64;
        for (one, around) in fit.breaks.iter().zip(lines.windows(2)) {
            // Breaks never pass each other: pieces have sizes of their own.
            last = last.max(one.draw(&around[0], &around[1], random));
            breaks.push(last);
        }
        Self { lines, breaks }
    }

    /// The line just above `bytes`.
    fn line_above(&self, bytes: f64) -> &Line {
        let below = self.breaks.iter().take_while(|b| **b <= bytes).count();
        &self.lines[below]
    }
}

impl Piece {
    fn draw(&self, random: &mut ChaCha12Rng) -> Line {
        let wide = self.t / Z_95;
        let mut line = self.line;
        line.value += wide * line.value_variance.sqrt() * normal(random);
        line.slope += wide * line.slope_variance.sqrt() * normal(random);
        line
    }
}

impl Break {
    fn draw(&self, below: &Line, above: &Line, random: &mut ChaCha12Rng) -> f64 {
        let (low, high) = (
            self.interval.low.get() as f64,
            self.interval.high.get() as f64,
        );
        let crossing = crossing(below, above);
        // Lines that may meet do so where they cross.
        if self.jump_interval.contains(&0.0) && (low..=high).contains(&crossing) {
            return crossing;
        }
        let likelihood = |excess: f64| (-excess / 2.0).exp();
        let all: f64 = self.candidates.iter().map(|c| likelihood(c.excess)).sum();
        let mut left = all * uniform(random);
        for place in &self.candidates {
            left -= likelihood(place.excess);
            if left <= 0.0 {
                let share = uniform(random);
                return place.low.powf(1.0 - share) * place.high.powf(share);
            }
        }
        self.bytes.get() as f64
    }
}

/// Where the faster one changes.
#[derive(Clone, Copy)]
struct Change {
    bytes: f64,
    above: Network,
    at_break: bool,
}

struct Both {
    a: Curve,
    b: Curve,
}

impl Both {
    /// The faster one just above `bytes`, and by how many seconds.
    fn lead(&self, bytes: f64) -> (Option<Network>, f64) {
        let difference = self.a.line_above(bytes).at(bytes) - self.b.line_above(bytes).at(bytes);
        (faster(difference), difference.abs())
    }

    fn changes(&self, low: f64, high: f64) -> Vec<Change> {
        let within = |bytes: &f64| low < *bytes && *bytes < high;
        let breaks = self.a.breaks.iter().chain(&self.b.breaks);
        let mut knots: Vec<f64> = breaks.copied().filter(within).collect();
        knots.extend([low, high]);
        knots.sort_by(f64::total_cmp);
        let mut changes = Vec::new();
        let mut last = None;
        for ends in knots.windows(2) {
            let (a, b) = (self.a.line_above(ends[0]), self.b.line_above(ends[0]));
            let difference = |bytes: f64| a.at(bytes) - b.at(bytes);
            let (start, end) = (difference(ends[0]), difference(ends[1]));
            let mut note = |bytes, lead: Option<Network>, at_break| {
                if let (Some(before), Some(above)) = (last, lead)
                    && before != above
                {
                    changes.push(Change {
                        bytes,
                        above,
                        at_break,
                    });
                }
                last = lead.or(last);
            };
            note(ends[0], faster(start), true);
            let root = ends[0] + (ends[1] - ends[0]) * start / (start - end);
            note(root, faster(end), false);
        }
        changes
    }
}

fn faster(a_minus_b: f64) -> Option<Network> {
    match a_minus_b {
        d if d < 0.0 => Some(Network::A),
        d if d > 0.0 => Some(Network::B),
        _ => None,
    }
}

/// A crossover and where the draws have it.
struct CrossoverDraws {
    change: Change,
    at: Vec<f64>,
}

impl CrossoverDraws {
    fn new(change: Change) -> Self {
        Self {
            change,
            at: Vec::with_capacity(DRAWS),
        }
    }

    /// Takes the nearest change of the same kind.
    fn look(&mut self, changes: &[Change]) {
        let away = |c: &Change| (c.bytes / self.change.bytes).ln().abs();
        let same = changes.iter().filter(|c| c.above == self.change.above);
        if let Some(nearest) = same.min_by(|a, b| away(a).total_cmp(&away(b))) {
            self.at.push(nearest.bytes);
        }
    }

    fn finish(mut self) -> Crossover {
        self.at.sort_by(f64::total_cmp);
        let probability = self.at.len() as f64 / DRAWS as f64;
        let rank = |share: f64| ((self.at.len() - 1) as f64 * share).round() as usize;
        let interval = (probability >= OCCURRENCE_MIN).then(|| Interval {
            low: count(self.at[rank(0.025)].min(self.change.bytes)),
            high: count(self.at[rank(0.975)].max(self.change.bytes)),
        });
        Crossover {
            bytes: count(self.change.bytes),
            interval,
            faster_above: self.change.above,
            at_break: self.change.at_break,
            probability,
        }
    }
}

/// A stretch, and how often the draws agree on it.
struct Agreement<'a> {
    from: f64,
    to: f64,
    faster: Option<Network>,
    both: &'a Both,
    draws: &'a [Both],
}

impl<'a> Agreement<'a> {
    fn over(from: f64, to: f64, both: &'a Both, draws: &'a [Both]) -> Self {
        Self {
            from,
            to,
            faster: both.lead((from * to).sqrt()).0,
            both,
            draws,
        }
    }

    /// The share of draws in which the faster one is so at `bytes`.
    fn at(&self, bytes: f64) -> f64 {
        let agrees = |drawn: &&Both| drawn.lead(bytes).0 == self.faster;
        self.draws.iter().filter(agrees).count() as f64 / self.draws.len() as f64
    }

    fn is_sure_at(&self, bytes: f64) -> bool {
        self.at(bytes) >= SURE
    }

    fn stretch(&self) -> Stretch {
        let middle = (self.from * self.to).sqrt();
        let slower = self.faster.map_or(Network::A, Network::other);
        let curve = match slower {
            Network::A => &self.both.a,
            Network::B => &self.both.b,
        };
        Stretch {
            from: count(self.from),
            to: count(self.to),
            faster: self.faster,
            probability: self.at(middle),
            saving: self.both.lead(middle).1 / curve.line_above(middle).at(middle),
            sure: self.faster.and_then(|_| self.sure()),
        }
    }

    /// The longest run of sure sizes among [`SIZES`], its ends then searched for between those.
    fn sure(&self) -> Option<Interval<ByteCount>> {
        let size = |i: usize| self.from * (self.to / self.from).powf(i as f64 / (SIZES - 1) as f64);
        let sure: Vec<bool> = (0..SIZES).map(|i| self.is_sure_at(size(i))).collect();
        let mut longest = 0..0;
        let mut start = 0;
        for run in sure.chunk_by(|a, b| a == b) {
            let end = start + run.len();
            if run[0] && run.len() > longest.len() {
                longest = start..end;
            }
            start = end;
        }
        let last = longest.end.checked_sub(1)?;
        let low = match longest.start.checked_sub(1) {
            Some(before) => self.edge(size(longest.start), size(before)),
            None => self.from,
        };
        let high = match longest.end < SIZES {
            true => self.edge(size(last), size(longest.end)),
            false => self.to,
        };
        Some(Interval {
            low: count(low),
            high: count(high),
        })
    }

    /// The last sure size on the way from `sure` to `unsure`, within a part in 65,536 of the
    /// way.
    fn edge(&self, mut sure: f64, mut unsure: f64) -> f64 {
        const HALVINGS: usize = 16;
        for _ in 0..HALVINGS {
            let middle = (sure * unsure).sqrt();
            match self.is_sure_at(middle) {
                true => sure = middle,
                false => unsure = middle,
            }
        }
        sure
    }
}

impl CompareError {
    /// What to try.
    pub const fn hint(self) -> &'static str {
        match self {
            Self::NothingInCommon { .. } => "measure both networks with the same sizes",
            Self::EmptyRange => "begin the range with the smaller size",
        }
    }
}

impl fmt::Display for CompareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NothingInCommon { a, b } => write!(
                f,
                "no size was measured in both: {} to {} in the first, {} to {} in the second",
                a.0, a.1, b.0, b.1
            ),
            Self::EmptyRange => f.write_str("the range has no sizes"),
        }
    }
}

impl std::error::Error for CompareError {}
