//! Keys and prefixes in documents: as the text that a configuration has.

pub(super) mod one {
    use std::{fmt::Display, str::FromStr};

    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(in super::super) fn serialize<T: Display, S: Serializer>(
        value: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(in super::super) fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

pub(super) mod list {
    use std::{fmt::Display, str::FromStr};

    use serde::{Deserialize, Deserializer, Serializer, de};

    use super::super::SITE_PREFIXES_MAX;

    pub(in super::super) fn serialize<T: Display, S: Serializer>(
        values: &[T],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(values.iter().map(ToString::to_string))
    }

    pub(in super::super) fn deserialize<'de, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        let texts = Vec::<String>::deserialize(deserializer)?;
        if texts.len() > SITE_PREFIXES_MAX {
            let message = format!("a site has at most {SITE_PREFIXES_MAX} prefixes");
            return Err(de::Error::custom(message));
        }
        let value = |text: &String| text.parse().map_err(de::Error::custom);
        texts.iter().map(value).collect()
    }
}

pub(super) mod preshared_key {
    use serde::{Deserialize, Deserializer, Serializer, de};
    use zeroize::Zeroizing;

    use crate::key::PresharedKey;

    pub(in super::super) fn serialize<S: Serializer>(
        key: &PresharedKey,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&key.to_base64())
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<PresharedKey, D::Error> {
        let text = Zeroizing::new(String::deserialize(deserializer)?);
        text.parse().map_err(de::Error::custom)
    }
}
