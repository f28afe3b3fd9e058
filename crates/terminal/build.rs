//! Gives the commands their version and commit.

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

/// The short commit; `None` without git, or outside a repository of Keiro's own.
fn commit() -> Option<String> {
    git(&["rev-parse", "--short=10", "HEAD"])
}

/// The files that git writes when a commit is made or checked out. In a linked worktree they are not
/// below `.git`, which is a file there. Without a reflog only the branch's own file changes.
fn changes_with_a_commit() -> Vec<String> {
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    let names = ["HEAD", "logs/HEAD", "packed-refs"].map(str::to_owned);
    names
        .into_iter()
        .chain(branch)
        .filter_map(|name| git(&["rev-parse", "--git-path", &name]))
        .collect()
}

/// Git's answer; `None` if there is no repository, git fails, or the answer is empty.
fn git(args: &[&str]) -> Option<String> {
    if !Path::new("../../.git").exists() {
        return None;
    }
    let git = Command::new("git").args(args).output().ok()?;
    let answer = String::from_utf8(git.stdout).ok()?.trim().to_owned();
    (git.status.success() && !answer.is_empty()).then_some(answer)
}
