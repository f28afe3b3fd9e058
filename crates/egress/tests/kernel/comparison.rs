//! Multipath against single path: what live connections carry decides whether a client prefix is told of EPE
//! addresses.

use std::{
    io::{Read, Write},
    net::TcpListener,
    path::Path,
    sync::mpsc,
    thread,
};

use keiro_egress::{
    control::{Answer, Monitor, Question, ask},
    status::{Compared, ComparisonStatus, PrefixStatus, Standing, What},
};

use crate::{
    has_route, is_root,
    network::{CLIENTS, Network, PATIENCE, SERVER, wait_until},
    paths::{connect, joined, listen},
};

/// What the server tells about its comparison.
fn told(socket: &Path) -> ComparisonStatus {
    match ask(socket, Question::Status).unwrap() {
        Answer::Status(status) => status.comparison.expect("it compares"),
        other => panic!("{other:?}"),
    }
}

fn explained(socket: &Path, asked: &str) -> Vec<PrefixStatus> {
    match ask(socket, Question::Explain(asked.parse().unwrap())).unwrap() {
        Answer::Explanation(told) => told.compared,
        other => panic!("{other:?}"),
    }
}

/// A client gets something from the server, and both close; by how many EPE addresses it came.
fn transfer(network: &Network, listener: &TcpListener) -> usize {
    let (mut there, mut here) = connect(network, listener, 1);
    there.set_read_timeout(Some(PATIENCE)).unwrap();
    let serving = thread::spawn(move || {
        here.write_all(&vec![7; BYTES]).unwrap();
        // Behind the last octet it is known who has joined.
        let _ = here.read(&mut [0]);
        joined(&here)
    });
    there.read_exact(&mut vec![0; BYTES]).unwrap();
    drop(there);
    let joined = serving.join().unwrap();
    joined.into_iter().filter(|by| *by).count()
}

#[test]
fn connections_that_are_held_out_stay_on_one_path_and_both_kinds_are_counted() {
    if !is_root("comparison") {
        return;
    }
    let network = Network::new();
    let files = tempfile::tempdir().unwrap();
    let socket = files.path().join("s");
    let (border, server) = (network.border(), network.server_of(&config(&socket)));
    let transits = [0, 1].map(|number| network.transit(number, &CLIENTS));
    await_routes(&network);
    network.narrow();
    let listener = listen(&network, 0);
    let joined = (0..40).map(|_| transfer(&network, &listener) > 0);
    let joined = joined.filter(|joined| *joined).count() as u64;
    let status = told(&socket);
    let evidence = &explained(&socket, "fd00:c1::1/128")[0].evidence;
    println!("{joined} of 40 joined: {status:?}");
    // Half of them are held out; by chance alone six or fewer are in one of a hundred thousand runs.
    assert!((7..=33).contains(&joined), "{joined}");
    assert_eq!((status.prefixes, status.decisions), (1, 0));
    // What the kernel forgets between two looks is not counted; nothing is counted as what it is not.
    let (single, both) = (evidence.single_connections, evidence.multipath_connections);
    assert_eq!(single + both, status.counted);
    assert!(
        status.counted >= 20 && single >= 5 && both >= 5,
        "{status:?}"
    );
    assert!(single <= 40 - joined, "{single} of {}", 40 - joined);
    let single = evidence.single_bits_per_second.unwrap();
    assert!((10_000_000..33_000_000).contains(&single), "{single}");
    drop((border, server, transits));
    network.lab.down().unwrap();
}

/// Half of the connections are held out.
fn config(socket: &Path) -> String {
    let keys = format!("[egress]\nmptcp = \"precise\"\ncontrol_socket = {socket:?}");
    SERVER.replacen("[egress]", &keys, 1)
        + "[comparison]\nheld_out = \"50%\"\nprefix_bits = 32\nbytes_min = \"200KiB\"\nagain_after = \"5s\"\n"
}

fn await_routes(network: &Network) {
    wait_until("all routes", || {
        let mut tables = [7600, 7601].into_iter();
        tables.all(|table| has_route(network, "server", table, CLIENTS[1]))
    });
}

#[test]
#[ignore = "takes minutes, and how much multipath differs on two such lines is the kernel's scheduler's chance"]
fn a_prefix_that_multipath_is_worse_for_stays_on_one_path_until_it_is_better() {
    if !is_root("comparison") {
        return;
    }
    let network = Network::new();
    let files = tempfile::tempdir().unwrap();
    let socket = files.path().join("s");
    let (border, server) = (network.border(), network.server_of(&config(&socket)));
    let transits = [0, 1].map(|number| network.transit(number, &CLIENTS));
    await_routes(&network);
    let mut monitor = Monitor::open(&socket).unwrap();
    let (tell, decisions) = mpsc::channel();
    let listening = thread::spawn(move || {
        while let Ok(Some(happening)) = monitor.wait() {
            if let What::Compared(compared) = happening.what {
                let _ = tell.send(compared);
            }
        }
    });
    let listener = listen(&network, 0);
    let mut connections = 0;
    let mut until_decided = || -> (Compared, usize) {
        let before = connections;
        loop {
            transfer(&network, &listener);
            connections += 1;
            if let Ok(compared) = decisions.try_recv() {
                return (compared, connections - before);
            }
            assert!(
                connections - before < CONNECTIONS_MAX,
                "{:?}",
                told(&socket)
            );
        }
    };

    // The best path leads by A; what is sent by B as well waits there.
    network.narrow_to(["30mbit", "400kbit"]);
    let (worse, count) = until_decided();
    println!("single-path after {count} connections: {worse:?}");
    assert_eq!(
        (worse.standing, worse.confident),
        (Standing::SinglePath, true)
    );
    assert_eq!(worse.prefix.to_string(), CLIENTS[1]);
    let evidence = &worse.evidence;
    assert!(evidence.loss_low_permille.unwrap() >= 50);
    let single = evidence.single_bits_per_second.unwrap();
    assert!((10_000_000..33_000_000).contains(&single), "{single}");
    assert_eq!(transfer(&network, &listener), 0, "it is told of no address");
    let status = told(&socket);
    assert_eq!((status.single_path, status.decisions), (1, 1));
    let one = &explained(&socket, "fd00:c1::1/128")[0];
    assert_eq!(
        (one.standing, &one.decided),
        (Standing::SinglePath, &Some(worse.evidence))
    );
    assert!(one.again_seconds.unwrap() <= 5);

    // B has become the better one, which is known when it has been tried.
    network.narrow_to(["10mbit", "100mbit"]);
    let (trial, _) = until_decided();
    assert_eq!(trial.standing, Standing::Trial);
    let (back, count) = until_decided();
    println!("multipath after {count} connections: {back:?}");
    assert_eq!((back.standing, back.confident), (Standing::Multipath, true));
    assert!(back.evidence.loss_high_permille.unwrap() < 50);
    let status = told(&socket);
    println!(
        "{} connections, {} of them counted",
        connections, status.counted
    );
    assert_eq!(
        (status.single_path, status.trial, status.decisions),
        (0, 0, 3)
    );

    drop((border, server, transits));
    listening.join().unwrap();
    network.lab.down().unwrap();
}

/// Of one transfer: some tenths of a second.
const BYTES: usize = 500_000;
/// A decision takes forty, and a few more where chance has it so.
const CONNECTIONS_MAX: usize = 400;
