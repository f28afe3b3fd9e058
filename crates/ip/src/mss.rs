//! MSS clamping of TCP SYNs, so that segments fit the tunnel at once and need no Packet Too Big, which many
//! firewalls drop.

use crate::{
    Header, Version, checksum,
    packet::{V4_HEADER_BYTES, V6_HEADER_BYTES, protocol, set_word, word},
};

const TCP_HEADER_BYTES: usize = 20;
const SYN: u8 = 0x02;
/// Linux's minimum (`TCP_MIN_MSS`), in bytes.
const MSS_MIN: u16 = 88;

/// Lowers the maximum segment size option of a SYN in `packet` to what fits into `mtu` bytes of IP packet
/// without options (RFC 6691), and updates the checksum (RFC 1624). `header` is the result of
/// [`Header::parse`] for `packet`. Returns the original value; `None` if nothing was lowered: not a SYN, no
/// such option (none is added), or a value that fits. Never lowers it below 88 bytes, which no real MTU
/// requires.
///
/// The packet's checksum must be complete: [`crate::offload::Segments`] finishes that of a SYN that a device
/// left unfinished.
///
/// # Panics
/// `packet` is not the one that `header` was parsed from.
pub fn clamp(packet: &mut [u8], header: &Header, mtu: u16) -> Option<u16> {
    if header.protocol != protocol::TCP || !header.is_first() {
        return None;
    }
    let tcp = &mut packet[header.transport..];
    if tcp.len() < TCP_HEADER_BYTES || tcp[13] & SYN == 0 {
        return None;
    }
    let at = position(tcp)?;
    let offered = word(tcp, at);
    let headers = match header.version() {
        Version::V4 => V4_HEADER_BYTES + TCP_HEADER_BYTES,
        Version::V6 => V6_HEADER_BYTES + TCP_HEADER_BYTES,
    };
    let fits = mtu.saturating_sub(headers as u16).max(MSS_MIN);
    if offered <= fits {
        return None;
    }
    replace(tcp, at, fits);
    Some(offered)
}

/// Offset of the option's value in the TCP header `tcp`.
fn position(tcp: &[u8]) -> Option<usize> {
    const END: u8 = 0;
    const NO_OPERATION: u8 = 1;
    const MAXIMUM_SEGMENT_SIZE: u8 = 2;
    let end = usize::from(tcp[12] >> 4) * 4;
    let options = tcp.get(..end)?;
    let mut at = TCP_HEADER_BYTES;
    loop {
        at += match *options.get(at)? {
            END => return None,
            NO_OPERATION => 1,
            kind => {
                let length = usize::from(*options.get(at + 1)?);
                if length < 2 || at + length > end {
                    return None;
                }
                if kind == MAXIMUM_SEGMENT_SIZE {
                    return (length == 4).then_some(at + 2);
                }
                length
            }
        };
    }
}

/// Options may begin anywhere, so the value may span two words of the checksum.
fn replace(tcp: &mut [u8], at: usize, value: u16) {
    let start = at & !1;
    let end = (at + 3) & !1;
    let mut old = [0; 4];
    let old = &mut old[..end - start];
    old.copy_from_slice(&tcp[start..end]);
    set_word(tcp, at, value);
    let mut sum = [tcp[16], tcp[17]];
    for (old, new) in old.chunks_exact(2).zip(tcp[start..end].chunks_exact(2)) {
        sum = checksum::updated(sum, [old[0], old[1]], [new[0], new[1]]);
    }
    tcp[16..18].copy_from_slice(&sum);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::packet::sample;

    fn syn(version: Version, options: &[u8]) -> Vec<u8> {
        sample::tcp(
            version,
            |tcp| {
                tcp.syn = true;
                tcp.set_options_raw(options).unwrap();
            },
            b"",
        )
    }

    fn offered(packet: &[u8]) -> Option<u16> {
        let header = Header::parse(packet).unwrap();
        let tcp = &packet[header.transport..];
        position(tcp).map(|at| word(tcp, at))
    }

    #[test]
    fn too_large_a_size_is_lowered_for_both_versions_and_at_every_alignment() {
        for (version, fits) in [(Version::V4, 1360), (Version::V6, 1340)] {
            for before in 0..5 {
                let mut options = vec![NO_OPERATION; before];
                options.extend([2, 4, 0x05, 0xb4]);
                options.resize(12, 0);
                let mut packet = syn(version, &options);
                let header = Header::parse(&packet).unwrap();
                assert_eq!(clamp(&mut packet, &header, 1400), Some(1460));
                assert_eq!(offered(&packet), Some(fits));
                sample::assert_checksums(&packet);
                assert_eq!(clamp(&mut packet, &header, 1400), None);
            }
        }
    }

    const NO_OPERATION: u8 = 1;

    #[test]
    fn only_a_syn_with_the_option_is_touched() {
        let option = [2, 4, 0x05, 0xb4];
        let unchanged = [
            sample::tcp(
                Version::V4,
                |tcp| tcp.set_options_raw(&option).unwrap(),
                b"",
            ),
            syn(Version::V4, &[]),
            syn(Version::V4, &[0, 0, 0, 0, 2, 4, 0x05, 0xb4]),
            syn(Version::V4, &[2, 3, 0x05, 0]),
            syn(Version::V4, &[3, 0, 0x05, 0]),
            syn(Version::V4, &[3, 9, 0x05, 0]),
            sample::udp(Version::V6, &[2; 64]),
        ];
        for original in unchanged {
            let mut packet = original.clone();
            let header = Header::parse(&packet).unwrap();
            assert_eq!(clamp(&mut packet, &header, 576), None);
            assert_eq!(packet, original);
        }
    }

    #[test]
    fn a_size_below_what_hosts_take_is_never_asked_for() {
        let mut packet = syn(Version::V4, &[2, 4, 0x05, 0xb4]);
        let header = Header::parse(&packet).unwrap();
        assert_eq!(clamp(&mut packet, &header, 0), Some(1460));
        assert_eq!(offered(&packet), Some(88));
        sample::assert_checksums(&packet);
    }

    proptest! {
        #[test]
        fn arbitrary_tcp_options_keep_a_valid_checksum(
            options in prop::collection::vec(any::<u8>(), 0..40),
            mtu in any::<u16>(),
        ) {
            let length = options.len() & !3;
            for version in [Version::V4, Version::V6] {
                let mut packet = syn(version, &options[..length]);
                let header = Header::parse(&packet).unwrap();
                clamp(&mut packet, &header, mtu);
                sample::assert_checksums(&packet);
            }
        }
    }
}
