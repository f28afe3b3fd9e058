//! A configuration with the sites of its network.
//!
//! Pure, and applied before [`Config::resolved`]. What is in the file keeps its place, and what is added follows
//! it. At the hub each site is a peer, at a branch the hub stands for all other sites. Both call an application of
//! the network by its name and the branch's, as in `office@tokyo`, so that it has one number on the wire at both and
//! no two of the hub's have the same. Over a second hub it is `office@@tokyo`. What is behind one hub or a site is
//! behind the other hub too, as a backup.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::PathBuf,
};

use ipnet::IpNet;

use super::{DEFAULT_APP, PublicRegistry, PublishedHub, Registry, Replica};
use crate::{
    config::{
        App, AppIndex, AppNeeds, Class, Config, DEFAULT_REASSEMBLY_MAX, Learned, Membership, Name,
        Peer, PeerEndpoint, PeerIndex, PeerOrigin, PrefixOwner, REASSEMBLY_MIN, Tenant, TenantPeer,
        reached_at,
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
    /// A second hub has what the first one sent last.
    SecondHub(&'a Replica),
}

/// Which hub an application leads to or comes from; a part of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    FirstHub,
    SecondHub,
}

/// A peer that is added.
pub(super) struct NewPeer {
    pub(super) name: Name,
    pub(super) origin: PeerOrigin,
    pub(super) public_key: PublicKey,
    pub(super) preshared_key_file: Option<PathBuf>,
    pub(super) preshared_key: Option<PresharedKey>,
    pub(super) endpoint: Vec<PeerEndpoint>,
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
                let tenant = config.tenants.iter();
                let id = tenant
                    .filter(|tenant| tenant.name == registry.tenant)
                    .map(|tenant| tenant.id)
                    .next();
                config.add_sites(registry, id, Over::FirstHub);
                config.add_second_hub(registry, id);
                config.add_invitations(registry);
            }
            (Some(Membership::SecondHub { first }), NetworkView::SecondHub(replica)) => {
                if let Some(registry) = replica.registry() {
                    config.add_sites(registry, Some(replica.tenant_id), Over::SecondHub);
                    config.add_first_hub(*first, replica, registry);
                }
            }
            (Some(Membership::Branch { hub }), NetworkView::Branch(registry)) => {
                config.add_other_sites(*hub, registry);
            }
            _ => {}
        }
        config
    }

    /// `tenant`: the number of the one that they join.
    fn add_sites(&mut self, registry: &Registry, tenant: Option<u32>, over: Over) {
        let apps = apps_or_default(&registry.apps);
        let mut behind = Vec::new();
        let mut learned = Vec::new();
        for (name, site) in &registry.sites {
            // Refused by `Registry::check_with`.
            if self.peer_named(name.as_str()).is_some() {
                continue;
            }
            let peer = self.add_peer(NewPeer {
                name: name.clone(),
                origin: PeerOrigin::Site,
                public_key: site.public_key,
                preshared_key_file: None,
                preshared_key: Some(site.preshared_key.clone()),
                endpoint: Vec::new(),
            });
            let wire_name = site.wire_name.as_ref().unwrap_or(name);
            let app = self.add_apps(&apps, [name, wire_name], peer, over);
            learned.extend(site.prefixes.iter().map(|prefix| Learned {
                prefix: *prefix,
                owner: PrefixOwner::Site(name.clone()),
            }));
            behind.extend(app.map(|app| TenantPeer {
                peer,
                prefixes: site.prefixes.clone(),
                backup_prefixes: Vec::new(),
                is_direct: false,
                transit: true,
                app,
            }));
        }
        if let Some(tenant) = self.tenant_numbered(tenant) {
            let tenant = &mut self.tenants[tenant];
            if tenant.routes_follow_peers {
                let prefixes = behind.iter().flat_map(|of| &of.prefixes);
                tenant.routes.extend(prefixes);
            }
            tenant.peers.extend(behind);
            tenant.learned.extend(learned);
        }
    }

    /// At the first hub.
    fn add_second_hub(&mut self, registry: &Registry, tenant: Option<u32>) {
        let Some((name, hub)) = &registry.second_hub else {
            return;
        };
        // Refused by `Registry::check_with`.
        if self.peer_named(name.as_str()).is_some() {
            return;
        }
        let peer = self.add_peer(NewPeer {
            name: name.clone(),
            origin: PeerOrigin::SecondHub,
            public_key: hub.site.public_key,
            preshared_key_file: None,
            preshared_key: Some(hub.site.preshared_key.clone()),
            endpoint: hub.endpoint.clone(),
        });
        let names = [name, hub.site.wire_name.as_ref().unwrap_or(name)];
        self.add_other_hub(names, peer, &hub.site.prefixes, registry, tenant);
    }

    /// At the second hub.
    fn add_first_hub(&mut self, first: PeerIndex, replica: &Replica, registry: &Registry) {
        if let Some((name, hub)) = &registry.second_hub {
            let tenant = Some(replica.tenant_id);
            let names = [name, hub.site.wire_name.as_ref().unwrap_or(name)];
            self.add_other_hub(names, first, &replica.hub_prefixes, registry, tenant);
        }
    }

    /// Of one hub, the other one. Both call their applications by the second one's name.
    fn add_other_hub(
        &mut self,
        second: [&Name; 2],
        peer: PeerIndex,
        behind: &[IpNet],
        registry: &Registry,
        tenant: Option<u32>,
    ) {
        let apps = apps_or_default(&registry.apps);
        let app = self.add_apps(&apps, second, peer, Over::FirstHub);
        let (Some(number), Some(app)) = (self.tenant_numbered(tenant), app) else {
            return;
        };
        let endpoints = self.addresses_of(peer);
        let tenant = &mut self.tenants[number];
        let prefixes: Vec<IpNet> = behind
            .iter()
            .filter(|prefix| is_free(tenant, prefix))
            .copied()
            .collect();
        add_routes(tenant, &prefixes, &endpoints);
        tenant.learned.extend(of_hub(&prefixes));
        let sites = registry.sites.values().flat_map(|site| &site.prefixes);
        tenant.peers.push(TenantPeer {
            peer,
            prefixes,
            backup_prefixes: sites.copied().collect(),
            is_direct: false,
            transit: true,
            app,
        });
    }

    /// The place of the tenant with this number.
    fn tenant_numbered(&self, id: Option<u32>) -> Option<usize> {
        self.tenants.iter().position(|tenant| Some(tenant.id) == id)
    }

    /// Those that are used or expired too: who comes with them gets the reason.
    fn add_invitations(&mut self, registry: &Registry) {
        for (name, invitation) in &registry.invitations {
            let name = Name::of("invitation", name.as_str());
            self.add_peer(NewPeer {
                name,
                origin: PeerOrigin::Invitation,
                public_key: invitation.public_key,
                preshared_key_file: None,
                preshared_key: Some(invitation.preshared_key.clone()),
                endpoint: Vec::new(),
            });
        }
    }

    fn add_other_sites(&mut self, hub: PeerIndex, registry: &PublicRegistry) {
        let Some(number) = self.tenant_numbered(Some(registry.tenant_id)) else {
            return;
        };
        let apps = apps_or_default(&registry.apps());
        let own = [&registry.site, registry.own_wire_name()];
        let app = self.add_apps(&apps, own, hub, Over::FirstHub);
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
        let second = registry.hubs.first();
        let second = second.and_then(|second| Some((second, self.add_hub_of_branch(hub, second)?)));
        let behind_second = second.map_or(&[][..], |(second, _)| &second.prefixes[..]);
        let tenant = &mut self.tenants[number];
        let backup: Vec<IpNet> = behind_second
            .iter()
            .filter(|prefix| is_free(tenant, prefix) && !prefixes.contains(prefix))
            .copied()
            .collect();
        let mut addresses = endpoints;
        if let Some((_, peer)) = second {
            addresses.extend(self.addresses_of(peer));
        }
        let of_second = second
            .and_then(|(_, peer)| Some((peer, self.add_apps(&apps, own, peer, Over::SecondHub)?)));
        let tenant = &mut self.tenants[number];
        for prefixes in [&prefixes, &backup] {
            add_routes(tenant, prefixes, &addresses);
        }
        tenant.learned = published(registry, &[&prefixes, &backup]);
        let mut of_file = tenant.peers.iter_mut();
        match (of_file.find(|of| of.peer == hub), app) {
            (Some(of), _) => {
                of.prefixes.extend(&prefixes);
                of.backup_prefixes.extend(&backup);
            }
            (None, Some(app)) if !prefixes.is_empty() || !backup.is_empty() => {
                tenant.peers.push(TenantPeer {
                    peer: hub,
                    prefixes: prefixes.clone(),
                    backup_prefixes: backup.clone(),
                    is_direct: false,
                    transit: false,
                    app,
                });
            }
            (None, _) => {}
        }
        if let Some((peer, app)) = of_second {
            tenant.peers.push(TenantPeer {
                peer,
                prefixes: backup,
                backup_prefixes: prefixes,
                is_direct: false,
                transit: false,
                app,
            });
        }
    }

    /// The second hub of a branch, which has the preshared key of the first; `None`: another peer has its name or key.
    fn add_hub_of_branch(&mut self, first: PeerIndex, hub: &PublishedHub) -> Option<PeerIndex> {
        let is_other = |peer: &Peer| peer.name != hub.name && peer.public_key != hub.public_key;
        if !self.peers.iter().all(is_other) {
            return None;
        }
        let first = &self[first];
        let peer = NewPeer {
            name: hub.name.clone(),
            origin: PeerOrigin::SecondHub,
            public_key: hub.public_key,
            preshared_key_file: first.preshared_key_file.clone(),
            preshared_key: first.preshared_key.clone(),
            endpoint: hub.endpoint.clone(),
        };
        Some(self.add_peer(peer))
    }

    pub(super) fn add_peer(&mut self, new: NewPeer) -> PeerIndex {
        let index = PeerIndex(self.peers.len());
        let reassembly_max = match new.origin {
            PeerOrigin::Invitation => REASSEMBLY_MIN,
            PeerOrigin::Site | PeerOrigin::SecondHub | PeerOrigin::Direct | PeerOrigin::Written => {
                DEFAULT_REASSEMBLY_MAX
            }
        };
        self.peers.push(Peer {
            name: new.name,
            public_key: new.public_key,
            origin: new.origin,
            preshared_key_file: new.preshared_key_file,
            preshared_key: new.preshared_key,
            endpoints: Default::default(),
            endpoint: new.endpoint,
            further_paths: Default::default(),
            reassembly_max,
        });
        index
    }

    /// Adds the applications of a session between two sites under `names`, here and on the wire; the one that carries its packets.
    pub(super) fn add_direct_apps(
        &mut self,
        apps: &[(Name, AppNeeds)],
        names: impl Iterator<Item = [Name; 2]>,
        peer: PeerIndex,
    ) -> Option<AppIndex> {
        let mut of_packets = None;
        for ((_, needs), [name, wire_name]) in apps_or_default(apps).iter().zip(names) {
            if of_packets.is_none() && needs.class == Class::Datagram {
                of_packets = Some(AppIndex(self.apps.len()));
            }
            self.apps.push(App {
                wire_name: (wire_name != name).then_some(wire_name),
                ..App::with_needs(name, peer, needs)
            });
        }
        of_packets
    }

    /// Adds the applications of the link to a site, which has these names here and on the wire; the one that carries
    /// its packets.
    fn add_apps(
        &mut self,
        apps: &[(Name, AppNeeds)],
        site: [&Name; 2],
        peer: PeerIndex,
        over: Over,
    ) -> Option<AppIndex> {
        let mut of_packets = None;
        for (name, needs) in apps {
            if of_packets.is_none() && needs.class == Class::Datagram {
                of_packets = Some(AppIndex(self.apps.len()));
            }
            let [name, wire_name] = site.map(|site| match over {
                Over::FirstHub => Name::of(name.as_str(), site.as_str()),
                Over::SecondHub => Name::of(name.as_str(), &format!("@{site}")),
            });
            self.apps.push(App {
                wire_name: (wire_name != name).then_some(wire_name),
                ..App::with_needs(name, peer, needs)
            });
        }
        of_packets
    }

    /// The addresses at which the file says that a peer is reached.
    fn addresses_of(&self, peer: PeerIndex) -> Vec<IpAddr> {
        // Names of hosts are known later, and judged by `Config::withheld`.
        reached_at(&self[peer], &BTreeMap::new())
    }
}

/// What is behind the first hub, the other sites and the second hub, each once, as far as it is among these.
fn published(registry: &PublicRegistry, among: &[&[IpNet]]) -> Vec<Learned> {
    let mut left: BTreeSet<IpNet> = among.iter().copied().flatten().copied().collect();
    let mut all: Vec<Learned> = of_hub(&registry.hub_prefixes).collect();
    let sites = registry.sites.iter();
    for site in sites.filter(|site| site.name != registry.site) {
        let of_site = site.prefixes.iter().map(|prefix| Learned {
            prefix: *prefix,
            owner: PrefixOwner::Site(site.name.clone()),
        });
        all.extend(of_site);
    }
    all.extend(registry.hubs.iter().flat_map(|hub| of_hub(&hub.prefixes)));
    all.retain(|learned| left.remove(&learned.prefix));
    all
}

fn of_hub(prefixes: &[IpNet]) -> impl Iterator<Item = Learned> {
    prefixes.iter().map(|prefix| Learned {
        prefix: *prefix,
        owner: PrefixOwner::Hub,
    })
}

/// Adds routes into the tunnel, unless the tenant has its own list.
fn add_routes(tenant: &mut Tenant, prefixes: &[IpNet], endpoints: &[IpAddr]) {
    if !tenant.routes_follow_peers {
        return;
    }
    // In the main table the tunnel's own packets would be led into it.
    let is_own_table = tenant.table.is_some();
    let leads_away = |prefix: &&IpNet| {
        is_own_table
            || prefix.prefix_len() > 0 && !endpoints.iter().any(|address| prefix.contains(address))
    };
    let is_new = |prefix: &&IpNet| !tenant.routes.contains(prefix);
    let routes = prefixes.iter().filter(leads_away).filter(is_new);
    let routes: Vec<IpNet> = routes.copied().collect();
    tenant.routes.extend(routes);
}

/// Whether what is behind the hub may have this prefix: one around a prefix of this gateway may, as `0.0.0.0/0`.
fn is_free(tenant: &Tenant, prefix: &IpNet) -> bool {
    let is_inside = tenant.prefixes.iter().any(|own| own.contains(prefix));
    let mut others = tenant.peers.iter().flat_map(|of| &of.prefixes);
    !is_inside && !others.any(|other| other == prefix)
}

/// The applications, with one that takes packets.
pub(super) fn apps_or_default(apps: &[(Name, AppNeeds)]) -> Vec<(Name, AppNeeds)> {
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
