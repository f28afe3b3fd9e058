//! `[comparison]` of a server: multipath against single path.

use std::{ops::RangeInclusive, path::PathBuf, time::Duration};

use keiro_config::{LocatedError, Report, units::Text};
use keiro_units::{ByteCount, Probability};
use serde::Deserialize;
use toml::Spanned;

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

/// The settings, with defaults for keys that are absent; `None` if a problem was reported.
pub(super) fn settings(
    entry: Option<&ComparisonEntry>,
    report: &mut Report<'_>,
) -> Option<Settings> {
    let default = Settings::DEFAULT;
    let Some(it) = entry else {
        return Some(default);
    };
    let held_out = share(
        &it.held_out,
        default.held_out,
        0.0..=0.5,
        "held_out: write \"0%\", which compares nothing, to \"50%\"",
    );
    let prefix_bits = number(&it.prefix_bits, default.prefix_bits, 1..=128, "prefix_bits");
    let prefixes_max = number(
        &it.prefixes_max,
        default.prefixes_max,
        1..=1_000_000,
        "prefixes_max",
    );
    let loss_max = share(
        &it.loss_max,
        default.loss_max,
        0.0..=0.9,
        "loss_max: write \"0%\" to \"90%\"",
    );
    let confidence = confidence(&it.confidence, default.confidence);
    let again_after = at_least(
        &it.again_after,
        default.again_after,
        AGAIN_MIN,
        "again_after",
    );
    let held_out = report.keep(held_out);
    let prefix_bits = report.keep(prefix_bits);
    let prefixes_max = report.keep(prefixes_max);
    let loss_max = report.keep(loss_max);
    let confidence = report.keep(confidence);
    let again_after = report.keep(again_after);
    Some(Settings {
        held_out: held_out?,
        prefix_bits: prefix_bits?,
        prefixes_max: prefixes_max?,
        bytes_min: it
            .bytes_min
            .map_or(default.bytes_min, |bytes| bytes.0.get()),
        loss_max: loss_max?,
        confidence: confidence?,
        again_after: again_after?,
    })
}

/// A ratio within `fits`; `problem` says what to write instead.
pub(super) fn share(
    said: &Option<Spanned<Text<Probability>>>,
    default: f64,
    fits: RangeInclusive<f64>,
    problem: &str,
) -> Result<f64, LocatedError> {
    let Some(said) = said else {
        return Ok(default);
    };
    let share = said.get_ref().0.get();
    match fits.contains(&share) {
        true => Ok(share),
        false => Err(LocatedError::new(said.span(), problem.to_owned())),
    }
}

pub(super) fn number<T: Copy + PartialOrd + std::fmt::Display>(
    said: &Option<Spanned<T>>,
    default: T,
    fits: RangeInclusive<T>,
    key: &str,
) -> Result<T, LocatedError> {
    match said {
        None => Ok(default),
        Some(said) if fits.contains(said.get_ref()) => Ok(*said.get_ref()),
        Some(said) => {
            let message = format!("{key}: write {} to {}", fits.start(), fits.end());
            Err(LocatedError::new(said.span(), message))
        }
    }
}

/// How sure a comparison must be.
pub(super) fn confidence(
    said: &Option<Spanned<Text<Probability>>>,
    default: f64,
) -> Result<f64, LocatedError> {
    let problem = "confidence: write \"50%\" to \"99.99%\"";
    share(said, default, 0.5..=0.9999, problem)
}

pub(super) fn at_least(
    said: &Option<Spanned<Text<Duration>>>,
    default: Duration,
    least: Duration,
    key: &str,
) -> Result<Duration, LocatedError> {
    match said {
        None => Ok(default),
        Some(time) if time.get_ref().0 >= least => Ok(time.get_ref().0),
        Some(time) => {
            let message = format!("{key}: at least \"{}s\"", least.as_secs());
            Err(LocatedError::new(time.span(), message))
        }
    }
}

/// Before multipath is tried again. Ours.
const AGAIN_MIN: Duration = Duration::from_secs(1);
