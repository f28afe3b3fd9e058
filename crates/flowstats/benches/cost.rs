//! What counting costs: nanoseconds per packet in the kernel, and CPU time of reading and writing
//! lines at 1,000 flows, with real packets between two network namespaces (needs root).
//!
//! `cargo bench -p keiro-flowstats` prints a line per figure: the median of the rounds, and the least
//! and the most. The kernel measures the program itself (BPF_ENABLE_STATS: run_time_ns / run_cnt), by
//! two readings of its clock around each run, of which about one is in the figure; `nothing` is what
//! it says of a program without instructions. Interrupts that fall into a run are in it, too.
//!
//! `-- --beside OBJECT` measures another version's object in the same rounds (`git show
//! COMMIT:crates/flowstats/bpf/flowstats.bpf.o > OBJECT`), any number of them; `--rounds N` makes more
//! rounds, and `--traffic N` only one kind of traffic, from 0.
#![allow(dead_code)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::{
    env, fs,
    io::{self, BufWriter, Write},
    net::{Ipv6Addr, SocketAddr, UdpSocket},
    process::Command,
    time::Duration,
};

use aya::sys::{Stats, enable_stats};
use keiro_flowstats::{
    Counter, Peers, Program, Tracker,
    line::{Line, Lines},
};
use keiro_linux::clock;
use nix::time::{ClockId, clock_gettime};

use support::{OVER_SEGMENT, PLAIN, Pair, is_root};

const FLOWS: usize = 1000;
/// Readings, of which ten make a second.
const READINGS: u32 = 20;
const ROUNDS: usize = 5;

struct Arguments {
    /// Objects with their names.
    beside: Vec<(String, Vec<u8>)>,
    traffic: Option<usize>,
    rounds: usize,
}

fn main() {
    if !is_root("cost") {
        return;
    }
    let arguments = Arguments::take();
    in_kernel(&arguments);
    if arguments.traffic.is_none() {
        reading(arguments.rounds);
    }
}

impl Arguments {
    fn take() -> Self {
        let mut all = env::args().skip(1);
        let mut taken = Self {
            beside: Vec::new(),
            traffic: None,
            rounds: ROUNDS,
        };
        while let Some(name) = all.next() {
            let mut value = || all.next().unwrap_or_else(|| panic!("{name} needs a value"));
            match name.as_str() {
                "--beside" => {
                    let path = value();
                    let object = fs::read(&path).expect("an object");
                    taken.beside.push((path, object));
                }
                "--traffic" => taken.traffic = Some(value().parse().expect("a number")),
                "--rounds" => taken.rounds = value().parse().expect("a number"),
                // Of cargo's.
                "--bench" => {}
                _ => panic!("{name}: --beside OBJECT and --rounds N are known"),
            }
        }
        taken
    }
}

/// Large packets leave as they are, as they are given to hardware that cuts them.
fn leave_uncut(pair: &Pair) {
    let mut command = Command::new("tc");
    command.args(["qdisc", "del", "dev", "s0", "root"]);
    pair.server.enter_on_exec(&mut command);
    assert!(command.status().expect("tc runs").success());
}

type Traffic = (&'static str, fn(&Pair));

const TRAFFIC: [Traffic; 6] = [
    ("udp, no segment", |pair| {
        pair.datagrams(PLAIN, 30_000, 1000);
    }),
    ("udp, segment", |pair| {
        pair.datagrams(OVER_SEGMENT, 30_000, 1000);
    }),
    ("tcp, segment, small writes, cut", |pair| {
        pair.stream_in_pieces(OVER_SEGMENT, 50_000_000, 1000);
    }),
    ("tcp, segment, cut", |pair| {
        pair.stream(OVER_SEGMENT, 100_000_000);
    }),
    ("tcp, segment, small writes, uncut", |pair| {
        leave_uncut(pair);
        pair.stream_in_pieces(OVER_SEGMENT, 50_000_000, 1000);
    }),
    ("tcp, segment, uncut", |pair| {
        leave_uncut(pair);
        pair.stream(OVER_SEGMENT, 200_000_000);
    }),
];

/// Every program in turn, all of them in each round.
fn in_kernel(arguments: &Arguments) {
    let _stats = enable_stats(Stats::RunTime).expect("the kernel can measure programs");
    let mut programs = vec![("nothing", Program::Nothing), ("counting", Program::This)];
    let beside = arguments.beside.iter();
    programs.extend(beside.map(|(path, object)| (path.as_str(), Program::Other(object))));
    println!(
        "ns per packet given to the interface: median (least to most) of {} rounds",
        arguments.rounds
    );
    for (number, (name, traffic)) in TRAFFIC.into_iter().enumerate() {
        if arguments.traffic.is_some_and(|only| only != number) {
            continue;
        }
        let mut nanos = vec![Vec::new(); programs.len()];
        let mut bytes = 0;
        for _ in 0..arguments.rounds {
            for (place, (_, program)) in programs.iter().enumerate() {
                let pair = Pair::new();
                pair.bring_up("encap.red");
                let (counter, base) = pair.counter_by(*program);
                let (each, runs) = per_packet(&counter, || traffic(&pair));
                bytes = (pair.sent().0 - base.0) / runs;
                nanos[place].push(each);
            }
        }
        print!("{name} ({bytes} bytes each):");
        for ((program, _), nanos) in programs.iter().zip(nanos) {
            print!(" {program} {}", Spread::of(nanos));
        }
        println!();
    }
}

/// Nanoseconds of one run, and how many there were.
fn per_packet(counter: &Counter, traffic: impl FnOnce()) -> (f64, u64) {
    let before = counter.cost().expect("the program is there");
    traffic();
    let after = counter.cost().expect("the program is there");
    let runs = after.runs - before.runs;
    let time = after.time - before.time;
    (time.as_nanos() as f64 / runs as f64, runs)
}

/// Of repeated measurements.
struct Spread {
    median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    fn of(mut all: Vec<f64>) -> Self {
        all.sort_by(f64::total_cmp);
        Self {
            median: all[all.len() / 2],
            least: all[0],
            most: all[all.len() - 1],
        }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let digits = if self.median < 10.0 { 2 } else { 0 };
        let Self {
            median,
            least,
            most,
        } = self;
        write!(f, "{median:.digits$} ({least:.digits$} to {most:.digits$})")
    }
}

/// What is done with what is read.
#[derive(Clone, Copy)]
enum Use {
    Nothing,
    Tracked,
    /// Every line made anew from its flow.
    LinesAnew,
    Lines,
}

/// As `keiro flowstats --json` does it, into nothing: a thousand flows, all of them with something
/// new in every reading.
fn reading(rounds: usize) {
    let pair = Pair::new();
    pair.bring_up("encap.red");
    let (mut counter, _) = pair.counter();
    let to: Ipv6Addr = OVER_SEGMENT.parse().expect("an address");
    let receiver = pair.client.run(|| UdpSocket::bind((to, 0)));
    let receiver = receiver.expect("inside").expect("bound");
    let to = receiver.local_addr().expect("bound");
    let senders = pair.server.run(|| {
        let bind = |_| UdpSocket::bind("[::]:0").expect("a socket");
        (0..FLOWS).map(bind).collect::<Vec<_>>()
    });
    let senders = senders.expect("inside");
    let uses = [
        ("read", Use::Nothing),
        ("read and distinguished", Use::Tracked),
        ("with lines of JSON, all of them made anew", Use::LinesAnew),
        ("with lines of JSON, as the command writes them", Use::Lines),
    ];
    let mut shares = vec![Vec::new(); uses.len()];
    let mut lines = Lines::new("s0");
    let mut trackers = vec![Tracker::default(); uses.len()];
    for _ in 0..rounds {
        for (place, (_, how)) in uses.iter().enumerate() {
            let mut cpu = Duration::ZERO;
            for _ in 0..READINGS {
                send(&senders, to);
                let from = cpu_time();
                let changes = read(&mut counter, &mut trackers[place], &mut lines, *how);
                cpu += cpu_time() - from;
                assert!(changes >= FLOWS, "{changes} of {FLOWS} flows");
            }
            shares[place].push(cpu.as_secs_f64() / (f64::from(READINGS) * 0.1) * 100.0);
        }
    }
    println!(
        "% of a core, {FLOWS} flows that all send, read every 100 ms: median (least to most) of {rounds} rounds"
    );
    for ((name, _), shares) in uses.into_iter().zip(shares) {
        println!("{name}: {}", Spread::of(shares));
    }
}

fn send(senders: &[UdpSocket], to: SocketAddr) {
    for sender in senders {
        // What a full queue refuses is not missed.
        let _ = sender.send_to(&[1; 100], to);
    }
}

/// One reading; how many flows had something new.
fn read(counter: &mut Counter, tracker: &mut Tracker, lines: &mut Lines, how: Use) -> usize {
    let peers = Peers::default();
    let mut changes = 0;
    let mut out = BufWriter::new(io::sink());
    let unix = clock::unix_time();
    let result = counter.read(|key, counts| {
        if matches!(how, Use::Nothing) {
            changes += 1;
            return;
        }
        let Some(change) = tracker.update(key, counts) else {
            return;
        };
        changes += 1;
        let interval = Duration::from_millis(100);
        let written = match how {
            Use::Nothing | Use::Tracked => Ok(()),
            Use::LinesAnew => {
                let line = Line::new("s0", unix, interval, &change, &peers);
                serde_json::to_writer(&mut out, &line)
                    .map_err(io::Error::from)
                    .and_then(|()| out.write_all(b"\n"))
            }
            Use::Lines => lines.write(&mut out, unix, interval, &change, &peers),
        };
        written.expect("a sink takes all");
    });
    result.expect("it can be read");
    changes
}

/// Of this thread, to the nanosecond.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    time.expect("every thread has it").into()
}
