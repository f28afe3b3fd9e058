//! `cargo xtask`: what `make test` runs beside cargo.
//!
//! - `test`: builds all test binaries once, runs laboratory tests and, with the processor time that
//!   they leave, pure tests, examples in documentation and checks of the other workspaces. It retries
//!   a failed laboratory test once alone, and reports flaky and skipped tests last.
//! - `cycles`: refuses modules of a crate that import each other in a circle.
//! - `links`: refuses links between pages, and names of source files, that lead nowhere.
//! - `notices`: licence texts of the crates that commands contain, for packages.
//! - `words`: refuses words that plain technical English does not need in comments and docs.

mod binaries;
mod busy;
mod cycles;
mod execute;
mod links;
mod not_tested;
mod notices;
mod run;
mod side;
mod summary;
mod tracked_files;
mod words;

use std::{env, process::ExitCode};

const USAGE: &str = "\
usage: cargo xtask test [--pure | --laboratory] [--rounds N] [--busy N] [--jobs N] [--strict] [FILTER]
       cargo xtask words [DIRECTORY]
       cargo xtask links [DIRECTORY]
       cargo xtask cycles [DIRECTORY]
       cargo xtask notices PACKAGE...

test        all tests, or only the pure ones, or only those that need namespaces or measure time
  --rounds  repeats them N times with the same binaries (1)
  --busy    runs them beside N busy loops (0)
  --jobs    runs N binaries of laboratory tests at a time (2)
  --strict  fails if a test was skipped for a reason that xtask/skips-allowed.txt does not have
  FILTER    only binaries whose name contains it
words       words in comments and docs that CONTRIBUTING.md refuses
links       links and names of source files in pages that lead nowhere
cycles      modules of a crate that import each other in a circle
notices     prints the licence texts of the crates that packages of the workspace link";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let result = match arguments.split_first() {
        Some((command, rest)) if command == "test" => {
            run::Options::parse(rest).and_then(|options| run::all(&options))
        }
        Some((command, rest)) if command == "words" => words::check(rest.first()),
        Some((command, rest)) if command == "links" => links::check(rest.first()),
        Some((command, rest)) if command == "cycles" => cycles::check(rest.first()),
        Some((command, rest)) if command == "notices" => notices::print(rest),
        _ => Err(USAGE.to_owned()),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::from(2)
        }
    }
}
