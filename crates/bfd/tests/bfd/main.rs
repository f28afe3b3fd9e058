//! Sessions as a neighbour sees them: packets go in and come out.

mod encoder;
mod link;
mod reception;
mod timers;

use std::{net::IpAddr, time::Duration};

use keiro_bfd::{Config, Datagram, Discard, Event, SessionId, Sessions};
use keiro_units::Instant;

use encoder::Raw;

const ID: SessionId = SessionId(7);
const INTERFACE: u32 = 3;

fn neighbour() -> IpAddr {
    "192.0.2.2".parse().unwrap()
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn at(millis: u64) -> Instant {
    Instant::ZERO + ms(millis)
}

/// A router with one session, 50 ms and 3.
struct Router {
    sessions: Sessions,
    now: Instant,
}

impl Router {
    fn new() -> Self {
        Self::with(Config {
            interval: ms(50),
            multiplier: 3,
        })
    }

    fn with(config: Config) -> Self {
        let mut sessions = Sessions::new([1; 32]);
        sessions.add(at(0), ID, neighbour(), config).unwrap();
        Self {
            sessions,
            now: at(0),
        }
    }

    fn receive(&mut self, packet: &Raw) -> Result<SessionId, Discard> {
        self.receive_octets(&packet.octets())
    }

    fn receive_octets(&mut self, payload: &[u8]) -> Result<SessionId, Discard> {
        self.receive_by(INTERFACE, payload)
    }

    fn receive_by(&mut self, interface: u32, payload: &[u8]) -> Result<SessionId, Discard> {
        let datagram = Datagram {
            from: neighbour(),
            ttl: Some(255),
            interface: Some(interface),
            payload,
        };
        let result = self.sessions.handle_datagram(self.now, &datagram);
        self.sessions.check_invariants();
        result
    }

    /// What it sends now.
    fn sent(&mut self) -> Vec<Raw> {
        self.sessions.handle_timeout(self.now);
        let all = std::iter::from_fn(|| self.sessions.poll_transmit(self.now));
        let all: Vec<Raw> = all.map(|it| Raw::read(&it.payload)).collect();
        self.sessions.check_invariants();
        all
    }

    /// Moves on to a time, and gives what it sends until then, with the times.
    fn run(&mut self, until: Instant) -> Vec<(Instant, Raw)> {
        let mut all = Vec::new();
        loop {
            let now = self.now;
            all.extend(self.sent().into_iter().map(|packet| (now, packet)));
            match self.sessions.poll_timeout() {
                Some(next) if next <= until => self.now = self.now.max(next),
                _ => break,
            }
        }
        self.now = until;
        all
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.sessions.poll_event()).collect()
    }

    fn status(&self) -> keiro_bfd::Status {
        self.sessions.status(ID).unwrap()
    }

    /// Its own discriminator.
    fn number(&self) -> u32 {
        self.status().local_discriminator
    }

    /// Brings the session up with a neighbour that sends and receives every `interval_us`.
    fn bring_up(&mut self, interval_us: u32) -> Raw {
        let mut packet = Raw {
            min_tx: interval_us,
            min_rx: interval_us,
            your: self.number(),
            state: encoder::INIT,
            ..Raw::down()
        };
        self.receive(&packet).unwrap();
        self.sent();
        packet.state = encoder::UP;
        packet.last = 1;
        self.receive(&packet).unwrap();
        self.sent();
        packet.last = 0;
        self.events();
        // Nothing that changes follows sooner.
        self.now += ms(10);
        packet
    }
}
