//! Parses and validates the headers of one IP packet.
//!
//! The rules are those of a router that also inspects ports: RFC 791, RFC 1812 §5.2, RFC 8200, and against
//! attacks RFC 1858, RFC 3128, RFC 5095, RFC 7112 and RFC 7126. The payload above IP is not validated: the
//! destination refuses a damaged TCP header.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{
    Version,
    checksum::{self, Sum},
};

/// Protocol numbers that this crate knows by name.
pub mod protocol {
    /// ICMP for IPv4 (RFC 792).
    pub const ICMP: u8 = 1;
    /// TCP (RFC 9293).
    pub const TCP: u8 = 6;
    /// UDP (RFC 768).
    pub const UDP: u8 = 17;
    /// DCCP (RFC 4340).
    pub const DCCP: u8 = 33;
    /// ICMP for IPv6 (RFC 4443).
    pub const ICMPV6: u8 = 58;
    /// SCTP (RFC 9260).
    pub const SCTP: u8 = 132;
    /// UDP-Lite (RFC 3828).
    pub const UDP_LITE: u8 = 136;
}

/// Smallest IPv4 header, in bytes.
pub(crate) const V4_HEADER_BYTES: usize = 20;
/// The IPv6 header, in bytes.
pub(crate) const V6_HEADER_BYTES: usize = 40;

/// Ours: RFC 8200 §4.1 lists six that are sensible in one packet, destination options twice.
const EXTENSIONS_MAX: usize = 8;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;

/// The headers of a well-formed packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Source address; [`crate::prefix`] decides whether the sender may use it.
    pub source: IpAddr,
    pub destination: IpAddr,
    /// DSCP and ECN: the type of service or traffic class.
    pub traffic_class: u8,
    /// Time to live or hop limit.
    pub hop_limit: u8,
    /// Protocol after the IP headers. In a fragment other than the first: as in its fragment header.
    pub protocol: u8,
    /// Offset of its header, in bytes from the start of the packet.
    pub transport: usize,
    /// `Some` in fragments. An unfragmented packet has none, even if it has a fragment header (RFC 6946).
    pub fragment: Option<Fragment>,
    /// IPv4's "don't fragment"; always set for IPv6, which routers never fragment.
    pub dont_fragment: bool,
    /// `Some` if the protocol has ports and they are in this packet.
    pub ports: Option<Ports>,
}

/// Position of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Distinguishes the packets of two addresses and a protocol; 16 bits in IPv4.
    pub id: u32,
    /// Offset of its payload, in bytes.
    pub offset: u16,
    /// More fragments follow.
    pub more: bool,
}

/// Ports of TCP, UDP, UDP-Lite, DCCP and SCTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ports {
    pub source: u16,
    pub destination: u16,
}

/// Why a packet is refused. Each is counted by reason; none is an error of the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Malformed {
    /// It is empty.
    #[error("empty packet")]
    Empty,
    /// Neither IPv4 nor IPv6.
    #[error("IP version is neither 4 nor 6")]
    Version,
    /// It ends before its headers do, or before its stated length.
    #[error("packet ends before its stated length")]
    Truncated,
    /// It is longer than its stated length.
    #[error("bytes follow after the packet's stated length")]
    TrailingBytes,
    /// IPv4: the header's length is below 20 bytes.
    #[error("IPv4 header length is below 20 bytes")]
    HeaderLength,
    /// IPv4: the stated length is below that of the header.
    #[error("IPv4 total length is below that of its header")]
    TotalLength,
    /// IPv4: the header is damaged.
    #[error("IPv4 header checksum is wrong")]
    HeaderChecksum,
    /// An option's length does not fit.
    #[error("an IP option is longer than its header")]
    Options,
    /// IPv6: an authentication header without its fixed fields (RFC 4302 §2).
    #[error("IPv6 authentication header is below 12 bytes")]
    ExtensionLength,
    /// Source routing: IPv4 source routes (RFC 7126 §4.3, 4.4), IPv6 routing header 0 (RFC 5095).
    #[error("source routing is refused")]
    SourceRoute,
    /// IPv6: longer than 65,575 bytes by the jumbo payload option (RFC 2675).
    #[error("jumbograms are refused")]
    Jumbogram,
    /// IPv6: more than eight extension headers.
    #[error("more than 8 IPv6 extension headers")]
    TooManyExtensions,
    /// IPv6: hop-by-hop options that are not first, or two fragment headers.
    #[error("IPv6 extension headers in an order that is not allowed")]
    ExtensionOrder,
    /// A fragment without payload, or one other than the last with a length that is not a multiple of eight.
    #[error("fragment of a length that is not allowed")]
    FragmentLength,
    /// The whole would exceed the maximum IP packet ("ping of death").
    #[error("fragment reaches beyond the longest packet")]
    FragmentBeyondEnd,
    /// A first fragment without the whole transport header, or one that would overwrite it
    /// (RFC 1858, RFC 3128, RFC 7112).
    #[error("fragment splits the transport header")]
    TinyFragment,
}

impl Malformed {
    /// Every reason, for counters by reason.
    pub const ALL: [Self; 16] = [
        Self::Empty,
        Self::Version,
        Self::Truncated,
        Self::TrailingBytes,
        Self::HeaderLength,
        Self::TotalLength,
        Self::HeaderChecksum,
        Self::Options,
        Self::ExtensionLength,
        Self::SourceRoute,
        Self::Jumbogram,
        Self::TooManyExtensions,
        Self::ExtensionOrder,
        Self::FragmentLength,
        Self::FragmentBeyondEnd,
        Self::TinyFragment,
    ];
}

impl Header {
    /// The transport takes packets that overtake each other for losses: TCP and SCTP (RFC 9293, RFC 9260 §7.2.4). A
    /// fragment is another flow than the packets around it.
    pub const fn needs_order(&self) -> bool {
        matches!(self.protocol, protocol::TCP | protocol::SCTP) && self.fragment.is_none()
    }

    /// Parses and validates the headers of `packet`, which must be exactly one IP packet.
    ///
    /// # Errors
    /// The first reason to refuse it.
    pub fn parse(packet: &[u8]) -> Result<Self, Malformed> {
        match packet.first().ok_or(Malformed::Empty)? >> 4 {
            4 => parse_v4(packet),
            6 => parse_v6(packet),
            _ => Err(Malformed::Version),
        }
    }

    #[inline]
    pub fn version(&self) -> Version {
        match self.source {
            IpAddr::V4(_) => Version::V4,
            IpAddr::V6(_) => Version::V6,
        }
    }

    /// Whether it contains a transport header: it is unfragmented, or a first fragment.
    #[inline]
    pub fn is_first(&self) -> bool {
        self.fragment.is_none_or(|fragment| fragment.offset == 0)
    }

    /// Whether its source or destination is link-local (RFC 3927, RFC 4291 §2.5.6).
    pub fn is_link_local(&self) -> bool {
        let on_link = |address: &IpAddr| match address {
            IpAddr::V4(a) => a.is_link_local(),
            IpAddr::V6(a) => a.is_unicast_link_local(),
        };
        on_link(&self.source) || on_link(&self.destination)
    }

    /// Whether a router may forward a packet between these addresses at all: no loopback, link-local,
    /// unspecified, IPv4-mapped or broadcast addresses, and no multicast source (RFC 1812 §5.3.7, RFC 4291
    /// §2.5).
    pub fn is_routable(&self) -> bool {
        let confined = |address: &IpAddr| match address {
            IpAddr::V4(a) => {
                a.is_loopback() || a.is_link_local() || a.octets()[0] == 0 || a.is_broadcast()
            }
            IpAddr::V6(a) => {
                a.is_loopback()
                    || a.is_unicast_link_local()
                    || a.is_unspecified()
                    || a.to_ipv4_mapped().is_some()
                    || scope_is_link(a)
            }
        };
        !confined(&self.source) && !confined(&self.destination) && !self.source.is_multicast()
    }
}

/// A multicast address with interface or link scope (RFC 4291 §2.7).
fn scope_is_link(address: &Ipv6Addr) -> bool {
    let [first, second, ..] = address.octets();
    first == 0xff && matches!(second & 0xf, 0..=2)
}

fn parse_v4(packet: &[u8]) -> Result<Header, Malformed> {
    let fixed: &[u8; V4_HEADER_BYTES] = packet.first_chunk().ok_or(Malformed::Truncated)?;
    let header_bytes = usize::from(fixed[0] & 0xf) * 4;
    if header_bytes < V4_HEADER_BYTES {
        return Err(Malformed::HeaderLength);
    }
    let header = packet.get(..header_bytes).ok_or(Malformed::Truncated)?;
    let total = usize::from(word(fixed, 2));
    if total < header_bytes {
        return Err(Malformed::TotalLength);
    }
    whole(packet, total)?;
    if !Sum::default().bytes(header).is_valid() {
        return Err(Malformed::HeaderChecksum);
    }
    if header_bytes > V4_HEADER_BYTES {
        judge_v4_options(&header[V4_HEADER_BYTES..])?;
    }
    let protocol = fixed[9];
    let payload = &packet[header_bytes..];
    let flags = word(fixed, 6);
    let fragment = Fragment {
        id: word(fixed, 4).into(),
        offset: (flags & 0x1fff) << 3,
        more: flags & 0x2000 != 0,
    };
    let fragment = (fragment.offset != 0 || fragment.more).then_some(fragment);
    if let Some(fragment) = fragment {
        judge_fragment(
            fragment,
            protocol,
            payload,
            usize::from(u16::MAX) - header_bytes,
        )?;
    }
    let address =
        |at: usize| Ipv4Addr::from([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
    Ok(Header {
        source: address(12).into(),
        destination: address(16).into(),
        traffic_class: fixed[1],
        hop_limit: fixed[8],
        protocol,
        transport: header_bytes,
        fragment,
        dont_fragment: flags & 0x4000 != 0,
        ports: ports(protocol, fragment, payload),
    })
}

fn judge_v4_options(mut options: &[u8]) -> Result<(), Malformed> {
    const END: u8 = 0;
    const NO_OPERATION: u8 = 1;
    const LOOSE_SOURCE_ROUTE: u8 = 131;
    const STRICT_SOURCE_ROUTE: u8 = 137;
    while let [kind, rest @ ..] = options {
        options = match *kind {
            END => return Ok(()),
            NO_OPERATION => rest,
            LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE => return Err(Malformed::SourceRoute),
            _ => {
                let length = usize::from(*rest.first().ok_or(Malformed::Options)?);
                if length < 2 {
                    return Err(Malformed::Options);
                }
                options.get(length..).ok_or(Malformed::Options)?
            }
        };
    }
    Ok(())
}

fn parse_v6(packet: &[u8]) -> Result<Header, Malformed> {
    let fixed: &[u8; V6_HEADER_BYTES] = packet.first_chunk().ok_or(Malformed::Truncated)?;
    let payload_bytes = usize::from(word(fixed, 4));
    let protocol = fixed[6];
    // A jumbogram states a length of zero, so its option is checked before the length.
    if protocol == HOP_BY_HOP {
        judge_v6_options(packet, V6_HEADER_BYTES)?;
    }
    whole(packet, V6_HEADER_BYTES + payload_bytes)?;
    let mut chain = Chain {
        protocol,
        at: V6_HEADER_BYTES,
        fragment: None,
    };
    if is_extension(protocol) {
        chain.walk(packet)?;
        chain.judge_first_fragment(packet)?;
    }
    let address = |at: usize| {
        let bytes: [u8; 16] = *fixed[at..]
            .first_chunk()
            .expect("40 bytes hold two addresses");
        Ipv6Addr::from(bytes)
    };
    let fragment = chain
        .fragment
        .filter(|fragment| fragment.offset != 0 || fragment.more);
    Ok(Header {
        source: address(8).into(),
        destination: address(24).into(),
        traffic_class: (word(fixed, 0) >> 4) as u8,
        hop_limit: fixed[7],
        protocol: chain.protocol,
        transport: chain.at,
        fragment,
        dont_fragment: true,
        ports: ports(chain.protocol, fragment, &packet[chain.at..]),
    })
}

/// An iterator over IPv6 extension headers.
struct Chain {
    protocol: u8,
    at: usize,
    fragment: Option<Fragment>,
}

impl Chain {
    fn walk(&mut self, packet: &[u8]) -> Result<(), Malformed> {
        for _ in 0..EXTENSIONS_MAX {
            if !is_extension(self.protocol) {
                return Ok(());
            }
            match self.step(packet) {
                // RFC 7112 §5: the first fragment contains all headers.
                Err(Malformed::Truncated) if self.fragment.is_some() => {
                    return Err(Malformed::TinyFragment);
                }
                Err(reason) => return Err(reason),
                Ok(()) => {}
            }
            if self.fragment.is_some_and(|fragment| fragment.offset != 0) {
                return Ok(());
            }
        }
        match is_extension(self.protocol) {
            true => Err(Malformed::TooManyExtensions),
            false => Ok(()),
        }
    }

    /// RFC 7112 §5: the first fragment contains the transport header too, behind all extension headers after
    /// the fragment header.
    fn judge_first_fragment(&self, packet: &[u8]) -> Result<(), Malformed> {
        let is_first = |fragment: Fragment| fragment.offset == 0 && fragment.more;
        let has = packet.len() - self.at;
        match self.fragment.is_some_and(is_first) && has < transport_header_bytes(self.protocol) {
            true => Err(Malformed::TinyFragment),
            false => Ok(()),
        }
    }

    fn step(&mut self, packet: &[u8]) -> Result<(), Malformed> {
        let rest = &packet[self.at..];
        let start: &[u8; 8] = rest.first_chunk().ok_or(Malformed::Truncated)?;
        let bytes = match self.protocol {
            FRAGMENT => 8,
            AUTHENTICATION if start[1] == 0 => return Err(Malformed::ExtensionLength),
            // RFC 4302 §2.2: in words of four bytes, minus two.
            AUTHENTICATION => (usize::from(start[1]) + 2) * 4,
            _ => (usize::from(start[1]) + 1) * 8,
        };
        let payload = rest.get(bytes..).ok_or(Malformed::Truncated)?;
        match self.protocol {
            HOP_BY_HOP if self.at != V6_HEADER_BYTES => return Err(Malformed::ExtensionOrder),
            DESTINATION_OPTIONS => judge_v6_options(packet, self.at)?,
            ROUTING if start[2] == 0 => return Err(Malformed::SourceRoute),
            FRAGMENT if self.fragment.is_some() => return Err(Malformed::ExtensionOrder),
            FRAGMENT => {
                let place = word(start, 2);
                let fragment = Fragment {
                    id: u32::from_be_bytes([start[4], start[5], start[6], start[7]]),
                    offset: place & !7,
                    more: place & 1 != 0,
                };
                if fragment.offset != 0 || fragment.more {
                    let room = usize::from(u16::MAX) + V6_HEADER_BYTES - self.at;
                    judge_fragment(fragment, start[0], payload, room)?;
                }
                self.fragment = Some(fragment);
            }
            _ => {}
        }
        self.protocol = start[0];
        self.at += bytes;
        Ok(())
    }
}

fn is_extension(protocol: u8) -> bool {
    matches!(
        protocol,
        HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION_OPTIONS
    )
}

/// Checks the options of the extension header at `at`.
fn judge_v6_options(packet: &[u8], at: usize) -> Result<(), Malformed> {
    const PAD_1: u8 = 0;
    const JUMBO_PAYLOAD: u8 = 0xc2;
    let header = &packet[at..];
    let length = *header.get(1).ok_or(Malformed::Truncated)?;
    let bytes = (usize::from(length) + 1) * 8;
    let mut options = header.get(2..bytes).ok_or(Malformed::Truncated)?;
    while let [kind, rest @ ..] = options {
        options = match *kind {
            PAD_1 => rest,
            JUMBO_PAYLOAD => return Err(Malformed::Jumbogram),
            _ => {
                let length = usize::from(*rest.first().ok_or(Malformed::Options)?);
                options.get(2 + length..).ok_or(Malformed::Options)?
            }
        };
    }
    Ok(())
}

/// `room` is the maximum payload of a packet with these headers, in bytes.
fn judge_fragment(
    fragment: Fragment,
    protocol: u8,
    payload: &[u8],
    room: usize,
) -> Result<(), Malformed> {
    if payload.is_empty() || (fragment.more && !payload.len().is_multiple_of(8)) {
        return Err(Malformed::FragmentLength);
    }
    let offset = usize::from(fragment.offset);
    if offset + payload.len() > room {
        return Err(Malformed::FragmentBeyondEnd);
    }
    let header_bytes = transport_header_bytes(protocol);
    let splits = match offset {
        0 => payload.len() < header_bytes,
        _ => offset < header_bytes,
    };
    match splits {
        true => Err(Malformed::TinyFragment),
        false => Ok(()),
    }
}

/// Minimum header length of a protocol above IP.
fn transport_header_bytes(protocol: u8) -> usize {
    match protocol {
        protocol::TCP => 20,
        protocol::UDP | protocol::UDP_LITE => 8,
        protocol::ICMP | protocol::ICMPV6 | protocol::SCTP | protocol::DCCP => 8,
        _ => 0,
    }
}

fn ports(protocol: u8, fragment: Option<Fragment>, payload: &[u8]) -> Option<Ports> {
    let has_ports = matches!(
        protocol,
        protocol::TCP | protocol::UDP | protocol::UDP_LITE | protocol::DCCP | protocol::SCTP
    );
    if !has_ports || fragment.is_some_and(|fragment| fragment.offset != 0) {
        return None;
    }
    let bytes: &[u8; 4] = payload.first_chunk()?;
    Some(Ports {
        source: word(bytes, 0),
        destination: word(bytes, 2),
    })
}

fn whole(packet: &[u8], stated: usize) -> Result<(), Malformed> {
    match packet.len() {
        bytes if bytes < stated => Err(Malformed::Truncated),
        bytes if bytes > stated => Err(Malformed::TrailingBytes),
        _ => Ok(()),
    }
}

/// The big-endian word at `at`, which must be in bounds.
#[inline]
pub(crate) fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
pub(crate) fn set_word(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Writes the checksum of the IPv4 header `header`, options included.
#[inline]
pub(crate) fn set_v4_checksum(header: &mut [u8]) {
    header[10..12].fill(0);
    let checksum = Sum::default().bytes(header).checksum();
    header[10..12].copy_from_slice(&checksum);
}

/// Replaces the word at `at` of an IPv4 header and updates its checksum.
#[inline]
pub(crate) fn replace_v4_word(packet: &mut [u8], at: usize, new: [u8; 2]) {
    let old = [packet[at], packet[at + 1]];
    let checksum = checksum::updated([packet[10], packet[11]], old, new);
    packet[at..at + 2].copy_from_slice(&new);
    packet[10..12].copy_from_slice(&checksum);
}

#[cfg(test)]
pub(crate) mod sample;
#[cfg(test)]
mod tests;
