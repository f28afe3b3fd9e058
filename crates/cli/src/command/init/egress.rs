//! `keiro init asbr` and `keiro init egress`: a first configuration of a border router or a content server.

use std::{
    fmt::Write as _,
    fs, io,
    net::{IpAddr, Ipv4Addr},
    path::Path,
};

use keiro_egress::config::{AsbrConfig, EndpointConfig};
use keiro_linux::{
    interface::{self, Interface},
    route_lookup::{Query, RouteLookup},
};

use super::super::{
    default_route::is_global,
    installed_files::{make_directory, unwritable, write_whole},
};
use crate::{args, failure::Failure};

/// Where forwarding is turned on for the next start of the machine.
const SYSCTL_FILE: &str = "/etc/sysctl.d/60-keiro-asbr.conf";
const FORWARDING: &str = "/proc/sys/net/ipv6/conf/all/forwarding";
const ROUTES: &str = "/proc/net/ipv6_route";

pub(super) fn asbr(args: &args::InitAsbr) -> Result<(), Failure> {
    let links = interface::list().map_err(|e| Failure::new("cannot list interfaces").because(e))?;
    let text = asbr_text(args, router_id(&links, args.common.router_id)?);
    let file = args.output.display().to_string();
    let config = AsbrConfig::parse(&text, &file)?;
    refuse_existing(&args.output, args.common.force)?;
    // What may fail comes before the file, which must not be there for the next attempt.
    if args.forwarding {
        turn_on_forwarding()?;
    }
    write(&args.output, &text, args.common.force)?;
    say_unreachable(
        &args
            .peers
            .iter()
            .map(|peer| (peer.name.as_str(), peer.address))
            .collect::<Vec<_>>(),
    );
    say_unreachable_reflectors(&args.common.reflectors);
    let forwards = fs::read_to_string(FORWARDING).is_ok_and(|value| value.trim() != "0");
    if !forwards {
        crate::output::message!(
            "IPv6 forwarding is off: `sysctl -w net.ipv6.conf.all.forwarding=1`, or --forwarding"
        );
    }
    crate::output::message!(
        "next: systemctl enable --now keiro-asbr, then keiro doctor --config {file}"
    );
    crate::output::message!("at each content server, with different EPE addresses:");
    let reflectors = args.common.reflectors.iter();
    let reflectors: String = reflectors.map(|at| format!(" --reflector {at}")).collect();
    let peers = config.peers.iter();
    let peers: String = peers
        .map(|peer| format!(" --peer {}={}@ADDRESS", peer.neighbour.name, peer.rt))
        .collect();
    let asn = args.common.asn;
    crate::output::message!("  keiro init egress --asn {asn}{reflectors}{peers}");
    Ok(())
}

pub(super) fn egress(args: &args::InitEgress) -> Result<(), Failure> {
    let links = interface::list().map_err(|e| Failure::new("cannot list interfaces").because(e))?;
    let text = egress_text(args, router_id(&links, args.common.router_id)?);
    let file = args.output.display().to_string();
    EndpointConfig::parse(&text, &file)?;
    write(&args.output, &text, args.common.force)?;
    say_unreachable_reflectors(&args.common.reflectors);
    crate::output::message!(
        "next: systemctl enable --now keiro-egress, then keiro doctor --config {file}"
    );
    Ok(())
}

/// The BGP identifier: a global IPv4 address of this machine unless given.
fn router_id(links: &[Interface], given: Option<Ipv4Addr>) -> Result<Ipv4Addr, Failure> {
    if let Some(given) = given {
        return Ok(given);
    }
    let addresses = links.iter().flat_map(|link| &link.addresses);
    let mut global = addresses.filter(|own| !own.passing && is_global(&own.ip));
    let found = global.find_map(|own| match own.ip {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    });
    found.ok_or_else(|| {
        Failure::new("this machine has no IPv4 address to be its BGP identifier").hint(
            "--router-id gives one: any number like 192.0.2.1 that no other router of the AS has",
        )
    })
}

fn head(text: &mut String, table: &str, common: &args::InitBgp, id: Ipv4Addr) {
    let asn = common.asn;
    // Writing to a string cannot fail.
    let _ = write!(text, "[{table}]\nasn = {asn}\nrouter_id = \"{id}\"\n");
    let _ = writeln!(text, "control_socket = \"/run/keiro/{table}.sock\"");
}

fn reflectors(text: &mut String, common: &args::InitBgp) {
    for (number, address) in common.reflectors.iter().enumerate() {
        let number = number + 1;
        let _ = write!(
            text,
            "\n[[reflector]]\nname = \"rr{number}\"\naddress = \"{address}\"\n"
        );
    }
}

fn asbr_text(args: &args::InitAsbr, id: Ipv4Addr) -> String {
    let mut text =
        "# Written by `keiro init asbr`; docs/egress.md explains every key.\n".to_owned();
    head(&mut text, "asbr", &args.common, id);
    let announce = args.announce.iter().map(|prefix| format!("\"{prefix}\""));
    let announce: Vec<String> = announce.collect();
    let _ = write!(
        text,
        "locator = \"{}\"\nannounce = [{}]\n",
        args.locator,
        announce.join(", ")
    );
    reflectors(&mut text, &args.common);
    for (number, peer) in args.peers.iter().enumerate() {
        let args::InitPeer { name, asn, address } = peer;
        let function = number + 1;
        let _ = write!(
            text,
            "\n[[peer]]\nname = \"{name}\"\naddress = \"{address}\"\nasn = {asn}\nfunction = {function}\n\
             import = [{{ prefixes = [\"2000::/3 le 48\"], path_max = 50 }}]\nexport = \"own\"\n"
        );
    }
    text
}

fn egress_text(args: &args::InitEgress, id: Ipv4Addr) -> String {
    let mut text =
        "# Written by `keiro init egress`; docs/egress.md explains every key.\n".to_owned();
    head(&mut text, "egress", &args.common, id);
    let mptcp = Path::new("/proc/sys/net/mptcp/enabled").exists();
    text.push_str(match mptcp {
        true => "mptcp = \"precise\"\n",
        false => "mptcp = \"off\" # this kernel has no MPTCP\n",
    });
    reflectors(&mut text, &args.common);
    for peer in &args.peers {
        let args::InitEpe {
            name,
            target,
            address,
        } = peer;
        let _ = write!(
            text,
            "\n[[peer]]\nname = \"{name}\"\nrt = \"{target}\"\naddress = \"{address}\"\n"
        );
    }
    text
}

fn refuse_existing(file: &Path, force: bool) -> Result<(), Failure> {
    if file.exists() && !force {
        return Err(Failure::new(format!("{} is there already", file.display()))
            .hint("another name with --output, or --force to replace it"));
    }
    Ok(())
}

fn write(file: &Path, text: &str, force: bool) -> Result<(), Failure> {
    refuse_existing(file, force)?;
    if let Some(directory) = file.parent() {
        make_directory(directory).map_err(|e| unwritable(directory, &e))?;
    }
    write_whole(file, text.as_bytes(), force).map_err(|e| unwritable(file, &e))?;
    crate::output::message!("wrote {}", file.display());
    Ok(())
}

/// Now, and at the next start of the machine.
///
/// # Errors
/// It may not, or a default route would go with it.
fn turn_on_forwarding() -> Result<(), Failure> {
    let is_off = fs::read_to_string(FORWARDING).is_ok_and(|value| value.trim() == "0");
    let routes = fs::read_to_string(ROUTES).unwrap_or_default();
    let lost = interfaces_of_advertised_defaults(&routes).find(|link| ignores_as_router(link));
    if let (true, Some(link)) = (is_off, lost) {
        let message = format!(
            "the default route of {link} is from router advertisements, which Linux ignores while it forwards: it \
             would be removed, and this host perhaps cut off"
        );
        return Err(Failure::new(message).hint(format!(
            "`sysctl -w net.ipv6.conf.{link}.accept_ra=2` keeps it (and a file in /etc/sysctl.d at the next start), or \
             configure a static route"
        )));
    }
    let failed = |error: io::Error| {
        Failure::new("cannot turn on IPv6 forwarding")
            .because(error)
            .hint("as root")
    };
    fs::write(FORWARDING, "1").map_err(failed)?;
    fs::write(SYSCTL_FILE, "net.ipv6.conf.all.forwarding = 1\n").map_err(failed)?;
    crate::output::message!("wrote {SYSCTL_FILE}: IPv6 forwarding is on");
    Ok(())
}

/// Interfaces with a default route that the kernel has from a router advertisement.
fn interfaces_of_advertised_defaults(routes: &str) -> impl Iterator<Item = &str> {
    // RTF_DEFAULT and RTF_ADDRCONF of `linux/ipv6_route.h`.
    const ADVERTISED: u32 = 0x0001_0000 | 0x0004_0000;
    routes.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let flags = u32::from_str_radix(fields.get(8)?, 16).ok()?;
        let is_advertised = flags & ADVERTISED == ADVERTISED;
        is_advertised.then_some(*fields.get(9)?)
    })
}

/// Whether router advertisements count only while the host does not forward.
fn ignores_as_router(link: &str) -> bool {
    let setting = format!("/proc/sys/net/ipv6/conf/{link}/accept_ra");
    fs::read_to_string(setting).is_ok_and(|value| value.trim() == "1")
}

fn say_unreachable_reflectors(reflectors: &[IpAddr]) {
    let all = reflectors.iter().map(|address| ("reflector", *address));
    say_unreachable(&all.collect::<Vec<_>>());
}

/// What has no route yet is no error: the session comes up when it has one.
fn say_unreachable(neighbours: &[(&str, IpAddr)]) {
    for (name, address) in neighbours {
        if matches!(Query::to(*address).lookup(), Ok(RouteLookup::Nowhere)) {
            crate::output::message!("no route leads to {name} {address} yet");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common() -> args::InitBgp {
        args::InitBgp {
            asn: 65000,
            router_id: None,
            reflectors: vec![
                "2001:db8:a:ff::1".parse().unwrap(),
                "192.0.2.7".parse().unwrap(),
            ],
            force: false,
        }
    }

    const ID: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

    #[test]
    fn the_targets_of_a_border_routers_peers_are_those_of_a_server() {
        let peer = |text: &str| text.parse().unwrap();
        let asbr = args::InitAsbr {
            common: common(),
            output: "asbr.toml".into(),
            locator: "2001:db8:a:1::/64".parse().unwrap(),
            announce: vec!["2001:db8:a::/48".parse().unwrap()],
            peers: vec![
                peer("transit-a=65001@2001:db8:f:a::1"),
                peer("transit-b=4200000001@2001:db8:f:b::1"),
            ],
            forwarding: false,
        };
        let config = AsbrConfig::parse(&asbr_text(&asbr, ID), "asbr.toml").unwrap();
        let names = config.peers.iter().map(|peer| peer.neighbour.name.as_str());
        assert!(names.eq(["transit-a", "transit-b"]));
        assert_eq!(config.reflectors.len(), 2);
        let target = config.peers[1].rt.to_string();
        let egress = args::InitEgress {
            common: common(),
            output: "egress.toml".into(),
            peers: vec![
                format!("transit-b={target}@2001:db8:a:e::b")
                    .parse()
                    .unwrap(),
            ],
        };
        let server = EndpointConfig::parse(&egress_text(&egress, ID), "egress.toml").unwrap();
        assert_eq!(server.peers[0].rt, config.peers[1].rt);
    }

    #[test]
    fn a_default_route_from_a_router_advertisement_is_found() {
        let zero = "0".repeat(32);
        let gateway = "fe800000000000000000000000000001";
        let line = |flags: &str, link: &str| {
            format!("{zero} 00 {zero} 00 {gateway} 00000400 00000001 00000000 {flags} {link}\n")
        };
        // Static, advertised, the kernel's own unreachable one, and what is none.
        let text = line("00000003", "eth0")
            + &line("00450003", "eth1")
            + &line("00200200", "lo")
            + "00 short\n";
        let found: Vec<&str> = interfaces_of_advertised_defaults(&text).collect();
        assert_eq!(found, ["eth1"]);
    }

    #[test]
    fn a_malformed_peer_is_refused_with_the_form() {
        for text in [
            "",
            "a",
            "a=1",
            "a=x@2001:db8::1",
            "a=1@nowhere",
            "=1@2001:db8::1",
            "a\"b=1@::1",
        ] {
            let error = text.parse::<args::InitPeer>().unwrap_err();
            assert!(error.contains("NAME=ASN@ADDRESS"), "{error}");
        }
        for text in [
            "a=65000:1",
            "a=65000@2001:db8::1",
            "a=65000:1@192.0.2.1",
            "a=x:1@2001:db8::1",
        ] {
            let error = text.parse::<args::InitEpe>().unwrap_err();
            assert!(error.contains("NAME=TARGET@ADDRESS"), "{error}");
        }
    }
}
