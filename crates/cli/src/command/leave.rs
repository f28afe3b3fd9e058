//! `keiro leave`: takes back what `keiro join` has changed at this machine.

use std::{
    fs,
    io::{self, BufRead, IsTerminal},
    path::{Path, PathBuf},
    process::Command,
};

use keiro_control::{Config, config::DEFAULT_CONFIG_FILE, network::PublicRegistry};

use super::{
    join::{SYSTEMD, UNIT},
    openings, query,
    record::{Joined, Record},
};
use crate::{args, failure::Failure, output::message};

pub(super) fn leave(args: &args::Leave) -> Result<(), Failure> {
    let configuration = std::path::absolute(&args.config)
        .map_err(|e| Failure::new(format!("cannot use {}", args.config.display())).because(e))?;
    let file = Record::file(&configuration);
    let record = Record::read(&file)?.ok_or_else(|| nothing_recorded(&file))?;
    let joined = match (&record.joined, args.openings) {
        (_, true) => None,
        (Some(joined), false) => Some(joined),
        (None, false) => {
            return Err(Failure::new("this gateway is a hub, which has joined nothing").hint(
                "`keiro leave --openings` closes what `keiro init --hub` has opened in the firewall",
            ));
        }
    };
    show(&record, joined, &configuration);
    confirm(args.yes)?;
    let Some(joined) = joined else {
        return close_openings(record, &file);
    };
    stop(&configuration)?;
    openings::close(&record.openings);
    undo(joined, &configuration);
    remove(&file);
    message!("left the network of {}", joined.hub);
    message!(
        "the hub still has the key of this site: `keiro revoke {}` there removes it",
        joined.site
    );
    Ok(())
}

fn close_openings(record: Record, file: &Path) -> Result<(), Failure> {
    openings::close(&record.openings);
    message!("closed the openings in the firewall");
    let rest = Record {
        openings: Vec::new(),
        ..record
    };
    match rest.joined {
        Some(_) => rest.write(file),
        None => {
            remove(file);
            Ok(())
        }
    }
}

fn nothing_recorded(file: &Path) -> Failure {
    Failure::new(format!(
        "there is no {}, so `keiro join` has not made this gateway",
        file.display()
    ))
    .hint(
        "`systemctl disable --now keiro-gateway` stops it; what an administrator has written stays",
    )
}

fn show(record: &Record, joined: Option<&Joined>, configuration: &Path) {
    if let Some(joined) = joined {
        message!(
            "this machine is site {} of the hub {}",
            joined.site,
            joined.hub
        );
        message!("leaving stops its gateway, and removes");
        for file in joined
            .files
            .iter()
            .map(PathBuf::as_path)
            .chain([configuration])
        {
            message!("  {}", file.display());
        }
        for setting in &joined.settings {
            let before = setting.before.trim();
            message!("  {} becomes {before} again", setting.file.display());
        }
    }
    for opening in &record.openings {
        message!("  the opening in the firewall by `{opening}`");
    }
}

fn confirm(is_confirmed: bool) -> Result<(), Failure> {
    if is_confirmed {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        return Err(Failure::usage(
            "standard input is no terminal, so this cannot be confirmed",
            "add --yes if it is right",
        ));
    }
    message!("Is that right? [y/N]");
    let mut answer = String::new();
    // An unreadable answer is none.
    let _ = io::stdin().lock().read_line(&mut answer);
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::new("nothing was done")),
    }
}

/// Ends the gateway of this configuration, if it is the machine's service, and refuses while another one runs.
fn stop(configuration: &Path) -> Result<(), Failure> {
    if configuration == Path::new(DEFAULT_CONFIG_FILE) && Path::new(SYSTEMD).is_dir() {
        let status = Command::new("systemctl")
            .args(["disable", "--now", UNIT])
            .status();
        let is_done = status.is_ok_and(|status| status.success());
        return match is_done {
            true => Ok(()),
            false => Err(
                Failure::new("the gateway does not stop, so nothing was done")
                    .hint(format!("`journalctl -u {UNIT}` says why")),
            ),
        };
    }
    // With a configuration that cannot be read no gateway is known.
    let Ok(config) = Config::load(configuration) else {
        return Ok(());
    };
    match query::connect(&config.gateway.control_socket) {
        Ok(_) => Err(Failure::new("a gateway runs with this configuration")
            .hint("stop it first, then leave again")),
        Err(_) => Ok(()),
    }
}

fn undo(joined: &Joined, configuration: &Path) {
    // Before the configuration goes, which has the directory's name.
    if let Ok(config) = Config::load(configuration)
        && let Err(error) = PublicRegistry::forget(&config.gateway.state_directory)
    {
        message!("keiro: warning: what was learnt of the network stays: {error}");
    }
    for setting in joined.settings.iter().rev() {
        if let Err(error) = setting.put_back() {
            message!("keiro: warning: {}: {error}", setting.file.display());
        }
    }
    // Its routes and rules would keep the sites' addresses unreachable.
    match keiro_gateway::cleanup() {
        Ok(removed) => {
            for line in removed {
                message!("removed {line}");
            }
        }
        Err(error) => message!("keiro: warning: `keiro gateway --cleanup` is needed: {error:#}"),
    }
    remove_configuration(joined, configuration);
    for file in &joined.files {
        remove(file);
    }
}

/// One that was edited stays under another name.
fn remove_configuration(joined: &Joined, configuration: &Path) {
    let is_edited =
        fs::read_to_string(configuration).is_ok_and(|text| text != joined.configuration);
    if !is_edited {
        return remove(configuration);
    }
    let mut name = configuration.file_name().unwrap_or_default().to_owned();
    name.push(".left");
    let aside = configuration.with_file_name(name);
    match fs::rename(configuration, &aside) {
        Ok(()) => message!(
            "{} was edited since the join, and is now {}",
            configuration.display(),
            aside.display()
        ),
        Err(error) => message!("keiro: warning: {} stays: {error}", configuration.display()),
    }
}

fn remove(file: &Path) {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            message!("keiro: warning: {} stays: {error}", file.display());
        }
        _ => {}
    }
}
