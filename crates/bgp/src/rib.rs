//! The RIB: all routes of the neighbours and of this speaker in one table. The paths of a
//! destination are kept with the best one first (RFC 4271 §9.1).
//!
//! A destination with a single path needs no allocation of its own, and paths share their
//! attributes, so 200,000 routes take some tens of megabytes.

mod next_hops;

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    fmt,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

use crate::{
    address::{Destination, Family},
    attributes::{Attributes, DEFAULT_LOCAL_PREF, same},
    srv6::Label,
};
pub use next_hops::NextHop;
use next_hops::NextHops;

/// A neighbour, as an index into the speaker's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NeighbourId(pub u16);

/// The origin of a path in the RIB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// Originated by this speaker.
    Local,
    /// Received from a neighbour.
    Neighbour(NeighbourId),
}

/// A path to a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    pub source: Source,
    /// The ADD-PATH identifier; 0 without ADD-PATH.
    pub path_id: u32,
    pub label: Label,
    /// The neighbour is restarting and has not announced the path again (RFC 4724).
    pub stale: bool,
    /// The next hop is resolvable; otherwise the decision process ignores the path (RFC 4271
    /// §9.1.2.1). Maintained by [`Rib`].
    pub reachable: bool,
    pub attributes: Arc<Attributes>,
}

/// The attributes of a peer that the decision process compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAttributes {
    /// The peer is in another AS (eBGP).
    pub external: bool,
    pub router_id: Ipv4Addr,
    pub address: IpAddr,
}

/// The step of the decision process that separates two paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DecisionStep {
    /// Only one next hop is resolvable.
    Reachable,
    /// One path is originated by this speaker.
    Local,
    LocalPref,
    AsPathLength,
    Origin,
    /// MED; compared only between paths from the same neighbouring AS.
    Med,
    /// eBGP is preferred to iBGP.
    Ebgp,
    /// The BGP identifier of the neighbour, or ORIGINATOR_ID.
    RouterId,
    /// The length of CLUSTER_LIST (RFC 4456 §9).
    ClusterListLength,
    PeerAddress,
    PathId,
}

impl DecisionStep {
    /// The first step at which `best` is better than `other`.
    pub(crate) fn between(
        best: &Path,
        other: &Path,
        peers: &impl Fn(Source) -> PeerAttributes,
    ) -> Self {
        let (a, b) = (&*best.attributes, &*other.attributes);
        let (of_a, of_b) = (peers(best.source), peers(other.source));
        let preference = |of: &Attributes| of.local_pref.unwrap_or(DEFAULT_LOCAL_PREF);
        let same_as = a.as_path.neighbour() == b.as_path.neighbour();
        let id = |of: &Attributes, peer: PeerAttributes| of.originator.unwrap_or(peer.router_id);
        let steps = [
            (Self::Reachable, best.reachable != other.reachable),
            (Self::Local, best.source == Source::Local),
            (Self::LocalPref, preference(a) != preference(b)),
            (Self::AsPathLength, a.as_path.length() != b.as_path.length()),
            (Self::Origin, a.origin != b.origin),
            (
                Self::Med,
                same_as && a.med.unwrap_or(0) != b.med.unwrap_or(0),
            ),
            (Self::Ebgp, of_a.external != of_b.external),
            (Self::RouterId, id(a, of_a) != id(b, of_b)),
            (
                Self::ClusterListLength,
                a.clusters.len() != b.clusters.len(),
            ),
            (Self::PeerAddress, of_a.address != of_b.address),
        ];
        let decides = steps.into_iter().find(|(_, differs)| *differs);
        decides.map_or(Self::PathId, |(step, _)| step)
    }
}

impl fmt::Display for DecisionStep {
    /// Describes the advantage of the better path.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Reachable => "reachable next hop",
            Self::Local => "originated by this speaker",
            Self::LocalPref => "higher local preference",
            Self::AsPathLength => "shorter AS path",
            Self::Origin => "better origin",
            Self::Med => "lower MED",
            Self::Ebgp => "eBGP rather than iBGP",
            Self::RouterId => "lower BGP identifier",
            Self::ClusterListLength => "shorter cluster list",
            Self::PeerAddress => "lower neighbour address",
            Self::PathId => "lower path identifier",
        })
    }
}

/// The effect of a change to the RIB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteChange {
    /// A path of the neighbour changed.
    pub path: bool,
    /// The best path changed.
    pub best: bool,
}

#[derive(Debug, Default)]
pub struct Rib {
    routes: BTreeMap<Destination, Paths>,
    /// Number of paths per neighbour and family.
    counts: BTreeMap<(Source, Family), usize>,
    /// Of these, stale ones.
    stale_counts: BTreeMap<(Source, Family), usize>,
    next_hops: NextHops,
}

/// At least one path, the best first. A path with an unresolvable next hop is first only if all
/// paths have one.
#[derive(Debug)]
enum Paths {
    One(Path),
    Many(Vec<Path>),
}

impl Rib {
    /// Inserts a path; it replaces the path of the same neighbour with the same path identifier.
    pub fn insert(
        &mut self,
        destination: Destination,
        mut path: Path,
        peers: &impl Fn(Source) -> PeerAttributes,
    ) -> RouteChange {
        let next_hop = next_hops::next_hop_of(&destination, &path);
        path.reachable = next_hop.is_none_or(|it| self.next_hops.is_reachable(&it));
        if let Some(next_hop) = next_hop {
            self.next_hops.add(next_hop, &destination);
        }
        let both = RouteChange {
            path: true,
            best: path.reachable,
        };
        let key = (path.source, destination.family());
        let paths = match self.routes.entry(destination) {
            Entry::Vacant(vacant) => {
                vacant.insert(Paths::One(path));
                *self.counts.entry(key).or_default() += 1;
                return both;
            }
            Entry::Occupied(occupied) => occupied.into_mut(),
        };
        let same_path = |old: &Path| old.source == path.source && old.path_id == path.path_id;
        if let Some(place) = paths.as_slice().iter().position(same_path) {
            let is_stale = path.stale;
            let old = std::mem::replace(&mut paths.as_mut_slice()[place], path);
            let stale = self.stale_counts.entry(key).or_default();
            *stale = (*stale + usize::from(is_stale)).saturating_sub(usize::from(old.stale));
            let new = &paths.as_slice()[place];
            let unchanged = old.label == new.label
                && old.reachable == new.reachable
                && same(&old.attributes, &new.attributes);
            if unchanged {
                return RouteChange::default();
            }
            let moved = paths.put_best_first(peers);
            self.release(next_hops::next_hop_of(&destination, &old), &destination);
            return RouteChange {
                path: true,
                // The replaced path was the best one, or the new one is.
                best: place == 0 || moved,
            };
        }
        *self.counts.entry(key).or_default() += 1;
        paths.push(path);
        RouteChange {
            path: true,
            best: paths.put_best_first(peers),
        }
    }

    /// Removes a path of a neighbour.
    pub fn remove(
        &mut self,
        destination: Destination,
        source: Source,
        path_id: u32,
        peers: &impl Fn(Source) -> PeerAttributes,
    ) -> RouteChange {
        let Entry::Occupied(mut occupied) = self.routes.entry(destination) else {
            return RouteChange::default();
        };
        let is_it = |path: &Path| path.source == source && path.path_id == path_id;
        let Some(place) = occupied.get().as_slice().iter().position(is_it) else {
            return RouteChange::default();
        };
        if let Some(count) = self.counts.get_mut(&(source, destination.family())) {
            *count = count.saturating_sub(1);
        }
        let removed = match occupied.get_mut() {
            Paths::One(_) => match occupied.remove() {
                Paths::One(path) => Some(path),
                Paths::Many(_) => None,
            },
            Paths::Many(paths) => {
                let removed = paths.swap_remove(place);
                occupied.get_mut().shrink();
                occupied.get_mut().put_best_first(peers);
                Some(removed)
            }
        };
        if removed.as_ref().is_some_and(|path| path.stale)
            && let Some(stale) = self.stale_counts.get_mut(&(source, destination.family()))
        {
            *stale = stale.saturating_sub(1);
        }
        let next_hop = removed.and_then(|path| next_hops::next_hop_of(&destination, &path));
        self.release(next_hop, &destination);
        RouteChange {
            path: true,
            best: place == 0,
        }
    }

    /// Removes the paths of a neighbour for which `goes` is true, and reports each destination that
    /// changed to `on_change`.
    pub fn sweep(
        &mut self,
        source: Source,
        goes: impl Fn(&Destination, &Path) -> bool,
        peers: &impl Fn(Source) -> PeerAttributes,
        mut on_change: impl FnMut(Destination, RouteChange),
    ) {
        let (counts, next_hops) = (&mut self.counts, &mut self.next_hops);
        let stale_counts = &mut self.stale_counts;
        self.routes.retain(|destination, paths| {
            let goes = |path: &Path| path.source == source && goes(destination, path);
            let removed = paths.as_slice().iter().filter(|path| goes(path)).count();
            if removed == 0 {
                return true;
            }
            if let Some(count) = counts.get_mut(&(source, destination.family())) {
                *count = count.saturating_sub(removed);
            }
            if let Some(count) = stale_counts.get_mut(&(source, destination.family())) {
                let all = paths.as_slice().iter();
                let stale = all.filter(|path| path.stale && goes(path)).count();
                *count = count.saturating_sub(stale);
            }
            let best = goes(paths.best());
            let of = |path: &Path| next_hops::next_hop_of(destination, path);
            let before: Vec<NextHop> = paths.as_slice().iter().filter_map(of).collect();
            let left = match paths {
                Paths::One(_) => false,
                Paths::Many(list) => {
                    list.retain(|path| !goes(path));
                    !list.is_empty()
                }
            };
            let stays = if left { paths.as_slice() } else { &[] };
            for next_hop in before {
                if !stays.iter().any(|path| of(path) == Some(next_hop)) {
                    next_hops.remove(next_hop, destination);
                }
            }
            if left {
                paths.shrink();
                paths.put_best_first(peers);
            }
            on_change(*destination, RouteChange { path: true, best });
            left
        });
    }

    /// Marks a neighbour's paths of some families as stale.
    pub fn make_stale(&mut self, source: Source, families: &[Family]) {
        for (destination, paths) in &mut self.routes {
            if families.contains(&destination.family()) {
                for path in paths.as_mut_slice() {
                    if path.source == source && !path.stale {
                        path.stale = true;
                        let key = (source, destination.family());
                        *self.stale_counts.entry(key).or_default() += 1;
                    }
                }
            }
        }
    }

    /// Sets whether a next hop is resolvable, and reports each destination that changed to
    /// `on_change`. Visits only the routes with this next hop and returns their number. Has no
    /// effect if no route uses the next hop.
    pub fn set_reachable(
        &mut self,
        next_hop: NextHop,
        reachable: bool,
        peers: &impl Fn(Source) -> PeerAttributes,
        mut on_change: impl FnMut(Destination, RouteChange),
    ) -> usize {
        let Some(number) = self.next_hops.set(next_hop, !reachable) else {
            return 0;
        };
        let mut visited = 0;
        for destination in self.next_hops.routes(number) {
            visited += 1;
            let Some(paths) = self.routes.get_mut(&destination) else {
                continue;
            };
            let mut first = false;
            for (place, path) in paths.as_mut_slice().iter_mut().enumerate() {
                if next_hops::next_hop_of(&destination, path) == Some(next_hop) {
                    path.reachable = reachable;
                    first |= place == 0;
                }
            }
            let best = paths.put_best_first(peers) || first;
            on_change(destination, RouteChange { path: true, best });
        }
        visited
    }

    /// Whether a route that depends on next-hop resolution has this next hop.
    pub fn has_next_hop(&self, next_hop: NextHop) -> bool {
        self.next_hops.contains(&next_hop)
    }

    /// Next hops that were set unreachable and that no route uses any more, since the last call.
    pub fn take_unused_next_hops(&mut self) -> BTreeSet<NextHop> {
        self.next_hops.take_unused()
    }

    /// Updates the next-hop index after a path of a destination was removed or replaced.
    fn release(&mut self, next_hop: Option<NextHop>, destination: &Destination) {
        let Some(next_hop) = next_hop else {
            return;
        };
        let mut left = self.paths(destination).iter();
        if !left.any(|path| next_hops::next_hop_of(destination, path) == Some(next_hop)) {
            self.next_hops.remove(next_hop, destination);
        }
    }

    /// The best path; `None`: there is no path with a resolvable next hop.
    pub fn best(&self, destination: &Destination) -> Option<&Path> {
        let best = self.routes.get(destination).map(Paths::best);
        best.filter(|path| path.reachable)
    }

    /// All paths to a destination, the best first.
    pub fn paths(&self, destination: &Destination) -> &[Path] {
        self.routes
            .get(destination)
            .map_or(&[], |paths| paths.as_slice())
    }

    /// The best path from one source; `None`: there is no path with a resolvable next hop.
    pub fn best_from(
        &self,
        destination: &Destination,
        source: Source,
        peers: &impl Fn(Source) -> PeerAttributes,
    ) -> Option<&Path> {
        let mut own = self
            .paths(destination)
            .iter()
            .filter(|path| path.source == source && path.reachable);
        let first = own.next()?;
        let Some(second) = own.next() else {
            return Some(first);
        };
        let all: Vec<&Path> = [first, second].into_iter().chain(own).collect();
        all.get(best_index(&all, peers)).copied()
    }

    /// Runs the decision process over `paths`; `None`: there is no path with a resolvable next hop.
    pub fn select_best<'a>(
        &self,
        paths: &[&'a Path],
        peers: &impl Fn(Source) -> PeerAttributes,
    ) -> Option<&'a Path> {
        let best = paths.get(best_index(paths, peers)).copied();
        best.filter(|path| path.reachable)
    }

    /// Every destination from `from` on, with its paths.
    pub fn from(&self, from: Destination) -> impl Iterator<Item = (&Destination, &[Path])> {
        self.routes
            .range(from..)
            .map(|(destination, paths)| (destination, paths.as_slice()))
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Destination, &[Path])> {
        self.routes
            .iter()
            .map(|(destination, paths)| (destination, paths.as_slice()))
    }

    /// The number of paths from a source in a family.
    pub fn count(&self, source: Source, family: Family) -> usize {
        self.counts
            .get(&(source, family))
            .copied()
            .unwrap_or_default()
    }

    /// The number of stale paths from a source in a family.
    pub fn stale_count(&self, source: Source, family: Family) -> usize {
        let count = self.stale_counts.get(&(source, family));
        count.copied().unwrap_or_default()
    }

    /// The number of destinations.
    pub fn len(&self) -> usize {
        self.routes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }
}

impl Paths {
    fn as_slice(&self) -> &[Path] {
        match self {
            Self::One(path) => std::slice::from_ref(path),
            Self::Many(paths) => paths,
        }
    }

    fn as_mut_slice(&mut self) -> &mut [Path] {
        match self {
            Self::One(path) => std::slice::from_mut(path),
            Self::Many(paths) => paths,
        }
    }

    fn best(&self) -> &Path {
        &self.as_slice()[0]
    }

    fn push(&mut self, path: Path) {
        match self {
            Self::One(first) => *self = Self::Many(vec![first.clone(), path]),
            Self::Many(paths) => paths.push(path),
        }
    }

    /// Goes back to the form without an allocation when one path is left.
    fn shrink(&mut self) {
        if let Self::Many(paths) = self
            && paths.len() == 1
            && let Some(last) = paths.pop()
        {
            *self = Self::One(last);
        }
    }

    /// Returns whether another path became the first.
    fn put_best_first(&mut self, peers: &impl Fn(Source) -> PeerAttributes) -> bool {
        let paths = self.as_mut_slice();
        if paths.len() < 2 {
            return false;
        }
        let all: Vec<&Path> = paths.iter().collect();
        let best = best_index(&all, peers);
        paths.swap(0, best);
        best != 0
    }
}

/// The decision process of RFC 4271 §9.1.2.2 and RFC 4456 §9; returns the index of the best of at
/// least one path.
///
/// The interior cost is not compared: the kernel resolves next hops and reports only whether they
/// are resolvable.
fn best_index(paths: &[&Path], peers: &impl Fn(Source) -> PeerAttributes) -> usize {
    let mut left: Vec<usize> = (0..paths.len()).collect();
    let of = |index: usize| &*paths[index].attributes;
    keep_least(&mut left, |i| !paths[i].reachable);
    keep_least(&mut left, |i| paths[i].source != Source::Local);
    keep_least(&mut left, |i| {
        u32::MAX - of(i).local_pref.unwrap_or(DEFAULT_LOCAL_PREF)
    });
    keep_least(&mut left, |i| of(i).as_path.length());
    keep_least(&mut left, |i| of(i).origin);
    // MED is compared only between paths from the same neighbouring AS, so it is not a total order:
    // a path is dropped if another one of its group has a lower MED.
    let candidates = left.clone();
    left.retain(|&i| {
        let med = |j: usize| of(j).med.unwrap_or(0);
        let group = of(i).as_path.neighbour();
        !candidates
            .iter()
            .any(|&j| of(j).as_path.neighbour() == group && med(j) < med(i))
    });
    keep_least(&mut left, |i| !peers(paths[i].source).external);
    keep_least(&mut left, |i| {
        let own = peers(paths[i].source).router_id;
        of(i).originator.unwrap_or(own)
    });
    keep_least(&mut left, |i| of(i).clusters.len());
    keep_least(&mut left, |i| peers(paths[i].source).address);
    keep_least(&mut left, |i| paths[i].path_id);
    left.first().copied().unwrap_or_default()
}

fn keep_least<K: Ord>(left: &mut Vec<usize>, key: impl Fn(usize) -> K) {
    if left.len() < 2 {
        return;
    }
    let Some(least) = left.iter().map(|&i| key(i)).min() else {
        return;
    };
    left.retain(|&i| key(i) == least);
}

#[cfg(test)]
mod tests;
