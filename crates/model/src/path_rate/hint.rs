//! Packet trains as a hint: half of what they say at once, the rest when that has arrived.

use keiro_units::{Bandwidth, Instant};

use super::{PathRate, Phase, bytes_per_second, seconds};

/// A hint is worth a jump from this multiple of the rate on. Ours: a few rounds of growth come as far.
const HINT_WORTH: f64 = 1.25;
/// The part of a hint that is sent first. Ours: what is left of a line that others half use.
const HINT_FIRST: f64 = 0.5;
/// It is not believed at once: a round is at most so many times what arrived in the one before. Ours: trains of
/// a line that serves in bursts say a hundred times its rate, and half of that fills a buffer in a round.
const HINT_STEP: f64 = 4.0;
/// Longer loops, s, leave no rounds for that. Ours: they are of satellites whose rate is steady.
const HINT_STEP_LOOP: f64 = 0.25;
/// The part of a hint that confirms it by arriving. Ours: four fifths of [`HINT_FIRST`].
const HINT_CONFIRMED: f64 = 0.4;
/// The part of a confirmed hint that is sent. Ours: growth, which sees a queue, finds the rest.
const HINT_REST: f64 = 0.95;
/// Time, s, for which a hint that was wrong is not believed again. Ours: as long as a base delay holds.
const HINT_REFUTED_FOR: f64 = 10.0;
/// A hint that differs by this part is a new one. Ours: as [`HINT_WORTH`], several times what trains are off.
const HINT_NEWS: f64 = 0.25;

/// A capacity that trains report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Hint {
    None,
    /// bytes/s.
    New(f64),
    /// Its first half is being sent.
    First(f64),
    Confirmed(f64),
    Refuted {
        rate: f64,
        at: Instant,
    },
}

impl PathRate {
    /// Trains have measured the bottleneck.
    pub fn on_trains(&mut self, now: Instant, capacity: Bandwidth) {
        let rate = bytes_per_second(capacity);
        self.hint = match self.hint {
            Hint::First(_) => return,
            Hint::Confirmed(known) if !differs(known, rate) => return,
            // A line that serves in bursts makes trains say any rate above its own.
            Hint::Refuted { rate: known, at }
                if rate >= known * (1.0 - HINT_NEWS) && seconds(now, at) < HINT_REFUTED_FOR =>
            {
                return;
            }
            _ => Hint::New(rate),
        };
    }

    pub(super) fn follow_hint(&mut self, now: Instant, arrived: f64) {
        match self.hint {
            // Trains shorter than a policer's bucket report the line behind it.
            Hint::New(_) if self.is_cautious => {}
            Hint::New(hint) if hint > self.rate * HINT_WORTH => {
                let step = match self.loop_seconds() <= HINT_STEP_LOOP {
                    true => arrived * HINT_STEP,
                    false => f64::INFINITY,
                };
                self.rate = self.bounded(self.rate.max(step.min(hint * HINT_FIRST)));
                if step >= hint * HINT_FIRST {
                    self.hint = Hint::First(hint);
                }
            }
            Hint::New(hint) => {
                self.hint = Hint::Confirmed(hint);
                if self.phase == Phase::Startup && hint * HINT_WORTH >= self.rate {
                    // Twice as much would be more than the line carries.
                    self.rate = self.bounded(self.rate.min(hint * HINT_REST));
                    self.phase = Phase::Steady;
                    self.headroom = self.target();
                }
            }
            Hint::First(hint) if arrived >= hint * HINT_CONFIRMED => {
                self.rate = self.bounded(self.rate.max(hint * HINT_REST).min(hint));
                self.hint = Hint::Confirmed(hint);
                self.phase = Phase::Steady;
                self.headroom = self.target();
            }
            Hint::First(hint) => {
                self.hint = Hint::Refuted {
                    rate: hint,
                    at: now,
                }
            }
            _ => {}
        }
    }
}

fn differs(known: f64, rate: f64) -> bool {
    (rate / known.max(1.0) - 1.0).abs() > HINT_NEWS
}
