//! Report of transfers: fitted lines, figure, times.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use keiro_model::fit::{Fit, Interval, PaperLine, Sample};
use keiro_units::ByteCount;

use super::{Measured, Shape, Transfers, measure::Transfer};
use crate::{
    evaluate::{Basis, NamedDrawing, TargetResult},
    figure::{self, DrawError, XyFigure, XySeries},
    manifest::{EmulatorsReport, RunsReport},
    row::{Row, Source, Verdict},
    setup::SIMULATED_SUFFIX,
    stats,
};

/// A reported quantity of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quantity {
    /// 8/B of the line up to the split, or above it.
    Slope(Side),
    /// oh of that line.
    Overhead(Side),
    /// Size at which one line gives way to the next.
    Break,
    /// Transfers that took too long.
    Unended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Below,
    Above,
}

/// A value with its 95 % interval.
type Valued = (f64, Option<Interval<f64>>);

const ALL: [Quantity; 6] = [
    Quantity::Slope(Side::Below),
    Quantity::Overhead(Side::Below),
    Quantity::Slope(Side::Above),
    Quantity::Overhead(Side::Above),
    Quantity::Break,
    Quantity::Unended,
];

impl Quantity {
    const fn name(self) -> &'static str {
        match self {
            Self::Slope(Side::Below) => "slope below",
            Self::Slope(Side::Above) => "slope above",
            Self::Overhead(Side::Below) => "overhead below",
            Self::Overhead(Side::Above) => "overhead above",
            Self::Break => "break",
            Self::Unended => "unended",
        }
    }

    const fn unit(self) -> &'static str {
        match self {
            Self::Slope(_) => "s/MB",
            Self::Overhead(_) => "s",
            Self::Break => "MB",
            Self::Unended => "transfers",
        }
    }
}

/// All possible rows of a source, with their units.
pub(super) fn names(transfers: &Transfers, source: Source) -> Vec<(String, &'static str)> {
    let of_network = |&network: &usize| {
        let of = Series { source, network };
        ALL.map(|quantity| (of.row(transfers, quantity), quantity.unit()))
    };
    transfers.shown.iter().flat_map(of_network).collect()
}

/// A network's transfers in one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Series {
    source: Source,
    /// Its index.
    network: usize,
}

impl Series {
    /// Those that were measured, in the order in which they are shown, the laboratory's first.
    fn all(transfers: &Transfers, measured: &Measured) -> Vec<Self> {
        let of_source = |source| {
            let shown = transfers.shown.iter();
            shown.map(move |&network| Self { source, network })
        };
        let possible = [Source::Lab, Source::Sim].into_iter().flat_map(of_source);
        possible
            .filter(|series| series.transfers(measured).next().is_some())
            .collect()
    }

    fn name(self, transfers: &Transfers) -> &str {
        &transfers.networks.networks[self.network].name
    }

    fn row(self, transfers: &Transfers, quantity: Quantity) -> String {
        let name = format!("{} {}", quantity.name(), self.name(transfers));
        match self.source {
            Source::Lab => name,
            Source::Sim => format!("{name} {SIMULATED_SUFFIX}"),
        }
    }

    fn transfers(self, measured: &Measured) -> impl Iterator<Item = &Transfer> + Clone {
        let all = measured.transfers.iter();
        all.filter(move |one| (one.source, one.network) == (self.source, self.network))
    }

    fn samples(self, measured: &Measured) -> Vec<Sample> {
        let of_series = self.transfers(measured);
        of_series
            .filter_map(|one| Sample::new(one.size, one.outcome.seconds?).ok())
            .collect()
    }

    fn is_void(self, measured: &Measured) -> bool {
        self.transfers(measured).any(Transfer::is_void)
    }
}

/// The line up to the split, or above it.
fn line(transfers: &Transfers, samples: &[Sample], side: Side) -> Option<PaperLine> {
    let split = transfers.networks.split.0;
    let is_of_side = |sample: &&Sample| (sample.bytes() <= split) == (side == Side::Below);
    let of_side: Vec<Sample> = samples.iter().filter(is_of_side).copied().collect();
    let fit = Fit::of(&of_side).ok()?;
    // The piece that has the most sizes, where the fit finds several.
    let count = |first: ByteCount, last: ByteCount| {
        of_side
            .iter()
            .filter(|s| (first..=last).contains(&s.bytes()))
            .count()
    };
    let piece = fit
        .pieces()
        .iter()
        .max_by_key(|piece| count(piece.first, piece.last))?;
    Some(piece.paper_line())
}

fn value(
    transfers: &Transfers,
    measured: &Measured,
    series: Series,
    of: Quantity,
) -> Option<Valued> {
    let samples = series.samples(measured);
    match of {
        Quantity::Slope(side) => line(transfers, &samples, side).map(|line| {
            (
                line.seconds_per_megabyte,
                Some(line.seconds_per_megabyte_interval),
            )
        }),
        Quantity::Overhead(side) => line(transfers, &samples, side)
            .map(|line| (line.overhead_seconds, Some(line.overhead_seconds_interval))),
        Quantity::Break => {
            let fit = Fit::of(&samples).ok()?;
            // The one with the largest jump, where there are several.
            let jump = |one: &&keiro_model::fit::Break| one.jump_seconds.abs();
            let largest = fit
                .breaks()
                .iter()
                .max_by(|a, b| jump(a).total_cmp(&jump(b)))?;
            let megabytes = |bytes: ByteCount| bytes.get() as f64 / 1e6;
            let interval = Interval {
                low: megabytes(largest.interval.low),
                high: megabytes(largest.interval.high),
            };
            Some((megabytes(largest.bytes), Some(interval)))
        }
        Quantity::Unended => {
            let unended = series.transfers(measured);
            let unended = unended.filter(|one| one.outcome.seconds.is_none());
            Some((unended.count() as f64, None))
        }
    }
}

/// A row without its verdict.
struct Found {
    name: String,
    /// The row's name without its source, by which the paper's values are listed.
    paper: String,
    quantity: Quantity,
    samples: usize,
    value: Option<Valued>,
    is_void: bool,
}

/// All rows of the measured networks, and their basis.
pub(crate) fn rows(transfers: &Transfers, measured: &Measured) -> (Vec<Row>, Vec<Basis>) {
    let mut found = Vec::new();
    for series in Series::all(transfers, measured) {
        let in_lab = Series {
            source: Source::Lab,
            ..series
        };
        for quantity in ALL {
            found.push(Found {
                name: series.row(transfers, quantity),
                paper: in_lab.row(transfers, quantity),
                quantity,
                samples: series.samples(measured).len(),
                value: value(transfers, measured, series, quantity),
                is_void: series.is_void(measured),
            });
        }
    }
    let valid = found.iter().filter(|one| !one.is_void);
    let values: BTreeMap<String, f64> = valid
        .filter_map(|one| Some((one.name.clone(), one.value.as_ref()?.0)))
        .collect();
    let judged = |one| judged(transfers, &found, &values, one);
    found.iter().map(judged).unzip()
}

fn judged(
    transfers: &Transfers,
    found: &[Found],
    values: &BTreeMap<String, f64>,
    one: &Found,
) -> (Row, Basis) {
    let is_reported = |row: &str| found.iter().any(|other| other.name == row);
    let is_void = |row: &str| found.iter().any(|other| other.name == row && other.is_void);
    let of_row = transfers.targets.iter();
    let of_row =
        of_row.filter(|target| target.row == one.name && target.other().is_none_or(is_reported));
    let targets: Vec<TargetResult> = of_row
        .map(|target| TargetResult {
            target: target.text.clone(),
            // A line or a break that is not there misses its target.
            holds: match one.is_void || target.other().is_some_and(is_void) {
                true => None,
                false => Some(target.holds(values).unwrap_or(false)),
            },
        })
        .collect();
    let interval = one.value.as_ref().and_then(|(_, interval)| *interval);
    let row = Row {
        name: one.name.clone(),
        unit: one.quantity.unit(),
        paper: transfers.paper.get(&one.paper).copied(),
        measured: one.value.as_ref().map(|(value, _)| *value),
        low: interval.map(|i| i.low),
        high: interval.map(|i| i.high),
        floor: None,
        verdict: Verdict::of(one.is_void, &targets),
    };
    let basis = Basis {
        name: one.name.clone(),
        samples: Some(one.samples),
        batches: None,
        floor_with_headers: None,
        targets,
    };
    (row, basis)
}

/// The networks in one figure; none without a measurement.
///
/// # Errors
/// See [`DrawError`].
pub(crate) fn drawings(
    transfers: &Transfers,
    measured: &Measured,
    quick: bool,
) -> Result<Vec<NamedDrawing>, DrawError> {
    let all = Series::all(transfers, measured);
    if all.is_empty() {
        return Ok(Vec::new());
    }
    let sources: BTreeSet<Source> = all.iter().map(|series| series.source).collect();
    let both = sources.len() > 1;
    let (title, down, name) = match transfers.figure {
        Shape::Time => ("Transfer time over size", "time (s)", "time"),
        Shape::Throughput => ("Throughput over size", "throughput (Mbit/s)", "throughput"),
    };
    let places = match sources.first() {
        _ if both => "laboratory (filled) and simulator (hollow)",
        Some(Source::Lab) => "laboratory",
        _ => "simulator",
    };
    let words = if quick {
        "; a quick run, not for publication"
    } else {
        ""
    };
    let drawn = all
        .into_iter()
        .map(|series| drawn(transfers, measured, series, both));
    let figure = XyFigure {
        title: title.to_owned(),
        subtitle: format!(
            "{places}; medians of all rounds, and the lines up to {} and above{words}",
            transfers.networks.split
        ),
        across: "size (MB)".to_owned(),
        down: down.to_owned(),
        series: drawn.collect(),
    };
    Ok(vec![(name.to_owned(), figure.draw()?)])
}

/// A network's points and lines; `both` if the figure has both sources.
fn drawn(transfers: &Transfers, measured: &Measured, series: Series, both: bool) -> XySeries {
    let steps = match transfers.figure {
        Shape::Time => 1,
        Shape::Throughput => STEPS,
    };
    let y = |megabytes: f64, seconds: f64| match transfers.figure {
        Shape::Time => seconds,
        Shape::Throughput => megabytes * 8.0 / seconds,
    };
    let samples = series.samples(measured);
    let mut by_size: BTreeMap<ByteCount, Vec<f64>> = BTreeMap::new();
    for sample in &samples {
        by_size
            .entry(sample.bytes())
            .or_default()
            .push(sample.seconds());
    }
    let points = by_size.iter().filter_map(|(size, seconds)| {
        let megabytes = size.get() as f64 / 1e6;
        Some((megabytes, y(megabytes, stats::median(seconds)?)))
    });
    let split = transfers.networks.split.0.get() as f64 / 1e6;
    let end = |size: Option<&ByteCount>| size.map_or(split, |size| size.get() as f64 / 1e6);
    let (least, largest) = (end(by_size.keys().next()), end(by_size.keys().last()));
    let spans = [(Side::Below, least, split), (Side::Above, split, largest)];
    let lines = spans.map(|(side, from, to)| {
        let line = line(transfers, &samples, side)?;
        let at = |step: u32| {
            let n = from + (to - from) * f64::from(step) / f64::from(steps);
            let seconds = line.seconds_per_megabyte * n + line.overhead_seconds;
            (n, y(n, seconds))
        };
        Some((0..=steps).map(at).collect())
    });
    let shown = transfers.shown.iter();
    let place = shown.copied().position(|network| network == series.network);
    let hollow = both && series.source == Source::Sim;
    let name = series.name(transfers);
    XySeries {
        name: match hollow {
            true => format!("{name}, simulator"),
            false => name.to_owned(),
        },
        colour: figure::colour(figure::place(place.unwrap_or(0))),
        hollow,
        points: points.collect(),
        lines: lines.into_iter().flatten().collect(),
    }
}

/// Segments of a throughput, which is curved.
const STEPS: u32 = 50;

/// One line per transfer.
pub(crate) fn times_csv(transfers: &Transfers, measured: &Measured) -> String {
    let mut csv = "source,network,round,bytes,seconds\n".to_owned();
    for one in &measured.transfers {
        let network = figure::csv_text(&transfers.networks.networks[one.network].name);
        let seconds = one.outcome.seconds.map(|s| format!("{s:.9}"));
        let _ = writeln!(
            csv,
            "{},{network},{},{},{}",
            source_name(one.source),
            one.round,
            one.size.get(),
            seconds.unwrap_or_default()
        );
    }
    csv
}

const fn source_name(source: Source) -> &'static str {
    match source {
        Source::Lab => "lab",
        Source::Sim => "sim",
    }
}

/// Every network's transfers, for the manifest.
pub(crate) fn runs_reports(transfers: &Transfers, measured: &Measured) -> Vec<RunsReport> {
    let report = |series: Series| {
        let of_series = || series.transfers(measured);
        let rounds = of_series().map(|one| one.round + 1).max();
        let emulators: Vec<_> = of_series().filter_map(|one| one.outcome.emulator).collect();
        RunsReport {
            variant: series.name(transfers).to_owned(),
            source: series.source,
            runs: rounds.unwrap_or(0) as usize,
            messages: of_series().count(),
            void_repeats: of_series().map(|one| one.repeats).sum(),
            void_runs: of_series().filter(|one| one.is_void()).count(),
            emulator: EmulatorsReport::of(&emulators),
        }
    };
    let all = Series::all(transfers, measured);
    all.into_iter().map(report).collect()
}

/// Remarks for the reader; missing measurements come first.
pub(crate) fn notes(transfers: &Transfers, measured: &Measured) -> Vec<String> {
    let mut notes = Vec::new();
    for (source, place) in [
        (Source::Lab, "the laboratory, which needs root"),
        (Source::Sim, "the simulator"),
    ] {
        if !measured.transfers.iter().any(|one| one.source == source) {
            notes.push(format!("NOT MEASURED: nothing of {place}."));
        }
    }
    notes.push(
        "A time runs from a connection's first packet until the receiver has the last byte; lines are \
         fitted with 95 % intervals, as `keiro measure fit` does."
            .to_owned(),
    );
    for series in Series::all(transfers, measured) {
        if series.is_void(measured) {
            notes.push(format!(
                "VOID: {}: the emulator was late, in every repeat of a transfer.",
                series.name(transfers)
            ));
        }
    }
    notes
}
