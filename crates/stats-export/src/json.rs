//! Counters and gauges in JSON: each set of `keiro_stats` as the fields of an object.

use std::{fmt, marker::PhantomData, ops::Deref};

use keiro_stats::{StatSet, Value};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{IgnoredAny, MapAccess, Visitor},
    ser::SerializeMap,
};

/// A set of counters and gauges as JSON fields.
///
/// Absent values have no field. Reading ignores fields of other names, and takes counters that an
/// older gateway does not have for 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats<S>(pub S);

impl<S> Deref for Stats<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.0
    }
}

impl<S: StatSet> Serialize for Stats<S> {
    fn serialize<Z: Serializer>(&self, serializer: Z) -> Result<Z::Ok, Z::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (stat, value) in self.0.values() {
            match value {
                Some(Value::Integer(value)) => map.serialize_entry(stat.name, &value)?,
                Some(Value::Real(value)) => map.serialize_entry(stat.name, &value)?,
                Some(Value::Flag(value)) => map.serialize_entry(stat.name, &value)?,
                None => {}
            }
        }
        map.end()
    }
}

impl<'de, S: StatSet> Deserialize<'de> for Stats<S> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(StatsVisitor(PhantomData))
    }
}

struct StatsVisitor<S>(PhantomData<S>);

impl<'de, S: StatSet> Visitor<'de> for StatsVisitor<S> {
    type Value = Stats<S>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object with the figures of a {}", S::OBJECT)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut stats = S::default();
        while let Some(name) = map.next_key::<String>()? {
            let Some(index) = S::STATS.iter().position(|stat| stat.name == name) else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            let value: JsonValue = map.next_value()?;
            let fits = match value {
                JsonValue::Flag(value) => stats.set(index, Value::Flag(value)),
                JsonValue::Integer(value) => stats.set(index, Value::Integer(value)),
                JsonValue::Real(value) => stats.set(index, Value::Real(value)),
                JsonValue::Null => S::STATS[index].optional,
            };
            if !fits {
                let wanted = S::STATS[index].unit.name();
                return Err(serde::de::Error::custom(format!(
                    "`{name}` is not a number of {wanted}"
                )));
            }
        }
        Ok(Stats(stats))
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum JsonValue {
    Flag(bool),
    Integer(u64),
    Real(f64),
    Null,
}

#[cfg(test)]
mod tests {
    use keiro_stats::PathStats;
    use serde_json::json;

    use super::*;

    #[test]
    fn every_figure_comes_back_from_json() {
        let mut stats = PathStats::default();
        for (index, stat) in PathStats::STATS.iter().enumerate() {
            let value = match stats.value(index) {
                Some(Value::Integer(_)) => Value::Integer(index as u64 + 1),
                _ if stats.set(index, Value::Integer(0)) => Value::Integer(index as u64 + 1),
                _ => Value::Real(0.5),
            };
            assert!(
                stats.set(index, value) || stats.set(index, Value::Real(0.5)),
                "{stat:?}"
            );
        }
        let json = serde_json::to_value(Stats(stats)).unwrap();
        assert_eq!(json.as_object().unwrap().len(), PathStats::STATS.len());
        let back: Stats<PathStats> = serde_json::from_value(json).unwrap();
        assert_eq!(back.0, stats);
    }

    #[test]
    fn older_and_newer_gateways_are_understood() {
        let json = json!({"sent_packets": 3, "srtt_seconds": null, "colour": ["green"]});
        let stats: Stats<PathStats> = serde_json::from_value(json).unwrap();
        assert_eq!(
            (stats.sent_packets, stats.srtt, stats.lost_packets),
            (3, None, 0)
        );
        let wrong = json!({"sent_packets": -1});
        let error = serde_json::from_value::<Stats<PathStats>>(wrong).unwrap_err();
        assert!(error.to_string().contains("`sent_packets`"), "{error}");
    }
}
