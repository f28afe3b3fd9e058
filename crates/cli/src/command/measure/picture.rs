//! `--figure FILE`: the picture of a fit.

use std::{
    fs,
    path::{self, Path},
};

use keiro_measure::figure;
use keiro_model::fit::Fit;

use super::destination::{Content, Destination};
use crate::failure::Failure;

/// Refuses at once what could not be written after a minute's work, and what would be written over
/// `measurements`.
pub(super) fn prepare<'a>(
    file: &'a Path,
    measurements: Option<&Path>,
) -> Result<Destination<'a>, Failure> {
    if let Some(measurements) = measurements.filter(|other| is_same(file, other)) {
        return Err(Failure::new(format!(
            "--figure {}: the picture would replace the measurements in {}",
            file.display(),
            measurements.display()
        ))
        .hint(format!(
            "--figure {}",
            measurements.with_extension("svg").display()
        )));
    }
    Destination::prepare(Content::Picture, file)
}

/// Whether both name one file; one of them, or both, may not be there yet. A device or a pipe keeps
/// nothing that could be replaced.
fn is_same(a: &Path, b: &Path) -> bool {
    if fs::metadata(a).is_ok_and(|found| !found.is_file()) {
        return false;
    }
    match (fs::canonicalize(a), fs::canonicalize(b)) {
        (Ok(a), Ok(b)) => a == b,
        _ => path::absolute(a).ok() == path::absolute(b).ok(),
    }
}

/// Draws a fit; `title` says what was measured, `kept` what there is where there is no room for it.
pub(super) fn draw(to: Destination<'_>, title: &str, fit: &Fit, kept: &str) -> Result<(), Failure> {
    let svg = figure::draw(title, fit)
        .map_err(|error| Failure::new("cannot draw the figure").because(error))?;
    to.write(svg.as_bytes(), kept)
}
