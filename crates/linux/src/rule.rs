//! Policy rules that lead the packets of one source address to one table, and rules of others that
//! would be asked before them.

use std::{fmt, net::IpAddr};

use ipnet::IpNet;

use crate::netlink::{Batch, Message, u8_of, u32_of};

/// Packets from an address look up a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceRule {
    /// Rules are asked in this order, the smallest first; 0 is the kernel's own, 32,766 the main
    /// table's.
    pub priority: u32,
    /// The packets' source address.
    pub source: IpAddr,
    /// The table, from 1.
    pub table: u32,
}

/// A rule as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) priority: u32,
    /// The routing protocol number of who made it.
    pub(crate) protocol: u8,
    /// Packets from these addresses; `None`: from all.
    pub(crate) source: Option<IpNet>,
    /// The table that is looked up; `None`: it does something else.
    pub(crate) table: Option<u32>,
    /// It asks for more than the source, and may let packets pass.
    pub(crate) selective: bool,
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
    /// The body of [`NEW`] and of [`DELETE`].
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

impl Listed {
    /// As one that this module makes; `None` of others.
    pub(crate) fn as_source_rule(&self) -> Option<SourceRule> {
        let source = self.source?;
        if self.selective || source.prefix_len() != source.max_prefix_len() {
            return None;
        }
        Some(SourceRule {
            priority: self.priority,
            source: source.addr(),
            table: self.table?,
        })
    }

    /// Whether every packet for `rule` would be caught by this one, which is asked before it.
    pub(crate) fn hides(&self, rule: &SourceRule) -> bool {
        let before = self.priority <= rule.priority;
        let catches = self.source.is_none_or(|s| s.contains(&rule.source));
        // The table of the host's own addresses has no others.
        before && !self.selective && catches && self.table != Some(TABLE_LOCAL)
    }
}

/// The body of [`GET`], for all of one family.
pub(crate) fn write_all(batch: &mut Batch, v6: bool) {
    let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
    batch.raw(&header(family as u8, 0, 0));
}

/// A rule of a list.
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
        table: Some(header[4].into()),
        // Destination, type of service, inverted.
        selective: header[1] != 0 || header[3] != 0 || u32_of(&header[8..])? & INVERT != 0,
        v6,
    };
    for (name, value) in all {
        match name {
            FRA_PRIORITY => listed.priority = u32_of(value)?,
            FRA_PROTOCOL => listed.protocol = u8_of(value)?,
            FRA_TABLE => listed.table = u32_of(value),
            FRA_SRC => {
                let address: IpAddr = match v6 {
                    true => <[u8; 16]>::try_from(value).ok()?.into(),
                    false => <[u8; 4]>::try_from(value).ok()?.into(),
                };
                listed.source = IpNet::new(address, header[2]).ok();
            }
            // The first two are listed of every rule, and say nothing when all ones.
            FRA_SUPPRESS_IFGROUP | FRA_SUPPRESS_PREFIXLEN => {
                listed.selective |= u32_of(value)? != u32::MAX;
            }
            FRA_L3MDEV => listed.selective |= u8_of(value)? != 0,
            FRA_PAD => {}
            _ => listed.selective = true,
        }
    }
    if header[7] != TO_TABLE {
        listed.table = None;
    }
    Some(listed)
}

/// `struct fib_rule_hdr`.
fn header(family: u8, source_bits: u8, action: u8) -> [u8; 12] {
    [family, 0, source_bits, 0, 0, 0, 0, action, 0, 0, 0, 0]
}

impl fmt::Display for SourceRule {
    /// As `ip` would have it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            priority,
            source,
            table,
        } = self;
        write!(f, "rule priority {priority} from {source} lookup {table}")
    }
}

impl fmt::Display for Listed {
    /// As `ip` would have it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule priority {} from ", self.priority)?;
        match self.source {
            Some(source) => write!(f, "{source}")?,
            None => f.write_str("all")?,
        }
        if self.selective {
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
const INVERT: u32 = 2;
const FRA_SRC: u16 = 2;
const FRA_PRIORITY: u16 = 6;
const FRA_SUPPRESS_IFGROUP: u16 = 13;
const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
const FRA_TABLE: u16 = 15;
const FRA_PAD: u16 = 18;
const FRA_L3MDEV: u16 = 19;
const FRA_PROTOCOL: u16 = 21;
