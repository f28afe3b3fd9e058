//! Stale routes: graceful restart (RFC 4724), enhanced route refresh (RFC 7313), and links that are
//! down.

use std::time::Duration;

use keiro_bgp::{
    rib::NeighbourId,
    speaker::{Event, Input},
};

use crate::{
    network::{Mute, Network},
    updates::{good, hear, listener, unreach, update},
};

const FIRST: NeighbourId = NeighbourId(0);

/// ROUTE-REFRESH of IPv6 unicast.
fn refresh(subtype: u8) -> Vec<u8> {
    let mut all = vec![0xff; 16];
    all.extend([0, 23, 5, 0, 2, subtype, 1]);
    all
}

const BEGIN: u8 = 1;
const END: u8 = 2;

fn end_of_rib() -> Vec<u8> {
    update(&[], &[unreach(1, &[])], &[])
}

/// The neighbour has two routes and both sides keep routes over a restart.
fn restartable() -> Network {
    let mut network = listener(65001, |config| {
        config.graceful_restart = Some(120);
        config.restarted = true;
    });
    for number in [1, 2] {
        hear(&mut network, good(number));
    }
    network
}

fn prefixes(network: &Network) -> Vec<String> {
    network.nodes[0].prefixes()
}

/// The neighbour restarts; its new session is up and nothing is announced yet. The speaker at the
/// other end announces End-of-RIB at once, so its octets are not sent.
fn restart(network: &mut Network) {
    network.nodes[1].mute = Mute::Updates;
    network.cut(0, FIRST);
    assert_eq!(prefixes(network).len(), 2, "kept");
    network.pass(Duration::from_secs(5));
    assert!(network.nodes[0].speaker.is_up(FIRST));
    assert_eq!(prefixes(network).len(), 2, "kept until End-of-RIB");
}

#[test]
fn a_refresh_during_a_restart_does_not_remove_stale_routes() {
    let mut network = restartable();
    restart(&mut network);
    for octets in [refresh(BEGIN), good(1), refresh(END)] {
        hear(&mut network, octets);
        assert_eq!(prefixes(&network).len(), 2);
    }
    hear(&mut network, end_of_rib());
    assert_eq!(prefixes(&network), ["2001:db8:1::/48"]);
    // After End-of-RIB a refresh removes what it leaves out.
    hear(&mut network, good(2));
    for octets in [refresh(BEGIN), good(2), refresh(END)] {
        hear(&mut network, octets);
    }
    assert_eq!(prefixes(&network), ["2001:db8:2::/48"]);
}

#[test]
fn stale_routes_are_removed_at_the_limit_without_end_of_rib() {
    let mut network = restartable();
    restart(&mut network);
    hear(&mut network, good(1));
    network.pass(Duration::from_secs(300));
    assert_eq!(prefixes(&network).len(), 2);
    network.pass(Duration::from_secs(100));
    assert_eq!(prefixes(&network), ["2001:db8:1::/48"]);
}

#[test]
fn end_of_route_refresh_without_a_beginning_removes_nothing() {
    let mut network = listener(65001, |_| ());
    for octets in [good(1), good(2), refresh(END)] {
        hear(&mut network, octets);
    }
    assert_eq!(prefixes(&network).len(), 2);
    // Nor does End-of-RIB in the middle of a refresh, which decides itself.
    for octets in [refresh(BEGIN), good(1), end_of_rib()] {
        hear(&mut network, octets);
        assert_eq!(prefixes(&network).len(), 2);
    }
    hear(&mut network, refresh(END));
    assert_eq!(prefixes(&network), ["2001:db8:1::/48"]);
}

#[test]
fn second_restart_removes_routes_that_were_stale_already() {
    let mut network = restartable();
    restart(&mut network);
    hear(&mut network, good(1));
    network.cut(0, FIRST);
    assert_eq!(prefixes(&network), ["2001:db8:1::/48"]);
}

#[test]
fn stale_routes_go_if_the_neighbour_lost_its_forwarding_state_or_does_not_come_back() {
    let mut network = listener(65001, |config| config.graceful_restart = Some(120));
    hear(&mut network, good(1));
    network.cut(0, FIRST);
    assert_eq!(prefixes(&network).len(), 1);
    network.pass(Duration::from_secs(5));
    assert!(network.nodes[0].speaker.is_up(FIRST));
    assert!(prefixes(&network).is_empty(), "not preserved");

    let mut network = restartable();
    network.hand(1, Input::LinkDown(FIRST));
    network.nodes[0].deaf = true;
    network.cut(0, FIRST);
    network.pass(Duration::from_secs(119));
    assert_eq!(prefixes(&network).len(), 2);
    network.pass(Duration::from_secs(2));
    assert!(prefixes(&network).is_empty(), "the restart time is over");
}

#[test]
fn link_down_ends_the_session_and_removes_its_routes() {
    let mut network = restartable();
    network.hand(0, Input::LinkDown(FIRST));
    assert!(!network.nodes[0].speaker.is_up(FIRST));
    assert!(prefixes(&network).is_empty());
    network.settle();
    let down = network.nodes[0]
        .events
        .iter()
        .find_map(|event| match event {
            Event::Down(_, down) => Some(down.clone()),
            _ => None,
        });
    let down = down.expect("reported");
    assert_eq!(down.reason, "the link to the neighbour is down");
    assert!(!down.graceful);
    // No attempt of ours follows until the link is up, and then one follows at once.
    network.hand(1, Input::LinkDown(FIRST));
    network.pass(Duration::from_secs(600));
    assert!(!network.nodes[0].speaker.is_up(FIRST));
    assert_eq!(network.nodes[0].speaker.poll_timeout(), None);
    network.hand(0, Input::LinkUp(FIRST));
    network.settle();
    assert!(network.nodes[0].speaker.is_up(FIRST));
}

#[test]
fn bfd_down_ends_the_session_and_removes_its_routes() {
    let mut network = restartable();
    network.hand(0, Input::BfdDown(FIRST));
    assert!(!network.nodes[0].speaker.is_up(FIRST));
    assert!(prefixes(&network).is_empty());
    network.settle();
    let reasons = |node: usize| {
        let events = network.nodes[node].events.iter();
        let down = events.filter_map(|event| match event {
            Event::Down(_, down) => Some(down.reason.clone()),
            _ => None,
        });
        down.collect::<Vec<_>>()
    };
    assert_eq!(reasons(0), ["BFD is down"]);
    // The neighbour hears it by RFC 9384, if it hears anything.
    let [theirs] = &reasons(1)[..] else {
        panic!("{:?}", reasons(1));
    };
    assert!(theirs.ends_with("subcode 10 (BFD down)"), "{theirs}");
    // A neighbour may begin BFD with the session only, so the session is tried without.
    network.pass(Duration::from_secs(10));
    assert!(network.nodes[0].speaker.is_up(FIRST));
}

#[test]
fn bfd_up_reconnects_at_once_and_keeps_the_failure_count() {
    let mut network = restartable();
    // Only the first one connects.
    network.hand(1, Input::LinkDown(FIRST));
    for _ in 0..6 {
        network.hand(0, Input::BfdDown(FIRST));
        network.settle();
        assert!(!network.nodes[0].speaker.is_up(FIRST));
        network.hand(0, Input::BfdUp(FIRST));
        network.settle();
        assert!(network.nodes[0].speaker.is_up(FIRST));
    }
    network.hand(0, Input::BfdDown(FIRST));
    network.pass(Duration::from_secs(5));
    assert!(!network.nodes[0].speaker.is_up(FIRST), "it waits");
    // Without carrier BFD starts nothing.
    network.hand(0, Input::LinkDown(FIRST));
    network.hand(0, Input::BfdUp(FIRST));
    network.settle();
    assert!(!network.nodes[0].speaker.is_up(FIRST));
    assert_eq!(network.nodes[0].speaker.poll_timeout(), None);
}

#[test]
fn bfd_down_during_graceful_restart_removes_stale_routes() {
    let mut network = restartable();
    network.cut(0, FIRST);
    assert_eq!(prefixes(&network).len(), 2, "kept");
    network.hand(0, Input::BfdDown(FIRST));
    assert!(prefixes(&network).is_empty());
}

#[test]
fn link_down_without_a_session_or_repeated_changes_nothing() {
    let mut network = listener(65001, |_| ());
    network.hand(0, Input::LinkUp(FIRST));
    network.settle();
    assert!(network.nodes[0].speaker.is_up(FIRST));
    for _ in 0..2 {
        network.hand(0, Input::LinkDown(FIRST));
        network.settle();
    }
    // Stopped meanwhile: the link does not start it.
    network.hand(0, Input::Stop(FIRST));
    network.hand(0, Input::LinkUp(FIRST));
    network.settle();
    assert!(!network.nodes[0].speaker.is_up(FIRST));
}
