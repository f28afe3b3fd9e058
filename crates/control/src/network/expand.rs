//! A configuration with the sites of its network.
//!
//! Pure, and applied before [`Config::resolved`]. What is in the file keeps its place, and what is added follows
//! it. At the hub each site is a peer, at a branch the hub stands for all other sites. Both call an application of
//! the network by its name and the branch's, as in `office@tokyo`, so that it has one number on the wire at both and
//! no two of the hub's have the same.

use ipnet::IpNet;

use super::{DEFAULT_APP, PublicRegistry, Registry};
use crate::{
    config::{
        App, AppIndex, AppNeeds, Class, Config, DEFAULT_REASSEMBLY_MAX, Membership, Name, Peer,
        PeerEndpoint, PeerIndex, PeerOrigin, REASSEMBLY_MIN, Tenant, TenantPeer,
    },
    key::{PresharedKey, PublicKey},
};

/// What a gateway knows of its network.
#[derive(Clone, Copy, Debug)]
pub enum NetworkView<'a> {
    /// A hub has the registry.
    Hub(&'a Registry),
    /// A branch has what its hub sent last.
    Branch(&'a PublicRegistry),
}

impl Config {
    /// This configuration, which is as in its file, with the sites of its network.
    ///
    /// A configuration without `[network]`, or with that of the other kind, stays as it is.
    #[must_use]
    pub fn with_network(&self, view: &NetworkView<'_>) -> Self {
        let mut config = self.clone();
        match (&self.network, view) {
            (Some(Membership::Hub(_)), NetworkView::Hub(registry)) => {
                config.add_sites(registry);
                config.add_invitations(registry);
            }
            (Some(Membership::Branch { hub }), NetworkView::Branch(registry)) => {
                config.add_other_sites(*hub, registry);
            }
            _ => {}
        }
        config
    }

    fn add_sites(&mut self, registry: &Registry) {
        let apps = apps_or_default(&registry.apps);
        let mut behind = Vec::new();
        for (name, site) in &registry.sites {
            // Refused by `Registry::check_with`.
            if self.peer_named(name.as_str()).is_some() {
                continue;
            }
            let key = (site.public_key, &site.preshared_key);
            let peer = self.add_peer(name.clone(), PeerOrigin::Site, key);
            let app = self.add_apps(&apps, name, peer);
            behind.extend(app.map(|app| TenantPeer {
                peer,
                prefixes: site.prefixes.clone(),
                backup_prefixes: Vec::new(),
                transit: true,
                app,
            }));
        }
        let mut tenants = self.tenants.iter_mut();
        if let Some(tenant) = tenants.find(|tenant| tenant.name == registry.tenant) {
            if tenant.routes_follow_peers {
                let prefixes = behind.iter().flat_map(|of| &of.prefixes);
                tenant.routes.extend(prefixes);
            }
            tenant.peers.extend(behind);
        }
    }

    /// Those that are used or expired too: who comes with them gets the reason.
    fn add_invitations(&mut self, registry: &Registry) {
        for (name, invitation) in &registry.invitations {
            let name = Name::of("invitation", name.as_str());
            let key = (invitation.public_key, &invitation.preshared_key);
            self.add_peer(name, PeerOrigin::Invitation, key);
        }
    }

    fn add_other_sites(&mut self, hub: PeerIndex, registry: &PublicRegistry) {
        let id = registry.tenant_id;
        let Some(number) = self.tenants.iter().position(|tenant| tenant.id == id) else {
            return;
        };
        let apps = apps_or_default(&registry.apps());
        let app = self.add_apps(&apps, &registry.site, hub);
        let others = registry
            .sites
            .iter()
            .filter(|site| site.name != registry.site);
        let all = others.flat_map(|site| &site.prefixes);
        let endpoints = self.addresses_of(hub);
        let tenant = &mut self.tenants[number];
        let mut prefixes: Vec<IpNet> = Vec::new();
        for prefix in registry.hub_prefixes.iter().chain(all) {
            if is_free(tenant, prefix) && !prefixes.contains(prefix) {
                prefixes.push(*prefix);
            }
        }
        if tenant.routes_follow_peers {
            // In the main table the tunnel's own packets would be led into it.
            let is_own_table = tenant.table.is_some();
            let leads_away = |prefix: &&IpNet| {
                is_own_table || !endpoints.iter().any(|address| prefix.contains(address))
            };
            let is_new = |prefix: &&IpNet| !tenant.routes.contains(prefix);
            let routes = prefixes.iter().filter(leads_away).filter(is_new);
            let routes: Vec<IpNet> = routes
                .filter(|p| is_own_table || p.prefix_len() > 0)
                .copied()
                .collect();
            tenant.routes.extend(routes);
        }
        let mut of_file = tenant.peers.iter_mut();
        match (of_file.find(|of| of.peer == hub), app) {
            (Some(of), _) => of.prefixes.extend(prefixes),
            (None, Some(app)) if !prefixes.is_empty() => tenant.peers.push(TenantPeer {
                peer: hub,
                prefixes,
                backup_prefixes: Vec::new(),
                transit: false,
                app,
            }),
            (None, _) => {}
        }
    }

    fn add_peer(
        &mut self,
        name: Name,
        origin: PeerOrigin,
        (public_key, preshared_key): (PublicKey, &PresharedKey),
    ) -> PeerIndex {
        let index = PeerIndex(self.peers.len());
        let reassembly_max = match origin {
            PeerOrigin::Invitation => REASSEMBLY_MIN,
            PeerOrigin::Site | PeerOrigin::Written => DEFAULT_REASSEMBLY_MAX,
        };
        self.peers.push(Peer {
            name,
            public_key,
            origin,
            preshared_key_file: None,
            preshared_key: Some(preshared_key.clone()),
            endpoints: Default::default(),
            endpoint: Vec::new(),
            further_paths: Default::default(),
            reassembly_max,
        });
        index
    }

    /// Adds the applications of the link to a site; the one that carries its packets.
    fn add_apps(
        &mut self,
        apps: &[(Name, AppNeeds)],
        site: &Name,
        peer: PeerIndex,
    ) -> Option<AppIndex> {
        let mut of_packets = None;
        for (name, needs) in apps {
            if of_packets.is_none() && needs.class == Class::Datagram {
                of_packets = Some(AppIndex(self.apps.len()));
            }
            let name = Name::of(name.as_str(), site.as_str());
            self.apps.push(App::with_needs(name, peer, needs));
        }
        of_packets
    }

    /// The addresses at which the file says that a peer is reached.
    fn addresses_of(&self, peer: PeerIndex) -> Vec<std::net::IpAddr> {
        let peer = &self[peer];
        let of_all = peer.endpoint.iter().filter_map(|endpoint| match endpoint {
            PeerEndpoint::Address(address) => Some(address),
            PeerEndpoint::Name(_) => None,
        });
        let all = of_all.chain(peer.endpoints.values());
        all.map(std::net::SocketAddr::ip).collect()
    }
}

/// Whether what is behind the hub may have this prefix: one around a prefix of this gateway may, as `0.0.0.0/0`.
fn is_free(tenant: &Tenant, prefix: &IpNet) -> bool {
    let is_inside = tenant.prefixes.iter().any(|own| own.contains(prefix));
    let mut others = tenant.peers.iter().flat_map(|of| &of.prefixes);
    !is_inside && !others.any(|other| other == prefix)
}

/// The applications, with one that takes packets.
fn apps_or_default(apps: &[(Name, AppNeeds)]) -> Vec<(Name, AppNeeds)> {
    let mut apps = apps.to_vec();
    let takes_packets = |(_, needs): &(Name, AppNeeds)| needs.class == Class::Datagram;
    if !apps.iter().any(takes_packets)
        && let Ok(name) = Name::new(DEFAULT_APP)
        && apps.iter().all(|(other, _)| *other != name)
    {
        apps.push((name, AppNeeds::of_class(Class::Datagram)));
    }
    apps
}
