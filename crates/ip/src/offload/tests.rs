use proptest::prelude::*;

use super::*;
use crate::{
    Header, Version,
    packet::{sample, set_v4_checksum, set_word},
};

const SIZES: [usize; 5] = [1, 2, 536, 1000, 1448];

fn cut(bytes: &[u8]) -> Vec<Vec<u8>> {
    let (vnet, packet) = VnetHeader::split(bytes).unwrap();
    let mut segments = Segments::new(vnet, packet).unwrap();
    let (count, largest) = (segments.count(), segments.largest());
    let mut out = vec![0xaa; largest];
    let mut all = Vec::new();
    while let Some(length) = segments.write_next(&mut out) {
        all.push(out[..length].to_vec());
    }
    assert_eq!(all.len(), count);
    assert_eq!(all.iter().map(Vec::len).max(), Some(largest));
    all
}

fn gathered(packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut coalescer = Coalescer::new(packets.len(), true, true);
    for packet in packets {
        Header::parse(packet).expect("tests send good packets");
        coalescer.push(packet).unwrap();
    }
    let mut all = Vec::new();
    coalescer.drain(|bytes| all.push(bytes.to_vec()));
    all
}

/// What a kernel passes as large packet: one packet with an unfinished checksum.
fn large(packet: &[u8], segment_bytes: usize) -> Vec<u8> {
    let header = Header::parse(packet).unwrap();
    let (kind, offset, header_bytes) = match (header.protocol, header.version()) {
        (crate::protocol::UDP, _) => (GsoKind::Udp, 6, 8),
        (_, Version::V4) => (GsoKind::Tcp4, 16, 20),
        (_, Version::V6) => (GsoKind::Tcp6, 16, 20),
    };
    let vnet = VnetHeader {
        checksum: Some(PartialChecksum {
            start: header.transport as u16,
            offset,
        }),
        large: Some(GsoPacket {
            kind,
            header_bytes: header.transport as u16 + header_bytes,
            segment_bytes: segment_bytes as u16,
        }),
    };
    [&vnet.bytes()[..], packet].concat()
}

fn payload(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + at / 251) as u8).collect()
}

fn tcp_payload(packet: &[u8]) -> &[u8] {
    let transport = Header::parse(packet).unwrap().transport;
    &packet[transport + usize::from(packet[transport + 12] >> 4) * 4..]
}

#[test]
fn virtio_headers_round_trip() {
    for kind in [
        None,
        Some(GsoKind::Tcp4),
        Some(GsoKind::Tcp6),
        Some(GsoKind::Udp),
    ] {
        for checksum in [
            None,
            Some(PartialChecksum {
                start: 20,
                offset: 16,
            }),
        ] {
            let large = kind.map(|kind| GsoPacket {
                kind,
                header_bytes: 54,
                segment_bytes: 1400,
            });
            let header = VnetHeader { checksum, large };
            let bytes = [&header.bytes()[..], b"packet"].concat();
            assert_eq!(VnetHeader::split(&bytes), Ok((header, &b"packet"[..])));
        }
    }
}

#[test]
fn headers_that_are_not_understood_are_refused() {
    assert_eq!(
        VnetHeader::split(&[0; 9]),
        Err(BadVnetHeader::Truncated { bytes: 9 })
    );
    // UDP fragmentation offload, which is not requested.
    assert_eq!(
        VnetHeader::split(&[0, 3, 0, 0, 1, 1, 0, 0, 0, 0]),
        Err(BadVnetHeader::Kind { kind: 3 })
    );
    assert_eq!(
        VnetHeader::split(&[0, 1, 0, 0, 0, 0, 0, 0, 0, 0]),
        Err(BadVnetHeader::SegmentBytes)
    );
}

#[test]
fn tcp_segments_get_sequence_numbers_flags_and_checksums() {
    for version in [Version::V4, Version::V6] {
        for size in SIZES {
            for bytes in [1, size, size + 1, 3 * size, 3 * size + size / 2] {
                let data = payload(bytes);
                let packet = sample::tcp(
                    version,
                    |tcp| {
                        tcp.sequence_number = u32::MAX - 100;
                        tcp.ack = true;
                        tcp.psh = true;
                        tcp.fin = true;
                        tcp.cwr = true;
                        tcp.ece = true;
                        tcp.set_options_raw(&[1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8])
                            .unwrap();
                    },
                    &data,
                );
                let segments = cut(&large(&packet, size));
                let mut joined = Vec::new();
                for (index, segment) in segments.iter().enumerate() {
                    sample::assert_checksums(segment);
                    let header = Header::parse(segment).unwrap();
                    let tcp = etherparse::TcpHeaderSlice::from_slice(&segment[header.transport..])
                        .unwrap();
                    let expected = (u32::MAX - 100).wrapping_add(joined.len() as u32);
                    assert_eq!(tcp.sequence_number(), expected);
                    let last = index + 1 == segments.len();
                    assert_eq!((tcp.psh(), tcp.fin()), (last, last));
                    assert_eq!(tcp.cwr(), index == 0);
                    assert!(tcp.ece() && tcp.ack());
                    assert_eq!(tcp.options(), [1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8]);
                    if version == Version::V4 {
                        assert_eq!(
                            word(segment, 4),
                            word(&packet, 4).wrapping_add(index as u16)
                        );
                        assert_eq!(segment[6..8], packet[6..8]);
                    }
                    joined.extend_from_slice(tcp_payload(segment));
                }
                assert_eq!(joined, data);
                assert_eq!(segments.len(), bytes.div_ceil(size));
            }
        }
    }
}

#[test]
fn urgent_data_is_pointed_to_from_each_segment() {
    let packet = sample::tcp(
        Version::V4,
        |tcp| {
            tcp.urg = true;
            tcp.urgent_pointer = 15;
        },
        &payload(40),
    );
    let pointers: Vec<_> = cut(&large(&packet, 10))
        .iter()
        .map(|segment| {
            sample::assert_checksums(segment);
            (
                segment[20 + 13] & tcp::URG != 0,
                word(segment, 20 + tcp::URGENT),
            )
        })
        .collect();
    assert_eq!(pointers, [(true, 15), (true, 5), (false, 0), (false, 0)]);
}

#[test]
fn udp_is_segmented_into_datagrams() {
    for version in [Version::V4, Version::V6] {
        for size in SIZES {
            let data = payload(2 * size + size / 2);
            let packet = sample::udp(version, &data);
            let segments = cut(&large(&packet, size));
            let transport = Header::parse(&packet).unwrap().transport;
            let mut joined = Vec::new();
            for segment in &segments {
                sample::assert_checksums(segment);
                let length = usize::from(word(segment, transport + 4));
                assert_eq!(length, segment.len() - transport);
                joined.extend_from_slice(&segment[transport + 8..]);
            }
            assert_eq!(joined, data);
        }
    }
}

#[test]
fn partial_checksum_is_completed() {
    for original in [
        sample::udp(Version::V4, b"payload"),
        sample::udp(Version::V6, b"payload!"),
        sample::tcp(Version::V4, |_| {}, b"payload"),
    ] {
        let header = Header::parse(&original).unwrap();
        let offset = if header.protocol == crate::protocol::TCP {
            16
        } else {
            6
        };
        let mut packet = original.clone();
        let at = header.transport + offset;
        let bytes = (packet.len() - header.transport) as u32;
        let pseudo = crate::checksum::Sum::default()
            .pseudo_header(header.version(), &packet, header.protocol, bytes)
            .folded();
        packet[at..at + 2].copy_from_slice(&pseudo);
        let unfinished = PartialChecksum {
            start: header.transport as u16,
            offset: offset as u16,
        };
        let vnet = VnetHeader {
            checksum: Some(unfinished),
            large: None,
        };
        assert_eq!(cut(&[&vnet.bytes()[..], &packet].concat()), [original]);
    }
}

#[test]
fn packets_that_contradict_their_virtio_header_are_not_segmented() {
    let tcp = sample::tcp(Version::V4, |_| {}, &payload(3000));
    let refused = |vnet: VnetHeader, packet: &[u8]| Segments::new(vnet, packet).unwrap_err();
    let of = |kind| VnetHeader {
        checksum: None,
        large: Some(GsoPacket {
            kind,
            header_bytes: 0,
            segment_bytes: 1000,
        }),
    };
    assert_eq!(refused(of(GsoKind::Tcp6), &tcp), NotSegmentable::Protocol);
    assert_eq!(refused(of(GsoKind::Udp), &tcp), NotSegmentable::Protocol);
    let syn = sample::tcp(Version::V4, |tcp| tcp.syn = true, &payload(3000));
    assert_eq!(refused(of(GsoKind::Tcp4), &syn), NotSegmentable::Transport);
    let mut short = tcp.clone();
    short[20 + 12] = 0x40;
    assert_eq!(
        refused(of(GsoKind::Tcp4), &short),
        NotSegmentable::Transport
    );
    assert!(matches!(
        refused(of(GsoKind::Tcp4), &tcp[..100]),
        NotSegmentable::Malformed(_)
    ));
    for (start, offset) in [(3035, 4), (u16::MAX, u16::MAX), (0, 3039)] {
        let checksum = Some(PartialChecksum { start, offset });
        let vnet = VnetHeader {
            checksum,
            large: None,
        };
        assert_eq!(refused(vnet, &tcp), NotSegmentable::Checksum);
    }
}

/// A stream in segments of `size` bytes with ascending identifications.
fn stream(version: Version, port: u16, sizes: &[usize]) -> Vec<Vec<u8>> {
    let mut sequence = 1000u32;
    let mut id = 65_534u16;
    let segment = |&size: &usize| {
        let mut packet = sample::tcp(
            version,
            |tcp| {
                tcp.ack = true;
                tcp.source_port = port;
                tcp.sequence_number = sequence;
                tcp.set_options_raw(&[1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8])
                    .unwrap();
            },
            &payload(size),
        );
        if version == Version::V4 {
            set_word(&mut packet, 4, id);
            set_v4_checksum(&mut packet[..20]);
        }
        sequence = sequence.wrapping_add(size as u32);
        id = id.wrapping_add(1);
        packet
    };
    sizes.iter().map(segment).collect()
}

fn datagrams(version: Version, sizes: &[usize]) -> Vec<Vec<u8>> {
    sizes
        .iter()
        .map(|&size| sample::udp(version, &payload(size)))
        .collect()
}

#[test]
fn consecutive_segments_are_coalesced() {
    for version in [Version::V4, Version::V6] {
        let packets = stream(version, 1, &[1448, 1448, 1448, 100]);
        let large = gathered(&packets);
        assert_eq!(large.len(), 1);
        assert_eq!(cut(&large[0]), packets);
    }
}

#[test]
fn a_short_segment_or_a_push_ends_a_large_packet() {
    let packets = stream(Version::V4, 1, &[1000, 999, 1000, 1000]);
    assert_eq!(gathered(&packets).len(), 2);
    let mut packets = stream(Version::V4, 1, &[1000; 4]);
    packets[1] = repaired(packets[1].clone(), |p| p[33] |= tcp::PSH);
    let large = gathered(&packets);
    assert_eq!(large.len(), 2);
    assert_eq!(
        large.iter().flat_map(|w| cut(w)).collect::<Vec<_>>(),
        packets
    );
}

#[test]
fn a_longer_segment_begins_another() {
    assert_eq!(
        gathered(&stream(Version::V6, 1, &[1000, 1001, 1001])).len(),
        2
    );
}

#[test]
fn a_large_packet_is_never_longer_than_ip_allows() {
    for version in [Version::V4, Version::V6] {
        let packets = stream(version, 1, &[1448; 50]);
        let large = gathered(&packets);
        assert_eq!(large.len(), 2);
        assert!(large.iter().all(|w| w.len() <= VNET_HEADER_BYTES + 65_535));
        assert_eq!(
            large.iter().flat_map(|w| cut(w)).collect::<Vec<_>>(),
            packets
        );
    }
}

#[test]
fn datagrams_of_one_size_are_coalesced_up_to_the_socket_limit() {
    for version in [Version::V4, Version::V6] {
        let packets = datagrams(version, &[200; 70]);
        let large = gathered(&packets);
        assert_eq!(
            large.iter().map(|w| cut(w).len()).collect::<Vec<_>>(),
            [64, 6]
        );
    }
}

/// Changes a TCP/IPv4 or UDP/IPv4 packet without options and corrects its checksums.
fn repaired(mut packet: Vec<u8>, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    change(&mut packet);
    set_v4_checksum(&mut packet[..20]);
    let at = if packet[9] == 6 { 36 } else { 26 };
    packet[at..at + 2].fill(0);
    let bytes = (packet.len() - 20) as u32;
    let sum = crate::checksum::Sum::default()
        .pseudo_header(Version::V4, &packet, packet[9], bytes)
        .bytes(&packet[20..])
        .checksum();
    packet[at..at + 2].copy_from_slice(&sum);
    packet
}

#[test]
fn segments_with_different_headers_are_not_coalesced() {
    let packets = stream(Version::V4, 1, &[100, 100]);
    assert_eq!(gathered(&packets).len(), 1);
    type Change = (&'static str, fn(&mut [u8]));
    let changes: [Change; 17] = [
        ("type of service", |p| p[1] = 0xb8),
        ("identification", |p| p[5] ^= 0x80),
        ("don't fragment", |p| p[6] ^= 0x40),
        ("time to live", |p| p[8] -= 1),
        ("source", |p| p[15] ^= 1),
        ("destination", |p| p[19] ^= 1),
        ("port", |p| p[21] ^= 1),
        ("sequence", |p| p[27] ^= 1),
        ("acknowledgement", |p| p[31] ^= 1),
        ("reserved bit", |p| p[32] ^= 1),
        ("window", |p| p[35] ^= 1),
        ("urgent pointer", |p| p[39] ^= 1),
        ("option", |p| p[51] ^= 1),
        ("FIN", |p| p[33] |= tcp::FIN),
        ("ECE", |p| p[33] |= tcp::ECE),
        ("CWR", |p| p[33] |= tcp::CWR),
        ("URG", |p| p[33] |= tcp::URG),
    ];
    for (what, change) in changes {
        let changed = repaired(packets[1].clone(), change);
        let all = [packets[0].clone(), changed];
        let large = gathered(&all);
        assert_eq!(large.len(), 2, "{what}");
        assert_eq!([cut(&large[0]), cut(&large[1])].concat(), all);
    }
}

#[test]
fn packet_with_a_wrong_checksum_is_not_coalesced() {
    for packets in [
        stream(Version::V4, 1, &[100; 3]),
        datagrams(Version::V6, &[100; 3]),
    ] {
        for damaged in 0..3 {
            let mut packets = packets.clone();
            *packets[damaged].last_mut().unwrap() ^= 1;
            let large = gathered(&packets);
            assert_eq!(
                large.iter().flat_map(|w| cut(w)).collect::<Vec<_>>(),
                packets
            );
            let holds = |w: &&Vec<u8>| w.ends_with(&packets[damaged]);
            let alone = large.iter().find(holds).expect("it is there by itself");
            assert_eq!(alone[..VNET_HEADER_BYTES], [0; VNET_HEADER_BYTES]);
        }
    }
}

#[test]
fn datagrams_without_checksum_stay_alone() {
    let mut packets = datagrams(Version::V4, &[100; 3]);
    for packet in &mut packets {
        packet[26..28].fill(0);
    }
    assert_eq!(gathered(&packets).len(), 3);
}

#[test]
fn fragments_and_options_stay_alone_and_are_not_overtaken() {
    let stream = stream(Version::V4, 1, &[100; 2]);
    let mut fragment = stream[0].clone();
    set_word(&mut fragment, 6, 0x2000);
    fragment.truncate(fragment.len() - 4);
    let total = fragment.len() as u16;
    set_word(&mut fragment, 2, total);
    set_v4_checksum(&mut fragment[..20]);
    let all = [stream[0].clone(), fragment, stream[1].clone()];
    let large = gathered(&all);
    assert_eq!(large.iter().flat_map(|w| cut(w)).collect::<Vec<_>>(), all);
}

#[test]
fn coalescing_respects_the_features_of_the_device() {
    let all = [
        stream(Version::V4, 1, &[100; 3]),
        datagrams(Version::V4, &[100; 3]),
    ]
    .concat();
    for (tcp, udp, expected) in [
        (true, true, 2),
        (true, false, 4),
        (false, true, 4),
        (false, false, 6),
    ] {
        let mut coalescer = Coalescer::new(6, tcp, udp);
        for packet in &all {
            coalescer.push(packet).unwrap();
        }
        assert_eq!(coalescer.len(), expected, "{tcp} {udp}");
    }
}

#[test]
fn a_full_coalescer_accepts_only_packets_that_join() {
    let stream = stream(Version::V4, 1, &[100; 3]);
    let mut coalescer = Coalescer::new(1, true, true);
    coalescer.push(&stream[0]).unwrap();
    coalescer.push(&stream[1]).unwrap();
    let other = sample::udp(Version::V6, b"payload");
    assert_eq!(coalescer.push(&other), Err(CoalescerFull));
    coalescer.push(&stream[2]).unwrap();
    let mut count = 0;
    coalescer.drain(|large| count += cut(large).len());
    assert_eq!(count, 3);
    assert!(coalescer.is_empty());
    coalescer.push(&other).unwrap();
}

#[derive(Clone, Debug)]
struct Step {
    flow: u16,
    size: usize,
    what: u8,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = prop::sample::select(vec![0usize, 1, 10, 10, 10, 11, 1448, 1448, 1448]);
    let step = (0u16..4, size, 0u8..24).prop_map(|(flow, size, what)| Step { flow, size, what });
    prop::collection::vec(step, 1..120)
}

/// Packets of four flows with features of real ones: gaps, pushes, closes, other options, other marks.
fn packets(steps: &[Step], version: Version) -> Vec<Vec<u8>> {
    let mut sequences = [u32::MAX - 3000; 4];
    let mut ids = [65_530u16; 4];
    let packet = |step: &Step| {
        let flow = usize::from(step.flow);
        if step.what == 0 {
            sequences[flow] = sequences[flow].wrapping_add(7);
        }
        let data = payload(step.size);
        // The last flow is UDP.
        let mut packet = match flow {
            3 => sample::udp(version, &data),
            _ => sample::tcp(
                version,
                |tcp| {
                    tcp.ack = true;
                    tcp.source_port = step.flow;
                    tcp.sequence_number = sequences[flow];
                    tcp.psh = step.what == 1;
                    tcp.fin = step.what == 2;
                    tcp.syn = step.what == 3;
                    tcp.window_size = if step.what == 4 { 1 } else { 64_000 };
                    if step.what == 5 {
                        tcp.set_options_raw(&[1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8])
                            .unwrap();
                    }
                },
                &data,
            ),
        };
        if version == Version::V4 {
            if step.what == 6 {
                ids[flow] = ids[flow].wrapping_add(1);
            }
            set_word(&mut packet, 4, ids[flow]);
            set_v4_checksum(&mut packet[..20]);
        }
        if step.what == 7 {
            crate::ecn::set_ecn(&mut packet, version, crate::ecn::Ecn::Ce);
        }
        if step.what == 8 {
            // The transport checksum becomes wrong.
            *packet.last_mut().unwrap() ^= 0xff;
        }
        sequences[flow] = sequences[flow].wrapping_add(step.size as u32);
        ids[flow] = ids[flow].wrapping_add(1);
        packet
    };
    steps.iter().map(packet).collect()
}

fn by_flow(packets: &[Vec<u8>]) -> std::collections::BTreeMap<Vec<u8>, Vec<Vec<u8>>> {
    let mut flows = std::collections::BTreeMap::new();
    for packet in packets {
        let transport = Header::parse(packet).unwrap().transport;
        let ports = packet[transport..transport + 4].to_vec();
        flows
            .entry(ports)
            .or_insert_with(Vec::new)
            .push(packet.clone());
    }
    flows
}

proptest! {
    #[test]
    fn segmentation_inverts_coalescing(steps in steps(), is_v6 in any::<bool>()) {
        let version = if is_v6 { Version::V6 } else { Version::V4 };
        let packets = packets(&steps, version);
        let large = gathered(&packets);
        let again: Vec<_> = large.iter().flat_map(|w| cut(w)).collect();
        prop_assert_eq!(again.len(), packets.len());
        prop_assert_eq!(by_flow(&again), by_flow(&packets));
    }

    #[test]
    fn coalescing_inverts_segmentation(bytes in 1usize..60_000, size in 1usize..1500, is_v6 in any::<bool>()) {
        let version = if is_v6 { Version::V6 } else { Version::V4 };
        let packet = sample::tcp(version, |tcp| tcp.ack = true, &payload(bytes));
        let segments = cut(&large(&packet, size));
        let large = gathered(&segments);
        prop_assert_eq!(large.len(), 1);
        prop_assert_eq!(cut(&large[0]), segments);
    }

    #[test]
    fn arbitrary_virtio_headers_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..64), kind in prop::sample::select(vec![0u8, 1, 4, 5]), is_v6 in any::<bool>()) {
        let version = if is_v6 { Version::V6 } else { Version::V4 };
        let mut bytes = [bytes, sample::tcp(version, |_| {}, &payload(100))].concat();
        bytes[1] = kind;
        if let Ok((vnet, packet)) = VnetHeader::split(&bytes)
            && let Ok(mut segments) = Segments::new(vnet, packet)
        {
            let mut out = vec![0; segments.largest()];
            while segments.write_next(&mut out).is_some() {}
        }
    }
}
