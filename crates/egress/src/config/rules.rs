//! Policies in the configuration: a word, or a list of rules.

use std::{fmt, str::FromStr, sync::Arc};

use ipnet::IpNet;
use keiro_bgp::{
    communities::CommunityChanges,
    policy::{Action, AsPathMatch, AttributeChanges, Policy, PrefixRange, Rule},
    rpki::Validity,
};
use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess, Visitor},
};

use super::communities::{self, CommunityText};

#[derive(Clone, Debug, Default)]
pub(super) enum Filter {
    /// Deny everything (RFC 8212).
    #[default]
    None,
    /// Permit everything.
    All,
    /// The prefixes of `announce`.
    Own,
    /// A list of rules.
    Rules(Vec<FilterRule>),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FilterRule {
    #[serde(default)]
    prefixes: Vec<Range>,
    #[serde(default)]
    origin_as: Vec<u32>,
    #[serde(default)]
    through_as: Vec<u32>,
    path_max: Option<usize>,
    #[serde(default, deserialize_with = "communities::list")]
    communities: Vec<CommunityText>,
    #[serde(default, deserialize_with = "validities")]
    rpki: Vec<Validity>,
    #[serde(default)]
    action: Verdict,
    local_pref: Option<u32>,
    med: Option<u32>,
    #[serde(default)]
    prepend: u8,
    #[serde(default, deserialize_with = "communities::singles")]
    add_communities: Vec<CommunityText>,
    #[serde(default, deserialize_with = "communities::list")]
    remove_communities: Vec<CommunityText>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    #[default]
    Permit,
    Deny,
    Blackhole,
}

/// `2001:db8::/32`, `2001:db8::/32 le 48`, `::/0 ge 16 le 48`.
#[derive(Clone, Copy, Debug)]
struct Range(PrefixRange);

impl Filter {
    /// Whether a rule matches on origin validation.
    pub(super) fn asks_rpki(&self) -> bool {
        matches!(self, Self::Rules(rules) if rules.iter().any(|rule| !rule.rpki.is_empty()))
    }

    /// Whether a rule drops packets.
    pub(super) fn drops_packets(&self) -> bool {
        let drops = |rule: &FilterRule| rule.action == Verdict::Blackhole;
        matches!(self, Self::Rules(rules) if rules.iter().any(drops))
    }

    pub(super) fn policy(&self, own: &[IpNet]) -> Policy {
        match self {
            Self::None => Policy::default(),
            Self::All => Policy::permit_all(),
            Self::Own if own.is_empty() => Policy::default(),
            Self::Own => Policy {
                rules: vec![Rule {
                    prefixes: own.iter().map(|net| PrefixRange::exactly(*net)).collect(),
                    action: Action::Permit(AttributeChanges::default()),
                    ..Rule::default()
                }],
                ..Policy::default()
            },
            Self::Rules(rules) => Policy {
                rules: rules.iter().map(FilterRule::rule).collect(),
                ..Policy::default()
            },
        }
    }
}

impl FilterRule {
    fn community_changes(&self) -> Option<CommunityChanges> {
        let changes = CommunityChanges {
            remove: self.remove_communities.iter().map(|it| it.0).collect(),
            add: self
                .add_communities
                .iter()
                .filter_map(CommunityText::one)
                .collect(),
        };
        (changes != CommunityChanges::default()).then_some(changes)
    }

    fn rule(&self) -> Rule {
        Rule {
            family: None,
            prefixes: self.prefixes.iter().map(|range| range.0).collect(),
            as_path: AsPathMatch {
                origin: self.origin_as.clone(),
                contains: self.through_as.clone(),
                length_max: self.path_max,
            },
            communities: self.communities.iter().map(|it| it.0).collect(),
            validity: self.rpki.clone(),
            action: match self.action {
                Verdict::Deny => Action::Deny,
                Verdict::Permit | Verdict::Blackhole => Action::Permit(AttributeChanges {
                    local_pref: self.local_pref,
                    med: self.med,
                    prepend: self.prepend,
                    graceful_shutdown: false,
                    communities: self.community_changes().map(Arc::new),
                    blackhole: self.action == Verdict::Blackhole,
                }),
            },
        }
    }
}

impl FromStr for Range {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        const HOW: &str = "write a prefix and, if others within it are meant, their lengths: \
                           \"2001:db8::/32\", \"2001:db8::/32 le 48\", \"::/0 ge 16 le 48\"";
        let mut words = text.split_whitespace();
        let within: IpNet = words.next().and_then(|w| w.parse().ok()).ok_or(HOW)?;
        let longest = within.max_prefix_len();
        let (mut least, mut most) = (None, None);
        while let Some(word) = words.next() {
            let length = words.next().and_then(|w| w.parse::<u8>().ok()).ok_or(HOW)?;
            let bound = match word {
                "ge" => &mut least,
                "le" => &mut most,
                _ => return Err(HOW),
            };
            if length > longest || bound.replace(length).is_some() {
                return Err(HOW);
            }
        }
        let own = within.prefix_len();
        let range = PrefixRange {
            within: within.trunc(),
            length_max: most.unwrap_or(if least.is_some() { longest } else { own }),
            length_min: least.unwrap_or(own),
        };
        if range.length_min < own || range.length_min > range.length_max {
            return Err(
                "the lengths admit no prefix; `ge` is at most `le`, and at least the prefix's own",
            );
        }
        Ok(Self(range))
    }
}

impl<'de> Deserialize<'de> for Range {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse()
            .map_err(|hint| de::Error::custom(format!("`{text}`: {hint}")))
    }
}

impl<'de> Deserialize<'de> for Filter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FilterVisitor)
    }
}

/// One, or a list of them.
fn validities<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Validity>, D::Error> {
    deserializer.deserialize_any(ValidityVisitor)
}

#[derive(Clone, Copy)]
struct ValidityVisitor;

impl<'de> Visitor<'de> for ValidityVisitor {
    type Value = Vec<Validity>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"valid\", \"invalid\", \"not-found\", or a list of these")
    }

    fn visit_str<E: de::Error>(self, word: &str) -> Result<Vec<Validity>, E> {
        let one = match word {
            "valid" => Validity::Valid,
            "invalid" => Validity::Invalid,
            "not-found" => Validity::NotFound,
            _ => {
                return Err(E::custom(format!(
                    "rpki: `{word}`: write \"valid\", \"invalid\", \"not-found\" or a list of these"
                )));
            }
        };
        Ok(vec![one])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<Validity>, A::Error> {
        let mut all = Vec::new();
        while let Some(word) = list.next_element::<String>()? {
            let one = self.visit_str::<A::Error>(&word)?;
            // Three there are.
            if !all.contains(&one[0]) {
                all.extend(one);
            }
        }
        if all.is_empty() {
            return Err(de::Error::custom(
                "rpki: an empty list matches nothing; leave it out",
            ));
        }
        Ok(all)
    }
}

struct FilterVisitor;

impl<'de> Visitor<'de> for FilterVisitor {
    type Value = Filter;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"all\", \"own\", \"none\" or a list of rules")
    }

    fn visit_str<E: de::Error>(self, word: &str) -> Result<Filter, E> {
        match word {
            "none" => Ok(Filter::None),
            "all" => Ok(Filter::All),
            "own" => Ok(Filter::Own),
            _ => Err(E::custom(format!(
                "`{word}`: write \"all\", \"own\", \"none\" or a list of rules"
            ))),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Filter, A::Error> {
        let mut rules = Vec::new();
        while let Some(rule) = list.next_element()? {
            if rules.len() == RULES_MAX {
                return Err(de::Error::custom("more than 10,000 rules"));
            }
            rules.push(rule);
        }
        Ok(Filter::Rules(rules))
    }
}

/// The maximum number of rules; each route is compared with all of them. Ours.
const RULES_MAX: usize = 10_000;
