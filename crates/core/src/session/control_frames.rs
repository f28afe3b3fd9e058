//! What the protocol itself says in packets that go anyway, or in some of its own: acknowledgements,
//! reports, credit, and what became of messages and streams.

use keiro_units::Instant;

use super::{
    RemotePath, Session,
    recovery::{SentFrame, SentFrames},
};
use crate::{
    id::PathId,
    snapshot::PathState,
    wire::{Feedback, Frame, TrainReport},
};

/// Longest control frame that is repeated until it arrives.
const CONTROL_LEN_MAX: usize = 17;

/// Outcomes of the peer's messages that wait to be told before it gets no more credit.
const OUTCOMES_MAX: usize = 4096;

impl Session {
    /// Acknowledgements that are due, or that may as well travel with data; `told` gets what they
    /// tell.
    pub(super) fn write_acks(
        &mut self,
        now: Instant,
        id: PathId,
        data_waits: bool,
        end: usize,
        out: &mut Vec<u8>,
        told: &mut SentFrames,
    ) {
        let wanted: Vec<u8> = self
            .remote_paths
            .iter()
            .filter(|(_, remote)| {
                remote.received.ack_due().is_some_and(|due| due <= now)
                    || (data_waits && remote.received.has_unacknowledged())
            })
            .map(|(number, _)| *number)
            .collect();
        for number in wanted {
            if self.path_for_acks(number) != Some(id) {
                continue;
            }
            let Some(remote) = self.remote_paths.get_mut(&number) else {
                continue;
            };
            if out.len() + remote.received.ack_len_max() <= end
                && let Some(largest) = remote.received.write_ack(now, number, out)
            {
                let path = number;
                told.push(SentFrame::Ack { path, largest });
            }
        }
        self.write_train_reports(now, id, end, out);
        self.write_feedback(now, id, end, out);
    }

    fn write_feedback(&mut self, now: Instant, id: PathId, end: usize, out: &mut Vec<u8>) {
        let due =
            |remote: &RemotePath| remote.aggregates.feedback_due().is_some_and(|at| at <= now);
        let wanted = self.remote_paths.iter().filter(|(_, remote)| due(remote));
        let wanted: Vec<u8> = wanted.map(|(number, _)| *number).collect();
        for number in wanted {
            if self.path_for_acks(number) == Some(id)
                && out.len() + Feedback::LEN_MAX <= end
                && let Some(remote) = self.remote_paths.get_mut(&number)
            {
                let overflows = remote.socket.and_then(|socket| self.overflows.get(&socket));
                let overflows = overflows.copied().unwrap_or_default();
                let feedback = remote.aggregates.take_feedback(now, number, overflows);
                if let Some(feedback) = feedback {
                    Frame::Feedback(feedback).encode(out);
                }
            }
        }
    }

    fn write_train_reports(&mut self, now: Instant, id: PathId, end: usize, out: &mut Vec<u8>) {
        let due = |remote: &RemotePath| remote.trains.report_due().is_some_and(|at| at <= now);
        let wanted = self.remote_paths.iter().filter(|(_, remote)| due(remote));
        let wanted: Vec<u8> = wanted.map(|(number, _)| *number).collect();
        for number in wanted {
            if self.path_for_acks(number) == Some(id)
                && out.len() + TrainReport::LEN_MAX <= end
                && let Some(remote) = self.remote_paths.get_mut(&number)
            {
                remote.trains.write_report(now, number, out);
            }
        }
    }

    /// The path over which packets of the peer's path `number` are acknowledged: the one that
    /// shares its socket, so that a round trip is that path's; any other if that one is not usable.
    pub(super) fn path_for_acks(&self, number: u8) -> Option<PathId> {
        let socket = self.remote_paths.get(&number)?.socket;
        let same = self
            .paths
            .values()
            .find(|path| Some(path.socket) == socket && path.remote.is_some());
        match same {
            Some(path) if path.state != PathState::Down => Some(path.id),
            _ => {
                let up = self.paths.values().find(|path| path.is_up());
                up.or(same).map(|path| path.id)
            }
        }
    }

    /// The path for what must arrive soon and is small: the quickest.
    pub(super) fn control_path(&self) -> Option<PathId> {
        let up = self.paths.values().filter(|path| path.is_up());
        let quickest = up.min_by_key(|path| (path.rtt.smoothed_or_initial(), path.id));
        quickest.map(|path| path.id)
    }

    pub(super) fn write_control(&mut self, end: usize, out: &mut Vec<u8>, frames: &mut SentFrames) {
        // A peer that does not hear what became of its messages gets no credit for more.
        let heard = self.control.len() < OUTCOMES_MAX;
        if self.credit_wanted && heard && out.len() + CONTROL_LEN_MAX <= end {
            self.credit_wanted = false;
            self.reassembly.credit_to_grant();
            Frame::Credit(self.reassembly.granted()).encode(out);
            frames.push(SentFrame::Credit);
        }
        while out.len() + CONTROL_LEN_MAX <= end {
            let Some(stream) = self.streams.credit_wanted.pop_first() else {
                break;
            };
            if let Some(granted) = self.streams.granted(stream) {
                let id = stream.to_wire();
                Frame::StreamCredit { id, granted }.encode(out);
                frames.push(SentFrame::StreamCredit(stream));
            }
        }
        while out.len() + CONTROL_LEN_MAX <= end {
            let Some((stream, returned)) = self.queues.take_return() else {
                break;
            };
            let id = stream.to_wire();
            Frame::StreamReturn { id, returned }.encode(out);
            frames.push(SentFrame::StreamReturn(stream));
        }
        while out.len() + CONTROL_LEN_MAX <= end {
            let Some((stream, reason)) = self.streams.resets.pop_front() else {
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
