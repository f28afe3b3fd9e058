//! The hash of nftables' expression `jhash`, so that a process knows which way a rule has decided.
//!
//! Bob Jenkins's `lookup3` (public domain, 2006) in the variant of Linux (`include/linux/jhash.h`), for
//! registers of nftables: every part of a concatenation is padded with zeros to four octets.

use std::net::IpAddr;

/// The value of `jhash ip6 saddr . tcp sport mod MODULUS seed SEED` for a packet, and that of `ip saddr` for one of
/// IPv4.
pub fn of_client(address: IpAddr, port: u16, seed: u32, modulus: u16) -> u16 {
    let mut key = [0; 20];
    let used = match address {
        IpAddr::V4(address) => {
            key[..4].copy_from_slice(&address.octets());
            4
        }
        IpAddr::V6(address) => {
            key[..16].copy_from_slice(&address.octets());
            16
        }
    };
    key[used..used + 2].copy_from_slice(&port.to_be_bytes());
    let scaled = (u64::from(jhash(&key[..used + 4], seed)) * u64::from(modulus)) >> 32;
    // Less than `modulus`.
    scaled as u16
}

/// Of twenty octets, a block of twelve and the last eight, or of eight alone.
fn jhash(key: &[u8], seed: u32) -> u32 {
    let word = |at: usize| u32::from_ne_bytes([key[at], key[at + 1], key[at + 2], key[at + 3]]);
    let start = START.wrapping_add(key.len() as u32).wrapping_add(seed);
    let (mut a, mut b, mut c) = (start, start, start);
    let last = key.len() - 8;
    if last > 0 {
        a = a.wrapping_add(word(0));
        b = b.wrapping_add(word(4));
        c = c.wrapping_add(word(8));
        mix(&mut a, b, &mut c, 4);
        mix(&mut b, c, &mut a, 6);
        mix(&mut c, a, &mut b, 8);
        mix(&mut a, b, &mut c, 16);
        mix(&mut b, c, &mut a, 19);
        mix(&mut c, a, &mut b, 4);
    }
    a = a.wrapping_add(word(last));
    b = b.wrapping_add(word(last + 4));
    for (by_c, by_a, by_b) in [(14, 11, 25), (16, 4, 14)] {
        c = (c ^ b).wrapping_sub(b.rotate_left(by_c));
        a = (a ^ c).wrapping_sub(c.rotate_left(by_a));
        b = (b ^ a).wrapping_sub(a.rotate_left(by_b));
    }
    (c ^ b).wrapping_sub(b.rotate_left(24))
}

fn mix(x: &mut u32, y: u32, z: &mut u32, by: u32) {
    *x = x.wrapping_sub(*z) ^ z.rotate_left(by);
    *z = z.wrapping_add(y);
}

/// `JHASH_INITVAL`.
const START: u32 = 0xdead_beef;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jhash_matches_the_kernel() {
        // Marks that a rule of Linux 6.18 has set with this seed.
        for (port, mark) in PORTS_AND_MARKS {
            let address = "2001:db8:1::1".parse().unwrap();
            assert_eq!(of_client(address, port, 0x1234, 1000), mark, "{port}");
        }
        for (port, mark) in IPV4_PORTS_AND_MARKS {
            let address = "192.0.2.77".parse().unwrap();
            assert_eq!(of_client(address, port, 0x1234, 1000), mark, "{port}");
        }
    }

    const PORTS_AND_MARKS: [(u16, u16); 3] = [(53179, 433), (38229, 736), (34123, 133)];
    const IPV4_PORTS_AND_MARKS: [(u16, u16); 3] = [(53179, 445), (40001, 809), (40002, 816)];
}
