//! Cost per packet: validation, flow numbers, prefixes, segmentation, coalescing.
//!
//! Run with `cargo bench -p keiro-ip`. Segmentation and coalescing are measured per batch of 44 segments of
//! 1,448 bytes, or of 64 datagrams of 200 bytes. `items` are packets, so that the throughput column has
//! packets per second.

use std::{hint::black_box, net::IpAddr, time::Duration};

use divan::{Bencher, counter::ItemsCount};
use ipnet::IpNet;
use keiro_ip::{
    Header, Ports, Version,
    builtin_classes::{FlowClassifier, Sorting},
    checksum::Sum,
    flow::{FlowKey, FlowSeed},
    mss,
    offload::{Coalescer, Segments, VnetHeader},
    prefix::PrefixTable,
    rules::{Classifier, Match},
    ttl,
};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

const SEED: u64 = 1;
const SEGMENT_BYTES: usize = 1448;
const SEGMENTS: usize = 44;
const DATAGRAM_BYTES: usize = 200;
const DATAGRAMS: usize = 64;

fn main() {
    divan::main();
}

fn tcp(version: Version, sequence: u32, bytes: usize) -> Vec<u8> {
    use etherparse::PacketBuilder;
    let builder = match version {
        Version::V4 => PacketBuilder::ipv4([10, 1, 2, 3], [10, 9, 8, 7], 64),
        Version::V6 => PacketBuilder::ipv6([0x20; 16], [0x21; 16], 64),
    };
    let payload = vec![7; bytes];
    let mut packet = Vec::new();
    let tcp = builder.tcp(40_000, 443, sequence, 64_000).ack(7);
    tcp.write(&mut packet, &payload)
        .expect("a packet is written");
    packet
}

fn stream(version: Version) -> Vec<Vec<u8>> {
    let sequence = |index: usize| (index * SEGMENT_BYTES) as u32;
    (0..SEGMENTS)
        .map(|index| tcp(version, sequence(index), SEGMENT_BYTES))
        .collect()
}

fn datagrams() -> Vec<Vec<u8>> {
    let builder = etherparse::PacketBuilder::ipv4([10, 1, 2, 3], [10, 9, 8, 7], 64);
    let mut packet = Vec::new();
    let udp = builder.udp(40_000, 5060);
    udp.write(&mut packet, &[7; DATAGRAM_BYTES])
        .expect("a packet is written");
    vec![packet; DATAGRAMS]
}

fn large(packets: &[Vec<u8>]) -> Vec<u8> {
    let mut coalescer = Coalescer::new(1, true, true);
    for packet in packets {
        coalescer.push(packet).expect("all are one");
    }
    let mut whole = Vec::new();
    coalescer.drain(|bytes| whole = bytes.to_vec());
    whole
}

fn cut(bencher: Bencher, packets: &[Vec<u8>]) {
    let whole = large(packets);
    let mut out = vec![0; 65_536];
    bencher
        .counter(ItemsCount::new(packets.len()))
        .bench_local(|| {
            let (vnet, packet) = VnetHeader::split(&whole).expect("a header");
            let mut segments = Segments::new(vnet, packet).expect("a large packet");
            while let Some(length) = segments.write_next(&mut out) {
                black_box(&out[..length]);
            }
        });
}

fn put_together(bencher: Bencher, packets: &[Vec<u8>], flows: usize) {
    let mut coalescer = Coalescer::new(flows, true, true);
    bencher
        .counter(ItemsCount::new(packets.len()))
        .bench_local(|| {
            for packet in packets {
                coalescer.push(packet).expect("there is room");
            }
            coalescer.drain(|whole| {
                black_box(whole);
            });
        });
}

#[divan::bench(args = [Version::V4, Version::V6])]
fn cut_tcp(bencher: Bencher, version: Version) {
    cut(bencher, &stream(version));
}

#[divan::bench]
fn cut_udp(bencher: Bencher) {
    cut(bencher, &datagrams());
}

#[divan::bench(args = [Version::V4, Version::V6])]
fn put_tcp_together(bencher: Bencher, version: Version) {
    put_together(bencher, &stream(version), 1);
}

#[divan::bench]
fn put_udp_together(bencher: Bencher) {
    put_together(bencher, &datagrams(), 1);
}

/// Packets of 64 flows in turn: each is looked up among 64 open ones.
#[divan::bench]
fn put_64_flows_together(bencher: Bencher) {
    let mut packets = Vec::new();
    for index in 0..8u32 {
        for flow in 0..64u8 {
            let mut packet = tcp(Version::V4, index * 64, 64);
            // Another source for each flow, with valid checksums: 1 is added to one word and subtracted from
            // another.
            packet[15] = packet[15].wrapping_add(flow);
            packet[19] = packet[19].wrapping_sub(flow);
            packets.push(packet);
        }
    }
    put_together(bencher, &packets, 512);
}

#[divan::bench(args = [64, 1448])]
fn checksum(bencher: Bencher, bytes: usize) {
    let data = vec![7; bytes];
    bencher.bench_local(|| Sum::default().bytes(black_box(&data)).checksum());
}

#[divan::bench(args = [Version::V4, Version::V6])]
fn parse(bencher: Bencher, version: Version) {
    let packet = tcp(version, 0, SEGMENT_BYTES);
    bencher.bench_local(|| Header::parse(black_box(&packet)));
}

#[divan::bench(args = [Version::V4, Version::V6])]
fn flow_number(bencher: Bencher, version: Version) {
    let header = Header::parse(&tcp(version, 0, 100)).expect("a packet");
    let seed = FlowSeed::new(&[7; 16]);
    bencher.bench_local(|| seed.number(&FlowKey::of(black_box(&header))));
}

#[divan::bench]
fn hop_and_clamp(bencher: Bencher) {
    let mut packet = tcp(Version::V4, 0, SEGMENT_BYTES);
    let header = Header::parse(&packet).expect("a packet");
    bencher.bench_local(|| {
        packet[8] = 64;
        let _ = ttl::decrement(black_box(&mut packet), Version::V4);
        mss::clamp(&mut packet, &header, 1400)
    });
}

/// The last of as many rules matches.
#[divan::bench(args = [1, 16, 256])]
fn classify(bencher: Bencher, rules: usize) {
    let header = Header::parse(&tcp(Version::V4, 0, 100)).expect("a packet");
    let rule = |index: usize| {
        let port = if index + 1 == rules { 443 } else { 444 };
        let rule = Match {
            destination: Some("10.0.0.0/8".parse().expect("a prefix")),
            destination_ports: Some(port..=port),
            ..Match::default()
        };
        (rule, index)
    };
    let classifier = Classifier::new((0..rules).map(rule).collect()).expect("few rules");
    bencher.bench_local(|| classifier.application(black_box(&header), None).copied());
}

/// A packet of one of as many flows in turn, all known.
#[divan::bench(args = [1, 64, 16_384])]
fn sort(bencher: Bencher, flows: u16) {
    let mut classifier = classifier();
    let packet = tcp(Version::V4, 0, SEGMENT_BYTES);
    let mut header = Header::parse(&packet).expect("a packet");
    let mut number = 0;
    bencher.bench_local(|| {
        number = (number + 1) % flows;
        header.ports = Some(Ports {
            source: 1024 + number,
            destination: 443,
        });
        classifier.on_packet(Duration::from_secs(1), black_box(&header), &packet, 1)
    });
}

fn classifier() -> FlowClassifier {
    let sorting = Sorting {
        has_classes: true,
        ..Sorting::default()
    };
    FlowClassifier::new(FlowSeed::new(&[7; 16]), sorting)
}

/// A query and its answer, which is ordinary, or has as many aliases as fit into a packet, each a pointer to a name of 126
/// labels.
#[divan::bench(args = [false, true])]
fn dns(bencher: Bencher, is_hostile: bool) {
    let labels = if is_hostile { 126 } else { 3 };
    let mut query = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    query.extend([1, b'a'].repeat(labels));
    query.extend([0, 0, 1, 0, 1]);
    let mut answer = query.clone();
    answer[2] = 0x81;
    answer[7] = 64;
    if !is_hostile {
        answer[7] = 3;
        answer.extend([0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 60, 0, 4, 1, b'b', 0xc0, 12]);
        let record = |last| [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 198, 51, 100, last];
        answer.extend([record(1), record(2)].concat());
    } else {
        answer.extend([0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 60, 0, 2, 0xc0, 12].repeat(64));
    }
    let packet = |source, destination, [from, to]: [u16; 2], payload: &[u8]| {
        let builder = etherparse::PacketBuilder::ipv4(source, destination, 64);
        let mut packet = Vec::new();
        let written = builder.udp(from, to).write(&mut packet, payload);
        written.expect("a packet is written");
        let header = Header::parse(&packet).expect("a packet");
        (header, packet)
    };
    let (client, server) = ([10, 1, 2, 3], [192, 0, 2, 53]);
    let query = packet(client, server, [40_000, 53], &query);
    let answer = packet(server, client, [53, 40_000], &answer);
    let mut classifier = classifier();
    let mut now = Duration::ZERO;
    bencher.counter(ItemsCount::new(2u8)).bench_local(|| {
        now += Duration::from_secs(1);
        for (header, packet) in [&query, &answer] {
            classifier.on_packet(now, black_box(header), packet, 1);
        }
    });
}

/// Random prefixes of 8 to 24 or 16 to 64 bits; random addresses.
#[divan::bench(args = [(Version::V4, 10), (Version::V4, 1000), (Version::V4, 100_000), (Version::V6, 10), (Version::V6, 1000), (Version::V6, 100_000)])]
fn longest_match(bencher: Bencher, size: (Version, usize)) {
    let (version, prefixes) = size;
    const ASKED: usize = 1024;
    let mut random = ChaCha12Rng::seed_from_u64(SEED);
    let mut address = || match version {
        Version::V4 => IpAddr::from(random.next_u32().to_be_bytes()),
        Version::V6 => {
            let mut bytes = [0; 16];
            random.fill_bytes(&mut bytes);
            bytes[0] = 0x20;
            bytes.into()
        }
    };
    let mut table = PrefixTable::new();
    for index in 0..prefixes {
        let length = match version {
            Version::V4 => 8 + index % 17,
            Version::V6 => 16 + index % 49,
        };
        let prefix = IpNet::new(address(), length as u8).expect("a length that fits");
        // The same prefix may be drawn twice.
        let _ = table.insert(prefix, index);
    }
    let asked: Vec<_> = (0..ASKED).map(|_| address()).collect();
    bencher.counter(ItemsCount::new(ASKED)).bench_local(|| {
        for address in &asked {
            black_box(table.longest_match(*address));
        }
    });
}
