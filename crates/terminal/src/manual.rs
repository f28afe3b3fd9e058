//! Man pages and shell completion, made from a command line's definition.

use std::{fs, path::Path};

use clap_complete::{CompleteEnv, env::Shells};

pub use clap_complete::Shell;

use crate::{failure::Failure, output};

/// The environment variable with which the scripts of [`completion`] ask the program.
const COMPLETION_VARIABLE: &str = "KEIRO_COMPLETE";

/// Answers a shell's completion script and ends the process; does nothing if none asks. Nothing may be written to
/// standard output before.
pub(crate) fn complete(command: impl Fn() -> clap::Command) {
    CompleteEnv::with_factory(command)
        .var(COMPLETION_VARIABLE)
        .complete();
}

/// Writes the completion script of `program` to standard output. It asks the program itself, so that names of this
/// machine are offered and a newer program needs no newer script.
///
/// # Errors
/// Standard output cannot be written, or the shell is none of bash, zsh, fish, elvish and PowerShell.
pub fn completion(program: &str, shell: Shell) -> Result<(), Failure> {
    let shells = Shells::builtins();
    let name = shell.to_string();
    let unsupported = || Failure::new(format!("there is no completion for {name}"));
    let completer = shells.completer(&name).ok_or_else(unsupported)?;
    let mut script = Vec::new();
    completer
        .write_registration(COMPLETION_VARIABLE, program, program, program, &mut script)
        .map_err(Failure::Output)?;
    output::text(String::from_utf8_lossy(&script))
}

/// Writes one man page per command to `directory`; without it, the program's own page to standard
/// output.
///
/// # Errors
/// The directory, a page or standard output cannot be written.
pub fn man(command: clap::Command, directory: Option<&Path>) -> Result<(), Failure> {
    let mut command = command.disable_help_subcommand(true);
    // Gives every subcommand its whole name: keiro-show-path.
    command.build();
    let Some(directory) = directory else {
        return output::text(page(command)?);
    };
    fs::create_dir_all(directory).map_err(|error| unwritable(directory, &error))?;
    let mut commands = vec![command];
    while let Some(command) = commands.pop() {
        commands.extend(
            command
                .get_subcommands()
                .filter(|c| !c.is_hide_set())
                .cloned(),
        );
        let name = command
            .get_display_name()
            .unwrap_or_else(|| command.get_name())
            .to_owned();
        let path = directory.join(format!("{name}.1"));
        fs::write(&path, page(command)?).map_err(|error| unwritable(&path, &error))?;
    }
    Ok(())
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("cannot write {}", path.display()))
        .because(error)
        .hint("name a directory that you can write to")
}

fn page(command: clap::Command) -> Result<String, Failure> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command)
        .manual("Keiro")
        .render(&mut page)
        .map_err(Failure::Output)?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

/// Checks that every command and option has help, and that `page` names every visible command as
/// `PROGRAM COMMAND`. For tests.
///
/// # Panics
/// If something lacks.
pub fn check_documented(program: &str, command: &clap::Command, page: &str) {
    check_help(command);
    for command in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        let name = command.get_name();
        assert!(
            page.contains(&format!("`{program} {name}")),
            "the page has no `{program} {name}`"
        );
    }
}

fn check_help(command: &clap::Command) {
    let name = command.get_name();
    assert!(command.get_about().is_some(), "{name} has no help");
    for arg in command.get_arguments().filter(|a| a.get_id() != "help") {
        let id = arg.get_id();
        assert!(arg.get_help().is_some(), "{name} {id} has no help");
    }
    command.get_subcommands().for_each(check_help);
}
