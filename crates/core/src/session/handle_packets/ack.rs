//! Acknowledgements: what the sent packets that they resolve mean for the components.

use keiro_units::Instant;

use super::PacketContext;
use crate::{
    id::{AppId, PathId},
    session::{
        Session, clock::AckExchange, path::ReceivedAck, recovery::AckedOrLostPacket,
        scheduler::AckedOrLostPackets, sent_frames::SentFrame,
    },
    trace::TraceKind,
    wire::AckFrame,
};

/// When the packets of an acknowledgement arrived at the peer.
#[derive(Clone, Copy)]
struct AckedArrival {
    largest: u64,
    /// When that one did, by our clock; others may have come a little earlier. `None`: the peer's clock is not
    /// known.
    at: Option<Instant>,
}

impl Session {
    pub(super) fn handle_ack(&mut self, context: PacketContext, frame: AckFrame<'_>) {
        let id = PathId(frame.path);
        let now = context.now;
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        let ack = ReceivedAck {
            now,
            received_at: context.received_at,
            frame,
            is_same_path: context.path == Some(id),
            ack_delay_max: self.settings.timing.ack_delay_max,
        };
        let Some(result) = path.on_ack(ack) else {
            self.drops.malformed += 1;
            return;
        };
        self.incarnations.on_acked(now, id, frame.largest);
        for packet in &result.acked {
            self.tracer.record(now, id, || TraceKind::PacketAcked {
                number: packet.number,
                was_lost: packet.was_lost,
            });
        }
        self.tracer
            .record(now, id, || TraceKind::Recovery(path.recovery_metrics()));
        if let Some(sent_at) = result.clock_sample {
            self.receiver.clock_mut().on_ack(AckExchange {
                sent_at,
                received_us: frame.received_at_us,
                held_us: frame.delay_us,
                acked_at: context.received_at,
            });
        }
        if let Some(mtu) = result.mtu {
            self.on_mtu_changed(id, mtu);
        }
        let largest_ago = self
            .receiver
            .clock()
            .since(context.received_at, frame.received_at_us as u32);
        let arrival = AckedArrival {
            largest: frame.largest,
            at: largest_ago.map(|ago| context.received_at - ago),
        };
        for packet in &result.acked {
            self.on_packet_acked(now, packet, arrival);
        }
        let resolved = AckedOrLostPackets {
            acked: &result.acked,
            lost: &result.lost,
            signals: Some(result.signals),
        };
        self.report_to_tenants(now, id, resolved);
        self.requeue_lost(now, id, result.lost);
    }

    /// Records the delay of data of `app` that an acknowledged packet carried or completed.
    fn measure_delay(&mut self, app: AppId, since: Instant, arrival: AckedArrival) {
        if let Some(at) = arrival.at {
            let delay = at.saturating_duration_since(since);
            self.delay_samples.push(app, delay);
        }
    }

    fn on_packet_acked(&mut self, now: Instant, packet: &AckedOrLostPacket, arrival: AckedArrival) {
        for frame in packet.frames.as_slice() {
            match *frame {
                SentFrame::Message {
                    message,
                    start,
                    end,
                } => self.scheduler.on_message_acked(message, start, end),
                SentFrame::Stream { stream, range } => {
                    let (streams, mut cx) = self.streams();
                    let measured = streams.on_acked(now, &mut cx, stream, range);
                    self.on_stream_events();
                    if let Some((app, since)) = measured {
                        self.measure_delay(app, since, arrival);
                    }
                }
                SentFrame::StreamOpen(stream) => {
                    let (streams, mut cx) = self.streams();
                    streams.on_open_acked(now, &mut cx, stream);
                    self.on_stream_events();
                }
                SentFrame::Ack { path, largest } => {
                    self.receiver.on_ack_of_ack(path, largest);
                }
                SentFrame::Packets { app, since } if packet.number == arrival.largest => {
                    self.measure_delay(app, since, arrival);
                }
                // One whose packet was sent again was counted then.
                SentFrame::StreamReset { .. } if !packet.was_retransmitted => {
                    self.streams.on_reset_acked();
                }
                SentFrame::StreamReset { .. }
                | SentFrame::MessageControl(_)
                | SentFrame::Credit
                | SentFrame::StreamCredit(_)
                | SentFrame::StreamReturn(_)
                | SentFrame::Packets { .. }
                | SentFrame::Datagram { .. } => {}
            }
        }
    }
}
