//! The tables of a network that `keiro init --hub` and `keiro join` write behind [`Template`](super::Template).

use std::{fmt::Write, path::PathBuf};

use ipnet::IpNet;

use super::{Mapping, Name, PeerEndpoint, template::quoted};
use crate::key::PublicKey;

/// A gateway's part in a network.
#[derive(Clone, Debug, PartialEq)]
pub enum NetworkTemplate {
    Hub {
        registry: PathBuf,
        /// Where branches reach it.
        endpoints: Vec<PeerEndpoint>,
        tenant: TenantTemplate,
    },
    /// A branch or the second hub.
    Member {
        hub: Name,
        is_second_hub: bool,
        public_key: PublicKey,
        preshared_key_file: PathBuf,
        endpoints: Vec<PeerEndpoint>,
        tenant: TenantTemplate,
    },
}

/// The tenant of the network's packets.
#[derive(Clone, Debug, PartialEq)]
pub struct TenantTemplate {
    pub name: Name,
    pub id: u32,
    /// Addresses of the device; may be empty.
    pub addresses: Vec<IpNet>,
    /// Networks behind this gateway, as others reach them.
    pub prefixes: Vec<IpNet>,
    /// Those that have other addresses themselves.
    pub map: Vec<Mapping>,
}

impl NetworkTemplate {
    /// The tables' text, to be written behind a [`Template`](super::Template).
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = match self {
            Self::Hub {
                registry,
                endpoints,
                tenant,
            } => write!(
                text,
                "\n# This gateway is the hub of a network: `keiro invite NAME` invites a branch, and the registry has \
                 them\n# all (docs/network.md). Branches reach the hub at `endpoint`.\n[network]\nregistry = {}\n\
                 endpoint = {}\n{}",
                quoted(&registry.display().to_string()),
                list(endpoints),
                tenant.render()
            ),
            Self::Member {
                hub,
                is_second_hub,
                public_key,
                preshared_key_file,
                endpoints,
                tenant,
            } => write!(
                text,
                "\n# This gateway is {}\n# (docs/network.md).\n[network]\n{} = \"{hub}\"\n\n[[peer]]\n\
                 name = \"{hub}\"\npublic_key = \"{public_key}\"\npreshared_key_file = {}\nendpoint = {}\n{}",
                match is_second_hub {
                    true =>
                        "the second hub of a network. It has a copy of the first hub's registry",
                    false =>
                        "a branch of a network. What there is at the other sites it learns from its hub",
                },
                match is_second_hub {
                    true => "first_hub",
                    false => "hub",
                },
                quoted(&preshared_key_file.display().to_string()),
                list(endpoints),
                tenant.render()
            ),
        };
        text
    }
}

impl TenantTemplate {
    fn render(&self) -> String {
        let Self {
            name,
            id,
            addresses,
            prefixes,
            map,
        } = self;
        let table = match name.as_str() {
            dotted if dotted.contains('.') => quoted(dotted),
            name => name.to_owned(),
        };
        let addresses = match addresses[..] {
            [] => String::new(),
            _ => format!("addresses = {}\n", list(addresses)),
        };
        format!(
            "\n# The network's packets. `prefixes` are the networks behind this gateway. Packets are sorted into voice,\n\
             # games, interactive, web, bulk and backup (docs/ip-tunnel.md).\n[tenant.{table}]\n\
             id = {id}\n{addresses}prefixes = {}\n{}classes = \"auto\"\n",
            list(prefixes),
            mappings(map)
        )
    }
}

/// The key `map`, if it is needed.
fn mappings(map: &[Mapping]) -> String {
    if map.is_empty() {
        return String::new();
    }
    let entries: Vec<String> = map
        .iter()
        .map(|of| {
            format!(
                "{{ local = \"{}\", network = \"{}\" }}",
                of.local, of.network
            )
        })
        .collect();
    format!(
        "# `local` as its hosts have it, `network` as the other sites reach it.\nmap = [{}]\n",
        entries.join(", ")
    )
}

/// A TOML array of texts.
fn list<T: ToString>(values: &[T]) -> String {
    let quoted: Vec<String> = values
        .iter()
        .map(|value| quoted(&value.to_string()))
        .collect();
    format!("[{}]", quoted.join(", "))
}

#[cfg(test)]
mod tests {
    use super::{super::*, *};

    fn tenant(name: &str) -> TenantTemplate {
        TenantTemplate {
            name: Name::new(name).unwrap(),
            id: 1,
            addresses: vec!["10.1.0.1/32".parse().unwrap()],
            prefixes: vec!["10.1.0.0/24".parse().unwrap()],
            map: vec!["192.168.1.0/24=10.1.0.0/24".parse().unwrap()],
        }
    }

    fn parsed(network: &NetworkTemplate) -> Config {
        let template = Template {
            auto: true,
            ..Template::example()
        };
        let text = template.render_short() + &network.render();
        Config::parse(&text, "gateway.toml").unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn template_for_a_hub_is_valid() {
        for name in ["office", "a.b"] {
            let config = parsed(&NetworkTemplate::Hub {
                registry: PathBuf::from("/etc/keiro/\"network\"/registry.toml"),
                endpoints: vec!["hub.example.net:7600".parse().unwrap()],
                tenant: tenant(name),
            });
            let Some(Membership::Hub(hub)) = &config.network else {
                panic!("{:?}", config.network);
            };
            assert_eq!(hub.endpoint.len(), 1);
            assert_eq!(hub.registry.file_name().unwrap(), "registry.toml");
            let found = config.tenant_named(name).unwrap();
            assert_eq!(found.prefixes, tenant(name).prefixes);
            assert_eq!(found.addresses, tenant(name).addresses);
            assert_eq!(found.map, tenant(name).map);
        }
    }

    #[test]
    fn templates_for_a_branch_and_a_second_hub_are_valid() {
        let member = |is_second_hub| NetworkTemplate::Member {
            hub: Name::new("hub").unwrap(),
            is_second_hub,
            public_key: PublicKey::from_bytes([7; 32]),
            preshared_key_file: PathBuf::from("/etc/keiro/hub.psk"),
            endpoints: vec!["192.0.2.1:7600".parse().unwrap()],
            tenant: tenant("office"),
        };
        let config = parsed(&member(false));
        assert!(matches!(config.network, Some(Membership::Branch { .. })));
        assert_eq!(config.peers[0].endpoint.len(), 1);
        let config = parsed(&member(true));
        assert!(matches!(
            config.network,
            Some(Membership::SecondHub {
                first: PeerIndex(0)
            })
        ));
    }
}
