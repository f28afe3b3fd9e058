//! Reports of studies: rows, files, notes. [`figures`] draws their figures.

mod figures;

use std::{collections::BTreeMap, fmt::Write as _};

use super::{Case, Datagram, Measured, Phase, Sample, Study, StudyOutcome, measure::StudyRun};
use crate::{
    evaluate::{Basis, TargetResult},
    manifest::{EmulatorsReport, RunsReport},
    record::EmulatorReport,
    row::{Row, Source, Verdict},
    stats,
};
pub(crate) use figures::drawings;

/// A reported quantity of a phase or of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quantity {
    /// Mean delay of the datagrams that arrived.
    Mean,
    P99,
    /// The longest of these delays.
    Max,
    /// Datagrams that never arrived.
    Lost,
    /// Aggregates of which no copy arrived, as reported by the peer.
    AggregatesLost,
    /// IP bytes sent, all packets.
    Sent,
    /// Packets per second at the receiving gateway.
    Packets,
    /// CPU time of the receiving gateway.
    Cpu,
    /// From the beginning of the phase to the last change of I or N.
    Settled,
}

impl Quantity {
    /// Quantities of each phase of a controller, and of all phases together except
    /// [`Settled`](Self::Settled).
    pub(super) const OF_PHASES: [Self; 6] = [
        Self::Mean,
        Self::P99,
        Self::Lost,
        Self::AggregatesLost,
        Self::Sent,
        Self::Settled,
    ];

    /// The quantities of each cell.
    pub(super) const OF_CELLS: [Self; 8] = [
        Self::Mean,
        Self::P99,
        Self::Max,
        Self::Lost,
        Self::AggregatesLost,
        Self::Sent,
        Self::Packets,
        Self::Cpu,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::P99 => "p99",
            Self::Max => "max",
            Self::Lost => "lost",
            Self::AggregatesLost => "aggregates lost",
            Self::Sent => "sent",
            Self::Packets => "packets",
            Self::Cpu => "cpu",
            Self::Settled => "settled",
        }
    }

    pub(super) const fn unit(self) -> &'static str {
        match self {
            Self::Mean | Self::P99 | Self::Max => "ms",
            Self::Lost | Self::AggregatesLost | Self::Cpu => "%",
            Self::Sent => "Mbit/s",
            Self::Packets => "1/s",
            Self::Settled => "s",
        }
    }

    /// Its value in a span of a run; `None` if there is none.
    pub(super) fn value(self, outcome: &StudyOutcome, from_s: f64, to_s: f64) -> Option<f64> {
        let datagrams = within(&outcome.datagrams, from_s, to_s);
        let samples = samples_within(&outcome.samples, from_s, to_s);
        let (first, last) = (samples.first()?, samples.last()?);
        let seconds = last.at_s - first.at_s;
        let arrived = || datagrams.iter().filter_map(|d| d.delay_ms);
        if seconds <= 0.0 {
            return None;
        }
        let share = |[sent, lost]: [u64; 2], [sent_before, lost_before]: [u64; 2]| {
            let sent = sent.saturating_sub(sent_before);
            (sent > 0).then(|| 100.0 * lost.saturating_sub(lost_before) as f64 / sent as f64)
        };
        match self {
            Self::Mean => stats::mean(&arrived().collect::<Vec<_>>()),
            Self::P99 => stats::percentile(&stats::sorted(arrived()), 0.99),
            Self::Max => arrived().reduce(f64::max),
            Self::Lost => {
                let made = datagrams.len();
                (made > 0).then(|| 100.0 * (made - arrived().count()) as f64 / made as f64)
            }
            Self::AggregatesLost => share(last.aggregates, first.aggregates),
            Self::Sent => {
                let bytes = last.bytes_sent.saturating_sub(first.bytes_sent);
                Some(bytes as f64 * 8e-6 / seconds)
            }
            Self::Packets => {
                let packets = last.packets_received.saturating_sub(first.packets_received);
                Some(packets as f64 / seconds)
            }
            Self::Cpu => Some(100.0 * (last.cpu_s? - first.cpu_s?) / seconds),
            Self::Settled => {
                let end = (last.interval_ms, last.copies);
                let unsettled = |s: &&Sample| (s.interval_ms, s.copies) != end;
                let last = samples.iter().rfind(unsettled);
                Some(last.map_or(0.0, |s| s.at_s - first.at_s))
            }
        }
    }
}

/// The datagrams sent in a span.
pub(super) fn within(datagrams: &[Datagram], from_s: f64, to_s: f64) -> &[Datagram] {
    let before = |at_s: f64| datagrams.partition_point(|d| d.made_s < at_s);
    &datagrams[before(from_s)..before(to_s).max(before(from_s))]
}

/// The samples of a span, including its ends.
pub(super) fn samples_within(samples: &[Sample], from_s: f64, to_s: f64) -> &[Sample] {
    let from = samples.partition_point(|s| s.at_s < from_s - CLOSE_S);
    let to = samples.partition_point(|s| s.at_s <= to_s + CLOSE_S);
    &samples[from..to.max(from)]
}

/// Tolerance for the rounding of instants.
const CLOSE_S: f64 = 1e-6;

/// Name of all phases together in rows.
const ALL: &str = "all";

fn row_name(study: &Study, case: Case, phase: &str, quantity: Quantity, source: Source) -> String {
    let mut name = study.name(case);
    if let Case::Controller(_) = case {
        let _ = write!(name, " {phase}");
    }
    let _ = write!(name, " {}", quantity.name());
    if source == Source::Sim {
        name.push_str(" sim");
    }
    name
}

/// The spans of a case: name, and indices of phases.
fn stretches(case: Case, phases: &[Phase]) -> Vec<(String, std::ops::Range<usize>)> {
    let each = phases.iter().enumerate();
    let mut stretches: Vec<_> = each
        .map(|(index, phase)| (phase.name.clone(), index..index + 1))
        .collect();
    if let Case::Controller(_) = case {
        stretches.push((ALL.to_owned(), 0..phases.len()));
    }
    stretches
}

fn quantities(case: Case, stretch: &str, source: Source) -> Vec<Quantity> {
    let all: &[Quantity] = match case {
        Case::Controller(_) => &Quantity::OF_PHASES,
        Case::Cell(..) => &Quantity::OF_CELLS,
    };
    let is_there = |quantity: &Quantity| match quantity {
        Quantity::Settled => stretch != ALL,
        Quantity::Cpu => source == Source::Lab,
        _ => true,
    };
    all.iter().copied().filter(is_there).collect()
}

/// Names and units of all possible rows.
pub(super) fn names(study: &Study) -> Vec<(String, &'static str)> {
    let mut names = Vec::new();
    for &source in &study.sources {
        for case in study.cases() {
            for (stretch, _) in stretches(case, &study.phases(case)) {
                for quantity in quantities(case, &stretch, source) {
                    let name = row_name(study, case, &stretch, quantity, source);
                    names.push((name, quantity.unit()));
                }
            }
        }
    }
    names
}

/// A row without its verdict.
struct PhaseResults {
    name: String,
    quantity: Quantity,
    /// Values of the single runs.
    by_run: Vec<f64>,
    samples: usize,
    is_void: bool,
}

/// All rows of the measurement, and their basis.
pub(crate) fn rows(study: &Study, measured: &Measured) -> (Vec<Row>, Vec<Basis>) {
    let mut reported = Vec::new();
    for (&(source, case), runs) in in_order(study, measured) {
        let Some(first) = runs.first() else { continue };
        for (stretch, phases) in stretches(case, &first.phases) {
            for quantity in quantities(case, &stretch, source) {
                let mut one = PhaseResults {
                    name: row_name(study, case, &stretch, quantity, source),
                    quantity,
                    by_run: Vec::new(),
                    samples: 0,
                    is_void: runs.iter().any(StudyRun::is_void),
                };
                for run in runs {
                    let from_s = phases.start as f64 * run.each_s;
                    let to_s = phases.end as f64 * run.each_s;
                    one.by_run
                        .extend(quantity.value(&run.outcome, from_s, to_s));
                    one.samples += within(&run.outcome.datagrams, from_s, to_s).len();
                }
                reported.push(one);
            }
        }
    }
    let values: BTreeMap<String, f64> = reported
        .iter()
        .filter(|one| !one.is_void)
        .filter_map(|one| Some((one.name.clone(), stats::mean(&one.by_run)?)))
        .collect();
    reported
        .iter()
        .map(|one| judged(study, one, &values))
        .unzip()
}

/// Cases in the plan's order, the laboratory's first.
fn in_order<'a>(
    study: &Study,
    measured: &'a Measured,
) -> Vec<(&'a (Source, Case), &'a Vec<StudyRun>)> {
    let cases = study.cases();
    let mut runs: Vec<_> = measured.runs.iter().collect();
    runs.sort_by_key(|((source, case), _)| (*source, cases.iter().position(|known| known == case)));
    runs
}

fn judged(study: &Study, one: &PhaseResults, values: &BTreeMap<String, f64>) -> (Row, Basis) {
    let targets: Vec<TargetResult> = study
        .targets
        .iter()
        .filter(|target| target.row == one.name)
        .filter(|target| target.other().is_none_or(|row| values.contains_key(row)))
        .map(|target| TargetResult {
            target: target.text.clone(),
            holds: target.holds(values),
        })
        .collect();
    let verdict = Verdict::of(one.is_void, &targets);
    let mean = stats::mean(&one.by_run);
    let interval = mean.and_then(|mean| stats::sections(mean, &one.by_run));
    let row = Row {
        name: one.name.clone(),
        unit: one.quantity.unit(),
        paper: None,
        measured: mean,
        low: interval.map(|i| i.low),
        high: interval.map(|i| i.high),
        floor: None,
        verdict,
    };
    let basis = Basis {
        name: one.name.clone(),
        samples: Some(one.samples),
        batches: Some(one.by_run.len()),
        floor_with_headers: None,
        targets,
    };
    (row, basis)
}

/// S, I, N and the counters of every run over time.
pub(crate) fn trace_csv(study: &Study, measured: &Measured) -> String {
    let mut csv = "source,case,round,at_s,size_bytes,interval_ms,copies,bytes_sent,\
                   packets_received,cpu_s,reported_aggregates,aggregates_lost,reported_copies,\
                   copies_lost,overflows\n"
        .to_owned();
    for ((source, case), runs) in in_order(study, measured) {
        for run in runs {
            for s in &run.outcome.samples {
                let cpu = s.cpu_s.map(|cpu| format!("{cpu:.2}")).unwrap_or_default();
                let _ = writeln!(
                    csv,
                    "{},{},{},{:.3},{},{},{},{},{},{cpu},{},{},{},{},{}",
                    source_name(*source),
                    study.name(*case),
                    run.round,
                    s.at_s,
                    s.size_bytes,
                    s.interval_ms,
                    s.copies,
                    s.bytes_sent,
                    s.packets_received,
                    s.aggregates[0],
                    s.aggregates[1],
                    s.copies_reported[0],
                    s.copies_reported[1],
                    s.overflows
                );
            }
        }
    }
    csv
}

/// The kernel's counters at the receiving gateway in every run, before and after.
pub(crate) fn counters_csv(study: &Study, measured: &Measured) -> String {
    let mut csv = "case,round,host,counter,before,after\n".to_owned();
    for ((_, case), runs) in in_order(study, measured) {
        for run in runs {
            for counter in &run.outcome.counters {
                let _ = writeln!(
                    csv,
                    "{},{},{},{},{},{}",
                    study.name(*case),
                    run.round,
                    counter.host,
                    counter.name,
                    counter.before,
                    counter.after
                );
            }
        }
    }
    csv
}

pub(super) const fn source_name(source: Source) -> &'static str {
    match source {
        Source::Lab => "lab",
        Source::Sim => "sim",
    }
}

/// Every case's runs, for the manifest.
pub(crate) fn runs_reports(study: &Study, measured: &Measured) -> Vec<RunsReport> {
    let report = |(&(source, case), runs): (&(Source, Case), &Vec<StudyRun>)| {
        let emulators: Vec<EmulatorReport> =
            runs.iter().filter_map(|r| r.outcome.emulator).collect();
        RunsReport {
            variant: study.name(case),
            source,
            runs: runs.len(),
            messages: runs.iter().map(|r| r.outcome.datagrams.len()).sum(),
            void_repeats: runs.iter().map(|r| r.repeats).sum(),
            void_runs: runs.iter().filter(|run| run.is_void()).count(),
            emulator: EmulatorsReport::of(&emulators),
        }
    };
    in_order(study, measured).into_iter().map(report).collect()
}

/// Remarks for the reader; missing measurements come first.
pub(crate) fn notes(study: &Study, measured: &Measured) -> Vec<String> {
    let mut notes = Vec::new();
    for source in &study.sources {
        if !measured.runs.keys().any(|(of, _)| of == source) {
            let name = source_name(*source);
            notes.push(format!("NOT MEASURED: nothing of source {name} was there."));
        }
    }
    notes.push(
        "Delays run from when a datagram should have been made until it came out of the receiving \
         gateway, of those that did; `lost` are those that did not."
            .to_owned(),
    );
    notes.push(
        "A value is the mean of the runs' own values; intervals are 95 % intervals by Student's t \
         over the runs."
            .to_owned(),
    );
    let in_lab = measured
        .runs
        .keys()
        .any(|(source, _)| *source == Source::Lab);
    if let Some(lab) = study.lab.as_ref().filter(|_| in_lab) {
        notes.push(format!(
            "In the laboratory a full run has {} rounds of {}.",
            lab.rounds, lab.duration
        ));
    }
    for (&(_, case), runs) in in_order(study, measured) {
        for run in runs {
            if let Some(why) = run.lacked() {
                let name = study.name(case);
                notes.push(format!("VOID: {name}, run {}: {why}", run.round + 1));
            }
        }
    }
    notes
}
