//! Parity frames: written behind a group of aggregates, and read when they arrive.
//!
//! Grouping and recovering are done by `aggregation`.

use keiro_units::Instant;

use super::{
    Session,
    aggregation::receiver::Copy,
    copies::{CopyBatch, CopyContent},
    path::Path,
    receive::PacketContext,
    recovery::{Owner, SentFrames},
};
use crate::{
    id::PathId,
    uplink::Uplinks,
    wire::{Frame, FrameError, ParityFrame, Reader},
};

/// Bytes that the parity of the longest content takes beyond the content itself: the head of its
/// frame, less that of the aggregate's frame, and the length of the content, made even.
pub(super) const RESERVE: usize = ParityFrame::HEAD_LEN_MAX + 2;

impl Session {
    /// Queues the parity of the group that is complete.
    pub(super) fn close_group(&mut self, now: Instant, id: PathId, uplinks: &mut Uplinks) {
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        let Some(group) = path.aggregator_mut().take_group(now) else {
            return;
        };
        let overhead = u64::from(path.ip_overhead());
        let count = group.parity.len() as u8;
        let mut copies = Vec::with_capacity(group.parity.len());
        for (shard, index) in group.parity.iter().zip(0..) {
            let mut clear = Vec::with_capacity(ParityFrame::HEAD_LEN_MAX + shard.len());
            Frame::Parity(ParityFrame {
                path: id.0,
                first: group.first,
                data: group.data,
                count,
                index,
                shard,
            })
            .encode(&mut clear);
            let packet_bytes = Path::packet_bytes(clear.len()) as u64;
            path.aggregator_mut()
                .on_parity(now, packet_bytes + overhead);
            copies.push(CopyContent {
                clear,
                frames: SentFrames::default(),
                owner: Owner::default(),
            });
        }
        let batch = CopyBatch {
            of: id,
            first_gap: 0,
            copies,
        };
        let spread = self.aggregation.spread;
        self.paths.push_copies(now, spread, batch, uplinks);
    }

    /// Parity arrived: the contents that it recovers are read as if they had arrived themselves.
    pub(super) fn handle_parity(&mut self, context: PacketContext, frame: ParityFrame<'_>) {
        let copy = Copy {
            number: frame.first,
            index: frame.index,
            count: frame.count,
            ip_bytes: context.ip_bytes,
            received_at: context.received_at,
            same_path: frame.path == context.number,
        };
        let aggregates = self.receiver.aggregates_mut(frame.path);
        let contents = aggregates.on_parity(context.now, &frame, copy);
        self.handle_recovered(context, &contents);
    }

    /// Contents of aggregates that were lost.
    pub(super) fn handle_recovered(&mut self, context: PacketContext, contents: &[Vec<u8>]) {
        for content in contents {
            if self.handle_content(context, content).is_err() {
                self.drops.malformed += 1;
            }
        }
    }

    fn handle_content(&mut self, context: PacketContext, content: &[u8]) -> Result<(), FrameError> {
        let mut reader = Reader::new(content);
        while let Some(frame) = Frame::decode(&mut reader)? {
            if matches!(
                frame,
                Frame::Aggregate { .. } | Frame::Protected { .. } | Frame::Parity(_)
            ) {
                // An aggregate holds no other.
                return Err(FrameError::Range);
            }
            self.handle_frame(context, frame);
        }
        Ok(())
    }
}
