//! Finds the `keiro` program that laboratories run, and makes sure that it is of this version.

use std::{
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Command,
};

use keiro_terminal::VERSION;

use crate::failure::Failure;

/// Names the program where --keiro does not.
const VARIABLE: &str = "KEIRO_BIN";

/// The `keiro` program: `named` by the command line, else by [`VARIABLE`], else beside this program,
/// else in PATH.
///
/// # Errors
/// There is none, it cannot be run, or it is of another version: numbers would be published under a
/// commit that did not make them.
pub(crate) fn find(named: Option<&Path>) -> Result<PathBuf, Failure> {
    let variable = env::var_os(VARIABLE).filter(|value| !value.is_empty());
    let named = named.map(Path::to_owned).or(variable.map(PathBuf::from));
    let program = match named {
        Some(program) => program,
        None => beside()
            .or_else(|| in_path(&env::var_os("PATH").unwrap_or_default()))
            .ok_or_else(|| {
                Failure::new("cannot find the `keiro` program, which the laboratory's gateways run")
                    .because("it is neither beside keiro-lab nor in PATH")
                    .hint(format!("--keiro PROGRAM, or {VARIABLE}=PROGRAM"))
                    .hint("`make build` in the source tree builds it")
            })?,
    };
    check_version(&program)?;
    Ok(program)
}

fn beside() -> Option<PathBuf> {
    let program = env::current_exe().ok()?.with_file_name("keiro");
    program.is_file().then_some(program)
}

fn in_path(path: &OsStr) -> Option<PathBuf> {
    env::split_paths(path)
        .map(|directory| directory.join("keiro"))
        .find(|program| program.is_file())
}

fn check_version(program: &Path) -> Result<(), Failure> {
    let shown = program.display();
    let output = Command::new(program)
        .arg("--version")
        .output()
        .map_err(|error| {
            Failure::new(format!("cannot run `{shown}`"))
                .because(error)
                .hint(format!(
                    "name the `keiro` program by --keiro PROGRAM or {VARIABLE}=PROGRAM"
                ))
        })?;
    let version = String::from_utf8_lossy(&output.stdout);
    if output.status.success() && version.trim() == format!("keiro {VERSION}") {
        return Ok(());
    }
    let found = match version.lines().next() {
        Some(line) => format!("it is `{line}`"),
        None => "it gives no version".to_owned(),
    };
    Err(Failure::new(format!("`{shown}` is not of this version"))
        .because(format!("{found}, this is `keiro-lab {VERSION}`"))
        .hint("build both from one commit: `make build-lab`")
        .hint(format!(
            "name another by --keiro PROGRAM or {VARIABLE}=PROGRAM"
        )))
}
