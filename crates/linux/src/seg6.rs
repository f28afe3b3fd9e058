//! Segment routing over IPv6 (RFC 8986): encapsulation of packets, and behaviours of a border router.
//!
//! Only what egress peer engineering needs: one segment per packet, added by encapsulation, and removed by
//! the behaviours that hand the inner packet to an egress peer.

use std::{fmt, net::Ipv6Addr};

use crate::{
    interface,
    netlink::{Attributes, Batch, attributes, u16_of, u32_of},
    route::TABLE_MAIN,
};

/// Encapsulation mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Encapsulation {
    /// An outer IPv6 header with a segment routing header: H.Encaps (RFC 8986 §5.1), 64 bytes
    /// with one segment.
    Full,
    /// Without segment routing header, which one segment does not need: H.Encaps.Red (RFC 8986 §5.2), 40
    /// bytes.
    Reduced,
}

/// Behaviour of a segment: handling of packets whose destination it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Behaviour {
    /// The inner packet is looked up in a table: End.DT6 (RFC 8986 §4.6). Without a route there it is
    /// dropped, so that a peer gets only packets to prefixes that it has announced.
    EndDt6 {
        /// The table, from 1.
        table: u32,
    },
    /// The inner packet goes to a neighbour, regardless of its destination: End.DX6 (RFC 8986 §4.4).
    EndDx6 {
        /// The neighbour, in a network of this host.
        neighbour: Ipv6Addr,
    },
    /// The inner packet is of IPv4 and routed by its destination, with the mark that the outer packet had:
    /// End.DX4 (RFC 8986 §4.5) with 0.0.0.0 as neighbour. With a rule from the mark to a table that is End.DT4,
    /// which Linux has for VRF devices only.
    EndDx4,
}

/// A local segment: an address in the main table with a behaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sid {
    address: Ipv6Addr,
    behaviour: Behaviour,
    interface: u32,
}

/// Index of the loopback interface, in every namespace (`LOOPBACK_IFINDEX`).
const LOOPBACK: u32 = 1;

/// A segment on the loopback interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "segment {0} cannot be on the loopback interface: the kernel would drop its packets without \
     a word; name any other interface"
)]
pub struct OnLoopback(pub Ipv6Addr);

impl Sid {
    /// A segment that exists as long as `interface` is up; packets may enter by any interface.
    ///
    /// # Errors
    /// `interface` is the loopback interface: Linux 6.18 drops the packets of a segment there.
    pub fn new(
        address: Ipv6Addr,
        behaviour: Behaviour,
        interface: u32,
    ) -> Result<Self, OnLoopback> {
        if interface == LOOPBACK {
            return Err(OnLoopback(address));
        }
        Ok(Self {
            address,
            behaviour,
            interface,
        })
    }

    pub fn address(&self) -> Ipv6Addr {
        self.address
    }

    /// Behaviour for its packets.
    pub fn behaviour(&self) -> Behaviour {
        self.behaviour
    }

    /// Index of the interface with which it disappears.
    pub fn interface(&self) -> u32 {
        self.interface
    }

    /// The table that contains the segment itself.
    pub(crate) const TABLE: u32 = TABLE_MAIN;

    /// The attributes of its route.
    pub(crate) fn write(&self, batch: &mut Batch) {
        batch.u32(RTA_OIF, self.interface);
        batch.attribute(RTA_ENCAP_TYPE, &LOCAL.to_ne_bytes());
        let nest = batch.nest(RTA_ENCAP);
        match self.behaviour {
            Behaviour::EndDt6 { table } => {
                batch.u32(LOCAL_ACTION, END_DT6);
                batch.u32(LOCAL_TABLE, table);
            }
            Behaviour::EndDx6 { neighbour } => {
                batch.u32(LOCAL_ACTION, END_DX6);
                batch.attribute(LOCAL_NH6, &neighbour.octets());
            }
            Behaviour::EndDx4 => {
                batch.u32(LOCAL_ACTION, END_DX4);
                batch.attribute(LOCAL_NH4, &BY_DESTINATION);
            }
        }
        batch.end(nest);
    }

    /// The segment of a listed route; `None` if the route is not one of ours.
    pub(crate) fn read(address: Ipv6Addr, all: Attributes<'_>) -> Option<Self> {
        let (mut interface, mut kind, mut encapsulation) = (None, None, None);
        for (name, value) in all {
            match name {
                RTA_OIF => interface = u32_of(value),
                RTA_ENCAP_TYPE => kind = u16_of(value),
                RTA_ENCAP => encapsulation = Some(value),
                _ => {}
            }
        }
        if kind? != LOCAL {
            return None;
        }
        let (mut action, mut table, mut neighbour, mut neighbour4) = (None, None, None, None);
        for (name, value) in attributes(encapsulation?) {
            match name {
                LOCAL_ACTION => action = u32_of(value),
                LOCAL_TABLE => table = u32_of(value),
                LOCAL_NH6 => neighbour = octets(value),
                LOCAL_NH4 => neighbour4 = Some(value),
                _ => {}
            }
        }
        let behaviour = match action? {
            END_DT6 => Behaviour::EndDt6 { table: table? },
            END_DX6 => Behaviour::EndDx6 {
                neighbour: neighbour?,
            },
            END_DX4 if neighbour4? == BY_DESTINATION => Behaviour::EndDx4,
            _ => return None,
        };
        Self::new(address, behaviour, interface?).ok()
    }
}

/// Numbers of the two attributes of an encapsulation, which depend on the message that contains them.
#[derive(Clone, Copy)]
pub(crate) struct EncapsulationAttributes {
    /// The kind of encapsulation.
    pub(crate) kind: u16,
    /// Its nested data.
    pub(crate) data: u16,
}

/// Writes the two attributes that encapsulate packets towards segment `sid`.
pub(crate) fn write_encapsulation(
    batch: &mut Batch,
    attributes: EncapsulationAttributes,
    sid: Ipv6Addr,
    mode: Encapsulation,
) {
    batch.attribute(attributes.kind, &SEG6.to_ne_bytes());
    let nest = batch.nest(attributes.data);
    // `struct seg6_iptunnel_encap`: the mode, then the segment routing header with one segment.
    let mut bytes = [0; 28];
    let mode: u32 = match mode {
        Encapsulation::Full => MODE_ENCAP,
        Encapsulation::Reduced => MODE_ENCAP_RED,
    };
    bytes[..4].copy_from_slice(&mode.to_ne_bytes());
    bytes[5] = 2; // length in eights of bytes behind the first eight
    bytes[6] = SEGMENT_ROUTING;
    bytes[12..].copy_from_slice(&sid.octets());
    batch.attribute(IPTUNNEL_SRH, &bytes);
    batch.end(nest);
}

/// Parses the attributes of [`write_encapsulation`]; `None` for others.
pub(crate) fn read_encapsulation(kind: u16, data: &[u8]) -> Option<(Ipv6Addr, Encapsulation)> {
    if kind != SEG6 {
        return None;
    }
    let (_, bytes) = attributes(data).find(|&(name, _)| name == IPTUNNEL_SRH)?;
    let mode = match u32_of(bytes)? {
        MODE_ENCAP => Encapsulation::Full,
        MODE_ENCAP_RED => Encapsulation::Reduced,
        _ => return None,
    };
    let one_segment = bytes.len() == 28 && bytes[5] == 2;
    one_segment.then(|| octets(&bytes[12..]).map(|sid| (sid, mode)))?
}

pub(crate) fn octets(bytes: &[u8]) -> Option<Ipv6Addr> {
    let octets: [u8; 16] = *bytes.first_chunk()?;
    Some(octets.into())
}

impl fmt::Display for Encapsulation {
    /// In the syntax of `ip`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "encap",
            Self::Reduced => "encap.red",
        })
    }
}

impl fmt::Display for Sid {
    /// In the syntax of `ip`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segment {} ", self.address)?;
        match self.behaviour {
            Behaviour::EndDt6 { table } => write!(f, "End.DT6 table {table}")?,
            Behaviour::EndDx6 { neighbour } => write!(f, "End.DX6 nh6 {neighbour}")?,
            Behaviour::EndDx4 => write!(f, "End.DX4 nh4 0.0.0.0")?,
        }
        write!(f, " dev {}", interface::shown(self.interface))
    }
}

// `include/uapi/linux/rtnetlink.h`
const RTA_OIF: u16 = 4;
const RTA_ENCAP_TYPE: u16 = 21;
const RTA_ENCAP: u16 = 22;

// `include/uapi/linux/lwtunnel.h`
const SEG6: u16 = 5;
const LOCAL: u16 = 7;

// `include/uapi/linux/seg6_iptunnel.h`
const IPTUNNEL_SRH: u16 = 1;
const MODE_ENCAP: u32 = 1;
const MODE_ENCAP_RED: u32 = 3;

/// Type of the segment routing header among routing headers (RFC 8754 §2).
const SEGMENT_ROUTING: u8 = 4;

// `include/uapi/linux/seg6_local.h`
const LOCAL_ACTION: u16 = 1;
const LOCAL_TABLE: u16 = 3;
const LOCAL_NH4: u16 = 4;
const LOCAL_NH6: u16 = 5;
const END_DX6: u32 = 5;
const END_DX4: u32 = 6;
const END_DT6: u32 = 7;
/// No neighbour: the destination of the inner packet is looked up.
const BY_DESTINATION: [u8; 4] = [0; 4];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_never_on_the_loopback_interface() {
        let address = "fd00::1".parse().unwrap();
        let behaviour = Behaviour::EndDt6 { table: 100 };
        assert_eq!(
            Sid::new(address, behaviour, 1),
            Err(OnLoopback(address)),
            "interface 1 is lo"
        );
        assert!(Sid::new(address, behaviour, 2).is_ok());
    }

    #[test]
    fn segments_and_encapsulations_are_read_as_written() {
        let address = "fd00::1".parse().unwrap();
        let behaviours = [
            Behaviour::EndDt6 { table: 100_000 },
            Behaviour::EndDx6 {
                neighbour: "fd00:2::2".parse().unwrap(),
            },
            Behaviour::EndDx4,
        ];
        for behaviour in behaviours {
            let sid = Sid::new(address, behaviour, 3).unwrap();
            let mut batch = Batch::default();
            sid.write(&mut batch);
            assert_eq!(Sid::read(address, attributes(batch.bytes())), Some(sid));
        }
        for mode in [Encapsulation::Full, Encapsulation::Reduced] {
            let mut batch = Batch::default();
            let numbers = EncapsulationAttributes { kind: 7, data: 8 };
            write_encapsulation(&mut batch, numbers, address, mode);
            let mut all = attributes(batch.bytes());
            let kind = u16_of(all.next().unwrap().1).unwrap();
            let data = all.next().unwrap().1;
            assert_eq!(read_encapsulation(kind, data), Some((address, mode)));
            assert_eq!(read_encapsulation(kind, &data[..20]), None);
        }
    }
}
