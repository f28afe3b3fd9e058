//! What all peers together may send on one socket.
//!
//! A path's own pacer keeps the rate to one peer. Where several peers share an uplink, this keeps
//! the sum within what the uplink carries; peers take turns by the batch.

use std::time::Duration;

use keiro_units::{Bandwidth, Instant};

use crate::{
    datagram::{Transmit, ip_overhead},
    id::SocketId,
    pacer::Pacer,
    table::Table,
};

/// What leaves unasked is debited up to so far ahead. Ours: as long as a burst.
const DEBT_MAX: Duration = Duration::from_millis(2);

/// The sockets whose rate is bounded.
#[derive(Debug, Default)]
pub(crate) struct Uplinks(Table<SocketId, Pacer>);

impl Uplinks {
    /// Bounds what leaves `socket`; `None`: no longer.
    pub(crate) fn set_rate(&mut self, socket: SocketId, rate: Option<Bandwidth>) {
        let Some(rate) = rate else {
            self.0.remove(socket);
            return;
        };
        let pacer = self.0.get_or_insert_with(socket, || {
            let mut pacer = Pacer::new(rate);
            // Whatever a path's pacer makes up for after a late driver is allowed here too.
            pacer.on_blocked();
            pacer
        });
        pacer.set_rate(rate);
    }

    /// What may leave `socket`; `None`: it is not bounded.
    pub(crate) fn rate(&self, socket: SocketId) -> Option<Bandwidth> {
        self.0.get(socket).map(Pacer::rate)
    }

    /// Data may leave `socket`.
    pub(crate) fn may_send(&self, socket: SocketId, now: Instant) -> bool {
        self.0.get(socket).is_none_or(|pacer| pacer.may_send(now))
    }

    /// When data may leave `socket`; in the past if at once.
    pub(crate) fn next(&self, socket: SocketId) -> Instant {
        match self.0.get(socket) {
            Some(pacer) if pacer.rate() == Bandwidth::ZERO => Instant::MAX,
            Some(pacer) => pacer.next(),
            None => Instant::ZERO,
        }
    }

    /// A copy of what left elsewhere may leave `socket`, and all of it is debited:
    /// see [`Pacer::may_take_copy`].
    pub(crate) fn may_take_copy(&self, socket: SocketId, now: Instant, ahead: Duration) -> bool {
        let pacer = self.0.get(socket);
        pacer.is_none_or(|pacer| pacer.next() <= now + DEBT_MAX && pacer.may_take_copy(now, ahead))
    }

    /// A copy of `ip_bytes` that may leave `socket` is to.
    pub(crate) fn on_copy_taken(&mut self, socket: SocketId, now: Instant, ip_bytes: u64) {
        if let Some(pacer) = self.0.get_mut(socket) {
            pacer.on_copy_taken(now, ip_bytes);
        }
    }

    /// `transmit` leaves at `now`, whatever it is. What has not `asked`, as answers to strangers and
    /// acknowledgements, makes data wait by [`DEBT_MAX`] at most, however much of it there is.
    pub(crate) fn on_sent(&mut self, now: Instant, transmit: &Transmit, asked: bool) {
        if let Some(pacer) = self.0.get_mut(transmit.socket) {
            if !asked && pacer.next() > now + DEBT_MAX {
                return;
            }
            let datagrams = transmit.len.div_ceil(transmit.segment_size.max(1)) as u64;
            let headers = datagrams * u64::from(ip_overhead(transmit.remote));
            pacer.on_sent(now, transmit.len as u64 + headers);
        }
    }
}
