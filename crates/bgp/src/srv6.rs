//! SRv6 service SIDs (RFC 9252): the Prefix-SID attribute and label transposition.
//!
//! Only the SRv6 L3 Service TLV is read and written. A malformed service makes the route unusable
//! for SRv6 but does not end the session (RFC 9252 §7).

use std::net::Ipv6Addr;

/// The SRv6 L3 service of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Service {
    /// The SID as in the attribute, without the transposed bits.
    pub sid: Ipv6Addr,
    /// The endpoint behaviour (RFC 8986 §10.2); 0xFFFF: opaque.
    pub behaviour: u16,
    /// The SID structure; `None`: not given, and nothing is transposed.
    pub structure: Option<Structure>,
}

/// The SID structure, in bits (RFC 9252 §3.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Structure {
    pub block: u8,
    pub node: u8,
    pub function: u8,
    pub argument: u8,
    /// The number of bits that the label carries instead of the SID; 0: none.
    pub transposed: u8,
    /// The offset of these bits in the SID, from the left.
    pub offset: u8,
}

/// A 20-bit label, without traffic class and bottom-of-stack bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(u32);

/// Why a Prefix-SID attribute is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// A TLV extends beyond its container.
    #[error("a TLV extends beyond its container")]
    Truncated,
    /// The service has no SID.
    #[error("the service has no SID")]
    NoSid,
    /// The SID structure does not fit.
    #[error("the SID's structure does not fit 128 bits or the label")]
    Structure,
}

impl Label {
    /// Implicit null (RFC 3032 §2.1): the label where nothing is transposed.
    pub const IMPLICIT_NULL: Self = Self(3);

    /// The label in a three-octet field: its top 20 bits. Some senders leave junk in the traffic
    /// class and bottom-of-stack bits.
    pub const fn of_field(field: [u8; 3]) -> Self {
        Self((field[0] as u32) << 12 | (field[1] as u32) << 4 | field[2] as u32 >> 4)
    }

    /// Makes a label; `None`: the number has more than 20 bits.
    pub const fn new(number: u32) -> Option<Self> {
        if number >> 20 == 0 {
            Some(Self(number))
        } else {
            None
        }
    }

    pub const fn number(self) -> u32 {
        self.0
    }

    /// The three-octet field: label, traffic class 0, bottom of stack.
    pub const fn field(self) -> [u8; 3] {
        let [_, a, b, c] = (self.0 << 4 | 1).to_be_bytes();
        [a, b, c]
    }
}

impl Service {
    /// The complete SID. The transposed bits are the leftmost bits of the label (RFC 9252 §4).
    pub fn sid(&self, label: Label) -> Ipv6Addr {
        let Some(structure) = self.structure.filter(|s| s.transposed > 0) else {
            return self.sid;
        };
        let bits = u128::from(label.0 >> (LABEL_BITS - structure.transposed));
        let (mask, shift) = structure.mask_and_shift();
        Ipv6Addr::from(u128::from(self.sid) & !mask | bits << shift)
    }

    /// Makes a service for `sid` and moves the bits given by `structure` into the label.
    ///
    /// # Errors
    /// [`ServiceError::Structure`].
    pub fn transposed(
        sid: Ipv6Addr,
        behaviour: u16,
        structure: Structure,
    ) -> Result<(Self, Label), ServiceError> {
        structure.check()?;
        let mut service = Self {
            sid,
            behaviour,
            structure: Some(structure),
        };
        if structure.transposed == 0 {
            return Ok((service, Label::IMPLICIT_NULL));
        }
        let (mask, shift) = structure.mask_and_shift();
        let bits = (u128::from(sid) & mask) >> shift;
        service.sid = Ipv6Addr::from(u128::from(sid) & !mask);
        let bits = u32::try_from(bits).unwrap_or_default();
        Ok((service, Label(bits << (LABEL_BITS - structure.transposed))))
    }

    /// Decodes a Prefix-SID attribute; `None`: it has no SRv6 L3 Service TLV.
    ///
    /// # Errors
    /// The attribute is malformed.
    pub fn decode(mut value: &[u8]) -> Result<Option<Self>, ServiceError> {
        let mut service = None;
        while let Some((kind, content)) = tlv(&mut value)? {
            if kind != L3_SERVICE {
                continue;
            }
            // RFC 9252 §2: use the first of several.
            let found = Self::decode_service(content)?;
            service.get_or_insert(found);
        }
        Ok(service)
    }

    fn decode_service(content: &[u8]) -> Result<Self, ServiceError> {
        let (_reserved, mut rest) = content.split_first().ok_or(ServiceError::Truncated)?;
        let mut service = None;
        while let Some((kind, content)) = tlv(&mut rest)? {
            if kind == SID_INFORMATION {
                // RFC 9252 §3.1: use the first of several.
                let found = Self::decode_information(content)?;
                service.get_or_insert(found);
            }
        }
        service.ok_or(ServiceError::NoSid)
    }

    fn decode_information(content: &[u8]) -> Result<Self, ServiceError> {
        let (head, mut rest) = content
            .split_first_chunk::<INFORMATION_BYTES>()
            .ok_or(ServiceError::Truncated)?;
        let sid: [u8; 16] = std::array::from_fn(|i| head[1 + i]);
        let mut service = Self {
            sid: Ipv6Addr::from(sid),
            behaviour: u16::from_be_bytes([head[18], head[19]]),
            structure: None,
        };
        while let Some((kind, content)) = tlv(&mut rest)? {
            if kind == SID_STRUCTURE {
                let &[block, node, function, argument, transposed, offset] = content else {
                    return Err(ServiceError::Truncated);
                };
                let structure = Structure {
                    block,
                    node,
                    function,
                    argument,
                    transposed,
                    offset,
                };
                structure.check()?;
                service.structure.get_or_insert(structure);
            }
        }
        Ok(service)
    }

    /// Encodes a Prefix-SID attribute with this service.
    pub fn encode(&self) -> Vec<u8> {
        let mut information = vec![0];
        information.extend(self.sid.octets());
        information.push(0);
        information.extend(self.behaviour.to_be_bytes());
        information.push(0);
        if let Some(s) = self.structure {
            let parts = [
                s.block,
                s.node,
                s.function,
                s.argument,
                s.transposed,
                s.offset,
            ];
            put_tlv(&mut information, SID_STRUCTURE, &parts);
        }
        let mut service = vec![0];
        put_tlv(&mut service, SID_INFORMATION, &information);
        let mut value = Vec::new();
        put_tlv(&mut value, L3_SERVICE, &service);
        value
    }
}

impl Structure {
    fn check(&self) -> Result<(), ServiceError> {
        let bits = [self.block, self.node, self.function, self.argument];
        let total: u32 = bits.into_iter().map(u32::from).sum();
        let end = u32::from(self.offset) + u32::from(self.transposed);
        if total > 128 || end > 128 || self.transposed > LABEL_BITS {
            return Err(ServiceError::Structure);
        }
        Ok(())
    }

    /// The mask of the transposed bits in the SID (at least one), and the shift of the lowest one.
    fn mask_and_shift(&self) -> (u128, u32) {
        let shift = 128 - u32::from(self.offset) - u32::from(self.transposed);
        let mask = ((1u128 << self.transposed) - 1) << shift;
        (mask, shift)
    }
}

/// Takes the next TLV; `None` at the end.
fn tlv<'a>(rest: &mut &'a [u8]) -> Result<Option<(u8, &'a [u8])>, ServiceError> {
    let (kind, length, after) = match *rest {
        [] => return Ok(None),
        [kind, high, low, after @ ..] => (*kind, u16::from_be_bytes([*high, *low]), after),
        _ => return Err(ServiceError::Truncated),
    };
    let (content, after) = after
        .split_at_checked(usize::from(length))
        .ok_or(ServiceError::Truncated)?;
    *rest = after;
    Ok(Some((kind, content)))
}

fn put_tlv(out: &mut Vec<u8>, kind: u8, content: &[u8]) {
    let length = u16::try_from(content.len()).expect("service TLVs are short");
    out.push(kind);
    out.extend(length.to_be_bytes());
    out.extend(content);
}

/// SRv6 L3 Service TLV (RFC 9252 §2).
const L3_SERVICE: u8 = 5;
/// SRv6 SID Information sub-TLV (RFC 9252 §3.1).
const SID_INFORMATION: u8 = 1;
/// SRv6 SID Structure sub-sub-TLV (RFC 9252 §3.2.1).
const SID_STRUCTURE: u8 = 1;
/// Reserved, SID, flags, behaviour, reserved.
const INFORMATION_BYTES: usize = 21;
const LABEL_BITS: u8 = 20;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn structure(transposed: u8, offset: u8) -> Structure {
        Structure {
            block: 40,
            node: 24,
            function: 16,
            argument: 0,
            transposed,
            offset,
        }
    }

    #[test]
    fn frr_sends_a_bare_locator_and_the_function_in_the_label() {
        // As sent by FRR 8.4.4 with `sid vpn export auto`.
        let mut value = vec![5, 0, 34, 0, 1, 0, 30, 0];
        let locator: Ipv6Addr = "2001:db8:a:1::".parse().unwrap();
        value.extend(locator.octets());
        value.extend([0, 0xff, 0xff, 0, 1, 0, 6, 40, 24, 16, 0, 16, 64]);
        let service = Service::decode(&value).unwrap().unwrap();
        assert_eq!(service.behaviour, 0xffff);
        let label = Label::of_field([0x01, 0x00, 0x03]);
        assert_eq!(label.number(), 0x01000);
        let sid: Ipv6Addr = "2001:db8:a:1:100::".parse().unwrap();
        assert_eq!(service.sid(label), sid);
        assert_eq!(service.encode(), value);
    }

    #[test]
    fn bits_beside_the_label_are_ignored() {
        for junk in 0..16 {
            assert_eq!(Label::of_field([0xab, 0xcd, 0xe0 | junk]).number(), 0xabcde);
        }
    }

    #[test]
    fn label_is_ignored_without_transposition() {
        let sid: Ipv6Addr = "2001:db8::42".parse().unwrap();
        for service in [
            Service::transposed(sid, 18, structure(0, 0)).unwrap().0,
            Service {
                sid,
                behaviour: 18,
                structure: None,
            },
        ] {
            assert_eq!(service.sid(Label::of_field([0xff; 3])), sid);
        }
    }

    #[test]
    fn invalid_sid_structures_are_refused() {
        let sid = Ipv6Addr::LOCALHOST;
        for bad in [structure(21, 64), structure(16, 120), structure(24, 0)] {
            assert!(Service::transposed(sid, 0, bad).is_err(), "{bad:?}");
        }
        let long = Structure {
            argument: 128,
            ..structure(0, 0)
        };
        let service = Service {
            sid,
            behaviour: 0,
            structure: Some(long),
        };
        assert_eq!(
            Service::decode(&service.encode()),
            Err(ServiceError::Structure)
        );
    }

    #[test]
    fn other_srv6_services_are_skipped_and_missing_sids_refused() {
        assert_eq!(Service::decode(&[]), Ok(None));
        assert_eq!(Service::decode(&[6, 0, 1, 0]), Ok(None));
        assert_eq!(Service::decode(&[5, 0, 1, 0]), Err(ServiceError::NoSid));
        assert_eq!(Service::decode(&[5, 0, 0]), Err(ServiceError::Truncated));
        assert_eq!(Service::decode(&[5, 0, 9, 0]), Err(ServiceError::Truncated));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(value in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(Some(service)) = Service::decode(&value) {
                let _ = service.sid(Label::of_field([1, 2, 3]));
                prop_assert_eq!(Service::decode(&service.encode()), Ok(Some(service)));
            }
        }

        #[test]
        fn transposition_round_trips(sid: u128, transposed in 0u8..=20, offset in 0u8..=108) {
            let sid = Ipv6Addr::from(sid);
            let (service, label) = Service::transposed(sid, 18, structure(transposed, offset)).unwrap();
            let read = Service::decode(&service.encode()).unwrap().unwrap();
            let field = label.field();
            prop_assert_eq!(read.sid(Label::of_field(field)), sid);
        }
    }
}
