//! Networks that a TCP forward may connect to.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use ipnet::IpNet;
use keiro_config::{ValueError, shown, string};
use toml::de::DeValue;

use super::{
    embedded::reached_by,
    tenant::confined,
    values::{is_broadcast, local_kind},
};

/// Addresses with a common prefix, at one port or at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    addresses: IpNet,
    port: Option<u16>,
}

/// Networks of one forward; more are refused. Ours: they are looked through for every connection.
const NETWORKS_MAX: usize = 64;

impl Network {
    /// Whether `target` is one of its addresses, at its port if it names one.
    pub fn contains(&self, target: SocketAddr) -> bool {
        self.addresses.contains(&target.ip()) && self.port.is_none_or(|port| port == target.port())
    }

    /// It is a single address, named as such.
    pub fn is_one_address(&self) -> bool {
        self.addresses.prefix_len() == self.addresses.max_prefix_len()
    }

    /// All its addresses, whatever the port.
    pub fn addresses(&self) -> IpNet {
        self.addresses
    }

    /// Its address; the lowest one if there are several.
    pub fn address(&self) -> IpAddr {
        self.addresses.addr()
    }

    /// The port that it names.
    pub(super) fn port(&self) -> Option<u16> {
        self.port
    }

    fn parse(text: &str) -> Result<Self, ValueError> {
        let wrong = || {
            ValueError::new(
                format!("`{}` is not a network", shown(text)),
                "write \"10.1.0.0/16\", \"10.1.0.0/16:443\" or \"[2001:db8::/32]:443\"",
            )
        };
        let (network, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (network, port) = rest.split_once(']').ok_or_else(wrong)?;
                (network, Some(port.strip_prefix(':').ok_or_else(wrong)?))
            }
            // Without brackets more than one colon is part of an IPv6 address.
            None => match text.split_once(':') {
                Some((network, port)) if !port.contains(':') => (network, Some(port)),
                _ => (text, None),
            },
        };
        let addresses: IpNet = network.parse().map_err(|_| wrong())?;
        let port: Option<u16> = port.map(str::parse).transpose().map_err(|_| wrong())?;
        if port == Some(0) {
            return Err(wrong());
        }
        if addresses.trunc() != addresses {
            let (lowest, bits) = (addresses.trunc(), addresses.max_prefix_len());
            return Err(ValueError::new(
                format!("`{}` has bits set behind its prefix", shown(text)),
                format!("write \"{lowest}\", or /{bits} for this address alone"),
            ));
        }
        if let Some((kind, hint)) = why_never_reached(&addresses) {
            let message = format!("`{}` is {kind}, and nothing in it is reached", shown(text));
            return Err(ValueError::new(message, hint));
        }
        Ok(Self { addresses, port })
    }
}

/// All addresses of `addresses`, at any port.
impl From<IpNet> for Network {
    fn from(addresses: IpNet) -> Self {
        Self {
            addresses: addresses.trunc(),
            port: None,
        }
    }
}

/// Why [`admits`] refuses every address of a network, and what to write instead. For a single address only
/// its form is judged, because the forward may allow it.
fn why_never_reached(addresses: &IpNet) -> Option<(&'static str, String)> {
    let kind = confined(addresses)?;
    if let IpAddr::V6(address) = addresses.addr()
        && let Some(v4) = address.to_ipv4_mapped()
    {
        let bits = addresses.prefix_len().saturating_sub(96);
        return Some((kind, format!("write \"{v4}/{bits}\"")));
    }
    let bits = addresses.max_prefix_len();
    let hint = match local_kind(addresses.addr()) {
        _ if addresses.prefix_len() == bits => return None,
        Some(_) if !addresses.addr().is_multicast() => {
            format!("name single addresses, as /{bits}, with allow_local = true")
        }
        _ => "leave it out".to_owned(),
    };
    Some((kind, hint))
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.port, self.addresses) {
            (None, addresses) => write!(f, "{addresses}"),
            (Some(port), IpNet::V4(addresses)) => write!(f, "{addresses}:{port}"),
            (Some(port), IpNet::V6(addresses)) => write!(f, "[{addresses}]:{port}"),
        }
    }
}

/// Whether a forward to `networks` may connect to `target`. What a machine keeps for itself
/// (loopback, link-local and multicast addresses, and what `is_own` says is its) only with `allow_local`, and
/// only if a network names that address alone.
pub fn admits(
    networks: &[Network],
    target: SocketAddr,
    allow_local: bool,
    is_own: impl FnMut(IpAddr) -> bool,
) -> bool {
    // An IPv4 address within an IPv6 one is reached as what it is.
    let ip = target.ip().to_canonical();
    let target = SocketAddr::new(ip, target.port());
    let reached = reached_by(ip);
    let is_nowhere =
        |ip: &IpAddr| ip.is_unspecified() || is_broadcast(&SocketAddr::new(*ip, target.port()));
    if reached.iter().any(is_nowhere) || target.port() == 0 {
        return false;
    }
    if allow_local && names_alone(networks, target) {
        return true;
    }
    networks.iter().any(|network| network.contains(target))
        && local_kind(ip).is_none()
        && !reached.into_iter().any(is_own)
}

/// Whether one of `networks` is the address of `target` alone, at its port or at all.
pub fn names_alone(networks: &[Network], target: SocketAddr) -> bool {
    // An IPv4 address within an IPv6 one is reached as what it is.
    let target = SocketAddr::new(target.ip().to_canonical(), target.port());
    let mut admitting = networks.iter().filter(|network| network.contains(target));
    admitting.any(Network::is_one_address)
}

/// A list of networks, not empty.
pub(super) fn networks(value: &DeValue<'_>) -> Result<Vec<Network>, ValueError> {
    let DeValue::Array(entries) = value else {
        return Err(ValueError::new(
            "must be a list",
            "write [\"10.1.0.0/16\", \"10.2.0.0/16:443\"]",
        ));
    };
    if entries.is_empty() || entries.len() > NETWORKS_MAX {
        return Err(ValueError::new(
            format!("must have 1 to {NETWORKS_MAX} networks"),
            "name those that the peer's clients may reach",
        ));
    }
    entries
        .iter()
        .map(|entry| Network::parse(string(entry.get_ref())?))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        match Network::parse(text) {
            Ok(network) => network,
            Err(_) => panic!("{text}"),
        }
    }

    #[test]
    fn networks_round_trip_as_text() {
        for text in [
            "10.1.0.0/16",
            "10.1.0.0/16:443",
            "0.0.0.0/0",
            "192.0.2.7/32:80",
            "2001:db8::/32",
            "[2001:db8::/32]:443",
            "::/0",
        ] {
            assert_eq!(network(text).to_string(), text);
        }
    }

    #[test]
    fn invalid_networks_are_refused() {
        for text in [
            "",
            "10.1.0.0",
            "10.1.0.0/33",
            "10.1.2.3/16",
            "10.1.0.0/16:0",
            "10.1.0.0/16:99999",
            "[2001:db8::/32]",
            "2001:db8::1/32",
            "host/8",
            "10.0.0.0/-1",
            // Nothing in them is ever reached.
            "127.0.0.0/8",
            "169.254.0.0/16:80",
            "224.0.0.0/4",
            "fe80::/10",
            "::ffff:10.0.0.0/104",
            "::ffff:10.0.0.1/128",
        ] {
            assert!(Network::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn local_addresses_are_reached_only_if_named_one_by_one() {
        let own: IpAddr = "10.1.0.1".parse().unwrap();
        let all = [network("0.0.0.0/0"), network("::/0")];
        let one = [network("127.0.0.1/32"), network("10.1.0.1/32")];
        let reached = |networks: &[Network], target: &str, allow_local| {
            admits(networks, target.parse().unwrap(), allow_local, |ip| {
                ip == own
            })
        };
        assert!(reached(&all, "10.1.0.2:80", false));
        for target in [
            "127.0.0.1:80",
            "169.254.169.254:80",
            "10.1.0.1:80",
            "[::1]:80",
            "[fe80::1]:80",
            "0.0.0.0:80",
            "255.255.255.255:80",
            "10.1.0.2:0",
            "224.0.0.1:80",
            "[::ffff:127.0.0.1]:80",
            "[::ffff:169.254.169.254]:80",
            "[::ffff:10.1.0.1]:80",
            "[::ffff:0.0.0.0]:80",
            "[64:ff9b::127.0.0.1]:80",
            "[64:ff9b::169.254.169.254]:80",
            "[64:ff9b::10.1.0.1]:80",
            "[64:ff9b::0.0.0.0]:80",
            "[64:ff9b:1:7f00:0:100::]:80",
            "[64:ff9b:1::10.1.0.1]:80",
            "[2002:7f00:1::1]:80",
            "[2002:a01:1::1]:80",
            "[::127.0.0.1]:80",
        ] {
            assert!(!reached(&all, target, false), "{target}");
            assert!(!reached(&all, target, true), "{target}");
        }
        assert!(reached(&all, "[::ffff:10.1.0.2]:80", false));
        assert!(reached(&all, "[64:ff9b::10.1.0.2]:80", false));
        assert!(reached(&all, "[2002:a01:2::1]:80", false));
        assert!(!reached(&all[1..], "[::ffff:10.1.0.2]:80", false));
        for target in ["127.0.0.1:80", "10.1.0.1:80"] {
            assert!(!reached(&one, target, false), "{target}");
            assert!(reached(&one, target, true), "{target}");
        }
    }

    #[test]
    fn network_contains_its_addresses_at_its_port_only() {
        let all = |text: &str| text.parse::<SocketAddr>().unwrap();
        let web = network("10.1.0.0/16:443");
        assert!(web.contains(all("10.1.255.7:443")));
        assert!(!web.contains(all("10.1.255.7:80")));
        assert!(!web.contains(all("10.2.0.0:443")));
        assert!(network("0.0.0.0/0").contains(all("192.0.2.1:1")));
        assert!(!network("0.0.0.0/0").contains(all("[2001:db8::1]:1")));
        assert!(network("::/0").contains(all("[2001:db8::1]:1")));
        assert!(network("192.0.2.7/32").is_one_address());
    }

    #[test]
    fn single_address_is_named_at_its_port_only() {
        let named = |text: &str| {
            names_alone(
                &[network("0.0.0.0/0"), network(text)],
                "127.0.0.1:80".parse().unwrap(),
            )
        };
        assert!(named("127.0.0.1/32"));
        assert!(named("127.0.0.1/32:80"));
        assert!(!named("127.0.0.1/32:81"));
        assert!(!named("127.0.0.2/32"));
        let mapped = "[::ffff:127.0.0.1]:80".parse().unwrap();
        assert!(names_alone(&[network("127.0.0.1/32")], mapped));
    }
}
