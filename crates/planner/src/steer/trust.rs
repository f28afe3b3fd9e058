//! Where an application may go, while paths come up, die and come back.

use std::collections::BTreeSet;

/// How it is with a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// One to go to.
    Trusted,
    /// It has stayed up for a while, but died too often of late: for those whose latency target is met
    /// nowhere else.
    OnProbation,
    /// It is up, but has to show that it stays.
    Unproven,
    /// It was there before a restart, and is being asked whether it still is.
    Awaited,
}

/// The paths that an application may be planned on, of those that lead to its peer: the trusted
/// ones, and the one that it is on (or was on before a restart), whatever its standing: who is there
/// moves only for a reason. Where there is none of these, the unproven ones.
pub fn choices<P: Copy + Ord>(
    paths: impl Iterator<Item = (P, Standing)> + Clone,
    at: Option<P>,
) -> BTreeSet<P> {
    let may =
        |(path, standing): &(P, Standing)| *standing == Standing::Trusted || at == Some(*path);
    let good: BTreeSet<P> = paths.clone().filter(may).map(|(path, _)| path).collect();
    if !good.is_empty() {
        return good;
    }
    let up = |(_, standing): &(P, Standing)| *standing != Standing::Awaited;
    paths.filter(up).map(|(path, _)| path).collect()
}

/// The paths that an application may be planned on besides its [`choices()`] if its latency target is met on
/// none of these.
pub fn spares<P: Copy + Ord>(paths: impl Iterator<Item = (P, Standing)>) -> BTreeSet<P> {
    let spare = |(_, standing): &(P, Standing)| *standing == Standing::OnProbation;
    paths.filter(spare).map(|(path, _)| path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use Standing::{Awaited, OnProbation, Trusted, Unproven};

    fn of(paths: &[(u8, Standing)], at: Option<u8>) -> Vec<u8> {
        choices(paths.iter().copied(), at).into_iter().collect()
    }

    #[test]
    fn nobody_is_sent_to_a_path_that_is_not_trusted_while_there_is_another() {
        let paths = [(1, Trusted), (2, Unproven), (3, Awaited)];
        assert_eq!(of(&paths, None), [1]);
        assert_eq!(of(&paths, Some(1)), [1]);
    }

    #[test]
    fn who_is_there_may_stay() {
        let paths = [(1, Trusted), (2, Unproven), (3, Awaited)];
        assert_eq!(of(&paths, Some(2)), [1, 2]);
        assert_eq!(of(&paths, Some(3)), [1, 3]);
        assert_eq!(of(&paths[1..], Some(3)), [3]);
    }

    #[test]
    fn an_unproven_path_is_better_than_none() {
        let paths = [(2, Unproven), (3, Awaited), (4, Unproven)];
        assert_eq!(of(&paths, None), [2, 4]);
        assert_eq!(of(&paths, Some(9)), [2, 4]);
        assert_eq!(of(&[(3, Awaited)], None), [] as [u8; 0]);
        assert_eq!(of(&[(2, Unproven), (5, OnProbation)], None), [2, 5]);
    }

    #[test]
    fn a_path_on_probation_is_for_those_who_need_it() {
        let paths = [(1, Trusted), (2, Unproven), (3, Awaited), (5, OnProbation)];
        assert_eq!(of(&paths, None), [1]);
        assert_eq!(spares(paths.into_iter()), [5].into());
    }
}
