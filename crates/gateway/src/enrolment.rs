//! Gateways that join the network of this hub: the registry is written, then they are answered, then they are peers.

use std::{
    net::{IpAddr, SocketAddr},
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::Context;
use ipnet::IpNet;
use keiro_control::{
    config::{Membership, Name, Tenant},
    enrolment::{Hub, Refused, Verdict},
    key::{PresharedKey, PublicKey},
    network::{Redemption, RegistryEdit, Site},
    network_channel::{Document, Enrol, EnrolRefused, EnrolRefusedReason, Enrolled},
    protocol::EventKind,
};
use keiro_core::{PathState, PeerId};

use crate::{data::command::DataThreadGone, gateway::Gateway};

/// A site that is in the registry now.
struct Taken {
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
        let remote = self.remote_of(peer)?;
        match self.take_site(provisional, request, remote) {
            Ok(Taken { answer, invitation }) => {
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
    fn take_site(
        &self,
        provisional: &PublicKey,
        request: &Enrol,
        remote: Option<SocketAddr>,
    ) -> Result<Taken, Refused> {
        let Some(Membership::Hub(hub)) = &self.sites.of_file().network else {
            return Err(unavailable(&anyhow::anyhow!("this gateway is no hub")));
        };
        self.take_into(&hub.registry, provisional, request, remote)
            .unwrap_or_else(|error| Err(unavailable(&error)))
    }

    fn take_into(
        &self,
        file: &Path,
        provisional: &PublicKey,
        request: &Enrol,
        remote: Option<SocketAddr>,
    ) -> anyhow::Result<Result<Taken, Refused>> {
        let mut edit = RegistryEdit::open(file)?;
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
        let hub = Hub {
            registry: edit.registry(),
            config: self.sites.of_file(),
            public_key: self.process.public_key,
            uplinks: &uplinks,
            now,
        };
        let invitation = match hub.judge(provisional, request) {
            Verdict::Refused(refused) => return Ok(Err(refused)),
            Verdict::Again {
                site,
                preshared_key,
                prefixes,
            } => {
                return Ok(Ok(Taken {
                    answer: self.enrolled(tenant, site, preshared_key, prefixes),
                    invitation: None,
                }));
            }
            Verdict::New { invitation } => invitation,
        };
        let preshared_key = PresharedKey::from_bytes(random()?);
        let site = Site {
            public_key: request.public_key,
            preshared_key: preshared_key.clone(),
            prefixes: request.prefixes.clone(),
        };
        let mut used = edit.registry().invitations[&invitation].clone();
        let unknown = IpAddr::from([0, 0, 0, 0]);
        used.redeemed = Some(Redemption {
            by: request.public_key,
            at: now,
            from: remote.map_or(unknown, |remote| remote.ip().to_canonical()),
        });
        edit.put_site(&request.name, &site);
        edit.put_invitation(&invitation, &used);
        edit.commit()?;
        let Enrol { name, prefixes, .. } = request.clone();
        Ok(Ok(Taken {
            answer: self.enrolled(tenant, name, preshared_key, prefixes),
            invitation: Some(invitation),
        }))
    }

    /// What a site needs.
    fn enrolled(
        &self,
        tenant: &Tenant,
        name: Name,
        preshared_key: PresharedKey,
        prefixes: Vec<IpNet>,
    ) -> Box<Enrolled> {
        Box::new(Enrolled {
            name,
            hub: self.config.gateway.name.clone(),
            preshared_key,
            tenant: tenant.name.clone(),
            tenant_id: tenant.id,
            prefixes,
            hub_address: tenant.addresses.first().map(|address| address.addr()),
            hub_unix_seconds: unix_seconds(),
        })
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
        let bindings = self.active.uplinks().bindings();
        bindings.map(|binding| binding.local.ip()).collect()
    }
}

fn unavailable(error: &anyhow::Error) -> Refused {
    tracing::error!("a join is refused: {error:#}");
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

fn random() -> anyhow::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).context("the system gives no random numbers")?;
    Ok(bytes)
}
