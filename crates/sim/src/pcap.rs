//! Packet captures in virtual time: classic pcap with nanoseconds, LINKTYPE_RAW.
//!
//! A packet in the simulator is a UDP payload with two addresses. IP and UDP headers are generated here, with
//! lengths and checksums, so that any reader accepts the file. The caller writes it to disk.

use std::net::{IpAddr, SocketAddr};

use keiro_units::Instant;

use crate::packet::Packet;

/// Maximum length of a capture; ours: a viewer still opens it quickly.
pub const CAPTURE_BYTES_MAX: usize = 64 << 20;

/// Nanosecond variant of the classic magic number (draft-ietf-opsawg-pcap §4).
const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
/// Raw IPv4 or IPv6 (draft-ietf-opsawg-pcaplinktype, LINKTYPE_RAW).
const LINKTYPE_RAW: u32 = 101;
const UDP: u8 = 17;
const HOP_LIMIT: u8 = 64;
const UDP_HEADER: usize = 8;

/// A capture that grows in memory, up to [`CAPTURE_BYTES_MAX`].
#[derive(Clone, Debug)]
pub struct Capture {
    bytes: Vec<u8>,
    packets: u64,
    omitted: u64,
}

impl Capture {
    /// A capture without packets.
    pub fn new() -> Self {
        let mut bytes = Vec::with_capacity(1 << 16);
        bytes.extend(MAGIC_NANOSECONDS.to_le_bytes());
        bytes.extend(2_u16.to_le_bytes());
        bytes.extend(4_u16.to_le_bytes());
        // Time zone and accuracy: always zero.
        bytes.extend([0; 8]);
        bytes.extend(u32::from(u16::MAX).to_le_bytes());
        bytes.extend(LINKTYPE_RAW.to_le_bytes());
        Self {
            bytes,
            packets: 0,
            omitted: 0,
        }
    }

    /// Adds a packet that passed at `at`. One that no longer fits is only counted, and so is one whose
    /// addresses are of different families.
    pub fn record(&mut self, at: Instant, packet: &Packet) {
        let Some(datagram) = ip_datagram(packet) else {
            self.omitted += 1;
            return;
        };
        if self.bytes.len() + 16 + datagram.len() > CAPTURE_BYTES_MAX {
            self.omitted += 1;
            return;
        }
        let (seconds, nanos) = (at.as_nanos() / 1_000_000_000, at.as_nanos() % 1_000_000_000);
        let len = datagram.len() as u32;
        for word in [seconds as u32, nanos as u32, len, len] {
            self.bytes.extend(word.to_le_bytes());
        }
        self.bytes.extend(datagram);
        self.packets += 1;
    }

    /// The file's content so far.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub const fn packets(&self) -> u64 {
        self.packets
    }

    /// Packets that were left out.
    pub const fn omitted(&self) -> u64 {
        self.omitted
    }
}

impl Default for Capture {
    fn default() -> Self {
        Self::new()
    }
}

/// The packet with its headers; `None` if it is too long for IP or mixes families.
fn ip_datagram(packet: &Packet) -> Option<Vec<u8>> {
    let udp_len = u16::try_from(UDP_HEADER + packet.payload.len()).ok()?;
    let mut datagram = match (packet.source.ip(), packet.destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let total = udp_len.checked_add(20)?;
            let mut header = vec![0x45, packet.ecn & 3];
            header.extend(total.to_be_bytes());
            // No identification; Don't Fragment, as path MTU discovery sends it.
            header.extend([0, 0, 0x40, 0, HOP_LIMIT, UDP, 0, 0]);
            header.extend(source.octets());
            header.extend(destination.octets());
            let checksum = !ones_complement_sum(0, &header);
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
            header
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            // The ECN bits are the last two of the traffic class, which straddles two bytes.
            let mut header = vec![0x60, (packet.ecn & 3) << 4, 0, 0];
            header.extend(udp_len.to_be_bytes());
            header.extend([UDP, HOP_LIMIT]);
            header.extend(source.octets());
            header.extend(destination.octets());
            header
        }
        _ => return None,
    };
    datagram.extend(udp_segment(packet, udp_len));
    Some(datagram)
}

fn udp_segment(packet: &Packet, udp_len: u16) -> Vec<u8> {
    let mut segment = Vec::with_capacity(usize::from(udp_len));
    segment.extend(packet.source.port().to_be_bytes());
    segment.extend(packet.destination.port().to_be_bytes());
    segment.extend(udp_len.to_be_bytes());
    segment.extend([0, 0]);
    segment.extend_from_slice(&packet.payload);
    let sum = pseudo_header_sum(packet.source, packet.destination, udp_len);
    // A computed zero is sent as all ones: zero would mean "no checksum" (RFC 768).
    let checksum = match !ones_complement_sum(sum, &segment) {
        0 => u16::MAX,
        checksum => checksum,
    };
    segment[6..8].copy_from_slice(&checksum.to_be_bytes());
    segment
}

/// RFC 768 for IPv4, RFC 8200 §8.1 for IPv6: addresses, length and protocol.
fn pseudo_header_sum(source: SocketAddr, destination: SocketAddr, udp_len: u16) -> u16 {
    let mut header = Vec::with_capacity(36);
    for address in [source.ip(), destination.ip()] {
        match address {
            IpAddr::V4(address) => header.extend(address.octets()),
            IpAddr::V6(address) => header.extend(address.octets()),
        }
    }
    header.extend(udp_len.to_be_bytes());
    header.extend([0, UDP]);
    ones_complement_sum(0, &header)
}

/// The Internet checksum's sum (RFC 1071), an odd last byte padded with zero.
fn ones_complement_sum(initial: u16, bytes: &[u8]) -> u16 {
    let mut sum = u64::from(initial);
    for pair in bytes.chunks(2) {
        sum += u64::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
    }
    while sum > u64::from(u16::MAX) {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
