//! `keiro config check`.

use std::path::Path;

use keiro_control::{Config, config::Problem, key::load_private_key};
use keiro_gateway::store_problem;
use serde::Serialize;

use crate::{args, failure::Failure, output};

#[derive(Serialize)]
struct Report<'a> {
    file: String,
    ok: bool,
    problems: &'a [Problem],
}

pub(crate) fn config(args: &args::Config) -> Result<(), Failure> {
    let args::Config::Check { file, json } = args;
    match (Config::load(file), json) {
        (Ok(config), false) => output::text(summary(file, &config)),
        (Ok(_), true) => report(file, &[]),
        (Err(error), false) => Err(error.into()),
        (Err(error), true) => {
            output::whoever_reads(report(file, error.problems()))?;
            Err(error.into())
        }
    }
}

fn report(file: &Path, problems: &[Problem]) -> Result<(), Failure> {
    output::json(&Report {
        file: file.display().to_string(),
        ok: problems.is_empty(),
        problems,
    })
}

fn summary(file: &Path, config: &Config) -> String {
    let key = &config.gateway.private_key_file;
    let mut text = format!(
        "{}: ok: gateway `{}`, {}, {}, {}, {}, {}, {}\n",
        file.display(),
        config.gateway.name,
        plural(config.paths.len(), "path"),
        plural(config.peers.len(), "peer"),
        plural(config.apps.len(), "application"),
        plural(config.intakes.len(), "intake"),
        plural(config.outlets.len(), "outlet"),
        plural(config.tenants.len(), "tenant"),
    );
    // Not the file's fault, so no failure: it may be checked on another machine, or by a user who
    // must not read the key.
    let problem = load_private_key(key).err().map(|error| error.to_string());
    for error in problem.into_iter().chain(store_problem(config)) {
        text.push_str(&format!(
            "note: here the gateway would not start: {error}\n"
        ));
    }
    if let Some(note) = config.unit_note() {
        text.push_str(&format!("note: {note}\n"));
    }
    text
}

fn plural(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
