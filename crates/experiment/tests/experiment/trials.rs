//! Trials, from plan to files, with a fake runner.

use keiro_experiment::{
    campaign::{Campaign, Options, Runners},
    plan::Plan,
    record::EmulatorReport,
    report::Report,
    row::Verdict,
    runner::Progress,
    trials::{TrialOutcome, TrialRequest, TrialRunner},
};

/// Returns the index of the case as its value and as the emulator's lateness.
struct Fake {
    lateness_us: f64,
    runs: u32,
}

impl TrialRunner for Fake {
    fn run(
        &mut self,
        request: &TrialRequest<'_>,
        progress: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<TrialOutcome> {
        self.runs += 1;
        progress(&Progress::default());
        let quantities = request.trials.trial.quantities();
        Ok(TrialOutcome {
            values: vec![Some(request.case as f64); quantities.len()],
            durations_ms: vec![1.0, 2.0],
            traces: Vec::new(),
            samples: Vec::new(),
            remarks: vec![format!("seed {}", request.seed)],
            void: None,
            emulator: EmulatorReport {
                packets: 1,
                lateness_p50_us: 1.0,
                lateness_p99_us: self.lateness_us,
                lateness_max_us: 500.0,
                cpus_awake: true,
            },
        })
    }
}

fn run(
    id: &str,
    variants: &[&str],
    runners: Runners<'_>,
) -> anyhow::Result<(Report, tempfile::TempDir)> {
    let directory = tempfile::tempdir()?;
    let options = Options {
        quick: false,
        variants: variants.iter().map(|name| (*name).to_owned()).collect(),
        results: directory.path().to_owned(),
        version: "test",
    };
    let one_round = "run.rounds=1".parse().map_err(anyhow::Error::msg)?;
    let plan = Plan::find(id)?.with(&[one_round])?;
    let report = Campaign::new(options, runners).run(&plan, &mut |_| {})?;
    Ok((report, directory))
}

fn fake(lateness_us: f64) -> Runners<'static> {
    Runners {
        trials: Some(Box::new(Fake {
            lateness_us,
            runs: 0,
        })),
        ..Runners::default()
    }
}

fn verdict(report: &Report, name: &str) -> Verdict {
    let row = report.rows.iter().find(|row| row.name == name);
    row.unwrap_or_else(|| panic!("no row {name}")).verdict
}

#[test]
fn every_case_is_reported_with_its_files() {
    let (report, directory) = run("aggregation/clients", &[], fake(20.0)).unwrap();
    assert_eq!(report.rows.len(), 3 * 7, "{}", report.table());
    assert_eq!(verdict(&report, "memory a idle"), Verdict::Reached);
    // 2 <= 1 + 1.
    assert_eq!(verdict(&report, "mean stalled"), Verdict::Reached);
    assert_eq!(verdict(&report, "broken idle"), Verdict::Missed);
    assert_eq!(verdict(&report, "p99 idle"), Verdict::Reported);
    let file = |name: &str| {
        assert!(
            report.files.contains(&name.to_owned()),
            "{:?}",
            report.files
        );
        std::fs::read_to_string(directory.path().join(&report.directory).join(name)).unwrap()
    };
    assert_eq!(file("runs.csv").lines().count(), 1 + 3 * 7);
    assert!(file("runs.csv").contains("idle,0,2020,p99,ms,1,20.0,0,false,seed 2020"));
    assert!(file("ecdf-answers.svg").contains("10000") || file("ecdf-answers.svg").contains("500"));
    assert!(file("ecdf-answers.csv").contains("stalled,2,1"));
}

#[test]
fn a_late_emulator_voids_delays_and_not_bytes() {
    let (report, _directory) = run("aggregation/clients", &["idle"], fake(300.0)).unwrap();
    assert_eq!(report.rows.len(), 7);
    assert!(report.rows.iter().all(|row| row.verdict == Verdict::Void));
    assert_eq!(report.manifest.runs[0].void_repeats, 3);
    let (report, _directory) = run("aggregation/bulk", &[], fake(300.0)).unwrap();
    assert_eq!(verdict(&report, "damaged up 1ms"), Verdict::Reached);
    assert_eq!(verdict(&report, "share down 1ms"), Verdict::Missed);
}

#[test]
fn rows_relative_to_a_case_that_was_not_run_are_left_out() {
    let (report, _directory) = run("aggregation/clients", &["stalled"], fake(20.0)).unwrap();
    assert_eq!(verdict(&report, "mean stalled"), Verdict::Reported);
}

#[test]
fn without_the_laboratory_rows_are_left_out_with_a_note() {
    let (report, _directory) = run(
        "aggregation/spacing",
        &[],
        Runners::default().with_simulator(),
    )
    .unwrap();
    assert!(report.rows.is_empty());
    let notes = &report.manifest.notes;
    assert!(
        notes.iter().any(|note| note.starts_with("NOT MEASURED")),
        "{notes:?}"
    );
}

#[test]
fn an_unknown_case_is_refused_with_the_nearest() {
    let error = run("aggregation/bulk", &["upp 1ms"], fake(20.0))
        .unwrap_err()
        .to_string();
    assert!(error.contains("did you mean `up 1ms`"), "{error}");
}
