//! Kernel TCP flows over 50 Mbit/s with a buffer of 50 packets and 25 ms one way, for comparison with the
//! simulator's hosts (docs/simulator.md): `bottleneck FLOWS CONTROL [SEED]`, as root, one minute. CONTROL is
//! one of `net.ipv4.tcp_available_congestion_control`.

use std::{
    env,
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    ops::Range,
    process::ExitCode,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use keiro_lab::{Host, Interrupts, Lab, Topology, emulator::Report};
use keiro_model::fairness::jain;
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};
use socket2::{Domain, Socket, Type};

const TOPOLOGY: &str = r#"
name = "bottleneck"

[host.source]
sysctl = { "net.ipv4.tcp_no_metrics_save" = 1 }

[host.sink]
sysctl = { "net.ipv4.tcp_no_metrics_save" = 1 }

[link.core]
a = { host = "source", addresses = ["192.0.2.1/30"] }
b = { host = "sink", addresses = ["192.0.2.2/30"] }
each_way = { rate = "50Mbit", delay = "25ms", buffer = "50 packets" }
"#;

/// Flows begin within the first second, as in the simulator; this is the counted time.
const WARM_UP: Duration = Duration::from_secs(10);
const SECONDS: usize = 60;
/// Period of checking whether a transfer's time is over.
const LOOK: Duration = Duration::from_millis(200);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bottleneck: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [flows, control, seed @ ..] = &arguments[..] else {
        return Err("say how many flows, and `cubic` or `reno`, then a seed".into());
    };
    let flows: usize = flows.parse()?;
    let seed: u64 = seed.first().map_or(Ok(0), |seed| seed.parse())?;

    let interrupts = Interrupts::install(Duration::ZERO)?;
    let topology = Topology::parse(TOPOLOGY, "topology.toml")?;
    let lab = Lab::builder(&topology)
        .name(format!("bottleneck-{}", std::process::id()))
        .seed(seed)
        .interrupts(&interrupts)
        .up()?;
    let (seconds, before) = carry(&lab, flows, control, seed)?;

    let got = |from: usize, to: usize| -> Vec<f64> {
        let of_flow = |seconds: &Seconds| -> u64 {
            let of_second = seconds[from..to].iter();
            of_second.map(|bytes| bytes.load(Ordering::Relaxed)).sum()
        };
        seconds.iter().map(|flow| of_flow(flow) as f64).collect()
    };
    let warm_up = WARM_UP.as_secs() as usize;
    let counted = got(warm_up, SECONDS);
    let megabits = counted.iter().sum::<f64>() * 8.0 / 1e6 / (SECONDS - warm_up) as f64;
    println!(
        "{flows} flows, {control}: {megabits:.2} Mbit/s from 10 s to {SECONDS} s; index {:.3}, from \
         10 s to 20 s {:.3}",
        jain(&counted).unwrap_or(0.0),
        jain(&got(warm_up, 2 * warm_up)).unwrap_or(0.0)
    );
    let report = lab.emulator_report()?.ok_or("the link is emulated")?;
    let void = if report.void() { "VOID: " } else { "" };
    let (link, before) = (report.links[0].a_to_b, before.links[0].a_to_b);
    let dropped = link.link.drops.buffer - before.link.drops.buffer;
    let arrived = link.link.arrived_packets - before.link.arrived_packets;
    println!(
        "{:.2} % of {arrived} packets dropped; {void}emulator: {}, {} packets lost by its own fault",
        dropped as f64 / arrived as f64 * 100.0,
        report.lateness,
        link.ring_drops + link.no_room + link.oversized + link.checksum_missing,
    );
    Ok(())
}

/// Bytes read in each second.
type Seconds = Vec<AtomicU64>;

/// Bytes of every flow, and the emulator's counters when counting began.
fn carry(
    lab: &Lab,
    flows: usize,
    control: &str,
    seed: u64,
) -> Result<(Vec<Seconds>, Report), Box<dyn std::error::Error>> {
    let (source, sink) = (lab.host("source")?, lab.host("sink")?);
    let listener = sink.run(|| TcpListener::bind("192.0.2.2:0"))??;
    let to = listener.local_addr()?;
    let mut random = ChaCha12Rng::seed_from_u64(seed);
    let starts: Vec<Duration> = (0..flows)
        .map(|_| Duration::from_micros(random.next_u64() % 1_000_000))
        .collect();
    let seconds: Vec<Seconds> = (0..flows)
        .map(|_| (0..SECONDS).map(|_| AtomicU64::new(0)).collect())
        .collect();
    lab.measure_from_now()?;
    let began = Instant::now();
    let ends = began + Duration::from_secs(SECONDS as u64);
    let before = thread::scope(|scope| {
        let mut running = Vec::new();
        for (starts, seconds) in starts.into_iter().zip(&seconds) {
            running.push(scope.spawn(move || {
                thread::sleep(starts);
                let stream = connect(source, to, control)?;
                send(stream, ends)
            }));
            let listener = &listener;
            running.push(scope.spawn(move || {
                let (stream, _) = listener.accept()?;
                receive(stream, seconds, began..ends)
            }));
        }
        thread::sleep(WARM_UP.saturating_sub(began.elapsed()));
        let before = lab.emulator_report();
        for one in running {
            one.join().expect("a flow's thread does not panic")?;
        }
        Ok::<_, Box<dyn std::error::Error>>(before?)
    })?;
    Ok((seconds, before.ok_or("the link is emulated")?))
}

fn connect(from: &Host, to: SocketAddr, control: &str) -> io::Result<TcpStream> {
    let connected = from.run(|| -> io::Result<TcpStream> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_tcp_congestion(control.as_bytes())?;
        socket.connect_timeout(&to.into(), WARM_UP)?;
        Ok(socket.into())
    });
    connected.map_err(io::Error::other)?
}

fn send(mut stream: TcpStream, ends: Instant) -> io::Result<()> {
    stream.set_write_timeout(Some(LOOK))?;
    let chunk = vec![0; 1 << 16];
    while Instant::now() < ends {
        match stream.write(&chunk) {
            Ok(_) => {}
            Err(error) if is_pause(&error) => {}
            // The other end may have noticed the end first.
            Err(_) if Instant::now() >= ends => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn receive(mut stream: TcpStream, seconds: &[AtomicU64], time: Range<Instant>) -> io::Result<()> {
    stream.set_read_timeout(Some(LOOK))?;
    let mut chunk = vec![0; 1 << 16];
    while Instant::now() < time.end {
        match stream.read(&mut chunk) {
            Ok(count) => {
                if let Some(second) = seconds.get(time.start.elapsed().as_secs() as usize) {
                    second.fetch_add(count as u64, Ordering::Relaxed);
                }
            }
            Err(error) if is_pause(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_pause(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}
