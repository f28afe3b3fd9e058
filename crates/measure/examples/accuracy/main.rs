//! Accuracy of `keiro measure` on known networks. Needs root and iproute2, takes about twelve minutes.
//!
//! `cargo run -p keiro-measure --example accuracy [lines] [break] [crossover] [capacity]`
//!
//! Server and client run in two network namespaces with an emulated link between them. Every figure is
//! printed with the true value and its bound. The exit status is 1 if a bound is exceeded.

mod capacity;
mod laboratory;
mod transfers;
mod verdicts;

use std::{error::Error, process::ExitCode, time::Duration};

use keiro_lab::Interrupts;

use laboratory::{Network, Shaper};
use verdicts::Verdicts;

type Failed = Box<dyn Error + Send + Sync>;

const SEED: u64 = 1;

/// Links that are described by one line.
const LINES: [Network; 4] = [
    Network::plain(10, 5),
    Network::plain(50, 10),
    Network::plain(100, 2),
    Network::plain(100, 25),
];

/// Bursts of 500 kB go at 100 Mbit/s, everything above at 50 Mbit/s.
const BREAK: Network = Network {
    shaper: Some(Shaper {
        mbit: 50,
        burst_bytes: 500_000,
    }),
    ..Network::lossless(100, 5)
};

/// Two networks that cross: one with less overhead, the other with more bandwidth.
const CROSSING: [Network; 2] = [Network::lossless(20, 2), Network::lossless(100, 20)];

fn main() -> Result<ExitCode, Failed> {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let wants = |part: &str| wanted.is_empty() || wanted.iter().any(|w| w == part);
    let interrupts = Interrupts::install(Duration::ZERO)?;
    let mut verdicts = Verdicts::default();
    if wants("lines") {
        for network in LINES {
            transfers::line(&interrupts, network, &mut verdicts)?;
        }
    }
    if wants("break") {
        transfers::broken_line(&interrupts, BREAK, &mut verdicts)?;
    }
    if wants("crossover") {
        transfers::crossover(&interrupts, CROSSING, &mut verdicts)?;
    }
    if wants("capacity") {
        for mbit in [10, 50, 100] {
            for load in [0, 30, 60] {
                capacity::under_load(&interrupts, mbit, load, &mut verdicts)?;
            }
        }
    }
    Ok(verdicts.conclude())
}
