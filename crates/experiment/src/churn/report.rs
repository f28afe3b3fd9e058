//! Report of applications that come and go: rows, figure, messages.

use std::{collections::BTreeMap, fmt::Write as _, ops::Range};

use super::{Churn, ChurnOutcome, Measured};
use crate::{
    evaluate::{Basis, NamedDrawing, TargetResult},
    figure::{self, DrawError, TimeFigure, TimeLine, TimePanel, csv_text},
    manifest::{EmulatorsReport, RunsReport},
    row::{Row, Source, Verdict},
    stats,
};

/// A reported quantity of a policy; of one application, or of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quantity {
    Mean(usize),
    P99(usize),
    /// Share of messages within the latency target.
    Met(usize),
    MetOfAll,
    /// Applications that changed their path, first places excluded.
    Moves,
}

impl Quantity {
    fn all(churn: &Churn) -> Vec<Self> {
        let of_each = |app| [Self::Mean(app), Self::P99(app), Self::Met(app)];
        let mut all: Vec<Self> = (0..churn.applications.len()).flat_map(of_each).collect();
        all.extend([Self::MetOfAll, Self::Moves]);
        all
    }

    fn row(self, churn: &Churn, policy: usize) -> String {
        let policy = &churn.policies[policy].name;
        let app = |app: usize| &churn.applications[app].name;
        match self {
            Self::Mean(of) => format!("{} mean {policy}", app(of)),
            Self::P99(of) => format!("{} p99 {policy}", app(of)),
            Self::Met(of) => format!("{} met {policy}", app(of)),
            Self::MetOfAll => format!("met {policy}"),
            Self::Moves => format!("moves {policy}"),
        }
    }

    const fn unit(self) -> &'static str {
        match self {
            Self::Mean(_) | Self::P99(_) => "ms",
            Self::Met(_) | Self::MetOfAll => "%",
            Self::Moves => "moves",
        }
    }

    /// Its value in a run; `None` if a message that counts never arrived, or if there is none.
    fn value(self, churn: &Churn, run: &ChurnOutcome, counted: Range<f64>) -> Option<f64> {
        let messages = || run.messages.iter().filter(|m| counted.contains(&m.made_s));
        let delays = |app: usize| -> Option<Vec<f64>> {
            messages()
                .filter(|m| m.application == app)
                .map(|m| m.delay_ms)
                .collect()
        };
        let met = |of: Option<usize>| {
            let of = messages().filter(|m| of.is_none_or(|app| m.application == app));
            let (made, met) = of.fold((0.0, 0.0), |(made, met), message| {
                let target = churn.applications[message.application].latency_target.0;
                let in_time = message
                    .delay_ms
                    .is_some_and(|ms| ms <= target.as_secs_f64() * 1e3);
                (made + 1.0, met + f64::from(u8::from(in_time)))
            });
            (made > 0.0).then(|| met / made * 100.0)
        };
        match self {
            Self::Mean(app) => stats::mean(&delays(app)?),
            Self::P99(app) => stats::percentile(&stats::sorted(delays(app)?), 0.99),
            Self::Met(app) => met(Some(app)),
            Self::MetOfAll => met(None),
            Self::Moves => {
                let places = run.placed.iter().map(|placed| placed.application);
                let distinct: std::collections::BTreeSet<usize> = places.collect();
                Some((run.placed.len() - distinct.len()) as f64)
            }
        }
    }
}

/// All possible rows, with their units.
pub(super) fn names(churn: &Churn) -> Vec<(String, &'static str)> {
    let policies = 0..churn.policies.len();
    let of_policy = |policy| {
        let all = Quantity::all(churn).into_iter();
        all.map(move |quantity| (quantity.row(churn, policy), quantity.unit()))
    };
    policies.flat_map(of_policy).collect()
}

/// All rows of the policies that were run, and their basis.
pub(crate) fn rows(churn: &Churn, measured: &Measured) -> (Vec<Row>, Vec<Basis>) {
    let mut found = Vec::new();
    for (&policy, runs) in &measured.runs {
        for quantity in Quantity::all(churn) {
            let values = runs
                .iter()
                .map(|run| quantity.value(churn, run, measured.counted.clone()));
            let values: Option<Vec<f64>> = values.collect();
            found.push((
                quantity.row(churn, policy),
                quantity.unit(),
                values.unwrap_or_default(),
            ));
        }
    }
    let values: BTreeMap<String, f64> = found
        .iter()
        .filter_map(|(row, _, values)| Some((row.clone(), stats::mean(values)?)))
        .collect();
    let reported = |row: &str| found.iter().any(|(name, ..)| name == row);
    let judged = |(name, unit, by_run): &(String, &'static str, Vec<f64>)| {
        let of_row = churn.targets.iter().filter(|target| target.row == *name);
        let of_row = of_row.filter(|target| target.other().is_none_or(reported));
        let targets: Vec<TargetResult> = of_row
            .map(|target| TargetResult {
                target: target.text.clone(),
                // A value that is missing is a message that never arrived.
                holds: Some(target.holds(&values).unwrap_or(false)),
            })
            .collect();
        let mean = stats::mean(by_run);
        let interval = mean.and_then(|mean| stats::sections(mean, by_run));
        let row = Row {
            name: name.clone(),
            unit,
            paper: None,
            measured: mean,
            low: interval.map(|i| i.low),
            high: interval.map(|i| i.high),
            floor: None,
            verdict: Verdict::of(false, &targets),
        };
        let basis = Basis {
            name: name.clone(),
            samples: Some(by_run.len()),
            batches: Some(by_run.len()),
            floor_with_headers: None,
            targets,
        };
        (row, basis)
    };
    found.iter().map(judged).unzip()
}

/// Delay of each application relative to its latency target over time, and its path, by policy; the first run.
///
/// # Errors
/// See [`DrawError`].
pub(crate) fn drawings(
    churn: &Churn,
    measured: &Measured,
    quick: bool,
) -> Result<Vec<NamedDrawing>, DrawError> {
    let to_s = measured.counted.end;
    let mut panels = Vec::new();
    for (&policy, runs) in &measured.runs {
        if let Some(run) = runs.first() {
            let name = &churn.policies[policy].name;
            panels.push(delays(churn, run, name, to_s));
            panels.push(places(churn, run, name, to_s));
        }
    }
    if panels.is_empty() {
        return Ok(Vec::new());
    }
    let words = if quick {
        "; a quick run, not for publication"
    } else {
        ""
    };
    let figure = TimeFigure {
        title: "Delays of applications that come and go, and their paths".to_owned(),
        subtitle: format!(
            "simulator, the first run; means of {BIN_S} s relative to the latency target{words}"
        ),
        to_s,
        spans: Vec::new(),
        panels,
    };
    Ok(vec![("over-time".to_owned(), figure.draw()?)])
}

/// Mean delay in bins, in per cent of the latency target.
fn delays(churn: &Churn, run: &ChurnOutcome, policy: &str, to_s: f64) -> TimePanel {
    let line = |(app, application): (usize, &super::Application)| {
        let target_ms = application.latency_target.0.as_secs_f64() * 1e3;
        let bins = (to_s / BIN_S).ceil() as usize;
        let step = |bin: usize| {
            let (from, to) = (bin as f64 * BIN_S, (bin + 1) as f64 * BIN_S);
            let of_bin = run
                .messages
                .iter()
                .filter(|m| m.application == app && (from..to).contains(&m.made_s));
            let delays: Vec<f64> = of_bin
                .map(|m| m.delay_ms.unwrap_or(f64::INFINITY))
                .collect();
            (from, stats::mean(&delays).map(|ms| ms / target_ms * 100.0))
        };
        TimeLine {
            name: application.name.clone(),
            colour: figure::colour(app),
            steps: (0..bins).map(step).collect(),
        }
    };
    TimePanel {
        name: format!(
            "{policy}: mean delay in % of the latency target (logarithmic; above 1000 % drawn at 1000 %)"
        ),
        height: 130,
        range: (10.0, 1000.0),
        logarithmic: true,
        ticks: [10.0, 30.0, 100.0, 300.0, 1000.0]
            .map(|v| (v, format!("{v}")))
            .to_vec(),
        lines: churn.applications.iter().enumerate().map(line).collect(),
    }
}

/// The path of each application while it is there. Lines of one path lie beside each other.
fn places(churn: &Churn, run: &ChurnOutcome, policy: &str, to_s: f64) -> TimePanel {
    let beside = |app: usize| (app as f64 + 0.5) / churn.applications.len() as f64 * 0.6 - 0.3;
    let end = std::time::Duration::from_secs_f64(to_s);
    let line = |(app, application): (usize, &super::Application)| {
        let moves = run
            .placed
            .iter()
            .filter(|placed| placed.application == app)
            .map(|p| p.at_s);
        let changes = churn.changes(end).into_iter().map(|at| at.as_secs_f64());
        let mut times: Vec<f64> = moves.chain(changes).collect();
        times.sort_by(f64::total_cmp);
        let step = |at_s: f64| {
            let placed = run
                .placed
                .iter()
                .rfind(|p| p.application == app && p.at_s <= at_s);
            let is_there = application.is_active(std::time::Duration::from_secs_f64(at_s));
            let path = placed
                .filter(|_| is_there)
                .map(|p| p.path as f64 + beside(app));
            (at_s, path)
        };
        TimeLine {
            name: String::new(),
            colour: figure::colour(app),
            // The last value holds to the end.
            steps: times.into_iter().map(step).chain([(to_s, None)]).collect(),
        }
    };
    let paths = churn.paths.iter().enumerate();
    TimePanel {
        name: format!("{policy}: path of each application"),
        height: 30 * churn.paths.len() as i32,
        range: (-0.5, churn.paths.len() as f64 - 0.5),
        logarithmic: false,
        ticks: paths
            .map(|(path, of)| (path as f64, of.name.clone()))
            .collect(),
        lines: churn.applications.iter().enumerate().map(line).collect(),
    }
}

/// Ours: longer than the intervals of messages, and short beside the times that applications are there.
const BIN_S: f64 = 2.0;

/// One line per message.
pub(crate) fn messages_csv(churn: &Churn, measured: &Measured) -> String {
    let mut csv = "policy,round,application,made_s,delay_ms\n".to_owned();
    for (&policy, runs) in &measured.runs {
        let policy = csv_text(&churn.policies[policy].name);
        for (round, run) in runs.iter().enumerate() {
            for message in &run.messages {
                let app = csv_text(&churn.applications[message.application].name);
                let delay = message
                    .delay_ms
                    .map(|ms| format!("{ms:.6}"))
                    .unwrap_or_default();
                let _ = writeln!(csv, "{policy},{round},{app},{:.6},{delay}", message.made_s);
            }
        }
    }
    csv
}

/// Every policy's runs, for the manifest.
pub(crate) fn runs_reports(churn: &Churn, measured: &Measured) -> Vec<RunsReport> {
    let report = |(&policy, runs): (&usize, &Vec<ChurnOutcome>)| RunsReport {
        variant: churn.policies[policy].name.clone(),
        source: Source::Sim,
        runs: runs.len(),
        messages: runs.iter().map(|run| run.messages.len()).sum(),
        void_repeats: 0,
        void_runs: 0,
        emulator: EmulatorsReport::default(),
    };
    measured.runs.iter().map(report).collect()
}

/// Remarks for the reader.
pub(crate) fn notes(measured: &Measured) -> Vec<String> {
    let mut notes = vec![
        "A value is the mean of the runs' own values, with a 95 % interval by Student's t over the runs."
            .to_owned(),
    ];
    if measured.runs.is_empty() {
        notes.push("NOT MEASURED: only the simulator has it.".to_owned());
    }
    notes
}
