//! Which paths an application may take while some of them are on hold-down.

use std::collections::BTreeSet;

/// Whether a path that is up, or was before a restart, may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathHoldDown {
    /// Usable by all applications.
    Released,
    /// It has stayed up for a while but failed too often lately. It is for applications whose latency target is met on
    /// no released path.
    Probation,
    /// It has not stayed up for long enough.
    Held,
    /// It was used before a restart and is being validated.
    Validating,
}

/// The paths that an application may be planned on, of the `paths` to its peer: those that are released, and the one
/// that it is `at` (or was at before a restart) whatever its hold-down, since an application moves only for a reason.
/// If there is none of these, all that are up.
pub fn eligible_paths<P: Copy + Ord>(
    paths: impl Iterator<Item = (P, PathHoldDown)> + Clone,
    at: Option<P>,
) -> BTreeSet<P> {
    let may = |(path, hold_down): &(P, PathHoldDown)| {
        *hold_down == PathHoldDown::Released || at == Some(*path)
    };
    let good: BTreeSet<P> = paths.clone().filter(may).map(|(path, _)| path).collect();
    if !good.is_empty() {
        return good;
    }
    let up = |(_, hold_down): &(P, PathHoldDown)| *hold_down != PathHoldDown::Validating;
    paths.filter(up).map(|(path, _)| path).collect()
}

/// The paths that an application may be planned on besides its [`eligible_paths()`], if its latency target is met on
/// none of those.
pub fn probation_paths<P: Copy + Ord>(
    paths: impl Iterator<Item = (P, PathHoldDown)>,
) -> BTreeSet<P> {
    let spare = |(_, hold_down): &(P, PathHoldDown)| *hold_down == PathHoldDown::Probation;
    paths.filter(spare).map(|(path, _)| path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use PathHoldDown::{Held, Probation, Released, Validating};

    fn of(paths: &[(u8, PathHoldDown)], at: Option<u8>) -> Vec<u8> {
        eligible_paths(paths.iter().copied(), at)
            .into_iter()
            .collect()
    }

    #[test]
    fn path_on_hold_takes_no_application_while_another_is_released() {
        let paths = [(1, Released), (2, Held), (3, Validating)];
        assert_eq!(of(&paths, None), [1]);
        assert_eq!(of(&paths, Some(1)), [1]);
    }

    #[test]
    fn application_may_stay_on_its_path_during_probation() {
        let paths = [(1, Released), (2, Held), (3, Validating)];
        assert_eq!(of(&paths, Some(2)), [1, 2]);
        assert_eq!(of(&paths, Some(3)), [1, 3]);
        assert_eq!(of(&paths[1..], Some(3)), [3]);
    }

    #[test]
    fn held_paths_are_eligible_where_none_is_released() {
        let paths = [(2, Held), (3, Validating), (4, Held)];
        assert_eq!(of(&paths, None), [2, 4]);
        assert_eq!(of(&paths, Some(9)), [2, 4]);
        assert_eq!(of(&[(3, Validating)], None), [] as [u8; 0]);
        assert_eq!(of(&[(2, Held), (5, Probation)], None), [2, 5]);
    }

    #[test]
    fn a_path_on_probation_is_only_a_fallback() {
        let paths = [(1, Released), (2, Held), (3, Validating), (5, Probation)];
        assert_eq!(of(&paths, None), [1]);
        assert_eq!(probation_paths(paths.into_iter()), [5].into());
    }
}
