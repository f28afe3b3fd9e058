//! How sessions are established, lost and re-established.

use std::time::Duration;

use keiro_bgp::{
    address::Family,
    rib::NeighbourId,
    session::State,
    speaker::{Event, Input},
};

use crate::network::{Network, neighbour};

const FIRST: NeighbourId = NeighbourId(0);

fn pair(change: impl Fn(&mut keiro_bgp::speaker::NeighbourConfig)) -> Network {
    let mut network = Network::new();
    let (a, b) = (network.add(65001), network.add(4_200_000_002));
    let (mut of_b, mut of_a) = (
        neighbour(4_200_000_002, &[Family::Ipv6]),
        neighbour(65001, &[Family::Ipv6]),
    );
    change(&mut of_b);
    change(&mut of_a);
    network.join(a, b, of_b, of_a);
    network.start_all();
    network
}

fn originate(network: &mut Network, node: usize, prefix: &str) {
    network.hand(node, Input::Originate(prefix.parse().unwrap()));
    network.settle();
}

#[test]
fn connection_collision_keeps_one_connection() {
    let mut network = pair(|_| ());
    network.pass(Duration::from_secs(20));
    for node in &network.nodes {
        let ups = node.events.iter().filter(|e| matches!(e, Event::Up(_)));
        assert_eq!(ups.count(), 1, "{:?}", node.events);
        assert_eq!(node.speaker.status(FIRST).state, State::Established);
    }
    let negotiated = network.nodes[0].speaker.status(FIRST).negotiated;
    assert_eq!(negotiated.asn, 4_200_000_002);
    assert!(negotiated.route_refresh);
}

#[test]
fn session_ends_when_the_hold_timer_expires() {
    let mut network = pair(|config| config.hold_time = 9);
    network.pass(Duration::from_secs(60));
    assert!(network.nodes[0].speaker.is_up(FIRST));
    // Node 1 receives and sends nothing from now on.
    let connection = network.connection_of(0, FIRST);
    let start = network.now;
    while network.nodes[0].speaker.is_up(FIRST) {
        network.now = network.nodes[0].speaker.poll_timeout().unwrap();
        network.hand(0, Input::Timeout);
        let mut sent = Vec::new();
        network.nodes[0]
            .speaker
            .transmit(connection, &mut sent, 1000);
    }
    assert!(network.now - start <= Duration::from_secs(9));
    let error = network.nodes[0].speaker.status(FIRST).last_error.unwrap();
    assert_eq!(error, "hold timer expired (9 s)");
}

#[test]
fn broken_session_removes_its_routes_and_reconnects() {
    let mut network = pair(|_| ());
    originate(&mut network, 1, "2001:db8:1::/48");
    assert_eq!(network.nodes[0].prefixes(), ["2001:db8:1::/48"]);
    network.cut(0, FIRST);
    assert!(network.nodes[0].prefixes().is_empty());
    network.pass(Duration::from_secs(10));
    assert_eq!(network.nodes[0].prefixes(), ["2001:db8:1::/48"]);
    assert_eq!(network.nodes[0].speaker.status(FIRST).times_up, 2);
}

#[test]
fn reconnects_of_a_flapping_session_back_off() {
    let mut network = pair(|_| ());
    let end = network.now + Duration::from_secs(200);
    while network.now < end {
        if network.nodes[0].speaker.is_up(FIRST) {
            network.cut(0, FIRST);
        }
        network.pass(Duration::from_millis(50));
    }
    let ups = network.nodes[0].speaker.status(FIRST).times_up;
    assert!((4..=20).contains(&ups), "{ups}");
}

#[test]
fn stopping_sends_a_notification_and_withdraws_all_routes() {
    let mut network = pair(|config| config.graceful_restart = Some(120));
    originate(&mut network, 1, "2001:db8:1::/48");
    network.hand(1, Input::Stop(FIRST));
    network.settle();
    assert!(network.nodes[0].prefixes().is_empty());
    let error = network.nodes[0].speaker.status(FIRST).last_error.unwrap();
    assert!(error.starts_with("NOTIFICATION received"), "{error}");
    network.pass(Duration::from_secs(100));
    assert!(!network.nodes[0].speaker.is_up(FIRST));
}

#[test]
fn graceful_restart_keeps_routes_until_new_ones_are_announced() {
    let mut network = pair(|config| {
        config.graceful_restart = Some(120);
        config.restarted = true;
    });
    originate(&mut network, 1, "2001:db8:1::/48");
    originate(&mut network, 1, "2001:db8:2::/48");
    network.cut(0, FIRST);
    assert_eq!(network.nodes[0].prefixes().len(), 2);
    network.hand(1, Input::Retract("2001:db8:1::/48".parse().unwrap()));
    network.nodes[0].speaker.take_changes();
    network.pass(Duration::from_secs(10));
    assert_eq!(network.nodes[0].prefixes(), ["2001:db8:2::/48"]);
    let changes = network.nodes[0].speaker.take_changes();
    assert_eq!(changes.best.len(), 1, "the one that stayed never changed");
}

#[test]
fn routes_are_removed_if_a_restarting_neighbour_stays_away() {
    let mut network = pair(|config| {
        config.graceful_restart = Some(30);
        config.restarted = true;
    });
    originate(&mut network, 1, "2001:db8:1::/48");
    network.hand(1, Input::Stop(FIRST));
    network.settle();
    network.hand(1, Input::Start(FIRST));
    network.pass(Duration::from_secs(10));
    network.cut(0, FIRST);
    // The neighbour may not be reachable again.
    network.hand(0, Input::Stop(FIRST));
    assert!(network.nodes[0].prefixes().is_empty());
}

#[test]
fn exceeding_routes_max_ends_the_session_for_a_minute() {
    let mut network = pair(|config| config.routes_max = Some(2));
    for prefix in ["2001:db8:1::/48", "2001:db8:2::/48", "2001:db8:3::/48"] {
        originate(&mut network, 1, prefix);
    }
    let events = &network.nodes[0].events;
    let exceeded = events.contains(&Event::MaxPrefixExceeded(FIRST, Family::Ipv6));
    assert!(exceeded, "{events:?}");
    assert!(network.nodes[0].prefixes().is_empty());
    network.pass(Duration::from_secs(50));
    assert!(!network.nodes[0].speaker.is_up(FIRST));
    network.hand(1, Input::Retract("2001:db8:3::/48".parse().unwrap()));
    network.pass(Duration::from_secs(100));
    assert_eq!(network.nodes[0].prefixes().len(), 2);
}

#[test]
fn changed_routes_max_applies_at_once() {
    let mut network = pair(|_| {});
    for prefix in ["2001:db8:1::/48", "2001:db8:2::/48", "2001:db8:3::/48"] {
        originate(&mut network, 1, prefix);
    }
    let set = |network: &mut Network, most: usize| {
        let now = network.now;
        let node = &mut network.nodes[0];
        node.neighbours[0].routes_max = Some(most);
        let config = node.neighbours[0].clone();
        node.speaker.set_policies(now, FIRST, config);
        network.settle();
    };
    set(&mut network, 3);
    assert_eq!(network.nodes[0].prefixes().len(), 3);
    // No route was announced since.
    set(&mut network, 2);
    let events = &network.nodes[0].events;
    let exceeded = events.contains(&Event::MaxPrefixExceeded(FIRST, Family::Ipv6));
    assert!(exceeded, "{events:?}");
    assert!(network.nodes[0].prefixes().is_empty());
    assert!(!network.nodes[0].speaker.is_up(FIRST));
    // Nor is there a wait for the rest of the idle hold time of the old bound.
    network.pass(Duration::from_secs(10));
    set(&mut network, 3);
    network.pass(Duration::from_secs(1));
    assert!(network.nodes[0].speaker.is_up(FIRST));
    assert_eq!(network.nodes[0].prefixes().len(), 3);
}

#[test]
fn a_neighbour_of_another_as_than_configured_is_refused() {
    let mut network = Network::new();
    let (a, b) = (network.add(65001), network.add(65002));
    network.join(
        a,
        b,
        neighbour(65009, &[Family::Ipv6]),
        neighbour(65001, &[Family::Ipv6]),
    );
    network.start_all();
    network.pass(Duration::from_secs(30));
    let status = network.nodes[0].speaker.status(FIRST);
    assert_ne!(status.state, State::Established);
    let error = status.last_error.unwrap();
    assert!(error.contains("OPEN refused (AS 65002"), "{error}");
}
