//! The schema of both files, and what has to fit together.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Read,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::{Range, RangeInclusive},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use ipnet::{IpNet, Ipv6Net};
use keiro_bgp::{
    address::{Family, RouteDistinguisher, RouteTarget},
    policy::{Policy, Rule},
    rpki::Vrps,
};
use keiro_control::units::Text;
use keiro_linux::{bgp_socket::Md5Key, rule::InterfaceName};
use serde::{Deserialize, de::DeserializeOwned};
use toml::Spanned;

use super::{
    AsbrConfig, Behaviour, Class, ConfigError, EgressPeer, EndpointConfig, EndpointPeer, Mptcp,
    Neighbour, SpeakerConfig,
    comparison::{self, ComparisonEntry},
    file, roas,
    rules::Filter,
    values::{
        self, hold_time, interface, nexthop_ids, our_asn, restart_time, router_id, routes_max,
        rule_priority,
    },
};

/// A problem before its place has been looked up.
pub(super) struct Problem {
    at: Option<Range<usize>>,
    message: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AsbrFile {
    asbr: Asbr,
    #[serde(default)]
    reflector: Vec<Spanned<Reflector>>,
    #[serde(default)]
    peer: Vec<Spanned<Peer>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EndpointFile {
    egress: Egress,
    #[serde(default)]
    reflector: Vec<Spanned<Reflector>>,
    #[serde(default)]
    peer: Vec<Spanned<ServerPeer>>,
    #[serde(default)]
    class: Vec<Spanned<ClassEntry>>,
    comparison: Option<Spanned<ComparisonEntry>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClassEntry {
    name: String,
    ports: Spanned<Vec<u16>>,
    prefer: Spanned<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asbr {
    asn: Spanned<u32>,
    router_id: Spanned<Ipv4Addr>,
    listen: Option<Vec<SocketAddr>>,
    control_socket: Option<PathBuf>,
    locator: Spanned<Ipv6Net>,
    #[serde(default)]
    announce: Vec<IpNet>,
    #[serde(default = "yes")]
    announce_locator: bool,
    nexthop_ids: Option<Spanned<[u32; 2]>>,
    rule_priority: Option<Spanned<u32>>,
    rpki_file: Option<Spanned<PathBuf>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Egress {
    asn: Spanned<u32>,
    router_id: Spanned<Ipv4Addr>,
    listen: Option<Vec<SocketAddr>>,
    control_socket: Option<PathBuf>,
    interface: Option<Spanned<String>>,
    nexthop_ids: Option<Spanned<[u32; 2]>>,
    rule_priority: Option<Spanned<u32>>,
    #[serde(default)]
    mptcp: Mptcp,
    helper_ports: Option<Spanned<BTreeSet<u16>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reflector {
    name: String,
    address: Spanned<IpAddr>,
    #[serde(default = "bgp_port")]
    port: u16,
    #[serde(default)]
    passive: bool,
    #[serde(default)]
    ipv4: bool,
    hold_time: Option<Spanned<Text<Duration>>>,
    /// `"0s"`: no.
    graceful_restart: Option<Spanned<Text<Duration>>>,
    #[serde(default)]
    add_path: bool,
    routes_max: Option<Spanned<usize>>,
    md5_file: Option<Spanned<PathBuf>>,
    #[serde(default)]
    ttl_security: bool,
    local_address: Option<IpAddr>,
    next_hop: Option<IpAddr>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Peer {
    name: String,
    address: Spanned<IpAddr>,
    asn: Option<Spanned<u32>>,
    #[serde(default = "bgp_port")]
    port: u16,
    #[serde(default)]
    passive: bool,
    #[serde(default)]
    ipv4: bool,
    hold_time: Option<Spanned<Text<Duration>>>,
    graceful_restart: Option<Spanned<Text<Duration>>>,
    #[serde(default)]
    add_path: bool,
    routes_max: Option<Spanned<usize>>,
    md5_file: Option<Spanned<PathBuf>>,
    #[serde(default = "yes")]
    ttl_security: bool,
    local_address: Option<IpAddr>,
    next_hop: Option<IpAddr>,
    #[serde(default)]
    import: Filter,
    #[serde(default)]
    export: Filter,
    function: Option<Spanned<u16>>,
    #[serde(default)]
    behaviour: Behaviour,
    rd: Option<Spanned<String>>,
    rt: Option<Spanned<String>>,
    table: Option<Spanned<u32>>,
    interface: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ServerPeer {
    name: String,
    rt: Spanned<String>,
    address: Spanned<Ipv6Addr>,
    table: Option<Spanned<u32>>,
    vrf: Option<Spanned<String>>,
}

pub(super) fn asbr(text: &str) -> Result<AsbrConfig, Problem> {
    let file: AsbrFile = parse(text)?;
    let asn = our_asn(&file.asbr.asn)?;
    let router_id = router_id(&file.asbr.router_id)?;
    let locator = values::locator(&file.asbr.locator)?;
    let mut announce = file.asbr.announce;
    announce.iter_mut().for_each(|net| *net = net.trunc());
    let mut known = Known::default();
    let mut reflectors = Vec::new();
    for entry in &file.reflector {
        reflectors.push(reflector(entry, asn, &mut known, Direction::Up)?);
    }
    let mut peers = Vec::new();
    for (place, entry) in file.peer.iter().enumerate() {
        let peer = entry.get_ref();
        let neighbour = egress_neighbour(entry, asn, (&announce, locator), &mut known)?;
        if let Some(message) = asks_in_vain(peer, file.asbr.rpki_file.is_some()) {
            return Err(Problem::at_span(entry.span(), message.to_owned()));
        }
        let function = match &peer.function {
            Some(function) => *function.get_ref(),
            None => u16::try_from(place + 1).unwrap_or(0),
        };
        let at = peer.function.as_ref().map_or(entry.span(), Spanned::span);
        if function == 0 {
            let message = "function: 0 is the locator itself; use 1 to 65535".to_owned();
            return Err(Problem::at_span(at, message));
        }
        known.once("function", function, &peer.name, "the segment", at)?;
        let shift = 112 - u32::from(locator.prefix_len());
        let sid = u128::from(locator.network()) | u128::from(function) << shift;
        let default = match u16::try_from(asn) {
            Ok(asn) => format!("{asn}:{function}"),
            Err(_) => format!("{router_id}:{function}"),
        };
        let rd: RouteDistinguisher = administrator(peer.rd.as_ref(), &default)?;
        let rt: RouteTarget = administrator(peer.rt.as_ref(), &default)?;
        let at = peer.rd.as_ref().map_or(entry.span(), Spanned::span);
        known.once("rd", rd.0, &peer.name, "the route distinguisher", at)?;
        if peer.behaviour == Behaviour::Neighbour && neighbour.address.is_ipv4() {
            let message = "behaviour: end.dx6 leads to an IPv6 address, and the peer has none";
            return Err(Problem::at_span(entry.span(), message.to_owned()));
        }
        peers.push(EgressPeer {
            neighbour,
            sid: sid.into(),
            behaviour: peer.behaviour,
            rd,
            rt,
            table: table(
                peer.table.as_ref(),
                (ASBR_TABLE_FIRST, place),
                &peer.name,
                entry.span(),
                &mut known,
            )?,
            table_said: peer.table.is_some(),
            interface: interface(peer.interface.as_ref())?,
        });
    }
    Ok(AsbrConfig {
        speaker: SpeakerConfig {
            asn,
            router_id,
            listen: file.asbr.listen.unwrap_or_else(anywhere),
            control_socket: file.asbr.control_socket,
            vrps: file.asbr.rpki_file.as_ref().map(vrps).transpose()?,
        },
        locator,
        announce,
        announce_locator: file.asbr.announce_locator,
        nexthop_ids: nexthop_ids(file.asbr.nexthop_ids.as_ref(), ASBR_NEXTHOPS)?,
        rule_priority: rule_priority(file.asbr.rule_priority.as_ref(), ASBR_PRIORITY)?,
        peers,
        reflectors,
    })
}

pub(super) fn endpoint(text: &str) -> Result<EndpointConfig, Problem> {
    let file: EndpointFile = parse(text)?;
    let asn = our_asn(&file.egress.asn)?;
    let router_id = router_id(&file.egress.router_id)?;
    let mut known = Known::default();
    let mut reflectors = Vec::new();
    for entry in &file.reflector {
        reflectors.push(reflector(entry, asn, &mut known, Direction::Down)?);
    }
    let mut peers = Vec::new();
    for (place, entry) in file.peer.iter().enumerate() {
        let peer = entry.get_ref();
        let rt: RouteTarget = administrator(Some(&peer.rt), "")?;
        known.name(&peer.name, entry.span())?;
        known.once("rt", rt.0, &peer.name, "the target", peer.rt.span())?;
        let address = values::own_address(&peer.address)?;
        let number = u128::from(address);
        known.once(
            "address",
            number,
            &peer.name,
            "the address",
            peer.address.span(),
        )?;
        let table_said = peer.table.is_some();
        let table = table(
            peer.table.as_ref(),
            (TABLE_FIRST, place),
            &peer.name,
            entry.span(),
            &mut known,
        )?;
        peers.push(EndpointPeer {
            name: peer.name.clone(),
            rt,
            table,
            table_said,
            address,
            vrf: vrf(peer, &mut known)?,
        });
    }
    let mut classes: Vec<Class> = Vec::new();
    for entry in &file.class {
        if file.egress.mptcp != Mptcp::Precise {
            let message = "classes need mptcp = \"precise\" in [egress]".to_owned();
            return Err(Problem::at_span(entry.span(), message));
        }
        classes.push(class(entry.get_ref(), &peers, &classes)?);
    }
    if let Some(entry) = file.comparison.as_ref()
        && file.egress.mptcp != Mptcp::Precise
    {
        let message = "[comparison] needs mptcp = \"precise\" in [egress]".to_owned();
        return Err(Problem::at_span(entry.span(), message));
    }
    Ok(EndpointConfig {
        comparison: comparison::settings(file.comparison.as_ref().map(Spanned::get_ref))?,
        evidence_file: file
            .comparison
            .as_ref()
            .and_then(|entry| entry.get_ref().evidence_file.clone()),
        helper_ports: helper_ports(file.egress.helper_ports.as_ref(), file.egress.mptcp)?,
        classes,
        mptcp: file.egress.mptcp,
        interface: interface(file.egress.interface.as_ref())?,
        nexthop_ids: nexthop_ids(file.egress.nexthop_ids.as_ref(), EGRESS_NEXTHOPS)?,
        rule_priority: rule_priority(file.egress.rule_priority.as_ref(), EGRESS_PRIORITY)?,
        speaker: SpeakerConfig {
            asn,
            router_id,
            listen: file.egress.listen.unwrap_or_else(anywhere),
            control_socket: file.egress.control_socket,
            vrps: None,
        },
        reflectors,
        peers,
    })
}

fn vrf(peer: &ServerPeer, known: &mut Known) -> Result<Option<InterfaceName>, Problem> {
    let Some(said) = &peer.vrf else {
        return Ok(None);
    };
    let name = said.get_ref();
    let Some(device) = InterfaceName::new(name).filter(|_| name != "lo") else {
        let message = format!(
            "vrf: `{name}` is no name for a VRF device: at most 15 octets, without spaces and `/`, and not `lo`"
        );
        return Err(Problem::at_span(said.span(), message));
    };
    let mut number = [0; 16];
    number[..name.len()].copy_from_slice(name.as_bytes());
    let number = u128::from_be_bytes(number);
    known.once("vrf", number, &peer.name, "the device", said.span())?;
    Ok(Some(device))
}

fn helper_ports(
    ports: Option<&Spanned<BTreeSet<u16>>>,
    mptcp: Mptcp,
) -> Result<BTreeSet<u16>, Problem> {
    let Some(ports) = ports else {
        return Ok(BTreeSet::new());
    };
    let message = match mptcp {
        Mptcp::Off => "helper_ports: nobody joins without mptcp = \"precise\" or \"kernel\"",
        _ if ports.get_ref().contains(&0) => "helper_ports: 0 is no port",
        _ => return Ok(ports.get_ref().clone()),
    };
    Err(Problem::at_span(ports.span(), message.to_owned()))
}

fn class(it: &ClassEntry, peers: &[EndpointPeer], others: &[Class]) -> Result<Class, Problem> {
    let ports: BTreeSet<u16> = it.ports.get_ref().iter().copied().collect();
    let problem = match (
        ports.first(),
        ports.iter().find_map(|port| taken(*port, others)),
    ) {
        (None, _) => Some("ports: a class has at least one port".to_owned()),
        (Some(0), _) => Some("ports: 0 is no port".to_owned()),
        (_, Some(taken)) => Some(taken),
        _ => None,
    };
    if let Some(message) = problem {
        return Err(Problem::at_span(it.ports.span(), message));
    }
    let mut prefer = BTreeSet::new();
    for wanted in it.prefer.get_ref() {
        let Some(place) = peers.iter().position(|peer| peer.name == *wanted) else {
            let known: Vec<String> = peers
                .iter()
                .map(|peer| format!("`{}`", peer.name))
                .collect();
            let known = known.join(", ");
            let message = format!("prefer: there is no peer `{wanted}`; there are {known}");
            return Err(Problem::at_span(it.prefer.span(), message));
        };
        prefer.insert(place);
    }
    if prefer.is_empty() {
        let message = "prefer: a class that prefers no peer is none; leave it out".to_owned();
        return Err(Problem::at_span(it.prefer.span(), message));
    }
    Ok(Class {
        name: it.name.clone(),
        ports,
        prefer,
    })
}

fn taken(port: u16, others: &[Class]) -> Option<String> {
    let other = others.iter().find(|other| other.ports.contains(&port))?;
    let name = &other.name;
    Some(format!(
        "ports: port {port} is one of `{name}`; a port has one class"
    ))
}

/// Which way routes go between a reflector and us.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// The border router tells; VPN routes of others are not for it.
    Up,
    /// The server is told and tells nothing.
    Down,
}

fn reflector(
    entry: &Spanned<Reflector>,
    asn: u32,
    known: &mut Known,
    direction: Direction,
) -> Result<Neighbour, Problem> {
    let it = entry.get_ref();
    let address = known.neighbour(&it.name, &it.address, entry.span())?;
    let graceful_restart = match &it.graceful_restart {
        None => Some(GRACEFUL_RESTART),
        Some(time) => restart_time(time)?,
    };
    Ok(Neighbour {
        name: it.name.clone(),
        address,
        port: it.port,
        asn,
        families: families(it.ipv4, true),
        import: match direction {
            Direction::Up => without_vpn(),
            Direction::Down => Policy::permit_all(),
        },
        export: match direction {
            Direction::Up => Policy::permit_all(),
            Direction::Down => Policy::default(),
        },
        passive: it.passive,
        hold_time: hold_time(it.hold_time.as_ref())?,
        add_path: it.add_path,
        graceful_restart,
        routes_max: routes_max(it.routes_max.as_ref())?,
        md5: it.md5_file.as_ref().map(md5_key).transpose()?,
        one_hop: it.ttl_security,
        local: it.local_address,
        next_hop: it.next_hop,
    })
}

/// Everything but VPN routes: they are for servers, and many.
fn without_vpn() -> Policy {
    let mut policy = Policy::permit_all();
    let vpn = Rule {
        family: Some(Family::Vpn6),
        ..Rule::default()
    };
    policy.rules.insert(0, vpn);
    policy
}

fn egress_neighbour(
    entry: &Spanned<Peer>,
    asn: u32,
    (own, locator): (&[IpNet], Ipv6Net),
    known: &mut Known,
) -> Result<Neighbour, Problem> {
    let it = entry.get_ref();
    let address = known.neighbour(&it.name, &it.address, entry.span())?;
    let Some(peer_asn) = &it.asn else {
        let message = "[[peer]] has no `asn`; add asn = 65001".to_owned();
        return Err(Problem::at_span(entry.span(), message));
    };
    if *peer_asn.get_ref() == asn {
        let message =
            format!("asn: {asn} is our own AS; neighbours of this AS are a [[reflector]]");
        return Err(Problem::at_span(peer_asn.span(), message));
    }
    Ok(Neighbour {
        name: it.name.clone(),
        address,
        port: it.port,
        asn: our_asn(peer_asn)?,
        families: families(it.ipv4, false),
        import: values::guarded(it.import.policy(own), locator),
        export: it.export.policy(own),
        passive: it.passive,
        hold_time: hold_time(it.hold_time.as_ref())?,
        add_path: it.add_path,
        graceful_restart: match &it.graceful_restart {
            None => None,
            Some(time) => restart_time(time)?,
        },
        routes_max: Some(routes_max(it.routes_max.as_ref())?.unwrap_or(ROUTES_MAX)),
        md5: it.md5_file.as_ref().map(md5_key).transpose()?,
        one_hop: it.ttl_security,
        local: it.local_address,
        next_hop: it.next_hop,
    })
}

/// What is wrong with rules that ask what the RPKI says; `None`: nothing.
fn asks_in_vain(peer: &Peer, has_file: bool) -> Option<&'static str> {
    if peer.export.asks_rpki() {
        return Some("export: `rpki` is about routes of others; ask for it in `import`");
    }
    (peer.import.asks_rpki() && !has_file)
        .then_some("import: `rpki` needs `rpki_file` in [asbr], which says who may announce what")
}

fn vrps(path: &Spanned<PathBuf>) -> Result<Arc<Vrps>, Problem> {
    let at = path.get_ref();
    let read = roas::read(at, SystemTime::now()).map_err(|reason| {
        let message = format!("rpki_file: {}: {reason}", at.display());
        Problem::at_span(path.span(), message)
    })?;
    if read.expired > 0 {
        let (expired, file) = (read.expired, at.display());
        tracing::warn!(
            expired,
            "{file}: authorizations that have expired do not count"
        );
    }
    Ok(Arc::new(read.vrps))
}

/// Values that only one entry may have, by key, and whose they are.
#[derive(Default)]
struct Known {
    values: BTreeMap<(&'static str, u128), String>,
    names: BTreeSet<String>,
}

impl Known {
    fn once(
        &mut self,
        key: &'static str,
        value: impl Into<u128>,
        name: &str,
        what: &str,
        at: Range<usize>,
    ) -> Result<(), Problem> {
        match self.values.insert((key, value.into()), name.to_owned()) {
            None => Ok(()),
            Some(other) => {
                let message =
                    format!("{key} of `{name}` is {what} of `{other}` too; each needs its own");
                Err(Problem::at_span(at, message.replacen(" too;", ";", 1)))
            }
        }
    }

    /// What is shown and counted goes by names.
    fn name(&mut self, name: &str, at: Range<usize>) -> Result<(), Problem> {
        if name.is_empty() {
            let message = "name: it is empty; write what is to be shown".to_owned();
            return Err(Problem::at_span(at, message));
        }
        match self.names.insert(name.to_owned()) {
            true => Ok(()),
            false => {
                let message = format!("name: there are two `{name}`; each needs its own");
                Err(Problem::at_span(at, message))
            }
        }
    }

    fn neighbour(
        &mut self,
        name: &str,
        address: &Spanned<IpAddr>,
        entry: Range<usize>,
    ) -> Result<IpAddr, Problem> {
        self.name(name, entry)?;
        let number = match address.get_ref() {
            IpAddr::V4(v4) => u128::from(u32::from(*v4)),
            IpAddr::V6(v6) => u128::from(*v6),
        };
        let at = address.span();
        if address.get_ref().is_unspecified() || address.get_ref().is_multicast() {
            let message = format!("address: `{}` is no neighbour's", address.get_ref());
            return Err(Problem::at_span(at, message));
        }
        if matches!(address.get_ref(), IpAddr::V6(v6) if v6.is_unicast_link_local()) {
            let message = format!(
                "address: `{}` is on a link, and of which is not said; use a global address",
                address.get_ref()
            );
            return Err(Problem::at_span(at, message));
        }
        self.once("address", number, name, "the address", at)?;
        Ok(*address.get_ref())
    }
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<T, Problem> {
    toml::from_str(text).map_err(|error| Problem {
        at: error.span(),
        message: error.message().to_owned(),
    })
}

fn administrator<T: std::str::FromStr>(
    text: Option<&Spanned<String>>,
    default: &str,
) -> Result<T, Problem>
where
    T::Err: std::fmt::Display,
{
    let read = text.map_or(default, |text| text.get_ref()).parse();
    read.map_err(|error: T::Err| Problem {
        at: text.map(Spanned::span),
        message: error.to_string(),
    })
}

/// A peer's table: the one said, or the first and the peer's place.
fn table(
    said: Option<&Spanned<u32>>,
    (first, place): (u32, usize),
    name: &str,
    entry: Range<usize>,
    known: &mut Known,
) -> Result<u32, Problem> {
    let table = match said {
        Some(table) => *table.get_ref(),
        None => first + u32::try_from(place).unwrap_or(u32::MAX - first),
    };
    let at = said.map_or(entry, Spanned::span);
    if !(1000..=0x7fff_ffff).contains(&table) {
        let message =
            format!("table: {table} may be another's; use a number between 1000 and 2147483647");
        return Err(Problem::at_span(at, message));
    }
    known.once("table", table, name, "the table", at)?;
    Ok(table)
}

fn md5_key(path: &Spanned<PathBuf>) -> Result<Md5Key, Problem> {
    read_key(path.get_ref()).map_err(|reason| {
        let message = format!("md5_file: {}: {reason}", path.get_ref().display());
        Problem::at_span(path.span(), message)
    })
}

fn read_key(path: &Path) -> Result<Md5Key, String> {
    let metadata = fs::metadata(path).map_err(|error| error.to_string())?;
    if metadata.permissions().mode() & 0o077 != 0 {
        return Err("others can read it; `chmod 600` it".to_owned());
    }
    let mut octets = Vec::new();
    file::open(path, 1)
        .and_then(|mut file| file.read_to_end(&mut octets))
        .map_err(|error| error.to_string())?;
    let key = octets.strip_suffix(b"\n").unwrap_or(&octets);
    Md5Key::new(key).ok_or_else(|| "a key has 1 to 80 octets".to_owned())
}

fn families(ipv4: bool, vpn: bool) -> Vec<Family> {
    let all = [
        (Family::Ipv4, ipv4),
        (Family::Ipv6, true),
        (Family::Vpn6, vpn),
    ];
    let wanted = all.into_iter().filter(|(_, wanted)| *wanted);
    wanted.map(|(family, _)| family).collect()
}

impl Problem {
    pub(super) fn at_span(at: Range<usize>, message: String) -> Self {
        Self {
            at: Some(at),
            message,
        }
    }

    pub(super) fn at(self, text: &str, file: &str) -> ConfigError {
        let place = self.at.map(|range| {
            let start = range.start.min(text.len());
            let before = text.get(..start).unwrap_or(text);
            let line_start = before.rfind('\n').map_or(0, |at| at + 1);
            let line = before.matches('\n').count() + 1;
            let column = before[line_start..].chars().count() + 1;
            let source = text[line_start..].lines().next().unwrap_or_default();
            (line, column, source.to_owned())
        });
        ConfigError {
            file: file.to_owned(),
            place,
            message: self.message.trim_end().to_owned(),
        }
    }
}

fn anywhere() -> Vec<SocketAddr> {
    vec![
        SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), bgp_port()),
        SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), bgp_port()),
    ]
}

const fn yes() -> bool {
    true
}

/// RFC 4271 §8.2.1.
const fn bgp_port() -> u16 {
    179
}

/// How long a reflector may restart. What others have by default.
const GRACEFUL_RESTART: Duration = Duration::from_secs(120);
/// Routes of a family from an egress peer, unless it says otherwise: several times the Internet's
/// IPv6 table. Ours.
const ROUTES_MAX: usize = 1_000_000;
/// The table of a server's first egress peer; of which others are made. Ours.
const TABLE_FIRST: u32 = 7600;
/// The same at the border router. Ours.
const ASBR_TABLE_FIRST: u32 = 7700;
/// Priority of a server's rules. Ours.
const EGRESS_PRIORITY: u32 = 7600;
/// A border router's. Ours.
const ASBR_PRIORITY: u32 = 7700;
/// Numbers of a server's nexthop objects: one per table and segment in use. Ours.
const EGRESS_NEXTHOPS: RangeInclusive<u32> = 7_600_000..=7_699_999;
/// The same at the border router: one per table and router in use. Ours.
const ASBR_NEXTHOPS: RangeInclusive<u32> = 7_700_000..=7_799_999;
