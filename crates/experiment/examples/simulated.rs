//! Runs plans of this repository in the simulator alone, without the gateway and the laboratory:
//! `cargo run --release -p keiro-experiment --example simulated -- [--quick] ID…`. Files go to
//! `out/experiments`, as those of `keiro experiment run --only sim`.

use keiro_experiment::{
    plan::Plan,
    session::{Options, Session},
    simulator::Simulator,
};

fn main() -> anyhow::Result<()> {
    let mut ids: Vec<String> = std::env::args().skip(1).collect();
    let quick = ids.iter().any(|id| id == "--quick");
    ids.retain(|id| id != "--quick");
    let options = Options {
        quick,
        variants: Vec::new(),
        results: "out/experiments".into(),
        version: env!("CARGO_PKG_VERSION"),
    };
    let mut session = Session::new(options, vec![Box::new(Simulator)]);
    for id in ids {
        let report = session.run(&Plan::find(&id)?, &mut |_| {})?;
        println!("{}\n{}", report.directory.display(), report.table());
    }
    Ok(())
}
