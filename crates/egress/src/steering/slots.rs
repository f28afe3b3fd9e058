//! The groups to which new connections of a client prefix are assigned, by a hash of the client's
//! address and port.
//!
//! The kernel computes the hash for the SYN, and this daemon once more when the connection has
//! ended: the kernel's report of an ended connection does not contain its mark. All members of a
//! group have hashes of one range, the same for all prefixes.

use std::ops::Range;

use crate::forwarding::PeerIndex;

/// The group of a connection; a connection without a group leaves as its prefix does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// Explores a peer: its place among the peers.
    Explore(u16),
    /// Tests the peer that exploration found better.
    Confirm,
    /// Stays on BGP's best path, while the prefix is steered.
    Control,
}

/// The ranges of hashes of all groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slots {
    peers: Vec<PeerIndex>,
    explore: u16,
    confirm: u16,
    control: u16,
}

impl Slots {
    /// Shares are of all connections of a prefix; together they take at most all.
    pub fn new(peers: Vec<PeerIndex>, explore: f64, confirm: f64) -> Self {
        let of = |share: f64| (share * f64::from(SLOTS)).round() as u16;
        let explore = of(explore);
        let room = CONFIRM_FROM / (peers.len().max(1) as u16);
        Self {
            peers,
            explore: explore.min(room),
            confirm: of(confirm).min(CONTROL_FROM - CONFIRM_FROM),
            control: (CONTROL_PER_EXPLORE * explore).min(SLOTS - CONTROL_FROM),
        }
    }

    pub fn peers(&self) -> &[PeerIndex] {
        &self.peers
    }

    /// The group of a hash below [`SLOTS`].
    pub fn group(&self, slot: u16) -> Option<Group> {
        if self.explore > 0 && usize::from(slot / self.explore) < self.peers.len() {
            return Some(Group::Explore(slot / self.explore));
        }
        let groups = [Group::Confirm, Group::Control];
        groups
            .into_iter()
            .find(|group| self.range(*group).contains(&slot))
    }

    /// The hashes of a group.
    pub fn range(&self, group: Group) -> Range<u16> {
        match group {
            Group::Explore(place) => place * self.explore..(place + 1) * self.explore,
            Group::Confirm => CONFIRM_FROM..CONFIRM_FROM + self.confirm,
            Group::Control => CONTROL_FROM..CONTROL_FROM + self.control,
        }
    }

    /// The share of a group in the connections of a prefix.
    pub fn share(&self, group: Group) -> f64 {
        self.range(group).len() as f64 / f64::from(SLOTS)
    }

    /// All groups that have members.
    pub fn groups(&self) -> impl Iterator<Item = Group> {
        let explore = (0..self.peers.len() as u16).map(Group::Explore);
        let all = explore.chain([Group::Confirm, Group::Control]);
        all.filter(|group| !self.range(*group).is_empty())
    }
}

/// Hashes are below this. Ours: shares have steps of a thousandth.
pub const SLOTS: u16 = 1000;
/// The first hashes of two groups; those below are for exploration. Ours.
const CONFIRM_FROM: u16 = 500;
const CONTROL_FROM: u16 = 800;
/// Connections of a steered prefix that stay on the best path, per connection that explores one
/// peer: the return to the best path depends on them alone. Ours.
const CONTROL_PER_EXPLORE: u16 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hash_is_in_the_group_whose_range_contains_it() {
        for (peers, explore, confirm) in [
            (1, 0.01, 0.1),
            (5, 0.1, 0.3),
            (400, 0.01, 0.5),
            (3, 0.0, 0.1),
        ] {
            let slots = Slots::new((0..peers).map(PeerIndex).collect(), explore, confirm);
            let mut counted = 0;
            for slot in 0..SLOTS {
                let group = slots.group(slot);
                let with: Vec<Group> = slots
                    .groups()
                    .filter(|group| slots.range(*group).contains(&slot))
                    .collect();
                assert_eq!(
                    group.into_iter().collect::<Vec<_>>(),
                    with,
                    "{slot} of {slots:?}"
                );
                counted += usize::from(group.is_some());
            }
            let all: usize = slots.groups().map(|group| slots.range(group).len()).sum();
            assert_eq!(counted, all);
        }
    }
}
