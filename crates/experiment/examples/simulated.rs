//! Runs plans of this repository in the simulator alone, without the gateway and the laboratory:
//! `cargo run --release -p keiro-experiment --example simulated -- [--quick] [--variant NAME]… ID…`. Files go to
//! `out/experiments`, as those of `keiro-lab experiment run --only sim`.

use anyhow::Context;
use keiro_experiment::{
    campaign::{Campaign, Options, Runners},
    plan::Plan,
};

fn main() -> anyhow::Result<()> {
    let (mut quick, mut variants, mut ids) = (false, Vec::new(), Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quick" => quick = true,
            "--variant" => variants.push(arguments.next().context("--variant needs a name")?),
            _ => ids.push(argument),
        }
    }
    let options = Options {
        quick,
        variants,
        results: "out/experiments".into(),
        version: env!("CARGO_PKG_VERSION"),
    };
    let mut campaign = Campaign::new(options, Runners::default().with_simulator());
    for id in ids {
        let report = campaign.run(&Plan::find(&id)?, &mut |_| {})?;
        println!("{}\n{}", report.directory.display(), report.table());
    }
    Ok(())
}
