//! Plans: the rows and figures of an experiment, and their targets.
//!
//! A plan is `experiments/<id>/plan.toml`. The plans of this repository are compiled in, so that an installed
//! `keiro-lab` has them. `docs/experiments.md` describes their format.

use std::{collections::BTreeMap, time::Duration};

use keiro_control::units::Text;
use serde::{Deserialize, de::DeserializeOwned};

use crate::{
    campaign::REPEATS_MAX,
    churn::{Churn, ChurnFile},
    error::PlanError,
    parameters::{Study, StudyFile},
    recorded::{Recorded, RecordedFile},
    row::{self, RowName, Target},
    setup::{Setup, nearest},
    subject::Subject,
    tenants::{Sharing, SharingFile},
    transactions::{Transactions, TransactionsFile},
    transfers::{NetworksFile, Transfers, TransfersFile},
    trials::{self, Trials, TrialsFile},
    vary::{self, Written},
    workload::Workloads,
};

/// An experiment: one table or figure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its name, such as `path-selection/table6`.
    pub id: String,
    /// Title in one line.
    pub title: String,
    /// Location of the values in the paper, such as `[path-selection table 6]`.
    pub source: String,
    /// Whether the plan measures or only computes.
    pub kind: Kind,
    /// What is measured or computed. If the subject is not messages: its extent, with its cases as variants;
    /// for forecasts, the first workload.
    pub setup: Setup,
    /// What the experiment is about.
    pub subject: Subject,
    /// The rows, in the order of the plan.
    pub rows: Vec<RowName>,
    /// The paper's values, in the unit of the row.
    pub paper: BTreeMap<RowName, f64>,
    pub targets: Vec<Target>,
    /// The figures that are drawn.
    pub figures: Vec<Figure>,
    /// Its text and origin.
    pub written: Written,
}

/// Accuracy targets of forecasts and their workloads.
#[derive(Clone, Debug)]
pub struct Accuracy {
    pub workloads: Workloads,
    /// Bounds of the relative error.
    pub bounds: ErrorBounds,
}

/// Bounds of the forecasts' error, in percent of the measured value.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorBounds {
    pub mean: f64,
    pub p99: f64,
}

/// Whether a plan measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Everything is computed from the setup; needs no time and no privileges.
    Prediction,
    /// Messages are sent in the laboratory and the simulator.
    Measurement,
}

/// A figure of a measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    pub shape: Shape,
    /// Index of the application; `None` for [`Shape::Means`], which shows all of them.
    pub application: Option<usize>,
    /// Indices of the compared variants, in the order of the setup.
    pub variants: Vec<usize>,
}

/// What a figure shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shape {
    /// Delays in bins of 5 ms against frequency [path-selection figs. 7, 8].
    Histogram,
    /// The distribution function of the delays.
    Ecdf,
    /// Mean delays with intervals, with the paper's values and the floor.
    Means,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanFile<S> {
    id: String,
    title: String,
    source: String,
    kind: Kind,
    /// A name, or the setup itself.
    setup: S,
    rows: Vec<String>,
    #[serde(default)]
    targets: Vec<String>,
    #[serde(default)]
    paper: BTreeMap<String, f64>,
    #[serde(default)]
    figures: Vec<FigureFile>,
}

/// A plan that compares forecasts over many workloads.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AccuracyFile<W> {
    id: String,
    title: String,
    source: String,
    /// A name, or the workloads themselves.
    workloads: W,
    #[serde(rename = "asked")]
    bounds: ErrorBounds,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FigureFile {
    shape: Shape,
    application: Option<String>,
    variants: Vec<String>,
}

impl Plan {
    /// Set if forecasts are compared with measurements.
    pub fn accuracy(&self) -> Option<&Accuracy> {
        match &self.subject {
            Subject::Forecasts(accuracy) => Some(accuracy),
            _ => None,
        }
    }

    /// Set if transactions are measured.
    pub fn transactions(&self) -> Option<&Transactions> {
        match &self.subject {
            Subject::Transactions(transactions) => Some(transactions),
            _ => None,
        }
    }

    /// Set if it consists of trials.
    pub fn trials(&self) -> Option<&Trials> {
        match &self.subject {
            Subject::Trials(trials) => Some(trials),
            _ => None,
        }
    }

    /// Set if parameters of aggregation are studied.
    pub fn study(&self) -> Option<&Study> {
        match &self.subject {
            Subject::Aggregation(study) => Some(study),
            _ => None,
        }
    }

    /// Set if applications come and go.
    pub fn churn(&self) -> Option<&Churn> {
        match &self.subject {
            Subject::Churn(churn) => Some(churn),
            _ => None,
        }
    }

    /// Set if recorded lines are replayed.
    pub fn recorded(&self) -> Option<&Recorded> {
        match &self.subject {
            Subject::Recorded(recorded) => Some(recorded),
            _ => None,
        }
    }

    /// Set if transfers are measured.
    pub fn transfers(&self) -> Option<&Transfers> {
        match &self.subject {
            Subject::Transfers(transfers) => Some(transfers),
            _ => None,
        }
    }

    /// Set if tenants share bottlenecks.
    pub fn sharing(&self) -> Option<&Sharing> {
        match &self.subject {
            Subject::Sharing(sharing) => Some(sharing),
            _ => None,
        }
    }

    /// Reads a plan. `file` names it in errors; `setup_text` returns the text of the setup that the plan
    /// names, `None` if there is none.
    ///
    /// # Errors
    /// The fault in the plan or its setup, and its location.
    pub fn parse(
        file: &str,
        text: &str,
        setup_text: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, PlanError> {
        let mut plan = match Self::of_kind(file, text, &setup_text) {
            Err(PlanError::Meaning { file: of, what }) if of == file => {
                return Err(vary::located(file, text, &what));
            }
            read => read?,
        };
        let wrong = |what: String| vary::located(file, text, &what);
        check_id(&plan.id).map_err(wrong)?;
        plan.setup.check_topology().map_err(wrong)?;
        if plan.written.text.is_empty() {
            plan.written.text = text.to_owned();
        }
        Ok(plan)
    }

    /// Each kind has a key of its own.
    fn of_kind(
        file: &str,
        text: &str,
        setup_text: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, PlanError> {
        if let Some(plan) = read_if::<TransactionsFile>(&["transactions"], file, text)? {
            return plan.resolve(file);
        }
        if let Some(plan) = read_if::<TrialsFile>(&trials::TABLES, file, text)? {
            return plan.resolve(file);
        }
        if let Some(plan) = read_if::<StudyFile>(&["study"], file, text)? {
            return plan.resolve(file);
        }
        if let Some(plan) = read_if::<SharingFile>(&["tenants"], file, text)? {
            return plan.resolve(file);
        }
        if let Some(plan) = read_if::<RecordedFile>(&["recordings"], file, text)? {
            return plan.resolve(file);
        }
        if let Some(plan) = read_if::<ChurnFile>(&["policies"], file, text)? {
            return plan.resolve(file);
        }
        let named = |name: &str| {
            setup_text(name).ok_or_else(|| {
                let what = format!("setup `{name}` does not exist; there is no {name}.toml");
                PlanError::meaning(file, what)
            })
        };
        if vary::has_within(text, file, "workloads")? {
            let plan: AccuracyFile<Workloads> = keiro_config::deserialize(text, file)?;
            let checked = plan.workloads.check();
            checked.map_err(|what| PlanError::meaning(file, what))?;
            return Ok(plan.resolve());
        }
        if let Some(plan) = read_if::<AccuracyFile<String>>(&["workloads"], file, text)? {
            let part = named(&plan.workloads)?;
            let workloads = Workloads::parse(&format!("{}.toml", plan.workloads), &part)?;
            let mut plan = plan.map(workloads).resolve();
            plan.written.text = vary::with_part(text, "workloads", &part);
            return Ok(plan);
        }
        let meaning = |what| PlanError::meaning(file, what);
        if vary::has_within(text, file, "transfers")? {
            let plan: TransfersFile<NetworksFile> = keiro_config::deserialize(text, file)?;
            plan.transfers.check().map_err(meaning)?;
            return plan.resolve().map_err(meaning);
        }
        if let Some(plan) = read_if::<TransfersFile<String>>(&["transfers"], file, text)? {
            let part = named(&plan.transfers)?;
            let networks = NetworksFile::parse(&format!("{}.toml", plan.transfers), &part)?;
            let mut plan = plan.map(networks).resolve().map_err(meaning)?;
            plan.written.text = vary::with_part(text, "transfers", &part);
            return Ok(plan);
        }
        if vary::has_within(text, file, "setup")? {
            let plan: PlanFile<Setup> = keiro_config::deserialize(text, file)?;
            plan.setup.check().map_err(meaning)?;
            return plan.resolve().map_err(meaning);
        }
        let plan: PlanFile<String> = keiro_config::deserialize(text, file)?;
        let part = named(&plan.setup)?;
        let setup = Setup::parse(&format!("{}.toml", plan.setup), &part)?;
        let mut plan = plan.map(setup).resolve().map_err(meaning)?;
        plan.written.text = vary::with_part(text, "setup", &part);
        Ok(plan)
    }

    /// The plan of this repository with this name.
    ///
    /// # Errors
    /// [`PlanError::Unknown`] with the nearest name; others if the plan itself is wrong.
    pub fn find(id: &str) -> Result<Self, PlanError> {
        let (_, text) = PLANS
            .iter()
            .find(|(known, _)| *known == id)
            .ok_or_else(|| PlanError::Unknown {
                id: id.to_owned(),
                suggestion: suggestion(id),
            })?;
        Self::parse(
            &format!("experiments/{id}/plan.toml"),
            text,
            vary::built_in_setup,
        )
    }

    /// All plans of this repository, in the order of their names.
    ///
    /// # Errors
    /// If one of them is wrong.
    pub fn all() -> Result<Vec<Self>, PlanError> {
        PLANS.iter().map(|(id, _)| Self::find(id)).collect()
    }
}

/// Suggestions for an unknown name: those of its group, those of the same name in other groups, or the
/// nearest.
fn suggestion(id: &str) -> String {
    let known = || PLANS.iter().map(|(known, _)| *known);
    let group = id.trim_end_matches(['/', '*']);
    let is_in = |known: &&str| known.split_once('/').is_some_and(|(of, _)| of == group);
    let in_group: Vec<&str> = known().filter(is_in).collect();
    if !in_group.is_empty() {
        return format!("; there are {}", in_group.join(", "));
    }
    let has_name = |known: &&str| known.rsplit('/').next() == id.rsplit('/').next();
    let of_name: Vec<&str> = known().filter(has_name).collect();
    match of_name.is_empty() {
        true => nearest(id, known()),
        false => format!("; did you mean `{}`?", of_name.join("` or `")),
    }
}

impl Plan {
    /// The plan with runs of this duration, warm-up included.
    ///
    /// # Errors
    /// Only transactions can be extended, because other runs have phases, patterns or an end of their own.
    /// The duration must exceed the warm-up.
    pub fn with_run_time(mut self, run_time: Duration) -> Result<Self, PlanError> {
        let refused = |what: String| PlanError::meaning(&self.id, what);
        if self.transactions().is_none() {
            return Err(refused(
                "only runs of transactions can be made longer or shorter; leave the run time out"
                    .to_owned(),
            ));
        }
        for (extent, table) in [
            (&mut self.setup.run, "run"),
            (&mut self.setup.quick, "quick"),
        ] {
            extent.duration = Text(run_time);
            extent.check(table).map_err(&refused)?;
        }
        let set = ["run", "quick"].map(|table| format!("{table}.duration={}", Text(run_time)));
        let set = set.iter().filter_map(|text| text.parse().ok());
        self.with(&set.collect::<Vec<_>>())
    }

    /// The plan with this limit of repeats due to pauses of the machine; [`REPEATS_MAX`] by default.
    ///
    /// # Errors
    /// Only runs of transactions detect pauses of the machine.
    pub fn with_pause_repeats(mut self, repeats: u32) -> Result<Self, PlanError> {
        let Subject::Transactions(transactions) = &mut self.subject else {
            return Err(PlanError::meaning(
                &self.id,
                "only runs of transactions are repeated because of pauses; leave that out"
                    .to_owned(),
            ));
        };
        transactions.pause_repeats = repeats.min(REPEATS_MAX);
        Ok(self)
    }
}

/// Results are written to a directory of this name.
fn check_id(id: &str) -> Result<(), String> {
    let is_part = |part: &str| {
        let word = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !part.is_empty() && !part.starts_with('.') && part.chars().all(word)
    };
    match id.len() <= ID_BYTES_MAX && id.split('/').all(is_part) {
        true => Ok(()),
        false => Err(format!(
            "`id` must be words of letters, digits, `-`, `_` and `.` with `/` between them, {ID_BYTES_MAX} bytes at most"
        )),
    }
}

/// Ours: it is part of a path.
const ID_BYTES_MAX: usize = 100;

impl PlanFile<String> {
    fn map(self, setup: Setup) -> PlanFile<Setup> {
        PlanFile {
            id: self.id,
            title: self.title,
            source: self.source,
            kind: self.kind,
            setup,
            rows: self.rows,
            targets: self.targets,
            paper: self.paper,
            figures: self.figures,
        }
    }
}

impl PlanFile<Setup> {
    fn resolve(self) -> Result<Plan, String> {
        let setup = self.setup;
        let mut rows = Vec::new();
        for template in &self.rows {
            rows.extend(row::expand(template, &setup).map_err(|e| format!("rows: {e}"))?);
        }
        if rows.is_empty() {
            return Err("`rows` is empty; ask for one at least".to_owned());
        }
        for (i, row) in rows.iter().enumerate() {
            if rows[..i].contains(row) {
                return Err(format!("rows: `{}` is listed twice", row.text(&setup)));
            }
            if self.kind == Kind::Prediction && !row.quantity.is_computed() {
                return Err(format!(
                    "rows: `{}` must be measured, but the plan's kind is `prediction`",
                    row.text(&setup)
                ));
            }
        }
        let paper = paper_values(&self.paper, &rows, &setup)?;
        let targets = targets(&self.targets, &rows, &paper, &setup)?;
        let figures = self
            .figures
            .iter()
            .map(|figure| figure.resolve(self.kind, &setup))
            .collect::<Result<_, _>>()?;
        Ok(Plan {
            id: self.id,
            title: self.title,
            source: self.source,
            kind: self.kind,
            setup,
            subject: Subject::Messages,
            rows,
            paper,
            targets,
            figures,
            written: Written::default(),
        })
    }
}

/// Whether a plan has one of `keys`; `None` if it is of another kind.
fn read_if<T: DeserializeOwned>(
    keys: &[&str],
    file: &str,
    text: &str,
) -> Result<Option<T>, PlanError> {
    let table: toml::Table = keiro_config::deserialize(text, file)?;
    if !keys.iter().any(|key| table.contains_key(*key)) {
        return Ok(None);
    }
    Ok(Some(keiro_config::deserialize(text, file)?))
}

impl AccuracyFile<String> {
    fn map(self, workloads: Workloads) -> AccuracyFile<Workloads> {
        AccuracyFile {
            id: self.id,
            title: self.title,
            source: self.source,
            workloads,
            bounds: self.bounds,
        }
    }
}

impl AccuracyFile<Workloads> {
    fn resolve(self) -> Plan {
        let workloads = self.workloads;
        let mut setups = workloads.simulated.setups(workloads.headers);
        Plan {
            id: self.id,
            title: self.title,
            source: self.source,
            kind: Kind::Measurement,
            setup: setups.swap_remove(0),
            subject: Subject::Forecasts(Accuracy {
                workloads,
                bounds: self.bounds,
            }),
            rows: Vec::new(),
            paper: BTreeMap::new(),
            targets: Vec::new(),
            figures: Vec::new(),
            written: Written::default(),
        }
    }
}

impl FigureFile {
    fn resolve(&self, kind: Kind, setup: &Setup) -> Result<Figure, String> {
        if kind == Kind::Prediction {
            return Err("figures: a plan of kind `prediction` has no delays to draw".to_owned());
        }
        if (self.shape == Shape::Means) == self.application.is_some() {
            return Err(
                "figures: `histogram` and `ecdf` need an application, `means` takes none"
                    .to_owned(),
            );
        }
        let application = match &self.application {
            None => None,
            Some(name) => Some(setup.application(name).ok_or_else(|| {
                let known = setup.applications.iter().map(|a| a.name.as_str());
                format!(
                    "figures: there is no application `{name}`{}",
                    nearest(name, known)
                )
            })?),
        };
        let mut variants = Vec::new();
        for name in &self.variants {
            variants.push(setup.variant(name).ok_or_else(|| {
                let known = setup.variants.iter().map(|v| v.name.as_str());
                format!(
                    "figures: there is no variant `{name}`{}",
                    nearest(name, known)
                )
            })?);
        }
        if variants.is_empty() {
            return Err("figures: `variants` is empty; name one at least".to_owned());
        }
        Ok(Figure {
            shape: self.shape,
            application,
            variants,
        })
    }
}

fn paper_values(
    values: &BTreeMap<String, f64>,
    rows: &[RowName],
    setup: &Setup,
) -> Result<BTreeMap<RowName, f64>, String> {
    let mut paper = BTreeMap::new();
    for (name, value) in values {
        let row = RowName::parse(name, setup).map_err(|e| format!("[paper]: {e}"))?;
        if !rows.contains(&row) {
            return Err(format!("[paper]: `{name}` is not among the rows"));
        }
        paper.insert(row, *value);
    }
    Ok(paper)
}

fn targets(
    texts: &[String],
    rows: &[RowName],
    paper: &BTreeMap<RowName, f64>,
    setup: &Setup,
) -> Result<Vec<Target>, String> {
    let mut targets = Vec::new();
    for text in texts
        .iter()
        .flat_map(|template| row::substitute(template, setup))
    {
        let target = Target::parse(&text, setup)?;
        for row in target.rows() {
            if !rows.contains(&row) {
                return Err(format!(
                    "target `{text}`: `{}` is not among the rows",
                    row.text(setup)
                ));
            }
        }
        if target.needs_paper() && !paper.contains_key(&target.row) {
            return Err(format!(
                "target `{text}`: [paper] has no value for that row"
            ));
        }
        targets.push(target);
    }
    Ok(targets)
}

macro_rules! plan {
    ($id:literal) => {
        (
            $id,
            include_str!(concat!("../../../experiments/", $id, "/plan.toml")),
        )
    };
}

pub(crate) const PLANS: &[(&str, &str)] = &[
    plan!("aggregation/bulk"),
    plan!("aggregation/clients"),
    plan!("aggregation/equal-m"),
    plan!("aggregation/controller-path"),
    plan!("aggregation/load"),
    plan!("aggregation/spacing"),
    plan!("aggregation/table1"),
    plan!("aggregation/table5"),
    plan!("egress/isps"),
    plan!("egress/scenario1"),
    plan!("egress/scenario2"),
    plan!("egress/scenario3"),
    plan!("fairness/changing-weight"),
    plan!("fairness/fig10"),
    plan!("fairness/fig11"),
    plan!("fairness/fig12"),
    plan!("fairness/fig2"),
    plan!("fairness/fig3"),
    plan!("fairness/fig4"),
    plan!("fairness/fig5"),
    plan!("fairness/fig7"),
    plan!("fairness/fig7-long"),
    plan!("fairness/idle"),
    plan!("fairness/min-rto"),
    plan!("fairness/one-against-hundred"),
    plan!("fairness/round-trips"),
    plan!("fairness/unit"),
    plan!("fairness/unresponsive"),
    plan!("latency-bandwidth/fig2"),
    plan!("latency-bandwidth/fig3"),
    plan!("latency-bandwidth/fig4"),
    plan!("latency-bandwidth/table1"),
    plan!("path-selection/churn"),
    plan!("path-selection/figure7"),
    plan!("path-selection/figure8"),
    plan!("path-selection/table4"),
    plan!("path-selection/table5"),
    plan!("path-selection/table6"),
    plan!("prediction/error"),
    plan!("uplinks/recorded"),
];

/// Setups, and files of workloads.
pub(crate) const SETUPS: &[(&str, &str)] = &[
    (
        "latency-bandwidth/networks",
        include_str!("../../../experiments/latency-bandwidth/networks.toml"),
    ),
    (
        "path-selection/five-applications",
        include_str!("../../../experiments/path-selection/five-applications.toml"),
    ),
    (
        "prediction/workloads",
        include_str!("../../../experiments/prediction/workloads.toml"),
    ),
];
