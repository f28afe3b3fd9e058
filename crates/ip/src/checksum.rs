//! The Internet checksum: sums (RFC 1071) and updates for a changed word (RFC 1624).

use crate::Version;

/// Ones' complement sum of 16-bit words.
///
/// It is kept in the machine's byte order, which does not affect the sum (RFC 1071 §2 (B)).
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct Sum(u64);

impl Sum {
    /// Adds `bytes` as words. Only the last call may have an odd number of bytes, which are padded with zero.
    #[inline]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        // 2^16 and 2^32 are both 1 modulo 2^16 - 1, so words may be added in pairs, and a carry out of 32
        // bits can wait: it would take four billion steps to overflow.
        let mut lanes = [0u64; 4];
        let (blocks, rest) = bytes.as_chunks::<16>();
        for block in blocks {
            let (words, _) = block.as_chunks::<4>();
            for (lane, word) in lanes.iter_mut().zip(words) {
                *lane += u64::from(u32::from_ne_bytes(*word));
            }
        }
        let (pairs, last) = rest.as_chunks::<2>();
        let mut sum = pairs
            .iter()
            .fold(0, |sum, pair| sum + u64::from(u16::from_ne_bytes(*pair)));
        if let [last] = last {
            sum += u64::from(u16::from_ne_bytes([*last, 0]));
        }
        let lanes = lanes.map(|lane| u64::from(fold(lane)));
        Self(self.0 + sum + lanes.iter().sum::<u64>())
    }

    #[inline]
    pub fn word(self, word: u16) -> Self {
        Self(self.0 + u64::from(word.to_be()))
    }

    /// Adds the pseudo header of TCP, UDP and ICMPv6 checksums (RFC 9293 §3.1, RFC 8200 §8.1): the addresses
    /// of `packet`, the protocol, and the segment's length in bytes.
    ///
    /// # Panics
    /// `packet` is shorter than the IP header of its version.
    #[inline]
    pub fn pseudo_header(self, version: Version, packet: &[u8], protocol: u8, bytes: u32) -> Self {
        let addresses = match version {
            Version::V4 => &packet[12..20],
            Version::V6 => &packet[8..40],
        };
        self.bytes(addresses)
            .bytes(&bytes.to_be_bytes())
            .word(protocol.into())
    }

    /// The checksum as in a header.
    #[inline]
    #[must_use]
    pub fn checksum(self) -> [u8; 2] {
        (!fold(self.0)).to_ne_bytes()
    }

    /// The sum, not complemented: the value of a checksum that is left to a device.
    #[inline]
    #[must_use]
    pub fn folded(self) -> [u8; 2] {
        fold(self.0).to_ne_bytes()
    }

    /// Whether bytes that include their checksum are intact.
    #[inline]
    #[must_use]
    pub fn is_valid(self) -> bool {
        fold(self.0) == u16::MAX
    }
}

/// The value of `checksum` after the aligned word `old` was replaced by `new` (RFC 1624 eq. 3).
#[inline]
#[must_use]
pub fn updated(checksum: [u8; 2], old: [u8; 2], new: [u8; 2]) -> [u8; 2] {
    let sum = u64::from(!u16::from_ne_bytes(checksum))
        + u64::from(!u16::from_ne_bytes(old))
        + u64::from(u16::from_ne_bytes(new));
    (!fold(sum)).to_ne_bytes()
}

#[inline]
fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + ((sum >> 16) & 0xffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// RFC 1071 §4.1, word by word.
    fn by_the_book(bytes: &[u8]) -> [u8; 2] {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        (!(sum as u16)).to_be_bytes()
    }

    #[test]
    fn checksum_matches_the_example_of_rfc_1071() {
        // RFC 1071 §3.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::default().bytes(&bytes).folded(), [0xdd, 0xf2]);
    }

    #[test]
    fn the_largest_sum_folds() {
        let bytes = vec![0xff; 70_000];
        assert_eq!(Sum::default().bytes(&bytes).checksum(), [0, 0]);
        assert_eq!(fold(u64::MAX), u16::MAX);
        assert_eq!(fold(0), 0);
    }

    #[test]
    fn an_update_equals_a_new_sum_for_every_word() {
        // RFC 1624 §4: a case in which eq. 2 of RFC 1141 is wrong.
        assert_eq!(
            updated([0xdd, 0x2f], [0x55, 0x55], [0x32, 0x85]),
            [0x00, 0x00]
        );
        for new in 0..=u16::MAX {
            let of = |word: u16| {
                let [a, b] = word.to_be_bytes();
                by_the_book(&[0x45, 0, a, b, 0x12, 0x34])
            };
            let old = 0x0640u16;
            assert_eq!(
                updated(of(old), old.to_be_bytes(), new.to_be_bytes()),
                of(new)
            );
        }
    }

    proptest! {
        #[test]
        fn sums_are_those_of_the_plain_algorithm(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
            prop_assert_eq!(Sum::default().bytes(&bytes).checksum(), by_the_book(&bytes));
        }

        #[test]
        fn sums_of_parts_add_up(bytes in prop::collection::vec(any::<u8>(), 0..300), at in 0usize..150) {
            let at = (at * 2).min(bytes.len() & !1);
            let (first, second) = bytes.split_at(at);
            prop_assert_eq!(
                Sum::default().bytes(first).bytes(second).checksum(),
                by_the_book(&bytes)
            );
        }
    }
}
