//! Tables of uplinks whose answers the kernel would drop.
//!
//! A socket that is bound to an interface sends by it. Where the kernel filters strictly by the reverse path
//! (`rp_filter` = 1), it drops what comes back unless the interface is also the one by which it would send from
//! that address. A rule by source address and port and a table with the uplink's default route say so. Both are
//! removed when the gateway stops, and those of a killed one when the next starts.
//!
//! Several gateways may run in one network namespace: each has a [`TableSet`] that the others leave alone.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use keiro_control::config::{Family, UPLINK_TABLES};
use keiro_linux::{
    namespace_lock::NamespaceLock,
    route::{Entry, Installed, Route, RouteError, RouteSocket, Rule, RuleVersion, Via},
};

use super::{Binding, Network};

/// The entries of all uplinks.
#[derive(Default)]
pub(crate) struct UplinkRoutes {
    /// `None` until there is one. It goes before the set that it is in.
    installed: Option<Installed>,
    /// `None` until it is needed.
    set: Option<TableSet>,
    /// What an earlier run left behind was looked for.
    swept: bool,
    reported: Option<String>,
}

/// The numbers of one gateway's tables, which no other gateway of this network namespace uses or clears while this
/// value exists. The lock ends with its process, so that what a killed gateway left behind is recognised.
#[derive(Debug)]
pub(crate) struct TableSet {
    number: u32,
    _lock: NamespaceLock,
}

/// An uplink whose answers the kernel would drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Filtered {
    local: SocketAddr,
    interface: u32,
    gateway: Option<IpAddr>,
}

/// Before the rules of tenants, which are by interface and mark. Ours.
const RULE_PRIORITY: u32 = 7599;
/// Gateways in one network namespace that may have tables. Ours.
const SETS: u32 = 8;
/// Tables of one set, one for each index of an interface; interfaces beyond have none.
const TABLES_OF_SET: u32 = 1_000_000;

impl TableSet {
    /// `None`: a gateway that runs has it.
    fn take(number: u32) -> Option<Self> {
        // Without sockets of this kind nothing can be known of others, and theirs must not be touched.
        let lock = NamespaceLock::take(&format!("keiro/uplink-tables/{number}"));
        Some(Self {
            number,
            _lock: lock.ok()??,
        })
    }

    /// Whether a gateway that had this set has made it.
    pub(crate) fn has(&self, entry: &Entry) -> bool {
        let is_own = |table: u32| {
            UPLINK_TABLES.contains(&table)
                && (table - UPLINK_TABLES.start()) / TABLES_OF_SET == self.number
        };
        match entry {
            Entry::Route(route) => is_own(route.table),
            Entry::Rule(rule) => rule.priority == RULE_PRIORITY && is_own(rule.table),
            Entry::Address(_) => false,
        }
    }

    fn table(&self, interface: u32) -> u32 {
        UPLINK_TABLES.start() + self.number * TABLES_OF_SET + interface
    }
}

/// The sets that no gateway of the calling thread's network namespace has.
pub(crate) fn free_table_sets() -> Vec<TableSet> {
    (0..SETS).filter_map(TableSet::take).collect()
}

impl UplinkRoutes {
    /// Puts in place what these uplinks need, and removes the rest.
    pub(crate) fn update<'a>(
        &mut self,
        bindings: impl Iterator<Item = &'a Binding>,
        network: &Network,
    ) {
        let problem = self.set(&filtered(bindings, network), network).err();
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
    fn set(&mut self, filtered: &[Filtered], network: &Network) -> Result<(), String> {
        if self.swept && filtered.is_empty() && self.installed.is_none() {
            return Ok(());
        }
        let failed = |error: RouteError| error.to_string();
        let mut installed = match self.installed.take() {
            Some(installed) => installed,
            None => Installed::new(RouteSocket::open().map_err(failed)?),
        };
        let is_needed = self.set.is_none() && !filtered.is_empty();
        // Held until what is in them is removed.
        let mut free = match self.swept && !is_needed {
            true => Vec::new(),
            false => free_table_sets(),
        };
        let others = match free.is_empty() {
            true => Vec::new(),
            false => installed.others().map_err(failed)?,
        };
        self.swept = true;
        for entry in others {
            if free.iter().any(|set| set.has(&entry)) {
                installed.adopt(entry);
            }
        }
        if is_needed {
            self.set = (!free.is_empty()).then(|| free.remove(0));
        }
        let wanted = match &self.set {
            Some(set) => entries(set, filtered, network),
            None => Vec::new(),
        };
        let outcome = installed.set(&wanted);
        // Also what could not be removed is tried again.
        self.installed = Some(installed);
        let outcome = outcome.map_err(failed)?;
        match outcome.errors.into_iter().next() {
            Some((_, error)) => Err(error.to_string()),
            None if self.set.is_none() && !filtered.is_empty() => Err(format!(
                "{SETS} other gateways in this network namespace have tables"
            )),
            None => Ok(()),
        }
    }
}

/// The uplinks with these bindings whose answers the kernel would drop.
fn filtered<'a>(bindings: impl Iterator<Item = &'a Binding>, network: &Network) -> Vec<Filtered> {
    let of = |binding: &Binding| {
        let (interface, _) = (binding.owner?, binding.device.as_ref()?);
        let gateway = *network.default_routes.get(&(interface, Family::V4))?;
        let is_filtered = network.filtered.contains(&interface) && interface < TABLES_OF_SET;
        (is_filtered && binding.local.is_ipv4()).then_some(Filtered {
            local: binding.local,
            interface,
            gateway,
        })
    };
    bindings.filter_map(of).collect()
}

/// What these uplinks need.
fn entries(set: &TableSet, filtered: &[Filtered], network: &Network) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for uplink in filtered {
        for entry in of_uplink(set.table(uplink.interface), uplink, network) {
            if !entries.contains(&entry) {
                entries.push(entry);
            }
        }
    }
    entries
}

fn of_uplink(table: u32, uplink: &Filtered, network: &Network) -> Vec<Entry> {
    let Filtered {
        local,
        interface,
        gateway,
    } = *uplink;
    let own = local.ip();
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
        // Other programs' packets from the address leave as if there were no gateway.
        udp_source_port: Some(local.port()),
        suppressed_prefix_length: None,
    });
    near.into_iter().chain([route(far, via), rule]).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// What the uplinks with these bindings need of the set of this number.
    pub(in crate::uplinks) fn entries_of<'a>(
        number: u32,
        bindings: impl Iterator<Item = &'a Binding>,
        network: &Network,
    ) -> Vec<String> {
        let name = format!("keiro-test/{}/{number}", std::process::id());
        let lock = NamespaceLock::take(&name).expect("a socket").expect("free");
        let set = TableSet {
            number,
            _lock: lock,
        };
        let entries = entries(&set, &filtered(bindings, network), network);
        for entry in &entries {
            assert!(set.has(entry), "{entry}");
        }
        entries.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn tables_of_sets_are_apart_and_all_are_withheld_from_tenants() {
        let sets = free_table_sets();
        let mut last = *UPLINK_TABLES.start() - 1;
        for set in &sets {
            let [first, end] = [0, TABLES_OF_SET - 1].map(|index| set.table(index));
            assert!(first > last && UPLINK_TABLES.contains(&end));
            last = end;
        }
        // Where other gateways run beside the test, these have the rest.
        assert!(sets.len() <= SETS as usize);
        assert_eq!(
            SETS * TABLES_OF_SET,
            UPLINK_TABLES.end() - UPLINK_TABLES.start() + 1
        );
    }
}
