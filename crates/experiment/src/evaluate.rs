//! Turns a plan and a measurement into rows, their basis and figures.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::{
    figure::{
        self, Curve, Dot, DrawError, Drawing, EcdfFigure, Group, HistogramFigure, Mark,
        MeansFigure, Panel,
    },
    plan::{Figure, Plan, Shape},
    predict::{self, Floor, Predicted},
    record::Measurement,
    row::{Quantity, Row, RowName, Source, Target, Verdict},
    setup::Transport,
    stats::{self, Estimate, Histogram},
};

/// Evidence of a row: samples, floor and targets.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Basis {
    pub name: String,
    /// Number of messages; `None` for computed values.
    pub samples: Option<usize>,
    /// Number of batches behind the interval; `None` for computed values.
    pub batches: Option<usize>,
    /// Delay of an idle path with the transport's headers, in ms.
    pub floor_with_headers: Option<f64>,
    /// The row's targets.
    pub targets: Vec<TargetResult>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TargetResult {
    /// The target's text in the plan.
    pub target: String,
    /// Whether it is met; `None` if a value is missing or void.
    pub holds: Option<bool>,
}

impl Verdict {
    /// The verdict over `targets`; `is_void` if the row's measurement is void.
    pub(crate) fn of(is_void: bool, results: &[TargetResult]) -> Self {
        if is_void || results.iter().any(|one| one.holds.is_none()) {
            Self::Void
        } else if results.iter().any(|one| one.holds == Some(false)) {
            Self::Missed
        } else if results.is_empty() {
            Self::Reported
        } else {
            Self::Reached
        }
    }
}

/// A figure with its file name without extension.
pub type NamedDrawing = (String, Drawing);

/// Evaluates a plan. Leaves out rows whose variant was not run in their source, and targets that compare with
/// such rows.
pub fn rows(plan: &Plan, measurement: Option<&Measurement>, quick: bool) -> (Vec<Row>, Vec<Basis>) {
    let evaluation = Evaluation::new(plan, measurement, quick);
    plan.rows
        .iter()
        .filter(|name| evaluation.has(name))
        .map(|name| (evaluation.row(name), evaluation.basis(name)))
        .unzip()
}

/// Draws a plan's figures, one per source.
///
/// # Errors
/// See [`DrawError`].
pub fn figures(
    plan: &Plan,
    measurement: &Measurement,
    quick: bool,
) -> Result<Vec<NamedDrawing>, DrawError> {
    let evaluation = Evaluation::new(plan, Some(measurement), quick);
    let mut drawings = Vec::new();
    for source in [Source::Lab, Source::Sim] {
        for figure in &plan.figures {
            drawings.extend(evaluation.draw(figure, source)?);
        }
    }
    Ok(drawings)
}

struct Evaluation<'a> {
    plan: &'a Plan,
    measurement: Option<&'a Measurement>,
    quick: bool,
    predicted: Vec<Option<Predicted>>,
    floors: BTreeMap<(usize, usize), Floor>,
    estimates: BTreeMap<RowName, Option<Estimate>>,
    /// The values that targets are compared with: measured or computed, and not void.
    values: BTreeMap<RowName, f64>,
}

impl<'a> Evaluation<'a> {
    fn new(plan: &'a Plan, measurement: Option<&'a Measurement>, quick: bool) -> Self {
        let setup = &plan.setup;
        let variants: BTreeSet<usize> = plan.rows.iter().map(|r| r.variant).collect();
        let is_selected = |variant: usize| variants.contains(&variant);
        let predicted = (0..setup.variants.len())
            .map(|v| is_selected(v).then(|| predict::predict(setup, v)).flatten())
            .collect();
        let floors = variants
            .iter()
            .flat_map(|&v| (0..setup.applications.len()).map(move |a| (v, a)))
            .map(|(v, a)| ((v, a), predict::floor(setup, v, a)))
            .collect();
        let mut evaluation = Self {
            plan,
            measurement,
            quick,
            predicted,
            floors,
            estimates: BTreeMap::new(),
            values: BTreeMap::new(),
        };
        for name in &plan.rows {
            let estimate = evaluation.estimate(name);
            evaluation.estimates.insert(*name, estimate);
        }
        evaluation.values = plan
            .rows
            .iter()
            .filter(|name| !evaluation.is_void(name))
            .filter_map(|name| Some((*name, evaluation.value(name)?)))
            .collect();
        evaluation
    }

    /// Whether the row can exist: it is computed, or its variant was run in its source. If anything was
    /// measured, computed rows are limited to variants that were run.
    fn has(&self, name: &RowName) -> bool {
        match name.quantity {
            quantity if quantity.is_computed() => {
                let any = [Source::Lab, Source::Sim]
                    .into_iter()
                    .any(|source| self.was_run(source, name.variant));
                self.measurement.is_none() || any
            }
            Quantity::Reduction => {
                self.was_run(name.source, BASELINE) && self.was_run(name.source, name.variant)
            }
            _ => self.was_run(name.source, name.variant),
        }
    }

    fn was_run(&self, source: Source, variant: usize) -> bool {
        let runs = self.measurement.map(|m| m.runs(source, variant));
        runs.is_some_and(|runs| !runs.is_empty())
    }

    fn row(&self, name: &RowName) -> Row {
        let estimate = self.estimates.get(name).copied().flatten();
        let interval = estimate.and_then(|e| e.interval);
        let floor = self.floor(name).map(|floor| floor.bare_ms);
        Row {
            name: name.text(&self.plan.setup),
            unit: name.quantity.unit(),
            paper: self.plan.paper.get(name).copied(),
            measured: self.value(name).map(rounded),
            low: interval
                .map(|i| i.low)
                .filter(|low| low.is_finite())
                .map(rounded),
            high: interval
                .map(|i| i.high)
                .filter(|high| high.is_finite())
                .map(rounded),
            floor: floor.map(rounded),
            verdict: self.verdict(name),
        }
    }

    fn basis(&self, name: &RowName) -> Basis {
        let estimate = self.estimates.get(name).copied().flatten();
        let measured = estimate.filter(|_| !name.quantity.is_computed());
        Basis {
            name: name.text(&self.plan.setup),
            samples: measured.map(|e| e.samples),
            batches: measured.map(|e| e.batches),
            floor_with_headers: self.floor(name).map(|floor| rounded(floor.with_headers_ms)),
            targets: self
                .targets(name)
                .map(|target| TargetResult {
                    target: target.text.clone(),
                    holds: self.holds(target),
                })
                .collect(),
        }
    }

    fn verdict(&self, name: &RowName) -> Verdict {
        if self.is_void(name) {
            return Verdict::Void;
        }
        let mut verdict = Verdict::Reported;
        for target in self.targets(name) {
            match self.holds(target) {
                // One missed target decides, whatever the others are.
                Some(false) => return Verdict::Missed,
                None => verdict = Verdict::Void,
                Some(true) if verdict == Verdict::Reported => verdict = Verdict::Reached,
                Some(true) => {}
            }
        }
        verdict
    }

    /// The targets of a row that refer only to rows that can exist.
    fn targets(&self, name: &RowName) -> impl Iterator<Item = &Target> {
        let results =
            move |target: &&Target| target.row == *name && target.rows().all(|row| self.has(&row));
        self.plan.targets.iter().filter(results)
    }

    /// Whether a target is met. A value that is missing although its runs are valid counts as missed.
    fn holds(&self, target: &Target) -> Option<bool> {
        let holds = target.holds(&self.values, &self.plan.paper, &self.plan.setup);
        let lost = !self.is_void(&target.row) && self.value(&target.row).is_none();
        holds.or(lost.then_some(false))
    }

    fn is_variant_void(&self, source: Source, variant: usize) -> bool {
        self.measurement.is_some_and(|m| m.is_void(source, variant))
    }

    fn is_void(&self, name: &RowName) -> bool {
        match name.quantity {
            quantity if quantity.is_computed() => false,
            Quantity::Reduction => {
                self.is_variant_void(name.source, BASELINE)
                    || self.is_variant_void(name.source, name.variant)
            }
            _ => self.is_variant_void(name.source, name.variant),
        }
    }

    fn value(&self, name: &RowName) -> Option<f64> {
        let estimate = self.estimates.get(name).copied().flatten()?;
        estimate.value.is_finite().then_some(estimate.value)
    }

    fn floor(&self, name: &RowName) -> Option<&Floor> {
        let application = name.application?;
        let has_floor = name.quantity.unit() == "ms";
        self.floors
            .get(&(name.variant, application))
            .filter(|_| has_floor)
    }

    fn estimate(&self, name: &RowName) -> Option<Estimate> {
        if name.quantity.is_computed() {
            return self.computed(name);
        }
        let Some(application) = name.application else {
            return self.undelivered(name);
        };
        let batches = self.batches(name.source, name.variant, application)?;
        match name.quantity {
            Quantity::Mean => stats::mean_of_batches(&batches),
            Quantity::Percentile(p) => stats::percentile_of_batches(&batches, f64::from(p) / 100.0),
            Quantity::Met => {
                let latency_target = self.latency_target_ms(application);
                let met: Vec<Vec<bool>> = batches
                    .iter()
                    .map(|batch| batch.iter().map(|delay| *delay <= latency_target).collect())
                    .collect();
                stats::proportion_of_batches(&met).map(|share| scaled(share, 100.0))
            }
            Quantity::Reduction => {
                let before = self.batches(name.source, BASELINE, application)?;
                let change = stats::change_of_paired_batches(&before, &batches)?;
                Some(scaled(change, -100.0))
            }
            Quantity::Undelivered | Quantity::Predicted | Quantity::Eq3 | Quantity::Path => None,
        }
    }

    fn computed(&self, name: &RowName) -> Option<Estimate> {
        let predicted = self.predicted[name.variant].as_ref()?;
        let application = name.application?;
        let value = match name.quantity {
            Quantity::Predicted => predicted.mean_ms(application)?,
            Quantity::Eq3 => predicted.eq3_ms[application]?,
            _ => predicted.assignment[application] as f64 + 1.0,
        };
        Some(exact(value, 0))
    }

    fn undelivered(&self, name: &RowName) -> Option<Estimate> {
        let measurement = self.measurement?;
        let runs = measurement.runs(name.source, name.variant);
        let messages = runs.iter().map(|r| r.records.len()).sum();
        let lost = measurement.undelivered(name.source, name.variant);
        (!runs.is_empty()).then(|| exact(lost as f64, messages))
    }

    fn batches(&self, source: Source, variant: usize, application: usize) -> Option<Vec<Vec<f64>>> {
        let window = self.plan.setup.window(self.quick);
        Some(
            self.measurement?
                .batches(source, variant, application, &window),
        )
    }

    fn latency_target_ms(&self, application: usize) -> f64 {
        self.plan.setup.applications[application]
            .latency_target
            .0
            .as_secs_f64()
            * 1e3
    }

    fn draw(&self, figure: &Figure, source: Source) -> Result<Option<NamedDrawing>, DrawError> {
        let variants: Vec<usize> = figure
            .variants
            .iter()
            .copied()
            .filter(|&v| {
                self.measurement
                    .is_some_and(|m| !m.runs(source, v).is_empty())
            })
            .collect();
        if variants.is_empty() {
            return Ok(None);
        }
        let drawing = match (figure.shape, figure.application) {
            (Shape::Histogram, Some(application)) => {
                self.histogram(application, &variants, source).draw()?
            }
            (Shape::Ecdf, Some(application)) => self.ecdf(application, &variants, source).draw()?,
            _ => self.means(&variants, source).draw()?,
        };
        Ok(Some((self.file_name(figure, &variants, source), drawing)))
    }

    fn histogram(&self, application: usize, variants: &[usize], source: Source) -> HistogramFigure {
        let setup = &self.plan.setup;
        let panels = variants.iter().map(|&variant| {
            let delays = self.delays(source, variant, application);
            let mean = |source| RowName {
                application: Some(application),
                quantity: Quantity::Mean,
                variant,
                source,
            };
            Panel {
                name: setup.variants[variant].name.clone(),
                colour: figure::colour(variant),
                mean_ms: stats::mean(&delays).filter(|mean| mean.is_finite()),
                paper_mean_ms: self.plan.paper.get(&mean(Source::Lab)).copied(),
                histogram: Histogram::of(delays, BIN_MS, BINS_MAX),
            }
        });
        HistogramFigure {
            title: format!("Delays of {}", self.application_title(application)),
            subtitle: self.subtitle(source),
            panels: panels.collect(),
            latency_target_ms: self.latency_target_ms(application),
        }
    }

    fn ecdf(&self, application: usize, variants: &[usize], source: Source) -> EcdfFigure {
        let setup = &self.plan.setup;
        let curves = variants.iter().map(|&variant| {
            let delays = self.delays(source, variant, application);
            let mut steps = stats::ecdf(&stats::sorted(delays), ECDF_POINTS_MAX);
            steps.retain(|(delay, _)| delay.is_finite());
            Curve {
                name: setup.variants[variant].name.clone(),
                colour: figure::colour(variant),
                dashed: setup.variants[variant].transport != Transport::Gateway,
                steps,
            }
        });
        EcdfFigure {
            title: format!("Delays of {}", self.application_title(application)),
            subtitle: self.subtitle(source),
            curves: curves.collect(),
            share: "share of messages within that delay".to_owned(),
            mark: Mark {
                name: "latency_target".to_owned(),
                ms: self.latency_target_ms(application),
            },
        }
    }

    fn means(&self, variants: &[usize], source: Source) -> MeansFigure {
        let setup = &self.plan.setup;
        let dot = |application: usize, variant: usize| {
            let name = |source| RowName {
                application: Some(application),
                quantity: Quantity::Mean,
                variant,
                source,
            };
            let batches = self
                .batches(source, variant, application)
                .unwrap_or_default();
            let estimate = stats::mean_of_batches(&batches).filter(|e| e.value.is_finite());
            Dot {
                name: setup.variants[variant].name.clone(),
                colour: figure::colour(variant),
                mean_ms: estimate.map(|e| e.value),
                interval_ms: estimate.and_then(|e| e.interval).map(|i| (i.low, i.high)),
                paper_ms: self.plan.paper.get(&name(Source::Lab)).copied(),
                floor_ms: self.floor(&name(source)).map(|floor| floor.bare_ms),
            }
        };
        let groups = setup
            .applications
            .iter()
            .enumerate()
            .map(|(application, a)| Group {
                name: a.name.clone(),
                latency_target_ms: self.latency_target_ms(application),
                dots: variants
                    .iter()
                    .map(|&variant| dot(application, variant))
                    .collect(),
            });
        MeansFigure {
            title: self.plan.title.clone(),
            subtitle: self.subtitle(source),
            groups: groups.collect(),
        }
    }

    fn delays(&self, source: Source, variant: usize, application: usize) -> Vec<f64> {
        self.batches(source, variant, application)
            .unwrap_or_default()
            .concat()
    }

    fn application_title(&self, application: usize) -> String {
        let a = &self.plan.setup.applications[application];
        format!(
            "{}: {} every {}, wanted within {}",
            a.name, a.length, a.interval, a.latency_target
        )
    }

    fn subtitle(&self, source: Source) -> String {
        let extent = self.plan.setup.extent(self.quick);
        let place = match source {
            Source::Lab => "laboratory, real processes",
            Source::Sim => "simulator",
        };
        let minutes = extent.counted().as_secs_f64() / 60.0;
        let quick = if self.quick {
            "; a quick run, not for publication"
        } else {
            ""
        };
        format!("{place}; {minutes:.1} minutes of messages per variant{quick}")
    }

    fn file_name(&self, figure: &Figure, variants: &[usize], source: Source) -> String {
        let setup = &self.plan.setup;
        let shape = match figure.shape {
            Shape::Histogram => "histogram",
            Shape::Ecdf => "ecdf",
            Shape::Means => "means",
        };
        let application = figure
            .application
            .map(|a| setup.applications[a].name.as_str());
        let ids: String = variants
            .iter()
            .map(|&v| setup.variants[v].id.as_str())
            .collect();
        let source = (source == Source::Sim).then_some("sim");
        let words = [Some(shape), application, Some(ids.as_str()), source];
        words.into_iter().flatten().collect::<Vec<_>>().join("-")
    }
}

/// Reductions are against the setup's first variant.
const BASELINE: usize = 0;

/// The bins of [path-selection figs. 7, 8].
const BIN_MS: f64 = 5.0;

/// Greater delays are counted together: 150 ms keeps the bins wide enough to read.
const BINS_MAX: usize = 30;

/// A figure cannot show more steps than it has pixels.
const ECDF_POINTS_MAX: usize = 2000;

fn exact(value: f64, samples: usize) -> Estimate {
    Estimate {
        value,
        interval: None,
        samples,
        batches: 0,
    }
}

fn scaled(estimate: Estimate, factor: f64) -> Estimate {
    let interval = estimate.interval.map(|interval| {
        let (a, b) = (interval.low * factor, interval.high * factor);
        stats::Interval {
            low: a.min(b),
            high: a.max(b),
        }
    });
    Estimate {
        value: estimate.value * factor,
        interval,
        ..estimate
    }
}

/// Rounds to 0.1 µs, in ms; further digits are noise.
fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}
