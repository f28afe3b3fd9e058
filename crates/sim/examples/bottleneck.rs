//! TCP flows over one bottleneck, compared with results of Linux and ns-3, and the setting of the fairness
//! paper without control: `cargo run --release -p keiro-sim --example bottleneck [seeds]`.

use std::time::Duration;

use keiro_sim::traffic::{
    Chain, TcpConfig,
    tcp::{CongestionControl, LossDetection, RtoFloor, SenderCounts},
};
use keiro_units::Instant;

const WARM_UP: Instant = second(10);
const END: Instant = second(60);

/// Minimum timeouts of the sweep. Linux adds 200 ms to the round trip, RFC 6298 requires 1 s.
const FLOORS: [RtoFloor; 4] = [
    RtoFloor::BeyondRoundTrip(Duration::from_millis(200)),
    RtoFloor::Timeout(Duration::from_millis(200)),
    RtoFloor::Timeout(Duration::from_millis(400)),
    RtoFloor::Timeout(Duration::from_secs(1)),
];

fn main() {
    let argument = std::env::args().nth(1);
    let seeds = argument.and_then(|seeds| seeds.parse().ok()).unwrap_or(10);
    println!(
        "50 Mbit/s, 50 packets, 25 ms one way; from 10 s to 60 s, mean of {seeds} seeds (± is their \
         standard deviation). References: 30 flows: Linux 47.3–47.8 Mbit/s, index 0.99; ns-3 47.6, \
         0.97. 150 flows: Linux 48.2, drops 13.5–14.1 %, 0.76–0.79; ns-3 48.2, 7.6 %, 0.96. Linux 6.18 \
         with CUBIC in the laboratory: 48.25 of 30 flows, 48.27 of 150 (docs/simulator.md)."
    );
    println!(
        "flows control  retransmissions  least timeout        goodput Mbit/s  to 20 s  drops %  \
         index: 0–20 s  10–20 s  10–60 s  wait ms  timeouts  silence s"
    );
    for flows in [30, 150] {
        for congestion in [CongestionControl::NewReno, CongestionControl::Cubic] {
            for loss_detection in [LossDetection::Sack, LossDetection::SackAndTime] {
                for rto_floor in FLOORS {
                    let tcp = TcpConfig {
                        congestion,
                        loss_detection,
                        rto_floor,
                        ..TcpConfig::LINUX
                    };
                    reference(flows, tcp, seeds);
                }
            }
        }
    }
    println!("\n5 tenants of 30 flows, 30 % background, no control; F in bins of 1 s from 10 s on");
    println!(
        "control  least timeout        goodput Mbit/s  drops %  F mean  F 5th percentile  F to 60 s"
    );
    for congestion in [CongestionControl::NewReno, CongestionControl::Cubic] {
        for rto_floor in FLOORS {
            let tcp = TcpConfig {
                congestion,
                rto_floor,
                ..TcpConfig::LINUX
            };
            tenants(tcp, seeds);
        }
    }
}

fn reference(flows: u32, tcp: TcpConfig, seeds: u64) {
    let mut columns: [Vec<f64>; 8] = Default::default();
    let mut silence = Duration::ZERO;
    for seed in 0..seeds {
        let mut run = Chain::reference(flows, tcp).build(seed);
        run.run(WARM_UP, END);
        let goodput = |from, to| run.goodput(from, to).as_bits_per_second() as f64 / 1e6;
        let index = |from, to| run.jain_of_flows(from, to).unwrap_or(0.0);
        let port = run.port(0);
        let SenderCounts {
            timeouts,
            longest_silence,
            ..
        } = run.sender_counts();
        let values = [
            goodput(WARM_UP, END),
            goodput(second(0), second(20)),
            port.drop_rate() * 100.0,
            index(second(0), second(20)),
            index(second(10), second(20)),
            index(WARM_UP, END),
            port.waiting_mean().as_secs_f64() * 1e3,
            timeouts as f64,
        ];
        for (column, value) in columns.iter_mut().zip(values) {
            column.push(value);
        }
        silence = silence.max(longest_silence);
    }
    let [goodput, start, drops, early, short, long, wait, timeouts] =
        columns.map(|column| mean_and_deviation(&column));
    println!(
        "{flows:5} {:8} {:16} {:19} {:6.2} ± {:4.2} {:9.2} {:8.2} {:13.3} {:8.3} {:8.3} {:8.2} {:9.0} {:10.1}",
        format!("{:?}", tcp.congestion),
        format!("{:?}", tcp.loss_detection),
        floor(tcp.rto_floor),
        goodput.0,
        goodput.1,
        start.0,
        drops.0,
        early.0,
        short.0,
        long.0,
        wait.0,
        timeouts.0,
        silence.as_secs_f64(),
    );
}

fn tenants(tcp: TcpConfig, seeds: u64) {
    let (mut goodput, mut drops, mut indices, mut whole) = (vec![], vec![], vec![], vec![]);
    for seed in 0..seeds {
        let mut run = Chain::one_bottleneck(tcp).build(seed);
        run.run(WARM_UP, END);
        goodput.push(run.goodput(WARM_UP, END).as_bits_per_second() as f64 / 1e6);
        drops.push(run.port(0).drop_rate() * 100.0);
        indices.extend(
            run.weighted_index_by_second(WARM_UP, END)
                .into_iter()
                .flatten(),
        );
        whole.extend(run.weighted_index(WARM_UP, END));
    }
    indices.sort_by(f64::total_cmp);
    println!(
        "{:8} {:19} {:6.2} ± {:4.2} {:9.2} {:7.3} {:17.3} {:10.3}",
        format!("{:?}", tcp.congestion),
        floor(tcp.rto_floor),
        mean_and_deviation(&goodput).0,
        mean_and_deviation(&goodput).1,
        mean_and_deviation(&drops).0,
        mean_and_deviation(&indices).0,
        indices[indices.len() / 20],
        mean_and_deviation(&whole).0,
    );
}

fn floor(floor: RtoFloor) -> String {
    match floor {
        RtoFloor::Timeout(floor) => format!("{floor:?}"),
        RtoFloor::BeyondRoundTrip(floor) => format!("round trip + {floor:?}"),
    }
}

fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0).max(1.0)).sqrt())
}

const fn second(n: u64) -> Instant {
    Instant::from_nanos(n * 1_000_000_000)
}
