//! What is counted against what the interface itself counts, with real packets between two network
//! namespaces. Without root they are left out, and say so.

mod support;

use std::{
    collections::BTreeMap,
    net::{Ipv6Addr, SocketAddr},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use keiro_flowstats::{Attached, Counter, CounterError, Tracker, record::Kind};

use support::{OVER_SEGMENT, PATIENCE, PLAIN, Pair, SID, is_root, wait_until};

fn update(counter: &mut Counter, tracker: &mut Tracker) {
    counter
        .read(|key, counts| {
            tracker.update(key, counts);
        })
        .unwrap();
}

fn totals(tracker: &Tracker) -> (u64, u64) {
    let all = tracker.totals().values();
    all.fold((0, 0), |(bytes, packets), t| {
        (bytes + t.bytes, packets + t.packets)
    })
}

#[test]
fn totals_are_the_interfaces_to_the_byte_and_flows_are_distinguished() {
    if !is_root("totals_are_the_interfaces_to_the_byte_and_flows_are_distinguished") {
        return;
    }
    for mode in ["encap", "encap.red"] {
        let pair = Pair::new();
        pair.bring_up(mode);
        let (mut counter, base) = pair.counter();
        assert_eq!(*counter.attached(), Attached::WithTokens);
        let plain = pair.stream(PLAIN, 3_000_000);
        let over = pair.stream(OVER_SEGMENT, 5_000_000);
        pair.datagrams(PLAIN, 30, 1000);
        pair.datagrams(OVER_SEGMENT, 50, 1000);
        // Larger than the link: fragments.
        pair.datagrams(OVER_SEGMENT, 5, 4000);

        let mut tracker = Tracker::default();
        let deadline = Instant::now() + PATIENCE;
        loop {
            update(&mut counter, &mut tracker);
            let (counted, sent) = (totals(&tracker), pair.sent());
            let sent = (sent.0 - base.0, sent.1 - base.1);
            if counted == sent && sent.0 > 8_000_000 {
                println!("{mode}: {} bytes, {} packets", sent.0, sent.1);
                break;
            }
            assert!(
                Instant::now() < deadline,
                "{mode}: counted {counted:?}, the interface {sent:?}"
            );
            thread::sleep(Duration::from_millis(5));
        }
        check_flows(&mut counter, mode, plain, over);
    }
}

fn check_flows(counter: &mut Counter, mode: &str, plain: SocketAddr, over: SocketAddr) {
    let mut flows = BTreeMap::new();
    counter
        .read(|key, counts| {
            flows.insert(key, counts);
        })
        .unwrap();
    let sid: Ipv6Addr = SID.parse().unwrap();
    let of = |address: SocketAddr| {
        let mut found = flows
            .iter()
            .filter(|(key, _)| key.source() == Some(address));
        let flow = found
            .next()
            .unwrap_or_else(|| panic!("{mode}: no flow of {address}"));
        assert_eq!(found.next(), None, "{mode}");
        flow
    };
    let (key, counts) = of(plain);
    assert_eq!((key.sid(), key.protocol()), (None, 6), "{mode}");
    assert!(
        counts.bytes > 3_000_000 && counts.cookie.is_some(),
        "{mode}: {counts:?}"
    );
    let (key, counts) = of(over);
    assert_eq!((key.sid(), key.protocol()), (Some(sid), 6), "{mode}");
    let tcp = counts.tcp.expect("it is TCP of this host");
    assert!(
        counts.bytes > 5_000_000 && tcp.rtt > Duration::ZERO,
        "{mode}: {counts:?}"
    );
    assert!(
        tcp.segments > 3000 && tcp.delivery_bits_per_second.is_some(),
        "{mode}: {tcp:?}"
    );
    let mut fragments = flows.keys().filter(|key| key.kind() == Kind::Fragments);
    assert_eq!(
        fragments.next().map(|key| key.sid()),
        Some(Some(sid)),
        "{mode}"
    );
}

#[test]
fn a_forgotten_flow_is_given_its_last_counts_and_begins_anew() {
    if !is_root("a_forgotten_flow_is_given_its_last_counts_and_begins_anew") {
        return;
    }
    let pair = Pair::new();
    pair.bring_up("encap.red");
    let (mut counter, _) = pair.counter();
    let address = pair.stream(OVER_SEGMENT, 100_000);
    let mut tracker = Tracker::default();
    update(&mut counter, &mut tracker);
    let mut keys = tracker.idle(u64::MAX, Duration::ZERO).into_iter();
    let key = keys.find(|key| key.source() == Some(address)).unwrap();
    let last = counter.forget(&key).unwrap().expect("it is there");
    tracker.forget(key, Some(last));
    assert_eq!(counter.forget(&key).unwrap(), None);
    let before = totals(&tracker);
    pair.stream(OVER_SEGMENT, 1000);
    update(&mut counter, &mut tracker);
    assert!(totals(&tracker).0 > before.0);
}

/// Figures are looked up once in a while; a connection that is over sooner has those of its last packet.
#[test]
fn a_short_connections_figures_are_whole() {
    if !is_root("a_short_connections_figures_are_whole") {
        return;
    }
    let pair = Pair::new();
    pair.bring_up("encap.red");
    let (mut counter, _) = pair.counter();
    let address = pair.stream(OVER_SEGMENT, 100_000);
    wait_until("the figures are of all packets", || {
        let mut whole = false;
        let read = counter.read(|key, counts| {
            if key.source() == Some(address) {
                let tcp = counts.tcp.expect("it is TCP of this host");
                // The last acknowledgement may come when the socket is gone.
                whole = counts.packets > 60 && u64::from(tcp.segments) + 2 >= counts.packets;
            }
        });
        read.unwrap();
        whole
    });
}

#[test]
fn nothing_stays_attached_and_an_unknown_interface_is_reported() {
    if !is_root("nothing_stays_attached_and_an_unknown_interface_is_reported") {
        return;
    }
    let pair = Pair::new();
    let error = pair
        .server
        .run(|| Counter::attach("keiro-none"))
        .unwrap()
        .unwrap_err();
    assert!(matches!(error, CounterError::Interface { .. }), "{error}");
    pair.bring_up("encap.red");
    for _ in 0..3 {
        drop(pair.counter());
    }
    let (mut counter, _) = pair.counter();
    pair.datagrams(PLAIN, 1, 100);
    // The first packet waits for the neighbour's address.
    wait_until("the packet is counted", || {
        let mut found = false;
        let read = counter.read(|key, counts| {
            if key.protocol() == 17 {
                assert_eq!((counts.packets, counts.bytes), (1, 162), "counted once");
                found = true;
            }
        });
        read.unwrap();
        found
    });
}

/// The object that is loaded is the one that its source gives: `make -C crates/flowstats/bpf`.
#[test]
fn the_object_is_of_this_source() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/bpf");
    let status = Command::new("sha256sum")
        .args(["--check", "--quiet", "flowstats.bpf.sha256"])
        .current_dir(directory)
        .status();
    assert!(
        status.expect("sha256sum runs").success(),
        "the source was changed without `make bpf`"
    );
}
