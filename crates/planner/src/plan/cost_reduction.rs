//! Takes applications back from paths that cost more than they need.
//!
//! A plan meets as many latency targets as it can, whatever that costs. Afterwards, applications with a target move to
//! cheaper paths as long as no target is missed that was met before. One that is on the costlier path already goes back
//! only where its target is met with room to spare, so that it does not come and go with every small change. One that
//! just misses its target there does not go where it misses it by more.
//!
//! Applications are tried in groups that are halved until they fit, so the work grows with the paths and with the
//! logarithm of the applications, and is bounded.

use keiro_model::path_terms::Price;

use super::members_of;

/// An application that goes back to a cheaper path needs no more than this part of its target there. Ours: as much
/// room as the hysteresis of other moves asks for.
pub const ROOM_TO_RETURN: f64 = 0.8;
/// Whether an application returns from the costlier path that it is on to one where its delay is `after`, both in parts
/// of its target. One that just misses it will soon meet it again, and stays as long as it would miss it by more.
pub fn may_return(before: f64, after: f64) -> bool {
    match before {
        _ if before <= 1.0 => after <= ROOM_TO_RETURN,
        _ if before <= 1.0 / ROOM_TO_RETURN => after <= before,
        _ => after.is_finite() || before.is_infinite(),
    }
}

/// Groups that are tried for one path. Ours: enough for a thousand applications of which each tenth does not fit.
const TRIES_MAX: usize = 512;

/// Who may go where, and at what price.
#[derive(Clone, Copy, Debug)]
pub struct Prices<'a> {
    /// Per application and path.
    pub prices: &'a [Vec<Price>],
    /// Per application and path: it may be moved there.
    pub may: &'a [Vec<bool>],
    /// Per application: it has a latency target. Those without one stay.
    pub has_target: &'a [bool],
    /// Where each is now. Who has been moved by this plan needs no room to spare.
    pub at: &'a [Option<usize>],
}

/// Where applications are, and what is said of them there.
struct CostReduction<'a, F> {
    prices: Prices<'a>,
    place: Vec<usize>,
    members: Vec<Vec<usize>>,
    /// Delays in parts of targets, one for each of `members`.
    ratios: Vec<Vec<f64>>,
    judge: F,
    work: u64,
    work_max: u64,
}

/// `start`, with applications on cheaper paths where no further target is missed.
///
/// `judge` is given a path and ascending members, and returns the delay of each in parts of its target when exactly
/// these share the path: more than 1 is missed, infinite is overloaded, and without a target any finite delay is 0. To
/// ask about a set is as much work as it has members, and about `work_max` is done.
pub fn reduce_cost<F: FnMut(usize, &[usize]) -> Vec<f64>>(
    start: &[usize],
    prices: Prices<'_>,
    work_max: u64,
    judge: F,
) -> Vec<usize> {
    let paths = prices.prices.first().map_or(0, Vec::len);
    let members: Vec<Vec<usize>> = (0..paths).map(|path| members_of(start, path)).collect();
    let mut reduction = CostReduction {
        prices,
        place: start.to_vec(),
        ratios: vec![Vec::new(); paths],
        members,
        judge,
        work: 0,
        work_max,
    };
    for path in 0..paths {
        let members = reduction.members[path].clone();
        reduction.ratios[path] = reduction.judged(path, &members);
    }
    for to in reduction.cheapest_first() {
        let wanting = reduction.wanting(to);
        reduction.bring(to, wanting);
    }
    reduction.place
}

impl<F: FnMut(usize, &[usize]) -> Vec<f64>> CostReduction<'_, F> {
    fn judged(&mut self, path: usize, members: &[usize]) -> Vec<f64> {
        if members.is_empty() {
            return Vec::new();
        }
        self.work += members.len() as u64;
        (self.judge)(path, members)
    }

    /// The paths, the one first that is the cheapest for some application.
    fn cheapest_first(&self) -> Vec<usize> {
        let price = |path: usize| self.prices.prices.iter().map(move |of| of[path]).min();
        let mut paths: Vec<usize> = (0..self.members.len()).collect();
        paths.sort_by_key(|path| (price(*path), *path));
        paths
    }

    /// Who would pay less on `to` and could be met there alone, who has most room first.
    fn wanting(&mut self, to: usize) -> Vec<usize> {
        let mut wanting: Vec<(f64, usize)> = Vec::new();
        for app in 0..self.place.len() {
            let of = &self.prices.prices[app];
            let is_wanting = self.prices.has_target[app]
                && self.prices.may[app][to]
                && of[to] < of[self.place[app]];
            if !is_wanting || self.work >= self.work_max {
                continue;
            }
            let alone = self.judged(to, &[app]);
            if let Some(&ratio) = alone.first()
                && self.is_acceptable(app, to, ratio)
            {
                wanting.push((ratio, app));
            }
        }
        wanting.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        wanting.into_iter().map(|(_, app)| app).collect()
    }

    /// Moves as many of `wanting` to the path as fit.
    fn bring(&mut self, to: usize, wanting: Vec<usize>) {
        let mut groups = vec![wanting];
        let mut tries = 0;
        while let Some(mut group) = groups.pop() {
            if group.is_empty() || tries >= TRIES_MAX || self.work >= self.work_max {
                continue;
            }
            tries += 1;
            if self.moves(to, &group) || group.len() == 1 {
                continue;
            }
            let rest = group.split_off(group.len() / 2);
            // The first half has more room and is tried first.
            groups.extend([rest, group]);
        }
    }

    /// Moves `group` to the path if no further target is missed.
    fn moves(&mut self, to: usize, group: &[usize]) -> bool {
        let mut joined = self.members[to].clone();
        joined.extend(group);
        joined.sort_unstable();
        let ratios = self.judged(to, &joined);
        let mut judged = joined.iter().zip(&ratios);
        if !judged.all(|(app, ratio)| self.is_acceptable(*app, to, *ratio)) {
            return false;
        }
        let mut left: Vec<usize> = group.iter().map(|app| self.place[*app]).collect();
        left.sort_unstable();
        left.dedup();
        for app in group {
            self.place[*app] = to;
        }
        self.members[to] = joined;
        self.ratios[to] = ratios;
        for path in left {
            let mut members = std::mem::take(&mut self.members[path]);
            members.retain(|app| self.place[*app] == path);
            self.ratios[path] = self.judged(path, &members);
            self.members[path] = members;
        }
        true
    }

    /// What it has where it is.
    fn ratio(&self, app: usize) -> f64 {
        let path = self.place[app];
        let position = self.members[path].binary_search(&app);
        position.map_or(f64::INFINITY, |position| self.ratios[path][position])
    }

    /// With `after` on the path `to`, it misses no target that it met before. If it leaves the path where it is now, it
    /// has room to spare.
    fn is_acceptable(&self, app: usize, to: usize, after: f64) -> bool {
        let before = self.ratio(app);
        let returns = self.place[app] != to && self.prices.at[app] == Some(self.place[app]);
        match () {
            () if !self.prices.has_target[app] => after.is_finite() || before.is_infinite(),
            () if returns => may_return(before, after),
            () if before > 1.0 => after.is_finite() || before.is_infinite(),
            () => after <= 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use keiro_model::path_terms::{CostPerGb, PathRole};

    use super::*;

    /// Applications of load 1 on paths of these capacities; each delay is the load in parts of the capacity, in parts
    /// of the target.
    fn run(
        start: &[usize],
        capacities: &[f64],
        targets: &[Option<f64>],
        at: &[Option<usize>],
    ) -> Vec<usize> {
        let price = |path: usize| Price {
            role: PathRole::Primary,
            cost: CostPerGb::from_micros(path as u64),
        };
        let prices = vec![(0..capacities.len()).map(price).collect(); start.len()];
        let may = vec![vec![true; capacities.len()]; start.len()];
        let has_target: Vec<bool> = targets.iter().map(Option::is_some).collect();
        let prices = Prices {
            prices: &prices,
            may: &may,
            has_target: &has_target,
            at,
        };
        reduce_cost(start, prices, 1_000_000, |path, members| {
            let load = members.len() as f64 / capacities[path];
            let ratio = |app: &usize| match (load > 1.0, targets[*app]) {
                (true, _) => f64::INFINITY,
                (false, None) => 0.0,
                (false, Some(target)) => load / target,
            };
            members.iter().map(ratio).collect()
        })
    }

    #[test]
    fn as_many_go_to_the_cheapest_path_as_are_met_there() {
        let at = [None; 10];
        let found = run(&[1; 10], &[10.0, 100.0], &[Some(0.45); 10], &at);
        assert_eq!(found.iter().filter(|path| **path == 0).count(), 4);
        // Who cannot be met there keeps none of the others from it.
        let mut targets = [Some(0.65); 10];
        targets[3] = Some(0.05);
        let found = run(&[1; 10], &[10.0, 1000.0], &targets, &at);
        assert_eq!(found.iter().filter(|path| **path == 0).count(), 6);
        assert_eq!(found[3], 1);
    }

    #[test]
    fn no_target_is_missed_for_the_sake_of_cost() {
        // The first is met on the cheap path only if it is alone.
        let found = run(
            &[0, 1, 1],
            &[10.0, 10.0],
            &[Some(0.15), Some(0.9), None],
            &[None; 3],
        );
        assert_eq!(found, [0, 1, 1]);
    }

    #[test]
    fn returning_needs_headroom_unless_just_moved() {
        let target = [Some(0.11)];
        assert_eq!(run(&[1], &[10.0, 10.0], &target, &[Some(0)]), [0]);
        assert_eq!(run(&[1], &[10.0, 10.0], &target, &[Some(1)]), [1]);
        assert_eq!(run(&[1], &[10.0, 10.0], &[Some(0.2)], &[Some(1)]), [0]);
    }

    #[test]
    fn no_return_to_a_path_that_misses_the_target_by_more() {
        // 0.1 in parts of the target on the costlier path, and 0.2 on the cheaper one.
        let run = |target, at| run(&[1], &[5.0, 10.0], &[Some(target)], &[at]);
        assert_eq!(run(0.09, Some(1)), [1]);
        assert_eq!(run(0.09, None), [0], "it has waited long enough");
        assert_eq!(run(0.07, Some(1)), [0], "far from its target on both");
        assert!(may_return(1.1, 1.05) && !may_return(1.1, 1.15) && !may_return(0.9, 0.85));
        assert!(may_return(f64::INFINITY, f64::INFINITY) && !may_return(2.0, f64::INFINITY));
    }

    #[test]
    fn a_target_that_is_missed_anyhow_is_missed_on_the_cheapest_path() {
        assert_eq!(run(&[1], &[10.0, 10.0], &[Some(0.05)], &[Some(1)]), [0]);
    }

    #[test]
    fn work_is_bounded_for_thousands_that_do_not_fit() {
        let apps = 10_000;
        let mut calls = 0;
        let prices = vec![
            vec![
                Price::default(),
                Price {
                    role: PathRole::Backup,
                    ..Price::default()
                }
            ];
            apps
        ];
        let prices = Prices {
            prices: &prices,
            may: &vec![vec![true; 2]; apps],
            has_target: &vec![true; apps],
            at: &vec![Some(1); apps],
        };
        let found = reduce_cost(&vec![1; apps], prices, 1_000_000, |path, members| {
            calls += members.len();
            let ratio = match (path, members.len()) {
                (0, 1) | (1, _) => 0.5,
                _ => 2.0,
            };
            vec![ratio; members.len()]
        });
        assert!(calls < 1_100_000, "{calls}");
        assert_eq!(found.iter().filter(|path| **path == 0).count(), 1);
    }
}
