//! Encoding of UPDATEs.

use std::net::IpAddr;

use bytes::Bytes;
use rustbgpd_wire::{
    self as codec, ExtendedCommunity, LargeCommunity, PathAttribute, RawAttribute,
    attribute::encode_path_attributes,
};

use super::{Encoding, flag, kind};
use crate::{
    address::Family,
    attributes::{Attributes, Origin, Segment},
    nlri::{self, Nlri},
};

/// Appends the UPDATEs that announce `list` (one family) with the same attributes.
///
/// # Errors
/// The attributes cannot be encoded, or leave no room for NLRI.
pub(crate) fn announce(
    attributes: &Attributes,
    family: Family,
    list: &[Nlri],
    encoding: &Encoding,
    out: &mut Vec<u8>,
) -> Result<(), String> {
    let in_body = family == Family::Ipv4 && attributes.next_hop.is_ipv4();
    let is_extended = family.afi() == Family::Ipv4.afi() && attributes.next_hop.is_ipv6();
    if is_extended && !encoding.extended_next_hop.contains(&family) {
        return Err(format!(
            "the neighbour does not support IPv6 next hops for {family} routes (RFC 8950)"
        ));
    }
    let mut rest = Vec::new();
    encode_path_attributes(
        &codec_attributes(attributes, in_body),
        &mut rest,
        encoding.four_octet,
        false,
    )
    .map_err(|error| error.to_string())?;
    if let Some(service) = &attributes.service {
        let flags = flag::OPTIONAL | flag::TRANSITIVE;
        put_attribute(&mut rest, flags, kind::PREFIX_SID, &service.encode());
    }
    let mut reach = Vec::new();
    if !in_body {
        reach.extend(family.afi().to_be_bytes());
        reach.push(family.safi());
        put_next_hop(attributes, family, &mut reach);
        reach.push(0);
    }
    let room = room_for_nlri(rest.len() + reach.len(), encoding)?;
    for_chunks(list, room, false, |chunk| {
        if in_body {
            put_update(out, &[], &rest, chunk);
            return;
        }
        let head = reach.len();
        reach.extend(chunk);
        // RFC 7606 §5.1: MP_REACH_NLRI goes first.
        let mut all = Vec::with_capacity(reach.len() + rest.len() + LONG_HEAD_BYTES);
        put_attribute(&mut all, flag::OPTIONAL, kind::MP_REACH, &reach);
        all.extend(&rest);
        put_update(out, &[], &all, &[]);
        reach.truncate(head);
    });
    Ok(())
}

/// The octets of a message that are left for NLRI. Long messages are only used where attributes need them:
/// others keep a neighbour's processing of one message short.
///
/// # Errors
/// There is no room.
fn room_for_nlri(attributes_bytes: usize, encoding: &Encoding) -> Result<usize, String> {
    let least = HEADER_BYTES + 4 + attributes_bytes + LONG_HEAD_BYTES;
    let room_in = |longest: usize| {
        let room = longest.checked_sub(least);
        room.filter(|room| *room >= NLRI_BYTES_MAX)
    };
    let room = room_in(MESSAGE_BYTES_MAX).or_else(|| {
        let long = encoding.extended_messages;
        long.then(|| room_in(LONG_MESSAGE_BYTES_MAX)).flatten()
    });
    room.ok_or_else(|| match encoding.extended_messages {
        true => format!(
            "its attributes of {attributes_bytes} octets leave no room for it in a message of \
             {LONG_MESSAGE_BYTES_MAX}"
        ),
        false => format!(
            "its attributes of {attributes_bytes} octets leave no room for it in a message of \
             {MESSAGE_BYTES_MAX}, and the session has no extended messages (RFC 8654)"
        ),
    })
}

/// Appends the UPDATEs that withdraw `list` (one family).
pub(crate) fn withdraw(family: Family, list: &[Nlri], out: &mut Vec<u8>) {
    let room = MESSAGE_BYTES_MAX - HEADER_BYTES - 4 - LONG_HEAD_BYTES - 3;
    for_chunks(list, room, true, |chunk| {
        if family == Family::Ipv4 {
            put_update(out, chunk, &[], &[]);
            return;
        }
        put_update(out, &[], &unreach(family, chunk), &[]);
    });
}

/// Appends an End-of-RIB marker.
pub(crate) fn end_of_rib(family: Family, out: &mut Vec<u8>) {
    match family {
        Family::Ipv4 => put_update(out, &[], &[], &[]),
        _ => put_update(out, &[], &unreach(family, &[]), &[]),
    }
}

pub(crate) fn put_message(message: &codec::Message, out: &mut Vec<u8>) {
    match codec::encode_message(message) {
        Ok(encoded) => out.extend(&encoded),
        // Encoding fails only for capabilities beyond 255 octets; the speaker sends fewer.
        Err(error) => unreachable!("own message cannot be encoded: {error}"),
    }
}

fn unreach(family: Family, list: &[u8]) -> Vec<u8> {
    let mut value = Vec::with_capacity(list.len() + 3);
    value.extend(family.afi().to_be_bytes());
    value.push(family.safi());
    value.extend(list);
    let mut all = Vec::with_capacity(value.len() + LONG_HEAD_BYTES);
    put_attribute(&mut all, flag::OPTIONAL, kind::MP_UNREACH, &value);
    all
}

/// Encodes `list` in chunks of at most `room` octets.
fn for_chunks(list: &[Nlri], room: usize, withdrawn: bool, mut with: impl FnMut(&[u8])) {
    let mut chunk = Vec::with_capacity(room);
    for nlri in list {
        let before = chunk.len();
        nlri::encode(nlri, false, withdrawn, &mut chunk);
        if chunk.len() > room {
            with(&chunk[..before]);
            chunk.drain(..before);
        }
    }
    if !chunk.is_empty() {
        with(&chunk);
    }
}

fn put_next_hop(attributes: &Attributes, family: Family, out: &mut Vec<u8>) {
    let mut octets = Vec::with_capacity(48);
    let distinguisher: &[u8] = match family {
        Family::Vpn6 | Family::Vpn4 => &[0; 8],
        _ => &[],
    };
    octets.extend(distinguisher);
    match attributes.next_hop {
        IpAddr::V4(address) if family.afi() == Family::Ipv4.afi() => {
            octets.extend(address.octets());
        }
        IpAddr::V4(address) => octets.extend(address.to_ipv6_mapped().octets()),
        IpAddr::V6(address) => octets.extend(address.octets()),
    }
    if let Some(address) = attributes.link_local {
        octets.extend(distinguisher);
        octets.extend(address.octets());
    }
    out.push(octets.len() as u8);
    out.extend(octets);
}

fn codec_attributes(attributes: &Attributes, with_next_hop: bool) -> Vec<PathAttribute> {
    let mut list = vec![
        PathAttribute::Origin(match attributes.origin {
            Origin::Igp => codec::Origin::Igp,
            Origin::Egp => codec::Origin::Egp,
            Origin::Incomplete => codec::Origin::Incomplete,
        }),
        PathAttribute::AsPath(codec::AsPath {
            segments: attributes.as_path.0.iter().map(codec_segment).collect(),
        }),
    ];
    if let (true, IpAddr::V4(next_hop)) = (with_next_hop, attributes.next_hop) {
        list.push(PathAttribute::NextHop(next_hop));
    }
    list.extend(attributes.med.map(PathAttribute::Med));
    list.extend(attributes.local_pref.map(PathAttribute::LocalPref));
    if attributes.atomic {
        list.push(PathAttribute::AtomicAggregate);
    }
    if let Some((asn, router_id)) = attributes.aggregator {
        list.push(PathAttribute::Aggregator(codec::Aggregator {
            asn,
            router_id,
            partial: false,
        }));
    }
    if !attributes.communities.is_empty() {
        let communities = attributes.communities.to_vec();
        list.push(PathAttribute::Communities(communities));
    }
    list.extend(attributes.originator.map(PathAttribute::OriginatorId));
    if !attributes.clusters.is_empty() {
        list.push(PathAttribute::ClusterList(attributes.clusters.to_vec()));
    }
    if !attributes.extended.is_empty() {
        let extended = attributes.extended.iter().copied();
        let extended = extended.map(ExtendedCommunity::new).collect();
        list.push(PathAttribute::ExtendedCommunities(extended));
    }
    if !attributes.large.is_empty() {
        let large = attributes.large.iter();
        let large = large.map(|&[a, b, c]| LargeCommunity::new(a, b, c));
        list.push(PathAttribute::LargeCommunities(large.collect()));
    }
    list.extend(attributes.unknown.iter().map(|unknown| {
        PathAttribute::Unknown(RawAttribute {
            flags: unknown.flags,
            type_code: unknown.kind,
            data: Bytes::copy_from_slice(&unknown.value),
        })
    }));
    list
}

fn codec_segment(segment: &Segment) -> codec::AsPathSegment {
    match segment {
        Segment::Sequence(asns) => codec::AsPathSegment::AsSequence(asns.to_vec()),
        Segment::Set(asns) => codec::AsPathSegment::AsSet(asns.to_vec()),
    }
}

fn put_attribute(out: &mut Vec<u8>, flags: u8, kind: u8, value: &[u8]) {
    match u8::try_from(value.len()) {
        Ok(length) => out.extend([flags, kind, length]),
        Err(_) => {
            out.extend([flags | flag::EXTENDED, kind]);
            out.extend(short(value.len()));
        }
    }
    out.extend(value);
}

fn put_update(out: &mut Vec<u8>, withdrawn: &[u8], attributes: &[u8], announced: &[u8]) {
    let length = HEADER_BYTES + 4 + withdrawn.len() + attributes.len() + announced.len();
    debug_assert!(length <= LONG_MESSAGE_BYTES_MAX);
    out.extend([0xff; 16]);
    out.extend(short(length));
    out.push(UPDATE);
    out.extend(short(withdrawn.len()));
    out.extend(withdrawn);
    out.extend(short(attributes.len()));
    out.extend(attributes);
    out.extend(announced);
}

/// A length inside a message.
fn short(length: usize) -> [u8; 2] {
    u16::try_from(length)
        .expect("lengths stay within a message")
        .to_be_bytes()
}

const UPDATE: u8 = 2;
/// Marker, length and type.
const HEADER_BYTES: usize = 19;
/// The longest message (RFC 4271 §4.1).
const MESSAGE_BYTES_MAX: usize = 4096;
/// The longest one with extended messages (RFC 8654).
const LONG_MESSAGE_BYTES_MAX: usize = 65_535;
/// Flags, type and two octets of length.
const LONG_HEAD_BYTES: usize = 4;
/// The longest NLRI entry: length, label, route distinguisher and prefix.
const NLRI_BYTES_MAX: usize = 1 + 3 + 8 + 16;
