//! An assignment that changes one application at a time, with the cost of every path.

use super::{
    Meter,
    loads::{Cost, Loads},
};

#[derive(Clone, Debug)]
pub(super) struct Assignment<'a> {
    loads: &'a Loads,
    /// `None`: not placed yet.
    places: Vec<Option<usize>>,
    paths: Vec<PathLoad>,
}

#[derive(Clone, Debug, Default)]
struct PathLoad {
    members: Vec<usize>,
    /// In bit/s.
    load: u64,
    cost: Cost,
}

impl<'a> Assignment<'a> {
    pub(super) fn empty(loads: &'a Loads) -> Self {
        Self {
            loads,
            places: vec![None; loads.apps()],
            paths: vec![PathLoad::default(); loads.paths()],
        }
    }

    pub(super) fn of(loads: &'a Loads, assignment: &[usize], meter: &mut Meter) -> Self {
        let mut state = Self::empty(loads);
        for (app, &path) in assignment.iter().enumerate() {
            state.put(app, path, meter);
        }
        state
    }

    pub(super) fn loads(&self) -> &'a Loads {
        self.loads
    }

    /// The path of a placed application.
    pub(super) fn place(&self, app: usize) -> Option<usize> {
        self.places[app]
    }

    /// The paths of all applications; all must be placed.
    pub(super) fn assignment(&self) -> Vec<usize> {
        self.places
            .iter()
            .map(|place| place.expect("every application is placed"))
            .collect()
    }

    pub(super) fn members(&self, path: usize) -> &[usize] {
        &self.paths[path].members
    }

    /// In bit/s.
    pub(super) fn load(&self, path: usize) -> u64 {
        self.paths[path].load
    }

    pub(super) fn cost(&self, path: usize) -> Cost {
        self.paths[path].cost
    }

    pub(super) fn total(&self) -> Cost {
        self.paths
            .iter()
            .fold(Cost::default(), |sum, path| sum + path.cost)
    }

    /// What `path` would cost without `out` and with `into`.
    pub(super) fn cost_after(
        &self,
        path: usize,
        out: Option<usize>,
        into: Option<usize>,
        meter: &mut Meter,
    ) -> Cost {
        let state = &self.paths[path];
        let rate = |app: Option<usize>| app.map_or(0, |app| self.loads.rate(app));
        let load = state.load - rate(out) + rate(into);
        meter.spend(state.members.len() as u64 + 1);
        state
            .members
            .iter()
            .copied()
            .filter(|&member| Some(member) != out)
            .chain(into)
            .fold(Cost::default(), |sum, member| {
                sum + self.loads.cost(path, member, load)
            })
    }

    /// Places `app`, which must not be placed, on `path`.
    pub(super) fn put(&mut self, app: usize, path: usize, meter: &mut Meter) {
        let cost = self.cost_after(path, None, Some(app), meter);
        self.put_at(app, path, cost);
    }

    /// As [`put`](Self::put), where the path's cost with it is already known.
    pub(super) fn put_at(&mut self, app: usize, path: usize, cost: Cost) {
        debug_assert_eq!(self.places[app], None);
        let state = &mut self.paths[path];
        state.members.push(app);
        state.load += self.loads.rate(app);
        state.cost = cost;
        self.places[app] = Some(path);
    }

    /// Takes `app`, which must be placed, from its path, whose cost without it is known.
    pub(super) fn take_at(&mut self, app: usize, cost: Cost) {
        let path = self.places[app].take().expect("the application is placed");
        let state = &mut self.paths[path];
        let index = state.members.iter().rposition(|&member| member == app);
        state
            .members
            .swap_remove(index.expect("a placed application is a member of its path"));
        state.load -= self.loads.rate(app);
        state.cost = cost;
    }
}
