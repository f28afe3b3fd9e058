//! Tenants as the configuration has them: their devices, addresses, routes and rules are made,
//! followed and removed here, and the data thread is told.
//!
//! As with everything else a change has two halves: [`Tunnels::prepare`] opens what can fail,
//! [`Tunnels::apply`] only sends commands. Addresses, routes and rules follow ([`Tunnels::install`]);
//! what could not be had, and a device that was taken away, is tried again every second.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use ipnet::IpNet;
use keiro_control::config::{Config, Tenant, TenantRule};
use keiro_core::{AppId, TenantConfig, TenantId};
use keiro_ip::classify::Match;
use keiro_linux::{
    route::{Address, Entry, Installed, Route, RouteSocket, Rule, RuleVersion, TABLE_MAIN, Via},
    tun::{Existing, Tun, TunOptions},
};

use crate::{
    active::Active,
    data::{
        command::{Command, DataHandle, DataThreadGone},
        tunnels::{PeerSetup, TenantSetup},
    },
};

/// What is in use.
#[derive(Default)]
pub(crate) struct Tunnels {
    /// By name.
    devices: BTreeMap<String, Device>,
    next_device: u64,
    sent: BTreeMap<TenantId, TenantSetup>,
    /// `None` until there is a tenant.
    installed: Option<Installed>,
    /// Not everything could be installed.
    incomplete: bool,
}

struct Device {
    number: u64,
    /// `None`: it was taken away.
    tun: Option<Tun>,
    mtu: u32,
    queues: usize,
}

/// Devices that were opened for a new configuration, by name.
pub(crate) type Opened = BTreeMap<String, Tun>;

/// Where rules of tenants stand: before the main table's. Ours.
const RULE_PRIORITY: u32 = 7600;
/// Rules by address come after those by interface, which say more.
const ADDRESS_RULE_PRIORITY: u32 = RULE_PRIORITY + 1;
/// The last of a table: as the kernel's documentation of VRF has it.
const UNREACHABLE_METRIC: u32 = 4_278_198_272;

impl Tunnels {
    /// Opens the devices that `config` needs and that are not there.
    ///
    /// # Errors
    /// What cannot be had, where the configuration asks for it, and what to try.
    pub(crate) fn prepare(&self, config: &Config) -> anyhow::Result<Opened> {
        let mut opened = Opened::new();
        for tenant in &config.tenants {
            if !self.devices.contains_key(&tenant.device) {
                let tun = open(tenant)
                    .with_context(|| format!("{}: tenant `{}`", config.file(), tenant.name))?;
                opened.insert(tenant.device.clone(), tun);
            }
        }
        Ok(opened)
    }

    /// Makes what is in use what `config` says, all but addresses, routes and rules. `active` has
    /// the configuration's peers.
    pub(crate) fn apply(
        &mut self,
        config: &Config,
        opened: Opened,
        active: &Active,
        data: &DataHandle,
    ) -> Result<(), DataThreadGone> {
        for (name, tun) in opened {
            let number = self.next_device;
            self.next_device += 1;
            let mtu = tun.mtu().unwrap_or(0);
            let queues = tun.queues().len();
            let device = Device {
                number,
                tun: Some(hand_over(number, tun, data)?),
                mtu,
                queues,
            };
            self.devices.insert(name, device);
        }
        let mut wanted = BTreeMap::new();
        for tenant in &config.tenants {
            let Some(device) = self.devices.get_mut(&tenant.device) else {
                continue;
            };
            device.follow_mtu(tenant);
            if device.queues != tenant.device_queues {
                let name = &tenant.name;
                tracing::warn!(
                    "tenant `{name}`: device_queues is in force when the device is made"
                );
            }
            let setup = setup(config, tenant, device.number, active);
            wanted.insert(setup.config.id, setup);
        }
        for id in self.sent.keys().filter(|id| !wanted.contains_key(id)) {
            data.send(Command::RemoveTenant { id: *id })?;
        }
        for (id, setup) in &wanted {
            if self.sent.get(id) != Some(setup) {
                let setup = Box::new(setup.clone());
                data.send(Command::SetTenant { setup })?;
            }
        }
        self.sent = wanted;
        let used: BTreeSet<&str> = config.tenants.iter().map(|t| t.device.as_str()).collect();
        let unused = |name: &&String| !used.contains(name.as_str());
        let unused: Vec<String> = self.devices.keys().filter(unused).cloned().collect();
        for name in unused {
            if let Some(device) = self.devices.remove(&name) {
                let number = device.number;
                data.send(Command::RemoveDevice { number })?;
            }
        }
        Ok(())
    }

    /// Puts the addresses, routes and rules in place that `config` names, and removes those that it
    /// names no longer. What a killed gateway left behind in a tenant's table is taken over.
    ///
    /// # Errors
    /// The first that the kernel does not take. [`Self::mend`] tries again.
    pub(crate) fn install(&mut self, config: &Config) -> anyhow::Result<()> {
        if config.tenants.is_empty() && self.installed.is_none() {
            return Ok(());
        }
        self.incomplete = true;
        let installed = match &mut self.installed {
            Some(installed) => installed,
            None => {
                let socket = RouteSocket::open().context("tenants")?;
                self.installed.insert(Installed::new(socket))
            }
        };
        let tables: BTreeSet<u32> = config.tenants.iter().filter_map(|t| t.table).collect();
        for entry in installed.others().context("tenants")? {
            let table = match &entry {
                Entry::Route(route) => route.table,
                Entry::Rule(rule) => rule.table,
                // They go with their device.
                Entry::Address(_) => continue,
            };
            if tables.contains(&table) {
                tracing::info!(%entry, "left behind by an earlier run; taken over");
                installed.adopt(entry);
            }
        }
        let mut entries = Vec::new();
        for tenant in &config.tenants {
            let device = self.devices.get(&tenant.device);
            let index = device
                .and_then(|device| device.tun.as_ref())
                .map(Tun::index);
            entries.extend(entries_of(tenant, index));
        }
        let foreign = installed.set(&entries).context("tenants")?;
        for entry in foreign {
            tracing::warn!(%entry, "was there already, and will not be removed");
        }
        self.incomplete = false;
        Ok(())
    }

    /// A device does not work any more.
    pub(crate) fn on_lost(&mut self, number: u64, error: &str) {
        let found = self.devices.iter_mut().find(|(_, d)| d.number == number);
        if let Some((name, device)) = found {
            tracing::warn!(
                device = name.as_str(),
                error,
                "lost; trying to make it again"
            );
            device.tun = None;
        }
    }

    /// Tries to bring back what is missing.
    pub(crate) fn mend(
        &mut self,
        config: &Config,
        data: &DataHandle,
    ) -> Result<(), DataThreadGone> {
        for tenant in &config.tenants {
            let Some(device) = self.devices.get_mut(&tenant.device) else {
                continue;
            };
            if device.tun.is_some() {
                continue;
            }
            match open(tenant) {
                Ok(tun) => {
                    tracing::info!(device = tenant.device.as_str(), "the device is there again");
                    device.queues = tun.queues().len();
                    device.tun = Some(hand_over(device.number, tun, data)?);
                    self.incomplete = true;
                }
                Err(error) => {
                    tracing::debug!(device = tenant.device.as_str(), "{error:#}");
                }
            }
        }
        if self.incomplete
            && let Err(error) = self.install(config)
        {
            tracing::debug!("{error:#}");
        }
        Ok(())
    }
}

impl Device {
    fn follow_mtu(&mut self, tenant: &Tenant) {
        let mtu = mtu_of(tenant);
        if self.mtu == mtu {
            return;
        }
        match self.tun.as_ref().map(|tun| tun.set_mtu(mtu)) {
            Some(Err(error)) => tracing::error!(%error, "tenant `{}`", tenant.name),
            Some(Ok(())) | None => self.mtu = mtu,
        }
    }
}

fn mtu_of(tenant: &Tenant) -> u32 {
    u32::try_from(tenant.mtu.get()).unwrap_or(u32::MAX)
}

/// A device as the tenant wants it, up.
fn open(tenant: &Tenant) -> anyhow::Result<Tun> {
    let tun = Tun::open(&TunOptions {
        name: tenant.device.clone(),
        queues: tenant.device_queues,
        offloads: true,
        existing: Existing::Refuse,
    })?;
    // Without IPv6 there are no link-local addresses either.
    if let Err(error) = RouteSocket::open()?.refuse_link_local(tun.index()) {
        tracing::debug!(%error, "tenant `{}`", tenant.name);
    }
    tun.set_mtu(mtu_of(tenant))?;
    tun.set_up()?;
    Ok(tun)
}

/// Gives the device's queues to the data thread.
fn hand_over(number: u64, mut tun: Tun, data: &DataHandle) -> Result<Tun, DataThreadGone> {
    let command = Command::AddDevice {
        number,
        queues: tun.take_queues(),
        offloads: tun.offloads(),
    };
    data.send(command)?;
    Ok(tun)
}

fn setup(config: &Config, tenant: &Tenant, device: u64, active: &Active) -> TenantSetup {
    let app_id = |app: keiro_control::config::AppIndex| AppId::of_name(config[app].name.as_str());
    let mut peers = BTreeMap::new();
    for of in &tenant.peers {
        let Some(id) = active.peer_id(config[of.peer].name.as_str()) else {
            continue;
        };
        let rules = tenant
            .rules
            .iter()
            .filter(|rule| config[rule.app].peer == of.peer);
        let peer = PeerSetup {
            prefixes: of.prefixes.clone(),
            app: app_id(of.app),
            rules: rules
                .map(|rule| (matching(rule), app_id(rule.app)))
                .collect(),
        };
        peers.insert(id, peer);
    }
    let v6 = tenant.addresses.iter().find_map(|address| match address {
        IpNet::V6(address) => Some(address.addr()),
        IpNet::V4(_) => None,
    });
    TenantSetup {
        config: TenantConfig {
            id: TenantId(tenant.id),
            weight: tenant.weight,
            law: tenant.law(&config.fairness),
            queue_bytes_max: tenant.queue,
        },
        device,
        mtu: u16::try_from(tenant.mtu.get()).unwrap_or(u16::MAX),
        answer_from: v6,
        own: tenant.prefixes.clone(),
        peers,
    }
}

fn matching(rule: &TenantRule) -> Match {
    Match {
        source: rule.source,
        destination: rule.destination,
        protocol: rule.protocol,
        source_ports: rule.source_ports.clone(),
        destination_ports: rule.destination_ports.clone(),
        dscp: rule.dscp,
    }
}

/// What a tenant has in the kernel, in the order of adding. Without its device (`None`) only what
/// needs none.
fn entries_of(tenant: &Tenant, device: Option<u32>) -> Vec<Entry> {
    let mut entries = Vec::new();
    let table = tenant.table.unwrap_or(TABLE_MAIN);
    if let Some(interface) = device {
        for &address in &tenant.addresses {
            entries.push(Entry::Address(Address { interface, address }));
        }
        for &destination in &tenant.routes {
            entries.push(Entry::Route(Route {
                destination,
                table,
                via: Via::Interface(interface),
                metric: 0,
            }));
        }
    }
    if tenant.table.is_none() {
        return entries;
    }
    for v6 in [false, true] {
        if !tenant.uses(v6) {
            continue;
        }
        let (version, everything) = match v6 {
            true => (RuleVersion::V6, "::/0"),
            false => (RuleVersion::V4, "0.0.0.0/0"),
        };
        if let Ok(destination) = everything.parse() {
            entries.push(Entry::Route(Route {
                destination,
                table,
                via: Via::Unreachable,
                metric: UNREACHABLE_METRIC,
            }));
        }
        let rule = Rule {
            version,
            priority: RULE_PRIORITY,
            table,
            incoming: None,
            outgoing: None,
            mark: None,
            source: None,
        };
        let incoming = tenant.interfaces.iter().chain([&tenant.device]);
        for name in incoming {
            entries.push(Entry::Rule(Rule {
                incoming: Some(name.clone()),
                ..rule.clone()
            }));
        }
        // Intakes and outlets of the tenant are bound to one of its interfaces.
        let outgoing = tenant.interfaces.iter().chain([&tenant.device]);
        for name in outgoing {
            entries.push(Entry::Rule(Rule {
                outgoing: Some(name.clone()),
                ..rule.clone()
            }));
        }
        for address in &tenant.addresses {
            if matches!(address, IpNet::V6(_)) == v6 {
                entries.push(Entry::Rule(Rule {
                    priority: ADDRESS_RULE_PRIORITY,
                    source: Some(IpNet::from(address.addr())),
                    ..rule.clone()
                }));
            }
        }
    }
    entries
}
