//! Multipath against single path: what live connections carry decides whether a client prefix gets EPE
//! addresses.

use std::{
    collections::VecDeque,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use keiro_egress::{
    control::Monitor,
    status::{Compared, ComparisonStatus, DaemonEvent, PrefixMode, PrefixStatus},
};

use crate::{
    network::{CLIENTS, ControlSocket, Network, PATIENCE, SERVER, wait_until},
    paths::{connect, joined, listen},
};

/// The server's status of its comparison.
fn reported(socket: &ControlSocket) -> ComparisonStatus {
    socket.status().comparison.expect("it compares")
}

/// And about the clients of [`CLIENTS`]' second prefix.
fn explained(socket: &ControlSocket) -> PrefixStatus {
    socket.explain("fd00:c1::1/128").compared.swap_remove(0)
}

/// A client gets something from the server; by how many EPE addresses it came. The connection is to stay in `open` until
/// others have come: one that is over at once may come and go between two looks.
fn transfer(
    network: &Network,
    listener: &TcpListener,
    open: &mut VecDeque<[TcpStream; 2]>,
) -> usize {
    let (mut there, mut here) = connect(network, listener, 1);
    there.set_read_timeout(Some(PATIENCE)).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| here.write_all(&vec![7; BYTES]).unwrap());
        there.read_exact(&mut vec![0; BYTES]).unwrap();
    });
    // Behind the last octet it is known who has joined.
    let joined = joined(&here).into_iter().filter(|by| *by).count();
    open.push_back([there, here]);
    if open.len() > OPEN {
        open.pop_front();
    }
    joined
}

#[test]
fn connections_that_are_held_out_stay_on_one_path_and_both_kinds_are_counted() {
    let Some(network) =
        Network::new("connections_that_are_held_out_stay_on_one_path_and_both_kinds_are_counted")
    else {
        return;
    };
    let socket = ControlSocket::new();
    let evidence_file = socket.directory.path().join("evidence.json");
    let with_file = format!("{}evidence_file = {evidence_file:?}\n", config(&socket));
    let (border, server) = (network.border(), network.server_of(&with_file));
    let transits = [0, 1].map(|number| network.transit(number, &CLIENTS));
    network.await_routes([&CLIENTS[1..2]; 2]);
    network.narrow();
    let listener = listen(&network, 0);
    let mut open = VecDeque::new();
    let joined = (0..40).map(|_| transfer(&network, &listener, &mut open) > 0);
    let joined = joined.filter(|joined| *joined).count() as u64;
    drop(open);
    // One is asked after the other, and the last connections are counted meanwhile. Nothing is counted as what it is
    // not.
    let mut answers = (reported(&socket), explained(&socket).evidence);
    wait_until("both tell the same", || {
        answers = (reported(&socket), explained(&socket).evidence);
        let (status, evidence) = &answers;
        evidence.single_connections + evidence.multipath_connections
            == status.stats.counted_connections
    });
    let (status, evidence) = &answers;
    println!("{joined} of 40 joined: {status:?}");
    // Half of them are held out; by chance alone six or fewer are in one of a hundred thousand runs.
    assert!((7..=33).contains(&joined), "{joined}");
    assert_eq!((status.stats.prefixes, status.stats.decisions), (1, 0));
    // What the kernel forgets between two looks is not counted.
    let (single, both) = (evidence.single_connections, evidence.multipath_connections);
    assert!(
        status.stats.counted_connections >= 20 && single >= 5 && both >= 5,
        "{status:?}"
    );
    assert!(single <= 40 - joined, "{single} of {}", 40 - joined);
    let single = evidence.single_bits_per_second.unwrap();
    assert!((10_000_000..33_000_000).contains(&single), "{single}");
    // The next run of the daemon knows it, too, and what was counted meanwhile.
    drop(server);
    let server = network.server_of(&with_file);
    let after = &explained(&socket).evidence;
    let (single, both) = (after.single_connections, after.multipath_connections);
    assert!(single >= evidence.single_connections && both >= evidence.multipath_connections);
    assert!(single + both <= 40, "{after:?}");
    assert_eq!(
        reported(&socket).stats.counted_connections,
        0,
        "by this run"
    );
    drop((border, server, transits));
    network.lab.down().unwrap();
}

/// Half of the connections are held out.
fn config(socket: &ControlSocket) -> String {
    socket.named_in(&SERVER.replacen("[egress]", "[egress]\nmptcp = \"precise\"", 1))
        + "[comparison]\nheld_out = \"50%\"\nprefix_bits = 32\nbytes_min = \"200KiB\"\nagain_after = \"5s\"\n"
}

/// A client gets something when it has joined all announced addresses, and the connection stays open for a while, so
/// that what it has carried is read in full: it waits in `open` until others have come.
fn transfer_and_stay(
    network: &Network,
    listener: &TcpListener,
    open: &mut VecDeque<[TcpStream; 2]>,
) {
    let (mut there, mut here) = connect(network, listener, 1);
    there.set_read_timeout(Some(PATIENCE)).unwrap();
    // One that is held out joins nothing, which shows only after a while.
    let end = Instant::now() + JOINS_WITHIN;
    while !joined(&here)[1] && Instant::now() < end {
        thread::sleep(Duration::from_millis(1));
    }
    thread::scope(|scope| {
        scope.spawn(|| here.write_all(&vec![7; BYTES_COMPARED]).unwrap());
        there.read_exact(&mut vec![0; BYTES_COMPARED]).unwrap();
    });
    open.push_back([there, here]);
    if open.len() > OPEN {
        open.pop_front();
    }
}

#[test]
fn a_prefix_that_multipath_is_worse_for_stays_on_one_path_until_it_is_better() {
    let Some(network) =
        Network::new("a_prefix_that_multipath_is_worse_for_stays_on_one_path_until_it_is_better")
    else {
        return;
    };
    let socket = ControlSocket::new();
    // Two ways: the best path, by A, and B's address. With one more by A it is the scheduler's chance who gets what.
    let only_b = config(&socket).replacen(PEER_A, "", 1);
    let (border, server) = (network.border(), network.server_of(&only_b));
    let transits = [0, 1].map(|number| network.transit(number, &CLIENTS));
    wait_until("routes", || network.has_route("server", 7600, CLIENTS[1]));
    let mut monitor = Monitor::open(&socket.path()).unwrap();
    let (tell, decisions) = mpsc::channel();
    let listening = thread::spawn(move || {
        while let Ok(Some(event)) = monitor.wait() {
            if let DaemonEvent::Compared(compared) = event.what {
                let _ = tell.send(compared);
            }
        }
    });
    let listener = listen(&network, 0);
    let (mut connections, mut open) = (0, VecDeque::new());
    let mut until_decided = || -> (Compared, usize) {
        let before = connections;
        loop {
            transfer_and_stay(&network, &listener, &mut open);
            connections += 1;
            if let Ok(compared) = decisions.try_recv() {
                return (compared, connections - before);
            }
            assert!(
                connections - before < CONNECTIONS_MAX,
                "{:?}",
                reported(&socket)
            );
        }
    };

    // While A is busy Linux gives the other subflow, which is idle, the next 64 KiB (`MPTCP_SEND_BURST_SIZE`), and at B
    // they wait for a quarter of a second, in which A carries everything twice; nothing is dropped there.
    network.limit(0, "rate 60mbit burst 15k latency 30ms");
    network.limit(1, "rate 2mbit burst 2k limit 400k");
    let (worse, count) = until_decided();
    println!("single-path after {count} connections: {worse:?}");
    assert_eq!(
        (worse.mode, worse.confident),
        (PrefixMode::SinglePath, true)
    );
    assert_eq!(worse.prefix.to_string(), CLIENTS[1]);
    let evidence = &worse.evidence;
    assert!(evidence.loss_low_permille.unwrap() >= 50);
    let single = evidence.single_bits_per_second.unwrap();
    assert!((20_000_000..63_000_000).contains(&single), "{single}");
    let joined = transfer(&network, &listener, &mut VecDeque::new());
    assert_eq!(joined, 0, "no address is announced");
    let status = reported(&socket);
    assert_eq!(
        (status.stats.single_path_prefixes, status.stats.decisions),
        (1, 1)
    );
    let one = &explained(&socket);
    assert_eq!(
        (one.mode, &one.decided),
        (PrefixMode::SinglePath, &Some(worse.evidence))
    );
    assert!(one.again_seconds.unwrap() <= 5);

    // B has become the better one, which is known when it has been tried.
    network.narrow_to(["40mbit", "100mbit"]);
    let (trial, _) = until_decided();
    assert_eq!(trial.mode, PrefixMode::Trial);
    let (back, count) = until_decided();
    println!("multipath after {count} connections: {back:?}");
    assert_eq!((back.mode, back.confident), (PrefixMode::Multipath, true));
    assert!(back.evidence.loss_high_permille.unwrap() < 50);
    let status = reported(&socket);
    println!(
        "{} connections, {} of them counted",
        connections, status.stats.counted_connections
    );
    assert_eq!(
        (
            status.stats.single_path_prefixes,
            status.stats.trial_prefixes,
            status.stats.decisions
        ),
        (0, 0, 3)
    );

    drop((border, server, transits));
    listening.join().unwrap();
    network.lab.down().unwrap();
}

/// The first egress peer of [`SERVER`].
const PEER_A: &str = "[[peer]]\nname = \"transit-a\"\nrt = \"65000:10\"\naddress = \"fd00:e::a\"\n";
/// Of one transfer: some tenths of a second.
const BYTES: usize = 500_000;
/// The same where many are compared: enough for a subflow that is idle to get some of it, not by chance.
const BYTES_COMPARED: usize = 1_000_000;
/// The time for a client to join an announced address; some milliseconds suffice.
const JOINS_WITHIN: Duration = Duration::from_millis(100);
/// Connections that stay open while others come.
const OPEN: usize = 4;
/// A decision takes forty, and a few more where chance has it so.
const CONNECTIONS_MAX: usize = 400;
