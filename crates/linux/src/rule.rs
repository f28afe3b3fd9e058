//! Policy rules that select a table by source address or mark or drop packets of an interface to a prefix, and
//! rules of others that would be evaluated before them.

use std::{fmt, io, net::IpAddr};

use ipnet::{IpNet, Ipv6Net};

use crate::{
    netlink::{self, Batch, DUMP, Message, Refusal, u8_of, u32_of},
    route::PROTOCOL,
};

/// Packets from an address look up a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceRule {
    /// Rules are evaluated in ascending order; 0 is the kernel's own, 32,766 the main table's.
    pub priority: u32,
    /// The packets' source address.
    pub source: IpAddr,
    /// The table, from 1.
    pub table: u32,
}

/// Packets of a family with a mark look up a table; without a route there, the rules behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MarkRule {
    /// As in [`SourceRule`].
    pub priority: u32,
    /// The packets' mark, not 0.
    pub mark: u32,
    /// The table, from 1.
    pub table: u32,
    pub ipv6: bool,
}

/// Drops packets that come in by an interface to a prefix.
///
/// It exists as long as desired, whether or not there is such an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DropRule {
    /// As in [`SourceRule`].
    pub priority: u32,
    /// The incoming interface.
    pub interface: InterfaceName,
    pub destination: Ipv6Net,
}

/// The name of an interface: 1 to 15 bytes without zeros, slashes and white space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceName([u8; 16]);

impl InterfaceName {
    /// `None` if it is not a valid name.
    pub fn new(name: &str) -> Option<Self> {
        let fits = (1..16).contains(&name.len());
        let odd = |byte: u8| byte == 0 || byte == b'/' || byte.is_ascii_whitespace();
        if !fits || name.bytes().any(odd) {
            return None;
        }
        let mut bytes = [0; 16];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Some(Self(bytes))
    }

    /// From a zero-terminated attribute.
    pub(crate) fn read(value: &[u8]) -> Option<Self> {
        let length = value.iter().position(|byte| *byte == 0)?;
        Self::new(std::str::from_utf8(&value[..length]).ok()?)
    }

    /// As a zero-terminated attribute.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0[..=self.length()]
    }

    fn length(&self) -> usize {
        self.0.iter().position(|byte| *byte == 0).unwrap_or(15)
    }
}

/// A rule as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) priority: u32,
    /// The routing protocol number of its owner.
    pub(crate) protocol: u8,
    /// Source prefix; `None` matches all.
    pub(crate) source: Option<IpNet>,
    /// Destination prefix; `None` matches all.
    pub(crate) destination: Option<IpNet>,
    /// Incoming interface; `None` matches any.
    pub(crate) interface: Option<InterfaceName>,
    /// The whole mark; `None` matches any.
    pub(crate) mark: Option<u32>,
    /// The table that is looked up; `None` for another action.
    pub(crate) table: Option<u32>,
    /// It drops the packets that it matches.
    pub(crate) drops: bool,
    /// It has further conditions, and may not match.
    pub(crate) choosy: bool,
    pub(crate) v6: bool,
}

/// `RTM_NEWRULE`.
pub(crate) const NEW: u16 = 32;
/// `RTM_DELRULE`.
pub(crate) const DELETE: u16 = 33;
/// `RTM_GETRULE`.
pub(crate) const GET: u16 = 34;

/// `RTNLGRP_IPV4_RULE` and `RTNLGRP_IPV6_RULE`.
pub(crate) const GROUPS: [u32; 2] = [8, 19];

impl SourceRule {
    /// The message body of [`NEW`] and [`DELETE`].
    pub(crate) fn write(&self, batch: &mut Batch, protocol: u8) {
        let (family, bits) = match self.source {
            IpAddr::V4(_) => (libc::AF_INET, 32),
            IpAddr::V6(_) => (libc::AF_INET6, 128),
        };
        batch.raw(&header(family as u8, bits, TO_TABLE));
        batch.u32(FRA_PRIORITY, self.priority);
        batch.u32(FRA_TABLE, self.table);
        batch.attribute(FRA_PROTOCOL, &[protocol]);
        match self.source {
            IpAddr::V4(address) => batch.attribute(FRA_SRC, &address.octets()),
            IpAddr::V6(address) => batch.attribute(FRA_SRC, &address.octets()),
        }
    }
}

impl MarkRule {
    /// The message body of [`NEW`] and [`DELETE`].
    pub(crate) fn write(&self, batch: &mut Batch, protocol: u8) {
        let family = match self.ipv6 {
            true => libc::AF_INET6,
            false => libc::AF_INET,
        };
        batch.raw(&header(family as u8, 0, TO_TABLE));
        batch.u32(FRA_PRIORITY, self.priority);
        batch.u32(FRA_TABLE, self.table);
        batch.attribute(FRA_PROTOCOL, &[protocol]);
        batch.u32(FRA_FWMARK, self.mark);
        batch.u32(FRA_FWMASK, u32::MAX);
    }
}

impl DropRule {
    /// The message body of [`NEW`] and [`DELETE`].
    pub(crate) fn write(&self, batch: &mut Batch, protocol: u8) {
        let mut header = header(libc::AF_INET6 as u8, 0, BLACKHOLE);
        header[1] = self.destination.prefix_len();
        batch.raw(&header);
        batch.u32(FRA_PRIORITY, self.priority);
        batch.attribute(FRA_PROTOCOL, &[protocol]);
        batch.attribute(FRA_DST, &self.destination.network().octets());
        batch.attribute(FRA_IIFNAME, self.interface.as_bytes());
    }
}

impl Listed {
    /// Whether it has conditions other than the source.
    fn is_selective(&self) -> bool {
        let narrows = self.destination.is_some() || self.interface.is_some();
        self.choosy || narrows || self.mark.is_some()
    }

    /// Converts to a rule of this module; `None` for others.
    pub(crate) fn as_drop_rule(&self) -> Option<DropRule> {
        if self.choosy || !self.drops || self.source.is_some() || self.mark.is_some() {
            return None;
        }
        let IpNet::V6(destination) = self.destination? else {
            return None;
        };
        Some(DropRule {
            priority: self.priority,
            interface: self.interface?,
            destination,
        })
    }

    /// Whether packets that `rule` is to drop may be forwarded by this rule, which is evaluated before it.
    pub(crate) fn forestalls(&self, rule: &DropRule) -> bool {
        let before = self.priority <= rule.priority;
        before && self.v6 && !self.is_selective() && self.source.is_none() && self.is_not_local()
    }

    /// The local table has only the host's own addresses.
    fn is_not_local(&self) -> bool {
        self.table != Some(TABLE_LOCAL)
    }

    /// Converts to a rule of this module; `None` for others.
    pub(crate) fn as_source_rule(&self) -> Option<SourceRule> {
        let source = self.source?;
        if self.is_selective() || source.prefix_len() != source.max_prefix_len() {
            return None;
        }
        Some(SourceRule {
            priority: self.priority,
            source: source.addr(),
            table: self.table?,
        })
    }

    /// Converts to a rule of this module; `None` for others.
    pub(crate) fn as_mark_rule(&self) -> Option<MarkRule> {
        let narrows =
            self.source.is_some() || self.destination.is_some() || self.interface.is_some();
        if self.choosy || narrows {
            return None;
        }
        Some(MarkRule {
            priority: self.priority,
            mark: self.mark?,
            table: self.table?,
            ipv6: self.v6,
        })
    }

    /// Whether packets for `rule` may be matched by this rule, which is evaluated before it.
    pub(crate) fn precedes(&self, rule: &MarkRule) -> bool {
        let catches = self.mark.is_none_or(|mark| mark == rule.mark);
        let narrows =
            self.source.is_some() || self.destination.is_some() || self.interface.is_some();
        let before = self.priority <= rule.priority;
        let of_family = self.v6 == rule.ipv6;
        before && of_family && catches && !self.choosy && !narrows && self.is_not_local()
    }

    /// Whether every packet for `rule` would be matched by this rule, which is evaluated before it.
    pub(crate) fn hides(&self, rule: &SourceRule) -> bool {
        let before = self.priority <= rule.priority;
        let catches = self.source.is_none_or(|s| s.contains(&rule.source));
        before && !self.is_selective() && catches && self.is_not_local()
    }
}

/// Rules of other programs that are evaluated before the priority, in the syntax of `ip`, in their order. The
/// kernel's own are left out. At most some; for messages.
///
/// # Errors
/// The kernel does not answer.
pub fn foreign_before(priority: u32, ipv6: bool) -> io::Result<Vec<String>> {
    let rules = rules_before(priority, ipv6)?;
    let foreign = rules.iter().filter(|rule| rule.protocol != PROTOCOL);
    Ok(foreign.map(ToString::to_string).collect())
}

/// The same of the rules that look a table up for every packet, and have none of these routing protocol numbers.
///
/// # Errors
/// The kernel does not answer.
pub fn matching_all_before(priority: u32, ipv6: bool, own: &[u8]) -> io::Result<Vec<String>> {
    let rules = rules_before(priority, ipv6)?;
    let all = rules.iter().filter(|rule| {
        let matches_all = rule.source.is_none() && !rule.is_selective();
        matches_all && rule.table.is_some() && !own.contains(&rule.protocol)
    });
    Ok(all.map(ToString::to_string).collect())
}

/// The rules before the priority, without the kernel's own, in their order.
fn rules_before(priority: u32, ipv6: bool) -> io::Result<Vec<Listed>> {
    let mut socket = netlink::Socket::open(libc::NETLINK_ROUTE)?;
    let write = |batch: &mut Batch| write_all(batch, ipv6);
    let listed = socket.list(GET, DUMP, write, |found: &mut Vec<Listed>, message| {
        found.extend(read(&message).filter(|_| found.len() < FOREIGN_MAX));
    });
    let mut foreign = listed.map_err(Refusal::into_io)?;
    foreign.retain(|rule| {
        let is_kernels = rule.table == Some(TABLE_LOCAL) || rule.protocol == RTPROT_KERNEL;
        !is_kernels && rule.priority < priority
    });
    foreign.sort_by_key(|rule| rule.priority);
    Ok(foreign)
}

/// Rules that are looked at. Ours.
const FOREIGN_MAX: usize = 4096;

/// `RTPROT_KERNEL`.
const RTPROT_KERNEL: u8 = 2;

/// The message body of [`GET`], for all rules of one family.
pub(crate) fn write_all(batch: &mut Batch, v6: bool) {
    let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
    batch.raw(&header(family as u8, 0, 0));
}

/// Parses a listed rule.
pub(crate) fn read(message: &Message<'_>) -> Option<Listed> {
    if message.kind != NEW {
        return None;
    }
    let (header, all) = message.split::<12>()?;
    let v6 = match libc::c_int::from(header[0]) {
        libc::AF_INET => false,
        libc::AF_INET6 => true,
        _ => return None,
    };
    let mut listed = Listed {
        priority: 0,
        protocol: 0,
        source: None,
        destination: None,
        interface: None,
        mark: None,
        table: Some(header[4].into()),
        drops: header[7] == BLACKHOLE,
        // Type of service, inverted.
        choosy: header[3] != 0 || u32_of(&header[8..])? & INVERT != 0,
        v6,
    };
    for (name, value) in all {
        match name {
            FRA_PRIORITY => listed.priority = u32_of(value)?,
            FRA_PROTOCOL => listed.protocol = u8_of(value)?,
            FRA_TABLE => listed.table = u32_of(value),
            FRA_SRC => listed.source = IpNet::new(address(value, v6)?, header[2]).ok(),
            FRA_DST => listed.destination = IpNet::new(address(value, v6)?, header[1]).ok(),
            FRA_IIFNAME => {
                listed.interface = InterfaceName::read(value);
                listed.choosy |= listed.interface.is_none();
            }
            // The first two are listed for every rule, and mean nothing if all bits are ones.
            FRA_SUPPRESS_IFGROUP | FRA_SUPPRESS_PREFIXLEN => {
                listed.choosy |= u32_of(value)? != u32::MAX;
            }
            FRA_L3MDEV => listed.choosy |= u8_of(value)? != 0,
            FRA_FWMARK => listed.mark = u32_of(value),
            // Listed with a mark; only part of a mark is another condition.
            FRA_FWMASK => listed.choosy |= u32_of(value)? != u32::MAX,
            FRA_PAD => {}
            _ => listed.choosy = true,
        }
    }
    if header[7] != TO_TABLE {
        listed.table = None;
    }
    Some(listed)
}

fn address(value: &[u8], v6: bool) -> Option<IpAddr> {
    Some(match v6 {
        true => <[u8; 16]>::try_from(value).ok()?.into(),
        false => <[u8; 4]>::try_from(value).ok()?.into(),
    })
}

/// `struct fib_rule_hdr`.
fn header(family: u8, source_bits: u8, action: u8) -> [u8; 12] {
    [family, 0, source_bits, 0, 0, 0, 0, action, 0, 0, 0, 0]
}

impl fmt::Display for SourceRule {
    /// In the syntax of `ip`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            priority,
            source,
            table,
        } = self;
        write!(f, "rule priority {priority} from {source} lookup {table}")
    }
}

impl fmt::Display for MarkRule {
    /// In the syntax of `ip`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            priority,
            mark,
            table,
            ipv6,
        } = self;
        let family = if *ipv6 { "" } else { "IPv4 " };
        write!(
            f,
            "{family}rule priority {priority} fwmark {mark:#x} lookup {table}"
        )
    }
}

impl fmt::Display for DropRule {
    /// In the syntax of `ip`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            priority,
            interface,
            destination,
        } = self;
        write!(
            f,
            "rule priority {priority} to {destination} iif {interface} blackhole"
        )
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.0[..self.length()]).unwrap_or_default())
    }
}

impl fmt::Debug for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Listed {
    /// In the syntax of `ip`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule priority {} from ", self.priority)?;
        match self.source {
            Some(source) => write!(f, "{source}")?,
            None => f.write_str("all")?,
        }
        if self.is_selective() {
            f.write_str(" …")?;
        }
        if let Some(table) = self.table {
            write!(f, " lookup {table}")?;
        }
        write!(f, " proto {}", self.protocol)
    }
}

/// `RT_TABLE_LOCAL`.
const TABLE_LOCAL: u32 = 255;

// `include/uapi/linux/fib_rules.h`
const TO_TABLE: u8 = 1;
const BLACKHOLE: u8 = 6;
const INVERT: u32 = 2;
const FRA_DST: u16 = 1;
const FRA_SRC: u16 = 2;
const FRA_IIFNAME: u16 = 3;
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_SUPPRESS_IFGROUP: u16 = 13;
const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
const FRA_TABLE: u16 = 15;
const FRA_FWMASK: u16 = 16;
const FRA_PAD: u16 = 18;
const FRA_L3MDEV: u16 = 19;
const FRA_PROTOCOL: u16 = 21;
