//! A reflector that restarts (RFC 4724) while packets go by its routes: in the kernel nothing is missing
//! meanwhile, and afterwards there is what it announces then.
//!
//! The border router and the server are ours, and so is the way of packets between them; the reflector is
//! this test, octet by octet, which connects to the server from an address of its own.

use std::{
    io::{Read, Write},
    net::{Ipv6Addr, SocketAddr, TcpStream, UdpSocket},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use keiro_bgp::address::RouteDistinguisher;
use keiro_egress::status::PathStatus;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::network::{CLIENTS, ControlSocket, Network, OWN, PATIENCE, SERVER, client, wait_until};

/// Where the reflector is.
pub(crate) const ADDRESS: &str = "fd00:1::3";
/// The segments of the egress peers.
pub(crate) const SIDS: [&str; 2] = ["fd00:51d:0:a::", "fd00:51d:0:b::"];

/// A reflector's connection to the server; dropping it is how it dies.
pub(crate) struct Reflector(TcpStream);

impl Reflector {
    /// Connects to the server; `restarted`: and has kept what it forwards.
    pub(crate) fn connect(network: &Network, restarted: bool, restart: Duration) -> Self {
        let connect = || {
            let at = |address: &str, port: u16| -> SockAddr {
                SocketAddr::from((address.parse::<Ipv6Addr>().unwrap(), port)).into()
            };
            let socket = Socket::new(Domain::IPV6, Type::STREAM, None).unwrap();
            socket.bind(&at(ADDRESS, 0)).unwrap();
            let connected = socket.connect(&at("fd00:1::2", 179));
            connected.map(|()| TcpStream::from(socket))
        };
        let end = Instant::now() + PATIENCE;
        loop {
            let stream = network.host("border").run(connect).unwrap();
            if let Ok(stream) = stream
                && let Some(reflector) = Self::open(stream, restarted, restart)
            {
                return reflector;
            }
            // The daemon has still to start, or to see that the last connection is gone.
            assert!(Instant::now() < end, "the server does not want it");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// `None`: the server closes it.
    fn open(mut stream: TcpStream, restarted: bool, restart: Duration) -> Option<Self> {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (flags, forwarding) = if restarted { (0x80, 0x80) } else { (0, 0) };
        let time = (restart.as_secs() as u16 | flags << 8).to_be_bytes();
        let families = [[0, 2, 1], [0, 2, 128]];
        let mut capabilities = Vec::new();
        for [a, b, safi] in families {
            capabilities.extend([1, 4, a, b, 0, safi]);
        }
        capabilities.extend([65, 4]);
        capabilities.extend(65000_u32.to_be_bytes());
        capabilities.extend([64, 2 + 4 * families.len() as u8]);
        capabilities.extend(time);
        for family in families {
            capabilities.extend(family);
            capabilities.push(forwarding);
        }
        let mut open = vec![4];
        open.extend(65000_u16.to_be_bytes());
        open.extend(90_u16.to_be_bytes());
        open.extend([10, 0, 0, 30]);
        let bytes = capabilities.len() as u8;
        open.extend([bytes + 2, 2, bytes]);
        open.extend(capabilities);
        for (kind, body) in [(OPEN, &open[..]), (KEEPALIVE, &[])] {
            stream.write_all(&message(kind, body)).ok()?;
        }
        for kind in [OPEN, KEEPALIVE] {
            let mut header = [0; 19];
            stream.read_exact(&mut header).ok()?;
            assert_eq!(header[18], kind);
            let length = u16::from_be_bytes([header[16], header[17]]);
            stream
                .read_exact(&mut vec![0; usize::from(length) - 19])
                .ok()?;
        }
        Some(Self(stream))
    }

    /// A VPN route of an egress peer's, by a segment.
    pub(crate) fn announce(&mut self, peer: usize, prefix: &str, sid: &str) {
        // RFC 9252 §2, 3.1: an L3 service with one SID, End.DT6, without structure.
        let mut service = vec![5, 0, 25, 0, 1, 0, 21, 0];
        service.extend(sid.parse::<Ipv6Addr>().unwrap().octets());
        service.extend([0, 0, 18, 0]);
        self.announce_with(peer, prefix, &attribute(0xc0, 40, &service));
    }

    /// The same with another attribute than the segment.
    pub(crate) fn announce_with(&mut self, peer: usize, prefix: &str, more: &[u8]) {
        let number = 10 + peer as u64;
        let rd: RouteDistinguisher = format!("65000:{number}").parse().unwrap();
        let net: ipnet::Ipv6Net = prefix.parse().unwrap();
        let octets = usize::from(net.prefix_len().div_ceil(8));
        let mut reach = vec![0, 2, 128, 24];
        reach.extend([0; 8]);
        reach.extend("fd00:1::1".parse::<Ipv6Addr>().unwrap().octets());
        // Implicit null, and the end of labels.
        reach.extend([0, net.prefix_len() + 88, 0, 0, 0x31]);
        reach.extend(rd.0.to_be_bytes());
        reach.extend(&net.addr().octets()[..octets]);
        let target = 0x0002_0000_0000_0000 | 65000 << 32 | number;
        let attributes = [
            attribute(0x40, 1, &[0]),
            attribute(0x40, 2, &[&[2, 1][..], &65001_u32.to_be_bytes()].concat()),
            attribute(0x40, 5, &100_u32.to_be_bytes()),
            attribute(0x80, 14, &reach),
            attribute(0xc0, 16, &u64::to_be_bytes(target)),
            more.to_vec(),
        ];
        self.update(&attributes.concat());
    }

    pub(crate) fn end_of_rib(&mut self) {
        for safi in [1, 128] {
            self.update(&attribute(0x80, 15, &[0, 2, safi]));
        }
    }

    fn update(&mut self, attributes: &[u8]) {
        let mut body = vec![0, 0];
        body.extend((attributes.len() as u16).to_be_bytes());
        body.extend(attributes);
        self.0.write_all(&message(UPDATE, &body)).unwrap();
    }
}

/// Has the sender end.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

const OPEN: u8 = 1;
const UPDATE: u8 = 2;
const KEEPALIVE: u8 = 4;

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = 19 + body.len() as u16;
    let mut all = vec![0xff; 16];
    all.extend(length.to_be_bytes());
    all.push(kind);
    all.extend(body);
    all
}

fn attribute(flags: u8, kind: u8, value: &[u8]) -> Vec<u8> {
    let mut all = vec![flags, kind, value.len() as u8];
    all.extend(value);
    all
}

/// Packets from the EPE address of A to a client, until stopped; returns how many were sent.
fn send(network: &Network, port: u16, arrived: &AtomicU64, end: &AtomicBool) -> u64 {
    let socket = network.host("server").run(|| UdpSocket::bind((OWN[0], 0)));
    let socket = socket.unwrap().unwrap();
    let mut sent = 0;
    while !end.load(Ordering::Acquire) {
        // Refused where there is no route, and lost then.
        let _ = socket.send_to(b"content", (client(1), port));
        sent += 1;
        thread::sleep(Duration::from_millis(2));
    }
    let last = Instant::now() + Duration::from_secs(2);
    while arrived.load(Ordering::Acquire) < sent && Instant::now() < last {
        thread::sleep(Duration::from_millis(1));
    }
    sent
}

#[test]
fn packets_go_on_while_the_reflector_restarts_and_what_it_no_longer_has_goes() {
    let Some(network) =
        Network::new("packets_go_on_while_the_reflector_restarts_and_what_it_no_longer_has_goes")
    else {
        return;
    };
    let socket = ControlSocket::new();
    // What the server knows of a prefix from egress peer A.
    let of_a = |prefix| socket.explain(prefix).peers.swap_remove(0).paths;
    // Deprecated: the border router's own session is not to come from there.
    let address = format!("addr add {ADDRESS}/128 dev up nodad preferred_lft 0");
    network.ip("border", &address);
    // The interior routing's part: the reflector sends VPN routes only.
    network.ip("server", "route add fd00:51d::/48 via fd00:1::1");
    let reflector = format!("\"{ADDRESS}\"\npassive = true");
    let config = SERVER.replacen("\"fd00:1::1\"", &reflector, 1);
    let server = network.server_of(&socket.named_in(&config));
    let border = network.border();
    let transits = [0, 1].map(|number| network.transit(number, &CLIENTS));
    wait_until("the border router's tables", || {
        let mut tables = [7700, 7800].into_iter();
        tables.all(|table| (0..4).all(|n| network.has_route("border", table, CLIENTS[n])))
    });
    let has = |n: usize| network.has_route("server", 7600, CLIENTS[n]);
    let long = Duration::from_secs(60);
    let mut reflector = Reflector::connect(&network, false, long);
    for prefix in &CLIENTS[..3] {
        reflector.announce(0, prefix, SIDS[0]);
    }
    reflector.end_of_rib();
    wait_until("the server's table", || (0..3).all(has));
    assert_eq!(network.send(OWN[0], 0).unwrap(), 0);

    let receiver = network.host("client").run(|| UdpSocket::bind("[::]:0"));
    let receiver = receiver.unwrap().unwrap();
    receiver
        .set_read_timeout(Some(Duration::from_millis(20)))
        .unwrap();
    let port = receiver.local_addr().unwrap().port();
    let (arrived, end, done) = (
        AtomicU64::new(0),
        AtomicBool::new(false),
        AtomicBool::new(false),
    );
    let (sent, gone) = thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                if receiver.recv(&mut [0; 10]).is_ok() {
                    arrived.fetch_add(1, Ordering::AcqRel);
                }
            }
        });
        let sending = scope.spawn(|| {
            let sent = send(&network, port, &arrived, &end);
            done.store(true, Ordering::Release);
            sent
        });
        // Whatever becomes of what follows.
        let _ending = Ending(&end);
        let count = || arrived.load(Ordering::Acquire);
        let more = |packets: u64| {
            let before = count();
            wait_until("packets arrive", || count() >= before + packets);
        };
        more(100);
        drop(reflector);
        wait_until("its routes are stale", || {
            of_a(CLIENTS[1]).iter().any(|path| path.stale)
        });
        more(200);
        assert!((0..3).all(has), "they stay");

        // One of its routes is as before, one is another, one does not come again.
        let mut reflector = Reflector::connect(&network, true, Duration::from_secs(5));
        reflector.announce(0, CLIENTS[1], SIDS[0]);
        reflector.announce(0, CLIENTS[0], SIDS[1]);
        wait_until("what it announces replaces what was stale", || {
            let paths = of_a(CLIENTS[0]);
            let anew = |path: &PathStatus| !path.stale && path.segment == SIDS[1].parse().ok();
            !paths.is_empty() && paths.iter().all(anew)
        });
        more(100);
        assert!(has(2), "it may still come");
        let paths = of_a(CLIENTS[2]);
        assert!(!paths.is_empty() && paths.iter().all(|path| path.stale));
        reflector.end_of_rib();
        wait_until("what does not come goes", || !has(2));
        more(100);
        assert!(has(0) && has(1));
        end.store(true, Ordering::Release);
        let sent = sending.join().unwrap();
        let gone = Instant::now();
        drop(reflector);
        (sent, gone)
    });
    let lost = sent - arrived.load(Ordering::Acquire);
    println!("{lost} of {sent} packets lost");
    assert_eq!(lost, 0, "of {sent}");

    // It has said that it would be back in five seconds, and is not.
    assert!(has(1));
    assert_eq!(
        network.send(OWN[0], 0).unwrap(),
        1,
        "A's route leads to B's segment"
    );
    wait_until("nothing of it is left", || !has(0) && !has(1));
    assert!(
        gone.elapsed() >= Duration::from_secs(4),
        "{:?}",
        gone.elapsed()
    );
    drop((border, server, transits));
    network.lab.down().unwrap();
}
