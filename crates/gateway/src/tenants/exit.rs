//! Exits to the Internet: where this machine leads, and the rules of nftables that translate addresses there.
//!
//! What is not the Internet's is refused by the data thread, before the kernel sees it. The kernel's own routes and
//! connection tracking do the rest.

use std::fmt::Write;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use keiro_control::config::{Config, Exit, ExitIpv6, PortForward, Tenant};
use keiro_linux::{interface::Interface, nft, route::RouteWatch, uplink::UplinkSocket};

use crate::{data::tunnels::ExitSetup, uplinks::connected};

/// Follows where the machine's default routes lead.
#[derive(Default)]
pub(super) struct ExitGround {
    socket: Option<UplinkSocket>,
    /// `None` where the kernel reports no changes, and until there is an exit.
    watch: Option<RouteWatch>,
    found: ExitSetup,
}

/// Names of tables begin so, and the tenant's number follows.
pub(super) const TABLE: &str = "keiro-exit-";

/// Networks of no host in the Internet (RFC 6890): private, shared, link-local, loopback, multicast and reserved.
const NOT_INTERNET_V4: [([u8; 4], u8); 12] = [
    ([0, 0, 0, 0], 8),
    ([10, 0, 0, 0], 8),
    ([100, 64, 0, 0], 10),
    ([127, 0, 0, 0], 8),
    ([169, 254, 0, 0], 16),
    ([172, 16, 0, 0], 12),
    ([192, 0, 0, 0], 24),
    ([192, 168, 0, 0], 16),
    ([198, 18, 0, 0], 15),
    ([224, 0, 0, 0], 4),
    ([240, 0, 0, 0], 4),
    ([255, 255, 255, 255], 32),
];
/// Unspecified, loopback and addresses that stand for IPv4's; unique local, link-local, multicast.
const NOT_INTERNET_V6: [([u16; 8], u8); 5] = [
    ([0, 0, 0, 0, 0, 0, 0, 0], 80),
    ([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 32),
    ([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7),
    ([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10),
    ([0xff00, 0, 0, 0, 0, 0, 0, 0], 8),
];
/// Addresses and networks of the machine that are refused. Ours: machines have some ten.
const OF_MACHINE_MAX: usize = 4096;

impl ExitGround {
    /// What is known of the machine; `None`: `tenant` is no exit.
    pub(super) fn setup_of(&self, tenant: &Tenant) -> Option<ExitSetup> {
        tenant.exit.as_ref()?;
        let behind = tenant.peers.iter().flat_map(|of| &of.prefixes);
        let near: Vec<&IpNet> = tenant
            .prefixes
            .iter()
            .chain(behind)
            .filter(|prefix| prefix.prefix_len() > 0)
            .collect();
        let mut setup = self.found.clone();
        setup
            .refused
            .retain(|refused| !near.iter().any(|prefix| prefix.contains(refused)));
        Some(setup)
    }

    /// Looks at the machine again if something may have changed; whether it has.
    pub(super) fn follow(&mut self, config: &Config) -> bool {
        if !config.tenants.iter().any(|tenant| tenant.exit.is_some()) {
            *self = Self::default();
            return false;
        }
        let is_new = self.socket.is_none();
        // What cannot be heard is looked at.
        let changed = self
            .watch
            .as_mut()
            .is_none_or(|watch| watch.changed().unwrap_or(true));
        (is_new || changed) && self.look(config)
    }

    /// Whether it has changed.
    pub(super) fn look(&mut self, config: &Config) -> bool {
        if self.socket.is_none() {
            self.watch = RouteWatch::open().ok();
            self.socket = UplinkSocket::open().ok();
        }
        let Some(socket) = &mut self.socket else {
            return false;
        };
        let found = match found(socket, config) {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(%error, "default routes");
                return false;
            }
        };
        let is_changed = self.found != found;
        self.found = found;
        is_changed
    }
}

fn found(socket: &mut UplinkSocket, config: &Config) -> std::io::Result<ExitSetup> {
    let mut setup = ExitSetup {
        v4: socket.default_route(None, false)?.is_some(),
        v6: socket.default_route(None, true)?.is_some(),
        refused: not_internet(),
    };
    let is_device = |name: &str| config.tenants.iter().any(|tenant| tenant.device == name);
    for interface in socket.interfaces()? {
        if interface.loopback || is_device(&interface.name) {
            continue;
        }
        let leads = |socket: &mut UplinkSocket, v6| socket.default_route(Some(interface.index), v6);
        let is_uplink = leads(socket, false)?.is_some() || leads(socket, true)?.is_some();
        setup.refused.extend(of_machine(&interface, is_uplink));
        if setup.refused.len() >= OF_MACHINE_MAX {
            break;
        }
    }
    setup.refused.sort();
    setup.refused.dedup();
    Ok(setup)
}

/// The machine's own addresses, and the networks of its other links.
fn of_machine(interface: &Interface, is_uplink: bool) -> Vec<IpNet> {
    let own = interface
        .addresses
        .iter()
        .map(|address| IpNet::from(address.ip));
    let networks = connected(interface).filter(|_| !is_uplink);
    own.chain(networks).collect()
}

fn not_internet() -> Vec<IpNet> {
    let v4 = NOT_INTERNET_V4.map(|(address, bits)| Ipv4Net::new_assert(address.into(), bits));
    let v6 = NOT_INTERNET_V6.map(|(address, bits)| Ipv6Net::new_assert(address.into(), bits));
    let v4 = v4.into_iter().map(IpNet::V4);
    v4.chain(v6.into_iter().map(IpNet::V6)).collect()
}

pub(super) fn table(tenant: &Tenant) -> String {
    format!("{TABLE}{}", tenant.id)
}

/// A script that puts the tables of an exit in the place of older ones.
pub(super) fn rules(tenant: &Tenant, exit: &Exit) -> String {
    let name = table(tenant);
    let mut script = nft::removal(&name);
    for family in nft::IP_FAMILIES {
        let is_v4 = family == "ip";
        let forwards = exit.port_forwards.iter();
        let (mut arriving, mut leaving) = (String::new(), String::new());
        for forward in forwards.filter(|forward| forward.to.is_ipv4() == is_v4) {
            let (translated, source) = forward_rules(tenant, forward, family);
            arriving.push_str(&translated);
            leaving.push_str(&source);
        }
        if is_v4 || exit.ipv6 == ExitIpv6::Nat {
            leaving.push_str(&masquerade(tenant, family, is_v4));
        }
        let _ = write!(
            script,
            "table {family} {name} {{\n  chain arriving {{\n    type nat hook prerouting priority dstnat; policy accept;\n\
             {arriving}  }}\n  chain leaving {{\n    type nat hook postrouting priority srcnat; policy accept;\n\
             {leaving}  }}\n}}\n"
        );
    }
    script
}

/// From the tunnel to the Internet. Networks behind this gateway see the sites' own addresses.
fn masquerade(tenant: &Tenant, family: &str, is_v4: bool) -> String {
    let device = &tenant.device;
    let own = tenant.prefixes.iter();
    let own: Vec<String> = own
        .filter(|prefix| prefix.addr().is_ipv4() == is_v4 && prefix.prefix_len() > 0)
        .map(ToString::to_string)
        .collect();
    let elsewhere = match own.is_empty() {
        true => String::new(),
        false => format!(" {family} daddr != {{ {} }}", own.join(", ")),
    };
    format!("    iifname \"{device}\" oifname != \"{device}\"{elsewhere} masquerade\n")
}

/// The rule of a port forward, and that of its clients' addresses.
fn forward_rules(tenant: &Tenant, forward: &PortForward, family: &str) -> (String, String) {
    let device = &tenant.device;
    let PortForward {
        protocol, port, to, ..
    } = forward;
    let protocol = protocol.as_str();
    let arriving = format!(
        "    iifname != \"{device}\" fib daddr type local {protocol} dport {port} dnat to {to}\n"
    );
    let leaving = match forward.keeps_source {
        true => String::new(),
        false => format!(
            "    oifname \"{device}\" ct status dnat {family} daddr {} {protocol} dport {} masquerade\n",
            to.ip(),
            to.port()
        ),
    };
    (arriving, leaving)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_to_the_internet_get_the_exits_address_and_ports_lead_to_sites() {
        let text = "[gateway]\nname = \"a\"\n[[path]]\nname = \"wan\"\ninterface = \"eth0\"\n[network]\nregistry = \"/r\"\n\
                    [tenant.office]\nid = 7\ndevice = \"t-office\"\naddresses = [\"10.0.0.1/32\"]\n\
                    prefixes = [\"10.0.0.0/24\", \"fd00::/64\"]\nexit = true\n\
                    [tenant.office.port_forward.web]\nport = 8443\nto = \"10.1.0.10:443\"\n\
                    [tenant.office.port_forward.dns]\nprotocol = \"udp\"\nto = \"[fd01::53]:53\"\nkeep_source = true\n";
        let config = Config::parse(text, "f").unwrap_or_else(|error| panic!("{error}"));
        let tenant = &config.tenants[0];
        let mut exit = tenant.exit.clone().expect("it is one");
        let found = rules(tenant, &exit);
        for line in [
            "iifname \"t-office\" oifname != \"t-office\" ip daddr != { 10.0.0.0/24 } masquerade",
            "iifname \"t-office\" oifname != \"t-office\" ip6 daddr != { fd00::/64 } masquerade",
            "iifname != \"t-office\" fib daddr type local tcp dport 8443 dnat to 10.1.0.10:443",
            "oifname \"t-office\" ct status dnat ip daddr 10.1.0.10 tcp dport 443 masquerade",
            "iifname != \"t-office\" fib daddr type local udp dport 53 dnat to [fd01::53]:53",
            "delete table ip6 keiro-exit-7",
        ] {
            assert_eq!(found.matches(line).count(), 1, "{line}:\n{found}");
        }
        assert!(!found.contains("daddr fd01::53"), "{found}");
        exit.ipv6 = ExitIpv6::Routed;
        assert!(!rules(tenant, &exit).contains("ip6 daddr != {"));
    }
}
