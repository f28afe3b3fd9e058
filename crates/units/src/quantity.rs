//! Quantities with their units: bandwidth, bytes, probability.
//!
//! Rounding is in the name of every operation that rounds; what does not say so is exact or says
//! that it saturates. Decimal prefixes are powers of 1000. Parsing of unit strings is left to the
//! configuration.

use std::{fmt, iter::Sum, time::Duration};

const NANOS_PER_SECOND: u128 = 1_000_000_000;
const BITS_PER_BYTE: u128 = 8;

/// A rate in bit/s, one way; what it counts (payload or wire bytes) is said where it is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bandwidth(u64);

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteCount(u64);

/// A probability in 0..=1.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Probability(f64);

impl Bandwidth {
    /// Zero: nothing can be sent.
    pub const ZERO: Self = Self(0);
    /// The largest rate that can be said, and what saturating operations stop at.
    pub const MAX: Self = Self(u64::MAX);

    /// `bits` per second.
    pub const fn from_bits_per_second(bits: u64) -> Self {
        Self(bits)
    }

    /// `mbit` Mbit/s (10^6 bit/s), saturating.
    pub const fn from_mbit_per_second(mbit: u64) -> Self {
        Self(mbit.saturating_mul(1_000_000))
    }

    /// In bit/s.
    pub const fn as_bits_per_second(self) -> u64 {
        self.0
    }

    /// Whether nothing can be sent.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The time that `bytes` take at this rate, rounded up to nanoseconds.
    ///
    /// `Duration::MAX` for a rate of zero; saturates at 2^64 - 1 ns otherwise.
    pub fn transmission_time_ceil(self, bytes: ByteCount) -> Duration {
        if self.0 == 0 {
            return Duration::MAX;
        }
        let count = bit_nanos(bytes);
        match u64::try_from(count) {
            Ok(count) => Duration::from_nanos(count.div_ceil(self.0)),
            Err(_) => duration_of(count.div_ceil(u128::from(self.0))),
        }
    }

    /// As [`transmission_time_ceil`](Self::transmission_time_ceil), rounded down.
    pub fn transmission_time_floor(self, bytes: ByteCount) -> Duration {
        if self.0 == 0 {
            return Duration::MAX;
        }
        duration_of(quotient(bit_nanos(bytes), self.0))
    }

    /// As [`transmission_time_ceil`](Self::transmission_time_ceil), rounded to the nearest
    /// nanosecond, halves up.
    pub fn transmission_time_nearest(self, bytes: ByteCount) -> Duration {
        if self.0 == 0 {
            return Duration::MAX;
        }
        duration_of(quotient(bit_nanos(bytes) + u128::from(self.0 / 2), self.0))
    }

    /// The bytes that fit into `duration` at this rate, rounded down; saturates.
    pub fn bytes_in_floor(self, duration: Duration) -> ByteCount {
        let count = u128::from(self.0).saturating_mul(duration.as_nanos());
        let bytes = quotient(count, (BITS_PER_BYTE * NANOS_PER_SECOND) as u64);
        ByteCount(u64::try_from(bytes).unwrap_or(u64::MAX))
    }

    /// The sum, `None` beyond [`MAX`](Self::MAX).
    pub const fn checked_add(self, rhs: Self) -> Option<Self> {
        match self.0.checked_add(rhs.0) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// The difference, `None` where it would be negative.
    pub const fn checked_sub(self, rhs: Self) -> Option<Self> {
        match self.0.checked_sub(rhs.0) {
            Some(difference) => Some(Self(difference)),
            None => None,
        }
    }

    /// The sum, at most [`MAX`](Self::MAX).
    pub const fn saturating_add(self, rhs: Self) -> Self {
        Self(self.0.saturating_add(rhs.0))
    }

    /// The difference, at least zero.
    pub const fn saturating_sub(self, rhs: Self) -> Self {
        Self(self.0.saturating_sub(rhs.0))
    }

    /// The part `share` of this rate, rounded down.
    #[must_use]
    pub fn share_floor(self, share: Probability) -> Self {
        Self((self.0 as f64 * share.get()) as u64)
    }

    /// This rate as a multiple of `whole`: a load, a utilisation. `None` if `whole` is zero.
    pub fn ratio_of(self, whole: Self) -> Option<f64> {
        (whole.0 > 0).then(|| self.0 as f64 / whole.0 as f64)
    }
}

impl ByteCount {
    /// No bytes.
    pub const ZERO: Self = Self(0);
    /// The largest count that can be said, and what saturating operations stop at.
    pub const MAX: Self = Self(u64::MAX);

    /// `bytes` bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Whether there are none.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The sum, `None` beyond [`MAX`](Self::MAX).
    pub const fn checked_add(self, rhs: Self) -> Option<Self> {
        match self.0.checked_add(rhs.0) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// The difference, `None` where it would be negative.
    pub const fn checked_sub(self, rhs: Self) -> Option<Self> {
        match self.0.checked_sub(rhs.0) {
            Some(difference) => Some(Self(difference)),
            None => None,
        }
    }

    /// The sum, at most [`MAX`](Self::MAX).
    pub const fn saturating_add(self, rhs: Self) -> Self {
        Self(self.0.saturating_add(rhs.0))
    }

    /// The difference, at least zero.
    pub const fn saturating_sub(self, rhs: Self) -> Self {
        Self(self.0.saturating_sub(rhs.0))
    }

    /// `times` this many bytes, at most [`MAX`](Self::MAX).
    pub const fn saturating_mul(self, times: u64) -> Self {
        Self(self.0.saturating_mul(times))
    }

    /// The rate of this many bytes in every `interval`, rounded up to whole bit/s.
    ///
    /// [`Bandwidth::MAX`] for an interval of zero (unless there are no bytes) and beyond.
    pub fn rate_over_ceil(self, interval: Duration) -> Bandwidth {
        match (bit_nanos(self), interval.as_nanos()) {
            (0, _) => Bandwidth::ZERO,
            (_, 0) => Bandwidth::MAX,
            (bit_nanos, nanos) => bandwidth_of(bit_nanos.div_ceil(nanos)),
        }
    }

    /// As [`rate_over_ceil`](Self::rate_over_ceil), rounded down.
    pub fn rate_over_floor(self, interval: Duration) -> Bandwidth {
        match (bit_nanos(self), interval.as_nanos()) {
            (0, _) => Bandwidth::ZERO,
            (_, 0) => Bandwidth::MAX,
            (bit_nanos, nanos) => bandwidth_of(bit_nanos / nanos),
        }
    }
}

impl Sum for ByteCount {
    /// Saturates at [`ByteCount::MAX`].
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Self::saturating_add)
    }
}

impl Sum for Bandwidth {
    /// Saturates at [`Bandwidth::MAX`].
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Self::saturating_add)
    }
}

impl Probability {
    /// Never.
    pub const ZERO: Self = Self(0.0);
    /// Always.
    pub const ONE: Self = Self(1.0);

    /// `None` outside 0..=1 or for NaN.
    pub fn new(value: f64) -> Option<Self> {
        // Adding zero makes -0 the ordinary one.
        (0.0..=1.0).contains(&value).then_some(Self(value + 0.0))
    }

    /// `part` of `whole`; `None` if `whole` is zero or less than `part`.
    pub fn from_ratio(part: u64, whole: u64) -> Option<Self> {
        (whole > 0 && part <= whole).then(|| Self(part as f64 / whole as f64))
    }

    /// The value in 0..=1.
    pub const fn get(self) -> f64 {
        self.0
    }

    /// The probability that it does not happen.
    pub const fn complement(self) -> Self {
        Self(1.0 - self.0)
    }
}

impl fmt::Display for Bandwidth {
    /// Exact, in the largest decimal unit that leaves a whole part: `1.5Mbit/s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scale, unit) = match self.0 {
            1_000_000_000.. => (1_000_000_000, "Gbit/s"),
            1_000_000.. => (1_000_000, "Mbit/s"),
            1_000.. => (1_000, "kbit/s"),
            _ => (1, "bit/s"),
        };
        f.pad(&format!("{}{unit}", exact_quotient(self.0, scale)))
    }
}

impl fmt::Display for ByteCount {
    /// Exact, in the largest decimal unit that leaves a whole part: `1.5kB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scale, unit) = match self.0 {
            1_000_000_000.. => (1_000_000_000, "GB"),
            1_000_000.. => (1_000_000, "MB"),
            1_000.. => (1_000, "kB"),
            _ => (1, "B"),
        };
        f.pad(&format!("{}{unit}", exact_quotient(self.0, scale)))
    }
}

impl fmt::Display for Probability {
    /// The shortest decimal that reads back as the same value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// 10^-9 bit: a count whose quotient by bit/s is nanoseconds, and by nanoseconds bit/s.
fn bit_nanos(bytes: ByteCount) -> u128 {
    u128::from(bytes.0) * BITS_PER_BYTE * NANOS_PER_SECOND
}

/// Rounded down. What is asked for with every packet fits into 64 bits, where a division takes a fraction of the time.
fn quotient(count: u128, by: u64) -> u128 {
    match u64::try_from(count) {
        Ok(count) => u128::from(count / by),
        Err(_) => count / u128::from(by),
    }
}

fn duration_of(nanos: u128) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

fn bandwidth_of(bits_per_second: u128) -> Bandwidth {
    Bandwidth(u64::try_from(bits_per_second).unwrap_or(u64::MAX))
}

/// `value / scale` in decimal without loss; `scale` is a power of ten.
fn exact_quotient(value: u64, scale: u64) -> String {
    let (whole, rest) = (value / scale, value % scale);
    if rest == 0 {
        return whole.to_string();
    }
    let digits = scale.ilog10() as usize;
    let fraction = format!("{rest:0digits$}");
    format!("{whole}.{}", fraction.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_keeps_every_digit() {
        let bit = |bits| Bandwidth::from_bits_per_second(bits).to_string();
        assert_eq!(bit(0), "0bit/s");
        assert_eq!(bit(999), "999bit/s");
        assert_eq!(bit(1_000), "1kbit/s");
        assert_eq!(bit(100_000_000), "100Mbit/s");
        assert_eq!(bit(100_000_001), "100.000001Mbit/s");
        assert_eq!(bit(u64::MAX), "18446744073.709551615Gbit/s");
        assert_eq!(ByteCount::new(65_536).to_string(), "65.536kB");
        assert_eq!(ByteCount::new(1_050).to_string(), "1.05kB");
        assert_eq!(
            format!("{:>8}|{:<8}|", ByteCount::new(7), ByteCount::new(8)),
            "      7B|8B      |"
        );
        assert_eq!(Probability::new(0.1).unwrap().to_string(), "0.1");
        assert_eq!(Probability::new(-0.0).unwrap().to_string(), "0");
    }

    #[test]
    fn transmission_times_round_as_named() {
        let rate = Bandwidth::from_bits_per_second(3);
        let byte = ByteCount::new(1);
        assert_eq!(rate.transmission_time_floor(byte).as_nanos(), 2_666_666_666);
        assert_eq!(
            rate.transmission_time_nearest(byte).as_nanos(),
            2_666_666_667
        );
        assert_eq!(rate.transmission_time_ceil(byte).as_nanos(), 2_666_666_667);
        assert_eq!(
            Bandwidth::ZERO.transmission_time_ceil(ByteCount::ZERO),
            Duration::MAX
        );
    }

    #[test]
    fn rates_round_as_named_and_saturate() {
        let third = Duration::from_secs(3);
        assert_eq!(
            ByteCount::new(1)
                .rate_over_floor(third)
                .as_bits_per_second(),
            2
        );
        assert_eq!(
            ByteCount::new(1).rate_over_ceil(third).as_bits_per_second(),
            3
        );
        assert_eq!(
            ByteCount::new(1).rate_over_ceil(Duration::ZERO),
            Bandwidth::MAX
        );
        assert_eq!(
            ByteCount::ZERO.rate_over_ceil(Duration::ZERO),
            Bandwidth::ZERO
        );
        assert_eq!(
            ByteCount::MAX.rate_over_floor(Duration::from_nanos(1)),
            Bandwidth::MAX
        );
    }

    #[test]
    fn sums_and_differences_say_how_they_end() {
        let one = ByteCount::new(1);
        assert_eq!(one.checked_sub(ByteCount::new(2)), None);
        assert_eq!(one.saturating_sub(ByteCount::new(2)), ByteCount::ZERO);
        assert_eq!(ByteCount::MAX.checked_add(one), None);
        assert_eq!(
            [ByteCount::MAX, one].into_iter().sum::<ByteCount>(),
            ByteCount::MAX
        );
        let slow = Bandwidth::from_bits_per_second(1);
        assert_eq!(Bandwidth::ZERO.checked_sub(slow), None);
        assert_eq!(Bandwidth::MAX.saturating_add(slow), Bandwidth::MAX);
        assert_eq!(slow.ratio_of(Bandwidth::ZERO), None);
    }

    #[test]
    fn probabilities_outside_their_range_are_none() {
        for bad in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert_eq!(Probability::new(bad), None);
        }
        assert_eq!(Probability::from_ratio(1, 0), None);
        assert_eq!(Probability::from_ratio(2, 1), None);
        assert_eq!(
            Probability::from_ratio(1, 4).unwrap().complement().get(),
            0.75
        );
    }
}
