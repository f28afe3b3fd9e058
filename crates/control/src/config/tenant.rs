//! `[tenant.NAME]`: tenants whose IP packets enter and leave by a TUN device, with addresses, routes
//! and their share of a bottleneck; and `[fairness]`, settings for all tenants.
//!
//! The gateway makes devices, addresses and routes. Nothing here looks at the machine.

pub(super) mod check;
mod check_members;
mod classes;
mod exit;
mod mapping;
mod member;
mod values;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
    ops::{Range, RangeInclusive},
};

use ipnet::IpNet;
use keiro_config::{Located, Report, TableReader, choice, type_name};
use keiro_ip::builtin_classes::{DomainPattern, PATTERNS_MAX};
use keiro_model::fairness::{
    aimd::{Aimd, Provider},
    controller::{ControllerConfig, Weight},
};
use keiro_units::{Bandwidth, ByteCount};
use toml::{Spanned, de::DeValue};

pub use self::classes::{ClassApp, Classes};
pub use self::exit::{
    DEFAULT_PREFIXES, Exit, ExitIpv6, ForwardedProtocol, Internet, PortForward, WhenDown,
};
pub use self::mapping::{Mapping, MappingError};
pub use self::member::Member;
use self::values::text;
pub use self::values::{SPLIT_TABLE, UPLINK_TABLES};
use self::values::{
    addresses, decrease, device_queues, domains, dscp, increase, interfaces, own_device, ports,
    prefix, protocol, resolvers, routing_table, tenant_id, tenants_max, unit, weight,
};
pub(crate) use self::values::{is_forwarded, prefixes};
pub(super) use self::{
    member::member,
    values::{confined, count, device, integer, number},
};
use super::{
    AppIndex, Config, Name, PeerIndex,
    entries::{EntryNames, Names, Reader},
    values::{in_range, positive_time, value},
};

/// Default of `mtu`: with what the tunnel adds it fits into 1500 bytes over IPv6 too.
pub const DEFAULT_TENANT_MTU: ByteCount = ByteCount::new(1400);
/// Default of `queue`.
pub const DEFAULT_TENANT_QUEUE: ByteCount = ByteCount::new(1 << 20);
/// Default of `tenants_max`.
pub const DEFAULT_TENANTS_MAX: usize = 1024;

/// What controller `i2vfc` takes for `unit` where it is not written.
const I2VFC_UNIT: Bandwidth = Bandwidth::from_mbit_per_second(4);

/// `[fairness]`: settings for all tenants, the same at every gateway.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fairness {
    /// Tenants that may be configured; more are refused.
    pub tenants_max: usize,
    /// What a weight of 1 is expected to get, roughly; `None`: controller `keiro` finds it.
    pub unit: Option<Bandwidth>,
    /// Controller `i2vfc`: a and b of weight 1, and the round trip where they hold with `unit`
    /// `[fairness §2]`.
    pub provider: Provider,
}

impl Default for Fairness {
    fn default() -> Self {
        Self {
            tenants_max: DEFAULT_TENANTS_MAX,
            unit: None,
            provider: Provider {
                unit: Some(I2VFC_UNIT),
                ..Provider::default()
            },
        }
    }
}

impl fmt::Display for SplitObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Table => "the tenant has a routing table of its own (`table`)",
            Self::Map => "its networks have other addresses in the tunnel (`map`)",
        })
    }
}

/// `[tenant.NAME]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Tenant {
    pub name: Name,
    /// Its number on the wire, not zero; the same at both gateways.
    pub id: u32,
    /// Its share in proportion to other tenants.
    pub weight: Weight,
    /// What decides its windows.
    pub controller: TenantController,
    /// What becomes of its packets while no gateway runs.
    pub when_stopped: WhenStopped,
    /// The TUN device's name.
    pub device: String,
    /// How many queues the kernel spreads the device's flows over.
    pub device_queues: usize,
    /// Addresses of the device.
    pub addresses: Vec<IpNet>,
    /// Longest IP packet of the device, bytes.
    pub mtu: ByteCount,
    /// Routing table of its routes; `None`: the main one.
    pub table: Option<u32>,
    /// Interfaces of this machine whose packets are the tenant's; only with a table.
    pub interfaces: Vec<String>,
    /// Networks behind this gateway: permitted sources, and destinations of peers' packets.
    pub prefixes: Vec<IpNet>,
    /// Networks behind this gateway that others reach by other addresses, which are in `prefixes`.
    pub map: Vec<Mapping>,
    /// It leads other sites to the Internet.
    pub exit: Option<Exit>,
    /// What of this site leaves by another gateway's exit.
    pub internet: Option<Internet>,
    /// Destinations that are routed into the device.
    pub routes: Vec<IpNet>,
    /// `routes` are all prefixes of its peers, because the file has none.
    pub routes_follow_peers: bool,
    /// Prefixes of peers that the network's registry has, and the file has not.
    pub learned: Vec<Learned>,
    /// How TCP connections are carried that enter by its device.
    pub tcp: TcpCarriage,
    /// Bytes that may wait for each peer.
    pub queue: ByteCount,
    /// Networks behind each peer; at least one, or its gateway has `[network]`.
    pub peers: Vec<TenantPeer>,
    /// In order; the first that matches decides.
    pub rules: Vec<TenantRule>,
    /// Whether what no rule matches is sorted into built-in classes.
    pub classes: Classes,
    /// Hosts that resolve names for others.
    pub resolvers: Vec<IpAddr>,
    /// The applications of the built-in classes, by that of the peer ([`TenantPeer::app`]).
    pub class_apps: BTreeMap<AppIndex, Vec<ClassApp>>,
}

/// A prefix that a tenant has from the registry of its network and not from its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Learned {
    pub prefix: IpNet,
    pub owner: PrefixOwner,
}

/// Behind which gateway a prefix is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PrefixOwner {
    Hub,
    Site(Name),
}

/// `[tenant.NAME.peer.PEER]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantPeer {
    pub peer: PeerIndex,
    /// Networks behind it; at least one.
    pub prefixes: Vec<IpNet>,
    /// Networks that it leads to as well: taken while no peer that has them in `prefixes` is up.
    pub backup_prefixes: Vec<IpNet>,
    /// It is taken before others that have the same networks in `prefixes`.
    pub is_direct: bool,
    /// Others with this flag reach it, and it them, through this gateway.
    pub transit: bool,
    /// Carries packets that no rule matches: of class `datagram`, and of this peer.
    pub app: AppIndex,
}

/// `[[tenant.NAME.rule]]`: packets of this kind that go to the application's peer are the
/// application's. What is `None` admits every packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantRule {
    /// Of class `datagram`, and of a peer of the tenant.
    pub app: AppIndex,
    /// The source is inside.
    pub source: Option<IpNet>,
    /// The destination is inside.
    pub destination: Option<IpNet>,
    /// The number of the protocol above IP.
    pub protocol: Option<u8>,
    /// The source port.
    pub source_ports: Option<RangeInclusive<u16>>,
    /// The destination port.
    pub destination_ports: Option<RangeInclusive<u16>>,
    /// The six bits of the DSCP.
    pub dscp: Option<u8>,
    /// The server has one of these names; empty: any, or none.
    pub domains: Vec<DomainPattern>,
}

/// Which controller decides a tenant's windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TenantController {
    #[default]
    Keiro,
    /// The paper's.
    I2vfc,
    /// None: no window.
    Open,
}

/// How a tenant's TCP connections are carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TcpCarriage {
    /// As IP packets, like everything else.
    #[default]
    Packets,
    /// As streams between the gateways, which both have a TCP connection at their side.
    Split,
}

/// Why a tenant's TCP connections stay IP packets although its configuration says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitObstacle {
    /// It has a routing table of its own.
    Table,
    /// Its networks have other addresses.
    Map,
}

/// What becomes of a tenant's packets while no gateway carries them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenStopped {
    /// Its rules and unreachable routes stay, so that no packet leaves outside the tunnel.
    #[default]
    Block,
    /// Nothing stays: packets follow the machine's other routes, unencrypted.
    Bypass,
}

/// A unit that is a smaller part of the line gets a note. It is not wrong: the bottleneck that tenants
/// share may be another, narrower one. Ours.
const UNIT_FAR_BELOW: f64 = 20.0;

impl Config {
    /// The interface to which sockets of `member` are bound; `None`: to none, since its tenant
    /// shares the main routing table.
    pub fn interface_of<'a>(&'a self, member: Option<&'a Member>) -> Option<&'a str> {
        let member = member?;
        let tenant = self.tenant_named(member.tenant.as_str())?;
        let only = tenant.interfaces.first();
        member.interface.as_deref().or(only.map(String::as_str))
    }

    /// The tenant whose messages, streams and datagrams those of an application are: that of its
    /// listeners and its forward.
    pub fn tenant_of(&self, app: AppIndex) -> Option<&Tenant> {
        let listeners = self.listeners.iter().filter(|listener| listener.app == app);
        let forwards = self.forwards.iter().filter(|forward| forward.app == app);
        let mut members = listeners
            .map(|listener| &listener.member)
            .chain(forwards.map(|forward| &forward.member));
        let member = members.find_map(Option::as_ref)?;
        self.tenant_named(member.tenant.as_str())
    }

    /// A note if the paths' rates are far above `unit`.
    pub fn unit_note(&self) -> Option<String> {
        let by_unit = self
            .tenants
            .iter()
            .filter(|t| t.controller != TenantController::Open);
        let weights: f64 = by_unit.map(|tenant| tenant.weight.get()).sum();
        let rated = self
            .paths
            .iter()
            .filter_map(|path| Some((path, path.rate?)));
        let (path, rate) = rated.max_by_key(|(_, rate)| *rate)?;
        let unit = self.fairness.unit?;
        let share = rate.as_bits_per_second() as f64 / weights;
        (weights > 0.0 && share > UNIT_FAR_BELOW * unit.as_bits_per_second() as f64).then(|| {
            format!(
                "fairness.unit is {unit}: where path `{}` itself is what tenants share, {} would suit \
                 it (the same at every gateway)",
                path.name,
                Bandwidth::from_bits_per_second(share as u64),
            )
        })
    }
}

impl Tenant {
    /// Its controller with the settings of [`Fairness`].
    pub fn controller(&self, fairness: &Fairness) -> ControllerConfig {
        match self.controller {
            TenantController::Keiro => ControllerConfig::Keiro {
                unit: fairness.unit,
            },
            TenantController::I2vfc => ControllerConfig::I2vfc(fairness.provider),
            TenantController::Open => ControllerConfig::Open,
        }
    }

    /// Whether its TCP connections are to be split, and nothing of its configuration prevents that.
    pub fn splits_tcp(&self) -> bool {
        self.tcp == TcpCarriage::Split && self.split_obstacle().is_none()
    }

    /// What of its configuration prevents that TCP connections are split.
    pub fn split_obstacle(&self) -> Option<SplitObstacle> {
        if self.table.is_some() {
            return Some(SplitObstacle::Table);
        }
        (!self.map.is_empty()).then_some(SplitObstacle::Map)
    }

    /// Whether it has anything of IPv4 (`false`) or IPv6 (`true`) to carry.
    pub fn uses(&self, v6: bool) -> bool {
        let all = self.routes.iter().chain(&self.prefixes);
        all.chain(&self.addresses)
            .any(|prefix| matches!(prefix, IpNet::V6(_)) == v6)
    }
}

/// Where a tenant's values are.
pub(super) struct TenantSpans {
    id: Range<usize>,
    device: Range<usize>,
    table: Range<usize>,
    interfaces: Range<usize>,
    own: Range<usize>,
    map: Range<usize>,
    exit: Range<usize>,
    internet: Range<usize>,
    routes: Range<usize>,
    peers: Vec<Range<usize>>,
    /// With the application and the peer that it has to be of, if that is settled.
    apps: Vec<(Range<usize>, AppIndex, Option<PeerIndex>)>,
}

impl TenantSpans {
    /// Those of the table itself; peers and applications follow.
    fn of(fields: &TableReader<'_, '_>) -> Self {
        Self {
            id: fields.span_of("id"),
            device: fields.span_of("device"),
            table: fields.span_of("table"),
            interfaces: fields.span_of("interfaces"),
            own: fields.span_of("prefixes"),
            map: fields.span_of("map"),
            exit: fields.span_of("exit"),
            internet: fields.span_of("internet"),
            routes: fields.span_of("routes"),
            peers: Vec::new(),
            apps: Vec::new(),
        }
    }
}

const CONTROLLERS: &[(&str, TenantController)] = &[
    ("keiro", TenantController::Keiro),
    ("i2vfc", TenantController::I2vfc),
    ("open", TenantController::Open),
];
const CLASSES: &[(&str, Classes)] = &[("off", Classes::Off), ("auto", Classes::Auto)];
const TCP: &[(&str, TcpCarriage)] = &[
    ("packets", TcpCarriage::Packets),
    ("split", TcpCarriage::Split),
];
const WHEN_STOPPED: &[(&str, WhenStopped)] = &[
    ("block", WhenStopped::Block),
    ("bypass", WhenStopped::Bypass),
];
/// Rules of one tenant: they are tried one after another. Ours.
const RULES_MAX: usize = 256;
const QUEUE: [ByteCount; 2] = [ByteCount::new(64 << 10), ByteCount::new(64 << 20)];
const MTU: [ByteCount; 2] = [ByteCount::new(1280), ByteCount::new(65_535)];

impl Reader<'_> {
    /// Every `[tenant.NAME]`.
    pub(super) fn tenants(
        &mut self,
        tenants: Option<&Spanned<DeValue<'_>>>,
        names: &EntryNames,
        max: usize,
        left: &mut usize,
    ) -> Vec<(Tenant, TenantSpans)> {
        let Some(tenants) = tenants else {
            return Vec::new();
        };
        let DeValue::Table(table) = tenants.get_ref() else {
            let message = format!("tenant: this is {}", type_name(tenants.get_ref()));
            let hint = "write [tenant.NAME], once for every tenant";
            self.report.add(&tenants.span(), message, hint);
            return Vec::new();
        };
        let mut found = Vec::new();
        if let Some((first_beyond, _)) = table.iter().nth(max) {
            let message = format!("{} tenants, more than the limit of {max}", table.len());
            let hint = "write a higher tenants_max in [fairness], or remove tenants";
            self.report.add(&first_beyond.span(), message, hint);
            self.suppress_entry_limit();
        }
        for (key, entry) in table {
            if !self.take_entry(&key.span(), left) {
                break;
            }
            let name = match Name::new(key.get_ref()) {
                Ok(name) => name,
                Err(error) => {
                    let hint = "choose another name";
                    self.report
                        .add(&key.span(), format!("tenant: {error}"), hint);
                    continue;
                }
            };
            let DeValue::Table(table) = entry.get_ref() else {
                let message = format!("tenant.{name}: this is {}", type_name(entry.get_ref()));
                let hint = format!("begin a table with [tenant.{name}]");
                self.report.add(&key.span(), message, &hint);
                continue;
            };
            let fields = TableReader::new("[tenant.NAME]", key.span(), table, &self.report);
            found.extend(self.tenant(fields, name, names, left));
        }
        found
    }

    fn tenant(
        &mut self,
        mut fields: TableReader<'_, '_>,
        name: Name,
        names: &EntryNames,
        left: &mut usize,
    ) -> Option<(Tenant, TenantSpans)> {
        let r = &mut self.report;
        let id = fields.required(r, "id", "1", tenant_id);
        let weight = fields.optional(r, "weight", weight);
        let controller = fields.optional(r, "controller", |v| choice(v, CONTROLLERS));
        let when_stopped = fields.optional(r, "when_stopped", |v| choice(v, WHEN_STOPPED));
        let classes = fields.optional(r, "classes", |v| choice(v, CLASSES));
        let resolvers = fields.optional(r, "resolvers", resolvers);
        let device = fields.optional(r, "device", own_device);
        let device_queues = fields.optional(r, "device_queues", device_queues);
        let addresses = fields.optional(r, "addresses", addresses);
        let mtu = fields.optional(r, "mtu", |v| in_range(v, MTU[0], MTU[1]));
        let table = fields.optional(r, "table", routing_table);
        let interfaces = fields.optional(r, "interfaces", interfaces);
        let example = "[\"10.1.0.0/16\"], the networks behind this gateway";
        let own = fields.required(r, "prefixes", example, prefixes);
        let map = fields.optional(r, "map", mapping::mappings);
        let routes = fields.optional(r, "routes", prefixes);
        let tcp = fields.optional(r, "tcp", |v| choice(v, TCP));
        let queue = fields.optional(r, "queue", |v| in_range(v, QUEUE[0], QUEUE[1]));
        let exit = self.exit(&mut fields, left);
        let internet = self.internet(&mut fields, names, left);
        let peer_tables = fields.raw("peer");
        let mut spans = TenantSpans::of(&fields);
        let rules = self.entries(&mut fields, "rule", "[[tenant.NAME.rule]]", left);
        fields.refuse_unknown_keys(&mut self.report);
        if table.is_none() {
            self.refuse_interfaces_without_table(interfaces.as_ref());
        }
        let mut tenant_peers = self.tenant_peers(&name, peer_tables, names, left, &mut spans);
        if peer_tables.is_none() {
            self.refuse_without_peer(&name, &spans);
        }
        let rules = self.tenant_rules(rules, names, &mut spans);
        if let Some(routes) = &routes {
            self.refuse_twice(&routes.value);
        }
        let own = own?.value.into_iter().map(|at| at.value).collect();
        let remote = tenant_peers.iter().flat_map(|peer| peer.prefixes.clone());
        let routes_follow_peers = routes.is_none();
        let mut routes: Vec<IpNet> = match routes {
            Some(routes) => routes.value.into_iter().map(|at| at.value).collect(),
            None => remote.collect(),
        };
        if let Some(internet) = &internet {
            lead_to_exit(
                internet.via,
                &mut routes,
                routes_follow_peers,
                &mut tenant_peers,
            );
        }
        let id = id?.value;
        let tenant = Tenant {
            name,
            id,
            weight: value(weight).unwrap_or_default(),
            controller: value(controller).unwrap_or_default(),
            when_stopped: value(when_stopped).unwrap_or_default(),
            device: value(device).unwrap_or_else(|| format!("keiro{id}")),
            device_queues: value(device_queues).unwrap_or(1),
            addresses: value(addresses).unwrap_or_default(),
            mtu: value(mtu).unwrap_or(DEFAULT_TENANT_MTU),
            table: value(table),
            interfaces: value(interfaces).unwrap_or_default(),
            prefixes: own,
            map: value(map).unwrap_or_default(),
            exit,
            internet,
            routes,
            routes_follow_peers,
            learned: Vec::new(),
            tcp: value(tcp).unwrap_or_default(),
            queue: value(queue).unwrap_or(DEFAULT_TENANT_QUEUE),
            peers: tenant_peers,
            rules,
            classes: value(classes).unwrap_or_default(),
            resolvers: value(resolvers).unwrap_or_default(),
            class_apps: BTreeMap::new(),
        };
        Some((tenant, spans))
    }

    fn refuse_interfaces_without_table(&mut self, interfaces: Option<&Located<Vec<String>>>) {
        if let Some(found) = interfaces.filter(|found| !found.value.is_empty()) {
            let message = "interfaces: without a table of its own the tenant shares the main one";
            let hint = "add table = 101, or remove interfaces";
            self.report.add(&found.at, message, hint);
        }
    }

    /// The sites of a network become peers of the tenant later.
    fn refuse_without_peer(&mut self, name: &Name, spans: &TenantSpans) {
        if !self.has_network && !self.report.has_syntax_errors() {
            let message = format!("tenant `{name}` has no peer, so its packets lead nowhere");
            let hint = format!("add [tenant.{name}.peer.PEER] with prefixes and app");
            self.report.add(&spans.id, message, &hint);
        }
    }

    fn tenant_rules(
        &mut self,
        rules: Vec<TableReader<'_, '_>>,
        names: &EntryNames,
        spans: &mut TenantSpans,
    ) -> Vec<TenantRule> {
        if let [_, .., last] = &rules[..]
            && rules.len() > RULES_MAX
        {
            let message = format!("more than {RULES_MAX} rules of one tenant");
            let hint = "use prefixes and ranges of ports that cover more";
            self.report.add(&last.span_of("app"), message, hint);
        }
        let mut read: Vec<TenantRule> = Vec::new();
        let mut domains = BTreeSet::new();
        for fields in rules {
            let at = fields.span_of("domains");
            let before = domains.len();
            let rule = self.tenant_rule(fields, &names.apps, spans);
            domains.extend(rule.iter().flat_map(|rule| rule.domains.clone()));
            read.extend(rule);
            if before <= PATTERNS_MAX && domains.len() > PATTERNS_MAX {
                let message =
                    format!("domains: more than {PATTERNS_MAX} names in rules of one tenant");
                let hint = "write \"*.example.com\" for all names below it";
                self.report.add(&at, message, hint);
            }
        }
        read
    }

    fn refuse_twice(&mut self, routes: &[Located<IpNet>]) {
        let mut seen = BTreeMap::new();
        for route in routes {
            if let Some(earlier) = seen.insert(route.value, &route.at) {
                let line = self.report.line(earlier);
                let message = format!("routes: {} twice (line {line})", route.value);
                self.report.add(&route.at, message, "write it once");
            }
        }
    }

    fn tenant_peers(
        &mut self,
        name: &Name,
        tables: Option<&Spanned<DeValue<'_>>>,
        names: &EntryNames,
        left: &mut usize,
        spans: &mut TenantSpans,
    ) -> Vec<TenantPeer> {
        let Some(tables) = tables else {
            return Vec::new();
        };
        let hint = format!("write [tenant.{name}.peer.PEER] with prefixes and app");
        let DeValue::Table(table) = tables.get_ref() else {
            let message = format!("peer: this is {}", type_name(tables.get_ref()));
            self.report.add(&tables.span(), message, &hint);
            return Vec::new();
        };
        let mut found = Vec::new();
        for (key, entry) in table {
            if !self.take_entry(&key.span(), left) {
                break;
            }
            let written = Located {
                value: key.get_ref().to_string(),
                at: key.span(),
            };
            let peer = self.reference("peer", &written, &names.peers);
            let DeValue::Table(table) = entry.get_ref() else {
                let message = format!("peer: this is {}", type_name(entry.get_ref()));
                self.report.add(&key.span(), message, &hint);
                continue;
            };
            let header = "[tenant.NAME.peer.PEER]";
            let mut fields = TableReader::new(header, key.span(), table, &self.report);
            let r = &mut self.report;
            let example = "[\"10.2.0.0/16\"], the networks behind this peer";
            let prefixes = fields.required(r, "prefixes", example, prefixes);
            let app = fields.required(r, "app", "\"...\"", text);
            fields.refuse_unknown_keys(r);
            let app_at = app.as_ref().map(|app| app.at.clone());
            let app = app.and_then(|app| self.reference("app", &app, &names.apps));
            let (Some(peer), Some(prefixes), Some(app), Some(app_at)) =
                (peer, prefixes, app, app_at)
            else {
                continue;
            };
            let (peer, app) = (PeerIndex(peer), AppIndex(app));
            // Prefixes of all tenants together are bounded as entries are.
            if !prefixes
                .value
                .iter()
                .all(|prefix| self.take_entry(&prefix.at, left))
            {
                break;
            }
            spans.peers.push(prefixes.at);
            spans.apps.push((app_at, app, Some(peer)));
            found.push(TenantPeer {
                peer,
                prefixes: prefixes.value.into_iter().map(|p| p.value).collect(),
                backup_prefixes: Vec::new(),
                is_direct: false,
                transit: false,
                app,
            });
        }
        found
    }

    fn tenant_rule(
        &mut self,
        mut fields: TableReader<'_, '_>,
        apps: &Names,
        spans: &mut TenantSpans,
    ) -> Option<TenantRule> {
        let r = &mut self.report;
        let app = fields.required(r, "app", "\"...\"", text);
        let source = fields.optional(r, "source", prefix);
        let destination = fields.optional(r, "destination", prefix);
        let protocol = fields.optional(r, "protocol", protocol);
        let source_ports = fields.optional(r, "source_ports", ports);
        let destination_ports = fields.optional(r, "destination_ports", ports);
        let dscp = fields.optional(r, "dscp", dscp);
        let domains = fields.optional(r, "domains", domains);
        let nothing = source.is_none()
            && destination.is_none()
            && protocol.is_none()
            && source_ports.is_none()
            && destination_ports.is_none()
            && dscp.is_none()
            && domains.is_none();
        let at = fields.span_of("app");
        fields.refuse_unknown_keys(r);
        if nothing && !self.report.has_syntax_errors() && self.report.is_empty() {
            let hint = "say what it is for, or change the peer's own app";
            self.report
                .add(&at, "rule: it would match every packet", hint);
        }
        if let (Some(source), Some(destination)) = (&source, &destination)
            && source.value.addr().is_ipv4() != destination.value.addr().is_ipv4()
        {
            let message = "rule: source and destination are of different IP versions";
            let hint = "write two rules";
            self.report.add(&destination.at, message, hint);
        }
        let app = app?;
        let index = AppIndex(self.reference("app", &app, apps)?);
        spans.apps.push((app.at, index, None));
        Some(TenantRule {
            app: index,
            source: value(source),
            destination: value(destination),
            protocol: value(protocol),
            source_ports: value(source_ports),
            destination_ports: value(destination_ports),
            dscp: value(dscp),
            domains: value(domains).unwrap_or_default(),
        })
    }
}

/// All that is nowhere else is behind the exit, and routed there by rules of its own: not in the main table, where the
/// tunnel's own packets would be led into it.
fn lead_to_exit(
    via: PeerIndex,
    routes: &mut Vec<IpNet>,
    routes_follow_peers: bool,
    peers: &mut [TenantPeer],
) {
    if routes_follow_peers {
        routes.retain(|route| route.prefix_len() > 0);
    }
    if let Some(of) = peers.iter_mut().find(|of| of.peer == via) {
        let missing = DEFAULT_PREFIXES
            .into_iter()
            .filter(|prefix| !of.prefixes.contains(prefix));
        let missing: Vec<IpNet> = missing.collect();
        of.prefixes.extend(missing);
    }
}

pub(super) fn fairness(mut fields: TableReader<'_, '_>, report: &mut Report<'_>) -> Fairness {
    let default = Fairness::default();
    let Provider {
        aimd,
        round_trip,
        unit: _,
        spaced,
    } = default.provider;
    let tenants_max = fields.optional(report, "tenants_max", tenants_max);
    let unit = fields.optional(report, "unit", unit);
    let increase = fields.optional(report, "increase", increase);
    let decrease = fields.optional(report, "decrease", decrease);
    let reference = fields.optional(report, "round_trip", positive_time);
    fields.refuse_unknown_keys(report);
    let increase = value(increase).unwrap_or_else(|| aimd.increase());
    let decrease = value(decrease).unwrap_or_else(|| aimd.decrease());
    // Both were judged where they are written.
    let aimd = Aimd::new(increase, decrease).unwrap_or(aimd);
    let unit = value(unit);
    Fairness {
        tenants_max: value(tenants_max).unwrap_or(default.tenants_max),
        unit,
        provider: Provider {
            aimd,
            round_trip: value(reference).unwrap_or(round_trip),
            unit: Some(unit.unwrap_or(I2VFC_UNIT)),
            spaced,
        },
    }
}
