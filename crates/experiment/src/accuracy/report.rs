//! Report of the comparison of forecasts with measurements: rows and the figure.

use super::{Comparison, relative_width};
use crate::{
    evaluate::{Basis, NamedDrawing, TargetResult},
    figure::{self, DrawError, ErrorCurve, ErrorPanel, ErrorsFigure},
    plan::Accuracy,
    row::{Row, Source, Verdict},
    stats::{self, Estimate},
};

/// The names of the statistics, in the order of `STATISTICS`.
const NAMES: [&str; 4] = ["mean", "p50", "p95", "p99"];

const MEAN: usize = 0;
const P99: usize = 3;

/// Requirements on the measurement itself, see `docs/experiments.md`.
const WORKLOADS_MIN: f64 = 20.0;
const LABORATORY_WORKLOADS_MIN: f64 = 3.0;
const INTERVAL_MAX_PERCENT: f64 = 10.0;

/// Rows and their basis, for every source and scheduler that was measured.
pub(crate) fn rows(
    comparisons: &[Comparison],
    accuracy: &Accuracy,
    quick: bool,
) -> (Vec<Row>, Vec<Basis>) {
    let mut rows = Vec::new();
    for source in [Source::Lab, Source::Sim] {
        let of_source: Vec<&Comparison> =
            comparisons.iter().filter(|c| c.source == source).collect();
        let mut schedulers: Vec<&str> = of_source.iter().map(|c| c.scheduler.as_str()).collect();
        schedulers.sort_unstable();
        schedulers.dedup();
        for scheduler in schedulers.into_iter().rev() {
            let of_scheduler = of_source.iter().copied();
            let compared = of_scheduler
                .filter(|c| c.scheduler == scheduler)
                .collect::<Vec<_>>();
            let group = Group {
                compared,
                source,
                scheduler,
                quick,
            };
            group.add_rows(accuracy, &mut rows);
        }
    }
    rows.into_iter().unzip()
}

/// The figure of the errors' distribution, one per source.
///
/// # Errors
/// See [`DrawError`].
pub(crate) fn drawings(
    comparisons: &[Comparison],
    accuracy: &Accuracy,
    quick: bool,
) -> Result<Vec<NamedDrawing>, DrawError> {
    let mut drawings = Vec::new();
    for (source, suffix, place) in [
        (Source::Lab, "", "laboratory, real processes"),
        (Source::Sim, "-sim", "simulator"),
    ] {
        let compared: Vec<&Comparison> =
            comparisons.iter().filter(|c| c.source == source).collect();
        if compared.is_empty() {
            continue;
        }
        let quick = match quick {
            true => "; a quick run, not for publication",
            false => "",
        };
        let figure = ErrorsFigure {
            title: "Errors of forecast delays over random workloads".to_owned(),
            subtitle: format!(
                "{place}; {} applications of {} workloads, every application once per scheduler{quick}",
                compared.len() / 2,
                workloads(&compared),
            ),
            panels: [(MEAN, accuracy.bounds.mean), (P99, accuracy.bounds.p99)]
                .map(|(statistic, bound)| panel(&compared, statistic, bound))
                .to_vec(),
        };
        drawings.push((format!("errors{suffix}"), figure.draw()?));
    }
    Ok(drawings)
}

/// All comparisons of one source and one scheduler.
struct Group<'a> {
    compared: Vec<&'a Comparison>,
    source: Source,
    scheduler: &'a str,
    quick: bool,
}

impl Group<'_> {
    fn add_rows(&self, accuracy: &Accuracy, rows: &mut Vec<(Row, Basis)>) {
        let bound_of = |statistic| match statistic {
            MEAN => Some(accuracy.bounds.mean),
            P99 => Some(accuracy.bounds.p99),
            _ => None,
        };
        for (statistic, name) in NAMES.into_iter().enumerate() {
            let errors = self.errors(|c| error_of(c, statistic));
            let bound = bound_of(statistic);
            self.add_errors(name, &errors, bound, true, rows);
        }
        let eq3 = self.errors(eq3_error_of);
        self.add_errors("eq3", &eq3, Some(accuracy.bounds.mean), false, rows);
        let widest = |p99: &dyn Fn(&Comparison) -> Estimate| {
            let widths = self
                .compared
                .iter()
                .map(|c| relative_width(&p99(c)) * 100.0);
            widths.reduce(f64::max)
        };
        let narrow = (self.source == Source::Sim && !self.quick).then_some(INTERVAL_MAX_PERCENT);
        let narrow = narrow.map(AtMost);
        let measured = widest(&|c| c.measured[P99]);
        rows.push(self.row("p99 interval widest", "%", measured, narrow));
        let run = widest(&|c| c.run[P99]);
        rows.push(self.row("p99 interval widest by the runs alone", "%", run, None));
        let least = match self.source {
            Source::Lab => LABORATORY_WORKLOADS_MIN,
            Source::Sim => WORKLOADS_MIN,
        };
        let count = workloads(&self.compared) as f64;
        let least = (!self.quick).then_some(AtLeast(least));
        rows.push(self.row("workloads", "workloads", Some(count), least));
        let applications = self.compared.len() as f64;
        rows.push(self.row("applications", "applications", Some(applications), None));
    }

    /// The median, the greatest error, and the share of forecasts within the bound.
    fn add_errors(
        &self,
        name: &str,
        errors: &[f64],
        bound: Option<f64>,
        has_target: bool,
        rows: &mut Vec<(Row, Basis)>,
    ) {
        let sorted = stats::sorted(errors.iter().map(|error| error.abs()));
        let median = stats::percentile(&sorted, 0.5);
        rows.push(self.row(&format!("{name} error median"), "%", median, None));
        let target = bound.filter(|_| has_target).map(AtMost);
        let worst = sorted.last().copied();
        rows.push(self.row(&format!("{name} error worst"), "%", worst, target));
        if let Some(bound) = bound {
            let within = sorted.iter().filter(|error| **error <= bound).count();
            let share = 100.0 * within as f64 / sorted.len().max(1) as f64;
            let name = format!("{name} error within {bound} %");
            rows.push(self.row(&name, "%", Some(share), None));
        }
    }

    /// In percent of the measured value, signed; infinite without a forecast.
    fn errors(&self, error: impl Fn(&Comparison) -> f64) -> Vec<f64> {
        self.compared.iter().map(|c| error(c)).collect()
    }

    fn row(
        &self,
        what: &str,
        unit: &'static str,
        value: Option<f64>,
        bound: Option<Bound>,
    ) -> (Row, Basis) {
        let suffix = match self.source {
            Source::Lab => "",
            Source::Sim => " sim",
        };
        let name = format!("{what} {}{suffix}", self.scheduler);
        let void = self.compared.iter().any(|c| c.void);
        let holds = bound.map(|bound| value.is_some_and(|value| bound.holds(value)));
        let verdict = match holds {
            _ if void => Verdict::Void,
            None => Verdict::Reported,
            Some(true) => Verdict::Reached,
            Some(false) => Verdict::Missed,
        };
        let targets = bound.map(|bound| TargetResult {
            target: format!("{name} {} {unit}", bound.text()),
            holds: holds.filter(|_| !void),
        });
        let basis = Basis {
            name: name.clone(),
            samples: Some(self.compared.len()),
            batches: None,
            floor_with_headers: None,
            targets: targets.into_iter().collect(),
        };
        let measured = value
            .filter(|value| value.is_finite())
            .map(|value| (value * 100.0).round() / 100.0);
        let row = Row {
            name,
            unit,
            paper: None,
            measured,
            low: None,
            high: None,
            floor: None,
            verdict,
        };
        (row, basis)
    }
}

#[derive(Clone, Copy)]
enum Bound {
    AtMost(f64),
    AtLeast(f64),
}
use Bound::{AtLeast, AtMost};

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            AtMost(bound) => value <= bound,
            AtLeast(bound) => value >= bound,
        }
    }

    fn text(self) -> String {
        match self {
            AtMost(bound) => format!("<= {bound}"),
            AtLeast(bound) => format!(">= {bound}"),
        }
    }
}

fn workloads(compared: &[&Comparison]) -> usize {
    let mut workloads: Vec<usize> = compared.iter().map(|c| c.workload).collect();
    workloads.sort_unstable();
    workloads.dedup();
    workloads.len()
}

fn percent(forecast: Option<f64>, measured: f64) -> f64 {
    match forecast {
        Some(forecast) if measured > 0.0 => (forecast / measured - 1.0) * 100.0,
        _ => f64::INFINITY,
    }
}

fn error_of(comparison: &Comparison, statistic: usize) -> f64 {
    percent(
        comparison.forecast[statistic],
        comparison.measured[statistic].value,
    )
}

/// Equation 3 gives only means and does not depend on the scheduler.
fn eq3_error_of(comparison: &Comparison) -> f64 {
    percent(comparison.eq3, comparison.measured[MEAN].value)
}

fn panel(compared: &[&Comparison], statistic: usize, bound: f64) -> ErrorPanel {
    let mut curves = Vec::new();
    for (index, scheduler) in ["fifo", "deadline"].into_iter().enumerate() {
        let of_scheduler: Vec<&&Comparison> = compared
            .iter()
            .filter(|c| c.scheduler == scheduler)
            .collect();
        let errors = |error: &dyn Fn(&Comparison) -> f64| {
            stats::sorted(of_scheduler.iter().map(|c| error(c).abs()))
        };
        if of_scheduler.is_empty() {
            continue;
        }
        curves.push(ErrorCurve {
            name: format!("{scheduler}, Keiro's forecast"),
            colour: figure::colour(index * 2),
            dashed: false,
            errors: errors(&|c| error_of(c, statistic)),
        });
        if statistic == MEAN {
            curves.push(ErrorCurve {
                name: format!("{scheduler}, eq. 3"),
                colour: figure::colour(index * 2),
                dashed: true,
                errors: errors(&eq3_error_of),
            });
        }
    }
    ErrorPanel {
        name: match statistic {
            MEAN => "mean delay".to_owned(),
            _ => "99th percentile".to_owned(),
        },
        bound_percent: bound,
        curves,
    }
}
