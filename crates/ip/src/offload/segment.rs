//! Segments a large packet, and finishes checksums.

use super::{GsoKind, GsoPacket, PartialChecksum, VnetHeader, double_word, tcp, udp};
use crate::{
    Header, Malformed, Version,
    checksum::Sum,
    packet::{V6_HEADER_BYTES, protocol, set_v4_checksum, set_word, word},
};

/// The packets that one packet of a TUN device stands for, in order.
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    packet: &'a [u8],
    cut: Cut,
    next: usize,
}

#[derive(Clone, Copy, Debug)]
enum Cut {
    /// One packet; its checksum may be unfinished.
    One(Option<PartialChecksum>),
    Large(Layout),
}

#[derive(Clone, Copy, Debug)]
struct Layout {
    version: Version,
    kind: GsoKind,
    transport: usize,
    payload: usize,
    segment_bytes: usize,
    count: usize,
}

/// Why a packet of a TUN device cannot be segmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSegmentable {
    /// Its IP headers are invalid.
    #[error("large packet refused: {0}")]
    Malformed(#[from] Malformed),
    /// It is not of the protocol in its virtio-net header, or a fragment.
    #[error("large packet is not of the protocol that its header says")]
    Protocol,
    /// Its transport header does not fit, or is of a kind that is never large: SYN, RST.
    #[error("large packet has an unfit transport header")]
    Transport,
    /// A checksum to be finished lies outside the packet.
    #[error("checksum to be finished lies outside the packet")]
    Checksum,
}

impl<'a> Segments<'a> {
    /// Prepares `packet`, which followed `vnet`, for segmentation.
    ///
    /// The sending kernel chose the sizes. The caller compares them with a path by [`Self::largest`], and
    /// answers with [`crate::icmp::Reason::TooBig`].
    ///
    /// # Errors
    /// It does not match its virtio-net header.
    pub fn new(vnet: VnetHeader, packet: &'a [u8]) -> Result<Self, NotSegmentable> {
        let cut = match vnet.large {
            Some(large) => Cut::Large(Layout::new(large, packet)?),
            None => {
                let outside = |place: PartialChecksum| {
                    usize::from(place.start) + usize::from(place.offset) + 2 > packet.len()
                };
                if vnet.checksum.is_some_and(outside) {
                    return Err(NotSegmentable::Checksum);
                }
                Cut::One(vnet.checksum)
            }
        };
        let next = 0;
        Ok(Self { packet, cut, next })
    }

    /// Number of packets for which it stands.
    pub fn count(&self) -> usize {
        match &self.cut {
            Cut::One(_) => 1,
            Cut::Large(layout) => layout.count,
        }
    }

    /// The longest of these packets, in bytes.
    pub fn largest(&self) -> usize {
        match &self.cut {
            Cut::One(_) => self.packet.len(),
            Cut::Large(layout) => self.packet.len().min(layout.payload + layout.segment_bytes),
        }
    }

    /// Writes the next packet to the start of `out` and returns its length in bytes; `None` if there are no
    /// more.
    ///
    /// # Panics
    /// `out` is shorter than [`Self::largest`].
    pub fn write_next(&mut self, out: &mut [u8]) -> Option<usize> {
        let index = self.next;
        if index == self.count() {
            return None;
        }
        self.next += 1;
        match &self.cut {
            Cut::One(checksum) => {
                let out = &mut out[..self.packet.len()];
                out.copy_from_slice(self.packet);
                if let Some(place) = checksum {
                    finish(out, *place);
                }
                Some(out.len())
            }
            Cut::Large(layout) => Some(layout.write(self.packet, index, out)),
        }
    }
}

impl Layout {
    fn new(large: GsoPacket, packet: &[u8]) -> Result<Self, NotSegmentable> {
        let header = Header::parse(packet)?;
        let version = header.version();
        let expected = match (large.kind, version) {
            (GsoKind::Tcp4, Version::V4) | (GsoKind::Tcp6, Version::V6) => protocol::TCP,
            (GsoKind::Udp, _) => protocol::UDP,
            _ => return Err(NotSegmentable::Protocol),
        };
        if header.protocol != expected || header.fragment.is_some() {
            return Err(NotSegmentable::Protocol);
        }
        let transport = &packet[header.transport..];
        let transport_bytes = match large.kind {
            GsoKind::Udp if transport.len() >= udp::HEADER_BYTES => udp::HEADER_BYTES,
            GsoKind::Udp => return Err(NotSegmentable::Transport),
            GsoKind::Tcp4 | GsoKind::Tcp6 => tcp_header_bytes(transport)?,
        };
        let payload_bytes = transport.len() - transport_bytes;
        let segment_bytes = usize::from(large.segment_bytes);
        Ok(Self {
            version,
            kind: large.kind,
            transport: header.transport,
            payload: header.transport + transport_bytes,
            segment_bytes,
            count: payload_bytes.div_ceil(segment_bytes).max(1),
        })
    }

    /// Writes segment `index` and returns its length.
    fn write(&self, packet: &[u8], index: usize, out: &mut [u8]) -> usize {
        let offset = index * self.segment_bytes;
        let start = self.payload + offset;
        let end = packet.len().min(start + self.segment_bytes);
        let length = self.payload + (end - start);
        let out = &mut out[..length];
        let (headers, payload) = out.split_at_mut(self.payload);
        headers.copy_from_slice(&packet[..self.payload]);
        payload.copy_from_slice(&packet[start..end]);
        match self.version {
            Version::V4 => {
                let id = word(headers, 4).wrapping_add(index as u16);
                set_word(headers, 2, length as u16);
                set_word(headers, 4, id);
                set_v4_checksum(&mut headers[..self.transport]);
            }
            Version::V6 => set_word(headers, 4, (length - V6_HEADER_BYTES) as u16),
        }
        let transport = &mut headers[self.transport..];
        let (protocol, checksum) = match self.kind {
            GsoKind::Udp => {
                set_word(transport, udp::LENGTH, (length - self.transport) as u16);
                (protocol::UDP, udp::CHECKSUM)
            }
            GsoKind::Tcp4 | GsoKind::Tcp6 => {
                set_tcp(transport, offset, index == 0, index + 1 == self.count);
                (protocol::TCP, tcp::CHECKSUM)
            }
        };
        transport[checksum..checksum + 2].fill(0);
        let bytes = (length - self.transport) as u32;
        let sum = Sum::default()
            .pseudo_header(self.version, out, protocol, bytes)
            .bytes(&out[self.transport..])
            .checksum();
        let at = self.transport + checksum;
        out[at..at + 2].copy_from_slice(&never_zero(sum, checksum));
        length
    }
}

/// Turns the header of a large segment into that of the part at `offset` bytes.
fn set_tcp(header: &mut [u8], offset: usize, is_first: bool, is_last: bool) {
    let sequence = double_word(header, tcp::SEQUENCE).wrapping_add(offset as u32);
    header[tcp::SEQUENCE..tcp::SEQUENCE + 4].copy_from_slice(&sequence.to_be_bytes());
    if !is_last {
        header[tcp::FLAGS] &= !(tcp::FIN | tcp::PSH);
    }
    if !is_first {
        // In the first segment only (RFC 3168 §6.1.2).
        header[tcp::FLAGS] &= !tcp::CWR;
    }
    if header[tcp::FLAGS] & tcp::URG != 0 {
        // It is relative to the segment's own sequence number (RFC 9293 §3.8.5).
        match usize::from(word(header, tcp::URGENT)).checked_sub(offset) {
            None | Some(0) if !is_first => {
                header[tcp::FLAGS] &= !tcp::URG;
                set_word(header, tcp::URGENT, 0);
            }
            Some(left) => set_word(header, tcp::URGENT, left as u16),
            None => {}
        }
    }
}

fn tcp_header_bytes(segment: &[u8]) -> Result<usize, NotSegmentable> {
    if segment.len() < tcp::HEADER_BYTES_MIN {
        return Err(NotSegmentable::Transport);
    }
    let bytes = usize::from(segment[tcp::DATA_OFFSET] >> 4) * 4;
    let is_odd = segment[tcp::FLAGS] & (tcp::SYN | tcp::RST) != 0;
    match bytes < tcp::HEADER_BYTES_MIN || bytes > segment.len() || is_odd {
        true => Err(NotSegmentable::Transport),
        false => Ok(bytes),
    }
}

/// Finishes a checksum as a device does: over everything from its start.
fn finish(packet: &mut [u8], place: PartialChecksum) {
    let start = usize::from(place.start);
    let at = start + usize::from(place.offset);
    let sum = Sum::default().bytes(&packet[start..]).checksum();
    packet[at..at + 2].copy_from_slice(&never_zero(sum, place.offset.into()));
}

/// UDP's checksum, recognised by its offset, is never zero, which would mean that there is none (RFC 768).
fn never_zero(sum: [u8; 2], offset: usize) -> [u8; 2] {
    match (sum, offset) {
        ([0, 0], udp::CHECKSUM) => [0xff, 0xff],
        _ => sum,
    }
}
