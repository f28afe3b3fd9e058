//! Two routers over a link that loses, delays, repeats and reorders packets.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use keiro_bfd::{Change, Config, Datagram, SessionId, Sessions, State};
use keiro_units::Instant;
use proptest::prelude::*;

use crate::{at, ms};

const ID: SessionId = SessionId(0);

#[derive(Clone, Copy, Debug)]
struct Impairment {
    loss_percent: [u64; 2],
    repeat_percent: u64,
    delay_max: Duration,
}

const CLEAN: Impairment = Impairment {
    loss_percent: [0; 2],
    repeat_percent: 0,
    delay_max: Duration::from_millis(1),
};

struct Pair {
    routers: [Sessions; 2],
    configs: [Config; 2],
    now: Instant,
    /// Packets under way, with the router that they go to.
    under_way: BTreeMap<(Instant, u64), (usize, Vec<u8>)>,
    random: u64,
    number: u64,
    changes: [Vec<(Instant, Change)>; 2],
    received: [Instant; 2],
}

fn address(of: usize) -> IpAddr {
    let text = ["2001:db8::1", "2001:db8::2"][of];
    text.parse().unwrap()
}

impl Pair {
    fn new(configs: [Config; 2], seed: u64) -> Self {
        let router = |of: usize| {
            let mut octets = [of as u8; 32];
            octets[..8].copy_from_slice(&seed.to_le_bytes());
            let mut sessions = Sessions::new(octets);
            let other = address(1 - of);
            sessions.add(at(0), ID, other, configs[of]).unwrap();
            sessions
        };
        Self {
            routers: [router(0), router(1)],
            configs,
            now: at(0),
            under_way: BTreeMap::new(),
            random: seed,
            number: 0,
            changes: [Vec::new(), Vec::new()],
            received: [at(0); 2],
        }
    }

    /// SplitMix64.
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.random() % 100 < percent
    }

    fn run(&mut self, time: Duration, link: Impairment) {
        let end = self.now + time;
        loop {
            while let Some((&(due, number), _)) = self.under_way.first_key_value()
                && due <= self.now
            {
                let (to, payload) = self.under_way.remove(&(due, number)).unwrap();
                self.deliver(to, &payload);
            }
            for of in [0, 1] {
                self.routers[of].handle_timeout(self.now);
                while let Some(sent) = self.routers[of].poll_transmit(self.now) {
                    assert_eq!(sent.to, address(1 - of));
                    self.carry(1 - of, &sent.payload, link);
                }
                self.note(of);
            }
            let arrival = self.under_way.keys().next().map(|(due, _)| *due);
            let timeouts = self.routers.iter().map(|it| it.poll_timeout());
            let next = timeouts.chain([arrival]).flatten().min();
            match next {
                Some(next) if next <= end => self.now = self.now.max(next),
                _ => break,
            }
        }
        self.now = end;
    }

    fn deliver(&mut self, to: usize, payload: &[u8]) {
        let datagram = Datagram {
            from: address(1 - to),
            ttl: Some(255),
            interface: None,
            payload,
        };
        // Old packets may name a session by a number that it never had.
        if self.routers[to]
            .handle_datagram(self.now, &datagram)
            .is_ok()
        {
            self.received[to] = self.now;
        }
        self.note(to);
    }

    fn carry(&mut self, to: usize, payload: &[u8], link: Impairment) {
        let copies = 1 + u32::from(self.chance(link.repeat_percent));
        for _ in 0..copies {
            if self.chance(link.loss_percent[to]) {
                continue;
            }
            let nanos = self.random() % (link.delay_max.as_nanos() as u64 + 1);
            let due = self.now + Duration::from_nanos(nanos);
            self.number += 1;
            self.under_way
                .insert((due, self.number), (to, payload.to_vec()));
        }
    }

    fn note(&mut self, of: usize) {
        self.routers[of].check_invariants();
        while let Some(event) = self.routers[of].poll_event() {
            self.changes[of].push((self.now, event.change));
        }
    }

    fn states(&self) -> [State; 2] {
        [0, 1].map(|of| self.routers[of].status(ID).unwrap().state)
    }

    /// The interval at which `of` should send once both are up.
    fn interval(&self) -> Duration {
        self.configs[0].interval.max(self.configs[1].interval)
    }

    fn is_settled(&self) -> bool {
        let statuses = [0, 1].map(|of| self.routers[of].status(ID).unwrap());
        let detection = |of: usize| self.interval() * u32::from(self.configs[1 - of].multiplier);
        (0..2).all(|of| {
            statuses[of].state == State::Up
                && statuses[of].send_interval == Some(self.interval())
                && statuses[of].detection_time == Some(detection(of))
        })
    }
}

fn configs() -> impl Strategy<Value = [Config; 2]> {
    let one = || {
        (10..400u64, 2..6u8).prop_map(|(millis, multiplier)| Config {
            interval: ms(millis),
            multiplier,
        })
    };
    [one(), one()]
}

fn impairment() -> impl Strategy<Value = Impairment> {
    let loss = [0..100u64, 0..100u64];
    (loss, 0..30u64, 0..300u64).prop_map(|(loss_percent, repeat_percent, delay)| Impairment {
        loss_percent,
        repeat_percent,
        delay_max: ms(delay),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_a_link_did_both_come_up_and_stay_up_when_it_is_good(
        configs in configs(), bad in impairment(), seed in any::<u64>(),
    ) {
        let mut pair = Pair::new(configs, seed);
        pair.run(ms(20_000), bad);
        // What is left of before, and two slow intervals to come up.
        pair.run(ms(5000), CLEAN);
        prop_assert!(pair.is_settled(), "{:?}", pair.states());
        let before = pair.changes.clone();
        pair.run(ms(30_000), CLEAN);
        prop_assert!(pair.is_settled());
        prop_assert_eq!(&before, &pair.changes, "nothing changes on a good link");
        // Up and down alternate.
        for changes in &pair.changes {
            let ups: Vec<bool> = changes.iter().map(|it| it.1 == Change::Up).collect();
            prop_assert!(ups.windows(2).all(|two| two[0] != two[1]), "{ups:?}");
        }
    }

    #[test]
    fn a_cut_link_is_noticed_after_the_detection_time_by_both_whichever_direction_is_cut(
        configs in configs(), seed in any::<u64>(), cut in 0..3usize,
    ) {
        let mut pair = Pair::new(configs, seed);
        pair.run(ms(5000), CLEAN);
        prop_assert!(pair.is_settled());
        pair.run(ms(1), CLEAN);
        for changes in &mut pair.changes {
            changes.clear();
        }
        let loss_percent = [[100, 0], [0, 100], [100, 100]][cut];
        pair.run(ms(4000), Impairment { loss_percent, ..CLEAN });
        for of in [0, 1] {
            let detection = pair.interval() * u32::from(configs[1 - of].multiplier);
            let [(when, Change::Down(failure))] = pair.changes[of][..] else {
                panic!("it went down once: {:?}", pair.changes[of]);
            };
            if loss_percent[of] == 100 {
                prop_assert_eq!(failure.diagnostic, keiro_bfd::Diagnostic::DetectionTimeExpired);
                prop_assert_eq!(when, pair.received[of] + detection);
            } else {
                // The other one says so, as soon as it has noticed.
                let other = pair.changes[1 - of][0].0;
                prop_assert!(when >= other && when - other <= CLEAN.delay_max, "{when} {other}");
            }
        }
        pair.run(ms(5000), CLEAN);
        prop_assert!(pair.is_settled(), "it comes back: {:?}", pair.states());
    }
}

#[test]
fn a_restarted_router_is_noticed_by_its_packets_and_comes_up_again() {
    let config = Config {
        interval: ms(50),
        multiplier: 3,
    };
    let mut pair = Pair::new([config; 2], 5);
    pair.run(ms(3000), CLEAN);
    assert!(pair.is_settled());
    let mut anew = Sessions::new([99; 32]);
    anew.add(pair.now, ID, address(0), config).unwrap();
    pair.routers[1] = anew;
    let restarted = pair.now;
    pair.run(ms(5000), CLEAN);
    assert!(pair.is_settled(), "{:?}", pair.states());
    let (when, change) = pair.changes[0][1];
    assert!(matches!(change, Change::Down(_)), "{change:?}");
    assert!(when - restarted <= ms(150), "{when}");
}
