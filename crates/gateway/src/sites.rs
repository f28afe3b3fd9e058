//! The sites of this gateway's network: at the hub they follow the registry's file, at a branch or a second hub what
//! the hub has sent.
//!
//! What the sites mean for a configuration is decided by [`NetworkState::applied_to`]. A changed registry is applied
//! like a reload, so that only what changed is touched. One that is wrong is reported, and the last good one stays in
//! force.

pub(crate) mod direct_sites;
mod pushes;
mod seen;

use std::{
    fs,
    os::unix::fs::MetadataExt,
    time::{Duration, Instant as Stopwatch, SystemTime},
};

use keiro_control::{
    ConfigError, PublicKey,
    config::{Config, ConfigDiff, Found, Membership, Name, Peer, PeerOrigin},
    network::{DirectSite, NetworkState, PublicRegistry, Registry, Replica, SITES_MAX},
    network_channel::{Document, SitesUp},
    protocol::EventKind,
};
use keiro_core::{AppId, Event, PeerId, RefusalReason};

use self::{direct_sites::DirectSites, pushes::Pushes, seen::SeenSites};
use crate::{
    data::command::DataThreadGone,
    direct::Introductions,
    enrolment::{Requests, connected_networks},
    follow_uplinks::look,
    gateway::Gateway,
    reload::Reloaded,
    uplinks::{found_interfaces, withheld},
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
    /// Of two hubs, which sites each has.
    seen: SeenSites,
    /// At a branch, sessions with other branches.
    pub(crate) direct: DirectSites,
    /// At a hub, what was done for such sessions.
    pub(crate) introductions: Introductions,
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
            seen: SeenSites::default(),
            direct: DirectSites::default(),
            introductions: Introductions::default(),
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
            NetworkState::Branch(_) | NetworkState::SecondHub(_)
                if hub.is_some() && hub == hub_key(&self.of_file) =>
            {
                self.state.clone()
            }
            _ => {
                if let Some(problem) = NetworkState::problem(&of_file) {
                    tracing::warn!("{problem}");
                }
                NetworkState::load(&of_file)?
            }
        };
        if let (NetworkState::Hub(known), NetworkState::Hub(registry)) = (&self.state, &state)
            && known != registry
        {
            // Where they cannot be listed, routes to them are withheld.
            let networks = connected_networks().unwrap_or_default();
            registry.check_connected(known, &of_file, &networks)?;
        }
        Ok(PreparedSites {
            of_file,
            state,
            read,
            direct: self.direct.wanted(),
        })
    }

    pub(crate) fn take(&mut self, prepared: PreparedSites) {
        let PreparedSites {
            of_file,
            state,
            read,
            direct: _,
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
        self.direct.retain(|name| match &self.state {
            NetworkState::Branch(registry) => registry.direct_key(name).ok(),
            NetworkState::Hub(_) | NetworkState::SecondHub(_) | NetworkState::Nothing => None,
        });
    }

    /// Why the registry as it is now is not in force; `None`: it is.
    pub(crate) fn rejected(&self) -> Option<&str> {
        self.rejected.as_deref()
    }

    /// As in the gateway's file, without the sites.
    pub(crate) fn of_file(&self) -> &Config {
        &self.of_file
    }

    pub(crate) fn state(&self) -> &NetworkState {
        &self.state
    }

    /// Whether a peer is up.
    pub(crate) fn is_up(&self, peer: PeerId) -> bool {
        self.seen.is_up(peer)
    }

    /// The configuration with the sites.
    pub(crate) fn config(&self) -> Config {
        with_sites(&self.of_file, &self.state, &self.direct.wanted())
    }

    /// A peer has come up or gone down.
    pub(crate) fn on_event(&mut self, event: &Event) {
        match event {
            Event::PeerUp { peer } => {
                self.pushes.on_up(*peer);
                self.seen.on_up(*peer);
            }
            Event::PeerDown { peer, .. } => {
                self.pushes.on_down(*peer);
                self.seen.on_down(*peer);
            }
            _ => {}
        }
    }

    /// A document for a peer has ended.
    pub(crate) fn on_sent(&mut self, peer: PeerId, is_delivered: bool) {
        self.pushes.on_done(peer, is_delivered);
    }

    /// What the peer of this name gets of the registry: a site its part, the second hub all of it. `None`: it is
    /// neither.
    fn document_for(&self, peer: &str) -> Option<Document> {
        let site = |registry: &Registry| {
            let mut sites = registry.sites.keys();
            sites.find(|name| name.as_str() == peer).cloned()
        };
        let part = match &self.state {
            NetworkState::Hub(registry) => {
                let number = [self.incarnation, self.revision];
                let second = registry.second_hub.as_ref();
                if second.is_some_and(|(name, _)| name.as_str() == peer) {
                    let replica = Replica::new(registry, &self.of_file, number)?;
                    return Some(Document::RegistryCopy(Box::new(replica)));
                }
                PublicRegistry::of_site(registry, &self.of_file, &site(registry)?, number)?
            }
            NetworkState::SecondHub(replica) => {
                let registry = replica.registry()?;
                PublicRegistry::of_site_in(registry, &replica.network_copy(), &site(registry)?)?
            }
            NetworkState::Branch(_) | NetworkState::Nothing => return None,
        };
        Some(Document::Registry(Box::new(part)))
    }

    /// The name of the other one of two hubs; `None`: this is none, or the only one.
    pub(crate) fn other_hub(&self) -> Option<&Name> {
        match (&self.state, &self.of_file.network) {
            (NetworkState::Hub(registry), _) => Some(&registry.second_hub.as_ref()?.0),
            (NetworkState::SecondHub(_), Some(Membership::SecondHub { first })) => {
                Some(&self.of_file[*first].name)
            }
            _ => None,
        }
    }

    /// Whether a site is up at the other hub; `None`: there is none, or it has not said so.
    pub(crate) fn is_up_at_other_hub(&self, peer: &Peer) -> Option<bool> {
        let is_site = peer.origin == PeerOrigin::Site && self.other_hub().is_some();
        is_site.then(|| self.seen.at_other_hub(&peer.name))?
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
    direct: Vec<DirectSite>,
}

impl PreparedSites {
    /// The configuration with the sites.
    pub(crate) fn config(&self) -> Config {
        with_sites(&self.of_file, &self.state, &self.direct)
    }
}

/// A configuration with the sites of its network, and at a branch with those that it has sessions with.
fn with_sites(of_file: &Config, state: &NetworkState, direct: &[DirectSite]) -> Config {
    let config = state.applied_to(of_file);
    match state {
        NetworkState::Branch(registry) => config.with_direct_sites(registry, direct),
        NetworkState::Hub(_) | NetworkState::SecondHub(_) | NetworkState::Nothing => config,
    }
}

/// The key of the hub that a branch or a second hub follows; `None`: it is neither.
fn hub_key(config: &Config) -> Option<PublicKey> {
    match config.network {
        Some(Membership::Branch { hub } | Membership::SecondHub { first: hub }) => {
            Some(config[hub].public_key)
        }
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
                let direct = self.sites.direct.wanted();
                self.adopt_and_keep(PreparedSites {
                    of_file,
                    state,
                    read,
                    direct,
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

    /// Whether the peer in this place is a hub of this branch: `Some(true)`: the one of its file.
    pub(crate) fn hub_of_this(&self, index: usize) -> Option<bool> {
        let Some(Membership::Branch { hub }) = &self.sites.of_file.network else {
            return None;
        };
        let is_second = self.config.peers[index].origin == PeerOrigin::SecondHub;
        (hub.0 == index || is_second).then_some(hub.0 == index)
    }

    /// Whether the peer in this place is the first hub, and this gateway the second.
    pub(crate) fn is_first_hub(&self, index: usize) -> bool {
        matches!(&self.sites.of_file.network, Some(Membership::SecondHub { first }) if first.0 == index)
    }

    /// What a hub has sent; kept for the next start, and applied. Why it is refused; `None`: it is not.
    pub(crate) fn on_public_registry(
        &mut self,
        registry: &PublicRegistry,
        is_of_first_hub: bool,
    ) -> Option<RefusalReason> {
        if let Err(error) = registry.check() {
            let text = format!("what the hub has sent is not taken: {error}");
            self.reject_sites(text.clone(), 1, text);
            return Some(RefusalReason::Other);
        }
        let known = match &self.sites.state {
            NetworkState::Branch(known) => Some(&**known),
            NetworkState::Hub(_) | NetworkState::SecondHub(_) | NetworkState::Nothing => None,
        };
        let is_newer = match is_of_first_hub {
            true => registry.follows(known),
            false => registry.copy_follows(known),
        };
        if self.draining || !is_newer {
            return None;
        }
        let is_news = known.is_none_or(|known| !registry.says_the_same(known));
        let other_keys = known.map_or(Vec::new(), |known| registry.other_keys_than(known));
        for site in other_keys {
            tracing::warn!(
                "site `{site}` has another public key: it has been replaced, or the hub gives a false one; direct \
                 sessions trust the keys that the hub gives"
            );
        }
        let prepared = PreparedSites {
            of_file: self.sites.of_file.clone(),
            state: NetworkState::Branch(Box::new(registry.clone())),
            read: None,
            direct: self.sites.direct.wanted(),
        };
        self.sites.retry = None;
        match is_news {
            true => self.adopt_and_keep(prepared),
            false => self.sites.take(prepared),
        }
        None
    }

    /// What the first hub has sent to this one, the second; kept for the next start, and applied. Why it is refused;
    /// `None`: it is not.
    pub(crate) fn on_registry_copy(&mut self, replica: Replica) -> Option<RefusalReason> {
        let checked = replica.check().and_then(|replica| {
            replica.check_with(&self.sites.of_file, &[])?;
            Ok(replica)
        });
        let replica = match checked {
            Ok(replica) => replica,
            Err(error) => {
                let text = format!("what the first hub has sent is not taken: {error}");
                self.reject_sites(text.clone(), 1, text);
                return Some(RefusalReason::Other);
            }
        };
        if self.draining {
            return None;
        }
        let is_known = matches!(&self.sites.state, NetworkState::SecondHub(known) if replica.says_the_same(known));
        let prepared = PreparedSites {
            of_file: self.sites.of_file.clone(),
            state: NetworkState::SecondHub(Box::new(replica)),
            read: None,
            direct: Vec::new(),
        };
        self.sites.retry = None;
        match is_known {
            true => self.sites.take(prepared),
            false => self.adopt_and_keep(prepared),
        }
        None
    }

    /// Which sites the other hub has. Why it is refused; `None`: it is not.
    pub(crate) fn on_sites_up(&mut self, peer: &str, up: SitesUp) -> Option<RefusalReason> {
        let is_of_other_hub = self
            .sites
            .other_hub()
            .is_some_and(|name| name.as_str() == peer);
        if !is_of_other_hub || up.sites.len() > SITES_MAX {
            return Some(RefusalReason::Other);
        }
        self.sites.seen.on_heard(up.sites);
        None
    }

    /// Lets the configuration of a branch follow its sessions with other sites. Whether it does.
    pub(crate) fn adopt_direct(&mut self) -> bool {
        let prepared = PreparedSites {
            of_file: self.sites.of_file.clone(),
            state: self.sites.state.clone(),
            read: self.sites.read,
            direct: self.sites.direct.wanted(),
        };
        // What waits to be applied is still to be.
        let retry = self.sites.retry.take();
        // Its events are those of the peer.
        let is_adopted = self.put_in_force(prepared).is_some();
        self.sites.retry = retry;
        is_adopted
    }

    /// Sends the other hub which sites this one has, if it does not know.
    fn push_sites_up(&mut self) -> Result<(), DataThreadGone> {
        let there = self.active.peer_ids().collect();
        self.sites.seen.retain(&there);
        let Some(other) = self.sites.other_hub().map(Name::to_string) else {
            return Ok(());
        };
        let Some(other_id) = self.active.peer_id(&other) else {
            return Ok(());
        };
        let peers = self.config.peers.iter();
        let sites = peers.filter(|peer| peer.origin == PeerOrigin::Site);
        let is_up = |peer: &&Peer| {
            let id = self.active.peer_id(peer.name.as_str());
            id.is_some_and(|id| self.sites.seen.is_up(id))
        };
        let up = sites.filter(is_up).map(|peer| peer.name.clone()).collect();
        match self.sites.seen.poll(other_id, &up, Stopwatch::now()) {
            true => {
                let document = Document::SitesUp(SitesUp { sites: up });
                self.send_network_document(&other, &document)
            }
            false => Ok(()),
        }
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
                .and_then(|name| self.sites.document_for(name));
            match name.zip(part) {
                Some((name, part)) => self.send_network_document(&name, &part)?,
                // It is a peer of the file, or has an invitation alone.
                None => self.sites.pushes.on_down(peer),
            }
        }
        Ok(())
    }

    /// Sends again what was lost.
    pub(crate) fn retry_pushes(&mut self) -> Result<(), DataThreadGone> {
        self.sites.pushes.on_timeout();
        self.push_registry()?;
        self.push_sites_up()
    }

    /// Applies them. A branch keeps them for its next start, but for what cannot be applied, which must not keep it
    /// from that.
    fn adopt_and_keep(&mut self, prepared: PreparedSites) {
        if !self.adopt_sites(prepared) {
            return;
        }
        let directory = &self.sites.of_file.gateway.state_directory;
        let kept = match &self.sites.state {
            NetworkState::Branch(registry) => match hub_key(&self.sites.of_file) {
                Some(hub) => registry.keep(directory, hub).map_err(|e| e.to_string()),
                None => Ok(()),
            },
            NetworkState::SecondHub(replica) => replica.keep(directory).map_err(|e| e.to_string()),
            NetworkState::Hub(_) | NetworkState::Nothing => Ok(()),
        };
        if let Err(error) = kept {
            tracing::warn!(
                error,
                "the sites of the network are not kept; after a restart they are unknown until the hub is reached"
            );
        }
    }

    /// Whether they are in force now.
    fn adopt_sites(&mut self, prepared: PreparedSites) -> bool {
        let Some(changes) = self.put_in_force(prepared) else {
            return false;
        };
        if !changes.is_empty() {
            self.publish(EventKind::Reloaded { changes });
        }
        self.publish_device_events();
        true
    }

    /// What has changed in the configuration; `None`: they cannot be applied.
    fn put_in_force(&mut self, prepared: PreparedSites) -> Option<Box<ConfigDiff>> {
        let written = prepared.config();
        match self.try_adopt_sites(&written) {
            Ok(Reloaded {
                changes, problems, ..
            }) => {
                self.sites.take(prepared);
                for problem in problems {
                    tracing::error!("{problem}");
                }
                Some(changes)
            }
            Err(error) => {
                self.sites.read = prepared.read;
                // What the file says is tried again when it changes, what the machine lacks at the next look.
                let own = self.process.public_key;
                self.sites.retry = (!is_at_fault(&written, own)).then_some(prepared.state);
                let text = format!("{error:#}");
                self.reject_sites(text.clone(), 1, text);
                None
            }
        }
    }

    fn try_adopt_sites(&mut self, written: &Config) -> anyhow::Result<Reloaded> {
        self.refuse_own_key(written)?;
        let machine =
            look(self.network.as_mut(), written).map_err(|problem| anyhow::anyhow!("{problem}"))?;
        let found = Found {
            interfaces: found_interfaces(written, &machine, &self.found.interfaces),
            withheld: withheld(written, &machine, &self.found.hosts),
            ..self.found.of_config(written)
        };
        let reloaded = self.adopt(written, &found, &machine)?;
        self.written = written.clone();
        self.found = found;
        // A second hub may have a name.
        self.host_names.follow(&self.written);
        self.follow_host_names();
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
