//! How near `keiro measure` comes to links that are known: needs root, takes about ten minutes.
//!
//! `cargo run -p keiro-measure --example accuracy [transfers] [capacity]`
//!
//! Server and client run in two network namespaces with an emulated link in between.

use std::{
    error::Error,
    net::{SocketAddr, UdpSocket},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use keiro_lab::{Interrupts, Lab, Topology};
use keiro_measure::net::{
    Access, Connection, Direction, Limits, NetError, Server, Session, TrainPlan, TransferPlan,
    Transfers, log_spaced, measure_trains, measure_transfers,
};
use keiro_model::{
    ByteCount,
    fit::{Fit, Sample},
};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

type Failed = Box<dyn Error + Send + Sync>;

const SERVER: &str = "198.51.100.2:7610";
const SEED: u64 = 1;
/// Payload of a full packet of 1500 bytes.
const PAYLOAD_SHARE: f64 = 1448.0 / 1500.0;

fn main() -> Result<(), Failed> {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let wants = |part: &str| wanted.is_empty() || wanted.iter().any(|w| w == part);
    let interrupts = Interrupts::install(Duration::ZERO)?;
    if wants("transfers") {
        println!(
            "link            B           error    oh          error      next sizes  late p99"
        );
        for (mbit, delay_ms) in [(10, 5), (50, 10), (100, 2), (100, 25)] {
            transfers(&interrupts, mbit, delay_ms)?;
        }
    }
    if wants("capacity") {
        println!("link      cross  there       error    back        error    late p99");
        for mbit in [10, 50, 100] {
            for load in [0, 30, 60] {
                capacity(&interrupts, mbit, load)?;
            }
        }
    }
    Ok(())
}

/// A laboratory with one link between tokyo and osaka.
fn laboratory(interrupts: &Interrupts, mbit: u32, delay_ms: u32) -> Result<Lab, Failed> {
    let text = format!(
        "[host.tokyo]\n[host.osaka]\n[link.wan]\n\
         a = {{ host = \"tokyo\", addresses = [\"198.51.100.1/30\"] }}\n\
         b = {{ host = \"osaka\", addresses = [\"198.51.100.2/30\"] }}\n\
         each_way = {{ rate = \"{mbit}Mbit\", delay = \"{delay_ms}ms\", buffer = \"512KiB\" }}\n"
    );
    let topology = Topology::parse(&text, "accuracy")?;
    let builder = Lab::builder(&topology).interrupts(interrupts).seed(SEED);
    Ok(builder.name(format!("a{}", std::process::id())).up()?)
}

/// Runs `client` in tokyo towards a server in osaka.
fn measured<T: Send>(
    lab: &Lab,
    client: impl FnOnce(&mut Session<'_>) -> Result<T, NetError> + Send,
) -> Result<T, Failed> {
    let (tokyo, osaka) = (lab.host("tokyo")?, lab.host("osaka")?);
    let (bound, server) = mpsc::channel();
    thread::scope(|scope| {
        let serving = scope.spawn(move || {
            osaka.run(|| -> Result<(), Failed> {
                let address: SocketAddr = SERVER.parse()?;
                let server = Server::bind(address, Access::Open, Limits::default(), |_| {})?;
                bound.send(server.stop_handle())?;
                Ok(server.run()?)
            })?
        });
        let Ok(stop_server) = server.recv() else {
            return Err(serving
                .join()
                .expect("no panic")
                .err()
                .unwrap_or("no server".into()));
        };
        let stop = AtomicBool::new(false);
        let found = tokyo.run(|| {
            let mut session = Session::connect(SERVER, None, &stop)?;
            client(&mut session)
        });
        stop_server.stop();
        serving.join().expect("no panic")?;
        Ok(found??)
    })
}

fn lateness(lab: &Lab) -> Result<Duration, Failed> {
    let report = lab.emulator_report()?.ok_or("no emulator")?;
    Ok(report.lateness.p99)
}

fn transfers(interrupts: &Interrupts, mbit: u32, delay_ms: u32) -> Result<(), Failed> {
    let lab = laboratory(interrupts, mbit, delay_ms)?;
    // A tenth of a second to one and a half.
    let largest = u64::from(mbit) * 200_000;
    let sizes = log_spaced(1_000, largest, 3)?;
    // Between every two of them.
    let between: Vec<u64> = sizes
        .windows(2)
        .map(|two| ((two[0] as f64 * two[1] as f64).sqrt()) as u64)
        .collect();
    lab.measure_from_now()?;
    let series = |session: &mut Session<'_>, sizes: &[u64]| {
        let plan = TransferPlan {
            sizes: sizes.to_vec(),
            direction: Direction::There,
            connection: Connection::Warm,
            precision: 0.01,
            budget: Duration::from_secs(45),
            repeats_max: 50,
            pause: Duration::ZERO,
            seed: SEED,
        };
        let mut found = Transfers::default();
        measure_transfers(session, &plan, &mut found, &mut |_| {}).map(|()| found)
    };
    let (fitted, others) = measured(&lab, |session| {
        Ok((series(session, &sizes)?, series(session, &between)?))
    })?;
    let samples: Vec<Sample> = fitted
        .samples
        .iter()
        .filter_map(|timed| Sample::new(ByteCount::new(timed.bytes), timed.seconds).ok())
        .collect();
    let fit = Fit::of(&samples).map_err(|error| error.to_string())?;
    let (first, last) = (&fit.pieces()[0], &fit.pieces()[fit.pieces().len() - 1]);
    let rate = last.bandwidth().as_bits_per_second() as f64 / 1e6;
    let overhead = first.overhead_seconds() * 1e3;
    let worst = others
        .series
        .iter()
        .filter(|series| !series.seconds.is_empty())
        .map(|series| median(&series.seconds) / fit.seconds(series.bytes as f64) - 1.0)
        .fold(0.0, |worst: f64, error| {
            if error.abs() > worst.abs() {
                error
            } else {
                worst
            }
        });
    let wanted = f64::from(mbit) * PAYLOAD_SHARE;
    println!(
        "{mbit:>3} Mbit {delay_ms:>3} ms  {rate:7.3} Mbit {:+6.2} %  {overhead:7.3} ms {:+6.3} ms  {:+6.2} %  {:?}, {} piece(s)",
        (rate / wanted - 1.0) * 100.0,
        overhead - f64::from(delay_ms),
        worst * 100.0,
        lateness(&lab)?,
        fit.pieces().len(),
    );
    Ok(lab.down()?)
}

fn median(seconds: &[f64]) -> f64 {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn capacity(interrupts: &Interrupts, mbit: u32, load: u32) -> Result<(), Failed> {
    let lab = laboratory(interrupts, mbit, 5)?;
    let stop = AtomicBool::new(false);
    let (tokyo, osaka) = (lab.host("tokyo")?, lab.host("osaka")?);
    let rate = f64::from(mbit) * 1e6 * f64::from(load) / 100.0;
    lab.measure_from_now()?;
    let report = thread::scope(|scope| {
        let stop = &stop;
        let noise = [(tokyo, "198.51.100.2:9"), (osaka, "198.51.100.1:9")];
        for (seed, (host, to)) in (0..).zip(noise) {
            scope.spawn(move || host.run(|| poisson(to, rate, seed, stop)));
        }
        let plan = TrainPlan {
            trains: 40,
            packets: 40,
            bytes: 1372,
            seed: SEED,
        };
        let report = measured(&lab, |session| measure_trains(session, &plan, &mut |_| {}));
        stop.store(true, Ordering::Release);
        report
    })?;
    let shown = |found: &Result<keiro_model::capacity::Capacity, _>| match found {
        Ok(found) => {
            let found = found.rate.as_bits_per_second() as f64 / 1e6;
            let error = (found / f64::from(mbit) - 1.0) * 100.0;
            format!("{found:7.3} Mbit {error:+6.2} %")
        }
        Err(reason) => format!("{reason}"),
    };
    let emulator = lab.emulator_report()?.ok_or("no emulator")?;
    let link = emulator.links.first().ok_or("no link")?;
    let carried = [link.a_to_b, link.b_to_a].map(|way| {
        let bits = way.link.departed_bytes as f64 * 8.0;
        bits / emulator.measured.as_secs_f64() / f64::from(mbit) / 1e4
    });
    println!(
        "{mbit:>3} Mbit  {load:>3} %  {}  {}  {:?}, {:.0} % and {:.0} % in use",
        shown(&report.there),
        shown(&report.back),
        emulator.lateness.p99,
        carried[0],
        carried[1]
    );
    Ok(lab.down()?)
}

/// Sends packets of several lengths at random times, `rate` bit/s of IP on average, until told to
/// stop.
fn poisson(to: &str, rate: f64, seed: u64, stop: &AtomicBool) -> Result<(), Failed> {
    if rate <= 0.0 {
        return Ok(());
    }
    // It is the listener of the other's as well, so that no ICMP answers load the link.
    let socket = UdpSocket::bind("0.0.0.0:9")?;
    let _ = keiro_linux::realtime::set_timer_slack(Duration::ZERO);
    let mut rng = ChaCha12Rng::seed_from_u64(seed);
    let lengths = [1500.0, 1500.0, 576.0, 60.0];
    let mean = lengths.iter().sum::<f64>() / lengths.len() as f64;
    let data = [0; 1472];
    let begin = Instant::now();
    let mut at = 0.0;
    while !stop.load(Ordering::Acquire) {
        let uniform = (f64::from(rng.next_u32()) + 0.5) / (f64::from(u32::MAX) + 1.0);
        at -= uniform.ln() * mean * 8.0 / rate;
        let due = begin + Duration::from_secs_f64(at);
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let length = lengths[(rng.next_u32() % 4) as usize] as usize - 28;
        // Refused by a full buffer: lost, as others' packets may be.
        let _ = socket.send_to(&data[..length], to);
    }
    Ok(())
}
