//! The file of hooks: TOML; unknown keys and events are refused.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Duration,
};

use keiro_config::{ConfigError, FileLimits};
use keiro_control::{config::Name, protocol::EventKind, units::Text};
use serde::Deserialize;

/// The gateway has closed the connection: it stopped, or was killed.
pub const GATEWAY_GONE: &str = "gateway_gone";
/// A gateway that had gone answers again.
pub const GATEWAY_ANSWERS: &str = "gateway_answers";
/// Of `keiro hooks --test`.
pub const TEST: &str = "test";

/// Hooks at most. Ours: each has a thread.
const HOOKS_MAX: usize = 16;
/// Words of a command at most, and bytes of each. Ours.
const WORDS_MAX: usize = 64;
const WORD_BYTES_MAX: usize = 4096;
const URL_BYTES_MAX: usize = 2048;
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// Ours: what takes longer holds up what follows it.
const TIMEOUT_MAX: Duration = Duration::from_secs(300);
/// Ours: a person reads the outcome.
const PER_MINUTE_DEFAULT: u32 = 30;
const PER_MINUTE_MAX: u32 = 6000;
/// Where Debian and others keep the authorities that they trust.
const AUTHORITIES_DEFAULT: &str = "/etc/ssl/certs/ca-certificates.crt";

const LIMITS: FileLimits = FileLimits {
    bytes_max: 1 << 20,
    missing_hint: "docs/hooks.md has an example",
    too_long_hint: "write fewer hooks",
};

/// What is done for which events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    pub name: String,
    pub events: Events,
    pub action: Action,
    /// For one command or request.
    pub timeout: Duration,
    /// Events that are passed on in a minute; further ones are counted.
    pub per_minute: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Events {
    All,
    /// Those of these names.
    Named(BTreeSet<String>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A program and its arguments, without a shell.
    Command(Vec<String>),
    Webhook(Webhook),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// `https`, or `http` to this machine.
    pub url: String,
    /// Certificates that may have signed the server's, PEM.
    pub authorities: PathBuf,
    /// A file with the token of the header `authorization: Bearer`; `None`: no header.
    pub token_file: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    hook: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    events: Vec<String>,
    command: Option<Vec<String>>,
    url: Option<String>,
    ca: Option<PathBuf>,
    token_file: Option<PathBuf>,
    timeout: Option<Text<Duration>>,
    per_minute: Option<u32>,
}

/// Reads the file of hooks.
///
/// # Errors
/// Everything that is wrong with it.
pub fn load(path: &Path) -> Result<Vec<Hook>, ConfigError> {
    let text = LIMITS.read(path)?;
    parse(&text, &path.display().to_string())
}

/// Reads the text of a file of hooks; `file` is what messages call it.
///
/// # Errors
/// Everything that is wrong with it.
pub fn parse(text: &str, file: &str) -> Result<Vec<Hook>, ConfigError> {
    let wrong = |(message, hint): (String, &str)| ConfigError::of_file(file, message, hint);
    let entries = keiro_config::deserialize::<File>(text, file)?.hook;
    if entries.is_empty() || entries.len() > HOOKS_MAX {
        let message = format!("{} hooks", entries.len());
        return Err(wrong((message, "write 1 to 16 of [[hook]]")));
    }
    let mut hooks: Vec<Hook> = Vec::new();
    for entry in entries {
        let name = keiro_config::shown(&entry.name);
        let hook = entry
            .hook()
            .map_err(|(what, hint)| wrong((format!("hook {name}: {what}"), hint)))?;
        if hooks.iter().any(|other| other.name == hook.name) {
            return Err(wrong((
                format!("two hooks are called {name}"),
                "give each a name of its own",
            )));
        }
        hooks.push(hook);
    }
    Ok(hooks)
}

impl Hook {
    /// Whether it wants events of this name.
    pub fn wants(&self, event: &str) -> bool {
        match &self.events {
            Events::All => true,
            Events::Named(names) => event == TEST || names.contains(event),
        }
    }
}

/// What is wrong, and what to try.
type Problem = (String, &'static str);

impl Entry {
    fn hook(self) -> Result<Hook, Problem> {
        Name::new(&self.name).map_err(|error| (format!("the name {error}"), ""))?;
        let events = events(&self.events)?;
        let timeout = self.timeout.map_or(TIMEOUT_DEFAULT, |timeout| timeout.0);
        if timeout.is_zero() || timeout > TIMEOUT_MAX {
            return Err(("timeout is out of range".to_owned(), "write up to \"300s\""));
        }
        let per_minute = self.per_minute.unwrap_or(PER_MINUTE_DEFAULT);
        if !(1..=PER_MINUTE_MAX).contains(&per_minute) {
            return Err(("per_minute is out of range".to_owned(), "write 1 to 6000"));
        }
        let action = match (self.command, self.url) {
            (Some(_), None) if self.ca.is_some() || self.token_file.is_some() => {
                return Err(("ca and token_file are of a url".to_owned(), "remove them"));
            }
            (Some(command), None) => Action::Command(checked_command(command)?),
            (None, Some(url)) => Action::Webhook(Webhook {
                url: checked_url(url)?,
                authorities: self
                    .ca
                    .unwrap_or_else(|| PathBuf::from(AUTHORITIES_DEFAULT)),
                token_file: self.token_file,
            }),
            (None, None) => {
                return Err((
                    "it has neither command nor url".to_owned(),
                    "add one of them",
                ));
            }
            (Some(_), Some(_)) => {
                return Err((
                    "it has a command and a url".to_owned(),
                    "make two hooks of it",
                ));
            }
        };
        Ok(Hook {
            name: self.name,
            events,
            action,
            timeout,
            per_minute,
        })
    }
}

fn events(names: &[String]) -> Result<Events, Problem> {
    if names.is_empty() {
        return Err((
            "it has no events".to_owned(),
            "write events = [\"path_down\"], or [\"*\"] for all",
        ));
    }
    if names.iter().any(|name| name == "*") {
        return Ok(Events::All);
    }
    let known = || {
        EventKind::NAMES
            .iter()
            .copied()
            .chain([GATEWAY_GONE, GATEWAY_ANSWERS])
    };
    for name in names {
        if !known().any(|known| known == name) {
            let near = keiro_config::did_you_mean(name, known());
            let message = format!("no event is called {}; {near}", keiro_config::shown(name));
            return Err((message, "docs/control-api.md lists them"));
        }
    }
    Ok(Events::Named(names.iter().cloned().collect()))
}

fn checked_command(words: Vec<String>) -> Result<Vec<String>, Problem> {
    let is_absolute = words
        .first()
        .is_some_and(|program| program.starts_with('/'));
    if !is_absolute {
        let hint =
            "write command = [\"/usr/local/bin/notify\", \"an argument\"]; no shell reads it";
        return Err((
            "command does not begin with the whole path of a program".to_owned(),
            hint,
        ));
    }
    let is_good = |word: &String| word.len() <= WORD_BYTES_MAX && !word.contains('\0');
    match words.len() <= WORDS_MAX && words.iter().all(is_good) {
        true => Ok(words),
        false => Err((
            "command is too long".to_owned(),
            "at most 64 words of 4096 bytes",
        )),
    }
}

/// What is in a URL may be a secret, so no message repeats it.
fn checked_url(url: String) -> Result<String, Problem> {
    let is_plain = url.len() <= URL_BYTES_MAX && url.chars().all(|c| c.is_ascii_graphic());
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if !is_plain || authority.is_empty() || !matches!(scheme, "http" | "https") {
        return Err((
            "url is not one".to_owned(),
            "write url = \"https://HOST/PATH\"",
        ));
    }
    if authority.contains('@') {
        return Err((
            "url has a user or password".to_owned(),
            "write a token to a file and name it as token_file",
        ));
    }
    let is_here = ["127.0.0.1", "localhost", "[::1]"].iter().any(|host| {
        let port = authority.strip_prefix(host);
        port.is_some_and(|port| port.is_empty() || port.starts_with(':'))
    });
    match scheme == "https" || is_here {
        true => Ok(url),
        false => Err((
            "events would be sent in the clear".to_owned(),
            "write https://; http:// is for this machine alone",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> String {
        let error = parse(text, "hooks.toml").expect_err(text);
        error.to_string()
    }

    #[test]
    fn a_file_of_hooks_is_read() {
        let text = "[[hook]]\nname = \"ops\"\nevents = [\"path_down\", \"gateway_gone\"]\n\
                    command = [\"/usr/bin/logger\", \"-t\", \"keiro\"]\ntimeout = \"2s\"\nper_minute = 5\n\
                    [[hook]]\nname = \"chat\"\nevents = [\"*\"]\nurl = \"https://chat.example/hook/secret\"\n";
        let hooks = parse(text, "hooks.toml").unwrap();
        assert!(hooks[0].wants("path_down") && !hooks[0].wants("path_up") && hooks[0].wants(TEST));
        assert_eq!(
            (hooks[0].timeout, hooks[0].per_minute),
            (Duration::from_secs(2), 5)
        );
        assert!(hooks[1].wants("path_up") && hooks[1].per_minute == PER_MINUTE_DEFAULT);
        assert!(matches!(&hooks[1].action, Action::Webhook(hook) if hook.token_file.is_none()));
    }

    #[test]
    fn what_cannot_work_is_refused_and_secrets_of_urls_are_not_repeated() {
        let with = |rest: &str| format!("[[hook]]\nname = \"a\"\nevents = [\"*\"]\n{rest}\n");
        let twice = with("command = [\"/a\"]").repeat(2);
        let cases = [
            (with(""), "neither command nor url"),
            (with("command = [\"logger\"]"), "whole path"),
            (
                with("command = [\"/a\"]\nurl = \"https://a/\""),
                "two hooks of it",
            ),
            (with("url = \"http://example.com/s3cret\""), "in the clear"),
            (
                with("url = \"http://127.0.0.1.example.com/s3cret\""),
                "in the clear",
            ),
            (
                with("url = \"https://u:s3cret@example.com/\""),
                "user or password",
            ),
            (with("url = \"ftp://s3cret\""), "url is not one"),
            (with("command = [\"/a\"]\nper_minute = 0"), "out of range"),
            (with("command = [\"/a\"]\ntimeout = \"1h\""), "out of range"),
            (with("comand = [\"/a\"]"), "command"),
            (
                "[[hook]]\nname = \"a\"\nevents = [\"path_dwn\"]\ncommand = [\"/a\"]\n".to_owned(),
                "path_down",
            ),
            ("hook = []\n".to_owned(), "0 hooks"),
            (twice, "two hooks are called"),
        ];
        for (text, part) in cases {
            let problem = problem(&text);
            assert!(problem.contains(part), "{part}: {problem}");
            assert!(
                !problem.contains("s3cret") || problem.contains("url ="),
                "{problem}"
            );
        }
    }
}
