//! Live MPTCP connections between the server and its clients, looked after by the daemon.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use keiro_linux::{
    mptcp::subflows,
    mptcp_pm::{Limits, PathManager},
};
use socket2::{Domain, Protocol, Socket, Type};

use crate::{
    has_route, is_root,
    network::{CLIENTS, Network, OWN, SERVER, Transit, client, wait_until},
};

/// IPPROTO_MPTCP.
const MPTCP: i32 = 262;
const SERVER_ADDRESS: &str = "fd00:1::2";

fn socket() -> Socket {
    let protocol = Some(Protocol::from(MPTCP));
    Socket::new(Domain::IPV6, Type::STREAM, protocol).expect("the kernel has MPTCP")
}

/// A listener of the server's, at all of its addresses.
fn listen(network: &Network) -> TcpListener {
    let listen = || {
        let socket = socket();
        let anywhere: SocketAddr = "[::]:0".parse().unwrap();
        socket.bind(&anywhere.into()).unwrap();
        socket.listen(8).unwrap();
        TcpListener::from(socket)
    };
    network.host("server").run(listen).unwrap()
}

/// A connection of a client's: its end, and the server's.
fn connect(network: &Network, listener: &TcpListener, number: usize) -> (TcpStream, TcpStream) {
    // What joins later has that address, too.
    let src = client(number);
    let route = format!("route replace fd00:e::/64 via fd00:ca::1 src {src}");
    network.ip("client", &route);
    let connect = || {
        let limits = Limits {
            accepted_addresses: 8,
            subflows: 8,
        };
        PathManager::open().unwrap().set_limits(limits).unwrap();
        let socket = socket();
        socket.bind(&SocketAddr::from((src, 0)).into()).unwrap();
        let port = listener.local_addr().unwrap().port();
        let to = SocketAddr::new(SERVER_ADDRESS.parse().unwrap(), port);
        socket.connect(&to.into()).unwrap();
        TcpStream::from(socket)
    };
    let mut there = network.host("client").run(connect).unwrap();
    let (mut here, _) = listener.accept().unwrap();
    // Both sides have shown that they speak it when data came back.
    there.write_all(b"?").unwrap();
    here.read_exact(&mut [0]).unwrap();
    here.write_all(b"!").unwrap();
    there.read_exact(&mut [0]).unwrap();
    (there, here)
}

/// By which EPE addresses a connection has subflows.
fn joined(here: &TcpStream) -> [bool; 2] {
    let all = subflows(here).unwrap();
    OWN.map(|own| {
        let own: std::net::IpAddr = own.parse().unwrap();
        let mut all = all.iter();
        all.any(|one| one.established && one.local.ip() == own)
    })
}

#[test]
fn connections_are_told_of_what_leads_to_them_and_move_when_it_does_not() {
    if !is_root("connections") {
        return;
    }
    let network = Network::new();
    let precise = SERVER.replacen("[egress]", "[egress]\nmptcp = \"precise\"", 1);
    let (border, server) = (network.border(), network.server_of(&precise));
    let a = network.transit(0, &CLIENTS);
    let b = network.transit(1, &CLIENTS[1..]);
    wait_until("all routes", || {
        (0..4).all(|n| has_route(&network, "server", 7600, CLIENTS[n]))
            && (1..4).all(|n| has_route(&network, "server", 7601, CLIENTS[n]))
    });
    let listener = listen(&network);
    let (_there, to_client_0) = connect(&network, &listener, 0);
    wait_until("A leads to client 0", || joined(&to_client_0)[0]);
    let (mut there, here) = connect(&network, &listener, 1);
    wait_until("both lead to client 1", || joined(&here) == [true; 2]);
    let gap = largest_gap(&mut there, &here, &a);
    println!("a flow whose route by A is withdrawn has its largest gap of {gap:?}");
    wait_until("what leads nowhere is removed", || {
        joined(&here) == [false, true]
    });
    a.announce(CLIENTS[1], true);
    wait_until("it is told of it again", || joined(&here) == [true; 2]);
    // Nobody has told client 0 of B meanwhile.
    assert_eq!(joined(&to_client_0), [true, false]);
    drop((border, server, a, b));
    network.lab.down().unwrap();
}

/// While data goes as fast as it can, A withdraws the client's prefix: the longest time without data
/// from then on.
fn largest_gap(there: &mut TcpStream, here: &TcpStream, a: &Transit) -> Duration {
    let stop = AtomicBool::new(false);
    here.set_write_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    there
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    thread::scope(|scope| {
        let mut sink = here;
        let stopped = &stop;
        scope.spawn(move || {
            let chunk = [0; 16_384];
            while !stopped.load(Ordering::Acquire) {
                let _ = sink.write(&chunk);
                thread::sleep(Duration::from_millis(1));
            }
        });
        let mut buffer = vec![0; 1 << 16];
        let begun = Instant::now();
        let (mut last, mut gap, mut withdrawn) = (begun, Duration::ZERO, None);
        while withdrawn.is_none_or(|at: Instant| at.elapsed() < Duration::from_secs(2)) {
            let count = there.read(&mut buffer).expect("data goes on");
            assert!(count > 0, "the connection ended");
            let now = Instant::now();
            if withdrawn.is_some() {
                gap = gap.max(now - last);
            } else if begun.elapsed() > Duration::from_millis(500) {
                a.announce(CLIENTS[1], false);
                withdrawn = Some(Instant::now());
            }
            last = now;
        }
        stop.store(true, Ordering::Release);
        gap
    })
}
