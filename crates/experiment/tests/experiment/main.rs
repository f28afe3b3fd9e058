//! Plans and their runners through the public interface: one file per subject.

mod churn;
mod parameters;
mod plans;
mod recorded;
mod runners;
mod tenants;
mod transactions;
mod transfers;
mod trials;
mod vary;

use keiro_experiment::{
    campaign::{Campaign, Options, Runners},
    plan::Plan,
    report::Report,
};

/// Runs an experiment with these settings in the simulator, all of its variants or those that are
/// named. Its results are in the directory.
fn simulate(id: &str, settings: &[&str], variants: &[&str]) -> (Report, tempfile::TempDir) {
    let directory = tempfile::tempdir().expect("a directory");
    let options = Options {
        quick: false,
        variants: variants.iter().map(|name| (*name).to_owned()).collect(),
        results: directory.path().to_owned(),
        version: "test",
    };
    let settings: Vec<_> = settings
        .iter()
        .map(|set| set.parse().expect("a setting"))
        .collect();
    let plan = Plan::find(id)
        .expect("it is built in")
        .with(&settings)
        .expect("it is valid");
    let report =
        Campaign::new(options, Runners::default().with_simulator()).run(&plan, &mut |_| {});
    (report.expect("it runs"), directory)
}
