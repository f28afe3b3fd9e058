use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::{
    address::RouteDistinguisher,
    attributes::{AsPath, Origin},
};

fn peers(source: Source) -> PeerAttributes {
    let number = match source {
        Source::Local => 0,
        Source::Neighbour(id) => id.0 as u8,
    };
    PeerAttributes {
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
        reachable: true,
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
            rib.insert(destination(), path.clone(), &peers);
        }
        assert_eq!(rib.best(&destination()), Some(better));
    }
}

#[test]
fn deciding_step_of_best_path_selection_is_reported() {
    let step = |a: &Path, b: &Path| DecisionStep::between(a, b, &peers);
    let preferred = path(1, |a| a.local_pref = Some(101));
    assert_eq!(step(&preferred, &path(2, |_| ())), DecisionStep::LocalPref);
    let longer = path(1, |a| a.as_path = AsPath::sequence(&[1, 2, 3]));
    assert_eq!(step(&path(2, |_| ()), &longer), DecisionStep::AsPathLength);
    let med = |neighbour, asn, med| {
        path(neighbour, move |a| {
            a.as_path = AsPath::sequence(&[asn, 9]);
            a.med = Some(med);
        })
    };
    assert_eq!(step(&med(1, 7, 1), &med(2, 7, 2)), DecisionStep::Med);
    assert_eq!(step(&med(2, 8, 2), &med(1, 7, 1)), DecisionStep::RouterId);
    assert_eq!(step(&path(1, |_| ()), &path(9, |_| ())), DecisionStep::Ebgp);
}

fn hop(number: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, number])
}

#[test]
fn path_with_an_unreachable_next_hop_is_not_eligible() {
    let near = path(1, |_| ());
    let far = path(2, |a| {
        a.local_pref = Some(200);
        a.next_hop = hop(9);
    });
    let (mut rib, at) = (Rib::default(), destination());
    rib.insert(at, near.clone(), &peers);
    rib.insert(at, far.clone(), &peers);
    assert_eq!(rib.best(&at), Some(&far));
    let mut reported = Vec::new();
    let of_far = (NeighbourId(2), hop(9));
    rib.set_reachable(of_far, false, &peers, |at, c| reported.push((at, c.best)));
    assert_eq!(reported, [(at, true)]);
    assert_eq!(rib.best(&at), Some(&near));
    assert_eq!(rib.best_from(&at, far.source, &peers), None);
    assert_eq!(rib.paths(&at).len(), 2, "it is kept");
    let last = &rib.paths(&at)[1];
    assert_eq!(
        DecisionStep::between(&near, last, &peers),
        DecisionStep::Reachable
    );
    let of_near = (NeighbourId(1), hop(1));
    rib.set_reachable(of_near, false, &peers, |_, _| ());
    assert_eq!(rib.best(&at), None);
    // A repeated announcement does not make it reachable.
    assert_eq!(rib.insert(at, far.clone(), &peers), RouteChange::default());
    for of in [of_far, of_near] {
        rib.set_reachable(of, true, &peers, |_, _| ());
    }
    assert_eq!(rib.best(&at), Some(&far));
}

#[test]
fn next_hop_change_visits_its_own_routes_only() {
    let mut rib = Rib::default();
    let of = |number: u8| (NeighbourId(1), hop(number));
    for number in 0..2003u32 {
        let by = 1 + u8::from(number >= 2000);
        let net = Ipv4Addr::from(0x0a00_0000 + (number << 8));
        let at = Destination::unicast(ipnet::IpNet::new(net.into(), 24).unwrap());
        rib.insert(at, path(1, |a| a.next_hop = hop(by)), &peers);
    }
    let set = |rib: &mut Rib, next_hop, reachable| {
        let mut reported = 0;
        let visited = rib.set_reachable(next_hop, reachable, &peers, |_, _| reported += 1);
        (visited, reported)
    };
    assert_eq!(set(&mut rib, of(2), false), (3, 3));
    assert_eq!(set(&mut rib, of(2), false), (0, 0), "nothing new");
    assert_eq!(set(&mut rib, of(1), true), (0, 0), "nothing else was said");
    assert_eq!(set(&mut rib, of(2), true), (3, 3));
    assert_eq!(set(&mut rib, of(3), false), (0, 0), "no route uses it");
    // The same address is a different next hop for another neighbour.
    assert_eq!(set(&mut rib, (NeighbourId(2), hop(1)), false), (0, 0));
    assert_eq!(set(&mut rib, of(1), false), (2000, 2000));
}

#[test]
fn next_hop_is_dropped_with_its_last_route() {
    let (mut rib, at) = (Rib::default(), destination());
    let of = |number: u8| (NeighbourId(1), hop(number));
    let by = |number: u8, path_id| Path {
        path_id,
        ..path(1, |a| a.next_hop = hop(number))
    };
    rib.insert(at, by(1, 0), &peers);
    rib.insert(at, by(1, 1), &peers);
    rib.set_reachable(of(1), false, &peers, |_, _| ());
    rib.remove(at, by(1, 0).source, 0, &peers);
    assert!(rib.take_unused_next_hops().is_empty(), "one is left");
    assert_eq!(rib.best(&at), None);
    rib.insert(at, by(2, 1), &peers);
    assert_eq!(rib.take_unused_next_hops(), [of(1)].into());
    assert_eq!((rib.next_hops.len(), rib.best(&at)), (1, Some(&by(2, 1))));
    // An unused next hop is not stored but reported as unused; a reachable one is dropped without a
    // report.
    rib.set_reachable(of(3), false, &peers, |_, _| ());
    rib.sweep(by(2, 1).source, |_, _| true, &peers, |_, _| ());
    assert_eq!(rib.next_hops.len(), 0);
    assert_eq!(rib.take_unused_next_hops(), [of(3)].into());
    rib.insert(at, by(1, 0), &peers);
    assert_eq!(rib.best(&at), Some(&by(1, 0)), "nothing is known of it now");
}

#[test]
fn each_step_of_best_path_selection_outweighs_those_after_it() {
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
fn med_is_compared_within_one_neighbouring_as_only() {
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
            rib.insert(destination(), paths[i].clone(), &peers);
        }
        assert_eq!(rib.best(&destination()), Some(&paths[1]));
    }
}

#[test]
fn repeated_announcement_only_clears_the_stale_mark() {
    let mut rib = Rib::default();
    let source = Source::Neighbour(NeighbourId(1));
    rib.insert(destination(), path(1, |_| ()), &peers);
    rib.make_stale(source, &[Family::Ipv6]);
    assert!(rib.best(&destination()).unwrap().stale);
    let again = rib.insert(destination(), path(1, |_| ()), &peers);
    assert_eq!(again, RouteChange::default());
    rib.sweep(source, |_, path| path.stale, &peers, |_, _| panic!("fresh"));
    assert_eq!(rib.count(source, Family::Ipv6), 1);
}

/// A reference model: all paths in no order, and the next hops set unreachable.
#[derive(Default)]
struct Naive {
    paths: BTreeMap<(Destination, Source, u32), Path>,
    lost: BTreeSet<NextHop>,
}

impl Naive {
    /// Every next hop in use, with its destinations.
    fn next_hops(&self) -> BTreeMap<NextHop, BTreeSet<Destination>> {
        let mut all: BTreeMap<NextHop, BTreeSet<Destination>> = BTreeMap::new();
        for ((destination, source, _), path) in &self.paths {
            if let (Source::Neighbour(id), false) =
                (*source, matches!(destination, Destination::Vpn6(..)))
            {
                let of = all.entry((id, path.attributes.next_hop)).or_default();
                of.insert(*destination);
            }
        }
        all
    }

    /// Recomputes the reachability of all paths from `lost`.
    fn recompute(&mut self) {
        let used = self.next_hops();
        self.lost.retain(|next_hop| used.contains_key(next_hop));
        for ((destination, source, _), path) in &mut self.paths {
            let vpn = matches!(destination, Destination::Vpn6(..));
            path.reachable = match source {
                Source::Neighbour(id) if !vpn => {
                    !self.lost.contains(&(*id, path.attributes.next_hop))
                }
                _ => true,
            };
        }
    }
}

fn bests(rib: &Rib) -> BTreeMap<Destination, Path> {
    let all = rib
        .iter()
        .filter_map(|(d, _)| Some((*d, rib.best(d)?.clone())));
    all.collect()
}

proptest! {
    /// Compares the RIB with the reference model after each step.
    #[test]
    fn rib_holds_what_was_announced_and_not_withdrawn(
        steps in prop::collection::vec((0u8..12, 0u16..4, 0u32..2, 0u8..8, 0u8..3), 1..120)
    ) {
        let mut rib = Rib::default();
        let mut naive = Naive::default();
        for (prefix, neighbour, path_id, what, number) in steps {
            let net = format!("2001:db8:{prefix:x}::/48").parse().unwrap();
            let destination = match prefix % 3 {
                0 => Destination::unicast(net),
                1 => Destination::unicast(format!("10.{prefix}.0.0/16").parse().unwrap()),
                _ => match net {
                    ipnet::IpNet::V6(net) => Destination::Vpn6(RouteDistinguisher(7), net),
                    ipnet::IpNet::V4(_) => unreachable!("it is of IPv6"),
                },
            };
            let id = NeighbourId(neighbour);
            // Local routes have next hops that are not tracked.
            let source = if neighbour == 3 { Source::Local } else { Source::Neighbour(id) };
            let next_hop = (id, hop(number));
            let (before, lost) = (bests(&rib), naive.lost.clone());
            // Destinations whose best path may have changed, and those reported as changed.
            let mut touched = BTreeSet::new();
            let mut reported = BTreeSet::new();
            match what {
                0 => {
                    rib.sweep(source, |_, _| true, &peers, |d, c| {
                        touched.insert(d);
                        if c.best {
                            reported.insert(d);
                        }
                    });
                    let of_source = naive.paths.keys().filter(|key| key.1 == source);
                    prop_assert_eq!(&touched, &of_source.map(|key| key.0).collect());
                    naive.paths.retain(|key, _| key.1 != source);
                }
                1 | 2 => {
                    let reachable = what == 2;
                    let visited = rib.set_reachable(next_hop, reachable, &peers, |d, c| {
                        touched.insert(d);
                        if c.best {
                            reported.insert(d);
                        }
                    });
                    let of = naive.next_hops().remove(&next_hop).unwrap_or_default();
                    let new = match reachable {
                        true => naive.lost.remove(&next_hop),
                        false => naive.lost.insert(next_hop),
                    };
                    prop_assert_eq!(&touched, &if new { of } else { BTreeSet::new() });
                    prop_assert_eq!(visited, touched.len());
                }
                3 => {
                    naive.paths.remove(&(destination, source, path_id));
                    if rib.remove(destination, source, path_id, &peers).best {
                        reported.insert(destination);
                    }
                    touched.insert(destination);
                }
                _ => {
                    let new = path(neighbour, |a| {
                        a.next_hop = hop(number);
                        a.med = Some((what % 2).into());
                    });
                    let new = Path { path_id, source, ..new };
                    naive.paths.insert((destination, source, path_id), new.clone());
                    if rib.insert(destination, new, &peers).best {
                        reported.insert(destination);
                    }
                    touched.insert(destination);
                }
            }
            let said = naive.lost.clone();
            naive.recompute();
            // Reported: next hops that were unreachable or just set unreachable, and that no route
            // uses.
            let unused: BTreeSet<_> = lost.union(&said).copied().collect();
            let mut unused: BTreeSet<_> = unused.difference(&naive.lost).copied().collect();
            if what == 2 {
                unused.remove(&next_hop);
            }
            prop_assert_eq!(rib.take_unused_next_hops(), unused);

            let of_naive = naive.next_hops();
            prop_assert_eq!(rib.next_hops.len(), of_naive.len());
            for (next_hop, all) in of_naive {
                prop_assert_eq!(rib.next_hops.all(&next_hop), all);
            }
            let after = bests(&rib);
            for at in before.keys().chain(after.keys()) {
                if before.get(at) != after.get(at) {
                    prop_assert!(reported.contains(at), "{at} silently");
                }
                let all: Vec<&Path> = naive.paths.iter()
                    .filter(|(key, _)| key.0 == *at).map(|(_, path)| path).collect();
                prop_assert_eq!(rib.paths(at).len(), all.len());
                let best = best_index(&all, &peers);
                let best = all.get(best).copied().filter(|path| path.reachable);
                prop_assert_eq!(after.get(at), best);
            }
            for family in Family::ALL {
                let count = naive.paths.keys()
                    .filter(|key| key.1 == source && key.0.family() == family).count();
                prop_assert_eq!(rib.count(source, family), count);
            }
        }
    }
}

#[test]
fn stale_paths_are_counted_until_reannounced_or_removed() {
    let mut rib = Rib::default();
    let source = Source::Neighbour(NeighbourId(1));
    let prefix = |n: u8| Destination::unicast(format!("2001:db8:{n}::/48").parse().unwrap());
    for n in 0..4 {
        rib.insert(prefix(n), path(1, |_| ()), &peers);
        rib.insert(prefix(n), path(2, |_| ()), &peers);
    }
    let stale = |rib: &Rib| rib.stale_count(source, Family::Ipv6);
    rib.make_stale(source, &[Family::Ipv4]);
    assert_eq!(stale(&rib), 0);
    rib.make_stale(source, &[Family::Ipv6]);
    rib.make_stale(source, &[Family::Ipv6]);
    assert_eq!(stale(&rib), 4);
    rib.insert(prefix(0), path(1, |_| ()), &peers);
    rib.remove(prefix(1), source, 0, &peers);
    assert_eq!(stale(&rib), 2);
    rib.sweep(source, |_, path| path.stale, &peers, |_, _| ());
    assert_eq!((stale(&rib), rib.count(source, Family::Ipv6)), (0, 1));
    assert_eq!(
        rib.count(Source::Neighbour(NeighbourId(2)), Family::Ipv6),
        4
    );
}
