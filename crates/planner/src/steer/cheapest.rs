//! Which paths an application may take where they have roles and costs.

use std::collections::BTreeSet;

use keiro_model::path_terms::Price;

use super::PathChoice;

/// Conditions under which an application may use a path other than its cheapest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostRule<P> {
    /// It has a latency target, for which it may take a path that costs more. Without one it never does for the
    /// sake of speed.
    pub has_target: bool,
    /// Where it is. With a target it may stay there: it goes back only where that is met with room to spare
    /// ([`reduce_cost()`](crate::plan::reduce_cost())), so that it does not come and go.
    pub at: Option<P>,
}

/// What is left of `choice` for an application that goes by `price`: the cheapest of the allowed paths. The others
/// become fallback for one with a latency target. Where all cost the same, that is `choice`.
pub fn cheapest_paths<P: Copy + Ord>(
    choice: PathChoice<P>,
    cost_rule: CostRule<P>,
    price: impl Fn(P) -> Price,
) -> PathChoice<P> {
    let Some(least) = choice.allowed.iter().map(|path| price(*path)).min() else {
        return choice;
    };
    let (allowed, more): (BTreeSet<P>, BTreeSet<P>) = choice
        .allowed
        .iter()
        .partition(|path| price(**path) == least);
    match cost_rule.has_target {
        true => {
            let stays = cost_rule.at.filter(|at| more.contains(at));
            PathChoice {
                fallback: choice.fallback.union(&more).copied().collect(),
                allowed: allowed.into_iter().chain(stays).collect(),
            }
        }
        // It has no target that it could miss, so the fallback is for what it may pay.
        false => PathChoice {
            fallback: choice
                .fallback
                .into_iter()
                .filter(|path| price(*path) <= least)
                .collect(),
            allowed,
        },
    }
}

#[cfg(test)]
mod tests {
    use keiro_model::path_terms::{CostPerGb, PathRole};

    use super::*;

    /// Path 9 is a backup; the others cost their number.
    fn price(path: u8) -> Price {
        Price {
            role: match path {
                9 => PathRole::Backup,
                _ => PathRole::Primary,
            },
            cost: CostPerGb::from_micros(path.into()),
        }
    }

    fn left(allowed: &[u8], fallback: &[u8], has_target: bool, at: Option<u8>) -> [Vec<u8>; 2] {
        let choice = PathChoice {
            allowed: allowed.iter().copied().collect(),
            fallback: fallback.iter().copied().collect(),
        };
        let left = cheapest_paths(choice, CostRule { has_target, at }, price);
        [left.allowed, left.fallback].map(|paths| paths.into_iter().collect())
    }

    #[test]
    fn cheapest_primary_paths_come_first_and_the_others_if_a_target_needs_them() {
        assert_eq!(left(&[1, 3, 9], &[], true, None), [vec![1], vec![3, 9]]);
        assert_eq!(left(&[3, 9], &[5], true, None), [vec![3], vec![5, 9]]);
        assert_eq!(left(&[9], &[], true, None), [vec![9], vec![]], "no primary");
    }

    #[test]
    fn without_a_target_it_never_pays_more() {
        assert_eq!(left(&[1, 3, 9], &[], false, Some(9)), [vec![1], vec![]]);
        assert_eq!(left(&[3, 9], &[1, 5], false, None), [vec![3], vec![1]]);
        assert_eq!(
            left(&[9], &[], false, None),
            [vec![9], vec![]],
            "no primary"
        );
    }

    #[test]
    fn with_a_target_it_may_stay_where_it_is() {
        assert_eq!(
            left(&[1, 3, 9], &[], true, Some(9)),
            [vec![1, 9], vec![3, 9]]
        );
        assert_eq!(left(&[1, 3], &[9], true, Some(9)), [vec![1], vec![3, 9]]);
    }

    #[test]
    fn equal_prices_change_nothing() {
        let choice = PathChoice {
            allowed: [1, 2].into(),
            fallback: [3].into(),
        };
        for has_target in [true, false] {
            let cost_rule = CostRule {
                has_target,
                at: Some(2),
            };
            let left = cheapest_paths(choice.clone(), cost_rule, |_| price(9));
            assert_eq!(left, choice);
        }
    }
}
