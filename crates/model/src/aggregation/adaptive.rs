//! Keiro's own controller: it finds the cause of losses before it acts.
//!
//! **The receiver overflows.** Copies that the line does not need go first, where the receiver's socket is
//! what overflows. Then I grows, and S with it as far as the bandwidth allows, so that as many bytes are
//! carried in fewer aggregates, `[aggregation §3.2.3]`. At the longest I, S is halved, as long as what is
//! offered still fits, and at last N is lowered. Drops by its socket are always ours. Drops by the rest of
//! its system may be others': if fewer aggregates do not reduce them, the step is undone and the drops
//! count as loss of the path, against which copies help. Where the system drops many times what can be
//! ours, no step is tried. A step back that makes the receiver overflow again doubles the time until the
//! next try.
//!
//! **Copies are lost, and no queue is seen.** The line is bad. N is chosen from the measured loss of copies
//! and of aggregates ([`mixture`](super::mixture)): copies that are lost together are not helped by
//! further ones. A copy is added if it reaches the target or at least halves the loss. Copies are removed
//! only if fewer would still reach half of the target on the worst line that the measurements allow.
//!
//! **More copies are lost than the line loses, and a queue is seen** (queueing delay, or copies that arrive
//! spread, where that is observed). It is congestion. Copies that the line does not need go first, then
//! those for which there is no room, because they carry nothing new. If that is not enough, M is held a
//! little below what arrived, and let up step by step while it stays calm.
//!
//! **There is much to carry.** Copies never take its room: N is at most what the bandwidth holds of what is
//! offered.
//!
//! **More loss with more copies, and no queue is seen.** It is congestion in a small buffer, or chance. N
//! goes back: if the loss goes back as well it was congestion, else the copies return. The same is tried
//! from time to time where copies leave far more loss than the target.
//!
//! What the receiver drops of our packets is not counted as loss of the path. A drop at its socket is
//! reported at once, but the packet is missed only when everything that waited before it was read.

mod receiver;
mod trial;

use std::time::Duration;

use keiro_units::{Bandwidth, Instant};

use self::{
    receiver::{Drops, OTHERS_MIN, ReceiverBackoff, UnattributedDrops, receiver_load},
    trial::{FEWER_COPIES_AFTER_MIN, Trial},
};
use super::{
    Cause, Controller, Decision, DeliveryCounts, Held, Limits, Observation, Parameters, TooNarrow,
    line_loss::{FewerCopies, LineLoss, LossGoal, LossSample, loss_at_most},
    probe_backoff::ProbeBackoff,
};

#[derive(Clone, Debug)]
pub struct Adaptive {
    held: Held,
    line: LineLoss,
    /// More or fewer copies on trial.
    trial: Trial,
    /// When fewer copies are tried next because those in force leave too much loss.
    fewer_copies_at: Instant,
    fewer_copies_after: Duration,
    /// M may be no more, because of congestion.
    cap: Option<Bandwidth>,
    /// By how much it is let up next.
    let_up: f64,
    /// Until then what is lost to congestion was sent before it was answered.
    answered_until: Instant,
    receiver: ProbeBackoff,
    relief: ReceiverBackoff,
    drops: Drops,
    unseen: UnattributedDrops,
    /// How long others are held to overflow the receiver next time.
    others_for: Duration,
    network: ProbeBackoff,
    /// The copies' fates of the last periods.
    recent: [DeliveryCounts; RECENT],
    /// What was seen while a queue was, in as many periods: the line's, or congestion.
    queued: Queued,
}

/// Periods in a row with a queue.
#[derive(Clone, Copy, Debug, Default)]
struct Queued {
    periods: u32,
    seen: LossSample,
}

/// Queueing delay from which a queue is one. Ours: the longest burst, our own.
const QUEUE_MIN: Duration = super::BURST_MAX;
/// The longest queue that is waited for before congestion is answered again. Ours: buffers longer than that exist, and
/// waiting for them would leave congestion unanswered.
const QUEUE_MAX: Duration = Duration::from_secs(1);
/// Spacing of copies, in multiples of their own time at the bottleneck, from which the path is
/// busy with others' packets. Ours: half of the aggregates have half as much of others' between
/// their copies.
const SPREAD_MIN: f64 = 1.5;
/// Most periods with a queue that are looked at together. Ours: what half a second shows.
const QUEUED_PERIODS: u32 = 10;
/// Losses beyond the line's own that are none by chance: as many, and as many standard
/// deviations. Ours: less than once in five minutes by chance.
const CONGESTION_LOSSES: f64 = 4.0;
/// M is held at this share of what arrived. Ours: a queue of half a second empties in ten.
const HELD_SHARE: f64 = 0.95;
/// M is let up by this share first, and by twice as much each time while it stays calm. Ours: twice what it is held
/// below.
const LET_UP: f64 = 0.1;
/// The largest of these shares. Ours: what is sent doubles in a period at most.
const LET_UP_MAX: f64 = 1.0;
/// Multiples of the mean of what is to be carried for which there must be room before a copy is added. Ours: a mean is
/// exceeded half of the time.
const ROOM_MORE: f64 = 1.2;
/// The same before one is taken away for want of room. Ours: less than [`ROOM_MORE`], so that copies do not come and go.
const ROOM_FEWER: f64 = 1.05;
/// Periods over which the loss before a trial is taken. Ours: a tenth of a second at the shortest I.
const RECENT: usize = 4;
/// Fewer copies are taken if they reach this share of the target. Ours: the estimate of their loss is off by less.
const TARGET_FOR_FEWER: f64 = 0.5;
/// A copy is worth it if it leaves this part of the loss. Ours: of independent losses it leaves far less.
const WORTH_MORE: f64 = 0.5;
/// It is not worth it any more if it leaves this part. Ours: more than [`WORTH_MORE`], so that copies do not come and go.
const WORTH_FEWER: f64 = 0.65;

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
            line: LineLoss::default(),
            trial: Trial::None,
            fewer_copies_at: Instant::ZERO,
            fewer_copies_after: FEWER_COPIES_AFTER_MIN,
            cap: None,
            let_up: LET_UP,
            answered_until: Instant::ZERO,
            receiver: ProbeBackoff::default(),
            relief: ReceiverBackoff::None,
            drops: Drops::default(),
            unseen: UnattributedDrops::default(),
            others_for: OTHERS_MIN,
            network: ProbeBackoff::default(),
            recent: [DeliveryCounts::default(); RECENT],
            queued: Queued::default(),
        })
    }

    /// What M must stay within: the bandwidth, and what congestion has left of it, but always
    /// enough for the smallest combination.
    fn limit(&self, bandwidth: Bandwidth) -> Bandwidth {
        let smallest = self.held.limits.bandwidth_min();
        self.cap
            .map_or(bandwidth, |cap| bandwidth.min(cap.max(smallest)))
    }

    /// Less is sent from now on; what is lost was sent before, until what waits on the way has arrived.
    fn on_answer(&mut self, now: Instant, seen: &Observation) {
        let queue = seen.queueing.unwrap_or_default().min(QUEUE_MAX);
        self.answered_until = now + queue + seen.period;
    }

    /// Copies are lost to congestion: first the copies that the line does not need, then the rate.
    fn relieve_network(&mut self, now: Instant, seen: &Observation) -> (Parameters, Cause) {
        let Held {
            limits,
            wanted,
            current,
        } = &self.held;
        let (loss, line) = (seen.copies.loss(), self.line.copies());
        // What got through the bottleneck; what the line loses is no reason to send less.
        let passed = ((1.0 - loss) / (1.0 - line).max(0.01)).min(1.0);
        let arrived = scaled(seen.sent.min(current.rate()), passed);
        let cause = Cause::Congestion {
            loss,
            line,
            queueing: seen.queueing,
            arrived,
        };
        let needed = self.line.copies_needed(now, limits, self.loss_goal());
        let mut copies = needed.unwrap_or(current.copies).min(current.copies);
        let held = scaled(arrived, HELD_SHARE).max(limits.bandwidth_min());
        if copies == current.copies {
            copies = copies.min(self.room(seen.offered, held));
        }
        if copies == current.copies {
            self.cap = Some(self.cap.map_or(held, |cap| cap.min(held)));
        }
        let wanted = Parameters { copies, ..*wanted };
        self.let_up = LET_UP;
        (wanted, cause)
    }

    /// M is let up if it has been calm.
    fn use_network(&mut self, now: Instant, seen: &Observation) -> Option<(Parameters, Cause)> {
        let more = scaled(self.cap?, 1.0 + self.let_up);
        let calm = self.network.take_step(now, self.load(seen, more))?;
        self.cap = (more < seen.bandwidth).then_some(more);
        self.let_up = (self.let_up * 2.0).min(LET_UP_MAX);
        Some((self.held.wanted, Cause::Calm { calm }))
    }

    /// The most copies of what is offered that `limit` has room for.
    fn room(&self, offered: Bandwidth, limit: Bandwidth) -> u8 {
        let Held {
            limits, current, ..
        } = &self.held;
        let has_room = |copies: &&u8| {
            let margin = match **copies <= current.copies {
                true => ROOM_FEWER,
                false => ROOM_MORE,
            };
            scaled(offered, margin * f64::from(**copies)) <= limit
        };
        let most = limits.copies().iter().rev().find(has_room);
        most.copied().unwrap_or(limits.copies_min())
    }

    /// N for the loss of the line, as far as there is room.
    fn follow_line(
        &mut self,
        now: Instant,
        seen: &Observation,
        limit: Bandwidth,
    ) -> Option<(Parameters, Cause)> {
        let offered = seen.offered;
        let Held {
            limits,
            wanted,
            current,
        } = &self.held;
        let needed = self.line.copies_needed(now, limits, self.loss_goal());
        let fewer = LossGoal {
            target: self.loss_goal().target * TARGET_FOR_FEWER,
            worth: WORTH_FEWER,
        };
        let at_worst = self.line.copies_needed_at_worst(now, limits, fewer);
        // None is taken away that would be added again.
        let enough = at_worst.max(needed.unwrap_or(at_worst));
        let room = self.room(offered, limit);
        let more = needed.map_or(wanted.copies, |needed| needed.min(room));
        let next = limits.copies_above(wanted.copies);
        // What has failed is tried in single steps.
        let may_be = |copies: &u8| {
            let load = copies_of(offered, *copies);
            let sound = self.network.is_untried(load)
                || (next == Some(*copies) && self.network.may_step_to(now, load));
            let parameters = Parameters {
                copies: *copies,
                ..*current
            };
            let bearable = self
                .receiver
                .may_step_to(now, receiver_load(&parameters, limits));
            let worth_trying = self.line.is_worth_trying(now, *copies);
            *copies > wanted.copies && *copies <= more && worth_trying && sound && bearable
        };
        let copies = match limits.copies().iter().copied().rev().find(may_be) {
            Some(more) => more,
            None if room < wanted.copies => {
                let cause = Cause::Crowded {
                    offered,
                    bandwidth: limit,
                };
                let copies = room;
                return Some((Parameters { copies, ..*wanted }, cause));
            }
            None if enough < wanted.copies => enough,
            None => return None,
        };
        let (wanted, from) = (*wanted, current.copies);
        if copies < wanted.copies {
            let target = limits.thresholds().loss_target.get();
            let change = FewerCopies {
                before: wanted.copies,
                after: copies,
            };
            self.line.on_fewer(now, change, target);
        }
        if copies > from {
            self.network.on_step(now, copies_of(offered, copies));
            self.try_receiver(now, copies);
            self.trial = Trial::Raised {
                since: now,
                from,
                loss_at_most: self.loss_before(),
                seen: DeliveryCounts::default(),
            };
        }
        Some((Parameters { copies, ..wanted }, self.line_loss(now, copies)))
    }

    fn line_loss(&self, now: Instant, copies: u8) -> Cause {
        let losses = self.line.losses(now);
        Cause::LineLoss {
            copies: self.line.copies(),
            together: losses.together(),
            residual: losses.residual(copies),
            target: self.held.limits.thresholds().loss_target,
        }
    }

    fn loss_goal(&self) -> LossGoal {
        LossGoal {
            target: self.held.limits.thresholds().loss_target.get(),
            worth: WORTH_MORE,
        }
    }

    /// The highest recent loss: a change may fall into the middle of a period.
    fn loss_before(&self) -> f64 {
        let mut all = DeliveryCounts::default();
        self.recent.iter().for_each(|fates| all.add(*fates));
        let at_most = |fates: DeliveryCounts| loss_at_most(fates.lost as f64, fates.sent as f64);
        let newest = self.recent[0];
        // An empty period says nothing, and does not say the worst.
        let newest = if newest.sent == 0 { all } else { newest };
        at_most(newest).max(at_most(all))
    }

    /// Takes a period's losses for what they are; whether it is congestion.
    fn classify(&mut self, now: Instant, seen: &Observation, dropped: u64) -> bool {
        let copies = DeliveryCounts {
            sent: seen.copies.sent,
            // The receiver's, not the path's.
            lost: seen.copies.lost.saturating_sub(dropped),
        };
        let queued = seen.queueing.is_some_and(|delay| delay >= QUEUE_MIN)
            || seen.spread.is_some_and(|spread| spread >= SPREAD_MIN);
        let mut this = LossSample::of(copies);
        if dropped == 0 && self.unseen.is_none() {
            this.whole_copies = seen.copies;
            this.whole_aggregates = seen.aggregates;
        }
        self.queued.periods += 1;
        self.queued.seen.add(&this);
        let Queued { periods, seen: all } = self.queued;
        if queued {
            let expected = all.copies.sent as f64 * self.line.copies();
            let by_chance = expected + CONGESTION_LOSSES * (1.0 + expected.sqrt());
            if all.copies.lost as f64 >= by_chance {
                self.queued = Queued::default();
                return true;
            }
        }
        if !queued || periods >= QUEUED_PERIODS {
            let each = self.held.current.copies;
            self.line.add(now, &all, each, self.loss_goal().target);
            self.queued = Queued::default();
        }
        self.recent.rotate_right(1);
        self.recent[0] = copies;
        if let Trial::Raised { seen, .. } | Trial::Fewer { seen, .. } = &mut self.trial {
            seen.add(copies);
        }
        false
    }

    /// What is let onto the path if M is held at `cap`, in bit/s.
    fn load(&self, seen: &Observation, cap: Bandwidth) -> f64 {
        let cap = cap.as_bits_per_second() as f64;
        if seen.offered.is_zero() {
            return cap;
        }
        cap.min(copies_of(seen.offered, self.held.current.copies))
    }

    /// `before`: what was in force in the period.
    fn step(
        &mut self,
        now: Instant,
        seen: &Observation,
        before: &Parameters,
    ) -> Option<(Parameters, Cause)> {
        let thresholds = *self.held.limits.thresholds();
        let by_system = self.drops.on_period(now, seen);
        let by_socket = self.unseen.on_period(now, seen);
        let overflows = seen.per_second(seen.socket_overflows.saturating_add(by_system));
        let by_others = matches!(self.relief, ReceiverBackoff::Others { until } if now < until);
        let overflowing = !by_others && overflows >= f64::from(thresholds.overflow_high);
        if let Some(step) = self.judge_relief(now, overflows) {
            return step;
        }
        // A receiver that others overflow drops our packets as a lossy line does.
        let by_system = if by_others { 0 } else { by_system };
        let dropped = by_socket.saturating_add(by_system);
        let congested = !overflowing && self.classify(now, seen, dropped);
        let limit = self.limit(seen.bandwidth);
        let load = |parameters| receiver_load(parameters, &self.held.limits);
        self.receiver.on_load(load(&self.held.wanted));
        let overload = overflowing.then(|| load(before));
        self.receiver.on_period(now, overload);
        let load = self.load(seen, limit);
        self.network.on_period(now, congested.then_some(load));
        if overflowing {
            let step = self.relieve_receiver(now, overflows, seen)?;
            if step.0.copies != self.held.wanted.copies {
                self.trial = Trial::None;
            }
            self.relief = ReceiverBackoff::Tried {
                from: self.held.wanted,
                before: overflows,
                after: 0.0,
                periods: 0,
            };
            return Some(step);
        }
        if congested {
            self.trial = Trial::None;
            if now < self.answered_until {
                return None;
            }
            self.on_answer(now, seen);
            return Some(self.relieve_network(now, seen));
        }
        if let Some(step) = self.judge_trial(now, seen) {
            return Some(step);
        }
        if self.trial == Trial::None
            && let Some(step) = self.follow_line(now, seen, limit)
        {
            return Some(step);
        }
        if self.trial != Trial::None {
            return None;
        }
        if let Some(step) = self.try_fewer_copies(now) {
            return Some(step);
        }
        let few = by_others || overflows <= f64::from(thresholds.overflow_low);
        if few && let Some(step) = self.use_receiver(now, limit) {
            return Some(step);
        }
        self.use_network(now, seen)
    }
}

impl Controller for Adaptive {
    fn parameters(&self) -> Parameters {
        self.held.current
    }

    fn on_period(&mut self, now: Instant, seen: &Observation) -> Result<Decision, TooNarrow> {
        // What the bandwidth takes comes first: what follows goes by what is in force.
        let limit = self.limit(seen.bandwidth);
        let before = self.held.current;
        let mut decision = self.held.decide(self.held.wanted, limit, Cause::Steady)?;
        if let Some((wanted, cause)) = self.step(now, seen, &before) {
            let limit = self.limit(seen.bandwidth);
            decision = Decision {
                before,
                cause,
                ..self.held.decide(wanted, limit, cause)?
            };
        }
        let copies = decision.parameters.copies;
        if copies != before.copies {
            self.queued = Queued::default();
        }
        if copies < before.copies {
            self.on_answer(now, seen);
        }
        Ok(decision)
    }
}

/// In bit/s.
fn copies_of(offered: Bandwidth, copies: u8) -> f64 {
    offered.as_bits_per_second() as f64 * f64::from(copies)
}

fn scaled(rate: Bandwidth, by: f64) -> Bandwidth {
    Bandwidth::from_bits_per_second((rate.as_bits_per_second() as f64 * by) as u64)
}
