//! Packets as real bytes: IPv4 with TCP or UDP, payload all zeros.
//!
//! For a gateway that carries hosts' packets: parsers, classifiers and middleboxes take the bytes for an
//! ordinary packet, and the other gateway decodes them.

use std::net::Ipv4Addr;

use super::{
    packet::{
        Body, Ecn, Flags, IP_HEADER, IpPacket, SACK_BLOCKS_MAX, SackBlocks, TCP_HEADER, TcpHeader,
        Timestamps, UDP_HEADER, UdpHeader,
    },
    tcp::WINDOW_SCALE,
};

const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
const TTL: u8 = 64;
const DONT_FRAGMENT: u8 = 0x40;
const IP: usize = IP_HEADER as usize;
const TCP: usize = TCP_HEADER as usize;
const UDP: usize = UDP_HEADER as usize;

const OPTION_END: u8 = 0;
const OPTION_NONE: u8 = 1;
const OPTION_MSS: u8 = 2;
const OPTION_WINDOW_SCALE: u8 = 3;
const OPTION_SACK_PERMITTED: u8 = 4;
const OPTION_SACK: u8 = 5;
const OPTION_TIMESTAMPS: u8 = 8;

/// Encodes a packet into `bytes`, replacing the contents. Returns whether it could: a packet with real bytes
/// ([`Body::Bytes`]) belongs to a gateway and is not carried by another.
///
/// The window is written in units of 2^[`WINDOW_SCALE`] bytes, also in a SYN, so that [`decode`] returns the
/// original.
#[must_use]
pub fn encode(packet: &IpPacket, bytes: &mut Vec<u8>) -> bool {
    let protocol = match packet.body {
        Body::Tcp(_) => PROTOCOL_TCP,
        Body::Udp(_) => PROTOCOL_UDP,
        Body::Bytes(..) => return false,
    };
    let length = packet.length();
    bytes.clear();
    bytes.resize(usize::from(length), 0);
    let (ip, rest) = bytes.split_at_mut(IP);
    ip[0] = 0x45;
    ip[1] = match packet.ecn {
        Ecn::NotCapable => 0,
        Ecn::Capable => 2,
        Ecn::Congestion => 3,
    };
    ip[2..4].copy_from_slice(&length.to_be_bytes());
    ip[6] = DONT_FRAGMENT;
    ip[8] = TTL;
    ip[9] = protocol;
    ip[12..16].copy_from_slice(&packet.source.octets());
    ip[16..20].copy_from_slice(&packet.destination.octets());
    let sum = checksum(&[ip]);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let (header, place) = match &packet.body {
        Body::Tcp(header) => (write_tcp(header, rest), 16),
        Body::Udp(header) | Body::Bytes(header, _) => (write_udp(header, rest), 6),
    };
    // The payload is zero and does not change the checksum.
    let pseudo = [0, protocol];
    let len = (length - IP_HEADER).to_be_bytes();
    let sum = checksum(&[&ip[12..20], &pseudo, &len, &rest[..header]]);
    rest[place..place + 2].copy_from_slice(&sum.to_be_bytes());
    true
}

/// Decodes the output of [`encode`], after any changes of its ECN bits, its hop limit and the MSS in its SYN;
/// `None` for other bytes.
pub fn decode(bytes: &[u8]) -> Option<IpPacket> {
    let (ip, rest) = bytes.split_at_checked(IP)?;
    let length = u16::from_be_bytes([ip[2], ip[3]]);
    if ip[0] != 0x45 || usize::from(length) != bytes.len() || checksum(&[ip]) != 0 {
        return None;
    }
    let ecn = match ip[1] & 3 {
        0 => Ecn::NotCapable,
        3 => Ecn::Congestion,
        _ => Ecn::Capable,
    };
    let body = match ip[9] {
        PROTOCOL_TCP => Body::Tcp(read_tcp(rest)?),
        PROTOCOL_UDP => Body::Udp(read_udp(rest)?),
        _ => return None,
    };
    Some(IpPacket {
        source: address(ip, 12),
        destination: address(ip, 16),
        ecn,
        body,
    })
}

fn write_udp(header: &UdpHeader, bytes: &mut [u8]) -> usize {
    bytes[0..2].copy_from_slice(&header.source_port.to_be_bytes());
    bytes[2..4].copy_from_slice(&header.destination_port.to_be_bytes());
    bytes[4..6].copy_from_slice(&(UDP_HEADER + header.payload).to_be_bytes());
    UDP
}

fn read_udp(bytes: &[u8]) -> Option<UdpHeader> {
    let payload = bytes.len().checked_sub(UDP)?;
    Some(UdpHeader {
        source_port: u16_at(bytes, 0)?,
        destination_port: u16_at(bytes, 2)?,
        payload: payload as u16,
    })
}

fn write_tcp(header: &TcpHeader, bytes: &mut [u8]) -> usize {
    let length = usize::from(header.header_length());
    let (fixed, rest) = bytes.split_at_mut(TCP);
    fixed[0..2].copy_from_slice(&header.source_port.to_be_bytes());
    fixed[2..4].copy_from_slice(&header.destination_port.to_be_bytes());
    fixed[4..8].copy_from_slice(&header.sequence.to_be_bytes());
    fixed[8..12].copy_from_slice(&header.acknowledgement.to_be_bytes());
    fixed[12] = ((length / 4) as u8) << 4;
    let Flags { syn, ack, ece, cwr } = header.flags;
    fixed[13] = u8::from(syn) << 1 | u8::from(ack) << 4 | u8::from(ece) << 6 | u8::from(cwr) << 7;
    let window = (header.window >> WINDOW_SCALE).min(u32::from(u16::MAX)) as u16;
    fixed[14..16].copy_from_slice(&window.to_be_bytes());
    let mut options = &mut rest[..length - TCP];
    if let Some(mss) = header.mss {
        let [high, low] = mss.to_be_bytes();
        put(&mut options, &[OPTION_MSS, 4, high, low]);
        put(
            &mut options,
            &[OPTION_NONE, OPTION_NONE, OPTION_SACK_PERMITTED, 2],
        );
        put(
            &mut options,
            &[OPTION_NONE, OPTION_WINDOW_SCALE, 3, WINDOW_SCALE],
        );
    }
    if let Some(Timestamps { value, echo }) = header.timestamps {
        put(
            &mut options,
            &[OPTION_NONE, OPTION_NONE, OPTION_TIMESTAMPS, 10],
        );
        put(&mut options, &value.to_be_bytes());
        put(&mut options, &echo.to_be_bytes());
    }
    if !header.sack.is_empty() {
        let length = 2 + 8 * header.sack.len() as u8;
        put(
            &mut options,
            &[OPTION_NONE, OPTION_NONE, OPTION_SACK, length],
        );
        for (from, to) in header.sack.iter() {
            put(&mut options, &from.to_be_bytes());
            put(&mut options, &to.to_be_bytes());
        }
    }
    length
}

fn put(options: &mut &mut [u8], bytes: &[u8]) {
    let (head, tail) = std::mem::take(options).split_at_mut(bytes.len());
    head.copy_from_slice(bytes);
    *options = tail;
}

fn read_tcp(bytes: &[u8]) -> Option<TcpHeader> {
    let length = usize::from(bytes.get(12)? >> 4) * 4;
    let options = bytes.get(TCP..length)?;
    let flags = bytes[13];
    let bit = |position: u8| flags >> position & 1 == 1;
    let mut header = TcpHeader {
        source_port: u16_at(bytes, 0)?,
        destination_port: u16_at(bytes, 2)?,
        sequence: u32_at(bytes, 4)?,
        acknowledgement: u32_at(bytes, 8)?,
        window: u32::from(u16_at(bytes, 14)?) << WINDOW_SCALE,
        flags: Flags {
            syn: bit(1),
            ack: bit(4),
            ece: bit(6),
            cwr: bit(7),
        },
        timestamps: None,
        mss: None,
        sack: SackBlocks::default(),
        payload: (bytes.len() - length) as u16,
    };
    read_options(options, &mut header)?;
    Some(header)
}

fn read_options(mut options: &[u8], header: &mut TcpHeader) -> Option<()> {
    while let Some((&kind, rest)) = options.split_first() {
        match kind {
            OPTION_END => break,
            OPTION_NONE => {
                options = rest;
                continue;
            }
            _ => {}
        }
        let length = usize::from(*rest.first()?);
        let value = options.get(2..length)?;
        match kind {
            OPTION_MSS => header.mss = Some(u16_at(value, 0)?),
            OPTION_TIMESTAMPS => {
                header.timestamps = Some(Timestamps {
                    value: u32_at(value, 0)?,
                    echo: u32_at(value, 4)?,
                });
            }
            OPTION_SACK => {
                for block in value.chunks_exact(8).take(SACK_BLOCKS_MAX) {
                    header.sack.push(u32_at(block, 0)?, u32_at(block, 4)?);
                }
            }
            _ => {}
        }
        options = &options[length..];
    }
    Some(())
}

/// The Internet checksum (RFC 1071) of parts of even length.
fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0_u32;
    for part in parts {
        let (words, _) = part.as_chunks::<2>();
        sum += words
            .iter()
            .map(|word| u32::from(u16::from_be_bytes(*word)))
            .sum::<u32>();
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn address(bytes: &[u8], at: usize) -> Ipv4Addr {
    Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3])
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let value = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes([value[0], value[1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let value = bytes.get(at..at + 4)?;
    Some(u32::from_be_bytes([value[0], value[1], value[2], value[3]]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bodies() -> impl Strategy<Value = Body> {
        let flags =
            any::<[bool; 4]>().prop_map(|[syn, ack, ece, cwr]| Flags { syn, ack, ece, cwr });
        let timestamps = prop::option::of(any::<(u32, u32)>());
        let sack = prop::collection::vec(any::<(u32, u32)>(), 0..=SACK_BLOCKS_MAX);
        let numbers = any::<(u32, u32, u16)>();
        let tcp = (
            any::<(u16, u16)>(),
            numbers,
            flags,
            timestamps,
            sack,
            0..9000_u16,
        );
        let tcp = (tcp, prop::option::of(any::<u16>())).prop_map(
            |((ports, numbers, flags, timestamps, blocks, payload), mss)| {
                let mut sack = SackBlocks::default();
                // A SYN has no room for blocks, and none to report.
                for (from, to) in blocks.into_iter().filter(|_| mss.is_none()) {
                    sack.push(from, to);
                }
                Body::Tcp(TcpHeader {
                    source_port: ports.0,
                    destination_port: ports.1,
                    sequence: numbers.0,
                    acknowledgement: numbers.1,
                    window: u32::from(numbers.2) << WINDOW_SCALE,
                    flags,
                    timestamps: timestamps.map(|(value, echo)| Timestamps { value, echo }),
                    mss,
                    sack,
                    payload,
                })
            },
        );
        let udp = (any::<(u16, u16)>(), 0..9000_u16).prop_map(|(ports, payload)| {
            Body::Udp(UdpHeader {
                source_port: ports.0,
                destination_port: ports.1,
                payload,
            })
        });
        prop_oneof![tcp, udp]
    }

    proptest! {
        #[test]
        fn written_values_parse_to_the_same(
            addresses in any::<(u32, u32)>(),
            ecn in prop::sample::select(vec![Ecn::NotCapable, Ecn::Capable, Ecn::Congestion]),
            body in bodies(),
        ) {
            let packet = IpPacket {
                source: Ipv4Addr::from_bits(addresses.0),
                destination: Ipv4Addr::from_bits(addresses.1),
                ecn,
                body,
            };
            let mut bytes = vec![9; 7];
            prop_assert!(encode(&packet, &mut bytes));
            prop_assert_eq!(bytes.len(), usize::from(packet.length()));
            prop_assert_eq!(decode(&bytes), Some(packet));
            let protocol = [0, bytes[9]];
            let len = (bytes.len() as u16 - 20).to_be_bytes();
            let mut rest = bytes[20..].to_vec();
            rest.resize(rest.len().next_multiple_of(2), 0);
            prop_assert_eq!(checksum(&[&bytes[12..20], &protocol, &len, &rest]), 0);
        }

        #[test]
        fn any_bytes_are_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = decode(&bytes);
        }

        #[test]
        fn any_options_are_refused_or_read(options in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = read_options(&options, &mut TcpHeader::default());
        }
    }
}
