//! Simulated time over real time with TCP hosts: `cargo bench -p keiro-sim --bench hosts`.
//!
//! The first line is the setting of `[fairness §3.1]`: five tenants of 30 flows over 50 Mbit/s with
//! 30 % background, 50 s. The others look for what grows with the number of flows or with the
//! window. An argument runs only the lines whose name contains it. For the ratio between two
//! versions, not for a test.

use std::time::Duration;

use keiro_model::{Instant, Probability};
use keiro_sim::traffic::{Bottleneck, Chain, TcpConfig};

const RUNS: u64 = 5;

fn main() {
    paper("5 tenants of 30 flows, RFC", TcpConfig::RFC);
    paper("5 tenants of 30 flows, Linux", TcpConfig::LINUX);
    let delay = Duration::from_millis(50);
    let mut fast = Chain::reference(1, TcpConfig::LINUX);
    fast.bottlenecks = vec![Bottleneck::new(1000, 8000, delay, Probability::ZERO)];
    fast.groups[0].tcp.receive_buffer = keiro_model::ByteCount::new(64 << 20);
    line("1 flow, 1 Gbit/s, 100 ms", &fast, 10);
    let mut many = Chain::reference(10_000, TcpConfig::LINUX);
    many.bottlenecks = vec![Bottleneck::new(1000, 8000, delay, Probability::ZERO)];
    line("10,000 flows, 1 Gbit/s, 100 ms", &many, 10);
}

fn paper(name: &str, tcp: TcpConfig) {
    line(name, &Chain::one_bottleneck(tcp), 50);
}

// A benchmark is the one place that measures real time.
#[allow(clippy::disallowed_methods)]
fn line(name: &str, chain: &Chain, seconds: u64) {
    let wanted = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with("--"));
    if wanted.is_some_and(|wanted| !name.contains(&wanted)) {
        return;
    }
    let mut shortest = Duration::MAX;
    let (mut events, mut hash, mut used) = (0, 0, 0.0);
    for _ in 0..RUNS {
        let begun = std::time::Instant::now();
        let mut run = chain.build(1);
        run.run(Instant::ZERO, Instant::ZERO + Duration::from_secs(seconds));
        shortest = shortest.min(begun.elapsed());
        events = run.mesh.counts().events;
        hash = run.mesh.trace_hash();
        used = run.port(0).utilisation.unwrap_or(0.0);
    }
    println!(
        "{name:31} {seconds} s in {shortest:.3?} (shortest of {RUNS}): {:.1} times real time, \
         {events} events, {:.2} million a second, {:.0} % used, trace {hash:016x}",
        seconds as f64 / shortest.as_secs_f64(),
        events as f64 / shortest.as_secs_f64() / 1e6,
        used * 100.0,
    );
}
