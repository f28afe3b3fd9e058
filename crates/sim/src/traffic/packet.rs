//! Packets as small values: a header and a length, without content.
//!
//! Only packets between gateways have real bytes. Those are in [`Buffers`], and the packet carries their
//! number. [`wire`](super::wire) encodes packets as real bytes, so that a gateway can carry them.

use std::net::Ipv4Addr;

use keiro_units::ByteCount;

/// Bytes of an IPv4 header without options (RFC 791).
pub const IP_HEADER: u16 = 20;
/// Bytes of a TCP header without options (RFC 9293).
pub const TCP_HEADER: u16 = 20;
/// Bytes of a UDP header (RFC 768).
pub const UDP_HEADER: u16 = 8;
/// Maximum of ranges in a selective acknowledgement with timestamps (RFC 2018 §3).
pub const SACK_BLOCKS_MAX: usize = 3;

/// An IPv4 packet in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpPacket {
    pub source: Ipv4Addr,
    pub destination: Ipv4Addr,
    /// Its ECN bits.
    pub ecn: Ecn,
    pub body: Body,
}

/// The two ECN bits of an IP header (RFC 3168 §5); ECT(1) is not used here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// The transport does not understand ECN.
    #[default]
    NotCapable,
    /// ECT(0): a router may mark it.
    Capable,
    /// CE: a router did.
    Congestion,
}

/// Content of an [`IpPacket`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    Tcp(TcpHeader),
    /// A UDP datagram without content.
    Udp(UdpHeader),
    /// A UDP datagram with real bytes, of a gateway.
    Bytes(UdpHeader, BufferId),
}

/// A TCP header with its options, and the length of its payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpHeader {
    /// Port of the sender of this segment.
    pub source_port: u16,
    /// Port of its receiver.
    pub destination_port: u16,
    /// Sequence number of its first byte.
    pub sequence: u32,
    /// Acknowledgement number; meaningless in a SYN.
    pub acknowledgement: u32,
    /// The receive window in bytes, already scaled.
    pub window: u32,
    pub flags: Flags,
    /// The timestamps option (RFC 7323); `None` if not used.
    pub timestamps: Option<Timestamps>,
    /// Maximum segment size of the sender of this SYN (RFC 9293 §3.7.1), without options; `None` if it is not
    /// a SYN.
    pub mss: Option<u16>,
    /// Selective acknowledgements (RFC 2018).
    pub sack: SackBlocks,
    pub payload: u16,
}

/// Flags of a TCP header. FIN and RST are not used, because connections are never closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    pub syn: bool,
    pub ack: bool,
    /// ECE: a marked packet arrived (RFC 3168 §6.1).
    pub ece: bool,
    /// CWR: the window was reduced after an ECE.
    pub cwr: bool,
}

/// The timestamps option: microseconds that wrap around.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamps {
    /// The clock of the sender of this segment.
    pub value: u32,
    /// The last value from its peer's clock.
    pub echo: u32,
}

/// Up to [`SACK_BLOCKS_MAX`] ranges of sequence numbers, including the first and excluding the second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackBlocks {
    blocks: [(u32, u32); SACK_BLOCKS_MAX],
    count: u8,
}

/// A UDP header, and the length of its payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpHeader {
    /// Port of its sender.
    pub source_port: u16,
    /// Port of its receiver.
    pub destination_port: u16,
    pub payload: u16,
}

impl IpPacket {
    /// Length of the IP packet, header included.
    pub const fn ip_len(&self) -> ByteCount {
        ByteCount::new(self.length() as u64)
    }

    pub const fn length(&self) -> u16 {
        IP_HEADER
            + match &self.body {
                Body::Tcp(header) => header.header_length() + header.payload,
                Body::Udp(header) | Body::Bytes(header, _) => UDP_HEADER + header.payload,
            }
    }

    /// Words that distinguish packets in the trace hash.
    pub(crate) fn digest(&self) -> [u64; 3] {
        let addresses =
            u64::from(self.source.to_bits()) << 32 | u64::from(self.destination.to_bits());
        let [second, third] = match self.body {
            Body::Tcp(header) => [
                u64::from(header.sequence) << 32 | u64::from(header.acknowledgement),
                u64::from(header.source_port) << 48
                    | u64::from(header.destination_port) << 32
                    | u64::from(header.payload) << 8
                    | header
                        .sack
                        .iter()
                        .map(|(from, to)| u64::from(to.wrapping_sub(from)))
                        .sum::<u64>()
                        & 0xff,
            ],
            Body::Udp(header) | Body::Bytes(header, _) => [
                u64::from(header.source_port) << 16 | u64::from(header.destination_port),
                u64::from(header.payload),
            ],
        };
        [addresses ^ self.ecn as u64, second, third]
    }
}

impl TcpHeader {
    /// Bytes of the header with its options, padded to a multiple of four.
    pub const fn header_length(&self) -> u16 {
        let mut options = 0;
        if self.timestamps.is_some() {
            options += 12; // with two no-ops (RFC 7323 appendix A)
        }
        if self.mss.is_some() {
            options += 4 + 4 + 4; // with SACK permitted and a window scale, each padded
        }
        if self.sack.count > 0 {
            options += 4 + 8 * self.sack.count as u16;
        }
        TCP_HEADER + options
    }
}

impl SackBlocks {
    /// Appends a range; returns whether there was room.
    pub const fn push(&mut self, from: u32, to: u32) -> bool {
        if self.count as usize == SACK_BLOCKS_MAX {
            return false;
        }
        self.blocks[self.count as usize] = (from, to);
        self.count += 1;
        true
    }

    /// The ranges, the most recent first.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.blocks[..usize::from(self.count)].iter().copied()
    }

    /// How many there are.
    pub const fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// Identifies the bytes of a [`Body::Bytes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferId(u32);

/// The bytes of packets that have real ones. Buffers are reused.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    buffers: Vec<Vec<u8>>,
    free: Vec<BufferId>,
}

impl Buffers {
    pub(crate) fn insert(&mut self, bytes: &[u8]) -> BufferId {
        if let Some(id) = self.free.pop() {
            let buffer = &mut self.buffers[id.0 as usize];
            buffer.clear();
            buffer.extend_from_slice(bytes);
            return id;
        }
        self.buffers.push(bytes.to_vec());
        // Links bound what they hold at 2^20 packets each, so a u32 is never exhausted.
        BufferId(self.buffers.len() as u32 - 1)
    }

    pub(crate) fn duplicate(&mut self, id: BufferId) -> BufferId {
        let original = std::mem::take(&mut self.buffers[id.0 as usize]);
        let copy = self.insert(&original);
        self.buffers[id.0 as usize] = original;
        copy
    }

    pub(crate) fn bytes_mut(&mut self, id: BufferId) -> &mut [u8] {
        &mut self.buffers[id.0 as usize]
    }

    /// Frees a packet's bytes, if it has any.
    pub(crate) fn free(&mut self, packet: &IpPacket) {
        if let Body::Bytes(_, id) = packet.body {
            self.free.push(id);
        }
    }

    pub(crate) const fn in_use(&self) -> usize {
        self.buffers.len() - self.free.len()
    }
}

/// Identifies a packet in [`Packets`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Slot(u32);

/// The packets of a mesh: written once, then only their slot numbers move from link to link.
#[derive(Debug, Default)]
pub(super) struct Packets {
    packets: Vec<IpPacket>,
    free: Vec<Slot>,
}

impl Packets {
    pub(super) fn insert(&mut self, packet: IpPacket) -> Slot {
        if let Some(slot) = self.free.pop() {
            self.packets[slot.0 as usize] = packet;
            return slot;
        }
        self.packets.push(packet);
        // Links bound what they hold at 2^20 packets each, so a u32 is never exhausted.
        Slot(self.packets.len() as u32 - 1)
    }

    pub(super) fn get(&self, slot: Slot) -> &IpPacket {
        &self.packets[slot.0 as usize]
    }

    pub(super) fn get_mut(&mut self, slot: Slot) -> &mut IpPacket {
        &mut self.packets[slot.0 as usize]
    }

    /// Frees a slot; returns its packet.
    pub(super) fn remove(&mut self, slot: Slot) -> &IpPacket {
        self.free.push(slot);
        &self.packets[slot.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_across_the_end_of_sequence_numbers_has_a_digest() {
        let digest = |from: u32, to: u32| {
            let mut header = TcpHeader::default();
            header.sack.push(from, to);
            let packet = IpPacket {
                source: Ipv4Addr::LOCALHOST,
                destination: Ipv4Addr::LOCALHOST,
                ecn: Ecn::NotCapable,
                body: Body::Tcp(header),
            };
            packet.digest()
        };
        assert_eq!(digest(u32::MAX - 9, 20), digest(100, 130));
    }
}
