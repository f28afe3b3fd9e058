//! Trials of a higher rate: whether a queue that stands is one of the bottleneck.
//!
//! Delays of radio and of shared media vary whatever is sent, and look like a queue that never empties. Only what
//! arrives distinguishes them: where a round at a higher rate arrives at that rate, nothing queued for the bottleneck.

use keiro_units::Instant;

use super::{JITTER_MAX, PathRate, Phase, Round, from_seconds};

/// By how much faster a round is sent. BBR's probe of bandwidth.
const FASTER: f64 = 0.25;
/// Which part of that has to arrive. Ours: of a line that is full none does, and delays of radio vary by the rest.
const ARRIVED_PART: f64 = 0.6;
/// What arrives below this part of what arrived before is no chance. Ours: as much less as [`FASTER`] is more.
const MUCH_LESS: f64 = 0.75;
/// Rounds with a queue until the first trial. Ours: in one, the queue may be what the round before has left.
const ROUNDS_FIRST: u32 = 2;
/// Rounds until the next trial at most. Ours: a trial that fails has queued a quarter of a round.
const ROUNDS_MAX: u32 = 64;
/// Queues of a steady line vary by less in a round, s, other than by growing or shrinking. Ours: the target queue and
/// what timers are late.
const VARIATION_MIN: f64 = 0.003;
/// The same in packets beside that. Ours: packets leave together, and wait for one another.
const VARIATION_PACKETS: f64 = 2.0;
/// Packets of a round of which the shortest queue says something. Ours: three times those of the shortest round.
const PACKETS_MIN: f64 = 12.0;
/// The part of the variation by which a queue grows or shrinks at most. Ours: a queue that only grows varies by all of
/// it.
const TREND_MAX: f64 = 0.5;

/// Time, s, after which a drain checks a floor that was raised; it doubles each time that confirms it. Ours: a line
/// whose rate has risen passes a trial too, and waits for no longer.
pub(super) const CHECK_FLOOR_FIRST: f64 = 1.0;
/// The longest of these times, s. Ours: drains come as often in any case.
const CHECK_FLOOR_MAX: f64 = 10.0;
/// The part of a floor that confirms it. Ours: what a queue hides is gone in a drain, so that far less is left.
const CONFIRMED_PART: f64 = 0.5;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Trial {
    /// It begins after so many rounds with a queue, and the one after that later. The shortest of these queues, s.
    Waiting {
        rounds: u32,
        interval: u32,
        least: f64,
    },
    /// What arrived in the round before, bytes/s, and the shortest queue since the wait began, s.
    Running {
        before: f64,
        interval: u32,
        least: f64,
    },
}

impl Default for Trial {
    fn default() -> Self {
        Self::Waiting {
            rounds: ROUNDS_FIRST,
            interval: ROUNDS_FIRST,
            least: f64::INFINITY,
        }
    }
}

impl PathRate {
    pub(super) fn is_on_trial(&self) -> bool {
        matches!(self.trial, Trial::Running { .. })
    }

    /// A round is over in which `arrived`, bytes/s, came and the controller held packets back.
    pub(super) fn follow_trial(&mut self, now: Instant, arrived: f64) {
        if self.phase != Phase::Steady || self.is_cautious {
            self.trial = Trial::default();
            return;
        }
        let queue = self.round.queue;
        match self.trial {
            Trial::Running { before, least, .. }
                if arrived >= before * (1.0 + FASTER * ARRIVED_PART) =>
            {
                self.floor = self.floor.max(least.min(queue).min(JITTER_MAX));
                let check_at = now + from_seconds(self.check_floor_every);
                self.check_floor_at.get_or_insert(check_at);
                self.headroom = self.target();
                self.begin_trial(arrived, ROUNDS_FIRST, queue);
            }
            Trial::Running {
                before, interval, ..
            } => {
                // The line itself may have become slower.
                let rate = match arrived < before * MUCH_LESS {
                    true => arrived,
                    false => before.max(arrived),
                };
                self.rate = self.bounded(rate);
                let interval = (interval * 2).min(ROUNDS_MAX);
                self.trial = Trial::Waiting {
                    rounds: interval,
                    interval,
                    least: f64::INFINITY,
                };
            }
            Trial::Waiting { .. } if !self.has_varying_queue() => {}
            Trial::Waiting {
                rounds: 0,
                interval,
                least,
            } => self.begin_trial(arrived, interval, least.min(queue)),
            Trial::Waiting {
                rounds,
                interval,
                least,
            } => {
                self.trial = Trial::Waiting {
                    rounds: rounds - 1,
                    interval,
                    least: least.min(queue),
                };
            }
        }
    }

    pub(super) fn is_floor_doubtful(&self, now: Instant) -> bool {
        self.check_floor_at.is_some_and(|at| at <= now)
    }

    /// A drain has shown a floor of `floor`, s, where there was `before`.
    pub(super) fn on_floor_checked(&mut self, now: Instant, before: f64) {
        if self.check_floor_at.take().is_none() {
            return;
        }
        let is_confirmed = self.floor >= before * CONFIRMED_PART;
        self.check_floor_every = match is_confirmed {
            true => (self.check_floor_every * 2.0).min(CHECK_FLOOR_MAX),
            false => CHECK_FLOOR_FIRST,
        };
        if is_confirmed {
            self.check_floor_at = Some(now + from_seconds(self.check_floor_every));
        }
    }

    fn has_varying_queue(&self) -> bool {
        let least = VARIATION_MIN + VARIATION_PACKETS * self.packet_seconds();
        let Round {
            queue,
            longest,
            oldest,
            newest,
            ..
        } = self.round;
        let variation = longest - queue;
        let trend = (newest - oldest).abs();
        let stands = queue > self.standing_from() && queue <= self.far();
        let is_known = self.round_seconds() >= PACKETS_MIN * self.packet_seconds();
        is_known && variation > least && trend < variation * TREND_MAX && stands
    }

    fn begin_trial(&mut self, arrived: f64, interval: u32, least: f64) {
        self.rate = self.bounded(self.rate.max(arrived * (1.0 + FASTER)));
        self.trial = Trial::Running {
            before: arrived,
            interval,
            least,
        };
    }
}
