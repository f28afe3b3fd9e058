//! A peer asks that packets to one of its addresses be dropped (RFC 7999).

use std::net::UdpSocket;

use crate::network::{BORDER, CLIENTS, Network, OWN, client, wait_until};

const ATTACKED: &str = "fd00:c1::1/128";

#[test]
fn packets_to_a_blackhole_of_a_peer_are_dropped_where_they_would_leave_by_it_and_nowhere_else() {
    let Some(network) = Network::new(
        "packets_to_a_blackhole_of_a_peer_are_dropped_where_they_would_leave_by_it_and_nowhere_else",
    ) else {
        return;
    };
    let rules = "import = [\n\
         { communities = [\"blackhole\"], prefixes = [\"fd00:c0::/30 ge 128\"], action = \"blackhole\" },\n\
         { prefixes = [\"::/0 le 64\"] }]";
    let border = network.border_of(&BORDER.replace("import = \"all\"", rules));
    let server = network.server();
    let marked =
        "export = [{ prefixes = [\"::/0 ge 128\"], add_communities = [\"blackhole\"] }, {}]\n";
    let a = network.transit_with(0, &CLIENTS, marked);
    // Without the community a host route is not taken.
    let b = network.transit(1, &CLIENTS);
    network.await_routes([&CLIENTS; 2]);
    let arrive = |from: &str| arrived(&network, from, [1, 2]);
    assert_eq!([OWN[0], OWN[1]].map(arrive), [[true; 2]; 2]);
    for transit in [&a, &b] {
        transit.announce(ATTACKED, true);
    }
    wait_until("the blackhole is in the peer's table", || {
        network.has_route("border", 7700, "fd00:c1::1")
    });
    assert!(!network.has_route("border", 7800, "fd00:c1::1"));
    assert_eq!(arrive(OWN[0]), [false, true]);
    assert_eq!(arrive(OWN[1]), [true; 2], "B did not ask for it");
    // Others get no more of it than the best path, which is dropped too.
    assert_eq!(arrive("fd00:1::2"), [false, true]);
    a.announce(ATTACKED, false);
    wait_until("it is over", || arrive(OWN[0]) == [true; 2]);
    drop((border, server, a, b));
    network.lab.down().unwrap();
}

/// Which of two clients datagrams of an address of the server reach. They go the same way one after the other, to
/// the second one last, until one reached it.
fn arrived(network: &Network, from: &str, to: [usize; 2]) -> [bool; 2] {
    let [first, second] = to.map(|number| {
        let bind = || UdpSocket::bind((client(number), 0));
        let socket = network.host("client").run(bind).unwrap().unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    });
    let sender = network.host("server").run(|| UdpSocket::bind((from, 0)));
    let sender = sender.unwrap().unwrap();
    let mut buffer = [0; 10];
    wait_until("the second client hears of it", || {
        for socket in [&first, &second] {
            // A router may have answered an earlier one.
            let _ = sender.send_to(b"content", socket.local_addr().unwrap());
        }
        second.recv(&mut buffer).is_ok()
    });
    [first.recv(&mut buffer).is_ok(), true]
}
