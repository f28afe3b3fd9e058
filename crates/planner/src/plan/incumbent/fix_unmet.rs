//! Unmet latency targets made met by few moves.
//!
//! A path with unmet members is relieved: of its members, those whose leaving makes most latency targets
//! met go first, each to where it harms least. Where no single move makes a latency target met, several of
//! the heaviest go together, and stay gone only if that meets more. Who is still unmet may take
//! the place of one that is well served elsewhere.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::{RevisionBuilder, table::Tally};

/// The applications that leave a path together at most, to make a latency target met.
const TOGETHER_MAX: usize = 16;

/// An unmet application that looks for a place on another path.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    app: usize,
    /// Where it is.
    from: usize,
    /// Where it would go.
    to: usize,
}

/// An application that makes room for an [`Arrival`].
#[derive(Clone, Copy, Debug)]
struct Displacement {
    arrival: Arrival,
    displaced: usize,
    /// Where the displaced application goes.
    backup: usize,
}

impl RevisionBuilder<'_> {
    pub(super) fn repair(&mut self) {
        // Where the last one was spent, not to spend this one on the same paths.
        let mut first = self.table.next_path_to_repair.take();
        loop {
            let mut paths: Vec<usize> = (0..self.table.paths.len())
                .filter(|&path| self.unmet_on(path) > 0)
                .collect();
            paths.sort_by_key(|&path| {
                let id = self.table.paths[path].id;
                (first.is_some_and(|first| id < first), id)
            });
            first = None;
            let mut repaired = false;
            for path in paths {
                if self.is_spent() {
                    self.table.next_path_to_repair = Some(self.table.paths[path].id);
                    return;
                }
                repaired |= self.relieve(path) || self.shed(path) || self.displace(path);
            }
            if !repaired || self.is_spent() {
                return;
            }
        }
    }

    fn unmet_on(&self, path: usize) -> usize {
        self.table.paths[path].unmet_count
    }

    /// Moves single members away as long as each makes latency targets met; whether any moved.
    fn relieve(&mut self, path: usize) -> bool {
        let mut relieved = false;
        while self.unmet_on(path) > 0 && !self.is_spent() {
            self.work += self.table.paths[path].members.len() as u64;
            let mut leaving: Vec<(i64, u64, usize)> = Vec::new();
            for app in self.relieving(path) {
                let relief = self.relief(app, path);
                leaving.push((relief, self.table.apps[app].rate, app));
            }
            let apps = &self.table.apps;
            // The most relief first, then the heaviest, so that few need to go.
            leaving.sort_by_key(|&(relief, rate, app)| (Reverse((relief, rate)), apps[app].id));
            let mut moved = false;
            for (_, _, app) in leaving {
                if self.is_spent() {
                    break;
                }
                let relief = self.relief(app, path);
                if relief > 0
                    && let Some((to, _)) = self.least_harm(app, relief as usize - 1)
                {
                    self.shift(app, to);
                    moved = true;
                }
            }
            if !moved {
                break;
            }
            relieved = true;
        }
        relieved
    }

    /// The members whose leaving makes latency targets met: those that are unmet, and those so heavy that
    /// without them another is met.
    fn relieving(&self, path: usize) -> Vec<usize> {
        let target = &self.table.paths[path];
        let enough = target.load - target.limit_of(target.unmet_count);
        let members = target.members.iter().zip(&target.rates);
        let heavy = members.filter(|&(_, &rate)| rate > enough as f64);
        let heavy = heavy.map(|(&app, _)| app);
        let light = |app: &usize| self.table.apps[*app].rate <= enough;
        heavy.chain(target.unmet().filter(light)).collect()
    }

    /// How many latency targets are unmet less on its path when `app` leaves it, its own included.
    fn relief(&self, app: usize, path: usize) -> i64 {
        let own_limit = self.table.load_limit.at(app, path);
        let path = &self.table.paths[path];
        let load = path.load - self.table.apps[app].rate;
        let own = i64::from(own_limit <= load);
        path.unmet_count as i64 - (path.unmet_at(load) as i64 - own)
    }

    /// Moves several members away together, if that makes latency targets met; whether it did.
    fn shed(&mut self, path: usize) -> bool {
        if self.unmet_on(path) == 0 || self.is_spent() {
            return false;
        }
        let before = self.unmet_on(path) as i64;
        let apps = &self.table.apps;
        let members = self.table.paths[path].members.iter();
        let by_weight = members.map(|&app| (apps[app].rate, Reverse(apps[app].id), app));
        // Few of them are asked for.
        let mut members: BinaryHeap<_> = by_weight.collect();
        let mut gone: Vec<usize> = Vec::new();
        let mut harm = 0;
        let mut best = (0, 0);
        while let Some((_, _, app)) = members.pop() {
            if gone.len() == TOGETHER_MAX || self.is_spent() {
                break;
            }
            // Who is unmet either way does no harm to itself.
            let unmet_max = usize::from(!self.table.is_met(app));
            let Some((to, harmed)) = self.least_harm(app, unmet_max) else {
                continue;
            };
            gone.push(app);
            self.table.shift(app, to);
            harm += harmed.unmet;
            let unmet = self.unmet_on(path) as i64;
            let gain = before - unmet - harm;
            if gain > best.0 {
                best = (gain, gone.len());
            }
            if unmet == 0 {
                break;
            }
        }
        let targets: Vec<Option<usize>> =
            gone.iter().map(|&app| self.table.apps[app].place).collect();
        for &app in gone.iter().rev() {
            self.table.shift(app, path);
        }
        for (&app, target) in gone.iter().zip(targets).take(best.1) {
            if let Some(to) = target {
                self.shift(app, to);
            }
        }
        best.1 > 0
    }

    /// Lets an unmet member take the place of an application that is served as well elsewhere; whether
    /// any could.
    fn displace(&mut self, path: usize) -> bool {
        let mut unmet: Vec<usize> = self.table.paths[path].unmet().collect();
        let apps = &self.table.apps;
        unmet.sort_by_key(|&app| (apps[app].rate, apps[app].id));
        for app in unmet {
            if self.is_spent() {
                return false;
            }
            if let Some(displacement) = self.find_displacement(app, path) {
                self.shift(displacement.displaced, displacement.backup);
                self.shift(app, displacement.arrival.to);
                return true;
            }
        }
        false
    }

    /// The application whose place `app`, which is on `path`, could take so that more latency targets are
    /// met.
    fn find_displacement(&mut self, app: usize, path: usize) -> Option<Displacement> {
        let relief = self.relief(app, path);
        let rate = self.table.apps[app].rate;
        for there in 0..self.table.paths.len() {
            let target = &self.table.paths[there];
            let own_limit = self.table.load_limit.at(app, there);
            // Alone with those already unmet it must be met there.
            if there == path || !self.table.may.at(app, there) || own_limit <= rate {
                continue;
            }
            let before = target.unmet_count as i64;
            self.work += 2 * target.members.len() as u64;
            // With a load of so much it is unmet itself, or as many others as it would relieve.
            let too_many = target.unmet_count + relief.max(0) as usize + 1;
            let load_max = own_limit.min(target.limit_of(too_many));
            let light = (target.load + rate).checked_sub(load_max);
            let light = light.map_or(-1.0, |light| light as f64);
            for position in 0..target.members.len() {
                let target = &self.table.paths[there];
                if target.rates[position] <= light {
                    continue;
                }
                let other = target.members[position];
                let load = target.load + rate - self.table.apps[other].rate;
                let own = i64::from(self.table.load_limit.at(other, there) <= load);
                let after = target.unmet_at(load) as i64 - own;
                if after - before >= relief {
                    continue;
                }
                let unmet_max = (relief - (after - before) - 1) as usize;
                let arrival = Arrival {
                    app,
                    from: path,
                    to: there,
                };
                if let Some(backup) = self.backup(other, arrival, unmet_max) {
                    return Some(Displacement {
                        arrival,
                        displaced: other,
                        backup,
                    });
                }
            }
        }
        None
    }

    /// The path where `other` harms least if it makes room for `arrival`, and at most `unmet_max`
    /// latency targets are made unmet where it goes, its own included.
    fn backup(&mut self, other: usize, arrival: Arrival, unmet_max: usize) -> Option<usize> {
        let Arrival { app, from, to } = arrival;
        self.work += 3 * self.table.paths.len() as u64;
        let mut best: Option<(Tally, usize)> = None;
        let mut unmet_max = unmet_max;
        for (elsewhere, may) in self.table.may.row(other).iter().enumerate() {
            if elsewhere == to || !may {
                continue;
            }
            let harm = match elsewhere == from {
                true => Some(self.harm_in_place_of(app, other, from)),
                false => self.harm(other, elsewhere, unmet_max),
            };
            if let Some(harm) = harm.filter(|harm| harm.unmet <= unmet_max as i64)
                && best.is_none_or(|(least, _)| harm.compared(&least).is_lt())
            {
                best = Some((harm, elsewhere));
                unmet_max = harm.unmet as usize;
            }
        }
        best.map(|(_, elsewhere)| elsewhere)
    }

    /// What `other` would do on `path` once `app` has left it; the counts only.
    fn harm_in_place_of(&self, app: usize, other: usize, path: usize) -> Tally {
        let target = &self.table.paths[path];
        let [own_limit, other_limit] = [app, other].map(|app| self.table.load_limit.at(app, path));
        let load = target.load - self.table.apps[app].rate;
        let with = load + self.table.apps[other].rate;
        let more = target.unmet_at(with) as i64 - i64::from(own_limit <= with);
        let before = target.unmet_at(load) as i64 - i64::from(own_limit <= load);
        Tally {
            unmet: more - before + i64::from(other_limit <= with),
            ..Tally::default()
        }
    }
}
