//! Packets for tests, written and checked by another implementation (etherparse).

use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TcpHeader, TransportSlice};

use crate::Version;

pub(crate) const V4: ([u8; 4], [u8; 4]) = ([192, 0, 2, 1], [198, 51, 100, 7]);
pub(crate) const V6: ([u8; 16], [u8; 16]) = (
    [0x20, 1, 0xd, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    [0x20, 1, 0xd, 0xb8, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7],
);
const HOP_LIMIT: u8 = 64;

pub(crate) fn udp(version: Version, payload: &[u8]) -> Vec<u8> {
    let mut packet = Vec::new();
    let builder = match version {
        Version::V4 => PacketBuilder::ipv4(V4.0, V4.1, HOP_LIMIT),
        Version::V6 => PacketBuilder::ipv6(V6.0, V6.1, HOP_LIMIT),
    };
    builder
        .udp(40_000, 5060)
        .write(&mut packet, payload)
        .unwrap();
    packet
}

pub(crate) fn tcp(version: Version, with: impl FnOnce(&mut TcpHeader), payload: &[u8]) -> Vec<u8> {
    let mut packet = Vec::new();
    let builder = match version {
        Version::V4 => PacketBuilder::ipv4(V4.0, V4.1, HOP_LIMIT),
        Version::V6 => PacketBuilder::ipv6(V6.0, V6.1, HOP_LIMIT),
    };
    let mut header = TcpHeader::new(40_000, 443, 1_000_000, 64_000);
    with(&mut header);
    builder
        .tcp_header(header)
        .write(&mut packet, payload)
        .unwrap();
    packet
}

/// Panics unless all checksums of a TCP, UDP or ICMP packet in one piece are right.
pub(crate) fn assert_checksums(packet: &[u8]) {
    let sliced = SlicedPacket::from_ip(packet).unwrap();
    let transport = sliced.transport.expect("a transport header");
    match sliced.net.expect("an IP header") {
        NetSlice::Ipv4(ip) => {
            let ip = ip.header();
            assert_eq!(ip.header_checksum(), ip.to_header().calc_header_checksum());
            let (source, destination) = (ip.source(), ip.destination());
            match transport {
                TransportSlice::Udp(udp) => {
                    let header = udp.to_header();
                    let sum = header.calc_checksum_ipv4_raw(source, destination, udp.payload());
                    assert_eq!(udp.checksum(), sum.unwrap());
                }
                TransportSlice::Tcp(tcp) => {
                    let sum = tcp.calc_checksum_ipv4(source, destination);
                    assert_eq!(tcp.checksum(), sum.unwrap());
                }
                TransportSlice::Icmpv4(icmp) => {
                    let sum = icmp.icmp_type().calc_checksum(icmp.payload());
                    assert_eq!(icmp.checksum(), sum);
                }
                other => panic!("unexpected {other:?}"),
            }
        }
        NetSlice::Ipv6(ip) => {
            let (source, destination) = (ip.header().source(), ip.header().destination());
            match transport {
                TransportSlice::Udp(udp) => {
                    let header = udp.to_header();
                    let sum = header.calc_checksum_ipv6_raw(source, destination, udp.payload());
                    assert_eq!(udp.checksum(), sum.unwrap());
                }
                TransportSlice::Tcp(tcp) => {
                    let sum = tcp.calc_checksum_ipv6(source, destination);
                    assert_eq!(tcp.checksum(), sum.unwrap());
                }
                TransportSlice::Icmpv6(icmp) => {
                    assert!(icmp.is_checksum_valid(source, destination));
                }
                other => panic!("unexpected {other:?}"),
            }
        }
        NetSlice::Arp(_) => panic!("not IP"),
    }
}
