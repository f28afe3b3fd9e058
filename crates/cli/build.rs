//! Puts version and commit into the command.

use std::{path::Path, process::Command};

fn main() {
    let version = env!("CARGO_PKG_VERSION");
    let shown = match commit() {
        Some(commit) => format!("{version} ({commit})"),
        None => version.to_owned(),
    };
    println!("cargo:rustc-env=KEIRO_VERSION={shown}");
    // Naming a file that does not exist would run this at every build.
    println!("cargo:rerun-if-changed=build.rs");
    for file in ["../../.git/HEAD", "../../.git/logs/HEAD"] {
        if Path::new(file).exists() {
            println!("cargo:rerun-if-changed={file}");
        }
    }
}

/// The short commit; `None` where there is no git or no repository of Keiro's own around.
fn commit() -> Option<String> {
    if !Path::new("../../.git").exists() {
        return None;
    }
    let git = Command::new("git")
        .args(["rev-parse", "--short=10", "HEAD"])
        .output()
        .ok()?;
    let commit = String::from_utf8(git.stdout).ok()?.trim().to_owned();
    (git.status.success() && !commit.is_empty()).then_some(commit)
}
