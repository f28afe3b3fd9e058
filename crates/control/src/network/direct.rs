//! Sessions from one branch to another, which the hub brings about and is no part of.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{PublicRegistry, PublishedSite, expand::NewPeer};
use crate::{
    config::{Config, Name, Network, Peer, PeerEndpoint, PeerOrigin, Tenant, TenantPeer, admits},
    key::{PresharedKey, PublicKey},
};

/// Addresses of one site that are tried; further ones are ignored. Ours: two for each of two uplinks.
pub const DIRECT_ENDPOINTS_MAX: usize = 4;

/// Addresses of one site that are looked at, whatever a hub sends: each is compared with every prefix of the network.
const DIRECT_ENDPOINTS_JUDGED_MAX: usize = 16;

/// Another site that a branch may have a session with, which a hub has introduced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectSite {
    pub name: Name,
    /// As the registry had it when the site was introduced.
    pub public_key: PublicKey,
    pub preshared_key: PresharedKey,
    /// Where the hub sees it.
    pub endpoint: Vec<SocketAddr>,
}

/// Why a branch has no session with another site, whatever addresses there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotDirect {
    #[error("it is no other site of the network")]
    NoSite,
    #[error(
        "the registry has `direct = false`, or the hub is of a release without direct sessions"
    )]
    Registry,
    #[error("the names of both sites and of an application of the network are too long together")]
    NameTooLong,
}

impl DirectSite {
    /// Leaves only addresses that may be another gateway's, at most [`DIRECT_ENDPOINTS_MAX`]: none of this machine
    /// (`own`), loopback, multicast or a link alone, and none that the tunnel itself leads to.
    #[must_use]
    pub fn with_usable_endpoints(mut self, config: &Config, own: &[IpAddr]) -> Self {
        let everywhere = [IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())];
        let everywhere = everywhere.map(Network::from);
        let is_own = |ip: IpAddr| own.contains(&ip);
        let is_tunnelled = |ip: IpAddr| {
            let of_tenant = |tenant: &Tenant| {
                let behind = tenant.peers.iter().flat_map(|of| &of.prefixes);
                let mut all = tenant.prefixes.iter().chain(behind);
                all.any(|prefix| prefix.prefix_len() > 0 && prefix.contains(&ip))
            };
            config.tenants.iter().any(of_tenant)
        };
        // A hub that sends more means no address of the site.
        self.endpoint.truncate(DIRECT_ENDPOINTS_JUDGED_MAX);
        self.endpoint.retain(|address| {
            let ip = address.ip().to_canonical();
            admits(&everywhere, *address, false, is_own) && !is_tunnelled(ip)
        });
        self.endpoint.truncate(DIRECT_ENDPOINTS_MAX);
        self
    }
}

impl PublicRegistry {
    /// The public key of another site that the branch may have a session with.
    ///
    /// # Errors
    /// It may have none.
    pub fn direct_key(&self, name: &Name) -> Result<PublicKey, NotDirect> {
        let mut sites = self.sites.iter();
        let site = sites.find(|site| site.name == *name && site.name != self.site);
        let site = site.ok_or(NotDirect::NoSite)?;
        let key = site.public_key.filter(|_| self.direct);
        let key = key.ok_or(NotDirect::Registry)?;
        match self.direct_apps(site) {
            Some(_) => Ok(key),
            None => Err(NotDirect::NameTooLong),
        }
    }

    /// The site under its present name, where it had another one when it was introduced.
    #[must_use]
    pub fn renamed(&self, mut direct: DirectSite) -> DirectSite {
        let mut sites = self.sites.iter();
        let site = sites.find(|site| site.public_key == Some(direct.public_key));
        if let Some(site) = site.filter(|site| site.name != self.site) {
            direct.name = site.name.clone();
        }
        direct
    }

    /// Sites that had another public key before.
    pub fn other_keys_than(&self, before: &Self) -> Vec<&Name> {
        let keys: BTreeMap<&Name, PublicKey> = before
            .sites
            .iter()
            .filter_map(|site| Some((&site.name, site.public_key?)))
            .collect();
        let has_other = |site: &&PublishedSite| {
            let before = keys.get(&site.name);
            before.is_some_and(|before| site.public_key.is_some_and(|key| key != *before))
        };
        let sites = self.sites.iter().filter(has_other);
        sites.map(|site| &site.name).collect()
    }

    /// What both sites call an application between them, for each of the network, and on the wire; `None`: it is too
    /// long there.
    fn direct_apps(&self, other: &PublishedSite) -> Option<Vec<[Name; 2]>> {
        let of_pair = |app: &Name, [one, two]: [&Name; 2]| {
            let (one, two) = (one.min(two), one.max(two));
            Name::of_pair(app.as_str(), one.as_str(), two.as_str())
        };
        let apps = super::expand::apps_or_default(&self.apps()).into_iter();
        let names = apps.map(|(app, _)| {
            let on_wire = of_pair(&app, [self.own_wire_name(), other.wire_name()])?;
            let name = of_pair(&app, [&self.site, &other.name]);
            Some([name.unwrap_or_else(|| on_wire.clone()), on_wire])
        });
        names.collect()
    }
}

impl Config {
    /// This configuration of a branch, which has its network, with sessions to other sites. What is not a site of
    /// the registry, has another key there, or has the name or key of a peer, is left out.
    #[must_use]
    pub fn with_direct_sites(&self, registry: &PublicRegistry, sites: &[DirectSite]) -> Self {
        let mut config = self.clone();
        for direct in sites {
            config.add_direct_site(registry, direct);
        }
        config.with_classes()
    }

    fn add_direct_site(&mut self, registry: &PublicRegistry, direct: &DirectSite) {
        let DirectSite {
            name, public_key, ..
        } = direct;
        let mut sites = registry.sites.iter();
        let mut tenants = self.tenants.iter();
        let (Some(site), Some(number)) = (
            sites.find(|site| site.name == *name),
            tenants.position(|tenant| tenant.id == registry.tenant_id),
        ) else {
            return;
        };
        let is_other = |peer: &Peer| peer.name != *name && peer.public_key != *public_key;
        if registry.direct_key(name) != Ok(*public_key) || !self.peers.iter().all(is_other) {
            return;
        }
        // What the branch does not reach through a hub, it does not reach at all; what the file has behind another
        // peer stays there.
        let hubs: Vec<Name> = self.hubs().map(|hub| hub.name.clone()).collect();
        let peers = &self.tenants[number].peers;
        let of_hubs = || peers.iter().filter(|of| hubs.contains(&self[of.peer].name));
        let is_reached = |prefix: &&IpNet| of_hubs().any(|of| of.prefixes.contains(prefix));
        let prefixes: Vec<_> = site.prefixes.iter().filter(is_reached).copied().collect();
        if prefixes.is_empty() {
            return;
        }
        let endpoint = direct.endpoint.iter().copied();
        let peer = self.add_peer(NewPeer {
            name: name.clone(),
            origin: PeerOrigin::Direct,
            public_key: *public_key,
            preshared_key_file: None,
            preshared_key: Some(direct.preshared_key.clone()),
            endpoint: endpoint.map(PeerEndpoint::Address).collect(),
        });
        let names = registry.direct_apps(site).into_iter().flatten();
        let app = self.add_direct_apps(&registry.apps(), names, peer);
        let behind = app.map(|app| TenantPeer {
            peer,
            prefixes,
            backup_prefixes: Vec::new(),
            is_direct: true,
            transit: false,
            app,
        });
        self.tenants[number].peers.extend(behind);
    }
}
