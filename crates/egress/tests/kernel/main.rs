//! Both daemons with the kernel, in network namespaces. Without root the tests are left out, and say so.

mod alarms;
mod alone;
mod blackhole;
mod comparison;
mod drain;
mod links;
#[path = "../../../lab/tests/linux/memory.rs"]
mod memory;
mod network;
mod next_hops;
mod paths;
mod reload;
mod restart;
mod steering;
#[path = "../support/mod.rs"]
mod support;
mod vrf;

use std::time::Duration;

use keiro_egress::kernel;
use network::{
    BORDER, CLIENTS, ControlSocket, Family, IPV4, IPV6, Network, OWN, SERVER, is_unreachable,
    wait_until, with_ipv4,
};

#[test]
fn packets_leave_by_the_peer_of_their_source_address_and_only_where_it_announces() {
    let test = "packets_leave_by_the_peer_of_their_source_address_and_only_where_it_announces";
    if let Some(network) = Network::new(test) {
        by_source_address(network, &IPV6, BORDER, SERVER);
    }
}

#[test]
fn ipv4_packets_leave_by_the_peer_of_their_source_address_and_only_where_it_announces() {
    let test = "ipv4_packets_leave_by_the_peer_of_their_source_address_and_only_where_it_announces";
    if let Some(network) = Network::new(test) {
        by_source_address(network, &IPV4, &with_ipv4(BORDER), &with_ipv4(SERVER));
    }
}

fn by_source_address(network: Network, family: &Family, border: &str, server: &str) {
    let (at_border, at_server) = (ControlSocket::new(), ControlSocket::new());
    let border = network.border_of(&at_border.named_in(border));
    let server = network.server_of(&at_server.named_in(server));
    let (clients, own) = (family.clients, family.own);
    let send = |from: &str, to| network.send_by(family, from, to);
    let a = network.transit(0, &clients);
    let b = network.transit(1, &clients[1..]);
    network.await_routes([&clients, &clients[1..]]);
    for (number, own) in own.into_iter().enumerate() {
        assert_eq!(send(own, 1).unwrap(), number, "from {own}");
    }
    let error = send(own[1], 0).unwrap_err();
    assert!(is_unreachable(&error), "B does not announce it: {error:?}");
    // Connections without an EPE address take the best path.
    send(family.server, 1).unwrap();
    explained(family, &at_border, &at_server);

    a.announce(clients[1], false);
    wait_until("the sender is notified", || {
        send(own[0], 1).is_err_and(|e| is_unreachable(&e))
    });
    assert_eq!(send(own[1], 1).unwrap(), 1);
    a.announce(clients[1], true);
    wait_until("the way is back", || send(own[0], 1).is_ok());

    // A session that is lost takes segment, table and routes.
    drop(b);
    wait_until("no segment of B", || {
        !network
            .ip("border", "route show")
            .contains("fd00:51d:0:b::")
    });
    wait_until("the sender is notified", || {
        send(own[1], 1).is_err_and(|e| is_unreachable(&e))
    });
    assert_eq!(network.ip("border", "route show table 7800"), "");
    assert_eq!(network.ip4("border", "route show table 7800"), "");
    assert_eq!(send(own[0], 1).unwrap(), 0);
    let b = network.transit(1, &clients);
    wait_until("B is back", || send(own[1], 0).is_ok());

    // The border router leaves nothing; the server its state, until cleanup.
    drop(border);
    assert_eq!(network.left("border", 77), "");
    assert_eq!(network.nft("border", "list tables"), "");
    wait_until("no routes without a border router", || {
        send(own[0], 1).is_err()
    });
    drop((server, a, b));
    let furniture = network.left("server", 76);
    for what in ["unreachable default", "lookup 7600", own[0]] {
        assert!(furniture.contains(what), "{what}: {furniture}");
    }
    let report = network.host("server").run(kernel::cleanup_endpoint);
    assert!(report.unwrap().unwrap().is_clean());
    assert_eq!(network.left("server", 76), "");
    network.lab.down().unwrap();
}

/// What both daemons say of clients of which A announces all, and B all but the first.
fn explained(family: &Family, border: &ControlSocket, server: &ControlSocket) {
    let of_peer = |socket: &ControlSocket, client: usize, peer: usize| {
        let asked = socket.explain(family.clients[client]);
        asked.peers[peer].clone()
    };
    for peer in 0..2 {
        let at_server = of_peer(server, 1, peer);
        let routes = at_server.kernel.unwrap();
        assert_eq!(routes.prefix.unwrap().to_string(), family.clients[1]);
        let sid = at_server.paths[0].segment.unwrap();
        assert!(routes.by.unwrap().contains(&format!("segs {sid}")));
        let at_border = of_peer(border, 1, peer).kernel.unwrap();
        assert_eq!(at_border.prefix.unwrap().to_string(), family.clients[1]);
        assert!(at_border.closed && routes.closed);
        let status = border.status();
        let segments = &status.peers[peer].segments;
        let segment = segments.iter().find(|one| one.sid == sid);
        assert_eq!(segment.unwrap().routes, 4 - peer, "{status:?}");
    }
    let unknown = of_peer(server, 0, 1);
    assert_eq!((unknown.prefix, unknown.unused), (None, None));
    for socket in [border, server] {
        let status = socket.status();
        assert_eq!(status.alarms, [], "{status:?}");
        for peer in &status.peers {
            let kernel = peer.kernel.as_ref().unwrap();
            assert!(kernel.closed && kernel.entered, "{status:?}");
        }
    }
}

#[test]
fn a_segment_to_the_peer_itself_needs_no_table() {
    let Some(network) = Network::new("a_segment_to_the_peer_itself_needs_no_table") else {
        return;
    };
    let direct = "function = 0xa\nbehaviour = \"end.dx6\"";
    let border = network.border_of(&BORDER.replacen("function = 0xa", direct, 1));
    let server = network.server();
    let (a, b) = (network.transit(0, &CLIENTS), network.transit(1, &CLIENTS));
    network.await_routes([&CLIENTS, &CLIENTS]);
    for (number, own) in OWN.into_iter().enumerate() {
        assert_eq!(network.send(own, 1).unwrap(), number, "from {own}");
    }
    let segments = network.ip("border", "route show");
    assert!(
        segments.contains("action End.DX6 nh6 fd00:a::2"),
        "{segments}"
    );
    assert_eq!(network.ip("border", "route show table 7700"), "");
    a.announce(CLIENTS[1], false);
    wait_until("the sender is notified", || {
        network.send(OWN[0], 1).is_err_and(|e| is_unreachable(&e))
    });
    assert_eq!(network.send(OWN[0], 2).unwrap(), 0);
    drop(a);
    wait_until("no segment of A", || {
        !network.ip("border", "route show").contains("End.DX6")
    });
    drop(border);
    assert_eq!(network.left("border", 77), "");
    drop((server, b));
    network.lab.down().unwrap();
}

#[test]
fn a_server_that_starts_again_takes_over_what_is_there_and_drops_what_is_gone() {
    let Some(network) =
        Network::new("a_server_that_starts_again_takes_over_what_is_there_and_drops_what_is_gone")
    else {
        return;
    };
    let (_border, server) = (network.border(), network.server());
    let a = network.transit(0, &CLIENTS);
    let _b = network.transit(1, &CLIENTS);
    let both = |n| [7600, 7601].map(|table| network.has_route("server", table, CLIENTS[n]));
    network.await_routes([&CLIENTS; 2]);
    drop(server);
    assert_eq!(both(1), [true; 2], "connections go on");
    assert_eq!(network.send(OWN[0], 1).unwrap(), 0);
    a.announce(CLIENTS[2], false);
    let border_has = || network.has_route("border", 7700, CLIENTS[2]);
    wait_until("withdrawn at the border", || !border_has());
    assert_eq!(both(2), [true; 2], "no speaker is there to hear it");
    let mut monitor = network.host("server").command("ip");
    monitor
        .args(["-6", "monitor", "route"])
        .stdout(std::process::Stdio::piped());
    let monitor = network.host("server").spawn(monitor).unwrap();
    let server = network.server();
    wait_until("what is not announced goes", || both(2) == [false, true]);
    assert_eq!(
        (both(0), both(1), both(3)),
        ([true; 2], [true; 2], [true; 2])
    );
    assert_eq!(network.send(OWN[0], 1).unwrap(), 0);
    let mut heard = String::new();
    let out = monitor.take_stdout();
    monitor.end(Duration::from_secs(1)).unwrap();
    std::io::Read::read_to_string(&mut out.unwrap(), &mut heard).unwrap();
    let of_kept = heard.lines().filter(|line| line.contains("fd00:c1::"));
    assert_eq!(
        of_kept.count(),
        0,
        "routes that stay are not touched: {heard}"
    );

    // What another program removes is restored.
    network.ip("server", "nexthop flush proto 76");
    wait_until("routes are back", || both(1) == [true; 2]);
    drop(server);
    network.lab.down().unwrap();
}
