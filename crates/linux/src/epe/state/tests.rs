//! Differences of random states, without a kernel. A seed determines the states.

use super::*;
use crate::seg6::{Behaviour, Encapsulation};

/// Small numbers of each kind, so that two states have much in common.
struct Dice(u64);

impl Dice {
    /// A number in `0..below`.
    fn roll(&mut self, below: u64) -> u64 {
        // Knuth's linear congruential generator (MMIX).
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

fn v6(group: &str, number: u64) -> Ipv6Addr {
    let net: Ipv6Addr = format!("fd00:{group}::").parse().unwrap();
    (u128::from(net) | u128::from(number)).into()
}

fn state(dice: &mut Dice) -> State {
    let mut state = State::default();
    for id in 1..=dice.roll(5) as u32 {
        let nexthop = match dice.roll(2) {
            0 => Nexthop::Segment {
                sid: v6("51d", dice.roll(3)),
                mode: Encapsulation::Reduced,
                interface: 2,
            },
            _ => Nexthop::Gateway {
                address: v6("a", dice.roll(3)).into(),
                interface: 3,
            },
        };
        state.carry_out(&Change::SetNexthop(id, nexthop));
    }
    for _ in 0..dice.roll(40) {
        let table = 100 + dice.roll(4) as u32;
        let destination = IpNet::new(v6("d", dice.roll(6) << 8).into(), 120).unwrap();
        let key = RouteKey { table, destination };
        state.carry_out(&Change::SetRoute(key, 1 + dice.roll(5) as u32));
    }
    for _ in 0..dice.roll(8) {
        let table = 100 + dice.roll(4) as u32;
        state.carry_out(&Change::CloseTable(table));
        let address = v6("51d", dice.roll(4));
        let sid = Sid::new(address, Behaviour::EndDt6 { table }, 2).unwrap();
        state.carry_out(&Change::SetSid(sid));
        let source = v6("e", dice.roll(4)).into();
        state.carry_out(&Change::SetRule(SourceRule {
            priority: 1000 + dice.roll(4) as u32,
            source,
            table,
        }));
        state.carry_out(&Change::SetMark(MarkRule {
            priority: 1000,
            mark: 1 + dice.roll(4) as u32,
            table,
            ipv6: dice.roll(2) == 0,
        }));
        if dice.roll(2) == 0 {
            state.carry_out(&Change::CloseIpv4(table));
        }
        state.carry_out(&Change::SetAddress(OwnAddress {
            address: source,
            interface: 2,
        }));
    }
    state
}

#[test]
fn the_difference_leads_from_any_state_to_any_other() {
    for seed in 0..2000 {
        let dice = &mut Dice(seed);
        let (mut present, wanted) = (state(dice), state(dice));
        for change in present.difference(&wanted) {
            let effect = present.carry_out(&change);
            assert!(
                !matches!(effect, Effect::Nothing | Effect::NoNexthop),
                "seed {seed}: {change} has effect {effect:?}"
            );
        }
        assert_eq!(present, wanted, "seed {seed}");
        assert_eq!(present.difference(&wanted), [], "seed {seed}");
    }
}

#[test]
fn a_route_that_was_set_leads_where_it_is_wanted_at_once() {
    for seed in 0..500 {
        let dice = &mut Dice(seed);
        let (mut present, wanted) = (state(dice), state(dice));
        let before = present.clone();
        let leads = |state: &State, key: RouteKey| {
            let id = state.tables.get(&key.table)?.routes.get(&key.destination)?;
            state.nexthops.get(id).copied()
        };
        for change in before.difference(&wanted) {
            present.carry_out(&change);
            let Change::SetRoute(key, _) = change else {
                continue;
            };
            assert_eq!(
                leads(&present, key),
                leads(&wanted, key),
                "seed {seed}: {change}"
            );
        }
    }
}

#[test]
fn a_lost_peer_costs_one_change_however_many_its_routes() {
    let mut present = State::default();
    let gateway = Nexthop::Gateway {
        address: v6("a", 1).into(),
        interface: 3,
    };
    present.carry_out(&Change::SetNexthop(7, gateway));
    for number in 0..1000 {
        let destination = IpNet::new(v6("d", number << 8).into(), 120).unwrap();
        let key = RouteKey {
            table: 100,
            destination,
        };
        present.carry_out(&Change::SetRoute(key, 7));
    }
    present.carry_out(&Change::CloseTable(100));
    let mut wanted = State::default();
    wanted.carry_out(&Change::CloseTable(100));
    assert_eq!(present.difference(&wanted), [Change::RemoveNexthop(7)]);
}

#[test]
fn a_rule_leads_to_a_closed_table_only_and_is_there_before_its_address() {
    let table = 100;
    let source = v6("e", 1).into();
    let mut wanted = State::default();
    let rule = SourceRule {
        priority: 1000,
        source,
        table,
    };
    let address = OwnAddress {
        address: source,
        interface: 2,
    };
    for change in [
        Change::SetAddress(address),
        Change::SetRule(rule),
        Change::CloseTable(table),
    ] {
        wanted.carry_out(&change);
    }
    let there = State::default().difference(&wanted);
    let expected = [
        Change::CloseTable(table),
        Change::SetRule(rule),
        Change::SetAddress(address),
    ];
    assert_eq!(there, expected);
    let back = wanted.difference(&State::default());
    let expected = [
        Change::RemoveAddress(address),
        Change::RemoveRule(rule),
        Change::OpenTable(table),
    ];
    assert_eq!(back, expected);
}

#[test]
fn a_segment_for_ipv4_is_never_without_the_rule_of_its_mark() {
    let rule = |number: u64| MarkRule {
        priority: 1000,
        mark: number as u32,
        table: 100 + number as u32,
        ipv6: false,
    };
    let of_asbr = |dice: &mut Dice| {
        let mut state = state(dice);
        for number in (1..=4).filter(|_| dice.roll(2) == 0) {
            let sid = Sid::new(v6("d4", number), Behaviour::EndDx4, 2).unwrap();
            state.carry_out(&Change::SetSid(sid));
            state.carry_out(&Change::SetMark(rule(number)));
        }
        state
    };
    for seed in 0..500 {
        let dice = &mut Dice(seed);
        let (mut present, wanted) = (of_asbr(dice), of_asbr(dice));
        for change in present.difference(&wanted) {
            present.carry_out(&change);
            for number in 1..=4 {
                let there = present.sids.contains_key(&v6("d4", number));
                assert!(
                    !there || present.marks.contains(&rule(number)),
                    "seed {seed}: {change}"
                );
            }
        }
    }
}

#[test]
fn a_route_of_an_unknown_nexthop_is_not_made() {
    let mut state = State::default();
    let key = RouteKey {
        table: 100,
        destination: "fd00::/64".parse().unwrap(),
    };
    assert_eq!(
        state.carry_out(&Change::SetRoute(key, 1)),
        Effect::NoNexthop
    );
    assert_eq!(state, State::default());
}

#[test]
fn an_address_is_reached_by_its_longest_prefix() {
    let mut state = State::default();
    for id in 1..=3 {
        let gateway = Nexthop::Gateway {
            address: v6("a", id).into(),
            interface: 3,
        };
        state.carry_out(&Change::SetNexthop(id as u32, gateway));
    }
    for (prefix, nexthop) in [("fd00::/16", 1), ("fd00:1::/32", 2), ("fd00:1::7/128", 3)] {
        let key = RouteKey {
            table: 100,
            destination: prefix.parse().unwrap(),
        };
        state.carry_out(&Change::SetRoute(key, nexthop));
    }
    let by = |address: &str| {
        let route = state.route(100, address.parse().unwrap());
        route.map(|(_, nexthop)| nexthop)
    };
    assert_eq!(by("fd00:2::1"), Some(1));
    assert_eq!(by("fd00:1::1"), Some(2));
    assert_eq!(by("fd00:1::7"), Some(3));
    assert_eq!(by("2001:db8::1"), None);
    assert_eq!(by("192.0.2.1"), None);
    assert_eq!(state.route(101, "fd00:1::7".parse().unwrap()), None);
}

#[test]
fn the_route_that_covers_a_prefix_is_the_longest_one_and_no_default_route() {
    let mut dice = Dice(42);
    for _ in 0..300 {
        let mut state = State::default();
        let prefix = |dice: &mut Dice| {
            let bits = [0, 12, 16, 20, 24, 31, 32, 33, 36, 48][dice.roll(10) as usize];
            let address = Ipv6Addr::from_bits(u128::from(dice.roll(1 << 12)) << 80 | 0x2001 << 112);
            IpNet::new(address.into(), bits).unwrap().trunc()
        };
        let all: Vec<IpNet> = (0..dice.roll(12)).map(|_| prefix(&mut dice)).collect();
        let routes = (1..).zip(&all).map(|(id, net)| (*net, id)).collect();
        state.tables.entry(7).or_default().routes = routes;
        for _ in 0..20 {
            let asked = prefix(&mut dice);
            let covers = |net: &&IpNet| net.prefix_len() > 0 && net.contains(&asked);
            let longest = all.iter().filter(covers).max_by_key(|net| net.prefix_len());
            let routes = &state.tables[&7].routes;
            let expected = longest.map(|net| (*net, routes[net]));
            assert_eq!(
                state.covering_route(7, asked),
                expected,
                "{asked} among {all:?}"
            );
        }
    }
}
