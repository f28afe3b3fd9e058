//! Plans of transactions: transports and extent.

use std::collections::{BTreeMap, BTreeSet};

use keiro_lab::traffic::transactions::{HEADER_BYTES, MESSAGE_BYTES_MAX};
use serde::Deserialize;

use super::{
    Case, LoadPlan, Statistic, Target, Traffic, TransactionTransport, Transactions, as_setup,
    report,
};
use crate::{
    campaign::REPEATS_MAX,
    error::PlanError,
    plan::{Kind, Plan},
    row,
    setup::Extent,
    subject::Subject,
    vary::Written,
};

/// The file of a plan that compares transports of transactions.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TransactionsFile {
    id: String,
    title: String,
    source: String,
    topology: String,
    #[serde(rename = "ways")]
    transports: Vec<TransactionTransport>,
    round_trips: Vec<u32>,
    transactions: Traffic,
    load: LoadPlan,
    run: Extent,
    quick: Extent,
    #[serde(default)]
    targets: Vec<String>,
    #[serde(default)]
    paper: BTreeMap<String, f64>,
}

impl TransactionsFile {
    pub(crate) fn resolve(self, file: &str) -> Result<Plan, PlanError> {
        self.plan().map_err(|what| PlanError::meaning(file, what))
    }

    fn plan(self) -> Result<Plan, String> {
        self.check()?;
        let mut cases = Vec::new();
        for &round_trips in &self.round_trips {
            for load in [false, true] {
                // The load makes the server's gateway lose packets.
                let transports = self
                    .transports
                    .iter()
                    .filter(|transport| transport.repairs() || !load);
                cases.extend(transports.map(|&transport| Case {
                    transport,
                    load,
                    round_trips,
                }));
            }
        }
        let rows: Vec<String> = cases
            .iter()
            .flat_map(|case| Statistic::ALL.map(|statistic| case.row(statistic.name())))
            .collect();
        let paper = row::checked_paper(self.paper, &rows)?;
        let unended: Vec<String> = cases.iter().map(report::unended_row).collect();
        let asked_of = [rows, unended.clone()].concat();
        let unit_of = |row: &str| match unended.iter().any(|unended| unended == row) {
            true => report::UNENDED_UNIT,
            false => "ms",
        };
        let targets = self
            .targets
            .iter()
            .map(|text| Target::parse(text, &asked_of, unit_of));
        let transactions = Transactions {
            targets: targets.collect::<Result<_, _>>()?,
            topology: self.topology,
            cases,
            traffic: self.transactions,
            load: self.load,
            pause_repeats: REPEATS_MAX,
            paper,
        };
        Ok(Plan {
            setup: as_setup(&self.id, &self.title, &transactions, self.run, self.quick),
            id: self.id,
            title: self.title,
            source: self.source,
            kind: Kind::Measurement,
            subject: Subject::Transactions(transactions),
            rows: Vec::new(),
            paper: BTreeMap::new(),
            targets: Vec::new(),
            figures: Vec::new(),
            written: Written::default(),
        })
    }

    fn check(&self) -> Result<(), String> {
        if !is_set(&self.round_trips) || self.round_trips.contains(&0) {
            return Err("`round_trips` needs at least one number above zero, each once".into());
        }
        if !is_set(&self.transports) {
            return Err("`ways` needs at least one way, each once".into());
        }
        let traffic = &self.transactions;
        if traffic.per_second == 0 || traffic.clients_per_host == 0 {
            return Err("[transactions] needs a transaction a second and a client".into());
        }
        let message = traffic.message.0.get();
        if !(HEADER_BYTES as u64..=MESSAGE_BYTES_MAX).contains(&message) {
            return Err(format!(
                "[transactions] message: {} is not within {HEADER_BYTES} and {MESSAGE_BYTES_MAX} bytes",
                traffic.message
            ));
        }
        if self.load.burst == 0 || self.load.every.0.is_zero() {
            return Err("[load] needs a datagram in a burst, and a time between bursts".into());
        }
        self.run.check("run")?;
        self.quick.check("quick")
    }
}

/// Whether there are values, each once.
fn is_set<T: Ord>(values: &[T]) -> bool {
    let distinct: BTreeSet<&T> = values.iter().collect();
    !values.is_empty() && distinct.len() == values.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = include_str!("../../../../experiments/aggregation/table5/plan.toml");

    fn parse(text: &str) -> Result<Plan, PlanError> {
        Plan::parse("p.toml", text, |_| None)
    }

    #[test]
    fn cases_are_transports_with_and_without_load() {
        let plan = parse(GOOD).unwrap();
        let transactions = plan.transactions().unwrap().clone();
        // One transport is for links without loss, so it has no row with load.
        assert_eq!(
            transactions.cases.len(),
            TransactionTransport::ALL.len() * 4 - 2
        );
        let names: Vec<String> = transactions.cases.iter().map(Case::to_string).collect();
        assert!(names.contains(&"tcp-cubic no load 6rt".to_owned()));
        let last = transactions.cases.last().unwrap();
        assert_eq!(
            last.row("p99.9"),
            format!("{} load p99.9 12rt", last.transport)
        );
        assert_eq!(plan.setup.variants.len(), transactions.cases.len());
        let counted = plan.setup.run.duration.0 - plan.setup.run.warm_up.0;
        let a_run = counted.as_secs() * u64::from(transactions.traffic.per_second);
        assert!(a_run >= 24_000);
    }

    #[test]
    fn invalid_values_are_refused_with_a_hint() {
        for (from, to, what) in [
            ("\"tcp-cubic\"", "\"tcp-cubik\"", "tcp-cubik"),
            ("[6, 12]", "[6, 6]", "`round_trips` needs"),
            ("[6, 12]", "[0]", "`round_trips` needs"),
            ("\"64B\"\n\n", "\"8B\"\n\n", "message: 8B is not within 20"),
            ("burst = ", "burst = 0 # ", "a datagram in a burst"),
            ("rounds = 5", "rounds = 0", "[run] counts nothing"),
            (
                "\"tcp-cubic no load min 6rt\"",
                "\"tcp-cubic no load mim 6rt\"",
                "did you mean `tcp-cubic no load min 6rt`",
            ),
        ] {
            assert!(GOOD.contains(from), "{from}");
            let error = parse(&GOOD.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(what), "{to}: {error}");
        }
    }
}
