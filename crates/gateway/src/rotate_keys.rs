//! A new static key for this gateway, and for the sites of a hub.
//!
//! `keiro rotate-key` writes and renames the key files, and asks the gateway to follow them. The gateway announces the
//! next key over sessions that the present one authenticates, uses what the file has, and answers to both until
//! the other is removed. A hub keeps the next key of a site in the registry, beside the present one, until
//! the site has used it.

use std::{collections::BTreeSet, path::Path, time::Instant as Stopwatch};

use anyhow::Context;
use keiro_control::{
    config::{Membership, Name, PeerOrigin},
    key::{self, KeyFiles, PublicKey},
    network::{EditError, NetworkState, Registry, RegistryEdit},
    network_channel::{Document, KeyAccepted, KeyAnnounced},
    protocol::{ErrorCode, ErrorResponse, KeyRotationSnapshot},
};
use keiro_core::{PeerId, PrivateKey, RefusalReason};

use crate::{
    data::command::{Command, DataThreadGone},
    enrolment::refuse_locked,
    gateway::Gateway,
};

impl Gateway {
    /// Reads this gateway's key files, and uses what they have.
    ///
    /// # Errors
    /// A file cannot be used. The keys are those of before.
    pub(crate) fn follow_key_files(&mut self) -> anyhow::Result<()> {
        let files = KeyFiles::of(&self.sites.of_file().gateway.private_key_file);
        let load_if_there = |path: &Path| path.exists().then(|| load(path)).transpose();
        let used = load(&files.key)?;
        let (next, previous) = (load_if_there(&files.next)?, load_if_there(&files.previous)?);
        let public = |key: &PrivateKey| PublicKey::from_bytes(*key.public_key().as_bytes());
        let is_other = |key: &PublicKey| *key != public(&used);
        let next_public = next.as_ref().map(public).filter(is_other);
        let previous_public = previous.as_ref().map(public).filter(is_other);
        let keys = &self.keys;
        let before = (self.process.public_key, keys.next(), keys.previous());
        if before == (public(&used), next_public, previous_public) {
            return Ok(());
        }
        self.keys.follow(next_public, previous_public);
        self.process.public_key = public(&used);
        let other = next
            .filter(|_| next_public.is_some())
            .or(previous.filter(|_| previous_public.is_some()));
        self.data.send(Command::SetPrivateKeys { used, other })?;
        // A hub's sites are to know.
        let keys = self.keys.keys(self.process.public_key);
        self.sites.set_hub_keys(keys);
        Ok(())
    }

    /// Follows the key files and says how far the new key has come.
    ///
    /// # Errors
    /// The files cannot be used, or this gateway is in no network.
    pub(crate) fn key_rotation(&mut self) -> Result<KeyRotationSnapshot, ErrorResponse> {
        if self.sites.of_file().network.is_none() {
            return Err(ErrorResponse::new(
                ErrorCode::Unavailable,
                "this gateway is in no network, so it cannot announce a key to its peers",
                "write the new public key into the files of both gateways, and restart this one",
            ));
        }
        let followed = self
            .follow_key_files()
            .and_then(|()| Ok(self.announce_key()?));
        followed.map_err(|error| {
            ErrorResponse::new(
                ErrorCode::Unavailable,
                format!("the key files are not followed: {error:#}"),
                "",
            )
        })?;
        Ok(KeyRotationSnapshot {
            public_key: self.process.public_key.to_string(),
            next: self.keys.next().map(|key| key.to_string()),
            previous: self.keys.previous().map(|key| key.to_string()),
            waits_for: self.waits_for(),
        })
    }

    /// The peers that do not have the newest key of this gateway yet.
    fn waits_for(&self) -> Vec<String> {
        let id = |name: &Name| self.active.peer_id(name.as_str());
        let newest = self.keys.keys(self.process.public_key)[0];
        let uses_newest =
            |name: &Name| id(name).is_some_and(|id| self.keys.ours_used_by(id) == Some(newest));
        let mut waits = Vec::new();
        // What is said to a hub first is what the hub says to others.
        for name in self.hubs_to_tell() {
            let is_done = match (self.keys.next(), self.registered_keys()) {
                (Some(_), _) => id(&name).is_some_and(|id| self.keys.is_accepted_by(id)),
                (None, Some((present, _))) => present == newest,
                (None, None) => true,
            };
            if !is_done {
                waits.push(name.to_string());
            }
        }
        let peers = self.config.peers.iter();
        let is_of_hub = |origin| matches!(origin, PeerOrigin::Site | PeerOrigin::SecondHub);
        // Sites use a second hub's next key when the first hub has seen it used.
        let leads = match self.sites.state() {
            NetworkState::Hub(_) => true,
            NetworkState::SecondHub(_) => self.keys.next().is_none(),
            NetworkState::Branch(_) | NetworkState::Nothing => false,
        };
        for peer in peers.filter(|peer| leads && is_of_hub(peer.origin)) {
            // A site that is away learns of it when it is back, by the key of before.
            let counts = self.keys.next().is_none() || self.is_peer_up(&peer.name);
            if counts && !uses_newest(&peer.name) {
                waits.push(peer.name.to_string());
            }
        }
        waits
    }

    /// The hubs that keep this gateway's key in their registry.
    fn hubs_to_tell(&self) -> Vec<Name> {
        match (&self.sites.of_file().network, self.sites.state()) {
            (Some(Membership::Branch { .. }), _) => self
                .hubs_of_branch()
                .map(|peer| peer.name.clone())
                .collect(),
            (Some(Membership::SecondHub { first }), _) => {
                vec![self.sites.of_file()[*first].name.clone()]
            }
            (Some(Membership::Hub(_)) | None, _) => Vec::new(),
        }
    }

    /// This gateway's present and next key as a hub has them; `None`: it has not said so.
    fn registered_keys(&self) -> Option<(PublicKey, Option<PublicKey>)> {
        match self.sites.state() {
            NetworkState::Branch(registry) => {
                let mut sites = registry.sites.iter();
                let own = sites.find(|site| site.name == registry.site)?;
                Some((own.public_key?, own.next_public_key))
            }
            NetworkState::SecondHub(replica) => {
                let (_, hub) = replica.registry()?.second_hub.as_ref()?;
                Some((hub.site.public_key, hub.site.next_public_key))
            }
            NetworkState::Hub(_) | NetworkState::Nothing => None,
        }
    }

    /// Announces the next key to hubs that have not accepted it.
    pub(crate) fn announce_key(&mut self) -> Result<(), DataThreadGone> {
        let Some(public_key) = self.keys.next() else {
            return Ok(());
        };
        let now = Stopwatch::now();
        for hub in self.hubs_to_tell() {
            let Some(id) = self.active.peer_id(hub.as_str()) else {
                continue;
            };
            if !self.is_peer_up(&hub) || !self.keys.take_announcement(now, id) {
                continue;
            }
            let document = Document::KeyAnnounced(KeyAnnounced { public_key });
            self.send_network_document(hub.as_str(), &document)?;
        }
        Ok(())
    }

    /// A hub accepts a key of this gateway.
    pub(crate) fn on_key_accepted(&mut self, hub: PeerId, accepted: &KeyAccepted) {
        self.keys.on_accepted(hub, accepted.public_key);
    }

    /// At a hub: a site is to have this key. Why it is refused; `None`: it is not.
    pub(crate) fn on_key_announced(
        &mut self,
        id: PeerId,
        site: &str,
        announced: &KeyAnnounced,
    ) -> Result<Option<RefusalReason>, DataThreadGone> {
        let key = announced.public_key;
        let is_known = |registry: &Registry| {
            let mut members = registry.members();
            let member = members.find(|(name, _)| name.as_str() == site);
            member.is_some_and(|(_, of)| of.public_key == key || of.next_public_key == Some(key))
        };
        let is_known = match self.sites.state() {
            NetworkState::Hub(registry) => is_known(registry),
            // It learns of it from the first.
            NetworkState::SecondHub(replica) => match replica.registry().is_some_and(is_known) {
                true => true,
                false => return Ok(None),
            },
            NetworkState::Branch(_) | NetworkState::Nothing => {
                return Ok(Some(RefusalReason::Other));
            }
        };
        if !is_known && !self.take_next_key(id, site, key) {
            return Ok(None);
        }
        let document = Document::KeyAccepted(KeyAccepted { public_key: key });
        self.send_network_document(site, &document)?;
        Ok(None)
    }

    /// Puts a site's next key into the registry. Whether it is in force.
    fn take_next_key(&mut self, id: PeerId, site: &str, key: PublicKey) -> bool {
        let now = Stopwatch::now();
        let is_own = self.keys.keys(self.process.public_key).contains(&key);
        if is_own || !self.keys.may_change(now, id) {
            return false;
        }
        let changed = self.change_registry(|edit| {
            let name = (edit.registry().members())
                .find(|(name, _)| name.as_str() == site)
                .map(|(name, _)| name.clone());
            name.is_some_and(|name| edit.announce_key(&name, key))
        });
        match changed {
            Ok(is_changed) => {
                self.keys.on_changed(now, id);
                tracing::info!(
                    peer = site,
                    "the site announces another key, which is accepted beside its present one"
                );
                is_changed
            }
            Err(error) => {
                tracing::warn!(
                    peer = site,
                    "the site's next key is not accepted: {error:#}"
                );
                // What is wrong with it does not change.
                if !matches!(error.downcast_ref(), Some(EditError::Locked(_))) {
                    self.keys.on_changed(now, id);
                }
                false
            }
        }
    }

    /// At the first hub: sites that have used their next key have it alone from now on.
    pub(crate) fn follow_site_keys(&mut self) {
        let there: BTreeSet<PeerId> = self.active.peer_ids().collect();
        self.keys.retain(|peer| there.contains(&peer));
        let NetworkState::Hub(registry) = self.sites.state() else {
            return;
        };
        let has_used = |(name, next): (&Name, PublicKey)| {
            let id = self.active.peer_id(name.as_str())?;
            (self.keys.used_by(id) == Some(next)).then(|| name.clone())
        };
        let members = registry.members();
        let next = members.filter_map(|(name, site)| Some((name, site.next_public_key?)));
        let used: Vec<Name> = next.filter_map(has_used).collect();
        if used.is_empty() {
            return;
        }
        let changed = self.change_registry(|edit| {
            let changed = used.iter().map(|name| edit.follow_key(name));
            changed.fold(false, |any, is_changed| any | is_changed)
        });
        match changed {
            Ok(_) => {
                for name in used {
                    tracing::info!(
                        peer = name.as_str(),
                        "the site uses its next key; the one before is refused"
                    );
                }
            }
            Err(error) if self.sites.requests.may_log(Stopwatch::now()) => {
                tracing::warn!(
                    "the present keys of sites are not written: {error:#}; tried again every second"
                );
            }
            Err(_) => {}
        }
    }

    /// Changes the registry of this hub and follows it.
    ///
    /// # Errors
    /// It cannot be written, or would be wrong.
    fn change_registry(
        &mut self,
        change: impl FnOnce(&mut RegistryEdit) -> bool,
    ) -> anyhow::Result<bool> {
        let Some(Membership::Hub(hub)) = &self.sites.of_file().network else {
            anyhow::bail!("this gateway has no registry");
        };
        let file = hub.registry.clone();
        refuse_locked(&file)?;
        let mut edit = RegistryEdit::open(&file)?;
        if !change(&mut edit) {
            return Ok(false);
        }
        // What a site sends must not make the registry one that this hub refuses.
        edit.changed()?.check_with(self.sites.of_file(), &[])?;
        edit.commit().context("the registry")?;
        self.follow_registry();
        Ok(self.sites.rejected().is_none())
    }
}

fn load(path: &Path) -> Result<PrivateKey, key::KeyFileError> {
    let key = key::load_private_key(path)?;
    Ok(PrivateKey::from_bytes(*key.as_bytes()))
}
