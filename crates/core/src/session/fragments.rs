//! Reassembly of datagrams that were sent in fragments, in bounded memory.

use std::collections::VecDeque;

use super::receive_memory::RANGE_BYTES;
use crate::{
    id::{AppId, FlowId},
    ranges::RangeSet,
};

/// Datagrams in fragments that are put together at once; the oldest is given up.
const FRAGMENTED_MAX: usize = 29;
/// Pieces that such a datagram may be in: 64 KiB in packets of the smallest MTU are fewer.
const FRAGMENTS_MAX: usize = 64;

/// A part of a fragmented datagram as it arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DatagramFragment<'a> {
    pub(crate) id: u64,
    /// Bytes of the datagram.
    pub(crate) total: usize,
    pub(crate) offset: usize,
    pub(crate) app: AppId,
    pub(crate) flow: FlowId,
    pub(crate) reply: bool,
    pub(crate) data: &'a [u8],
}

/// A fragmented datagram that is whole.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ReassembledDatagram {
    pub(crate) app: AppId,
    pub(crate) flow: FlowId,
    pub(crate) reply: bool,
    pub(crate) body: Vec<u8>,
}

/// Datagrams of one peer of which a fragment has arrived, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Fragments {
    datagrams: VecDeque<Fragmented>,
}

#[derive(Debug)]
struct Fragmented {
    id: u64,
    app: AppId,
    flow: FlowId,
    reply: bool,
    body: Vec<u8>,
    received: RangeSet,
}

impl Fragments {
    pub(crate) fn contains(&self, id: u64) -> bool {
        self.datagrams.iter().any(|datagram| datagram.id == id)
    }

    /// Bytes that the fragments take.
    pub(crate) fn memory(&self) -> u64 {
        self.datagrams.iter().map(Fragmented::memory).sum()
    }

    /// Takes a fragment, which lies within its datagram; the datagram if it is whole now.
    pub(crate) fn on_fragment(
        &mut self,
        part: DatagramFragment<'_>,
    ) -> Option<ReassembledDatagram> {
        let index = self.index_of(part);
        let datagram = &mut self.datagrams[index];
        if datagram.body.len() != part.total {
            return None;
        }
        let end = part.offset + part.data.len();
        datagram.body[part.offset..end].copy_from_slice(part.data);
        datagram.received.insert(part.offset as u64, end as u64);
        if datagram.received.len() > FRAGMENTS_MAX {
            self.datagrams.remove(index);
            return None;
        }
        if !datagram.received.covers(0, part.total as u64) {
            return None;
        }
        let whole = self.datagrams.remove(index)?;
        Some(ReassembledDatagram {
            app: whole.app,
            flow: whole.flow,
            reply: whole.reply,
            body: whole.body,
        })
    }

    /// Where the fragment's datagram is, which begins with its first fragment.
    fn index_of(&mut self, part: DatagramFragment<'_>) -> usize {
        let mut datagrams = self.datagrams.iter();
        if let Some(index) = datagrams.position(|datagram| datagram.id == part.id) {
            return index;
        }
        if self.datagrams.len() >= FRAGMENTED_MAX {
            self.datagrams.pop_front();
        }
        self.datagrams.push_back(Fragmented {
            id: part.id,
            app: part.app,
            flow: part.flow,
            reply: part.reply,
            body: vec![0; part.total],
            received: RangeSet::default(),
        });
        self.datagrams.len() - 1
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
        assert!(
            self.datagrams.len() <= FRAGMENTED_MAX,
            "fragmented datagrams"
        );
    }
}

impl Fragmented {
    fn memory(&self) -> u64 {
        self.body.len() as u64 + self.received.len() as u64 * RANGE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_are_put_together_and_the_oldest_is_given_up() {
        let mut fragments = Fragments::default();
        let fragment = |id, offset, data| DatagramFragment {
            id,
            total: 4,
            offset,
            app: AppId(1),
            flow: FlowId(3),
            reply: true,
            data,
        };
        for id in 0..=FRAGMENTED_MAX as u64 {
            assert!(fragments.on_fragment(fragment(id, 2, b"cd")).is_none());
        }
        assert!(fragments.on_fragment(fragment(0, 0, b"ab")).is_none());
        let whole = fragments.on_fragment(fragment(5, 0, b"ab"));
        let expected = ReassembledDatagram {
            app: AppId(1),
            flow: FlowId(3),
            reply: true,
            body: b"abcd".to_vec(),
        };
        assert_eq!(whole, Some(expected));
    }
}
