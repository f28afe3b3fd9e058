//! What counting costs: nanoseconds per packet in the kernel, and CPU time of reading and writing
//! lines at 1,000 flows, with real packets between two network namespaces (needs root).
//!
//! `cargo bench -p keiro-flowstats` prints a line per figure. The kernel measures the program
//! itself (BPF_ENABLE_STATS), which adds some 20 ns to each run.
#![allow(dead_code)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::{
    io::{self, BufWriter, Write},
    net::{Ipv6Addr, UdpSocket},
    time::Duration,
};

use aya::sys::{Stats, enable_stats};
use keiro_flowstats::{Peers, Tracker, line::Line};
use keiro_linux::clock;
use nix::sys::resource::{UsageWho, getrusage};

use support::{OVER_SEGMENT, PLAIN, Pair, is_root};

const FLOWS: usize = 1000;
/// Readings, of which ten make a second.
const READINGS: u32 = 50;

fn main() {
    if !is_root("cost") {
        return;
    }
    let _stats = enable_stats(Stats::RunTime).expect("the kernel can measure programs");
    per_packet("udp, no segment", |pair| {
        pair.datagrams(PLAIN, 100_000, 1000);
    });
    per_packet("udp, segment", |pair| {
        pair.datagrams(OVER_SEGMENT, 100_000, 1000);
    });
    per_packet("tcp, segment, small writes", |pair| {
        pair.stream_in_pieces(OVER_SEGMENT, 100_000_000, 1000);
    });
    per_packet("tcp, segment", |pair| {
        pair.stream(OVER_SEGMENT, 200_000_000);
    });
    reading();
}

fn per_packet(name: &str, traffic: impl FnOnce(&Pair)) {
    let pair = Pair::new();
    pair.bring_up("encap.red");
    let (counter, _) = pair.counter();
    let before = counter.cost().expect("the program is there");
    traffic(&pair);
    let after = counter.cost().expect("the program is there");
    let runs = after.runs - before.runs;
    let time = after.time - before.time;
    let nanos = time.as_nanos() as f64 / runs as f64;
    println!("{name}: {nanos:.0} ns per packet given to the interface ({runs} of them)");
}

/// As `keiro flowstats --json` does it, into nothing: a thousand flows, all of them with something
/// new in every reading.
fn reading() {
    let pair = Pair::new();
    pair.bring_up("encap.red");
    let (mut counter, _) = pair.counter();
    let to: Ipv6Addr = OVER_SEGMENT.parse().expect("an address");
    let receiver = pair.client.run(|| UdpSocket::bind((to, 0)));
    let to = receiver
        .expect("inside")
        .expect("bound")
        .local_addr()
        .expect("bound");
    let senders = pair.server.run(|| {
        let bind = |_| UdpSocket::bind("[::]:0").expect("a socket");
        (0..FLOWS).map(bind).collect::<Vec<_>>()
    });
    let senders = senders.expect("inside");
    let mut tracker = Tracker::default();
    let peers = Peers::default();
    for with_lines in [false, true] {
        let mut lines = 0;
        let mut cpu = Duration::ZERO;
        for _ in 0..READINGS {
            for sender in &senders {
                // What a full queue refuses is not missed.
                let _ = sender.send_to(&[1; 100], to);
            }
            let from = cpu_time();
            let mut out = BufWriter::new(io::sink());
            let unix = clock::unix_time();
            let result = counter.read(|key, counts| {
                let Some(change) = tracker.update(key, counts) else {
                    return;
                };
                lines += 1;
                if with_lines {
                    let line = Line::new("s0", unix, Duration::from_millis(100), &change, &peers);
                    serde_json::to_writer(&mut out, &line).expect("a sink takes all");
                    out.write_all(b"\n").expect("a sink takes all");
                }
            });
            result.expect("it can be read");
            cpu += cpu_time() - from;
        }
        let share = cpu.as_secs_f64() / (f64::from(READINGS) * 0.1) * 100.0;
        let how = if with_lines { "with" } else { "without" };
        println!(
            "reading {FLOWS} flows every 100 ms, {how} lines of JSON: {share:.2} % of a core \
             ({:?} of CPU per reading, {lines} changes)",
            cpu / READINGS
        );
    }
}

/// Of this thread.
fn cpu_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_THREAD).expect("always");
    let micros = |time: nix::sys::time::TimeVal| {
        Duration::new(time.tv_sec() as u64, time.tv_usec() as u32 * 1000)
    };
    micros(usage.user_time()) + micros(usage.system_time())
}
