//! Where the kernel would send a packet, as `ip route get` shows it.

use std::{io, net::IpAddr};

use crate::{
    interface::ip,
    netlink::{self, Batch, Message, Refusal, u32_of},
};

/// A packet that is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    pub destination: IpAddr,
    /// `None`: the kernel chooses.
    pub source: Option<IpAddr>,
    /// The index of the interface by which it comes in; `None`: it is this machine's own.
    pub incoming: Option<u32>,
    /// The index of the interface to which its socket is bound.
    pub outgoing: Option<u32>,
    /// Source and destination port, if it is a UDP packet.
    pub udp_ports: Option<(u16, u16)>,
}

/// Where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteLookup {
    /// Out of the interface of this index.
    Interface {
        index: u32,
        /// The router; `None`: the destination is on the link.
        gateway: Option<IpAddr>,
    },
    /// It is for this machine, or for several.
    Local,
    /// There is no route, or one that refuses it.
    Nowhere,
}

// `include/uapi/linux/rtnetlink.h`
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_IIF: u16 = 3;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_VIA: u16 = 18;
const RTA_IP_PROTO: u16 = 27;
const RTA_SPORT: u16 = 28;
const RTA_DPORT: u16 = 29;
/// Answers with the route itself instead of the way that a packet would take.
const RTM_F_FIB_MATCH: u32 = 0x2000;
const RTN_UNICAST: u8 = 1;

impl Query {
    /// A packet of this machine to `destination`, of any program.
    #[must_use]
    pub fn to(destination: IpAddr) -> Self {
        Self {
            destination,
            source: None,
            incoming: None,
            outgoing: None,
            udp_ports: None,
        }
    }

    /// Where the packet would go, in the calling thread's network namespace.
    ///
    /// # Errors
    /// The kernel does not answer, or would not accept the packet.
    pub fn lookup(&self) -> io::Result<RouteLookup> {
        let mut socket = netlink::Socket::open(libc::NETLINK_ROUTE)?;
        let write = |batch: &mut Batch| self.write(batch);
        let found = socket.list(
            RTM_GETROUTE,
            0,
            write,
            |found: &mut Option<RouteLookup>, message| {
                *found = found.or_else(|| read(&message));
            },
        );
        const NONE: [i32; 3] = [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::EACCES];
        match found {
            Ok(Some(way)) => Ok(way),
            Ok(None) => Err(io::Error::other("the kernel does not say where it leads")),
            // For an incoming packet the kernel also reports these where forwarding is off.
            Err(refusal)
                if self.incoming.is_none() && NONE.iter().any(|&number| refusal.is(number)) =>
            {
                Ok(RouteLookup::Nowhere)
            }
            Err(refusal) => Err(Refusal::into_io(refusal)),
        }
    }

    fn write(&self, batch: &mut Batch) {
        let (family, bits) = match self.destination {
            IpAddr::V4(_) => (libc::AF_INET, 32),
            IpAddr::V6(_) => (libc::AF_INET6, 128),
        };
        let mut header = [0; 12];
        header[0] = family as u8;
        header[1] = bits;
        header[2] = if self.source.is_some() { bits } else { 0 };
        // Of a bound socket the kernel would say that everything is on the link.
        if self.outgoing.is_some() {
            header[8..].copy_from_slice(&RTM_F_FIB_MATCH.to_ne_bytes());
        }
        batch.raw(&header);
        address(batch, RTA_DST, self.destination);
        if let Some(source) = self.source {
            address(batch, RTA_SRC, source);
        }
        if let Some(index) = self.incoming {
            batch.u32(RTA_IIF, index);
        }
        if let Some(index) = self.outgoing {
            batch.u32(RTA_OIF, index);
        }
        if let Some((source, destination)) = self.udp_ports {
            batch.attribute(RTA_IP_PROTO, &[libc::IPPROTO_UDP as u8]);
            batch.attribute(RTA_SPORT, &source.to_be_bytes());
            batch.attribute(RTA_DPORT, &destination.to_be_bytes());
        }
    }
}

fn address(batch: &mut Batch, kind: u16, address: IpAddr) {
    match address {
        IpAddr::V4(address) => batch.attribute(kind, &address.octets()),
        IpAddr::V6(address) => batch.attribute(kind, &address.octets()),
    }
}

fn read(message: &Message<'_>) -> Option<RouteLookup> {
    if message.kind != RTM_NEWROUTE {
        return None;
    }
    let (header, attributes) = message.split::<12>()?;
    let (mut interface, mut gateway) = (None, None);
    for (kind, value) in attributes {
        match kind {
            RTA_OIF => interface = u32_of(value),
            RTA_GATEWAY => gateway = ip(value),
            // A family, and an address of it.
            RTA_VIA => gateway = value.get(2..).and_then(ip),
            _ => {}
        }
    }
    match header[7] {
        RTN_UNICAST => interface.map(|index| RouteLookup::Interface { index, gateway }),
        2..=5 => Some(RouteLookup::Local),
        _ => Some(RouteLookup::Nowhere),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::netlink::test::{message, parsed};

    #[test]
    fn answers_name_interface_and_router_or_that_there_is_no_way() {
        let answer = |kind: u8, attributes: &[(u16, &[u8])]| {
            let mut header = [0; 12];
            header[7] = kind;
            parsed(&message(RTM_NEWROUTE, &header, attributes), read)
        };
        let index = 3_u32.to_ne_bytes();
        let by: [(u16, &[u8]); 2] = [(RTA_OIF, &index), (RTA_GATEWAY, &[192, 0, 2, 1])];
        let gateway = Some(IpAddr::from([192, 0, 2, 1]));
        let found = Some(RouteLookup::Interface { index: 3, gateway });
        assert_eq!(answer(RTN_UNICAST, &by), found);
        let via: [(u16, &[u8]); 2] = [(RTA_OIF, &index), (RTA_VIA, &[2, 0, 192, 0, 2, 1])];
        assert_eq!(answer(RTN_UNICAST, &via), found);
        let (local, unreachable) = (2, 7);
        assert_eq!(answer(local, &by), Some(RouteLookup::Local));
        assert_eq!(answer(unreachable, &[]), Some(RouteLookup::Nowhere));
    }

    #[test]
    fn loopback_addresses_are_local() {
        let query = Query {
            source: Some(Ipv4Addr::LOCALHOST.into()),
            udp_ports: Some((7600, 7601)),
            ..Query::to(Ipv4Addr::LOCALHOST.into())
        };
        assert_eq!(query.lookup().unwrap(), RouteLookup::Local);
    }
}
