//! A set of integers as sorted, disjoint, non-touching ranges.

use std::collections::BTreeMap;

/// Half-open ranges `start..end`, ascending.
///
/// Every change takes O(log(number of ranges)) for each range that it adds or takes away, wherever that is:
/// a peer chooses the order in which they come. A caller that feeds it from the network bounds their number
/// (`len`, `drop_lowest`). One range, the common case, takes no memory of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeSet {
    lowest: Option<(u64, u64)>,
    /// The others: ends, by start.
    others: BTreeMap<u64, u64>,
}

impl RangeSet {
    /// Adds `start..end`; returns how many integers were not in the set before.
    pub(crate) fn insert(&mut self, start: u64, end: u64) -> u64 {
        if start >= end {
            return 0;
        }
        let Some((low, high)) = self.lowest else {
            self.lowest = Some((start, end));
            return end - start;
        };
        let touches = start <= high && low <= end;
        if touches && self.others.is_empty() {
            self.lowest = Some((low.min(start), high.max(end)));
            return end - start - high.min(end).saturating_sub(low.max(start));
        }
        self.change(|ranges| insert(ranges, start, end))
    }

    pub(crate) fn remove(&mut self, start: u64, end: u64) {
        let Some((low, high)) = self.lowest.filter(|_| start < end) else {
            return;
        };
        let is_cut = low < start && end < high;
        if !self.others.is_empty() || is_cut {
            return self.change(|ranges| remove(ranges, start, end));
        }
        let left = match low < start {
            true => (low, high.min(start)),
            false => (low.max(end), high),
        };
        self.lowest = Some(left).filter(|(low, high)| low < high);
    }

    /// `start..end`, which is not empty, is in the set, whole.
    pub(crate) fn covers(&self, start: u64, end: u64) -> bool {
        let others = self.others.range(..=start).next_back();
        let others = others.map(|(low, high)| (*low, *high));
        let is_in = |(low, high): (u64, u64)| low <= start && end <= high;
        others.or(self.lowest).is_some_and(is_in)
    }

    pub(crate) fn first(&self) -> Option<(u64, u64)> {
        self.lowest
    }

    /// Ranges from the highest down.
    pub(crate) fn iter_down(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.iter().rev()
    }

    /// Ranges from the lowest up.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        let others = self.others.iter().map(|(start, end)| (*start, *end));
        self.lowest.into_iter().chain(others)
    }

    /// Number of ranges, not of the numbers in them.
    pub(crate) fn len(&self) -> usize {
        usize::from(self.lowest.is_some()) + self.others.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lowest.is_none()
    }

    /// Forgets the lowest range.
    pub(crate) fn drop_lowest(&mut self) {
        self.lowest = self.others.pop_first();
    }

    /// Changes all ranges as one map.
    fn change<T>(&mut self, change: impl FnOnce(&mut BTreeMap<u64, u64>) -> T) -> T {
        self.others.extend(self.lowest.take());
        let result = change(&mut self.others);
        self.lowest = self.others.pop_first();
        result
    }
}

fn insert(ranges: &mut BTreeMap<u64, u64>, start: u64, end: u64) -> u64 {
    let (mut merged, mut known) = ((start, end), 0);
    let before = ranges.range(..start).next_back();
    if let Some((&low, &high)) = before.filter(|(_, high)| **high >= start) {
        known += high.min(end) - start;
        merged = (low, high.max(end));
    }
    while let Some((&low, &high)) = ranges.range(start..=end).next() {
        known += high.min(end) - low;
        merged.1 = merged.1.max(high);
        ranges.remove(&low);
    }
    ranges.insert(merged.0, merged.1);
    end - start - known
}

fn remove(ranges: &mut BTreeMap<u64, u64>, start: u64, end: u64) {
    let before = ranges.range(..start).next_back();
    if let Some((&low, &high)) = before.filter(|(_, high)| **high > start) {
        ranges.insert(low, start);
        if high > end {
            ranges.insert(end, high);
        }
    }
    while let Some((&low, &high)) = ranges.range(start..end).next() {
        ranges.remove(&low);
        if high > end {
            ranges.insert(end, high);
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
        fn ranges_behave_like_a_set(ops in proptest::collection::vec((any::<bool>(), 0u64..60, 0u64..12), 0..60)) {
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
                let kept: Vec<(u64, u64)> = ranges.iter().collect();
                prop_assert!(kept.windows(2).all(|w| w[0].1 < w[1].0));
                prop_assert_eq!(ranges.len(), kept.len());
                for v in 0..75 {
                    prop_assert_eq!(ranges.covers(v, v + 1), set.contains(&v));
                }
            }
        }
    }
}
