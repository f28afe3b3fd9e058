//! `keiro config check`.

use std::{fs, io::Read, path::Path};

use keiro_control::{
    Config,
    config::{Location, Problem},
    key::load_private_key,
};
use keiro_egress::config::{AsbrConfig, ConfigError, EndpointConfig, Kind};
use keiro_gateway::store_problem;
use serde::Serialize;

use crate::{args, failure::Failure, output};

#[derive(Serialize)]
struct Report<'a> {
    file: String,
    ok: bool,
    problems: &'a [Problem],
}

/// Bytes of a file in which its first table is looked for.
const TABLE_WITHIN: u64 = 1 << 16;

pub(crate) fn config(args: &args::Config) -> Result<(), Failure> {
    let args::Config::Check { file, json } = args;
    // What can be read but once, as a pipe, is a gateway's; what cannot be read at all is told below.
    if fs::metadata(file).is_ok_and(|file| file.is_file()) {
        let mut text = Vec::new();
        let read = fs::File::open(file).map(|file| file.take(TABLE_WITHIN).read_to_end(&mut text));
        let is_read = matches!(read, Ok(Ok(_)));
        if let Some(kind) = Kind::of(&String::from_utf8_lossy(&text)).filter(|_| is_read) {
            return egress(file, kind, *json);
        }
    }
    match (Config::load(file), json) {
        (Ok(config), false) => output::text(summary(file, &config)),
        (Ok(_), true) => report(file, &[]),
        (Err(error), false) => Err(error.into()),
        (Err(error), true) => {
            output::allow_closed_reader(report(file, error.problems()))?;
            Err(error.into())
        }
    }
}

/// The file of one of the egress suite's daemons, of which the first problem is told.
fn egress(file: &Path, kind: Kind, json: bool) -> Result<(), Failure> {
    let neighbours = |peers: usize, reflectors: usize| {
        let (peers, reflectors) = (
            plural(peers, "egress peer"),
            plural(reflectors, "reflector"),
        );
        format!("{peers}, {reflectors}")
    };
    let read = match kind {
        Kind::Asbr => AsbrConfig::load(file).map(|config| {
            let (asn, locator) = (config.speaker.asn, config.locator);
            let neighbours = neighbours(config.peers.len(), config.reflectors.len());
            format!("border router of AS {asn}, locator {locator}, {neighbours}")
        }),
        Kind::Endpoint => EndpointConfig::load(file).map(|config| {
            let asn = config.speaker.asn;
            let neighbours = neighbours(config.peers.len(), config.reflectors.len());
            format!("content server of AS {asn}, {neighbours}")
        }),
    };
    match (read, json) {
        (Ok(told), false) => output::text(format!("{}: ok: {told}\n", file.display())),
        (Ok(_), true) => report(file, &[]),
        (Err(error), json) => {
            if json {
                output::allow_closed_reader(report(file, &[problem(file, &error)]))?;
            }
            Err(Failure::new(error.to_string()))
        }
    }
}

fn problem(file: &Path, error: &ConfigError) -> Problem {
    Problem {
        file: file.display().to_string(),
        place: error.place().map(|(line, column, source)| Location {
            line,
            column,
            source: source.to_owned(),
            caret: column - 1,
            width: 1,
        }),
        message: error.message().to_owned(),
        hint: None,
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
        plural(config.listeners.len(), "listener"),
        plural(config.forwards.len(), "forward"),
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
