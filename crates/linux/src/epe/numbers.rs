//! Assigns numbers to nexthop objects: one for each table and nexthop, as long as routes use it.

use std::{collections::BTreeMap, ops::RangeInclusive};

use super::{Change, RouteKey, State};
use crate::nexthop::Nexthop;

/// Assigns numbers to nexthop objects, and turns routes with their nexthops into [`Change`]s.
#[derive(Clone, Debug)]
pub struct Numbers {
    range: RangeInclusive<u32>,
    next: u32,
    by_nexthop: BTreeMap<(u32, Nexthop), u32>,
    uses: BTreeMap<u32, Use>,
}

#[derive(Clone, Copy, Debug)]
struct Use {
    nexthop_of_table: (u32, Nexthop),
    routes: usize,
}

/// A route with its nexthop, or its removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteUpdate {
    pub key: RouteKey,
    /// The new nexthop; `None` removes the route.
    pub nexthop: Option<Nexthop>,
}

/// All numbers of the range are in use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("all nexthop numbers from {} to {} are in use; configure a larger range", .0.start(), .0.end())]
pub struct Exhausted(pub RangeInclusive<u32>);

impl Numbers {
    /// Numbers of `range`, some of which `state` uses already.
    pub fn new(range: RangeInclusive<u32>, state: &State) -> Self {
        let mut numbers = Self {
            next: *range.start(),
            range,
            by_nexthop: BTreeMap::new(),
            uses: BTreeMap::new(),
        };
        for (&table, content) in &state.tables {
            for id in content.routes.values() {
                let Some(&nexthop) = state.nexthops.get(id) else {
                    continue;
                };
                let nexthop_of_table = (table, nexthop);
                numbers.by_nexthop.insert(nexthop_of_table, *id);
                let fresh = Use {
                    nexthop_of_table,
                    routes: 0,
                };
                numbers.uses.entry(*id).or_insert(fresh).routes += 1;
            }
        }
        numbers
    }

    /// The changes that give routes their nexthops, in order, if `state` is the present state and all of them
    /// are carried out. A nexthop object is made before its first route and removed after its last.
    ///
    /// # Errors
    /// There are too few numbers; then nothing must be carried out, and nothing was recorded.
    pub fn changes(
        &mut self,
        state: &State,
        wanted: &[RouteUpdate],
    ) -> Result<Vec<Change>, Exhausted> {
        let before = self.clone();
        let result = self.all_changes(state, wanted);
        if result.is_err() {
            *self = before;
        }
        result
    }

    /// The changes that remove all routes of a table: one per nexthop object.
    pub fn clear(&mut self, table: u32) -> Vec<Change> {
        let of_table = self
            .uses
            .iter()
            .filter(|(_, u)| u.nexthop_of_table.0 == table);
        let ids: Vec<u32> = of_table.map(|(&id, _)| id).collect();
        for id in &ids {
            self.free(*id);
        }
        ids.into_iter().map(Change::RemoveNexthop).collect()
    }

    fn all_changes(
        &mut self,
        state: &State,
        wanted: &[RouteUpdate],
    ) -> Result<Vec<Change>, Exhausted> {
        let mut all = Vec::with_capacity(wanted.len());
        // The routes after the changes so far.
        let mut made: BTreeMap<RouteKey, Option<u32>> = BTreeMap::new();
        for RouteUpdate { key, nexthop } in wanted {
            let key = RouteKey {
                table: key.table,
                destination: key.destination.trunc(),
            };
            let present = || {
                let table = state.tables.get(&key.table)?;
                table.routes.get(&key.destination).copied()
            };
            let old = made.get(&key).copied().unwrap_or_else(present);
            let new = match nexthop {
                Some(nexthop) => Some(self.number((key.table, *nexthop), &mut all)?),
                None => None,
            };
            if old == new {
                continue;
            }
            made.insert(key, new);
            match new {
                Some(id) => {
                    all.push(Change::SetRoute(key, id));
                    if let Some(found) = self.uses.get_mut(&id) {
                        found.routes += 1;
                    }
                }
                None => all.push(Change::RemoveRoute(key)),
            }
            if let Some(id) = old {
                self.release(id, &mut all);
            }
        }
        Ok(all)
    }

    /// The number of a nexthop, a new one if it has none.
    fn number(
        &mut self,
        nexthop_of_table: (u32, Nexthop),
        all: &mut Vec<Change>,
    ) -> Result<u32, Exhausted> {
        if let Some(&id) = self.by_nexthop.get(&nexthop_of_table) {
            return Ok(id);
        }
        let (from, to) = (*self.range.start(), *self.range.end());
        let free = (self.next..=to)
            .chain(from..self.next)
            .find(|id| !self.uses.contains_key(id));
        let id = free.ok_or_else(|| Exhausted(self.range.clone()))?;
        self.next = if id == to { from } else { id + 1 };
        self.by_nexthop.insert(nexthop_of_table, id);
        self.uses.insert(
            id,
            Use {
                nexthop_of_table,
                routes: 0,
            },
        );
        all.push(Change::SetNexthop(id, nexthop_of_table.1));
        Ok(id)
    }

    fn release(&mut self, id: u32, all: &mut Vec<Change>) {
        let Some(found) = self.uses.get_mut(&id) else {
            return;
        };
        found.routes = found.routes.saturating_sub(1);
        if found.routes == 0 {
            self.free(id);
            all.push(Change::RemoveNexthop(id));
        }
    }

    fn free(&mut self, id: u32) {
        if let Some(found) = self.uses.remove(&id) {
            self.by_nexthop.remove(&found.nexthop_of_table);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epe::state::Effect;

    fn gateway(number: u32) -> Nexthop {
        Nexthop::Gateway {
            address: format!("fd00:a::{number:x}").parse().unwrap(),
            interface: 3,
        }
    }

    fn wanted(table: u32, net: u32, nexthop: Option<u32>) -> RouteUpdate {
        let destination = format!("fd00:{net:x}::/32").parse().unwrap();
        RouteUpdate {
            key: RouteKey { table, destination },
            nexthop: nexthop.map(gateway),
        }
    }

    fn carry_out(state: &mut State, changes: &[Change]) {
        for change in changes {
            let effect = state.carry_out(change);
            assert!(
                !matches!(effect, Effect::Nothing | Effect::NoNexthop),
                "{change}"
            );
        }
    }

    #[test]
    fn nexthop_objects_live_from_the_first_route_to_the_last() {
        let mut state = State::default();
        let mut numbers = Numbers::new(10..=12, &state);
        let all = [
            wanted(1, 1, Some(1)),
            wanted(1, 2, Some(1)),
            wanted(2, 1, Some(1)),
            wanted(1, 1, Some(2)),
            wanted(1, 1, Some(2)),
        ];
        let changes = numbers.changes(&state, &all).unwrap();
        carry_out(&mut state, &changes);
        assert_eq!(changes.len(), 7, "three objects, four routes: {changes:?}");
        // All three numbers are in use; a failed assignment leaves no trace.
        let error = numbers
            .changes(&state, &[wanted(2, 7, Some(9))])
            .unwrap_err();
        assert!(error.to_string().contains("10 to 12"), "{error}");
        let back = [wanted(1, 2, None), wanted(1, 2, None)];
        let changes = numbers.changes(&state, &back).unwrap();
        carry_out(&mut state, &changes);
        assert_eq!(changes[1..], [Change::RemoveNexthop(10)]);
        // The state of an earlier run gives the same numbers.
        let again = Numbers::new(10..=12, &state).changes(&state, &[wanted(2, 3, Some(1))]);
        assert_eq!(again.unwrap().len(), 1);
        let changes = numbers.clear(1);
        carry_out(&mut state, &changes);
        assert_eq!(
            (changes.len(), state.routes(), state.nexthops.len()),
            (1, 1, 1)
        );
    }

    #[test]
    fn objects_are_those_that_routes_lead_to_whatever_happened() {
        let mut random: u64 = 1;
        let mut roll = |below: u64| {
            // Knuth's linear congruential generator (MMIX).
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((random >> 33) % below) as u32
        };
        let mut state = State::default();
        let mut numbers = Numbers::new(1..=100, &state);
        let mut expected = BTreeMap::new();
        for _ in 0..500 {
            let mut batch = Vec::new();
            for _ in 0..roll(10) {
                let nexthop = Some(1 + roll(4)).filter(|&number| number < 4);
                let one = wanted(1 + roll(3), roll(6), nexthop);
                expected.insert(one.key, one.nexthop);
                batch.push(one);
            }
            let changes = numbers.changes(&state, &batch).unwrap();
            carry_out(&mut state, &changes);
            if roll(20) == 0 {
                let table = 1 + roll(3);
                expected.retain(|key, _| key.table != table);
                carry_out(&mut state, &numbers.clear(table));
            }
            let mut nexthops_of_tables = std::collections::BTreeSet::new();
            for (key, nexthop) in &expected {
                let table = state.tables.get(&key.table);
                let id = table.and_then(|t| t.routes.get(&key.destination));
                assert_eq!(id.map(|id| state.nexthops[id]), *nexthop, "{key}");
                nexthops_of_tables.extend(nexthop.map(|nexthop| (key.table, nexthop)));
            }
            assert_eq!(state.nexthops.len(), nexthops_of_tables.len());
        }
    }
}
