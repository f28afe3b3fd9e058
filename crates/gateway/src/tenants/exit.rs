//! Exits to the Internet: where this machine leads, followed.
//!
//! What is not the Internet's is refused by the data thread, which answers with an ICMP error. The kernel's own routes,
//! connection tracking and the [rules] of nftables do the rest, and let nothing else pass.

pub(super) mod rules;

use std::{collections::BTreeSet, io};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use keiro_control::config::{Config, Tenant};
use keiro_linux::{interface::Interface, route::RouteWatch, uplink::UplinkSocket};

use self::rules::Uplinks;
use crate::{data::tunnels::ExitSetup, uplinks::connected};

/// Tracks the machine's default routes and the networks that are not the Internet's.
#[derive(Default)]
pub(super) struct DefaultRouteTracker {
    socket: Option<UplinkSocket>,
    /// `None` where the kernel reports no changes, and until there is an exit.
    watch: Option<RouteWatch>,
    found: Found,
}

#[derive(Default, PartialEq)]
struct Found {
    uplinks: Uplinks,
    /// Networks and addresses that are not the Internet's.
    refused: BTreeSet<IpNet>,
    /// Why it is not known where packets leave. Then nothing does, and the next look is soon.
    problem: Option<String>,
}

/// Networks of no host in the Internet (RFC 6890): private, shared, link-local, loopback, multicast and reserved; and the
/// address by which clouds serve their machines.
const NOT_INTERNET_V4: [([u8; 4], u8); 12] = [
    ([0, 0, 0, 0], 8),
    ([10, 0, 0, 0], 8),
    ([100, 64, 0, 0], 10),
    ([127, 0, 0, 0], 8),
    ([168, 63, 129, 16], 32),
    ([169, 254, 0, 0], 16),
    ([172, 16, 0, 0], 12),
    ([192, 0, 0, 0], 24),
    ([192, 168, 0, 0], 16),
    ([198, 18, 0, 0], 15),
    ([224, 0, 0, 0], 4),
    ([240, 0, 0, 0], 4),
];
/// All but 2000::/3 (RFC 4291 §2.4), and of that what stands for IPv4 addresses: Teredo and 6to4.
const NOT_INTERNET_V6: [([u16; 8], u8); 5] = [
    ([0, 0, 0, 0, 0, 0, 0, 0], 3),
    ([0x2001, 0, 0, 0, 0, 0, 0, 0], 32),
    ([0x2002, 0, 0, 0, 0, 0, 0, 0], 16),
    ([0x4000, 0, 0, 0, 0, 0, 0, 0], 2),
    ([0x8000, 0, 0, 0, 0, 0, 0, 0], 1),
];
/// Addresses and networks of the machine that are refused with an answer. Ours: machines have some ten.
const OF_MACHINE_MAX: usize = 4096;

impl DefaultRouteTracker {
    /// Where packets leave the machine.
    pub(super) fn uplinks(&self) -> &Uplinks {
        &self.found.uplinks
    }

    /// Why they do not; `None`: they do, or there is no default route.
    pub(super) fn problem(&self) -> Option<&str> {
        self.found.problem.as_deref()
    }

    /// What the data thread needs; `None`: `tenant` is no exit. Without its rules (`has_rules`) it leads nowhere.
    pub(super) fn setup_of(&self, tenant: &Tenant, has_rules: bool) -> Option<ExitSetup> {
        tenant.exit.as_ref()?;
        let behind = tenant.peers.iter().flat_map(|of| &of.prefixes);
        let all = tenant.prefixes.iter().chain(behind);
        let near: Vec<&IpNet> = all.filter(|prefix| prefix.prefix_len() > 0).collect();
        let is_far = |refused: &&IpNet| !near.iter().any(|prefix| prefix.contains(*refused));
        let [v4, v6] = [0, 1].map(|version| has_rules && !self.found.uplinks[version].is_empty());
        Some(ExitSetup {
            v4,
            v6,
            refused: self.found.refused.iter().filter(is_far).copied().collect(),
        })
    }

    /// Looks at the machine again if something may have changed; whether it has.
    pub(super) fn update(&mut self, config: &Config) -> bool {
        if !config.tenants.iter().any(|tenant| tenant.exit.is_some()) {
            *self = Self::default();
            return false;
        }
        let is_unknown = self.socket.is_none() || self.found.problem.is_some();
        // What cannot be heard is looked at.
        let mut watch = self.watch.as_mut();
        let changed = watch
            .as_mut()
            .is_none_or(|watch| watch.changed().unwrap_or(true));
        (is_unknown || changed) && self.look(config)
    }

    /// Whether it has changed.
    fn look(&mut self, config: &Config) -> bool {
        if self.watch.is_none() {
            self.watch = RouteWatch::open().ok();
        }
        let found = self.open().and_then(|socket| found(socket, config));
        let found = found.unwrap_or_else(|error| Found {
            problem: Some(format!(
                "the machine's default routes are not known: {error}"
            )),
            ..Found::default()
        });
        if found == self.found {
            return false;
        }
        if let Some(problem) = &found.problem {
            tracing::warn!("exit: {problem}; trying again every second");
        }
        self.found = found;
        true
    }

    fn open(&mut self) -> io::Result<&mut UplinkSocket> {
        match &mut self.socket {
            Some(socket) => Ok(socket),
            none => Ok(none.insert(UplinkSocket::open()?)),
        }
    }
}

fn found(socket: &mut UplinkSocket, config: &Config) -> io::Result<Found> {
    let mut found = Found {
        refused: not_internet().collect(),
        ..Found::default()
    };
    let is_device = |name: &str| config.tenants.iter().any(|tenant| tenant.device == name);
    for interface in socket.interfaces()? {
        let mut is_uplink = interface.loopback || is_device(&interface.name);
        if !is_uplink && is_plain(&interface.name) {
            for (version, uplinks) in found.uplinks.iter_mut().enumerate() {
                // An interface that has just gone leads nowhere.
                let route = socket.default_route(Some(interface.index), version == 1);
                if route.is_ok_and(|route| route.is_some()) {
                    uplinks.insert(interface.name.clone());
                    is_uplink = true;
                }
            }
        }
        found.refused.extend(of_machine(&interface, is_uplink));
        if found.refused.len() > OF_MACHINE_MAX {
            return Err(io::Error::other(format!(
                "this machine has more than {OF_MACHINE_MAX} addresses and networks"
            )));
        }
    }
    Ok(found)
}

/// nft takes the name as it is.
fn is_plain(name: &str) -> bool {
    name.chars()
        .all(|c| c.is_ascii_alphanumeric() || "-_.@".contains(c))
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

fn not_internet() -> impl Iterator<Item = IpNet> {
    let v4 = NOT_INTERNET_V4.map(|(address, bits)| Ipv4Net::new_assert(address.into(), bits));
    let v6 = NOT_INTERNET_V6.map(|(address, bits)| Ipv6Net::new_assert(address.into(), bits));
    let v4 = v4.into_iter().map(IpNet::V4);
    v4.chain(v6.into_iter().map(IpNet::V6))
}
