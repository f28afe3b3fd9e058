//! The routes that neighbours announce and those of our own, in one table: for each destination its
//! paths, the best one first (RFC 4271 §9.1).
//!
//! A table of two hundred thousand routes takes some tens of megabytes: a destination with one path
//! costs no allocation of its own, and paths point to shared attributes.

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

/// A neighbour, by its place in the speaker's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NeighbourId(pub u16);

/// Who a path comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// This speaker.
    Local,
    /// A neighbour.
    Neighbour(NeighbourId),
}

/// One way to a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// Who announced it.
    pub source: Source,
    /// Tells several of one neighbour apart; 0 where it does not say.
    pub path_id: u32,
    /// The label of a VPN route.
    pub label: Label,
    /// Its neighbour restarts and has not announced it again (RFC 4724).
    pub stale: bool,
    /// Packets can be sent to its next hop; otherwise it is not considered (RFC 4271 §9.1.2.1). The
    /// table knows.
    pub reachable: bool,
    /// What it says about itself.
    pub attributes: Arc<Attributes>,
}

/// What the choice needs to know of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// It belongs to another AS.
    pub external: bool,
    /// Its BGP identifier.
    pub router_id: Ipv4Addr,
    /// Where it is.
    pub address: IpAddr,
}

/// The step of the choice that decides between two paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// The next hop of one can be reached.
    Reachable,
    /// One is this speaker's own.
    Own,
    /// LOCAL_PREF.
    LocalPref,
    /// The length of the AS path.
    PathLength,
    /// ORIGIN.
    Origin,
    /// MED, between routes of one neighbouring AS.
    Med,
    /// Another AS's neighbour before one of this AS.
    External,
    /// The BGP identifier of the neighbour or originator.
    RouterId,
    /// How many reflectors it has passed (RFC 4456 §9).
    Clusters,
    /// The neighbour's address.
    Address,
    /// The path identifier.
    PathId,
}

impl Step {
    /// The first at which `best` is better than `other`.
    pub(crate) fn between(best: &Path, other: &Path, facts: &impl Fn(Source) -> Facts) -> Self {
        let (a, b) = (&*best.attributes, &*other.attributes);
        let (of_a, of_b) = (facts(best.source), facts(other.source));
        let preference = |of: &Attributes| of.local_pref.unwrap_or(DEFAULT_LOCAL_PREF);
        let same_as = a.as_path.neighbour() == b.as_path.neighbour();
        let id = |of: &Attributes, facts: Facts| of.originator.unwrap_or(facts.router_id);
        let steps = [
            (Self::Reachable, best.reachable != other.reachable),
            (Self::Own, best.source == Source::Local),
            (Self::LocalPref, preference(a) != preference(b)),
            (Self::PathLength, a.as_path.length() != b.as_path.length()),
            (Self::Origin, a.origin != b.origin),
            (
                Self::Med,
                same_as && a.med.unwrap_or(0) != b.med.unwrap_or(0),
            ),
            (Self::External, of_a.external != of_b.external),
            (Self::RouterId, id(a, of_a) != id(b, of_b)),
            (Self::Clusters, a.clusters.len() != b.clusters.len()),
            (Self::Address, of_a.address != of_b.address),
        ];
        let decides = steps.into_iter().find(|(_, differs)| *differs);
        decides.map_or(Self::PathId, |(step, _)| step)
    }
}

impl fmt::Display for Step {
    /// What the better one has.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Reachable => "a next hop that can be reached",
            Self::Own => "our own",
            Self::LocalPref => "higher local preference",
            Self::PathLength => "shorter AS path",
            Self::Origin => "better origin",
            Self::Med => "lower MED",
            Self::External => "from another AS",
            Self::RouterId => "lower BGP identifier",
            Self::Clusters => "fewer reflectors",
            Self::Address => "lower address of the neighbour",
            Self::PathId => "lower path identifier",
        })
    }
}

/// What a change of the table has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// The neighbour's own path.
    pub path: bool,
    /// The best path.
    pub best: bool,
}

/// The table.
#[derive(Debug, Default)]
pub struct Rib {
    routes: BTreeMap<Destination, Paths>,
    /// Paths per neighbour and family.
    counts: BTreeMap<(Source, Family), usize>,
    next_hops: NextHops,
}

/// At least one, the best first; one that is not considered is first where all are such.
#[derive(Debug)]
enum Paths {
    One(Path),
    Many(Vec<Path>),
}

impl Rib {
    /// Takes a path in place of the same neighbour's with the same identifier.
    pub fn insert(
        &mut self,
        destination: Destination,
        mut path: Path,
        facts: &impl Fn(Source) -> Facts,
    ) -> Changed {
        let next_hop = next_hops::of(&destination, &path);
        path.reachable = next_hop.is_none_or(|it| self.next_hops.is_reachable(&it));
        if let Some(next_hop) = next_hop {
            self.next_hops.add(next_hop, &destination);
        }
        let both = Changed {
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
            let old = std::mem::replace(&mut paths.as_mut_slice()[place], path);
            let new = &paths.as_slice()[place];
            let unchanged = old.label == new.label
                && old.reachable == new.reachable
                && same(&old.attributes, &new.attributes);
            if unchanged {
                return Changed::default();
            }
            let moved = paths.put_best_first(facts);
            self.release(next_hops::of(&destination, &old), &destination);
            return Changed {
                path: true,
                // The place of the best before, or of the best now.
                best: place == 0 || moved,
            };
        }
        *self.counts.entry(key).or_default() += 1;
        paths.push(path);
        Changed {
            path: true,
            best: paths.put_best_first(facts),
        }
    }

    /// Removes a neighbour's path.
    pub fn remove(
        &mut self,
        destination: Destination,
        source: Source,
        path_id: u32,
        facts: &impl Fn(Source) -> Facts,
    ) -> Changed {
        let Entry::Occupied(mut occupied) = self.routes.entry(destination) else {
            return Changed::default();
        };
        let is_it = |path: &Path| path.source == source && path.path_id == path_id;
        let Some(place) = occupied.get().as_slice().iter().position(is_it) else {
            return Changed::default();
        };
        if let Some(count) = self.counts.get_mut(&(source, destination.family())) {
            *count = count.saturating_sub(1);
        }
        let gone = match occupied.get_mut() {
            Paths::One(_) => match occupied.remove() {
                Paths::One(path) => Some(path),
                Paths::Many(_) => None,
            },
            Paths::Many(paths) => {
                let gone = paths.swap_remove(place);
                occupied.get_mut().settle();
                occupied.get_mut().put_best_first(facts);
                Some(gone)
            }
        };
        let next_hop = gone.and_then(|path| next_hops::of(&destination, &path));
        self.release(next_hop, &destination);
        Changed {
            path: true,
            best: place == 0,
        }
    }

    /// Removes a neighbour's paths that `goes` says, and tells of each destination what changed.
    pub fn sweep(
        &mut self,
        source: Source,
        goes: impl Fn(&Destination, &Path) -> bool,
        facts: &impl Fn(Source) -> Facts,
        mut tell: impl FnMut(Destination, Changed),
    ) {
        let (counts, next_hops) = (&mut self.counts, &mut self.next_hops);
        self.routes.retain(|destination, paths| {
            let goes = |path: &Path| path.source == source && goes(destination, path);
            let gone = paths.as_slice().iter().filter(|path| goes(path)).count();
            if gone == 0 {
                return true;
            }
            if let Some(count) = counts.get_mut(&(source, destination.family())) {
                *count = count.saturating_sub(gone);
            }
            let best = goes(paths.best());
            let of = |path: &Path| next_hops::of(destination, path);
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
                paths.settle();
                paths.put_best_first(facts);
            }
            tell(*destination, Changed { path: true, best });
            left
        });
    }

    /// Marks a neighbour's paths of some families as stale.
    pub fn make_stale(&mut self, source: Source, families: &[Family]) {
        for (destination, paths) in &mut self.routes {
            if families.contains(&destination.family()) {
                for path in paths.as_mut_slice() {
                    path.stale |= path.source == source;
                }
            }
        }
    }

    /// Says of a next hop whether packets can be sent there, and tells of each destination for which
    /// that is new. Only its own routes are looked at; how many those were. Where no route has it
    /// nothing is remembered.
    pub fn set_reachable(
        &mut self,
        next_hop: NextHop,
        reachable: bool,
        facts: &impl Fn(Source) -> Facts,
        mut tell: impl FnMut(Destination, Changed),
    ) -> usize {
        let Some(number) = self.next_hops.set(next_hop, !reachable) else {
            return 0;
        };
        let mut looked_at = 0;
        for destination in self.next_hops.routes(number) {
            looked_at += 1;
            let Some(paths) = self.routes.get_mut(&destination) else {
                continue;
            };
            let mut first = false;
            for (place, path) in paths.as_mut_slice().iter_mut().enumerate() {
                if next_hops::of(&destination, path) == Some(next_hop) {
                    path.reachable = reachable;
                    first |= place == 0;
                }
            }
            let best = paths.put_best_first(facts) || first;
            tell(destination, Changed { path: true, best });
        }
        looked_at
    }

    /// Whether a route that depends on it has this next hop.
    pub fn has_next_hop(&self, next_hop: NextHop) -> bool {
        self.next_hops.contains(&next_hop)
    }

    /// Next hops that were said to be out of reach and that no route has, since it was asked last.
    pub fn take_unused_next_hops(&mut self) -> BTreeSet<NextHop> {
        self.next_hops.take_unused()
    }

    /// A path to a destination has this next hop no more.
    fn release(&mut self, next_hop: Option<NextHop>, destination: &Destination) {
        let Some(next_hop) = next_hop else {
            return;
        };
        let mut left = self.paths(destination).iter();
        if !left.any(|path| next_hops::of(destination, path) == Some(next_hop)) {
            self.next_hops.remove(next_hop, destination);
        }
    }

    /// The best path; `None`: there is none that is considered.
    pub fn best(&self, destination: &Destination) -> Option<&Path> {
        let best = self.routes.get(destination).map(Paths::best);
        best.filter(|path| path.reachable)
    }

    /// All paths to a destination, the best first and those that are not considered last.
    pub fn paths(&self, destination: &Destination) -> &[Path] {
        self.routes
            .get(destination)
            .map_or(&[], |paths| paths.as_slice())
    }

    /// The best path of one source, of those that are considered.
    pub fn best_of(
        &self,
        destination: &Destination,
        source: Source,
        facts: &impl Fn(Source) -> Facts,
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
        all.get(choose(&all, facts)).copied()
    }

    /// The best of some paths to one destination; `None`: there are none that are considered.
    pub fn choose<'a>(
        &self,
        paths: &[&'a Path],
        facts: &impl Fn(Source) -> Facts,
    ) -> Option<&'a Path> {
        let best = paths.get(choose(paths, facts)).copied();
        best.filter(|path| path.reachable)
    }

    /// Every destination from `from` on, with its paths.
    pub fn from(&self, from: Destination) -> impl Iterator<Item = (&Destination, &[Path])> {
        self.routes
            .range(from..)
            .map(|(destination, paths)| (destination, paths.as_slice()))
    }

    /// Every destination with its paths.
    pub fn iter(&self) -> impl Iterator<Item = (&Destination, &[Path])> {
        self.routes
            .iter()
            .map(|(destination, paths)| (destination, paths.as_slice()))
    }

    /// How many paths of a family a source has.
    pub fn count(&self, source: Source, family: Family) -> usize {
        self.counts
            .get(&(source, family))
            .copied()
            .unwrap_or_default()
    }

    /// How many destinations there are.
    pub fn len(&self) -> usize {
        self.routes.len()
    }

    /// Whether there is no destination.
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

    /// Gives up the list where one is left.
    fn settle(&mut self) {
        if let Self::Many(paths) = self
            && paths.len() == 1
            && let Some(last) = paths.pop()
        {
            *self = Self::One(last);
        }
    }

    /// Whether another one is the first now.
    fn put_best_first(&mut self, facts: &impl Fn(Source) -> Facts) -> bool {
        let paths = self.as_mut_slice();
        if paths.len() < 2 {
            return false;
        }
        let all: Vec<&Path> = paths.iter().collect();
        let best = choose(&all, facts);
        paths.swap(0, best);
        best != 0
    }
}

/// The best of several paths, by RFC 4271 §9.1.2.2 and RFC 4456 §9; at least one.
///
/// The interior cost does not count: next hops are resolved by the kernel, which tells only whether
/// they can be reached.
fn choose(paths: &[&Path], facts: &impl Fn(Source) -> Facts) -> usize {
    let mut left: Vec<usize> = (0..paths.len()).collect();
    let of = |index: usize| &*paths[index].attributes;
    keep_least(&mut left, |i| !paths[i].reachable);
    keep_least(&mut left, |i| paths[i].source != Source::Local);
    keep_least(&mut left, |i| {
        u32::MAX - of(i).local_pref.unwrap_or(DEFAULT_LOCAL_PREF)
    });
    keep_least(&mut left, |i| of(i).as_path.length());
    keep_least(&mut left, |i| of(i).origin);
    // MED counts between routes of one neighbouring AS only, so it is no order: a route goes if
    // another one of its group is better.
    let candidates = left.clone();
    left.retain(|&i| {
        let med = |j: usize| of(j).med.unwrap_or(0);
        let group = of(i).as_path.neighbour();
        !candidates
            .iter()
            .any(|&j| of(j).as_path.neighbour() == group && med(j) < med(i))
    });
    keep_least(&mut left, |i| !facts(paths[i].source).external);
    keep_least(&mut left, |i| {
        let own = facts(paths[i].source).router_id;
        of(i).originator.unwrap_or(own)
    });
    keep_least(&mut left, |i| of(i).clusters.len());
    keep_least(&mut left, |i| facts(paths[i].source).address);
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
