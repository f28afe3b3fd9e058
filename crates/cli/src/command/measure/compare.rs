//! `keiro measure compare`: which of two networks is faster for which sizes.

use std::process::ExitCode;

use keiro_measure::report::{ComparisonReport, StretchReport};
use keiro_model::fit::Comparison;

use super::{
    super::Outcome,
    fit::{heading, load, name_of, range, text},
};
use crate::{
    args,
    failure::Failure,
    output::{
        self,
        human::{self, NONE},
        table::Table,
    },
};

pub(super) fn compare(args: &args::MeasureCompare) -> Outcome {
    if args.a == args.b && args.a.as_os_str() == "-" {
        return Err(Failure::new("standard input cannot be both networks")
            .hint("name a file for one of them"));
    }
    let (a, b) = (load(&args.a)?, load(&args.b)?);
    let sizes = args.sizes.map(|sizes| sizes.first..=sizes.last);
    let comparison = Comparison::of(&a, &b, sizes, args.seed).map_err(|error| {
        let what = format!(
            "cannot compare {} with {}",
            name_of(&args.a),
            name_of(&args.b)
        );
        Failure::new(what).because(error).hint(error.hint())
    })?;
    let names = [&args.a, &args.b].map(|file| name_of(file));
    let report = ComparisonReport::of([&names[0], &names[1]], [&a, &b], &comparison);
    if args.json {
        output::json(&report)?;
        return Ok(ExitCode::SUCCESS);
    }
    output::text(format!(
        "A {}\n{}\nB {}\n{}\n{}{}{}",
        heading(&report.a),
        text(&a, false),
        heading(&report.b),
        text(&b, false),
        stretches(&report.stretches),
        crossovers(&report),
        beyond(&report),
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// That some of it was not measured, where it was not.
fn beyond(report: &ComparisonReport) -> String {
    let names: Vec<String> = report
        .extrapolated
        .iter()
        .map(|name| name.to_uppercase().to_string())
        .collect();
    match names.as_slice() {
        [] => String::new(),
        names => format!(
            "not all of these sizes were measured over {}: beyond the measured ones its line is extrapolated\n",
            names.join(" and over ")
        ),
    }
}

fn stretches(stretches: &[StretchReport]) -> Table {
    let mut table = Table::new(&["size", "faster", "saves>", "probability>", "sure for"]);
    for stretch in stretches {
        let sure = stretch.sure_min_bytes.zip(stretch.sure_max_bytes);
        table.row([
            range(stretch.min_bytes, stretch.max_bytes),
            stretch
                .faster
                .map_or_else(|| NONE.to_owned(), str::to_uppercase),
            human::percent(stretch.saving_ratio),
            probability(stretch.probability),
            sure.map_or_else(|| "no size".to_owned(), |(low, high)| range(low, high)),
        ]);
    }
    table
}

/// Draws never make anything certain.
fn probability(share: f64) -> String {
    match share {
        s if s >= 0.9995 => "> 99.9 %".to_owned(),
        s => human::percent(s),
    }
}

fn crossovers(report: &ComparisonReport) -> String {
    let mut text = String::new();
    for one in &report.crossovers {
        let interval = match one.low_bytes.zip(one.high_bytes) {
            Some((low, high)) => format!("95 % interval {}", range(low, high)),
            None => "too unsure for an interval".to_owned(),
        };
        let why = match one.at_break {
            true => "where a time jumps",
            false => "where the lines cross",
        };
        text.push_str(&format!(
            "\nfrom {} on {} is faster, {why} ({interval})",
            human::bytes(one.at_bytes),
            one.faster_above.to_uppercase(),
        ));
    }
    match report.stretches.as_slice() {
        [StretchReport { faster: None, .. }] => "\nboth are exactly as fast\n".to_owned(),
        [
            StretchReport {
                faster: Some(one), ..
            },
        ] => format!(
            "\n{} is the faster one for all of these sizes, as sure as the table says\n",
            one.to_uppercase()
        ),
        _ => format!("{text}\n"),
    }
}
