//! Streams at the gateway, beside cores without a network.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener},
};

use keiro_core::Delivery;
use keiro_linux::epoll::ReadyList;
use socket2::{Domain, Socket, Type};

use super::{connection::WRITE_PER_TURN, *};
use crate::data::{joined::Joined, route::Routes, tunnels::Tunnels};

#[test]
fn a_server_has_accepted_before_the_client_is_answered() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (socket, _) = tcp::connect(listener.local_addr().unwrap(), None).unwrap();
    let _served = listener.accept().unwrap();
    assert!(is_connected(&socket));
}

#[test]
fn a_server_whose_queue_is_full_has_not_accepted() {
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    listener.bind(&nowhere.into()).unwrap();
    listener.listen(0).unwrap();
    let server = listener.local_addr().unwrap().as_socket().unwrap();
    let _first = TcpStream::connect(server).unwrap();
    let (socket, _) = tcp::connect(server, None).unwrap();
    assert!(!is_connected(&socket));
}

const APP: AppId = AppId(7);

#[test]
fn what_waits_behind_a_gap_is_written_over_several_turns_without_a_word_from_the_core() {
    let mut joined = Joined::new(APP);
    let stream = joined.stream_with(5 * WRITE_PER_TURN + 100);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    socket.set_nonblocking(true).unwrap();
    let mut served = listener.accept().unwrap().0;
    let mut server = StreamServer::new(Quota::new(usize::MAX));
    let (epoll, routes) = (Epoll::new().unwrap(), Routes::default());
    let of = (joined.peers[1], stream);
    let connection = Connection::new(socket, of.0, stream, APP, joined.now);
    let (peer, all) = (joined.peers[1], joined.readable(stream));
    let mut context = Context {
        now: joined.now,
        epoll: &epoll,
        routes: &routes,
        tunnels: &Tunnels::new(&[0; 16], Quota::new(usize::MAX)),
        endpoint: &mut joined.ends[1],
    };
    let left = |context: &Context<'_>| {
        let data = context.endpoint.stream_data(peer, stream);
        data.map_or(0, |(first, second, _)| first.len() + second.len())
    };
    let number = server.insert(&mut context, connection).unwrap();
    let of = (peer, APP, stream);
    server.on_signal(&mut context, of.0, APP, stream, StreamSignal::Readable);
    let mut before = all;
    let mut list = ReadyList::new(4);
    let mut read = vec![0; 2 * WRITE_PER_TURN];
    loop {
        let wrote = before - left(&context);
        assert!(wrote <= WRITE_PER_TURN, "{wrote} bytes in a turn");
        before -= wrote;
        // So that there is room for as much again.
        served.read_exact(&mut read[..wrote]).unwrap();
        epoll.wait(&mut list, Some(Duration::ZERO)).unwrap();
        let Some(ready) = list.at(0) else { break };
        server.serve(&mut context, number, ready);
    }
    // Everything is written, and the socket has no interest registered.
    assert_eq!(before, 0);
}

#[test]
fn a_connection_whose_turn_comes_before_its_stream_says_so_is_read_on() {
    let mut joined = Joined::new(APP);
    joined.bring_up();
    let peer = joined.peers[0];
    let opened = joined.ends[0].open_stream(joined.now, peer, APP, None);
    let stream = opened.unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let socket = listener.accept().unwrap().0;
    socket.set_nonblocking(true).unwrap();
    let mut server = StreamServer::new(Quota::new(usize::MAX));
    let (epoll, routes) = (Epoll::new().unwrap(), Routes::default());
    fn context<'a>(joined: &'a mut Joined, epoll: &'a Epoll, routes: &'a Routes) -> Context<'a> {
        Context {
            now: joined.now,
            epoll,
            routes,
            tunnels: Box::leak(Box::new(Tunnels::new(&[0; 16], Quota::new(usize::MAX)))),
            endpoint: &mut joined.ends[0],
        }
    }
    let ready = || {
        let mut list = ReadyList::new(4);
        epoll.wait(&mut list, Some(Duration::ZERO)).unwrap();
        list.at(0)
    };
    let connection = Connection::new(socket, peer, stream, APP, joined.now);
    let here = &mut context(&mut joined, &epoll, &routes);
    let number = server.insert(here, connection).unwrap();
    // More than its stream takes.
    client.write_all(&[7; 20_000]).unwrap();
    let reported = ready().unwrap();
    let here = &mut context(&mut joined, &epoll, &routes);
    server.serve(here, number, reported);
    assert_eq!(ready(), None);
    // It takes more by now, and what was reported of the socket in the same turn comes before what it says.
    let mut came = 0;
    let mut carry = |joined: &mut Joined| {
        for _ in 0..10 {
            joined.exchange();
            let (now, peer, theirs) = (joined.now, joined.peers[1], joined.signals[0].0);
            let count = joined.readable(theirs);
            joined.ends[1].consume_stream(now, peer, theirs, count);
            came += count;
        }
        came
    };
    carry(&mut joined);
    let here = &mut context(&mut joined, &epoll, &routes);
    server.serve(here, number, reported);
    client.write_all(b"more").unwrap();
    let reported = ready().expect("it is waited for");
    let here = &mut context(&mut joined, &epoll, &routes);
    server.serve(here, number, reported);
    assert_eq!(carry(&mut joined), 20_004);
}

#[test]
fn a_server_that_is_this_machine_by_the_time_it_accepts_is_forbidden() {
    let mut joined = Joined::new(APP);
    let stream = joined.stream_with(1);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let to = listener.local_addr().unwrap();
    let (epoll, routes) = (Epoll::new().unwrap(), Routes::default());
    let mut context = Context {
        now: joined.now,
        epoll: &epoll,
        routes: &routes,
        tunnels: &Tunnels::new(&[0; 16], Quota::new(usize::MAX)),
        endpoint: &mut joined.ends[1],
    };
    let mut server = StreamServer::new(Quota::new(usize::MAX));
    let exit = |allow_local| TcpDestination::Server { to, allow_local };
    server.set_forward(APP, exit(true), None);
    let of = (joined.peers[1], stream);
    let open = WaitingOpen {
        peer: of.0,
        stream,
        app: APP,
        target: None,
    };
    server.connect(&mut context, open).unwrap();
    assert_eq!(server.connecting.len(), 1);
    let number = server.by_stream[&of];
    // The address has not changed, but this machine has, and so has what it is allowed.
    server.set_forward(APP, exit(false), None);
    let mut list = ReadyList::new(4);
    epoll
        .wait(&mut list, Some(Duration::from_secs(10)))
        .unwrap();
    server.serve(&mut context, number, list.at(0).unwrap());

    let figures = server.forward_figures(APP).unwrap();
    assert_eq!(
        (
            figures.stats.forbidden_connections,
            figures.stats.accepted_connections
        ),
        (1, 0)
    );
    assert_eq!(
        (
            figures.stats.reset_connections,
            figures.stats.failed_connections,
            figures.stats.open_connections
        ),
        (0, 0, 0)
    );
    assert!(server.connections.is_empty() && server.connecting.is_empty());
    joined.exchange();
    joined.exchange();
    let mut signals = Vec::new();
    while let Some(delivery) = joined.ends[0].poll_delivery() {
        if let Delivery::Stream { signal, .. } = delivery {
            signals.push(signal);
        }
    }
    assert!(
        signals.contains(&StreamSignal::Reset(ResetReason::Forbidden)),
        "{signals:?}"
    );
}
