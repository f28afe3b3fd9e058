//! What this machine needs to reach outside the tunnel: the networks on its links, the routers of its uplinks and its
//! resolvers.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Read,
    net::IpAddr,
    os::unix::fs::MetadataExt,
    path::Path,
};

use anyhow::Context;
use ipnet::IpNet;
use keiro_control::config::{Config, ConnectedNetwork, HostName, LocalNetworks, Withheld};
use keiro_linux::interface::{self, Interface};

use super::{Network, interface_of};

/// Learned prefixes of a configuration, which is as in its file with its network, that this machine cannot route.
pub(crate) fn withheld(
    config: &Config,
    network: &Network,
    hosts: &BTreeMap<HostName, Vec<IpAddr>>,
) -> Vec<Withheld> {
    if config
        .tenants
        .iter()
        .all(|tenant| tenant.learned.is_empty())
    {
        return Vec::new();
    }
    config.withheld(&local_networks(config, network), hosts)
}

fn local_networks(config: &Config, network: &Network) -> LocalNetworks {
    let is_device = |name: &str| config.tenants.iter().any(|tenant| tenant.device == name);
    let all = network.interfaces.iter();
    let own = all.filter(|of| !of.loopback && !is_device(&of.name));
    let networks = own.flat_map(|interface| {
        let is_uplink = is_uplink(config, network, interface);
        connected(interface).map(move |prefix| ConnectedNetwork {
            interface: interface.name.clone(),
            prefix,
            is_uplink,
        })
    });
    let routers = network.default_routes.iter().filter_map(|(route, router)| {
        let mut all = network.interfaces.iter();
        let interface = all.find(|interface| interface.index == route.0)?;
        Some((interface.name.clone(), (*router)?))
    });
    LocalNetworks {
        networks: networks.collect(),
        routers: routers.collect(),
        resolvers: network.resolvers.clone(),
    }
}

/// Networks that interfaces are connected to, each with the interface.
pub(crate) fn connected_networks() -> anyhow::Result<Vec<(String, IpNet)>> {
    let interfaces = interface::list().context("cannot list this machine's interfaces")?;
    let outside = interfaces.iter().filter(|interface| !interface.loopback);
    let of_interface = |interface: &Interface| -> Vec<(String, IpNet)> {
        let networks = connected(interface);
        networks
            .map(|network| (interface.name.clone(), network))
            .collect()
    };
    Ok(outside.flat_map(of_interface).collect())
}

/// Networks on the link of an interface, or its neighbour on it.
pub(crate) fn connected(interface: &Interface) -> impl Iterator<Item = IpNet> {
    let networks = interface.addresses.iter().filter_map(|address| {
        let on_link = address.peer.unwrap_or(address.ip);
        IpNet::new(on_link, address.prefix_len).ok()
    });
    let networks = networks.filter(|network| network.prefix_len() > 0);
    networks.map(|network| network.trunc())
}

fn is_uplink(config: &Config, network: &Network, interface: &Interface) -> bool {
    let mut routes = network.default_routes.keys();
    let mut paths = config.paths.iter();
    routes.any(|(index, _)| *index == interface.index)
        || paths.any(|path| {
            let of = interface_of(&path.local, &network.interfaces);
            of.is_some_and(|of| of.index == interface.index)
        })
}

/// The file that names this machine's resolvers (resolv.conf(5)).
#[derive(Debug, Default)]
pub(super) struct ResolverFile {
    /// As it was read last.
    read: Option<(u64, i64, i64)>,
}

const FILE: &str = "/etc/resolv.conf";
/// The servers that systemd-resolved asks, where the first file names only itself.
const BEHIND_STUB: &str = "/run/systemd/resolve/resolv.conf";
/// Bytes that are read of it. Ours: a hundred times what it has.
const BYTES_MAX: u64 = 64 << 10;
/// Servers that are kept. Ours: the C library asks three.
const RESOLVERS_MAX: usize = 16;

impl ResolverFile {
    /// Whether the file is another one than was read.
    pub(super) fn is_changed(&self) -> bool {
        Self::state() != self.read
    }

    /// Other machines that are asked for names.
    pub(super) fn read(&mut self) -> Vec<IpAddr> {
        // Before it is read: what changes meanwhile is read again.
        self.read = Self::state();
        let named = servers(&text(Path::new(FILE)));
        match !named.is_empty() && named.iter().all(IpAddr::is_loopback) {
            true => servers(&text(Path::new(BEHIND_STUB))),
            false => named,
        }
        .into_iter()
        .filter(|address| !address.is_loopback())
        .collect()
    }

    fn state() -> Option<(u64, i64, i64)> {
        let metadata = fs::metadata(FILE).ok()?;
        Some((metadata.ino(), metadata.mtime(), metadata.mtime_nsec()))
    }
}

/// As much of a file as counts; nothing of one that cannot be read.
fn text(file: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(file) {
        // What was read before an error counts.
        let _ = file.take(BYTES_MAX).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn servers(text: &str) -> Vec<IpAddr> {
    let server = |line: &str| {
        let mut words = line.split_whitespace();
        let address = words.next().filter(|word| *word == "nameserver");
        let address = address.and_then(|_| words.next())?;
        // An address of one link has its interface behind it.
        address.split('%').next()?.parse().ok()
    };
    text.lines()
        .filter_map(server)
        .take(RESOLVERS_MAX)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolvers_are_read_as_the_c_library_reads_them() {
        let text = "# nameserver 192.0.2.9\nnameserver 192.0.2.1\n  nameserver\tfe80::1%eth0 # router\n\
                    search example.net\nnameserver nonsense\nnameserver\n";
        let expected: Vec<IpAddr> = ["192.0.2.1", "fe80::1"]
            .map(|address| address.parse().expect("an address"))
            .into();
        assert_eq!(servers(text), expected);
        assert!(servers(&"nameserver 10.0.0.1\n".repeat(1000)).len() == RESOLVERS_MAX);
    }
}
