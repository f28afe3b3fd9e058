//! Tenants as the configuration has them: their devices, addresses, routes and rules are made,
//! followed and removed here, and the data thread is told.
//!
//! As with everything else a change has two halves: [`Tunnels::prepare`] opens what can fail,
//! [`Tunnels::apply`] only sends commands. Addresses, routes and rules follow ([`Tunnels::install`]);
//! what could not be had, and what was taken away, is tried again every second.

mod kernel;

use std::{
    collections::{BTreeMap, BTreeSet},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use ipnet::IpNet;
use keiro_control::{
    config::{Config, Tenant, TenantRule},
    protocol::EventKind,
};
use keiro_core::{AppId, TenantConfig, TenantId};
use keiro_ip::classify::Match;
use keiro_linux::{
    route::RouteSocket,
    tun::{Existing, Tun, TunError, TunOptions},
};

use self::kernel::Kernel;
use crate::{
    active::Active,
    data::{
        command::{Command, DataHandle, DataThreadGone},
        tunnels::{PeerSetup, TenantSetup},
    },
};

/// How long a device is waited for that this gateway had until a moment ago. Ours: the kernel takes some
/// 20 ms for each.
const CLOSING_TIME: Duration = Duration::from_secs(2);

/// What is in use.
#[derive(Default)]
pub(crate) struct Tunnels {
    /// By name.
    devices: BTreeMap<String, Device>,
    /// Names of those that were given up and may not be closed yet.
    closing: BTreeSet<String>,
    next_device: u64,
    sent: BTreeMap<TenantId, TenantSetup>,
    /// Addresses, routes and rules.
    kernel: Kernel,
}

struct Device {
    number: u64,
    tun: Result<Tun, Lost>,
    mtu: u32,
    queues: usize,
}

/// It was taken away.
struct Lost {
    since: Instant,
    /// Why it could not be made again, as it was told.
    told: Option<String>,
}

/// Devices that were opened for a new configuration, by name.
pub(crate) type Opened = BTreeMap<String, Tun>;

impl Tunnels {
    /// Opens the devices that `config` needs and that are not there.
    ///
    /// # Errors
    /// What cannot be had, where the configuration asks for it, and what to try.
    pub(crate) fn prepare(&self, config: &Config) -> anyhow::Result<Opened> {
        let mut opened = Opened::new();
        for tenant in &config.tenants {
            if !self.devices.contains_key(&tenant.device) {
                let patience = match self.closing.contains(&tenant.device) {
                    true => CLOSING_TIME,
                    false => Duration::ZERO,
                };
                let tun = open_within(patience, tenant)
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
                tun: Ok(hand_over(number, tun, data)?),
                mtu,
                queues,
            };
            self.closing.remove(&name);
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
                self.closing.insert(name);
            }
        }
        Ok(())
    }

    /// Puts the addresses, routes and rules in place that `config` names, and removes those that it
    /// names no longer. What a killed gateway left behind is taken over.
    ///
    /// What could not be had is given, a line each. [`Self::mend`] tries again.
    pub(crate) fn install(&mut self, config: &Config) -> Vec<String> {
        let indices = self.indices();
        self.kernel.install(config, &indices)
    }

    /// The numbers of the devices that are there, by name.
    fn indices(&self) -> BTreeMap<String, u32> {
        let devices = self.devices.iter();
        devices
            .filter_map(|(name, device)| Some((name.clone(), device.tun.as_ref().ok()?.index())))
            .collect()
    }

    /// How many tenants of `config` have their device.
    pub(crate) fn tenants_with_device(&self, config: &Config) -> usize {
        let has_device = |tenant: &&Tenant| {
            let device = self.devices.get(&tenant.device);
            device.is_some_and(|device| device.tun.is_ok())
        };
        config.tenants.iter().filter(has_device).count()
    }

    /// A device does not work any more. What there is to tell of it.
    pub(crate) fn on_lost(
        &mut self,
        config: &Config,
        number: u64,
        reason: String,
    ) -> Option<EventKind> {
        let mut devices = self.devices.iter_mut();
        let (name, device) = devices.find(|(_, device)| device.number == number)?;
        device.tun = Err(Lost {
            since: Instant::now(),
            told: None,
        });
        let mut tenants = config.tenants.iter();
        let tenant = tenants.find(|tenant| tenant.device == *name)?;
        Some(EventKind::DeviceLost {
            tenant: tenant.name.to_string(),
            device: name.clone(),
            reason,
        })
    }

    /// Tries to bring back what is missing, and gives what there is to tell of it.
    pub(crate) fn mend(
        &mut self,
        config: &Config,
        data: &DataHandle,
    ) -> Result<Vec<EventKind>, DataThreadGone> {
        let mut told = Vec::new();
        for tenant in &config.tenants {
            let Some(device) = self.devices.get_mut(&tenant.device) else {
                continue;
            };
            let Err(lost) = &mut device.tun else {
                continue;
            };
            match open(tenant) {
                Ok(tun) => {
                    told.push(EventKind::DeviceRestored {
                        tenant: tenant.name.to_string(),
                        device: tenant.device.clone(),
                        lost_seconds: lost.since.elapsed().as_secs_f64(),
                    });
                    device.queues = tun.queues().len();
                    device.tun = Ok(hand_over(device.number, tun, data)?);
                }
                Err(error) => lost.tell(tenant, &error),
            }
        }
        if self.kernel.is_to_be_looked_at() || !told.is_empty() {
            let indices = self.indices();
            self.kernel.mend(config, &indices);
        }
        Ok(told)
    }
}

impl Lost {
    /// Says once why the device cannot be made again.
    fn tell(&mut self, tenant: &Tenant, error: &anyhow::Error) {
        let problem = format!("tenant `{}`: {error:#}", tenant.name);
        if self.told.as_ref() != Some(&problem) {
            tracing::error!("{problem}; trying again every second");
            self.told = Some(problem);
        }
    }
}

impl Device {
    fn follow_mtu(&mut self, tenant: &Tenant) {
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
