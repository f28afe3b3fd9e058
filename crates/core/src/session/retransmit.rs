//! What is lost waits to be sent again.

use keiro_units::Instant;

use super::{
    Session,
    recovery::{ResolvedPacket, SentFrame},
};
use crate::{event::Event, id::PathId};

impl Session {
    /// What a packet of the path holds has changed.
    pub(super) fn on_mtu_changed(&mut self, path: PathId, mtu: u16) {
        let peer = self.id;
        self.events.push_back(Event::MtuChanged { peer, path, mtu });
    }

    /// Windows are told of lost packets, and their content waits to be sent again.
    pub(super) fn on_lost(&mut self, now: Instant, path: PathId, lost: Vec<ResolvedPacket>) {
        self.report_to_tenants(now, path, (&[], &lost), None);
        self.on_packets_lost(now, path, lost);
    }

    /// Packets are lost: their sizes tell of the path's MTU, and their content waits to be sent again.
    pub(super) fn on_packets_lost(
        &mut self,
        now: Instant,
        path: PathId,
        lost: Vec<ResolvedPacket>,
    ) {
        let mut mtu = None;
        if let Some(path) = self.paths.get_mut(&path) {
            for packet in &lost {
                mtu = path
                    .mtu
                    .on_lost(now, packet.number, packet.ip_bytes)
                    .or(mtu);
            }
        }
        if let Some(mtu) = mtu {
            self.on_mtu_changed(path, mtu);
        }
        self.requeue(now, path, lost);
    }

    /// Content of packets that are lost, or may be, waits to be sent again.
    pub(super) fn requeue(&mut self, now: Instant, path: PathId, packets: Vec<ResolvedPacket>) {
        for packet in packets
            .into_iter()
            .filter(|packet| !packet.was_pto_retransmitted)
        {
            let entry = self.paths.get_mut(&path);
            if let Some(entry) = entry
                && entry.mtu.on_probe_lost(now, packet.number)
            {
                // It says something about its size, nothing about the line.
                entry.sent.lost_total -= 1;
                continue;
            }
            for frame in packet.frames.as_slice() {
                self.on_frame_lost(now, *frame);
            }
        }
    }

    pub(super) fn on_frame_lost(&mut self, now: Instant, frame: SentFrame) {
        match frame {
            SentFrame::Message {
                message,
                start,
                end,
            } => {
                let app = self
                    .queues
                    .messages
                    .get(&message)
                    .map(|message| message.app);
                let path = app.and_then(|app| self.active_path(app));
                self.queues.on_lost(message, start, end, path);
            }
            SentFrame::MessageDone { .. } | SentFrame::MessageDrop { .. } => {
                self.control.push_back(frame);
            }
            SentFrame::StreamReset { stream, reason } => {
                self.streams.resets.push_back((stream, reason));
            }
            SentFrame::Credit => self.credit_wanted = true,
            SentFrame::Stream {
                stream,
                start,
                end,
                fin,
            } => {
                let path = self.path_of_stream(stream);
                self.queues
                    .on_stream_lost(now, stream, (start, end, fin), path);
            }
            SentFrame::StreamOpen(stream) => {
                let path = self.path_of_stream(stream);
                self.queues.on_stream_open_lost(now, stream, path);
            }
            SentFrame::StreamCredit(stream) => self.want_stream_credit(stream),
            SentFrame::StreamReturn(stream) => self.queues.want_return(stream),
            SentFrame::Datagram { .. } | SentFrame::Ack { .. } => {}
        }
    }
}
