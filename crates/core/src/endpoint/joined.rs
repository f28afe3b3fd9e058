//! Datagrams that arrived together, one behind the other.

use crate::wire::{DataHeader, KIND_DATA};

/// Those that were not taken yet.
pub(super) struct JoinedDatagrams<'a> {
    rest: &'a mut [u8],
    stride: usize,
}

impl<'a> JoinedDatagrams<'a> {
    /// Each is `stride` bytes long; only the last may be shorter.
    pub(super) fn new(rest: &'a mut [u8], stride: usize) -> Self {
        let stride = stride.max(1);
        Self { rest, stride }
    }

    pub(super) fn next(&mut self) -> Option<&'a mut [u8]> {
        let rest = std::mem::take(&mut self.rest);
        if rest.is_empty() {
            return None;
        }
        let len = rest.len().min(self.stride);
        let (next, rest) = rest.split_at_mut(len);
        self.rest = rest;
        Some(next)
    }

    /// The next one, if it is a data packet with this receiver index.
    pub(super) fn next_to(&mut self, index: u32) -> Option<(DataHeader, &'a mut [u8])> {
        let len = self.rest.len().min(self.stride);
        let next = &self.rest[..len];
        let header = DataHeader::decode(next)?;
        let is_to = next.first() == Some(&KIND_DATA) && header.receiver == index;
        let next = is_to.then(|| self.next()).flatten()?;
        Some((header, next))
    }
}
