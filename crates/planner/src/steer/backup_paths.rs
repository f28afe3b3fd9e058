//! The backup path of every application, computed before its path fails.
//!
//! With every plan, the assignment without each path is computed too. It is the second preference of the path's
//! applications, which move there at once when the path fails. The next plan assumes that they have moved, so a
//! failure moves each application once.
//!
//! A path may lead to several peers and fail to one of them. Its applications to that peer then take the backup that
//! they would take if it failed to all peers: that assignment has room for the other applications too, which stay.

use std::collections::{BTreeMap, BTreeSet};

/// The backup paths of one plan; see the module.
#[derive(Clone, Debug)]
pub struct BackupPaths<A, P> {
    /// The assignment that they were computed for.
    places: BTreeMap<A, P>,
    /// By the path that fails: the applications that move, and where to.
    moves: BTreeMap<P, BTreeMap<A, P>>,
}

/// With more paths there are no backups, since each path costs a plan.
const PATHS_MAX: usize = 32;

impl<A, P> Default for BackupPaths<A, P> {
    fn default() -> Self {
        Self {
            places: BTreeMap::new(),
            moves: BTreeMap::new(),
        }
    }
}

impl<A: Copy + Ord, P: Copy + Ord> BackupPaths<A, P> {
    /// Computes the backups of each of `paths` for the assignment `places`. `without` plans without a path, and
    /// returns the whole assignment or only the moves.
    pub fn find(
        places: BTreeMap<A, P>,
        paths: &BTreeSet<P>,
        mut without: impl FnMut(P) -> BTreeMap<A, P>,
    ) -> Self {
        let mut moves = BTreeMap::new();
        if paths.len() <= PATHS_MAX {
            for path in paths {
                let mut moved = without(*path);
                moved.retain(|app, to| places.get(app) != Some(to));
                moves.insert(*path, moved);
            }
        }
        Self { places, moves }
    }

    /// The backup of `app`, which is on `path`; `None`: it has none, or it is not known.
    pub fn backup(&self, app: A, path: P) -> Option<P> {
        self.moves.get(&path)?.get(&app).copied()
    }

    /// Assumes in the assignment `now` that applications have moved to their backups, if exactly one path has failed.
    /// Those are the applications of the path to the peers that it lost; if it lost all peers, also the applications
    /// that make room for them.
    ///
    /// `before` and `up` are paths with the peer that each leads to; `end` is an application's peer.
    pub fn apply_failover<E: Copy + Ord>(
        &self,
        before: &BTreeSet<(P, E)>,
        up: &BTreeSet<(P, E)>,
        end: impl Fn(A) -> E,
        now: &mut BTreeMap<A, P>,
    ) {
        let gone: BTreeSet<(P, E)> = before.difference(up).copied().collect();
        let Some((path, _)) = gone.first().copied() else {
            return;
        };
        // The backups of one path are computed with all others up.
        let (true, Some(moves)) = (
            gone.iter().all(|(other, _)| *other == path),
            self.moves.get(&path),
        ) else {
            return;
        };
        let is_whole = !up.iter().any(|(other, _)| *other == path);
        let goes = |app: A| {
            let was_there = self.places.get(&app) == Some(&path);
            is_whole || was_there && gone.contains(&(path, end(app)))
        };
        now.extend(moves.iter().filter(|(app, _)| goes(**app)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Applications 1 and 2 are on path 7, which leads to `b` for 1 and to `c` for 2; without it
    /// they go to path 8, and application 3 makes room on it.
    fn backup_paths() -> BackupPaths<u32, u32> {
        let places = BTreeMap::from([(1, 7), (2, 7), (3, 8), (4, 9)]);
        let without = |path| match path {
            7 => BTreeMap::from([(1, 8), (2, 8), (3, 9), (4, 9)]),
            _ => BTreeMap::new(),
        };
        BackupPaths::find(places, &BTreeSet::from([7, 8, 9]), without)
    }

    fn end(app: u32) -> char {
        match app {
            1 => 'b',
            _ => 'c',
        }
    }

    fn up(gone: &[(u32, char)]) -> BTreeSet<(u32, char)> {
        let all = [7, 8, 9]
            .into_iter()
            .flat_map(|path| [(path, 'b'), (path, 'c')]);
        all.filter(|pair| !gone.contains(pair)).collect()
    }

    /// Where every application is taken to be when `gone` are gone, from where they were.
    fn expected(gone: &[(u32, char)]) -> Vec<u32> {
        let backup_paths = backup_paths();
        let mut now = backup_paths.places.clone();
        backup_paths.apply_failover(&up(&[]), &up(gone), end, &mut now);
        now.into_values().collect()
    }

    #[test]
    fn outage_to_one_end_moves_its_applications_only() {
        assert_eq!(expected(&[(7, 'b')]), [8, 7, 8, 9]);
        assert_eq!(expected(&[(7, 'c')]), [7, 8, 8, 9]);
    }

    #[test]
    fn outage_to_all_ends_moves_every_application_that_has_to() {
        assert_eq!(expected(&[(7, 'b'), (7, 'c')]), [8, 8, 9, 9]);
    }

    #[test]
    fn outage_to_one_end_after_the_other_moves_the_rest() {
        let backup_paths = backup_paths();
        let mut now = BTreeMap::from([(1, 8), (2, 7), (3, 8), (4, 9)]);
        let before = up(&[(7, 'b')]);
        backup_paths.apply_failover(&before, &up(&[(7, 'b'), (7, 'c')]), end, &mut now);
        assert_eq!(now.into_values().collect::<Vec<_>>(), [8, 8, 9, 9]);
    }

    #[test]
    fn no_application_is_assumed_to_have_moved_unless_exactly_one_path_failed() {
        assert_eq!(expected(&[]), [7, 7, 8, 9]);
        assert_eq!(expected(&[(7, 'b'), (8, 'b')]), [7, 7, 8, 9]);
    }

    #[test]
    fn only_applications_that_a_failed_path_moves_have_a_backup() {
        let backup_paths = backup_paths();
        assert_eq!(backup_paths.backup(1, 7), Some(8));
        assert_eq!(backup_paths.backup(4, 9), None);
        assert_eq!(backup_paths.backup(4, 7), None);
    }

    #[test]
    fn no_backups_are_computed_beyond_32_paths() {
        let paths: BTreeSet<u32> = (0..33).collect();
        let many = BackupPaths::find(BTreeMap::from([(1, 0)]), &paths, |_| {
            BTreeMap::from([(1, 1)])
        });
        assert_eq!(many.backup(1, 0), None);
    }
}
