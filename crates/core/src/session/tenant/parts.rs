//! How an IP packet leaves that does not fit into one datagram of its path: in parts of one length, of which
//! the last may be shorter. The other side is `packet_parts`.

use std::ops::Range;

use crate::wire::{PACKET_PARTS_MAX, SPLIT_PACKET_MAX};

/// A packet that leaves in parts, and the part that is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SplitPacket {
    /// Our number of the packet.
    number: u64,
    count: u8,
    /// Bytes of all parts but the last.
    len: usize,
    next: u8,
}

/// A part of a packet that leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeavingPart<'a> {
    pub(crate) number: u64,
    pub(crate) count: u8,
    pub(crate) index: u8,
    pub(crate) marked: bool,
    pub(crate) data: &'a [u8],
}

impl LeavingPart<'_> {
    pub(crate) fn is_last(&self) -> bool {
        self.index + 1 == self.count
    }
}

impl SplitPacket {
    /// Splits a packet of `packet_len` bytes into as few parts as may have `room` bytes each; `None`: it is too long
    /// for that, or needs no splitting.
    pub(super) fn new(number: u64, packet_len: usize, room: usize) -> Option<Self> {
        if packet_len > SPLIT_PACKET_MAX || room == 0 {
            return None;
        }
        let count = u8::try_from(packet_len.div_ceil(room)).ok()?;
        let is_split = (2..=PACKET_PARTS_MAX).contains(&count);
        is_split.then(|| Self {
            number,
            count,
            len: packet_len.div_ceil(count.into()),
            next: 0,
        })
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn count(&self) -> u8 {
        self.count
    }

    /// Where in a packet of `packet_len` bytes the next part lies.
    pub(super) fn next_range(&self, packet_len: usize) -> Range<usize> {
        let start = usize::from(self.next) * self.len;
        start..packet_len.min(start + self.len)
    }

    /// The next part leaves; its index.
    pub(super) fn advance(&mut self) -> u8 {
        let index = self.next;
        self.next = (index + 1).min(self.count - 1);
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_packets_of_every_length_fit_every_room_and_make_the_packet() {
        for room in 1..=1500 {
            for packet_len in 1..=1500 {
                let parts = SplitPacket::new(7, packet_len, room);
                let is_split = packet_len <= 1280 && packet_len > room && packet_len <= 3 * room;
                assert_eq!(parts.is_some(), is_split, "{packet_len} in {room}");
                let Some(mut parts) = parts else { continue };
                let mut end = 0;
                for index in 0..parts.count() {
                    let range = parts.next_range(packet_len);
                    assert_eq!(range.start, end, "{packet_len} in {room}");
                    assert!(!range.is_empty() && range.len() <= room);
                    end = range.end;
                    assert_eq!(parts.advance(), index);
                }
                assert_eq!(end, packet_len, "{packet_len} in {room}");
                assert!(packet_len > room * (usize::from(parts.count()) - 1));
            }
        }
    }
}
