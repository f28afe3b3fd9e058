//! Addresses, routes and rules of tenants: installed, watched, removed.
//!
//! Other programs change the same tables, and the kernel drops routes and IPv6 addresses of a
//! device that is set down. The kernel's notifications are watched, and missing entries restored.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    ops::RangeInclusive,
};

use ipnet::IpNet;
use keiro_control::config::{Config, Internet, Tenant, WhenDown, WhenStopped};
use keiro_linux::route::{
    Added, Address, Entry, Installed, Outcome, Route, RouteError, RouteSocket, RouteWatch, Rule,
    RuleVersion, TABLE_MAIN, Via,
};

use super::split;
use crate::uplinks;

/// The tenants' entries in the kernel.
#[derive(Default)]
pub(super) struct Kernel {
    /// `None` until there is a tenant.
    installed: Option<Installed>,
    /// `None` where the kernel reports no changes.
    watch: Option<RouteWatch>,
    /// Not everything could be installed.
    incomplete: bool,
    /// Leftovers of an earlier run were looked for.
    swept: bool,
    /// Reported problems, and entries of other owners.
    reported: BTreeSet<String>,
}

/// Of the devices that are there, by name.
pub(super) type Interfaces = BTreeMap<String, u32>;

/// Where rules of tenants stand: before the main table's. Ours.
const RULE_PRIORITY: u32 = 7600;
/// Rules by address come after those by interface, which say more.
const ADDRESS_RULE_PRIORITY: u32 = RULE_PRIORITY + 1;
/// Rules of `[tenant.NAME.internet]`, three for each source, in their order. What this machine sends itself takes the
/// main table: its own packets of the tunnel, of DHCP and to resolvers are among it.
const INTERNET_OWN_RULE: u32 = RULE_PRIORITY + 9;
/// Then routes of the main table, but for default ones: to local networks, and to the other sites.
const INTERNET_NEAR_RULE: u32 = INTERNET_OWN_RULE + 1;
/// Then the exit.
const INTERNET_RULE: u32 = INTERNET_NEAR_RULE + 1;
const INTERNET_PRIORITIES: RangeInclusive<u32> = INTERNET_OWN_RULE..=INTERNET_RULE;
/// Routes to prefixes of this length and shorter are default routes: some programs divide one by two, and unicast
/// addresses of IPv6 are 2000::/3.
const DEFAULT_PREFIX_BITS_MAX: u8 = 3;
/// The last of a table: as the kernel's documentation of VRF has it.
const UNREACHABLE_METRIC: u32 = 4_278_198_272;
/// Of unreachable routes beside those into a device: next to them, so that no other route to the prefix takes
/// their place when the device has gone. IPv6 takes the metric 0 of those into the device for 1,024.
const STAND_IN_METRIC_V4: u32 = 1;
const STAND_IN_METRIC_V6: u32 = 1025;
/// Problems that are reported at once. Ours.
const PROBLEMS_MAX: usize = 100;

impl Kernel {
    /// Makes what is in place what `config` names, with the devices that are there.
    /// What could not be had is given, a line each.
    pub(super) fn install(
        &mut self,
        config: &Config,
        devices: &Interfaces,
        unreached: &BTreeSet<u32>,
    ) -> Vec<String> {
        if config.tenants.is_empty() && self.installed.is_none() {
            if !mem::replace(&mut self.swept, true) {
                self.sweep(config);
            }
            return Vec::new();
        }
        // Only at the start: what other gateways leave behind later blocks the packets of their tenants.
        let result = match mem::replace(&mut self.swept, true) {
            false => self.take_over(config),
            true => self.open().map(drop),
        };
        self.incomplete = true;
        match result {
            Ok(()) => self.put_in_place(config, devices, unreached),
            Err(error) => vec![format!("tenants: {error}")],
        }
    }

    /// Without tenants only what a killed gateway left behind is removed. That needs no right that
    /// a gateway without tenants has, so failing is no reason not to start.
    fn sweep(&mut self, config: &Config) {
        if let Err(error) = self.take_over(config) {
            tracing::debug!("tenants: {error}");
        }
        for problem in self.put_in_place(config, &Interfaces::default(), &BTreeSet::new()) {
            tracing::warn!("{problem}");
        }
        *self = Self {
            swept: true,
            ..Self::default()
        };
    }

    /// Whether there is something to try again or something may be missing.
    pub(super) fn needs_check(&mut self) -> bool {
        let changed = self.watch.as_mut().is_some_and(|watch| {
            // What cannot be heard is looked at.
            watch.changed().unwrap_or(true)
        });
        self.installed.is_some() && (changed || self.incomplete)
    }

    /// Restores missing entries, retries failed ones, and logs new problems.
    pub(super) fn repair(
        &mut self,
        config: &Config,
        devices: &Interfaces,
        unreached: &BTreeSet<u32>,
    ) {
        let was_incomplete = self.incomplete;
        let before = self.reported.clone();
        for problem in self.put_in_place(config, devices, unreached) {
            if !before.contains(&problem) {
                tracing::error!("{problem}; trying again every second");
            }
        }
        if was_incomplete && !self.incomplete {
            tracing::info!("addresses, routes and rules of all tenants are in place");
        }
    }

    /// Removes devices at once. Those that are left go when they are closed.
    pub(super) fn remove_devices(&mut self, devices: &BTreeSet<u32>) {
        let Some(installed) = &mut self.installed else {
            return;
        };
        if let Err(error) = installed.remove_tuns(devices) {
            tracing::debug!(%error, "TUN devices are closed one by one");
        }
    }

    /// Removes the devices and everything but what blocks packets of tenants while no gateway runs. A
    /// gateway that has not `served` leaves only what was there before it.
    pub(super) fn leave(&mut self, config: &Config, devices: &BTreeSet<u32>, served: bool) {
        let Some(installed) = self.installed.take() else {
            return;
        };
        let blocked: Vec<&Tenant> = config
            .tenants
            .iter()
            .filter(|tenant| tenant.when_stopped == WhenStopped::Block)
            .collect();
        let blocks: BTreeSet<Entry> = blocked
            .iter()
            .flat_map(|tenant| blocks_of(tenant).into_iter().chain(internet_blocks(tenant)))
            .collect();
        let stays =
            |entry: &Entry, was_there: bool| (served || was_there) && blocks.contains(entry);
        if let Err(error) = installed.leave(stays, devices) {
            tracing::debug!(%error, "TUN devices are closed one by one");
        }
        if served && !blocked.is_empty() {
            tracing::info!(
                "packets of {} stay blocked until the gateway starts again; `keiro gateway --cleanup` removes that",
                names_of(&blocked)
            );
        }
    }

    /// Takes over what a stopped or killed gateway left behind, whether its table is in use now or not: rules
    /// without a gateway would lead packets into empty tables.
    fn take_over(&mut self, config: &Config) -> Result<(), RouteError> {
        let installed = self.open()?;
        let own: BTreeSet<&str> = config
            .tenants
            .iter()
            .flat_map(interface_names)
            .map(String::as_str)
            .collect();
        for entry in left_behind(installed, &own)? {
            tracing::info!(%entry, "left behind by an earlier run; taken over");
            installed.adopt(entry);
        }
        Ok(())
    }

    fn open(&mut self) -> Result<&mut Installed, RouteError> {
        if self.installed.is_none() {
            // Before anything is put in place, so that nothing is missed.
            let watch = RouteWatch::open();
            self.watch = watch
                .inspect_err(|error| tracing::warn!(%error, "no changes of routes are heard"))
                .ok();
        }
        match &mut self.installed {
            Some(installed) => Ok(installed),
            none => Ok(none.insert(Installed::new(RouteSocket::open()?))),
        }
    }

    fn put_in_place(
        &mut self,
        config: &Config,
        devices: &Interfaces,
        unreached: &BTreeSet<u32>,
    ) -> Vec<String> {
        let Some(installed) = &mut self.installed else {
            return Vec::new();
        };
        let mut entries = Vec::new();
        let mut owners = BTreeMap::new();
        for tenant in &config.tenants {
            let device = devices.get(&tenant.device).copied();
            let is_reached = !unreached.contains(&tenant.id);
            let of_exit = internet_entries(tenant, device, is_reached);
            for entry in entries_of(tenant, device).into_iter().chain(of_exit) {
                owners.insert(entry.clone(), tenant.name.as_str());
                entries.push(entry);
            }
        }
        entries.extend(split::entries(config));
        let of = |entry: &Entry| match owners.get(entry) {
            Some(name) => format!("tenant `{name}`"),
            None => "tenants".to_owned(),
        };
        let Outcome {
            put_back,
            foreign,
            mut errors,
        } = match installed.set(&entries) {
            Ok(outcome) => outcome,
            Err(error) => {
                self.incomplete = true;
                let problem = format!("tenants: {error}");
                self.reported.insert(problem.clone());
                return vec![problem];
            }
        };
        // The kernel refuses routes into a device that is down, and reports when it is up.
        errors.retain(|(_, error)| !error.is_down());
        self.incomplete = !errors.is_empty();
        // Its device has just gone, which is reported as such.
        errors.retain(|(_, error)| !matches!(error, RouteError::NoInterface { .. }));
        log_restored(&put_back, installed, of);
        let mut reported = BTreeSet::new();
        for entry in foreign {
            let entry = format!("{}: {}", of(&entry), installed.describe(&entry));
            if !self.reported.contains(&entry) {
                tracing::warn!("{entry} was there already, and will not be removed");
            }
            reported.insert(entry);
        }
        let problems = errors
            .iter()
            .take(PROBLEMS_MAX)
            .map(|(entry, error)| format!("{}: {error}", of(entry)));
        let mut problems: Vec<String> = problems.collect();
        let more = errors.len().saturating_sub(PROBLEMS_MAX);
        if more > 0 {
            problems.push(format!("tenants: {more} more addresses, routes and rules"));
        }
        reported.extend(problems.iter().cloned());
        self.reported = reported;
        problems
    }
}

/// A line for each tenant, with the first of it.
fn log_restored(put_back: &[Entry], installed: &mut Installed, of: impl Fn(&Entry) -> String) {
    let mut by_tenant: BTreeMap<String, Vec<&Entry>> = BTreeMap::new();
    for entry in put_back {
        by_tenant.entry(of(entry)).or_default().push(entry);
    }
    for (tenant, entries) in by_tenant {
        let first = installed.describe(entries[0]);
        let more = match entries.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        tracing::warn!("{tenant}: {first}{more} had been taken away; put back");
    }
}

/// Puts in place what blocks packets of the tenants of `config` while no gateway runs, and returns what was not
/// there yet, a line each.
///
/// # Errors
/// The kernel does not answer or refuses; CAP_NET_ADMIN is needed. Of other tenants all is in place.
pub(crate) fn block(config: &Config) -> Result<Vec<String>, RouteError> {
    let mut socket = RouteSocket::open()?;
    let mut added = Vec::new();
    let mut failed = None;
    for entry in config.tenants.iter().flat_map(blocks_while_stopped) {
        match socket.add(&entry) {
            Ok(Added::New) => added.push(entry.to_string()),
            Ok(_) => {}
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(added), Err)
}

/// What stays of a tenant when no gateway runs.
fn blocks_while_stopped(tenant: &Tenant) -> Vec<Entry> {
    match tenant.when_stopped {
        WhenStopped::Block => {
            let blocks = blocks_of(tenant).into_iter();
            blocks.chain(internet_blocks(tenant)).collect()
        }
        WhenStopped::Bypass => Vec::new(),
    }
}

/// Removes what gateways that do not run any more left behind, and returns it, a line each.
///
/// # Errors
/// The kernel does not answer or refuses; CAP_NET_ADMIN is needed.
pub(crate) fn cleanup() -> Result<Vec<String>, RouteError> {
    let mut socket = RouteSocket::open()?;
    let mut installed = Installed::new(RouteSocket::open()?);
    let mut found = left_behind(&mut installed, &BTreeSet::new())?;
    // Held until all is removed, so that no gateway that starts now takes one of them.
    let free = uplinks::free_table_sets();
    let of_uplinks = installed.others()?.into_iter();
    found.extend(of_uplinks.filter(|entry| free.iter().any(|set| set.has(entry))));
    let mut removed = Vec::new();
    // In reverse order: rules before the routes that they select.
    for entry in found.into_iter().rev() {
        if socket.remove(&entry)? {
            removed.push(entry.to_string());
        }
    }
    Ok(removed)
}

/// Entries of gateways that do not run any more. `own` are names of interfaces of the caller, which no other
/// gateway has.
fn left_behind(installed: &mut Installed, own: &BTreeSet<&str>) -> Result<Vec<Entry>, RouteError> {
    let mut entries = installed.others()?;
    // Routes into a device are there as long as its gateway runs.
    let served: BTreeSet<(IpNet, u32)> = entries
        .iter()
        .filter_map(|entry| match entry {
            Entry::Route(route) if route.via != Via::Unreachable => {
                Some((route.destination, route.table))
            }
            _ => None,
        })
        .collect();
    // As are the rules that lead there.
    let served_sources: BTreeSet<Option<IpNet>> = entries
        .iter()
        .filter_map(|entry| match entry {
            Entry::Rule(rule) if rule.priority == INTERNET_RULE => {
                let is_served = served.iter().any(|(_, table)| *table == rule.table);
                is_served.then_some(rule.source)
            }
            _ => None,
        })
        .collect();
    entries.retain(|entry| match entry {
        _ if split::is_entry(entry) => true,
        Entry::Route(route) => {
            is_block(route) && !served.contains(&(route.destination, route.table))
        }
        Entry::Rule(rule) if INTERNET_PRIORITIES.contains(&rule.priority) => {
            !served_sources.contains(&rule.source)
        }
        Entry::Rule(rule) => [RULE_PRIORITY, ADDRESS_RULE_PRIORITY].contains(&rule.priority),
        Entry::Address(_) => false,
    });
    let anothers = tables_of_others(own, &entries, |name| installed.is_tun(name))?;
    entries.retain(|entry| table_of(entry).is_some_and(|table| !anothers.contains(&table)));
    Ok(entries)
}

/// Whether a route is of the kind that stays in a tenant's table when its device has gone.
fn is_block(route: &Route) -> bool {
    let metrics = [UNREACHABLE_METRIC, stand_in_metric(&route.destination)];
    route.via == Via::Unreachable && metrics.contains(&route.metric)
}

fn stand_in_metric(destination: &IpNet) -> u32 {
    match destination {
        IpNet::V4(_) => STAND_IN_METRIC_V4,
        IpNet::V6(_) => STAND_IN_METRIC_V6,
    }
}

fn table_of(entry: &Entry) -> Option<u32> {
    match entry {
        Entry::Address(_) => None,
        Entry::Route(route) => Some(route.table),
        Entry::Rule(rule) => Some(rule.table),
    }
}

/// Tables of gateways that run beside this one: a rule leads there by a TUN device, which is there as
/// long as its gateway runs, and which is none of `own`.
fn tables_of_others(
    own: &BTreeSet<&str>,
    entries: &[Entry],
    mut is_tun: impl FnMut(&str) -> Result<bool, RouteError>,
) -> Result<BTreeSet<u32>, RouteError> {
    let mut tables = BTreeSet::new();
    for entry in entries {
        let Entry::Rule(rule) = entry else {
            continue;
        };
        let name = rule.incoming.as_deref().filter(|name| !own.contains(name));
        if let Some(name) = name
            && !tables.contains(&rule.table)
            && is_tun(name)?
        {
            tables.insert(rule.table);
        }
    }
    Ok(tables)
}

fn interface_names(tenant: &Tenant) -> impl Iterator<Item = &String> {
    tenant.interfaces.iter().chain([&tenant.device])
}

/// Names of up to a few tenants, for a log line.
fn names_of(tenants: &[&Tenant]) -> String {
    const SHOWN: usize = 5;
    let names: Vec<&str> = tenants
        .iter()
        .take(SHOWN)
        .map(|t| t.name.as_str())
        .collect();
    let kind = if tenants.len() == 1 {
        "tenant"
    } else {
        "tenants"
    };
    match tenants.len().saturating_sub(SHOWN) {
        0 => format!("{kind} {}", names.join(", ")),
        more => format!("{kind} {} and {more} more", names.join(", ")),
    }
}

/// What a tenant has in the kernel, in the order of adding: what blocks packets before what carries them.
/// Without its device (`None`) only what needs none.
fn entries_of(tenant: &Tenant, device: Option<u32>) -> Vec<Entry> {
    let mut entries = blocks_of(tenant);
    let Some(interface) = device else {
        return entries;
    };
    for &address in &tenant.addresses {
        entries.push(Entry::Address(Address { interface, address }));
    }
    for &destination in &tenant.routes {
        entries.push(Entry::Route(Route {
            destination,
            table: tenant.table.unwrap_or(TABLE_MAIN),
            via: Via::Interface(interface),
            metric: 0,
        }));
    }
    entries
}

/// What keeps a tenant's packets from other routes, with or without its device.
fn blocks_of(tenant: &Tenant) -> Vec<Entry> {
    let mut entries = Vec::new();
    if tenant.when_stopped == WhenStopped::Block {
        for &destination in &tenant.routes {
            entries.push(Entry::Route(Route {
                destination,
                table: tenant.table.unwrap_or(TABLE_MAIN),
                via: Via::Unreachable,
                metric: stand_in_metric(&destination),
            }));
        }
    }
    let Some(table) = tenant.table else {
        return entries;
    };
    for v6 in [false, true] {
        if tenant.uses(v6) {
            entries.extend(unreachable_at_end(table, v6));
            entries.extend(rules_of(tenant, table, v6).map(Entry::Rule));
        }
    }
    entries
}

/// The last route of a tenant's table, so that no other table is looked up.
fn unreachable_at_end(table: u32, v6: bool) -> Option<Entry> {
    let everything = if v6 { "::/0" } else { "0.0.0.0/0" };
    Some(Entry::Route(Route {
        destination: everything.parse().ok()?,
        table,
        via: Via::Unreachable,
        metric: UNREACHABLE_METRIC,
    }))
}

/// Rules that lead a tenant's packets into its table.
fn rules_of(tenant: &Tenant, table: u32, v6: bool) -> impl Iterator<Item = Rule> {
    let rule = Rule {
        version: if v6 { RuleVersion::V6 } else { RuleVersion::V4 },
        priority: RULE_PRIORITY,
        table,
        incoming: None,
        outgoing: None,
        mark: None,
        source: None,
        udp_source_port: None,
        suppressed_prefix_length: None,
    };
    let mut rules = Vec::new();
    for name in interface_names(tenant) {
        rules.push(Rule {
            incoming: Some(name.clone()),
            ..rule.clone()
        });
    }
    // Listeners and forwards of the tenant are bound to one of its interfaces.
    for name in interface_names(tenant) {
        rules.push(Rule {
            outgoing: Some(name.clone()),
            ..rule.clone()
        });
    }
    for address in &tenant.addresses {
        if matches!(address, IpNet::V6(_)) == v6 {
            rules.push(Rule {
                priority: ADDRESS_RULE_PRIORITY,
                source: Some(IpNet::from(address.addr())),
                ..rule.clone()
            });
        }
    }
    rules.into_iter()
}

/// What leads packets of this site to an exit. Where it blocks what cannot get there, the last of it stays without the
/// device and while no gateway runs.
fn internet_entries(tenant: &Tenant, device: Option<u32>, is_reached: bool) -> Vec<Entry> {
    let Some(internet) = &tenant.internet else {
        return Vec::new();
    };
    let mut entries = Vec::new();
    if let Some(interface) = device
        && (is_reached || internet.when_down == WhenDown::Block)
    {
        entries.extend(internet_routes(tenant, |_| (Via::Interface(interface), 0)));
    }
    entries.extend(match internet.when_down {
        WhenDown::Block => internet_blocks(tenant),
        // Without a route in the table the kernel goes on to the main one.
        WhenDown::Local => internet_rules(tenant),
    });
    entries
}

/// What keeps packets for an exit from this machine's own default route.
fn internet_blocks(tenant: &Tenant) -> Vec<Entry> {
    let is_blocked = |of: &Internet| of.when_down == WhenDown::Block;
    if !tenant.internet.as_ref().is_some_and(is_blocked) {
        return Vec::new();
    }
    let stand_in = |to: &IpNet| (Via::Unreachable, stand_in_metric(to));
    let mut entries = internet_routes(tenant, stand_in);
    entries.extend(internet_rules(tenant));
    entries
}

fn internet_routes(tenant: &Tenant, via: impl Fn(&IpNet) -> (Via, u32)) -> Vec<Entry> {
    let sources = tenant.internet_sources();
    let destinations = tenant.internet.iter().flat_map(|internet| &internet.to);
    let is_used = |to: &&IpNet| {
        sources
            .iter()
            .any(|from| from.addr().is_ipv4() == to.addr().is_ipv4())
    };
    let route = |to: &IpNet| {
        let (via, metric) = via(to);
        Entry::Route(Route {
            destination: *to,
            table: tenant.exit_table(),
            via,
            metric,
        })
    };
    destinations.filter(is_used).map(route).collect()
}

fn internet_rules(tenant: &Tenant) -> Vec<Entry> {
    let rules = tenant.internet_sources().into_iter().flat_map(|source| {
        let rule = Rule {
            version: match source {
                IpNet::V4(_) => RuleVersion::V4,
                IpNet::V6(_) => RuleVersion::V6,
            },
            priority: INTERNET_RULE,
            table: tenant.exit_table(),
            incoming: None,
            outgoing: None,
            mark: None,
            source: Some(source),
            udp_source_port: None,
            suppressed_prefix_length: None,
        };
        let near = Rule {
            priority: INTERNET_NEAR_RULE,
            table: TABLE_MAIN,
            suppressed_prefix_length: Some(DEFAULT_PREFIX_BITS_MAX),
            ..rule.clone()
        };
        let own = Rule {
            priority: INTERNET_OWN_RULE,
            table: TABLE_MAIN,
            incoming: Some("lo".to_owned()),
            ..rule.clone()
        };
        // The exit's last, so that the tunnel's own packets are never led there.
        [own, near, rule].map(Entry::Rule)
    });
    rules.collect()
}
