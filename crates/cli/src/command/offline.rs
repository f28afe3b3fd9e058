//! Planning from a configuration alone, without measurements.

use std::path::Path;

use keiro_control::{Config, protocol::PlanSnapshot};

use crate::failure::Failure;

pub(super) fn plan(file: &Path) -> Result<PlanSnapshot, Failure> {
    let _config = Config::load(file)?;
    Err(Failure::new("not there"))
}
