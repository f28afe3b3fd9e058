//! Quantities as text: `"20ms"`, `"100Mbit"`, `"64KiB"`, `"2%"`.
//!
//! Reads and prints the quantities of configuration files exactly: a number is kept as decimal
//! digits until it is whole nanoseconds, bit/s or bytes, so `"0.1s"` is 100,000,000 ns and
//! nothing else. What cannot be held exactly is refused, and so is a number without a unit.
//! Which values make sense for a key is left to its owner.

use std::{fmt, str::FromStr, time::Duration};

use keiro_units::{Bandwidth, ByteCount, Probability};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A quantity that has a text form with a unit.
///
/// `parse(print(x)) == x` for every value.
pub trait Quantity: Copy + Sized {
    /// Reads `text`, which must be one decimal number and one unit.
    ///
    /// # Errors
    /// See [`UnitError`].
    fn parse(text: &str) -> Result<Self, UnitError>;

    /// Writes the shortest exact form.
    ///
    /// # Errors
    /// Only those of the formatter.
    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
}

/// A quantity that is read and written as text by serde, `Display` and `FromStr`.
///
/// ```
/// use keiro_config::units::Text;
/// let delay: Text<std::time::Duration> = "1.5ms".parse().unwrap();
/// assert_eq!(delay.0, std::time::Duration::from_micros(1500));
/// assert_eq!(delay.to_string(), "1.5ms");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text<T>(pub T);

/// Why a text is not a quantity. `Display` says what is wrong and which units there are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// A number without a unit.
    #[error("`{text}` has no unit; write {units}, as in \"{example}\"")]
    NoUnit {
        /// The text as given.
        text: String,
        /// The units there are.
        units: &'static str,
        /// A value of the right shape.
        example: &'static str,
    },
    /// A unit that this quantity does not have.
    #[error("`{unit}` is not a unit of {kind}; {hint}")]
    UnknownUnit {
        /// The unit as given.
        unit: String,
        /// The quantity's name.
        kind: &'static str,
        /// What to write instead.
        hint: String,
    },
    /// Not a decimal number before the unit.
    #[error("`{text}` is not {kind}; write a number and a unit ({units}), as in \"{example}\"")]
    NotANumber {
        /// The text as given.
        text: String,
        /// The quantity's name with its article.
        kind: &'static str,
        /// The units there are.
        units: &'static str,
        /// A value of the right shape.
        example: &'static str,
    },
    /// Finer than the smallest step.
    #[error("`{text}` is not a whole number of {step}; the smallest step is 1 {step}")]
    TooFine {
        /// The text as given.
        text: String,
        /// The smallest step's unit.
        step: &'static str,
    },
    /// More than can be held.
    #[error("`{text}` is too large; the largest value is {max}")]
    TooLarge {
        /// The text as given.
        text: String,
        /// The largest value.
        max: &'static str,
    },
}

impl UnitError {
    /// What is wrong, and what to try.
    pub(crate) fn message_and_hint(&self) -> (String, String) {
        let text = self.to_string();
        let (message, hint) = split_hint(&text);
        (message.to_owned(), hint.to_owned())
    }
}

/// `what is wrong; what to try` in two; the hint is empty if there is none.
pub(crate) fn split_hint(text: &str) -> (&str, &str) {
    text.split_once("; ").unwrap_or((text, ""))
}

impl Quantity for Duration {
    fn parse(text: &str) -> Result<Self, UnitError> {
        DURATION.parse(text).map(Duration::from_nanos)
    }

    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // 584 years are enough for every duration of a configuration; longer ones print as the
        // largest rather than fail.
        let nanos = u64::try_from(self.as_nanos()).unwrap_or(u64::MAX);
        match nanos {
            0 => f.write_str("0s"),
            n if n % (3600 * SECOND) == 0 => write!(f, "{}h", n / (3600 * SECOND)),
            n if n % (60 * SECOND) == 0 => write!(f, "{}min", n / (60 * SECOND)),
            n if n >= SECOND => print_decimal(f, n, 9, "s"),
            n if n >= 1_000_000 => print_decimal(f, n, 6, "ms"),
            n if n >= 1_000 => print_decimal(f, n, 3, "us"),
            n => write!(f, "{n}ns"),
        }
    }
}

impl Quantity for Bandwidth {
    fn parse(text: &str) -> Result<Self, UnitError> {
        let bits = text.strip_suffix("/s").unwrap_or(text);
        BANDWIDTH.parse(bits).map(Bandwidth::from_bits_per_second)
    }

    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_bits_per_second() {
            b if b >= 1_000_000_000 => print_decimal(f, b, 9, "Gbit"),
            b if b >= 1_000_000 => print_decimal(f, b, 6, "Mbit"),
            b if b >= 1_000 => print_decimal(f, b, 3, "kbit"),
            b => write!(f, "{b}bit"),
        }
    }
}

impl Quantity for ByteCount {
    fn parse(text: &str) -> Result<Self, UnitError> {
        BYTES.parse(text).map(ByteCount::new)
    }

    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.get();
        // The shorter whole number of the two families; decimal where they are equally long.
        let (mut best, mut unit, mut length) = (bytes, "B", decimal_digits(bytes) + 1);
        for candidate in BYTES.units.iter().filter(|u| u.multiplier > 1) {
            if bytes == 0 || !bytes.is_multiple_of(candidate.multiplier) {
                continue;
            }
            let value = bytes / candidate.multiplier;
            let candidate_length = decimal_digits(value) + candidate.name.len();
            if candidate_length < length {
                (best, unit, length) = (value, candidate.name, candidate_length);
            }
        }
        write!(f, "{best}{unit}")
    }
}

impl Quantity for Probability {
    fn parse(text: &str) -> Result<Self, UnitError> {
        let number = Number::split(text, &RATIO_SHAPE)?;
        if number.unit != "%" {
            return Err(RATIO_SHAPE.unknown_unit(number.unit, None));
        }
        let too_large = || UnitError::TooLarge {
            text: shown(text),
            max: "100%",
        };
        // Parsing the shifted decimal gives the nearest f64; dividing by 100 would round twice.
        let value = format!("{}.{}e-2", number.whole, number.fraction);
        let value: f64 = value.parse().map_err(|_| RATIO_SHAPE.not_a_number(text))?;
        Probability::new(value).ok_or_else(too_large)
    }

    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.get() == 0.0 {
            return f.write_str("0%");
        }
        // `{:e}` is the shortest decimal that reads back as the same f64; shift it two places.
        let text = format!("{:e}", self.get());
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0) + 2;
        let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
        let point = 1 + exponent;
        if point <= 0 {
            let zeros = "0".repeat(usize::try_from(-point).unwrap_or(0));
            return write!(f, "0.{zeros}{digits}%");
        }
        let point = usize::try_from(point).unwrap_or(0);
        if point >= digits.len() {
            return write!(f, "{digits}{}%", "0".repeat(point - digits.len()));
        }
        let (whole, fraction) = digits.split_at(point);
        write!(f, "{whole}.{fraction}%")
    }
}

impl<T: Quantity> fmt::Display for Text<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.print(f)
    }
}

impl<T: Quantity> FromStr for Text<T> {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        T::parse(text).map(Self)
    }
}

impl<T: Quantity> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de, T: Quantity> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// What a quantity's text looks like, for messages.
struct Shape {
    kind: &'static str,
    kind_with_article: &'static str,
    units: &'static str,
    example: &'static str,
}

impl Shape {
    fn not_a_number(&self, text: &str) -> UnitError {
        UnitError::NotANumber {
            text: shown(text),
            kind: self.kind_with_article,
            units: self.units,
            example: self.example,
        }
    }

    fn unknown_unit(&self, unit: &str, hint: Option<&str>) -> UnitError {
        let hint = match hint {
            Some(hint) => hint.to_owned(),
            None => format!("write {}, as in \"{}\"", self.units, self.example),
        };
        UnitError::UnknownUnit {
            unit: shown(unit),
            kind: self.kind,
            hint,
        }
    }
}

/// A number split from its unit: digits only, either part may be empty but not both.
struct Number<'a> {
    whole: &'a str,
    fraction: &'a str,
    unit: &'a str,
}

impl<'a> Number<'a> {
    fn split(text: &'a str, shape: &Shape) -> Result<Self, UnitError> {
        let end = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        // One space between number and unit is what people write by habit.
        let unit = unit.strip_prefix(' ').unwrap_or(unit);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let ends_in_point = number.ends_with('.') || whole.is_empty();
        if ends_in_point || fraction.contains('.') || number.len() > NUMBER_DIGITS_MAX {
            return Err(shape.not_a_number(text));
        }
        if unit.is_empty() {
            return Err(UnitError::NoUnit {
                text: shown(text),
                units: shape.units,
                example: shape.example,
            });
        }
        Ok(Self {
            whole,
            fraction,
            unit,
        })
    }
}

struct Unit {
    name: &'static str,
    /// Smallest steps in one of this unit.
    multiplier: u64,
}

struct UnitTable {
    shape: Shape,
    /// The unit of the smallest step.
    step: &'static str,
    max: &'static str,
    units: &'static [Unit],
    /// What people write by mistake, and what to write instead.
    mistakes: &'static [(&'static str, &'static str)],
}

impl UnitTable {
    fn parse(&self, text: &str) -> Result<u64, UnitError> {
        let number = Number::split(text, &self.shape)?;
        let unit = self.units.iter().find(|u| u.name == number.unit);
        let unit = unit.ok_or_else(|| {
            let mistake = self
                .mistakes
                .iter()
                .find(|(wrong, _)| *wrong == number.unit);
            self.shape
                .unknown_unit(number.unit, mistake.map(|(_, hint)| *hint))
        })?;
        let too_large = || UnitError::TooLarge {
            text: shown(text),
            max: self.max,
        };
        let too_fine = || UnitError::TooFine {
            text: shown(text),
            step: self.step,
        };
        let whole: u64 = number.whole.parse().map_err(|_| too_large())?;
        let whole = whole.checked_mul(unit.multiplier).ok_or_else(too_large)?;
        let fraction = number.fraction.trim_end_matches('0');
        if fraction.is_empty() {
            return Ok(whole);
        }
        // With at most 19 digits both fit into u128; no unit has more than 19 decimal places.
        if fraction.len() > 19 {
            return Err(too_fine());
        }
        let digits: u128 = fraction.parse().map_err(|_| too_fine())?;
        let scale = 10_u128.pow(u32::try_from(fraction.len()).unwrap_or(19));
        let steps = digits * u128::from(unit.multiplier);
        if !steps.is_multiple_of(scale) {
            return Err(too_fine());
        }
        let steps = u64::try_from(steps / scale).map_err(|_| too_large())?;
        whole.checked_add(steps).ok_or_else(too_large)
    }
}

/// Writes `value / 10^places` with `unit`, without trailing zeros.
fn print_decimal(f: &mut fmt::Formatter<'_>, value: u64, places: u32, unit: &str) -> fmt::Result {
    let scale = 10_u64.pow(places);
    let (whole, rest) = (value / scale, value % scale);
    if rest == 0 {
        return write!(f, "{whole}{unit}");
    }
    let fraction = format!("{rest:0width$}", width = places as usize);
    write!(f, "{whole}.{}{unit}", fraction.trim_end_matches('0'))
}

/// `text` as it may stand in a message: short and without control characters.
pub fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN_CHARACTERS_MAX).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
        .chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

fn decimal_digits(value: u64) -> usize {
    value.checked_ilog10().unwrap_or(0) as usize + 1
}

/// Of a user's text in a message. Ours: a name fits.
const SHOWN_CHARACTERS_MAX: usize = 64;

const SECOND: u64 = 1_000_000_000;

/// Longer numbers are refused before they are parsed. Ours: u64 has 20 digits, nanoseconds 9
/// places; 64 leaves room for zeros that people align with.
const NUMBER_DIGITS_MAX: usize = 64;

const DURATION: UnitTable = UnitTable {
    shape: Shape {
        kind: "time",
        kind_with_article: "a time",
        units: "ns, us, ms, s, min or h",
        example: "20ms",
    },
    step: "ns",
    max: "584 years",
    units: &[
        Unit {
            name: "ns",
            multiplier: 1,
        },
        Unit {
            name: "us",
            multiplier: 1_000,
        },
        Unit {
            name: "µs",
            multiplier: 1_000,
        },
        Unit {
            name: "ms",
            multiplier: 1_000_000,
        },
        Unit {
            name: "s",
            multiplier: SECOND,
        },
        Unit {
            name: "min",
            multiplier: 60 * SECOND,
        },
        Unit {
            name: "h",
            multiplier: 3600 * SECOND,
        },
    ],
    mistakes: &[
        ("m", "write `min` for minutes or `ms` for milliseconds"),
        ("sec", "write `s`"),
        ("secs", "write `s`"),
        ("seconds", "write `s`"),
        ("msec", "write `ms`"),
        ("usec", "write `us`"),
        ("μs", "write `us`"),
        ("Ms", "write `ms`"),
        ("mS", "write `ms`"),
        ("S", "write `s`"),
        ("minutes", "write `min`"),
        ("d", "write hours, `h`"),
    ],
};

const BANDWIDTH: UnitTable = UnitTable {
    shape: Shape {
        kind: "bandwidth",
        kind_with_article: "a bandwidth",
        units: "bit, kbit, Mbit, Gbit or Tbit (per second, powers of 1000)",
        example: "100Mbit",
    },
    step: "bit/s",
    max: "18446744 Tbit",
    units: &[
        Unit {
            name: "bit",
            multiplier: 1,
        },
        Unit {
            name: "kbit",
            multiplier: 1_000,
        },
        Unit {
            name: "Mbit",
            multiplier: 1_000_000,
        },
        Unit {
            name: "Gbit",
            multiplier: 1_000_000_000,
        },
        Unit {
            name: "Tbit",
            multiplier: 1_000_000_000_000,
        },
    ],
    mistakes: &[
        ("Kbit", "write `kbit` (1000 bit/s)"),
        (
            "Kibit",
            "there are no binary prefixes for rates; write `kbit` (1000 bit/s)",
        ),
        (
            "Mibit",
            "there are no binary prefixes for rates; write `Mbit` (1000000 bit/s)",
        ),
        ("mbit", "write `Mbit`"),
        ("gbit", "write `Gbit`"),
        ("Mb", "write `Mbit` for bits; rates are not given in bytes"),
        ("Gb", "write `Gbit` for bits; rates are not given in bytes"),
        (
            "MB",
            "rates are in bits, not bytes: write `Mbit`, eight times the number",
        ),
        (
            "kB",
            "rates are in bits, not bytes: write `kbit`, eight times the number",
        ),
        (
            "GB",
            "rates are in bits, not bytes: write `Gbit`, eight times the number",
        ),
        ("Mbps", "write `Mbit`"),
        ("mbps", "write `Mbit`"),
        ("Gbps", "write `Gbit`"),
        ("kbps", "write `kbit`"),
        ("bps", "write `bit`"),
    ],
};

const BYTES: UnitTable = UnitTable {
    shape: Shape {
        kind: "size",
        kind_with_article: "a size",
        units: "B, kB, MB, GB (powers of 1000), KiB, MiB or GiB (powers of 1024)",
        example: "64KiB",
    },
    step: "B",
    max: "18446744073709551615B",
    units: &[
        Unit {
            name: "B",
            multiplier: 1,
        },
        Unit {
            name: "kB",
            multiplier: 1_000,
        },
        Unit {
            name: "MB",
            multiplier: 1_000_000,
        },
        Unit {
            name: "GB",
            multiplier: 1_000_000_000,
        },
        Unit {
            name: "KiB",
            multiplier: 1 << 10,
        },
        Unit {
            name: "MiB",
            multiplier: 1 << 20,
        },
        Unit {
            name: "GiB",
            multiplier: 1 << 30,
        },
    ],
    mistakes: &[
        ("KB", "write `kB` (1000 bytes) or `KiB` (1024 bytes)"),
        ("K", "write `kB` (1000 bytes) or `KiB` (1024 bytes)"),
        ("k", "write `kB` (1000 bytes) or `KiB` (1024 bytes)"),
        ("M", "write `MB` (1000000 bytes) or `MiB` (1048576 bytes)"),
        ("G", "write `GB` (10^9 bytes) or `GiB` (2^30 bytes)"),
        ("kb", "write `kB` for bytes; sizes are not given in bits"),
        ("Mb", "write `MB` for bytes; sizes are not given in bits"),
        ("mb", "write `MB` for bytes; sizes are not given in bits"),
        ("kib", "write `KiB`"),
        ("kiB", "write `KiB`"),
        ("mib", "write `MiB`"),
        ("b", "write `B`"),
        ("bytes", "write `B`"),
        ("kbit", "sizes are in bytes, not bits: write `kB`"),
        ("Mbit", "sizes are in bytes, not bits: write `MB`"),
    ],
};

const RATIO_SHAPE: Shape = Shape {
    kind: "ratio",
    kind_with_article: "a ratio",
    units: "%",
    example: "2%",
};

/// Three significant digits without zeros at the end of a fraction, for people: `12.3`, `0.5`.
/// Exact values are [`Text`]'s.
pub fn three_digits(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn duration(text: &str) -> Result<u64, String> {
        match Duration::parse(text) {
            Ok(d) => Ok(u64::try_from(d.as_nanos()).expect("parsed durations fit")),
            Err(e) => Err(e.to_string()),
        }
    }

    fn bits(text: &str) -> Result<u64, String> {
        Bandwidth::parse(text)
            .map(Bandwidth::as_bits_per_second)
            .map_err(|e| e.to_string())
    }

    fn bytes(text: &str) -> Result<u64, String> {
        ByteCount::parse(text)
            .map(ByteCount::get)
            .map_err(|e| e.to_string())
    }

    fn ratio(text: &str) -> Result<f64, String> {
        Probability::parse(text)
            .map(Probability::get)
            .map_err(|e| e.to_string())
    }

    #[test]
    fn quantities_are_read_exactly() {
        assert_eq!(duration("20ms"), Ok(20_000_000));
        assert_eq!(duration("0.1s"), Ok(100_000_000));
        assert_eq!(duration("500us"), Ok(500_000));
        assert_eq!(duration("500 us"), Ok(500_000));
        assert_eq!(duration("5min"), Ok(300_000_000_000));
        assert_eq!(duration("1.000000001s"), Ok(1_000_000_001));
        assert_eq!(bits("100Mbit"), Ok(100_000_000));
        assert_eq!(bits("100Mbit/s"), Ok(100_000_000));
        assert_eq!(bits("1.5Gbit"), Ok(1_500_000_000));
        assert_eq!(bits("800kbit"), Ok(800_000));
        assert_eq!(bytes("64KiB"), Ok(65_536));
        assert_eq!(bytes("100kB"), Ok(100_000));
        assert_eq!(bytes("1.5KiB"), Ok(1_536));
        assert_eq!(ratio("2%"), Ok(0.02));
        assert_eq!(ratio("0.1%"), Ok(0.001));
        assert_eq!(ratio("100%"), Ok(1.0));
    }

    #[test]
    fn numbers_without_unit_are_refused_with_the_units_there_are() {
        assert_eq!(
            duration("20").unwrap_err(),
            "`20` has no unit; write ns, us, ms, s, min or h, as in \"20ms\""
        );
        assert_eq!(
            bits("100").unwrap_err(),
            "`100` has no unit; write bit, kbit, Mbit, Gbit or Tbit (per second, powers of 1000), \
             as in \"100Mbit\""
        );
        assert_eq!(
            ratio("2").unwrap_err(),
            "`2` has no unit; write %, as in \"2%\""
        );
    }

    #[test]
    fn wrong_units_are_refused_with_the_right_one() {
        assert_eq!(
            bytes("1KB").unwrap_err(),
            "`KB` is not a unit of size; write `kB` (1000 bytes) or `KiB` (1024 bytes)"
        );
        assert_eq!(
            bits("10MB").unwrap_err(),
            "`MB` is not a unit of bandwidth; rates are in bits, not bytes: write `Mbit`, eight \
             times the number"
        );
        assert_eq!(
            duration("5m").unwrap_err(),
            "`m` is not a unit of time; write `min` for minutes or `ms` for milliseconds"
        );
        assert_eq!(
            duration("5parsec").unwrap_err(),
            "`parsec` is not a unit of time; write ns, us, ms, s, min or h, as in \"20ms\""
        );
        assert!(bits("1Mbit/min").is_err());
        assert!(ratio("2ms").is_err());
    }

    #[test]
    fn numbers_that_are_none_are_refused() {
        for text in [
            "", "ms", ".5s", "5.s", "1.2.3s", "-5ms", "+5ms", "1e3s", "1_000s", "NaN%", "٣ms",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
        for text in ["", "%", "-1%", "inf%", "1.%"] {
            assert!(ratio(text).is_err(), "{text}");
        }
        assert_eq!(
            duration("soon").unwrap_err(),
            "`soon` is not a time; write a number and a unit (ns, us, ms, s, min or h), as in \"20ms\""
        );
        assert!(duration(&format!("{}s", "1".repeat(10_000))).is_err());
    }

    #[test]
    fn too_large_and_too_fine_is_refused() {
        assert_eq!(
            bytes("20000000000GB").unwrap_err(),
            "`20000000000GB` is too large; the largest value is 18446744073709551615B"
        );
        assert_eq!(bytes("18446744073709551615B"), Ok(u64::MAX));
        assert!(bytes("18446744073709551616B").is_err());
        assert_eq!(
            bytes("1.5B").unwrap_err(),
            "`1.5B` is not a whole number of B; the smallest step is 1 B"
        );
        assert!(duration("0.1ns").is_err());
        assert!(duration("0.00000000000000000000001h").is_err());
        assert_eq!(
            ratio("101%").unwrap_err(),
            "`101%` is too large; the largest value is 100%"
        );
    }

    #[test]
    fn quantities_print_as_people_write_them() {
        assert_eq!(Text(Duration::from_millis(20)).to_string(), "20ms");
        assert_eq!(Text(Duration::from_micros(1_500)).to_string(), "1.5ms");
        assert_eq!(Text(Duration::from_secs(300)).to_string(), "5min");
        assert_eq!(Text(Duration::from_secs(90)).to_string(), "90s");
        assert_eq!(Text(Duration::ZERO).to_string(), "0s");
        assert_eq!(
            Text(Bandwidth::from_bits_per_second(1_500_000_000)).to_string(),
            "1.5Gbit"
        );
        assert_eq!(Text(ByteCount::new(65_536)).to_string(), "64KiB");
        assert_eq!(Text(ByteCount::new(100_000)).to_string(), "100kB");
        assert_eq!(Text(ByteCount::new(1_500)).to_string(), "1500B");
        assert_eq!(Text(ByteCount::new(0)).to_string(), "0B");
        assert_eq!(Text(Probability::new(0.02).unwrap()).to_string(), "2%");
        assert_eq!(Text(Probability::new(0.015).unwrap()).to_string(), "1.5%");
        assert_eq!(
            Text(Probability::new(0.00001).unwrap()).to_string(),
            "0.001%"
        );
        assert_eq!(Text(Probability::ONE).to_string(), "100%");
        assert_eq!(Text(Probability::ZERO).to_string(), "0%");
    }

    #[test]
    fn serde_uses_the_text_form() {
        let value: Text<ByteCount> = serde_json::from_str("\"64KiB\"").unwrap();
        assert_eq!(serde_json::to_string(&value).unwrap(), "\"64KiB\"");
        let error = serde_json::from_str::<Text<ByteCount>>("\"64\"").unwrap_err();
        assert!(error.to_string().contains("has no unit"), "{error}");
    }

    proptest! {
        #[test]
        fn printed_quantities_read_back_the_same(value in any::<u64>(), ratio in 0.0..=1.0_f64) {
            let duration = Text(Duration::from_nanos(value));
            prop_assert_eq!(duration.to_string().parse(), Ok(duration));
            let rate = Text(Bandwidth::from_bits_per_second(value));
            prop_assert_eq!(rate.to_string().parse(), Ok(rate));
            let bytes = Text(ByteCount::new(value));
            prop_assert_eq!(bytes.to_string().parse(), Ok(bytes));
            let ratio = Text(Probability::new(ratio).unwrap());
            prop_assert_eq!(ratio.to_string().parse(), Ok(ratio));
        }

        #[test]
        fn any_text_is_read_or_refused_without_panic(text in "\\PC{0,40}") {
            let _ = Duration::parse(&text);
            let _ = Bandwidth::parse(&text);
            let _ = ByteCount::parse(&text);
            let _ = Probability::parse(&text);
        }
    }
}
