//! MPTCP over egress peers: announced addresses, paths of subflows, and how they are moved.

use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv6Addr, SocketAddr},
    num::NonZeroU8,
};

use keiro_linux::{
    epe::{Change, Reconciler},
    mptcp,
    mptcp_pm::{
        Endpoint, Ends, Event, Events, Limits, Manager, PathManager, PathManagerError, Token,
        set_manager,
    },
    seg6::Encapsulation,
};
use socket2::{Domain, Protocol, Socket, Type};

use crate::{
    epe::{OWN, apply, clients, set_up},
    namespace::{Namespace, TIMEOUT, is_root, wait_until},
    network::{CLIENT, DEFAULT, Network},
};

/// `IPPROTO_MPTCP`.
const MPTCP: i32 = 262;

const LIMITS: Limits = Limits {
    accepted_addresses: 4,
    subflows: 4,
};

fn socket() -> Socket {
    let socket = Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::from(MPTCP))).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket.set_write_timeout(Some(TIMEOUT)).unwrap();
    socket
}

fn path_manager(namespace: &Namespace) -> PathManager {
    PathManager::open_in(&namespace.0).unwrap()
}

/// A connection from the client to the server's ordinary address: the server's end, the client's, and the
/// listener, without which further subflows would be refused.
fn connect(network: &Network) -> (Socket, Socket, Socket) {
    let listener = network.server.run(|| {
        let listener = socket();
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        listener.bind(&any.into()).unwrap();
        listener.listen(1).unwrap();
        listener
    });
    let port = listener.local_addr().unwrap().as_socket().unwrap().port();
    let to = SocketAddr::from((DEFAULT.parse::<Ipv6Addr>().unwrap(), port));
    let mut client = network.client.run(|| {
        let client = socket();
        client.connect(&to.into()).unwrap();
        client
    });
    let (mut server, _) = listener.accept().unwrap();
    server.set_write_timeout(Some(TIMEOUT)).unwrap();
    // Each side knows that the other speaks MPTCP only after data in both directions.
    client.write_all(b"?").unwrap();
    server.read_exact(&mut [0]).unwrap();
    server.write_all(b"!").unwrap();
    client.read_exact(&mut [0]).unwrap();
    (server, client, listener)
}

fn id(number: u8) -> NonZeroU8 {
    NonZeroU8::new(number).unwrap()
}

fn own(index: usize) -> IpAddr {
    OWN[index].parse().unwrap()
}

/// Events so far, and those that arrive.
struct EventLog {
    events: Events,
    all: Vec<Event>,
}

impl EventLog {
    fn find<T>(&mut self, what: &str, pick: impl Fn(&Event) -> Option<T>) -> T {
        let mut found = None;
        wait_until(what, || {
            let all = &mut self.all;
            assert!(self.events.take(|event| all.push(event)).unwrap());
            found = self.all.iter().find_map(&pick);
            found.is_some()
        });
        found.unwrap()
    }

    fn subflow(&mut self, local: IpAddr) -> Ends {
        self.find("the subflow is there", |event| match event {
            Event::SubflowEstablished(_, ends) if ends.local.ip() == local => Some(*ends),
            _ => None,
        })
    }

    fn closed(&mut self, local: IpAddr) {
        self.find("the subflow is gone", |event| match event {
            Event::SubflowClosed(_, ends) if ends.local.ip() == local => Some(()),
            _ => None,
        });
    }

    fn established(&mut self) -> (Token, Ends) {
        self.find("the connection is there", |event| match event {
            Event::Established(token, ends) => Some((*token, *ends)),
            _ => None,
        })
    }
}

fn set_up_user_space() -> (Network, Reconciler, Reconciler, PathManager, EventLog) {
    let (network, server, border) = set_up(Encapsulation::Reduced);
    let set = network.server.run(|| set_manager(Manager::UserSpace));
    set.unwrap();
    path_manager(&network.client).set_limits(LIMITS).unwrap();
    let events = Events::open_in(&network.server.0).unwrap();
    let manager = path_manager(&network.server);
    let events = EventLog {
        events,
        all: Vec::new(),
    };
    (network, server, border, manager, events)
}

#[test]
fn an_own_address_is_announced_where_its_table_reaches_the_client_and_subflows_follow() {
    if !is_root(
        "an_own_address_is_announced_where_its_table_reaches_the_client_and_subflows_follow",
    ) {
        return;
    }
    let (network, mut server, _border, mut manager, mut events) = set_up_user_space();
    apply(&mut server, Change::RemoveRoute(clients(102)));
    let (mut here, there, _listener) = connect(&network);
    let (token, first) = events.established();
    assert_eq!(first.remote.ip(), CLIENT.parse::<IpAddr>().unwrap());
    let reaching: Vec<usize> = (0..2)
        .filter(|&index| {
            server
                .wanted()
                .route(101 + index as u32, first.remote.ip())
                .is_some()
        })
        .collect();
    assert_eq!(reaching, [0]);
    manager.announce(token, own(0), id(1)).unwrap();
    let by_a = events.subflow(own(0));
    // The peer announces, so the other address is announced, too.
    apply(&mut server, Change::SetRoute(clients(102), 2));
    manager.announce(token, own(1), id(2)).unwrap();
    let by_b = events.subflow(own(1));
    assert_eq!(mptcp::subflows(&here).unwrap().len(), 3);

    // With the others as backups, all packets go by peer B.
    for ends in [first, by_a] {
        manager.set_backup(token, ends, true).unwrap();
    }
    let before = network.sent_to_client();
    let received = transfer(&mut here, there, 2_000_000);
    let after = network.sent_to_client();
    let [a, b] = [after[0] - before[0], after[1] - before[1]];
    assert!(
        b > 1000 && b > 10 * a,
        "{a} packets by peer A, {b} by peer B"
    );

    // The announcement is withdrawn and a subflow closed; the first one carries on.
    manager.set_backup(token, first, false).unwrap();
    manager.remove(token, id(1)).unwrap();
    events.closed(own(0));
    manager.destroy(token, by_b).unwrap();
    events.closed(own(1));
    let received = transfer(&mut here, received, 100_000);
    drop((here, received));
    events.find("the connection is gone", |event| {
        (*event == Event::Closed(token)).then_some(())
    });
    // The kernel may keep its half for a while. For an unknown connection it reports an error.
    let never = Token(token.0 ^ 1);
    let error = manager.announce(never, own(0), id(1)).unwrap_err();
    assert!(matches!(error, PathManagerError::Gone { .. }), "{error}");
}

/// Sends bytes from the server's end to the client's, which is returned when it has them.
fn transfer(here: &mut Socket, mut there: Socket, bytes: usize) -> Socket {
    let reader = std::thread::spawn(move || {
        let mut all = vec![0; bytes];
        there.read_exact(&mut all).unwrap();
        there
    });
    here.write_all(&vec![7; bytes]).unwrap();
    reader.join().unwrap()
}

#[test]
fn the_kernels_manager_announces_every_endpoint() {
    if !is_root("the_kernels_manager_announces_every_endpoint") {
        return;
    }
    let (network, _server, _border) = set_up(Encapsulation::Reduced);
    network.server.run(|| set_manager(Manager::Kernel)).unwrap();
    for namespace in [&network.client, &network.server] {
        path_manager(namespace).set_limits(LIMITS).unwrap();
    }
    let mut manager = path_manager(&network.server);
    assert_eq!(manager.limits().unwrap(), LIMITS);
    for index in 0..2 {
        let endpoint = Endpoint {
            address: own(index),
            id: NonZeroU8::new(10 + index as u8),
            signal: true,
            backup: index == 1,
            more: false,
        };
        manager.add_endpoint(&endpoint).unwrap();
        assert!(manager.endpoints().unwrap().contains(&endpoint));
    }
    let (mut here, there, _listener) = connect(&network);
    wait_until("both addresses have a subflow", || {
        let subflows = mptcp::subflows(&here).unwrap();
        subflows
            .iter()
            .filter(|subflow| subflow.established)
            .count()
            == 3
    });
    drop(transfer(&mut here, there, 100_000));
    let ordinary = Endpoint {
        address: own(1),
        id: NonZeroU8::new(11),
        signal: true,
        backup: false,
        more: false,
    };
    manager.change_endpoint(&ordinary).unwrap();
    assert!(manager.endpoints().unwrap().contains(&ordinary));
    for index in 0..2 {
        assert!(manager.remove_endpoint(own(index)).unwrap());
        assert!(!manager.remove_endpoint(own(index)).unwrap());
    }
    assert_eq!(manager.endpoints().unwrap(), []);
}
