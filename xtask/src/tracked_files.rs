//! Files that git has.

use std::{path::Path, process::Command};

/// Files below `directory` whose names match the patterns of git, relative to it.
///
/// # Errors
/// It is not in a git checkout.
pub(crate) fn tracked_files(directory: &Path, patterns: &[&str]) -> Result<Vec<String>, String> {
    let output = Command::new("git")
        .args(["ls-files", "--"])
        .args(patterns)
        .current_dir(directory)
        .output()
        .map_err(|error| format!("git: {error}"))?;
    if !output.status.success() {
        return Err(format!("{} is not a git checkout", directory.display()));
    }
    let files = String::from_utf8_lossy(&output.stdout);
    Ok(files.lines().map(str::to_owned).collect())
}
