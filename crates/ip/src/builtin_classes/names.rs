//! Patterns of domain names: those that are built in and those of rules.

use std::collections::BTreeMap;

use super::{BuiltInClass, known_names::KNOWN_NAMES};

/// Longest name in DNS (RFC 1035 §2.3.4), as text.
pub(super) const NAME_BYTES_MAX: usize = 253;
/// Different patterns of one tenant's rules. Ours.
pub const PATTERNS_MAX: usize = 4096;

/// A domain name of a rule: `zoom.us` is the name alone, `*.zoom.us` the name and all below it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DomainPattern {
    /// In lower case, without `*.`.
    domain: String,
    with_subdomains: bool,
}

/// The place of a pattern in [`Sorting::patterns`](super::Sorting::patterns).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PatternId(pub u16);

/// Why a text is no [`DomainPattern`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a domain name; write \"example.com\", or \"*.example.com\" for it and all names below it"
)]
pub struct PatternError;

/// What a name says of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Named {
    /// The longest pattern of a rule.
    pub(super) rule: Option<PatternId>,
    /// The longest built-in pattern.
    pub(super) class: Option<(BuiltInClass, &'static str)>,
}

/// All patterns of a tenant.
#[derive(Debug)]
pub(super) struct Names {
    known: BTreeMap<&'static str, BuiltInClass>,
    /// Exact names, and names with what is below them.
    rules: [BTreeMap<String, PatternId>; 2],
    /// Of the pattern with most of them that stands for several names.
    labels_max: usize,
}

impl DomainPattern {
    /// Whether every name that `other` stands for is one of this pattern too.
    pub fn covers(&self, other: &Self) -> bool {
        if !self.with_subdomains {
            return self == other;
        }
        let rest = other.domain.strip_suffix(&self.domain);
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    }
}

impl std::str::FromStr for DomainPattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let (domain, with_subdomains) = match text.strip_prefix("*.") {
            Some(domain) => (domain, true),
            None => (text, false),
        };
        let domain = domain.strip_suffix('.').unwrap_or(domain);
        let is_label = |label: &str| {
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            (1..=63).contains(&label.len()) && label.bytes().all(allowed)
        };
        let is_name = domain.len() <= NAME_BYTES_MAX && domain.split('.').all(is_label);
        is_name
            .then(|| Self {
                domain: domain.to_ascii_lowercase(),
                with_subdomains,
            })
            .ok_or(PatternError)
    }
}

impl std::fmt::Display for DomainPattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let star = if self.with_subdomains { "*." } else { "" };
        write!(f, "{star}{}", self.domain)
    }
}

impl Names {
    /// The built-in patterns if `with_known`, and those of rules; those beyond [`PATTERNS_MAX`] are left out.
    pub(super) fn new(with_known: bool, patterns: &[DomainPattern]) -> Self {
        let known = KNOWN_NAMES.iter().filter(|_| with_known);
        let known = known.flat_map(|(class, names)| names.iter().map(|name| (*name, *class)));
        let known: BTreeMap<&str, BuiltInClass> = known.collect();
        let mut rules = [BTreeMap::new(), BTreeMap::new()];
        for (number, pattern) in (0..PATTERNS_MAX as u16).zip(patterns) {
            let of = &mut rules[usize::from(pattern.with_subdomains)];
            of.insert(pattern.domain.clone(), PatternId(number));
        }
        let labels = |name: &str| name.split('.').count();
        let of_rules = rules[1].keys().map(|name: &String| labels(name));
        let labels_max = known.keys().map(|name| labels(name)).chain(of_rules).max();
        Self {
            labels_max: labels_max.unwrap_or_default(),
            known,
            rules,
        }
    }

    /// What is said by `name`, which is in lower case.
    pub(super) fn named(&self, name: &str) -> Named {
        let mut named = Named {
            rule: self.rules[0].get(name).copied(),
            class: None,
        };
        for suffix in self.suffixes(name) {
            if named.rule.is_none() {
                named.rule = self.rules[1].get(suffix).copied();
            }
            if named.class.is_none() {
                let found = self.known.get_key_value(suffix);
                named.class = found.map(|(pattern, class)| (*class, *pattern));
            }
        }
        named
    }

    /// The pattern that stands for all names that `pattern` stands for: itself, or the longest above it.
    pub(super) fn covering(&self, pattern: &DomainPattern) -> Option<PatternId> {
        let same = self.rules[usize::from(pattern.with_subdomains)].get(&pattern.domain);
        let above = || {
            let mut suffixes = self.suffixes(&pattern.domain);
            suffixes.find_map(|suffix| self.rules[1].get(suffix))
        };
        same.or_else(above).copied()
    }

    /// A name without its first labels, from the longest that is not longer than all patterns.
    fn suffixes<'a>(&self, name: &'a str) -> impl Iterator<Item = &'a str> + use<'a> {
        let mut dots = name.rmatch_indices('.');
        let start = match self.labels_max {
            0 => None,
            labels => Some(dots.nth(labels - 1).map_or(0, |(dot, _)| dot + 1)),
        };
        let longest = start.map(|start| &name[start..]);
        std::iter::successors(longest, |rest| Some(rest.split_once('.')?.1))
    }
}

impl Named {
    pub(super) fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// Whether packets are treated alike, whichever pattern of a class the names match.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let class = |of: &Self| of.class.map(|(class, _)| class);
        self.rule == other.rule && class(self) == class(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> DomainPattern {
        text.parse().expect("a pattern")
    }

    #[test]
    fn the_longest_pattern_counts_and_parts_of_labels_do_not() {
        let names = Names::new(
            true,
            &[pattern("*.us"), pattern("*.Zoom.us"), pattern("a.zoom.us")],
        );
        let rule = |name: &str| names.named(name).rule.map(|id| id.0);
        assert_eq!(rule("a.zoom.us"), Some(2));
        assert_eq!(rule("b.a.zoom.us"), Some(1));
        assert_eq!(rule("zoom.us"), Some(1));
        assert_eq!(rule("notzoom.us"), Some(0));
        assert_eq!(rule("zoom.us.example"), None);
        let class = |name: &str| names.named(name).class.map(|(class, _)| class);
        assert_eq!(class("dl.google.com"), Some(BuiltInClass::Bulk));
        assert_eq!(class("r3.dl.google.com"), Some(BuiltInClass::Bulk));
        assert_eq!(class("mail.google.com"), Some(BuiltInClass::Web));
        assert_eq!(class("evilgoogle.com"), None);
        assert!(Names::new(false, &[]).named("google.com").is_nothing());
    }

    #[test]
    fn a_pattern_covers_those_below_it() {
        let covers = |a: &str, b: &str| pattern(a).covers(&pattern(b));
        assert!(covers("*.us", "*.zoom.us") && covers("*.us", "zoom.us") && covers("*.us", "us"));
        assert!(covers("zoom.us", "ZOOM.us."));
        assert!(!covers("zoom.us", "*.zoom.us") && !covers("*.oom.us", "zoom.us"));
        for wrong in ["", "*", "*.", "a..b", "a b", "*.*.a", &"a.".repeat(200)] {
            assert_eq!(wrong.parse::<DomainPattern>(), Err(PatternError), "{wrong}");
        }
    }

    #[test]
    fn no_known_name_is_listed_twice() {
        let all: Vec<_> = KNOWN_NAMES.iter().flat_map(|(_, names)| *names).collect();
        let mut once = all.clone();
        once.sort();
        once.dedup();
        assert_eq!(once.len(), all.len());
        assert!(all.iter().all(|name| pattern(name).to_string() == **name));
    }
}
