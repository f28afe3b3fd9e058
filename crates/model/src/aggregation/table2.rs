//! The paper's controller, `[aggregation table 2]`: overflows of the receiver move I and S, loss of
//! aggregates moves N.
//!
//! In each period at most one of the table's cells acts, in this order: too many overflows (I up to
//! its maximum, then S down), too much loss (N up; if the loss grows by it, N down), few overflows
//! (S up, then I down), little loss (N as at first). Between a low and a high threshold nothing
//! moves. S moves by AIMD; I and N move through their values. What would not stay within the
//! bandwidth is not done, but for N, for which S yields.
//!
//! Printed, recovery raises S "if S > initial or I = minimum" and lowers I "if I < maximum". So
//! from I = maximum I never comes down again, and S below its initial value never rises there. It
//! must be S < initial, and I > minimum: that is the reading [`Meant`]. The experiment that compares
//! both readings brings the printed one.
//!
//! As meant, the overflows are those of the socket that receives the aggregates: what others make the
//! receiver's system drop does not end by our sending less, and a controller that answers it gives up
//! throughput for nothing.
//!
//! The paper says neither what its thresholds are nor over how long it counts. Loss is judged here
//! over as many aggregates as a loss at the threshold needs to show, [`Losses`].

use std::{fmt, marker::PhantomData};

use super::{
    Cause, Controller, Decision, DeliveryCounts, Held, Limits, Observation, Parameters, TooNarrow,
    fits, within,
};
use keiro_units::{Bandwidth, ByteCount, Instant, Probability};

/// How the columns of the table that are about the receiver are read.
pub trait Reading: fmt::Debug + Default + Send {
    /// Overflows per second that are compared with the thresholds A and B.
    fn overflows_per_second(seen: &Observation) -> f64;

    /// What may recover at `current`, where there are few overflows.
    fn recovery(current: &Parameters, limits: &Limits) -> Recovery;
}

/// Which parameters may go back to more throughput.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovery {
    pub size_may_rise: bool,
    pub interval_may_fall: bool,
}

/// S rises if it is below its initial value or I is at its minimum; I falls if it is above its
/// minimum. Overflows are the socket's.
#[derive(Clone, Copy, Debug, Default)]
pub struct Meant;

/// The controller of table 2, as `R` reads it.
#[derive(Clone, Debug)]
pub struct Table2<R = Meant> {
    held: Held,
    losses: Losses,
    trial: Trial,
    reading: PhantomData<R>,
}

/// Where N stands between "raise it first" and "lower it if the loss grows".
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trial {
    None,
    /// N was raised at this loss.
    Raised {
        before: f64,
    },
    /// More copies did not help: N falls as long as there is too much loss, and no more of it than before.
    Lowering {
        before: f64,
    },
}

/// Bytes by which S grows in a period. Ours: a quarter of what it may at least be, so that from the
/// least to the initial value it takes twelve periods.
const SIZE_INCREASE: u64 = 128;
/// S falls to one part of this. Chiu and Jain's usual decrease.
const SIZE_DECREASE: u64 = 2;
/// Multiple of the earlier loss from which it has grown. Ours: of twenty losses each, chance makes
/// it one and a half once in a dozen times, of one and the same loss.
const GROWN: f64 = 1.5;

impl Reading for Meant {
    fn overflows_per_second(seen: &Observation) -> f64 {
        seen.per_second(seen.socket_overflows)
    }

    fn recovery(current: &Parameters, limits: &Limits) -> Recovery {
        let at_min = current.interval == limits.interval_min();
        Recovery {
            size_may_rise: current.size < limits.initial().size || at_min,
            interval_may_fall: !at_min,
        }
    }
}

impl<R: Reading> Table2<R> {
    /// At the initial parameters, or at what `bandwidth` leaves of them.
    ///
    /// # Errors
    /// If no combination stays within `bandwidth`.
    pub fn new(limits: Limits, bandwidth: Bandwidth) -> Result<Self, TooNarrow> {
        let thresholds = limits.thresholds();
        let losses = Losses::new(thresholds.loss_high, thresholds.loss_low);
        Ok(Self {
            held: Held::new(limits, bandwidth)?,
            losses,
            trial: Trial::None,
            reading: PhantomData,
        })
    }

    /// Threshold A: I up, then S down.
    fn relieve_receiver(&self, overflows: f64) -> Option<(Parameters, Cause)> {
        let Held {
            limits,
            wanted,
            current,
        } = &self.held;
        let threshold = limits.thresholds().overflow_high;
        if overflows < f64::from(threshold) {
            return None;
        }
        let cause = Cause::Overflows {
            per_second: overflows,
            threshold,
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
        let half = ByteCount::new(current.size.get() / SIZE_DECREASE);
        let size = half.max(limits.size_min());
        (size < current.size).then_some((Parameters { size, ..*wanted }, cause))
    }

    /// Threshold B: S up, then I down.
    fn use_receiver(&self, overflows: f64, bandwidth: Bandwidth) -> Option<(Parameters, Cause)> {
        let Held {
            limits,
            wanted,
            current,
        } = &self.held;
        let threshold = limits.thresholds().overflow_low;
        if overflows > f64::from(threshold) {
            return None;
        }
        let cause = Cause::NoOverflows {
            per_second: overflows,
            threshold,
        };
        let recovery = R::recovery(current, limits);
        let size = ByteCount::new(current.size.get().saturating_add(SIZE_INCREASE));
        let size = size.min(limits.size_max());
        let larger = Parameters { size, ..*current };
        if recovery.size_may_rise && size > current.size && fits(&larger, limits, bandwidth) {
            return Some((Parameters { size, ..*wanted }, cause));
        }
        let interval = limits.interval_below(current.interval)?;
        let sooner = Parameters {
            interval,
            ..*current
        };
        (recovery.interval_may_fall && fits(&sooner, limits, bandwidth)).then_some((
            Parameters {
                interval,
                ..*wanted
            },
            cause,
        ))
    }

    /// Thresholds C and D: N.
    fn follow_loss(&mut self, bandwidth: Bandwidth) -> Option<(Parameters, Cause)> {
        let Held {
            limits,
            wanted,
            current,
        } = &self.held;
        let with = |copies| Parameters { copies, ..*wanted };
        let thresholds = limits.thresholds();
        match self.losses.verdict()? {
            Verdict::High(loss) => {
                let threshold = thresholds.loss_high;
                let lower = limits.copies_below(current.copies).map(with);
                match self.trial {
                    Trial::Raised { before } if loss > before * GROWN => {
                        self.trial = Trial::Lowering { before: loss };
                        let cause = Cause::LossGrew {
                            before,
                            after: loss,
                        };
                        lower.map(|lower| (lower, cause))
                    }
                    Trial::Lowering { before } if loss <= before * GROWN => {
                        self.trial = Trial::Lowering { before: loss };
                        lower.map(|lower| (lower, Cause::LossStays { loss, threshold }))
                    }
                    // Where fewer copies have left more loss, it was the line that got worse.
                    Trial::None | Trial::Raised { .. } | Trial::Lowering { .. } => {
                        // Where N cannot be raised, whether the loss grows is held against this.
                        if self.trial == Trial::None {
                            self.trial = Trial::Raised { before: loss };
                        }
                        let higher = limits.copies_above(current.copies).map(with)?;
                        let fitted = within(higher, limits, bandwidth).ok()?;
                        if fitted.copies <= current.copies {
                            return None;
                        }
                        self.trial = Trial::Raised { before: loss };
                        Some((higher, Cause::Loss { loss, threshold }))
                    }
                }
            }
            Verdict::NotHigh => {
                self.trial = Trial::None;
                None
            }
            Verdict::Low(loss) => {
                self.trial = Trial::None;
                let copies = limits.initial().copies;
                let cause = Cause::LossGone {
                    loss,
                    threshold: thresholds.loss_low,
                };
                (copies != wanted.copies).then_some((with(copies), cause))
            }
        }
    }
}

impl<R: Reading> Controller for Table2<R> {
    fn parameters(&self) -> Parameters {
        self.held.current
    }

    fn on_period(&mut self, _: Instant, seen: &Observation) -> Result<Decision, TooNarrow> {
        let bandwidth = seen.bandwidth;
        let overflows = R::overflows_per_second(seen);
        self.losses.add(seen);
        // What the bandwidth takes or gives back comes first: the cells go by what is in force.
        let fitted = self
            .held
            .decide(self.held.wanted, bandwidth, Cause::Steady)?;
        if fitted.is_change() {
            return Ok(fitted);
        }
        let step = self
            .relieve_receiver(overflows)
            .or_else(|| self.follow_loss(bandwidth))
            .or_else(|| self.use_receiver(overflows, bandwidth));
        let Some((wanted, cause)) = step else {
            return Ok(fitted);
        };
        let decision = self.held.decide(wanted, bandwidth, cause)?;
        if decision.before.copies != decision.parameters.copies {
            // What comes now is of what was sent with the new N.
            self.losses.clear();
        }
        Ok(decision)
    }
}

/// Judges the loss of aggregates against a high and a low threshold, each over as many aggregates
/// as it takes.
#[derive(Clone, Copy, Debug)]
struct Losses {
    high: Probability,
    low: Probability,
    short: DeliveryCounts,
    long: DeliveryCounts,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Verdict {
    /// At or above the high threshold.
    High(f64),
    /// Below it, shown by as many aggregates as are needed.
    NotHigh,
    /// At or below the low threshold.
    Low(f64),
}

/// Losses that show how large a loss ratio is. Ours: to a quarter.
const LOSSES_SHOWN: u64 = 20;

impl Losses {
    fn new(high: Probability, low: Probability) -> Self {
        Self {
            high,
            low,
            short: DeliveryCounts::default(),
            long: DeliveryCounts::default(),
        }
    }

    fn clear(&mut self) {
        *self = Self::new(self.high, self.low);
    }

    fn add(&mut self, seen: &Observation) {
        self.short.add(seen.aggregates);
        self.long.add(seen.aggregates);
    }

    /// `None`: too little is known yet.
    fn verdict(&mut self) -> Option<Verdict> {
        let loss = self.short.loss();
        if self.short.lost >= LOSSES_SHOWN && loss >= self.high.get() {
            self.clear();
            return Some(Verdict::High(loss));
        }
        let long = self.long;
        if long.sent as f64 >= 1.0 / self.low.get() {
            self.long = DeliveryCounts::default();
            if long.loss() <= self.low.get() {
                self.short = DeliveryCounts::default();
                return Some(Verdict::Low(long.loss()));
            }
        }
        if self.short.sent as f64 >= LOSSES_SHOWN as f64 / self.high.get() {
            self.short = DeliveryCounts::default();
            return Some(Verdict::NotHigh);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const WIDE: Bandwidth = Bandwidth::from_mbit_per_second(1000);

    fn at(size: u64, interval_us: u64, copies: u8) -> Parameters {
        Parameters::new(
            ByteCount::new(size),
            Duration::from_micros(interval_us),
            copies,
        )
        .unwrap()
    }

    fn controller(parameters: Parameters) -> Table2 {
        let mut controller = Table2::new(Limits::default(), WIDE).unwrap();
        controller.held.wanted = parameters;
        controller.held.current = parameters;
        controller
    }

    /// A second with `overflows`, and with `lost` of 100,000 aggregates.
    fn second(overflows: u64, lost: u64) -> Observation {
        Observation {
            period: Duration::from_secs(1),
            socket_overflows: overflows,
            aggregates: DeliveryCounts {
                sent: 100_000,
                lost,
            },
            bandwidth: WIDE,
            ..Observation::default()
        }
    }

    /// So few aggregates that loss is not judged.
    fn overflows(per_second: u64, bandwidth: Bandwidth) -> Observation {
        Observation {
            aggregates: DeliveryCounts::default(),
            bandwidth,
            ..second(per_second, 0)
        }
    }

    #[track_caller]
    fn steps(controller: &mut Table2, seen: Observation, expected: Parameters) -> Cause {
        let decision = controller.on_period(Instant::ZERO, &seen).unwrap();
        let found = decision.parameters;
        assert_eq!(found, expected, "{decision}, not {expected}");
        assert_eq!(controller.parameters(), expected);
        decision.cause
    }

    #[test]
    fn every_cell_of_the_receivers_columns() {
        for (overflowing, before, after) in [
            // Threshold A: I while it is below its maximum, then S.
            (true, (2048, 500, 2), (2048, 750, 2)),
            (true, (2048, 1000, 2), (2048, 2000, 2)),
            (true, (512, 2000, 2), (512, 4000, 2)),
            (true, (2048, 4000, 2), (1024, 4000, 2)),
            (true, (600, 4000, 2), (512, 4000, 2)),
            (true, (512, 4000, 2), (512, 4000, 2)),
            // Threshold B: S while it is below its initial value, then I, then S again.
            (false, (1024, 4000, 2), (1152, 4000, 2)),
            (false, (1984, 2000, 2), (2112, 2000, 2)),
            (false, (2048, 4000, 2), (2048, 2000, 2)),
            (false, (2048, 1000, 2), (2048, 750, 2)),
            (false, (4096, 1000, 2), (4096, 750, 2)),
            (false, (2048, 500, 2), (2176, 500, 2)),
            (false, (8100, 500, 2), (8192, 500, 2)),
            (false, (8192, 500, 2), (8192, 500, 2)),
        ] {
            let per_second = if overflowing { 40 } else { 4 };
            let mut controller = controller(at(before.0, before.1, before.2));
            let after = at(after.0, after.1, after.2);
            let cause = steps(&mut controller, overflows(per_second, WIDE), after);
            let changes = after != at(before.0, before.1, before.2);
            match cause {
                Cause::Overflows { .. } => assert!(overflowing && changes),
                Cause::NoOverflows { .. } => assert!(!overflowing && changes),
                other => assert!(other == Cause::Steady && !changes, "{other:?}"),
            }
        }
    }

    #[test]
    fn overflows_of_the_rest_of_the_system_move_nothing() {
        let before = at(2048, 1000, 2);
        let seen = Observation {
            socket_overflows: 10,
            system_overflows: 1000,
            ..overflows(0, WIDE)
        };
        steps(&mut controller(before), seen, before);
    }

    #[test]
    fn between_the_thresholds_nothing_moves() {
        for before in [at(1024, 4000, 2), at(2048, 1000, 3), at(4096, 500, 1)] {
            let mut controller = controller(before);
            for overflows in [5, 39] {
                // Loss between 0.01 and 0.5 %.
                let cause = steps(&mut controller, second(overflows, 100), before);
                assert_eq!(cause, Cause::Steady);
            }
        }
    }

    #[test]
    fn everything_recovers_from_the_longest_interval() {
        let calm = overflows(0, WIDE);
        let mut controller = controller(at(512, 4000, 2));
        for _ in 0..100 {
            controller.on_period(Instant::ZERO, &calm).unwrap();
        }
        assert_eq!(controller.parameters(), at(8192, 500, 2));
    }

    #[test]
    fn nothing_is_raised_beyond_the_bandwidth() {
        let mbit = Bandwidth::from_mbit_per_second;
        // 0.75 ms would be 43.7 Mbit/s.
        let initial = Limits::default().initial();
        let mut held = controller(initial);
        steps(&mut held, overflows(0, mbit(43)), initial);
        steps(&mut held, overflows(0, mbit(44)), at(2048, 750, 2));
        // 2176 B in 0.5 ms would be 69.6 Mbit/s.
        let mut held = controller(at(2048, 500, 2));
        steps(&mut held, overflows(0, mbit(69)), at(2048, 500, 2));
        steps(&mut held, overflows(0, mbit(70)), at(2176, 500, 2));
    }

    #[test]
    fn more_copies_stay_if_they_help_and_go_when_the_loss_has() {
        let mut controller = controller(at(8192, 500, 2));
        let cause = steps(&mut controller, second(20, 1000), at(8192, 500, 3));
        assert!(matches!(cause, Cause::Loss { loss, .. } if loss == 0.01));
        steps(&mut controller, second(20, 100), at(8192, 500, 3));
        let cause = steps(&mut controller, second(20, 10), at(8192, 500, 2));
        assert!(matches!(cause, Cause::LossGone { loss, .. } if loss == 0.0001));
    }

    #[test]
    fn fewer_copies_that_leave_more_loss_are_taken_back() {
        let raised = || {
            let mut controller = controller(at(2048, 500, 2));
            steps(&mut controller, second(10, 640), at(2048, 500, 3));
            controller
        };
        let mut controller = raised();
        // The line gets worse just then, not by the copies.
        steps(&mut controller, second(10, 1560), at(2048, 500, 2));
        let cause = steps(&mut controller, second(10, 6250), at(2048, 500, 3));
        assert!(matches!(cause, Cause::Loss { .. }), "{cause}");
        // Nor is what was found of it kept when it is over.
        let mut controller = raised();
        steps(&mut controller, second(10, 1560), at(2048, 500, 2));
        steps(&mut controller, second(10, 300), at(2048, 500, 2));
        steps(&mut controller, second(10, 640), at(2048, 500, 3));
    }

    #[test]
    fn more_copies_go_if_the_loss_grows_by_them() {
        let mut controller = controller(at(8192, 500, 2));
        steps(&mut controller, second(20, 1000), at(8192, 500, 3));
        let cause = steps(&mut controller, second(20, 3000), at(8192, 500, 2));
        assert_eq!(
            cause,
            Cause::LossGrew {
                before: 0.01,
                after: 0.03
            }
        );
        let cause = steps(&mut controller, second(20, 1000), at(8192, 500, 1));
        assert!(matches!(cause, Cause::LossStays { .. }));
        steps(&mut controller, second(20, 1000), at(8192, 500, 1));
        steps(&mut controller, second(20, 0), at(8192, 500, 2));
    }

    #[test]
    fn the_same_loss_is_no_growth() {
        let mut controller = controller(at(8192, 500, 1));
        steps(&mut controller, second(20, 1000), at(8192, 500, 2));
        steps(&mut controller, second(20, 1000), at(8192, 500, 3));
        for _ in 0..10 {
            steps(&mut controller, second(20, 1000), at(8192, 500, 3));
        }
    }

    #[test]
    fn for_another_copy_size_yields_and_where_nothing_can_nothing_happens() {
        let mbit = Bandwidth::from_mbit_per_second;
        let lossy = |bandwidth| Observation {
            bandwidth,
            ..second(20, 1000)
        };
        let mut held = controller(at(2048, 1000, 2));
        steps(&mut held, lossy(mbit(36)), at(1500, 1000, 3));
        // One and a half Mbit/s: 375 B in 2 ms.
        let narrow = Bandwidth::from_bits_per_second(1_500_000);
        let mut held = controller(at(512, 4000, 1));
        steps(&mut held, lossy(narrow), at(512, 4000, 1));
    }

    #[test]
    fn losses_are_judged_when_enough_is_known() {
        let probability = |value| Probability::new(value).unwrap();
        let mut losses = Losses::new(probability(0.005), probability(0.001));
        let mut add = |sent, lost| {
            losses.add(&Observation {
                aggregates: DeliveryCounts { sent, lost },
                ..Observation::default()
            });
            losses.verdict()
        };
        assert_eq!(add(100, 19), None);
        assert_eq!(add(100, 1), Some(Verdict::High(0.1)));
        // High clears everything.
        assert_eq!(add(999, 1), None);
        assert_eq!(add(1, 0), Some(Verdict::Low(0.001)));
        for _ in 0..3 {
            assert_eq!(add(1000, 3), None);
        }
        assert_eq!(add(1000, 3), Some(Verdict::NotHigh));
    }
}
