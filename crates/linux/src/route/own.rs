//! Whether an address is local.

use std::{io, net::IpAddr};

use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage as Message,
    route::{RouteAddress, RouteAttribute, RouteMessage, RouteType},
};

use super::{message::LOOPBACK, netlink::Netlink};

/// Whether the kernel would now deliver a packet for `address` locally, or by multicast or broadcast also
/// locally, in this network namespace; with `interface` (an index), only by that one. Takes some 10 µs.
///
/// An unreachable address is not local. One that `lo` alone leads to is: for a moment after an IPv6 address was added,
/// the kernel has a route to it and does not deliver yet.
///
/// # Errors
/// The kernel does not answer.
pub fn is_own(address: IpAddr, interface: Option<u32>) -> io::Result<bool> {
    let mut message = RouteMessage::default();
    let (family, destination, bits) = match address {
        IpAddr::V4(address) => (AddressFamily::Inet, RouteAddress::Inet(address), 32),
        IpAddr::V6(address) => (AddressFamily::Inet6, RouteAddress::Inet6(address), 128),
    };
    message.header.address_family = family;
    message.header.destination_prefix_length = bits;
    message
        .attributes
        .push(RouteAttribute::Destination(destination));
    message
        .attributes
        .extend(interface.map(RouteAttribute::Oif));
    let answer = match Netlink::open()?.one(Message::GetRoute(message)) {
        Err(error) if is_no_route(&error) => return Ok(false),
        answer => answer?,
    };
    let Some(Message::NewRoute(route)) = answer else {
        return Err(io::Error::other("the kernel does not say where it leads"));
    };
    let is_by_loopback = route.attributes.contains(&RouteAttribute::Oif(LOOPBACK));
    Ok(is_by_loopback || !matches!(route.header.kind, RouteType::Unicast))
}

/// The kernel's errors for unreachable addresses.
fn is_no_route(error: &io::Error) -> bool {
    let unreachable = [
        libc::ENETUNREACH,
        libc::EHOSTUNREACH,
        libc::EACCES,
        libc::EINVAL,
        libc::ENODEV,
        libc::ENETDOWN,
    ];
    error
        .raw_os_error()
        .is_some_and(|number| unreachable.contains(&number))
}
