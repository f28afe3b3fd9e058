//! Plans of applications that come and go.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use keiro_control::{config::MESSAGE_BYTES_MAX, units::Text};
use keiro_units::{Bandwidth, ByteCount};
use serde::Deserialize;

use super::{Application, Churn, Policy, report};
use crate::{
    error::PlanError,
    plan::{Kind, Plan},
    setup::{
        Assignment, Extent, GENERATED_TOPOLOGY, Headers, Path, Setup, Transport, Variant, nearest,
    },
    subject::Subject,
    transactions::Target,
    vary::Written,
};

/// A plan of applications that come and go, as its file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChurnFile {
    id: String,
    title: String,
    source: String,
    paths: Vec<Path>,
    applications: Vec<Application>,
    policies: Vec<Policy>,
    run: Extent,
    quick: Extent,
    #[serde(default)]
    targets: Vec<String>,
}

impl ChurnFile {
    pub(crate) fn resolve(self, file: &str) -> Result<Plan, PlanError> {
        self.plan().map_err(|what| PlanError::meaning(file, what))
    }

    fn plan(self) -> Result<Plan, String> {
        self.check()?;
        let mut churn = Churn {
            paths: self.paths,
            applications: self.applications,
            policies: self.policies,
            targets: Vec::new(),
        };
        let units: BTreeMap<String, &str> = report::names(&churn).into_iter().collect();
        let rows: Vec<String> = units.keys().cloned().collect();
        let unit_of = |row: &str| units.get(row).copied().unwrap_or("UNIT");
        let targets = self.targets.iter();
        let targets = targets.map(|text| Target::parse(text, &rows, unit_of));
        churn.targets = targets.collect::<Result<_, _>>()?;
        let variant = |(number, policy): (usize, &Policy)| Variant {
            id: number.to_string(),
            name: policy.name.clone(),
            transport: Transport::Gateway,
            assignment: Some(policy.assignment.clone()),
            scheduler: Some(policy.scheduler),
            simulated: true,
            headers: Headers {
                payload: Text(ByteCount::new(1)),
                overhead: Text(ByteCount::ZERO),
            },
        };
        Ok(Plan {
            setup: Setup {
                id: self.id.clone(),
                title: self.title.clone(),
                topology: GENERATED_TOPOLOGY.to_owned(),
                paths: Vec::new(),
                applications: Vec::new(),
                variants: churn.policies.iter().enumerate().map(variant).collect(),
                run: self.run,
                quick: self.quick,
            },
            id: self.id,
            title: self.title,
            source: self.source,
            kind: Kind::Measurement,
            subject: Subject::Churn(churn),
            rows: Vec::new(),
            paper: BTreeMap::new(),
            targets: Vec::new(),
            figures: Vec::new(),
            written: Written::default(),
        })
    }

    fn check(&self) -> Result<(), String> {
        distinct("paths", self.paths.iter().map(|path| &path.name))?;
        distinct("applications", self.applications.iter().map(|a| &a.name))?;
        distinct("policies", self.policies.iter().map(|policy| &policy.name))?;
        if let Some(path) = self
            .paths
            .iter()
            .find(|path| path.bandwidth.0 == Bandwidth::ZERO)
        {
            return Err(format!("path `{}` has no bandwidth", path.name));
        }
        for (extent, table) in [(&self.run, "run"), (&self.quick, "quick")] {
            extent.check(table)?;
            let messages =
                |a: &Application| extent.duration.0.as_secs_f64() / a.interval.0.as_secs_f64();
            let is_possible = |a: &&Application| a.interval.0 > Duration::ZERO;
            let count: f64 = self
                .applications
                .iter()
                .filter(is_possible)
                .map(messages)
                .sum();
            if count > MESSAGES_MAX {
                return Err(format!(
                    "[{table}]: a run has more than {MESSAGES_MAX} messages; make intervals longer"
                ));
            }
        }
        for application in &self.applications {
            let name = &application.name;
            let length = application.length.0.get();
            if !(1..=MESSAGE_BYTES_MAX).contains(&length)
                || application.interval.0.is_zero()
                || application.latency_target.0.is_zero()
            {
                return Err(format!(
                    "application `{name}`: a length of 1 to {MESSAGE_BYTES_MAX} bytes, an interval and a latency target above zero"
                ));
            }
            let ordered = application.active.iter().flatten().map(|at| at.0);
            if !ordered.is_sorted_by(|a, b| a < b) {
                return Err(format!(
                    "application `{name}`: `active` is pairs of times, each after the one before"
                ));
            }
        }
        self.policies
            .iter()
            .try_for_each(|policy| self.check_policy(policy))
    }

    fn check_policy(&self, policy: &Policy) -> Result<(), String> {
        let names: &[String] = match &policy.assignment {
            Assignment::OnePath(name) => std::slice::from_ref(name),
            Assignment::Given(names) if names.len() == self.applications.len() => names,
            Assignment::Given(_) => {
                let name = &policy.name;
                return Err(format!(
                    "policy `{name}`: `given` names a path for each application"
                ));
            }
            Assignment::Paper { .. } | Assignment::Planned => &[],
        };
        let known = || self.paths.iter().map(|path| path.name.as_str());
        match names
            .iter()
            .find(|name| known().all(|known| known != *name))
        {
            None => Ok(()),
            Some(name) => Err(format!(
                "policy `{}`: there is no path `{name}`{}",
                policy.name,
                nearest(name, known())
            )),
        }
    }
}

fn distinct<'a>(key: &str, names: impl Iterator<Item = &'a String>) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for name in names {
        if name.split_whitespace().count() != 1 || !seen.insert(name) {
            return Err(format!(
                "{key}: `{name}` is not one word, or is there twice"
            ));
        }
    }
    match seen.len() {
        0 => Err(format!("`{key}` is empty; name one at least")),
        count if count > COUNT_MAX => Err(format!("{key}: {COUNT_MAX} at most")),
        _ => Ok(()),
    }
}

/// Paths, applications or policies. Ours: what a figure can show.
const COUNT_MAX: usize = 32;
/// Of a run, all applications together. Ours: they are kept in memory.
const MESSAGES_MAX: f64 = 1e6;
