//! Keiro's IP tunnel beside wireguard-go and Nebula: the same measurements through each, in turn,
//! in one run. README.md says what is measured and how the peers are set.

mod load;
mod tunnel;

use std::{path::PathBuf, thread, time::Duration};

use anyhow::{Context, bail};
use clap::Parser;
use keiro_lab::{Interrupts, Lab, Topology};

use crate::{
    load::Measured,
    tunnel::{Kind, Tunnel},
};

#[derive(Parser)]
#[command(about, version)]
pub(crate) struct Args {
    /// Keiro, built with `--release`
    #[arg(long, default_value = "target/release/keiro")]
    keiro: PathBuf,
    /// Where wireguard-go, nebula and nebula-cert are; peers.sh makes them
    #[arg(long, default_value = "benches/tunnel/target/peers")]
    peers: PathBuf,
    /// Which to measure, in this order; all unless given
    #[arg(long, value_enum)]
    only: Vec<Kind>,
    /// How often each is measured
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=50))]
    rounds: u16,
    /// Seconds of each TCP transfer
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// Veth as a network card that segments nothing: what a packet costs shows
    #[arg(long)]
    no_segmentation: bool,
}

const TOPOLOGY: &str = r#"
[host.a]

[host.b]

[link.wan]
a = { host = "a", addresses = ["192.0.2.1/24"] }
b = { host = "b", addresses = ["192.0.2.2/24"] }
"#;

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let interrupts = Interrupts::install(Duration::from_secs(5)).context("signals")?;
    let kinds = match args.only.as_slice() {
        [] => Kind::ALL.to_vec(),
        only => only.to_vec(),
    };
    let mut all: Vec<(Kind, Vec<Measured>)> = kinds.iter().map(|kind| (*kind, vec![])).collect();
    println!("{}", Measured::HEAD);
    for round in 0..args.rounds {
        for (at, (kind, measured)) in all.iter_mut().enumerate() {
            interrupts.end_if_received();
            let name = format!("tunnel-{}-{round}-{at}", std::process::id());
            let found = measure(&args, *kind, &name, &interrupts)
                .with_context(|| format!("{kind} in round {}", round + 1))?;
            println!("{}", found.row(&kind.to_string()));
            measured.push(found);
        }
    }
    println!("\nmedians of {}\n{}", args.rounds, Measured::HEAD);
    for (kind, measured) in &all {
        println!("{}", Measured::median(measured).row(&kind.to_string()));
    }
    let of = |wanted: Kind| {
        let found = all.iter().find(|(kind, _)| *kind == wanted);
        found.map(|(_, measured)| Measured::median(measured))
    };
    let Some(keiro) = of(Kind::Keiro) else {
        return Ok(());
    };
    println!();
    for peer in [Kind::WireguardGo, Kind::Nebula] {
        if let Some(other) = of(peer) {
            println!("keiro / {peer}: {}", keiro.beside(&other));
        }
    }
    Ok(())
}

fn measure(
    args: &Args,
    kind: Kind,
    name: &str,
    interrupts: &Interrupts,
) -> anyhow::Result<Measured> {
    let topology = Topology::parse(TOPOLOGY, "the benchmark").context("the topology")?;
    let lab = Lab::builder(&topology)
        .name(name)
        .interrupts(interrupts)
        .up()
        .context("namespaces")?;
    if args.no_segmentation {
        for host in ["a", "b"] {
            let host = lab.host(host)?;
            let mut command = host.command("ethtool");
            command.args([
                "-K",
                "wan",
                "tx-udp-segmentation",
                "off",
                "rx-udp-gro-forwarding",
                "on",
            ]);
            if !command.status()?.success() {
                bail!("ethtool did not turn segmentation off");
            }
        }
    }
    let files = tempfile::tempdir()?;
    let measured = || {
        let tunnel = Tunnel::start(kind, args, &lab, files.path())?;
        load::await_echo(&lab, &tunnel)?;
        // Path MTU discovery, handshakes and first windows are not measured.
        thread::sleep(Duration::from_secs(1));
        load::measure(&lab, &tunnel, Duration::from_secs(args.seconds))
    };
    measured().with_context(|| tunnel::logs(files.path()))
}
