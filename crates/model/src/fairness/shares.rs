//! Weighted max-min shares over several bottlenecks.
//!
//! What every flow gets when no flow can get more per weight without another, that has as much or
//! less per weight, getting less (Bertsekas & Gallager, Data Networks, §6.5.2, with weights).

use super::controller::Weight;
use keiro_units::Bandwidth;

/// A flow: its weight and the links that it takes, as indices.
#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    pub weight: Weight,
    /// Links by index; one named twice counts once.
    pub route: Vec<usize>,
}

/// A flow that has no share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoShare {
    /// It takes no link: nothing bounds it.
    Unbounded { flow: usize },
    /// It takes a link that does not exist.
    UnknownLink {
        flow: usize,
        /// The index that it names.
        link: usize,
    },
}

/// The rate of every flow, in the order of `flows`, bit/s, by progressive filling.
pub fn max_min(capacities: &[Bandwidth], flows: &[Flow]) -> Result<Vec<f64>, NoShare> {
    for (flow, Flow { route, .. }) in flows.iter().enumerate() {
        if route.is_empty() {
            return Err(NoShare::Unbounded { flow });
        }
        if let Some(&link) = route.iter().find(|link| **link >= capacities.len()) {
            return Err(NoShare::UnknownLink { flow, link });
        }
    }
    let mut left: Vec<f64> = capacities
        .iter()
        .map(|capacity| capacity.as_bits_per_second() as f64)
        .collect();
    let mut rates: Vec<Option<f64>> = vec![None; flows.len()];
    // Every turn settles the flows of one link at least.
    while rates.contains(&None) {
        let level = |link: usize| {
            let open = flows.iter().zip(&rates);
            let weights: f64 = open
                .filter(|(flow, rate)| rate.is_none() && flow.route.contains(&link))
                .map(|(flow, _)| flow.weight.get())
                .sum();
            (weights > 0.0).then(|| left[link].max(0.0) / weights)
        };
        let tightest = (0..capacities.len())
            .filter_map(|link| Some((level(link)?, link)))
            .min_by(|one, other| one.0.total_cmp(&other.0));
        let Some((level, link)) = tightest else { break };
        for (flow, rate) in flows.iter().zip(&mut rates) {
            if rate.is_some() || !flow.route.contains(&link) {
                continue;
            }
            let share = level * flow.weight.get();
            *rate = Some(share);
            let mut taken = flow.route.clone();
            taken.sort_unstable();
            taken.dedup();
            for link in taken {
                left[link] -= share;
            }
        }
    }
    Ok(rates.into_iter().map(|rate| rate.unwrap_or(0.0)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn flow(weight: f64, route: &[usize]) -> Flow {
        Flow {
            weight: Weight::new(weight).expect("above 0"),
            route: route.to_vec(),
        }
    }

    #[test]
    fn weights_of_the_papers_three_bottlenecks_follow() {
        for b3 in [10, 20, 30] {
            let capacities = [20, 10, b3].map(Bandwidth::from_mbit_per_second);
            // fig. 6: the first VPN takes all three links, each of the others one.
            let flows = [&[0, 1, 2][..], &[0], &[1], &[2]].map(|route| flow(1.0, route));
            let rates = max_min(&capacities, &flows).expect("all are bounded");
            let weights: Vec<f64> = rates.iter().map(|rate| rate / rates[0]).collect();
            let last = (b3 as f64 - 5.0) / 5.0;
            assert_eq!(weights, [1.0, 3.0, 1.0, last], "table 3");
        }
    }

    #[test]
    fn flows_without_a_bound_are_refused() {
        let capacities = [Bandwidth::from_mbit_per_second(1)];
        let unbounded = max_min(&capacities, &[flow(1.0, &[])]);
        assert_eq!(unbounded, Err(NoShare::Unbounded { flow: 0 }));
        let unknown = max_min(&capacities, &[flow(1.0, &[0]), flow(1.0, &[1])]);
        assert_eq!(unknown, Err(NoShare::UnknownLink { flow: 1, link: 1 }));
    }

    proptest! {
        /// No link carries more than it can, and every flow has a link that is full and on which
        /// no other flow has more per weight.
        #[test]
        fn every_flow_has_a_bottleneck(
            capacities in proptest::collection::vec(1u64..1000, 1..6),
            flows in proptest::collection::vec((1u32..50, proptest::collection::vec(0usize..6, 1..4)), 1..12),
        ) {
            let links = capacities.len();
            let flows: Vec<Flow> = flows
                .into_iter()
                .map(|(weight, route)| {
                    let route: Vec<usize> = route.into_iter().map(|link| link % links).collect();
                    flow(f64::from(weight), &route)
                })
                .collect();
            let capacities: Vec<Bandwidth> =
                capacities.into_iter().map(Bandwidth::from_mbit_per_second).collect();
            let rates = max_min(&capacities, &flows).expect("all are bounded");
            let load = |link: usize| -> f64 {
                let users = flows.iter().zip(&rates).filter(|(flow, _)| flow.route.contains(&link));
                users.map(|(_, rate)| rate).sum()
            };
            for (link, capacity) in capacities.iter().enumerate() {
                prop_assert!(load(link) <= capacity.as_bits_per_second() as f64 * (1.0 + 1e-9));
            }
            for (flow, rate) in flows.iter().zip(&rates) {
                let level = rate / flow.weight.get();
                let is_bottleneck = |link: &usize| {
                    let capacity = capacities[*link].as_bits_per_second() as f64;
                    let mut users = flows.iter().zip(&rates).filter(|(f, _)| f.route.contains(link));
                    load(*link) >= capacity * (1.0 - 1e-9)
                        && users.all(|(f, r)| r / f.weight.get() <= level * (1.0 + 1e-9))
                };
                prop_assert!(flow.route.iter().any(is_bottleneck));
            }
        }
    }
}
