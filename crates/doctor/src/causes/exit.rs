//! Exits to the Internet: what their machine needs, and what those who use them miss.

use super::Cause;
use crate::{
    Facts, Finding, Subject,
    facts::{Exit, Tenant, VERSIONS},
};

/// The tenants that are exits.
fn exits(facts: &Facts) -> impl Iterator<Item = (&Tenant, &Exit)> {
    let tenants = facts.tenants.iter();
    tenants.filter_map(|tenant| Some((tenant, tenant.exit.as_ref()?)))
}

pub(super) static EXIT_WITHOUT_DEFAULT_ROUTE: Cause = Cause {
    id: "exit_without_default_route",
    what: "a tenant is an exit to the Internet, and the machine has no default route in the main table",
    remedy: "a default route, in IPv6 `net.ipv6.conf.UPLINK.accept_ra=2`; or no `exit`",
    check: |facts, _| {
        let without = exits(facts).filter(|(_, exit)| exit.uplinks.iter().all(Vec::is_empty));
        without
            .map(|(tenant, _)| {
                EXIT_WITHOUT_DEFAULT_ROUTE.found(
                    Subject::Tenant(tenant.name.clone()),
                    "other sites are led to the Internet by this machine, which has no default route itself",
                    "give it one: `ip route show default`; or remove `exit = true`",
                )
            })
            .collect()
    },
};

pub(super) static EXIT_NOT_FORWARDING: Cause = Cause {
    id: "exit_not_forwarding",
    what: "the kernel of an exit's machine does not forward between the device of the tenant and the Internet",
    remedy: "`sysctl -w net.ipv4.ip_forward=1`, in IPv6 `net.ipv6.conf.all.forwarding=1`",
    check: |facts, _| {
        let mut found = Vec::new();
        for tenant in &facts.tenants {
            for version in [0, 1] {
                let uplinks = tenant.exit.iter().flat_map(|exit| &exit.uplinks[version]);
                let uplinks: Vec<_> = uplinks.collect();
                // Without a default route nothing is forwarded anyhow.
                if uplinks.is_empty() {
                    continue;
                }
                let device = (&tenant.device, tenant.device_forwards[version]);
                let all = uplinks
                    .into_iter()
                    .map(|(name, forwards)| (name, *forwards));
                let off = all
                    .chain([device])
                    .filter(|(_, forwards)| *forwards == Some(false));
                let off: Vec<&str> = off.map(|(name, _)| name.as_str()).collect();
                if !off.is_empty() {
                    found.push(not_forwarding(
                        tenant.name.clone(),
                        version,
                        &off.join(" and "),
                    ));
                }
            }
        }
        found
    },
};

fn not_forwarding(tenant: String, version: usize, interfaces: &str) -> Finding {
    let (ip, command) = match VERSIONS[version] {
        "ipv4" => ("IPv4", "sysctl -w net.ipv4.ip_forward=1"),
        _ => ("IPv6", "sysctl -w net.ipv6.conf.all.forwarding=1"),
    };
    EXIT_NOT_FORWARDING.found(
        Subject::Tenant(tenant),
        format!("the kernel does not forward {ip} packets that come in by {interfaces}, so other sites do not reach the Internet"),
        format!("`{command}`, and the same in /etc/sysctl.d"),
    )
}

pub(super) static EXIT_RULES_MISSING: Cause = Cause {
    id: "exit_rules_missing",
    what: "the rules of nftables that an exit needs are not in place",
    remedy: "the program `nft` (package nftables), and a kernel with nf_tables and nft_nat",
    check: |facts, _| {
        let missing = exits(facts).filter_map(|(tenant, exit)| {
            let why = exit.rules_problem.as_ref()?;
            Some(EXIT_RULES_MISSING.found(
                Subject::Tenant(tenant.name.clone()),
                format!("other sites do not reach the Internet by this machine: {why}"),
                "install the package nftables; `nft list tables` must work",
            ))
        });
        missing.collect()
    },
};

pub(super) static EXIT_NOT_OFFERED: Cause = Cause {
    id: "exit_not_offered",
    what: "the peer by which a tenant's packets are to reach the Internet is no exit",
    remedy: "`exit = true` in the tenant at that gateway, or no [tenant.NAME.internet] here",
    check: |facts, _| {
        let without = facts.tenants.iter().filter_map(|tenant| {
            let via = tenant.exit_not_offered_by.as_ref()?;
            Some(EXIT_NOT_OFFERED.found(
                Subject::Tenant(tenant.name.clone()),
                format!("packets to the Internet are to leave by {via}, which offers no exit"),
                format!("write `exit = true` in the tenant at {via} and reload it, or remove [tenant.{}.internet]", tenant.name),
            ))
        });
        without.collect()
    },
};
