//! What a measurement between two hosts found, as a document and as tables.

use std::{fmt::Write as _, net::SocketAddr, time::Duration};

use keiro_measure::{
    net::{
        Connection, DelayVariation, Direction, NetError, OneWay, ProbeReport, TrainReport,
        TransferPlan, Transfers,
    },
    report::FitReport,
    series::Record,
};
use keiro_model::{
    capacity::{Capacity, NoCapacity, median_interval},
    fit::{Fit, FitError},
};
use keiro_units::Bandwidth;
use serde::Serialize;

use super::fit;
use crate::output::{human, table::Table};

/// What was measured so far.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) server: Option<SocketAddr>,
    pub(super) round_trip_min: Duration,
    pub(super) probes: Option<ProbeReport>,
    pub(super) trains: Option<TrainReport>,
    pub(super) transfers: Transfers,
}

impl Measured {
    /// Whether there is nothing to show.
    pub(super) fn is_empty(&self) -> bool {
        self.probes.is_none() && self.trains.is_none() && self.transfers.samples.is_empty()
    }
}

/// The same with what it was measured by and what follows from it.
pub(super) struct MeasurementResult<'a> {
    pub(super) measured: &'a Measured,
    pub(super) plan: &'a TransferPlan,
    pub(super) authenticated: bool,
    pub(super) fit: Result<&'a Fit, &'a FitError>,
    pub(super) paper_units: bool,
    pub(super) ended: Option<&'a NetError>,
}

/// The answer of `keiro measure --json`. `keiro measure fit` reads it.
#[derive(Serialize)]
pub(super) struct Document {
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<String>,
    authenticated: bool,
    /// Of the control connection.
    round_trip_min_seconds: f64,
    direction: &'static str,
    connection: &'static str,
    seed: u64,
    /// Why it ended before its time; absent if it did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_early: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    probes: Option<Probes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity: Option<Capacities>,
    sizes: Vec<Size>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fit: Option<FitReport>,
    samples: Vec<Record>,
}

#[derive(Serialize)]
struct Probes {
    sent: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    round_trip: Option<RoundTrip>,
    there: DirectionReport,
    back: DirectionReport,
}

#[derive(Serialize)]
struct RoundTrip {
    min_seconds: f64,
    mean_seconds: f64,
    p50_seconds: f64,
    p95_seconds: f64,
    p99_seconds: f64,
    max_seconds: f64,
}

#[derive(Serialize)]
struct DirectionReport {
    sent: u64,
    received: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    loss_ratio: Option<f64>,
    duplicates: u64,
    reordered: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_above_least: Option<Above>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jitter_seconds: Option<f64>,
}

#[derive(Serialize)]
struct Above {
    p50_seconds: f64,
    p95_seconds: f64,
    p99_seconds: f64,
    max_seconds: f64,
}

#[derive(Serialize)]
struct Capacities {
    there: CapacityFound,
    back: CapacityFound,
}

/// Of IP packets.
#[derive(Serialize)]
#[serde(untagged)]
enum CapacityFound {
    Known {
        bits_per_second: u64,
        low_bits_per_second: u64,
        high_bits_per_second: u64,
        trains_used: usize,
        agreement_ratio: f64,
    },
    Unknown {
        reason: String,
    },
}

#[derive(Serialize)]
struct Size {
    bytes: u64,
    transfers: usize,
    /// Whether the median's interval is as narrow as asked.
    precise: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    median_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    low_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    high_seconds: Option<f64>,
}

impl MeasurementResult<'_> {
    pub(super) fn document(&self) -> Document {
        let measured = self.measured;
        Document {
            server: measured.server.map(|server| server.to_string()),
            authenticated: self.authenticated,
            round_trip_min_seconds: measured.round_trip_min.as_secs_f64(),
            direction: self.direction(),
            connection: self.connection(),
            seed: self.plan.seed,
            ended_early: self.ended.map(ToString::to_string),
            probes: measured.probes.as_ref().map(probes),
            capacity: measured.trains.as_ref().map(|trains| Capacities {
                there: capacity(&trains.there),
                back: capacity(&trains.back),
            }),
            sizes: self.sizes(),
            fit: self
                .fit
                .ok()
                .map(|fit| FitReport::of(&self.title(), fit, self.paper_units)),
            samples: measured
                .transfers
                .samples
                .iter()
                .map(|timed| Record {
                    bytes: timed.bytes,
                    seconds: timed.seconds,
                })
                .collect(),
        }
    }

    /// The form for people.
    pub(super) fn text(&self) -> String {
        let measured = self.measured;
        let mut text = String::new();
        let server = measured.server.map(|s| s.to_string()).unwrap_or_default();
        let trust = if self.authenticated {
            "authenticated"
        } else {
            "NOT authenticated"
        };
        let _ = writeln!(
            text,
            "{server}, {trust}; shortest round trip over TCP {}",
            human::duration(measured.round_trip_min)
        );
        if let Some(probes) = &measured.probes {
            let _ = write!(text, "\n{}", probes_text(probes));
        }
        if let Some(trains) = &measured.trains {
            let mut table =
                Table::new(&["capacity", "IP packets>", "95 % interval>", "agreement>"]);
            capacity_row(&mut table, "there", &trains.there);
            capacity_row(&mut table, "back", &trains.back);
            let _ = write!(text, "\n{table}");
        }
        if !measured.transfers.samples.is_empty() {
            let _ = write!(text, "\n{}", self.transfers_text());
        }
        text
    }

    fn transfers_text(&self) -> String {
        let mut text = format!(
            "transfers over TCP, {}, {}:\n",
            self.direction(),
            match self.plan.connection {
                Connection::Warm => "one connection in use",
                Connection::Fresh => "a new connection for each",
            }
        );
        let mut table = Table::new(&[
            "size>",
            "transfers>",
            "median>",
            "95 % interval>",
            "rate>",
            "",
        ]);
        for size in self.sizes() {
            let seconds = |value: Option<f64>| {
                value.map_or_else(|| human::NONE.to_owned(), |s| human::duration(span(s)))
            };
            let interval = match (size.low_seconds, size.high_seconds) {
                (Some(low), Some(high)) => {
                    format!("{} to {}", seconds(Some(low)), seconds(Some(high)))
                }
                _ => human::NONE.to_owned(),
            };
            let rate = size.median_seconds.map(|s| size.bytes as f64 * 8.0 / s);
            let note = match (size.transfers, size.precise) {
                (0, _) => "not measured: the time was over",
                (_, false) => "not as precise as asked",
                (_, true) => "",
            };
            table.row([
                human::bytes(size.bytes),
                size.transfers.to_string(),
                seconds(size.median_seconds),
                interval,
                rate.map_or_else(
                    || human::NONE.to_owned(),
                    |bits| human::rate(Bandwidth::from_bits_per_second(bits as u64)),
                ),
                note.to_owned(),
            ]);
        }
        let _ = write!(text, "{table}\n{}", self.fit_text());
        text
    }

    fn fit_text(&self) -> String {
        match self.fit {
            Ok(fit) => fit::text(fit, self.paper_units),
            Err(error) => format!("no fit: {error}\n"),
        }
    }

    /// What a file of the transfers begins with.
    pub(super) fn comments(&self) -> Vec<String> {
        let mut comments = vec![
            self.title(),
            format!(
                "{}, {}, seed {}",
                self.direction(),
                self.connection(),
                self.plan.seed
            ),
        ];
        comments.extend(self.ended.map(|error| format!("ended early: {error}")));
        comments
    }

    /// Names the measurement.
    pub(super) fn title(&self) -> String {
        let server = self.measured.server;
        let server = server.map_or_else(|| "?".to_owned(), |server| server.to_string());
        match self.plan.direction {
            Direction::There => format!("to {server}"),
            Direction::Back => format!("from {server}"),
        }
    }

    fn direction(&self) -> &'static str {
        match self.plan.direction {
            Direction::There => "there",
            Direction::Back => "back",
        }
    }

    fn connection(&self) -> &'static str {
        match self.plan.connection {
            Connection::Warm => "warm",
            Connection::Fresh => "fresh",
        }
    }

    fn sizes(&self) -> Vec<Size> {
        let size = |series: &keiro_measure::net::SizeSeries| {
            let mut sorted = series.seconds.clone();
            sorted.sort_by(f64::total_cmp);
            let interval = median_interval(&sorted);
            // Of too few for an interval: the upper of the two in the middle.
            let median = sorted.get(sorted.len() / 2).copied();
            Size {
                bytes: series.bytes,
                transfers: sorted.len(),
                precise: series.precise,
                median_seconds: interval.map(|i| i.value).or(median),
                low_seconds: interval.map(|i| i.low),
                high_seconds: interval.map(|i| i.high),
            }
        };
        self.measured.transfers.series.iter().map(size).collect()
    }
}

fn probes(report: &ProbeReport) -> Probes {
    Probes {
        sent: report.sent,
        round_trip: report.round_trip.map(|trip| RoundTrip {
            min_seconds: trip.min,
            mean_seconds: trip.mean,
            p50_seconds: trip.p50,
            p95_seconds: trip.p95,
            p99_seconds: trip.p99,
            max_seconds: trip.max,
        }),
        there: way(&report.there),
        back: way(&report.back),
    }
}

fn way(way: &OneWay) -> DirectionReport {
    let above = |v: DelayVariation| Above {
        p50_seconds: v.p50,
        p95_seconds: v.p95,
        p99_seconds: v.p99,
        max_seconds: v.max,
    };
    DirectionReport {
        sent: way.sent,
        received: way.received,
        loss_ratio: way.loss(),
        duplicates: way.duplicates,
        reordered: way.reordered,
        delay_above_least: way.variation.map(above),
        jitter_seconds: way.variation.map(|v| v.jitter),
    }
}

fn capacity(found: &Result<Capacity, NoCapacity>) -> CapacityFound {
    match found {
        Ok(found) => CapacityFound::Known {
            bits_per_second: found.rate.as_bits_per_second(),
            low_bits_per_second: found.low.as_bits_per_second(),
            high_bits_per_second: found.high.as_bits_per_second(),
            trains_used: found.trains_used,
            agreement_ratio: found.agreement,
        },
        Err(reason) => CapacityFound::Unknown {
            reason: reason.to_string(),
        },
    }
}

fn capacity_row(table: &mut Table, way: &str, found: &Result<Capacity, NoCapacity>) {
    match found {
        Ok(found) => table.row([
            way.to_owned(),
            human::rate(found.rate),
            format!("{} to {}", human::rate(found.low), human::rate(found.high)),
            human::percent(found.agreement),
        ]),
        Err(reason) => table.row([
            format!("{way}: {reason}"),
            human::NONE.to_owned(),
            human::NONE.to_owned(),
            human::NONE.to_owned(),
        ]),
    }
}

fn probes_text(report: &ProbeReport) -> String {
    let Some(trip) = report.round_trip else {
        return format!(
            "of {} probes over UDP none was answered; UDP may be blocked on the way\n",
            report.sent
        );
    };
    let mut table = Table::new(&["", "min>", "mean>", "p50>", "p95>", "p99>", "max>"]);
    table.row([
        "round trip".to_owned(),
        millis(trip.min),
        millis(trip.mean),
        millis(trip.p50),
        millis(trip.p95),
        millis(trip.p99),
        millis(trip.max),
    ]);
    for (name, way) in [("there", &report.there), ("back", &report.back)] {
        if let Some(above) = way.variation {
            table.row([
                format!("delay {name}, above the least"),
                millis(0.0),
                human::NONE.to_owned(),
                millis(above.p50),
                millis(above.p95),
                millis(above.p99),
                millis(above.max),
            ]);
        }
    }
    let mut ways = Table::new(&["", "probes>", "lost>", "twice>", "overtaken>", "jitter>"]);
    for (name, way) in [("there", &report.there), ("back", &report.back)] {
        ways.row([
            name.to_owned(),
            way.sent.to_string(),
            way.loss()
                .map_or_else(|| human::NONE.to_owned(), human::percent),
            way.duplicates.to_string(),
            way.reordered.to_string(),
            way.variation
                .map_or_else(|| human::NONE.to_owned(), |v| millis(v.jitter)),
        ]);
    }
    format!("{table}\n{ways}")
}

fn span(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

fn millis(seconds: f64) -> String {
    format!("{:.3} ms", seconds * 1e3)
}
