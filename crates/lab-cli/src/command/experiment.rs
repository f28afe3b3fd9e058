//! `keiro-lab experiment`: a paper's tables and figures, measured here.

use std::{
    io::{self, IsTerminal},
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use keiro_experiment::{
    campaign::{Campaign, Options, Runners, Status},
    laboratory::{Laboratory, Programs},
    plan::{Kind, Plan},
    report::Report,
    row::{self, Verdict},
};
use keiro_lab::Interrupts;
use serde::Serialize;

use super::Outcome;
use crate::{
    args,
    failure::Failure,
    keiro,
    output::{self, table::Table},
};

/// A target is missed, or a measurement does not count.
const MISSED: u8 = 2;

/// Work that takes less shows no progress.
const PROGRESS_AFTER: Duration = Duration::from_secs(2);

pub(super) fn experiment(args: &args::Experiment) -> Outcome {
    match args {
        args::Experiment::List { json } => list(*json),
        args::Experiment::Run(args) => run(args),
        args::Experiment::Show(args) => show(args),
    }
}

fn show(args: &args::ExperimentShow) -> Outcome {
    let source = &args.plan;
    let plan = match (&source.plan, &source.id) {
        (Some(file), _) => Plan::read(file)?,
        (None, id) => built_in(id.as_deref().unwrap_or_default())?,
    };
    let plan = plan.with(&source.set)?;
    let shown = match args.json {
        true => output::json(&plan.written.document()),
        false => output::text(&plan.written.text),
    };
    output::allow_closed_reader(shown)?;
    Ok(ExitCode::SUCCESS)
}

/// The plan of this name, unless the source tree around has another one.
fn built_in(id: &str) -> Result<Plan, Failure> {
    let plan = Plan::find(id)?;
    if let Ok(directory) = std::env::current_dir() {
        plan.check_edits(&directory)?;
    }
    Ok(plan)
}

/// The plans that are to be run, with the values of the command line.
fn plans(args: &args::ExperimentRun) -> Result<Vec<Plan>, Failure> {
    let ids = match args.all {
        true => Plan::all()?.into_iter().map(|plan| plan.id).collect(),
        false => args.ids.clone(),
    };
    let mut plans = Vec::new();
    for id in &ids {
        plans.push(built_in(id)?);
    }
    for file in &args.plan {
        plans.push(Plan::read(file)?);
    }
    let from_environment = || std::env::var_os("KEIRO_TRACES").map(PathBuf::from);
    let traces = args.traces.clone().or_else(from_environment);
    let mut varied = Vec::new();
    for mut plan in plans {
        plan = plan.with(&args.set)?;
        if let Some(time) = args.run_time {
            plan = plan.with_run_time(time.0)?;
        }
        if let Some(repeats) = args.pause_repeats {
            plan = plan.with_pause_repeats(repeats)?;
        }
        if let Some(directory) = &traces {
            plan = plan.with_traces(directory.clone());
        }
        varied.push(plan);
    }
    Ok(varied)
}

#[derive(Serialize)]
struct Listed {
    id: String,
    title: String,
    source: String,
    kind: &'static str,
}

fn list(json: bool) -> Outcome {
    let plans = Plan::all()?;
    let listed = plans.into_iter().map(|plan| Listed {
        kind: match plan.kind {
            Kind::Prediction => "computed",
            Kind::Measurement => "measured",
        },
        id: plan.id,
        title: plan.title,
        source: plan.source,
    });
    let listed: Vec<Listed> = listed.collect();
    if json {
        output::json(&listed)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["experiment", "", "source", "title"]);
    for one in &listed {
        table.row([one.id.as_str(), one.kind, &one.source, &one.title]);
    }
    output::text(table)?;
    Ok(ExitCode::SUCCESS)
}

fn run(args: &args::ExperimentRun) -> Outcome {
    let plans = plans(args)?;
    let measures = plans.iter().any(|plan| plan.kind == Kind::Measurement);
    let (runners, interrupts) = match measures {
        true => runners(args.only, args.keiro.as_deref(), args.peers.clone())?,
        false => (Runners::default(), None),
    };
    let options = Options {
        quick: args.quick,
        variants: args.variant.clone(),
        results: args.output.clone(),
        version: keiro_terminal::VERSION,
    };
    let mut campaign = Campaign::new(options, runners);
    let mut reports = Vec::new();
    for plan in &plans {
        let mut waiting = Waiting::new();
        let ran = campaign.run(plan, &mut |status| waiting.show(status));
        let report = unless_interrupted(ran, interrupts.as_ref())?;
        waiting.end();
        if !args.json {
            output::allow_closed_reader(output::text(text(&report, args)))?;
        }
        reports.push(report);
    }
    let shown = match reports.as_slice() {
        _ if !args.json => Ok(()),
        [report] if !args.all => output::json(report),
        reports => output::json(&reports),
    };
    output::allow_closed_reader(shown)?;
    Ok(match reports.iter().all(Report::is_reached) {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(MISSED),
    })
}

/// What came of measuring; ends this process as a signal does if one took the laboratory away.
pub(super) fn unless_interrupted<T>(
    ran: anyhow::Result<T>,
    interrupts: Option<&Interrupts>,
) -> Result<T, Failure> {
    if let (Err(_), Some(interrupts)) = (&ran, interrupts) {
        interrupts.end_if_received();
    }
    ran.map_err(Failure::from_anyhow)
}

/// What can measure here, and the signals that end it; says what is left out.
pub(super) fn runners(
    only: Option<args::Source>,
    keiro: Option<&Path>,
    peers: Option<PathBuf>,
) -> Result<(Runners<'static>, Option<Interrupts>), Failure> {
    let mut runners = Runners::default();
    let mut interrupts = None;
    if only != Some(args::Source::Sim) {
        if Laboratory::is_possible() {
            let programs = Programs {
                keiro: keiro::find(keiro)?,
                keiro_lab: std::env::current_exe()
                    .map_err(|e| Failure::new("cannot find this program's own file").because(e))?,
            };
            // The first signal removes the laboratory and ends this process.
            let installed = Interrupts::install(Duration::ZERO)
                .map_err(|e| Failure::new("cannot watch for signals").because(e))?;
            let laboratory = Laboratory::new(programs, Some(installed.clone())).with_peers(peers);
            interrupts = Some(installed);
            runners = runners.with_laboratory(&laboratory);
        } else if only.is_some() {
            return Err(keiro_lab::LabError::NotRoot.into());
        } else {
            output::message!(
                "keiro-lab: not root, so only the simulator measures, and what the laboratory would measure is left out"
            );
        }
    }
    if only != Some(args::Source::Lab) {
        runners = runners.with_simulator();
    }
    Ok((runners, interrupts))
}

fn text(report: &Report, args: &args::ExperimentRun) -> String {
    let count = |verdict| report.count(verdict);
    let mut text = format!(
        "{} {}: {}\n\n{}\n",
        report.id,
        report.source,
        report.title,
        report.table()
    );
    text.push_str(&format!(
        "{} reached, {} missed, {} void, {} reported",
        count(Verdict::Reached),
        count(Verdict::Missed),
        count(Verdict::Void),
        count(Verdict::Reported)
    ));
    if args.quick && report.manifest.extent.is_some() {
        text.push_str(
            "; a quick run, not for publication and not judged by the targets of full runs",
        );
    }
    text.push('\n');
    for note in &report.manifest.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    text.push_str(&format!(
        "files: {}\n",
        args.output.join(&report.directory).display()
    ));
    text
}

/// Where a measurement stands, on standard error: a bar on a terminal, else a line per run.
struct Waiting {
    started: Instant,
    bar: Option<ProgressBar>,
    last: Option<(row::Source, usize, u32, u32)>,
}

impl Waiting {
    fn new() -> Self {
        Self {
            started: Instant::now(),
            bar: None,
            last: None,
        }
    }

    fn show(&mut self, status: &Status<'_>) {
        if !io::stderr().is_terminal() {
            let now = (status.source, status.variant, status.round, status.repeat);
            if self.last.replace(now) != Some(now) {
                output::message!("{:3.0} % {}", status.fraction * 100.0, doing(status));
            }
            return;
        }
        if self.bar.is_none() && self.started.elapsed() > PROGRESS_AFTER {
            let style = ProgressStyle::with_template("{bar:30} {percent:>3} % {msg}, {eta} left")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            self.bar = Some(ProgressBar::new(BAR_STEPS).with_style(style));
        }
        if let Some(bar) = &self.bar {
            bar.set_position((status.fraction * BAR_STEPS as f64) as u64);
            bar.set_message(doing(status));
        }
    }

    fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

const BAR_STEPS: u64 = 10_000;

fn doing(status: &Status<'_>) -> String {
    let place = match status.source {
        row::Source::Lab => "laboratory",
        row::Source::Sim => "simulator",
    };
    let again = match status.repeat {
        0 => String::new(),
        n => format!(", repeat {n}: the run before was disturbed"),
    };
    format!(
        "{place}, {}, round {}{again}",
        status.setup.variants[status.variant].name,
        status.round + 1
    )
}
