//! Forwarding by the kernel without any neighbour: what others change, and what is in the way.

use std::{net::UdpSocket, time::Duration};

use keiro_egress::{
    config::{AsbrConfig, EndpointConfig},
    forwarding::{Configured, Forwarding, ForwardingError, PeerIndex, RouteChange, Table, Via},
    kernel::{self, Kernel},
    multipath::ConnectionSettings,
};
use keiro_units::Instant;

use crate::{
    memory::NoMemory,
    network::{BORDER, Network, SERVER, client, wait_until},
};

const SID: &str = "fd00:51d:0:a::";
const A: Table = Table::Peer(PeerIndex(0));

fn server(network: &Network, interface: &str) -> Kernel {
    let key = format!("[egress]\ninterface = \"{interface}\"");
    let text = SERVER.replacen("[egress]", &key, 1);
    let config = EndpointConfig::parse(&text, "egress.toml").unwrap();
    let open = || Kernel::endpoint(&config).unwrap();
    network.host("server").run(open).unwrap()
}

fn border(network: &Network) -> Kernel {
    let config = AsbrConfig::parse(BORDER, "asbr.toml").unwrap();
    let open = || Kernel::asbr(&config).unwrap();
    network.host("border").run(open).unwrap()
}

fn by_segment(prefix: &str) -> RouteChange {
    RouteChange {
        table: A,
        destination: prefix.parse().unwrap(),
        via: Some(Via::Segment(SID.parse().unwrap())),
    }
}

fn by_router(table: Table, prefix: &str, address: &str) -> RouteChange {
    RouteChange {
        table,
        destination: prefix.parse().unwrap(),
        via: Some(Via::Router {
            peer: match table {
                Table::Main => None,
                Table::Peer(peer) => Some(peer),
            },
            address: address.parse().unwrap(),
            link_local: None,
        }),
    }
}

/// In the host: interfaces are looked for where the caller is.
fn change(
    network: &Network,
    host: &str,
    kernel: &mut Kernel,
    changes: &[RouteChange],
) -> Vec<ForwardingError> {
    let changed = network.host(host).run(|| kernel.change(changes));
    changed.unwrap()
}

/// The reported reason why a next hop is unreachable.
fn lost(kernel: &mut Kernel) -> String {
    let noticed = kernel.poll_next_hop().expect("it is notified");
    assert_eq!(kernel.poll_next_hop(), None, "once");
    noticed.lost.expect("it is lost")
}

/// The same where that is not known at once.
fn lost_in_time(network: &Network, kernel: &mut Kernel) -> String {
    let mut noticed = None;
    wait_until("it is notified", || {
        assert_eq!(tend(network, "border", kernel), []);
        noticed = kernel.poll_next_hop();
        noticed.is_some()
    });
    noticed
        .and_then(|noticed| noticed.lost)
        .expect("it is lost")
}

/// As the daemon does after a notification or a timeout.
fn tend(network: &Network, host: &str, kernel: &mut Kernel) -> Vec<ForwardingError> {
    let later = Instant::from_nanos(keiro_linux::clock::monotonic_nanos() + 60_000_000_000);
    let later = kernel.poll_timeout().map_or(later, |due| due.max(later));
    let tended = network.host(host).run(|| kernel.tend(later));
    tended.unwrap()
}

#[test]
fn routes_are_restored_when_an_interface_returns() {
    let Some(network) = Network::new("routes_are_restored_when_an_interface_returns") else {
        return;
    };
    let make = || {
        network.ip("server", "link add d0 type veth peer name d1");
        network.ip("server", "link set d1 up");
        network.ip("server", "link set d0 up");
    };
    make();
    let mut kernel = server(&network, "d0");
    let routes = [by_segment("fd00:c0::/32"), by_segment("fd00:c1::/32")];
    assert_eq!(change(&network, "server", &mut kernel, &routes), []);
    let shown = || network.left("server", 76);
    let before = shown();
    assert!(
        before.contains("encap.red") || before.contains("seg6"),
        "{before}"
    );
    network.ip("server", "link delete d0");
    wait_until("routes go with it", || !shown().contains("fd00:c0::/32"));
    // An unresolvable next hop is refused and reported; the table stays closed.
    assert!(!tend(&network, "server", &mut kernel).is_empty());
    assert!(shown().contains("unreachable default"));
    make();
    wait_until("all is back", || {
        tend(&network, "server", &mut kernel).is_empty()
    });
    let after = shown();
    for what in [
        "fd00:c0::/32",
        "fd00:c1::/32",
        SID,
        "fd00:e::a",
        "lookup 7600",
    ] {
        assert!(after.contains(what), "{what}: {after}");
    }
    network.lab.down().unwrap();
}

#[test]
fn next_hops_behind_other_routers_are_followed_where_their_way_leads() {
    let Some(network) =
        Network::new("next_hops_behind_other_routers_are_followed_where_their_way_leads")
    else {
        return;
    };
    let mut kernel = border(&network);
    let far = by_router(Table::Main, "fd00:d::/32", "fd00:99::1");
    assert_eq!(change(&network, "border", &mut kernel, &[far, far]), []);
    let reason = lost(&mut kernel);
    assert!(reason.contains("no route leads there"), "{reason}");
    let shown = || network.ip("border", "route show fd00:d::/32");
    assert_eq!(shown(), "");
    network.ip("border", "route add fd00:99::/64 via fd00:a::2");
    assert_eq!(tend(&network, "border", &mut kernel), []);
    assert!(shown().contains("via fd00:a::2"), "{}", shown());
    let found = kernel.poll_next_hop().expect("it is notified");
    assert_eq!(
        (found.address, found.lost),
        ("fd00:99::1".parse().unwrap(), None)
    );
    network.ip("border", "route replace fd00:99::/64 via fd00:b::2");
    assert_eq!(tend(&network, "border", &mut kernel), []);
    assert!(shown().contains("via fd00:b::2"), "{}", shown());
    assert_eq!(kernel.poll_next_hop(), None, "it can be reached as before");
    network.ip("border", "route delete fd00:99::/64");
    assert_eq!(tend(&network, "border", &mut kernel), []);
    assert_eq!(shown(), "");
    assert!(lost(&mut kernel).contains("no route leads there"));
    // An egress peer's own table leads to links only.
    network.ip("border", "route add fd00:99::/64 via fd00:b::2");
    let of_b = by_router(Table::Peer(PeerIndex(1)), "fd00:d::/32", "fd00:99::1");
    assert_eq!(change(&network, "border", &mut kernel, &[of_b]), []);
    let reason = lost(&mut kernel);
    assert!(reason.contains("none of our links"), "{reason}");
    // A route of ours does not carry itself.
    let first = by_router(Table::Main, "fd00:98::/32", "fd00:a::2");
    assert_eq!(change(&network, "border", &mut kernel, &[first]), []);
    let second = by_router(Table::Main, "fd00:97::/32", "fd00:98::1");
    assert_eq!(change(&network, "border", &mut kernel, &[second]), []);
    let reason = lost_in_time(&network, &mut kernel);
    assert!(reason.contains("Keiro's own"), "{reason}");
    assert_eq!(network.ip("border", "route show fd00:97::/32"), "");
    network.lab.down().unwrap();
}

#[test]
fn a_route_that_covers_its_own_next_hop_stays() {
    let Some(network) = Network::new("a_route_that_covers_its_own_next_hop_stays") else {
        return;
    };
    let mut kernel = border(&network);
    network.ip("border", "route add default via fd00:b::2");
    let own = by_router(Table::Main, "fd00:97::/32", "fd00:97::1");
    assert_eq!(change(&network, "border", &mut kernel, &[own]), []);
    let shown = || network.ip("border", "route show fd00:97::/32");
    for _ in 0..3 {
        assert!(shown().contains("via fd00:b::2"), "{}", shown());
        assert_eq!(tend(&network, "border", &mut kernel), []);
        assert_eq!(kernel.poll_next_hop(), None);
    }
    // By the way that there is beneath it, whatever becomes of that.
    network.ip("border", "route replace default via fd00:a::2");
    wait_until("it follows", || {
        assert_eq!(tend(&network, "border", &mut kernel), []);
        assert_eq!(kernel.poll_next_hop(), None);
        shown().contains("via fd00:a::2")
    });
    network.ip("border", "route delete default");
    let reason = lost_in_time(&network, &mut kernel);
    assert!(reason.contains("Keiro's own"), "{reason}");
    assert_eq!(shown(), "");
    network.lab.down().unwrap();
}

#[test]
fn a_border_router_begins_with_nothing() {
    let Some(network) = Network::new("a_border_router_begins_with_nothing") else {
        return;
    };
    let mut kernel = border(&network);
    let sid = SID.parse().unwrap();
    let add = |kernel: &mut Kernel| {
        let added = network
            .host("border")
            .run(|| kernel.add_segment(PeerIndex(0), sid));
        added.unwrap().unwrap();
    };
    add(&mut kernel);
    let route = by_router(A, "fd00:c0::/32", "fd00:a::2");
    assert_eq!(change(&network, "border", &mut kernel, &[route]), []);
    assert!(network.left("border", 77).contains("End.DT6"));
    // Another one, and a cleaning up, leave it alone while it runs.
    let config = AsbrConfig::parse(BORDER, "asbr.toml").unwrap();
    let open = || Kernel::asbr(&config).unwrap_err().to_string();
    let refused = network.host("border").run(open).unwrap();
    let own = format!("process {} does that", std::process::id());
    assert!(refused.contains(&own), "{refused}");
    let cleaned = network.host("border").run(kernel::cleanup_asbr).unwrap();
    assert!(cleaned.is_err());
    assert!(network.left("border", 77).contains("End.DT6"));
    // It is killed.
    drop(kernel);
    let mut kernel = border(&network);
    let only_drops = || {
        let rest = network.left("border", 77);
        rest.matches("blackhole").count() == 2 && !rest.contains("fd00:c0::")
    };
    assert!(only_drops(), "{}", network.left("border", 77));
    assert!(!network.left("border", 77).contains("End.DT6"));
    add(&mut kernel);
    kernel.remove_segment(PeerIndex(0), sid).unwrap();
    assert!(only_drops(), "{}", network.left("border", 77));
    assert_eq!(kernel.end(), []);
    assert_eq!(network.left("border", 77), "");
    network.lab.down().unwrap();
}

/// Whether packets arrive at a client that transit A sends into B's segment.
fn a_uses_the_segment_of_b(network: &Network) -> bool {
    let bind = |host: &str| network.host(host).run(|| UdpSocket::bind("[::]:0"));
    let [receiver, sender] = ["client", "ta"].map(|host| bind(host).unwrap().unwrap());
    let patience = Some(Duration::from_millis(100));
    receiver.set_read_timeout(patience).unwrap();
    let to = (client(1), receiver.local_addr().unwrap().port());
    (0..5).any(|_| {
        sender.send_to(b"not ours", to).unwrap();
        receiver.recv(&mut [0; 10]).is_ok()
    })
}

#[test]
fn packets_of_peers_to_segments_are_dropped() {
    let Some(network) = Network::new("packets_of_peers_to_segments_are_dropped") else {
        return;
    };
    let mut kernel = border(&network);
    let (b, sid) = (PeerIndex(1), "fd00:51d:0:b::");
    let add = || kernel.add_segment(b, sid.parse().unwrap()).unwrap();
    network.host("border").run(add).unwrap();
    let route = by_router(Table::Peer(b), "fd00:c1::/32", "fd00:b::2");
    assert_eq!(change(&network, "border", &mut kernel, &[route]), []);
    let way_in = format!("route add fd00:c1::1/128 encap seg6 mode encap.red segs {sid} dev pa");
    network.ip("ta", &way_in);
    assert!(!a_uses_the_segment_of_b(&network));
    let rules = network.ip("border", "rule show");
    for interface in ["pa", "pb"] {
        let rule = format!("to fd00:51d::/48 iif {interface} blackhole");
        assert!(rules.contains(&rule), "{rules}");
    }
    assert!(!rules.contains("iif up"), "servers are there: {rules}");
    // Without it they would arrive.
    network.ip("border", "rule delete priority 7700 iif pa");
    wait_until("they do", || a_uses_the_segment_of_b(&network));
    assert_eq!(tend(&network, "border", &mut kernel), []);
    assert!(!a_uses_the_segment_of_b(&network));
    assert_eq!(kernel.end(), []);
    assert_eq!(network.left("border", 77), "");
    network.lab.down().unwrap();
}

#[test]
fn changes_that_fail_with_enomem_are_reported_and_retried() {
    let test = "changes_that_fail_with_enomem_are_reported_and_retried";
    let Some(network) = Network::new(test) else {
        return;
    };
    let Some(group) = NoMemory::new(test) else {
        return;
    };
    let mut kernel = server(&network, "up");
    let another = "[[peer]]\nname = \"another\"\nrt = \"65000:12\"\naddress = \"fd00:e::c\"\n";
    let config = EndpointConfig::parse(&format!("{SERVER}{another}"), "egress.toml").unwrap();
    let peers = (0..).map(PeerIndex).zip(config.peers).collect();
    let configured = Configured::Endpoint {
        peers: &peers,
        others: ConnectionSettings {
            classes: &[],
            comparison: config.comparison,
        },
    };
    let errors = group.run(|| kernel.follow_configuration(&configured));
    let noticed: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let of_rule = noticed.iter().find(|text| text.contains("lookup 7602"));
    let of_rule = of_rule.expect("the rule is refused");
    assert!(of_rule.contains("Cannot allocate memory"), "{noticed:?}");
    assert!(group.refused() > 0);
    let shown = || network.left("server", 76);
    assert!(!shown().contains("lookup 7602"), "{}", shown());
    assert!(kernel.poll_timeout().is_some(), "it comes back to it");
    group.relieve();
    let tended = group.run(|| tend(&network, "server", &mut kernel));
    assert_eq!(tended, []);
    let after = shown();
    assert!(
        after.contains("lookup 7602") && after.contains("fd00:e::c"),
        "{after}"
    );
    network.lab.down().unwrap();
}

#[test]
fn foreign_kernel_objects_are_named_and_kept() {
    let Some(network) = Network::new("foreign_kernel_objects_are_named_and_kept") else {
        return;
    };
    let rule = "rule add priority 7000 from fd00:e::/64 lookup 99";
    network.ip("server", rule);
    let mut kernel = server(&network, "up");
    let shown = network.left("server", 76);
    assert!(
        !shown.contains("lookup 7600"),
        "it would not be reached: {shown}"
    );
    let errors = tend(&network, "server", &mut kernel);
    assert!(errors[0].to_string().contains("7000"), "{errors:?}");
    assert!(network.ip("server", "rule show").contains("lookup 99"));
    network.ip("server", &rule.replacen("add", "delete", 1));
    assert_eq!(tend(&network, "server", &mut kernel), []);
    let shown = network.left("server", 76);
    assert!(
        shown.contains("lookup 7600") && shown.contains("fd00:e::a"),
        "{shown}"
    );
    network.lab.down().unwrap();
}
