//! Plans of sharing: settings, controls and hosts.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use keiro_control::units::Text;
use keiro_model::fairness::{
    aimd::Aimd,
    controller::Weight,
    shares::{Flow, NoShare, max_min},
};
use keiro_units::{Bandwidth, ByteCount};
use serde::Deserialize;

use super::{
    Bottleneck, Change, Control, Controller, Hosts, HostsLike, Setting, Shape, Sharing, Tenant,
    report,
};
use crate::{
    error::PlanError,
    plan::{Kind, Plan},
    row,
    setup::{Extent, GENERATED_TOPOLOGY, Headers, Setup, Transport, Variant},
    subject::Subject,
    transactions::Target,
    vary::Written,
};

/// A plan of sharing, as its file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SharingFile {
    id: String,
    title: String,
    source: String,
    #[serde(rename = "tenants")]
    figure: Shape,
    hosts: Vec<HostsFile>,
    begin: Text<Duration>,
    controls: Vec<Control>,
    settings: Vec<SettingFile>,
    run: Amount,
    quick: Amount,
    #[serde(default)]
    targets: Vec<String>,
    #[serde(default)]
    paper: BTreeMap<String, f64>,
}

/// Hosts by their kind, or with a minimum timeout of their own.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "`linux`, `rfc`, or a table of `name`, `like` and `least_timeout`"
)]
enum HostsFile {
    Like(HostsLike),
    With(HostsWith),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostsWith {
    name: String,
    like: HostsLike,
    least_timeout: Text<Duration>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SettingFile {
    name: String,
    bottlenecks: Vec<Bottleneck>,
    unit: Text<Bandwidth>,
    #[serde(default)]
    weights: Weights,
    tenants: Vec<TenantFile>,
}

/// Source of weights.
#[derive(Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Weights {
    /// Every tenant has its own.
    #[default]
    Named,
    /// Max-min fair shares of the tenants with equal weights, as multiples of the first tenant's [fairness
    /// table 3].
    MaxMin,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TenantFile {
    weight: Option<f64>,
    #[serde(default)]
    flows: u32,
    udp: Option<Text<Bandwidth>>,
    #[serde(default)]
    delay: Text<Duration>,
    crosses: Option<[usize; 2]>,
    #[serde(default)]
    active: Vec<[Text<Duration>; 2]>,
    #[serde(default)]
    changes: Vec<Change>,
}

/// Extent of the simulation.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Amount {
    rounds: u32,
    duration: Text<Duration>,
    warm_up: Text<Duration>,
    seed: u64,
}

/// Simulating a second of 150 flows takes 30 ms. Ours: a run must not take hours.
const DURATION_MAX: Duration = Duration::from_secs(3600);
const FLOWS_MAX: u32 = 1000;
const CROSSES: &str = "`crosses` names the first and the last bottleneck, from 1";

impl From<Amount> for Extent {
    fn from(amount: Amount) -> Self {
        Self {
            rounds: amount.rounds,
            duration: amount.duration,
            warm_up: amount.warm_up,
            drain: Text(Duration::ZERO),
            seed: amount.seed,
        }
    }
}

impl SharingFile {
    pub(crate) fn resolve(self, file: &str) -> Result<Plan, PlanError> {
        self.plan().map_err(|what| PlanError::meaning(file, what))
    }

    fn plan(self) -> Result<Plan, String> {
        let (run, quick) = (Extent::from(self.run), Extent::from(self.quick));
        for (extent, table) in [(&run, "run"), (&quick, "quick")] {
            extent.check(table)?;
            if extent.duration.0 > DURATION_MAX {
                return Err(format!("[{table}] duration: an hour at most"));
            }
        }
        let settings = self.settings.into_iter().map(|setting| {
            let name = setting.name.clone();
            let resolved = setting.resolve();
            resolved.map_err(|what| format!("setting `{name}`: {what}"))
        });
        let mut sharing = Sharing {
            settings: settings.collect::<Result<_, _>>()?,
            controls: self.controls,
            hosts: self.hosts.into_iter().map(Hosts::from).collect(),
            begin: self.begin.0,
            figure: self.figure,
            targets: Vec::new(),
            paper: BTreeMap::new(),
        };
        check(&sharing)?;
        let names = report::names(&sharing);
        let units: BTreeMap<String, &str> = names.iter().cloned().collect();
        if units.len() != names.len() {
            return Err("two cases have the same name".to_owned());
        }
        let rows: Vec<String> = units.keys().cloned().collect();
        let unit_of = |row: &str| units.get(row).copied().unwrap_or("UNIT");
        let targets = self.targets.iter();
        let targets = targets.map(|text| Target::parse(text, &rows, unit_of));
        sharing.targets = targets.collect::<Result<_, _>>()?;
        sharing.paper = row::checked_paper(self.paper, &rows)?;
        Ok(Plan {
            setup: as_setup(&self.id, &self.title, &sharing, run, quick),
            id: self.id,
            title: self.title,
            source: self.source,
            kind: Kind::Measurement,
            subject: Subject::Sharing(sharing),
            rows: Vec::new(),
            paper: BTreeMap::new(),
            targets: Vec::new(),
            figures: Vec::new(),
            written: Written::default(),
        })
    }
}

impl From<HostsFile> for Hosts {
    fn from(file: HostsFile) -> Self {
        match file {
            HostsFile::Like(like) => Self {
                name: like.name().to_owned(),
                like,
                least_timeout: None,
            },
            HostsFile::With(with) => Self {
                name: with.name,
                like: with.like,
                least_timeout: Some(with.least_timeout.0),
            },
        }
    }
}

impl SettingFile {
    fn resolve(self) -> Result<Setting, String> {
        let weights = match self.weights {
            Weights::Named => self.named_weights()?,
            Weights::MaxMin => self.max_min_weights()?,
        };
        let tenants = self.tenants.into_iter().zip(weights);
        let tenant = |(file, weight): (TenantFile, f64)| Tenant {
            weight,
            flows: file.flows,
            udp: file.udp,
            delay: file.delay,
            crosses: file.crosses,
            active: file.active,
            changes: file.changes,
        };
        let setting = Setting {
            name: self.name,
            bottlenecks: self.bottlenecks,
            unit: self.unit,
            tenants: tenants.map(tenant).collect(),
        };
        check_setting(&setting).map(|()| setting)
    }

    fn named_weights(&self) -> Result<Vec<f64>, String> {
        let weight = |(number, tenant): (usize, &TenantFile)| {
            let what = || format!("tenant {number}: it needs a `weight`");
            tenant.weight.ok_or_else(what)
        };
        (1..).zip(&self.tenants).map(weight).collect()
    }

    fn max_min_weights(&self) -> Result<Vec<f64>, String> {
        let flow = |(number, tenant): (usize, &TenantFile)| {
            let [first, last] = tenant.crosses.unwrap_or([1, 1]);
            match (tenant.weight, first) {
                (Some(_), _) => Err(format!(
                    "tenant {number}: `weights = \"max-min\"` says its weight, leave it out"
                )),
                (None, first) if first == 0 || last > self.bottlenecks.len() => {
                    Err(format!("tenant {number}: {CROSSES}"))
                }
                (None, _) => Ok(Flow {
                    weight: Weight::ONE,
                    route: (first - 1..last).collect(),
                }),
            }
        };
        let flows: Vec<Flow> = (1..)
            .zip(&self.tenants)
            .map(flow)
            .collect::<Result<_, _>>()?;
        let links = self.bottlenecks.iter().map(|link| link.rate.0);
        let rates = max_min(&links.collect::<Vec<_>>(), &flows).map_err(|none| {
            let (NoShare::Unbounded { flow } | NoShare::UnknownLink { flow, .. }) = none;
            format!("tenant {}: {CROSSES}", flow + 1)
        })?;
        Ok(rates.iter().map(|rate| rate / rates[0]).collect())
    }
}

fn check(sharing: &Sharing) -> Result<(), String> {
    distinct("controls", sharing.controls.iter().map(|c| c.name.as_str()))?;
    distinct("settings", sharing.settings.iter().map(|s| s.name.as_str()))?;
    distinct("hosts", sharing.hosts.iter().map(|h| h.name.as_str()))?;
    let least = |hosts: &Hosts| hosts.least_timeout.is_none_or(|least| !least.is_zero());
    if let Some(hosts) = sharing.hosts.iter().find(|hosts| !least(hosts)) {
        return Err(format!(
            "hosts `{}`: least_timeout must be above zero",
            hosts.name
        ));
    }
    for control in &sharing.controls {
        let name = &control.name;
        match control.controller {
            Controller::I2vfc { a, b, .. } if Aimd::new(a, b).is_none() => {
                return Err(format!(
                    "control `{name}`: a must be above 0, and b within 0 and 1"
                ));
            }
            Controller::Keiro { unit } | Controller::I2vfc { unit, .. }
                if !(unit.is_finite() && unit > 0.0) =>
            {
                return Err(format!("control `{name}`: unit must be above 0"));
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_setting(setting: &Setting) -> Result<(), String> {
    let links = setting.bottlenecks.len();
    if setting.bottlenecks.iter().any(|link| link.rate.0.is_zero()) || setting.unit.0.is_zero() {
        return Err("rates and the unit must be above zero".to_owned());
    }
    if links == 0 || setting.tenants.is_empty() {
        return Err("it needs a bottleneck and a tenant".to_owned());
    }
    for (number, tenant) in (1..).zip(&setting.tenants) {
        let wrong = |what: &str| Err(format!("tenant {number}: {what}"));
        let [first, last] = tenant.crosses.unwrap_or([1, 1]);
        if first < 1 || first > last || last > links {
            return wrong(CROSSES);
        }
        let weights = tenant.changes.iter().map(|change| change.weight);
        if weights
            .chain([tenant.weight])
            .any(|w| Weight::new(w).is_none())
        {
            return wrong("a weight must be above zero and at most a million");
        }
        if tenant.flows > FLOWS_MAX || (tenant.flows == 0 && tenant.udp.is_none()) {
            return wrong("it needs 1 to 1000 flows, or `udp`");
        }
        let ordered = tenant.active.iter().flatten().map(|at| at.0);
        if !ordered.is_sorted_by(|a, b| a < b) {
            return wrong("`active` is pairs of times, each after the one before");
        }
        if !tenant.changes.is_sorted_by(|a, b| a.at.0 < b.at.0) {
            return wrong("`changes` are in order of time");
        }
    }
    Ok(())
}

fn distinct<'a>(key: &str, names: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for name in names {
        if name.is_empty() || !seen.insert(name) {
            return Err(format!("{key}: `{name}` is empty or there twice"));
        }
    }
    match seen.is_empty() {
        true => Err(format!("`{key}` is empty; name one at least")),
        false => Ok(()),
    }
}

/// Extent and variants, for status and manifest.
fn as_setup(id: &str, title: &str, sharing: &Sharing, run: Extent, quick: Extent) -> Setup {
    let variant = |(number, case): (u32, super::Case)| Variant {
        id: format!("{number}"),
        name: sharing.name(case),
        transport: Transport::Gateway,
        assignment: None,
        scheduler: None,
        simulated: true,
        headers: Headers {
            payload: Text(ByteCount::new(1500)),
            overhead: Text(ByteCount::ZERO),
        },
    };
    Setup {
        id: id.to_owned(),
        title: title.to_owned(),
        topology: GENERATED_TOPOLOGY.to_owned(),
        paths: Vec::new(),
        applications: Vec::new(),
        variants: (0..).zip(sharing.cases()).map(variant).collect(),
        run,
        quick,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = include_str!("../../../../experiments/fairness/fig7/plan.toml");

    fn parse(text: &str) -> Result<Plan, String> {
        Plan::parse("p.toml", text, |_| None).map_err(|error| error.to_string())
    }

    #[test]
    fn rows_are_named_by_control_setting_and_quantity() {
        let plan = parse(PLAN).expect("the plan is valid");
        let sharing = plan.sharing().expect("it is of this kind").clone();
        let names: Vec<String> = report::names(&sharing).into_iter().map(|n| n.0).collect();
        for name in ["keiro b3=10 F", "i2vfc b3=30 settled", "none b3=20 queue 2"] {
            assert!(names.iter().any(|known| known == name), "{name}: {names:?}");
        }
    }

    #[test]
    fn weights_of_three_bottlenecks_are_the_papers() {
        let sharing = parse(PLAN).expect("it is valid").sharing().cloned();
        let settings = sharing.expect("it is of this kind").settings;
        let weights = |setting: &Setting| -> Vec<f64> {
            setting.tenants.iter().map(|tenant| tenant.weight).collect()
        };
        let all: Vec<Vec<f64>> = settings.iter().map(weights).collect();
        let table3 = [
            [1.0, 3.0, 1.0, 1.0],
            [1.0, 3.0, 1.0, 3.0],
            [1.0, 3.0, 1.0, 5.0],
        ];
        assert_eq!(all, table3);
    }

    #[test]
    fn weights_and_least_timeouts_of_zero_are_refused() {
        let named = PLAN
            .replace("weights = \"max-min\"", "")
            .replace("{ flows", "{ weight = 0, flows");
        let error = parse(&named).expect_err("zero is no weight");
        assert!(error.contains("a weight must be above zero"), "{error}");
        let hosts = |least: &str| {
            let hosts =
                format!("[{{ name = \"h\", like = \"rfc\", least_timeout = \"{least}\" }}]");
            parse(&PLAN.replace("[\"linux\"]", &hosts))
        };
        let sharing = hosts("20ms").expect("it is valid").sharing().cloned();
        let least = sharing.expect("it is of this kind").hosts[0].least_timeout;
        assert_eq!(least, Some(Duration::from_millis(20)));
        let error = hosts("0ms").expect_err("no timeout is that short");
        assert!(
            error.contains("least_timeout must be above zero"),
            "{error}"
        );
    }

    #[test]
    fn invalid_values_are_refused_with_a_hint() {
        for (from, to, what) in [
            ("a = 0.5", "a = 0.0", "a must be above 0"),
            (
                "crosses = [1, 3]",
                "crosses = [1, 4]",
                "tenant 1: `crosses`",
            ),
            (
                "{ flows = 30, crosses = [1, 1] }",
                "{ weight = 3, flows = 30, crosses = [1, 1] }",
                "tenant 2: `weights = \"max-min\"`",
            ),
            ("weights = \"max-min\"", "", "tenant 1: it needs a `weight`"),
            (
                "crosses = [2, 2]",
                "crosses = [0, 2]",
                "tenant 3: `crosses`",
            ),
            ("flows = 30", "flows = 0", "it needs 1 to 1000 flows"),
            ("rate = \"20Mbit\"", "rate = \"0Mbit\"", "above zero"),
            ("warm_up = \"10s\"", "warm_up = \"60s\"", "counts nothing"),
            ("hosts = [\"linux\"]", "hosts = []", "`hosts` is empty"),
            (
                "hosts = [\"linux\"]",
                "hosts = [\"lynux\"]",
                "`linux`, `rfc`, or",
            ),
        ] {
            assert!(PLAN.contains(from), "the plan has no `{from}`");
            let error = parse(&PLAN.replacen(from, to, 1)).expect_err(from);
            assert!(error.contains(what), "`{what}` is missing in: {error}");
        }
    }
}
