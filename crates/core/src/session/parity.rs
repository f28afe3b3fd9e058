//! Parity of aggregates: what leaves behind a group, and what arrives of one.
//!
//! Grouping and recovering are `aggregate`'s; this puts parity into packets and takes it out.

use keiro_units::Instant;

use super::{
    Session,
    aggregation::receiver::Copy,
    copies::Copied,
    path::Path,
    receive::Context,
    recovery::{Owner, SentFrames},
};
use crate::{
    id::PathId,
    uplink::Uplinks,
    wire::{Frame, FrameError, ParityFrame, Reader},
};

/// What the parity of the longest content takes more than the content itself: the head of the frame,
/// less that of the aggregate's, and its length, made even.
pub(super) const RESERVE: usize = ParityFrame::HEAD_LEN_MAX + 2;

impl Session {
    /// Parity of the group that is over, to leave behind what was sent.
    pub(super) fn close_group(&mut self, now: Instant, id: PathId, uplinks: &mut Uplinks) {
        let Some(path) = self.paths.get_mut(&id) else {
            return;
        };
        let Some(group) = path.aggregator.take_group(now) else {
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
            path.aggregator.on_parity(now, packet_bytes + overhead);
            copies.push(Copied {
                clear,
                frames: SentFrames::default(),
                owner: Owner::default(),
            });
        }
        self.push_copies(now, id, 0, copies.into_iter(), uplinks);
    }

    /// Parity arrived: what it gives back is read as if it had come itself.
    pub(super) fn handle_parity(&mut self, context: Context, frame: ParityFrame<'_>) {
        let copy = Copy {
            number: frame.first,
            index: frame.index,
            count: frame.count,
            ip_bytes: context.ip_bytes,
            received_at: context.received_at,
            same_path: frame.path == context.number,
        };
        let remote = self.remote_paths.entry(frame.path).or_default();
        let contents = remote.aggregates.on_parity(context.now, &frame, copy);
        self.handle_recovered(context, &contents);
    }

    /// Contents of aggregates that were lost.
    pub(super) fn handle_recovered(&mut self, context: Context, contents: &[Vec<u8>]) {
        for content in contents {
            if self.handle_content(context, content).is_err() {
                self.drops.malformed += 1;
            }
        }
    }

    fn handle_content(&mut self, context: Context, content: &[u8]) -> Result<(), FrameError> {
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
