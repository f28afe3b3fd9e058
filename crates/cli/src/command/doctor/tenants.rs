//! Tenants: their interfaces, forwarding, and the routes of their packets.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;
use keiro_control::{
    config::{self, Config, DEFAULT_PREFIXES, Withheld},
    protocol::{DeviceState, ExitSnapshot, TenantPeerSnapshot},
};
use keiro_doctor::facts::{Exit, Lan, RouteLookup, Tenant, TenantPeer};
use keiro_linux::{interface::Interface, nft, route_lookup::Query, rule, uplink::UplinkSocket};

use super::{
    network::{Network, networks, setting},
    running::Running,
};

/// The rules of tenants by interface come at this priority at the earliest. Keiro's.
const TENANT_RULES: u32 = 7600;
/// Hosts of a network of which one is asked for. Ours.
const HOSTS_MAX: usize = 16;

/// `withheld` are prefixes that are not routed here.
pub(super) fn look(
    network: &Network,
    config: &Config,
    withheld: &[Withheld],
    running: Option<&Running>,
) -> Vec<Tenant> {
    let tenants = config.tenants.iter();
    tenants
        .map(|tenant| {
            let of_tenant = |of: &&Withheld| of.tenant == tenant.name;
            let withheld: Vec<Withheld> = withheld.iter().filter(of_tenant).cloned().collect();
            one(network, config, tenant, &withheld, running)
        })
        .collect()
}

fn one(
    network: &Network,
    config: &Config,
    tenant: &config::Tenant,
    withheld: &[Withheld],
    running: Option<&Running>,
) -> Tenant {
    let said = running.and_then(|running| running.tenant(tenant.name.as_str()));
    let lans: Vec<&Interface> = lans(network, tenant);
    let device_problem = said.as_ref().and_then(|(said, _)| {
        let why = said.device_problem.clone()?;
        (said.device_state != DeviceState::Up).then_some((said.device_state, why))
    });
    // All that is nowhere else is not routed in the main table.
    let is_routed = |prefix: &&IpNet| {
        let is_withheld = withheld.iter().any(|of| of.prefix == **prefix);
        !tenant.routes_follow_peers || tenant.routes.contains(prefix) && !is_withheld
    };
    let peers = tenant.peers.iter().map(|of| {
        let prefixes: Vec<IpNet> = of.prefixes.iter().filter(is_routed).copied().collect();
        let peer = config[of.peer].name.to_string();
        let refused = said.as_ref().and_then(|(_, refused)| refused.get(&*peer));
        TenantPeer {
            refused_packets: refused.copied().unwrap_or(0),
            routes: match said.is_some() && device_problem.is_none() {
                true => routes(network, &lans, &prefixes),
                false => Vec::new(),
            },
            foreign_rules: foreign_rules(&prefixes),
            prefixes,
            peer,
        }
    });
    Tenant {
        name: tenant.name.to_string(),
        id: tenant.id.into(),
        device: tenant.device.clone(),
        has_table: tenant.table.is_some(),
        prefixes: tenant.prefixes.clone(),
        peers: peers.collect(),
        withheld: withheld.to_vec(),
        lans: lans.iter().map(|lan| lan_of(lan)).collect(),
        device_forwards: forwards(&tenant.device),
        exit: tenant.exit.as_ref().map(|_| {
            let said = said.as_ref().and_then(|(said, _)| said.exit.as_ref());
            exit(network, tenant, said)
        }),
        exit_not_offered_by: said.as_ref().and_then(|(said, _)| {
            let internet = said.internet.as_ref()?;
            let has_exit = |of: &TenantPeerSnapshot| {
                let mut prefixes = of.prefixes.iter().chain(&of.backup_prefixes);
                prefixes.any(|prefix| DEFAULT_PREFIXES.iter().any(|of| of.to_string() == *prefix))
            };
            let is_offered = said.peers.iter().any(has_exit);
            (!is_offered).then(|| internet.via.clone())
        }),
        ingress_packets: said.as_ref().map_or(0, |(of, _)| of.stats.ingress_packets),
        egress_packets: said.as_ref().map_or(0, |(of, _)| of.stats.egress_packets),
        device_problem,
    }
}

/// What an exit needs; `said` by the gateway that runs.
fn exit(network: &Network, tenant: &config::Tenant, said: Option<&ExitSnapshot>) -> Exit {
    let mut uplinks = [Vec::new(), Vec::new()];
    let others = network.interfaces.iter();
    for interface in others.filter(|of| !of.loopback && of.name != tenant.device) {
        for (version, uplinks) in uplinks.iter_mut().enumerate() {
            let route = UplinkSocket::open()
                .and_then(|mut socket| socket.default_route(Some(interface.index), version == 1));
            if let Ok(Some(_)) = route {
                let forwards = forwards(&interface.name)[version];
                uplinks.push((interface.name.clone(), forwards));
            }
        }
    }
    let rules_problem = match said {
        Some(said) => said.problem.clone().filter(|_| said.ipv4 || said.ipv6),
        None => match nft::table_names() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some(error.to_string()),
            _ => None,
        },
    };
    Exit {
        uplinks,
        rules_problem,
    }
}

/// The interfaces that are configured, or those in whose network hosts of the tenant are.
fn lans<'a>(network: &'a Network, tenant: &config::Tenant) -> Vec<&'a Interface> {
    let is_of_prefix = |interface: &Interface| {
        let near = networks(interface);
        let locals = tenant.map.iter().map(|of| &of.local);
        let own: Vec<&IpNet> = tenant.prefixes.iter().chain(locals).collect();
        let is_inside = |net: &IpNet| own.iter().any(|prefix| prefix.contains(net));
        near.iter().any(is_inside)
    };
    let all = network.interfaces.iter();
    let is_lan = |interface: &&Interface| match tenant.interfaces.is_empty() {
        false => tenant.interfaces.contains(&interface.name),
        true => interface.name != tenant.device && !interface.loopback && is_of_prefix(interface),
    };
    all.filter(is_lan).collect()
}

fn lan_of(interface: &Interface) -> Lan {
    Lan {
        interface: interface.name.clone(),
        networks: networks(interface),
        forwards: forwards(&interface.name),
    }
}

/// Whether packets that come in by an interface are forwarded. In IPv6 the whole machine decides.
fn forwards(interface: &str) -> [Option<bool>; 2] {
    let v4 = setting(&format!("ipv4/conf/{interface}/forwarding"));
    let is_there = setting(&format!("ipv6/conf/{interface}/forwarding")).is_some();
    let v6 = setting("ipv6/conf/all/forwarding").filter(|_| is_there);
    [v4, v6].map(|value| value.map(|value| value != 0))
}

/// Where packets of a host go that it sends to each of the prefixes.
fn routes(network: &Network, lans: &[&Interface], prefixes: &[IpNet]) -> Vec<(IpNet, RouteLookup)> {
    let lookup = |prefix: &IpNet| {
        let to = host_of(prefix, &[])?;
        let found = lans.iter().find_map(|lan| {
            let own: Vec<IpAddr> = lan.addresses.iter().map(|address| address.ip).collect();
            let near = networks(lan);
            let near = near
                .iter()
                .find(|net| net.addr().is_ipv6() == to.is_ipv6())?;
            let query = Query {
                source: Some(host_of(near, &own)?),
                incoming: Some(lan.index),
                ..Query::to(to)
            };
            network.lookup(&query)
        });
        Some((*prefix, found?))
    };
    prefixes.iter().filter_map(lookup).collect()
}

/// An address of a host in a network that is none of these.
fn host_of(network: &IpNet, but: &[IpAddr]) -> Option<IpAddr> {
    // Of everything the first addresses are no host's.
    let far: IpAddr = match network {
        IpNet::V4(_) => Ipv4Addr::new(192, 0, 0, 8).into(),
        IpNet::V6(_) => Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 1).into(),
    };
    if network.contains(&far) {
        return Some(far);
    }
    let mut hosts = network.hosts().take(HOSTS_MAX);
    hosts.find(|host| !but.contains(host))
}

fn foreign_rules(prefixes: &[IpNet]) -> Vec<String> {
    let is_ipv6 = |prefix: &IpNet| prefix.addr().is_ipv6();
    let v6 = !prefixes.is_empty() && prefixes.iter().all(is_ipv6);
    rule::foreign_before(TENANT_RULES, v6).unwrap_or_default()
}
