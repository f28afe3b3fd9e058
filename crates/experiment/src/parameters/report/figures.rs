//! The figures of studies.

use super::{
    super::{Case, Cells, Controller, Measured, Study, StudyKind, measure::StudyRun},
    Quantity, in_order, samples_within,
};
use crate::{
    evaluate::NamedDrawing,
    figure::{
        self, DrawError, EffectLine, EffectRow, EffectsFigure, TimeFigure, TimeLine, TimePanel,
    },
    row::Source,
    stats,
};

/// Number of intervals in a figure over time. Ours: 1 s in phases of 10 s or more, 0.1 s in shorter ones, and
/// no shorter than several samples.
const BIN_S_MAX: f64 = 1.0;
const BIN_S_MIN: f64 = 0.5;

/// A figure for every controller and source, or one for every source.
///
/// # Errors
/// See [`DrawError`].
pub(crate) fn drawings(
    study: &Study,
    measured: &Measured,
    quick: bool,
) -> Result<Vec<NamedDrawing>, DrawError> {
    let mut drawings = Vec::new();
    let suffix = if quick {
        "; a quick run, not for publication"
    } else {
        ""
    };
    match &study.kind {
        StudyKind::Controllers(_) => {
            for ((source, case), runs) in in_order(study, measured) {
                if let Some(run) = runs.first() {
                    let drawing = over_time(study, *case, *source, run, suffix).draw()?;
                    let file =
                        format!("path-{}-{}", study.name(*case), super::source_name(*source));
                    drawings.push((file, drawing));
                }
            }
        }
        StudyKind::Cells(cells) => {
            for &source in &study.sources {
                if measured.runs.keys().any(|(of, _)| *of == source) {
                    let drawing = effects(study, cells, measured, source, suffix).draw()?;
                    drawings.push((format!("effects-{}", super::source_name(source)), drawing));
                }
            }
        }
    }
    Ok(drawings)
}

fn place(source: Source) -> &'static str {
    match source {
        Source::Lab => "laboratory",
        Source::Sim => "simulator",
    }
}

fn over_time(
    study: &Study,
    case: Case,
    source: Source,
    run: &StudyRun,
    suffix: &str,
) -> TimeFigure {
    let to_s = run.phases.len() as f64 * run.each_s;
    let spans = (0_u32..)
        .zip(&run.phases)
        .filter(|(_, phase)| phase.impairment.is_some());
    let spans = spans.map(|(index, phase)| {
        let from = f64::from(index) * run.each_s;
        (from, from + run.each_s, phase.name.clone())
    });
    let flow = study.flow(case);
    TimeFigure {
        title: format!(
            "Size S, interval I and copies N under the controller {}",
            study.name(case)
        ),
        subtitle: format!(
            "{}; {} in datagrams of {} over {}{suffix}",
            place(source),
            flow.offered.0,
            flow.datagram.0,
            study.line.rate.0
        ),
        to_s,
        spans: spans.collect(),
        panels: panels(run, to_s),
    }
}

fn panels(run: &StudyRun, to_s: f64) -> Vec<TimePanel> {
    let samples = &run.outcome.samples;
    let line = |name: &str, index: usize, steps| TimeLine {
        name: name.to_owned(),
        colour: figure::colour(index),
        steps,
    };
    let parameter = |of: &dyn Fn(&super::Sample) -> f64| -> Vec<(f64, Option<f64>)> {
        samples.iter().map(|s| (s.at_s, Some(of(s)))).collect()
    };
    let bin_s = (run.each_s / 10.0).clamp(BIN_S_MIN, BIN_S_MAX);
    let bins = |quantity: Quantity| bins(run, quantity, bin_s, to_s);
    let ticks = |values: &[f64]| {
        values
            .iter()
            .map(|v| (*v, format!("{v}")))
            .collect::<Vec<_>>()
    };
    let blue = 2;
    vec![
        TimePanel {
            name: "S (bytes)".to_owned(),
            height: 76,
            range: (450.0, 9300.0),
            logarithmic: true,
            ticks: ticks(&[512.0, 2048.0, 8192.0]),
            lines: vec![line("", blue, parameter(&|s| s.size_bytes as f64))],
        },
        TimePanel {
            name: "I (ms)".to_owned(),
            height: 64,
            range: (0.42, 4.8),
            logarithmic: true,
            ticks: ticks(&[0.5, 1.0, 2.0, 4.0]),
            lines: vec![line("", blue, parameter(&|s| s.interval_ms))],
        },
        TimePanel {
            name: "N".to_owned(),
            height: 48,
            range: (0.7, 3.3),
            logarithmic: false,
            ticks: ticks(&[1.0, 2.0, 3.0]),
            lines: vec![line("", blue, parameter(&|s| f64::from(s.copies)))],
        },
        TimePanel {
            name: "delay of datagrams (ms, logarithmic)".to_owned(),
            height: 120,
            range: (0.3, 10_000.0),
            logarithmic: true,
            ticks: ticks(&[1.0, 10.0, 100.0, 1000.0, 10_000.0]),
            lines: vec![
                line("99th percentile", 1, bins(Quantity::P99)),
                line("mean", blue, bins(Quantity::Mean)),
            ],
        },
        TimePanel {
            name: "lost (%, logarithmic; values below 0.01 % are drawn at 0.01 %)".to_owned(),
            height: 120,
            range: (0.01, 100.0),
            logarithmic: true,
            ticks: ticks(&[0.01, 0.1, 1.0, 10.0, 100.0]),
            lines: vec![
                line("copies", 1, copies_lost(run, bin_s, to_s)),
                line("aggregates", blue, bins(Quantity::AggregatesLost)),
                line("datagrams", 0, bins(Quantity::Lost)),
            ],
        },
        TimePanel {
            name: "sent (Mbit/s)".to_owned(),
            height: 76,
            range: (0.0, 25.0),
            logarithmic: false,
            ticks: ticks(&[0.0, 10.0, 20.0]),
            lines: vec![line("", blue, bins(Quantity::Sent))],
        },
    ]
}

fn bins(run: &StudyRun, quantity: Quantity, bin_s: f64, to_s: f64) -> Vec<(f64, Option<f64>)> {
    let count = (to_s / bin_s).round() as u32;
    let value = |index: u32| {
        let from_s = f64::from(index) * bin_s;
        (from_s, quantity.value(&run.outcome, from_s, from_s + bin_s))
    };
    (0..count).map(value).collect()
}

fn copies_lost(run: &StudyRun, bin_s: f64, to_s: f64) -> Vec<(f64, Option<f64>)> {
    let count = (to_s / bin_s).round() as u32;
    let share = |index: u32| {
        let from_s = f64::from(index) * bin_s;
        let samples = samples_within(&run.outcome.samples, from_s, from_s + bin_s);
        let share = samples
            .first()
            .zip(samples.last())
            .and_then(|(first, last)| {
                let of = |i: usize| {
                    last.copies_reported[i].saturating_sub(first.copies_reported[i]) as f64
                };
                (of(0) > 0.0).then(|| 100.0 * of(1) / of(0))
            });
        (from_s, share)
    };
    (0..count).map(share).collect()
}

fn effects(
    study: &Study,
    cells: &Cells,
    measured: &Measured,
    source: Source,
    suffix: &str,
) -> EffectsFigure {
    let columns = columns(cells);
    let quantities = match source {
        Source::Sim => vec![
            Quantity::Mean,
            Quantity::P99,
            Quantity::Sent,
            Quantity::Packets,
            Quantity::Lost,
        ],
        Source::Lab => vec![
            Quantity::Mean,
            Quantity::P99,
            Quantity::Packets,
            Quantity::Cpu,
            Quantity::Sent,
            Quantity::Lost,
        ],
    };
    let lines = lines(cells);
    let groups = groups(cells);
    let rows = quantities.into_iter().map(|quantity| EffectRow {
        name: format!("{} ({})", what(quantity), quantity.unit()),
        lines: lines
            .iter()
            .enumerate()
            .map(|(place, (name, conditions))| EffectLine {
                name: name.clone(),
                place: figure::place(place),
                values: groups
                    .iter()
                    .flat_map(|group| columns.iter().map(move |(_, of)| (group, of)))
                    .map(|(group, of)| {
                        let condition = in_group(cells, conditions, group.as_deref());
                        let value = |(index, _): &(usize, String)| {
                            let case = Case::Cell(*index, condition?);
                            value(measured, source, case, quantity)
                        };
                        of.iter().map(value).collect()
                    })
                    .collect(),
            })
            .collect(),
    });
    let named = |group: &Option<String>, factor: &str| match group {
        Some(group) => format!("{factor}, {group}"),
        None => factor.to_owned(),
    };
    let marks = |of: &[(usize, String)]| of.iter().map(|(_, mark)| mark.clone()).collect();
    EffectsFigure {
        title: study_title(study).to_owned(),
        subtitle: format!(
            "{}; datagrams of {} over {}; means of all runs{suffix}",
            place(source),
            study.flow.datagram.0,
            study.line.rate.0
        ),
        rows: rows.collect(),
        columns: groups
            .iter()
            .flat_map(|group| columns.iter().map(move |column| (group, column)))
            .map(|(group, (factor, of))| (named(group, factor), marks(of)))
            .collect(),
    }
}

/// Lines of the figure: their names, and the conditions that they run through, as indices.
fn lines(cells: &Cells) -> Vec<(String, Vec<usize>)> {
    let mut lines: Vec<(String, Vec<usize>)> = Vec::new();
    for (index, condition) in cells.conditions.iter().enumerate() {
        if condition.hidden {
            continue;
        }
        let name = match &condition.drawn {
            Some(drawn) => &drawn.line,
            None => &condition.name,
        };
        match lines.iter_mut().find(|(known, _)| known == name) {
            Some((_, of)) => of.push(index),
            None => lines.push((name.clone(), vec![index])),
        }
    }
    lines
}

/// The columns that conditions name; one without a name if none does.
fn groups(cells: &Cells) -> Vec<Option<String>> {
    let mut groups: Vec<Option<String>> = Vec::new();
    for condition in cells.conditions.iter().filter(|c| !c.hidden) {
        if let Some(drawn) = &condition.drawn
            && !groups.iter().flatten().any(|known| *known == drawn.column)
        {
            groups.push(Some(drawn.column.clone()));
        }
    }
    match groups.is_empty() {
        true => vec![None],
        false => groups,
    }
}

/// The condition that a line has in a column; one that names no column is in all.
fn in_group(cells: &Cells, conditions: &[usize], group: Option<&str>) -> Option<usize> {
    let is_there = |index: &usize| match &cells.conditions[*index].drawn {
        Some(drawn) => Some(drawn.column.as_str()) == group,
        None => true,
    };
    conditions.iter().copied().find(is_there)
}

fn study_title(study: &Study) -> &'static str {
    let of = |case: Case| study.controller(case) != Controller::None;
    match study.cases().into_iter().any(of) {
        true => "What control of S, I and N does",
        false => "What S, I and N do",
    }
}

fn what(quantity: Quantity) -> &'static str {
    match quantity {
        Quantity::Mean => "mean delay",
        Quantity::P99 => "99th percentile of the delay",
        Quantity::Max => "longest delay",
        Quantity::Lost => "datagrams lost",
        Quantity::AggregatesLost => "aggregates lost",
        Quantity::Sent => "sent",
        Quantity::Packets => "packets at the receiving gateway",
        Quantity::Cpu => "CPU time of the receiving gateway",
        Quantity::Settled => "settled after",
    }
}

/// The figure's columns: combinations by index, and the labels below.
fn columns(cells: &Cells) -> Vec<(String, Vec<(usize, String)>)> {
    let mut columns: Vec<(String, Vec<(usize, String)>)> = Vec::new();
    for (index, combination) in cells.combinations.iter().enumerate() {
        for (factor, mark) in &combination.columns {
            let entry = (index, mark.clone());
            match columns.iter_mut().find(|(known, _)| known == factor) {
                Some((_, of)) => of.push(entry),
                None => columns.push((factor.clone(), vec![entry])),
            }
        }
    }
    columns
}

fn value(measured: &Measured, source: Source, case: Case, quantity: Quantity) -> Option<f64> {
    let runs = measured.runs.get(&(source, case))?;
    let values = runs
        .iter()
        .filter_map(|run| quantity.value(&run.outcome, 0.0, run.each_s));
    stats::mean(&values.collect::<Vec<_>>())
}
