//! Times of day.

use std::{fmt, str::FromStr, time::SystemTime};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A time of day: RFC 3339 in UTC with microseconds, `2026-01-31T12:00:00.000000Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(pub SystemTime);

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // humantime cannot print times before 1970 or after 9999; a clock that far off is not
        // worth failing for.
        let last = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(253_402_300_799);
        let time = self.0.clamp(SystemTime::UNIX_EPOCH, last);
        write!(f, "{}", humantime::format_rfc3339_micros(time))
    }
}

impl FromStr for Timestamp {
    type Err = humantime::TimestampError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        humantime::parse_rfc3339(text).map(Self)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
impl schemars::JsonSchema for Timestamp {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Timestamp".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "A time of day: RFC 3339 in UTC with microseconds.",
            "type": "string",
            "format": "date-time"
        })
    }
}
