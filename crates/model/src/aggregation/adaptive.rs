//! Keiro's own controller: it asks what the trouble is before it acts.
//!
//! **The receiver overflows.** Where its socket does, copies go that the line does not need. Then I grows, and S with it as far as the
//! bandwidth goes, so that as many bytes are carried in fewer aggregates, `[aggregation §3.2.3]`; only at the longest I
//! is S halved, as far as that makes nothing wait that is to be carried, and at last N lowered.
//! What its socket drops is ours, whatever comes of a step. If fewer aggregates do not make its system drop less,
//! others do: the step is undone, and what it drops counts as lost on the path, against which copies help.
//! Where its system drops many times what ours can be, and little of ours, nothing needs to be tried: others do.
//! A step back that makes it overflow again doubles the time until it is tried again, so that a
//! receiver at its limit is not pushed over it again and again.
//!
//! **Copies are lost, and no queue goes with it.** The line is bad. N is what leaves the loss wanted, by the losses of
//! copies and of aggregates ([`mixture`](super::mixture)): copies that are lost together are not helped by further ones. A
//! copy is taken if it reaches the target or at least halves the loss, by the least that may be lost together.
//! Fewer copies are taken only if they would do for the worst line that what was seen allows, and
//! for half the target.
//!
//! **Copies are lost, more than the line loses, and a queue goes with it** (queueing delay, or
//! copies that arrive spread, where that is observed). It is congestion. Copies go first, those that the line does not need
//! and then those for which too little arrived: they carry nothing new. If that is not enough, M is held a little below what arrived, and let up step
//! by step when it has been calm.
//!
//! **There is much to carry.** Copies never take its room: N is at most what the bandwidth holds of
//! what is offered.
//!
//! **More loss with more copies, and no queue to be seen.** Congestion in a small buffer, or
//! chance: N goes back. If the loss goes back as well it was congestion, else the copies return. Where
//! copies are far from the target the same is tried from time to time.
//!
//! What the receiver drops of our packets says nothing of the path. A drop at its socket is reported at once, but the
//! packet is missed only when all that waited before it has been read.

use std::time::Duration;

use super::{
    Cause, Controller, Decision, DeliveryCounts, Held, Limits, Observation, Parameters, TooNarrow,
    fits,
    line_loss::{LineLoss, LossGoal, LossSample, kept, loss_at_most},
    probe_backoff::ProbeBackoff,
};
use keiro_units::{Bandwidth, ByteCount, Instant};

/// Keiro's controller.
#[derive(Clone, Debug)]
pub struct Adaptive {
    held: Held,
    line: LineLoss,
    /// With more N: is it worse?
    trial: Trial,
    /// When it is tried next whether copies that are not enough are too many.
    doubt_at: Instant,
    doubt_after: Duration,
    /// M may be no more, because of congestion.
    cap: Option<Bandwidth>,
    /// By how much it is let up next.
    let_up: f64,
    /// Until then what is lost to congestion was sent before it was answered.
    answered_until: Instant,
    receiver: ProbeBackoff,
    relief: Relief,
    drops: Drops,
    unseen: Unseen,
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

/// Whether loss grows with N.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trial {
    None,
    /// N was raised from here, where at most so much was lost.
    Raised {
        since: Instant,
        from: u8,
        loss_at_most: f64,
        seen: DeliveryCounts,
    },
    /// So much was lost with more copies, so there are fewer for a while.
    Fewer {
        since: Instant,
        before: u8,
        loss: f64,
        seen: DeliveryCounts,
    },
}

/// Whether fewer aggregates help a receiver that overflows.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Relief {
    None,
    /// It was given fewer than with these.
    Tried {
        from: Parameters,
        before: f64,
        after: f64,
        periods: u32,
    },
    /// They do not.
    Others {
        until: Instant,
    },
}

/// What the receiver dropped of late, and how many copies of ours did not come. Its system drops
/// others' packets as well, some for sockets that have nothing to do with ours.
#[derive(Clone, Copy, Debug, Default)]
struct Drops {
    at: Instant,
    by_socket: f64,
    by_system: f64,
    ours: f64,
    sent: f64,
}

/// Packets that the receiver's socket dropped and that have not been missed yet.
#[derive(Clone, Copy, Debug, Default)]
struct Unseen {
    at: Instant,
    packets: f64,
}

/// Memory for what is still to be missed. Ours: an overflowing socket's buffer is read within it, and not all that it
/// drops are copies.
const UNSEEN: Duration = Duration::from_secs(2);
/// Memory for what the receiver drops. Ours: others' bursts come several times within it.
const DROPS: Duration = Duration::from_secs(1);
/// What the receiver's system drops is others' if it is more than so many times what ours can be.
/// Ours: the smallest step relieves it by a quarter of our part.
const DROPS_OF_OURS: f64 = 4.0;
/// Where so much of ours is lost, fewer packets are tried nevertheless: the others may be peers that do
/// the same. Ours: bursts that leave time between them take less.
const DROPS_HEAVY: f64 = 0.1;
/// Periods after which relief is judged.
const RELIEF_PERIODS: u32 = 2;
/// Relief leaves this part of the overflows at most. Ours: the smallest step leaves three quarters
/// of the aggregates.
const RELIEVED: f64 = 0.85;
/// That others overflow the receiver is believed for so long at first, and each time for twice as
/// long.
const OTHERS_MIN: Duration = Duration::from_secs(2);
const OTHERS_MAX: Duration = Duration::from_secs(60);
/// Queueing delay from which a queue is one. Ours: the longest burst, our own.
const QUEUE_MIN: Duration = super::BURST_MAX;
/// The longest queue that is waited for before congestion is answered again.
const QUEUE_MAX: Duration = Duration::from_secs(1);
/// Spacing of copies, in multiples of their own time at the bottleneck, from which the path is
/// busy with others' packets. Ours: half of the aggregates have half as much of others' between
/// their copies.
const SPREAD_MIN: f64 = 1.5;
/// So many periods with a queue at most are looked at together. Ours: what half a second shows.
const QUEUED_PERIODS: u32 = 10;
/// Losses beyond the line's own that are none by chance: so many, and so many standard
/// deviations. Ours: less than once in five minutes by chance.
const CONGESTION_LOSSES: f64 = 4.0;
/// What M is held at of what arrived: a queue has to empty.
const HELD_SHARE: f64 = 0.95;
/// M is let up by this part; as long as that goes well, by twice as much each time.
const LET_UP: f64 = 0.1;
const LET_UP_MAX: f64 = 1.0;
/// What is to be carried needs so much room beside its mean: before a copy is added, and before one
/// is taken away. Ours.
const ROOM_MORE: f64 = 1.2;
const ROOM_FEWER: f64 = 1.05;
/// Losses that show a loss to a quarter, and to a sixth.
const LOSSES_SHOW: f64 = 20.0;
const LOSSES_SHOW_WELL: f64 = 40.0;
/// A trial ends after this. Ours: at 200 copies per second a loss of 2 % shows.
const TRIAL_MAX: Duration = Duration::from_secs(5);
/// More than what may have been before, by this, is worse.
const WORSE: f64 = 1.25;
/// As much less as this is less by the copies that are missing. Ours: by chance once in fifty times.
const BETTER: f64 = 1.5;
/// Loss of so many times the target raises doubts whether copies that are not enough are too many.
/// Ours: what the doubt costs is little of that.
const DOUBT_FROM: f64 = 5.0;
/// How long after the first such doubt comes the next; each time after twice as long.
const DOUBT_MIN: Duration = Duration::from_secs(2);
const DOUBT_MAX: Duration = Duration::from_secs(60);
/// Periods that say what the loss was before a trial.
const RECENT: usize = 4;
/// Fewer copies have to leave so much of the target.
const TARGET_FOR_FEWER: f64 = 0.5;
/// A copy is worth it if it leaves this part of the loss, and not worth it any more if it leaves
/// the other.
const WORTH_MORE: f64 = 0.5;
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
            doubt_at: Instant::ZERO,
            doubt_after: DOUBT_MIN,
            cap: None,
            let_up: LET_UP,
            answered_until: Instant::ZERO,
            receiver: ProbeBackoff::default(),
            relief: Relief::None,
            drops: Drops::default(),
            unseen: Unseen::default(),
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

    /// The receiver has too much: copies that the line does not need, then I up with S, at last S and N down.
    fn relieve_receiver(
        &self,
        now: Instant,
        overflows: f64,
        seen: &Observation,
    ) -> Option<(Parameters, Cause)> {
        let Held {
            limits,
            wanted,
            current,
        } = &self.held;
        let cause = Cause::Overflows {
            per_second: overflows,
            threshold: limits.thresholds().overflow_high,
        };
        let with = |copies| (Parameters { copies, ..*wanted }, cause);
        // Its system's drops may be others', against which copies help.
        let ours = self.drops.are_by_socket();
        let needed = self.line.copies_needed(now, limits, self.loss_goal());
        let is_fewer = |needed: &u8| ours && *needed < current.copies;
        if let Some(needed) = needed.filter(is_fewer) {
            return Some(with(needed));
        }
        if let Some(interval) = limits.interval_above(current.interval) {
            return Some((
                Parameters {
                    interval,
                    ..*wanted
                },
                cause,
            ));
        }
        // Below what is to be carried S would make it wait, and for ever.
        let offered = scaled(seen.offered, ROOM_MORE).bytes_in_floor(current.interval);
        let least = limits.size_min().max(offered);
        let size = ByteCount::new(current.size.get() / 2).max(least);
        if size < current.size {
            return Some((Parameters { size, ..*wanted }, cause));
        }
        limits
            .copies_below(current.copies)
            .filter(|_| ours)
            .map(with)
    }

    /// Whether fewer aggregates have helped; `Some` until that is known.
    fn judge_relief(
        &mut self,
        now: Instant,
        overflows: f64,
    ) -> Option<Option<(Parameters, Cause)>> {
        let Relief::Tried {
            from,
            before,
            after,
            periods,
        } = &mut self.relief
        else {
            return None;
        };
        *periods += 1;
        *after += (overflows - *after) / f64::from(*periods);
        if *periods < RELIEF_PERIODS {
            return Some(None);
        }
        let (from, before, after) = (*from, *before, *after);
        self.relief = Relief::None;
        let threshold = self.held.limits.thresholds().overflow_high;
        // Only gateways send to its socket.
        let ours = self.drops.are_by_socket();
        if ours || after < f64::from(threshold) || after <= before * RELIEVED {
            self.others_for = OTHERS_MIN;
            return None;
        }
        let until = now + self.others_for;
        self.relief = Relief::Others { until };
        self.others_for = self.others_for.saturating_mul(2).min(OTHERS_MAX);
        self.receiver = ProbeBackoff::default();
        let wanted = Parameters {
            copies: self.held.wanted.copies,
            ..from
        };
        Some(Some((wanted, Cause::OverflowsStay { before, after })))
    }

    /// The receiver has been calm: S back, then I down.
    fn use_receiver(&mut self, now: Instant, limit: Bandwidth) -> Option<(Parameters, Cause)> {
        let Held {
            limits,
            wanted,
            current,
        } = &self.held;
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
        let calm = self.receiver.take_step(now, receiver_load(&step, limits))?;
        Some((step, Cause::Calm { calm }))
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
            self.line.on_fewer(now, (wanted.copies, copies), target);
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
            } if shown(seen, loss_at_most) >= LOSSES_SHOW => {
                let loss = seen.loss();
                self.trial = Trial::None;
                if loss <= loss_at_most * WORSE {
                    return None;
                }
                self.trial = Trial::Fewer {
                    since: now,
                    before: wanted.copies,
                    loss,
                    seen: DeliveryCounts::default(),
                };
                let cause = Cause::CopyLossGrew {
                    before: loss_at_most,
                    after: loss,
                };
                Some((with(from), cause))
            }
            Trial::Fewer {
                before,
                loss,
                seen: less,
                ..
            } if shown(less, loss) >= LOSSES_SHOW_WELL => {
                self.trial = Trial::None;
                if less.loss() * BETTER > loss {
                    let bearable = self.try_receiver(now, before);
                    return bearable.then(|| (with(before), self.line_loss(now, before)));
                }
                self.on_too_many_copies(now, before, less, seen)
            }
            // Where too little is sent to show anything, it does no harm either.
            Trial::Raised { since, .. } if now - since >= TRIAL_MAX => {
                self.trial = Trial::None;
                None
            }
            Trial::Fewer { since, before, .. } if now - since >= TRIAL_MAX => {
                self.trial = Trial::None;
                let bearable = self.try_receiver(now, before);
                bearable.then(|| (with(before), self.line_loss(now, before)))
            }
            _ => None,
        }
    }

    /// Whether the receiver may be given so many copies again, which are sent then.
    fn try_receiver(&mut self, now: Instant, copies: u8) -> bool {
        let Held {
            limits, current, ..
        } = &self.held;
        let parameters = Parameters { copies, ..*current };
        let load = receiver_load(&parameters, limits);
        let may_step_to = self.receiver.may_step_to(now, load);
        if may_step_to {
            self.receiver.on_step(now, load);
        }
        may_step_to
    }

    /// Where copies leave more loss than wanted, they may be what causes it.
    fn doubt(&mut self, now: Instant) -> Option<(Parameters, Cause)> {
        let Held {
            limits,
            wanted,
            current,
        } = &self.held;
        let target = limits.thresholds().loss_target;
        let loss = self.line.copies();
        let residual = self.line.losses(now).residual(current.copies);
        let copies = limits.copies_below(current.copies)?;
        // So few that none need be lost are no reason to send less of what is thin.
        let is_shown = self.line.shows_lost_aggregates();
        if residual <= DOUBT_FROM * target.get() || !is_shown || now < self.doubt_at {
            return None;
        }
        self.doubt_at = now + self.doubt_after;
        self.doubt_after = self.doubt_after.saturating_mul(2).min(DOUBT_MAX);
        self.trial = Trial::Fewer {
            since: now,
            before: current.copies,
            loss,
            seen: DeliveryCounts::default(),
        };
        let cause = Cause::Doubt { residual, target };
        Some((Parameters { copies, ..*wanted }, cause))
    }

    /// The loss fell with N: what was taken for the line's was congestion, and may be still. The
    /// first time, fewer copies yet are tried.
    fn on_too_many_copies(
        &mut self,
        now: Instant,
        before: u8,
        less: DeliveryCounts,
        seen: &Observation,
    ) -> Option<(Parameters, Cause)> {
        let Held {
            limits,
            wanted,
            current,
        } = &self.held;
        let first = !self.network.has_failed();
        let loss = less.loss();
        self.doubt_after = DOUBT_MIN;
        self.line.reset();
        let target = self.loss_goal().target;
        self.line
            .add(now, &LossSample::of(less), current.copies, target);
        self.network
            .on_trouble(now, copies_of(seen.offered, before));
        let copies = limits.copies_below(current.copies).filter(|_| first)?;
        self.trial = Trial::Fewer {
            since: now,
            before: current.copies,
            loss,
            seen: DeliveryCounts::default(),
        };
        let cause = Cause::Congestion {
            loss,
            line: 0.0,
            queueing: seen.queueing,
            arrived: scaled(seen.sent, 1.0 - loss),
        };
        Some((Parameters { copies, ..*wanted }, cause))
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

    /// What the loss was of late at most: a change may have come in the midst of a period.
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
        let by_others = matches!(self.relief, Relief::Others { until } if now < until);
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
        let trouble = overflowing.then(|| load(before));
        self.receiver.on_period(now, trouble);
        let load = self.load(seen, limit);
        self.network.on_period(now, congested.then_some(load));
        if overflowing {
            let step = self.relieve_receiver(now, overflows, seen)?;
            if step.0.copies != self.held.wanted.copies {
                self.trial = Trial::None;
            }
            self.relief = Relief::Tried {
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
        if let Some(step) = self.doubt(now) {
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

impl Drops {
    /// What the receiver's system drops that fewer packets of ours may change: none if nearly all is others'.
    fn on_period(&mut self, now: Instant, seen: &Observation) -> u64 {
        let kept = kept(now, self.at, DROPS);
        self.at = now;
        self.by_socket = self.by_socket * kept + seen.socket_overflows as f64;
        self.by_system = self.by_system * kept + seen.system_overflows as f64;
        self.ours = self.ours * kept + seen.copies.lost as f64;
        self.sent = self.sent * kept + seen.copies.sent as f64;
        let is_others = self.by_system > self.ours * DROPS_OF_OURS;
        match is_others && self.ours < self.sent * DROPS_HEAVY {
            true => 0,
            false => seen.system_overflows,
        }
    }

    /// Most of late was the socket's.
    fn are_by_socket(&self) -> bool {
        self.by_socket >= self.by_system && self.by_socket > 0.0
    }
}

impl Unseen {
    /// Of the copies lost, those that the receiver's socket dropped.
    fn on_period(&mut self, now: Instant, seen: &Observation) -> u64 {
        let kept = kept(now, self.at, UNSEEN);
        self.at = now;
        self.packets += seen.socket_overflows_before as f64;
        self.packets = self.packets * kept + seen.socket_overflows as f64;
        let dropped = seen.copies.lost.min(self.packets.round() as u64);
        self.packets = (self.packets - dropped as f64).max(0.0);
        dropped
    }

    fn is_none(&self) -> bool {
        self.packets < 1.0
    }
}

/// In bit/s.
fn copies_of(offered: Bandwidth, copies: u8) -> f64 {
    offered.as_bits_per_second() as f64 * f64::from(copies)
}

/// What the receiver is given, in copies per second, and less where S was made smaller for it.
fn receiver_load(parameters: &Parameters, limits: &Limits) -> f64 {
    let per_second = f64::from(parameters.copies) / parameters.interval.as_secs_f64();
    if parameters.interval < limits.interval_max() {
        return per_second;
    }
    per_second * parameters.size.get() as f64 / limits.size_max().get() as f64
}

/// How many losses say how much is lost; where fewer were lost, as many as `loss` would have been.
fn shown(seen: DeliveryCounts, loss: f64) -> f64 {
    (seen.lost as f64).max(seen.sent as f64 * loss)
}

fn scaled(rate: Bandwidth, by: f64) -> Bandwidth {
    Bandwidth::from_bits_per_second((rate.as_bits_per_second() as f64 * by) as u64)
}
