//! Addresses that no peer can have.

use std::net::IpAddr;

/// Why packets to an address reach no peer; `None`: they may. `own`: this machine's addresses.
pub(super) fn refusal(ip: IpAddr, own: &[IpAddr]) -> Option<&'static str> {
    if ip.is_unspecified() {
        return Some("no machine's address");
    }
    if ip.is_loopback() {
        return Some("a loopback address");
    }
    if ip.is_multicast() {
        return Some("a multicast address");
    }
    let (is_broadcast, is_link_local, is_nowhere) = match ip {
        IpAddr::V4(v4) => (v4.is_broadcast(), v4.is_link_local(), v4.octets()[0] == 0),
        // Of which link is not known.
        IpAddr::V6(v6) => (false, v6.is_unicast_link_local(), false),
    };
    if is_broadcast {
        return Some("a broadcast address");
    }
    if is_link_local {
        return Some("a link-local address");
    }
    if is_nowhere {
        return Some("no machine's address");
    }
    own.contains(&ip).then_some("this gateway's own address")
}
