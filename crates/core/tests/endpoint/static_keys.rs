//! Static keys that follow one another: the session goes on, and the key before is refused.

use std::time::Duration;

use keiro_core::{Event, PublicKey};

use super::support::{Hello, Net, address, drops, feed, key};

const SECOND: Duration = Duration::from_secs(1);

/// The newest static keys that a side has reported, ours first.
fn used(net: &Net, side: usize) -> Option<[PublicKey; 2]> {
    let mut events = net.events[side].iter().rev();
    events.find_map(|event| match event {
        Event::StaticKeysUsed { ours, theirs, .. } => Some([*ours, *theirs]),
        _ => None,
    })
}

fn is_down(net: &Net) -> bool {
    let mut events = net.events.iter().flatten();
    events.any(|event| matches!(event, Event::PeerDown { .. }))
}

#[test]
fn a_key_that_follows_another_is_used_in_the_same_session_and_the_first_is_refused() {
    let mut net = Net::new();
    assert!(net.deliver());
    let public = |number| key(number).public_key();
    let [first, new, second] = [1, 3, 2].map(public);
    assert_eq!(used(&net, 1), Some([second, first]));
    // Side 1 accepts both, and nothing changes until side 0 uses the new one.
    net.ends[1].set_peer_keys(net.now, net.peers[1], first, Some(new));
    net.ends[0].set_private_keys(net.now, key(1), Some(key(3)));
    assert!(net.deliver());
    net.run(SECOND, |_| false);
    assert_eq!(used(&net, 1), Some([second, first]));
    net.ends[0].set_private_keys(net.now, key(3), Some(key(1)));
    assert!(net.run(SECOND, |net| used(net, 1) == Some([second, new])));
    assert!(net.deliver());
    assert_eq!(used(&net, 0), Some([new, second]));
    // The first is refused from now on; a handshake of side 1 is made for the new one.
    net.ends[1].set_peer_keys(net.now, net.peers[1], new, None);
    net.ends[0].set_private_keys(net.now, key(3), None);
    net.run(SECOND, |_| false);
    assert!(net.deliver());
    assert!(!is_down(&net), "{:?}", net.events);
    let (_, initiation) = Hello::new(1, 2, u64::MAX / 2).initiate();
    feed(&mut net.ends[1], net.now, address(1), &initiation);
    net.run(SECOND, |_| false);
    assert!(drops(&net.ends[1], &[]).contains_key("foreign_key"));
    assert!(net.deliver());
}

#[test]
fn a_peer_reaches_an_endpoint_by_the_key_before_as_long_as_that_is_kept() {
    let mut net = Net::new();
    assert!(net.deliver());
    // Side 1 uses another key, and side 0 has not heard of it.
    net.ends[1].set_private_keys(net.now, key(3), Some(key(2)));
    net.run(150 * SECOND, |_| false);
    assert!(net.deliver());
    assert!(!is_down(&net), "{:?}", net.events);
    // It hears of it.
    let new = key(3).public_key();
    net.ends[0].set_peer_keys(net.now, net.peers[0], new, Some(key(2).public_key()));
    assert!(net.run(SECOND, |net| used(net, 1)
        == Some([new, key(1).public_key()])));
    net.ends[1].set_private_keys(net.now, key(3), None);
    net.run(150 * SECOND, |_| false);
    assert!(net.deliver());
    assert!(!is_down(&net), "{:?}", net.events);
}

#[test]
fn a_key_belongs_to_one_peer() {
    let mut net = Net::new();
    assert!(net.deliver());
    let other = super::support::peer(3, Some(address(9)));
    let third = net.ends[0].add_peer(net.now, other);
    let own = key(2).public_key();
    net.ends[0].set_peer_keys(net.now, net.peers[0], own, Some(key(3).public_key()));
    net.ends[0].check_invariants();
    assert!(net.ends[0].session(third).is_none(), "it has lost its key");
    assert!(net.deliver());
}
