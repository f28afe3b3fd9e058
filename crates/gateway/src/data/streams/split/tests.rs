//! What ends split connections, and what streams of peers may take.

use std::{
    io::Read,
    net::{Ipv4Addr, TcpListener, TcpStream},
};

use keiro_core::{AppId, TenantConfig};
use keiro_ip::builtin_classes::Sorting;
use keiro_linux::epoll::Epoll;

use super::*;
use crate::data::{
    joined::Joined,
    route::Routes,
    split::client_bytes,
    tunnels::{PeerSetup, TenantSetup, Tunnels},
};

const APP: AppId = AppId(7);
const TENANT: TenantId = TenantId(1);

/// A tenant whose connections are split, of the networks 10.1.0.0/16 here and those of a peer.
fn split_tenant(peer: PeerId, networks: &[&str]) -> TenantSetup {
    let of_peer = PeerSetup {
        prefixes: networks.iter().map(|of| of.parse().unwrap()).collect(),
        backup_prefixes: Vec::new(),
        is_direct: false,
        transit: false,
        app: AppId(1),
        rules: Vec::new(),
        classes: Vec::new(),
        split_app: None,
    };
    TenantSetup {
        config: TenantConfig::new(TENANT),
        device: 0,
        mtu: 1400,
        icmp_source_v6: None,
        own: vec!["10.1.0.0/16".parse().unwrap()],
        exit: None,
        notes_destinations: false,
        sorting: Sorting::default(),
        splits_tcp: true,
        peers: BTreeMap::from([(peer, of_peer)]),
    }
}

#[test]
fn split_connections_end_where_a_reload_withdraws_the_networks_of_the_peer() {
    let mut joined = Joined::new(APP);
    joined.bring_up();
    let (now, peer) = (joined.now, joined.peers[0]);
    let mut tunnels = Tunnels::new(&[0; 16], Quota::new(usize::MAX));
    let both = split_tenant(peer, &["10.2.0.0/16", "10.3.0.0/16"]);
    tunnels.set(now, both, &mut joined.ends[0]);
    let mut server = StreamServer::new(Quota::new(usize::MAX));
    let (epoll, routes) = (Epoll::new().unwrap(), Routes::default());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let hosts = ["10.2.0.5:80", "10.3.0.5:80"].map(|far| {
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let stream = joined.ends[0].open_stream(now, peer, APP, None).unwrap();
        let socket = listener.accept().unwrap().0;
        socket.set_nonblocking(true).unwrap();
        let flow = FlowAddresses {
            source: "10.1.0.5:40001".parse().unwrap(),
            destination: far.parse().unwrap(),
        };
        let split = Some(SplitEnd {
            tenant: TENANT,
            flow,
        });
        let connection = Connection {
            split,
            ..Connection::new(socket, peer, stream, APP, now)
        };
        let mut context = Context {
            now,
            epoll: &epoll,
            routes: &routes,
            tunnels: &tunnels,
            endpoint: &mut joined.ends[0],
        };
        server.insert_split(&mut context, connection).unwrap();
        client
    });
    let mut reload = |server: &mut StreamServer, networks: &[&str]| {
        tunnels.set(now, split_tenant(peer, networks), &mut joined.ends[0]);
        let mut context = Context {
            now,
            epoll: &epoll,
            routes: &routes,
            tunnels: &tunnels,
            endpoint: &mut joined.ends[0],
        };
        server.end_inadmissible(&mut context, TENANT);
        server.connections.len()
    };
    assert_eq!(reload(&mut server, &["10.2.0.0/16", "10.3.0.0/16"]), 2);
    assert_eq!(reload(&mut server, &["10.2.0.0/16"]), 1);
    let seen = (&hosts[1]).read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(seen, Err(io::ErrorKind::ConnectionReset));
    assert_eq!(server.split_flows().len(), 1);
    assert_eq!(reload(&mut server, &["10.4.0.0/16"]), 0);
}

#[test]
fn streams_that_do_not_name_their_client_take_no_room_of_other_peers() {
    let mut joined = Joined::new(APP);
    joined.bring_up();
    let (now, peer) = (joined.now, joined.peers[0]);
    let mut server = StreamServer::new(Quota::new(usize::MAX));
    let mut waits = |server: &mut StreamServer, of: u32| {
        let open = WaitingOpen {
            peer: PeerId(of),
            stream: joined.ends[0].open_stream(now, peer, APP, None).unwrap(),
            app: APP,
            target: None,
        };
        server.wait_for_name(now, open).is_ok()
    };
    let mut of_one = 0;
    while waits(&mut server, 1) {
        of_one += 1;
    }
    assert_eq!(of_one, UNNAMED_MAX / 2);
    assert!(waits(&mut server, 2));
    server.forget_peer(PeerId(1));
    assert!(waits(&mut server, 1));
}

#[test]
fn client_or_server_without_a_port_is_no_connection() {
    for (client, target) in [
        ("10.2.0.5:0", "10.1.0.5:80"),
        ("10.2.0.5:40001", "10.1.0.5:0"),
        ("10.2.0.5:40001", "[fd00:1::5]:80"),
    ] {
        let mut joined = Joined::new(APP);
        joined.bring_up();
        let (now, peer) = (joined.now, joined.peers[0]);
        let (client, target) = (client.parse().unwrap(), target.parse().unwrap());
        let stream = joined.ends[0].open_stream(now, peer, APP, Some(target));
        let stream = stream.unwrap();
        let name = client_bytes(client);
        joined.ends[0].write_stream(now, peer, stream, &name);
        while joined.signals.is_empty() {
            joined.exchange();
        }
        let (peer, stream) = (joined.peers[1], joined.signals[0].0);
        let mut tunnels = Tunnels::new(&[0; 16], Quota::new(usize::MAX));
        tunnels.set(
            now,
            split_tenant(peer, &["10.2.0.0/16"]),
            &mut joined.ends[1],
        );
        let mut context = Context {
            now: joined.now,
            epoll: &Epoll::new().unwrap(),
            routes: &Routes::default(),
            tunnels: &tunnels,
            endpoint: &mut joined.ends[1],
        };
        let open = WaitingOpen {
            peer,
            stream,
            app: APP,
            target: Some(target),
        };
        let mut server = StreamServer::new(Quota::new(usize::MAX));
        let connected = server.connect_split(&mut context, open, TENANT);
        assert_eq!(connected, Err(ResetReason::Protocol), "{client} {target}");
    }
}
