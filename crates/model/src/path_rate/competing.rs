//! Beside a flow that fills the buffer: a window of CUBIC for one flow, and tests whether such a flow is
//! still there.
//!
//! A sender that keeps the queue short is pushed away by one that does not: the other one's queue looks
//! like its own. A short withdrawal shows which it is. Our own queue becomes shorter by what was withheld,
//! divided by what we get. Where others share the line it becomes shorter by our share of that only.

use keiro_units::Instant;

use super::{
    Arrival, Feedback, PathRate, Phase, ROUND_PACKETS,
    drain::{BaseDelayIncrease, DRAIN_SPAN, HEADROOM_DRAINED},
    from_seconds, seconds,
    trial::Trial,
};

/// C of CUBIC, packets/s³ (RFC 9438 §5).
const CUBIC_C: f64 = 0.4;
/// β of CUBIC (RFC 9438 §4.6).
const CUBIC_BETA: f64 = 0.7;
/// Smallest window, packets. Ours: three acknowledgements after a loss show it (RFC 9002 §6.1.1).
const WINDOW_MIN: f64 = 4.0;
/// Time, s, between tests whether the foreign flow is still there. Ours: a test costs a quarter of the rate for a
/// round trip, less than a hundredth of the line at usual round trips.
const TEST_EVERY: f64 = 3.0;
/// The same after a test that saw none. Ours: a second one that sees none ends it soon.
const TEST_AGAIN: f64 = 1.0;
/// The first tests, of which one that sees no foreign flow is enough. Ours: the rate of radio varies, and what it
/// queues looks like a foreign flow at times.
const TESTS_FIRST: u32 = 4;
/// Time, s, between the first tests. Ours: a few round trips, so that a mistake ends within two seconds.
const TEST_FIRST: f64 = 0.5;
/// The first test comes at the latest after this time, s. Ours: as long as the first tests take.
const TEST_LATEST: f64 = 2.0;
/// A test withholds this part of the window at most. Ours: more than delays vary.
const TEST_WINDOW: f64 = 0.25;
/// A test withholds this part of the queue at most. Ours: less than empties the line.
const TEST_QUEUE: f64 = 0.7;
/// A queue shorter than this, s, cannot be tested, and is none of a foreign flow. Ours: the target queue.
const TEST_QUEUE_MIN: f64 = 0.002;
/// The same in packets. Ours: a test has to withhold one at least.
const TEST_PACKETS_MIN: f64 = 2.0;
/// Packets in flight from which on a test is made. Ours: four can be withheld of them.
const TEST_IN_FLIGHT_MIN: f64 = 16.0;
/// The line is ours alone from this share on. Ours: half between one of two flows and the only one.
const ALONE: f64 = 0.75;
/// Least plausible share. Ours: below it the queue grew by more than delays vary while packets were withheld.
const SHARE_LEAST: f64 = -0.4;
/// Greatest plausible share. Ours: the whole, and what delays vary.
const SHARE_MOST: f64 = 1.25;
/// Implausible shares from which on it is a line whose rate varies. Ours: one may be by chance.
const IMPLAUSIBLE_MAX: u32 = 2;
/// Tests in a row that find the line ours alone until that is believed. Ours: one may be by chance.
const ALONE_TIMES: u32 = 2;

/// What stands after a test is of other flows where the queue has become shorter by this, s, at least. Ours: half of
/// the target queue.
const OTHERS_SHORTER: f64 = 0.001;
/// The same in variations of delays. Ours: two of them are rarely chance.
const OTHERS_JITTERS: f64 = 2.0;
/// Time, s, for which a route that was taken to have become longer is doubted. Ours: three drains.
const OTHERS_AGAIN: f64 = 30.0;
/// Less than this part of what was withheld may be a queue of our own on a longer route. Ours: one of four equal flows
/// makes the queue shorter by as much.
const OTHERS_PART: f64 = 0.25;
/// Time, s, until a foreign flow is looked for again where there was none; it doubles with each time. Ours: as
/// [`TEST_EVERY`].
const NONE_SEEN_REST: f64 = 3.0;
/// How often it doubles. Ours: 48 s are long enough to cost nothing, and short enough for a flow that comes later.
const NONE_SEEN_MAX: u32 = 4;
/// The window is begun with that of this part of the rate that was reached without others. Ours: half, and what
/// tests withhold.
const SHARE_FIRST: f64 = 0.6;
/// With less loss of the line itself every loss is one of a full buffer. Ours.
const COMPETING_LINE_LOSS: f64 = 0.001;

/// The window of one CUBIC flow, in packets.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cubic {
    window: f64,
    /// Before the last reduction.
    before: f64,
    /// Since when it grows.
    since: Instant,
    /// The window that Reno would have.
    reno: f64,
}

impl Cubic {
    fn new(now: Instant, window: f64, before: f64) -> Self {
        let window = window.max(WINDOW_MIN);
        Self {
            window,
            before: before.max(window),
            since: now,
            reno: window,
        }
    }

    /// `round_trip`, s.
    fn on_acked(&mut self, now: Instant, packets: f64, round_trip: f64) {
        let time = now.saturating_duration_since(self.since).as_secs_f64();
        // From where it grows to what it was before the reduction.
        let low = (self.before * CUBIC_BETA).min(self.before);
        let k = ((self.before - low) / CUBIC_C).cbrt();
        let target = CUBIC_C * (time + round_trip - k).powi(3) + self.before;
        let target = target.clamp(self.window, self.window * 1.5);
        self.window += (target - self.window) / self.window * packets;
        let alpha = 3.0 * (1.0 - CUBIC_BETA) / (1.0 + CUBIC_BETA);
        self.reno += alpha * packets / self.window;
        self.window = self.window.max(self.reno);
    }

    fn on_loss(&mut self, now: Instant) {
        // Fast convergence (RFC 9438 §4.7).
        self.before = match self.window < self.before {
            true => self.window * (1.0 + CUBIC_BETA) / 2.0,
            false => self.window,
        };
        self.window = (self.window * CUBIC_BETA).max(WINDOW_MIN);
        self.reno = self.window;
        self.since = now;
    }
}

/// A test for a foreign flow: what is in flight becomes less for a round trip.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Withdrawal {
    /// In flight, bytes, and the queue, s, before.
    in_flight: f64,
    queue: f64,
    /// What may be in flight meanwhile, bytes.
    window: f64,
    low: Option<Low>,
}

/// What was withheld is so.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Low {
    at: Instant,
    /// bytes.
    withheld: f64,
    /// Shortest queue of the packets that left since, s.
    queue: f64,
}

/// What the controller knows when an acknowledgement comes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) now: Instant,
    /// When the newest acknowledged packet left.
    pub(super) sent_at: Instant,
    /// bytes.
    pub(super) packet: f64,
    /// A packet's time on the line, s.
    pub(super) packet_seconds: f64,
    pub(super) in_flight: f64,
    /// bytes/s.
    pub(super) rate: f64,
    /// s.
    pub(super) queue: f64,
    pub(super) round_trip: f64,
    /// How long what is withheld is looked at, s.
    pub(super) span: f64,
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Competes,
    Alone,
}

/// The state beside a foreign flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Competing {
    cubic: Cubic,
    began: Instant,
    reduced_at: Instant,
    test_at: Instant,
    test: Option<Withdrawal>,
    alone: u32,
    tests: u32,
    implausible: u32,
}

impl Competing {
    /// `window` now, and the one that it had and grows to at first, bytes.
    pub(super) fn new(now: Instant, packet: f64, window: f64, before: f64) -> Self {
        Self {
            cubic: Cubic::new(now, window / packet, before / packet),
            began: now,
            reduced_at: now,
            test_at: now + from_seconds(TEST_FIRST),
            test: None,
            alone: 0,
            tests: 0,
            implausible: 0,
        }
    }

    /// Tests have shown that there is a foreign flow.
    pub(super) fn is_established(&self) -> bool {
        self.tests > TESTS_FIRST
    }

    /// bytes.
    pub(super) fn window(&self, packet: f64) -> f64 {
        let window = self.cubic.window * packet;
        self.test.map_or(window, |test| test.window.min(window))
    }

    /// Packets were lost beyond what the line loses.
    pub(super) fn on_loss(&mut self, sample: &Sample) {
        if seconds(sample.now, self.reduced_at) > sample.round_trip {
            self.cubic.on_loss(sample.now);
            self.reduced_at = sample.now;
            self.test = None;
        }
    }

    /// `packets` were acknowledged while the window held others back.
    pub(super) fn on_acked(&mut self, sample: &Sample, packets: f64) -> Verdict {
        let Some(test) = &mut self.test else {
            self.cubic.on_acked(sample.now, packets, sample.round_trip);
            if sample.now >= self.test_at && self.is_testable(sample) {
                return self.begin_test(sample);
            }
            return Verdict::Competes;
        };
        let Some(low) = &mut test.low else {
            if sample.in_flight <= test.window + sample.packet {
                test.low = Some(Low {
                    at: sample.now,
                    withheld: test.in_flight - sample.in_flight,
                    queue: f64::INFINITY,
                });
            }
            return Verdict::Competes;
        };
        if sample.sent_at < low.at {
            return Verdict::Competes;
        }
        low.queue = low.queue.min(sample.queue);
        if sample.sent_at < low.at + from_seconds(sample.span) {
            return Verdict::Competes;
        }
        let shorter = test.queue - low.queue;
        let share = shorter * sample.rate / low.withheld.max(1.0);
        if !(SHARE_LEAST..=SHARE_MOST).contains(&share) {
            return self.on_implausible(sample);
        }
        self.implausible = self.implausible.saturating_sub(1);
        self.on_tested(sample, share >= ALONE)
    }

    /// There is enough in flight to withhold of, and the window is what it was to become at first.
    fn is_testable(&self, sample: &Sample) -> bool {
        sample.in_flight >= TEST_IN_FLIGHT_MIN * sample.packet
            && (self.is_established()
                || self.cubic.window >= self.cubic.before * CUBIC_BETA
                || seconds(sample.now, self.began) > TEST_LATEST)
    }

    fn begin_test(&mut self, sample: &Sample) -> Verdict {
        if sample.queue < TEST_QUEUE_MIN.max(TEST_PACKETS_MIN * sample.packet_seconds) {
            return self.on_tested(sample, true);
        }
        let most = (TEST_QUEUE * sample.queue * sample.rate).min(TEST_WINDOW * sample.in_flight);
        self.test = Some(Withdrawal {
            in_flight: sample.in_flight,
            queue: sample.queue,
            window: (sample.in_flight - most).max(2.0 * sample.packet),
            low: None,
        });
        Verdict::Competes
    }

    /// The line's rate or the foreign flow's has changed meanwhile. Where that is so again and again it is a line
    /// whose rate varies, and what queues there is of its users alone.
    fn on_implausible(&mut self, sample: &Sample) -> Verdict {
        self.test = None;
        self.test_at = sample.now + from_seconds(TEST_FIRST);
        self.implausible += 1;
        match self.implausible >= IMPLAUSIBLE_MAX {
            true => Verdict::Alone,
            false => Verdict::Competes,
        }
    }

    fn on_tested(&mut self, sample: &Sample, is_alone: bool) -> Verdict {
        self.test = None;
        self.alone = if is_alone { self.alone + 1 } else { 0 };
        self.tests = self.tests.saturating_add(1);
        let next = match is_alone {
            _ if !self.is_established() => TEST_FIRST,
            true => TEST_AGAIN,
            false => TEST_EVERY,
        };
        self.test_at = sample.now + from_seconds(next);
        let times = if self.is_established() {
            ALONE_TIMES
        } else {
            1
        };
        match self.alone >= times {
            true => Verdict::Alone,
            false => Verdict::Competes,
        }
    }

    pub(super) fn check_invariants(&self) {
        let Cubic { window, before, .. } = self.cubic;
        assert!(window.is_finite() && window >= WINDOW_MIN, "a window");
        assert!(before.is_finite(), "a window before");
        assert!(self.alone <= ALONE_TIMES, "tests are counted");
    }
}

impl PathRate {
    /// After a test a queue stands: whether it is of other flows, and no longer route.
    /// `shorter`, s: what was withheld has done that, of `expected`, s, where the queue is all ours.
    pub(super) fn is_of_others(&self, now: Instant, shorter: f64, expected: f64) -> bool {
        if now < self.compete_from {
            return false;
        }
        let noise = OTHERS_SHORTER + OTHERS_JITTERS * self.jitter + self.packet_seconds();
        shorter > noise.max(OTHERS_PART * expected) || self.was_lengthened(now)
    }

    pub(super) fn was_lengthened(&self, now: Instant) -> bool {
        let is_recent = |it: BaseDelayIncrease| seconds(now, it.at) < OTHERS_AGAIN;
        self.lengthened.is_some_and(is_recent)
    }

    pub(super) fn begin_to_compete(&mut self, now: Instant, queue: f64) {
        self.trial = Trial::default();
        let (mut clear_rate, mut queue) = (self.clear_rate.max(self.rate), queue);
        let recent = |it: &BaseDelayIncrease| seconds(now, it.at) < OTHERS_AGAIN;
        if let Some(before) = self.lengthened.take().filter(recent) {
            // What was taken for the route is a queue.
            clear_rate = clear_rate.max(before.clear_rate);
            queue += before.by;
            self.bases = before.bases;
        }
        let share = clear_rate * SHARE_FIRST;
        let fair = share * (self.loop_seconds() + queue);
        let window = self.in_flight.max((self.in_flight * 2.0).min(fair));
        self.phase = Phase::Competing(Competing::new(now, self.packet, window, fair));
        self.begin_round(now);
    }

    pub(super) fn compete(&mut self, feedback: &Feedback, arrival: Arrival) {
        let now = feedback.now;
        let sample = Sample {
            now,
            sent_at: arrival.sent_at,
            packet: self.packet,
            packet_seconds: self.line_packet_seconds(),
            in_flight: self.in_flight,
            rate: self.rate,
            queue: self.queue,
            round_trip: arrival.round_trip.as_secs_f64(),
            span: DRAIN_SPAN.max(ROUND_PACKETS * self.packet_seconds()),
        };
        let Phase::Competing(competing) = &mut self.phase else {
            return;
        };
        for base in &mut self.bases {
            base.keep(now);
        }
        let lost = feedback.lost_packets > feedback.spurious_packets;
        if lost && (self.loss.line() < COMPETING_LINE_LOSS || self.loss.is_excessive()) {
            competing.on_loss(&sample);
        }
        if !self.round.is_blocked {
            return;
        }
        if competing.on_acked(&sample, feedback.acked_packets as f64) == Verdict::Alone {
            let was_established = competing.is_established();
            self.on_alone(now, was_established);
            self.phase = Phase::Steady;
            self.headroom = self.target() * HEADROOM_DRAINED;
            self.lowest_queue = f64::INFINITY;
            self.lowest_since = now;
            self.stuck_since = None;
            self.begin_round(now);
        }
    }

    fn on_alone(&mut self, now: Instant, was_established: bool) {
        if was_established {
            self.none_seen = 0;
            return;
        }
        let rest = NONE_SEEN_REST * f64::from(1 << self.none_seen.min(NONE_SEEN_MAX));
        self.compete_from = now + from_seconds(rest);
        self.none_seen = self.none_seen.saturating_add(1);
    }
}
