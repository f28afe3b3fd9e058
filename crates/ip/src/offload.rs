//! The kernel's large packets, as read from and written to a TUN device with a virtio-net header.
//!
//! One read may return up to 64 KiB of one flow, to be segmented as a network card would ([`Segments`]). One
//! write may pass many packets of a flow to the kernel as one ([`Coalescer`]). `keiro-linux`'s `tun` reports
//! which kinds a device supports.

mod coalesce;
mod segment;

pub use coalesce::{Coalescer, CoalescerFull};
pub use segment::{NotSegmentable, Segments};

use crate::packet::word;

/// Length of `struct virtio_net_hdr` (`linux/virtio_net.h`), which precedes each packet.
pub const VNET_HEADER_BYTES: usize = 10;

/// Header of a packet that a TUN device reads or writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnetHeader {
    /// The transport checksum has to be finished: its field contains the sum of the pseudo header.
    pub checksum: Option<PartialChecksum>,
    /// The packet stands for several; `None` if it is one.
    pub large: Option<GsoPacket>,
}

/// A checksum that is left to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialChecksum {
    /// Offset of the first byte that it covers; it covers everything from there.
    pub start: u16,
    /// Offset of its two bytes, from `start`.
    pub offset: u16,
}

/// Several packets of one flow as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GsoPacket {
    pub kind: GsoKind,
    /// All headers together, in bytes: a hint that readers should not believe.
    pub header_bytes: u16,
    /// Payload of each packet except the last, in bytes.
    pub segment_bytes: u16,
}

/// Protocols with large packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GsoKind {
    Tcp4,
    Tcp6,
    /// UDP over IPv4 or IPv6: datagrams of one size, the last may be shorter. Linux 6.2 and later.
    Udp,
}

/// An invalid virtio-net header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadVnetHeader {
    /// Shorter than the header.
    #[error("{bytes} bytes are too few for a virtio-net header")]
    Truncated {
        /// Available bytes.
        bytes: usize,
    },
    /// A kind of segmentation that was not requested.
    #[error("segmentation type {kind} of the virtio-net header is unknown")]
    Kind { kind: u8 },
    /// Segments of zero bytes.
    #[error("segments of zero bytes")]
    SegmentBytes,
}

// From linux/virtio_net.h.
const NEEDS_CHECKSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCP4: u8 = 1;
const GSO_TCP6: u8 = 4;
const GSO_UDP: u8 = 5;
const GSO_ECN: u8 = 0x80;

impl VnetHeader {
    /// Splits the bytes read from a TUN device into header and packet.
    ///
    /// # Errors
    /// The header is invalid.
    pub fn split(bytes: &[u8]) -> Result<(Self, &[u8]), BadVnetHeader> {
        let (header, packet) = bytes
            .split_first_chunk::<VNET_HEADER_BYTES>()
            .ok_or(BadVnetHeader::Truncated { bytes: bytes.len() })?;
        let native = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        let kind = match header[1] & !GSO_ECN {
            GSO_NONE => None,
            GSO_TCP4 => Some(GsoKind::Tcp4),
            GSO_TCP6 => Some(GsoKind::Tcp6),
            GSO_UDP => Some(GsoKind::Udp),
            kind => return Err(BadVnetHeader::Kind { kind }),
        };
        let large = kind.map(|kind| GsoPacket {
            kind,
            header_bytes: native(2),
            segment_bytes: native(4),
        });
        if large.is_some_and(|large| large.segment_bytes == 0) {
            return Err(BadVnetHeader::SegmentBytes);
        }
        let checksum = (header[0] & NEEDS_CHECKSUM != 0).then(|| PartialChecksum {
            start: native(6),
            offset: native(8),
        });
        Ok((Self { checksum, large }, packet))
    }

    pub fn bytes(&self) -> [u8; VNET_HEADER_BYTES] {
        let mut header = [0; VNET_HEADER_BYTES];
        let mut set =
            |at: usize, value: u16| header[at..at + 2].copy_from_slice(&value.to_ne_bytes());
        if let Some(checksum) = self.checksum {
            set(6, checksum.start);
            set(8, checksum.offset);
        }
        if let Some(large) = self.large {
            set(2, large.header_bytes);
            set(4, large.segment_bytes);
            header[1] = match large.kind {
                GsoKind::Tcp4 => GSO_TCP4,
                GsoKind::Tcp6 => GSO_TCP6,
                GsoKind::Udp => GSO_UDP,
            };
        }
        header[0] = self.checksum.map_or(0, |_| NEEDS_CHECKSUM);
        header
    }
}

/// Offsets in TCP and UDP headers, in bytes.
mod tcp {
    pub(super) const HEADER_BYTES_MIN: usize = 20;
    pub(super) const SEQUENCE: usize = 4;
    pub(super) const DATA_OFFSET: usize = 12;
    pub(super) const FLAGS: usize = 13;
    pub(super) const CHECKSUM: usize = 16;
    pub(super) const URGENT: usize = 18;
    pub(super) const FIN: u8 = 0x01;
    pub(super) const SYN: u8 = 0x02;
    pub(super) const RST: u8 = 0x04;
    pub(super) const PSH: u8 = 0x08;
    pub(super) const ACK: u8 = 0x10;
    pub(super) const URG: u8 = 0x20;
    pub(super) const ECE: u8 = 0x40;
    pub(super) const CWR: u8 = 0x80;
}

mod udp {
    pub(super) const HEADER_BYTES: usize = 8;
    pub(super) const LENGTH: usize = 4;
    pub(super) const CHECKSUM: usize = 6;
}

fn double_word(bytes: &[u8], at: usize) -> u32 {
    u32::from(word(bytes, at)) << 16 | u32::from(word(bytes, at + 2))
}

#[cfg(test)]
mod tests;
