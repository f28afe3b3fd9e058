//! `keiro-lab demo`: five applications over two paths, the conventional way and Keiro's.
//!
//! A shortened run of the experiment `path-selection/table6` with a live table; what is measured
//! and how is the experiment's.

use std::{
    io::{self, IsTerminal, Write},
    path::Path,
    time::{Duration, Instant},
};

use keiro_experiment::{
    campaign::{Campaign, Options, Status},
    laboratory::Laboratory,
    plan::{Figure, Plan, Shape},
    predict,
    report::Report,
    row::{RowName, Source},
    setup::Setup,
};

use super::experiment;
use crate::{
    args,
    failure::Failure,
    output::{
        self, Style,
        human::{self, NONE},
        table::{Cell, Table},
    },
};

const EXPERIMENT: &str = "path-selection/table6";
/// Before and after, by their names in the setup.
const VARIANTS: [&str; 2] = ["conventional", "keiro"];
/// The applications that the paper measured [path-selection table 6].
const SHOWN: [&str; 2] = ["A3", "A5"];

/// The gateway of the same applications and paths.
const EXAMPLE: &str = "packaging/examples/gateway-a.toml";

/// How often the live table is written again.
const REFRESH: Duration = Duration::from_millis(250);

pub(super) fn demo(args: &args::Demo) -> Result<(), Failure> {
    let in_lab = Laboratory::is_possible() && !args.simulate;
    let source = if in_lab { Source::Lab } else { Source::Sim };
    let plan = plan(source)?;
    introduce(&plan.setup, source, args.simulate)?;
    let only = if in_lab {
        args::Source::Lab
    } else {
        args::Source::Sim
    };
    let options = Options {
        quick: true,
        variants: VARIANTS.map(str::to_owned).to_vec(),
        results: args.output.clone(),
        version: keiro_terminal::VERSION,
    };
    let (runners, interrupts) = experiment::runners(Some(only), args.keiro.as_deref(), None)?;
    let mut campaign = Campaign::new(options, runners);
    let mut live = Live::new();
    let ran = campaign.run(&plan, &mut |status| live.show(status));
    let report = experiment::unless_interrupted(ran, interrupts.as_ref())?;
    live.end();
    output::text(conclusion(&plan, &report, source, args))
}

/// The experiment's plan with the rows and figures that are shown here.
fn plan(source: Source) -> Result<Plan, Failure> {
    let mut plan = Plan::find(EXPERIMENT)?;
    let setup = &plan.setup;
    let suffix = if source == Source::Sim { " sim" } else { "" };
    let mut rows = Vec::new();
    for app in &setup.applications {
        for variant in VARIANTS {
            for quantity in ["mean", "p99"] {
                rows.push(format!("{} {quantity} {variant}{suffix}", app.name));
            }
        }
    }
    rows.extend(VARIANTS.map(|variant| format!("undelivered {variant}{suffix}")));
    let parse = |row: &String| RowName::parse(row, setup);
    let rows: Result<Vec<RowName>, String> = rows.iter().map(parse).collect();
    let variants: Vec<usize> = VARIANTS
        .iter()
        .filter_map(|name| setup.variant(name))
        .collect();
    let figure = |shape, application| Figure {
        shape,
        application,
        variants: variants.clone(),
    };
    let mut figures = vec![figure(Shape::Means, None)];
    for app in SHOWN {
        figures.push(figure(Shape::Ecdf, setup.application(app)));
    }
    plan.rows = rows.map_err(Failure::new)?;
    plan.figures = figures;
    plan.targets.clear();
    Ok(plan)
}

fn introduce(setup: &Setup, source: Source, asked: bool) -> Result<(), Failure> {
    let mut text =
        "Five applications send messages over two paths, at random intervals:\n\n".to_owned();
    let mut table = Table::new(&["application", "message>", "every>", "target>"]);
    for app in &setup.applications {
        table.row([
            app.name.clone(),
            human::bytes(app.length.0.get()),
            human::duration(app.interval.0),
            human::duration(app.latency_target.0),
        ]);
    }
    text.push_str(&format!("{table}\n"));
    for path in &setup.paths {
        text.push_str(&format!(
            "{}: {}, {} one way\n",
            path.name,
            human::rate(path.bandwidth.0),
            human::duration(path.delay.0)
        ));
    }
    let extent = setup.extent(true);
    let wall = extent.duration.0.as_secs() * u64::from(extent.rounds) * VARIANTS.len() as u64;
    text.push_str(
        "\nFirst the conventional way, everything on the nearest path, first come first served;\n",
    );
    text.push_str(
        "then Keiro's: each application on the path that meets its latency target, most urgent first.\n",
    );
    text.push_str(&match source {
        Source::Lab => format!(
            "Two real gateways in network namespaces with emulated links, about {}. Ctrl-C removes them.\n\n",
            human::duration(Duration::from_secs(wall + wall / 5))
        ),
        Source::Sim if asked => "The protocol runs in the simulator, in virtual time.\n\n".to_owned(),
        Source::Sim => "This is not root, so the protocol runs in the simulator, in virtual time;\n\
            `sudo keiro-lab demo` runs real gateways in network namespaces.\n\n"
            .to_owned(),
    });
    output::text(text)
}

/// The table that is written again and again while messages travel.
struct Live {
    terminal: bool,
    style: Style,
    /// Lines on the terminal that the next table replaces.
    lines: usize,
    shown: Option<Instant>,
    run: Option<(usize, u32, u32)>,
    last: String,
}

impl Live {
    fn new() -> Self {
        Self {
            terminal: io::stdout().is_terminal(),
            style: Style::of_stdout(),
            lines: 0,
            shown: None,
            run: None,
            last: String::new(),
        }
    }

    fn show(&mut self, status: &Status<'_>) {
        let run = (status.variant, status.round, status.repeat);
        let new_run = self.run.replace(run) != Some(run);
        if new_run {
            // The last table of the run before stays.
            self.end();
        }
        self.last = running(status, self.style);
        let due = self.shown.is_none_or(|shown| shown.elapsed() >= REFRESH);
        if self.terminal && (due || new_run) {
            self.shown = Some(Instant::now());
            self.write();
        }
    }

    /// Writes the table over the one before. A terminal that cannot be written ends nothing.
    fn write(&mut self) {
        let mut out = io::stdout().lock();
        if self.lines > 0 {
            // Up, and clear to the end of the screen (ECMA-48 CUU, ED).
            let _ = write!(out, "\x1b[{}A\x1b[J", self.lines);
        }
        let _ = write!(out, "{}", self.last);
        let _ = out.flush();
        self.lines = self.last.lines().count();
    }

    /// Leaves the table of the run that has ended.
    fn end(&mut self) {
        if !self.last.is_empty() {
            self.write();
        }
        self.lines = 0;
        self.last.clear();
    }
}

fn running(status: &Status<'_>, style: Style) -> String {
    let setup = status.setup;
    let variant = &setup.variants[status.variant];
    let assignment = predict::assignment(setup, variant);
    let mut table = Table::new(&[
        "application",
        "path",
        "target>",
        "sent>",
        "arrived>",
        "mean>",
        "in time>",
        "met",
    ]);
    for (index, app) in setup.applications.iter().enumerate() {
        let arrived = status
            .run
            .applications
            .get(index)
            .copied()
            .unwrap_or_default();
        let path = assignment
            .as_ref()
            .and_then(|assignment| setup.paths.get(assignment[index]));
        let in_time = (arrived.received > 0).then(|| arrived.met as f64 / arrived.received as f64);
        table.row([
            Cell::from(app.name.as_str()),
            Cell::from(path.map_or(NONE, |path| path.name.as_str())),
            Cell::from(human::duration(app.latency_target.0)),
            Cell::from(arrived.made.to_string()),
            Cell::from(arrived.received.to_string()),
            Cell::from(in_time.map_or(NONE.to_owned(), |_| millis(arrived.mean_ms))),
            Cell::from(in_time.map_or(NONE.to_owned(), |share| format!("{:.1} %", share * 100.0))),
            // As latency targets are held against the 99th percentile.
            met(style, in_time.map(|share| share >= 0.99)),
        ]);
    }
    let again = match status.repeat {
        0 => String::new(),
        n => format!(" (repeat {n}: the emulator was late)"),
    };
    format!(
        "{}, round {}, {:.0} s{again}\n{table}\n",
        style.strong(&variant.name),
        status.round + 1,
        status.run.elapsed.as_secs_f64()
    )
}

fn conclusion(plan: &Plan, report: &Report, source: Source, args: &args::Demo) -> String {
    let style = Style::of_stdout();
    let results = Results {
        plan,
        report,
        suffix: if source == Source::Sim { " sim" } else { "" },
    };
    let (table, met_counts) = results.table(style);
    let of = plan.setup.applications.len();
    let mut text = format!(
        "{}\n\n{table}\n\
         Latency targets met at the 99th percentile: {} of {of} before, {} of {of} with Keiro. Means of the \
         paper's prototype\n(which gives A3 and A5 only) are from its table 6.\n",
        style.strong("Result"),
        met_counts[0],
        met_counts[1]
    );
    for run in report.manifest.runs.iter().filter(|run| run.void_runs > 0) {
        text.push_str(&format!(
            "{}: in {} runs the emulator was late because this machine was busy; they are not counted.\n",
            run.variant, run.void_runs
        ));
    }
    let directory = args.output.join(&report.directory);
    text.push_str("\nFigures:\n");
    for file in report.files.iter().filter(|file| file.ends_with(".svg")) {
        text.push_str(&format!("  {}\n", directory.join(file).display()));
    }
    text.push_str(&next_steps());
    text
}

/// The demonstration's rows, beside the paper's.
struct Results<'a> {
    plan: &'a Plan,
    report: &'a Report,
    /// Of the rows' names.
    suffix: &'a str,
}

impl Results<'_> {
    /// A row per application, and how many targets each variant meets at the 99th percentile.
    fn table(&self, style: Style) -> (Table, [usize; VARIANTS.len()]) {
        let mut table = Table::new(&[
            "application",
            "target>",
            "mean before>",
            "p99 before>",
            "met",
            "mean keiro>",
            "p99 keiro>",
            "met",
            "paper before>",
            "paper after>",
        ]);
        let mut met_counts = [0; VARIANTS.len()];
        for app in &self.plan.setup.applications {
            let name = &app.name;
            let latency_target_ms = app.latency_target.0.as_secs_f64() * 1e3;
            let mut cells = vec![
                Cell::from(name.as_str()),
                Cell::from(human::duration(app.latency_target.0)),
            ];
            for (variant, count) in VARIANTS.iter().zip(&mut met_counts) {
                let p99 = self.measured(&format!("{name} p99 {variant}"));
                let is_met = p99.map(|p99| p99 <= latency_target_ms);
                *count += usize::from(is_met == Some(true));
                cells.push(shown(self.measured(&format!("{name} mean {variant}"))));
                cells.push(shown(p99));
                cells.push(met(style, is_met));
            }
            for variant in VARIANTS {
                cells.push(Cell::from(self.paper(&format!("{name} mean {variant}"))));
            }
            table.row(cells);
        }
        (table, met_counts)
    }

    fn measured(&self, name: &str) -> Option<f64> {
        let name = format!("{name}{}", self.suffix);
        let row = self.report.rows.iter().find(|row| row.name == name)?;
        row.measured
    }

    fn paper(&self, name: &str) -> String {
        let name = RowName::parse(name, &self.plan.setup).ok();
        name.and_then(|name| self.plan.paper.get(&name))
            .map_or(NONE.to_owned(), |ms| millis(*ms))
    }
}

/// Commands to go on with.
fn next_steps() -> String {
    // By the name with which it was started, since it may not be installed.
    let keiro_lab = std::env::args()
        .next()
        .unwrap_or_else(|| "keiro-lab".to_owned());
    let keiro = match keiro_lab.strip_suffix("-lab") {
        Some(beside) if Path::new(beside).exists() => beside,
        _ => "keiro",
    };
    let mut steps = vec![(
        format!("{keiro_lab} experiment run {EXPERIMENT}"),
        "the whole table with intervals, TCP and MPTCP beside it",
    )];
    // In the source tree only.
    if Path::new(EXAMPLE).exists() {
        steps.push((
            format!("{keiro} plan --config {EXAMPLE}"),
            "why each application goes where",
        ));
    }
    steps.push((
        format!("{keiro} init"),
        "a first configuration for this machine",
    ));
    let mut text = "\nNext:\n".to_owned();
    for (command, what) in steps {
        text.push_str(&format!("  {command}\n      {what}\n"));
    }
    text
}

fn met(style: Style, met: Option<bool>) -> Cell {
    match met {
        Some(true) => Cell::marked("yes", style.good("yes")),
        Some(false) => Cell::marked("NO", style.bad("NO")),
        None => Cell::from(NONE),
    }
}

fn shown(ms: Option<f64>) -> Cell {
    Cell::from(ms.map_or(NONE.to_owned(), millis))
}

fn millis(ms: f64) -> String {
    match ms.is_finite() {
        true => human::millis(Duration::from_secs_f64(ms.max(0.0) / 1e3)),
        false => "never".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_has_rows_and_figures_of_both_ways() {
        for source in [Source::Lab, Source::Sim] {
            let plan = plan(source).expect("a plan");
            assert_eq!(plan.rows.len(), 5 * 2 * 2 + 2);
            assert!(plan.rows.iter().all(|row| row.source == source));
            assert_eq!(plan.figures.len(), 3);
            assert!(
                plan.figures
                    .iter()
                    .all(|figure| figure.variants.len() == VARIANTS.len())
            );
        }
    }
}
