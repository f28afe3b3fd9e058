//! The frames of a packet in their order: heads of aggregates, and the content behind them, which may
//! come several times or be recovered by parity.

use super::PacketContext;
use crate::{
    session::{
        Session,
        aggregation::receiver::{Copy, Novelty},
        cost,
        receiver::ProtectedAggregate,
    },
    wire::{Frame, FrameError, ParityFrame, Reader},
};

/// What the frames of a packet so far say about it.
#[derive(Clone, Copy, Default)]
struct PacketState {
    /// It asks for an acknowledgement.
    is_eliciting: bool,
    /// The aggregate of a group that it is, until its content begins.
    protected: Option<ProtectedAggregate>,
    /// It is an aggregate.
    is_aggregate: bool,
    /// It belongs to a group: it is an aggregate, or parity.
    is_grouped: bool,
    /// It is too old to know whether it is a copy. It will be acknowledged, so frames that may be read
    /// twice are read; a datagram must not be delivered twice.
    is_too_old: bool,
    /// Its content was read before.
    is_known: bool,
    /// It has a challenge. Only the first of a packet is answered, so that the answers to an address that
    /// the peer only claims are no more than what it sent (RFC 9000 §8.1).
    has_challenge: bool,
}

impl PacketContext {
    /// The packet as a copy of the aggregate `number` of the peer's path `path`.
    fn copy(&self, path: u8, number: u64, index: u8, count: u8) -> Copy {
        Copy {
            number,
            index,
            count,
            ip_bytes: self.ip_bytes,
            received_at: self.received_at,
            same_path: path == self.number,
        }
    }
}

impl Session {
    /// Handles the frames of a packet; `true` if it asks for an acknowledgement.
    pub(super) fn handle_frames(
        &mut self,
        context: PacketContext,
        clear: &[u8],
    ) -> Result<bool, FrameError> {
        let mut reader = Reader::new(clear);
        let mut state = PacketState::default();
        loop {
            let rest = reader.rest();
            let frame = Frame::decode(&mut reader)?;
            let is_outside_content = matches!(
                frame,
                Some(Frame::Ack(_) | Frame::TrainReport(_) | Frame::Feedback(_))
            );
            if !is_outside_content && let Some(aggregate) = state.protected.take() {
                let recovered = self.receiver.keep_aggregate(aggregate, rest);
                self.handle_recovered(context, &recovered);
            }
            let Some(frame) = frame else { break };
            if self.handle_aggregate_head(context, frame, &mut state)? {
                if state.is_known {
                    return Ok(true);
                }
                continue;
            }
            // Recovering a group may be expensive: one parity frame per packet.
            if matches!(frame, Frame::Parity(_)) && std::mem::replace(&mut state.is_grouped, true) {
                return Err(FrameError::Range);
            }
            if state.is_aggregate && matches!(frame, Frame::PacketPart { .. }) {
                return Err(FrameError::Range);
            }
            state.is_eliciting |= frame.ack_eliciting();
            let is_challenge = matches!(frame, Frame::PathChallenge(_));
            if is_challenge && std::mem::replace(&mut state.has_challenge, true) {
                continue;
            }
            let is_once = matches!(frame, Frame::Datagram { .. } | Frame::Fragment { .. });
            if !(state.is_too_old && is_once) {
                self.handle_frame(context, frame);
            }
        }
        Ok(state.is_eliciting)
    }

    /// Handles the head of an aggregate; `false` if `frame` is none.
    fn handle_aggregate_head(
        &mut self,
        context: PacketContext,
        frame: Frame<'_>,
        state: &mut PacketState,
    ) -> Result<bool, FrameError> {
        let novelty = match frame {
            Frame::Protected {
                path,
                number,
                place,
            } => {
                if std::mem::replace(&mut state.is_grouped, true) {
                    return Err(FrameError::Range);
                }
                let copy = context.copy(path, number, 0, 1);
                let aggregates = self.receiver.aggregates_mut(path);
                let aggregates = aggregates.ok_or(FrameError::Range)?;
                let novelty = aggregates.on_protected(context.now, copy, place);
                if novelty == Novelty::New {
                    state.protected = Some(ProtectedAggregate {
                        path,
                        number,
                        place,
                    });
                }
                novelty
            }
            Frame::Aggregate {
                path,
                number,
                index,
                count,
            } => {
                let copy = context.copy(path, number, index, count);
                let aggregates = self.receiver.aggregates_mut(path);
                let aggregates = aggregates.ok_or(FrameError::Range)?;
                aggregates.on_copy(context.now, copy)
            }
            _ => return Ok(false),
        };
        state.is_eliciting = true;
        state.is_aggregate = true;
        match novelty {
            Novelty::New => {}
            // It was read from another copy, or parity has recovered it.
            Novelty::Known => state.is_known = true,
            Novelty::TooOld => state.is_too_old = true,
        }
        Ok(true)
    }

    /// Parity arrived: the contents that it recovers are read as if they had arrived themselves.
    pub(super) fn handle_parity(&mut self, context: PacketContext, frame: ParityFrame<'_>) {
        let copy = context.copy(frame.path, frame.first, frame.index, frame.count);
        let Some(contents) = self.receiver.on_parity(context.now, &frame, copy) else {
            self.drops.malformed += 1;
            return;
        };
        self.handle_recovered(context, &contents);
    }

    /// Contents of aggregates that were lost.
    fn handle_recovered(&mut self, context: PacketContext, contents: &[Vec<u8>]) {
        self.received_cost += cost::of_products(self.receiver.take_recovery_cost());
        self.received_cost += contents.len() as u64 * cost::RECOVERED;
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
                Frame::Aggregate { .. }
                    | Frame::Protected { .. }
                    | Frame::Parity(_)
                    | Frame::PathChallenge(_)
                    | Frame::PacketPart { .. }
            ) {
                // An aggregate holds no other and no parts of packets, and a challenge belongs to its packet.
                return Err(FrameError::Range);
            }
            self.handle_frame(context, frame);
        }
        Ok(())
    }
}
