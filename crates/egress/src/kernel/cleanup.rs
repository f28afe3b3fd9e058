//! What `--cleanup` removes, for its message.

use std::fmt;

use keiro_linux::epe::{EpeError, Reconciler, Report, State};

/// The outcome of a cleanup.
#[derive(Debug)]
pub struct Cleaned {
    /// What was there and is gone.
    pub removed: Removed,
    /// What the kernel refused to remove.
    pub report: Report,
    /// Why something else may be left.
    pub problems: Vec<String>,
}

/// Numbers of entries by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Routes, those that close tables included.
    pub routes: usize,
    pub nexthops: usize,
    pub segments: usize,
    /// Policy rules of every kind.
    pub rules: usize,
    pub addresses: usize,
    pub mptcp_endpoints: usize,
    /// Tables of nftables by name, whatever their families.
    pub nftables: usize,
    pub vrf_devices: usize,
    /// Entries that the daemons do not make now.
    pub others: usize,
}

impl Cleaned {
    /// Removes the owner's entries.
    pub(super) fn remove(mut reconciler: Reconciler) -> Result<Self, EpeError> {
        let before = Removed::of(&reconciler.present()?);
        let report = reconciler.cleanup()?;
        // The kernel may have refused some.
        let mut removed = before.without(&Removed::of(&reconciler.present()?));
        removed.others = report.strays;
        Ok(Self {
            removed,
            report,
            problems: Vec::new(),
        })
    }

    /// The number that was removed; after a problem the rest goes on.
    pub(super) fn count<E: fmt::Display>(
        &mut self,
        what: &str,
        removed: Result<usize, E>,
    ) -> usize {
        removed.unwrap_or_else(|error| {
            self.problems.push(format!("{what} may be left: {error}"));
            0
        })
    }

    pub fn is_clean(&self) -> bool {
        self.report.is_clean() && self.problems.is_empty()
    }
}

impl Removed {
    fn of(state: &State) -> Self {
        let tables = state.tables.values();
        let closings =
            tables.map(|table| usize::from(table.closed) + usize::from(table.closed_ipv4));
        Self {
            routes: state.routes() + closings.sum::<usize>(),
            nexthops: state.nexthops.len(),
            segments: state.sids.len(),
            rules: state.rules.len() + state.marks.len() + state.drops.len(),
            addresses: state.addresses.len(),
            ..Self::default()
        }
    }

    fn counts(&self) -> [(usize, &'static str); 9] {
        [
            (self.routes, "routes"),
            (self.nexthops, "nexthop objects"),
            (self.segments, "segments"),
            (self.rules, "policy rules"),
            (self.addresses, "addresses"),
            (self.mptcp_endpoints, "MPTCP endpoints"),
            (self.nftables, "nftables tables"),
            (self.vrf_devices, "VRF devices"),
            (self.others, "other entries"),
        ]
    }

    fn without(self, left: &Self) -> Self {
        Self {
            routes: self.routes.saturating_sub(left.routes),
            nexthops: self.nexthops.saturating_sub(left.nexthops),
            segments: self.segments.saturating_sub(left.segments),
            rules: self.rules.saturating_sub(left.rules),
            addresses: self.addresses.saturating_sub(left.addresses),
            ..self
        }
    }
}

impl fmt::Display for Removed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.counts();
        let there = counts.iter().filter(|(count, _)| *count > 0);
        let there: Vec<String> = there
            .map(|(count, what)| format!("{what} {count}"))
            .collect();
        match there.is_empty() {
            true => f.write_str("nothing was there to remove"),
            false => write!(f, "removed from the kernel: {}", there.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_is_not_counted_and_a_problem_ends_nothing() {
        let before = Removed {
            routes: 5,
            rules: 2,
            ..Removed::default()
        };
        let left = Removed {
            routes: 2,
            ..Removed::default()
        };
        let mut cleaned = Cleaned {
            removed: before.without(&left),
            report: Report::default(),
            problems: Vec::new(),
        };
        assert_eq!((cleaned.removed.routes, cleaned.removed.rules), (3, 2));
        assert!(cleaned.is_clean());
        cleaned.removed.nftables = cleaned.count("tables", Err("nft hangs"));
        cleaned.removed.vrf_devices = cleaned.count("devices", Ok::<_, String>(1));
        assert_eq!(cleaned.removed.vrf_devices, 1);
        assert_eq!(cleaned.problems, ["tables may be left: nft hangs"]);
        assert!(!cleaned.is_clean());
    }

    #[test]
    fn what_was_removed_is_counted_by_kind() {
        assert_eq!(
            Removed::default().to_string(),
            "nothing was there to remove"
        );
        let removed = Removed {
            routes: 200_003,
            nexthops: 2,
            vrf_devices: 1,
            ..Removed::default()
        };
        assert_eq!(
            removed.to_string(),
            "removed from the kernel: routes 200003, nexthop objects 2, VRF devices 1"
        );
    }
}
