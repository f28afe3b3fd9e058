//! ROA files as written by rpki-client, Routinator and StayRTR: `{"roas": [{"asn": 65001, "prefix":
//! "2001:db8::/32", "maxLength": 48}]}`. Other members are ignored.

use std::{
    cell::Cell,
    fmt,
    io::{BufRead, BufReader},
    path::Path,
    time::{Duration, SystemTime},
};

use ipnet::IpNet;
use keiro_bgp::rpki::{Vrp, Vrps};
use keiro_config::without_byte_order_mark;
use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use super::file;

/// The contents of a file.
#[derive(Debug)]
pub(super) struct Roas {
    pub(super) vrps: Vrps,
    /// The number of entries left out because they have expired.
    pub(super) expired: usize,
}

/// Parses a file entry by entry.
pub(super) fn read(path: &Path, now: SystemTime) -> Result<Roas, String> {
    let file = file::open(path, FILE_MEBIBYTES_MAX).map_err(|error| error.to_string())?;
    parse(BufReader::new(file), now)
}

fn parse(mut text: impl BufRead, now: SystemTime) -> Result<Roas, String> {
    let unix = now.duration_since(SystemTime::UNIX_EPOCH);
    let take = Take {
        now: unix.as_ref().map_or(0, Duration::as_secs),
        expired: Cell::new(0),
    };
    // Some editors begin a file with a byte order mark.
    let begin = text.fill_buf().map_err(|error| error.to_string())?;
    let marked = begin.len() - without_byte_order_mark(begin).len();
    text.consume(marked);
    let mut reader = serde_json::Deserializer::from_reader(text);
    let read = (&take).deserialize(&mut reader).and_then(|all| {
        reader.end()?;
        Ok(all)
    });
    let all = read.map_err(|error| format!("{error}; it is what `rpki-client -j` writes"))?;
    let expired = take.expired.get();
    if all.is_empty() && expired > 0 {
        return Err(format!(
            "all {expired} of its roas have expired; does the validator run?"
        ));
    }
    if all.is_empty() {
        return Err("it authorizes no announcement; has the validator run?".to_owned());
    }
    Ok(Roas {
        vrps: Vrps::new(all),
        expired,
    })
}

struct Take {
    now: u64,
    expired: Cell<usize>,
}

#[derive(Deserialize)]
struct Entry {
    asn: Asn,
    prefix: IpNet,
    #[serde(rename = "maxLength")]
    length_max: Option<u8>,
    /// Seconds since the Unix epoch, as rpki-client has it.
    expires: Option<u64>,
}

struct Asn(u32);

impl Entry {
    fn vrp(&self) -> Result<Vrp, String> {
        let own = self.prefix.prefix_len();
        if self.prefix.trunc() != self.prefix {
            return Err(format!("`{}` has bits behind its length", self.prefix));
        }
        let length_max = self.length_max.unwrap_or(own);
        if !(own..=self.prefix.max_prefix_len()).contains(&length_max) {
            let (prefix, most) = (self.prefix, self.prefix.max_prefix_len());
            return Err(format!(
                "maxLength {length_max} of {prefix} is not {own} to {most}"
            ));
        }
        Ok(Vrp {
            prefix: self.prefix,
            length_max,
            asn: self.asn.0,
        })
    }
}

impl<'de> DeserializeSeed<'de> for &Take {
    type Value = Vec<Vrp>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<Vrp>, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for &Take {
    type Value = Vec<Vrp>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with `roas`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<Vrp>, A::Error> {
        let mut all = None;
        while let Some(key) = map.next_key::<String>()? {
            if key != "roas" {
                map.next_value::<IgnoredAny>()?;
            } else if all.replace(map.next_value_seed(List(self))?).is_some() {
                return Err(de::Error::duplicate_field("roas"));
            }
        }
        all.ok_or_else(|| de::Error::missing_field("roas"))
    }
}

struct List<'a>(&'a Take);

impl<'de> DeserializeSeed<'de> for List<'_> {
    type Value = Vec<Vrp>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<Vrp>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for List<'_> {
    type Value = Vec<Vrp>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of roas")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<Vrp>, A::Error> {
        let mut all = Vec::new();
        let mut number = 0;
        while let Some(entry) = list.next_element::<Entry>()? {
            if number == ROAS_MAX {
                return Err(de::Error::custom("more than 4,000,000 roas"));
            }
            let vrp = entry.vrp();
            let vrp = vrp.map_err(|why| de::Error::custom(format!("roas[{number}]: {why}")))?;
            match entry.expires.is_some_and(|end| end <= self.0.now) {
                true => self.0.expired.set(self.0.expired.get() + 1),
                false => all.push(vrp),
            }
            number += 1;
        }
        Ok(all)
    }
}

impl<'de> Deserialize<'de> for Asn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AsnVisitor)
    }
}

struct AsnVisitor;

impl Visitor<'_> for AsnVisitor {
    type Value = Asn;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an AS: 65001 or \"AS65001\"")
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Asn, E> {
        let asn = u32::try_from(number).map(Asn);
        asn.map_err(|_| E::invalid_value(de::Unexpected::Unsigned(number), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Asn, E> {
        let digits = text.strip_prefix("AS").or(text.strip_prefix("as"));
        // `parse` would take a sign.
        let digits = digits.unwrap_or(text);
        let number = digits
            .bytes()
            .all(|c| c.is_ascii_digit())
            .then(|| digits.parse());
        match number {
            Some(Ok(asn)) => Ok(Asn(asn)),
            _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
        }
    }
}

/// The maximum size: several times that of the whole Internet. Ours.
const FILE_MEBIBYTES_MAX: u64 = 512;
/// The maximum number of entries, likewise. Ours.
const ROAS_MAX: usize = 4_000_000;

#[cfg(test)]
mod tests {
    use keiro_bgp::rpki::Validity;

    use super::*;

    fn read(text: &str) -> Result<Roas, String> {
        parse(
            text.as_bytes(),
            SystemTime::UNIX_EPOCH + Duration::from_secs(1000),
        )
    }

    #[test]
    fn output_of_validators_is_read() {
        // The shapes of rpki-client, Routinator and StayRTR.
        let roas = read(
            r#"{
            "metadata": {"buildmachine": "rpki", "vrps": 4, "counts": [1, {"a": null}]},
            "roas": [
                {"asn": 65001, "prefix": "2001:db8::/32", "maxLength": 48, "ta": "ripe", "expires": 2000},
                {"asn": "AS65002", "prefix": "192.0.2.0/24", "maxLength": 24, "ta": "arin"},
                {"asn": "65003", "prefix": "198.51.100.0/24"},
                {"asn": 65004, "prefix": "203.0.113.0/24", "maxLength": 24, "ta": "ripe", "expires": 1000}
            ],
            "bgpsec_keys": [], "aspas": [{"customer_asid": 1, "providers": []}]
        }"#,
        )
        .unwrap();
        assert_eq!((roas.vrps.len(), roas.expired), (3, 1));
        let of = |prefix: &str, asn| roas.vrps.validity(prefix.parse().unwrap(), Some(asn));
        assert_eq!(of("2001:db8:1::/48", 65001), Validity::Valid);
        assert_eq!(of("192.0.2.0/24", 65002), Validity::Valid);
        assert_eq!(of("198.51.100.0/24", 65003), Validity::Valid);
        assert_eq!(of("198.51.100.0/25", 65003), Validity::Invalid);
        assert_eq!(of("203.0.113.0/24", 65004), Validity::NotFound, "expired");
    }

    #[test]
    fn byte_order_mark_is_skipped() {
        let text = "{\"roas\": [{\"asn\": 1, \"prefix\": \"10.0.0.0/8\"}]}";
        assert_eq!(read(&format!("\u{feff}{text}")).unwrap().vrps.len(), 1);
        assert!(read("\u{feff}").unwrap_err().contains("EOF"));
    }

    #[test]
    fn files_without_roas_are_refused_with_the_place() {
        let one = |entry: &str| {
            format!("{{\"roas\": [{{\"asn\": 1, \"prefix\": \"10.0.0.0/8\"}}, {entry}]}}")
        };
        for (text, wanted) in [
            (String::new(), "EOF"),
            ("[]".to_owned(), "an object with `roas`"),
            ("{}".to_owned(), "missing field `roas`"),
            ("{\"roas\": []}".to_owned(), "has the validator run?"),
            (
                "{\"roas\": [{\"asn\": 1, \"prefix\": \"10.0.0.0/8\", \"expires\": 1}]}".to_owned(),
                "all 1 of its roas have expired",
            ),
            ("{\"roas\": [], \"roas\": []}".to_owned(), "duplicate field"),
            ("{\"roas\": {}}".to_owned(), "a list of roas"),
            (
                one("{\"asn\": 1, \"prefix\": \"10.0.0.0/8\"}") + "x",
                "trailing",
            ),
            (one("{\"asn\": 1}"), "missing field `prefix`"),
            (
                one("{\"asn\": 4294967296, \"prefix\": \"10.0.0.0/8\"}"),
                "an AS: 65001",
            ),
            (
                one("{\"asn\": \"AS+1\", \"prefix\": \"10.0.0.0/8\"}"),
                "an AS: 65001",
            ),
            (
                one("{\"asn\": -1, \"prefix\": \"10.0.0.0/8\"}"),
                "an AS: 65001",
            ),
            (one("{\"asn\": 1, \"prefix\": \"10.0.0.0/33\"}"), "line 1"),
            (
                one("{\"asn\": 1, \"prefix\": \"10.0.0.1/8\"}"),
                "roas[1]: `10.0.0.1/8` has bits",
            ),
            (
                one("{\"asn\": 1, \"prefix\": \"10.0.0.0/8\", \"maxLength\": 7}"),
                "roas[1]: maxLength 7 of 10.0.0.0/8 is not 8 to 32",
            ),
            (
                one("{\"asn\": 1, \"prefix\": \"10.0.0.0/8\", \"maxLength\": 33}"),
                "is not 8 to 32",
            ),
        ] {
            let error = read(&text).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
