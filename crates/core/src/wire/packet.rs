//! Packet kinds and their clear-text headers.

use super::{Features, Reader};

/// First byte of a handshake initiation.
pub const KIND_INITIATION: u8 = 1;
/// First byte of a handshake response.
pub const KIND_RESPONSE: u8 = 2;
/// First byte of a cookie reply.
pub const KIND_COOKIE: u8 = 3;
/// First byte of a data packet.
pub const KIND_DATA: u8 = 4;
/// First byte of a version reply.
pub const KIND_VERSION_REPLY: u8 = 5;

/// Bytes of the AEAD tag behind every packet.
pub const TAG_LEN: usize = 16;
/// Header of a data packet: kind, path, receiver index, low half of the packet number.
pub const DATA_HEADER_LEN: usize = 10;
/// Clear-text payload of both handshake messages, bytes.
pub const PAYLOAD_LEN: usize = 28;
/// A handshake initiation: 8 header, 32 ephemeral, 48 static, payload and tag, two MACs.
pub const INITIATION_LEN: usize = 8 + 32 + 48 + PAYLOAD_LEN + TAG_LEN + 32;
/// A handshake response: 12 header, 32 ephemeral, payload and tag, two MACs. Shorter than the
/// initiation, so that answering amplifies nothing.
pub const RESPONSE_LEN: usize = 12 + 32 + PAYLOAD_LEN + TAG_LEN + 32;
/// A cookie reply: 8 header, 24 nonce, 16 cookie and tag.
pub const COOKIE_LEN: usize = 8 + 24 + 16 + TAG_LEN;
/// A version reply: 8 header, MAC. Shorter than the shortest initiation of any version.
pub const VERSION_REPLY_LEN: usize = 8 + 16;
/// The shortest initiation of any version: 8 header, two MACs.
pub const ANY_INITIATION_LEN_MIN: usize = 8 + 32;

/// Header of a data packet; all of it is authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataHeader {
    /// The path as its sender numbers it.
    pub path: u8,
    /// The receiver's index for the session and its key.
    pub receiver: u32,
    /// Low 32 bits of the packet number of this path.
    pub packet_number: u32,
}

impl DataHeader {
    /// As it is on the wire.
    pub fn encode(&self) -> [u8; DATA_HEADER_LEN] {
        let mut out = [0; DATA_HEADER_LEN];
        out[0] = KIND_DATA;
        out[1] = self.path;
        out[2..6].copy_from_slice(&self.receiver.to_be_bytes());
        out[6..].copy_from_slice(&self.packet_number.to_be_bytes());
        out
    }

    /// From the start of a data packet; `None` if it is too short for header and tag.
    pub fn decode(packet: &[u8]) -> Option<Self> {
        if packet.len() < DATA_HEADER_LEN + TAG_LEN {
            return None;
        }
        let mut reader = Reader::new(&packet[1..]);
        Some(Self {
            path: reader.u8()?,
            receiver: reader.u32()?,
            packet_number: reader.u32()?,
        })
    }
}

/// The encrypted payload of both handshake messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakePayload {
    /// Initiation: bit 0 AES-256-GCM wanted. Response: bit 0 AES-256-GCM chosen.
    pub ciphers: u8,
    /// The optional parts of the protocol that the sender understands; none from 0.1.0.
    pub features: Features,
    /// Initiation: Unix time in nanoseconds, strictly rising per gateway. Response: zero.
    pub timestamp: u64,
    /// Drawn at random when the gateway starts: another value means that it has restarted.
    pub incarnation: u64,
    /// Bytes of messages that the other side may start at first.
    pub credit: u64,
}

impl HandshakePayload {
    /// As it is on the wire.
    pub fn encode(&self) -> [u8; PAYLOAD_LEN] {
        let mut out = [0; PAYLOAD_LEN];
        out[0] = self.ciphers;
        out[2..4].copy_from_slice(&self.features.bits().to_be_bytes());
        out[4..12].copy_from_slice(&self.timestamp.to_be_bytes());
        out[12..20].copy_from_slice(&self.incarnation.to_be_bytes());
        out[20..].copy_from_slice(&self.credit.to_be_bytes());
        out
    }

    /// From its bytes; `None` for another length. The reserved byte is ignored.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != PAYLOAD_LEN {
            return None;
        }
        let mut reader = Reader::new(bytes);
        let ciphers = reader.u8()?;
        reader.u8()?;
        let features = Features::from_bits(u16::from_be_bytes(reader.array()?));
        Some(Self {
            ciphers,
            features,
            timestamp: reader.u64()?,
            incarnation: reader.u64()?,
            credit: reader.u64()?,
        })
    }
}

/// The packet number nearest to `expected` whose low 32 bits are `low` (RFC 9000 §A.3).
pub fn expand_packet_number(expected: u64, low: u32) -> u64 {
    const WINDOW: u64 = 1 << 32;
    let candidate = (expected & !(WINDOW - 1)) | u64::from(low);
    if candidate + WINDOW / 2 <= expected {
        candidate.saturating_add(WINDOW)
    } else if candidate > expected.saturating_add(WINDOW / 2) && candidate >= WINDOW {
        candidate - WINDOW
    } else {
        candidate
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn packet_number_expands_within_half_a_window(
            expected in 0u64..1 << 61,
            offset in -(1i64 << 31) + 1..1i64 << 31,
        ) {
            let number = expected.saturating_add_signed(offset);
            prop_assert_eq!(expand_packet_number(expected, number as u32), number);
        }

        #[test]
        fn data_header_round_trips(path: u8, receiver: u32, packet_number: u32) {
            let header = DataHeader { path, receiver, packet_number };
            let mut packet = header.encode().to_vec();
            prop_assert_eq!(DataHeader::decode(&packet), None);
            packet.extend([0; TAG_LEN]);
            prop_assert_eq!(DataHeader::decode(&packet), Some(header));
        }

        #[test]
        fn handshake_payload_round_trips(
            ciphers: u8,
            features: u16,
            timestamp: u64,
            incarnation: u64,
            credit: u64,
        ) {
            let features = Features::from_bits(features);
            let payload = HandshakePayload { ciphers, features, timestamp, incarnation, credit };
            prop_assert_eq!(HandshakePayload::decode(&payload.encode()), Some(payload));
        }
    }
}
