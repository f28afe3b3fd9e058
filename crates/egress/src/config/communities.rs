//! Communities as texts: `"65000:100"`, `"65000:1:2"`, `"65000:*"`, `"blackhole"`.

use std::str::FromStr;

use keiro_bgp::communities::{Community, CommunityPattern};
use serde::{Deserialize, Deserializer, de};

/// One community, or those that differ in a part.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommunityText(pub(super) CommunityPattern);

impl CommunityText {
    /// `None`: more than one.
    pub(super) fn one(&self) -> Option<Community> {
        match self.0 {
            CommunityPattern::Standard(asn, value) => Some(Community::Standard(
                u32::from(asn) << 16 | u32::from(value?),
            )),
            CommunityPattern::Large(asn, [one, two]) => Some(Community::Large([asn, one?, two?])),
        }
    }
}

impl FromStr for CommunityText {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        if let Some((_, value)) = WELL_KNOWN.iter().find(|(name, _)| *name == text) {
            return Ok(Self(CommunityPattern::Standard(
                WELL_KNOWN_AS,
                Some(*value),
            )));
        }
        let parts: Vec<&str> = text.splitn(4, ':').collect();
        let pattern = match parts[..] {
            [asn, value] => standard(asn, value),
            [asn, one, two] => large(asn, one, two),
            _ => None,
        };
        pattern.map(Self).ok_or(
            "write \"65000:100\", \"65000:1:2\" for a large one, `*` for any second or third part, or a name: \
             blackhole, graceful-shutdown, no-export, no-advertise",
        )
    }
}

fn standard(asn: &str, value: &str) -> Option<CommunityPattern> {
    let value = match value {
        "*" => None,
        number => Some(number.parse().ok()?),
    };
    Some(CommunityPattern::Standard(asn.parse().ok()?, value))
}

fn large(asn: &str, one: &str, two: &str) -> Option<CommunityPattern> {
    let part = |text: &str| match text {
        "*" => Some(None),
        number => number.parse().ok().map(Some),
    };
    Some(CommunityPattern::Large(
        asn.parse().ok()?,
        [part(one)?, part(two)?],
    ))
}

impl<'de> Deserialize<'de> for CommunityText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse()
            .map_err(|hint| de::Error::custom(format!("`{text}` is no community: {hint}")))
    }
}

/// A list of bounded length.
pub(super) fn list<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<CommunityText>, D::Error> {
    let all = Vec::<CommunityText>::deserialize(deserializer)?;
    match all.len() {
        0..=COMMUNITIES_MAX => Ok(all),
        _ => Err(de::Error::custom("more than 1,000 communities in a rule")),
    }
}

/// Those to add, which must be single ones.
pub(super) fn singles<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<CommunityText>, D::Error> {
    let all = list(deserializer)?;
    match all.iter().all(|it| it.one().is_some()) {
        true => Ok(all),
        false => Err(de::Error::custom(
            "add_communities: `*` is any community, and cannot be added; write a number",
        )),
    }
}

/// Of one list; each route is compared with all of them. Ours.
const COMMUNITIES_MAX: usize = 1000;
const WELL_KNOWN_AS: u16 = 0xffff;
/// RFC 8326, RFC 7999 and RFC 1997.
const WELL_KNOWN: [(&str, u16); 4] = [
    ("graceful-shutdown", 0),
    ("blackhole", 666),
    ("no-export", 0xff01),
    ("no-advertise", 0xff02),
];
