//! Tenants' devices, addresses, routes and rules: opened, watched and removed here; the data thread
//! gets the devices' queues.
//!
//! [`TenantDevices::prepare`] opens what can fail, [`TenantDevices::apply`] only sends commands, and
//! [`TenantDevices::install`] installs addresses, routes and rules. What failed or was removed is retried
//! every second.

mod device_health;
mod exit;
mod kernel;
mod mapping;
mod split;

use std::{
    collections::{BTreeMap, BTreeSet},
    mem, thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use ipnet::IpNet;
use keiro_control::{
    config::{AppIndex, Classes, Config, Membership, Tenant, TenantRule},
    protocol::EventKind,
};
use keiro_core::{AppConfig, DeliveryClass, TenantConfig, TenantId};
use keiro_ip::{
    builtin_classes::{DomainPattern, PATTERNS_MAX, PatternId, Sorting},
    rules::Match,
};
use keiro_linux::{
    route::RouteSocket,
    tun::{self, Existing, Tun, TunError, TunOptions},
};

pub(crate) use self::device_health::DeviceHealth;
pub(crate) use self::kernel::{block, cleanup};
use self::{
    device_health::{ABSENT, DeviceEvents},
    exit::DefaultRouteTracker,
    kernel::{Interfaces, Kernel},
    mapping::Mappings,
    split::SplitGround,
};
use crate::{
    data::{
        command::{Command, DataHandle, DataThreadGone},
        split::app_of,
        tunnels::{ExitSetup, PeerSetup, TenantSetup},
    },
    running_config::{RunningConfig, app_id},
};

/// How long to wait for a device that this gateway had until just now. Ours: the kernel takes some
/// 20 ms to close each.
const CLOSING_TIME: Duration = Duration::from_secs(2);

/// What is in use.
#[derive(Default)]
pub(crate) struct TenantDevices {
    /// By name.
    devices: BTreeMap<String, Device>,
    /// Names of those that were given up and may not be closed yet.
    closing: BTreeSet<String>,
    next_device: u64,
    sent: BTreeMap<TenantId, TenantSetup>,
    /// Addresses, routes and rules.
    kernel: Kernel,
    mappings: Mappings,
    exits: DefaultRouteTracker,
    split: SplitGround,
    /// Numbers of tenants whose exit is not reached.
    unreached: BTreeSet<u32>,
    /// Of devices.
    reported: DeviceEvents,
    /// Some interface was not found, and is looked for once more.
    recheck: bool,
    /// The gateway has started, so that its packets are expected to be blocked when it ends.
    served: bool,
}

struct Device {
    number: u64,
    tun: Result<Tun, Lost>,
    mtu: u32,
    queues: usize,
    /// As it was seen last, of one that was not taken away.
    state: tun::DeviceState,
    /// Its interface was not found when it was looked for last.
    was_absent: bool,
}

/// It was taken away.
struct Lost {
    why: String,
    /// The last reported reason why it cannot be opened again.
    reported: Option<String>,
}

/// Devices opened for a new configuration, by name. If the configuration is not applied they are
/// removed by the thread that opened them.
#[derive(Default)]
pub(crate) struct OpenedDevices(BTreeMap<String, Tun>);

impl TenantDevices {
    /// Opens the devices that `config` needs and that are not there.
    ///
    /// # Errors
    /// What cannot be had, where the configuration asks for it, and what to try.
    pub(crate) fn prepare(&self, config: &Config) -> anyhow::Result<OpenedDevices> {
        let mut opened = OpenedDevices::default();
        for tenant in &config.tenants {
            if !self.devices.contains_key(&tenant.device) {
                let patience = match self.closing.contains(&tenant.device) {
                    true => CLOSING_TIME,
                    false => Duration::ZERO,
                };
                let tun = open_within(patience, tenant)
                    .with_context(|| format!("{}: tenant `{}`", config.file(), tenant.name))?;
                opened.0.insert(tenant.device.clone(), tun);
            }
        }
        Ok(opened)
    }

    /// Applies `config` except addresses, routes and rules. `running_config` has its peers.
    pub(crate) fn apply(
        &mut self,
        config: &Config,
        mut opened: OpenedDevices,
        running_config: &RunningConfig,
        data: &DataHandle,
    ) -> Result<(), DataThreadGone> {
        for (name, tun) in mem::take(&mut opened.0) {
            let number = self.next_device;
            self.next_device += 1;
            let mtu = tun.mtu().unwrap_or(0);
            let queues = tun.queues().len();
            let device = Device {
                number,
                tun: Ok(give_queues(number, tun, data)?),
                mtu,
                queues,
                state: tun::DeviceState::Up,
                was_absent: false,
            };
            self.closing.remove(&name);
            self.devices.insert(name, device);
        }
        let mut wanted = BTreeMap::new();
        self.split.open(config, data)?;
        self.exits.update(config);
        for tenant in &config.tenants {
            let Some(device) = self.devices.get_mut(&tenant.device) else {
                continue;
            };
            device.update_mtu(tenant);
            if device.queues != tenant.device_queues {
                let name = &tenant.name;
                tracing::warn!(
                    "tenant `{name}`: device_queues is in force when the device is made"
                );
            }
            let mut setup = setup(config, tenant, device.number, running_config);
            setup.exit = self.exit_of(tenant);
            setup.splits_tcp = self.splits_tcp(tenant);
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
        let mut removed = Vec::new();
        for name in unused {
            removed.extend(self.devices.remove(&name));
            self.closing.insert(name);
        }
        let interfaces = here(removed.iter());
        // Before they are closed, which would hold up everything else. A single one is as soon closed.
        if interfaces.len() > 1 {
            self.kernel.remove_devices(&interfaces);
        }
        for Device { number, .. } in removed {
            data.send(Command::RemoveDevice { number })?;
        }
        Ok(())
    }

    /// Removes all devices at once, since closing them one by one takes long; the data thread finds them
    /// gone. What blocks the packets of tenants stays ([`Kernel::leave`]).
    pub(crate) fn leave(&mut self, config: &Config) {
        let devices = here(self.devices.values());
        self.kernel.leave(config, &devices, self.served);
        self.mappings.leave();
    }

    /// The gateway has started: its tenants stay blocked when it ends.
    pub(crate) fn on_started(&mut self) {
        self.served = true;
    }

    /// Installs the addresses, routes and rules of `config` and removes others. Leftovers of a
    /// killed gateway are taken over.
    ///
    /// Returns what failed, a line each. [`Self::repair`] retries.
    pub(crate) fn install(&mut self, config: &Config) -> Vec<String> {
        self.look();
        let interfaces = self.interfaces();
        // Before the routes, which lead packets there.
        let unmapped = self
            .mappings
            .install(config, self.exits.uplinks(), &self.split)
            .err();
        let mut problems = self.kernel.install(config, &interfaces, &self.unreached);
        problems.extend(unmapped);
        problems
    }

    /// Devices that do not serve their tenants, a line each.
    pub(crate) fn problems(&self, config: &Config) -> Vec<String> {
        let of = |tenant: &Tenant| {
            let (name, device) = (&tenant.name, &tenant.device);
            match self.health(tenant)? {
                DeviceHealth::Up => None,
                DeviceHealth::Down { why, .. } => Some(format!(
                    "tenant `{name}`: its device {device} does not serve it: {why}"
                )),
                DeviceHealth::Lost { why } => Some(format!(
                    "tenant `{name}`: its device {device} is missing: {why}; the gateway tries again every second"
                )),
            }
        };
        config.tenants.iter().filter_map(of).collect()
    }

    /// `None` before there is a device.
    pub(crate) fn health(&self, tenant: &Tenant) -> Option<DeviceHealth> {
        let device = self.devices.get(&tenant.device)?;
        Some(device.health(&tenant.device))
    }

    /// How many tenants of `config` have their device, and up.
    pub(crate) fn tenants_with_device(&self, config: &Config) -> usize {
        let is_up = |tenant: &&Tenant| self.health(tenant) == Some(DeviceHealth::Up);
        config.tenants.iter().filter(is_up).count()
    }

    /// Device events since the last call.
    pub(crate) fn events(&mut self, config: &Config) -> Vec<EventKind> {
        self.reported.retain(
            &config
                .tenants
                .iter()
                .map(|tenant| tenant.name.as_str())
                .collect(),
        );
        let mut events = Vec::new();
        for tenant in &config.tenants {
            if let Some(health) = self.health(tenant) {
                events.extend(
                    self.reported
                        .update(tenant.name.as_str(), &tenant.device, &health),
                );
            }
        }
        events
    }

    /// A device does not work any more.
    pub(crate) fn on_lost(&mut self, number: u64, why: String) {
        let mut devices = self.devices.values_mut();
        if let Some(device) = devices.find(|device| device.number == number) {
            device.tun = Err(Lost {
                why,
                reported: None,
            });
        }
    }

    /// Checks devices, opens lost ones again, and follows exits. `unreached`: numbers of tenants whose exit is not
    /// reached.
    pub(crate) fn repair(
        &mut self,
        config: &Config,
        unreached: BTreeSet<u32>,
        data: &DataHandle,
    ) -> Result<(), DataThreadGone> {
        let mut needs_check = self.kernel.needs_check();
        needs_check |= self.unreached != unreached;
        self.unreached = unreached;
        if needs_check || self.recheck {
            self.look();
        }
        let mut is_made_anew = false;
        for tenant in &config.tenants {
            let Some(device) = self.devices.get_mut(&tenant.device) else {
                continue;
            };
            let Err(lost) = &mut device.tun else {
                continue;
            };
            match open(tenant) {
                Ok(tun) => {
                    device.queues = tun.queues().len();
                    device.state = tun::DeviceState::Up;
                    device.was_absent = false;
                    device.tun = Ok(give_queues(device.number, tun, data)?);
                    needs_check = true;
                    is_made_anew = true;
                }
                Err(error) => lost.report_once(tenant, &error),
            }
        }
        if needs_check {
            let interfaces = self.interfaces();
            self.kernel.repair(config, &interfaces, &self.unreached);
        }
        // Rules have the index of a device.
        let have_changed = self.exits.update(config) || is_made_anew;
        let uplinks = self.exits.uplinks();
        self.mappings
            .repair(config, uplinks, &self.split, have_changed);
        self.update_exits(config, data)?;
        self.release_absent(data)
    }

    /// Applies what has changed of the machine's default routes and links, and of the rules of exits and of split TCP
    /// connections: packets are led to the Internet, and connections are split, when these are in place.
    pub(crate) fn update_exits(
        &mut self,
        config: &Config,
        data: &DataHandle,
    ) -> Result<(), DataThreadGone> {
        let has_rules = |of: &&Tenant| of.exit.is_some() || of.splits_tcp();
        for tenant in config.tenants.iter().filter(has_rules) {
            let (exit, splits_tcp) = (self.exit_of(tenant), self.splits_tcp(tenant));
            let Some(setup) = self.sent.get_mut(&TenantId(tenant.id)) else {
                continue;
            };
            if setup.exit != exit || setup.splits_tcp != splits_tcp {
                (setup.exit, setup.splits_tcp) = (exit, splits_tcp);
                let setup = Box::new(setup.clone());
                data.send(Command::SetTenant { setup })?;
            }
        }
        Ok(())
    }

    /// Where an exit leads; `None`: the tenant is none.
    pub(crate) fn exit_of(&self, tenant: &Tenant) -> Option<ExitSetup> {
        self.exits.setup_of(tenant, self.mappings.has_exit(tenant))
    }

    fn splits_tcp(&self, tenant: &Tenant) -> bool {
        tenant.splits_tcp() && self.split_problem(tenant).is_none()
    }

    /// Why a tenant's TCP connections are not split that are to be; `None`: they are, or are not to be.
    pub(crate) fn split_problem(&self, tenant: &Tenant) -> Option<String> {
        self.split
            .problem(tenant, self.mappings.split_rules(tenant))
    }

    /// Why exits do not lead to the Internet, or rules of nftables are missing; `None`: neither is known.
    pub(crate) fn exit_problem(&self) -> Option<&str> {
        self.exits.problem().or_else(|| self.mappings.problem())
    }

    /// Closes a device that was moved to another namespace, where it can have no addresses and
    /// routes of ours. The next [`Self::repair`] opens another. Its number is not reused, so late
    /// reports of the data thread do not concern the new one.
    fn release_absent(&mut self, data: &DataHandle) -> Result<(), DataThreadGone> {
        for device in self.devices.values_mut() {
            if device.tun.is_err() || device.state != tun::DeviceState::Absent {
                continue;
            }
            let number = mem::replace(&mut device.number, self.next_device);
            self.next_device += 1;
            device.tun = Err(Lost {
                why: ABSENT.to_owned(),
                reported: None,
            });
            data.send(Command::RemoveDevice { number })?;
            for setup in self.sent.values_mut().filter(|s| s.device == number) {
                setup.device = device.number;
                let setup = Box::new(setup.clone());
                data.send(Command::SetTenant { setup })?;
            }
        }
        Ok(())
    }

    /// Sees what became of the devices' interfaces.
    fn look(&mut self) {
        self.recheck = false;
        for device in self.devices.values_mut() {
            self.recheck |= device.look();
        }
    }

    /// Those of the devices that are there.
    fn interfaces(&self) -> Interfaces {
        let devices = self.devices.iter();
        devices
            .filter_map(|(name, device)| {
                let is_here = !device.was_absent && device.state != tun::DeviceState::Absent;
                let tun = device.tun.as_ref().ok().filter(|_| is_here)?;
                Some((name.clone(), tun.index()))
            })
            .collect()
    }
}

/// Interfaces of the devices that are in this namespace, which numbers are of.
fn here<'a>(devices: impl Iterator<Item = &'a Device>) -> BTreeSet<u32> {
    let tuns = devices.filter_map(|device| device.tun.as_ref().ok());
    let here = tuns.filter(|tun| tun.state().is_ok_and(|s| s != tun::DeviceState::Absent));
    here.map(Tun::index).collect()
}

impl Drop for OpenedDevices {
    fn drop(&mut self) {
        let devices: BTreeSet<u32> = self.0.values().map(Tun::index).collect();
        if devices.len() > 1
            && let Err(error) = RouteSocket::open().and_then(|mut s| s.remove_tuns(&devices))
        {
            tracing::debug!(%error, "TUN devices are closed one by one");
        }
    }
}

impl Lost {
    /// Says once why the device cannot be made again.
    fn report_once(&mut self, tenant: &Tenant, error: &anyhow::Error) {
        let why = format!("{error:#}");
        if self.reported.as_ref() != Some(&why) {
            tracing::error!("tenant `{}`: {why}; trying again every second", tenant.name);
            self.reported = Some(why);
        }
    }
}

impl Device {
    /// Updates the state of its interface. Returns `true` to check once more: at first, a missing
    /// interface may be one whose removal the data thread is about to report.
    fn look(&mut self) -> bool {
        let Ok(tun) = &self.tun else {
            return false;
        };
        let state = match tun.state() {
            Ok(state) => state,
            Err(error) => {
                tracing::debug!(%error, "TUN device {}", tun.name());
                return false;
            }
        };
        let was_missed = mem::replace(&mut self.was_absent, state == tun::DeviceState::Absent);
        if self.was_absent && !was_missed {
            return true;
        }
        self.state = state;
        false
    }

    fn health(&self, name: &str) -> DeviceHealth {
        match &self.tun {
            Ok(_) => DeviceHealth::of(self.state.clone(), name),
            Err(lost) => DeviceHealth::Lost {
                why: lost.reported.clone().unwrap_or_else(|| lost.why.clone()),
            },
        }
    }

    fn update_mtu(&mut self, tenant: &Tenant) {
        let mtu = mtu_of(tenant);
        if self.mtu == mtu {
            return;
        }
        match self.tun.as_ref().map(|tun| tun.set_mtu(mtu)) {
            Ok(Err(error)) => tracing::error!(%error, "tenant `{}`", tenant.name),
            Ok(Ok(())) | Err(_) => self.mtu = mtu,
        }
    }
}

fn mtu_of(tenant: &Tenant) -> u32 {
    u32::try_from(tenant.mtu.get()).unwrap_or(u32::MAX)
}

/// The same as [`open`], which is tried again where the name may be free in a moment.
fn open_within(patience: Duration, tenant: &Tenant) -> anyhow::Result<Tun> {
    let began = Instant::now();
    loop {
        match open(tenant) {
            Err(error)
                if began.elapsed() < patience
                    && matches!(error.downcast_ref(), Some(TunError::Taken { .. })) =>
            {
                thread::sleep(Duration::from_millis(5));
            }
            result => return result,
        }
    }
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
fn give_queues(number: u64, mut tun: Tun, data: &DataHandle) -> Result<Tun, DataThreadGone> {
    let command = Command::AddDevice {
        number,
        queues: tun.take_queues(),
        offloads: tun.offloads(),
    };
    data.send(command)?;
    Ok(tun)
}

fn setup(
    config: &Config,
    tenant: &Tenant,
    device: u64,
    running_config: &RunningConfig,
) -> TenantSetup {
    let app_id = |app: AppIndex| app_id(&config[app]);
    let patterns = tenant.rules.iter().flat_map(|rule| &rule.domains);
    let patterns: BTreeSet<&DomainPattern> = patterns.collect();
    let patterns: Vec<DomainPattern> = patterns.into_iter().cloned().collect();
    let mut peers = BTreeMap::new();
    for of in &tenant.peers {
        let Some(id) = running_config.peer_id(config[of.peer].name.as_str()) else {
            continue;
        };
        let rules = tenant
            .rules
            .iter()
            .filter(|rule| config[rule.app].peer == of.peer);
        let classes = tenant.class_apps.get(&of.app).into_iter().flatten();
        let peer = PeerSetup {
            prefixes: of.prefixes.clone(),
            backup_prefixes: of.backup_prefixes.clone(),
            is_direct: of.is_direct,
            transit: of.transit,
            app: app_id(of.app),
            rules: rules
                .map(|rule| (matching(rule, &patterns), app_id(rule.app)))
                .collect(),
            classes: classes
                .map(|class| (class.class, app_id(class.app)))
                .collect(),
            split_app: tenant
                .splits_tcp()
                .then(|| split_app(config, tenant, of.app, running_config)),
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
            controller: tenant.controller(&config.fairness),
            queue_bytes_max: tenant.queue,
        },
        device,
        mtu: u16::try_from(tenant.mtu.get()).unwrap_or(u16::MAX),
        icmp_source_v6: v6,
        own: tenant.prefixes.clone(),
        exit: None,
        splits_tcp: false,
        notes_destinations: matches!(config.network, Some(Membership::Branch { .. })),
        sorting: Sorting {
            has_classes: tenant.classes == Classes::Auto,
            patterns,
            resolvers: tenant.resolvers.clone(),
        },
        peers,
    }
}

/// Carries split connections: with the target of the application that carries other packets, over all paths or the one
/// that it is pinned to.
fn split_app(
    config: &Config,
    tenant: &Tenant,
    app: AppIndex,
    running_config: &RunningConfig,
) -> AppConfig {
    let id = TenantId(tenant.id);
    let pinned = config[app].path;
    AppConfig {
        id: app_of(id),
        class: DeliveryClass::Stream,
        latency_target: config[app].latency_target,
        lifetime: None,
        paths: pinned
            .and_then(|path| running_config.path_ids().id(path))
            .into_iter()
            .collect(),
        tenant: id,
        is_spread: pinned.is_none(),
    }
}

/// `patterns`: those of all rules. Names have the place of the longest one, which a shorter one covers.
fn matching(rule: &TenantRule, patterns: &[DomainPattern]) -> Match {
    let covered = |pattern: &DomainPattern| rule.domains.iter().any(|of| of.covers(pattern));
    // More are refused when the file is read.
    let names = (0..PATTERNS_MAX as u16).map(PatternId).zip(patterns);
    let names = names.filter(|(_, pattern)| covered(pattern));
    Match {
        source: rule.source,
        destination: rule.destination,
        protocol: rule.protocol,
        source_ports: rule.source_ports.clone(),
        destination_ports: rule.destination_ports.clone(),
        dscp: rule.dscp,
        names: names.map(|(place, _)| place).collect(),
    }
}
