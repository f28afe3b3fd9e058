//! Transactions, from plan to files, with a fake runner.

use keiro_experiment::{
    campaign::{Campaign, Options, Runners},
    plan::Plan,
    record::EmulatorReport,
    runner::Progress,
    transactions::{
        TransactionOutcome, TransactionRequest, TransactionRunner, TransactionTransport,
    },
};

/// Every transaction takes 7 ms; after `runs` runs every run fails.
struct Breaks {
    runs_left: u32,
    /// Pauses of a processor and lateness of the emulator, one entry per run.
    disturbances: Vec<(f64, bool)>,
}

/// A run on an undisturbed machine.
const NOTHING: (f64, bool) = (0.1, false);
/// A valid run with a pause in it.
const PAUSE: (f64, bool) = (3.4, false);
/// A void run.
const LATE: (f64, bool) = (0.1, true);

impl TransactionRunner for Breaks {
    fn missing(&self, _: TransactionTransport) -> Option<String> {
        None
    }

    fn run(
        &mut self,
        _: &TransactionRequest<'_>,
        _: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<TransactionOutcome> {
        let (pause_ms, is_late) = self.disturbances[0];
        self.disturbances.rotate_left(1);
        let left = self.runs_left.checked_sub(1);
        self.runs_left = left.ok_or_else(|| anyhow::anyhow!("the machine is gone"))?;
        Ok(TransactionOutcome {
            durations_ms: vec![7.0; 10],
            slowest: Vec::new(),
            waited: 0,
            late_p99_us: 1.0,
            late_max_us: 2.0,
            overflows: 1,
            counters: Vec::new(),
            emulator: EmulatorReport {
                cpus_awake: true,
                packets: 1,
                lateness_p50_us: 10.0,
                lateness_p99_us: if is_late { 250.0 } else { 20.0 },
                lateness_max_us: 300.0,
            },
            pause_ms,
        })
    }
}

/// The result of a run of one transport, and the notes and the number of runs in its files.
fn carry_out(runs_left: u32) -> (anyhow::Result<()>, String, usize) {
    let plan = Plan::find("aggregation/table5").unwrap();
    let (ran, manifest, runs) = carry_out_on(&plan, runs_left, &[NOTHING]);
    (ran, manifest, runs.lines().count().saturating_sub(1))
}

fn carry_out_on(
    plan: &Plan,
    runs_left: u32,
    disturbances: &[(f64, bool)],
) -> (anyhow::Result<()>, String, String) {
    let directory = tempfile::tempdir().unwrap();
    let options = Options {
        quick: false,
        variants: vec!["tcp-lossless".to_owned()],
        results: directory.path().to_owned(),
        version: "test",
    };
    let machine = Breaks {
        runs_left,
        disturbances: disturbances.to_vec(),
    };
    let runners = Runners {
        transactions: Some(Box::new(machine)),
        ..Runners::default()
    };
    let mut campaign = Campaign::new(options, runners);
    let ran = campaign.run(plan, &mut |_| {}).map(drop);
    let of_plan = directory.path().join("aggregation/table5");
    let Some(results) = of_plan.read_dir().ok().and_then(|mut found| found.next()) else {
        return (ran, String::new(), String::new());
    };
    let parts = results.as_ref().unwrap().path().read_dir().unwrap();
    for file in parts {
        let name = file.unwrap().file_name();
        assert!(!name.to_string_lossy().ends_with(".part"), "{name:?}");
    }
    let read = |name| std::fs::read_to_string(results.as_ref().unwrap().path().join(name)).unwrap();
    (ran, read("manifest.json"), read("runs.csv"))
}

#[test]
fn an_aborted_run_keeps_its_complete_rounds() {
    // Four cases of a transport take turns, in five rounds.
    let (ran, manifest, runs) = carry_out(20);
    ran.unwrap();
    assert_eq!(runs, 20);
    assert!(!manifest.contains("INCOMPLETE"), "{manifest}");

    let (ran, manifest, runs) = carry_out(10);
    let error = format!("{:#}", ran.unwrap_err());
    assert!(
        error.contains("round 3, could not be run: the machine is gone"),
        "{error}"
    );
    let kept = "aborted; the complete rounds are in /";
    assert!(
        error.starts_with(kept) && error.contains("/aggregation/table5/2"),
        "{error}"
    );
    assert_eq!(runs, 8);
    assert!(
        manifest.contains("INCOMPLETE: 3 rounds were not measured"),
        "{manifest}"
    );

    let (ran, _, runs) = carry_out(3);
    let error = format!("{:#}", ran.unwrap_err());
    assert!(!error.contains("broken off"), "{error}");
    assert_eq!(runs, 0);
}

/// Pauses, repeats and whether void, of every run under these disturbances, with this limit of repeats for
/// pauses. The runs use up the disturbances exactly.
fn kept(pause_repeats: u32, disturbances: &[(f64, bool)]) -> (f64, u32, bool) {
    let plan = Plan::find("aggregation/table5").unwrap();
    let plan = plan.with_pause_repeats(pause_repeats).unwrap();
    let asked = 20 * disturbances.len() as u32;
    let (ran, _, runs) = carry_out_on(&plan, asked, disturbances);
    ran.unwrap();
    let (less, ..) = carry_out_on(&plan, asked - 1, disturbances);
    less.unwrap_err();
    let mut lines = runs.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let header = lines.next().unwrap();
    let at = |name| header.iter().position(|column| *column == name).unwrap();
    let mut of_runs = lines.map(|line| {
        let stood_still = line[at("stood_still_ms")].parse().unwrap();
        let repeats = line[at("repeats")].parse().unwrap();
        (stood_still, repeats, !line[at("void")].is_empty())
    });
    let first = of_runs.next().unwrap();
    assert!(of_runs.all(|run| run == first), "{runs}");
    first
}

#[test]
fn a_run_with_a_machine_pause_is_repeated_up_to_the_limit() {
    let longer = (5.0, false);
    assert_eq!(kept(3, &[NOTHING]), (0.1, 0, false));
    assert_eq!(kept(3, &[PAUSE, NOTHING]), (0.1, 1, false));
    assert_eq!(kept(0, &[PAUSE]), (3.4, 0, false));
    assert_eq!(kept(1, &[longer, PAUSE]), (3.4, 1, false));
    // The run with the shortest pause is kept, not the last.
    assert_eq!(kept(3, &[longer, PAUSE, longer, longer]), (3.4, 3, false));
}

#[test]
fn a_valid_run_is_kept_over_a_void_one() {
    assert_eq!(kept(0, &[LATE, NOTHING]), (0.1, 1, false));
    assert_eq!(kept(0, &[LATE, PAUSE]), (3.4, 1, false));
    assert_eq!(kept(3, &[PAUSE, LATE, LATE, LATE]), (3.4, 3, false));
    assert_eq!(kept(1, &[LATE, PAUSE, LATE, PAUSE]), (3.4, 3, false));
    assert_eq!(kept(0, &[LATE; 4]), (0.1, 3, true));
}
