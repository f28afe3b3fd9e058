//! What keeps a gateway from doing its work, and the one command or setting that corrects it.
//!
//! [`diagnose`] is pure: the caller gathers the [`Facts`] from the configuration, the kernel and the running
//! gateway. Each [`Cause`] has an identifier that stays the same, a check, and a line in the documentation. A cause
//! is found only where it has a consequence.
#![forbid(unsafe_code)]

mod causes;
pub mod egress;
pub mod facts;
pub mod firewall;
pub mod openings;
#[cfg(test)]
mod tests;

use serde::Serialize;

pub use self::{
    causes::{CAUSES, Cause},
    facts::Facts,
};

/// What a finding is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "kind", content = "name", rename_all = "snake_case")]
pub enum Subject {
    Machine,
    Configuration,
    Gateway,
    /// The daemon of the egress suite.
    Daemon,
    /// An uplink, by the name of its path.
    Path(String),
    Peer(String),
    /// An application.
    App(String),
    Tenant(String),
}

/// Something that does not work, why, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The identifier of its cause.
    pub cause: &'static str,
    pub subject: Subject,
    /// What is wrong and what follows from it.
    pub finding: String,
    /// The one command or setting that corrects it.
    pub remedy: String,
}

/// What was found so far, for causes that stand back behind more specific ones.
#[derive(Debug, Default)]
pub(crate) struct Found(Vec<Finding>);

/// Everything that is wrong, the most basic first.
#[must_use]
pub fn diagnose(facts: &Facts) -> Vec<Finding> {
    let mut found = Found::default();
    for cause in CAUSES {
        let more = (cause.check)(facts, &found);
        debug_assert!(more.iter().all(|finding| finding.cause == cause.id));
        found.0.extend(more);
    }
    found.0
}

impl Found {
    fn has(&self, subject: &Subject) -> bool {
        self.0.iter().any(|finding| finding.subject == *subject)
    }

    fn has_cause(&self, id: &str) -> bool {
        self.0.iter().any(|finding| finding.cause == id)
    }
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Machine => f.write_str("machine"),
            Self::Configuration => f.write_str("configuration"),
            Self::Gateway => f.write_str("gateway"),
            Self::Daemon => f.write_str("daemon"),
            Self::Path(name) => write!(f, "path {name}"),
            Self::Peer(name) => write!(f, "peer {name}"),
            Self::App(name) => write!(f, "application {name}"),
            Self::Tenant(name) => write!(f, "tenant {name}"),
        }
    }
}
