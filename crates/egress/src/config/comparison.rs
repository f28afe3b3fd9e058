//! `[comparison]` of a server: multipath against single path.

use std::{ops::RangeInclusive, path::PathBuf, time::Duration};

use keiro_control::units::Text;
use keiro_units::{ByteCount, Probability};
use serde::Deserialize;
use toml::Spanned;

use super::read::Problem;
use crate::comparison::Settings;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ComparisonEntry {
    held_out: Option<Spanned<Text<Probability>>>,
    prefix_bits: Option<Spanned<u8>>,
    prefixes_max: Option<Spanned<usize>>,
    bytes_min: Option<Text<ByteCount>>,
    loss_max: Option<Spanned<Text<Probability>>>,
    confidence: Option<Spanned<Text<Probability>>>,
    again_after: Option<Spanned<Text<Duration>>>,
    pub(super) evidence_file: Option<PathBuf>,
}

/// What the section says, and what it does not.
pub(super) fn settings(it: Option<&ComparisonEntry>) -> Result<Settings, Problem> {
    let Some(it) = it else {
        return Ok(Settings::DEFAULT);
    };
    let default = Settings::DEFAULT;
    let share = |said: &Option<Spanned<Text<Probability>>>,
                 default: f64,
                 fits: fn(f64) -> bool,
                 problem: &str| {
        match said {
            None => Ok(default),
            Some(said) if fits(said.get_ref().0.get()) => Ok(said.get_ref().0.get()),
            Some(said) => Err(Problem::at_span(said.span(), problem.to_owned())),
        }
    };
    Ok(Settings {
        held_out: share(
            &it.held_out,
            default.held_out,
            |share| share <= 0.5,
            "held_out: at most \"50%\" of connections stay single-path; \"0%\" compares nothing",
        )?,
        prefix_bits: number(&it.prefix_bits, default.prefix_bits, 1..=128, "prefix_bits")?,
        prefixes_max: number(
            &it.prefixes_max,
            default.prefixes_max,
            1..=1_000_000,
            "prefixes_max",
        )?,
        bytes_min: it
            .bytes_min
            .map_or(default.bytes_min, |bytes| bytes.0.get()),
        loss_max: share(
            &it.loss_max,
            default.loss_max,
            |share| share <= 0.9,
            "loss_max: multipath that loses more than \"90%\" is none",
        )?,
        confidence: share(
            &it.confidence,
            default.confidence,
            |share| (0.5..=0.9999).contains(&share),
            "confidence: write \"50%\" to \"99.99%\"",
        )?,
        again_after: match &it.again_after {
            None => default.again_after,
            Some(time) if time.get_ref().0 >= AGAIN_MIN => time.get_ref().0,
            Some(time) => {
                let message = "again_after: at least \"1s\"".to_owned();
                return Err(Problem::at_span(time.span(), message));
            }
        },
    })
}

fn number<T: Copy + PartialOrd + std::fmt::Display>(
    said: &Option<Spanned<T>>,
    default: T,
    fits: RangeInclusive<T>,
    key: &str,
) -> Result<T, Problem> {
    match said {
        None => Ok(default),
        Some(said) if fits.contains(said.get_ref()) => Ok(*said.get_ref()),
        Some(said) => {
            let message = format!("{key}: write {} to {}", fits.start(), fits.end());
            Err(Problem::at_span(said.span(), message))
        }
    }
}

/// Before multipath is tried again. Ours.
const AGAIN_MIN: Duration = Duration::from_secs(1);
