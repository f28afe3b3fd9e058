//! Which addresses count as those of one sender.

use std::net::IpAddr;

/// A host that has one IPv6 address usually has its whole /64.
pub(super) fn host(source: IpAddr) -> IpAddr {
    match source {
        IpAddr::V4(_) => source,
        IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() & !u128::from(u64::MAX)).into()),
    }
}

/// What one customer of a provider usually has at most: an IPv6 /48, an IPv4 /24.
pub(super) fn network(source: IpAddr) -> IpAddr {
    match source {
        IpAddr::V4(ip) => IpAddr::V4((ip.to_bits() & 0xffff_ff00).into()),
        IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() & !(u128::MAX >> 48)).into()),
    }
}
