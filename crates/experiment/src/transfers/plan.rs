//! Plans of transfers: networks, sizes, and what is shown of them.

use std::collections::{BTreeMap, BTreeSet};

use keiro_control::units::Text;
use keiro_units::{Bandwidth, ByteCount};
use serde::Deserialize;

use super::{Network, Networks, Shape, Transfers, report};
use crate::{
    error::PlanError,
    plan::{Kind, Plan},
    row::{self, Source},
    setup::{Extent, GENERATED_TOPOLOGY, Headers, Setup, Transport, Variant, nearest},
    subject::Subject,
    transactions::Target,
    vary::{self, Written},
};

/// A plan of transfers, as its file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TransfersFile<N> {
    id: String,
    title: String,
    source: String,
    /// A name, or the networks themselves.
    pub(crate) transfers: N,
    figure: Shape,
    shown: Vec<String>,
    #[serde(default)]
    targets: Vec<String>,
    #[serde(default)]
    paper: BTreeMap<String, f64>,
}

/// Networks and sizes, which several plans share.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NetworksFile {
    id: String,
    title: String,
    sizes: Vec<Text<ByteCount>>,
    split: Text<ByteCount>,
    networks: Vec<Network>,
    run: Extent,
    quick: Extent,
    /// How much a full run measures in the laboratory, where time is real.
    lab: Option<Extent>,
}

impl TransfersFile<String> {
    pub(crate) fn map(self, transfers: NetworksFile) -> TransfersFile<NetworksFile> {
        TransfersFile {
            id: self.id,
            title: self.title,
            source: self.source,
            transfers,
            figure: self.figure,
            shown: self.shown,
            targets: self.targets,
            paper: self.paper,
        }
    }
}

impl NetworksFile {
    pub(crate) fn parse(file: &str, text: &str) -> Result<Self, PlanError> {
        let read: Self = keiro_config::deserialize(text, file)?;
        read.check()
            .map_err(|what| vary::located(file, text, &what))?;
        Ok(read)
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        let mut names = BTreeSet::new();
        for network in &self.networks {
            let name = &network.name;
            if name.split_whitespace().count() != 1 || !names.insert(name) {
                return Err(format!(
                    "network `{name}`: a name is one word, and each network has its own"
                ));
            }
            network
                .check()
                .map_err(|what| format!("network `{name}`: {what}"))?;
        }
        let distinct: BTreeSet<ByteCount> = self.sizes.iter().map(|size| size.0).collect();
        let below = distinct
            .iter()
            .filter(|size| **size <= self.split.0)
            .count();
        if self.networks.is_empty()
            || distinct.len() != self.sizes.len()
            || below < SIZES_MIN
            || distinct.len() - below < SIZES_MIN
        {
            return Err(format!(
                "sizes: a network, and {SIZES_MIN} different sizes up to `split` and above it, are needed"
            ));
        }
        if distinct
            .iter()
            .any(|size| size.is_zero() || *size > SIZE_MAX)
            || distinct.len() > SIZES_MAX
        {
            return Err(format!(
                "sizes: at most {SIZES_MAX}, of 1B to {}",
                Text(SIZE_MAX)
            ));
        }
        if let Some(lab) = &self.lab {
            lab.check("lab")?;
        }
        self.run.check("run")?;
        self.quick.check("quick")
    }
}

impl Network {
    fn check(&self) -> Result<(), String> {
        let rates = [Some(self.rate.0), self.full.map(|full| full.rate.0)];
        if rates.into_iter().flatten().any(|rate| rate < RATE_MIN) {
            return Err(format!("a rate is at least {}", Text(RATE_MIN)));
        }
        match self.buffer.0.is_zero() || self.receive_buffer.0.is_zero() {
            true => Err("buffers must be above zero".to_owned()),
            false => Ok(()),
        }
    }
}

impl TransfersFile<NetworksFile> {
    pub(crate) fn resolve(self) -> Result<Plan, String> {
        let file = self.transfers;
        let place = |name: &String| {
            file.networks
                .iter()
                .position(|n| n.name == *name)
                .ok_or_else(|| {
                    let known = || file.networks.iter().map(|network| network.name.as_str());
                    let all = known().collect::<Vec<_>>().join(", ");
                    format!(
                        "there is no network `{name}`{}; there are {all}",
                        nearest(name, known())
                    )
                })
        };
        let shown: Vec<usize> = self.shown.iter().map(place).collect::<Result<_, _>>()?;
        if shown.iter().collect::<BTreeSet<_>>().len() != shown.len() || shown.is_empty() {
            return Err("`shown` needs networks, each once".to_owned());
        }
        let mut transfers = Transfers {
            networks: Networks {
                sizes: file.sizes,
                split: file.split,
                networks: file.networks,
                lab: file.lab,
            },
            shown,
            figure: self.figure,
            targets: Vec::new(),
            paper: BTreeMap::new(),
        };
        let of_source = |source| report::names(&transfers, source);
        let simulated = of_source(Source::Sim);
        let in_lab: Vec<String> = of_source(Source::Lab)
            .into_iter()
            .map(|row| row.0)
            .collect();
        let all = of_source(Source::Lab).into_iter().chain(simulated);
        let units: BTreeMap<String, &str> = all.collect();
        let rows: Vec<String> = units.keys().cloned().collect();
        let unit_of = |row: &str| units.get(row).copied().unwrap_or("UNIT");
        let targets = self.targets.iter();
        let targets = targets.map(|text| Target::parse(text, &rows, unit_of));
        transfers.targets = targets.collect::<Result<_, _>>()?;
        // The paper has one value for both sources.
        transfers.paper = row::checked_paper(self.paper, &in_lab)?;
        Ok(Plan {
            setup: Setup {
                id: file.id,
                title: file.title,
                topology: GENERATED_TOPOLOGY.to_owned(),
                paths: Vec::new(),
                applications: Vec::new(),
                variants: variants(&transfers),
                run: file.run,
                quick: file.quick,
            },
            id: self.id,
            title: self.title,
            source: self.source,
            kind: Kind::Measurement,
            subject: Subject::Transfers(transfers),
            rows: Vec::new(),
            paper: BTreeMap::new(),
            targets: Vec::new(),
            figures: Vec::new(),
            written: Written::default(),
        })
    }
}

/// A variant for each network that is shown.
fn variants(transfers: &Transfers) -> Vec<Variant> {
    let variant = |(number, &network): (usize, &usize)| Variant {
        id: number.to_string(),
        name: transfers.networks.networks[network].name.clone(),
        transport: Transport::Tcp,
        assignment: None,
        scheduler: None,
        simulated: true,
        headers: Headers {
            payload: Text(ByteCount::new(1448)),
            overhead: Text(ByteCount::new(52)),
        },
    };
    transfers.shown.iter().enumerate().map(variant).collect()
}

/// A line and its interval need that many sizes. Ours.
const SIZES_MIN: usize = 3;
/// Ours: a run must not take hours.
const SIZES_MAX: usize = 100;
const SIZE_MAX: ByteCount = ByteCount::new(1_000_000_000);
const RATE_MIN: Bandwidth = Bandwidth::from_bits_per_second(10_000);
