//! Queues that do not go: drains that find one in the base delay, and tests of what it is.

use keiro_units::Instant;

use super::{
    BaseDelay, JITTER_MAX, PathRate, Phase, ROUND_PACKETS, STANDING, STANDING_PACKETS, TARGET,
    TARGET_PACKETS, from_seconds, seconds, trial::Trial,
};

/// Time, s, that a queue has stood when a drain is due. Ours, as BBR's interval of its probes of the round trip.
const DRAIN_EVERY: f64 = 10.0;
/// The same for the first drain. Ours: what the start has queued is in the base delay until then.
pub(super) const DRAIN_FIRST: f64 = 2.0;
/// The part of the loop that stays in flight at least during a drain. Ours: the line pauses for a quarter of a loop
/// at most.
pub(super) const DRAIN_LOOP: f64 = 0.75;
/// The same during a test of whose a queue is. Ours: a queue of others has to become noticeably shorter.
pub(super) const TEST_LOOP: f64 = 0.5;
/// What a drain lets go beside the queue, s. Ours: the target queue, so that stamps that are late do not hide the rest.
pub(super) const DRAIN_TIME: f64 = 0.002;
/// How long a drain lasts, s. Ours: as the span of a round, within which a packet comes that has not waited.
pub(super) const DRAIN_SPAN: f64 = 0.02;
/// What is added to the rate after a drain, as a part of the target queue. Ours: the rate is known, so that little is
/// enough to see a queue again.
pub(super) const HEADROOM_DRAINED: f64 = 0.25;
/// Targets beyond which a queue is far too long. Ours: the window allows one, and packets that leave together half of
/// another.
const FAR_TARGETS: f64 = 2.0;
/// Rounds after which a queue that is far too long is none of ours. Ours: the window empties ours in one.
const STUCK_ROUNDS: f64 = 2.0;
/// Time, s, after which it is so at the earliest. Ours: radio holds packets back for as long.
const STUCK_TIME: f64 = 0.1;
/// Time constant, s, with which the rate that was reached without others rises. Ours: shorter than flows that come.
const CLEAR_RATE_RISE: f64 = 3.0;
/// The same for its fall. Ours: longer than tests take to find a foreign flow.
const CLEAR_RATE_FALL: f64 = 20.0;
/// Packets at this part of that rate are no reason for a long queue. Ours: one of two equal flows has half.
const CLEAR_RATE_PART: f64 = 0.5;
/// Packets in flight from which on a test is made. Ours: [`TEST_LOOP`] withholds two of them.
const TEST_PACKETS_MIN: f64 = 4.0;
/// The part of the former rate below which a test is made with fewer. Ours: three halvings, and others have nearly all.
const STARVED: f64 = 0.125;

/// The route was taken to have become longer.
#[derive(Clone, Copy, Debug)]
pub(super) struct BaseDelayIncrease {
    pub(super) at: Instant,
    /// What was known before, and by how much it was lengthened, s.
    pub(super) clear_rate: f64,
    pub(super) bases: [BaseDelay; 2],
    pub(super) by: f64,
}

impl PathRate {
    pub(super) fn look_for_drain(&mut self, now: Instant) {
        let is_drained = self.lowest_queue <= self.standing_from();
        if is_drained {
            self.lowest_queue = f64::INFINITY;
            self.lowest_since = now;
        }
        if matches!(
            self.phase,
            Phase::Drain { .. } | Phase::Startup | Phase::Competing(_)
        ) {
            return;
        }
        let is_conforming = self.in_flight <= self.window_bytes() + self.packet;
        let far = self.far();
        let standing = self.arrivals.standing(self.rate_window());
        if standing.is_none_or(|queue| queue <= far) {
            self.stuck_since = None;
            self.remember_clear_rate(now);
        } else if is_conforming {
            self.stuck_since.get_or_insert(now);
        }
        let is_testable = self.in_flight >= TEST_PACKETS_MIN * self.packet
            || self.rate < self.clear_rate * STARVED;
        let is_test = is_conforming && is_testable && self.is_stuck(now, STUCK_TIME);
        let is_due = seconds(now, self.lowest_since) > self.drain_every
            || self.stuck_since.is_none()
                && self.phase == Phase::Steady
                && self.is_floor_doubtful(now);
        if is_test || is_due {
            self.stuck_since = None;
            self.trial = Trial::default();
            self.phase = Phase::Drain {
                low_at: None,
                least: f64::INFINITY,
                is_test,
                before: self.queue,
                withheld: 1.0
                    - (self.rate * self.loop_seconds() * TEST_LOOP / self.in_flight).min(1.0),
            };
        }
    }

    pub(super) fn drain(&mut self, now: Instant, sent_at: Instant) {
        let window = self.window_bytes();
        let Phase::Drain {
            low_at,
            least,
            is_test,
            before,
            withheld,
        } = &mut self.phase
        else {
            return;
        };
        let Some(low_at) = *low_at else {
            if self.in_flight <= window + self.packet {
                *low_at = Some(now);
            }
            return;
        };
        if sent_at < low_at {
            return;
        }
        *least = least.min(self.queue);
        let (least, before, withheld, is_test) = (*least, *before, *withheld, *is_test);
        let span = DRAIN_SPAN.max(ROUND_PACKETS * self.packet / self.rate);
        if sent_at < low_at + from_seconds(span) {
            return;
        }
        if !is_test {
            let own = STANDING + STANDING_PACKETS * self.packet_seconds();
            let least = (least - own).clamp(0.0, JITTER_MAX);
            let before = self.floor;
            self.floor = least.midpoint(self.floor.min(least));
            self.on_floor_checked(now, before);
        }
        self.drain_every = DRAIN_EVERY;
        if is_test
            && least > self.far()
            && self.is_of_others(
                now,
                before - least,
                withheld * (self.loop_seconds() + before),
            )
        {
            self.begin_to_compete(now, least);
            return;
        }
        if is_test && least > self.far() {
            self.lengthened = Some(BaseDelayIncrease {
                at: now,
                clear_rate: self.clear_rate,
                bases: self.bases,
                by: least,
            });
            for base in &mut self.bases {
                base.lengthen(now, least);
            }
            self.loop_time.forget();
            self.arrivals.forget();
        }
        self.phase = Phase::Steady;
        // There is no queue because it was let go.
        self.headroom = self.target() * HEADROOM_DRAINED;
        self.lowest_queue = f64::INFINITY;
        self.lowest_since = now;
        self.begin_round(now);
    }

    pub(super) fn remember_clear_rate(&mut self, now: Instant) {
        let time = match self.rate > self.clear_rate {
            true => CLEAR_RATE_RISE,
            false => CLEAR_RATE_FALL,
        };
        let age = seconds(now, self.clear_at) / time;
        self.clear_rate += (self.rate - self.clear_rate) * (1.0 - (-age).exp());
        self.clear_at = now;
    }

    /// A queue far too long has not become shorter for some rounds and `time`, s.
    pub(super) fn is_stuck(&self, now: Instant, time: f64) -> bool {
        let stuck = STUCK_ROUNDS * self.round_seconds() + time;
        self.stuck_since
            .is_some_and(|since| seconds(now, since) > stuck)
    }

    /// A queue that is far too long, s.
    pub(super) fn far(&self) -> f64 {
        let packets = TARGET_PACKETS * self.line_packet_seconds();
        FAR_TARGETS * (TARGET + packets + self.floor + self.jitter)
    }

    /// Where the rate has fallen because of a queue, packets are not why that is long.
    pub(super) fn line_packet_seconds(&self) -> f64 {
        self.packet / self.rate.max(self.clear_rate * CLEAR_RATE_PART)
    }
}
