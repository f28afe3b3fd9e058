//! The values that S, I and N may take, and the thresholds of the controllers: checked once, then known
//! to be sound.

mod error;

use std::time::Duration;

pub use error::LimitsError;

use super::Parameters;
use keiro_units::{Bandwidth, ByteCount, Probability};

/// What a configuration says, unchecked. The default is `[aggregation table 3]`, with thresholds of
/// our own, which the paper does not print.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The values of I, ascending.
    pub intervals: Vec<Duration>,
    /// I without control; one of `intervals`.
    pub interval_initial: Duration,
    /// The values of N, ascending.
    pub copies: Vec<u8>,
    /// N without control; one of `copies`.
    pub copies_initial: u8,
    /// The least S, IP bytes of a copy.
    pub size_min: ByteCount,
    pub size_max: ByteCount,
    /// S without control.
    pub size_initial: ByteCount,
    /// What a packet of the path carries beside payload, IP header included; S must be more.
    pub header: ByteCount,
    /// When there are too many overflows and too much loss.
    pub thresholds: Thresholds,
}

/// When a controller sees trouble and when it sees none. Between the two it leaves things alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// Receive-buffer overflows per second, at or above which the receiver has too much; table 2's
    /// threshold A.
    pub overflow_high: u32,
    /// Overflows per second, at or below which it has none to speak of; threshold B.
    pub overflow_low: u32,
    /// Loss of aggregates after redundancy, at or above which there is too much; threshold C.
    pub loss_high: Probability,
    /// Loss of aggregates, at or below which there is none to speak of; threshold D.
    pub loss_low: Probability,
    /// Loss of aggregates that [`Adaptive`](super::Adaptive) chooses N for; it is not the paper's.
    pub loss_target: Probability,
}

/// What S, I and N may be, and the thresholds; made from [`Settings`], and sound.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    settings: Settings,
}

/// Values of I or N at most.
pub const VALUES_MAX: usize = 16;
/// N at most. Ours: with ten the loss of a line of 30 % is one in 170,000.
pub const COPIES_MAX: u8 = 10;
/// I at least. Ours: as much as a wait with a timer is late by.
pub const INTERVAL_MIN: Duration = Duration::from_micros(50);
/// What an aggregate of one datagram or stream has beside its data at most: IPv6, UDP, header and tag
/// of Keiro's data packet, the heads of the aggregate and of the data in it, of which the longest opens a stream.
pub const AGGREGATE_HEAD: ByteCount = ByteCount::new(40 + 8 + 26 + 12 + 32);
/// What has to be left beside that where parity takes the place of copies.
pub const PARITY_HEAD: ByteCount = ByteCount::new(21);
/// I at most. Ours: what waits longer is no real-time traffic.
pub const INTERVAL_MAX: Duration = Duration::from_secs(1);
/// S at most: the largest IP packet.
pub const SIZE_MAX: ByteCount = ByteCount::new(65_535);
/// Thresholds of loss are below this. Ours: where every other aggregate is lost nothing of use goes on, and
/// until then nothing would be done.
pub const LOSS_MAX: f64 = 0.5;
/// Thresholds of loss at least. Ours: of aggregates every 4 ms, a million take more than an hour.
pub const LOSS_MIN: f64 = 1e-6;

impl Default for Settings {
    fn default() -> Self {
        Self {
            intervals: [500, 750, 1000, 2000, 4000]
                .map(Duration::from_micros)
                .to_vec(),
            interval_initial: Duration::from_millis(1),
            copies: vec![1, 2, 3],
            copies_initial: 2,
            size_min: ByteCount::new(512),
            size_max: ByteCount::new(8192),
            size_initial: ByteCount::new(2048),
            header: AGGREGATE_HEAD,
            thresholds: Thresholds::default(),
        }
    }
}

impl Default for Thresholds {
    /// Ours. Two overflows in fifty periods of 1 ms are many, none in any such time are few. Half a
    /// per cent of aggregates is what two copies leave of a line that loses 7 %; the low threshold
    /// is below what three copies leave of it, or N would go up and down for ever.
    fn default() -> Self {
        let probability = |value| Probability::new(value).unwrap_or_default();
        Self {
            overflow_high: 40,
            overflow_low: 4,
            loss_high: probability(0.005),
            loss_low: probability(0.0001),
            loss_target: probability(0.001),
        }
    }
}

impl TryFrom<Settings> for Limits {
    type Error = LimitsError;

    /// # Errors
    /// The first of [`Settings::problems`].
    fn try_from(settings: Settings) -> Result<Self, LimitsError> {
        match settings.problems().into_iter().next() {
            Some(problem) => Err(problem),
            None => Ok(Self { settings }),
        }
    }
}

impl Settings {
    /// What is wrong with them: one problem at most of I, of N, of S, and of each threshold.
    pub fn problems(&self) -> Vec<LimitsError> {
        let thresholds = &self.thresholds;
        let found = [
            intervals(self),
            copies(self),
            sizes(self),
            overflows(thresholds),
            losses(thresholds),
            target(thresholds),
        ];
        found.into_iter().filter_map(Result::err).collect()
    }
}

impl Default for Limits {
    /// `[aggregation table 3]`.
    fn default() -> Self {
        Self {
            settings: Settings::default(),
        }
    }
}

fn intervals(settings: &Settings) -> Result<(), LimitsError> {
    let listed = &settings.intervals;
    let (first, last) = match (listed.first(), listed.last()) {
        (Some(first), Some(last)) => (*first, *last),
        _ => return Err(LimitsError::NoIntervals),
    };
    few("I", listed.len())?;
    for (key, interval) in [
        ("intervals", first),
        ("interval", settings.interval_initial),
    ] {
        if interval.is_zero() {
            return Err(LimitsError::IntervalZero { key });
        }
        if interval < INTERVAL_MIN {
            return Err(LimitsError::IntervalTooShort { key, interval });
        }
    }
    if let Some(two) = listed.windows(2).find(|two| two[1] <= two[0]) {
        return Err(LimitsError::IntervalsUnsorted {
            interval: two[1],
            after: two[0],
        });
    }
    for (key, interval) in [("intervals", last), ("interval", settings.interval_initial)] {
        if interval > INTERVAL_MAX {
            return Err(LimitsError::IntervalTooLong { key, interval });
        }
    }
    if !listed.contains(&settings.interval_initial) {
        return Err(LimitsError::IntervalNotListed {
            interval: settings.interval_initial,
            intervals: listed.clone(),
        });
    }
    Ok(())
}

fn copies(settings: &Settings) -> Result<(), LimitsError> {
    let listed = &settings.copies;
    let (first, last) = match (listed.first(), listed.last()) {
        (Some(first), Some(last)) => (*first, *last),
        _ => return Err(LimitsError::NoCopies),
    };
    few("N", listed.len())?;
    for (key, copies) in [
        ("copies_values", first),
        ("copies", settings.copies_initial),
    ] {
        if copies == 0 {
            return Err(LimitsError::CopiesZero { key });
        }
    }
    if let Some(two) = listed.windows(2).find(|two| two[1] <= two[0]) {
        return Err(LimitsError::CopiesUnsorted {
            copies: two[1],
            after: two[0],
        });
    }
    for (key, copies) in [("copies_values", last), ("copies", settings.copies_initial)] {
        if copies > COPIES_MAX {
            return Err(LimitsError::CopiesTooMany { key, copies });
        }
    }
    if !listed.contains(&settings.copies_initial) {
        return Err(LimitsError::CopiesNotListed {
            copies: settings.copies_initial,
            listed: listed.clone(),
        });
    }
    Ok(())
}

fn few(parameter: &'static str, count: usize) -> Result<(), LimitsError> {
    if count > VALUES_MAX {
        return Err(LimitsError::TooManyValues { parameter, count });
    }
    Ok(())
}

fn sizes(settings: &Settings) -> Result<(), LimitsError> {
    let (min, max, size) = (settings.size_min, settings.size_max, settings.size_initial);
    if min <= settings.header {
        return Err(LimitsError::SizeBelowHeader {
            size: min,
            header: settings.header,
        });
    }
    if min > max {
        return Err(LimitsError::SizesCrossed { min, max });
    }
    if max > SIZE_MAX {
        return Err(LimitsError::SizeTooLarge(max));
    }
    if size < min || size > max {
        return Err(LimitsError::SizeOutside { size, min, max });
    }
    Ok(())
}

fn overflows(thresholds: &Thresholds) -> Result<(), LimitsError> {
    let (low, high) = (thresholds.overflow_low, thresholds.overflow_high);
    if high == 0 {
        return Err(LimitsError::OverflowZero);
    }
    if low >= high {
        return Err(LimitsError::OverflowsCrossed { low, high });
    }
    Ok(())
}

fn losses(thresholds: &Thresholds) -> Result<(), LimitsError> {
    let (low, high) = (thresholds.loss_low, thresholds.loss_high);
    within_reach("loss_low", low)?;
    if high.get() >= LOSS_MAX {
        let (key, loss) = ("loss_high", high);
        return Err(LimitsError::LossTooLarge { key, loss });
    }
    if high.get() < LOSS_MIN {
        let (key, loss) = ("loss_high", high);
        return Err(LimitsError::LossTooSmall { key, loss });
    }
    if low >= high {
        return Err(LimitsError::LossesCrossed { low, high });
    }
    Ok(())
}

fn target(thresholds: &Thresholds) -> Result<(), LimitsError> {
    let (key, loss) = ("loss_target", thresholds.loss_target);
    within_reach(key, loss)?;
    if loss.get() >= LOSS_MAX {
        return Err(LimitsError::LossTooLarge { key, loss });
    }
    Ok(())
}

/// A loss that a measurement can be below.
fn within_reach(key: &'static str, loss: Probability) -> Result<(), LimitsError> {
    match loss {
        Probability::ZERO => Err(LimitsError::LossZero { key }),
        loss if loss.get() < LOSS_MIN => Err(LimitsError::LossTooSmall { key, loss }),
        _ => Ok(()),
    }
}

impl Limits {
    /// The values of I, ascending, one at least.
    pub fn intervals(&self) -> &[Duration] {
        &self.settings.intervals
    }

    /// The values of N, ascending, one at least.
    pub fn copies(&self) -> &[u8] {
        &self.settings.copies
    }

    pub fn size_min(&self) -> ByteCount {
        self.settings.size_min
    }

    pub fn size_max(&self) -> ByteCount {
        self.settings.size_max
    }

    /// What a packet carries beside payload.
    pub fn header(&self) -> ByteCount {
        self.settings.header
    }

    pub fn thresholds(&self) -> &Thresholds {
        &self.settings.thresholds
    }

    /// S, I and N without control.
    pub fn initial(&self) -> Parameters {
        Parameters {
            size: self.settings.size_initial,
            interval: self.settings.interval_initial,
            copies: self.settings.copies_initial,
        }
    }

    /// The combination with the least M.
    pub fn smallest(&self) -> Parameters {
        Parameters {
            size: self.size_min(),
            interval: self.interval_max(),
            copies: self.copies_min(),
        }
    }

    pub fn interval_min(&self) -> Duration {
        self.intervals()[0]
    }

    pub fn interval_max(&self) -> Duration {
        self.intervals()[self.intervals().len() - 1]
    }

    pub fn copies_min(&self) -> u8 {
        self.copies()[0]
    }

    /// The next longer I; `None` at the longest.
    pub fn interval_above(&self, interval: Duration) -> Option<Duration> {
        self.intervals().iter().copied().find(|i| *i > interval)
    }

    /// The next shorter I; `None` at the shortest.
    pub fn interval_below(&self, interval: Duration) -> Option<Duration> {
        let shorter = |i: &Duration| *i < interval;
        self.intervals().iter().copied().rev().find(shorter)
    }

    /// The next larger N; `None` at the largest.
    pub fn copies_above(&self, copies: u8) -> Option<u8> {
        self.copies().iter().copied().find(|n| *n > copies)
    }

    /// The next smaller N; `None` at the least.
    pub fn copies_below(&self, copies: u8) -> Option<u8> {
        self.copies().iter().copied().rev().find(|n| *n < copies)
    }

    /// Whether S, I and N are among the values.
    pub fn contain(&self, parameters: &Parameters) -> bool {
        (self.size_min()..=self.size_max()).contains(&parameters.size)
            && self.intervals().contains(&parameters.interval)
            && self.copies().contains(&parameters.copies)
    }

    /// The least bandwidth on which any combination is possible.
    pub fn bandwidth_min(&self) -> Bandwidth {
        self.smallest().rate()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn refused(change: impl FnOnce(&mut Settings)) -> LimitsError {
        let mut settings = Settings::default();
        change(&mut settings);
        Limits::try_from(settings).unwrap_err()
    }

    #[test]
    fn table_3_is_the_default_and_is_sound() {
        let limits = Limits::try_from(Settings::default()).unwrap();
        assert_eq!(limits, Limits::default());
        assert_eq!(limits.initial().rate().as_bits_per_second(), 32_768_000);
        assert_eq!(limits.bandwidth_min().as_bits_per_second(), 1_024_000);
        assert!(limits.contain(&limits.initial()));
        assert!(limits.contain(&limits.smallest()));
    }

    #[test]
    fn values_have_no_neighbours_beyond_the_ends() {
        let limits = Limits::default();
        assert_eq!(limits.interval_above(MS), Some(2 * MS));
        assert_eq!(limits.interval_above(4 * MS), None);
        assert_eq!(limits.interval_below(MS), Some(MS * 3 / 4));
        assert_eq!(limits.interval_below(MS / 2), None);
        assert_eq!(limits.copies_above(2), Some(3));
        assert_eq!(limits.copies_above(3), None);
        assert_eq!(limits.copies_below(2), Some(1));
        assert_eq!(limits.copies_below(1), None);
    }

    #[test]
    fn contradictory_limits_are_refused_with_a_hint() {
        let cases: Vec<(LimitsError, &str)> = vec![
            (refused(|s| s.intervals.clear()), "at least one"),
            (refused(|s| s.copies.clear()), "at least one"),
            (refused(|s| s.intervals = vec![MS; 17]), "at most 16"),
            (refused(|s| s.copies = vec![1; 17]), "at most 16"),
            (
                refused(|s| s.intervals = vec![2 * MS, MS]),
                "interval 1ms comes after 2ms",
            ),
            (refused(|s| s.intervals = vec![MS, MS]), "give each once"),
            (
                refused(|s| s.copies = vec![1, 3, 2]),
                "N = 2 comes after N = 3",
            ),
            (
                refused(|s| s.intervals = vec![Duration::ZERO, MS]),
                "an interval I of zero never ends; give at least 50µs",
            ),
            (
                refused(|s| s.interval_initial = Duration::ZERO),
                "an interval I of zero never ends",
            ),
            (
                refused(|s| s.intervals = vec![Duration::from_nanos(1), MS]),
                "an interval I of 1ns is too short; give at least 50µs",
            ),
            (
                refused(|s| s.interval_initial = Duration::from_micros(49)),
                "an interval I of 49µs is too short",
            ),
            (refused(|s| s.copies_initial = 0), "N = 1 sends"),
            (
                refused(|s| s.intervals.push(2 * INTERVAL_MAX)),
                "at most 1s",
            ),
            (
                refused(|s| s.interval_initial = 2 * INTERVAL_MAX),
                "an interval I of 2s is too long; give at most 1s",
            ),
            (refused(|s| s.copies = vec![0, 1, 2]), "N = 1 sends"),
            (refused(|s| s.copies.push(11)), "at most 10"),
            (
                refused(|s| s.copies_initial = 11),
                "N = 11 is too many; give at most 10",
            ),
            (
                refused(|s| s.interval_initial = 3 * MS),
                "the initial interval 3ms is none of",
            ),
            (
                refused(|s| s.copies_initial = 5),
                "N = 5 is none of [1, 2, 3]",
            ),
            (
                refused(|s| s.size_min = AGGREGATE_HEAD),
                "S of 118B leaves no room for payload behind 118B",
            ),
            (
                refused(|s| s.size_min = ByteCount::new(9000)),
                "9000B is above the largest, 8192B",
            ),
            (
                refused(|s| s.size_max = ByteCount::new(70_000)),
                "at most 65535B",
            ),
            (
                refused(|s| s.size_initial = ByteCount::new(511)),
                "outside 512B to 8192B",
            ),
            (
                refused(|s| s.thresholds.overflow_low = 40),
                "overflow_low, 40 per second, is not below overflow_high, 40",
            ),
            (
                refused(|s| s.thresholds.loss_low = Probability::ONE),
                "loss_low, 100%, is not below loss_high, 0.5%",
            ),
            (
                refused(|s| {
                    s.thresholds.loss_high = Probability::new(0.3).unwrap();
                    s.thresholds.loss_low = Probability::new(0.1 + 0.2).unwrap();
                }),
                "loss_low, 30%, is not below loss_high, 30%",
            ),
            (
                refused(|s| s.thresholds.loss_low = Probability::new(1e-12).unwrap()),
                "loss_low of 0.0000000001% is less than a count can show",
            ),
            (
                refused(|s| s.thresholds.loss_high = Probability::new(9e-7).unwrap()),
                "loss_high of 0.00009% is less than a count can show; give at least 0.0001%",
            ),
            (
                refused(|s| s.thresholds.loss_target = Probability::new(9e-7).unwrap()),
                "loss_target of 0.00009% is less than a count can show",
            ),
            (
                refused(|s| s.thresholds.loss_high = Probability::new(0.5).unwrap()),
                "loss_high of 50% asks for nothing",
            ),
            (
                refused(|s| s.thresholds.loss_target = Probability::new(0.5).unwrap()),
                "loss_target of 50% asks for nothing",
            ),
            (
                refused(|s| s.thresholds.loss_low = Probability::ZERO),
                "loss_low of zero",
            ),
            (
                refused(|s| s.thresholds.loss_target = Probability::ZERO),
                "loss_target of zero",
            ),
            (
                refused(|s| s.thresholds.loss_target = Probability::ONE),
                "loss_target of 100% asks for nothing",
            ),
        ];
        for (error, part) in cases {
            let said = error.to_string();
            assert!(said.contains(part), "{said:?} does not say {part:?}");
            assert!(!error.keys().is_empty());
        }
    }
    #[test]
    fn each_parameter_has_its_problem() {
        let mut settings = Settings::default();
        assert_eq!(settings.problems(), []);
        settings.intervals.clear();
        settings.copies_initial = 0;
        settings.size_min = ByteCount::ZERO;
        settings.thresholds.overflow_low = 40;
        settings.thresholds.loss_low = Probability::ONE;
        settings.thresholds.loss_target = Probability::ZERO;
        let keys: Vec<&str> = settings.problems().iter().map(|p| p.keys()[0]).collect();
        let wrong = [
            "intervals",
            "copies",
            "size_min",
            "overflow_low",
            "loss_low",
            "loss_target",
        ];
        assert_eq!(keys, wrong);
    }
}
