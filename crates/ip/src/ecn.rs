//! DSCP and ECN across a tunnel: RFC 6040 for ECN, RFC 2983 §4.1 (uniform) for DSCP.
//!
//! An outer packet that carries several inner ones has one mark for all: each inner packet is decapsulated
//! with that mark, as if it had travelled alone.

use crate::{Version, packet::replace_v4_word};

/// The two ECN bits (RFC 3168 §5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Ecn {
    /// The sender does not support ECN: congestion is signalled by loss.
    NotEct = 0,
    /// The sender supports ECN; ECT(1) is used by L4S (RFC 9331).
    Ect1 = 1,
    /// The sender supports ECN.
    Ect0 = 2,
    /// Marked: congestion was experienced.
    Ce = 3,
}

/// Result of decapsulation for an inner packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decapsulated {
    /// It goes on, with these bits.
    Forward(Ecn),
    /// The outer packet is CE-marked and the inner one's sender does not support ECN: dropping is
    /// the only signal left (RFC 6040 §4.2).
    Drop,
}

impl Ecn {
    /// The lower two bits of a type of service or traffic class.
    #[inline]
    pub fn of(traffic_class: u8) -> Self {
        match traffic_class & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// ECN of the outer header at the ingress: the same, in normal mode (RFC 6040 §4.1). Compatibility mode,
    /// for an egress that may not follow RFC 6040 or RFC 3168, uses Not-ECT.
    #[inline]
    pub fn encapsulated(self, egress_understands: bool) -> Self {
        match egress_understands {
            true => self,
            false => Self::NotEct,
        }
    }

    /// ECN of the inner header at the egress (RFC 6040 §4.2, figure 4). `self` is the inner one.
    #[inline]
    pub fn decapsulated(self, outer: Self) -> Decapsulated {
        use Ecn::{Ce, Ect0, Ect1, NotEct};
        let forwarded = match (self, outer) {
            (NotEct, Ce) => return Decapsulated::Drop,
            (NotEct, _) => NotEct,
            (Ce, _) | (_, Ce) => Ce,
            (Ect0, Ect1) => Ect1,
            (Ect0 | Ect1, _) => self,
        };
        Decapsulated::Forward(forwarded)
    }
}

/// The six bits of the DSCP (RFC 2474) in a type of service or traffic class.
#[inline]
#[must_use]
pub fn dscp(traffic_class: u8) -> u8 {
    traffic_class >> 2
}

/// Sets DSCP and ECN of `packet`, which [`crate::Header::parse`] has accepted.
///
/// # Panics
/// `packet` is shorter than an IP header.
pub fn set_traffic_class(packet: &mut [u8], version: Version, traffic_class: u8) {
    match version {
        Version::V4 => replace_v4_word(packet, 0, [packet[0], traffic_class]),
        Version::V6 => {
            packet[0] = packet[0] & 0xf0 | traffic_class >> 4;
            packet[1] = packet[1] & 0x0f | traffic_class << 4;
        }
    }
}

/// Sets ECN of `packet` and leaves its DSCP, see [`set_traffic_class`].
///
/// # Panics
/// `packet` is shorter than an IP header.
pub fn set_ecn(packet: &mut [u8], version: Version, ecn: Ecn) {
    let traffic_class = match version {
        Version::V4 => packet[1],
        Version::V6 => packet[0] << 4 | packet[1] >> 4,
    };
    if Ecn::of(traffic_class) != ecn {
        set_traffic_class(packet, version, traffic_class & !3 | ecn as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::{Decapsulated::*, Ecn::*, *};
    use crate::{Header, packet::sample};

    #[test]
    fn egress_follows_the_table_of_the_rfc() {
        // RFC 6040 figure 4: a row per inner field, columns Not-ECT, ECT(0), ECT(1), CE.
        let table = [
            (
                NotEct,
                [Forward(NotEct), Forward(NotEct), Forward(NotEct), Drop],
            ),
            (
                Ect0,
                [Forward(Ect0), Forward(Ect0), Forward(Ect1), Forward(Ce)],
            ),
            (
                Ect1,
                [Forward(Ect1), Forward(Ect1), Forward(Ect1), Forward(Ce)],
            ),
            (Ce, [Forward(Ce), Forward(Ce), Forward(Ce), Forward(Ce)]),
        ];
        for (inner, row) in table {
            for (outer, expected) in [NotEct, Ect0, Ect1, Ce].into_iter().zip(row) {
                assert_eq!(
                    inner.decapsulated(outer),
                    expected,
                    "{inner:?} in {outer:?}"
                );
            }
        }
    }

    #[test]
    fn ingress_copies_or_is_not_capable() {
        for ecn in [NotEct, Ect0, Ect1, Ce] {
            assert_eq!(ecn.encapsulated(true), ecn);
            assert_eq!(ecn.encapsulated(false), NotEct);
        }
    }

    #[test]
    fn every_traffic_class_is_set_and_read_back_and_nothing_else_changes() {
        for version in [Version::V4, Version::V6] {
            let original = sample::udp(version, b"payload");
            for before in 0..=255u8 {
                let mut packet = original.clone();
                set_traffic_class(&mut packet, version, before);
                for ecn in [NotEct, Ect0, Ect1, Ce] {
                    let mut packet = packet.clone();
                    set_ecn(&mut packet, version, ecn);
                    let header = Header::parse(&packet).unwrap();
                    assert_eq!(Ecn::of(header.traffic_class), ecn);
                    assert_eq!(dscp(header.traffic_class), before >> 2);
                    set_traffic_class(&mut packet, version, 0);
                    assert_eq!(packet, original);
                }
            }
        }
    }
}
