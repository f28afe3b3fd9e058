//! Terms of a path: the peer learns of them, and a path whose budget is used up carries keepalives only.

use std::time::Duration;

use keiro_core::{AppConfig, CostPerGb, DeliveryClass, PathId, PathRole, PathTerms};
use keiro_units::Bandwidth;

use super::{Pair, app_config, paths_to};

const SECOND: Duration = Duration::from_secs(1);
/// The second path.
const MODEM: usize = 1;

fn use_on(pair: &mut Pair, side: usize, terms: PathTerms) {
    let mut paths = paths_to(1 - side, Bandwidth::from_mbit_per_second(100));
    paths[MODEM].terms = terms;
    let (now, peer) = (pair.now, pair.peers[side]);
    pair.ends[side].set_paths(now, peer, &paths);
}

fn peer_terms(pair: &Pair, side: usize) -> PathTerms {
    let session = pair.ends[side].session(pair.peers[side]).expect("a peer");
    session.paths[MODEM].peer_terms
}

fn carried(pair: &Pair) -> u64 {
    let session = pair.ends[0].session(pair.peers[0]).expect("a peer");
    let stats = session.paths[MODEM].stats;
    stats.sent_bytes + stats.received_bytes
}

fn take(pair: &mut Pair, paths: &[u8]) {
    for side in 0..2 {
        let app = AppConfig {
            paths: paths.iter().map(|path| PathId(*path)).collect(),
            ..app_config(DeliveryClass::Message)
        };
        pair.ends[side].set_app(pair.peers[side], app);
    }
}

#[test]
fn the_peer_learns_of_terms_at_once_and_of_every_change() {
    let mut pair = Pair::new(DeliveryClass::Message);
    pair.up();
    assert_eq!(peer_terms(&pair, 1), PathTerms::FREE);
    let terms = PathTerms {
        role: PathRole::Backup,
        cost: CostPerGb::new(3.5).unwrap(),
        is_spent: false,
    };
    for terms in [terms, PathTerms::FREE, terms] {
        use_on(&mut pair, 0, terms);
        let knows = |pair: &Pair| peer_terms(pair, 1) == terms;
        assert!(pair.run(SECOND / 5, knows), "{terms:?}");
        assert_eq!(peer_terms(&pair, 0), PathTerms::FREE);
    }
    // One that restarts learns of them by challenges.
    pair.restart(DeliveryClass::Message);
    let knows = |pair: &Pair| peer_terms(pair, 1) == terms;
    assert!(pair.run(10 * SECOND, knows));
}

#[test]
fn readded_path_has_no_earlier_terms() {
    let mut pair = Pair::new(DeliveryClass::Message);
    pair.up();
    let terms = PathTerms {
        role: PathRole::Backup,
        ..PathTerms::FREE
    };
    use_on(&mut pair, 0, terms);
    assert!(pair.run(SECOND, |pair| peer_terms(pair, 1) == terms));
    let first_only = |pair: &mut Pair, side: usize| {
        let paths = paths_to(1 - side, Bandwidth::from_mbit_per_second(100));
        let (now, peer) = (pair.now, pair.peers[side]);
        pair.ends[side].set_paths(now, peer, &paths[..1]);
    };
    // The peer keeps its path all the while.
    first_only(&mut pair, 0);
    pair.run(SECOND, |_| false);
    use_on(&mut pair, 0, PathTerms::FREE);
    let is_free = |pair: &Pair| peer_terms(pair, 1) == PathTerms::FREE;
    assert!(pair.run(2 * SECOND, is_free));
    // Where the peer removes and adds it, it learns the terms anew.
    use_on(&mut pair, 0, terms);
    assert!(pair.run(SECOND, |pair| peer_terms(pair, 1) == terms));
    first_only(&mut pair, 1);
    pair.run(SECOND, |_| false);
    use_on(&mut pair, 1, PathTerms::FREE);
    assert_eq!(peer_terms(&pair, 1), PathTerms::FREE);
    assert!(pair.run(2 * SECOND, |pair| peer_terms(pair, 1) == terms));
}

#[test]
fn path_with_a_spent_budget_carries_keepalives_and_its_pinned_apps() {
    let mut pair = Pair::new(DeliveryClass::Message);
    pair.up();
    take(&mut pair, &[0]);
    let spent = PathTerms {
        is_spent: true,
        ..PathTerms::FREE
    };
    use_on(&mut pair, 0, spent);
    pair.run(SECOND, |_| false);
    assert!(peer_terms(&pair, 1).is_spent);
    let before = carried(&pair);
    pair.deliver_fifty();
    pair.run(60 * SECOND, |_| false);
    let bytes = carried(&pair) - before;
    assert!(bytes > 0 && bytes < 10_000, "{bytes} bytes in a minute");
    // Where there is no other path, data waits for one.
    pair.down[0] = true;
    pair.run(5 * SECOND, |_| false);
    let before = carried(&pair);
    pair.sides[1].messages.clear();
    pair.send(0, vec![7; 100_000]).expect("room");
    let arrives = |pair: &Pair| !pair.sides[1].messages.is_empty();
    assert!(!pair.run(5 * SECOND, arrives));
    assert!(carried(&pair) - before < 10_000);
    take(&mut pair, &[0, 1]);
    assert!(pair.run(SECOND, arrives), "it may use the path now");
}

#[test]
fn a_spread_application_keeps_to_the_cheapest_paths() {
    let mut pair = Pair::new(DeliveryClass::Message);
    pair.up();
    for side in 0..2 {
        let app = AppConfig {
            is_spread: true,
            ..app_config(DeliveryClass::Message)
        };
        pair.ends[side].set_app(pair.peers[side], app);
    }
    let transfer = |pair: &mut Pair| {
        let before = carried(pair);
        pair.sides[1].messages.clear();
        pair.send(0, vec![7; 2_000_000]).expect("room");
        let arrives = |pair: &Pair| !pair.sides[1].messages.is_empty();
        assert!(pair.run(10 * SECOND, arrives));
        carried(pair) - before
    };
    let bytes = transfer(&mut pair);
    assert!(bytes > 200_000, "{bytes} bytes at the same cost");
    let terms = PathTerms {
        cost: CostPerGb::new(0.5).unwrap(),
        ..PathTerms::FREE
    };
    use_on(&mut pair, 1, terms);
    pair.run(SECOND, |_| false);
    let bytes = transfer(&mut pair);
    assert!(bytes < 50_000, "{bytes} bytes at a cost");
}

#[test]
fn the_peer_learns_of_terms_while_data_waits_and_though_packets_are_lost() {
    let mut pair = Pair::new(DeliveryClass::Message);
    pair.up();
    take(&mut pair, &[1, 0]);
    let terms = PathTerms {
        role: PathRole::Backup,
        ..PathTerms::FREE
    };
    // A tenth of a second of the line, so that something is outstanding all the time.
    pair.send(0, vec![7; 4_000_000]).expect("room");
    pair.run(SECOND / 50, |_| false);
    pair.down[MODEM] = true;
    use_on(&mut pair, 0, terms);
    pair.run(SECOND / 50, |_| false);
    assert_eq!(
        peer_terms(&pair, 1),
        PathTerms::FREE,
        "what names them is lost"
    );
    pair.down[MODEM] = false;
    let arrives = |pair: &Pair| !pair.sides[1].messages.is_empty();
    assert!(pair.run(SECOND / 5, |pair| peer_terms(pair, 1) == terms));
    assert!(pair.run(5 * SECOND, arrives));
}
