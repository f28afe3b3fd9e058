//! An IP address with a prefix length.

use std::{fmt, net::IpAddr, str::FromStr};

/// An address and a prefix length, as in `192.0.2.1/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

/// Why a text is not a prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrefixError {
    /// The prefix length is missing.
    #[error("`{0}` has no prefix length; write it as in \"192.0.2.1/24\"")]
    NoLength(String),
    /// The part before the slash.
    #[error("`{0}` is not an IP address")]
    Address(String),
    /// The part behind the slash.
    #[error("`{0}`: the prefix length must be a number from 0 to {1}")]
    Length(String, u8),
}

impl Prefix {
    /// The prefix of all addresses: the destination of a default route.
    pub fn everything_like(address: IpAddr) -> Self {
        let address = match address {
            IpAddr::V4(_) => IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED),
        };
        Self { address, length: 0 }
    }

    /// The address, host part included.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Number of bits of the network part.
    pub fn length(&self) -> u8 {
        self.length
    }

    /// Whether `address` lies in the network.
    pub fn contains(&self, address: IpAddr) -> bool {
        is_v4(self.address) == is_v4(address)
            && network(self.address, self.length) == network(address, self.length)
    }

    /// Whether the host part is zero, as required of a route's destination.
    pub fn is_network(&self) -> bool {
        network(self.address, self.length) == bits(self.address)
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let (address, length) = text
            .split_once('/')
            .ok_or_else(|| PrefixError::NoLength(text.into()))?;
        let address: IpAddr = address
            .parse()
            .map_err(|_| PrefixError::Address(address.into()))?;
        let max = if is_v4(address) { 32 } else { 128 };
        match length.parse() {
            Ok(length) if length <= max => Ok(Self { address, length }),
            _ => Err(PrefixError::Length(text.into(), max)),
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

fn is_v4(address: IpAddr) -> bool {
    address.is_ipv4()
}

/// The address as a number, with IPv4 in the upper bits so that both families shift alike.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

fn network(address: IpAddr, length: u8) -> u128 {
    let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
    bits(address) & mask
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    #[test]
    fn network_holds_its_addresses_and_no_others() {
        assert!(prefix("192.0.2.1/24").contains("192.0.2.200".parse().unwrap()));
        assert!(!prefix("192.0.2.1/25").contains("192.0.2.200".parse().unwrap()));
        assert!(prefix("2001:db8::1/64").contains("2001:db8::ff".parse().unwrap()));
        assert!(!prefix("0.0.0.0/0").contains("2001:db8::ff".parse().unwrap()));
        assert!(prefix("0.0.0.0/0").is_network());
        assert!(prefix("192.0.2.128/25").is_network());
        assert!(!prefix("192.0.2.1/25").is_network());
        assert!(prefix("192.0.2.1/32").is_network());
    }

    #[test]
    fn broken_prefixes_are_refused() {
        for text in [
            "",
            "192.0.2.1",
            "192.0.2.1/33",
            "2001:db8::/129",
            "x/24",
            "192.0.2.1/-1",
        ] {
            assert!(text.parse::<Prefix>().is_err(), "{text}");
        }
        assert_eq!(prefix("192.0.2.1/24").to_string(), "192.0.2.1/24");
    }
}
