//! Losses: the tenants' controllers hear of them, and the content of lost packets is queued again.

use keiro_units::Instant;

use super::{
    Session, recovery::AckedOrLostPacket, scheduler::AckedOrLostPackets, sent_frames::SentFrame,
    tenant::PathIdMtu,
};
use crate::{event::Event, id::PathId, trace::TraceKind};

impl Session {
    pub(super) fn on_mtu_changed(&mut self, path: PathId, mtu: u16) {
        let peer = self.id;
        self.events.push_back(Event::MtuChanged { peer, path, mtu });
    }

    /// Loss detection has found packets: the tenants' controllers are notified, and their content is queued again.
    pub(super) fn on_losses_detected(
        &mut self,
        now: Instant,
        path: PathId,
        lost: Vec<AckedOrLostPacket>,
    ) {
        let resolved = AckedOrLostPackets {
            acked: &[],
            lost: &lost,
            signals: None,
        };
        self.report_to_tenants(now, path, resolved);
        self.requeue_lost(now, path, lost);
    }

    /// Packets are lost: their sizes show whether the path's MTU is smaller, and their content is queued
    /// again.
    pub(super) fn requeue_lost(&mut self, now: Instant, id: PathId, lost: Vec<AckedOrLostPacket>) {
        for packet in &lost {
            self.tracer.record(now, id, || TraceKind::PacketLost {
                number: packet.number,
                ip_bytes: u64::from(packet.ip_bytes),
            });
        }
        let path = self.paths.get_mut(id);
        if let Some(mtu) = path.and_then(|path| path.on_packets_lost(now, &lost)) {
            self.on_mtu_changed(id, mtu);
            // The losses that have shown it were taken for congestion.
            self.scheduler
                .restart_controllers(now, PathIdMtu { path: id, mtu }, false);
        }
        self.requeue(now, id, lost);
    }

    /// Reports to the tenants' controllers what became of packets on a path.
    pub(super) fn report_to_tenants(
        &mut self,
        now: Instant,
        path: PathId,
        resolved: AckedOrLostPackets<'_>,
    ) {
        if let Some(path) = self.paths.get(path) {
            self.scheduler.on_capacity(path.id(), path.line_capacity());
            let path = path.id_and_mtu();
            self.scheduler.on_packets_resolved(now, path, resolved);
            self.report_contradiction();
        }
    }

    /// Queues the content of packets that are lost, or that a probe timeout retransmits.
    pub(super) fn requeue(&mut self, now: Instant, path: PathId, packets: Vec<AckedOrLostPacket>) {
        for packet in packets {
            if packet.was_pto_retransmitted {
                continue;
            }
            if packet.is_mtu_probe {
                if let Some(path) = self.paths.get_mut(path) {
                    path.on_mtu_probe_lost(now, packet.number);
                }
                continue;
            }
            for frame in packet.frames.as_slice() {
                self.on_frame_lost(now, *frame);
            }
        }
    }

    fn on_frame_lost(&mut self, now: Instant, frame: SentFrame) {
        match frame {
            SentFrame::Message {
                message,
                start,
                end,
            } => {
                let app = self.scheduler.queues().app_of_message(message);
                let path = app.and_then(|app| self.apps.active_path(app));
                self.scheduler.on_message_lost(message, start, end, path);
            }
            SentFrame::MessageControl(frame) => self.control.push(frame),
            SentFrame::StreamReset { stream, reason } => {
                self.streams.on_reset_lost(stream, reason);
            }
            SentFrame::Credit => self.receiver.on_credit_lost(),
            SentFrame::Stream { stream, range } => {
                let path = self.path_of_stream(stream);
                self.scheduler.on_stream_lost(now, stream, range, path);
            }
            SentFrame::StreamOpen(stream) => {
                let path = self.path_of_stream(stream);
                self.scheduler.on_stream_open_lost(now, stream, path);
            }
            SentFrame::StreamCredit(stream) => self.streams.on_credit_lost(stream),
            SentFrame::StreamReturn(stream) => self.scheduler.on_stream_return_lost(stream),
            SentFrame::Datagram { .. } | SentFrame::Packets { .. } | SentFrame::Ack { .. } => {}
        }
    }
}
