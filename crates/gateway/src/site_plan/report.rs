//! What a gateway publishes to its site.

use std::collections::BTreeMap;

use keiro_control::config::{AppIndex, Config, PathIndex, PathRole, PeerIndex};
use keiro_planner::{
    queueing::Spread,
    steer::{PathHoldDown, PathSample},
};
use keiro_store::{AppInputs, PathInputs};

use keiro_planning::{PlannerInput, traffic_of};

/// Whether `now` publishes the same as `published`: the path of an application before the plan placed it
/// is no change.
pub(super) fn is_unchanged(now: &[AppInputs], published: &[AppInputs]) -> bool {
    let same = |(now, published): (&AppInputs, &AppInputs)| {
        let path_now = now.path_now.as_ref().or(published.path_now.as_ref());
        let now = AppInputs {
            path_now: path_now.cloned(),
            ..now.clone()
        };
        now == *published
    };
    now.len() == published.len() && now.iter().zip(published).all(same)
}

/// What this gateway publishes to its site: path levels, not every sample; and those of `places`
/// that are not the site's.
pub(crate) fn inputs(
    config: &Config,
    input: &PlannerInput,
    places: Option<&BTreeMap<AppIndex, PathIndex>>,
) -> (Vec<PathInputs>, Vec<AppInputs>) {
    let path = |((index, peer), sample): (&(PathIndex, PeerIndex), &Option<PathSample>)| {
        let path = &config[*index];
        let usable = sample.map_or(path.rate_assumed(), |sample| {
            sample.bandwidth.min(path.rate_bound())
        });
        let line = input
            .shared
            .line_rate(*index, *peer, usable, path.rate_bound());
        let terms = input.terms(path.terms(), *index, *peer);
        PathInputs {
            name: path.name.to_string(),
            peer: config[*peer].name.to_string(),
            bandwidth_bits_per_second: usable.as_bits_per_second() as f64,
            delay_seconds: sample
                .map(|sample| sample.delay)
                .or(path.delay)
                .unwrap_or_default()
                .as_secs_f64(),
            loss_ratio: sample.map_or(0.0, |sample| sample.loss.get()),
            jitter_seconds: None,
            available_bits_per_second: None,
            line_bits_per_second: Some(line.as_bits_per_second() as f64),
            is_backup: terms.role == PathRole::Backup,
            cost_micros_per_gigabyte: terms.cost.as_micros(),
        }
    };
    let with_spreads = config.apps.len() <= SPREADS_APPS_MAX;
    let apps = config.apps.iter().enumerate().map(|(number, app)| {
        let index = AppIndex(number);
        let traffic = traffic_of(app, input.workloads.get(&index).copied());
        let cv2 = |spread: Spread, usual: Spread| {
            let is_published = with_spreads && spread != usual;
            is_published.then(|| (spread.ratio() * 1000.0).round() / 1000.0)
        };
        let wanted = input.operator.get(&index).copied().or(app.path);
        let is_own = wanted.is_none() && !input.site.contains_key(&index);
        let place = places
            .filter(|_| is_own)
            .and_then(|places| places.get(&index).or_else(|| input.now.get(&index)));
        AppInputs {
            name: app.name.to_string(),
            peer: config[app.peer].name.to_string(),
            length_bytes: traffic.app.length.get() as f64,
            interval_seconds: traffic.app.interval.as_secs_f64(),
            length_cv2: cv2(traffic.length_spread, Spread::NONE),
            interval_cv2: cv2(traffic.interval_spread, Spread::EXPONENTIAL),
            latency_target_seconds: app
                .latency_target
                .map(|latency_target| latency_target.as_secs_f64()),
            paths: wanted
                .map(|path| config[path].name.to_string())
                .into_iter()
                .collect(),
            pinned: wanted.is_some(),
            path_now: place.map(|path| config[*path].name.to_string()),
        }
    });
    let offered = |((path, peer), _): &(&(PathIndex, PeerIndex), _)| {
        let is_used = input
            .now
            .iter()
            .any(|(app, place)| place == path && config[*app].peer == *peer);
        is_published(input, *path, *peer, is_used) && !is_left_out(config, input, *path, *peer)
    };
    let paths = input.up.iter().filter(offered).map(path);
    (paths.collect(), apps.collect())
}

/// Whether the budget of a path is used up while that of another one to the peer is not: no plan is to use it.
fn is_left_out(config: &Config, input: &PlannerInput, path: PathIndex, peer: PeerIndex) -> bool {
    let is_spent = |path: PathIndex| input.terms(config[path].terms(), path, peer).is_spent;
    let mut to_peer = input.up.keys().filter(|(_, end)| *end == peer);
    is_spent(path) && to_peer.any(|(other, _)| !is_spent(*other))
}

/// Of more applications the spreads are left out, so that all fit into the document.
const SPREADS_APPS_MAX: usize = 5_000;

/// Whether a path to a peer is published. Paths on hold-down are published only while in use, so
/// that other gateways' plans do not use them either.
///
/// While no path to the peer is trusted, that would flip with every move. So none of its paths is
/// published until one is, or for two seconds; then all of them.
///
fn is_published(input: &PlannerInput, path: PathIndex, peer: PeerIndex, is_used: bool) -> bool {
    let to_peer = input.up.keys().filter(|(_, end)| *end == peer);
    let hold_downs = to_peer.map(|(path, peer)| input.hold_down(*path, *peer));
    match hold_downs.min() {
        Some(best @ (PathHoldDown::Released | PathHoldDown::Probation)) => {
            is_used || input.hold_down(path, peer) == best
        }
        Some(PathHoldDown::Held | PathHoldDown::Validating) | None => false,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use keiro_control::config::PathTerms;
    use keiro_planning::testing::{both_up, paper, placed};
    use keiro_units::{Bandwidth, Probability};

    use super::*;

    const PEER: PeerIndex = PeerIndex(0);

    fn held_down(hold_downs: [PathHoldDown; 2]) -> PlannerInput {
        let mut input = both_up();
        for (number, hold_down) in hold_downs.into_iter().enumerate() {
            if hold_down != PathHoldDown::Released {
                input
                    .hold_downs
                    .insert((PathIndex(number), PEER), hold_down);
            }
        }
        input
    }

    #[test]
    fn a_site_is_published_of_trusted_paths_and_of_those_in_use() {
        let published = |hold_downs: [PathHoldDown; 2], used: Option<usize>| {
            let input = held_down(hold_downs);
            let is_published =
                |path| is_published(&input, PathIndex(path), PEER, used == Some(path));
            [0, 1].map(is_published)
        };
        use PathHoldDown::{Held, Probation, Released, Validating};
        assert_eq!(published([Released, Released], None), [true, true]);
        assert_eq!(published([Released, Held], None), [true, false]);
        assert_eq!(published([Released, Held], Some(1)), [true, true]);
        assert_eq!(published([Probation, Held], None), [true, false]);
        assert_eq!(published([Probation, Probation], None), [true, true]);
        // Nothing is known yet: the application may still move.
        assert_eq!(published([Held, Validating], Some(0)), [false, false]);
    }

    #[test]
    fn the_path_before_a_plan_placed_an_app_is_not_reported() {
        let app = |path_now: Option<&str>| AppInputs {
            name: "x".into(),
            path_now: path_now.map(str::to_owned),
            ..AppInputs::default()
        };
        let unchanged = |now, before| is_unchanged(&[app(now)], &[app(before)]);
        assert!(unchanged(Some("p1"), Some("p1")));
        assert!(unchanged(None, Some("p1")));
        assert!(!unchanged(Some("p1"), None));
        assert!(!unchanged(Some("p2"), Some("p1")));
        assert!(!is_unchanged(&[app(None)], &[]));
        let longer = AppInputs {
            length_bytes: 2.0,
            ..app(None)
        };
        assert!(!is_unchanged(&[longer], &[app(None)]));
    }

    #[test]
    fn reported_are_levels_and_the_paths_of_apps_the_site_has_not_placed() {
        let config = paper("", "path = \"path2\"");
        let mut input = placed([1, 0, 1, 0, 1]);
        let level = PathSample {
            bandwidth: Bandwidth::from_mbit_per_second(40),
            delay: Duration::from_millis(7),
            loss: Probability::ZERO,
        };
        input.up.insert((PathIndex(0), PEER), Some(level));
        input.site.insert(AppIndex(1), PathIndex(0));
        let own = BTreeMap::from([(AppIndex(2), PathIndex(0))]);
        let (paths, apps) = inputs(&config, &input, Some(&own));
        let paths: Vec<_> = paths
            .iter()
            .map(|path| (path.bandwidth_bits_per_second, path.delay_seconds))
            .collect();
        // As measured, and as configured.
        assert_eq!(paths, [(40e6, 0.007), (100e6, 0.002)]);
        let spent = PathTerms {
            is_spent: true,
            ..PathTerms::FREE
        };
        let mut left_out = input.clone();
        left_out.terms.insert((PathIndex(0), PEER), spent);
        assert_eq!(inputs(&config, &left_out, Some(&own)).0.len(), 1);
        left_out.terms.insert((PathIndex(1), PEER), spent);
        assert_eq!(inputs(&config, &left_out, Some(&own)).0.len(), 2);
        let places: Vec<_> = apps.iter().map(|app| app.path_now.as_deref()).collect();
        // A1 is pinned, A2 is where the site has put it, A3 goes to path 1 now.
        let wanted = [None, None, Some("path1"), Some("path1"), Some("path2")];
        assert_eq!(places, wanted);
        assert!(apps[0].pinned && apps[0].paths == ["path2"]);
        // Alone, no path is published.
        let (_, apps) = inputs(&config, &input, None);
        assert!(apps.iter().all(|app| app.path_now.is_none()));
    }
}
