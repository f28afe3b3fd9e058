//! What leaves next: handshakes and replies, and packets of the peers in turns.

use keiro_units::Instant;

use super::{Endpoint, SPARE_BYTES, SPARE_MAX, replies::UnpacedPacket};
use crate::{
    datagram::{Transmit, TransmitBuf},
    id::PeerId,
};

impl Endpoint {
    /// The next batch to send, or `None` if nothing may leave now.
    pub fn poll_transmit(&mut self, now: Instant, buf: &mut TransmitBuf) -> Option<Transmit> {
        let (transmit, asked) = match self.next_transmit(now, buf) {
            Some((transmit, asked)) => (Some(transmit), asked),
            None => (None, false),
        };
        let kept = buf
            .spare
            .drain(..)
            .filter(|buffer| SPARE_BYTES.contains(&buffer.capacity()));
        self.spare.extend(kept);
        self.spare.truncate(SPARE_MAX);
        let transmit = transmit?;
        self.uplinks.on_sent(now, &transmit, asked);
        Some(transmit)
    }

    /// What [`poll_transmit`](Self::poll_transmit) gave out at `polled_at` may have left as late as `until`: who sends was
    /// kept from running meanwhile. Silence then counts from `until`, and no round trip is taken from it.
    pub fn on_late_departure(&mut self, polled_at: Instant, until: Instant) {
        for session in self.peers.values_mut() {
            session.on_late_departure(polled_at, until);
        }
    }

    /// And whether it is, or belongs to, what has asked whether it may leave.
    fn next_transmit(&mut self, now: Instant, buf: &mut TransmitBuf) -> Option<(Transmit, bool)> {
        let first = self.outbox.pop_front();
        if let Some(packet) = first.or_else(|| self.replies.poll_before_peers()) {
            return Some((unpaced(now, packet, buf), false));
        }
        // Peers take turns, beginning after the one that was served last.
        let after = self.last_polled;
        let turn = self.peers.keys().copied().filter(|id| Some(*id) > after);
        let rest = self.peers.keys().copied().filter(|id| Some(*id) <= after);
        let order: Vec<PeerId> = turn.chain(rest).collect();
        for id in order {
            let session = self.peers.get_mut(&id)?;
            let (uplinks, random) = (&mut self.uplinks, &mut self.random);
            if let Some(transmit) = session.poll_transmit(now, buf, uplinks, random) {
                let asked = session.took_turn;
                if asked {
                    self.last_polled = Some(id);
                }
                self.replies.on_peer_served();
                return Some((transmit, asked));
            }
        }
        let reply = self.replies.poll_behind_peers()?;
        Some((unpaced(now, reply, buf), false))
    }
}

/// A packet that leaves beside the pacers.
fn unpaced(now: Instant, packet: UnpacedPacket, buf: &mut TransmitBuf) -> Transmit {
    let len = packet.bytes.len();
    buf.bytes = packet.bytes;
    Transmit {
        socket: packet.socket,
        remote: packet.remote,
        len,
        segment_size: len,
        ecn: 0,
        due: now,
    }
}
