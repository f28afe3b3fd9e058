use etherparse::IpSlice;
use proptest::prelude::*;

use super::*;
use crate::{
    ecn::{self, Ecn},
    flow::{FlowKey, FlowSeed},
    fragment, icmp, mss,
    offload::{Coalescer, Segments, VnetHeader},
    rules::{Classifier, Match},
    ttl,
};

fn v4(with: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut packet = sample::udp(Version::V4, &[7; 32]);
    with(&mut packet);
    let header_bytes = (usize::from(packet[0] & 0xf) * 4).clamp(20, packet.len());
    set_v4_checksum(&mut packet[..header_bytes]);
    packet
}

/// With options, which are a multiple of four bytes.
fn v4_options(options: &[u8]) -> Vec<u8> {
    v4(|packet| {
        packet.splice(20..20, options.iter().copied());
        packet[0] = 0x45 + (options.len() / 4) as u8;
        let total = packet.len() as u16;
        set_word(packet, 2, total);
    })
}

fn v6(next: u8, rest: &[u8]) -> Vec<u8> {
    let mut packet = sample::udp(Version::V6, &[])[..40].to_vec();
    packet.extend_from_slice(rest);
    packet[6] = next;
    set_word(&mut packet, 4, rest.len() as u16);
    packet
}

fn fragment_header(next: u8, offset: u16, more: bool) -> [u8; 8] {
    let [a, b] = (offset | u16::from(more)).to_be_bytes();
    [next, 0, a, b, 0, 0, 1, 2]
}

fn reason(packet: &[u8]) -> Option<Malformed> {
    Header::parse(packet).err()
}

#[test]
fn header_fields_are_parsed() {
    let header = Header::parse(&sample::udp(Version::V6, b"payload")).unwrap();
    assert_eq!(header.source, IpAddr::from(sample::V6.0));
    assert_eq!(header.destination, IpAddr::from(sample::V6.1));
    assert_eq!(
        (header.hop_limit, header.protocol, header.transport),
        (64, protocol::UDP, 40)
    );
    let ports = Ports {
        source: 40_000,
        destination: 5060,
    };
    assert_eq!(header.ports, Some(ports));
    assert!(header.dont_fragment && header.is_first() && header.is_routable());
    let header = Header::parse(&v4_options(&[1, 1, 1, 0])).unwrap();
    assert_eq!((header.transport, header.ports), (24, Some(ports)));
}

#[test]
fn every_reason_to_refuse_is_reported() {
    use Malformed as M;
    let udp = &sample::udp(Version::V6, &[7; 32])[40..];
    let hop = |options: [u8; 6]| {
        let mut header = vec![protocol::UDP, 0];
        header.extend(options);
        header
    };
    let chain = |count: usize| {
        let mut rest = [DESTINATION_OPTIONS, 0, 1, 4, 0, 0, 0, 0].repeat(count);
        let last = rest.len() - 8;
        rest[last] = protocol::UDP;
        rest.extend_from_slice(udp);
        v6(DESTINATION_OPTIONS, &rest)
    };
    let mut damaged = v4(|_| {});
    damaged[15] ^= 1;
    let cases: Vec<(&str, Vec<u8>, Option<M>)> = vec![
        ("nothing", vec![], Some(M::Empty)),
        ("version 5", v4(|p| p[0] = 0x55), Some(M::Version)),
        ("short v4", v4(|_| {})[..19].to_vec(), Some(M::Truncated)),
        ("short v6", v6(17, udp)[..39].to_vec(), Some(M::Truncated)),
        ("cut v4", v4(|_| {})[..30].to_vec(), Some(M::Truncated)),
        ("cut v6", v6(17, udp)[..50].to_vec(), Some(M::Truncated)),
        ("more v4", v4(|p| p.push(0)), Some(M::TrailingBytes)),
        (
            "more v6",
            [v6(17, udp), vec![0]].concat(),
            Some(M::TrailingBytes),
        ),
        ("ihl 4", v4(|p| p[0] = 0x44), Some(M::HeaderLength)),
        (
            "ihl beyond",
            v4(|p| {
                p.truncate(24);
                p[0] = 0x4f;
            }),
            Some(M::Truncated),
        ),
        (
            "total below header",
            v4(|p| set_word(p, 2, 19)),
            Some(M::TotalLength),
        ),
        ("damaged", damaged, Some(M::HeaderChecksum)),
        ("option beyond", v4_options(&[7, 9, 0, 0]), Some(M::Options)),
        (
            "option of one byte",
            v4_options(&[7, 1, 0, 0]),
            Some(M::Options),
        ),
        (
            "option without length",
            v4_options(&[1, 1, 1, 7]),
            Some(M::Options),
        ),
        ("end of options", v4_options(&[0, 7, 99, 1]), None),
        (
            "loose source route",
            v4_options(&[131, 3, 4, 0]),
            Some(M::SourceRoute),
        ),
        (
            "strict source route",
            v4_options(&[1, 137, 3, 4]),
            Some(M::SourceRoute),
        ),
        (
            "routing header 0",
            v6(43, &[&[17, 0, 0, 0, 0, 0, 0, 0], udp].concat()),
            Some(M::SourceRoute),
        ),
        (
            "routing header 4",
            v6(43, &[&[17, 0, 4, 0, 0, 0, 0, 0], udp].concat()),
            None,
        ),
        (
            "hop by hop",
            v6(0, &[&hop([1, 4, 0, 0, 0, 0])[..], udp].concat()),
            None,
        ),
        (
            "option beyond v6",
            v6(0, &[&hop([5, 9, 0, 0, 0, 0])[..], udp].concat()),
            Some(M::Options),
        ),
        (
            "jumbo",
            v6(0, &[&hop([0xc2, 4, 0, 1, 0, 0])[..], udp].concat()),
            Some(M::Jumbogram),
        ),
        (
            "jumbo of length 0",
            {
                let mut packet = v6(0, &[&hop([0xc2, 4, 0, 1, 0, 0])[..], udp].concat());
                set_word(&mut packet, 4, 0);
                packet
            },
            Some(M::Jumbogram),
        ),
        (
            "hop by hop late",
            v6(
                60,
                &[&[0, 0, 1, 4, 0, 0, 0, 0], &hop([1, 4, 0, 0, 0, 0])[..], udp].concat(),
            ),
            Some(M::ExtensionOrder),
        ),
        (
            "two fragment headers",
            v6(
                44,
                &[
                    &fragment_header(44, 0, false)[..],
                    &fragment_header(17, 0, false),
                    udp,
                ]
                .concat(),
            ),
            Some(M::ExtensionOrder),
        ),
        (
            "an authentication header of eight bytes",
            v6(51, &[&[17, 0, 0, 0, 0, 0, 0, 1][..], udp].concat()),
            Some(M::ExtensionLength),
        ),
        ("eight extensions", chain(8), None),
        ("nine extensions", chain(9), Some(M::TooManyExtensions)),
        (
            "extension beyond",
            v6(60, &[17, 9, 1, 4, 0, 0, 0, 0]),
            Some(M::Truncated),
        ),
        ("fragment of eights", v4(|p| set_word(p, 6, 0x2001)), None),
        (
            "fragment without payload",
            v4(|p| {
                p.truncate(20);
                set_word(p, 2, 20);
                set_word(p, 6, 0x2001);
            }),
            Some(M::FragmentLength),
        ),
        (
            "fragment of odd length, more",
            v4(|p| {
                p.pop();
                let n = p.len() as u16;
                set_word(p, 2, n);
                set_word(p, 6, 0x2002);
            }),
            Some(M::FragmentLength),
        ),
        (
            "ping of death",
            v4(|p| set_word(p, 6, 0x1fff)),
            Some(M::FragmentBeyondEnd),
        ),
        (
            "tcp overwritten",
            v4(|p| {
                p[9] = protocol::TCP;
                set_word(p, 6, 1);
            }),
            Some(M::TinyFragment),
        ),
        (
            "tcp header split",
            v4(|p| {
                p.truncate(36);
                set_word(p, 2, 36);
                p[9] = protocol::TCP;
                set_word(p, 6, 0x2000);
            }),
            Some(M::TinyFragment),
        ),
        (
            "first v6 fragment without headers",
            v6(
                44,
                &[
                    &fragment_header(60, 0, true)[..],
                    &[17, 5, 1, 4, 0, 0, 0, 0],
                ]
                .concat(),
            ),
            Some(M::TinyFragment),
        ),
        (
            "first v6 fragment whose headers end before those of UDP",
            v6(
                44,
                &[
                    &fragment_header(60, 0, true)[..],
                    &[17, 0, 1, 4, 0, 0, 0, 0],
                ]
                .concat(),
            ),
            Some(M::TinyFragment),
        ),
        (
            "first v6 fragment whose headers end within those of TCP",
            v6(
                44,
                &[
                    &fragment_header(60, 0, true)[..],
                    &[6, 0, 1, 4, 0, 0, 0, 0],
                    &[0; 16],
                ]
                .concat(),
            ),
            Some(M::TinyFragment),
        ),
        (
            "first v6 fragment with all headers",
            v6(
                44,
                &[
                    &fragment_header(60, 0, true)[..],
                    &[6, 0, 1, 4, 0, 0, 0, 0],
                    &[0; 24],
                ]
                .concat(),
            ),
            None,
        ),
        (
            "later v6 fragment",
            v6(44, &[&fragment_header(17, 64, true)[..], udp].concat()),
            None,
        ),
        (
            "v6 ping of death",
            v6(44, &[&fragment_header(17, 0xfff8, false)[..], udp].concat()),
            Some(M::FragmentBeyondEnd),
        ),
    ];
    for (what, packet, expected) in cases {
        assert_eq!(reason(&packet), expected, "{what}");
    }
}

#[test]
fn fragments_are_recognised_and_only_the_first_has_ports() {
    let first = Header::parse(&v4(|p| set_word(p, 6, 0x2000))).unwrap();
    let later = Header::parse(&v4(|p| set_word(p, 6, 0x2010))).unwrap();
    assert_eq!(
        first.fragment,
        Some(Fragment {
            id: 0,
            offset: 0,
            more: true
        })
    );
    assert!(first.is_first() && first.ports.is_some());
    assert_eq!(
        later.fragment,
        Some(Fragment {
            id: 0,
            offset: 128,
            more: true
        })
    );
    assert!(!later.is_first() && later.ports.is_none());
    let udp = &sample::udp(Version::V6, &[7; 32])[40..];
    let atomic = v6(
        FRAGMENT,
        &[&fragment_header(17, 0, false)[..], udp].concat(),
    );
    let atomic = Header::parse(&atomic).unwrap();
    assert_eq!((atomic.fragment, atomic.transport), (None, 48));
    assert!(atomic.ports.is_some());
}

#[test]
fn link_local_addresses_are_recognised() {
    let header = Header::parse(&sample::udp(Version::V6, b"")).unwrap();
    for (source, destination, expected) in [
        ("fe80::1", "fd00::1", true),
        ("fd00::1", "fe80::1", true),
        ("169.254.0.1", "10.0.0.1", true),
        ("10.0.0.1", "169.254.9.9", true),
        ("10.0.0.1", "10.0.0.2", false),
        ("fd00::1", "2001:db8::1", false),
        ("127.0.0.1", "10.0.0.1", false),
    ] {
        let header = Header {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            ..header
        };
        assert_eq!(header.is_link_local(), expected, "{source} {destination}");
    }
}

#[test]
fn only_forwardable_addresses_are_routable() {
    let header = Header::parse(&sample::udp(Version::V6, b"")).unwrap();
    let between = |source: &str, destination: &str| {
        let header = Header {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            ..header
        };
        header.is_routable()
    };
    assert!(between("10.0.0.1", "192.0.2.1"));
    assert!(between("10.0.0.1", "239.1.1.1"));
    assert!(between("fd00::1", "2001:db8::1"));
    assert!(between("fd00::1", "ff0e::1"));
    for (source, destination) in [
        ("127.0.0.1", "10.0.0.1"),
        ("10.0.0.1", "127.9.9.9"),
        ("0.0.0.0", "10.0.0.1"),
        ("10.0.0.1", "255.255.255.255"),
        ("169.254.0.1", "10.0.0.1"),
        ("224.0.0.1", "10.0.0.1"),
        ("::", "fd00::1"),
        ("fe80::1", "fd00::1"),
        ("fd00::1", "fe80::1"),
        ("fd00::1", "ff02::2"),
        ("fd00::1", "::1"),
        ("ff0e::1", "fd00::1"),
        ("::ffff:10.0.0.1", "fd00::1"),
    ] {
        assert!(!between(source, destination), "{source} to {destination}");
    }
}

/// All operations on an accepted packet.
fn use_all(packet: &[u8], header: &Header) {
    let version = header.version();
    let flow = FlowKey::of(header);
    FlowSeed::new(&[0; 16]).number(&flow);
    Classifier::new(vec![(
        Match {
            source_ports: Some(0..=9),
            ..Match::default()
        },
        (),
    )])
    .unwrap()
    .application(header, None);
    let mut changed = packet.to_vec();
    ecn::set_ecn(&mut changed, version, Ecn::Ce);
    let _ = ttl::decrement(&mut changed, version);
    mss::clamp(&mut changed, header, 1280);
    Header::parse(&changed).expect("a changed packet is well formed");
    let _ = fragment::fragment(packet, header, 68, |part| {
        Header::parse(part).expect("a fragment is well formed");
    });
    let from = icmp::ReplyFrom {
        v4: Some(Ipv4Addr::new(10, 0, 0, 1)),
        v6: Some(Ipv6Addr::LOCALHOST),
    };
    let mut out = [0; icmp::REPLY_BYTES_MAX];
    if let Ok(reply) = icmp::reply(packet, header, icmp::Reason::NoRoute, from, &mut out) {
        Header::parse(reply).expect("an answer is well formed");
    }
    let mut coalescer = Coalescer::new(4, true, true);
    coalescer.push(packet).unwrap();
    coalescer.push(packet).unwrap();
    coalescer.drain(|bytes| {
        let (vnet, packet) = VnetHeader::split(bytes).unwrap();
        Segments::new(vnet, packet).expect("what was put together can be cut");
    });
}

fn agrees_with_another_implementation(packet: &[u8], header: &Header) {
    // Two checks concern payload from a router's point of view: IPv4's authentication header, and the data
    // after the fragment header in fragments other than the first.
    let judges_payload = match header.version() {
        Version::V4 => header.protocol == AUTHENTICATION,
        Version::V6 => !header.is_first() && is_extension(header.protocol),
    };
    if judges_payload {
        return;
    }
    let other = IpSlice::from_slice(packet).expect("etherparse accepts it too");
    assert_eq!(
        (other.source_addr(), other.destination_addr()),
        (header.source, header.destination)
    );
    let payload = other.payload();
    if header.is_first() {
        assert_eq!(payload.ip_number.0, header.protocol);
        assert_eq!(payload.payload, &packet[header.transport..]);
    }
    assert_eq!(payload.fragmented, header.fragment.is_some());
}

/// A valid packet with some bytes changed, then truncated or extended.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let udp = || sample::udp(Version::V6, &[7; 32])[40..].to_vec();
    let good = prop_oneof![
        Just(v4(|_| {})),
        Just(v4_options(&[7, 7, 4, 1, 2, 3, 4, 1])),
        Just(v4(|p| set_word(p, 6, 0x2010))),
        Just(sample::tcp(Version::V4, |_| {}, &[3; 40])),
        Just(sample::tcp(Version::V6, |tcp| tcp.syn = true, &[])),
        Just(v6(
            0,
            &[
                vec![60, 0, 1, 4, 0, 0, 0, 0, 44, 0, 1, 4, 0, 0, 0, 0],
                fragment_header(17, 8, true).to_vec(),
                udp()
            ]
            .concat()
        )),
        Just(v6(
            51,
            &[
                vec![43, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 17, 0, 4, 0, 0, 0, 0, 0],
                udp()
            ]
            .concat()
        )),
    ];
    let changes = prop::collection::vec((0usize..64, any::<u8>()), 0..4);
    (good, changes, 0usize..12, any::<bool>()).prop_map(|(mut packet, changes, cut, fix)| {
        for (at, value) in changes {
            if let Some(byte) = packet.get_mut(at) {
                *byte = value;
            }
        }
        if cut > 8 {
            packet.truncate(packet.len() - cut);
        }
        if fix && packet[0] >> 4 == 4 {
            let total = packet.len() as u16;
            set_word(&mut packet, 2, total);
            let header_bytes = (usize::from(packet[0] & 0xf) * 4).clamp(20, packet.len());
            set_v4_checksum(&mut packet[..header_bytes]);
        }
        packet
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8 * ProptestConfig::default().cases))]

    #[test]
    fn arbitrary_packets_do_not_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200), version in 0u8..3) {
        if let (Some(first), 1..) = (bytes.first_mut(), version) {
            *first = *first & 0xf | if version == 1 { 0x40 } else { 0x60 };
        }
        if let Ok(header) = Header::parse(&bytes) {
            use_all(&bytes, &header);
        }
        let mut coalescer = Coalescer::new(1, true, true);
        let _ = coalescer.push(&bytes);
    }

    #[test]
    fn accepted_packets_parse_as_in_another_implementation(packet in damaged()) {
        if let Ok(header) = Header::parse(&packet) {
            agrees_with_another_implementation(&packet, &header);
            use_all(&packet, &header);
        }
    }
}
