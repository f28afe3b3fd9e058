//! An egress peer that is drained before its session ends, under connections that carry data.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream, UdpSocket},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Instant,
};

use keiro_egress::{
    control::{Answer, Request, ask},
    status::DrainStatus,
};

use crate::{
    network::{
        BORDER, CLIENTS, ControlSocket, Network, OWN, PATIENCE, client, precise, wait_until,
    },
    paths::{connect, joined, listen},
};

/// Until everything is sent.
fn drain(border: &ControlSocket, draining: bool) -> DrainStatus {
    let peer = "transit-a".to_owned();
    let request = Request::Drain { peer, draining };
    keiro_testing::eventually("everything is sent", || {
        match ask(&border.path(), request.clone()).unwrap() {
            Answer::Drain(status) => status.unsent.is_empty().then_some(*status),
            other => panic!("{other:?}"),
        }
    })
}

fn subflows(server: &ControlSocket) -> [Option<u64>; 2] {
    let peers = server.status().peers;
    [0, 1].map(|at| peers[at].stats.subflows)
}

/// Octets are numbered by their place in the stream.
fn octet(place: u64) -> u8 {
    (place % 251) as u8
}

/// Sends until `stop`; how much.
fn send(mut stream: &TcpStream, stop: &AtomicBool) -> u64 {
    let mut sent = 0;
    while !stop.load(Ordering::Acquire) {
        let chunk: Vec<u8> = (sent..sent + 4096).map(octet).collect();
        stream.write_all(&chunk).unwrap();
        sent += chunk.len() as u64;
    }
    stream.shutdown(Shutdown::Write).unwrap();
    sent
}

/// Reads to the end; how much.
fn receive(mut stream: &TcpStream, arrived: &AtomicU64) -> u64 {
    let (mut place, mut buffer) = (0, vec![0; 1 << 16]);
    loop {
        let count = stream.read(&mut buffer).unwrap();
        if count == 0 {
            return place;
        }
        for (found, at) in buffer[..count].iter().zip(place..) {
            assert_eq!(*found, octet(at), "at {at}");
        }
        place += count as u64;
        arrived.fetch_add(count as u64, Ordering::Relaxed);
    }
}

/// Waits for a datagram from an EPE address to the client.
fn arrives(network: &Network, from: &str) {
    let client_end = network.host("client").run(|| UdpSocket::bind("[::]:0"));
    let client_end = client_end.unwrap().unwrap();
    client_end.set_nonblocking(true).unwrap();
    let port = client_end.local_addr().unwrap().port();
    let here = network.host("server").run(|| UdpSocket::bind((from, 0)));
    let here = here.unwrap().unwrap();
    wait_until("a datagram arrives", || {
        here.send_to(b"content", (client(1), port)).unwrap();
        client_end.recv(&mut [0; 10]).is_ok()
    });
}

#[test]
fn a_drained_peer_is_left_by_connections_of_which_none_loses_anything() {
    let Some(network) =
        Network::new("a_drained_peer_is_left_by_connections_of_which_none_loses_anything")
    else {
        return;
    };
    let (at_border, at_server) = (ControlSocket::new(), ControlSocket::new());
    let border = network.border_of(&at_border.named_in(BORDER));
    let server = network.server_of(&at_server.named_in(&precise()));
    let (a, b) = (network.transit(0, &CLIENTS), network.transit(1, &CLIENTS));
    network.await_routes([&CLIENTS; 2]);
    network.narrow();
    let listener = listen(&network, 0);
    let all: Vec<_> = (0..CONNECTIONS)
        .map(|_| connect(&network, &listener, 1))
        .collect();
    for (there, here) in &all {
        there.set_read_timeout(Some(PATIENCE)).unwrap();
        here.set_write_timeout(Some(PATIENCE)).unwrap();
        wait_until("both lead to the client", || joined(here) == [true; 2]);
    }
    let (stop, arrived) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let ends: Vec<_> = all
            .iter()
            .map(|(there, here)| {
                let sent = scope.spawn(|| send(here, &stop));
                (sent, scope.spawn(|| receive(there, &arrived)))
            })
            .collect();
        let stopping = Stopping(&stop);
        let carry_more = |what: &str| {
            let before = arrived.load(Ordering::Relaxed);
            wait_until(what, || arrived.load(Ordering::Relaxed) > before + CARRIED);
        };
        carry_more("both carry");

        let begun = Instant::now();
        let status = drain(&at_border, true);
        let sent = begun.elapsed();
        assert_eq!((status.routes, status.best_paths), (CLIENTS.len(), Some(0)));
        wait_until("the connections leave A", || {
            all.iter().all(|(_, here)| joined(here) == [false, true])
        });
        println!(
            "{CONNECTIONS} connections: changes sent within {sent:?}, connections moved within {:?}",
            begun.elapsed()
        );
        wait_until("no subflow is left", || subflows(&at_server)[0] == Some(0));
        let reported = at_server.status().peers;
        assert_eq!(
            reported[0].stats.draining_routes,
            Some(CLIENTS.len() as u64)
        );
        assert!(at_border.status().neighbours[0].stats.draining);
        // What is still on its way finds the table and the segment.
        assert!(network.has_route("server", 7600, CLIENTS[1]));
        arrives(&network, OWN[0]);
        wait_until("B carries all but what was under way", || {
            let before = network.sent_to_client();
            carry_more("something is carried");
            let after = network.sent_to_client();
            let [by_a, by_b] = [0, 1].map(|peer| after[peer] - before[peer]);
            by_b > 50 * by_a
        });

        // The maintenance. What comes back stays drained.
        drop(a);
        wait_until("A's routes go", || {
            !network.has_route("server", 7600, CLIENTS[1])
        });
        carry_more("B carries without A");
        let a = network.transit(0, &CLIENTS);
        network.await_routes([&CLIENTS; 2]);
        wait_until("all are drained again", || {
            let draining = at_server.status().peers[0].stats.draining_routes;
            draining == Some(CLIENTS.len() as u64)
        });
        assert_eq!(subflows(&at_server)[0], Some(0));
        drain(&at_border, false);
        wait_until("A is used again", || {
            all.iter().all(|(_, here)| joined(here) == [true; 2])
        });
        drop(stopping);
        for (sent, received) in ends {
            assert_eq!(sent.join().unwrap(), received.join().unwrap());
        }
        drop(a);
    });
    drop((border, server, b));
    network.lab.down().unwrap();
}

#[test]
fn undrainable_peers_are_refused_with_a_hint() {
    let Some(network) = Network::new("undrainable_peers_are_refused_with_a_hint") else {
        return;
    };
    let (at_border, at_server) = (ControlSocket::new(), ControlSocket::new());
    let drained = BORDER.replacen("asn = 65001", "asn = 65001\ndrain = true", 1);
    let border = network.border_of(&at_border.named_in(&drained));
    let server = network.server_of(&at_server.named_in(&precise()));
    let refused = |socket: &ControlSocket, peer: &str, draining: bool| {
        let peer = peer.to_owned();
        match ask(&socket.path(), Request::Drain { peer, draining }).unwrap() {
            Answer::Refused(reason) => reason,
            other => panic!("{other:?}"),
        }
    };
    let unknown = refused(&at_border, "transit-c", true);
    assert_eq!(
        unknown,
        "there is no egress peer `transit-c`; there are transit-a, transit-b"
    );
    let reflector = refused(&at_border, "server", true);
    assert!(reflector.starts_with("there is no egress peer `server`"));
    let elsewhere = refused(&at_server, "transit-a", true);
    assert!(elsewhere.contains("ask the border router's"), "{elsewhere}");
    let configured = refused(&at_border, "transit-a", false);
    assert!(configured.contains("`drain = true`"), "{configured}");
    drop((border, server));
    network.lab.down().unwrap();
}

/// Ends the senders when it is dropped.
struct Stopping<'a>(&'a AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

const CONNECTIONS: usize = 20;
/// Octets of all connections, several times what is on the way.
const CARRIED: u64 = 4_000_000;
