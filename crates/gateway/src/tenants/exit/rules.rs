//! The table of nftables of an exit: what it lets pass, where ports lead, and which addresses packets leave with.
//!
//! Nothing passes that is not named here. From the tunnel that is the networks behind this gateway, and the uplinks;
//! into the tunnel it is answers, port forwards, and what those networks send.

use std::{collections::BTreeSet, fmt::Write};

use keiro_control::config::{Config, Exit, ExitIpv6, PortForward, Tenant};
use keiro_linux::nft;

use crate::tenants::split::MARK;

/// Interfaces with a default route in IPv4 and in IPv6.
pub(in crate::tenants) type Uplinks = [BTreeSet<String>; 2];

/// Names of tables begin so, and the tenant's number follows.
pub(in crate::tenants) const TABLE: &str = "keiro-exit-";

pub(in crate::tenants) fn table(tenant: &Tenant) -> String {
    format!("{TABLE}{}", tenant.id)
}

/// What the rules of one IP version have in common.
struct Family<'a> {
    /// As nft calls it.
    name: &'static str,
    device: &'a str,
    /// Devices of all tenants, this one's too.
    devices: String,
    /// Networks behind this gateway; `None`: there are none.
    own: Option<String>,
    /// `None`: there is no default route.
    uplinks: Option<String>,
    forwards: Vec<&'a PortForward>,
    translates: bool,
    /// TCP connections are split: the machine takes what the gateway writes to the device for it.
    splits_tcp: bool,
}

/// A script that puts the tables of an exit in the place of older ones.
pub(in crate::tenants) fn rules(
    config: &Config,
    tenant: &Tenant,
    exit: &Exit,
    uplinks: &Uplinks,
) -> String {
    let name = table(tenant);
    let mut script = nft::removal(&name);
    for (family, uplinks) in nft::IP_FAMILIES.into_iter().zip(uplinks) {
        let is_v4 = family == "ip";
        let own = tenant.prefixes.iter();
        let own = own.filter(|prefix| prefix.addr().is_ipv4() == is_v4);
        let forwards = exit.port_forwards.iter();
        let family = Family {
            name: family,
            device: &tenant.device,
            devices: quoted(config.tenants.iter().map(|of| &of.device)).unwrap_or_default(),
            own: set(own.map(ToString::to_string)),
            uplinks: quoted(uplinks.iter()),
            forwards: forwards
                .filter(|forward| forward.to.is_ipv4() == is_v4)
                .collect(),
            translates: is_v4 || exit.ipv6 == ExitIpv6::Nat,
            splits_tcp: tenant.splits_tcp(),
        };
        let chains = [
            (
                "reaching",
                "filter hook input priority filter",
                family.reaching(),
            ),
            (
                "passing",
                "filter hook forward priority filter",
                family.passing(),
            ),
            (
                "arriving",
                "nat hook prerouting priority dstnat",
                family.arriving(),
            ),
            (
                "leaving",
                "nat hook postrouting priority srcnat",
                family.leaving(),
            ),
            (
                "left",
                "filter hook postrouting priority srcnat + 10",
                family.left(),
            ),
        ];
        let _ = writeln!(script, "table {} {name} {{", family.name);
        for (chain, hook, rules) in chains {
            let _ = writeln!(
                script,
                "  chain {chain} {{\n    type {hook}; policy accept;"
            );
            for rule in rules {
                let _ = writeln!(script, "    {rule}");
            }
            script.push_str("  }\n");
        }
        script.push_str("}\n");
    }
    script
}

impl Family<'_> {
    /// The machine itself is reached by its addresses in the tenant's networks.
    fn reaching(&self) -> Vec<String> {
        let Self { name, device, .. } = self;
        let but = self.own.iter().map(|own| format!(" {name} daddr != {own}"));
        let but: String = but.collect();
        let marked = match self.splits_tcp {
            true => format!(" meta mark != {MARK:#x}"),
            false => String::new(),
        };
        vec![format!("iifname \"{device}\"{marked}{but} counter drop")]
    }

    fn passing(&self) -> Vec<String> {
        let Self { name, device, .. } = self;
        let mut rules: Vec<String> = self
            .forwards
            .iter()
            .map(|forward| {
                let at = self.host(forward);
                format!("ct status dnat {at} oifname != \"{device}\" counter drop")
            })
            .collect();
        rules.push(format!(
            "iifname \"{device}\" ct state established,related accept"
        ));
        if let Some(own) = &self.own {
            rules.push(format!("iifname \"{device}\" {name} daddr {own} accept"));
        }
        if let Some(uplinks) = &self.uplinks {
            rules.push(format!("iifname \"{device}\" oifname {uplinks} accept"));
        }
        rules.push(format!("iifname \"{device}\" counter drop"));
        rules.push(format!(
            "oifname \"{device}\" ct state established,related accept"
        ));
        rules.push(format!("oifname \"{device}\" ct status dnat accept"));
        if let Some(own) = &self.own {
            rules.push(format!("oifname \"{device}\" {name} saddr {own} accept"));
        }
        rules.push(format!("oifname \"{device}\" counter drop"));
        rules
    }

    fn arriving(&self) -> Vec<String> {
        let rule = |forward: &&PortForward| {
            let PortForward {
                protocol, port, to, ..
            } = forward;
            format!(
                "iifname != {} fib daddr type local {} dport {port} dnat to {to}",
                self.devices,
                protocol.as_str()
            )
        };
        self.forwards.iter().map(rule).collect()
    }

    /// Networks behind this gateway see the sites' own addresses.
    fn leaving(&self) -> Vec<String> {
        let Self { name, device, .. } = self;
        let hidden = self.forwards.iter().filter(|of| !of.keeps_source);
        let mut rules: Vec<String> = hidden
            .map(|forward| {
                let at = self.host(forward);
                format!("oifname \"{device}\" ct status dnat {at} masquerade")
            })
            .collect();
        if self.translates {
            let but = self.own.iter().map(|own| format!(" {name} daddr != {own}"));
            let but: String = but.collect();
            rules.push(format!(
                "iifname \"{device}\" oifname != \"{device}\"{but} masquerade"
            ));
        }
        rules
    }

    /// Nothing leaves with a site's own address, as invalid packets of connections would.
    fn left(&self) -> Vec<String> {
        let Self { name, device, .. } = self;
        let (true, Some(uplinks)) = (self.translates, &self.uplinks) else {
            return Vec::new();
        };
        let but = self.own.iter().map(|own| format!(" {name} daddr != {own}"));
        let but: String = but.collect();
        vec![format!(
            "iifname \"{device}\" oifname {uplinks}{but} ct status & (snat | dnat) == 0 counter drop"
        )]
    }

    /// Packets to the host of a port forward.
    fn host(&self, forward: &PortForward) -> String {
        let PortForward { protocol, to, .. } = forward;
        format!(
            "{} daddr {} {} dport {}",
            self.name,
            to.ip(),
            protocol.as_str(),
            to.port()
        )
    }
}

fn quoted<'a>(names: impl Iterator<Item = &'a String>) -> Option<String> {
    set(names.map(|name| format!("\"{name}\"")))
}

/// `None` of nothing: nft has no empty set.
fn set(elements: impl Iterator<Item = String>) -> Option<String> {
    let elements: Vec<String> = elements.collect();
    (!elements.is_empty()).then(|| format!("{{ {} }}", elements.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_to_the_internet_get_the_exits_address_and_ports_lead_to_sites() {
        let text = "[gateway]\nname = \"a\"\n[[path]]\nname = \"wan\"\ninterface = \"eth0\"\n[network]\nregistry = \"/r\"\n\
                    [tenant.office]\nid = 7\ndevice = \"t-office\"\naddresses = [\"10.0.0.1/32\"]\n\
                    prefixes = [\"10.0.0.0/24\"]\nexit = true\n\
                    [tenant.office.port_forward.web]\nport = 8443\nto = \"10.1.0.10:443\"\n\
                    [tenant.office.port_forward.dns]\nprotocol = \"udp\"\nto = \"[fd01::53]:53\"\nkeep_source = true\n\
                    [tenant.red]\nid = 8\ndevice = \"t-red\"\nprefixes = [\"10.9.0.0/24\"]\n";
        let config = Config::parse(text, "f").unwrap_or_else(|error| panic!("{error}"));
        let tenant = &config.tenants[0];
        let mut exit = tenant.exit.clone().expect("it is one");
        let uplinks = [BTreeSet::from(["eth0".to_owned()]), BTreeSet::new()];
        let found = rules(&config, tenant, &exit, &uplinks);
        for (line, count) in [
            (
                "iifname \"t-office\" ip daddr != { 10.0.0.0/24 } counter drop",
                1,
            ),
            ("    iifname \"t-office\" counter drop", 3),
            ("iifname \"t-office\" oifname { \"eth0\" } accept", 1),
            (
                "oifname \"t-office\" ip saddr { 10.0.0.0/24 } accept\n    oifname \"t-office\" counter drop",
                1,
            ),
            (
                "iifname \"t-office\" oifname != \"t-office\" ip daddr != { 10.0.0.0/24 } masquerade",
                1,
            ),
            ("iifname \"t-office\" oifname != \"t-office\" masquerade", 1),
            (
                "ip daddr != { 10.0.0.0/24 } ct status & (snat | dnat) == 0 counter drop",
                1,
            ),
            (
                "iifname != { \"t-office\", \"t-red\" } fib daddr type local tcp dport 8443 dnat to 10.1.0.10:443",
                1,
            ),
            (
                "ct status dnat ip daddr 10.1.0.10 tcp dport 443 oifname != \"t-office\" counter drop",
                1,
            ),
            (
                "oifname \"t-office\" ct status dnat ip daddr 10.1.0.10 tcp dport 443 masquerade",
                1,
            ),
            ("fib daddr type local udp dport 53 dnat to [fd01::53]:53", 1),
            ("oifname \"t-office\" ct status dnat ip6 daddr fd01::53", 0),
            ("delete table ip6 keiro-exit-7", 1),
        ] {
            assert_eq!(found.matches(line).count(), count, "{line}:\n{found}");
        }
        exit.ipv6 = ExitIpv6::Routed;
        let routed = rules(&config, tenant, &exit, &uplinks);
        assert!(!routed.contains("oifname != \"t-office\" masquerade"));
    }
}
