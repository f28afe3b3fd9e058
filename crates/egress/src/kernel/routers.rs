//! An index from next hops to installed routes, so that a change of resolution visits only the
//! routes concerned.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::{IpNet, Ipv4Net};
use keiro_linux::epe::RouteKey;

use crate::forwarding::Via;

/// A next hop has a number as long as a route uses it.
#[derive(Debug, Default)]
pub(super) struct Routers {
    routes: BTreeMap<RouteKey, u32>,
    /// Routes by the number of their next hop.
    of: BTreeSet<(u32, RouteKey)>,
    numbers: BTreeMap<Via, u32>,
    /// Next hops by number.
    vias: Vec<Option<Via>>,
    /// Free numbers in `vias`.
    free: Vec<u32>,
}

impl Routers {
    /// Sets the next hop of a route. Returns the next hop that no route uses any more.
    pub(super) fn insert(&mut self, key: RouteKey, via: Via) -> Option<Via> {
        let number = self.number(via);
        let before = self.routes.insert(key, number);
        if before == Some(number) {
            return None;
        }
        self.of.insert((number, key));
        self.release(before?, key)
    }

    /// Removes a route. Returns the next hop that no route uses any more.
    pub(super) fn remove(&mut self, key: &RouteKey) -> Option<Via> {
        let before = self.routes.remove(key)?;
        self.release(before, *key)
    }

    /// Removes all routes of a table. Returns the next hops that no route uses any more.
    pub(super) fn remove_table(&mut self, table: u32) -> Vec<Via> {
        let all = self.routes.range(RouteKey { table, ..FIRST }..);
        let all = all.map(|(key, _)| *key);
        let keys: Vec<RouteKey> = all.take_while(|key| key.table == table).collect();
        keys.iter().filter_map(|key| self.remove(key)).collect()
    }

    /// Whether a route uses this next hop.
    pub(super) fn uses(&self, via: &Via) -> bool {
        self.numbers.contains_key(via)
    }

    /// All next hops in use.
    pub(super) fn vias(&self) -> impl Iterator<Item = &Via> {
        self.numbers.keys()
    }

    /// The routes with this next hop.
    pub(super) fn of(&self, via: &Via) -> impl Iterator<Item = RouteKey> {
        let number = self.numbers.get(via).copied();
        let routes = number.map(|number| {
            let from = self.of.range((number, FIRST)..);
            from.take_while(move |(of, _)| *of == number)
        });
        routes.into_iter().flatten().map(|(_, key)| *key)
    }

    fn number(&mut self, via: Via) -> u32 {
        if let Some(known) = self.numbers.get(&via) {
            return *known;
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.vias.push(None);
            self.vias.len() as u32 - 1
        });
        self.vias[number as usize] = Some(via);
        self.numbers.insert(via, number);
        number
    }

    fn release(&mut self, number: u32, key: RouteKey) -> Option<Via> {
        self.of.remove(&(number, key));
        let mut from = self.of.range((number, FIRST)..);
        if from.next().is_some_and(|(of, _)| *of == number) {
            return None;
        }
        let via = self.vias[number as usize].take()?;
        self.numbers.remove(&via);
        self.free.push(number);
        Some(via)
    }
}

/// Sorts before all others.
const FIRST: RouteKey = RouteKey {
    table: 0,
    destination: IpNet::V4(Ipv4Net::new_assert(std::net::Ipv4Addr::UNSPECIFIED, 0)),
};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares the index with a linear search.
        #[test]
        fn routes_are_found_by_their_router(
            steps in prop::collection::vec((0u32..3, 0u8..4, 0u16..5, 0u8..8), 1..200)
        ) {
            let mut routers = Routers::default();
            let mut naive: BTreeMap<RouteKey, Via> = BTreeMap::new();
            for (table, number, router, what) in steps {
                let net = match number % 2 {
                    0 => format!("10.{number}.0.0/16"),
                    _ => format!("2001:db8:{number}::/48"),
                };
                let key = RouteKey { table, destination: net.parse().unwrap() };
                let via = Via::Router {
                    peer: None,
                    address: [0xfd00, 0, 0, 0, 0, 0, 0, router].into(),
                    link_local: None,
                };
                let used: BTreeSet<Via> = naive.values().copied().collect();
                let unused: BTreeSet<Via> = match what {
                    0 => {
                        naive.retain(|key, _| key.table != table);
                        routers.remove_table(table).into_iter().collect()
                    }
                    1 | 2 => {
                        naive.remove(&key);
                        routers.remove(&key).into_iter().collect()
                    }
                    _ => {
                        naive.insert(key, via);
                        routers.insert(key, via).into_iter().collect()
                    }
                };
                let now: BTreeSet<Via> = naive.values().copied().collect();
                prop_assert_eq!(unused, used.difference(&now).copied().collect());
                prop_assert_eq!(routers.vias().copied().collect::<BTreeSet<_>>(), now);
                let of = naive.iter().filter(|(_, by)| **by == via).map(|(key, _)| *key);
                prop_assert_eq!(routers.of(&via).collect::<Vec<_>>(), of.collect::<Vec<_>>());
                prop_assert_eq!(routers.uses(&via), naive.values().any(|by| *by == via));
            }
        }
    }
}
