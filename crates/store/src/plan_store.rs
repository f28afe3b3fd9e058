//! The interface of a plan store.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    quarantine::QuarantinedFile,
    site::{DocumentError, GATEWAYS_MAX, Inputs, SitePlan, SiteView},
};

/// Where the gateways of one site leave their inputs and find their plan.
///
/// Calls block, each for a bounded time that the store was made with; [`crate::Worker`] keeps them
/// off the control thread. After an error a call may be made again; nothing is half done.
pub trait PlanStore: Send {
    /// What and where it is, for messages: `etcd at http://10.0.0.1:2379, site tokyo`.
    fn description(&self) -> String;

    /// Makes the inputs this gateway's own, in place of those before; they run out after the
    /// store's time to live unless [`PlanStore::keep_alive`] is called. Those of another gateway
    /// of the same name are left alone.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn publish(&mut self, inputs: &Inputs) -> Result<PublishOutcome, StoreError>;

    /// Keeps what was published from running out. `false`: it has run out, or is another's now;
    /// publish again.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn keep_alive(&mut self) -> Result<bool, StoreError>;

    /// Takes this gateway's inputs away at once, so that the others need not wait.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn withdraw(&mut self) -> Result<(), StoreError>;

    /// All live gateways' inputs and the plan. What cannot be read is left out and reported by
    /// [`PlanStore::take_notices`].
    ///
    /// # Errors
    /// See [`StoreError`].
    fn load(&mut self) -> Result<SiteView, StoreError>;

    /// Stores a plan if the stored one's number is still `based_on` ([`SiteView::plan_revision`]).
    ///
    /// # Errors
    /// See [`StoreError`]; whether the plan was stored is then unknown until the next load.
    fn offer(&mut self, plan: &SitePlan, based_on: u64) -> Result<OfferOutcome, StoreError>;

    /// What has been noticed since the last call, at most a few dozen.
    fn take_notices(&mut self) -> Vec<Notice>;

    /// How long a kept-alive entry lasts.
    fn time_to_live(&self) -> Duration;

    /// How often to look for changes without a notification.
    fn refresh_interval(&self) -> Duration;

    /// Watches for changes, from a thread of its own. `None`: only looking helps.
    fn watcher(&self) -> Option<Box<dyn Watcher>>;
}

/// Waits for changes in a store.
pub trait Watcher: Send {
    /// Calls `on_change` whenever something may have changed, at least once at the beginning; returns
    /// after `timeout` at the latest, or when the store ends it.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn watch(&mut self, timeout: Duration, on_change: &mut dyn FnMut()) -> Result<(), StoreError>;
}

/// What became of inputs that were published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishOutcome {
    Stored,
    /// Nothing was stored: inputs under this name are another gateway's, or were left by this one
    /// before it was started again and have not run out yet.
    NameTaken,
}

/// What became of a plan that was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfferOutcome {
    /// It is the site's plan now.
    Accepted { revision: u64 },
    /// Another one is stored that it does not take into account.
    Refused {
        /// The number of that one; 0: nothing is stored.
        revision: u64,
    },
}

/// A condition that an operator should know and that stops nothing.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// A file could not be read; it was kept under another name, and a fresh one is used.
    QuarantinedFile(QuarantinedFile),
    /// An entry of the store cannot be read and is ignored, not removed.
    Ignored {
        /// Its key or name.
        entry: String,
        error: DocumentError,
    },
    /// There are more gateways than [`GATEWAYS_MAX`]; the rest is ignored.
    TooManyGateways {
        /// How many entries there are.
        count: u64,
    },
    /// Another gateway shares the store under this one's name.
    NameTaken { gateway: String, store: String },
    /// The name that was another's is this gateway's own again.
    NameFree { gateway: String },
    /// The site's plan is not kept on this machine as well: a restart while the store is lost
    /// would begin without it. Tried again.
    NotRemembered { error: String },
    /// It is kept again.
    Remembered,
    /// Own inputs or plan were not stored, and will not be as they are.
    NotStored {
        /// Which, as the beginning of a sentence: `the plan was`.
        what: &'static str,
        error: String,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QuarantinedFile(kept) => kept.fmt(f),
            Self::Ignored { entry, error } => write!(f, "{entry} is ignored: {error}"),
            Self::TooManyGateways { count } => write!(
                f,
                "the site has {count} gateways; only the first {GATEWAYS_MAX} by name are planned for"
            ),
            Self::NameTaken { gateway, store } => write!(
                f,
                "another gateway is named {gateway:?} too in {store}; this one takes no part in the \
                 site's plan and plans alone until the name is free: give one of them another \
                 `name` in [gateway] and restart it"
            ),
            Self::NameFree { gateway } => write!(
                f,
                "the name {gateway:?} is no other gateway's any more; this one takes part in the \
                 site's plan"
            ),
            Self::NotRemembered { error } => {
                write!(f, "the plan on this machine was not stored: {error}")
            }
            Self::Remembered => f.write_str("the plan on this machine is stored again"),
            Self::NotStored { what, error } => write!(f, "{what} not stored: {error}"),
        }
    }
}

/// Why a store did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No server answered in time.
    #[error("{endpoint} does not answer: {reason}")]
    Unreachable {
        /// The last one tried.
        endpoint: String,
        reason: String,
    },
    #[error("{endpoint} refuses: {message}")]
    Refused { endpoint: String, message: String },
    /// The server's answer makes no sense.
    #[error("{endpoint} answers what is not understood: {reason}; is it etcd 3.4 or newer?")]
    NotUnderstood { endpoint: String, reason: String },
    /// What is to be stored cannot be: the caller's fault.
    #[error("cannot be stored: {0}")]
    Document(#[from] DocumentError),
    /// The disk is full. What was stored before is intact.
    #[error("{}: no space left on the disk; what was stored before is intact", path.display())]
    NoSpace { path: PathBuf },
    /// Another gateway's process holds the store for too long.
    #[error("{} is held by another process", path.display())]
    Busy { path: PathBuf },
    /// A file could not be used.
    #[error("cannot {doing} {}: {source}{}", path.display(), what_to_try(doing, source))]
    File {
        /// `read`, `write`, ….
        doing: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// The store is not configured in a way that can work.
    #[error("{0}")]
    Configuration(String),
}

/// Where the rights are missing, what helps.
fn what_to_try(doing: &str, error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied if doing == "read" => {
            "; try: let the user that the gateway runs as read it"
        }
        io::ErrorKind::PermissionDenied
        | io::ErrorKind::ReadOnlyFilesystem
        | io::ErrorKind::NotADirectory => {
            "; try: let the user that the gateway runs as write there, or set another \
             `state_directory`"
        }
        _ => "",
    }
}

impl StoreError {
    /// An error of the file system, by kind.
    pub(crate) fn file(doing: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace { path },
            _ => Self::File {
                doing,
                path,
                source,
            },
        }
    }
}

/// Notices, bounded: further ones are dropped until these are taken.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    waiting: Vec<Notice>,
    /// Gateways of the last view, where there were too many.
    too_many: Option<u64>,
}

/// Ours: a dozen entries, a handful of bad ones each.
const NOTICES_MAX: usize = 32;

impl Notices {
    pub(crate) fn add(&mut self, notice: Notice) {
        if self.waiting.len() < NOTICES_MAX && !self.waiting.contains(&notice) {
            self.waiting.push(notice);
        }
    }

    /// Reported when it changes, not with every look.
    pub(crate) fn count_gateways(&mut self, count: u64) {
        let too_many = (count > GATEWAYS_MAX as u64).then_some(count);
        if too_many != self.too_many {
            self.too_many = too_many;
            if let Some(count) = too_many {
                self.add(Notice::TooManyGateways { count });
            }
        }
    }

    pub(crate) fn take(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_rights_say_what_to_try() {
        let text = |doing, kind: io::ErrorKind| {
            StoreError::file(doing, Path::new("/s/plan"), kind.into()).to_string()
        };
        for (doing, kind, wanted) in [
            ("make", io::ErrorKind::PermissionDenied, "`state_directory`"),
            ("write", io::ErrorKind::ReadOnlyFilesystem, "write there"),
            ("read", io::ErrorKind::PermissionDenied, "read it"),
        ] {
            let text = text(doing, kind);
            assert!(text.contains("; try: "), "{text}");
            assert!(text.contains(wanted), "{text}");
        }
        let other = text("read", io::ErrorKind::UnexpectedEof);
        assert!(!other.contains("try:"), "{other}");
    }
}
