//! Parity of aggregates: what leaves behind a group, and what arrives of one.
//!
//! Grouping and recovering are `aggregate`'s; this puts parity into packets and takes it out.

use keiro_model::Instant;

use super::{
    Session,
    aggregate::received::Copy,
    path::{Path, PendingCopy},
    receive::Context,
    recovery::{Owner, SentFrames},
};
use crate::{
    config::CopySpread,
    id::PathId,
    wire::{Frame, FrameError, ParityFrame, Reader},
};

/// Copies that wait on one path at most; more are not sent. Ours: 10 ms of a thousand aggregates a
/// millisecond, spaced widely.
const COPIES_PENDING_MAX: usize = 1024;
/// What the parity of the longest content takes more than the content itself: the head of the frame,
/// less that of the aggregate's, and its length, made even.
pub(super) const RESERVE: usize = ParityFrame::HEAD_LEN_MAX + 2;

impl Session {
    /// Parity of the group that is over, to leave behind what was sent.
    pub(super) fn close_group(&mut self, now: Instant, id: PathId) {
        let group = self
            .paths
            .get_mut(&id)
            .and_then(|path| path.aggregator.take_group(now));
        let Some(group) = group else { return };
        let others = self.paths_of_copies(id);
        let count = group.parity.len();
        for (index, shard) in group.parity.iter().enumerate() {
            let mut clear = Vec::with_capacity(ParityFrame::HEAD_LEN_MAX + shard.len());
            Frame::Parity(ParityFrame {
                path: id.0,
                first: group.first,
                data: group.data,
                count: count as u8,
                index: index as u8,
                shard,
            })
            .encode(&mut clear);
            let due = match self.aggregation.spread {
                CopySpread::Spaced(gap) => now + gap * index as u32,
                CopySpread::BackToBack | CopySpread::Paths => now,
            };
            let packet_bytes = Path::packet_bytes(clear.len()) as u64;
            let copy = PendingCopy {
                due,
                clear,
                frames: SentFrames::default(),
                owner: Owner::default(),
            };
            let to = others.get(index % others.len().max(1)).copied();
            self.push_copy(to, copy);
            if let Some(path) = self.paths.get_mut(&id) {
                let ip_bytes = packet_bytes + u64::from(path.ip_overhead());
                path.aggregator.on_parity(ip_bytes);
            }
        }
    }

    /// Where the copies of what path `id` sends go by turns: the paths behind this one, then this one.
    pub(super) fn paths_of_copies(&self, id: PathId) -> Vec<PathId> {
        let up = |ids: &PathId| self.paths.get(ids).is_some_and(Path::is_up);
        match self.aggregation.spread {
            CopySpread::Paths => {
                let ids = || self.paths.keys().copied().filter(up);
                let after = ids().filter(|other| *other > id);
                after.chain(ids().filter(|other| *other <= id)).collect()
            }
            CopySpread::BackToBack | CopySpread::Spaced(_) => vec![id],
        }
    }

    /// A copy is to leave over `to`, unless it cannot.
    pub(super) fn push_copy(&mut self, to: Option<PathId>, copy: PendingCopy) {
        let Some(path) = to.and_then(|to| self.paths.get_mut(&to)) else {
            return;
        };
        if path.copies.len() >= COPIES_PENDING_MAX || path.sent.is_full() {
            return;
        }
        // Another path may carry less.
        if copy.clear.len() > Path::clear_text_max(path.udp_payload_max()) {
            return;
        }
        let at = path.copies.partition_point(|other| other.due <= copy.due);
        path.copies.insert(at, copy);
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
