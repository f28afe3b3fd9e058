//! Network interfaces of this namespace: addresses, index and MTU.

use std::{
    fmt, io,
    net::{IpAddr, UdpSocket},
    os::fd::AsRawFd,
};

use nix::{
    ifaddrs::getifaddrs,
    net::if_::{InterfaceFlags, if_indextoname, if_nametoindex},
};
use socket2::Socket;

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    pub interface: String,
    pub address: IpAddr,
    /// The interface is up and has a carrier.
    pub running: bool,
}

/// Every address of every interface, in the kernel's order.
///
/// # Errors
/// Those of `getifaddrs(3)`.
pub fn addresses() -> io::Result<Vec<InterfaceAddress>> {
    let running = InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING;
    let of = |entry: nix::ifaddrs::InterfaceAddress| {
        let storage = entry.address?;
        let v4 = storage.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        let v6 = || storage.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip()));
        Some(InterfaceAddress {
            interface: entry.interface_name,
            address: v4.or_else(v6)?,
            running: entry.flags.contains(running),
        })
    };
    Ok(getifaddrs()?.filter_map(of).collect())
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

/// Largest IP packet that `interface` takes, in bytes.
///
/// # Errors
/// There is no such interface.
pub fn mtu(interface: &str) -> io::Result<u32> {
    let socket = UdpSocket::bind("127.0.0.1:0").or_else(|_| UdpSocket::bind("[::1]:0"))?;
    // SAFETY: an all-zero ifreq is a valid one without a name.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let name = interface.as_bytes();
    // One byte remains zero: the kernel wants a terminated name.
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    // SAFETY: SIOCGIFMTU reads the name of the ifreq and writes its MTU.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has just filled this member of the union.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    u32::try_from(mtu).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// Length of the link-layer header on `interface`, in bytes: 14 on Ethernet, none on IP tunnels.
///
/// # Errors
/// There is no such interface, or it is of an unknown kind.
pub fn link_header_bytes(interface: &str) -> io::Result<u32> {
    let mut all = getifaddrs()?.filter(|entry| entry.interface_name == interface);
    let kind = all.find_map(|entry| Some(entry.address?.as_link_addr()?.hatype()));
    match kind.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))? {
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

/// The MTU of the interface that has `address`; `None` if none has.
///
/// # Errors
/// Those of [`addresses`] and [`mtu`].
pub fn mtu_of_address(address: IpAddr) -> io::Result<Option<u32>> {
    let all = addresses()?;
    let Some(found) = all.iter().find(|a| a.address == address) else {
        // Every address of 127.0.0.0/8 belongs to the loopback interface, listed or not.
        return match address.is_loopback() {
            true => mtu("lo").map(Some),
            false => Ok(None),
        };
    };
    mtu(&found.interface).map(Some)
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
    use super::*;

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
