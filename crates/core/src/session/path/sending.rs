//! What a path learns of what leaves on it.

use keiro_units::Instant;

use super::{
    super::{
        recovery::{ChargedTenant, NewPacket, PacketKind},
        sent_frames::SentFrames,
    },
    Path,
};

impl Path {
    /// The packet with the next number leaves. `ip_bytes`: its size.
    pub(crate) fn on_packet_sent(
        &mut self,
        now: Instant,
        ip_bytes: u64,
        kind: PacketKind,
        frames: SentFrames,
        owner: ChargedTenant,
    ) {
        let capacity = self.capacity().unwrap_or(self.carries());
        let packet = NewPacket {
            kind,
            ip_bytes: u16::try_from(ip_bytes).unwrap_or(u16::MAX),
            frames,
            self_queueing: self.estimates.on_sent(now, ip_bytes, capacity),
            owner,
        };
        self.recovery.on_sent(now, packet);
        self.pacer.on_sent(now, ip_bytes);
        self.counters.sent_packets += 1;
        self.counters.sent_bytes += ip_bytes;
        if kind.is_ack_eliciting() {
            self.last_eliciting_at = now;
            self.rate.on_sent(now);
        }
        self.idle_meter.on_traffic(now, self.traffic_bytes());
    }

    /// Something waits that may not leave yet.
    pub(crate) fn on_blocked(&mut self, now: Instant) {
        self.pacer.on_blocked();
        self.rate.on_blocked(now);
    }

    /// Nothing is left to send.
    pub(crate) fn on_idle(&mut self, now: Instant) {
        self.pacer.on_idle();
        self.rate.on_idle(now);
    }

    /// A packet has left that did not wait for the pacer. `len`: bytes of UDP payload.
    pub(crate) fn on_unpaced_sent(&mut self, now: Instant, len: usize) {
        let ip_bytes = len as u64 + u64::from(self.ip_overhead());
        self.pacer.on_sent(now, ip_bytes);
        self.counters.sent_packets += 1;
        self.counters.sent_bytes += ip_bytes;
        if !self.is_up() {
            self.reachability.on_sent(now);
        }
    }

    /// A packet of a batch asks for an acknowledgement.
    pub(crate) fn on_ack_eliciting_batched(&mut self) {
        self.probe_credit = self.probe_credit.saturating_sub(1);
    }

    /// What is being written asks for an acknowledgement, so that no PING is needed.
    pub(crate) fn on_eliciting_written(&mut self) {
        // Data in an aggregate leaves no room for what the peer has to know.
        self.ping_wanted = self.announcement_timer.is_unsent() && self.is_up();
    }

    /// `bytes` of data are sent again.
    pub(crate) fn on_retransmitted(&mut self, bytes: u64) {
        self.counters.retransmitted_bytes += bytes;
    }
}
