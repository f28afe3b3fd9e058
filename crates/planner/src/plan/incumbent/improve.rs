//! Moves that make everything quicker by enough.
//!
//! Only paths with noticeably more or less left over than when they were last looked at are looked
//! at: their members may now gain elsewhere, and others there. What a move gains is estimated
//! first, from what a path's members would lose together by a further bit/s; the best estimates are
//! then computed in full, one after the other, and made if they hold.

use std::cmp::Reverse;

use super::{AppId, NOTHING_NANOS, RevisionBuilder, table::App};

/// Work units for the moves that were found, whatever looking for them took.
const TRIES_WORK: u64 = 5_000;

/// Work units of trying a move.
const TRY_WORK: u64 = 16;

/// A move that seems worth making.
struct Candidate {
    /// In nanoseconds.
    gain: f64,
    id: AppId,
    app: usize,
    to: usize,
}

impl Candidate {
    /// The most gain first; it is above zero, so its bits are in order.
    fn rank(&self) -> (Reverse<u64>, AppId) {
        (Reverse(self.gain.to_bits()), self.id)
    }
}

/// What is known of a path while candidates are looked for.
struct PathSummary {
    /// In nanoseconds.
    delay: f64,
    /// What is left over, in bit/s; nothing if overloaded.
    left: f64,
    left_inverse: f64,
    crowding: f64,
    /// The further load, in bit/s, from which on a member would be unmet.
    room: u64,
    dirty: bool,
}

/// What it is for an application to stay where it is.
struct StayCost {
    /// In bit/s.
    rate: u64,
    /// In 10^-9 bit.
    length: f64,
    /// Its own delay, and what the others lose by it, in nanoseconds.
    lost: f64,
    is_late: bool,
    /// What it must gain to go, in nanoseconds.
    needed: f64,
}

impl RevisionBuilder<'_> {
    pub(super) fn improve(&mut self) {
        // Each round's moves open others; they gain less and less, and the work is bounded.
        while !self.is_spent() {
            if !self.touched.is_empty() && self.work + self.candidates_work() > self.prompt {
                // Those in need have moved; those who only gain can wait for the next revision.
                self.deferred = true;
                return;
            }
            let summaries: Vec<PathSummary> = (0..self.table.paths.len())
                .map(|path| self.summary(path))
                .collect();
            let mut candidates = self.candidates(&summaries);
            let is_whole_round = self.table.next_app_to_examine == 0;
            if is_whole_round {
                for path in &mut self.table.paths {
                    if path.is_dirty() {
                        path.mark_examined();
                    }
                }
            } else {
                self.deferred = true;
            }
            // What was found is worth trying.
            self.limit = self.limit.max(self.work + TRIES_WORK);
            // No more than these can be tried.
            let most = self.limit.saturating_sub(self.work) / TRY_WORK + 1;
            let most = usize::try_from(most).unwrap_or(usize::MAX);
            if most < candidates.len() {
                candidates.select_nth_unstable_by_key(most, Candidate::rank);
                candidates.truncate(most);
            }
            candidates.sort_unstable_by_key(Candidate::rank);
            let mut moved = false;
            for Candidate { app, to, .. } in candidates {
                if self.is_spent() {
                    break;
                }
                if self.is_gain(app, to) {
                    self.shift(app, to);
                    moved = true;
                }
            }
            if !moved || !is_whole_round {
                return;
            }
        }
    }

    /// The work of looking for candidates.
    fn candidates_work(&self) -> u64 {
        let paths = &self.table.paths;
        let apps = self.table.apps.len();
        let looks = |path: &super::table::Path| match path.is_dirty() {
            true => path.members.len() * paths.len() + apps,
            false => 0,
        };
        paths.iter().map(looks).sum::<usize>() as u64
    }

    fn summary(&self, path: usize) -> PathSummary {
        let path = &self.table.paths[path];
        let left = path.bandwidth.saturating_sub(path.load);
        let limit = path.next_limit().unwrap_or(u64::MAX);
        PathSummary {
            delay: path.delay,
            left: left as f64,
            left_inverse: 1.0 / left as f64,
            crowding: path.crowding,
            room: limit.saturating_sub(path.load).min(left),
            dirty: path.is_dirty(),
        }
    }

    /// For every application that may gain, where it seems to gain most.
    fn candidates(&mut self, summaries: &[PathSummary]) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        let all: Vec<usize> = (0..summaries.len()).collect();
        let dirty: Vec<usize> = all
            .iter()
            .copied()
            .filter(|&path| summaries[path].dirty)
            .collect();
        let begin = std::mem::take(&mut self.table.next_app_to_examine).min(self.table.apps.len());
        for app in begin..self.table.apps.len() {
            if self.is_spent() {
                self.table.next_app_to_examine = app;
                break;
            }
            let entry = &mut self.table.apps[app];
            let fresh = std::mem::take(&mut entry.fresh);
            let entry = &self.table.apps[app];
            let Some(from) = entry.place else { continue };
            let targets = match summaries[from].dirty || fresh {
                true => &all,
                false => &dirty,
            };
            self.work += targets.len() as u64;
            let Some(stay) = self.stay(entry, &summaries[from]) else {
                continue;
            };
            let may = self.table.may.row(app);
            let mut best: Option<(f64, usize)> = None;
            for &to in targets {
                let least = best.map_or(stay.needed, |(gain, _)| gain);
                if to != from
                    && may[to]
                    && let Some(gain) = self.estimate(&stay, app, to, &summaries[to], least)
                {
                    best = Some((gain, to));
                }
            }
            if let Some((gain, to)) = best {
                let id = entry.id;
                candidates.push(Candidate { gain, id, app, to });
            }
        }
        candidates
    }

    /// What speaks for leaving a path; `None` if nothing does.
    fn stay(&self, entry: &App, source: &PathSummary) -> Option<StayCost> {
        if source.left <= 0.0 {
            return None;
        }
        let rate = entry.rate as f64;
        let own_left = source.left + rate;
        let transfer = entry.length / own_left;
        let now = source.delay + transfer;
        let is_late = now > entry.latency_target;
        let has_no_target = entry.latency_target.is_infinite();
        let is_least_delay = self.settings.aim == super::Aim::LeastDelay;
        let is_wanted = is_least_delay || has_no_target || is_late;
        let needed = self.settings.hysteresis.gain_min * now;
        is_wanted.then_some(StayCost {
            rate: entry.rate,
            length: entry.length,
            lost: now + (source.crowding - transfer / own_left) * rate,
            is_late,
            needed: needed.max(NOTHING_NANOS),
        })
    }

    /// What a move seems to gain, in nanoseconds; `None` if not more than `least`.
    fn estimate(
        &self,
        stay: &StayCost,
        app: usize,
        to: usize,
        target: &PathSummary,
        least: f64,
    ) -> Option<f64> {
        // With its own rate on top, what is left for it there is what was left over before.
        let then = target.delay + stay.length * target.left_inverse;
        let gain = stay.lost - then;
        if stay.rate >= target.room || gain <= least {
            return None;
        }
        // The others' own rates taken for nothing beside what is left over.
        let rate = stay.rate as f64;
        let gain = gain - target.crowding * rate * target.left / (target.left - rate);
        let is_met = || self.table.paths[to].load + stay.rate < self.table.load_limit.at(app, to);
        (gain > least && (stay.is_late || is_met())).then_some(gain)
    }

    /// Whether moving `app` to `to` is worth it.
    fn is_gain(&mut self, app: usize, to: usize) -> bool {
        let Some(from) = self.table.apps[app].place.filter(|&from| from != to) else {
            return false;
        };
        self.work += TRY_WORK;
        self.gains_enough(app, from, to)
    }
}
