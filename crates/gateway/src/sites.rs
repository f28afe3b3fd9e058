//! The sites of this gateway's network: at the hub they follow the registry's file, at a branch what the hub has
//! sent.
//!
//! What the sites mean for a configuration is decided by [`NetworkState::applied_to`]. A changed registry is applied
//! like a reload, so that only what changed is touched. One that is wrong is reported, and the last good one stays in
//! force.

mod pushes;

use std::{
    fs,
    os::unix::fs::MetadataExt,
    time::{Duration, SystemTime},
};

use keiro_control::{
    ConfigError, PublicKey,
    config::{Config, Found, Membership, Peer},
    network::{NetworkState, PublicRegistry},
    network_channel::Document,
    protocol::EventKind,
};
use keiro_core::{AppId, Event, PeerId, RefusalReason};

use self::pushes::Pushes;
use crate::{
    data::command::DataThreadGone, enrolment::Requests, follow_uplinks::look, gateway::Gateway,
    reload::Reloaded, uplinks::found_interfaces,
};

/// What is known of the network, and the configuration that it is added to.
pub(crate) struct Sites {
    /// As in the gateway's file.
    of_file: Config,
    state: NetworkState,
    /// The registry's file as it was read last, good or not.
    read: Option<FileState>,
    /// Why the registry as it is now is not in force; `None`: it is.
    rejected: Option<String>,
    /// What could not be applied for a reason that may pass; the next look tries again.
    retry: Option<NetworkState>,
    /// Requests of gateways that join.
    pub(crate) requests: Requests,
    /// Numbers this run of the gateway.
    incarnation: u64,
    /// Of the registry.
    revision: u64,
    pushes: Pushes,
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
    pub(crate) fn load(of_file: Config, now: SystemTime) -> Result<Self, ConfigError> {
        let since_1970 = now.duration_since(SystemTime::UNIX_EPOCH);
        let since_1970 = since_1970.unwrap_or(Duration::ZERO);
        let mut sites = Self {
            of_file,
            state: NetworkState::default(),
            read: None,
            rejected: None,
            retry: None,
            requests: Requests::default(),
            incarnation: u64::try_from(since_1970.as_micros()).unwrap_or(u64::MAX),
            revision: 0,
            pushes: Pushes::default(),
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
        let hub = hub_key(&of_file);
        let state = match &self.state {
            // What this run has heard is newer than what was kept, and may not have been kept.
            NetworkState::Branch(_) if hub.is_some() && hub == hub_key(&self.of_file) => {
                self.state.clone()
            }
            _ => {
                if let Some(problem) = NetworkState::problem(&of_file) {
                    tracing::warn!("{problem}");
                }
                NetworkState::load(&of_file)?
            }
        };
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
        // What the hub's own file says of the tenant is a part of what sites get.
        if state != self.state || !self.of_file.diff(&of_file).tenants.is_nothing() {
            self.revision += 1;
        }
        let hub = hub_key(&of_file);
        if hub.is_none() || hub != hub_key(&self.of_file) {
            self.retry = None;
        }
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

    /// A peer has come up or gone down.
    pub(crate) fn on_event(&mut self, event: &Event) {
        match event {
            Event::PeerUp { peer } => self.pushes.on_up(*peer),
            Event::PeerDown { peer, .. } => self.pushes.on_down(*peer),
            _ => {}
        }
    }

    /// A document for a peer has ended.
    pub(crate) fn on_sent(&mut self, peer: PeerId, is_delivered: bool) {
        self.pushes.on_done(peer, is_delivered);
    }

    /// The part of the registry for the site that is the peer of this name.
    fn public_part(&self, peer: &str) -> Option<PublicRegistry> {
        let NetworkState::Hub(registry) = &self.state else {
            return None;
        };
        let name = registry.sites.keys().find(|name| name.as_str() == peer)?;
        let number = [self.incarnation, self.revision];
        PublicRegistry::of_site(registry, &self.of_file, name, number)
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

/// The key of a branch's hub; `None`: it is no branch.
fn hub_key(config: &Config) -> Option<PublicKey> {
    match config.network {
        Some(Membership::Branch { hub }) => Some(config[hub].public_key),
        Some(Membership::Hub(_)) | None => None,
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

/// Whether no machine could have this configuration: two applications have one number, or a peer the gateway's own key.
fn is_at_fault(written: &Config, own: PublicKey) -> bool {
    let number = |name: &str| AppId::of_name(name).0;
    let is_own = |peer: &Peer| peer.public_key == own;
    written.refuse_app_id_collisions(number).is_err() || written.peers.iter().any(is_own)
}

impl Gateway {
    /// Why the configuration or the registry as it is now is not in force.
    pub(crate) fn rejected(&self) -> Option<String> {
        let of_file = self.config_file.rejected.as_ref();
        of_file.or(self.sites.rejected.as_ref()).cloned()
    }

    /// Applies the registry if its file has changed.
    pub(crate) fn follow_registry(&mut self) {
        if self.draining {
            return;
        }
        if !self.sites.is_due() {
            if let Some(state) = self.sites.retry.take() {
                let (of_file, read) = (self.sites.of_file.clone(), self.sites.read);
                self.adopt_and_keep(PreparedSites {
                    of_file,
                    state,
                    read,
                });
            }
            return;
        }
        self.sites.retry = None;
        let of_file = self.sites.of_file.clone();
        // Looked at before it is read, as in `prepare`.
        let read = registry_of(&of_file);
        match self.sites.prepare(of_file) {
            // It says the same as before.
            Ok(prepared) if prepared.state == self.sites.state => self.sites.take(prepared),
            Ok(prepared) => {
                self.adopt_and_keep(prepared);
            }
            Err(error) => {
                self.sites.read = read;
                let problems = error.problems();
                let first = problems.first().map(ToString::to_string);
                let problems = problems.len() as u64;
                self.reject_sites(format!("{error}"), problems, first.unwrap_or_default());
            }
        }
    }

    /// Whether the peer in this place is the hub of this branch.
    pub(crate) fn is_hub_of_this(&self, index: usize) -> bool {
        matches!(&self.sites.of_file.network, Some(Membership::Branch { hub }) if hub.0 == index)
    }

    /// What the hub has sent; kept for the next start, and applied. Why it is refused; `None`: it is not.
    pub(crate) fn on_public_registry(
        &mut self,
        registry: &PublicRegistry,
    ) -> Option<RefusalReason> {
        if let Err(error) = registry.check() {
            let text = format!("what the hub has sent is not taken: {error}");
            self.reject_sites(text.clone(), 1, text);
            return Some(RefusalReason::Other);
        }
        let known = match &self.sites.state {
            NetworkState::Branch(known) => Some(&**known),
            NetworkState::Hub(_) | NetworkState::Nothing => None,
        };
        if self.draining || !registry.follows(known) {
            return None;
        }
        let is_news = known.is_none_or(|known| !registry.says_the_same(known));
        let prepared = PreparedSites {
            of_file: self.sites.of_file.clone(),
            state: NetworkState::Branch(Box::new(registry.clone())),
            read: None,
        };
        self.sites.retry = None;
        match is_news {
            true => self.adopt_and_keep(prepared),
            false => self.sites.take(prepared),
        }
        None
    }

    /// Sends the registry to sites that do not have it as it is now.
    pub(crate) fn push_registry(&mut self) -> Result<(), DataThreadGone> {
        if !self.sites.pushes.take_news() {
            return Ok(());
        }
        let (active, revision) = (&self.active, self.sites.revision);
        let is_there = |peer| active.peer_name(peer).is_some();
        self.sites.pushes.retain(is_there);
        while let Some(peer) = self.sites.pushes.poll(revision) {
            let name = self.active.peer_name(peer).map(str::to_owned);
            let part = name
                .as_deref()
                .and_then(|name| self.sites.public_part(name));
            match name.zip(part) {
                Some((name, part)) => {
                    self.send_network_document(&name, &Document::Registry(Box::new(part)))?;
                }
                // It is a peer of the file, or has an invitation alone.
                None => self.sites.pushes.on_down(peer),
            }
        }
        Ok(())
    }

    /// Sends again what was lost.
    pub(crate) fn retry_pushes(&mut self) -> Result<(), DataThreadGone> {
        self.sites.pushes.on_timeout();
        self.push_registry()
    }

    /// Applies them. A branch keeps them for its next start, but for what cannot be applied, which must not keep it
    /// from that.
    fn adopt_and_keep(&mut self, prepared: PreparedSites) {
        let sent = match &prepared.state {
            NetworkState::Branch(registry) => Some(registry.clone()),
            NetworkState::Hub(_) | NetworkState::Nothing => None,
        };
        if self.adopt_sites(prepared)
            && let Some(registry) = sent
            && let Err(error) = registry.keep(&self.sites.of_file.gateway.state_directory)
        {
            tracing::warn!(
                %error,
                "the sites of the network are not kept; after a restart they are unknown until the hub is reached"
            );
        }
    }

    /// Whether they are in force now.
    fn adopt_sites(&mut self, prepared: PreparedSites) -> bool {
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
                true
            }
            Err(error) => {
                self.sites.read = prepared.read;
                // What the file says is tried again when it changes, what the machine lacks at the next look.
                let own = self.process.public_key;
                self.sites.retry = (!is_at_fault(&written, own)).then_some(prepared.state);
                let text = format!("{error:#}");
                self.reject_sites(text.clone(), 1, text);
                false
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_machine_could_have_is_not_tried_again_by_the_network() {
        let peer = PublicKey::from_bytes([1; 32]);
        let config = |apps: [&str; 2]| {
            let app = |name: &str| {
                format!("[[app]]\nname = \"{name}\"\nclass = \"datagram\"\npeer = \"b\"\n")
            };
            let text = format!(
                "[gateway]\nname = \"a\"\n[[path]]\nname = \"wan\"\nlocal = \"192.0.2.1:7600\"\n\
                 [[peer]]\nname = \"b\"\npublic_key = \"{peer}\"\nendpoint = \"192.0.2.2:7600\"\n{}{}",
                app(apps[0]),
                app(apps[1])
            );
            Config::parse(&text, "gateway.toml").unwrap_or_else(|error| panic!("{error}"))
        };
        let own = PublicKey::from_bytes([2; 32]);
        let good = config(["app44545", "voice"]);
        assert!(!is_at_fault(&good, own));
        assert!(is_at_fault(&good, peer));
        // Both have one number.
        assert!(is_at_fault(&config(["app44545", "app87468"]), own));
    }
}
