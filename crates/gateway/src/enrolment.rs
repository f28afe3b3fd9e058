//! Gateways that join the network of this hub: the registry is written, then they are answered, then they are peers.

use std::{
    fs::{File, TryLockError},
    net::{IpAddr, SocketAddr},
    path::Path,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::Context;
use ipnet::IpNet;
use keiro_control::{
    config::{Membership, Name, Tenant},
    enrolment::{Decision, Hub, Refused},
    key::{PresharedKey, PublicKey},
    network::{EditError, Redemption, RegistryEdit, SecondHub, Site},
    network_channel::{Document, Enrol, EnrolRefused, EnrolRefusedReason, Enrolled},
    protocol::EventKind,
};
use keiro_core::{AppId, PathState, PeerId};

use crate::{
    data::command::DataThreadGone, gateway::Gateway, random::random, uplinks::connected_networks,
};

/// How long after its end an invitation stays in the registry, so that who comes with it gets the reason. Ours.
const ENDED_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// A site that is in the registry now.
struct Admitted {
    answer: Box<Enrolled>,
    /// The name of the invitation; `None`: it was there before.
    invitation: Option<Name>,
}

impl Gateway {
    /// A gateway asks over the session of a provisional key to become a site.
    pub(crate) fn enrol(
        &mut self,
        peer: PeerId,
        peer_name: &str,
        provisional: &PublicKey,
        request: &Enrol,
    ) -> Result<(), DataThreadGone> {
        let now = Instant::now();
        if !self.sites.requests.may_decide(provisional, now) {
            return Ok(());
        }
        let remote = self.remote_of(peer)?;
        let judged = match self.take_site(provisional, request, remote) {
            Ok(judged) => judged,
            Err(error) => {
                if self.sites.requests.may_log(now) {
                    tracing::error!("a join fails at this hub: {error:#}");
                }
                // The gateway asks again soon.
                if let Some(EditError::Locked(_)) = error.downcast_ref() {
                    return Ok(());
                }
                Err(unavailable())
            }
        };
        match judged {
            Ok(Admitted { answer, invitation }) => {
                let is_new = invitation.is_some();
                self.publish(EventKind::SiteJoined {
                    site: answer.name.to_string(),
                    invitation: invitation.map(String::from),
                    remote: remote.map(|remote| remote.to_string()),
                    public_key: request.public_key.to_string(),
                    prefixes: answer.prefixes.iter().map(ToString::to_string).collect(),
                });
                self.send_network_document(peer_name, &Document::Enrolled(answer))?;
                if is_new {
                    self.follow_registry();
                }
                Ok(())
            }
            Err(refused) => self.refuse_join(peer_name, peer, refused),
        }
    }

    /// A document of a gateway that joins is not understood.
    pub(crate) fn refuse_malformed(
        &mut self,
        peer_name: &str,
        peer: PeerId,
    ) -> Result<(), DataThreadGone> {
        let refused = Refused {
            reason: EnrolRefusedReason::Malformed,
            text: "the hub does not understand the request; use the same release of keiro at hub and branch"
                .to_owned(),
        };
        self.refuse_join(peer_name, peer, refused)
    }

    fn refuse_join(
        &mut self,
        peer_name: &str,
        peer: PeerId,
        refused: Refused,
    ) -> Result<(), DataThreadGone> {
        let Refused { reason, text } = refused;
        let remote = self.remote_of(peer)?;
        self.publish(EventKind::JoinRefused {
            peer: peer_name.to_owned(),
            remote: remote.map(|remote| remote.to_string()),
            reason: reason.name().to_owned(),
            text: text.clone(),
        });
        let answer = Document::EnrolRefused(EnrolRefused {
            reason,
            text,
            hub_unix_seconds: unix_seconds(),
        });
        self.send_network_document(peer_name, &answer)
    }

    /// Takes the gateway into the registry, unless it is there. The file is on the disk when this returns.
    ///
    /// # Errors
    /// The hub cannot write its registry now.
    fn take_site(
        &self,
        provisional: &PublicKey,
        request: &Enrol,
        remote: Option<SocketAddr>,
    ) -> anyhow::Result<Result<Admitted, Refused>> {
        match &self.sites.of_file().network {
            Some(Membership::Hub(hub)) => {
                self.take_into(&hub.registry, provisional, request, remote)
            }
            Some(Membership::Branch { .. } | Membership::SecondHub { .. }) | None => {
                anyhow::bail!("this gateway has no registry")
            }
        }
    }

    fn take_into(
        &self,
        file: &Path,
        provisional: &PublicKey,
        request: &Enrol,
        remote: Option<SocketAddr>,
    ) -> anyhow::Result<Result<Admitted, Refused>> {
        refuse_locked(file)?;
        let edit = RegistryEdit::open(file)?;
        let tenant = &edit.registry().tenant;
        let tenant = self
            .sites
            .of_file()
            .tenant_named(tenant.as_str())
            .with_context(|| {
                format!("the registry's tenant `{tenant}` is not in the configuration")
            })?;
        let now = SystemTime::now();
        let uplinks = self.uplink_addresses();
        let connected = connected_networks()?;
        let hub = Hub {
            registry: edit.registry(),
            config: self.sites.of_file(),
            public_key: self.process.public_key,
            uplinks: &uplinks,
            connected: &connected,
            app_id: |name| AppId::of_name(name).0,
            now,
        };
        let invitation = match hub.decide(provisional, request) {
            Decision::Refused(refused) => return Ok(Err(refused)),
            Decision::Again {
                site,
                preshared_key,
                prefixes,
            } => {
                let is_second_hub = edit.registry().is_second_hub(&site);
                let answer = self.enrolled(tenant, site, preshared_key, prefixes);
                return Ok(Ok(Admitted {
                    answer: Box::new(Enrolled {
                        is_second_hub,
                        ..answer
                    }),
                    invitation: None,
                }));
            }
            Decision::New { invitation } => invitation,
        };
        let redemption = Redemption {
            by: request.public_key,
            at: now,
            from: remote.map_or(IpAddr::from([0, 0, 0, 0]), |remote| {
                remote.ip().to_canonical()
            }),
        };
        let answer = self.redeem(edit, tenant, &invitation, request, redemption)?;
        Ok(Ok(Admitted {
            answer: Box::new(answer),
            invitation: Some(invitation),
        }))
    }

    /// Puts the gateway that redeems an invitation into the registry, on the disk.
    fn redeem(
        &self,
        mut edit: RegistryEdit,
        tenant: &Tenant,
        invitation: &Name,
        request: &Enrol,
        redemption: Redemption,
    ) -> anyhow::Result<Enrolled> {
        let preshared_key = PresharedKey::from_bytes(random()?);
        let site = Site {
            public_key: request.public_key,
            preshared_key: preshared_key.clone(),
            prefixes: request.prefixes.clone(),
            wire_name: edit.registry().free_wire_name(&request.name),
        };
        let mut used = edit.registry().invitations[invitation].clone();
        let ended_before = redemption.at.checked_sub(ENDED_KEPT);
        used.redeemed = Some(redemption);
        edit.remove_expired(ended_before.unwrap_or(UNIX_EPOCH));
        let is_second_hub = !used.hub_endpoint.is_empty();
        match is_second_hub {
            true => {
                let endpoint = used.hub_endpoint.clone();
                edit.put_second_hub(&request.name, &SecondHub { site, endpoint });
            }
            false => edit.put_site(&request.name, &site),
        }
        edit.put_invitation(invitation, &used);
        edit.commit()?;
        let Enrol { name, prefixes, .. } = request.clone();
        Ok(Enrolled {
            is_second_hub,
            ..self.enrolled(tenant, name, preshared_key, prefixes)
        })
    }

    /// What a branch needs.
    fn enrolled(
        &self,
        tenant: &Tenant,
        name: Name,
        preshared_key: PresharedKey,
        prefixes: Vec<IpNet>,
    ) -> Enrolled {
        Enrolled {
            name,
            hub: self.config.gateway.name.clone(),
            preshared_key,
            tenant: tenant.name.clone(),
            tenant_id: tenant.id,
            prefixes,
            is_second_hub: false,
            hub_address: tenant.addresses.first().map(|address| address.addr()),
            hub_unix_seconds: unix_seconds(),
        }
    }

    /// Where a peer is, on the first of its paths that is up.
    fn remote_of(&self, peer: PeerId) -> Result<Option<SocketAddr>, DataThreadGone> {
        let mut paths = self.data.paths()?.into_iter();
        let paths = paths.find(|(id, _)| *id == peer).map(|(_, paths)| paths);
        let mut up = paths.into_iter().flatten();
        let up = up.find(|path| path.state == PathState::Up);
        Ok(up.and_then(|path| path.remote))
    }

    fn uplink_addresses(&self) -> Vec<IpAddr> {
        let bindings = self.running_config.uplinks().bindings();
        bindings.map(|binding| binding.local.ip()).collect()
    }
}

/// Another program that changes the registry must not hold the gateway up.
///
/// # Errors
/// [`EditError::Locked`], or the directory cannot be opened.
fn refuse_locked(registry: &Path) -> anyhow::Result<()> {
    let directory = registry.parent().unwrap_or(Path::new("/"));
    let file =
        File::open(directory).with_context(|| format!("cannot open {}", directory.display()))?;
    match file.try_lock() {
        // The lock ends with `file`.
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(EditError::Locked(registry.to_owned()).into()),
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", directory.display()))
        }
    }
}

fn unavailable() -> Refused {
    Refused {
        reason: EnrolRefusedReason::Unavailable,
        text: "the hub cannot write its registry, its log says why; the invitation stays valid, so join again \
               when that is mended"
            .to_owned(),
    }
}

fn unix_seconds() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    since_epoch.map_or(0, |since_epoch| since_epoch.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_that_another_program_changes_is_not_waited_for() {
        let directory = tempfile::tempdir().expect("a directory");
        let registry = directory.path().join("network.toml");
        refuse_locked(&registry).expect("it is free");
        let held = File::open(directory.path()).expect("opened");
        held.lock().expect("locked");
        let error = refuse_locked(&registry).expect_err("it is held");
        assert!(matches!(error.downcast_ref(), Some(EditError::Locked(_))));
        drop(held);
        refuse_locked(&registry).expect("it is free");
    }
}
