//! A set of integers as sorted, disjoint, non-touching ranges.

/// Half-open ranges `start..end`, ascending.
///
/// Insertion near the end, the common case, is O(1); elsewhere O(number of ranges). Whoever
/// feeds it from the network bounds that number (`len`, `drop_lowest`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeSet {
    ranges: Vec<(u64, u64)>,
}

impl RangeSet {
    /// Adds `start..end`; returns how many integers were not in the set before.
    pub(crate) fn insert(&mut self, start: u64, end: u64) -> u64 {
        if start >= end {
            return 0;
        }
        // The first range that touches or follows `start`.
        let first = self.ranges.partition_point(|range| range.1 < start);
        let mut merged = (start, end);
        let mut known = 0;
        let mut last = first;
        while let Some(range) = self.ranges.get(last).filter(|range| range.0 <= end) {
            known += range.1.min(end).saturating_sub(range.0.max(start));
            merged = (merged.0.min(range.0), merged.1.max(range.1));
            last += 1;
        }
        if last == first + 1 {
            self.ranges[first] = merged;
        } else {
            self.ranges.splice(first..last, [merged]);
        }
        end - start - known
    }

    /// Removes `start..end`.
    pub(crate) fn remove(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let first = self.ranges.partition_point(|range| range.1 <= start);
        let mut last = first;
        let mut kept = Vec::new();
        while let Some(range) = self.ranges.get(last).filter(|range| range.0 < end) {
            if range.0 < start {
                kept.push((range.0, start));
            }
            if range.1 > end {
                kept.push((end, range.1));
            }
            last += 1;
        }
        if first != last {
            self.ranges.splice(first..last, kept);
        }
    }

    /// `start..end` is in the set, whole.
    pub(crate) fn covers(&self, start: u64, end: u64) -> bool {
        let index = self.ranges.partition_point(|range| range.1 <= start);
        self.ranges
            .get(index)
            .is_some_and(|range| range.0 <= start && end <= range.1)
    }

    /// The lowest range.
    pub(crate) fn first(&self) -> Option<(u64, u64)> {
        self.ranges.first().copied()
    }

    /// Ranges from the highest down.
    pub(crate) fn iter_down(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().rev().copied()
    }

    /// Ranges from the lowest up.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().copied()
    }

    /// Number of ranges.
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Forgets the lowest range.
    pub(crate) fn drop_lowest(&mut self) {
        if !self.ranges.is_empty() {
            self.ranges.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn behaves_like_a_set(ops in proptest::collection::vec((any::<bool>(), 0u64..60, 0u64..12), 0..60)) {
            let mut ranges = RangeSet::default();
            let mut set = BTreeSet::new();
            for (insert, start, len) in ops {
                if insert {
                    let fresh = (start..start + len).filter(|v| set.insert(*v)).count() as u64;
                    prop_assert_eq!(ranges.insert(start, start + len), fresh);
                } else {
                    set.retain(|v| !(start..start + len).contains(v));
                    ranges.remove(start, start + len);
                }
                let flat: Vec<u64> = ranges.iter().flat_map(|(a, b)| a..b).collect();
                prop_assert_eq!(flat, set.iter().copied().collect::<Vec<_>>());
                prop_assert!(ranges.ranges.windows(2).all(|w| w[0].1 < w[1].0));
                for v in 0..75 {
                    prop_assert_eq!(ranges.covers(v, v + 1), set.contains(&v));
                }
            }
        }
    }
}
