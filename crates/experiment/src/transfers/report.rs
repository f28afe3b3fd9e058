//! Report of transfers: fitted lines, figure, times.

use std::{collections::BTreeMap, fmt::Write as _};

use keiro_model::fit::{Fit, Interval, PaperLine, Sample};
use keiro_units::ByteCount;

use super::{Measured, Shape, Transfers};
use crate::{
    evaluate::{Basis, NamedDrawing, TargetResult},
    figure::{self, DrawError, XyFigure, XySeries},
    manifest::{EmulatorsReport, RunsReport},
    row::{Row, Verdict},
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

/// All possible rows, with their units.
pub(super) fn names(transfers: &Transfers) -> Vec<(String, &'static str)> {
    let of_network = |&network: &usize| {
        let name = &transfers.networks.networks[network].name;
        ALL.map(|quantity| (format!("{} {name}", quantity.name()), quantity.unit()))
    };
    transfers.shown.iter().flat_map(of_network).collect()
}

/// Networks that were measured, in the order in which they are shown.
fn networks(transfers: &Transfers, measured: &Measured) -> Vec<usize> {
    let is_measured =
        |network: &usize| measured.transfers.iter().any(|one| one.network == *network);
    transfers
        .shown
        .iter()
        .copied()
        .filter(is_measured)
        .collect()
}

fn samples(measured: &Measured, network: usize) -> Vec<Sample> {
    let of_network = measured
        .transfers
        .iter()
        .filter(|one| one.network == network);
    of_network
        .filter_map(|one| Sample::new(one.size, one.seconds?).ok())
        .collect()
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
    network: usize,
    of: Quantity,
) -> Option<Valued> {
    let samples = samples(measured, network);
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
            let unended = measured.transfers.iter();
            let unended = unended.filter(|one| one.network == network && one.seconds.is_none());
            Some((unended.count() as f64, None))
        }
    }
}

/// All rows of the measured networks, and their basis.
pub(crate) fn rows(transfers: &Transfers, measured: &Measured) -> (Vec<Row>, Vec<Basis>) {
    let mut found = Vec::new();
    for network in networks(transfers, measured) {
        let name = &transfers.networks.networks[network].name;
        let samples = samples(measured, network).len();
        for quantity in ALL {
            let row = format!("{} {name}", quantity.name());
            found.push((
                row,
                quantity,
                samples,
                value(transfers, measured, network, quantity),
            ));
        }
    }
    let values: BTreeMap<String, f64> = found
        .iter()
        .filter_map(|(row, _, _, value)| Some((row.clone(), value.as_ref()?.0)))
        .collect();
    let reported = |row: &str| found.iter().any(|(name, ..)| name == row);
    let judged = |(name, quantity, samples, value): &(String, Quantity, usize, Option<Valued>)| {
        let of_row = transfers
            .targets
            .iter()
            .filter(|target| target.row == *name);
        let of_row = of_row.filter(|target| target.other().is_none_or(reported));
        let targets: Vec<TargetResult> = of_row
            .map(|target| TargetResult {
                target: target.text.clone(),
                // A line or a break that is not there misses its target.
                holds: Some(target.holds(&values).unwrap_or(false)),
            })
            .collect();
        let interval = value.as_ref().and_then(|(_, interval)| *interval);
        let row = Row {
            name: name.clone(),
            unit: quantity.unit(),
            paper: transfers.paper.get(name).copied(),
            measured: value.as_ref().map(|(value, _)| *value),
            low: interval.map(|i| i.low),
            high: interval.map(|i| i.high),
            floor: None,
            verdict: Verdict::of(false, &targets),
        };
        let basis = Basis {
            name: name.clone(),
            samples: Some(*samples),
            batches: None,
            floor_with_headers: None,
            targets,
        };
        (row, basis)
    };
    found.iter().map(judged).unzip()
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
    let networks = networks(transfers, measured);
    if networks.is_empty() {
        return Ok(Vec::new());
    }
    let steps = match transfers.figure {
        Shape::Time => 1,
        Shape::Throughput => STEPS,
    };
    let y = |megabytes: f64, seconds: f64| match transfers.figure {
        Shape::Time => seconds,
        Shape::Throughput => megabytes * 8.0 / seconds,
    };
    let series = networks.iter().enumerate().map(|(place, &network)| {
        let samples = samples(measured, network);
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
        let largest = by_size
            .keys()
            .last()
            .map_or(split, |size| size.get() as f64 / 1e6);
        let least = by_size
            .keys()
            .next()
            .map_or(split, |size| size.get() as f64 / 1e6);
        let spans = [(Side::Below, least, split), (Side::Above, split, largest)];
        let lines = spans.map(|(side, from, to)| {
            let line = line(transfers, &samples, side)?;
            let at = |step: u32| {
                let n = from + (to - from) * f64::from(step) / f64::from(steps);
                (
                    n,
                    y(n, line.seconds_per_megabyte * n + line.overhead_seconds),
                )
            };
            Some((0..=steps).map(at).collect())
        });
        XySeries {
            name: transfers.networks.networks[network].name.clone(),
            colour: figure::colour(place),
            points: points.collect(),
            lines: lines.into_iter().flatten().collect(),
        }
    });
    let (title, down, name) = match transfers.figure {
        Shape::Time => ("Transfer time over size", "time (s)", "time"),
        Shape::Throughput => ("Throughput over size", "throughput (Mbit/s)", "throughput"),
    };
    let words = if quick {
        "; a quick run, not for publication"
    } else {
        ""
    };
    let figure = XyFigure {
        title: title.to_owned(),
        subtitle: format!(
            "simulator; medians of all rounds, and the lines up to {} and above{words}",
            transfers.networks.split
        ),
        across: "size (MB)".to_owned(),
        down: down.to_owned(),
        series: series.collect(),
    };
    Ok(vec![(name.to_owned(), figure.draw()?)])
}

/// Segments of a throughput, which is curved.
const STEPS: u32 = 50;

/// One line per transfer.
pub(crate) fn times_csv(transfers: &Transfers, measured: &Measured) -> String {
    let mut csv = "network,round,bytes,seconds\n".to_owned();
    for one in &measured.transfers {
        let network = figure::csv_text(&transfers.networks.networks[one.network].name);
        let seconds = one.seconds.map(|s| format!("{s:.9}")).unwrap_or_default();
        let _ = writeln!(csv, "{network},{},{},{seconds}", one.round, one.size.get());
    }
    csv
}

/// Every network's transfers, for the manifest.
pub(crate) fn runs_reports(transfers: &Transfers, measured: &Measured) -> Vec<RunsReport> {
    let Some(source) = measured.source else {
        return Vec::new();
    };
    let report = |network: usize| {
        let of_network = measured
            .transfers
            .iter()
            .filter(|one| one.network == network);
        let rounds = of_network.clone().map(|one| one.round + 1).max();
        RunsReport {
            variant: transfers.networks.networks[network].name.clone(),
            source,
            runs: rounds.unwrap_or(0) as usize,
            messages: of_network.count(),
            void_repeats: 0,
            void_runs: 0,
            emulator: EmulatorsReport::default(),
        }
    };
    networks(transfers, measured)
        .into_iter()
        .map(report)
        .collect()
}

/// Remarks for the reader.
pub(crate) fn notes(measured: &Measured) -> Vec<String> {
    let mut notes = vec![
        "A time runs from a connection's first packet until the receiver has the last byte; lines are \
         fitted with 95 % intervals, as `keiro measure fit` does."
            .to_owned(),
    ];
    if measured.source.is_none() {
        notes.push("NOT MEASURED: only the simulator has it.".to_owned());
    }
    notes
}
