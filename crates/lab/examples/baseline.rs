//! The path-selection paper's five applications over kernel TCP on path 2, or over kernel MPTCP
//! on both paths: `baseline tcp|mptcp [SECONDS [SEED]]`, as root.

use std::{env, process::ExitCode, sync::atomic::AtomicBool, time::Duration};

use keiro_lab::{
    Interrupts, Lab, Topology,
    traffic::{AppTraffic, Baseline, Plan, Transport, run_baseline, summarize},
};
use keiro_units::ByteCount;

const TOPOLOGY: &str = include_str!("../../../experiments/path-selection/topology.toml");

/// Name, message length in bytes, mean interval in ms [path-selection table 2].
const APPLICATIONS: [(&str, u64, u64); 5] = [
    ("A1", 1_000_000, 200),
    ("A2", 100_000, 100),
    ("A3", 100_000, 100),
    ("A4", 10_000, 100),
    ("A5", 10_000, 100),
];

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("baseline: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let transport = match arguments.first().map(String::as_str) {
        Some("tcp") => Transport::Tcp {
            link: "path2".into(),
        },
        Some("mptcp") => Transport::Mptcp {
            first: "path2".into(),
            also: vec!["path1".into()],
        },
        _ => return Err("say `tcp` or `mptcp`, then for how many seconds, then a seed".into()),
    };
    let seconds: u64 = arguments.get(1).map_or(Ok(20), |text| text.parse())?;
    let seed: u64 = arguments.get(2).map_or(Ok(1), |text| text.parse())?;

    let interrupts = Interrupts::install(Duration::ZERO)?;
    let topology = Topology::parse(TOPOLOGY, "topology.toml")?;
    let lab = Lab::builder(&topology)
        .name(format!("baseline-{}", std::process::id()))
        .seed(seed)
        .interrupts(&interrupts)
        .up()?;
    let apps = (1..).zip(APPLICATIONS);
    let plan = Plan {
        apps: apps
            .map(|(number, (name, length, interval_ms))| AppTraffic {
                number,
                name: name.into(),
                length: ByteCount::new(length),
                mean_interval: Duration::from_millis(interval_ms),
            })
            .collect(),
        seed,
        duration: Duration::from_secs(seconds),
        drain: Duration::from_secs(20),
    };
    let baseline = Baseline {
        from: "tokyo".into(),
        to: "osaka".into(),
        transport,
        congestion: Some("cubic".into()),
    };
    let exchange = run_baseline(&lab, &baseline, &plan, &|_| {}, &AtomicBool::new(false))?;

    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    println!("app  made  lost   mean ms    p50 ms    p99 ms    max ms");
    for (summary, app) in summarize(&exchange.records).iter().zip(&plan.apps) {
        println!(
            "{:3} {:5} {:5} {:9.1} {:9.1} {:9.1} {:9.1}",
            app.name,
            summary.made,
            summary.lost,
            ms(summary.mean),
            ms(summary.p50),
            ms(summary.p99),
            ms(summary.max)
        );
    }
    println!(
        "sources late: p99 {:?}, max {:?}",
        exchange.source_lateness_p99, exchange.source_lateness_max
    );
    if let Some(report) = lab.emulator_report()? {
        let void = if report.void() { "VOID: " } else { "" };
        println!("{void}emulator: {}", report.lateness);
        for link in &report.links {
            println!("{}: {:?}", link.name, link.a_to_b.link);
        }
    }
    Ok(())
}
