//! Rules that concern several entries of a registry at once, and the registry and the hub's configuration.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    ops::Range,
};

use ipnet::IpNet;
use keiro_config::Report;

use super::{
    DEFAULT_APP, Registry, SITE_PREFIXES_MAX, Site, SiteSpans,
    addresses::of_hub,
    draft::{Draft, DraftApp},
};
use crate::config::{Class, Config, ConfigError, Name, Tenant, is_forwarded};

/// The shortest prefixes of a site, in IPv4 and IPv6. Ours: what is shorter is a mistake or takes the Internet.
pub const PREFIX_BITS_MIN: [u8; 2] = [8, 32];

/// Why a site must not have a prefix. `Display` says what to try.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrefixRefusal {
    /// Another has it, or a part of it, or one around it.
    #[error("{prefix} of site `{site}` overlaps {present} of {owner}; give each its own addresses")]
    Overlap {
        prefix: IpNet,
        site: Name,
        present: IpNet,
        /// As in "site `osaka`" or "the hub".
        owner: String,
    },
    #[error(
        "{prefix} of site `{site}` is too large; write /{} or longer, in IPv6 /{}",
        PREFIX_BITS_MIN[0],
        PREFIX_BITS_MIN[1]
    )]
    TooLarge { prefix: IpNet, site: Name },
    /// The tunnel would be led into itself.
    #[error(
        "{prefix} of site `{site}` contains {address}, where the hub itself is reached; claim only the networks \
         behind the site"
    )]
    ContainsHub {
        prefix: IpNet,
        site: Name,
        address: IpAddr,
    },
    #[error("site `{site}` claims {count} prefixes; it may have 1 to {SITE_PREFIXES_MAX}")]
    Count { site: Name, count: usize },
    #[error("{prefix} of site `{site}` has bits set behind its prefix; write {}", prefix.trunc())]
    HostBits { prefix: IpNet, site: Name },
    #[error(
        "{prefix} of site `{site}` is never forwarded; claim networks that hosts have addresses of"
    )]
    NotForwarded { prefix: IpNet, site: Name },
    /// A route to the site would take the place of the one to the interface.
    #[error(
        "{prefix} of site `{site}` overlaps {present}, which the hub's interface `{interface}` is connected to; \
         give each its own addresses"
    )]
    Connected {
        prefix: IpNet,
        site: Name,
        present: IpNet,
        interface: String,
    },
}

impl Registry {
    /// Refuses prefixes that overlap networks which interfaces of the hub are connected to, where these and the
    /// routes to sites are in the main routing table. Devices and interfaces of tenants do not count.
    ///
    /// # Errors
    /// The first that is refused.
    pub fn refuse_connected(
        &self,
        config: &Config,
        networks: &[(String, IpNet)],
        site: &Name,
        prefixes: &[IpNet],
    ) -> Result<(), PrefixRefusal> {
        match config.tenant_named(self.tenant.as_str()) {
            Some(tenant) if tenant.table.is_some() => Ok(()),
            _ => connected(config, networks, site, prefixes),
        }
    }
}

/// Checks a whole registry.
pub(super) fn together(draft: &Draft, report: &mut Report<'_>) {
    keys(draft, report);
    packets(draft, report);
    names(draft, report);
    for (name, site, spans) in draft.members() {
        for (prefix, at) in site.prefixes.iter().zip(&spans.prefixes) {
            if is_too_large(prefix) {
                let refusal = PrefixRefusal::TooLarge {
                    prefix: *prefix,
                    site: name.clone(),
                };
                add(report, at, &refusal);
            }
        }
    }
    overlaps(draft, report);
}

/// The second hub is no site, and no two members have the same numbers on the wire.
fn names(draft: &Draft, report: &mut Report<'_>) {
    let mut wire_names = BTreeMap::new();
    for (name, site, spans) in draft.members() {
        let wire_name = site.wire_name.as_ref().unwrap_or(name);
        if let Some(earlier) = wire_names.insert(wire_name, name)
            && earlier != name
        {
            let message = format!("wire_name: `{earlier}` has `{wire_name}` too");
            report.add(
                &spans.name,
                message,
                "give each its own, for example its name",
            );
        }
    }
    if let Some((name, _, spans)) = &draft.second_hub
        && draft.sites.contains_key(name)
    {
        let message = format!("hub: a site is named `{name}` too");
        report.add(&spans.name, message, "rename one of them");
    }
}

/// Some application carries packets, the one of this name if no other does.
fn packets(draft: &Draft, report: &mut Report<'_>) {
    let is_datagram = |app: &DraftApp| app.needs.class == Class::Datagram;
    let mut named = draft
        .apps
        .iter()
        .filter(|app| app.name.as_str() == DEFAULT_APP);
    if let Some(app) = named.find(|app| !is_datagram(app))
        && !draft.apps.iter().any(is_datagram)
    {
        let message = format!(
            "app: `{DEFAULT_APP}` is of class `{}`, and none is of class `datagram`",
            app.needs.class.as_str()
        );
        report.add(
            &app.at,
            message,
            "write class = \"datagram\" for the one that carries IP packets",
        );
    }
}

/// Each gateway has a key of its own, and so has each invitation.
fn keys(draft: &Draft, report: &mut Report<'_>) {
    let mut keys = BTreeMap::new();
    let mut ids = BTreeMap::new();
    let sites = draft.members().map(|(name, site, spans)| {
        let owner = format!("site `{name}`");
        (site.public_key, owner, &spans.public_key)
    });
    let invitations = draft.invitations.iter().map(|(name, (of, spans))| {
        let owner = format!("the invitation of `{name}`");
        (of.public_key, owner, &spans.public_key)
    });
    let mut all: Vec<_> = sites.chain(invitations).collect();
    all.sort_by_key(|(.., at)| at.start);
    for (key, owner, at) in all {
        if let Some(earlier) = keys.insert(key, owner) {
            let message = format!("public_key: {earlier} has the same key");
            report.add(at, message, "every gateway has a key of its own");
        }
    }
    for (name, (of, spans)) in &draft.invitations {
        if let Some(earlier) = ids.insert(of.id, name) {
            let message = format!("id: the invitation of `{earlier}` has the same number");
            report.add(&spans.id, message, "remove one of them, and invite again");
        }
    }
}

/// An address is at one site only.
fn overlaps(draft: &Draft, report: &mut Report<'_>) {
    let of_site = |(name, site, spans): (&Name, &Site, &SiteSpans)| -> Vec<_> {
        let prefixes = site.prefixes.iter().zip(spans.prefixes.clone());
        prefixes
            .map(|(prefix, at)| (*prefix, at, name.clone()))
            .collect()
    };
    let mut all: Vec<(IpNet, Range<usize>, Name)> = draft.members().flat_map(of_site).collect();
    // A prefix comes before those that it contains, and all in between are contained too.
    all.sort_by_key(|(prefix, at, _)| (*prefix, at.start));
    let mut around: Vec<(IpNet, Range<usize>, Name)> = Vec::new();
    for (prefix, at, name) in all {
        while around
            .last()
            .is_some_and(|(outer, ..)| !outer.contains(&prefix))
        {
            around.pop();
        }
        if let Some((present, earlier, other)) = around.last() {
            let line = report.line(earlier);
            let refusal = PrefixRefusal::Overlap {
                prefix,
                site: name.clone(),
                present: *present,
                owner: format!("site `{other}` (line {line})"),
            };
            add(report, &at, &refusal);
        }
        around.push((prefix, at, name));
    }
}

/// See [`Registry::check_with`].
pub(super) fn with_config(
    registry: &Registry,
    config: &Config,
    own: &[IpAddr],
) -> Result<(), ConfigError> {
    let origin = &registry.origin;
    let mut report = Report::new(&origin.file, &origin.text);
    let tenant = config.tenant_named(registry.tenant.as_str());
    if tenant.is_none() {
        let message = format!(
            "tenant: no [tenant.{}] in {}",
            registry.tenant,
            config.file()
        );
        let hint = "name a tenant of that file, or add it there";
        report.add(&origin.tenant, message, hint);
    }
    let taken = tenant
        .map(|tenant| taken_by_file(config, tenant))
        .unwrap_or_default();
    let addresses = of_hub(registry, config, own);
    for (name, site) in registry.members() {
        let Some(spans) = registry.spans_of(name) else {
            continue;
        };
        if config.peer_named(name.as_str()).is_some() {
            let message = format!("site: {} has a [[peer]] named `{name}`", config.file());
            report.add(&spans.name, message, "rename one of them");
        }
        let mut peers = config.peers.iter();
        if let Some(peer) = peers.find(|peer| peer.public_key == site.public_key) {
            let message = format!(
                "public_key: [[peer]] `{}` in {} has the same key",
                peer.name,
                config.file()
            );
            report.add(&spans.public_key, message, "remove one of them");
        }
        for (prefix, at) in site.prefixes.iter().zip(&spans.prefixes) {
            if let Err(refusal) = refuse(name, *prefix, &taken, &addresses) {
                add(&mut report, at, &refusal);
            }
        }
    }
    report.finish().map(drop)
}

/// See [`Registry::check_connected`].
pub(super) fn with_machine(
    registry: &Registry,
    known: &Registry,
    config: &Config,
    networks: &[(String, IpNet)],
) -> Result<(), ConfigError> {
    let origin = &registry.origin;
    let mut report = Report::new(&origin.file, &origin.text);
    let is_known = |name: &Name, prefix: &IpNet| {
        let site = known.sites.get(name);
        site.is_some_and(|site| site.prefixes.contains(prefix))
    };
    for (name, site) in &registry.sites {
        let Some(spans) = origin.sites.get(name) else {
            continue;
        };
        for (prefix, at) in site.prefixes.iter().zip(&spans.prefixes) {
            if !is_known(name, prefix)
                && let Err(refusal) = registry.refuse_connected(config, networks, name, &[*prefix])
            {
                add(&mut report, at, &refusal);
            }
        }
    }
    report.finish().map(drop)
}

/// See [`Registry::refuse_claim`].
pub(super) fn claim(
    registry: &Registry,
    config: &Config,
    own: &[IpAddr],
    site: &Name,
    prefixes: &[IpNet],
) -> Result<(), PrefixRefusal> {
    if !(1..=SITE_PREFIXES_MAX).contains(&prefixes.len()) {
        return Err(PrefixRefusal::Count {
            site: site.clone(),
            count: prefixes.len(),
        });
    }
    for prefix in prefixes {
        let (prefix, site) = (*prefix, site.clone());
        if prefix.trunc() != prefix {
            return Err(PrefixRefusal::HostBits { prefix, site });
        }
        if !is_forwarded(&prefix) {
            return Err(PrefixRefusal::NotForwarded { prefix, site });
        }
    }
    let tenant = config.tenant_named(registry.tenant.as_str());
    let mut taken = tenant
        .map(|tenant| taken_by_file(config, tenant))
        .unwrap_or_default();
    for (name, other) in registry.members().filter(|(name, _)| *name != site) {
        let owned = other.prefixes.iter().map(|prefix| Taken {
            prefix: *prefix,
            owner: format!("site `{name}`"),
            may_be_rest: false,
        });
        taken.extend(owned);
    }
    let addresses = of_hub(registry, config, own);
    for (number, prefix) in prefixes.iter().enumerate() {
        refuse(site, *prefix, &taken, &addresses)?;
        // Twice in one claim.
        let mut before = prefixes[..number].iter();
        if let Some(present) = before.find(|other| overlap(other, prefix)) {
            return Err(PrefixRefusal::Overlap {
                prefix: *prefix,
                site: site.clone(),
                present: *present,
                owner: "the same site".to_owned(),
            });
        }
    }
    Ok(())
}

/// A prefix that is in use.
struct Taken {
    prefix: IpNet,
    owner: String,
    /// If it is all addresses, it is those that are nowhere else.
    may_be_rest: bool,
}

/// What the hub's own file has for the tenant, and for others that share its routing table.
fn taken_by_file(config: &Config, tenant: &Tenant) -> Vec<Taken> {
    let mut taken = taken(config, tenant);
    taken.extend(taken_beside(config, tenant));
    taken
}

/// What the hub's own file has for the tenant.
fn taken(config: &Config, tenant: &Tenant) -> Vec<Taken> {
    let own = tenant.prefixes.iter().map(|prefix| Taken {
        prefix: *prefix,
        owner: "the hub".to_owned(),
        may_be_rest: true,
    });
    let peers = tenant.peers.iter().flat_map(|of| {
        let owner = format!("peer `{}`", config[of.peer].name);
        let taken = move |prefix: &IpNet| Taken {
            prefix: *prefix,
            owner: owner.clone(),
            may_be_rest: false,
        };
        of.prefixes.iter().map(taken)
    });
    own.chain(peers).collect()
}

/// What the main routing table leads to other tenants than this one; nothing if this one has its own table.
fn taken_beside(config: &Config, tenant: &Tenant) -> Vec<Taken> {
    let is_beside = |other: &&Tenant| {
        other.name != tenant.name && other.table.is_none() && tenant.table.is_none()
    };
    let of_tenant = |other: &Tenant| -> Vec<Taken> {
        let peers = other.peers.iter().flat_map(|of| &of.prefixes);
        let all = other.prefixes.iter().chain(&other.routes).chain(peers);
        let taken = all.map(|prefix| Taken {
            prefix: *prefix,
            owner: format!("tenant `{}` of the hub", other.name),
            may_be_rest: true,
        });
        taken.collect()
    };
    let others = config.tenants.iter().filter(is_beside);
    others.flat_map(of_tenant).collect()
}

fn refuse(
    site: &Name,
    prefix: IpNet,
    taken: &[Taken],
    addresses: &BTreeSet<IpAddr>,
) -> Result<(), PrefixRefusal> {
    let site = site.clone();
    if is_too_large(&prefix) {
        return Err(PrefixRefusal::TooLarge { prefix, site });
    }
    // A hub that leads to the Internet has all that is nowhere else.
    let is_rest = |taken: &Taken| taken.may_be_rest && taken.prefix.prefix_len() == 0;
    let mut others = taken.iter().filter(|taken| !is_rest(taken));
    if let Some(other) = others.find(|other| overlap(&other.prefix, &prefix)) {
        return Err(PrefixRefusal::Overlap {
            prefix,
            site,
            present: other.prefix,
            owner: other.owner.clone(),
        });
    }
    match addresses.iter().find(|address| prefix.contains(*address)) {
        Some(&address) => Err(PrefixRefusal::ContainsHub {
            prefix,
            site,
            address,
        }),
        None => Ok(()),
    }
}

/// See [`Registry::refuse_connected`].
fn connected(
    config: &Config,
    networks: &[(String, IpNet)],
    site: &Name,
    prefixes: &[IpNet],
) -> Result<(), PrefixRefusal> {
    // Those of tenants' devices are their prefixes, and those of tenants' interfaces are in other tables.
    let is_tenants = |name: &String| {
        let mut tenants = config.tenants.iter();
        tenants.any(|tenant| tenant.device == *name || tenant.interfaces.contains(name))
    };
    let networks = networks.iter().filter(|(name, _)| !is_tenants(name));
    for (interface, present) in networks {
        let mut claimed = prefixes.iter();
        if let Some(prefix) = claimed.find(|prefix| overlap(present, prefix)) {
            return Err(PrefixRefusal::Connected {
                prefix: *prefix,
                site: site.clone(),
                present: *present,
                interface: interface.clone(),
            });
        }
    }
    Ok(())
}

fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

fn is_too_large(prefix: &IpNet) -> bool {
    let [v4, v6] = PREFIX_BITS_MIN;
    let min = match prefix {
        IpNet::V4(_) => v4,
        IpNet::V6(_) => v6,
    };
    prefix.prefix_len() < min
}

fn add(report: &mut Report<'_>, at: &Range<usize>, refusal: &PrefixRefusal) {
    let text = refusal.to_string();
    let (message, hint) = text.split_once("; ").unwrap_or((&text, ""));
    report.add(at, format!("prefixes: {message}"), hint);
}
