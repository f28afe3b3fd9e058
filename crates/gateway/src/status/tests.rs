//! What becomes of events: reasons, limits and sentences.

use super::*;

#[test]
fn duplicate_key_is_shown_as_long_as_the_other_gateway_tries() {
    let seen_at = Instant::ZERO + Duration::from_secs(5);
    let duplicate = DuplicateKey {
        served: SocketAddr::from(([198, 51, 100, 1], 7600)),
        other: SocketAddr::from(([203, 0, 113, 9], 7610)),
        seen_at,
    };
    let shown = duplicate_key(seen_at + Duration::from_secs(59), Some(duplicate));
    let expected = "two gateways use its key: 198.51.100.1:7600 is served, 203.0.113.9:7610 is not";
    assert_eq!(shown.as_deref(), Some(expected));
    let later = seen_at + Duration::from_secs(60);
    assert_eq!(duplicate_key(later, Some(duplicate)), None);
    assert_eq!(duplicate_key(seen_at, None), None);
}

#[test]
fn unanswered_handshakes_are_warned_of_after_a_while_and_at_doubling_counts() {
    let mut table = StatusTable::default();
    table.apply_config(Instant::ZERO, &["osaka".into()], &[], &[]);
    let peer = table.peers.get_mut("osaka").unwrap();
    let warned: Vec<u32> = (1..=40)
        .filter(|attempts| {
            let at = Instant::ZERO + Duration::from_millis(500) * *attempts;
            peer.warns_of_unanswered(at, *attempts)
        })
        .collect();
    assert_eq!(warned, [10, 20, 40]);
}

#[test]
fn an_mtu_is_reported_only_when_it_differs_from_the_reported_one() {
    let mut table = StatusTable::default();
    let path = PeerPath::new(PeerId(1), PathId(0));
    table.apply_config(Instant::ZERO, &["osaka".into()], &[path], &[]);
    let on = || PathRef {
        path: "wan0".into(),
        peer: "osaka".into(),
    };
    let mut reported = |mtu| match table.on_mtu(path, on(), mtu) {
        Some(EventKind::MtuChanged {
            from_bytes,
            to_bytes,
            ..
        }) => Some((from_bytes, to_bytes)),
        _ => None,
    };
    assert_eq!(reported(1500), Some((1280, 1500)));
    assert_eq!(reported(1500), None);
    assert_eq!(reported(1400), Some((1500, 1400)));
    assert_eq!(reported(1400), None);
}

#[test]
fn version_mismatch_is_why_a_peer_is_down_while_it_is_reported() {
    let mut table = StatusTable::default();
    let start = Instant::ZERO;
    table.apply_config(start, &["osaka".into()], &[], &[]);
    let why = |table: &StatusTable| table.peer("osaka").unwrap().why.clone();
    let remote = SocketAddr::from(([198, 51, 100, 1], 7600));
    let (theirs, ours) = (Versions::only(2), Versions::only(1));
    let kind = table.on_version_mismatch(start, Some("osaka".into()), remote, theirs, ours);
    assert_eq!(kind.name(), "version_mismatch");
    let mismatch = "version_mismatch: peer speaks 2, we speak 1";
    assert_eq!(why(&table), mismatch);
    // The handshakes that go unanswered because of it do not hide it.
    table.on_unanswered(start + Duration::from_secs(60), "osaka", 12, &[remote]);
    assert_eq!(why(&table), mismatch);
    // It is not reported any more: the peer may have been downgraded and be silent.
    table.on_unanswered(start + Duration::from_secs(180), "osaka", 40, &[remote]);
    assert_eq!(why(&table), "40 handshakes without an answer");
    let up_at = start + Duration::from_secs(200);
    table.on_peer_up(&RunningConfig::default(), up_at, PeerId(1), "osaka".into());
    table.on_version_mismatch(start, Some("osaka".into()), remote, theirs, ours);
    assert_eq!(why(&table), "session keys are agreed");
}

#[test]
fn a_peer_that_moves_all_the_time_is_reported_five_times_in_ten_seconds() {
    let mut moves = MoveReports::default();
    let at = |number: u32| Instant::ZERO + Duration::from_millis(5) * number;
    let reported = (0..4000).filter(|number| moves.admit(at(*number)));
    assert_eq!(reported.count(), 10);
}
