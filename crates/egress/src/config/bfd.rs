//! `bfd` of a neighbour: `true`, or a table with its intervals.

use std::{fmt, time::Duration};

use keiro_bfd::{Config, SESSIONS_MAX};
use keiro_config::{LocatedError, units::Text};
use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, Visitor, value::MapAccessDeserializer},
};
use toml::Spanned;

/// As it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BfdEntry {
    Off,
    On(Config),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BfdTable {
    interval: Option<Text<Duration>>,
    multiplier: Option<u8>,
}

/// The configuration of BFD.
pub(super) fn config(entry: Option<&Spanned<BfdEntry>>) -> Result<Option<Config>, LocatedError> {
    let Some((entry, BfdEntry::On(config))) = entry.map(|entry| (entry, *entry.get_ref())) else {
        return Ok(None);
    };
    let (interval, shown) = (config.interval, Text(config.interval));
    let message = if interval < INTERVAL_MIN {
        format!(
            "bfd: interval \"{shown}\" is shorter than a process can keep; use \"10ms\" or more"
        )
    } else if interval > INTERVAL_MAX {
        format!("bfd: interval \"{shown}\" is longer than a hold time; use at most \"60s\"")
    } else if config.multiplier == 0 {
        "bfd: multiplier 0 would end the session with no packet lost; use 1 to 255, usually 3"
            .to_owned()
    } else {
        return Ok(Some(config));
    };
    Err(LocatedError::new(entry.span(), message))
}

/// Refuses the first that is one too many.
pub(super) fn count<'a>(
    entries: impl Iterator<Item = Option<&'a Spanned<BfdEntry>>>,
) -> Result<(), LocatedError> {
    let mut on = entries
        .flatten()
        .filter(|it| *it.get_ref() != BfdEntry::Off);
    match on.nth(SESSIONS_MAX) {
        None => Ok(()),
        Some(entry) => {
            let message =
                format!("bfd: more than {SESSIONS_MAX} peers have it; remove it from some");
            Err(LocatedError::new(entry.span(), message))
        }
    }
}

impl<'de> Deserialize<'de> for BfdEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(EntryVisitor)
    }
}

struct EntryVisitor;

impl<'de> Visitor<'de> for EntryVisitor {
    type Value = BfdEntry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("true, false, or { interval = \"50ms\", multiplier = 3 }")
    }

    fn visit_bool<E: de::Error>(self, on: bool) -> Result<BfdEntry, E> {
        Ok(match on {
            true => BfdEntry::On(DEFAULT),
            false => BfdEntry::Off,
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<BfdEntry, A::Error> {
        let table = BfdTable::deserialize(MapAccessDeserializer::new(map))?;
        Ok(BfdEntry::On(Config {
            interval: table.interval.map_or(DEFAULT.interval, |text| text.0),
            multiplier: table.multiplier.unwrap_or(DEFAULT.multiplier),
        }))
    }
}

/// 50 ms is one of the common intervals of RFC 7419; the neighbour's is used if it is longer. The
/// multiplier is that of other implementations.
const DEFAULT: Config = Config {
    interval: Duration::from_millis(50),
    multiplier: 3,
};
/// Below this, pauses of a busy machine would end sessions. Ours.
const INTERVAL_MIN: Duration = Duration::from_millis(10);
/// Ours.
const INTERVAL_MAX: Duration = Duration::from_secs(60);
