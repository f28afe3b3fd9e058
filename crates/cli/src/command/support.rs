//! `keiro support`: what a bug report needs, in one file without secrets.

mod bundle;
mod gateway;
mod machine;
mod redact;

use std::{
    fs::File,
    io::{self, IsTerminal, Read},
    path::{Path, PathBuf},
    time::SystemTime,
};

use indicatif::{ProgressBar, ProgressStyle};
use keiro_control::{
    Config,
    config::{DEFAULT_CONTROL_SOCKET, Membership},
    protocol::Timestamp,
};
use keiro_terminal::VERSION;
use serde_json::Value;

use self::{
    bundle::{Bundle, ENTRY_BYTES_MAX},
    gateway::Events,
    redact::{KEY_FILE_BYTES_MAX, REMOVED, Redactor},
};
use super::doctor;
use crate::{args, failure::Failure, output};

/// What is being gathered.
struct Gathering {
    bundle: Bundle,
    redactor: Redactor,
    /// What could not be looked at.
    missing: Vec<String>,
}

/// The parts, in their order: what is secret and what is public must be known first.
const PARTS: [&str; 6] = [
    "configuration",
    "the running gateway",
    "keiro doctor",
    "the machine",
    "the log",
    "events",
];

pub(super) fn support(args: &args::Support) -> Result<(), Failure> {
    let now = Timestamp(SystemTime::now());
    let root = format!("keiro-support-{}", stamp(now));
    let path = match &args.output {
        Some(path) => path.clone(),
        None => PathBuf::from(format!("{root}.tar.gz")),
    };
    let mut gathering = Gathering {
        bundle: Bundle::create(&path, &root)?,
        redactor: Redactor::default(),
        missing: Vec::new(),
    };
    let socket = gathering.gather(args)?;
    let about = gathering.about(now, &args.config, &socket);
    gathering.bundle.add("README.txt", &about)?;
    let Gathering {
        bundle,
        redactor,
        missing,
    } = gathering;
    let texts = bundle.names.len();
    bundle.finish()?;
    output::text(format_args!("{}\n", path.display()))?;
    output::message!(
        "keiro: {texts} texts; {} secrets were removed; names, addresses and public keys were not: look into it \
         before you pass it on",
        redactor.removed
    );
    for line in &missing {
        output::message!("keiro: not there: {}", keiro_terminal::printable(line));
    }
    Ok(())
}

/// `20260131T120000Z`.
fn stamp(time: Timestamp) -> String {
    let text = time.to_string();
    let digits = text.split('.').next().unwrap_or(&text);
    let plain: String = digits.chars().filter(|c| !matches!(c, '-' | ':')).collect();
    format!("{plain}Z")
}

impl Gathering {
    /// Gathers everything, and returns the socket that was asked.
    fn gather(&mut self, args: &args::Support) -> Result<PathBuf, Failure> {
        let bar = progress();
        let step = |number: usize| {
            bar.set_position(number as u64);
            bar.set_message(PARTS[number]);
        };
        step(0);
        let socket = self.configuration(&args.config)?;
        let socket = args.socket.clone().unwrap_or(socket);
        let events = Events::follow(&socket);
        step(1);
        gateway::gather(self, &socket)?;
        gateway::egress(self)?;
        step(2);
        let report = doctor::report(&args.config);
        self.add_json("doctor.json", &report)?;
        step(3);
        machine::gather(self)?;
        step(4);
        machine::journal(self)?;
        step(5);
        if let Some(events) = events.take() {
            self.add_result("events.jsonl", Ok(events))?;
        }
        bar.finish_and_clear();
        Ok(socket)
    }

    /// The configuration and the registry of its network, without secrets. Returns the control socket.
    fn configuration(&mut self, file: &Path) -> Result<PathBuf, Failure> {
        let text = read(file, ENTRY_BYTES_MAX as u64);
        let shown = text.map(|text| self.redactor.configuration(&text));
        let config = Config::load(file);
        let registry = config.as_ref().ok().and_then(registry);
        let registry_text = registry.as_deref().map(|file| {
            let text = read(file, ENTRY_BYTES_MAX as u64);
            text.map(|text| self.redactor.configuration(&text))
        });
        self.learn_secrets();
        self.add_result("configuration/gateway.toml", shown)?;
        if let Some(text) = registry_text {
            self.add_result("configuration/registry.toml", text)?;
        }
        let problems = match &config {
            Ok(_) => "none\n".to_owned(),
            // Without the lines themselves, which may hold anything.
            Err(error) => error
                .problems()
                .iter()
                .map(|problem| format!("{problem}\n"))
                .collect(),
        };
        self.add_result("configuration/problems.txt", Ok(problems))?;
        let socket = config.map(|config| config.gateway.control_socket);
        Ok(socket.unwrap_or_else(|_| PathBuf::from(DEFAULT_CONTROL_SOCKET)))
    }

    /// What is in the files that hold keys, so that it is found wherever else it is. They are not added.
    fn learn_secrets(&mut self) {
        for file in self.redactor.key_files.clone() {
            // One that this user may not read is no text that this user's bundle has.
            if let Ok(contents) = read(Path::new(&file), KEY_FILE_BYTES_MAX) {
                self.redactor.add_key_file(&contents);
            }
        }
    }

    /// Adds an answer, whose public keys are no secrets.
    fn add_json(&mut self, name: &str, value: &Value) -> Result<(), Failure> {
        self.redactor.add_public_keys(value);
        let text = serde_json::to_string_pretty(value).unwrap_or_default();
        self.add_result(name, Ok(format!("{text}\n")))
    }

    /// Adds a text without secrets, or notes why it is missing.
    fn add_result(&mut self, name: &str, text: Result<String, String>) -> Result<(), Failure> {
        match text {
            Ok(text) => {
                let text = self.redactor.clean(&text);
                self.bundle.add(name, &text)
            }
            Err(why) => {
                self.missing
                    .push(format!("{name}: {}", self.redactor.clean(&why)));
                Ok(())
            }
        }
    }

    /// What the bundle is, for those who open it.
    fn about(&self, now: Timestamp, config: &Path, socket: &Path) -> String {
        let mut text = format!(
            "Keiro support bundle, {now}\n\nkeiro {VERSION}\nconfiguration {}\ncontrol socket {}\n\n\
             Removed: private and preshared keys, tokens, invitations, passwords, and comments of configurations, \
             {} in all; in their places is {REMOVED}.\nNot removed: names, addresses, public keys, routes, firewall \
             rules, log lines.\n\nTexts:\n",
            config.display(),
            socket.display(),
            self.redactor.removed,
        );
        for name in &self.bundle.names {
            text.push_str(&format!("  {name}\n"));
        }
        text.push_str("\nMissing:\n");
        for line in &self.missing {
            text.push_str(&format!("  {line}\n"));
        }
        if self.missing.is_empty() {
            text.push_str("  nothing\n");
        }
        text
    }
}

fn registry(config: &Config) -> Option<PathBuf> {
    match &config.network {
        Some(Membership::Hub(hub)) => Some(hub.registry.clone()),
        _ => None,
    }
}

fn read(file: &Path, bytes_max: u64) -> Result<String, String> {
    let read = || {
        let mut bytes = Vec::new();
        File::open(file)?.take(bytes_max).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    read().map_err(|error: io::Error| format!("{}: {error}", file.display()))
}

/// Nothing is shown where standard error is no terminal.
fn progress() -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{pos}/{len} {bar:20} {elapsed} {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(PARTS.len() as u64).with_style(style);
    bar.enable_steady_tick(std::time::Duration::from_millis(500));
    bar
}
