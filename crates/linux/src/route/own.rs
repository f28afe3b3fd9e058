//! Whether packets for an address stay on this machine.

use std::{io, net::IpAddr};

use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage as Message,
    route::{RouteAddress, RouteAttribute, RouteMessage, RouteType},
};

use super::netlink::Netlink;

/// Whether the kernel would deliver a packet for `address` to this machine itself, or to several machines this one
/// among them, from this network namespace and now; by `interface` (its number) alone if one is given. Some 10 µs.
///
/// An address to which nothing leads is not this machine's.
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
        Err(error) if is_no_way(&error) => return Ok(false),
        answer => answer?,
    };
    let Some(Message::NewRoute(route)) = answer else {
        return Err(io::Error::other("the kernel does not say where it leads"));
    };
    Ok(!matches!(route.header.kind, RouteType::Unicast))
}

/// What the kernel says of addresses to which it sends nothing.
fn is_no_way(error: &io::Error) -> bool {
    let ways = [
        libc::ENETUNREACH,
        libc::EHOSTUNREACH,
        libc::EACCES,
        libc::EINVAL,
        libc::ENODEV,
        libc::ENETDOWN,
    ];
    error
        .raw_os_error()
        .is_some_and(|number| ways.contains(&number))
}
