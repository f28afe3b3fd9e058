//! Cross traffic over a path's link.
//!
//! A node between gateway `a` and the link. The gateway's packets arrive at the rate of its own interface,
//! and the cross traffic joins them there. The far end of the link ignores packets that are not addressed to
//! it.

use std::{net::SocketAddr, time::Duration};

use keiro_model::arrivals::Arrivals;
use keiro_units::{Bandwidth, ByteCount, Instant};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

use crate::{
    node::{Node, Outbox},
    packet::{Packet, headers},
};

/// Cross traffic of a path, from `a` to `b`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cross {
    /// Its mean rate in IP bytes: a Poisson process of packets.
    pub rate: Bandwidth,
    /// Rate of gateway `a`'s interface, at which its packets reach the link.
    pub feed: Bandwidth,
}

#[derive(Debug)]
pub(crate) struct CrossTraffic {
    arrivals: Arrivals,
    /// Start of the traffic.
    since: Instant,
    seed: u64,
    next: Option<Instant>,
    random: ChaCha12Rng,
    source: SocketAddr,
    destination: SocketAddr,
    payload: Vec<u8>,
}

/// Lengths of the packets in IP bytes, by tenths. Ours: full ones carry most bytes, acknowledgements are
/// numerous.
/// many.
const LENGTHS: [u64; 10] = [64, 64, 64, 576, 576, 1500, 1500, 1500, 1500, 1500];

impl CrossTraffic {
    pub(crate) fn new(
        cross: Cross,
        seed: u64,
        source: SocketAddr,
        destination: SocketAddr,
    ) -> Self {
        let mut others = Self {
            next: None,
            arrivals: Arrivals::new(seed, 0, Duration::MAX),
            since: Instant::ZERO,
            seed,
            random: ChaCha12Rng::seed_from_u64(seed),
            source,
            destination,
            payload: Vec::new(),
        };
        others.set_rate(Instant::ZERO, cross.rate);
        others
    }

    /// Sends at a mean of `rate` from now on.
    pub(crate) fn set_rate(&mut self, now: Instant, rate: Bandwidth) {
        let sum: u64 = LENGTHS.iter().sum();
        let mean = ByteCount::new(sum / LENGTHS.len() as u64);
        self.since = now;
        self.next = None;
        if !rate.is_zero() {
            let interval = rate.transmission_time_nearest(mean);
            self.arrivals = Arrivals::new(self.seed, 0, interval);
            self.next = self.next_arrival();
        }
    }

    fn next_arrival(&mut self) -> Option<Instant> {
        let next = self.arrivals.next()?;
        Some(self.since + (next - Instant::ZERO))
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
        self.next = self.next_arrival();
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.next
    }
}
