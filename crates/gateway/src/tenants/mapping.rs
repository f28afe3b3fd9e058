//! Tables of nftables of tenants, put in place, watched and removed: those of [exits](super::exit::rules), of
//! [split TCP connections](super::split), and of networks under other addresses, which are written here.
//!
//! Packets that come out of a tenant's device have their destination translated before they are routed, and those that go
//! into it their source after that. The kernel's connection tracking translates answers and what ICMP errors quote. It has
//! a zone of its own for packets of the tunnel: of a flow that began before the tunnel led anywhere it knows that nothing
//! is to be translated, and would go on so as long as the flow lasts.

use std::{collections::BTreeMap, fmt::Write, mem};

use ipnet::IpNet;
use keiro_control::config::{Config, Tenant};
use keiro_linux::nft::{self, NftWatch};

use super::{
    exit::rules::{self as exit, Uplinks},
    split::{self, SplitGround},
};

/// The tables of all tenants.
#[derive(Default)]
pub(super) struct Mappings {
    /// What is in place, by the table's name.
    installed: BTreeMap<String, String>,
    /// `None` until there is a table, or where the kernel reports no changes.
    watch: Option<NftWatch>,
    /// Something failed and is tried again.
    incomplete: bool,
    /// What an earlier run left behind was looked for.
    swept: bool,
    /// Why TCP connections are not split, which keeps nothing else from its way.
    split_problem: Option<String>,
    /// The last problem that was logged.
    reported: Option<String>,
}

/// Names of tables begin so, and the tenant's number follows.
const TABLE: &str = "keiro-map-";

impl Mappings {
    /// Makes what is in place what `config` names.
    ///
    /// # Errors
    /// What the kernel does not take; [`Self::repair`] tries again.
    pub(super) fn install(
        &mut self,
        config: &Config,
        uplinks: &Uplinks,
        split: &SplitGround,
    ) -> Result<(), String> {
        let wanted = wanted(config, uplinks, split);
        if !config.tenants.is_empty() && !mem::replace(&mut self.swept, true) {
            remove_leftovers(&wanted);
        }
        self.incomplete = true;
        let gone = self
            .installed
            .keys()
            .filter(|name| !wanted.contains_key(*name));
        for name in gone.cloned().collect::<Vec<_>>() {
            nft::run(&nft::removal(&name)).map_err(|error| format!("{name}: {error}"))?;
            self.installed.remove(&name);
        }
        let mut first = Ok(());
        let mut split_problem = None;
        for (name, rules) in wanted {
            if self.installed.get(&name) == Some(&rules) {
                continue;
            }
            // One that fails keeps no other from its rules.
            match nft::run(&rules) {
                Ok(()) => {
                    self.installed.insert(name, rules);
                }
                Err(error) if name.starts_with(TABLE) => {
                    let problem = format!("map: the mapped networks are not reached: {error}");
                    first = first.and(Err(problem));
                }
                Err(error) if name.starts_with(split::TABLE) => {
                    split_problem = Some(format!("rules of nftables are refused: {error}"));
                }
                Err(error) => {
                    let problem = format!("exit: the Internet is not reached by it: {error}");
                    first = first.and(Err(problem));
                }
            }
        }
        self.incomplete = first.is_err() || split_problem.is_some();
        if let Some(problem) = &split_problem
            && self.split_problem != split_problem
        {
            tracing::warn!("tcp = \"split\": connections stay IP packets: {problem}");
        }
        self.split_problem = split_problem;
        match (self.installed.is_empty(), &self.watch) {
            (true, _) => self.watch = None,
            (false, None) => self.watch = NftWatch::open().ok(),
            (false, Some(_)) => {}
        }
        // Its own changes are no news.
        self.is_changed();
        first
    }

    /// Restores what another program has removed, and tries again what failed. `have_changed`: other interfaces are
    /// uplinks, or a device was made anew.
    pub(super) fn repair(
        &mut self,
        config: &Config,
        uplinks: &Uplinks,
        split: &SplitGround,
        have_changed: bool,
    ) {
        self.incomplete |= have_changed;
        if self.installed.is_empty() && !self.incomplete {
            return;
        }
        if self.is_changed() {
            let is_there = |name: &String| {
                nft::IP_FAMILIES
                    .iter()
                    .all(|of| nft::has_table(of, name).unwrap_or(false))
            };
            let before = self.installed.len();
            self.installed.retain(|name, _| is_there(name));
            if self.installed.len() < before {
                tracing::warn!("rules of nftables had been taken away; put back");
                self.incomplete = true;
            }
        }
        if !self.incomplete {
            return;
        }
        let problem = self.install(config, uplinks, split).err();
        if let Some(problem) = &problem
            && self.reported.as_ref() != Some(problem)
        {
            tracing::error!("{problem}; trying again every second");
        }
        self.reported = problem;
    }

    /// Whether the rules of an exit are in place.
    pub(super) fn has_exit(&self, tenant: &Tenant) -> bool {
        self.installed.contains_key(&exit::table(tenant))
    }

    /// Whether the rules are in place by which a tenant's TCP connections are split; or why not, if that is known.
    pub(super) fn split_rules(&self, tenant: &Tenant) -> Result<(), Option<&str>> {
        match self.installed.contains_key(&split::table(tenant)) {
            true => Ok(()),
            false => Err(self.split_problem.as_deref()),
        }
    }

    /// What was logged last and lasts.
    pub(super) fn problem(&self) -> Option<&str> {
        self.reported.as_deref().filter(|_| self.incomplete)
    }

    /// Removes all tables: without the gateway nothing is translated.
    pub(super) fn leave(&mut self) {
        for name in mem::take(&mut self.installed).into_keys() {
            if let Err(error) = nft::run(&nft::removal(&name)) {
                tracing::warn!(%error, "the table {name} of nftables stays");
            }
        }
        self.watch = None;
    }

    fn is_changed(&mut self) -> bool {
        let changed = self.watch.as_mut().map(NftWatch::changed);
        match changed {
            Some(Ok(changed)) => changed,
            Some(Err(error)) => {
                tracing::warn!(%error, "the kernel reports no changes of nftables");
                self.watch = None;
                true
            }
            None => false,
        }
    }
}

/// The scripts of all tables, by name.
fn wanted(config: &Config, uplinks: &Uplinks, split: &SplitGround) -> BTreeMap<String, String> {
    let mut wanted = BTreeMap::new();
    for tenant in &config.tenants {
        if !tenant.map.is_empty() {
            wanted.insert(table(tenant), rules(tenant));
        }
        if let Some(of) = &tenant.exit {
            let rules = exit::rules(config, tenant, of, uplinks);
            wanted.insert(exit::table(tenant), rules);
        }
        if let Some(rules) = split.rules(config, tenant) {
            wanted.insert(split::table(tenant), rules);
        }
    }
    wanted
}

/// Removes tables that a killed gateway left behind and that are not replaced. Without nft, or the right to use it, there
/// are none of this one's.
fn remove_leftovers(wanted: &BTreeMap<String, String>) {
    let is_left = |name: &String| {
        let is_own = [TABLE, exit::TABLE, split::TABLE]
            .iter()
            .any(|of| name.starts_with(of));
        is_own && !wanted.contains_key(name)
    };
    let names = match nft::table_names() {
        Ok(names) => names,
        Err(error) => return tracing::debug!(%error, "tables of nftables"),
    };
    for name in names.iter().filter(|name| is_left(name)) {
        match nft::run(&nft::removal(name)) {
            Ok(()) => tracing::info!("the table {name} of nftables was left behind; removed"),
            Err(error) => tracing::warn!(%error, "the table {name} of nftables stays"),
        }
    }
}

fn table(tenant: &Tenant) -> String {
    format!("{TABLE}{}", tenant.id)
}

/// Rules by which packets into the device, or out of it, are in the tenant's zone. `family` is not known to them.
fn zone_rules(tenant: &Tenant) -> [String; 2] {
    let device = &tenant.device;
    let zone = format!("ct zone set {}", ZONE | (tenant.id & 0xff));
    // A table of its own is looked up for packets of the tenant's interfaces alone.
    let entering: Vec<String> = match tenant.table {
        None => vec![format!("fib daddr oifname \"{device}\" {zone}")],
        Some(_) => {
            let interfaces = tenant.interfaces.iter();
            interfaces
                .map(|name| format!("iifname \"{name}\" {zone}"))
                .collect()
        }
    };
    let mut passing = format!("    iifname \"{device}\" {zone}\n");
    for rule in entering {
        let _ = writeln!(passing, "    {rule}");
    }
    [passing, format!("    oifname \"{device}\" {zone}\n")]
}

/// Zones of tenants begin here, and have the last byte of their number. Ours.
const ZONE: u32 = 0x4b00;

/// A script that puts the tables of a tenant in the place of older ones.
fn rules(tenant: &Tenant) -> String {
    let (name, device) = (table(tenant), &tenant.device);
    let mut script = nft::removal(&name);
    let [passing, own] = zone_rules(tenant);
    for family in nft::IP_FAMILIES {
        let is_of = |prefix: &IpNet| prefix.addr().is_ipv4() == (family == "ip");
        let (mut arriving, mut leaving) = (String::new(), String::new());
        for of in tenant.map.iter().filter(|of| is_of(&of.local)) {
            let (local, network) = (of.local, of.network);
            let _ = writeln!(
                arriving,
                "    iifname \"{device}\" {family} daddr {network} dnat {family} prefix to {local}"
            );
            let _ = writeln!(
                leaving,
                "    oifname \"{device}\" {family} saddr {local} snat {family} prefix to {network}"
            );
        }
        let _ = write!(
            script,
            "table {family} {name} {{\n  chain passing {{\n    type filter hook prerouting priority raw; policy accept;\n\
             {passing}  }}\n  chain own {{\n    type filter hook output priority raw; policy accept;\n\
             {own}  }}\n  chain arriving {{\n    type nat hook prerouting priority dstnat; policy accept;\n\
             {arriving}  }}\n  chain leaving {{\n    type nat hook postrouting priority srcnat; policy accept;\n\
             {leaving}  }}\n}}\n"
        );
    }
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_direction_is_translated_in_the_version_of_the_network() {
        let text = "[gateway]\nname = \"a\"\n[[path]]\nname = \"wan\"\ninterface = \"eth0\"\n[network]\nregistry = \"/r\"\n\
                    [tenant.office]\nid = 7\ndevice = \"t-office\"\nprefixes = [\"10.99.0.0/16\", \"fd99::/48\"]\n\
                    map = [{ local = \"192.168.1.0/24\", network = \"10.99.2.0/24\" }, \
                    { local = \"fd00::/64\", network = \"fd99::/64\" }]\n";
        let config = Config::parse(text, "f").unwrap_or_else(|error| panic!("{error}"));
        let rules = rules(&config.tenants[0]);
        for line in [
            "iifname \"t-office\" ip daddr 10.99.2.0/24 dnat ip prefix to 192.168.1.0/24",
            "oifname \"t-office\" ip saddr 192.168.1.0/24 snat ip prefix to 10.99.2.0/24",
            "iifname \"t-office\" ip6 daddr fd99::/64 dnat ip6 prefix to fd00::/64",
            "oifname \"t-office\" ip6 saddr fd00::/64 snat ip6 prefix to fd99::/64",
            "delete table ip6 keiro-map-7",
        ] {
            assert_eq!(rules.matches(line).count(), 1, "{line}:\n{rules}");
        }
        let by_route = "fib daddr oifname \"t-office\" ct zone set 19207";
        assert_eq!(rules.matches(by_route).count(), 2, "{rules}");
        let tenant = Tenant {
            table: Some(101),
            interfaces: vec!["lan0".to_owned()],
            ..config.tenants[0].clone()
        };
        let rules = super::rules(&tenant);
        assert!(!rules.contains("fib"), "{rules}");
        assert!(
            rules.contains("iifname \"lan0\" ct zone set 19207"),
            "{rules}"
        );
    }
}
