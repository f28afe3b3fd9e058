//! Traffic of others over a path's link.
//!
//! A node between gateway `a` and the link: what the gateway sends comes to it at the rate of the
//! gateway's own interface, and what others send joins it there. The far end of the link does not
//! take what is not addressed to it.

use std::{net::SocketAddr, time::Duration};

use keiro_model::{Bandwidth, ByteCount, Instant, arrivals::Arrivals};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

use crate::{
    node::{Node, Outbox},
    packet::{Packet, headers},
};

/// What others send over a path, from `a` to `b`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cross {
    /// The mean of it, IP bytes: a Poisson process of packets.
    pub rate: Bandwidth,
    /// Rate of gateway `a`'s interface, from which its packets come to the link.
    pub feed: Bandwidth,
}

/// The others.
#[derive(Debug)]
pub(crate) struct CrossTraffic {
    arrivals: Arrivals,
    next: Option<Instant>,
    random: ChaCha12Rng,
    source: SocketAddr,
    destination: SocketAddr,
    payload: Vec<u8>,
}

/// IP bytes of the others' packets, by tenths. Ours: full ones carry most, acknowledgements are
/// many.
const LENGTHS: [u64; 10] = [64, 64, 64, 576, 576, 1500, 1500, 1500, 1500, 1500];

impl CrossTraffic {
    pub(crate) fn new(
        cross: Cross,
        seed: u64,
        source: SocketAddr,
        destination: SocketAddr,
    ) -> Self {
        let sum: u64 = LENGTHS.iter().sum();
        let mean = ByteCount::new(sum / LENGTHS.len() as u64);
        let interval = if cross.rate.is_zero() {
            Duration::MAX
        } else {
            cross.rate.transmission_time_nearest(mean)
        };
        let mut arrivals = Arrivals::new(seed, 0, interval);
        Self {
            next: arrivals.next().filter(|_| !cross.rate.is_zero()),
            arrivals,
            random: ChaCha12Rng::seed_from_u64(seed),
            source,
            destination,
            payload: Vec::new(),
        }
    }
}

impl Node for CrossTraffic {
    fn handle_packet(
        &mut self,
        _: Instant,
        interface: usize,
        packet: &mut Packet,
        out: &mut Outbox<'_>,
    ) {
        out.forward(1 - interface, packet);
    }

    fn handle_timeout(&mut self, _: Instant, out: &mut Outbox<'_>) {
        let length = LENGTHS[self.random.next_u32() as usize % LENGTHS.len()];
        let payload = length - headers(self.source);
        self.payload.resize(payload as usize, 0);
        out.send_from(1, self.source, self.destination, 0, &self.payload);
        self.next = self.arrivals.next();
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.next
    }
}
