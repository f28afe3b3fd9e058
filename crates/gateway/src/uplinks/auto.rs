//! Which interfaces are uplinks by `uplinks = "auto"`.

use keiro_control::config::{
    AutoUplinks, Config, Family, FoundInterface, InterfaceLocal, Local, PATHS_MAX,
};
use keiro_linux::interface::Interface;

use super::{Network, interface_of};

/// The locals of interfaces that may become uplinks, so that their default routes are looked at.
pub(super) fn candidates(auto: &AutoUplinks, interfaces: &[Interface]) -> Vec<Local> {
    let admitted = interfaces.iter().filter(|interface| {
        !interface.loopback && !interface.addresses.is_empty() && auto.admits(&interface.name)
    });
    let local = |interface: &Interface| {
        Local::Interface(InterfaceLocal {
            interface: interface.name.clone(),
            port: auto.port,
            family: None,
        })
    };
    admitted.take(CANDIDATES_MAX).map(local).collect()
}

/// Interfaces whose routes are looked at. Ours: a machine has some hundred at most that have an address.
const CANDIDATES_MAX: usize = 1024;

/// What of a machine's interfaces concerns a configuration, which is as in its file. `before`: what was found last.
///
/// An interface that was an uplink remains one while it exists, so that its path keeps its place and its figures
/// over an outage.
pub(crate) fn found_interfaces(
    config: &Config,
    network: &Network,
    before: &[FoundInterface],
) -> Vec<FoundInterface> {
    let named = |name: &str| {
        let mut locals = config.paths.iter().map(|path| &path.local);
        locals.any(|local| local.interface() == Some(name))
    };
    let mut found = Vec::new();
    let mut interfaces: Vec<&Interface> = network.interfaces.iter().collect();
    interfaces.sort_by(|a, b| a.name.cmp(&b.name));
    for interface in interfaces {
        let was = before.iter().find(|was| was.name == interface.name);
        let was_auto = was.is_some_and(|was| was.is_auto);
        let is_named = named(&interface.name);
        let mut families = match is_named {
            true => families(|family| has_address(interface, family)),
            false => families(|family| {
                let route = (interface.index, family);
                has_address(interface, family) && network.default_routes.contains_key(&route)
            }),
        };
        if families.is_empty() {
            families = was.map(|was| was.families.clone()).unwrap_or_default();
        }
        let is_uplink = !families.is_empty() || was_auto;
        let is_auto = is_uplink && may_be_auto(config, interface, network);
        if found.len() < PATHS_MAX && (is_auto || is_named) {
            found.push(FoundInterface {
                name: interface.name.clone(),
                families,
                is_auto,
            });
        }
    }
    found
}

fn families(has: impl Fn(Family) -> bool) -> Vec<Family> {
    let both = [Family::V4, Family::V6].into_iter();
    both.filter(|family| has(*family)).collect()
}

/// Link-local addresses reach no peer.
fn has_address(interface: &Interface, family: Family) -> bool {
    let mut addresses = interface.addresses.iter();
    addresses.any(|address| {
        let is_link_local = match address.ip {
            std::net::IpAddr::V4(v4) => v4.is_link_local(),
            std::net::IpAddr::V6(v6) => v6.is_unicast_link_local(),
        };
        address.ip.is_ipv6() == (family == Family::V6) && !is_link_local
    })
}

/// Nothing in the configuration is against the interface as an uplink: no path uses it, and it is no tenant's.
fn may_be_auto(config: &Config, interface: &Interface, network: &Network) -> bool {
    let Some(auto) = &config.gateway.auto_uplinks else {
        return false;
    };
    let name = &interface.name;
    let mut locals = config.paths.iter().map(|path| &path.local);
    let is_taken = locals.any(|local| {
        let of = interface_of(local, &network.interfaces);
        of.is_some_and(|of| of.index == interface.index) || local.interface() == Some(name)
    });
    let is_of_tenant = config
        .tenants
        .iter()
        .any(|tenant| tenant.device == *name || tenant.interfaces.iter().any(|of| of == name));
    let may_be_uplink = !interface.loopback && interface.port_of.is_none();
    may_be_uplink && !is_taken && !is_of_tenant && auto.admits(name)
}

#[cfg(test)]
mod tests {
    use keiro_linux::interface::Address;

    use super::*;

    fn interface(index: u32, name: &str, address: &str) -> Interface {
        let address = Address {
            ip: address.parse().unwrap(),
            prefix_len: 24,
            peer: None,
            ready: true,
            passing: false,
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
            addresses: vec![address],
        }
    }

    fn network(interfaces: Vec<Interface>, routed: &[u32]) -> Network {
        let family = |index: &u32| {
            let of = interfaces.iter().find(|of| of.index == *index).unwrap();
            match of.addresses[0].ip.is_ipv6() {
                true => Family::V6,
                false => Family::V4,
            }
        };
        Network {
            default_routes: routed.iter().map(|i| ((*i, family(i)), None)).collect(),
            interfaces,
            ..Network::default()
        }
    }

    fn config(more: &str) -> Config {
        let text = format!("[gateway]\nname = \"a\"\nuplinks = \"auto\"\n{more}");
        Config::parse(&text, "test.toml").unwrap_or_else(|error| panic!("{error}"))
    }

    fn auto(config: &Config, network: &Network, before: &[FoundInterface]) -> Vec<String> {
        let found = found_interfaces(config, network, before);
        let auto = found.into_iter().filter(|found| found.is_auto);
        auto.map(|found| found.name).collect()
    }

    const TENANT: &str = r#"
[[peer]]
name = "b"
public_key = "VVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVU="
[[app]]
name = "ip"
class = "datagram"
peer = "b"
[tenant.blue]
id = 1
device = "blue0"
table = 101
interfaces = ["lan0"]
addresses = ["10.1.0.1/32"]
prefixes = ["10.1.0.0/16"]
[tenant.blue.peer.b]
prefixes = ["10.2.0.0/16"]
app = "ip"
"#;

    #[test]
    fn interfaces_with_a_default_route_are_uplinks_unless_they_are_something_else() {
        let interfaces = vec![
            interface(1, "lo", "127.0.0.1"),
            interface(2, "wan", "192.0.2.1"),
            interface(3, "lte0", "2001:db8::1"),
            interface(4, "eth2", "10.0.0.1"),
            interface(5, "docker0", "172.17.0.1"),
            interface(6, "blue0", "10.1.0.1"),
            interface(7, "lan0", "10.1.0.2"),
            interface(8, "ll0", "169.254.1.1"),
        ];
        let all = network(interfaces, &[1, 2, 3, 5, 6, 7, 8]);
        assert_eq!(auto(&config(TENANT), &all, &[]), ["lte0", "wan"]);
        // Paths of the file come first, by the name of the interface and by its address.
        let written = "[[path]]\nname = \"p\"\nrate = \"1Mbit\"\ninterface = \"wan\"\n\
                       [[path]]\nname = \"q\"\nrate = \"1Mbit\"\nlocal = \"[2001:db8::1]:7600\"\n";
        let written = config(&format!("{TENANT}{written}"));
        assert_eq!(auto(&written, &all, &[]), [] as [&str; 0]);
        let found = found_interfaces(&written, &all, &[]);
        assert_eq!(found.len(), 1, "the one that is named: {found:?}");
        let only = config("uplinks_exclude = [\"w*\"]\n");
        assert_eq!(
            auto(&only, &all, &[]),
            ["blue0", "docker0", "lan0", "lte0"],
            "the list replaces the default one"
        );
    }

    #[test]
    fn an_uplink_remains_one_over_an_outage_and_goes_with_its_interface() {
        let config = config("");
        let with = |routed: &[u32]| network(vec![interface(2, "wan", "192.0.2.1")], routed);
        let before = found_interfaces(&config, &with(&[2]), &[]);
        assert_eq!(before.len(), 1);
        let after = found_interfaces(&config, &with(&[]), &before);
        assert_eq!(after, before);
        let none = network(Vec::new(), &[]);
        assert_eq!(found_interfaces(&config, &none, &after), []);
        assert_eq!(found_interfaces(&config, &with(&[]), &[]), []);
    }
}
