//! Datagrams over lines that lose one packet in ten, with what is to make up for it.

use std::{
    collections::BTreeSet,
    net::UdpSocket,
    thread,
    time::{Duration, Instant},
};

use keiro_link::Loss;
use keiro_units::Probability;

use crate::{
    harness::LIMIT,
    links::{FAR, HOSTS, NEAR, address},
    pair::{Gateway, Pair, Setup},
};

const SENT: u32 = 2000;

/// Of what is sent, where nothing makes up for it.
const LINE_LOSES: f64 = 0.1;

/// Where datagrams enter at tokyo and leave at osaka.
const LISTENER_PORT: u16 = 7700;
const FORWARD: &str = "127.0.0.1:7701";

/// Sends datagrams from tokyo to osaka over both lines with `aggregation` in force: how many did not come, each
/// having come once at most.
fn lost_of_datagrams(aggregation: &str) -> (Pair, usize) {
    let listener = format!("{}:{LISTENER_PORT}", address(&NEAR, 0, 0));
    let app = |own: usize| {
        format!(
            "[aggregation]\ncontroller = \"none\"\n{aggregation}\n\
             [[app]]\nname = \"samples\"\nclass = \"datagram\"\npeer = \"{}\"\n",
            HOSTS[1 - own],
        )
    };
    let enter = format!("[[listener]]\napp = \"samples\"\nudp = \"{listener}\"\n");
    let leave =
        format!("[[forward]]\napp = \"samples\"\nudp = \"{FORWARD}\"\nallow_local = true\n");
    let pair = Pair::start(&Setup {
        more: [app(0) + &enter, app(1) + &leave],
        ..Setup::of(&[NEAR, FAR])
    });
    let bound = |host: &str, at: &str| {
        let host = pair.lab.host(host).expect("a host");
        let socket = host.run(|| UdpSocket::bind(at)).expect("its namespace");
        let socket = socket.expect("a socket");
        socket.set_read_timeout(Some(LIMIT)).expect("a limit");
        socket
    };
    let (from, to) = (bound("tokyo", "0.0.0.0:0"), bound("osaka", FORWARD));
    let mut buffer = [0; 128];
    let send = |number: u32| {
        let mut datagram = [7; 100];
        datagram[..4].copy_from_slice(&number.to_be_bytes());
        from.send_to(&datagram, &listener).expect("sent");
    };
    send(0);
    to.recv(&mut buffer).expect("the way is there");
    for link in [NEAR.name, FAR.name] {
        let loss = Loss::Bernoulli(Probability::new(LINE_LOSES).expect("a share"));
        let link = pair.lab.link(link).expect("a link");
        link.change(|config| config.loss = loss).expect("changed");
    }
    let reading = thread::spawn(move || {
        let mut come = BTreeSet::new();
        to.set_read_timeout(Some(Duration::from_secs(1)))
            .expect("a limit");
        while let Ok(length) = to.recv(&mut buffer) {
            assert_eq!(length, 100);
            let number = [buffer[0], buffer[1], buffer[2], buffer[3]];
            let is_first = come.insert(u32::from_be_bytes(number));
            assert!(is_first, "{number:?} came twice");
        }
        come.len()
    });
    let began = Instant::now();
    for number in 1..=SENT {
        let due = began + Duration::from_millis(1) * number;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        send(number);
    }
    let come = reading.join().expect("the reader ends");
    (pair, SENT as usize - come)
}

/// What a gateway counts at `pointer`, on both paths together: between lines that lose so much an application may move.
fn count(gateway: &Gateway, pointer: &str) -> f64 {
    let of = |link: &str| {
        let path = gateway.path(link);
        let value = path.pointer(pointer).and_then(serde_json::Value::as_f64);
        value.unwrap_or_else(|| panic!("no {pointer} in {path}"))
    };
    [NEAR.name, FAR.name].into_iter().map(of).sum()
}

#[test]
fn copies_on_other_paths_make_up_for_what_lines_lose() {
    let (pair, lost) = lost_of_datagrams("spread = \"paths\"");
    // One in a hundred is to be expected, 20 ± 4.5.
    assert!(lost <= 50, "{lost} of {SENT}");
    let of = |name: &str| count(&pair.tokyo, &format!("/aggregation/{name}"));
    let copies_lost = of("lost_copies") / of("sent_copies");
    assert!(
        (LINE_LOSES / 2.0..LINE_LOSES * 1.5).contains(&copies_lost),
        "{copies_lost}"
    );
    // Each path carries one of the two. A path that loses one packet in ten may be taken for dead for
    // a while, and what is sent meanwhile has one copy less; most of the run has both.
    for link in [NEAR.name, FAR.name] {
        let packets = |gateway: &Gateway, name: &str| {
            let count = &gateway.path(link)[name];
            count.as_u64().expect("a count") as f64
        };
        let sent = packets(&pair.tokyo, "sent_packets");
        let received = packets(&pair.osaka, "received_packets");
        assert!(sent >= f64::from(SENT) / 2.0, "{link}: {sent} sent");
        let lost = 1.0 - received / sent;
        assert!(
            (0.0..LINE_LOSES * 1.5).contains(&lost),
            "{link}: {received} of {sent}"
        );
    }
}

#[test]
fn parity_gives_back_what_the_line_loses() {
    let (pair, lost) = lost_of_datagrams("redundancy = \"fec\"");
    // With two packets for four, eight in a thousand are to be expected, 16 ± 4.
    assert!(lost <= 50, "{lost} of {SENT}");
    let recovered = count(&pair.osaka, "/recovered_aggregates");
    assert!(
        recovered >= f64::from(SENT) * LINE_LOSES / 2.0,
        "{recovered}"
    );
}
