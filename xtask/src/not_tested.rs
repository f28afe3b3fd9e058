//! Tests that said that they tested nothing, and the reasons that are accepted.

use std::{fs, path::Path};

/// The variable that names the file to which tests append what they did not test.
pub(crate) const VARIABLE: &str = "KEIRO_NOT_TESTED";

/// Reasons that are accepted: `test: part of the reason`, one a line.
const ALLOWED: &str = include_str!("../skips-allowed.txt");

/// A test that tested nothing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Skip {
    pub(crate) test: String,
    pub(crate) reason: String,
}

impl Skip {
    pub(crate) fn is_allowed(&self) -> bool {
        allowed()
            .any(|(test, part)| (test == "*" || test == self.test) && self.reason.contains(part))
    }
}

fn allowed() -> impl Iterator<Item = (&'static str, &'static str)> {
    ALLOWED
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .filter_map(|line| line.split_once(": "))
}

/// What is in the file, each test once.
pub(crate) fn read(file: &Path) -> Vec<Skip> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let mut skips: Vec<Skip> = text.lines().filter_map(skip).collect();
    skips.sort();
    skips.dedup();
    skips
}

fn skip(line: &str) -> Option<Skip> {
    let (test, reason) = line.strip_prefix("NOT TESTED: ")?.split_once(": ")?;
    Some(Skip {
        test: test.to_owned(),
        reason: reason.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_that_is_not_on_the_list_is_not_allowed() {
        let no_vrf = "this kernel has no VRF devices; `make test-guest` boots one that has";
        let line = format!("NOT TESTED: a_peer_has_the_vrf_device_that_it_asks_for: {no_vrf}");
        let vrf = skip(&line).unwrap();
        assert!(vrf.is_allowed());
        let root = Skip {
            reason: "network namespaces need root".to_owned(),
            ..vrf
        };
        assert!(!root.is_allowed());
    }

    #[test]
    fn every_line_of_the_list_is_understood() {
        let lines = ALLOWED
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        assert_eq!(lines.count(), allowed().count());
    }
}
