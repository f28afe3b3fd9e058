//! `keiro web`: runs the program `keiro-web`, which this one does not contain, because a gateway needs no HTTP server.

use std::{
    env,
    ffi::OsStr,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
};

use super::Outcome;
use crate::{args, failure::Failure};

const PROGRAM: &str = "keiro-web";

/// Becomes `keiro-web`.
pub(super) fn web(args: &args::Web) -> Outcome {
    let path = env::var_os("PATH").unwrap_or_default();
    let program = beside().or_else(|| in_path(&path)).ok_or_else(|| {
        Failure::new(format!(
            "cannot find the program `{PROGRAM}`, which serves the pages"
        ))
        .because("it is neither beside `keiro` nor in PATH")
        .hint("the package `keiro` has it; `make build` in the source tree builds it")
    })?;
    // Returns only if that fails.
    let error = Command::new(&program).args(&args.arguments).exec();
    Err(Failure::new(format!("cannot run {}", program.display())).because(error))
}

fn beside() -> Option<PathBuf> {
    let program = env::current_exe().ok()?.with_file_name(PROGRAM);
    program.is_file().then_some(program)
}

fn in_path(path: &OsStr) -> Option<PathBuf> {
    let directories = env::split_paths(path).filter(|directory| directory != Path::new(""));
    let mut programs = directories.map(|directory| directory.join(PROGRAM));
    programs.find(|program| program.is_file())
}
