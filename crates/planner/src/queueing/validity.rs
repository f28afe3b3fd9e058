//! Whether a forecast may be given at all: what was measured says if the model's assumptions hold.

use std::fmt;

use super::traffic::Spread;

/// Factors beyond are not believed: such a queue is another one.
pub(super) const FACTOR_RANGE: [f64; 2] = [0.5, 2.0];

/// What was seen of one application in a window, in two halves of equal time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrafficWindow {
    /// The earlier and the later half.
    pub halves: [WindowHalf; 2],
    /// How much intervals varied over the whole window.
    pub interval_spread: Spread,
    /// The part of messages that come with the one before
    /// ([`Workload::together`](keiro_model::workload::Workload::together)).
    pub together: f64,
}

/// Half of a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowHalf {
    pub messages: u64,
    /// Their mean length in bytes; of no meaning without messages.
    pub length_mean: f64,
    /// How much lengths varied.
    pub length_spread: Spread,
}

/// Why there is no forecast. Every number is what it was judged by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NoForecast {
    /// More arrives than can be sent: the delay grows without end.
    Overloaded {
        /// The path's mean load, as a part of its rate.
        load: f64,
    },
    /// Too few messages to know what the application sends.
    TooLittleData {
        messages: u64,
        /// Messages needed, [`MESSAGES_MIN`].
        needed: u64,
    },
    /// The two halves of the window are not of one kind: the queue never settles.
    NotStationary {
        what: NonStationary,
        /// In the earlier half.
        before: f64,
        /// In the later half.
        after: f64,
    },
    /// Intervals vary too much for a law of two moments.
    Bursty {
        /// How much they vary.
        interval_spread: Spread,
    },
    /// Messages come several at once, which intervals by themselves do not show: pairs' vary as a
    /// Poisson process'.
    Together {
        /// The part of messages that come with the one before.
        part: f64,
    },
    /// Others on the path send bursts, which the waits behind them are not forecast of.
    AmongBursts {
        /// What they send, as a part of the path's rate.
        load: f64,
    },
    /// What was measured lies so far from the model that its correction is at its bound.
    ModelOff {
        /// The factor by which waiting would have to be corrected.
        factor: f64,
        /// The time by which delays would have to be corrected, in seconds.
        offset_s: f64,
    },
}

/// What is not stationary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NonStationary {
    /// Messages in half a window.
    Messages,
    /// Mean length in bytes.
    Length,
}

/// Fewer messages in a window are too few: a mean interval is then known to a fifth at best
/// (95 %). Ours.
pub const MESSAGES_MIN: u64 = 100;

/// Intervals that vary more are bursts, whose law two moments do not give. Ours: on simulated
/// queues the fit holds to about here.
pub(super) const INTERVAL_SPREAD_MAX: f64 = 4.0;

/// More messages that come with the one before are bursts. Ours: a third are groups of one and a
/// half; of exponential intervals it is a tenth, by chance alone never more than a fifth.
const TOGETHER_MAX: f64 = 1.0 / 3.0;

/// Others may send bursts of this part of a path's rate. Ours: of the messages of one that is
/// served behind them a hundredth may meet one then, and 99th percentiles are forecast.
const AMONG_BURSTS_MAX: f64 = 0.01;

/// A change counts if chance alone makes it less often than once in some ten thousand windows.
const SIGNIFICANT: f64 = 4.0;

/// A change counts only if it is at least this much of the quantity: less moves a forecast less
/// than its own error, however significant it is.
const CHANGE_MIN: f64 = 0.2;

impl TrafficWindow {
    /// Whether what was seen lets the model be applied to a path with this mean `load`.
    ///
    /// # Errors
    /// The first reason why not.
    pub fn check(&self, load: f64) -> Result<(), NoForecast> {
        if load.is_nan() || load >= 1.0 {
            return Err(NoForecast::Overloaded { load });
        }
        let [before, after] = self.halves;
        let messages = before.messages.saturating_add(after.messages);
        if messages < MESSAGES_MIN {
            let needed = MESSAGES_MIN;
            return Err(NoForecast::TooLittleData { messages, needed });
        }
        self.check_message_counts()?;
        self.check_lengths()?;
        if self.interval_spread.ratio() > INTERVAL_SPREAD_MAX {
            let interval_spread = self.interval_spread;
            return Err(NoForecast::Bursty { interval_spread });
        }
        if self.together > TOGETHER_MAX {
            let part = self.together;
            return Err(NoForecast::Together { part });
        }
        Ok(())
    }

    /// Counts of a renewal process differ by chance with the variance c²·n.
    fn check_message_counts(&self) -> Result<(), NoForecast> {
        let [before, after] = self.halves.map(|half| half.messages as f64);
        // Regular senders are still counted to one message in each half.
        let chance = (self.interval_spread.ratio() * (before + after) + 2.0).sqrt();
        check_change(NonStationary::Messages, before, after, chance)
    }

    fn check_lengths(&self) -> Result<(), NoForecast> {
        let [before, after] = self.halves;
        if before.messages == 0 || after.messages == 0 {
            return Ok(());
        }
        let variance = |half: &WindowHalf| {
            let square = half.length_mean * half.length_mean;
            half.length_spread.ratio() * square / half.messages as f64
        };
        let chance = (variance(&before) + variance(&after)).sqrt();
        check_change(
            NonStationary::Length,
            before.length_mean,
            after.length_mean,
            chance,
        )
    }
}

fn check_change(
    what: NonStationary,
    before: f64,
    after: f64,
    chance: f64,
) -> Result<(), NoForecast> {
    let difference = (after - before).abs();
    let share = difference / before.max(after);
    if difference > SIGNIFICANT * chance && share > CHANGE_MIN {
        return Err(NoForecast::NotStationary {
            what,
            before,
            after,
        });
    }
    Ok(())
}

impl NoForecast {
    /// Bursts are the reason.
    pub fn is_bursts(&self) -> bool {
        matches!(self, Self::Bursty { .. } | Self::Together { .. })
    }

    /// What others send in bursts, as a part of the path's rate, if that is a reason.
    pub fn if_among_bursts(load: f64) -> Option<Self> {
        (load > AMONG_BURSTS_MAX).then_some(Self::AmongBursts { load })
    }
}

impl fmt::Display for NoForecast {
    /// One line, with the numbers it was judged by.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Overloaded { load } if load >= 10.0 => {
                write!(
                    f,
                    "overloaded: {load:.0} times the path's rate is asked for"
                )
            }
            Self::Overloaded { load } => {
                write!(
                    f,
                    "overloaded: {:.0} % of the path's rate is asked for",
                    load * 100.0
                )
            }
            Self::TooLittleData { messages, needed } => {
                write!(f, "too little data: {messages} of {needed} messages seen")
            }
            Self::NotStationary {
                what,
                before,
                after,
            } => {
                let what = match what {
                    NonStationary::Messages => "messages in half the window",
                    NonStationary::Length => "mean length in bytes",
                };
                write!(
                    f,
                    "not stationary: {what} went from {before:.0} to {after:.0}"
                )
            }
            Self::Bursty { interval_spread } => {
                write!(
                    f,
                    "bursty: the variance of intervals is {:.1} times their mean squared, forecasts need at most {INTERVAL_SPREAD_MAX}",
                    interval_spread.ratio()
                )
            }
            Self::Together { part } => {
                write!(
                    f,
                    "bursty: {:.0} % of the messages come together with another, forecasts need at most {:.0} %",
                    part * 100.0,
                    TOGETHER_MAX * 100.0
                )
            }
            Self::AmongBursts { load } => {
                write!(
                    f,
                    "others on the path send bursts, of {:.1} % of its rate",
                    load * 100.0
                )
            }
            Self::ModelOff { factor, offset_s } => {
                let [least, most] = FACTOR_RANGE;
                f.write_str("the model does not fit: messages ")?;
                if factor > most {
                    write!(f, "wait {factor:.1} times as long as it says")
                } else if factor < least {
                    write!(f, "wait less than {least} times as long as it says")
                } else {
                    let beyond = if offset_s > 0.0 { "longer" } else { "less" };
                    write!(
                        f,
                        "take {:.0} ms {beyond} than it says",
                        offset_s.abs() * 1e3
                    )
                }
            }
        }
    }
}

impl std::error::Error for NoForecast {}

#[cfg(test)]
mod tests {
    use super::*;

    fn half(messages: u64, length_mean: f64) -> WindowHalf {
        WindowHalf {
            messages,
            length_mean,
            length_spread: Spread::NONE,
        }
    }

    fn window(before: WindowHalf, after: WindowHalf) -> TrafficWindow {
        TrafficWindow {
            halves: [before, after],
            interval_spread: Spread::EXPONENTIAL,
            together: 0.1,
        }
    }

    #[test]
    fn steady_traffic_is_valid() {
        let window = window(half(500, 1e4), half(540, 1e4));
        assert_eq!(window.check(0.8), Ok(()));
    }

    #[test]
    fn a_load_of_one_has_no_forecast() {
        let steady = window(half(500, 1e4), half(500, 1e4));
        for load in [1.0, 1.7, f64::INFINITY, f64::NAN] {
            assert!(matches!(
                steady.check(load),
                Err(NoForecast::Overloaded { .. })
            ));
        }
    }

    #[test]
    fn few_messages_are_too_few() {
        let few = window(half(49, 1e4), half(50, 1e4));
        let expected = NoForecast::TooLittleData {
            messages: 99,
            needed: 100,
        };
        assert_eq!(few.check(0.5), Err(expected));
        let silent = window(half(0, f64::NAN), half(0, f64::NAN));
        assert!(silent.check(0.5).is_err());
    }

    #[test]
    fn a_rate_or_a_length_that_changes_is_not_stationary() {
        let faster = window(half(300, 1e4), half(600, 1e4));
        let longer = window(half(300, 1e4), half(300, 2e4));
        for (window, expected) in [
            (faster, NonStationary::Messages),
            (longer, NonStationary::Length),
        ] {
            let Err(NoForecast::NotStationary { what, .. }) = window.check(0.5) else {
                panic!("{window:?} is not stationary");
            };
            assert_eq!(what, expected);
        }
        let stopped = window(half(300, 1e4), half(0, f64::NAN));
        assert!(stopped.check(0.5).is_err());
    }

    #[test]
    fn random_variation_is_no_change() {
        // 60 against 90 is a third less, but 30 is no more than 2.4 standard deviations.
        assert_eq!(window(half(60, 1e4), half(90, 1e4)).check(0.5), Ok(()));
        let vary = |mean| WindowHalf {
            length_spread: Spread::EXPONENTIAL,
            ..half(60, mean)
        };
        assert_eq!(window(vary(1e4), vary(1.4e4)).check(0.5), Ok(()));
    }

    #[test]
    fn a_model_that_does_not_fit_says_in_which_way() {
        let said = |factor, offset_s| NoForecast::ModelOff { factor, offset_s }.to_string();
        assert_eq!(
            said(4.911, 0.000_02),
            "the model does not fit: messages wait 4.9 times as long as it says"
        );
        assert_eq!(
            said(-0.3, 0.0),
            "the model does not fit: messages wait less than 0.5 times as long as it says"
        );
        assert_eq!(
            said(1.1, 0.0312),
            "the model does not fit: messages take 31 ms longer than it says"
        );
        assert_eq!(
            said(1.1, -0.0312),
            "the model does not fit: messages take 31 ms less than it says"
        );
    }

    #[test]
    fn bursts_have_no_forecast() {
        let bursts = TrafficWindow {
            interval_spread: Spread::new(9.0).unwrap(),
            ..window(half(500, 1e4), half(500, 1e4))
        };
        let reason = bursts.check(0.5).unwrap_err();
        assert!(reason.to_string().starts_with("bursty: "), "{reason}");
        let pairs = TrafficWindow {
            together: 0.5,
            ..window(half(500, 1e4), half(500, 1e4))
        };
        let reason = pairs.check(0.5).unwrap_err();
        assert!(reason.to_string().starts_with("bursty: 50 %"), "{reason}");
    }
}
