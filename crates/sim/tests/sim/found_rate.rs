//! Gateways on paths without a configured rate fill the line and not its buffer, in both directions.

use std::time::Duration;

use keiro_core::PathSnapshot;
use keiro_link::{Buffer, Loss};
use keiro_sim::{
    Arrivals, Change, GatewayPair, Length, PathDirection, PathSpec, Scenario, ScenarioEvent, Side,
    Traffic,
};
use keiro_units::{Bandwidth, ByteCount, Probability};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const DATAGRAM: usize = 1200;
/// Longer than any test here.
const TRAFFIC_TIME: Duration = Duration::from_secs(60);

/// A line whose rate no gateway has, and who sends more than it carries, in datagrams.
#[derive(Clone, Copy, Debug)]
struct Line {
    mbit: u64,
    round_trip: Duration,
    senders: &'static [Side],
}

impl Line {
    fn scenario(self) -> Scenario {
        let rate = Bandwidth::from_mbit_per_second(self.mbit);
        let mut path = PathSpec::new(rate, self.round_trip / 2)
            .with(|link| link.buffer = Buffer::Bytes(rate.bytes_in_floor(SECOND)));
        path.is_rate_found = true;
        let mut scenario = Scenario::new(vec![path]);
        for gateway in [&mut scenario.a, &mut scenario.b] {
            gateway.probe_share = Probability::new(0.005).unwrap();
        }
        let app = scenario.add_datagram_app(None, &[0]);
        let interval = rate.transmission_time_ceil(ByteCount::new(DATAGRAM as u64)) / 2;
        for &from in self.senders {
            scenario.traffic.push(Traffic {
                from,
                app,
                made: Arrivals::Every {
                    interval,
                    count: (TRAFFIC_TIME.as_nanos() / interval.as_nanos()) as u32,
                },
                length: Length::Fixed(DATAGRAM),
                start: Duration::ZERO,
            });
        }
        scenario
    }

    fn begun(self, seed: u64) -> GatewayPair {
        let mut pair = GatewayPair::new(&self.scenario(), seed);
        pair.set_up().unwrap_or_else(|failure| panic!("{failure}"));
        pair.begin();
        pair
    }
}

fn path(pair: &GatewayPair, side: Side) -> PathSnapshot {
    pair.gateway(side).session().unwrap().paths[0].clone()
}

/// What `side` sends of `mbit` in this time, as a share, and the longest own queue of its packets.
fn sent_share(pair: &mut GatewayPair, side: Side, mbit: u64, time: Duration) -> (f64, Duration) {
    let before = path(pair, side).stats.sent_bytes;
    let mut queue = Duration::ZERO;
    let until = pair.now() + time;
    while pair.now() < until {
        pair.run_for(10 * MS);
        queue = queue.max(path(pair, side).stats.queue.unwrap());
    }
    let bytes = path(pair, side).stats.sent_bytes - before;
    (
        bytes as f64 * 8.0 / time.as_secs_f64() / (mbit * 1_000_000) as f64,
        queue,
    )
}

/// The line carries `bits_per_second` from now on; runs until that is to have been followed.
fn set_rate(pair: &mut GatewayPair, bits_per_second: u64) {
    let rate = Bandwidth::from_bits_per_second(bits_per_second);
    pair.apply(&ScenarioEvent::Path {
        path: 0,
        direction: PathDirection::Both,
        change: Change::Rate(Some(rate)),
    });
    pair.run_for(3 * SECOND);
}

/// The longest queue that is allowed at a rate: two full packets are.
fn limit(bits_per_second: u64) -> Duration {
    let rate = Bandwidth::from_bits_per_second(bits_per_second);
    (20 * MS).max(rate.transmission_time_ceil(ByteCount::new(2 * 1500)))
}

#[test]
fn a_line_is_filled_from_idle_and_followed_down_and_up() {
    println!("Mbit/s, ms: share, queue; at a quarter; again");
    for (mbit, round_trip) in [(8, 20), (20, 20), (20, 100)] {
        let line = Line {
            mbit,
            round_trip: MS * round_trip,
            senders: &[Side::A],
        };
        let mut pair = line.begun(mbit);
        pair.run_for(3 * SECOND);
        let (share, queue) = sent_share(&mut pair, Side::A, mbit, 2 * SECOND);
        set_rate(&mut pair, mbit * 250_000);
        let (quarter, quarter_queue) = sent_share(&mut pair, Side::A, mbit, 2 * SECOND);
        set_rate(&mut pair, mbit * 1_000_000);
        let (again, _) = sent_share(&mut pair, Side::A, mbit, 2 * SECOND);
        println!(
            "{mbit} {round_trip}: {share:.3}, {queue:?}; {:.3}, {quarter_queue:?}; {again:.3}",
            quarter * 4.0
        );
        assert!(
            share >= 0.95 && queue <= limit(mbit * 1_000_000),
            "{line:?}"
        );
        assert!(quarter * 4.0 >= 0.9, "{line:?}");
        assert!(quarter_queue <= limit(mbit * 250_000), "{line:?}");
        assert!(again >= 0.9, "{line:?}");
    }
}

#[test]
fn both_directions_are_filled_at_once() {
    let line = Line {
        mbit: 20,
        round_trip: 40 * MS,
        senders: &[Side::A, Side::B],
    };
    let mut pair = line.begun(3);
    pair.run_for(4 * SECOND);
    for side in Side::BOTH {
        let (share, queue) = sent_share(&mut pair, side, 20, 2 * SECOND);
        println!("{side:?}: {share:.3}, {queue:?}");
        assert!(
            share >= 0.93 && queue <= 20 * MS,
            "{side:?}: {share} {queue:?}"
        );
    }
}

#[test]
fn loss_of_the_line_is_made_up_for() {
    let line = Line {
        mbit: 20,
        round_trip: 40 * MS,
        senders: &[Side::A],
    };
    let mut scenario = line.scenario();
    let loss = Loss::Bernoulli(Probability::new(0.02).unwrap());
    scenario.paths[0] = scenario.paths[0].with(|link| link.loss = loss);
    let mut pair = GatewayPair::new(&scenario, 5);
    pair.set_up().unwrap_or_else(|failure| panic!("{failure}"));
    pair.begin();
    pair.run_for(6 * SECOND);
    let (share, queue) = sent_share(&mut pair, Side::A, 20, 3 * SECOND);
    println!("{share:.3}, {queue:?}");
    assert!(share >= 0.9, "{share}");
}

#[test]
fn an_idle_path_says_what_it_knows() {
    let line = Line {
        mbit: 20,
        round_trip: 40 * MS,
        senders: &[],
    };
    let mut pair = line.begun(7);
    pair.run_for(5 * SECOND);
    let found = path(&pair, Side::A);
    assert_eq!(found.stats.configured_rate, None);
    let rate = found.rate.expect("none is configured");
    assert_eq!(rate.state.name(), "limited by application");
    assert_eq!(
        rate.rate,
        Bandwidth::from_mbit_per_second(1),
        "nothing was sent"
    );
}
