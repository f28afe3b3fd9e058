//! Address families, route distinguishers, route targets and destinations.

use std::{
    cmp::Ordering,
    fmt,
    net::{IpAddr, Ipv4Addr},
    str::FromStr,
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// An address family for which the speaker exchanges routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4 unicast (AFI 1, SAFI 1).
    Ipv4,
    /// IPv6 unicast (AFI 2, SAFI 1).
    Ipv6,
    /// Labelled VPN-IPv6 (AFI 2, SAFI 128; RFC 4659).
    Vpn6,
    /// Labelled VPN-IPv4 (AFI 1, SAFI 128; RFC 4364).
    Vpn4,
}

/// Distinguishes routes to one prefix from several egress peers (RFC 4364 §4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteDistinguisher(pub u64);

/// The extended community that selects the VRFs that import a VPN route (RFC 4360 §4), as on the
/// wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteTarget(pub u64);

/// The text is neither a route distinguisher nor a route target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write it as ASN:NUMBER or IPV4:NUMBER, for example 65000:1 or 192.0.2.1:7")]
pub struct AdministratorError;

/// A destination: the key of the RIB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Destination {
    /// An IPv4 prefix.
    V4(Ipv4Net),
    /// An IPv6 prefix.
    V6(Ipv6Net),
    /// An IPv6 prefix of one VPN.
    Vpn6(RouteDistinguisher, Ipv6Net),
    /// An IPv4 prefix of one VPN.
    Vpn4(RouteDistinguisher, Ipv4Net),
}

impl Ord for Destination {
    /// By family, route distinguisher, address and length.
    fn cmp(&self, other: &Self) -> Ordering {
        self.sort_key().cmp(&other.sort_key())
    }
}

impl PartialOrd for Destination {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Family {
    pub const ALL: [Self; 4] = [Self::Ipv4, Self::Ipv6, Self::Vpn6, Self::Vpn4];

    /// The address family's number (IANA).
    pub const fn afi(self) -> u16 {
        match self {
            Self::Ipv4 | Self::Vpn4 => 1,
            Self::Ipv6 | Self::Vpn6 => 2,
        }
    }

    /// The subsequent address family's number (IANA).
    pub const fn safi(self) -> u8 {
        match self {
            Self::Ipv4 | Self::Ipv6 => 1,
            Self::Vpn6 | Self::Vpn4 => 128,
        }
    }

    /// Whether its routes belong to VPNs.
    pub const fn is_vpn(self) -> bool {
        matches!(self, Self::Vpn6 | Self::Vpn4)
    }

    /// The family with these numbers; `None`: the speaker does not support it.
    pub fn of(afi: u16, safi: u8) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|family| family.afi() == afi && family.safi() == safi)
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ipv4 => "ipv4",
            Self::Ipv6 => "ipv6",
            Self::Vpn6 => "vpnv6",
            Self::Vpn4 => "vpnv4",
        })
    }
}

impl Destination {
    /// A sort key of plain integers. Comparing addresses group by group takes twice as long, and a
    /// RIB with hundreds of thousands of destinations does little but compare.
    fn sort_key(&self) -> (u8, u64, u128, u8) {
        match self {
            Self::V4(net) => (0, 0, net.addr().to_bits().into(), net.prefix_len()),
            Self::V6(net) => (1, 0, net.addr().to_bits(), net.prefix_len()),
            Self::Vpn6(rd, net) => (2, rd.0, net.addr().to_bits(), net.prefix_len()),
            Self::Vpn4(rd, net) => (3, rd.0, net.addr().to_bits().into(), net.prefix_len()),
        }
    }

    pub const fn family(&self) -> Family {
        match self {
            Self::V4(_) => Family::Ipv4,
            Self::V6(_) => Family::Ipv6,
            Self::Vpn6(..) => Family::Vpn6,
            Self::Vpn4(..) => Family::Vpn4,
        }
    }

    /// The prefix, without the VPN it belongs to.
    pub const fn prefix(&self) -> IpNet {
        match self {
            Self::V4(net) | Self::Vpn4(_, net) => IpNet::V4(*net),
            Self::V6(net) | Self::Vpn6(_, net) => IpNet::V6(*net),
        }
    }

    /// The unicast destination of a prefix; bits beyond the prefix length are cleared.
    pub fn unicast(prefix: IpNet) -> Self {
        match prefix.trunc() {
            IpNet::V4(net) => Self::V4(net),
            IpNet::V6(net) => Self::V6(net),
        }
    }

    /// The destination of a prefix in a VPN; bits beyond the prefix length are cleared.
    pub fn vpn(rd: RouteDistinguisher, prefix: IpNet) -> Self {
        match prefix.trunc() {
            IpNet::V4(net) => Self::Vpn4(rd, net),
            IpNet::V6(net) => Self::Vpn6(rd, net),
        }
    }

    /// The least destination of a VPN, for each family.
    pub fn first_of_vpn(rd: RouteDistinguisher) -> [Self; 2] {
        [
            Self::Vpn6(rd, Ipv6Net::default()),
            Self::Vpn4(rd, Ipv4Net::default()),
        ]
    }

    /// The route distinguisher; `None`: it is not of a VPN.
    pub const fn distinguisher(&self) -> Option<RouteDistinguisher> {
        match self {
            Self::V4(_) | Self::V6(_) => None,
            Self::Vpn6(rd, _) | Self::Vpn4(rd, _) => Some(*rd),
        }
    }

    pub const fn is_vpn(&self) -> bool {
        self.distinguisher().is_some()
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4(net) => net.fmt(f),
            Self::V6(net) => net.fmt(f),
            Self::Vpn6(rd, net) => write!(f, "{rd} {net}"),
            Self::Vpn4(rd, net) => write!(f, "{rd} {net}"),
        }
    }
}

impl FromStr for RouteDistinguisher {
    type Err = AdministratorError;

    fn from_str(text: &str) -> Result<Self, AdministratorError> {
        let (kind, value) = parse_administrator(text)?;
        Ok(Self(u64::from(kind) << 48 | value))
    }
}

impl fmt::Display for RouteDistinguisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_administrator((self.0 >> 48) as u16, self.0, f)
    }
}

impl RouteTarget {
    /// The route target in an extended community; `None`: it is a community of another kind.
    pub fn of_community(community: u64) -> Option<Self> {
        let [kind, subtype, ..] = community.to_be_bytes();
        (kind <= 2 && subtype == ROUTE_TARGET).then_some(Self(community))
    }
}

impl FromStr for RouteTarget {
    type Err = AdministratorError;

    fn from_str(text: &str) -> Result<Self, AdministratorError> {
        let (kind, value) = parse_administrator(text)?;
        let head = kind << 8 | u16::from(ROUTE_TARGET);
        Ok(Self(u64::from(head) << 48 | value))
    }
}

impl fmt::Display for RouteTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_administrator((self.0 >> 56) as u16, self.0, f)
    }
}

/// The sub-type of a route target (RFC 4360 §4).
const ROUTE_TARGET: u8 = 0x02;

/// Returns the type and the six value octets (RFC 4364 §4.2, RFC 4360 §3, RFC 5668).
fn parse_administrator(text: &str) -> Result<(u16, u64), AdministratorError> {
    let (left, right) = text.rsplit_once(':').ok_or(AdministratorError)?;
    if let Ok(address) = left.parse::<Ipv4Addr>() {
        let number: u16 = right.parse().map_err(|_| AdministratorError)?;
        return Ok((1, u64::from(u32::from(address)) << 16 | u64::from(number)));
    }
    let asn: u32 = left.parse().map_err(|_| AdministratorError)?;
    match u16::try_from(asn) {
        Ok(asn) => {
            let number: u32 = right.parse().map_err(|_| AdministratorError)?;
            Ok((0, u64::from(asn) << 32 | u64::from(number)))
        }
        Err(_) => {
            let number: u16 = right.parse().map_err(|_| AdministratorError)?;
            Ok((2, u64::from(asn) << 16 | u64::from(number)))
        }
    }
}

fn fmt_administrator(kind: u16, value: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let value = value & 0xffff_ffff_ffff;
    match kind {
        0 => write!(f, "{}:{}", value >> 32, value & 0xffff_ffff),
        1 => {
            let address = Ipv4Addr::from((value >> 16) as u32);
            write!(f, "{}:{}", IpAddr::V4(address), value & 0xffff)
        }
        2 => write!(f, "{}:{}", value >> 16, value & 0xffff),
        _ => write!(f, "{kind}:0x{value:012x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn route_distinguishers_and_targets_round_trip_as_text() {
        for text in ["65000:1", "192.0.2.1:7", "4200000000:9", "0:4294967295"] {
            assert_eq!(
                text.parse::<RouteDistinguisher>().unwrap().to_string(),
                text
            );
            let target: RouteTarget = text.parse().unwrap();
            assert_eq!(target.to_string(), text);
            assert_eq!(RouteTarget::of_community(target.0), Some(target));
        }
        assert_eq!("65000:1".parse(), Ok(RouteTarget(0x0002_fde8_0000_0001)));
        for text in ["65000", "a:1", "192.0.2.1:65536", "4200000000:65536"] {
            assert!(text.parse::<RouteDistinguisher>().is_err(), "{text}");
        }
        assert_eq!(RouteTarget::of_community(0x0003_0000_0000_0001), None);
    }

    #[test]
    fn nlri_is_ordered_by_family_distinguisher_and_prefix() {
        let v4 = |net: &str| Destination::V4(net.parse().unwrap());
        let v6 = |net: &str| Destination::V6(net.parse().unwrap());
        let vpn = |rd, net: &str| Destination::Vpn6(RouteDistinguisher(rd), net.parse().unwrap());
        let vpn4 = |rd, net: &str| Destination::Vpn4(RouteDistinguisher(rd), net.parse().unwrap());
        let sorted = [
            v4("0.0.0.0/0"),
            v4("10.0.0.0/8"),
            v4("10.0.0.0/9"),
            v4("192.0.2.0/24"),
            v6("::/0"),
            v6("2001:db8::/32"),
            v6("2001:db8::/48"),
            v6("2001:db8:0:1::/64"),
            v6("ff00::/8"),
            vpn(1, "::/0"),
            vpn(1, "ff00::/8"),
            vpn(2, "::/0"),
            vpn(u64::MAX, "2001:db8::/32"),
            vpn4(1, "0.0.0.0/0"),
            vpn4(2, "10.0.0.0/8"),
        ];
        for (place, one) in sorted.iter().enumerate() {
            for (other_place, other) in sorted.iter().enumerate() {
                assert_eq!(one.cmp(other), place.cmp(&other_place), "{one} {other}");
            }
        }
    }
}
