//! The hop limit.

use crate::{
    Version,
    packet::{replace_v4_word, word},
};

/// The hop limit is exhausted; the sender gets [`crate::icmp::Reason::HopLimitExceeded`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("hop limit exceeded")]
pub struct HopLimitExceeded;

/// Decrements the hop limit or time to live of `packet`, which [`crate::Header::parse`] has accepted (RFC
/// 1812 §5.3.1, RFC 8200 §3). A tunnel is one hop, so only one of its ends does this.
///
/// # Errors
/// The hop limit would be zero; `packet` is unchanged.
///
/// # Panics
/// `packet` is shorter than an IP header.
#[inline]
pub fn decrement(packet: &mut [u8], version: Version) -> Result<(), HopLimitExceeded> {
    let at = match version {
        Version::V4 => 8,
        Version::V6 => 7,
    };
    let left = packet[at].saturating_sub(1);
    if left == 0 {
        return Err(HopLimitExceeded);
    }
    match version {
        Version::V4 => {
            let [_, protocol] = word(packet, 8).to_be_bytes();
            replace_v4_word(packet, 8, [left, protocol]);
        }
        Version::V6 => packet[at] = left,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Header, packet::sample};

    #[test]
    fn ttl_is_decremented_with_a_valid_checksum_until_the_last_hop() {
        for version in [Version::V4, Version::V6] {
            let mut packet = sample::udp(version, b"payload");
            let first = Header::parse(&packet).unwrap().hop_limit;
            for left in (1..first).rev() {
                decrement(&mut packet, version).unwrap();
                assert_eq!(Header::parse(&packet).unwrap().hop_limit, left);
            }
            let last = packet.clone();
            assert_eq!(decrement(&mut packet, version), Err(HopLimitExceeded));
            assert_eq!(packet, last);
            // A packet with a limit of zero should not have been sent at all.
            match version {
                Version::V4 => replace_v4_word(&mut packet, 8, [0, last[9]]),
                Version::V6 => packet[7] = 0,
            }
            assert_eq!(decrement(&mut packet, version), Err(HopLimitExceeded));
        }
    }
}
