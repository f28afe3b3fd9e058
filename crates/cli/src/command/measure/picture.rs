//! `--figure FILE`: the picture of a fit, and files that cannot be written.

use std::{
    fs, io,
    path::{self, Path},
};

use keiro_measure::figure;
use keiro_model::fit::Fit;

use crate::failure::Failure;

/// Refuses at once what could not be written after a minute's work, and what would be written over
/// `measurements`.
pub(super) fn check(file: &Path, measurements: Option<&Path>) -> Result<(), Failure> {
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
    let is_directory = file.is_dir() || file.as_os_str().as_encoded_bytes().ends_with(b"/");
    if is_directory {
        let example = file.join("transfer-time.svg");
        return Err(Failure::new(format!(
            "--figure {}: a directory, not a file",
            file.display()
        ))
        .hint(format!("--figure {}", example.display())));
    }
    let parent = file
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    match parent {
        Some(parent) if !parent.is_dir() => Err(Failure::new(format!(
            "cannot write {}: there is no directory {}",
            file.display(),
            parent.display()
        ))
        .hint("make the directory first, or name another one")),
        _ => Ok(()),
    }
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

/// Draws a fit to a file; `title` says what was measured.
pub(super) fn write(file: &Path, title: &str, fit: &Fit) -> Result<(), Failure> {
    let svg = figure::draw(title, fit)
        .map_err(|error| Failure::new("cannot draw the figure").because(error))?;
    fs::write(file, svg).map_err(|error| unwritable(file, &error))
}

/// A file that cannot be written, and what to try.
pub(super) fn unwritable(file: &Path, error: &io::Error) -> Failure {
    let failure = Failure::new(format!("cannot write {}", file.display())).because(error);
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => failure.hint(
            "a place with room; what is on standard output is complete, and with --json \
                 `keiro measure fit` reads it",
        ),
        _ => failure.hint("name a file in a directory that is there and that you may write to"),
    }
}
