//! What an uplink may carry in a month, and when that month begins and ends.

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use keiro_units::ByteCount;

/// What an uplink may carry in a month: bytes of IP packets in both directions, to all peers together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    pub bytes: ByteCount,
    /// The day of the month on which it begins anew, at 0:00 UTC; 1..=28.
    pub day: u8,
}

/// A calendar day, UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Day {
    year: u32,
    month: u8,
    day: u8,
}

impl Budget {
    /// The days on which the month of `now` began and on which the next one begins.
    pub fn month(&self, now: SystemTime) -> [Day; 2] {
        let today = Day::of(now);
        let this = Day {
            day: self.day,
            ..today
        };
        match today.day >= self.day {
            true => [this, this.next_month()],
            false => [this.previous_month(), this],
        }
    }
}

impl Day {
    /// Times before 1970 and after 9999 count as these.
    pub fn of(now: SystemTime) -> Self {
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = UNIX_EPOCH + since.min(TIME_MAX);
        let text = humantime::format_rfc3339_seconds(time).to_string();
        let date = text.split_once('T').map_or("", |(date, _)| date);
        Self::parse(date).expect("RFC 3339 begins with a date")
    }

    /// As it is shown, `2026-11-27`. `None`: that is no day.
    pub fn parse(text: &str) -> Option<Self> {
        let time = humantime::parse_rfc3339(&format!("{text}T00:00:00Z")).ok()?;
        // That reads other forms, too.
        let shown = humantime::format_rfc3339_seconds(time).to_string();
        if !shown.starts_with(text) || text.len() != "2026-11-27".len() {
            return None;
        }
        Some(Self {
            year: text.get(..4)?.parse().ok()?,
            month: text.get(5..7)?.parse().ok()?,
            day: text.get(8..)?.parse().ok()?,
        })
    }

    /// When it begins.
    pub fn begins(&self) -> SystemTime {
        let time = humantime::parse_rfc3339(&format!("{self}T00:00:00Z"));
        time.unwrap_or(UNIX_EPOCH + TIME_MAX)
    }

    /// The same day a month later.
    #[must_use]
    pub fn next_month(self) -> Self {
        match self.month {
            12 => Self {
                year: self.year + 1,
                month: 1,
                ..self
            },
            month => Self {
                month: month + 1,
                ..self
            },
        }
    }

    fn previous_month(self) -> Self {
        match self.month {
            1 => Self {
                year: self.year - 1,
                month: 12,
                ..self
            },
            month => Self {
                month: month - 1,
                ..self
            },
        }
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { year, month, day } = self;
        f.pad(&format!("{year:04}-{month:02}-{day:02}"))
    }
}

/// The end of the year 9999.
const TIME_MAX: Duration = Duration::from_secs(253_402_300_799);

#[cfg(test)]
mod tests {
    use super::*;

    fn month(day: u8, now: &str) -> [String; 2] {
        let budget = Budget {
            bytes: ByteCount::new(1),
            day,
        };
        let now = humantime::parse_rfc3339(now).unwrap();
        let month = budget.month(now);
        assert!(month[0].begins() <= now && now < month[1].begins());
        month.map(|day| day.to_string())
    }

    #[test]
    fn months_begin_on_the_budget_day() {
        for (day, now, expected) in [
            (1, "2026-11-01T00:00:00Z", ["2026-11-01", "2026-12-01"]),
            (1, "2026-12-31T23:59:59Z", ["2026-12-01", "2027-01-01"]),
            (15, "2027-01-14T23:59:59Z", ["2026-12-15", "2027-01-15"]),
            (28, "2028-02-29T12:00:00Z", ["2028-02-28", "2028-03-28"]),
            (28, "2028-02-27T12:00:00Z", ["2028-01-28", "2028-02-28"]),
        ] {
            assert_eq!(month(day, now), expected, "{day}, {now}");
        }
    }

    #[test]
    fn extreme_clock_values_still_have_a_budget_month() {
        let budget = Budget {
            bytes: ByteCount::new(1),
            day: 28,
        };
        for now in [
            UNIX_EPOCH,
            UNIX_EPOCH - Duration::from_secs(1),
            UNIX_EPOCH + Duration::from_secs(1 << 40),
        ] {
            let [begins, ends] = budget.month(now);
            assert!(begins < ends);
        }
    }

    #[test]
    fn only_days_of_a_month_are_accepted() {
        let day = Day::parse("2026-11-27").unwrap();
        assert_eq!(day.to_string(), "2026-11-27");
        for text in [
            "",
            "2026-11-31",
            "2026-13-01",
            "26-11-27",
            "2026-11-27 ",
            "2026-1-127",
        ] {
            assert_eq!(Day::parse(text), None, "{text}");
        }
    }
}
