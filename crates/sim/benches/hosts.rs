//! Simulated time over real time with TCP hosts: `cargo bench -p keiro-sim --bench hosts`.
//!
//! Five tenants of 30 flows over 50 Mbit/s with 30 % background, `[fairness §3.1]`, 50 s. For the
//! ratio between two versions, not for a test.

use std::time::Duration;

use keiro_model::Instant;
use keiro_sim::traffic::{Dumbbell, TcpConfig};

const SECONDS: u64 = 50;
const RUNS: u64 = 5;

// A benchmark is the one place that measures real time.
#[allow(clippy::disallowed_methods)]
fn main() {
    for (name, tcp) in [("RFC", TcpConfig::RFC), ("Linux", TcpConfig::LINUX)] {
        let mut shortest = Duration::MAX;
        let mut events = 0;
        let mut hash = 0;
        for _ in 0..RUNS {
            let begun = std::time::Instant::now();
            let mut run = Dumbbell::paper(tcp).build(1);
            let end = Instant::ZERO + Duration::from_secs(SECONDS);
            run.run(Instant::ZERO, end);
            shortest = shortest.min(begun.elapsed());
            events = run.mesh.counts().events;
            hash = run.mesh.trace_hash();
        }
        println!(
            "{name:6} {SECONDS} s in {shortest:.3?} (shortest of {RUNS}): {:.0} times real time, \
             {events} events, {:.2} million a second, trace {hash:016x}",
            SECONDS as f64 / shortest.as_secs_f64(),
            events as f64 / shortest.as_secs_f64() / 1e6,
        );
    }
}
