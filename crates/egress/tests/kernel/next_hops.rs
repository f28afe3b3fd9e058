//! What the kernel knows of next hops decides which routes are chosen.

use std::net::IpAddr;

use keiro_egress::forwarding::PeerIndex;

use crate::network::{BORDER, CLIENTS, ControlSocket, Network, OWN, is_unreachable, wait_until};

#[test]
fn a_route_whose_next_hop_cannot_be_reached_gives_way_until_it_can() {
    let Some(network) =
        Network::new("a_route_whose_next_hop_cannot_be_reached_gives_way_until_it_can")
    else {
        return;
    };
    let socket = ControlSocket::new();
    // A's next hops are looked for, and may be behind another router.
    let border = BORDER.replacen("interface = \"pa\"", "ttl_security = false", 1);
    let border = network.border_of(&socket.named_in(&border));
    let server = network.server();
    let paths = || socket.explain(CLIENTS[1]).paths;
    let far = "ttl_security = false\nnext_hop = \"fd00:99::1\"\n";
    let a = network.transit_with(0, &CLIENTS[1..2], far);
    let b = network.transit(1, &CLIENTS);
    wait_until("both announce it", || paths().len() == 2);
    let by = || network.ip("border", &format!("route show {}", CLIENTS[1]));
    let to_server = |table| network.has_route("server", table, CLIENTS[1]);
    wait_until("B's is taken", || by().contains("via fd00:b::2"));
    let [best, other] = &paths()[..] else {
        panic!("two");
    };
    assert_eq!(
        (best.from.as_deref(), best.reachable),
        (Some("transit-b"), true)
    );
    assert!(!other.reachable, "{other:?}");
    let step = other.loses_to.as_deref();
    assert_eq!(step, Some("reachable next hop"));
    // Nor is it announced to the server.
    wait_until("B's table", || to_server(7601));
    assert!(!to_server(7600));
    let best = || network.has_route("server", 254, CLIENTS[1]);
    wait_until("the best path, by the border router", best);
    let error = network.send(OWN[0], 1).unwrap_err();
    assert!(is_unreachable(&error), "{error:?}");
    assert_eq!(network.send("fd00:1::2", 1).unwrap(), 1);

    network.ip("border", "route add fd00:99::/64 via fd00:a::2");
    wait_until("A's is better", || by().contains("via fd00:a::2"));
    wait_until("the server is notified", || to_server(7600));
    for from in [OWN[0], "fd00:1::2"] {
        assert_eq!(network.send(from, 1).unwrap(), 0, "{from}");
    }
    network.ip("border", "route delete fd00:99::/64");
    wait_until("B's is the best again", || by().contains("via fd00:b::2"));
    wait_until("the server is notified", || !to_server(7600));
    assert_eq!(network.send("fd00:1::2", 1).unwrap(), 1);

    drop((border, server, a, b));
    network.lab.down().unwrap();
}

/// The border router's, whose peers' next hops may be behind other routers.
fn far() -> String {
    let border = BORDER.replacen("interface = \"pa\"", "ttl_security = false", 1);
    border.replacen("table = 7800", "table = 7800\nttl_security = false", 1)
}

fn by(next_hop: &str) -> String {
    format!("ttl_security = false\nnext_hop = \"{next_hop}\"\n")
}

#[test]
fn routes_that_cover_each_others_next_hops_stay_as_long_as_the_interior_ones_beneath() {
    let test = "routes_that_cover_each_others_next_hops_stay_as_long_as_the_interior_ones_beneath";
    let Some(network) = Network::new(test) else {
        return;
    };
    network.ip("border", "route add fd00:98::/32 via fd00:a::2");
    network.ip("border", "route add fd00:99::/32 via fd00:b::2");
    let border = network.border_of(&far());
    let a = network.transit_with(0, &["fd00:98::/48"], &by("fd00:99::1"));
    let b = network.transit_with(1, &["fd00:99::/48"], &by("fd00:98::1"));
    let leads = |prefix: &str, router: &str| {
        let shown = network.ip("border", &format!("route show {prefix}"));
        shown.contains(&format!("via {router} "))
    };
    wait_until("both lead somewhere", || {
        leads("fd00:98::/48", "fd00:b::2") && leads("fd00:99::/48", "fd00:a::2")
    });
    // What is beneath is looked at again and again, and followed.
    for router in ["fd00:a::2", "fd00:b::2"] {
        network.ip(
            "border",
            &format!("route replace fd00:99::/32 via {router}"),
        );
        wait_until("A's follows", || leads("fd00:98::/48", router));
        assert!(leads("fd00:99::/48", "fd00:a::2"));
    }
    assert!(border.hops().reported.is_empty(), "{:?}", border.hops());

    network.ip("border", "route delete fd00:99::/32");
    wait_until("A's is gone", || {
        !network.has_route("border", 254, "fd00:98::/48")
    });
    assert!(leads("fd00:99::/48", "fd00:a::2"), "B's is not concerned");
    network.ip("border", "route add fd00:99::/32 via fd00:b::2");
    wait_until("A's is back", || leads("fd00:98::/48", "fd00:b::2"));
    let reported = border.hops().reported;
    let lost: Vec<bool> = reported.iter().map(|hop| hop.lost.is_some()).collect();
    assert_eq!(lost, [true, false], "{reported:?}");
    let next_hop: IpAddr = "fd00:99::1".parse().unwrap();
    assert!(
        reported.iter().all(|hop| hop.address == next_hop),
        "{reported:?}"
    );

    drop((border, a, b));
    network.lab.down().unwrap();
}

#[test]
fn a_route_that_covers_its_own_next_hop_goes_with_the_interior_one_beneath() {
    let test = "a_route_that_covers_its_own_next_hop_goes_with_the_interior_one_beneath";
    let Some(network) = Network::new(test) else {
        return;
    };
    network.ip("border", "route add fd00:99::/32 via fd00:a::2");
    let border = network.border_of(&far());
    let a = network.transit_with(0, &["fd00:99::/48"], &by("fd00:99::1"));
    let shown = || network.ip("border", "route show fd00:99::/48");
    wait_until("it is there", || shown().contains("via fd00:a::2 "));
    network.ip("border", "route replace fd00:99::/32 via fd00:b::2");
    wait_until("it follows", || shown().contains("via fd00:b::2 "));
    network.ip("border", "route delete fd00:99::/32");
    wait_until("it is gone", || shown().is_empty());
    network.ip("border", "route add fd00:99::/32 via fd00:a::2");
    wait_until("it is back", || shown().contains("via fd00:a::2 "));
    drop((border, a));
    network.lab.down().unwrap();
}

#[test]
fn a_lost_next_hop_is_asked_for_as_long_as_a_route_has_it() {
    let test = "a_lost_next_hop_is_asked_for_as_long_as_a_route_has_it";
    let Some(network) = Network::new(test) else {
        return;
    };
    let border = network.border_of(&far());
    let prefixes = ["fd00:98::/48", "fd00:97::/48"];
    let a = network.transit_with(0, &prefixes, &by("fd00:99::1"));
    let next_hop: IpAddr = "fd00:99::1".parse().unwrap();
    let lost = || {
        let reported = border.hops().reported;
        let lost = reported.iter().filter(|hop| hop.lost.is_some());
        lost.filter(|hop| hop.address == next_hop).count()
    };
    for times in 1..=2 {
        wait_until("it is lost", || lost() >= times);
        let forgotten = border.hops().forgotten;
        assert_eq!(forgotten.len(), times - 1, "{forgotten:?}");
        for prefix in prefixes {
            a.announce(prefix, false);
        }
        wait_until("it is forgotten", || {
            border.hops().forgotten == [(Some(PeerIndex(0)), next_hop)].repeat(times)
        });
        for prefix in prefixes {
            a.announce(prefix, true);
        }
    }
    drop((border, a));
    network.lab.down().unwrap();
}
