//! Two branches whose networks have the same addresses, each of them mapped to another one.

use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream},
};

use keiro_linux::process::SIGTERM;

use crate::{
    gateways::{echo_request, icmp_socket},
    harness::{LIMIT, Site, eventually, shown},
    join::{World, ask, make_local},
};

/// Of the hosts, by which the other branch reaches them.
const DESK: Ipv4Addr = Ipv4Addr::new(10, 98, 1, 10);
const SHELF: Ipv4Addr = Ipv4Addr::new(10, 99, 1, 20);
/// As the host has it itself.
const SHELF_OWN: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 20);

/// Both branches have 10.1.0.0/24; both gateways run.
fn joined(world: &mut World) -> [Site; 2] {
    world.sh(
        "kyoto",
        "ip address flush dev lan1 && ip address add 10.1.0.1/24 dev lan1",
    );
    world.sh(
        "shelf",
        "ip address flush dev lan1 && ip address add 10.1.0.20/24 dev lan1 && ip route add default via 10.1.0.1",
    );
    let sites = [Site::without_key(), Site::without_key()];
    for (name, site, map) in [
        ("tokyo", &sites[0], "10.1.0.0/24=10.98.1.0/24"),
        ("kyoto", &sites[1], "10.1.0.0/24=10.99.1.0/24"),
    ] {
        let token = world.invite(&[name]);
        let joined = world
            .join(name, site, &token, &["--map", map])
            .expect_code(0);
        let _ = joined.says(&["which other sites reach as 10.9"]);
        make_local(site);
        world.spawn(name, &site.path("keiro/gateway.toml"));
        world.forward(name, "keiro1");
    }
    sites
}

#[test]
fn hosts_with_the_same_addresses_reach_each_other_by_mapped_ones() {
    let mut world = World::start();
    world.keep_packets_with_hubs();
    let sites = joined(&mut world);
    world.ping("shelf", "10.98.1.10");
    world.ping("desk", "10.99.1.20");
    world.ping("server", "10.99.1.20");
    // The gateways themselves.
    world.ping("desk", "10.99.1.1");
    for (from, to, at, seen) in [
        ("shelf", "desk", DESK, SHELF),
        ("desk", "shelf", SHELF, DESK),
    ] {
        assert_eq!(connect(&world, from, to, at), IpAddr::from(seen));
    }
    let shown = eventually("the tenant is shown", || {
        ask(&sites[1], &["show", "tenant"])
    });
    assert_eq!(shown[0]["map"][0]["local"], "10.1.0.0/24");
    assert_eq!(shown[0]["prefixes"][0], "10.99.1.0/24");

    // ICMP errors quote the addresses that the sender knows: those of the hub, and of the other branch's kernel.
    for hops in [3, 4] {
        let quoted = exceeded(&world, hops);
        assert_eq!(quoted, [SHELF_OWN, DESK], "after {hops} hops");
    }

    // Rules that another program removes come back.
    world.sh("kyoto", "nft flush ruleset");
    eventually("the rules are there again", || {
        let rules = world.sh("kyoto", "nft list ruleset");
        (rules.contains("dnat prefix to 10.1.0.0/24") && rules.contains("ip6 keiro-map-1"))
            .then_some(())
    });
    world.ping("desk", "10.99.1.20");
    let gateway = world.processes.last().expect("it was started");
    gateway.signal(SIGTERM).expect("sent");
    eventually("nothing is left of them", || {
        let rules = world.sh("kyoto", "nft list ruleset");
        (!rules.contains("keiro")).then_some(())
    });
}

#[test]
fn a_mapping_that_cannot_be_is_refused_before_the_hub_is_asked() {
    let world = World::start();
    let token = world.invite(&["kyoto"]);
    let kyoto = Site::without_key();
    for (map, part) in [
        (
            "10.77.0.0/24=10.99.1.0/24",
            "not a network behind this machine",
        ),
        ("10.2.0.0/24=10.99.0.0/16", "differ in length"),
        ("10.2.0.0/24", "LOCAL=NETWORK"),
    ] {
        let ran = world.join("kyoto", &kyoto, &token, &["--map", map]);
        let _ = ran.expect_code(64).says(&[part]);
    }
    let file = shown(&kyoto.path("keiro/gateway.toml"));
    assert!(!std::path::Path::new(&file).exists());
}

/// Opens a connection from one host to another at `at`; the address that the latter sees.
fn connect(world: &World, from: &str, to: &str, at: Ipv4Addr) -> IpAddr {
    let host = |name| world.lab.host(name).expect("a host");
    let listener = host(to).run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("bound"));
    let listener = listener.expect("entered");
    let port = listener.local_addr().expect("bound").port();
    let to = SocketAddr::from((at, port));
    let stream = host(from).run(move || TcpStream::connect_timeout(&to, LIMIT).expect("connected"));
    let mut stream = stream.expect("entered");
    let (mut accepted, seen) = listener.accept().expect("accepted");
    accepted.set_read_timeout(Some(LIMIT)).expect("set");
    stream.write_all(b"across").expect("sent");
    let mut received = [0; 6];
    accepted.read_exact(&mut received).expect("received");
    assert_eq!(&received, b"across");
    seen.ip()
}

/// Source and destination that the ICMP error quotes which ends an echo request after some hops.
fn exceeded(world: &World, hops: u32) -> [Ipv4Addr; 2] {
    let shelf = world.lab.host("shelf").expect("a host");
    let quoted = shelf.run(move || {
        let mut socket = icmp_socket(true);
        socket.set_ttl_v4(hops).expect("set");
        socket.set_read_timeout(Some(LIMIT)).expect("set");
        let to = SocketAddr::from((DESK, 0));
        socket
            .send_to(&echo_request(true, 8), &to.into())
            .expect("sent");
        let mut buffer = [0; 1500];
        loop {
            let length = socket.read(&mut buffer).expect("an answer");
            const TIME_EXCEEDED: u8 = 11;
            if length >= 48 && buffer[20] == TIME_EXCEEDED {
                let address = |at: usize| {
                    let octets: [u8; 4] = buffer[at..at + 4].try_into().expect("four bytes");
                    Ipv4Addr::from(octets)
                };
                // Behind the header, the error's eight bytes and the twelve before the addresses.
                return [address(40), address(44)];
            }
        }
    });
    quoted.expect("entered")
}
