//! Validation of addresses, with the clock and the answers in the test's hands.

use rand_chacha::rand_core::SeedableRng;

use super::*;
use crate::config::TimingConfig;

const MS: Duration = Duration::from_millis(1);
const SIZES_AGAIN: Duration = Duration::from_secs(60);
/// Challenged every 30 ms, ten times before it is called unreachable.
const RTT: Duration = Duration::from_millis(10);

fn at(ms: u32) -> Instant {
    Instant::ZERO + MS * ms
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

/// A path, and what it is polled with.
struct Path {
    validation: Validation,
    rtt: Duration,
    random: ChaCha20Rng,
    timing: TimingConfig,
}

impl Path {
    fn new(remote: Option<SocketAddr>) -> Self {
        Self {
            validation: Validation::new(remote),
            rtt: RTT,
            random: ChaCha20Rng::seed_from_u64(7),
            timing: TimingConfig::default(),
        }
    }

    /// A path to port 1 that has answered its first challenge.
    fn up() -> Self {
        let mut path = Self::new(Some(address(1)));
        let challenge = path.challenge(at(0)).expect("challenged at once");
        assert_eq!(challenge.remote, address(1));
        let validated = path.validation.on_response(at(10), challenge.token, at(10));
        let expected = Validated {
            rtt: MS * 10,
            remote: address(1),
            moved_from: None,
            came_up: true,
            size: Some(MTU_BASE),
        };
        assert_eq!(validated, Some(expected));
        assert!(path.validation.is_up());
        assert_eq!(path.validation.challenge_at(), None);
        path
    }

    fn challenge(&mut self, now: Instant) -> Option<PathChallenge> {
        self.sized(now).map(|sized| sized.challenge)
    }

    fn sized(&mut self, now: Instant) -> Option<SizedChallenge> {
        let (random, probe_down) = (&mut self.random, self.timing.probe_down);
        let challenge = self
            .validation
            .poll_challenge(now, self.rtt, random, probe_down);
        self.validation.check_invariants();
        challenge
    }

    /// Sends the next challenge when it is due.
    fn challenge_when_due(&mut self) -> (Instant, PathChallenge) {
        let due = self.validation.challenge_at().expect("a challenge is due");
        let challenge = self.challenge(due).expect("it is due");
        (due, challenge)
    }

    /// Sends challenges until the path is called unreachable: how many, and whether that is news.
    fn until_unreachable(&mut self) -> (u32, bool) {
        for count in 1..100 {
            let (due, _) = self.challenge_when_due();
            if let Some(is_news) = self
                .validation
                .check_unreachable(due, self.rtt, SIZES_AGAIN)
            {
                assert_eq!(self.validation.state(), PathState::Down);
                return (count, is_news);
            }
        }
        panic!("it is never called unreachable");
    }
}

#[test]
fn challenges_are_a_round_trip_and_20_ms_apart_and_rare_once_the_path_is_unreachable() {
    let mut path = Path::new(Some(address(1)));
    assert_eq!(path.validation.state(), PathState::Validating);
    path.validation.restart(at(0));
    for number in 0..11 {
        let (due, _) = path.challenge_when_due();
        assert_eq!(due, at(number * 30), "challenge {number}");
        assert_eq!(path.challenge(due + MS * 29), None, "not due yet");
    }
    let (due, _) = path.challenge_when_due();
    assert_eq!(due, at(300 + 500), "every `probe_down` from here on");
}

#[test]
fn path_that_never_answered_is_challenged_ever_more_rarely_once_it_is_abandoned() {
    let mut path = Path::new(Some(address(1)));
    path.validation.restart(at(0));
    assert!(!path.validation.abandon(), "it is not down yet");
    path.until_unreachable();
    assert!(path.validation.abandon());
    assert!(!path.validation.abandon(), "it is already");
    let times: Vec<Instant> = (0..10).map(|_| path.challenge_when_due().0).collect();
    let waits = times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs());
    let expected = [2, 4, 8, 16, 32, 64, 128, 256, 300];
    assert_eq!(waits.collect::<Vec<_>>(), expected);
    let now = *times.last().expect("ten");
    assert!(path.validation.resume(now));
    assert_eq!(path.validation.challenge_at(), Some(now));
    assert!(!path.validation.resume(now) && !path.validation.is_abandoned());
    // One that has answered before has a fault.
    let mut path = Path::up();
    path.validation.on_silent(at(1000));
    assert!(!path.validation.abandon());
}

#[test]
fn challenges_are_never_further_apart_than_on_a_path_that_is_down() {
    let mut path = Path::new(Some(address(1)));
    path.rtt = Duration::from_secs(3);
    path.challenge(at(0)).expect("it is due");
    assert_eq!(path.validation.challenge_at(), Some(at(500)));
}

#[test]
fn near_path_is_challenged_for_300_ms_and_a_far_one_three_times_before_it_is_unreachable() {
    for (rtt_us, challenges) in [
        (10_000, 10),
        (130_000, 3),
        (80_000, 3),
        (79_000, 4),
        (39_900, 6),
        (40_000, 5),
        (200_000, 3),
    ] {
        let mut path = Path::new(Some(address(1)));
        path.rtt = Duration::from_micros(rtt_us);
        // The last of them has to stay unanswered, too.
        let expected = (challenges + 1, true);
        assert_eq!(path.until_unreachable(), expected, "{rtt_us} µs");
        assert_eq!(
            path.validation
                .check_unreachable(at(5000), path.rtt, SIZES_AGAIN),
            None
        );
    }
}

#[test]
fn unreachable_path_is_news_once_until_it_was_up_again() {
    let mut path = Path::new(Some(address(1)));
    assert_eq!(path.until_unreachable(), (11, true));
    path.validation.revalidate(at(5000));
    assert_eq!(path.validation.state(), PathState::Validating);
    assert_eq!(path.validation.challenge_at(), Some(at(5000)));
    assert_eq!(path.until_unreachable(), (11, false));
    path.validation.restart(at(9000));
    assert_eq!(path.until_unreachable(), (11, true));
    let (_, challenge) = path.challenge_when_due();
    path.validation
        .on_response(at(15_000), challenge.token, at(15_000));
    path.validation.on_silent(at(20_000));
    assert_eq!(path.validation.state(), PathState::Down);
    path.validation.revalidate(at(21_000));
    assert_eq!(
        path.until_unreachable(),
        (11, false),
        "silence was reported"
    );
}

#[test]
fn path_that_is_up_is_neither_challenged_again_nor_called_unreachable() {
    let mut path = Path::up();
    path.validation.revalidate(at(20));
    assert_eq!(path.challenge(at(10_000)), None);
    assert_eq!(
        path.validation
            .check_unreachable(at(10_000), RTT, SIZES_AGAIN),
        None
    );
    assert!(path.validation.is_up());
}

#[test]
fn eight_newest_challenges_may_be_answered_and_each_once() {
    let mut path = Path::new(Some(address(1)));
    path.validation.restart(at(0));
    let sent: Vec<(Instant, PathChallenge)> = (0..9).map(|_| path.challenge_when_due()).collect();
    let token = |index: usize| sent[index].1.token;
    assert_eq!(
        path.validation.on_response(at(1000), token(0), at(1000)),
        None
    );
    assert_eq!(
        path.validation.on_response(at(1000), !token(8), at(1000)),
        None
    );
    let validated = path.validation.on_response(at(1000), token(1), at(1000));
    assert_eq!(validated.map(|validated| validated.rtt), Some(MS * 970));
    assert_eq!(
        path.validation.on_response(at(1000), token(1), at(1000)),
        None
    );
    assert_eq!(
        path.validation.on_response(at(1000), token(8), at(1000)),
        None
    );
}

#[test]
fn four_responses_wait_and_the_oldest_is_dropped() {
    let mut validation = Validation::new(None);
    for token in 0..5 {
        validation.on_challenged(token, address(token as u16));
        validation.check_invariants();
    }
    for token in 1..5 {
        let remote = address(token as u16);
        let expected = PathChallenge { token, remote };
        assert_eq!(validation.poll_response(), Some(expected));
    }
    assert_eq!(validation.poll_response(), None);
}

#[test]
fn path_without_an_address_is_not_challenged_until_the_peer_has_one() {
    let mut path = Path::new(None);
    assert_eq!(path.challenge(at(0)), None);
    assert_eq!(path.validation.challenge_at(), None);
    path.validation.on_packet_from(at(5), address(2));
    let (due, challenge) = path.challenge_when_due();
    assert_eq!((due, challenge.remote), (at(5), address(2)));
    let validated = path.validation.on_response(at(10), challenge.token, at(10));
    let moved_from = validated.and_then(|validated| validated.moved_from);
    assert_eq!(moved_from, Some(None));
    assert_eq!(path.validation.remote(), Some(address(2)));
}

#[test]
fn peer_moves_once_it_has_answered_at_its_new_address() {
    let mut path = Path::up();
    path.validation.on_packet_from(at(20), address(1));
    assert_eq!(path.validation.challenge_at(), None, "known and up");
    path.validation.on_packet_from(at(30), address(2));
    let (due, challenge) = path.challenge_when_due();
    assert_eq!((due, challenge.remote), (at(30), address(2)));
    // Further packets from there do not hurry the next challenge.
    path.validation.on_packet_from(at(31), address(2));
    assert_eq!(path.validation.challenge_at(), Some(at(60)));
    assert_eq!(path.validation.remote(), Some(address(1)));
    let validated = path.validation.on_response(at(45), challenge.token, at(45));
    let expected = Validated {
        rtt: MS * 15,
        remote: address(2),
        moved_from: Some(Some(address(1))),
        came_up: false,
        size: None,
    };
    assert_eq!(validated, Some(expected));
    assert_eq!(path.validation.remote(), Some(address(2)));
}

#[test]
fn address_that_does_not_answer_three_challenges_is_given_up() {
    let mut path = Path::up();
    path.validation.on_packet_from(at(20), address(2));
    for _ in 0..3 {
        assert_eq!(path.challenge_when_due().1.remote, address(2));
    }
    let due = path.validation.challenge_at().expect("one more look");
    assert_eq!(path.challenge(due), None);
    assert_eq!(path.validation.challenge_at(), None);
    assert_eq!(path.validation.remote(), Some(address(1)));
    assert!(path.validation.is_up());
    // It may be tried again.
    path.validation.on_packet_from(at(1000), address(2));
    assert_eq!(path.validation.challenge_at(), Some(at(1000)));
}

#[test]
fn path_that_is_down_goes_back_to_its_known_address_after_three_challenges_elsewhere() {
    let mut path = Path::up();
    path.validation.on_silent(at(50));
    path.validation.on_packet_from(at(60), address(2));
    let remotes: Vec<u16> = (0..5)
        .map(|_| path.challenge_when_due().1.remote.port())
        .collect();
    assert_eq!(remotes, [2, 2, 2, 1, 1]);
    // Without a known address there is no other to try.
    let mut path = Path::new(None);
    path.validation.on_packet_from(at(0), address(2));
    let remotes: Vec<u16> = (0..5)
        .map(|_| path.challenge_when_due().1.remote.port())
        .collect();
    assert_eq!(remotes, [2; 5]);
}

#[test]
fn packet_from_the_known_address_challenges_a_path_that_is_down() {
    let mut path = Path::up();
    path.validation.on_silent(at(50));
    path.challenge_when_due();
    path.validation.on_packet_from(at(51), address(1));
    assert_eq!(path.validation.challenge_at(), Some(at(51)));
}

#[test]
fn configured_address_is_taken_when_it_changes_and_only_then() {
    let mut path = Path::up();
    assert!(!path.validation.set_remote(None));
    assert!(!path.validation.set_remote(Some(address(1))));
    path.validation.on_packet_from(at(20), address(2));
    let (_, challenge) = path.challenge_when_due();
    path.validation.on_response(at(30), challenge.token, at(30));
    // The peer has moved, and the configuration is the same.
    assert!(!path.validation.set_remote(Some(address(1))));
    assert_eq!(path.validation.remote(), Some(address(2)));
    assert!(path.validation.set_remote(Some(address(3))));
    assert_eq!(path.validation.remote(), Some(address(3)));
}

#[test]
fn restart_silence_and_a_close_void_challenges() {
    let mut path = Path::up();
    path.validation.on_packet_from(at(20), address(2));
    let (_, challenge) = path.challenge_when_due();
    path.validation.restart(at(30));
    assert_eq!(path.validation.state(), PathState::Validating);
    assert_eq!(
        path.validation.on_response(at(40), challenge.token, at(40)),
        None
    );
    let (due, challenge) = path.challenge_when_due();
    assert_eq!((due, challenge.remote), (at(30), address(1)));
    path.validation.on_silent(at(50));
    assert_eq!(
        path.validation.on_response(at(60), challenge.token, at(60)),
        None
    );
    assert_eq!(path.challenge_when_due().0, at(50));

    let mut path = Path::up();
    path.validation.on_packet_from(at(20), address(2));
    path.validation.on_peer_closed();
    assert_eq!(path.validation.state(), PathState::Down);
    assert_eq!(path.validation.challenge_at(), None);
    let mut path = Path::new(Some(address(1)));
    path.validation.on_peer_closed();
    assert_eq!(path.validation.state(), PathState::Validating);
}

#[test]
fn path_without_a_local_address_sends_nothing_until_it_has_one() {
    let mut path = Path::up();
    path.validation.on_packet_from(at(20), address(2));
    let (_, challenge) = path.challenge_when_due();
    path.validation.on_challenged(9, address(1));
    path.validation.on_unbound();
    path.validation.check_invariants();
    let events: [fn(&mut Validation); 6] = [
        |path| path.restart(at(30)),
        |path| path.on_silent(at(30)),
        |path| path.revalidate(at(30)),
        |path| path.on_packet_from(at(30), address(2)),
        |path| path.on_challenged(9, address(2)),
        Validation::on_peer_closed,
    ];
    for event in events {
        event(&mut path.validation);
        path.validation.check_invariants();
    }
    assert_eq!(
        path.validation.on_response(at(40), challenge.token, at(40)),
        None
    );
    assert_eq!(path.validation.poll_response(), None);

    // The address that the peer had is tried first.
    path.validation.on_bound(at(50));
    assert_eq!(path.validation.state(), PathState::Validating);
    let (due, challenge) = path.challenge_when_due();
    assert_eq!((due, challenge.remote), (at(50), address(1)));
    let validated = path.validation.on_response(at(60), challenge.token, at(60));
    assert!(validated.is_some_and(|validated| validated.came_up));
}

#[test]
fn preferred_path_is_waited_for_two_challenges_but_no_longer_than_an_unknown_one() {
    assert_eq!(validation_time(RTT), MS * 60);
    assert_eq!(validation_time(MS * 333), MS * 706);
    assert_eq!(validation_time(MS * 334), VALIDATION_TIME);
    assert_eq!(VALIDATION_TIME, MS * 706);
}

/// Packets of up to `carries` bytes are answered after a round trip of 10 ms.
fn sizes_until_up(path: &mut Path, carries: u16, limit: u32) -> Option<(u16, Vec<Option<u16>>)> {
    let mut sizes = Vec::new();
    let mut pending: VecDeque<(Instant, u64)> = VecDeque::new();
    while sizes.len() < limit as usize {
        let due = path.validation.challenge_at().expect("it goes on");
        while let Some((at, token)) = pending.pop_front_if(|(at, _)| *at <= due) {
            let validated = path.validation.on_response(at, token, at);
            path.validation.check_invariants();
            if let Some(validated) = validated.filter(|validated| validated.came_up) {
                return Some((validated.size.expect("of some size"), sizes));
            }
        }
        let due = path.validation.challenge_at().expect("it goes on").max(due);
        let Some(SizedChallenge { challenge, size }) = path.sized(due) else {
            continue;
        };
        path.validation
            .check_unreachable(due, path.rtt, SIZES_AGAIN);
        if size.unwrap_or(100) <= carries {
            pending.push_back((due + path.rtt, challenge.token));
        }
        sizes.push(size);
    }
    None
}

#[test]
fn path_comes_up_with_the_largest_of_two_sizes_that_it_answers() {
    let base = Some(MTU_BASE);
    for carries in [1280, 1500, 9000] {
        let mut path = Path::new(Some(address(1)));
        let up = sizes_until_up(&mut path, carries, 100);
        assert_eq!(up, Some((MTU_BASE, vec![base])), "{carries}");
    }
    for carries in [576, 1124, 1200, 1279] {
        let mut path = Path::new(Some(address(1)));
        let (size, sizes) = sizes_until_up(&mut path, carries, 100).expect("it is of use");
        assert_eq!(size, MTU_LEAST, "{carries}");
        let least = Some(MTU_LEAST);
        let expected = [base, base, None, base, base, base, base, base, least];
        assert!(
            sizes.iter().filter(|size| **size == base).count() >= 4,
            "{sizes:?}"
        );
        assert!(sizes.len() <= expected.len() + 1, "{sizes:?}");
    }
}

#[test]
fn path_that_carries_short_packets_only_is_unreachable_for_that_and_tried_once_a_minute() {
    let mut path = Path::new(Some(address(1)));
    assert_eq!(sizes_until_up(&mut path, 575, 30), None);
    assert!(path.validation.is_too_small());
    assert_eq!(path.validation.state(), PathState::Down);
    let (mut news, mut long, mut pending) = (0, 0, None);
    let until = at(5000) + SIZES_AGAIN * 10;
    loop {
        let due = path.validation.challenge_at().expect("it goes on");
        if due > until {
            break;
        }
        let SizedChallenge { challenge, size } = path.sized(due).expect("it is due");
        long += u32::from(size.is_some());
        let is_news = path
            .validation
            .check_unreachable(due, path.rtt, SIZES_AGAIN);
        news += u32::from(is_news == Some(true));
        if let Some(token) = pending.take() {
            path.validation.on_response(due, token, due);
        }
        pending = size.is_none().then_some(challenge.token);
    }
    assert_eq!(news, 0, "it is known");
    let tries = long / (BASE_CHALLENGES + LEAST_CHALLENGES);
    assert!((9..=13).contains(&tries), "{long} long challenges");
    // The line is repaired.
    assert!(sizes_until_up(&mut path, 1500, 300).is_some());
}

#[test]
fn address_that_is_not_known_gets_short_challenges_until_it_has_answered_one() {
    let mut path = Path::new(None);
    path.validation.on_packet_from(at(0), address(2));
    let first = path.sized(at(0)).expect("it is due");
    assert_eq!((first.challenge.remote, first.size), (address(2), None));
    let validated = path
        .validation
        .on_response(at(10), first.challenge.token, at(10));
    let validated = validated.expect("it is ours");
    assert!(!validated.came_up && validated.moved_from.is_some());
    let second = path.sized(at(10)).expect("at once");
    assert_eq!(
        (second.challenge.remote, second.size),
        (address(2), Some(MTU_BASE))
    );
    let validated = path
        .validation
        .on_response(at(20), second.challenge.token, at(20));
    assert!(validated.is_some_and(|validated| validated.came_up));
}
