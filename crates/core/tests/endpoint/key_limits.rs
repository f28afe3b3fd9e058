//! How long and for how many packets a key is used, and what happens when there is no other.

use std::time::Duration;

use keiro_core::{
    AppId, Cipher, Endpoint, EndpointConfig, Event, Instant, PathDownReason, PathState,
    TimingConfig,
};

use crate::support::{MESSAGES, Net, Victim, address, feed, key};

const SECOND: Duration = Duration::from_secs(1);
const DATA: u8 = 4;

fn end(number: u8, timing: TimingConfig, cipher: Cipher) -> Endpoint {
    let mut config = EndpointConfig::new(key(number));
    config.timing = timing;
    config.cipher = cipher;
    Endpoint::new(Instant::ZERO, config, [number; 32])
}

fn connected(timing: TimingConfig, cipher: Cipher) -> Net {
    let mut net = Net::with([1, 2].map(|number| end(number, timing, cipher)));
    assert!(net.run(5 * SECOND, Net::is_up));
    net
}

/// Data packets that were sent so far.
fn data_packets(net: &Net) -> usize {
    net.seen
        .iter()
        .filter(|(_, packet)| packet[0] == DATA)
        .count()
}

fn path_state(net: &Net, side: usize) -> PathState {
    net.ends[side].paths(net.peers[side])[0].state
}

fn down_reasons(net: &Net, side: usize) -> Vec<PathDownReason> {
    let reason = |event: &Event| match event {
        Event::PathDown { reason, .. } => Some(*reason),
        _ => None,
    };
    net.events[side].iter().filter_map(reason).collect()
}

#[test]
fn no_key_is_used_after_180_seconds_when_handshakes_do_not_get_through() {
    let mut net = connected(TimingConfig::default(), Cipher::Aes256Gcm);
    let since = net.ends[0].session(net.peers[0]).unwrap().key_since;
    net.loses_handshakes = true;
    let end = since.expect("keys") + 180 * SECOND;
    let left = end - net.now;
    net.run(left - SECOND, |_| false);
    assert!(net.is_up(), "it is used until then");
    assert!(net.deliver());
    net.run(end - net.now, |_| false);
    net.seen.clear();
    // What waits when the keys end is kept for later.
    for side in 0..2 {
        let (now, app) = (net.now, AppId::of_name(MESSAGES));
        let body = b"kept".to_vec();
        let sent = net.ends[side].send_message(now, now, net.peers[side], app, body);
        sent.expect("room");
    }
    net.run(24 * 3600 * SECOND, |_| false);
    assert_eq!(data_packets(&net), 0, "after the end of the only key");
    assert!(net.seen.len() > 1_000, "handshakes are tried all the time");
    for side in 0..2 {
        assert_eq!(down_reasons(&net, side), [PathDownReason::KeysExpired]);
        assert!(net.events[side].iter().any(|event| matches!(
            event,
            Event::PeerDown {
                closed_by_peer: false,
                ..
            }
        )));
        assert_eq!(path_state(&net, side), PathState::Down);
        let session = net.ends[side].session(net.peers[side]).unwrap();
        assert_eq!(session.key_since, None, "the keys are erased");
    }
    // A handshake gets through: everything goes on where it was.
    net.loses_handshakes = false;
    assert!(net.run(10 * SECOND, |net| {
        (0..2).all(|side| net.received[side].contains(&b"kept".to_vec()))
    }));
    assert!(net.deliver());
}

#[test]
fn keys_of_a_silent_peer_are_erased() {
    let mut victim = Victim::new();
    let session = |victim: &Victim| victim.end.session(victim.peer).unwrap();
    assert!(session(&victim).key_since.is_some());
    let packet = victim.raw.packet(&[1]);
    // It says nothing any more, and nothing is sent to it but handshakes and challenges.
    let end = session(&victim).key_since.unwrap() + 180 * SECOND;
    while let Some(at) = victim.end.poll_timeout().filter(|at| *at < end) {
        victim.now = at.max(victim.now + Duration::from_micros(1));
        victim.hear();
    }
    assert!(session(&victim).key_since.is_some(), "until then");
    victim.now = end;
    victim.hear();
    assert_eq!(session(&victim).key_since, None);
    // A packet of before opens nothing, not even once.
    feed(&mut victim.end, victim.now, address(2), &packet);
    assert_eq!(victim.drops(), [("unknown_index", 1)]);
    assert_eq!(session(&victim).stats.paths_up, 0);
}

/// Even if the timer has not run yet.
#[test]
fn late_driver_accepts_and_sends_nothing_under_an_old_key() {
    let mut victim = Victim::new();
    let packet = victim.raw.packet(&[1]);
    victim.now += 180 * SECOND;
    feed(&mut victim.end, victim.now, address(2), &packet);
    assert_eq!(victim.drops(), [("unknown_index", 1)]);
    let mut buf = keiro_core::TransmitBuf::new(10);
    let sent = victim.end.poll_transmit(victim.now, &mut buf);
    assert!(sent.is_none());
}

#[test]
fn key_is_changed_by_its_packets_and_used_for_no_more_than_allowed() {
    let timing = TimingConfig {
        rekey_after_packets: 200,
        reject_after_packets: 400,
        ..TimingConfig::default()
    };
    for cipher in [Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305] {
        // Handshakes get through: the keys change long before the limit.
        let mut net = connected(timing, cipher);
        for _ in 0..600 {
            assert!(net.deliver());
        }
        let changes = |net: &Net, side: usize| {
            let events = net.events[side].iter();
            events
                .filter(|event| matches!(event, Event::KeyChanged { .. }))
                .count()
        };
        assert!(changes(&net, 0) >= 3 && changes(&net, 1) >= 3);
        assert_eq!(down_reasons(&net, 0), []);

        // They do not: not one packet more than allowed.
        let mut net = connected(timing, cipher);
        net.loses_handshakes = true;
        let send = |net: &mut Net| {
            let (now, app) = (net.now, AppId::of_name(MESSAGES));
            let sent = net.ends[0].send_message(now, now, net.peers[0], app, vec![7; 100]);
            sent.expect("room");
        };
        for _ in 0..1_000 {
            send(&mut net);
            net.run(Duration::from_millis(5), |_| false);
        }
        let sealed = |side: usize| {
            let packets = net.seen.iter();
            packets
                .filter(|(from, packet)| *from == side && packet[0] == DATA)
                .count()
        };
        assert!((300..=400).contains(&sealed(0)), "{}", sealed(0));
        assert!(sealed(1) <= 400, "{}", sealed(1));
        assert_eq!(down_reasons(&net, 0), [PathDownReason::KeysExpired]);
        // Nothing is lost: what waited arrives under the next key.
        net.loses_handshakes = false;
        let all = |net: &Net| net.received[1].len() == 1_000;
        assert!(net.run(60 * SECOND, all), "{}", net.received[1].len());
    }
}

#[test]
fn forged_packets_retire_a_key() {
    let timing = TimingConfig {
        reject_after_forged: 100,
        ..TimingConfig::default()
    };
    let mut victim = Victim::with(end(1, timing, Cipher::Aes256Gcm));
    let mut forged = victim.raw.packet(&[1]);
    *forged.last_mut().expect("a tag") ^= 1;
    for _ in 0..99 {
        victim.give(&forged);
    }
    assert!(victim.end.is_up(victim.peer));
    victim.assert_alive();
    // Half of them ask for new keys.
    let handshake = victim.end.poll_timeout().expect("a handshake is due");
    assert!(handshake <= victim.now + SECOND);
    victim.give(&forged);
    victim.hear();
    assert!(!victim.end.is_up(victim.peer));
    let packet = victim.raw.packet(&[1]);
    let before = victim.drops();
    victim.give(&packet);
    assert_ne!(victim.drops(), before, "it opens nothing any more");
}

#[test]
fn key_ages_match_wireguard() {
    let timing = TimingConfig::default();
    assert_eq!(timing.rekey_after, 120 * SECOND);
    assert_eq!(timing.reject_after, 180 * SECOND);
}
