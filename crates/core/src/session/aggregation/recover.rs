//! Groups of aggregates that arrive, and recovery of lost ones from parity.
//!
//! The content of an aggregate is kept until its group is complete or too old. Everything is bounded,
//! and contradictions are dropped: the peer is not trusted.

use std::collections::BTreeMap;

use keiro_model::erasure;

use super::parity_group::{LENGTH_PREFIX, shard_of};
use crate::wire::ParityFrame;

/// Groups of a path that are known at once; then the oldest is forgotten. Ours: what comes in 20 ms
/// of twelve thousand groups per second.
const GROUPS_MAX: usize = 256;
/// Bytes that are kept for a path; then the oldest group is forgotten. Ours: 20 ms of 100 Mbit/s.
const BYTES_MAX: usize = 256 << 10;
/// Memory that a packet takes beside its bytes, about.
const PACKET_OVERHEAD: usize = 64;
/// Memory that a group takes beside its packets, about: the first nodes of its maps.
const GROUP_OVERHEAD: usize = 640;

/// Products that a table of [`erasure`] for one factor takes.
const TABLE_PRODUCTS: usize = 256;

/// The groups of one path of the peer.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// By the number of the first aggregate.
    groups: BTreeMap<u64, Group>,
    bytes: usize,
    /// Groups below were forgotten.
    floor: u64,
    /// Products of bytes since the last [`Self::take_recovery_cost`].
    products: u64,
}

#[derive(Debug, Default)]
struct Group {
    data: BTreeMap<u8, Vec<u8>>,
    parity: BTreeMap<u8, Vec<u8>>,
    /// How many aggregates it has, and the length of its parity; known with the first of that.
    shape: Option<(u8, usize)>,
    /// Nothing is missing any more, or it cannot be had.
    over: bool,
}

impl Groups {
    /// An aggregate arrived for the first time: the one at `place` of the group that begins with
    /// `first`. What that gives back of others: number and content.
    pub(crate) fn on_data(&mut self, first: u64, place: u8, content: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let Some(group) = self.group(first) else {
            return Vec::new();
        };
        let outside = group.shape.is_some_and(|(data, _)| place >= data);
        if outside || usize::from(place) >= erasure::DATA_MAX || group.data.contains_key(&place) {
            return Vec::new();
        }
        let shard = shard_of(content);
        self.bytes += PACKET_OVERHEAD + shard.len();
        if let Some(group) = self.groups.get_mut(&first) {
            group.data.insert(place, shard);
        }
        self.settle(first)
    }

    /// Parity arrived; what that gives back.
    pub(crate) fn on_parity(&mut self, frame: &ParityFrame<'_>) -> Vec<(u64, Vec<u8>)> {
        let Some(group) = self.group(frame.first) else {
            return Vec::new();
        };
        let shape = (frame.data, frame.shard.len());
        if *group.shape.get_or_insert(shape) != shape || group.parity.contains_key(&frame.index) {
            return Vec::new();
        }
        group.parity.insert(frame.index, frame.shard.to_vec());
        self.bytes += PACKET_OVERHEAD + frame.shard.len();
        self.settle(frame.first)
    }

    /// How many products of bytes were computed since the last call, for contents that were recovered and
    /// for those that turned out not to be any.
    pub(crate) fn take_recovery_cost(&mut self) -> u64 {
        std::mem::take(&mut self.products)
    }

    /// What is kept.
    pub(crate) fn memory(&self) -> usize {
        self.bytes + self.groups.len() * GROUP_OVERHEAD
    }

    /// Forgets the oldest group: it cannot be completed any more.
    pub(crate) fn forget_oldest(&mut self) {
        if let Some((oldest, group)) = self.groups.pop_first() {
            self.bytes -= group.bytes();
            self.floor = self.floor.max(oldest.saturating_add(1));
        }
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
        let bytes: usize = self.groups.values().map(Group::bytes).sum();
        assert_eq!(self.bytes, bytes, "bytes kept are those of the groups");
        assert!(self.groups.len() <= GROUPS_MAX, "groups are bounded");
        assert!(self.bytes <= BYTES_MAX, "bytes kept are bounded");
        let first = self.groups.keys().next();
        assert!(
            first.is_none_or(|first| *first >= self.floor),
            "forgotten groups do not come back"
        );
    }

    /// A group that may still be completed.
    fn group(&mut self, first: u64) -> Option<&mut Group> {
        if first < self.floor {
            return None;
        }
        let group = self.groups.entry(first).or_default();
        (!group.over).then_some(group)
    }

    /// Completes a group if enough of it is there, and keeps to the bounds.
    fn settle(&mut self, first: u64) -> Vec<(u64, Vec<u8>)> {
        let mut found = Vec::new();
        if let Some(group) = self.groups.get_mut(&first)
            && let Some(recovered) = group.complete()
        {
            self.products += group.products();
            self.bytes -= group.bytes();
            *group = Group {
                over: true,
                ..Group::default()
            };
            let numbered = recovered.into_iter().filter_map(|(place, content)| {
                let number = first.checked_add(place as u64)?;
                Some((number, content))
            });
            found.extend(numbered);
        }
        while self.groups.len() > GROUPS_MAX || self.bytes > BYTES_MAX {
            self.forget_oldest();
        }
        found
    }
}

impl Group {
    fn bytes(&self) -> usize {
        let kept = self.data.values().chain(self.parity.values());
        kept.map(|shard| PACKET_OVERHEAD + shard.len()).sum()
    }

    /// Products of bytes that recovery of what is missing takes, about: each missing packet is a sum over all
    /// others, and each product of a packet needs a table.
    fn products(&self) -> u64 {
        let Some((count, len)) = self.shape else {
            return 0;
        };
        let missing = usize::from(count) - self.data.range(..count).count();
        (missing * usize::from(count) * (len + TABLE_PRODUCTS)) as u64
    }

    /// Place and content of what was missing, if that can be had, or never can: then it is empty.
    /// `None`: not yet.
    fn complete(&self) -> Option<Vec<(usize, Vec<u8>)>> {
        let (count, _) = self.shape?;
        let there = self.data.range(..count).count();
        let missing = usize::from(count) - there;
        if self.parity.len() < missing {
            return None;
        }
        let data: Vec<Option<&[u8]>> = (0..count)
            .map(|place| self.data.get(&place).map(Vec::as_slice))
            .collect();
        let parity: Vec<(usize, &[u8])> = self
            .parity
            .iter()
            .map(|(index, shard)| (usize::from(*index), shard.as_slice()))
            .collect();
        let recovered = erasure::recover(&data, &parity).unwrap_or_default();
        let contents = recovered.into_iter().filter_map(|(place, shard)| {
            let (len, content) = shard.split_at_checked(LENGTH_PREFIX)?;
            let len = usize::from(u16::from_be_bytes([len[0], len[1]]));
            Some((place, content.get(..len)?.to_vec()))
        });
        Some(contents.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn contents(count: u8) -> Vec<Vec<u8>> {
        (0..count)
            .map(|i| vec![i + 1; 10 + usize::from(i)])
            .collect()
    }

    fn parity(contents: &[Vec<u8>], count: usize) -> Vec<Vec<u8>> {
        let shards: Vec<Vec<u8>> = contents.iter().map(|c| shard_of(c)).collect();
        erasure::encode(&shards, count)
    }

    fn frame(first: u64, data: u8, index: u8, shard: &[u8]) -> ParityFrame<'_> {
        ParityFrame {
            path: 0,
            first,
            data,
            count: 2,
            index,
            shard,
        }
    }

    #[test]
    fn lost_aggregates_are_recovered_from_parity_in_any_order() {
        let sent = contents(4);
        let shards = parity(&sent, 2);
        // 1 and 2 are lost.
        let mut groups = Groups::default();
        assert!(groups.on_parity(&frame(8, 4, 1, &shards[1])).is_empty());
        assert!(groups.on_data(8, 3, &sent[3]).is_empty());
        assert!(groups.on_parity(&frame(8, 4, 0, &shards[0])).is_empty());
        let found = groups.on_data(8, 0, &sent[0]);
        assert_eq!(found, [(9, sent[1].clone()), (10, sent[2].clone())]);
        // Late ones change nothing, and nothing is kept.
        assert!(groups.on_data(8, 1, &sent[1]).is_empty());
        assert_eq!(groups.bytes, 0);
    }

    #[test]
    fn contradictory_groups_recover_nothing() {
        let sent = contents(3);
        let shards = parity(&sent, 2);
        let mut groups = Groups::default();
        groups.on_data(0, 0, &sent[0]);
        groups.on_parity(&frame(0, 3, 0, &shards[0]));
        // Another shape, another length, the same again, a place outside.
        assert!(groups.on_parity(&frame(0, 2, 1, &shards[1])).is_empty());
        assert!(
            groups
                .on_parity(&frame(0, 3, 1, &shards[1][1..]))
                .is_empty()
        );
        assert!(groups.on_parity(&frame(0, 3, 0, &shards[1])).is_empty());
        assert!(groups.on_data(0, 3, b"outside").is_empty());
        assert!(groups.on_data(0, 200, b"far outside").is_empty());
        let found = groups.on_parity(&frame(0, 3, 1, &shards[1]));
        assert_eq!(found, [(1, sent[1].clone()), (2, sent[2].clone())]);
        // A group whose data is longer than its parity ends.
        groups.on_data(10, 0, &[1; 100]);
        groups.on_parity(&frame(10, 2, 0, &[7; 12]));
        assert!(groups.groups[&10].over);
    }

    #[test]
    fn memory_for_recovery_is_bounded() {
        let mut groups = Groups::default();
        for number in 0..100_000u64 {
            groups.on_data(number * 4, 0, &[1; 1400]);
            assert!(groups.groups.len() <= GROUPS_MAX && groups.bytes <= BYTES_MAX);
        }
        assert!(groups.on_data(0, 1, b"old").is_empty());
        assert!(!groups.groups.contains_key(&0), "it is not known again");
        groups.on_data(u64::MAX, 31, b"the last");
    }

    proptest! {
        #[test]
        fn arbitrary_parity_keeps_the_invariants(
            packets in proptest::collection::vec(
                (0u64..6, 0u8..40, any::<bool>(), 1u8..=32, 0u8..64,
                 proptest::collection::vec(any::<u8>(), 0..40)),
                0..200),
        ) {
            let mut groups = Groups::default();
            for (first, place, is_data, data, index, bytes) in packets {
                match is_data {
                    true => groups.on_data(first, place, &bytes),
                    false => groups.on_parity(&frame(first, data, index, &bytes)),
                };
                let kept: usize = groups.groups.values().map(Group::bytes).sum();
                prop_assert_eq!(kept, groups.bytes);
            }
        }
    }
}
