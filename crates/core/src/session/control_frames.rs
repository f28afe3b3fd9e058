//! Frames about messages that are sent until they arrive: outcomes of the peer's messages, and
//! messages of ours that were given up.

use std::collections::VecDeque;

use super::sent_frames::{MessageControl, SentFrame, SentFrames};
use crate::wire::Frame;

/// Longest of these frames.
const LEN_MAX: usize = 17;

/// Outcomes of the peer's messages that wait to be sent; at the bound it gets no more credit.
const OUTCOMES_MAX: usize = 4096;

/// Frames about messages that wait to be sent.
#[derive(Debug, Default)]
pub(crate) struct ControlFrames {
    waiting: VecDeque<MessageControl>,
}

impl ControlFrames {
    /// Queues a frame, new or lost.
    pub(crate) fn push(&mut self, frame: MessageControl) {
        self.waiting.push_back(frame);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// A peer that does not take the outcomes of its messages gets no credit for more.
    pub(crate) fn may_grant_credit(&self) -> bool {
        self.waiting.len() < OUTCOMES_MAX
    }

    /// The peer has restarted and knows nothing of the messages.
    pub(crate) fn on_peer_restarted(&mut self) {
        self.waiting.clear();
    }

    /// Appends what waits, as far as there is room up to `end`.
    pub(crate) fn write(&mut self, end: usize, out: &mut Vec<u8>, frames: &mut SentFrames) {
        while out.len() + LEN_MAX <= end {
            let Some(frame) = self.waiting.pop_front() else {
                return;
            };
            encode(frame, out);
            frames.push(SentFrame::MessageControl(frame));
        }
    }
}

fn encode(frame: MessageControl, out: &mut Vec<u8>) {
    match frame {
        MessageControl::Done {
            id,
            status,
            whole_at,
        } => Frame::MessageDone {
            id,
            status,
            whole_at,
        },
        MessageControl::Drop { id, total } => Frame::MessageDrop {
            id,
            total: total as usize,
        },
    }
    .encode(out);
}
