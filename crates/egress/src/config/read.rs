//! The schema of both files, and checks across values.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs,
    io::Read,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::{Range, RangeInclusive},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use ipnet::{IpNet, Ipv6Net};
use keiro_bgp::{
    address::{Family, RouteDistinguisher, RouteTarget},
    policy::{GracefulShutdown, Policy, Rule},
    rpki::Vrps,
};
use keiro_config::{
    ConfigError, LocatedError, Report, deserialize_into, units::Text, without_byte_order_mark,
};
use keiro_linux::{bgp_socket::Md5Key, rule::InterfaceName};
use serde::Deserialize;
use toml::Spanned;

use super::{
    AsbrConfig, Behaviour, Class, EgressPeer, EndpointConfig, EndpointPeer, Mptcp, Neighbour,
    SpeakerConfig, bfd,
    comparison::{self, ComparisonEntry},
    file,
    peer::{self, Group, Peer},
    roas,
    steering::{self, SteeringEntry},
    values::{
        self, hold_time, interface, nexthop_ids, our_asn, restart_time, router_id, routes_max,
        rule_priority,
    },
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AsbrFile {
    asbr: Asbr,
    #[serde(default)]
    reflector: Vec<Spanned<Reflector>>,
    #[serde(default)]
    group: Vec<Spanned<Group>>,
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
    steering: Option<SteeringEntry>,
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
    /// `"0s"`: no probes.
    probe_interval: Option<Spanned<Text<Duration>>>,
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
    #[serde(default = "yes")]
    extended_messages: bool,
    routes_max: Option<Spanned<usize>>,
    md5_file: Option<Spanned<PathBuf>>,
    #[serde(default)]
    ttl_security: bool,
    local_address: Option<IpAddr>,
    next_hop: Option<IpAddr>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ServerPeer {
    name: String,
    rt: Spanned<String>,
    address: Spanned<Ipv6Addr>,
    ipv4_address: Option<Spanned<Ipv4Addr>>,
    table: Option<Spanned<u32>>,
    vrf: Option<Spanned<String>>,
}

/// Reads a border router's file; `file` is what messages call it.
pub(super) fn asbr(text: &str, file: &str) -> Result<AsbrConfig, ConfigError> {
    let mut report = Report::new(file, text);
    let config = deserialize_into(&mut report).and_then(|read| asbr_config(read, &mut report));
    report.finish()?;
    Ok(config.expect("a file without problems is a configuration"))
}

/// Reads a server's file; `file` is what messages call it.
pub(super) fn endpoint(text: &str, file: &str) -> Result<EndpointConfig, ConfigError> {
    let mut report = Report::new(file, text);
    let config = deserialize_into(&mut report).and_then(|read| endpoint_config(read, &mut report));
    report.finish()?;
    Ok(config.expect("a file without problems is a configuration"))
}

/// The configuration; `None` if a problem was reported.
fn asbr_config(mut file: AsbrFile, report: &mut Report<'_>) -> Option<AsbrConfig> {
    report.keep(peer::inherit(&mut file.peer, &file.group));
    let it = file.asbr;
    let asn = *it.asn.get_ref();
    let own_asn = report.keep(our_asn(&it.asn));
    let id = report.keep(router_id(&it.router_id));
    let locator = report.keep(values::locator(&it.locator));
    let nexthop_ids = report.keep(nexthop_ids(it.nexthop_ids.as_ref(), ASBR_NEXTHOPS));
    let priority = rule_priority(it.rule_priority.as_ref(), ASBR_PRIORITY);
    let rule_priority = report.keep(priority);
    let vrps = report.keep(it.rpki_file.as_ref().map(vrps).transpose());
    let announce: Vec<IpNet> = it.announce.iter().map(IpNet::trunc).collect();
    let mut used = UsedValues::default();
    let mut reflectors = Vec::new();
    for entry in &file.reflector {
        let read = reflector(entry, asn, &mut used, Direction::Up);
        reflectors.extend(report.keep(read));
    }
    let router = BorderRouter {
        asn,
        router_id: *it.router_id.get_ref(),
        locator: locator?,
        announce: &announce,
        has_rpki_file: it.rpki_file.is_some(),
    };
    let mut peers = Vec::new();
    for (place, entry) in file.peer.iter().enumerate() {
        peers.extend(report.keep(egress_peer(entry, place, &router, &mut used)));
    }
    report.keep(bfd::count(
        file.peer.iter().map(|peer| peer.get_ref().bfd.as_ref()),
    ));
    Some(AsbrConfig {
        speaker: SpeakerConfig {
            asn: own_asn?,
            router_id: id?,
            listen: it.listen.unwrap_or_else(anywhere),
            control_socket: it.control_socket,
            vrps: vrps?,
        },
        locator: router.locator,
        announce_locator: it.announce_locator,
        nexthop_ids: nexthop_ids?,
        rule_priority: rule_priority?,
        peers,
        reflectors,
        announce,
    })
}

/// What a border router's egress peers depend on.
struct BorderRouter<'a> {
    asn: u32,
    router_id: Ipv4Addr,
    locator: Ipv6Net,
    /// The provider's own prefixes.
    announce: &'a [IpNet],
    has_rpki_file: bool,
}

impl BorderRouter<'_> {
    fn sid(&self, function: u16) -> Ipv6Addr {
        let shift = 112 - u32::from(self.locator.prefix_len());
        let sid = u128::from(self.locator.network()) | u128::from(function) << shift;
        sid.into()
    }
}

/// The function of a peer's segment for IPv4; `None`: it has none.
fn ipv4_function(
    entry: &Spanned<Peer>,
    function: u16,
    used: &mut UsedValues,
) -> Result<Option<u16>, LocatedError> {
    let peer = entry.get_ref();
    let said = peer.ipv4_function.as_ref();
    let at = said.map_or(entry.span(), Spanned::span);
    let has_table = peer.behaviour.unwrap_or_default() == Behaviour::Table;
    let problem = match said.map(|said| *said.get_ref()) {
        Some(_) if peer.ipv4 != Some(true) => {
            "ipv4_function: the peer has no `ipv4 = true`, so it announces no IPv4 routes"
        }
        Some(_) if !has_table => {
            "ipv4_function: a segment for IPv4 needs a table; use behaviour = \"end.dt6\""
        }
        Some(0) => "ipv4_function: 0 is the locator itself; use 1 to 65535",
        None if peer.ipv4 == Some(true) && has_table && function >= IPV4_FUNCTIONS => {
            "ipv4_function: it follows from `function` only below 0x8000; add a number that no peer has"
        }
        _ => "",
    };
    if !problem.is_empty() {
        return Err(LocatedError::new(at, problem.to_owned()));
    }
    if peer.ipv4 != Some(true) || !has_table {
        return Ok(None);
    }
    let function = said.map_or(function | IPV4_FUNCTIONS, |said| *said.get_ref());
    used.once("function", function, &peer.name, "the segment", at)?;
    Ok(Some(function))
}

/// An egress peer, the `place`th of the file.
fn egress_peer(
    entry: &Spanned<Peer>,
    place: usize,
    router: &BorderRouter<'_>,
    used: &mut UsedValues,
) -> Result<EgressPeer, LocatedError> {
    let peer = entry.get_ref();
    let neighbour = egress_neighbour(entry, router, used)?;
    if let Some(message) = rule_misuse(peer, router.has_rpki_file) {
        return Err(LocatedError::new(entry.span(), message.to_owned()));
    }
    let function = match &peer.function {
        Some(function) => *function.get_ref(),
        None => u16::try_from(place + 1).unwrap_or(0),
    };
    let at = peer.function.as_ref().map_or(entry.span(), Spanned::span);
    if function == 0 {
        let message = "function: 0 is the locator itself; use 1 to 65535".to_owned();
        return Err(LocatedError::new(at, message));
    }
    used.once("function", function, &peer.name, "the segment", at)?;
    let ipv4_function = ipv4_function(entry, function, used)?;
    let default = match u16::try_from(router.asn) {
        Ok(asn) => format!("{asn}:{function}"),
        Err(_) => format!("{}:{function}", router.router_id),
    };
    let rd: RouteDistinguisher = administrator(peer.rd.as_ref(), &default, entry.span())?;
    let rt: RouteTarget = administrator(peer.rt.as_ref(), &default, entry.span())?;
    let at = peer.rd.as_ref().map_or(entry.span(), Spanned::span);
    used.once("rd", rd.0, &peer.name, "the route distinguisher", at)?;
    let behaviour = peer.behaviour.unwrap_or_default();
    if behaviour == Behaviour::Neighbour && neighbour.address.is_ipv4() {
        let message =
            "behaviour: end.dx6 leads to an IPv6 address, and the peer has none; use \"end.dt6\"";
        return Err(LocatedError::new(entry.span(), message.to_owned()));
    }
    let default_table = default_table(ASBR_TABLE_FIRST, place);
    Ok(EgressPeer {
        neighbour,
        sid: router.sid(function),
        ipv4_sid: ipv4_function.map(|function| router.sid(function)),
        behaviour,
        rd,
        rt,
        table: table(
            peer.table.as_ref(),
            default_table,
            &peer.name,
            entry.span(),
            used,
        )?,
        table_said: peer.table.is_some(),
        interface: interface(peer.interface.as_ref())?,
    })
}

/// The configuration; `None` if a problem was reported.
fn endpoint_config(file: EndpointFile, report: &mut Report<'_>) -> Option<EndpointConfig> {
    let it = file.egress;
    let own_asn = report.keep(our_asn(&it.asn));
    let id = report.keep(router_id(&it.router_id));
    let interface = report.keep(interface(it.interface.as_ref()));
    let nexthop_ids = report.keep(nexthop_ids(it.nexthop_ids.as_ref(), EGRESS_NEXTHOPS));
    let priority = rule_priority(it.rule_priority.as_ref(), EGRESS_PRIORITY);
    let rule_priority = report.keep(priority);
    let probe_interval = report.keep(values::probe_interval(it.probe_interval.as_ref()));
    let helper_ports = report.keep(helper_ports(it.helper_ports.as_ref(), it.mptcp));
    let mut used = UsedValues::default();
    let mut reflectors = Vec::new();
    for entry in &file.reflector {
        let read = reflector(entry, *it.asn.get_ref(), &mut used, Direction::Down);
        reflectors.extend(report.keep(read));
    }
    let mut peers = Vec::new();
    for (place, entry) in file.peer.iter().enumerate() {
        peers.extend(report.keep(server_peer(entry, place, &mut used)));
    }
    let has_ipv4 = reflectors.iter().any(Neighbour::has_ipv4);
    let of_ipv4 = file
        .peer
        .iter()
        .filter_map(|peer| peer.get_ref().ipv4_address.as_ref());
    if let Some(unused) = of_ipv4.take(usize::from(!has_ipv4)).next() {
        let message =
            "ipv4_address: no [[reflector]] exchanges IPv4 routes, so nothing would leave by it";
        report.add(
            &unused.span(),
            message,
            "write ipv4 = true in [[reflector]]",
        );
    }
    // A class may name a peer that is wrong by itself.
    let peers_are_complete = peers.len() == file.peer.len();
    let mut classes: Vec<Class> = Vec::new();
    for entry in &file.class {
        if it.mptcp != Mptcp::Precise {
            let hint = "write mptcp = \"precise\" in [egress], or remove them";
            report.add(
                &entry.span(),
                "classes need mptcp = \"precise\" in [egress]",
                hint,
            );
        } else if peers_are_complete {
            classes.extend(report.keep(class(entry.get_ref(), &peers, &classes)));
        }
    }
    if let Some(entry) = file.comparison.as_ref()
        && it.mptcp != Mptcp::Precise
    {
        let message = "[comparison] needs mptcp = \"precise\" in [egress]";
        let hint = "write mptcp = \"precise\" in [egress], or remove it";
        report.add(&entry.span(), message, hint);
    }
    let comparison = file.comparison.as_ref().map(Spanned::get_ref);
    let settings = comparison::settings(comparison, report);
    let tables = peers.iter().map(|peer| peer.table).collect();
    let steering = match &file.steering {
        None => None,
        Some(entry) => Some(steering::steered(entry, &tables, report)?),
    };
    Some(EndpointConfig {
        steering,
        comparison: settings?,
        evidence_file: comparison.and_then(|entry| entry.evidence_file.clone()),
        helper_ports: helper_ports?,
        probe_interval: probe_interval?,
        classes,
        mptcp: it.mptcp,
        interface: interface?,
        nexthop_ids: nexthop_ids?,
        rule_priority: rule_priority?,
        speaker: SpeakerConfig {
            asn: own_asn?,
            router_id: id?,
            listen: it.listen.unwrap_or_else(anywhere),
            control_socket: it.control_socket,
            vrps: None,
        },
        reflectors,
        peers,
    })
}

/// An egress peer as a server knows it, the `place`th of the file.
fn server_peer(
    entry: &Spanned<ServerPeer>,
    place: usize,
    used: &mut UsedValues,
) -> Result<EndpointPeer, LocatedError> {
    let peer = entry.get_ref();
    let rt: RouteTarget = administrator(Some(&peer.rt), "", entry.span())?;
    used.name(&peer.name, entry.span())?;
    used.once("rt", rt.0, &peer.name, "the target", peer.rt.span())?;
    let address = values::own_address(&peer.address)?;
    let at = peer.address.span();
    used.once(
        "address",
        u128::from(address),
        &peer.name,
        "the address",
        at,
    )?;
    let ipv4_address = peer.ipv4_address.as_ref();
    let ipv4_address = ipv4_address.map(values::own_ipv4_address).transpose()?;
    if let Some((address, said)) = ipv4_address.zip(peer.ipv4_address.as_ref()) {
        let (key, number) = ("ipv4_address", u128::from(u32::from(address)));
        used.once(key, number, &peer.name, "the address", said.span())?;
    }
    let default_table = default_table(TABLE_FIRST, place);
    Ok(EndpointPeer {
        name: peer.name.clone(),
        rt,
        table: table(
            peer.table.as_ref(),
            default_table,
            &peer.name,
            entry.span(),
            used,
        )?,
        table_said: peer.table.is_some(),
        address,
        ipv4_address,
        vrf: vrf(peer, used)?,
    })
}

fn vrf(peer: &ServerPeer, used: &mut UsedValues) -> Result<Option<InterfaceName>, LocatedError> {
    let Some(said) = &peer.vrf else {
        return Ok(None);
    };
    let name = said.get_ref();
    let Some(device) = InterfaceName::new(name).filter(|_| name != "lo") else {
        let message = format!(
            "vrf: `{name}` cannot be the name of a VRF device: at most 15 octets, without spaces and `/`, and not `lo`"
        );
        return Err(LocatedError::new(said.span(), message));
    };
    let mut number = [0; 16];
    number[..name.len()].copy_from_slice(name.as_bytes());
    let number = u128::from_be_bytes(number);
    used.once("vrf", number, &peer.name, "the device", said.span())?;
    Ok(Some(device))
}

fn helper_ports(
    ports: Option<&Spanned<BTreeSet<u16>>>,
    mptcp: Mptcp,
) -> Result<BTreeSet<u16>, LocatedError> {
    let Some(ports) = ports else {
        return Ok(BTreeSet::new());
    };
    let message = match mptcp {
        Mptcp::Off => "helper_ports: clients join only with mptcp = \"precise\" or \"kernel\"",
        _ if ports.get_ref().contains(&0) => "helper_ports: 0 is not a port",
        _ => return Ok(ports.get_ref().clone()),
    };
    Err(LocatedError::new(ports.span(), message.to_owned()))
}

fn class(it: &ClassEntry, peers: &[EndpointPeer], others: &[Class]) -> Result<Class, LocatedError> {
    let ports: BTreeSet<u16> = it.ports.get_ref().iter().copied().collect();
    let problem = match (
        ports.first(),
        ports.iter().find_map(|port| taken(*port, others)),
    ) {
        (None, _) => Some("ports: a class has at least one port".to_owned()),
        (Some(0), _) => Some("ports: 0 is not a port; write 1 to 65535".to_owned()),
        (_, Some(taken)) => Some(taken),
        _ => None,
    };
    if let Some(message) = problem {
        return Err(LocatedError::new(it.ports.span(), message));
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
            return Err(LocatedError::new(it.prefer.span(), message));
        };
        prefer.insert(place);
    }
    if prefer.is_empty() {
        let message = "prefer: the class prefers no peer; name one, or remove the class".to_owned();
        return Err(LocatedError::new(it.prefer.span(), message));
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

/// Which way routes go between a reflector and this speaker.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// The border router announces. It does not import the VPN routes of others.
    Up,
    /// The server imports and announces nothing.
    Down,
}

fn reflector(
    entry: &Spanned<Reflector>,
    asn: u32,
    used: &mut UsedValues,
    direction: Direction,
) -> Result<Neighbour, LocatedError> {
    let it = entry.get_ref();
    let address = used.neighbour(&it.name, &it.address, entry.span())?;
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
        extended_messages: it.extended_messages,
        routes_max: routes_max(it.routes_max.as_ref())?,
        routes_max_is_default: false,
        md5: it.md5_file.as_ref().map(md5_key).transpose()?,
        one_hop: it.ttl_security,
        local: it.local_address,
        next_hop: it.next_hop,
        drain: false,
        bfd: None,
    })
}

/// Everything but VPN routes: servers need those, and there are many.
fn without_vpn() -> Policy {
    let mut policy = Policy::permit_all();
    for family in Family::ALL.into_iter().filter(|family| family.is_vpn()) {
        let vpn = Rule {
            family: Some(family),
            ..Rule::default()
        };
        policy.rules.insert(0, vpn);
    }
    policy
}

fn egress_neighbour(
    entry: &Spanned<Peer>,
    router: &BorderRouter<'_>,
    used: &mut UsedValues,
) -> Result<Neighbour, LocatedError> {
    let (asn, it) = (router.asn, entry.get_ref());
    let address = used.neighbour(&it.name, &it.address, entry.span())?;
    let Some(peer_asn) = &it.asn else {
        let message = "[[peer]] has no `asn`, nor has its group; add asn = 65001".to_owned();
        return Err(LocatedError::new(entry.span(), message));
    };
    if *peer_asn.get_ref() == asn {
        let message =
            format!("asn: {asn} is our own AS; neighbours of this AS are a [[reflector]]");
        return Err(LocatedError::new(peer_asn.span(), message));
    }
    Ok(Neighbour {
        name: it.name.clone(),
        address,
        port: it.port.unwrap_or(bgp_port()),
        asn: our_asn(peer_asn)?,
        families: families(it.ipv4.unwrap_or(false), false),
        import: Policy {
            graceful_shutdown: match it.graceful_shutdown.unwrap_or(true) {
                true => GracefulShutdown::Received,
                false => GracefulShutdown::Never,
            },
            ..values::guarded(it.import().policy(router.announce), router.locator)
        },
        export: it.export().policy(router.announce),
        passive: it.passive.unwrap_or(false),
        hold_time: hold_time(it.hold_time.as_ref())?,
        add_path: it.add_path.unwrap_or(false),
        graceful_restart: match &it.graceful_restart {
            None => None,
            Some(time) => restart_time(time)?,
        },
        extended_messages: it.extended_messages.unwrap_or(true),
        routes_max: Some(routes_max(it.routes_max.as_ref())?.unwrap_or(ROUTES_MAX)),
        routes_max_is_default: it.routes_max.is_none(),
        md5: it.md5_file.as_ref().map(md5_key).transpose()?,
        one_hop: it.ttl_security.unwrap_or(true),
        local: it.local_address,
        next_hop: it.next_hop,
        drain: it.drain.unwrap_or(false),
        bfd: bfd::config(it.bfd.as_ref())?,
    })
}

/// What is wrong with rules where they are; `None`: nothing.
fn rule_misuse(peer: &Peer, has_file: bool) -> Option<&'static str> {
    if peer.export().drops_packets() {
        return Some(
            "export: \"blackhole\" is about routes of others; to ask the peer to drop packets, write \
             add_communities = [\"blackhole\"]",
        );
    }
    if peer.import().drops_packets() && peer.behaviour == Some(Behaviour::Neighbour) {
        return Some(
            "import: a segment of \"end.dx6\" has no table in which packets could be dropped; use \"end.dt6\"",
        );
    }
    if peer.export().asks_rpki() {
        return Some("export: `rpki` is about routes of others; ask for it in `import`");
    }
    (peer.import().asks_rpki() && !has_file)
        .then_some("import: `rpki` needs `rpki_file` in [asbr], which says who may announce what")
}

fn vrps(path: &Spanned<PathBuf>) -> Result<Arc<Vrps>, LocatedError> {
    let at = path.get_ref();
    let read = roas::read(at, SystemTime::now()).map_err(|reason| {
        let message = format!("rpki_file: {}: {reason}", at.display());
        LocatedError::new(path.span(), message)
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

/// Values that only one entry may have, by key, with the name of the entry that has them.
#[derive(Default)]
struct UsedValues {
    values: BTreeMap<(&'static str, u128), String>,
    names: BTreeSet<String>,
}

impl UsedValues {
    fn once(
        &mut self,
        key: &'static str,
        value: impl Into<u128>,
        name: &str,
        what: &str,
        at: Range<usize>,
    ) -> Result<(), LocatedError> {
        match self.values.insert((key, value.into()), name.to_owned()) {
            None => Ok(()),
            Some(other) => {
                let message =
                    format!("{key} of `{name}` is {what} of `{other}` too; each needs its own");
                Err(LocatedError::new(at, message.replacen(" too;", ";", 1)))
            }
        }
    }

    /// Refuses an empty name and a second entry of the same name: status and metrics go by names.
    fn name(&mut self, name: &str, at: Range<usize>) -> Result<(), LocatedError> {
        if name.is_empty() {
            let message = "name: it is empty; write a name for status and logs".to_owned();
            return Err(LocatedError::new(at, message));
        }
        match self.names.insert(name.to_owned()) {
            true => Ok(()),
            false => {
                let message = format!("name: there are two `{name}`; each needs its own");
                Err(LocatedError::new(at, message))
            }
        }
    }

    fn neighbour(
        &mut self,
        name: &str,
        address: &Spanned<IpAddr>,
        entry: Range<usize>,
    ) -> Result<IpAddr, LocatedError> {
        self.name(name, entry)?;
        let number = match address.get_ref() {
            IpAddr::V4(v4) => u128::from(u32::from(*v4)),
            IpAddr::V6(v6) => u128::from(*v6),
        };
        let at = address.span();
        if address.get_ref().is_unspecified() || address.get_ref().is_multicast() {
            let message = format!(
                "address: `{}` cannot be a neighbour's; use its unicast address",
                address.get_ref()
            );
            return Err(LocatedError::new(at, message));
        }
        if matches!(address.get_ref(), IpAddr::V6(v6) if v6.is_unicast_link_local()) {
            let message = format!(
                "address: `{}` is link-local and has no interface; use a global address",
                address.get_ref()
            );
            return Err(LocatedError::new(at, message));
        }
        self.once("address", number, name, "the address", at)?;
        Ok(*address.get_ref())
    }
}

/// A route distinguisher or target: `text`, or `default`; `entry` is where its entry is.
fn administrator<T: FromStr<Err: fmt::Display>>(
    text: Option<&Spanned<String>>,
    default: &str,
    entry: Range<usize>,
) -> Result<T, LocatedError> {
    let read = text.map_or(default, |text| text.get_ref()).parse();
    read.map_err(|error: T::Err| {
        let at = text.map_or(entry, Spanned::span);
        LocatedError::new(at, error.to_string())
    })
}

/// The table of the peer at this place of the file.
fn default_table(first: u32, place: usize) -> u32 {
    first.saturating_add(u32::try_from(place).unwrap_or(u32::MAX))
}

/// A peer's table: `said`, or `default`.
fn table(
    said: Option<&Spanned<u32>>,
    default: u32,
    name: &str,
    entry: Range<usize>,
    used: &mut UsedValues,
) -> Result<u32, LocatedError> {
    let table = said.map_or(default, |said| *said.get_ref());
    let at = said.map_or(entry, Spanned::span);
    if !(1000..=0x7fff_ffff).contains(&table) {
        let message = format!(
            "table: {table} may belong to another program; use a number between 1000 and 2147483647"
        );
        return Err(LocatedError::new(at, message));
    }
    used.once("table", table, name, "the table", at)?;
    Ok(table)
}

fn md5_key(path: &Spanned<PathBuf>) -> Result<Md5Key, LocatedError> {
    read_key(path.get_ref()).map_err(|reason| {
        let message = format!("md5_file: {}: {reason}", path.get_ref().display());
        LocatedError::new(path.span(), message)
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
    let key = without_byte_order_mark(&octets);
    let key = key.strip_suffix(b"\n").unwrap_or(key);
    Md5Key::new(key).ok_or_else(|| "a key has 1 to 80 octets".to_owned())
}

fn families(ipv4: bool, vpn: bool) -> Vec<Family> {
    let all = [
        (Family::Ipv4, ipv4),
        (Family::Ipv6, true),
        (Family::Vpn6, vpn),
        (Family::Vpn4, vpn && ipv4),
    ];
    let wanted = all.into_iter().filter(|(_, wanted)| *wanted);
    wanted.map(|(family, _)| family).collect()
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

/// Functions of segments for IPv4 begin here, unless said otherwise: the function of the peer's segment for IPv6 is
/// added. Ours.
const IPV4_FUNCTIONS: u16 = 0x8000;
/// The default restart time for reflectors, as in other implementations.
const GRACEFUL_RESTART: Duration = Duration::from_secs(120);
/// The default limit of routes per family from an egress peer: several times the Internet's IPv6
/// table. Ours.
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
