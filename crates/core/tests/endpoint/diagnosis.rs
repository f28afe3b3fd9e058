//! Two gateways that do not come together: what each end can say about the cause, and that a stranger can make
//! it say little.

use std::time::Duration;

use keiro_core::{Event, Instant, KeyFault, PeerId, PresharedKey, Unanswered};

use crate::support::{Hello, Net, address, drain, endpoint, feed, key, mend_first_mac, peer};

const SECOND: Duration = Duration::from_secs(1);

fn wrong_keys(events: &[Event]) -> Vec<(Option<PeerId>, std::net::SocketAddr, KeyFault)> {
    let fault = |event: &Event| match event {
        Event::WrongKey {
            peer,
            remote,
            fault,
            ..
        } => Some((*peer, *remote, *fault)),
        _ => None,
    };
    events.iter().filter_map(fault).collect()
}

fn unanswered(net: &Net, side: usize) -> Option<Unanswered> {
    let session = net.ends[side].session(net.peers[side])?;
    session.paths.first()?.unanswered
}

#[test]
fn both_ends_name_a_wrong_public_key_once_a_minute() {
    // Gateway 1 has the key of gateway 3 where that of gateway 2 belongs.
    let peers = [peer(3, Some(address(2))), peer(1, Some(address(1)))];
    let mut net = Net::with_peers([endpoint(1), endpoint(2)], peers);
    assert!(!net.run(SECOND * 130, Net::is_up));
    let [first, second] = [0, 1].map(|side| wrong_keys(&net.events[side]));
    let theirs = KeyFault::NotOfPeer(key(2).public_key());
    assert_eq!(first, [(Some(net.peers[0]), address(2), theirs); 3]);
    let not_ours = KeyFault::NotOurs;
    assert_eq!(second, [(Some(net.peers[1]), address(1), not_ours); 3]);
    for side in 0..2 {
        let unanswered = unanswered(&net, side).expect("nothing is answered");
        assert!(unanswered.sent_packets >= 20, "{unanswered:?}");
        assert_eq!(unanswered.received_packets, 0, "{unanswered:?}");
        let session = net.ends[side].session(net.peers[side]).unwrap();
        let stats = session.paths[0].stats;
        // An initiation, and the headers of IP and UDP.
        assert_eq!(stats.sent_packets, unanswered.sent_packets);
        assert_eq!(stats.sent_bytes, stats.sent_packets * (164 + 28));
    }
}

#[test]
fn a_preshared_key_that_differs_is_named_by_the_end_that_is_answered() {
    let mut with_key = peer(2, Some(address(2)));
    with_key.preshared_key = PresharedKey::from_bytes([7; 32]);
    let peers = [with_key, peer(1, None)];
    let mut net = Net::with_peers([endpoint(1), endpoint(2)], peers);
    assert!(!net.run(SECOND * 130, Net::is_up));
    let named = (Some(net.peers[0]), address(2), KeyFault::Preshared);
    assert_eq!(wrong_keys(&net.events[0]), [named; 3]);
    // The other end hears, and its answers are not accepted.
    let heard = unanswered(&net, 1).expect("it has answered");
    assert!(heard.received_packets >= 20 && heard.sent_packets >= 20);
    assert_eq!(wrong_keys(&net.events[1]), []);
}

#[test]
fn each_end_of_a_one_way_firewall_knows_which_direction_is_lost() {
    let mut net = Net::new();
    net.is_blocked[1] = true;
    assert!(!net.run(SECOND * 30, Net::is_up));
    let (silent, heard) = (unanswered(&net, 0).unwrap(), unanswered(&net, 1).unwrap());
    println!("hears nothing: {silent:?}; is heard by no one: {heard:?}");
    assert!(silent.sent_packets >= 5 && silent.received_packets == 0);
    assert!(heard.sent_packets >= 5 && heard.received_packets >= 5);
    net.is_blocked[1] = false;
    assert!(net.run(SECOND * 10, Net::is_up));
    assert_eq!([0, 1].map(|side| unanswered(&net, side)), [None; 2]);
    assert!(net.deliver());
}

#[test]
fn strangers_get_one_report_a_minute_and_leave_no_state() {
    let mut end = endpoint(1);
    end.add_peer(Instant::ZERO, peer(2, Some(address(2))));
    drain(&mut end, Instant::ZERO);
    let (_, mut not_ours) = Hello::new(3, 1, 1).initiate();
    mend_first_mac(&mut not_ours, 9);
    let (_, foreign) = Hello::new(3, 1, 1).initiate();
    let mut reported = 0;
    for number in 0..6000_u16 {
        let now = Instant::ZERO + Duration::from_millis(10) * u32::from(number);
        let packet = match number % 2 {
            0 => &not_ours,
            _ => &foreign,
        };
        feed(&mut end, now, address(1000 + number), packet);
        // Its own initiations do not matter here.
        reported += wrong_keys(&drain(&mut end, now).events).len();
    }
    assert_eq!(reported, 1);
}

#[test]
fn forged_packets_hide_no_mistake_of_a_configured_address() {
    let mut end = endpoint(1);
    // Two gateways behind one NAT, and one at an address of its own.
    let alone = end.add_peer(Instant::ZERO, peer(2, Some(address(2))));
    for number in [5, 6] {
        end.add_peer(Instant::ZERO, peer(number, Some(address(4))));
    }
    for other in 20..52 {
        end.add_peer(Instant::ZERO, peer(other, Some(address(other.into()))));
    }
    drain(&mut end, Instant::ZERO);
    // Anyone can make these without knowing a key, from any address.
    let (_, mut forged) = Hello::new(3, 1, 1).initiate();
    mend_first_mac(&mut forged, 9);
    // What both configured addresses send: the keys of other gateways than configured.
    let theirs = [7, 8].map(|number| Hello::new(number, 1, 1).initiate().1);
    let mut reported = Vec::new();
    for tick in 0..5_950_u16 {
        let now = Instant::ZERO + Duration::from_millis(10) * u32::from(tick);
        for remote in [address(1000 + tick), address(2), address(4)] {
            feed(&mut end, now, remote, &forged);
        }
        // The addresses of many others are forged as often.
        for other in 20..52 {
            feed(&mut end, now, address(other), &theirs[0]);
        }
        if tick % 500 == 499 {
            feed(&mut end, now, address(2), &theirs[0]);
            feed(&mut end, now, address(4), &theirs[1]);
        }
        reported.extend(wrong_keys(&drain(&mut end, now).events));
    }
    let others: Vec<_> = (20..52).map(address).collect();
    reported.retain(|(_, remote, _)| !others.contains(remote));
    let mut faults: Vec<_> = reported
        .iter()
        .map(|(peer, remote, fault)| match *remote == address(1000) {
            true => (*peer, "a stranger", *fault),
            false if *remote == address(2) => (*peer, "alone", *fault),
            false => (*peer, "shared", *fault),
        })
        .collect();
    faults.sort_by_key(|(peer, place, fault)| (*place, *peer, format!("{fault:?}")));
    let theirs = [7, 8].map(|number| KeyFault::NotOfPeer(key(number).public_key()));
    let expected = [
        (None, "a stranger", KeyFault::NotOurs),
        (Some(alone), "alone", theirs[0]),
        (Some(alone), "alone", KeyFault::NotOurs),
        (None, "shared", theirs[1]),
        (None, "shared", KeyFault::NotOurs),
    ];
    assert_eq!(faults, expected);
}

#[test]
fn no_key_fault_is_reported_for_a_peer_that_is_up() {
    let mut net = Net::new();
    assert!(net.run(SECOND * 5, Net::is_up));
    let (_, mut not_ours) = Hello::new(3, 1, 1).initiate();
    mend_first_mac(&mut not_ours, 9);
    let (_, foreign) = Hello::new(3, 1, 1).initiate();
    for _ in 0..20 {
        net.run(SECOND / 5, |_| false);
        for packet in [&not_ours, &foreign] {
            feed(&mut net.ends[0], net.now, address(2), packet);
        }
    }
    net.drain();
    assert_eq!(wrong_keys(&net.events[0]), []);
    assert!(net.is_up() && net.deliver());
}
