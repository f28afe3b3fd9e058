//! The bytes of frames in links, by the links' tickets, in reused buffers.

use std::collections::HashMap;

use keiro_link::Ticket;
use keiro_linux::packet::Frame;

/// Maximum of bytes in all links of an emulator; ours: 1 Gbit/s for two seconds.
pub(super) const HELD_BYTES_MAX: usize = 256 << 20;

/// Maximum of unused buffers; ours: the content of 1 Gbit/s with 100 ms.
const SPARE_MAX: usize = 8192;

/// Offset of a VLAN tag: behind the two addresses.
const VLAN_OFFSET: usize = 12;

/// Buffers for one frame each.
#[derive(Debug, Default)]
pub(super) struct Pool {
    spare: Vec<Vec<u8>>,
    held_bytes: usize,
}

/// The frames of one direction of a link.
#[derive(Debug, Default)]
pub(super) struct Store {
    frames: HashMap<Ticket, Vec<u8>>,
}

impl Pool {
    /// Whether there is room for another frame.
    pub(super) fn has_room(&self) -> bool {
        self.held_bytes < HELD_BYTES_MAX
    }

    /// A copy of the frame with its VLAN tag inserted.
    pub(super) fn copy(&mut self, frame: &Frame<'_>) -> Vec<u8> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        let bytes = frame.bytes();
        buffer.clear();
        match frame.vlan() {
            Some(tag) if bytes.len() >= VLAN_OFFSET => {
                buffer.extend_from_slice(&bytes[..VLAN_OFFSET]);
                buffer.extend_from_slice(&tag.protocol.to_be_bytes());
                buffer.extend_from_slice(&tag.control.to_be_bytes());
                buffer.extend_from_slice(&bytes[VLAN_OFFSET..]);
            }
            _ => buffer.extend_from_slice(bytes),
        }
        self.held_bytes += buffer.capacity();
        buffer
    }

    /// Returns a buffer of [`copy`](Self::copy).
    pub(super) fn give_back(&mut self, buffer: Vec<u8>) {
        self.held_bytes = self.held_bytes.saturating_sub(buffer.capacity());
        if self.spare.len() < SPARE_MAX {
            self.spare.push(buffer);
        }
    }
}

impl Store {
    pub(super) fn put(&mut self, ticket: Ticket, frame: Vec<u8>) {
        self.frames.insert(ticket, frame);
    }

    pub(super) fn take(&mut self, ticket: Ticket) -> Option<Vec<u8>> {
        self.frames.remove(&ticket)
    }
}
