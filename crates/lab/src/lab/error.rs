//! Why a laboratory could not be made, used or removed.

use std::{fmt, io, path::PathBuf, time::Duration};

use keiro_config::nearest;
use keiro_linux::{netns::NetnsError, offload::OffloadError};

use crate::emulator::EmulatorError;

/// Why a laboratory could not be made, used or removed, and what to try.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// Only root can make namespaces.
    #[error("a laboratory needs root, to make network namespaces; try again with sudo")]
    NotRoot,
    /// A program is not installed.
    #[error("`{tool}` is missing; install it, as in `apt-get install {package}`")]
    ToolMissing {
        tool: &'static str,
        /// The Debian package that contains it.
        package: &'static str,
    },
    /// The laboratory has no name, or an invalid one.
    #[error(
        "`{0}` cannot be a laboratory's name; use at most 64 lower-case letters, digits and \
         hyphens, beginning with a letter"
    )]
    BadName(String),
    /// A laboratory of this name is in use.
    #[error(
        "laboratory `{name}` is in use by process {pid}; remove it with `keiro-lab down {name}`, \
         or choose another name"
    )]
    InUse { name: String, pid: i32 },
    /// A laboratory of this name was left by a process that has ended.
    #[error(
        "laboratory `{name}` was left over by process {pid}, which has ended (namespaces: {}); \
         remove it with `keiro-lab down {name}`",
        list(namespaces)
    )]
    LeftOver {
        name: String,
        pid: i32,
        /// Its namespaces that still exist.
        namespaces: Vec<String>,
    },
    /// Namespaces with these names exist, but are not on record as a laboratory's.
    #[error(
        "namespace {} exists already, and no laboratory on record made it; if it may go, remove it \
         with `ip netns delete` or make the laboratory with --force",
        list(.0)
    )]
    NamespaceExists(Vec<String>),
    /// There is no such laboratory.
    #[error("there is no laboratory `{name}`{}", near(name, known))]
    NoSuchLab { name: String, known: Vec<String> },
    /// The laboratory has no host or link of this name.
    #[error("the laboratory has no {what} `{name}`{}", near(name, known))]
    Unknown {
        /// `host` or `link`.
        what: &'static str,
        name: String,
        known: Vec<String>,
    },
    /// Only emulated links can be changed.
    #[error(
        "link `{0}` is a plain one; to change it, write `emulated = true`, or a rate, delay or \
         loss, in the topology"
    )]
    NotEmulated(String),
    /// The laboratory belongs to the calling process.
    #[error("laboratory `{0}` is this process's own; drop it instead")]
    OwnLab(String),
    /// The process that owns the laboratory did not end when asked to.
    #[error("process {pid}, which owns laboratory `{name}`, did not end within {waited:?}")]
    OwnerStays {
        name: String,
        pid: i32,
        /// Time waited.
        waited: Duration,
    },
    /// `ip` refused a command.
    #[error("`ip {command}` failed: {message}")]
    Ip {
        /// Arguments of the command.
        command: String,
        message: String,
    },
    /// A namespace could not be used.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// Offloads of a host's device could not be switched off.
    #[error("host `{host}`: {source}")]
    Offload { host: String, source: OffloadError },
    /// The emulator does not start or does not answer.
    #[error(transparent)]
    Emulator(#[from] EmulatorError),
    /// A value of `/proc/sys` could not be set.
    #[error("host `{host}`: cannot set sysctl `{key}` to `{value}`: {source}")]
    Sysctl {
        host: String,
        /// The sysctl's dotted name.
        key: String,
        value: String,
        source: io::Error,
    },
    /// The record of laboratories cannot be read or written.
    #[error("record {}: {message}", path.display())]
    Record { path: PathBuf, message: String },
    /// A link was not usable in time.
    #[error("host `{host}`: {what} after {waited:?}")]
    NotReady {
        host: String,
        /// What was not ready.
        what: String,
        /// Time waited.
        waited: Duration,
    },
    /// A program could not be started.
    #[error("host `{host}`: cannot start `{program}`: {source}")]
    Spawn {
        host: String,
        program: String,
        source: io::Error,
    },
    /// The laboratory was removed because of a signal while it was in use.
    #[error("laboratory `{0}` was removed meanwhile")]
    Closed(String),
}

impl LabError {
    pub(crate) fn record(path: impl Into<PathBuf>, message: impl fmt::Display) -> Self {
        Self::Record {
            path: path.into(),
            message: message.to_string(),
        }
    }

    pub(crate) fn unknown<'a>(
        what: &'static str,
        name: &str,
        known: impl Iterator<Item = &'a String>,
    ) -> Self {
        Self::Unknown {
            what,
            name: name.to_owned(),
            known: known.cloned().collect(),
        }
    }
}

fn list(names: &[String]) -> String {
    match names {
        [] => "none".to_owned(),
        names => names
            .iter()
            .map(|name| format!("`{name}`"))
            .collect::<Vec<_>>()
            .join(", "),
    }
}

fn near(name: &str, known: &[String]) -> String {
    match nearest(name, known.iter().map(String::as_str)) {
        Some(near) => format!("; did you mean `{near}`?"),
        None => format!("; there are: {}", list(known)),
    }
}
