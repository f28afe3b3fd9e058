//! Network interfaces of this namespace and their addresses, as the kernel lists them.

use std::{fmt, io, net::IpAddr};

use nix::net::if_::{if_indextoname, if_nametoindex};
use socket2::Socket;

use crate::netlink::{self, Batch, DUMP, Message, Refusal, attributes, u32_of};

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
    /// The kind of its link (`ARPHRD_*`).
    pub hardware: u16,
    /// Largest IP packet, in bytes.
    pub mtu: u32,
    /// The interface that receives what comes in by this one: a bridge or an aggregate of links.
    pub port_of: Option<String>,
    /// In the kernel's order.
    pub addresses: Vec<Address>,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    pub ip: IpAddr,
    /// Bits that the addresses on its link have in common.
    pub prefix_len: u8,
    /// The other end of a link to one neighbour.
    pub peer: Option<IpAddr>,
    /// It can be used: no other host was found or may be found to have it.
    pub ready: bool,
    /// It is about to be removed, or changes every few hours for the sake of privacy (RFC 8981).
    pub passing: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    pub interface: String,
    pub address: IpAddr,
    /// The interface is up and has a carrier.
    pub running: bool,
}

/// Lists interfaces again and again.
#[derive(Debug)]
pub(crate) struct InterfaceList(pub(crate) netlink::Socket);

/// Interfaces that are listed; what is beyond is left out. Ours: a host has some thousand at most.
const INTERFACES_MAX: usize = 16_384;
/// Addresses of one interface that are listed.
const ADDRESSES_MAX: usize = 256;

// `include/uapi/linux/rtnetlink.h`, `if_link.h` and `if_addr.h`
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_SLAVE_KIND: u16 = 4;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
const IFA_F_TEMPORARY: u32 = 0x01;
const IFA_F_OPTIMISTIC: u32 = 0x04;
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_DEPRECATED: u32 = 0x20;
const IFA_F_TENTATIVE: u32 = 0x40;
/// Interfaces under one of these kinds receive nothing themselves; those under a VRF do.
const CONTROLLERS: [&[u8]; 4] = [b"bridge", b"bond", b"team", b"openvswitch"];

impl Interface {
    /// It is up and has a carrier.
    pub fn is_running(&self) -> bool {
        self.up && self.carrier
    }

    pub fn has(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|own| own.ip == address)
    }

    /// Whether `address` belongs to a neighbour on this link.
    pub fn reaches(&self, address: IpAddr) -> bool {
        let is_near = |own: &Address| {
            // The prefix is that of the other end, where there is only one.
            let on_link = own.peer.unwrap_or(own.ip);
            let near = ipnet::IpNet::new(on_link, own.prefix_len);
            let near = near.is_ok_and(|prefix| prefix.contains(&address));
            own.peer == Some(address) || near && own.ip != address
        };
        self.addresses.iter().any(is_near)
    }
}

impl InterfaceList {
    /// For the calling thread's network namespace, permanently.
    pub(crate) fn open() -> io::Result<Self> {
        netlink::Socket::open(libc::NETLINK_ROUTE).map(Self)
    }

    /// The interfaces, by index.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub(crate) fn read(&mut self) -> io::Result<Vec<Interface>> {
        let all = |batch: &mut Batch| batch.raw(&[0; 16]);
        let links = self
            .0
            .list(RTM_GETLINK, DUMP, all, |links: &mut Vec<_>, message| {
                links.extend(link(&message).filter(|_| links.len() < INTERFACES_MAX));
            });
        let mut links = with_controllers(links.map_err(Refusal::into_io)?);
        let all = |batch: &mut Batch| batch.raw(&[0; 8]);
        let addresses = self
            .0
            .list(RTM_GETADDR, DUMP, all, |found: &mut Vec<_>, message| {
                let room = found.len() < INTERFACES_MAX + ADDRESSES_MAX;
                found.extend(address(&message).filter(|_| room));
            });
        for (index, address) in addresses.map_err(Refusal::into_io)? {
            if let Ok(at) = links.binary_search_by_key(&index, |link| link.index)
                && links[at].addresses.len() < ADDRESSES_MAX
            {
                links[at].addresses.push(address);
            }
        }
        Ok(links)
    }
}

/// The interfaces of the calling thread's network namespace, by index.
///
/// # Errors
/// The kernel does not answer.
pub fn list() -> io::Result<Vec<Interface>> {
    InterfaceList::open()?.read()
}

/// Every address of every interface.
///
/// # Errors
/// Those of [`list`].
pub fn addresses() -> io::Result<Vec<InterfaceAddress>> {
    let of = |interface: Interface| {
        let running = interface.is_running();
        let addresses = interface.addresses.into_iter();
        addresses.map(move |address| InterfaceAddress {
            interface: interface.name.clone(),
            address: address.ip,
            running,
        })
    };
    Ok(list()?.into_iter().flat_map(of).collect())
}

/// Binds a socket that is not bound to an interface yet to `interface`; `None` leaves it unbound. Linux
/// requires no privilege for that.
///
/// # Errors
/// There is no such interface.
pub(crate) fn bind_to(socket: &Socket, interface: Option<&str>) -> io::Result<()> {
    let Some(name) = interface else {
        return Ok(());
    };
    let failed = |error: io::Error| io::Error::new(error.kind(), format!("{name}: {error}"));
    socket.bind_device(Some(name.as_bytes())).map_err(failed)
}

/// The index of an interface of this namespace, which changes whenever the interface is made anew; `None` if
/// there is none of that name.
pub fn index(interface: &str) -> Option<u32> {
    if_nametoindex(interface).ok()
}

/// The name of the interface of this number in this namespace; `None`: there is none.
pub fn name(index: u32) -> Option<String> {
    if_indextoname(index).ok()?.into_string().ok()
}

/// For messages: the interface's name in the calling thread's namespace, or its index if it is gone.
pub(crate) fn shown(index: u32) -> String {
    name(index).unwrap_or_else(|| index.to_string())
}

/// Largest IP packet that `interface` takes, in bytes.
///
/// # Errors
/// There is no such interface.
pub fn mtu(interface: &str) -> io::Result<u32> {
    named(interface).map(|found| found.mtu)
}

/// Length of the link-layer header on `interface`, in bytes: 14 on Ethernet, none on IP tunnels.
///
/// # Errors
/// There is no such interface, or it is of an unknown kind.
pub fn link_header_bytes(interface: &str) -> io::Result<u32> {
    match named(interface)?.hardware {
        libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => Ok(14),
        libc::ARPHRD_NONE
        | libc::ARPHRD_PPP
        | libc::ARPHRD_TUNNEL
        | libc::ARPHRD_TUNNEL6
        | libc::ARPHRD_SIT
        | libc::ARPHRD_IPGRE
        | RAW_IP => Ok(0),
        other => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("interfaces of hardware type {other} are not known (ARPHRD of if_arp.h)"),
        )),
    }
}

/// `ARPHRD_RAWIP`: cellular modems.
const RAW_IP: u16 = 519;

fn named(interface: &str) -> io::Result<Interface> {
    let mut all = list()?.into_iter();
    let found = all.find(|found| found.name == interface);
    found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))
}

/// The MTU of the interface that has `address`; `None` if none has.
///
/// # Errors
/// Those of [`list`].
pub fn mtu_of_address(address: IpAddr) -> io::Result<Option<u32>> {
    let all = list()?;
    // Every address of 127.0.0.0/8 belongs to the loopback interface, listed or not.
    let is_of = |interface: &&Interface| match address.is_loopback() {
        true => interface.loopback,
        false => interface.has(address),
    };
    Ok(all.iter().find(is_of).map(|found| found.mtu))
}

/// A listed link and the index of its controller; `None` if it is of another kind or not understood.
fn link(message: &Message<'_>) -> Option<(Interface, Option<u32>)> {
    if message.kind != RTM_NEWLINK {
        return None;
    }
    let (header, all) = message.split::<16>()?;
    let flags = u32_of(&header[8..])?;
    let has = |flag: libc::c_int| flags & flag as u32 != 0;
    let mut link = Interface {
        index: u32_of(&header[4..])?,
        up: has(libc::IFF_UP),
        carrier: has(libc::IFF_RUNNING),
        loopback: has(libc::IFF_LOOPBACK),
        hardware: u16::from_ne_bytes([header[2], header[3]]),
        ..Interface::default()
    };
    let (mut controller, mut is_port) = (None, false);
    for (kind, value) in all {
        match kind {
            IFLA_IFNAME => link.name = std::str::from_utf8(terminated(value)).ok()?.to_owned(),
            IFLA_MTU => link.mtu = u32_of(value)?,
            IFLA_MASTER => controller = u32_of(value),
            IFLA_LINKINFO => {
                is_port = attributes(value).any(|(kind, value)| is_port_kind(kind, value));
            }
            _ => {}
        }
    }
    Some((link, controller.filter(|_| is_port)))
}

fn is_port_kind(kind: u16, value: &[u8]) -> bool {
    kind == IFLA_INFO_SLAVE_KIND && CONTROLLERS.contains(&terminated(value))
}

/// What is before the first zero.
fn terminated(value: &[u8]) -> &[u8] {
    let end = value.iter().position(|byte| *byte == 0);
    &value[..end.unwrap_or(value.len())]
}

/// The interfaces by index, with the names of their controllers.
fn with_controllers(mut all: Vec<(Interface, Option<u32>)>) -> Vec<Interface> {
    all.sort_by_key(|(link, _)| link.index);
    for at in 0..all.len() {
        let controller = all[at].1;
        let found = controller.and_then(|index| {
            all.binary_search_by_key(&index, |(link, _)| link.index)
                .ok()
        });
        all[at].0.port_of = found.map(|found| all[found].0.name.clone());
    }
    all.into_iter().map(|(link, _)| link).collect()
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
        peer: other.filter(|other| *other != ip),
        ready: !tentative && !has(IFA_F_DADFAILED),
        passing: temporary || has(IFA_F_DEPRECATED),
    };
    Some((u32_of(&header[4..])?, address))
}

/// An address of an attribute.
pub(crate) fn ip(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => Some(<[u8; 4]>::try_from(value).ok()?.into()),
        16 => Some(<[u8; 16]>::try_from(value).ok()?.into()),
        _ => None,
    }
}

/// `eth0 192.0.2.1, wwan0 198.51.100.7`, at most `LISTED_MAX` of them; for error messages.
pub(crate) struct AddressList<'a>(pub(crate) &'a [InterfaceAddress]);

const LISTED_MAX: usize = 16;

impl fmt::Display for AddressList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("no address at all");
        }
        for (index, entry) in self.0.iter().take(LISTED_MAX).enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{} {}", entry.interface, entry.address)?;
        }
        match self.0.len().checked_sub(LISTED_MAX) {
            None | Some(0) => Ok(()),
            Some(more) => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;
    use crate::netlink::test::{message, parsed};

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
        assert_eq!(found, Some((expected, None)));
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
    fn ports_of_bridges_and_bonds_name_what_receives_their_packets() {
        for (kind, expected) in [
            (&b"bridge\0"[..], Some("br0")),
            (b"bond\0", Some("br0")),
            (b"vrf\0", None),
            (b"", None),
        ] {
            let header = |index: u8| {
                let mut header = [0; 16];
                header[4] = index;
                header
            };
            let length = 4 + kind.len() as u16;
            let nested = [length.to_ne_bytes(), IFLA_INFO_SLAVE_KIND.to_ne_bytes()];
            let info = [&nested.concat()[..], kind].concat();
            let controller = 9_u32.to_ne_bytes();
            let port: [(u16, &[u8]); 3] = [
                (IFLA_IFNAME, b"eth1\0"),
                (IFLA_MASTER, &controller),
                (IFLA_LINKINFO, &info),
            ];
            let own: [(u16, &[u8]); 1] = [(IFLA_IFNAME, b"br0\0")];
            let bytes = [
                message(RTM_NEWLINK, &header(9), &own),
                message(RTM_NEWLINK, &header(3), &port),
            ];
            let listed = bytes
                .iter()
                .filter_map(|bytes| parsed(bytes, link))
                .collect();
            let found = with_controllers(listed);
            assert_eq!(found[0].port_of.as_deref(), expected, "{kind:?}");
            assert_eq!(found[1].port_of, None);
        }
    }

    fn near(ip: &str, prefix_len: u8, peer: Option<&str>) -> Interface {
        let address = Address {
            ip: ip.parse().unwrap(),
            prefix_len,
            peer: peer.map(|peer| peer.parse().unwrap()),
            ready: true,
            passing: false,
        };
        Interface {
            addresses: vec![address],
            ..Interface::default()
        }
    }

    #[test]
    fn neighbours_of_the_same_prefix_are_reached_by_a_link() {
        let v6 = near("2001:db8::1", 64, None);
        let v4 = near("192.0.2.1", 30, None);
        let p2p = near("10.0.0.1", 32, Some("10.9.9.9"));
        for (link, address, reached) in [
            (&v6, "2001:db8::2", true),
            (&v6, "2001:db8:0:1::2", false),
            (&v6, "2001:db8::1", false),
            (&v6, "192.0.2.2", false),
            (&v4, "192.0.2.2", true),
            (&v4, "192.0.2.4", false),
            (&p2p, "10.9.9.9", true),
            (&p2p, "10.0.0.2", false),
        ] {
            assert_eq!(link.reaches(address.parse().unwrap()), reached, "{address}");
        }
    }

    #[test]
    fn the_loopback_interface_is_listed_with_its_address() {
        let interfaces = list().unwrap();
        let loopback = interfaces.iter().find(|link| link.name == "lo").unwrap();
        assert!(loopback.is_running() && loopback.loopback && loopback.index > 0);
        assert_eq!(loopback.port_of, None);
        let mut addresses = loopback.addresses.iter();
        assert!(addresses.any(|address| address.ip == Ipv4Addr::LOCALHOST && address.ready));
    }

    #[test]
    fn loopback_has_its_address_and_an_mtu() {
        let all = addresses().unwrap();
        let loopback = all.iter().find(|a| a.address.is_loopback()).unwrap();
        assert!(mtu(&loopback.interface).unwrap() >= 1280);
        assert_eq!(link_header_bytes(&loopback.interface).unwrap(), 14);
        assert!(
            mtu_of_address("127.0.0.99".parse().unwrap())
                .unwrap()
                .is_some()
        );
    }

    #[test]
    fn unknown_interfaces_and_addresses_are_errors() {
        assert!(mtu("keiro-none").is_err());
        assert!(link_header_bytes("keiro-none").is_err());
        assert!(mtu("a-name-that-is-longer-than-any-interface").is_err());
        // TEST-NET-3 (RFC 5737) is on no machine.
        assert_eq!(
            mtu_of_address("203.0.113.250".parse().unwrap()).unwrap(),
            None
        );
    }
}
