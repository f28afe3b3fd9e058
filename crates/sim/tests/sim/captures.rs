//! Captures parsed by an independent reader: lengths, times and checksums are correct.

use std::{net::SocketAddr, time::Duration};

use keiro_sim::{CAPTURE_BYTES_MAX, Capture, GatewayPair, Packet, PathSpec, Scenario, Side};
use keiro_units::{Bandwidth, Instant};

/// One parsed record.
#[derive(Debug, PartialEq)]
struct Found {
    nanos: u64,
    source: String,
    destination: String,
    ecn: u8,
    payload: Vec<u8>,
}

fn packet(source: &str, destination: &str, ecn: u8, payload: &[u8]) -> Packet {
    let parse = |text: &str| text.parse::<SocketAddr>().expect("an address");
    Packet {
        source: parse(source),
        destination: parse(destination),
        ecn,
        payload: payload.to_vec(),
    }
}

#[test]
fn capture_reads_back_as_written() {
    let packets = [
        packet("10.1.2.3:51820", "10.1.2.4:4000", 2, b"even"),
        packet("10.1.2.4:4000", "10.1.2.3:51820", 0, b"odd"),
        packet("[fd00::1]:7", "[fd00::2]:65535", 3, &[0xff; 1400]),
        packet("10.0.0.1:1", "10.0.0.2:2", 1, b""),
    ];
    let mut capture = Capture::new();
    let mut expected = Vec::new();
    for (i, packet) in (0..).zip(&packets) {
        let at = Instant::ZERO + Duration::new(3, 7) * i;
        capture.record(at, packet);
        expected.push(Found {
            nanos: at.as_nanos(),
            source: packet.source.to_string(),
            destination: packet.destination.to_string(),
            ecn: packet.ecn,
            payload: packet.payload.clone(),
        });
    }
    assert_eq!(capture.packets(), 4);
    assert_eq!(read(capture.as_bytes()), expected);
}

#[test]
fn packets_that_cannot_be_captured_are_counted() {
    let mut capture = Capture::new();
    capture.record(
        Instant::ZERO,
        &packet("10.0.0.1:1", "[fd00::2]:2", 0, b"two families"),
    );
    capture.record(
        Instant::ZERO,
        &packet("10.0.0.1:1", "10.0.0.2:2", 0, &[0; 65_508]),
    );
    assert_eq!((capture.packets(), capture.omitted()), (0, 2));

    let large = packet("10.0.0.1:1", "10.0.0.2:2", 0, &[0; 60_000]);
    for _ in 0..1200 {
        capture.record(Instant::ZERO, &large);
    }
    assert!(capture.as_bytes().len() <= CAPTURE_BYTES_MAX);
    assert_eq!(capture.packets() + capture.omitted(), 1202);
    assert_eq!(read(capture.as_bytes()).len() as u64, capture.packets());
}

#[test]
fn run_is_captured_at_a_gateway_both_ways() {
    let delay = Duration::from_millis(2);
    let path = PathSpec::new(Bandwidth::from_mbit_per_second(10), delay);
    let mut scenario = Scenario::new(vec![path]);
    let app = scenario.add_message_app(None, &[0]);
    let mut pair = GatewayPair::new(&scenario, 1);
    pair.capture(Side::A, 0);
    pair.set_up().unwrap_or_else(|failure| panic!("{failure}"));
    pair.begin();
    pair.send(Side::A, app, 10_000);
    pair.finish().unwrap_or_else(|failure| panic!("{failure}"));
    let report = pair.report();
    report.assert_complete();
    let found = read(pair.captured(Side::A, 0).unwrap().as_bytes());
    let from_a = |found: &&Found| found.source == "10.0.0.1:51820";
    let sent = found.iter().filter(from_a).count() as u64;
    assert_eq!(sent, report.links[0][0].arrived_packets);
    let received = found.len() as u64 - sent;
    assert_eq!(received, report.links[0][1].departed_packets);
    assert!(found.is_sorted_by_key(|found| found.nanos));
}

/// Parses a little-endian nanosecond pcap of raw IP and checks every length and checksum.
fn read(mut file: &[u8]) -> Vec<Found> {
    let header = take(&mut file, 24);
    assert_eq!(word(&header[0..4]), 0xa1b2_3c4d);
    assert_eq!(header[4..8], [2, 0, 4, 0]);
    assert_eq!(word(&header[20..24]), 101);
    let mut found = Vec::new();
    while !file.is_empty() {
        let record = take(&mut file, 16);
        let (captured, original) = (word(&record[8..12]), word(&record[12..16]));
        assert_eq!(captured, original);
        let datagram = take(&mut file, captured as usize);
        let nanos = u64::from(word(&record[0..4])) * 1_000_000_000 + u64::from(word(&record[4..8]));
        found.push(read_datagram(nanos, datagram));
    }
    found
}

fn read_datagram(nanos: u64, datagram: &[u8]) -> Found {
    let (ecn, addresses, udp) = match datagram[0] >> 4 {
        4 => {
            assert_eq!(datagram[0], 0x45);
            assert_eq!(usize::from(short(&datagram[2..4])), datagram.len());
            assert_eq!(sum(&datagram[..20]), 0xffff, "IPv4 header checksum");
            assert_eq!(datagram[9], 17);
            (datagram[1] & 3, &datagram[12..20], &datagram[20..])
        }
        6 => {
            assert_eq!(usize::from(short(&datagram[4..6])), datagram.len() - 40);
            assert_eq!(datagram[6], 17);
            ((datagram[1] >> 4) & 3, &datagram[8..40], &datagram[40..])
        }
        version => panic!("IP version {version}"),
    };
    assert_eq!(usize::from(short(&udp[4..6])), udp.len());
    let mut summed = addresses.to_vec();
    summed.extend((udp.len() as u16).to_be_bytes());
    summed.extend([0, 17]);
    summed.extend(udp);
    assert_ne!(short(&udp[6..8]), 0);
    assert_eq!(sum(&summed), 0xffff, "UDP checksum");
    let end = |octets: &[u8], port: &[u8]| {
        let port = short(port);
        if let Ok(v4) = <[u8; 4]>::try_from(octets) {
            return SocketAddr::from((v4, port)).to_string();
        }
        let v6 = <[u8; 16]>::try_from(octets).expect("4 or 16 octets");
        SocketAddr::from((v6, port)).to_string()
    };
    let (source, destination) = addresses.split_at(addresses.len() / 2);
    Found {
        nanos,
        source: end(source, &udp[0..2]),
        destination: end(destination, &udp[2..4]),
        ecn,
        payload: udp[8..].to_vec(),
    }
}

fn take<'a>(file: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (front, rest) = file.split_at(len);
    *file = rest;
    front
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes.try_into().expect("four bytes"))
}

fn short(bytes: &[u8]) -> u16 {
    u16::from_be_bytes(bytes.try_into().expect("two bytes"))
}

/// The Internet checksum (RFC 1071).
fn sum(bytes: &[u8]) -> u32 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}
