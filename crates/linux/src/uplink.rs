//! Whether packets to far hosts leave by an interface of this namespace, beside what
//! [`interface`](crate::interface) lists.
//!
//! [`RouteWatch`](crate::route::RouteWatch) says when to look again. A look costs two lists, of links and
//! addresses, and [`UplinkSocket::default_route`] some small requests, however many routes there are.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::{
    interface::{Interface, InterfaceList, ip},
    netlink::{Batch, Message, u32_of},
};

/// Where packets to far hosts leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DefaultRoute {
    /// The index of its interface; `None`: it has several.
    pub interface: Option<u32>,
    /// The router; `None`: the link leads to one neighbour only, or there are several.
    pub gateway: Option<IpAddr>,
    /// The kernel has made it from a router advertisement (RFC 4861), and removes it at the end of its lifetime.
    pub is_advertised: bool,
}

/// Asks for interfaces and routes.
#[derive(Debug)]
pub struct UplinkSocket(InterfaceList);

/// A route to this or a shorter prefix is a default route: some programs divide it by two, and IPv6's
/// unicast addresses are 2000::/3.
const DEFAULT_PREFIX_BITS_MAX: u8 = 3;
/// Destinations of no host, for which no more specific route is expected: the dummy address of RFC 7600 §4,
/// and the first of unicast addresses.
const FAR_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);
const FAR_V6: Ipv6Addr = Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 1);

// `include/uapi/linux/rtnetlink.h`, `if_link.h` and `if_addr.h`
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_MULTIPATH: u16 = 9;
const RTA_VIA: u16 = 18;
/// Answers with the route itself instead of the way that a packet would take.
const RTM_F_FIB_MATCH: u32 = 0x2000;
const RTN_UNICAST: u8 = 1;
const RTPROT_RA: u8 = 9;

impl UplinkSocket {
    /// For the calling thread's network namespace, permanently.
    ///
    /// # Errors
    /// No netlink socket is available.
    pub fn open() -> io::Result<Self> {
        InterfaceList::open().map(Self)
    }

    /// The interfaces, by index.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn interfaces(&mut self) -> io::Result<Vec<Interface>> {
        self.0.read()
    }

    /// The default route of sockets that are bound to the interface `index`, or of all others. `None`: there is
    /// none.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn default_route(
        &mut self,
        index: Option<u32>,
        ipv6: bool,
    ) -> io::Result<Option<DefaultRoute>> {
        let write = |batch: &mut Batch| {
            let (family, bits) = match ipv6 {
                true => (libc::AF_INET6, 128),
                false => (libc::AF_INET, 32),
            };
            let mut header = [0; 12];
            header[0] = family as u8;
            header[1] = bits;
            header[8..].copy_from_slice(&RTM_F_FIB_MATCH.to_ne_bytes());
            batch.raw(&header);
            match ipv6 {
                true => batch.attribute(RTA_DST, &FAR_V6.octets()),
                false => batch.attribute(RTA_DST, &FAR_V4.octets()),
            }
            if let Some(index) = index {
                batch.u32(RTA_OIF, index);
            }
        };
        let found = self
            .0
            .0
            .list(RTM_GETROUTE, 0, write, |found: &mut Option<_>, message| {
                *found = found.or_else(|| default_route(&message));
            });
        // Without a route it answers that the network or the host is unreachable.
        const NONE: [i32; 4] = [
            libc::ENETUNREACH,
            libc::EHOSTUNREACH,
            libc::ENODEV,
            libc::EACCES,
        ];
        match found {
            Ok(found) => Ok(found),
            Err(refusal) if NONE.iter().any(|&number| refusal.is(number)) => Ok(None),
            Err(refusal) => Err(refusal.into_io()),
        }
    }
}

/// Whether the kernel drops packets that come in by `interface` from hosts that it would reach by another one
/// (RFC 3704 §2.2). It does for IPv4 only, by the larger of two settings.
pub fn is_reverse_path_strict(interface: &str) -> bool {
    let value = |name| {
        let file = format!("/proc/sys/net/ipv4/conf/{name}/rp_filter");
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    };
    const STRICT: u32 = 1;
    value("all").max(value(interface)) == STRICT
}

/// A listed default route; `None` if it is another one.
fn default_route(message: &Message<'_>) -> Option<DefaultRoute> {
    let (header, attributes) = message.split::<12>()?;
    let is_default = message.kind == RTM_NEWROUTE
        && header[1] <= DEFAULT_PREFIX_BITS_MAX
        && header[7] == RTN_UNICAST;
    let mut found = DefaultRoute {
        is_advertised: header[5] == RTPROT_RA,
        ..DefaultRoute::default()
    };
    let mut leads = false;
    for (kind, value) in attributes {
        match kind {
            RTA_GATEWAY => found.gateway = ip(value),
            RTA_OIF => found.interface = u32_of(value),
            RTA_MULTIPATH | RTA_VIA => {}
            _ => continue,
        }
        leads = true;
    }
    (is_default && leads).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::test::{message, parsed};

    #[test]
    fn only_unicast_routes_to_everywhere_are_default_routes() {
        let read = |bits: u8, kind: u8, attributes: &[(u16, &[u8])]| {
            let mut header = [0; 12];
            (header[1], header[7]) = (bits, kind);
            parsed(&message(RTM_NEWROUTE, &header, attributes), default_route)
        };
        let index = 3_u32.to_ne_bytes();
        let oif: [(u16, &[u8]); 1] = [(RTA_OIF, &index)];
        let found = |gateway| {
            Some(DefaultRoute {
                interface: Some(3),
                gateway,
                is_advertised: false,
            })
        };
        assert_eq!(read(0, RTN_UNICAST, &oif), found(None));
        assert_eq!(read(1, RTN_UNICAST, &oif), found(None));
        let by: [(u16, &[u8]); 2] = [(RTA_OIF, &index), (RTA_GATEWAY, &[192, 0, 2, 1])];
        let gateway = IpAddr::from([192, 0, 2, 1]);
        assert_eq!(read(0, RTN_UNICAST, &by), found(Some(gateway)));
        assert_eq!(read(24, RTN_UNICAST, &oif), None);
        const RTN_UNREACHABLE: u8 = 7;
        assert_eq!(read(0, RTN_UNREACHABLE, &oif), None);
        assert_eq!(read(0, RTN_UNICAST, &[]), None);
    }

    #[test]
    fn the_loopback_interface_has_no_default_route() {
        let mut socket = UplinkSocket::open().unwrap();
        let interfaces = socket.interfaces().unwrap();
        let loopback = interfaces.iter().find(|link| link.name == "lo").unwrap();
        for ipv6 in [false, true] {
            let route = socket.default_route(Some(loopback.index), ipv6).unwrap();
            assert_eq!(route, None);
        }
    }
}
