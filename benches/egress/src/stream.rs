//! A border router's messages for a full table, octet by octet (RFC 4271, 4364, 4659, 9252): some twenty
//! prefixes per set of attributes and paths of several lengths, as in Internet tables. Generated before
//! measuring, and by none of the measured programs.

use std::net::Ipv6Addr;

/// The AS of all.
pub(crate) const ASN: u16 = 65000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// VPNv6 with an SRv6 SID for each border router.
    Vpn,
    /// IPv6 unicast.
    Unicast,
}

/// A border router's routes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table {
    pub(crate) family: Family,
    /// Distinguishes several border routers: of route distinguisher, route target and SID.
    pub(crate) number: u8,
    pub(crate) next_hop: Ipv6Addr,
    pub(crate) routes: u32,
}

impl Table {
    /// All routes, and the end of them.
    pub(crate) fn announced(&self) -> Vec<u8> {
        let groups = self.routes / PER_SET;
        let mut out: Vec<u8> = (0..groups).flat_map(|group| self.update(group)).collect();
        out.extend(self.end());
        out
    }

    /// All of them withdrawn, many per message.
    pub(crate) fn withdrawn(&self) -> Vec<u8> {
        let all: Vec<u32> = (0..self.routes / PER_SET * PER_SET).collect();
        let one = |some: &[u32]| {
            let mut value = self.family.codes();
            for route in some {
                self.destination(*route, WITHDRAWN_LABEL, &mut value);
            }
            update(&attribute(OPTIONAL, MP_UNREACH, &value))
        };
        all.chunks(PER_WITHDRAWAL).flat_map(one).collect()
    }

    fn end(&self) -> Vec<u8> {
        update(&attribute(OPTIONAL, MP_UNREACH, &self.family.codes()))
    }

    /// Twenty routes with attributes of their own.
    fn update(&self, group: u32) -> Vec<u8> {
        let mut reach = self.family.codes();
        match self.family {
            Family::Vpn => reach.extend([24, 0, 0, 0, 0, 0, 0, 0, 0]),
            Family::Unicast => reach.push(16),
        }
        reach.extend(self.next_hop.octets());
        reach.push(0);
        for place in 0..PER_SET {
            self.destination(group * PER_SET + place, IMPLICIT_NULL, &mut reach);
        }
        let mut path = vec![2, 2 + (group % 5) as u8];
        path.extend((u32::from(ASN) + u32::from(self.number)).to_be_bytes());
        for hop in 0..=group % 5 {
            path.extend((1_000 + group * 7 + hop).to_be_bytes());
        }
        let mut all = attribute(OPTIONAL, MP_REACH, &reach);
        all.extend(attribute(WELL_KNOWN, ORIGIN, &[0]));
        all.extend(attribute(WELL_KNOWN, AS_PATH, &path));
        all.extend(attribute(WELL_KNOWN, LOCAL_PREF, &100_u32.to_be_bytes()));
        if self.family == Family::Vpn {
            let target = [&[0, 2], &self.administered()[..]].concat();
            all.extend(attribute(TRANSITIVE, EXTENDED_COMMUNITIES, &target));
            all.extend(attribute(TRANSITIVE, PREFIX_SID, &self.service()));
        }
        update(&all)
    }

    /// As NLRI: a /48, of a VPN with label and route distinguisher before it.
    fn destination(&self, route: u32, label: [u8; 3], out: &mut Vec<u8>) {
        let [a, b, c, d] = route.to_be_bytes();
        if self.family == Family::Vpn {
            out.push(24 + 64 + 48);
            out.extend(label);
            out.extend([0, 0]);
            out.extend(self.administered());
        } else {
            out.push(48);
        }
        out.extend([0x2a, a, b, c, d, 0]);
    }

    /// ASN:number, of type 0.
    fn administered(&self) -> [u8; 6] {
        let [a, b] = ASN.to_be_bytes();
        [a, b, 0, 0, 0, self.number]
    }

    /// Prefix-SID with an SRv6 L3 Service TLV: a SID that is whole in it, End.DT6 (RFC 9252 §2).
    fn service(&self) -> Vec<u8> {
        let number = u16::from(self.number);
        let sid = Ipv6Addr::new(0x2001, 0xdb8, 0xa, 0xf0 + number, 0x100, 0, 0, 0);
        let mut value = vec![5, 0, 25, 0, 1, 0, 21, 0];
        value.extend(sid.octets());
        value.extend([0, 0, 18, 0]);
        value
    }
}

impl Family {
    pub(crate) fn codes(self) -> Vec<u8> {
        match self {
            Self::Vpn => vec![0, 2, 128],
            Self::Unicast => vec![0, 2, 1],
        }
    }
}

/// Adds the header of RFC 4271 §4.1.
pub(crate) fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![0xff; 16];
    out.extend((19 + body.len() as u16).to_be_bytes());
    out.push(kind);
    out.extend(body);
    out
}

fn update(attributes: &[u8]) -> Vec<u8> {
    let mut body = vec![0, 0];
    body.extend((attributes.len() as u16).to_be_bytes());
    body.extend(attributes);
    message(UPDATE, &body)
}

fn attribute(flags: u8, kind: u8, value: &[u8]) -> Vec<u8> {
    let mut out = vec![flags | EXTENDED_LENGTH, kind];
    out.extend((value.len() as u16).to_be_bytes());
    out.extend(value);
    out
}

/// Prefixes with one set of attributes.
const PER_SET: u32 = 20;
/// Withdrawn prefixes of a message, which may have 4,096 octets.
const PER_WITHDRAWAL: usize = 200;
const UPDATE: u8 = 2;
const WELL_KNOWN: u8 = 0x40;
const OPTIONAL: u8 = 0x80;
const TRANSITIVE: u8 = 0xc0;
const EXTENDED_LENGTH: u8 = 0x10;
const ORIGIN: u8 = 1;
const AS_PATH: u8 = 2;
const LOCAL_PREF: u8 = 5;
const MP_REACH: u8 = 14;
const MP_UNREACH: u8 = 15;
const EXTENDED_COMMUNITIES: u8 = 16;
const PREFIX_SID: u8 = 40;
/// Label 3, the last of its stack.
const IMPLICIT_NULL: [u8; 3] = [0, 0, 0x31];
/// RFC 8277 §2.4.
const WITHDRAWN_LABEL: [u8; 3] = [0x80, 0, 0];
