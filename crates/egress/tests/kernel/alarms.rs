//! What is wrong with a host or with the way to a segment is an alarm, as long as it is.

use std::{fs, net::Ipv6Addr, time::Duration};

use keiro_egress::alarms::{AlarmStatus, Cause};

use crate::{
    network::{BORDER, CLIENTS, ControlSocket, Network, SERVER, wait_until},
    restart::{ADDRESS, Reflector, SIDS},
};

fn raised(socket: &ControlSocket, cause: Cause) -> Option<AlarmStatus> {
    let alarms = socket.status().alarms;
    alarms.into_iter().find(|alarm| alarm.cause == cause)
}

#[test]
fn a_border_router_that_forwards_nothing_says_so_until_it_does() {
    let test = "a_border_router_that_forwards_nothing_says_so_until_it_does";
    let Some(network) = Network::new(test) else {
        return;
    };
    let socket = ControlSocket::new();
    let _border = network.border_of(&socket.named_in(BORDER));
    let is_raised = || raised(&socket, Cause::ForwardingOff).is_some();
    assert!(!is_raised());
    let set = |value: &str| {
        let write = || fs::write("/proc/sys/net/ipv6/conf/all/forwarding", value);
        network.host("border").run(write).unwrap().unwrap();
    };
    set("0");
    wait_until("the alarm", is_raised);
    set("1");
    wait_until("it is cleared", || !is_raised());
    network.lab.down().unwrap();
}

#[test]
fn segments_that_nothing_leads_to_and_routes_without_one_are_alarms() {
    let test = "segments_that_nothing_leads_to_and_routes_without_one_are_alarms";
    let Some(network) = Network::new(test) else {
        return;
    };
    let socket = ControlSocket::new();
    network.ip("border", &format!("addr add {ADDRESS}/128 dev up nodad"));
    let reflector = format!("\"{ADDRESS}\"\npassive = true");
    let config = SERVER.replacen("\"fd00:1::1\"", &reflector, 1);
    let _server = network.server_of(&socket.named_in(&config));
    let mut reflector = Reflector::connect(&network, false, Duration::from_secs(60));
    reflector.announce(0, CLIENTS[0], SIDS[0]);
    reflector.announce_with(1, CLIENTS[1], &[]);
    reflector.end_of_rib();
    wait_until("the route", || {
        network.has_route("server", 7600, CLIENTS[0])
    });
    let sid: Ipv6Addr = SIDS[0].parse().unwrap();
    wait_until("no route leads to the segment", || {
        raised(&socket, Cause::LocatorUnreachable)
            .is_some_and(|alarm| alarm.subject == sid.to_string())
    });
    wait_until("routes of B have no segment", || {
        raised(&socket, Cause::NoSegment).is_some_and(|alarm| {
            alarm.subject == "transit-b" && alarm.text.starts_with("1 routes have")
        })
    });
    let peers = socket.explain(CLIENTS[1]).peers;
    assert_eq!(peers[0].unused, None, "A does not announce it");
    let unused = serde_json::to_value(peers[1].unused).unwrap();
    assert_eq!(unused["reason"], "no_segment");
    let of_ipv4 = &socket.explain("192.0.2.1/32").peers[0];
    let unused = serde_json::to_value(of_ipv4.unused).unwrap();
    assert_eq!(unused["reason"], "ipv4");
    network.ip("server", "route add fd00:51d::/48 via fd00:1::1");
    wait_until("cleared", || {
        raised(&socket, Cause::LocatorUnreachable).is_none()
    });
    network.lab.down().unwrap();
}

#[test]
fn routes_leave_a_segment_that_stops_answering_and_come_back_with_it() {
    let test = "routes_leave_a_segment_that_stops_answering_and_come_back_with_it";
    let Some(network) = Network::new(test) else {
        return;
    };
    let socket = ControlSocket::new();
    let config = SERVER.replacen("[egress]", "[egress]\nprobe_interval = \"250ms\"", 1);
    let _border = network.border();
    let _server = network.server_of(&socket.named_in(&config));
    let _transits = [0, 1].map(|number| network.transit(number, &CLIENTS));
    network.await_routes([&CLIENTS, &CLIENTS]);
    let answers = || {
        let peers = socket.status().peers.into_iter();
        let most = peers.map(|peer| peer.segments.first().and_then(|segment| segment.answers));
        most.collect::<Vec<_>>()
    };
    wait_until("both segments answer", || answers() == [Some(true); 2]);
    let routes = || {
        let kernel = socket.status().peers.into_iter();
        kernel
            .map(|peer| peer.kernel.unwrap().routes)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        routes(),
        [CLIENTS.len(); 2],
        "routes for probes do not count"
    );
    let nft = |arguments: &str| {
        let mut command = network.host("border").command("nft");
        let output = command.arg(arguments).output().expect("nft runs");
        assert!(output.status.success(), "{output:?}");
    };
    nft("add table ip6 lost");
    nft("add chain ip6 lost probes { type filter hook prerouting priority 0 ; }");
    nft(&format!(
        "add rule ip6 lost probes ip6 daddr {} drop",
        SIDS[0]
    ));
    wait_until("its routes are gone", || {
        !network.has_route("server", 7600, CLIENTS[0])
    });
    let silent = raised(&socket, Cause::SegmentSilent);
    wait_until("the alarm", || {
        raised(&socket, Cause::SegmentSilent).is_some()
    });
    assert!(silent.is_none_or(|alarm| alarm.subject == SIDS[0]));
    let unused = socket.explain(CLIENTS[0]).peers.swap_remove(0).unused;
    assert_eq!(serde_json::to_value(unused).unwrap()["reason"], "silent");
    assert!(network.has_route("server", 7601, CLIENTS[0]), "B answers");
    nft("delete table ip6 lost");
    wait_until("its routes are back", || {
        CLIENTS
            .iter()
            .all(|prefix| network.has_route("server", 7600, prefix))
    });
    wait_until("no alarm", || {
        raised(&socket, Cause::SegmentSilent).is_none()
    });
    network.lab.down().unwrap();
}
