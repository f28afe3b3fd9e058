//! NLRI lists of UPDATE messages (RFC 4271 §4.3, RFC 4760 §5, RFC 8277, RFC 4364, RFC 4659), with path
//! identifiers where ADD-PATH was negotiated (RFC 7911).
//!
//! The codec library is not used for them: it reads labels up to the bottom-of-stack bit, which is
//! meaningless where the label carries bits of a SID, and it makes one list per label.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::{
    address::{Destination, Family, RouteDistinguisher},
    srv6::Label,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nlri {
    pub destination: Destination,
    /// The ADD-PATH identifier; 0 where ADD-PATH was not negotiated.
    pub path_id: u32,
    /// The label of a VPN route, otherwise 0; meaningless in a withdrawal.
    pub label: Label,
}

/// Why an NLRI list cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NlriError {
    /// An entry extends beyond the list.
    #[error("an entry extends beyond the end of the list")]
    Truncated,
    /// A prefix is longer than an address, or too short to hold the label and route distinguisher.
    #[error("a prefix has an invalid length of {0} bits")]
    Length(u8),
}

/// The size of label and route distinguisher, in bits.
const VPN_HEAD_BITS: u8 = 88;

/// Decodes a list of `family` and appends it to `out`.
///
/// # Errors
/// At the first malformed entry; the entries before it are in `out`.
pub fn decode(
    mut list: &[u8],
    family: Family,
    add_path: bool,
    out: &mut Vec<Nlri>,
) -> Result<(), NlriError> {
    while !list.is_empty() {
        let mut path_id = 0;
        if add_path {
            let (id, rest) = list.split_first_chunk().ok_or(NlriError::Truncated)?;
            path_id = u32::from_be_bytes(*id);
            list = rest;
        }
        let (&bits, rest) = list.split_first().ok_or(NlriError::Truncated)?;
        let (entry, rest) = rest
            .split_at_checked(usize::from(bits).div_ceil(8))
            .ok_or(NlriError::Truncated)?;
        list = rest;
        let mut label = Label::default();
        let destination = match family {
            Family::Ipv4 => Destination::V4(ipv4(entry, bits)?),
            Family::Ipv6 => Destination::V6(ipv6(entry, bits)?),
            Family::Vpn6 | Family::Vpn4 => {
                let (head, prefix) = entry
                    .split_first_chunk::<11>()
                    .ok_or(NlriError::Length(bits))?;
                let [a, b, c, rd @ ..] = *head;
                label = Label::of_field([a, b, c]);
                let rd = RouteDistinguisher(u64::from_be_bytes(rd));
                // `bits` is at least 88 here, since the entry has 11 octets.
                let length = bits
                    .checked_sub(VPN_HEAD_BITS)
                    .ok_or(NlriError::Length(bits))?;
                match family {
                    Family::Vpn4 => Destination::Vpn4(rd, ipv4(prefix, length)?),
                    _ => Destination::Vpn6(rd, ipv6(prefix, length)?),
                }
            }
        };
        out.push(Nlri {
            destination,
            path_id,
            label,
        });
    }
    Ok(())
}

pub fn encode(nlri: &Nlri, add_path: bool, withdrawn: bool, out: &mut Vec<u8>) {
    if add_path {
        out.extend(nlri.path_id.to_be_bytes());
    }
    let prefix = nlri.destination.prefix();
    match nlri.destination.distinguisher() {
        None => out.push(prefix.prefix_len()),
        Some(rd) => {
            out.push(prefix.prefix_len() + VPN_HEAD_BITS);
            // RFC 8277 §2.4: a withdrawn route's label is 0x800000 and is ignored.
            let withdrawn_field = [0x80, 0, 0];
            out.extend(if withdrawn {
                withdrawn_field
            } else {
                nlri.label.field()
            });
            out.extend(rd.0.to_be_bytes());
        }
    }
    let used = usize::from(prefix.prefix_len()).div_ceil(8);
    match prefix {
        IpNet::V4(net) => out.extend(&net.addr().octets()[..used]),
        IpNet::V6(net) => out.extend(&net.addr().octets()[..used]),
    }
}

fn ipv4(octets: &[u8], bits: u8) -> Result<Ipv4Net, NlriError> {
    let address = Ipv4Addr::from(padded::<4>(octets).ok_or(NlriError::Length(bits))?);
    let net = Ipv4Net::new(address, bits).map_err(|_| NlriError::Length(bits))?;
    Ok(net.trunc())
}

fn ipv6(octets: &[u8], bits: u8) -> Result<Ipv6Net, NlriError> {
    let address = Ipv6Addr::from(padded::<16>(octets).ok_or(NlriError::Length(bits))?);
    let net = Ipv6Net::new(address, bits).map_err(|_| NlriError::Length(bits))?;
    Ok(net.trunc())
}

/// Pads the octets with zeros to `N`; `None`: there are more than `N`.
fn padded<const N: usize>(octets: &[u8]) -> Option<[u8; N]> {
    let mut all = [0; N];
    all.get_mut(..octets.len())?.copy_from_slice(octets);
    Some(all)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(list: &[u8], family: Family, add_path: bool) -> Result<Vec<Nlri>, NlriError> {
        let mut out = Vec::new();
        decode(list, family, add_path, &mut out).map(|()| out)
    }

    #[test]
    fn labels_of_withdrawn_nlri_are_ignored() {
        let prefix: Ipv6Net = "2001:db8:1::/48".parse().unwrap();
        let rd: RouteDistinguisher = "65000:1".parse().unwrap();
        for field in [[0x80, 0, 0], [0, 0, 0], [0x01, 0x00, 0x03]] {
            let mut list = vec![88 + 48];
            list.extend(field);
            list.extend(rd.0.to_be_bytes());
            list.extend([0x20, 0x01, 0x0d, 0xb8, 0, 1]);
            let read = read(&list, Family::Vpn6, false).unwrap();
            assert_eq!(read[0].destination, Destination::Vpn6(rd, prefix));
        }
    }

    #[test]
    fn prefix_bits_beyond_the_length_are_masked() {
        let read = read(&[4, 0xff, 8, 10], Family::Ipv4, false).unwrap();
        assert_eq!(read[0].destination.to_string(), "240.0.0.0/4");
        assert_eq!(read[1].destination.to_string(), "10.0.0.0/8");
    }

    #[test]
    fn invalid_nlri_lengths_are_named() {
        let mut list = vec![33];
        list.extend([0; 5]);
        assert_eq!(read(&list, Family::Ipv4, false), Err(NlriError::Length(33)));
        let mut list = vec![129];
        list.extend([0; 17]);
        assert_eq!(
            read(&list, Family::Ipv6, false),
            Err(NlriError::Length(129))
        );
        assert_eq!(
            read(&[24, 1, 2, 3], Family::Vpn6, false),
            Err(NlriError::Length(24))
        );
        assert_eq!(
            read(&[16, 1], Family::Ipv4, false),
            Err(NlriError::Truncated)
        );
        assert_eq!(
            read(&[0, 0, 1], Family::Ipv4, true),
            Err(NlriError::Truncated)
        );
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(
            list in prop::collection::vec(any::<u8>(), 0..200), add_path: bool
        ) {
            for family in Family::ALL {
                let _ = read(&list, family, add_path);
            }
        }

        #[test]
        fn encoded_values_round_trip(
            address: u128, length in 0u8..=128, rd: u64, label in 0u32..1 << 20, path_id: u32
        ) {
            let v6 = Ipv6Net::new(address.into(), length).unwrap().trunc();
            let v4 = Ipv4Net::new((address as u32).into(), length / 4).unwrap().trunc();
            let none = Label::default();
            for (destination, label) in [
                (Destination::V4(v4), none),
                (Destination::V6(v6), none),
                (Destination::Vpn6(RouteDistinguisher(rd), v6), Label::new(label).unwrap()),
            ] {
                let nlri = Nlri { destination, path_id, label };
                let mut list = Vec::new();
                encode(&nlri, true, false, &mut list);
                encode(&nlri, true, false, &mut list);
                let read = read(&list, destination.family(), true).unwrap();
                prop_assert_eq!(read, vec![nlri; 2]);
            }
        }
    }
}
