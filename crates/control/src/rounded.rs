//! Quantities for people: three digits and the unit that fits. Exact forms are in
//! [`units`](crate::units).

use std::time::Duration;

use keiro_stats::{Unit, Value};
use keiro_units::Bandwidth;

use crate::{
    protocol::{BudgetSnapshot, SpreadPathSnapshot},
    units::three_digits,
};

/// A duration: `850 ns`, `12.3 µs`, `4.56 ms`, `7.89 s`, `12 min 34 s`, `5 h 06 min`, `3 d 04 h`.
pub fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    let whole = duration.as_secs();
    match duration.as_nanos() {
        0 => "0 s".to_owned(),
        1..1_000 => format!("{} ns", duration.as_nanos()),
        1_000..999_500 => format!("{} µs", three_digits(seconds * 1e6)),
        999_500..999_500_000 => format!("{} ms", three_digits(seconds * 1e3)),
        _ if whole < 60 => format!("{} s", three_digits(seconds)),
        _ if whole < 3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ if whole < 86_400 => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
        _ => format!("{} d {:02} h", whole / 86_400, whole % 86_400 / 3600),
    }
}

/// A rate in powers of 1000: `940 Mbit/s`.
pub fn rate(rate: Bandwidth) -> String {
    scaled(
        rate.as_bits_per_second(),
        &["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"],
    )
}

/// What is used and left of an uplink's budget of the month.
pub fn budget(budget: &BudgetSnapshot) -> String {
    format!(
        "{} of {} used since {}, {} left until {}",
        bytes(budget.used_bytes),
        bytes(budget.budget_bytes),
        budget.began,
        bytes(budget.left_bytes),
        budget.ends
    )
}

/// Which part of what a spread application has sent left by which path, the largest first; empty: nothing has.
pub fn shares(spread: &[SpreadPathSnapshot]) -> Vec<(&str, f64)> {
    let all: f64 = spread.iter().map(|path| path.sent_bytes as f64).sum();
    let used = spread.iter().filter(|path| path.sent_bytes > 0);
    let share = |path: &SpreadPathSnapshot| path.sent_bytes as f64 / all;
    let mut shares: Vec<_> = used.map(|path| (&*path.path, share(path))).collect();
    shares.sort_by(|a, b| b.1.total_cmp(&a.1));
    shares
}

/// A number of bytes in powers of 1000: `12.3 MB`.
pub fn bytes(bytes: u64) -> String {
    scaled(bytes, &["B", "kB", "MB", "GB", "TB", "PB", "EB"])
}

/// A ratio as per cent: `1.25 %`.
pub fn percent(ratio: f64) -> String {
    let percent = ratio * 100.0;
    match percent {
        0.0 => "0 %".to_owned(),
        // Rounding must not make nothing of something.
        p if p < 0.01 => "< 0.01 %".to_owned(),
        p => format!("{} %", three_digits(p)),
    }
}

/// Bytes below this are shown exactly: packet sizes and MTUs are compared with configured ones.
const EXACT_BYTES_MAX: u64 = 100_000;

/// A counter or gauge: `1420 B`, `12.3 ms`, `940 Mbit/s`, `0.1 %`, `yes`, `17`.
pub fn figure(unit: Unit, value: Value) -> String {
    match unit {
        Unit::Bytes if value.as_u64() < EXACT_BYTES_MAX => format!("{} B", value.as_u64()),
        Unit::Bytes => bytes(value.as_u64()),
        Unit::Seconds => duration(Duration::try_from_secs_f64(value.as_f64()).unwrap_or_default()),
        Unit::BitsPerSecond => rate(Bandwidth::from_bits_per_second(value.as_u64())),
        Unit::Ratio => percent(value.as_f64()),
        Unit::Number => three_digits(value.as_f64()),
        Unit::Flag if value == Value::Flag(true) => "yes".to_owned(),
        Unit::Flag => "no".to_owned(),
        Unit::Count(_) => value.as_u64().to_string(),
    }
}

fn scaled(value: u64, units: &[&str]) -> String {
    let mut scaled = value as f64;
    let mut unit = 0;
    // Past 999.5 three digits would show 1000.
    while scaled >= 999.5 && unit + 1 < units.len() {
        scaled /= 1000.0;
        unit += 1;
    }
    match unit {
        0 => format!("{value} {}", units[0]),
        _ => format!("{} {}", three_digits(scaled), units[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_what_was_sent_and_the_largest_is_first() {
        let part = |path: &str, sent_bytes| SpreadPathSnapshot {
            path: path.to_owned(),
            sent_bytes,
        };
        let spread = [part("lte", 1), part("sat", 0), part("fibre", 3)];
        assert_eq!(shares(&spread), [("fibre", 0.75), ("lte", 0.25)]);
        assert_eq!(shares(&[part("lte", 0)]), []);
        let huge = [part("a", u64::MAX), part("b", u64::MAX)];
        assert_eq!(shares(&huge), [("a", 0.5), ("b", 0.5)]);
    }

    #[test]
    fn durations_have_the_unit_that_fits() {
        let cases = [
            (0, "0 s"),
            (850, "850 ns"),
            (12_345, "12.3 µs"),
            (999_499, "999 µs"),
            (999_500, "1 ms"),
            (4_560_000, "4.56 ms"),
            (187_700_000, "188 ms"),
            (999_600_000, "1 s"),
            (7_890_000_000, "7.89 s"),
            (754_000_000_000, "12 min 34 s"),
            (18_360_000_000_000, "5 h 06 min"),
            (273_600_000_000_000, "3 d 04 h"),
        ];
        for (nanos, expected) in cases {
            assert_eq!(duration(Duration::from_nanos(nanos)), expected);
        }
    }

    #[test]
    fn rates_and_bytes_are_scaled_by_a_thousand() {
        assert_eq!(rate(Bandwidth::from_mbit_per_second(100)), "100 Mbit/s");
        assert_eq!(rate(Bandwidth::from_bits_per_second(999_999)), "1 Mbit/s");
        assert_eq!(rate(Bandwidth::ZERO), "0 bit/s");
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1_000), "1 kB");
        assert_eq!(bytes(12_345_678), "12.3 MB");
        assert_eq!(bytes(u64::MAX), "18.4 EB");
    }

    #[test]
    fn figures_have_the_form_of_their_unit() {
        let cases = [
            (Unit::Bytes, Value::Integer(1_428), "1428 B"),
            (Unit::Bytes, Value::Integer(12_345_678), "12.3 MB"),
            (Unit::Seconds, Value::Real(0.0123), "12.3 ms"),
            (
                Unit::BitsPerSecond,
                Value::Integer(940_000_000),
                "940 Mbit/s",
            ),
            (Unit::Ratio, Value::Real(0.0125), "1.25 %"),
            (Unit::Flag, Value::Flag(true), "yes"),
            (Unit::Count("packets"), Value::Integer(17), "17"),
        ];
        for (unit, value, expected) in cases {
            assert_eq!(figure(unit, value), expected);
        }
    }

    #[test]
    fn small_ratios_are_not_rounded_to_zero() {
        assert_eq!(percent(0.0), "0 %");
        assert_eq!(percent(0.00001), "< 0.01 %");
        assert_eq!(percent(0.0125), "1.25 %");
        assert_eq!(percent(1.0), "100 %");
    }
}
