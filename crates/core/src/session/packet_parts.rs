//! IP packets that the peer sends in parts: kept until all parts are there, for a limited time and in
//! bounded memory. Which parts a packet leaves in is decided in `tenant::parts`.

use std::{collections::VecDeque, time::Duration};

use keiro_units::Instant;

use crate::{
    id::TenantId,
    wire::{PACKET_PARTS_MAX, SPLIT_PACKET_MAX},
};

/// A packet is given up that long after its first part. Parts leave one after another on one path, so that
/// the others come within the reordering of the path or not at all. Ours.
const LIFETIME: Duration = Duration::from_secs(1);
/// Packets of which parts are awaited; then the oldest is given up. Ours: what a path reorders at some
/// thousand packets per second.
const PACKETS_MAX: usize = 128;
/// The same of one tenant, so that others have room too.
const PACKETS_OF_TENANT_MAX: usize = 64;
/// Memory of a packet beside its bytes.
const PACKET_OVERHEAD: u64 = 192;

/// A part as it arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketPart<'a> {
    pub(crate) tenant: TenantId,
    /// The peer's number of the packet.
    pub(crate) number: u64,
    pub(crate) count: u8,
    pub(crate) index: u8,
    /// The ECN bits of the datagram; CE if the sender has marked the packet.
    pub(crate) ecn: u8,
    pub(crate) data: &'a [u8],
}

/// A packet of which all parts have arrived.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ReassembledPacket {
    pub(crate) tenant: TenantId,
    /// CE if a part had it (RFC 3168 §5.3), else the bits of the last part.
    pub(crate) ecn: u8,
    pub(crate) data: Vec<u8>,
}

/// A part repeats or contradicts another one: its sender is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WrongPart;

#[derive(Debug)]
struct Incomplete {
    tenant: TenantId,
    number: u64,
    count: u8,
    since: Instant,
    is_ce: bool,
    /// By index; an empty one has not arrived.
    parts: [Vec<u8>; PACKET_PARTS_MAX as usize],
}

impl Incomplete {
    fn len(&self) -> usize {
        self.parts.iter().map(Vec::len).sum()
    }

    fn memory(&self) -> u64 {
        self.len() as u64 + PACKET_OVERHEAD
    }

    fn arrived(&self) -> usize {
        self.parts.iter().filter(|part| !part.is_empty()).count()
    }

    fn is_whole(&self) -> bool {
        self.arrived() == usize::from(self.count)
    }
}

/// Packets of one peer in parts.
#[derive(Debug, Default)]
pub(crate) struct PacketParts {
    /// In the order in which their first parts arrived.
    incomplete: VecDeque<Incomplete>,
}

impl PacketParts {
    /// Takes a part; the packet if it is whole now.
    pub(crate) fn on_part(
        &mut self,
        now: Instant,
        part: PacketPart<'_>,
    ) -> Result<Option<ReassembledPacket>, WrongPart> {
        self.on_timeout(now);
        let PacketPart {
            tenant,
            number,
            count,
            index,
            ecn,
            data,
        } = part;
        let known = self
            .incomplete
            .iter()
            .rposition(|packet| (packet.tenant, packet.number) == (tenant, number));
        let position = known.unwrap_or_else(|| self.begin(now, part));
        let packet = &mut self.incomplete[position];
        let slot = &packet.parts[usize::from(index)];
        if packet.count != count || !slot.is_empty() {
            return Err(WrongPart);
        }
        // Those that are missing have a byte each at least.
        let missing = usize::from(count) - packet.arrived() - 1;
        if packet.len() + data.len() + missing > SPLIT_PACKET_MAX {
            self.incomplete.remove(position);
            return Err(WrongPart);
        }
        packet.is_ce |= ecn == 3;
        packet.parts[usize::from(index)] = data.to_vec();
        if !packet.is_whole() {
            return Ok(None);
        }
        let whole = self.incomplete.remove(position);
        Ok(whole.map(|packet| ReassembledPacket {
            tenant,
            ecn: if packet.is_ce { 3 } else { ecn },
            data: packet.parts.concat(),
        }))
    }

    /// Makes room for the packet of a part that is the first to arrive; its position.
    fn begin(&mut self, now: Instant, first: PacketPart<'_>) -> usize {
        if self.of_tenant(first.tenant).count() >= PACKETS_OF_TENANT_MAX {
            let mut packets = self.incomplete.iter();
            let oldest = packets.position(|packet| packet.tenant == first.tenant);
            oldest.and_then(|oldest| self.incomplete.remove(oldest));
        }
        if self.incomplete.len() >= PACKETS_MAX {
            self.incomplete.pop_front();
        }
        self.incomplete.push_back(Incomplete {
            tenant: first.tenant,
            number: first.number,
            count: first.count,
            since: now,
            is_ce: false,
            parts: Default::default(),
        });
        self.incomplete.len() - 1
    }

    fn of_tenant(&self, tenant: TenantId) -> impl Iterator<Item = &Incomplete> {
        let packets = self.incomplete.iter();
        packets.filter(move |packet| packet.tenant == tenant)
    }

    /// Gives packets up whose other parts have not come in time.
    pub(crate) fn on_timeout(&mut self, now: Instant) {
        while self.due().is_some_and(|due| due <= now) {
            self.incomplete.pop_front();
        }
    }

    /// When the next packet is given up.
    pub(crate) fn due(&self) -> Option<Instant> {
        let oldest = self.incomplete.front()?;
        Some(oldest.since + LIFETIME)
    }

    pub(crate) fn memory(&self) -> u64 {
        self.incomplete.iter().map(Incomplete::memory).sum()
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
        assert!(
            self.incomplete.len() <= PACKETS_MAX,
            "packets in parts are bounded"
        );
        for packet in &self.incomplete {
            assert!(
                self.of_tenant(packet.tenant).count() <= PACKETS_OF_TENANT_MAX,
                "packets in parts of a tenant are bounded"
            );
            assert!(
                !packet.is_whole() && (1..SPLIT_PACKET_MAX).contains(&packet.len()),
                "some of a packet is there, and some is not"
            );
        }
        let times = self.incomplete.iter().map(|packet| packet.since);
        assert!(times.is_sorted(), "packets in parts are kept by age");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: TenantId = TenantId(1);

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn part(number: u64, index: u8, data: &[u8]) -> PacketPart<'_> {
        PacketPart {
            tenant: ONE,
            number,
            count: 2,
            index,
            ecn: 0,
            data,
        }
    }

    #[test]
    fn packet_parts_reassemble_in_any_order() {
        for order in [
            [0, 1, 2],
            [0, 2, 1],
            [1, 0, 2],
            [1, 2, 0],
            [2, 0, 1],
            [2, 1, 0],
        ] {
            let mut parts = PacketParts::default();
            let mut whole = None;
            for index in order {
                assert_eq!(whole, None, "{order:?}");
                let data = [&b"ab"[..], b"cd", b"e"][usize::from(index)];
                let part = PacketPart {
                    count: 3,
                    ..part(7, index, data)
                };
                whole = parts.on_part(at(0), part).expect("sound");
                parts.check_invariants();
            }
            assert_eq!(whole.expect("all are there").data, b"abcde");
            assert_eq!((parts.memory(), parts.due()), (0, None));
        }
    }

    #[test]
    fn ce_mark_of_either_part_marks_the_packet() {
        for (first, second, expected) in [(2, 2, 2), (3, 2, 3), (2, 3, 3), (0, 0, 0), (1, 1, 1)] {
            let mut parts = PacketParts::default();
            for (index, ecn) in [(0, first), (1, second)] {
                let part = PacketPart {
                    ecn,
                    ..part(7, index, b"x")
                };
                if let Some(whole) = parts.on_part(at(0), part).expect("sound") {
                    assert_eq!(whole.ecn, expected, "{first} and {second}");
                }
            }
        }
    }

    #[test]
    fn parts_that_repeat_or_contradict_others_are_refused() {
        let mut parts = PacketParts::default();
        assert_eq!(parts.on_part(at(0), part(7, 0, b"ab")), Ok(None));
        assert_eq!(parts.on_part(at(0), part(7, 0, b"ab")), Err(WrongPart));
        let of_three = PacketPart {
            count: 3,
            ..part(7, 1, b"cd")
        };
        assert_eq!(parts.on_part(at(0), of_three), Err(WrongPart));
        // What is refused changes nothing, and tenants do not share numbers.
        let of_other = PacketPart {
            tenant: TenantId(2),
            ..part(7, 1, b"xy")
        };
        assert_eq!(parts.on_part(at(0), of_other), Ok(None));
        let whole = parts.on_part(at(0), part(7, 1, b"cd"));
        assert_eq!(whole.unwrap().expect("whole").data, b"abcd");
        // Longer together than any packet that is split.
        let (long, rest) = ([1; 1279], [2; 2]);
        assert_eq!(parts.on_part(at(0), part(8, 0, &long)), Ok(None));
        assert_eq!(parts.on_part(at(0), part(8, 1, &rest)), Err(WrongPart));
        assert_eq!(parts.incomplete.len(), 1, "it is forgotten");
        // No room is left for the third.
        for (index, data) in [(0, &long[..1278]), (1, &rest[..])] {
            let of_three = PacketPart {
                count: 3,
                ..part(9, index, data)
            };
            assert_eq!(parts.on_part(at(0), of_three).is_ok(), index == 0);
            parts.check_invariants();
        }
    }

    #[test]
    fn a_packet_is_given_up_a_second_after_its_first_part() {
        for (second_at, arrives) in [(999, true), (1000, false)] {
            let mut parts = PacketParts::default();
            parts.on_part(at(0), part(7, 0, b"ab")).expect("sound");
            assert_eq!(parts.due(), Some(at(1000)));
            let whole = parts.on_part(at(second_at), part(7, 1, b"cd"));
            assert_eq!(whole.expect("sound").is_some(), arrives, "{second_at}");
        }
    }

    #[test]
    fn incomplete_packets_are_bounded_per_tenant() {
        let mut parts = PacketParts::default();
        let long = [1; 1279];
        let mut most = 0;
        for number in 0..10_000 {
            for tenant in [1, 1, 1, 2 + number as u32 % 7] {
                let part = PacketPart {
                    tenant: TenantId(tenant),
                    ..part(number * 3 + u64::from(tenant), 0, &long)
                };
                let _ = parts.on_part(at(0), part);
                most = most.max(parts.memory());
            }
            if number % 1000 == 0 {
                parts.check_invariants();
            }
        }
        assert!(most <= 192 << 10, "{most} bytes");
        let mine = PacketPart {
            tenant: TenantId(99),
            ..part(1, 0, b"ab")
        };
        assert_eq!(parts.on_part(at(0), mine), Ok(None));
        for number in 0..64 {
            let _ = parts.on_part(at(0), part((1 << 40) + number, 0, &long));
        }
        let mine = PacketPart { index: 1, ..mine };
        assert!(parts.on_part(at(0), mine).expect("sound").is_some());
        parts.on_timeout(at(1000));
        assert_eq!((parts.memory(), parts.due()), (0, None));
    }
}
