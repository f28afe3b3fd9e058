//! Counters and gauges, each declared once: name, unit, kind, labels and help.
//!
//! [`stats!`] turns a declaration into a plain struct that its owner counts in, and a table of
//! [`Stat`]s that describes it; [`reasons!`] does so for one thing that is counted by reason. The
//! control protocol's JSON and its schema, the Prometheus page, the text of `keiro show` and the
//! tables of the documentation walk that table, so a new counter needs two edits: its declaration,
//! and the line that counts it. The gateway's figures are declared here; those of the egress suite
//! and of FlowStats in their own crates.
//!
//! No serialisation and no I/O happens here, because `keiro-core` depends on this crate; see
//! `keiro_stats_export`.

mod declare;
mod quantity;
mod sets;

/// The types of quantities, for the macro.
#[doc(hidden)]
pub use keiro_units as units;

pub use self::{
    quantity::{Quantity, Value},
    sets::*,
};

/// One counter or gauge of a [`StatSet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Name of the JSON field, unit included: `srtt_seconds`.
    pub name: &'static str,
    /// Name of the Prometheus metric: `keiro_path_srtt_seconds`.
    pub metric: &'static str,
    pub kind: Kind,
    pub unit: Unit,
    /// It may be absent: not known, or not applicable.
    pub optional: bool,
    /// One sentence without full stop.
    pub help: &'static str,
}

/// A reason by which something is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason {
    /// Value of the label `reason`, and name of the JSON field.
    pub name: &'static str,
    /// The counter's documentation, with a space before each line.
    #[doc(hidden)]
    pub doc: &'static str,
}

/// How a value behaves over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Starts at zero and only grows.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// What a value counts or measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes; whether headers count is in the help.
    Bytes,
    Seconds,
    BitsPerSecond,
    /// From 0 to 1.
    Ratio,
    /// A factor without unit or bounds.
    Number,
    /// True or false, 1 or 0 as a metric.
    Flag,
    /// Whole things; the plural of what they are.
    Count(&'static str),
}

/// A struct of counters and gauges that describes itself. Implemented by [`stats!`].
pub trait StatSet: Default {
    /// What the figures are of, as in the metrics' names: `path`.
    const OBJECT: &'static str;
    /// Labels of the metrics, in order. Their values are names from the configuration, so their
    /// number is bounded by it.
    const LABELS: &'static [&'static str];
    /// In the order of declaration.
    const STATS: &'static [Stat];

    /// The value of `STATS[index]`; `None` where it is absent.
    ///
    /// # Panics
    /// If there is no such index.
    fn value(&self, index: usize) -> Option<Value>;

    /// Sets `STATS[index]`; `false` if the value does not fit the unit.
    ///
    /// # Panics
    /// If there is no such index.
    fn set(&mut self, index: usize, value: Value) -> bool;

    /// Adds up what is counted in whole numbers; other values stay at their default.
    fn sum<'a>(sets: impl IntoIterator<Item = &'a Self>) -> Self
    where
        Self: 'a,
    {
        let mut sum = Self::default();
        for set in sets {
            for index in 0..Self::STATS.len() {
                if let (Some(Value::Integer(total)), Some(Value::Integer(value))) =
                    (sum.value(index), set.value(index))
                {
                    sum.set(index, Value::Integer(total.saturating_add(value)));
                }
            }
        }
        sum
    }

    /// Every figure with its value.
    fn values(&self) -> impl Iterator<Item = (&'static Stat, Option<Value>)> {
        Self::STATS
            .iter()
            .enumerate()
            .map(|(index, stat)| (stat, self.value(index)))
    }
}

impl Kind {
    /// `counter` or `gauge`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
        }
    }
}

impl Unit {
    /// As documentation has it: `bytes`, `seconds`, `bit/s`, `packets`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Seconds => "seconds",
            Self::BitsPerSecond => "bit/s",
            Self::Ratio => "ratio",
            Self::Number => "number",
            Self::Flag => "true or false",
            Self::Count(things) => things,
        }
    }
}

impl Reason {
    /// What is counted under it, in sentences.
    pub fn help(&self) -> &'static str {
        self.doc.trim()
    }
}

impl Stat {
    /// The name without its unit, for people: `srtt`, `lost packets`, `queued`.
    pub fn label(&self) -> String {
        let suffix = match self.unit {
            Unit::Bytes => "_bytes",
            Unit::Seconds => "_seconds",
            Unit::BitsPerSecond => "_bits_per_second",
            Unit::Ratio => "_ratio",
            Unit::Number | Unit::Flag | Unit::Count(_) => "",
        };
        let name = self.name.strip_suffix(suffix).unwrap_or(self.name);
        name.replace('_', " ")
    }

    /// The metric's name without `_total`, which encoders of OpenMetrics add to counters.
    pub fn registered_metric(&self) -> &'static str {
        self.metric.strip_suffix("_total").unwrap_or(self.metric)
    }
}
