//! Plans of studies: controllers or combinations, and their conditions.

use std::collections::BTreeMap;

use keiro_control::units::Text;
use keiro_units::ByteCount;
use serde::Deserialize;

use super::{
    Cells, Combination, Condition, Controller, Controllers, Flow, Impairment, Line,
    NamedImpairment, SENDERS_MAX, Study, StudyKind, report,
};
use crate::{
    error::PlanError,
    plan::{Kind, Plan},
    row::Source,
    setup::{Extent, Headers, Setup, Transport, Variant},
    subject::Subject,
    transactions::Target,
    vary::Written,
};

/// A plan of a study, as its file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StudyFile {
    id: String,
    title: String,
    source: String,
    topology: String,
    /// The sources that measure it.
    measured_in: Vec<Source>,
    #[serde(rename = "study")]
    kind: StudyKindFile,
    #[serde(default = "one")]
    senders: usize,
    flow: Flow,
    line: Line,
    #[serde(default)]
    controllers: Vec<Controller>,
    #[serde(default, rename = "troubles")]
    impairments: Vec<NamedImpairment>,
    #[serde(default)]
    combinations: Vec<Combination>,
    #[serde(default)]
    conditions: Vec<Condition>,
    run: Extent,
    quick: Extent,
    lab: Option<Extent>,
    #[serde(default)]
    targets: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum StudyKindFile {
    Controllers,
    Cells,
}

impl StudyFile {
    pub(crate) fn resolve(self, file: &str) -> Result<Plan, PlanError> {
        self.plan().map_err(|what| PlanError::meaning(file, what))
    }

    fn plan(self) -> Result<Plan, String> {
        self.check()?;
        let kind = match self.kind {
            StudyKindFile::Controllers => StudyKind::Controllers(Controllers {
                controllers: self.controllers,
                impairments: self.impairments,
            }),
            StudyKindFile::Cells => StudyKind::Cells(Cells {
                combinations: self.combinations,
                conditions: self.conditions,
            }),
        };
        let mut study = Study {
            topology: self.topology,
            sources: self.measured_in,
            senders: self.senders,
            flow: self.flow,
            line: self.line,
            kind,
            lab: self.lab,
            targets: Vec::new(),
        };
        let units: BTreeMap<String, &str> = report::names(&study).into_iter().collect();
        let rows: Vec<String> = units.keys().cloned().collect();
        let unit_of = |row: &str| units.get(row).copied().unwrap_or("UNIT");
        let targets = self.targets.iter();
        let targets = targets.map(|text| Target::parse(text, &rows, unit_of));
        study.targets = targets.collect::<Result<_, _>>()?;
        Ok(Plan {
            setup: as_setup(&self.id, &self.title, &study, self.run, self.quick),
            id: self.id,
            title: self.title,
            source: self.source,
            kind: Kind::Measurement,
            subject: Subject::Aggregation(study),
            rows: Vec::new(),
            paper: BTreeMap::new(),
            targets: Vec::new(),
            figures: Vec::new(),
            written: Written::default(),
        })
    }

    fn check(&self) -> Result<(), String> {
        let (with, without): (&[&str], &[&str]) = match self.kind {
            StudyKindFile::Controllers => (
                &["controllers", "troubles"],
                &["combinations", "conditions"],
            ),
            StudyKindFile::Cells => (
                &["combinations", "conditions"],
                &["controllers", "troubles"],
            ),
        };
        let filled = |key: &&&str| match **key {
            "controllers" => !self.controllers.is_empty(),
            "troubles" => !self.impairments.is_empty(),
            "combinations" => !self.combinations.is_empty(),
            _ => !self.conditions.is_empty(),
        };
        if let Some(key) = with.iter().find(|key| !filled(key)) {
            return Err(format!("this study needs `{key}`"));
        }
        if let Some(key) = without.iter().find(filled) {
            return Err(format!("this study takes no `{key}`"));
        }
        distinct("measured_in", self.measured_in.iter())?;
        distinct("controllers", self.controllers.iter())?;
        distinct("troubles", self.impairments.iter().map(|t| &t.name))?;
        distinct("combinations", self.combinations.iter().map(|c| &c.name))?;
        distinct("conditions", self.conditions.iter().map(|c| &c.name))?;
        if self.measured_in.is_empty() {
            return Err("`measured_in` is empty; name `lab`, `sim` or both".into());
        }
        self.check_senders()?;
        let flows = self.conditions.iter().filter_map(|c| c.flow.as_ref());
        for flow in flows.chain([&self.flow]) {
            let datagram = flow.datagram.0.get();
            if !(DATAGRAM_BYTES_MIN..=DATAGRAM_BYTES_MAX).contains(&datagram) {
                return Err(format!(
                    "[flow] datagram: {} is not within {DATAGRAM_BYTES_MIN} and {DATAGRAM_BYTES_MAX} bytes",
                    flow.datagram
                ));
            }
            if flow.offered.0.is_zero() || flow.interval().is_zero() {
                return Err("[flow] offered: must be above zero and below 1 Gbit/s".into());
            }
        }
        for combination in &self.combinations {
            super::simulated::limits(combination)
                .map_err(|error| format!("combination `{}`: {error}", combination.name))?;
        }
        if let Some(lab) = &self.lab {
            lab.check("lab")?;
        }
        self.run.check("run")?;
        self.quick.check("quick")
    }
}

impl StudyFile {
    fn check_senders(&self) -> Result<(), String> {
        if !(1..=SENDERS_MAX).contains(&self.senders) {
            return Err(format!("`senders` is 1 to {SENDERS_MAX}"));
        }
        let of_controllers = self.impairments.iter().map(|named| named.impairment);
        let of_cells = self.conditions.iter().filter_map(|c| c.impairment);
        let is_of_receiver = |one: Impairment| matches!(one, Impairment::Receiver { .. });
        match self.senders == 1 || of_controllers.chain(of_cells).all(is_of_receiver) {
            true => Ok(()),
            false => Err("with several `senders` a trouble is `receiver`".into()),
        }
    }
}

const fn one() -> usize {
    1
}

/// Room for the sequence number of a datagram. Ours.
const DATAGRAM_BYTES_MIN: u64 = 16;

/// Fits into one packet of 1500 bytes with all headers. Ours.
const DATAGRAM_BYTES_MAX: u64 = 1200;

fn distinct<T: Ord>(key: &str, values: impl Iterator<Item = T>) -> Result<(), String> {
    let mut values: Vec<T> = values.collect();
    let count = values.len();
    values.sort_unstable();
    values.dedup();
    match values.len() == count {
        true => Ok(()),
        false => Err(format!("`{key}` has a duplicate")),
    }
}

/// A study's cases as variants, for status and manifest.
fn as_setup(id: &str, title: &str, study: &Study, run: Extent, quick: Extent) -> Setup {
    let variant = |(number, case)| Variant {
        id: format!("{number}"),
        name: study.name(case),
        transport: Transport::Gateway,
        assignment: None,
        scheduler: None,
        simulated: study.sources.contains(&Source::Sim),
        headers: Headers {
            payload: study.flow.datagram,
            overhead: Text(ByteCount::ZERO),
        },
    };
    Setup {
        id: id.to_owned(),
        title: title.to_owned(),
        topology: study.topology.clone(),
        paths: Vec::new(),
        applications: Vec::new(),
        variants: (0..).zip(study.cases()).map(variant).collect(),
        run,
        quick,
    }
}
