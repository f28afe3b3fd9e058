//! Transactions, from their plan to their files, by a runner that only says what it measured.

use keiro_experiment::{
    plan::Plan,
    record::{EmulatorReport, MessageRecord},
    row::Source,
    runner::{Outcome, Progress, Request, Runner},
    session::{Options, REPEATS_MAX, Session},
    setup::Setup,
    transactions::{TransactionOutcome, TransactionRequest, TransactionRunner, Way},
};

/// Every transaction takes 7 ms, in every run a processor stands still so long, and after so many runs none is possible
/// any more.
struct Breaks {
    runs_left: u32,
    stands_still_ms: f64,
}

impl Runner for Breaks {
    fn source(&self) -> Source {
        Source::Lab
    }

    fn can_run(&self, _: &Setup, _: usize) -> bool {
        false
    }

    fn run(&mut self, _: &Request<'_>, _: &mut dyn FnMut(&Progress)) -> anyhow::Result<Outcome> {
        let records: Vec<MessageRecord> = Vec::new();
        let emulator = None;
        Ok(Outcome { records, emulator })
    }

    fn transactions(&mut self) -> Option<&mut dyn TransactionRunner> {
        Some(self)
    }
}

impl TransactionRunner for Breaks {
    fn missing(&self, _: Way) -> Option<String> {
        None
    }

    fn run(
        &mut self,
        _: &TransactionRequest<'_>,
        _: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<TransactionOutcome> {
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
                lateness_p99_us: 20.0,
                lateness_max_us: 30.0,
            },
            stood_still_ms: self.stands_still_ms,
        })
    }
}

/// What became of a run of one way, and the notes and the number of runs that are in its files.
fn carry_out(runs_left: u32) -> (anyhow::Result<()>, String, usize) {
    let machine = Breaks {
        runs_left,
        stands_still_ms: 0.1,
    };
    carry_out_on(machine, REPEATS_MAX)
}

fn carry_out_on(machine: Breaks, pause_repeats: u32) -> (anyhow::Result<()>, String, usize) {
    let directory = tempfile::tempdir().unwrap();
    let options = Options {
        quick: false,
        variants: vec!["tcp-lossless".to_owned()],
        pause_repeats,
        results: directory.path().to_owned(),
        version: "test",
    };
    let mut session = Session::new(options, vec![Box::new(machine)]);
    let plan = Plan::find("aggregation/table5").unwrap();
    let ran = session.run(&plan, &mut |_| {}).map(drop);
    let of_plan = directory.path().join("aggregation/table5");
    let Some(results) = of_plan.read_dir().ok().and_then(|mut found| found.next()) else {
        return (ran, String::new(), 0);
    };
    let parts = results.as_ref().unwrap().path().read_dir().unwrap();
    for file in parts {
        let name = file.unwrap().file_name();
        assert!(!name.to_string_lossy().ends_with(".part"), "{name:?}");
    }
    let read = |name| std::fs::read_to_string(results.as_ref().unwrap().path().join(name)).unwrap();
    let runs = read("runs.csv").lines().count() - 1;
    (ran, read("manifest.json"), runs)
}

#[test]
fn a_run_that_breaks_off_leaves_its_whole_rounds() {
    // Four cases of a way take turns, in five rounds.
    let (ran, manifest, runs) = carry_out(20);
    ran.unwrap();
    assert_eq!(runs, 20);
    assert!(!manifest.contains("NOT WHOLE"), "{manifest}");

    let (ran, manifest, runs) = carry_out(10);
    let error = format!("{:#}", ran.unwrap_err());
    assert!(
        error.contains("round 3, could not be run: the machine is gone"),
        "{error}"
    );
    let kept = "broken off; the rounds before are in /";
    assert!(
        error.starts_with(kept) && error.contains("/aggregation/table5/2"),
        "{error}"
    );
    assert_eq!(runs, 8);
    assert!(
        manifest.contains("NOT WHOLE: 3 more rounds were to come"),
        "{manifest}"
    );

    let (ran, _, runs) = carry_out(3);
    let error = format!("{:#}", ran.unwrap_err());
    assert!(!error.contains("broken off"), "{error}");
    assert_eq!(runs, 0);
}

#[test]
fn a_run_in_which_the_machine_stood_still_is_repeated_as_often_as_is_asked() {
    for pause_repeats in [0, 1, REPEATS_MAX] {
        let machine = |runs_left| Breaks {
            runs_left,
            stands_still_ms: 3.4,
        };
        let asked = 20 * (1 + pause_repeats);
        let (ran, manifest, runs) = carry_out_on(machine(asked), pause_repeats);
        ran.unwrap();
        assert_eq!(runs, 20, "each counts as it is after that");
        assert!(!manifest.contains("VOID"), "{manifest}");
        let (ran, ..) = carry_out_on(machine(asked - 1), pause_repeats);
        ran.unwrap_err();
    }
}
