//! Quantities with their units: bandwidth, bytes, probability.
//!
//! Rounding is in the name of every operation that rounds. Decimal prefixes are powers of 1000.

use std::{fmt, time::Duration};

const NANOS_PER_SECOND: u128 = 1_000_000_000;

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

    /// The time that `bytes` take at this rate, rounded up to nanoseconds.
    ///
    /// `Duration::MAX` for a rate of zero.
    pub fn transmission_time_ceil(self, bytes: ByteCount) -> Duration {
        if self.0 == 0 {
            return Duration::MAX;
        }
        let nanos = (u128::from(bytes.0) * 8 * NANOS_PER_SECOND).div_ceil(u128::from(self.0));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// The bytes that fit into `duration` at this rate, rounded down.
    pub fn bytes_in_floor(self, duration: Duration) -> ByteCount {
        let bytes = u128::from(self.0).saturating_mul(duration.as_nanos()) / (8 * NANOS_PER_SECOND);
        ByteCount(u64::try_from(bytes).unwrap_or(u64::MAX))
    }
}

impl ByteCount {
    /// No bytes.
    pub const ZERO: Self = Self(0);

    /// `bytes` bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl Probability {
    /// Never.
    pub const ZERO: Self = Self(0.0);
    /// Always.
    pub const ONE: Self = Self(1.0);

    /// `None` outside 0..=1 or for NaN.
    pub fn new(value: f64) -> Option<Self> {
        (0.0..=1.0).contains(&value).then_some(Self(value))
    }

    /// The value in 0..=1.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            b if b >= 1_000_000_000 => write!(f, "{}Gbit/s", b as f64 / 1e9),
            b if b >= 1_000_000 => write!(f, "{}Mbit/s", b as f64 / 1e6),
            b if b >= 1_000 => write!(f, "{}kbit/s", b as f64 / 1e3),
            b => write!(f, "{b}bit/s"),
        }
    }
}
