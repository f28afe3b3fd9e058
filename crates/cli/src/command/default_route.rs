//! Default routes of this machine, and which addresses others reach.

use std::{fs, net::IpAddr};

use keiro_linux::interface::InterfaceAddress;

/// Whether peers elsewhere may reach it: private addresses too, since they may be in one network.
pub(super) fn is_global(address: &IpAddr) -> bool {
    let local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(local || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

/// A route to everywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DefaultRoute {
    interface: String,
    /// The next hop; `None`: the interface leads to one neighbour only.
    pub(super) via: Option<IpAddr>,
    v6: bool,
}

/// Those of the main table.
pub(super) fn default_routes() -> Vec<DefaultRoute> {
    // Absent without IPv4 or IPv6.
    let read = |file| fs::read_to_string(file).unwrap_or_default();
    let mut routes = default_routes_v4(&read("/proc/net/route"));
    routes.extend(default_routes_v6(&read("/proc/net/ipv6_route")));
    routes
}

impl DefaultRoute {
    #[cfg(test)]
    pub(super) fn new(interface: &str, via: Option<IpAddr>, v6: bool) -> Self {
        Self {
            interface: interface.to_owned(),
            via,
            v6,
        }
    }

    /// Whether it leaves by an interface, in IPv6 or in IPv4.
    pub(super) fn leads(&self, interface: &str, v6: bool) -> bool {
        self.interface == interface && self.v6 == v6
    }

    pub(super) fn is_of(&self, address: &InterfaceAddress) -> bool {
        self.leads(&address.interface, address.address.is_ipv6())
    }
}

/// RTF_UP and RTF_GATEWAY of `linux/route.h`.
const RTF_UP: u32 = 1;
const RTF_GATEWAY: u32 = 2;

/// Default routes of `/proc/net/route`: addresses are hexadecimal in the machine's byte order.
fn default_routes_v4(text: &str) -> Vec<DefaultRoute> {
    let route = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [interface, destination, gateway, flags, _, _, _, mask, ..] = fields[..] else {
            return None;
        };
        let number = |text| u32::from_str_radix(text, 16).ok();
        let flags = number(flags)?;
        let default = number(destination)? == 0 && number(mask)? == 0 && flags & RTF_UP != 0;
        let gateway = IpAddr::from(number(gateway)?.to_ne_bytes());
        default.then(|| DefaultRoute {
            interface: interface.to_owned(),
            via: (flags & RTF_GATEWAY != 0).then_some(gateway),
            v6: false,
        })
    };
    text.lines().skip(1).filter_map(route).collect()
}

/// Default routes of `/proc/net/ipv6_route`, which has no header. The kernel keeps one on `lo`
/// that refuses everything.
fn default_routes_v6(text: &str) -> Vec<DefaultRoute> {
    let route = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [
            destination,
            length,
            _,
            _,
            gateway,
            _,
            _,
            _,
            flags,
            interface,
        ] = fields[..]
        else {
            return None;
        };
        let flags = u32::from_str_radix(flags, 16).ok()?;
        let default = length == "00" && destination.bytes().all(|b| b == b'0');
        let gateway = IpAddr::from(u128::from_str_radix(gateway, 16).ok()?.to_be_bytes());
        (default && flags & RTF_UP != 0 && interface != "lo").then(|| DefaultRoute {
            interface: interface.to_owned(),
            via: (flags & RTF_GATEWAY != 0).then_some(gateway),
            v6: true,
        })
    };
    text.lines().filter_map(route).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(interface: &str, via: Option<&str>) -> DefaultRoute {
        let via = via.map(|via| via.parse::<IpAddr>().expect("an address"));
        DefaultRoute {
            interface: interface.to_owned(),
            via,
            v6: via.is_some_and(|via| via.is_ipv6()),
        }
    }

    // The bytes of 192.0.2.254 as a little-endian machine prints them.
    #[cfg(target_endian = "little")]
    #[test]
    fn default_routes_are_found_in_the_kernels_table() {
        let text = "\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\tFE0200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
ppp0\t00000000\t00000000\t0001\t0\t0\t0\t00000000\t0\t0\t0
eth9\t00000000\tFE0200C0\t0002\t0\t0\t0\t00000000\t0\t0\t0
broken\tline
";
        let expected = [route("eth0", Some("192.0.2.254")), route("ppp0", None)];
        assert_eq!(default_routes_v4(text), expected);
    }

    #[test]
    fn ipv6_default_routes_are_found_and_the_refusing_one_is_not() {
        let zero = "0".repeat(32);
        let gateway = "fe800000000000000000000000000001";
        let text = format!(
            "{zero} 00 {zero} 00 {gateway} 00000400 00000001 00000000 00000003 eth0\n\
             {zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200201 lo\n\
             fe80{} 40 {zero} 00 {zero} 00000100 00000001 00000000 00000001 eth0\n",
            "0".repeat(28)
        );
        assert_eq!(default_routes_v6(&text), [route("eth0", Some("fe80::1"))]);
    }
}
