//! Numbers of messages that have ended.

use std::collections::BTreeMap;

/// Ranges of finished message numbers that are kept. A peer numbers messages as it begins them
/// and has few open at a time; one that leaves more gaps is broken.
const FINISHED_RANGES_MAX: usize = 70_000;

/// Numbers of finished messages, as ranges by their start. A peer may leave many gaps and
/// fill them in any order: neither may cost more than the logarithm of their number.
#[derive(Debug, Default)]
pub(super) struct FinishedIds {
    /// First number of a range to the one behind its last.
    ranges: BTreeMap<u64, u64>,
}

impl FinishedIds {
    pub(super) fn insert(&mut self, id: u64) {
        if self.contains(id) {
            return;
        }
        let end = self.ranges.remove(&(id + 1)).unwrap_or(id + 1);
        match self.ranges.range_mut(..id).next_back() {
            Some((_, before)) if *before == id => *before = end,
            _ => {
                self.ranges.insert(id, end);
            }
        }
        if self.ranges.len() > FINISHED_RANGES_MAX {
            self.ranges.pop_first();
        }
    }

    pub(super) fn contains(&self, id: u64) -> bool {
        let before = self.ranges.range(..=id).next_back();
        before.is_some_and(|(_, end)| id < *end)
    }

    /// How many ranges are kept.
    pub(super) fn ranges(&self) -> usize {
        self.ranges.len()
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(super) fn check_invariants(&self) {
        assert!(
            self.ranges.len() <= FINISHED_RANGES_MAX,
            "ranges of finished messages"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn finished_numbers_behave_like_a_set(ids in proptest::collection::vec(0u64..60, 0..80)) {
            let mut finished = FinishedIds::default();
            let mut set = BTreeSet::new();
            for id in ids {
                finished.insert(id);
                set.insert(id);
                for probe in 0..62 {
                    prop_assert_eq!(finished.contains(probe), set.contains(&probe));
                }
            }
            let touching = finished.ranges.iter().zip(finished.ranges.iter().skip(1));
            prop_assert!(touching.into_iter().all(|(a, b)| a.1 < b.0));
        }
    }
}
