//! New plain TCP connections use the peer that is better for their client prefix; live ones stay.

use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use ipnet::IpNet;
use keiro_egress::status::{SteeredPrefix, SteeringStage, SteeringStatus};
use keiro_lab::emulator::Direction;
use socket2::{Domain, Socket, Type};

use crate::network::{
    BORDER, ControlSocket, Family, IPV4, IPV6, Network, PATIENCE, SERVER, wait_until, with_ipv4,
};

const STEERED: &str =
    "[steering]\nmode = \"steer\"\nports = [8443, 8444]\nexplore = \"5%\"\nconfirm = \"30%\"\n";
/// Of connections that are measured, and of those that stay open.
const PORT: u16 = 8443;
const LIVE_PORT: u16 = 8444;

fn reported(socket: &ControlSocket) -> SteeringStatus {
    socket.status().steering.expect("it steers")
}

/// A network, and the family of the connections.
#[derive(Clone, Copy)]
struct Scene<'a> {
    network: &'a Network,
    family: &'a Family,
}

impl Scene<'_> {
    fn explained(&self, socket: &ControlSocket) -> Option<SteeredPrefix> {
        let client = IpNet::from(self.family.client(1));
        socket.explain(&client.to_string()).steered.pop()
    }

    /// A listener of the server's.
    fn listen(&self, port: u16) -> TcpListener {
        let address: IpAddr = match self.family.is_ipv4() {
            true => Ipv4Addr::UNSPECIFIED.into(),
            false => Ipv6Addr::UNSPECIFIED.into(),
        };
        let listen = || TcpListener::bind((address, port)).unwrap();
        self.network.host("server").run(listen).unwrap()
    }
}

/// Sends [`BYTES`] to every connection.
fn serve(scene: Scene<'_>) {
    let listener = scene.listen(PORT);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                // A client that is gone needs nothing.
                let _ = stream.write_all(&[7; BYTES]);
                let _ = stream.shutdown(Shutdown::Write);
                let _ = stream.read(&mut [0]);
            });
        }
    });
}

/// A connection of a client of the second prefix.
fn connect(scene: Scene<'_>, port: u16) -> TcpStream {
    let Scene { network, family } = scene;
    let connect = || {
        let from = SocketAddr::from((family.client(1), 0));
        let socket = Socket::new(Domain::for_address(from), Type::STREAM, None).unwrap();
        socket.bind(&from.into()).unwrap();
        let to = SocketAddr::new(family.server.parse().unwrap(), port);
        socket.connect(&to.into()).unwrap();
        TcpStream::from(socket)
    };
    let stream = network.host("client").run(connect).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Clients connect one after the other until `done`.
fn with_clients(scene: Scene<'_>, what: &str, done: impl FnMut() -> bool) {
    let (ended, connected) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..CLIENTS_AT_ONCE {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    let mut stream = connect(scene, PORT);
                    assert_eq!(stream.read_to_end(&mut Vec::new()).unwrap(), BYTES);
                    connected.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // A panic in here must end the clients, too.
        let _end = EndOnDrop(&ended);
        wait_until(what, done);
    });
    println!("{what} after {} connections", connected.into_inner());
}

struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A connection that stays open.
struct Live {
    there: TcpStream,
    here: TcpStream,
}

impl Live {
    fn new(scene: Scene<'_>, listener: &TcpListener) -> Self {
        let there = connect(scene, LIVE_PORT);
        let (here, _) = listener.accept().unwrap();
        Self { there, here }
    }

    /// The transit by which its data comes, while no other client is there.
    fn transit(&mut self, network: &Network) -> usize {
        let before = network.sent_to_client();
        thread::scope(|scope| {
            scope.spawn(|| self.here.write_all(&[7; LIVE_BYTES]).unwrap());
            self.there.read_exact(&mut [0; LIVE_BYTES]).unwrap();
        });
        let after = network.sent_to_client();
        let sent = [0, 1].map(|n| after[n] - before[n]);
        assert!(sent[0].max(sent[1]) > LIVE_BYTES as u64, "{sent:?}");
        usize::from(sent[1] > sent[0])
    }
}

/// A new connection by this transit: not one that explores the other.
fn live_by(scene: Scene<'_>, listener: &TcpListener, transit: usize) -> Live {
    let mut live = Live::new(scene, listener);
    wait_until("a new connection uses it", || {
        live = Live::new(scene, listener);
        live.transit(scene.network) == transit
    });
    live
}

/// Has transit A send to the client with this delay.
fn delay(network: &Network, millis: u64) {
    let link = network.lab.link("ca").unwrap();
    let mut config = link.current().unwrap().a_to_b;
    config.delay = Duration::from_millis(millis);
    link.set(Direction::AToB, config).unwrap();
}

#[test]
fn new_connections_use_the_better_peer_and_live_ones_stay() {
    let test = "new_connections_use_the_better_peer_and_live_ones_stay";
    if let Some(network) = Network::emulated(test) {
        steered(network, &IPV6, BORDER, SERVER);
    }
}

#[test]
fn new_ipv4_connections_use_the_better_peer_and_live_ones_stay() {
    let test = "new_ipv4_connections_use_the_better_peer_and_live_ones_stay";
    if let Some(network) = Network::emulated(test) {
        steered(network, &IPV4, &with_ipv4(BORDER), &with_ipv4(SERVER));
    }
}

fn steered(network: Network, family: &Family, border: &str, server: &str) {
    let scene = Scene {
        network: &network,
        family,
    };
    let clients = family.clients;
    let socket = ControlSocket::new();
    let explained = || scene.explained(&socket);
    let (border, server) = (
        network.border_of(border),
        network.server_of(&(socket.named_in(server) + STEERED)),
    );
    let a = network.transit(0, &clients);
    let b = network.transit(1, &clients[1..]);
    network.await_routes([&clients, &clients[1..]]);
    let (moves, reverts) = (
        || reported(&socket).stats.moves,
        || reported(&socket).stats.reverts,
    );
    serve(scene);
    let listener = scene.listen(LIVE_PORT);
    let mut before = Live::new(scene, &listener);
    assert_eq!(before.transit(&network), 0, "the best path is by A");
    with_clients(scene, "it is explored", || {
        let one = explained();
        let by_b = |one: &SteeredPrefix| {
            one.measured
                .iter()
                .any(|by| by.peer.as_deref() == Some("transit-b"))
        };
        one.is_some_and(|one| one.stage == SteeringStage::Exploring && by_b(&one))
    });
    assert_eq!(moves(), 0, "{:?}", explained());

    // A firewall that is reloaded removes all tables, and this one comes back.
    let nft = |arguments: [&str; 2]| {
        let mut command = network.host("server").command("nft");
        command.args(arguments).output().expect("nft runs")
    };
    nft(["flush", "ruleset"]);
    wait_until("the table is back", || {
        let listed = nft(["list", "ruleset"]).stdout;
        let listed = String::from_utf8_lossy(&listed).into_owned();
        let client: IpNet = clients[1].parse().unwrap();
        listed.contains("keiro_steering") && listed.contains(&format!("{} .", client.addr()))
    });

    delay(&network, 40);
    with_clients(scene, "B is found", || moves() == 1);
    let one = explained().unwrap();
    println!("{one:?}");
    assert_eq!(one.peer.as_deref(), Some("transit-b"));
    let mut by_b = live_by(scene, &listener, 1);
    assert_eq!(before.transit(&network), 0, "it began before");

    // A withdrawal moves live connections, too, and loses none.
    b.announce(clients[1], false);
    wait_until("it returns", || reverts() == 1);
    assert_eq!(by_b.transit(&network), 0);
    assert_eq!(Live::new(scene, &listener).transit(&network), 0);
    b.announce(clients[1], true);
    with_clients(scene, "B is found again", || moves() == 2);
    let mut by_b = live_by(scene, &listener, 1);

    delay(&network, 0);
    with_clients(scene, "B is not better any more", || reverts() == 2);
    // The other reasons for a return within an hour are a withdrawal and silence.
    let one = explained().unwrap();
    assert_eq!(one.silent, Vec::<String>::new(), "{one:?}");
    live_by(scene, &listener, 0);
    assert_eq!(by_b.transit(&network), 1, "it began before");
    drop(server);
    let left = nft(["list", "ruleset"]).stdout;
    assert!(left.is_empty(), "{}", String::from_utf8_lossy(&left));
    assert_eq!(by_b.transit(&network), 1, "it stays without the daemon");
    drop((a, b, border, before));
    network.lab.down().unwrap();
}

/// Fifteen segments, so that losses count.
const BYTES: usize = 20_000;
/// More than what acknowledgements and other packets have.
const LIVE_BYTES: usize = 100_000;
const CLIENTS_AT_ONCE: usize = 16;
