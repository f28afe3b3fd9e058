//! Report of a trial: rows, figures, files, notes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use super::{Measured, Over, Quantity, Trial, Trials, drawn, measure::TrialRun, row_name};
use crate::{
    evaluate::{Basis, NamedDrawing, TargetResult},
    figure::{self, Curve, DrawError, EcdfFigure, Mark, csv_text},
    manifest::{EmulatorsReport, RunsReport},
    record::EmulatorReport,
    row::{Row, Source, Verdict},
    stats::{self, Estimate},
};

/// Steps of a curve in a figure. Ours: as many as are visible.
const STEPS_MAX: usize = 2000;

/// All rows of the measured cases, and their basis.
pub(crate) fn rows(trials: &Trials, measured: &Measured) -> (Vec<Row>, Vec<Basis>) {
    let cases = trials.trial.cases();
    // Cases that could not be measured are reported, too: their rows are void.
    let targets: BTreeSet<usize> = measured
        .runs
        .keys()
        .chain(measured.missing.keys())
        .copied()
        .collect();
    let of_cases = || targets.iter().map(|&case| (case, &cases[case]));
    let mut reported = BTreeSet::new();
    let mut values = BTreeMap::new();
    for (case, name) in of_cases() {
        for (place, quantity) in trials.trial.quantities().iter().enumerate() {
            let row = row_name(quantity, name);
            let estimate = estimate(measured, case, place, quantity);
            if let Some(estimate) = estimate.filter(|_| !measured.is_void(trials, case)) {
                values.insert(row.clone(), estimate.value);
            }
            reported.insert(row);
        }
    }
    let mut rows = Vec::new();
    for (case, name) in of_cases() {
        for (place, quantity) in trials.trial.quantities().iter().enumerate() {
            let name = row_name(quantity, name);
            let of_row = trials.targets.iter().filter(|target| target.row == name);
            // Rows that compare with a case that was not run are left out, like the case.
            let of_row = of_row.filter(|t| t.other().is_none_or(|other| reported.contains(other)));
            let targets: Vec<TargetResult> = of_row
                .map(|target| TargetResult {
                    target: target.text.clone(),
                    holds: target.holds(&values),
                })
                .collect();
            let estimate = estimate(measured, case, place, quantity);
            let interval = estimate.and_then(|e| e.interval);
            let row = Row {
                name: name.clone(),
                unit: quantity.unit,
                paper: trials.paper.get(&name).copied(),
                measured: estimate.map(|e| e.value),
                low: interval.map(|i| i.low),
                high: interval.map(|i| i.high),
                floor: None,
                verdict: Verdict::of(measured.is_void(trials, case), &targets),
            };
            let basis = Basis {
                name,
                samples: Some(estimate.map_or(0, |e| e.samples)),
                batches: Some(estimate.map_or(0, |e| e.batches)),
                floor_with_headers: None,
                targets,
            };
            rows.push((row, basis));
        }
    }
    rows.into_iter().unzip()
}

/// `None` if a run has no such value.
fn estimate(measured: &Measured, case: usize, place: usize, of: &Quantity) -> Option<Estimate> {
    let runs = measured.runs.get(&case)?;
    let values = runs.iter().map(|run| run.outcome.values[place]);
    let values = values.collect::<Option<Vec<f64>>>()?;
    let sorted = stats::sorted(values.iter().copied());
    let value = match of.over {
        Over::Greatest => *sorted.last()?,
        Over::Median => {
            let (low, high) = ((sorted.len() - 1) / 2, sorted.len() / 2);
            (sorted.get(low)? + sorted.get(high)?) / 2.0
        }
    };
    let interval = match of.over {
        Over::Greatest => None,
        Over::Median => stats::sections(value, &values),
    };
    Some(Estimate {
        value,
        interval,
        samples: runs
            .iter()
            .map(|r| r.outcome.durations_ms.len().max(1))
            .sum(),
        batches: values.len(),
    })
}

/// The figures of what was measured; none where nothing was.
///
/// # Errors
/// See [`DrawError`].
pub(crate) fn drawings(
    trials: &Trials,
    measured: &Measured,
    quick: bool,
) -> Result<Vec<NamedDrawing>, DrawError> {
    let quick_words = match quick {
        true => "; a quick run, not for publication",
        false => "",
    };
    let clients = match &trials.trial {
        Trial::Clients(clients) => clients,
        Trial::Scale(scale) => return drawn::of_scale(scale, measured, quick_words),
        Trial::Flows(flows) => return drawn::of_flows(flows, measured, quick_words),
        Trial::Isps(isps) => return drawn::of_isps(isps, measured, quick_words),
        Trial::Routes(routes) => return drawn::of_routes(routes, measured, quick_words),
        Trial::Shares(shares) => return drawn::of_shares(shares, measured, quick_words),
        Trial::Bulk(_) | Trial::Spacing(_) => return Ok(Vec::new()),
    };
    let cases = trials.trial.cases();
    let curve = |(index, (&case, runs)): (usize, (&usize, &Vec<TrialRun>))| {
        let all = runs.iter().flat_map(|run| &run.outcome.durations_ms);
        let sorted = stats::sorted(all.copied());
        let ended = sorted.iter().filter(|ms| ms.is_finite()).count();
        let share = ended as f64 / sorted.len().max(1) as f64;
        let steps = stats::ecdf(&sorted[..ended], STEPS_MAX).into_iter();
        Curve {
            name: cases[case].clone(),
            colour: figure::colour(index),
            dashed: Curve::is_dashed(index),
            steps: steps.map(|(ms, part)| (ms, part * share)).collect(),
        }
    };
    let curves: Vec<Curve> = measured.runs.iter().enumerate().map(curve).collect();
    if curves.iter().all(|curve| curve.steps.is_empty()) {
        return Ok(Vec::new());
    }
    let figure = EcdfFigure {
        title: format!(
            "Answers to {} active clients, alone and beside {} idle ones",
            clients.active.of(quick),
            clients.idle.of(quick)
        ),
        subtitle: format!(
            "laboratory; {} requests a second of all clients, all runs{quick_words}",
            clients.per_second.of(quick)
        ),
        curves,
        share: "share of requests that take no longer".to_owned(),
        mark: Mark {
            name: "round trip of the line".to_owned(),
            ms: 1.0,
        },
    };
    Ok(vec![("ecdf-answers".to_owned(), figure.draw()?)])
}

/// One line per value of every run.
pub(crate) fn runs_csv(trials: &Trials, measured: &Measured) -> String {
    let mut csv = "case,round,seed,quantity,unit,value,emulator_late_p99_us,repeats,void,remarks\n"
        .to_owned();
    let cases = trials.trial.cases();
    for (&case, run) in all_runs(measured) {
        for (quantity, value) in trials.trial.quantities().iter().zip(&run.outcome.values) {
            let value = value.map(|v| v.to_string()).unwrap_or_default();
            let _ = writeln!(
                csv,
                "{},{},{},{},{},{value},{:.1},{},{},{}",
                csv_text(&cases[case]),
                run.round,
                run.seed,
                quantity.name,
                quantity.unit,
                run.outcome.emulator.lateness_p99_us,
                run.repeats,
                trials.is_void(&run.outcome),
                csv_text(&run.outcome.remarks.join("; "))
            );
        }
    }
    csv
}

fn all_runs(measured: &Measured) -> impl Iterator<Item = (&usize, &TrialRun)> {
    let runs = measured.runs.iter();
    runs.flat_map(|(case, runs)| runs.iter().map(move |run| (case, run)))
}

/// Every case's runs, for the manifest.
pub(crate) fn runs_reports(trials: &Trials, measured: &Measured) -> Vec<RunsReport> {
    let cases = trials.trial.cases();
    let report = |(&case, runs): (&usize, &Vec<TrialRun>)| {
        let emulators: Vec<EmulatorReport> = runs.iter().map(|r| r.outcome.emulator).collect();
        RunsReport {
            variant: cases[case].clone(),
            source: Source::Lab,
            runs: runs.len(),
            messages: runs.iter().map(|r| r.outcome.durations_ms.len()).sum(),
            void_repeats: runs.iter().map(|r| r.repeats).sum(),
            void_runs: runs.iter().filter(|r| trials.is_void(&r.outcome)).count(),
            emulator: EmulatorsReport::of(&emulators),
        }
    };
    measured.runs.iter().map(report).collect()
}

/// Remarks for the reader; missing measurements come first.
pub(crate) fn notes(trials: &Trials, measured: &Measured) -> Vec<String> {
    let cases = trials.trial.cases();
    let missing = measured.missing.iter();
    let mut notes: Vec<String> = missing
        .map(|(&case, why)| format!("NOT MEASURED: all rows of {}: {why}", cases[case]))
        .collect();
    notes.push(
        "A value is the median of the runs' own values, with a 95 % interval by Student's t over \
         the runs; counts, memory and what is called worst are the greatest of all runs."
            .to_owned(),
    );
    if !trials.trial.needs_punctuality() {
        notes.push(
            "No delays of packets are measured here: a run counts though the emulator was late."
                .to_owned(),
        );
    }
    if measured.runs.is_empty() && measured.missing.is_empty() {
        notes.push("NOT MEASURED: only the laboratory, which needs root, has it.".to_owned());
    }
    for (&case, run) in all_runs(measured) {
        if let Some(why) = &run.outcome.void {
            notes.push(format!(
                "VOID: {}, run {}: {why}",
                cases[case],
                run.round + 1
            ));
        }
        for remark in &run.outcome.remarks {
            notes.push(format!("{}, run {}: {remark}", cases[case], run.round + 1));
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::{super::TrialOutcome, *};
    use crate::{plan::Plan, record};

    fn trials() -> Trials {
        Plan::find("aggregation/bulk")
            .unwrap()
            .trials()
            .unwrap()
            .clone()
    }

    fn run(values: [f64; 4], lateness_p99_us: f64) -> TrialRun {
        TrialRun {
            round: 0,
            seed: 1,
            repeats: 0,
            outcome: TrialOutcome {
                values: values.map(Some).to_vec(),
                durations_ms: Vec::new(),
                traces: Vec::new(),
                samples: Vec::new(),
                remarks: vec!["it rained, and more".to_owned()],
                void: None,
                emulator: EmulatorReport {
                    packets: 1,
                    lateness_p50_us: 1.0,
                    lateness_p99_us,
                    lateness_max_us: 1000.0,
                    cpus_awake: true,
                },
            },
        }
    }

    fn verdicts(measured: &Measured) -> Vec<(String, Verdict)> {
        let (rows, basis) = rows(&trials(), measured);
        assert_eq!(rows.len(), basis.len());
        rows.into_iter()
            .map(|row| (row.name, row.verdict))
            .collect()
    }

    #[test]
    fn medians_are_judged_and_counts_by_the_greatest() {
        let runs = vec![
            run([95.0, 100.0, 95.0, 0.0], 10.0),
            run([80.0, 100.0, 80.0, 1.0], 10.0),
            run([91.0, 100.0, 91.0, 0.0], 10.0),
        ];
        let measured = Measured {
            runs: BTreeMap::from([(0, runs)]),
            missing: BTreeMap::new(),
        };
        let (reported, _) = rows(&trials(), &measured);
        assert_eq!(
            (reported[2].name.as_str(), reported[2].measured),
            ("share up 1ms", Some(91.0))
        );
        assert_eq!(reported[2].verdict, Verdict::Reached);
        assert_eq!(
            (reported[3].measured, reported[3].verdict),
            (Some(1.0), Verdict::Missed)
        );
        let csv = runs_csv(&trials(), &measured);
        assert_eq!(csv.lines().count(), 1 + 3 * 4);
        assert!(
            csv.contains("up 1ms,0,1,share,%,95,10.0,0,false,\"it rained, and more\""),
            "{csv}"
        );
        assert!(
            notes(&trials(), &measured).contains(&"up 1ms, run 1: it rained, and more".to_owned())
        );
    }

    #[test]
    fn cases_that_were_not_run_have_no_rows() {
        let measured = Measured {
            runs: BTreeMap::from([(1, vec![run([95.0, 100.0, 95.0, 0.0], 10.0)])]),
            missing: BTreeMap::new(),
        };
        let verdicts = verdicts(&measured);
        assert_eq!(verdicts.len(), 4);
        assert_eq!(verdicts[2], ("share down 1ms".to_owned(), Verdict::Reached));
        let none = Measured::default();
        assert!(
            notes(&trials(), &none)
                .iter()
                .any(|n| n.starts_with("NOT MEASURED"))
        );
    }

    #[test]
    fn unmeasured_cases_are_void_and_noted() {
        let measured = Measured {
            runs: BTreeMap::from([(1, vec![run([95.0, 100.0, 95.0, 0.0], 10.0)])]),
            missing: BTreeMap::from([(0, "there is no line".to_owned())]),
        };
        let verdicts = verdicts(&measured);
        assert_eq!(verdicts.len(), 8);
        assert_eq!(verdicts[2], ("share up 1ms".to_owned(), Verdict::Void));
        assert_eq!(verdicts[6], ("share down 1ms".to_owned(), Verdict::Reached));
        assert_eq!(
            notes(&trials(), &measured)[0],
            "NOT MEASURED: all rows of up 1ms: there is no line"
        );
    }

    #[test]
    fn a_run_whose_traffic_was_not_there_is_void_and_noted() {
        let mut one = run([95.0, 100.0, 95.0, 0.0], 10.0);
        one.outcome.void = record::lacks_traffic("the flow", 0.4, 10.0);
        let good = run([95.0, 100.0, 95.0, 0.0], 10.0);
        let measured = Measured {
            runs: BTreeMap::from([(0, vec![one]), (1, vec![good])]),
            missing: BTreeMap::new(),
        };
        let verdicts = verdicts(&measured);
        assert!(
            verdicts[..4]
                .iter()
                .all(|(_, verdict)| *verdict == Verdict::Void)
        );
        assert_eq!(verdicts[6].1, Verdict::Reached);
        let note = "VOID: up 1ms, run 1: before the event the flow had 0.40 Mbit/s of 10.00";
        let notes = notes(&trials(), &measured);
        assert!(
            notes.iter().any(|known| known.starts_with(note)),
            "{notes:?}"
        );
        assert_eq!(runs_reports(&trials(), &measured)[0].void_runs, 1);
        assert!(runs_csv(&trials(), &measured).contains(",true,"));
    }

    #[test]
    fn a_value_that_is_missing_voids_its_row() {
        let mut one = run([95.0, 100.0, 95.0, 0.0], 10.0);
        one.outcome.values[2] = None;
        let measured = Measured {
            runs: BTreeMap::from([(0, vec![one])]),
            missing: BTreeMap::new(),
        };
        assert_eq!(verdicts(&measured)[2].1, Verdict::Void);
    }
}
