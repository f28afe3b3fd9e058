//! What becomes of split connections when links, configurations and gateways change under them.

use std::{
    io::{self, Read, Write},
    net::{TcpStream, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use keiro_linux::process::SIGTERM;

use super::{SERVER, SPLIT, accept, connect, exchange, listen, split_connections, start, tenant};
use crate::{
    harness::{eventually, finish},
    pair::Pair,
};

/// Counts up, so that a gap or a repetition shows.
fn bytes(count: usize) -> Vec<u8> {
    let words = (0_u32..).flat_map(u32::to_be_bytes);
    words.take(count).collect()
}

/// Reads all that `sent` is while `change` happens after a third of it; the longest time without a byte.
fn read_while(served: &mut TcpStream, sent: &[u8], change: impl FnOnce()) -> Duration {
    let mut change = Some(change);
    let mut buffer = vec![0; 64 << 10];
    let (mut came, mut longest, mut last) = (0, Duration::ZERO, Instant::now());
    while came < sent.len() {
        let count = served.read(&mut buffer).expect("read");
        assert!(count > 0, "it ends after {came} bytes");
        assert!(buffer[..count] == sent[came..came + count], "at {came}");
        came += count;
        longest = longest.max(last.elapsed());
        if came >= sent.len() / 3 {
            change.take().into_iter().for_each(|change| change());
        }
        last = Instant::now();
    }
    longest
}

#[test]
fn transfer_goes_on_over_the_other_link_when_one_dies() {
    let pair = start([SPLIT, SPLIT]);
    let listener = listen(&pair, SERVER[0]);
    let sent = bytes(15 << 20);
    let mut client = connect(&pair, SERVER[0]).expect("connected");
    let mut served = accept(&listener);
    let longest = thread::scope(|scope| {
        scope.spawn(|| client.write_all(&sent).expect("it is taken"));
        let cut = || {
            pair.lab
                .link("wide")
                .and_then(|link| link.cut())
                .expect("cut");
        };
        read_while(&mut served, &sent, cut)
    });
    println!("a split transfer over 40 and 20 Mbit/s whose wider link dies stands for {longest:?}");
    // The silence limit of a path and the retransmission of what was on it, on a busy machine.
    assert!(longest < Duration::from_secs(5), "{longest:?}");
    assert_eq!(split_connections(&pair.tokyo), 1);
}

#[test]
fn reload_keeps_connections_that_are_admitted_and_resets_those_that_are_not() {
    let pair = start([SPLIT, SPLIT]);
    let listener = listen(&pair, SERVER[0]);
    let mut client = connect(&pair, SERVER[0]).expect("connected");
    let mut served = accept(&listener);
    exchange(&mut client, &mut served);
    let reload = |text: &str| {
        pair.tokyo.site.write("gateway.toml", text);
        pair.tokyo.ask(&["reload"]).expect_code(0);
    };
    let text = pair.tokyo.configuration();
    reload(&text.replace("[tenant.blue]\n", "[tenant.blue]\nweight = 3\n"));
    exchange(&mut client, &mut served);
    // The server's network is not osaka's any more.
    let withdrawn = text.replace("[\"10.2.0.0/16\", ", "[\"10.2.128.0/17\", ");
    assert_ne!(withdrawn, text);
    reload(&withdrawn);
    for end in [&mut client, &mut served] {
        let seen = end.read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(seen, Err(io::ErrorKind::ConnectionReset));
    }
    reload(&text);
    let mut client = connect(&pair, SERVER[0]).expect("connected");
    exchange(&mut client, &mut accept(&listener));
}

#[test]
fn restart_resets_connections_and_splits_new_ones() {
    let mut pair = start([SPLIT, SPLIT]);
    let listener = listen(&pair, SERVER[0]);
    for is_clients in [true, false] {
        let mut client = connect(&pair, SERVER[0]).expect("connected");
        let mut served = accept(&listener);
        exchange(&mut client, &mut served);
        let Pair {
            lab, tokyo, osaka, ..
        } = &mut pair;
        let gateway = if is_clients { tokyo } else { osaka };
        gateway.process.signal(SIGTERM).expect("signalled");
        for end in [&mut client, &mut served] {
            let seen = end.read(&mut [0]).map_err(|error| error.kind());
            assert_eq!(seen, Err(io::ErrorKind::ConnectionReset));
        }
        eventually("it ends", || {
            gateway.process.wait(Duration::ZERO).expect("a child")
        });
        gateway.restart(lab);
        eventually("it is there", || gateway.status());
        eventually("connections are split again", || {
            let before = split_connections(&pair.tokyo);
            let mut client = connect(&pair, SERVER[0]).ok()?;
            exchange(&mut client, &mut accept(&listener));
            (split_connections(&pair.tokyo) > before).then_some(())
        });
    }
}

#[test]
fn rules_follow_a_device_that_is_made_anew() {
    let pair = start([SPLIT, SPLIT]);
    let tokyo = pair.lab.host("tokyo").expect("a host");
    let mut delete = tokyo.command("ip");
    finish(delete.args(["link", "delete", "t-blue"]), b"").expect_code(0);
    eventually("nft finds the device by the index in the rules", || {
        let mut list = tokyo.command("nft");
        let rules = finish(list.args(["list", "table", "ip", "keiro-split-1"]), b"");
        rules.stdout.contains("device \"t-blue\"").then_some(())
    });
    let listener = listen(&pair, SERVER[0]);
    let mut client = connect(&pair, SERVER[0]).expect("connected");
    exchange(&mut client, &mut accept(&listener));
    assert_eq!(split_connections(&pair.tokyo), 1);
}

#[test]
fn classes_sort_packets_beside_split_connections() {
    let keys = format!("classes = \"auto\"\n{SPLIT}");
    let pair = start([&keys, &keys]);
    let listener = listen(&pair, SERVER[0]);
    let mut client = connect(&pair, SERVER[0]).expect("connected");
    exchange(&mut client, &mut accept(&listener));
    assert_eq!(split_connections(&pair.tokyo), 1);
    let host = pair.lab.host("client").expect("a host");
    let socket = host.run(|| UdpSocket::bind("10.1.0.5:0")).expect("entered");
    let socket = socket.expect("bound");
    socket.send_to(&[7; 100], "10.2.0.5:9").expect("sent");
    let sorted = eventually("both are sorted", || {
        let sorted = tenant(&pair.tokyo)["classes"]["sorted"].clone();
        let packets = sorted.as_array()?.iter();
        let packets = packets.map(|row| row["carried_packets"].as_u64().unwrap_or(0));
        (packets.sum::<u64>() >= 1).then_some(sorted)
    });
    println!("beside a split connection: {sorted}");
}
