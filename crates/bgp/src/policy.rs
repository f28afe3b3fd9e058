//! Which routes are taken from a neighbour and which are told to it.
//!
//! A policy is a list of rules; the first that matches decides, and what none matches is denied
//! (RFC 8212).

use std::sync::Arc;

use ipnet::IpNet;

use crate::{
    address::{Destination, Family},
    attributes::{AsPath, Attributes},
    rpki::{Validity, Vrps},
};

/// Rules in order. The empty policy denies everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// The first that matches decides.
    pub rules: Vec<Rule>,
}

/// One rule. What is not asked for matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Only routes of this family; `None`: of every one.
    pub family: Option<Family>,
    /// Any of these prefixes; empty: every one.
    pub prefixes: Vec<PrefixRange>,
    /// What the AS path must be like.
    pub as_path: AsPathMatch,
    /// What the RPKI says of it is one of these; empty: anything.
    pub validity: Vec<Validity>,
    /// What happens.
    pub action: Action,
}

/// Prefixes within one, of some lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixRange {
    /// What contains them.
    pub within: IpNet,
    /// The shortest, in bits.
    pub least: u8,
    /// The longest, in bits.
    pub most: u8,
}

/// What an AS path must be like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AsPathMatch {
    /// One of these is the origin; empty: any.
    pub origin: Vec<u32>,
    /// One of these is in it; empty: any.
    pub contains: Vec<u32>,
    /// At most so long.
    pub length_max: Option<usize>,
}

/// What happens to a route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Action {
    /// It is not taken, or not told.
    #[default]
    Deny,
    /// It is, with changes.
    Permit(Changes),
}

/// What a rule changes on a route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Changes {
    /// LOCAL_PREF.
    pub local_pref: Option<u32>,
    /// MULTI_EXIT_DISC.
    pub med: Option<u32>,
    /// How often the own AS goes in front once more; for what is told to other ASes.
    pub prepend: u8,
}

impl Policy {
    /// Everything, unchanged.
    pub fn permit_all() -> Self {
        Self {
            rules: vec![Rule {
                action: Action::Permit(Changes::default()),
                ..Rule::default()
            }],
        }
    }

    /// Whether what the RPKI says counts.
    pub fn asks_validity(&self) -> bool {
        self.rules.iter().any(|rule| !rule.validity.is_empty())
    }

    /// What is to be changed on the route; `None`: it is denied.
    pub fn judge(
        &self,
        destination: &Destination,
        attributes: &Attributes,
        vrps: &Vrps,
    ) -> Option<Changes> {
        let prefix = destination.prefix();
        let validity = || vrps.validity(prefix, attributes.as_path.origin());
        let rule = self.rules.iter().find(|rule| {
            let ranges = &rule.prefixes;
            rule.family
                .is_none_or(|family| family == destination.family())
                && (ranges.is_empty() || ranges.iter().any(|range| range.contains(&prefix)))
                && rule.as_path.matches(&attributes.as_path)
                && (rule.validity.is_empty() || rule.validity.contains(&validity()))
        })?;
        match rule.action {
            Action::Deny => None,
            Action::Permit(changes) => Some(changes),
        }
    }
}

impl PrefixRange {
    /// Exactly one prefix.
    pub fn exactly(prefix: IpNet) -> Self {
        Self {
            within: prefix,
            least: prefix.prefix_len(),
            most: prefix.prefix_len(),
        }
    }

    fn contains(&self, prefix: &IpNet) -> bool {
        (self.least..=self.most).contains(&prefix.prefix_len()) && self.within.contains(prefix)
    }
}

impl AsPathMatch {
    fn matches(&self, path: &AsPath) -> bool {
        let origin = path.origin();
        let has = |list: &[u32], asn: u32| list.contains(&asn);
        (self.origin.is_empty() || origin.is_some_and(|asn| has(&self.origin, asn)))
            && (self.contains.is_empty() || path.asns().any(|asn| has(&self.contains, asn)))
            && self.length_max.is_none_or(|most| path.length() <= most)
    }
}

impl Changes {
    /// The attributes with the changes of an import; the same ones where nothing changes.
    pub(crate) fn on_import(&self, attributes: Attributes) -> Attributes {
        Attributes {
            local_pref: self.local_pref.or(attributes.local_pref),
            med: self.med.or(attributes.med),
            ..attributes
        }
    }

    /// Whether nothing is changed.
    pub(crate) fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// Applies changes to shared attributes; `intern` is asked only where something changes.
pub(crate) fn changed(
    attributes: &Arc<Attributes>,
    changes: &Changes,
    intern: impl FnOnce(Attributes) -> Arc<Attributes>,
) -> Arc<Attributes> {
    if changes.is_none() {
        return Arc::clone(attributes);
    }
    intern(changes.on_import((**attributes).clone()))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::rpki::Vrp;

    fn attributes(path: &[u32]) -> Attributes {
        let mut attributes = Attributes::local(IpAddr::from([192, 0, 2, 1]));
        attributes.as_path = AsPath::sequence(path);
        attributes
    }

    fn destination(text: &str) -> Destination {
        Destination::unicast(text.parse().unwrap())
    }

    #[test]
    fn nothing_passes_without_a_rule() {
        let policy = Policy::default();
        assert_eq!(
            policy.judge(
                &destination("10.0.0.0/8"),
                &attributes(&[]),
                &Vrps::default()
            ),
            None
        );
        let all = Policy::permit_all();
        let judged = all.judge(&destination("::/0"), &attributes(&[]), &Vrps::default());
        assert!(judged.is_some());
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let within: IpNet = "2001:db8::/32".parse().unwrap();
        let range = |least, most| PrefixRange {
            within,
            least,
            most,
        };
        let policy = Policy {
            rules: vec![
                Rule {
                    as_path: AsPathMatch {
                        contains: vec![666],
                        ..AsPathMatch::default()
                    },
                    ..Rule::default()
                },
                Rule {
                    family: None,
                    prefixes: vec![range(32, 48)],
                    validity: Vec::new(),
                    as_path: AsPathMatch {
                        length_max: Some(2),
                        ..AsPathMatch::default()
                    },
                    action: Action::Permit(Changes {
                        local_pref: Some(200),
                        ..Changes::default()
                    }),
                },
            ],
        };
        let none = Vrps::default();
        let judge = |text, path: &[u32]| policy.judge(&destination(text), &attributes(path), &none);
        let permitted = judge("2001:db8:1::/48", &[1, 2]).unwrap();
        assert_eq!(permitted.local_pref, Some(200));
        assert_eq!(judge("2001:db8:1::/49", &[1, 2]), None);
        assert_eq!(judge("2001:db9::/48", &[1]), None);
        assert_eq!(judge("2001:db8:1::/48", &[1, 666]), None);
        assert_eq!(judge("2001:db8:1::/48", &[1, 2, 3]), None);
        assert_eq!(judge("10.0.0.0/8", &[1]), None);
    }

    #[test]
    fn what_the_rpki_says_decides_where_a_rule_asks() {
        let rule = |validity: &[Validity], action| Rule {
            validity: validity.to_vec(),
            action,
            ..Rule::default()
        };
        let preferred = Changes {
            local_pref: Some(120),
            ..Changes::default()
        };
        let policy = Policy {
            rules: vec![
                rule(&[Validity::Invalid], Action::Deny),
                rule(&[Validity::Valid], Action::Permit(preferred)),
                rule(&[], Action::Permit(Changes::default())),
            ],
        };
        assert!(policy.asks_validity() && !Policy::permit_all().asks_validity());
        let vrps = Vrps::new(vec![Vrp {
            prefix: "10.0.0.0/8".parse().unwrap(),
            length_max: 16,
            asn: 2,
        }]);
        let judge = |text, path: &[u32]| {
            let judged = policy.judge(&destination(text), &attributes(path), &vrps);
            judged.map(|changes| changes.local_pref)
        };
        assert_eq!(judge("10.1.0.0/16", &[1, 2]), Some(Some(120)));
        assert_eq!(judge("10.1.0.0/16", &[2, 1]), None);
        assert_eq!(judge("10.1.1.0/24", &[1, 2]), None);
        assert_eq!(judge("11.0.0.0/8", &[1, 2]), Some(None));
    }
}
