//! ICMP errors that a router sends: too big, hop limit exceeded, no route, host not reached (RFC 792, RFC
//! 1191, RFC 1812 §4.3, RFC 4443, RFC 8201).
//!
//! Pure: the caller limits their rate (RFC 4443 §2.4 (f)).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::{
    Header, Version,
    checksum::Sum,
    packet::{V4_HEADER_BYTES, V6_HEADER_BYTES, protocol, set_v4_checksum, set_word},
};

/// Maximum length of an ICMP error, in bytes: an IPv6 packet that every link carries (RFC 4443 §2.4 (c)).
pub const REPLY_BYTES_MAX: usize = 1280;

/// Smallest MTU of an IPv6 link (RFC 8200 §5), in bytes.
pub const V6_MTU_MIN: u16 = 1280;
/// Smallest MTU of an IPv4 link (RFC 791 §3.2), in bytes.
pub const V4_MTU_MIN: u16 = 68;

/// RFC 1812 §4.3.2.3: as much of the original as fits into 576 bytes.
const V4_REPLY_BYTES_MAX: usize = 576;
const ICMP_HEADER_BYTES: usize = 8;
const HOP_LIMIT: u8 = 64;
/// Internetwork control (RFC 1812 §4.3.2.5).
const V4_TYPE_OF_SERVICE: u8 = 0xc0;

/// Why a packet was not forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// An MTU below that of the smallest link is raised to that.
    TooBig {
        /// The MTU for the sender, in bytes of IP packet.
        mtu: u16,
    },
    /// Hop limit exhausted: Time Exceeded.
    HopLimitExceeded,
    /// No prefix matches: Network Unreachable, No Route to Destination.
    NoRoute,
    /// A prefix matches, and what is behind it cannot be reached now: Host Unreachable, Address Unreachable. It ends
    /// connections that begin, and not those that are open (RFC 1122 §4.2.3.9).
    HostUnreachable,
    /// The source or the destination is not permitted for this tenant: Communication Administratively
    /// Prohibited.
    Prohibited,
}

/// Why no ICMP error is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum NoReply {
    /// The packet is an ICMP error or redirect, or may be one because its type is missing.
    #[error("an ICMP error is not answered")]
    Error,
    /// It is a fragment other than the first.
    #[error("a fragment that is not the first is not answered")]
    Fragment,
    /// Its destination is a multicast or broadcast address.
    #[error("a packet to a group or to all is not answered")]
    Destination,
    /// Its source is not a unicast address.
    #[error("the source is no single host")]
    Source,
    /// The gateway has no source address of that IP version.
    #[error("no address of the packet's IP version to answer from")]
    NoAddress,
    /// IPv4 without "don't fragment" that is too big: it is fragmented instead, see [`crate::fragment`].
    #[error("the packet may be fragmented")]
    MayBeFragmented,
}

/// The packet of a TCP connection that an ICMP error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotedSegment {
    pub source: SocketAddr,
    pub destination: SocketAddr,
    /// The error says that the destination cannot be reached.
    pub is_unreachable: bool,
}

/// Reads the TCP packet that `packet` quotes; `None`: it is no ICMP error, or about something else.
pub fn quoted_segment(packet: &[u8], header: &Header) -> Option<QuotedSegment> {
    let error = packet.get(header.transport..)?;
    let (kind, code) = (*error.first()?, *error.get(1)?);
    let quoted = error.get(ICMP_HEADER_BYTES..)?;
    let (is_unreachable, source, destination, ports) = match header.protocol {
        // Unreachable, but for "too big"; source quench, time exceeded, parameter problem (RFC 792).
        protocol::ICMP if matches!(kind, 3 | 4 | 11 | 12) => {
            let length = usize::from(quoted.first()? & 0xf) * 4;
            let addresses: &[u8; 8] = quoted.get(12..)?.first_chunk()?;
            let [a, b, c, d, e, f, g, h] = *addresses;
            let is_tcp = quoted.get(9) == Some(&protocol::TCP) && length >= V4_HEADER_BYTES;
            let source = IpAddr::from(Ipv4Addr::new(a, b, c, d));
            let destination = IpAddr::from(Ipv4Addr::new(e, f, g, h));
            let ports = quoted.get(length..).filter(|_| is_tcp)?;
            (kind == 3 && code != 4, source, destination, ports)
        }
        // Errors have types below 128 (RFC 4443 §2.1).
        protocol::ICMPV6 if kind < 128 => {
            let is_tcp = quoted.get(6) == Some(&protocol::TCP);
            let source: &[u8; 16] = quoted.get(8..)?.first_chunk()?;
            let destination: &[u8; 16] = quoted.get(24..)?.first_chunk()?;
            let ports = quoted.get(V6_HEADER_BYTES..).filter(|_| is_tcp)?;
            let (source, destination) = (Ipv6Addr::from(*source), Ipv6Addr::from(*destination));
            (kind == 1, source.into(), destination.into(), ports)
        }
        _ => return None,
    };
    let [a, b, c, d] = *ports.first_chunk()?;
    Some(QuotedSegment {
        source: SocketAddr::new(source, u16::from_be_bytes([a, b])),
        destination: SocketAddr::new(destination, u16::from_be_bytes([c, d])),
        is_unreachable,
    })
}

/// Source addresses of errors; without one of an IP version there are no errors of that version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplyFrom {
    /// An IPv4 address of the gateway in the tenant's network.
    pub v4: Option<Ipv4Addr>,
    /// An IPv6 address of the gateway in the tenant's network.
    pub v6: Option<Ipv6Addr>,
}

/// Writes the ICMP error for `packet`, which [`Header::parse`] has parsed as `header`, into `out` and returns
/// it.
///
/// # Errors
/// No error must be sent.
///
/// # Panics
/// `packet` is not the one that `header` was parsed from.
pub fn reply<'a>(
    packet: &[u8],
    header: &Header,
    reason: Reason,
    from: ReplyFrom,
    out: &'a mut [u8; REPLY_BYTES_MAX],
) -> Result<&'a [u8], NoReply> {
    judge(packet, header, reason)?;
    match header.source {
        IpAddr::V4(to) => {
            let from = from.v4.ok_or(NoReply::NoAddress)?;
            Ok(reply_v4(packet, reason, from, to, out))
        }
        IpAddr::V6(to) => {
            let from = from.v6.ok_or(NoReply::NoAddress)?;
            Ok(reply_v6(packet, reason, from, to, out))
        }
    }
}

/// RFC 1122 §3.2.2, RFC 1812 §4.3.2.7, RFC 4443 §2.4 (e). Departing from the last, a multicast packet is not
/// answered with Packet Too Big either, because multicast is not forwarded.
fn judge(packet: &[u8], header: &Header, reason: Reason) -> Result<(), NoReply> {
    if !header.is_first() {
        return Err(NoReply::Fragment);
    }
    if header.destination.is_multicast() || is_broadcast(&header.destination) {
        return Err(NoReply::Destination);
    }
    let source = &header.source;
    let reserved = matches!(source, IpAddr::V4(a) if a.octets()[0] == 0 || a.octets()[0] >= 240);
    if source.is_multicast() || source.is_unspecified() || source.is_loopback() || reserved {
        return Err(NoReply::Source);
    }
    let kind = packet.get(header.transport).copied();
    let is_error = match (header.version(), header.protocol) {
        // RFC 1122 §3.2.2: unreachable, source quench, redirect, time exceeded, parameter problem.
        (Version::V4, protocol::ICMP) => {
            kind.is_none_or(|kind| matches!(kind, 3 | 4 | 5 | 11 | 12))
        }
        // RFC 4443 §2.1: errors are below 128; 137 is redirect.
        (Version::V6, protocol::ICMPV6) => kind.is_none_or(|kind| kind < 128 || kind == 137),
        _ => false,
    };
    if is_error {
        return Err(NoReply::Error);
    }
    if matches!(reason, Reason::TooBig { .. }) && !header.dont_fragment {
        return Err(NoReply::MayBeFragmented);
    }
    Ok(())
}

fn is_broadcast(address: &IpAddr) -> bool {
    matches!(address, IpAddr::V4(address) if address.is_broadcast())
}

fn reply_v4<'a>(
    packet: &[u8],
    reason: Reason,
    from: Ipv4Addr,
    to: Ipv4Addr,
    out: &'a mut [u8; REPLY_BYTES_MAX],
) -> &'a [u8] {
    const UNREACHABLE: u8 = 3;
    const TIME_EXCEEDED: u8 = 11;
    let (kind, code, mtu) = match reason {
        Reason::TooBig { mtu } => (UNREACHABLE, 4, mtu.max(V4_MTU_MIN)),
        Reason::NoRoute => (UNREACHABLE, 0, 0),
        Reason::HostUnreachable => (UNREACHABLE, 1, 0),
        Reason::Prohibited => (UNREACHABLE, 13, 0),
        Reason::HopLimitExceeded => (TIME_EXCEEDED, 0, 0),
    };
    let quoted = packet
        .len()
        .min(V4_REPLY_BYTES_MAX - V4_HEADER_BYTES - ICMP_HEADER_BYTES);
    let total = V4_HEADER_BYTES + ICMP_HEADER_BYTES + quoted;
    let out = &mut out[..total];
    let (ip, icmp) = out.split_at_mut(V4_HEADER_BYTES);
    ip.fill(0);
    ip[0] = 0x45;
    ip[1] = V4_TYPE_OF_SERVICE;
    set_word(ip, 2, total as u16);
    // Don't fragment, so that an identification of zero is permitted (RFC 6864 §4.1).
    set_word(ip, 6, 0x4000);
    ip[8] = HOP_LIMIT;
    ip[9] = protocol::ICMP;
    ip[12..16].copy_from_slice(&from.octets());
    ip[16..20].copy_from_slice(&to.octets());
    set_v4_checksum(ip);
    icmp[..ICMP_HEADER_BYTES].copy_from_slice(&[kind, code, 0, 0, 0, 0, 0, 0]);
    set_word(icmp, 6, mtu);
    icmp[ICMP_HEADER_BYTES..].copy_from_slice(&packet[..quoted]);
    let checksum = Sum::default().bytes(icmp).checksum();
    icmp[2..4].copy_from_slice(&checksum);
    out
}

fn reply_v6<'a>(
    packet: &[u8],
    reason: Reason,
    from: Ipv6Addr,
    to: Ipv6Addr,
    out: &'a mut [u8; REPLY_BYTES_MAX],
) -> &'a [u8] {
    const UNREACHABLE: u8 = 1;
    const PACKET_TOO_BIG: u8 = 2;
    const TIME_EXCEEDED: u8 = 3;
    let (kind, code, mtu) = match reason {
        Reason::TooBig { mtu } => (PACKET_TOO_BIG, 0, mtu.max(V6_MTU_MIN)),
        Reason::NoRoute => (UNREACHABLE, 0, 0),
        Reason::HostUnreachable => (UNREACHABLE, 3, 0),
        Reason::Prohibited => (UNREACHABLE, 1, 0),
        Reason::HopLimitExceeded => (TIME_EXCEEDED, 0, 0),
    };
    let quoted = packet
        .len()
        .min(REPLY_BYTES_MAX - V6_HEADER_BYTES - ICMP_HEADER_BYTES);
    let icmp_bytes = ICMP_HEADER_BYTES + quoted;
    let out = &mut out[..V6_HEADER_BYTES + icmp_bytes];
    out[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 0, protocol::ICMPV6, HOP_LIMIT]);
    set_word(out, 4, icmp_bytes as u16);
    out[8..24].copy_from_slice(&from.octets());
    out[24..40].copy_from_slice(&to.octets());
    let icmp = &mut out[V6_HEADER_BYTES..];
    icmp[..ICMP_HEADER_BYTES].copy_from_slice(&[kind, code, 0, 0, 0, 0, 0, 0]);
    set_word(icmp, 6, mtu);
    icmp[ICMP_HEADER_BYTES..].copy_from_slice(&packet[..quoted]);
    let checksum = Sum::default()
        .pseudo_header(Version::V6, out, protocol::ICMPV6, icmp_bytes as u32)
        .bytes(&out[V6_HEADER_BYTES..])
        .checksum();
    out[V6_HEADER_BYTES + 2..V6_HEADER_BYTES + 4].copy_from_slice(&checksum);
    out
}

#[cfg(test)]
mod tests {
    use etherparse::{
        Icmpv4Slice, Icmpv4Type, Icmpv6Slice, Icmpv6Type, PacketBuilder, icmpv4, icmpv6,
    };

    use super::*;
    use crate::packet::sample;

    const FROM: ReplyFrom = ReplyFrom {
        v4: Some(Ipv4Addr::new(10, 0, 0, 1)),
        v6: Some(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
    };
    const TOO_BIG: Reason = Reason::TooBig { mtu: 1400 };

    fn answer(packet: &[u8], reason: Reason) -> Result<Vec<u8>, NoReply> {
        let header = Header::parse(packet).unwrap();
        let mut out = [0xaa; REPLY_BYTES_MAX];
        let reply = reply(packet, &header, reason, FROM, &mut out)?.to_vec();
        let answer = Header::parse(&reply).unwrap();
        assert_eq!(answer.destination, header.source);
        sample::assert_checksums(&reply);
        Ok(reply)
    }

    fn v4(packet: &[u8], with: impl FnOnce(&mut [u8])) -> Vec<u8> {
        let mut packet = packet.to_vec();
        with(&mut packet);
        set_v4_checksum(&mut packet[..20]);
        packet
    }

    fn icmp(version: Version, kind: u8) -> Vec<u8> {
        let mut packet = Vec::new();
        match version {
            Version::V4 => PacketBuilder::ipv4(sample::V4.0, sample::V4.1, 64)
                .icmpv4_raw(kind, 0, [0; 4])
                .write(&mut packet, &[0; 40]),
            Version::V6 => PacketBuilder::ipv6(sample::V6.0, sample::V6.1, 64)
                .icmpv6_raw(kind, 0, [0; 4])
                .write(&mut packet, &[0; 40]),
        }
        .unwrap();
        packet
    }

    #[test]
    fn v4_answers_are_read_by_another_implementation() {
        let packet = v4(&sample::udp(Version::V4, &[7; 1500]), |p| {
            set_word(p, 6, 0x4000);
        });
        use icmpv4::{DestUnreachableHeader as Unreachable, TimeExceededCode};
        for (reason, expected) in [
            (
                TOO_BIG,
                Icmpv4Type::DestinationUnreachable(Unreachable::FragmentationNeeded {
                    next_hop_mtu: 1400,
                }),
            ),
            (
                Reason::TooBig { mtu: 10 },
                Icmpv4Type::DestinationUnreachable(Unreachable::FragmentationNeeded {
                    next_hop_mtu: 68,
                }),
            ),
            (
                Reason::NoRoute,
                Icmpv4Type::DestinationUnreachable(Unreachable::Network),
            ),
            (
                Reason::HostUnreachable,
                Icmpv4Type::DestinationUnreachable(Unreachable::Host),
            ),
            (
                Reason::Prohibited,
                Icmpv4Type::DestinationUnreachable(Unreachable::FilterProhibited),
            ),
            (
                Reason::HopLimitExceeded,
                Icmpv4Type::TimeExceeded(TimeExceededCode::TtlExceededInTransit),
            ),
        ] {
            let reply = answer(&packet, reason).unwrap();
            assert_eq!(reply.len(), 576);
            let icmp = Icmpv4Slice::from_slice(&reply[20..]).unwrap();
            assert_eq!(icmp.icmp_type(), expected);
            assert_eq!(icmp.payload(), &packet[..548]);
        }
    }

    #[test]
    fn v6_answers_are_read_by_another_implementation() {
        let packet = sample::udp(Version::V6, &[7; 1500]);
        use icmpv6::{DestUnreachableCode as Unreachable, TimeExceededCode};
        for (reason, expected) in [
            (TOO_BIG, Icmpv6Type::PacketTooBig { mtu: 1400 }),
            (
                Reason::TooBig { mtu: 1000 },
                Icmpv6Type::PacketTooBig { mtu: 1280 },
            ),
            (
                Reason::NoRoute,
                Icmpv6Type::DestinationUnreachable(Unreachable::NoRoute),
            ),
            (
                Reason::HostUnreachable,
                Icmpv6Type::DestinationUnreachable(Unreachable::Address),
            ),
            (
                Reason::Prohibited,
                Icmpv6Type::DestinationUnreachable(Unreachable::Prohibited),
            ),
            (
                Reason::HopLimitExceeded,
                Icmpv6Type::TimeExceeded(TimeExceededCode::HopLimitExceeded),
            ),
        ] {
            let reply = answer(&packet, reason).unwrap();
            assert_eq!(reply.len(), 1280);
            let icmp = Icmpv6Slice::from_slice(&reply[40..]).unwrap();
            assert_eq!(icmp.icmp_type(), expected);
            assert_eq!(icmp.payload(), &packet[..1232]);
        }
    }

    #[test]
    fn tcp_packet_that_an_error_quotes_is_read_and_a_cut_one_is_not() {
        for (version, ports_end) in [
            (Version::V4, 20 + 8 + 20 + 4),
            (Version::V6, 40 + 8 + 40 + 4),
        ] {
            let packet = sample::tcp(version, |_| {}, &[]);
            let of = Header::parse(&packet).unwrap();
            for (reason, is_unreachable) in [
                (Reason::HostUnreachable, true),
                (Reason::HopLimitExceeded, false),
            ] {
                let error = answer(&packet, reason).unwrap();
                let header = Header::parse(&error).unwrap();
                let expected = QuotedSegment {
                    source: SocketAddr::new(of.source, 40_000),
                    destination: SocketAddr::new(of.destination, 443),
                    is_unreachable,
                };
                assert_eq!(quoted_segment(&error, &header), Some(expected));
                for end in 0..ports_end {
                    assert_eq!(quoted_segment(&error[..end], &header), None);
                }
            }
            let of_udp = answer(&sample::udp(version, &[7; 40]), Reason::NoRoute).unwrap();
            let header = Header::parse(&of_udp).unwrap();
            assert_eq!(quoted_segment(&of_udp, &header), None);
            assert_eq!(quoted_segment(&packet, &of), None);
        }
    }

    #[test]
    fn a_short_packet_is_quoted_whole() {
        for (version, headers) in [(Version::V4, 28), (Version::V6, 48)] {
            let packet = sample::udp(version, b"short");
            let reply = answer(&packet, Reason::HopLimitExceeded).unwrap();
            assert_eq!(reply[headers..], packet);
        }
    }

    #[test]
    fn every_icmp_type_is_answered_or_not_as_the_rfcs_say() {
        let errors_v4 = [3, 4, 5, 11, 12];
        for kind in 0..=255u8 {
            let reply = answer(&icmp(Version::V4, kind), Reason::NoRoute);
            assert_eq!(
                reply.err(),
                errors_v4.contains(&kind).then_some(NoReply::Error),
                "{kind}"
            );
            let reply = answer(&icmp(Version::V6, kind), Reason::NoRoute);
            let is_error = kind < 128 || kind == 137;
            assert_eq!(reply.err(), is_error.then_some(NoReply::Error), "{kind}");
        }
    }

    #[test]
    fn multicast_odd_sources_and_later_fragments_are_not_answered() {
        let packet = sample::udp(Version::V4, &[7; 64]);
        let cases = [
            (v4(&packet, |p| p[16] = 224), NoReply::Destination),
            (v4(&packet, |p| p[16..20].fill(255)), NoReply::Destination),
            (v4(&packet, |p| p[12] = 224), NoReply::Source),
            (v4(&packet, |p| p[12] = 127), NoReply::Source),
            (v4(&packet, |p| p[12] = 0), NoReply::Source),
            (v4(&packet, |p| p[12..16].fill(255)), NoReply::Source),
            (v4(&packet, |p| set_word(p, 6, 2)), NoReply::Fragment),
        ];
        for (packet, expected) in cases {
            assert_eq!(answer(&packet, Reason::NoRoute), Err(expected));
        }
        let v6 = |at: usize, value: u8| {
            let mut packet = sample::udp(Version::V6, &[7; 64]);
            packet[at] = value;
            packet
        };
        assert_eq!(answer(&v6(24, 0xff), TOO_BIG), Err(NoReply::Destination));
        assert_eq!(answer(&v6(8, 0xff), TOO_BIG), Err(NoReply::Source));
        let mut unspecified = v6(0, 0x60);
        unspecified[8..24].fill(0);
        assert_eq!(answer(&unspecified, TOO_BIG), Err(NoReply::Source));
    }

    #[test]
    fn packets_that_must_not_be_answered_never_are() {
        let reasons = [
            TOO_BIG,
            Reason::HopLimitExceeded,
            Reason::NoRoute,
            Reason::HostUnreachable,
            Reason::Prohibited,
        ];
        // With "don't fragment", so that the size is no reason for silence.
        let v4 = |with: fn(&mut [u8])| {
            v4(&sample::udp(Version::V4, &[7; 64]), |p| {
                set_word(p, 6, 0x4000);
                with(p);
            })
        };
        let v6 = |at: usize, value: u8| {
            let mut packet = sample::udp(Version::V6, &[7; 64]);
            packet[at] = value;
            packet
        };
        let silent = [
            ("an ICMP error", icmp(Version::V4, 3), NoReply::Error),
            ("an ICMPv6 error", icmp(Version::V6, 1), NoReply::Error),
            ("a redirect", icmp(Version::V4, 5), NoReply::Error),
            (
                "a redirect of ICMPv6",
                icmp(Version::V6, 137),
                NoReply::Error,
            ),
            ("a group", v4(|p| p[16] = 224), NoReply::Destination),
            ("a group of IPv6", v6(24, 0xff), NoReply::Destination),
            (
                "all hosts",
                v4(|p| p[16..20].fill(255)),
                NoReply::Destination,
            ),
            ("from a group", v4(|p| p[12] = 224), NoReply::Source),
            ("from a group of IPv6", v6(8, 0xff), NoReply::Source),
            ("from no host", v4(|p| p[12..16].fill(0)), NoReply::Source),
            (
                "a later fragment",
                v4(|p| set_word(p, 6, 0x4002)),
                NoReply::Fragment,
            ),
        ];
        for reason in reasons {
            for (what, packet, expected) in &silent {
                assert_eq!(answer(packet, reason), Err(*expected), "{what}: {reason:?}");
            }
            for packet in [v4(|_| {}), sample::udp(Version::V6, &[7; 64])] {
                assert!(answer(&packet, reason).is_ok(), "{reason:?}");
            }
            // Echo requests are answered, and only the first fragment.
            assert!(
                answer(&icmp(Version::V6, 128), reason).is_ok(),
                "{reason:?}"
            );
        }
    }

    #[test]
    fn packets_that_may_be_fragmented_are_not_answered_with_too_big() {
        let packet = v4(&sample::udp(Version::V4, &[7; 1500]), |p| set_word(p, 6, 0));
        assert_eq!(answer(&packet, TOO_BIG), Err(NoReply::MayBeFragmented));
        assert!(answer(&packet, Reason::HopLimitExceeded).is_ok());
    }

    #[test]
    fn without_an_address_there_is_no_answer() {
        for version in [Version::V4, Version::V6] {
            let packet = sample::udp(version, b"payload");
            let header = Header::parse(&packet).unwrap();
            let mut out = [0; REPLY_BYTES_MAX];
            let none = ReplyFrom::default();
            let result = reply(&packet, &header, Reason::NoRoute, none, &mut out);
            assert_eq!(result, Err(NoReply::NoAddress));
        }
    }
}
