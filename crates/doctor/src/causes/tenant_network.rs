//! Tenants and the machine's own networks, routes and forwarding.

use ipnet::IpNet;
use keiro_control::config::{Conflict, PrefixOwner, Withheld};

use super::Cause;
use crate::{
    Found, Subject,
    facts::{Lan, RouteLookup, Tenant, TenantPeer, VERSIONS},
};

/// Packets from peers after which hosts should have answered. Ours.
const UNANSWERED_MIN: u64 = 10;

pub(super) static PREFIX_WITHHELD: Cause = Cause {
    id: "prefix_withheld",
    what: "a network of another site is not routed into the tunnel, because the machine needs its addresses: for an uplink, \
           a router, a resolver or the hub",
    remedy: "other addresses at one of the two ends; both are named",
    check: |facts, _| {
        let mut found = Vec::new();
        for tenant in &facts.tenants {
            for withheld in &tenant.withheld {
                let Withheld {
                    prefix,
                    owner,
                    conflict,
                    ..
                } = withheld;
                found.push(PREFIX_WITHHELD.found(
                    subject(tenant),
                    format!("{prefix} of {owner} is not routed, since {conflict}"),
                    other_addresses(owner, conflict),
                ));
            }
        }
        found
    },
};

/// What ends the conflict.
fn other_addresses(owner: &PrefixOwner, conflict: &Conflict) -> String {
    match conflict {
        Conflict::Uplink { interface, .. } => {
            format!(
                "give the network at the router of {interface}, or that of {owner}, other addresses"
            )
        }
        Conflict::Interface { interface } => {
            format!("give the network of {interface}, or that of {owner}, other addresses")
        }
        Conflict::Resolver { .. } => format!(
            "name another resolver in /etc/resolv.conf, or let {owner} have a smaller prefix in the hub's registry"
        ),
        Conflict::Router { .. } | Conflict::Hub { .. } => {
            format!("let {owner} have a smaller prefix in the hub's registry")
        }
    }
}

pub(super) static LAN_OVERLAPS_PEER: Cause = Cause {
    id: "lan_overlaps_peer",
    what: "the network of a LAN is the network behind a peer, so that hosts look for its hosts on their own link",
    remedy: "another network for one of the two sites, or other addresses for it (`map` in [tenant.NAME])",
    check: |facts, _| {
        let mut found = Vec::new();
        for tenant in &facts.tenants {
            for lan in &tenant.lans {
                let Some((network, peer, prefix)) = around(&lan.networks, tenant) else {
                    continue;
                };
                found.push(LAN_OVERLAPS_PEER.found(
                    subject(tenant),
                    format!(
                        "hosts at {} look for {prefix} of {} on their own link, which is {network}",
                        lan.interface, peer.peer
                    ),
                    format!(
                        "give {} or the network behind {} other addresses, or map one of them: `map` in [tenant.{}]",
                        lan.interface, peer.peer, tenant.name
                    ),
                ));
            }
        }
        found
    },
};

pub(super) static UPLINK_OVERLAPS_PEER: Cause = Cause {
    id: "uplink_overlaps_peer",
    what: "the network of an uplink has the addresses of a network behind a peer, so that packets leave by the uplink",
    remedy: "a routing table of its own for the tenant (`table`), or another network at the uplink's router",
    check: |facts, _| {
        let mut found = Vec::new();
        for tenant in facts.tenants.iter().filter(|tenant| !tenant.has_table) {
            for uplink in &facts.uplinks {
                let Some((network, peer, prefix)) = around(&uplink.networks, tenant) else {
                    continue;
                };
                let interface = uplink.interface.as_deref().unwrap_or(&uplink.path);
                found.push(UPLINK_OVERLAPS_PEER.found(
                    subject(tenant),
                    format!(
                        "packets to {prefix} of {} leave by {interface}, whose own network is {network}",
                        peer.peer
                    ),
                    format!(
                        "give the tenant a table (`table = 101` and `interfaces` in [tenant.{}]), or change the network at \
                         the router of {interface}",
                        tenant.name
                    ),
                ));
            }
        }
        found
    },
};

pub(super) static FORWARDING_OFF: Cause = Cause {
    id: "forwarding_off",
    what: "the kernel does not forward between a LAN and the device of a tenant",
    remedy: "`sysctl -w net.ipv4.conf.INTERFACE.forwarding=1`, in IPv6 `net.ipv6.conf.all.forwarding=1`",
    check: |facts, _| {
        let mut found = Vec::new();
        for tenant in &facts.tenants {
            for version in [0, 1] {
                if !tenant.uses(version) {
                    continue;
                }
                let Some((interfaces, command)) = not_forwarding(tenant, version) else {
                    continue;
                };
                let ip = if version == 0 { "IPv4" } else { "IPv6" };
                found.push(FORWARDING_OFF.found(
                    subject(tenant),
                    format!(
                        "the kernel does not forward {ip} packets that come in by {interfaces}"
                    ),
                    format!("`{command}`, and the same in /etc/sysctl.d"),
                ));
            }
        }
        found
    },
};

pub(super) static ROUTED_ELSEWHERE: Cause = Cause {
    id: "routed_elsewhere",
    what: "another route or rule, of another VPN for example, leads packets to a peer's network past the tunnel",
    remedy: "that route or rule; `ip rule` and `ip route get` show it",
    check: |facts, found| {
        let mut all = Vec::new();
        for tenant in &facts.tenants {
            if overlaps_found(found, tenant) {
                continue;
            }
            for of in &tenant.peers {
                let elsewhere = of.routes.iter().find_map(|(prefix, way)| match way {
                    RouteLookup::Interface(by) if *by != tenant.device => Some((prefix, by)),
                    _ => None,
                });
                let Some((prefix, by)) = elsewhere else {
                    continue;
                };
                let (rule, remedy) = match of.foreign_rules.first() {
                    Some(rule) => (
                        format!("; before the tenant's own stands `{rule}`"),
                        format!(
                            "remove that rule or give it a priority above 7602: `ip rule`; packets to {prefix} must leave by {}",
                            tenant.device
                        ),
                    ),
                    None => (
                        String::new(),
                        format!(
                            "remove the other route: `ip route show match {prefix}` names it; packets must leave by {}",
                            tenant.device
                        ),
                    ),
                };
                all.push(ROUTED_ELSEWHERE.found(
                    subject(tenant),
                    format!(
                        "packets to {prefix} of {} leave by {by} and not by {}{rule}",
                        of.peer, tenant.device
                    ),
                    remedy,
                ));
            }
        }
        all
    },
};

pub(super) static NO_ANSWERS: Cause = Cause {
    id: "no_answers",
    what: "packets of peers reach a tenant's hosts, and none has sent any: they have another default gateway",
    remedy: "a route to the peers' networks by this machine at the LAN's router",
    check: |facts, found| {
        let silent = facts.tenants.iter().filter(|tenant| {
            tenant.egress_packets >= UNANSWERED_MIN
                && tenant.ingress_packets == 0
                && !tenant.lans.is_empty()
                && !found.has(&subject(tenant))
        });
        let of = |tenant: &Tenant| {
            let prefixes: Vec<String> = prefixes(tenant)
                .map(|(_, prefix)| prefix.to_string())
                .collect();
            NO_ANSWERS.found(
                subject(tenant),
                format!(
                    "{} packets of peers have reached its hosts, and no packet of a host has come: they answer by another \
                     gateway, or drop what comes",
                    tenant.egress_packets
                ),
                format!("at the router of the LAN add a route to {} by this machine", prefixes.join(", ")),
            )
        };
        silent.map(of).collect()
    },
};

fn subject(tenant: &Tenant) -> Subject {
    Subject::Tenant(tenant.name.clone())
}

fn prefixes(tenant: &Tenant) -> impl Iterator<Item = (&TenantPeer, &IpNet)> {
    let peers = tenant.peers.iter();
    peers.flat_map(|peer| peer.prefixes.iter().map(move |prefix| (peer, prefix)))
}

/// One of these networks that has all addresses of a prefix behind a peer.
fn around<'a>(
    networks: &'a [IpNet],
    tenant: &'a Tenant,
) -> Option<(&'a IpNet, &'a TenantPeer, &'a IpNet)> {
    prefixes(tenant).find_map(|(peer, prefix)| {
        let network = networks.iter().find(|network| network.contains(prefix))?;
        Some((network, peer, prefix))
    })
}

/// The interfaces that do not forward, and what makes them; `None`: all do, or are not known.
fn not_forwarding(tenant: &Tenant, version: usize) -> Option<(String, String)> {
    let lans = tenant.lans.iter();
    let lans = lans.map(|lan: &Lan| (lan.interface.as_str(), lan.forwards[version]));
    let device = (tenant.device.as_str(), tenant.device_forwards[version]);
    // A tenant without hosts behind it forwards nothing.
    if tenant.lans.is_empty() {
        return None;
    }
    let all = lans.chain([device]);
    let off: Vec<&str> = all
        .filter(|(_, forwards)| *forwards == Some(false))
        .map(|(interface, _)| interface)
        .collect();
    let (first, interfaces) = (off.first()?, off.join(" and "));
    let command = match (version, off.len()) {
        (1, _) => "sysctl -w net.ipv6.conf.all.forwarding=1".to_owned(),
        (_, 1) => format!(
            "sysctl -w net.{}.conf.{first}.forwarding=1",
            VERSIONS[version]
        ),
        _ => "sysctl -w net.ipv4.ip_forward=1".to_owned(),
    };
    Some((interfaces, command))
}

fn overlaps_found(found: &Found, tenant: &Tenant) -> bool {
    let overlaps = [LAN_OVERLAPS_PEER.id, UPLINK_OVERLAPS_PEER.id];
    let of_tenant = found.0.iter().filter(|one| one.subject == subject(tenant));
    of_tenant
        .into_iter()
        .any(|one| overlaps.contains(&one.cause))
}
