//! Keiro's own law: it asks what the trouble is before it acts.
//!
//! **The receiver overflows.** I grows, and S with it as far as the bandwidth goes, so that as many
//! bytes are carried in fewer aggregates, `[aggregation §3.2.3]`; only at the longest I is S halved.
//! Overflowing again soon after a step back doubles the time until the next, so that a receiver at
//! its limit is not pushed over it again and again.
//!
//! **Copies are lost, and no queue goes with it.** The line is bad. N is what leaves the loss wanted:
//! with p the loss of a copy and r that of a copy behind a lost one, N copies leave p·r^(N−1). Both
//! are measured; r = p where losses are independent, and near 1 where copies are lost together, which
//! no further copy helps. A copy is taken if it reaches the target or at least halves the loss.
//! Fewer copies are taken only if they would do for the worst line that what was seen allows, and
//! for half the target.
//!
//! **Copies are lost, more than the line loses, and a queue goes with it** (queueing delay, or
//! copies that arrive spread). It is congestion. Copies that the line does not need go first: they
//! carry nothing new. If that is not enough, M is held a little below what arrived, and let up step
//! by step when it has been calm.
//!
//! **More loss with more copies, and no queue to be seen.** Congestion in a small buffer, or
//! chance: N goes back. If the loss goes back as well it was congestion, else the copies return.
//!
//! Loss in a period in which the receiver overflows says nothing of the path.

use std::time::Duration;

use super::{
    Cause, Decision, Fates, Held, Law, Limits, Observation, Parameters, TooNarrow,
    evidence::{Line, Wish, loss_at_most, residual},
    fits,
};
use crate::{Bandwidth, ByteCount, Instant};

/// Keiro's law.
#[derive(Clone, Debug)]
pub struct Adaptive {
    held: Held,
    line: Line,
    /// With more N: is it worse?
    trial: Trial,
    /// M may be no more, because of congestion.
    cap: Option<Bandwidth>,
    receiver: Patience,
    network: Patience,
    /// The copies' fates of the last periods.
    recent: [Fates; RECENT],
}

/// Whether loss grows with N.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trial {
    None,
    /// N was raised from here, where at most so much was lost.
    Raised {
        since: Instant,
        from: u8,
        loss_at_most: f64,
        seen: Fates,
    },
    /// The loss grew, so N is as before for a while.
    Back {
        since: Instant,
        to: u8,
        loss: f64,
        seen: Fates,
    },
}

/// When the next step back may be tried.
#[derive(Clone, Copy, Debug)]
struct Patience {
    wait: Duration,
    calm_since: Option<Instant>,
    tried_at: Option<Instant>,
}

/// Queueing delay from which a queue is one. Ours: the longest burst, our own.
const QUEUE_MIN: Duration = super::BURST_MAX;
/// Spacing of copies, in multiples of their own time at the bottleneck, from which the path is
/// busy with others' packets. Ours: half of the aggregates have half as much of others' between
/// their copies.
const SPREAD_MIN: f64 = 1.5;
/// Losses beyond the line's own that are none by chance: so many, and so many standard deviations.
const CONGESTION_LOSSES: f64 = 3.0;
/// What M is held at of what arrived: a queue has to empty.
const HELD_SHARE: f64 = 0.95;
/// How M is let up.
const LET_UP: f64 = 1.1;
/// Losses that a trial is judged by: they show a loss to a quarter.
const TRIAL_LOSSES: f64 = 20.0;
/// A trial ends after this. Ours: at 200 copies per second a loss of 2 % shows.
const TRIAL_MAX: Duration = Duration::from_secs(5);
/// More than what may have been before, by this, is worse.
const WORSE: f64 = 1.25;
/// Periods that say what the loss was before a trial.
const RECENT: usize = 4;
/// Fewer copies have to leave so much of the target.
const TARGET_FOR_FEWER: f64 = 0.5;
/// A copy is worth it if it leaves this part of the loss, and not worth it any more if it leaves
/// the other.
const WORTH_MORE: f64 = 0.5;
const WORTH_FEWER: f64 = 0.65;
/// The first step back, and one after a step that went well.
const WAIT_MIN: Duration = Duration::from_millis(500);
/// A receiver at its limit is tried this often: one period in a hundred or so.
const WAIT_MAX: Duration = Duration::from_secs(8);
/// A step back went well if nothing happened for so long.
const JUDGED_AFTER: Duration = Duration::from_secs(1);

impl Adaptive {
    /// At the initial I and N, with the largest S that `bandwidth` leaves.
    ///
    /// # Errors
    /// If no combination stays within `bandwidth`.
    pub fn new(limits: Limits, bandwidth: Bandwidth) -> Result<Self, TooNarrow> {
        let mut held = Held::new(limits, bandwidth)?;
        let wanted = Parameters {
            size: held.limits.size_max(),
            ..held.wanted
        };
        held.decide(wanted, bandwidth, Cause::Steady)?;
        Ok(Self {
            held,
            line: Line::default(),
            trial: Trial::None,
            cap: None,
            receiver: Patience::default(),
            network: Patience::default(),
            recent: [Fates::default(); RECENT],
        })
    }

    /// What M must stay within: the bandwidth, and what congestion has left of it, but always
    /// enough for the smallest combination.
    fn limit(&self, bandwidth: Bandwidth) -> Bandwidth {
        let smallest = self.held.limits.bandwidth_min();
        self.cap
            .map_or(bandwidth, |cap| bandwidth.min(cap.max(smallest)))
    }

    /// The receiver has too much: I up with S, at last S down.
    fn relieve_receiver(&self, seen: &Observation) -> Option<(Parameters, Cause)> {
        let Held {
            limits,
            wanted,
            current,
        } = &self.held;
        let cause = Cause::Overflows {
            per_second: seen.overflows_per_second(),
            threshold: limits.thresholds().overflow_high,
        };
        if let Some(interval) = limits.interval_above(current.interval) {
            return Some((
                Parameters {
                    interval,
                    ..*wanted
                },
                cause,
            ));
        }
        let size = ByteCount::new(current.size.get() / 2).max(limits.size_min());
        (size < current.size).then_some((Parameters { size, ..*wanted }, cause))
    }

    /// The receiver has been calm: S back, then I down.
    fn use_receiver(&mut self, now: Instant, limit: Bandwidth) -> Option<(Parameters, Cause)> {
        let Held {
            limits,
            wanted,
            current,
        } = &self.held;
        let calm = self.receiver.calm(now)?;
        let cause = Cause::Calm { calm };
        let step = if wanted.size < limits.size_max() {
            let size = wanted.size.saturating_mul(2).min(limits.size_max());
            Parameters { size, ..*wanted }
        } else {
            let interval = limits.interval_below(current.interval)?;
            let least = Parameters {
                interval,
                size: limits.size_min(),
                ..*current
            };
            // S yields to a shorter I, but not below what it was at first.
            let size = limits.initial().size.min(current.size);
            let enough = Parameters { size, ..least };
            if !fits(&enough, limits, limit) {
                return None;
            }
            Parameters {
                interval,
                ..*wanted
            }
        };
        self.receiver.on_try(now);
        Some((step, cause))
    }

    /// Copies are lost to congestion: first the copies that the line does not need, then the rate.
    fn relieve_network(&mut self, now: Instant, seen: &Observation) -> (Parameters, Cause) {
        let Held {
            limits,
            wanted,
            current,
        } = &self.held;
        let loss = seen.copies.loss();
        let arrived = scaled(seen.sent.min(current.rate()), 1.0 - loss);
        let cause = Cause::Congestion {
            loss,
            line: self.line.copies(),
            queueing: seen.queueing,
            arrived,
        };
        let needed = self.line.copies_needed(now, limits, self.wish());
        let copies = needed.unwrap_or(current.copies).min(current.copies);
        if copies == current.copies {
            let held = scaled(arrived, HELD_SHARE).max(limits.bandwidth_min());
            self.cap = Some(self.cap.map_or(held, |cap| cap.min(held)));
        }
        (Parameters { copies, ..*wanted }, cause)
    }

    /// M is let up if it has been calm.
    fn use_network(&mut self, now: Instant, bandwidth: Bandwidth) -> Option<(Parameters, Cause)> {
        let cap = self.cap?;
        let calm = self.network.calm(now)?;
        let more = scaled(cap, LET_UP);
        self.cap = (more < bandwidth).then_some(more);
        self.network.on_try(now);
        Some((self.held.wanted, Cause::Calm { calm }))
    }

    /// N for the loss of the line.
    fn follow_line(&mut self, now: Instant) -> Option<(Parameters, Cause)> {
        let Held {
            limits,
            wanted,
            current,
        } = &self.held;
        let needed = self.line.copies_needed(now, limits, self.wish());
        let fewer = Wish {
            target: self.wish().target * TARGET_FOR_FEWER,
            worth: WORTH_FEWER,
        };
        let at_worst = self.line.copies_needed_at_worst(now, limits, fewer);
        let copies = match needed {
            Some(needed) if needed > wanted.copies => needed,
            _ if at_worst < wanted.copies => at_worst,
            _ => return None,
        };
        if copies > current.copies {
            self.trial = Trial::Raised {
                since: now,
                from: current.copies,
                loss_at_most: self.loss_before(),
                seen: Fates::default(),
            };
        }
        Some((
            Parameters { copies, ..*wanted },
            self.line_loss(now, copies),
        ))
    }

    /// What comes of more copies.
    fn judge_trial(&mut self, now: Instant, seen: &Observation) -> Option<(Parameters, Cause)> {
        let wanted = self.held.wanted;
        let with = |copies| Parameters { copies, ..wanted };
        match self.trial {
            Trial::Raised {
                from,
                loss_at_most,
                seen,
                ..
            } if is_shown(seen, loss_at_most) => {
                let loss = seen.loss();
                self.trial = Trial::None;
                if loss <= loss_at_most * WORSE {
                    return None;
                }
                self.trial = Trial::Back {
                    since: now,
                    to: wanted.copies,
                    loss,
                    seen: Fates::default(),
                };
                let cause = Cause::LossGrew {
                    before: loss_at_most,
                    after: loss,
                };
                Some((with(from), cause))
            }
            Trial::Back {
                to,
                loss,
                seen: less,
                ..
            } if is_shown(less, loss) => {
                self.trial = Trial::None;
                if less.loss() * WORSE > loss {
                    return Some((with(to), self.line_loss(now, to)));
                }
                // The line's loss is not known: what was taken for it was congestion.
                self.line.forget();
                self.network.on_trouble(now);
                Some(self.relieve_network(now, seen))
            }
            // Where too little is sent to show anything, it does no harm either.
            Trial::Raised { since, .. } if now - since >= TRIAL_MAX => {
                self.trial = Trial::None;
                None
            }
            Trial::Back { since, to, .. } if now - since >= TRIAL_MAX => {
                self.trial = Trial::None;
                Some((with(to), self.line_loss(now, to)))
            }
            _ => None,
        }
    }

    fn line_loss(&self, now: Instant, copies: u8) -> Cause {
        let (loss, together) = (self.line.copies(), self.line.together(now));
        Cause::LineLoss {
            copies: loss,
            together,
            residual: residual(loss, together, copies),
            target: self.held.limits.thresholds().loss_target,
        }
    }

    fn wish(&self) -> Wish {
        Wish {
            target: self.held.limits.thresholds().loss_target.get(),
            worth: WORTH_MORE,
        }
    }

    /// What the loss was of late at most: a change may have come in the midst of a period.
    fn loss_before(&self) -> f64 {
        let mut all = Fates::default();
        self.recent.iter().for_each(|fates| all.add(*fates));
        let at_most = |fates: Fates| loss_at_most(fates.lost as f64, fates.sent as f64);
        let newest = self.recent[0];
        // An empty period says nothing, and does not say the worst.
        let newest = if newest.sent == 0 { all } else { newest };
        at_most(newest).max(at_most(all))
    }

    /// Takes a period's losses for what they are; whether it is congestion.
    fn classify(&mut self, now: Instant, seen: &Observation) -> bool {
        let overflows = seen.socket_overflows.saturating_add(seen.system_overflows);
        let copies = Fates {
            sent: seen.copies.sent,
            // The receiver's, not the path's.
            lost: seen.copies.lost.saturating_sub(overflows),
        };
        let queued = seen.queueing.is_some_and(|delay| delay >= QUEUE_MIN)
            || seen.spread.is_some_and(|spread| spread >= SPREAD_MIN);
        let expected = copies.sent as f64 * self.line.copies();
        let by_chance = expected + CONGESTION_LOSSES * (1.0 + expected.sqrt());
        if queued && copies.lost as f64 >= by_chance {
            return true;
        }
        let aggregates = (overflows == 0).then_some(seen.aggregates);
        let each = self.held.current.copies;
        self.line.add(now, copies, aggregates, each);
        self.recent.rotate_right(1);
        self.recent[0] = copies;
        if let Trial::Raised { seen, .. } | Trial::Back { seen, .. } = &mut self.trial {
            seen.add(copies);
        }
        false
    }

    fn step(&mut self, now: Instant, seen: &Observation) -> Option<(Parameters, Cause)> {
        let thresholds = *self.held.limits.thresholds();
        let overflows = seen.overflows_per_second();
        let overflowing = overflows >= f64::from(thresholds.overflow_high);
        let congested = !overflowing && self.classify(now, seen);
        let limit = self.limit(seen.bandwidth);
        self.receiver.on_period(now, overflowing);
        self.network.on_period(now, congested);
        if overflowing {
            return self.relieve_receiver(seen);
        }
        if congested {
            self.trial = Trial::None;
            return Some(self.relieve_network(now, seen));
        }
        if let Some(step) = self.judge_trial(now, seen) {
            return Some(step);
        }
        if self.trial == Trial::None
            && let Some(step) = self.follow_line(now)
        {
            return Some(step);
        }
        if self.trial != Trial::None {
            return None;
        }
        let few = overflows <= f64::from(thresholds.overflow_low);
        if few && let Some(step) = self.use_receiver(now, limit) {
            return Some(step);
        }
        self.use_network(now, seen.bandwidth)
    }
}

impl Law for Adaptive {
    fn parameters(&self) -> Parameters {
        self.held.current
    }

    fn on_period(&mut self, now: Instant, seen: &Observation) -> Result<Decision, TooNarrow> {
        // What the bandwidth takes comes first: what follows goes by what is in force.
        let limit = self.limit(seen.bandwidth);
        let before = self.held.current;
        let fitted = self.held.decide(self.held.wanted, limit, Cause::Steady)?;
        let Some((wanted, cause)) = self.step(now, seen) else {
            return Ok(fitted);
        };
        let limit = self.limit(seen.bandwidth);
        let decision = self.held.decide(wanted, limit, cause)?;
        Ok(Decision {
            before,
            cause,
            ..decision
        })
    }
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            wait: WAIT_MIN,
            calm_since: None,
            tried_at: None,
        }
    }
}

impl Patience {
    fn on_period(&mut self, now: Instant, trouble: bool) {
        self.calm_since.get_or_insert(now);
        if trouble {
            self.on_trouble(now);
        } else if self.tried_at.is_some_and(|at| now - at >= JUDGED_AFTER) {
            self.tried_at = None;
            self.wait = WAIT_MIN;
        }
    }

    fn on_trouble(&mut self, now: Instant) {
        if self.tried_at.take().is_some() {
            self.wait = self.wait.saturating_mul(2).min(WAIT_MAX);
        }
        self.calm_since = Some(now);
    }

    /// For how long it has been calm, if that is long enough for the next step back.
    fn calm(&self, now: Instant) -> Option<Duration> {
        let calm = now.saturating_duration_since(self.calm_since?);
        (self.tried_at.is_none() && calm >= self.wait).then_some(calm)
    }

    fn on_try(&mut self, now: Instant) {
        self.tried_at = Some(now);
    }
}

/// Enough was lost, or would have been.
fn is_shown(seen: Fates, loss: f64) -> bool {
    seen.lost as f64 >= TRIAL_LOSSES || seen.sent as f64 * loss >= TRIAL_LOSSES
}

fn scaled(rate: Bandwidth, by: f64) -> Bandwidth {
    Bandwidth::from_bits_per_second((rate.as_bits_per_second() as f64 * by) as u64)
}
