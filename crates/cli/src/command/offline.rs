//! Planning from a configuration alone, without measurements.
//!
//! The plan is the gateway's own. What the running gateway measures has to be in the file: every
//! path's delay, every application's length and interval.

use std::path::Path;

use keiro_control::{
    Config,
    network::NetworkState,
    protocol::{PlanSnapshot, WhatIf},
};

use crate::{failure::Failure, output};

/// The plan that follows from the file, and from what is supposed beyond it.
///
/// # Errors
/// What is wrong with the file, or what must be in it to plan without measurements.
pub(super) fn plan(file: &Path, what_if: &[WhatIf]) -> Result<PlanSnapshot, Failure> {
    let of_file = Config::load(file)?;
    let config = NetworkState::load(&of_file)?.applied_to(&of_file);
    for warning in config.warnings() {
        output::message!("warning: {warning}");
    }
    let missing = missing(&config);
    if missing.is_empty() {
        return Ok(keiro_gateway::plan_of(&config, what_if)?);
    }
    let mut failure = Failure::new(format!(
        "{}: what the running gateway measures must be in the file to plan from it alone",
        config.file()
    ));
    for what in missing {
        failure = failure.because(what);
    }
    Err(failure.hint("add these, or ask the running gateway: `keiro plan` without --config"))
}

fn missing(config: &Config) -> Vec<String> {
    let mut missing = Vec::new();
    for path in config.paths.iter().filter(|path| path.delay.is_none()) {
        missing.push(format!("path `{}` has no `delay`", path.name));
    }
    for app in &config.apps {
        let keys = match (app.length, app.interval) {
            (Some(_), Some(_)) => continue,
            (None, Some(_)) => "no `length`",
            (Some(_), None) => "no `interval`",
            (None, None) => "neither `length` nor `interval`",
        };
        missing.push(format!("application `{}` has {keys}", app.name));
    }
    missing
}
