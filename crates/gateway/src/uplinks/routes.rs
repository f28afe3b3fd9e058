//! Tables of uplinks whose answers the kernel would drop.
//!
//! A socket that is bound to an interface sends by it. Where the kernel filters strictly by the reverse path
//! (`rp_filter` = 1), it drops what comes back unless the interface is also the one by which it would send from
//! that address. A rule by source address and a table with the uplink's default route say so. Both are removed
//! when the gateway stops, and those of a killed one when the next starts.

use std::net::IpAddr;

use ipnet::IpNet;
use keiro_control::config::Family;
use keiro_linux::route::{
    Entry, Installed, Route, RouteError, RouteSocket, Rule, RuleVersion, Via,
};

use super::{Binding, Network};

/// The entries of all uplinks.
#[derive(Default)]
pub(crate) struct UplinkRoutes {
    /// `None` until there is one.
    installed: Option<Installed>,
    /// What an earlier run left behind was looked for.
    swept: bool,
    reported: Option<String>,
}

/// Before the rules of tenants, which are by interface and mark. Ours.
const RULE_PRIORITY: u32 = 7599;
/// The table of the interface of index 0. Ours: none that a person would number so.
const TABLE: u32 = 7_600_000;
/// Interfaces beyond this index have no table.
const INDEX_MAX: u32 = 1_000_000;

impl UplinkRoutes {
    /// Puts in place what these uplinks need, and removes the rest.
    pub(crate) fn follow<'a>(
        &mut self,
        bindings: impl Iterator<Item = &'a Binding>,
        network: &Network,
    ) {
        let wanted = entries(bindings, network);
        let problem = self.set(&wanted).err();
        if problem != self.reported {
            if let Some(problem) = &problem {
                tracing::warn!(
                    "answers to some paths are dropped by the kernel's reverse path filter: {problem}; \
                     `sysctl -w net.ipv4.conf.INTERFACE.rp_filter=2` avoids that"
                );
            }
            self.reported = problem;
        }
    }

    /// # Errors
    /// What could not be had.
    fn set(&mut self, wanted: &[Entry]) -> Result<(), String> {
        if self.swept && wanted.is_empty() && self.installed.is_none() {
            return Ok(());
        }
        let failed = |error: RouteError| error.to_string();
        let mut installed = match self.installed.take() {
            Some(installed) => installed,
            None => Installed::new(RouteSocket::open().map_err(failed)?),
        };
        if !self.swept {
            let others = installed.others().map_err(failed)?;
            for entry in others.into_iter().filter(is_of_uplink) {
                installed.adopt(entry);
            }
            self.swept = true;
        }
        let outcome = installed.set(wanted);
        // Also what could not be removed is tried again.
        self.installed = Some(installed);
        let outcome = outcome.map_err(failed)?;
        match outcome.errors.into_iter().next() {
            Some((_, error)) => Err(error.to_string()),
            None => Ok(()),
        }
    }
}

/// What uplinks with these bindings need.
pub(super) fn entries<'a>(
    bindings: impl Iterator<Item = &'a Binding>,
    network: &Network,
) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for binding in bindings {
        let (Some(index), Some(_)) = (binding.owner, &binding.device) else {
            continue;
        };
        let route = network.default_routes.get(&(index, Family::V4));
        let (IpAddr::V4(_), Some(gateway)) = (binding.local.ip(), route) else {
            continue;
        };
        if network.filtered.contains(&index) && index <= INDEX_MAX {
            for entry in of_uplink(binding.local.ip(), index, *gateway, network) {
                if !entries.contains(&entry) {
                    entries.push(entry);
                }
            }
        }
    }
    entries
}

fn of_uplink(
    own: IpAddr,
    interface: u32,
    gateway: Option<IpAddr>,
    network: &Network,
) -> Vec<Entry> {
    let table = TABLE + interface;
    let route = |destination: IpNet, via| {
        Entry::Route(Route {
            destination,
            table,
            via,
            metric: 0,
        })
    };
    let mut all = network.interfaces.iter();
    let link = all.find(|link| link.index == interface);
    let mut addresses = link.into_iter().flat_map(|link| &link.addresses);
    let address = addresses.find(|address| address.ip == own);
    let near = address.and_then(|address| IpNet::new(own, address.prefix_len).ok());
    let near = near.map(|near| route(near.trunc(), Via::Interface(interface)));
    let via = match gateway {
        Some(address) => Via::Gateway { address, interface },
        None => Via::Interface(interface),
    };
    let far = IpNet::new_assert(IpAddr::from([0; 4]), 0);
    let rule = Entry::Rule(Rule {
        version: RuleVersion::V4,
        priority: RULE_PRIORITY,
        table,
        incoming: None,
        outgoing: None,
        mark: None,
        source: Some(own.into()),
    });
    near.into_iter().chain([route(far, via), rule]).collect()
}

/// A gateway of an earlier run may have made it.
pub(crate) fn is_of_uplink(entry: &Entry) -> bool {
    let is_own = |table| (TABLE..=TABLE + INDEX_MAX).contains(&table);
    match entry {
        Entry::Route(route) => is_own(route.table),
        Entry::Rule(rule) => rule.priority == RULE_PRIORITY && is_own(rule.table),
        Entry::Address(_) => false,
    }
}
