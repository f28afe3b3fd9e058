//! What gives back lost aggregates.

use super::GROUP_MAX;
use crate::wire::{FrameError, frame_error::field, frame_type::PARITY};
use crate::wire::{Reader, VARINT_MAX, put_varint, varint_len};

/// Most parity packets of a group.
const PARITY_MAX: u8 = 64;

/// One of the packets that give back lost aggregates of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParityFrame<'a> {
    /// The path that numbers the aggregates; the packet may take another.
    pub path: u8,
    /// Number of the group's first aggregate.
    pub first: u64,
    /// How many aggregates the group has, 1 to 32.
    pub data: u8,
    /// How many of these packets there are, 1 to 64.
    pub count: u8,
    /// Its place among them, from 0.
    pub index: u8,
    /// The parity of the aggregates' contents, two bytes at least.
    pub shard: &'a [u8],
}

impl ParityFrame<'_> {
    /// Most bytes of one besides its shard.
    pub const HEAD_LEN_MAX: usize = 2 + 4 + 1 + 8 + 3;

    pub(super) fn encode(&self, buf: &mut Vec<u8>) {
        put_varint(buf, PARITY);
        let head = varint_len(self.first) + 4;
        put_varint(buf, (head + self.shard.len()) as u64);
        buf.push(self.path);
        put_varint(buf, self.first);
        buf.extend_from_slice(&[self.data, self.count, self.index]);
        buf.extend_from_slice(self.shard);
    }
}

pub(super) fn decode<'a>(reader: &mut Reader<'a>) -> Result<ParityFrame<'a>, FrameError> {
    let path = field(reader.u8())?;
    let first = field(reader.varint())?;
    let data = field(reader.u8())?;
    let count = field(reader.u8())?;
    let index = field(reader.u8())?;
    let shard = reader.rest();
    let ends_beyond = first + u64::from(data) > VARINT_MAX;
    if !(1..=GROUP_MAX).contains(&data)
        || count > PARITY_MAX
        || index >= count
        || shard.len() < 2
        || ends_beyond
    {
        return Err(FrameError::Range);
    }
    Ok(ParityFrame {
        path,
        first,
        data,
        count,
        index,
        shard,
    })
}
