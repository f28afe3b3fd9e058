//! Streams of spread applications: the sum of the paths, on unequal ones too.

use std::time::Duration;

use keiro_link::{Buffer, Loss};
use keiro_sim::{Arrivals, Dialogues, GatewayPair, Length, PathSpec, Scenario, Side};
use keiro_units::{Bandwidth, ByteCount, Probability};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A line whose rate no gateway has.
#[derive(Clone, Copy, Debug)]
struct Line {
    delay_ms: u64,
    jitter_ms: u64,
    loss: f64,
    mbit: u64,
}

const fn line(delay_ms: u64, jitter_ms: u64, loss: f64, mbit: u64) -> Line {
    Line {
        delay_ms,
        jitter_ms,
        loss,
        mbit,
    }
}

impl Line {
    fn path(self, overtakes: bool) -> PathSpec {
        let rate = Bandwidth::from_mbit_per_second(self.mbit);
        let mut path = PathSpec::new(rate, self.delay_ms as u32 * MS).with(|link| {
            link.buffer = Buffer::Bytes(rate.bytes_in_floor(SECOND).max(ByteCount::new(1 << 16)));
            link.jitter = self.jitter_ms as u32 * MS * 2;
            link.delay = (self.delay_ms.saturating_sub(self.jitter_ms)) as u32 * MS;
            link.jitter_overtakes = overtakes;
            if self.loss > 0.0 {
                link.loss = Loss::Bernoulli(Probability::new(self.loss).unwrap());
            }
        });
        path.is_rate_found = true;
        path
    }
}

/// Mbit/s of a stream's bytes that arrive from ten seconds to forty.
fn goodput(lines: &[Line], overtakes: bool, is_spread: bool, seed: u64) -> f64 {
    let paths: Vec<PathSpec> = lines.iter().map(|line| line.path(overtakes)).collect();
    let all: Vec<usize> = (0..lines.len()).collect();
    let mut scenario = Scenario::new(paths);
    let app = scenario.add_stream_app(None, &all);
    scenario.apps[app].is_spread = is_spread;
    scenario
        .dialogues
        .push(Dialogues::once(app, 1, 4_000_000_000, 0));
    let mut pair = GatewayPair::new(&scenario, seed);
    pair.set_up().unwrap_or_else(|failure| panic!("{failure}"));
    pair.begin();
    pair.run_for(10 * SECOND);
    let before = received(&pair);
    pair.run_for(30 * SECOND);
    (received(&pair) - before) as f64 * 8.0 / 30e6
}

fn received(pair: &GatewayPair) -> u64 {
    pair.gateway(Side::B).session().unwrap().apps[0]
        .stats
        .received_bytes
}

const ENVIRONMENTS: [(&str, [Line; 2]); 16] = [
    ("baseline", [line(20, 0, 0.0, 50), line(20, 0, 0.0, 50)]),
    ("rtt_40", [line(20, 0, 0.0, 50), line(40, 0, 0.0, 50)]),
    ("rtt_70", [line(20, 0, 0.0, 50), line(70, 0, 0.0, 50)]),
    ("rtt_120", [line(20, 0, 0.0, 50), line(120, 0, 0.0, 50)]),
    ("rtt_320", [line(20, 0, 0.0, 50), line(320, 0, 0.0, 50)]),
    ("jit_5", [line(20, 5, 0.0, 50), line(20, 5, 0.0, 50)]),
    ("jit_20", [line(20, 20, 0.0, 50), line(20, 20, 0.0, 50)]),
    ("loss_05", [line(20, 0, 0.005, 50), line(20, 0, 0.005, 50)]),
    ("loss_2", [line(20, 0, 0.02, 50), line(20, 0, 0.02, 50)]),
    ("bw_4to1", [line(20, 0, 0.0, 50), line(20, 0, 0.0, 12)]),
    ("bw_10to1", [line(20, 0, 0.0, 100), line(20, 0, 0.0, 10)]),
    ("dual_lte", [line(30, 5, 0.005, 40), line(45, 8, 0.005, 25)]),
    ("fiber_lte", [line(8, 0, 0.0, 300), line(40, 8, 0.005, 30)]),
    (
        "lte_starlink",
        [line(35, 8, 0.0, 40), line(50, 25, 0.01, 100)],
    ),
    ("lte_geo", [line(35, 0, 0.0, 40), line(320, 20, 0.005, 20)]),
    (
        "congested",
        [line(50, 20, 0.02, 20), line(60, 25, 0.02, 15)],
    ),
];

#[test]
#[ignore = "a table of all environments, minutes"]
fn environments() {
    for overtakes in [false, true] {
        for (name, lines) in ENVIRONMENTS {
            let alone: Vec<f64> = lines
                .iter()
                .map(|line| goodput(&[*line], overtakes, false, 1))
                .collect();
            let both = goodput(&lines, overtakes, true, 1);
            let sum: f64 = alone.iter().sum();
            println!(
                "{name:12} overtaking {overtakes:5} alone {:6.1} {:6.1} together {both:6.1} share {:.3}",
                alone[0],
                alone[1],
                both / sum
            );
        }
    }
}

#[test]
fn a_stream_gets_the_sum_of_unequal_paths() {
    let lines = [line(20, 0, 0.0, 50), line(70, 0, 0.0, 20)];
    let alone: f64 = lines
        .iter()
        .map(|line| goodput(&[*line], false, false, 1))
        .sum();
    let both = goodput(&lines, false, true, 1);
    assert!(both > 0.92 * alone, "{both} of {alone} Mbit/s");
}

/// A message on idle paths is over when all of them end at once: `T` with `R (T - d)` bytes on each.
#[test]
fn a_message_is_cut_so_that_all_paths_end_together() {
    let path = |mbit, delay| PathSpec::new(Bandwidth::from_mbit_per_second(mbit), delay);
    let mut scenario = Scenario::new(vec![path(50, 20 * MS), path(20, 70 * MS)]);
    let app = scenario.add_message_app(None, &[0, 1]);
    scenario.apps[app].is_spread = true;
    let made = Arrivals::Every {
        interval: 2 * SECOND,
        count: 20,
    };
    scenario.add_traffic(app, made, Length::Fixed(1_000_000));
    let report = GatewayPair::new(&scenario, 1).run();
    report.assert_complete();
    let delays = report
        .messages_of(app)
        .filter_map(|message| message.delay());
    let mean = delays.map(|delay| delay.as_secs_f64()).sum::<f64>() / 20.0;
    // Of 1500 bytes, 57 are headers: IP, UDP, packet, tag and frame.
    let bits = 8e6 * 1500.0 / 1443.0;
    let bound = (bits + 50e6 * 0.020 + 20e6 * 0.070) / 70e6;
    assert!(mean < 1.05 * bound, "{mean} s, and {bound} s is the bound");
}

/// A request and its response take the path that delivers them first, while a transfer fills both.
#[test]
fn requests_beside_a_transfer_take_the_fastest_path() {
    let path = |mbit, delay| PathSpec::new(Bandwidth::from_mbit_per_second(mbit), delay);
    let mut scenario = Scenario::new(vec![path(50, 20 * MS), path(20, 70 * MS)]);
    let thin = scenario.add_stream_app(Some(50 * MS), &[0, 1]);
    let bulk = scenario.add_stream_app(None, &[0, 1]);
    for app in [thin, bulk] {
        scenario.apps[app].is_spread = true;
    }
    let made = Arrivals::Every {
        interval: 200 * MS,
        count: 50,
    };
    scenario.dialogues.push(Dialogues {
        keeps_stream: true,
        ..Dialogues::new(thin, made, 1, 200, 200)
    });
    scenario
        .dialogues
        .push(Dialogues::once(bulk, 1, 60_000_000, 1));
    let report = GatewayPair::new(&scenario, 1).run();
    report.assert_complete();
    let thin = report.dialogues.iter().filter(|of| of.app == thin);
    let slowest = thin.map(|of| of.done.unwrap() - of.made).max().unwrap();
    assert!(slowest < 44 * MS, "40 ms there and back, not {slowest:?}");
}
