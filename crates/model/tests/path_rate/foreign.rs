//! A foreign sender at the same bottleneck: one bulk TCP connection with CUBIC (RFC 9438), without pacing.

use std::{collections::VecDeque, time::Duration};

use keiro_units::Instant;

/// C and β of RFC 9438 §5.
const C: f64 = 0.4;
const BETA: f64 = 0.7;

#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Instant,
    is_resolved: bool,
}

#[derive(Debug)]
pub(crate) struct Cubic {
    /// Packets.
    window: f64,
    threshold: f64,
    /// The window before the last reduction, and since when it grows again.
    before: f64,
    since: Option<Instant>,
    /// What Reno would have.
    reno: f64,
    round_trip: f64,
    sent: VecDeque<Sent>,
    first: u64,
    largest: u64,
    in_flight: u64,
    /// Losses of packets before this one are of the last reduction.
    recovered_from: u64,
    acks: VecDeque<(Instant, u64)>,
    pub(crate) is_on: bool,
}

impl Cubic {
    pub(crate) fn new() -> Self {
        Self {
            window: 10.0,
            threshold: f64::INFINITY,
            before: 0.0,
            since: None,
            reno: 0.0,
            round_trip: 0.1,
            sent: VecDeque::new(),
            first: 0,
            largest: 0,
            in_flight: 0,
            recovered_from: 0,
            acks: VecDeque::new(),
            is_on: false,
        }
    }

    /// The number of a packet that leaves now, if one does.
    pub(crate) fn poll_send(&mut self, now: Instant) -> Option<u64> {
        if !self.is_on || self.in_flight as f64 >= self.window {
            return None;
        }
        self.in_flight += 1;
        self.sent.push_back(Sent {
            at: now,
            is_resolved: false,
        });
        Some(self.first + self.sent.len() as u64 - 1)
    }

    pub(crate) fn on_departure(&mut self, at: Instant, back: Duration, number: u64) {
        self.acks.push_back((at + back, number));
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.acks.front().map(|(at, _)| *at)
    }

    pub(crate) fn on_timeout(&mut self, now: Instant) {
        while self.acks.front().is_some_and(|(at, _)| *at <= now) {
            let (_, number) = self.acks.pop_front().expect("there is one");
            self.on_ack(now, number);
        }
        // All that was sent is lost, and no acknowledgement will come.
        if self.is_on
            && self.acks.is_empty()
            && self
                .sent
                .iter()
                .all(|sent| now > sent.at + Duration::from_secs(3))
        {
            self.first += self.sent.len() as u64;
            self.sent.clear();
            self.in_flight = 0;
        }
    }

    fn on_ack(&mut self, now: Instant, number: u64) {
        let Some(index) = number.checked_sub(self.first) else {
            return;
        };
        let sent = &mut self.sent[index as usize];
        sent.is_resolved = true;
        self.round_trip = (now - sent.at).as_secs_f64();
        self.in_flight -= 1;
        self.largest = self.largest.max(number);
        let mut is_lost = false;
        while self.first + 3 < self.largest {
            let sent = self.sent.pop_front().expect("it was sent");
            if !sent.is_resolved {
                self.in_flight -= 1;
                is_lost |= self.first >= self.recovered_from;
            }
            self.first += 1;
        }
        match is_lost {
            true => self.reduce(),
            false => self.grow(now),
        }
    }

    fn reduce(&mut self) {
        self.recovered_from = self.first + self.sent.len() as u64;
        // Fast convergence.
        self.before = match self.window < self.before {
            true => self.window * (1.0 + BETA) / 2.0,
            false => self.window,
        };
        self.window = (self.window * BETA).max(2.0);
        self.threshold = self.window;
        self.reno = self.window;
        self.since = None;
    }

    fn grow(&mut self, now: Instant) {
        if self.window < self.threshold {
            self.window += 1.0;
            return;
        }
        let since = *self.since.get_or_insert(now);
        let time = (now - since).as_secs_f64();
        let k = ((self.before - self.before * BETA).max(0.0) / C).cbrt();
        let target = C * (time + self.round_trip - k).powi(3) + self.before;
        let target = target.clamp(self.window, self.window * 1.5);
        self.window += (target - self.window) / self.window;
        self.reno += 3.0 * (1.0 - BETA) / (1.0 + BETA) / self.window;
        self.window = self.window.max(self.reno);
    }
}
