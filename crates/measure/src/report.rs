//! Fits and comparisons as data: field names include units, unknown values are absent.
//!
//! The command formats them for the terminal.

use keiro_model::fit::{self, Comparison, Fit, Interval, Network};
use keiro_units::ByteCount;
use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FitReport {
    /// Origin of the series.
    pub series: String,
    /// Number of fitted transfers.
    pub points: usize,
    /// The smallest measured size.
    pub min_bytes: u64,
    /// The largest measured size.
    pub max_bytes: u64,
    /// The lines, by ascending size.
    pub pieces: Vec<PieceReport>,
    /// The breaks between them.
    pub breaks: Vec<BreakReport>,
    /// The information criterion without breaks, with one, and so on.
    pub criterion: Vec<f64>,
    /// Every size with its fit.
    pub sizes: Vec<SizeReport>,
}

/// One line T(n) = 8n/B + oh with 95 % intervals.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PieceReport {
    /// The smallest measured size on it.
    pub min_bytes: u64,
    pub max_bytes: u64,
    /// B of the payload.
    pub bandwidth_bits_per_second: u64,
    /// Lower end of its interval.
    pub bandwidth_low_bits_per_second: u64,
    /// Upper end; absent if the data do not bound it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth_high_bits_per_second: Option<u64>,
    /// oh; negative if the line's intercept is negative.
    pub overhead_seconds: f64,
    /// Lower end of its interval.
    pub overhead_low_seconds: f64,
    pub overhead_high_seconds: f64,
    /// The same line in the paper's form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paper: Option<PaperReport>,
}

/// A line in the units of [latency-bandwidth]: MB of 10^6 bytes, and seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PaperReport {
    pub slope_seconds_per_megabyte: f64,
    /// Lower end of its interval.
    pub slope_low_seconds_per_megabyte: f64,
    pub slope_high_seconds_per_megabyte: f64,
    pub intercept_seconds: f64,
    /// Lower end of its interval.
    pub intercept_low_seconds: f64,
    pub intercept_high_seconds: f64,
}

/// A break with its 95 % interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BreakReport {
    pub at_bytes: u64,
    /// Lower end of its interval.
    pub low_bytes: u64,
    pub high_bytes: u64,
    /// The largest size measured below it; nothing is known between this and the next.
    pub measured_below_bytes: u64,
    /// The smallest size measured above it.
    pub measured_above_bytes: u64,
    /// Jump of the time at the break.
    pub jump_seconds: f64,
    /// Lower end of its interval.
    pub jump_low_seconds: f64,
    pub jump_high_seconds: f64,
}

/// A size with its fit; if there are very many sizes, neighbours are merged.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SizeReport {
    /// The size, or the mean of several.
    pub mean_bytes: f64,
    pub points: usize,
    /// Robust centre of their times.
    pub middle_seconds: f64,
    pub standard_error_seconds: f64,
    pub fitted_seconds: f64,
    /// Centre minus fit, relative to the fit.
    pub residual_ratio: f64,
    /// Whether it is an outlier that the fit ignores.
    pub left_out: bool,
}

/// A comparison of two networks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparisonReport {
    /// The first network.
    pub a: FitReport,
    /// The second network.
    pub b: FitReport,
    /// The smallest compared size.
    pub min_bytes: u64,
    pub max_bytes: u64,
    /// The networks, `a` or `b`, that were not measured over all of these sizes, so that their lines are
    /// extrapolated.
    pub extrapolated: Vec<char>,
    /// The sizes at which the faster network changes.
    pub crossovers: Vec<CrossoverReport>,
    pub stretches: Vec<StretchReport>,
}

/// A size at which the other network becomes the faster one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CrossoverReport {
    pub at_bytes: u64,
    /// Lower end of its 95 % interval; absent if too uncertain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high_bytes: Option<u64>,
    /// The faster network below, `a` or `b`.
    pub faster_below: &'static str,
    /// The faster network above.
    pub faster_above: &'static str,
    /// Whether it is due to a jump of one network's time.
    pub at_break: bool,
    /// Probability that it exists.
    pub probability: f64,
}

/// Sizes for which one network is faster.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StretchReport {
    pub min_bytes: u64,
    pub max_bytes: u64,
    /// The faster one, `a` or `b`; absent if both are equally fast.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub faster: Option<&'static str>,
    /// Probability that it is faster, at the centre.
    pub probability: f64,
    /// Time saved at the centre, relative to the slower one's.
    pub saving_ratio: f64,
    /// Size from which its probability is at least 95 %; absent if nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sure_min_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sure_max_bytes: Option<u64>,
}

impl FitReport {
    /// Report of `fit`; `series` names its origin. `paper_units` adds lines in the paper's form.
    pub fn of(series: &str, fit: &Fit, paper_units: bool) -> Self {
        let (first, last) = fit.range().into_inner();
        Self {
            series: series.to_owned(),
            points: fit.samples().len(),
            min_bytes: first.get(),
            max_bytes: last.get(),
            pieces: fit
                .pieces()
                .iter()
                .map(|piece| PieceReport::of(piece, paper_units))
                .collect(),
            breaks: fit.breaks().iter().map(BreakReport::of).collect(),
            criterion: fit.criterion().to_vec(),
            sizes: fit.sizes().iter().map(SizeReport::of).collect(),
        }
    }
}

impl PieceReport {
    fn of(piece: &fit::Piece, paper_units: bool) -> Self {
        let (low, high) = piece.bandwidth_interval();
        let overhead = piece.overhead_interval();
        Self {
            min_bytes: piece.first.get(),
            max_bytes: piece.last.get(),
            bandwidth_bits_per_second: piece.bandwidth().as_bits_per_second(),
            bandwidth_low_bits_per_second: low.as_bits_per_second(),
            bandwidth_high_bits_per_second: high.map(|b| b.as_bits_per_second()),
            overhead_seconds: piece.overhead_seconds(),
            overhead_low_seconds: overhead.low,
            overhead_high_seconds: overhead.high,
            paper: paper_units.then(|| PaperReport::of(&piece.paper_line())),
        }
    }
}

impl PaperReport {
    fn of(line: &fit::PaperLine) -> Self {
        let (slope, intercept) = (
            line.seconds_per_megabyte_interval,
            line.overhead_seconds_interval,
        );
        Self {
            slope_seconds_per_megabyte: line.seconds_per_megabyte,
            slope_low_seconds_per_megabyte: slope.low,
            slope_high_seconds_per_megabyte: slope.high,
            intercept_seconds: line.overhead_seconds,
            intercept_low_seconds: intercept.low,
            intercept_high_seconds: intercept.high,
        }
    }
}

impl BreakReport {
    fn of(one: &fit::Break) -> Self {
        Self {
            at_bytes: one.bytes.get(),
            low_bytes: one.interval.low.get(),
            high_bytes: one.interval.high.get(),
            measured_below_bytes: one.gap.low.get(),
            measured_above_bytes: one.gap.high.get(),
            jump_seconds: one.jump_seconds,
            jump_low_seconds: one.jump_interval.low,
            jump_high_seconds: one.jump_interval.high,
        }
    }
}

impl SizeReport {
    fn of(size: &fit::SizeSummary) -> Self {
        Self {
            mean_bytes: size.bytes,
            points: size.points,
            middle_seconds: size.seconds,
            standard_error_seconds: size.error_seconds,
            fitted_seconds: size.fitted_seconds,
            residual_ratio: size.seconds / size.fitted_seconds - 1.0,
            left_out: size.left_out,
        }
    }
}

impl ComparisonReport {
    /// Report of `comparison` between two fits, with their names.
    pub fn of(names: [&str; 2], fits: [&Fit; 2], comparison: &Comparison) -> Self {
        let (first, last) = comparison.range.clone().into_inner();
        let extrapolates = |fit: &Fit| [first, last].iter().any(|n| fit.predict(*n).extrapolated);
        let [a, b] = [0, 1].map(|i| FitReport::of(names[i], fits[i], false));
        Self {
            a,
            b,
            extrapolated: ['a', 'b']
                .into_iter()
                .zip(fits)
                .filter_map(|(name, fit)| extrapolates(fit).then_some(name))
                .collect(),
            min_bytes: first.get(),
            max_bytes: last.get(),
            crossovers: comparison
                .crossovers
                .iter()
                .map(CrossoverReport::of)
                .collect(),
            stretches: comparison.stretches.iter().map(StretchReport::of).collect(),
        }
    }
}

impl CrossoverReport {
    fn of(crossover: &fit::Crossover) -> Self {
        let end = |of: fn(Interval<ByteCount>) -> ByteCount| crossover.interval.map(of);
        Self {
            at_bytes: crossover.bytes.get(),
            low_bytes: end(|i| i.low).map(ByteCount::get),
            high_bytes: end(|i| i.high).map(ByteCount::get),
            faster_below: letter(crossover.faster_above.other()),
            faster_above: letter(crossover.faster_above),
            at_break: crossover.at_break,
            probability: crossover.probability,
        }
    }
}

impl StretchReport {
    fn of(stretch: &fit::Stretch) -> Self {
        Self {
            min_bytes: stretch.from.get(),
            max_bytes: stretch.to.get(),
            faster: stretch.faster.map(letter),
            probability: stretch.probability,
            saving_ratio: stretch.saving,
            sure_min_bytes: stretch.sure.map(|sure| sure.low.get()),
            sure_max_bytes: stretch.sure.map(|sure| sure.high.get()),
        }
    }
}

fn letter(network: Network) -> &'static str {
    match network {
        Network::A => "a",
        Network::B => "b",
    }
}
