//! Why settings of aggregation are refused, and what to write instead.

use std::{fmt, time::Duration};

use keiro_units::{ByteCount, Probability};

use super::{COPIES_MAX, INTERVAL_MAX, INTERVAL_MIN, SIZE_MAX, Thresholds, VALUES_MAX};

/// Why [`Settings`](super::Settings) are refused, and by its [`Display`](fmt::Display) what to write instead.
#[derive(Clone, Debug, PartialEq)]
pub enum LimitsError {
    /// There is no value of I.
    NoIntervals,
    /// There is no value of N.
    NoCopies,
    /// More than [`VALUES_MAX`] values of one parameter.
    TooManyValues {
        parameter: &'static str,
        /// How many there are.
        count: usize,
    },
    /// A value of I is not larger than the one before it.
    IntervalsUnsorted { interval: Duration, after: Duration },
    /// A value of N is not larger than the one before it.
    CopiesUnsorted { copies: u8, after: u8 },
    /// I of zero: an aggregate would be sent without end.
    IntervalZero {
        /// `interval` or `intervals`.
        key: &'static str,
    },
    /// I below [`INTERVAL_MIN`].
    IntervalTooShort {
        /// `interval` or `intervals`.
        key: &'static str,
        interval: Duration,
    },
    /// I above [`INTERVAL_MAX`].
    IntervalTooLong {
        /// `interval` or `intervals`.
        key: &'static str,
        interval: Duration,
    },
    /// N of zero: nothing would be sent.
    CopiesZero {
        /// `copies` or `copies_values`.
        key: &'static str,
    },
    /// N above [`COPIES_MAX`].
    CopiesTooMany {
        /// `copies` or `copies_values`.
        key: &'static str,
        copies: u8,
    },
    /// The initial I is none of the values of I.
    IntervalNotListed {
        interval: Duration,
        intervals: Vec<Duration>,
    },
    /// The initial N is none of the values of N.
    CopiesNotListed { copies: u8, listed: Vec<u8> },
    /// The least S leaves no room for payload.
    SizeBelowHeader {
        size: ByteCount,
        /// What a packet carries beside payload.
        header: ByteCount,
    },
    /// The largest S is above [`SIZE_MAX`].
    SizeTooLarge(ByteCount),
    /// The least S is above the largest.
    SizesCrossed { min: ByteCount, max: ByteCount },
    /// The initial S is not between the least and the largest.
    SizeOutside {
        size: ByteCount,
        min: ByteCount,
        max: ByteCount,
    },
    /// `overflow_low` is not below `overflow_high`.
    OverflowsCrossed { low: u32, high: u32 },
    /// `overflow_high` of zero: it would act where nothing overflows.
    OverflowZero,
    /// `loss_low` is not below `loss_high`.
    LossesCrossed { low: Probability, high: Probability },
    /// `loss_low` or `loss_target` of zero: no measurement ever shows a loss of zero.
    LossZero { key: &'static str },
    /// `loss_high` or `loss_target` of [`LOSS_MAX`](super::LOSS_MAX) or more: it would never act.
    LossTooLarge {
        key: &'static str,
        loss: Probability,
    },
    /// `loss_high`, `loss_low` or `loss_target` below [`LOSS_MIN`](super::LOSS_MIN): no count shows so little.
    LossTooSmall {
        key: &'static str,
        loss: Probability,
    },
}

impl LimitsError {
    /// The keys of a configuration whose values are at fault, the likeliest first.
    pub fn keys(&self) -> Vec<&'static str> {
        match self {
            Self::NoIntervals | Self::IntervalsUnsorted { .. } => vec!["intervals"],
            Self::NoCopies | Self::CopiesUnsorted { .. } => vec!["copies_values"],
            Self::TooManyValues { parameter: "I", .. } => vec!["intervals"],
            Self::TooManyValues { .. } => vec!["copies_values"],
            Self::IntervalZero { key }
            | Self::IntervalTooShort { key, .. }
            | Self::IntervalTooLong { key, .. }
            | Self::CopiesZero { key }
            | Self::CopiesTooMany { key, .. }
            | Self::LossZero { key }
            | Self::LossTooLarge { key, .. }
            | Self::LossTooSmall { key, .. } => vec![key],
            Self::IntervalNotListed { .. } => vec!["interval", "intervals"],
            Self::CopiesNotListed { .. } => vec!["copies", "copies_values"],
            Self::SizeBelowHeader { .. } => vec!["size_min"],
            Self::SizeTooLarge(_) => vec!["size_max"],
            Self::SizesCrossed { .. } => vec!["size_min", "size_max"],
            Self::SizeOutside { size, min, .. } if size < min => vec!["size", "size_min"],
            Self::SizeOutside { .. } => vec!["size", "size_max"],
            Self::OverflowZero => vec!["overflow_high"],
            Self::OverflowsCrossed { .. } => vec!["overflow_low", "overflow_high"],
            Self::LossesCrossed { .. } => vec!["loss_low", "loss_high"],
        }
    }
}

/// A loss that the key may have: its default.
fn example(key: &str) -> Percent {
    let default = Thresholds::default();
    Percent(match key {
        "loss_high" => default.loss_high,
        "loss_low" => default.loss_low,
        _ => default.loss_target,
    })
}

/// A size as a configuration writes it.
struct Bytes(ByteCount);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}B", self.0.get())
    }
}

/// A loss as a configuration writes it.
struct Percent(Probability);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = self.0.get() * 100.0;
        // Nine digits: as many as a share of a count has; no 0.30000000000000004. But two losses that
        // differ are not written as one.
        let written = format!("{percent:.9}");
        let short = written.trim_end_matches('0').trim_end_matches('.');
        let is_near = short
            .parse()
            .is_ok_and(|short: f64| (short - percent).abs() <= 4.0 * f64::EPSILON * percent);
        match is_near {
            true => write!(f, "{short}%"),
            false => write!(f, "{percent}%"),
        }
    }
}

impl std::error::Error for LimitsError {}

impl fmt::Display for LimitsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoIntervals => f.write_str("no interval I is given; give at least one, as 1 ms"),
            Self::NoCopies => {
                f.write_str("no number of copies N is given; give at least one, as 2")
            }
            Self::TooManyValues { parameter, count } => write!(
                f,
                "{count} values of {parameter} are too many; give at most {VALUES_MAX}"
            ),
            Self::IntervalsUnsorted { interval, after } => write!(
                f,
                "interval {interval:?} comes after {after:?}; give each once, the shortest first"
            ),
            Self::CopiesUnsorted { copies, after } => write!(
                f,
                "N = {copies} comes after N = {after}; give each once, the smallest first"
            ),
            Self::IntervalZero { .. } => write!(
                f,
                "an interval I of zero never ends; give at least {INTERVAL_MIN:?}"
            ),
            Self::IntervalTooShort { interval, .. } => write!(
                f,
                "an interval I of {interval:?} is too short; give at least {INTERVAL_MIN:?}"
            ),
            Self::IntervalTooLong { interval, .. } => write!(
                f,
                "an interval I of {interval:?} is too long; give at most {INTERVAL_MAX:?}"
            ),
            Self::CopiesZero { .. } => {
                f.write_str("N = 0 sends nothing; N = 1 sends without redundancy")
            }
            Self::CopiesTooMany { copies, .. } => {
                write!(f, "N = {copies} is too many; give at most {COPIES_MAX}")
            }
            Self::IntervalNotListed {
                interval,
                intervals,
            } => write!(
                f,
                "the initial interval {interval:?} is none of {intervals:?}; list it or take one \
                 of them"
            ),
            Self::CopiesNotListed { copies, listed } => write!(
                f,
                "the initial N = {copies} is none of {listed:?}; list it or take one of them"
            ),
            Self::SizeBelowHeader { size, header } => write!(
                f,
                "a size S of {} leaves no room for payload behind {} of headers; give more, as 512B",
                Bytes(*size),
                Bytes(*header)
            ),
            Self::SizeTooLarge(size) => write!(
                f,
                "a size S of {} is more than a packet can be; give at most {}",
                Bytes(*size),
                Bytes(SIZE_MAX)
            ),
            Self::SizesCrossed { min, max } => write!(
                f,
                "the least size {} is above the largest, {}; take a smaller or a larger one",
                Bytes(*min),
                Bytes(*max)
            ),
            Self::SizeOutside { size, min, max } => write!(
                f,
                "the initial size {} is outside {} to {}; take one inside",
                Bytes(*size),
                Bytes(*min),
                Bytes(*max)
            ),
            Self::OverflowZero => f.write_str(
                "overflow_high of 0 would act where nothing overflows; give at least 1, and \
                 less as overflow_low",
            ),
            Self::OverflowsCrossed { low, high } => write!(
                f,
                "overflow_low, {low} per second, is not below overflow_high, {high} per second; \
                 between the two nothing changes, so leave a gap"
            ),
            Self::LossesCrossed { low, high } => write!(
                f,
                "loss_low, {}, is not below loss_high, {}; between the two nothing changes, so \
                 leave a gap",
                Percent(*low),
                Percent(*high)
            ),
            Self::LossZero { key } => write!(
                f,
                "{key} of zero can never be shown to hold; give a small loss, as {}",
                example(key)
            ),
            Self::LossTooLarge { key, loss } => write!(
                f,
                "{key} of {} asks for nothing, as a line that loses so much is of no use; give \
                 less than 50%, as 0.5%",
                Percent(*loss)
            ),
            Self::LossTooSmall { key, loss } => write!(
                f,
                "{key} of {} is less than a count can show; give at least 0.0001%, as {}",
                Percent(*loss),
                example(key)
            ),
        }
    }
}
