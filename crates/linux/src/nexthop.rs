//! Nexthop objects: nexthops separate from routes (`ip nexthop`, Linux 5.3).
//!
//! Two hundred thousand routes with the same segment share one object. An encapsulation per route would take
//! per-CPU memory, of which the kernel runs out. Replacing an object redirects all its routes at once,
//! removing it removes them. Objects carry the routing protocol number of their owner.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::{
    interface,
    netlink::{Batch, Message, u16_of, u32_of},
    seg6::{
        Encapsulation, EncapsulationAttributes, octets, read_encapsulation, write_encapsulation,
    },
};

/// Nexthop of the routes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Nexthop {
    /// Encapsulated in an outer IPv6 packet to a segment, which the main table routes.
    Segment {
        /// The segment, the outer packet's destination.
        sid: Ipv6Addr,
        /// Encapsulation mode.
        mode: Encapsulation,
        /// Index of the interface with which the object disappears. It does not determine where the outer
        /// packet leaves.
        interface: u32,
    },
    Gateway {
        address: IpAddr,
        /// Index of the interface of the neighbour.
        interface: u32,
    },
    /// Packets are dropped. An object is for routes of one family.
    Blackhole { ipv4: bool },
}

/// A nexthop object as the kernel lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) id: u32,
    /// The routing protocol number of its owner.
    pub(crate) protocol: u8,
    /// `None` if of a kind that this module does not make.
    pub(crate) nexthop: Option<Nexthop>,
}

/// `RTM_NEWNEXTHOP`.
pub(crate) const NEW: u16 = 104;
/// `RTM_DELNEXTHOP`.
pub(crate) const DELETE: u16 = 105;
/// `RTM_GETNEXTHOP`.
pub(crate) const GET: u16 = 106;

/// `RTNLGRP_NEXTHOP`.
pub(crate) const GROUP: u32 = 32;

impl Nexthop {
    /// Index of its interface; `None`: it has none.
    pub fn interface(&self) -> Option<u32> {
        match *self {
            Self::Segment { interface, .. } | Self::Gateway { interface, .. } => Some(interface),
            Self::Blackhole { .. } => None,
        }
    }

    /// The message body of [`NEW`].
    pub(crate) fn write(&self, batch: &mut Batch, id: u32, protocol: u8) {
        let family = match self {
            Self::Gateway {
                address: IpAddr::V4(_),
                ..
            }
            | Self::Blackhole { ipv4: true } => libc::AF_INET,
            _ => libc::AF_INET6,
        };
        batch.raw(&header(family as u8, protocol));
        batch.u32(NHA_ID, id);
        if let Some(interface) = self.interface() {
            batch.u32(NHA_OIF, interface);
        }
        match *self {
            Self::Segment { sid, mode, .. } => {
                write_encapsulation(batch, ENCAPSULATION, sid, mode);
            }
            Self::Gateway { address, .. } => match address {
                IpAddr::V4(address) => batch.attribute(NHA_GATEWAY, &address.octets()),
                IpAddr::V6(address) => batch.attribute(NHA_GATEWAY, &address.octets()),
            },
            Self::Blackhole { .. } => batch.attribute(NHA_BLACKHOLE, &[]),
        }
    }
}

/// The message body of [`DELETE`].
pub(crate) fn write_id(batch: &mut Batch, id: u32) {
    batch.raw(&header(0, 0));
    batch.u32(NHA_ID, id);
}

/// The message body of [`GET`], for all objects.
pub(crate) fn write_all(batch: &mut Batch) {
    batch.raw(&header(0, 0));
}

/// Parses a listed object.
pub(crate) fn read(message: &Message<'_>) -> Option<Listed> {
    if message.kind != NEW {
        return None;
    }
    let (header, all) = message.split::<8>()?;
    let (mut id, mut interface, mut gateway) = (None, None, None);
    let (mut kind, mut data) = (None, None);
    let (mut blackhole, mut other) = (false, false);
    for (name, value) in all {
        match name {
            NHA_ID => id = u32_of(value),
            NHA_OIF => interface = u32_of(value),
            NHA_GATEWAY => gateway = address(value),
            NHA_ENCAP_TYPE => kind = u16_of(value),
            NHA_ENCAP => data = Some(value),
            NHA_BLACKHOLE => blackhole = true,
            NHA_GROUP | NHA_FDB => other = true,
            _ => {}
        }
    }
    let nexthop = || {
        if blackhole {
            let ipv4 = i32::from(header[0]) == libc::AF_INET;
            return Some(Nexthop::Blackhole { ipv4 });
        }
        let interface = interface?;
        match (gateway, kind, data) {
            (Some(address), None, None) => Some(Nexthop::Gateway { address, interface }),
            (None, Some(kind), Some(data)) => {
                let (sid, mode) = read_encapsulation(kind, data)?;
                Some(Nexthop::Segment {
                    sid,
                    mode,
                    interface,
                })
            }
            _ => None,
        }
    };
    Some(Listed {
        id: id?,
        protocol: header[2],
        nexthop: if other { None } else { nexthop() },
    })
}

fn address(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => Some(Ipv4Addr::from(*value.first_chunk::<4>()?).into()),
        _ => octets(value).map(IpAddr::from),
    }
}

/// `struct nhmsg`.
fn header(family: u8, protocol: u8) -> [u8; 8] {
    [family, 0, protocol, 0, 0, 0, 0, 0]
}

impl fmt::Display for Nexthop {
    /// In the syntax of `ip`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Segment {
                sid,
                mode,
                interface,
            } => {
                let device = interface::shown(*interface);
                write!(f, "encap seg6 mode {mode} segs {sid} dev {device}")
            }
            Self::Gateway { address, interface } => {
                write!(f, "via {address} dev {}", interface::shown(*interface))
            }
            Self::Blackhole { .. } => f.write_str("blackhole"),
        }
    }
}

// `include/uapi/linux/nexthop.h`
const NHA_ID: u16 = 1;
const NHA_GROUP: u16 = 2;
const NHA_BLACKHOLE: u16 = 4;
const NHA_OIF: u16 = 5;
const NHA_GATEWAY: u16 = 6;
const NHA_ENCAP_TYPE: u16 = 7;
const NHA_ENCAP: u16 = 8;
const ENCAPSULATION: EncapsulationAttributes = EncapsulationAttributes {
    kind: NHA_ENCAP_TYPE,
    data: NHA_ENCAP,
};
const NHA_FDB: u16 = 11;
