//! Goodput of streams in virtual time, and its CPU time: `cargo bench -p keiro-sim --bench streams --
//! [files|dialogues|stalled|fairness|many|churn]`.
//!
//! Virtual values are the same in every run; real times are for the ratio between two versions.

use std::time::Duration;

use keiro_link::Loss;
use keiro_sim::{
    Arrivals, Dialogues, GatewayPair, PathSpec, Reading, Report, Scenario, Side, StreamEnd,
};
use keiro_units::{Bandwidth, Probability};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let parts: [(&str, fn()); 6] = [
        ("files", files),
        ("dialogues", dialogues),
        ("stalled", stalled),
        ("fairness", fairness),
        ("many", many),
        ("churn", churn),
    ];
    let named = |name: &str| wanted.iter().any(|arg| arg == name);
    let all = !parts.iter().any(|(name, _)| named(name));
    for (name, part) in parts {
        if all || named(name) {
            part();
        }
    }
}

fn scenario(mbit: u64, rtt: Duration, loss: f64) -> Scenario {
    let path = PathSpec::new(Bandwidth::from_mbit_per_second(mbit), rtt / 2);
    let loss = Loss::Bernoulli(Probability::new(loss).expect("a probability"));
    let mut scenario = Scenario::new(vec![path.with(|link| link.loss = loss)]);
    scenario.patience = 600 * SECOND;
    scenario
}

/// A run with its real time.
#[allow(clippy::disallowed_methods)]
fn run(scenario: &Scenario, seed: u64) -> (Report, Duration) {
    let begun = std::time::Instant::now();
    let report = GatewayPair::new(scenario, seed).run();
    report.assert_complete();
    (report, begun.elapsed())
}

/// A GiB from a client to a server.
fn files() {
    let bytes = 1 << 30;
    for (mbit, rtt, loss) in [
        (100_u32, 1, 0.01),
        (100, 20, 0.01),
        (100, 100, 0.01),
        (100, 100, 0.0),
        (1000, 20, 0.01),
    ] {
        let mut scenario = scenario(mbit.into(), rtt * MS, loss);
        let app = scenario.add_stream_app(None, &[0]);
        scenario.dialogues.push(Dialogues::once(app, 1, bytes, 1));
        let (report, took) = run(&scenario, 1);
        let delay = report.dialogues[0].delay().expect("complete");
        // IP bytes, so that the overlay's own overhead counts against it.
        let carries = f64::from(mbit) * 1e6 * (1.0 - loss);
        let reached = bytes as f64 * 8.0 / delay.as_secs_f64();
        let [forward, backward] = &report.links[0];
        println!(
            "file of 1 GiB, {mbit} Mbit/s, rtt {rtt} ms, loss {loss}: {:.2} Mbit/s of {:.2}, {:.1} %; \
             {} packets there, {} back; {took:.1?} of real time",
            reached / 1e6,
            carries / 1e6,
            reached / carries * 100.0,
            forward.arrived_packets,
            backward.arrived_packets,
        );
    }
}

/// Dialogues of 64 clients, 400 per second.
fn dialogues() {
    for rounds in [6, 12] {
        for loss in [0.0, 0.01] {
            let mut scenario = scenario(100, MS, loss);
            let app = scenario.add_stream_app(Some(20 * MS), &[0]);
            let made = Arrivals::Exponential {
                mean: SECOND / 400,
                duration: 60 * SECOND,
            };
            scenario.dialogues.push(Dialogues {
                clients: 64,
                keeps_stream: true,
                ..Dialogues::new(app, made, rounds, 100, 100)
            });
            let (report, took) = run(&scenario, 1);
            let mut delays: Vec<Duration> = report
                .dialogues
                .iter()
                .filter_map(keiro_sim::DialogueRecord::duration)
                .collect();
            delays.sort();
            let mean = delays.iter().sum::<Duration>() / delays.len() as u32;
            let at = |share: f64| delays[((delays.len() - 1) as f64 * share) as usize];
            println!(
                "{} dialogues of {rounds} round trips, rtt 1 ms, loss {loss} each way: mean {mean:.2?}, \
                 median {:.2?}, p99 {:.2?}, p99.9 {:.2?}, max {:.2?}; {took:.1?} of real time",
                delays.len(),
                at(0.5),
                at(0.99),
                at(0.999),
                at(1.0),
            );
        }
    }
}

/// One client that never reads, and its effect on others.
fn stalled() {
    let without = stalled_run(false);
    let with = stalled_run(true);
    let worse = without
        .iter()
        .zip(&with)
        .map(|(without, with)| with.saturating_sub(*without));
    let changed = without.iter().zip(&with).filter(|(a, b)| a != b).count();
    println!(
        "one stalled client among 64: {} dialogues, {changed} take another time, the worst {:?} longer",
        without.len(),
        worse.max().unwrap_or_default(),
    );
}

fn stalled_run(with: bool) -> Vec<Duration> {
    let mut scenario = scenario(100, 10 * MS, 0.0);
    let app = scenario.add_stream_app(Some(20 * MS), &[0]);
    let made = Arrivals::Exponential {
        mean: 5 * MS,
        duration: 10 * SECOND,
    };
    scenario.dialogues.push(Dialogues {
        clients: 64,
        keeps_stream: true,
        ..Dialogues::new(app, made, 6, 100, 1000)
    });
    if with {
        scenario.dialogues.push(Dialogues {
            end: StreamEnd::Never,
            client_reads: Reading::UpTo(0),
            ..Dialogues::once(app, 1, 100, 1 << 30)
        });
    }
    let (report, _) = run(&scenario, 1);
    let delays = report
        .dialogues
        .iter()
        .filter(|dialogue| dialogue.completes);
    delays
        .map(|dialogue| dialogue.delay().expect("complete"))
        .collect()
}

/// Many transfers share a path with small dialogues.
fn fairness() {
    for (count, loss) in [
        (0_u32, 0.0),
        (1, 0.0),
        (64, 0.0),
        (1000, 0.0),
        (64, 0.01),
        (1000, 0.01),
        (10_000, 0.01),
    ] {
        let mut scenario = scenario(100, 20 * MS, loss);
        let bulk = scenario.add_stream_app(None, &[0]);
        let thin = scenario.add_stream_app(Some(20 * MS), &[0]);
        let at_once = Arrivals::Every {
            interval: Duration::ZERO,
            count,
        };
        scenario.dialogues.push(Dialogues {
            clients: count,
            ..Dialogues::new(bulk, at_once, 1, 1 << 30, 1)
        });
        let made = Arrivals::Every {
            interval: 10 * MS,
            count: 900,
        };
        scenario.dialogues.push(Dialogues {
            clients: 16,
            start: SECOND,
            keeps_stream: true,
            ..Dialogues::new(thin, made, 1, 100, 100)
        });
        let (report, took) = timed(|| GatewayPair::new(&scenario, 1).run_for_measured(10 * SECOND));
        let shares: Vec<f64> = report
            .streams
            .iter()
            .filter(|stream| stream.app == bulk)
            .map(|stream| stream.server.map_or(0.0, |server| server.read as f64))
            .collect();
        let sum: f64 = shares.iter().sum();
        let squares: f64 = shares.iter().map(|share| share * share).sum();
        let mut delays: Vec<Duration> = report
            .dialogues_of(thin)
            .filter_map(keiro_sim::DialogueRecord::delay)
            .collect();
        delays.sort();
        println!(
            "{count} transfers for 10 s, loss {loss}: {:.2} Mbit/s, Jain {:.4}; {} round trips beside them: \
             median {:.2?}, p99 {:.2?}, max {:.2?}; {took:.1?} of real time; kept {} MB, queued {} MB",
            sum * 8.0 / 10e6,
            if sum > 0.0 {
                sum * sum / (squares * shares.len() as f64)
            } else {
                1.0
            },
            delays.len(),
            delays[delays.len() / 2],
            delays[delays.len() * 99 / 100],
            delays[delays.len() - 1],
            report.sides[Side::B.index()].streams_kept_bytes_max / 1_000_000,
            report.sides[Side::A.index()].streams_queued_bytes_max / 1_000_000,
        );
    }
}

#[allow(clippy::disallowed_methods)]
fn timed<T>(what: impl FnOnce() -> T) -> (T, Duration) {
    let begun = std::time::Instant::now();
    let result = what();
    (result, begun.elapsed())
}

/// A round trip per second on each of many open streams.
fn many() {
    for count in [100_u32, 1000, 10_000] {
        let mut scenario = scenario(1000, 20 * MS, 0.01);
        let app = scenario.add_stream_app(Some(50 * MS), &[0]);
        // All open within the first second, then each sends every other second.
        let made = Arrivals::Every {
            interval: SECOND / count,
            count: count * 5,
        };
        scenario.dialogues.push(Dialogues {
            clients: count,
            keeps_stream: true,
            ..Dialogues::new(app, made, 1, 100, 100)
        });
        let (report, took) = run(&scenario, 1);
        println!(
            "{count} streams with a round trip a second each: {} packets, {took:.2?} of real time, \
             {:.1} µs a round trip",
            report.links[0][0].arrived_packets + report.links[0][1].arrived_packets,
            took.as_secs_f64() * 1e6 / report.dialogues.len() as f64,
        );
    }
}

/// Clients that connect and disconnect.
fn churn() {
    for rate in [100_u32, 2000] {
        let mut scenario = scenario(1000, 20 * MS, 0.01);
        let app = scenario.add_stream_app(Some(50 * MS), &[0]);
        let made = Arrivals::Every {
            interval: SECOND / rate,
            count: rate * 10,
        };
        scenario.dialogues.push(Dialogues {
            clients: rate,
            ..Dialogues::new(app, made, 2, 200, 2000)
        });
        let (report, took) = run(&scenario, 1);
        println!(
            "{rate} streams opened a second: {} at a time, {took:.2?} of real time, {:.1} µs each",
            report.sides[0].streams_max,
            took.as_secs_f64() * 1e6 / report.streams.len() as f64,
        );
    }
}
