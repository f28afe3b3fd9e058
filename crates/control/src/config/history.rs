//! `[history]`: whether what is measured is kept over a restart, and how much of it.

use std::{
    ops::{Range, RangeInclusive},
    time::Duration,
};

use keiro_config::{Report, TableReader, ValueError, boolean, quantity};
use keiro_units::ByteCount;
use toml::de::DeValue;

use super::values::{in_range, value};
use crate::units::Text;

/// `[history]`: what of the measurements is kept on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// Anything at all.
    pub enabled: bool,
    /// How far back there is a row per minute.
    pub minutes_for: Duration,
    /// How far back there is a row per hour; not shorter than `minutes_for`.
    pub hours_for: Duration,
    /// The file never grows beyond.
    pub size_max: ByteCount,
}

/// Where the values of [`History`] are, for checks of the whole file.
pub(super) struct HistorySpans {
    hours_for: Range<usize>,
    size_max: Range<usize>,
}

/// Minutes of at most a month are asked for at once.
const MINUTES_FOR: RangeInclusive<Duration> = HOUR..=HOUR.saturating_mul(31 * 24);
/// Ours: two years show seasonal changes.
const HOURS_FOR: RangeInclusive<Duration> = HOUR..=HOUR.saturating_mul(2 * 366 * 24);
/// Ours: less holds no application's day; more is a mistaken unit.
const SIZE_MAX: (ByteCount, ByteCount) = (ByteCount::new(1 << 20), ByteCount::new(1 << 40));
const HOUR: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);
/// Of an application's row on disk, as measured.
const ROW_BYTES: u64 = 110;
/// Paths and applications of which there is a history.
const SUBJECTS_MAX: usize = 256;

impl Default for History {
    /// A day of minutes, 30 days of hours, 128 MiB.
    fn default() -> Self {
        Self {
            enabled: true,
            minutes_for: 24 * HOUR,
            hours_for: 30 * 24 * HOUR,
            size_max: ByteCount::new(128 << 20),
        }
    }
}

impl History {
    /// Bytes on disk at most. `subjects`: paths (counted per peer) and applications.
    fn bytes_of(&self, subjects: usize) -> ByteCount {
        let rows = self.minutes_for.as_secs() / MINUTE.as_secs()
            + self.hours_for.as_secs() / HOUR.as_secs();
        ByteCount::new(subjects.min(SUBJECTS_MAX) as u64 * rows * ROW_BYTES)
    }
}

pub(super) fn history(
    mut fields: TableReader<'_, '_>,
    report: &mut Report<'_>,
) -> (History, HistorySpans) {
    let spans = HistorySpans {
        hours_for: fields.span_of("hours_for"),
        size_max: fields.span_of("size_max"),
    };
    let enabled = fields.optional(report, "enabled", boolean);
    let minutes_for = fields.optional(report, "minutes_for", |v| span(v, &MINUTES_FOR));
    let hours_for = fields.optional(report, "hours_for", |v| span(v, &HOURS_FOR));
    let size_max = fields.optional(report, "size_max", |v| in_range(v, SIZE_MAX.0, SIZE_MAX.1));
    fields.refuse_unknown_keys(report);
    let default = History::default();
    let history = History {
        enabled: value(enabled).unwrap_or(default.enabled),
        minutes_for: value(minutes_for).unwrap_or(default.minutes_for),
        hours_for: value(hours_for).unwrap_or(default.hours_for),
        size_max: value(size_max).unwrap_or(default.size_max),
    };
    (history, spans)
}

/// Checks the section against itself and the number of paths (counted per peer) and applications.
/// `spans` is `None` if it is not in the file.
pub(super) fn check(
    history: &History,
    spans: Option<&HistorySpans>,
    subjects: usize,
    report: &mut Report<'_>,
) {
    let Some(spans) = spans else {
        return;
    };
    if history.hours_for < history.minutes_for {
        let message = format!(
            "hours_for: hours go back {}, minutes {}",
            Text(history.hours_for),
            Text(history.minutes_for)
        );
        let hint = "let hours go back as far as minutes at least";
        report.add(&spans.hours_for, message, hint);
    }
    let needed = history.bytes_of(subjects);
    if history.enabled && needed > history.size_max {
        let message = format!(
            "size_max: {} are not enough for that long: it takes up to {}",
            Text(history.size_max),
            Text(needed)
        );
        let hint = "allow as much, or keep shorter";
        report.add(&spans.size_max, message, hint);
    }
}

fn span(value: &DeValue<'_>, allowed: &RangeInclusive<Duration>) -> Result<Duration, ValueError> {
    let span: Duration = quantity(value)?;
    match allowed.contains(&span) {
        true => Ok(span),
        false => Err(ValueError::new(
            format!("{} is out of range", Text(span)),
            format!(
                "write {} to {}",
                Text(*allowed.start()),
                Text(*allowed.end())
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn config(history: &str) -> Result<History, String> {
        let key = crate::PublicKey::from_bytes([9; 32]);
        let text = format!(
            "[gateway]\nname = \"a\"\n[[path]]\nname = \"p\"\nlocal = \"192.0.2.1:4500\"\n\
             rate = \"1Mbit\"\n[[peer]]\nname = \"b\"\npublic_key = \"{key}\"\n\
             endpoints = {{ p = \"192.0.2.2:4500\" }}\n{history}"
        );
        let config = Config::parse(&text, "test.toml").map_err(|error| error.to_string())?;
        Ok(config.history)
    }

    #[test]
    fn a_day_of_minutes_and_a_month_of_hours_are_the_default() {
        assert_eq!(config(""), Ok(History::default()));
        assert_eq!(config("[history]\n"), Ok(History::default()));
        // It holds as many paths and applications as there may be.
        let default = History::default();
        assert!(default.bytes_of(usize::MAX) <= default.size_max);
    }

    #[test]
    fn every_history_key_is_read() {
        let text = "[history]\nenabled = false\nminutes_for = \"48h\"\nhours_for = \"8784h\"\n\
                    size_max = \"1GiB\"\n";
        let wanted = History {
            enabled: false,
            minutes_for: 48 * HOUR,
            hours_for: 8784 * HOUR,
            size_max: ByteCount::new(1 << 30),
        };
        assert_eq!(config(text), Ok(wanted));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (text, wanted) in [
            ("minutes_for = \"59min\"", "write 1h to 744h"),
            ("hours_for = \"20000h\"", "write 1h to 17568h"),
            ("hours_for = 30", "no unit"),
            ("hours_for = \"2h\"", "as far as minutes"),
            ("size_max = \"1kB\"", "out of range"),
            (
                "minutes_for = \"744h\"\nhours_for = \"17568h\"\nsize_max = \"1MiB\"",
                "not enough",
            ),
            ("enabled = \"no\"", "true or false"),
            ("minutes = \"24h\"", "unknown key `minutes` in [history]"),
        ] {
            let error = config(&format!("[history]\n{text}\n")).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
        // Nothing is written, so nothing has to fit.
        let off = "[history]\nenabled = false\nhours_for = \"17568h\"\nsize_max = \"1MiB\"\n";
        assert!(config(off).is_ok());
    }
}
