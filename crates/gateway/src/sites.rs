//! The sites of this gateway's network: at the hub they follow the registry's file, at a branch or a second hub what
//! the hub has sent.
//!
//! What the sites mean for a configuration is decided by [`NetworkState::applied_to`]. A changed registry is applied
//! like a reload, so that only what changed is touched. One that is wrong is reported, and the last good one stays in
//! force.

pub(crate) mod direct_sites;
mod hub_site_view;
mod introduction_limiter;
mod join_request_limiter;
mod registry_sync;

use std::{
    fs,
    os::unix::fs::MetadataExt,
    time::{Duration, SystemTime},
};

use keiro_control::{
    ConfigError, PublicKey,
    config::{Config, Membership, Name, Peer, PeerOrigin},
    network::{DirectSite, NetworkState, PublicRegistry, Registry, Replica, SITES_MAX},
    network_channel::{Document, SitesUp},
};
use keiro_core::{AppId, Event, PeerId};

use self::{
    direct_sites::DirectSites, hub_site_view::HubSiteView,
    introduction_limiter::IntroductionLimiter, join_request_limiter::JoinRequestLimiter,
    registry_sync::RegistrySync,
};
use crate::uplinks::connected_networks;

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
    pub(crate) requests: JoinRequestLimiter,
    /// Numbers this run of the gateway.
    incarnation: u64,
    /// Of the registry.
    revision: u64,
    /// Sites that are to be sent the registry.
    pub(crate) registry_sync: RegistrySync,
    /// Of two hubs, which sites each has.
    pub(crate) seen: HubSiteView,
    /// At a branch, sessions with other branches.
    pub(crate) direct: DirectSites,
    /// At a hub, what was done for such sessions.
    pub(crate) introductions: IntroductionLimiter,
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
            requests: JoinRequestLimiter::default(),
            incarnation: u64::try_from(since_1970.as_micros()).unwrap_or(u64::MAX),
            revision: 0,
            registry_sync: RegistrySync::default(),
            seen: HubSiteView::default(),
            direct: DirectSites::default(),
            introductions: IntroductionLimiter::default(),
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
            direct: self.direct_in(&state),
            state,
            read,
        })
    }

    /// Sessions with other sites, by the names that these have there.
    fn direct_in(&self, state: &NetworkState) -> Vec<DirectSite> {
        let wanted = self.direct.wanted();
        match state {
            NetworkState::Branch(registry) => {
                let sites = wanted.into_iter();
                sites.map(|site| registry.renamed(site)).collect()
            }
            NetworkState::Hub(_) | NetworkState::SecondHub(_) | NetworkState::Nothing => wanted,
        }
    }

    /// Reads the registry's file again. `None`: it says the same as before.
    ///
    /// # Errors
    /// The registry is wrong. It is not read again before its file changes.
    pub(crate) fn prepare_changed(&mut self) -> Result<Option<PreparedSites>, ConfigError> {
        self.retry = None;
        let of_file = self.of_file.clone();
        // Looked at before it is read, as in `prepare`.
        let read = registry_of(&of_file);
        match self.prepare(of_file) {
            Ok(prepared) if prepared.state == self.state => {
                self.take(prepared);
                Ok(None)
            }
            Ok(prepared) => Ok(Some(prepared)),
            Err(error) => {
                self.read = read;
                Err(error)
            }
        }
    }

    /// What there is with another state of the network.
    pub(crate) fn with_state(&self, state: NetworkState) -> PreparedSites {
        PreparedSites {
            of_file: self.of_file.clone(),
            direct: self.direct_in(&state),
            state,
            read: self.read,
        }
    }

    /// What was prepared is in force.
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
        if let NetworkState::Branch(registry) = &self.state {
            self.direct.rename(|site| registry.renamed(site));
        }
        self.direct.retain(|name| match &self.state {
            NetworkState::Branch(registry) => registry.direct_key(name).ok(),
            NetworkState::Hub(_) | NetworkState::SecondHub(_) | NetworkState::Nothing => None,
        });
    }

    /// What was prepared cannot be applied. What the file says is tried again when it changes, what the machine lacks
    /// at the next look. `own`: this gateway's key.
    pub(crate) fn on_not_applied(&mut self, prepared: PreparedSites, own: PublicKey) {
        self.read = prepared.read;
        self.retry = (!is_at_fault(&prepared.config(), own)).then_some(prepared.state);
    }

    /// What could not be applied for a reason that may pass.
    pub(crate) fn take_retry(&mut self) -> Option<NetworkState> {
        self.retry.take()
    }

    /// Instead of what was to be tried again.
    pub(crate) fn set_retry(&mut self, retry: Option<NetworkState>) {
        self.retry = retry;
    }

    /// Notes why the registry as it is now is not in force. Whether that is news.
    pub(crate) fn on_rejected(&mut self, text: &str) -> bool {
        if self.rejected.as_deref() == Some(text) {
            return false;
        }
        self.rejected = Some(text.to_owned());
        true
    }

    /// Keeps what a hub has sent for the next start.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn keep(&self) -> Result<(), String> {
        let directory = &self.of_file.gateway.state_directory;
        match &self.state {
            NetworkState::Branch(registry) => match hub_key(&self.of_file) {
                Some(hub) => registry.keep(directory, hub).map_err(|e| e.to_string()),
                None => Ok(()),
            },
            NetworkState::SecondHub(replica) => replica.keep(directory).map_err(|e| e.to_string()),
            NetworkState::Hub(_) | NetworkState::Nothing => Ok(()),
        }
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
                self.registry_sync.on_up(*peer);
                self.seen.on_up(*peer);
            }
            Event::PeerDown { peer, .. } => {
                self.registry_sync.on_down(*peer);
                self.seen.on_down(*peer);
            }
            _ => {}
        }
    }

    /// A document for a peer has ended.
    pub(crate) fn on_sent(&mut self, peer: PeerId, is_delivered: bool) {
        self.registry_sync.on_done(peer, is_delivered);
    }

    /// Which sites the other hub has. Whether `peer` is the other hub, and these may be sites.
    pub(crate) fn on_sites_up(&mut self, peer: &str, up: SitesUp) -> bool {
        let is_of_other_hub = self.other_hub().is_some_and(|name| name.as_str() == peer);
        if !is_of_other_hub || up.sites.len() > SITES_MAX {
            return false;
        }
        self.seen.on_heard(up.sites);
        true
    }

    /// Of the registry; a greater one has other sites.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// What the peer of this name gets of the registry: a site its part, the second hub all of it. `None`: it is
    /// neither.
    pub(crate) fn document_for(&self, peer: &str) -> Option<Document> {
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
    pub(crate) fn is_due(&self) -> bool {
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
