//! IPv4 addresses within IPv6 ones: a translator or a tunnel on the way may deliver to them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Every address that a packet for `address` may arrive at: itself, and an IPv4 address that it embeds.
///
/// Embedded are those of IPv4-mapped (`::ffff:0:0/96`) and IPv4-compatible addresses (`::/96`, RFC 4291
/// §2.5.5), of NAT64 (`64:ff9b::/96`, RFC 6052 §2.1; `64:ff9b:1::/48`, RFC 8215) and of 6to4 (`2002::/16`,
/// RFC 3056 §2). An IPv4-mapped address is reached as IPv4 alone.
pub fn reached_by(address: IpAddr) -> Vec<IpAddr> {
    let IpAddr::V6(v6) = address else {
        return vec![address];
    };
    if let Some(mapped) = v6.to_ipv4_mapped() {
        return vec![mapped.into()];
    }
    let embedded = embedded_in(v6).into_iter().map(IpAddr::V4);
    [address].into_iter().chain(embedded).collect()
}

fn embedded_in(address: Ipv6Addr) -> Vec<Ipv4Addr> {
    let bytes = address.octets();
    let at = |places: [usize; 4]| Ipv4Addr::from(places.map(|place| bytes[place]));
    let last = at([12, 13, 14, 15]);
    match address.segments() {
        // `::` and `::1` are not IPv4-compatible.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => Vec::new(),
        [0, 0, 0, 0, 0, 0, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => vec![last],
        // The prefixes in it may have 48, 56, 64 or 96 bits, RFC 6052 §2.2; byte 8 is left out.
        [0x64, 0xff9b, 1, ..] => vec![
            at([6, 7, 9, 10]),
            at([7, 9, 10, 11]),
            at([9, 10, 11, 12]),
            last,
        ],
        [0x2002, ..] => vec![at([2, 3, 4, 5])],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_embedded_in_ipv6_is_found_in_every_form() {
        let loopback: IpAddr = "127.0.0.1".parse().unwrap();
        for address in [
            "::ffff:127.0.0.1",
            "::127.0.0.1",
            "64:ff9b::127.0.0.1",
            // RFC 6052 §2.2 with prefixes of 48, 56, 64 and 96 bits.
            "64:ff9b:1:7f00:0:100::",
            "64:ff9b:1:aa7f:0:1::",
            "64:ff9b:1:aaaa:7f:0:100:0",
            "64:ff9b:1:aaaa:bb:cc:127.0.0.1",
            "2002:7f00:1::1",
        ] {
            let reached = reached_by(address.parse().unwrap());
            assert!(reached.contains(&loopback), "{address}: {reached:?}");
        }
    }

    #[test]
    fn other_addresses_embed_none() {
        for address in ["192.0.2.1", "2001:db8::7f00:1", "::", "::1", "64:ff9a::1"] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(reached_by(address), [address]);
        }
    }
}
