//! Packets in flight and their memory.
//!
//! A packet is written into a slot, and its slot number travels. Slots are reused, so that a running
//! simulation does not allocate per packet.

use std::net::SocketAddr;

use keiro_units::ByteCount;

/// Bytes of an IPv4 and a UDP header (RFC 791 without options, RFC 768).
pub const HEADERS_V4: u64 = 28;
/// Bytes of an IPv6 and a UDP header (RFC 8200 without extensions, RFC 768).
pub const HEADERS_V6: u64 = 48;

/// A UDP datagram in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    pub source: SocketAddr,
    pub destination: SocketAddr,
    /// The two ECN bits of its IP header.
    pub ecn: u8,
    /// UDP payload.
    pub payload: Vec<u8>,
}

impl Packet {
    /// IP bytes: payload with the headers of UDP and IP.
    pub fn ip_len(&self) -> ByteCount {
        ByteCount::new(self.payload.len() as u64 + headers(self.source))
    }
}

/// Bytes of the headers before a payload that comes from `source`.
pub fn headers(source: SocketAddr) -> u64 {
    if source.is_ipv4() {
        HEADERS_V4
    } else {
        HEADERS_V6
    }
}

/// Identifies a packet in a [`Slab`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(u32);

/// The packets of a simulation.
#[derive(Debug, Default)]
pub(crate) struct Slab {
    packets: Vec<Packet>,
    free: Vec<Slot>,
}

impl Slab {
    /// Copies a datagram into a slot.
    pub(crate) fn insert(
        &mut self,
        source: SocketAddr,
        destination: SocketAddr,
        ecn: u8,
        payload: &[u8],
    ) -> Slot {
        if let Some(slot) = self.free.pop() {
            let packet = &mut self.packets[slot.0 as usize];
            packet.source = source;
            packet.destination = destination;
            packet.ecn = ecn;
            packet.payload.clear();
            packet.payload.extend_from_slice(payload);
            return slot;
        }
        // Links bound what they hold at 2^20 packets each, so a u32 is never exhausted.
        let slot = Slot(self.packets.len() as u32);
        self.packets.push(Packet {
            source,
            destination,
            ecn,
            payload: payload.to_vec(),
        });
        slot
    }

    /// Adds a duplicate of a packet.
    pub(crate) fn duplicate(&mut self, slot: Slot) -> Slot {
        let original = std::mem::take(&mut self.packets[slot.0 as usize].payload);
        let Packet {
            source,
            destination,
            ecn,
            ..
        } = self.packets[slot.0 as usize];
        let copy = self.insert(source, destination, ecn, &original);
        self.packets[slot.0 as usize].payload = original;
        copy
    }

    pub(crate) fn packet(&self, slot: Slot) -> &Packet {
        &self.packets[slot.0 as usize]
    }

    pub(crate) fn packet_mut(&mut self, slot: Slot) -> &mut Packet {
        &mut self.packets[slot.0 as usize]
    }

    /// Lends the payload, so that the slab can be modified meanwhile.
    pub(crate) fn lend(&mut self, slot: Slot) -> Packet {
        let packet = &mut self.packets[slot.0 as usize];
        Packet {
            payload: std::mem::take(&mut packet.payload),
            ..*packet
        }
    }

    /// Takes a lent packet back and frees its slot.
    pub(crate) fn give_back(&mut self, slot: Slot, packet: Packet) {
        self.packets[slot.0 as usize].payload = packet.payload;
        self.remove(slot);
    }

    /// Frees a slot; its buffer is reused for the next packet.
    pub(crate) fn remove(&mut self, slot: Slot) {
        self.free.push(slot);
    }

    /// Number of packets in the slab.
    pub(crate) fn in_use(&self) -> usize {
        self.packets.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_used_again_and_copies_are_equal() {
        let (a, b) = (
            SocketAddr::from(([10, 0, 0, 1], 1)),
            SocketAddr::from(([10, 0, 0, 2], 2)),
        );
        let mut slab = Slab::default();
        let first = slab.insert(a, b, 1, b"one");
        let copy = slab.duplicate(first);
        assert_eq!(slab.packet(first), slab.packet(copy));
        assert_eq!(slab.packet(first).ip_len(), ByteCount::new(31));
        slab.remove(first);
        let lent = slab.lend(copy);
        assert_eq!(lent.payload, b"one");
        slab.give_back(copy, lent);
        assert_eq!(slab.in_use(), 0);
        let again = slab.insert(b, a, 0, b"two");
        assert_eq!(slab.packet(again).payload, b"two");
        assert_eq!((slab.in_use(), slab.packets.len()), (1, 2));
    }
}
