//! Lets the configuration follow the registry of its network: the hub's file, or what a hub has sent.
//!
//! What is known of the network is kept by [`Sites`](crate::sites::Sites).

use std::time::Instant as Stopwatch;

use keiro_control::{
    config::{Config, ConfigDiff, Found, Membership, Name, Peer, PeerOrigin},
    network::{NetworkState, PublicRegistry, Replica},
    network_channel::{Document, SitesUp},
    protocol::EventKind,
};
use keiro_core::RefusalReason;

use crate::{
    data::command::DataThreadGone,
    gateway::Gateway,
    reload::Reloaded,
    sites::PreparedSites,
    track_uplinks::look,
    uplinks::{found_interfaces, withheld},
};

impl Gateway {
    /// Why the configuration or the registry as it is now is not in force.
    pub(crate) fn rejected(&self) -> Option<String> {
        let of_file = self.config_file.rejected.as_deref();
        of_file.or(self.sites.rejected()).map(str::to_owned)
    }

    /// Applies the registry if its file has changed.
    pub(crate) fn follow_registry(&mut self) {
        if self.draining {
            return;
        }
        if !self.sites.is_due() {
            if let Some(state) = self.sites.take_retry() {
                self.adopt_and_keep(self.sites.with_state(state));
            }
            return;
        }
        match self.sites.prepare_changed() {
            Ok(None) => {}
            Ok(Some(prepared)) => self.adopt_and_keep(prepared),
            Err(error) => {
                let problems = error.problems();
                let first = problems.first().map(ToString::to_string);
                let problems = problems.len() as u64;
                let first = first.unwrap_or_default();
                self.reject_sites(&error.to_string(), problems, first);
            }
        }
    }

    /// Whether the peer in this place is a hub of this branch: `Some(true)`: the one of its file.
    pub(crate) fn hub_of_this(&self, index: usize) -> Option<bool> {
        let Some(Membership::Branch { hub }) = &self.sites.of_file().network else {
            return None;
        };
        let is_second = self.config.peers[index].origin == PeerOrigin::SecondHub;
        (hub.0 == index || is_second).then_some(hub.0 == index)
    }

    /// Whether the peer in this place is the first hub, and this gateway the second.
    pub(crate) fn is_first_hub(&self, index: usize) -> bool {
        matches!(&self.sites.of_file().network, Some(Membership::SecondHub { first }) if first.0 == index)
    }

    /// What a hub has sent; kept for the next start, and applied. Why it is refused; `None`: it is not.
    pub(crate) fn on_public_registry(
        &mut self,
        registry: &PublicRegistry,
        is_of_first_hub: bool,
    ) -> Option<RefusalReason> {
        if let Err(error) = registry.check() {
            let text = format!("what the hub has sent is not taken: {error}");
            self.reject_sites(&text, 1, text.clone());
            return Some(RefusalReason::Other);
        }
        let known = match self.sites.state() {
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
        let state = NetworkState::Branch(Box::new(registry.clone()));
        let prepared = self.sites.with_state(state);
        self.sites.set_retry(None);
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
            replica.check_with(self.sites.of_file(), &[])?;
            Ok(replica)
        });
        let replica = match checked {
            Ok(replica) => replica,
            Err(error) => {
                let text = format!("what the first hub has sent is not taken: {error}");
                self.reject_sites(&text, 1, text.clone());
                return Some(RefusalReason::Other);
            }
        };
        if self.draining {
            return None;
        }
        let is_known = matches!(self.sites.state(), NetworkState::SecondHub(known) if replica.says_the_same(known));
        let state = NetworkState::SecondHub(Box::new(replica));
        let prepared = self.sites.with_state(state);
        self.sites.set_retry(None);
        match is_known {
            true => self.sites.take(prepared),
            false => self.adopt_and_keep(prepared),
        }
        None
    }

    /// Which sites the other hub has. Why it is refused; `None`: it is not.
    pub(crate) fn on_sites_up(&mut self, peer: &str, up: SitesUp) -> Option<RefusalReason> {
        let is_taken = self.sites.on_sites_up(peer, up);
        (!is_taken).then_some(RefusalReason::Other)
    }

    /// Lets the configuration of a branch follow its sessions with other sites. Whether it does.
    pub(crate) fn adopt_direct(&mut self) -> bool {
        let prepared = self.sites.with_state(self.sites.state().clone());
        // What waits to be applied is still to be.
        let retry = self.sites.take_retry();
        // Its events are those of the peer.
        let is_adopted = self.put_in_force(prepared).is_some();
        self.sites.set_retry(retry);
        is_adopted
    }

    /// Sends the other hub which sites this one has, if it does not know.
    fn push_sites_up(&mut self) -> Result<(), DataThreadGone> {
        let there = self.running_config.peer_ids().collect();
        self.sites.seen.retain(&there);
        let Some(other) = self.sites.other_hub().map(Name::to_string) else {
            return Ok(());
        };
        let Some(other_id) = self.running_config.peer_id(&other) else {
            return Ok(());
        };
        let peers = self.config.peers.iter();
        let sites = peers.filter(|peer| peer.origin == PeerOrigin::Site);
        let is_up = |peer: &&Peer| {
            let id = self.running_config.peer_id(peer.name.as_str());
            id.is_some_and(|id| self.sites.is_up(id))
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
        if !self.sites.registry_sync.take_news() {
            return Ok(());
        }
        let (running_config, revision) = (&self.running_config, self.sites.revision());
        let is_there = |peer| running_config.peer_name(peer).is_some();
        self.sites.registry_sync.retain(is_there);
        while let Some(peer) = self.sites.registry_sync.poll(revision) {
            let name = self.running_config.peer_name(peer).map(str::to_owned);
            let part = name
                .as_deref()
                .and_then(|name| self.sites.document_for(name));
            match name.zip(part) {
                Some((name, part)) => self.send_network_document(&name, &part)?,
                // It is a peer of the file, or has an invitation alone.
                None => self.sites.registry_sync.on_down(peer),
            }
        }
        Ok(())
    }

    /// Sends again what was lost.
    pub(crate) fn retry_pushes(&mut self) -> Result<(), DataThreadGone> {
        self.sites.registry_sync.on_timeout();
        self.push_registry()?;
        self.push_sites_up()
    }

    /// Applies them. A branch keeps them for its next start, but for what cannot be applied, which must not keep it
    /// from that.
    fn adopt_and_keep(&mut self, prepared: PreparedSites) {
        if !self.adopt_sites(prepared) {
            return;
        }
        if let Err(error) = self.sites.keep() {
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
                self.sites.on_not_applied(prepared, self.process.public_key);
                let text = format!("{error:#}");
                self.reject_sites(&text, 1, text.clone());
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
        let known = self.written.warnings();
        for warning in written.warnings().iter().filter(|of| !known.contains(of)) {
            tracing::warn!("{warning}");
        }
        self.written = written.clone();
        self.found = found;
        // A second hub may have a name.
        self.host_names.apply_config(&self.written);
        self.apply_host_names();
        Ok(reloaded)
    }

    fn reject_sites(&mut self, text: &str, problems: u64, first: String) {
        if !self.sites.on_rejected(text) {
            return;
        }
        tracing::error!("the sites of the network stay as they were: {text}");
        self.publish(EventKind::ConfigRejected { problems, first });
    }
}
