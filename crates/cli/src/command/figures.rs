//! Declared counters and gauges as text: each function shows every figure of a set, so that a new
//! one needs no line here.

use keiro_stats::StatSet;

use crate::output::human::{self, NONE};

/// Headers of a table's columns, one for each figure.
pub(super) fn headers<S: StatSet>() -> impl Iterator<Item = String> {
    S::STATS.iter().map(|stat| format!("{}>", stat.label()))
}

/// Cells of a table's row, as [`headers`].
pub(super) fn cells<S: StatSet>(stats: &S) -> impl Iterator<Item = String> {
    named(stats).map(|(_, value)| value)
}

/// Name and value of each figure.
pub(super) fn named<S: StatSet>(stats: &S) -> impl Iterator<Item = (String, String)> {
    stats.values().map(|(stat, value)| {
        let value = value.map(|value| human::figure(stat.unit, value));
        (stat.label(), value.unwrap_or_else(|| NONE.to_owned()))
    })
}

/// `destinations 3, refused 0`.
pub(super) fn list<S: StatSet>(stats: &S) -> String {
    let figures = named(stats).map(|(name, value)| format!("{name} {value}"));
    figures.collect::<Vec<_>>().join(", ")
}
