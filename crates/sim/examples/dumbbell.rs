//! TCP flows over one bottleneck, beside what Linux and ns-3 got there:
//! `cargo run --release -p keiro-sim --example dumbbell [seeds]`.

use std::time::Duration;

use keiro_model::Instant;
use keiro_sim::traffic::{
    Dumbbell, TcpConfig,
    tcp::{CongestionControl, LossDetection, RtoFloor},
};

const WARM_UP_SECONDS: u64 = 10;
const SECONDS: u64 = 60;

fn main() {
    let seeds = std::env::args()
        .nth(1)
        .and_then(|seeds| seeds.parse().ok())
        .unwrap_or(10);
    let ms = Duration::from_millis;
    let base = TcpConfig {
        congestion: CongestionControl::NewReno,
        ..TcpConfig::LINUX
    };
    println!(
        "50 Mbit/s, 50 packets, 25 ms one way; {SECONDS} s, the first {WARM_UP_SECONDS} s cut; \
         mean over {seeds} seeds\n\
         flows control  losses found by  least timeout     goodput  drops   Jain  wait    timeouts \
         longest silence"
    );
    for flows in [30, 150] {
        for congestion in [CongestionControl::NewReno, CongestionControl::Cubic] {
            for loss_detection in [LossDetection::Sack, LossDetection::SackAndTime] {
                for rto_floor in [
                    RtoFloor::BeyondRoundTrip(ms(200)),
                    RtoFloor::Timeout(ms(200)),
                    RtoFloor::Timeout(ms(400)),
                    RtoFloor::Timeout(ms(1000)),
                ] {
                    let tcp = TcpConfig {
                        congestion,
                        loss_detection,
                        rto_floor,
                        ..base
                    };
                    row(flows, tcp, seeds);
                }
            }
        }
    }
}

fn row(flows: u32, tcp: TcpConfig, seeds: u64) {
    let second = |n| Instant::ZERO + Duration::from_secs(n);
    let (from, to) = (second(WARM_UP_SECONDS), second(SECONDS));
    let (mut goodput, mut drops, mut jain, mut wait) = (0.0, 0.0, 0.0, 0.0);
    let (mut timeouts, mut silence) = (0, Duration::ZERO);
    for seed in 0..seeds {
        let mut run = Dumbbell::reference(flows, tcp).build(seed);
        run.run(from, to);
        goodput += run.goodput(from, to).as_bits_per_second() as f64 / 1e6;
        jain += run.jain_of_flows(from, to).unwrap_or(0.0);
        let port = run.port();
        drops += port.drop_rate() * 100.0;
        wait += port.waiting_mean().as_secs_f64() * 1e3;
        timeouts += run.sender_counts().timeouts;
        silence = silence.max(run.sender_counts().longest_silence);
    }
    let mean = |sum: f64| sum / seeds as f64;
    println!(
        "{flows:5} {:8} {:15} {:17} {:5.2} Mbit/s {:5.2}% {:6.3} {:5.2} ms {:7} {:9.1} s",
        format!("{:?}", tcp.congestion),
        format!("{:?}", tcp.loss_detection),
        match tcp.rto_floor {
            RtoFloor::Timeout(floor) => format!("{floor:?}"),
            RtoFloor::BeyondRoundTrip(floor) => format!("round trip + {floor:?}"),
        },
        mean(goodput),
        mean(drops),
        mean(jain),
        mean(wait),
        timeouts / seeds,
        silence.as_secs_f64(),
    );
}
