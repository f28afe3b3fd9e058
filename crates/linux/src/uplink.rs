//! What decides whether an interface of this namespace can be an uplink: its state, its addresses, and
//! whether packets to far hosts leave by it.
//!
//! [`RouteWatch`](crate::route::RouteWatch) says when to look again. A look costs two lists, of links and
//! addresses, and [`UplinkSocket::default_route`] some small requests, however many routes there are.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::netlink::{Batch, DUMP, Message, Socket, u32_of};

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    /// Changes whenever the interface is made anew or comes from another namespace.
    pub index: u32,
    /// It is set up.
    pub up: bool,
    /// It has a carrier.
    pub carrier: bool,
    pub loopback: bool,
    /// Largest IP packet, in bytes.
    pub mtu: u32,
    /// In the kernel's order.
    pub addresses: Vec<Address>,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    pub ip: IpAddr,
    /// Bits that the addresses on its link have in common.
    pub prefix_len: u8,
    /// It can be used: no other host was found or may be found to have it.
    pub ready: bool,
    /// It is about to be removed, or changes every few hours for the sake of privacy (RFC 8981).
    pub passing: bool,
}

/// Where packets to far hosts leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DefaultRoute {
    /// The index of its interface; `None`: it has several.
    pub interface: Option<u32>,
    /// The router; `None`: the link leads to one neighbour only, or there are several.
    pub gateway: Option<IpAddr>,
}

/// Asks for interfaces and routes.
#[derive(Debug)]
pub struct UplinkSocket(Socket);

/// Interfaces that are listed; what is beyond is left out. Ours: a host has some thousand at most.
const INTERFACES_MAX: usize = 16_384;
/// Addresses of one interface that are listed.
const ADDRESSES_MAX: usize = 256;
/// A route to this or a shorter prefix is a default route: some programs divide it by two, and IPv6's
/// unicast addresses are 2000::/3.
const DEFAULT_PREFIX_BITS_MAX: u8 = 3;
/// Destinations of no host, for which no more specific route is expected: the dummy address of RFC 7600 §4,
/// and the first of unicast addresses.
const FAR_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);
const FAR_V6: Ipv6Addr = Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 1);

// `include/uapi/linux/rtnetlink.h`, `if_link.h` and `if_addr.h`
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_MULTIPATH: u16 = 9;
const RTA_VIA: u16 = 18;
const IFA_F_TEMPORARY: u32 = 0x01;
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_DEPRECATED: u32 = 0x20;
const IFA_F_TENTATIVE: u32 = 0x40;
const IFA_F_OPTIMISTIC: u32 = 0x04;
/// Answers with the route itself instead of the way that a packet would take.
const RTM_F_FIB_MATCH: u32 = 0x2000;
const RTN_UNICAST: u8 = 1;

impl UplinkSocket {
    /// For the calling thread's network namespace, permanently.
    ///
    /// # Errors
    /// No netlink socket is available.
    pub fn open() -> io::Result<Self> {
        Socket::open(libc::NETLINK_ROUTE).map(Self)
    }

    /// The interfaces, by index.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn interfaces(&mut self) -> io::Result<Vec<Interface>> {
        let all = |batch: &mut Batch| batch.raw(&[0; 16]);
        let links = self.0.list(
            RTM_GETLINK,
            DUMP,
            all,
            |links: &mut Vec<Interface>, message| {
                links.extend(link(&message).filter(|_| links.len() < INTERFACES_MAX));
            },
        );
        let mut links = links.map_err(crate::netlink::Refusal::into_io)?;
        links.sort_by_key(|link| link.index);
        let all = |batch: &mut Batch| batch.raw(&[0; 8]);
        let addresses = self
            .0
            .list(RTM_GETADDR, DUMP, all, |found: &mut Vec<_>, message| {
                let room = found.len() < INTERFACES_MAX + ADDRESSES_MAX;
                found.extend(address(&message).filter(|_| room));
            });
        for (index, address) in addresses.map_err(crate::netlink::Refusal::into_io)? {
            if let Ok(at) = links.binary_search_by_key(&index, |link| link.index)
                && links[at].addresses.len() < ADDRESSES_MAX
            {
                links[at].addresses.push(address);
            }
        }
        Ok(links)
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

/// A listed link; `None` if it is of another kind or not understood.
fn link(message: &Message<'_>) -> Option<Interface> {
    if message.kind != RTM_NEWLINK {
        return None;
    }
    let (header, attributes) = message.split::<16>()?;
    let flags = u32_of(&header[8..])?;
    let has = |flag: libc::c_int| flags & flag as u32 != 0;
    let mut link = Interface {
        index: u32_of(&header[4..])?,
        up: has(libc::IFF_UP),
        carrier: has(libc::IFF_RUNNING),
        loopback: has(libc::IFF_LOOPBACK),
        ..Interface::default()
    };
    for (kind, value) in attributes {
        match kind {
            IFLA_IFNAME => {
                let end = value.iter().position(|byte| *byte == 0);
                let name = &value[..end.unwrap_or(value.len())];
                link.name = std::str::from_utf8(name).ok()?.to_owned();
            }
            IFLA_MTU => link.mtu = u32_of(value)?,
            _ => {}
        }
    }
    Some(link)
}

/// A listed address, and the index of its interface.
fn address(message: &Message<'_>) -> Option<(u32, Address)> {
    if message.kind != RTM_NEWADDR {
        return None;
    }
    let (header, attributes) = message.split::<8>()?;
    let mut flags = u32::from(header[2]);
    let (mut local, mut other) = (None, None);
    for (kind, value) in attributes {
        match kind {
            IFA_LOCAL => local = ip(value),
            IFA_ADDRESS => other = ip(value),
            IFA_FLAGS => flags = u32_of(value)?,
            _ => {}
        }
    }
    // On a link to one neighbour, IFA_ADDRESS is the neighbour's.
    let ip = local.or(other)?;
    let has = |flag: u32| flags & flag != 0;
    let tentative = has(IFA_F_TENTATIVE) && !has(IFA_F_OPTIMISTIC);
    // IFA_F_SECONDARY of IPv4 is IFA_F_TEMPORARY of IPv6.
    let temporary = ip.is_ipv6() && has(IFA_F_TEMPORARY);
    let address = Address {
        ip,
        prefix_len: header[1],
        ready: !tentative && !has(IFA_F_DADFAILED),
        passing: temporary || has(IFA_F_DEPRECATED),
    };
    Some((u32_of(&header[4..])?, address))
}

/// A listed default route; `None` if it is another one.
fn default_route(message: &Message<'_>) -> Option<DefaultRoute> {
    let (header, attributes) = message.split::<12>()?;
    let is_default = message.kind == RTM_NEWROUTE
        && header[1] <= DEFAULT_PREFIX_BITS_MAX
        && header[7] == RTN_UNICAST;
    let mut found = DefaultRoute::default();
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

fn ip(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => Some(<[u8; 4]>::try_from(value).ok()?.into()),
        16 => Some(<[u8; 16]>::try_from(value).ok()?.into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::Messages;

    fn message(kind: u16, header: &[u8], attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut batch = Batch::default();
        batch.begin(kind, 0, 1);
        batch.raw(header);
        for (kind, value) in attributes {
            batch.attribute(*kind, value);
        }
        batch.finish();
        batch.bytes().to_vec()
    }

    /// What `read` makes of a message, and that no part of the message makes it panic.
    fn parsed<T>(bytes: &[u8], read: impl Fn(&Message<'_>) -> T) -> T {
        for length in 0..bytes.len() {
            // Shorter than it says.
            Messages::of(&bytes[..length]).for_each(|message| drop(read(&message)));
            let mut cut = bytes[..length].to_vec();
            if let Some(says) = cut.first_chunk_mut() {
                *says = (length as u32).to_ne_bytes();
            }
            Messages::of(&cut).for_each(|message| drop(read(&message)));
        }
        let message = Messages::of(bytes).next().expect("whole");
        read(&message)
    }

    #[test]
    fn links_are_read_with_their_state() {
        let mut header = [0; 16];
        header[4] = 7;
        let flags = (libc::IFF_UP | libc::IFF_RUNNING) as u32;
        header[8..12].copy_from_slice(&flags.to_ne_bytes());
        let attributes: [(u16, &[u8]); 2] = [
            (IFLA_IFNAME, b"wwan0\0"),
            (IFLA_MTU, &1428_u32.to_ne_bytes()),
        ];
        let found = parsed(&message(RTM_NEWLINK, &header, &attributes), link);
        let expected = Interface {
            name: "wwan0".to_owned(),
            index: 7,
            up: true,
            carrier: true,
            mtu: 1428,
            ..Interface::default()
        };
        assert_eq!(found, Some(expected));
        assert_eq!(
            parsed(&message(RTM_NEWADDR, &header, &attributes), link),
            None
        );
    }

    #[test]
    fn addresses_are_read_with_what_keeps_them_from_use() {
        let v6 = Ipv6Addr::LOCALHOST.octets();
        let own: [u8; 4] = [192, 0, 2, 1];
        let neighbour: [u8; 4] = [192, 0, 2, 2];
        let read = |flags: u32, attributes: &[(u16, &[u8])]| {
            let header = [0, 0, 0, 0, 3, 0, 0, 0];
            let flags = flags.to_ne_bytes();
            let mut all: Vec<(u16, &[u8])> = vec![(IFA_FLAGS, &flags)];
            all.extend(attributes);
            let (index, address) = parsed(&message(RTM_NEWADDR, &header, &all), address)?;
            assert_eq!(index, 3);
            Some((address.ip.to_string(), address.ready, address.passing))
        };
        let found = |ip: &str, ready, passing| Some((ip.to_owned(), ready, passing));
        let p2p: [(u16, &[u8]); 2] = [(IFA_ADDRESS, &neighbour), (IFA_LOCAL, &own)];
        assert_eq!(read(0, &p2p), found("192.0.2.1", true, false));
        // Secondary, of IPv4.
        assert_eq!(read(IFA_F_TEMPORARY, &p2p), found("192.0.2.1", true, false));
        let v6: [(u16, &[u8]); 1] = [(IFA_ADDRESS, &v6)];
        for (flags, ready, passing) in [
            (0, true, false),
            (IFA_F_TENTATIVE, false, false),
            (IFA_F_TENTATIVE | IFA_F_OPTIMISTIC, true, false),
            (IFA_F_DADFAILED, false, false),
            (IFA_F_TEMPORARY, true, true),
            (IFA_F_DEPRECATED, true, true),
        ] {
            assert_eq!(read(flags, &v6), found("::1", ready, passing), "{flags:#x}");
        }
        assert_eq!(read(0, &[(IFA_ADDRESS, &[1, 2, 3])]), None);
    }

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
    fn the_loopback_interface_has_its_address_and_no_default_route() {
        let mut socket = UplinkSocket::open().unwrap();
        let interfaces = socket.interfaces().unwrap();
        let loopback = interfaces.iter().find(|link| link.name == "lo").unwrap();
        assert!(loopback.up && loopback.carrier && loopback.loopback);
        let mut addresses = loopback.addresses.iter();
        assert!(addresses.any(|address| address.ip == Ipv4Addr::LOCALHOST && address.ready));
        for ipv6 in [false, true] {
            let route = socket.default_route(Some(loopback.index), ipv6).unwrap();
            assert_eq!(route, None);
        }
    }
}
