//! The kernel's clocks in nanoseconds, and the conversion of receive time stamps between them.

use std::time::Duration;

/// CLOCK_MONOTONIC in nanoseconds: time since the machine started, suspended time not counted.
pub fn monotonic_nanos() -> u64 {
    nanos_of(monotonic())
}

/// CLOCK_MONOTONIC: time since the machine started, suspended time not counted; never goes back.
pub fn monotonic() -> Duration {
    read(libc::CLOCK_MONOTONIC)
}

/// CLOCK_REALTIME: time since the Unix epoch on a clock that may be set; zero if before it.
pub fn unix_time() -> Duration {
    read(libc::CLOCK_REALTIME)
}

/// Both clocks at one moment, to convert receive time stamps, which are of CLOCK_REALTIME.
#[derive(Clone, Copy, Debug)]
pub struct ClockPair {
    /// CLOCK_MONOTONIC in nanoseconds.
    pub monotonic_nanos: u64,
    /// CLOCK_REALTIME since the Unix epoch, in nanoseconds.
    pub realtime_nanos: u64,
}

impl ClockPair {
    /// Reads both clocks about 50 ns apart; a busy machine may preempt the thread between them.
    pub fn now() -> Self {
        Self::read(|| nanos_of(unix_time()), monotonic_nanos)
    }

    /// The monotonic clock is read last, so that preemption makes time stamps seem later and never earlier: a
    /// delay that is too long does not affect a minimum, one that is too short would.
    fn read(realtime: impl FnOnce() -> u64, monotonic: impl FnOnce() -> u64) -> Self {
        let realtime_nanos = realtime();
        Self {
            monotonic_nanos: monotonic(),
            realtime_nanos,
        }
    }

    /// The monotonic time of a realtime stamp: never later than this pair and never before the stamp. If the
    /// stamp is more than 4 s old, because the realtime clock was set in between, it is the time of this
    /// pair.
    pub fn monotonic_of(&self, stamp: Duration) -> u64 {
        let stamp = nanos_of(stamp);
        let age = self.realtime_nanos.saturating_sub(stamp);
        if age > AGE_MAX_NANOS {
            return self.monotonic_nanos;
        }
        self.monotonic_nanos.saturating_sub(age)
    }
}

/// No datagram waits this long in a receive buffer: 4 s. Ours.
const AGE_MAX_NANOS: u64 = 4_000_000_000;

fn read(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a live timespec. The call cannot fail for the clocks used here.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or_default(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}

fn nanos_of(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_between_the_clocks_makes_no_stamp_earlier() {
        const REAL: u64 = 1_700_000_000_000_000_000;
        // Both clocks run at the same pace; each reading is followed by a pause of 8 ms.
        let time = std::cell::Cell::new(1_000_000_000);
        let read = |offset: u64| {
            let now = time.get();
            time.set(now + 8_000_000);
            offset + now
        };
        let stamped = time.get() - 300_000;
        let pair = ClockPair::read(|| read(REAL), || read(0));
        let converted = pair.monotonic_of(Duration::from_nanos(REAL + stamped));
        assert!((stamped..=time.get()).contains(&converted), "{converted}");
    }

    #[test]
    fn stamps_are_converted_and_never_lie_in_the_future() {
        let pair = ClockPair {
            monotonic_nanos: 10_000_000_000,
            realtime_nanos: 1_700_000_000_000_000_000,
        };
        let of = |nanos| pair.monotonic_of(Duration::from_nanos(nanos));
        assert_eq!(of(1_699_999_999_999_999_000), 9_999_999_000);
        assert_eq!(of(1_700_000_000_000_001_000), 10_000_000_000);
        assert_eq!(of(1_600_000_000_000_000_000), 10_000_000_000);
    }
}
