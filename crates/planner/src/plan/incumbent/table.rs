//! Paths, applications and who is where, arranged so that what a move would do is known quickly.
//!
//! Under eq. 3 an application is met on a path exactly while the path's whole load stays below a
//! number known in advance. Every path keeps these numbers of its members sorted, so how many a
//! further load would make unmet is a binary search. Counts are exact; delays and lateness are
//! floating point here, and exact where they leave ([`Table::score`]).

mod change;

use std::time::Duration;

use super::{Allowed, AppId, PathId, grid::Grid};
use crate::{
    delay::{
        AppSpec, Delay, DelayTerms, Equation3, OverloadPolicy, PathSpec, Prediction, Tolerance,
    },
    plan::Score,
};
use keiro_units::Bandwidth;

/// Rates from here on (281 Tbit/s) overload every path alike, so that no sum of them overflows.
pub(super) const RATE_MAX: u64 = 1 << 48;

/// Up to so many members, a path's costs are summed up for every move that is looked at.
const EXACT_MAX: usize = 64;

/// Sums run in so many lanes, for the processor to take several terms at once.
const LANES: usize = 4;

pub(super) const EQUATION: Equation3 = Equation3 {
    saturation: OverloadPolicy::Refused,
};

#[derive(Clone, Debug)]
pub(super) struct Table {
    pub(super) tolerance: Tolerance,
    pub(super) paths: Vec<Path>,
    pub(super) apps: Vec<App>,
    /// By application.
    pub(super) requirements: Vec<AppRequirements>,
    /// By application and path: it is met there while the whole load is below this.
    pub(super) load_limit: Grid<u64>,
    /// By application and path: whether it may be there.
    pub(super) may: Grid<bool>,
    /// Where to go on looking for gains: at the first application unless the work ended before.
    pub(super) next_app_to_examine: usize,
    /// The path that repair begins with, where it was spent before it had come to all.
    pub(super) next_path_to_repair: Option<PathId>,
}

/// A path. Applications are known by their index in [`Table::apps`].
#[derive(Clone, Debug)]
pub(super) struct Path {
    pub(super) id: PathId,
    pub(super) spec: PathSpec,
    /// In bit/s.
    pub(super) bandwidth: u64,
    /// In nanoseconds.
    pub(super) delay: f64,
    /// In bit/s.
    pub(super) load: u64,
    pub(super) members: Vec<usize>,
    /// Of the members: lengths in 10^-9 bit, rates in bit/s.
    lengths: Vec<f64>,
    pub(super) rates: Vec<f64>,
    /// The members' [`Table::load_limit`], ascending.
    limits: Vec<(u64, usize)>,
    /// How many members are unmet.
    pub(super) unmet_count: usize,
    /// With loads from the first up to below the second as many are unmet.
    unmet_span: (u64, u64),
    /// What a further bit/s costs the members together, in ns per bit/s; as of `crowding_load`.
    pub(super) crowding: f64,
    crowding_load: u64,
    /// What was left over when it was last looked at for gains; `None`: never, or it is another
    /// path since.
    left_when_examined: Option<u64>,
    score: Option<Score>,
    /// What the members cost, if that was asked since they or the path changed.
    tally: Option<Tally>,
}

#[derive(Clone, Debug)]
pub(super) struct App {
    pub(super) id: AppId,
    /// In bit/s.
    pub(super) rate: u64,
    /// In 10^-9 bit: over bit/s it is nanoseconds.
    pub(super) length: f64,
    /// The same, if it fits.
    length_exact: Option<u64>,
    /// The loosened latency target in nanoseconds; infinite without one.
    pub(super) latency_target: f64,
    /// Whether it was not yet looked at for gains.
    pub(super) fresh: bool,
    pub(super) place: Option<usize>,
    /// Its index among the members of its path.
    position: usize,
}

/// What the caller asked for an application. Rarely read, hence apart from [`App`].
#[derive(Clone, Debug)]
pub(super) struct AppRequirements {
    pub(super) spec: AppSpec,
    pub(super) allowed: Allowed,
    /// The longest delay that is met, in nanoseconds, if it fits; the largest without a latency target.
    limit_nanos: Option<u64>,
}

/// What a path's members cost together; which of delay and lateness counts is the aim's to say.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Tally {
    pub(super) unmet: i64,
    pub(super) overloaded: i64,
    /// In nanoseconds.
    pub(super) lateness: f64,
    /// In nanoseconds.
    pub(super) delay: f64,
}

impl Tally {
    pub(super) fn plus(self, rhs: Self) -> Self {
        Self {
            unmet: self.unmet + rhs.unmet,
            overloaded: self.overloaded + rhs.overloaded,
            lateness: self.lateness + rhs.lateness,
            delay: self.delay + rhs.delay,
        }
    }

    pub(super) fn minus(self, rhs: Self) -> Self {
        Self {
            unmet: self.unmet - rhs.unmet,
            overloaded: self.overloaded - rhs.overloaded,
            lateness: self.lateness - rhs.lateness,
            delay: self.delay - rhs.delay,
        }
    }
}

impl Table {
    pub(super) fn new(tolerance: Tolerance) -> Self {
        Self {
            tolerance,
            paths: Vec::new(),
            apps: Vec::new(),
            requirements: Vec::new(),
            load_limit: Grid::new(),
            may: Grid::new(),
            next_app_to_examine: 0,
            next_path_to_repair: None,
        }
    }

    pub(super) fn add_path(&mut self, id: PathId, spec: PathSpec) {
        let index = self.paths.len();
        self.load_limit.push_column();
        self.may.push_column();
        let may = self
            .requirements
            .iter()
            .map(|requirements| requirements.allowed.contains(id));
        self.may.set_column(index, may);
        self.paths.push(Path {
            id,
            spec,
            bandwidth: spec.bandwidth.as_bits_per_second(),
            delay: spec.delay.as_nanos() as f64,
            load: 0,
            members: Vec::new(),
            lengths: Vec::new(),
            rates: Vec::new(),
            limits: Vec::new(),
            unmet_count: 0,
            unmet_span: (0, u64::MAX),
            crowding: 0.0,
            crowding_load: 0,
            left_when_examined: None,
            score: None,
            tally: None,
        });
        self.renew_path(index, spec);
    }

    /// Gives a path another specification.
    pub(super) fn renew_path(&mut self, index: usize, spec: PathSpec) {
        let tolerance = self.tolerance;
        let apps = &self.apps;
        let path = &mut self.paths[index];
        path.spec = spec;
        path.bandwidth = spec.bandwidth.as_bits_per_second();
        path.delay = spec.delay.as_nanos() as f64;
        let column = self.requirements.iter().zip(apps);
        let column =
            column.map(|(requirements, app)| load_limit(&spec, requirements, app, tolerance));
        self.load_limit.set_column(index, column);
        for limit in &mut path.limits {
            limit.0 = self.load_limit.at(limit.1, index);
        }
        path.limits.sort_unstable();
        path.count_unmet();
        path.measure_crowding();
        path.left_when_examined = None;
    }

    /// Takes a path away; its members are nowhere then.
    pub(super) fn remove_path(&mut self, index: usize) {
        for app in std::mem::take(&mut self.paths[index].members) {
            self.apps[app].place = None;
        }
        self.paths.swap_remove(index);
        self.load_limit.swap_remove_column(index);
        self.may.swap_remove_column(index);
        if let Some(moved) = self.paths.get(index) {
            for &app in &moved.members {
                self.apps[app].place = Some(index);
            }
        }
    }

    pub(super) fn add_app(&mut self, id: AppId, spec: AppSpec, allowed: Allowed) {
        self.load_limit.push_row();
        self.may.push_row();
        self.apps.push(App::new(id, spec, self.tolerance));
        self.requirements
            .push(AppRequirements::new(spec, allowed, self.tolerance));
        self.fill_row(self.apps.len() - 1);
    }

    fn fill_row(&mut self, index: usize) {
        let (app, requirements, paths) =
            (&self.apps[index], &self.requirements[index], &self.paths);
        let limits = paths
            .iter()
            .map(|path| load_limit(&path.spec, requirements, app, self.tolerance));
        self.load_limit.set_row(index, limits);
        let may = paths
            .iter()
            .map(|path| requirements.allowed.contains(path.id));
        self.may.set_row(index, may);
    }

    /// Gives an application another specification; it stays where it is, if it may.
    pub(super) fn renew_app(&mut self, index: usize, spec: AppSpec, allowed: Allowed) {
        let place = self.take(index);
        self.apps[index] = App::new(self.apps[index].id, spec, self.tolerance);
        self.requirements[index] = AppRequirements::new(spec, allowed, self.tolerance);
        self.fill_row(index);
        if let Some(place) = place.filter(|&place| self.may.at(index, place)) {
            self.put(index, place);
        }
    }

    /// Takes an application away; the last one gets its index.
    pub(super) fn remove_app(&mut self, index: usize) {
        self.take(index);
        let last = self.apps.len() - 1;
        let place = (index != last).then(|| self.take(last)).flatten();
        self.apps.swap_remove(index);
        self.requirements.swap_remove(index);
        self.load_limit.swap_remove_row(index);
        self.may.swap_remove_row(index);
        if let Some(place) = place {
            self.put(index, place);
        }
    }

    /// Takes an application from its path.
    pub(super) fn take(&mut self, app: usize) -> Option<usize> {
        let place = self.apps[app].place.take()?;
        let position = self.apps[app].position;
        let (rate, path) = (self.apps[app].rate, &mut self.paths[place]);
        path.members.swap_remove(position);
        path.lengths.swap_remove(position);
        path.rates.swap_remove(position);
        let limit = path
            .limits
            .binary_search(&(self.load_limit.at(app, place), app));
        path.limits
            .remove(limit.expect("a member's limit is listed"));
        if let Some(&moved) = path.members.get(position) {
            self.apps[moved].position = position;
        }
        path.load -= rate;
        path.count_unmet();
        let own = self.apps[app].steepness(path, path.load + rate);
        path.follow_crowding(-own, path.load + rate);
        Some(place)
    }

    /// Puts an application that is nowhere on a path.
    pub(super) fn put(&mut self, app: usize, to: usize) {
        debug_assert_eq!(self.apps[app].place, None);
        let path = &mut self.paths[to];
        let entry = &mut self.apps[app];
        entry.place = Some(to);
        entry.position = path.members.len();
        path.members.push(app);
        path.lengths.push(entry.length);
        path.rates.push(entry.rate as f64);
        let limit = (self.load_limit.at(app, to), app);
        let index = path.limits.partition_point(|other| *other < limit);
        path.limits.insert(index, limit);
        path.load += entry.rate;
        path.count_unmet();
        let own = entry.steepness(path, path.load);
        path.follow_crowding(own, path.load - entry.rate);
    }

    pub(super) fn shift(&mut self, app: usize, to: usize) {
        self.take(app);
        self.put(app, to);
    }

    pub(super) fn is_met(&self, app: usize) -> bool {
        self.apps[app]
            .place
            .is_some_and(|place| self.paths[place].load < self.load_limit.at(app, place))
    }

    /// The delay of `app` in nanoseconds on `path` with the whole load `load`, its own included;
    /// infinite if overloaded.
    pub(super) fn delay_at(&self, app: usize, path: usize, load: u64) -> f64 {
        let (app, path) = (&self.apps[app], &self.paths[path]);
        if load >= path.bandwidth {
            return f64::INFINITY;
        }
        path.delay + app.length / (path.bandwidth - load + app.rate) as f64
    }

    /// The loosened latency target of `app` in nanoseconds; infinite without one.
    pub(super) fn latency_target(&self, app: usize) -> f64 {
        self.apps[app].latency_target
    }

    /// The exact score; applications that are nowhere count as overloaded.
    pub(super) fn score(&mut self) -> Score {
        let mut score = Score::default();
        for index in 0..self.paths.len() {
            let path = match self.paths[index].score {
                Some(path) => path,
                None => self.path_score(index),
            };
            self.paths[index].score = Some(path);
            score = score.saturating_add(path);
        }
        let nowhere = self.unplaced_count();
        score.unmet += nowhere;
        score.overloaded += nowhere;
        score
    }

    pub(super) fn unplaced_count(&self) -> usize {
        let placed: usize = self.paths.iter().map(|path| path.members.len()).sum();
        self.apps.len() - placed
    }

    /// The applications that are nowhere, ascending.
    pub(super) fn unplaced(&self) -> Vec<usize> {
        if self.unplaced_count() == 0 {
            return Vec::new();
        }
        let apps = 0..self.apps.len();
        apps.filter(|&app| self.apps[app].place.is_none()).collect()
    }

    fn path_score(&self, index: usize) -> Score {
        let path = &self.paths[index];
        if path.load >= path.bandwidth {
            return Score {
                unmet: path.members.len(),
                overloaded: path.members.len(),
                ..Score::default()
            };
        }
        let mut score = Score {
            unmet: path.unmet_at(path.load),
            ..Score::default()
        };
        for &(_, app) in &path.limits[..score.unmet] {
            let (app, requirements) = (&self.apps[app], &self.requirements[app]);
            let delay = path.finite_delay(app, requirements);
            if let (Some(delay), Some(latency_target)) = (delay, requirements.spec.latency_target) {
                let late = delay.saturating_sub(self.tolerance.loosen(latency_target));
                score.lateness = score.lateness.saturating_add(late);
            }
        }
        let members = path.members.iter();
        let delays =
            members.filter_map(|&app| path.finite_delay(&self.apps[app], &self.requirements[app]));
        score.delay = delays.fold(Duration::ZERO, Duration::saturating_add);
        score
    }

    /// What is predicted for `app` on `path`, were it there and the others where they are.
    pub(super) fn prediction(&self, app: usize, path: usize) -> Prediction {
        let (entry, target) = (&self.apps[app], &self.paths[path]);
        let spec = &self.requirements[app].spec;
        let own = match entry.place == Some(path) {
            true => entry.rate,
            false => 0,
        };
        let others = Bandwidth::from_bits_per_second(target.load - own);
        let terms = DelayTerms {
            propagation: target.spec.delay,
            length: spec.length,
            bandwidth: target.spec.bandwidth,
            others,
            own: spec.rate(),
        };
        let prediction = EQUATION.predict(&target.spec, spec, others);
        debug_assert_eq!(prediction.terms, terms);
        prediction
    }
}

impl Path {
    /// How many members are unmet with the whole load `load`.
    pub(super) fn unmet_at(&self, load: u64) -> usize {
        match (self.unmet_span.0..self.unmet_span.1).contains(&load) {
            true => self.unmet_count,
            false => self
                .limits
                .partition_point(|&(load_limit, _)| load_limit <= load),
        }
    }

    /// After the load or the limits have changed.
    fn count_unmet(&mut self) {
        let load = self.load;
        let count = self
            .limits
            .partition_point(|&(load_limit, _)| load_limit <= load);
        self.unmet_count = count;
        self.unmet_span = (self.limit_of(count), self.limit_of(count + 1));
    }

    /// The load from which on at least so many members are unmet.
    pub(super) fn limit_of(&self, count: usize) -> u64 {
        match count.checked_sub(1) {
            None => 0,
            Some(index) => self.limits.get(index).map_or(u64::MAX, |limit| limit.0),
        }
    }

    /// Sums up something over the members' lengths and rates.
    fn sum(&self, value: impl Fn(f64, f64) -> f64) -> f64 {
        let lengths = self.lengths.chunks_exact(LANES);
        let rates = self.rates.chunks_exact(LANES);
        let rest = lengths.remainder().iter().zip(rates.remainder());
        let rest: f64 = rest.map(|(&length, &rate)| value(length, rate)).sum();
        let mut sums = [0.0; LANES];
        for (lengths, rates) in lengths.zip(rates) {
            for lane in 0..LANES {
                sums[lane] += value(lengths[lane], rates[lane]);
            }
        }
        sums.iter().sum::<f64>() + rest
    }

    /// The members that are unmet.
    pub(super) fn unmet(&self) -> impl Iterator<Item = usize> {
        self.limits[..self.unmet_count].iter().map(|&(_, app)| app)
    }

    /// The members that are met with a whole load of `low` and not with one of `high`.
    pub(super) fn unmet_between(&self, low: u64, high: u64) -> impl Iterator<Item = usize> {
        let between = self.unmet_at(low)..self.unmet_at(high).max(self.unmet_at(low));
        self.limits[between].iter().map(|&(_, app)| app)
    }

    /// The load from which on a further member would be unmet; `None` if there is none.
    pub(super) fn next_limit(&self) -> Option<u64> {
        let limit = self.limits.get(self.unmet_count);
        limit.map(|&(load_limit, _)| load_limit)
    }

    /// Whether noticeably more or less is left over than when it was last looked at: by so much
    /// that what one application gains or loses there has changed by a part of its delay.
    pub(super) fn is_dirty(&self) -> bool {
        let left = self.bandwidth.saturating_sub(self.load);
        self.left_when_examined
            .is_none_or(|seen| left.abs_diff(seen) > seen / 32)
    }

    pub(super) fn mark_examined(&mut self) {
        self.left_when_examined = Some(self.bandwidth.saturating_sub(self.load));
    }

    fn finite_delay(&self, app: &App, requirements: &AppRequirements) -> Option<Duration> {
        let left = self.bandwidth - self.load + app.rate;
        if let (Some(length), true) = (app.length_exact, app.rate < RATE_MAX) {
            let transfer = Duration::from_nanos(length.div_ceil(left));
            return Some(self.spec.delay.saturating_add(transfer));
        }
        // The load of others fits, for the whole load is below the bandwidth.
        let others = Bandwidth::from_bits_per_second(self.load - app.rate);
        match EQUATION
            .predict(&self.spec, &requirements.spec, others)
            .delay
        {
            Delay::Finite(delay) => Some(delay),
            Delay::Overloaded => None,
        }
    }

    /// After one member came (`own` above zero) or went and the load was `before`: measured when
    /// the load has changed by much of what is left, else as if the members' own rates were nothing
    /// beside that.
    fn follow_crowding(&mut self, own: f64, before: u64) {
        self.score = None;
        self.tally = None;
        let left = self.bandwidth.saturating_sub(self.load);
        if self.load.abs_diff(self.crowding_load) > left / 8 || self.members.len() <= EXACT_MAX {
            self.measure_crowding();
        } else {
            let left_before = self.bandwidth.saturating_sub(before) as f64;
            let factor = left_before / left as f64;
            self.crowding = (self.crowding * factor * factor + own).max(0.0);
        }
    }

    fn measure_crowding(&mut self) {
        self.score = None;
        self.tally = None;
        self.crowding_load = self.load;
        self.crowding = 0.0;
        if self.load < self.bandwidth {
            let left = (self.bandwidth - self.load) as f64;
            self.crowding = self.sum(|length, rate| length / ((left + rate) * (left + rate)));
        }
    }
}

impl App {
    fn new(id: AppId, spec: AppSpec, tolerance: Tolerance) -> Self {
        Self {
            id,
            rate: spec.rate().as_bits_per_second().min(RATE_MAX),
            length: spec.length.get() as f64 * 8e9,
            length_exact: spec.length.get().checked_mul(8_000_000_000),
            latency_target: spec.latency_target.map_or(f64::INFINITY, |latency_target| {
                tolerance.loosen(latency_target).as_nanos() as f64
            }),
            fresh: true,
            place: None,
            position: 0,
        }
    }

    /// How its delay grows with a path's load: ns per bit/s.
    fn steepness(&self, path: &Path, load: u64) -> f64 {
        let left = path.bandwidth.saturating_sub(load - self.rate) as f64;
        if left > 0.0 {
            self.length / (left * left)
        } else {
            0.0
        }
    }
}

impl AppRequirements {
    fn new(spec: AppSpec, allowed: Allowed, tolerance: Tolerance) -> Self {
        Self {
            spec,
            allowed,
            limit_nanos: match spec.latency_target {
                Some(latency_target) => nanos_of(tolerance.loosen(latency_target)),
                None => Some(u64::MAX),
            },
        }
    }
}

/// The whole load of a path below which an application is met there: the inverse of eq. 3, as
/// [`Equation3::others_max`], in 64 bits where these suffice.
fn load_limit(
    path: &PathSpec,
    requirements: &AppRequirements,
    app: &App,
    tolerance: Tolerance,
) -> u64 {
    let others = match (
        app.length_exact,
        requirements.limit_nanos,
        nanos_of(path.delay),
    ) {
        (Some(length), Some(limit), Some(delay)) => others_max(path, app, length, limit, delay),
        _ => {
            let latency_target = requirements
                .spec
                .latency_target
                .map(|latency_target| tolerance.loosen(latency_target));
            let limit = latency_target.unwrap_or(Duration::MAX);
            let others = EQUATION.others_max(path, &requirements.spec, limit);
            others.map(Bandwidth::as_bits_per_second)
        }
    };
    others.map_or(0, |others| others + app.rate + 1)
}

fn others_max(path: &PathSpec, app: &App, length: u64, limit: u64, delay: u64) -> Option<u64> {
    let bandwidth = path.bandwidth.as_bits_per_second();
    let needed = match (length, limit.checked_sub(delay)?) {
        (0, _) => 1,
        (_, 0) => return None,
        (length, transfer) => length.div_ceil(transfer),
    };
    let stable = bandwidth.checked_sub(1)?.checked_sub(app.rate)?;
    Some(bandwidth.checked_sub(needed)?.min(stable))
}

fn nanos_of(time: Duration) -> Option<u64> {
    u64::try_from(time.as_nanos()).ok()
}
