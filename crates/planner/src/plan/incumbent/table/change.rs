//! What a path's members cost, and how that changes when one of them leaves or another one joins.

use super::{EXACT_MAX, Table, Tally};

impl Table {
    /// Sums up what the members of a path cost, for [`change`](Self::change) to know if it needs
    /// to.
    pub(in crate::plan::incumbent) fn sum_up(&mut self, path: usize) {
        let target = &self.paths[path];
        let is_calm = target.unmet_count == 0 && target.members.len() > EXACT_MAX;
        if target.tally.is_none() && !is_calm {
            self.paths[path].tally = Some(self.tally(path, None, None));
        }
    }

    /// What the members of a path cost without `out` and with `into`.
    fn tally(&self, path: usize, out: Option<usize>, into: Option<usize>) -> Tally {
        let (unmet, overloaded) = self.counts(path, out, into);
        let mut tally = Tally {
            unmet,
            overloaded,
            ..Tally::default()
        };
        if overloaded == 0 && self.count_with(path, out, into) > 0 {
            tally.lateness = self.lateness(path, out, into);
            tally.delay = self.summed_delay(path, out, into);
        }
        tally
    }

    /// The whole load of a path without `out` and with `into`.
    fn load_with(&self, path: usize, out: Option<usize>, into: Option<usize>) -> u64 {
        let rate = |app: Option<usize>| app.map_or(0, |app| self.apps[app].rate);
        self.paths[path].load - rate(out) + rate(into)
    }

    fn count_with(&self, path: usize, out: Option<usize>, into: Option<usize>) -> i64 {
        let count = self.paths[path].members.len() as i64;
        count + i64::from(into.is_some()) - i64::from(out.is_some())
    }

    /// How many are unmet, and how many of these overloaded.
    fn counts(&self, index: usize, out: Option<usize>, into: Option<usize>) -> (i64, i64) {
        let path = &self.paths[index];
        let load = self.load_with(index, out, into);
        if load >= path.bandwidth {
            let count = self.count_with(index, out, into);
            return (count, count);
        }
        let is_unmet = |app: usize| i64::from(self.load_limit.at(app, index) <= load);
        let mut unmet = path.unmet_at(load) as i64;
        unmet += into.map_or(0, is_unmet);
        unmet -= out.map_or(0, is_unmet);
        (unmet, 0)
    }

    /// The summed lateness, of a path that is not overloaded.
    fn lateness(&self, index: usize, out: Option<usize>, into: Option<usize>) -> f64 {
        let path = &self.paths[index];
        let load = self.load_with(index, out, into);
        let left = (path.bandwidth - load) as f64;
        let lateness = |app: usize| {
            let app = &self.apps[app];
            path.delay + app.length / (left + app.rate as f64) - app.latency_target
        };
        let late = path.unmet_at(load);
        let mut unmet = late as i64;
        let mut sum: f64 = path.limits[..late]
            .iter()
            .map(|&(_, app)| lateness(app))
            .sum();
        for (app, sign) in [(out, -1), (into, 1)] {
            if let Some(app) = app
                && self.load_limit.at(app, index) <= load
            {
                unmet += sign;
                sum += sign as f64 * lateness(app);
            }
        }
        if unmet == 0 { 0.0 } else { sum }
    }

    /// The summed delay, of a path that is not overloaded.
    fn summed_delay(&self, path: usize, out: Option<usize>, into: Option<usize>) -> f64 {
        let left = (self.paths[path].bandwidth - self.load_with(path, out, into)) as f64;
        let count = self.count_with(path, out, into);
        let path = &self.paths[path];
        let mut delay = path.sum(|length, rate| length / (left + rate));
        for (app, sign) in [(out, -1.0), (into, 1.0)] {
            if let Some(app) = app {
                let entry = &self.apps[app];
                delay += sign * entry.length / (left + entry.rate as f64);
            }
        }
        delay + count as f64 * path.delay
    }

    /// How many more are unmet, and overloaded, on a path without `out`, which is there, or with
    /// `into`, which is not.
    pub(in crate::plan::incumbent) fn change_of_counts(
        &self,
        path: usize,
        out: Option<usize>,
        into: Option<usize>,
    ) -> (i64, i64) {
        let [before, after] = [self.counts(path, None, None), self.counts(path, out, into)];
        (after.0 - before.0, after.1 - before.1)
    }

    /// How much longer the delays are together.
    pub(in crate::plan::incumbent) fn change_of_delay(
        &mut self,
        path: usize,
        out: Option<usize>,
        into: Option<usize>,
    ) -> f64 {
        if let Some(change) = self.uncongested_change_of_delay(path, out, into) {
            return change;
        }
        self.sum_up(path);
        self.change(path, out, into).delay
    }

    /// How much later all are together.
    pub(in crate::plan::incumbent) fn change_of_lateness(
        &self,
        path: usize,
        out: Option<usize>,
        into: Option<usize>,
    ) -> f64 {
        if let Some(change) = self.uncongested_change(path, out, into) {
            return change.lateness;
        }
        let lateness = |out: Option<usize>, into: Option<usize>| match self.counts(path, out, into)
        {
            (_, 0) => self.lateness(path, out, into),
            (_, _) => 0.0,
        };
        let before = match self.paths[path].tally {
            Some(tally) => tally.lateness,
            None => lateness(None, None),
        };
        lateness(out, into) - before
    }

    /// How much more a path costs without `out`, which is there, or with `into`, which is not.
    pub(in crate::plan::incumbent) fn change(
        &self,
        path: usize,
        out: Option<usize>,
        into: Option<usize>,
    ) -> Tally {
        self.uncongested_change(path, out, into).unwrap_or_else(|| {
            let before = self.paths[path].tally;
            let before = before.unwrap_or_else(|| self.tally(path, None, None));
            self.tally(path, out, into).minus(before)
        })
    }

    /// The same where all others are met either way, and their own rates are little beside what is
    /// left over; `None` elsewhere.
    pub(in crate::plan::incumbent) fn uncongested_change(
        &self,
        path: usize,
        out: Option<usize>,
        into: Option<usize>,
    ) -> Option<Tally> {
        let target = &self.paths[path];
        let load = target.load + into.map_or(0, |app| self.apps[app].rate);
        if target.unmet_at(load) > 0 {
            return None;
        }
        let delay = self.uncongested_change_of_delay(path, out, into)?;
        let mut change = Tally {
            delay,
            ..Tally::default()
        };
        // All members are met here, so the one that leaves is too.
        if let Some(app) = into.filter(|&app| self.load_limit.at(app, path) <= load) {
            change.unmet = 1;
            change.lateness = self.delay_at(app, path, load) - self.apps[app].latency_target;
        }
        Some(change)
    }

    /// How much longer the delays are together, where the others' own rates are little beside what
    /// is left over; `None` elsewhere.
    fn uncongested_change_of_delay(
        &self,
        path: usize,
        out: Option<usize>,
        into: Option<usize>,
    ) -> Option<f64> {
        let target = &self.paths[path];
        let (app, joins) = match (out, into) {
            (Some(app), None) => (app, false),
            (None, Some(app)) => (app, true),
            _ => return None,
        };
        let rate = self.apps[app].rate;
        let before = target.load;
        let after = if joins { before + rate } else { before - rate };
        let load = before.max(after);
        let left = target.bandwidth.saturating_sub(load);
        if target.members.len() <= EXACT_MAX || left == 0 || rate > left / 16 {
            return None;
        }
        let [left_before, left_after] =
            [before, after].map(|load| (target.bandwidth - load) as f64);
        let own = self.delay_at(app, path, load);
        let crowding = match joins {
            true => target.crowding,
            false => target.crowding - self.apps[app].steepness(target, before),
        };
        let others = crowding * rate as f64 * left_before / left_after;
        Some(if joins { own + others } else { -own - others })
    }
}
