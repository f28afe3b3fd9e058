//! Report of a measurement of transactions: rows, figures, files, notes.

use std::{collections::BTreeMap, fmt::Write as _};

use super::{Case, Measured, Statistic, Target, Transactions, measure::TransactionRun, target};
use crate::{
    evaluate::{Basis, NamedDrawing, TargetResult},
    figure::{self, Curve, DrawError, EcdfFigure, Mark},
    manifest::{EmulatorsReport, RunsReport},
    record::EmulatorReport,
    row::{Row, Source, Verdict},
    stats::{self, Estimate},
};

/// Round trip of the line between the sites in ms, the minimum of each round trip of a transaction
/// [aggregation §4].
const ROUND_TRIP_MS: f64 = 1.0;

/// Steps of a curve in a figure. Ours: as many as are visible.
const STEPS_MAX: usize = 2000;

/// Unit of transactions without an end.
pub(super) const UNENDED_UNIT: &str = "transactions";

/// The row that counts a case's transactions without an end.
pub(super) fn unended_row(case: &Case) -> String {
    case.row("unended")
}

/// All rows of `cases`, and their basis.
pub(crate) fn rows(
    transactions: &Transactions,
    cases: &[Case],
    measured: &Measured,
) -> (Vec<Row>, Vec<Basis>) {
    let mut values = BTreeMap::new();
    for &case in cases.iter().filter(|case| !measured.is_void(**case)) {
        for statistic in Statistic::ALL {
            let reported = estimate(measured, case, statistic);
            if let Some(reported) = reported.filter(|reported| reported.value.is_finite()) {
                let row = case.row(statistic.name());
                let interval = reported.interval;
                values.extend(interval.map(|interval| (target::high_of(&row), interval.high)));
                values.insert(row, reported.value);
            }
        }
    }
    for case in cases.iter().filter(|case| !measured.is_void(**case)) {
        if let Some((count, _)) = unended(measured, case) {
            values.insert(unended_row(case), count as f64);
        }
    }
    let refers_to_known_rows = |target: &&Target| {
        let is_notified = |row: &str| {
            let of_case = |case: &Case| Statistic::ALL.iter().any(|s| case.row(s.name()) == row);
            cases.iter().any(of_case)
        };
        target.other().is_none_or(is_notified)
    };
    let asked_of = |name: &str| -> Vec<TargetResult> {
        let targets = transactions.targets.iter().filter(refers_to_known_rows);
        targets
            .filter(|target| target.row == name && !target.lacks_interval(&values))
            .map(|target| TargetResult {
                target: target.text.clone(),
                holds: target.holds(&values),
            })
            .collect()
    };
    let mut reported = Vec::new();
    for &case in cases {
        for statistic in Statistic::ALL {
            let name = case.row(statistic.name());
            let targets = asked_of(&name);
            let estimate = estimate(measured, case, statistic);
            let interval = estimate.and_then(|e| e.interval);
            reported.push((
                Row {
                    unit: "ms",
                    paper: transactions.paper.get(&name).copied(),
                    measured: estimate.map(|e| e.value).filter(|v| v.is_finite()),
                    low: interval.map(|i| i.low),
                    high: interval.map(|i| i.high),
                    floor: Some(f64::from(case.round_trips) * ROUND_TRIP_MS),
                    verdict: Verdict::of(measured.is_void(case), &targets),
                    name: name.clone(),
                },
                basis(name, estimate, targets),
            ));
        }
        let targets = asked_of(&unended_row(&case));
        reported.push(unended_result(measured, &case, targets));
    }
    reported.into_iter().unzip()
}

/// The median of the runs' own values, with an interval by Student's t over the runs; `None` without runs.
fn estimate(measured: &Measured, case: Case, statistic: Statistic) -> Option<Estimate> {
    let runs = measured.runs.get(&case)?;
    let by_run: Vec<f64> = runs
        .iter()
        .filter_map(|run| value(&run.outcome.durations_ms, statistic))
        .collect();
    let median = stats::median(&by_run)?;
    let is_finite = by_run.iter().all(|value| value.is_finite());
    Some(Estimate {
        value: median,
        interval: stats::sections(median, &by_run).filter(|_| is_finite),
        samples: runs.iter().map(|run| run.outcome.durations_ms.len()).sum(),
        batches: by_run.len(),
    })
}

fn value(durations_ms: &[f64], statistic: Statistic) -> Option<f64> {
    let sorted = || stats::sorted(durations_ms.iter().copied());
    match statistic {
        Statistic::Min => durations_ms.iter().copied().reduce(f64::min),
        Statistic::Mean => stats::mean(durations_ms),
        Statistic::P99 => stats::percentile(&sorted(), 0.99),
        Statistic::P999 => stats::percentile(&sorted(), 0.999),
        Statistic::Max => durations_ms.iter().copied().reduce(f64::max),
    }
}

fn basis(name: String, estimate: Option<Estimate>, targets: Vec<TargetResult>) -> Basis {
    Basis {
        name,
        samples: Some(estimate.map_or(0, |e| e.samples)),
        batches: Some(estimate.map_or(0, |e| e.batches)),
        floor_with_headers: None,
        targets,
    }
}

/// Transactions that never ended, and all transactions, over all runs; `None` without runs.
fn unended(measured: &Measured, case: &Case) -> Option<(usize, usize)> {
    let runs = measured.runs.get(case)?;
    let durations = || runs.iter().flat_map(|run| &run.outcome.durations_ms);
    let count = durations().filter(|ms| ms.is_infinite()).count();
    Some((count, durations().count()))
}

fn unended_result(measured: &Measured, case: &Case, targets: Vec<TargetResult>) -> (Row, Basis) {
    let counted = unended(measured, case);
    let row = Row {
        name: unended_row(case),
        unit: UNENDED_UNIT,
        paper: None,
        measured: counted.map(|(count, _)| count as f64),
        low: None,
        high: None,
        floor: None,
        verdict: Verdict::of(measured.is_void(*case), &targets),
    };
    let basis = Basis {
        name: unended_row(case),
        samples: Some(counted.map_or(0, |(_, all)| all)),
        batches: None,
        floor_with_headers: None,
        targets,
    };
    (row, basis)
}

/// Distribution of durations: one figure for each number of round trips, with and without load.
///
/// # Errors
/// See [`DrawError`].
pub(crate) fn drawings(
    transactions: &Transactions,
    measured: &Measured,
    quick: bool,
) -> Result<Vec<NamedDrawing>, DrawError> {
    let mut drawings: Vec<NamedDrawing> = Vec::new();
    let mut groups: Vec<(u32, bool)> = measured
        .runs
        .keys()
        .map(|case| (case.round_trips, case.load))
        .collect();
    groups.sort_unstable();
    groups.dedup();
    for (round_trips, load) in groups {
        let of_group = transactions
            .cases
            .iter()
            .filter(|case| case.round_trips == round_trips && case.load == load);
        let curves = of_group.enumerate().filter_map(|(index, case)| {
            let runs = measured.runs.get(case)?;
            let all = runs.iter().flat_map(|run| &run.outcome.durations_ms);
            let sorted = stats::sorted(all.copied());
            let ended = sorted.iter().filter(|ms| ms.is_finite()).count();
            let share = ended as f64 / sorted.len().max(1) as f64;
            let steps = stats::ecdf(&sorted[..ended], STEPS_MAX);
            Some(Curve {
                name: case.transport.to_string(),
                colour: figure::colour(index),
                dashed: Curve::is_dashed(index),
                steps: steps
                    .into_iter()
                    .map(|(ms, part)| (ms, part * share))
                    .collect(),
            })
        });
        let (with, file) = match load {
            true => ("with load on the server's gateway", "load"),
            false => ("without load", "no-load"),
        };
        let quick = match quick {
            true => "; a quick run, not for publication",
            false => "",
        };
        let figure = EcdfFigure {
            title: format!("Transactions of {round_trips} round trips, {with}"),
            subtitle: format!(
                "laboratory; {} transactions a second of all clients, all runs{quick}",
                transactions.traffic.per_second
            ),
            curves: curves.collect(),
            share: "share of transactions that take no longer".to_owned(),
            mark: Mark {
                name: "floor".to_owned(),
                ms: f64::from(round_trips) * ROUND_TRIP_MS,
            },
        };
        drawings.push((format!("ecdf-{round_trips}rt-{file}"), figure.draw()?));
    }
    Ok(drawings)
}

/// One line per run: its result, and the lateness of its instruments.
pub(crate) fn runs_csv(measured: &Measured) -> String {
    let mut csv = "way,load,round_trips,round,seed,transactions,unended,waited,min_ms,mean_ms,\
                   p99_ms,p99.9_ms,max_ms,begun_late_p99_us,begun_late_max_us,\
                   emulator_late_p99_us,stood_still_ms,overflows,repeats,void\n"
        .to_owned();
    for (case, run) in all_runs(measured) {
        let outcome = &run.outcome;
        let durations = &outcome.durations_ms;
        let unended = durations.iter().filter(|ms| ms.is_infinite()).count();
        let _ = write!(
            csv,
            "{},{},{},{},{},{},{unended},{}",
            case.transport,
            case.load,
            case.round_trips,
            run.round,
            run.seed,
            durations.len(),
            outcome.waited
        );
        for statistic in Statistic::ALL {
            let value = value(durations, statistic).filter(|value| value.is_finite());
            let _ = match value {
                Some(value) => write!(csv, ",{value:.4}"),
                None => write!(csv, ","),
            };
        }
        let _ = writeln!(
            csv,
            ",{:.1},{:.1},{:.1},{:.1},{},{},{}",
            outcome.late_p99_us,
            outcome.late_max_us,
            outcome.emulator.lateness_p99_us,
            outcome.pause_ms,
            outcome.overflows,
            run.repeats,
            outcome.void(case.load).unwrap_or_default()
        );
    }
    csv
}

/// The slowest transactions of every run, with their times.
pub(crate) fn slowest_csv(measured: &Measured) -> String {
    let mut csv = "way,load,round_trips,round,at_s,took_ms\n".to_owned();
    for (case, run) in all_runs(measured) {
        for slow in &run.outcome.slowest {
            let _ = writeln!(
                csv,
                "{},{},{},{},{:.6},{:.4}",
                case.transport, case.load, case.round_trips, run.round, slow.at_s, slow.took_ms
            );
        }
    }
    csv
}

/// The kernel's counters of every run, before and after.
pub(crate) fn counters_csv(measured: &Measured) -> String {
    let mut csv = "way,load,round_trips,round,host,counter,before,after\n".to_owned();
    for (case, run) in all_runs(measured) {
        for counter in &run.outcome.counters {
            let _ = writeln!(
                csv,
                "{},{},{},{},{},{},{},{}",
                case.transport,
                case.load,
                case.round_trips,
                run.round,
                counter.host,
                counter.name,
                counter.before,
                counter.after
            );
        }
    }
    csv
}

fn all_runs(measured: &Measured) -> impl Iterator<Item = (&Case, &TransactionRun)> {
    let runs = measured.runs.iter();
    runs.flat_map(|(case, runs)| runs.iter().map(move |run| (case, run)))
}

/// Every case's runs, for the manifest.
pub(crate) fn runs_reports(measured: &Measured) -> Vec<RunsReport> {
    let report = |(case, runs): (&Case, &Vec<TransactionRun>)| {
        let emulators: Vec<EmulatorReport> = runs.iter().map(|r| r.outcome.emulator).collect();
        let is_void = |run: &&TransactionRun| run.outcome.void(case.load).is_some();
        RunsReport {
            variant: case.to_string(),
            source: Source::Lab,
            runs: runs.len(),
            messages: runs.iter().map(|r| r.outcome.durations_ms.len()).sum(),
            void_repeats: runs.iter().map(|r| r.repeats).sum(),
            void_runs: runs.iter().filter(is_void).count(),
            emulator: EmulatorsReport::of(&emulators),
        }
    };
    measured.runs.iter().map(report).collect()
}

/// Remarks for the reader; missing measurements come first.
pub(crate) fn notes(transactions: &Transactions, measured: &Measured) -> Vec<String> {
    let mut notes: Vec<String> = measured
        .missing
        .iter()
        .map(|(transport, why)| format!("NOT MEASURED: all rows of {transport}: {why}"))
        .collect();
    if measured.rounds_left > 0 {
        notes.insert(
            0,
            format!(
                "INCOMPLETE: {} rounds were not measured",
                measured.rounds_left
            ),
        );
    }
    notes.push(
        "Times run from when a transaction should have begun until its last response is there; \
         every transaction that should have begun after the warm-up counts."
            .to_owned(),
    );
    notes.push(
        "A value is the median of the runs' own values; intervals are 95 % intervals by Student's \
         t over the runs."
            .to_owned(),
    );
    let load = &transactions.load;
    notes.push(format!(
        "Load is a burst of {} datagrams of {} every {} on average; a run with load counts if the receive \
         ring of the server's gateway overflowed, see counters.csv.",
        load.burst, load.datagram, load.every
    ));
    let late = all_runs(measured).map(|(_, run)| run.outcome.late_p99_us);
    let worst = late.fold(0.0, f64::max);
    if !measured.runs.is_empty() {
        notes.push(format!(
            "Transactions began at most {worst:.0} µs late at the 99th percentile of a run, \
             clients being free."
        ));
    }
    for (case, runs) in &measured.runs {
        let void = runs.iter().find_map(|run| run.outcome.void(case.load));
        if let Some(why) = void {
            notes.push(format!("VOID: {case}: {why}, in every repeat of a run."));
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::{
        super::{SlowTransaction, TransactionOutcome},
        *,
    };
    use crate::{plan::Plan, record::EmulatorReport, transactions::TransactionTransport};

    const CASE: Case = Case {
        transport: TransactionTransport::TcpCubic,
        load: false,
        round_trips: 6,
    };

    fn outcome(durations_ms: Vec<f64>) -> TransactionOutcome {
        TransactionOutcome {
            slowest: vec![SlowTransaction {
                at_s: 1.25,
                took_ms: durations_ms.iter().copied().fold(0.0, f64::max),
            }],
            durations_ms,
            waited: 0,
            late_p99_us: 20.0,
            late_max_us: 90.0,
            overflows: 0,
            counters: Vec::new(),
            emulator: EmulatorReport {
                cpus_awake: true,
                packets: 1,
                lateness_p50_us: 10.0,
                lateness_p99_us: 20.0,
                lateness_max_us: 30.0,
            },
            pause_ms: 0.1,
        }
    }

    fn measured(case: Case, runs: Vec<TransactionOutcome>) -> Measured {
        let run = |(round, outcome)| TransactionRun {
            round,
            seed: 1,
            repeats: 0,
            outcome,
        };
        Measured {
            runs: BTreeMap::from([(case, (0..).zip(runs).map(run).collect())]),
            missing: Vec::new(),
            rounds_left: 0,
        }
    }

    fn transactions() -> Transactions {
        let plan = Plan::find("aggregation/table5").unwrap();
        plan.transactions().unwrap().clone()
    }

    fn row(measured: &Measured, case: Case, statistic: &str) -> Row {
        let (rows, basis) = rows(&transactions(), &[case], measured);
        assert_eq!(rows.len(), basis.len());
        let name = case.row(statistic);
        rows.into_iter().find(|row| row.name == name).unwrap()
    }

    #[test]
    fn a_value_is_the_median_of_the_runs() {
        let runs = [7.0, 9.0, 8.0].map(|ms| outcome(vec![6.5, ms, ms]));
        let measured = measured(CASE, runs.to_vec());
        let max = row(&measured, CASE, "max");
        assert_eq!(max.measured, Some(8.0));
        assert!(max.low.unwrap() < 7.0 && max.high.unwrap() > 9.0);
        assert_eq!((max.verdict, max.floor), (Verdict::Reported, Some(6.0)));
        assert_eq!(row(&measured, CASE, "min").paper, Some(7.37));
        assert_eq!(row(&measured, CASE, "unended").measured, Some(0.0));
    }

    #[test]
    fn a_transaction_that_never_ended_takes_mean_and_maximum() {
        let mut durations = vec![7.0; 999];
        durations.push(f64::INFINITY);
        let measured = measured(CASE, vec![outcome(durations)]);
        assert_eq!(row(&measured, CASE, "mean").measured, None);
        assert_eq!(row(&measured, CASE, "max").measured, None);
        assert_eq!(row(&measured, CASE, "p99.9").measured, Some(7.0));
        assert_eq!(row(&measured, CASE, "unended").measured, Some(1.0));
        assert!(runs_csv(&measured).contains(",1,0,7.0000,,7.0000,7.0000,,20.0"));
        assert!(slowest_csv(&measured).contains("tcp-cubic,false,6,0,1.250000,inf\n"));
    }

    #[test]
    fn one_transaction_without_an_end_is_no_good_in_any_run() {
        let keiro = Case {
            transport: TransactionTransport::Keiro,
            ..CASE
        };
        let runs = |last: f64| [7.0, 8.0, 9.0, 8.0, last].map(|ms| outcome(vec![ms]));
        let verdict = |last| row(&measured(keiro, runs(last).to_vec()), keiro, "unended").verdict;
        assert_eq!(verdict(7.0), Verdict::Reached);
        assert_eq!(verdict(f64::INFINITY), Verdict::Missed);
    }

    #[test]
    fn runs_that_do_not_count_void_their_rows() {
        let loaded = Case { load: true, ..CASE };
        let idle = measured(loaded, vec![outcome(vec![7.0])]);
        assert_eq!(row(&idle, loaded, "mean").verdict, Verdict::Void);
        assert!(
            notes(&transactions(), &idle)
                .iter()
                .any(|n| n.contains("VOID: tcp-cubic load 6rt: the load overflowed nothing"))
        );
        let late = TransactionOutcome {
            late_p99_us: 501.0,
            ..outcome(vec![7.0])
        };
        let late = measured(CASE, vec![late]);
        assert_eq!(row(&late, CASE, "mean").verdict, Verdict::Void);
    }

    #[test]
    fn unmeasured_cases_are_void_and_noted() {
        let measured = Measured {
            missing: vec![(
                TransactionTransport::TcpCubic,
                "the kernel has none".to_owned(),
            )],
            ..Measured::default()
        };
        let mean = row(&measured, CASE, "mean");
        assert_eq!((mean.measured, mean.verdict), (None, Verdict::Void));
        let notes = notes(&transactions(), &measured);
        assert!(
            notes[0].starts_with("NOT MEASURED: all rows of tcp-cubic"),
            "{notes:?}"
        );
    }

    #[test]
    fn the_end_of_an_interval_is_asked_for_where_there_is_one() {
        let [off, on] = [
            TransactionTransport::KeiroFixed,
            TransactionTransport::KeiroFixedController,
        ]
        .map(|transport| Case { transport, ..CASE });
        let verdict = |off_ms: &[f64]| {
            let mut both = measured(on, vec![outcome(vec![12.5])]);
            let runs = off_ms.iter().map(|ms| outcome(vec![*ms])).collect();
            both.runs.extend(measured(off, runs).runs);
            let (rows, _) = rows(&transactions(), &[off, on], &both);
            let mean = on.row("mean");
            rows.into_iter()
                .find(|row| row.name == mean)
                .unwrap()
                .verdict
        };
        assert_eq!(verdict(&[11.0, 13.0, 12.0]), Verdict::Reached);
        assert_eq!(verdict(&[12.0, 12.1, 12.0]), Verdict::Missed);
        assert_eq!(verdict(&[12.0]), Verdict::Reported);
    }

    #[test]
    fn every_group_has_a_figure_with_its_variants() {
        let measured = measured(CASE, vec![outcome(vec![6.5, 7.0, 200.0])]);
        let drawings = drawings(&transactions(), &measured, true).unwrap();
        assert_eq!(drawings.len(), 1);
        assert_eq!(drawings[0].0, "ecdf-6rt-no-load");
        assert!(drawings[0].1.csv.contains("tcp-cubic,200,1"));
    }
}
