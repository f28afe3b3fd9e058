//! Sessions between branches: a branch asks for one with a site that its packets go to, and the hub gives both the
//! other's addresses, and a preshared key that it draws for them. The hub has no part in the session.

use std::{
    net::{IpAddr, SocketAddr},
    time::Instant as Stopwatch,
};

use keiro_control::{
    config::{Config, Membership, Name, Peer, PeerOrigin},
    key::PresharedKey,
    network::{
        DIRECT_ENDPOINTS_MAX, DirectSite, NetworkState, PublicRegistry, PublishedSite, Registry,
    },
    network_channel::{Direct, DirectWanted, Document},
    protocol::{ErrorCode, ErrorResponse, NetworkSiteSnapshot, NetworkSnapshot, SiteRoute},
};
use keiro_core::{PathState, PeerId, RefusalReason, TenantId};

use crate::{
    data::command::DataThreadGone,
    error_response::internal,
    gateway::Gateway,
    random::random,
    sites::direct_sites::{DirectSessionState, EndReason},
    track_endpoints::own_addresses,
};

impl Gateway {
    /// At a branch: a tenant has packets for this address.
    pub(crate) fn on_destination(
        &mut self,
        tenant: TenantId,
        destination: IpAddr,
    ) -> Result<(), DataThreadGone> {
        let NetworkState::Branch(registry) = self.sites.state() else {
            return Ok(());
        };
        let Some(site) = site_of(registry, destination).cloned() else {
            return Ok(());
        };
        let is_of_network = registry.tenant_id == tenant.0;
        if self.draining || !is_of_network || registry.direct_key(&site).is_err() {
            return Ok(());
        }
        let Some(hub) = self.hub_that_is_up().map(Name::to_string) else {
            return Ok(());
        };
        if !self.sites.direct.on_wanted(Stopwatch::now(), &site) {
            return Ok(());
        }
        let document = Document::DirectWanted(DirectWanted { site });
        self.send_network_document(&hub, &document)
    }

    /// The hubs of a branch, the first one first.
    fn hubs_of_branch(&self) -> impl Iterator<Item = &Peer> {
        let first = match &self.sites.of_file().network {
            Some(Membership::Branch { hub }) => Some(hub.0),
            _ => None,
        };
        let peers = self.config.peers.iter().enumerate();
        let hubs = peers.filter(move |(number, peer)| {
            Some(*number) == first || peer.origin == PeerOrigin::SecondHub
        });
        hubs.map(|(_, peer)| peer)
    }

    fn hub_that_is_up(&self) -> Option<&Name> {
        let mut hubs = self.hubs_of_branch().map(|peer| &peer.name);
        hubs.find(|name| self.is_peer_up(name))
    }

    pub(crate) fn is_peer_up(&self, name: &Name) -> bool {
        let id = self.running_config.peer_id(name.as_str());
        id.is_some_and(|id| self.sites.is_up(id))
    }

    /// At a hub: a site asks for a session with another one. Why it is refused; `None`: it is not.
    pub(crate) fn introduce(
        &mut self,
        from: &str,
        wanted: &DirectWanted,
    ) -> Result<Option<RefusalReason>, DataThreadGone> {
        let refused = Ok(Some(RefusalReason::Other));
        let registry: &Registry = match self.sites.state() {
            NetworkState::Hub(registry) => registry,
            NetworkState::SecondHub(replica) => match replica.registry() {
                Some(registry) => registry,
                None => return refused,
            },
            NetworkState::Branch(_) | NetworkState::Nothing => return refused,
        };
        let mut names = registry.sites.keys();
        let asks = names.find(|name| name.as_str() == from);
        let other = registry.sites.get_key_value(&wanted.site);
        let (Some(asks), Some((other, _))) = (asks, other) else {
            return refused;
        };
        let (is_permitted, pair) = (registry.direct, [asks.clone(), other.clone()]);
        if pair[0] == pair[1] {
            return refused;
        }
        let now = Stopwatch::now();
        if !is_permitted || !self.sites.introductions.take(now, &pair[0], &pair[1]) {
            return Ok(None);
        }
        let seen = self.seen_at(&pair)?;
        // One that is away, or at the other hub, is not met.
        if seen.iter().any(Vec::is_empty) {
            return Ok(None);
        }
        let secret = match random() {
            Ok(secret) => PresharedKey::from_bytes(secret),
            Err(error) => {
                tracing::warn!("two sites are not introduced: {error:#}");
                return Ok(None);
            }
        };
        for (to, about) in [(0, 1), (1, 0)] {
            let direct = Direct {
                site: pair[about].clone(),
                preshared_key: secret.clone(),
                endpoint: seen[about].clone(),
            };
            let document = Document::Direct(Box::new(direct));
            self.send_network_document(pair[to].as_str(), &document)?;
        }
        Ok(None)
    }

    /// Where two sites are, on their paths that are up.
    fn seen_at(&self, names: &[Name; 2]) -> Result<[Vec<SocketAddr>; 2], DataThreadGone> {
        let paths = self.data.paths()?;
        let of = |name: &Name| -> Vec<SocketAddr> {
            let id = self.running_config.peer_id(name.as_str());
            let paths = paths.iter().filter(|(peer, _)| Some(*peer) == id);
            let up = paths.flat_map(|(_, paths)| paths);
            let up = up.filter(|path| path.state == PathState::Up);
            let mut seen = Vec::new();
            for at in up.filter_map(|path| path.remote) {
                let at = SocketAddr::new(at.ip().to_canonical(), at.port());
                if seen.len() < DIRECT_ENDPOINTS_MAX && !seen.contains(&at) {
                    seen.push(at);
                }
            }
            seen
        };
        Ok([of(&names[0]), of(&names[1])])
    }

    /// At a branch: a hub has introduced another site. Why it is refused; `None`: it is not.
    pub(crate) fn on_introduced(&mut self, direct: Direct) -> Option<RefusalReason> {
        let NetworkState::Branch(registry) = self.sites.state() else {
            return Some(RefusalReason::Other);
        };
        let Ok(public_key) = registry.direct_key(&direct.site) else {
            return Some(RefusalReason::Other);
        };
        let site = DirectSite {
            name: direct.site,
            public_key,
            preshared_key: direct.preshared_key,
            endpoint: direct.endpoint,
        };
        let site = site.with_usable_endpoints(&self.config, &own_addresses());
        let now = Stopwatch::now();
        if !self.draining && self.sites.direct.on_introduced(now, site) && !self.adopt_direct() {
            self.sites.direct.abandon(now);
            self.adopt_direct();
        }
        None
    }

    /// Follows the sessions with other sites, and ends those that are over.
    pub(crate) fn update_direct_sessions(&mut self) -> Result<(), DataThreadGone> {
        if self.draining {
            return Ok(());
        }
        let wanted = self.sites.direct.wanted();
        let now = Stopwatch::now();
        if !wanted.is_empty() {
            let figures = self.data.tenants(None)?;
            let carried = |peer: PeerId| -> u64 {
                let of_peer = figures.iter().filter_map(|of| of.peers.get(&peer));
                let packets =
                    of_peer.map(|of| of.stats.accepted_packets + of.stats.received_packets);
                packets.sum()
            };
            for site in &wanted {
                let id = self.running_config.peer_id(site.name.as_str());
                let is_up = id.is_some_and(|id| self.sites.is_up(id));
                let packets = id.map_or(0, carried);
                self.sites
                    .direct
                    .on_session(now, &site.name, is_up, packets);
            }
        }
        let ended = self.sites.direct.on_timeout(now);
        if ended.is_empty() {
            return Ok(());
        }
        for (name, why, left) in &ended {
            match why {
                EndReason::Unreachable { .. } => tracing::info!(
                    "site `{name}`: no direct session: {why}; packets stay with the hub, and the next attempt is in \
                     {} min",
                    left.as_secs() / 60
                ),
                EndReason::Silent => {
                    tracing::info!("site `{name}`: {why}; packets are with the hub");
                }
                EndReason::Idle | EndReason::NotIntroduced | EndReason::NotApplied => {
                    tracing::debug!("site `{name}`: {why}");
                }
            }
        }
        self.adopt_direct();
        Ok(())
    }

    /// The other sites of a branch's network, and how packets reach them.
    ///
    /// # Errors
    /// This gateway is no branch that knows its network, or does not answer.
    pub(crate) fn network(&self) -> Result<NetworkSnapshot, ErrorResponse> {
        let registry = match self.sites.state() {
            NetworkState::Branch(registry) => registry,
            _ => return Err(no_branch(self.sites.of_file())),
        };
        let figures = self.data.tenants(None).map_err(internal)?;
        let hub = self.hub_that_is_up().map(Name::to_string);
        let now = Stopwatch::now();
        let site = |site: &PublishedSite| {
            let standing = self.sites.direct.session_state(now, &site.name);
            let peer = self.running_config.peer_id(site.name.as_str());
            let is_preferred = peer.is_some_and(|peer| {
                let mut tenants = figures.iter();
                tenants.any(|tenant| tenant.preferred.contains(&peer))
            });
            let direct = registry.direct_key(&site.name);
            let why = match (direct, is_preferred, &standing) {
                (Err(why), _, _) => why.to_string(),
                (Ok(_), true, _) => "a direct session is up".to_owned(),
                (Ok(_), false, DirectSessionState::Up) => {
                    "the direct session is up again, and is taken when it has stayed up".to_owned()
                }
                (Ok(_), false, standing) => standing.to_string(),
            };
            let left = match standing {
                DirectSessionState::Waiting { left, .. } => Some(left.as_secs_f64()),
                _ => None,
            };
            NetworkSiteSnapshot {
                name: site.name.to_string(),
                route: match (is_preferred, &hub) {
                    (true, _) => SiteRoute::Direct,
                    (false, Some(_)) => SiteRoute::Relayed,
                    (false, None) => SiteRoute::Unreachable,
                },
                hub: hub.clone().filter(|_| !is_preferred),
                why,
                next_attempt_seconds: left,
                prefixes: site.prefixes.iter().map(ToString::to_string).collect(),
            }
        };
        let sites = registry.sites.iter();
        let sites = sites.filter(|site| site.name != registry.site).map(site);
        Ok(NetworkSnapshot {
            site: registry.site.to_string(),
            sites: sites.collect(),
        })
    }
}

/// Why a gateway has no other sites to show.
fn no_branch(of_file: &Config) -> ErrorResponse {
    let (why, hint) = match &of_file.network {
        Some(Membership::Branch { .. }) => (
            "the hub has not sent the sites of the network yet",
            "`keiro show peer` says how things are with the hub",
        ),
        Some(Membership::Hub(_) | Membership::SecondHub { .. }) => (
            "this gateway is a hub, which has a session with every site",
            "`keiro sites` lists them",
        ),
        None => (
            "this gateway is in no network",
            "`keiro join` makes it a branch of one",
        ),
    };
    ErrorResponse::new(ErrorCode::Unavailable, why, hint)
}

/// The other site that an address is behind.
fn site_of(registry: &PublicRegistry, address: IpAddr) -> Option<&Name> {
    let others = registry.sites.iter();
    let mut others = others.filter(|site| site.name != registry.site);
    let site = others.find(|site| site.prefixes.iter().any(|net| net.contains(&address)));
    site.map(|site| &site.name)
}
