//! Counts the VPN routes in the RIB by what they have in common: distinguisher, route targets, router and
//! segment.
//!
//! A full table is counted in steps, so that the event loop does other work in between. Nothing is kept
//! per route, so the result cannot drift from the RIB.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr},
};

use keiro_bgp::{
    address::{Destination, RouteDistinguisher, RouteTarget},
    rib::Path,
    speaker::Speaker,
};

/// VPN routes that differ in their prefixes and attributes of the Internet only.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    pub rd: RouteDistinguisher,
    /// The router that announces them; `None`: this one.
    pub router: Option<Ipv4Addr>,
    pub targets: Vec<RouteTarget>,
    /// `None`: they have no SRv6 service.
    pub sid: Option<Ipv6Addr>,
}

#[derive(Debug)]
pub(crate) struct Census {
    /// The last complete count.
    groups: BTreeMap<Group, usize>,
    counting: BTreeMap<Group, usize>,
    /// It has all groups; `counting` has.
    is_complete: bool,
    counting_is_complete: bool,
    /// Where to go on; `None`: no count is under way.
    next: Option<Destination>,
    /// Routes have changed since the last count began.
    changed: bool,
}

impl Default for Census {
    fn default() -> Self {
        Self {
            groups: BTreeMap::new(),
            counting: BTreeMap::new(),
            is_complete: true,
            counting_is_complete: true,
            next: None,
            changed: false,
        }
    }
}

impl Census {
    /// VPN routes have changed.
    pub(crate) fn on_changed(&mut self) {
        self.changed = true;
    }

    /// Whether [`step`](Self::step) has something to do.
    pub(crate) fn is_due(&self) -> bool {
        self.changed || self.next.is_some()
    }

    /// Whether a count has begun and not ended.
    pub(crate) fn is_under_way(&self) -> bool {
        self.next.is_some()
    }

    /// The groups with the number of their routes, as of the last complete count.
    pub(crate) fn groups(&self) -> &BTreeMap<Group, usize> {
        &self.groups
    }

    /// Whether [`groups`](Self::groups) has all groups: beyond a limit the rest is not counted.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Counts some more routes.
    pub(crate) fn step(&mut self, speaker: &Speaker) {
        let from = match self.next.take() {
            Some(next) => next,
            None if self.changed => {
                self.changed = false;
                self.counting.clear();
                self.counting_is_complete = true;
                let [first, _] = Destination::first_of_vpn(RouteDistinguisher(0));
                first
            }
            None => return,
        };
        let mut routes = speaker.rib().from(from);
        let mut last: Option<(Group, usize)> = None;
        for (destination, paths) in routes.by_ref().take(ROUTES_PER_STEP) {
            let Some(rd) = destination.distinguisher() else {
                continue;
            };
            for path in paths {
                match &mut last {
                    Some((group, count)) if group.has(rd, speaker, path) => *count += 1,
                    _ => {
                        let before = last.replace((Group::of(rd, speaker, path), 1));
                        self.add(before);
                    }
                }
            }
        }
        self.next = routes.next().map(|(destination, _)| *destination);
        self.add(last);
        if self.next.is_none() {
            self.groups = std::mem::take(&mut self.counting);
            self.is_complete = self.counting_is_complete;
        }
    }

    fn add(&mut self, counted: Option<(Group, usize)>) {
        let Some((group, count)) = counted else {
            return;
        };
        if self.counting.len() < GROUPS_MAX || self.counting.contains_key(&group) {
            *self.counting.entry(group).or_default() += count;
        } else {
            self.counting_is_complete = false;
        }
    }
}

impl Group {
    fn of(rd: RouteDistinguisher, speaker: &Speaker, path: &Path) -> Self {
        Self {
            rd,
            router: speaker.originator(path),
            targets: path.attributes.route_targets().take(TARGETS_MAX).collect(),
            sid: sid_of(path),
        }
    }

    /// Whether a path belongs to it; without an allocation.
    fn has(&self, rd: RouteDistinguisher, speaker: &Speaker, path: &Path) -> bool {
        let targets = path.attributes.route_targets().take(TARGETS_MAX);
        self.rd == rd
            && self.sid == sid_of(path)
            && self.router == speaker.originator(path)
            && targets.eq(self.targets.iter().copied())
    }
}

fn sid_of(path: &Path) -> Option<Ipv6Addr> {
    let service = path.attributes.service?;
    Some(service.sid(path.label))
}

/// About a millisecond. Ours.
const ROUTES_PER_STEP: usize = 5000;
/// Distinct groups that are counted. A site has a few per border router and egress peer. Ours.
const GROUPS_MAX: usize = 4096;
/// Route targets of a route that are compared. Ours.
const TARGETS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_leaves_groups_out_is_not_complete() {
        let group = |number: usize| Group {
            rd: RouteDistinguisher(number as u64),
            router: None,
            targets: Vec::new(),
            sid: None,
        };
        let mut census = Census::default();
        for number in 0..GROUPS_MAX {
            census.add(Some((group(number), 1)));
        }
        assert!(census.counting_is_complete);
        census.add(Some((group(7), 1)));
        assert!(census.counting_is_complete);
        census.add(Some((group(GROUPS_MAX), 1)));
        assert!(!census.counting_is_complete);
        assert_eq!(census.counting.len(), GROUPS_MAX);
    }
}
