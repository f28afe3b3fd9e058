//! The Internet by way of another site: `exit` at the gateway that leads there, `internet` at one that uses it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::SocketAddr,
    ops::Range,
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use keiro_config::{Report, TableReader, ValueError, boolean, choice, string, type_name};
use toml::{Spanned, de::DeValue};

use super::{
    Name, Tenant, TenantSpans,
    values::{EXIT_TABLES, integer, is_forwarded, prefixes, text},
};
use crate::config::{
    Membership, PeerIndex, Transport,
    draft::Draft,
    entries::{EntryNames, Reader},
    values::value,
};

/// `exit = true` of `[tenant.NAME]`: what is behind no site is behind this gateway, in the Internet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    pub ipv6: ExitIpv6,
    /// In the order of their names.
    pub port_forwards: Vec<PortForward>,
}

/// What becomes of the source addresses of IPv6 packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExitIpv6 {
    /// They are replaced by the exit's own.
    #[default]
    Nat,
    /// They stay: the Internet routes the sites' prefixes to the exit.
    Routed,
}

/// `[tenant.NAME.port_forward.NAME]`: a port of the exit that leads to a host of a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortForward {
    pub name: Name,
    pub protocol: ForwardedProtocol,
    /// Of the exit.
    pub port: u16,
    /// The host, as sites reach it.
    pub to: SocketAddr,
    /// The host sees the client's address instead of the exit's.
    pub keeps_source: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ForwardedProtocol {
    Tcp,
    Udp,
}

/// `[tenant.NAME.internet]`: which packets of this site leave by an exit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Internet {
    pub via: PeerIndex,
    /// Sources, as the hosts have them. Empty: all of the tenant's local networks.
    pub from: Vec<IpNet>,
    /// Destinations.
    pub to: Vec<IpNet>,
    pub when_down: WhenDown,
}

/// What becomes of packets for an exit that is not reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenDown {
    /// Senders get an ICMP error.
    #[default]
    Block,
    /// They leave by this machine's own default route.
    Local,
}

/// All addresses of either IP version.
pub const DEFAULT_PREFIXES: [IpNet; 2] = [
    IpNet::V4(Ipv4Net::new_assert(std::net::Ipv4Addr::UNSPECIFIED, 0)),
    IpNet::V6(Ipv6Net::new_assert(std::net::Ipv6Addr::UNSPECIFIED, 0)),
];
/// Ours: each is a rule that the kernel tries for every new flow.
const PORT_FORWARDS_MAX: usize = 256;
/// Ours: each is three rules of the kernel's, which are tried one after another for every packet.
const SOURCES_MAX: usize = 64;
const IPV6: &[(&str, ExitIpv6)] = &[("nat", ExitIpv6::Nat), ("routed", ExitIpv6::Routed)];
const WHEN_DOWN: &[(&str, WhenDown)] = &[("block", WhenDown::Block), ("local", WhenDown::Local)];
const PROTOCOLS: &[(&str, ForwardedProtocol)] = &[
    ("tcp", ForwardedProtocol::Tcp),
    ("udp", ForwardedProtocol::Udp),
];

impl Tenant {
    /// Networks that other sites reach here: its `prefixes`, and all that is nowhere else at an exit.
    pub fn offered_prefixes(&self) -> Vec<IpNet> {
        let everything = self.exit.iter().flat_map(|_| DEFAULT_PREFIXES);
        let is_new = |prefix: &IpNet| !self.prefixes.contains(prefix);
        let added: Vec<IpNet> = everything.filter(is_new).collect();
        self.prefixes.iter().copied().chain(added).collect()
    }

    /// The local networks, as their hosts have them.
    pub fn local_networks(&self) -> Vec<IpNet> {
        let own = self.prefixes.iter().map(|prefix| {
            let mut mapped = self.map.iter();
            let of = mapped.find(|of| of.network == *prefix);
            of.map_or(*prefix, |of| of.local)
        });
        let own: BTreeSet<IpNet> = own.collect();
        own.into_iter().collect()
    }

    /// The routing table that leads to the exit.
    pub fn exit_table(&self) -> u32 {
        EXIT_TABLES.start() | self.id & (EXIT_TABLES.end() - EXIT_TABLES.start())
    }

    /// Sources of packets that leave by the exit of `[tenant.NAME.internet]`.
    pub fn internet_sources(&self) -> Vec<IpNet> {
        match &self.internet {
            None => Vec::new(),
            Some(internet) if internet.from.is_empty() => self.local_networks(),
            Some(internet) => internet.from.clone(),
        }
    }
}

impl ForwardedProtocol {
    /// As nftables and the file have it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

impl fmt::Display for PortForward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = self.protocol.as_str();
        write!(f, "{protocol} {} to {}", self.port, self.to)
    }
}

impl Reader<'_> {
    /// `exit`, `exit_ipv6` and `[tenant.NAME.port_forward.NAME]`.
    pub(super) fn exit(
        &mut self,
        fields: &mut TableReader<'_, '_>,
        left: &mut usize,
    ) -> Option<Exit> {
        let r = &mut self.report;
        let exit = fields.optional(r, "exit", boolean);
        let ipv6 = fields.optional(r, "exit_ipv6", |v| choice(v, IPV6));
        let forwards = fields.raw("port_forward");
        let span = match (&exit, forwards) {
            (Some(exit), _) => exit.at.clone(),
            (None, Some(forwards)) => forwards.span(),
            (None, None) => fields.span_of("exit_ipv6"),
        };
        let is_exit = value(exit).unwrap_or(false);
        if !is_exit {
            let key = match (&ipv6, forwards) {
                (Some(_), _) => Some("exit_ipv6"),
                (None, Some(_)) => Some("port_forward"),
                (None, None) => None,
            };
            if let Some(key) = key {
                let message = format!("{key}: this tenant is not an exit to the Internet");
                self.report
                    .add(&span, message, "add exit = true, or remove it");
            }
            return None;
        }
        let port_forwards = self.port_forwards(forwards, left);
        Some(Exit {
            ipv6: value(ipv6).unwrap_or_default(),
            port_forwards,
        })
    }

    fn port_forwards(
        &mut self,
        tables: Option<&Spanned<DeValue<'_>>>,
        left: &mut usize,
    ) -> Vec<PortForward> {
        let Some(tables) = tables else {
            return Vec::new();
        };
        let hint = "begin a table with [tenant.NAME.port_forward.NAME]";
        let DeValue::Table(table) = tables.get_ref() else {
            let message = format!("port_forward: this is {}", type_name(tables.get_ref()));
            self.report.add(&tables.span(), message, hint);
            return Vec::new();
        };
        if let Some((first_beyond, _)) = table.iter().nth(PORT_FORWARDS_MAX) {
            let message = format!(
                "{} port forwards, more than {PORT_FORWARDS_MAX}",
                table.len()
            );
            self.report
                .add(&first_beyond.span(), message, "remove some of them");
        }
        let mut found: Vec<PortForward> = Vec::new();
        let mut ports = BTreeMap::new();
        for (key, entry) in table.iter().take(PORT_FORWARDS_MAX) {
            if !self.take_entry(&key.span(), left) {
                break;
            }
            let name = match Name::new(key.get_ref()) {
                Ok(name) => name,
                Err(error) => {
                    let message = format!("port_forward: {error}");
                    self.report.add(&key.span(), message, "choose another name");
                    continue;
                }
            };
            let DeValue::Table(table) = entry.get_ref() else {
                let what = type_name(entry.get_ref());
                self.report
                    .add(&key.span(), format!("port_forward: this is {what}"), hint);
                continue;
            };
            let header = "[tenant.NAME.port_forward.NAME]";
            let fields = TableReader::new(header, key.span(), table, &self.report);
            let Some(forward) = self.port_forward(fields, name) else {
                continue;
            };
            let place = (forward.protocol, forward.port, forward.to.is_ipv4());
            if let Some(other) = ports.insert(place, forward.name.clone()) {
                let (protocol, port) = (forward.protocol.as_str(), forward.port);
                let message = format!("port_forward: {protocol} port {port} is that of `{other}`");
                self.report.add(&key.span(), message, "write another port");
            }
            found.push(forward);
        }
        found
    }

    fn port_forward(&mut self, mut fields: TableReader<'_, '_>, name: Name) -> Option<PortForward> {
        let r = &mut self.report;
        let protocol = fields.optional(r, "protocol", |v| choice(v, PROTOCOLS));
        let to = fields.required(r, "to", "\"10.1.0.10:443\", a host of a site", host);
        let port = fields.optional(r, "port", port);
        let keep_source = fields.optional(r, "keep_source", boolean);
        fields.refuse_unknown_keys(r);
        let to = to?.value;
        Some(PortForward {
            name,
            protocol: value(protocol).unwrap_or(ForwardedProtocol::Tcp),
            port: value(port).unwrap_or(to.port()),
            to,
            keeps_source: value(keep_source).unwrap_or(false),
        })
    }

    /// `[tenant.NAME.internet]`.
    pub(super) fn internet(
        &mut self,
        fields: &mut TableReader<'_, '_>,
        names: &EntryNames,
        left: &mut usize,
    ) -> Option<Internet> {
        let written = fields.raw("internet")?;
        let DeValue::Table(table) = written.get_ref() else {
            let message = format!("internet: this is {}", type_name(written.get_ref()));
            let hint = "begin a table with [tenant.NAME.internet]";
            self.report.add(&written.span(), message, hint);
            return None;
        };
        let header = "[tenant.NAME.internet]";
        let at = fields.span_of("internet");
        let mut fields = TableReader::new(header, at, table, &self.report);
        let r = &mut self.report;
        let via = fields.required(r, "via", "\"hub\", the peer that leads there", text);
        let from = fields.optional(r, "from", prefixes);
        let to = fields.optional(r, "to", prefixes);
        let when_down = fields.optional(r, "when_down", |v| choice(v, WHEN_DOWN));
        fields.refuse_unknown_keys(r);
        for (key, list) in [("from", &from), ("to", &to)] {
            let Some(list) = list else {
                continue;
            };
            let mut seen = BTreeSet::new();
            if let Some(again) = list.value.iter().find(|at| !seen.insert(at.value)) {
                let message = format!("{key}: {} twice", again.value);
                self.report.add(&again.at, message, "write it once");
            }
            if list.value.is_empty() {
                let message = format!("{key}: nothing is named, so nothing would use the exit");
                self.report.add(
                    &list.at,
                    message,
                    "remove the key for all, or remove [tenant.NAME.internet]",
                );
            }
            if list.value.len() > SOURCES_MAX {
                let message = format!("{key}: {} prefixes", list.value.len());
                let hint = format!("write at most {SOURCES_MAX}");
                self.report.add(&list.at, message, &hint);
            }
            // Prefixes of all tenants together are bounded as entries are.
            let mut all = list.value.iter();
            if !all.all(|prefix| self.take_entry(&prefix.at, left)) {
                return None;
            }
        }
        let via = via?;
        let via = PeerIndex(self.reference("via", &via, &names.peers)?);
        let plain = |list: Option<keiro_config::Located<Vec<keiro_config::Located<IpNet>>>>| {
            let list = list.map(|list| list.value).unwrap_or_default();
            list.into_iter().map(|at| at.value).collect::<Vec<_>>()
        };
        let mut to = plain(to);
        if to.is_empty() {
            to = DEFAULT_PREFIXES.to_vec();
        }
        Some(Internet {
            via,
            from: plain(from),
            to,
            when_down: value(when_down).unwrap_or_default(),
        })
    }
}

/// What does not go together.
pub(super) fn check(
    tenant: &Tenant,
    spans: &TenantSpans,
    network: Option<&Membership>,
    report: &mut Report<'_>,
) {
    if let Some(exit) = &tenant.exit {
        check_exit(tenant, exit, &spans.exit, report);
    }
    if let Some(internet) = &tenant.internet {
        check_internet(tenant, internet, &spans.internet, network, report);
    }
}

/// A packet leaves by one exit.
pub(super) fn check_sources(draft: &Draft, report: &mut Report<'_>) {
    let mut seen: Vec<(IpNet, &Tenant, &TenantSpans)> = Vec::new();
    let mut tables = BTreeMap::new();
    for (tenant, spans) in &draft.tenants {
        if tenant.internet.is_none() {
            continue;
        }
        if let Some(other) = tables.insert(tenant.exit_table(), &tenant.name) {
            let message = format!("internet: the routing table is that of tenant `{other}`");
            let hint = "write an id whose last six hexadecimal digits differ";
            report.add(&spans.id, message, hint);
        }
        for source in tenant.internet_sources() {
            let is_both = |(other, ..): &&(IpNet, &Tenant, &TenantSpans)| {
                other.contains(&source) || source.contains(other)
            };
            if let Some((other, of, at)) = seen.iter().find(is_both)
                && of.name != tenant.name
            {
                let line = report.line(&at.internet);
                let message = format!(
                    "internet: {source} overlaps {other}, which tenant `{}` leads to an exit (line {line})",
                    of.name
                );
                let hint = "write from, so that each source has one exit";
                report.add(&spans.internet, message, hint);
                break;
            }
            seen.push((source, tenant, spans));
        }
    }
}

/// What leads a port of this machine elsewhere.
pub(super) fn check_ports(draft: &Draft, report: &mut Report<'_>) {
    let exits = draft.tenants.iter().filter_map(|(tenant, spans)| {
        let exit = tenant.exit.as_ref()?;
        Some((tenant, exit, spans))
    });
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
    let mut taken = own_ports(draft);
    for (tenant, exit, spans) in exits {
        let mut devices = draft.tenants.iter().map(|(of, _)| &of.device);
        if let Some(device) = devices.find(|name| !name.chars().all(is_plain)) {
            let message =
                format!("exit: the device `{device}` has other characters than letters and digits");
            report.add(&spans.exit, message, "rename that device");
        }
        for forward in &exit.port_forwards {
            let PortForward {
                name,
                protocol,
                port,
                to,
                ..
            } = forward;
            let whose = format!("port forward `{name}` of tenant `{}`", tenant.name);
            let is_of = |(of, at, v4, _): &&(ForwardedProtocol, u16, Option<bool>, String)| {
                of == protocol && at == port && v4.is_none_or(|v4| v4 == to.is_ipv4())
            };
            if let Some((.., other)) = taken.iter().find(is_of) {
                let message = format!(
                    "port_forward.{name}: {} port {port} is that of {other}",
                    protocol.as_str()
                );
                report.add(&spans.exit, message, "write another port");
            }
            taken.push((*protocol, *port, Some(to.is_ipv4()), whose));
        }
    }
}

/// Ports that the gateway itself serves, and in which IP version; `None`: in both, or it is not known.
fn own_ports(draft: &Draft) -> Vec<(ForwardedProtocol, u16, Option<bool>, String)> {
    let mut ports = Vec::new();
    for (path, _) in &draft.paths {
        let what = format!("path `{}`", path.name);
        ports.push((ForwardedProtocol::Udp, path.local.port(), None, what));
    }
    // Of paths that are found on the machine.
    let auto = draft.gateway.as_ref();
    let auto = auto.and_then(|gateway| gateway.value.auto_uplinks.as_ref());
    if let Some(auto) = auto {
        let what = "the gateway's paths".to_owned();
        ports.push((ForwardedProtocol::Udp, auto.port, None, what));
    }
    for (listener, _) in &draft.listeners {
        let protocol = match listener.transport {
            Transport::Udp => ForwardedProtocol::Udp,
            Transport::Tcp | Transport::Tproxy => ForwardedProtocol::Tcp,
        };
        let (address, version) = (listener.local, Some(listener.local.is_ipv4()));
        let what = format!("a listener at {address}");
        ports.push((protocol, address.port(), version, what));
    }
    let tls = draft.message_tls.iter().flat_map(|(tls, _)| &tls.listen);
    for address in tls {
        let version = Some(address.is_ipv4());
        let what = format!("the message socket at {address}");
        ports.push((ForwardedProtocol::Tcp, address.port(), version, what));
    }
    ports
}

fn check_exit(tenant: &Tenant, exit: &Exit, at: &Range<usize>, report: &mut Report<'_>) {
    let mut refuse = |message: String, hint: &str| report.add(at, message, hint);
    if tenant.internet.is_some() {
        let message = "exit: a tenant that uses another exit is none itself".to_owned();
        refuse(message, "remove exit, or [tenant.NAME.internet]");
    }
    if tenant.table.is_some() {
        let message = "exit: packets to the Internet take the main routing table, and this tenant has its own";
        refuse(message.to_owned(), "remove table");
    }
    if let Some(all) = tenant.prefixes.iter().find(|of| of.prefix_len() == 0) {
        let message = format!("exit: {all} in prefixes would open private networks too");
        refuse(
            message,
            "remove it there; an exit offers what is public of it",
        );
    }
    if !tenant.map.is_empty() {
        let message =
            "exit: packets of mapped networks have a connection tracking zone of their own";
        refuse(
            message.to_owned(),
            "remove map, or give the exit another tenant",
        );
    }
    for forward in &exit.port_forwards {
        let PortForward { name, to, .. } = forward;
        let mut addresses = tenant.addresses.iter();
        let is_served =
            forward.keeps_source || addresses.any(|of| of.addr().is_ipv4() == to.is_ipv4());
        if !is_served {
            let message = format!(
                "port_forward.{name}: clients' addresses are replaced by the device's, which has none of the IP version of {to}"
            );
            refuse(message, "add one to addresses, or write keep_source = true");
        }
        if let Some(own) = tenant.prefixes.iter().find(|own| own.contains(&to.ip())) {
            let message = format!("port_forward.{name}: {to} is in {own}, behind this gateway");
            refuse(message, "name a host of another site");
        }
    }
}

fn check_internet(
    tenant: &Tenant,
    internet: &Internet,
    at: &Range<usize>,
    network: Option<&Membership>,
    report: &mut Report<'_>,
) {
    let mut refuse = |message: String, hint: &str| report.add(at, message, hint);
    if tenant.table.is_some() {
        let message =
            "internet: in a routing table of its own the tenant's routes decide".to_owned();
        let hint = "remove [tenant.NAME.internet] and have 0.0.0.0/0 among the tenant's routes, or remove table";
        refuse(message, hint);
    }
    let is_hub = matches!(network, Some(Membership::Branch { hub }) if *hub == internet.via);
    if !is_hub && !tenant.peers.iter().any(|of| of.peer == internet.via) {
        let message =
            "internet: the peer of via is neither the hub of the network nor a peer of the tenant";
        refuse(
            message.to_owned(),
            "name another one, or add [tenant.NAME.peer.PEER] for it",
        );
    }
    let everything = |of: &&super::TenantPeer| {
        of.peer != internet.via && of.prefixes.iter().any(|prefix| prefix.prefix_len() == 0)
    };
    if tenant.peers.iter().any(|of| everything(&of)) {
        let message = "internet: another peer of the tenant has 0.0.0.0/0 or ::/0".to_owned();
        refuse(message, "name that peer in via, or remove its prefix");
    }
    let local = tenant.local_networks();
    for from in &internet.from {
        if !local.iter().any(|network| network.contains(from)) {
            let message =
                format!("internet: {from} of from is not among the networks behind this gateway");
            refuse(
                message,
                "write a part of the tenant's prefixes, or of local in map",
            );
        }
    }
}

fn port(value: &DeValue<'_>) -> Result<u16, ValueError> {
    let number = integer(value)?;
    let port = u16::try_from(number).ok().filter(|port| *port > 0);
    port.ok_or_else(|| ValueError::new(format!("{number} is not a port"), "write 1 to 65535"))
}

fn host(value: &DeValue<'_>) -> Result<SocketAddr, ValueError> {
    let wrong = |message: &str| {
        ValueError::new(
            message.to_owned(),
            "write \"10.1.0.10:443\" or \"[fd00:1::10]:443\"",
        )
    };
    let to: SocketAddr = string(value)?
        .parse()
        .map_err(|_| wrong("this is not an address and a port"))?;
    let has_zone = matches!(to, SocketAddr::V6(v6) if v6.scope_id() != 0);
    let is_host = !has_zone && is_forwarded(&IpNet::from(to.ip()));
    match is_host && to.port() > 0 {
        true => Ok(to),
        false => Err(wrong("this is not the address and port of a host")),
    }
}
