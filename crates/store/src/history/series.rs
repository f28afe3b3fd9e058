//! The columns of each kind of sample, and how minutes become hours.

use serde::{Deserialize, Serialize};

/// A path in one minute or hour. `None`: not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PathSample {
    /// What it carries, with all headers; the mean.
    pub capacity_bits_per_second: Option<f64>,
    /// What others left free; the mean.
    pub available_bits_per_second: Option<f64>,
    /// One way, without queues; the least.
    pub base_delay_seconds: Option<f64>,
    /// Interarrival jitter (RFC 3550 §6.4.1); the mean.
    pub jitter_seconds: Option<f64>,
    /// 0 to 1; the mean.
    pub loss_ratio: Option<f64>,
}

/// An application in one minute or hour. `None`: not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AppSample {
    /// Messages that the rest is from.
    pub count: u64,
    /// Mean.
    pub length_mean_bytes: Option<f64>,
    /// Standard deviation.
    pub length_spread_bytes: Option<f64>,
    /// Mean time between messages.
    pub interval_mean_seconds: Option<f64>,
    /// Standard deviation.
    pub interval_spread_seconds: Option<f64>,
    /// Mean, as the application sees it.
    pub delay_mean_seconds: Option<f64>,
    /// Median.
    pub delay_p50_seconds: Option<f64>,
    /// 95th percentile; of an hour the greatest of its minutes.
    pub delay_p95_seconds: Option<f64>,
    /// 99th percentile; of an hour the greatest of its minutes.
    pub delay_p99_seconds: Option<f64>,
}

/// How an hour's value is made of its minutes'.
#[derive(Clone, Copy)]
pub(super) enum Combine {
    Mean,
    Least,
    Greatest,
    Sum,
    /// Mean weighted by the messages of each minute. For percentiles and spreads this is not the
    /// value over the hour's messages, which the minutes do not contain; tail percentiles take the
    /// greatest instead, so as not to hide a bad minute.
    MeanByCount,
}

pub(super) struct Column {
    pub(super) name: &'static str,
    combine: Combine,
}

impl Column {
    /// The SQL of it.
    pub(super) fn combined(&self) -> String {
        let name = self.name;
        match self.combine {
            Combine::Mean => format!("avg({name})"),
            Combine::Least => format!("min({name})"),
            Combine::Greatest => format!("max({name})"),
            Combine::Sum => format!("sum({name})"),
            Combine::MeanByCount => {
                format!("sum({name} * count) / nullif(sum(iif({name} IS NULL, 0, count)), 0)")
            }
        }
    }
}

const fn column(name: &'static str, combine: Combine) -> Column {
    Column { name, combine }
}

/// A sample as columns of numbers; values in their order.
pub(super) trait Series: Sized {
    /// Names the tables.
    const KIND: &'static str;
    const COLUMNS: &'static [Column];
    /// The column without which a row is not worth remembering.
    const REQUIRED_COLUMN: &'static str;
    fn values(&self) -> Vec<Option<f64>>;
    fn from_values(values: &[Option<f64>]) -> Self;
}

impl Series for PathSample {
    const KIND: &'static str = "path";
    const COLUMNS: &'static [Column] = &[
        column("capacity_bits_per_second", Combine::Mean),
        column("available_bits_per_second", Combine::Mean),
        column("base_delay_seconds", Combine::Least),
        column("jitter_seconds", Combine::Mean),
        column("loss_ratio", Combine::Mean),
    ];
    const REQUIRED_COLUMN: &'static str = "at";

    fn values(&self) -> Vec<Option<f64>> {
        vec![
            self.capacity_bits_per_second,
            self.available_bits_per_second,
            self.base_delay_seconds,
            self.jitter_seconds,
            self.loss_ratio,
        ]
    }

    fn from_values(values: &[Option<f64>]) -> Self {
        let value = |number: usize| values.get(number).copied().flatten();
        Self {
            capacity_bits_per_second: value(0),
            available_bits_per_second: value(1),
            base_delay_seconds: value(2),
            jitter_seconds: value(3),
            loss_ratio: value(4),
        }
    }
}

impl Series for AppSample {
    const KIND: &'static str = "app";
    const COLUMNS: &'static [Column] = &[
        column("count", Combine::Sum),
        column("length_mean_bytes", Combine::MeanByCount),
        column("length_spread_bytes", Combine::MeanByCount),
        column("interval_mean_seconds", Combine::MeanByCount),
        column("interval_spread_seconds", Combine::MeanByCount),
        column("delay_mean_seconds", Combine::MeanByCount),
        column("delay_p50_seconds", Combine::MeanByCount),
        column("delay_p95_seconds", Combine::Greatest),
        column("delay_p99_seconds", Combine::Greatest),
    ];
    const REQUIRED_COLUMN: &'static str = "length_mean_bytes";

    fn values(&self) -> Vec<Option<f64>> {
        vec![
            Some(self.count as f64),
            self.length_mean_bytes,
            self.length_spread_bytes,
            self.interval_mean_seconds,
            self.interval_spread_seconds,
            self.delay_mean_seconds,
            self.delay_p50_seconds,
            self.delay_p95_seconds,
            self.delay_p99_seconds,
        ]
    }

    fn from_values(values: &[Option<f64>]) -> Self {
        let value = |number: usize| values.get(number).copied().flatten();
        Self {
            // A float beyond is saturated.
            count: value(0).unwrap_or(0.0) as u64,
            length_mean_bytes: value(1),
            length_spread_bytes: value(2),
            interval_mean_seconds: value(3),
            interval_spread_seconds: value(4),
            delay_mean_seconds: value(5),
            delay_p50_seconds: value(6),
            delay_p95_seconds: value(7),
            delay_p99_seconds: value(8),
        }
    }
}

/// `?first, …` for `count` values.
pub(super) fn placeholders(first: usize, count: usize) -> String {
    let numbers: Vec<_> = (first..first + count).map(|n| format!("?{n}")).collect();
    numbers.join(", ")
}
