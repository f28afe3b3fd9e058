//! What tenants, their clients and later connections must not take from each other.

use std::{
    fs,
    io::{self, Read},
    thread,
    time::Duration,
};

use serde_json::Value;

use super::{
    SERVER, SPLIT, TOPOLOGY, accept, connect, connect_from, echo_at_once, exchange, listen,
    split_connections, start, start_in, tenant,
};
use crate::{
    harness::{eventually, finish},
    pair::Pair,
};

const FROM: &str = "10.1.0.5:41000";

fn reason(pair: &Pair, reason: &str) -> Option<u64> {
    tenant(&pair.tokyo)["not_split_connections"][reason].as_u64()
}

fn run_at(pair: &Pair, host: &str, command: &str) {
    let host = pair.lab.host(host).expect("a host");
    let mut words = command.split(' ');
    let mut shell = host.command(words.next().expect("a program"));
    finish(shell.args(words), b"").expect_code(0);
}

#[test]
fn packets_of_another_tenant_with_the_same_addresses_stay_that_tenants() {
    // A host of tenant red with the address of blue's client, behind another interface of tokyo.
    let topology = format!(
        "{TOPOLOGY}[host.other]\nroutes = [{{ to = \"default\", via = \"172.31.0.1\" }}]\n\
         [link.lan-c]\na = {{ host = \"other\", addresses = [\"172.31.0.2/30\"] }}\n\
         b = {{ host = \"tokyo\", addresses = [\"172.31.0.1/30\"] }}\n"
    );
    let red = |own: usize| {
        let (here, there, peer) = (own + 1, 2 - own, ["osaka", "tokyo"][own]);
        let interfaces = ["interfaces = [\"lan-c\"]\n", ""][own];
        format!(
            "[tenant.red]\nid = 2\ndevice = \"t-red\"\ntable = 101\n{interfaces}prefixes = [\"10.{here}.0.0/16\"]\n\
             [tenant.red.peer.{peer}]\nprefixes = [\"10.{there}.0.0/16\"]\napp = \"ip\"\n"
        )
    };
    let more = [red(0), red(1)];
    let pair = start_in(
        &topology,
        [SPLIT, SPLIT],
        more.each_ref().map(String::as_str),
    );
    run_at(&pair, "other", "ip address add 10.1.0.5/32 dev lo");
    run_at(&pair, "other", "sysctl -w net.ipv4.tcp_syn_retries=1");
    // By default the kernel looks for a socket before it forwards, and drops what has one.
    run_at(&pair, "tokyo", "sysctl -w net.ipv4.tcp_early_demux=0");
    let listener = listen(&pair, SERVER[0]);
    let mut client = connect_from(&pair, "client", Some(FROM), SERVER[0]).expect("connected");
    let mut served = accept(&listener);
    exchange(&mut client, &mut served);
    assert_eq!(split_connections(&pair.tokyo), 1);
    // From the same address and port to the same server.
    thread::scope(|scope| {
        scope.spawn(|| connect_from(&pair, "other", Some(FROM), SERVER[0]));
        eventually("its packets go to its tenant's peer", || {
            let red: &Value = &pair.tokyo.json(&["show", "tenant", "red"])[0];
            (red["peers"][0]["accepted_bytes"].as_u64() > Some(0)).then_some(())
        });
        exchange(&mut client, &mut served);
    });
}

#[test]
fn client_below_port_1024_stays_packets_and_turns_nothing_off_for_others() {
    let pair = start([SPLIT, SPLIT]);
    let listener = listen(&pair, SERVER[0]);
    let low = connect_from(&pair, "client", Some("10.1.0.5:700"), SERVER[0]);
    exchange(&mut low.expect("connected"), &mut accept(&listener));
    assert_eq!(reason(&pair, "client_port"), Some(1));
    let mut client = connect(&pair, SERVER[0]).expect("connected");
    exchange(&mut client, &mut accept(&listener));
    assert_eq!(split_connections(&pair.tokyo), 1);
}

#[test]
fn many_connections_with_few_handshakes_of_the_kernel_bring_no_syn_cookies() {
    let few = TOPOLOGY.replace(
        "[host.tokyo]\nsysctl = { ",
        "[host.tokyo]\nsysctl = { \"net.core.somaxconn\" = 16, ",
    );
    assert_ne!(few, TOPOLOGY);
    // Clients that answer late, so that handshakes gather.
    let few = few.replace(
        "[link.lan-b]",
        "each_way = { rate = \"1Gbit\", delay = \"50ms\", buffer = \"1MiB\" }\n[link.lan-b]",
    );
    let pair = start_in(&few, [SPLIT, SPLIT], ["", ""]);
    echo_at_once(&pair, 60);
    let tokyo = pair.lab.host("tokyo").expect("a host");
    let counters = tokyo.run(|| fs::read_to_string("/proc/thread-self/net/netstat"));
    let counters = counters.expect("entered").expect("read");
    let mut lines = counters.lines().map(|line| line.split(' '));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let sent = names
        .zip(values)
        .find(|(name, _)| *name == "SyncookiesSent");
    assert_eq!(sent, Some(("SyncookiesSent", "0")));
    let (split, limited) = (split_connections(&pair.tokyo), reason(&pair, "limit"));
    println!("of 60 connections {split} were split, {limited:?} were beyond the limit");
    assert!(split > 0 && limited > Some(0));
}

#[test]
fn connection_with_the_addresses_of_one_that_has_just_ended_is_not_taken_for_it() {
    let pair = start([SPLIT, SPLIT]);
    for (from, to) in [FROM, "[fd00:1::5]:41000"].into_iter().zip(SERVER) {
        connect_thrice(&pair, from, to);
    }
    assert_eq!(split_connections(&pair.tokyo), 4);
    assert_eq!(reason(&pair, "limit"), Some(2));
}

/// From the same port: two split connections, and one that stays packets.
fn connect_thrice(pair: &Pair, from: &str, to: &str) {
    let connect = || connect_from(pair, "client", Some(from), to);
    let listener = listen(pair, to);
    let ended = || {
        eventually("it has ended", || {
            let open = |gateway| tenant(gateway)["open_split_connections"] == 0;
            (open(&pair.tokyo) && open(&pair.osaka)).then_some(())
        });
    };
    run_at(pair, "server", "sysctl -w net.ipv4.tcp_timestamps=1");
    // The server has ended the first: tokyo waits for its late packets.
    let mut client = connect().expect("connected");
    let mut served = accept(&listener);
    exchange(&mut client, &mut served);
    drop(served);
    assert_eq!(client.read(&mut [0]).expect("its end"), 0);
    drop(client);
    ended();
    // The client has ended the second: osaka waits. Without timestamps it cannot connect the third before that is over,
    // so it stays packets.
    run_at(pair, "server", "sysctl -w net.ipv4.tcp_timestamps=0");
    let mut client = connect().expect("connected");
    let mut served = accept(&listener);
    exchange(&mut client, &mut served);
    drop(client);
    assert_eq!(served.read(&mut [0]).expect("its end"), 0);
    drop(served);
    ended();
    run_at(pair, "client", "sysctl -w net.ipv4.tcp_tw_reuse=1");
    let mut client = eventually(
        "the client's kernel gives the port again",
        || match connect() {
            Ok(client) => Some(client),
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
                thread::sleep(Duration::from_millis(50));
                None
            }
            Err(error) => panic!("{error}"),
        },
    );
    exchange(&mut client, &mut accept(&listener));
}
