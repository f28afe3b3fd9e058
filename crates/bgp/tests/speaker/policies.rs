//! Changes of policies and VRPs while sessions are up: routes are re-evaluated as received.

use std::sync::Arc;

use keiro_bgp::{
    address::{Destination, Family},
    communities::{Community, CommunityChanges, CommunityPattern},
    policy::{Action, AttributeChanges, GracefulShutdown, Policy, PrefixRange, Rule},
    rib::NeighbourId,
    rpki::{Validity, Vrp, Vrps},
    speaker::{Event, Input, NeighbourConfig},
};

use proptest::prelude::*;

use crate::network::{Network, neighbour};

const V6: &[Family] = &[Family::Ipv6];
const BORDER: usize = 1;
const INSIDE: usize = 2;

/// A transit (AS 65001), the border router, and an iBGP neighbour; the transit has three prefixes.
fn network(import: Policy) -> (Network, NeighbourId) {
    let mut network = Network::new();
    let (transit, border, inside) = (network.add(65001), network.add(65000), network.add(65000));
    assert_eq!((border, inside), (BORDER, INSIDE));
    let of_transit = NeighbourConfig {
        import,
        ..neighbour(65001, V6)
    };
    let (id, _) = network.join(border, transit, of_transit, neighbour(65000, V6));
    network.join(border, inside, neighbour(65000, V6), neighbour(65000, V6));
    network.start_all();
    for number in 1..=3 {
        let prefix = format!("2001:db8:{number}::/48").parse().unwrap();
        network.hand(transit, Input::Originate(prefix));
    }
    network.settle();
    (network, id)
}

fn only(prefixes: &[&str], changes: AttributeChanges) -> Policy {
    let range = |text: &&str| PrefixRange::exactly(text.parse().unwrap());
    Policy {
        rules: vec![Rule {
            prefixes: prefixes.iter().map(range).collect(),
            action: Action::Permit(changes),
            ..Rule::default()
        }],
        ..Policy::default()
    }
}

fn set_import(network: &mut Network, id: NeighbourId, import: Policy) {
    let config = &mut network.nodes[BORDER].neighbours[usize::from(id.0)];
    config.import = import;
    let config = config.clone();
    let now = network.now;
    network.nodes[BORDER].speaker.set_policies(now, id, config);
    network.settle();
}

/// Makes the transit announce its routes with a MED.
fn say(network: &mut Network, med: u32) {
    let transit = &mut network.nodes[0];
    let with = AttributeChanges {
        med: Some(med),
        ..AttributeChanges::default()
    };
    transit.neighbours[0].export = Policy {
        rules: vec![Rule {
            action: Action::Permit(with),
            ..Rule::default()
        }],
        ..Policy::default()
    };
    let config = transit.neighbours[0].clone();
    let now = network.now;
    transit.speaker.set_policies(now, NeighbourId(0), config);
    network.settle();
}

fn preference(network: &Network, prefix: &str) -> Option<u32> {
    let destination = Destination::unicast(prefix.parse().unwrap());
    let path = network.nodes[BORDER].speaker.rib().best(&destination)?;
    path.attributes.local_pref
}

fn vrps(of: &[(&str, u32)]) -> Arc<Vrps> {
    let all = of.iter().map(|(prefix, asn)| Vrp {
        prefix: prefix.parse().unwrap(),
        length_max: 48,
        asn: *asn,
    });
    Arc::new(Vrps::new(all.collect()))
}

/// The number of inputs of the border router so far.
fn heard(network: &Network) -> usize {
    network.nodes[BORDER].log.len()
}

/// Has a node set what it does for graceful shutdowns, on import and export.
fn set_graceful_shutdown(network: &mut Network, node: usize, import: bool, to: GracefulShutdown) {
    let now = network.now;
    let node = &mut network.nodes[node];
    let config = &mut node.neighbours[0];
    match import {
        true => config.import.graceful_shutdown = to,
        false => config.export.graceful_shutdown = to,
    }
    let config = config.clone();
    node.speaker.set_policies(now, NeighbourId(0), config);
    network.settle();
}

#[test]
fn a_graceful_shutdown_makes_routes_the_last_choice_while_it_lasts() {
    use GracefulShutdown::{All, Never, Received};
    const TRANSIT: usize = 0;
    let preferred = AttributeChanges {
        local_pref: Some(200),
        ..AttributeChanges::default()
    };
    let one = "2001:db8:1::/48";
    let (mut network, _) = network(only(&[one], preferred));
    set_graceful_shutdown(&mut network, BORDER, true, Received);
    assert_eq!(preference(&network, one), Some(200));
    // The transit is to go: its routes come again, with the community.
    set_graceful_shutdown(&mut network, TRANSIT, false, All);
    assert_eq!(preference(&network, one), Some(0), "whatever the rule says");
    let destination = Destination::unicast(one.parse().unwrap());
    let inside = &network.nodes[INSIDE].speaker;
    let best = inside.rib().best(&destination).unwrap();
    assert_eq!(best.attributes.local_pref, Some(0));
    assert_eq!(best.attributes.communities[..], [0xffff_0000]);
    set_graceful_shutdown(&mut network, BORDER, true, Never);
    assert_eq!(preference(&network, one), Some(200), "not honoured");
    set_graceful_shutdown(&mut network, BORDER, true, Received);
    set_graceful_shutdown(&mut network, TRANSIT, false, Never);
    assert_eq!(preference(&network, one), Some(200), "it is over");
    // Drained from this side, without a word of the transit. Routers inside are informed.
    set_graceful_shutdown(&mut network, BORDER, true, All);
    assert_eq!(preference(&network, one), Some(0));
    let inside = network.nodes[INSIDE].speaker.rib().best(&destination);
    assert!(inside.unwrap().attributes.is_draining());
    set_graceful_shutdown(&mut network, BORDER, true, Never);
    let inside = network.nodes[INSIDE].speaker.rib().best(&destination);
    assert!(!inside.unwrap().attributes.is_draining());
}

#[test]
fn rules_match_add_and_remove_communities_on_import_and_export() {
    let changes = |remove: &[CommunityPattern], add: &[Community]| {
        let (remove, add) = (remove.to_vec(), add.to_vec());
        AttributeChanges {
            communities: Some(Arc::new(CommunityChanges { remove, add })),
            ..AttributeChanges::default()
        }
    };
    let one = "2001:db8:1::/48";
    let (mut network, id) = network(Policy::default());
    let marked = changes(
        &[],
        &[
            Community::Large([65001, 1, 7]),
            Community::Standard(65001 << 16 | 9),
        ],
    );
    let now = network.now;
    let transit = &mut network.nodes[0];
    transit.neighbours[0].export = only(&[one], marked);
    transit.neighbours[0]
        .export
        .rules
        .extend(Policy::permit_all().rules);
    let config = transit.neighbours[0].clone();
    transit.speaker.set_policies(now, NeighbourId(0), config);
    network.settle();
    let import = Policy {
        rules: vec![Rule {
            communities: vec![CommunityPattern::Large(65001, [Some(1), None])],
            action: Action::Permit(AttributeChanges {
                local_pref: Some(150),
                ..changes(
                    &[CommunityPattern::Standard(65001, None)],
                    &[Community::Standard(65000 << 16 | 5)],
                )
            }),
            ..Rule::default()
        }],
        ..Policy::default()
    };
    set_import(&mut network, id, import);
    assert_eq!(
        network.nodes[INSIDE].prefixes(),
        [one],
        "the others have none"
    );
    assert_eq!(preference(&network, one), Some(150));
    let destination = Destination::unicast(one.parse().unwrap());
    let inside = network.nodes[INSIDE]
        .speaker
        .rib()
        .best(&destination)
        .unwrap();
    assert_eq!(inside.attributes.communities[..], [65000 << 16 | 5]);
    assert_eq!(inside.attributes.large[..], [[65001, 1, 7]]);
}

#[test]
fn a_new_policy_is_applied_without_a_route_refresh() {
    let preferred = |value| AttributeChanges {
        local_pref: Some(value),
        ..AttributeChanges::default()
    };
    let one = ["2001:db8:1::/48"];
    let (mut network, id) = network(only(&one, AttributeChanges::default()));
    assert_eq!(network.nodes[BORDER].prefixes(), one);
    let before = heard(&network);
    set_import(&mut network, id, Policy::permit_all());
    assert_eq!(network.nodes[BORDER].prefixes().len(), 3);
    assert_eq!(
        network.nodes[INSIDE].prefixes().len(),
        3,
        "it is advertised at once"
    );
    set_import(&mut network, id, only(&["2001:db8:2::/48"], preferred(200)));
    assert_eq!(network.nodes[INSIDE].prefixes(), ["2001:db8:2::/48"]);
    assert_eq!(preference(&network, "2001:db8:2::/48"), Some(200));
    // The new policy applies to the route as received, not as modified by the old policy.
    set_import(&mut network, id, only(&["2001:db8:2::/48"], preferred(90)));
    assert_eq!(preference(&network, "2001:db8:2::/48"), Some(90));
    set_import(&mut network, id, Policy::permit_all());
    assert_eq!(
        preference(&network, "2001:db8:2::/48"),
        None,
        "as it received"
    );
    assert_eq!(network.nodes[BORDER].prefixes().len(), 3);
    assert_eq!(heard(&network), before, "no route refresh was requested");
    let down = |event: &&Event| matches!(event, Event::Down(..));
    assert_eq!(network.nodes[BORDER].events.iter().find(down), None);
}

#[test]
fn a_denied_route_that_was_withdrawn_does_not_come_back() {
    let (mut network, id) = network(Policy::default());
    network.hand(0, Input::Retract("2001:db8:1::/48".parse().unwrap()));
    network.settle();
    set_import(&mut network, id, Policy::permit_all());
    assert_eq!(
        network.nodes[BORDER].prefixes(),
        ["2001:db8:2::/48", "2001:db8:3::/48"]
    );
    // Routes denied before the session was lost do not come back either.
    set_import(&mut network, id, Policy::default());
    network.cut(BORDER, id);
    set_import(&mut network, id, Policy::permit_all());
    assert_eq!(network.nodes[BORDER].prefixes(), [""; 0]);
}

#[test]
fn denied_routes_count_towards_the_limit() {
    let mut limited = neighbour(65001, V6);
    limited.import = Policy::default();
    limited.routes_max = Some(2);
    let mut network = Network::new();
    let (transit, border) = (network.add(65001), network.add(65000));
    let (id, _) = network.join(border, transit, limited, neighbour(65000, V6));
    network.start_all();
    let mut originate = |number: u8| {
        let prefix = format!("2001:db8:{number}::/48").parse().unwrap();
        network.hand(transit, Input::Originate(prefix));
        network.settle();
        let near = Event::NearMaxPrefix(id, Family::Ipv6);
        let events = network.nodes[border].events.iter();
        events.filter(|event| **event == near).count()
    };
    let warnings: Vec<usize> = (1..=3).map(&mut originate).collect();
    assert_eq!(warnings, [0, 1, 1], "once, before the limit");
    let events = &network.nodes[border].events;
    assert!(
        events.contains(&Event::MaxPrefixExceeded(id, Family::Ipv6)),
        "{events:?}"
    );
}

#[test]
fn new_vrps_apply_at_once_without_a_route_refresh() {
    let rule = |validity, action| Rule {
        validity: vec![validity],
        action,
        ..Rule::default()
    };
    let permit = Action::Permit(AttributeChanges::default());
    let policy = Policy {
        rules: vec![
            rule(Validity::Valid, permit.clone()),
            rule(Validity::NotFound, permit),
        ],
        ..Policy::default()
    };
    let (mut network, _) = network(policy);
    assert_eq!(
        network.nodes[INSIDE].prefixes().len(),
        3,
        "no input arrived"
    );
    let before = heard(&network);
    let mut set = |vrps: Arc<Vrps>| {
        network.nodes[BORDER].speaker.set_vrps(vrps);
        network.settle();
        network.nodes[INSIDE].prefixes()
    };
    let others = vrps(&[("2001:db8:1::/48", 65002), ("2001:db8:2::/48", 65001)]);
    assert_eq!(set(others), ["2001:db8:2::/48", "2001:db8:3::/48"]);
    let no_peers = vrps(&[("2001:db8::/32", 0)]);
    assert_eq!(set(no_peers), [""; 0]);
    let own = vrps(&[("2001:db8::/32", 65001)]);
    assert_eq!(set(own).len(), 3);
    assert_eq!(heard(&network), before, "no route refresh was requested");
}

/// What happens to the transit's session at the border router.
#[derive(Clone, Copy, Debug)]
enum DecisionStep {
    Announce(u8),
    Withdraw(u8),
    Policy(u8),
    Rpki(u8),
    /// All its routes are announced with another MED.
    Say(u32),
    Lose,
    Refresh,
}

fn step() -> impl Strategy<Value = DecisionStep> {
    prop_oneof![
        4 => (0u8..6).prop_map(DecisionStep::Announce),
        2 => (0u8..6).prop_map(DecisionStep::Withdraw),
        3 => (0u8..6).prop_map(DecisionStep::Policy),
        2 => (0u8..4).prop_map(DecisionStep::Rpki),
        2 => (0u32..3).prop_map(DecisionStep::Say),
        1 => Just(DecisionStep::Lose),
        1 => Just(DecisionStep::Refresh),
    ]
}

fn prefix(number: u8) -> String {
    format!("2001:db8:{number}::/48")
}

fn policy(number: u8) -> Policy {
    let some = |numbers: [u8; 3], changes| {
        let prefixes = numbers.map(prefix);
        only(&prefixes.each_ref().map(String::as_str), changes)
    };
    let preferred = AttributeChanges {
        local_pref: Some(200),
        med: Some(7),
        ..AttributeChanges::default()
    };
    let valid = |rest: Policy| {
        let mut rules = vec![Rule {
            validity: vec![Validity::Valid],
            action: Action::Permit(preferred.clone()),
            ..Rule::default()
        }];
        rules.extend(rest.rules);
        Policy {
            rules,
            ..Policy::default()
        }
    };
    match number {
        0 => Policy::default(),
        1 => Policy::permit_all(),
        2 => some([0, 1, 2], AttributeChanges::default()),
        3 => some([1, 2, 3], preferred),
        4 => valid(Policy::default()),
        _ => valid(some([2, 3, 4], AttributeChanges::default())),
    }
}

fn rpki(number: u8) -> Arc<Vrps> {
    match number {
        0 => vrps(&[]),
        1 => vrps(&[("2001:db8::/32", 65001)]),
        2 => vrps(&[("2001:db8:1::/48", 65001), ("2001:db8:2::/48", 65002)]),
        _ => vrps(&[("2001:db8::/32", 0), ("2001:db8:4::/48", 65001)]),
    }
}

/// The routes of a node, with their attributes.
fn table(network: &Network, node: usize) -> Vec<(String, Option<u32>, Option<u32>)> {
    let all = network.nodes[node].speaker.rib().iter();
    let of = all.map(|(destination, paths)| {
        let attributes = &paths[0].attributes;
        (
            destination.to_string(),
            attributes.local_pref,
            attributes.med,
        )
    });
    of.collect()
}

proptest! {
    #[test]
    fn rib_depends_on_the_last_policy_only(
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let (mut network, id) = network(Policy::default());
        let mut announced: std::collections::BTreeSet<u8> = (1..=3).collect();
        let (mut policy_now, mut rpki_now, mut said) = (0, 0, None);
        for step in &steps {
            match *step {
                DecisionStep::Announce(number) => {
                    announced.insert(number);
                    network.hand(0, Input::Originate(prefix(number).parse().unwrap()));
                }
                DecisionStep::Withdraw(number) => {
                    announced.remove(&number);
                    network.hand(0, Input::Retract(prefix(number).parse().unwrap()));
                }
                DecisionStep::Policy(number) => {
                    policy_now = number;
                    set_import(&mut network, id, policy(number));
                }
                DecisionStep::Rpki(number) => {
                    rpki_now = number;
                    network.nodes[BORDER].speaker.set_vrps(rpki(number));
                }
                DecisionStep::Say(med) => {
                    said = Some(med);
                    say(&mut network, med);
                }
                DecisionStep::Lose => {
                    network.cut(BORDER, id);
                    network.pass(std::time::Duration::from_secs(120));
                }
                DecisionStep::Refresh => network.hand(BORDER, Input::Refresh(id, Family::Ipv6)),
            }
            network.settle();
        }
        let (mut fresh, id) = self::network(policy(policy_now));
        for number in 0..6 {
            let prefix = prefix(number).parse().unwrap();
            let input = match announced.contains(&number) {
                true => Input::Originate(prefix),
                false => Input::Retract(prefix),
            };
            fresh.hand(0, input);
        }
        if let Some(med) = said {
            say(&mut fresh, med);
        }
        fresh.nodes[BORDER].speaker.set_vrps(rpki(rpki_now));
        fresh.settle();
        // A network that had these VRPs from the beginning.
        fresh.cut(BORDER, id);
        fresh.pass(std::time::Duration::from_secs(120));
        for node in [BORDER, INSIDE] {
            prop_assert_eq!(table(&network, node), table(&fresh, node), "at {}", node);
        }
    }
}
