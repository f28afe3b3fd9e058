//! Rules that concern several entries at once: addresses, keys, destinations of forwards.
//!
//! Each entry is valid by itself before it is checked here.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
    net::{IpAddr, SocketAddr},
    ops::Range,
};

use super::{
    AppIndex, Class, Config, ConfigError, Destination, Family, Forward, Gateway, Local, Network,
    PATHS_MAX, Path, PathIndex, Peer, PeerEndpoint, aggregation,
    draft::{Draft, DraftGateway, ForwardSpans, PathSpans, PeerSpans},
    embedded::reached_by,
    history, message_tls, tenant,
    values::{SOCKET_PATH_BYTES_MAX, is_broadcast, local_kind},
};
use crate::network_channel::NETWORK_APP;
use keiro_config::Report;
use keiro_model::path_terms::PathRole;

/// Checks a whole file.
pub(super) fn together(draft: &Draft, report: &mut Report<'_>) {
    // Entries that are wrong are missing from the draft, and then the indices do not hold.
    let indices_hold = report.is_empty();
    gateway_sockets(draft, report);
    too_many_paths(draft, report);
    let bound = [
        bound_addresses(draft, report),
        listening_addresses(draft, report),
    ];
    if indices_hold {
        transports(draft, report);
    }
    wildcard_paths(draft, report);
    roles(draft, report);
    peers(draft, report);
    forwards(draft, &bound, report);
    let endpoints_of = |(peer, _): &(Peer, PeerSpans)| peer.endpoints.len();
    let lines: usize = draft.peers.iter().map(endpoints_of).sum();
    let subjects = lines + draft.apps.len();
    history::check(
        &draft.history,
        draft.history_spans.as_ref(),
        subjects,
        report,
    );
    let paths = draft.paths.iter();
    let paths = paths.filter_map(|(path, spans)| Some((path, spans.rate.as_ref()?)));
    aggregation::check(&draft.aggregation, paths, report);
    tenant::check::check(draft, indices_hold, report);
    message_tls::check(draft, indices_hold, report);
    if indices_hold {
        endpoints(draft, report);
    }
}

/// A backup is one beside other paths.
fn roles(draft: &Draft, report: &mut Report<'_>) {
    let is_auto = |gateway: &DraftGateway| gateway.value.auto_uplinks.is_some();
    let is_backup = |(path, _): &(Path, PathSpans)| path.role == PathRole::Backup;
    if draft.gateway.as_ref().is_some_and(is_auto) || !draft.paths.iter().all(is_backup) {
        return;
    }
    if let Some((_, PathSpans { role: Some(at), .. })) = draft.paths.first() {
        report.warn(
            at,
            "role: all paths are backups, so they are used as if they were primary",
            "write role = \"primary\" for the ones to use first",
        );
    }
}

/// See [`Config::refuse_app_id_collisions`].
pub(super) fn app_id_collisions(
    config: &Config,
    app_id: impl Fn(&str) -> u32,
) -> Result<(), ConfigError> {
    let mut report = config.origin.report();
    let mut names = BTreeMap::from([(app_id(NETWORK_APP), NETWORK_APP)]);
    let mut here = BTreeSet::new();
    // Those of a network are not in the file.
    let elsewhere = 0..0;
    for (number, app) in config.apps.iter().enumerate() {
        let at = config.origin.apps.get(number).unwrap_or(&elsewhere);
        let name = app.name.as_str();
        if let Some(earlier) = names.insert(app_id(app.wire_name().as_str()), name) {
            let message = format!("`{name}` has the same number on the wire as `{earlier}`");
            report.add(at, message, "rename one of them, at both gateways");
        } else if !here.insert(name) {
            // A renamed site has another name on the wire.
            let message =
                format!("two applications are named `{name}`, one of them by the network");
            report.add(at, message, "rename the one in this file, at both gateways");
        }
    }
    report.finish().map(drop)
}

/// See [`Config::refuse_own_addresses`].
pub(super) fn own_addresses(config: &Config, own: &[IpAddr]) -> Result<(), ConfigError> {
    let mut report = config.origin.report();
    for (forward, at) in config.forwards.iter().zip(&config.origin.forwards) {
        // Networks may contain own addresses: the gateway leaves them out.
        if let Some(address) = forward.to.address()
            && !forward.allow_local
            && is_one_of(address.ip(), own)
        {
            let what = "an address of this machine";
            refuse_local(&mut report, at, forward.to.key(), &address, what);
        }
    }
    report.finish().map(drop)
}

fn gateway_sockets(draft: &Draft, report: &mut Report<'_>) {
    let Some(draft) = &draft.gateway else {
        return;
    };
    let gateway = &draft.value;
    if let (Some(address), Some(at)) = (gateway.message_tcp, &draft.message_tcp)
        && !address.ip().is_loopback()
    {
        let hint =
            "write 127.0.0.1 or [::1]: every host that reaches this port can send and receive";
        report.add(
            at,
            format!("message_tcp: `{address}` is not a loopback address"),
            hint,
        );
    }
    if let (Some(address), Some(at)) = (gateway.metrics, &draft.metrics)
        && !address.ip().is_loopback()
        && !gateway.metrics_public
    {
        let hint = "write 127.0.0.1, or metrics_public = true if other hosts may read the metrics";
        report.add(
            at,
            format!("metrics: `{address}` is not a loopback address"),
            hint,
        );
    }
    sockets(report, draft, gateway);
    if let (Some(message), Some(metrics), Some(at)) =
        (gateway.message_tcp, gateway.metrics, &draft.metrics)
        && overlap(&message, &metrics)
    {
        let hint = "choose another port";
        report.add(
            at,
            format!("metrics: `{metrics}` is taken by message_tcp"),
            hint,
        );
    }
}

/// Each local socket has its file.
fn sockets(report: &mut Report, draft: &DraftGateway, gateway: &Gateway) {
    let hint = "give each its own file name";
    let mut refuse = |at: &Option<Range<usize>>, what: &str| {
        let at = at.as_ref().or(draft.control_socket.as_ref());
        report.add(at.unwrap_or(&(0..0)), what.to_owned(), hint);
    };
    if gateway.message_socket.as_ref() == Some(&gateway.control_socket) {
        refuse(
            &draft.message_socket,
            "message_socket: this is the control socket",
        );
    }
    if gateway.readonly_socket == gateway.control_socket {
        refuse(
            &draft.readonly_socket,
            "readonly_socket: this is the control socket",
        );
    }
    if draft.readonly_socket.is_none()
        && gateway.readonly_socket.as_os_str().len() > SOCKET_PATH_BYTES_MAX
    {
        refuse(
            &None,
            "readonly_socket: its name beside the control socket is too long",
        );
    }
    if gateway.message_socket.as_ref() == Some(&gateway.readonly_socket) {
        let at = draft
            .readonly_socket
            .as_ref()
            .or(draft.message_socket.as_ref());
        refuse(&at.cloned(), "readonly_socket: this is the message socket");
    }
}

/// Stands for all ports of an address.
const ANY_PORT: u16 = 0;

/// Addresses that this gateway's sockets of one protocol are bound to.
#[derive(Default)]
struct Bound {
    exact: BTreeMap<SocketAddr, Range<usize>>,
    /// By port.
    wildcards: BTreeMap<u16, Range<usize>>,
    /// By port, the first of any address.
    any: BTreeMap<u16, Range<usize>>,
}

impl Bound {
    fn add(&mut self, address: SocketAddr, at: &Range<usize>) -> Option<Range<usize>> {
        let port = address.port();
        let taken = self
            .exact
            .get(&address)
            .or_else(|| self.wildcards.get(&port));
        let taken = taken.or_else(|| {
            self.any
                .get(&port)
                .filter(|_| address.ip().is_unspecified())
        });
        let taken = taken.cloned();
        self.exact.entry(address).or_insert_with(|| at.clone());
        self.any.entry(port).or_insert_with(|| at.clone());
        if address.ip().is_unspecified() {
            self.wildcards.entry(port).or_insert_with(|| at.clone());
        }
        taken
    }
}

impl Bound {
    /// What of this gateway is reached at `address`, which is this machine's if `is_own`.
    fn reached_at(&self, address: SocketAddr, is_own: bool) -> Option<&Range<usize>> {
        let ports = match address.port() {
            ANY_PORT => ANY_PORT..=u16::MAX,
            port => port..=port,
        };
        let at = |port| SocketAddr::new(address.ip(), port);
        let mut exact = self.exact.range(at(*ports.start())..=at(*ports.end()));
        let exact = self.exact.get(&address).or(exact.next().map(|(_, at)| at));
        let mut wildcards = self.wildcards.range(ports).filter(|_| is_own);
        exact.or_else(|| wildcards.next().map(|(_, at)| at))
    }

    fn add_once(
        &mut self,
        key: &str,
        address: SocketAddr,
        at: &Range<usize>,
        report: &mut Report<'_>,
    ) {
        if let Some(earlier) = self.add(address, at) {
            let line = report.line(&earlier);
            let message = format!("{key}: `{address}` is already taken by line {line}");
            report.add(at, message, "choose another address or port");
        }
    }
}

fn bound_addresses(draft: &Draft, report: &mut Report<'_>) -> Bound {
    let mut bound = Bound::default();
    let paths = draft.paths.iter().filter_map(|(path, spans)| {
        let address = path.local.address()?;
        Some(("local", address, &spans.local))
    });
    let listeners = draft
        .listeners
        .iter()
        .filter(|(i, _)| !i.transport.is_tcp());
    let listeners = listeners.map(|(i, spans)| ("udp", i.local, &spans.local));
    for (key, address, at) in paths.chain(listeners) {
        bound.add_once(key, address, at, report);
    }
    interfaces(draft, &bound, report);
    bound
}

/// Two paths of one interface need different ports, and a wildcard address has its port on every interface.
fn interfaces(draft: &Draft, bound: &Bound, report: &mut Report<'_>) {
    for (number, (path, spans)) in draft.paths.iter().enumerate() {
        let Some(interface) = path.local.interface() else {
            continue;
        };
        let mut earlier = draft.paths[..number].iter();
        let same = earlier.find(|(other, _)| other.local.is_same_interface(&path.local));
        let same = same.map(|(_, spans)| &spans.local);
        let taken = same.or_else(|| bound.wildcards.get(&path.local.port()));
        if let Some(earlier) = taken {
            let (line, port) = (report.line(earlier), path.local.port());
            let message =
                format!("interface: port {port} of `{interface}` is already taken by line {line}");
            let hint = "write another one, as in port = 7601";
            report.add(&spans.local, message, hint);
        }
    }
}

/// TCP addresses that this gateway listens at.
fn listening_addresses(draft: &Draft, report: &mut Report<'_>) -> Bound {
    let mut bound = Bound::default();
    if let Some(draft) = &draft.gateway {
        let own = [
            (draft.value.message_tcp, &draft.message_tcp),
            (draft.value.metrics, &draft.metrics),
        ];
        for (address, at) in own {
            if let (Some(address), Some(at)) = (address, at) {
                // Those two against each other are looked at elsewhere.
                bound.add(address, at);
            }
        }
    }
    if let Some((tls, spans)) = &draft.message_tls {
        for address in &tls.listen {
            bound.add_once("listen", *address, &spans.listen, report);
        }
    }
    for (listener, spans) in draft.listeners.iter().filter(|(i, _)| i.transport.is_tcp()) {
        let (key, at) = (listener.transport.as_str(), &spans.local);
        bound.add_once(key, listener.local, at, report);
    }
    bound
}

/// TCP needs an application of class `stream`, UDP one of another class.
fn transports(draft: &Draft, report: &mut Report<'_>) {
    let class = |app: AppIndex| draft.apps[app.0].0.class;
    let listeners = draft.listeners.iter().map(|(i, spans)| {
        let transport = i.transport;
        (i.app, transport.as_str(), transport.is_tcp(), &spans.local)
    });
    let forwards = draft.forwards.iter().map(|(o, spans)| {
        let tcp = !matches!(o.to, Destination::Udp(_));
        (o.app, o.to.key(), tcp, &spans.to)
    });
    for (app, key, tcp, at) in listeners.chain(forwards) {
        let class = class(app);
        if tcp != (class == Class::Stream) {
            let message = format!("{key}: the application's class is `{}`", class.as_str());
            let hint = match tcp {
                true => "write class = \"stream\" there, or udp here",
                false => "write tcp here, or another class there",
            };
            report.add(at, message, hint);
        }
    }
}

fn too_many_paths(draft: &Draft, report: &mut Report<'_>) {
    if let Some((_, spans)) = draft.paths.get(PATHS_MAX) {
        let message = format!("more than {PATHS_MAX} paths");
        report.add(&spans.local, message, "share them between several gateways");
    }
}

/// A path without an address of its own follows the default route, so it must be the only path of its
/// IP version.
fn wildcard_paths(draft: &Draft, report: &mut Report<'_>) {
    for family in [Family::V4, Family::V6] {
        let same_family = draft
            .paths
            .iter()
            .filter(|(path, _)| path.local.family().is_none_or(|of| of == family));
        if same_family.clone().count() < 2 {
            continue;
        }
        let is_wildcard = |local: &Local| {
            local
                .address()
                .is_some_and(|address| address.ip().is_unspecified())
        };
        for (path, spans) in same_family.filter(|(path, _)| is_wildcard(&path.local)) {
            let message = format!("local: `{}` does not say which uplink this is", path.local);
            let hint = "write interface = \"...\", or the uplink's own address";
            report.add(&spans.local, message, hint);
        }
    }
}

fn peers(draft: &Draft, report: &mut Report<'_>) {
    let mut keys: BTreeMap<_, &Range<usize>> = BTreeMap::new();
    for (peer, spans) in &draft.peers {
        if let Some(earlier) = keys.insert(peer.public_key, &spans.public_key) {
            let line = report.line(earlier);
            let message = format!("public_key: line {line} has the same key");
            report.add(
                &spans.public_key,
                message,
                "every gateway has a key of its own",
            );
        }
    }
}

fn endpoints(draft: &Draft, report: &mut Report<'_>) {
    let mut endpoints: BTreeMap<(PathIndex, SocketAddr), &Range<usize>> = BTreeMap::new();
    for (peer, spans) in &draft.peers {
        for ((path, address), at) in peer.endpoints.iter().zip(spans.endpoints.values()) {
            endpoint(draft, *path, address, at, report);
            if let Some(earlier) = endpoints.insert((*path, *address), at) {
                let line = report.line(earlier);
                let message = format!("endpoints: `{address}` is line {line}'s on the same path");
                report.add(at, message, "every gateway has an address of its own");
            }
        }
        for (of_all, at) in peer.endpoint.iter().zip(&spans.endpoint) {
            if let PeerEndpoint::Address(address) = of_all {
                own_address(draft, "endpoint", address, at, report);
            }
        }
    }
}

/// Refuses an endpoint at which this gateway itself is.
fn own_address(
    draft: &Draft,
    key: &str,
    address: &SocketAddr,
    at: &Range<usize>,
    report: &mut Report<'_>,
) {
    let mut paths = draft.paths.iter();
    if paths.any(|(path, _)| path.local.address() == Some(*address)) {
        let message = format!("{key}: `{address}` is this gateway itself");
        report.add(at, message, "write the peer's address");
    }
}

fn endpoint(
    draft: &Draft,
    path: PathIndex,
    address: &SocketAddr,
    at: &Range<usize>,
    report: &mut Report<'_>,
) {
    let (path, _) = &draft.paths[path.0];
    let there = Family::of(address);
    if let Some(here) = path.local.family().filter(|here| *here != there) {
        let (here, there) = (here.as_str(), there.as_str());
        let message = format!(
            "endpoints: `{address}` is {there}, but {} is an {here} path",
            path.name
        );
        let hint = match path.local.interface() {
            None => {
                format!("write the peer's {here} address, or add a path with a local {there} one")
            }
            Some(_) => format!("write the peer's {here} address, or add a path for {there}"),
        };
        report.add(at, message, &hint);
    } else {
        own_address(draft, "endpoints", address, at, report);
    }
}

fn forwards(draft: &Draft, bound: &[Bound; 2], report: &mut Report<'_>) {
    let mut forwards: BTreeMap<AppIndex, &Range<usize>> = BTreeMap::new();
    let own = draft.paths.iter().filter_map(|(p, _)| p.local.address());
    let own: Vec<IpAddr> = own.map(|address| address.ip()).collect();
    for (forward, spans) in &draft.forwards {
        if let Some(earlier) = forwards.insert(forward.app, &spans.app) {
            let line = report.line(earlier);
            let message = format!("app: this application has a forward already (line {line})");
            report.add(&spans.app, message, "keep one of them");
        }
        if forward.allow_local
            && let Destination::Networks(networks) = &forward.to
            && !networks.iter().any(Network::is_one_address)
        {
            let message = "tcp_networks: none is a single address, which allow_local = true is for";
            let hint = "name the address, as \"10.0.0.1/32\", or leave allow_local out";
            report.add(&spans.to, message.to_owned(), hint);
        }
        let mut check = |address: SocketAddr, shown: &dyn Display| {
            let [udp, tcp] = bound;
            let bound = match forward.to {
                Destination::Udp(_) => udp,
                Destination::Tcp(_) | Destination::Networks(_) => tcp,
            };
            let target = ForwardTarget {
                forward,
                spans,
                address,
                shown,
            };
            forward_target(draft, &target, bound, &own, report);
        };
        match &forward.to {
            Destination::Udp(address) | Destination::Tcp(address) => check(*address, address),
            // The others are left out when a connection is asked for.
            Destination::Networks(networks) => {
                for network in networks.iter().filter(|network| network.is_one_address()) {
                    let port = network.port().unwrap_or(ANY_PORT);
                    check(SocketAddr::new(network.address(), port), network);
                }
            }
        }
    }
}

/// An address that a forward leads to.
struct ForwardTarget<'a> {
    forward: &'a Forward,
    spans: &'a ForwardSpans,
    address: SocketAddr,
    /// As it is written.
    shown: &'a dyn Display,
}

/// Keeps a peer from destinations that only this machine should reach: services that trust loopback,
/// devices of a link, this gateway's sockets. A destination that leads back into the gateway is always
/// refused, because traffic would loop.
fn forward_target(
    draft: &Draft,
    target: &ForwardTarget<'_>,
    bound: &Bound,
    own: &[IpAddr],
    report: &mut Report<'_>,
) {
    let ForwardTarget {
        forward,
        spans,
        address,
        shown,
    } = *target;
    let (ip, at, key) = (address.ip(), &spans.to, forward.to.key());
    let listeners = draft.listeners.iter().map(|(i, _)| i.local.ip());
    let all_own: Vec<IpAddr> = own.iter().copied().chain(listeners).collect();
    let is_own = is_one_of(ip, &all_own);
    let is_group =
        is_broadcast(&address) || !matches!(forward.to, Destination::Udp(_)) && ip.is_multicast();
    if ip.is_unspecified() || is_group {
        let message = format!("{key}: `{shown}` is not one destination");
        report.add(
            at,
            message,
            "write the address of the machine that the traffic is for",
        );
        return;
    }
    if let Some(earlier) = bound.reached_at(address, ip.is_loopback() || is_own) {
        let line = report.line(earlier);
        let message = format!("{key}: `{shown}` leads back into this gateway (line {line})");
        report.add(at, message, "write the application's own address");
        return;
    }
    if forward.allow_local {
        return;
    }
    let own = is_own.then_some("this gateway's own address");
    if let Some(what) = local_kind(ip).or(own) {
        refuse_local(report, at, key, shown, what);
    }
}

/// A packet for `ip` may arrive at one of `own`.
fn is_one_of(ip: IpAddr, own: &[IpAddr]) -> bool {
    reached_by(ip).iter().any(|ip| own.contains(ip))
}

fn refuse_local(
    report: &mut Report<'_>,
    at: &Range<usize>,
    key: &str,
    address: &dyn Display,
    what: &str,
) {
    let hint = "add allow_local = true to this forward if the peer may reach it";
    report.add(at, format!("{key}: `{address}` is {what}"), hint);
}

fn overlap(a: &SocketAddr, b: &SocketAddr) -> bool {
    let same_ip = a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified();
    a.port() == b.port() && same_ip
}
