//! Changed best paths that wait for the main table.
//!
//! When an egress peer with a full table is lost, hundreds of thousands of best paths change at once. The
//! main table takes them in slices, so that withdrawals, other neighbours and requests are not held up for
//! seconds. Tables of egress peers do not wait.

use std::{collections::BTreeSet, ops::Bound};

use keiro_bgp::address::Destination;

#[derive(Debug, Default)]
pub(crate) struct Backlog {
    waiting: BTreeSet<Destination>,
    /// The last one taken: those after it are next, so that no destination waits behind others that
    /// change all the time.
    last: Option<Destination>,
}

impl Backlog {
    pub(crate) fn extend(&mut self, changed: impl IntoIterator<Item = Destination>) {
        self.waiting.extend(changed);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes the next slice.
    pub(crate) fn take(&mut self) -> BTreeSet<Destination> {
        if self.waiting.len() <= SLICE {
            self.last = None;
            return std::mem::take(&mut self.waiting);
        }
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = self.waiting.range((after, Bound::Unbounded));
        let slice: BTreeSet<Destination> = rest.chain(&self.waiting).take(SLICE).copied().collect();
        self.last = match self.last {
            // It went on from the beginning if some of it are before the last one.
            Some(last) => slice.range(..=last).next_back().or(slice.last()).copied(),
            None => slice.last().copied(),
        };
        for destination in &slice {
            self.waiting.remove(destination);
        }
        slice
    }
}

/// Best paths that are changed at once: some tens of milliseconds. Ours.
const SLICE: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn destination(number: usize) -> Destination {
        let address = std::net::Ipv6Addr::from((number as u128) << 64);
        Destination::V6(ipnet::Ipv6Net::new_assert(address, 64))
    }

    #[test]
    fn backlog_is_drained_once_in_slices() {
        let mut backlog = Backlog::default();
        backlog.extend((0..10_000).map(destination));
        let mut taken = Vec::new();
        while !backlog.is_empty() {
            let slice = backlog.take();
            assert!(slice.len() <= SLICE);
            taken.extend(slice);
        }
        assert!(taken.into_iter().eq((0..10_000).map(destination)));
    }

    #[test]
    fn constantly_changing_entries_do_not_starve_others() {
        let mut backlog = Backlog::default();
        let restless = || (0..SLICE).map(destination);
        backlog.extend(restless());
        backlog.extend((SLICE..3 * SLICE).map(destination));
        let last = destination(3 * SLICE - 1);
        for round in 0.. {
            assert!(round < 6, "it waits");
            if backlog.take().contains(&last) {
                break;
            }
            backlog.extend(restless());
        }
    }
}
