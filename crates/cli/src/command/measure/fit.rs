//! `keiro measure fit`: bandwidth, overhead and breaks of anybody's transfer times.

use std::{io, ops::RangeInclusive, path::Path, process::ExitCode, time::Duration};

use keiro_measure::{report::FitReport, series::Series};
use keiro_model::fit::{Fit, Piece};

use super::{super::Outcome, picture};
use crate::{
    args,
    failure::Failure,
    output::{
        self,
        human::{self, NONE},
        table::Table,
    },
};

pub(super) fn fit(args: &args::MeasureFit) -> Outcome {
    let name = name_of(&args.file);
    let figure = args.figure.as_deref();
    let figure = figure.map(|file| picture::prepare(file, Some(&args.file)));
    let figure = figure.transpose()?;
    let fit = load(&args.file)?;
    let report = FitReport::of(&name, &fit, args.paper_units);
    let shown = match args.json {
        true => output::json(&report),
        false => output::text(format!(
            "{}\n{}",
            heading(&report),
            text(&fit, args.paper_units)
        )),
    };
    // Who reads no further may want the picture all the same.
    let shown = output::allow_closed_reader(shown);
    let drawn = figure.map_or(Ok(()), |file| picture::draw(file, &name, &fit, KEPT));
    shown.and(drawn)?;
    Ok(ExitCode::SUCCESS)
}

/// What there is where there is no room for the figure.
const KEPT: &str = "; what is on standard output is complete";

/// What a file is called in messages.
pub(super) fn name_of(file: &Path) -> String {
    match is_standard_input(file) {
        true => "standard input".to_owned(),
        false => file.display().to_string(),
    }
}

fn is_standard_input(file: &Path) -> bool {
    file == Path::new("-")
}

/// Reads and fits a file; `-` is standard input.
pub(super) fn load(file: &Path) -> Result<Fit, Failure> {
    let name = name_of(file);
    let series = match is_standard_input(file) {
        true => Series::read(&name, io::stdin().lock()),
        false => Series::load(file),
    };
    let series = series.map_err(|error| Failure::new(error.to_string()).hint(error.hint()))?;
    let fit = Fit::of(&series.samples)
        .map_err(|error| Failure::new(format!("{name}: {error}")).hint(error.hint()))?;
    let absurd = |piece: &&Piece| !POSSIBLE.contains(&piece.bandwidth().as_bits_per_second());
    let Some(piece) = fit.pieces().iter().find(absurd) else {
        return Ok(fit);
    };
    if is_level(piece) {
        let sizes = range(piece.first.get(), piece.last.get());
        let message = format!("{name}: from {sizes} the times do not rise with size");
        return Err(Failure::new(message).hint("measure larger sizes, and over a longer path"));
    }
    let bandwidth = human::rate(piece.bandwidth());
    let message = format!("{name}: a bandwidth of {bandwidth}, which no network has");
    Err(Failure::new(message).hint("write sizes in bytes and times in seconds"))
}

/// Whether size makes no difference that could be seen.
fn is_level(piece: &Piece) -> bool {
    const SEEN: f64 = 1e-6;
    let bits = (piece.last.get() - piece.first.get()) as f64 * 8.0;
    let bandwidth = piece.bandwidth().as_bits_per_second();
    let rise = bits / bandwidth.max(1) as f64;
    bandwidth > *POSSIBLE.end() && rise < SEEN * piece.overhead_seconds()
}

/// In bit/s. Ours: a million times what the fastest links have.
const POSSIBLE: RangeInclusive<u64> = 1..=1_000_000_000_000_000_000;

/// What was fitted, in a line.
pub(super) fn heading(report: &FitReport) -> String {
    format!(
        "{}: {} transfers from {} to {}\n",
        report.series,
        report.points,
        human::bytes(report.min_bytes),
        human::bytes(report.max_bytes)
    )
}

/// The lines and breaks of a fit; with `paper_units` also as the paper writes them.
pub(super) fn text(fit: &Fit, paper_units: bool) -> String {
    let mut text = pieces(fit).to_string();
    if !fit.breaks().is_empty() {
        text.push_str(&format!("\n{}", breaks(fit)));
    }
    let left_out = fit.sizes().iter().filter(|size| size.left_out).count();
    if left_out > 0 {
        let sizes = fit.sizes().len();
        text.push_str(&format!(
            "\n{left_out} of {sizes} sizes lie too far from the lines to count\n"
        ));
    }
    if paper_units {
        text.push_str(&format!("\n{}", paper(fit)));
    }
    text
}

fn pieces(fit: &Fit) -> Table {
    let mut table = Table::new(&[
        "T(n) = 8n/B + oh",
        "B>",
        "95 % interval>",
        "oh>",
        "95 % interval>",
    ]);
    for piece in fit.pieces() {
        let (low, high) = piece.bandwidth_interval();
        let overhead = piece.overhead_interval();
        let high = high.map_or_else(|| "no bound".to_owned(), human::rate);
        table.row([
            range(piece.first.get(), piece.last.get()),
            human::rate(piece.bandwidth()),
            format!("{} to {high}", human::rate(low)),
            seconds(piece.overhead_seconds()),
            format!("{} to {}", seconds(overhead.low), seconds(overhead.high)),
        ]);
    }
    table
}

fn breaks(fit: &Fit) -> Table {
    let mut table = Table::new(&["break at>", "95 % interval>", "jump>", "95 % interval>"]);
    for one in fit.breaks() {
        let (low, high) = (one.interval.low.get(), one.interval.high.get());
        let jump = one.jump_interval;
        table.row([
            human::bytes(one.bytes.get()),
            range(low, high),
            seconds(one.jump_seconds),
            format!("{} to {}", seconds(jump.low), seconds(jump.high)),
        ]);
    }
    table
}

/// As [latency-bandwidth §3] prints them, with intervals.
fn paper(fit: &Fit) -> Table {
    let mut table = Table::new(&[
        "T(n), n in MB, T in s",
        "",
        "slope, 95 % interval>",
        "intercept, 95 % interval>",
    ]);
    for piece in fit.pieces() {
        let line = piece.paper_line();
        let (slope, intercept) = (
            line.seconds_per_megabyte_interval,
            line.overhead_seconds_interval,
        );
        let sign = if line.overhead_seconds < 0.0 {
            '-'
        } else {
            '+'
        };
        table.row([
            format!(
                "{}n {sign} {}",
                decimal(line.seconds_per_megabyte),
                decimal(line.overhead_seconds.abs())
            ),
            range(piece.first.get(), piece.last.get()),
            format!("{} to {}", decimal(slope.low), decimal(slope.high)),
            format!("{} to {}", decimal(intercept.low), decimal(intercept.high)),
        ]);
    }
    table
}

/// From one size to another.
pub(super) fn range(low: u64, high: u64) -> String {
    format!("{} to {}", human::bytes(low), human::bytes(high))
}

/// Four digits, as the paper has them.
fn decimal(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return "0".to_owned();
    }
    let decimals = 3 - value.abs().log10().floor() as i32;
    let decimals = usize::try_from(decimals.clamp(0, 12)).unwrap_or(0);
    format!("{value:.decimals$}")
}

/// A time that may be below zero.
pub(super) fn seconds(value: f64) -> String {
    let time = Duration::try_from_secs_f64(value.abs());
    match time {
        Ok(time) if value < 0.0 && !time.is_zero() => format!("-{}", human::duration(time)),
        Ok(time) => human::duration(time),
        Err(_) => NONE.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_papers_digits() {
        assert_eq!(decimal(0.0245), "0.02450");
        assert_eq!(decimal(1.015), "1.015");
        assert_eq!(decimal(-0.00747), "-0.007470");
        assert_eq!(decimal(0.0), "0");
        assert_eq!(decimal(123_456.0), "123456");
    }

    #[test]
    fn times_below_zero_keep_their_sign() {
        assert_eq!(seconds(-0.0123), "-12.3 ms");
        assert_eq!(seconds(0.0123), "12.3 ms");
        assert_eq!(seconds(f64::NAN), "-");
    }
}
