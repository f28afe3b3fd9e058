//! Report of recorded links: rows, files, remarks.

use std::{collections::BTreeMap, fmt::Write as _};

use keiro_lab::emulator::QUEUEING_BIN;

use super::{Carried, Measured, Recorded, Transport, measure::RecordedRun};
use crate::{
    evaluate::{Basis, TargetResult},
    figure::csv_text,
    manifest::{EmulatorsReport, RunsReport},
    record::EmulatorReport,
    row::{Row, Source, Verdict},
    setup::SIMULATED_SUFFIX,
    stats,
};

/// The last part of the names of rows over all links.
pub(super) const ALL: &str = "all";

/// Of one transport over one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quantity {
    /// Payload of the bulk data.
    Throughput,
    /// IP packets that left the link, of what the recording could have carried.
    Share,
    QueueMedian,
    QueueP95,
    ThinP99,
    /// Datagrams of the thin application that never arrived.
    ThinLost,
}

/// Over all links that every transport of a source was measured on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Overall {
    /// Geometric mean of a quantity.
    Mean(Quantity),
    /// The greatest difference of the thin application's 99th percentile to that without bulk data.
    ThinExcess,
    /// Links on which less is carried than by BBR, with more queueing.
    Worse,
}

const OF_BULK: [Quantity; 6] = [
    Quantity::Throughput,
    Quantity::Share,
    Quantity::QueueMedian,
    Quantity::QueueP95,
    Quantity::ThinP99,
    Quantity::ThinLost,
];
const OF_ALONE: [Quantity; 2] = [Quantity::ThinP99, Quantity::ThinLost];
const OVERALL: [Overall; 5] = [
    Overall::Mean(Quantity::Throughput),
    Overall::Mean(Quantity::Share),
    Overall::Mean(Quantity::QueueMedian),
    Overall::Mean(Quantity::QueueP95),
    Overall::ThinExcess,
];

/// Less counts as this in geometric means. Ours: half of a packet's time at 60 Mbit/s.
const QUEUE_MIN_MS: f64 = 0.1;

impl Quantity {
    const fn of(transport: Transport) -> &'static [Self] {
        match transport {
            Transport::Alone => &OF_ALONE,
            _ => &OF_BULK,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Throughput => "throughput",
            Self::Share => "share",
            Self::QueueMedian => "queue-p50",
            Self::QueueP95 => "queue-p95",
            Self::ThinP99 => "thin-p99",
            Self::ThinLost => "thin-lost",
        }
    }

    const fn unit(self) -> &'static str {
        match self {
            Self::Throughput => "Mbit/s",
            Self::Share | Self::ThinLost => "%",
            Self::QueueMedian | Self::QueueP95 | Self::ThinP99 => "ms",
        }
    }

    fn value(self, run: &RecordedRun, carried: &Carried) -> Option<f64> {
        match self {
            Self::Throughput => Some(carried.received_bytes as f64 * 8e-6 / run.seconds),
            Self::Share => {
                let in_time = carried.bins.iter().take(run.capacity.len());
                let bytes: u64 = in_time.map(|bin| bin.bytes).sum();
                (run.capacity_bytes > 0).then(|| bytes as f64 / run.capacity_bytes as f64 * 100.0)
            }
            Self::QueueMedian => carried.queue_p50_ms,
            Self::QueueP95 => carried.queue_p95_ms,
            Self::ThinP99 => {
                let arrived = carried.thin_ms.iter().filter_map(|ms| *ms);
                stats::percentile(&stats::sorted(arrived), 0.99)
            }
            Self::ThinLost => {
                let lost = carried.thin_ms.iter().filter(|ms| ms.is_none()).count();
                let all = carried.thin_ms.len();
                (all > 0).then(|| lost as f64 / all as f64 * 100.0)
            }
        }
    }
}

impl Overall {
    fn row(self, transport: Transport) -> String {
        let transport = transport.name();
        match self {
            Self::Mean(of) => format!("{} {transport} {ALL}", of.name()),
            Self::ThinExcess => format!("thin-excess {transport} {ALL}"),
            Self::Worse => format!("worse-than-bbr {transport} {ALL}"),
        }
    }

    const fn unit(self) -> &'static str {
        match self {
            Self::Mean(of) => of.unit(),
            Self::ThinExcess => "ms",
            Self::Worse => "links",
        }
    }

    fn all(transport: Transport) -> Vec<Self> {
        match transport {
            Transport::Alone => Vec::new(),
            Transport::Keiro => OVERALL.into_iter().chain([Self::Worse]).collect(),
            _ => OVERALL.to_vec(),
        }
    }
}

fn row(quantity: Quantity, transport: Transport, link: &str) -> String {
    format!("{} {} {link}", quantity.name(), transport.name())
}

fn of_source(name: String, source: Source) -> String {
    match source {
        Source::Lab => name,
        Source::Sim => format!("{name} {SIMULATED_SUFFIX}"),
    }
}

/// All possible rows, with their units.
pub(super) fn names(recorded: &Recorded) -> Vec<(String, &'static str)> {
    let mut names = Vec::new();
    for source in [Source::Lab, Source::Sim] {
        for transport in Transport::ALL {
            for link in &recorded.links {
                for &quantity in Quantity::of(transport) {
                    let name = row(quantity, transport, &link.name);
                    names.push((of_source(name, source), quantity.unit()));
                }
            }
            for overall in Overall::all(transport) {
                names.push((of_source(overall.row(transport), source), overall.unit()));
            }
        }
    }
    names
}

/// What was measured in one source.
struct Values<'a> {
    recorded: &'a Recorded,
    measured: &'a Measured,
    source: Source,
}

/// A row without its verdict.
struct Found {
    name: String,
    unit: &'static str,
    value: Option<f64>,
    samples: usize,
}

impl Values<'_> {
    fn runs(&self, link: usize) -> impl Iterator<Item = &RecordedRun> {
        let runs = self.measured.runs.iter();
        runs.filter(move |run| run.source == self.source && run.link == link)
    }

    /// The median of all rounds; `None` if it was not measured, or if a run is void.
    fn value(&self, quantity: Quantity, transport: Transport, link: usize) -> Option<f64> {
        let of_run = |run: &RecordedRun| {
            let carried = run.outcome.carried.get(&transport)?;
            quantity.value(run, carried).filter(|_| !run.is_void())
        };
        let values: Option<Vec<f64>> = self.runs(link).map(of_run).collect();
        stats::median(&values?)
    }

    fn overall(&self, overall: Overall, transport: Transport) -> Option<f64> {
        let links: Vec<usize> = self
            .measured
            .selected
            .iter()
            .copied()
            .filter(|&link| self.runs(link).next().is_some())
            .collect();
        if links.is_empty() {
            return None;
        }
        let of = |quantity, transport, link: &usize| self.value(quantity, transport, *link);
        match overall {
            Overall::Mean(quantity) => {
                let is_queue = matches!(quantity, Quantity::QueueMedian | Quantity::QueueP95);
                let least = if is_queue {
                    QUEUE_MIN_MS
                } else {
                    f64::MIN_POSITIVE
                };
                let logs = links
                    .iter()
                    .map(|link| Some(of(quantity, transport, link)?.max(least).ln()));
                let logs: Option<Vec<f64>> = logs.collect();
                stats::mean(&logs?).map(f64::exp)
            }
            Overall::ThinExcess => {
                let excess = links.iter().map(|link| {
                    let beside = of(Quantity::ThinP99, transport, link)?;
                    Some(beside - of(Quantity::ThinP99, Transport::Alone, link)?)
                });
                let excess: Option<Vec<f64>> = excess.collect();
                excess?.into_iter().reduce(f64::max)
            }
            Overall::Worse => {
                let is_worse = links.iter().map(|link| {
                    let [less, more] = [Quantity::Throughput, Quantity::QueueP95]
                        .map(|quantity| [transport, Transport::Bbr].map(|t| of(quantity, t, link)));
                    Some(less[0]? < less[1]? && more[0]? > more[1]?)
                });
                let is_worse: Option<Vec<bool>> = is_worse.collect();
                Some(is_worse?.into_iter().filter(|worse| *worse).count() as f64)
            }
        }
    }

    fn rows(&self) -> Vec<Found> {
        let mut found = Vec::new();
        let mut add = |name: String, unit, value, samples| {
            found.push(Found {
                name: of_source(name, self.source),
                unit,
                value,
                samples,
            });
        };
        for &link in &self.measured.selected {
            for transport in Transport::ALL {
                for &quantity in Quantity::of(transport) {
                    let name = row(quantity, transport, &self.recorded.links[link].name);
                    let value = self.value(quantity, transport, link);
                    add(name, quantity.unit(), value, self.runs(link).count());
                }
            }
        }
        let runs = self.measured.runs.iter();
        let samples = runs.filter(|run| run.source == self.source).count();
        for transport in Transport::ALL {
            for overall in Overall::all(transport) {
                let value = self.overall(overall, transport);
                add(overall.row(transport), overall.unit(), value, samples);
            }
        }
        found
    }
}

/// All rows of the selected links, and their basis. A row without a value is void.
pub(crate) fn rows(recorded: &Recorded, measured: &Measured) -> (Vec<Row>, Vec<Basis>) {
    let of_source = |&source: &Source| {
        let values = Values {
            recorded,
            measured,
            source,
        };
        values.rows()
    };
    let found: Vec<Found> = measured.sources.iter().flat_map(of_source).collect();
    let values: BTreeMap<String, f64> = found
        .iter()
        .filter_map(|one| Some((one.name.clone(), one.value?)))
        .collect();
    let is_reported = |row: &str| found.iter().any(|one| one.name == row);
    let judged = |one: &Found| {
        let of_row = recorded
            .targets
            .iter()
            .filter(|target| target.row == one.name && target.other().is_none_or(is_reported));
        let targets: Vec<TargetResult> = of_row
            .map(|target| TargetResult {
                target: target.text.clone(),
                holds: target.holds(&values),
            })
            .collect();
        let row = Row {
            name: one.name.clone(),
            unit: one.unit,
            paper: None,
            measured: one.value,
            low: None,
            high: None,
            floor: None,
            verdict: Verdict::of(one.value.is_none(), &targets),
        };
        let basis = Basis {
            name: one.name.clone(),
            samples: Some(one.samples),
            batches: Some(one.samples),
            floor_with_headers: None,
            targets,
        };
        (row, basis)
    };
    found.iter().map(judged).unzip()
}

/// Throughput and queueing by time, in steps of [`QUEUEING_BIN`].
pub(crate) fn seconds_csv(recorded: &Recorded, measured: &Measured) -> String {
    let mut csv =
        "source,link,round,transport,at_s,capacity_mbit,carried_mbit,wait_mean_ms,wait_max_ms\n"
            .to_owned();
    for run in &measured.runs {
        let link = csv_text(&recorded.links[run.link].name);
        let mbit = |bytes: u64| bytes as f64 * 8e-6 / QUEUEING_BIN.as_secs_f64();
        for (transport, carried) in &run.outcome.carried {
            for (place, capacity) in run.capacity.iter().enumerate() {
                let bin = carried.bins.get(place).copied().unwrap_or_default();
                let at_s = place as f64 * QUEUEING_BIN.as_secs_f64();
                let mean = bin.wait_us as f64 / 1e3 / bin.packets.max(1) as f64;
                let _ = writeln!(
                    csv,
                    "{},{link},{},{},{at_s:.1},{:.3},{:.3},{mean:.3},{:.3}",
                    source_name(run.source),
                    run.round,
                    transport.name(),
                    mbit(*capacity),
                    mbit(bin.bytes),
                    bin.wait_max_us as f64 / 1e3
                );
            }
        }
    }
    csv
}

/// Every datagram of the thin application.
pub(crate) fn thin_csv(recorded: &Recorded, measured: &Measured) -> String {
    let mut csv = "source,link,round,transport,sequence,delay_ms\n".to_owned();
    for run in &measured.runs {
        let link = csv_text(&recorded.links[run.link].name);
        for (transport, carried) in &run.outcome.carried {
            for (sequence, ms) in carried.thin_ms.iter().enumerate() {
                let ms = ms.map(|ms| format!("{ms:.3}")).unwrap_or_default();
                let _ = writeln!(
                    csv,
                    "{},{link},{},{},{sequence},{ms}",
                    source_name(run.source),
                    run.round,
                    transport.name()
                );
            }
        }
    }
    csv
}

const fn source_name(source: Source) -> &'static str {
    match source {
        Source::Lab => "lab",
        Source::Sim => "sim",
    }
}

/// Every link's runs, for the manifest.
pub(crate) fn runs_reports(recorded: &Recorded, measured: &Measured) -> Vec<RunsReport> {
    let mut reports = Vec::new();
    for &source in &measured.sources {
        for &link in &measured.selected {
            let runs: Vec<&RecordedRun> = measured
                .runs
                .iter()
                .filter(|run| run.source == source && run.link == link)
                .collect();
            if runs.is_empty() {
                continue;
            }
            let emulators: Vec<EmulatorReport> =
                runs.iter().filter_map(|run| run.outcome.emulator).collect();
            let datagrams = |run: &&RecordedRun| {
                let carried = run.outcome.carried.values();
                carried.map(|carried| carried.thin_ms.len()).sum::<usize>()
            };
            reports.push(RunsReport {
                variant: recorded.links[link].name.clone(),
                source,
                runs: runs.len(),
                messages: runs.iter().map(datagrams).sum(),
                void_repeats: runs.iter().map(|run| run.repeats).sum(),
                void_runs: runs.iter().filter(|run| run.is_void()).count(),
                emulator: EmulatorsReport::of(&emulators),
            });
        }
    }
    reports
}

/// Remarks for the reader; missing measurements come first.
pub(crate) fn notes(recorded: &Recorded, measured: &Measured) -> Vec<String> {
    let mut notes = Vec::new();
    for (&link, why) in &measured.missing_links {
        let name = &recorded.links[link].name;
        notes.push(format!("NOT MEASURED: all rows of {name}: {why}"));
    }
    for ((source, transport), why) in &measured.missing_transports {
        let (place, name) = (source_name(*source), transport.name());
        notes.push(format!("NOT MEASURED: all rows of {name} ({place}): {why}"));
    }
    if measured.sources.is_empty() {
        notes.push("NOT MEASURED: only the laboratory, which needs root, has it.".to_owned());
    }
    notes.push(format!(
        "A packet's queueing is the time by which it left the link later than it would have left the same \
         recording if nothing else had been there; rows of `{ALL}` are geometric means over the links, with at \
         least {QUEUE_MIN_MS} ms of queueing, and thin-excess is the greatest of all links."
    ));
    for run in &measured.runs {
        let name = &recorded.links[run.link].name;
        if run.is_void() {
            notes.push(format!(
                "VOID: {name}, round {}: the emulator was late",
                run.round + 1
            ));
        }
        for (transport, carried) in &run.outcome.carried {
            for remark in &carried.remarks {
                let round = run.round + 1;
                notes.push(format!(
                    "{name}, round {round}, {}: {remark}",
                    transport.name()
                ));
            }
        }
    }
    notes
}
