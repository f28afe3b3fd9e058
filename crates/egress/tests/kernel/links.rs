//! A cable that is cut ends the session at once, not when the hold time is over.

use std::time::{Duration, Instant};

use crate::network::{BORDER, CLIENTS, ControlSocket, Network, wait_until};

/// Far below the hold time of 90 s, and far above what a busy machine needs.
const AT_ONCE: Duration = Duration::from_secs(20);

#[test]
fn a_cut_cable_a_removed_address_and_a_removed_interface_end_the_session() {
    let test = "a_cut_cable_a_removed_address_and_a_removed_interface_end_the_session";
    let Some(network) = Network::new(test) else {
        return;
    };
    let socket = ControlSocket::new();
    let border = network.border_of(&socket.named_in(BORDER));
    let server = network.server();
    let a = network.transit(0, &CLIENTS[..1]);
    let b = network.transit(1, &CLIENTS[1..2]);
    let state = |name: &str| {
        let all = socket.status().neighbours.into_iter();
        let one = all.into_iter().find(|one| one.name == name).unwrap();
        (one.state, one.last_error.unwrap_or_default())
    };
    let is_up = |name: &str| state(name).0 == "established";
    let at_server =
        |number: usize| network.has_route("server", 7600 + number as u32, CLIENTS[number]);
    let both = || at_server(0) && at_server(1);
    // A has a configured interface, the link to B is found by its addresses.
    let links = [("transit-a", "pa", "ta", 0), ("transit-b", "pb", "tb", 1)];
    for (name, interface, other, number) in links {
        wait_until("both are announced", both);
        // The other end of a veth pair set down: no carrier at this end.
        network.ip(other, &format!("link set {interface} down"));
        let cut = Instant::now();
        wait_until("the session ends", || !is_up(name));
        wait_until("the server has the withdrawal", || !at_server(number));
        assert!(cut.elapsed() < AT_ONCE, "{name}: {:?}", cut.elapsed());
        assert_eq!(state(name).1, "the link to the neighbour is down");
        assert!(is_up(links[1 - number].0), "the other one stays");
        assert!(is_up("server"), "{name}");
        network.ip(other, &format!("link set {interface} up"));
        let again = format!(
            "address replace fd00:{}::2/64 dev {interface} nodad",
            ["a", "b"][number]
        );
        network.ip(other, &again);
        let default = format!("route replace default via fd00:{}::1", ["a", "b"][number]);
        network.ip(other, &default);
        wait_until("the session is back", || is_up(name));
    }
    wait_until("both are announced", both);
    network.ip("border", "address delete fd00:b::1/64 dev pb");
    let removed = Instant::now();
    wait_until("the session ends with its address", || !is_up("transit-b"));
    assert!(removed.elapsed() < AT_ONCE);
    network.ip("border", "address add fd00:b::1/64 dev pb nodad");
    wait_until("the session is back", || is_up("transit-b"));
    network.ip("border", "link delete pb");
    let removed = Instant::now();
    wait_until("the session ends with the interface", || {
        !is_up("transit-b")
    });
    wait_until("the server has the withdrawal", || !at_server(1));
    assert!(removed.elapsed() < AT_ONCE);
    assert!(is_up("transit-a"));

    drop((border, server, a, b));
    network.lab.down().unwrap();
}
