//! The flow of a packet, and a keyed hash of it.

use std::{hash::Hasher, net::IpAddr};

use siphasher::sip::SipHasher13;

use crate::{Header, Ports};

/// Packets that must stay in order and share a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey {
    pub source: IpAddr,
    pub destination: IpAddr,
    /// The protocol above IP.
    pub protocol: u8,
    /// Distinguishes flows between the two addresses.
    pub part: Part,
}

/// Distinguishes flows between two addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Ports of an unfragmented packet.
    Ports(Ports),
    /// All fragments of one packet, including the first, which alone has ports.
    Fragments { id: u32 },
    /// Nothing: the protocol has no ports.
    All,
}

/// The seed of flow numbers. Without it an attacker can neither target a flow's queue nor fill one queue with
/// many flows.
#[derive(Clone, Copy)]
pub struct FlowSeed(SipHasher13);

impl FlowKey {
    /// The same for both directions: the lower address and port is the source.
    #[inline]
    #[must_use]
    pub fn of_both_directions(self) -> Self {
        let Part::Ports(ports) = self.part else {
            return match self.source <= self.destination {
                true => self,
                false => Self {
                    source: self.destination,
                    destination: self.source,
                    ..self
                },
            };
        };
        match (self.source, ports.source) <= (self.destination, ports.destination) {
            true => self,
            false => Self {
                source: self.destination,
                destination: self.source,
                part: Part::Ports(Ports {
                    source: ports.destination,
                    destination: ports.source,
                }),
                ..self
            },
        }
    }

    /// The flow of a packet with this header.
    #[inline]
    pub fn of(header: &Header) -> Self {
        let part = match (header.fragment, header.ports) {
            (Some(fragment), _) => Part::Fragments { id: fragment.id },
            (None, Some(ports)) => Part::Ports(ports),
            (None, None) => Part::All,
        };
        Self {
            source: header.source,
            destination: header.destination,
            protocol: header.protocol,
            part,
        }
    }
}

impl FlowSeed {
    /// A seed from 16 random bytes.
    pub fn new(seed: &[u8; 16]) -> Self {
        Self(SipHasher13::new_with_key(seed))
    }

    /// The number of a flow, uniformly distributed over `u64` (SipHash-1-3).
    #[inline]
    pub fn number(&self, flow: &FlowKey) -> u64 {
        let mut bytes = [0; 40];
        let length = match (flow.source, flow.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                bytes[..4].copy_from_slice(&source.octets());
                bytes[4..8].copy_from_slice(&destination.octets());
                8
            }
            (source, destination) => {
                bytes[..16].copy_from_slice(&octets(source));
                bytes[16..32].copy_from_slice(&octets(destination));
                32
            }
        };
        let (kind, part) = match flow.part {
            Part::Ports(Ports {
                source,
                destination,
            }) => (0, u32::from(source) << 16 | u32::from(destination)),
            Part::Fragments { id } => (1, id),
            Part::All => (2, 0),
        };
        bytes[length..length + 4].copy_from_slice(&part.to_be_bytes());
        bytes[length + 4] = flow.protocol;
        bytes[length + 5] = kind;
        let mut hasher = self.0;
        hasher.write(&bytes[..length + 6]);
        hasher.finish()
    }

    /// A keyed hash of a text.
    pub(crate) fn number_of_bytes(&self, bytes: &[u8]) -> u64 {
        let mut hasher = self.0;
        hasher.write(bytes);
        hasher.finish()
    }
}

impl std::fmt::Debug for FlowSeed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FlowSeed(..)")
    }
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{Fragment, Version, packet::sample, protocol};

    fn key(source_port: u16, destination_port: u16) -> FlowKey {
        FlowKey {
            source: "192.0.2.1".parse().unwrap(),
            destination: "198.51.100.7".parse().unwrap(),
            protocol: protocol::TCP,
            part: Part::Ports(Ports {
                source: source_port,
                destination: destination_port,
            }),
        }
    }

    #[test]
    fn fragments_of_one_packet_are_one_flow_whether_first_or_not() {
        let header = Header::parse(&sample::udp(Version::V4, b"payload")).unwrap();
        let part = |offset, id| {
            let fragment = Fragment {
                id,
                offset,
                more: true,
            };
            FlowKey::of(&Header {
                fragment: Some(fragment),
                ports: header.ports.filter(|_| offset == 0),
                ..header
            })
        };
        assert_eq!(part(0, 7), part(1480, 7));
        assert_ne!(part(0, 7), part(0, 8));
        assert_ne!(part(0, 7), FlowKey::of(&header));
    }

    #[test]
    fn flow_hash_depends_on_every_field_and_the_seed() {
        let seed = FlowSeed::new(&[1; 16]);
        let one = key(1, 2);
        let others = [
            key(1, 3),
            key(2, 1),
            FlowKey {
                protocol: protocol::UDP,
                ..one
            },
            FlowKey {
                source: one.destination,
                destination: one.source,
                ..one
            },
            FlowKey {
                part: Part::All,
                ..one
            },
            FlowKey {
                part: Part::Fragments { id: 1 << 16 | 2 },
                ..one
            },
            FlowKey {
                source: "2001:db8::1".parse().unwrap(),
                destination: "2001:db8::2".parse().unwrap(),
                ..one
            },
        ];
        let mut numbers: BTreeSet<_> = others.iter().map(|key| seed.number(key)).collect();
        numbers.insert(seed.number(&one));
        numbers.insert(FlowSeed::new(&[2; 16]).number(&one));
        assert_eq!(numbers.len(), others.len() + 2);
        assert_eq!(seed.number(&one), seed.number(&key(1, 2)));
    }

    #[test]
    fn flows_spread_evenly_over_queues() {
        const QUEUES: usize = 64;
        const FLOWS: usize = 64_000;
        let seed = FlowSeed::new(&[3; 16]);
        let mut queues = [0u32; QUEUES];
        for port in 0..FLOWS {
            queues[(seed.number(&key(port as u16, 443)) % QUEUES as u64) as usize] += 1;
        }
        // Six standard deviations of a thousand expected.
        assert!(queues.iter().all(|&n| n.abs_diff(1000) < 190), "{queues:?}");
    }
}
