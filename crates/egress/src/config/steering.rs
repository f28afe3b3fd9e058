//! `[steering]` of a server: the egress peer of new connections, by client prefix.

use std::{collections::BTreeSet, time::Duration};

use keiro_config::{LocatedError, Report, units::Text};
use keiro_units::{ByteCount, Probability};
use serde::Deserialize;
use toml::Spanned;

use super::comparison::{at_least, confidence, number, share};
use crate::steering::{Mode, Settings};

/// Steering as configured.
#[derive(Clone, Debug, PartialEq)]
pub struct Steered {
    pub settings: Settings,
    /// The server's ports whose connections are steered.
    pub ports: BTreeSet<u16>,
    /// The first of the tables with the steered prefixes, one for each egress peer.
    pub first_table: u32,
    /// The first of the marks of connections, one for each egress peer.
    pub first_mark: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SteeringEntry {
    mode: Mode,
    ports: Option<Spanned<Vec<u16>>>,
    explore: Option<Spanned<Text<Probability>>>,
    confirm: Option<Spanned<Text<Probability>>>,
    confidence: Option<Spanned<Text<Probability>>>,
    moves_per_minute: Option<Spanned<usize>>,
    prefixes_max: Option<Spanned<usize>>,
    bytes_min: Option<Text<ByteCount>>,
    keep_for: Option<Spanned<Text<Duration>>>,
    first_table: Option<Spanned<u32>>,
    first_mark: Option<Spanned<u32>>,
}

/// `None` if a problem was reported. `tables`: of the egress peers.
pub(super) fn steered(
    entry: &SteeringEntry,
    tables: &BTreeSet<u32>,
    report: &mut Report<'_>,
) -> Option<Steered> {
    let default = Settings::DEFAULT;
    let explore = share(
        &entry.explore,
        default.explore,
        0.0..=0.1,
        "explore: write \"0%\", which finds nothing, to \"10%\"",
    );
    let confirm = share(
        &entry.confirm,
        default.confirm,
        0.0..=0.3,
        "confirm: write \"0%\", which moves nothing, to \"30%\"",
    );
    let confidence = confidence(&entry.confidence, default.confidence);
    let moves = &entry.moves_per_minute;
    let moves = number(
        moves,
        default.moves_per_minute,
        1..=1_000,
        "moves_per_minute",
    );
    let prefixes_max = number(
        &entry.prefixes_max,
        default.prefixes_max,
        1..=100_000,
        "prefixes_max",
    );
    let keep_for = at_least(&entry.keep_for, default.keep_for, KEEP_MIN, "keep_for");
    let most = i32::MAX as u32 - TABLES_MAX;
    let first_table = number(&entry.first_table, FIRST_TABLE, 1_000..=most, "first_table");
    let first_table = first_table.and_then(|first| free_tables(entry, first, tables));
    let first_mark = number(&entry.first_mark, FIRST_MARK, 1..=most, "first_mark");
    let explore = report.keep(explore);
    let confirm = report.keep(confirm);
    let confidence = report.keep(confidence);
    let moves_per_minute = report.keep(moves);
    let prefixes_max = report.keep(prefixes_max);
    let keep_for = report.keep(keep_for);
    let first_table = report.keep(first_table);
    let first_mark = report.keep(first_mark);
    let ports = report.keep(ports(&entry.ports));
    Some(Steered {
        settings: Settings {
            mode: entry.mode,
            explore: explore?,
            confirm: confirm?,
            confidence: confidence?,
            moves_per_minute: moves_per_minute?,
            prefixes_max: prefixes_max?,
            bytes_min: entry
                .bytes_min
                .map_or(default.bytes_min, |bytes| bytes.0.get()),
            keep_for: keep_for?,
        },
        ports: ports?,
        first_table: first_table?,
        first_mark: first_mark?,
    })
}

fn ports(said: &Option<Spanned<Vec<u16>>>) -> Result<BTreeSet<u16>, LocatedError> {
    let Some(said) = said else {
        return Ok(BTreeSet::from(PORTS));
    };
    let ports: BTreeSet<u16> = said.get_ref().iter().copied().collect();
    if ports.is_empty() || ports.contains(&0) || ports.len() > PORTS_MAX {
        let message = format!("ports: write 1 to {PORTS_MAX} ports of the server");
        return Err(LocatedError::new(said.span(), message));
    }
    Ok(ports)
}

/// Tables of steering must not be those of egress peers.
fn free_tables(
    entry: &SteeringEntry,
    first: u32,
    tables: &BTreeSet<u32>,
) -> Result<u32, LocatedError> {
    let Some(taken) = tables.range(first..first + TABLES_MAX).next() else {
        return Ok(first);
    };
    let message = format!(
        "first_table: an egress peer has table {taken}; tables {first} to {} are needed here",
        first + TABLES_MAX - 1
    );
    let span = entry.first_table.as_ref().map_or(0..0, Spanned::span);
    Err(LocatedError::new(span, message))
}

const PORTS: [u16; 2] = [80, 443];
/// Ours.
const PORTS_MAX: usize = 1_000;
/// Behind the tables of a hundred egress peers. Ours.
const FIRST_TABLE: u32 = 17_600;
/// "Ke" in ASCII, and 256. Ours.
const FIRST_MARK: u32 = 0x4b65_0100;
/// Tables and marks that steering may use; further egress peers are not used. Ours.
pub const TABLES_MAX: u32 = 256;
/// Ours.
const KEEP_MIN: Duration = Duration::from_secs(10);
