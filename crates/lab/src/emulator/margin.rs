//! How long before a deadline the thread must be awake, learnt from the lateness of its timers.
//!
//! A virtual machine's timers are late by tens of microseconds, and by more after a longer sleep, when the
//! CPU has gone to sleep as well. A margin that covers most of the lateness keeps releases punctual; one that
//! covers all of it would use a whole CPU.

use std::time::Duration;

/// Sleeps up to this are short; ours: the kernel's guest halt polling keeps a CPU awake for about as long.
const SHORT_MAX: Duration = Duration::from_micros(300);

/// Initial margin: about right for a virtual machine, so that little is late while it learns.
const START_SHORT_NANOS: u64 = 30_000;
const START_LONG_NANOS: u64 = 80_000;

/// Minimum and maximum of the margin. Ours: the wake-up time with an exact clock; a tenth of a CPU at a
/// thousand wake-ups per second.
const NANOS_MIN: u64 = 10_000;
const NANOS_MAX: u64 = 120_000;

/// One of this many wake-ups may exceed the margin; a step up is as much larger.
const ONE_IN: u64 = 150;

/// A step down; a step up is [`ONE_IN`] − 1 of them. So the margin settles where one in `ONE_IN` is late, and
/// a single stall of many milliseconds hardly changes it.
const STEP_NANOS: u64 = 25;

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Margin {
    short_nanos: u64,
    long_nanos: u64,
}

impl Margin {
    pub(super) const fn new() -> Self {
        Self {
            short_nanos: START_SHORT_NANOS,
            long_nanos: START_LONG_NANOS,
        }
    }

    /// How long to sleep if a frame is due in `left`; `None` if that is too close to sleep.
    pub(super) fn sleep_for(&self, left: Duration) -> Option<Duration> {
        let after = |nanos| {
            let sleep = left.checked_sub(Duration::from_nanos(nanos))?;
            (!sleep.is_zero()).then_some(sleep)
        };
        match after(self.long_nanos) {
            Some(sleep) if sleep > SHORT_MAX => Some(sleep),
            _ => Some(after(self.short_nanos)?.min(SHORT_MAX)),
        }
    }

    /// Records that a timer woke the thread `late` after it had asked to sleep for `asked`.
    pub(super) fn learn(&mut self, asked: Duration, late: Duration) {
        let nanos = if asked > SHORT_MAX {
            &mut self.long_nanos
        } else {
            &mut self.short_nanos
        };
        let moved = if late > Duration::from_nanos(*nanos) {
            *nanos + (ONE_IN - 1) * STEP_NANOS
        } else {
            nanos.saturating_sub(STEP_NANOS)
        };
        *nanos = moved.clamp(NANOS_MIN, NANOS_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_millis(2);
    const SHORT: Duration = Duration::from_micros(100);

    fn margin_of(margin: &Margin, left: Duration) -> Duration {
        left - margin.sleep_for(left).unwrap()
    }

    #[test]
    fn margin_covers_most_wake_ups() {
        let mut margin = Margin::new();
        for round in 0..20_000u64 {
            // Evenly from 20 to 69 µs.
            margin.learn(LONG, Duration::from_micros(20 + round * 7 % 50));
        }
        let learnt = margin_of(&margin, LONG).as_micros();
        assert!((66..=74).contains(&learnt), "{learnt} µs");
    }

    #[test]
    fn long_sleeps_teach_nothing_about_short_ones() {
        let mut margin = Margin::new();
        for _ in 0..1000 {
            margin.learn(LONG, Duration::from_micros(95));
            margin.learn(SHORT, Duration::from_micros(15));
        }
        assert!(margin_of(&margin, LONG) >= Duration::from_micros(85));
        assert!(margin_of(&margin, SHORT) <= Duration::from_micros(20));
    }

    #[test]
    fn margin_is_bounded() {
        let mut margin = Margin::new();
        for _ in 0..10_000 {
            margin.learn(LONG, Duration::from_secs(1));
            margin.learn(SHORT, Duration::ZERO);
        }
        assert_eq!(margin_of(&margin, LONG), Duration::from_nanos(NANOS_MAX));
        assert_eq!(margin_of(&margin, SHORT), Duration::from_nanos(NANOS_MIN));
    }

    #[test]
    fn near_deadlines_are_not_slept_for() {
        let near = Duration::from_nanos(START_SHORT_NANOS);
        assert_eq!(Margin::new().sleep_for(near), None);
        assert_eq!(Margin::new().sleep_for(Duration::ZERO), None);
    }
}
