//! What one path may be sent at, found without knowing the line.
//!
//! The sender holds back what the line would only queue: its own queues know priorities and deadlines,
//! the line's buffer does not. The controller needs the receiver's stamps alone:
//!
//! - **Delivery rate.** What arrives while a queue stands is what the bottleneck carries, as exactly as
//!   the stamps are; the rate follows it in both directions.
//! - **Bytes in flight** are bounded by the rate times the loop's time without queue and a target queue
//!   q*. So a wrong rate cannot fill the buffer, and after a fall of the line nothing leaves before the
//!   queue is gone.
//! - **Growth in time of queue.** While no queue stands, a round adds q* of queue to what arrived in the
//!   round before. Every further round without a queue doubles that, up to twice what arrived. At the
//!   start it is twice at once.
//! - **Packet trains** are a hint: half of what they say at once, the rest when that has arrived.
//! - **Loss** counts where it grows with the rate: what the line loses at any rate is learnt and made up
//!   for.
//! - **Drains.** A queue that never empties hides in the base delay. Every ten seconds of it, the sender
//!   lets it go for a moment. What does not go then is no queue: the route has become longer.
//! - **Competition.** A flow that keeps the buffer full, as bulk TCP does, would have all of the line. Where a test
//!   finds one, the window is that of one CUBIC flow until tests find none.
//!
//! What is sent by choice of the application says nothing but that at least that much is carried.

mod arrivals;
mod competing;
mod delay;
mod drain;
mod hint;
mod interface;
mod loss;
mod round;
#[cfg(test)]
mod tests;
mod trial;

use std::time::Duration;

use keiro_units::{Bandwidth, ByteCount, Instant};

pub use self::interface::{Arrival, Feedback, State};
use self::{
    arrivals::{Arrivals, Arrived},
    competing::Competing,
    delay::{BaseDelay, LoopTime},
    drain::{BaseDelayIncrease, DRAIN_FIRST, DRAIN_LOOP, DRAIN_TIME, TEST_LOOP},
    hint::Hint,
    loss::{LINE_MAX, LossMeter},
    round::Round,
    trial::{CHECK_FLOOR_FIRST, Trial},
};

/// Packets per round trip at which a path begins (RFC 6928).
const START_PACKETS: f64 = 10.0;
/// The most that these are, bytes/s. Ours: the slowest lines that are worth a gateway.
const START_MAX: f64 = 1e6 / 8.0;
/// The slowest rate, bytes/s. Ours: a packet in a second and a half.
const RATE_MIN: f64 = 1000.0;
/// The fastest rate, bytes/s. Ours: ten times the fastest Ethernet.
const RATE_MAX: f64 = 8e12 / 8.0;
/// The round trip that is assumed before the first one (RFC 9002 §6.2.2), s.
const LOOP_INITIAL: f64 = 0.333;
/// The target queue, s. Ours: timers are late by parts of a millisecond.
const TARGET: f64 = 0.002;
/// Packets of the target queue beside that. Ours: with less than a packet the line pauses between two of them.
const TARGET_PACKETS: f64 = 1.0;
/// A queue that is never shorter than this, s, stands. Ours: a quarter of the target.
const STANDING: f64 = 0.0005;
/// Packets of such a queue beside that. Ours: half of the target.
const STANDING_PACKETS: f64 = 0.5;
/// Packets that may be in flight whatever the rate. Ours: one under way while the other is acknowledged.
const WINDOW_PACKETS: f64 = 2.0;
/// Packets from this part of the largest on are long: short ones are sooner through a slow line.
const LONG: f64 = 0.75;
/// The delivery rate is taken over this time at least, s. Ours.
const WINDOW: f64 = 0.05;
/// The delivery rate is taken over this time at most, s. Ours.
const WINDOW_MAX: f64 = 0.3;
/// The delivery rate is taken over this part of the loop within these bounds. Ours.
const WINDOW_OF_LOOP: f64 = 0.5;
/// A round is a loop and this time, s, and has [`ROUND_PACKETS`] packets. Ours.
const ROUND_SPAN: f64 = 0.02;
/// Packets of a round at least. Ours.
const ROUND_PACKETS: f64 = 4.0;
/// Seconds per second by which the queue grows where the line is slower than what is sent. Ours: a queue that
/// stays may be of bursts, of which acknowledgements show the last packets only.
const QUEUE_GROWTH: f64 = 0.01;
/// The same in variations of delays, where that is more. Ours: three of them are no chance.
const QUEUE_GROWTH_JITTERS: f64 = 3.0;
/// Memory of how delays vary (RFC 3550 §6.4.1).
const JITTER_GAIN: f64 = 1.0 / 16.0;
/// Of packets that left further apart, s, the queue itself has changed. Ours.
const JITTER_APART: f64 = 0.03;
/// The largest variation that counts, s. Ours: as long as [`JITTER_APART`].
const JITTER_MAX: f64 = 0.03;
/// What was sent has arrived, from this part of it on.
const FOLLOWED: f64 = 0.95;
/// The start is over where less than this part of it has, beside a queue. Ours: half does where twice the
/// line's rate is sent; delays of radio vary by more than a queue.
const STARTUP_FOLLOWED: f64 = 0.8;
/// Fewer packets that were sent do not show that: delays that vary by themselves hold some back too.
const STARTUP_PACKETS: f64 = 14.0;
/// The window of the delivery rate has so many times as many at the start.
const STARTUP_WINDOW: f64 = 1.6;
/// What leaves is this much faster than what arrives, so that a queue shows what more there is.
const PUSH: f64 = 1.05;
/// A round that adds this part of the rate or more shows by itself whether the line carries it.
const GROWTH_MAX: f64 = 1.0;
/// The same where only loss shows what is too much. Ours: a policer's bucket lets more pass for a while.
const GROWTH_CAUTIOUS: f64 = 0.125;
/// The part of what arrived that is sent after a loss of too much speed. Ours.
const HOLD: f64 = 0.97;
/// Rounds for which it is at least. Ours.
const HOLD_ROUNDS: f64 = 16.0;
/// Time for which it is at least the first time, s. Ours: each further time in a row it is twice as long.
const HOLD_TIME: f64 = 1.0;
/// The longest of these times, s. Ours.
const HOLD_TIME_MAX: f64 = 4.0;
/// Times that the rate is lowered in a row before loss may be the line's own. Ours: what a policer's bucket let
/// pass was more than it will.
const HOLD_TIMES: u32 = 3;
/// What is added in a round after that, as a part of the rate. Ours.
const GROWTH_AFTER_HOLD: f64 = 0.02;
/// Beside a foreign flow: how much faster than acknowledgements come packets may leave. Ours.
const COMPETING_PACE: f64 = 1.25;
/// Nothing to send for longer than this, s, is a pause of the application.
const PAUSE: f64 = 0.002;
/// Time, s, without confirmation after which a rate is begun at half. Ours: as long as a base delay
/// holds.
const CONFIRMED_FOR: f64 = 10.0;
/// What arrives in a round counts at so many times the rate at which it was sent at most: a radio line, or a late
/// processor, brings at once what was not carried so fast.
const BURST_MAX: f64 = 2.0;
/// Time, s, for which nothing arrives though packets are on the way. Ours: radio pauses, and what arrives then at once
/// says nothing about the rate.
const GAP: f64 = 0.1;
/// The same as a time of so many packets, where that is longer. Ours.
const GAP_PACKETS: f64 = 8.0;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Startup,
    Steady,
    Hold {
        until: Instant,
        /// What was sent and what arrived when too much was lost, bytes/s.
        sent: f64,
        arrived: f64,
        /// How often that was in a row.
        times: u32,
    },
    Drain {
        /// When what is in flight had become less.
        low_at: Option<Instant>,
        /// Shortest queue of the packets that left since, s.
        least: f64,
        /// Whether it is a queue or a longer way.
        is_test: bool,
        /// The queue before, s, and the part of what was in flight that is withheld.
        before: f64,
        withheld: f64,
    },
    /// A foreign flow keeps the buffer full.
    Competing(Competing),
}

/// What a path is planned with until something shows what it carries. Ours: with less, applications would stay away from a
/// path for the reason that they have never used it, and what it carries would never be found. Where it carries less, that
/// shows within seconds of use.
pub const RATE_ASSUMED: Bandwidth = Bandwidth::from_mbit_per_second(20);

/// The controller of one path's rate in one direction.
#[derive(Clone, Debug)]
pub struct PathRate {
    /// bytes/s.
    limit: Option<f64>,
    /// Largest packet, bytes.
    packet: f64,
    /// bytes/s.
    rate: f64,
    phase: Phase,
    /// What a round adds, s of queue.
    headroom: f64,
    arrivals: Arrivals,
    /// Of short packets and of long ones.
    bases: [BaseDelay; 2],
    loop_time: LoopTime,
    loss: LossMeter,
    hint: Hint,
    round: Round,
    in_flight: f64,
    queue: f64,
    /// Something waited that the controller held back.
    blocked_at: Option<Instant>,
    /// Nothing waited since; `None`: something does.
    idle_since: Option<Instant>,
    /// Packets that left before did so when the application chose.
    paused_until: Instant,
    /// When what is sent was last shown to be carried.
    confirmed_at: Option<Instant>,
    /// Shortest queue since then, s.
    lowest_queue: f64,
    lowest_since: Instant,
    drain_every: f64,
    stuck_since: Option<Instant>,
    /// Loss shows what is too much, and delay does not.
    is_cautious: bool,
    /// How long the next hold lasts at least, s.
    hold_time: f64,
    /// The shortest queue where none stands, s, and how much it varies from one packet to the next.
    floor: f64,
    jitter: f64,
    /// The mean queue of late, s.
    mean_queue: f64,
    trial: Trial,
    /// When a floor that a trial has raised is checked by a drain, and the time from one check to the next, s.
    check_floor_at: Option<Instant>,
    check_floor_every: f64,
    /// Queues of packets sent before are those of a gap.
    gap_until: Instant,
    /// When the newest packet that arrived was sent.
    newest_sent_at: Option<Instant>,
    /// The mean rate of late while no queue far too long stood, bytes/s.
    clear_rate: f64,
    clear_at: Instant,
    /// No foreign flow is looked for before this, as there was none, and how often that was.
    compete_from: Instant,
    none_seen: u32,
    /// A longer route was taken for the cause of a queue.
    lengthened: Option<BaseDelayIncrease>,
}

impl PathRate {
    /// `limit`: never faster. `packet`: the largest one.
    pub fn new(now: Instant, limit: Option<Bandwidth>, packet: ByteCount) -> Self {
        let packet = packet.get().max(1) as f64;
        let mut new = Self {
            limit: None,
            packet,
            rate: (START_PACKETS * packet / LOOP_INITIAL).min(START_MAX),
            phase: Phase::Startup,
            headroom: 0.0,
            arrivals: Arrivals::default(),
            bases: [BaseDelay::default(); 2],
            loop_time: LoopTime::default(),
            loss: LossMeter::default(),
            hint: Hint::None,
            round: Round::beginning(now),
            in_flight: 0.0,
            queue: 0.0,
            blocked_at: None,
            idle_since: Some(now),
            paused_until: now,
            confirmed_at: None,
            lowest_queue: f64::INFINITY,
            lowest_since: now,
            drain_every: DRAIN_FIRST,
            stuck_since: None,
            is_cautious: false,
            hold_time: HOLD_TIME,
            floor: 0.0,
            jitter: 0.0,
            mean_queue: 0.0,
            trial: Trial::default(),
            check_floor_at: None,
            check_floor_every: CHECK_FLOOR_FIRST,
            gap_until: now,
            newest_sent_at: None,
            clear_rate: 0.0,
            clear_at: now,
            compete_from: now,
            none_seen: 0,
            lengthened: None,
        };
        new.set_limit(limit);
        new
    }

    /// Never faster than this from now on.
    pub fn set_limit(&mut self, limit: Option<Bandwidth>) {
        self.limit = limit.map(bytes_per_second);
        self.rate = self.bounded(self.rate);
    }

    /// The largest packet has changed.
    pub fn set_packet(&mut self, packet: ByteCount) {
        self.packet = packet.get().max(1) as f64;
    }

    /// The path was validated after `round_trip`: nothing has been sent yet.
    pub fn on_round_trip(&mut self, round_trip: Duration) {
        if self.loop_time.get().is_none() && self.phase == Phase::Startup {
            let round_trip = round_trip.as_secs_f64().max(0.001);
            self.rate = self.bounded((START_PACKETS * self.packet / round_trip).min(START_MAX));
        }
    }

    /// What the path carries, as far as is known.
    pub fn rate(&self) -> Bandwidth {
        bandwidth(self.rate)
    }

    /// At which packets leave.
    pub fn pacing_rate(&self) -> Bandwidth {
        let rate = match self.phase {
            Phase::Startup | Phase::Hold { .. } => self.rate,
            // Acknowledgements clock what leaves; pacing spreads it.
            Phase::Competing(_) => {
                self.window_bytes() / (self.loop_seconds() + self.queue) * COMPETING_PACE
            }
            _ if self.is_cautious => self.rate,
            Phase::Steady | Phase::Drain { .. } => self.rate * PUSH,
        };
        bandwidth(self.bounded(rate))
    }

    /// IP bytes that may be neither acknowledged nor lost.
    pub fn window(&self) -> ByteCount {
        ByteCount::new(self.window_bytes().ceil() as u64)
    }

    /// How long the newest packets queued.
    pub fn queue(&self) -> Duration {
        Duration::try_from_secs_f64(self.queue.max(0.0)).unwrap_or(Duration::MAX)
    }

    /// How long packets may queue.
    pub fn target_queue(&self) -> Duration {
        Duration::try_from_secs_f64(self.target()).unwrap_or(Duration::MAX)
    }

    /// No queue and no loss has shown yet what the path carries: [`Self::rate`] is the least of it.
    pub fn is_least(&self) -> bool {
        matches!(self.phase, Phase::Startup)
    }

    pub fn state(&self, now: Instant) -> State {
        let is_blocked = self.blocked_at.is_some_and(|at| {
            now.saturating_duration_since(at).as_secs_f64() <= self.loop_seconds() + WINDOW
        });
        match self.phase {
            _ if !is_blocked => State::LimitedByApplication,
            Phase::Drain { .. } => State::Draining,
            _ if self.in_flight > self.window_bytes() * 1.1 + 2.0 * self.packet => State::Draining,
            _ if self.limit.is_some_and(|limit| self.rate >= limit) => {
                State::LimitedByConfiguration
            }
            Phase::Hold { .. } => State::LimitedByLoss,
            Phase::Startup => State::Startup,
            Phase::Competing(_) => State::Competing,
            Phase::Steady if self.headroom > 1.5 * self.target() => State::Growing,
            Phase::Steady => State::Steady,
        }
    }

    /// A packet leaves.
    pub fn on_sent(&mut self, now: Instant) {
        let Some(since) = self.idle_since.take() else {
            return;
        };
        if seconds(now, since) > PAUSE {
            self.paused_until = now;
            self.begin_round(now);
        }
    }

    /// Something waits that the controller does not let go yet.
    pub fn on_blocked(&mut self, now: Instant) {
        let is_old = |at: Option<Instant>| at.is_some_and(|at| seconds(now, at) > CONFIRMED_FOR);
        if is_old(self.confirmed_at) && is_old(self.blocked_at) {
            self.rate = self.bounded(self.rate * 0.5);
            self.trial = Trial::default();
            self.headroom = self.round_seconds();
            self.confirmed_at = Some(now);
            if self.phase != Phase::Startup {
                self.phase = Phase::Steady;
            }
        }
        self.blocked_at = Some(now);
        self.round.is_blocked = true;
        self.idle_since = None;
    }

    /// Nothing waits.
    pub fn on_idle(&mut self, now: Instant) {
        self.idle_since.get_or_insert(now);
    }

    /// The path is back after an outage: it is the same line more often than not.
    pub fn on_return(&mut self, now: Instant) {
        self.arrivals.forget();
        self.trial = Trial::default();
        self.bases = [BaseDelay::default(); 2];
        self.loop_time.forget();
        self.in_flight = 0.0;
        self.stuck_since = None;
        self.lowest_queue = f64::INFINITY;
        self.lowest_since = now;
        if self.phase != Phase::Startup {
            self.phase = Phase::Steady;
        }
        self.begin_round(now);
    }

    /// Takes an acknowledgement.
    pub fn on_feedback(&mut self, feedback: &Feedback) {
        let now = feedback.now;
        self.in_flight = feedback.in_flight.get() as f64;
        self.arrivals.on_acked(feedback.acked.get() as f64);
        let Feedback {
            acked_packets,
            lost_packets,
            spurious_packets,
            ..
        } = *feedback;
        self.loss
            .on_packets(acked_packets, lost_packets, spurious_packets);
        let Some(arrival) = feedback.arrival else {
            return;
        };
        self.on_arrival(now, arrival);
        if arrival.sent_at < self.gap_until {
            return;
        }
        match self.phase {
            Phase::Drain { .. } => self.drain(now, arrival.sent_at),
            Phase::Competing(_) => self.compete(feedback, arrival),
            _ => self.follow(now),
        }
        if arrival.sent_at >= self.round.began {
            let mark = self.arrivals.mark(arrival.sent_at);
            let first = *self.round.first.get_or_insert(mark);
            if arrival.sent_at >= self.round.began + from_seconds(self.round_span()) {
                self.end_round(now, mark.rate_since(first), mark.sent_rate_since(first));
            }
        }
        self.look_for_drain(now);
    }

    fn on_arrival(&mut self, now: Instant, arrival: Arrival) {
        let at = arrival.received_us as f64 / 1e6;
        let sent = arrival.sent_at.as_nanos() as f64 / 1e9;
        let is_long = arrival.bytes.get() as f64 >= self.packet * LONG;
        let before = self.queue;
        let far = self.far();
        let base = &mut self.bases[usize::from(is_long)];
        let shortest = base.get();
        self.queue = base.on_sample(now, at - sent);
        self.mean_queue += (self.queue - self.mean_queue) * JITTER_GAIN;
        let shorter = shortest.map_or(0.0, |shortest| shortest - (at - sent));
        if shorter > far && now >= self.compete_from && self.was_lengthened(now) {
            // It was no route.
            self.begin_to_compete(now, shorter);
        }
        let left_apart = self
            .newest_sent_at
            .map_or(0.0, |newest| seconds(arrival.sent_at, newest));
        if left_apart < JITTER_APART {
            let change = (self.queue - before).abs() - self.packet_seconds();
            let change = change.clamp(0.0, JITTER_MAX);
            self.jitter += (change - self.jitter) * JITTER_GAIN;
        }
        let round_trip = arrival.round_trip.as_secs_f64();
        let packet_seconds = self.packet_seconds();
        self.loop_time
            .on_sample(now, round_trip, self.queue - self.floor, packet_seconds);
        let gap = GAP.max(GAP_PACKETS * self.packet / self.rate);
        self.newest_sent_at = self.newest_sent_at.max(Some(arrival.sent_at));
        if self
            .arrivals
            .since_last(at)
            .is_some_and(|since| since - left_apart > gap)
            && arrival.sent_at > self.paused_until
        {
            self.arrivals.forget();
            self.gap_until = now;
            self.begin_round(now);
        }
        let arrived = Arrived {
            sent_at: arrival.sent_at,
            at,
            queue: self.queue,
        };
        self.arrivals.on_arrival(arrived, self.rate_window());
        self.round.on_queue(self.queue);
        self.lowest_queue = self.lowest_queue.min(self.queue);
    }

    /// While a queue stands, what arrives is what the bottleneck carries.
    fn follow(&mut self, now: Instant) {
        let standing = self.standing_from();
        let span = self.rate_window() * 0.8;
        let Some(busy) = self.arrivals.busy(self.paused_until, span, standing) else {
            return;
        };
        let rate = busy.rate / (1.0 - self.loss.line());
        let packets = self.rate * busy.span / self.packet;
        if self.phase == Phase::Startup
            && (rate >= self.rate * STARTUP_FOLLOWED || packets < STARTUP_PACKETS)
        {
            return;
        }
        let is_conforming = self.in_flight <= self.window_bytes() + self.packet;
        if rate < self.rate && (self.is_on_trial() || self.is_stuck(now, 0.0)) {
            return;
        }
        let growth = (busy.span * QUEUE_GROWTH).max(self.jitter * QUEUE_GROWTH_JITTERS);
        if rate < self.rate && busy.growth < growth && is_conforming {
            return;
        }
        self.confirmed_at = Some(now);
        self.headroom = self.target();
        if rate > self.rate && matches!(self.phase, Phase::Hold { .. }) {
            return;
        }
        self.rate = self.bounded(rate);
        self.is_cautious = false;
        if let Hint::First(hint) = self.hint {
            self.hint = Hint::Refuted {
                rate: hint,
                at: now,
            };
        }
        if let Phase::Startup = self.phase {
            self.phase = Phase::Steady;
        }
    }

    /// A round trip of packets is over: the rate grows by what none of them queued for.
    /// `arrived` and `sent`: what arrived over the time in which it did, and in which it was sent, bytes/s.
    fn end_round(&mut self, now: Instant, arrived: Option<f64>, sent: f64) {
        let is_excessive = self.loss.is_excessive() && self.round.is_blocked;
        let is_of_rate = is_excessive && arrived.is_some_and(|arrived| self.is_of_rate(arrived));
        let at_ease = match self.phase {
            Phase::Hold { .. } => !is_of_rate,
            Phase::Startup => !is_excessive,
            // What is lost is of the full buffer.
            Phase::Competing(_) => false,
            // Where delay shows what is too much, what is lost before is the line's own.
            _ => !self.round.is_blocked || !is_excessive && !self.is_cautious,
        };
        self.loss.end_round(at_ease);
        if let Some(arrived) = arrived.filter(|_| self.round.is_blocked) {
            match is_of_rate {
                _ if matches!(self.phase, Phase::Competing(_)) => {
                    self.rate = self.bounded(arrived / (1.0 - self.loss.line()));
                    self.confirmed_at = Some(now);
                }
                true => self.hold(now, arrived),
                false => {
                    let arrived = arrived.min(sent * BURST_MAX) / (1.0 - self.loss.line());
                    self.follow_trial(now, arrived);
                    self.grow(now, arrived);
                }
            }
        }
        self.begin_round(now);
    }

    /// Too much is lost: because of the rate, as arrivals did not become fewer when less was sent, or
    /// nothing is known of that. Otherwise the line loses as much at any rate.
    fn is_of_rate(&self, arrived: f64) -> bool {
        let Phase::Hold {
            sent,
            arrived: before,
            times,
            ..
        } = self.phase
        else {
            return true;
        };
        let sent_ratio = self.rate / sent;
        times < HOLD_TIMES
            || self.loss.share() > LINE_MAX
            || arrived / before > (1.0 + sent_ratio) / 2.0
    }

    fn begin_round(&mut self, now: Instant) {
        self.round = Round::beginning(now);
    }

    fn hold(&mut self, now: Instant, arrived: f64) {
        let sent = self.rate;
        self.trial = Trial::default();
        let times = match self.phase {
            Phase::Hold { times, .. } => times.saturating_add(1),
            _ => 1,
        };
        // The line's own loss is not made up for: so it shows how much of it is.
        self.rate = self.bounded(arrived * HOLD);
        if let Hint::First(rate) = self.hint {
            self.hint = Hint::Refuted { rate, at: now };
        }
        let hold = (HOLD_ROUNDS * self.round_seconds()).max(self.hold_time);
        if !matches!(self.phase, Phase::Hold { .. }) {
            self.hold_time = match self.is_cautious {
                true => (self.hold_time * 2.0).min(HOLD_TIME_MAX),
                false => HOLD_TIME,
            };
        }
        self.is_cautious = true;
        self.confirmed_at = Some(now);
        self.phase = Phase::Hold {
            until: now + from_seconds(hold),
            sent,
            arrived,
            times,
        };
    }

    /// `arrived`, bytes/s, in a round in which the controller held packets back.
    fn grow(&mut self, now: Instant, arrived: f64) {
        if arrived >= self.rate * 0.8 {
            self.confirmed_at = Some(now);
        }
        if self.phase == Phase::Startup && arrived >= self.rate * FOLLOWED {
            // It was twice as much as in the round before, and all of it arrived.
            self.floor = self.floor.max(self.round.queue);
        }
        if self.round.queue > self.standing_from() {
            return;
        }
        match self.phase {
            Phase::Drain { .. } | Phase::Competing(_) => return,
            Phase::Hold { until, .. } if now < until => return,
            Phase::Hold { .. } => {
                self.phase = Phase::Steady;
                self.headroom = GROWTH_AFTER_HOLD * self.round_seconds();
            }
            Phase::Startup => self.headroom = self.round_seconds(),
            Phase::Steady => {
                self.headroom = (self.headroom * 2.0).min(self.round_seconds());
            }
        }
        let growth_max = match self.is_cautious {
            true => GROWTH_CAUTIOUS,
            false => GROWTH_MAX,
        };
        let growth = (self.headroom / self.round_seconds()).min(growth_max);
        let grown = arrived * (1.0 + growth);
        self.rate = self.bounded(self.rate.max(grown));
        self.follow_hint(now, arrived);
    }

    fn window_bytes(&self) -> f64 {
        let loop_time = self.loop_seconds();
        let time = match self.phase {
            Phase::Drain { is_test: true, .. } => loop_time * TEST_LOOP,
            // What stands, and as much again as should: what hides in the base delay.
            Phase::Drain { .. } => {
                let queue = self.target() * 2.0 + DRAIN_TIME;
                (loop_time * DRAIN_LOOP).max(loop_time - queue)
            }
            Phase::Competing(competing) => return competing.window(self.packet),
            _ if self.is_on_trial() => loop_time + self.target() + self.mean_queue,
            _ => loop_time + self.target(),
        };
        (self.rate * time).max(WINDOW_PACKETS * self.packet)
    }

    fn loop_seconds(&self) -> f64 {
        self.loop_time.get().unwrap_or(LOOP_INITIAL)
    }

    fn packet_seconds(&self) -> f64 {
        self.packet / self.rate
    }

    fn target(&self) -> f64 {
        TARGET + TARGET_PACKETS * self.packet_seconds() + self.floor + self.jitter
    }

    fn standing_from(&self) -> f64 {
        STANDING + STANDING_PACKETS * self.packet_seconds() + self.floor
    }

    fn rate_window(&self) -> f64 {
        let window = (self.loop_seconds() * WINDOW_OF_LOOP).clamp(WINDOW, WINDOW_MAX);
        let packets = match self.phase {
            Phase::Startup => STARTUP_PACKETS * STARTUP_WINDOW,
            _ => 2.0 * ROUND_PACKETS,
        };
        window.max(packets * self.packet_seconds())
    }

    fn round_span(&self) -> f64 {
        ROUND_SPAN.max(ROUND_PACKETS * self.packet_seconds())
    }

    fn round_seconds(&self) -> f64 {
        self.loop_seconds() + self.round_span()
    }

    fn bounded(&self, rate: f64) -> f64 {
        let limit = self.limit.unwrap_or(RATE_MAX).clamp(RATE_MIN, RATE_MAX);
        rate.max(RATE_MIN).min(limit)
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub fn check_invariants(&self) {
        assert!(self.rate.is_finite() && self.rate > 0.0, "a rate");
        let limit = self.limit.map(|limit| limit.max(RATE_MIN));
        assert!(
            limit.is_none_or(|limit| self.rate <= limit),
            "never above the configured rate"
        );
        assert!(self.window_bytes() >= self.packet, "a packet may leave");
        self.arrivals.check_invariants();
        if let Phase::Competing(competing) = &self.phase {
            competing.check_invariants();
        }
    }
}

fn seconds(now: Instant, since: Instant) -> f64 {
    now.saturating_duration_since(since).as_secs_f64()
}

fn from_seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

fn bytes_per_second(rate: Bandwidth) -> f64 {
    rate.as_bits_per_second() as f64 / 8.0
}

fn bandwidth(bytes_per_second: f64) -> Bandwidth {
    Bandwidth::from_bits_per_second((bytes_per_second * 8.0) as u64)
}
