//! Simulated client prefixes and peers, in virtual time.

use super::*;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Of a normal distribution (Box and Muller).
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.next()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.next()).cos()
    }

    fn below(&mut self, most: usize) -> usize {
        (self.next() * most as f64) as usize
    }
}

/// One way to the clients of a prefix.
#[derive(Clone, Copy, Debug)]
struct Way {
    rtt_seconds: f64,
    loss: f64,
    bits_per_second: f64,
}

impl Way {
    /// A connection of it: access lines and sizes differ by factors.
    fn transfer(&self, random: &mut Random) -> Transfer {
        let rtt = self.rtt_seconds + 0.01 * (0.7 * random.normal()).exp();
        let bytes = (13.2 + 1.2 * random.normal()).exp().max(500.0);
        let segments = (bytes / 1400.0).ceil();
        // Poisson's distribution, as a normal one where it has many.
        let expected = segments * self.loss;
        let lost = match expected < 20.0 {
            true => {
                let (mut lost, mut product) = (0, random.next());
                while product > (-expected).exp() {
                    product *= random.next();
                    lost += 1;
                }
                lost
            }
            false => (expected + expected.sqrt() * random.normal()).max(0.0) as u64,
        };
        // Slow start from ten segments, then the rate of the line or that of CUBIC at this loss.
        let line = self.bits_per_second * (0.5 * random.normal()).exp();
        let by_loss = 1400.0 * 8.0 / rtt * 1.22 / self.loss.max(1e-6).sqrt();
        let rate = line.min(by_loss);
        let rounds = (segments / 10.0 + 1.0)
            .log2()
            .min((rate * rtt / 112_000.0 + 1.0).log2());
        let seconds = rtt * rounds.max(1.0) + bytes * 8.0 / rate;
        Transfer {
            rtt_min: Duration::from_secs_f64(rtt),
            data_segments: segments as u64 + lost,
            retransmitted_segments: lost,
            bytes_acked: bytes as u64,
            busy: Duration::from_secs_f64(seconds),
        }
    }
}

/// What changes for a prefix, from a number of connections on.
#[derive(Clone, Copy, Debug)]
struct Better {
    peer: usize,
    from: u64,
    kind: usize,
}

struct Prefix {
    client: IpAddr,
    best: Way,
    better: Option<Better>,
    connections: u64,
    /// Connections by which it was steered, since the change; and to the wrong peer, ever.
    found: Option<u64>,
    wrong: u64,
}

impl Prefix {
    fn way(&self, egress: Egress) -> Way {
        let mut way = self.best;
        match self.better.filter(|better| self.connections >= better.from) {
            Some(Better { peer, .. }) if egress == Egress::Peer(PeerIndex(peer)) => {}
            Some(Better { kind: 0, .. }) => way.rtt_seconds += 0.04,
            Some(Better { kind: 1, .. }) => way.loss += 0.02,
            Some(_) => way.bits_per_second /= 2.0,
            None => {}
        }
        way
    }
}

fn names(peers: usize) -> BTreeMap<PeerIndex, String> {
    (0..peers)
        .map(|peer| (PeerIndex(peer), format!("transit-{peer}")))
        .collect()
}

fn steering(settings: Settings, peers: usize) -> Steering {
    Steering::new(settings, names(peers))
}

const STEER: Settings = Settings {
    mode: Mode::Steer,
    ..Settings::DEFAULT
};

fn everything(_: PeerIndex, _: IpNet) -> bool {
    true
}

/// Applies assignments at once.
fn apply(steering: &mut Steering) {
    while let Some((prefix, assignment)) = steering.poll_assignment() {
        if let Some(assignment) = assignment {
            steering.on_applied(prefix, assignment.version, &[]);
        }
    }
}

/// A connection from one prefix, which leaves as the kernel would send it.
fn connect(
    steering: &mut Steering,
    random: &mut Random,
    now: Instant,
    client: IpAddr,
    way: impl Fn(Egress) -> Way,
) -> Egress {
    let slot = random.below(slots::SLOTS.into()) as u16;
    let known = prefix_of(client).and_then(|prefix| steering.clients.get(&prefix));
    let egress = known.map_or(Egress::BestPath, |client| {
        client.egress_of(steering.slots.group(slot))
    });
    let ended = Ended {
        client,
        cookie: 0,
        slot,
        transfer: way(egress).transfer(random),
    };
    steering.on_ended(now, &ended, &everything);
    steering.handle_timeout(now);
    apply(steering);
    egress
}

fn client(number: usize) -> IpAddr {
    format!("2001:db8:{number:x}::1").parse().unwrap()
}

fn used(steering: &Steering, client: IpAddr) -> Egress {
    let prefix = prefix_of(client).unwrap();
    steering
        .clients
        .get(&prefix)
        .map_or(Egress::BestPath, |client| client.egress)
}

/// 200 prefixes, 30 of which do better by one of three peers from a random moment.
fn network(random: &mut Random) -> Vec<Prefix> {
    let prefix = |number: usize, random: &mut Random| Prefix {
        client: client(number),
        best: Way {
            rtt_seconds: 0.02 + 0.1 * random.next(),
            loss: 2e-4 * random.next(),
            bits_per_second: 2e6 * (1.0 + 4.0 * random.next()),
        },
        better: (number < 30).then(|| Better {
            peer: random.below(3),
            from: 500 + random.below(2500) as u64,
            kind: number % 3,
        }),
        connections: 0,
        found: None,
        wrong: 0,
    };
    (0..200).map(|number| prefix(number, random)).collect()
}

/// Found within 2,000 connections, with the median; moves to a wrong peer; and the share of
/// connections by the best peer after that.
fn simulate(seed: u64) -> (Vec<(usize, Option<u64>)>, u64, f64) {
    let mut random = Random(seed);
    let mut prefixes = network(&mut random);
    let mut steering = steering(STEER, 3);
    let mut now = Instant::ZERO;
    let (mut by_best, mut after) = (0_u64, 0_u64);
    for _ in 0..5000 {
        for prefix in &mut prefixes {
            now += Duration::from_millis(2);
            let better = prefix
                .better
                .filter(|better| prefix.connections >= better.from);
            let best = better.map(|better| Egress::Peer(PeerIndex(better.peer)));
            let egress = connect(&mut steering, &mut random, now, prefix.client, |egress| {
                prefix.way(egress)
            });
            if prefix.found.is_some() {
                after += 1;
                by_best += u64::from(Some(egress) == best);
            }
            prefix.connections += 1;
            let used = used(&steering, prefix.client);
            if used != Egress::BestPath && Some(used) != best {
                prefix.wrong += 1;
            } else if used != Egress::BestPath && prefix.found.is_none() {
                let from = better.map_or(0, |better| better.from);
                prefix.found = Some(prefix.connections - from);
            }
        }
    }
    let stats = steering.stats;
    println!(
        "explored {:.3}",
        stats.explored_connections as f64 / stats.counted_connections as f64
    );
    let found = prefixes
        .iter()
        .filter_map(|prefix| Some((prefix.better?.kind, prefix.found)));
    let wrong = prefixes.iter().filter(|prefix| prefix.wrong > 0).count();
    (found.collect(), wrong as u64, by_best as f64 / after as f64)
}

/// Prints what was found in simulations with these seeds, and checks the totals.
fn check_found(seeds: std::ops::RangeInclusive<u64>) {
    let (mut found, mut all, mut wrong) = (0, 0, 0);
    for seed in seeds.clone() {
        let (of_seed, wrong_of_seed, share) = simulate(seed);
        let mut taken: Vec<u64> = of_seed.iter().filter_map(|(_, taken)| *taken).collect();
        taken.sort_unstable();
        let is_late = |taken: &Option<u64>| taken.is_none_or(|taken| taken > FOUND_WITHIN);
        let missed = of_seed.iter().filter(|(_, taken)| is_late(taken));
        let missed: Vec<_> = missed.collect();
        println!(
            "seed {seed}: found after {:?} connections in the median, missed {missed:?}, {wrong_of_seed} wrong, \
             {:.1} % by the better peer once it is found",
            taken.get(taken.len() / 2),
            share * 100.0,
        );
        found += of_seed.len() - missed.len();
        all += of_seed.len();
        wrong += wrong_of_seed;
        assert!(share > 0.9, "{share} use the better peer once it is found");
    }
    let prefixes = 200 * seeds.count() as u64;
    println!("{found} of {all} found, {wrong} of {prefixes} wrong");
    assert!(found * 100 >= all * 95, "{found} of {all}");
    assert!(wrong * 100 <= prefixes, "{wrong} of {prefixes}");
}

const FOUND_WITHIN: u64 = 2_000;

#[test]
fn prefixes_that_do_better_by_another_peer_are_found_and_others_stay() {
    check_found(1..=1);
}

#[test]
#[ignore = "two minutes: cargo test -p keiro-egress --lib -- --ignored --nocapture twenty_networks"]
fn prefixes_are_found_in_twenty_networks() {
    check_found(1..=20);
}

/// Two peers, of which the second has round trips of 30 ms and the others of 70 ms.
fn second_is_nearer(egress: Egress) -> Way {
    Way {
        rtt_seconds: if egress == Egress::Peer(PeerIndex(1)) {
            0.03
        } else {
            0.07
        },
        loss: 0.0,
        bits_per_second: 1e7,
    }
}

fn all_alike(_: Egress) -> Way {
    second_is_nearer(Egress::BestPath)
}

/// Connections until `done`, at most `most`.
fn run(
    steering: &mut Steering,
    now: &mut Instant,
    most: u64,
    way: impl Fn(Egress) -> Way + Copy,
    done: impl Fn(&Steering) -> bool,
) {
    let mut random = Random(most);
    for _ in 0..most {
        *now += Duration::from_millis(100);
        connect(steering, &mut random, *now, client(1), way);
        if done(steering) {
            return;
        }
    }
    panic!(
        "not within {most} connections: {:?}",
        steering.summary(*now)
    );
}

fn steered() -> (Steering, Instant) {
    let (mut steering, mut now) = (steering(STEER, 2), Instant::ZERO);
    let is_steered = |steering: &Steering| used(steering, client(1)) == Egress::Peer(PeerIndex(1));
    run(&mut steering, &mut now, 2_000, second_is_nearer, is_steered);
    (steering, now)
}

fn is_on_best_path(steering: &Steering) -> bool {
    used(steering, client(1)) == Egress::BestPath
}

fn last_decision(steering: &mut Steering) -> Steered {
    std::iter::from_fn(|| steering.poll_decision())
        .last()
        .expect("it has decided")
}

#[test]
fn a_prefix_returns_when_its_peer_is_not_better_any_more() {
    let (mut steering, mut now) = steered();
    let moved = last_decision(&mut steering);
    let gain = moved.gain.unwrap();
    assert_eq!((moved.from, moved.to.as_deref()), (None, Some("transit-1")));
    assert_eq!(
        (moved.reason, moved.in_force),
        (SteeringReason::Better, true)
    );
    assert!(
        gain.low_permille > 0 && (300..700).contains(&gain.permille),
        "{gain:?}"
    );
    run(&mut steering, &mut now, 6_000, all_alike, is_on_best_path);
    let back = last_decision(&mut steering);
    assert_eq!((back.to, back.reason), (None, SteeringReason::NotBetter));
}

#[test]
fn a_prefix_returns_at_once_when_its_peer_withdraws_it() {
    let (mut steering, now) = steered();
    let others = |peer: PeerIndex, _: IpNet| peer != PeerIndex(1);
    steering.on_routes(now, &|_| false, &others);
    assert!(!is_on_best_path(&steering), "not concerned");
    steering.on_routes(now, &|_| true, &others);
    assert!(is_on_best_path(&steering));
    let (_, assignment) = steering.poll_assignment().unwrap();
    let assignment = assignment.unwrap();
    assert_eq!(assignment.egress, Egress::BestPath);
    assert!(
        !assignment
            .groups
            .values()
            .any(|egress| *egress == Egress::Peer(PeerIndex(1)))
    );
    assert_eq!(
        last_decision(&mut steering).reason,
        SteeringReason::Withdrawn
    );
}

#[test]
fn a_prefix_returns_without_new_evidence() {
    let (mut steering, mut now) = steered();
    now += STEER.keep_for / 2;
    steering.handle_timeout(now);
    assert!(!is_on_best_path(&steering));
    now += STEER.keep_for;
    assert!(steering.poll_timeout().unwrap() <= now);
    steering.handle_timeout(now);
    assert!(is_on_best_path(&steering));
    assert_eq!(
        last_decision(&mut steering).reason,
        SteeringReason::NoEvidence
    );
    assert_eq!(steering.poll_timeout(), None);
}

#[test]
fn a_prefix_returns_when_nothing_ends_by_its_peer() {
    let (mut steering, now) = steered();
    let mut random = Random(7);
    let control = steering.slots.range(Group::Control).start;
    for _ in 0..10 {
        let ended = Ended {
            client: client(1),
            cookie: 0,
            slot: control,
            transfer: second_is_nearer(Egress::BestPath).transfer(&mut random),
        };
        steering.on_ended(now, &ended, &everything);
        apply(&mut steering);
    }
    assert!(is_on_best_path(&steering));
    assert_eq!(last_decision(&mut steering).reason, SteeringReason::Silent);
    let explained = steering.explain(now, "2001:db8:1::/48".parse().unwrap());
    assert_eq!(explained[0].silent, ["transit-1"], "and is not explored");
}

#[test]
fn chance_alone_makes_no_peer_silent_where_the_control_is_large() {
    let settings = Settings {
        explore: 0.1,
        ..STEER
    };
    let (mut steering, mut now) = (steering(settings, 2), Instant::ZERO);
    let is_steered = |steering: &Steering| used(steering, client(1)) == Egress::Peer(PeerIndex(1));
    run(&mut steering, &mut now, 2_000, second_is_nearer, is_steered);
    let mut random = Random(7);
    let ended = Ended {
        client: client(1),
        cookie: 0,
        slot: steering.slots.range(Group::Control).start,
        transfer: second_is_nearer(Egress::BestPath).transfer(&mut random),
    };
    // The control has 20 % and the peer 70 % of the connections: (2/9)^9 > 10^-6 > (2/9)^10.
    for _ in 0..9 {
        steering.on_ended(now, &ended, &everything);
    }
    assert!(is_steered(&steering));
    steering.on_ended(now, &ended, &everything);
    assert_eq!(last_decision(&mut steering).reason, SteeringReason::Silent);
}

#[test]
fn a_peer_by_which_no_connection_ends_is_not_explored_any_more() {
    let (mut steering, mut random) = (steering(STEER, 2), Random(5));
    let now = Instant::ZERO;
    for _ in 0..3_000 {
        let slot = random.below(slots::SLOTS.into()) as u16;
        if steering.slots.group(slot) == Some(Group::Explore(0)) {
            continue;
        }
        let ended = Ended {
            client: client(1),
            cookie: 0,
            slot,
            transfer: all_alike(Egress::BestPath).transfer(&mut random),
        };
        steering.on_ended(now, &ended, &everything);
        apply(&mut steering);
    }
    let shown = &steering.summary(now).shown[0];
    assert_eq!(shown.silent, ["transit-0"]);
}

#[test]
fn with_observe_nothing_moves_and_the_better_peer_is_reported() {
    let settings = Settings {
        mode: Mode::Observe,
        ..STEER
    };
    let (mut steering, mut now) = (steering(settings, 2), Instant::ZERO);
    let is_found = |steering: &Steering| {
        steering
            .clients
            .values()
            .any(|client| client.better.is_some())
    };
    run(&mut steering, &mut now, 2_000, second_is_nearer, is_found);
    assert!(is_on_best_path(&steering));
    let found = last_decision(&mut steering);
    assert_eq!(
        (found.to.as_deref(), found.in_force),
        (Some("transit-1"), false)
    );
    let status = steering.summary(now);
    assert_eq!(status.shown[0].better.as_deref(), Some("transit-1"));
    assert_eq!((status.stats.moves, status.stats.steered_prefixes), (0, 0));
}

#[test]
fn moves_per_minute_are_limited_and_others_wait() {
    let settings = Settings {
        moves_per_minute: 2,
        ..STEER
    };
    let (mut steering, mut random) = (steering(settings, 2), Random(3));
    let count = |steering: &Steering| steering.steered.len();
    let second = |number: u64| Instant::ZERO + Duration::from_secs(number);
    for number in 0..5 * 2_500 {
        let now = second(1 + number / 2_000);
        connect(
            &mut steering,
            &mut random,
            now,
            client(number as usize % 5),
            second_is_nearer,
        );
    }
    let status = steering.summary(second(9));
    assert_eq!((count(&steering), status.stats.waiting_prefixes), (2, 3));
    steering.handle_timeout(second(70));
    assert_eq!(count(&steering), 4);
    steering.handle_timeout(second(131));
    assert_eq!(count(&steering), 5);
}

#[test]
fn connections_of_an_earlier_assignment_do_not_count() {
    let (mut steering, now) = (steering(STEER, 2), Instant::ZERO);
    let ended = |cookie: u64| Ended {
        client: client(1),
        cookie,
        slot: 0,
        transfer: Transfer::default(),
    };
    let end = |steering: &mut Steering, cookie: u64| {
        let before = steering.stats.counted_connections;
        steering.on_ended(now, &ended(cookie), &everything);
        steering.stats.counted_connections - before
    };
    assert_eq!(
        (0..19)
            .map(|cookie| end(&mut steering, cookie))
            .sum::<u64>(),
        19
    );
    assert_eq!(end(&mut steering, 19), 0, "its prefix is assigned now");
    assert_eq!(
        end(&mut steering, 20),
        0,
        "the kernel does not have that yet"
    );
    let (prefix, assignment) = steering.poll_assignment().unwrap();
    let version = assignment.unwrap().version;
    steering.on_applied(prefix, version - 1, &[]);
    assert_eq!(end(&mut steering, 21), 0, "nor an older one");
    steering.on_applied(prefix, version, &[22, 23]);
    assert_eq!(
        (22..26)
            .map(|cookie| end(&mut steering, cookie))
            .collect::<Vec<_>>(),
        [0, 0, 1, 1]
    );
    let explained = steering.explain(now, "2001:db8:1::1/128".parse().unwrap());
    assert_eq!(explained[0].measured.len(), 2, "{explained:?}");
}

#[test]
fn prefixes_beyond_the_limit_are_forgotten_and_return_to_the_best_path() {
    let settings = Settings {
        prefixes_max: 16,
        ..STEER
    };
    let mut all = steering(settings, 2);
    let mut now = Instant::ZERO;
    let is_steered = |steering: &Steering| used(steering, client(1)) == Egress::Peer(PeerIndex(1));
    run(&mut all, &mut now, 2_000, second_is_nearer, is_steered);
    let mut random = Random(1);
    for number in 2..200 {
        connect(&mut all, &mut random, now, client(number), all_alike);
    }
    assert_eq!(all.clients.len(), 16);
    assert!(is_steered(&all), "single connections do not displace it");
    // Others with many connections do, and it does not stay for ever without connections.
    for number in 1_000..1_040 {
        for _ in 0..client::MANAGED_MIN + 5 {
            connect(&mut all, &mut random, now, client(number), all_alike);
        }
    }
    assert_eq!((all.clients.len(), all.steered.len()), (16, 0));
    let decisions = std::iter::from_fn(|| all.poll_decision());
    let mut reasons = decisions.map(|decision| decision.reason);
    assert!(reasons.any(|reason| reason == SteeringReason::Forgotten));
    for number in 2_000..2_050 {
        connect(&mut all, &mut random, now, client(number), all_alike);
    }
    let managed = all.by_use[1].len();
    connect(
        &mut all,
        &mut random,
        now + IDLE_MAX * 2,
        client(3_000),
        all_alike,
    );
    assert_eq!(all.by_use[1].len(), managed - 1);
    assert_eq!(all.by_use[0].len() + all.by_use[1].len(), 16);
}

#[test]
fn a_restart_returns_everything_and_takes_other_peers() {
    let (mut steering, now) = steered();
    steering.restart(now, names(1));
    assert_eq!(last_decision(&mut steering).reason, SteeringReason::Ended);
    assert_eq!(steering.slots().peers(), [PeerIndex(0)]);
    assert!(steering.clients.is_empty() && steering.poll_assignment().is_none());
}
