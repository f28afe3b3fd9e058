//! What `--cleanup` removes, for its message.

use std::fmt;

use keiro_linux::epe::{EpeError, Reconciler, Report, State};

/// The outcome of a cleanup.
#[derive(Debug)]
pub struct Cleaned {
    /// What was there.
    pub removed: Removed,
    /// What the kernel refused to remove.
    pub report: Report,
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
        let mut removed = Removed::of(&reconciler.present()?);
        let report = reconciler.cleanup()?;
        // Routes go with their nexthop objects, without changes of their own.
        let known = removed.total();
        removed.others = report.carried_out.saturating_sub(known);
        Ok(Self { removed, report })
    }

    pub fn is_clean(&self) -> bool {
        self.report.is_clean()
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

    fn total(&self) -> usize {
        self.counts().iter().map(|(count, _)| count).sum()
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
