//! Queues in a gateway's machine: received datagrams, outgoing datagrams, traffic to be made.
//!
//! Each direction is a server with a fixed time per datagram; with a time of zero nothing ever waits.

use std::{collections::VecDeque, net::SocketAddr, time::Duration};

use keiro_units::Instant;

use crate::packet::Packet;

/// Buffers kept for the next datagrams.
const SPARE_MAX: usize = 64;

/// A scheduled message or datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScheduledItem {
    pub(crate) made: Instant,
    pub(crate) app: usize,
    pub(crate) bytes: usize,
}

/// A datagram that arrived.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) at: Instant,
    pub(crate) interface: usize,
    pub(crate) packet: Packet,
    ready: Instant,
}

/// Received datagrams, until the machine has processed them.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    cost: Duration,
    max: usize,
    queue: VecDeque<Arrived>,
    busy_until: Instant,
    spare: Vec<Vec<u8>>,
}

/// A datagram that leaves.
#[derive(Debug)]
pub(crate) struct Leaving {
    pub(crate) interface: usize,
    pub(crate) remote: SocketAddr,
    pub(crate) ecn: u8,
    pub(crate) payload: Vec<u8>,
    ready: Instant,
}

/// Datagrams from the core, until the machine has sent them.
#[derive(Debug)]
pub(crate) struct TransmitQueue {
    cost: Duration,
    queue: VecDeque<Leaving>,
    busy_until: Instant,
    spare: Vec<Vec<u8>>,
    /// Datagrams of applications that were made and not yet given to the core, by index.
    pub(crate) datagrams: VecDeque<usize>,
}

impl ReceiveQueue {
    pub(crate) fn new(cost: Duration, max: usize) -> Self {
        Self {
            cost,
            max,
            queue: VecDeque::new(),
            busy_until: Instant::ZERO,
            spare: Vec::new(),
        }
    }

    /// Sets the time per datagram to `cost`, and the capacity to `max`.
    pub(crate) const fn set(&mut self, cost: Duration, max: usize) {
        self.cost = cost;
        self.max = max;
    }

    /// `false` if there was no room. The payload is moved out of the packet.
    pub(crate) fn push(&mut self, now: Instant, interface: usize, packet: &mut Packet) -> bool {
        if self.queue.len() >= self.max {
            return false;
        }
        let buffer = self.spare.pop().unwrap_or_default();
        let payload = std::mem::replace(&mut packet.payload, buffer);
        self.busy_until = self.busy_until.max(now) + self.cost;
        self.queue.push_back(Arrived {
            at: now,
            interface,
            packet: Packet { payload, ..*packet },
            ready: self.busy_until,
        });
        true
    }

    pub(crate) fn pop(&mut self, now: Instant) -> Option<Arrived> {
        self.queue.pop_front_if(|arrived| arrived.ready <= now)
    }

    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.queue.front().map(|arrived| arrived.ready)
    }

    pub(crate) fn recycle(&mut self, payload: Vec<u8>) {
        recycle(&mut self.spare, payload);
    }

    pub(crate) fn clear(&mut self) {
        self.queue.clear();
        self.busy_until = Instant::ZERO;
    }
}

impl TransmitQueue {
    pub(crate) fn new(cost: Duration) -> Self {
        Self {
            cost,
            queue: VecDeque::new(),
            busy_until: Instant::ZERO,
            spare: Vec::new(),
            datagrams: VecDeque::new(),
        }
    }

    pub(crate) fn push(
        &mut self,
        now: Instant,
        interface: usize,
        remote: SocketAddr,
        ecn: u8,
        payload: &[u8],
    ) {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(payload);
        self.busy_until = self.busy_until.max(now) + self.cost;
        self.queue.push_back(Leaving {
            interface,
            remote,
            ecn,
            payload: buffer,
            ready: self.busy_until,
        });
    }

    pub(crate) fn pop(&mut self, now: Instant) -> Option<Leaving> {
        self.queue.pop_front_if(|leaving| leaving.ready <= now)
    }

    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.queue.front().map(|leaving| leaving.ready)
    }

    pub(crate) fn recycle(&mut self, payload: Vec<u8>) {
        recycle(&mut self.spare, payload);
    }
}

fn recycle(spare: &mut Vec<Vec<u8>>, payload: Vec<u8>) {
    if spare.len() < SPARE_MAX {
        spare.push(payload);
    }
}
