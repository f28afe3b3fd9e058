//! Encoding and decoding of messages; [`encode`] has the former.
//!
//! The codec library (`rustbgpd-wire`) handles everything but NLRI lists, which are in [`nlri`].
//! Its types are used only here and in `session`. Malformed UPDATEs are handled by RFC 7606. An
//! attribute without effect on route selection is discarded. Otherwise the routes are treated as
//! withdrawn. The session is reset if the NLRI cannot be located.

mod encode;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bytes::Bytes;
use rustbgpd_wire::{
    self as codec, ErrorDisposition, PathAttribute, attribute::decode_path_attributes_revised,
    notification::NotificationCode,
};

use crate::{
    address::Family,
    attributes::{AsPath, Attributes, Origin, Segment, UnknownAttribute},
    nlri::{self, Nlri},
    srv6::Service,
};

pub(crate) use encode::{announce, end_of_rib, put_message, withdraw};

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

/// The NOTIFICATION for a malformed UPDATE.
pub(crate) fn update_notification(error: &UpdateError) -> codec::NotificationMessage {
    codec::NotificationMessage::new(NotificationCode::UpdateMessage, error.subcode, Bytes::new())
}
