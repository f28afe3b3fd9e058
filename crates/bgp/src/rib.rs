//! The routes that neighbours announce and those of our own, in one table: for each destination its
//! paths, the best one first (RFC 4271 §9.1).
//!
//! A table of two hundred thousand routes takes some tens of megabytes: a destination with one path
//! costs no allocation of its own, and paths point to shared attributes.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fmt,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

use crate::{
    address::{Destination, Family},
    attributes::{Attributes, DEFAULT_LOCAL_PREF, same},
    srv6::Label,
};

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
}

/// At least one, the best first.
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
        path: Path,
        facts: &impl Fn(Source) -> Facts,
    ) -> Changed {
        let both = Changed {
            path: true,
            best: true,
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
            let old = &mut paths.as_mut_slice()[place];
            let unchanged = old.label == path.label && same(&old.attributes, &path.attributes);
            *old = path;
            if unchanged {
                return Changed::default();
            }
            let moved = paths.put_best_first(facts);
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
        match occupied.get_mut() {
            Paths::One(_) => {
                occupied.remove();
            }
            Paths::Many(paths) => {
                paths.swap_remove(place);
                occupied.get_mut().settle();
                occupied.get_mut().put_best_first(facts);
            }
        }
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
        let counts = &mut self.counts;
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
            let left = match paths {
                Paths::One(_) => false,
                Paths::Many(list) => {
                    list.retain(|path| !goes(path));
                    !list.is_empty()
                }
            };
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

    /// The best path; `None`: there is none.
    pub fn best(&self, destination: &Destination) -> Option<&Path> {
        self.routes.get(destination).map(Paths::best)
    }

    /// All paths to a destination, the best first.
    pub fn paths(&self, destination: &Destination) -> &[Path] {
        self.routes
            .get(destination)
            .map_or(&[], |paths| paths.as_slice())
    }

    /// The best path of one source.
    pub fn best_of(
        &self,
        destination: &Destination,
        source: Source,
        facts: &impl Fn(Source) -> Facts,
    ) -> Option<&Path> {
        let mut own = self
            .paths(destination)
            .iter()
            .filter(|path| path.source == source);
        let first = own.next()?;
        let Some(second) = own.next() else {
            return Some(first);
        };
        let all: Vec<&Path> = [first, second].into_iter().chain(own).collect();
        all.get(choose(&all, facts)).copied()
    }

    /// The best of some paths to one destination; `None`: there are none.
    pub fn choose<'a>(
        &self,
        paths: &[&'a Path],
        facts: &impl Fn(Source) -> Facts,
    ) -> Option<&'a Path> {
        paths.get(choose(paths, facts)).copied()
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
/// The interior cost does not count: next hops are resolved by the kernel, not here.
fn choose(paths: &[&Path], facts: &impl Fn(Source) -> Facts) -> usize {
    let mut left: Vec<usize> = (0..paths.len()).collect();
    let of = |index: usize| &*paths[index].attributes;
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
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::attributes::{AsPath, Origin};

    fn facts(source: Source) -> Facts {
        let number = match source {
            Source::Local => 0,
            Source::Neighbour(id) => id.0 as u8,
        };
        Facts {
            external: number < 8,
            router_id: Ipv4Addr::new(10, 0, 0, 100 - number.min(100)),
            address: IpAddr::from([192, 0, 2, number]),
        }
    }

    fn path(neighbour: u16, change: impl FnOnce(&mut Attributes)) -> Path {
        let mut attributes = Attributes::local(IpAddr::from([192, 0, 2, 1]));
        attributes.as_path = AsPath::sequence(&[65001, 65002]);
        change(&mut attributes);
        Path {
            source: Source::Neighbour(NeighbourId(neighbour)),
            path_id: 0,
            label: Label::default(),
            stale: false,
            attributes: Arc::new(attributes),
        }
    }

    fn destination() -> Destination {
        Destination::unicast("2001:db8::/32".parse().unwrap())
    }

    fn better(better: &Path, worse: &Path) {
        for order in [[better, worse], [worse, better]] {
            let mut rib = Rib::default();
            for path in order {
                rib.insert(destination(), path.clone(), &facts);
            }
            assert_eq!(rib.best(&destination()), Some(better));
        }
    }

    #[test]
    fn the_step_that_decided_is_known() {
        let step = |a: &Path, b: &Path| Step::between(a, b, &facts);
        let preferred = path(1, |a| a.local_pref = Some(101));
        assert_eq!(step(&preferred, &path(2, |_| ())), Step::LocalPref);
        let longer = path(1, |a| a.as_path = AsPath::sequence(&[1, 2, 3]));
        assert_eq!(step(&path(2, |_| ()), &longer), Step::PathLength);
        let med = |neighbour, asn, med| {
            path(neighbour, move |a| {
                a.as_path = AsPath::sequence(&[asn, 9]);
                a.med = Some(med);
            })
        };
        assert_eq!(step(&med(1, 7, 1), &med(2, 7, 2)), Step::Med);
        assert_eq!(step(&med(2, 8, 2), &med(1, 7, 1)), Step::RouterId);
        assert_eq!(step(&path(1, |_| ()), &path(9, |_| ())), Step::External);
    }

    #[test]
    fn each_step_of_the_choice_outweighs_those_after_it() {
        let longer = |a: &mut Attributes| a.as_path = AsPath::sequence(&[1, 2, 3]);
        better(
            &path(1, |a| {
                a.local_pref = Some(101);
                longer(a);
            }),
            &path(2, |_| ()),
        );
        better(
            &path(1, |a| a.origin = Origin::Incomplete),
            &path(2, longer),
        );
        better(
            &path(1, |a| a.med = Some(9)),
            &path(2, |a| {
                a.origin = Origin::Egp;
            }),
        );
        // Neighbour 2 has the smaller identifier.
        better(&path(1, |a| a.med = Some(1)), &path(2, |a| a.med = Some(2)));
        better(&path(1, |_| ()), &path(9, |_| ()));
        better(&path(2, |_| ()), &path(1, |_| ()));
        let reflected = |a: &mut Attributes| a.originator = Some(Ipv4Addr::new(1, 1, 1, 1));
        better(&path(9, reflected), &path(10, |_| ()));
        better(
            &path(9, reflected),
            &path(10, |a| {
                reflected(a);
                a.clusters = [Ipv4Addr::LOCALHOST].into();
            }),
        );
        better(&path(9, reflected), &path(10, reflected));
    }

    #[test]
    fn med_counts_within_one_neighbouring_as_only() {
        let of = |asn: u32, med| {
            move |a: &mut Attributes| {
                a.as_path = AsPath::sequence(&[asn, 9]);
                a.med = Some(med);
            }
        };
        // 3 has the best identifier but loses to 1 by MED; 2 has a better identifier than 1.
        let paths = [path(1, of(7, 5)), path(2, of(8, 50)), path(3, of(7, 10))];
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]] {
            let mut rib = Rib::default();
            for i in order {
                rib.insert(destination(), paths[i].clone(), &facts);
            }
            assert_eq!(rib.best(&destination()), Some(&paths[1]));
        }
    }

    #[test]
    fn the_same_announcement_again_changes_nothing_but_freshens() {
        let mut rib = Rib::default();
        let source = Source::Neighbour(NeighbourId(1));
        rib.insert(destination(), path(1, |_| ()), &facts);
        rib.make_stale(source, &[Family::Ipv6]);
        assert!(rib.best(&destination()).unwrap().stale);
        let again = rib.insert(destination(), path(1, |_| ()), &facts);
        assert_eq!(again, Changed::default());
        rib.sweep(source, |_, path| path.stale, &facts, |_, _| panic!("fresh"));
        assert_eq!(rib.count(source, Family::Ipv6), 1);
    }

    proptest! {
        /// The table against a list of all paths that is searched anew.
        #[test]
        fn a_table_is_what_was_announced_and_not_withdrawn(
            steps in prop::collection::vec((0u8..12, 0u16..4, 0u32..2, 0u8..5, 0u32..3), 1..200)
        ) {
            let mut rib = Rib::default();
            let mut model: BTreeMap<(Destination, Source, u32), Path> = BTreeMap::new();
            for (prefix, neighbour, path_id, what, med) in steps {
                let net = format!("2001:db8:{prefix:x}::/48").parse().unwrap();
                let destination = Destination::unicast(net);
                let source = Source::Neighbour(NeighbourId(neighbour));
                let before = rib.best(&destination).cloned();
                let changed = match what {
                    0 => {
                        let mut told = BTreeSet::new();
                        rib.sweep(source, |_, _| true, &facts, |d, _| { told.insert(d); });
                        let gone: BTreeSet<_> = model.keys()
                            .filter(|key| key.1 == source).map(|key| key.0).collect();
                        prop_assert_eq!(told, gone);
                        model.retain(|key, _| key.1 != source);
                        continue;
                    }
                    1 => {
                        model.remove(&(destination, source, path_id));
                        rib.remove(destination, source, path_id, &facts)
                    }
                    _ => {
                        let new = Path { path_id, ..path(neighbour, |a| a.med = Some(med)) };
                        model.insert((destination, source, path_id), new.clone());
                        rib.insert(destination, new, &facts)
                    }
                };
                let all: Vec<&Path> = model.iter()
                    .filter(|(key, _)| key.0 == destination).map(|(_, path)| path).collect();
                let best = rib.best(&destination);
                match all.is_empty() {
                    true => prop_assert_eq!(best, None),
                    false => prop_assert_eq!(best, Some(all[choose(&all, &facts)])),
                }
                if before.as_ref() != best {
                    prop_assert!(changed.best);
                }
                prop_assert_eq!(rib.paths(&destination).len(), all.len());
                let count = model.keys().filter(|key| key.1 == source).count();
                prop_assert_eq!(rib.count(source, Family::Ipv6), count);
            }
        }
    }
}
