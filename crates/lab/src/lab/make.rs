//! Turns a topology into namespaces, devices, addresses and routes, in the order of their dependencies.

use std::{
    collections::BTreeMap,
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use keiro_linux::{netns::Netns, offload::disable_offloads};
use nix::{ifaddrs::getifaddrs, net::if_::InterfaceFlags};

use super::{
    Cpus, Host, Lab, LabError,
    iproute::{self, Batch},
    namespace_name,
};
use crate::{
    emulator::{EmulatorConfig, LinkSpec},
    topology::{HostPlan, LINKS_MAX, LinkPlan, Topology, WIRE},
};

/// Time for devices to come up; ours: normally it takes milliseconds.
const READY_WAIT: Duration = Duration::from_secs(10);

/// Period of checking readiness.
const READY_STEP: Duration = Duration::from_millis(2);

/// Sysctls of every host, before its own. Links are usable at once, and only the topology determines what a
/// host sends.
const HOST_SYSCTLS: [(&str, &str); 8] = [
    // No duplicate address detection, no router solicitations on links without routers.
    ("net.ipv6.conf.all.accept_dad", "0"),
    ("net.ipv6.conf.default.accept_dad", "0"),
    ("net.ipv6.conf.all.accept_ra", "0"),
    ("net.ipv6.conf.default.accept_ra", "0"),
    ("net.ipv6.conf.all.router_solicitations", "0"),
    ("net.ipv6.conf.default.router_solicitations", "0"),
    // With several paths, answers may take another one.
    ("net.ipv4.conf.all.rp_filter", "0"),
    ("net.ipv4.conf.default.rp_filter", "0"),
];

/// The wire namespace forwards frames and sends none of its own.
const WIRE_SYSCTLS: [(&str, &str); 2] = [
    ("net.ipv6.conf.all.disable_ipv6", "1"),
    ("net.ipv6.conf.default.disable_ipv6", "1"),
];

/// Makes everything in `lab`'s topology.
pub(super) fn make(lab: &mut Lab, seed: u64, cpus: Cpus) -> Result<(), LabError> {
    let topology = lab.topology.clone();
    let wire = make_namespaces(lab, &topology)?;
    if let Some(wire) = &wire {
        set_sysctls(WIRE, wire, &WIRE_SYSCTLS)?;
    }
    for host in lab.hosts.values() {
        host.run(|| set_sysctls_here(host.name(), &HOST_SYSCTLS))??;
    }
    make_links(lab, &topology)?;
    for (name, plan) in &topology.hosts {
        configure_host(lab, name, plan, &topology)?;
    }
    start_emulator(lab, &topology, seed, cpus)?;
    wait_until_ready(lab, &topology)
}

/// Makes the hosts' namespaces, and returns the wire's if there is one.
fn make_namespaces(lab: &mut Lab, topology: &Topology) -> Result<Option<Netns>, LabError> {
    let teardown = lab.teardown.clone();
    let mut opened = teardown.step(|made| {
        let mut opened = BTreeMap::new();
        for recorded in &mut made.record.namespaces {
            iproute::run(&["netns", "add", &recorded.name])?;
            let netns = Netns::open(&recorded.name)?;
            recorded.set_id(netns.id());
            opened.insert(recorded.name.clone(), netns);
        }
        made.record.update()?;
        Ok(opened)
    })?;
    for name in topology.hosts.keys() {
        let namespace = namespace_name(&lab.name, name);
        if let Some(netns) = opened.remove(&namespace) {
            let host = Host::new(name, netns, lab.teardown.children());
            lab.hosts.insert(name.clone(), host);
        }
    }
    Ok(opened.remove(&namespace_name(&lab.name, WIRE)))
}

/// Makes the links' devices, still down and without addresses.
fn make_links(lab: &Lab, topology: &Topology) -> Result<(), LabError> {
    let wire = namespace_name(&lab.name, WIRE);
    let mut batches = BTreeMap::new();
    let mut wire_up = Batch::new(&wire);
    for (index, (name, link)) in topology.links.iter().enumerate() {
        let mtu = link.mtu;
        let device = |side: Side| {
            let (index, mac) = (device_index(index, side), mac(index, side));
            format!("name {name} index {index} mtu {mtu} address {mac}")
        };
        let mut add = |side: Side, peer: String| {
            let command = format!("link add {} type veth peer {peer}", device(side));
            let host = &side.end(link).host;
            batches.entry(host).or_insert_with(Vec::new).push(command);
        };
        match &link.emulation {
            None => {
                let peer = namespace_name(&lab.name, &link.b.host);
                add(Side::A, format!("{} netns {peer}", device(Side::B)));
            }
            Some(_) => {
                for side in Side::BOTH {
                    let outer = outer_device(name, side);
                    let index = device_index(index, side) + OUTER_INDEX;
                    add(
                        side,
                        format!("name {outer} index {index} mtu {mtu} netns {wire}"),
                    );
                    wire_up.add(format!("link set dev {outer} up"));
                }
            }
        }
    }
    for (host, commands) in batches {
        let namespace = namespace_name(&lab.name, host);
        let mut batch = Batch::new(&namespace);
        commands.into_iter().for_each(|command| batch.add(command));
        lab.teardown.step(|_| batch.run())?;
    }
    lab.teardown.step(|_| wire_up.run())
}

/// Configures a host's sysctls, addresses, neighbours and routes.
fn configure_host(
    lab: &Lab,
    name: &str,
    plan: &HostPlan,
    topology: &Topology,
) -> Result<(), LabError> {
    let host = lab.host(name)?;
    let sysctls: Vec<_> = plan
        .sysctls
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .collect();
    host.run(|| set_sysctls_here(name, &sysctls))??;
    let mut batch = Batch::new(host.namespace());
    batch.add("link set dev lo up".into());
    for (index, (link_name, link)) in topology.links.iter().enumerate() {
        for side in Side::BOTH {
            if side.end(link).host == name {
                add_end(&mut batch, index, link_name, link, side);
            }
        }
    }
    for route in &plan.routes {
        let (to, via, link) = (route.to, route.via, &route.link);
        batch.add(format!("route add {to} via {via} dev {link}"));
    }
    lab.teardown.step(|_| batch.run())
}

fn add_end(batch: &mut Batch<'_>, index: usize, name: &str, link: &LinkPlan, side: Side) {
    for prefix in &side.end(link).addresses {
        let nodad = match prefix.address() {
            IpAddr::V4(_) => "",
            IpAddr::V6(_) => " nodad",
        };
        batch.add(format!("address add {prefix} dev {name}{nodad}"));
    }
    batch.add(format!("link set dev {name} up"));
    // Address resolution would cost the first packets a round trip of the emulated path, and could be lost
    // there. On a real path it happens between routers at each end.
    for prefix in &side.other().end(link).addresses {
        let (address, mac) = (prefix.address(), mac(index, side.other()));
        batch.add(format!(
            "neighbour replace {address} lladdr {mac} dev {name} nud permanent"
        ));
    }
}

/// Starts the emulator of the emulated links.
fn start_emulator(
    lab: &mut Lab,
    topology: &Topology,
    seed: u64,
    cpus: Cpus,
) -> Result<(), LabError> {
    let mut links = Vec::new();
    for (name, link) in &topology.links {
        let Some(emulation) = &link.emulation else {
            continue;
        };
        for side in Side::BOTH {
            let host = lab.host(&side.end(link).host)?;
            let result = host.run(|| disable_offloads(name))?;
            result.map_err(|source| LabError::Offload {
                host: host.name().to_owned(),
                source,
            })?;
        }
        let current = Mutex::new(emulation.clone());
        lab.emulations.insert(name.clone(), current);
        links.push(LinkSpec {
            name: name.clone(),
            a: outer_device(name, Side::A),
            b: outer_device(name, Side::B),
            a_to_b: emulation.a_to_b,
            b_to_a: emulation.b_to_a,
            recordings: emulation.recordings.clone(),
        });
    }
    if links.is_empty() {
        return Ok(());
    }
    let config = EmulatorConfig {
        netns: Some(namespace_name(&lab.name, WIRE)),
        links,
        seed,
        keep_cpus_awake: cpus.awake,
        cpu: cpus.emulator,
        ..EmulatorConfig::default()
    };
    lab.teardown.step(|made| {
        made.emulator = Some(config.start()?);
        Ok(())
    })
}

/// Waits until every device has its carrier and no IPv6 address is tentative.
fn wait_until_ready(lab: &Lab, topology: &Topology) -> Result<(), LabError> {
    let deadline = Instant::now() + READY_WAIT;
    for host in lab.hosts.values() {
        let devices: Vec<_> = topology
            .links
            .iter()
            .filter(|(_, link)| link.end(host.name()).is_some())
            .map(|(name, _)| name.as_str())
            .collect();
        let waited = host.run(|| {
            loop {
                match what_is_not_ready(&devices) {
                    None => return None,
                    what if Instant::now() >= deadline => return what,
                    Some(_) => thread::sleep(READY_STEP),
                }
            }
        })?;
        if let Some(what) = waited {
            return Err(LabError::NotReady {
                host: host.name().to_owned(),
                what,
                waited: READY_WAIT,
            });
        }
    }
    Ok(())
}

/// What is not ready in the calling thread's namespace; `None` if all is.
fn what_is_not_ready(devices: &[&str]) -> Option<String> {
    let up: Vec<String> = match getifaddrs() {
        Ok(addresses) => addresses
            .filter(|interface| interface.flags.contains(InterfaceFlags::IFF_RUNNING))
            .map(|interface| interface.interface_name)
            .collect(),
        Err(error) => return Some(format!("its devices cannot be listed ({error})")),
    };
    if let Some(down) = devices
        .iter()
        .find(|device| !up.iter().any(|up| up == *device))
    {
        return Some(format!("link `{down}` has no carrier"));
    }
    // One line per address: address, index, prefix length, scope, flags, device.
    let addresses = fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap_or_default();
    addresses.lines().find_map(|line| {
        let flags = line.split_ascii_whitespace().nth(4)?;
        let is_tentative = u8::from_str_radix(flags, 16).ok()? & IFA_F_TENTATIVE != 0;
        is_tentative.then(|| format!("IPv6 address still tentative: {line}"))
    })
}

const IFA_F_TENTATIVE: u8 = 0x40;

fn set_sysctls(host: &str, netns: &Netns, sysctls: &[(&str, &str)]) -> Result<(), LabError> {
    netns.run(|| set_sysctls_here(host, sysctls))?
}

/// Sets sysctls of the calling thread's namespace.
fn set_sysctls_here(host: &str, sysctls: &[(&str, &str)]) -> Result<(), LabError> {
    for (key, value) in sysctls {
        let path = sysctl_path(key);
        let is_optional = key.starts_with("net.ipv6.") && !Path::new("/proc/sys/net/ipv6").exists();
        if is_optional {
            continue;
        }
        fs::write(path, value).map_err(|source| LabError::Sysctl {
            host: host.to_owned(),
            key: (*key).to_owned(),
            value: (*value).to_owned(),
            source,
        })?;
    }
    Ok(())
}

/// `/proc/sys/net` shows the namespace of the thread that opens it.
fn sysctl_path(key: &str) -> PathBuf {
    Path::new("/proc/sys").join(key.replace('.', "/"))
}

/// The end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    A,
    B,
}

impl Side {
    pub(super) const BOTH: [Self; 2] = [Self::A, Self::B];

    pub(super) fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    pub(super) fn end(self, link: &LinkPlan) -> &crate::topology::End {
        match self {
            Self::A => &link.a,
            Self::B => &link.b,
        }
    }
}

/// The device of an emulated link in the wire's namespace.
pub(super) fn outer_device(link: &str, side: Side) -> String {
    match side {
        Side::A => format!("{link}-a"),
        Side::B => format!("{link}-b"),
    }
}

/// The index of a host's device, the same in every run. All indices of a laboratory are distinct: the kernel
/// reports a change of carrier at once only if the peer's index differs (`linkwatch_urgent_event`), and up to
/// a second later otherwise.
fn device_index(link: usize, side: Side) -> usize {
    FIRST_INDEX + 2 * link + side as usize
}

/// Above the indices that the kernel gives to the devices of a new namespace; ours.
const FIRST_INDEX: usize = 100;

/// Offset from a host's device to the outer one at the same end: two per link; ours.
const OUTER_INDEX: usize = 2 * LINKS_MAX;

/// A locally administered address (IEEE 802 §8.4) that identifies the link by its index in the topology, and
/// the end.
fn mac(index: usize, side: Side) -> String {
    let [.., high, low] = index.to_be_bytes();
    format!("02:6b:65:{high:02x}:{low:02x}:{:02x}", side as u8 + 1)
}
