//! Egress peer engineering in the kernel: a packet's path from the server through a segment to an egress
//! peer, and the effect of withdrawn routes.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use ipnet::IpNet;
use keiro_linux::{
    epe::{
        Change, Obstacle, OwnAddress, Owner, PROTOCOL_ASBR, PROTOCOL_EGRESS, Reconciler, RouteKey,
        State, Watch, resolve_excluding,
    },
    nexthop::Nexthop,
    rule::SourceRule,
    seg6::{Behaviour, Encapsulation, Sid},
};

use crate::{
    memory::NoMemory,
    namespace::{Namespace, TIMEOUT, is_root, wait_until},
    network::{DEFAULT, Network},
};

pub(crate) const OWN: [&str; 2] = ["fd00:e::a", "fd00:e::b"];
const SIDS: [&str; 2] = ["fd00:51d::a", "fd00:51d::b"];
const CLIENTS: &str = "fd00:c::/64";

fn egress() -> Owner {
    Owner {
        protocol: PROTOCOL_EGRESS,
        priorities: 1000..=1099,
    }
}

fn asbr() -> Owner {
    Owner {
        protocol: PROTOCOL_ASBR,
        priorities: 900..=999,
    }
}

fn state(changes: &[Change]) -> State {
    // Builds a state by applying changes, as the daemons do.
    let mut state = State::default();
    for change in changes {
        match *change {
            Change::SetNexthop(id, nexthop) => {
                state.nexthops.insert(id, nexthop);
            }
            Change::CloseTable(table) => state.tables.entry(table).or_default().closed = true,
            Change::SetRoute(key, nexthop) => {
                let table = state.tables.entry(key.table).or_default();
                table.routes.insert(key.destination, nexthop);
            }
            Change::SetSid(sid) => {
                state.sids.insert(sid.address(), sid);
            }
            Change::SetRule(rule) => {
                state.rules.insert(rule);
            }
            Change::SetAddress(address) => {
                state.addresses.insert(address);
            }
            _ => panic!("{change} is not for building a state"),
        }
    }
    state
}

pub(crate) fn clients(table: u32) -> RouteKey {
    RouteKey {
        table,
        destination: CLIENTS.parse().unwrap(),
    }
}

/// The server's two tables, 101 and 102, with all that leads to them.
fn server_state(namespace: &Namespace, mode: Encapsulation) -> State {
    let interface = namespace.interface("s0");
    let mut all = Vec::new();
    for (number, (own, sid)) in (1..).zip(OWN.iter().zip(SIDS)) {
        let table = 100 + number;
        let segment = Nexthop::Segment {
            sid: sid.parse().unwrap(),
            mode,
            interface,
        };
        let source = own.parse().unwrap();
        all.extend([
            Change::SetNexthop(number, segment),
            Change::CloseTable(table),
            Change::SetRoute(clients(table), number),
            Change::SetRule(SourceRule {
                priority: 1000,
                source,
                table,
            }),
            Change::SetAddress(OwnAddress {
                address: source,
                interface,
            }),
        ]);
    }
    state(&all)
}

/// The border router's two peers, tables 201 and 202.
fn asbr_state(namespace: &Namespace) -> State {
    let mut all = Vec::new();
    let peers = [("pa", "fd00:a::2"), ("pb", "fd00:b::2")];
    for (number, ((interface, address), sid)) in (1..).zip(peers.into_iter().zip(SIDS)) {
        let table = 200 + number;
        let interface = namespace.interface(interface);
        let gateway = Nexthop::Gateway {
            address: address.parse().unwrap(),
            interface,
        };
        let behaviour = Behaviour::EndDt6 { table };
        all.extend([
            Change::SetNexthop(number, gateway),
            Change::CloseTable(table),
            Change::SetRoute(clients(table), number),
            Change::SetSid(Sid::new(sid.parse().unwrap(), behaviour, interface).unwrap()),
        ]);
    }
    state(&all)
}

fn clean(reconciler: &mut Reconciler, wanted: State) {
    let report = reconciler.replace(wanted).unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert!(reconciler.in_step());
}

pub(crate) fn apply(reconciler: &mut Reconciler, change: Change) {
    let report = reconciler.apply(&[change]).unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.carried_out, 1, "{change}");
}

pub(crate) fn set_up(mode: Encapsulation) -> (Network, Reconciler, Reconciler) {
    let network = Network::new();
    let mut server = Reconciler::open_in(&network.server.0, egress()).unwrap();
    let mut border = Reconciler::open_in(&network.asbr.0, asbr()).unwrap();
    clean(&mut server, server_state(&network.server, mode));
    clean(&mut border, asbr_state(&network.asbr));
    for reconciler in [&mut server, &mut border] {
        assert_eq!(reconciler.present().unwrap(), *reconciler.wanted());
    }
    for own in OWN {
        network.server.wait_for(own);
    }
    (network, server, border)
}

#[test]
fn each_own_address_leaves_by_its_egress_peer() {
    if !is_root("each_own_address_leaves_by_its_egress_peer") {
        return;
    }
    for mode in [Encapsulation::Full, Encapsulation::Reduced] {
        let (network, _server, _border) = set_up(mode);
        for (from, by) in [(DEFAULT, [1, 0]), (OWN[0], [1, 0]), (OWN[1], [0, 1])] {
            let sent = network.send(from).unwrap();
            assert!(sent.arrived, "{mode} from {from}: {sent:?}");
            assert_eq!(sent.by, by, "{mode} from {from}");
        }
    }
}

#[test]
fn a_cross_connect_sends_to_its_neighbour_whatever_the_tables_say() {
    if !is_root("a_cross_connect_sends_to_its_neighbour_whatever_the_tables_say") {
        return;
    }
    let (network, _server, mut border) = set_up(Encapsulation::Reduced);
    let neighbour = "fd00:b::2".parse().unwrap();
    let interface = network.asbr.interface("pb");
    let sid = SIDS[1].parse().unwrap();
    let sid = Sid::new(sid, Behaviour::EndDx6 { neighbour }, interface).unwrap();
    apply(&mut border, Change::SetSid(sid));
    apply(&mut border, Change::RemoveRoute(clients(202)));
    let sent = network.send(OWN[1]).unwrap();
    assert!(sent.arrived, "{sent:?}");
    assert_eq!(sent.by, [0, 1]);
    assert_eq!(border.present().unwrap(), *border.wanted());
}

#[test]
fn packets_to_withdrawn_routes_are_dropped_at_the_border_router() {
    if !is_root("packets_to_withdrawn_routes_are_dropped_at_the_border_router") {
        return;
    }
    let (network, mut server, mut border) = set_up(Encapsulation::Reduced);
    // The peer withdraws, and the server does not know yet.
    apply(&mut border, Change::RemoveRoute(clients(202)));
    let sent = network.send(OWN[1]).unwrap();
    assert_eq!((sent.arrived, sent.by), (false, [0, 0]), "{sent:?}");
    assert!(sent.unreachable, "the border router says so");
    // Now it knows: the packet is dropped before the first link, and does not take the best path.
    apply(&mut server, Change::RemoveRoute(clients(102)));
    let error = network.send(OWN[1]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EHOSTUNREACH), "{error}");
    // The other peer is not affected, and the one that withdrew can announce again.
    assert!(network.send(OWN[0]).unwrap().arrived);
    apply(&mut border, Change::SetRoute(clients(202), 2));
    apply(&mut server, Change::SetRoute(clients(102), 2));
    assert_eq!(network.send(OWN[1]).unwrap().by, [0, 1]);
}

#[test]
fn a_lost_peer_takes_its_segment_and_routes_with_it() {
    if !is_root("a_lost_peer_takes_its_segment_and_routes_with_it") {
        return;
    }
    let (network, mut server, mut border) = set_up(Encapsulation::Reduced);
    apply(&mut border, Change::RemoveSid(SIDS[1].parse().unwrap()));
    apply(&mut border, Change::RemoveNexthop(2));
    let sent = network.send_in_vain(OWN[1]).unwrap();
    assert_eq!((sent.arrived, sent.by), (false, [0, 0]), "{sent:?}");
    apply(&mut server, Change::RemoveNexthop(2));
    assert_eq!(server.wanted().routes(), 1);
    for reconciler in [&mut server, &mut border] {
        assert_eq!(reconciler.present().unwrap(), *reconciler.wanted());
    }
    let error = network.send(OWN[1]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EHOSTUNREACH), "{error}");
    assert!(network.send(OWN[0]).unwrap().arrived);
}

#[test]
fn a_nexthop_that_is_replaced_leads_all_its_routes_elsewhere() {
    if !is_root("a_nexthop_that_is_replaced_leads_all_its_routes_elsewhere") {
        return;
    }
    let (network, mut server, _border) = set_up(Encapsulation::Reduced);
    let segment = server.wanted().nexthops[&1];
    apply(&mut server, Change::SetNexthop(2, segment));
    assert_eq!(network.send(OWN[1]).unwrap().by, [1, 0]);
    assert_eq!(server.present().unwrap(), *server.wanted());
}

#[test]
fn entries_of_an_earlier_run_are_taken_over_and_cleanup_leaves_nothing() {
    if !is_root("entries_of_an_earlier_run_are_taken_over_and_cleanup_leaves_nothing") {
        return;
    }
    let (network, server, border) = set_up(Encapsulation::Full);
    drop((server, border));
    let before = everything(&network);
    let mut server = Reconciler::open_in(&network.server.0, egress()).unwrap();
    let wanted = server_state(&network.server, Encapsulation::Full);
    let report = server.replace(wanted).unwrap();
    assert_eq!(report.carried_out, 0, "all was there: {report:?}");
    assert_eq!(everything(&network), before);
    drop(server);
    // Cleaning up does not depend on the process that made the entries.
    for (namespace, owner) in [(&network.server, egress()), (&network.asbr, asbr())] {
        let mut reconciler = Reconciler::open_in(&namespace.0, owner).unwrap();
        let report = reconciler.cleanup().unwrap();
        assert!(report.is_clean(), "{report:?}");
        assert_eq!(reconciler.present().unwrap(), State::default());
    }
    for word in ["fd00:e::", "fd00:51d", "proto 76", "proto 77", "seg6"] {
        let server = network.server.ip("-6 route show table all")
            + &network.server.ip("-6 rule")
            + &network.server.ip("nexthop")
            + &network.server.ip("-6 addr");
        assert!(!server.contains(word), "{word} in {server}");
    }
    assert_eq!(network.asbr.ip("nexthop"), "");
}

/// Everything that `ip` shows of the server.
fn everything(network: &Network) -> String {
    let namespace = &network.server;
    ["-6 route show table all", "-6 rule", "nexthop", "-6 addr"]
        .map(|arguments| namespace.ip(arguments))
        .concat()
}

#[test]
fn colliding_entries_of_others_are_named_and_left_alone() {
    if !is_root("colliding_entries_of_others_are_named_and_left_alone") {
        return;
    }
    let network = Network::new();
    let namespace = &network.server;
    namespace.ip("-6 rule add from fd00:e::a lookup 77 priority 500");
    namespace.ip("-6 route add fd00:c::/48 via fd00:1::1 table 102");
    let before = everything(&network);
    let mut server = Reconciler::open_in(&namespace.0, egress()).unwrap();
    let wanted = server_state(namespace, Encapsulation::Reduced);
    let report = server.replace(wanted.clone()).unwrap();
    assert!(!report.is_clean() && !server.in_step());
    let texts: Vec<_> = report.obstacles.iter().map(ToString::to_string).collect();
    assert_eq!(texts.len(), 2, "{texts:?}");
    let rule = texts
        .iter()
        .find(|text| text.starts_with("rule priority 500 from fd00:e::a"));
    assert!(rule.is_some(), "{texts:?}");
    let route = texts
        .iter()
        .find(|text| text.starts_with("table 102 has a route to fd00:c::/48"));
    assert!(route.is_some(), "{texts:?}");
    // None of our rules and addresses is installed, so that nothing takes a wrong path.
    let present = server.present().unwrap();
    assert!(
        present.rules.is_empty() && present.addresses.is_empty(),
        "{present:?}"
    );
    assert!(report.failures.is_empty(), "{report:?}");
    assert!(server.cleanup().unwrap().is_clean());
    assert_eq!(everything(&network), before);

    // After the obstacles are removed, everything is installed.
    namespace.ip("-6 rule delete from fd00:e::a lookup 77 priority 500");
    namespace.ip("-6 route delete fd00:c::/48 table 102");
    clean(&mut server, wanted.clone());
    server.cleanup().unwrap();

    // The number of a nexthop is in use.
    namespace.ip("nexthop add id 2 via fd00:1::1 dev s0");
    let report = server.replace(wanted).unwrap();
    let taken = |obstacle: &Obstacle| matches!(obstacle, Obstacle::Nexthop { id: 2, .. });
    assert!(report.obstacles.iter().all(taken), "{report:?}");
    assert!(report.failures.is_empty(), "{report:?}");
    assert!(
        namespace
            .ip("nexthop")
            .contains("id 2 via fd00:1::1 dev s0")
    );
    // Single changes neither change nor remove it.
    let segment = server.wanted().nexthops[&1];
    for change in [Change::SetNexthop(2, segment), Change::RemoveNexthop(2)] {
        server.apply(&[change]).unwrap();
        assert!(
            namespace
                .ip("nexthop")
                .contains("id 2 via fd00:1::1 dev s0")
        );
    }
}

#[test]
fn an_address_that_the_operator_added_is_used_and_never_removed() {
    if !is_root("an_address_that_the_operator_added_is_used_and_never_removed") {
        return;
    }
    let network = Network::new();
    let namespace = &network.server;
    namespace.ip(&format!("addr add {}/128 dev s0 nodad", OWN[0]));
    let mut server = Reconciler::open_in(&namespace.0, egress()).unwrap();
    let wanted = server_state(namespace, Encapsulation::Reduced);
    clean(&mut server, wanted);
    let own = *server.wanted().addresses.first().unwrap();
    server.apply(&[Change::RemoveAddress(own)]).unwrap();
    server.apply(&[Change::SetAddress(own)]).unwrap();
    assert!(server.cleanup().unwrap().is_clean());
    let shown = namespace.ip("-6 addr");
    assert!(shown.contains(OWN[0]) && !shown.contains(OWN[1]), "{shown}");
}

#[test]
fn entries_lost_with_an_interface_are_restored() {
    if !is_root("entries_lost_with_an_interface_are_restored") {
        return;
    }
    let (network, _server, mut border) = set_up(Encapsulation::Reduced);
    let mut watch = Watch::open_in(&network.asbr.0).unwrap();
    apply(&mut border, Change::RemoveRoute(clients(201)));
    apply(&mut border, Change::SetRoute(clients(201), 1));
    assert!(
        !watch.changed(&border).unwrap(),
        "its own changes do not count"
    );
    network.asbr.ip("link set pb down");
    wait_until("the watch reports the change", || {
        watch.changed(&border).unwrap()
    });
    let report = border.reconcile().unwrap();
    assert!(
        !report.failures.is_empty(),
        "the interface is down: {report:?}"
    );
    assert!(!border.in_step());
    let sent = network.send_in_vain(OWN[1]).unwrap();
    assert_eq!((sent.arrived, sent.by), (false, [0, 0]), "{sent:?}");
    network.asbr.ip("link set pb up");
    network.asbr.ip("addr replace fd00:b::1/64 dev pb nodad");
    wait_until("the watch reports the change", || {
        watch.changed(&border).unwrap()
    });
    wait_until("all is there again", || {
        border.reconcile().unwrap().is_clean()
    });
    assert_eq!(border.present().unwrap(), *border.wanted());
    wait_until("the peer is reached", || {
        network.send_in_vain(OWN[1]).unwrap().by == [0, 1]
    });
}

/// A server's state without rules, and the changes that add them.
fn rules_to_come(namespace: &Namespace) -> (Reconciler, Vec<Change>) {
    let mut server = Reconciler::open_in(&namespace.0, egress()).unwrap();
    let mut wanted = server_state(namespace, Encapsulation::Reduced);
    let rules = std::mem::take(&mut wanted.rules);
    clean(&mut server, wanted);
    (server, rules.into_iter().map(Change::SetRule).collect())
}

/// Attempts are up to 120 ms apart, the last of them 262 ms after the first.
const LOOKS_APART_MAX: Duration = Duration::from_millis(50);

/// Grants memory after several failed attempts, or when `over` is true. Returns the longest time between two
/// looks.
fn relieve_when_refused_again(group: &NoMemory, over: &AtomicBool) -> Duration {
    // One attempt asks several times at once; a rise between two looks is another attempt.
    let (mut rises, mut last) = (0, 0);
    let (mut looked, mut longest) = (Instant::now(), Duration::ZERO);
    wait_until("it was refused more than once", || {
        longest = longest.max(looked.elapsed());
        looked = Instant::now();
        let now = group.refused();
        rises += u32::from(now > last);
        last = now;
        rises == 3 || over.load(Ordering::Acquire)
    });
    group.relieve();
    longest
}

#[test]
fn changes_refused_for_lack_of_memory_are_retried() {
    let test = "changes_refused_for_lack_of_memory_are_retried";
    if !is_root(test) {
        return;
    }
    let network = Network::new();
    let begun = Instant::now();
    let (mut server, rules, report) = loop {
        let Some(group) = NoMemory::new(test) else {
            return;
        };
        let (mut server, rules) = rules_to_come(&network.server);
        let over = AtomicBool::new(false);
        let (report, longest) = thread::scope(|scope| {
            let relieving = scope.spawn(|| relieve_when_refused_again(&group, &over));
            let report = group.run(|| server.apply(&rules)).unwrap();
            over.store(true, Ordering::Release);
            (report, relieving.join().unwrap())
        });
        // If several attempts fell between two looks, memory came too early; if no retry came for long, too
        // late. The machine's timing causes both.
        let too_soon = report.is_clean() && report.tried_again < rules.len();
        let too_late = !report.is_clean() && longest >= LOOKS_APART_MAX;
        if !(too_soon || too_late) || begun.elapsed() > TIMEOUT {
            break (server, rules, report);
        }
        eprintln!("once more: {report}, {longest:?} between two looks");
    };
    assert!(report.is_clean(), "{report:?}");
    assert!(report.tried_again >= rules.len(), "{report:?}");
    assert_eq!(report.carried_out, rules.len());
    assert_eq!(server.present().unwrap(), *server.wanted());
    assert!(server.in_step());
}

#[test]
fn lasting_lack_of_memory_is_reported_and_retried_later() {
    let test = "lasting_lack_of_memory_is_reported_and_retried_later";
    if !is_root(test) {
        return;
    }
    let Some(group) = NoMemory::new(test) else {
        return;
    };
    let network = Network::new();
    let (mut server, mut changes) = rules_to_come(&network.server);
    let rules = changes.len();
    // Changes of the same batch that need no such memory succeed.
    changes.insert(1, Change::RemoveRoute(clients(101)));
    let report = group.run(|| server.apply(&changes)).unwrap();
    assert_eq!(report.carried_out, 1, "{report:?}");
    assert_eq!(report.failures.len(), rules, "{report:?}");
    for failure in &report.failures {
        let reported = failure.to_string();
        assert!(reported.contains("Cannot allocate memory"), "{reported}");
    }
    assert_eq!(report.tried_again, 6 * rules, "{report:?}");
    assert!(!server.in_step());
    assert!(server.present().unwrap().rules.is_empty());
    // Memory is available again.
    let report = server.reconcile().unwrap();
    assert!(report.is_clean() && server.in_step(), "{report:?}");
    assert_eq!(server.present().unwrap(), *server.wanted());
    assert_eq!(server.wanted().rules.len(), rules);
}

#[test]
fn two_hundred_thousand_routes_come_and_go() {
    if !is_root("two_hundred_thousand_routes_come_and_go") {
        return;
    }
    let namespace = Namespace::new();
    namespace.ip("link add s0 type veth peer name s1");
    namespace.ip("link set s0 up");
    namespace.ip("link set s1 up");
    let mut server = Reconciler::open_in(&namespace.0, egress()).unwrap();
    let segment = Nexthop::Segment {
        sid: SIDS[0].parse().unwrap(),
        mode: Encapsulation::Reduced,
        interface: namespace.interface("s0"),
    };
    let mut changes = vec![Change::CloseTable(101), Change::SetNexthop(1, segment)];
    for number in 0..200_000_u128 {
        let address = (0x2001_0db8 << 96) | (number << 80);
        let destination = IpNet::new(std::net::Ipv6Addr::from(address).into(), 48).unwrap();
        let key = RouteKey {
            table: 101,
            destination,
        };
        changes.push(Change::SetRoute(key, 1));
    }
    let started = Instant::now();
    let report = server.apply(&changes).unwrap();
    println!("200,000 routes added in {:?}, {report}", started.elapsed());
    assert!(report.is_clean(), "{report}: {:?}", report.failures.first());
    let started = Instant::now();
    assert_eq!(server.present().unwrap(), *server.wanted());
    println!("read in {:?}", started.elapsed());
    let started = Instant::now();
    apply(&mut server, Change::RemoveNexthop(1));
    println!("removed in {:?}", started.elapsed());
    assert_eq!(server.present().unwrap().routes(), 0);
    assert!(server.cleanup().unwrap().is_clean());
}

#[test]
fn the_underlay_route_is_the_longest_prefix_of_other_protocols() {
    if !is_root("the_underlay_route_is_the_longest_prefix_of_other_protocols") {
        return;
    }
    let network = Network::new();
    for route in [
        "default via fd00:a::2",
        // Ours, with a longer prefix than the underlay route.
        "fd00:99::/32 via fd00:b::2",
        "fd00:99::/40 via fd00:a::2 proto 77",
        "fd00:99::/48 via fd00:a::2 proto 76",
        // The smaller metric, several routers, no route, and another table.
        "fd00:98::/32 via fd00:a::2 metric 500",
        "fd00:98::/32 via fd00:b::2 metric 400",
        "fd00:97::/32 nexthop via fd00:b::2 nexthop via fd00:a::2",
        "unreachable fd00:96::/32",
        "fd00:95::/32 via fd00:b::2 table 77",
        // Not for all packets.
        "fd00:94::/32 from fd00:c::/64 via fd00:b::2",
    ] {
        network.asbr.ip(&format!("-6 route add {route}"));
    }
    let address = |number: u16| IpAddr::from([0xfd00, number, 0, 0, 0, 0, 0, 1]);
    let asked = (0x93..=0x99).map(address);
    let asked = asked.chain(["192.0.2.1".parse().unwrap()]).collect();
    let ways = network
        .asbr
        .run(|| resolve_excluding(&[PROTOCOL_ASBR, PROTOCOL_EGRESS], &asked));
    let [a, b] = ["pa", "pb"].map(|name| network.asbr.interface(name));
    let found: BTreeMap<IpAddr, (Option<IpAddr>, u32)> = ways
        .unwrap()
        .into_iter()
        .map(|(address, way)| (address, (way.gateway, way.interface)))
        .collect();
    let by = |router: &str| Some(router.parse().unwrap());
    let (by_a, by_b) = ((by("fd00:a::2"), a), (by("fd00:b::2"), b));
    let wanted = [
        (0x93, by_a),
        (0x94, by_a),
        (0x95, by_a),
        (0x97, by_b),
        (0x98, by_b),
        (0x99, by_b),
    ];
    let wanted = wanted.map(|(number, by)| (address(number), by));
    assert_eq!(found, wanted.into());
}
