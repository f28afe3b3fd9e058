//! A path of two that passes one direction only: each end sees from its own packets which one.

use std::time::Duration;

use keiro_core::{DeliveryClass, PathState, Unanswered};

use super::Pair;

/// What nothing has answered on the second path of a side.
fn unanswered(pair: &Pair, side: usize) -> Option<Unanswered> {
    let session = pair.ends[side].session(pair.peers[side])?;
    let path = session.paths.into_iter().nth(1)?;
    assert_eq!(path.unanswered.is_none(), path.state == PathState::Up);
    path.unanswered
}

#[test]
fn each_end_of_a_one_way_path_knows_which_direction_is_lost() {
    for blocked in [0, 1] {
        let mut pair = Pair::new(DeliveryClass::Message);
        pair.up();
        assert_eq!(unanswered(&pair, 0), None);
        pair.blocked = Some((blocked, 1));
        pair.run(Duration::from_secs(20), |_| false);
        let sender = unanswered(&pair, blocked).expect("its path is down");
        let other = unanswered(&pair, 1 - blocked).expect("its path is down");
        println!("blocked: {sender:?}; other: {other:?}");
        // Its packets are lost: it hears the other's challenges.
        assert!(sender.sent_packets >= 10 && sender.received_packets >= 10);
        let age = pair.now.saturating_duration_since(sender.heard_at.unwrap());
        assert!(age < Duration::from_secs(2), "{age:?}");
        assert!(other.sent_packets >= 10);
        // What was on the way when it went down is not counted as heard later on.
        assert!(other.received_packets <= 2, "{other:?}");
        // Data goes on over the other path meanwhile.
        pair.deliver_fifty();
        pair.blocked = None;
        let both_up = |pair: &Pair| (0..2).all(|side| unanswered(pair, side).is_none());
        assert!(pair.run(Duration::from_secs(2), both_up));
    }
}
