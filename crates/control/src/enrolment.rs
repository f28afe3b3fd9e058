//! What a hub answers to a gateway that joins: decides, and changes nothing.
//!
//! The registry says who is invited, the request what is asked for. Writing the registry, answering and applying
//! are the gateway's.

#[cfg(test)]
mod tests;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::{Duration, SystemTime},
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::{
    config::{Config, Name},
    key::{PresharedKey, PublicKey},
    network::{Invitation, NetworkView, PrefixRefusal, Registry, SITE_NAME_BYTES_MAX, Site},
    network_channel::{Enrol, EnrolRefusedReason},
};

/// What a request is judged by.
#[derive(Clone, Copy, Debug)]
pub struct Hub<'a> {
    pub registry: &'a Registry,
    /// As in its file.
    pub config: &'a Config,
    pub public_key: PublicKey,
    /// Addresses of its uplinks.
    pub uplinks: &'a [IpAddr],
    /// Networks that its interfaces are connected to, each with the interface.
    pub connected: &'a [(String, IpNet)],
    /// The number of an application's name on the wire.
    pub app_id: fn(&str) -> u32,
    /// The time by its clock.
    pub now: SystemTime,
}

/// How long the site that came by an invitation gets its preshared key again: its answer was lost. Ours.
pub const AGAIN_TIME: Duration = Duration::from_secs(3600);

/// What a site may claim whose invitation has no prefixes: RFC 1918, RFC 6598, RFC 4193.
const PRIVATE: [IpNet; 5] = [
    v4([10, 0, 0, 0], 8),
    v4([172, 16, 0, 0], 12),
    v4([192, 168, 0, 0], 16),
    v4([100, 64, 0, 0], 10),
    IpNet::V6(Ipv6Net::new_assert(
        Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0),
        7,
    )),
];

const fn v4([a, b, c, d]: [u8; 4], bits: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), bits))
}

/// Where networks are proposed that overlapping ones are mapped to. Ours: parts of the private space that few use.
const MAPPED: [IpNet; 3] = [
    v4([10, 99, 0, 0], 16),
    v4([10, 0, 0, 0], 8),
    IpNet::V6(Ipv6Net::new_assert(
        Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 0),
        16,
    )),
];
/// Networks that are looked at for a proposal. Ours: a thousand sites of one /24 each have fewer, and a request is judged
/// in milliseconds.
const CANDIDATES_MAX: usize = 2048;

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The gateway becomes a site.
    New {
        /// The name of the invitation, which need not be the site's.
        invitation: Name,
    },
    /// It is one already: the answer was lost.
    Again {
        /// As it is in the registry.
        site: Name,
        preshared_key: PresharedKey,
        prefixes: Vec<IpNet>,
    },
    Refused(Refused),
}

/// Why it does not become a site. `text` says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub reason: EnrolRefusedReason,
    pub text: String,
}

impl Hub<'_> {
    /// Decides about a request that came over the session of a provisional key.
    pub fn decide(&self, provisional: &PublicKey, request: &Enrol) -> Decision {
        let invitations = &self.registry.invitations;
        let of_key = |(_, invitation): &(&Name, &Invitation)| invitation.public_key == *provisional;
        let Some((invited, invitation)) = invitations.iter().find(of_key) else {
            return refused(
                EnrolRefusedReason::Revoked,
                "the hub does not have this invitation any more; ask for a new one (`keiro invite` at the hub)",
            );
        };
        if let Some(redeemed) = &invitation.redeemed {
            let mut sites = self.registry.members();
            let site = sites.find(|(_, site)| site.public_key == redeemed.by);
            return match site {
                Some((name, site))
                    if redeemed.by == request.public_key && self.is_soon_after(redeemed.at) =>
                {
                    Decision::Again {
                        site: name.clone(),
                        preshared_key: site.preshared_key.clone(),
                        prefixes: site.prefixes.clone(),
                    }
                }
                site => used(invited, invitation, site.map(|(name, _)| name)),
            };
        }
        if self.now >= invitation.expires {
            let text = format!(
                "the invitation of `{invited}` has expired at {}, and the hub's clock has {}; `keiro invite \
                 {invited} --replace` at the hub makes a new one",
                time(invitation.expires),
                time(self.now)
            );
            return refused(EnrolRefusedReason::Expired, text);
        }
        match self.refuse(invited, invitation, provisional, request) {
            Some(refused) => Decision::Refused(refused),
            None => Decision::New {
                invitation: invited.clone(),
            },
        }
    }

    /// What is wrong with a request for which there is an invitation.
    fn refuse(
        &self,
        invited: &Name,
        invitation: &Invitation,
        provisional: &PublicKey,
        request: &Enrol,
    ) -> Option<Refused> {
        let Enrol {
            public_key,
            name,
            prefixes,
        } = request;
        let refused = |reason, text: String| Some(Refused { reason, text });
        if name.as_str().len() > SITE_NAME_BYTES_MAX {
            let text =
                format!("`{name}` is longer than {SITE_NAME_BYTES_MAX} bytes; join with --name");
            return refused(EnrolRefusedReason::NameTaken, text);
        }
        if let Some(owner) = self.owner_of_name(invited, name) {
            let text = format!("the name `{name}` is that of {owner}; join with another --name");
            return refused(EnrolRefusedReason::NameTaken, text);
        }
        if let Some(owner) = self.owner_of_key(public_key, provisional) {
            let text = format!(
                "this machine's key is that of {owner}; remove the private key, which was copied from another \
                 machine, and join again"
            );
            return refused(EnrolRefusedReason::KeyTaken, text);
        }
        if let Some(refused) = self.refuse_prefixes(invited, invitation, name, prefixes) {
            return Some(refused);
        }
        if !invitation.hub_endpoint.is_empty()
            && let Some((second, _)) = &self.registry.second_hub
        {
            let text = format!(
                "the network has the second hub `{second}`; `keiro revoke {second}` at the first hub removes it"
            );
            return refused(EnrolRefusedReason::NameTaken, text);
        }
        let text = self.collision(request)?;
        refused(EnrolRefusedReason::NameTaken, text)
    }

    /// What is wrong with the claim of a site.
    fn refuse_prefixes(
        &self,
        invited: &Name,
        invitation: &Invitation,
        site: &Name,
        prefixes: &[IpNet],
    ) -> Option<Refused> {
        let refused = |text: String| {
            let reason = EnrolRefusedReason::Prefix;
            Some(Refused { reason, text })
        };
        if let Some(permitted) = &invitation.prefixes
            && let Some(prefix) = prefixes.iter().find(|prefix| !is_within(prefix, permitted))
        {
            let permitted: Vec<String> = permitted.iter().map(ToString::to_string).collect();
            return refused(format!(
                "the invitation of `{invited}` is for {} and not for {prefix}; join with --prefix, or invite with it",
                permitted.join(", ")
            ));
        }
        let registry = self.registry;
        let claim = registry
            .refuse_claim(self.config, self.uplinks, site, prefixes)
            .and_then(|()| registry.refuse_connected(self.config, self.connected, site, prefixes));
        if let Err(refusal) = claim {
            let offer = self.offer_mapping(invitation, site, prefixes, &refusal);
            return refused(format!("{refusal}{}", offer.unwrap_or_default()));
        }
        let is_private = |prefix: &IpNet| is_within(prefix, &PRIVATE);
        let prefix = prefixes.iter().find(|prefix| !is_private(prefix))?;
        match invitation.prefixes {
            Some(_) => None,
            None => refused(format!(
                "{prefix} is not private address space, and the invitation of `{invited}` does not name it; `keiro \
                 invite {invited} --prefix {prefix} --replace` at the hub permits it"
            )),
        }
    }

    /// What else a site may do whose network others have too: other addresses for it, which are free.
    fn offer_mapping(
        &self,
        invitation: &Invitation,
        site: &Name,
        claimed: &[IpNet],
        refusal: &PrefixRefusal,
    ) -> Option<String> {
        let (PrefixRefusal::Overlap { prefix, .. } | PrefixRefusal::Connected { prefix, .. }) =
            refusal
        else {
            return None;
        };
        let overlap = |one: &IpNet, other: &IpNet| one.contains(other) || other.contains(one);
        let is_free = |candidate: &IpNet| {
            let registry = self.registry;
            let claim = [*candidate];
            !claimed.iter().any(|other| overlap(other, candidate))
                && registry
                    .refuse_claim(self.config, self.uplinks, site, &claim)
                    .and_then(|()| {
                        registry.refuse_connected(self.config, self.connected, site, &claim)
                    })
                    .is_ok()
        };
        let pools: &[IpNet] = match &invitation.prefixes {
            Some(permitted) => permitted,
            None => &MAPPED,
        };
        let of_length = |pool: &IpNet| {
            let is_same = pool.addr().is_ipv4() == prefix.addr().is_ipv4();
            is_same.then(|| pool.subnets(prefix.prefix_len()).ok())?
        };
        let candidates = pools.iter().filter_map(of_length).flatten();
        let free = candidates.take(CANDIDATES_MAX).find(is_free)?;
        Some(format!(
            ", or join with --map {prefix}={free}, which is free: other sites then reach the network by these addresses"
        ))
    }

    /// Why the hub could not take the site: two applications would have one number on the wire.
    fn collision(&self, request: &Enrol) -> Option<String> {
        let collides = |registry: &Registry| {
            let config = self.config.with_network(&NetworkView::Hub(registry));
            config.refuse_app_id_collisions(self.app_id).is_err()
        };
        let mut with_site = self.registry.clone();
        let site = Site {
            public_key: request.public_key,
            preshared_key: PresharedKey::from_bytes([0; 32]),
            prefixes: request.prefixes.clone(),
            wire_name: self.registry.free_wire_name(&request.name),
        };
        with_site.sites.insert(request.name.clone(), site);
        collides(&with_site).then(|| {
            format!(
                "an application of a site named `{}` has the same number on the wire as another one at the hub; join \
                 with another --name",
                request.name
            )
        })
    }

    fn is_soon_after(&self, at: SystemTime) -> bool {
        // The clock may have been set back.
        let away = match self.now.duration_since(at) {
            Ok(since) => since,
            Err(before) => before.duration(),
        };
        away < AGAIN_TIME
    }

    /// Who else has the name of a site.
    fn owner_of_name(&self, invited: &Name, name: &Name) -> Option<&'static str> {
        match () {
            () if self.registry.sites.contains_key(name) => Some("another site"),
            () if self.registry.is_second_hub(name) => Some("the second hub"),
            () if name != invited && self.registry.invitations.contains_key(name) => {
                Some("a site that is invited")
            }
            () if self.config.peer_named(name.as_str()).is_some() => Some("a peer of the hub"),
            () if *name == self.config.gateway.name => Some("the hub itself"),
            () => None,
        }
    }

    /// Who else has a key.
    fn owner_of_key(&self, key: &PublicKey, provisional: &PublicKey) -> Option<String> {
        if *key == self.public_key {
            return Some("the hub itself".to_owned());
        }
        if key == provisional {
            return Some("the invitation".to_owned());
        }
        let mut sites = self.registry.members();
        if let Some((name, _)) = sites.find(|(_, site)| site.public_key == *key) {
            return Some(format!("site `{name}`"));
        }
        let mut invitations = self.registry.invitations.iter();
        if let Some((name, _)) = invitations.find(|(_, of)| of.public_key == *key) {
            return Some(format!("the invitation of `{name}`"));
        }
        let mut peers = self.config.peers.iter();
        let peer = peers.find(|peer| peer.public_key == *key)?;
        Some(format!("peer `{}` of the hub", peer.name))
    }
}

fn is_within(prefix: &IpNet, permitted: &[IpNet]) -> bool {
    permitted.iter().any(|around| around.contains(prefix))
}

/// Another gateway has joined with an invitation, or this one has and was removed or asks late; `site`: it is still
/// one.
fn used(invited: &Name, invitation: &Invitation, site: Option<&Name>) -> Decision {
    let Some(redeemed) = &invitation.redeemed else {
        unreachable!("the caller has looked");
    };
    let revoke = match site {
        Some(site) => {
            format!("; if that was not you, `keiro revoke {site}` at the hub removes that gateway")
        }
        None => String::new(),
    };
    let text = format!(
        "the invitation of `{invited}` was used at {} from {}{revoke}; `keiro invite {invited} --replace` makes a \
         new one",
        time(redeemed.at),
        redeemed.from
    );
    refused(EnrolRefusedReason::Used, text)
}

fn refused(reason: EnrolRefusedReason, text: impl Into<String>) -> Decision {
    let text = text.into();
    Decision::Refused(Refused { reason, text })
}

/// For people: RFC 3339 in UTC, whole seconds.
pub fn time(at: SystemTime) -> String {
    // What humantime cannot print.
    let last = SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_300_799);
    humantime::format_rfc3339_seconds(at.clamp(SystemTime::UNIX_EPOCH, last)).to_string()
}
