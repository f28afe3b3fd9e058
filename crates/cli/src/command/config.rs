//! `keiro config check`.

mod fix;

use std::{fs, io::Read, path::Path};

use keiro_control::{
    Config, ConfigError,
    config::{CostPerGb, Membership, PathIndex, PathOrigin, Problem},
    key::load_private_key,
    network::NetworkState,
};
use keiro_egress::config::{AsbrConfig, EndpointConfig, Kind};
use keiro_gateway::{message_tls_problem, paths_now, store_problem};
use serde::Serialize;

use self::fix::FixError;
use crate::{
    args,
    failure::Failure,
    output::{self, human},
};

#[derive(Serialize)]
struct Report<'a> {
    file: String,
    ok: bool,
    problems: &'a [Problem],
    /// Keys with an old name.
    warnings: &'a [Problem],
    /// What `--fix` changed.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    renamed: &'a [String],
}

/// Bytes at the beginning of a file in which its first table is looked for.
const TABLE_WITHIN: u64 = 1 << 16;

pub(crate) fn config(args: &args::Config) -> Result<(), Failure> {
    let args::Config::Check { file, fix, json } = args;
    if let Some(kind) = egress_kind(file) {
        return egress(file, kind, *json);
    }
    let mut renamed = Vec::new();
    if *fix {
        renamed = match fix::fix(file) {
            Ok(renamed) => renamed,
            Err(FixError::Write(failure)) => return Err(failure),
            Err(FixError::File(error)) => return not_fixed(file, error, *json),
        };
        if !*json {
            output::text(renamed_keys(file, &renamed))?;
        }
    }
    let loaded = Config::load(file);
    let loaded = loaded.and_then(|config| network(&config).map(|()| config));
    match (loaded, json) {
        (Ok(config), false) => output::text(summary(file, &config)),
        (Ok(config), true) => {
            let sites = NetworkState::load(&config).unwrap_or_default();
            report(file, &[], sites.applied_to(&config).warnings(), &renamed)
        }
        (Err(error), false) => Err(error.into()),
        (Err(error), true) => {
            let written = report(file, error.problems(), error.warnings(), &renamed);
            output::allow_closed_reader(written)?;
            Err(error.into())
        }
    }
}

/// The file has errors because of which no key was renamed.
fn not_fixed(file: &Path, error: ConfigError, json: bool) -> Result<(), Failure> {
    if json {
        let written = report(file, error.problems(), error.warnings(), &[]);
        output::allow_closed_reader(written)?;
    }
    output::message!(
        "keiro: {}: no key was renamed and nothing was written, because of these errors:",
        file.display()
    );
    Err(error.into())
}

/// Which of the egress suite's daemons `file` is for; `None`: it is a gateway's, or cannot be read.
fn egress_kind(file: &Path) -> Option<Kind> {
    // A pipe can be read only once, and is read by `Config::load`.
    if !fs::metadata(file).is_ok_and(|file| file.is_file()) {
        return None;
    }
    let mut text = Vec::new();
    let opened = fs::File::open(file).ok()?;
    opened.take(TABLE_WITHIN).read_to_end(&mut text).ok()?;
    Kind::of(&String::from_utf8_lossy(&text))
}

fn renamed_keys(file: &Path, renamed: &[String]) -> String {
    let file = file.display();
    if renamed.is_empty() {
        return format!("{file}: no key has an old name\n");
    }
    let lines: String = renamed.iter().map(|line| format!("  {line}\n")).collect();
    format!("{file}: renamed {}\n{lines}", plural(renamed.len(), "key"))
}

/// Checks the file of one of the egress suite's daemons.
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
        (Ok(summary), false) => output::text(format!("{}: ok: {summary}\n", file.display())),
        (Ok(_), true) => report(file, &[], &[], &[]),
        (Err(error), json) => {
            if json {
                output::allow_closed_reader(report(file, error.problems(), &[], &[]))?;
            }
            Err(error.into())
        }
    }
}

fn report(
    file: &Path,
    problems: &[Problem],
    warnings: &[Problem],
    renamed: &[String],
) -> Result<(), Failure> {
    output::json(&Report {
        file: file.display().to_string(),
        ok: problems.is_empty(),
        problems,
        warnings,
        renamed,
    })
}

/// Refuses a registry with problems in its contents. One that cannot be read here may be at the gateway's machine.
fn network(config: &Config) -> Result<(), ConfigError> {
    match NetworkState::load(config) {
        Err(error)
            if error
                .problems()
                .iter()
                .any(|problem| problem.place.is_some()) =>
        {
            Err(error)
        }
        _ => Ok(()),
    }
}

/// What is known of the gateway's network; `None`: it has none.
fn network_text(config: &Config) -> Option<String> {
    let membership = config.network.as_ref()?;
    let text = match (membership, NetworkState::load(config)) {
        (Membership::Hub(hub), Ok(NetworkState::Hub(registry))) => format!(
            "network: hub of {}, with {} ({})\n",
            plural(registry.sites.len(), "site"),
            plural(registry.invitations.len(), "invitation"),
            hub.registry.display()
        ),
        (Membership::Branch { hub }, Ok(NetworkState::Branch(known))) => format!(
            "network: branch `{}` of hub `{}`, with {}\n",
            known.site,
            config[*hub].name,
            plural(known.sites.len(), "site")
        ),
        (Membership::Branch { hub }, _) => format!(
            "network: branch of hub `{}`, from which it learns of the other sites\n",
            config[*hub].name
        ),
        (Membership::SecondHub { first }, known) => {
            let sites = match &known {
                Ok(NetworkState::SecondHub(replica)) => replica
                    .registry()
                    .map_or(0, |registry| registry.sites.len()),
                _ => 0,
            };
            format!(
                "network: second hub, with {} in its copy of the registry of `{}`\n",
                plural(sites, "site"),
                config[*first].name
            )
        }
        (Membership::Hub(_), Err(error)) => {
            format!("note: here the gateway would not start: {error}\n")
        }
        (Membership::Hub(_), Ok(_)) => String::new(),
    };
    Some(text)
}

fn summary(file: &Path, config: &Config) -> String {
    let key = &config.gateway.private_key_file;
    let paths = plural(config.paths.len(), "path");
    let paths = match (&config.gateway.auto_uplinks, config.paths.len()) {
        (None, _) => paths,
        (Some(_), 0) => "paths as this machine has uplinks".to_owned(),
        (Some(_), _) => format!("{paths} and those of this machine's other uplinks"),
    };
    let mut text = format!(
        "{}: ok: gateway `{}`, {}, {}, {}, {}, {}, {}\n",
        file.display(),
        config.gateway.name,
        paths,
        plural(config.peers.len(), "peer"),
        plural(config.apps.len(), "application"),
        plural(config.listeners.len(), "listener"),
        plural(config.forwards.len(), "forward"),
        plural(config.tenants.len(), "tenant"),
    );
    let with_sites = NetworkState::load(config)
        .unwrap_or_default()
        .applied_to(config);
    for warning in with_sites.warnings() {
        text.push_str(&format!("warning: {warning}\n"));
    }
    text.extend(network_text(config));
    let now = paths_now(config);
    if config.gateway.auto_uplinks.is_some() {
        let uplinks = match now.auto.is_empty() {
            true => "no interface of this machine now; those with a default route are, when there are some"
                .to_owned(),
            false => now.auto.join(", "),
        };
        text.push_str(&format!("uplinks = \"auto\": {uplinks}\n"));
    }
    for number in 0..now.config.paths.len() {
        text.push_str(&idle_cost(&now.config, PathIndex(number)));
    }
    for withheld in paths_now(&with_sites).withheld {
        text.push_str(&format!("warning: {withheld}\n"));
    }
    for problem in now.problems {
        text.push_str(&format!("warning: {problem}\n"));
    }
    // Not the file's fault, so no failure: it may be checked on another machine, or by a user who
    // must not read the key.
    let problem = load_private_key(key).err().map(|error| error.to_string());
    let tls_problem = message_tls_problem(config).map(|error| error.to_string());
    let problems = problem
        .into_iter()
        .chain(store_problem(config))
        .chain(tls_problem);
    for error in problems {
        text.push_str(&format!(
            "note: here the gateway would not start: {error}\n"
        ));
    }
    let unrated = config.paths.iter().filter(|path| path.rate.is_none());
    for path in unrated {
        text.push_str(&format!(
            "note: path `{}` has no rate: the gateway finds what it carries\n",
            path.name
        ));
    }
    if let Some(note) = config.unit_note() {
        text.push_str(&format!("note: {note}\n"));
    }
    text
}

/// What an uplink costs while it carries nothing, as lines.
fn idle_cost(config: &Config, number: PathIndex) -> String {
    let path = &config[number];
    if matches!(path.origin, PathOrigin::Further(_)) {
        return String::new();
    }
    let cost = config.idle_cost(number);
    let lines = match cost.lines {
        1 => String::new(),
        lines => format!(" for {lines} paths to peers"),
    };
    let how = match (path.is_metered, path.budget) {
        (true, _) => ", metered",
        (false, Some(_)) => ", limited by its budget",
        (false, None) => "",
    };
    let money = match path.cost {
        CostPerGb::ZERO => String::new(),
        each => {
            let all = each.get() * cost.bytes.get() as f64 / 1e9;
            format!(", {all:.2} at {each} per GB")
        }
    };
    let name = &path.name;
    let bytes = human::bytes(cost.bytes.get());
    let mut text = format!(
        "path {name}: while it carries nothing, it costs at most {bytes} in 30 days{lines}, both directions together{how}{money}\n"
    );
    if cost.exceeds_budget() {
        text.push_str(&format!(
            "warning: path {name}: keepalives alone exceed its monthly_budget; raise it, or use fewer paths to peers\n"
        ));
    }
    text
}

fn plural(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
