//! Unresponsive UDP sources: Poisson and constant rate.

use std::{net::Ipv4Addr, time::Duration};

use keiro_model::arrivals::Arrivals;
use keiro_units::{Bandwidth, ByteCount, Instant};

use super::{
    activity::Activity,
    packet::{Body, Ecn, IP_HEADER, IpPacket, UDP_HEADER, UdpHeader},
};

/// Parameters of a UDP source.
#[derive(Clone, Debug, PartialEq)]
pub struct UdpSpec {
    pub to: (Ipv4Addr, u16),
    /// Mean rate in IP bytes.
    pub rate: Bandwidth,
    /// IP bytes of every packet; at least 28, smaller values count as that.
    pub length: u16,
    /// Intervals of packets.
    pub spacing: Spacing,
    pub activity: Activity,
}

/// Intervals of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spacing {
    /// Exponential intervals from a seed.
    Poisson(u64),
    /// Equal intervals; the first packet is sent this long after the beginning.
    Constant(Duration),
}

/// Sends packets regardless of losses.
#[derive(Clone, Debug)]
pub(super) struct UdpSource {
    spec: UdpSpec,
    port: u16,
    interval: Duration,
    arrivals: Option<Arrivals>,
    /// The last instant that `arrivals` returned; only differences count.
    drawn: Instant,
    next: Option<Instant>,
    sent: u64,
}

impl UdpSource {
    pub(super) fn new(spec: UdpSpec, port: u16) -> Self {
        let length = spec.length.max(IP_HEADER + UDP_HEADER);
        let interval = spec
            .rate
            .transmission_time_nearest(ByteCount::new(u64::from(length)))
            .max(Duration::from_nanos(1));
        let mut source = Self {
            port,
            interval,
            arrivals: None,
            drawn: Instant::ZERO,
            next: None,
            sent: 0,
            spec,
        };
        if !source.spec.rate.is_zero() {
            source.begin(source.spec.activity.first_beginning());
        }
        source
    }

    pub(super) const fn sent(&self) -> u64 {
        self.sent
    }

    pub(super) const fn poll_timeout(&self) -> Option<Instant> {
        self.next
    }

    /// A packet is due.
    pub(super) fn poll_packet(&mut self, now: Instant, from: Ipv4Addr) -> Option<IpPacket> {
        let due = self.next.filter(|&at| at <= now)?;
        if !self.spec.activity.is_on(due) {
            self.begin(self.spec.activity.next_beginning(due));
            return self.poll_packet(now, from);
        }
        self.next = self.following(due);
        self.sent += 1;
        let header = UdpHeader {
            source_port: self.port,
            destination_port: self.spec.to.1,
            payload: self.spec.length.saturating_sub(IP_HEADER + UDP_HEADER),
        };
        Some(IpPacket {
            source: from,
            destination: self.spec.to.0,
            ecn: Ecn::NotCapable,
            body: Body::Udp(header),
        })
    }

    /// A period of activity begins.
    fn begin(&mut self, at: Option<Instant>) {
        let Some(at) = at else {
            self.next = None;
            return;
        };
        self.next = match self.spec.spacing {
            Spacing::Constant(phase) => Some(at + phase),
            Spacing::Poisson(seed) => {
                let interval = self.interval;
                self.arrivals
                    .get_or_insert_with(|| Arrivals::new(seed, 0, interval));
                self.following(at)
            }
        };
    }

    fn following(&mut self, due: Instant) -> Option<Instant> {
        match &mut self.arrivals {
            None => Some(due + self.interval),
            Some(arrivals) => {
                let drawn = arrivals.next()?;
                let interval = drawn - std::mem::replace(&mut self.drawn, drawn);
                Some(due + interval)
            }
        }
    }
}
