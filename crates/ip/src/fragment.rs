//! Fragments IPv4 packets (RFC 791 §3.2). IPv6 routers never fragment.

use crate::{
    Header, Version,
    packet::{V4_HEADER_BYTES, set_v4_checksum, set_word, word},
};

/// Why a packet is not fragmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotFragmentable {
    /// Its sender forbids it, or it is IPv6: answer with [`crate::icmp::Reason::TooBig`].
    #[error("the packet must not be fragmented")]
    Forbidden,
    /// The header and eight bytes do not fit, or the checksum of a large packet is unfinished.
    #[error("an MTU of {mtu} bytes is too small for this packet's header")]
    Mtu {
        /// In bytes.
        mtu: u16,
    },
}

/// Fragments `packet`, which [`Header::parse`] has parsed as `header`, into fragments of at most `mtu` bytes,
/// and passes each to `send` in order. A packet that fits is passed unchanged. Fragments may be fragmented
/// again.
///
/// # Errors
/// It must not be fragmented; `send` was not called.
///
/// # Panics
/// `packet` is not the one that `header` was parsed from.
pub fn fragment(
    packet: &[u8],
    header: &Header,
    mtu: u16,
    mut send: impl FnMut(&[u8]),
) -> Result<(), NotFragmentable> {
    if packet.len() <= mtu.into() {
        send(packet);
        return Ok(());
    }
    if header.version() == Version::V6 || header.dont_fragment {
        return Err(NotFragmentable::Forbidden);
    }
    let (first, payload) = packet.split_at(header.transport);
    let room = usize::from(mtu).saturating_sub(first.len()) & !7;
    if room == 0 {
        return Err(NotFragmentable::Mtu { mtu });
    }
    let flags = word(first, 6);
    let start = (flags & 0x1fff) << 3;
    let last_has_more = flags & 0x2000 != 0;
    let later = later_header(first);
    let mut fragment = Vec::with_capacity(mtu.into());
    let count = payload.len().div_ceil(room);
    for (index, part) in payload.chunks(room).enumerate() {
        let header: &[u8] = if index == 0 { first } else { &later };
        fragment.clear();
        fragment.extend_from_slice(header);
        fragment.extend_from_slice(part);
        let bytes = fragment.len() as u16;
        let offset = start + (index * room) as u16;
        let more = index + 1 < count || last_has_more;
        set_word(&mut fragment, 2, bytes);
        set_word(&mut fragment, 6, offset >> 3 | u16::from(more) << 13);
        set_v4_checksum(&mut fragment[..header.len()]);
        send(&fragment);
    }
    Ok(())
}

/// The header of fragments after the first, with only those options that must be copied.
fn later_header(first: &[u8]) -> Vec<u8> {
    const NO_OPERATION: u8 = 1;
    const COPIED: u8 = 0x80;
    let (fixed, mut options) = first.split_at(V4_HEADER_BYTES);
    let mut later = fixed.to_vec();
    while let [kind, rest @ ..] = options {
        let length = match (*kind, rest) {
            (0, _) => break,
            (NO_OPERATION, _) => 1,
            (_, [length, ..]) => usize::from(*length).clamp(2, options.len()),
            (_, []) => break,
        };
        if kind & COPIED != 0 {
            later.extend_from_slice(&options[..length]);
        }
        options = &options[length..];
    }
    while !later.len().is_multiple_of(4) {
        later.push(0);
    }
    later[0] = 0x40 | (later.len() / 4) as u8;
    later
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::packet::sample;

    fn cut(packet: &[u8], mtu: u16) -> Result<Vec<Vec<u8>>, NotFragmentable> {
        let mut all = Vec::new();
        let header = Header::parse(packet).unwrap();
        fragment(packet, &header, mtu, |part| all.push(part.to_vec()))?;
        Ok(all)
    }

    fn may_be_cut(payload: &[u8], options: &[u8]) -> Vec<u8> {
        let mut packet = sample::udp(Version::V4, payload);
        packet.splice(20..20, options.iter().copied());
        packet[0] = 0x45 + (options.len() / 4) as u8;
        let bytes = packet.len() as u16;
        set_word(&mut packet, 2, bytes);
        set_word(&mut packet, 6, 0);
        set_v4_checksum(&mut packet[..20 + options.len()]);
        packet
    }

    fn joined(fragments: &[Vec<u8>]) -> Vec<u8> {
        let mut payload = Vec::new();
        for (index, bytes) in fragments.iter().enumerate() {
            let header = Header::parse(bytes).unwrap();
            let fragment = header.fragment.unwrap();
            assert_eq!(usize::from(fragment.offset), payload.len());
            assert_eq!(fragment.more, index + 1 < fragments.len());
            payload.extend_from_slice(&bytes[header.transport..]);
        }
        payload
    }

    #[test]
    fn packets_that_must_not_be_fragmented_are_not() {
        let mut packet = may_be_cut(&[7; 1000], &[]);
        set_word(&mut packet, 6, 0x4000);
        set_v4_checksum(&mut packet[..20]);
        assert_eq!(cut(&packet, 576), Err(NotFragmentable::Forbidden));
        assert_eq!(cut(&packet, 1028).unwrap(), [packet]);
        assert_eq!(
            cut(&sample::udp(Version::V6, &[7; 1000]), 576),
            Err(NotFragmentable::Forbidden)
        );
        assert_eq!(
            cut(&may_be_cut(&[7; 1000], &[]), 27),
            Err(NotFragmentable::Mtu { mtu: 27 })
        );
    }

    #[test]
    fn only_options_to_be_copied_are_in_later_fragments() {
        // Record route (7) is not copied; stream identifier (136) is.
        let options = [7, 3, 4, 136, 4, 0, 9, 0];
        let packet = may_be_cut(&[7; 200], &options);
        let fragments = cut(&packet, 100).unwrap();
        assert_eq!(fragments[0][20..28], options);
        for later in &fragments[1..] {
            assert_eq!(later[0], 0x46);
            assert_eq!(later[20..24], [136, 4, 0, 9]);
        }
        assert_eq!(joined(&fragments), packet[28..]);
    }

    proptest! {
        #[test]
        fn fragments_of_fragments_reassemble_to_the_packet(
            payload in prop::collection::vec(any::<u8>(), 100..3000),
            first in 68u16..1000,
            second in 68u16..1000,
        ) {
            let packet = may_be_cut(&payload, &[]);
            let once = cut(&packet, first.max(second)).unwrap();
            let twice: Vec<_> = once.iter().flat_map(|part| cut(part, first.min(second)).unwrap()).collect();
            prop_assert!(twice.iter().all(|part| part.len() <= first.min(second).into()));
            if twice.len() > 1 {
                prop_assert_eq!(joined(&twice), &packet[20..]);
            }
        }
    }
}
