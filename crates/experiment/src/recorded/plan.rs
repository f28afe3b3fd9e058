//! Plans of recorded links.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path, PathBuf},
    time::Duration,
};

use keiro_control::units::Text;
use keiro_units::ByteCount;
use serde::Deserialize;

use super::{Link, Recorded, report};
use crate::{
    error::PlanError,
    plan::{Kind, Plan},
    setup::{Extent, GENERATED_TOPOLOGY, Headers, Setup, Transport, Variant},
    subject::Subject,
    transactions::Target,
    vary::Written,
};

/// A plan of recorded links, as its file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RecordedFile {
    id: String,
    title: String,
    source: String,
    buffer: Text<Duration>,
    thin_per_second: u32,
    recordings: Vec<Link>,
    run: Extent,
    quick: Extent,
    #[serde(default)]
    targets: Vec<String>,
}

impl RecordedFile {
    pub(crate) fn resolve(self, file: &str) -> Result<Plan, PlanError> {
        self.plan().map_err(|what| PlanError::meaning(file, what))
    }

    fn plan(self) -> Result<Plan, String> {
        self.check()?;
        let mut recorded = Recorded {
            directory: None,
            buffer: self.buffer,
            thin_per_second: self.thin_per_second,
            links: self.recordings,
            targets: Vec::new(),
        };
        let units: BTreeMap<String, &str> = report::names(&recorded).into_iter().collect();
        let rows: Vec<String> = units.keys().cloned().collect();
        let unit_of = |row: &str| units.get(row).copied().unwrap_or("UNIT");
        let targets = self.targets.iter();
        let targets = targets.map(|text| Target::parse(text, &rows, unit_of));
        recorded.targets = targets.collect::<Result<_, _>>()?;
        let variant = |(number, link): (usize, &Link)| Variant {
            id: number.to_string(),
            name: link.name.clone(),
            transport: Transport::Tcp,
            assignment: None,
            scheduler: None,
            simulated: false,
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
                variants: recorded.links.iter().enumerate().map(variant).collect(),
                run: self.run,
                quick: self.quick,
            },
            id: self.id,
            title: self.title,
            source: self.source,
            kind: Kind::Measurement,
            subject: Subject::Recorded(recorded),
            rows: Vec::new(),
            paper: BTreeMap::new(),
            targets: Vec::new(),
            figures: Vec::new(),
            written: Written::default(),
        })
    }

    fn check(&self) -> Result<(), String> {
        self.run.check("run")?;
        self.quick.check("quick")?;
        if self.recordings.is_empty() || self.recordings.len() > LINKS_MAX {
            return Err(format!("`recordings` has 1 to {LINKS_MAX} links"));
        }
        if self.buffer.0.is_zero() || self.buffer.0 > TIME_MAX {
            return Err(format!(
                "buffer: {} is not a time of up to {}",
                self.buffer,
                Text(TIME_MAX)
            ));
        }
        if !(1..=THIN_PER_SECOND_MAX).contains(&self.thin_per_second) {
            return Err(format!("thin_per_second: 1 to {THIN_PER_SECOND_MAX}"));
        }
        let mut names = BTreeSet::new();
        for link in &self.recordings {
            let name = &link.name;
            if name.split_whitespace().count() != 1 || name == report::ALL || !names.insert(name) {
                return Err(format!(
                    "recording `{name}`: a name is one word other than `{}`, and each recording has its own",
                    report::ALL
                ));
            }
            let mut parts = Path::new(&link.file).components();
            if link.file.is_empty() || !parts.all(|part| matches!(part, Component::Normal(_))) {
                return Err(format!(
                    "recording `{name}`: `{}` is no file within the directory of --traces",
                    link.file
                ));
            }
            if link.delay.0 > TIME_MAX || link.jitter.0 > TIME_MAX {
                return Err(format!(
                    "recording `{name}`: delay and jitter are at most {}",
                    Text(TIME_MAX)
                ));
            }
        }
        Ok(())
    }
}

impl Plan {
    /// The plan with recordings from this directory; plans that replay none stay as they are.
    #[must_use]
    pub fn with_traces(mut self, directory: PathBuf) -> Self {
        if let Subject::Recorded(recorded) = &mut self.subject {
            recorded.directory = Some(directory);
        }
        self
    }
}

/// Ours: each has four links of the emulator, one after the other, and several rows.
const LINKS_MAX: usize = 100;
/// Ours: more is probably a typing error.
const TIME_MAX: Duration = Duration::from_secs(60);
/// Ours: more is not thin.
const THIN_PER_SECOND_MAX: u32 = 1000;
