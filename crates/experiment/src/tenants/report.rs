//! Report of a sharing experiment: rows, figures, files, notes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    ops::Range,
    time::Duration,
};

use super::{Case, Controller, HostsLike, Measured, Shape, Shared, Sharing, measure::SharingRun};
use crate::{
    evaluate::{Basis, NamedDrawing, TargetResult},
    figure::{
        self, DrawError, Level, LinesFigure, TimeFigure, TimeLine, TimePanel, ValueLine, csv_text,
    },
    manifest::{EmulatorsReport, RunsReport},
    row::{Row, Source, Verdict},
    stats::{self, Estimate},
};

/// F from which tenants count as converged; ours.
const SETTLED: f64 = 0.95;

/// A reported quantity of a case. Links and tenants by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quantity {
    /// Mean F over counted seconds.
    Index,
    IndexLow,
    /// Time from the last start or change until the mean F over runs stays above [`SETTLED`].
    Settled,
    /// Mean of Jain's index within tenants per second.
    Inside,
    /// Jain's index within tenants over all counted time.
    InsideWhole,
    /// Goodput of all tenants.
    Goodput,
    /// Goodput of a tenant relative to its weighted share of the total.
    Share(usize),
    /// Utilisation of a bottleneck.
    Used(usize),
    /// Smallest ratio of a bottleneck's utilisation to that without control.
    UsedOfNone,
    /// Mean queueing delay of a bottleneck.
    Queue(usize),
    /// Greatest ratio of a queueing delay to that without control.
    QueueOfNone,
    /// Packets dropped by a bottleneck.
    Dropped(usize),
}

/// With the link's number, if there are several.
fn name_of_link(name: &str, link: usize, links: usize) -> String {
    match links {
        1 => name.to_owned(),
        _ => format!("{name} {}", link + 1),
    }
}

impl Quantity {
    fn name(self, links: usize) -> String {
        match self {
            Self::Index => "F".to_owned(),
            Self::IndexLow => "F p5".to_owned(),
            Self::Settled => "settled".to_owned(),
            Self::Inside => "inside".to_owned(),
            Self::InsideWhole => "inside whole".to_owned(),
            Self::Goodput => "goodput".to_owned(),
            Self::Share(tenant) => format!("share {}", tenant + 1),
            Self::Used(link) => name_of_link("used", link, links),
            Self::UsedOfNone => "used of none".to_owned(),
            Self::Queue(link) => name_of_link("queue", link, links),
            Self::QueueOfNone => "queue of none".to_owned(),
            Self::Dropped(link) => name_of_link("dropped", link, links),
        }
    }

    const fn unit(self) -> &'static str {
        match self {
            Self::Index | Self::IndexLow | Self::Inside | Self::InsideWhole => "of 1",
            Self::Settled => "s",
            Self::Goodput => "Mbit/s",
            Self::Queue(_) => "ms",
            Self::Share(_)
            | Self::Used(_)
            | Self::UsedOfNone
            | Self::QueueOfNone
            | Self::Dropped(_) => "%",
        }
    }
}

fn quantities(sharing: &Sharing, case: Case) -> Vec<Quantity> {
    let setting = &sharing.settings[case.setting];
    let links = setting.bottlenecks.len();
    let mut all = vec![Quantity::Index, Quantity::IndexLow, Quantity::Settled];
    if setting.tenants.iter().any(|tenant| tenant.flows > 1) {
        all.extend([Quantity::Inside, Quantity::InsideWhole]);
    }
    all.push(Quantity::Goodput);
    let steady = |t: &super::Tenant| t.changes.is_empty() && t.active.is_empty();
    if setting.tenants.len() == 2 && setting.tenants.iter().all(steady) {
        all.extend([Quantity::Share(0), Quantity::Share(1)]);
    }
    all.extend((0..links).map(Quantity::Used));
    all.extend((0..links).map(Quantity::Queue));
    if sharing.uncontrolled(case).is_some_and(|none| none != case) {
        all.extend([Quantity::UsedOfNone, Quantity::QueueOfNone]);
    }
    all.extend((0..links).map(Quantity::Dropped));
    all
}

fn row_name(sharing: &Sharing, case: Case, quantity: Quantity) -> String {
    let links = sharing.settings[case.setting].bottlenecks.len();
    format!("{} {}", sharing.name(case), quantity.name(links))
}

/// All possible rows, with their units.
pub(super) fn names(sharing: &Sharing) -> Vec<(String, &'static str)> {
    let mut names = Vec::new();
    for case in sharing.cases() {
        let quantities = quantities(sharing, case).into_iter();
        names.extend(quantities.map(|q| (row_name(sharing, case, q), q.unit())));
    }
    names
}

/// All rows of the cases that were run, and their basis.
pub(crate) fn rows(sharing: &Sharing, measured: &Measured) -> (Vec<Row>, Vec<Basis>) {
    let mut reported: Vec<(String, Quantity, Option<Estimate>)> = Vec::new();
    for &case in measured.runs.keys() {
        let none = sharing.uncontrolled(case);
        let has_none = none.is_some_and(|none| measured.runs.contains_key(&none));
        for quantity in quantities(sharing, case) {
            // Rows that compare with a case that was not run are left out, like the case.
            if matches!(quantity, Quantity::UsedOfNone | Quantity::QueueOfNone) && !has_none {
                continue;
            }
            let estimate = estimate(sharing, measured, case, quantity);
            reported.push((row_name(sharing, case, quantity), quantity, estimate));
        }
    }
    let values: BTreeMap<String, f64> = reported
        .iter()
        .filter_map(|(name, _, estimate)| Some((name.clone(), estimate.as_ref()?.value)))
        .collect();
    let rows: BTreeSet<String> = reported.iter().map(|(name, ..)| name.clone()).collect();
    let row = |(name, quantity, estimate): (String, Quantity, Option<Estimate>)| {
        let of_row = sharing.targets.iter().filter(|target| target.row == name);
        let of_row = of_row.filter(|t| t.other().is_none_or(|other| rows.contains(other)));
        let targets: Vec<TargetResult> = of_row
            .map(|target| TargetResult {
                target: target.text.clone(),
                // A case that never converges has missed a target on its convergence time.
                holds: match (quantity, estimate.is_none()) {
                    (Quantity::Settled, true) => Some(false),
                    _ => target.holds(&values),
                },
            })
            .collect();
        let interval = estimate.and_then(|e| e.interval);
        let row = Row {
            name: name.clone(),
            unit: quantity.unit(),
            paper: sharing.paper.get(&name).copied(),
            measured: estimate.map(|e| e.value),
            low: interval.map(|i| i.low),
            high: interval.map(|i| i.high),
            floor: None,
            verdict: Verdict::of(false, &targets),
        };
        let basis = Basis {
            name,
            samples: Some(estimate.map_or(0, |e| e.samples)),
            batches: Some(estimate.map_or(0, |e| e.batches)),
            floor_with_headers: None,
            targets,
        };
        (row, basis)
    };
    reported.into_iter().map(row).unzip()
}

fn estimate(
    sharing: &Sharing,
    measured: &Measured,
    case: Case,
    quantity: Quantity,
) -> Option<Estimate> {
    let runs = measured.runs.get(&case)?;
    let counted = measured.counted.0..measured.counted.1;
    let by_run = |value: &dyn Fn(&Shared) -> f64| {
        let values: Vec<f64> = runs.iter().map(|run| value(&run.shared)).collect();
        of_runs(&values)
    };
    let of_none = |values: fn(&Shared) -> &[f64], of: fn(f64, f64) -> f64, begin: f64| {
        let none = measured.runs.get(&sharing.uncontrolled(case)?)?;
        let ratio = |(run, none): (&SharingRun, &SharingRun)| {
            let links = values(&run.shared).iter().zip(values(&none.shared));
            links.map(|(with, without)| with / without).fold(begin, of) * 100.0
        };
        of_runs(&runs.iter().zip(none).map(ratio).collect::<Vec<_>>())
    };
    match quantity {
        Quantity::Index => stats::mean_of_batches(&indices(runs, &counted)),
        Quantity::IndexLow => stats::percentile_of_batches(&indices(runs, &counted), 0.05),
        Quantity::Settled => settled(sharing, case, runs),
        Quantity::Inside => by_run(&|shared| shared.inside[0]),
        Quantity::InsideWhole => by_run(&|shared| shared.inside[1]),
        Quantity::Goodput => by_run(&|shared| {
            let tenants = shared.goodput.iter();
            tenants.map(|of| mean_of(of, &counted)).sum()
        }),
        Quantity::Share(tenant) => {
            let weights = sharing.settings[case.setting]
                .tenants
                .iter()
                .map(|t| t.weight);
            let weights: Vec<f64> = weights.collect();
            by_run(&|shared| {
                let got: Vec<f64> = shared
                    .goodput
                    .iter()
                    .map(|of| mean_of(of, &counted))
                    .collect();
                let due = got.iter().sum::<f64>() * weights[tenant] / weights.iter().sum::<f64>();
                got[tenant] / due * 100.0
            })
        }
        Quantity::Used(link) => by_run(&|shared| shared.used[link] * 100.0),
        Quantity::UsedOfNone => of_none(|shared| &shared.used, f64::min, f64::MAX),
        Quantity::Queue(link) => by_run(&|shared| shared.queue_ms[link]),
        Quantity::QueueOfNone => of_none(|shared| &shared.queue_ms, f64::max, 0.0),
        Quantity::Dropped(link) => by_run(&|shared| shared.dropped[link] * 100.0),
    }
}

fn of_runs(values: &[f64]) -> Option<Estimate> {
    let value = stats::mean(values)?;
    Some(Estimate {
        value,
        interval: stats::sections(value, values),
        samples: values.len(),
        batches: values.len(),
    })
}

fn mean_of(seconds: &[f64], counted: &Range<usize>) -> f64 {
    let counted = seconds.get(counted.clone()).unwrap_or_default();
    stats::mean(counted).unwrap_or(0.0)
}

/// F of every counted second that has one, by run.
fn indices(runs: &[SharingRun], counted: &Range<usize>) -> Vec<Vec<f64>> {
    let of_run = |run: &SharingRun| {
        let seconds = run.shared.index.get(counted.clone()).unwrap_or_default();
        seconds.iter().flatten().copied().collect()
    };
    runs.iter().map(of_run).collect()
}

/// F of a second, mean over runs.
fn index_at(runs: &[SharingRun], second: usize) -> Option<f64> {
    let values: Vec<f64> = runs
        .iter()
        .filter_map(|run| *run.shared.index.get(second)?)
        .collect();
    stats::mean(&values)
}

/// `None` if it never settled.
fn settled(sharing: &Sharing, case: Case, runs: &[SharingRun]) -> Option<Estimate> {
    let setting = &sharing.settings[case.setting];
    let end = runs.first()?.shared.index.len();
    let whole = Duration::from_secs(end as u64);
    let last = sharing.last_event(setting, whole).as_secs_f64().ceil() as usize;
    let low = |second: &usize| index_at(runs, *second).is_some_and(|f| f < SETTLED);
    let settled = (last..end).rfind(low).map_or(last, |second| second + 1);
    (settled < end).then(|| Estimate {
        value: (settled - last) as f64,
        interval: None,
        samples: runs.len(),
        batches: runs.len(),
    })
}

/// The figures of every setting and kind of hosts.
///
/// # Errors
/// See [`DrawError`].
pub(crate) fn drawings(
    sharing: &Sharing,
    measured: &Measured,
    quick: bool,
) -> Result<Vec<NamedDrawing>, DrawError> {
    let mut places: Vec<(String, Vec<Case>)> = Vec::new();
    for &case in measured.runs.keys() {
        if sharing.controls[case.control].hidden {
            continue;
        }
        let place = sharing.place(case);
        match places.iter_mut().find(|(known, _)| *known == place) {
            Some((_, cases)) => cases.push(case),
            None => places.push((place, vec![case])),
        }
    }
    let mut drawings = Vec::new();
    for (place, cases) in places {
        let runs = measured.runs[&cases[0]].len();
        let words = match quick {
            true => "; a quick run, not for publication",
            false => "",
        };
        let about = About {
            place: &place,
            subtitle: format!("simulator, mean of {runs} seeds{words}"),
        };
        let name = |kind: &str| {
            let suffix = place.replace(['=', ' '], "-");
            let dash = if suffix.is_empty() { "" } else { "-" };
            format!("{kind}{dash}{suffix}")
        };
        match sharing.figure {
            Shape::Index => {
                let drawn = index_figure(sharing, measured, &cases, &about).draw()?;
                drawings.push((name("index"), drawn));
            }
            Shape::Shares => {
                let drawn = shares_figure(sharing, measured, &cases, &about).draw()?;
                drawings.push((name("shares"), drawn));
            }
            Shape::Inside => {
                let drawn = inside_figure(sharing, measured, &cases, &about).draw()?;
                drawings.push((name("inside"), drawn));
            }
        }
    }
    Ok(drawings)
}

struct About<'a> {
    place: &'a str,
    subtitle: String,
}

impl About<'_> {
    fn title(&self, what: &str) -> String {
        match self.place {
            "" => what.to_owned(),
            place => format!("{what}: {place}"),
        }
    }
}

fn index_figure(
    sharing: &Sharing,
    measured: &Measured,
    cases: &[Case],
    about: &About<'_>,
) -> TimeFigure {
    TimeFigure {
        title: about.title("Weighted fairness index between tenants"),
        subtitle: format!("{}; bins of 1 s", about.subtitle),
        to_s: measured.counted.1 as f64,
        spans: Vec::new(),
        panels: vec![index_panel(sharing, measured, cases, 330)],
    }
}

fn index_panel(sharing: &Sharing, measured: &Measured, cases: &[Case], height: i32) -> TimePanel {
    let line = |(index, case): (usize, &Case)| TimeLine {
        name: sharing.controls[case.control].name.clone(),
        colour: line_colour(index),
        steps: index_steps(&measured.runs[case]),
    };
    TimePanel {
        name: "F".to_owned(),
        height,
        range: (0.4, 1.0),
        logarithmic: false,
        ticks: (4..=10)
            .map(|t| (f64::from(t) / 10.0, format!("{:.1}", f64::from(t) / 10.0)))
            .collect(),
        lines: cases.iter().enumerate().map(line).collect(),
    }
}

/// Colours repeat after the sixth.
fn line_colour(index: usize) -> plotters::style::RGBColor {
    match index {
        0..6 => figure::colour(index),
        6 => keiro_figure::INK,
        _ => keiro_figure::MARK,
    }
}

fn index_steps(runs: &[SharingRun]) -> Vec<(f64, Option<f64>)> {
    let seconds = 0..runs.first().map_or(0, |run| run.shared.index.len());
    seconds.map(|s| (s as f64, index_at(runs, s))).collect()
}

/// F of all controls, and goodput per weight of every tenant under each control.
fn shares_figure(
    sharing: &Sharing,
    measured: &Measured,
    cases: &[Case],
    about: &About<'_>,
) -> TimeFigure {
    let mut panels = vec![index_panel(sharing, measured, cases, 150)];
    let shares = |case: &Case| -> Vec<Vec<f64>> {
        let setting = &sharing.settings[case.setting];
        let runs = &measured.runs[case];
        let of_tenant = |(tenant, config): (usize, &super::Tenant)| {
            let of_second = |second: usize| {
                let values: Vec<f64> = runs
                    .iter()
                    .map(|r| r.shared.goodput[tenant][second])
                    .collect();
                let at = Duration::from_secs(second as u64);
                stats::mean(&values).unwrap_or(0.0) / config.weight_at(at)
            };
            (0..runs[0].shared.index.len()).map(of_second).collect()
        };
        setting.tenants.iter().enumerate().map(of_tenant).collect()
    };
    let all: Vec<Vec<Vec<f64>>> = cases.iter().map(shares).collect();
    let values = all.iter().flatten().flatten();
    let step = nice_step(values.copied().fold(0.0, f64::max) / 4.0);
    for (case, tenants) in cases.iter().zip(all) {
        let line = |(index, seconds): (usize, Vec<f64>)| TimeLine {
            name: format!("tenant {}", index + 1),
            colour: figure::colour(index),
            steps: (0..)
                .zip(seconds)
                .map(|(s, v)| (f64::from(s), Some(v)))
                .collect(),
        };
        panels.push(TimePanel {
            name: format!(
                "{}: goodput per weight (Mbit/s)",
                sharing.controls[case.control].name
            ),
            height: 110,
            range: (0.0, step * 4.0),
            logarithmic: false,
            ticks: (0..=4)
                .map(|t| (f64::from(t) * step, format!("{}", f64::from(t) * step)))
                .collect(),
            lines: tenants.into_iter().enumerate().map(line).collect(),
        });
    }
    TimeFigure {
        title: about.title("Tenants at one bottleneck"),
        subtitle: format!("{}; bins of 1 s", about.subtitle),
        to_s: measured.counted.1 as f64,
        spans: Vec::new(),
        panels,
    }
}

/// The next of 1, 2, 5, 10, … above a value.
fn nice_step(value: f64) -> f64 {
    let decade = 10f64.powf(value.max(1e-3).log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0];
    let factor = factors.into_iter().find(|f| f * decade >= value);
    factor.unwrap_or(10.0) * decade
}

fn inside_figure(
    sharing: &Sharing,
    measured: &Measured,
    cases: &[Case],
    about: &About<'_>,
) -> LinesFigure {
    let value = |case: Case| estimate(sharing, measured, case, Quantity::Inside);
    let mut decreases: Vec<f64> = Vec::new();
    let mut increases: Vec<f64> = Vec::new();
    for case in cases {
        if let Controller::I2vfc { a, b, .. } = sharing.controls[case.control].controller {
            increases.push(a);
            decreases.push(b);
        }
    }
    for values in [&mut decreases, &mut increases] {
        values.sort_by(f64::total_cmp);
        values.dedup();
    }
    let of = |a: f64, b: f64| {
        let is = |c: &&Case| match sharing.controls[c.control].controller {
            Controller::I2vfc { a: its, b: of, .. } => (its, of) == (a, b),
            _ => false,
        };
        let case = cases.iter().find(is)?;
        let estimate = value(*case)?;
        let interval = estimate.interval;
        Some((
            estimate.value,
            interval.map_or((estimate.value, estimate.value), |i| (i.low, i.high)),
        ))
    };
    let line = |(index, &a): (usize, &f64)| ValueLine {
        name: format!("i2vfc, a = {a}"),
        colour: figure::colour(index),
        values: decreases.iter().map(|&b| of(a, b)).collect(),
    };
    let others = cases.iter().filter_map(|case| {
        let control = &sharing.controls[case.control];
        let is_other = !matches!(control.controller, Controller::I2vfc { .. });
        Some((&control.name, value(*case).filter(|_| is_other)?.value))
    });
    let level = |(index, (name, value)): (usize, (&String, f64))| Level {
        name: name.clone(),
        colour: line_colour(increases.len() + index),
        value,
    };
    LinesFigure {
        title: about.title("Fairness inside tenants"),
        subtitle: format!(
            "{}; Jain's index in bins of 1 s, 95 % intervals",
            about.subtitle
        ),
        across: "b of tenant 1".to_owned(),
        categories: decreases.iter().map(|b| format!("{b}")).collect(),
        range: (0.8, 1.0),
        step: 0.05,
        lines: increases.iter().enumerate().map(line).collect(),
        levels: others.enumerate().map(level).collect(),
    }
}

/// F and the payload of every tenant, by run and second.
pub(crate) fn seconds_csv(sharing: &Sharing, measured: &Measured) -> String {
    let mut csv = "case,seed,second,F,tenant,goodput_mbit_s\n".to_owned();
    for (case, runs) in &measured.runs {
        let name = csv_text(&sharing.name(*case));
        for run in runs {
            for (second, index) in run.shared.index.iter().enumerate() {
                let index = index.map(|f| format!("{f:.6}")).unwrap_or_default();
                for (tenant, of) in (1..).zip(&run.shared.goodput) {
                    let _ = writeln!(
                        csv,
                        "{name},{},{second},{index},{tenant},{:.6}",
                        run.seed, of[second]
                    );
                }
            }
        }
    }
    csv
}

/// Every case's runs, for the manifest.
pub(crate) fn runs_reports(sharing: &Sharing, measured: &Measured) -> Vec<RunsReport> {
    let report = |(case, runs): (&Case, &Vec<SharingRun>)| RunsReport {
        variant: sharing.name(*case),
        source: Source::Sim,
        runs: runs.len(),
        messages: 0,
        void_repeats: 0,
        void_runs: 0,
        emulator: EmulatorsReport::default(),
    };
    measured.runs.iter().map(report).collect()
}

/// Remarks for the reader.
pub(crate) fn notes(sharing: &Sharing, measured: &Measured) -> Vec<String> {
    let mut notes = vec![
        "F is of what receivers' applications got in order, in bins of 1 s, over the tenants that \
         have something to send; mean and 5th percentile over all counted seconds of all seeds."
            .to_owned(),
        format!(
            "Settled: from the last start or change until F, mean over seeds, stays at {SETTLED} \
             or more; no value where it never does."
        ),
    ];
    for hosts in &sharing.hosts {
        let (control, least) = match hosts.like {
            HostsLike::Linux => ("CUBIC", "the round trip and 200ms"),
            HostsLike::Rfc => ("NewReno", "1s (RFC 6298)"),
        };
        let least = match (hosts.like, hosts.least_timeout) {
            (_, None) => least.to_owned(),
            (HostsLike::Linux, Some(least)) => format!("the round trip and {least:?}"),
            (HostsLike::Rfc, Some(least)) => format!("{least:?}"),
        };
        notes.push(format!(
            "Hosts `{}`: {control} with SACK; the least retransmission timeout is {least}.",
            hosts.name
        ));
    }
    if measured.runs.is_empty() {
        notes.push("NOT MEASURED: only the simulator has it.".to_owned());
    }
    notes
}
