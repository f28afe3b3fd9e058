//! Frames of the protocol itself, in packets with data or alone: acknowledgements, reports, credit,
//! and outcomes of messages and streams.

use keiro_units::Instant;

use super::{
    Session,
    recovery::{SentFrame, SentFrames},
};
use crate::{id::PathId, snapshot::PathState, wire::Frame};

/// Longest control frame that is retransmitted until it arrives.
const CONTROL_LEN_MAX: usize = 17;

/// Outcomes of the peer's messages that wait to be sent; at the bound it gets no more credit.
const OUTCOMES_MAX: usize = 4096;

impl Session {
    /// Acknowledgements that are due, or that may as well travel with data, and reports that are due.
    /// `acks`: gets what they acknowledge.
    pub(super) fn write_acks(
        &mut self,
        now: Instant,
        id: PathId,
        data_waits: bool,
        end: usize,
        out: &mut Vec<u8>,
        acks: &mut SentFrames,
    ) {
        for path in self.receiver.acks_wanted(now, data_waits) {
            if self.path_for_acks(path) == Some(id)
                && let Some(largest) = self.receiver.write_ack(now, path, end, out)
            {
                acks.push(SentFrame::Ack { path, largest });
            }
        }
        for path in self.receiver.train_reports_due(now) {
            if self.path_for_acks(path) == Some(id) {
                self.receiver.write_train_report(now, path, end, out);
            }
        }
        for path in self.receiver.feedback_due(now) {
            if self.path_for_acks(path) == Some(id) {
                self.receiver.write_feedback(now, path, end, out);
            }
        }
    }

    /// The path over which packets of the peer's path `number` are acknowledged: the one that
    /// shares its socket, so that RTT samples are of one path; any other if that one is not usable.
    pub(super) fn path_for_acks(&self, number: u8) -> Option<PathId> {
        let socket = self.receiver.socket_of(number);
        let mut paths = self.paths.iter();
        let same = paths.find(|path| Some(path.socket()) == socket && path.remote().is_some());
        match same {
            Some(path) if path.state() != PathState::Down => Some(path.id()),
            _ => {
                let up = self.paths.iter().find(|path| path.is_up());
                up.or(same).map(|path| path.id())
            }
        }
    }

    /// The path for control frames: they are small and should arrive soon.
    pub(super) fn control_path(&self) -> Option<PathId> {
        self.paths.fastest()
    }

    pub(super) fn write_control(&mut self, end: usize, out: &mut Vec<u8>, frames: &mut SentFrames) {
        // A peer that does not take the outcomes of its messages gets no credit for more.
        let may_grant = self.control.len() < OUTCOMES_MAX;
        if may_grant
            && out.len() + CONTROL_LEN_MAX <= end
            && let Some(granted) = self.receiver.poll_credit()
        {
            Frame::Credit(granted).encode(out);
            frames.push(SentFrame::Credit);
        }
        while out.len() + CONTROL_LEN_MAX <= end {
            let Some((stream, granted)) = self.streams.poll_credit() else {
                break;
            };
            let id = stream.to_wire();
            Frame::StreamCredit { id, granted }.encode(out);
            frames.push(SentFrame::StreamCredit(stream));
        }
        while out.len() + CONTROL_LEN_MAX <= end {
            let Some((stream, returned)) = self.scheduler.queues_mut().take_return() else {
                break;
            };
            let id = stream.to_wire();
            Frame::StreamReturn { id, returned }.encode(out);
            frames.push(SentFrame::StreamReturn(stream));
        }
        while out.len() + CONTROL_LEN_MAX <= end {
            let Some((stream, reason)) = self.streams.poll_reset() else {
                break;
            };
            let id = stream.to_wire();
            Frame::StreamReset { id, reason }.encode(out);
            frames.push(SentFrame::StreamReset { stream, reason });
        }
        while out.len() + CONTROL_LEN_MAX <= end {
            let Some(frame) = self.control.pop_front() else {
                return;
            };
            match frame {
                SentFrame::MessageDone {
                    id,
                    status,
                    whole_at,
                } => {
                    Frame::MessageDone {
                        id,
                        status,
                        whole_at,
                    }
                    .encode(out);
                }
                SentFrame::MessageDrop { id, total } => {
                    Frame::MessageDrop {
                        id,
                        total: total as usize,
                    }
                    .encode(out);
                }
                SentFrame::Credit
                | SentFrame::Message { .. }
                | SentFrame::Stream { .. }
                | SentFrame::StreamOpen(_)
                | SentFrame::StreamCredit(_)
                | SentFrame::StreamReturn(_)
                | SentFrame::StreamReset { .. }
                | SentFrame::Datagram { .. }
                | SentFrame::Ack { .. } => continue,
            }
            frames.push(frame);
        }
    }
}
