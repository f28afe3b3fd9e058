//! Entries as netlink messages, and back.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::{
    AddressFamily, IpProtocol, RouteNetlinkMessage as Message,
    address::{
        AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressProtocol,
        AddressScope,
    },
    link::{
        AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoKind, LinkAttribute, LinkInfo, LinkMessage,
    },
    route::{RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType},
    rule::{RuleAction, RuleAttribute, RuleMessage, RulePortRange},
};

use super::{Address, Entry, Mark, PROTOCOL, Route, Rule, RuleVersion, Via, version_of};

/// The index of `lo` in every network namespace (`LOOPBACK_IFINDEX`, `include/net/flow.h`).
pub(super) const LOOPBACK: u32 = 1;

/// A message and the flags it is sent with, besides those of every request.
pub(super) type Request = (Message, u16);

/// The kernel's value of IPv6's metric 0 (`IP6_RT_PRIO_USER`).
const V6_METRIC: u32 = 1024;

pub(super) fn add(entry: &Entry) -> Request {
    let message = match entry {
        Entry::Address(address) => Message::NewAddress(address_message(address)),
        Entry::Route(route) => Message::NewRoute(route_message(route)),
        Entry::Rule(rule) => Message::NewRule(rule_message(rule)),
    };
    (message, NLM_F_CREATE | NLM_F_EXCL)
}

pub(super) fn remove(entry: &Entry) -> Request {
    let message = match entry {
        Entry::Address(address) => Message::DelAddress(address_message(address)),
        Entry::Route(route) => Message::DelRoute(route_message(route)),
        Entry::Rule(rule) => Message::DelRule(rule_message(rule)),
    };
    (message, 0)
}

pub(super) fn refuse_link_local(index: u32) -> Request {
    let mut message = LinkMessage::default();
    message.header.index = index;
    let mode = AfSpecInet6::AddrGenMode(In6AddrGenMode::None);
    let inet6 = AfSpecUnspec::Inet6(vec![mode]);
    message.attributes = vec![LinkAttribute::AfSpecUnspec(vec![inet6])];
    (Message::SetLink(message), 0)
}

/// The interface of number `index`.
pub(super) fn link(index: u32) -> Message {
    let mut message = LinkMessage::default();
    message.header.index = index;
    Message::GetLink(message)
}

pub(super) fn list_links() -> Message {
    Message::GetLink(LinkMessage::default())
}

pub(super) fn link_index(message: &Message) -> Option<u32> {
    match message {
        Message::NewLink(message) => Some(message.header.index),
        _ => None,
    }
}

/// The group that an interface is of.
pub(super) fn link_group(message: &Message) -> Option<u32> {
    let Message::NewLink(message) = message else {
        return None;
    };
    let mut attributes = message.attributes.iter();
    attributes.find_map(|attribute| match attribute {
        LinkAttribute::Group(group) => Some(*group),
        _ => None,
    })
}

/// Puts an interface into a group.
pub(super) fn set_group(index: u32, group: u32) -> Request {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.attributes = vec![LinkAttribute::Group(group)];
    (Message::SetLink(message), 0)
}

/// Removes all interfaces of a group.
pub(super) fn remove_group(group: u32) -> Request {
    let mut message = LinkMessage::default();
    message.attributes = vec![LinkAttribute::Group(group)];
    (Message::DelLink(message), 0)
}

/// The interface of this name.
pub(super) fn link_named(name: &str) -> Message {
    let mut message = LinkMessage::default();
    message.attributes = vec![LinkAttribute::IfName(name.to_owned())];
    Message::GetLink(message)
}

pub(super) fn is_tun(message: &Message) -> bool {
    let Message::NewLink(message) = message else {
        return false;
    };
    let info = message
        .attributes
        .iter()
        .filter_map(|attribute| match attribute {
            LinkAttribute::LinkInfo(info) => Some(info),
            _ => None,
        });
    info.flatten()
        .any(|info| *info == LinkInfo::Kind(InfoKind::Tun))
}

pub(super) fn link_name(message: &Message) -> Option<&str> {
    let Message::NewLink(message) = message else {
        return None;
    };
    message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => Some(name.as_str()),
            _ => None,
        })
}

/// All addresses, of one interface only if it is not 0.
pub(super) fn list_addresses(interface: u32) -> Message {
    let mut message = AddressMessage::default();
    message.header.index = interface;
    Message::GetAddress(message)
}

/// Routes of a table or of all, and of a protocol unless it is 0.
pub(super) fn list_routes(version: RuleVersion, table: Option<u32>, protocol: u8) -> Message {
    let mut message = RouteMessage::default();
    message.header.address_family = family(version);
    message.header.protocol = protocol.into();
    message.attributes.extend(table.map(RouteAttribute::Table));
    Message::GetRoute(message)
}

pub(super) fn list_rules(version: RuleVersion) -> Message {
    let mut message = RuleMessage::default();
    message.header.family = family(version);
    Message::GetRule(message)
}

/// A route as the kernel would list it.
pub(super) fn normal(route: &Route) -> Route {
    let metric = match (version_of(&route.destination), route.metric) {
        (RuleVersion::V6, 0) => V6_METRIC,
        (_, metric) => metric,
    };
    let destination = route.destination.trunc();
    Route {
        destination,
        metric,
        ..*route
    }
}

/// A rule as the kernel would list it.
pub(super) fn normal_rule(rule: &Rule) -> Rule {
    let source = rule.source.map(|source| source.trunc());
    Rule {
        source,
        ..rule.clone()
    }
}

/// An entry as the kernel would list it.
pub(super) fn as_listed(entry: &Entry) -> Entry {
    match entry {
        Entry::Address(_) => entry.clone(),
        Entry::Route(route) => Entry::Route(normal(route)),
        Entry::Rule(rule) => Entry::Rule(normal_rule(rule)),
    }
}

/// The address in a listed message and its owner, if the kernel stores it.
pub(super) fn address(message: &Message) -> Option<(Address, Option<u8>)> {
    let Message::NewAddress(message) = message else {
        return None;
    };
    let mut local = None;
    let mut other = None;
    let mut owner = None;
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(address) => local = Some(*address),
            AddressAttribute::Address(address) => other = Some(*address),
            AddressAttribute::Protocol(protocol) => owner = Some(u8::from(*protocol)),
            _ => {}
        }
    }
    let address = IpNet::new(local.or(other)?, message.header.prefix_len).ok()?;
    let interface = message.header.index;
    Some((Address { interface, address }, owner))
}

/// The route in a listed message and its owner; `None` if it is not of a kind that we add.
pub(super) fn route(message: &Message) -> Option<(Route, u8)> {
    let Message::NewRoute(message) = message else {
        return None;
    };
    let header = &message.header;
    let mut destination = match header.address_family {
        AddressFamily::Inet => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        AddressFamily::Inet6 => IpAddr::from(Ipv6Addr::UNSPECIFIED),
        _ => return None,
    };
    let mut table = header.table.into();
    let mut metric = 0;
    let mut interface = None;
    let mut gateway = None;
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Gateway(RouteAddress::Inet(address)) => {
                gateway = Some(IpAddr::from(*address));
            }
            RouteAttribute::Gateway(RouteAddress::Inet6(address)) => {
                gateway = Some(IpAddr::from(*address));
            }
            RouteAttribute::Destination(RouteAddress::Inet(address)) => {
                destination = (*address).into();
            }
            RouteAttribute::Destination(RouteAddress::Inet6(address)) => {
                destination = (*address).into();
            }
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::Priority(number) => metric = *number,
            RouteAttribute::Oif(index) => interface = Some(*index),
            RouteAttribute::Gateway(_) | RouteAttribute::MultiPath(_) | RouteAttribute::Via(_) => {
                return None;
            }
            _ => {}
        }
    }
    let via = match header.kind {
        RouteType::Unicast => match gateway {
            None => Via::Interface(interface?),
            Some(address) => Via::Gateway {
                address,
                interface: interface?,
            },
        },
        RouteType::Local if interface == Some(LOOPBACK) => Via::Local,
        // IPv6 lists it with the loopback interface.
        RouteType::Unreachable => Via::Unreachable,
        _ => return None,
    };
    let destination = IpNet::new(destination, header.destination_prefix_length).ok()?;
    let route = Route {
        destination,
        table,
        via,
        metric,
    };
    Some((route, header.protocol.into()))
}

/// The rule in a listed message and its owner; `None` if it is not of a kind that we add.
pub(super) fn rule(message: &Message) -> Option<(Rule, u8)> {
    let Message::NewRule(message) = message else {
        return None;
    };
    let version = match message.header.family {
        AddressFamily::Inet => RuleVersion::V4,
        AddressFamily::Inet6 => RuleVersion::V6,
        _ => return None,
    };
    if message.header.action != RuleAction::ToTable || message.header.dst_len != 0 {
        return None;
    }
    let mut owner = 0;
    let mut mark = None;
    let mut mask = None;
    let mut rule = Rule {
        version,
        priority: 0,
        table: message.header.table.into(),
        incoming: None,
        outgoing: None,
        mark: None,
        source: None,
        udp_source_port: None,
        suppressed_prefix_length: None,
    };
    let mut is_udp = false;
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Priority(number) => rule.priority = *number,
            RuleAttribute::Table(number) => rule.table = *number,
            RuleAttribute::Iifname(name) => rule.incoming = Some(name.clone()),
            RuleAttribute::Oifname(name) => rule.outgoing = Some(name.clone()),
            RuleAttribute::FwMark(value) => mark = Some(*value),
            RuleAttribute::FwMask(value) => mask = Some(*value),
            RuleAttribute::Source(address) => {
                rule.source = Some(IpNet::new(*address, message.header.src_len).ok()?);
            }
            RuleAttribute::Protocol(protocol) => owner = (*protocol).into(),
            RuleAttribute::IpProtocol(IpProtocol::Udp) => is_udp = true,
            RuleAttribute::SourcePortRange(range) if range.start == range.end => {
                rule.udp_source_port = Some(range.start);
            }
            // The kernel's word for none.
            RuleAttribute::SuppressPrefixLen(u32::MAX) => {}
            RuleAttribute::SuppressPrefixLen(length) => {
                rule.suppressed_prefix_length = Some(u8::try_from(*length).ok()?);
            }
            RuleAttribute::IpProtocol(_)
            | RuleAttribute::SourcePortRange(_)
            | RuleAttribute::DestinationPortRange(_)
            | RuleAttribute::UidRange(_)
            | RuleAttribute::L3MDev(true) => return None,
            _ => {}
        }
    }
    if is_udp != rule.udp_source_port.is_some() {
        return None;
    }
    rule.mark = mask.map(|mask| Mark {
        value: mark.unwrap_or(0),
        mask,
    });
    Some((rule, owner))
}

fn address_message(address: &Address) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = family(version_of(&address.address));
    message.header.prefix_len = address.address.prefix_len();
    message.header.index = address.interface;
    message.header.scope = AddressScope::Universe;
    // No duplicate address detection: no other host is on the link, and the address works at once.
    message.header.flags = AddressHeaderFlags::Nodad;
    message.attributes = vec![
        AddressAttribute::Local(address.address.addr()),
        AddressAttribute::Address(address.address.addr()),
        AddressAttribute::Flags(AddressFlags::Nodad | AddressFlags::Noprefixroute),
        AddressAttribute::Protocol(AddressProtocol::Other(PROTOCOL)),
    ];
    message
}

fn route_message(route: &Route) -> RouteMessage {
    let route = normal(route);
    let mut message = RouteMessage::default();
    let header = &mut message.header;
    header.address_family = family(version_of(&route.destination));
    header.destination_prefix_length = route.destination.prefix_len();
    header.protocol = RouteProtocol::Other(PROTOCOL);
    message.attributes = vec![
        RouteAttribute::Destination(route.destination.addr().into()),
        RouteAttribute::Table(route.table),
        RouteAttribute::Priority(route.metric),
    ];
    match route.via {
        Via::Interface(index) => {
            header.kind = RouteType::Unicast;
            header.scope = RouteScope::Link;
            message.attributes.push(RouteAttribute::Oif(index));
        }
        Via::Gateway { address, interface } => {
            header.kind = RouteType::Unicast;
            header.scope = RouteScope::Universe;
            let gateway = RouteAttribute::Gateway(address.into());
            message.attributes.push(gateway);
            message.attributes.push(RouteAttribute::Oif(interface));
        }
        Via::Local => {
            header.kind = RouteType::Local;
            header.scope = RouteScope::Host;
            message.attributes.push(RouteAttribute::Oif(LOOPBACK));
        }
        Via::Unreachable => {
            header.kind = RouteType::Unreachable;
            header.scope = RouteScope::Universe;
        }
    }
    message
}

fn rule_message(rule: &Rule) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = family(rule.version);
    message.header.action = RuleAction::ToTable;
    let attributes = &mut message.attributes;
    attributes.push(RuleAttribute::Priority(rule.priority));
    attributes.push(RuleAttribute::Table(rule.table));
    attributes.push(RuleAttribute::Protocol(RouteProtocol::Other(PROTOCOL)));
    attributes.extend(rule.incoming.clone().map(RuleAttribute::Iifname));
    attributes.extend(rule.outgoing.clone().map(RuleAttribute::Oifname));
    if let Some(Mark { value, mask }) = rule.mark {
        attributes.push(RuleAttribute::FwMark(value));
        attributes.push(RuleAttribute::FwMask(mask));
    }
    if let Some(source) = rule.source {
        let source = source.trunc();
        message.header.src_len = source.prefix_len();
        attributes.push(RuleAttribute::Source(source.addr()));
    }
    let suppressed = rule.suppressed_prefix_length.map(u32::from);
    attributes.extend(suppressed.map(RuleAttribute::SuppressPrefixLen));
    if let Some(port) = rule.udp_source_port {
        attributes.push(RuleAttribute::IpProtocol(IpProtocol::Udp));
        let range = RulePortRange {
            start: port,
            end: port,
        };
        attributes.push(RuleAttribute::SourcePortRange(range));
    }
    message
}

fn family(version: RuleVersion) -> AddressFamily {
    match version {
        RuleVersion::V4 => AddressFamily::Inet,
        RuleVersion::V6 => AddressFamily::Inet6,
    }
}
