//! Max-min fair rates of flows over links, from a file: weights, demands and capacities.

use std::{collections::BTreeMap, path::Path};

use keiro_config::FileLimits;
use keiro_control::units::Text;
use keiro_model::fairness::{
    controller::Weight,
    shares::{Flow, max_min},
};
use keiro_units::Bandwidth;
use serde::{Deserialize, Serialize};

use crate::{error::PlanError, setup::nearest, vary};

/// The rates, in the order of the file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Allocation {
    pub flows: Vec<FlowRate>,
    /// In the order of their names.
    pub links: Vec<LinkUse>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlowRate {
    pub name: String,
    pub weight: f64,
    /// In Mbit/s; `None`: as much as there is.
    pub demand_mbit: Option<f64>,
    pub rate_mbit: f64,
    /// The full link at which no flow has more per weight, or `demand`.
    pub bound_by: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkUse {
    pub name: String,
    pub capacity_mbit: f64,
    pub used_mbit: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    links: BTreeMap<String, Text<Bandwidth>>,
    flows: Vec<FlowFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FlowFile {
    name: String,
    #[serde(default = "one")]
    weight: f64,
    demand: Option<Text<Bandwidth>>,
    links: Vec<String>,
}

fn one() -> f64 {
    1.0
}

const LIMITS: FileLimits = FileLimits {
    bytes_max: 1 << 20,
    missing_hint: "docs/experiments.md has an example",
    too_long_hint: "name fewer flows",
};
/// Ours: time grows with the product of both.
const FLOWS_MAX: usize = 1000;
const LINKS_MAX: usize = 1000;
/// Relative; the rates are sums of floating-point numbers.
const EXACT: f64 = 1e-9;

impl Allocation {
    /// # Errors
    /// What is wrong with the file, and where.
    pub fn read(path: &Path) -> Result<Self, PlanError> {
        Self::parse(&path.display().to_string(), &LIMITS.read(path)?)
    }

    /// `file` names the text in errors.
    ///
    /// # Errors
    /// What is wrong with the text, and where.
    pub fn parse(file: &str, text: &str) -> Result<Self, PlanError> {
        let read: File = keiro_config::deserialize(text, file)?;
        read.allocate()
            .map_err(|what| vary::located(file, text, &what))
    }
}

impl File {
    fn allocate(&self) -> Result<Allocation, String> {
        if !(1..=FLOWS_MAX).contains(&self.flows.len()) || self.links.len() > LINKS_MAX {
            return Err(format!(
                "flows: 1 to {FLOWS_MAX}, over {LINKS_MAX} links at most"
            ));
        }
        let places: BTreeMap<&str, usize> =
            self.links.keys().map(String::as_str).zip(0..).collect();
        let mut capacities: Vec<Bandwidth> = self.links.values().map(|rate| rate.0).collect();
        let mut flows = Vec::new();
        for flow in &self.flows {
            let mut route = flow.route(&places)?;
            if let Some(demand) = flow.demand {
                // A link of its own bounds a flow as its demand does.
                route.push(capacities.len());
                capacities.push(demand.0);
            }
            let weight = Weight::new(flow.weight).ok_or_else(|| {
                let name = &flow.name;
                format!("flow `{name}`: a weight must be above zero and at most a million")
            })?;
            flows.push(Flow { weight, route });
        }
        let rates = max_min(&capacities, &flows).map_err(|none| format!("flows: {none:?}"))?;
        let mut used = vec![0.0; capacities.len()];
        let mut highest = vec![0.0_f64; capacities.len()];
        for (flow, rate) in flows.iter().zip(&rates) {
            for &link in &flow.route {
                used[link] += rate;
                highest[link] = highest[link].max(rate / flow.weight.get());
            }
        }
        let bound_by = |flow: &Flow, rate: f64| {
            let level = rate / flow.weight.get();
            let binds = |link: &&usize| {
                let capacity = capacities[**link].as_bits_per_second() as f64;
                used[**link] >= capacity * (1.0 - EXACT) && level >= highest[**link] * (1.0 - EXACT)
            };
            let link = flow.route.iter().find(binds);
            link.and_then(|link| self.links.keys().nth(*link))
                .map_or_else(|| "demand".to_owned(), Clone::clone)
        };
        let rate = |((file, flow), rate): ((&FlowFile, &Flow), &f64)| FlowRate {
            name: file.name.clone(),
            weight: file.weight,
            demand_mbit: file.demand.map(|demand| megabits(demand.0)),
            rate_mbit: rate / 1e6,
            bound_by: bound_by(flow, *rate),
        };
        let links = self.links.iter().zip(&used);
        Ok(Allocation {
            flows: self
                .flows
                .iter()
                .zip(&flows)
                .zip(&rates)
                .map(rate)
                .collect(),
            links: links
                .map(|((name, capacity), used)| LinkUse {
                    name: name.clone(),
                    capacity_mbit: megabits(capacity.0),
                    used_mbit: used / 1e6,
                })
                .collect(),
        })
    }
}

impl FlowFile {
    fn route(&self, places: &BTreeMap<&str, usize>) -> Result<Vec<usize>, String> {
        let name = &self.name;
        if self.links.is_empty() {
            return Err(format!("flow `{name}` takes no link; name one at least"));
        }
        let place = |link: &String| {
            places.get(link.as_str()).copied().ok_or_else(|| {
                let near = nearest(link, places.keys().copied());
                let all = places.keys().copied().collect::<Vec<_>>().join(", ");
                format!("there is no link `{link}`{near}; there are {all}")
            })
        };
        let mut route: Vec<usize> = self.links.iter().map(place).collect::<Result<_, _>>()?;
        route.sort_unstable();
        route.dedup();
        Ok(route)
    }
}

fn megabits(rate: Bandwidth) -> f64 {
    rate.as_bits_per_second() as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [fairness fig. 6, table 3] with 20 Mbit/s of link 3.
    const PAPER: &str = r#"
[links]
one = "20Mbit"
two = "10Mbit"
three = "20Mbit"

[[flows]]
name = "vpn1"
links = ["one", "two", "three"]
[[flows]]
name = "vpn2"
links = ["one"]
[[flows]]
name = "vpn3"
links = ["two"]
[[flows]]
name = "vpn4"
links = ["three"]
"#;

    fn rates(text: &str) -> Vec<(f64, String)> {
        let allocation = Allocation::parse("f.toml", text).expect("it is valid");
        let flows = allocation.flows.into_iter();
        flows
            .map(|flow| (flow.rate_mbit.round(), flow.bound_by))
            .collect()
    }

    #[test]
    fn rates_of_the_papers_network_follow() {
        let named = |rate, by: &str| (rate, by.to_owned());
        assert_eq!(
            rates(PAPER),
            [
                named(5.0, "two"),
                named(15.0, "one"),
                named(5.0, "two"),
                named(15.0, "three")
            ]
        );
    }

    #[test]
    fn a_demand_bounds_a_flow_and_leaves_the_rest_to_others_by_weight() {
        let text = "[links]\nl = \"10Mbit\"\n\
                    [[flows]]\nname = \"a\"\ndemand = \"1Mbit\"\nlinks = [\"l\"]\n\
                    [[flows]]\nname = \"b\"\nweight = 2\nlinks = [\"l\"]\n\
                    [[flows]]\nname = \"c\"\nlinks = [\"l\", \"l\"]\n";
        let named = |rate, by: &str| (rate, by.to_owned());
        assert_eq!(
            rates(text),
            [named(1.0, "demand"), named(6.0, "l"), named(3.0, "l")]
        );
        let all = Allocation::parse("f.toml", text).expect("it is valid");
        assert!((all.links[0].used_mbit - 10.0).abs() < 1e-9);
    }

    #[test]
    fn wrong_files_are_refused_with_key_and_place() {
        for (from, to, parts) in [
            (
                "\"two\", \"three\"]",
                "\"too\"]",
                &[
                    "f.toml:9:",
                    "`too`",
                    "did you mean `two`",
                    "one, three, two",
                ][..],
            ),
            (
                "links = [\"two\"]",
                "links = []",
                &["f.toml:14:", "`vpn3`", "no link"],
            ),
            (
                "name = \"vpn4\"",
                "name = \"vpn4\"\nweight = -1",
                &["f.toml:17:", "`vpn4`", "above zero"],
            ),
            ("one = \"20Mbit\"", "one = 20", &["f.toml:3:7"]),
            (
                "name = \"vpn4\"",
                "name = \"vpn4\"\nwieght = 1",
                &["f.toml:18:1", "`wieght`", "`weight`"],
            ),
        ] {
            assert!(PAPER.contains(from), "{from}");
            let error = Allocation::parse("f.toml", &PAPER.replacen(from, to, 1)).expect_err(to);
            let error = error.to_string();
            for part in parts {
                assert!(error.contains(part), "`{part}` is missing in: {error}");
            }
        }
    }
}
