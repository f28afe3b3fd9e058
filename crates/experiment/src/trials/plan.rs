//! Plans of trials: the question and its extent.

use std::{collections::BTreeMap, time::Duration};

use keiro_control::units::Text;
use keiro_lab::traffic::transactions::{HEADER_BYTES, MESSAGE_BYTES_MAX};
use keiro_units::{Bandwidth, ByteCount};
use serde::Deserialize;

use super::{
    Bulk, Clients, Flows, Isps, Routes, Scale, ScalePoint, Shares, Spacing, Trial, Trials,
    as_setup, row_name,
};
use crate::{
    error::PlanError,
    plan::{Kind, Plan},
    row,
    setup::Extent,
    subject::Subject,
    transactions::Target,
    vary::Written,
};

/// A plan of a trial, as its file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TrialsFile {
    id: String,
    title: String,
    source: String,
    topology: String,
    bulk: Option<Bulk>,
    clients: Option<Clients>,
    spacing: Option<Spacing>,
    shares: Option<Shares>,
    scale: Option<Scale>,
    flows: Option<Flows>,
    isps: Option<Isps>,
    routes: Option<Routes>,
    run: Extent,
    quick: Extent,
    #[serde(default)]
    targets: Vec<String>,
    #[serde(default)]
    paper: BTreeMap<String, f64>,
}

/// The table of each question, which no plan of another kind has.
pub(crate) const TABLES: [&str; 8] = [
    "bulk", "clients", "spacing", "shares", "scale", "flows", "isps", "routes",
];

impl TrialsFile {
    pub(crate) fn resolve(self, file: &str) -> Result<Plan, PlanError> {
        self.plan().map_err(|what| PlanError::meaning(file, what))
    }

    fn plan(self) -> Result<Plan, String> {
        self.run.check("run")?;
        self.quick.check("quick")?;
        let mut found = [
            self.bulk.map(Trial::Bulk),
            self.clients.map(Trial::Clients),
            self.spacing.map(Trial::Spacing),
            self.shares.map(Trial::Shares),
            self.scale.map(Trial::Scale),
            self.flows.map(Trial::Flows),
            self.isps.map(Trial::Isps),
            self.routes.map(Trial::Routes),
        ]
        .into_iter()
        .flatten();
        let (Some(trial), None) = (found.next(), found.next()) else {
            return Err(format!(
                "a plan has one of the tables {}",
                TABLES.join(", ")
            ));
        };
        check(&trial)?;
        if let Trial::Shares(shares) = &trial {
            check_shares(shares, [&self.run, &self.quick])?;
        }
        let cases = trial.cases();
        let mut units = BTreeMap::new();
        for case in &cases {
            for quantity in trial.quantities() {
                units.insert(row_name(quantity, case), quantity.unit);
            }
        }
        let rows: Vec<String> = units.keys().cloned().collect();
        if rows.len() != cases.len() * trial.quantities().len() {
            return Err("two cases have the same name".to_owned());
        }
        let unit_of = |row: &str| units.get(row).copied().unwrap_or("UNIT");
        let targets = self.targets.iter();
        let targets = targets.map(|text| Target::parse(text, &rows, unit_of));
        let trials = Trials {
            topology: self.topology,
            targets: targets.collect::<Result<_, _>>()?,
            paper: row::checked_paper(self.paper, &rows)?,
            trial,
        };
        Ok(Plan {
            setup: as_setup(&self.id, &self.title, &trials, self.run, self.quick),
            id: self.id,
            title: self.title,
            source: self.source,
            kind: Kind::Measurement,
            subject: Subject::Trials(trials),
            rows: Vec::new(),
            paper: BTreeMap::new(),
            targets: Vec::new(),
            figures: Vec::new(),
            written: Written::default(),
        })
    }
}

fn check(trial: &Trial) -> Result<(), String> {
    match trial {
        Trial::Bulk(bulk) => check_bulk(bulk),
        Trial::Clients(clients) => check_clients(clients),
        Trial::Spacing(spacing) => check_spacing(spacing),
        // Depends on the extent, see `check_shares`.
        Trial::Shares(_) => Ok(()),
        Trial::Scale(scale) => check_scale(scale),
        Trial::Flows(flows) => check_flows(flows),
        Trial::Isps(isps) => isps.check(),
        Trial::Routes(routes) => check_routes(routes),
    }
}

fn require(condition: bool, message: &str) -> Result<(), String> {
    match condition {
        true => Ok(()),
        false => Err(message.to_owned()),
    }
}

fn check_message(bytes: ByteCount) -> Result<(), String> {
    match (HEADER_BYTES as u64..=MESSAGE_BYTES_MAX).contains(&bytes.get()) {
        true => Ok(()),
        false => Err(format!(
            "message: {} bytes are not within {HEADER_BYTES} and {MESSAGE_BYTES_MAX}",
            bytes.get()
        )),
    }
}

fn check_bulk(bulk: &Bulk) -> Result<(), String> {
    require(
        ![bulk.file.run.0, bulk.file.quick.0].contains(&ByteCount::ZERO)
            && !bulk.round_trips.is_empty()
            && bulk.rate.0 != Bandwidth::ZERO
            && !bulk.probe.0.is_zero(),
        "[bulk] needs a rate, round trips, a file that is not empty and a time",
    )
}

fn check_clients(clients: &Clients) -> Result<(), String> {
    check_message(clients.message.0)?;
    let counts = [
        clients.idle.run,
        clients.idle.quick,
        clients.active.run,
        clients.active.quick,
    ];
    let requests = [clients.per_second.run, clients.per_second.quick];
    require(
        !counts.contains(&0) && !requests.contains(&0) && clients.rate.0 != Bandwidth::ZERO,
        "[clients] needs a rate, clients of both kinds and requests",
    )
}

fn check_scale(scale: &Scale) -> Result<(), String> {
    let is_possible = |point: &ScalePoint| {
        (1..=SCALE_TENANTS_MAX).contains(&point.tenants)
            && point.offered.0 >= scale_offered_min(point)
    };
    let packet = SCALE_PACKET_BYTES.contains(&scale.packet.0.get());
    let points = !scale.points.is_empty() && scale.points.iter().all(is_possible);
    match packet && points && scale.rate.0 != Bandwidth::ZERO {
        true => Ok(()),
        false => Err(format!(
            "[scale] needs a rate, packets of {} to {} bytes, and points of 1 to \
             {SCALE_TENANTS_MAX} tenants that each offer 1 kbit/s or more",
            SCALE_PACKET_BYTES.start(),
            SCALE_PACKET_BYTES.end()
        )),
    }
}

fn check_flows(flows: &Flows) -> Result<(), String> {
    let mut rates = vec![flows.cbr.0];
    for pattern in &flows.patterns {
        rates.extend([pattern.a.0, pattern.b.0]);
        if let Some(then) = &pattern.then {
            rates.extend([then.a.0, then.b.0]);
        }
    }
    let bulk = [flows.bulk.run.0, flows.bulk.quick.0];
    require(
        !flows.patterns.is_empty()
            && !flows.transports.is_empty()
            && !rates.contains(&Bandwidth::ZERO)
            && !bulk.contains(&ByteCount::ZERO),
        "[flows] needs patterns of rates, transports and bytes",
    )
}

fn check_routes(routes: &Routes) -> Result<(), String> {
    require(
        ![routes.changes.run, routes.changes.quick].contains(&0)
            && !routes.reflectors.is_empty()
            && routes.flow.0 != Bandwidth::ZERO
            && !routes.apart.0.is_zero()
            && (1..=WRITE_BYTES_MAX).contains(&routes.write.0.get()),
        "[routes] needs changes with time between them, reflectors, a flow and a `write` of 1B to 128KiB",
    )
}

fn check_spacing(spacing: &Spacing) -> Result<(), String> {
    for load in &spacing.loads {
        check_message(load.message.0)?;
    }
    require(
        !spacing.bandwidths.is_empty()
            && spacing.bandwidths.iter().all(|b| b.0 != Bandwidth::ZERO)
            && spacing.clients > 0
            && !spacing.loads.is_empty()
            && spacing.loads.iter().all(|load| load.per_second > 0)
            && (0.1..=100.0).contains(&spacing.rate_factor),
        "[spacing] needs bandwidths, clients, loads with transactions and a `rate_factor` of 0.1 to 100",
    )
}

fn check_shares(shares: &Shares, extents: [&Extent; 2]) -> Result<(), String> {
    let is_word = |name: &String| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    if shares.flows.len() < 2
        || shares.flows.len() > TENANTS_MAX
        || shares.flows.contains(&0)
        || shares.ways.is_empty()
        || shares.congestion.is_empty()
        || !shares.congestion.iter().all(is_word)
        || shares.rate.0 == Bandwidth::ZERO
        || shares.unit.0 == Bandwidth::ZERO
        || shares.round_trip.0.is_zero()
    {
        return Err(format!(
            "[shares] needs a rate, a unit, a round trip, flows for 2 to {TENANTS_MAX} tenants, ways and names of congestion \
             controls"
        ));
    }
    let least = shares.counts_from() + SHARES_TIME_MIN;
    match extents.iter().find(|extent| extent.duration.0 < least) {
        Some(extent) => Err(format!(
            "a duration of {} is too short: shares count from {} on, for {} at least",
            extent.duration,
            Text(shares.counts_from()),
            Text(SHARES_TIME_MIN)
        )),
        None => Ok(()),
    }
}

fn scale_offered_min(point: &ScalePoint) -> Bandwidth {
    Bandwidth::from_bits_per_second(1000 * point.tenants as u64)
}

/// Number of devices that a run makes at each end. Ours: a thousand take a gateway some seconds.
const SCALE_TENANTS_MAX: usize = 4000;
/// Minimum of an IPv4 packet with UDP, and the maximum of a device.
const SCALE_PACKET_BYTES: std::ops::RangeInclusive<u64> = 64..=1400;
/// Number of sites in the topology.
const TENANTS_MAX: usize = 4;
/// Maximum of bytes that the flow's sender writes at once.
const WRITE_BYTES_MAX: u64 = 1 << 17;
/// Fewer bins are not significant. Ours.
const SHARES_TIME_MIN: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    const BULK: &str = include_str!("../../../../experiments/aggregation/bulk/plan.toml");
    const SPACING: &str = include_str!("../../../../experiments/aggregation/spacing/plan.toml");

    fn parse(text: &str) -> Result<Plan, PlanError> {
        Plan::parse("p.toml", text, |_| None)
    }

    #[test]
    fn rows_are_quantities_of_cases() {
        let plan = parse(BULK).unwrap();
        let names: Vec<&str> = plan
            .setup
            .variants
            .iter()
            .map(|v| v.name.as_str())
            .collect();
        assert_eq!(
            names,
            [
                "up 1ms",
                "down 1ms",
                "up 20ms",
                "down 20ms",
                "up 50ms",
                "down 50ms"
            ]
        );
        let trials = plan.trials().unwrap().clone();
        assert_eq!(trials.targets[0].row, "share up 1ms");
        assert_eq!(
            row_name(&trials.trial.quantities()[3], "down 1ms"),
            "damaged down 1ms"
        );
    }

    #[test]
    fn invalid_values_are_refused_with_a_hint() {
        for (text, from, to, what) in [
            (BULK, "rate = ", "rate_of = ", "unknown key `rate_of`"),
            (BULK, "1GiB", "0B", "a file that is not empty"),
            (BULK, "[\"1ms\", \"20ms\", \"50ms\"]", "[]", "round trips"),
            (
                BULK,
                "share up 1ms >= ",
                "share upp 1ms >= ",
                "did you mean `share up 1ms`",
            ),
            (
                BULK,
                "share up 1ms >= 90 %",
                "share up 1ms >= 90 ms",
                "there is no row `90 ms`",
            ),
            (BULK, "rounds = ", "rounds = 0 # ", "[run] counts nothing"),
            (SPACING, "clients = ", "clients = 0 # ", "[spacing] needs"),
            (SPACING, "\"64B\"", "\"8B\"", "message: 8 bytes"),
            (
                SPACING,
                "\"20Mbit\"",
                "\"10Mbit\"",
                "two cases have the same name",
            ),
            (SPACING, "[spacing]", "[bulk]", "unknown key `bandwidths`"),
        ] {
            assert!(text.contains(from), "{from}");
            let error = parse(&text.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(what), "{to}: {error}");
        }
        let both = format!("{BULK}\n{}", &SPACING[SPACING.find("[spacing]").unwrap()..]);
        let both = both
            .split("[run]\n")
            .take(2)
            .collect::<Vec<_>>()
            .join("[run]\n");
        let error = parse(&both).unwrap_err().to_string();
        assert!(error.contains("one of the tables"), "{error}");
    }
}
