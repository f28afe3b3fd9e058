//! What a hub answers to a gateway that joins: decides, and changes nothing.
//!
//! The registry says who is invited, the request what is asked for. Writing the registry, answering and applying
//! are the gateway's.

#[cfg(test)]
mod tests;

use std::{
    net::IpAddr,
    time::{Duration, SystemTime},
};

use ipnet::IpNet;

use crate::{
    config::{Config, Name},
    key::{PresharedKey, PublicKey},
    network::{Invitation, Registry, SITE_NAME_BYTES_MAX},
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
    /// The time by its clock.
    pub now: SystemTime,
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
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
    /// Judges a request that came over the session of a provisional key.
    pub fn judge(&self, provisional: &PublicKey, request: &Enrol) -> Verdict {
        let invitations = &self.registry.invitations;
        let of_key = |(_, invitation): &(&Name, &Invitation)| invitation.public_key == *provisional;
        let Some((invited, invitation)) = invitations.iter().find(of_key) else {
            return refused(
                EnrolRefusedReason::Revoked,
                "the hub does not have this invitation any more; ask for a new one (`keiro invite` at the hub)",
            );
        };
        if let Some(redeemed) = &invitation.redeemed {
            let mut sites = self.registry.sites.iter();
            let site = sites.find(|(_, site)| site.public_key == redeemed.by);
            return match site {
                Some((name, site)) if redeemed.by == request.public_key => Verdict::Again {
                    site: name.clone(),
                    preshared_key: site.preshared_key.clone(),
                    prefixes: site.prefixes.clone(),
                },
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
            Some(refused) => Verdict::Refused(refused),
            None => Verdict::New {
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
        if let Some(permitted) = &invitation.prefixes {
            let is_permitted =
                |prefix: &&IpNet| permitted.iter().any(|around| around.contains(*prefix));
            if let Some(prefix) = prefixes.iter().find(|prefix| !is_permitted(prefix)) {
                let permitted: Vec<String> = permitted.iter().map(ToString::to_string).collect();
                let text = format!(
                    "the invitation of `{invited}` is for {} and not for {prefix}; join with --prefix, or invite \
                     with it",
                    permitted.join(", ")
                );
                return refused(EnrolRefusedReason::Prefix, text);
            }
        }
        let claim = self
            .registry
            .refuse_claim(self.config, self.uplinks, name, prefixes);
        let text = claim.err()?.to_string();
        refused(EnrolRefusedReason::Prefix, text)
    }

    /// Who else has the name of a site.
    fn owner_of_name(&self, invited: &Name, name: &Name) -> Option<&'static str> {
        match () {
            () if self.registry.sites.contains_key(name) => Some("another site"),
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
        let mut sites = self.registry.sites.iter();
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

/// Another gateway has joined with an invitation, or this one has and was removed; `site`: it is still one.
fn used(invited: &Name, invitation: &Invitation, site: Option<&Name>) -> Verdict {
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

fn refused(reason: EnrolRefusedReason, text: impl Into<String>) -> Verdict {
    let text = text.into();
    Verdict::Refused(Refused { reason, text })
}

/// For people: RFC 3339 in UTC, whole seconds.
pub fn time(at: SystemTime) -> String {
    // What humantime cannot print.
    let last = SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_300_799);
    humantime::format_rfc3339_seconds(at.clamp(SystemTime::UNIX_EPOCH, last)).to_string()
}
