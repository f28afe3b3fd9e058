//! Encoding and decoding of messages.
//!
//! The codec library (`rustbgpd-wire`) handles everything but NLRI lists, which are in [`nlri`].
//! Its types are used only here and in `session`. Malformed UPDATEs are handled by RFC 7606. An
//! attribute without effect on route selection is discarded. Otherwise the routes are treated as
//! withdrawn. The session is reset if the NLRI cannot be located.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bytes::Bytes;
use rustbgpd_wire::{
    self as codec, ErrorDisposition, ExtendedCommunity, LargeCommunity, PathAttribute,
    RawAttribute,
    attribute::{decode_path_attributes_revised, encode_path_attributes},
    notification::NotificationCode,
};

use crate::{
    address::Family,
    attributes::{AsPath, Attributes, Origin, Segment, UnknownAttribute},
    nlri::{self, Nlri},
    srv6::Service,
};

/// The session parameters that change the encoding of UPDATEs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Encoding {
    /// AS numbers have four octets (RFC 6793).
    pub(crate) four_octet: bool,
    /// The session is iBGP.
    pub(crate) internal: bool,
    pub(crate) families: Vec<Family>,
    /// The families in which received NLRI have path identifiers.
    pub(crate) add_path: Vec<Family>,
    /// The families of IPv4 routes that may have an IPv6 next hop (RFC 8950).
    pub(crate) extended_next_hop: Vec<Family>,
    /// Messages may have up to 65,535 octets (RFC 8654).
    pub(crate) extended_messages: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Update {
    /// Withdrawn destinations, including those of malformed announcements.
    pub(crate) withdrawn: Vec<Nlri>,
    /// Announced destinations with their attributes; at most two groups, as IPv4 has a next hop of
    /// its own.
    pub(crate) announced: Vec<(Attributes, Vec<Nlri>)>,
    /// End-of-RIB of this family (RFC 4724 §2).
    pub(crate) end_of_rib: Option<Family>,
    /// Why announcements were treated as withdrawn.
    pub(crate) malformed: Option<String>,
    /// The number of malformed attributes that were discarded, while their routes stay.
    pub(crate) discarded_attributes: u64,
}

/// Why an UPDATE resets the session: the subcode of the NOTIFICATION, and a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UpdateError {
    pub(crate) subcode: u8,
    pub(crate) detail: String,
}

/// The contents of MP_REACH_NLRI.
struct Reach<'a> {
    /// `None`: the family was not negotiated; the attribute is ignored (RFC 4760 §7 permits that).
    family: Option<Family>,
    next_hop: Option<(IpAddr, Option<Ipv6Addr>)>,
    list: &'a [u8],
}

mod kind {
    pub(super) const MP_REACH: u8 = 14;
    pub(super) const MP_UNREACH: u8 = 15;
    pub(super) const PREFIX_SID: u8 = 40;
}

/// Attribute flags (RFC 4271 §4.3).
mod flag {
    pub(super) const OPTIONAL: u8 = 0x80;
    pub(super) const TRANSITIVE: u8 = 0x40;
    pub(super) const PARTIAL: u8 = 0x20;
    pub(super) const EXTENDED: u8 = 0x10;
    /// The flags that a kind of attribute determines.
    pub(super) const CLASS: u8 = OPTIONAL | TRANSITIVE | PARTIAL;
}

/// Subcodes of UPDATE errors (RFC 4271 §4.5).
mod subcode {
    pub(super) const MALFORMED_LIST: u8 = 1;
    pub(super) const ATTRIBUTE_FLAGS: u8 = 4;
    pub(super) const OPTIONAL_ATTRIBUTE: u8 = 9;
    pub(super) const NETWORK_FIELD: u8 = 10;
}

pub(crate) fn decode_update(
    message: &codec::UpdateMessage,
    encoding: &Encoding,
) -> Result<Update, UpdateError> {
    let mut update = Update::default();
    let in_body = Body {
        withdrawn: &message.withdrawn_routes,
        announced: &message.nlri,
    };
    let body_nlri = decode_body(&in_body, encoding, &mut update)?;
    let Split {
        rest,
        reach,
        unreach,
    } = split(&message.path_attributes, encoding)?;
    if let Some(value) = unreach {
        let alone = rest.is_empty() && reach.is_none();
        decode_unreach(value, encoding, alone, &mut update)?;
    } else if message.path_attributes.is_empty()
        && in_body.withdrawn.is_empty()
        && in_body.announced.is_empty()
        && encoding.families.contains(&Family::Ipv4)
    {
        update.end_of_rib = Some(Family::Ipv4);
    }
    let reach = match reach {
        Some(value) => Some(decode_reach(value, encoding)?),
        None => None,
    };
    let announces =
        !in_body.announced.is_empty() || reach.as_ref().is_some_and(|reach| !reach.list.is_empty());
    if !announces {
        return refuse_without_nlri(&rest, encoding, &mut update).map(|()| update);
    }
    let mut mp_nlri = Vec::new();
    if let Some(Reach {
        family: Some(family),
        list,
        ..
    }) = &reach
    {
        let add_path = encoding.add_path.contains(family);
        nlri::decode(list, *family, add_path, &mut mp_nlri)
            .map_err(|error| malformed_list(error.to_string()))?;
    }
    let decoded = decode_attributes(&rest, encoding, &mut update);
    match decoded.and_then(Decoded::with_mandatory) {
        Ok((attributes, body_next_hop)) => {
            let body_next_hop = body_next_hop
                .map(IpAddr::V4)
                .filter(|address| usable(*address));
            let body_next_hop = body_next_hop.map(|address| (address, None));
            let mp_next_hop = reach.and_then(|reach| reach.next_hop);
            update.announce(&attributes, body_next_hop, body_nlri);
            update.announce(&attributes, mp_next_hop, mp_nlri);
        }
        Err(malformed) => {
            update.malformed = Some(malformed);
            update.withdrawn.extend(body_nlri);
            update.withdrawn.extend(mp_nlri);
        }
    }
    Ok(update)
}

/// RFC 7606 §5.2: attributes without routes that they belong to may hide an announcement that was
/// not found, so an error in them resets the session.
fn refuse_without_nlri(
    rest: &[u8],
    encoding: &Encoding,
    update: &mut Update,
) -> Result<(), UpdateError> {
    match decode_attributes(rest, encoding, update) {
        Ok(_) => Ok(()),
        Err(detail) => Err(UpdateError {
            subcode: subcode::MALFORMED_LIST,
            detail: format!("{detail}, and no announced route was found (RFC 7606 §5.2)"),
        }),
    }
}

impl Update {
    /// Adds announced routes with this next hop; without a usable one they are withdrawn.
    fn announce(
        &mut self,
        attributes: &Attributes,
        next_hop: Option<(IpAddr, Option<Ipv6Addr>)>,
        list: Vec<Nlri>,
    ) {
        if list.is_empty() {
            return;
        }
        let Some((next_hop, link_local)) = next_hop else {
            self.malformed = Some("no usable next hop".to_owned());
            self.withdrawn.extend(list);
            return;
        };
        let attributes = Attributes {
            next_hop,
            link_local,
            ..attributes.clone()
        };
        let list = self.withdraw_invalid_sids(attributes.service.as_ref(), list);
        if !list.is_empty() {
            self.announced.push((attributes, list));
        }
    }

    /// Withdraws the routes whose SID cannot be a segment (RFC 9252 §7: such a path is not
    /// considered), and returns the others. The label has a part of the SID, so that each route is
    /// checked.
    fn withdraw_invalid_sids(&mut self, service: Option<&Service>, list: Vec<Nlri>) -> Vec<Nlri> {
        let Some(service) = service else {
            return list;
        };
        let valid = |nlri: &Nlri| is_valid_sid(service.sid(nlri.label));
        let (valid, invalid): (Vec<Nlri>, Vec<Nlri>) = list.into_iter().partition(valid);
        if let Some(first) = invalid.first() {
            let sid = service.sid(first.label);
            self.malformed = Some(format!("{sid} is no address for a segment"));
            self.withdrawn.extend(invalid);
        }
        valid
    }
}

/// Decodes the IPv4 routes outside of the attributes: adds the withdrawn ones to `update` and returns
/// the announced ones.
fn decode_body(
    body: &Body<'_>,
    encoding: &Encoding,
    update: &mut Update,
) -> Result<Vec<Nlri>, UpdateError> {
    let mut announced = Vec::new();
    if encoding.families.contains(&Family::Ipv4) {
        let add_path = encoding.add_path.contains(&Family::Ipv4);
        let withdrawn = &mut update.withdrawn;
        nlri::decode(body.withdrawn, Family::Ipv4, add_path, withdrawn)
            .and_then(|()| nlri::decode(body.announced, Family::Ipv4, add_path, &mut announced))
            .map_err(|error| UpdateError {
                subcode: subcode::NETWORK_FIELD,
                detail: error.to_string(),
            })?;
    }
    Ok(announced)
}

struct Body<'a> {
    withdrawn: &'a [u8],
    announced: &'a [u8],
}

/// Path attributes, with those of RFC 4760 separated.
struct Split<'a> {
    rest: Vec<u8>,
    reach: Option<&'a [u8]>,
    unreach: Option<&'a [u8]>,
}

fn split<'a>(mut attributes: &'a [u8], encoding: &Encoding) -> Result<Split<'a>, UpdateError> {
    let mut split = Split {
        rest: Vec::with_capacity(attributes.len()),
        reach: None,
        unreach: None,
    };
    while let Some((head, value, after)) = next_attribute(attributes) {
        let slot = match head[1] {
            kind::MP_REACH => &mut split.reach,
            kind::MP_UNREACH => &mut split.unreach,
            // RFC 8669 §4: from outside of the SR domain the attribute is discarded, whatever it
            // contains.
            kind::PREFIX_SID if !encoding.internal => {
                attributes = after;
                continue;
            }
            _ => {
                let whole = attributes.len() - after.len();
                split.rest.extend(&attributes[..whole]);
                attributes = after;
                continue;
            }
        };
        if head[0] & flag::CLASS != flag::OPTIONAL {
            return Err(UpdateError {
                subcode: subcode::ATTRIBUTE_FLAGS,
                detail: format!("attribute {} with flags {:#04x}", head[1], head[0]),
            });
        }
        if slot.replace(value).is_some() {
            return Err(UpdateError {
                subcode: subcode::MALFORMED_LIST,
                detail: "more than one MP_REACH_NLRI or MP_UNREACH_NLRI (RFC 7606 §3 g)".to_owned(),
            });
        }
        attributes = after;
    }
    // The codec reports malformed attributes, but must not see MP_REACH_NLRI and MP_UNREACH_NLRI.
    if let [_, kind::MP_REACH | kind::MP_UNREACH, ..] = attributes {
        return Err(malformed_list(
            "MP_REACH_NLRI or MP_UNREACH_NLRI extends beyond the attributes".to_owned(),
        ));
    }
    split.rest.extend(attributes);
    Ok(split)
}

/// The routes of MP_REACH_NLRI or MP_UNREACH_NLRI cannot be located (RFC 7606 §5.3, §7.11).
fn malformed_list(detail: String) -> UpdateError {
    UpdateError {
        subcode: subcode::OPTIONAL_ATTRIBUTE,
        detail,
    }
}

/// Head, value and rest; `None`: the end, or an attribute that extends beyond it.
fn next_attribute(attributes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let long = attributes.first()? & flag::EXTENDED != 0;
    let (head, rest) = attributes.split_at_checked(if long { 4 } else { 3 })?;
    let length = match *head {
        [_, _, high, low] => usize::from(u16::from_be_bytes([high, low])),
        [.., length] => usize::from(length),
        [] => return None,
    };
    let (value, after) = rest.split_at_checked(length)?;
    Some((head, value, after))
}

fn decode_unreach(
    value: &[u8],
    encoding: &Encoding,
    alone: bool,
    update: &mut Update,
) -> Result<(), UpdateError> {
    let [a, b, safi, list @ ..] = value else {
        return Err(malformed_list("MP_UNREACH_NLRI is too short".to_owned()));
    };
    let Some(family) = known(u16::from_be_bytes([*a, *b]), *safi, encoding) else {
        return Ok(());
    };
    let before = update.withdrawn.len();
    let add_path = encoding.add_path.contains(&family);
    nlri::decode(list, family, add_path, &mut update.withdrawn)
        .map_err(|error| malformed_list(error.to_string()))?;
    if list.is_empty() && alone && before == 0 {
        update.end_of_rib = Some(family);
    }
    Ok(())
}

fn decode_reach<'a>(value: &'a [u8], encoding: &Encoding) -> Result<Reach<'a>, UpdateError> {
    let short = || malformed_list("MP_REACH_NLRI is too short".to_owned());
    let [a, b, safi, length, rest @ ..] = value else {
        return Err(short());
    };
    let family = known(u16::from_be_bytes([*a, *b]), *safi, encoding);
    let (next_hop, rest) = rest
        .split_at_checked(usize::from(*length))
        .ok_or_else(short)?;
    let (_reserved, list) = rest.split_first().ok_or_else(short)?;
    if let Some(family) = family
        && !next_hop_lengths(family).contains(&next_hop.len())
    {
        // RFC 7606 §7.11: the list begins behind the next hop.
        return Err(malformed_list(format!(
            "a next hop of {length} octets for {family}"
        )));
    }
    Ok(Reach {
        family,
        next_hop: family.and_then(|family| decode_next_hop(family, next_hop)),
        list,
    })
}

/// RFC 4760, RFC 2545 §3, RFC 4364 §4.3.2, RFC 4659 §3.2.1, RFC 8950 §3.
fn next_hop_lengths(family: Family) -> &'static [usize] {
    match family {
        Family::Ipv4 => &[4, 16, 32],
        Family::Ipv6 => &[16, 32],
        Family::Vpn6 => &[24, 48],
        Family::Vpn4 => &[12, 24, 48],
    }
}

/// The global and the link-local next hop; `None`: the next hop is unusable and the routes are
/// withdrawn.
fn decode_next_hop(family: Family, octets: &[u8]) -> Option<(IpAddr, Option<Ipv6Addr>)> {
    let v6 = |octets: &[u8]| <[u8; 16]>::try_from(octets).ok().map(Ipv6Addr::from);
    let (global, link_local) = match (family, octets.len()) {
        (Family::Ipv4, 4) => {
            let octets: [u8; 4] = octets.try_into().ok()?;
            (IpAddr::V4(Ipv4Addr::from(octets)), None)
        }
        (Family::Ipv4 | Family::Ipv6, 16) => (v6(octets)?.into(), None),
        (Family::Ipv4 | Family::Ipv6, 32) => (v6(&octets[..16])?.into(), v6(&octets[16..])),
        // Each address follows a route distinguisher of zero (RFC 4659 §3.2.1).
        (Family::Vpn4, 12) => {
            let octets: [u8; 4] = octets[8..].try_into().ok()?;
            (IpAddr::V4(Ipv4Addr::from(octets)), None)
        }
        (Family::Vpn6 | Family::Vpn4, 24) => (v6(&octets[8..])?.into(), None),
        (Family::Vpn6 | Family::Vpn4, 48) => (v6(&octets[8..24])?.into(), v6(&octets[32..])),
        _ => return None,
    };
    // Some senders leave one half empty, others put the link-local address first (RFC 2545 §3).
    let link_local = link_local.filter(Ipv6Addr::is_unicast_link_local);
    let link_local = match global {
        IpAddr::V6(address) if address.is_unicast_link_local() => link_local.or(Some(address)),
        _ => link_local,
    };
    usable(global).then_some((global, link_local))
}

fn usable(address: IpAddr) -> bool {
    !(address.is_unspecified() || address.is_multicast() || address.is_loopback())
}

/// Whether a router can have this SID: an address of a host, and not one that the address
/// architecture keeps for other purposes (RFC 4291 §2.4).
pub(crate) fn is_valid_sid(sid: Ipv6Addr) -> bool {
    usable(sid.into()) && !sid.is_unicast_link_local() && sid.to_ipv4_mapped().is_none()
}

fn known(afi: u16, safi: u8, encoding: &Encoding) -> Option<Family> {
    Family::of(afi, safi).filter(|family| encoding.families.contains(family))
}

/// Decoded attributes; mandatory ones may be missing.
struct Decoded {
    attributes: Attributes,
    origin: Option<Origin>,
    as_path: Option<AsPath>,
    next_hop: Option<Ipv4Addr>,
}

impl Decoded {
    /// The attributes of announced routes and NEXT_HOP; or why the routes are treated as withdrawn.
    fn with_mandatory(self) -> Result<(Attributes, Option<Ipv4Addr>), String> {
        let attributes = Attributes {
            origin: self.origin.ok_or("no ORIGIN")?,
            as_path: self.as_path.ok_or("no AS_PATH")?,
            ..self.attributes
        };
        Ok((attributes, self.next_hop))
    }

    /// Adds an attribute that the codec understands.
    fn add(&mut self, attribute: PathAttribute, encoding: &Encoding) -> Result<(), String> {
        let attributes = &mut self.attributes;
        match attribute {
            PathAttribute::Origin(found) => {
                self.origin = Some(match found {
                    codec::Origin::Igp => Origin::Igp,
                    codec::Origin::Egp => Origin::Egp,
                    codec::Origin::Incomplete => Origin::Incomplete,
                });
            }
            PathAttribute::AsPath(found) => self.as_path = Some(own_path(found)?),
            PathAttribute::NextHop(found) => self.next_hop = Some(found),
            PathAttribute::Med(med) => attributes.med = Some(med),
            // RFC 4271 §5.1.5: ignored from eBGP neighbours.
            PathAttribute::LocalPref(found) if encoding.internal => {
                attributes.local_pref = Some(found);
            }
            PathAttribute::LocalPref(_) => {}
            PathAttribute::AtomicAggregate => attributes.atomic = true,
            PathAttribute::Aggregator(found) => {
                attributes.aggregator = Some((found.asn, found.router_id));
            }
            PathAttribute::Communities(list) | PathAttribute::CommunitiesPartial(list) => {
                attributes.communities = list.into();
            }
            PathAttribute::ExtendedCommunities(list)
            | PathAttribute::ExtendedCommunitiesPartial(list) => {
                attributes.extended = list.iter().map(|c| c.as_u64()).collect();
            }
            PathAttribute::LargeCommunities(list)
            | PathAttribute::LargeCommunitiesPartial(list) => {
                attributes.large = list
                    .iter()
                    .map(|c| [c.global_admin, c.local_data1, c.local_data2])
                    .collect();
            }
            PathAttribute::OriginatorId(id) => attributes.originator = Some(id),
            PathAttribute::ClusterList(list) => attributes.clusters = list.into(),
            // The speaker does not use the others.
            _ => {}
        }
        Ok(())
    }
}

/// The attributes; or an error stronger than the discard of an attribute.
fn decode_attributes(
    octets: &[u8],
    encoding: &Encoding,
    update: &mut Update,
) -> Result<Decoded, String> {
    let decoded =
        decode_path_attributes_revised(octets, encoding.four_octet, encoding.internal, &[])
            .map_err(|error| error.to_string())?;
    let worst = decoded.malformed.iter().max_by_key(|bad| bad.disposition);
    if let Some(bad) = worst.filter(|bad| bad.disposition >= ErrorDisposition::TreatAsWithdraw) {
        return Err(format!("attribute {}: {}", bad.type_code, bad.error));
    }
    update.discarded_attributes = decoded.malformed.len() as u64;
    let mut all = Decoded {
        attributes: Attributes::local(Ipv4Addr::UNSPECIFIED.into()),
        origin: None,
        as_path: None,
        next_hop: None,
    };
    let mut unknown = Vec::new();
    for attribute in decoded.attributes {
        match attribute {
            PathAttribute::Unknown(raw) if raw.type_code == kind::PREFIX_SID => {
                // RFC 9252 §7: a malformed service is treated as withdrawal.
                all.attributes.service = Service::decode(&raw.data)
                    .map_err(|error| format!("attribute {}: {error}", kind::PREFIX_SID))?;
            }
            PathAttribute::Unknown(raw) if raw.flags & flag::OPTIONAL == 0 => {
                let kind = raw.type_code;
                return Err(format!("attribute {kind} is well-known, but not here"));
            }
            PathAttribute::Unknown(raw) => unknown.push(UnknownAttribute {
                flags: raw.flags,
                kind: raw.type_code,
                value: raw.data.as_ref().into(),
            }),
            known => all.add(known, encoding)?,
        }
    }
    // Ignored from eBGP neighbours (RFC 4456 §8).
    if !encoding.internal {
        all.attributes.originator = None;
        all.attributes.clusters = Box::default();
    }
    all.attributes.unknown = unknown.into();
    Ok(all)
}

/// RFC 7606 §7.2: a segment without AS numbers is malformed.
fn own_path(path: codec::AsPath) -> Result<AsPath, String> {
    let segments = path.segments.into_iter().map(|segment| match segment {
        codec::AsPathSegment::AsSequence(asns) => Segment::Sequence(asns.into()),
        codec::AsPathSegment::AsSet(asns) => Segment::Set(asns.into()),
    });
    let path = AsPath(segments.collect());
    let is_empty = |segment: &Segment| match segment {
        Segment::Sequence(asns) | Segment::Set(asns) => asns.is_empty(),
    };
    match path.0.iter().any(is_empty) {
        true => Err("AS_PATH has a segment without AS numbers".to_owned()),
        false => Ok(path),
    }
}

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

/// The NOTIFICATION for a malformed UPDATE.
pub(crate) fn update_notification(error: &UpdateError) -> codec::NotificationMessage {
    codec::NotificationMessage::new(NotificationCode::UpdateMessage, error.subcode, Bytes::new())
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
