//! M ≤ B: what S, I and N become where they ask for more than the path gives,
//! `[aggregation eq. 1, 2]`.

use std::{fmt, time::Duration};

use super::{Limits, Parameters};
use keiro_units::{Bandwidth, ByteCount};

/// Most time at B that the copies of one aggregate take, which leave back to back: nothing else waits longer
/// for them. Keiro's rule for every burst.
pub const BURST_MAX: Duration = Duration::from_millis(2);

/// Not even the smallest combination stays within the bandwidth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooNarrow {
    /// What M must stay within.
    pub bandwidth: Bandwidth,
    /// The combination with the least M.
    pub smallest: Parameters,
}

/// `parameters`, or the nearest combination with M ≤ B and a burst of at most [`BURST_MAX`].
///
/// S yields first, then I, then N: of all combinations with no more copies, no shorter interval and
/// no larger size, it is the one with the most copies, among these the one with the shortest
/// interval, and among these the one with the largest size. The least N and S together are never too
/// long a burst.
///
/// # Errors
/// If M of the smallest combination is more than `bandwidth`.
pub fn within(
    parameters: Parameters,
    limits: &Limits,
    bandwidth: Bandwidth,
) -> Result<Parameters, TooNarrow> {
    let fewer = limits.copies().iter().rev();
    for copies in fewer.copied().filter(|n| *n <= parameters.copies) {
        let longer = limits.intervals().iter();
        for interval in longer.copied().filter(|i| *i >= parameters.interval) {
            if let Some(most) = size_max(interval, copies, limits, bandwidth) {
                return Ok(Parameters {
                    size: parameters.size.min(most),
                    interval,
                    copies,
                });
            }
        }
    }
    Err(TooNarrow {
        bandwidth,
        smallest: limits.smallest(),
    })
}

/// Whether M ≤ B, and the burst is short enough.
pub fn fits(parameters: &Parameters, limits: &Limits, bandwidth: Bandwidth) -> bool {
    size_max(parameters.interval, parameters.copies, limits, bandwidth)
        .is_some_and(|most| parameters.size <= most)
}

/// The largest S with `interval` and `copies`, at most the largest there is; `None` if the least S
/// is too large.
pub fn size_max(
    interval: Duration,
    copies: u8,
    limits: &Limits,
    bandwidth: Bandwidth,
) -> Option<ByteCount> {
    let each = |time: Duration| bandwidth.bytes_in_floor(time).get() / u64::from(copies.max(1));
    let by_rate = each(interval);
    let by_burst = each(interval.min(BURST_MAX));
    let least = limits.size_min().get();
    if by_rate < least {
        return None;
    }
    if by_burst < least {
        return (copies <= limits.copies_min()).then_some(limits.size_min());
    }
    Some(ByteCount::new(by_burst).min(limits.size_max()))
}

impl TooNarrow {
    /// The least bandwidth that would do.
    pub fn needed(&self) -> Bandwidth {
        self.smallest.rate()
    }
}

impl std::error::Error for TooNarrow {}

impl fmt::Display for TooNarrow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "even {} needs {}, and the path gives {}: allow a longer interval, fewer copies or a \
             smaller size, or, where aggregates leave by the clock, have them leave eagerly",
            self.smallest,
            self.needed(),
            self.bandwidth
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MBIT: fn(u64) -> Bandwidth = Bandwidth::from_mbit_per_second;

    fn parameters(size: u64, interval_us: u64, copies: u8) -> Parameters {
        Parameters::new(
            ByteCount::new(size),
            Duration::from_micros(interval_us),
            copies,
        )
        .unwrap()
    }

    #[track_caller]
    fn becomes(wanted: (u64, u64, u8), bandwidth: Bandwidth, expected: (u64, u64, u8)) {
        let wanted = parameters(wanted.0, wanted.1, wanted.2);
        let expected = parameters(expected.0, expected.1, expected.2);
        let found = within(wanted, &Limits::default(), bandwidth).unwrap();
        assert_eq!(found, expected, "{found} instead of {expected}");
        assert!(found.rate() <= bandwidth);
    }

    #[test]
    fn size_yields_first_then_interval_then_copies() {
        // 32.768 Mbit/s fit as they are.
        becomes((2048, 1000, 2), MBIT(33), (2048, 1000, 2));
        // S: 20 Mbit/s in 1 ms are 2500 bytes, for two.
        becomes((2048, 1000, 2), MBIT(20), (1250, 1000, 2));
        // I: 512 B twice in 1 ms are 8.192 Mbit/s; in 2 ms there is room for 1000 B each.
        becomes((2048, 1000, 2), MBIT(8), (1000, 2000, 2));
        // 4 ms at 3 Mbit/s are 1500 bytes, but a burst is 2 ms at most: 750 bytes, one copy.
        becomes((2048, 1000, 2), MBIT(3), (750, 2000, 1));
        // A lone smallest aggregate is no burst.
        becomes(
            (2048, 1000, 2),
            Bandwidth::from_bits_per_second(1_024_000),
            (512, 4000, 1),
        );
    }

    #[test]
    fn below_the_smallest_combination_it_is_refused_with_the_reason() {
        let bandwidth = Bandwidth::from_bits_per_second(1_023_999);
        let limits = Limits::default();
        let refused = within(limits.initial(), &limits, bandwidth).unwrap_err();
        assert_eq!(refused.needed(), limits.bandwidth_min());
        assert_eq!(
            refused.to_string(),
            "even S 512B, I 4ms, N 1 needs 1.024Mbit/s, and the path gives 1.023999Mbit/s: allow a \
             longer interval, fewer copies or a smaller size, or, where aggregates leave by the clock, have \
             them leave eagerly"
        );
        assert!(within(limits.initial(), &limits, Bandwidth::ZERO).is_err());
    }

    #[test]
    fn bursts_of_the_longest_interval_stay_short() {
        let found = within(parameters(8192, 4000, 2), &Limits::default(), MBIT(20)).unwrap();
        // Half of what M alone would allow.
        assert_eq!(found, parameters(2500, 4000, 2));
    }
}
