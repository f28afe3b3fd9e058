//! Runs plans: measurements in interleaved rounds, each made once for all plans that share it.

use std::{
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::{Context, bail};

use crate::{
    churn::ChurnRunner,
    evaluate::{self, Basis},
    laboratory::Laboratory,
    manifest::Manifest,
    parameters::StudyRunner,
    plan::{Kind, Plan},
    record::{Measurement, Run},
    recorded::RecordedRunner,
    report::Report,
    row::{Row, Source, Verdict},
    runner::{MessageRunner, Progress, Request, Schedule},
    setup::Setup,
    simulator::Simulator,
    subject::Findings,
    tenants::SharingRunner,
    transactions::TransactionRunner,
    transfers::TransferRunner,
    trials::TrialRunner,
};

/// One invocation of `keiro-lab experiment run`. Measurements are kept for later plans with the same setup.
pub struct Campaign<'a> {
    options: Options,
    runners: Runners<'a>,
    measured: Vec<Measured>,
}

/// The runners of each kind of experiment, at most one per source. What has none is left out of reports.
#[derive(Default)]
pub struct Runners<'r> {
    pub messages: Vec<Box<dyn MessageRunner + 'r>>,
    pub studies: Vec<Box<dyn StudyRunner + 'r>>,
    pub transfers: Vec<Box<dyn TransferRunner + 'r>>,
    pub recorded: Vec<Box<dyn RecordedRunner + 'r>>,
    /// Transactions are carried by real hosts only.
    pub transactions: Option<Box<dyn TransactionRunner + 'r>>,
    /// Trials are of real programs only.
    pub trials: Option<Box<dyn TrialRunner + 'r>>,
    /// Tenants share simulated bottlenecks only.
    pub sharing: Option<Box<dyn SharingRunner + 'r>>,
    /// Applications come and go in the simulator only.
    pub churn: Option<Box<dyn ChurnRunner + 'r>>,
}

impl Runners<'_> {
    /// What the laboratory measures is measured in it.
    #[must_use]
    pub fn with_laboratory(mut self, laboratory: &Laboratory) -> Self {
        self.messages.push(Box::new(laboratory.clone()));
        self.studies.push(Box::new(laboratory.clone()));
        self.transfers.push(Box::new(laboratory.clone()));
        self.recorded.push(Box::new(laboratory.clone()));
        self.transactions = Some(Box::new(laboratory.clone()));
        self.trials = Some(Box::new(laboratory.clone()));
        self
    }

    /// What the simulator measures is measured in it.
    #[must_use]
    pub fn with_simulator(mut self) -> Self {
        self.messages.push(Box::new(Simulator));
        self.studies.push(Box::new(Simulator));
        self.transfers.push(Box::new(Simulator));
        self.sharing = Some(Box::new(Simulator));
        self.churn = Some(Box::new(Simulator));
        self
    }
}

/// Options of a campaign.
#[derive(Clone, Debug)]
pub struct Options {
    /// Measure the shortened extent; its results are not for publication.
    pub quick: bool,
    /// The names of the variants to run; empty for all.
    pub variants: Vec<String>,
    /// Results are written to `<id>/<time>` below this directory.
    pub results: PathBuf,
    /// Version and commit of this build, for the manifest.
    pub version: &'static str,
}

/// Progress of a campaign.
#[derive(Clone, Debug)]
pub struct Status<'a> {
    /// Fraction of the whole measurement that is done, 0 to 1.
    pub fraction: f64,
    pub source: Source,
    pub setup: &'a Setup,
    /// Index of the variant that runs.
    pub variant: usize,
    /// The round, from 0.
    pub round: u32,
    /// How often this run was repeated because it was void.
    pub repeat: u32,
    pub run: &'a Progress,
}

/// Maximum of repeats of a void run.
pub const REPEATS_MAX: u32 = 3;

/// Options, runners and report writer that an experiment gets.
pub(crate) struct Bench<'s, 'r> {
    pub(crate) options: &'s Options,
    pub(crate) runners: &'s mut Runners<'r>,
    pub(crate) writer: ReportWriter<'s>,
}

/// Writes the report of one plan. May be called repeatedly while the plan is measured.
pub(crate) struct ReportWriter<'s> {
    plan: &'s Plan,
    options: &'s Options,
    begun: &'s Clock,
}

impl ReportWriter<'_> {
    /// # Errors
    /// A file cannot be written.
    pub(crate) fn write(&self, findings: Findings) -> anyhow::Result<Report> {
        let (started, duration) = (self.begun.started, self.begun.elapsed());
        let mut manifest = Manifest::gather(self.plan, self.options, None, started, duration);
        manifest.runs = findings.runs;
        let mut notes = findings.notes;
        notes.append(&mut manifest.notes);
        manifest.notes = notes;
        let quick = self.options.quick;
        let mut report =
            self.begun
                .report(self.plan, findings.rows, findings.basis, manifest, quick);
        let mut files: Vec<(&str, &str)> = findings
            .files
            .iter()
            .map(|(name, content)| (*name, content.as_str()))
            .collect();
        files.push((PLAN_FILE, &self.plan.written.text));
        report.write(&self.options.results, &findings.drawings, &files)?;
        Ok(report)
    }
}

struct Measured {
    setup: Setup,
    measurement: Measurement,
    started: SystemTime,
    duration: Duration,
}

impl<'a> Campaign<'a> {
    /// Creates a campaign that measures with these runners.
    pub fn new(options: Options, runners: Runners<'a>) -> Self {
        Self {
            options,
            runners,
            measured: Vec::new(),
        }
    }

    /// Runs a plan and writes its files. A setup that this campaign has already measured is only evaluated.
    ///
    /// # Errors
    /// The plan could not be run; the error says what to try.
    pub fn run(
        &mut self,
        plan: &Plan,
        watch: &mut dyn FnMut(&Status<'_>),
    ) -> anyhow::Result<Report> {
        let begun = Clock::start();
        let Some(experiment) = plan.subject.experiment() else {
            return self.messages(plan, &begun, watch);
        };
        let mut bench = Bench {
            options: &self.options,
            runners: &mut self.runners,
            writer: ReportWriter {
                plan,
                options: &self.options,
                begun: &begun,
            },
        };
        let findings = experiment.carry_out(plan, &mut bench, watch)?;
        bench.writer.write(findings)
    }

    /// Measures a setup unless this campaign already has, and evaluates it.
    fn messages(
        &mut self,
        plan: &Plan,
        begun: &Clock,
        watch: &mut dyn FnMut(&Status<'_>),
    ) -> anyhow::Result<Report> {
        let quick = self.options.quick;
        let of_setup = |measured: &&Measured| measured.setup == plan.setup;
        if plan.kind == Kind::Measurement && !self.measured.iter().any(|m| of_setup(&m)) {
            let measurement = self.measure(&plan.setup, watch)?;
            let (started, duration) = (begun.started, begun.elapsed());
            self.measured.push(Measured {
                setup: plan.setup.clone(),
                measurement,
                started,
                duration,
            });
        }
        let measured = self
            .measured
            .iter()
            .find(of_setup)
            .filter(|_| plan.kind == Kind::Measurement);
        let measurement = measured.map(|m| &m.measurement);
        let (rows, basis) = evaluate::rows(plan, measurement, quick);
        let drawings = match measurement {
            Some(measurement) => evaluate::figures(plan, measurement, quick)?,
            None => Vec::new(),
        };
        let (started, duration) = measured.map_or_else(
            || (begun.started, begun.elapsed()),
            |m| (m.started, m.duration),
        );
        let manifest = Manifest::gather(plan, &self.options, measurement, started, duration);
        let mut report = begun.report(plan, rows, basis, manifest, quick);
        let messages = measurement.map(|m| m.csv(&plan.setup));
        let mut extra: Vec<(&str, &str)> = messages
            .iter()
            .map(|csv| ("messages.csv", csv.as_str()))
            .collect();
        extra.push((PLAN_FILE, &plan.written.text));
        report.write(&self.options.results, &drawings, &extra)?;
        Ok(report)
    }

    fn measure(
        &mut self,
        setup: &Setup,
        watch: &mut dyn FnMut(&Status<'_>),
    ) -> anyhow::Result<Measurement> {
        let extent = setup.extent(self.options.quick);
        let variants = self.variants(setup)?;
        let total = f64::from(extent.rounds) * variants.len() as f64;
        let mut measurement = Measurement::default();
        if self.runners.messages.is_empty() {
            bail!(
                "{} cannot be measured: neither the laboratory nor the simulator is available",
                setup.id
            );
        }
        let sources = self.runners.messages.len() as f64;
        for (index, runner) in self.runners.messages.iter_mut().enumerate() {
            let source = runner.source();
            for round in 0..extent.rounds {
                let schedule = Schedule::of(setup, extent, round);
                for (position, &variant) in variants.iter().enumerate() {
                    if !runner.can_run(setup, variant) {
                        continue;
                    }
                    let request = Request {
                        setup,
                        variant,
                        round,
                        extent,
                        schedule: &schedule,
                    };
                    let before = f64::from(round) * variants.len() as f64 + position as f64;
                    let mut notice = |repeat: u32, run: &Progress| {
                        let run_done = run.elapsed.as_secs_f64() / extent.duration.0.as_secs_f64();
                        let done = (before + run_done.min(1.0)) / total;
                        let fraction = (index as f64 + done) / sources;
                        watch(&Status {
                            fraction,
                            source,
                            setup,
                            variant,
                            round,
                            repeat,
                            run,
                        });
                    };
                    let run = run_until_valid(runner.as_mut(), &request, &mut notice)
                        .with_context(|| {
                            let name = &setup.variants[variant].name;
                            format!("variant {name}, round {}, could not be run", round + 1)
                        })?;
                    measurement
                        .runs
                        .entry((source, variant))
                        .or_default()
                        .push(run);
                }
            }
        }
        Ok(measurement)
    }

    fn variants(&self, setup: &Setup) -> anyhow::Result<Vec<usize>> {
        if self.options.variants.is_empty() {
            return Ok((0..setup.variants.len()).collect());
        }
        let index = |name: &String| {
            setup.variant(name).with_context(|| {
                let known: Vec<&str> = setup.variants.iter().map(|v| v.name.as_str()).collect();
                format!(
                    "{} has no variant `{name}`; there are {}",
                    setup.id,
                    known.join(", ")
                )
            })
        };
        self.options.variants.iter().map(index).collect()
    }
}

/// Runs messages, and repeats the run while the emulator was late.
pub(crate) fn run_until_valid(
    runner: &mut dyn MessageRunner,
    request: &Request<'_>,
    notice: &mut dyn FnMut(u32, &Progress),
) -> anyhow::Result<Run> {
    let once = |repeats| {
        let outcome = runner.run(request, &mut |progress| notice(repeats, progress))?;
        let expected = request.schedule.messages();
        if outcome.records.len() != expected {
            bail!(
                "{} messages were sent instead of {expected}",
                outcome.records.len()
            );
        }
        Ok(Run {
            round: request.round,
            seed: request.schedule.seed,
            records: outcome.records,
            emulator: outcome.emulator,
            repeats,
        })
    };
    let (run, _) = until_valid(once, Run::is_void)?;
    Ok(run)
}

/// Calls `once` with the number of repeats so far until the result is not void or [`REPEATS_MAX`] is reached.
/// Returns the last result and the number of repeats.
pub(crate) fn until_valid<T>(
    mut once: impl FnMut(u32) -> anyhow::Result<T>,
    is_void: impl Fn(&T) -> bool,
) -> anyhow::Result<(T, u32)> {
    let mut repeats = 0;
    loop {
        let outcome = once(repeats)?;
        if !is_void(&outcome) || repeats == REPEATS_MAX {
            return Ok((outcome, repeats));
        }
        repeats += 1;
    }
}

/// The plan as it was run; `keiro-lab experiment run --plan` repeats it.
const PLAN_FILE: &str = "plan.toml";

/// RFC 3339 without the colons, which some file systems refuse.
fn directory_name(started: SystemTime) -> String {
    humantime::format_rfc3339_seconds(started)
        .to_string()
        .replace(':', "")
}

/// Wall clock for the date, monotonic clock for the duration.
struct Clock {
    started: SystemTime,
    monotonic: std::time::Instant,
}

impl Clock {
    /// The report of what was measured since `start`. Targets are for full runs, so they do not judge what was
    /// measured quickly.
    fn report(
        &self,
        plan: &Plan,
        mut rows: Vec<Row>,
        mut basis: Vec<Basis>,
        manifest: Manifest,
        quick: bool,
    ) -> Report {
        if quick && plan.kind == Kind::Measurement {
            for row in rows.iter_mut().filter(|row| row.verdict != Verdict::Void) {
                row.verdict = Verdict::Reported;
            }
            for target in basis.iter_mut().flat_map(|basis| &mut basis.targets) {
                target.holds = None;
            }
        }
        Report {
            id: plan.id.clone(),
            title: plan.title.clone(),
            source: plan.source.clone(),
            rows,
            basis,
            manifest,
            directory: Path::new(&plan.id).join(directory_name(self.started)),
            files: Vec::new(),
        }
    }

    fn start() -> Self {
        Self {
            started: SystemTime::now(),
            monotonic: std::time::Instant::now(),
        }
    }

    fn elapsed(&self) -> Duration {
        self.monotonic.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, rc::Rc};

    use super::*;
    use crate::{
        record::{EmulatorReport, MessageRecord},
        row::Verdict,
        runner::Outcome,
    };

    /// Every message takes its application's latency target divided by `factor`.
    struct Fake {
        source: Source,
        factor: f64,
        /// Runs that are still to be late.
        late: Rc<Cell<u32>>,
        order: Rc<std::cell::RefCell<Vec<(u32, usize)>>>,
    }

    impl MessageRunner for Fake {
        fn source(&self) -> Source {
            self.source
        }

        fn can_run(&self, setup: &Setup, variant: usize) -> bool {
            self.source == Source::Lab || setup.variants[variant].simulated
        }

        fn run(
            &mut self,
            request: &Request<'_>,
            progress: &mut dyn FnMut(&Progress),
        ) -> anyhow::Result<Outcome> {
            self.order
                .borrow_mut()
                .push((request.round, request.variant));
            progress(&Progress {
                elapsed: request.extent.duration.0,
                applications: Vec::new(),
            });
            let is_late = self.late.get() > 0;
            self.late.set(self.late.get().saturating_sub(1));
            let mut records = Vec::new();
            for (application, made) in request.schedule.made.iter().enumerate() {
                let a = &request.setup.applications[application];
                let delay = a.latency_target.0.as_nanos() as f64 / self.factor;
                for (sequence, made) in (0..).zip(made) {
                    records.push(MessageRecord {
                        application,
                        sequence,
                        made_ns: made.as_nanos(),
                        received_ns: Some(made.as_nanos() + delay as u64),
                        length: a.length.0.get(),
                    });
                }
            }
            let lateness = if is_late { 300.0 } else { 20.0 };
            let emulator = EmulatorReport {
                packets: 1,
                lateness_p50_us: lateness,
                lateness_p99_us: lateness,
                lateness_max_us: lateness,
                cpus_awake: true,
            };
            let emulator = (self.source == Source::Lab).then_some(emulator);
            Ok(Outcome { records, emulator })
        }
    }

    struct Bench {
        directory: tempfile::TempDir,
        late: Rc<Cell<u32>>,
        order: Rc<std::cell::RefCell<Vec<(u32, usize)>>>,
    }

    impl Bench {
        fn new(late: u32) -> Self {
            Self {
                directory: tempfile::tempdir().unwrap(),
                late: Rc::new(Cell::new(late)),
                order: Rc::default(),
            }
        }

        fn campaign(&self) -> Campaign<'static> {
            self.campaign_of(true)
        }

        fn full_campaign(&self) -> Campaign<'static> {
            self.campaign_of(false)
        }

        fn campaign_of(&self, quick: bool) -> Campaign<'static> {
            let fake = |source, factor| -> Box<dyn MessageRunner> {
                Box::new(Fake {
                    source,
                    factor,
                    late: Rc::clone(&self.late),
                    order: Rc::clone(&self.order),
                })
            };
            let options = Options {
                quick,
                variants: Vec::new(),
                results: self.directory.path().to_owned(),
                version: "test",
            };
            let runners = Runners {
                messages: vec![fake(Source::Lab, 2.0), fake(Source::Sim, 2.0)],
                ..Runners::default()
            };
            Campaign::new(options, runners)
        }
    }

    fn row<'a>(report: &'a Report, name: &str) -> &'a Row {
        report
            .rows
            .iter()
            .find(|row| row.name == name)
            .unwrap_or_else(|| panic!("no row {name}"))
    }

    #[test]
    fn rounds_interleave_the_variants() {
        let bench = Bench::new(0);
        let plan = Plan::find("path-selection/table6").unwrap();
        bench.campaign().run(&plan, &mut |_| {}).unwrap();
        let order = bench.order.borrow();
        let lab: Vec<_> = (0..2)
            .flat_map(|round| (0..5).map(move |v| (round, v)))
            .collect();
        assert_eq!(order[..10], lab[..]);
        assert_eq!(order.len(), 10 + 2 * 3, "the simulator runs three variants");
    }

    #[test]
    fn plans_with_one_setup_share_one_measurement() {
        let bench = Bench::new(0);
        let mut campaign = bench.campaign();
        for id in [
            "path-selection/table6",
            "path-selection/figure7",
            "path-selection/figure8",
        ] {
            let report = campaign.run(&Plan::find(id).unwrap(), &mut |_| {}).unwrap();
            let directory = bench.directory.path().join(&report.directory);
            for file in &report.files {
                assert!(
                    directory.join(file).metadata().unwrap().len() > 0,
                    "{file} is empty"
                );
            }
            assert!(report.files.iter().any(|f| f.ends_with(".svg")));
            assert!(report.files.contains(&"messages.csv".to_owned()));
        }
        assert_eq!(bench.order.borrow().len(), 16);
    }

    #[test]
    fn rows_carry_value_interval_and_verdict() {
        let bench = Bench::new(0);
        let plan = Plan::find("path-selection/table6").unwrap();
        let report = bench.full_campaign().run(&plan, &mut |_| {}).unwrap();
        let mean = row(&report, "A3 mean keiro");
        assert_eq!(
            (mean.measured, mean.low, mean.high),
            (Some(10.0), Some(10.0), Some(10.0))
        );
        assert_eq!(
            (mean.paper, mean.floor, mean.unit),
            (Some(17.7), Some(10.0), "ms")
        );
        assert_eq!(mean.verdict, Verdict::Reached);
        assert_eq!(row(&report, "A5 mean keiro").verdict, Verdict::Missed);
        assert_eq!(row(&report, "A3 mean tcp").verdict, Verdict::Reported);
        assert_eq!(row(&report, "A3 mean keiro sim").verdict, Verdict::Reached);
        assert_eq!(row(&report, "undelivered mptcp").measured, Some(0.0));
        assert_eq!(row(&report, "A3 reduction keiro").measured, Some(0.0));
        let basis = report
            .basis
            .iter()
            .find(|b| b.name == "A3 mean keiro")
            .unwrap();
        assert_eq!(basis.batches, Some(12), "a run each");
        assert!(basis.floor_with_headers.unwrap() > 10.0);
    }

    #[test]
    fn quick_runs_are_not_judged() {
        let bench = Bench::new(1 + REPEATS_MAX);
        let plan = Plan::find("path-selection/table6").unwrap();
        let report = bench.campaign().run(&plan, &mut |_| {}).unwrap();
        // Half of each target: a full run misses one and reaches others.
        assert_eq!(row(&report, "A5 mean keiro").verdict, Verdict::Reported);
        assert_eq!(row(&report, "A3 mean keiro").verdict, Verdict::Reported);
        assert_eq!(row(&report, "A3 mean conventional").verdict, Verdict::Void);
        let targets = report.basis.iter().flat_map(|basis| &basis.targets);
        assert!(targets.clone().count() > 0 && targets.clone().all(|t| t.holds.is_none()));
        let note = report
            .manifest
            .notes
            .iter()
            .find(|note| note.contains("do not judge"));
        assert!(note.is_some(), "{:?}", report.manifest.notes);
    }

    #[test]
    fn the_plan_of_a_run_is_beside_its_results_and_repeats_it() {
        let bench = Bench::new(0);
        let plan = Plan::find("path-selection/table6").unwrap();
        let setting = "setup.quick.seed=99".parse().unwrap();
        let plan = plan.with(&[setting]).unwrap();
        let report = bench.campaign().run(&plan, &mut |_| {}).unwrap();
        assert_eq!(report.manifest.plan.set, ["setup.quick.seed=99"]);
        assert_eq!(report.manifest.extent.as_ref().unwrap().seeds[0], 99);
        let file = bench
            .directory
            .path()
            .join(&report.directory)
            .join(PLAN_FILE);
        let again = Plan::read(&file).unwrap();
        assert_eq!(again.setup, plan.setup);
        let report = bench.campaign().run(&again, &mut |_| {}).unwrap();
        assert_eq!(report.manifest.plan.file.as_deref(), Some(PLAN_FILE));
        assert!(
            report
                .manifest
                .notes
                .iter()
                .any(|n| n.contains("not the built-in one"))
        );
    }

    #[test]
    fn plans_whose_setups_differ_share_no_measurement() {
        let bench = Bench::new(0);
        let mut campaign = bench.campaign();
        let plan = Plan::find("path-selection/table6").unwrap();
        let other = plan.clone().with(&["setup.quick.seed=99".parse().unwrap()]);
        campaign.run(&plan, &mut |_| {}).unwrap();
        campaign.run(&other.unwrap(), &mut |_| {}).unwrap();
        assert_eq!(bench.order.borrow().len(), 2 * 16);
    }

    #[test]
    fn a_late_run_is_repeated_and_counted() {
        let bench = Bench::new(2);
        let plan = Plan::find("path-selection/figure7").unwrap();
        let report = bench.campaign().run(&plan, &mut |_| {}).unwrap();
        let first = &report.manifest.runs[0];
        assert_eq!(
            (first.variant.as_str(), first.void_repeats, first.void_runs),
            ("conventional", 2, 0)
        );
        assert_eq!(report.count(Verdict::Void), 0);
    }

    #[test]
    fn a_run_that_stays_late_voids_its_rows_only() {
        let bench = Bench::new(1 + REPEATS_MAX);
        let plan = Plan::find("path-selection/table6").unwrap();
        let report = bench.full_campaign().run(&plan, &mut |_| {}).unwrap();
        assert_eq!(report.manifest.runs[0].void_runs, 1);
        assert_eq!(row(&report, "A3 mean conventional").verdict, Verdict::Void);
        assert_eq!(
            row(&report, "A3 mean conventional sim").verdict,
            Verdict::Void
        );
        assert_eq!(row(&report, "A3 reduction keiro").verdict, Verdict::Void);
        assert_eq!(row(&report, "A3 mean keiro").verdict, Verdict::Reached);
        assert!(!report.is_reached());
    }

    #[test]
    fn without_a_laboratory_its_rows_are_left_out() {
        let bench = Bench::new(0);
        let mut campaign = bench.campaign();
        campaign.runners.messages.remove(0);
        let plan = Plan::find("path-selection/table6").unwrap();
        let report = campaign.run(&plan, &mut |_| {}).unwrap();
        assert!(report.rows.iter().all(|r| r.name != "A3 mean keiro"));
        // The only target of the simulator's mean is to agree with the laboratory's.
        assert_eq!(row(&report, "A3 mean keiro sim").verdict, Verdict::Reported);
    }

    #[test]
    fn progress_rises_to_one() {
        let bench = Bench::new(0);
        let plan = Plan::find("path-selection/table6").unwrap();
        let mut fractions = Vec::new();
        bench
            .campaign()
            .run(&plan, &mut |status| fractions.push(status.fraction))
            .unwrap();
        assert!(
            fractions.is_sorted() && *fractions.last().unwrap() <= 1.0,
            "{fractions:?}"
        );
    }

    #[test]
    fn predictions_need_no_runner() {
        let bench = Bench::new(0);
        let mut campaign = bench.campaign();
        campaign.runners.messages.clear();
        for id in ["path-selection/table4", "path-selection/table5"] {
            let report = campaign.run(&Plan::find(id).unwrap(), &mut |_| {}).unwrap();
            assert!(report.is_reached(), "{}", report.table());
        }
        let table6 = Plan::find("path-selection/table6").unwrap();
        assert!(campaign.run(&table6, &mut |_| {}).is_err());
    }

    #[test]
    fn an_unknown_variant_is_refused_with_the_known_ones() {
        let bench = Bench::new(0);
        let mut campaign = bench.campaign();
        campaign.options.variants = vec!["kiero".to_owned()];
        let plan = Plan::find("path-selection/table6").unwrap();
        let error = campaign.run(&plan, &mut |_| {}).unwrap_err().to_string();
        assert!(
            error.contains("`kiero`") && error.contains("paper-assignment"),
            "{error}"
        );
    }
}
