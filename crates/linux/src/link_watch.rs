//! Links and addresses of this namespace, and notice when they change.

use std::{
    collections::BTreeMap,
    io,
    net::IpAddr,
    os::fd::{AsFd, BorrowedFd},
};

use nix::{ifaddrs::getifaddrs, net::if_::InterfaceFlags, sys::socket::SockaddrStorage};

use crate::netlink::Socket;

/// An interface, with what decides whether a neighbour on its link is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    pub name: String,
    /// Changes whenever the interface is made anew.
    pub index: u32,
    /// The interface is up and has a carrier.
    pub running: bool,
    pub addresses: Vec<LinkAddress>,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkAddress {
    pub address: IpAddr,
    /// Which bits of another address are equal if it is on the same link.
    pub mask: IpAddr,
    /// The other end of a point-to-point link.
    pub peer: Option<IpAddr>,
}

impl Link {
    /// Whether `address` belongs to a neighbour on this link.
    pub fn reaches(&self, address: IpAddr) -> bool {
        let is_near = |own: &LinkAddress| {
            let masked = |of: IpAddr| match (of, own.mask) {
                (IpAddr::V4(of), IpAddr::V4(mask)) => Some(u128::from((of & mask).to_bits())),
                (IpAddr::V6(of), IpAddr::V6(mask)) => Some((of & mask).to_bits()),
                _ => None,
            };
            let near = masked(own.address).is_some() && masked(own.address) == masked(address);
            own.peer == Some(address) || near && own.address != address
        };
        self.addresses.iter().any(is_near)
    }

    pub fn has(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|own| own.address == address)
    }
}

/// The links of the calling thread's network namespace.
///
/// # Errors
/// Those of `getifaddrs(3)`.
pub fn links() -> io::Result<Vec<Link>> {
    let running = InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING;
    let mut links: BTreeMap<String, Link> = BTreeMap::new();
    for entry in getifaddrs()? {
        let link = links
            .entry(entry.interface_name.clone())
            .or_insert_with(|| Link {
                name: entry.interface_name.clone(),
                ..Link::default()
            });
        link.running = entry.flags.contains(running);
        let Some(storage) = &entry.address else {
            continue;
        };
        if let Some(found) = storage.as_link_addr() {
            // The kernel's numbers are positive and have 31 bits.
            link.index = found.ifindex() as u32;
        }
        let mask = entry.netmask.as_ref().and_then(ip_of);
        if let (Some(address), Some(mask)) = (ip_of(storage), mask) {
            let is_p2p = entry.flags.contains(InterfaceFlags::IFF_POINTOPOINT);
            let peer = entry.destination.as_ref().filter(|_| is_p2p);
            link.addresses.push(LinkAddress {
                address,
                mask,
                peer: peer.and_then(ip_of),
            });
        }
    }
    Ok(links.into_values().collect())
}

fn ip_of(storage: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = storage.as_sockaddr_in().map(|found| IpAddr::V4(found.ip()));
    v4.or_else(|| {
        let v6 = storage.as_sockaddr_in6();
        v6.map(|found| IpAddr::V6(found.ip()))
    })
}

/// Becomes readable when an interface or an address changes, appears or disappears.
#[derive(Debug)]
pub struct LinkWatch {
    socket: Socket,
}

/// `RTNLGRP_LINK`, `RTNLGRP_IPV4_IFADDR` and `RTNLGRP_IPV6_IFADDR`.
const GROUPS: [u32; 3] = [1, 5, 9];

impl LinkWatch {
    /// For the calling thread's network namespace, from now on.
    ///
    /// # Errors
    /// No netlink socket is available.
    pub fn open() -> io::Result<Self> {
        let socket = Socket::open(libc::NETLINK_ROUTE)?;
        for group in GROUPS {
            socket.join(group)?;
        }
        Ok(Self { socket })
    }

    /// Whether something has changed since the last call. Does not block.
    ///
    /// # Errors
    /// The socket is broken.
    pub fn changed(&mut self) -> io::Result<bool> {
        let mut changed = false;
        loop {
            match self.socket.receive(true) {
                Ok(messages) => match messages.count() {
                    0 => return Ok(changed),
                    _ => changed = true,
                },
                // Notifications were lost: the buffer was full.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => changed = true,
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsFd for LinkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(address: &str, mask: &str, peer: Option<&str>) -> Link {
        Link {
            addresses: vec![LinkAddress {
                address: address.parse().unwrap(),
                mask: mask.parse().unwrap(),
                peer: peer.map(|peer| peer.parse().unwrap()),
            }],
            ..Link::default()
        }
    }

    #[test]
    fn neighbours_of_the_same_prefix_are_reached_by_a_link() {
        let v6 = link("2001:db8::1", "ffff:ffff:ffff:ffff::", None);
        let v4 = link("192.0.2.1", "255.255.255.252", None);
        let p2p = link("10.0.0.1", "255.255.255.255", Some("10.9.9.9"));
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
    fn the_loopback_interface_is_listed() {
        let links = links().unwrap();
        let loopback = links.iter().find(|link| link.name == "lo").unwrap();
        assert!(loopback.index > 0);
        assert!(loopback.has("127.0.0.1".parse().unwrap()));
        assert!(LinkWatch::open().unwrap().changed().is_ok());
    }
}
