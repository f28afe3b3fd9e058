//! Transactions of 64 clients over kernel TCP, through the aggregation experiments' topology:
//! `transactions [--lossless] [--load] [CONGESTION [ROUND_TRIPS [SECONDS [SEED]]]]`, as root.

use std::{env, process::ExitCode, sync::atomic::AtomicBool, time::Duration};

use keiro_lab::{
    Interrupts, Lab, Topology,
    traffic::{
        load::{Load, ReceiveCounters, ReceiveQueue, RunningLoad, Sink},
        transactions::{Clients, Server, Transactions, carry},
    },
};
use keiro_link::Loss;
use keiro_units::ByteCount;

const TOPOLOGY: &str = include_str!("../../../experiments/aggregation/topology.toml");

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("transactions: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let (flags, words): (Vec<_>, Vec<_>) = env::args().skip(1).partition(|a| a.starts_with("--"));
    let has = |flag: &str| flags.iter().any(|given| given == flag);
    let congestion = words.first().map_or("cubic", String::as_str);
    let number =
        |index: usize, default: u64| words.get(index).map_or(Ok(default), |text| text.parse());
    let plan = Transactions {
        per_second: 400,
        round_trips: u32::try_from(number(1, 6)?)?,
        message: ByteCount::new(64),
        seed: number(3, 1)?,
        duration: Duration::from_secs(number(2, 5)?),
        drain: Duration::from_secs(20),
        cpu: None,
    };

    let interrupts = Interrupts::install(Duration::ZERO)?;
    let topology = Topology::parse(TOPOLOGY, "topology.toml")?;
    let lab = Lab::builder(&topology)
        .name(format!("transactions-{}", std::process::id()))
        .seed(plan.seed)
        .keep_cpus_awake()
        .interrupts(&interrupts)
        .up()?;
    if has("--lossless") {
        lab.link("wan")?.change(|config| config.loss = Loss::None)?;
    }
    let (router, gateway) = (lab.host("router")?, lab.host("gateway-b")?);
    let last_cpu = std::thread::available_parallelism()?.get() - 1;
    let queue = ReceiveQueue::make(gateway, router, "uplink", last_cpu)?;
    let server = Server::start(
        lab.host("server")?,
        "10.2.1.2:7000".parse()?,
        plan.message,
        Some(congestion),
        None,
    )?;
    let hosts = [lab.host("client1")?, lab.host("client2")?];
    let clients = Clients::connect(&hosts, 32, server.address(), Some(congestion))?;
    let load = Load {
        target: "198.51.100.2:9000".parse()?,
        burst: u32::try_from(number(4, 600)?)?,
        every: Duration::from_millis(number(5, 50)?),
        datagram_bytes: 64,
        cpu: queue.cpu,
    };
    let sink = Sink::start(gateway, load.target)?;
    let before = [
        ReceiveCounters::read(router)?,
        ReceiveCounters::read(gateway)?,
    ];
    let running = match has("--load") {
        true => Some(RunningLoad::start(lab.host("load")?, load)?),
        false => None,
    };
    let mut begin = || {
        let _ = lab.measure_from_now();
    };
    let carried = carry(&plan, clients, &mut begin, &|_| {}, &AtomicBool::new(false))?;
    let sent = running.map_or(Ok(0), RunningLoad::stop)?;
    let after = [
        ReceiveCounters::read(router)?,
        ReceiveCounters::read(gateway)?,
    ];
    drop(sink);

    let mut durations: Vec<_> = carried
        .records
        .iter()
        .filter_map(|r| r.duration())
        .collect();
    durations.sort_unstable();
    let at = |share: f64| {
        let rank = (durations.len() as f64 * share).ceil() as usize;
        let duration = durations.get(rank.saturating_sub(1)).copied();
        duration.unwrap_or_default().as_secs_f64() * 1e3
    };
    let total: Duration = durations.iter().sum();
    println!(
        "{} transactions, {} unended, {} waited; mean {:.2} min {:.2} p50 {:.2} p99 {:.2} \
         p99.9 {:.2} max {:.2} ms",
        carried.records.len(),
        carried.records.len() - durations.len(),
        carried.waited,
        total.as_secs_f64() * 1e3 / durations.len().max(1) as f64,
        at(0.0),
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    );
    println!(
        "begun late: p99 {:?}, max {:?}; load: {sent} datagrams",
        carried.lateness_p99, carried.lateness_max
    );
    for (host, (before, after)) in ["router", "gateway-b"]
        .iter()
        .zip(before.iter().zip(&after))
    {
        for ((name, before), (_, after)) in before.named().iter().zip(after.named()) {
            if after != *before {
                println!("{host} {name}: +{}", after - before);
            }
        }
    }
    if let Some(report) = lab.emulator_report()? {
        let void = if report.void() { "VOID: " } else { "" };
        println!("{void}emulator: {}", report.lateness);
    }
    Ok(())
}
