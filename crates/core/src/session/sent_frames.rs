//! What is remembered of the frames of a packet until it is acknowledged or lost.

use keiro_units::Instant;

use super::stream_buffer::StreamRange;
use crate::{
    event::ResetReason,
    id::{AppId, StreamId},
    wire::MessageStatus,
};

/// A frame about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageControl {
    /// The outcome of a message of the peer.
    Done {
        id: u64,
        status: MessageStatus,
        /// When it was whole, see [`stamp`](super::clock::stamp).
        whole_at: u32,
    },
    /// A message of ours was given up.
    Drop { id: u64, total: u32 },
}

/// A part of a packet that matters when the packet is lost or acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SentFrame {
    /// Bytes `start..end` of our message `message` (local number).
    Message {
        message: u64,
        start: u32,
        end: u32,
    },
    MessageControl(MessageControl),
    Credit,
    Stream {
        stream: StreamId,
        range: StreamRange,
    },
    StreamOpen(StreamId),
    /// The newest credit of a stream, whichever it was.
    StreamCredit(StreamId),
    /// The newest total of the stream credit that we have returned.
    StreamReturn(StreamId),
    StreamReset {
        stream: StreamId,
        reason: ResetReason,
    },
    /// A datagram of this application, which is not retransmitted.
    Datagram {
        app: AppId,
    },
    /// IP packets, which are not retransmitted: the application of the first, and when it came to us.
    Packets {
        app: AppId,
        since: Instant,
    },
    /// An acknowledgement of the peer's path `path` up to packet `largest`. It is not retransmitted:
    /// the next one covers it.
    Ack {
        path: u8,
        largest: u64,
    },
}

/// Frames that a lost packet keeps at most, to recognise a late arrival. Ours: packets of messages
/// and streams have a few.
const KEPT_OF_LOST_MAX: usize = 8;

/// The frames of one packet; most have one, or an acknowledgement beside it.
#[derive(Clone, Debug, Default)]
pub(crate) enum SentFrames {
    #[default]
    None,
    One(SentFrame),
    Two([SentFrame; 2]),
    Many(Vec<SentFrame>),
}

impl SentFrames {
    pub(crate) fn push(&mut self, frame: SentFrame) {
        match self {
            Self::None => *self = Self::One(frame),
            Self::One(first) => *self = Self::Two([*first, frame]),
            Self::Two([first, second]) => *self = Self::Many(vec![*first, *second, frame]),
            Self::Many(frames) => frames.push(frame),
        }
    }

    /// What is to be sent again of a packet that is lost. A packet of many frames keeps none of them: a peer
    /// that acknowledges nothing would have them kept for every packet. If it arrives late, its
    /// content is sent twice.
    pub(crate) fn take_lost(&mut self) -> Self {
        match self.is_large() {
            true => std::mem::take(self),
            false => self.clone(),
        }
    }

    /// The packet is lost, and its content was sent again before.
    pub(crate) fn forget_lost(&mut self) {
        if self.is_large() {
            *self = Self::None;
        }
    }

    fn is_large(&self) -> bool {
        self.as_slice().len() > KEPT_OF_LOST_MAX
    }

    pub(crate) fn as_slice(&self) -> &[SentFrame] {
        match self {
            Self::None => &[],
            Self::One(frame) => std::slice::from_ref(frame),
            Self::Two(frames) => frames,
            Self::Many(frames) => frames,
        }
    }

    /// One of them reports the outcome of a message of the peer.
    pub(crate) fn carries_outcome(&self) -> bool {
        self.as_slice().iter().any(|frame| {
            matches!(
                frame,
                SentFrame::MessageControl(MessageControl::Done { .. })
            )
        })
    }
}
