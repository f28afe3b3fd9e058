//! Intervals, jitter, detection times and Poll Sequences.

use std::time::Duration;

use keiro_bfd::{Change, Config, Diagnostic, State};
use keiro_units::Instant;

use crate::{ID, Router, encoder::Raw, ms};

/// The times between packets that were sent, in the order of sending.
fn gaps(sent: &[(Instant, Raw)]) -> Vec<Duration> {
    sent.windows(2).map(|two| two[1].0 - two[0].0).collect()
}

/// Sends what keeps the session up until a time, and gives what the router sent.
fn keep_up(
    router: &mut Router,
    packet: &Raw,
    every: Duration,
    time: Duration,
) -> Vec<(Instant, Raw)> {
    let end = router.now + time;
    let mut all = Vec::new();
    while router.now < end {
        router.receive(packet).unwrap();
        all.extend(router.run(router.now + every));
    }
    all
}

#[test]
fn packets_are_sent_slowly_until_the_session_is_up() {
    let mut router = Router::new();
    let sent = router.run(router.now + ms(60_000));
    assert!(
        sent.iter()
            .all(|(_, it)| (it.min_tx, it.min_rx) == (1_000_000, 50_000))
    );
    let gaps = gaps(&sent);
    assert!(gaps.len() > 50);
    assert!(
        gaps.iter().all(|gap| (ms(750)..=ms(1000)).contains(gap)),
        "{gaps:?}"
    );
}

#[test]
fn an_established_session_uses_the_slower_of_both_intervals_with_jitter() {
    for (theirs_us, expected) in [(10_000, ms(50)), (50_000, ms(50)), (300_000, ms(300))] {
        let mut router = Router::new();
        let packet = router.bring_up(theirs_us);
        let status = router.status();
        assert_eq!(status.state, State::Up);
        assert_eq!(status.send_interval, Some(expected));
        assert_eq!(status.detection_time, Some(expected * 3));
        let sent = keep_up(&mut router, &packet, ms(10), ms(30_000));
        assert!(
            sent.iter()
                .all(|(_, it)| it.poll == 0 && it.min_tx == 50_000)
        );
        let gaps = gaps(&sent);
        let range = expected * 3 / 4..=expected;
        assert!(gaps.iter().all(|gap| range.contains(gap)), "{gaps:?}");
        // Both halves of the range are used.
        assert!(gaps.iter().any(|gap| *gap < expected * 8 / 10));
        assert!(gaps.iter().any(|gap| *gap > expected * 95 / 100));
    }
}

#[test]
fn with_a_multiplier_of_one_no_gap_is_longer_than_nine_tenths() {
    let mut router = Router::with(Config {
        interval: ms(50),
        multiplier: 1,
    });
    let packet = router.bring_up(50_000);
    let sent = keep_up(&mut router, &packet, ms(10), ms(20_000));
    let gaps = gaps(&sent);
    let range = ms(50) * 3 / 4..=ms(45);
    assert!(gaps.iter().all(|gap| range.contains(gap)), "{gaps:?}");
}

#[test]
fn the_detection_time_has_the_neighbours_multiplier_and_the_slower_interval() {
    for (min_tx, multiplier, expected) in [
        (50_000, 3, ms(150)),
        (20_000, 5, ms(250)),
        (200_000, 2, ms(400)),
        (1, 1, ms(50)),
    ] {
        let mut router = Router::new();
        let packet = router.bring_up(50_000);
        let packet = Raw {
            min_tx,
            multiplier,
            independent: 1,
            ..packet
        };
        router.now += ms(7);
        router.receive(&packet).unwrap();
        let heard = router.now;
        router.run(heard + expected - Duration::from_nanos(1));
        assert_eq!(router.events(), []);
        router.run(heard + expected);
        let [event] = router.events()[..] else {
            panic!("one event");
        };
        let Change::Down(failure) = event.change else {
            panic!("{event:?}");
        };
        assert_eq!(failure.diagnostic, Diagnostic::DetectionTimeExpired);
        assert_eq!(failure.detection_time, expected);
        assert!(failure.control_plane_independent);
        let status = router.status();
        assert_eq!((status.state, status.failures), (State::Down, 1));
        assert_eq!(status.remote_discriminator, 0, "it may have restarted");
        assert_eq!(status.send_interval, Some(ms(1000)));
    }
}

#[test]
fn a_packet_that_waits_counts_although_the_caller_is_late() {
    let mut router = Router::new();
    let packet = router.bring_up(50_000);
    router.now += ms(5000);
    router.receive(&packet).unwrap();
    router.sent();
    assert_eq!(router.status().state, State::Up);
}

#[test]
fn a_neighbour_that_changes_its_state_all_the_time_is_not_answered_as_often() {
    let mut router = Router::new();
    let packet = router.bring_up(50_000);
    let mut sent = 0;
    let end = router.now + ms(1000);
    while router.now < end {
        for state in [crate::encoder::DOWN, crate::encoder::INIT] {
            router.receive(&Raw { state, ..packet }).unwrap();
            sent += router.sent().len();
        }
        router.now += Duration::from_micros(500);
    }
    assert!((50..=150).contains(&sent), "{sent}");
}

#[test]
fn a_poll_goes_on_until_it_is_answered() {
    let mut router = Router::new();
    let packet = Raw {
        state: crate::encoder::INIT,
        your: router.number(),
        min_tx: 50_000,
        min_rx: 50_000,
        ..Raw::down()
    };
    router.receive(&packet).unwrap();
    let up = Raw {
        state: crate::encoder::UP,
        ..packet
    };
    let sent = keep_up(&mut router, &up, ms(10), ms(1000));
    assert!(
        sent.len() > 15,
        "quick at once: the interval became shorter"
    );
    assert!(
        sent.iter()
            .skip(1)
            .all(|(_, it)| it.poll == 1 && it.last == 0)
    );
    router.receive(&Raw { last: 1, ..up }).unwrap();
    let sent = keep_up(&mut router, &up, ms(10), ms(1000));
    assert!(sent.iter().all(|(_, it)| it.poll == 0));
}

#[test]
fn a_slower_interval_waits_for_the_neighbour_and_a_faster_one_does_not() {
    let mut router = Router::new();
    let packet = router.bring_up(10_000);
    let config = |interval| Config {
        interval,
        multiplier: 3,
    };
    router.sessions.reconfigure(router.now, ID, config(ms(200)));
    let [sent] = router.sent()[..] else {
        panic!("one packet");
    };
    assert_eq!((sent.poll, sent.min_tx, sent.min_rx), (1, 200_000, 200_000));
    assert_eq!(router.status().send_interval, Some(ms(50)));
    assert_eq!(
        router.status().detection_time,
        Some(ms(600)),
        "slower at once"
    );
    router.receive(&Raw { last: 1, ..packet }).unwrap();
    assert_eq!(router.status().send_interval, Some(ms(200)));

    router.sessions.reconfigure(router.now, ID, config(ms(20)));
    assert_eq!(
        router.status().send_interval,
        Some(ms(20)),
        "faster at once"
    );
    assert_eq!(router.status().detection_time, Some(ms(600)));
    // A change during a Poll Sequence needs another one.
    router.sessions.reconfigure(router.now, ID, config(ms(30)));
    router.receive(&Raw { last: 1, ..packet }).unwrap();
    assert_eq!(router.status().detection_time, Some(ms(600)));
    let sent = router.run(router.now + ms(10));
    assert!(
        sent.iter()
            .map(|(_, it)| it)
            .all(|it| it.poll == 1 && it.min_tx == 30_000),
        "{sent:?}"
    );
    assert!(!sent.is_empty());
    router.receive(&Raw { last: 1, ..packet }).unwrap();
    assert_eq!(router.status().detection_time, Some(ms(90)));
    assert_eq!(router.status().send_interval, Some(ms(30)));
    router.sessions.check_invariants();
}

#[test]
fn a_shorter_interval_of_the_neighbour_is_honoured_at_once() {
    let mut router = Router::new();
    let packet = router.bring_up(2_000_000);
    router.run(router.now + ms(300));
    let quick = Raw {
        min_rx: 50_000,
        ..packet
    };
    router.receive(&quick).unwrap();
    let sent = router.sent();
    assert_eq!(sent.len(), 1, "the last one was sent long ago");
    let sent = router.run(router.now + ms(50));
    assert_eq!(sent.len(), 1);
}

#[test]
fn a_neighbour_that_wants_no_packets_gets_none_but_what_changes() {
    for quiet in [
        Raw {
            min_rx: 0,
            ..Raw::down()
        },
        Raw {
            demand: 1,
            ..Raw::down()
        },
    ] {
        let mut router = Router::new();
        let up = router.bring_up(50_000);
        let quiet = Raw {
            min_rx: quiet.min_rx.min(up.min_rx),
            demand: quiet.demand,
            ..up
        };
        let sent = keep_up(&mut router, &quiet, ms(10), ms(2000));
        assert_eq!(sent, [], "{quiet:?}");
        assert_eq!(router.status().send_interval, None);
        router.receive(&Raw { poll: 1, ..quiet }).unwrap();
        assert_eq!(router.sent().len(), 1, "a poll is answered");
        let down = router.run(router.now + ms(150));
        assert_eq!(down[0].1.state, crate::encoder::DOWN);
    }
}
