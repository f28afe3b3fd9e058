//! Another configuration while both daemons run: what of it is in the kernel.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};

use keiro_linux::mptcp_pm::{Endpoint, PathManager};

use crate::{
    network::{BORDER, CLIENTS, IPV6, Network, OWN, PATIENCE, SERVER, wait_until},
    paths::{connect, joined, listen_at, signalled},
};

/// Sends something from the server's end of a connection, the second; by which peers it is joined then.
fn joined_while_it_carries((there, here): &mut (TcpStream, TcpStream)) -> [bool; 2] {
    there.set_read_timeout(Some(PATIENCE)).unwrap();
    here.write_all(&[7; 100_000]).unwrap();
    there.read_exact(&mut vec![0; 100_000]).unwrap();
    joined(here)
}

/// Without the second egress peer.
fn without_b(text: &str) -> &str {
    let (_, second) = text.split_once("[[peer]]").unwrap();
    let end = text.len() - second.len() + second.find("[[peer]]").unwrap();
    &text[..end]
}

/// Without the first one.
fn without_a(text: &str) -> String {
    let (before, rest) = text.split_once("[[peer]]").unwrap();
    let second = rest.find("[[peer]]").unwrap();
    before.to_owned() + &rest[second..]
}

#[test]
fn peers_that_come_and_go_do_so_in_the_kernel_and_the_others_stay() {
    let Some(network) =
        Network::new("peers_that_come_and_go_do_so_in_the_kernel_and_the_others_stay")
    else {
        return;
    };
    let (border, server) = (network.border(), network.server());
    let _transits = [0, 1].map(|number| network.transit(number, &CLIENTS[..1]));
    let has = |host: &str, what: &str, text: &str| network.ip(host, what).contains(text);
    let at_server = |table| network.has_route("server", table, CLIENTS[0]);
    network.await_routes([&CLIENTS[..1]; 2]);
    for (number, own) in OWN.iter().enumerate() {
        assert_eq!(network.send(own, 0).unwrap(), number);
    }
    let of_a = network.ip("server", "route show table 7600");
    let sid = "fd00:51d:0:b::";
    assert!(has("border", "route show", sid) && has("border", "rule show", "iif pb"));

    // The border router's peer goes: with its segment, its table and what kept it from segments.
    border.reload(without_b(BORDER));
    wait_until("nothing of b's at the border", || {
        !has("border", "route show", sid)
            && !has("border", "rule show", "iif pb")
            && network.ip("border", "route show table 7800").is_empty()
    });
    wait_until("no route by b at the server", || !at_server(7601));
    assert!(network.send(OWN[1], 0).is_err(), "its table is closed");
    assert!(has("border", "rule show", "iif pa"));

    // The server's goes: with its address, its rule and its table.
    server.reload(without_b(SERVER));
    wait_until("nothing of b's at the server", || {
        !has("server", "addr show", OWN[1])
            && !has("server", "rule show", OWN[1])
            && network.ip("server", "route show table 7601").is_empty()
    });
    assert_eq!(
        network.ip("server", "route show table 7600"),
        of_a,
        "a's is as it was"
    );
    assert_eq!(network.send(OWN[0], 0).unwrap(), 0);

    // And both come back.
    server.reload(SERVER);
    wait_until("b's address", || has("server", "addr show", OWN[1]));
    border.reload(BORDER);
    wait_until("b's route", || at_server(7601));
    assert_eq!(network.send(OWN[1], 0).unwrap(), 1);
    assert_eq!(
        network.ip("server", "route show table 7600"),
        of_a,
        "a's is as it was"
    );
}

#[test]
fn live_connections_learn_new_peers_and_leave_those_that_go() {
    let Some(network) = Network::new("live_connections_learn_new_peers_and_leave_those_that_go")
    else {
        return;
    };
    // The server listens at one address alone, so that new ones need the helper, too.
    let key = "[egress]\nhelper_ports = [8443]\nmptcp = \"precise\"\n";
    let section = "[comparison]\nheld_out = \"0%\"\n";
    let all = section.to_owned() + &SERVER.replacen("[egress]", key, 1);
    let (border, server) = (network.border(), network.server_of(without_b(&all)));
    let transits = [0, 1].map(|number| network.transit(number, &CLIENTS));
    let has = |table| network.has_route("server", table, CLIENTS[1]);
    wait_until("a's routes", || has(7600));
    let at = SocketAddr::new(IPV6.server.parse().unwrap(), 8443);
    let listener = listen_at(&network, at);
    let mut ends = connect(&network, &listener, 1);
    let mut carries = || joined_while_it_carries(&mut ends);
    wait_until("joined by a", || carries() == [true, false]);
    server.reload(&all);
    wait_until("joined by b as well", || carries() == [true, true]);
    server.reload(&without_a(&all));
    wait_until("left by a", || carries() == [false, true]);
    // What is no join is reset at the new address; at the old one no connection is.
    let to: SocketAddr = format!("[{}]:8443", OWN[1]).parse().unwrap();
    let ended = network.host("client").run(|| {
        let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.read(&mut [0])
    });
    let error = ended.unwrap().expect_err("it is reset");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
    let has_address = || network.ip("server", "addr show").contains(OWN[0]);
    wait_until("a's address goes", || !has_address());
    drop((border, server, transits));
    network.lab.down().unwrap();
}

#[test]
fn the_kernels_path_manager_learns_new_peers_and_forgets_those_that_go() {
    let Some(network) =
        Network::new("the_kernels_path_manager_learns_new_peers_and_forgets_those_that_go")
    else {
        return;
    };
    let key = "[egress]\nmptcp = \"kernel\"\nhelper_ports = [8443]";
    let all = SERVER.replacen("[egress]", key, 1);
    let (border, server) = (network.border(), network.server_of(without_b(&all)));
    let transits = [0, 1].map(|number| network.transit(number, &CLIENTS));
    let has = |table| network.has_route("server", table, CLIENTS[1]);
    wait_until("a's routes", || has(7600));
    assert_eq!(signalled(&network), OWN[..1]);
    // Endpoints of others are left alone.
    network.ip("server", "addr add fd00:e::99/128 dev lo nodad");
    let foreign = Endpoint {
        address: "fd00:e::99".parse().unwrap(),
        id: None,
        signal: false,
        backup: false,
        more: false,
    };
    let add = || PathManager::open().unwrap().add_endpoint(&foreign);
    network.host("server").run(add).unwrap().unwrap();
    let at = SocketAddr::new(IPV6.server.parse().unwrap(), 8443);
    let listener = listen_at(&network, at);
    let mut ends = connect(&network, &listener, 1);
    let mut carries = || joined_while_it_carries(&mut ends);
    wait_until("joined by a", || carries() == [true, false]);
    // Both are announced from now on, to this connection as well.
    server.reload(&all);
    wait_until("b is announced", || signalled(&network) == OWN);
    wait_until("joined by b as well", || carries() == [true, true]);
    let (_second, to_second) = connect(&network, &listener, 1);
    wait_until("a new one by both", || joined(&to_second) == [true; 2]);
    // A goes, and what went by it goes on by B.
    server.reload(&without_a(&all));
    wait_until("a forgets it", || signalled(&network) == OWN[1..]);
    wait_until("left by a", || carries() == [false, true]);
    let has_address = || network.ip("server", "addr show").contains(OWN[0]);
    wait_until("a's address goes", || !has_address());
    let (_third, to_third) = connect(&network, &listener, 1);
    wait_until("a new one by b", || joined(&to_third) == [false, true]);
    // The rest waits for a restart, and says so; nothing of it is half in force.
    let other = all.replacen("\"kernel\"", "\"precise\"", 1);
    server.reload(&without_a(&other));
    wait_until("still by b", || carries() == [false, true]);
    assert_eq!(signalled(&network), OWN[1..]);
    // A peer that is another one under the same name has another address.
    let moved = all.replacen(OWN[1], "fd00:e::c", 1);
    server.reload(&without_a(&moved));
    wait_until("its new address", || signalled(&network) == ["fd00:e::c"]);
    wait_until("its route", || has(7601));
    let endpoints = || PathManager::open().unwrap().endpoints().unwrap();
    let left = network.host("server").run(endpoints).unwrap();
    assert!(
        left.iter().any(|one| one.address == foreign.address),
        "{left:?}"
    );
    drop((border, server, transits));
    network.lab.down().unwrap();
}
