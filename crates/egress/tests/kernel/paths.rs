//! Live MPTCP connections between the server and its clients, looked after by the daemon.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use keiro_egress::kernel;
use keiro_linux::{
    mptcp::subflows,
    mptcp_pm::{Limits, PathManager},
};
use socket2::{Domain, Protocol, Socket, Type};

use crate::network::{
    BORDER, CLIENTS, Family, IPV4, IPV6, Network, OWN, PATIENCE, SERVER, Transit, precise,
    wait_until, with_ipv4,
};

/// IPPROTO_MPTCP.
const MPTCP: i32 = 262;

fn socket(domain: Domain) -> Socket {
    let protocol = Some(Protocol::from(MPTCP));
    Socket::new(domain, Type::STREAM, protocol).expect("the kernel has MPTCP")
}

/// A listener of the server's, at all of its addresses.
pub(crate) fn listen(network: &Network, port: u16) -> TcpListener {
    listen_at(network, ([0_u16; 8], port).into())
}

pub(crate) fn listen_at(network: &Network, address: SocketAddr) -> TcpListener {
    let listen = || {
        let socket = socket(Domain::for_address(address));
        socket.bind(&address.into()).unwrap();
        socket.listen(8).unwrap();
        TcpListener::from(socket)
    };
    network.host("server").run(listen).unwrap()
}

/// A connection of a client's: its end, and the server's.
pub(crate) fn connect(
    network: &Network,
    listener: &TcpListener,
    number: usize,
) -> (TcpStream, TcpStream) {
    connect_by(network, &IPV6, listener, number)
}

/// The same for a client of either family.
fn connect_by(
    network: &Network,
    family: &Family,
    listener: &TcpListener,
    number: usize,
) -> (TcpStream, TcpStream) {
    // What joins later has that address, too.
    let src = family.client(number);
    let (own, router) = (family.own_network, family.router);
    let route = format!("route replace {own} via {router} src {src}");
    match family.is_ipv4() {
        true => network.ip4("client", &route),
        false => network.ip("client", &route),
    };
    let connect = || {
        let limits = Limits {
            accepted_addresses: 8,
            subflows: 8,
        };
        PathManager::open().unwrap().set_limits(limits).unwrap();
        let from = SocketAddr::from((src, 0));
        let socket = socket(Domain::for_address(from));
        socket.bind(&from.into()).unwrap();
        let port = listener.local_addr().unwrap().port();
        let to = SocketAddr::new(family.server.parse().unwrap(), port);
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
pub(crate) fn joined(here: &TcpStream) -> [bool; 2] {
    joined_by(&IPV6, here)
}

fn joined_by(family: &Family, here: &TcpStream) -> [bool; 2] {
    let all = subflows(here).expect("it is a connection of MPTCP");
    family.own.map(|own| {
        let own: std::net::IpAddr = own.parse().unwrap();
        let mut all = all.iter();
        all.any(|one| one.established && one.local.ip().to_canonical() == own)
    })
}

#[test]
fn ipv4_connections_at_sockets_of_both_families_join_and_move() {
    let test = "ipv4_connections_at_sockets_of_both_families_join_and_move";
    let Some(network) = Network::new(test) else {
        return;
    };
    let server = with_ipv4(&precise());
    let (border, server) = (
        network.border_of(&with_ipv4(BORDER)),
        network.server_of(&server),
    );
    let clients = IPV4.clients;
    let a = network.transit(0, &clients);
    let b = network.transit(1, &clients[1..]);
    network.await_routes([&clients, &clients[1..]]);
    for address in ["0.0.0.0:0", "[::]:0"] {
        let listener = listen_at(&network, address.parse().unwrap());
        let (_first, to_client_0) = connect_by(&network, &IPV4, &listener, 0);
        let (mut there, mut here) = connect_by(&network, &IPV4, &listener, 1);
        wait_until("both lead to client 1", || {
            joined_by(&IPV4, &here) == [true; 2]
        });
        assert_eq!(joined_by(&IPV4, &to_client_0), [true, false], "{address}");
        // What is under way by A comes by others.
        network.narrow();
        let content = vec![7; 1_000_000];
        thread::scope(|scope| {
            scope.spawn(|| here.write_all(&content).unwrap());
            a.announce(clients[1], false);
            there.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut all = vec![0; content.len()];
            there.read_exact(&mut all).unwrap();
            assert!(all == content);
        });
        wait_until("A leads to client 1 no more", || {
            joined_by(&IPV4, &here) == [false, true]
        });
        a.announce(clients[1], true);
        network.await_routes([&clients, &clients[1..]]);
    }
    drop((border, server, a, b));
    network.lab.down().unwrap();
}

#[test]
fn connections_learn_what_leads_to_them_and_move_when_it_does_not() {
    let Some(network) =
        Network::new("connections_learn_what_leads_to_them_and_move_when_it_does_not")
    else {
        return;
    };
    let (border, server) = (network.border(), network.server_of(&precise()));
    let a = network.transit(0, &CLIENTS);
    let b = network.transit(1, &CLIENTS[1..]);
    network.await_routes([&CLIENTS, &CLIENTS[1..]]);
    let listener = listen(&network, 0);
    let (_there, to_client_0) = connect(&network, &listener, 0);
    wait_until("A leads to client 0", || joined(&to_client_0)[0]);
    network.narrow();
    let mut gaps: Vec<Duration> = (0..ROUNDS).map(|_| gap(&network, &listener, &a)).collect();
    println!("flows whose route by A is withdrawn have their largest gap of {gaps:?}");
    gaps.sort();
    let median = gaps[gaps.len() / 2];
    assert!(median < RTO_MIN, "TCP was sooner: {gaps:?}");
    // B was not announced to client 0 meanwhile.
    assert_eq!(joined(&to_client_0), [true, false]);
    drop((border, server, a, b));
    network.lab.down().unwrap();
}

#[test]
fn the_kernel_announces_every_address_to_every_connection_where_configured() {
    let Some(network) =
        Network::new("the_kernel_announces_every_address_to_every_connection_where_configured")
    else {
        return;
    };
    let of_kernel = SERVER.replacen("[egress]", "[egress]\nmptcp = \"kernel\"", 1);
    let (border, server) = (network.border(), network.server_of(&of_kernel));
    let a = network.transit(0, &CLIENTS);
    let b = network.transit(1, &CLIENTS[1..]);
    network.await_routes([&CLIENTS, &CLIENTS[1..]]);
    assert_eq!(signalled(&network), OWN);
    let listener = listen(&network, 0);
    let (client_0, to_client_0) = connect(&network, &listener, 0);
    wait_until("A leads to client 0", || joined(&to_client_0)[0]);
    // B is announced too, and the client tries; there is no route back.
    wait_until("client 0 asks for B", || {
        let all = subflows(&client_0).unwrap();
        let mut all = all.iter().filter(|one| !one.established);
        all.any(|one| one.remote.ip().to_string() == OWN[1])
    });
    assert_eq!(joined(&to_client_0), [true, false]);
    let (mut there, mut here) = connect(&network, &listener, 1);
    wait_until("both lead to client 1", || joined(&here) == [true; 2]);
    // What is lost on a withdrawn path comes by others, when TCP finds that out.
    a.announce(CLIENTS[1], false);
    let gone = || !network.has_route("server", 7600, CLIENTS[1]);
    wait_until("A leads to client 1 no more", gone);
    here.write_all(&[7; 100_000]).unwrap();
    there.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut all = vec![0; 100_000];
    there.read_exact(&mut all).unwrap();
    assert!(all.iter().all(|byte| *byte == 7));

    // A daemon with `mptcp = "off"` removes what this one has left.
    drop(server);
    assert_eq!(signalled(&network), OWN);
    let server = network.server();
    assert_eq!(signalled(&network), [""; 0]);
    drop(server);
    let server = network.server_of(&of_kernel);
    drop(server);
    assert_eq!(signalled(&network), OWN);
    // An endpoint with other flags is not Keiro's, even on an EPE address.
    let remove = || {
        PathManager::open()
            .unwrap()
            .remove_endpoint(OWN[1].parse().unwrap())
    };
    network.host("server").run(remove).unwrap().unwrap();
    let foreign = format!("mptcp endpoint add {} dev up signal", OWN[1]);
    network.ip("server", &foreign);
    let report = network.host("server").run(kernel::cleanup_endpoint);
    assert!(report.unwrap().unwrap().is_clean());
    assert_eq!(signalled(&network), OWN[1..]);
    drop((border, a, b));
    network.lab.down().unwrap();
}

#[test]
fn a_class_leaves_by_the_peers_that_it_prefers() {
    let Some(network) = Network::new("a_class_leaves_by_the_peers_that_it_prefers") else {
        return;
    };
    let mut config = precise();
    config += "[[class]]\nname = \"video\"\nports = [443]\nprefer = [\"transit-b\"]\n";
    let (border, server) = (network.border(), network.server_of(&config));
    let a = network.transit(0, &CLIENTS);
    let b = network.transit(1, &CLIENTS);
    network.await_routes([&CLIENTS[1..2]; 2]);
    // The best path leads by A.
    let listener = listen(&network, 443);
    let (mut there, mut here) = connect(&network, &listener, 1);
    wait_until("both lead to the client", || joined(&here) == [true; 2]);
    there.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut carry = |bytes: usize| {
        let before = network.sent_to_client();
        here.write_all(&vec![7; bytes]).unwrap();
        there.read_exact(&mut vec![0; bytes]).unwrap();
        let after = network.sent_to_client();
        [0, 1].map(|peer| after[peer] - before[peer])
    };
    // Priorities are set when subflows are there, a moment later.
    wait_until("it leaves by B", || {
        let [by_a, by_b] = carry(100_000);
        by_b > 20 * by_a
    });
    // Where B does not lead there, it goes by A.
    b.announce(CLIENTS[1], false);
    wait_until("it leaves by A", || {
        let [by_a, by_b] = carry(100_000);
        by_a > 20 * by_b
    });
    drop((border, server, a, b));
    network.lab.down().unwrap();
}

#[test]
fn a_server_that_listens_at_one_address_is_joined_at_others_with_help() {
    let Some(network) =
        Network::new("a_server_that_listens_at_one_address_is_joined_at_others_with_help")
    else {
        return;
    };
    let key = "[egress]\nhelper_ports = [8443]";
    let (border, server) = (
        network.border(),
        network.server_of(&precise().replacen("[egress]", key, 1)),
    );
    let (a, b) = (network.transit(0, &CLIENTS), network.transit(1, &CLIENTS));
    network.await_routes([&CLIENTS[1..2]; 2]);
    let at_one = |port| SocketAddr::new(IPV6.server.parse().unwrap(), port);
    // Without a helper the client is refused.
    let alone = listen_at(&network, at_one(9443));
    let (_there, unhelped) = connect(&network, &alone, 1);
    let helped = listen_at(&network, at_one(8443));
    let (mut there, mut here) = connect(&network, &helped, 1);
    wait_until("both are joined", || joined(&here) == [true; 2]);
    assert_eq!(joined(&unhelped), [false; 2]);
    here.write_all(&[7; 100_000]).unwrap();
    there.set_read_timeout(Some(PATIENCE)).unwrap();
    there.read_exact(&mut vec![0; 100_000]).unwrap();
    // What is no join is reset, and the next one as well.
    for own in OWN {
        let to: SocketAddr = format!("[{own}]:8443").parse().unwrap();
        let connect = || TcpStream::connect_timeout(&to, PATIENCE);
        let end = network
            .host("client")
            .run(connect)
            .unwrap()
            .and_then(|mut stream| {
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.read(&mut [0])
            });
        let error = end.expect_err("it is reset");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
    }
    drop((border, server, a, b));
    network.lab.down().unwrap();
}

/// The addresses that the server's kernel announces.
pub(crate) fn signalled(network: &Network) -> Vec<String> {
    let endpoints = || PathManager::open().unwrap().endpoints().unwrap();
    let all = network.host("server").run(endpoints).unwrap();
    let all = all.into_iter().filter(|endpoint| endpoint.signal);
    let mut all: Vec<String> = all.map(|one| one.address.to_string()).collect();
    all.sort();
    all
}

/// While data goes to client 1 at a rate that each link carries, A loses the way, withdraws it when it has
/// lost a packet, and has it again at last. The longest time without data meanwhile.
fn gap(network: &Network, listener: &TcpListener, a: &Transit) -> Duration {
    let (mut there, here) = connect(network, listener, 1);
    wait_until("both lead to client 1", || joined(&here) == [true; 2]);
    let stop = AtomicBool::new(false);
    let arrivals = Mutex::new(Vec::new());
    here.set_write_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    there.set_read_timeout(Some(PATIENCE)).unwrap();
    let last = || arrivals.lock().unwrap().last().copied();
    thread::scope(|scope| {
        let mut source = &here;
        let (stopped, arrived) = (&stop, &arrivals);
        scope.spawn(move || {
            let chunk = [0; 2_048];
            while !stopped.load(Ordering::Acquire) {
                let _ = source.write(&chunk);
                thread::sleep(Duration::from_millis(1));
            }
            source.shutdown(Shutdown::Write).unwrap();
        });
        let sink = &mut there;
        scope.spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            while sink.read(&mut buffer).is_ok_and(|count| count > 0) {
                arrived.lock().unwrap().push(Instant::now());
            }
        });
        // Also where a wait is given up.
        let stopping = Stopping(&stop);
        let lost = || network.counted("ta", "Ip6InNoRoutes");
        let since = |from: Instant| move || last().is_some_and(|at| at > from + 2 * RTO_MIN);
        wait_until("data goes for a while", since(Instant::now()));
        let (begun, before) = (Instant::now(), lost());
        let way = format!("unreachable {}", CLIENTS[1]);
        network.ip("ta", &format!("route add {way}"));
        wait_until("A loses packets", || lost() > before);
        let withdrawn = Instant::now();
        a.announce(CLIENTS[1], false);
        wait_until("it leaves A", || joined(&here) == [false, true]);
        wait_until("data has gone on for a while", since(withdrawn));
        network.ip("ta", &format!("route del {way}"));
        a.announce(CLIENTS[1], true);
        wait_until("A is joined again", || joined(&here) == [true; 2]);
        drop(stopping);
        let all = arrivals.lock().unwrap();
        let since = || all.iter().skip_while(|at| **at < begun);
        let gaps = since().zip(since().skip(1));
        gaps.map(|(from, to)| *to - *from).max().expect("data")
    })
}

/// Ends the sender when it is dropped.
struct Stopping<'a>(&'a AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The kernel's least time until TCP sends again what was lost (`TCP_RTO_MIN`).
const RTO_MIN: Duration = Duration::from_millis(200);
/// So many withdrawals; the median is judged, for the machine may be busy in one of them.
const ROUNDS: usize = 5;
