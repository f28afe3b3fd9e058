//! Coalesces consecutive packets of a flow, so that the kernel is called and its stack traversed once for all
//! of them.
//!
//! Coalesced packets can be segmented again into exactly the same packets by [`super::Segments`], except for
//! the identification of IPv4 packets that must not be fragmented and all have the same one, which has no
//! meaning (RFC 6864 §4.1). So packets are coalesced only if they differ in nothing but what segmentation
//! regenerates. The kernel does not verify checksums of large packets, so those of coalesced packets are
//! verified here; one with a wrong checksum is passed alone and the kernel drops it.

use super::{
    GsoKind, GsoPacket, PartialChecksum, VNET_HEADER_BYTES, VnetHeader, double_word, tcp, udp,
};
use crate::{
    Version,
    checksum::Sum,
    packet::{V4_HEADER_BYTES, V6_HEADER_BYTES, protocol, set_v4_checksum, set_word, word},
};

/// Maximum of a packet's 16-bit length field.
const BYTES_MAX: usize = u16::MAX as usize;

/// Linux gives at most this many datagrams to a socket at once (`UDP_GRO_CNT_MAX`).
const DATAGRAMS_MAX: usize = 64;

const TCP_CHECKSUM: u16 = tcp::CHECKSUM as u16;
const UDP_CHECKSUM: u16 = udp::CHECKSUM as u16;

/// Coalesces packets into fewer, larger ones; packets of one flow stay in order.
#[derive(Debug)]
pub struct Coalescer {
    items: Vec<Item>,
    used: usize,
    /// For each item in use: the number of the flow that may still join it, or `CLOSED`.
    open: Vec<u64>,
    kinds: Kinds,
}

/// Kinds of packets that may be coalesced.
#[derive(Clone, Copy, Debug)]
struct Kinds {
    tcp: bool,
    udp: bool,
}

/// There is no room for another packet: call [`Coalescer::drain`] first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no room for another packet before those gathered are taken")]
pub struct CoalescerFull;

/// No flow has this number.
const CLOSED: u64 = 0;

/// Coalesced packets, or a single one.
#[derive(Debug, Default)]
struct Item {
    /// A virtio-net header, then the packet.
    bytes: Vec<u8>,
    joined: Option<Joined>,
}

/// State of an item that others may join, or have joined.
#[derive(Clone, Copy, Debug)]
struct Joined {
    candidate: Candidate,
    count: usize,
    next_sequence: u32,
    /// The checksum of the first packet was verified.
    is_checked: bool,
    ids: Ids,
}

/// Progression of IPv4 identifications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ids {
    /// Only one packet so far, or not IPv4.
    Unknown,
    /// Incremented per packet.
    Rising,
    /// All are the same, and fragmentation is forbidden.
    Same,
}

/// An unfragmented TCP or UDP packet, without IP options or extension headers.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    flow: u64,
    version: Version,
    is_tcp: bool,
    transport: usize,
    payload: usize,
    payload_bytes: usize,
}

impl Coalescer {
    /// Holds at most `packets_max` packets, large or not, with buffers of up to 64 KiB that are reused.
    /// `tcp`, `udp`: kinds of large packets that the device supports.
    pub fn new(packets_max: usize, tcp: bool, udp: bool) -> Self {
        let mut items = Vec::new();
        items.resize_with(packets_max.max(1), Item::default);
        Self {
            items,
            used: 0,
            open: Vec::with_capacity(packets_max),
            kinds: Kinds { tcp, udp },
        }
    }

    /// Adds a packet that [`crate::Header::parse`] has accepted.
    ///
    /// # Errors
    /// There is no room; the packet was not added.
    pub fn push(&mut self, packet: &[u8]) -> Result<(), CoalescerFull> {
        let candidate = match Candidate::of(packet, self.kinds) {
            Shape::Joinable(candidate) => Some(candidate),
            Shape::Alone => None,
            Shape::Unknown => {
                // A fragment or a packet with options, whose flow is not determined.
                self.open.fill(CLOSED);
                None
            }
        };
        if let Some(candidate) = &candidate {
            for index in (0..self.used).rev() {
                if self.open[index] != candidate.flow {
                    continue;
                }
                let item = &mut self.items[index];
                match item.join(candidate, packet) {
                    Outcome::OtherFlow => {}
                    Outcome::Joined { is_open: true } => return Ok(()),
                    Outcome::Joined { is_open: false } => {
                        self.open[index] = CLOSED;
                        return Ok(());
                    }
                    Outcome::Refused => {
                        self.open[index] = CLOSED;
                        break;
                    }
                }
            }
        }
        self.begin(candidate, packet)
    }

    /// Passes all packets, each preceded by its virtio-net header, and becomes empty.
    pub fn drain(&mut self, mut write: impl FnMut(&[u8])) {
        for item in &mut self.items[..self.used] {
            item.finish();
            write(&item.bytes);
        }
        self.used = 0;
        self.open.clear();
    }

    /// Number of packets, large or not, that [`Self::drain`] would pass.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether nothing was gathered.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    fn begin(&mut self, candidate: Option<Candidate>, packet: &[u8]) -> Result<(), CoalescerFull> {
        let item = self.items.get_mut(self.used).ok_or(CoalescerFull)?;
        item.bytes.clear();
        item.bytes.extend_from_slice(&[0; VNET_HEADER_BYTES]);
        item.bytes.extend_from_slice(packet);
        item.joined = candidate.map(|candidate| Joined {
            candidate,
            count: 1,
            next_sequence: candidate.sequence_after(packet),
            is_checked: false,
            ids: Ids::Unknown,
        });
        let is_open = candidate.is_some_and(|candidate| candidate.may_be_joined(packet));
        self.open.push(match candidate {
            Some(candidate) if is_open => candidate.flow,
            _ => CLOSED,
        });
        self.used += 1;
        Ok(())
    }
}

enum Shape {
    Joinable(Candidate),
    /// Of a protocol that is never coalesced.
    Alone,
    /// TCP or UDP in a packet whose flow is not determined.
    Unknown,
}

enum Outcome {
    Joined {
        is_open: bool,
    },
    /// Of the same flow, but cannot join.
    Refused,
    OtherFlow,
}

impl Candidate {
    #[inline]
    fn of(packet: &[u8], kinds: Kinds) -> Shape {
        let (version, transport, protocol) = match packet {
            [0x45, ..] if packet.len() >= V4_HEADER_BYTES => {
                (Version::V4, V4_HEADER_BYTES, packet[9])
            }
            [first, ..] if first >> 4 == 6 && packet.len() >= V6_HEADER_BYTES => {
                (Version::V6, V6_HEADER_BYTES, packet[6])
            }
            _ => return Shape::Unknown,
        };
        let is_tcp = match protocol {
            protocol::TCP if kinds.tcp => true,
            protocol::UDP if kinds.udp => false,
            protocol::ICMP | protocol::ICMPV6 => return Shape::Alone,
            protocol::TCP | protocol::UDP => return Shape::Alone,
            _ => return Shape::Unknown,
        };
        let is_fragment = version == Version::V4 && word(packet, 6) & 0x3fff != 0;
        let rest = &packet[transport..];
        let header_bytes = match is_tcp {
            true if rest.len() >= tcp::HEADER_BYTES_MIN => {
                usize::from(rest[tcp::DATA_OFFSET] >> 4) * 4
            }
            true => return Shape::Unknown,
            false => udp::HEADER_BYTES,
        };
        if is_fragment
            || rest.len() < header_bytes
            || (is_tcp && header_bytes < tcp::HEADER_BYTES_MIN)
        {
            return Shape::Unknown;
        }
        Shape::Joinable(Self {
            flow: flow(packet, version, transport, protocol),
            version,
            is_tcp,
            transport,
            payload: transport + header_bytes,
            payload_bytes: rest.len() - header_bytes,
        })
    }

    /// Whether anything may follow a first packet like this.
    fn may_be_joined(&self, packet: &[u8]) -> bool {
        match self.is_tcp {
            true => {
                let flags = packet[self.transport + tcp::FLAGS];
                self.payload_bytes > 0 && flags & !tcp::ECE == tcp::ACK
            }
            false => {
                self.payload_bytes > 0
                    && word(packet, self.transport + udp::CHECKSUM) != 0
                    && usize::from(word(packet, self.transport + udp::LENGTH))
                        == udp::HEADER_BYTES + self.payload_bytes
            }
        }
    }

    fn sequence_after(&self, packet: &[u8]) -> u32 {
        match self.is_tcp {
            true => double_word(packet, self.transport + tcp::SEQUENCE)
                .wrapping_add(self.payload_bytes as u32),
            false => 0,
        }
    }

    fn is_intact(&self, packet: &[u8]) -> bool {
        let protocol = if self.is_tcp {
            protocol::TCP
        } else {
            protocol::UDP
        };
        let bytes = packet.len() - self.transport;
        Sum::default()
            .pseudo_header(self.version, packet, protocol, bytes as u32)
            .bytes(&packet[self.transport..])
            .is_valid()
    }
}

impl Item {
    fn join(&mut self, candidate: &Candidate, packet: &[u8]) -> Outcome {
        let Some(joined) = &mut self.joined else {
            return Outcome::OtherFlow;
        };
        let first = &self.bytes[VNET_HEADER_BYTES..];
        if !same_flow(&joined.candidate, first, candidate, packet) {
            return Outcome::OtherFlow;
        }
        let segment_bytes = joined.candidate.payload_bytes;
        let fits = candidate.payload_bytes > 0
            && candidate.payload_bytes <= segment_bytes
            && first.len() + candidate.payload_bytes <= BYTES_MAX;
        let Some(ids) = joined.ids_with(first, packet) else {
            return Outcome::Refused;
        };
        if !fits || !same_headers(joined, first, candidate, packet) {
            return Outcome::Refused;
        }
        if !joined.is_checked {
            joined.is_checked = joined.candidate.is_intact(first);
        }
        if !joined.is_checked || !candidate.is_intact(packet) {
            return Outcome::Refused;
        }
        joined.ids = ids;
        joined.count += 1;
        joined.next_sequence = candidate.sequence_after(packet);
        let mut is_open = candidate.payload_bytes == segment_bytes;
        if candidate.is_tcp {
            let at = candidate.transport + tcp::FLAGS;
            let pushes = packet[at] & tcp::PSH;
            self.bytes[VNET_HEADER_BYTES + at] |= pushes;
            is_open &= pushes == 0;
        } else {
            is_open &= joined.count < DATAGRAMS_MAX;
        }
        self.bytes.extend_from_slice(&packet[candidate.payload..]);
        Outcome::Joined { is_open }
    }

    /// Writes the headers of the whole.
    fn finish(&mut self) {
        let Some(joined) = self.joined.filter(|joined| joined.count > 1) else {
            return;
        };
        let Candidate {
            version,
            is_tcp,
            transport,
            payload,
            payload_bytes,
            ..
        } = joined.candidate;
        let (vnet, packet) = self.bytes.split_at_mut(VNET_HEADER_BYTES);
        let length = packet.len();
        match version {
            Version::V4 => {
                set_word(packet, 2, length as u16);
                set_v4_checksum(&mut packet[..V4_HEADER_BYTES]);
            }
            Version::V6 => set_word(packet, 4, (length - V6_HEADER_BYTES) as u16),
        }
        let bytes = length - transport;
        let (kind, protocol, offset) = match (is_tcp, version) {
            (true, Version::V4) => (GsoKind::Tcp4, protocol::TCP, TCP_CHECKSUM),
            (true, Version::V6) => (GsoKind::Tcp6, protocol::TCP, TCP_CHECKSUM),
            (false, _) => {
                set_word(packet, transport + udp::LENGTH, bytes as u16);
                (GsoKind::Udp, protocol::UDP, UDP_CHECKSUM)
            }
        };
        let sum = Sum::default()
            .pseudo_header(version, packet, protocol, bytes as u32)
            .folded();
        let at = transport + usize::from(offset);
        packet[at..at + 2].copy_from_slice(&sum);
        let header = VnetHeader {
            checksum: Some(PartialChecksum {
                start: transport as u16,
                offset,
            }),
            large: Some(GsoPacket {
                kind,
                header_bytes: payload as u16,
                segment_bytes: payload_bytes as u16,
            }),
        };
        vnet.copy_from_slice(&header.bytes());
    }
}

impl Joined {
    /// Progression of identifications if `packet` follows; `None` if it cannot.
    fn ids_with(&self, first: &[u8], packet: &[u8]) -> Option<Ids> {
        if self.candidate.version == Version::V6 {
            return Some(Ids::Unknown);
        }
        let (start, id) = (word(first, 4), word(packet, 4));
        let rises = id == start.wrapping_add(self.count as u16);
        let stays = id == start && word(first, 6) & 0x4000 != 0;
        match self.ids {
            Ids::Unknown | Ids::Rising if rises => Some(Ids::Rising),
            Ids::Unknown | Ids::Same if stays => Some(Ids::Same),
            _ => None,
        }
    }
}

/// Whether addresses, protocol and ports are the same.
fn same_flow(one: &Candidate, first: &[u8], other: &Candidate, packet: &[u8]) -> bool {
    let addresses = match one.version {
        Version::V4 => 12..20,
        Version::V6 => 8..40,
    };
    let ports = one.transport..one.transport + 4;
    one.version == other.version
        && one.is_tcp == other.is_tcp
        && first[addresses.clone()] == packet[addresses]
        && first[ports.clone()] == packet[ports]
}

/// Whether a packet of the same flow differs only in what segmentation regenerates.
fn same_headers(joined: &Joined, first: &[u8], candidate: &Candidate, packet: &[u8]) -> bool {
    let same_ip = match candidate.version {
        // Type of service; flags; time to live.
        Version::V4 => first[1] == packet[1] && first[6..9] == packet[6..9],
        // Traffic class and flow label; hop limit.
        Version::V6 => first[..4] == packet[..4] && first[7] == packet[7],
    };
    if !same_ip || candidate.payload != joined.candidate.payload {
        return false;
    }
    let one = &first[candidate.transport..candidate.payload];
    let other = &packet[candidate.transport..candidate.payload];
    if !candidate.is_tcp {
        return word(other, udp::CHECKSUM) != 0
            && usize::from(word(other, udp::LENGTH))
                == udp::HEADER_BYTES + candidate.payload_bytes;
    }
    double_word(other, tcp::SEQUENCE) == joined.next_sequence
        // Acknowledgement, data offset and reserved bits.
        && one[8..tcp::FLAGS] == other[8..tcp::FLAGS]
        && other[tcp::FLAGS] & !tcp::PSH == one[tcp::FLAGS]
        // Window; urgent pointer and options.
        && one[14..tcp::CHECKSUM] == other[14..tcp::CHECKSUM]
        && one[tcp::URGENT..] == other[tcp::URGENT..]
}

/// A hash of the flow, for a first comparison; an attacker gains nothing by a collision.
fn flow(packet: &[u8], version: Version, transport: usize, protocol: u8) -> u64 {
    // 2^64 divided by the golden ratio, as Fibonacci hashing has it.
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let addresses = match version {
        Version::V4 => &packet[12..20],
        Version::V6 => &packet[8..40],
    };
    let ports = u64::from(double_word(packet, transport));
    let start = ports << 8 | u64::from(protocol);
    let (words, _) = addresses.as_chunks::<8>();
    let mix = |sum: u64, word: &[u8; 8]| {
        (sum.rotate_left(29) ^ u64::from_ne_bytes(*word)).wrapping_mul(FACTOR)
    };
    words.iter().fold(start, mix).max(CLOSED + 1)
}
