//! `keiro completion` and `keiro man`: made from the command line's definition.

use std::{fs, path::Path};

use clap::CommandFactory;
use clap_complete::Shell;

use crate::{args::Cli, failure::Failure, output};

pub(crate) fn completion(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "keiro", &mut script);
    output::text(String::from_utf8_lossy(&script))
}

pub(crate) fn man(directory: Option<&Path>) -> Result<(), Failure> {
    let mut command = Cli::command().disable_help_subcommand(true);
    // Gives every subcommand its whole name: keiro-show-path.
    command.build();
    let Some(directory) = directory else {
        return output::text(page(command)?);
    };
    let unwritable = |path: &Path, error| {
        Failure::new(format!("cannot write {}", path.display()))
            .because(error)
            .hint("name a directory that you can write to")
    };
    fs::create_dir_all(directory).map_err(|e| unwritable(directory, e))?;
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
        fs::write(&path, page(command)?).map_err(|e| unwritable(&path, e))?;
    }
    Ok(())
}

fn page(command: clap::Command) -> Result<String, Failure> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command)
        .manual("Keiro")
        .render(&mut page)
        .map_err(Failure::Output)?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}
