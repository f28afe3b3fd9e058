//! Addresses, routes and rules, checked with `ip`.

use std::slice;

use caps::{CapSet, Capability};
use keiro_linux::{
    route::{
        Added, Address, Entry, Installed, Mark, Route, RouteError, RouteSocket, RouteWatch, Rule,
        RuleVersion, TABLE_MAIN, Via,
    },
    tun::Tun,
};

use crate::{
    device::options,
    namespace::{Namespace, is_root, wait_until},
};

fn up(namespace: &Namespace, name: &str) -> Tun {
    let tun = Tun::open_in(&namespace.0, &options(name)).unwrap();
    tun.set_up().unwrap();
    tun
}

fn address(tun: &Tun, address: &str) -> Entry {
    Entry::Address(Address {
        interface: tun.index(),
        address: address.parse().unwrap(),
    })
}

fn route(destination: &str, table: u32, via: Via) -> Entry {
    Entry::Route(Route {
        destination: destination.parse().unwrap(),
        table,
        via,
        metric: 0,
    })
}

fn rule(version: RuleVersion, priority: u32, table: u32) -> Rule {
    Rule {
        version,
        priority,
        table,
        incoming: None,
        outgoing: None,
        mark: None,
        source: None,
        udp_source_port: None,
        suppressed_prefix_length: None,
    }
}

/// One of each kind and version.
fn all_kinds(tun: &Tun) -> Vec<Entry> {
    let mark = Some(Mark {
        value: 0x10,
        mask: 0xf0,
    });
    let via = Via::Interface(tun.index());
    vec![
        address(tun, "10.1.0.1/24"),
        address(tun, "fd00:1::1/64"),
        route("10.2.0.0/16", TABLE_MAIN, via),
        route("0.0.0.0/0", 1001, via),
        route("10.3.0.0/16", 1001, Via::Unreachable),
        route("fd00:2::/64", TABLE_MAIN, via),
        route("::/0", 100_000, via),
        route("fd00:3::/48", 100_000, Via::Unreachable),
        Entry::Rule(Rule {
            mark,
            ..rule(RuleVersion::V4, 1000, 1001)
        }),
        Entry::Rule(Rule {
            incoming: Some("tenant0".into()),
            ..rule(RuleVersion::V6, 1001, 100_000)
        }),
        Entry::Rule(Rule {
            source: Some("10.1.0.0/24".parse().unwrap()),
            outgoing: Some("tenant0".into()),
            ..rule(RuleVersion::V4, 1002, 1001)
        }),
        Entry::Rule(Rule {
            source: Some("10.1.0.1/32".parse().unwrap()),
            udp_source_port: Some(7600),
            ..rule(RuleVersion::V4, 1003, 1001)
        }),
        Entry::Rule(Rule {
            source: Some("fd00:1::/64".parse().unwrap()),
            suppressed_prefix_length: Some(3),
            ..rule(RuleVersion::V6, 1004, TABLE_MAIN)
        }),
    ]
}

#[test]
fn every_kind_is_added_once_listed_as_ours_and_removed_once() {
    if !is_root("every_kind_is_added_once_listed_as_ours_and_removed_once") {
        return;
    }
    let namespace = Namespace::new();
    let tun = up(&namespace, "tenant0");
    let mut socket = RouteSocket::open_in(&namespace.0).unwrap();
    assert_eq!(socket.ours().unwrap(), []);
    let entries = all_kinds(&tun);
    for entry in &entries {
        assert_eq!(socket.add(entry).unwrap(), Added::New, "{entry}");
        assert_eq!(socket.add(entry).unwrap(), Added::Ours, "{entry}");
    }
    // IPv6 routes are listed with the metric that 0 stands for.
    let as_listed = |entry: &Entry| match entry {
        Entry::Route(route) if route.destination.addr().is_ipv6() => Entry::Route(Route {
            metric: 1024,
            ..route.clone()
        }),
        other => other.clone(),
    };
    let mut expected: Vec<_> = entries.iter().map(as_listed).collect();
    expected.sort();
    let mut ours = socket.ours().unwrap();
    ours.sort();
    assert_eq!(ours, expected);
    // With an interface's last address the kernel removes its routes, so that goes last.
    for entry in entries.iter().rev() {
        assert!(socket.remove(entry).unwrap(), "{entry}");
        assert!(!socket.remove(entry).unwrap(), "{entry}");
    }
    assert_eq!(socket.ours().unwrap(), []);
}

#[test]
fn routes_and_rules_carry_our_number_and_no_connected_route_comes_with_an_address() {
    if !is_root("routes_and_rules_carry_our_number_and_no_connected_route_comes_with_an_address") {
        return;
    }
    let namespace = Namespace::new();
    let tun = up(&namespace, "tenant0");
    let mut socket = RouteSocket::open_in(&namespace.0).unwrap();
    for entry in all_kinds(&tun) {
        socket.add(&entry).unwrap();
    }
    let main = namespace.ip("route show");
    assert_eq!(main.trim(), "10.2.0.0/16 dev tenant0 proto 75 scope link");
    assert!(
        namespace
            .ip("rule show")
            .contains("fwmark 0x10/0xf0 lookup 1001 proto 75")
    );
    let addresses = namespace.ip("-6 address show dev tenant0 scope global");
    assert!(
        addresses.contains("fd00:1::1/64") && !addresses.contains("tentative"),
        "{addresses}"
    );
}

#[test]
fn entries_of_others_are_never_removed() {
    if !is_root("entries_of_others_are_never_removed") {
        return;
    }
    let namespace = Namespace::new();
    let tun = up(&namespace, "tenant0");
    namespace.ip("address add 10.1.0.1/24 dev tenant0 noprefixroute");
    namespace.ip("route add 10.2.0.0/16 dev tenant0 proto static");
    namespace.ip("rule add priority 1000 fwmark 0x10/0xf0 lookup 1001");
    let mark = Some(Mark {
        value: 0x10,
        mask: 0xf0,
    });
    let same = [
        address(&tun, "10.1.0.1/24"),
        route("10.2.0.0/16", TABLE_MAIN, Via::Interface(tun.index())),
        Entry::Rule(Rule {
            mark,
            ..rule(RuleVersion::V4, 1000, 1001)
        }),
    ];
    let mut installed = Installed::new(RouteSocket::open_in(&namespace.0).unwrap());
    assert_eq!(installed.set(&same).unwrap().foreign, same[..2]);
    let mut socket = RouteSocket::open_in(&namespace.0).unwrap();
    // Our rule is added beside the other one.
    assert_eq!(socket.ours().unwrap(), same[2..]);
    for entry in &same[..2] {
        assert!(!socket.remove(entry).unwrap(), "{entry}");
    }
    drop(installed);
    assert_eq!(socket.ours().unwrap(), []);
    assert!(
        namespace
            .ip("address show dev tenant0")
            .contains("10.1.0.1/24")
    );
    assert!(namespace.ip("route show").contains("10.2.0.0/16"));
    assert!(namespace.ip("rule show").contains("lookup 1001"));
}

#[test]
fn a_route_that_collides_with_another_is_refused() {
    if !is_root("a_route_that_collides_with_another_is_refused") {
        return;
    }
    let namespace = Namespace::new();
    let tun = up(&namespace, "tenant0");
    namespace.ip("link add other type veth peer name far");
    namespace.ip("link set far up");
    namespace.ip("link set other up");
    namespace.ip("route add 10.2.0.0/16 dev other");
    let mut socket = RouteSocket::open_in(&namespace.0).unwrap();
    let via = Via::Interface(tun.index());
    let error = socket
        .add(&route("10.2.0.0/16", TABLE_MAIN, via))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "route 10.2.0.0/16 dev tenant0 table main would replace route 10.2.0.0/16 dev other table \
         main, which is not this gateway's; remove that one or choose another table"
    );
    let error = socket
        .add(&route("10.3.0.0/16", TABLE_MAIN, Via::Interface(9999)))
        .unwrap_err();
    assert!(matches!(error, RouteError::NoInterface { .. }), "{error}");
    let error = socket.add(&address(&tun, "ff0e::1/64")).unwrap_err();
    assert!(matches!(error, RouteError::Refused { .. }), "{error}");
}

#[test]
fn lack_of_the_capability_is_reported() {
    if !is_root("lack_of_the_capability_is_reported") {
        return;
    }
    let namespace = Namespace::new();
    let tun = up(&namespace, "tenant0");
    namespace.run(|| {
        caps::drop(None, CapSet::Effective, Capability::CAP_NET_ADMIN).unwrap();
        let mut socket = RouteSocket::open().unwrap();
        for entry in all_kinds(&tun) {
            let error = socket.add(&entry).unwrap_err();
            assert!(matches!(error, RouteError::NotPermitted { .. }), "{error}");
        }
    });
}

#[test]
fn a_changed_set_changes_only_what_differs_and_ends_with_its_owner() {
    if !is_root("a_changed_set_changes_only_what_differs_and_ends_with_its_owner") {
        return;
    }
    let namespace = Namespace::new();
    let tun = up(&namespace, "tenant0");
    let via = Via::Interface(tun.index());
    let [own, first, second, third] = [
        address(&tun, "10.1.0.1/32"),
        route("10.2.0.0/16", TABLE_MAIN, via),
        route("10.3.0.0/16", TABLE_MAIN, via),
        route("10.4.0.0/16", TABLE_MAIN, via),
    ];
    // Left behind by a run that was killed.
    RouteSocket::open_in(&namespace.0)
        .unwrap()
        .add(&second)
        .unwrap();
    let mut installed = Installed::new(RouteSocket::open_in(&namespace.0).unwrap());
    let done = installed
        .set(&[own.clone(), first.clone(), second])
        .unwrap();
    assert!(
        done.foreign.is_empty() && done.errors.is_empty(),
        "{done:?}"
    );
    namespace.ip("route delete 10.2.0.0/16");
    let done = installed
        .set(&[own.clone(), first.clone(), third.clone()])
        .unwrap();
    assert!(
        done.foreign.is_empty() && done.errors.is_empty(),
        "{done:?}"
    );
    assert_eq!(done.put_back, slice::from_ref(&first));
    let shown = namespace.ip("route show");
    assert!(
        shown.contains("10.2.0.0/16") && shown.contains("10.4.0.0/16"),
        "{shown}"
    );
    assert!(!shown.contains("10.3.0.0/16"), "{shown}");
    assert_eq!(
        installed.entries().cloned().collect::<Vec<_>>(),
        [own, first, third]
    );
    assert!(installed.remove_all().is_empty());
    assert_eq!(namespace.ip("route show"), "");
    assert!(
        !namespace
            .ip("address show dev tenant0")
            .contains("10.1.0.1")
    );
}

#[test]
fn a_refused_entry_does_not_prevent_others_and_is_retried() {
    if !is_root("a_refused_entry_does_not_prevent_others_and_is_retried") {
        return;
    }
    let namespace = Namespace::new();
    let tun = up(&namespace, "tenant0");
    namespace.ip("link add other type veth peer name far");
    namespace.ip("link set far up");
    namespace.ip("link set other up");
    namespace.ip("route add 10.2.0.0/16 dev other");
    let via = Via::Interface(tun.index());
    let wanted = [
        route("10.2.0.0/16", TABLE_MAIN, via),
        address(&tun, "10.1.0.1/32"),
        route("10.3.0.0/16", TABLE_MAIN, via),
    ];
    let mut installed = Installed::new(RouteSocket::open_in(&namespace.0).unwrap());
    for _ in 0..2 {
        let done = installed.set(&wanted).unwrap();
        let refused: Vec<_> = done.errors.iter().map(|(entry, _)| entry).collect();
        assert_eq!(refused, [&wanted[0]]);
        assert!(done.put_back.is_empty(), "{done:?}");
        assert!(
            namespace
                .ip("route show")
                .contains("10.3.0.0/16 dev tenant0")
        );
    }
    namespace.ip("route delete 10.2.0.0/16");
    assert!(installed.set(&wanted).unwrap().errors.is_empty());
    assert!(
        namespace
            .ip("route show")
            .contains("10.2.0.0/16 dev tenant0")
    );
}

#[test]
fn entries_lost_with_a_device_set_down_are_reported_and_restored() {
    if !is_root("entries_lost_with_a_device_set_down_are_reported_and_restored") {
        return;
    }
    let namespace = Namespace::new();
    let tun = up(&namespace, "tenant0");
    let entries = all_kinds(&tun);
    let mut installed = Installed::new(RouteSocket::open_in(&namespace.0).unwrap());
    // The kernel enables IPv6 addresses asynchronously, and notifies of that, too.
    let settled = |addresses: &[&str]| {
        wait_until("the addresses work", || {
            let local = namespace.ip("-6 route show table local dev tenant0");
            let works = |address: &&str| local.contains(&format!("local {address}"));
            addresses.iter().all(works)
        });
    };
    settled(&["fe80:"]);
    let mut watch = namespace.run(|| RouteWatch::open().unwrap());
    assert!(!watch.changed().unwrap());
    installed.set(&entries).unwrap();
    settled(&["fd00:1::1 "]);
    assert!(watch.changed().unwrap());
    assert!(!watch.changed().unwrap());
    namespace.ip("link set tenant0 down");
    namespace.ip("link set tenant0 up");
    assert!(watch.changed().unwrap());
    // IPv4 routes, IPv6 routes and the IPv6 address.
    let done = installed.set(&entries).unwrap();
    assert!(done.errors.is_empty(), "{done:?}");
    assert_eq!(done.put_back.len(), 5, "{done:?}");
    assert!(watch.changed().unwrap());
    assert!(installed.set(&entries).unwrap().put_back.is_empty());
    namespace.ip("address flush dev tenant0");
    namespace.ip("rule delete priority 1000");
    assert!(watch.changed().unwrap());
    assert!(installed.set(&entries).unwrap().put_back.len() >= 3);
    settled(&["fd00:1::1 "]);
    assert!(watch.changed().unwrap());
    assert!(installed.set(&entries).unwrap().put_back.is_empty());
    assert!(!watch.changed().unwrap());
}

#[test]
fn entries_of_a_killed_run_are_found_and_removed() {
    if !is_root("entries_of_a_killed_run_are_found_and_removed") {
        return;
    }
    let namespace = Namespace::new();
    let left = [
        Entry::Rule(rule(RuleVersion::V6, 1000, 1001)),
        route("fd00:3::/48", 1001, Via::Unreachable),
        Entry::Rule(rule(RuleVersion::V4, 2000, 2001)),
    ];
    let mut earlier = RouteSocket::open_in(&namespace.0).unwrap();
    for entry in &left {
        earlier.add(entry).unwrap();
    }
    let mut installed = Installed::new(RouteSocket::open_in(&namespace.0).unwrap());
    let own = [route("fd00:4::/48", 1001, Via::Unreachable)];
    installed.set(&own).unwrap();
    let others = installed.others().unwrap();
    assert_eq!(others.len(), 3, "{others:?}");
    // Table 2001 belongs to another gateway.
    let is_own = |entry: &Entry| !matches!(entry, Entry::Rule(Rule { table: 2001, .. }));
    for entry in others.into_iter().filter(is_own) {
        installed.adopt(entry);
    }
    installed.set(&own).unwrap();
    assert_eq!(installed.others().unwrap(), left[2..]);
    drop(installed);
    assert_eq!(earlier.ours().unwrap(), left[2..]);
}

#[test]
fn entries_of_a_removed_device_are_gone_without_error() {
    if !is_root("entries_of_a_removed_device_are_gone_without_error") {
        return;
    }
    let namespace = Namespace::new();
    let tun = up(&namespace, "tenant0");
    let mut installed = Installed::new(RouteSocket::open_in(&namespace.0).unwrap());
    installed.set(&all_kinds(&tun)).unwrap();
    drop(tun);
    assert!(installed.remove_all().is_empty());
}

#[test]
fn tenants_with_the_same_addresses_are_kept_apart_by_tables() {
    if !is_root("tenants_with_the_same_addresses_are_kept_apart_by_tables") {
        return;
    }
    let namespace = Namespace::new();
    let mut installed = Installed::new(RouteSocket::open_in(&namespace.0).unwrap());
    let mut entries = Vec::new();
    // Without forwarding, the kernel looks up no route for incoming packets.
    namespace.run(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap());
    let tenants = ["tenant0", "tenant1"].map(|name| up(&namespace, name));
    for (number, tun) in (1u32..).zip(&tenants) {
        let table = 1000 + number;
        entries.push(address(tun, "10.1.0.1/32"));
        entries.push(route("10.9.0.0/16", table, Via::Interface(tun.index())));
        entries.push(route("0.0.0.0/0", table, Via::Unreachable));
        let mark = Some(Mark {
            value: number,
            mask: 0xff,
        });
        entries.push(Entry::Rule(Rule {
            mark,
            ..rule(RuleVersion::V4, table, table)
        }));
        let incoming = Some(tun.name().to_owned());
        entries.push(Entry::Rule(Rule {
            incoming,
            ..rule(RuleVersion::V4, 100 + table, table)
        }));
    }
    installed.set(&entries).unwrap();
    for (mark, name) in [(1, "tenant0"), (2, "tenant1")] {
        let shown = namespace.ip(&format!("route get 10.9.0.1 mark {mark}"));
        assert!(shown.contains(name), "{shown}");
        let shown = namespace.ip(&format!(
            "-json route get 10.9.0.1 from 10.9.0.7 iif {name}"
        ));
        assert!(shown.contains(name), "{shown}");
    }
    // Packets outside a tenant's prefixes do not fall through to another table.
    namespace.ip("route add 10.200.0.0/16 dev tenant0");
    let outside = std::panic::catch_unwind(|| namespace.ip("route get 10.200.0.1 mark 1"));
    assert!(outside.is_err());
}

#[test]
fn devices_are_removed_at_once_and_others_left() {
    if !is_root("devices_are_removed_at_once_and_others_left") {
        return;
    }
    let namespace = Namespace::new();
    let tuns: Vec<Tun> = (0..40)
        .map(|n| up(&namespace, &format!("tun{n}")))
        .collect();
    namespace.ip("link add veth0 type veth peer name veth1");
    let mut installed = Installed::new(RouteSocket::open_in(&namespace.0).unwrap());
    let mut wanted = vec![
        route("0.0.0.0/0", 101, Via::Unreachable),
        Entry::Rule(rule(RuleVersion::V4, 7600, 101)),
    ];
    for (number, tun) in tuns.iter().enumerate() {
        wanted.push(address(tun, &format!("10.1.{number}.1/32")));
        let to = format!("10.2.{number}.0/24");
        wanted.push(route(&to, 101, Via::Interface(tun.index())));
    }
    assert!(installed.set(&wanted).unwrap().errors.is_empty());
    let is_there = |name: &str| namespace.ip("link show").contains(&format!(" {name}"));

    // Of another kind, or missing.
    let mut socket = RouteSocket::open_in(&namespace.0).unwrap();
    let veth = namespace.ip("link show veth0");
    let veth = veth.split(':').next().unwrap().trim().parse().unwrap();
    assert_eq!(socket.remove_tuns(&[veth, 9_999].into()).unwrap(), 0);
    assert!(is_there("veth0"));
    // The group number is already in use.
    let (some, rest) = tuns.split_at(10);
    let taken = 1_u32 << 30 | some[0].index();
    namespace.ip(&format!("link set tun39 group {taken}"));
    let numbers = |tuns: &[Tun]| tuns.iter().map(Tun::index).collect();
    assert_eq!(socket.remove_tuns(&numbers(some)).unwrap(), 10);
    assert!(!is_there("tun9:") && is_there("tun10:") && is_there("tun39:"));

    installed.remove_all_with_tuns(&numbers(rest)).unwrap();
    assert_eq!(installed.entries().count(), 0);
    assert!(!is_there("tun") && is_there("veth0"));
    assert!(socket.ours().unwrap().is_empty());
}

#[test]
fn an_address_is_the_machines_from_the_moment_it_has_it() {
    if !is_root("an_address_is_the_machines_from_the_moment_it_has_it") {
        return;
    }
    let namespace = Namespace::new();
    namespace.ip("link add wan type veth peer name far");
    namespace.ip("link set wan up");
    namespace.ip("link set far up");
    namespace.ip("address add 10.9.0.1/24 dev wan");
    namespace.ip("address add 2001:db8:9::1/64 dev wan nodad");
    let is_own = |address: &str| {
        let address = address.parse().unwrap();
        namespace.run(|| keiro_linux::route::is_own(address, None).unwrap())
    };
    for (address, prefix) in [
        ("10.9.0.77", "10.9.0.77/24"),
        ("10.9.0.78", "10.9.0.78/32"),
        ("2001:db8:9::77", "2001:db8:9::77/128"),
    ] {
        assert!(!is_own(address), "{address}");
        namespace.ip(&format!("address add {prefix} dev lo nodad"));
        assert!(is_own(address), "{address}");
        namespace.ip(&format!("address delete {prefix} dev lo"));
        wait_until("the address is not local", || !is_own(address));
    }
    for own in [
        "10.9.0.1",
        "10.9.0.255",
        "127.0.0.2",
        "::1",
        "2001:db8:9::1",
    ] {
        // The interface's carrier may come a moment after it is up.
        wait_until(own, || is_own(own));
    }
    // As a new IPv6 address for a moment, before the kernel delivers to it.
    namespace.ip("route add 10.8.0.1/32 dev lo");
    assert!(is_own("10.8.0.1"));
    // No route leads there.
    assert!(!is_own("192.0.2.1") && !is_own("2001:db8::1"));
    for kind in ["unreachable", "prohibit", "blackhole"] {
        namespace.ip(&format!("route add {kind} 10.9.0.64/26"));
        namespace.ip(&format!("route add {kind} 2001:db8:9:0:1::/80"));
        assert!(
            !is_own("10.9.0.77") && !is_own("2001:db8:9:0:1::1"),
            "{kind}"
        );
        namespace.ip("route delete 10.9.0.64/26");
        namespace.ip("route delete 2001:db8:9:0:1::/80");
    }
}
