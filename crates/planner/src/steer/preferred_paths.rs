//! The path that each application returns to after an outage.
//!
//! When all paths to a peer fail at once (the line is cut, the peer restarts), the failures are
//! detected path by path, each after its own round trip. An application is sent from one dead path to
//! the next, and is on the slowest one in the end. When the paths are back, it returns to where it was
//! before the first of them failed.

use std::{collections::BTreeMap, time::Duration};

use keiro_units::Instant;

/// The preferred path of every application.
#[derive(Clone, Debug)]
pub struct PreferredPaths<A, P>(BTreeMap<A, Preferred<P>>);

#[derive(Clone, Copy, Debug)]
struct Preferred<P> {
    at: P,
    /// Since when it is elsewhere because this path is down.
    displaced_since: Option<Instant>,
}

/// After so long elsewhere, the path where it is becomes the preferred one. Ours: a path with a round
/// trip of a second is found dead after some three, and this is thrice as long.
const DISPLACED_MAX: Duration = Duration::from_secs(10);

impl<A, P> Default for PreferredPaths<A, P> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<A: Ord, P: PartialEq> PreferredPaths<A, P> {
    /// The preferred path of `app`. `None`: it has never had a path.
    pub fn of<Q>(&self, app: &Q) -> Option<&P>
    where
        A: std::borrow::Borrow<Q>,
        Q: Ord + ?Sized,
    {
        self.0.get(app).map(|preferred| &preferred.at)
    }

    /// Where `app` was before a restart. Ignored if something newer is known.
    pub fn remember(&mut self, app: A, at: P) {
        self.0.entry(app).or_insert(Preferred {
            at,
            displaced_since: None,
        });
    }

    /// `app` is on `place` now. An application that leaves a path
    /// for which `is_up` holds does so by a plan.
    pub fn on_assigned(&mut self, now: Instant, app: A, place: P, is_up: impl FnOnce(&P) -> bool) {
        let arrived = |at| Preferred {
            at,
            displaced_since: None,
        };
        match self.0.get_mut(&app) {
            Some(preferred) if preferred.at == place => preferred.displaced_since = None,
            Some(preferred) if !is_up(&preferred.at) => {
                let since = *preferred.displaced_since.get_or_insert(now);
                if now.saturating_duration_since(since) >= DISPLACED_MAX {
                    *preferred = arrived(place);
                }
            }
            Some(preferred) => *preferred = arrived(place),
            None => {
                self.0.insert(app, arrived(place));
            }
        }
    }

    /// Keeps the applications for which `keep` holds, given the application and its preferred path.
    pub fn retain(&mut self, mut keep: impl FnMut(&A, &P) -> bool) {
        self.0.retain(|app, preferred| keep(app, &preferred.at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sees an application at `places` (at a time in seconds, the path, those that are up then).
    fn preferred_after(seen: &[(u64, char, &str)]) -> char {
        let mut preferred_paths = PreferredPaths::default();
        for (at, place, up) in seen {
            let now = Instant::ZERO + Duration::from_secs(*at);
            preferred_paths.on_assigned(now, "app", *place, |path| up.contains(*path));
        }
        *preferred_paths.of("app").unwrap()
    }

    #[test]
    fn application_that_leaves_a_path_that_is_up_prefers_its_new_path() {
        assert_eq!(preferred_after(&[(0, 'p', "pq"), (1, 'q', "pq")]), 'q');
    }

    #[test]
    fn application_keeps_its_first_path_through_a_series_of_outages() {
        let seen = [
            (0, 'p', "pqr"),
            (1, 'q', "qr"),
            (2, 'r', "r"),
            (3, 'r', ""),
            (10, 'r', ""),
        ];
        assert_eq!(preferred_after(&seen), 'p');
    }

    #[test]
    fn long_displacement_or_a_path_that_is_back_makes_the_new_path_preferred() {
        assert_eq!(
            preferred_after(&[(0, 'p', "pq"), (1, 'q', "q"), (11, 'q', "q")]),
            'q'
        );
        assert_eq!(
            preferred_after(&[(0, 'p', "pq"), (1, 'q', "q"), (4, 'q', "pq")]),
            'q'
        );
    }

    #[test]
    fn return_restarts_the_time_of_displacement() {
        let seen = [
            (0, 'p', "pq"),
            (1, 'q', "q"),
            (9, 'p', "pq"),
            (12, 'q', "q"),
            (21, 'q', "q"),
        ];
        assert_eq!(preferred_after(&seen), 'p');
    }

    #[test]
    fn remembered_paths_do_not_replace_known_ones() {
        let mut preferred_paths = PreferredPaths::default();
        preferred_paths.remember("app", 'p');
        assert_eq!(preferred_paths.of("app"), Some(&'p'));
        preferred_paths.remember("app", 'q');
        assert_eq!(preferred_paths.of("app"), Some(&'p'));
        preferred_paths.retain(|_, preferred| *preferred != 'p');
        assert_eq!(preferred_paths.of("app"), None);
    }
}
