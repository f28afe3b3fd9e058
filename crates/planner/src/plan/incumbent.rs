//! The plan in force. Callers report changes of paths and applications, and get the few moves that follow from them.
//!
//! [`Incumbent`] holds paths, applications and their assignment. [`Incumbent::revise`] makes a
//! [`Revision`]:
//!
//! 1. applications without a path are placed, the heaviest first, where they do least harm;
//! 2. unmet latency targets are repaired, a path at a time: by moving the unmet application, or by
//!    moving others out of its way where nothing else helps;
//! 3. applications that gain enough move, with a frugal [`Aim`] only those without a target;
//! 4. moves that turn out not to have been needed are taken back.
//!
//! Delays are by eq. 3, and a path is overloaded as soon as its load reaches its bandwidth. The planner has no notion
//! of time or noise: [`Hysteresis`] says what a move must be worth, and measurements should be smoothed before they are
//! planned with.

mod fix_unmet;
mod from_scratch;
mod grid;
mod improve;
mod sensitivity;
mod table;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

pub use sensitivity::{Parameter, ParameterValue, PathOption, Threshold};
use table::{RATE_MAX, Table, Tally};

use super::{Order, Score};
use crate::delay::{AppSpec, PathSpec, Prediction, Tolerance};

/// Identifies a path in the planner; chosen by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId(pub u32);

/// Identifies an application in the planner; chosen by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AppId(pub u32);

/// The paths that an application may take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Allowed {
    #[default]
    All,
    /// Only these; identifiers without a path are ignored.
    Only(BTreeSet<PathId>),
}

/// The least gain of a move that meets no further latency target.
///
/// A move (or an exchange of two) is made for less delay alone if the summed delay that it saves, less `move_cost` for
/// every application moved, is at least `gain_min` of the present delays of those moved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hysteresis {
    /// A ratio of the delay: 0.2 for 20 %.
    pub gain_min: f64,
    /// The cost of a move: reordering, and a path whose delay is less certain.
    pub move_cost: Duration,
}

/// Which path an application takes if several meet its latency target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Aim {
    /// The path where the summed delay grows least. It also moves for less delay, as [`Hysteresis`] says.
    #[default]
    LeastDelay,
    /// The path with the longest propagation delay that meets the latency target, as in the paper
    /// `[path-selection §3.4]`, which keeps the fast paths free. It moves for less summed lateness, as [`Hysteresis`]
    /// says, but never for less delay alone. Applications without a latency target follow [`Aim::LeastDelay`].
    Frugal,
}

/// How an [`Incumbent`] places applications.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Settings {
    /// How far above its latency target an application counts as met.
    pub tolerance: Tolerance,
    /// Which path an application takes if several meet its latency target.
    pub aim: Aim,
    /// What a move must be worth.
    pub hysteresis: Hysteresis,
}

/// Why the planner refuses an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputError {
    /// A path of 281 Tbit/s (2^48 bit/s) or more.
    Bandwidth,
    /// More than [`Incumbent::APPS_MAX`] applications.
    TooManyApps,
    /// More than [`Incumbent::PATHS_MAX`] paths.
    TooManyPaths,
    UnknownApp,
    /// No such path, or one that the application may not take.
    UnknownPath,
}

/// Why an application moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MoveReason {
    /// It had no path: it is new, its path is gone, or it may not use its path any more.
    Unplaced,
    /// Its own latency target was unmet on its path, and is met on the new one.
    Unmet,
    /// It makes room: without it, the latency targets of others would be unmet.
    MakesRoom,
    /// The summed delay or the summed lateness is less.
    Quicker,
}

/// The difference that one move of a revision makes, given all its other moves. A move is made for the first of these
/// that is positive; of the last two, the [`Aim`] decides which counts. Negative: without the move this would be better.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gain {
    /// Latency targets met.
    pub met: i64,
    /// Applications kept off an overloaded path.
    pub not_overloaded: i64,
    /// Lateness, summed over all applications, in seconds.
    pub lateness_seconds: f64,
    /// Delay, summed over all applications that have one either way, in seconds.
    pub delay_seconds: f64,
}

/// One application moves to another path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Move {
    pub app: AppId,
    /// `None`: it had no path.
    pub from: Option<PathId>,
    pub to: PathId,
    pub reason: MoveReason,
    /// `None` for an application that had no path.
    pub gain: Option<Gain>,
}

/// The moves to make, and their result.
#[derive(Clone, Debug, PartialEq)]
pub struct Revision {
    /// At most one per application, by application.
    pub moves: Vec<Move>,
    /// The score without the moves. Applications without a path count as unmet and overloaded.
    pub before: Score,
    /// The score with the moves.
    pub after: Score,
    /// Applications that stay unmet, ascending.
    pub unmet: Vec<AppId>,
    /// Whether all paths and applications were examined. If not, the next revision continues.
    pub complete: bool,
}

/// The plan in force; see the [module](self).
#[derive(Clone, Debug)]
pub struct Incumbent {
    settings: Settings,
    table: Table,
    path_index: BTreeMap<PathId, usize>,
    app_index: BTreeMap<AppId, usize>,
    /// Whether something has not been examined by a revision.
    has_changes: bool,
}

/// The most work units of a revision: about a millisecond. A unit is about the examination of one application on one
/// path.
const REVISION_WORK: u64 = 40_000;

/// The same for a revision that had to repair targets: moves for less delay can wait.
const PROMPT_WORK: u64 = 30_000;

impl Incumbent {
    /// More applications are refused.
    pub const APPS_MAX: usize = 1 << 14;
    /// More paths are refused.
    pub const PATHS_MAX: usize = 256;

    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            table: Table::new(settings.tolerance),
            path_index: BTreeMap::new(),
            app_index: BTreeMap::new(),
            has_changes: false,
        }
    }

    /// A path comes or changes. The same again changes nothing.
    ///
    /// # Errors
    ///
    /// [`InputError::Bandwidth`], [`InputError::TooManyPaths`]; then nothing has changed.
    pub fn set_path(&mut self, id: PathId, spec: PathSpec) -> Result<(), InputError> {
        if spec.bandwidth.as_bits_per_second() >= RATE_MAX {
            return Err(InputError::Bandwidth);
        }
        match self.path_index.get(&id) {
            Some(&path) if self.table.paths[path].spec == spec => {}
            Some(&path) => {
                self.table.renew_path(path, spec);
                self.has_changes = true;
            }
            None if self.table.paths.len() >= Self::PATHS_MAX => {
                return Err(InputError::TooManyPaths);
            }
            None => {
                self.path_index.insert(id, self.table.paths.len());
                self.table.add_path(id, spec);
                self.has_changes = true;
            }
        }
        Ok(())
    }

    /// A path is gone; who was on it is nowhere until the next revision. Whether there was one.
    pub fn remove_path(&mut self, id: PathId) -> bool {
        let Some(path) = self.path_index.remove(&id) else {
            return false;
        };
        self.table.remove_path(path);
        self.has_changes = true;
        if let Some(moved) = self.table.paths.get(path) {
            self.path_index.insert(moved.id, path);
        }
        true
    }

    /// An application comes (and is nowhere until the next revision) or changes (and stays where
    /// it is, if it still may). The same again changes nothing.
    ///
    /// # Errors
    ///
    /// [`InputError::TooManyApps`]; then nothing has changed.
    pub fn set_app(
        &mut self,
        id: AppId,
        spec: AppSpec,
        allowed: Allowed,
    ) -> Result<(), InputError> {
        match self.app_index.get(&id) {
            Some(&app) => {
                let entry = &self.table.requirements[app];
                if entry.spec != spec || entry.allowed != allowed {
                    self.table.renew_app(app, spec, allowed);
                    self.has_changes = true;
                }
            }
            None if self.table.apps.len() >= Self::APPS_MAX => return Err(InputError::TooManyApps),
            None => {
                self.app_index.insert(id, self.table.apps.len());
                self.table.add_app(id, spec, allowed);
                self.has_changes = true;
            }
        }
        Ok(())
    }

    /// An application is gone. Whether there was one.
    pub fn remove_app(&mut self, id: AppId) -> bool {
        let Some(app) = self.app_index.remove(&id) else {
            return false;
        };
        self.table.remove_app(app);
        self.has_changes = true;
        if let Some(moved) = self.table.apps.get(app) {
            self.app_index.insert(moved.id, app);
        }
        true
    }

    /// Says where an application is, whatever the plan was: at the start, or when a move was not
    /// carried out.
    ///
    /// # Errors
    ///
    /// [`InputError::UnknownApp`], [`InputError::UnknownPath`]; then nothing has changed.
    pub fn place(&mut self, app: AppId, path: PathId) -> Result<(), InputError> {
        let &app = self.app_index.get(&app).ok_or(InputError::UnknownApp)?;
        let &path = self.path_index.get(&path).ok_or(InputError::UnknownPath)?;
        if !self.table.may.at(app, path) {
            return Err(InputError::UnknownPath);
        }
        if self.table.apps[app].place != Some(path) {
            self.table.shift(app, path);
            self.has_changes = true;
        }
        Ok(())
    }

    /// Makes the moves that are called for, and says which. Without a change since the last
    /// complete revision there are none. Deterministic: the same operations in the same order
    /// give the same revisions.
    pub fn revise(&mut self) -> Revision {
        let before = self.table.score();
        if !self.has_changes {
            return self.revision(before, Vec::new(), true);
        }
        let mut builder = RevisionBuilder::new(&mut self.table, self.settings, REVISION_WORK);
        builder.place_unplaced();
        builder.repair();
        builder.improve();
        builder.prune();
        let moves = builder.moves();
        let complete = !builder.is_spent() && !builder.deferred;
        self.has_changes = !complete;
        self.revision(before, moves, complete)
    }

    fn revision(&mut self, before: Score, moves: Vec<Move>, complete: bool) -> Revision {
        let table = &mut self.table;
        let after = table.score();
        let mut unmet: Vec<AppId> = table
            .paths
            .iter()
            .flat_map(|path| path.unmet())
            .chain(table.unplaced())
            .map(|app| table.apps[app].id)
            .collect();
        unmet.sort_unstable();
        Revision {
            moves,
            before,
            after,
            unmet,
            complete,
        }
    }

    /// The applications and where each is; `None`: nowhere.
    pub fn assignment(&self) -> impl Iterator<Item = (AppId, Option<PathId>)> {
        self.app_index.iter().map(|(&id, &app)| {
            let place = self.table.apps[app].place;
            (id, place.map(|path| self.table.paths[path].id))
        })
    }

    /// The paths and their specifications.
    pub fn paths(&self) -> impl Iterator<Item = (PathId, PathSpec)> {
        self.path_index
            .iter()
            .map(|(&id, &path)| (id, self.table.paths[path].spec))
    }

    /// The specification of an application; `None` if there is no such application.
    pub fn app(&self, app: AppId) -> Option<AppSpec> {
        let &app = self.app_index.get(&app)?;
        Some(self.table.requirements[app].spec)
    }

    /// Where an application is; `None` if nowhere, or if there is no such application.
    pub fn path_of(&self, app: AppId) -> Option<PathId> {
        let &app = self.app_index.get(&app)?;
        let place = self.table.apps[app].place?;
        Some(self.table.paths[place].id)
    }

    /// What is predicted for an application where it is; `None` as in
    /// [`path_of`](Self::path_of).
    pub fn prediction(&self, app: AppId) -> Option<Prediction> {
        let &app = self.app_index.get(&app)?;
        let place = self.table.apps[app].place?;
        Some(self.table.prediction(app, place))
    }

    /// The score of what is in force. Applications that are nowhere count as unmet and
    /// overloaded.
    pub fn score(&mut self) -> Score {
        self.table.score()
    }
}

impl Allowed {
    /// Whether `path` may be taken.
    pub fn contains(&self, path: PathId) -> bool {
        match self {
            Self::All => true,
            Self::Only(paths) => paths.contains(&path),
        }
    }
}

impl Aim {
    /// The order in which plans are compared: what never moves for quickness has lateness first.
    pub fn order(self) -> Order {
        match self {
            Self::LeastDelay => Order::DelayFirst,
            Self::Frugal => Order::LatenessFirst,
        }
    }
}

impl Default for Hysteresis {
    /// A fifth, and 1 ms. Ours: what 5 % of noise in a path's bandwidth changes at 70 % of load
    /// is below it.
    fn default() -> Self {
        Self {
            gain_min: 0.2,
            move_cost: Duration::from_millis(1),
        }
    }
}

impl Hysteresis {
    /// Every gain counts, as in a plan from scratch.
    pub const NONE: Self = Self {
        gain_min: 0.0,
        move_cost: Duration::ZERO,
    };
}

impl std::fmt::Display for InputError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Bandwidth => "a path of 281 Tbit/s or more cannot be planned; check its unit",
            Self::TooManyApps => "more applications than can be planned; make classes of them",
            Self::TooManyPaths => "more paths than can be planned; leave some out",
            Self::UnknownApp => "no such application in the plan; add it first",
            Self::UnknownPath => {
                "no such path in the plan, or one that the application may not take"
            }
        })
    }
}

impl std::error::Error for InputError {}

/// A revision in the making.
struct RevisionBuilder<'a> {
    table: &'a mut Table,
    settings: Settings,
    /// Where each application that was touched was before.
    touched: BTreeMap<usize, Option<usize>>,
    work: u64,
    limit: u64,
    /// The work after which those who only gain have to wait for the next revision.
    prompt: u64,
    deferred: bool,
}

impl<'a> RevisionBuilder<'a> {
    fn new(table: &'a mut Table, settings: Settings, work: u64) -> Self {
        Self {
            table,
            settings,
            touched: BTreeMap::new(),
            work: 0,
            limit: work,
            prompt: PROMPT_WORK,
            deferred: false,
        }
    }

    /// Raises the work limit, also for moves for less delay.
    fn allow(&mut self, limit: u64) {
        self.limit = limit;
        self.prompt = limit;
    }

    fn is_spent(&self) -> bool {
        self.work >= self.limit
    }

    /// Puts `app` on `to`, and remembers where it was at first.
    fn shift(&mut self, app: usize, to: usize) {
        let from = self.table.take(app);
        self.touched.entry(app).or_insert(from);
        self.table.put(app, to);
    }

    /// Places the applications that have no path.
    fn place_unplaced(&mut self) {
        let mut nowhere = self.table.unplaced();
        let apps = &self.table.apps;
        nowhere.sort_by_key(|&app| (std::cmp::Reverse(apps[app].rate), apps[app].id));
        for app in nowhere {
            if let Some((to, _)) = self.least_harm(app, usize::MAX) {
                self.shift(app, to);
            }
        }
    }

    /// The path, other than its own, where `app` does least harm, making at most `unmet_max`
    /// latency targets unmet, its own included; `None` if it may be on none.
    fn least_harm(&mut self, app: usize, unmet_max: usize) -> Option<(usize, Tally)> {
        self.work += 2 * self.table.paths.len() as u64;
        let mut best: Option<(Tally, PathId, usize)> = None;
        let mut unmet_max = unmet_max;
        let place = self.table.apps[app].place;
        for (path, may) in self.table.may.row(app).iter().enumerate() {
            if !may || place == Some(path) {
                continue;
            }
            let Some(harm) = self.harm(app, path, unmet_max) else {
                continue;
            };
            let id = self.table.paths[path].id;
            let is_less = match &best {
                None => true,
                Some((least, other, _)) => harm.compared(least).then(id.cmp(other)).is_lt(),
            };
            if is_less {
                best = Some((harm, id, path));
                unmet_max = harm.unmet as usize;
            }
        }
        best.map(|(harm, _, path)| (path, harm))
    }

    /// What `app` on `path` would do: counts exact; with the aim of least delay that, its own
    /// included, close; else its own lateness and then how quick the path is. `None` if that makes
    /// more than `unmet_max` latency targets unmet.
    fn harm(&self, app: usize, path: usize, unmet_max: usize) -> Option<Tally> {
        let target = &self.table.paths[path];
        let entry = &self.table.apps[app];
        let load = target.load + entry.rate;
        let own = usize::from(self.table.load_limit.at(app, path) <= load);
        let too_many = unmet_max.checked_sub(own)?.saturating_add(1);
        if target.limit_of(target.unmet_count.saturating_add(too_many)) <= load {
            return None;
        }
        let unmet = target.unmet_at(load) - target.unmet_count + own;
        let mut harm = Tally {
            unmet: unmet as i64,
            ..Tally::default()
        };
        if load >= target.bandwidth {
            let others = match target.load >= target.bandwidth {
                true => 0,
                false => target.members.len() as i64,
            };
            harm.overloaded = others + 1;
            return Some(harm);
        }
        let delay = self.table.delay_at(app, path, load);
        harm.delay = match self.aim_of(app) {
            Aim::Frugal => {
                if own > 0 {
                    harm.lateness = (delay - self.table.latency_target(app)).max(0.0);
                }
                -target.delay
            }
            Aim::LeastDelay => {
                // The others' delays, were their own rates nothing beside what is left over.
                let left = [target.load, load].map(|load| (target.bandwidth - load) as f64);
                delay + target.crowding * entry.rate as f64 * left[0] / left[1]
            }
        };
        Some(harm)
    }

    /// Takes back moves that are not needed.
    fn prune(&mut self) {
        let touched: Vec<(usize, usize)> = self
            .touched
            .iter()
            .filter_map(|(&app, &from)| Some((app, from?)))
            .collect();
        // Taking one back can make another needless; each time there is one less.
        loop {
            let mut undone = false;
            for &(app, from) in &touched {
                if let Some(now) = self.table.apps[app].place
                    && now != from
                {
                    self.table.sum_up(from);
                    self.table.sum_up(now);
                    if !self.is_worth(app, from, now) {
                        self.table.shift(app, from);
                        undone = true;
                    }
                }
            }
            if !undone {
                return;
            }
        }
    }

    /// The moves that are left, and what each gains.
    fn moves(&mut self) -> Vec<Move> {
        for path in 0..self.table.paths.len() {
            self.table.sum_up(path);
        }
        let table = &self.table;
        let moves = self.touched.iter().filter_map(|(&app, &from)| {
            let to = table.apps[app].place?;
            if from == Some(to) {
                return None;
            }
            let gain = from.map(|from| Gain::from(self.loss_if_undone(app, from, to)));
            let reason = match (from, gain) {
                (Some(from), Some(Gain { met: 1.., .. })) => {
                    let load = table.paths[from].load + table.apps[app].rate;
                    match load < table.load_limit.at(app, from) {
                        true => MoveReason::MakesRoom,
                        false => MoveReason::Unmet,
                    }
                }
                (Some(_), _) => MoveReason::Quicker,
                (None, _) => MoveReason::Unplaced,
            };
            Some(Move {
                app: table.apps[app].id,
                from: from.map(|path| table.paths[path].id),
                to: table.paths[to].id,
                reason,
                gain,
            })
        });
        let mut moves: Vec<Move> = moves.collect();
        moves.sort_by_key(|step| step.app);
        moves
    }

    /// What more everything would cost with `app` back on `from`.
    fn loss_if_undone(&self, app: usize, from: usize, now: usize) -> Tally {
        let table = &self.table;
        let back = table.change(from, None, Some(app));
        back.plus(table.change(now, Some(app), None))
    }

    fn is_worth(&self, app: usize, from: usize, now: usize) -> bool {
        let table = &self.table;
        let lost = self.loss_if_undone(app, from, now);
        let load = table.paths[from].load + table.apps[app].rate;
        self.is_enough(app, lost, table.delay_at(app, from, load))
    }

    /// Whether `app` gains enough by going from `from`, where it is, to `to`: as
    /// [`is_enough`](Self::is_enough) of what [`Table::change`] says, with no more known of that
    /// than decides.
    fn gains_enough(&mut self, app: usize, from: usize, to: usize) -> bool {
        let aim = self.aim_of(app);
        let table = &mut *self.table;
        let delay = table.delay_at(app, from, table.paths[from].load);
        let leaves = table.uncongested_change(from, Some(app), None);
        let joins = table.uncongested_change(to, None, Some(app));
        if let (Some(leaves), Some(joins)) = (leaves, joins) {
            let gain = Tally::default().minus(leaves).minus(joins);
            return self.is_enough(app, gain, delay);
        }
        let left = table.change_of_counts(from, Some(app), None);
        let joined = table.change_of_counts(to, None, Some(app));
        let mut gain = Tally {
            unmet: -left.0 - joined.0,
            overloaded: -left.1 - joined.1,
            ..Tally::default()
        };
        if (gain.unmet, gain.overloaded) == (0, 0) {
            match aim {
                Aim::LeastDelay => {
                    let left = table.change_of_delay(from, Some(app), None);
                    gain.delay = -left - table.change_of_delay(to, None, Some(app));
                }
                Aim::Frugal => {
                    let left = table.change_of_lateness(from, Some(app), None);
                    gain.lateness = -left - table.change_of_lateness(to, None, Some(app));
                }
            }
        }
        self.is_enough(app, gain, delay)
    }

    /// What `app` goes by: without a latency target there is nothing to be late for, so only less
    /// delay is a gain.
    fn aim_of(&self, app: usize) -> Aim {
        match self.table.latency_target(app).is_finite() {
            true => self.settings.aim,
            false => Aim::LeastDelay,
        }
    }

    /// Whether a gain is worth moving `app`, which has `delay`.
    fn is_enough(&self, app: usize, gain: Tally, delay: f64) -> bool {
        let Hysteresis {
            gain_min,
            move_cost,
        } = self.settings.hysteresis;
        let needed = gain_min * delay + move_cost.as_nanos() as f64;
        let counts = (gain.unmet, gain.overloaded);
        if counts != (0, 0) {
            return counts > (0, 0);
        }
        let gained = match self.aim_of(app) {
            Aim::LeastDelay => gain.delay,
            Aim::Frugal => gain.lateness,
        };
        gained >= needed.max(NOTHING_NANOS) && needed.is_finite()
    }
}

/// Predicted delays are rounded to nanoseconds; differences below this many are none.
const NOTHING_NANOS: f64 = 1e3;

impl Tally {
    fn compared(&self, other: &Self) -> std::cmp::Ordering {
        let counts = (self.unmet, self.overloaded).cmp(&(other.unmet, other.overloaded));
        counts
            .then(self.lateness.total_cmp(&other.lateness))
            .then(self.delay.total_cmp(&other.delay))
    }
}

impl Gain {
    /// Which is more worth, for an aim.
    fn compare(&self, other: &Self, aim: Aim) -> std::cmp::Ordering {
        let counts = (self.met, self.not_overloaded).cmp(&(other.met, other.not_overloaded));
        let lateness = self.lateness_seconds.total_cmp(&other.lateness_seconds);
        let delay = self.delay_seconds.total_cmp(&other.delay_seconds);
        counts.then(match aim {
            Aim::LeastDelay => delay.then(lateness),
            Aim::Frugal => lateness.then(delay),
        })
    }
}

impl From<Tally> for Gain {
    fn from(tally: Tally) -> Self {
        Self {
            met: tally.unmet,
            not_overloaded: tally.overloaded,
            lateness_seconds: tally.lateness / 1e9,
            delay_seconds: tally.delay / 1e9,
        }
    }
}
