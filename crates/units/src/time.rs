//! A point in time as the state machines know it.

use std::{
    fmt,
    ops::{Add, AddAssign, Sub},
    time::Duration,
};

/// Nanoseconds since an arbitrary epoch.
///
/// The daemon fills it from a monotonic clock, the simulator from zero. It covers 584 years;
/// arithmetic saturates at both ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The epoch.
    pub const ZERO: Self = Self(0);
    /// Later than every event.
    pub const MAX: Self = Self(u64::MAX);

    /// The instant `nanos` nanoseconds after the epoch.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the epoch.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time since `earlier`, zero if `earlier` is later.
    pub const fn saturating_duration_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The time since `earlier`, `None` if `earlier` is later.
    pub const fn checked_duration_since(self, earlier: Self) -> Option<Duration> {
        match self.0.checked_sub(earlier.0) {
            Some(nanos) => Some(Duration::from_nanos(nanos)),
            None => None,
        }
    }

    /// This instant moved later, `None` where it cannot be said.
    pub fn checked_add(self, rhs: Duration) -> Option<Self> {
        let nanos = u64::try_from(rhs.as_nanos()).ok()?;
        self.0.checked_add(nanos).map(Self)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(nanos(rhs)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, rhs: Duration) {
        *self = *self + rhs;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    fn sub(self, rhs: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(rhs)))
    }
}

impl Sub for Instant {
    type Output = Duration;

    /// Saturates at zero, as `saturating_duration_since`.
    fn sub(self, rhs: Self) -> Duration {
        self.saturating_duration_since(rhs)
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}.{:09}s",
            self.0 / 1_000_000_000,
            self.0 % 1_000_000_000
        )
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        let early = Instant::from_nanos(5);
        assert_eq!(early.as_nanos(), 5);
        assert_eq!(Instant::MAX + Duration::from_secs(1), Instant::MAX);
        assert_eq!(early - Duration::MAX, Instant::ZERO);
        assert_eq!(early - Instant::MAX, Duration::ZERO);
    }

    #[test]
    fn checked_arithmetic_says_when_it_cannot() {
        let early = Instant::from_nanos(5);
        assert_eq!(early.checked_duration_since(Instant::MAX), None);
        assert_eq!(
            Instant::MAX.checked_duration_since(early),
            Some(Duration::from_nanos(u64::MAX - 5))
        );
        assert_eq!(Instant::MAX.checked_add(Duration::from_nanos(1)), None);
        assert_eq!(early.checked_add(Duration::MAX), None);
        assert_eq!(
            early.checked_add(Duration::from_nanos(2)),
            Some(Instant::from_nanos(7))
        );
    }

    #[test]
    fn display_is_seconds_to_the_nanosecond() {
        assert_eq!(
            Instant::from_nanos(1_000_000_005).to_string(),
            "1.000000005s"
        );
    }
}
