//! One direction of a path in virtual time: packets over an emulated link, acknowledgements back.
//!
//! It has what the controller depends on and nothing else: a pacer, packets in flight, acknowledgements after
//! sixteen packets or a millisecond, losses three packets later.

use std::{collections::VecDeque, time::Duration};

use keiro_link::{Arrival, Departure, Link, LinkConfig, Ticket, Trace};
use keiro_model::path_rate::{self, Feedback, PathRate};
use keiro_units::{Bandwidth, ByteCount, Instant};

use crate::foreign::Cubic;

pub(crate) const PACKET: u64 = 1500;
/// What a sender leaves before the pacer after it was late.
const CREDIT: Duration = Duration::from_millis(1);
/// Nothing was acknowledged for so long.
const TIMEOUT: Duration = Duration::from_millis(300);
const ACK_EVERY: usize = 16;
const ACK_DELAY: Duration = Duration::from_millis(1);
const TRAIN_EVERY: Duration = Duration::from_millis(100);
/// Trains say what the line carries when it has carried that for so long.
const TRAINS_TAKE: Duration = Duration::from_millis(600);

/// A change of what is sent or of the line.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    Rate(Bandwidth),
    Delay(Duration),
    Link(LinkConfig),
    Bulk(bool),
    /// A foreign bulk connection.
    Foreign(bool),
}

/// What is simulated.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) link: LinkConfig,
    /// Of the way back.
    pub(crate) back: Duration,
    /// Acknowledgements are this far apart at least.
    pub(crate) ack_spacing: Duration,
    pub(crate) trains: bool,
    /// A packet of so many bytes every so often, sent first.
    pub(crate) thin: Option<(u64, Duration)>,
    /// What exceeds this rate by more than this is dropped before the link.
    pub(crate) policer: Option<(Bandwidth, ByteCount)>,
    /// Replayed instead of the link's rate.
    pub(crate) trace: Option<Trace>,
    /// What trains report in turn, for a second each, instead of the link's rate.
    pub(crate) train_rates: Vec<Bandwidth>,
    /// The gateway is not scheduled for so long, so often.
    pub(crate) asleep: Option<(Duration, Duration)>,
    /// The application has no more than this in the path.
    pub(crate) stream_window: Option<u64>,
    pub(crate) seed: u64,
}

/// A packet that has arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delivered {
    pub(crate) at: Instant,
    pub(crate) bytes: u64,
    /// What it waited for others in the link.
    pub(crate) queue: Duration,
    pub(crate) is_thin: bool,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Instant,
    bytes: u64,
    is_thin: bool,
    is_resolved: bool,
}

/// Whose a packet in the link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Path,
    Foreign,
}

#[derive(Debug)]
struct Ack {
    at: Instant,
    numbers: Vec<u64>,
    received_at: Instant,
}

/// The simulation of one setting.
#[derive(Debug)]
pub(crate) struct Line {
    setting: Setting,
    pub(crate) controller: PathRate,
    pub(crate) now: Instant,
    link: Link,
    config: LinkConfig,
    /// When the policer's bucket is full.
    bucket_full_at: Instant,
    in_link: VecDeque<(Ticket, Of, u64)>,
    foreign: Cubic,
    /// When packets of the foreign connection left the link.
    pub(crate) foreign_delivered: Vec<Instant>,
    bulk: bool,
    thin_at: Instant,
    thin_waits: u64,
    pacer: Instant,
    sent: VecDeque<Sent>,
    first: u64,
    pub(crate) in_flight: u64,
    largest: u64,
    arrived: Vec<u64>,
    newest_at: Instant,
    ack_due: Option<Instant>,
    last_ack: Instant,
    acks: VecDeque<Ack>,
    trains_at: Instant,
    same_since: Instant,
    pub(crate) delivered: Vec<Delivered>,
    pub(crate) packets_sent: u64,
    pub(crate) packets_lost: u64,
}

impl Line {
    pub(crate) fn new(setting: &Setting) -> Self {
        let now = Instant::from_nanos(1_000_000_000);
        let mut controller = PathRate::new(now, None, ByteCount::new(PACKET));
        controller.on_round_trip(setting.link.delay + setting.back);
        let mut link = Link::new(setting.link, setting.seed);
        if let Some(trace) = &setting.trace {
            link.replay(Instant::ZERO, Some(trace.clone()));
        }
        Self {
            controller,
            now,
            link,
            config: setting.link,
            bucket_full_at: now,
            in_link: VecDeque::new(),
            foreign: Cubic::new(),
            foreign_delivered: Vec::new(),
            bulk: false,
            thin_at: now,
            thin_waits: 0,
            pacer: now,
            sent: VecDeque::new(),
            first: 0,
            in_flight: 0,
            largest: 0,
            arrived: Vec::new(),
            newest_at: now,
            ack_due: None,
            last_ack: now,
            acks: VecDeque::new(),
            trains_at: now,
            same_since: now,
            delivered: Vec::new(),
            packets_sent: 0,
            packets_lost: 0,
            setting: setting.clone(),
        }
    }

    pub(crate) fn apply(&mut self, change: Change) {
        let mut config = self.config;
        match change {
            Change::Bulk(bulk) => {
                self.bulk = bulk;
                return;
            }
            Change::Foreign(is_on) => {
                self.foreign = Cubic::new();
                self.foreign.is_on = is_on;
                self.in_link.retain(|(_, of, _)| *of == Of::Path);
                return;
            }
            Change::Rate(rate) => config.rate = Some(rate),
            Change::Delay(delay) => config.delay = delay,
            Change::Link(link) => config = link,
        }
        self.config = config;
        let _ = self.link.apply(self.now, config);
        self.same_since = self.now;
    }

    pub(crate) fn run_for(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            self.send();
            let next = self.next().min(until);
            self.now = self.now.max(next);
            self.step();
            if self.now >= until {
                return;
            }
        }
    }

    fn next(&self) -> Instant {
        let mut next = self.thin_tick();
        if self.waits() && self.has_room() {
            next = next.min(self.awake_from(self.pacer));
        }
        let ack_at = self.acks.front().map(|ack| self.awake_from(ack.at));
        let others = [
            self.link.poll_timeout(),
            self.ack_due,
            self.foreign.poll_timeout(),
            self.timeout_at().map(|at| self.awake_from(at)),
            ack_at,
            self.setting.trains.then_some(self.trains_at),
        ];
        others.into_iter().flatten().fold(next, Instant::min)
    }

    /// When the gateway is scheduled next, `at` or later.
    fn awake_from(&self, at: Instant) -> Instant {
        let Some((time, every)) = self.setting.asleep else {
            return at;
        };
        let every = every.as_nanos() as u64;
        let since = Duration::from_nanos(at.max(self.now).as_nanos() % every);
        at.max(self.now) + time.saturating_sub(since)
    }

    fn is_awake(&self) -> bool {
        self.awake_from(self.now) == self.now
    }

    fn thin_tick(&self) -> Instant {
        self.setting.thin.map_or(Instant::MAX, |_| self.thin_at)
    }

    fn waits(&self) -> bool {
        let window = self.setting.stream_window;
        let is_open = window.is_none_or(|window| self.in_flight < window);
        self.bulk && is_open || self.thin_waits > 0
    }

    fn has_room(&self) -> bool {
        self.in_flight < self.controller.window().get()
    }

    fn step(&mut self) {
        while let Some((_, every)) = self.setting.thin.filter(|_| self.thin_at <= self.now) {
            self.thin_waits += 1;
            self.thin_at += every;
        }
        self.foreign.on_timeout(self.now);
        while let Some(departure) = self.link.poll_departure(self.now) {
            self.on_departure(&departure);
        }
        if self.ack_due.is_some_and(|due| due <= self.now) {
            self.send_ack();
        }
        while self.is_awake() && self.acks.front().is_some_and(|ack| ack.at <= self.now) {
            let ack = self.acks.pop_front().expect("there is one");
            self.on_ack(&ack);
        }
        if self.is_awake() && self.timeout_at().is_some_and(|at| at <= self.now) {
            self.on_probe_timeout();
        }
        if self.setting.trains && self.trains_at <= self.now {
            self.trains_at = self.now + TRAIN_EVERY;
            let known_for = self.now - self.same_since;
            if known_for > TRAINS_TAKE + self.setting.back {
                let second = self.now.as_nanos() / 1_000_000_000;
                let rates = &self.setting.train_rates;
                let rate = match rates.is_empty() {
                    true => self.config.rate.expect("a rate"),
                    false => rates[second as usize % rates.len()],
                };
                self.controller.on_trains(self.now, rate);
            }
        }
        self.controller.check_invariants();
    }

    fn send(&mut self) {
        while let Some(number) = self.foreign.poll_send(self.now) {
            if let Arrival::Accepted(ticket) = self.link.arrive(self.now, ByteCount::new(PACKET)) {
                self.in_link.push_back((ticket, Of::Foreign, number));
            }
        }
        if !self.is_awake() {
            return;
        }
        while self.waits() {
            if !self.has_room() || self.pacer > self.now {
                self.controller.on_blocked(self.now);
                return;
            }
            let is_thin = self.thin_waits > 0;
            let thin = self.setting.thin.map_or(0, |(bytes, _)| bytes);
            let bytes = if is_thin { thin } else { PACKET };
            self.thin_waits -= u64::from(is_thin);
            self.controller.on_sent(self.now);
            let number = self.first + self.sent.len() as u64;
            self.sent.push_back(Sent {
                at: self.now,
                bytes,
                is_thin,
                is_resolved: false,
            });
            self.in_flight += bytes;
            self.packets_sent += 1;
            let time = self
                .controller
                .pacing_rate()
                .transmission_time_ceil(ByteCount::new(bytes));
            self.pacer = self.pacer.max(self.now - CREDIT) + time;
            if self.is_policed(bytes) {
                continue;
            }
            if let Arrival::Accepted(ticket) = self.link.arrive(self.now, ByteCount::new(bytes)) {
                self.in_link.push_back((ticket, Of::Path, number));
            }
        }
        self.controller.on_idle(self.now);
    }

    fn is_policed(&mut self, bytes: u64) -> bool {
        let Some((rate, bucket)) = self.setting.policer else {
            return false;
        };
        let full_at =
            self.bucket_full_at.max(self.now) + rate.transmission_time_ceil(ByteCount::new(bytes));
        if full_at > self.now + rate.transmission_time_ceil(bucket) {
            return true;
        }
        self.bucket_full_at = full_at;
        false
    }

    fn on_departure(&mut self, departure: &Departure) {
        let Departure {
            ticket, at, waited, ..
        } = *departure;
        while self
            .in_link
            .front()
            .is_some_and(|(first, _, _)| *first < ticket)
        {
            self.in_link.pop_front();
        }
        let first = self.in_link.front();
        if first.is_none_or(|(first, _, _)| *first != ticket) {
            return;
        }
        let Some((_, of, number)) = self.in_link.pop_front() else {
            return;
        };
        if of == Of::Foreign {
            self.foreign_delivered.push(at);
            self.foreign.on_departure(at, self.setting.back, number);
            return;
        }
        let sent = self.sent[(number - self.first) as usize];
        self.delivered.push(Delivered {
            at,
            bytes: sent.bytes,
            queue: waited,
            is_thin: sent.is_thin,
        });
        self.newest_at = at;
        self.arrived.push(number);
        let due = match self.arrived.len() >= ACK_EVERY {
            true => at,
            false => self.ack_due.unwrap_or(at + ACK_DELAY),
        };
        self.ack_due = Some(due.max(self.last_ack + self.setting.ack_spacing));
        if self.ack_due.is_some_and(|due| due <= self.now) {
            self.send_ack();
        }
    }

    /// When what was sent is lost, as nothing of it was acknowledged and nothing is on the way.
    fn timeout_at(&self) -> Option<Instant> {
        let newest = self.sent.iter().rfind(|sent| !sent.is_resolved)?;
        let is_on_the_way = self.in_link.iter().any(|(_, of, _)| *of == Of::Path);
        let is_awaited = is_on_the_way || !self.arrived.is_empty() || !self.acks.is_empty();
        (!is_awaited).then_some(newest.at + TIMEOUT)
    }

    fn on_probe_timeout(&mut self) {
        let lost = self.sent.iter().filter(|sent| !sent.is_resolved).count() as u64;
        self.first += self.sent.len() as u64;
        self.sent.clear();
        self.in_flight = 0;
        self.packets_lost += lost;
        self.controller.on_feedback(&Feedback {
            now: self.now,
            acked: ByteCount::ZERO,
            acked_packets: 0,
            spurious_packets: 0,
            lost_packets: lost,
            in_flight: ByteCount::ZERO,
            arrival: None,
        });
    }

    fn send_ack(&mut self) {
        self.ack_due = None;
        self.last_ack = self.now;
        self.acks.push_back(Ack {
            at: self.now + self.setting.back,
            numbers: std::mem::take(&mut self.arrived),
            received_at: self.newest_at,
        });
    }

    fn on_ack(&mut self, ack: &Ack) {
        let (mut bytes, mut newest) = (0, None);
        for number in &ack.numbers {
            let Some(index) = number.checked_sub(self.first) else {
                continue;
            };
            let sent = &mut self.sent[index as usize];
            if !sent.is_resolved {
                sent.is_resolved = true;
                bytes += sent.bytes;
            }
            newest = newest.max(Some(*number));
        }
        let Some(newest) = newest else { return };
        self.in_flight -= bytes;
        self.largest = self.largest.max(newest);
        let Sent {
            at: sent_at,
            bytes: len,
            ..
        } = self.sent[(newest - self.first) as usize];
        let mut lost = 0;
        while self.first + 3 < self.largest {
            let sent = self.sent.pop_front().expect("it was sent");
            self.first += 1;
            if !sent.is_resolved {
                lost += 1;
                self.in_flight -= sent.bytes;
            }
        }
        self.packets_lost += lost;
        self.controller.on_feedback(&Feedback {
            now: self.now,
            acked: ByteCount::new(bytes),
            acked_packets: ack.numbers.len() as u64,
            spurious_packets: 0,
            lost_packets: lost,
            in_flight: ByteCount::new(self.in_flight),
            arrival: Some(path_rate::Arrival {
                sent_at,
                bytes: ByteCount::new(len),
                received_us: ack.received_at.as_nanos() / 1000,
                round_trip: self.now - sent_at,
            }),
        });
    }

    /// What arrived in the `time` before now.
    pub(crate) fn goodput(&self, time: Duration) -> Bandwidth {
        let since = self.now - time;
        let newest = self.delivered.iter().rev();
        let newest = newest.take_while(|packet| packet.at > since);
        ByteCount::new(newest.map(|packet| packet.bytes).sum()).rate_over_floor(time)
    }

    /// A quantile of what packets of the last `time` waited.
    pub(crate) fn queue(&self, time: Duration, quantile: f64, thin: bool) -> Duration {
        let since = self.now - time;
        let newest = self.delivered.iter().rev();
        let newest = newest.take_while(|packet| packet.at > since);
        let newest = newest.filter(|packet| !thin || packet.is_thin);
        let mut queues: Vec<Duration> = newest.map(|packet| packet.queue).collect();
        queues.sort_unstable();
        let place = (queues.len() as f64 * quantile) as usize;
        queues
            .get(place.min(queues.len().saturating_sub(1)))
            .copied()
            .unwrap_or_default()
    }
}
