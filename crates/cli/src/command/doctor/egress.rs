//! The facts about a border router or a content server.

use std::{
    fs, io,
    net::{IpAddr, Ipv6Addr},
    path::Path,
    process::ExitCode,
};

use keiro_doctor::{
    Finding,
    egress::{Alarm, Daemon, EgressFacts, Link as WayByLink, Neighbour, Way, diagnose_egress},
};
use keiro_egress::{
    config::{AsbrConfig, EndpointConfig, Kind, Mptcp, Neighbour as Configured, SpeakerConfig},
    control::{self, Answer, Request},
};
use keiro_linux::{
    duplicate_address,
    epe::{PROTOCOL_ASBR, PROTOCOL_EGRESS},
    interface::{self, Interface},
    nft,
    route::PROTOCOL,
    route_lookup::{Query, RouteLookup},
    rule, unix,
};
use serde::Serialize;

use super::{FOUND, NOT_CHECKED};
use crate::{command::Outcome, output};

#[derive(Serialize)]
struct Report<'a> {
    config_file: &'a str,
    role: &'static str,
    findings: &'a [Finding],
    not_checked: &'a [String],
}

/// The kind of a file, by its first table; `None`: it is a gateway's, or not readable.
pub(super) fn kind(file: &Path) -> Option<Kind> {
    Kind::of(&fs::read_to_string(file).ok()?)
}

pub(super) fn doctor(file: &Path, kind: Kind, json: bool) -> Outcome {
    let mut not_checked = Vec::new();
    let facts = look(file, kind, &mut not_checked);
    let findings = diagnose_egress(&facts);
    let role = if facts.server { "egress" } else { "asbr" };
    let written = match json {
        true => output::json(&Report {
            config_file: &facts.file,
            role,
            findings: &findings,
            not_checked: &not_checked,
        }),
        false => output::text(text(&facts, &findings)),
    };
    output::allow_closed_reader(written)?;
    for line in &not_checked {
        output::message!("keiro: not checked: {line}");
    }
    Ok(match (findings.is_empty(), not_checked.is_empty()) {
        (false, _) => ExitCode::from(FOUND),
        (true, false) => ExitCode::from(NOT_CHECKED),
        (true, true) => ExitCode::SUCCESS,
    })
}

fn text(facts: &EgressFacts, findings: &[Finding]) -> String {
    if findings.is_empty() {
        let role = if facts.server {
            "content server"
        } else {
            "border router"
        };
        let neighbours = facts.neighbours.len();
        return format!("nothing found: {role} with {neighbours} neighbours\n");
    }
    super::findings_text(findings)
}

fn look(file: &Path, kind: Kind, not_checked: &mut Vec<String>) -> EgressFacts {
    let mut facts = EgressFacts {
        server: kind == Kind::Endpoint,
        file: file.display().to_string(),
        ..EgressFacts::default()
    };
    let speaker = match kind {
        Kind::Asbr => AsbrConfig::load(file).map(|config| {
            facts.neighbours = of_asbr(&config);
            look_at_border_router(&config, &mut facts, not_checked);
            config.speaker
        }),
        Kind::Endpoint => EndpointConfig::load(file).map(|config| {
            look_at_server(&config, &mut facts, not_checked);
            config.speaker
        }),
    };
    facts.no_segment_routing = !Path::new("/proc/sys/net/ipv6/conf/all/seg6_enabled").exists();
    facts.forwarding = sysctl("net/ipv6/conf/all/forwarding").map(|value| value != 0);
    match speaker {
        Err(error) => facts.invalid = Some(error.to_string()),
        Ok(speaker) => ask_daemon(&speaker, &mut facts, not_checked),
    }
    facts
}

fn look_at_border_router(
    config: &AsbrConfig,
    facts: &mut EgressFacts,
    not_checked: &mut Vec<String>,
) {
    facts.rules_before = rules_before(config.rule_priority);
    if config.peers.iter().any(|peer| peer.ipv4_sid.is_some()) {
        facts.ipv4_forwarding = sysctl("net/ipv4/ip_forward").map(|value| value != 0);
        let what = "IPv4 packets by segments take the best path";
        facts.no_nftables = without_nftables(what, not_checked);
    }
}

/// Routing protocol numbers of Keiro's daemons.
const OWN: [u8; 3] = [PROTOCOL, PROTOCOL_EGRESS, PROTOCOL_ASBR];

/// Rules of other programs that match every packet before those with this priority.
fn rules_before(priority: u32) -> Vec<String> {
    let families = [false, true].into_iter();
    let all =
        families.flat_map(|v6| rule::matching_all_before(priority, v6, &OWN).unwrap_or_default());
    let mut all: Vec<String> = all.collect();
    all.dedup();
    all
}

/// What does not work without nftables, and why there is none; `None`: there is.
fn without_nftables(
    what: &'static str,
    not_checked: &mut Vec<String>,
) -> Option<(&'static str, String)> {
    match nft::table_names() {
        Ok(_) => None,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Some((what, error.to_string())),
        Err(error) if unix::effective_uid() != 0 => {
            not_checked.push(format!("nftables: {error}; run it as root"));
            None
        }
        Err(error) => Some((what, error.to_string())),
    }
}

fn of_asbr(config: &AsbrConfig) -> Vec<Neighbour> {
    let links = interface::list().unwrap_or_default();
    let peers = config.peers.iter().map(|peer| (&peer.neighbour, true));
    let reflectors = config.reflectors.iter().map(|one| (one, false));
    peers
        .chain(reflectors)
        .map(|(neighbour, is_peer)| look_at_neighbour(neighbour, is_peer, &links))
        .collect()
}

fn look_at_server(config: &EndpointConfig, facts: &mut EgressFacts, not_checked: &mut Vec<String>) {
    facts.rules_before = rules_before(config.rule_priority);
    if config.steering.is_some() {
        facts.no_nftables = without_nftables("nothing is steered", not_checked);
    }
    let links = interface::list().unwrap_or_default();
    let neighbours = config.reflectors.iter();
    facts.neighbours = neighbours
        .map(|neighbour| look_at_neighbour(neighbour, false, &links))
        .collect();
    let towards_reflector = facts.neighbours.first().and_then(|one| match &one.way {
        Way::Link(link) => Some(link.interface.clone()),
        Way::Nowhere | Way::Local => None,
    });
    let link = config.interface.clone().or(towards_reflector);
    let link = link.and_then(|name| links.into_iter().find(|link| link.name == name));
    if config.mptcp != Mptcp::Off {
        facts.no_mptcp = match sysctl("net/mptcp/enabled") {
            None => Some("this kernel has no MPTCP".to_owned()),
            Some(0) => Some("net.mptcp.enabled is 0".to_owned()),
            Some(_) => None,
        };
    }
    let Some(link) = link else { return };
    facts.segment_link = Some((link.name.clone(), link.mtu));
    for peer in &config.peers {
        match other_host_has(&link, peer.address) {
            Ok(true) => facts.duplicates.push((peer.name.clone(), peer.address)),
            Ok(false) => {}
            Err(error) => {
                not_checked.push(format!(
                    "whether another host has an EPE address: {error}; run it as root"
                ));
                return;
            }
        }
    }
}

fn other_host_has(link: &Interface, address: Ipv6Addr) -> io::Result<bool> {
    match link.is_running() && !link.loopback {
        true => duplicate_address::is_at_another_host(link.index, address),
        false => Ok(false),
    }
}

fn look_at_neighbour(neighbour: &Configured, is_peer: bool, links: &[Interface]) -> Neighbour {
    let address = neighbour.address;
    let way = match Query::to(address).lookup() {
        Ok(RouteLookup::Local) => Way::Local,
        Ok(RouteLookup::Nowhere) | Err(_) => Way::Nowhere,
        Ok(RouteLookup::Interface { index, gateway }) => {
            let link = links.iter().find(|link| link.index == index);
            link.map_or(Way::Nowhere, |link| way_by(link, gateway, address))
        }
    };
    Neighbour {
        name: neighbour.name.clone(),
        address,
        way,
        one_hop: neighbour.one_hop,
        has_ipv4: is_peer && neighbour.has_ipv4(),
    }
}

fn way_by(link: &Interface, gateway: Option<IpAddr>, to: IpAddr) -> Way {
    let filter = |name: &str| sysctl(&format!("net/ipv4/conf/{name}/rp_filter")).unwrap_or(0);
    let of_family = |ip: &IpAddr| {
        let link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        ip.is_ipv6() == to.is_ipv6() && !link_local
    };
    Way::Link(WayByLink {
        interface: link.name.clone(),
        gateway,
        running: link.is_running(),
        has_address: link.addresses.iter().any(|own| of_family(&own.ip)),
        // The stricter of the two counts, and 2 is loose (ip-sysctl.rst).
        strict_filter: filter("all").max(filter(&link.name)) == 1,
    })
}

fn ask_daemon(speaker: &SpeakerConfig, facts: &mut EgressFacts, not_checked: &mut Vec<String>) {
    let Some(socket) = &speaker.control_socket else {
        facts.daemon = Daemon::NoSocket;
        not_checked.push(format!(
            "the daemon: {} has no `control_socket`, by which it can be asked",
            facts.file
        ));
        return;
    };
    match control::ask(socket, Request::Status) {
        Ok(Answer::Status(status)) => {
            let alarms = status.alarms.into_iter();
            facts.alarms = alarms
                .map(|alarm| Alarm {
                    cause: alarm.cause.to_string(),
                    subject: alarm.subject,
                    text: alarm.text,
                })
                .collect();
        }
        Ok(_) => {
            let what = "the daemon is of another version";
            facts.daemon = Daemon::Silent(what.to_owned());
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            not_checked.push(format!(
                "the daemon: {}: {error}; run it as root",
                socket.display()
            ));
        }
        Err(error) => {
            facts.daemon = Daemon::Silent(format!("{}: {error}", socket.display()));
        }
    }
}

/// A value of this network namespace below /proc/sys.
fn sysctl(name: &str) -> Option<u32> {
    let text = fs::read_to_string(Path::new("/proc/sys").join(name)).ok()?;
    text.trim().parse().ok()
}
