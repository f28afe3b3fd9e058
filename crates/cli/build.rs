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
    for file in changes_with_a_commit() {
        if Path::new(&file).exists() {
            println!("cargo:rerun-if-changed={file}");
        }
    }
}

/// The short commit; `None` where there is no git or no repository of Keiro's own around.
fn commit() -> Option<String> {
    git(&["rev-parse", "--short=10", "HEAD"])
}

/// What git writes when another commit is checked out or made. In a linked worktree that is not
/// below `.git`, which is a file there; where no log is kept, it is the branch.
fn changes_with_a_commit() -> Vec<String> {
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    let names = ["HEAD", "logs/HEAD", "packed-refs"].map(str::to_owned);
    names
        .into_iter()
        .chain(branch)
        .filter_map(|name| git(&["rev-parse", "--git-path", &name]))
        .collect()
}

/// What git says; `None` as well where it says nothing.
fn git(args: &[&str]) -> Option<String> {
    if !Path::new("../../.git").exists() {
        return None;
    }
    let git = Command::new("git").args(args).output().ok()?;
    let said = String::from_utf8(git.stdout).ok()?.trim().to_owned();
    (git.status.success() && !said.is_empty()).then_some(said)
}
