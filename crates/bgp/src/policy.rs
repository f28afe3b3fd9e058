//! Import and export policies.
//!
//! A policy is a list of rules. The first matching rule decides; a route that matches no rule is
//! denied (RFC 8212).

use std::sync::Arc;

use ipnet::IpNet;

use crate::{
    address::{Destination, Family},
    attributes::{AsPath, Attributes, GRACEFUL_SHUTDOWN, NO_EXPORT},
    communities::{CommunityChanges, CommunityPattern},
    rpki::{Validity, Vrps},
};

/// An ordered list of rules. The empty policy denies everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    pub rules: Vec<Rule>,
    pub graceful_shutdown: GracefulShutdown,
}

/// Which permitted routes are about to become unusable, and so are the last choice (RFC 8326).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GracefulShutdown {
    /// None.
    #[default]
    Never,
    /// Those that have the community GRACEFUL_SHUTDOWN.
    Received,
    /// All: the session is to be ended.
    All,
}

/// One rule. A condition that is not set matches every route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Match only this family; `None`: every family.
    pub family: Option<Family>,
    /// Match any of these prefixes; empty: every prefix.
    pub prefixes: Vec<PrefixRange>,
    pub as_path: AsPathMatch,
    /// Match any of these communities; empty: every route.
    pub communities: Vec<CommunityPattern>,
    /// Match any of these origin validation states; empty: every state.
    pub validity: Vec<Validity>,
    pub action: Action,
}

/// A prefix with a range of lengths, like `ge` and `le` in prefix lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixRange {
    pub within: IpNet,
    /// The shortest matching length, in bits.
    pub length_min: u8,
    /// The longest matching length, in bits.
    pub length_max: u8,
}

/// Conditions on the AS path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AsPathMatch {
    /// Match any of these origin ASes; empty: every origin.
    pub origin: Vec<u32>,
    /// Match if the path contains any of these; empty: every path.
    pub contains: Vec<u32>,
    /// The longest matching path; `None`: no limit.
    pub length_max: Option<usize>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Action {
    /// The route is not accepted, or not advertised.
    #[default]
    Deny,
    /// The route is accepted or advertised with these changes.
    Permit(AttributeChanges),
}

/// Attribute changes that a rule makes, like `set` in route maps.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct AttributeChanges {
    pub local_pref: Option<u32>,
    pub med: Option<u32>,
    /// How often to prepend the own AS in addition to the usual once; on export to eBGP neighbours
    /// only.
    pub prepend: u8,
    /// LOCAL_PREF 0, whatever `local_pref` is, and the community GRACEFUL_SHUTDOWN on import (RFC 8326
    /// §4.2); the community on export to eBGP neighbours.
    pub graceful_shutdown: bool,
    /// `None`: communities stay.
    pub communities: Option<Arc<CommunityChanges>>,
    /// Drop packets to the destination, and keep the route within the AS (RFC 7999 §3.2). On import only.
    pub blackhole: bool,
}

impl Policy {
    pub fn permit_all() -> Self {
        Self {
            rules: vec![Rule {
                action: Action::Permit(AttributeChanges::default()),
                ..Rule::default()
            }],
            ..Self::default()
        }
    }

    /// Whether a rule matches on origin validation, so that new VRPs require a re-evaluation.
    pub fn uses_validity(&self) -> bool {
        self.rules.iter().any(|rule| !rule.validity.is_empty())
    }

    /// The changes to make to the route; `None`: the route is denied.
    pub fn evaluate(
        &self,
        destination: &Destination,
        attributes: &Attributes,
        vrps: &Vrps,
    ) -> Option<AttributeChanges> {
        let prefix = destination.prefix();
        let validity = || vrps.validity(prefix, attributes.as_path.origin());
        let rule = self.rules.iter().find(|rule| {
            let ranges = &rule.prefixes;
            rule.family
                .is_none_or(|family| family == destination.family())
                && (ranges.is_empty() || ranges.iter().any(|range| range.contains(&prefix)))
                && rule.as_path.matches(&attributes.as_path)
                && (rule.communities.is_empty()
                    || rule.communities.iter().any(|some| some.is_of(attributes)))
                && (rule.validity.is_empty() || rule.validity.contains(&validity()))
        })?;
        match &rule.action {
            Action::Deny => None,
            Action::Permit(changes) => Some(AttributeChanges {
                graceful_shutdown: self.graceful_shutdown.is_of(attributes),
                ..changes.clone()
            }),
        }
    }
}

impl GracefulShutdown {
    fn is_of(self, attributes: &Attributes) -> bool {
        match self {
            Self::Never => false,
            Self::Received => attributes.communities.contains(&GRACEFUL_SHUTDOWN),
            Self::All => true,
        }
    }
}

impl PrefixRange {
    /// Matches exactly one prefix.
    pub fn exactly(prefix: IpNet) -> Self {
        Self {
            within: prefix,
            length_min: prefix.prefix_len(),
            length_max: prefix.prefix_len(),
        }
    }

    fn contains(&self, prefix: &IpNet) -> bool {
        (self.length_min..=self.length_max).contains(&prefix.prefix_len())
            && self.within.contains(prefix)
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

impl AttributeChanges {
    /// Applies LOCAL_PREF, MED and communities as on import.
    pub(crate) fn on_import(&self, mut attributes: Attributes) -> Attributes {
        self.change_communities(&mut attributes);
        if self.blackhole {
            attributes.blackhole = true;
            attributes.add_community(NO_EXPORT);
        }
        Attributes {
            local_pref: match self.graceful_shutdown {
                true => Some(0),
                false => self.local_pref.or(attributes.local_pref),
            },
            med: self.med.or(attributes.med),
            ..attributes
        }
    }

    pub(crate) fn change_communities(&self, attributes: &mut Attributes) {
        if let Some(changes) = &self.communities {
            changes.apply(attributes);
        }
        if self.graceful_shutdown {
            attributes.add_community(GRACEFUL_SHUTDOWN);
        }
    }

    pub(crate) fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// Applies changes to shared attributes; calls `intern` only if something changes.
pub(crate) fn changed(
    attributes: &Arc<Attributes>,
    changes: &AttributeChanges,
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
    fn a_route_without_a_matching_rule_is_denied() {
        let policy = Policy::default();
        assert_eq!(
            policy.evaluate(
                &destination("10.0.0.0/8"),
                &attributes(&[]),
                &Vrps::default()
            ),
            None
        );
        let all = Policy::permit_all();
        let judged = all.evaluate(&destination("::/0"), &attributes(&[]), &Vrps::default());
        assert!(judged.is_some());
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let within: IpNet = "2001:db8::/32".parse().unwrap();
        let range = |length_min, length_max| PrefixRange {
            within,
            length_min,
            length_max,
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
                    communities: Vec::new(),
                    as_path: AsPathMatch {
                        length_max: Some(2),
                        ..AsPathMatch::default()
                    },
                    action: Action::Permit(AttributeChanges {
                        local_pref: Some(200),
                        ..AttributeChanges::default()
                    }),
                },
            ],
            ..Policy::default()
        };
        let none = Vrps::default();
        let evaluate =
            |text, path: &[u32]| policy.evaluate(&destination(text), &attributes(path), &none);
        let permitted = evaluate("2001:db8:1::/48", &[1, 2]).unwrap();
        assert_eq!(permitted.local_pref, Some(200));
        assert_eq!(evaluate("2001:db8:1::/49", &[1, 2]), None);
        assert_eq!(evaluate("2001:db9::/48", &[1]), None);
        assert_eq!(evaluate("2001:db8:1::/48", &[1, 666]), None);
        assert_eq!(evaluate("2001:db8:1::/48", &[1, 2, 3]), None);
        assert_eq!(evaluate("10.0.0.0/8", &[1]), None);
    }

    #[test]
    fn origin_validation_decides_where_a_rule_matches_on_it() {
        let rule = |validity: &[Validity], action| Rule {
            validity: validity.to_vec(),
            action,
            ..Rule::default()
        };
        let preferred = AttributeChanges {
            local_pref: Some(120),
            ..AttributeChanges::default()
        };
        let policy = Policy {
            rules: vec![
                rule(&[Validity::Invalid], Action::Deny),
                rule(&[Validity::Valid], Action::Permit(preferred)),
                rule(&[], Action::Permit(AttributeChanges::default())),
            ],
            ..Policy::default()
        };
        assert!(policy.uses_validity() && !Policy::permit_all().uses_validity());
        let vrps = Vrps::new(vec![Vrp {
            prefix: "10.0.0.0/8".parse().unwrap(),
            length_max: 16,
            asn: 2,
        }]);
        let evaluate = |text, path: &[u32]| {
            let judged = policy.evaluate(&destination(text), &attributes(path), &vrps);
            judged.map(|changes| changes.local_pref)
        };
        assert_eq!(evaluate("10.1.0.0/16", &[1, 2]), Some(Some(120)));
        assert_eq!(evaluate("10.1.0.0/16", &[2, 1]), None);
        assert_eq!(evaluate("10.1.1.0/24", &[1, 2]), None);
        assert_eq!(evaluate("11.0.0.0/8", &[1, 2]), Some(None));
    }
}
