//! Interfaces that appear, change and go, without a machine.

use std::collections::BTreeSet;

use keiro_control::config::{Family, InterfaceLocal, Local};
use keiro_linux::interface::{Address, Interface};

use super::*;

/// A machine and the uplinks that follow it.
#[derive(Default)]
struct Machine {
    network: Network,
    uplinks: Uplinks,
}

fn address(ip: &str) -> Address {
    Address {
        ip: ip.parse().unwrap(),
        prefix_len: 24,
        peer: None,
        ready: true,
        passing: false,
    }
}

fn wwan0(family: Option<Family>) -> Local {
    Local::Interface(InterfaceLocal {
        interface: "wwan0".to_owned(),
        port: 7600,
        family,
    })
}

fn fixed(address: &str) -> Local {
    Local::Address(address.parse().unwrap())
}

impl Machine {
    fn with(locals: &[Local]) -> Self {
        let mut machine = Self::default();
        for local in locals {
            machine.open(local, Uplinks::first(local, &machine.network.clone()));
        }
        machine
    }

    fn open(&mut self, local: &Local, chosen: Result<Binding, Problem>) {
        match chosen {
            // As the kernel would refuse it.
            Ok(binding) if binding.is_unlisted() => self.uplinks.on_missing(
                local,
                Problem::AddressNotHere {
                    address: binding.local,
                },
            ),
            Ok(binding) => self.uplinks.on_bound(local, binding, &self.network),
            Err(problem) => self.uplinks.on_missing(local, problem),
        }
    }

    fn interface(&mut self, name: &str) -> &mut Interface {
        let mut all = self.network.interfaces.iter_mut();
        all.find(|interface| interface.name == name).unwrap()
    }

    /// A new interface that is up.
    fn add(&mut self, name: &str, index: u32, addresses: &[&str]) {
        self.network.interfaces.push(Interface {
            name: name.to_owned(),
            index,
            up: true,
            carrier: true,
            mtu: 1500,
            addresses: addresses.iter().map(|ip| address(ip)).collect(),
            ..Interface::default()
        });
    }

    fn remove(&mut self, name: &str) {
        self.network
            .interfaces
            .retain(|interface| interface.name != name);
    }

    fn set_addresses(&mut self, name: &str, addresses: &[&str]) {
        self.interface(name).addresses = addresses.iter().map(|ip| address(ip)).collect();
    }

    fn route(&mut self, index: u32) {
        let router = "192.0.2.254".parse().unwrap();
        self.network
            .default_routes
            .insert((index, Family::V4), Some(router));
    }

    /// Does what is to be done; what that was, in order, in words.
    fn follow(&mut self) -> Vec<String> {
        let changes = self.uplinks.on_network(&self.network);
        let mut done = Vec::new();
        for UplinkChange { local, action } in changes {
            match action {
                SocketAction::Bind(binding) => {
                    let device = binding.device.clone().unwrap_or_default();
                    done.push(format!("bind {} {device}", binding.local));
                    self.open(&local, Ok(binding));
                }
                SocketAction::BindToDevice(binding) => {
                    let device = binding.device.clone().unwrap_or_default();
                    done.push(format!("to device {device}"));
                    self.open(&local, Ok(binding));
                }
                SocketAction::Unbind(problem) => {
                    done.push(format!("unbind: {problem}"));
                    self.open(&local, Err(problem));
                }
                SocketAction::Challenge => done.push("challenge".to_owned()),
                SocketAction::Report => done.push("report".to_owned()),
            }
        }
        assert_eq!(self.uplinks.on_network(&self.network), [], "all is done");
        done
    }

    fn problem(&self, local: &Local) -> String {
        let problem = self.uplinks.problem(local);
        problem.map_or_else(String::new, |problem| problem.to_string())
    }
}

/// `all` are one for each, that begin so.
#[track_caller]
fn assert_begins(all: &[String], beginnings: &[&str]) {
    let same = all.iter().zip(beginnings).all(|(a, b)| a.starts_with(b));
    assert!(same && all.len() == beginnings.len(), "{all:#?}");
}

#[test]
fn interface_is_waited_for_step_by_step() {
    let local = wwan0(None);
    let mut machine = Machine::with(std::slice::from_ref(&local));
    assert!(
        machine
            .problem(&local)
            .starts_with("interface wwan0 does not exist")
    );
    machine.add("wwan0", 3, &[]);
    machine.interface("wwan0").up = false;
    machine.interface("wwan0").carrier = false;
    assert_begins(&machine.follow(), &["unbind: interface wwan0 is down; "]);
    machine.interface("wwan0").up = true;
    assert_begins(
        &machine.follow(),
        &["unbind: interface wwan0 has no carrier; "],
    );
    machine.interface("wwan0").carrier = true;
    assert_begins(
        &machine.follow(),
        &["unbind: interface wwan0 has no address; "],
    );
    // Neither is reached from afar.
    machine.set_addresses("wwan0", &["fe80::1", "169.254.7.7"]);
    assert_begins(&machine.follow(), &[]);
    machine.set_addresses("wwan0", &["fe80::1", "192.0.2.7"]);
    assert_begins(&machine.follow(), &["bind 192.0.2.7:7600 wwan0"]);
    assert!(machine.problem(&local).contains("has no default route"));
    machine.route(3);
    assert_begins(&machine.follow(), &["challenge"]);
    assert_eq!(machine.problem(&local), "");
    assert_begins(&machine.follow(), &[]);
}

#[test]
fn new_lease_moves_the_socket_and_a_second_address_does_not() {
    let local = wwan0(Some(Family::V4));
    let mut machine = Machine::with(std::slice::from_ref(&local));
    machine.add("wwan0", 3, &["192.0.2.7"]);
    machine.route(3);
    assert_begins(&machine.follow(), &["bind 192.0.2.7:7600 wwan0"]);
    machine.set_addresses("wwan0", &["192.0.2.8", "2001:db8::1", "192.0.2.7"]);
    assert_begins(&machine.follow(), &[]);
    machine.set_addresses("wwan0", &["192.0.2.8", "2001:db8::1"]);
    assert_begins(&machine.follow(), &["bind 192.0.2.8:7600 wwan0"]);
    machine.set_addresses("wwan0", &["2001:db8::1"]);
    assert_begins(
        &machine.follow(),
        &["unbind: interface wwan0 has no IPv4 address; "],
    );
}

#[test]
fn interface_that_is_made_anew_renamed_or_replaced_is_followed() {
    let local = wwan0(None);
    let mut machine = Machine::with(std::slice::from_ref(&local));
    machine.add("wwan0", 3, &["192.0.2.7"]);
    assert_begins(&machine.follow(), &["bind 192.0.2.7:7600 wwan0"]);
    // The same name and address, and another device.
    machine.remove("wwan0");
    machine.add("wwan0", 4, &["192.0.2.7"]);
    assert_begins(&machine.follow(), &["bind 192.0.2.7:7600 wwan0"]);
    machine.interface("wwan0").name = "wwan9".to_owned();
    assert_begins(
        &machine.follow(),
        &["unbind: interface wwan0 does not exist"],
    );
    machine.interface("wwan9").name = "wwan0".to_owned();
    assert_begins(&machine.follow(), &["bind 192.0.2.7:7600 wwan0"]);
    machine.remove("wwan0");
    assert_begins(
        &machine.follow(),
        &["unbind: interface wwan0 does not exist"],
    );
}

#[test]
fn ipv4_is_taken_first_and_ipv6_addresses_that_stay() {
    let any = wwan0(None);
    let v6 = wwan0(Some(Family::V6));
    let mut machine = Machine::with(&[any.clone(), v6.clone()]);
    machine.add("wwan0", 3, &["2001:db8::1", "2001:db8::2", "2001:db8::3"]);
    let addresses = &mut machine.interface("wwan0").addresses;
    addresses[0].passing = true;
    addresses[1].ready = false;
    let bound = "bind [2001:db8::3]:7600 wwan0";
    assert_begins(&machine.follow(), &[bound, bound]);
    // The one in use is about to go, and another one has come.
    let addresses = &mut machine.interface("wwan0").addresses;
    addresses[1].ready = true;
    addresses[2].passing = true;
    let bound = "bind [2001:db8::2]:7600 wwan0";
    assert_begins(&machine.follow(), &[bound, bound]);
    machine
        .interface("wwan0")
        .addresses
        .push(address("192.0.2.7"));
    assert_begins(&machine.follow(), &["bind 192.0.2.7:7600 wwan0"]);
    let at = |local: &Local| machine.uplinks.binding(local).unwrap().local.to_string();
    assert_eq!(
        [at(&any), at(&v6)],
        ["192.0.2.7:7600", "[2001:db8::2]:7600"]
    );
}

#[test]
fn fixed_address_is_waited_for_and_leaves_by_its_interface_if_that_is_an_uplink() {
    let local = fixed("192.0.2.7:7600");
    let mut machine = Machine::with(std::slice::from_ref(&local));
    assert!(
        machine
            .problem(&local)
            .starts_with("no interface has the address 192.0.2.7")
    );
    machine.add("eth0", 3, &["192.0.2.7"]);
    machine.interface("eth0").addresses[0].ready = false;
    assert_begins(
        &machine.follow(),
        &["unbind: the address 192.0.2.7 is still being checked"],
    );
    machine.interface("eth0").addresses[0].ready = true;
    // A LAN's interface: the routes decide by which other one packets leave.
    assert_begins(&machine.follow(), &["bind 192.0.2.7:7600 "]);
    assert_eq!(machine.uplinks.binding(&local).unwrap().device, None);
    machine.interface("eth0").up = false;
    assert_begins(&machine.follow(), &[]);
    machine.interface("eth0").up = true;
    // The socket stays.
    machine.route(3);
    assert_begins(&machine.follow(), &["to device eth0"]);
    // The lease is renewed, or the cable pulled.
    machine.network.default_routes.clear();
    assert_begins(&machine.follow(), &[]);
    machine.interface("eth0").carrier = false;
    assert_begins(
        &machine.follow(),
        &["unbind: interface eth0 has no carrier; "],
    );
    machine.interface("eth0").carrier = true;
    assert_begins(&machine.follow(), &["bind 192.0.2.7:7600 eth0"]);
    machine.set_addresses("eth0", &["192.0.2.8"]);
    let changes = machine.uplinks.on_network(&machine.network);
    let SocketAction::Bind(binding) = &changes[0].action else {
        panic!("{changes:?}")
    };
    assert!(binding.is_unlisted(), "the kernel decides: {binding:?}");
}

/// Paths of every kind on a machine with an uplink of each, all bound.
fn bound_paths() -> Machine {
    let locals = [
        fixed("192.0.2.7:7600"),
        fixed("198.51.100.7:7600"),
        fixed("[2001:db8::7]:7600"),
        fixed("203.0.113.7:7600"),
        fixed("0.0.0.0:7601"),
        fixed("127.0.0.1:7602"),
        wwan0(Some(Family::V4)),
        wwan0(Some(Family::V6)),
    ];
    let mut machine = Machine::default();
    machine.add("lo", 1, &["127.0.0.1", "203.0.113.7"]);
    machine.interface("lo").loopback = true;
    machine.add("eth0", 3, &["192.0.2.7", "2001:db8::7"]);
    machine.add("eth1", 4, &["198.51.100.7"]);
    machine.add("wwan0", 5, &["10.64.0.7", "2001:db8:1::7"]);
    machine.add("eth9", 9, &["10.9.0.1"]);
    machine.route(3);
    machine.route(5);
    for local in locals {
        let chosen = Uplinks::first(&local, &machine.network);
        machine.open(&local, chosen);
    }
    machine
}

type NamedChange = (&'static str, fn(&mut Machine));

/// What changes at a machine without changing anything that a path's socket depends on.
const NO_CHANGES: &[NamedChange] = &[
    ("another interface appears", |m| {
        m.add("eth7", 2, &["10.7.0.1"]);
    }),
    ("another interface goes", |m| m.remove("eth9")),
    ("another interface is made anew", |m| {
        m.remove("eth9");
        m.add("eth9", 12, &["10.9.0.1"]);
    }),
    ("another interface is set down", |m| {
        m.interface("eth9").up = false;
    }),
    ("another interface loses its carrier", |m| {
        m.interface("eth9").carrier = false;
    }),
    ("another interface has another address", |m| {
        m.set_addresses("eth9", &["10.9.0.2"]);
    }),
    ("another interface gains a default route", |m| m.route(9)),
    ("a LAN's interface gains a default route", |m| m.route(4)),
    ("an uplink loses its default route", |m| {
        m.network.default_routes.remove(&(3, Family::V4));
    }),
    ("all default routes go", |m| {
        m.network.default_routes.clear();
    }),
    ("an uplink gains a default route of IPv6", |m| {
        m.network.default_routes.insert((3, Family::V6), None);
    }),
    ("a default route has another router", |m| {
        m.network.default_routes.insert((3, Family::V4), None);
    }),
    ("an uplink gains an address", |m| {
        m.interface("eth0")
            .addresses
            .insert(0, address("192.0.2.9"));
    }),
    ("the addresses are in another order", |m| {
        m.interface("eth0").addresses.reverse();
        m.interface("wwan0").addresses.reverse();
    }),
    ("an uplink by name gains addresses of both versions", |m| {
        let addresses = &mut m.interface("wwan0").addresses;
        addresses.insert(0, address("10.64.0.2"));
        addresses.insert(0, address("2001:db8:1::2"));
    }),
    ("a fixed address is about to be removed", |m| {
        m.interface("eth0")
            .addresses
            .iter_mut()
            .for_each(|of| of.passing = true);
    }),
    ("a prefix is another one", |m| {
        m.interface("eth0").addresses[0].prefix_len = 28;
    }),
    ("another interface has the same address", |m| {
        m.add("vrrp0", 2, &["192.0.2.7"]);
    }),
    (
        "the interface of a LAN has another one's address too",
        |m| {
            m.interface("eth9").addresses.push(address("198.51.100.7"));
            m.network
                .interfaces
                .sort_by_key(|of| std::cmp::Reverse(of.index));
        },
    ),
    ("an address moves where the routes decide", |m| {
        m.set_addresses("eth1", &[]);
        m.interface("eth9").addresses.push(address("198.51.100.7"));
    }),
    ("an interface with a fixed address has another name", |m| {
        m.interface("eth0").name = "wan0".to_owned();
    }),
    ("a LAN's interface is set down", |m| {
        m.interface("eth1").up = false;
    }),
    ("a LAN's interface loses its carrier", |m| {
        m.interface("eth1").carrier = false;
    }),
    ("the largest packet is another one", |m| {
        m.interface("eth0").mtu = 1400;
    }),
    ("the kernel filters by the reverse path", |m| {
        m.network.filtered = BTreeSet::from([3, 4, 5]);
    }),
    ("interfaces are listed in another order", |m| {
        m.network.interfaces.reverse();
    }),
];

#[test]
fn unrelated_changes_leave_a_socket_alone() {
    let leaves_alone = |machine: &mut Machine, what: &str| {
        let done = machine.follow();
        let is_quiet =
            |action: &&String| !action.starts_with("bind") && !action.starts_with("unbind");
        assert_eq!(
            done.iter().filter(is_quiet).count(),
            done.len(),
            "{what}: {done:?}"
        );
    };
    for (what, change) in NO_CHANGES {
        let mut machine = bound_paths();
        let before = machine.network.clone();
        change(&mut machine);
        leaves_alone(&mut machine, what);
        machine.network = before;
        leaves_alone(&mut machine, &format!("{what}, and back"));
    }
}

#[test]
fn a_port_of_a_bridge_is_refused_by_name_and_left_to_the_routes_by_address() {
    let (by_name, by_address) = (wwan0(None), fixed("192.0.2.7:7601"));
    let mut machine = Machine::default();
    machine.add("wwan0", 3, &["192.0.2.7"]);
    machine.interface("wwan0").port_of = Some("br0".to_owned());
    machine.route(3);
    for local in [&by_name, &by_address] {
        machine.open(local, Uplinks::first(local, &machine.network));
    }
    let problem = machine.problem(&by_name);
    assert!(problem.contains("is a port of br0"), "{problem}");
    assert!(problem.contains("interface = \"br0\""), "{problem}");
    assert_eq!(machine.problem(&by_address), "");
    assert_eq!(machine.uplinks.binding(&by_address).unwrap().device, None);
    machine.interface("wwan0").port_of = None;
    assert_begins(
        &machine.follow(),
        &["to device wwan0", "bind 192.0.2.7:7600 wwan0"],
    );
}

#[test]
fn the_loopback_interface_is_refused_by_name() {
    let local = wwan0(None);
    let mut machine = Machine::default();
    machine.add("wwan0", 1, &["127.0.0.1", "192.0.2.7"]);
    machine.interface("wwan0").loopback = true;
    machine.open(&local, Uplinks::first(&local, &machine.network));
    let problem = machine.problem(&local);
    assert!(problem.contains("is the loopback interface"), "{problem}");
}

#[test]
fn addresses_that_are_no_interfaces_leave_by_the_routes() {
    let mut machine = Machine::default();
    machine.add("lo", 1, &["127.0.0.1", "192.0.2.7"]);
    machine.interface("lo").loopback = true;
    machine.route(1);
    for local in [
        "127.0.0.9:7600",
        "0.0.0.0:7600",
        "[::]:7600",
        "192.0.2.7:7600",
    ] {
        let binding = Uplinks::first(&fixed(local), &machine.network).unwrap();
        assert_eq!(
            (binding.local.to_string(), &binding.device),
            (local.to_owned(), &None)
        );
    }
}

#[test]
fn link_local_address_is_the_one_of_its_interface() {
    let mut machine = Machine::default();
    machine.add("eth0", 3, &["fe80::1"]);
    machine.add("eth1", 4, &["fe80::1"]);
    machine.interface("eth0").addresses[0].ready = false;
    let binding = Uplinks::first(&fixed("[fe80::1%4]:7600"), &machine.network).unwrap();
    assert_eq!(binding.owner, Some(4));
}

#[test]
fn failed_socket_setup_is_retried_until_it_succeeds() {
    let local = wwan0(None);
    let mut machine = Machine::with(std::slice::from_ref(&local));
    machine.add("wwan0", 3, &["192.0.2.7"]);
    assert!(!machine.uplinks.may_retry());
    let why = "the UDP port is in use".to_owned();
    machine
        .uplinks
        .on_missing(&local, Problem::CannotBind { why });
    assert!(machine.uplinks.may_retry());
    assert_eq!(machine.problem(&local), "the UDP port is in use");
    assert_begins(&machine.follow(), &["bind 192.0.2.7:7600 wwan0"]);
    assert!(!machine.uplinks.may_retry());
}

#[test]
fn uplinks_that_are_no_longer_configured_are_forgotten() {
    let (stays, goes) = (wwan0(None), fixed("192.0.2.7:7600"));
    let mut machine = Machine::with(&[stays.clone(), goes.clone()]);
    machine.uplinks.retain(&BTreeSet::from([&stays]));
    machine.add("wwan0", 3, &["192.0.2.7"]);
    assert_begins(&machine.follow(), &["bind 192.0.2.7:7600 wwan0"]);
    assert_eq!(machine.uplinks.binding(&goes), None);
}

#[test]
fn table_of_an_uplink_is_there_only_where_the_kernel_would_drop_answers() {
    let (by_interface, elsewhere) = (wwan0(Some(Family::V4)), fixed("198.51.100.7:7600"));
    let mut machine = Machine::with(&[by_interface, elsewhere]);
    machine.add("wwan0", 3, &["192.0.2.7"]);
    machine.add("eth0", 4, &["198.51.100.7"]);
    machine.route(3);
    machine.follow();
    let entries_of = |machine: &Machine, set| {
        routes::tests::entries_of(set, machine.uplinks.bindings(), &machine.network)
    };
    let entries = |machine: &Machine| entries_of(machine, 0);
    assert_eq!(entries(&machine), [""; 0]);
    machine.network.filtered = BTreeSet::from([3, 4]);
    assert_eq!(
        entries(&machine),
        [
            "route 192.0.2.0/24 dev 3 table 7600003",
            "route 0.0.0.0/0 via 192.0.2.254 dev 3 table 7600003",
            "rule priority 7599 from 192.0.2.7/32 ipproto udp sport 7600 lookup 7600003",
        ]
    );
    // Of another gateway in the same namespace.
    assert!(entries_of(&machine, 2)[2].ends_with("sport 7600 lookup 9600003"));
    machine.set_addresses("wwan0", &["192.0.2.8"]);
    machine.follow();
    assert!(entries(&machine)[2].contains("from 192.0.2.8/32"));
    machine.interface("wwan0").carrier = false;
    machine.follow();
    assert_eq!(entries(&machine), [""; 0]);
}
