//! Forecasts over a line that several gateways share, against messages drawn and served packet by
//! packet: each gateway by its scheduler, then the line first in, first out.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use keiro_planner::{
    delay::{AppSpec, PathSpec},
    queueing::{
        DelayDistribution, Forecast, Gateway, Offered, OtherGateway, Outcome, Scheduler,
        SharedLine, Spread, Traffic, WireFormat,
    },
};
use keiro_units::{Bandwidth, ByteCount};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

const PAYLOAD: u64 = 1428;
const HEADERS: u64 = 72;
const DELAY: Duration = Duration::from_millis(5);

fn wire() -> WireFormat {
    WireFormat::new(ByteCount::new(PAYLOAD), ByteCount::new(HEADERS)).unwrap()
}

/// Gateways on one line; the first is the one whose forecasts are asked for.
#[derive(Clone, Debug)]
struct Site {
    scheduler: Scheduler,
    line: Bandwidth,
    /// How fast each sends at most, and its applications.
    gateways: Vec<(Bandwidth, Vec<Traffic>)>,
}

/// Messages of which the first gateway's delays are measured.
#[derive(Clone, Copy, Debug)]
struct Message {
    at: f64,
    app: usize,
    deadline: f64,
    bytes: u64,
}

/// A packet that a gateway hands to the line.
#[derive(Clone, Copy, Debug)]
struct Packet {
    at: f64,
    bits: f64,
    /// The message whose last packet it is.
    ends: Option<usize>,
}

fn uniform(random: &mut ChaCha12Rng) -> f64 {
    ((random.next_u64() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
}

/// Lengths are fixed, or exponential where they vary.
fn messages(apps: &[Traffic], until: f64, random: &mut ChaCha12Rng) -> Vec<Message> {
    let mut all = Vec::new();
    for (app, traffic) in apps.iter().enumerate() {
        let target = traffic.app.latency_target;
        let target = target.map_or(f64::INFINITY, |target| target.as_secs_f64());
        let mut at = 0.0;
        loop {
            at -= traffic.app.interval.as_secs_f64() * uniform(random).ln();
            if at > until {
                break;
            }
            let mean = traffic.app.length.get();
            all.push(Message {
                at,
                app,
                deadline: at + target,
                bytes: match traffic.length_spread == Spread::NONE {
                    true => mean,
                    false => (-uniform(random).ln() * mean as f64).ceil() as u64,
                },
            });
        }
    }
    all.sort_by(|one, other| one.at.total_cmp(&other.at));
    all
}

/// What a gateway hands to the line, in order.
fn paced(messages: &[Message], rate: f64, scheduler: Scheduler) -> Vec<Packet> {
    let mut packets = Vec::new();
    // By order of service: key, message, bytes left.
    let mut waiting: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    let mut left: Vec<u64> = messages.iter().map(|message| message.bytes).collect();
    let (mut now, mut next) = (0.0_f64, 0);
    while next < messages.len() || !waiting.is_empty() {
        if waiting.is_empty() {
            now = now.max(messages[next].at);
        }
        while next < messages.len() && messages[next].at <= now {
            let key = match scheduler {
                Scheduler::Fifo => messages[next].at,
                Scheduler::Deadline => messages[next].deadline,
            };
            // Positive floats are ordered as their bits.
            waiting.push(Reverse((key.to_bits(), next)));
            next += 1;
        }
        let Some(Reverse((_, message))) = waiting.peek().copied() else {
            continue;
        };
        let bytes = left[message].min(PAYLOAD);
        left[message] -= bytes;
        let bits = ((bytes + HEADERS) * 8) as f64;
        let ends = (left[message] == 0).then_some(message);
        if ends.is_some() {
            waiting.pop();
        }
        packets.push(Packet {
            at: now,
            bits,
            ends,
        });
        now += bits / rate;
    }
    packets
}

/// Delays of the first gateway's messages, by application, with the time of each.
fn served(site: &Site, until: f64, seed: u64) -> Vec<Vec<(f64, f64)>> {
    let mut random = ChaCha12Rng::seed_from_u64(seed);
    let mut all: Vec<(f64, usize, Packet)> = Vec::new();
    let mut own = Vec::new();
    for (number, (rate, apps)) in site.gateways.iter().enumerate() {
        let messages = messages(apps, until, &mut random);
        let rate = rate.as_bits_per_second() as f64;
        let packets = paced(&messages, rate, site.scheduler);
        all.extend(
            packets
                .into_iter()
                .map(|packet| (packet.at, number, packet)),
        );
        if number == 0 {
            own = messages;
        }
    }
    all.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    let line = site.line.as_bits_per_second() as f64;
    let mut free = 0.0_f64;
    let mut delays = vec![Vec::new(); site.gateways[0].1.len()];
    for (at, gateway, packet) in all {
        free = free.max(at) + packet.bits / line;
        if let (0, Some(message)) = (gateway, packet.ends) {
            let Message { at, app, .. } = own[message];
            delays[app].push((at, free - at + DELAY.as_secs_f64()));
        }
    }
    delays
}

fn forecasts(site: &Site) -> Vec<Forecast> {
    let (own_rate, apps) = &site.gateways[0];
    let gateway = Gateway::new(site.scheduler, wire());
    let path = PathSpec {
        bandwidth: *own_rate,
        delay: DELAY,
    };
    let members: Vec<usize> = (0..apps.len()).collect();
    let alone = gateway.forecast_traffic(&path, apps, &members);
    let joint = shared(site).joint(&Offered::of(apps, &wire()));
    alone.into_iter().map(|alone| joint.of(alone)).collect()
}

fn shared(site: &Site) -> SharedLine {
    let other = |(rate, apps): &(Bandwidth, Vec<Traffic>)| OtherGateway {
        rate: *rate,
        offered: Offered::of(apps, &wire()),
    };
    SharedLine {
        rate: site.line,
        own_rate: site.gateways[0].0,
        others: site.gateways[1..].iter().map(other).collect(),
    }
}

fn stable(forecast: &Forecast) -> DelayDistribution {
    match forecast.outcome {
        Outcome::Stable(delay) => delay,
        Outcome::Overloaded => panic!("{forecast:?}"),
    }
}

fn traffic(length: u64, interval: Duration, target_millis: Option<u64>, spread: Spread) -> Traffic {
    Traffic {
        length_spread: spread,
        ..Traffic::paper(AppSpec {
            length: ByteCount::new(length),
            interval,
            latency_target: target_millis.map(Duration::from_millis),
        })
    }
}

/// Applications of equal load, `load` of the line in all.
fn site(seed: u64, gateways: usize, load: f64, parts: &[f64]) -> Site {
    let mut random = ChaCha12Rng::seed_from_u64(seed);
    let mut below = |count: u64| random.next_u64() % count;
    let line = Bandwidth::from_mbit_per_second([10, 50, 100, 200][below(4) as usize]);
    let scheduler = [Scheduler::Fifo, Scheduler::Deadline][below(2) as usize];
    let mut drawn: Vec<Vec<(u64, Option<u64>, Spread)>> = Vec::new();
    for _ in 0..gateways {
        let app = |below: &mut dyn FnMut(u64) -> u64| {
            let length = [1_000, 5_000, 20_000, 100_000][below(4) as usize];
            let target = [None, Some(10), Some(50), Some(300)][below(4) as usize];
            let spread = [Spread::NONE, Spread::NONE, Spread::EXPONENTIAL][below(3) as usize];
            (length, target, spread)
        };
        let count = 1 + below(3);
        drawn.push((0..count).map(|_| app(&mut below)).collect());
    }
    let apps = drawn.iter().map(Vec::len).sum::<usize>() as f64;
    let each = load / apps * line.as_bits_per_second() as f64;
    let gateways = drawn.into_iter().enumerate().map(|(number, apps)| {
        let apps = apps.into_iter().map(|(length, target, spread)| {
            let bits = wire().wire_length(ByteCount::new(length)).get() as f64 * 8.0;
            traffic(length, Duration::from_secs_f64(bits / each), target, spread)
        });
        let part = parts.get(number).copied().unwrap_or(1.0);
        let rate = line.as_bits_per_second() as f64 * part;
        (Bandwidth::from_bits_per_second(rate as u64), apps.collect())
    });
    Site {
        scheduler,
        line,
        gateways: gateways.collect(),
    }
}

/// Two gateways, each with one application of 100 kB every 17.8 ms, on 100 Mbit/s.
fn two_gateways() -> Site {
    let apps = vec![traffic(
        100_000,
        Duration::from_micros(17_800),
        None,
        Spread::NONE,
    )];
    let rate = Bandwidth::from_mbit_per_second(100);
    Site {
        scheduler: Scheduler::Fifo,
        line: rate,
        gateways: vec![(rate, apps.clone()), (rate, apps)],
    }
}

/// Means over runs of `seconds`, whose number is `runs`, and their standard error.
fn measured(site: &Site, seconds: f64, runs: u64) -> Vec<(f64, f64)> {
    let mut means = vec![Vec::new(); site.gateways[0].1.len()];
    for run in 0..runs {
        for (app, delays) in served(site, seconds, 1000 + run).into_iter().enumerate() {
            // The queue is empty at first.
            let late = delays.iter().filter(|(at, _)| *at > seconds / 10.0);
            let late: Vec<f64> = late.map(|(_, delay)| *delay).collect();
            means[app].push(late.iter().sum::<f64>() / late.len() as f64);
        }
    }
    let of = |means: Vec<f64>| {
        let count = means.len() as f64;
        let mean = means.iter().sum::<f64>() / count;
        let square = means.iter().map(|m| (m - mean).powi(2)).sum::<f64>();
        (mean, (square / (count - 1.0) / count).sqrt())
    };
    means.into_iter().map(of).collect()
}

#[test]
fn two_gateways_at_nine_tenths_of_a_line_are_forecast_together() {
    let mut site = two_gateways();
    // Headers put the paper's 90 % at 95 %; here the line is at 90 % with them.
    site.gateways
        .iter_mut()
        .for_each(|(_, apps)| apps[0].app.interval = Duration::from_micros(18_688));
    let forecast = stable(&forecasts(&site)[0]).mean.as_secs_f64() * 1e3;
    let (drawn, error) = measured(&site, 400.0, 24)[0];
    let (drawn, error) = (drawn * 1e3, error * 1e3);
    println!("forecast {forecast:.2} ms, drawn {drawn:.2} ± {error:.2} ms");
    assert!((forecast / drawn - 1.0).abs() < 0.05, "{forecast} {drawn}");
    let alone = Site {
        gateways: site.gateways[..1].to_vec(),
        ..site
    };
    let alone = stable(&forecasts(&alone)[0]).mean.as_secs_f64() * 1e3;
    assert!(alone < 0.4 * forecast, "alone {alone} ms");
}

#[test]
fn means_over_a_shared_line_are_those_of_drawn_messages() {
    let mut worst = (0.0_f64, 0);
    for seed in 0..16 {
        let gateways = 2 + (seed % 7) as usize;
        let load = [0.3, 0.5, 0.7, 0.8][(seed / 4) as usize];
        let site = site(seed, gateways, load, &[]);
        let bits = site.line.as_bits_per_second() as f64 * load;
        // Some two million packets.
        let seconds = 120_000.0 * 12_000.0 / bits;
        let forecast = forecasts(&site);
        for (app, (drawn, error)) in measured(&site, seconds, 6).into_iter().enumerate() {
            let forecast = stable(&forecast[app]).mean.as_secs_f64();
            let off = forecast / drawn - 1.0;
            println!(
                "seed {seed}, {gateways} gateways, load {load}, {:?}, application {app}: forecast \
                 {:.2} ms, drawn {:.2} ± {:.2} ms, {:+.1} %",
                site.scheduler,
                forecast * 1e3,
                drawn * 1e3,
                error * 1e3,
                off * 1e2
            );
            worst = if off.abs() > worst.0 {
                (off.abs(), seed)
            } else {
                worst
            };
            assert!(
                off.abs() < 0.05 + 3.0 * error / drawn,
                "seed {seed}: {site:?}"
            );
        }
    }
    println!("worst: {:.1} % with seed {}", worst.0 * 1e2, worst.1);
}

#[test]
fn percentiles_over_a_shared_line_are_near_those_of_drawn_messages() {
    let mut errors = Vec::new();
    for seed in 20..28 {
        let site = site(seed, 2 + (seed % 7) as usize, 0.7, &[]);
        let bits = site.line.as_bits_per_second() as f64 * 0.7;
        let delays = served(&site, 600_000.0 * 12_000.0 / bits, seed);
        for (forecast, delays) in forecasts(&site).iter().zip(delays) {
            let mut delays: Vec<f64> = delays.into_iter().map(|(_, delay)| delay).collect();
            delays.sort_by(f64::total_cmp);
            let forecast = stable(forecast);
            let at = |part: f64| delays[(delays.len() as f64 * part) as usize];
            let off = |forecast: Duration, part| forecast.as_secs_f64() / at(part) - 1.0;
            let all = [
                off(forecast.p50, 0.5),
                off(forecast.p95, 0.95),
                off(forecast.p99, 0.99),
            ];
            println!("seed {seed}, {:?}: {all:+.2?}", site.scheduler);
            errors.push(all[2].abs());
        }
    }
    errors.sort_by(f64::total_cmp);
    let worst = errors[errors.len() - 1];
    assert!(worst < 0.25, "99th percentiles: {errors:.2?}");
}

#[test]
fn gateways_that_send_less_than_the_line_carries_are_forecast_roughly() {
    for (seed, parts) in [
        (1, [0.5, 0.5, 0.0].as_slice()),
        (2, &[0.5, 0.4]),
        (3, &[1.0, 0.5]),
        (4, &[0.6, 1.0]),
        (5, &[0.6, 0.6, 0.6]),
        (6, &[0.5, 1.0, 0.5, 1.0]),
    ] {
        let parts: Vec<f64> = parts.iter().copied().filter(|part| *part > 0.0).collect();
        let site = site(seed, parts.len(), 0.5, &parts);
        let bits = site.line.as_bits_per_second() as f64 * 0.5;
        let forecast = forecasts(&site);
        for (app, (drawn, error)) in measured(&site, 120_000.0 * 12_000.0 / bits, 4)
            .into_iter()
            .enumerate()
        {
            let forecast = stable(&forecast[app]).mean.as_secs_f64();
            let off = forecast / drawn - 1.0;
            println!(
                "{parts:?}: forecast {:.2} ms, drawn {:.2} ± {:.2}, {:+.1} %",
                forecast * 1e3,
                drawn * 1e3,
                error * 1e3,
                off * 1e2
            );
            assert!(off.abs() < 0.3, "{parts:?}: {site:?}");
        }
    }
}

#[test]
fn a_line_that_no_other_gateway_uses_changes_nothing() {
    let site = site(3, 1, 0.6, &[]);
    let (rate, apps) = &site.gateways[0];
    let gateway = Gateway::new(site.scheduler, wire());
    let path = PathSpec {
        bandwidth: *rate,
        delay: DELAY,
    };
    let members: Vec<usize> = (0..apps.len()).collect();
    let alone = gateway.forecast_traffic(&path, apps, &members);
    for (joint, alone) in forecasts(&site).iter().zip(alone) {
        assert_eq!(joint.outcome, alone.outcome);
    }
}

#[test]
fn more_load_by_others_never_shortens_a_delay_until_the_line_is_overloaded() {
    let mut before = Duration::ZERO;
    let mut site = two_gateways();
    for percent in 0..70 {
        let interval = match percent {
            0 => Duration::from_secs(1_000_000),
            percent => Duration::from_secs_f64(8.4e-3 * 100.0 / f64::from(percent)),
        };
        site.gateways[1].1[0].app.interval = interval;
        match forecasts(&site)[0].outcome {
            Outcome::Stable(delay) => {
                assert!(delay.mean > before, "{percent}");
                assert!(delay.p50 <= delay.p95 && delay.p95 <= delay.p99);
                before = delay.mean;
                assert!(percent < 53, "{percent}");
            }
            Outcome::Overloaded => assert!(percent >= 52, "{percent}"),
        }
    }
}

#[test]
fn the_order_of_gateways_and_how_their_applications_are_added_do_not_matter() {
    let mut site = site(9, 6, 0.7, &[]);
    let forecast = forecasts(&site);
    site.gateways[1..].reverse();
    for (one, other) in forecast.iter().zip(forecasts(&site)) {
        let [one, other] = [stable(one), stable(&other)].map(|delay| delay.mean.as_secs_f64());
        assert!((one / other - 1.0).abs() < 1e-9);
    }
}

#[test]
fn senseless_traffic_of_others_neither_panics_nor_gives_a_small_number() {
    let before = stable(&forecasts(&two_gateways())[0]).mean;
    for (length, interval) in [
        (u64::MAX, Duration::from_nanos(1)),
        (u64::MAX, Duration::MAX),
        (0, Duration::ZERO),
        (1, Duration::ZERO),
    ] {
        let mut site = two_gateways();
        site.gateways[1]
            .1
            .push(traffic(length, interval, None, Spread::MAX));
        for rate in [Bandwidth::ZERO, Bandwidth::MAX] {
            site.gateways[1].0 = rate;
            match forecasts(&site)[0].outcome {
                Outcome::Stable(delay) => assert!(rate.is_zero() || delay.mean > before),
                Outcome::Overloaded => {}
            }
        }
        site.line = Bandwidth::ZERO;
        assert_eq!(forecasts(&site)[0].outcome, Outcome::Overloaded);
    }
}
