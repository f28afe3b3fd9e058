//! What this machine has: its uplinks, and the networks behind it.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use keiro_control::config::AutoUplinks;
use keiro_linux::interface::{self, Interface};

use super::default_route::{DefaultRoute, default_routes, is_global};
use crate::failure::Failure;

/// The uplinks of this machine and the networks behind it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Machine {
    /// One for each interface and IP version with a default route, by the interfaces' names.
    pub(super) uplinks: Vec<Uplink>,
    /// Of interfaces without one, by their names.
    pub(super) lans: Vec<Lan>,
}

/// An address from which others are reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Uplink {
    pub(super) interface: String,
    pub(super) address: IpAddr,
    pub(super) mtu: u32,
}

/// A network behind this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lan {
    pub(super) interface: String,
    /// This machine's address there.
    pub(super) address: IpAddr,
    pub(super) prefix: IpNet,
}

/// Networks that are listed. Ours, as many as a site may have.
const LANS_MAX: usize = 64;

impl Machine {
    /// Looks at the interfaces, addresses and routes.
    pub(super) fn look() -> Result<Self, Failure> {
        let interfaces = interface::list().map_err(|error| {
            Failure::new("cannot list this machine's interfaces").because(error)
        })?;
        Ok(Self::of(interfaces, &default_routes()))
    }

    fn of(mut interfaces: Vec<Interface>, routes: &[DefaultRoute]) -> Self {
        interfaces.sort_by(|a, b| a.name.cmp(&b.name));
        let names = AutoUplinks::default();
        let is_ours =
            |of: &&Interface| !of.loopback && of.port_of.is_none() && names.admits(&of.name);
        let mut machine = Self::default();
        for interface in interfaces.iter().filter(is_ours) {
            match has_route(interface, routes) {
                true => machine.add_uplink(interface, routes),
                false => machine.add_lans(interface),
            }
        }
        let uplinks = machine.uplinks.clone();
        // A provider's network, reached by another interface too, is none of ours.
        let is_foreign = |lan: &Lan| {
            uplinks
                .iter()
                .any(|uplink| lan.prefix.contains(&uplink.address))
        };
        machine.lans.retain(|lan| !is_foreign(lan));
        machine.lans.truncate(LANS_MAX);
        machine
    }

    /// The networks of all interfaces that are no uplinks, without those inside of others.
    pub(super) fn prefixes(&self) -> Vec<IpNet> {
        let all: Vec<IpNet> = self.lans.iter().map(|lan| lan.prefix).collect();
        let is_inside = |one: &IpNet| all.iter().any(|of| of != one && of.contains(one));
        all.iter().filter(|one| !is_inside(one)).copied().collect()
    }

    /// An address of this machine in each IP version that `prefixes` have, as a device's.
    pub(super) fn device_addresses(&self, prefixes: &[IpNet]) -> Vec<IpNet> {
        let is_inside = |lan: &&Lan| prefixes.iter().any(|prefix| prefix.contains(&lan.address));
        let mut found: Vec<IpNet> = Vec::new();
        for lan in self.lans.iter().filter(is_inside) {
            let has_version = |of: &IpNet| of.addr().is_ipv6() == lan.address.is_ipv6();
            if !found.iter().any(has_version) {
                found.push(IpNet::from(lan.address));
            }
        }
        found
    }

    fn add_uplink(&mut self, interface: &Interface, routes: &[DefaultRoute]) {
        for v6 in [false, true] {
            let has_route = routes.iter().any(|route| route.leads(&interface.name, v6));
            let mut addresses = interface.addresses.iter();
            let address =
                addresses.find(|of| of.ip.is_ipv6() == v6 && of.ready && is_global(&of.ip));
            if let (true, true, Some(address)) = (has_route, interface.is_running(), address) {
                self.uplinks.push(Uplink {
                    interface: interface.name.clone(),
                    address: address.ip,
                    mtu: interface.mtu,
                });
            }
        }
    }

    fn add_lans(&mut self, interface: &Interface) {
        for address in interface.addresses.iter().filter(|of| !of.passing) {
            let whole = if address.ip.is_ipv6() { 128 } else { 32 };
            let prefix = IpNet::new(address.ip, address.prefix_len).map(|net| net.trunc());
            let is_network = address.peer.is_none() && address.prefix_len < whole;
            if let (true, true, Ok(prefix)) = (is_network, is_global(&address.ip), prefix)
                && !self.lans.iter().any(|lan| lan.prefix == prefix)
            {
                self.lans.push(Lan {
                    interface: interface.name.clone(),
                    address: address.ip,
                    prefix,
                });
            }
        }
    }
}

fn has_route(interface: &Interface, routes: &[DefaultRoute]) -> bool {
    let leads = |route: &DefaultRoute| {
        route.leads(&interface.name, false) || route.leads(&interface.name, true)
    };
    routes.iter().any(leads)
}

/// Whether hosts anywhere on the Internet may reach it.
pub(super) fn is_public(address: &IpAddr) -> bool {
    let is_internal = match address {
        IpAddr::V4(v4) => {
            let [a, b, ..] = v4.octets();
            // RFC 6598, between a provider and its customers.
            v4.is_private() || a == 100 && b & 0xc0 == 64 || a == 0 || a >= 240
        }
        // RFC 4193.
        IpAddr::V6(v6) => Ipv6Addr::segments(v6)[0] & 0xfe00 == 0xfc00,
    };
    is_global(address) && !is_internal
}

#[cfg(test)]
mod tests {
    use keiro_linux::interface::Address;

    use super::*;

    fn interface(index: u32, name: &str, addresses: &[&str]) -> Interface {
        let address = |text: &&str| {
            let net: IpNet = text.parse().unwrap();
            Address {
                ip: net.addr(),
                prefix_len: net.prefix_len(),
                peer: None,
                ready: true,
                passing: false,
            }
        };
        Interface {
            name: name.to_owned(),
            index,
            up: true,
            carrier: true,
            loopback: name == "lo",
            hardware: 1,
            mtu: 1500,
            port_of: None,
            addresses: addresses.iter().map(address).collect(),
        }
    }

    fn machine() -> Machine {
        let routes = [
            DefaultRoute::new("wan1", None, false),
            DefaultRoute::new("wan0", None, false),
            DefaultRoute::new("wan0", None, true),
        ];
        let port = Interface {
            port_of: Some("lan".to_owned()),
            ..interface(9, "eth9", &["10.9.0.1/24"])
        };
        let interfaces = vec![
            interface(1, "lo", &["127.0.0.1/8"]),
            interface(2, "wan1", &["198.51.100.7/24"]),
            interface(
                3,
                "wan0",
                &["192.168.1.5/24", "2001:db8::5/64", "fe80::5/64"],
            ),
            interface(4, "lan", &["10.1.0.1/24", "fd00:1::1/64", "fe80::1/64"]),
            interface(5, "lab", &["10.1.7.1/24", "10.1.8.1/32"]),
            interface(6, "docker0", &["172.17.0.1/16"]),
            interface(7, "keiro1", &["10.1.0.1/32"]),
            interface(8, "mgmt", &["192.168.1.6/24", "10.1.7.130/25"]),
            port,
        ];
        Machine::of(interfaces, &routes)
    }

    #[test]
    fn interfaces_with_a_default_route_are_uplinks_and_what_others_lead_to_is_behind() {
        let machine = machine();
        let uplinks: Vec<String> = machine
            .uplinks
            .iter()
            .map(|uplink| format!("{} {}", uplink.interface, uplink.address))
            .collect();
        assert_eq!(
            uplinks,
            ["wan0 192.168.1.5", "wan0 2001:db8::5", "wan1 198.51.100.7"]
        );
        let prefixes: Vec<String> = machine.prefixes().iter().map(IpNet::to_string).collect();
        assert_eq!(prefixes, ["10.1.7.0/24", "10.1.0.0/24", "fd00:1::/64"]);
    }

    #[test]
    fn the_device_has_an_address_of_a_network_that_is_claimed() {
        let machine = machine();
        let all = machine.device_addresses(&machine.prefixes());
        let expected: Vec<IpNet> = vec![
            "10.1.7.1/32".parse().unwrap(),
            "fd00:1::1/128".parse().unwrap(),
        ];
        assert_eq!(all, expected);
        let elsewhere = ["10.77.0.0/16".parse().unwrap()];
        assert_eq!(machine.device_addresses(&elsewhere), []);
    }

    #[test]
    fn public_addresses_are_those_that_the_internet_routes() {
        for (address, expected) in [
            ("203.0.113.1", true),
            ("2001:db8::1", true),
            ("10.0.0.1", false),
            ("172.31.0.1", false),
            ("192.168.0.1", false),
            ("100.64.0.1", false),
            ("100.128.0.1", true),
            ("169.254.0.1", false),
            ("127.0.0.1", false),
            ("fd00::1", false),
            ("fe80::1", false),
            ("224.0.0.1", false),
        ] {
            assert_eq!(is_public(&address.parse().unwrap()), expected, "{address}");
        }
    }
}
