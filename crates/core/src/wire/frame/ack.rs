//! Acknowledgements.

use super::Frame;
use crate::wire::{FrameError, frame_error::field, frame_type::ACK};
use crate::wire::{Reader, put_varint};

/// Most ranges in one acknowledgement; earlier acknowledgements had the older ones.
pub(super) const ACK_RANGES_MAX: usize = 32;

/// An acknowledgement of packets of one path of the peer, and what was measured with them.
#[allow(missing_docs, reason = "some fields say it with their names")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckFrame<'a> {
    /// The path whose packets are acknowledged, as the peer numbers it.
    pub path: u8,
    /// Largest packet number received.
    pub largest: u64,
    /// When it arrived, microseconds of the receiver's own epoch.
    pub received_at_us: u64,
    /// For how long the acknowledgement was held back, microseconds.
    pub delay_us: u64,
    /// Packets of this path that arrived with a congestion mark, in all.
    pub ecn_ce: u64,
    pub ranges: AckRanges<'a>,
}

/// Ranges of packet numbers, from the largest down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckRanges<'a> {
    pub(super) largest: u64,
    pub(super) encoded: &'a [u8],
}

impl AckFrame<'_> {
    /// Everything but the ranges, which [`AckFrame::encode`] is given beside it.
    pub const fn head(
        path: u8,
        largest: u64,
        received_at_us: u64,
        delay_us: u64,
        ecn_ce: u64,
    ) -> AckFrame<'static> {
        AckFrame {
            path,
            largest,
            received_at_us,
            delay_us,
            ecn_ce,
            ranges: AckRanges {
                largest,
                encoded: &[],
            },
        }
    }

    /// Most bytes that [`AckFrame::encode`] appends for `ranges` ranges.
    pub const fn len_max(ranges: usize) -> usize {
        let ranges = if ranges < ACK_RANGES_MAX {
            ranges
        } else {
            ACK_RANGES_MAX
        };
        2 + 4 * 8 + 8 + ranges * 16
    }

    /// Appends an acknowledgement of `ranges`: inclusive pairs from the largest down, not empty,
    /// not touching. Only the first 32 are written.
    pub fn encode(
        buf: &mut Vec<u8>,
        head: &AckFrame<'_>,
        ranges: impl Iterator<Item = (u64, u64)>,
    ) {
        head.encode_head(buf);
        let mut encoded = Vec::with_capacity(64);
        let mut count = 0u64;
        let mut above: Option<u64> = None;
        for (low, high) in ranges.take(ACK_RANGES_MAX) {
            if let Some(above) = above {
                // At least one packet is missing between two ranges.
                put_varint(&mut encoded, above - high - 2);
            }
            put_varint(&mut encoded, high - low);
            above = Some(low);
            count += 1;
        }
        put_varint(buf, count);
        buf.extend_from_slice(&encoded);
    }

    pub(super) fn encode_head(&self, buf: &mut Vec<u8>) {
        put_varint(buf, ACK);
        buf.push(self.path);
        put_varint(buf, self.largest);
        put_varint(buf, self.received_at_us);
        put_varint(buf, self.delay_us);
        put_varint(buf, self.ecn_ce);
    }
}

impl<'a> AckRanges<'a> {
    /// Inclusive (lowest, highest) pairs, from the largest down.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + 'a {
        let mut reader = Reader::new(self.encoded);
        let count = reader.varint().unwrap_or(0);
        let mut next_high = Some(self.largest);
        // Validated by `decode`: no step below can fail for a frame that was decoded.
        (0..count).map_while(move |_| {
            let high = next_high?;
            let low = high.checked_sub(reader.varint()?)?;
            next_high = reader
                .varint()
                .and_then(|gap| low.checked_sub(gap)?.checked_sub(2));
            Some((low, high))
        })
    }
}

pub(super) fn decode<'a>(reader: &mut Reader<'a>) -> Result<Frame<'a>, FrameError> {
    let path = field(reader.u8())?;
    let largest = field(reader.varint())?;
    let received_at_us = field(reader.varint())?;
    let delay_us = field(reader.varint())?;
    let ecn_ce = field(reader.varint())?;
    let before = reader.rest();
    let count = field(reader.varint())?;
    if count == 0 || count > ACK_RANGES_MAX as u64 {
        return Err(FrameError::Range);
    }
    let mut high = largest;
    for index in 0..count {
        if index > 0 {
            let gap = field(reader.varint())?;
            high = high
                .checked_sub(gap)
                .and_then(|high| high.checked_sub(2))
                .ok_or(FrameError::Range)?;
        }
        let len = field(reader.varint())?;
        high = high.checked_sub(len).ok_or(FrameError::Range)?;
    }
    let encoded = &before[..before.len() - reader.rest().len()];
    Ok(Frame::Ack(AckFrame {
        path,
        largest,
        received_at_us,
        delay_us,
        ecn_ce,
        ranges: AckRanges { largest, encoded },
    }))
}
