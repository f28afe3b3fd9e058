//! The sites of this gateway's network: at the hub they follow the registry's file, at a branch what the hub has
//! sent.
//!
//! What the sites mean for a configuration is decided by [`NetworkState::applied_to`]. A changed registry is applied
//! like a reload, so that only what changed is touched. One that is wrong is reported, and the last good one stays in
//! force.

use std::{fs, os::unix::fs::MetadataExt};

use keiro_control::{
    ConfigError,
    config::{Config, Found, Membership},
    network::NetworkState,
    protocol::EventKind,
};

use crate::{follow_uplinks::look, gateway::Gateway, reload::Reloaded, uplinks::found_interfaces};

/// What is known of the network, and the configuration that it is added to.
pub(crate) struct Sites {
    /// As in the gateway's file.
    of_file: Config,
    state: NetworkState,
    /// The registry's file as it was read last, good or not.
    read: Option<FileState>,
    /// Why the registry as it is now is not in force; `None`: it is.
    rejected: Option<String>,
}

/// By which a changed file is noticed: a file that is replaced is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileState {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Sites {
    /// Reads what there is for a configuration.
    ///
    /// # Errors
    /// The registry is wrong.
    pub(crate) fn load(of_file: Config) -> Result<Self, ConfigError> {
        let mut sites = Self {
            of_file,
            state: NetworkState::default(),
            read: None,
            rejected: None,
        };
        let prepared = sites.prepare(sites.of_file.clone())?;
        sites.take(prepared);
        Ok(sites)
    }

    /// Reads what there is for another configuration. Nothing changes until it is [taken](Self::take).
    ///
    /// # Errors
    /// The registry is wrong.
    pub(crate) fn prepare(&self, of_file: Config) -> Result<PreparedSites, ConfigError> {
        // Looked at before it is read: what changes meanwhile is read again.
        let read = registry_of(&of_file);
        let state = NetworkState::load(&of_file)?;
        if let Some(problem) = NetworkState::problem(&of_file) {
            tracing::warn!("{problem}");
        }
        Ok(PreparedSites {
            of_file,
            state,
            read,
        })
    }

    pub(crate) fn take(&mut self, prepared: PreparedSites) {
        let PreparedSites {
            of_file,
            state,
            read,
        } = prepared;
        (self.of_file, self.state, self.read) = (of_file, state, read);
        self.rejected = None;
    }

    /// As in the gateway's file, without the sites.
    pub(crate) fn of_file(&self) -> &Config {
        &self.of_file
    }

    /// The configuration with the sites.
    pub(crate) fn config(&self) -> Config {
        self.state.applied_to(&self.of_file)
    }

    /// The registry's file is another one than was read.
    fn is_due(&self) -> bool {
        let Some(Membership::Hub(_)) = &self.of_file.network else {
            return false;
        };
        registry_of(&self.of_file) != self.read
    }
}

/// What [`Sites::prepare`] has read.
pub(crate) struct PreparedSites {
    of_file: Config,
    state: NetworkState,
    read: Option<FileState>,
}

impl PreparedSites {
    /// The configuration with the sites.
    pub(crate) fn config(&self) -> Config {
        self.state.applied_to(&self.of_file)
    }
}

/// The state of a hub's registry; `None`: there is none.
fn registry_of(config: &Config) -> Option<FileState> {
    let Some(Membership::Hub(hub)) = &config.network else {
        return None;
    };
    let metadata = fs::symlink_metadata(&hub.registry).ok()?;
    Some(FileState {
        device: metadata.dev(),
        inode: metadata.ino(),
        bytes: metadata.size(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    })
}

impl Gateway {
    /// Why the configuration or the registry as it is now is not in force.
    pub(crate) fn rejected(&self) -> Option<String> {
        let of_file = self.config_file.rejected.as_ref();
        of_file.or(self.sites.rejected.as_ref()).cloned()
    }

    /// Applies the registry if its file has changed.
    pub(crate) fn follow_registry(&mut self) {
        if self.draining || !self.sites.is_due() {
            return;
        }
        let of_file = self.sites.of_file.clone();
        // Looked at before it is read, as in `prepare`.
        let read = registry_of(&of_file);
        match self.sites.prepare(of_file) {
            // It says the same as before.
            Ok(prepared) if prepared.state == self.sites.state => self.sites.take(prepared),
            Ok(prepared) => self.adopt_sites(prepared),
            Err(error) => {
                self.sites.read = read;
                let problems = error.problems();
                let first = problems.first().map(ToString::to_string);
                let problems = problems.len() as u64;
                self.reject_sites(format!("{error}"), problems, first.unwrap_or_default());
            }
        }
    }

    fn adopt_sites(&mut self, prepared: PreparedSites) {
        let written = prepared.config();
        match self.try_adopt_sites(&written) {
            Ok(Reloaded {
                changes, problems, ..
            }) => {
                self.sites.take(prepared);
                for problem in problems {
                    tracing::error!("{problem}");
                }
                if !changes.is_empty() {
                    self.publish(EventKind::Reloaded { changes });
                }
                self.publish_device_events();
            }
            Err(error) => {
                // It is tried again when the file changes.
                self.sites.read = prepared.read;
                let text = format!("{error:#}");
                self.reject_sites(text.clone(), 1, text);
            }
        }
    }

    fn try_adopt_sites(&mut self, written: &Config) -> anyhow::Result<Reloaded> {
        self.refuse_own_key(written)?;
        let machine =
            look(self.network.as_mut(), written).map_err(|problem| anyhow::anyhow!("{problem}"))?;
        let found = Found {
            interfaces: found_interfaces(written, &machine, &self.found.interfaces),
            ..self.found.of_config(written)
        };
        let reloaded = self.adopt(written, &found, &machine)?;
        self.written = written.clone();
        self.found = found;
        Ok(reloaded)
    }

    fn reject_sites(&mut self, text: String, problems: u64, first: String) {
        if self.sites.rejected.as_ref() == Some(&text) {
            return;
        }
        tracing::error!("the sites of the network stay as they were: {text}");
        self.sites.rejected = Some(text);
        self.publish(EventKind::ConfigRejected { problems, first });
    }
}
