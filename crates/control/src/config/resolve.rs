//! A configuration with what the machine and the network decide: interfaces that are uplinks, addresses of host
//! names, and further paths over one uplink.
//!
//! Pure: what was found is an argument. Paths of the file keep their places, and what is added follows them, so
//! that the same findings give the same configuration.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use keiro_model::path_terms::{CostPerGb, PathRole};

use super::{
    AutoUplinks, Config, Family, HostName, InterfaceLocal, Local, NAME_BYTES_MAX, Name, PATHS_MAX,
    Path, PathIndex, PathOrigin, Peer, PeerEndpoint, PeerOrigin, Withheld,
};

/// What a configuration leaves open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Interfaces that are uplinks by `uplinks = "auto"`, or that a path names.
    pub interfaces: Vec<FoundInterface>,
    /// Addresses of hosts; a host that is missing has none that is known.
    pub hosts: BTreeMap<HostName, Vec<IpAddr>>,
    /// Paths that a peer, by its name, needs over an uplink, where these are more than its endpoints.
    pub wanted: BTreeMap<(String, Local), usize>,
    /// Prefixes of the network that this machine cannot route, as [`Config::withheld`] has found them.
    pub withheld: Vec<Withheld>,
}

/// An interface that may be an uplink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundInterface {
    pub name: String,
    /// Versions of IP in which far hosts are reached by it, IPv4 first.
    pub families: Vec<Family>,
    /// It becomes a path by `uplinks = "auto"`. `false`: a path of the file uses it.
    pub is_auto: bool,
}

impl Found {
    /// What of it concerns another configuration: names of hosts and peers that it has.
    #[must_use]
    pub fn of_config(&self, config: &Config) -> Self {
        let mut found = self.clone();
        let names = config.host_names();
        found.hosts.retain(|name, _| names.contains(name));
        found
            .wanted
            .retain(|(peer, _), _| config.peer_named(peer).is_some());
        found
    }
}

/// Most paths of a peer over one uplink. Ours: four uplinks of the peer in both versions of IP.
const PER_UPLINK_MAX: usize = 8;

/// The name of the further path `number` (2 or more) over the uplink `name`.
pub fn further_name(name: &Name, number: usize) -> String {
    let suffix = format!("-{number}");
    // Names are ASCII.
    let kept = name.as_str().len().min(NAME_BYTES_MAX - suffix.len());
    format!("{}{suffix}", &name.as_str()[..kept])
}

impl Config {
    /// This configuration, which is as in its file, with what was found.
    pub fn resolved(&self, found: &Found) -> Self {
        let mut config = self.clone();
        if let Some(auto) = &self.gateway.auto_uplinks {
            config.add_auto_paths(auto, found);
        }
        let written: Vec<usize> = self.peers.iter().map(|peer| peer.endpoint.len()).collect();
        if written.iter().any(|count| *count > 0) {
            config.choose_families(found);
        }
        config.lead_to_endpoints(found);
        config.withhold(&found.withheld);
        config
    }

    /// Names of hosts whose addresses are asked for, each once.
    pub fn host_names(&self) -> BTreeSet<HostName> {
        let endpoints = self.peers.iter().flat_map(|peer| &peer.endpoint);
        let name = |endpoint: &PeerEndpoint| match endpoint {
            PeerEndpoint::Name(name) => Some(name.host.clone()),
            PeerEndpoint::Address(_) => None,
        };
        endpoints.filter_map(name).collect()
    }

    /// A path, and the further ones over its uplink.
    pub fn with_further(&self, path: PathIndex) -> Vec<PathIndex> {
        let is_over =
            |index: &PathIndex| *index == path || self[*index].origin == PathOrigin::Further(path);
        (0..self.paths.len())
            .map(PathIndex)
            .filter(is_over)
            .collect()
    }

    fn add_auto_paths(&mut self, auto: &AutoUplinks, found: &Found) {
        for (number, interface) in found.interfaces.iter().filter(|i| i.is_auto).enumerate() {
            if self.paths.len() >= PATHS_MAX {
                break;
            }
            let wanted = Name::new(&interface.name)
                .unwrap_or_else(|_| Name(format!("uplink{}", number + 1)));
            let family = match interface.families.contains(&Family::V4) {
                true => None,
                false => interface.families.first().copied(),
            };
            let local = InterfaceLocal {
                interface: interface.name.clone(),
                port: auto.port,
                family,
            };
            self.paths.push(Path {
                name: self.free_name(wanted),
                is_metered: auto.is_metered(&interface.name),
                origin: PathOrigin::Auto,
                local: Local::Interface(local),
                rate: auto.rate,
                delay: None,
                mtu_max: None,
                budget: None,
                role: PathRole::Primary,
                cost: CostPerGb::ZERO,
            });
        }
    }

    /// Paths of interfaces without `family` take that of their peers' endpoints: IPv4, if the interface and an
    /// endpoint have it.
    fn choose_families(&mut self, found: &Found) {
        let mut there: Vec<Family> = Vec::new();
        // A direct session never takes an uplink away from a hub.
        let lasting = self
            .peers
            .iter()
            .filter(|peer| peer.origin != PeerOrigin::Direct);
        for peer in lasting {
            let addresses = addresses(peer, found);
            there.extend(addresses.iter().map(Family::of));
        }
        // Of names whose addresses are not known yet, IPv4 is expected: it is what most have.
        if there.is_empty() {
            there = vec![Family::V4, Family::V6];
        }
        for path in &mut self.paths {
            let Local::Interface(local) = &mut path.local else {
                continue;
            };
            if local.family.is_some() {
                continue;
            }
            let mut interfaces = found.interfaces.iter();
            let here = interfaces.find(|interface| interface.name == local.interface);
            let both = [Family::V4, Family::V6];
            let here = here.map_or(&both[..], |interface| &interface.families);
            let fits = both
                .into_iter()
                .find(|family| here.contains(family) && there.contains(family));
            local.family = fits;
        }
    }

    /// Each uplink leads to every endpoint of a peer that it can reach: the path itself to the first, and further
    /// ones to the others.
    fn lead_to_endpoints(&mut self, found: &Found) {
        let uplinks: Vec<PathIndex> = (0..self.paths.len()).map(PathIndex).collect();
        let mut further: BTreeMap<(PathIndex, usize), PathIndex> = BTreeMap::new();
        for number in 0..self.peers.len() {
            let addresses = addresses(&self.peers[number], found);
            for &uplink in &uplinks {
                let path = &self[uplink];
                let reaches = |address: &&SocketAddr| {
                    let family = path.local.family();
                    family.is_none_or(|family| family == Family::of(address))
                };
                let is_written = self.peers[number].endpoints.contains_key(&uplink);
                let mut remotes: Vec<SocketAddr> = match is_written {
                    true => Vec::new(),
                    false => addresses.iter().filter(reaches).copied().collect(),
                };
                remotes.truncate(PER_UPLINK_MAX);
                let key = (self.peers[number].name.to_string(), path.local.clone());
                let wanted = found.wanted.get(&key).copied().unwrap_or(1);
                let count = remotes.len().max(wanted.min(PER_UPLINK_MAX)).max(1);
                for place in 0..count {
                    let index = match place {
                        0 => Some(uplink),
                        _ => self.further_path(&mut further, uplink, place),
                    };
                    let Some(index) = index else { break };
                    let peer = &mut self.peers[number];
                    if place > 0 {
                        peer.further_paths.insert(index);
                    }
                    if let Some(remote) = remotes.get(place) {
                        peer.endpoints.insert(index, *remote);
                    }
                }
            }
        }
    }

    /// The further path in this place over an uplink, made if there is room.
    fn further_path(
        &mut self,
        further: &mut BTreeMap<(PathIndex, usize), PathIndex>,
        uplink: PathIndex,
        place: usize,
    ) -> Option<PathIndex> {
        if let Some(index) = further.get(&(uplink, place)) {
            return Some(*index);
        }
        if self.paths.len() >= PATHS_MAX {
            return None;
        }
        let index = PathIndex(self.paths.len());
        let name = Name(further_name(&self[uplink].name, place + 1));
        let path = Path {
            name: self.free_name(name),
            origin: PathOrigin::Further(uplink),
            ..self[uplink].clone()
        };
        self.paths.push(path);
        further.insert((uplink, place), index);
        Some(index)
    }

    /// This name, or one like it that no path has.
    fn free_name(&self, wanted: Name) -> Name {
        if self.path_named(wanted.as_str()).is_none() {
            return wanted;
        }
        let mut others = (2..).map(|number| Name(further_name(&wanted, number)));
        let is_free = |name: &Name| self.path_named(name.as_str()).is_none();
        others
            .find(is_free)
            .expect("there are fewer paths than numbers")
    }
}

/// The addresses of a peer's endpoints, each once, in the order of the file.
fn addresses(peer: &Peer, found: &Found) -> Vec<SocketAddr> {
    let mut all: Vec<SocketAddr> = Vec::new();
    for endpoint in &peer.endpoint {
        let of_endpoint: Vec<SocketAddr> = match endpoint {
            PeerEndpoint::Address(address) => vec![*address],
            PeerEndpoint::Name(name) => {
                let known = found.hosts.get(&name.host).into_iter().flatten();
                known.map(|ip| SocketAddr::new(*ip, name.port)).collect()
            }
        };
        for address in of_endpoint {
            if !all.contains(&address) {
                all.push(address);
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        let text = text.replace(
            "PEER",
            "[[peer]]\nname = \"hub\"\npublic_key = \"VVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVU=\"\n",
        );
        Config::parse(&text, "test.toml").unwrap_or_else(|error| panic!("{error}"))
    }

    fn interface(name: &str, families: &[Family], is_auto: bool) -> FoundInterface {
        FoundInterface {
            name: name.to_owned(),
            families: families.to_vec(),
            is_auto,
        }
    }

    /// Name, local and remote to the first peer of every path that leads there.
    fn paths(config: &Config) -> Vec<String> {
        let peer = config.peers.first();
        let paths = config
            .paths
            .iter()
            .enumerate()
            .filter_map(|(number, path)| {
                let index = PathIndex(number);
                let leads_there = match path.origin {
                    PathOrigin::Further(_) => peer?.further_paths.contains(&index),
                    PathOrigin::Written | PathOrigin::Auto => true,
                };
                let remote = peer.and_then(|peer| peer.endpoints.get(&index));
                let remote = remote.map_or("none".to_owned(), SocketAddr::to_string);
                leads_there.then(|| format!("{} {} {remote}", path.name, path.local))
            });
        paths.collect()
    }

    const AUTO: &str = "[gateway]\nname = \"a\"\nuplinks = \"auto\"\n";
    const ONE: &str = "[gateway]\nname = \"a\"\n[[path]]\nname = \"wan\"\ninterface = \"eth0\"\nrate = \"1Mbit\"\n";

    #[test]
    fn resolving_keeps_what_is_written_out() {
        for text in [
            ONE.to_owned(),
            format!("{ONE}PEERendpoints = {{ wan = \"192.0.2.1:1\" }}"),
        ] {
            let config = config(&text);
            let resolved = config.resolved(&Found::default());
            assert!(config.diff(&resolved).is_empty());
            assert_eq!(resolved.paths, config.paths);
        }
    }

    #[test]
    fn every_uplink_pairs_with_every_endpoint_of_its_ip_version() {
        let config = config(&format!(
            "{AUTO}PEERendpoint = [\"192.0.2.1:1\", \"192.0.2.2:1\", \"[2001:db8::1]:1\"]"
        ));
        let found = Found {
            interfaces: vec![
                interface("eth0", &[Family::V4, Family::V6], true),
                interface("lte0", &[Family::V6], true),
            ],
            ..Found::default()
        };
        let resolved = config.resolved(&found);
        assert_eq!(
            paths(&resolved),
            [
                "eth0 eth0:7600 192.0.2.1:1",
                "lte0 lte0:7600 [2001:db8::1]:1",
                "eth0-2 eth0:7600 192.0.2.2:1"
            ]
        );
        let over = resolved.with_further(PathIndex(0));
        assert_eq!(over, [PathIndex(0), PathIndex(2)], "with eth0, eth0-2");
        // The same findings give the same configuration, and none no path.
        assert!(config.resolved(&found).diff(&resolved).is_empty());
        assert_eq!(paths(&config.resolved(&Found::default())), [] as [&str; 0]);
    }

    #[test]
    fn host_names_become_endpoints_once_resolved() {
        let config = config(&format!("{ONE}PEERendpoint = \"Hub.Example.:7\""));
        let name = HostName::new("hub.example").unwrap();
        assert_eq!(config.host_names(), [name.clone()].into());
        assert_eq!(
            paths(&config.resolved(&Found::default())),
            ["wan eth0:7600 none"]
        );
        let mut found = Found::default();
        let ips = ["2001:db8::1", "192.0.2.1", "192.0.2.2", "192.0.2.1"];
        let ips = ips.map(|ip| ip.parse().unwrap()).to_vec();
        found.hosts.insert(name, ips);
        assert_eq!(
            paths(&config.resolved(&found)),
            ["wan eth0:7600 192.0.2.1:7", "wan-2 eth0:7600 192.0.2.2:7"]
        );
    }

    #[test]
    fn endpoints_of_single_paths_come_before_those_of_all() {
        let text = format!(
            "{ONE}[[path]]\nname = \"lte\"\ninterface = \"eth1\"\nrate = \"1Mbit\"\n\
             PEERendpoint = \"192.0.2.1:1\"\nendpoints = {{ lte = \"192.0.2.9:9\" }}"
        );
        let resolved = config(&text).resolved(&Found::default());
        assert_eq!(
            paths(&resolved),
            ["wan eth0:7600 192.0.2.1:1", "lte eth1:7600 192.0.2.9:9"]
        );
    }

    #[test]
    fn uplinks_have_as_many_paths_as_a_peer_wants_within_bounds() {
        let config = config(&format!("{ONE}PEER"));
        let local = config.paths[0].local.clone();
        for (wanted, expected) in [(0, 1), (1, 1), (3, 3), (1000, PER_UPLINK_MAX)] {
            let mut found = Found::default();
            found
                .wanted
                .insert(("hub".to_owned(), local.clone()), wanted);
            let paths = paths(&config.resolved(&found));
            assert_eq!(paths.len(), expected, "{paths:?}");
        }
        let mut many = config;
        for number in 0..PATHS_MAX - 2 {
            let mut path = many.paths[0].clone();
            path.name = Name(format!("p{number}"));
            path.local = Local::of_interface(&format!("x{number}"));
            many.paths.push(path);
        }
        let mut found = Found::default();
        for path in &many.paths {
            found
                .wanted
                .insert(("hub".to_owned(), path.local.clone()), 5);
        }
        let resolved = many.resolved(&found);
        assert_eq!(resolved.paths.len(), PATHS_MAX);
    }

    #[test]
    fn generated_names_that_are_taken_get_a_number() {
        let text = ONE.replace("[[path]]", "uplinks = \"auto\"\n[[path]]");
        let found = Found {
            interfaces: vec![
                interface("wan", &[Family::V4], true),
                interface(&"n".repeat(15), &[Family::V4], true),
                interface("odd@name", &[Family::V4], true),
            ],
            ..Found::default()
        };
        let resolved = config(&text).resolved(&found);
        let names: Vec<&str> = resolved
            .paths
            .iter()
            .map(|path| path.name.as_str())
            .collect();
        assert_eq!(names, ["wan", "wan-2", "nnnnnnnnnnnnnnn", "uplink3"]);
        let long = Name("n".repeat(NAME_BYTES_MAX));
        assert_eq!(further_name(&long, 12).len(), NAME_BYTES_MAX);
    }
}
